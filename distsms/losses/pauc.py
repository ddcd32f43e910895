"""pauc@beta, the area under the ROC curve up to a false positive rate of beta (Narasimhan and Agarwal 2013).

With K = beta A-, and t_ij = 1 - (s_i - s_j), the risk counts the pairs with the highest negatives of total weight K:

    R(w) = 1/(A+ K) max { sum_ij a_i a_j beta_ij t_ij :  0 <= beta_ij <= alpha_j <= 1,  sum_j a_j alpha_j <= K }

Smoothed by 1/2 sum_ij a_i a_j beta_ij^2, with nu = mu A+ K and q_i = s_i - 1, the maximum is at

    beta_ij = clip((s_j - max(q_i, x)) / nu, 0, 1),   x the root of  sum_j a_j clip((s_j - x) / nu, 0, 1) = K

so beta is that of ROCArea with the q of the positives clamped from below at x. With its row sums gamma,

    R_mu = 1/(A+ K) [ sum_ij a_i a_j h(s_j - max(q_i, x)) + K sum_i a_i (x - q_i)_+ ],   h the Huber hinge of width nu
    coefficients  c_i = -a_i gamma_i / (A+ K),  c_j = a_j gamma_j / (A+ K),      d = 1/(A+ K) sum_ij a_i a_j beta_ij.

At nu = 0, x is x0, the largest score from which on the negatives weigh at least K; those at x0 share what is left of K.
x is from x0 - nu to x0, so scores are measured from x0, and delta = x - x0 is computed, which loses no digits. If
rounding makes the sum of a_j alpha_j larger than K, all beta are divided by the excess: the plane stays a lower bound.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base import measures
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.jit import njit, weight_of
from distsms.base.typing import Floats, Labels
from distsms.losses.base import Cost, LossValue, ramp
from distsms.losses.binned import Cells, OfCells, RocAreaBins
from distsms.losses.gather import GatheringLoss, Solution, root_of_ramps, weighted_sum
from distsms.losses.pairwise import SortedClass
from distsms.losses.prbep import Piece, rising_root
from distsms.losses.rocarea import RocAreaRisk, SumsInOrder, sums_in_order
from distsms.parallel.order_statistics import BLOCK, LEFT_OUT, NEGATIVE, PositionSearch


class PaucRisk(RocAreaRisk):
    """The risk of pauc@beta. R(0), kappa and the paper's width are those of ROCArea with m = A+ K, since D <= m / 2."""

    family = measures.PAUC

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator, max_fpr: float) -> None:
        super().__init__(labels, weights, comm)
        self.K = max_fpr * self.A_neg
        if self.A_pos * self.K < np.finfo(float).tiny:
            raise InputError(
                f"weights of a class are so small that pauc@{max_fpr:g} vanishes: give classes similar weights", True
            )


def tie_share(K: float, above: float, tied: float) -> float:
    """Return which share of the weight `tied` of the negatives at x0 counts, if those above have the weight `above`."""
    return min(max((K - above) / tied, 0.0), 1.0)


class Pauc(PaucRisk, GatheringLoss):
    """The risk of pauc@beta with all margins gathered on the root. `PaucExchange` is tested against it."""

    def solve(self, positive: Floats, negative: Floats, nu: float) -> Solution:
        """Sort both classes, and find x by Algorithms 2 and 3. O(n log n)."""
        up_pos, up_neg = np.argsort(positive), np.argsort(negative)
        a_pos, a_neg = self.a_pos[up_pos], self.a_neg[up_neg]
        x0 = negative[up_neg[position_of_cut(a_neg, self.K)]]
        with np.errstate(over="ignore", invalid="ignore"):  # differences may overflow, which shows in the result
            q, u = (positive[up_pos] - x0) - 1.0, negative[up_neg] - x0  # both measured from x0
            head = head_in_order(q, u, nu, self.K, a_pos, a_neg)
        coef_pos, coef_neg, scale = np.empty_like(q), np.empty_like(u), head.scale / self.A_pos
        coef_pos[up_pos] = -scale * (a_pos * head.gamma_pos)
        coef_neg[up_neg] = scale * (a_neg * head.gamma_neg)
        R, R_mu = (total / self.A_pos / self.K for total in (head.hinge, head.huber))
        return Solution(R, R_mu, scale * weighted_sum(head.gamma_pos, a_pos), coef_pos, coef_neg)


def position_of_cut(a_neg: Floats, K: float) -> int:
    """Return the position of x0 among the negatives in increasing order, from their weights."""
    last = len(a_neg) - 1
    return last - min(int(np.searchsorted(np.cumsum(a_neg[::-1]), K)), last)


def head_in_order(q: Floats, u: Floats, nu: float, K: float, a_pos: Floats, a_neg: Floats) -> SumsInOrder:
    """Solve the problem from increasing q and u = s_j, measured from x0: A+ K R, A+ K R_mu, scale 1 / K. O(n)."""
    delta = 0.0
    if nu > 0:  # as a function of -x, alpha is a ramp that starts at -u
        delta = min(max(-root_of_ramps(-u[::-1], nu, K, a_neg[::-1].copy()), -nu), 0.0)
    scale = 1.0 / max(K, weighted_sum(ramp(u - delta, nu), a_neg))
    smooth = sums_in_order(np.maximum(q, delta), u, nu, a_pos, a_neg)
    # The exact risk: the same at nu = 0 and x = x0
    exact = sums_in_order(np.maximum(q, 0.0), u, 0.0, a_pos, a_neg)
    hinge = exact.hinge + K * weighted_sum(np.maximum(0.0 - q, 0.0), a_pos)
    huber = smooth.huber + K * weighted_sum(np.maximum(delta - q, 0.0), a_pos)
    gamma_pos, gamma_neg = smooth.gamma_pos, smooth.gamma_neg
    if nu == 0:
        low, tied = q <= 0.0, u == 0.0
        share = tie_share(K, weighted_sum(u > 0.0, a_neg), weighted_sum(tied, a_neg))
        gamma_pos[low] += share * weighted_sum(tied, a_neg)
        gamma_neg[tied] += share * weighted_sum(low, a_pos)
        huber = hinge
    return SumsInOrder(hinge, huber, gamma_pos, gamma_neg, scale)


class Head(NamedTuple):
    """The negatives that may count in an evaluation, and the root."""

    x0: float  # the exact root
    delta: float  # the smoothed root less x0
    above: NDArray[Any]  # (m,) int: this rank's negatives with s_j > x0
    between: NDArray[Any]  # (m,) int: those with x0 - nu <= s_j <= x0
    W: float  # the weight of the negatives above x0 on all ranks
    alpha: float  # the sum of a_j alpha_j on all ranks
    share: float = 0.0  # alpha_j of the negatives at x0, at nu = 0


class PaucExchange(PaucRisk):
    """The risk of pauc@beta without gathering: only positives are sorted, by every rank.

    The ranks find x0 together, near the last one (`distsms.parallel.order_statistics`), list the negatives from x0 - nu
    on (all others have alpha = 0), and on these find delta = x - x0 by Newton's method. The table of the positives
    serves for R, too. With u = s_j - x0, q from x0 on, and W the weight of u > 0,

        A+ K R = sum over u > 0 of a_i a_j (u - max(q_i, delta))_+  +  (K - W) C  +  K sum_i a_i (delta - q_i)_+,
        C = sum_i a_i (-max(q_i, delta))_+,   where no term is negative.
    """

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator, max_fpr: float) -> None:
        super().__init__(labels, weights, comm, max_fpr)
        self._kinds = np.full(len(labels), LEFT_OUT, np.uint8)
        self._kinds[self.negative] = NEGATIVE
        # The smallest score up to which the negatives have a weight above A- - K; without weights, numbers are whole.
        below = self.A_neg - self.K
        target = math.floor(below) + 1.0 if self.weights is None else np.nextafter(below, np.inf)
        self._search = PositionSearch(self._kinds, min(target, self.A_neg), self.weights, comm)
        # Two places more, which `_list_head` needs to do without branches.
        self._listed = np.empty(np.count_nonzero(self.negative) + 2, np.uint32 if len(labels) < 2**32 else np.uint64)
        self._start = -0.5  # delta / nu of the last evaluation
        positives = np.flatnonzero(self.positive)
        self._whole = SortedClass(positives, self.weights, comm)
        # Compile the kernels, or load them, before the first evaluation.
        none = np.zeros(0)
        a = None if self.weights is None else none
        _list_head(none, self._kinds[:0], a, 0.0, 0.0, self._listed)
        _piece(none, self._listed[:0], a, 0.0, 0.0, 1.0)
        _clamp(none, positives[:0], a, 0.0, 0.0, none)

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        n_local = (n_pos + n_neg) / size
        sent = 0.0 if size == 1 else (24.0 + 8.0 / size) * n_pos + 6 * 12 * 2**10
        steps = n_pos * (math.log2(size) + 15.0) + n_neg / size * 3.0  # measured: most negatives are only passed over
        return Cost(sent, steps, held_by_each=240.0 * n_pos + 15.0 * n_local)

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        scores = np.ascontiguousarray(scores, np.float64)
        coefficients = np.zeros(len(scores))
        x0 = self._search.find(scores, 0.0)
        if math.isnan(x0):
            return LossValue.undefined(coefficients)
        head = self._head(scores, x0, nu)
        # The pairs of these with all positives, which are sorted on every rank.
        whole, factor = self._whole, 1.0 / self.A_pos / max(self.K, head.alpha)
        offsets = _clamp(scores, whole.rows, self.weights, x0, head.delta, whole.q)
        if not whole.tabulate_all(True, nu):  # a difference of scores overflows
            return LossValue.undefined(coefficients)
        whole.add_points(scores, head.above, 1.0, -x0, factor, coefficients, self.weights)
        hinge = float(whole.sums[0])
        if nu > 0:
            whole.add_points(scores, head.between, 1.0, -x0, factor, coefficients, self.weights)
        gamma, numbers = whole.total(np.array([hinge, *whole.sums[1:], *offsets]))
        hinge, huber, beta, below_x, below_x0, low = numbers.tolist()
        if nu == 0 and low > 0:  # the lowest value is 0, at which the positives with q <= x0 are clamped
            of_tied = 1.0 if self.weights is None else self.weights[head.between]
            coefficients[head.between] = factor * head.share * low * of_tied
            gamma[0] += head.alpha - head.W
            beta += low * (head.alpha - head.W)
        whole.write(gamma, -factor, coefficients)
        R, R_mu = hinge + (self.K - head.W) * below_x0 + self.K * below_x, huber + self.K * below_x
        R, R_mu = (total / self.A_pos / self.K for total in (R, R_mu if nu > 0 else R))
        return LossValue(R, R_mu, factor * beta, coefficients)

    def alphas(self, scores: Floats, nu: float) -> Floats:
        """Return the share to which each local negative row counts, (n_local,); 0 for the others. **Collective.**"""
        scores, alpha = np.ascontiguousarray(scores, np.float64), np.zeros(len(scores))
        head = self._head(scores, self._search.find(scores, 0.0), nu)
        for rows, at_zero in ((head.above, 1.0), (head.between, head.share)):
            alpha[rows] = ramp((scores[rows] - head.x0) - head.delta, nu) if nu > 0 else at_zero
        return alpha / max(1.0, head.alpha / self.K)

    def _head(self, scores: Floats, x0: float, nu: float) -> Head:
        """Find delta, on the rows that may count. Collective."""
        n_above, n_between, W, tied = _list_head(scores, self._kinds, self.weights, x0, nu, self._listed)
        above, between = self._listed[:n_above], self._listed[len(self._listed) - n_between :]
        if nu == 0:
            W, tied = self.comm.sum(np.array([W, tied])).tolist()
            share = tie_share(self.K, W, tied)
            return Head(x0, 0.0, above, between, W, W + share * tied, share)

        def piece_at(delta: float) -> tuple[Piece, tuple[float, float]]:
            pieces = [_piece(scores, rows, self.weights, x0, delta, nu) for rows in (above, between)]
            full, inside, t_sum, of_all = self.comm.sum(np.array([*map(sum, zip(*pieces, strict=True)), W])).tolist()
            alpha = full + t_sum / nu
            return Piece(self.K - alpha, inside / nu, self.K + inside), (of_all, alpha)

        delta, (of_all, alpha) = rising_root(piece_at, self._start * nu, -nu, 0.0)
        self._start = delta / nu
        return Head(x0, delta, above, between, of_all, alpha)


@njit(fastmath={"reassoc", "nsz"})
def _mark(scores, kinds, weights, x0, nu, marks):  # type: ignore[no-untyped-def]
    """Mark negatives with s > x0 by 1, from x0 - nu on by 2; return their number, and the weights of s > x0 and x0."""
    some = above = tied = 0
    for j in range(len(scores)):
        u = scores[j] - x0
        near = (1 if kinds[j] == NEGATIVE else 0) & (1 if u >= -nu else 0)
        high, equal = near & (1 if u > 0.0 else 0), near & (1 if u == 0.0 else 0)
        marks[j] = near + near - high
        some += near
        above += high if weights is None else high * weights[j]
        tied += equal if weights is None else equal * weights[j]
    return some, above, tied


@njit()
def _list_head(scores, kinds, weights, x0, nu, listed):  # type: ignore[no-untyped-def]
    """List negatives above x0 from the front, x0 - nu to x0 from the back; return lengths and weights."""
    marks = np.empty(BLOCK, np.uint8)
    n_above, n_between, last = 0, 0, len(listed) - 1
    W = tied = 0.0
    for start in range(0, len(scores), BLOCK):
        stop = min(len(scores), start + BLOCK)
        of_block = None if weights is None else weights[start:stop]
        some, above, equal = _mark(scores[start:stop], kinds[start:stop], of_block, x0, nu, marks)
        W += above
        tied += equal
        if some == 0:
            continue
        for j in range(stop - start):
            listed[n_above] = start + j
            listed[last - n_between] = start + j
            n_above += marks[j] & 1
            n_between += marks[j] >> 1
    return n_above, n_between, W, tied


@njit(fastmath=False)  # explicit, since the caller's fastmath would subtract x0 + delta, which loses digits
def _distance(score, x0, delta):  # type: ignore[no-untyped-def]
    return (score - x0) - delta


@njit(error_model="numpy", fastmath={"reassoc", "nsz"})
def _piece(scores, rows, weights, x0, delta, nu):  # type: ignore[no-untyped-def]
    """Return the linear piece of sum_j a_j alpha_j at delta: the weight of t >= nu; weight and sum of 0 < t < nu."""
    full = inside = t_sum = 0.0
    for j in range(len(rows)):
        row = rows[j]
        t, a = _distance(scores[row], x0, delta), weight_of(weights, row)
        a_inside = a if (t > 0.0) & (t < nu) else 0.0
        full += a if t >= nu else 0.0
        inside += a_inside
        t_sum += a_inside * t
    return full, inside, t_sum


@njit()
def _clamp(scores, rows, weights, x0, delta, q):  # type: ignore[no-untyped-def]
    """Set q (m,) to max(q_i, delta); return the sums of (delta - q_i)_+, (-max(q_i, delta))_+, and q_i <= 0."""
    below_x = below_x0 = low = 0.0
    for j in range(len(rows)):
        place, a = (scores[rows[j]] - x0) - 1.0, weight_of(weights, rows[j])
        clamped = max(place, delta)
        q[j] = clamped
        below_x += a * (clamped - place)
        below_x0 += a * max(-clamped, 0.0)
        low += a if place <= 0.0 else 0.0
    return below_x, below_x0, low


class PaucBins(RocAreaBins, PaucRisk):
    """The risk of pauc@beta without sorting (see `binned`): alpha_j, too, depends on the cell alone. The hinges of the
    highest negatives of the cell with the cut exceed its mean; from there to its upper edge, the sum rises by at most
    the weight of the q in lower cells times that distance, and by the hinges of the q of the cell at its upper edge.
    """

    exact_class = PaucExchange
    may_be_apart = False

    def _upper_end(self, high_b: float, high_q_nu: float) -> float:
        return high_b

    def _solve(self, cells: Cells, nu: float) -> OfCells:
        neg, pos, widths = cells.neg, cells.pos, cells.widths.copy()
        at = position_of_cut(neg.weight, self.K)
        x0, cut = float(neg.mean[at]), int(neg.cell[at])
        solved = head_in_order(pos.mean - x0, neg.mean - x0, nu, self.K, pos.weight, neg.weight)
        scale, beyond = solved.scale / self.A_pos, self.K * cells.below
        beta = solved.scale * self.K * float(np.sum(pos.weight * solved.gamma_pos))
        edge, here = cells.grid.edge(cut), pos.cell == cut
        higher = float(np.sum(pos.weight[pos.cell < cut])) * max(edge - x0, 0.0)
        higher += float(np.sum(pos.weight[here] * np.maximum(edge - pos.mean[here], 0.0)))
        widths[: cut + 1] = 0.0
        widths[cut] = max(self.K - float(np.sum(neg.weight[at + 1 :])), 0.0) * higher
        return OfCells(
            R=solved.hinge + beyond,
            R_mu=solved.huber + beyond,
            beta=beta,
            neg=scale * solved.gamma_neg,
            pos=-scale * solved.gamma_pos,
            widths=widths,
        )
