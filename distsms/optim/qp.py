"""Quadratic programs over the simplex {a >= 0, sum a = 1}, by primal active-set methods: `simplex_qp` on the matrix Q =
F'F of the planes' slopes, and `simplex_least_squares`, slower but more accurate, on F itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats

EPS = float(np.finfo(float).eps)
SHORTEST = 1e-150  # replaces a length of 0 in denominators
DEPENDENT = 1e-12  # vectors count as linearly dependent if a singular value is below this share of the largest
PROXIMAL = 1e-13  # the proximal term of variable k has this weight times (Q_kk + the largest |d|)
SLOPE_ERROR = 1e-13  # a bound on the rounding error of a slope, as a share of its terms
AS_FLAT = 16.0  # the origin's Q_kk is at most this multiple of the least Q_kk of the support
FARTHEST = 1e200  # the longest step; small multiples of it do not overflow
TINY = 1e-300


def simplex_qp(Q: Floats, d: Floats, alpha: Floats) -> Floats:
    """Return the a in the simplex that maximizes <d, a> - a'Qa / 2, with Q (k, k) positive semi-definite, from the
    guess `alpha`. A step solves a linear system for the support, the s variables that may be positive, in O(k^2 + s^3).
    (quadprog violates the KKT conditions by 1e-3 with 200 planes; Clarabel and OSQP, without a guess, are slower.)
    """
    heights, sizes, vertex = d - 0.5 * Q.diagonal(), np.abs(Q), np.zeros(len(d))
    alpha, vertex[heights.argmax()] = np.maximum(alpha, 0.0), 1.0
    # If most planes are steep, rounding errors may hide that one flat plane alone is better than any mixture.
    alpha = alpha / alpha.sum() if alpha.sum() > 0 else vertex
    value, slope, error = _slopes(Q, sizes, d, alpha)
    if value < heights.max():
        alpha = vertex
        value, slope, error = _slopes(Q, sizes, d, alpha)
    # The guess is most often the maximizer on its support. So a variable may enter before the first step, and only if
    # none does, that step is on the support of the guess.
    # `barred`: their entry into the support did not raise the value; `blocked`: the last step ended where one is 0.
    support, barred, blocked = alpha > 0, np.zeros(len(d), bool), False
    best, reached = alpha, -np.inf
    for number in range(200 + 10 * len(d)):
        # 1) The variable of largest slope enters, unless the last step was blocked; the end, if none does after a step.
        if not blocked:
            if value > reached:
                reached, best, barred[:] = value, alpha, False
            outside = np.where(support | barred, -np.inf, slope - error)
            entering = outside.argmax()
            if outside[entering] > (slope + error)[support].max():
                support[entering] = barred[entering] = True
            elif number:
                break
        # 2) A step to the maximizer on the support, or until a variable leaves.
        members = support.nonzero()[0]
        step = _step_on_support(Q[members][:, members], d[members], alpha[members], slope[members])
        after = alpha[members] + step
        falling = np.flatnonzero(after <= 0)
        if blocked := len(falling) > 0:
            down = -step[falling]
            left = np.divide(alpha[members[falling]], down, out=np.zeros(len(falling)), where=down > 0)
            leaving = falling[left.argmin()]
            after = np.maximum(alpha[members] + min(1.0, left.min()) * step, 0.0)
            after[leaving], support[members[leaving]] = 0.0, False
        alpha = np.zeros(len(d))
        alpha[members] = after / after.sum()
        value, slope, error = _slopes(Q, sizes, d, alpha)
    return best


def _slopes(Q: Floats, sizes: Floats, d: Floats, alpha: Floats) -> tuple[float, Floats, Floats]:
    """Return the value and the gradient at alpha, and a bound on the rounding error of each slope; `sizes` are |Q|."""
    slope = d - alpha @ Q
    return 0.5 * float(alpha @ (d + slope)), slope, SLOPE_ERROR * (np.abs(d) + alpha @ sizes)


def _step_on_support(Q: Floats, d: Floats, alpha: Floats, slope: Floats) -> Floats:
    """Return the step (s,) from alpha to the maximizer on a support of s variables; it adds up to 0.

    The origin is one of the flattest planes, so that the differences of the others from it are about as accurate as the
    planes. Where planes are equal, a proximal term selects the maximizer nearest to alpha; each variable has its own
    weight, since one that suits steep planes would keep flat ones where they are.
    """
    curvature = Q.diagonal()
    origin = np.where(curvature <= AS_FLAT * curvature.min(), alpha, -1.0).argmax()
    M = Q - Q[origin]
    M -= M[:, [origin]]
    M.flat[:: len(d) + 1] += PROXIMAL * (curvature + np.abs(d).max()) + TINY
    M[origin], M[:, origin] = 0.0, 0.0
    M[origin, origin] = 1.0
    step = np.clip(np.linalg.solve(M, slope - slope[origin]), -FARTHEST, FARTHEST)
    step[origin] = -step.sum()
    return step


def simplex_least_squares(F: Floats, d: Floats, alpha: Floats) -> Floats:
    """Maximize <d, a> - ||F a||^2 / 2 over the simplex, from F (q, k) itself, within about (u max_k ||F_k||)^2 of the
    maximum, where `simplex_qp` has u max_k ||F_k||^2. A step takes O(q k) and the SVD (q, s) of the support.
    """
    lengths = np.sqrt(np.sum(np.square(F), axis=0))

    def value(a: Floats) -> float:
        mixture = F @ a
        return float(d @ a - 0.5 * (mixture @ mixture))

    # 1) The starting point: the guess, or the best vertex of the simplex if its value is higher; see `simplex_qp`.
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
            alpha[blocking], support[blocking] = 0.0, False
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
    # Two forms of the quotient of gradient and curvature avoid dividing a large number by a small one.
    kept = np.where(steep, sizes, floor)
    t = np.where(steep, along / kept - mixture, (along - sizes * mixture) / kept) / kept
    flat = slope - along @ V
    flat[np.abs(flat) <= 8 * len(slope) * EPS * np.abs(slope).max()] = 0.0  # rounding
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
