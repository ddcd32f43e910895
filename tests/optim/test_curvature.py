"""The matrix of second derivatives of ROCArea, the change of variables that it gives, and when it is used."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

from distsms.base.communicator import Communicator
from distsms.base.memory import Memory
from distsms.losses.registry import make_loss
from distsms.matrix.augmented import with_bias
from distsms.matrix.local import DenseRows, SparseRows
from distsms.matrix.normalization import Normalization
from distsms.optim import curvature, run
from distsms.optim.objective import Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import CURVED, Settings
from distsms.parallel.vectors import make_vectors
from tests.support.problems import noting, share

KINDS = ("sparse", "dense", "bias", "normalized")


def rows_of(kind, X):
    if kind == "dense":
        return DenseRows(X.toarray())
    rows = SparseRows.of(X)
    if kind == "normalized":
        rows.normalize(Normalization("maxabs", 1.0 + np.arange(X.shape[1])))
        rows.row_factors = np.linspace(0.5, 1.5, X.shape[0])
    return with_bias(rows, 2.0) if kind == "bias" else rows


@functools.cache
def draw(n, p):
    """Return rows whose columns have very different sizes, and noisy labels."""
    rng = np.random.default_rng(3)
    X = scipy.sparse.random(n, p, 0.6, "csr", random_state=rng, data_rvs=rng.standard_normal) @ scipy.sparse.diags(
        np.logspace(0, -2, p)
    )
    y = X @ rng.standard_normal(p) * 3 + rng.standard_normal(n) > 0.7
    return X.tocsr(), np.where(y, 1, -1).astype(np.int8)


def problem(kind, comm, n=600, p=20, measure="rocarea", weights=None):
    X, y = draw(n, p)
    here = share(comm, n)
    loss = make_loss(measure, "exchange", y[here], None if weights is None else weights[here], comm)
    features = rows_of(kind, X[here])
    return Objective(features, [loss], comm, vectors=make_vectors("root", features.shape[1], comm))


@pytest.mark.serial
@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_squares(kind):
    """The matrix is that of NumPy on the dense rows; rows that are left out do not count."""
    objective = problem(kind, Communicator(), n=50, p=7)
    features, p = objective.features, objective.p
    dense = np.column_stack([features.margins(np.eye(p)[j]) for j in range(p)])
    sample, weights = np.arange(0, 50, 3), np.linspace(0, 1, 17)
    mean, matrix = np.zeros(p), np.zeros((p, p))
    curvature.add_squares(features.row_entries(sample), weights, mean, matrix)
    np.testing.assert_allclose(mean, weights @ dense[sample], rtol=1e-12, atol=1e-14)
    expected = (dense[sample] * weights[:, None]).T @ dense[sample]
    np.testing.assert_allclose(np.tril(matrix), np.tril(expected), rtol=1e-12, atol=1e-14)


@pytest.mark.serial
@pytest.mark.parametrize("n", [1, 2, 5, 400])
def test_slopes_are_those_of_the_function(n):
    s = np.sort(np.random.default_rng(0).normal(size=n))
    found = curvature.slopes(s, 3 * s - 1)
    np.testing.assert_allclose(found, 3.0 if n > 1 else 0.0, rtol=1e-9)
    tied = np.round(s, 1)  # a slope is never that between equal scores
    np.testing.assert_allclose(curvature.slopes(tied, 3 * tied), 3.0 if len(set(tied)) > 1 else 0.0, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_is_near_the_second_derivatives(kind, comm):
    """Along random directions, L L' is about what finite differences of the gradient give."""
    objective = problem(kind, comm, n=3000)
    lam, nu, p = 1e-3, 0.5, objective.p
    if not objective.vectors.runs_solver:
        objective.serve()
        return
    rng = np.random.default_rng(1)
    w = 0.3 * rng.standard_normal(p)
    L = curvature.factor(objective.curvature(w, nu), p, lam, np.zeros(p))
    ratios = []
    for v in rng.standard_normal((20, p)):
        h = 1e-4 * v
        high, low = (objective.evaluate([Request(x, nu, ElasticNet(lam))])[0].gradient for x in (w + h, w - h))
        ratios.append(np.sum((v @ L) ** 2) / (v @ (high - low) / 2e-4))
    objective.release()
    assert 0.5 < min(ratios) and max(ratios) < 2.5, ratios


class Quadratic:
    """f(w) = ||A w||^2 / 2 - <b, w>."""

    strong_convexity, holders, dot = 1.0, None, staticmethod(np.dot)

    def __init__(self):
        self.A, self.b = np.random.default_rng(5).normal(size=(2, 6, 6))[0] + 3 * np.eye(6), np.arange(6.0)

    def value_and_gradient(self, w):
        return 0.5 * np.sum((self.A @ w) ** 2) - self.b @ w, self.A.T @ self.A @ w - self.b

    def model_minimum(self):
        return np.linalg.solve(self.A.T @ self.A, self.b), 7.0

    def iterated(self):
        return True


@pytest.mark.serial
def test_the_change_of_variables():
    """With the exact matrix, the gradient is u minus a constant; one step along it leads to the minimum."""
    problem = Quadratic()
    turned = curvature.Preconditioned(problem, np.linalg.cholesky(problem.A.T @ problem.A))
    u = turned.variables(np.ones(6))
    assert turned.value_and_gradient(u)[0] == pytest.approx(problem.value_and_gradient(np.ones(6))[0])
    minimum, value = turned.model_minimum()
    np.testing.assert_allclose(u - turned.value_and_gradient(u)[1], minimum, atol=1e-9)
    assert value == 7.0 and turned.iterated() and turned.strong_convexity < 1


@pytest.mark.parametrize("solver, weighted", [("lbfgs", True), ("lmvm", False)])
def test_it_takes_fewer_evaluations_to_the_same_minimum(solver, weighted, comm, monkeypatch):
    if solver == "lmvm":
        pytest.importorskip("petsc4py")
    weights = np.where(np.arange(4000) % 7 == 0, 0.0, 1.0 + np.arange(4000) % 3) if weighted else None
    found, settings = {}, Settings(1e-6, 1e-4, 1e-2, solver=solver)
    for used in (False, True):
        with monkeypatch.context() as patch:
            if not used:
                patch.setattr(run, "curvature_due_after", lambda objective, settings: 0)
            states, objective = [], problem("sparse", comm, n=4000, p=40, weights=weights)
            found[used] = minimize(objective, settings, watch=noting(states))
            assert found[used].status is Status.PROVED
            assert ("curvature" in objective.clock.seconds) == used
            if objective.vectors.runs_solver:
                assert [state.evaluation for state in states] == list(range(1, len(states) + 1))
    assert found[True].evaluations < 0.8 * found[False].evaluations
    assert found[True].lower_bound <= found[False].J and found[False].lower_bound <= found[True].J


@pytest.mark.parametrize("solver", ["lbfgs", "lmvm"])
def test_a_run_that_was_cut_after_it_estimates_it_anew(solver, comm):
    """It goes on from the best w and the planes of the snapshot, and the whole takes few evaluations more."""
    if solver == "lmvm":
        pytest.importorskip("petsc4py")
    settings = Settings(1e-6, 1e-4, 1e-2, solver=solver, checkpoint_every=1e9)
    whole = minimize(problem("sparse", comm, n=4000, p=40), settings)
    kept = []
    cut = minimize(problem("sparse", comm, n=4000, p=40), replace(settings, max_evaluations=9), keep=kept.append)
    assert cut.status is Status.LIMIT
    objective = problem("sparse", comm, n=4000, p=40)
    resumed = minimize(objective, settings, snapshot=comm.bcast(kept[-1] if comm.is_root else None))
    assert resumed.status is Status.PROVED and "curvature" in objective.clock.seconds
    assert whole.evaluations > 9 and resumed.evaluations <= whole.evaluations + 9
    assert resumed.lower_bound <= whole.J and whole.lower_bound <= resumed.J
    if comm.is_root:
        assert kept[-1].numbers["turned"] and not any(name.startswith("solver") for name in kept[-1].vectors)


@pytest.mark.serial
def test_who_has_none():
    def due(objective, **how):
        return run.curvature_due_after(objective, Settings(1e-6, **{"solver": "lbfgs", **how}))

    alone = Communicator()
    objective = problem("sparse", alone)
    assert due(objective) >= curvature.FIRST
    for how in ({"solver": "bmrm"}, {"solver": "agm"}, {"l1": 0.1}, {"c_mu": 1.0}):
        assert due(objective, **how) == 0
    assert due(problem("sparse", alone, measure="prbep")) == 0
    assert due(problem("sparse", alone, n=39)) == 0  # fewer than two rows for each column
    assert Settings(1e-6).curvature_held(600, 20, 2, 6000) == Memory(CURVED * 300 + 24 * 400)
    assert Settings(1e-6).curvature_held(600, 20, 2, 4000) == Memory()  # short rows


@pytest.mark.serial
def test_rows_that_are_much_alike_have_no_curvature():
    objective = problem("dense", Communicator(), n=600)
    features = DenseRows(np.repeat(np.eye(20)[:3] + 0.5, 200, axis=0))
    alike = Objective(features, objective.losses, objective.comm)
    sums = alike.curvature(np.arange(20.0), 0.1)
    assert sums[0] == np.inf and curvature.factor(sums, 20, 1e-3, np.ones(20)) is None


@pytest.mark.serial
@pytest.mark.parametrize("size", [1e100, 1e160, 1e-200])
def test_numbers_beyond_the_usual_range_give_no_matrix_or_a_finite_one(size):
    X = np.random.default_rng(0).normal(size=(50, 3)) * np.array([size, 1.0, 1 / size])
    with np.errstate(over="ignore"):
        sums, moments = np.concatenate([[50.0], X.sum(0), (X.T @ X).ravel()]), np.mean(X**2, axis=0)
    found = curvature.factor(sums, 3, 1e-6, moments)
    assert found is None or np.isfinite(np.linalg.inv(found)).all()


@pytest.mark.parametrize("scale", [1e-30, 1e4])
def test_columns_of_very_different_sizes_are_proved(scale, comm):
    X, y = draw(600, 20)
    X = (X @ scipy.sparse.diags(np.where(np.arange(20) % 3 == 0, scale, 1.0))).tocsr()
    here = share(comm, 600)
    loss = make_loss("rocarea", "exchange", y[here], None, comm)
    objective = Objective(SparseRows.of(X[here]), [loss], comm, vectors=make_vectors("root", 20, comm))
    assert minimize(objective, Settings(1e-4, 1e-3, solver="lbfgs", max_evaluations=500)).status is Status.PROVED


@pytest.mark.serial
def test_when_more_evaluations_are_expected():
    assert curvature.pays(5, 0.4, 1e-3) and not curvature.pays(5, 2e-3, 1e-3) and not curvature.pays(5, 0.0, 1e-3)
    assert curvature.pays(curvature.LATEST, 2e-3, 1e-3) and curvature.pays(5, 2.0, 1e-3)
