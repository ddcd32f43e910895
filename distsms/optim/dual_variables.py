"""The variables of the dual problems of `distsms.optim.dual_ascent`, one for each row of all ranks, and their loops. A
class for each kind of risk knows what a visit is, and which plane below the risk the present variables are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.jit import njit
from distsms.base.typing import Floats
from distsms.losses.base import Loss
from distsms.losses.dual_bound import share_of_pairs
from distsms.matrix.base import RowEntries
from distsms.optim.rows import RowSizes, add, score, square

STEPS, ACCURACY = 20, 0.1
"""Newton's method for a row ends after so many steps, or where the derivative has fallen to this share, or below it."""
BIAS, RECENTRE = 0.05, 0.5
"""In a pass, tau is the weight of a constant feature, whose square is the share `BIAS` of the mean of ||x_i||^2. After
a pass, tau moves by `RECENTRE` times what the excess of one class's multipliers has moved it by.
"""
RESTS, COUNTDOWN = 4, 15
"""A row whose u_i did not change, most often since it is at a bound, is passed over once, and after each further visit
without a change twice as often and once more, until `RESTS` visits. Its byte has the number of these visits above the
bits of `COUNTDOWN`, which say how often it will yet be passed over.
"""
TINY = 1e-300


@njit(error_model="numpy")
def _maximizer(margin: float, steepness: float, q: float, t: float) -> tuple[float, float]:
    """Return t and q of a row after a visit: the root of t - margin - steepness (sigma(-t) - q), by Newton's method."""
    offset = margin - steepness * q
    mirrored = offset <= -0.5 * steepness
    if mirrored:
        margin, q, t = -margin, 1.0 - q, -t
        offset = margin - steepness * q
    least = max(0.0, offset)
    excess = t - margin
    accuracy = ACCURACY * min(abs(excess), 1.0)
    if t < least:
        t = max(least, 0.5 * (offset + math.log(0.5 * steepness))) if steepness > 0 else least
        q = 1.0 / (1.0 + math.exp(t))
        excess = t - offset - steepness * q
    for _ in range(STEPS):
        t = max(least, t - excess / (1.0 + steepness * q * (1.0 - q)))
        q = 1.0 / (1.0 + math.exp(t))
        excess = t - offset - steepness * q
        if abs(excess) <= accuracy:
            break
    if mirrored:
        return -t, 1.0 - q
    return t, q


@njit(error_model="numpy", fastmath={"reassoc", "nsz", "contract"})
def pass_over_rows(rows, order, signed, t, q, squares, scale, first, w):  # type: ignore[no-untyped-def]
    """Improve q_i, t_i row by row, and w; return an estimate of the gap. signed (n,): a_i y_i; scale: 1 / lambda."""
    gap = 0.0
    for at in range(len(order)):
        i = order[at]
        if signed[i] == 0:
            continue
        s = score(rows, i, w)
        if first:
            squares[i] = square(rows, i)
        a = abs(signed[i])
        margin = s if signed[i] > 0 else -s
        steepness, old = scale * a * squares[i], q[i]
        # (q - sigma(-margin)) (margin - t) is the divergence of the two probabilities in both directions.
        gap += 0.5 * a * (old - 1.0 / (1.0 + math.exp(margin))) * (margin - t[i])
        t[i], q[i] = _maximizer(margin, steepness, q[i], t[i])
        change = scale * signed[i] * (q[i] - old)
        if change != 0:
            add(rows, i, change, w)
    return gap


@njit(error_model="numpy", fastmath={"reassoc", "nsz", "contract"})
def pass_over_margins(  # type: ignore[no-untyped-def]
    rows, order, signed, offset, u, squares, rests, scale, first, state, w
):
    """Improve u_i row by row, and w; estimate the gap. state: tau, sum of squares of rows seen, their number."""
    gap = excess = bias = 0.0
    for at in range(len(order)):
        i = order[at]
        if signed[i] == 0:
            continue
        if rests[i] & COUNTDOWN > 0:
            rests[i] -= 1
            continue
        cap, old = abs(signed[i]), u[i]
        if first:
            squares[i] = square(rows, i)
            state[1] += squares[i]
            state[2] += 1.0
        bias = BIAS * state[1] / state[2]
        t = state[0] - score(rows, i, w)
        if signed[i] < 0:
            t = offset - t
        gap += cap * max(0.0, t) - old * t
        u[i] = min(cap, max(0.0, old + t / max(scale * (squares[i] + bias), TINY)))
        change = scale * (u[i] - old)
        if change == 0:
            unchanged = min(rests[i] // (COUNTDOWN + 1) + 1, RESTS)
            rests[i] = unchanged * (COUNTDOWN + 1) + (1 << unchanged) - 1
        else:
            rests[i] = 0
            if signed[i] < 0:
                change = -change
            state[0] -= change * bias
            add(rows, i, change, w)
    for i in range(len(u)):
        excess += u[i] if signed[i] > 0 else -u[i]
    state[0] -= RECENTRE * scale * bias * excess
    return gap


SLOW, FURTHER = 0.85, 250
"""The ascent for logistic regression ends if the gap did not fall to the share `SLOW` in each pass, on average, since
it was last computed; that of the other risks, if it would take longer than `FURTHER` evaluations by the solver.
"""
START = 40.0
"""The first t_i = log((1 - q_i) / q_i): all q_i are nearly 0, and w = 0."""


class DualPlane(NamedTuple):
    """A plane <r, w> + d below R: d, and the coefficients (n_local,) of which r = X'c."""

    d: float
    c: Floats


class DualVariables(ABC):
    """The variables of all `count` rows on the root; every rank knows its own rows. Construction is **collective**."""

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
        """Visit all rows on the root in this order, perhaps the `first` time. Return J(w) - dual, roughly."""

    @abstractmethod
    def plane(self) -> DualPlane:
        """Return the plane of the present variables. **Collective.**"""

    @abstractmethod
    def slow(self, gaps: Sequence[tuple[int, float]], target: float, worth: float) -> bool:
        """Return whether the gap falls too slowly: `gaps` are pairs of the passes until then and the gap, and an
        evaluation by the solver takes as long as `worth` passes.
        """

    def row_sizes(self, rows: RowEntries | None) -> RowSizes:
        """Return the sizes of all rows that are not left out. The root has visited them. **Collective.**"""
        sizes = np.empty(len(RowSizes._fields))
        if rows is not None:
            kept = np.flatnonzero(self._of_all)
            lengths, entries = np.sqrt(self._squares[kept]), (rows.ends - rows.begins)[kept]
            sizes[:2] = np.max(lengths, initial=0.0), np.max((entries + 4) * lengths, initial=0.0)
            sizes[2] = self.count + self._comm.size + 8
        return RowSizes._make(self._comm.broadcast(sizes).tolist())


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
        t = self._comm.scatter_rows(self._t, len(self._signed))
        value = self._loss.evaluate(np.sign(self._signed) * t, 0.0)
        return DualPlane(value.d, value.coefficients)

    def slow(self, gaps: Sequence[tuple[int, float]], target: float, worth: float) -> bool:
        (passes, gap), before = gaps[-1], gaps[:-1]
        return bool(before) and gap > SLOW ** (passes - before[-1][0]) * before[-1][1]


class Multipliers(DualVariables):
    """The multipliers u_i of the hinges of a support vector machine with an intercept tau, which is not regularized.

    Its risk is min over tau of sum_P caps_i max(0, tau - s_i) + sum_N caps_j max(0, s_j + offset - tau): that of PRBEP
    with caps 2 a_i / A and offset A / (2 A+); with caps a_i / A+ and a_j / A- and offset 1, at least that of ROCArea.
    The dual is

        max offset sum_N u_j - ||sum_i y_i u_i x_i||^2 / (2 lambda)  over 0 <= u_i <= caps_i, sum_P u_i = sum_N u_j

    Visits change tau with u_i like the weight of one more column, and each pass begins with another tau (the method of
    multipliers), so that the sums become equal. For ROCArea, u must be sums of multipliers of pairs, 0 <= u_ij <=
    caps_i caps_j; else (theorem of Gale and Ryser) only a share of all gives a plane (`share_of_pairs`).
    """

    unchecked, multiples = 3, True

    def __init__(self, loss: Loss, lam: float) -> None:
        super().__init__(loss, lam)
        self._rests = np.zeros(self.count, np.uint8)
        self._u, self._state = np.zeros(self.count), np.array([self._offset / 2, 0.0, 0.0])

    def _signed_weights(self) -> Floats:
        loss = self._loss
        of_positive, of_negative, self._offset = 2.0 / loss.A, 2.0 / loss.A, loss.A / (2.0 * loss.A_pos)
        if loss.family.compares_pairs:
            of_positive, of_negative, self._offset = 1.0 / loss.A_pos, 1.0 / loss.A_neg, 1.0
        caps = loss.positive * of_positive - loss.negative * of_negative
        return caps if loss.weights is None else caps * loss.weights

    def visit(self, rows: RowEntries, order: NDArray[np.intp], first: bool, w: Floats) -> float:
        signed, u, squares, rests = self._of_all, self._u, self._squares, self._rests
        scale, offset, state = self._scale, self._offset, self._state
        return float(pass_over_margins(rows, order, signed, offset, u, squares, rests, scale, first, state, w))

    def plane(self) -> DualPlane:
        positive, caps, share = self._of_all > 0, np.abs(self._of_all), 1.0
        sums = float(np.sum(self._u[positive])), float(np.sum(self._u[~positive]))
        of_positive, of_negative = (min(sums) / total if total > 0 else 0.0 for total in sums)
        u = self._u = self._u * np.where(positive, of_positive, of_negative)
        if self._loss.family.compares_pairs:
            share = share_of_pairs(u[positive], caps[positive], u[~positive], caps[~positive])
        total, share = self._comm.broadcast(np.array([np.sum(u[~positive]), share])).tolist()
        self.exhausted = share < 1
        u = self._comm.scatter_rows(u, len(self._signed))
        return DualPlane(self._offset * share * total, -share * np.sign(self._signed) * u)

    def slow(self, gaps: Sequence[tuple[int, float]], target: float, worth: float) -> bool:
        passes, gap = gaps[-1]
        then, gap_then = max((each for each in gaps[:-1] if 2 * each[0] <= passes), default=(passes, gap))
        return (passes - then) * math.log(gap / target) > worth * FURTHER * math.log(gap_then / gap)
