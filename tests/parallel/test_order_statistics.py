"""The k-th largest score, and a place that is found again and again, agree with sorting, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.parallel import order_statistics
from distsms.parallel.order_statistics import LEFT_OUT, NEGATIVE, POSITIVE, PositionSearch, select
from tests.support.problems import share

pytestmark = pytest.mark.mpi

ALONE = Communicator()
TINY = float(np.finfo(float).smallest_subnormal)
HUGE = float(np.finfo(float).max)
finite = st.floats(allow_nan=False, allow_infinity=False)  # including the largest, denormal numbers and both zeros


@pytest.fixture(params=[0, 2**20], ids=["searched", "sorted"])
def few(request):
    """Whether few scores are sorted on each rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_statistics, "FEW", request.param)
        yield


@pytest.mark.serial
@given(st.lists(st.one_of(finite, st.integers(-2, 2).map(float)), min_size=1, max_size=40), st.data())
def test_selection_is_sorting(few, values, data):
    k = data.draw(st.integers(1, len(values)))
    assert select(np.array(values), k, ALONE) == sorted(values)[-k]


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(2000),
        np.array([0.0, -0.0, TINY, 3 * TINY, -TINY] * 7),
        np.array([HUGE, -HUGE, 0.0, 1e-300]),
        1e8 + np.arange(3000) % 7 * 2.0**-26,  # neighbouring numbers
        np.concatenate([np.random.default_rng(0).normal(size=20_000), np.full(5000, 0.3), [1e300]]),
        np.exp(np.random.default_rng(1).normal(0, 100, 5000)),  # over hundreds of orders of magnitude
    ],
    ids=["equal", "denormal", "huge", "neighbours", "more than the buffer", "many scales"],
)
def test_selection_over_ranks(few, values, comm):
    n, ordered = len(values), np.sort(values)
    mine = values[share(comm, n)]
    for k in {1, 2, n // 3 + 1, n // 2 + 1, n}:
        assert select(mine, k, comm) == ordered[n - k] == np.partition(values, n - k)[n - k]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_ends_it(few, bad, comm):
    assert np.isnan(select(np.array([1.0, bad if comm.rank == comm.size - 1 else 2.0]), 1, comm))


def test_there_must_be_k(few, comm):
    for k in (0, 3 * comm.size + 1):
        with pytest.raises(InputError, match=f"k = {k} is not possible with {3 * comm.size} scores"):
            select(np.zeros(3), k, comm)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_place_is_found_again_while_scores_change(weighted, comm):
    """Drifts, jumps, ties and all equal; with two kinds of rows, and rows that are left out."""
    rng = np.random.default_rng(5)
    n, shift = 3000, 2.5
    kinds = rng.choice([LEFT_OUT, POSITIVE, NEGATIVE], n, p=[0.1, 0.2, 0.7]).astype(np.uint8)
    weights = rng.integers(1, 5, n) / 2.0 if weighted else np.ones(n)
    weights[kinds == LEFT_OUT] = 0
    target, mine = np.floor(0.7 * weights.sum()), share(comm, n)
    search = PositionSearch(kinds[mine], target, weights[mine] if weighted else None, comm)
    scores = rng.normal(size=n)
    changes = ["", "drift", "drift", "drift", "jump", "drift", "shrink", "tie", "equal", "jump", *["drift"] * 4]
    for change in changes:
        if change == "drift":
            scores = scores + 0.01 * rng.normal(size=n)
        elif change == "jump":
            scores = 1e3 + rng.normal(size=n)
        elif change == "shrink":
            scores = scores * 1e-6
        elif change == "tie":
            scores = np.round(rng.normal(size=n), 1)
        elif change == "equal":
            scores = np.full(n, 0.7)
        place = scores + shift * (kinds == NEGATIVE)
        order = np.argsort(place)
        expected = place[order[np.searchsorted(np.cumsum(weights[order]), target)]]
        assert search.find(np.ascontiguousarray(scores[mine]), shift) == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_later_score_that_is_not_finite_ends_it(bad, comm):
    kinds = np.full(50, POSITIVE, np.uint8)
    search = PositionSearch(kinds, 20.0 * comm.size, None, comm)
    scores = np.arange(50.0)
    places = [search.find(scores + change, 0.0) for change in (0.0, 0.1, 0.2, 0.1)]
    scores[7] = bad if comm.rank == comm.size - 1 else 7.0
    assert np.isnan(search.find(scores, 0.0))
    scores[7] = 7.0
    assert search.find(scores + 0.1, 0.0) == places[1] == places[3]


def test_a_target_that_the_weights_reach_but_for_rounding(comm):
    """The target is the sum of all weights; buckets add them in another order, and may miss it by the last digit."""
    rng = np.random.default_rng(8)
    for _ in range(40):
        n = int(rng.integers(3, 30))
        scores, weights, mine = rng.normal(size=n), rng.lognormal(0, 1, n), share(comm, n)
        target = np.nextafter(np.sum(weights), np.inf)
        kinds = np.full(len(scores[mine]), POSITIVE, np.uint8)
        search = PositionSearch(kinds, target, weights[mine], comm)
        assert search.find(np.ascontiguousarray(scores[mine]), 0.0) == scores.max()


def test_few_places_of_many_rows_are_found_by_few_surveys(comm, monkeypatch):
    """As the scores of categories are. To count bits, down to the last, would take twenty times as long."""
    surveys = []

    def counted(self, scores, shift, low, high, survey=PositionSearch._survey):
        surveys.append((low, high))
        return survey(self, scores, shift, low, high)

    monkeypatch.setattr(PositionSearch, "_survey", counted)
    monkeypatch.setattr(PositionSearch, "_by_bits", lambda *_: pytest.fail("bits were counted"))
    rng = np.random.default_rng(3)
    n, values = 4000, np.zeros(60)
    category, mine = rng.integers(0, 60, n) * rng.integers(0, 2, n), share(comm, n)
    search = PositionSearch(np.full(len(category[mine]), POSITIVE, np.uint8), 0.97 * n, None, comm)
    for _ in range(20):
        scores = values[category]
        assert search.find(scores[mine], 0.0) == np.sort(scores)[int(0.97 * n) - 1]
        values = values + rng.normal(size=60) * rng.choice([1e-3, 1.0])
    assert len(surveys) <= 20 * 2
