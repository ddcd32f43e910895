"""Whether a trained model ranks better than chance.

A small gap does not mean that a model is useful: if the minimum of J is at w = 0, the best model gives all rows the
same score. So the scores of the training rows decide. A model ranks no better than chance if all scores are equal, or
if its ROCArea on these rows is not more than two standard errors above 0.5.

A model with many features can pass this on noise, because it learns its training rows by heart. So test rows decide as
well, if there are any and they have enough rows of both classes (`AreaOnTest`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from distsms.metrics.confidence import LEVEL, Interval, rocarea_estimate, rocarea_interval
from distsms.metrics.ranking import placements
from distsms.metrics.row_weights import effective_sizes, masses
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats, Labels

ERRORS = 2.0
"""The ROCArea of a useful model is more than this many standard errors above 0.5."""
ALL_TIED = "all scores are equal"
FEWEST_TESTED = 30
"""Test rows can show that a model ranks no better than chance only if they have this many rows of each class."""


class AreaOnTest(NamedTuple):
    """The ROCArea on test rows with its interval, and the numbers of positive and negative test rows.

    `effective` is the smaller of the effective numbers of positive and negative rows (`row_weights.effective_sizes`).
    """

    rocarea: Interval
    n_pos: int
    n_neg: int
    effective: float = math.inf

    @property
    def _least(self) -> float:
        return min(self.n_pos, self.n_neg, self.effective)

    @property
    def enough(self) -> bool:
        """Whether there are enough rows of both classes for a verdict."""
        return self._least >= FEWEST_TESTED

    @property
    def above_chance(self) -> bool:
        """Whether the ROCArea is more than two standard errors above 0.5."""
        return self.rocarea.value > 0.5 + ERRORS * self.rocarea.standard_error

    def as_json(self) -> dict[str, object]:
        """Return the numbers of rows and the limits of the interval; None in place of a limit that does not exist."""
        limits = {"rocarea_low": self.rocarea.low, "rocarea_high": self.rocarea.high}
        known = {name: None if math.isnan(limit) else limit for name, limit in limits.items()}
        return {"n_pos": self.n_pos, "n_neg": self.n_neg, **known}

    def why_chance(self) -> str:
        """Return why the model ranks no better than chance on these rows; "" if it does, or if they are too few."""
        if self.above_chance or not self.enough:
            return ""
        return (
            f"its ROCArea on the test rows ({self.n_pos} positive, {self.n_neg} negative) is {self.rocarea.value:.3f}, "
            f"with a standard error of {self.rocarea.standard_error:.2g}; chance is 0.5"
        )

    def why_unknown(self) -> str:
        """Return a warning if the rows are too few to tell whether the model ranks better than chance; else ""."""
        if self.above_chance or self.enough:
            return ""
        fewer = "positive" if self.n_pos <= self.n_neg else "negative"
        return (
            f"The test rows have too few {fewer} rows ({self._least:.4g}) to tell whether this model ranks better "
            f" than chance: their ROCArea is {self.rocarea.value:.3f}, and chance is 0.5. Test it on more rows "
            "before you use it."
        )


def area_on_test(scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None) -> AreaOnTest:
    """Return the ROCArea of the scores of test rows, (n_local,) on this rank, with its interval. **Collective.**"""
    found = rocarea_estimate(placements(scores, labels, comm, weights), labels, comm, weights)
    n_pos, n_neg = map(int, masses((labels > 0, labels < 0), None, comm))
    return AreaOnTest(rocarea_interval(found, LEVEL), n_pos, n_neg, min(found.counts))


def scores_tie(scores: Floats, comm: Communicator) -> bool:
    """Return whether all scores of all ranks are equal, up to rounding. **Collective**: two numbers are exchanged."""
    ends = np.array([np.max(scores, initial=-np.inf), np.max(-scores, initial=-np.inf)])
    high, low = comm.maximum(ends) * (1, -1)
    return bool(high - low <= 1e-14 * max(abs(high), abs(low)))


def why_chance(
    scores: Floats, labels: Labels, rocarea: float, comm: Communicator, weights: Floats | None = None
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

    Notes
    -----
    The standard error is DeLong's. Its square is at most A (1 - A) / min(n+, n-) for an area A and n+ positive and n-
    negative rows (with weights: effective numbers of rows). If this bound already shows that the model is useful, the
    standard error is not computed.
    """
    if scores_tie(scores, comm):
        return ALL_TIED
    n_min = min(effective_sizes(labels, weights, comm))
    if math.isnan(rocarea) or rocarea - 0.5 > ERRORS * math.sqrt(rocarea * (1 - rocarea) / n_min):
        return ""
    found = rocarea_estimate(placements(scores, labels, comm, weights), labels, comm, weights)
    error = 0.0 if math.isnan(found.error) else found.error
    if rocarea > 0.5 + ERRORS * error:
        return ""
    return f"its ROCArea on the training rows is {rocarea:.3f}, with a standard error of {error:.2g}; chance is 0.5"
