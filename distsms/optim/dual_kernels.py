"""The compiled loop of `distsms.optim.dual_ascent`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.matrix.base import RowEntries
from distsms.utils.jit import njit
from distsms.utils.typing import Floats

STEPS, ACCURACY = 20, 0.1
"""Newton's method for a row ends after so many steps, or where the derivative has fallen to this share, or below it."""
_ONE, _TWO, _THREE, _FOUR = (np.uint64(i) for i in range(1, 5))


@njit()
def _column(columns: Any, k: Any, begin: Any) -> Any:
    if columns is None:
        return k - begin
    return columns[k]


@njit()
def _number(numbers: Any, k: Any) -> Any:
    if numbers is None:
        return 1.0
    return np.float64(numbers[k])


@njit()
def _term(rows: RowEntries, k: Any, begin: Any, w: Floats) -> Any:
    j = _column(rows.columns, k, begin)
    return _number(rows.values, k) * _number(rows.column_factors, j) * w[j]


@njit()
def _inner_product(rows: RowEntries, begin: Any, end: Any, w: Floats) -> Any:
    k = begin
    s0 = s1 = s2 = s3 = 0.0  # several running sums hide the latency of additions
    while k + _THREE < end:
        s0 += _term(rows, k, begin, w)
        s1 += _term(rows, k + _ONE, begin, w)
        s2 += _term(rows, k + _TWO, begin, w)
        s3 += _term(rows, k + _THREE, begin, w)
        k += _FOUR
    while k < end:
        s0 += _term(rows, k, begin, w)
        k += _ONE
    return (s0 + s1) + (s2 + s3)


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
    wanted = ACCURACY * min(abs(excess), 1.0)
    if t < least:
        t = max(least, 0.5 * (offset + math.log(0.5 * steepness))) if steepness > 0 else least
        q = 1.0 / (1.0 + math.exp(t))
        excess = t - offset - steepness * q
    for _ in range(STEPS):
        t = max(least, t - excess / (1.0 + steepness * q * (1.0 - q)))
        q = 1.0 / (1.0 + math.exp(t))
        excess = t - offset - steepness * q
        if abs(excess) <= wanted:
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

    Parameters
    ----------
    rows : RowEntries
    order : (n_local,) int
        The rows in the order in which they are visited.
    signed : (n_local,) float64
        a_i y_i; rows with 0 are left out.
    t, q : (n_local,) float64
        The dual variables q_i, and t_i = log((1 - q_i) / q_i). Written to.
    squares : (n_local,) float64
        ||x_i||^2. Written to if this is the first pass.
    scale : float
        1 / lambda.
    first : bool
        Whether this is the first pass.
    w : (p,) float64
        Written to.
    """
    gap = 0.0
    for at in range(len(order)):
        i = order[at]
        if signed[i] == 0:
            continue
        begin, end = np.uint64(rows.begins[i]), np.uint64(rows.ends[i])
        factor = _number(rows.row_factors, i)
        s = _inner_product(rows, begin, end, w)
        if first:
            square = 0.0
            for k in range(begin, end):
                x = _number(rows.values, k) * _number(rows.column_factors, _column(rows.columns, k, begin))
                square += x * x
            squares[i] = factor * factor * square + rows.constant**2
        s *= factor
        if rows.constant != 0:
            s += rows.constant * w[-1]
        a = abs(signed[i])
        margin = s if signed[i] > 0 else -s
        steepness, old = scale * a * squares[i], q[i]
        # (q - sigma(-margin)) (margin - t) is the divergence of the two probabilities in both directions.
        gap += 0.5 * a * (old - 1.0 / (1.0 + math.exp(margin))) * (margin - t[i])
        t[i], q[i] = _maximizer(margin, steepness, q[i], t[i])
        change = scale * signed[i] * (q[i] - old)
        if change != 0:
            step = change * factor
            for k in range(begin, end):
                j = _column(rows.columns, k, begin)
                w[j] += step * _number(rows.values, k) * _number(rows.column_factors, j)
            if rows.constant != 0:
                w[-1] += change * rows.constant
    return gap
