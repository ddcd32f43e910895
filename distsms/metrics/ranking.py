"""The measures that are reported, computed from the rows of all ranks. Each of them defines how ties count.

- ROCArea: the share of correctly ordered pairs, a tie counting one half (scikit-learn's roc_auc_score).
- PRBEP: the precision, and recall, among the n+ highest scores; ties by the mean over their orders.
- Average precision: the mean over positives of the precision among rows that score at least as high.

With weights, counts are sums of weights. Without, all counts are integers, and only the final divisions round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads scipy.special when it is used, which saves time in each start
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.measures import ERROR_RATE, F_BETA, PRECISION_AT_K, Measure
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.metrics.operating_points import contingency, partial_area, ratio
from distsms.metrics.row_weights import mass_of_classes, masses, mean_and_deviation, require_equal, select_by_weight
from distsms.metrics.tied_scores import TiedScores, tied_scores
from distsms.parallel.order_statistics import select


class Ranking(NamedTuple):
    """The measures that depend only on the order of the scores; NaN if a class has no rows."""

    rocarea: float
    prbep: float


PIECE, SORTED = 2**24, 2**20
"""At most so many rows of the smaller class are on all ranks, and so many rows are sorted, at a time."""
MANY = 2**24
"""If the smaller class has more rows, ROCArea is enclosed. Its standard error is larger than the interval."""
CELLS, WIDTH, DIVISIONS = 2**18, 1e-5, 3
"""The cells of `enclosed_area`, the share of pairs that may be in them, and how often the worst ones are divided."""


def ranking(scored: Scored) -> Ranking:
    """Compute ROCArea and PRBEP of all ranks' rows, on every rank. **Collective.**"""
    return Ranking(rocarea(scored), prbep(scored))


def prbep(scored: Scored) -> float:
    """Compute PRBEP of all ranks' rows, on every rank. **Collective.**"""
    return top_k(scored, mass_of_classes(scored)[0]).recall


class TopK(NamedTuple):
    """Measures of the k highest scores. If rows tie at the k-th place, they are means over all orders of these rows."""

    precision: float  # NaN, as all others, if there are fewer than k rows or a score is not finite
    recall: float  # also NaN if no row is positive
    # the mean of the k-th and the next lower score, so that about k rows are called positive; the k-th score itself if
    # the next place has the same score, if no score is lower, or if the mean is rounded to the lower one
    threshold: float


def top_k(scored: Scored, k: float) -> TopK:
    """Compute precision@k and recall@k, k by number or weight; both are PRBEP for k = n+. **Collective.**"""
    scores, comm, kth_score = scored.scores, scored.comm, score_at(scored, k)
    if np.isnan(kth_score):
        return TopK(np.nan, np.nan, np.nan)

    def groups() -> Iterator[NDArray[np.bool_]]:  # one after the other, to save memory
        positive = scored.labels > 0
        for compare in (np.greater, np.equal):
            yield compare(scores, kth_score)
            yield compare(scores, kth_score) & positive
        yield positive

    rows_above, positives_above, rows_tied, positives_tied, n_pos = masses(groups(), scored.weights, comm).tolist()
    next_score = float(comm.maximum(np.array([np.max(scores, initial=-np.inf, where=scores < kth_score)]))[0])
    taken = min(k - rows_above, rows_tied)  # how many of the tied rows are among the k highest
    expected = positives_above + positives_tied * (taken / rows_tied)
    tp = min(expected, k, n_pos)  # sums of weights may exceed these by rounding
    middle = next_score / 2 + kth_score / 2
    threshold = middle if taken == rows_tied and next_score < middle else kth_score
    return TopK(tp / k, ratio(tp, n_pos), threshold)


def decision_threshold(calls_positive: int | None, scored: Scored) -> float:
    """Return the score from which `calls_positive` rows, in proportion by weight, are positive. **Collective.**"""
    if calls_positive is None:
        return 0.0
    k: float = calls_positive
    if scored.weights is not None:
        k *= mass_of_classes(scored)[0] / mass_of_classes(replace(scored, weights=None))[0]
    return top_k(scored, k).threshold


def score_at(scored: Scored, k: float) -> float:
    """Return the k-th highest score, by number or weight; NaN if rows are fewer or not all finite. **Collective.**"""
    if scored.weights is not None:
        return select_by_weight(scored, k)
    n = int(scored.comm.sum(np.array([len(scored.scores)]))[0])
    return select(scored.scores, int(k), scored.comm) if 1 <= k <= n else np.nan


def top_k_shares(scored: Scored, k: float) -> Floats:
    """Return each row's share among the k highest scores, by number or weight, equal in ties. **Collective.**"""
    at = score_at(scored, k)
    above, tied = scored.scores > at, scored.scores == at
    above_all, tied_all = masses((above, tied), scored.weights, scored.comm).tolist()
    return above + tied * (min(k - above_all, tied_all) / (tied_all or 1))


def measure_value(measure: str | Measure, scored: Scored, threshold: float) -> float:
    """Compute a measure by its name, or NaN; InputError at K for rows of different weights. **Collective.**"""
    measure = Measure.parse(measure)
    family = measure.family
    if family.of_paper:
        return (rocarea if family.compares_pairs else prbep)(scored)
    if measure.max_fpr is not None:
        return partial_area(tied_scores(scored), measure.max_fpr, scored.comm)
    if family.log_loss:
        return log_loss(scored, family.balanced)
    if family.closed_form:
        return normal_auc(scored)
    if measure.k:
        require_equal(scored.weights, measure.name, scored.comm)
        head = top_k(replace(scored, weights=None), measure.k)
        return head.precision if family == PRECISION_AT_K else head.recall
    table = contingency(scored, threshold)
    if family == ERROR_RATE:
        return table.error_rate
    if family == F_BETA:
        return table.f(*measure.parameters)
    raise NotImplementedError(f"{measure.name}: say in measure_value how it is computed")


def rocarea(scored: Scored) -> float:
    """Compute ROCArea of all ranks' scores, by products of weights; NaN without a class. The smaller class goes to
    every rank in pieces, 8 or 16 n_min bytes; above `MANY` rows, it is `enclosed_area`. **Collective.**"""
    comm, (low, high, lengths) = scored.comm, _classes(scored)
    n_low, n_high = map(int, lengths.sum(axis=0))
    if not (n_low and n_high):
        return float("nan")
    if n_low > MANY and not np.isnan(area := enclosed_area(scored)):
        return area
    pieces = _pieces(low, lengths[:, 0], comm)
    if scored.weights is not None:
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


def placements(scored: Scored) -> NDArray[Any]:
    """Return twice the number (int64), or weight (float64), of correctly ordered pairs of each row with the other
    class, ties as a half. Divided by 2 n- they are DeLong's V10 of the positives, by 2 n+ V01 of the negatives; 0
    without a class. Cost as `rocarea`, and an Allreduce for each piece. **Collective.**"""
    comm, (low, high, lengths) = scored.comm, _classes(scored)
    if lengths[:, 0].sum() > MANY and (enclosed := enclosed_placements(scored)) is not None:
        return enclosed
    kind: Any = np.int64 if scored.weights is None else np.float64
    twice = np.zeros(len(scored.scores), kind)
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


def _classes(scored: Scored) -> tuple[_Class, _Class, NDArray[np.int64]]:
    """Return the smaller class, the larger class, with signs so that the first has the lower score in correctly ordered
    pairs, and each rank's number of rows in both, (P, 2). **Collective.**"""
    classes = scored.classes[::-1]
    lengths = np.array(scored.comm.allgather([int(np.count_nonzero(rows)) for rows in classes]))
    sign, (n_neg, n_pos) = 1, lengths.sum(axis=0)
    if n_neg >= n_pos:
        sign, classes, lengths = -1, classes[::-1], lengths[:, ::-1]
    low, high = (_Class(rows, scored.scores, sign, scored.weights_of(rows)) for rows in classes)
    return low, high, lengths


class _Piece(NamedTuple):
    """Some rows of a class, of all ranks."""

    scores: Floats  # (m,)
    weights: Floats | None  # (m,)
    here: slice  # this rank's rows

    def in_order(self) -> tuple[NDArray[np.intp], Floats, NDArray[Any]]:
        """Return the rows' places in ascending order (m,), their scores, and rows or weights before each (m + 1,)."""
        order = np.argsort(self.scores)
        if self.weights is None:
            return order, self.scores[order], np.arange(len(order) + 1)
        return order, self.scores[order], np.concatenate([[0.0], np.cumsum(self.weights[order])])


def _pieces(rows: _Class, lengths: NDArray[np.int64], comm: Communicator) -> Iterator[_Piece]:
    """Yield all ranks' rows, of these lengths (P,), on every rank, at most about `PIECE` at a time. **Collective.**"""
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
    twice = 0
    for high in map(np.sort, blocks):  # searches for increasing numbers take less time, and so do those for few ones
        few, many = (low, high) if len(low) < len(high) else (high, low)
        below = sum(int(np.searchsorted(many, few, side).sum()) for side in ("left", "right"))
        twice += below if few is high else 2 * len(low) * len(high) - below
    return twice


def average_precision(scored: Scored) -> float:
    """Compute average precision; NaN without positive rows. Cost as of `tied_scores.tied_scores`. **Collective.**"""
    return mean_precision(tied_scores(scored), scored.comm)


def mean_precision(tied: TiedScores, comm: Communicator) -> float:
    """Compute the average precision from sorted scores. **Collective**, one number."""
    if not tied.n_pos:
        return float("nan")
    return float(comm.sum(np.array([np.sum(tied.positive * (tied.tp / (tied.tp + tied.fp)))]))[0] / tied.n_pos)


def log_loss(scored: Scored, balanced: bool = False) -> float:
    """Return the mean of -log(1 / (1 + exp(-y s))), or of both classes' means if `balanced`; or NaN. **Collective.**"""
    weighted = scored.mass * np.logaddexp(0.0, -scored.labels * scored.scores)
    sums = scored.comm.sum(np.array([np.sum(weighted[rows]) for rows in scored.classes]))
    masses = np.array(mass_of_classes(scored))
    with np.errstate(invalid="ignore"):
        return float(np.mean(sums / masses) if balanced else np.sum(sums) / np.sum(masses))


def normal_auc(scored: Scored) -> float:
    """Return Phi((m+ - m-) / sqrt(v+ + v-)) of the scores; 1/2 if all are equal, or NaN. **Collective.**"""
    means, deviations = zip(*(mean_and_deviation(scored.of(rows)) for rows in scored.classes), strict=True)
    deviation, ahead = math.hypot(*deviations), means[0] - means[1]
    if math.isnan(ahead):
        return math.nan
    return float(scipy.special.ndtr(ahead / deviation)) if deviation else 0.5 + 0.5 * float(np.sign(ahead))


class Cells(NamedTuple):
    """What all ranks' rows have in each cell; the first row of an array is that of the negative rows."""

    edges: Floats  # one less than cells: one cell is below the first edge, and one begins at each edge
    mass: Floats  # (2, cells): the number of rows, or the sum of their weights
    low: Floats  # (cells,): the lowest and the highest score; low > high in an empty cell
    high: Floats


def enclosed_area(scored: Scored) -> float:
    """Return a number that differs from ROCArea by at most half of `WIDTH`; NaN if there is none. **Collective.**

    No class is sent to all ranks: rows are counted by score into cells, 32 bytes each. Pairs from different cells are
    in a known order, and those of a single score are ties; the others count as ties, too, in the middle of the interval
    that they make. If pairs in cells are more than `WIDTH` of all, the worst cells are divided.
    """
    if (cells := _narrow_cells(scored)) is None:
        return math.nan
    negative, positive = cells.mass / cells.mass.sum(axis=1, keepdims=True)
    return float(positive @ (np.cumsum(negative) - negative / 2))


def enclosed_placements(scored: Scored) -> NDArray[Any] | None:
    """Return `placements` as if rows of a cell were ties; None where `enclosed_area` is NaN. **Collective.**"""
    if (cells := _narrow_cells(scored)) is None:
        return None
    negative, positive = cells.mass.astype(np.int64) if scored.weights is None else cells.mass
    of_positive, of_negative = 2 * np.cumsum(negative) - negative, 2 * np.cumsum(positive[::-1])[::-1] - positive
    twice = np.empty(len(scored.scores), of_positive.dtype)
    for start in range(0, len(twice), SORTED):
        block = slice(start, start + SORTED)
        cell = np.searchsorted(cells.edges, scored.scores[block], "right")
        twice[block] = np.where(scored.labels[block] > 0, of_positive[cell], of_negative[cell])
    return twice


def _narrow_cells(scored: Scored) -> Cells | None:
    """Return cells with at most `WIDTH` of all pairs in unknown order; None if there are none. **Collective.**"""
    scores, comm = scored.scores, scored.comm
    n, undefined = comm.sum(np.array([len(scores), np.count_nonzero(np.isnan(scores))])).tolist()
    if undefined:
        return None
    some = scores[:: -(-n // CELLS)]
    sample, times = np.unique(comm.allgather_rows(some, comm.allgather(len(some))), return_counts=True)
    edges = np.union1d(sample, np.nextafter(sample[times > 1], np.inf))  # a score that many rows have is a cell
    for _ in range(DIVISIONS + 1):
        cells = _count(scored, edges)
        negative, positive = cells.mass / cells.mass.sum(axis=1, keepdims=True)
        unknown = negative * positive * (cells.low < cells.high)
        if np.sum(unknown) <= WIDTH:
            return cells
        worst = np.argsort(-unknown, kind="stable")[: CELLS // 16]
        low, high = cells.low[worst], cells.high[worst]
        with np.errstate(over="ignore", invalid="ignore"):
            inside = low + (high - low) * np.linspace(0, 1, 17)[:-1, None]
        more = np.concatenate([inside.ravel(), np.nextafter(low, np.inf), high])
        edges = np.union1d(edges, more[np.isfinite(more)])
    return None


def _count(scored: Scored, edges: Floats) -> Cells:
    """Count all ranks' rows in the cells between these edges. **Collective.**"""
    mass, ends = np.zeros((2, len(edges) + 1)), np.full((2, len(edges) + 1), -np.inf)
    for start in range(0, len(scored.scores), SORTED):
        block = scored.of(slice(start, start + SORTED))
        for of_class, rows in zip(mass, block.classes[::-1], strict=True):
            x, weights = block.scores[rows], block.weights_of(rows)
            if weights is None:
                x.sort()
            else:
                order = np.argsort(x)
                x, reach = x[order], np.append(0.0, np.cumsum(weights[order]))
            at = np.concatenate([[0], np.searchsorted(x, edges), [len(x)]])
            of_class += np.diff(at if weights is None else reach[at])
            present = at[:-1] < at[1:]
            first, last = x[at[:-1][present]], x[at[1:][present] - 1]
            ends[:, present] = np.maximum(ends[:, present], [-first, last])
    low, high = scored.comm.maximum(ends.ravel()).reshape(ends.shape)
    return Cells(edges, scored.comm.sum(mass.ravel()).reshape(mass.shape), -low, high)
