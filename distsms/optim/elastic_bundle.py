"""Lower bounds on min J with the elastic net, Omega(w) = l1 ||w||_1 + lam/2 ||w||^2.

The bound of a mixture alpha of planes (see `distsms.optim.bundle`) is then, with m = sum_k alpha_k r_k,

    <d, alpha> - 1/(2 lam) sum_j max(|m_j| - l1, 0)^2

It is concave and continuously differentiable in alpha. As long as the set A = {j: |m_j| > l1} and the signs s_j of m_j
on it do not change, it is <d, alpha> - 1/(2 lam) ||sum_k alpha_k (r_k - l1 s)_A||^2, because the alpha_k sum to 1. The
maximum of this is the quadratic program of the bundle for other planes. So a semi-smooth Newton method finds the best
mixture: it solves the program for the present A, goes towards its solution as far as the bound rises, and repeats this
with the new A until the mixture is the best one. Usually that takes two to five rounds.

The bound of the mixture is computed from m itself, since the active columns depend on it. So its rounding errors are
those of `CuttingPlaneBundle._by_mixture`: an entry of max(|m_j| - l1, 0) changes at most as much as m_j does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.optim.bundle import USUAL, Bound, CuttingPlaneBundle, U
from distsms.optim.penalty import ElasticNet, SquaredNorm, soft_threshold
from distsms.optim.qp import simplex_least_squares, simplex_qp
from distsms.parallel.vectors import SUMMED, Vectors
from distsms.utils.typing import Floats

Integers = NDArray[np.intp]

ROUNDS = 30
"""The largest number of rounds in the search for the best mixture."""
EXACT = 1e-2
"""The search ends if the bound is below its maximum by at most this share of the tolerance."""
FLAT = 1e-3
"""A step ends where the slope of the bound along it is at most this share of the slope at its beginning."""
HALVINGS = 40
"""The largest number of trials in a step."""


def make_bundle(vectors: Vectors, regularizer: SquaredNorm, *others: Any) -> CuttingPlaneBundle:
    """Return an empty bundle for a regularizer; the arguments are those of `CuttingPlaneBundle`."""
    kind = ElasticBundle if isinstance(regularizer, ElasticNet) else CuttingPlaneBundle
    return kind(vectors, regularizer, *others)


class ElasticBundle(CuttingPlaneBundle):
    """A bundle of planes for the elastic net; its regularizer is an `ElasticNet`.

    Notes
    -----
    Cost of a round: a pass over the planes with a weight, k |A| numbers of the k planes, and k^2 |A| operations. If
    vectors are distributed, a round sums k^2 numbers over the ranks, and two more for each trial of a step.
    """

    regularizer: ElasticNet

    def _find_mixture(self, tolerance: float) -> None:
        """See `CuttingPlaneBundle`."""
        alpha = self._best_mixture(self._alpha[: self._count], self.regularizer.lam, None)
        self._alpha[: self._count] = alpha
        self.bound = Bound(*self._agreed(self._by_mixture(alpha)))

    def _by_mixture(self, alpha: Floats) -> Bound:
        """Return the bound of a mixture. One pass over the planes with a weight."""
        k, total = len(alpha), math.fsum(alpha)
        excess = np.abs(self._mixture(alpha))
        excess -= self.regularizer.l1 * total  # `_bound` divides by the total
        np.maximum(excess, 0.0, out=excess)
        square, first_order = self._vectors.dots(np.array([excess, self._errors]), excess).tolist()
        # Rounding in l1 times the total, and in the difference, is at most that of |m_j| where |m_j| > l1.
        off = (k + 8) * U * float(alpha @ self._lengths[:k])
        return self._bound(alpha, square, self._share(k) * square, first_order, off)

    def _best_mixture(self, alpha: Floats, scale: float, shift: Floats | None) -> Floats:
        """Return the alpha in the simplex that maximizes <d, alpha> - ||S(m - shift)||^2 / (2 scale).

        **Collective** among the ranks that run the solver.

        alpha : (k,), where the search begins; the vertex of the highest d if all are 0.  shift : a slice, or None for
        0.  S : soft thresholding by l1.
        """
        k, l1, root = len(alpha), self.regularizer.l1, self._vectors.root_values
        d, alpha = self._d[:k], alpha.copy()
        if not alpha.any():
            alpha[np.argmax(d)] = 1.0
        m = self._mixture(alpha, shift)
        enough = max(EXACT * self._tolerance, 8 * U * (1.0 + float(np.max(np.abs(d)))))
        for _ in range(ROUNDS):
            excess = soft_threshold(m, l1)
            active = np.flatnonzero(excess)
            slopes = d - self._products_with(excess, active) / scale
            (lost,) = root(np.array([np.max(slopes) - alpha @ slopes]))
            if not lost > enough:
                break
            target = root(self._program(active, (m - excess)[active], alpha, scale, shift))
            there = self._mixture(target, shift)
            step = self._step(m, there, float(root(np.array([d @ (target - alpha)]))[0]), scale)
            if not step > 0:
                break
            alpha = target if step == 1 else (1 - step) * alpha + step * target
            m = there if step == 1 else (1 - step) * m + step * there
        return alpha

    def _program(self, active: Integers, bounds: Floats, alpha: Floats, scale: float, shift: Floats | None) -> Floats:
        """Return the best mixture if the active columns and their signs stay as they are; (k,).

        bounds : l1 with the sign of each active column.
        """
        k = len(alpha)
        constant = bounds if shift is None else bounds + shift[active]

        def blocks() -> Iterator[Floats]:
            for start, block in self._blocks(active):
                yield block - constant[start : start + SUMMED]

        gram = np.zeros((k, k))
        for block in blocks():
            gram += block @ block.T
        gram = self._vectors.sum_values(gram.ravel()).reshape(k, k)
        size = float(alpha @ np.sqrt(np.diag(gram)))
        if 0.5 * USUAL * size**2 <= self._tolerance * scale:
            return simplex_qp(gram, scale * self._d[:k], alpha)
        factor = self._vectors.qr_factor(np.hstack(list(blocks())) if len(active) else np.zeros((k, 0)))
        return simplex_least_squares(factor / math.sqrt(scale), self._d[:k], alpha)

    def _step(self, m: Floats, there: Floats, rise: float, scale: float) -> float:
        """Return how far to go from m towards the mixture `there`, from 0 to 1, so that the bound is about largest.

        rise : <d, .> there minus that here.
        """
        l1, sums = self.regularizer.l1, self._vectors.sum_values
        moving = np.flatnonzero((np.abs(m) > l1) | (np.abs(there) > l1))  # elsewhere |m_j| stays below l1
        m, change = m[moving], (there - m)[moving]

        def slope(step: float) -> float:
            return rise - float(sums(np.array([soft_threshold(m + step * change, l1) @ change]))[0]) / scale

        low, high, first, last = 0.0, 1.0, slope(0.0), slope(1.0)
        if not first > 0:
            return 0.0
        if last >= -FLAT * first:
            return 1.0
        at_low = first
        for trial in range(HALVINGS):  # regula falsi and bisection in turn
            middle = 0.5 * (low + high) if trial % 2 else low + (high - low) * at_low / (at_low - last)
            here = slope(middle)
            if abs(here) <= FLAT * first:
                return middle
            if here > 0:
                low, at_low = middle, here
            else:
                high, last = middle, here
        return low

    def _mixture(self, alpha: Floats, shift: Floats | None = None) -> Floats:
        """Return a slice of sum_k alpha_k r_k - shift. Local; a pass over the planes with a weight."""
        used = np.flatnonzero(alpha)
        if 2 * len(used) > len(alpha):
            m = alpha @ self._planes[: len(alpha)]
        else:
            m, weights = np.empty(self._planes.shape[1]), alpha[used]
            for start in range(0, len(m), SUMMED):
                m[start : start + SUMMED] = weights @ self._planes[used, start : start + SUMMED]
        if shift is not None:
            m -= shift
        return m

    def _blocks(self, columns: Integers) -> Iterator[tuple[int, Floats]]:
        """Yield the planes in some columns, in blocks of columns, each with the position of its first column."""
        for start in range(0, len(columns), SUMMED):
            yield start, self._planes[: self._count, columns[start : start + SUMMED]]

    def _products_with(self, vector: Floats, columns: Integers) -> Floats:
        """Return the inner product of each plane with a vector that is 0 outside of some columns; (k,)."""
        found, values = np.zeros(self._count), vector[columns]
        for start, block in self._blocks(columns):
            found += block @ values[start : start + SUMMED]
        return self._vectors.sum_values(found)

    def _level_point(self, c: Floats, J: float, share: float) -> tuple[Floats, float]:
        """See `CuttingPlaneBundle`."""
        k, regularizer = self._count, self.regularizer
        level = self.lower_bound + share * (J - self.lower_bound)

        def point(weight: float, alpha: Floats) -> Floats:
            return -soft_threshold(self._mixture(alpha, weight * c), regularizer.l1) / (regularizer.lam + weight)

        def proximal(weight: float, guess: Floats) -> tuple[Floats, bool]:
            alpha = self._best_mixture(guess, regularizer.lam + weight, weight * c)
            w = point(weight, alpha)
            heights = self._products_with(w, np.flatnonzero(w)) + self._d[:k]
            norms = self._vectors.sum_values(np.array([np.dot(w, w), np.sum(np.abs(w))]))
            value = regularizer.value(norms[0]) + regularizer.l1 * norms[1] + np.max(heights)
            return alpha, bool(value <= level)

        alpha, _ = self._search_weight(proximal)
        self._note_use(alpha)
        return point(self._proximity, alpha), 0.0
