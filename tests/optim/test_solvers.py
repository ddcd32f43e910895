"""Every solver on the same objective: optima that agree, bounds that hold, the papers' steps, and every way to end."""

from __future__ import annotations

import gc
import json

import numpy as np
import pytest

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.optim.objective import Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import RUN, Settings
from distsms.optim.solvers import agm, tao
from distsms.optim.solvers.base import SOLVERS, Traits, solver_class
from tests.support.problems import data, noting, objective


class Whole:
    """A `Problem` whose vectors this process has whole."""

    holders, dot, l1 = None, staticmethod(np.dot), 0.0


MEASURES = ("rocarea", "prbep", "pauc@0.4")
CUTTING = ("bmrm", "bmrm-linesearch")


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("lam", [1.0, 1e-2, 1e-4])
def test_all_find_the_same_optimum(measure, lam, comm):
    X, y = data(seed=7)
    states, results = {}, {}
    for name in SOLVERS:
        states[name] = []
        settings = Settings(lam=lam, epsilon=1e-3, solver=name, max_evaluations=500)
        results[name] = minimize(objective(X, y, comm, measure), settings, watch=noting(states[name]))
        if lam >= 1e-2 or name != "bmrm-linesearch":  # which needs thousands there
            assert results[name].status is Status.PROVED, name
    least, bound = min(r.J for r in results.values()), max(r.lower_bound for r in results.values())
    assert bound <= least + 1e-12
    for name, result in results.items():
        assert result.J - result.gap <= least, name
        assert comm.allgather(result.w.tobytes()) == [result.w.tobytes()] * comm.size
        if comm.is_root:
            assert len(states[name]) == result.evaluations
            assert np.all(np.diff([s.lower_bound for s in states[name]]) >= 0)
            assert np.all(np.diff([s.gap for s in states[name]]) <= 0)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("zero_plane", [True, False])
@pytest.mark.parametrize("solver", CUTTING)
def test_cutting_planes_are_exact(measure, zero_plane, solver, comm):
    """No smoothing; the gap is (9), the best J less the model's minimum, which rises until the solver is done."""
    X, y = data(seed=3)
    states = []
    settings = Settings(lam=1e-1, epsilon=1e-4, solver=solver, zero_plane=zero_plane, max_evaluations=1000)
    result = minimize(objective(X, y, comm, measure), settings, watch=noting(states))
    assert result.status is Status.PROVED
    assert result.nu == 0
    assert all(s.nu == 0 and s.J_mu == s.J and abs(s.smoothing_gap) < 1e-12 for s in states)
    bounds = [s.lower_bound for s in states]
    assert np.all(np.diff(bounds) > 0)


@pytest.mark.serial
@pytest.mark.parametrize("measure", MEASURES)
def test_the_line_search_is_the_papers(measure):
    """BMRM 2007, section 5 and Algorithm 2, in closed form: the same bounds, step for step."""
    X, y = data(seed=4)
    lam, states = 1e-2, []
    problem = objective(X, y, Communicator(), measure)
    minimize(
        problem, Settings(lam=lam, solver="bmrm-linesearch", max_evaluations=60, epsilon=1e-9), watch=noting(states)
    )
    w, b, best = np.zeros(X.shape[1]), 0.0, 0.0
    for state in states:
        e = problem.evaluate([Request(w, 0.0, ElasticNet(lam))])[0]
        assert state.J == pytest.approx(e.J, rel=1e-7)
        a = -lam * w
        change = e.r - a
        eta = np.clip((e.d - b - a @ change / lam) / (change @ change / lam), 0, 1)
        a, b = a + eta * change, (1 - eta) * b + eta * e.d
        w, best = -a / lam, max(best, b - a @ a / (2 * lam))
        assert state.lower_bound == pytest.approx(best, rel=1e-7)


@pytest.mark.parametrize("measure", MEASURES)
def test_bmrm_with_little_memory_merges_planes(measure, comm):
    X, y = data(seed=7)
    settings = Settings(lam=1e-2, solver="bmrm", vector_bytes=8 * 6 * (12 + 6), max_evaluations=1000)
    assert settings.planes_within(12) == 6
    result = minimize(objective(X, y, comm, measure), settings)
    assert result.status is Status.PROVED
    everything = minimize(objective(X, y, comm, measure), Settings(lam=1e-2, solver="bmrm"))
    assert result.evaluations >= everything.evaluations


@pytest.mark.serial
def test_planes_by_solver():
    assert Settings(lam=1.0, solver="agm").planes_within(1000) == 100
    assert Settings(lam=1.0, solver="agm").history_within(1000, 50) == 0
    assert Settings(lam=1.0, solver="bmrm-linesearch").planes_within(1000) == 2
    assert Settings(lam=1.0, solver="bmrm", max_evaluations=99).planes_within(1000) == 100
    assert Settings(lam=1.0, solver="bmrm", vector_bytes=8e5).planes_within(10**7) == 2
    for solver, planes in (("bmrm", 100), ("bmrm-linesearch", 2)):  # besides planes they hold the next w alone
        held = Settings(lam=1.0, solver=solver, max_evaluations=99).vectors_held(1000)
        assert held == 8 * 1000 * (1 + planes + RUN) + 8 * planes**2


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "more, status",
    [
        ({"max_evaluations": 3}, Status.LIMIT),
        ({"max_evaluations": 1}, Status.LIMIT),
        ({"time_limit": 1e-9}, Status.TIME),
    ],
)
def test_limits(solver, more, status, comm):
    X, y = data()
    result = minimize(objective(X, y, comm), Settings(lam=1e-4, epsilon=1e-9, solver=solver, **more))
    assert result.status is status
    assert result.evaluations <= 3
    assert np.isfinite([result.J, result.gap]).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_stop_signals_warm_starts_and_not_a_number(solver, comm):
    X, y = data()
    problem = objective(X, y, comm, stop_wanted=lambda: comm.rank == comm.size - 1 and problem.evaluations >= 4)
    stopped = minimize(problem, Settings(lam=1e-4, epsilon=1e-9, solver=solver))
    assert (stopped.status, stopped.status.exit_code, stopped.evaluations) == (Status.STOPPED, 75, 4)
    start = minimize(objective(X, y, comm), Settings(lam=1e-4, epsilon=1e-4)).w
    warm = minimize(objective(X, y, comm), Settings(lam=1e-4, epsilon=1e-9, solver=solver, max_evaluations=2), start)
    assert warm.J < 0.1 < stopped.J_at_zero
    huge = minimize(objective(X * 1e300, y, comm), Settings(lam=1e-4, solver=solver), np.full(X.shape[1], 1e300))
    assert huge.status is Status.NONFINITE and huge.status.exit_code == 6
    assert "evaluation 1" in huge.detail
    assert json.loads(json.dumps(huge.numbers(), allow_nan=False))["J"] is None


@pytest.mark.parametrize("measure", MEASURES)
def test_bmrm_ends_by_itself_beyond_what_floats_can_tell(measure, comm):
    X, y = data(n=60)
    result = minimize(objective(X, y, comm, measure), Settings(lam=1e-2, epsilon=1e-18, solver="bmrm"))
    assert result.status is Status.ROUNDING
    assert "change the gap by" in result.detail
    assert result.gap < 1e-10
    assert result.evaluations < 500


@pytest.mark.serial
def test_bmrm_says_when_it_cannot_go_on():
    class Stuck(Whole):
        """A model that no plane moves any more."""

        evaluations = 0

        def value_and_gradient(self, w):
            self.evaluations += 1
            return 1.0, w

        def iterated(self):
            return False

        def model_minimum(self):
            return np.full(2, float(self.evaluations)), 0.5

    for name in CUTTING:
        problem = Stuck()
        why = solver_class(name)(problem, np.zeros(2)).run()
        assert "have not raised the lower bound" in why
        assert problem.evaluations < 30


class Quadratic(Whole):
    """1/2 sum h_i (w_i - 1)^2 as a `Problem`, its values recorded."""

    def __init__(self, h, strong_convexity=0.0, last=10**9):
        self.h, self.strong_convexity, self.last, self.values = np.asarray(h, float), strong_convexity, last, []

    def value_and_gradient(self, w):
        self.values.append(0.5 * self.h @ (w - 1) ** 2)
        return self.values[-1], self.h * (w - 1)

    def iterated(self):
        return len(self.values) >= self.last


@pytest.mark.serial
@pytest.mark.parametrize("sigma", [0.0, 1e-2])
def test_agm_keeps_its_rate(sigma):
    """Within Nesterov's 2 L ||x_0 - x*||^2 / k^2 without, and linear with, the strong convexity."""
    h = np.geomspace(1e-2, 100, 50)
    problem = Quadratic(h, sigma, last=2000)
    assert agm.Solver(problem, np.zeros(50)).run() == ""
    values = problem.values
    for evaluations in (100, 400, 1600):
        steps = evaluations / 3  # two evaluations each, and some trials of L that failed
        assert min(values[:evaluations]) <= 2 * 2 * h.max() * 50 / steps**2
    if sigma:
        assert min(values) < 1e-8


@pytest.mark.serial
def test_agm_says_when_it_cannot_go_on():
    why = agm.Solver(Quadratic([1.0, 3.0]), np.ones(2)).run()
    assert "gradient is zero" in why
    problem = Quadratic([1.0, 3.0], 1.0, last=20_000)
    solver = agm.Solver(problem, np.zeros(2))
    why = solver.run()
    assert "rounding" in why
    assert min(problem.values) < 1e-25
    solver.restart(np.array([5.0, 5.0]))
    assert solver.run()


@pytest.mark.serial
def test_refusals():
    with pytest.raises(InputError, match=r"bmrm.*exact risk"):
        Settings(lam=1.0, solver="bmrm", c_mu=10.0)
    with pytest.raises(InputError, match=r"no options of PETSc: -tao_monitor"):
        Settings(lam=1.0, solver="agm", solver_options=("-tao_monitor",))
    with pytest.raises(InputError, match=r"no solver is called 'sgd'; there are lmvm, lbfgs, agm"):
        Settings(lam=1.0, solver="sgd")


class Descent:
    """A solver as one would add it: gradient steps of a fixed length."""

    traits = Traits()

    def __init__(self, problem, w, history, options, remembers):
        self.problem, self.w = problem, w

    def run(self):
        while True:
            self.w = self.w - 0.05 * self.problem.value_and_gradient(self.w)[1]
            if self.problem.iterated():
                return ""

    def restart(self, w):
        self.w = w

    def close(self):
        pass


def test_a_new_solver_is_a_class_and_a_line(monkeypatch, comm):
    monkeypatch.setitem(SOLVERS, "descent", "tests.optim.test_solvers:Descent")
    assert solver_class("descent").traits == Traits()
    X, y = data()
    result = minimize(objective(X, y, comm), Settings(lam=1.0, epsilon=1e-3, solver="descent", max_evaluations=500))
    assert result.status is Status.PROVED


class Failing(Descent):
    """It gives up after each evaluation."""

    def run(self):
        self.problem.value_and_gradient(self.w)
        return "no step"


@pytest.mark.serial
def test_a_solver_that_fails_is_not_tried_again_where_rounding_is_above_the_target(monkeypatch):
    monkeypatch.setitem(SOLVERS, "failing", "tests.optim.test_solvers:Failing")
    settings = Settings(lam=1e-2, epsilon=1e-18, solver="failing", bundle_steps=False, max_evaluations=50)
    result = minimize(objective(*data(), Communicator()), settings)
    assert (result.status, result.evaluations) == (Status.ROUNDING, 1)


def test_lmvm_goes_on_from_its_memory():
    """Its steps are about those of the solver that had to stop, whose matrix it has."""
    pytest.importorskip("petsc4py")
    problem, again = (Quadratic(np.geomspace(1, 100, 8), last=last) for last in (8, 6))
    solver, other = (tao.Solver(each, np.zeros(8), 5, (), 5) for each in (problem, again))
    assert solver.run() == ""
    other.recall(solver.memory())
    before = len(problem.values)
    problem.last += 6
    assert solver.run() == other.run() == ""
    np.testing.assert_allclose(again.values, problem.values[before:], rtol=1e-6)
    for each in (solver, other):
        each.close()


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_gradient_of_zero_is_no_endless_loop(solver):
    """Nothing is left to minimize, and nobody says so: the solver itself has to stop."""

    class Flat(Whole):
        strong_convexity = 1.0
        evaluations = 0

        def value_and_gradient(self, w):
            self.evaluations += 1
            return 0.5 * float(w @ w), w.copy()

        def iterated(self):
            return False

        def model_minimum(self):
            return np.zeros(3), 0.0

    problem = Flat()
    running = solver_class(solver)(problem, np.zeros(3), 5, ())
    why = running.run()
    running.close()
    assert why
    assert problem.evaluations < 200


def test_a_run_frees_its_vectors_at_its_end():
    """Planes and history may take gigabytes: they must not wait for the garbage collector."""
    problem = objective(*data(100), Communicator())
    gc.collect()
    gc.disable()
    try:
        for solver in SOLVERS:
            minimize(problem, Settings(1.0, solver=solver, max_evaluations=5))
        left = {type(item).__name__ for item in gc.get_objects()}
    finally:
        gc.enable()
    assert not left & {"Planes", "TrainingRun", *(solver_class(solver).__name__ for solver in SOLVERS)}


def test_an_error_of_petscs_is_an_outcome(monkeypatch):
    """If its line search refuses a NaN step with an error, the run continues, or reports why it cannot."""
    running = solver_class("lmvm")
    create = running._create

    def broken(self, w):
        create(self, w)

        def fails():
            raise self._petsc.Error(63)

        self._tao = type("Tao", (), {"solve": staticmethod(fails), "destroy": staticmethod(lambda: None)})()

    monkeypatch.setattr(running, "_create", broken)
    why = running(Whole(), np.zeros(3), 5, ()).run()
    assert "error 63" in why


@pytest.mark.serial
def test_an_exception_outlives_a_collection_of_garbage():
    """A run ends by an exception that passes through PETSc, where nothing may come between."""
    X, y = data(seed=3)
    before = gc.get_threshold()
    gc.freeze()  # so that a collection looks at little
    gc.set_threshold(1)
    try:
        results = [
            minimize(objective(X, y, Communicator()), Settings(lam=1e-4, max_evaluations=k)) for k in range(1, 12)
        ]
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    assert [one.evaluations for one in results] == list(range(1, 12))
    assert gc.isenabled()


@pytest.mark.serial
def test_the_ends_of_tao_have_their_numbers():
    petsc = pytest.importorskip("petsc4py.PETSc")
    reasons = getattr(petsc.TAO, "Reason", None)
    if not hasattr(reasons, "DIVERGED_MAXITS"):
        pytest.skip("this petsc4py has no names for them")
    names = "DIVERGED_MAXITS", "DIVERGED_NAN", "DIVERGED_MAXFCN", "DIVERGED_LS_FAILURE", "DIVERGED_TR_REDUCTION"
    assert [getattr(reasons, name) for name in (*names, "DIVERGED_USER")] == list(tao.REASONS)
    assert (reasons.CONTINUE_ITERATING, reasons.CONVERGED_USER) == (tao.CONTINUE, tao.CONVERGED_USER)
