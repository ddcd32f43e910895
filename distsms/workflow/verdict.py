"""Whether a trained model ranks better than chance.

A small gap does not mean that a model is useful: if the minimum of J is at w = 0, the best model gives all rows the
same score. So the scores of the training rows decide. A model ranks no better than chance if all scores are equal, or
if its ROCArea on these rows is not more than two standard errors above 0.5.

A model with many features can pass this on noise, because it learns its training rows by heart. So test rows decide as
well, if there are any and they have enough rows of both classes (`AreaOnTest`).

For a training within groups, GAUC takes the place of ROCArea, and groups take the place of rows.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from distsms.base.measures import Measure
from distsms.base.typing import Floats, Hashes, Labels
from distsms.metrics.confidence import LEVEL, Interval, rocarea_interval
from distsms.metrics.estimates import MeanEstimate, rocarea_estimate
from distsms.metrics.ranking import placements
from distsms.metrics.row_weights import effective_sizes, masses
from distsms.metrics.within_groups import gauc_estimate, gauc_interval
from distsms.parallel.communicator import Communicator

ROCAREA = Measure.parse("rocarea")
ERRORS = 2.0
"""The ROCArea of a useful model is more than this many standard errors above 0.5."""
ALL_TIED = "all scores are equal"
FEWEST_TESTED = 30
"""Test rows can show that a model ranks no better than chance only if they have this many rows of each class."""


class AreaOnTest(NamedTuple):
    """The ROCArea on test rows with its interval, and the numbers of positive and negative test rows.

    `effective` is the smaller of the effective numbers of positive and negative rows (`row_weights.effective_sizes`).
    If `measure` is within groups, `area` is GAUC, and `effective` the effective number of groups. `training_rows` is
    the share of the rows that are training rows.
    """

    area: Interval
    n_pos: int
    n_neg: int
    effective: float = math.inf
    measure: Measure = ROCAREA
    training_rows: float = 0.0

    @property
    def name(self) -> str:
        """How the area is called in messages."""
        return self.measure.display_name

    @property
    def _least(self) -> float:
        return min(self.n_pos, self.n_neg, self.effective)

    @property
    def enough(self) -> bool:
        """Whether there are enough rows of both classes for a verdict."""
        return self._least >= FEWEST_TESTED

    @property
    def above_chance(self) -> bool:
        """Whether the area is more than two standard errors above 0.5."""
        return self.area.value > 0.5 + ERRORS * self.area.standard_error

    def as_json(self) -> dict[str, object]:
        """Return the numbers of rows and the limits of the interval; None in place of a limit that does not exist."""
        name = self.measure.family
        limits = {f"{name}_low": self.area.low, f"{name}_high": self.area.high}
        limits |= {"groups": self.effective} if self.measure.within_groups else {}
        known = {name: None if math.isnan(limit) else limit for name, limit in limits.items()}
        return {"n_pos": self.n_pos, "n_neg": self.n_neg, **known, "training_rows": self.training_rows}

    def why_chance(self) -> str:
        """Return why the model ranks no better than chance on these rows; "" if it does, or if they are too few."""
        if self.above_chance or not self.enough:
            return ""
        return (
            f"its {self.name} on the test rows ({self.n_pos} positive, {self.n_neg} negative) is "
            f"{self.area.value:.3f}, with a standard error of {self.area.standard_error:.2g}; chance is 0.5"
        )

    def why_unknown(self) -> str:
        """Return a warning if the rows are too few to tell whether the model ranks better than chance; else ""."""
        if self.above_chance or self.enough:
            return ""
        fewer = "positive" if self.n_pos <= self.n_neg else "negative"
        few = "groups with both classes" if self.measure.within_groups else f"{fewer} rows"
        if min(self.n_pos, self.n_neg) == 0:
            return f"The test rows have no {fewer} rows, so the model is not tested. Test it on rows of both classes."
        return (
            f"The test rows have too few {few} ({self._least:.4g}) to tell whether this model ranks better than "
            f"chance: their {self.name} is {self.area.value:.3f}, and chance is 0.5. Test it on more rows before you "
            "use it."
        )


def area_on_test(
    scores: Floats,
    labels: Labels,
    comm: Communicator,
    weights: Floats | None = None,
    measure: Measure = ROCAREA,
    groups: Hashes | None = None,
) -> AreaOnTest:
    """Return the ROCArea of the scores of test rows, (n_local,) on this rank, with its interval. **Collective.**

    If the measure that was trained for is within groups, and the rows have groups, this is GAUC. If all scores are
    equal, the area is 0.5 whatever the rows are, and has no interval.
    """
    n_pos, n_neg = map(int, masses((labels > 0, labels < 0), None, comm))
    if measure.within_groups and groups is not None:
        found = gauc_estimate(measure.within_groups, scores, labels, groups, comm, weights)
        area = gauc_interval(found, LEVEL)
    else:
        found, measure = rocarea_estimate(placements(scores, labels, comm, weights), labels, comm, weights), ROCAREA
        area = rocarea_interval(found, LEVEL)
    if scores_tie(scores, comm):
        area = replace(area, low=math.nan, high=math.nan, why=ALL_TIED)
    return AreaOnTest(area, n_pos, n_neg, min(found.counts), measure)


def scores_tie(scores: Floats, comm: Communicator) -> bool:
    """Return whether all scores of all ranks are equal, up to rounding. **Collective**: two numbers are exchanged."""
    ends = np.array([np.max(scores, initial=-np.inf), -np.min(scores, initial=np.inf)])
    high, low = comm.maximum(ends) * (1, -1)
    return bool(high - low <= 1e-14 * max(abs(high), abs(low)))


def why_chance(
    scores: Floats,
    labels: Labels,
    rocarea: float,
    comm: Communicator,
    weights: Floats | None = None,
    within: MeanEstimate | None = None,
) -> str:
    """Return why scores rank no better than chance, or an empty string if they rank better. **Collective.**

    Parameters
    ----------
    scores, labels : ndarray of shape (n_local,)
        The scores and labels of the rows on this rank that count.
    rocarea : float
        Their ROCArea over all ranks. If it is NaN, the only reason that is looked for is that all scores are equal.
    comm : Communicator
        The ranks.
    weights : ndarray of shape (n_local,), optional
        The weights of these rows, above 0.
    within : MeanEstimate, optional
        The GAUC of these scores, from `gauc_estimate`. It then takes the place of ROCArea.

    Notes
    -----
    The standard error is DeLong's. Its square is at most A (1 - A) / min(n+, n-) for an area A and n+ positive and n-
    negative rows (with weights: effective numbers of rows). If this bound already shows that the model is useful, the
    standard error is not computed.
    """
    if scores_tie(scores, comm):
        return ALL_TIED
    if within is not None:
        if not within.value <= 0.5 + ERRORS * np.nan_to_num(within.error):
            return ""
        return (
            f"its GAUC on the training rows is {within.value:.3f}, with a standard error of {within.error:.2g}; chance "
            "is 0.5"
        )
    n_min = min(effective_sizes(labels, weights, comm))
    if math.isnan(rocarea) or rocarea - 0.5 > ERRORS * math.sqrt(rocarea * (1 - rocarea) / n_min):
        return ""
    found = rocarea_estimate(placements(scores, labels, comm, weights), labels, comm, weights)
    error = 0.0 if math.isnan(found.error) else found.error
    if rocarea > 0.5 + ERRORS * error:
        return ""
    return f"its ROCArea on the training rows is {rocarea:.3f}, with a standard error of {error:.2g}; chance is 0.5"
