"""What a run says of a quick ROCArea model that its own model was compared with.

`distsms.workflow.rocarea_check` trains that model and compares the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from distsms.base.measures import SHOWN, Measure
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
CLEARLY_WORSE = 0.02
"""A model ranks clearly worse if its ROCArea is lower by at least this much, and the interval of the difference
excludes 0.
"""
CLEARLY_BETTER = 0.02
"""A quick ROCArea model is clearly better at a measure if the interval of the difference excludes 0, and if the
difference is at least this share of the larger value. Smaller differences are not worth another measure, and without
this condition one in forty checks of equal models would find one.
"""
COMPARE = "and compare its model with logistic regression (distsms baseline)."


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
        record = {"lambda": self.lam, "rows": self.rows, "seconds": self.seconds}
        record |= finite({"least_beta": self.least_beta})
        return record | (self.contest.as_json() if self.contest else {})


def judge(on: str, measure: Measure, judged: JudgedRows, comm: Communicator) -> Contest:
    """Compare the ROCArea model, which is the first one in `judged`, with the run's own model. **Collective.**

    `on` says to users which rows these are, and `measure` is that of the run, with a K for these rows.
    """
    labels, measures = judged.labels, {"rocarea": ROCAREA, "measure": measure}
    theirs, ours = (
        {name: measure_value(each, scores, labels, at, comm, judged.weights) for name, each in measures.items()}
        for scores, at in zip(judged.scores, judged.thresholds, strict=True)
    )
    gains = {name: difference(each, judged, comm) for name, each in measures.items()}
    useful = not why_chance(judged.scores[0], labels, theirs["rocarea"], comm, judged.weights)
    return Contest(on, measure.name, ours, theirs, gains, useful)


def is_clear(gain: Interval, *values: float) -> bool:
    """Return whether a measure is clearly better, for the interval of the difference and both values. Local."""
    return bool(gain.low > 0 and gain.value >= CLEARLY_BETTER * max(values))


def advise(check: QuickCheck | None, measure: Measure, chance: bool, no_bias: str = "") -> str:
    """Return advice: that a quick ROCArea model is clearly better than the run's model, or what else may help. Local.

    `chance` if the run's model for `measure` ranks no better than chance, so that another one is needed in any case.
    `no_bias` is what `describe_no_bias` says of the run, the first advice if the quick model is clearly better.
    """
    contest = None if check is None else check.contest
    if check is None or contest is None:
        return f"Use the measure rocarea instead, {COMPARE}" if chance and not measure.family.compares_pairs else ""
    if chance and not contest.useful:
        return (
            f"A quick ROCArea model does not clearly do so either: its ROCArea is {contest.theirs['rocarea']:.3f} on "
            f"{contest.on}. Other columns may help, or standardized ones, or more rows."
        )
    better = is_clear(contest.gains["measure"], contest.ours["measure"], contest.theirs["measure"])
    worse = contest.gains["rocarea"].low > 0 and contest.gains["rocarea"].value >= CLEARLY_WORSE
    if not (chance or better or worse):
        return ""
    values = [_compared(contest, "measure")] if better or not worse else []
    values += [_compared(contest, "rocarea")] if worse or chance else []
    begin = (
        "A quick ROCArea model has"
        if chance or not worse
        else "This model ranks clearly worse than a quick ROCArea model, which has"
    )
    said = [
        f"{begin} {' and '.join(values)}, on {contest.on}.",
        *filter(None, [_describe_beta(check) if chance else ""]),
    ]
    instead = f"use the measure rocarea with lambda {check.lam:g} instead, {COMPARE}"
    said.append(f"{no_bias} Or {instead}" if no_bias and not chance else f"U{instead[1:]}")
    return " ".join(said)


def _describe_beta(check: QuickCheck) -> str:
    """Return a sentence on the BETA for which training for pauc@BETA gains something; "" if none is known. Local."""
    if math.isnan(check.least_beta):
        return ""
    beta = min(rounded_up(check.least_beta, 2), 1.0)
    return (
        f"Training for pauc@BETA does not end with such a model if BETA is {beta:g} or more: the ROCArea model gives "
        f"positive rows a higher score, on average, than the {100 * beta:.2g} % of the negative rows with the highest "
        "scores."
    )


def rounded_up(value: float, digits: int) -> float:
    """Return a number of at least 0, rounded up to so many significant digits. Local."""
    if not value:
        return 0.0
    rounded = float(f"{value:.{digits - 1}e}")
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return float(f"{rounded if rounded >= value else rounded + step:.{digits}g}")


def _compared(contest: Contest, name: str) -> str:
    """Return the value of the ROCArea model and, if it is clearly better, that of the run's model and the interval."""
    gain, measure = contest.gains[name], "rocarea" if name == "rocarea" else contest.measure
    more = "less" if measure == "error-rate" else "more"
    if not gain.low > 0:  # not clearly better, or no interval
        return f"{SHOWN.get(measure, measure)} {contest.theirs[name]:.3f}"
    interval = f" ({gain.low:.3f} to {gain.high:.3f} {more}, with 95 % confidence)"
    return f"{SHOWN.get(measure, measure)} {contest.theirs[name]:.3f} instead of {contest.ours[name]:.3f}{interval}"
