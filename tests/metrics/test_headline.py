"""What logs and model files say of a model: ROCArea, PRBEP, and the measure that it was trained for, each once."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from distsms.measures import Measure
from distsms.metrics.headline import decision_threshold, headline_measures
from tests.metrics.test_confidence import drawn
from tests.support.problems import local_part


@pytest.mark.parametrize("measure", ["rocarea", "prbep", "f1", "precision@50"])
def test_ranking_measures_and_the_trained_one(measure, comm):
    scores, labels = drawn(400, 0.2, decimals=9)
    calls = {"prbep": int(np.sum(labels > 0)), "precision@50": 50}.get(measure)
    mine = local_part(scores, comm), local_part(labels, comm)
    threshold = decision_threshold(calls, *mine, comm)
    assert threshold == 0 if calls is None else np.sum(scores >= threshold) == calls
    called, cut = scores >= threshold, np.sort(scores)[-int(np.sum(labels > 0))]
    expected = {"rocarea": metrics.roc_auc_score(labels, scores), "prbep": np.mean(labels[scores >= cut] > 0)}
    expected |= {"f1": {"f1": metrics.f1_score(labels > 0, called)}}.get(measure, {})
    expected |= {"precision@50": {"precision@50": np.mean(labels[called] > 0)}}.get(measure, {})
    found = headline_measures(Measure.parse(measure), *mine, threshold, comm)
    assert found == pytest.approx(expected)
