"""The best mixture of planes for the elastic net by an interior-point method, if columns are of very different size.

With the letters of `distsms.optim.elastic_planes`, and with b_j in [-l1, l1] for the columns, the program is

    maximize  <d, alpha> - ||e||^2 / (2 scale)   over alpha in the simplex and b,    e = sum_k alpha_k r_k - shift + b

At its solution w = -e / scale minimizes l1 ||w||_1 + scale/2 ||w||^2 - <shift, w> + max_k (<r_k, w> + d_k). The method
is the predictor-corrector method of Mehrotra, On the implementation of a primal-dual interior point method, SIAM J.
Optim. 2, 1992. It keeps w = u - v as variables of its own. To compute w from the mixture would magnify the mixture's
rounding error by 1 / scale. Nor does anything depend on which of the columns count as active.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy  # loads scipy.linalg when it is used, which saves time in each start

from distsms.base.typing import Floats
from distsms.optim.penalty import soft_threshold
from distsms.optim.planes import U
from distsms.parallel.vectors import SUMMED, Vectors

STEPS = 60
"""The largest number of steps; usually there are 6 to 30."""
SHORTER = 0.99
"""A step goes so far towards the boundary."""


def gram_matrix(vectors: Vectors, k: int, length: int, columns: Callable[[slice], Floats]) -> Floats:
    """Return the inner products of k vectors, (k, k), from blocks of their columns. **Collective** as `Vectors.dots`.

    length : of the slices.
    """
    gram = np.zeros((k, k))
    for start in range(0, length, SUMMED):
        block = columns(slice(start, start + SUMMED))
        gram += block @ block.T
    return vectors.sum_values(gram.ravel()).reshape(k, k)


class Solved(NamedTuple):
    """A mixture alpha (k,), this rank's slice of w, and the distance of their values, which bounds both errors."""

    alpha: Floats
    w: Floats
    gap: float


class Point(NamedTuple):
    """The variables, all of them inside their bounds, or a direction.

    `slack` is the distance of each plane at w below the model, `up` and `down` are u and v.
    """

    alpha: Floats
    slack: Floats
    b: Floats
    up: Floats
    down: Floats


@np.errstate(all="ignore")  # what is not finite ends the method
def best_mixture(
    vectors: Vectors, planes: Floats, d: Floats, shift: Floats, l1: float, scale: float, enough: float
) -> Solved:
    """Solve the program until the gap is at most `enough`, or as well as rounding allows.

    **Collective** among the ranks that run the solver. A step takes O(q k^2) operations.

    planes : (k, q), slices of the r_k in q columns.  shift : in these columns.
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
    return Solved(best, best_w, lowest - highest)


class _System:
    """Newton's equations at a point, reduced to the weights of the planes, with a Cholesky factor of their matrix.

    `factor` is None if the matrix is not positive definite, or not finite.
    """

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
        """Return the direction to the products alpha slack, u (l1 - b) and v (l1 + b) that are given."""
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
