"""The elastic net: its bound against brute force and rational numbers, its optimum against independent solvers."""

from __future__ import annotations

from fractions import Fraction
from itertools import cycle, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, sparse

from distsms.base.choices import STEPS
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.optim import elastic_planes
from distsms.optim.elastic_planes import ElasticPlanes, interior_point_mixture
from distsms.optim.objective import Request
from distsms.optim.penalty import ElasticNet, soft_threshold
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.optim.solvers.base import SOLVERS, solver_class
from distsms.parallel.vectors import make_vectors
from tests.support.examples import examples
from tests.support.problems import asked, data, objective

ABLE = [name for name in SOLVERS if solver_class(name).traits.l1]


def bundle_of(p, lam, l1, zero_plane=True, capacity=40):
    return ElasticPlanes(
        make_vectors("root", p, Communicator()), ElasticNet(lam, l1), zero_plane=zero_plane, capacity=capacity
    )


@pytest.mark.serial
def test_who_can_and_who_says_that_it_cannot():
    assert set(SOLVERS) - set(ABLE) == {"lmvm"}
    with pytest.raises(InputError, match=r"lmvm cannot minimize l1 .* lbfgs, agm, bmrm"):
        Settings(1.0, l1=0.1, solver="lmvm")
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(InputError, match="l1 is"):
            Settings(1.0, l1=wrong, solver="lbfgs")


@pytest.mark.serial
@pytest.mark.parametrize("lam", [0.0, -1.0, np.nan, np.inf, 1.5e-323, 9e-291])
def test_lambda_must_be_positive(lam):
    with pytest.raises(InputError, match="lambda"):
        ElasticNet(lam)


@pytest.mark.serial
@given(st.floats(1e-6, 1e3), st.one_of(st.just(0.0), st.floats(1e-3, 10)), st.integers(0, 1000))
def test_fenchel(lam, l1, seed):
    """Omega(w) + Omega*(-r) >= -<r, w>, with equality where the conjugate is attained."""
    omega, rng, small = ElasticNet(lam, l1), np.random.default_rng(seed), 1e-12 * (1 + 1 / lam)
    r = rng.normal(size=4)
    conjugate = omega.conjugate(np.sum(soft_threshold(r, l1) ** 2))
    for w in (rng.normal(size=4), omega.minimizer(r)):
        value, gap = omega.value_and_gap(omega.sums(w, r, omega.gradient(w, r)), r @ w)
        assert value == pytest.approx(l1 * np.abs(w).sum() + lam / 2 * w @ w)
        assert gap == pytest.approx(value + conjugate + r @ w, abs=small)
        assert gap >= -small
    assert gap == pytest.approx(0.0, abs=small)
    assert np.array_equal(soft_threshold(np.array([-3.0, 0.5, 1.0]), 1.0), [-2, 0, 0])


def model_minimum(A, b, lam, l1):
    """The minimum of Omega(w) + max_k <a_k, w> + b_k by an independent solver, with w = u - v."""
    p = A.shape[1]

    def value(x):
        w = x[:p] - x[p:-1]
        return l1 * x[:-1].sum() + lam / 2 * w @ w + x[-1]

    def slope(x):
        w = x[:p] - x[p:-1]
        return np.concatenate([l1 + lam * w, l1 - lam * w, [1.0]])

    above = {
        "type": "ineq",
        "fun": lambda x: x[-1] - A @ (x[:p] - x[p:-1]) - b,
        "jac": lambda x: np.hstack([-A, A, np.ones((len(A), 1))]),
    }
    bounds, options = [(0, None)] * (2 * p) + [(None, None)], {"ftol": 1e-14, "maxiter": 2000}
    start = np.append(np.zeros(2 * p), b.max())
    found = optimize.minimize(value, start, jac=slope, bounds=bounds, constraints=above, options=options)
    return found.fun, found.x[:p] - found.x[p:-1]


@pytest.mark.serial
@examples(0.67)
@given(st.integers(1, 5), st.integers(1, 9), st.floats(-2, 1), st.floats(-2, 1), st.integers(0, 10**6))
def test_the_bound_is_the_models_minimum(p, k, lam, l1, seed):
    """Strong duality: all planes together prove just the minimum of their maximum, and the minimizer attains it."""
    rng, lam, l1 = np.random.default_rng(seed), 10.0**lam, 10.0**l1
    A, b = rng.normal(size=(k, p)), rng.random(k)
    bundle = bundle_of(p, lam, l1)
    bounds = [bundle.add(*plane) for plane in zip(A, b, strict=True)]
    least, _ = model_minimum(np.vstack([A, np.zeros(p)]), np.append(b, 0.0), lam, l1)
    assert np.all(np.diff(bounds) >= 0)
    assert bounds[-1] == pytest.approx(least, abs=1e-6)
    w, bound = bundle.minimum()
    highest = max(0.0, (A @ w + b).max())
    assert l1 * np.abs(w).sum() + lam / 2 * w @ w + highest == pytest.approx(bound, abs=1e-6)


@pytest.mark.serial
@given(
    st.integers(1, 4),
    st.integers(2, 10),
    st.sampled_from([2, 3, 40]),
    st.floats(-10, 3),
    st.floats(-8, 3),
    st.floats(0, 7),
    st.integers(0, 10**6),
)
def test_no_bound_above_the_model(p, count, capacity, lam, l1, steep, seed):
    """Steep planes that all but cancel, merged or not: the bound is never above the exact model, wherever that is."""
    rng, lam, l1 = np.random.default_rng(seed), 10.0**lam, 10.0**l1
    bundle, planes, points = bundle_of(p, lam, l1, capacity=capacity), [(np.zeros(p), 0.0)], [np.zeros(p)]
    directions = rng.normal(size=(2, p)) * 10.0**steep

    def model(w):
        w = [Fraction(x) for x in w.tolist()]
        omega = Fraction(l1) * sum(map(abs, w)) + Fraction(lam) / 2 * sum(x * x for x in w)
        heights = (sum(Fraction(x) * y for x, y in zip(r.tolist(), w, strict=True)) + Fraction(d) for r, d in planes)
        return omega + max(heights)

    for k in range(count):
        r = directions[k % 2] * (-1) ** k * rng.uniform(0.5, 2) + rng.normal(size=p) * 10.0 ** rng.uniform(-6, 0)
        planes.append((r, rng.random()))
        bundle.add(*planes[-1])
        points += [bundle.minimum()[0], bundle.level_point(points[-1], 1.0, 0.3)]
        assert Fraction(bundle.lower_bound) <= min(map(model, points))


@pytest.mark.serial
def test_planes_that_are_restored_prove_the_same():
    rng = np.random.default_rng(4)
    bundle, again = bundle_of(6, 0.1, 0.3), bundle_of(6, 0.1, 0.3)
    for _ in range(5):
        bundle.add(rng.normal(size=6), rng.random())
    again.restore(bundle.snapshot())
    assert again.lower_bound == bundle.lower_bound > 0
    np.testing.assert_array_equal(again.minimum()[0], bundle.minimum()[0])
    for planes in (bundle, again):
        planes.add(np.full(6, -0.4), 0.5)
    assert again.lower_bound == bundle.lower_bound


def test_level_points_are_low_and_near():
    """The model at the point is at most the level, and no point between it and the centre is as low."""
    rng, lam, l1 = np.random.default_rng(1), 0.1, 0.2
    A, b = rng.normal(size=(12, 6)), rng.random(12)
    bundle = bundle_of(6, lam, l1)
    for plane in zip(A, b, strict=True):
        bundle.add(*plane)

    def model(w):
        return l1 * np.abs(w).sum() + lam / 2 * w @ w + max(0.0, (A @ w + b).max())

    centre = 3 * rng.normal(size=6)
    level = bundle.lower_bound + 0.3 * (model(centre) - bundle.lower_bound)
    w = bundle.level_point(centre, model(centre), 0.3)
    assert model(w) <= level + 1e-9
    assert np.linalg.norm(w - centre) < np.linalg.norm(bundle.minimum()[0] - centre)


def planes_of_prbep(X, y):
    """All planes of PRBEP's risk: one for each set of n+ rows that are called positive."""
    n, P, planes = len(y), y > 0, []
    for called in product([False, True], repeat=n):
        z = np.array(called)
        if z.sum() == P.sum():
            planes.append((X.T @ (z.astype(float) - P) * 2 / n, (P & ~z).sum() / P.sum()))
    return np.array([r for r, _ in planes]), np.array([d for _, d in planes])


def planes_of_rocarea(X, y):
    """All planes of ROCArea's risk on few rows: one for each set of pairs that count."""
    differences = np.array([X[j] - X[i] for i in np.flatnonzero(y > 0) for j in np.flatnonzero(y < 0)])
    m, chosen = len(differences), product([0.0, 1.0], repeat=len(differences))
    beta = np.array(list(chosen))
    return beta @ differences / m, beta.sum(axis=1) / m


@pytest.mark.parametrize("measure, planes", [("prbep", planes_of_prbep), ("rocarea", planes_of_rocarea)])
def test_the_optimum_is_that_of_an_independent_solver(measure, planes, comm):
    """On so few rows that all planes of the risk can be given to it; also with more ranks than rows."""
    X, y = data(n=7, p=5, seed=2, positive=0.4)
    lam, l1 = 1e-1, 5e-2
    least, w = comm.bcast(model_minimum(*planes(X.toarray(), y), lam, l1) if comm.is_root else None)
    for solver in ABLE:
        most = 200 if solver == "bmrm-linesearch" else 3000
        how = Settings(lam, epsilon=1e-6, l1=l1, solver=solver, max_evaluations=most)
        found = minimize(objective(X, y, comm, measure), how)
        assert found.lower_bound <= least + 1e-9, solver
        if solver == "bmrm-linesearch":  # it is slow
            assert least <= found.J + 1e-9
        else:
            assert found.status is Status.PROVED, solver
            assert found.J == pytest.approx(least, abs=2e-6), solver
            np.testing.assert_allclose(found.w, w, atol=5e-3, err_msg=solver)


MEASURES = ("rocarea", "prbep", "pauc@0.4", "logistic", "normal-auc", "error-rate", "f1")


@pytest.mark.parametrize("measure, step", [*zip(MEASURES, cycle(STEPS)), ("rocarea", "spread")])
def test_every_loss_and_placement(measure, step, comm):
    X, y = data(seed=7)
    results = []
    for solver in ("lbfgs", "agm", "bmrm"):
        if measure == "f1" and solver != "bmrm":
            continue
        how = Settings(1e-2, epsilon=1e-3, l1=2e-2, solver=solver, max_evaluations=2000)
        results.append(minimize(objective(X, y, comm, measure, step=step), how))
        assert results[-1].status is Status.PROVED, (solver, results[-1])
    least, bound = min(result.J for result in results), max(result.lower_bound for result in results)
    assert bound <= least + 1e-12
    assert all(result.J - result.gap <= least for result in results)
    w = results[0].w
    assert 0 < np.count_nonzero(w) < len(w) + (measure == "f1")  # whose optimum has no zero here
    assert comm.allgather(w.tobytes()) == [w.tobytes()] * comm.size


def test_an_evaluation_is_that_of_the_elastic_net(comm):
    X, y = data(seed=3)
    rng = np.random.default_rng(0)
    w = np.where(rng.random(X.shape[1]) < 0.5, 0.0, rng.normal(size=X.shape[1]))
    problem, plain = objective(X, y, comm), objective(X, y, comm)
    found = asked(problem, [Request(w, 0.1, ElasticNet(0.3, 0.2))])
    bare = asked(plain, [Request(w, 0.1, ElasticNet(1e-280, 1e-280))])
    if found is not None:
        omega = 0.2 * np.abs(w).sum() + 0.15 * w @ w
        assert found[0].J == pytest.approx(bare[0].R + omega, rel=1e-12)
        assert found[0].J_mu == pytest.approx(bare[0].R_mu + omega, rel=1e-12)
        np.testing.assert_allclose(found[0].gradient, bare[0].r + 0.3 * w, rtol=1e-12, atol=1e-15)
        excess = soft_threshold(bare[0].r, 0.2)
        own = bare[0].d - excess @ excess / 0.6  # the bound of this plane alone
        gaps = found[0].smoothing_gap + found[0].optimization_gap
        assert gaps == pytest.approx(found[0].J - own, rel=1e-9)


@pytest.mark.serial
@pytest.mark.parametrize("l1, lam", [(2e-2, 1e-2), (5e-3, 1e-4)])
def test_logistic_regression_is_scikit_learns(l1, lam):
    """SAGA on the same columns. Its C multiplies the sum of the losses."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    X, y = data(n=150, p=8, seed=5)
    X = np.hstack([X.toarray(), np.ones((150, 1))])  # a constant column is penalized like the others
    C = 1 / (len(y) * (l1 + lam))
    other = linear_model.LogisticRegression(
        solver="saga", l1_ratio=l1 / (l1 + lam), C=C, fit_intercept=False, tol=1e-9, max_iter=100_000
    ).fit(X, y)
    w = other.coef_[0]
    theirs = np.logaddexp(0, -y * (X @ w)).mean() + l1 * np.abs(w).sum() + lam / 2 * w @ w
    how = Settings(lam, epsilon=1e-8, l1=l1, solver="lbfgs")
    found = minimize(objective(sparse.csr_matrix(X), y, Communicator(), "logistic"), how)
    assert found.status is Status.PROVED
    assert found.lower_bound <= theirs
    assert found.J == pytest.approx(theirs, abs=1e-7)
    assert np.array_equal(found.w == 0, w == 0)


@pytest.mark.serial
def test_zeros_are_exact_and_a_large_l1_leaves_nothing():
    X, y = data(seed=1)
    w, nonzeros = None, []
    for l1 in (3.0, 5e-2, 1e-2, 1e-3):
        found = minimize(objective(X, y, Communicator()), Settings(1e-3, l1=l1, solver="lbfgs"), w)
        w = found.w
        nonzeros.append(np.count_nonzero(w))
        assert found.status is Status.PROVED
    assert nonzeros[0] == 0
    assert nonzeros == sorted(nonzeros)
    assert nonzeros[1] < X.shape[1]


def unequal_columns(seed):
    """Return rows of which some columns are amounts of money, tiny, or copies of others times large numbers."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.choice([4, 20, 60])), int(rng.choice([3, 8]))
    X = rng.normal(size=(n, p))
    y = np.where(X[:, 0] + rng.normal(size=n) > np.quantile(X[:, 0], 0.8), 1, -1).astype(np.int8)
    y[:2] = 1, -1
    if seed % 3 == 0:
        X[:, 0] = np.exp(rng.normal(9, 2, n))
    elif seed % 3 == 1:
        X = np.hstack([X, X, X * 10.0 ** rng.integers(-8, 9)])
    else:
        X *= 10.0 ** rng.uniform(-4, 6, X.shape[1])
    return sparse.csr_matrix(X), y


@pytest.mark.serial
@pytest.mark.parametrize(
    "measure, seed",
    [
        pytest.param(measure, seed, marks=[] if first == seed else pytest.mark.slow)
        for measure, first in (("rocarea", 8), ("prbep", 28), ("normal-auc", 48))
        for seed in (8, 28, 48)
    ],
)
def test_columns_of_very_different_size_are_proved(measure, seed):
    """With Newton steps on the active columns alone, hardly any of these problems is proved: the bound stays near 0."""
    X, y = unequal_columns(seed)
    settings = Settings(10.0 ** -(3 + seed % 5), l1=(0.01, 0.1, 1.0)[seed % 3], solver="lbfgs", max_evaluations=150)
    result = minimize(objective(X, y, Communicator(), measure), settings)
    assert result.status is Status.PROVED, result.detail


@pytest.mark.serial
def test_usual_columns_need_no_interior_points(monkeypatch):
    """Newton steps, many of which end before the next mixture, lead to a w that attains the bound."""
    monkeypatch.setattr(elastic_planes, "interior_point_mixture", None)
    lam, l1 = 0.1, 0.3
    for seed in range(6):
        rng, bundle = np.random.default_rng(seed), bundle_of(6, lam, l1)
        A, b = rng.normal(size=(12, 6)), rng.random(12)
        for r, d in zip(A, b, strict=True):
            bundle.add(r, d, tolerance=1e-6)
        w, bound = bundle.minimum()
        assert l1 * np.abs(w).sum() + lam / 2 * w @ w + max(0.0, (A @ w + b).max()) == pytest.approx(bound, abs=1e-7)


@pytest.mark.serial
@pytest.mark.parametrize("spread, most", [(0, 1e-6), (4, 1e-4), (8, 1e-2)])
def test_interior_points_enclose_the_best_mixture(spread, most):
    """No mixture has a higher value than the w that is returned with it, in rational numbers; both nearly agree."""
    for seed in range(15):
        rng, (k, p) = np.random.default_rng(seed), (12, 5)
        lam, l1, sizes = 10.0 ** rng.uniform(-6, 0), 10.0 ** rng.uniform(-2, 0), 10.0 ** rng.uniform(0, spread, p)
        planes = np.vstack([rng.normal(size=(k - 1, p)) * sizes * 10.0 ** -rng.uniform(0, 3, (k - 1, 1)), np.zeros(p)])
        d, shift = np.append(rng.random(k - 1), 0.0), rng.normal(size=p) * lam
        vectors = make_vectors("root", p, Communicator())
        alpha, w, gap = interior_point_mixture(vectors, planes, d, shift, l1, lam, 1e-9)
        exact = [[Fraction(x) for x in row] for row in planes.tolist()]
        a, v, s = ([Fraction(x) for x in values.tolist()] for values in (alpha / alpha.sum(), w, shift))
        m = [sum(a[i] * exact[i][j] for i in range(k)) / sum(a) - s[j] for j in range(p)]
        below = sum(x * Fraction(y) for x, y in zip(a, d.tolist(), strict=True)) / sum(a)
        below -= sum(max(abs(x) - Fraction(l1), 0) ** 2 for x in m) / (2 * Fraction(lam))
        above = max(
            sum(x * y for x, y in zip(row, v, strict=True)) + Fraction(c)
            for row, c in zip(exact, d.tolist(), strict=True)
        )
        above += sum(Fraction(l1) * abs(x) + Fraction(lam) / 2 * x * x - x * y for x, y in zip(v, s, strict=True))
        assert below <= above
        assert float(above - below) == pytest.approx(gap, abs=1e-9)
        assert gap <= most
