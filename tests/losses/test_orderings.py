"""Orderings of the margins: they agree, none holds all rows on one rank, and the cheapest is chosen."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.losses.registry import choose_ordering
from distsms.losses.rocarea import RocAreaExchange
from distsms.metrics import ranking
from tests.support.examples import examples
from tests.support.problems import ALL, LOSSES, build, problems, share, spread_scores

MEASURES = LOSSES


def placed(placement, labels, comm, rng):
    """Return which rows are this rank's, (n,) bool."""
    n, last = len(labels), comm.size - 1
    rarer = 1 if np.sum(labels > 0) <= np.sum(labels < 0) else -1
    owner = {
        "scattered": rng.integers(0, comm.size, n),
        "all on the last": np.full(n, last),
        "none on the root": np.maximum(1, rng.integers(0, comm.size, n)) % comm.size,
        "a class each": np.where(labels == rarer, 0, last),
        "the larger class on all": np.where(labels == rarer, last, rng.integers(0, comm.size, n)),
    }[placement]
    return owner == comm.rank


def check_against_gathering(way, scores, labels, mine, nu, comm):
    """R, R_mu, d and every coefficient agree to a relative 1e-9."""
    reference, found = (
        build((way[0], ordering), labels[mine], comm).evaluate(scores[mine], nu) for ordering in ("gather", way[1])
    )
    np.testing.assert_allclose(found[:3], reference[:3], rtol=1e-9)
    np.testing.assert_allclose(found.coefficients, reference.coefficients, rtol=1e-9)


ORDERINGS = ("gather", "exchange", "bins")
PLACEMENTS = ["scattered", "all on the last", "none on the root", "a class each", "the larger class on all"]


@pytest.mark.parametrize("way", [way for way in ALL if way[0] != "prbep" and way[1] != "gather"])
@pytest.mark.parametrize("placement", PLACEMENTS)
@examples(0.2)
@given(problem=problems(max_rows=60), seed=st.integers(0, 99))
def test_ways_agree(way, placement, comm, problem, seed):
    scores, labels, nu = problem
    mine = placed(placement, labels, comm, np.random.default_rng(seed))
    for width in (nu, 0.0):
        check_against_gathering(way, scores, labels, mine, width, comm)


@pytest.mark.parametrize("way", [way for way in ALL if way[0] != "prbep" and way[1] != "gather"])
@pytest.mark.parametrize("spread", ["normal", "far from zero", "outliers", "few values", "equal", "long tails"])
@pytest.mark.parametrize("positive", [0.01, 0.4, 0.8])
def test_ways_agree_on_more_rows(way, spread, positive, comm):
    """Enough rows that buckets hold many values, and that windows span blocks."""
    rng = np.random.default_rng(7)
    n = 3000
    labels = np.where(rng.random(n) < positive, 1, -1)
    x = rng.normal(size=n) + 0.5 * labels
    scores = spread_scores(spread, x, rng)
    mine = placed("scattered", labels, comm, rng)
    for nu in (0.0, 1e-9, 1e-3, 0.1, 0.7, 5.0, 1e10):
        check_against_gathering(way, scores, labels, mine, nu, comm)


@pytest.mark.parametrize("way", [way for way in ALL if way[0] != "prbep"])
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_at_the_ends_of_what_floats_hold(way, sign, comm):
    """Tiny differences are handled right; if sums overflow, the result is infinite or NaN, but nothing crashes."""
    rng = np.random.default_rng(4)
    labels = sign * np.where(np.arange(100) % 5 == 0, 1, -1)
    mine = np.arange(100) % comm.size == comm.rank
    check_against_gathering(way, 1e-310 * rng.normal(size=100), labels, mine, 0.1, comm)
    value = build(way, labels[mine], comm).evaluate(np.where(rng.random(100) < 0.5, 1.7e308, -1.7e308)[mine], 0.1)
    assert not np.isfinite(value.R)


@pytest.mark.mpi(only=True)  # the memory of a process
@pytest.mark.parametrize("ordering", ["gather", "exchange", "report"])
def test_no_rank_holds_all_rows(comm, ordering):
    """On a root with few rows of its own: its arrays while a loss is built and evaluated, or ROCArea reported."""
    if comm.size < 2:
        pytest.skip("one rank alone has all rows")
    n, share = 400_000, 200
    rng = np.random.default_rng(0)
    n_local = share if comm.is_root else (n - share) // (comm.size - 1)
    labels = np.where(np.arange(n_local) % 200 == 7, 1, -1).astype(np.int8)
    scores = rng.normal(size=n_local)
    tracemalloc.start()
    if ordering == "report":
        ranking.rocarea(Scored(scores, labels, comm))
    else:
        build(("rocarea", ordering), labels, comm).evaluate(scores, 0.01)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if comm.is_root:
        assert (peak > 8 * n) == (ordering == "gather"), peak


@pytest.mark.serial
def test_rows_of_rocarea_take_what_is_counted():
    """Its coefficients take the place of the scores, so a row takes less than with other losses."""
    n, rng = 300_000, np.random.default_rng(0)
    labels = np.where(rng.random(n) < 0.01, 1, -1).astype(np.int8)
    cost = RocAreaExchange.cost(np.count_nonzero(labels > 0), np.count_nonzero(labels < 0), 1)
    build(("rocarea", "exchange"), np.array([1, -1]), Communicator()).evaluate(np.zeros(2), 0.1)  # compiles the kernels
    tracemalloc.start()
    scores = rng.normal(size=n)
    build(("rocarea", "exchange"), labels, Communicator()).evaluate_in_place(scores, 0.1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert labels.nbytes + peak <= cost.of_row * n + cost.held_by_each


@pytest.mark.serial
@pytest.mark.parametrize("way", MEASURES, ids="-".join)
def test_costs_grow_with_the_rows_and_one_rank_moves_nothing(way):
    loss, few, many = MEASURES[way], (10**5, 10**6), (10**6, 10**7)
    assert loss.cost(*few, 1).bytes == 0 < loss.cost(*few, 2).bytes
    for size in (1, 2):
        assert loss.cost(*few, size).steps < loss.cost(*many, size).steps
        held = [loss.cost(*rows, size) for rows in (few, many)]
        assert held[0].held_by_each + held[0].held_by_root <= held[1].held_by_each + held[1].held_by_root
    for rows in (few, many):
        moved = [loss.cost(*rows, size).bytes for size in (2, 64, 1024)]
        assert max(moved) <= 100 * sum(rows)  # however many ranks there are


@pytest.mark.parametrize("n", [2000, 6000])
def test_the_root_moves_what_is_counted_for_gathering(n, comm):
    labels = np.where(np.arange(n) % 7 == 0, 1, -1).astype(np.int8)
    mine = share(comm, n)
    loss, scores = build(("rocarea", "gather"), labels[mine], comm), np.zeros(len(labels[mine]))
    before = sum(comm.bytes_moved())
    loss.evaluate(scores, 0.1)
    moved = sum(comm.bytes_moved()) - before
    if comm.is_root:
        counted = loss.cost(loss.n_pos, loss.n_neg, comm.size).bytes
        assert counted <= moved <= 1.6 * counted + 100 * comm.size  # a communicator counts a rank's own rows, too


@pytest.mark.serial
def test_the_ordering_that_costs_least():
    for n_pos, n_neg in ((1, 1), (10, 10**9), (10**9, 10), (5 * 10**8, 5 * 10**8)):
        for size in (1, 2, 32, 1024):
            ordering, why = choose_ordering("auto", "rocarea", n_pos, n_neg, size)
            assert f"{size} rank" in why
            costs = {o: sum(MEASURES["rocarea", o].cost(n_pos, n_neg, size)[:2]) for o in ORDERINGS}
            assert all(o in why for o in ORDERINGS) and costs[ordering] == min(costs.values())
    assert choose_ordering("auto", "rocarea", 300, 10**4, 1)[0] == "exchange"
    # A small class is soon sorted, and passing over the other one takes less than counting it.
    assert choose_ordering("auto", "rocarea", 1000, 10**5, 1)[0] == "exchange"
    assert choose_ordering("auto", "rocarea", 3 * 10**4, 10**5, 1)[0] == "bins"
    assert choose_ordering("auto", "pauc@0.1", 1000, 10**6, 1)[0] == "exchange"
    assert choose_ordering("auto", "rocarea", 10**6, 10**9, 32)[0] == "bins"
    assert choose_ordering("auto", "prbep", 10**6, 10**9, 32)[0] == "exchange"
