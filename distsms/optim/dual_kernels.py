"""The compiled loops of `distsms.optim.dual_ascent`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import njit
from distsms.base.typing import Floats
from distsms.matrix.base import RowEntries
from distsms.optim.rows import add, score, square

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
    """Return t and q of a row after it was visited: D is largest there, up to the accuracy, if only this q changes.

    It is the root of t - margin - steepness (sigma(-t) - q), which increases. By symmetry, the root may be taken as
    positive. The function is concave there, so Newton's method converges from any point between a lower bound and the
    root.
    """
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
def pass_over_rows(
    rows: RowEntries,
    order: NDArray[np.intp],
    signed: Floats,
    t: Floats,
    q: Floats,
    squares: Floats,
    scale: float,
    first: bool,
    w: Floats,
) -> float:
    """Improve q_i for one row after the other, and keep w up to date. Return an estimate of the duality gap.

    signed (n,) is a_i y_i, 0 for rows that are left out; q and t = log((1 - q) / q) are the dual variables, and scale
    is 1 / lambda. t, q and w are written to, and so are the squares ||x_i||^2 in the first pass.
    """
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
def pass_over_margins(
    rows: RowEntries,
    order: NDArray[np.intp],
    signed: Floats,
    offset: float,
    u: Floats,
    squares: Floats,
    rests: NDArray[np.uint8],
    scale: float,
    first: bool,
    state: Floats,
    w: Floats,
) -> float:
    """Improve u_i for one row after the other, and keep w and tau up to date. Return an estimate of the duality gap.

    signed (n,) is y_i times the largest u_i, `offset` is that of `distsms.optim.dual_variables.Multipliers`, and
    `rests` says how often each row is passed over (see `RESTS`). `state` has tau, the sum of the squares of the rows
    seen, and their number. u, rests, state and w are written to; the rest is as in `pass_over_rows`.
    """
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
