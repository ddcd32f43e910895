"""Quadratic programs over the simplex {a >= 0, sum a = 1}, by primal active-set methods.

`simplex_qp` works on the matrix Q of the quadratic term, and is fast. If Q = F'F has lost digits that matter, since the
columns of F are long and their mixture is short, `simplex_least_squares` works on F itself, which is slower and more
accurate: its error is that of `simplex_qp` with the square of the unit roundoff in place of the unit roundoff.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from distsms.utils.typing import Floats

EPS = float(np.finfo(float).eps)
PROXIMAL = 1e-13  # weight of a plane's proximal term, as a share of its own entry of Q plus the largest |d|
SHORTEST = 1e-150  # replaces a length of 0 in denominators
DEPENDENT = 1e-12  # singular values below this share of the largest mean that vectors depend on one another
FARTHEST = 1e200  # the longest step; multiples of it do not overflow


def simplex_qp(Q: Floats, d: Floats, alpha: Floats) -> Floats:
    """Maximize <d, a> - a'Qa / 2 over the simplex.

    Parameters
    ----------
    Q : ndarray of shape (k, k)
        Positive semi-definite.
    d : ndarray of shape (k,)
        The linear term.
    alpha : ndarray of shape (k,)
        A first guess; negative entries are dropped, and the rest is scaled.

    Returns
    -------
    ndarray of shape (k,)
        A point of the simplex whose value is no worse than the guess's.

    Notes
    -----
    Each step solves one system on the support, of s planes: O(k s + s^3). In exact arithmetic the method is finite; in
    floating point the number of steps is bounded.

    Libraries were compared on hundreds of planes of real data at lambda = 1e-6. quadprog, which needs a definite Q,
    ends with KKT violations of 1e-3 from 200 planes on. Interior-point (Clarabel) and splitting (OSQP) methods are as
    accurate as this one and a hundred times slower, since only this one starts from the last solution.
    """

    def value(a: Floats) -> float:
        return float(d @ a - 0.5 * (a @ Q @ a))

    def target(support: NDArray[np.bool_], near: Floats) -> tuple[Floats, Floats]:
        found = _on_support(Q, d, support, near)
        return found, found

    def slopes(a: Floats, support: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        weights, rows = a[support], Q[support]
        # Each slope to its own rounding: planes of very different steepness may lie in one bundle.
        return d - weights @ rows, 1e-13 * (np.abs(d) + weights @ np.abs(rows))

    first = _first(alpha, d - 0.5 * np.diag(Q), value)
    return _active_set(first, value, target, slopes)


def simplex_least_squares(F: Floats, d: Floats, alpha: Floats) -> Floats:
    """Maximize <d, a> - ||F a||^2 / 2 over the simplex, from F (q, k) itself.

    d, alpha and what is returned are as in `simplex_qp`. With a unit roundoff u the value is within about
    (u max_k ||F_k||)^2 of the maximum, where that of `simplex_qp` with Q = F'F is within about u max_k ||F_k||^2.
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
    """Where to begin: at the guess alpha, or at the best vertex if that is better. vertices : their values, (k,)."""
    alpha, vertex = np.maximum(alpha, 0.0), np.zeros(len(alpha))
    vertex[np.argmax(vertices)] = 1.0
    if alpha.sum() > 0:
        alpha /= alpha.sum()
    # Among steep planes, rounding may hide that a flat one is better alone than any mixture of them.
    return alpha if alpha.any() and value(alpha) >= value(vertex) else vertex


def _active_set(
    first: Floats,
    value: Callable[[Floats], float],
    on_support: Callable[[NDArray[np.bool_], Floats], tuple[Floats, Floats]],
    slopes: Callable[[Floats, NDArray[np.bool_]], tuple[Floats, Floats]],
) -> Floats:
    """From `first` to the maximum of `value`.

    on_support : the maximizer on a support with sum 1, signs free, the next to a point; and what `slopes` needs of it.
    slopes : of the value there, (k,), and what rounding may have made of each.
    """
    alpha, best, support = first, first, first > 0
    reached, barred = -np.inf, np.zeros(len(first), bool)  # planes that did not raise the value when they were let in
    for _ in range(200 + 10 * len(first)):
        target, found = on_support(support, alpha)
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
        slope, error = slopes(found, support)
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


def _on_support(Q: Floats, d: Floats, support: NDArray[np.bool_], near: Floats) -> Floats:
    """The maximizer with sum 1 on the support alone, signs free; (k,), zero elsewhere.

    Equal planes would make the system singular: of its solutions, about the one next to `near` (k,). A proximal term
    does that, and unlike a ridge it vanishes as `near` comes to the solution.
    """
    S = np.flatnonzero(support)
    k = len(S)
    if k == 1:
        found = np.ones(1)
    else:
        part, own = Q[S[:, None], S], d[S]
        sizes, highest = part.diagonal(), np.abs(own).max()
        scale = max(sizes.max(), highest, 1e-300)
        kkt = np.ones((k + 1, k + 1))
        np.divide(part, scale, out=kkt[:k, :k])
        # Each plane's by its own size: a steep plane must not hold the flat ones where they are.
        proximal = PROXIMAL / scale * (sizes + highest)
        kkt.ravel()[:: k + 2][:k] += proximal
        kkt[k, k] = 0.0
        found = np.linalg.solve(kkt, np.append(own / scale + proximal * near[S], 1.0))[:k]
    target = np.zeros(len(d))
    target[S] = found
    return target


def _least_squares_on_support(F: Floats, d: Floats, support: NDArray[np.bool_], near: Floats) -> tuple[Floats, Floats]:
    """The same by least squares: a = near + B t, where B takes the plane of largest weight as the others' origin.

    Minimizes ||m + (F B) t||^2 / 2 - <B'd, t> with m = F near. Differences of nearly equal planes are exact, and their
    lengths are made alike. A direction that is flat to rounding is given the least curvature that rounding could hide:
    the way along it then ends at the boundary of the simplex, or nowhere where nothing is to be gained.
    Also returns z = -F a, (q,), which gives the slopes d + F'z. It follows from those of the support, which are equal:
    F a itself is a short sum of long vectors, and has lost more digits.
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
    # In the directions of V: the gradient over the curvature, written so that nothing large is divided by little.
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
    """For vectors v = F c, F (q, k): b (k,) -> the c (k,) of the shortest v with the inner products F'v = b.

    Columns that depend on others to rounding are taken for dependent: then v is the best there is.
    """
    lengths = np.maximum(np.sqrt(np.sum(np.square(F), axis=0)), SHORTEST)
    _, sizes, V = np.linalg.svd(F / lengths, full_matrices=False)
    inverse = np.where(sizes > DEPENDENT * sizes[0], 1 / np.maximum(sizes, SHORTEST), 0.0)
    return lambda b: (np.square(inverse) * (V @ (b / lengths))) @ V / lengths
