"""What is said of a threshold on rows with another share of positives equals what such rows show."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.special import expit, logit

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.metrics import calibration
from distsms.models import shift

pytestmark = pytest.mark.serial
DECISION = {
    **{"condition": "precision>=0.8", "threshold": 1.0, "tpr": 0.6, "fpr": 0.01},
    **{"precision": 0.06 / 0.069, "called": 0.069, "positive_share": 0.1, "effective": 10_000},
}


def told(called, n, positive=None, **more):
    return shift.describe({"decision": DECISION | more}, called, n, positive)


def test_the_precision_is_that_of_rows_with_the_new_share():
    rng = np.random.default_rng(0)
    labels = rng.random(400_000) < 0.02
    called = rng.random(400_000) < np.where(labels, 0.6, 0.01)
    precision = 100 * np.mean(labels[called])
    by_labels, by_share = told(int(called.sum()), 400_000, 0.02), told(int(called.sum()), 400_000)
    for text in (by_labels, by_share):
        assert float(re.search(r"about ([\d.]+) % of the rows labelled", text)[1]) == pytest.approx(precision, rel=0.03)
        assert "precision>=0.8" in text and "87 %" in text
    assert "2 % of these rows are positive" in by_labels
    assert float(re.search(r"to about ([\d.]+) %", by_share)[1]) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    "called, n, positive, known",
    [
        *((690, 10_000, None, {}), (2, 10, None, {}), (800, 10_000, None, {}), (0, 0, None, {}), (0, 9, 0.11, {})),
        *((0, 10_000, None, {"threshold": None}), (0, 10_000, None, {"precision": None})),
    ],
)
def test_nothing_is_said_of_small_or_chance_differences_or_without_a_threshold(called, n, positive, known):
    assert told(called, n, positive, **known) == ""
    assert shift.describe({}, called, n) == ""


def test_rows_are_compared_with_rows_where_training_had_weights():
    by_rows = {"called": 0.02, "positive_share": 0.03, "tpr": 0.5, "fpr": 0.005, "precision": 0.75, "effective": 10_000}
    assert told(200, 10_000, by_rows=by_rows) == told(200, 10_000, 0.03, by_rows=by_rows) == ""
    assert "2 % of the held-out training rows were" in told(690, 10_000, by_rows=by_rows)
    assert "75 %" in told(690, 10_000, 0.1, by_rows=by_rows)


@pytest.mark.parametrize("called", [0, 9_000])
def test_a_share_that_no_share_of_positives_explains(called):
    assert "No share of positive rows explains this" in told(called, 10_000)


def probabilities_of(n, share, rng, slope=2.0, share_of_training=0.02):
    """Return labels, and probabilities that are right where `share_of_training` of the rows are positive."""
    labels = np.where(rng.random(n) < share, 1, -1)
    scores = rng.normal(size=n) + slope * (labels > 0)
    return labels, expit(slope * scores - slope**2 / 2 + logit(share_of_training))


def test_probabilities_are_mended_by_the_factor_that_is_told():
    rng = np.random.default_rng(0)
    trained_on = calibration.means_by_class(Scored(*probabilities_of(100_000, 0.02, rng)[::-1], Communicator()))
    assert trained_on["mean"] == pytest.approx(trained_on["share"], rel=0.05)
    for info in ({"calibration": {"means": trained_on}}, {"mean_probability": {"by_rows": trained_on}}):
        labels, p = probabilities_of(50_000, 0.08, rng)
        share = np.mean(labels > 0)
        for known in (None, share):
            text = shift.describe_probabilities(info, p.mean(), p.var(), len(p), known)
            factor = float(re.search(r"every row by (\d+\.\d+)", text)[1])
            assert "too low" in text and expit(logit(p) + np.log(factor)).mean() == pytest.approx(share, rel=0.07)
        labels, p = probabilities_of(50_000, 0.02, rng)
        share = np.mean(labels > 0)
        assert not any(shift.describe_probabilities(info, p.mean(), p.var(), len(p), known) for known in (None, share))
        assert "No share of positive rows" in shift.describe_probabilities(info, 1e-5, 1e-9, 50_000)
        assert "in other ways" in shift.describe_probabilities(info, 0.5, 0.1, 50_000, share)
    assert shift.describe_probabilities({}, 0.5, 0.1, 100) == shift.describe_probabilities(info, 0.0, 0.0, 0) == ""
