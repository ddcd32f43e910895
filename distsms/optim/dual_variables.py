"""The variables of the dual problems that `distsms.optim.dual_ascent` maximizes, one for each row.

The root has those of all rows, and visits them. A class for each kind of risk knows what a visit is, and which plane
below the risk the present variables are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.losses.base import Loss
from distsms.matrix.base import RowEntries
from distsms.optim.dual_kernels import pass_over_margins, pass_over_rows
from distsms.optim.rows import RowSizes, row_sizes
from distsms.parallel.communicator import Communicator

EPS = float(np.finfo(float).eps)
SLOW, FURTHER = 0.85, 250
"""The ascent for logistic regression ends if the gap did not fall to the share `SLOW` in each pass, on average, since
it was last computed; that of the other risks, if it would take more than `FURTHER` further passes, at the rate of the
last half of them.
"""
START = 40.0
"""The first t_i = log((1 - q_i) / q_i): all q_i are nearly 0, and w = 0."""


class DualPlane(NamedTuple):
    """A plane <r, w> + d below R: d, and the coefficients (n_local,) of which r = X'c."""

    d: float
    c: Floats


class DualVariables(ABC):
    """The variables of all rows on the root, where `count` is their number. Construction is **collective**.

    Every rank has an object, and knows its own rows.
    """

    unchecked: int
    """The number of passes after which J is computed for the first time, if not before."""
    multiples: bool
    """Whether J may be much smaller at a multiple of w."""
    exhausted = False
    """Whether further visits cannot help; known from `plane`."""

    def __init__(self, loss: Loss, lam: float) -> None:
        self._loss, self._scale = loss, 1.0 / lam
        self._comm: Communicator = loss.comm
        self._signed = self._signed_weights()
        gathered = self._comm.gather_rows(self._signed)
        self._of_all: Floats = np.empty(0) if gathered is None else gathered
        self.count = len(self._of_all)
        self._squares = np.empty(self.count)

    @abstractmethod
    def _signed_weights(self) -> Floats:
        """Return y_i times the largest |c_i| of each local row, 0 for rows that are left out."""

    @abstractmethod
    def visit(self, rows: RowEntries, order: NDArray[np.intp], first: bool, w: Floats) -> float:
        """Visit the rows of all ranks on the root in this order, and change w. Return an estimate of the gap J(w) -
        dual.

        first : whether no row has been visited before.
        """

    @abstractmethod
    def plane(self) -> DualPlane:
        """Return the plane of the present variables. **Collective.**"""

    @abstractmethod
    def slow(self, gaps: Sequence[tuple[int, float]], target: float) -> bool:
        """Return whether the gap falls too slowly: `gaps` are pairs of the passes until then and the gap."""

    def row_sizes(self, rows: RowEntries | None) -> RowSizes:
        """Return the sizes of all rows that are not left out. The root has visited them. **Collective.**"""
        sizes = np.empty(len(RowSizes._fields))
        if rows is not None:
            sizes[:] = row_sizes(rows, self._squares, self._of_all, self._comm.size)
        return RowSizes._make(self._comm.broadcast(sizes).tolist())

    def _scattered(self, of_all: Floats) -> Floats:
        """Return the local part of the root's numbers. **Collective.**"""
        return self._comm.scatter_rows(of_all if self._comm.is_root else None, len(self._signed))


class Probabilities(DualVariables):
    """The q_i of logistic regression, as t_i = log((1 - q_i) / q_i)."""

    unchecked, multiples = 10, False

    def __init__(self, loss: Loss, lam: float) -> None:
        super().__init__(loss, lam)
        self._t, self._q = np.full(self.count, START), np.full(self.count, math.exp(-START))

    def _signed_weights(self) -> Floats:
        return -2.0 * self._loss.evaluate(np.zeros(len(self._loss.positive)), 0.0).coefficients  # a_i y_i

    def visit(self, rows: RowEntries, order: NDArray[np.intp], first: bool, w: Floats) -> float:
        return float(pass_over_rows(rows, order, self._of_all, self._t, self._q, self._squares, self._scale, first, w))

    def plane(self) -> DualPlane:
        value = self._loss.evaluate(np.sign(self._signed) * self._scattered(self._t), 0.0)
        return DualPlane(value.d, value.coefficients)

    def slow(self, gaps: Sequence[tuple[int, float]], target: float) -> bool:
        (passes, gap), before = gaps[-1], gaps[:-1]
        return bool(before) and gap > SLOW ** (passes - before[-1][0]) * before[-1][1]


class Multipliers(DualVariables):
    """The multipliers u_i of the hinges of a support vector machine with an intercept tau, which is not regularized.

    Its risk is  min over tau of  sum_P caps_i max(0, tau - s_i) + sum_N caps_j max(0, s_j + offset - tau).  With the
    caps 2 a_i / A and the offset A / (2 A+) that is the risk of PRBEP. With the caps a_i / A+ on P and a_j / A- on N
    and the offset 1, it is at least that of ROCArea, since max(0, t_ij) <= max(0, tau - s_i) + max(0, s_j + 1 - tau),
    and equal where no row is on the wrong side by much. The dual is the maximum of

        offset sum_N u_j - ||sum_i y_i u_i x_i||^2 / (2 lambda)    over 0 <= u_i <= caps_i with sum_P u_i = sum_N u_j

    The sums of u_i over both classes are equal where tau is the best one. Visits change tau with u_i as if it were the
    weight of one more column, and each pass begins with another tau (the method of multipliers), so that the sums
    become equal. For a plane the larger ones are scaled down.

    For ROCArea, the u_i must be sums of multipliers of pairs, 0 <= u_ij <= caps_i caps_j. By the theorem of Gale and
    Ryser (max-flow min-cut), they are if no rows S of P and T of N exist for which

        sum of u_i over S  >  caps(S) caps(T) + sum of u_j over N without T

    Where this fails, the machine's risk is larger than R, and only a share of all u_i gives a plane.
    """

    unchecked, multiples = 3, True

    def __init__(self, loss: Loss, lam: float) -> None:
        super().__init__(loss, lam)
        self._rests = np.zeros(self.count, np.uint8)
        self._u, self._state = np.zeros(self.count), np.array([self._offset / 2, 0.0, 0.0])

    def _signed_weights(self) -> Floats:
        loss = self._loss
        if not loss.family.compares_pairs:
            of_positive = of_negative = 2.0 / loss.A
            self._offset = loss.A / (2.0 * loss.A_pos)
        else:
            of_positive, of_negative, self._offset = 1.0 / loss.A_pos, 1.0 / loss.A_neg, 1.0
        caps = loss.positive * of_positive - loss.negative * of_negative
        return caps if loss.weights is None else caps * loss.weights

    def visit(self, rows: RowEntries, order: NDArray[np.intp], first: bool, w: Floats) -> float:
        gap = pass_over_margins(
            rows,
            order,
            self._of_all,
            self._offset,
            self._u,
            self._squares,
            self._rests,
            self._scale,
            first,
            self._state,
            w,
        )
        return float(gap)

    def _balanced(self) -> Floats:
        """Return the u_i of all rows with equal sums over both classes, on the root."""
        positive = self._of_all > 0
        sums = float(np.sum(self._u[positive])), float(np.sum(self._u[~positive]))
        of_positive, of_negative = (min(sums) / total if total > 0 else 0.0 for total in sums)
        return self._u * np.where(positive, of_positive, of_negative)

    def plane(self) -> DualPlane:
        positive, caps, share = self._of_all > 0, np.abs(self._of_all), 1.0
        u = self._u = self._balanced()
        if self._loss.family.compares_pairs:
            share = share_of_pairs(u[positive], caps[positive], u[~positive], caps[~positive])
        total, share = self._comm.broadcast(np.array([np.sum(u[~positive]), share])).tolist()
        self.exhausted = share < 1
        return DualPlane(self._offset * share * total, -share * np.sign(self._signed) * self._scattered(u))

    def slow(self, gaps: Sequence[tuple[int, float]], target: float) -> bool:
        passes, gap = gaps[-1]
        earlier = [each for each in gaps[:-1] if 2 * each[0] <= passes]
        if not earlier:
            return False
        then, gap_then = earlier[-1]
        return (passes - then) * math.log(gap / target) > FURTHER * math.log(gap_then / gap)


def share_of_pairs(u: Floats, caps: Floats, v: Floats, caps_v: Floats) -> float:
    """Return the largest share <= 1 for which share u_i = sum_j x_ij and share v_j = sum_i x_ij are possible.

    Each x_ij is between 0 and caps_i caps_j. u and v have the same sum, and both caps have the sum 1. Rows with a cap
    of 0 have u = 0. The result may be smaller by 1e-6. O(n log n).
    """
    u, caps = u[caps > 0], caps[caps > 0]
    v, caps_v = v[caps_v > 0], caps_v[caps_v > 0]
    order, others = np.argsort(-u / caps), np.argsort(v / caps_v)
    level, needed = np.cumsum(caps[order]), np.cumsum(u[order])  # of the rows S, those of largest u_i / caps_i
    slopes, low = (v / caps_v)[others], np.cumsum(np.append(0.0, v[others]))
    rest = np.cumsum(np.append(0.0, caps_v[others][::-1]))[::-1]
    rounding = 1 + EPS * (len(u) + len(v))

    def possible(share: float) -> bool:
        at = np.searchsorted(slopes, level / share)
        return bool(np.all(share * needed <= (share * low[at] + level * rest[at]) * rounding))

    if possible(1.0):
        return 1.0
    least, most = 0.0, 1.0
    for _ in range(20):
        middle = 0.5 * (least + most)
        least, most = (middle, most) if possible(middle) else (least, middle)
    return least
