"""Curves of probabilities equal those of scikit-learn and of a general minimizer, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.metrics import calibration, tied_scores
from distsms.metrics.row_weights import effective
from tests.metrics.test_operating_points import columns
from tests.support.problems import drawn_scores, local_part

ALONE = Communicator()
ROWS = st.lists(
    st.tuples(st.integers(-4, 4).map(float), st.sampled_from([1, -1]), st.integers(1, 3).map(float)),
    min_size=3,
    max_size=25,
).filter(lambda rows: len({label for _, label, _ in rows}) == 2)


def wanted(labels, weights):
    """Return Platt's targets of rows, by his formula."""
    n_pos, n_neg = weights[labels > 0].sum(), weights[labels < 0].sum()
    return np.where(labels > 0, (n_pos + 1) / (n_pos + 2), 1 / (n_neg + 2))


def scaled(labels, weights):
    return np.ones(len(labels)) if weights is None else effective(Scored(labels, labels, ALONE, weights)).weights


def fitted(method, scores, labels, comm, weights):
    parts = [None if array is None else local_part(array, comm) for array in (scores, labels, weights)]
    return calibration.fit(method, Scored(parts[0], parts[1], comm, parts[2]))


@given(ROWS, st.booleans())
def test_isotonic_is_that_of_scikit_learn(comm, rows, weighted):
    from sklearn.isotonic import IsotonicRegression

    scores, labels, weights = columns(rows)
    weights = weights if weighted else None
    curve = fitted("isotonic", scores, labels, comm, weights)
    assert calibration.find_fault(curve) == ""
    mass = scaled(labels, weights)
    oracle = IsotonicRegression(out_of_bounds="clip").fit(scores, wanted(labels, mass), mass)
    new = np.linspace(-5, 5, 41)
    assert calibration.probabilities(curve, new) == pytest.approx(oracle.predict(new), abs=1e-12)


@pytest.mark.parametrize("sample", [1, 512])
@pytest.mark.parametrize("weighted", [False, True])
def test_isotonic_of_many_rows(comm, monkeypatch, sample, weighted):
    from sklearn.isotonic import IsotonicRegression

    monkeypatch.setattr(tied_scores, "SAMPLE", sample)
    for decimals in (1, 12):
        scores, labels = drawn_scores(3000, 0.1, decimals=decimals)
        weights = np.random.default_rng(1).exponential(size=3000) if weighted else None
        curve, mass = fitted("isotonic", scores, labels, comm, weights), scaled(labels, weights)
        oracle = IsotonicRegression(out_of_bounds="clip").fit(scores, wanted(labels, mass), mass)
        assert calibration.probabilities(curve, scores) == pytest.approx(oracle.predict(scores), abs=1e-12)
        assert len(curve["scores"]) <= 2 * 2 * 3000 ** (2 / 3)


@given(ROWS, st.booleans(), st.sampled_from([1.0, 1e-6, 1e6]), st.sampled_from([0.0, 1e3]))
def test_a_sigmoid_has_the_least_log_loss(comm, rows, weighted, scale, shift):
    scores, labels, weights = columns(rows)
    scores, weights = scale * scores + shift, weights if weighted else None
    curve = fitted("sigmoid", scores, labels, comm, weights)
    assert calibration.find_fault(curve) == ""
    mass = scaled(labels, weights)
    target, z = wanted(labels, mass), (scores - scores.mean()) / (scores.std() or 1)

    def loss(value):
        return -(mass @ (target * log_expit(value) + (1 - target) * log_expit(-value)))

    found = minimize(
        lambda at: loss(at[0] * z + at[1]), np.zeros(2), method="L-BFGS-B", bounds=[(0, None), (None,) * 2]
    )
    assert loss(curve["slope"] * scores + curve["intercept"]) <= found.fun + 1e-7 * abs(found.fun)


@pytest.mark.serial
@pytest.mark.parametrize("n_pos", [2, 4])
def test_the_gradient_of_a_sigmoid_vanishes_where_positives_are_few_and_far(n_pos):
    """Newton's steps are a hundred times too long there."""
    labels = np.where(np.arange(200) < n_pos, 1, -1).astype(np.int8)
    scores = np.random.default_rng(0).normal(size=200) + 100.0 * (labels > 0)
    scores[0] = -2.0
    curve = calibration.fit("sigmoid", Scored(scores, labels, ALONE))
    error = expit(curve["slope"] * scores + curve["intercept"]) - wanted(labels, np.ones(200))
    assert (error.sum(), error @ scores) == pytest.approx((0.0, 0.0), abs=1e-6)


@pytest.mark.serial
def test_a_sigmoid_is_that_of_scikit_learn():
    """CalibratedClassifierCV fits the same targets, by another minimizer."""
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV

    class Given(ClassifierMixin, BaseEstimator):
        classes_ = np.array([-1, 1])

        def fit(self, X, y):
            self.fitted_ = True
            return self

        def decision_function(self, X):
            return X[:, 0]

        def predict(self, X):
            return np.where(X[:, 0] > 0, 1, -1)

    for share in (0.02, 0.5):
        scores, labels = drawn_scores(2000, share)
        for method in calibration.METHODS:
            curve = calibration.fit(method, Scored(scores, labels, ALONE))
            oracle = CalibratedClassifierCV(Given(), method=method, ensemble=False).fit(scores[:, None], labels)
            own = calibration.probabilities(curve, scores)
            # scikit-learn's isotonic curve is of 0 and 1 instead of the targets, which are this near to them.
            near = 1e-4 if method == "sigmoid" else 1 / (min(np.sum(labels > 0), np.sum(labels < 0)) + 2)
            assert np.abs(own - oracle.predict_proba(scores[:, None])[:, 1]).max() <= near * (1 + 1e-9)


@pytest.mark.serial
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e300, 1e-300])
def test_scores_that_differ_by_rounding_alone_give_the_share_of_positives(value):
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(1000) < 0.2, 1, -1)
    for scores in (np.full(1000, value), value * (1 + 2e-16 * rng.integers(0, 2, 1000))):
        curve = calibration.fit("sigmoid", Scored(scores, labels, ALONE))
        assert curve["slope"] == 0
        expected = (np.count_nonzero(labels > 0) + 1) / 1002
        assert calibration.probabilities(curve, scores)[0] == pytest.approx(expected, rel=0.02)


@pytest.mark.serial
@pytest.mark.parametrize("unit", [1e-200, 1e160, 1e300])
def test_the_unit_of_the_scores_does_not_matter(unit):
    scores, labels = drawn_scores(300, 0.3, shift=1.0)
    of_units, plain = (calibration.fit("sigmoid", Scored(scores * factor, labels, ALONE)) for factor in (unit, 1.0))
    expected = calibration.probabilities(plain, scores)
    np.testing.assert_allclose(calibration.probabilities(of_units, scores * unit), expected, rtol=1e-9)


@pytest.mark.serial
def test_equal_or_reversed_scores_give_the_share_of_positives():
    labels = np.array([1, -1, -1, -1], np.int8)
    for scores in (np.ones(4), np.array([0.0, 1.0, 2.0, 3.0])):
        curve = calibration.fit("sigmoid", Scored(scores, labels, ALONE))
        assert curve["slope"] == 0
        assert calibration.probabilities(curve, scores) == pytest.approx(np.mean([2 / 3, 0.2, 0.2, 0.2]))


@pytest.mark.parametrize("method", calibration.METHODS)
def test_a_common_factor_of_weights_changes_nothing_and_separable_rows_do_not_give_0_or_1(comm, method):
    scores, labels = np.arange(20.0), np.where(np.arange(20) > 14, 1, -1).astype(np.int8)
    weights = np.random.default_rng(0).exponential(size=20)
    curves = [fitted(method, scores, labels, comm, factor * weights) for factor in (1, 1e-9)]
    first, second = (calibration.probabilities(curve, scores) for curve in curves)
    assert first == pytest.approx(second, rel=1e-6)
    assert first.min() > 0 and first.max() < 1 and np.all(np.diff(first) >= -1e-15)


@given(ROWS, st.booleans())
def test_losses_and_bins_by_hand(comm, rows, weighted):
    from sklearn.metrics import brier_score_loss, log_loss

    scores, labels, weights = columns(rows)
    predicted, weights = np.round(expit(scores), 3), weights if weighted else None
    own = [None if array is None else local_part(array, comm) for array in (predicted, labels, weights)]
    found = calibration.losses(Scored(own[0], own[1], comm, own[2]))
    assert found["brier"] == pytest.approx(brier_score_loss(labels > 0, predicted, sample_weight=weights))
    assert found["log_loss"] == pytest.approx(log_loss(labels > 0, predicted, sample_weight=weights))
    bins = calibration.reliability(Scored(own[0], own[1], comm, own[2]), 3)
    mass = np.ones(len(rows)) if weights is None else weights
    assert 1 <= len(bins) <= 3
    assert sum(part["n"] for part in bins) == len(rows)
    assert sum(part["weight"] for part in bins) == pytest.approx(mass.sum())
    assert sum(part["weight"] * part["observed"] for part in bins) == pytest.approx(mass @ (labels > 0))
    assert sum(part["weight"] * part["predicted"] for part in bins) == pytest.approx(mass @ predicted)
    means = [part["predicted"] for part in bins]
    assert means == sorted(means)
    assert all(0 <= part["low"] <= part["observed"] <= part["high"] <= 1 for part in bins)


def test_bins_have_about_equal_numbers_of_positive_rows(comm):
    scores, labels = drawn_scores(5000, 0.02, decimals=12)
    bins = calibration.reliability(Scored(local_part(expit(scores), comm), local_part(labels, comm), comm))
    positive = [round(part["n"] * part["observed"]) for part in bins]
    assert len(bins) == calibration.BINS
    assert max(positive) - min(positive) <= 1
    for found, alone in zip(bins, calibration.reliability(Scored(expit(scores), labels, ALONE)), strict=True):
        assert found == pytest.approx(alone)


@pytest.mark.serial
@pytest.mark.parametrize(
    "curve",
    [
        None,
        {},
        {"method": "sigmoid"},
        {"method": "sigmoid", "slope": -1.0, "intercept": 0.0},
        {"method": "sigmoid", "slope": float("nan"), "intercept": 0.0},
        {"method": "isotonic", "scores": [], "probabilities": []},
        {"method": "isotonic", "scores": ["a"], "probabilities": [0.5]},
        {"method": "isotonic", "scores": [1.0, 1.0], "probabilities": [0.2, 0.5]},
        {"method": "isotonic", "scores": [1.0, 2.0], "probabilities": [0.6, 0.5]},
        {"method": "isotonic", "scores": [1.0, 2.0], "probabilities": [0.6, 1.5]},
    ],
)
def test_damaged_curves_are_found(curve):
    assert calibration.find_fault(curve)
