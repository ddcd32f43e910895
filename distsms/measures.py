"""What is reported to people: ROCArea, PRBEP and the contingency table, exact over all ranks, ties defined.

ROCArea: the share of correctly ordered pairs, a tie counting one half (equal to scikit-learn's roc_auc_score).
PRBEP: the precision among the n+ highest scores; where scores tie at that place, its expected value over random orders
of the tied rows. Precision equals recall there, hence the name.
Contingency table: a row is called positive where its score is at least the threshold.

All counts are integers; only the final divisions round. PRBEP needs some eight small Allreduces (`rootfinding`); for
ROCArea the scores are gathered on the root (8 n bytes there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.comm import Communicator
from distsms.rootfinding import select

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


class AtK(NamedTuple):
    """The k-th point of a ranking; where scores tie there, expected values over random orders of the tied rows."""

    precision: float
    recall: float
    threshold: float
    """Half-way between the k-th and the next score, so that k rows are called positive, or all that tie there."""


def ranking(scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> Ranking:
    """ROCArea, PRBEP and the PRBEP point of this rank's (n_local,) scores and labels, on every rank. Collective."""
    n_pos, n_neg = (int(n) for n in comm.sum(np.array([np.count_nonzero(labels > 0), np.count_nonzero(labels < 0)])))
    point = at_k(scores, labels, n_pos, comm) if n_pos else AtK(*[float("nan")] * 3)
    return Ranking(n_pos, n_neg, _gathered_rocarea(scores, labels, comm), point.precision, point.threshold)


def at_k(scores: Floats, labels: NDArray[np.int8], k: int, comm: Communicator) -> AtK:
    """Precision and recall among the k highest of all ranks' scores, and their threshold; PRBEP is k = n+.

    scores, labels : (n_local,); all NaN if a score is not finite.  k : from 1 to n, else InputError.
    Collective, some eight small Allreduces.
    """
    at = select(scores, k, comm)
    if np.isnan(at):
        return AtK(at, at, at)
    above, tied, positive = scores > at, scores == at, labels > 0
    groups = (above, above & positive, tied, tied & positive, positive)
    above_all, above_pos, tied_all, tied_pos, n_pos = map(
        int, comm.sum(np.array([np.count_nonzero(group) for group in groups]))
    )
    following = float(comm.maximum(np.array([np.max(scores[scores < at], initial=-np.inf)]))[0])
    wanted = k - above_all  # how many of the tied rows are among the k highest
    hits = above_pos + tied_pos * wanted / tied_all
    middle = following / 2 + at / 2
    threshold = middle if wanted == tied_all and following < middle else at
    return AtK(hits / k, hits / n_pos if n_pos else float("nan"), threshold)


def _gathered_rocarea(scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> float:
    whole, signs = comm.gather_rows(scores), comm.gather_rows(labels)
    value = None if whole is None or signs is None else rocarea(np.sort(whole[signs > 0]), np.sort(whole[signs < 0]))
    return comm.bcast(value)


def rocarea(positive: Floats, negative: Floats) -> float:
    """ROCArea of two sorted arrays of scores. Local. O(n log n); the number of pairs may pass 2^63."""
    if not (len(positive) and len(negative)):
        return float("nan")
    # Twice the ordered pairs: each tie counts one. Summed in two halves, since the sum may pass 64 bits.
    twice = np.searchsorted(negative, positive, "left") + np.searchsorted(negative, positive, "right")
    total = (int(np.sum(twice >> 32)) << 32) + int(np.sum(twice & 0xFFFFFFFF))
    return total / (2 * len(positive) * len(negative))


def contingency(scores: Floats, labels: NDArray[np.int8], threshold: float, comm: Communicator) -> Contingency:
    """The contingency table of this rank's (n_local,) scores and labels over all ranks. Collective, four numbers."""
    called, positive = scores >= threshold, labels > 0
    counts = [called & positive, called & ~positive, ~called & positive, ~called & ~positive]
    return Contingency(*(int(c) for c in comm.sum(np.array([np.count_nonzero(c) for c in counts]))))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
