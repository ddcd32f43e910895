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
from distsms.snapshot import Snapshot

Floats = NDArray[np.float64]

ROUNDING = 64 * np.finfo(float).eps
"""Share of the sum of all terms' sizes by which rounding is taken to have raised a bound: sums over rows and columns
are pairwise or blocked, so that their errors grow slowly with their length."""

PROXIMAL = 1e-13  # weight of a plane's proximal term, as a share of its own entry of Q and of the largest d


class Certificate:
    """A bundle of at most `capacity` planes and the best lower bound so far. Lives where the solver's vectors live.

    This is also BMRM's model of J: Omega(w) + the highest of the planes, least where `minimum` says.

    p : length of this process's slice of a vector.  capacity : at least 2.
    zero_plane : whether the zero plane is one more of them, as it may be where R >= 0.
    dots : (k, p) planes and (p,) vector -> (k,) inner products over the whole vectors.
    agreed : (k,) numbers -> those of one of the processes that hold slices, so that all decide alike.
    Memory: 8 capacity (p + capacity) bytes, taken as planes come. Cost of the k-th plane: one pass over k p numbers,
    and a program of k variables.
    """

    def __init__(
        self,
        p: int,
        regularizer: SquaredNorm,
        zero_plane: bool,
        capacity: int,
        dots: Callable[[Floats, Floats], Floats] = np.matmul,
        agreed: Callable[[Floats], Floats] = lambda values: values,
    ) -> None:
        if capacity < 2:
            raise ValueError("a bundle needs room for two planes at least")
        self.regularizer = regularizer
        self.lower_bound = 0.0 if zero_plane else -float("inf")
        self._dots, self._agreed = dots, agreed
        self._attained = self.lower_bound  # by the present mixture
        self._fixed = int(zero_plane)  # the zero plane is the first, and stays
        places = capacity + self._fixed
        self._planes = np.empty((places, p))  # takes no memory before it is written to
        self._gram = np.zeros((1, 1))  # grows with the planes
        self._d = np.zeros(places)
        self._alpha = np.zeros(places)
        self._last_use = np.zeros(places)  # when the plane came, or had a weight, by the count of planes added
        self._added = 0
        self._count = self._fixed
        self._proximity = regularizer.lam  # weight of the next level point's proximal term
        self._planes[: self._fixed] = 0.0

    def add(self, r: Floats, d: float) -> float:
        """Add the plane <r, v> + d and return the best lower bound so far. r : (p,), copied."""
        slot = self._free_slot()
        self._planes[slot] = r
        k = self._count
        self._gram[slot, :k] = self._gram[:k, slot] = self._dots(self._planes[:k], r)
        self._d[slot], self._alpha[slot] = d, 0.0
        self._alpha[:k] = simplex_qp(self._gram[:k, :k], self.regularizer.lam * self._d[:k], self._alpha[:k])
        agreed = self._agreed(np.append(self._alpha[:k], self._bound()))
        self._alpha[:k], self._attained = agreed[:-1], float(agreed[-1])
        self.lower_bound = max(self.lower_bound, self._attained)
        self._added += 1
        self._last_use[slot] = self._added
        self._note_use(self._alpha[:k])
        return self.lower_bound

    def _note_use(self, alpha: Floats) -> None:
        self._last_use[: len(alpha)][alpha > 0] = self._added

    def _bound(self) -> float:
        """What the present mixture proves, less what rounding can have added to it."""
        used = np.flatnonzero(self._alpha)
        alpha, d, gram = self._alpha[used], self._d[used], self._gram[np.ix_(used, used)]
        conjugate = self.regularizer.conjugate
        bound = float(d @ alpha) - conjugate(max(0.0, float(alpha @ gram @ alpha)))
        terms = float(np.abs(d) @ alpha) + conjugate(float(alpha @ np.abs(gram) @ alpha))
        return float(bound - ROUNDING * terms)

    def minimum(self) -> tuple[Floats, float]:
        """The model's minimizer w = -(1/lam) sum_k alpha_k r_k, (p,), and the bound that it attains.

        That is the present mixture's; it is the best one so far, unless rounding spoilt the last program.
        """
        k = self._count
        return self.regularizer.minimizer(self._alpha[:k] @ self._planes[:k]), self._attained

    def snapshot(self) -> Snapshot:
        """All that it knows; see `restore`."""
        k = self._count
        return Snapshot(
            {
                "lower_bound": self.lower_bound,
                "attained": self._attained,
                "added": self._added,
                "proximity": self._proximity,
            },
            {"d": self._d[:k], "alpha": self._alpha[:k], "last_use": self._last_use[:k], "gram": self._gram[:k, :k]},
            {"planes": list(self._planes[:k])},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Know what another one knew, to the bit; its planes stay even where there are more than `capacity`."""
        k = self._count = len(snapshot.tables["d"])
        places = max(k, len(self._planes))
        self._planes = np.empty((places, self._planes.shape[1]))
        self._d, self._alpha, self._last_use = np.zeros(places), np.zeros(places), np.zeros(places)
        self._gram = snapshot.tables["gram"].copy()
        for name, whole in (("d", self._d), ("alpha", self._alpha), ("last_use", self._last_use)):
            whole[:k] = snapshot.tables[name]
        self._added, self._proximity = snapshot.numbers["added"], snapshot.numbers["proximity"]
        for row, plane in zip(self._planes, snapshot.vectors["planes"], strict=False):
            row[:] = plane
        self.lower_bound, self._attained = snapshot.numbers["lower_bound"], snapshot.numbers["attained"]

    def level_point(self, centre: Floats, J: float, share: float) -> Floats:
        """Where a level method goes: about the point next to the centre at which the model has fallen to a level.

        centre : (p,), where J is attained.  share : of the way from the lower bound up to J, where the level is.
        Lemarechal, Nemirovskii & Nesterov, New variants of bundle methods (1995), with the best point as the centre.
        The point minimizes the model + u/2 ||w - centre||^2; u is found by doubling from where it was last.
        Cost: two passes over k p numbers, and a few programs of k variables.
        """
        k, lam, c = self._count, self.regularizer.lam, centre
        planes, d, gram = self._planes[:k], self._d[:k], self._gram[:k, :k]
        at_centre, norm2 = self._dots(planes, c), float(self._dots(c[None, :], c)[0])
        level = self.lower_bound + share * (J - self.lower_bound)

        def proximal(weight: float, guess: Floats) -> tuple[Floats, bool]:
            """The program's mixture, and whether the model's value at (weight c - mixture) / (lam + weight) is low."""
            both = lam + weight
            alpha = simplex_qp(gram, both * d + weight * at_centre, guess)
            products = gram @ alpha
            height = float(np.max((weight * at_centre - products) / both + d))
            square = (weight * weight * norm2 - 2 * weight * (alpha @ at_centre) + alpha @ products) / both**2
            return alpha, self.regularizer.value(max(0.0, float(square))) + height <= level

        alpha, low = proximal(self._proximity, self._alpha[:k])
        while not low and self._proximity > 1e-6 * lam:
            self._proximity /= 4
            alpha, low = proximal(self._proximity, alpha)
        weight, found = self._proximity, alpha
        while low and weight < 1e12 * lam:
            self._proximity, alpha = weight, found
            weight = 2 * self._proximity
            found, low = proximal(weight, alpha)
        agreed = self._agreed(np.append(alpha, self._proximity))
        alpha, self._proximity = agreed[:-1], float(agreed[-1])
        self._note_use(alpha)
        return (self._proximity * c - alpha @ planes) / (lam + self._proximity)

    def _free_slot(self) -> int:
        """Where the next plane goes: a new place, an idle plane's, or that of two merged by their weights."""
        if self._count < len(self._planes):
            self._count += 1
            if self._count > len(self._gram):
                self._gram = np.pad(self._gram, (0, min(len(self._gram) + 40, len(self._planes) - len(self._gram))))
            return self._count - 1
        own = slice(self._fixed, None)
        first, second = self._fixed + np.lexsort((self._last_use[own], self._alpha[own]))[:2]
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


def simplex_qp(Q: Floats, d: Floats, alpha: Floats) -> Floats:
    """Maximize <d, a> - a'Qa / 2 over the simplex {a >= 0, sum a = 1} by a primal active-set method.

    Q : (k, k) positive semi-definite; d : (k,); alpha : (k,) a first guess (negative parts are dropped, the rest
    scaled). Returns a point of the simplex whose value is no worse than the guess's. Each step solves one system on
    the support, of s planes: O(k s + s^3). Finite in exact arithmetic; in ours, the number of steps is bounded.

    Why none of the libraries: compared on hundreds of planes of real data at lambda = 1e-6, quadprog, which needs a
    definite Q, ends with KKT violations of 1e-3 from 200 planes on. Interior-point (Clarabel) and splitting (OSQP)
    methods are as accurate as this, and a hundred times slower, since only this one starts from the last solution.
    """

    def value(a: Floats) -> float:
        return float(d @ a - 0.5 * (a @ Q @ a))

    alpha, vertex = np.maximum(alpha, 0.0), np.zeros(len(d))
    vertex[np.argmax(d - 0.5 * np.diag(Q))] = 1.0
    if alpha.sum() > 0:
        alpha /= alpha.sum()
    # Among steep planes, rounding may hide that a flat one is better alone than any mixture of them.
    first = alpha = alpha if alpha.any() and value(alpha) >= value(vertex) else vertex
    support = alpha > 0
    for _ in range(200 + 10 * len(d)):
        target = _on_support(Q, d, support, alpha)
        step = target - alpha
        falling = support & (target <= 0)
        if falling.any():  # go towards the target as far as the simplex allows, and drop what reaches zero
            ratios = np.where(falling, 0.0, np.inf)  # 0 of a plane that is at its target, 0, already
            np.divide(alpha, alpha - target, out=ratios, where=falling & (alpha > target))
            blocking = int(np.argmin(ratios))
            alpha = np.maximum(alpha + min(1.0, ratios[blocking]) * step, 0.0)
            alpha[blocking] = 0.0
            support[blocking] = False
            if support.any() and alpha.sum() > 0:
                continue
            break
        alpha = np.where(support, target, 0.0)
        slope = d - alpha[support] @ Q[support]
        # Each slope to its own rounding: planes of very different steepness may lie in one bundle.
        slope += np.where(support, 1, -1) * 1e-13 * (np.abs(d) + alpha[support] @ np.abs(Q[support]))
        best = int(np.argmax(np.where(support, -np.inf, slope)))
        if support.all() or slope[best] <= slope[support].max():
            break
        support[best] = True
    total = alpha.sum()
    alpha = alpha / total if np.isfinite(total) and total > 0 else first
    return alpha if value(alpha) >= value(first) else first


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
        part = Q[np.ix_(S, S)]
        scale = max(np.diag(part).max(), np.abs(d[S]).max(), 1e-300)
        kkt = np.ones((k + 1, k + 1))
        kkt[:k, :k] = part / scale
        # Each plane's by its own size: a steep plane must not hold the flat ones where they are.
        proximal = PROXIMAL * (np.diag(part) + np.abs(d[S]).max()) / scale
        kkt[np.arange(k), np.arange(k)] += proximal
        kkt[k, k] = 0.0
        found = np.linalg.solve(kkt, np.append(d[S] / scale + proximal * near[S], 1.0))[:k]
    target = np.zeros(len(d))
    target[S] = found
    return target
