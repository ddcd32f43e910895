"""The measures that summarize a model in logs and in its file, and the one that chooses among models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.measures import HeadMeasure, Measure
from distsms.base.typing import Floats, Hashes, Labels
from distsms.metrics import ranking
from distsms.metrics.operating_points import contingency, head_value
from distsms.metrics.tied_scores import tied_scores
from distsms.metrics.within_groups import gauc_estimate


def summary_measures(
    measure: Measure,
    scores: Floats,
    labels: Labels,
    threshold: float,
    comm: Communicator,
    weights: Floats | None = None,
    groups: Hashes | None = None,
) -> dict[str, float]:
    """Return ROCArea, PRBEP and the measure that was trained for (in groups if given), by name. **Collective.**"""
    values: dict[str, float] = ranking.ranking(scores, labels, comm, weights)._asdict()
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
