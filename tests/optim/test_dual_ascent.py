"""Dual coordinate ascent: planes below the risk, the minima of scikit-learn, on any number of ranks, and its limits."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog
from scipy.special import expit, xlogy
from sklearn.linear_model import LogisticRegression

from distsms.base.choices import STEPS
from distsms.base.communicator import Communicator
from distsms.losses.registry import make_loss
from distsms.matrix.augmented import with_bias
from distsms.matrix.local import DenseRows, SparseRows
from distsms.matrix.normalization import Normalization
from distsms.matrix.side_by_side import SideBySide
from distsms.optim import dual_ascent, dual_variables
from distsms.optim.dual_ascent import ascend, gathered_rows, suits
from distsms.optim.dual_variables import COUNTDOWN, Multipliers, Probabilities, pass_over_rows, share_of_pairs
from distsms.optim.objective import EPS, Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel.vectors import make_vectors
from tests.support.examples import EXAMPLES
from tests.support.problems import asked, data, noting, share

MACHINES = ("prbep", "rocarea")
KINDS = ("sparse", "sorted", "ones", "dense", "scaled", "unit", "bias")


def rows_of(kind, X):
    """Return some rows of X as features of a kind."""
    if kind == "dense":
        return DenseRows(X.toarray())
    if kind == "ones":
        return SparseRows(None, X.indices.astype(np.uint16), np.diff(X.indptr).astype(np.uint16), X.shape[1])
    sort, values = kind == "sorted", X.data.astype(np.float32)
    rows = SparseRows(values, X.indices.astype(np.uint16), np.diff(X.indptr).astype(np.uint16), X.shape[1], sort=sort)
    if kind == "scaled":
        rows.normalize(Normalization("maxabs", np.linspace(0.2, 3.0, X.shape[1])))
    if kind == "unit":
        rows.normalize(Normalization("l2"))
    return with_bias(rows, 2.0) if kind == "bias" else rows


def problem(kind, comm, measure="logistic", weights=None, step="root", n=40, p=400, **more):
    """Return an objective over this rank's share, and all rows as a dense array with the labels."""
    X, y = data(n=n, p=p)
    mine = share(comm, n)
    loss = make_loss(measure, "gather", y[mine], None if weights is None else weights[mine], comm)
    features = rows_of(kind, X[mine].tocsr())
    whole = rows_of(kind, X)
    dense = whole.margins(np.eye(whole.shape[1])).T
    return Objective(features, [loss], comm, vectors=make_vectors(step, features.shape[1], comm), **more), dense, y


@pytest.mark.parametrize("measure", MACHINES)
@pytest.mark.parametrize("kind", ["sparse", "unit", "bias"])
@pytest.mark.parametrize("lam", [10.0, 1e-1, 1e-4])
def test_the_minimum_of_the_usual_run(measure, kind, lam, comm):
    weights = None if kind == "bias" else np.random.default_rng(1).integers(1, 4, 40).astype(float)
    settings, step = Settings(lam, 1e-9, 1e-2, solver="lbfgs"), "spread" if lam < 1e-3 else "root"
    result = minimize(problem(kind, comm, measure, weights, step)[0], settings)
    without = Settings(lam, 1e-3, solver="lbfgs", bundle_steps=False)
    assert result.status is Status.PROVED
    assert comm.allgather(result.w.tobytes()) == [result.w.tobytes()] * comm.size
    if comm.is_root:
        usual = minimize(problem(kind, Communicator(), measure, weights)[0], without)
        assert result.lower_bound <= usual.J and usual.lower_bound <= result.J


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lam", [1e-1, 1e-5])
def test_the_minimum_of_scikit_learn(kind, lam, comm):
    objective, X, y = problem(kind, comm, step="spread" if lam < 1e-3 else "root")
    settings = Settings(lam, 1e-9, 1e-3, solver="lbfgs")
    assert suits(objective, settings)
    states = []
    result = minimize(objective, settings, watch=noting(states))
    assert result.status is Status.PROVED
    if comm.is_root:
        model = LogisticRegression(C=1 / (lam * len(y)), fit_intercept=False, tol=1e-10, max_iter=10000)
        w = model.fit(X, y).coef_[0]
        least = 0.5 * lam * w @ w + np.mean(np.logaddexp(0, -y * (X @ w)))
        assert result.lower_bound <= least * (1 + 1e-9) and result.J == pytest.approx(least, rel=2e-3)
    if objective.vectors.runs_solver:
        counts = [state.evaluation for state in states]
        assert counts[-1] == result.evaluations and np.all(np.diff(counts) > 0)


@pytest.mark.parametrize("measure", ["logistic", "logistic-balanced"])
def test_its_plane_is_below_the_risk_and_as_high_as_the_dual(measure, comm):
    """At many w, also far from the one that it found; with weights, some of which are 0."""
    weights = np.random.default_rng(1).integers(0, 4, 40).astype(float)
    weights[:2], lam = 1.0, 1e-3
    objective, X, y = problem("sparse", comm, measure, weights, "spread")
    found = ascend(objective, Settings(lam, 1e-4, solver="lbfgs"), lambda state, w: None)
    r, w = objective.vectors.allgather(found.r), objective.vectors.allgather(found.w)
    if not comm.is_root:
        return
    alone, rng = problem("sparse", Communicator(), measure, weights)[0], np.random.default_rng(0)
    for size in (0.0, 1e-2, 1.0, 100.0):
        v = size * rng.normal(size=len(w)) + w * (size < 1)
        assert r @ v + found.plane.d <= alone.evaluate([Request(v, 0.0, ElasticNet(lam))])[0].R + 1e-12
    a = weights * (0.5 / np.where(y > 0, weights[y > 0].sum(), weights[y < 0].sum()))
    a = weights / weights.sum() if measure == "logistic" else a
    q = np.where(a > 0, -np.linalg.lstsq(X[a > 0].T, r, rcond=None)[0] @ np.eye(40)[a > 0] / np.maximum(a, 1e-9) * y, 0)
    assert np.all((q > -1e-9) & (q < 1 + 1e-9))
    q = np.clip(q, 0, 1)
    assert found.plane.d == pytest.approx(-a @ (xlogy(q, q) + xlogy(1 - q, 1 - q)), rel=1e-6)
    J = alone.evaluate([Request(w, 0.0, ElasticNet(lam))])[0].J
    assert 0 <= J - (found.plane.d - r @ r / (2 * lam)) <= 1e-4


@pytest.mark.parametrize("measure", MACHINES)
@pytest.mark.parametrize("lam", [10.0, 0.3, 1e-3])
def test_planes_of_multipliers_are_below_the_risk(measure, lam, comm):
    """With weights, some of which are 0; at 10 the machine's risk is above that of ROCArea, at 0.3 sometimes."""
    weights = np.random.default_rng(1).integers(0, 4, 40).astype(float)
    weights[:2] = 1.0
    objective, _, _ = problem("sparse", comm, measure, weights, "spread")
    found = ascend(objective, Settings(lam, 1e-9, 1e-2, solver="lbfgs"), lambda state, w: None)
    r, w = objective.vectors.allgather(found.r), objective.vectors.allgather(found.w)
    if not comm.is_root:
        return
    alone, rng = problem("sparse", Communicator(), measure, weights)[0], np.random.default_rng(0)
    for size in (0.0, 1e-2, 1.0, 100.0):
        for _ in range(5):
            v = size * rng.normal(size=len(w)) + w * (size < 1)
            assert r @ v + found.plane.d <= alone.evaluate([Request(v, 0.0, ElasticNet(lam))])[0].R + 1e-12
    J = alone.evaluate([Request(w, 0.0, ElasticNet(lam))])[0].J
    assert found.plane.d - r @ r / (2 * lam) <= J <= alone.losses[0].R_at_zero
    if found.final:
        assert J - (found.plane.d - r @ r / (2 * lam)) <= 1e-2 * J


def by_linear_program(u, caps, v, caps_v):
    """The largest share <= 1 for which the transport exists."""
    m, n = len(u), len(v)
    rows = np.vstack([np.kron(np.eye(m), np.ones(n)), np.kron(np.ones(m), np.eye(n))])
    A = np.hstack([rows, -np.append(u, v)[:, None]])
    bounds = [(0, cap) for cap in np.outer(caps, caps_v).ravel()] + [(0, 1)]
    return -linprog(np.append(np.zeros(m * n), -1.0), A_eq=A, b_eq=np.zeros(m + n), bounds=bounds).fun


@pytest.mark.serial
@pytest.mark.parametrize("seed", range(20))
def test_the_share_for_which_multipliers_are_sums_of_pairs(seed):
    rng = np.random.default_rng(seed)
    caps, caps_v = rng.dirichlet(np.ones(rng.integers(1, 6))), rng.dirichlet(np.ones(rng.integers(1, 6)))
    u, v = (np.minimum(rng.exponential(size=len(c)) ** 2, 1) * (rng.random(len(c)) < 0.8) * c for c in (caps, caps_v))
    u, v = (each * min(u.sum(), v.sum()) / max(each.sum(), 1e-9) for each in (u, v))
    found = share_of_pairs(np.append(u, 0), np.append(caps, 0), np.append(0, v), np.append(0, caps_v))
    assert found == pytest.approx(by_linear_program(u, caps, v, caps_v), abs=2e-6)


@pytest.mark.serial
@pytest.mark.parametrize("lam", [1e1, 1e-2])
def test_visits_solve_the_dual_of_the_machine(lam):
    """The multipliers stay between 0 and the caps, w is theirs, and the dual reaches J of PRBEP."""
    objective, X, y = problem("bias", Communicator(), "prbep", n=12, p=8)
    dual, w = Multipliers(objective.losses[0], lam), np.zeros(9)
    rows, rng = objective.features.row_entries(), np.random.default_rng(0)
    for k in range(4000):
        estimate = dual.visit(rows, rng.permutation(12), k == 0, w)
        assert np.all((dual._u >= 0) & (dual._u <= 2 / 12))
    np.testing.assert_allclose(w, X.T @ (y * dual._u) / lam, rtol=1e-6, atol=1e-9)
    plane = dual.plane()
    r = X.T @ plane.c
    J = lam / 2 * w @ w + objective.losses[0].evaluate(X @ w, 0.0).R
    assert -1e-15 <= J - (plane.d - r @ r / (2 * lam)) <= 1e-4 * J and abs(estimate) <= 1e-4 * J


@pytest.mark.parametrize("measure", MACHINES)
def test_the_best_multiple_of_w(measure, comm):
    """J is nowhere smaller on a fine grid."""
    objective, lam = problem("sparse", comm, measure)[0], 1e-3
    ascent = dual_ascent._Ascent(objective, Settings(lam, 1e-9, 1e-3), lambda state, w: None, None, 0.0)
    for length in (3e-3, 1e-2, 1.0):  # the multiple is some, 2 or 1, and 1
        s, omega = objective.features.margins(length * np.linspace(0, 1, 400)), 0.05 * length
        theta, J, R = ascent._best_multiple(omega, s)
        values = [omega * t**2 + objective.losses[0].evaluate(t * s, 0.0).R for t in np.geomspace(1, 1e3, 300)]
        assert theta >= 1 and J == pytest.approx(omega * theta**2 + R) and J <= min(values) * (1 + 1e-3)


@pytest.mark.parametrize("best", [1.0, 1.5, 10.0])
def test_the_best_multiple_is_that_of_a_formula(best, comm):
    """With the scores 0.1 of all positive rows but one, which has -0.05, and 0 of all others, ROCArea falls in a
    straight line until the multiple 10, and rises in another one after it; so the minimum is there, or before.
    """
    objective, _, y = problem("sparse", comm, "rocarea")
    scores, one = np.where(y > 0, 0.1, 0.0), 1 / np.sum(y > 0)
    scores[0] = -0.05
    fall = 0.1 * (1 - one) - 0.05 * one
    omega = 1e-6 if best == 10 else fall / (2 * best)
    ascent = dual_ascent._Ascent(objective, Settings(1e-3, 1e-9, 1e-3), lambda state, w: None, None, 0.0)
    found = ascent._best_multiple(omega, scores[share(comm, len(y))])
    assert found == pytest.approx((best, omega * best**2 + 1 - fall * best, 1 - fall * best), rel=1e-9)


@pytest.mark.parametrize(
    "estimates, passes",
    [((0.004,), 1), ((0.4, 0.04, 0.004), 3), ((0.4, 0.006, 9e-5), 3), ((0.01, 0.005, 0.0025, 0.00125, 0.000625), 5)],
)
def test_J_is_computed_once_the_gap_is_expected_below_half_of_the_target(estimates, passes, comm):
    """The gap falls meanwhile as it did in the pass before, but at most to a tenth."""
    objective = problem("sparse", comm)[0]
    rows, following = gathered_rows(objective.features.row_entries(), comm)[1], iter([*estimates, 1e-9])
    ascent = dual_ascent._Ascent(objective, Settings(1e-3, 1e-3), lambda state, w: None, rows, 0.0)
    ascent._dual.visit = lambda rows, order, first, w: next(following)
    assert ascent._pass_until_due() == objective.evaluations == passes


@pytest.mark.serial
def test_when_the_gap_falls_too_slowly():
    """Probabilities: to more than 0.85 in a pass; multipliers: if the target is over 250 evaluations away."""
    losses = [problem("sparse", Communicator(), measure)[0].losses[0] for measure in ("logistic", "prbep")]
    probabilities, multipliers = Probabilities(losses[0], 1e-3), Multipliers(losses[1], 1e-3)
    assert not probabilities.slow([(4, 1e-2)], 1e-6, 1.0)
    assert not multipliers.slow([(15, 1e-2), (20, 1e-2)], 1e-6, 1.0)
    for passes in (1, 3, 10):
        for share_left in (0.84, 0.86):
            gaps = [(2, 1.0), (4, 1e-2), (4 + passes, 1e-2 * share_left**passes)]
            assert probabilities.slow(gaps, 1e-6, 1.0) == (share_left > 0.85)
    for halvings, worth in itertools.product((24, 26, 49, 51), (1.0, 2.0)):  # each halving takes ten passes
        gaps = [(1, 9.0), (10, 1.0), (15, 0.9), (20, 0.5)]
        assert multipliers.slow(gaps, 0.5 * 2.0**-halvings, worth) == (10 * halvings > 250 * worth)


@pytest.mark.serial
@pytest.mark.parametrize("planes", [2, 100])
def test_the_more_the_solver_works_on_planes_the_longer_the_ascent_goes_on(planes, monkeypatch):
    asked_for = []
    monkeypatch.setattr(Multipliers, "slow", lambda self, gaps, target, worth: asked_for.append(worth) or False)
    objective = problem("sparse", Communicator(), "prbep")[0]
    ascend(objective, Settings(1e-6, 1e-9, solver="lbfgs", planes=planes, max_evaluations=30), lambda state, w: None)
    assert asked_for and asked_for[0] == 1 + 0.5 * planes * objective.p / objective.features.nnz


@pytest.mark.serial
def test_rows_that_do_not_change_are_visited_ever_more_rarely():
    """At a huge lambda all multipliers go to their caps at once, and stay there."""
    objective = problem("bias", Communicator(), "prbep", n=12, p=8)[0]
    dual, rows, due = Multipliers(objective.losses[0], 1e9), objective.features.row_entries(), []
    for k in range(50):
        due.append(dual._rests & COUNTDOWN == 0)
        dual.visit(rows, np.arange(12), k == 0, np.zeros(9))
    for of_row in np.transpose(due):
        assert np.flatnonzero(of_row).tolist() == [0, 1, 3, 7, 15, 31, 47]


@pytest.mark.parametrize("measure", MACHINES)
def test_the_solver_goes_on_from_the_machine(measure, comm, monkeypatch):
    """It begins at the best w, and with the best plane."""
    monkeypatch.setattr(dual_variables, "FURTHER", 0)
    monkeypatch.setattr(dual_ascent, "UNCHECKED", 4)
    objective = problem("bias", comm, measure)[0]
    states, settings = [], Settings(1e-3, 1e-9, 1e-3, solver="lbfgs")
    result = minimize(objective, settings, watch=noting(states))
    assert result.status is Status.PROVED
    if objective.vectors.runs_solver:
        of_solver = [state for state in states if state.nu]
        assert of_solver and len(of_solver) < len(states)
        assert np.all(np.diff([state.evaluation for state in states]) > 0)
        assert np.all(np.diff([state.best_J for state in states]) <= 1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("lam", [1e2, 1e-1, 1e-4, 1e-8])
def test_a_visit_raises_the_dual_and_keeps_w(lam):
    """Row by row, from any q, until the dual is as large as possible in every coordinate."""
    objective, X, y = problem("bias", Communicator(), n=12, p=8)
    rows, rng, a = objective.features.row_entries(), np.random.default_rng(0), y / 12
    t = rng.normal(scale=6, size=12)
    q, squares = expit(-t), np.empty(12)
    w = X.T @ (a * q) / lam

    def dual():
        return -np.sum(np.abs(a) * (xlogy(q, q) + xlogy(1 - q, 1 - q))) - lam / 2 * np.sum((X.T @ (a * q) / lam) ** 2)

    def visit(order, first):
        return pass_over_rows(rows, np.array(order), a, t, q, squares, 1 / lam, first, w)

    for i in range(12):
        before = dual()
        visit([i], True)
        assert dual() >= before - 1e-9 * abs(before)
        np.testing.assert_allclose(q, expit(-t), atol=1e-12)
        np.testing.assert_allclose(w, X.T @ (a * q) / lam, rtol=1e-7, atol=1e-9 * np.abs(w).max())
    np.testing.assert_allclose(squares, np.sum(X**2, axis=1))
    if lam > 1e-6:
        estimates = [visit(rng.permutation(12), False) for _ in range(3000)]
        J = lam / 2 * w @ w + np.mean(np.logaddexp(0, -y * (X @ w)))
        assert J == pytest.approx(dual(), abs=1e-6) and estimates[-1] < 1e-6
    if lam == 1e2:
        t += rng.normal(scale=0.01, size=12)  # a visit that leaves w as it is, near the maximum
        q[:] = expit(-t)
        w[:] = X.T @ (a * q) / lam
        gap = lam / 2 * w @ w + np.mean(np.logaddexp(0, -y * (X @ w))) - dual()
        assert pass_over_rows(rows, np.arange(12), a, t, q, squares, 0.0, False, w) == pytest.approx(gap, rel=0.05)


@pytest.mark.serial
def test_proofs_of_random_problems_hold():
    """No lower bound is above a J that a far more exact run finds."""
    rng = np.random.default_rng(5)
    for seed in range(round(1.2 * EXAMPLES)):
        n = int(rng.integers(2, 12))
        p = n * int(rng.integers(2, 6))
        X = sparse.random(n, p, rng.choice([0.05, 0.3, 1.0]), "csr", random_state=seed, data_rvs=rng.standard_normal)
        y = np.where(rng.random(n) < 0.5, 1, -1).astype(np.int8)
        y[:2] = 1, -1
        X, lam = X * 10.0 ** rng.integers(-3, 4), 10.0 ** rng.uniform(-7, 1)
        weights = None if seed % 3 else rng.exponential(size=n)
        loss = make_loss(
            ("logistic", "prbep", "logistic-balanced", "rocarea")[seed % 4], "gather", y, weights, Communicator()
        )
        objective = Objective(with_bias(SparseRows.of(sparse.csr_matrix(X)), 1.0), [loss], Communicator())
        settings = Settings(lam, 1e-6, solver="lbfgs", max_evaluations=int(rng.integers(2, 60)))
        found = minimize(objective, settings)
        exact = minimize(objective, Settings(lam, 1e-12, solver="lbfgs", bundle_steps=False, max_evaluations=100))
        assert found.lower_bound <= exact.J and exact.lower_bound <= found.J
        assert found.evaluations <= settings.max_evaluations


OPENED = [
    ("logistic", 2),
    ("logistic", 3),
    *((measure, most) for measure in ("logistic", *MACHINES) for most in (4, 7)),
]
"""Measures, and limits on evaluations that are not too small for an opening."""


@pytest.mark.parametrize("measure, most", OPENED)
def test_limits_hold(measure, most, comm):
    objective = problem("sparse", comm, measure)[0]
    result = minimize(objective, Settings(1e-6, 1e-12, solver="lbfgs", max_evaluations=most))
    assert (result.status, result.evaluations, objective.evaluations) == (Status.LIMIT, most, most)


@pytest.mark.parametrize("measure", ["logistic", *MACHINES])
def test_it_stops_when_asked_and_in_time(measure, comm):
    objective = problem("sparse", comm, measure, stop_wanted=lambda: comm.rank == comm.size - 1)[0]
    assert minimize(objective, Settings(1e-7, 1e-12, solver="lbfgs")).status is Status.STOPPED
    result = minimize(problem("sparse", comm, measure)[0], Settings(1e-7, 1e-12, solver="lbfgs", time_limit=1e-9))
    assert result.status is Status.TIME and result.evaluations < 10


@pytest.mark.serial
def test_it_stops_between_two_passes():
    """On large data ten passes, after which J is usually computed, take a minute."""
    asked_before = iter([False, True])
    objective = problem("sparse", Communicator(), "logistic", stop_wanted=lambda: next(asked_before, True))[0]
    result = minimize(objective, Settings(1e-7, 1e-12, solver="lbfgs"))
    assert result.status is Status.STOPPED and result.evaluations < 6


def test_more_ranks_than_rows(comm):
    result = minimize(problem("sparse", comm, n=2, p=9)[0], Settings(1e-3, 1e-6, solver="lbfgs"))
    assert result.status is Status.PROVED


def test_the_root_has_the_rows_of_all_ranks(comm):
    for kind in KINDS:
        objective, X, _ = problem(kind, comm)
        available, rows = gathered_rows(objective.features.row_entries(), comm)
        assert available
        if rows is None:
            assert not comm.is_root
            continue
        for i, x in enumerate(X):
            here = slice(rows.begins[i], rows.ends[i])
            columns = np.arange(400) if rows.columns is None else rows.columns[here]
            values = np.ones(len(columns)) if rows.values is None else rows.values[here]
            values = values.astype(float) * (1.0 if rows.column_factors is None else rows.column_factors[columns])
            found = np.zeros(len(x))
            found[columns] = values * (1.0 if rows.row_factors is None else rows.row_factors[i])
            found[400:] = rows.constant
            np.testing.assert_allclose(found, x)


@pytest.mark.serial
@pytest.mark.parametrize("n, together", [(0, 1), (1, 1), (4095, 1), (4096, 2), (10_001, 3), (70_001, 16)])
def test_each_pass_visits_each_row_once_in_another_order(n, together):
    random = np.random.default_rng(0)
    first, second = (dual_ascent.random_order(n, random) for _ in range(2))
    assert np.array_equal(np.sort(first), np.arange(n))
    assert n < 2 or not np.array_equal(first, second)
    neighbours = np.mean(np.diff(first) == 1) if n > 1 else 0.0
    assert neighbours == pytest.approx(1 - 1 / together, abs=0.01)


def test_rows_that_it_cannot_have(comm, monkeypatch):
    """The run is the usual one then."""
    objective = problem("sparse", comm)[0]
    objective.features = SideBySide([objective.features])
    settings = Settings(1e-3, 1e-4, solver="lbfgs")
    assert not suits(objective, settings)
    assert ascend(objective, settings, lambda state, w: None) is None
    assert minimize(objective, settings).status is Status.PROVED
    monkeypatch.setattr(dual_ascent, "GATHERED", 1)
    objective = problem("sparse", comm)[0]
    assert (ascend(objective, settings, lambda state, w: None) is None) == (comm.size > 1)
    assert suits(objective, settings) and minimize(objective, settings).status is Status.PROVED


@pytest.mark.serial
def test_numbers_that_are_not_finite():
    objective = problem("sparse", Communicator())[0]
    objective.features.normalize(Normalization("maxabs", np.full(400, 1e200)))
    assert minimize(objective, Settings(1e-5, solver="lbfgs")).status is not Status.PROVED


@pytest.mark.serial
def test_the_solver_goes_on_where_the_ascent_is_slow(monkeypatch):
    monkeypatch.setattr(dual_variables, "SLOW", 0.0)
    monkeypatch.setattr(dual_ascent, "UNCHECKED", 1)
    result = minimize(problem("bias", Communicator())[0], Settings(1e-5, 1e-5, solver="lbfgs"))
    assert result.status is Status.PROVED and result.evaluations > 3


@pytest.mark.parametrize("measure", ["logistic", *MACHINES])
def test_it_hands_its_best_w_to_those_who_watch(measure, comm):
    objective = problem("sparse", comm, measure)[0]
    lam, seen = 1e-6, list[tuple[float, np.ndarray]]()
    settings = Settings(lam, 1e-9, solver="lbfgs", max_evaluations=40)
    minimize(objective, settings, watch=lambda state, w: seen.append((state.best_J, w.copy())))
    if comm.is_root:
        alone = problem("sparse", Communicator(), measure)[0]
        found = asked(alone, [Request(w, 0.0, ElasticNet(lam)) for _, w in seen])
        np.testing.assert_allclose([e.J for e in found], [J for J, _ in seen], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_the_sizes_of_the_rows_bound_rounding(kind, comm):
    """They are bounds for all rows that count; the exact sizes are those of the dense matrix."""
    weights = np.where(np.arange(40) % 5 == 0, 0.0, 1.0)
    objective, X, _ = problem(kind, comm, weights=weights)
    minimize(objective, Settings(1e-3, solver="lbfgs"))
    sizes, kept = objective.row_sizes, X[weights > 0]
    assert sizes.length == pytest.approx(np.linalg.norm(kept, axis=1).max())
    entries = np.full(len(kept), 400) if kind == "dense" else np.count_nonzero(kept[:, :400], axis=1)
    assert sizes.terms == pytest.approx(np.max((entries + 4) * np.linalg.norm(kept, axis=1)))
    rng, features = np.random.default_rng(2), rows_of(kind, data(n=40, p=400)[0][weights > 0].tocsr())
    for w in np.vstack([rng.standard_normal((5, X.shape[1])), kept]):
        assert features.largest_terms(w) <= sizes.margin_terms(np.linalg.norm(w))
    counts = np.count_nonzero(kept, axis=0) + comm.size + 8
    for c in np.vstack([2 * rng.dirichlet(np.full(len(kept), 0.1), 20), 2 * np.eye(len(kept))]):
        of_columns = counts * EPS / 2 * (c @ np.abs(kept))  # the usual bound for each column
        assert np.linalg.norm(of_columns) <= sizes.plane_error()


@pytest.mark.serial
@pytest.mark.parametrize("measure", ["logistic", *MACHINES])
def test_what_rounding_may_do_is_taken_from_its_bounds(measure):
    """However small the target is, they are below what its plane proves in exact arithmetic."""
    for seed in range(12):
        rng, states = np.random.default_rng(seed), []
        X, y = rng.normal(size=(30, 40)), np.where(np.arange(30) % 3, -1, 1).astype(np.int8)
        objective = Objective(DenseRows(X), [make_loss(measure, "gather", y, None, Communicator())], Communicator())
        lam = 10.0 ** (seed % 4 - 2)
        found = ascend(objective, Settings(lam, 1e-17, solver="lbfgs"), noting(states))
        r = np.dot([Fraction(c) for c in found.plane.c.tolist()], np.array([[Fraction(x) for x in row] for row in X]))
        assert states[-1].lower_bound <= Fraction(found.plane.d) - r @ r / (2 * Fraction(lam))


@pytest.mark.parametrize("measure", ["logistic", *MACHINES])
@pytest.mark.parametrize("step", STEPS)
def test_rounding_takes_no_pass_over_rows_of_usual_sizes(measure, step, comm):
    found = []
    for scale in (1.0, 1e7):  # rows of the second size may spoil the proof, so that the usual bounds are needed
        objective = problem("sparse", comm, measure, step=step)[0]
        objective.features.normalize(Normalization("maxabs", np.full(400, scale)))
        assert minimize(objective, Settings(1e-5, solver="lbfgs")).status is Status.PROVED
        found.append((objective.row_sizes is not None, "rounding" in objective.clock.seconds))
    assert found == [(True, False), (False, True)]


@pytest.mark.serial
@pytest.mark.parametrize("lam", [0.3, 12.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_pass_that_finds_the_maximum_of_the_dual(lam, seed):
    """The estimate of the gap may be exactly 0, as on a few dense rows of length 1."""
    X = np.random.default_rng(seed).normal(size=(40, 200))
    rows = DenseRows(X / np.linalg.norm(X, axis=1, keepdims=True))
    y = np.where(np.arange(40) % 3 == 0, 1, -1).astype(np.int8)
    loss = make_loss("prbep", "gather", y, None, Communicator())
    for epsilon in (1e-3, 1e-9):
        found = minimize(Objective(rows, [loss], Communicator()), Settings(lam, epsilon, solver="lbfgs"))
        assert found.status is Status.PROVED
