"""Whole runs: proofs that hold, an independent solver that agrees, every way to end, the same on any ranks."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy import optimize
from scipy.sparse import csr_matrix, diags, hstack, random

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.optim import run
from distsms.optim.course import SmoothingSchedule
from distsms.optim.objective import Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.proof import NONE_YET, Proof
from distsms.optim.result import Status, StopRun
from distsms.optim.run import minimize, scale_of
from distsms.optim.settings import Settings, usual_pairs
from distsms.optim.solvers.base import solver_class
from tests.support import oracles
from tests.support.problems import data, noting, objective

MEASURES = ("rocarea", "prbep")


def least(X, y, measure, lam):
    """min J by SciPy's L-BFGS-B on ever narrower smoothings: another solver on the same objective."""
    problem, w = objective(X, y, Communicator(), measure), np.zeros(X.shape[1])
    best = np.inf
    for nu in (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5):

        def both(v, nu=nu):
            one = problem.evaluate([Request(v, nu, ElasticNet(lam))])[0]
            return one.J_mu, one.gradient

        w = optimize.minimize(both, w, jac=True, method="L-BFGS-B", options={"maxiter": 500, "maxcor": 30}).x
        best = min(best, problem.evaluate([Request(w, nu, ElasticNet(lam))])[0].J)
    return best


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("lam", [1.0, 1e-2, 1e-4])
def test_what_is_proved_is_true(measure, lam, comm):
    X, y = data(seed=7)
    J = least(X, y, measure, lam) if comm.is_root else 0.0
    for epsilon in (1e-2, 1e-4):
        states = []
        result = minimize(objective(X, y, comm, measure), Settings(lam=lam, epsilon=epsilon), watch=noting(states))
        assert result.status is Status.PROVED
        assert result.gap <= epsilon
        assert comm.allgather(result.w.tobytes()) == [result.w.tobytes()] * comm.size
        if comm.is_root:
            assert result.lower_bound <= J + 1e-9
            assert J - 1e-9 <= result.J <= J + epsilon
            at = objective(X, y, Communicator(), measure).evaluate([Request(result.w, 1.0, ElasticNet(lam))])[0]
            assert at.J == pytest.approx(result.J, abs=1e-12)
            assert len(states) == result.evaluations
            assert np.all(np.diff([s.lower_bound for s in states]) >= 0)
            assert np.all(np.diff([s.best_J for s in states]) <= 0)
            assert all(s.lower_bound <= J + 1e-9 and s.smoothing_gap >= -1e-12 for s in states)


@pytest.mark.parametrize("measure", [*MEASURES, "error-rate"])
def test_steps_of_the_bundle_prove_where_the_solver_alone_stalls(measure, comm):
    """Far fewer rows than columns, and a gap far below what smoothing and LMVM reach."""
    rng = np.random.default_rng(0)
    X = random(40, 500, 0.05, format="csr", random_state=0, data_rvs=rng.standard_normal)
    y = np.where(np.arange(40) % 5 < 2, 1, -1).astype(np.int8)
    states = []
    helped = Settings(lam=1e-4, epsilon=1e-7, max_evaluations=1000)
    result = minimize(objective(X, y, comm, measure), helped, watch=noting(states))
    assert result.status is Status.PROVED
    alone = replace(helped, bundle_steps=False, max_evaluations=result.evaluations)
    assert minimize(objective(X, y, comm, measure), alone).status is not Status.PROVED
    if comm.is_root:
        assert {s.nu > 0 for s in states} == {True, False}
        assert result.J <= least(X, y, measure, 1e-4) + 1e-7


@pytest.mark.parametrize("measure", MEASURES)
def test_relative_target(measure, comm):
    X, y = data(seed=8)
    result = minimize(objective(X, y, comm, measure), Settings(lam=1e-2, epsilon=None, relative=0.05))
    assert result.status is Status.PROVED
    assert result.gap <= 0.05 * result.J


@pytest.mark.parametrize("measure", MEASURES)
def test_the_papers_width_may_end_at_its_floor(measure, comm):
    X, y = data(seed=8)
    result = minimize(objective(X, y, comm, measure), Settings(lam=1e-2, epsilon=1e-3, c_mu=1000.0))
    assert result.status is Status.FLOOR
    assert result.gap > 1e-3
    assert "c_mu" in result.detail
    assert result.status.exit_code == 3
    narrow = minimize(objective(X, y, comm, measure), Settings(lam=1e-2, epsilon=1e-3, c_mu=1.0))
    assert narrow.status is Status.PROVED


def test_beyond_what_floats_can_tell_is_no_success(comm):
    """A gap of 1e-17 cannot be proved: the run ends by itself and says that it did not."""
    X, y = data(n=60)
    result = minimize(objective(X, y, comm), Settings(lam=1e-2, epsilon=1e-18, max_evaluations=3000))
    assert result.status is Status.ROUNDING
    assert result.gap < 1e-6


@pytest.mark.parametrize("measure", MEASURES)
def test_warm_start_is_quicker(measure, comm):
    X, y = data(n=400, p=40, seed=9)
    first = minimize(objective(X, y, comm, measure), Settings(lam=1e-4, epsilon=1e-4))
    again = minimize(objective(X, y, comm, measure), Settings(lam=1e-4, epsilon=1e-2), first.w)
    assert again.evaluations < first.evaluations
    assert again.J <= first.J + 1e-2


@pytest.mark.parametrize("planes, history", [(2, 1), (3, 100)])
def test_small_and_large_memories(planes, history, comm):
    X, y = data(seed=11)
    settings = Settings(lam=1e-2, epsilon=1e-3, planes=planes, history=history, max_evaluations=2000)
    assert minimize(objective(X, y, comm), settings).status is Status.PROVED


@pytest.mark.parametrize("measure", MEASURES)
def test_a_single_positive(measure, comm):
    X, y = data(seed=12)
    y[:] = -1
    y[5] = 1
    result = minimize(objective(X, y, comm, measure), Settings(lam=1e-3))
    assert result.status is Status.PROVED
    if comm.is_root:
        assert result.lower_bound <= least(X, y, measure, 1e-3) + 1e-9 <= result.J + 2e-9


@pytest.mark.serial
def test_numbers_of_numpy_become_those_of_python():
    settings = Settings(lam=np.float64(0.5), history=np.int64(5), epsilon=np.float32(0.25))
    assert json.loads(json.dumps(vars(settings))) == {**vars(settings), "solver_options": []}
    assert (settings.lam, settings.history, settings.epsilon) == (0.5, 5, 0.25)


@pytest.mark.serial
def test_memory_is_kept_within_bounds():
    settings = Settings(lam=1.0, vector_bytes=2**30)
    assert [usual_pairs(p, 10**6, 100) for p in (2**14, 2**14 + 1)] == [100, 10]
    assert usual_pairs(1000, 999, 50) == usual_pairs(10**6, 10**5, 50) == 5
    assert settings.history_within(1000, 50) == 50
    assert Settings(lam=1.0, history=30).history_within(1000, 5) == 30  # what was asked for
    assert settings.planes_within(1000) == 100
    assert settings.history_within(10**7, 50) == 5  # never below TAO's own default
    assert settings.planes_within(10**7) == 6
    assert settings.planes_within(10**9) == 2
    assert settings.remembered_within(1000, 50) == 0  # nobody asks for snapshots
    kept = Settings(lam=1.0, vector_bytes=2**30, checkpoint_every=60.0)
    assert [kept.remembered_within(p, 50) for p in (1000, 800_000, 10**7)] == [50, 20, 5]
    own = Settings(lam=1.0, vector_bytes=2**30, checkpoint_every=60.0, solver="lbfgs")
    assert [own.history_within(p, 50) for p in (1000, 10**6, 10**7)] == [50, 33, 5]  # two vectors for a pair, not three
    assert own.remembered_within(1000, 50) == 0  # its snapshots are of the pairs themselves


@pytest.mark.serial
@pytest.mark.parametrize(
    "bad", [{"lam": 0.0}, {"epsilon": None}, {"epsilon": -1.0}, {"history": 0}, {"planes": 1}, {"c_mu": np.nan}]
)
def test_settings_are_checked(bad):
    with pytest.raises(InputError):
        Settings(**{"lam": 1.0, **bad})


def test_a_run_that_has_not_begun_to_move_is_not_called_vacuous(comm):
    """Cut short at w = 0, where the optimum is much better: idle. At a huge lambda w = 0 is nearly optimal: vacuous."""
    X, y = data(n=200, p=8)
    cut = minimize(objective(X, y, comm), Settings(lam=1e-6, solver="bmrm", max_evaluations=1))
    assert cut.idle and not cut.vacuous
    proved = minimize(objective(X, y, comm), Settings(lam=1e6))
    assert proved.vacuous and proved.idle
    better = minimize(objective(X, y, comm), Settings(lam=1e-4))
    assert not better.idle and not better.vacuous


def test_too_wide_a_fixed_width_is_the_floor(comm):
    X, y = data(n=300, p=20, seed=4)
    result = minimize(objective(X, y, comm), Settings(lam=1e-6, c_mu=1000.0, epsilon=None, relative=1e-3))
    assert result.status is Status.FLOOR
    assert "smaller c_mu" in result.detail


@pytest.mark.serial
def test_when_the_smoothing_is_narrowed():
    """If it has a large part in a gap that optimization has made small, after some evaluations of the same width."""
    (loss,) = objective(*data(), Communicator()).losses
    schedule, target = SmoothingSchedule(loss, Settings(lam=1e-2, epsilon=1e-3)), 1e-3

    def gaps(smoothing, optimization):
        return NONE_YET._replace(smoothing_gap=smoothing * target, optimization_gap=optimization * target)

    for now in (5, 105):
        assert schedule.too_wide(gaps(1, 1), target, now) and schedule.too_wide(gaps(1, 0), target, now)
        assert schedule.too_wide(gaps(100, 300), target, now) and not schedule.too_wide(gaps(100, 3000), target, now)
        assert not (schedule.too_wide(gaps(0.1, 1), target, now) or schedule.too_wide(gaps(1, 100), target, now))
        assert not schedule.too_wide(gaps(1, 1), target, now - 2)
        before = schedule.nu
        schedule.shrink(100)
        assert 0 < schedule.nu < before
    assert schedule.matters(gaps(1, 1), target) and not schedule.matters(gaps(0.1, 1), target)
    fixed = SmoothingSchedule(loss, Settings(lam=1e-2, epsilon=1e-3, c_mu=10.0))
    assert fixed.nu == loss.paper_width(10.0, target) and not fixed.matters(gaps(100, 1), target)
    assert not (fixed.too_wide(gaps(100, 1), target, 99) or fixed.too_wide(gaps(0.1, 0), target, 99))
    with pytest.raises(StopRun, match="smaller c_mu"):
        fixed.too_wide(gaps(1, 0), target, 99)


def test_the_variables_scale_is_not_the_problems(comm):
    """Columns of very different size: the optimum is the same whatever the solver works on, the way there is not."""
    X, y = data(n=300, p=8, seed=3)
    X = (X @ diags(10.0 ** np.arange(-4, 4))).tocsr()
    found = [minimize(objective(X, y, comm), Settings(lam=1e-3, scaling=s)) for s in (0.0, 0.125, 0.5)]
    assert all(one.status is Status.PROVED for one in found)
    assert all(one.lower_bound <= other.J for one in found for other in found)
    assert len({one.evaluations for one in found}) > 1


def test_empty_columns_and_a_scale_out_of_range(comm):
    X, y = data(n=100, p=5)
    X = hstack([X, csr_matrix((100, 3))]).tocsr()
    result = minimize(objective(X, y, comm), Settings(lam=1e-2, scaling=1.0))
    assert result.status is Status.PROVED
    assert not result.w[5:].any()
    scale = scale_of(objective(X, y, comm), Settings(lam=1e-2, scaling=0.5))
    np.testing.assert_allclose(scale[5:], 10.0)  # only the regularizer curves J along an empty column
    usual, asked = Settings(lam=1.0), Settings(lam=1.0, scaling=0.5)
    assert [each.scaling_of(p) for each in (usual, asked) for p in (512, 513)] == [0.125, 0.2, 0.5, 0.5]
    with pytest.raises(InputError, match="scaling"):
        Settings(lam=1.0, scaling=-1.0)


@pytest.mark.serial
def test_options_reach_tao(capfd):
    X, y = data()
    minimize(objective(X, y, Communicator()), Settings(lam=1e-2, solver_options=("-tao_monitor",)))
    assert "Function value" in capfd.readouterr().out
    from petsc4py import PETSc

    for name in ("tao_monitor", "options_left"):
        PETSc.Options().delValue(name)


def exact_J(w, X, y, measure, lam):
    """J at a w of floats, in rational numbers."""
    w = oracles.rational(w)
    scores = [sum((a * b for a, b in zip(oracles.rational(row), w, strict=True)), w[0] * 0) for row in X]
    positive, negative = (
        [s for s, sign in zip(scores, y, strict=True) if (sign > 0) == kind] for kind in (True, False)
    )
    risk = oracles.rocarea_risk if measure == "rocarea" else oracles.prbep_risk
    return float(risk(np.array(positive), np.array(negative)) + oracles.rational([lam])[0] / 2 * sum(v * v for v in w))


SPACED = {  # columns whose values differ in their last bits: sums of them may round to nothing
    "prbep": ([[9999999999999.996, 2], [9999999999999.998, -1], [9999999999999.998, 0], [9999999999999.996, 2]], 1e-8),
    "rocarea": ([[1e12, -1], [999999999999.9998, -1], [1000000000000.0002, 1], [1e12, 0], [1e12, 1], [1e12, 0]], 1e-10),
}


@pytest.mark.serial
@pytest.mark.parametrize("measure", MEASURES)
def test_no_bound_above_the_objective_anywhere(measure):
    """Whatever a run on such columns ends with, its lower bound is below the exact J of every other solver's w."""
    X, lam = np.array(SPACED[measure][0]), SPACED[measure][1]
    y = np.array([1, -1] * 3 if measure == "prbep" else [1, -1, -1, 1, -1, 1], np.int8)[: len(X)]
    found = []
    for solver in ("lmvm", "agm", "bmrm", "bmrm-linesearch"):
        settings = Settings(lam=lam, solver=solver, max_evaluations=300)
        found.append(minimize(objective(csr_matrix(X), y, Communicator(), measure), settings))
    exact = [exact_J(one.w, X, y, measure, lam) for one in found]
    for slope in 10.0 ** np.arange(-3, 8):
        exact += [exact_J(np.array([sign * slope, 0.0]), X, y, measure, lam) for sign in (1, -1)]
    for one in found:
        assert one.lower_bound <= min(exact)
        assert one.status is not Status.PROVED or one.J - one.lower_bound <= 1e-3


@pytest.mark.serial
@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("offset", [0.0, 1e6, 1e9, 1e13, 1e18])
@pytest.mark.parametrize("seed", range(2))
def test_no_proof_that_rounding_could_have_made(measure, offset, seed):
    """Columns of huge values (time stamps, say): what is called proved is true of the exact J."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([offset + rng.integers(-2, 3, 12), rng.normal(size=12), offset * rng.integers(0, 2, 12)])
    y = np.where(rng.random(12) < 0.4, 1, -1).astype(np.int8)
    y[:2] = 1, -1
    settings = Settings(lam=1e-4, epsilon=1e-6, max_evaluations=300)
    result = minimize(objective(csr_matrix(X), y, Communicator(), measure), settings)
    if offset == 0:
        assert result.status is Status.PROVED
    J = exact_J(result.w, X, y, measure, 1e-4)
    assert abs(result.J - J) <= result.gap + 1e-15
    assert result.lower_bound <= J
    if result.status is Status.PROVED:
        assert J - result.lower_bound <= 1e-6 + 1e-15
    else:
        assert result.status in (Status.ROUNDING, Status.LIMIT, Status.STALLED)


@pytest.mark.parametrize(
    "offset, factor, lam, goal, remedy",
    [
        (0.0, 1e3, 1e-12, {"epsilon": None, "relative": 1e-3}, r"J is nearly 0 \(.*\), so ask for .* epsilon \d"),
        (1e9, 1.0, 1e-8, {"epsilon": 1e-3}, "scale columns of large values"),
        (0.0, 1.0, 1e-60, {"epsilon": 1e-3}, "lambda is very small"),
        (0.0, 1.0, 1e-2, {"epsilon": 1e-18}, r"ask for a gap of \d"),
    ],
)
def test_what_helps_against_rounding(offset, factor, lam, goal, remedy, comm):
    """Columns are blamed only if their values are large, and lambda only if they are not."""
    X, y = data(n=40, p=3)
    rows = X.toarray() * factor + offset
    if goal["epsilon"] is None:  # separable, so that J is lambda/2 ||w||^2
        rows[:, 0] = factor * y
    result = minimize(objective(csr_matrix(rows), y, comm), Settings(lam, solver="bmrm", **goal))
    assert result.status is Status.ROUNDING
    assert re.search(remedy, result.detail), result.detail
    assert ("columns" in result.detail) == (offset > 0)
    if enough := re.search(r"(?:epsilon|a gap of) (\S+) or more", result.detail):
        again = Settings(lam, solver="bmrm", epsilon=float(enough[1]))
        assert minimize(objective(csr_matrix(rows), y, comm), again).status is Status.PROVED


@pytest.mark.serial
def test_rounding_in_one_mixture_ends_no_run_before_its_end():
    """The next planes may prove more."""
    X, y = data()
    problem = objective(X, y, Communicator())
    proof = Proof(problem, Settings(lam=1e-2, epsilon=1e-3))
    proof.add(problem.evaluate([Request(np.zeros(X.shape[1]), 1.0, proof.regularizer)])[0])
    proof.planes.bound = proof.planes.bound._replace(taken=1.0)
    proof.check()
    with pytest.raises(StopRun) as ended:
        proof.check(at_end=True)
    assert ended.value.status is Status.ROUNDING


def test_contradictory_rows(comm):
    """The same row with both labels, and a far outlier, at a tiny lambda."""
    X, y = csr_matrix([[2000.0], [1.0], [1.0]]), np.array([-1, 1, -1], np.int8)
    result = minimize(objective(X, y, comm), Settings(lam=1e-8, epsilon=1e-6))
    assert result.status is Status.PROVED
    assert result.J == pytest.approx(0.5, abs=1e-5)


def test_watching_is_off_the_clock(comm, monkeypatch):
    """A watcher that takes 100 s at every evaluation, on a clock that nothing else moves."""
    now, bests = [0.0], []

    def watch(state, w):
        now[0] += 100.0
        bests.append((state.best_J, w.copy()))
        assert state.seconds == 0.0

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    X, y = data()
    result = minimize(objective(X, y, comm), Settings(lam=1e-2, epsilon=1e-3, time_limit=50.0), watch=watch)
    assert result.status is Status.PROVED
    assert result.seconds == 0.0
    if comm.is_root:
        assert now[0] == 100.0 * result.evaluations
        J, w = bests[-1]
        assert J == result.J
        np.testing.assert_array_equal(w, result.w)
    assert comm.is_root or not bests


@pytest.mark.serial
def test_a_solver_is_moved_to_the_best_point_in_its_own_scale(monkeypatch):
    """Steps of the bundle find better points than the solver, whose variables are scaled."""
    X, y = data(n=100, p=40, seed=2)
    X = csr_matrix(X @ diags(np.logspace(-1, 1, 40)))
    monkeypatch.setattr(run, "curvature_due_after", lambda *_: 0)  # it would change the variables
    kind, best, moves = solver_class("lmvm"), [], []
    move = kind.move
    monkeypatch.setattr(kind, "move", lambda self, w: moves.append((w.copy(), best[-1])) or move(self, w))
    problem, settings = objective(X, y, Communicator()), Settings(lam=1e-4, epsilon=1e-6)
    minimize(problem, settings, watch=lambda state, w: best.append(w.copy()))
    scale = scale_of(problem, settings)
    assert moves
    for to, w in moves:
        np.testing.assert_allclose(to * scale, w, rtol=1e-12)
