"""ROC and precision-recall curves over all ranks, thinned out for drawing, and histograms of scores.

A curve has exact counts (tp, fp) at descending thresholds, which each rank proposes from its sorted scores (`_offer`);
one Allreduce counts all rows there. No rank sends anything of size n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.scored import Scored
from distsms.base.typing import Floats

STEPS = 400
"""Approximate number of points of a curve for each class."""

TAIL = 0.002
"""Beyond each end of a histogram there is at most about this share of the rows of each class."""


@dataclass(frozen=True)
class Curve:
    """The numbers of rows, or sums of weights, from each threshold on, from none (infinity) to all. Global."""

    thresholds: Floats  # (m,) float64: the thresholds, descending
    tp: NDArray[Any]  # (m,) int64, or with weights float64: the positive rows with at least this score
    fp: NDArray[Any]  # likewise the negative rows

    @property
    def tpr(self) -> Floats:
        """The true positive rate, which is the recall."""
        return self.tp / (self.tp[-1] or 1)

    @property
    def fpr(self) -> Floats:
        """The false positive rate."""
        return self.fp / (self.fp[-1] or 1)

    def precision_recall(self) -> tuple[Floats, Floats]:
        """Return recall and precision for drawing, no straight line (Davis & Goadrich, ICML 2006, section 4)."""
        jumps = np.maximum(np.diff(self.tpr), np.diff(self.fpr))
        pieces = np.clip(np.ceil(100 * jumps), 1, 50).astype(int)
        places = np.concatenate([[0.0], *(k + np.arange(1, n + 1) / n for k, n in enumerate(pieces))])
        tp, fp = (np.interp(places, np.arange(len(count)), count) for count in (self.tp, self.fp))
        some = tp + fp > 0
        return tp[some] / (self.tp[-1] or 1), tp[some] / (tp[some] + fp[some])


def curve(scored: Scored, also: Sequence[float] = ()) -> Curve:
    """Compute the curve of all ranks' finite scores, alike on every rank, with points at the thresholds `also`; between
    two are at most about 3/`STEPS` of each class, but for ties. **Collective**, about 8 (2 STEPS + 128) P bytes."""
    comm = scored.comm
    classes, masses_from = zip(*(_in_order(scored.of(rows)) for rows in scored.classes), strict=True)
    n = comm.sum(np.array([len(ordered) for ordered in classes]))
    offers = [_offer(ordered, int(total), comm.size) for ordered, total in zip(classes, n, strict=True)]
    candidates = np.unique(np.concatenate(offers))
    of_ranks = comm.allgather_rows(candidates, comm.allgather(len(candidates)))
    thresholds = np.unique(np.concatenate([of_ranks, also]))[::-1]
    places = [np.searchsorted(ordered, thresholds, "left") for ordered in classes]
    tp, fp = comm.sum(np.array([masses[at] for masses, at in zip(masses_from, places, strict=True)]))
    tpr, fpr = (count / (count.max(initial=0) or 1) for count in (tp, fp))
    kept = _spread(tpr, fpr, np.isin(thresholds, also))
    columns = (np.inf, thresholds), (0, tp), (0, fp)
    return Curve(*(np.concatenate([[first], column[kept]]) for first, column in columns))


def _in_order(of_class: Scored) -> tuple[Floats, NDArray[Any]]:
    """Return the scores of some rows, ascending, (m,), and the rows or weights from each on, (m + 1,). Local."""
    if of_class.weights is None:
        return np.sort(of_class.scores), np.arange(len(of_class.scores), -1, -1)
    order = np.argsort(of_class.scores)
    return of_class.scores[order], np.append(np.cumsum(of_class.weights[order][::-1])[::-1], 0.0)


def _offer(ordered: Floats, total: int, size: int) -> Floats:
    """Choose thresholds from a class's ascending scores, total / (P STEPS) rows apart. Local."""
    from_above = ordered[::-1]
    step = max(1, total // (size * STEPS))
    powers = 2 ** np.arange(max(len(ordered), 1).bit_length())
    return np.concatenate([from_above[::step], from_above[-1:], from_above[powers[powers <= len(ordered)] - 1]])


def _spread(tpr: Floats, fpr: Floats, needed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the points to keep: wanted, the first 32, the last, and all at 1/STEPS or more from the one before."""
    kept = needed.copy()
    kept[-1:] = True
    last_tpr = last_fpr = 0.0
    for i in range(len(kept)):
        if i < 32 or kept[i] or max(tpr[i] - last_tpr, fpr[i] - last_fpr) >= 1 / STEPS:
            kept[i] = True
            last_tpr, last_fpr = float(tpr[i]), float(fpr[i])
    return kept


@dataclass(frozen=True)
class Histogram:
    """The number, or weight, of rows of each class by score, in bins of equal width; the outermost are open."""

    edges: Floats  # (m + 1,)
    positive: NDArray[Any]  # (m,)
    negative: NDArray[Any]  # (m,)


def histogram(scored: Scored, drawn: Curve, bins: int = 60) -> Histogram:
    """Compute the histogram of all ranks' scores, alike on every rank, in bins that leave about `TAIL` of each class
    beyond each end, by the curve `drawn`: an outlier would put all others into one bar. **Collective.**"""
    inner, ends = slice(1, None), []
    for share in (drawn.tpr, drawn.fpr):
        within = drawn.thresholds[inner][(share[inner] >= TAIL) & (share[inner] <= 1 - TAIL)]
        ends += [within.min(), within.max()] if len(within) else []
    ends = ends or drawn.thresholds[inner].tolist() or [0.0]
    low, high = min(ends), max(ends)
    if not low < high:
        low, high = low - max(abs(low), 1.0) / 2, high + max(abs(high), 1.0) / 2
    edges = np.linspace(low, high, bins + 1)
    place = np.clip(np.searchsorted(edges, scored.scores, "right") - 1, 0, bins - 1)
    kind = np.int64 if scored.weights is None else np.float64
    parts = [np.bincount(place[rows], scored.weights_of(rows), bins) for rows in scored.classes]
    counts = scored.comm.sum(np.array(parts, kind))
    return Histogram(edges, *counts)
