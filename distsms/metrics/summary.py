"""The measures that summarize a model in logs and in its file, and the one that chooses among models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distsms.base.measures import HeadMeasure, Measure
from distsms.base.scored import Scored
from distsms.metrics import ranking
from distsms.metrics.operating_points import contingency, head_value
from distsms.metrics.tied_scores import tied_scores
from distsms.metrics.within_groups import gauc_estimate


def summary_measures(measure: Measure, scored: Scored, threshold: float) -> dict[str, float]:
    """Return ROCArea, PRBEP and the measure that was trained for (in groups if given), by name. **Collective.**"""
    values: dict[str, float] = ranking.ranking(scored)._asdict()
    if measure.within_groups:
        if scored.groups is not None:
            values[measure.name] = gauc_estimate(measure.within_groups, scored).value
    elif measure.name not in values:
        values[measure.name] = ranking.measure_value(measure, scored, threshold)
    return values


def chooser_value(name: str, scored: Scored, threshold: float) -> float:
    """Return a measure that `check_chooser` accepts; larger is better, and NaN counts as 0. **Collective.**"""
    if of_head := HeadMeasure.parse(name):
        value = head_value(of_head, tied_scores(scored), scored.comm)
    elif name == "average-precision":
        value = ranking.average_precision(scored)
    elif name in ("accuracy", "precision", "recall"):
        table = contingency(scored, threshold)
        value = 1 - table.error_rate if name == "accuracy" else getattr(table, name)
    elif (measure := Measure.parse(name)).within_groups and scored.groups is not None:
        value = gauc_estimate(measure.within_groups, scored).value
    else:
        if measure.k:
            n = int(scored.comm.sum(np.array([len(scored.scores)]))[0])
            measure = replace(measure, k=min(measure.k, n))
        value = ranking.measure_value(measure, scored, threshold)
    return float(np.nan_to_num(value, nan=0.0))
