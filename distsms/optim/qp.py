"""Quadratic programs over the simplex {a >= 0, sum a = 1}, by primal active-set methods.

`simplex_qp` works on the matrix Q of the quadratic term, and is fast. It is inaccurate if Q = F'F and the columns of F
are long but their mixture is short. Then `simplex_least_squares`, which works on F itself, is slower and more accurate:
its error is proportional to the square of the unit roundoff, that of `simplex_qp` to the unit roundoff.

A plane of the bundle is one variable here: a_k is its weight, d_k its constant, and F_k its slope.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.optim.qp_kernels import FARTHEST, Room, maximize

EPS = float(np.finfo(float).eps)
SHORTEST = 1e-150  # replaces a length of 0 in denominators
DEPENDENT = 1e-12  # vectors count as linearly dependent if a singular value is below this share of the largest


def simplex_qp(Q: Floats, d: Floats, alpha: Floats) -> Floats:
    """Return the a in the simplex that maximizes <d, a> - a'Qa / 2, with Q (k, k) positive semi-definite.

    Its value is at least that of the guess `alpha`, of which negative entries are dropped and the rest is scaled. The
    support is the set of the s variables that may be positive. Each step solves one linear system for them, in O(k s),
    with a matrix that is factored at the start, in O(s^3), and updated when a variable enters or leaves. In exact
    arithmetic the method ends after finitely many steps; here their number is also limited.

    Libraries were compared on hundreds of planes of real data at lambda = 1e-6. With 200 planes or more, quadprog's
    solutions violate the KKT conditions by 1e-3. Clarabel and OSQP are as accurate as this function and a hundred times
    slower, since they cannot start from the last solution.
    """
    k, start = len(d), np.array(alpha, float)
    room = Room(np.empty((k, k)), np.empty((5, k)), np.empty(k, np.intp), np.empty((2, k), bool))
    maximize(np.ascontiguousarray(Q), np.ascontiguousarray(d), start, room)
    return start


def simplex_least_squares(F: Floats, d: Floats, alpha: Floats) -> Floats:
    """Maximize <d, a> - ||F a||^2 / 2 over the simplex, from F (q, k) itself.

    d, alpha and the result are as in `simplex_qp`. With u the unit roundoff, the value at the result is within about (u
    max_k ||F_k||)^2 of the maximum. With `simplex_qp` and Q = F'F it is within about u max_k ||F_k||^2.
    Cost of a step: O(q k), and a singular value decomposition (q, s) of the s planes of the support.
    """
    lengths = np.sqrt(np.sum(np.square(F), axis=0))

    def value(a: Floats) -> float:
        mixture = F @ a
        return float(d @ a - 0.5 * (mixture @ mixture))

    def target(support: NDArray[np.bool_], near: Floats) -> tuple[Floats, Floats]:
        return _least_squares_on_support(F, d, support, near)

    def slopes(z: Floats, support: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        return d + z @ F, 4 * EPS * (np.abs(d) + lengths * np.sqrt(z @ z))

    first = _first(alpha, d - 0.5 * np.square(lengths), value)
    return _active_set(first, value, target, slopes)


def _first(alpha: Floats, vertices: Floats, value: Callable[[Floats], float]) -> Floats:
    """Return the starting point: the guess alpha, or the best vertex of the simplex if its value is higher.

    vertices : (k,), the value at each vertex.
    """
    alpha, vertex = np.maximum(alpha, 0.0), np.zeros(len(alpha))
    vertex[np.argmax(vertices)] = 1.0
    if alpha.sum() > 0:
        alpha /= alpha.sum()
    # If most planes are steep, rounding errors may hide that one flat plane alone is better than any mixture.
    return alpha if alpha.any() and value(alpha) >= value(vertex) else vertex


def _active_set(
    first: Floats,
    value: Callable[[Floats], float],
    on_support: Callable[[NDArray[np.bool_], Floats], tuple[Floats, Floats]],
    slopes: Callable[[Floats, NDArray[np.bool_]], tuple[Floats, Floats]],
) -> Floats:
    """Maximize `value` over the simplex, starting at `first`.

    on_support : returns the maximizer under the constraints that the sum is 1 and that all variables outside a support
    are 0 (entries may be negative), or the maximizer nearest to a given point if there are several; and what `slopes`
    needs of it.
    slopes : returns the gradient of the value at this maximizer, (k,), and a bound on the rounding error of each entry.
    """
    alpha, best, support = first, first, first > 0
    # `barred` are the variables whose entry into the support did not raise the value.
    reached, barred = -np.inf, np.zeros(len(first), bool)
    for _ in range(200 + 10 * len(first)):
        target, solution = on_support(support, alpha)
        falling = support & (target <= 0)
        if falling.any():  # go towards the target as far as the simplex allows, and drop what reaches zero
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
        slope, error = slopes(solution, support)
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
    """Return the maximizer (k,) with sum 1 that is 0 outside the support, and z = -F a (q,).

    Its entries may be negative. If it is not unique, it is about the one nearest to `near` (k,).

    The variables are written as a = near + B t: the columns of F B are the differences between the other planes of the
    support and the plane of largest weight, scaled to length 1. Differences of nearly equal planes have no rounding
    error. The function minimizes ||m + (F B) t||^2 / 2 - <B'd, t> with m = F near.

    A direction whose curvature is zero within rounding is given the largest curvature that rounding could hide. If the
    value grows in this direction, the step then leaves the simplex, and the caller stops it at the boundary.

    The gradient is d + F'z. z is computed from the condition that all entries of the gradient on the support are equal.
    This is more accurate than F a, a short sum of long vectors.
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
    """Return a function that takes b (k,) and returns the c (k,) for which v = F c is the shortest v with F'v = b.

    F is (q, k). Columns that are linearly dependent within rounding count as dependent. Then F'v = b may have no
    solution, and v is the least-squares solution.
    """
    lengths = np.maximum(np.sqrt(np.sum(np.square(F), axis=0)), SHORTEST)
    _, sizes, V = np.linalg.svd(F / lengths, full_matrices=False)
    inverse = np.where(sizes > DEPENDENT * sizes[0], 1 / np.maximum(sizes, SHORTEST), 0.0)
    return lambda b: (np.square(inverse) * (V @ (b / lengths))) @ V / lengths
