"""Measures of held-out rows that choose: as scikit-learn has them, the same on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from distsms.metrics.headline import chooser_value
from tests.support.problems import local_part


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
        rows = local_part(scores, comm), local_part(y, comm)
        assert chooser_value(name, *rows, threshold, comm) == pytest.approx(value), name
