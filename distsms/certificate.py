"""Lower bounds on min J from planes, at no extra pass over the data: the proof that a solution is accurate.

Each evaluation yields a plane <r, v> + d <= R(v). With any weights alpha >= 0, sum alpha <= 1 (= 1 where R may be
negative), their mixture is a plane too, so by duality

    min J >= <d, alpha> - Omega*(-sum_k alpha_k r_k),        Omega* the regularizer's conjugate

and the best alpha solves a small quadratic program on the planes' Gram matrix. Whatever alpha the program ends with,
the bound it gives holds; an inexact alpha only makes it looser. What rounding can do to the bound is taken off it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from distsms.regularizer import SquaredNorm

Floats = NDArray[np.float64]

ROUNDING = 64 * np.finfo(float).eps
"""Share of the sum of all terms' sizes by which rounding is taken to have raised a bound: sums over rows and columns
are pairwise or blocked, so that their errors grow slowly with their length."""


class Certificate:
    """A bundle of at most `capacity` planes and the best lower bound so far. Lives where the solver's vectors live.

    This is also BMRM's model of J: Omega(w) + the highest of the planes, with `minimum` where it is least.

    p : length of this process's slice of a vector.  capacity : at least 2.
    zero_plane : whether the zero plane is one of them, beside the capacity, as it may be where R >= 0.
    dots : (k, p) planes and (p,) vector -> (k,) inner products over the whole vectors.
    Memory: 8 capacity p bytes. Cost of a plane: one pass over that memory, and a program of `capacity` variables.
    """

    def __init__(
        self,
        p: int,
        regularizer: SquaredNorm,
        zero_plane: bool,
        capacity: int,
        dots: Callable[[Floats, Floats], Floats] = np.matmul,
    ) -> None:
        if capacity < 2:
            raise ValueError("a bundle needs room for two planes at least")
        self.regularizer = regularizer
        self.lower_bound = 0.0 if zero_plane else -float("inf")
        self._zero_plane = zero_plane
        self._dots = dots
        self._planes = np.empty((capacity, p))
        self._gram = np.zeros((capacity, capacity))
        self._d = np.zeros(capacity)
        self._alpha = np.zeros(capacity)
        self._count = 0

    def add(self, r: Floats, d: float) -> float:
        """Add the plane <r, v> + d and return the best lower bound so far. r : (p,), copied."""
        slot = self._free_slot()
        self._planes[slot] = r
        products = self._dots(self._planes[: self._count], r)
        self._gram[slot, : self._count] = self._gram[: self._count, slot] = products
        self._d[slot], self._alpha[slot] = d, 0.0
        k = self._count
        gram, constant, start = self._gram[:k, :k], self._d[:k], self._alpha[:k]
        if self._zero_plane:  # the zero plane takes the rest of the weight
            gram, constant = np.pad(gram, (0, 1)), np.append(constant, 0.0)
            start = np.append(start, max(0.0, 1.0 - start.sum()))
        alpha = simplex_qp(gram / self.regularizer.lam, constant, start)
        self._alpha[:k] = alpha[:k]
        bound = float(constant @ alpha) - self.regularizer.conjugate(max(0.0, float(alpha @ gram @ alpha)))
        terms = float(np.abs(constant) @ alpha) + self.regularizer.conjugate(float(alpha @ np.abs(gram) @ alpha))
        self.lower_bound = max(self.lower_bound, float(bound - ROUNDING * terms))
        return self.lower_bound

    def minimum(self) -> tuple[Floats, float]:
        """The model's minimizer w = -(1/lam) sum_k alpha_k r_k, (p,), and the best lower bound, its value there."""
        k = self._count
        return self.regularizer.minimizer(self._alpha[:k] @ self._planes[:k]), self.lower_bound

    def _free_slot(self) -> int:
        """Where the next plane goes: a new place, an idle plane's, or that of two merged by their weights."""
        if self._count < len(self._planes):
            self._count += 1
            return self._count - 1
        first, second = np.argsort(self._alpha, kind="stable")[:2]
        if self._alpha[first] > 0:
            self._merge(int(second), int(first))
        return int(first)

    def _merge(self, kept: int, gone: int) -> None:
        """Replace plane `kept` by the mixture of both, so that the present mixture of all stays what it is."""
        total = self._alpha[kept] + self._alpha[gone]
        a, b = self._alpha[kept] / total, self._alpha[gone] / total
        self._planes[kept] *= a
        self._planes[kept] += b * self._planes[gone]
        self._d[kept] = a * self._d[kept] + b * self._d[gone]
        row = a * self._gram[kept] + b * self._gram[gone]
        row[kept] = a * row[kept] + b * row[gone]
        self._gram[kept] = self._gram[:, kept] = row
        self._alpha[kept], self._alpha[gone] = total, 0.0


def simplex_qp(Q: Floats, d: Floats, alpha: Floats, max_steps: int = 200) -> Floats:
    """Maximize <d, a> - a'Qa / 2 over the simplex {a >= 0, sum a = 1} by a primal active-set method.

    Q : (k, k) positive semi-definite; d : (k,); alpha : (k,) a first guess (negative parts are dropped, the rest
    scaled). Returns a point of the simplex whose value is no worse than the guess's. Each step solves one system on
    the support; finite in exact arithmetic, bounded by max_steps in ours.
    """
    alpha = np.maximum(alpha, 0.0)
    if not alpha.sum() > 0:
        alpha[np.argmax(d - 0.5 * np.diag(Q))] = 1.0
    alpha /= alpha.sum()
    support = alpha > 0
    tolerance = 1e-13 * (np.abs(d).max() + np.abs(Q).max())
    for _ in range(max_steps):
        target = _on_support(Q, d, support)
        step = target - alpha
        falling = support & (target <= 0)
        if falling.any():  # go towards the target as far as the simplex allows, and drop what reaches zero
            ratios = np.where(falling, alpha / np.where(falling, alpha - target, 1.0), np.inf)
            blocking = int(np.argmin(ratios))
            alpha = np.maximum(alpha + min(1.0, ratios[blocking]) * step, 0.0)
            alpha[blocking] = 0.0
            support[blocking] = False
            if support.any() and alpha.sum() > 0:
                continue
            break
        alpha = np.where(support, target, 0.0)
        slope = d - Q @ alpha
        best = int(np.argmax(np.where(support, -np.inf, slope)))
        if support.all() or slope[best] <= slope[support].max() + tolerance:
            break
        support[best] = True
    return alpha / alpha.sum()


def _on_support(Q: Floats, d: Floats, support: NDArray[np.bool_]) -> Floats:
    """The maximizer with sum 1 on the support alone, signs free; (k,), zero elsewhere."""
    S = np.flatnonzero(support)
    k = len(S)
    if k == 1:
        found = np.ones(1)
    else:
        scale = max(np.abs(Q[np.ix_(S, S)]).max(), 1e-300)
        kkt = np.ones((k + 1, k + 1))
        kkt[:k, :k] = Q[np.ix_(S, S)] / scale
        kkt[np.arange(k), np.arange(k)] += 1e-13  # equal planes would make the system singular
        kkt[k, k] = 0.0
        found = np.linalg.solve(kkt, np.append(d[S] / scale, 1.0))[:k]
    target = np.zeros(len(d))
    target[S] = found
    return target
