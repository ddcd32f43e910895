"""Roots of sums of ramps and the k-th largest score agree with sorting, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.errors import InputError
from distsms.losses.gather import root_of_ramps
from distsms.parallel.communicator import Communicator
from distsms.parallel.order_statistics import RootSearch, find_roots, select
from distsms.parallel.order_statistics_kernels import NEGATIVE, POSITIVE
from tests.support.problems import share

ALONE = Communicator()
TINY = float(np.finfo(float).smallest_subnormal)
HUGE = float(np.finfo(float).max)
finite = st.floats(allow_nan=False, allow_infinity=False)  # including the largest, denormal numbers and both zeros


@pytest.mark.serial
@given(st.lists(st.one_of(finite, st.integers(-2, 2).map(float)), min_size=1, max_size=40), st.data())
def test_selection_is_sorting(values, data):
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
def test_selection_over_ranks(values, comm):
    n, ordered = len(values), np.sort(values)
    mine = values[share(comm, n)]
    for k in {1, 2, n // 3 + 1, n // 2 + 1, n}:
        assert select(mine, k, comm) == ordered[n - k] == np.partition(values, n - k)[n - k]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_ends_it(bad, comm):
    assert np.isnan(select(np.array([1.0, bad if comm.rank == comm.size - 1 else 2.0]), 1, comm))


def test_there_must_be_k(comm):
    for k in (0, 3 * comm.size + 1):
        with pytest.raises(InputError, match=f"k = {k} is not possible with {3 * comm.size} scores"):
            select(np.zeros(3), k, comm)


def root(search, scores, shift, width, comm):
    search.start(shift, width)
    find_roots([search], scores, comm)
    search.keep_root()
    return search.root


@pytest.mark.parametrize("width", [1e-12, 1e-6, 0.01, 1.0, 1e6])
def test_roots_of_ramps(width, comm):
    """One search over scores that drift, jump, shrink and tie: at each root the sum of ramps reaches the target."""
    rng = np.random.default_rng(5)
    n = 3000
    kinds = rng.choice([POSITIVE, NEGATIVE], n, p=[0.2, 0.8]).astype(np.uint8)
    target, shift, mine = int(np.sum(kinds == NEGATIVE)), 2.5, share(comm, n)
    search = RootSearch(kinds[mine], target)
    scores = rng.normal(size=n)
    for change in ("", "drift", "drift", "drift", "jump", "drift", "shrink", "tie", "equal", "jump"):
        if change == "drift":
            scores += 0.01 * rng.normal(size=n)
        elif change == "jump":
            scores += 1e3
        elif change == "shrink":
            scores *= 1e-6
        elif change == "tie":
            scores = np.round(rng.normal(size=n), 1)
        elif change == "equal":
            scores = np.full(n, 0.7)
        tau = root(search, scores[mine], shift, width, comm)
        place = scores + shift * (kinds == NEGATIVE)
        heads = np.sort(place - width * (kinds == NEGATIVE))
        reference = root_of_ramps(heads, width, float(target))
        resolution = 4 * np.spacing(max(abs(tau), abs(heads[0]), abs(heads[-1])))  # of tau and of the kinks
        assert np.sum(np.clip((tau + resolution - heads) / width, 0, 1)) >= target * (1 - 1e-10)
        assert np.sum(np.clip((tau - resolution - heads) / width, 0, 1)) <= target * (1 + 1e-10)
        # where G is steep, the roots themselves are the same
        slope = np.sum((heads < tau) & (heads + width > tau)) / width
        if slope > 0:
            assert abs(tau - reference) <= resolution + 1e-10 * target / slope
