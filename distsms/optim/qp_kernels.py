"""The compiled loop of `distsms.optim.qp.simplex_qp`, a primal active-set method.

The maximum over a support is computed with one of its variables, the origin, as 1 minus the sum of the others. The
matrix of the quadratic term is then that of the differences between the other planes and the origin's plane. Its
Cholesky factor is kept while variables enter and leave the support. The origin is one of the flattest planes, so that
the differences are about as accurate as the planes themselves, whose slopes may be of very different size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import UNCOUNTED, njit
from distsms.base.typing import Floats

PROXIMAL = 1e-13  # the proximal term of variable k has this weight times (Q_kk + the largest |d|)
SLOPE_ERROR = 1e-13  # a bound on the rounding error of a slope, as a share of its terms
AS_FLAT = 16.0  # the origin's Q_kk is at most this multiple of the least Q_kk of the support
FARTHEST = 1e200  # the longest step; small multiples of it do not overflow
TINY = 1e-300


class Room(NamedTuple):
    """Memory for `maximize`, of any content: kernels that make arrays take longer to load."""

    factor: Floats  # (k, k)
    rows: Floats  # (5, k)
    members: NDArray[np.intp]  # (k,)
    flags: NDArray[np.bool_]  # (2, k)


@njit(error_model="numpy", **UNCOUNTED)
def maximize(Q: Floats, d: Floats, best: Floats, room: Room) -> None:
    """Replace the first guess `best` by the maximizer of <d, a> - a'Qa / 2 over the simplex. See `simplex_qp`.

    Q : (k, k), C-contiguous.
    """
    factor, rows, members, flags = room
    alpha, slope, error, step, column = rows[0], rows[1], rows[2], rows[3], rows[4]
    support, barred = flags[0], flags[1]  # barred: their entry into the support did not raise the value
    k = len(d)
    _start(Q, d, best, slope, error)
    for i in range(k):
        alpha[i], support[i] = best[i], best[i] > 0
    origin, count, highest, reached = -1, 0, 0.0, -np.inf
    blocked = moved = False  # blocked: the last step ended where a variable is 0
    # The guess is most often the maximizer on its support. So a variable may enter before the first step, and only if
    # none does, that step is on the support of the guess.
    for _ in range(200 + 10 * k):
        value = _slopes(Q, d, alpha, slope, error)
        entering = -1
        if not blocked:
            if value > reached:
                reached = value
                for i in range(k):
                    best[i], barred[i] = alpha[i], False
            entering = _entering(slope, error, support, barred)
            if entering >= 0:
                support[entering] = barred[entering] = True
            elif moved:
                break
        first, last = max(entering, 0), entering + 1
        if origin < 0 or (entering >= 0 and AS_FLAT * Q[entering, entering] < Q[origin, origin]):
            origin = _origin(Q, alpha, support)
            first, last, count, highest = 0, k, 0, 0.0
        for i in range(first, last):
            if support[i]:
                highest = max(highest, abs(d[i]))
        for i in range(first, last):
            if support[i] and i != origin:
                _append(Q, factor, members, count, i, origin, PROXIMAL * (Q[i, i] + highest) + TINY, column)
                count += 1
        _find_step(factor, members, count, origin, slope, step, column)
        leaving = _move(alpha, step, support)
        blocked, moved = leaving >= 0, True
        if blocked:
            support[leaving] = False
            if leaving == origin:
                origin = -1
            else:
                _remove(factor, members, count, leaving)
                count -= 1


@njit(error_model="numpy", **UNCOUNTED)
def _start(Q: Floats, d: Floats, alpha: Floats, slope: Floats, error: Floats) -> None:
    """Move the guess alpha onto the simplex, or to the best vertex if its value is higher. slope, error : memory."""
    total, vertex = 0.0, 0
    for i in range(len(d)):
        alpha[i] = max(alpha[i], 0.0)
        total += alpha[i]
        if d[i] - 0.5 * Q[i, i] > d[vertex] - 0.5 * Q[vertex, vertex]:
            vertex = i
    for i in range(len(d)):
        alpha[i] /= total if total > 0 else 1.0
    # If most planes are steep, rounding errors may hide that one flat plane alone is better than any mixture.
    if not total > 0 or _slopes(Q, d, alpha, slope, error) < d[vertex] - 0.5 * Q[vertex, vertex]:
        for i in range(len(d)):
            alpha[i] = 1.0 if i == vertex else 0.0


@njit(error_model="numpy", **UNCOUNTED)
def _slopes(Q: Floats, d: Floats, alpha: Floats, slope: Floats, error: Floats) -> float:
    """Compute the gradient of the value at alpha, and a bound on the rounding error of each entry. Return the value.

    Each entry has its own error, since the planes' slopes may be of very different size.
    """
    for j in range(len(d)):
        slope[j] = d[j]
        error[j] = abs(d[j])
    for i in range(len(d)):
        weight, row = alpha[i], Q[i]
        if weight > 0:
            for j in range(len(row)):
                product = weight * row[j]
                slope[j] -= product
                error[j] += abs(product)
    value = 0.0
    for j in range(len(d)):
        error[j] *= SLOPE_ERROR
        value += 0.5 * alpha[j] * (d[j] + slope[j])
    return value


@njit(error_model="numpy", **UNCOUNTED)
def _entering(slope: Floats, error: Floats, support: NDArray[np.bool_], barred: NDArray[np.bool_]) -> int:
    """Return the variable of largest slope outside the support, -1 if it is not larger than those on the support."""
    entering, inside, outside = -1, -np.inf, -np.inf
    for i in range(len(slope)):
        if support[i]:
            inside = max(inside, slope[i] + error[i])
        elif not barred[i] and slope[i] - error[i] > outside:
            entering, outside = i, slope[i] - error[i]
    return entering if outside > inside else -1


@njit(error_model="numpy", **UNCOUNTED)
def _origin(Q: Floats, alpha: Floats, support: NDArray[np.bool_]) -> int:
    """Return the variable of largest weight among the flattest of the support."""
    flattest, origin = np.inf, -1
    for i in range(len(alpha)):
        if support[i]:
            flattest = min(flattest, Q[i, i])
    for i in range(len(alpha)):
        if support[i] and Q[i, i] <= AS_FLAT * flattest and (origin < 0 or alpha[i] > alpha[origin]):
            origin = i
    return origin


@njit(error_model="numpy", **UNCOUNTED)
def _append(
    Q: Floats,
    factor: Floats,
    members: NDArray[np.intp],
    count: int,
    entering: int,
    origin: int,
    proximal: float,
    column: Floats,
) -> None:
    """Append a variable to the `count` rows of the upper Cholesky factor. column : (k,), memory.

    If two planes are equal, the maximizer is not unique. A small proximal term selects about the one nearest to the
    present point. In contrast to a ridge term, its effect vanishes as that approaches the solution. Each variable has a
    weight of its own. A common weight that suits steep planes would be too large for flat ones and would keep them
    where they are.
    """
    row = Q[entering]
    constant = Q[origin, origin] - row[origin]
    for i in range(count):
        column[i] = row[members[i]] - Q[origin, members[i]] + constant
    square = row[entering] - row[origin] + constant
    for i in range(count):
        entry = column[i] / factor[i, i]
        rest, above = column[i + 1 : count], factor[i, i + 1 : count]
        for j in range(len(rest)):
            rest[j] -= entry * above[j]
        factor[i, count] = entry
        square -= entry * entry
    # The square of the entry on the diagonal is at least the proximal weight, but for rounding.
    factor[count, count] = math.sqrt(max(square, 0.0) + proximal)
    members[count] = entering


@njit(error_model="numpy", **UNCOUNTED)
def _remove(factor: Floats, members: NDArray[np.intp], count: int, leaving: int) -> None:
    """Remove a variable from the `count` rows of the Cholesky factor, by Givens rotations."""
    place = 0
    while members[place] != leaving:
        place += 1
    for i in range(place):
        row = factor[i, place:count]
        for j in range(len(row) - 1):
            row[j] = row[j + 1]
    for i in range(place, count - 1):
        members[i] = members[i + 1]
        upper, lower = factor[i, i:count], factor[i + 1, i:count]
        length = math.hypot(upper[1], lower[1])
        c, s = upper[1] / length, lower[1] / length
        # The rotated rows move one place to the left.
        for j in range(len(upper) - 1):
            a, b = upper[j + 1], lower[j + 1]
            upper[j] = c * a + s * b
            lower[j + 1] = c * b - s * a


@njit(error_model="numpy", fastmath={"reassoc", "nsz", "contract"}, **UNCOUNTED)
def _find_step(
    factor: Floats, members: NDArray[np.intp], count: int, origin: int, slope: Floats, step: Floats, column: Floats
) -> None:
    """Compute the step of each variable of the support to its value at the maximizer there, which may be negative.

    column : (k,), memory.
    """
    for i in range(count):
        column[i] = slope[members[i]] - slope[origin]
    for i in range(count):
        column[i] /= factor[i, i]
        entry, rest, above = column[i], column[i + 1 : count], factor[i, i + 1 : count]
        for j in range(len(rest)):
            rest[j] -= entry * above[j]
    step[origin] = 0.0
    for i in range(count - 1, -1, -1):
        total, rest, above = column[i], column[i + 1 : count], factor[i, i + 1 : count]
        for j in range(len(rest)):
            total -= rest[j] * above[j]
        column[i] = max(-FARTHEST, min(FARTHEST, total / factor[i, i]))
        step[members[i]] = column[i]
        step[origin] -= column[i]


@njit(error_model="numpy", **UNCOUNTED)
def _move(alpha: Floats, step: Floats, support: NDArray[np.bool_]) -> int:
    """Move alpha by the step, or as far as the simplex allows.

    Return the variable of the support that reaches 0 first, -1 if all stay positive.
    """
    leaving, share = -1, 1.0
    for i in range(len(alpha)):
        if support[i] and alpha[i] + step[i] <= 0:
            limit = alpha[i] / -step[i] if step[i] < 0 else 0.0
            if leaving < 0 or limit < share:
                leaving, share = i, min(limit, 1.0)
    total = 0.0
    for i in range(len(alpha)):
        if support[i]:
            alpha[i] = 0.0 if i == leaving else max(alpha[i] + share * step[i], 0.0)
            total += alpha[i]
    for i in range(len(alpha)):
        alpha[i] /= total
    return leaving
