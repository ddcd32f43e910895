"""Quadratic programs over the simplex {a >= 0, sum a = 1}, by primal active-set methods: `simplex_qp` on the matrix Q =
F'F of the planes' slopes, and `simplex_least_squares`, slower, on F itself, with an error of the square of the unit
roundoff.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import UNCOUNTED, njit
from distsms.base.typing import Floats

EPS = float(np.finfo(float).eps)
SHORTEST = 1e-150  # replaces a length of 0 in denominators
DEPENDENT = 1e-12  # vectors count as linearly dependent if a singular value is below this share of the largest


def simplex_qp(Q: Floats, d: Floats, alpha: Floats) -> Floats:
    """Return the a in the simplex that maximizes <d, a> - a'Qa / 2, with Q (k, k) positive semi-definite.

    Its value is at least that of the guess `alpha`. A step solves a linear system for the s variables that may be
    positive, in O(k s), with a factor from the start, O(s^3). (quadprog violates the KKT conditions by 1e-3 with 200
    planes; Clarabel and OSQP are as accurate and a hundred times slower, since they cannot start from the last
    solution.)
    """
    # The maximum over a support is computed with one of its variables, the origin, as 1 minus the sum of the others, by
    # the Cholesky factor of the differences of planes from the origin's, kept while variables enter and leave. The
    # origin is one of the flattest planes, so that the differences are about as accurate as the planes themselves.
    k, start = len(d), np.array(alpha, float)
    factor, rows = np.empty((k, k)), np.empty((5, k))
    members, flags = np.empty(k, np.intp), np.empty((2, k), bool)
    _maximize(np.ascontiguousarray(Q), np.ascontiguousarray(d), start, factor, rows, members, flags)
    return start


def simplex_least_squares(F: Floats, d: Floats, alpha: Floats) -> Floats:
    """Maximize <d, a> - ||F a||^2 / 2 over the simplex, from F (q, k) itself, within about (u max_k ||F_k||)^2 of the
    maximum, where `simplex_qp` has u max_k ||F_k||^2. A step takes O(q k) and a singular value decomposition (q, s) of
    the support.
    """
    lengths = np.sqrt(np.sum(np.square(F), axis=0))

    def value(a: Floats) -> float:
        mixture = F @ a
        return float(d @ a - 0.5 * (mixture @ mixture))

    # 1) The starting point: the guess, or the best vertex of the simplex if its value is higher. If most planes are
    # steep, rounding errors may hide that one flat plane alone is better than any mixture.
    first, vertex = np.maximum(alpha, 0.0), np.zeros(len(alpha))
    vertex[np.argmax(d - 0.5 * np.square(lengths))] = 1.0
    if first.sum() > 0:
        first /= first.sum()
    if not (first.any() and value(first) >= value(vertex)):
        first = vertex
    alpha, best, support = first, first, first > 0
    # `barred` are the variables whose entry into the support did not raise the value.
    reached, barred = -np.inf, np.zeros(len(first), bool)
    for _ in range(200 + 10 * len(first)):
        # 2) The maximizer on the support, or as far towards it as the simplex allows: what reaches zero is dropped.
        target, z = _least_squares_on_support(F, d, support, alpha)
        falling = support & (target <= 0)
        if falling.any():
            ratios = np.where(falling, alpha / np.where(alpha > target, alpha - target, 1.0), np.inf)
            blocking = int(np.argmin(ratios))
            alpha = np.maximum(alpha + min(1.0, ratios[blocking]) * (target - alpha), 0.0)
            alpha[blocking] = 0.0
            support[blocking] = False
            if support.any() and alpha.sum() > 0:
                continue
            break
        alpha = np.where(support, target, 0.0)
        height = value(alpha)
        if height > reached:
            reached, best, barred[:] = height, alpha, False
        # 3) The variable of largest slope enters, less a bound on the rounding error of its slope.
        slope, error = d + z @ F, 4 * EPS * (np.abs(d) + lengths * np.sqrt(z @ z))
        slope += np.where(support, 1, -1) * error
        outside = np.where(support | barred, -np.inf, slope)
        entering = int(np.argmax(outside))
        if outside[entering] <= slope[support].max():
            break
        support[entering] = barred[entering] = True
    if not np.isfinite(reached):
        return first
    best = best / best.sum()
    return best if value(best) >= value(first) else first


def _least_squares_on_support(F: Floats, d: Floats, support: NDArray[np.bool_], near: Floats) -> tuple[Floats, Floats]:
    """Return the maximizer (k,) with sum 1 that is 0 outside the support, and z = -F a (q,). Entries may be negative.

    With a = near + B t, the columns of F B the differences of the support's planes from that of largest weight, scaled
    to length 1, it minimizes ||m + (F B) t||^2 / 2 - <B'd, t>, m = F near. A direction without curvature within
    rounding gets the largest that rounding could hide. z comes from the condition that d + F'z is equal on the support.
    """
    S = np.flatnonzero(support)
    target, origin = np.zeros(len(d)), S[np.argmax(near[S])]
    target[origin] = 1.0
    if len(S) == 1:
        return target, -F[:, origin]
    others = np.delete(S, np.argmax(near[S]))
    B = F[:, others] - F[:, [origin]]
    lengths = np.maximum(np.sqrt(np.sum(np.square(B), axis=0)), SHORTEST)
    B /= lengths
    slope = (d[others] - d[origin]) / lengths
    U, sizes, V = np.linalg.svd(B, full_matrices=False)
    floor = max(EPS * float(sizes[0]), SHORTEST)
    steep = sizes > floor
    m = F[:, S] @ near[S]
    mixture = m @ U
    along = V @ slope
    # The step in the direction of each row of V is the gradient divided by the curvature. The two forms of the quotient
    # avoid dividing a large number by a small one.
    kept = np.where(steep, sizes, floor)
    t = np.where(steep, along / kept - mixture, (along - sizes * mixture) / kept) / kept
    flat = slope - along @ V
    flat[np.abs(flat) <= 8 * EPS * np.abs(slope).max()] = 0.0
    with np.errstate(over="ignore"):
        step = np.clip((t @ V + flat / floor**2) / lengths, -FARTHEST, FARTHEST)
    target[others] = near[others] + step
    target[origin] = near[origin] - np.sum(step)
    z = -U[:, steep] @ (along / kept)[steep]
    if np.count_nonzero(steep) < len(F):
        z -= m - U[:, steep] @ mixture[steep]
    return target, z


def short_combination(F: Floats) -> Callable[[Floats], Floats]:
    """Return a function from b (k,) to the c (k,) for which v = F c is the shortest with F'v = b."""
    lengths = np.maximum(np.sqrt(np.sum(np.square(F), axis=0)), SHORTEST)
    _, sizes, V = np.linalg.svd(F / lengths, full_matrices=False)
    inverse = np.where(sizes > DEPENDENT * sizes[0], 1 / np.maximum(sizes, SHORTEST), 0.0)
    return lambda b: (np.square(inverse) * (V @ (b / lengths))) @ V / lengths


PROXIMAL = 1e-13  # the proximal term of variable k has this weight times (Q_kk + the largest |d|)
SLOPE_ERROR = 1e-13  # a bound on the rounding error of a slope, as a share of its terms
AS_FLAT = 16.0  # the origin's Q_kk is at most this multiple of the least Q_kk of the support
FARTHEST = 1e200  # the longest step; small multiples of it do not overflow
TINY = 1e-300


@njit(error_model="numpy", **UNCOUNTED)
def _maximize(
    Q: Floats,
    d: Floats,
    best: Floats,
    factor: Floats,
    rows: Floats,
    members: NDArray[np.intp],
    flags: NDArray[np.bool_],
) -> None:
    """Replace the guess `best` by the maximizer of <d, a> - a'Qa / 2 over the simplex. factor (k, k), rows (5, k),
    members (k,) and flags (2, k) are working space: kernels that make arrays load slowly.
    """
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
        # 1) A variable enters, unless the last step was blocked; the end, if none does after a step.
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
        # 2) The factor of the new support, from the start if the origin changes.
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
        # 3) A step to the maximizer on the support, or until a variable leaves.
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
    """Compute the gradient at alpha, and bounds on its rounding errors, as slopes differ. Return the value."""
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
    """Append a variable to the `count` rows of the upper Cholesky factor, with a small proximal term of its own."""
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
    """Compute the step of each variable of the support to its value at the maximizer there. column : (k,), memory."""
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
    """Move alpha by the step, as far as the simplex allows. Return the variable that reaches 0 first, or -1."""
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
