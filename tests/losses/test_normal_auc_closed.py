"""The closed form is the minimum, its bound is below that in rational arithmetic, and it is taken where it pays."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from distsms.matrix.arrays import as_features
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.training.normal_auc_closed import bytes_of_moments, solve
from tests.support.problems import data, objective

pytestmark = pytest.mark.serial


def classes(rows, y, weights=None):
    return as_features(rows).moments((y < 0).astype(np.int16), 2, weights)


def exact_minimum(rows, y, a, lam):
    """Return min J = 1 / (2 (1 + delta' (S + lambda I)^-1 delta)) in rational numbers."""
    exact = [[Fraction(float(x)) for x in row] for row in rows]
    p, means, S = len(exact[0]), [], [[Fraction(0)] * len(exact[0]) for _ in exact[0]]
    for sign in (1, -1):
        own = [(Fraction(float(w)), row) for row, w, label in zip(exact, a, y, strict=True) if label == sign]
        total = sum(w for w, _ in own)
        mean = [sum(w * row[j] for w, row in own) / total for j in range(p)]
        means.append(mean)
        for j in range(p):
            for k in range(p):
                S[j][k] += sum(w * (row[j] - mean[j]) * (row[k] - mean[k]) for w, row in own) / total
    delta = [one - other for one, other in zip(*means, strict=True)]
    M = [[S[j][k] + (Fraction(lam) if j == k else 0) for k in range(p)] + [delta[j]] for j in range(p)]
    for j in range(p):  # elimination; M is positive definite, so no pivot is 0
        for i in range(p):
            if i != j:
                factor = M[i][j] / M[j][j]
                M[i] = [x - factor * z for x, z in zip(M[i], M[j], strict=True)]
    return 1 / (2 * (1 + sum(M[j][p] / M[j][j] * delta[j] for j in range(p))))


@example(n=3, p=2, lam=1e-8, size=1e4, offset=0.0, seed=0)  # J is almost 0, and rounding would say less
@given(
    n=st.integers(2, 12),
    p=st.integers(1, 3),
    lam=st.sampled_from([1e-8, 1e-3, 1.0]),
    size=st.sampled_from([1e-6, 1.0, 1e4]),
    offset=st.sampled_from([0.0, 1.0, 1e3]),
    seed=st.integers(0, 999),
)
def test_the_bound_is_below_the_exact_minimum_and_J_is_not(n, p, lam, size, offset, seed):
    rng = np.random.default_rng(seed)
    rows, y = size * (offset + rng.integers(-3, 4, (n, p)) / 3), np.where(np.arange(n) % 2, -1, 1)
    a = rng.integers(1, 4, n) / 3
    found, least = solve(classes(rows, y, a), lam), exact_minimum(rows, y, a, lam)
    assert Fraction(found.lower_bound) <= least <= Fraction(found.lower_bound) + Fraction(found.gap)
    if offset * size <= 1:
        assert found.gap <= 1e-9
    if np.isfinite(found.gap):  # J is that of w, up to rounding, which the gap includes
        s, P = rows @ found.w, y > 0
        pairs = np.outer(a[P], a[~P]) * (1 - (s[P][:, None] - s[~P])) ** 2
        J = 0.5 * pairs.sum() / (a[P].sum() * a[~P].sum()) + 0.5 * lam * found.w @ found.w
        assert J == pytest.approx(found.J, abs=found.gap + 1e-9 * (1 + (offset * size) ** 2))


@pytest.mark.parametrize("lam", [1e-1, 1e-4])
def test_it_is_what_the_solvers_find(lam, comm):
    X, y = data(200, 8)
    found, other = solve(classes(X, y), lam), minimize(objective(X, y, comm, "normal-auc"), Settings(lam, 1e-7))
    assert found.gap < 1e-12
    assert other.lower_bound <= found.J <= other.J + 1e-12
    np.testing.assert_allclose(found.w, other.w, atol=2 * np.sqrt(2e-7 / lam))


def test_it_is_fishers_direction_where_both_covariances_are_equal():
    """With equal covariances and classes, and no lambda, the direction is that of linear discriminant analysis."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(300, 4)) @ rng.normal(size=(4, 4))
    rows, y = np.vstack([noise + np.array([1, 0, -1, 2]), noise]), np.repeat([1, -1], 300)
    w = solve(classes(rows, y), 1e-9).w
    fisher = LinearDiscriminantAnalysis(solver="lsqr").fit(rows, y).coef_[0]
    assert w @ fisher == pytest.approx(np.linalg.norm(w) * np.linalg.norm(fisher), rel=1e-9)


def test_what_is_not_finite_is_not_proved():
    y = np.array([1, -1, 1, -1])
    for rows in (np.full((4, 2), 1e200), np.array([[1e160], [-1e160], [1.0], [0.0]]), np.array([[np.nan]] * 4)):
        assert not solve(classes(rows, y), 1e-3).gap < 0.4


def test_the_rule_takes_few_columns_and_short_rows():
    assert bytes_of_moments("normal-auc", 32561, 123, 451592, False)
    assert not bytes_of_moments("normal-auc", 32561, 123, 451592, True)
    assert not bytes_of_moments("rocarea", 32561, 123, 451592, False)
    assert not bytes_of_moments("normal-auc", 10_000, 1_000_000, 10**6, False)  # p^2 numbers do not fit
    assert not bytes_of_moments("normal-auc", 62, 2000, 62 * 2000, False)  # p^3 / 3 is more than all products
    assert bytes_of_moments("normal-auc", 10**6, 1000, 10**9, False, 6)
    assert not bytes_of_moments("normal-auc", 10**6, 1000, 10**9, False, 1)
    assert not bytes_of_moments("normal-auc", 0, 0, 0, False)
    assert not bytes_of_moments("normal-auc", 32561, 123, 451592, False, l1=1e-9)  # the elastic net has no closed form
