"""L-BFGS against dense matrices, SciPy and lmvm; over ranks, pauses and snapshots."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import optimize

from distsms.base.choices import STEPS
from distsms.base.communicator import Communicator
from distsms.optim.result import Snapshot
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.optim.solvers import lbfgs, tao
from distsms.optim.solvers.lbfgs import ALPHA, THETA, InverseHessian, Solver
from distsms.parallel.vectors import make_vectors
from tests.support.problems import data, noting, objective


def dense(history, diagonal, pairs):
    """The BFGS formula for the inverse of the Hessian, as matrices, from the last pairs of a history."""
    H = np.diag(diagonal)
    for s, y in pairs[-history:]:
        V = np.eye(len(s)) - np.outer(y, s) / (s @ y)
        H = V.T @ H @ V + np.outer(s, s) / (s @ y)
    return H


def broyden(D, s, y):
    """The diagonal of Broyden's update of a diagonal matrix D, and the factor that suits the pair best."""
    B, sy = np.diag(D), s @ y
    bfgs = B - np.outer(D * s, D * s) / (s @ B @ s) + np.outer(y, y) / sy
    V = np.eye(len(s)) - np.outer(s, y) / sy
    dfp = V.T @ B @ V + np.outer(y, y) / sy
    new = np.diag((1 - THETA) * bfgs + THETA * dfp)

    def misfit(log):
        sigma = np.exp(log)
        return np.sum((sigma**ALPHA * y / np.sqrt(new) - sigma ** (ALPHA - 1) * s * np.sqrt(new)) ** 2)

    grid = np.linspace(-30, 30, 61)
    near = grid[np.argmin([misfit(log) for log in grid])]
    sigma = np.exp(optimize.minimize_scalar(misfit, bounds=(near - 1, near + 1), options={"xatol": 1e-10}).x)
    return new / sigma


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 8), st.integers(0, 10**6))
def test_products_are_those_of_dense_matrices(p, history, steps, seed):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(p, p))
    A = A @ A.T + 0.1 * np.eye(p)
    inverse, D, pairs = InverseHessian(np.dot, p, history), np.ones(p), []
    for s in rng.normal(size=(steps, p)) * 10.0 ** rng.integers(-3, 4, (steps, 1)):
        y = A @ s
        inverse.update(s, y)
        D = broyden(D, s, y)
        pairs.append((s, y))
        assert_allclose(inverse.diagonal, 1 / D, rtol=1e-5)
        assert_allclose(inverse.times(y), s, rtol=1e-9, atol=1e-9 * np.abs(s).max())  # the secant equation
        D = 1 / inverse.diagonal
    expected = dense(history, inverse.diagonal, pairs)
    found = np.array([inverse.times(unit) for unit in np.eye(p)])
    assert_allclose(found, expected, rtol=1e-7, atol=1e-7 * np.abs(expected).max())
    assert len(inverse.pairs) == min(history, steps)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_slices_change_no_bit(threads, monkeypatch):
    rng = np.random.default_rng(0)
    steps, vector = rng.normal(size=(4, 101)), rng.normal(size=101)

    def product():
        inverse = InverseHessian(np.dot, 101, 3)
        for s in steps:
            inverse.update(s, s * np.linspace(1, 9, 101))
        return inverse.times(vector), inverse.diagonal

    whole = product()
    monkeypatch.setattr(lbfgs, "SLICE", 7)
    monkeypatch.setattr(lbfgs, "thread_count", lambda: threads)
    for one, other in zip(whole, product(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_pair_without_curvature_is_left_out():
    inverse = InverseHessian(np.dot, 2, 5)
    s = np.array([1.0, 2.0])
    for y in (-s, np.zeros(2), np.array([2.0, -1.0]), np.full(2, np.nan)):
        inverse.update(s, y)
    inverse.update(np.zeros(2), s)
    assert not inverse.pairs
    assert_allclose(inverse.times(s), s)


class Quadratic:
    """1/2 sum h_i (w_i - 1)^2 + l1 ||w||_1, on slices of vectors; the points of the evaluations are recorded."""

    def __init__(self, h, vectors=None, every=10**9, last=10**9, l1=0.0):
        self.l1 = l1
        vectors = vectors or make_vectors("root", len(h), Communicator())
        self.h, self.vectors, self.dot = vectors.local_slice(np.asarray(h, float)), vectors, vectors.dot
        self.every, self.last, self.points, self.values, self.iterations, self.watch = every, last, [], [], 0, None

    def value_and_gradient(self, w):
        gradient = self.h * (w - 1)
        self.points.append(w.copy())
        self.values.append(0.5 * self.dot(gradient, w - 1) + self.l1 * self.dot(np.sign(w), w))
        if self.watch:
            self.watch()
        return self.values[-1], gradient

    def iterated(self):
        self.iterations += 1
        return self.iterations % self.every == 0 or self.values[-1] <= 1e-16 or self.iterations >= self.last


def solved(problem, history=10, start=0.0):
    """Run to the end, through pauses; return the solver."""
    solver = Solver(problem, np.full(len(problem.h), start), history)
    while solver.run() == "" and problem.values[-1] > 1e-16 and problem.iterations < problem.last:
        pass
    return solver


@pytest.mark.parametrize("p, spread", [(1, 1.0), (2, 1e4), (50, 1e2), (50, 1e5)])
def test_quadratics_take_as_many_evaluations_as_with_scipy(p, spread):
    h, seen = np.geomspace(1, spread, p) if p > 1 else np.array([3.0]), []

    class Solved(Exception):
        pass

    def theirs(w):
        seen.append(w)
        value = 0.5 * h @ (w - 1) ** 2
        if value <= 1e-16:
            raise Solved
        return value, h * (w - 1)

    options = {"maxcor": 10, "maxiter": 10**6, "maxfun": 10**6, "ftol": 0.0, "gtol": 0.0}
    with pytest.raises(Solved):
        optimize.minimize(theirs, np.zeros(p), jac=True, method="L-BFGS-B", options=options)
    problem = Quadratic(h)
    solved(problem)
    assert problem.values[-1] <= 1e-16
    assert len(problem.points) <= 1.2 * len(seen) + 5


@pytest.mark.parametrize("l1", [0.0, 3.0])
@pytest.mark.parametrize("p", [1, 2, 9])
def test_slices_make_no_difference(p, l1, comm):
    """On any number of ranks, also with empty slices, the points are those of one process but for rounding.

    With l1, rounding decides near the end which coefficients are 0, so the number of points may differ.
    """
    h, points = np.geomspace(1, 30, p), {}
    for step in STEPS:
        vectors = make_vectors(step, p, comm)
        if vectors.runs_solver:
            problem = Quadratic(h, vectors, last=12, l1=l1)
            solved(problem)
            points[step] = [vectors.gather(w) for w in problem.points]
    if comm.is_root:
        common = slice(None) if l1 == 0 else slice(10)
        assert_allclose(points["spread"][common], points["root"][common], rtol=1e-6, atol=1e-8)
        assert_allclose(points["spread"][-1], points["root"][-1], rtol=1e-6, atol=1e-6)
        alone = Quadratic(h, last=12, l1=l1)
        solved(alone)
        assert np.array_equal(points["root"], alone.points)


def test_a_pause_keeps_the_history():
    """With the function unchanged, a paused run evaluates again where it paused, and otherwise at the same points."""
    h = np.geomspace(1, 1e3, 20)
    without, paused = Quadratic(h), Quadratic(h, every=3)
    solved(without)
    solved(paused)
    repeated = [not np.array_equal(a, b) for a, b in zip(paused.points, paused.points[1:], strict=False)]
    assert repeated.count(False) == len(paused.points) - len(without.points) > 3
    assert np.array_equal(np.array(paused.points)[np.append(True, repeated)], without.points)


@pytest.mark.parametrize("every, last, l1", [(10**9, 10**9, 0.0), (4, 10**9, 0.0), (10**9, 12, 3.0), (4, 10**9, 3.0)])
@pytest.mark.parametrize("step", STEPS)
def test_a_snapshot_goes_on_to_the_bit(step, every, last, l1, comm):
    """From the beginning of the line search in which a snapshot was taken, the points are those of the run itself."""
    h = np.geomspace(1, 1e3, 20)
    vectors = make_vectors(step, len(h), comm)
    if not vectors.runs_solver:
        return
    problem, taken = Quadratic(h, vectors, every, last, l1), []

    def watch():
        memory = solver.memory()
        copies = {name: [row.copy() for row in rows] for name, rows in memory.vectors.items()}
        taken.append((problem.iterations, Snapshot(dict(memory.numbers), {}, copies)))

    problem.watch = watch
    solver = Solver(problem, np.zeros(len(problem.h)), 5)
    for _ in range(3 if every == 4 else 1):
        assert solver.run() == ""
    for evaluation, (iterations, memory) in enumerate(taken):
        again = Quadratic(h, vectors, every, last, l1)
        again.iterations = iterations
        other = Solver(again, np.zeros(len(problem.h)), 5)
        other.recall(memory)
        while again.iterations < problem.iterations:
            assert other.run() == ""
        first = len(taken) - len(again.points)
        assert first <= evaluation and taken[first][0] == iterations
        assert np.array_equal(again.points, problem.points[first:])


@pytest.mark.parametrize("p, spread", [(2, 1e4), (50, 1e2), (50, 1e5)])
def test_the_optimum_of_a_quadratic_with_l1_is_exact(p, spread):
    """Each variable has its own optimum, max(1 - l1 / h, 0), and those at 0 are 0 to the bit."""
    h = np.geomspace(1, spread, p)
    problem = Quadratic(h, last=400, l1=3.0)
    solved(problem)
    best = np.maximum(1 - 3.0 / h, 0)
    assert_allclose(problem.points[-1], best, atol=1e-6)
    assert np.array_equal(problem.points[-1] == 0, best == 0)


def test_snapshots_of_earlier_versions_have_only_a_point():
    problem = Quadratic([1.0, 3.0])
    solver = Solver(problem, np.zeros(2), 5)
    solver.recall(Snapshot({}, {}, {"points": [np.array([2.0, 2.0])]}))
    assert solver.run() == ""
    assert np.array_equal(problem.points[0], [2.0, 2.0])


def test_it_says_when_it_cannot_go_on():
    """The gradient is false, so that no step helps: first the history is given up, and then the run."""
    problem = Quadratic([1.0, 3.0], last=3)
    solver = solved(problem)
    true = problem.value_and_gradient
    problem.value_and_gradient = lambda w: (true(w)[0], -true(w)[1])
    before = len(problem.points)
    why = solver.run()
    assert "no step decreases the function" in why
    assert len(problem.points) - before < 500
    solver.restart(np.zeros(2))
    problem.value_and_gradient = true
    assert solver.run() == ""


@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
def test_it_takes_as_many_evaluations_as_lmvm(measure):
    """With the same diagonal and line search, it evaluates at the same points, until rounding parts them."""
    if why := tao.lacking():
        pytest.skip(why)
    total = dict.fromkeys(("lmvm", "lbfgs"), 0)
    for seed, lam in ((3, 1e-2), (4, 1e-3), (5, 1e-4)):
        X, y = data(n=400, p=15, seed=seed)
        states = {name: [] for name in total}
        for name in total:
            problem, settings = objective(X, y, Communicator(), measure), Settings(lam=lam, solver=name)
            total[name] += minimize(problem, settings, watch=noting(states[name])).evaluations
        ours, theirs = ([state.J for state in states[name][:8]] for name in ("lbfgs", "lmvm"))
        assert_allclose(ours, theirs, rtol=1e-6)
    assert total["lbfgs"] <= 1.15 * total["lmvm"]
