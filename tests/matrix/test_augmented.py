"""`WithBias` gives the same results as a constant column appended by hand, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.measures import Measure
from distsms.matrix.augmented import WithBias, split_bias
from distsms.optim.objective import Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from tests.matrix.test_local import assert_most_terms, build, cases
from tests.support import oracles
from tests.support.problems import asked, data, objective


def by_hand(X, value):
    """Return X with the constant as its last column."""
    return sparse.hstack([X, np.full((X.shape[0], 1), value)]).tocsr()


def with_constant(X, y, comm, measure, value):
    """Return the objective of this rank's rows with the constant column."""
    plain = objective(X, y, comm, measure)
    return Objective(WithBias(plain.features, value), plain.losses, comm)


@pytest.mark.serial
@given(cases, st.sampled_from([1e-3, 1.0, 700.0]), st.sampled_from([None, 1, 3]))
def test_products_are_those_of_a_column_by_hand(case, value, k):
    features, array, rng = build(case)
    wrapped, whole = WithBias(features, value), np.c_[array, np.full(len(array), value)]
    several = () if k is None else (k,)
    W, C = rng.normal(size=(*several, whole.shape[1])), rng.normal(size=(*several, len(whole)))
    margins, gradient = wrapped.margins(W), wrapped.transposed_times(C)
    assert wrapped.shape == whole.shape
    np.testing.assert_allclose(margins, W @ whole.T, atol=1e-12 * (1 + value))
    np.testing.assert_allclose(gradient, C @ whole, atol=1e-12 * (1 + value))
    into = np.empty_like(margins), np.empty_like(gradient)
    assert wrapped.margins(W, into[0]) is into[0] and wrapped.transposed_times(C, into[1]) is into[1]
    np.testing.assert_array_equal(np.concatenate([out.ravel() for out in into]), [*margins.ravel(), *gradient.ravel()])
    assert np.sum(margins * C) == pytest.approx(np.sum(W * gradient), rel=1e-10, abs=1e-10 * (1 + value))
    np.testing.assert_allclose(wrapped.columns().squares, (whole**2).sum(axis=0), rtol=1e-12, atol=1e-12)
    weights = rng.uniform(0, 3, len(whole))
    np.testing.assert_allclose(wrapped.columns(weights).squares, weights @ whole**2, rtol=1e-12, atol=1e-12)


@pytest.mark.serial
@given(cases, st.sampled_from([1e-3, 0.3, 1e9]))
def test_what_rounding_bounds_are_made_of(case, value):
    """`largest_terms` bounds the error of each margin; `columns` describes the plain rows' columns and the constant."""
    features, array, rng = build(case)
    wrapped, w = WithBias(features, value), rng.normal(size=array.shape[1] + 1)
    exact = [oracles.rational(np.append(row, value)) @ oracles.rational(w) for row in array]
    errors = [abs(float(a - b)) for a, b in zip(oracles.rational(wrapped.margins(w)), exact, strict=True)]
    assert max(errors, default=0.0) <= np.finfo(float).eps / 2 * wrapped.largest_terms(w)
    assert_most_terms(wrapped, np.c_[array, np.full(len(array), value)], w)
    constant = value * (len(array) > 0), len(array), value**2 * len(array)
    for found, plain, last in zip(wrapped.columns(), features.columns(), constant, strict=True):
        np.testing.assert_array_equal(found[:-1], plain)
        assert found[-1] == last


@pytest.mark.parametrize("measure", ["rocarea", "prbep", "error-rate", "logistic", "f1", "precision@9"])
def test_evaluations_and_models_are_those_of_a_column_by_hand(measure, comm):
    X, y = data(seed=6)
    rng, lam, value = np.random.default_rng(0), 0.05, 0.7
    solver, nu = ("lmvm", 0.3) if Measure.parse(measure).family.smooth else ("bmrm", 0.0)
    requests = [Request(rng.normal(size=X.shape[1] + 1), nu, ElasticNet(lam)) for _ in range(3)]
    wrapped = with_constant(X, y, comm, measure, value)
    found = asked(wrapped, requests)
    if comm.is_root:
        expected = asked(objective(by_hand(X, value), y, Communicator(), measure), requests)
        for result, other in zip(found, expected, strict=True):
            assert result.J == pytest.approx(other.J, rel=1e-12)
            np.testing.assert_allclose(result.gradient, other.gradient, atol=1e-12)
            if measure in ("rocarea", "prbep"):
                assert abs(result.r[-1]) <= 1e-12
    settings = Settings(lam=lam, epsilon=1e-4, solver=solver)
    ours = minimize(wrapped, settings)
    theirs = minimize(objective(by_hand(X, value), y, comm, measure), settings)
    assert ours.status is theirs.status is Status.PROVED
    assert ours.J == pytest.approx(theirs.J, abs=1e-4)
    if measure in ("rocarea", "prbep"):
        assert abs(ours.w[-1]) <= 1e-12
    elif measure in ("error-rate", "logistic"):
        assert ours.J < minimize(objective(X, y, comm, measure), settings).lower_bound  # it is of use


@pytest.mark.serial
def test_gradient_by_finite_differences():
    X, y = data()
    w, h, omega = np.random.default_rng(1).normal(size=X.shape[1] + 1), 1e-6, ElasticNet(0.1)
    problem = with_constant(X, y, Communicator(), "error-rate", 2.5)
    at = problem.evaluate([Request(w, 0.5, omega)])[0]
    for i, step in enumerate(h * np.eye(len(w))):
        up, down = problem.evaluate([Request(w + step, 0.5, omega), Request(w - step, 0.5, omega)])
        assert at.gradient[i] == pytest.approx((up.J_mu - down.J_mu) / (2 * h), abs=1e-6)


@pytest.mark.serial
@pytest.mark.parametrize("value", [None, 2.0])
def test_no_coefficient_is_minus_zero(value):
    w, bias = split_bias(np.array([-0.0, 1.0, -0.0]), value)
    assert not np.signbit([*w, bias]).any() and w[1] == 1 and bias == 0


@pytest.mark.serial
def test_a_constant_beyond_its_square():
    """The constant's second moment is infinite, and no column is scaled by it."""
    X, y = data(n=20)
    assert np.isinf(WithBias(objective(X, y, Communicator()).features, 1e300).columns().squares[-1])
