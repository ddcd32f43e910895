"""The threshold of a trained model, and the measures by which it is summarized in logs and in the model file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.measures import RANKING, HeadMeasure, Measure
from distsms.base.typing import Floats, Hashes, Labels
from distsms.metrics import ranking
from distsms.metrics.contingency import contingency
from distsms.metrics.operating_points import head_value
from distsms.metrics.row_weights import mass_of_classes
from distsms.metrics.tied_scores import tied_scores
from distsms.metrics.within_groups import gauc_estimate


def decision_threshold(
    calls_positive: int | None, scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None
) -> float:
    """Return the score from which `calls_positive` rows, in proportion by weight, are positive. **Collective.**"""
    if calls_positive is None:
        return 0.0
    k: float = calls_positive
    if weights is not None:
        k *= mass_of_classes(labels, weights, comm)[0] / mass_of_classes(labels, None, comm)[0]
    return ranking.top_k(scores, labels, k, comm, weights).threshold


def headline_measures(
    measure: Measure,
    scores: Floats,
    labels: Labels,
    threshold: float,
    comm: Communicator,
    weights: Floats | None = None,
    groups: Hashes | None = None,
) -> dict[str, float]:
    """Return ROCArea, PRBEP and the measure that was trained for (in groups if given), by name. **Collective.**"""
    ranked = ranking.ranking(scores, labels, comm, weights)
    values = {name: float(getattr(ranked, name)) for name in RANKING}
    if measure.within_groups:
        if groups is not None:
            estimate = gauc_estimate(measure.within_groups, scores, labels, groups, comm, weights)
            values[measure.name] = estimate.value
    elif measure.name not in values:
        values[measure.name] = ranking.measure_value(measure, scores, labels, threshold, comm, weights)
    return values


def chooser_value(
    name: str,
    scores: Floats,
    labels: Labels,
    threshold: float,
    comm: Communicator,
    weights: Floats | None = None,
    groups: Hashes | None = None,
) -> float:
    """Return a measure that `check_chooser` accepts; larger is better, and NaN counts as 0. **Collective.**"""
    if of_head := HeadMeasure.parse(name):
        value = head_value(of_head, tied_scores(scores, labels, weights, comm), comm)
    elif name == "average-precision":
        value = ranking.average_precision(scores, labels, comm, weights)
    elif name in ("accuracy", "precision", "recall"):
        table = contingency(scores, labels, threshold, comm, weights)
        value = 1 - table.error_rate if name == "accuracy" else getattr(table, name)
    elif (measure := Measure.parse(name)).within_groups and groups is not None:
        value = gauc_estimate(measure.within_groups, scores, labels, groups, comm, weights).value
    else:
        if measure.k:
            n = int(comm.sum(np.array([len(scores)]))[0])
            measure = replace(measure, k=min(measure.k, n))
        value = ranking.measure_value(measure, scores, labels, threshold, comm, weights)
    return float(np.nan_to_num(value, nan=0.0))
