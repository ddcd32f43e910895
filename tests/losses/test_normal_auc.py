"""The pairwise square agrees with brute force over pairs, with its closed minimum, and is the same on all ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.losses.registry import make_loss
from distsms.metrics.ranking import normal_auc
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from tests.support.problems import data, local_part, objective, problems

ALONE = Communicator()


def build(labels, comm=ALONE, weights=None):
    return make_loss("normal-auc", "gather", np.asarray(labels, np.int8), weights, comm)


def by_pairs(scores, labels, weights=None):
    """Return R by all pairs, in extended precision."""
    s, a = scores.astype(np.longdouble), np.ones(len(scores)) if weights is None else weights
    P, N = labels > 0, labels < 0
    return np.sum(np.outer(a[P], a[N]) * (1 - (s[P][:, None] - s[N])) ** 2) / (2 * a[P].sum() * a[N].sum())


@pytest.mark.serial
@given(problem=problems(max_rows=25), seed=st.integers(0, 10))
def test_it_is_the_mean_over_pairs_and_its_planes_are_below(problem, seed):
    scores, labels, nu = problem
    rng, size = np.random.default_rng(seed), 1 + np.abs(scores).max()
    for weights in (None, rng.uniform(0.5, 3, len(labels))):
        loss = build(labels, weights=weights)
        value = loss.evaluate(scores, nu)
        assert value.R == value.R_mu == pytest.approx(float(by_pairs(scores, labels, weights)), rel=1e-9, abs=1e-14)
        rounding = 1e-14 * size * size
        assert value.coefficients @ scores + value.d == pytest.approx(value.R, rel=1e-9, abs=rounding)
        assert abs(value.coefficients.sum()) <= 1e-14 * (1 + np.abs(value.coefficients).sum())
        assert np.abs(value.coefficients).sum() <= 2 * np.sqrt(value.R / loss.planes_up_to) * (1 + 1e-9)
        for other in (scores + rng.normal(size=len(scores)), rng.normal(size=len(scores)) * size, 0 * scores):
            slack = 1e-13 * (size + np.abs(other).max()) ** 2
            assert value.coefficients @ other + value.d <= loss.evaluate(other, 0.0).R * (1 + 1e-9) + slack


@pytest.mark.serial
def test_coefficients_are_the_gradient():
    rng = np.random.default_rng(0)
    labels, scores, h = np.where(np.arange(20) % 3, -1, 1), rng.normal(size=20), 1e-6
    loss = build(labels, weights=rng.uniform(0.5, 2, 20))
    coefficients = loss.evaluate(scores, 0.0).coefficients
    for i, step in enumerate(h * np.eye(20)):
        slope = (loss.evaluate(scores + step, 0.0).R - loss.evaluate(scores - step, 0.0).R) / (2 * h)
        assert coefficients[i] == pytest.approx(slope, abs=1e-9)


@pytest.mark.parametrize("n", [2, 5, 200])
def test_ranks_do_not_matter(n, comm):
    rng = np.random.default_rng(n)
    labels, scores = np.where(np.arange(n) % 3, -1, 1), 1e3 + rng.normal(size=n)
    weights = np.where(np.arange(n) % 7 == 4, 0.0, rng.uniform(0.5, 2, n))
    for a in (None, weights):
        mine = None if a is None else local_part(a, comm)
        alone, loss = build(labels, weights=a).evaluate(scores, 0.0), build(local_part(labels, comm), comm, mine)
        found = loss.evaluate(local_part(scores, comm), 0.0)
        np.testing.assert_allclose(found[:3], alone[:3], rtol=1e-11)
        np.testing.assert_allclose(found.coefficients, local_part(alone.coefficients, comm), atol=1e-12)
    for bad in (np.nan, np.inf):
        broken = loss.evaluate(local_part(np.where(np.arange(n) == n - 1, bad, scores), comm), 0.0)
        assert np.isnan(broken[:3]).all() and not broken.coefficients.any()


@pytest.mark.parametrize("solver", ["lbfgs", "agm", "bmrm"])
@pytest.mark.parametrize("lam", [1e-1, 1e-3])
def test_the_minimum_is_the_closed_one(solver, lam, comm):
    """u = (S + lambda I)^-1 (m+ - m-): w = u / (1 + u'(m+ - m-)), and J = 1/2 / (1 + u'(m+ - m-)) there."""
    X, y = data(200, 8)
    rows = X.toarray()
    delta = rows[y > 0].mean(axis=0) - rows[y < 0].mean(axis=0)
    S = sum(np.cov(rows[y == sign], rowvar=False, bias=True) for sign in (1, -1))
    u = np.linalg.solve(S + lam * np.eye(8), delta)
    found = minimize(objective(X, y, comm, "normal-auc"), Settings(lam, 1e-6, solver=solver))
    assert found.status is Status.PROVED and found.J_at_zero == 0.5
    least = 0.5 / (1 + u @ delta)
    assert found.lower_bound <= least <= found.J <= least + 1e-6
    np.testing.assert_allclose(found.w, u / (1 + u @ delta), atol=np.sqrt(2 * 1e-6 / lam))


def test_the_measure_is_that_of_normal_scores(comm):
    rng = np.random.default_rng(1)
    labels = np.where(rng.random(300) < 0.3, 1, -1)
    scores, weights = rng.normal(size=300) + (labels > 0), rng.integers(1, 4, 300)
    repeated, of_rows = np.repeat(scores, weights), np.repeat(labels, weights)
    P, N = repeated[of_rows > 0], repeated[of_rows < 0]
    expected = stats.norm.cdf((P.mean() - N.mean()) / np.sqrt(P.var() + N.var()))
    mine = Scored(*(local_part(each, comm) for each in (scores, labels)), comm, local_part(weights.astype(float), comm))
    assert normal_auc(mine) == pytest.approx(expected, rel=1e-12)
    apart = 2.0 * mine.labels  # both classes have the variance 0
    assert (normal_auc(replace(mine, scores=apart)), normal_auc(replace(mine, scores=-apart))) == (1.0, 0.0)
    assert normal_auc(replace(mine, scores=0 * mine.scores)) == 0.5
    assert np.isnan(normal_auc(Scored(mine.scores, 0 * mine.labels + 1, comm)))


@pytest.mark.serial
@pytest.mark.parametrize("size", [1e146, 1e200])
@pytest.mark.parametrize("settings", [{"solver": "lbfgs"}, {"solver": "bmrm"}, {"solver": "agm", "l1": 0.1}])
def test_squares_that_overflow_end_in_words(size, settings):
    X, y = data(n=20, p=3)
    found = minimize(objective(X * size, y, Communicator(), "normal-auc"), Settings(1e-4, 1e-3, **settings))
    assert found.status in (Status.NONFINITE, Status.ROUNDING)
