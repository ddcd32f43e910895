"""The measures of a model that logs and model files show, and those that choose among models."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from distsms.base.measures import Measure
from distsms.base.scored import Scored
from distsms.metrics.ranking import decision_threshold
from distsms.metrics.summary import chooser_value, summary_measures
from tests.support.problems import drawn_scores, local_part


@pytest.mark.parametrize("measure", ["rocarea", "prbep", "f1", "precision@50"])
def test_ranking_measures_and_the_trained_one(measure, comm):
    scores, labels = drawn_scores(400, 0.2, decimals=9)
    calls = {"prbep": int(np.sum(labels > 0)), "precision@50": 50}.get(measure)
    mine = Scored(local_part(scores, comm), local_part(labels, comm), comm)
    threshold = decision_threshold(calls, mine)
    assert threshold == 0 if calls is None else np.sum(scores >= threshold) == calls
    called, cut = scores >= threshold, np.sort(scores)[-int(np.sum(labels > 0))]
    expected = {"rocarea": metrics.roc_auc_score(labels, scores), "prbep": np.mean(labels[scores >= cut] > 0)}
    expected |= {"f1": {"f1": metrics.f1_score(labels > 0, called)}}.get(measure, {})
    expected |= {"precision@50": {"precision@50": np.mean(labels[called] > 0)}}.get(measure, {})
    found = summary_measures(Measure.parse(measure), mine, threshold)
    assert found == pytest.approx(expected)


def test_measures_that_choose_are_those_of_scikit_learn(comm):
    rng = np.random.default_rng(3)
    y = np.where(rng.random(80) < 0.3, 1, -1).astype(np.int8)
    scores, threshold = rng.normal(size=80) + (y > 0), 0.6
    called = np.where(scores >= threshold, 1, -1)
    head = y[np.argsort(-scores)[:7]]
    wanted = {
        "rocarea": metrics.roc_auc_score(y, scores),
        "average-precision": metrics.average_precision_score(y, scores),
        "accuracy": metrics.accuracy_score(y, called),
        "precision": metrics.precision_score(y, called),
        "recall": metrics.recall_score(y, called),
        "f2": metrics.fbeta_score(y, called, beta=2),
        "precision@7": np.mean(head > 0),
        "recall@7": np.sum(head > 0) / np.sum(y > 0),
        "precision@1000": np.mean(y > 0),  # there are only 80 rows
    }
    for name, value in wanted.items():
        rows = Scored(local_part(scores, comm), local_part(y, comm), comm)
        assert chooser_value(name, rows, threshold) == pytest.approx(value), name
