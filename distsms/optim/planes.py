"""Lower bounds on min J, which prove the gap. They follow from the planes of the evaluations, without passes over data.

Each evaluation gives a plane <r, v> + d <= R(v), and so does R >= 0. For weights alpha >= 0 with the sum 1, by duality

    min J >= <d, alpha> - Omega*(-m),    m = sum_k alpha_k r_k,    Omega* the regularizer's conjugate

The best alpha solves a small quadratic program; any other only gives a lower bound that is lower.

A bound on rounding errors is subtracted. With u the unit roundoff and S = sum_k alpha_k ||r_k||, ||m||^2 from the Gram
matrix is wrong by about u S^2. Where planes are steep and cancel, that is more than the tolerance: then it is computed
from m itself, by a pass over the planes, with an error of about u S ||m|| + (u S)^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.optim.penalty import ElasticNet
from distsms.optim.qp import short_combination, simplex_least_squares, simplex_qp
from distsms.optim.result import Origin, Snapshot
from distsms.parallel.vectors import Vectors

U = float(np.finfo(float).eps) / 2  # the unit roundoff

USUAL = 128 * U
"""The usual error of an inner product, as a share of the lengths' product; `Vectors.longest_sum` U bounds it."""

AT_FIRST = 2**22
"""There are as many places for planes at first as take so many bytes; if that is less than 4, all of them."""

OF_PLANES = ("d", "lengths", "drift", "d_drift", "alpha", "last_use")
"""The attributes of `Planes`, one number for each plane, that a snapshot contains besides r and the Gram matrix."""


class Bound(NamedTuple):
    """The lower bound that a mixture of planes proves, and the amount that was subtracted from it for rounding."""

    value: float
    taken: float


class Mixture(NamedTuple):
    """A mixture m = sum_k alpha_k r_k of planes, as `Planes.lower_bound_of` needs it."""

    alpha: Floats  # (k,)
    square: float  # ||m||^2; with the elastic net, that of max(|m_j| - l1, 0)
    noise: float  # the largest error of `square`
    first_order: float  # an upper bound on <e, |m|>, with the errors e of the planes
    off: float  # a bound on the length of the error of m, without e and the errors of merging


OPENING = -1.0
"""The width of the one point that is no evaluation: the plane that an opening has left, whose coefficients it keeps."""
Shares = dict[int, float]


class Origins:
    """Where planes come from: at most `most` points, w and the width nu, at which a certificate evaluates the rows'
    coefficients once more. A merged plane is a mixture of planes, and so is the best one: each has shares of points.
    """

    def __init__(self, most: int) -> None:
        self._most, self._next = most, 0
        self._points: dict[int, Origin] = {}
        self._planes: dict[int, Shares] = {}  # by the plane's place
        self._best: Shares = {}

    def put(self, slot: int, point: Origin | None) -> None:
        """Note the point of a new plane; None for the zero plane, which needs none."""
        self._planes[slot] = {}
        if point is not None:
            self._planes[slot], self._points[self._next] = {self._next: point.share}, point
            self._next += 1

    def merge(self, kept: int, gone: int, a: float, b: float) -> None:
        """Note that plane `kept` is now a times itself plus b times plane `gone`."""
        self._planes[kept] = self._mixed({kept: a, gone: b})

    def follow(self, alpha: Floats, best: bool) -> None:
        """Note the mixture alpha (k,) if it proves the best bound; forget unused points, or those of least weight."""
        if best:
            self._best = self._mixed({int(slot): float(alpha[slot]) for slot in np.flatnonzero(alpha)})
        mixtures = [*self._planes.values(), self._best]
        used = {number for shares in mixtures for number in shares}
        if len(used) > self._most:
            factors = [*(float(alpha[slot]) for slot in self._planes), 1.0]

            def weight(number: int) -> float:
                return sum(factor * shares.get(number, 0.0) for factor, shares in zip(factors, mixtures, strict=True))

            for number in sorted(used, key=weight)[: len(used) - self._most]:
                used.discard(number)
                for shares in mixtures:
                    gone, rest = shares.pop(number, 0.0), sum(shares.values())
                    for other in shares if gone and rest else ():  # the rest may have underflowed
                        shares[other] = shares[other] / rest * (rest + gone)
        self._points = {number: point for number, point in self._points.items() if number in used}

    def mixture(self) -> list[Origin]:
        """Return the points of the best mixture with their shares of it, which add up to at most 1."""
        return [self._points[number]._replace(share=share) for number, share in self._best.items() if share > 0]

    def snapshot(self) -> Snapshot:
        rows = {number: row for row, number in enumerate(self._points)}
        mixtures = [*(self._planes.get(slot, {}) for slot in range(max(self._planes, default=-1) + 1)), self._best]
        shares = np.zeros((len(mixtures), len(rows)))
        for row, mixture in enumerate(mixtures):
            for number, share in mixture.items():
                shares[row, rows[number]] = share
        points = list(self._points.values())
        tables = {"shares": shares, "widths": np.array([point.nu for point in points])}
        return Snapshot({}, tables, {"points": [point.w for point in points]})

    def restore(self, snapshot: Snapshot) -> None:
        points = zip(snapshot.vectors["points"], snapshot.tables["widths"].tolist(), strict=True)
        self._points = {number: Origin(w, nu) for number, (w, nu) in enumerate(points)}
        self._next = len(self._points)
        mixtures = [{int(k): float(row[k]) for k in np.flatnonzero(row)} for row in snapshot.tables["shares"]]
        self._planes, self._best = dict(enumerate(mixtures[:-1])), mixtures[-1]

    def _mixed(self, weights: Shares) -> Shares:
        mixed: Shares = {}
        for slot, weight in weights.items():
            for number, share in self._planes.get(slot, {}).items():
                mixed[number] = mixed.get(number, 0.0) + weight * share
        return mixed


class Planes:
    """The planes <r_k, v> + d_k below R of a proof, and the best lower bound on min J so far: also BMRM's model of J.

    `zero_plane`, valid if R >= 0, is the first and stays; of at most `capacity` others, the one of no use for longest
    goes. `errors` bound the rounding of each entry of any r (a slice), or the length of that error, and `d_error` that
    of d; `unavoidable` is subtracted from every bound. Memory: 8 capacity (p + capacity) bytes. Cost of the k-th plane:
    a pass over k p numbers and a program of k variables; at worst, one more pass and a QR.
    """

    def __init__(
        self,
        vectors: Vectors,
        regularizer: ElasticNet,
        zero_plane: bool,
        capacity: int,
        errors: Floats | float = 0.0,
        d_error: float = 0.0,
        origins: Origins | None = None,
    ) -> None:
        self._vectors, self._fixed = vectors, int(zero_plane)  # the zero plane is the first, and stays
        self._places = places = capacity + self._fixed
        few = AT_FIRST // (8 * max(1, vectors.length))
        # It takes no memory before it is written to; but the system needs time to provide it, which many runs can save.
        self._planes = np.empty((places if few < 4 else min(places, few), vectors.length))
        self._gram = np.zeros((1, 1))  # grows with the planes
        self._d, self._lengths = np.zeros(places), np.zeros(places)  # lengths: ||r_k||
        # Merging planes has rounding errors, too: these are bounds on the error of r_k (as a length) and of d_k.
        self._drift, self._d_drift = np.zeros(places), np.zeros(places)
        self._alpha = np.zeros(places)
        self._last_use = np.zeros(places)  # the value of _added when the plane was added, or last had a weight > 0
        self._added, self._count = 0, self._fixed
        self._planes[: self._fixed] = 0.0
        self.regularizer = regularizer
        self.lower_bound = 0.0 if zero_plane else -float("inf")
        self.bound = Bound(self.lower_bound, 0.0)
        self._d_error = d_error
        self._errors = None if isinstance(errors, float) else errors
        self._errors_length = errors if isinstance(errors, float) else math.sqrt(vectors.dots(errors[None], errors)[0])
        self.unavoidable = d_error + regularizer.conjugate(self._errors_length * self._errors_length)
        self._proximity = regularizer.lam  # weight of the next level point's proximal term
        self._tolerance = 0.0
        self._factor: Floats | None = None  # F (q, k) with F'F the Gram matrix, if that has lost too many digits
        self.origins = origins  # where the planes come from, if a certificate shall be made

    def add(self, r: Floats, d: float, tolerance: float = 0.0, point: Origin | None = None) -> float:
        """Add a slice of a plane; return the best bound, which may lack `tolerance`. **Collective** here."""
        slot = self._free_slot()
        self._planes[slot] = r
        self._set_products(slot)
        self._drift[slot] = self._d_drift[slot] = 0.0
        self._d[slot], self._alpha[slot] = d, 0.0
        self._factor, self._tolerance = None, tolerance
        if self.origins is not None:
            self.origins.put(slot, point)
        self._find_mixture(tolerance)
        if self.origins is not None:
            self.origins.follow(self._alpha[: self._count], self.bound.value >= self.lower_bound)
        self.lower_bound = max(self.lower_bound, self.bound.value)
        self._added += 1
        self._last_use[slot] = self._added
        self._note_use(self._alpha[: self._count])
        return self.lower_bound

    def _find_mixture(self, tolerance: float) -> None:
        """Find the mixture of all planes with the best lower bound, and set `bound` to that."""
        k, lam = self._count, self.regularizer.lam
        # 1) The quadratic program, by the Gram matrix.
        alpha = self._maximizer(lam, lam * self._d[:k], self._alpha[:k])
        bound, lost = self._by_gram(alpha)
        alpha, (value, taken, lost) = self._agreed(alpha, bound.value, bound.taken, lost)
        # 2) Again by a factor of it, if it has lost too many digits.
        if lost > tolerance:
            self._factor = self._vectors.qr_factor(self._planes[:k])
            alpha, _ = self._agreed(self._maximizer(lam, lam * self._d[:k], alpha))
        self._alpha[:k], self.bound = alpha, Bound(value, taken)
        # 3) The bound from the mixture itself, if that takes less for rounding.
        if self._factor is not None or taken - self.unavoidable > tolerance:
            m = np.abs(self._alpha[:k] @ self._planes[:k])
            self.bound = self._by_mixture(self._alpha[:k], m, self._errors, 4)

    def _maximizer(self, scale: float, linear: Floats, guess: Floats) -> Floats:
        """Return the alpha that maximizes (<linear, alpha> - ||sum_k alpha_k r_k||^2 / 2) / scale, from a guess."""
        if self._factor is None:
            k = self._count
            return simplex_qp(self._gram[:k, :k], linear, guess)
        return simplex_least_squares(self._factor / math.sqrt(scale), linear / scale, guess)

    def _by_gram(self, alpha: Floats) -> tuple[Bound, float]:
        """Return the bound of a mixture by the Gram matrix, and what rounding has probably cost: the usual error of
        Omega*(-m), or the program's distance from its maximum (its largest slope less the mean), the larger.
        """
        k = len(alpha)
        products = self._gram[:k, :k] @ alpha
        square, size = max(0.0, float(alpha @ products)), float(alpha @ self._lengths[:k])
        slopes = self._d[:k] - products / self.regularizer.lam
        noise = self._share(int(np.count_nonzero(alpha))) * size * size
        first_order = self._errors_length * math.sqrt(square + noise)
        lost = max(self.regularizer.conjugate(USUAL * size * size), float(np.max(slopes) - alpha @ slopes))
        return self.lower_bound_of(Mixture(alpha, square, noise, first_order, 0.0)), lost

    def _by_mixture(self, alpha: Floats, m: Floats, errors: Floats | None, additions: int) -> Bound:
        """Return the bound of a mixture from |m| (the soft-thresholded one with l1), which took so many `additions`
        besides those of the planes, and the planes' errors there; as the root has it. **Collective** among these ranks.
        """
        if errors is None:
            square = float(self._vectors.dots(m[None, :], m)[0])
            first_order = self._errors_length * math.sqrt((1 + self._share(0)) * square)
        else:
            square, first_order = self._vectors.dots(np.array([m, errors]), m).tolist()
        k = len(alpha)
        off = (k + additions) * U * float(alpha @ self._lengths[:k])
        bound = self.lower_bound_of(Mixture(alpha, square, self._share(k) * square, first_order, off))
        return Bound._make(self._vectors.root_values(np.array(bound)).tolist())

    def _share(self, count: int) -> float:
        """Return a bound on the error of inner products of mixtures of `count` planes, relative to their sizes S."""
        return (self._vectors.longest_sum + 2 * count + 8) * U

    def lower_bound_of(self, m: Mixture) -> Bound:
        """Return the bound that a mixture proves, less what rounding may have added: here every bound is computed."""
        alpha, k, conjugate = m.alpha, len(m.alpha), self.regularizer.conjugate
        total = math.fsum(alpha)  # it is 1 up to rounding; the bound is for the mixture with weights alpha / total
        # 1) The bound <d, alpha> - Omega*(-m).
        height, norm = float(alpha @ self._d[:k]) / total, conjugate(m.square) / total**2
        # 2) By how much rounding may have changed ||m||^2, with what merging of planes has added.
        off = m.off + float(alpha @ self._drift[:k])
        changes = (
            m.noise
            + 2 * (m.first_order + off * math.sqrt(m.square + m.noise))
            + (self._errors_length + off) * (self._errors_length + off)
        )
        # 3) What it may have changed here.
        here = (k + 8) * U * (float(alpha @ np.abs(self._d[:k])) + norm) + float(alpha @ self._d_drift[:k])
        taken = (self._d_error + here + conjugate(changes) / total**2) * (1 + 16 * U)
        return Bound(height - norm - taken, taken)

    def minimum(self) -> tuple[Floats, float]:
        """Return a slice of the model's minimizer w = -(1/lam) sum_k alpha_k r_k, and its minimum: the bound."""
        alpha = self._alpha[: self._count]
        w = self.regularizer.minimizer(alpha @ self._planes[: self._count])
        return self._evened(w, alpha), self.bound.value

    def _evened(self, w: Floats, alpha: Floats) -> Floats:
        """Correct w, where steep planes magnify rounding, by the shortest combination of differences of r that makes
        all planes with a weight equal there, as at the exact minimum. Only if the Gram matrix is inaccurate.
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
            w = w + self._agreed(weights)[0] @ planes
        return w

    def l1_limit(self, value: float) -> float:
        """Return an l1 from which on w = 0 is the minimum, by R(0); infinity if none is known. **Collective.**"""
        return math.inf

    def level_point(self, centre: Floats, J: float, share: float) -> Floats:
        """Return a slice of the next point of a level method (Lemarechal, Nemirovskii & Nesterov 1995): about the point
        nearest to the best w, `centre`, where the model is at most lower_bound + share (J - lower_bound). It minimizes
        the model + u/2 ||w - centre||^2, with u found by doubling. Two passes over k p numbers.
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
            products = self._gram[:k, :k] @ alpha if self._factor is None else (self._factor @ alpha) @ self._factor
            height = float(np.max((weight * at_centre - products) / both + d))
            square = (weight * weight * norm2 - 2 * weight * (alpha @ at_centre) + alpha @ products) / both / both
            return alpha, self.regularizer.value(max(0.0, float(square))) + height <= level

        alpha, reached = self._search_weight(proximal)
        size = float(alpha @ self._lengths[:k])
        lost = 0.5 * USUAL * size * size / (lam + self._proximity) if reached else np.inf
        alpha, (self._proximity, lost) = self._agreed(alpha, self._proximity, lost)
        self._note_use(alpha)
        return self._evened((self._proximity * c - alpha @ planes) / (lam + self._proximity), alpha), lost

    def _search_weight(self, proximal: Callable[[float, Floats], tuple[Floats, bool]]) -> tuple[Floats, bool]:
        """Set `_proximity` to a large weight u at which the model is low enough; return the mixture, and if it is.
        `proximal` returns, for u and a mixture to begin with, the mixture and whether the model is low enough.
        """
        lam = self.regularizer.lam
        # 1) Reduce the weight until the model is low enough.
        alpha, low = proximal(self._proximity, self._alpha[: self._count])
        while not low and self._proximity > 1e-6 * lam:
            self._proximity /= 4
            alpha, low = proximal(self._proximity, alpha)
        # 2) Double it as long as it stays so.
        reached, weight, next_alpha = low, self._proximity, alpha
        while low and weight < 1e12 * lam:
            self._proximity, alpha = weight, next_alpha
            weight = 2 * self._proximity
            next_alpha, low = proximal(weight, alpha)
        return alpha, reached

    # The planes in memory.

    def _free_slot(self) -> int:
        """Return the next plane's place: free, that of the longest unused one, or of two light ones that are merged."""
        if self._count < self._places:
            if self._count == len(self._planes):
                first = self._planes
                self._planes = np.empty((self._places, first.shape[1]))
                self._planes[: self._count] = first
            self._count += 1
            if self._count > len(self._gram):
                self._gram = np.pad(self._gram, (0, min(len(self._gram) + 40, self._places - len(self._gram))))
            return self._count - 1
        movable = slice(self._fixed, None)
        first, second = self._fixed + np.lexsort((self._last_use[movable], self._alpha[movable]))[:2]
        if self._alpha[first] > 0:
            self._merge(int(second), int(first))
        return int(first)

    def _merge(self, kept: int, gone: int) -> None:
        """Replace plane `kept` by the mixture of both planes. The present mixture of all planes stays unchanged."""
        total = self._alpha[kept] + self._alpha[gone]
        a, b = self._alpha[kept] / total, self._alpha[gone] / total
        if self.origins is not None:
            self.origins.merge(kept, gone, a, b)
        self._planes[kept] *= a
        self._planes[kept] += b * self._planes[gone]
        for drift, sizes in ((self._drift, self._lengths), (self._d_drift, np.abs(self._d))):
            drift[kept] = a * (drift[kept] + 4 * U * sizes[kept]) + b * (drift[gone] + 4 * U * sizes[gone])
        self._d[kept] = a * self._d[kept] + b * self._d[gone]
        self._set_products(kept)
        self._alpha[kept], self._alpha[gone] = total, 0.0

    def _set_products(self, slot: int) -> None:
        k = self._count
        self._gram[slot, :k] = self._gram[:k, slot] = self._vectors.dots(self._planes[:k], self._planes[slot])
        self._lengths[slot] = math.sqrt(self._gram[slot, slot])

    def _note_use(self, alpha: Floats) -> None:
        self._last_use[: len(alpha)][alpha > 0] = self._added

    def slope_at_zero(self, value: float) -> float:
        """Return g, infinite if unknown, for which min J >= `value` - Omega*(g), with R(0) the `value`. Local."""
        touching = self._touching(value)
        gram = self._gram[np.ix_(touching, touching)]
        largest = float(np.max(np.diag(gram), initial=0.0))
        if not (len(touching) and math.isfinite(largest)):
            return math.inf
        if largest < 1e-300:
            return math.sqrt(largest)
        alpha = simplex_qp(gram / largest, np.ones(len(touching)), np.ones(len(touching)))
        return math.sqrt(max(0.0, float(alpha @ gram @ alpha)))

    def _touching(self, value: float) -> NDArray[np.intp]:
        return np.flatnonzero(self._d[: self._count] >= (1 - 1e-12) * value)

    def _agreed(self, alpha: Floats, *numbers: float) -> tuple[Floats, list[float]]:
        """Return a mixture and some numbers as the root has them. **Collective** among these ranks."""
        agreed = self._vectors.root_values(np.concatenate((alpha, numbers)))
        return agreed[: len(alpha)], agreed[len(alpha) :].tolist()

    def snapshot(self) -> Snapshot:
        k, numbers = self._count, {"lower_bound": self.lower_bound, "bound": list(self.bound)}
        numbers |= {"proximity": self._proximity, "added": self._added}
        tables = {name: getattr(self, f"_{name}")[:k] for name in OF_PLANES} | {"gram": self._gram[:k, :k]}
        origins = Snapshot() if self.origins is None else self.origins.snapshot()
        return origins.joined(Snapshot(numbers, tables, {"planes": list(self._planes[:k])}))

    def restore(self, snapshot: Snapshot) -> None:
        """Set the state to exactly that of another object. All its planes are kept, even if they exceed `capacity`."""
        k = self._count = len(snapshot.tables["d"])
        places = self._places = max(k, self._places)
        self._planes = np.empty((places, self._planes.shape[1]))
        self._gram = snapshot.tables["gram"].copy()
        for name in OF_PLANES:
            whole = np.zeros(places)
            whole[:k] = snapshot.tables[name]
            setattr(self, f"_{name}", whole)
        for row, plane in zip(self._planes, snapshot.vectors["planes"], strict=False):
            row[:] = plane
        self._added, self._proximity = snapshot.numbers["added"], snapshot.numbers["proximity"]
        self.lower_bound, self.bound = snapshot.numbers["lower_bound"], Bound._make(snapshot.numbers["bound"])
        if self.origins is not None:
            self.origins.restore(snapshot)
