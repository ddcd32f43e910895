"""Lower bounds on min J with the elastic net, Omega(w) = l1 ||w||_1 + lam/2 ||w||^2.

The bound of a mixture alpha of planes (see `distsms.optim.planes`) is then, with m = sum_k alpha_k r_k,

    <d, alpha> - 1/(2 lam) sum_j max(|m_j| - l1, 0)^2

It is concave and continuously differentiable in alpha. As long as the set A = {j: |m_j| > l1} and the signs s_j of m_j
on it do not change, it is <d, alpha> - 1/(2 lam) ||sum_k alpha_k (r_k - l1 s)_A||^2, because the alpha_k sum to 1. The
maximum of this is the quadratic program of the bundle for other planes. So a semi-smooth Newton method finds the best
mixture: it solves the program for the present A, goes towards its solution as far as the bound rises, and repeats this
with the new A until the mixture is the best one. Usually that takes two to five rounds. If columns are of very
different size, its steps become tiny, or rounding decides which columns are in A. Then the search ends far from the
best mixture, and `distsms.optim.interior_point` finds it.

The bound of the mixture is computed from m itself, since the active columns depend on it. Its rounding errors are
bounded as in `Planes._by_mixture`: an entry of max(|m_j| - l1, 0) changes at most as much as m_j does.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.optim.interior_point import best_mixture as interior_point_mixture
from distsms.optim.interior_point import gram_matrix
from distsms.optim.penalty import ElasticNet, SquaredNorm, soft_threshold
from distsms.optim.planes import USUAL, Bound, Mixture, Planes, U
from distsms.optim.qp import simplex_qp
from distsms.optim.result import Snapshot
from distsms.parallel.vectors import Vectors

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


def no_planes(
    vectors: Vectors, regularizer: SquaredNorm, zero_plane: bool, capacity: int, errors: Floats | float, d_error: float
) -> Planes:
    """Return an object without planes for a regularizer; see `Planes`."""
    kind = ElasticPlanes if isinstance(regularizer, ElasticNet) else Planes
    return kind(vectors, regularizer, zero_plane, capacity, errors, d_error)


class Part(NamedTuple):
    """The planes in those columns of a slice where a mixture may have an entry beyond l1."""

    columns: Integers | slice
    planes: Floats  # (k, columns)


class ElasticPlanes(Planes):
    """The planes for the elastic net; their regularizer is an `ElasticNet`.

    Only the q columns in which |r_kj| > l1 for some plane can be active. A round takes k q numbers and k^2 |A|
    operations. If vectors are distributed, it sums k^2 numbers over the ranks, and one more for each trial of a step.
    """

    regularizer: ElasticNet

    def __init__(self, vectors: Vectors, *arguments: Any) -> None:
        super().__init__(vectors, *arguments)
        self._possible = np.zeros(vectors.length, bool)

    def add(self, r: Floats, d: float, tolerance: float = 0.0) -> float:
        self._possible |= np.abs(r) > self.regularizer.l1
        return super().add(r, d, tolerance)

    def l1_limit(self, value: float) -> float:
        """See `Planes.l1_limit`. w = 0 is the minimum if no entry of a subgradient there is beyond l1."""
        planes = self._planes[self._touching(value)]
        return min((-self._vectors.minimum(-np.abs(plane)) for plane in planes), default=math.inf)

    def _part(self, also: Floats | None = None) -> Part:
        """Return the planes in all columns that can be active, and in those where the slice `also` is not 0."""
        used, planes = self._possible if also is None else self._possible | (also != 0), self._planes[: self._count]
        if FEW * np.count_nonzero(used) > len(used):
            return Part(slice(None), planes)
        columns = np.flatnonzero(used)
        return Part(columns, np.take(planes, columns, axis=1))

    def _find_mixture(self, tolerance: float) -> None:
        part = self._part()
        alpha, _ = self._best_mixture(part, self._alpha[: self._count], self.regularizer.lam, 0.0)
        self._alpha[: self._count] = alpha
        self.bound = self._agreed_bound(self._bound_of(part, alpha))

    def minimum(self) -> tuple[Floats, float]:
        part, w = self._part(), np.zeros(self._vectors.length)
        _, w[part.columns] = self._best_mixture(part, self._alpha[: self._count], self.regularizer.lam, 0.0)
        return w, self.bound.value

    def _bound_of(self, part: Part, alpha: Floats) -> Bound:
        """Return the bound of a mixture."""
        k, total = len(alpha), math.fsum(alpha)
        excess = np.abs(alpha @ part.planes)
        excess -= self.regularizer.l1 * total  # `lower_bound_of` divides by the total
        np.maximum(excess, 0.0, out=excess)
        errors = None if self._errors is None else self._errors[part.columns]
        square, first_order = self._square_and_errors(excess, errors)
        # Rounding in l1 times the total, and in the difference, is at most that of |m_j| where |m_j| > l1.
        off = (k + 8) * U * float(alpha @ self._lengths[:k])
        return self.lower_bound_of(Mixture(alpha, square, self._share(k) * square, first_order, off))

    def _best_mixture(self, part: Part, alpha: Floats, scale: float, shift: Floats | float) -> tuple[Floats, Floats]:
        """Return the alpha in the simplex that maximizes <d, alpha> - ||S(m - shift)||^2 / (2 scale), and the w there.

        **Collective** among the ranks that run the solver.

        alpha : (k,), where the search begins; the vertex of the highest d if all are 0.  shift : in the columns of the
        part.  S : soft thresholding by l1.
        """
        k, l1, root = len(alpha), self.regularizer.l1, self._vectors.root_values
        d, alpha = self._d[:k], alpha.copy()
        if not alpha.any():
            alpha[np.argmax(d)] = 1.0
        m = alpha @ part.planes - shift
        enough = max(EXACT * self._tolerance, 8 * U * (1.0 + float(np.max(np.abs(d)))))
        for _ in range(ROUNDS):
            # 1) How far is the bound from its maximum?
            excess = soft_threshold(m, l1)
            slopes = d - self._vectors.dots(part.planes, excess) / scale
            (lost,) = root(np.array([np.max(slopes) - alpha @ slopes]))
            if not lost > enough:
                break
            # 2) The best mixture for the present active columns.
            active = np.flatnonzero(excess)
            constant = (m - excess + shift)[active]  # the shift, and l1 with the sign of m
            target = self._program(part.planes, active, constant, alpha, scale)
            if target is None:
                break
            # 3) Towards it, as far as the bound rises.
            there = target @ part.planes - shift
            step = self._step(m, there, float(root(np.array([d @ (target - alpha)]))[0]), scale)
            if not step > 0:
                break
            alpha = target if step == 1 else (1 - step) * alpha + step * target
            m = there if step == 1 else (1 - step) * m + step * there
        w = -excess / scale
        if lost > max(enough, self._tolerance):  # it is the distance of the model's value at w from the bound
            shifts = np.zeros(len(m)) + shift
            solved = interior_point_mixture(self._vectors, part.planes, d, shifts, l1, scale, enough)
            if solved.gap < lost:
                return solved.alpha, solved.w
        return alpha, w

    def _program(
        self, planes: Floats, active: Integers, constant: Floats, alpha: Floats, scale: float
    ) -> Floats | None:
        """Return the best mixture if the active columns and their signs stay as they are; (k,).

        None : the Gram matrix is too inaccurate.
        """

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
        """Return how far to go from m towards the mixture `there`, from 0 to 1, so that the bound is about largest.

        rise : <d, .> there minus that here.
        """
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
        k, regularizer, part = self._count, self.regularizer, self._part(c)
        level, centre = self.lower_bound + share * (J - self.lower_bound), c[part.columns]

        points: dict[float, Floats] = {}

        def proximal(weight: float, guess: Floats) -> tuple[Floats, bool]:
            alpha, w = self._best_mixture(part, guess, regularizer.lam + weight, weight * centre)
            points[weight] = w
            heights = self._vectors.dots(part.planes, w) + self._d[:k]
            norms = self._vectors.sum_values(np.array([np.dot(w, w), np.sum(np.abs(w))]))
            value = regularizer.value(norms[0]) + regularizer.l1 * norms[1] + np.max(heights)
            return alpha, bool(value <= level)

        alpha, _ = self._search_weight(proximal)
        self._note_use(alpha)
        w = np.zeros(len(c))
        w[part.columns] = points[self._proximity]
        return w, 0.0

    def snapshot(self) -> Snapshot:
        return super().snapshot().joined(Snapshot({}, {}, {"possible": [self._possible.astype(float)]}))

    def restore(self, snapshot: Snapshot) -> None:
        super().restore(snapshot)
        (possible,) = snapshot.vectors["possible"]
        self._possible = possible > 0
