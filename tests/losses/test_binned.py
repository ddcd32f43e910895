"""ROCArea and pauc from cells: the planes are valid and R is enclosed, whatever the scores, the cells and the ranks."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.cli.train_text import describe_interval
from distsms.losses import binned
from distsms.losses.registry import make_loss
from distsms.matrix.local import SparseRows
from distsms.optim.objective import EPS, Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from tests.losses.test_orderings import PLACEMENTS, placed
from tests.support import oracles
from tests.support.problems import PAUC, data, problems, spread_scores
from tests.support.problems import share as share_of_rank

MEASURES, ORDERINGS = ["rocarea", PAUC], ("exchange", "bins")
RISK = {"rocarea": oracles.rocarea_risk, PAUC: lambda *classes: oracles.pauc_risk(*classes, 0.3)}
SPREADS = ["normal", "far from zero", "outliers", "few values", "equal", "long tails", "on the kink", "all sizes"]


def made(measure, labels, weights=None, comm=None, ordering="bins"):
    return make_loss(measure, ordering, np.asarray(labels, np.int8), weights, comm or Communicator())


def exact_risk(measure, scores, labels):
    return _exact_risk(measure, scores.tobytes(), labels.tobytes())


@lru_cache(64)
def _exact_risk(measure, scores, labels):
    """Compute it from the bytes of the arrays, once for all widths of a problem."""
    scores, labels = np.frombuffer(scores), np.frombuffer(labels, int)
    return RISK[measure](*(oracles.rational(scores[labels == sign]) for sign in (1, -1)))


@pytest.fixture(params=["usual cells", "few cells", "few cells, wide"])
def cells(request, monkeypatch):
    """The usual cells, 16 cells that may be divided, and 16 cells that enclose R however widely."""
    if request.param != "usual cells":
        monkeypatch.setattr(binned, "FEWEST", 16)
        monkeypatch.setattr(binned, "MOST", 16)
    if request.param == "few cells, wide":
        monkeypatch.setattr(binned, "DIVISIONS", 0)
        monkeypatch.setattr(binned, "EVERYWHERE", 0)
    return request.param


def spread(kind, x, rng):
    """Scores of many kinds; "on the kink": all differences are multiples of 1/4, so that many t are 0."""
    if kind == "on the kink":
        return np.round(4 * x) / 4
    return x * 10.0 ** rng.uniform(-12, 12, len(x)) if kind == "all sizes" else spread_scores(kind, x, rng)


def check(measure, scores, labels, nu):
    """Return the value, after comparing it with R of all pairs, and the plane with R at other scores, exactly."""
    value = made(measure, labels).evaluate(scores, nu)
    size = 1 + np.abs(scores).max()
    slack = 1e-14 * len(scores) * size
    R = exact_risk(measure, scores, labels)
    assert value.R - value.width - slack <= R <= value.R + slack
    assert value.R - value.width - made(measure, labels).kappa * nu - slack <= value.R_mu <= value.R + slack
    if nu == 0:  # it touches the lower end here
        assert value.coefficients @ scores + value.d >= value.R - value.width - slack
    c, rng = oracles.rational(value.coefficients), np.random.default_rng(len(scores))
    towards = np.where(value.coefficients > 0, 1.0, -1.0)  # where the plane is highest
    for other in (scores, np.zeros(len(scores)), rng.normal(size=len(scores)), size * towards, -size * towards):
        plane = sum(c * oracles.rational(other)) + oracles.rational([value.d])[0]
        assert plane <= exact_risk(measure, other, labels) + 1e-14 * len(scores) * (size + np.abs(other).max())
    return value


@pytest.mark.serial
@pytest.mark.parametrize("measure", MEASURES)
@given(problem=problems(max_rows=20), wide=st.booleans(), few=st.booleans(), smooth=st.booleans())
def test_encloses_and_proves(measure, problem, wide, few, smooth):
    with pytest.MonkeyPatch.context() as patch:
        if few:
            patch.setattr(binned, "FEWEST", 4)
            patch.setattr(binned, "MOST", 4)
        if wide:
            patch.setattr(binned, "DIVISIONS", 0)
            patch.setattr(binned, "EVERYWHERE", 0)
        check(measure, *problem[:2], problem[2] if smooth else 0.0)


@pytest.mark.serial
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("kind", SPREADS)
@pytest.mark.parametrize("n_pos, n_neg", [(1, 40), (40, 1), (30, 25)])
def test_difficult_scores(measure, kind, n_pos, n_neg, cells):
    rng = np.random.default_rng(5)
    labels = rng.permutation(np.repeat([1, -1], [n_pos, n_neg]))
    scores = spread(kind, rng.normal(size=n_pos + n_neg) + 0.5 * labels, rng)
    for nu in (0.0, 1e-12, 0.03, 4.0):
        value = check(measure, scores, labels, nu)
        if cells != "few cells, wide":
            assert value.width <= max(1e-6, 1e-12 * value.R)


@pytest.mark.parametrize("measure", ["rocarea", "pauc@0.05"])
@pytest.mark.parametrize("kind", SPREADS)
@pytest.mark.parametrize("weighted", [False, True])
def test_encloses_what_sorting_finds(measure, kind, weighted, comm):
    """On more rows and on all ranks, of which some may have no rows or one class, also with rows that are left out."""
    rng = np.random.default_rng(8)
    n = 4000
    labels = np.where(rng.random(n) < 0.1, 1, -1)
    scores = spread(kind, 0.5 * rng.normal(size=n) + 0.3 * labels, rng)
    weights = rng.choice([0.0, 0.5, 3.0], n) if weighted else rng.choice([0.0, 1.0], n, p=[0.2, 0.8])
    for placement in PLACEMENTS:
        mine = placed(placement, labels, comm, np.random.default_rng(2))
        loss, exact = (made(measure, labels[mine], weights[mine], comm, how) for how in ("bins", "exchange"))
        for nu in (0.0, 1e-6, 0.04):
            value, other = loss.evaluate(scores[mine], nu), exact.evaluate(scores[mine], nu)
            slack = 1e-12 * (1 + other.R) + 1e-15 * np.abs(scores).max()
            assert value.R - value.width - slack <= other.R <= value.R + slack
            assert value.width <= max(1e-6, 1e-12 * other.R)
            assert np.all(value.coefficients[weights[mine] == 0] == 0)
            touches = comm.sum(np.array([value.coefficients @ scores[mine]]))[0] + value.d
            assert touches <= value.R + slack


@pytest.mark.parametrize("measure", ["rocarea", "pauc@0.05"])
def test_coefficients_are_the_same_to_the_bit_on_any_number_of_ranks(measure, comm):
    rng = np.random.default_rng(1)
    n = 20_000
    labels = np.where(rng.random(n) < 0.1, 1, -1)
    for scores in (rng.normal(size=n), np.round(rng.normal(size=n), 1)):
        alone = made(measure, labels).evaluate(scores, 0.01)
        mine = placed("scattered", labels, comm, np.random.default_rng(3))
        together = made(measure, labels[mine], None, comm).evaluate(scores[mine], 0.01)
        assert np.array_equal(together.coefficients, alone.coefficients[mine])
        assert together.d == alone.d


def test_very_many_rows_of_one_cell():
    """Words in which rows and offsets are counted together do not overflow: all t are 1, or all offsets the largest."""
    labels = np.ones(2**20 + 5, np.int8)
    labels[::3] = -1
    value = made("rocarea", labels).evaluate(np.full(len(labels), 0.3), 0.0)
    assert value.R - value.width <= 1 <= value.R <= 1 + 1e-9
    scores = np.where(np.arange(len(labels)) == 0, 0.0, np.nextafter(1.0, 0.0))
    value = made("rocarea", labels).evaluate(scores, 0.0)
    exact = made("rocarea", labels, ordering="exchange").evaluate(scores, 0.0)
    assert value.R - value.width <= exact.R + 1e-9 and exact.R <= value.R + 1e-9 and value.width < 1e-3


def test_the_upper_edges_of_cells():
    grid = binned.Grid.over(0.0, 1.0, 8, 6, 1.0, 1.0)
    edges = [grid.edge(cell) for cell in range(10)]
    np.testing.assert_allclose(edges, np.minimum(np.arange(10) / 8, 1.0))
    halves = np.array([2 * np.arange(10), np.full(10, 5)])  # each cell has two halves of 2^5 units
    edges = [grid._replace(fine=halves).edge(cell) for cell in range(2, 18)]
    np.testing.assert_allclose(edges, np.arange(1, 17) / 16)


def test_scores_that_are_not_finite(comm):
    labels = np.where(np.arange(50) % 3, 1, -1)
    for bad in (np.nan, np.inf, -np.inf):
        scores = np.zeros(50)
        scores[-1] = bad if comm.rank == comm.size - 1 else 0.0
        value = made("rocarea", labels, None, comm).evaluate(scores, 0.1)
        assert np.isnan(value[:3]).all() and not value.coefficients.any()


@pytest.mark.serial
def test_cells_are_divided_where_many_pairs_are_and_rows_sorted_if_that_is_not_enough():
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(20_000) % 10 == 0, 1, -1)
    x = rng.normal(size=len(labels))
    for kind, way in (("normal", binned.FROM_CELLS), ("on the kink", binned.DIVIDED), ("all sizes", binned.SORTED)):
        loss = made("rocarea", labels)
        value = loss.evaluate(spread(kind, x, rng), 0.0)
        assert dict(loss.ways) == {way: 1}
        assert value.width <= 1e-6
    # A smaller gap to prove needs a smaller interval.
    loss = made("rocarea", labels)
    loss.target = lambda J: 1e-6
    assert loss.evaluate(x, 0.01).width <= 1e-9


@pytest.mark.parametrize("rare", [1, -1])
def test_rows_are_sorted_where_the_smaller_class_is_small_and_apart(comm, rare, monkeypatch):
    monkeypatch.setattr(binned, "LARGE", 100)
    monkeypatch.setattr(binned, "RARE", 1)
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(2000) % 100 == 0, rare, -rare)
    mine, noise = share_of_rank(comm, len(labels)), rng.normal(size=len(labels))
    for distance, way in ((0.1, binned.FROM_CELLS), (9.0, binned.SORTED)):
        scores = noise + distance * labels
        loss = made("rocarea", labels[mine], None, comm)
        value = loss.evaluate(scores[mine], 0.04)
        sorted_value = made("rocarea", labels[mine], None, comm, "exchange").evaluate(scores[mine], 0.04)
        assert dict(loss.ways) == {way: 1}
        assert value.R - value.width - 1e-12 <= sorted_value.R <= value.R + 1e-12
        if way == binned.SORTED:
            assert value[:3] == sorted_value[:3]
            np.testing.assert_array_equal(value.coefficients, sorted_value.coefficients)


@pytest.mark.serial
def test_allowances_for_rounding_do_not_grow_with_the_rows():
    """With a number of rows like that of the largest data, they are far smaller than a gap to prove."""
    X, y = data(300)
    objective = Objective(SparseRows.of(X), [made("rocarea", y)], Communicator())
    (evaluation,) = objective.evaluate([Request(np.ones(X.shape[1]), 0.01, ElasticNet(1e-3))])
    loss = objective.losses[0]
    loss.n = 10**12
    e, of_d = objective.plane_errors()
    largest = np.abs(X).max()
    assert of_d <= 1e-5 and e.max() <= 1e-5 * largest
    assert objective.rounding(evaluation) <= 1e-5
    assert EPS * loss.n * (evaluation.R + 4) > 1e-4  # what a sum over rows would be allowed


@pytest.mark.serial
@pytest.mark.parametrize("measure", ["rocarea", "pauc@0.1"])
@pytest.mark.parametrize("kind", ["normal", "on the kink", "long tails"])
def test_memory_is_what_is_counted(measure, kind, monkeypatch):
    """Also where cells are divided as often as possible."""
    monkeypatch.setattr(binned, "EVERYWHERE", 0)
    n, rng = 10**5, np.random.default_rng(0)
    labels = np.where(rng.random(n) < 0.3, 1, -1).astype(np.int8)
    scores = spread(kind, rng.normal(size=n), rng)
    loss = made(measure, labels)
    loss.target = lambda J: 1e-6
    tracemalloc.start()
    loss.evaluate_in_place(scores, 1e-6)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= loss.cost(loss.n_pos, loss.n_neg, 1).held_by_each


@pytest.mark.serial
def test_memory_is_counted_for_sorting_where_rows_may_be_sorted():
    cost, most = type(made("rocarea", [1, -1])).cost, binned.EVERYWHERE
    sortable, others = (cost(n_pos, 10**8, 1).held_by_each for n_pos in (most, most + 1))
    assert sortable > others > 2**20


def test_memory_does_not_grow_with_the_rows():
    peaks = []
    for n in (10**5, 10**6):
        rng = np.random.default_rng(0)
        labels, scores = np.where(rng.random(n) < 0.1, 1, -1).astype(np.int8), rng.normal(size=n)
        loss = made("rocarea", labels)
        assert loss._most == 2**13 if n == 10**5 else 2**16
        loss._most, loss.target = 2**13, lambda J: 1.0
        loss.evaluate_in_place(scores.copy(), 0.01)
        tracemalloc.start()
        loss.evaluate_in_place(scores, 0.01)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] <= 1.1 * peaks[0]


def test_bytes_sent_do_not_grow_with_the_rows(comm):
    sent = []
    for n in (10**3, 10**5):
        labels, scores = np.where(np.arange(n) % 10 == 0, 1, -1), np.random.default_rng(0).normal(size=n)
        loss = made("rocarea", labels, None, comm)
        loss._most, loss.target = 2**10, lambda J: 1.0
        before = sum(comm.bytes_moved())
        loss.evaluate(scores, 0.01)
        sent.append(sum(comm.bytes_moved()) - before)
    assert sent[0] == sent[1] <= 2 * 32 * (2**10 + 8)


def trained(measure, ordering, comm):
    """The exact J at the result, the result, and the states of the run."""
    X, y = data(2000, positive=0.1)
    rows, states = share_of_rank(comm, len(y)), []
    loss = made(measure, y[rows], None, comm, ordering)
    objective = Objective(SparseRows.of(X[rows].tocsr()), [loss], comm)
    result = minimize(objective, Settings(lam=1e-3, epsilon=1e-4), watch=lambda state, w: states.append(state))
    R = made(measure, y, ordering="exchange").evaluate(X @ result.w, 0.0).R
    return 1e-3 / 2 * result.w @ result.w + R, result, states


@pytest.mark.parametrize("measure", ["rocarea", "pauc@0.1"])
def test_trains_to_a_proved_gap_that_holds_for_the_exact_objective(measure, comm):
    _, exact, _ = trained(measure, "exchange", comm)
    J, found, _ = trained(measure, "bins", comm)
    assert found.gap <= 1e-4 and 0 < found.width <= 1e-7 and found.ways
    assert "width" in found.numbers() and "width" not in exact.numbers()
    assert not describe_interval(exact, True) and not describe_interval(found, False)
    assert f"{found.width:.2g}; evaluations:" in describe_interval(found, True)[0]
    assert describe_interval(replace(found, ways={binned.WIDE: 1}), False)
    assert J - 1e-15 <= found.J <= J + found.width + 1e-15
    assert max(exact.lower_bound, found.lower_bound) <= min(exact.J, found.J)


def test_a_resumed_run_keeps_the_interval_and_the_ways_of_its_evaluations(comm):
    """Also if it ends at once, by another ordering; and runs that share a loss have ways of their own."""
    X, y = data(2000, positive=0.1)
    rows, snapshots = share_of_rank(comm, len(y)), []
    settings = Settings(lam=1e-3, epsilon=1e-4, checkpoint_every=1e6)
    objectives = {}
    for ordering in ("bins", "exchange"):
        loss = made("rocarea", y[rows], None, comm, ordering)
        objectives[ordering] = Objective(SparseRows.of(X[rows].tocsr()), [loss], comm)
    first = minimize(objectives["bins"], settings, keep=snapshots.append)
    assert first.width > 0 and sum(first.ways.values()) == first.evaluations
    assert minimize(objectives["bins"], settings).ways == first.ways
    snapshot = snapshots[-1] if snapshots else None
    for objective in objectives.values():
        again = minimize(objective, settings, snapshot=snapshot)
        assert (again.J, again.width, again.ways) == (first.J, first.width, first.ways)
        assert again.numbers()["width"] == first.width


@pytest.mark.parametrize("measure", ["rocarea", "pauc@0.1"])
def test_the_last_evaluation_is_exact_if_it_is_cheap(measure, comm, monkeypatch):
    """J is then that of all pairs, and result, trace and text say so; the evaluations before have an interval."""
    monkeypatch.setattr(binned, "OF_LOADING", 0.0)
    J, found, states = trained(measure, "bins", comm)
    assert found.ways[binned.EXACT] == 1 and found.width == 0.0
    assert math.isclose(J, found.J, rel_tol=1e-14)
    assert found.J == pytest.approx(found.lower_bound + found.gap, rel=1e-14)
    assert "J is exact" in describe_interval(found, True)[0]
    if states:  # on ranks that run the solver
        assert all(state.width > 0 for state in states[:-1]) and states[-1].width == 0.0
        assert states[-1].evaluation == states[-2].evaluation and states[-1].best_J == found.J


@pytest.mark.serial
def test_an_exact_evaluation_is_cheap_only_beside_a_long_run():
    loss = made("rocarea", np.where(np.arange(10**6) % 10, -1, 1))
    cost = {how: sum(type(made("rocarea", [1, -1], ordering=how)).cost(10**5, 9 * 10**5, 1)[:2]) for how in ORDERINGS}
    for entries in (0.0, 1e8):
        evaluations = (2.5e7 + entries / 2 + cost["exchange"]) / (entries + cost["bins"]) * 10
        assert loss.exact_is_cheap(entries, 1.01 * evaluations)
        assert not loss.exact_is_cheap(entries, 0.99 * evaluations)
    loss.n_pos = loss.n_neg = 2**21  # which no rank sorts
    assert not loss.exact_is_cheap(1e8, 1e9)
