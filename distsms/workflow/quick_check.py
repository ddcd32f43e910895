"""What a run says of a quick ROCArea model that its own model was compared with.

`distsms.workflow.rocarea_check` trains that model and compares the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from distsms.base.measures import Measure
from distsms.base.typing import Floats
from distsms.metrics.confidence import Interval
from distsms.metrics.differences import JudgedRows, difference
from distsms.metrics.ranking import measure_value
from distsms.parallel.communicator import Communicator
from distsms.training.task import Reserve
from distsms.workflow.verdict import why_chance

LIBRARIES = 16 * 2**20
"""Bytes that a check takes besides its sample, for compiled code (measured)."""
RESERVE = Reserve(LIBRARIES, 1 / 20)
"""What a run leaves free for the check of its model, if memory is limited."""
ROCAREA = Measure.parse("rocarea")


@dataclass(frozen=True)
class Contest:
    """How two models compare on the same rows."""

    on: str  # a text for users that says which rows these are
    # the measure of the run. If it has a K, and these rows are a part of all rows, K is reduced in proportion.
    measure: str
    # ROCArea and that measure of the run's model and of the ROCArea model; keys are "rocarea" and "measure"
    ours: dict[str, float]
    theirs: dict[str, float]
    gains: dict[str, Interval]  # by how much the ROCArea model is better, with the same keys
    useful: bool  # whether the ROCArea model ranks these rows better than chance

    def as_json(self) -> dict[str, Any]:
        """Return the attributes, ready for JSON."""
        gains = {name: finite(interval.as_json()) for name, interval in self.gains.items()}
        return vars(self) | {"ours": finite(self.ours), "theirs": finite(self.theirs), "gains": gains}


def finite(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with None in place of numbers that are not finite, which JSON does not have. Local."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


@dataclass(frozen=True)
class QuickCheck:
    """A quick ROCArea model, and how it compares with the model of a run."""

    w: Floats  # its coefficients for rows as training sees them; empty if there is no such model
    # its lambda, and the threshold that is best for the measure of the run, by the scores of its training rows
    lam: float = math.nan
    threshold: float = 0.0
    rows: int = 0  # how many rows of the sample it was trained on
    seconds: float = 0.0  # what the check took
    # the comparison. It is None until the caller compares the models on test rows, or for the reason in `why`.
    contest: Contest | None = None
    why: str = ""  # why there is no ROCArea model, or no comparison
    # the smallest BETA at which this model shows that training for pauc@BETA does not end at w = 0: on its training
    # rows, the mean score of the BETA n- negative rows with the highest scores is below that of the positive rows.
    # NaN if there is none, or the run trains neither for PRBEP nor for pauc.
    least_beta: float = math.nan

    def as_json(self) -> dict[str, Any]:
        """Return what a model file says of the check."""
        if self.why:
            return {"why": self.why, "seconds": self.seconds}
        known = {"lambda": self.lam, "rows": self.rows, "seconds": self.seconds}
        known |= finite({"least_beta": self.least_beta})
        return known | (self.contest.as_json() if self.contest else {})


def judge(on: str, measure: Measure, judged: JudgedRows, comm: Communicator) -> Contest:
    """Compare the ROCArea model, which is the first one in `judged`, with the run's own model. **Collective.**

    Parameters
    ----------
    on : str
        A text for users that says which rows these are.
    measure : Measure
        What the run was asked for, with a K for these rows.
    judged : JudgedRows
        The rows that count.
    """
    labels, measures = judged.labels, {"rocarea": ROCAREA, "measure": measure}
    theirs, ours = (
        {name: measure_value(each, scores, labels, at, comm, judged.weights) for name, each in measures.items()}
        for scores, at in zip(judged.scores, judged.thresholds, strict=True)
    )
    gains = {name: difference(each, judged, comm) for name, each in measures.items()}
    useful = not why_chance(judged.scores[0], labels, theirs["rocarea"], comm, judged.weights)
    return Contest(on, measure.name, ours, theirs, gains, useful)
