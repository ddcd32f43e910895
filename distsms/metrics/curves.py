"""ROC and precision-recall curves over all ranks, thinned for drawing, and histograms of scores.

A curve is the counts (tp, fp) at descending thresholds; here exact counts, at thresholds of which there are enough for
the eye. Each rank offers every s-th of its sorted scores of either class, and the 1st, 2nd, 4th, 8th, ... highest. One
Allreduce counts all rows at the offers of all ranks; points that are within 1/`STEPS` of the one before, in both
directions, are left out. Nothing of size n leaves a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats

STEPS = 400
"""Points of a curve for each class, about."""

TAIL = 0.002
"""Share of each class's rows, at the most about, that lie beyond either end of a histogram."""


@dataclass(frozen=True)
class Curve:
    """Counts of rows with a score of at least each threshold, (m,), from none (threshold infinite) to all of
    them."""

    thresholds: Floats
    tp: NDArray[np.int64]
    fp: NDArray[np.int64]

    @property
    def tpr(self) -> Floats:
        """True positive rate, which is recall."""
        return self.tp / max(self.tp[-1], 1)

    @property
    def fpr(self) -> Floats:
        """False positive rate."""
        return self.fp / max(self.fp[-1], 1)

    @property
    def precision(self) -> Floats:
        """tp / (tp + fp), NaN at the first point, where nothing is called positive."""
        return np.concatenate([[np.nan], self.tp[1:] / (self.tp[1:] + self.fp[1:])])


def curve(scores: Floats, labels: NDArray[np.int8], comm: Communicator, also: Sequence[float] = ()) -> Curve:
    """The curve of this rank's (n_local,) finite scores, on every rank; at the thresholds `also` in any case.

    Between two neighbouring points lies at most some 3/`STEPS` of each class, unless their scores are neighbours too.
    Collective: at most some 8 (2 STEPS + 128) P bytes gathered, twice as much reduced; O(n_local log n_local).
    """
    classes = [np.sort(scores[labels > 0]), np.sort(scores[labels < 0])]
    n = comm.sum(np.array([len(one) for one in classes]))
    own = np.unique(np.concatenate([_offer(one, int(total), comm.size) for one, total in zip(classes, n, strict=True)]))
    offers = np.unique(np.concatenate([comm.allgather_rows(own, comm.allgather(len(own))), also]))[::-1]
    tp, fp = comm.sum(np.array([len(one) - np.searchsorted(one, offers, "left") for one in classes]))
    kept = _spread(tp / max(n[0], 1), fp / max(n[1], 1), np.isin(offers, also))
    thresholds, tp, fp = (np.concatenate([[none], one[kept]]) for none, one in ((np.inf, offers), (0, tp), (0, fp)))
    return Curve(thresholds, tp, fp)


def _offer(ordered: Floats, total: int, size: int) -> Floats:
    """Some of this rank's scores of a class, ascending, of which there are `total` over all ranks. Local.

    With P ranks s is total / (P STEPS): what lies between two offers of its rank is less than s of each rank's rows.
    """
    from_above = ordered[::-1]
    step = max(1, total // (size * STEPS))
    powers = 2 ** np.arange(max(len(ordered), 1).bit_length())
    return np.concatenate([from_above[::step], from_above[-1:], from_above[powers[powers <= len(ordered)] - 1]])


def _spread(tpr: Floats, fpr: Floats, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which points to keep: those wanted, the first 32, the last, and each that is 1/STEPS from the one before."""
    kept = wanted.copy()
    kept[-1:] = True
    last_tpr = last_fpr = 0.0
    for i in range(len(kept)):
        if i < 32 or kept[i] or max(tpr[i] - last_tpr, fpr[i] - last_fpr) >= 1 / STEPS:
            kept[i] = True
            last_tpr, last_fpr = float(tpr[i]), float(fpr[i])
    return kept


@dataclass(frozen=True)
class Histogram:
    """Rows of each class by score, in bins of equal width; the outermost also hold what lies beyond them."""

    edges: Floats  # (m + 1,)
    positive: NDArray[np.int64]  # (m,)
    negative: NDArray[np.int64]  # (m,)


def histogram(scores: Floats, labels: NDArray[np.int8], drawn: Curve, comm: Communicator, bins: int = 60) -> Histogram:
    """The histogram of this rank's (n_local,) scores over all ranks, from `drawn`, their curve. Collective, 2 bins
    numbers. Its ends leave out the last `TAIL` of each class, or else an outlier would make all the rest one bar."""
    inner, ends = slice(1, -1), []
    for share in (drawn.tpr, drawn.fpr):
        within = drawn.thresholds[inner][(share[inner] >= TAIL) & (share[inner] <= 1 - TAIL)]
        ends += [within.min(), within.max()] if len(within) else []
    ends = ends or [drawn.thresholds[inner].min(initial=0.0), drawn.thresholds[inner].max(initial=0.0)]
    low, high = min(ends), max(ends)
    if not low < high:
        low, high = low - max(abs(low), 1.0) / 2, high + max(abs(high), 1.0) / 2
    edges = np.linspace(low, high, bins + 1)
    place = np.clip(np.searchsorted(edges, scores, "right") - 1, 0, bins - 1)
    counts = comm.sum(np.array([np.bincount(place[rows], minlength=bins) for rows in (labels > 0, labels < 0)]))
    return Histogram(edges, *counts)
