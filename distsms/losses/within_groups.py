"""ROCArea within groups: only pairs of rows of the same group count, such as the rows of a query, a user or a day.

R(w) = sum_g omega_g R_g(w) over the groups g with rows of both classes, R_g the ROCArea risk of their rows with m_g =
A+_g A-_g. "pairs" gives each pair the same weight, omega_g = m_g / sum m, and "each" each group. So

    coefficients  c_i = -a_i gamma_i omega_g / m_g on P,  c_j = a_j gamma_j omega_g / m_g on N,
    d = sum_g omega_g / m_g sum_ij a_i a_j beta_ij,     0 <= R - R_mu <= nu / 2,     R(0) = 1.

A small group lies whole on one rank (`distsms.parallel.groups`), in O(n_g log n_g) time or less; at most 32 n/P bytes
for each rank are sent. All ranks compute a large one together, by `RocAreaExchange` or, if too many, `RocAreaBins`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distsms.base import measures
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.jit import njit, weight_of
from distsms.base.typing import Floats, Hashes, Labels
from distsms.base.wording import option
from distsms.losses.base import Cost, LossValue
from distsms.losses.binned import RocAreaBins
from distsms.losses.gather import pair_sums
from distsms.losses.rocarea import EVERYWHERE, RocAreaExchange, RocAreaRisk
from distsms.parallel.groups import WholeGroups

FEW = 8
"""Pairs are added one by one where there are at most this many for each row; otherwise, the group's rows are sorted."""


class RocAreaWithinGroups(RocAreaRisk):
    """The ROCArea risk within groups of keys `groups` (n_local,); InputError if none has rows of both classes."""

    family = measures.GAUC

    def __init__(
        self, labels: Labels, weights: Floats | None, comm: Communicator, weighting: str, groups: Hashes
    ) -> None:
        super().__init__(labels, weights, comm)
        self.groups = whole = WholeGroups(groups, self.positive, self.negative, self.weights, comm)
        if not whole.count:
            raise InputError(
                f"no group has both positive and negative rows: use other groups, or no {option('within_groups')}", True
            )
        alike = weighting == "each"
        pairs = whole.positive * whole.negative
        products = [*pairs, *(group.positive * group.negative for group in whole.large)] if alike else [whole.pairs]
        if comm.maximum(np.array([-min(products, default=1.0)]))[0] > -np.finfo(float).tiny:
            raise InputError(
                "weights of a group are so small beside those of others that they vanish: give similar ones", True
            )
        self.scale = 1.0 / (whole.count * pairs) if alike else np.full(len(pairs), 1.0 / whole.pairs)
        self.large = [
            (
                group.rows,
                1.0 / whole.count if alike else group.positive * group.negative / whole.pairs,
                self._of_all_ranks(labels[group.rows], None if self.weights is None else self.weights[group.rows]),
            )
            for group in whole.large
        ]
        self.only: RocAreaRisk | None = None
        if whole.count == 1 and whole.large:  # then no score has to be copied
            kept = np.zeros(len(labels))
            kept[whole.large[0].rows] = 1.0 if self.weights is None else self.weights[whole.large[0].rows]
            self.only, self.large = self._of_all_ranks(labels, kept), []
        one, ends = np.zeros(1), np.array([0, 0, 0])  # compile the kernel, or load it
        weights_of_one = None if self.weights is None else one
        _add_groups(one, self.groups.rows[:0], ends, one, weights_of_one, 1.0, np.empty(1))

    def _of_all_ranks(self, labels: Labels, weights: Floats | None) -> RocAreaRisk:
        """Return the risk of a large group. **Collective.**"""
        kept = 1 if weights is None else weights > 0
        counts = self.comm.sum(np.array([np.sum((labels > 0) * kept), np.sum((labels < 0) * kept)]))
        risk = (RocAreaExchange if counts.min() <= EVERYWHERE else RocAreaBins)(labels, weights, self.comm)
        risk.ways, risk.target = self.ways, lambda R: self.target(R)
        return risk

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:  # if all rows travel
        n_local = (n_pos + n_neg) / size
        return Cost(0.0 if size == 1 else 32.0 * n_local, 30.0 * n_local, held_by_each=100.0 * n_local)

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        if self.only is not None:
            return self.only.evaluate(scores, nu)
        groups, sums = self.groups, np.full(3, np.nan)
        large, width = np.zeros(3), 0.0
        extended, of_groups = np.zeros(groups.extended), groups.extend(scores)
        if np.isfinite(scores).all():
            sums[:] = _add_groups(of_groups, groups.rows, groups.edges, self.scale, groups.weights, nu, extended)
        coefficients = groups.bring_back(extended)
        for rows, omega, loss in self.large:
            value = loss.evaluate_in_place(scores[rows], nu)
            large += omega * np.array(value[:3])
            width += omega * value.width
            coefficients[rows] = omega * value.coefficients
        R, R_mu, d = (self.comm.sum(sums) + large).tolist()
        return LossValue(R, R_mu, d, coefficients if np.isfinite(R) else np.zeros(len(scores)), width)


@njit(error_model="numpy")
def _add_groups(scores, rows, edges, scale, weights, nu, out):  # type: ignore[no-untyped-def]
    """Add up R, R_mu and d of whole groups (see `WholeGroups`), and set out[row], 0 before, to their coefficients;
    scale (groups,) is omega_g / m_g. Sorted rows are left in the order of scores, which makes the next sort faster.
    """
    longest = 0
    for part in range(len(edges) - 1):
        longest = max(longest, edges[part + 1] - edges[part])
    buffers = np.empty((8, longest))
    R = R_mu = d = 0.0
    for g in range(len(scale)):
        start, middle, end = edges[2 * g], edges[2 * g + 1], edges[2 * g + 2]
        if (middle - start) * (end - middle) <= FEW * (end - start):
            sums = _add_pairs(scores, rows, start, middle, end, scale[g], weights, nu, out)
        else:
            sums = _add_sorted(scores, rows, start, middle, end, scale[g], weights, nu, out, buffers)
        R += scale[g] * sums[0]
        R_mu += scale[g] * sums[1]
        d += scale[g] * sums[2]
    return R, R_mu, d


@njit(error_model="numpy", inline="always")
def _add_pairs(scores, rows, start, middle, end, scale, weights, nu, out):  # type: ignore[no-untyped-def]
    """Add up the pairs of a group one by one; return the sums of the hinge, the Huber hinge and beta."""
    hinge = huber = total = 0.0
    for i in range(start, middle):
        a, q, gamma = weight_of(weights, rows[i]), scores[rows[i]] - 1.0, 0.0
        for j in range(middle, end):
            t, b = scores[rows[j]] - q, weight_of(weights, rows[j])
            if t > 0.0:
                beta = 1.0 if t >= nu else t / nu
                gamma += b * beta
                out[rows[j]] += scale * a * b * beta
                hinge += a * b * t
                huber += a * b * beta * (t - 0.5 * nu * beta)
        out[rows[i]] = -scale * a * gamma
        total += a * gamma
    return hinge, huber, total


@njit()
def _add_sorted(scores, rows, start, middle, end, scale, weights, nu, out, buffers):  # type: ignore[no-untyped-def]
    """Add up the pairs of a group by sorting, as `RocArea` does; return the same sums as `_add_pairs`."""
    n_q, n_x = middle - start, end - middle
    _sort(scores, rows[start:middle])
    _sort(scores, rows[middle:end])
    q, up_q, a_q, up_a_q = buffers[0, :n_q], buffers[1, :n_q], buffers[2, :n_q], buffers[3, :n_q]
    x, up_x, a_x, up_a_x = buffers[4, :n_x], buffers[5, :n_x], buffers[6, :n_x], buffers[7, :n_x]
    for i in range(n_q):  # decreasing q = s_i - 1 and x = s_j, and for exchanged classes decreasing -x and -q
        row = rows[start + i]
        up_q[i], up_a_q[i] = 1.0 - scores[row], weight_of(weights, row)
        q[n_q - 1 - i], a_q[n_q - 1 - i] = scores[row] - 1.0, up_a_q[i]
    for j in range(n_x):
        row = rows[middle + j]
        up_x[j], up_a_x[j] = -scores[row], weight_of(weights, row)
        x[n_x - 1 - j], a_x[n_x - 1 - j] = scores[row], up_a_x[j]
    gamma_q, gamma_x, total = np.empty(n_q), np.empty(n_x), 0.0
    hinge, huber = pair_sums(q, x, nu, gamma_q, a_q, a_x)
    pair_sums(up_x, up_q, nu, gamma_x, up_a_x, up_a_q)
    for i in range(n_q):
        out[rows[middle - 1 - i]] = -scale * a_q[i] * gamma_q[i]
        total += a_q[i] * gamma_q[i]
    for j in range(n_x):
        out[rows[middle + j]] = scale * up_a_x[j] * gamma_x[j]
    return hinge, huber, total


@njit()
def _sort(scores: Floats, rows: NDArray[np.intp]) -> None:
    """Put rows in the increasing order of their scores. O(n) where they are in order already."""
    n, moves = len(rows), 0
    for i in range(1, n):
        row, score, k = rows[i], scores[rows[i]], i
        while k > 0 and scores[rows[k - 1]] > score:
            rows[k] = rows[k - 1]
            k -= 1
        rows[k] = row
        moves += i - k
        if moves > FEW * n:  # too far from that order for sorting by insertion
            keys = np.empty(n)
            for j in range(n):
                keys[j] = scores[rows[j]]
            rows[:] = rows[np.argsort(keys, kind="mergesort")]
            return
