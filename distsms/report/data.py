"""What a report shows, without the means of drawing it: every rank may import this, and only the root draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from distsms.base.measures import Condition
from distsms.base.typing import Floats
from distsms.metrics.curves import Curve, Histogram
from distsms.models.contributions import Contributions
from distsms.models.evaluation import ModelEvaluation

if TYPE_CHECKING:
    from distsms.report.selection_sections import BaselineResult, PathResult

POINTS = [
    *(Condition("fpr", rate) for rate in (0.001, 0.01, 0.05)),
    *(Condition("precision", rate) for rate in (0.5, 0.9)),
    *(Condition("top", share) for share in (0.001, 0.01, 0.05, 0.1)),
]
"""The conditions whose thresholds every report shows."""


class ShownPoint(NamedTuple):
    """A threshold that a report shows."""

    condition: Condition  # what the threshold fulfils
    found: dict[str, Any]  # the result of `distsms.metrics.threshold_rates.rates_at`
    chosen: bool  # whether it was asked for, and is drawn on the curves


class OwnProbabilities(NamedTuple):
    """How good the probabilities of a model are on the rows of the report."""

    bins: Sequence[Mapping[str, float]]  # from `distsms.metrics.calibration.reliability`
    # Brier score and log loss without and with calibration, from `distsms.metrics.calibration.losses`
    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows."""

    evaluation: ModelEvaluation  # of the model, on the rows of the report
    rows: str  # the data set or file of these rows
    level: float  # of the intervals
    curve: Curve
    histogram: Histogram
    trace: dict[str, Floats]  # the columns of the training's trace, or empty
    trace_note: str  # why the trace is empty; "" if it is not
    feature_names: Sequence[str] | None  # (p,), None for columns without names
    points: Sequence[ShownPoint] = ()
    probabilities: OwnProbabilities | None = None  # None if the model has none
    path: PathResult | None = None
    baseline: BaselineResult | None = None
    contributions: Contributions | str | None = None  # of a model on features, or why there are none

    @property
    def info(self) -> dict[str, Any]:
        """The information that is stored with the model."""
        return self.evaluation.model.info
