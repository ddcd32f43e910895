"""What is reported to people: ROCArea, PRBEP and the contingency table, exact over all ranks, ties defined.

ROCArea: the share of correctly ordered pairs, a tie counting one half (equal to scikit-learn's roc_auc_score).
PRBEP: the precision among the n+ highest scores; where scores tie at that place, its expected value over random orders
of the tied rows. Precision equals recall there, hence the name.
Contingency table: a row is called positive where its score is at least the threshold.

All counts are integers; only the final divisions round. The scores are gathered on the root (8 n bytes there).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distsms.comm import Communicator

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Contingency:
    """Counts at a threshold. Ratios without a denominator are NaN."""

    tp: int
    fp: int
    fn: int
    tn: int

    @property
    def precision(self) -> float:
        """tp / (tp + fp)."""
        return _ratio(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float:
        """tp / (tp + fn)."""
        return _ratio(self.tp, self.tp + self.fn)

    @property
    def f1(self) -> float:
        """2 tp / (2 tp + fp + fn), the harmonic mean of precision and recall."""
        return _ratio(2 * self.tp, 2 * self.tp + self.fp + self.fn)

    @property
    def error_rate(self) -> float:
        """(fp + fn) / n."""
        return _ratio(self.fp + self.fn, self.tp + self.fp + self.fn + self.tn)


@dataclass(frozen=True)
class Ranking:
    """The measures that depend on the order of the scores alone; NaN where a class is missing."""

    n_pos: int
    n_neg: int
    rocarea: float
    prbep: float
    threshold: float
    """The PRBEP point: half-way between the n+-th and the next score, so that about n+ rows are called positive."""


def ranking(scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> Ranking:
    """ROCArea, PRBEP and the PRBEP point of this rank's (n_local,) scores and labels, on every rank. Collective."""
    everything = comm.gather_rows(scores), comm.gather_rows(labels)
    found = None
    if comm.is_root:
        whole, signs = everything
        assert whole is not None and signs is not None
        positive, negative = np.sort(whole[signs > 0]), np.sort(whole[signs < 0])
        roc = rocarea(positive, negative)
        found = Ranking(len(positive), len(negative), roc, *break_even(positive, negative))
    return comm.bcast(found)


def rocarea(positive: Floats, negative: Floats) -> float:
    """ROCArea of two sorted arrays of scores. Local. O(n log n); the number of pairs may pass 2^63."""
    if not (len(positive) and len(negative)):
        return float("nan")
    # Twice the ordered pairs: each tie counts one. Summed in two halves, since the sum may pass 64 bits.
    twice = np.searchsorted(negative, positive, "left") + np.searchsorted(negative, positive, "right")
    total = (int(np.sum(twice >> 32)) << 32) + int(np.sum(twice & 0xFFFFFFFF))
    return total / (2 * len(positive) * len(negative))


def break_even(positive: Floats, negative: Floats) -> tuple[float, float]:
    """PRBEP and its threshold from two sorted arrays of scores. Local. O(n)."""
    n_pos, n = len(positive), len(positive) + len(negative)
    if not n_pos:
        return float("nan"), float("nan")
    both = np.concatenate([positive, negative])
    at = np.partition(both, n - n_pos)[n - n_pos]  # the n+-th largest score
    above_pos, above_neg = _above(positive, at), _above(negative, at)
    tied_pos = n_pos - above_pos - int(np.searchsorted(positive, at, "left"))
    tied_neg = len(negative) - above_neg - int(np.searchsorted(negative, at, "left"))
    wanted = n_pos - above_pos - above_neg  # how many of the tied rows are among the n+ highest
    value = (above_pos + tied_pos * wanted / (tied_pos + tied_neg)) / n_pos
    below = both[both < at]
    if wanted < tied_pos + tied_neg or not len(below):
        return value, float(at)
    following = float(below.max())
    middle = following + (float(at) - following) / 2
    return value, middle if following < middle else float(at)


def contingency(scores: Floats, labels: NDArray[np.int8], threshold: float, comm: Communicator) -> Contingency:
    """The contingency table of this rank's (n_local,) scores and labels over all ranks. Collective, four numbers."""
    called, positive = scores >= threshold, labels > 0
    counts = [called & positive, called & ~positive, ~called & positive, ~called & ~positive]
    return Contingency(*(int(c) for c in comm.sum(np.array([np.count_nonzero(c) for c in counts]))))


def _above(ascending: Floats, value: float) -> int:
    return len(ascending) - int(np.searchsorted(ascending, value, "right"))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
