"""Lower bounds on min J, which prove the gap. They follow from the planes of the evaluations, without passes over data.

Each evaluation gives a plane <r, v> + d <= R(v). If R >= 0, the zero plane (r = 0, d = 0) is one more. A mixture of
planes, with weights alpha >= 0 that add up to 1, is such a plane, too. So by duality

    min J >= <d, alpha> - Omega*(-m),    m = sum_k alpha_k r_k,    Omega* the regularizer's conjugate

The best alpha solves a small quadratic program. The inequality is true for every alpha; if the program is solved
inexactly, the bound is only a little lower than possible.

A bound on the effect of rounding errors is subtracted from the lower bound. Let u be the unit roundoff, S = sum_k
alpha_k ||r_k||, and e_j the bound on the rounding error of r_kj (see `Objective.plane_errors`). ||m||^2 can be computed
in two ways:

    from the Gram matrix,  alpha' (r_k'r_l) alpha: needs k^2 numbers, but its error is about u S^2
    from m itself:         needs a pass over the planes; the error of m is about u S, that of ||m||^2 is about
                           u S ||m|| + (u S)^2

If the planes are steep and cancel each other in the mixture, the error of the first way, divided by 2 lambda, may be
larger than J. So the second way is used if the error of the first is larger than the tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from distsms.base.typing import Floats
from distsms.optim.penalty import SquaredNorm
from distsms.optim.plane_set import PlaneSet, U
from distsms.optim.qp import short_combination, simplex_least_squares, simplex_qp
from distsms.optim.state import Snapshot
from distsms.parallel.vectors import Vectors

USUAL = 128 * U
"""The usual rounding error of an inner product, as a share of the product of the lengths. The largest possible error,
`Vectors.longest_sum` U, is far larger.
"""


class Bound(NamedTuple):
    """The lower bound that a mixture of planes proves, and the amount that was subtracted from it for rounding."""

    value: float
    taken: float


class CuttingPlaneBundle(PlaneSet):
    """A bundle of planes below R, and the best lower bound on min J so far.

    The ranks that run the solver have a bundle. It is also the model of J that BMRM minimizes: Omega(w) + the maximum
    of the planes at w.

    Parameters
    ----------
    vectors : Vectors
        How vectors are distributed over the ranks; r and w are slices.
    regularizer : SquaredNorm
        The regularizer Omega.
    zero_plane : bool
        Whether to add the zero plane, which is valid if R >= 0. It stays in the bundle.
    capacity : int
        The largest number of other planes, at least 2.
    errors : ndarray of shape (length,) or float
        A slice of a bound on the rounding error of each entry of any r; or a bound on the length of the error of any r.
    d_error : float
        The same for d.

    Attributes
    ----------
    lower_bound : float
        The best lower bound so far.
    bound : Bound
        The lower bound of the present mixture.
    unavoidable : float
        The amount that is subtracted from every bound because of rounding errors in the planes themselves.

    Notes
    -----
    Memory: that of the planes. Cost of the k-th plane: one pass over k p numbers, and a quadratic program of k
    variables. If rounding errors of the Gram matrix are too large, one more pass over the planes and a QR factorization
    of them are needed.
    """

    def __init__(
        self,
        vectors: Vectors,
        regularizer: SquaredNorm,
        zero_plane: bool,
        capacity: int,
        errors: Floats | float = 0.0,
        d_error: float = 0.0,
    ) -> None:
        super().__init__(vectors, zero_plane, capacity)
        self.regularizer = regularizer
        self.lower_bound = 0.0 if zero_plane else -float("inf")
        self.bound = Bound(self.lower_bound, 0.0)
        self._d_error = d_error
        self._errors = None if isinstance(errors, float) else errors
        self._errors_length = errors if isinstance(errors, float) else self._length(errors)
        self.unavoidable = d_error + regularizer.conjugate(self._errors_length * self._errors_length)
        self._proximity = regularizer.lam  # weight of the next level point's proximal term
        self._tolerance = 0.0
        self._factor: Floats | None = None  # F (q, k) with F'F the Gram matrix, if that has lost too many digits

    def add(self, r: Floats, d: float, tolerance: float = 0.0) -> float:
        """Add a plane <r, v> + d, and return the best lower bound so far. **Collective** among these ranks.

        Parameters
        ----------
        r : ndarray of shape (length,)
            A slice; copied.
        d : float
            The plane's value at v = 0.
        tolerance : float
            The amount by which the bound may be too low because of rounding, if that saves a pass over the planes.
        """
        slot = self._put(r, d)
        self._factor, self._tolerance = None, tolerance
        self._find_mixture(tolerance)
        self.lower_bound = max(self.lower_bound, self.bound.value)
        self._added += 1
        self._last_use[slot] = self._added
        self._note_use(self._alpha[: self._count])
        return self.lower_bound

    def _find_mixture(self, tolerance: float) -> None:
        """Find the mixture of all planes with the best lower bound, and set `bound` to that."""
        k, lam = self._count, self.regularizer.lam
        alpha = self._maximizer(lam, lam * self._d[:k], self._alpha[:k])
        *weights, value, taken, lost = self._agreed(alpha, *self._by_gram(alpha))
        if lost > tolerance:
            self._factor = self._vectors.qr_factor(self._planes[:k])
            weights = self._agreed(self._maximizer(lam, lam * self._d[:k], np.array(weights)))
        self._alpha[:k], self.bound = weights, Bound(value, taken)
        if self._factor is not None or taken - self.unavoidable > tolerance:
            self.bound = Bound(*self._agreed(self._by_mixture(self._alpha[:k])))

    def _maximizer(self, scale: float, linear: Floats, guess: Floats) -> Floats:
        """Return the alpha in the simplex that maximizes (<linear, alpha> - ||sum_k alpha_k r_k||^2 / 2) / scale.

        guess : (k,), where the search begins.
        """
        if self._factor is None:
            k = self._count
            return simplex_qp(self._gram[:k, :k], linear, guess)
        return simplex_least_squares(self._factor / math.sqrt(scale), linear / scale, guess)

    def _products(self, alpha: Floats) -> Floats:
        """Return <r_k, m> for each plane, (k,), with m = sum_l alpha_l r_l."""
        F = self._factor
        return self._gram[: len(alpha), : len(alpha)] @ alpha if F is None else (F @ alpha) @ F

    def _by_gram(self, alpha: Floats) -> tuple[float, float, float]:
        """Return the bound of a mixture (its two numbers) computed from the Gram matrix, and an estimate of the loss.

        The loss is the amount by which the bound is probably too low because of rounding in the Gram matrix. It is the
        larger of two numbers: the usual rounding error of Omega*(-m), and the distance of the quadratic program from
        its maximum, which is at most the largest entry of its gradient minus the mean of the entries under alpha.
        """
        k, lam = len(alpha), self.regularizer.lam
        products = self._gram[:k, :k] @ alpha
        square, size = max(0.0, float(alpha @ products)), float(alpha @ self._lengths[:k])
        slopes = self._d[:k] - products / lam
        count = int(np.count_nonzero(alpha))
        noise = self._share(count) * size * size
        length = math.sqrt(square + noise)
        lost = max(self.regularizer.conjugate(USUAL * size * size), float(np.max(slopes) - alpha @ slopes))
        return *self._bound(alpha, square, noise, self._errors_length * length, 0.0), lost

    def _by_mixture(self, alpha: Floats) -> Bound:
        """Return the bound of a mixture, computed from m itself. One pass over the planes."""
        k = len(alpha)
        m = np.abs(alpha @ self._planes[:k])
        square, first_order = self._square_and_errors(m, self._errors)
        off = (k + 4) * U * float(alpha @ self._lengths[:k])
        return self._bound(alpha, square, self._share(k) * square, first_order, off)

    def _square_and_errors(self, m: Floats, errors: Floats | None) -> tuple[float, float]:
        """Return ||m||^2 for an m >= 0, and at least <e, m>."""
        if errors is None:
            square = float(self._vectors.dots(m[None, :], m)[0])
            return square, self._errors_length * math.sqrt((1 + self._share(0)) * square)
        square, first_order = self._vectors.dots(np.array([m, errors]), m).tolist()
        return square, first_order

    def _share(self, count: int) -> float:
        """Return a bound on the error of an inner product of two mixtures of `count` planes.

        It is relative to the product of their sizes S (see the module's docstring).
        """
        return (self._vectors.longest_sum + 2 * count + 8) * U

    def _bound(self, alpha: Floats, square: float, noise: float, first_order: float, off: float) -> Bound:
        """Return the lower bound that a mixture proves, minus the most that rounding can have added to it.

        square : ||m||^2, with an error of at most `noise`.  first_order : an upper bound on <e, |m|>.  off : a bound on
        the length of the error of m, without the errors e of the planes and those of merging.
        """
        k, conjugate = len(alpha), self.regularizer.conjugate
        total = math.fsum(alpha)  # it is 1 up to rounding; the bound is for the mixture with weights alpha / total
        off += float(alpha @ self._drift[:k])
        changes = (
            noise
            + 2 * (first_order + off * math.sqrt(square + noise))
            + (self._errors_length + off) * (self._errors_length + off)
        )
        height, norm = float(alpha @ self._d[:k]) / total, conjugate(square) / total**2
        own = (k + 8) * U * (float(alpha @ np.abs(self._d[:k])) + norm) + float(alpha @ self._d_drift[:k])
        taken = (self._d_error + own + conjugate(changes) / total**2) * (1 + 16 * U)
        return Bound(height - norm - taken, taken)

    def minimum(self) -> tuple[Floats, float]:
        """Return a slice of the model's minimizer w = -(1/lam) sum_k alpha_k r_k, and the model's minimum.

        The minimum is the bound of the present mixture. It is also the best bound so far, unless rounding errors made
        the last quadratic program inexact.
        """
        alpha = self._alpha[: self._count]
        w = self.regularizer.minimizer(alpha @ self._planes[: self._count])
        return self._evened(w, alpha), self.bound.value

    def _evened(self, w: Floats, alpha: Floats) -> Floats:
        """Correct rounding errors in w, so that all planes with a weight have the same value there.

        At the exact minimum of the model they have. But w contains the rounding errors of m divided by lambda, and
        steep planes magnify them. The shortest correction that makes the values equal is a combination of differences
        of the planes' r. It is made only if the Gram matrix is too inaccurate. It has two rounds, each with two passes
        over the planes.
        """
        used, planes = np.flatnonzero(alpha), self._planes[: len(alpha)]
        if self._factor is None or len(used) == 1:
            return w
        origin = used[np.argmax(alpha[used])]
        others = used[used != origin]
        weigh = short_combination(self._factor[:, others] - self._factor[:, [origin]])
        for _ in range(2):
            heights, weights = self._vectors.dots(planes, w) + self._d[: len(alpha)], np.zeros(len(alpha))
            weights[others] = weigh(heights[origin] - heights[others])
            weights[origin] = -np.sum(weights)
            w = w + np.array(self._agreed(weights)) @ planes
        return w

    def l1_limit(self, value: float) -> float:
        """Return an l1 from which on w = 0 is the minimum; infinity if none is known, or without l1. **Collective.**

        value : R at 0.
        """
        return math.inf

    def snapshot(self) -> Snapshot:
        """Return the state; see `restore`."""
        own = {"lower_bound": self.lower_bound, "bound": list(self.bound), "proximity": self._proximity}
        return super().snapshot().joined(Snapshot(own))

    def restore(self, snapshot: Snapshot) -> None:
        """Set the state to exactly that of another bundle. All its planes are kept, even if they exceed `capacity`."""
        super().restore(snapshot)
        self._proximity = snapshot.numbers["proximity"]
        self.lower_bound, self.bound = snapshot.numbers["lower_bound"], Bound(*snapshot.numbers["bound"])

    def level_point(self, centre: Floats, J: float, share: float) -> Floats:
        """Return a slice of the next point of a level method.

        It is approximately the point nearest to `centre` at which the value of the model is at most the level.

        Parameters
        ----------
        centre : ndarray of shape (length,)
            A slice of the best w.
        J : float
            The objective at the centre.
        share : float
            The level is lower_bound + share (J - lower_bound).

        Notes
        -----
        The point minimizes the model + u/2 ||w - centre||^2. The weight u is found by doubling, starting at the last
        one. Cost: two passes over k p numbers, and a few quadratic programs of k variables.

        References
        ----------
        Lemarechal, Nemirovskii & Nesterov, New variants of bundle methods (1995), here with the best point as the
        centre.
        """
        w, lost = self._level_point(centre, J, share)
        if lost > self._tolerance and self._factor is None:
            self._factor = self._vectors.qr_factor(self._planes[: self._count])
            w, _ = self._level_point(centre, J, share)
        return w

    def _level_point(self, c: Floats, J: float, share: float) -> tuple[Floats, float]:
        """Return the point, and the probable error of the program's value caused by rounding in the Gram matrix."""
        k, lam = self._count, self.regularizer.lam
        planes, d, dots = self._planes[:k], self._d[:k], self._vectors.dots
        at_centre, norm2 = dots(planes, c), float(dots(c[None, :], c)[0])
        level = self.lower_bound + share * (J - self.lower_bound)

        def proximal(weight: float, guess: Floats) -> tuple[Floats, bool]:
            """Return the mixture, and whether the model is low enough at (weight c - mixture) / (lam + weight)."""
            both = lam + weight
            alpha = self._maximizer(both, both * d + weight * at_centre, guess)
            products = self._products(alpha)
            height = float(np.max((weight * at_centre - products) / both + d))
            square = (weight * weight * norm2 - 2 * weight * (alpha @ at_centre) + alpha @ products) / both / both
            return alpha, self.regularizer.value(max(0.0, float(square))) + height <= level

        alpha, reached = self._search_weight(proximal)
        size = float(alpha @ self._lengths[:k])
        lost = 0.5 * USUAL * size * size / (lam + self._proximity) if reached else np.inf
        *weights, self._proximity, lost = self._agreed(alpha, self._proximity, lost)
        alpha = np.array(weights)
        self._note_use(alpha)
        return self._evened((self._proximity * c - alpha @ planes) / (lam + self._proximity), alpha), lost

    def _search_weight(self, proximal: Callable[[float, Floats], tuple[Floats, bool]]) -> tuple[Floats, bool]:
        """Set `_proximity` to a large weight u at which the model is low enough.

        `proximal` takes u and a mixture to begin with. It returns the mixture at u, and whether the model is low enough
        there. The result is the last mixture at which it is, and whether there is one.
        """
        lam = self.regularizer.lam
        alpha, low = proximal(self._proximity, self._alpha[: self._count])
        while not low and self._proximity > 1e-6 * lam:
            self._proximity /= 4
            alpha, low = proximal(self._proximity, alpha)
        reached, weight, found = low, self._proximity, alpha
        while low and weight < 1e12 * lam:
            self._proximity, alpha = weight, found
            weight = 2 * self._proximity
            found, low = proximal(weight, alpha)
        return alpha, reached
