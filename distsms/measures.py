"""What is reported to people: ROCArea, PRBEP and the contingency table, exact over all ranks, ties defined.

ROCArea: the share of correctly ordered pairs, a tie counting one half (equal to scikit-learn's roc_auc_score).
PRBEP: the precision among the n+ highest scores; where scores tie at that place, its expected value over random orders
of the tied rows. Precision equals recall there, hence the name.
Precision@k, recall@k: the same among the k highest scores, over k and over n+; PRBEP is their value at k = n+.
Contingency table: a row is called positive where its score is at least the threshold.

All counts are integers; only the final divisions round. The scores are gathered on the root (8 n bytes there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms import measure_names
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

    def f(self, beta: float) -> float:
        """(1 + beta^2) tp / ((1 + beta^2) tp + beta^2 fn + fp): above 1 recall counts for more, below 1 precision."""
        true = (1 + beta * beta) * self.tp
        return _ratio(true, true + beta * beta * self.fn + self.fp)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return self.f(1.0)

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


def ranking(scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> Ranking:
    """ROCArea and PRBEP of this rank's (n_local,) scores and labels, on every rank. Collective."""
    everything = comm.gather_rows(scores), comm.gather_rows(labels)
    found = None
    if comm.is_root:
        whole, signs = everything
        assert whole is not None and signs is not None
        positive, negative = np.sort(whole[signs > 0]), np.sort(whole[signs < 0])
        roc = rocarea(positive, negative)
        found = Ranking(len(positive), len(negative), roc, _head(positive, negative, len(positive)).recall)
    return comm.bcast(found)


class Head(NamedTuple):
    """The k highest scores: the expected values of both measures over random orders of the rows tied at the k-th.

    threshold : half-way between the k-th and the next score, so that about k rows are called positive.
    All are NaN where there are less than k rows; recall also where there is no positive row.
    """

    precision: float
    recall: float
    threshold: float


def at_k(scores: Floats, labels: NDArray[np.int8], k: int, comm: Communicator) -> Head:
    """Precision@k and recall@k of this rank's (n_local,) scores and labels, on every rank; k >= 1. Collective."""
    whole, signs = comm.gather_rows(scores), comm.gather_rows(labels)
    found = None if whole is None or signs is None else _head(whole[signs > 0], whole[signs < 0], k)
    return comm.bcast(found)


def value(measure: str, scores: Floats, labels: NDArray[np.int8], threshold: float, comm: Communicator) -> float:
    """The measure called `measure`, on every rank; NaN where it is not defined. Collective.

    What depends on a decision takes it at the threshold; precision@K and recall@K at the K highest scores.
    """
    family, parameters = measure_names.parse(measure)
    if family in ("rocarea", "prbep"):
        return float(getattr(ranking(scores, labels, comm), family))
    if k := measure_names.at(measure):
        head = at_k(scores, labels, k, comm)
        return head.precision if family == "precision@k" else head.recall
    table = contingency(scores, labels, threshold, comm)
    return table.error_rate if family == "error-rate" else table.f(*parameters)


def rocarea(positive: Floats, negative: Floats) -> float:
    """ROCArea of two sorted arrays of scores. Local. O(n log n); the number of pairs may pass 2^63."""
    if not (len(positive) and len(negative)):
        return float("nan")
    # Twice the ordered pairs: each tie counts one. Summed in two halves, since the sum may pass 64 bits.
    twice = np.searchsorted(negative, positive, "left") + np.searchsorted(negative, positive, "right")
    total = (int(np.sum(twice >> 32)) << 32) + int(np.sum(twice & 0xFFFFFFFF))
    return total / (2 * len(positive) * len(negative))


def _head(positive: Floats, negative: Floats, k: int) -> Head:
    """See `Head`; from all scores of the classes, in any order. Local. O(n)."""
    n_pos, n = len(positive), len(positive) + len(negative)
    if not 1 <= k <= n:
        return Head(float("nan"), float("nan"), float("nan"))
    both = np.concatenate([positive, negative])
    at = np.partition(both, n - k)[n - k]  # the k-th largest score
    above_pos, above_neg = int(np.count_nonzero(positive > at)), int(np.count_nonzero(negative > at))
    tied_pos, tied_neg = int(np.count_nonzero(positive == at)), int(np.count_nonzero(negative == at))
    wanted = k - above_pos - above_neg  # how many of the tied rows are among the k highest
    tp = above_pos + _ratio(tied_pos * wanted, tied_pos + tied_neg)  # NaN where scores are
    threshold = float(at)
    below = both[both < at]
    if wanted == tied_pos + tied_neg and len(below):
        following = float(below.max())
        middle = following + (threshold - following) / 2
        threshold = middle if following < middle else threshold
    return Head(tp / k, _ratio(tp, n_pos), threshold)


def contingency(scores: Floats, labels: NDArray[np.int8], threshold: float, comm: Communicator) -> Contingency:
    """The contingency table of this rank's (n_local,) scores and labels over all ranks. Collective, four numbers."""
    called, positive = scores >= threshold, labels > 0
    counts = [called & positive, called & ~positive, ~called & positive, ~called & ~positive]
    return Contingency(*(int(c) for c in comm.sum(np.array([np.count_nonzero(c) for c in counts]))))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
