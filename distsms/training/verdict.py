"""Whether a trained model ranks better than chance.

A small gap does not mean that a model is useful: if the minimum of J is at w = 0, the best model gives all rows the
same score. So the scores of the training rows decide. A model ranks no better than chance if all scores are equal, or
if its ROCArea on these rows is not more than two standard errors above 0.5.
"""

from __future__ import annotations

import math

import numpy as np

from distsms.metrics.confidence import rocarea_estimate
from distsms.metrics.ranking import placements
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats, Labels

ERRORS = 2.0
"""The ROCArea of a useful model is more than this many standard errors above 0.5."""
ALL_TIED = "all scores are equal"


def scores_tie(scores: Floats, comm: Communicator) -> bool:
    """Return whether all scores of all ranks are equal, up to rounding. **Collective**: two numbers are exchanged."""
    ends = np.array([np.max(scores, initial=-np.inf), np.max(-scores, initial=-np.inf)])
    high, low = comm.maximum(ends) * (1, -1)
    return bool(high - low <= 1e-14 * max(abs(high), abs(low)))


def why_chance(scores: Floats, labels: Labels, rocarea: float, comm: Communicator) -> str:
    """Return why scores rank no better than chance, or an empty string if they rank better. **Collective.**

    Parameters
    ----------
    scores, labels : ndarray of shape (n_local,)
        The scores and labels of the rows on this rank that count.
    rocarea : float
        Their ROCArea over all ranks. If it is NaN, the only reason that is looked for is that all scores are equal.
    comm : Communicator
        The ranks.

    Notes
    -----
    The standard error is DeLong's. Its square is at most A (1 - A) / min(n+, n-) for an area A and n+ positive and n-
    negative rows. If this bound already shows that the model is useful, the standard error is not computed.
    """
    if scores_tie(scores, comm):
        return ALL_TIED
    n_min = min(map(int, comm.sum(np.array([np.count_nonzero(labels > 0), np.count_nonzero(labels < 0)]))))
    if math.isnan(rocarea) or rocarea - 0.5 > ERRORS * math.sqrt(rocarea * (1 - rocarea) / n_min):
        return ""
    found = rocarea_estimate(placements(scores, labels, comm), labels, comm)
    error = 0.0 if math.isnan(found.error) else found.error
    if rocarea > 0.5 + ERRORS * error:
        return ""
    return f"its ROCArea on the training rows is {rocarea:.3f}, with a standard error of {error:.2g}; chance is 0.5"
