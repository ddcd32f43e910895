"""What is reported to people: ROCArea, PRBEP and the contingency table, exact over all ranks, ties defined.

ROCArea: the share of correctly ordered pairs, a tie counting one half (equal to scikit-learn's roc_auc_score).
PRBEP: the precision among the n+ highest scores; where scores tie at that place, its expected value over random orders
of the tied rows. Precision equals recall there, hence the name.
Contingency table: a row is called positive where its score is at least the threshold.

All counts are integers; only the final divisions round. For ROCArea the smaller class goes to all ranks, in pieces; for
PRBEP the scores are gathered on the root (8 n bytes there).
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


PIECE = 2**24
"""Rows of the smaller class that all ranks hold at a time; tests lower it."""


def ranking(scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> Ranking:
    """ROCArea, PRBEP and the PRBEP point of this rank's (n_local,) scores and labels, on every rank. Collective."""
    n_pos, n_neg = map(int, comm.sum(np.array([np.count_nonzero(labels > 0), np.count_nonzero(labels < 0)])))
    return Ranking(n_pos, n_neg, rocarea(scores, labels, comm), *_prbep(scores, labels, comm))


def rocarea(scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> float:
    """ROCArea of this rank's (n_local,) scores and labels, on every rank; NaN where a class is missing. Collective.

    The smaller class comes to every rank, at most `PIECE` rows of it at a time (but one from each rank), and each
    counts its pairs with its own rows of the other: 8 n_min bytes received, O((n_min + n_max/P) log n_min).
    """
    positive, negative = scores[labels > 0], scores[labels < 0]
    lengths = np.array(comm.allgather((len(positive), len(negative))))
    n_pos, n_neg = map(int, lengths.sum(axis=0))
    if not (n_pos and n_neg):
        return float("nan")
    # With the signs changed, the positives are those that should be low.
    low, high, lengths = (negative, positive, lengths[:, 1]) if n_neg < n_pos else (-positive, -negative, lengths[:, 0])
    step = max(1, PIECE // comm.size)
    twice = 0
    for start in range(0, int(lengths.max()), step):
        counts = np.clip(lengths - start, 0, step).tolist()
        twice += _twice_ordered(np.sort(comm.allgather_rows(low[start : start + step], counts)), high)
    # In two halves, since the sum may pass 64 bits.
    upper, lower = map(int, comm.sum(np.array([twice >> 32, twice & 0xFFFFFFFF])))
    return ((upper << 32) + lower) / (2 * n_pos * n_neg)


def _twice_ordered(low: Floats, high: Floats) -> int:
    """Twice the pairs where low < high, each tie counting one; low sorted. Local. The sum may pass 64 bits."""
    twice = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return (int(np.sum(twice >> 32)) << 32) + int(np.sum(twice & 0xFFFFFFFF))


def _prbep(scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> tuple[float, float]:
    """PRBEP and the PRBEP point of this rank's (n_local,) scores and labels, on every rank. Collective."""
    everything = comm.gather_rows(scores), comm.gather_rows(labels)
    found = None
    if comm.is_root:
        whole, signs = everything
        assert whole is not None and signs is not None
        found = break_even(np.sort(whole[signs > 0]), np.sort(whole[signs < 0]))
    return comm.bcast(found)


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
