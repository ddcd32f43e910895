"""Lower bounds on min J with the elastic net, Omega(w) = l1 ||w||_1 + lam/2 ||w||^2.

The bound of a mixture alpha of planes (see `distsms.optim.planes`) is then, with m = sum_k alpha_k r_k,

    <d, alpha> - 1/(2 lam) sum_j max(|m_j| - l1, 0)^2

which is concave in alpha. While the set A = {j: |m_j| > l1} and the signs s of m on it do not change, it is the
quadratic program of the planes (r_k - l1 s)_A. So a semi-smooth Newton method solves that for the present A, goes as
far as the bound rises, and repeats this. If columns are of very different size, `interior_point_mixture` finds the best
mixture. The bound is computed from m itself, with rounding errors as in `Planes._by_mixture`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads scipy.linalg when it is used, which saves time in each start
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.optim.penalty import ElasticNet, soft_threshold
from distsms.optim.planes import USUAL, Planes, U
from distsms.optim.qp import simplex_qp
from distsms.optim.result import Origin, Snapshot
from distsms.parallel.vectors import SUMMED, Vectors

Integers = NDArray[np.intp]

ROUNDS = 20
"""The largest number of rounds in the search for the best mixture."""
EXACT = 1e-2
"""The search ends if the bound is below its maximum by at most this share of the tolerance."""
FLAT = 1e-3
"""A step ends where the slope of the bound along it is at most this share of the slope at its beginning."""
TRIALS = 40
"""The largest number of trials in a step."""
FEW = 8
"""The active columns are searched in a copy of the possible ones if these are at most one in so many."""


class ElasticPlanes(Planes):
    """The planes for an l1. Only the columns in which |r_kj| > l1 for some plane can be active."""

    def __init__(self, vectors: Vectors, regularizer: ElasticNet, **others: Any) -> None:
        super().__init__(vectors, regularizer, **others)
        self._possible = np.zeros(vectors.length, bool)

    def add(self, r: Floats, d: float, tolerance: float = 0.0, point: Origin | None = None) -> float:
        self._possible |= np.abs(r) > self.regularizer.l1
        return super().add(r, d, tolerance, point)

    def l1_limit(self, value: float) -> float:
        # w = 0 is the minimum if no entry of a subgradient there is beyond l1.
        planes = self._planes[self._touching(value)]
        return min((-self._vectors.minimum(-np.abs(plane)) for plane in planes), default=math.inf)

    def _possible_columns(self, also: Floats | None = None) -> tuple[Integers | slice, Floats]:
        """Return all columns that can be active, those where the slice `also` is not 0 too, and the planes in them."""
        used, planes = self._possible if also is None else self._possible | (also != 0), self._planes[: self._count]
        if FEW * np.count_nonzero(used) > len(used):
            return slice(None), planes
        columns = np.flatnonzero(used)
        return columns, np.take(planes, columns, axis=1)

    def _find_mixture(self, tolerance: float) -> None:
        (columns, planes), k = self._possible_columns(), self._count
        alpha, _ = self._best_mixture(planes, self._alpha[:k], self.regularizer.lam, 0.0)
        self._alpha[:k], total = alpha, math.fsum(alpha)
        excess = np.abs(alpha @ planes)
        excess -= self.regularizer.l1 * total  # `lower_bound_of` divides by the total
        np.maximum(excess, 0.0, out=excess)
        errors = None if self._errors is None else self._errors[columns]
        # Rounding in l1 times the total, and in the difference, is at most that of |m_j| where |m_j| > l1.
        self.bound = self._by_mixture(alpha, excess, errors, 8)

    def minimum(self) -> tuple[Floats, float]:
        (columns, planes), w = self._possible_columns(), np.zeros(self._vectors.length)
        _, w[columns] = self._best_mixture(planes, self._alpha[: self._count], self.regularizer.lam, 0.0)
        return w, self.bound.value

    def _best_mixture(
        self, planes: Floats, alpha: Floats, scale: float, shift: Floats | float
    ) -> tuple[Floats, Floats]:
        """Return the alpha in the simplex that maximizes <d, alpha> - ||S(m - shift)||^2 / (2 scale), S soft
        thresholding by l1, from a guess (k,), and the w there, or that of the step before if all `ROUNDS` were taken.
        **Collective** among ranks with the solver.
        """
        k, l1, root = len(alpha), self.regularizer.l1, self._vectors.root_values
        d, alpha = self._d[:k], alpha.copy()
        if not alpha.any():
            alpha[np.argmax(d)] = 1.0
        m = alpha @ planes - shift
        enough = max(EXACT * self._tolerance, 8 * U * (1.0 + float(np.max(np.abs(d)))))
        for _ in range(ROUNDS):
            # 1) How far is the bound from its maximum?
            excess = soft_threshold(m, l1)
            slopes = d - self._vectors.dots(planes, excess) / scale
            (lost,) = root(np.array([np.max(slopes) - alpha @ slopes]))
            if not lost > enough:
                break
            # 2) The best mixture for the present active columns.
            active = np.flatnonzero(excess)
            constant = (m - excess + shift)[active]  # the shift, and l1 with the sign of m
            target = self._program(planes, active, constant, alpha, scale)
            if target is None:
                break
            # 3) Towards it, as far as the bound rises.
            there = target @ planes - shift
            step = self._step(m, there, float(root(np.array([d @ (target - alpha)]))[0]), scale)
            if not step > 0:
                break
            alpha = (1 - step) * alpha + step * target
            m = (1 - step) * m + step * there
        w = -excess / scale
        if lost > max(enough, self._tolerance):  # it is the distance of the model's value at w from the bound
            shifts = np.zeros(len(m)) + shift
            other, other_w, gap = interior_point_mixture(self._vectors, planes, d, shifts, l1, scale, enough)
            if gap < lost:
                return other, other_w
        return alpha, w

    def _program(
        self, planes: Floats, active: Integers, constant: Floats, alpha: Floats, scale: float
    ) -> Floats | None:
        """Return the best mixture (k,) for the present active columns; None if the Gram matrix is too inaccurate."""

        def columns(some: slice) -> Floats:
            block: Floats = np.take(planes, active[some], axis=1) - constant[some]
            return block

        k = len(alpha)
        gram = gram_matrix(self._vectors, k, len(active), columns)
        size = float(alpha @ np.sqrt(np.diag(gram)))
        if not 0.5 * USUAL * size * size <= self._tolerance * scale:
            return None
        return self._vectors.root_values(simplex_qp(gram, scale * self._d[:k], alpha))

    def _step(self, m: Floats, there: Floats, rise: float, scale: float) -> float:
        """Return how far, from 0 to 1, to go to the mixture `there` for the largest bound; <d, .> grows by rise."""
        l1, sums = self.regularizer.l1, self._vectors.sum_values
        moving = np.flatnonzero((np.abs(m) > l1) | (np.abs(there) > l1))  # elsewhere |m_j| stays below l1
        m, change = m[moving], (there - m)[moving]

        def slope(step: float) -> float:
            return rise - float(sums(np.array([soft_threshold(m + step * change, l1) @ change]))[0]) / scale

        low, high = 0.0, 1.0
        first, last = slope(0.0), slope(1.0)
        if not first > 0:
            return 0.0
        if last >= -FLAT * first:
            return 1.0
        at_low = first
        for trial in range(TRIALS):  # regula falsi and bisection in turn
            middle = 0.5 * (low + high) if trial % 2 else low + (high - low) * at_low / (at_low - last)
            here = slope(middle)
            if abs(here) <= FLAT * first:
                return middle
            if here > 0:
                low, at_low = middle, here
            else:
                high, last = middle, here
        return low

    def _level_point(self, c: Floats, J: float, share: float) -> tuple[Floats, float]:
        k, regularizer, (columns, planes) = self._count, self.regularizer, self._possible_columns(c)
        level, centre = self.lower_bound + share * (J - self.lower_bound), c[columns]
        points: dict[float, Floats] = {}

        def proximal(weight: float, guess: Floats) -> tuple[Floats, bool]:
            alpha, w = self._best_mixture(planes, guess, regularizer.lam + weight, weight * centre)
            points[weight] = w
            heights = self._vectors.dots(planes, w) + self._d[:k]
            norms = self._vectors.sum_values(np.array([np.dot(w, w), np.sum(np.abs(w))]))
            value = regularizer.value(norms[0], norms[1]) + np.max(heights)
            return alpha, bool(value <= level)

        alpha, _ = self._search_weight(proximal)
        self._note_use(alpha)
        w = np.zeros(len(c))
        w[columns] = points[self._proximity]
        return w, 0.0

    def snapshot(self) -> Snapshot:
        return super().snapshot().joined(Snapshot({}, {}, {"possible": [self._possible.astype(float)]}))

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        (possible,) = snapshot.vectors["possible"]
        self._possible = possible > 0


STEPS = 60
"""The largest number of steps; usually there are 6 to 30."""
SHORTER = 0.99
"""A step goes so far towards the boundary."""


def gram_matrix(vectors: Vectors, k: int, length: int, columns: Callable[[slice], Floats]) -> Floats:
    """Return the inner products (k, k) of k slices, from blocks of columns. **Collective** as `Vectors.dots`."""
    gram = np.zeros((k, k))
    for start in range(0, length, SUMMED):
        block = columns(slice(start, start + SUMMED))
        gram += block @ block.T
    return vectors.sum_values(gram.ravel()).reshape(k, k)


class Point(NamedTuple):
    """A direction, or variables inside bounds; `slack`: how far planes are below the model; up, down: u and v."""

    alpha: Floats
    slack: Floats
    b: Floats
    up: Floats
    down: Floats


@np.errstate(all="ignore")  # what is not finite ends the method
def interior_point_mixture(
    vectors: Vectors, planes: Floats, d: Floats, shift: Floats, l1: float, scale: float, enough: float
) -> tuple[Floats, Floats, float]:
    """Return the best mixture (k,) of slices planes (k, q), its slice of w, and the distance of their values, which
    bounds both errors: `enough`, if it can be. With b_j in [-l1, l1], the program is

        maximize  <d, alpha> - ||e||^2 / (2 scale)  over alpha in the simplex and b,  e = sum_k alpha_k r_k - shift + b

    solved by Mehrotra's predictor-corrector method (SIAM J. Optim. 2, 1992) with w = u - v as variables of its own,
    since computing w from the mixture would magnify rounding. **Collective** among ranks with the solver.
    """
    (k, q), sums, root = planes.shape, vectors.sum_values, vectors.root_values
    count = k + 2 * float(sums(np.array([float(q)]))[0])
    sizes = -np.array([vectors.minimum(-np.abs(plane - shift)) for plane in planes])
    alpha = 1 / np.maximum(sizes, l1)  # so that steep planes do not hide the others
    alpha = root(alpha / np.sum(alpha))
    mu = max(float(np.max(np.abs(d))), enough) / count
    dual = np.full(q, mu / l1)
    at = Point(alpha, mu / alpha, np.zeros(q), dual, dual.copy())
    highest, lowest = -np.inf, np.inf
    best, best_w = alpha, np.zeros(q)
    for _ in range(STEPS):
        # 1) The bound of the mixture and the model at w, between which the minimum is.
        m, w = at.alpha @ planes - shift, at.up - at.down
        excess = soft_threshold(m, l1)
        numbers = [excess @ excess, l1 * np.sum(np.abs(w)) + 0.5 * scale * (w @ w) - shift @ w]
        numbers += [at.up @ (l1 - at.b) + at.down @ (l1 + at.b)]
        square, of_w, complementary = sums(np.array(numbers)).tolist()
        below = float(d @ at.alpha) - square / (2 * scale)
        above = float(np.max(vectors.dots(planes, w) + d)) + of_w
        mu = (float(at.alpha @ at.slack) + complementary) / count
        if not np.isfinite([below, above, mu]).all():
            break
        if below > highest:
            highest, best = below, at.alpha
        if above < lowest:
            lowest, best_w = above, w
        if not (lowest - highest > enough and mu > 0):
            break
        # 2) A direction to the solution itself says how far to aim.
        system = _System(vectors, planes, d, l1, scale, at, m + at.b)
        if system.factor is None:
            break
        predictor = system.direction(0.0, 0.0, 0.0)
        step = _longest(vectors, at, predictor, l1)
        ends = Point._make(x + step * dx for x, dx in zip(at, predictor, strict=True))
        across = float(sums(np.array([ends.up @ (l1 - ends.b) + ends.down @ (l1 + ends.b)]))[0])
        aim = mu * ((float(ends.alpha @ ends.slack) + across) / (count * mu)) ** 3
        # 3) A step that corrects for the products of its changes, within the bounds.
        change = system.direction(
            aim - predictor.alpha * predictor.slack,
            aim + predictor.up * predictor.b,
            aim - predictor.down * predictor.b,
        )
        step = min(1.0, SHORTER * _longest(vectors, at, change, l1))
        at = Point._make(x + step * dx for x, dx in zip(at, change, strict=True))
        at = at._replace(alpha=at.alpha / np.sum(at.alpha))
    return best, best_w, lowest - highest


class _System:
    """Newton's equations at a point, reduced to the planes' weights; `factor`, of Cholesky, is None where it fails."""

    def __init__(
        self, vectors: Vectors, planes: Floats, d: Floats, l1: float, scale: float, at: Point, residual: Floats
    ) -> None:
        self._vectors, self._planes, self._d = vectors, planes, d
        self._scale, self._at, self._residual = scale, at, residual
        self._upper, self._lower, k = l1 - at.b, l1 + at.b, len(d)
        ratio = at.up / self._upper + at.down / self._lower
        self._stiffness, self._share = 1 + scale * ratio, ratio / (1 + scale * ratio)
        roots = np.sqrt(self._share)
        matrix = gram_matrix(vectors, k, len(roots), lambda some: planes[:, some] * roots[some])
        matrix += np.diag(at.slack / at.alpha)
        self._unit = 1 / np.sqrt(np.diag(matrix))  # with this change of units, the diagonal is 1
        matrix *= self._unit * self._unit[:, None]
        self.factor: Floats | None = None
        if np.isfinite(matrix).all():
            with contextlib.suppress(np.linalg.LinAlgError):
                self.factor = np.linalg.cholesky(matrix + 8 * U * np.eye(k))
                self._one = self._solved(np.ones(k))

    def _solved(self, b: Floats) -> Floats:
        solve, usual = scipy.linalg.solve_triangular, {"lower": True, "check_finite": False}
        x: Floats = solve(self.factor, solve(self.factor, b * self._unit, **usual), trans=1, **usual)
        return x * self._unit

    def direction(self, of_planes: Floats | float, of_up: Floats | float, of_down: Floats | float) -> Point:
        """Return the direction to these products alpha slack, u (l1 - b) and v (l1 + b)."""
        at, planes, scale = self._at, self._planes, self._scale
        c = of_up / self._upper - of_down / self._lower
        pull = self._residual + scale * c
        right = of_planes / at.alpha + self._d + self._vectors.dots(planes, c - self._share * pull)
        x = self._solved(right)
        alpha = self._vectors.root_values(x - (np.sum(x) - 1 + np.sum(at.alpha)) / np.sum(self._one) * self._one)
        b = -(pull + alpha @ planes) / self._stiffness
        up = of_up / self._upper - at.up + at.up / self._upper * b
        down = of_down / self._lower - at.down - at.down / self._lower * b
        return Point(alpha, of_planes / at.alpha - at.slack - at.slack / at.alpha * alpha, b, up, down)


def _longest(vectors: Vectors, at: Point, change: Point, l1: float) -> float:
    """Return how far a direction stays within the bounds, at most 1."""
    here = np.concatenate((at.alpha, at.slack, at.up, at.down, l1 - at.b, l1 + at.b))
    moves = np.concatenate((change.alpha, change.slack, change.up, change.down, -change.b, change.b))
    falling = moves < 0
    return min(1.0, vectors.minimum(-here[falling] / moves[falling]))
