"""The contingency table and the rates at a threshold, with intervals: what `distsms evaluate --at` shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.measures import Condition
from distsms.base.typing import Floats
from distsms.metrics import head_intervals
from distsms.metrics.contingency import contingency
from distsms.metrics.operating_points import OperatingPoint, operating_point
from distsms.metrics.tied_scores import TiedScores
from distsms.parallel.communicator import Communicator


def rates_of_conditions(
    at: Sequence[Condition],
    tied: TiedScores,
    level: float,
    scores: Floats,
    labels: NDArray[np.int8],
    comm: Communicator,
    weights: Floats | None,
) -> dict[str, dict[str, Any]]:
    """Find the thresholds for conditions in `tied`, and return the `rates_at` each, by its name. **Collective.**"""
    thresholds = {str(each): operating_point(each, tied, comm).threshold for each in at}
    return {name: rates_at(threshold, level, scores, labels, comm, weights) for name, threshold in thresholds.items()}


def rates_at(
    threshold: float, level: float, scores: Floats, labels: NDArray[np.int8], comm: Communicator, weights: Floats | None
) -> dict[str, Any]:
    """Return a threshold, its contingency table, and the rates at it with their intervals. **Collective.**"""
    point = OperatingPoint(threshold, contingency(scores, labels, threshold, comm, weights))
    rates = head_intervals.point_intervals(point, level, None if weights is None else (scores, labels, weights, comm))
    return {
        "threshold": point.threshold,
        **vars(point.table),
        **{name: interval.value for name, interval in rates.items()},
        "intervals": {name: interval.as_json() for name, interval in rates.items()},
    }
