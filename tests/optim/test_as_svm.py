"""PRBEP's and ROCArea's training are support vector machines: the same risk, and the same optimum by another solver."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.svm import SVC, LinearSVC

from distsms.base.communicator import Communicator
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from tests.support import oracles
from tests.support.problems import WAYS, build, data, objective, problems

pytestmark = pytest.mark.serial


def classes(n_max):
    """Scores of one class, small rationals and often tied."""
    return st.lists(st.fractions(-3, 3, max_denominator=4), min_size=1, max_size=n_max)


@given(classes(7), classes(7))
def test_the_risk_of_prbep_is_a_hinge_loss_exactly(positive, negative):
    assert oracles.prbep_risk_as_svm(positive, negative) == oracles.prbep_risk(positive, negative)


@pytest.mark.parametrize("way", [way for way in WAYS if way[0] == "prbep"])
@given(problem=problems(max_rows=12))
def test_the_loss_computes_it(way, problem):
    scores, labels, nu = problem
    by_svm = oracles.prbep_risk_as_svm(*(oracles.rational(scores[labels == sign]) for sign in (1, -1)))
    slack = 4 * np.finfo(float).eps * len(scores) * (1 + np.abs(scores).max() + len(scores))
    R = build(way, labels).evaluate(scores, nu).R
    assert R == pytest.approx(float(by_svm), rel=1e-11, abs=slack)  # scores that differ by 1e-11 may count as tied


@pytest.mark.parametrize("positive", [0.15, 0.5, 0.8])
@pytest.mark.parametrize("lam", [1e-1, 1e-3])
def test_training_for_prbep_is_an_svm_with_an_intercept_that_is_not_regularized(positive, lam):
    """LIBSVM at C = 8 n+ / (lambda n^2) finds v = 4 n+/n w; its J lies within the proved interval."""
    X, y = data(n=300, positive=positive, seed=3)
    ours = minimize(objective(X, y, Communicator(), "prbep"), Settings(lam=lam, epsilon=1e-6, max_evaluations=5000))
    assert ours.status is Status.PROVED
    n, n_pos = len(y), int(np.sum(y > 0))
    other = SVC(kernel="linear", C=8 * n_pos / (lam * n**2), tol=1e-9).fit(X.toarray(), y)
    w = other.coef_[0] * n / (4 * n_pos)
    s = X @ w
    J = lam / 2 * w @ w + oracles.prbep_risk(list(s[y > 0]), list(s[y < 0]))
    assert ours.lower_bound <= J <= ours.J + 1e-7
    hinge = np.maximum(0, 1 - y * other.decision_function(X.toarray())).sum()
    assert J == pytest.approx(lam / 2 * w @ w + hinge / (2 * n_pos), abs=1e-6)  # and its intercept is the best b


@pytest.mark.parametrize("lam", [1e-1, 1e-3])
def test_training_for_rocarea_is_a_ranking_svm(lam):
    """Hinge loss on the differences of all pairs, C = 1 / (lambda n+ n-), no intercept."""
    X, y = data(n=60, p=6, seed=4)
    ours = minimize(objective(X, y, Communicator(), "rocarea"), Settings(lam=lam, epsilon=1e-6, max_evaluations=5000))
    dense = X.toarray()
    pairs = (dense[y > 0][:, None] - dense[y < 0][None]).reshape(-1, X.shape[1])
    sign = np.where(np.arange(len(pairs)) % 2, 1, -1)  # LIBLINEAR wants two classes
    words = {"loss": "hinge", "fit_intercept": False, "C": 1 / (lam * len(pairs)), "tol": 1e-8, "max_iter": 10**6}
    w = LinearSVC(**words).fit(pairs * sign[:, None], sign).coef_[0]
    J = lam / 2 * w @ w + float(oracles.rocarea_risk((X @ w)[y > 0], (X @ w)[y < 0]))
    assert ours.status is Status.PROVED and ours.lower_bound <= J <= ours.J + 1e-7
