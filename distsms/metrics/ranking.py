"""The measures that are reported, computed from the rows of all ranks. Each of them defines how ties count.

- ROCArea: the share of correctly ordered pairs, a tie counting one half (equal to scikit-learn's roc_auc_score).
- PRBEP: the precision among the n+ highest scores. If scores tie at the n+-th place, it is the expected value over
  random orders of the tied rows. Precision equals recall there, hence the name: precision/recall break-even point.
- Precision@k and recall@k: the true positives among the k highest scores, divided by k and by n+; for k = n+ both are
  PRBEP.
- Average precision: the mean over positives of the precision among the rows that score at least as high (equal to
  scikit-learn's average_precision_score; tied rows count together).

A row of weight 3 counts as three rows. Then counts are sums of weights, in float64, and the place n+ of PRBEP is where
the weights of the highest scores add up to those of the positives. Rows of weight 0 must be left out before. Without
weights, all counts are integers, and only the final divisions round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.measures import ERROR_RATE, F_BETA, PRECISION_AT_K, Measure
from distsms.base.typing import Floats, Labels
from distsms.metrics.area_from_cells import enclosed_area, enclosed_placements
from distsms.metrics.contingency import contingency, ratio
from distsms.metrics.rivals import log_loss, normal_auc
from distsms.metrics.row_weights import mass_of_classes, masses, require_equal, select_by_weight
from distsms.metrics.tied_scores import TiedScores, tied_scores
from distsms.parallel.communicator import Communicator
from distsms.parallel.order_statistics import select
from distsms.parallel.order_statistics_kernels import twice_below


class Ranking(NamedTuple):
    """The measures that depend only on the order of the scores; NaN if a class has no rows."""

    rocarea: float
    prbep: float


PIECE, SORTED = 2**24, 2**20
"""At most so many rows of the smaller class are on all ranks, and so many rows are sorted, at a time."""
MANY = 2**24
"""If the smaller class has more rows, ROCArea is enclosed. Its standard error is larger than the interval."""


def ranking(scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None) -> Ranking:
    """Compute ROCArea and PRBEP of all ranks' (n_local,) scores, labels and weights, on every rank. **Collective.**"""
    return Ranking(rocarea(scores, labels, comm, weights), prbep(scores, labels, comm, weights))


def prbep(scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None) -> float:
    """Compute PRBEP of all ranks' (n_local,) scores, labels and weights, on every rank. **Collective.**"""
    return top_k(scores, labels, mass_of_classes(labels, weights, comm)[0], comm, weights).recall


class TopK(NamedTuple):
    """Measures of the k highest scores. If rows tie at the k-th place, they are means over all orders of these rows."""

    # precision@k and recall@k. Both are NaN if there are fewer than k rows or a score is not finite. Recall is also NaN
    # if no row is positive.
    precision: float
    recall: float
    # the mean of the k-th and the next lower score, so that about k rows are called positive. It is the k-th score
    # itself if the next place has the same score, if no score is lower, or if the mean is rounded to the lower one. NaN
    # where precision is.
    threshold: float


def top_k(scores: Floats, labels: Labels, k: float, comm: Communicator, weights: Floats | None = None) -> TopK:
    """Compute precision@k and recall@k of all ranks' scores, on every rank. **Collective**, about eight small
    Allreduces.

    k is the number of rows called positive, or the sum of their weights. With k = n+, both are equal to PRBEP.
    """
    at = _score_at(scores, k, comm, weights)
    if np.isnan(at):
        return TopK(np.nan, np.nan, np.nan)

    def groups() -> Iterator[NDArray[np.bool_]]:  # one after the other, to save memory
        positive = labels > 0
        for of in (np.greater, np.equal):
            yield of(scores, at)
            yield of(scores, at) & positive
        yield positive

    above_all, above_pos, tied_all, tied_pos, n_pos = masses(groups(), weights, comm).tolist()
    following = float(comm.maximum(np.array([np.max(scores, initial=-np.inf, where=scores < at)]))[0])
    taken = min(k - above_all, tied_all)  # how many of the tied rows are among the k highest
    tp = min(above_pos + tied_pos * (taken / tied_all), k, n_pos)  # sums of weights may exceed these by rounding
    middle = following / 2 + at / 2
    threshold = middle if taken == tied_all and following < middle else at
    return TopK(tp / k, ratio(tp, n_pos), threshold)


def _score_at(scores: Floats, k: float, comm: Communicator, weights: Floats | None) -> float:
    """Return the k-th highest score; NaN if there are fewer rows, or a score is not finite. Collective."""
    if weights is not None:
        return select_by_weight(scores, weights, k, comm)
    n = int(comm.sum(np.array([len(scores)]))[0])
    return select(scores, int(k), comm) if 1 <= k <= n else np.nan


def top_k_shares(scores: Floats, k: float, comm: Communicator, weights: Floats | None = None) -> Floats:
    """Return each row's share among the k highest scores, or among those of weight k. **Collective.**

    It is 1 above the k-th score and 0 below it. The rows with exactly the k-th score share the remaining places
    equally. All are 0 if there are fewer than k rows.
    """
    at = _score_at(scores, k, comm, weights)
    above, tied = scores > at, scores == at
    above_all, tied_all = masses((above, tied), weights, comm).tolist()
    return above + tied * (min(k - above_all, tied_all) / (tied_all or 1))


def measure_value(
    measure: str | Measure,
    scores: Floats,
    labels: Labels,
    threshold: float,
    comm: Communicator,
    weights: Floats | None = None,
) -> float:
    """Compute a measure given by its name, on every rank. The result is NaN where it is undefined. **Collective.**

    Error rate and F-beta call a row positive if its score is at least the threshold; the others do not use it. Raises
    InputError on all ranks for a measure at K of rows with different weights, since these measures count rows.
    """
    measure = Measure.parse(measure)
    family = measure.family
    if family.of_paper:
        return (rocarea if family.compares_pairs else prbep)(scores, labels, comm, weights)
    if measure.max_fpr is not None:
        from distsms.metrics.operating_points import partial_auc  # it imports this module

        return partial_auc(scores, labels, weights, measure.max_fpr, comm)
    if family.log_loss:
        return log_loss(scores, labels, comm, weights, family.balanced)
    if family.closed_form:
        return normal_auc(scores, labels, comm, weights)
    if measure.k:
        require_equal(weights, measure.name, comm)
        head = top_k(scores, labels, measure.k, comm)
        return head.precision if family == PRECISION_AT_K else head.recall
    table = contingency(scores, labels, threshold, comm, weights)
    if family == ERROR_RATE:
        return table.error_rate
    if family == F_BETA:
        return table.f(*measure.parameters)
    raise NotImplementedError(f"{measure.name}: say in measure_value how it is computed")


def rocarea(scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None) -> float:
    """Compute ROCArea of all ranks' scores, on every rank; NaN if a class has no rows. **Collective.**

    A pair has the product of both weights. The smaller class goes to every rank, in pieces, and each rank counts the
    pairs with its own rows of the other class. A rank receives 8 n_min bytes, with weights 16; and O((n_min + n_max/P)
    log n_min) time. If this class has more than `MANY` rows, the result is that of `area_from_cells.enclosed_area`.
    """
    low, high, lengths = _classes(scores, labels, comm, weights)
    n_low, n_high = map(int, lengths.sum(axis=0))
    if not (n_low and n_high):
        return float("nan")
    if n_low > MANY and not np.isnan(area := enclosed_area(scores, labels, weights, comm)):
        return area
    pieces = _pieces(low, lengths[:, 0], comm)
    if weights is not None:
        ordered, scores = 0.0, high.scores
        for piece in pieces:
            _, low_scores, reach = piece.in_order()
            for side in ("left", "right"):
                below = reach[np.searchsorted(low_scores, scores, side)]  # type: ignore[call-overload]
                ordered += float(np.sum(high.weights * below))
        of_low, of_high = (float(np.sum(of_class.weights)) for of_class in (low, high))
        ordered, of_low, of_high = comm.sum(np.array([ordered, of_low, of_high])).tolist()
        if not np.isfinite(ordered):
            return float("nan")
        return min(ordered / of_low / (2 * of_high), 1.0)  # above 1 by rounding where the classes do not overlap
    twice = sum(_twice_ordered(np.sort(piece.scores), high.blocks()) for piece in pieces)
    # The number is summed in two halves, since the sum may exceed 64 bits.
    upper, lower = map(int, comm.sum(np.array([twice >> 32, twice & 0xFFFFFFFF])))
    return ((upper << 32) + lower) / (2 * n_low * n_high)


def placements(scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None) -> NDArray[Any]:
    """Return twice the number of correctly ordered pairs that each row forms with the other class. **Collective.**

    A pair whose two scores are equal counts as half a correctly ordered pair, and each row of the other class by its
    weight. Divided by 2 n-, the results are DeLong's V10 of the positives; divided by 2 n+, their V01 of the negatives,
    with sums of weights for n- and n+. They are int64, with weights float64, and all 0 if a class has no rows. The cost
    is that of `rocarea`, and for each piece one more Allreduce, of as many numbers as the piece has rows. If the
    smaller class has more than `MANY` rows, they are those of `area_from_cells.enclosed_placements`.
    """
    low, high, lengths = _classes(scores, labels, comm, weights)
    if lengths[:, 0].sum() > MANY and (enclosed := enclosed_placements(scores, labels, weights, comm)) is not None:
        return enclosed
    kind: Any = np.int64 if weights is None else np.float64
    twice = np.zeros(len(scores), kind)
    of_low, of_high = [], high.scores
    for piece in _pieces(low, lengths[:, 0], comm):
        order, ordered, reach = piece.in_order()
        met = np.zeros(len(reach), kind)
        for side in ("left", "right"):
            below = np.searchsorted(ordered, of_high, side)  # type: ignore[call-overload]
            twice[high.rows] += reach[below]
            met += np.bincount(below, high.weights, len(met))
        of_piece = np.empty(len(order), kind)
        # met[b] is the number of rows of the larger class that have exactly b rows of the piece below them. Those with
        # b > k are above row k of the sorted piece.
        of_piece[order] = comm.sum(np.cumsum(met[:0:-1])[::-1].copy())
        of_low.append(of_piece[piece.here])
    twice[low.rows] = np.concatenate(of_low) if of_low else 0
    return twice


class _Class(NamedTuple):
    rows: NDArray[np.bool_]  # (n_local,)
    of_all: Floats  # (n_local,), the scores of all rows
    sign: int  # of the scores: +1 or -1
    weights: Any = None  # of these rows alone, float64; None without weights

    @property
    def scores(self) -> Floats:
        """The scores of these rows alone: a new array."""
        scores = self.of_all[self.rows]
        return np.multiply(scores, self.sign, out=scores)

    def blocks(self) -> Iterator[Floats]:
        """Yield the scores of these rows, some at a time."""
        for start in range(0, len(self.rows), SORTED):
            block = slice(start, start + SORTED)
            yield self.sign * self.of_all[block][self.rows[block]]


def _classes(
    scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None
) -> tuple[_Class, _Class, NDArray[np.int64]]:
    """Return the smaller class, the larger class, and each rank's number of rows in both, (P, 2). Collective.

    The returned scores are such that in a correctly ordered pair the first class has the lower score. So if the
    positives are the smaller class, the signs of all scores are changed.
    """
    classes = [labels < 0, labels > 0]
    lengths = np.array(comm.allgather([int(np.count_nonzero(rows)) for rows in classes]))
    sign, (n_neg, n_pos) = 1, lengths.sum(axis=0)
    if n_neg >= n_pos:
        sign, classes, lengths = -1, classes[::-1], lengths[:, ::-1]
    low, high = (_Class(rows, scores, sign, None if weights is None else weights[rows]) for rows in classes)
    return low, high, lengths


class _Piece(NamedTuple):
    """Some rows of a class, of all ranks."""

    scores: Floats  # (m,)
    weights: Floats | None  # (m,)
    here: slice  # this rank's rows

    def in_order(self) -> tuple[NDArray[np.intp], Floats, NDArray[Any]]:
        """Return the places of the rows in ascending order (m,), their scores, and how much is before each (m + 1,).

        That is how many rows, or the sum of their weights.
        """
        order = np.argsort(self.scores)
        if self.weights is None:
            return order, self.scores[order], np.arange(len(order) + 1)
        return order, self.scores[order], np.concatenate([[0.0], np.cumsum(self.weights[order])])


def _pieces(rows: _Class, lengths: NDArray[np.int64], comm: Communicator) -> Iterator[_Piece]:
    """Yield all ranks' rows on every rank, at most `PIECE` at a time (but at least one from each rank). Collective.

    lengths : (P,), the number of rows of each rank.
    """
    step, scores = max(1, PIECE // comm.size), rows.scores
    for start in range(0, int(lengths.max()), step):
        counts = np.clip(lengths - start, 0, step)
        before = int(counts[: comm.rank].sum())
        here = slice(before, before + int(counts[comm.rank]))
        piece = comm.allgather_rows(scores[start : start + step], counts.tolist())
        weights = None
        if rows.weights is not None:
            weights = comm.allgather_rows(rows.weights[start : start + step], counts.tolist())
        yield _Piece(piece, weights, here)


def exact_sum(values: NDArray[np.int64], comm: Communicator) -> int:
    """Return the sum of all ranks' (n_local,) whole numbers, which may exceed 64 bits. **Collective**, two numbers."""
    upper, lower = map(int, comm.sum(np.array([np.sum(values >> 16), np.sum(values & 0xFFFF)])))
    return (upper << 16) + lower


def _twice_ordered(low: Floats, blocks: Iterable[Floats]) -> int:
    """Return twice the number of pairs with low < high, a tie counting half; low is sorted. It may exceed 64 bits."""
    return sum(int(twice_below(low, np.sort(block))) for block in blocks)


def average_precision(scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None) -> float:
    """Compute the average precision of all ranks' scores, on every rank. **Collective.**

    It is NaN without positive rows, or if a score is NaN. The cost is that of `tied_scores.tied_scores`, which says
    what the parameters are.
    """
    return mean_precision(tied_scores(scores, labels, weights, comm), comm)


def mean_precision(tied: TiedScores, comm: Communicator) -> float:
    """Compute the average precision from sorted scores. **Collective**, one number."""
    if not tied.n_pos:
        return float("nan")
    return float(comm.sum(np.array([np.sum(tied.positive * (tied.tp / (tied.tp + tied.fp)))]))[0] / tied.n_pos)
