"""Whole vectors on the root and distributed vectors: the same numbers, the same optima, slices that fit together."""

from __future__ import annotations

import numpy as np
import pytest

from distsms.base.choices import STEPS
from distsms.base.errors import InputError
from distsms.optim.objective import Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.optim.solvers.base import SOLVERS
from distsms.parallel import mpi, vectors
from distsms.parallel.vectors import choose_step, make_vectors
from tests.support.problems import asked, data, noting, objective
from tests.support.simulated import run_ranks

pytestmark = pytest.mark.mpi
SOLVERS_OF_RANKS = [
    pytest.param(solver, marks=pytest.mark.mpi(only=True)) if solver == "lmvm" else solver for solver in SOLVERS
]
LENGTHS = (1, 2, 7, 100)  # with three or four ranks, some hold nothing of the first two


@pytest.fixture(params=[False, True], ids=["a copy on each rank", "one on each node"])
def shared(request, monkeypatch):
    """Both ways to hold w, whatever its length."""
    monkeypatch.setattr(vectors, "SHARED_FROM", 0 if request.param else 2**60)
    return request.param


def whole(p, seed):
    return np.random.default_rng(seed).normal(size=p)


@pytest.mark.many
@pytest.mark.parametrize("p", LENGTHS)
@pytest.mark.parametrize("step", STEPS)
def test_slices_fit_together(step, p, comm):
    made, w = make_vectors(step, p, comm), whole(p, 0)
    mine = made.local_slice(w)
    parts = comm.allgather(mine)
    np.testing.assert_array_equal(np.concatenate(parts), w)
    assert len(mine) == made.length <= made.longest == max(map(len, parts))
    assert made.runs_solver or not made.length
    if made.runs_solver:
        back = made.gather(mine)
        if comm.is_root:
            np.testing.assert_array_equal(back, w)
        assert made.minimum(mine) == w.min()
    np.testing.assert_array_equal(made.allgather(mine if made.runs_solver else None), w)
    made.close()


@pytest.mark.many
@pytest.mark.parametrize("p", LENGTHS)
@pytest.mark.parametrize("step", STEPS)
def test_products_are_those_of_whole_vectors(step, p, comm):
    made, A, b = make_vectors(step, p, comm), np.array([whole(p, seed) for seed in range(3)]), whole(p, 9)
    if made.runs_solver:
        mine = np.array([made.local_slice(row) for row in A])
        dots = made.dots(mine, made.local_slice(b))
        np.testing.assert_allclose(dots, A @ b, rtol=1e-12, atol=1e-13)
        assert made.dot(mine[0], made.local_slice(b)) == pytest.approx(A[0] @ b, rel=1e-12, abs=1e-13)
        assert (made.root_values(np.array([float(comm.rank)])) == 0).all()
        if step == "spread":
            assert len(set(comm.allgather(dots.tobytes()))) == 1


@pytest.mark.many
@pytest.mark.parametrize("p", LENGTHS)
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("step", STEPS)
def test_copies_and_totals(step, k, p, comm, shared, monkeypatch):
    """Everything runs twice, since buffers and shared memory are reused; each way of summing gives the same."""
    monkeypatch.setattr(vectors, "MEASURED_FROM", 0)
    made = make_vectors(step, p, comm)
    if shared and made._shared_sum is None:  # another way was faster
        made._shared_sum = comm.shared_sum(p)
    assert (vectors.IN_MEMORY in made._ways()) == (shared and 1 < comm.size == len(comm.node_ranks()))
    for seed in (0, 10):
        W = [whole(p, seed + i) for i in range(k)]
        copies = made.replicate(k, [made.local_slice(w) for w in W] if made.runs_solver else None)
        np.testing.assert_array_equal(copies, W)
        for inward, way in made._ways().items():
            made.inward, made._sum = inward, way
            buffer = made.buffer(k)
            buffer[:-1] = np.ravel(W) * (comm.rank + 1)
            buffer[-1] = comm.rank == comm.size - 1
            slices, flag = made.sum_buffer(buffer)
            if made.runs_solver:
                assert flag
                total = np.array(W) * comm.size * (comm.size + 1) / 2
                np.testing.assert_allclose(slices, [made.local_slice(row) for row in total], rtol=1e-12)
                assert slices.flags.c_contiguous
    made.close()


def test_long_vectors_travel_in_pieces(comm, monkeypatch):
    monkeypatch.setattr(mpi, "COUNT_LIMIT", 7)
    monkeypatch.setattr(vectors, "SHARED_FROM", 0)
    for step in STEPS:
        made, w = make_vectors(step, 100, comm), whole(100, 1)
        np.testing.assert_array_equal(made.allgather(made.local_slice(w) if made.runs_solver else None), w)
        total = made.sum_vector(w.copy())
        if made.runs_solver:
            np.testing.assert_allclose(total, made.local_slice(w) * comm.size, rtol=1e-14)
        made.close()


def test_ranks_of_a_node_share(comm, monkeypatch):
    monkeypatch.setattr(vectors, "SHARED_FROM", 0)
    made, w = make_vectors("spread", 10, comm), whole(10, 2)
    copies = made.replicate(1, [made.local_slice(w)])
    assert isinstance(made._replica[1], mpi.OnePerNode) == (len(comm.node_ranks()) > 1)
    if comm.is_root:
        copies[0, 3] = 77  # seen by the neighbours, too
    comm.barrier()
    assert (copies[0, 3] == 77) == (0 in comm.node_ranks())
    comm.barrier()
    made.close()


@pytest.mark.serial
def test_a_rank_that_fails_alone_does_not_wait_for_the_others_to_free_memory(monkeypatch):
    monkeypatch.setattr(vectors, "SHARED_FROM", 0)

    def work(comm):
        made = make_vectors("root", 10, comm)
        made.replicate(1, [whole(10, 2)] if comm.is_root else None)
        with pytest.raises(InputError), made, comm.fail_together():
            raise InputError("all ranks fail")
        assert made._replica is None
        made.replicate(1, [whole(10, 2)] if comm.is_root else None)
        with made:
            if comm.rank:
                raise MemoryError("one rank fails")
            comm.barrier()

    with pytest.raises(MemoryError, match="one rank fails"):
        run_ranks(2, work)


def test_without_room_for_shared_memory_each_rank_has_its_own(comm, monkeypatch, tmp_path):
    monkeypatch.setattr(mpi, "SHARED_MEMORY", str(tmp_path / "none"))
    monkeypatch.setattr(vectors, "SHARED_FROM", 0)
    made, w = make_vectors("spread", 10, comm), whole(10, 2)
    np.testing.assert_array_equal(made.replicate(1, [made.local_slice(w)])[0], w)
    assert not isinstance(made._replica[1], mpi.OnePerNode)


@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
def test_one_evaluation(measure, comm, shared):
    """The numbers agree to 1e-9 of the largest term on every rank that runs the solver, and all of these see any rank's
    signal.
    """
    X, y = data(seed=3)
    w = whole(X.shape[1], 2)
    found = {}
    for step in STEPS:
        problem = objective(X, y, comm, measure, step=step, stop_wanted=lambda: comm.rank == comm.size - 1)
        answer = asked(problem, [Request(problem.vectors.local_slice(w), 0.02, ElasticNet(1e-4))])
        if problem.vectors.runs_solver:
            assert problem.stop_requested
            first = answer[0]
            numbers = [first.J, first.J_mu, first.R, first.d, first.smoothing_gap, first.optimization_gap]
            found[step] = np.array(numbers), problem.vectors.gather(first.gradient), problem.vectors.gather(first.r)
            moments = problem.second_moments()
        else:
            problem.second_moments()
        problem.vectors.close()
    assert len(set(comm.allgather(found["spread"][0].tobytes()))) == 1
    assert len(moments) == len(problem.vectors.local_slice(w))
    if comm.is_root:
        for values, others in zip(*found.values(), strict=True):
            assert np.abs(values - others).max() <= 1e-9 * max(1.0, np.abs(others).max())


@pytest.mark.parametrize("shared, p", [(False, 3), (True, 12)], indirect=["shared"])
@pytest.mark.parametrize("solver", SOLVERS_OF_RANKS)
def test_the_same_optimum(solver, p, comm, shared):
    """Each J is above every bound; every rank has the same w; the ranks that run the solver see the evaluations."""
    X, y = data(p=p, seed=7)
    found, lam = {}, 1e-2
    for step in STEPS:
        states, problem = [], objective(X, y, comm, step=step)
        start = np.linspace(0, 0.1, p)
        result = minimize(problem, Settings(lam=lam, solver=solver), start, watch=noting(states))
        assert result.status is Status.PROVED
        assert comm.allgather(result.w.tobytes()) == [result.w.tobytes()] * comm.size
        assert len(states) == (result.evaluations if problem.vectors.runs_solver else 0)
        if step == "spread":
            assert comm.allgather([s[2:] for s in states]) == [[s[2:] for s in states]] * comm.size
        problem.vectors.close()
        found[step] = result
    root, spread = found["root"], found["spread"]
    assert max(root.lower_bound, spread.lower_bound) <= min(root.J, spread.J)
    again = objective(X, y, comm)
    check = asked(again, [Request(again.vectors.local_slice(spread.w), 0.0, ElasticNet(lam))])
    if comm.is_root:
        assert check[0].J == pytest.approx(spread.J, rel=1e-9)


@pytest.mark.parametrize("solver", SOLVERS_OF_RANKS)
@pytest.mark.parametrize(
    "more, status", [({"max_evaluations": 3}, Status.LIMIT), ({"time_limit": 1e-9}, Status.TIME), ({}, Status.STOPPED)]
)
def test_all_ranks_end_together(solver, more, status, comm):
    """With limits, and with a clock and a signal that only one rank sees."""
    X, y = data()
    problem = objective(X, y, comm, step="spread", stop_wanted=lambda: problem.evaluations >= 5 + comm.rank)
    result = minimize(problem, Settings(lam=1e-4, epsilon=1e-9, solver=solver, **more))
    assert result.status is status


@pytest.mark.mpi(only=True)  # PETSc is spread
def test_not_a_number_ends_all_ranks(comm):
    X, y = data()
    start = np.full(X.shape[1], 1e300)
    result = minimize(objective(X * 1e300, y, comm, step="spread"), Settings(lam=1e-4), start)
    assert result.status is Status.NONFINITE


@pytest.mark.mpi(only=True)  # PETSc is spread
def test_restarts_and_fixed_widths_spread(comm):
    """TAO is built anew on all ranks when its line search fails, and a fixed width ends in both ways."""
    if comm.size == 1:
        pytest.skip("tests/optim/test_train.py does this")
    X, y = data(n=60)
    hopeless = minimize(objective(X, y, comm, step="spread"), Settings(lam=1e-2, epsilon=1e-18, max_evaluations=3000))
    assert hopeless.status is Status.ROUNDING
    wide = minimize(objective(X, y, comm, step="spread"), Settings(lam=1e-2, c_mu=1000.0))
    assert wide.status is Status.FLOOR


@pytest.mark.serial
def test_who_steps_is_chosen_by_columns():
    few, many = vectors.SPREAD_FROM - 1, vectors.SPREAD_FROM
    assert choose_step("auto", few, 4)[0] == "root"
    assert choose_step("auto", many, 4)[0] == "spread"
    assert choose_step("auto", many, 1)[0] == "root"
    assert choose_step("spread", 3, 1) == ("spread", "as asked for")


def test_the_fastest_collective_is_the_same_on_all_ranks(comm, monkeypatch):
    monkeypatch.setattr(vectors, "MEASURED_FROM", 10)
    for step in STEPS:
        made = make_vectors(step, 100, comm)
        assert len(set(comm.allgather(made.inward))) == 1
        assert set(made.measured) == (set(made._ways()) if comm.size > 1 else set())
        assert vectors.IN_MEMORY not in made.measured  # these are too short to be shared
        assert made.inward in made.describe() and not make_vectors(step, 9, comm).measured


@pytest.mark.mpi(only=True)  # PETSc is spread
def test_more_ranks_than_rows(comm):
    X, y = data(n=3, p=2)
    result = minimize(objective(X, y, comm, step="spread"), Settings(lam=1e-1))
    assert result.status is Status.PROVED
