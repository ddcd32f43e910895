"""What is reported to people: ROCArea, PRBEP and the contingency table, exact over all ranks, ties defined.

ROCArea: the share of correctly ordered pairs, a tie counting one half (equal to scikit-learn's roc_auc_score).
PRBEP: the precision among the n+ highest scores; where scores tie at that place, its expected value over random orders
of the tied rows. Precision equals recall there, hence the name.
Precision@k, recall@k: the same among the k highest scores, over k and over n+; PRBEP is their value at k = n+.
Average precision: the mean over positives of the precision among the rows that score at least as high (equal to
scikit-learn's average_precision_score; tied rows count together).
Contingency table: a row is called positive where its score is at least the threshold.

All counts are integers; only the final divisions round. For ROCArea the smaller class goes to all ranks, in pieces; the
k-th highest score needs some eight small Allreduces (`distsms.parallel.order_statistics`). For average precision the
different scores are dealt out by ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.measures import Measure
from distsms.parallel.communicator import Communicator
from distsms.parallel.order_statistics import select
from distsms.utils.typing import Floats


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


PIECE = 2**24
"""Rows of the smaller class that all ranks hold at a time; tests lower it."""


def ranking(scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> Ranking:
    """ROCArea and PRBEP of this rank's (n_local,) scores and labels, on every rank. Collective."""
    n_pos, n_neg = map(int, comm.sum(np.array([np.count_nonzero(labels > 0), np.count_nonzero(labels < 0)])))
    return Ranking(n_pos, n_neg, rocarea(scores, labels, comm), at_k(scores, labels, n_pos, comm).recall)


class Head(NamedTuple):
    """The k highest scores: the expected values of both measures over random orders of the rows tied at the k-th.

    threshold : half-way between the k-th and the next score, so that about k rows are called positive.
    All are NaN where there are less than k rows, or scores are not finite; recall also where no row is positive.
    """

    precision: float
    recall: float
    threshold: float


def at_k(scores: Floats, labels: NDArray[np.int8], k: int, comm: Communicator) -> Head:
    """Precision@k and recall@k of this rank's (n_local,) scores and labels, on every rank.

    PRBEP is their value at k = n+. Collective, some eight small Allreduces.
    """
    n = int(comm.sum(np.array([len(scores)]))[0])
    at = select(scores, k, comm) if 1 <= k <= n else np.nan
    if np.isnan(at):
        return Head(np.nan, np.nan, np.nan)
    above, tied, positive = scores > at, scores == at, labels > 0
    groups = (above, above & positive, tied, tied & positive, positive)
    above_all, above_pos, tied_all, tied_pos, n_pos = map(
        int, comm.sum(np.array([np.count_nonzero(group) for group in groups]))
    )
    following = float(comm.maximum(np.array([np.max(scores[scores < at], initial=-np.inf)]))[0])
    wanted = k - above_all  # how many of the tied rows are among the k highest
    tp = above_pos + tied_pos * wanted / tied_all
    middle = following / 2 + at / 2
    threshold = middle if wanted == tied_all and following < middle else at
    return Head(tp / k, _ratio(tp, n_pos), threshold)


def among(scores: Floats, k: int, comm: Communicator) -> Floats:
    """How much of each of this rank's rows is among the k highest: 1 above the k-th score, 0 below, and of the rows
    tied there as many as are wanted, in equal shares. (n_local,); all 0 where there are less than k rows. Collective.
    """
    n = int(comm.sum(np.array([len(scores)]))[0])
    at = select(scores, k, comm) if 1 <= k <= n else np.nan
    above, tied = scores > at, scores == at
    above_all, tied_all = map(int, comm.sum(np.array([np.count_nonzero(above), np.count_nonzero(tied)])))
    return above + tied * ((k - above_all) / max(tied_all, 1))


def value(
    measure: str | Measure, scores: Floats, labels: NDArray[np.int8], threshold: float, comm: Communicator
) -> float:
    """The measure called `measure`, on every rank; NaN where it is not defined. Collective.

    What depends on a decision takes it at the threshold; precision@K and recall@K at the K highest scores.
    """
    measure = Measure.parse(measure)
    family = measure.family
    if family in ("rocarea", "prbep"):
        return float(getattr(ranking(scores, labels, comm), family))
    if measure.k:
        head = at_k(scores, labels, measure.k, comm)
        return head.precision if family == "precision@k" else head.recall
    table = contingency(scores, labels, threshold, comm)
    return table.error_rate if family == "error-rate" else table.f(*measure.parameters)


def rocarea(scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> float:
    """ROCArea of this rank's (n_local,) scores and labels, on every rank; NaN where a class is missing. Collective.

    The smaller class comes to every rank, at most `PIECE` rows of it at a time (but one from each rank), and each
    counts its pairs with its own rows of the other: 8 n_min bytes received, O((n_min + n_max/P) log n_min).
    """
    low, high, lengths = _classes(scores, labels, comm)
    n_low, n_high = map(int, lengths.sum(axis=0))
    if not (n_low and n_high):
        return float("nan")
    twice = sum(_twice_ordered(np.sort(piece), high.scores) for piece, _ in _pieces(low.scores, lengths[:, 0], comm))
    # In two halves, since the sum may pass 64 bits.
    upper, lower = map(int, comm.sum(np.array([twice >> 32, twice & 0xFFFFFFFF])))
    return ((upper << 32) + lower) / (2 * n_low * n_high)


def placements(scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> NDArray[np.int64]:
    """Twice the rows of the other class that each of this rank's rows is on the right side of, a tie counting one.

    (n_local,): over 2 n- these are DeLong's V10 for positives, over 2 n+ his V01 for negatives. All 0 where a class is
    missing. Collective, as `rocarea`, and each piece is summed over ranks once more.
    """
    low, high, lengths = _classes(scores, labels, comm)
    found = np.zeros(len(scores), np.int64)
    of_low = []
    for piece, own in _pieces(low.scores, lengths[:, 0], comm):
        order = np.argsort(piece)
        ordered, met = piece[order], np.zeros(len(piece) + 1, np.int64)
        for side in ("left", "right"):
            below = np.searchsorted(ordered, high.scores, side)  # type: ignore[call-overload]
            found[high.rows] += below
            met += np.bincount(below, minlength=len(met))
        of_piece = np.empty(len(piece), np.int64)
        # What has more than k of the piece below it lies above its k-th place.
        of_piece[order] = comm.sum(np.cumsum(met[:0:-1])[::-1].copy())
        of_low.append(of_piece[own])
    found[low.rows] = np.concatenate(of_low) if of_low else 0
    return found


class _Class(NamedTuple):
    rows: NDArray[np.bool_]  # (n_local,)
    scores: Floats  # of these rows alone


def _classes(scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> tuple[_Class, _Class, NDArray[np.int64]]:
    """The smaller class and the other one, in the order in which they should lie: where the smaller are the positives,
    with all signs changed. And how many rows each rank has of the two, (P, 2). Collective."""
    classes = [labels < 0, labels > 0]
    lengths = np.array(comm.allgather([int(np.count_nonzero(rows)) for rows in classes]))
    n_neg, n_pos = lengths.sum(axis=0)
    if n_neg >= n_pos:
        scores, classes, lengths = -scores, classes[::-1], lengths[:, ::-1]
    low, high = (_Class(rows, scores[rows]) for rows in classes)
    return low, high, lengths


def _pieces(rows: Floats, lengths: NDArray[np.int64], comm: Communicator) -> Iterator[tuple[Floats, slice]]:
    """All ranks' rows on every rank, at most `PIECE` at a time (but one from each rank), and where this rank's own are
    among them. lengths : (P,), rows of each rank. Collective."""
    step = max(1, PIECE // comm.size)
    for start in range(0, int(lengths.max()), step):
        counts = np.clip(lengths - start, 0, step)
        before = int(counts[: comm.rank].sum())
        own = slice(before, before + int(counts[comm.rank]))
        yield comm.allgather_rows(rows[start : start + step], counts.tolist()), own


def exact_sum(values: NDArray[np.int64], comm: Communicator) -> int:
    """The sum of all ranks' (n_local,) whole numbers, which may pass 64 bits. Collective, two numbers."""
    upper, lower = map(int, comm.sum(np.array([np.sum(values >> 16), np.sum(values & 0xFFFF)])))
    return (upper << 16) + lower


def _twice_ordered(low: Floats, high: Floats) -> int:
    """Twice the pairs where low < high, each tie counting one; low sorted. Local. The sum may pass 64 bits."""
    twice = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return (int(np.sum(twice >> 32)) << 32) + int(np.sum(twice & 0xFFFFFFFF))


SAMPLE = 512
"""Different scores of each rank, in the mean, that the ranges of `average_precision` are cut by; tests lower it."""


def average_precision(scores: Floats, labels: NDArray[np.int8], comm: Communicator) -> float:
    """Average precision of this rank's (n_local,) scores and labels, on every rank; NaN without positives, or if a
    score is NaN. Collective.

    A sample sort: each rank gets a range of the different scores, with how many rows of each class have them, and is
    told how many lie above its range. A rank sends 16 bytes for each different score of a class that it has, and
    holds at most about 1/P + 2/SAMPLE of all ranks'; O((n/P) log n).
    """
    classes = [np.unique(scores[one], return_counts=True) for one in (labels > 0, labels < 0)]
    sizes = [np.count_nonzero(labels > 0), np.count_nonzero(np.isnan(scores)), *(len(values) for values, _ in classes)]
    n_pos, undefined, *different = map(int, comm.sum(np.array(sizes)))
    if undefined or not n_pos:
        return float("nan")
    # Each of the sample stands for as many scores, so that its quantiles are those of all, but for 2 P steps.
    step = -(-sum(different) // (SAMPLE * comm.size))
    own = np.concatenate([values[::step] for values, _ in classes])
    sample = np.sort(comm.allgather_rows(own, comm.allgather(len(own))))
    splitters = sample[len(sample) * np.arange(1, comm.size) // comm.size]
    ranges = [_own_range(values, counts, splitters, comm) for values, counts in classes]
    # How many rows of both classes have at least the score of each positive.
    positive, counts, _ = ranges[0]
    tp, fp = (reach[np.searchsorted(values, positive)] for values, _, reach in ranges)
    return float(comm.sum(np.array([np.sum(counts * (tp / (tp + fp)))]))[0] / n_pos)


def _own_range(
    values: Floats, counts: NDArray[np.int64], splitters: Floats, comm: Communicator
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """This rank's range of a class, from all ranks' sorted scores and their counts: both, sorted, and how many rows of
    all ranks lie at or above each place, (scores + 1,). Collective."""
    to = np.bincount(np.searchsorted(splitters, values, "right"), minlength=comm.size)
    values, counts = (comm.alltoall_rows(one, to)[0] for one in (values, counts))
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    reach = np.cumsum(np.append(counts, 0)[::-1])[::-1]
    return values, counts, reach + sum(comm.allgather(int(reach[0]))[comm.rank + 1 :])


def contingency(scores: Floats, labels: NDArray[np.int8], threshold: float, comm: Communicator) -> Contingency:
    """The contingency table of this rank's (n_local,) scores and labels over all ranks. Collective, four numbers."""
    called, positive = scores >= threshold, labels > 0
    counts = [called & positive, called & ~positive, ~called & positive, ~called & ~positive]
    return Contingency(*(int(c) for c in comm.sum(np.array([np.count_nonzero(c) for c in counts]))))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
