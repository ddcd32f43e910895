"""Compute J exactly, in rational numbers, from the definitions of the measures; find the least J on rays from 0.

Every input is a float, so it is a whole number times a power of two. Scores are sums of products of whole numbers, and
nothing is rounded. This module uses no code of distsms, so that it cannot have the same mistakes.

    R(w) = 1/m sum over pairs of max(0, 1 - (s_i - s_j))                         ROCArea
    R(w) = the same with the K = BETA n- highest s_j, the last in part, m = n+ K     pauc@BETA
    R(w) = max(0, max over (b, c) of Delta(b, c) + 2/n (C_c - B_b))              all others

with B_b the sum of the b smallest scores of P, C_c that of the c largest of N.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from tests.support import oracles

Whole = NDArray[Any]
"""Python's whole numbers, as objects."""

HALF = Fraction(1, 2)


class Point(NamedTuple):
    """Exact numbers: `whole` * `unit`, where `whole` is w (p,) or rows (n, p)."""

    whole: Whole
    unit: Fraction

    def floats(self) -> Floats:
        """Return the numbers rounded to floats, in the same shape."""
        return (self.whole * self.unit).astype(float)


class Line(NamedTuple):
    """The linear function d + slope * t that equals R(t w) near some t; R is piecewise linear in t."""

    d: Fraction
    slope: Fraction


def whole(values: Any) -> Point:
    """Convert floats of any shape to whole numbers times a common power of two."""
    values = np.asarray(values, float)
    mantissa, exponent = np.frexp(values)
    digits = np.ldexp(mantissa, 53).astype(np.int64).astype(object)
    used = exponent[values != 0]
    least = int(used.min()) if used.size else 0
    shifts = np.where(values != 0, exponent - least, 0).astype(object)
    return Point(digits << shifts, Fraction(2) ** (least - 53))


class Exact:
    """The exact objective of rows X (n, p), labels y (n,), a measure given by its name, and lambda."""

    def __init__(self, X: Point, y: NDArray[np.int8], measure: str, lam: float) -> None:
        self._X, self._lam = X, Fraction(lam)
        self._positive, self._negative = np.flatnonzero(y > 0), np.flatnonzero(y < 0)
        self.n, self.p = X.whole.shape
        self.n_pos, self.n_neg = len(self._positive), len(self._negative)
        self._head = Fraction(float(measure[5:])) if measure.startswith("pauc@") else Fraction(1)
        of_pairs = measure == "rocarea" or measure.startswith("pauc@")
        self._table = None if of_pairs else self._tables(measure)

    def _tables(self, measure: str) -> tuple[NDArray[np.intp], NDArray[np.intp], Whole, int]:
        """Return b, c and Delta times a common denominator for all tables of the measure, and this denominator."""
        family: str = measure
        parameter: float | None = None
        if measure == "prbep":
            family, parameter = "precision@k", self.n_pos
        elif "@" in measure:
            family, parameter = measure.split("@")[0] + "@k", int(measure.split("@")[1])
        elif measure != "error-rate":
            family, parameter = "f-beta", float(measure[1:])
        delta, calls = oracles.contingency(family, parameter, self.n_pos, self.n_neg)
        cells = [
            (b, c, delta(b, c))
            for b in range(self.n_pos + 1)
            for c in range(self.n_neg + 1)
            if calls in (None, self.n_pos - b + c)
        ]
        shared = math.lcm(*(delta_of.denominator for _, _, delta_of in cells))
        values = np.array([int(delta_of * shared) for _, _, delta_of in cells], object)
        return np.array([b for b, _, _ in cells]), np.array([c for _, c, _ in cells]), values, shared

    def J(self, w: Floats) -> Fraction:
        """Return J at w (p,)."""
        return self.ray(whole(w)).J(Fraction(1))

    def ray(self, point: Point) -> Ray:
        """Return J on the ray t w, t >= 0, where w is the point."""
        scores = np.dot(self._X.whole, point.whole)
        unit = self._X.unit * point.unit
        square = int(np.dot(point.whole, point.whole)) * point.unit**2
        return Ray(self, scores, unit, self._lam * square)

    def line(self, scores: Whole, divisor: int, t: Fraction, slope_of: Fraction) -> Line:
        """Return the linear function that equals R near t.

        At t, the score of row i is scores[i] / divisor, and scores are proportional to t. slope_of : 1 / (divisor * t),
        the factor that converts sums of `scores` to slopes in t.
        """
        positive, negative = scores[self._positive], scores[self._negative]
        if self._table is None:
            short = divisor - (positive[:, None] - negative[None, :])
            counts = np.sum(short > 0, axis=0).astype(object)
            totals = np.sum(np.maximum(short, 0), axis=0)
            K = self._head * self.n_neg
            if (whole := K.numerator // K.denominator) < self.n_neg:  # the last of the K highest counts in part
                order = np.argsort(-negative, kind="stable")[: whole + 1]
                counts, totals = counts[order], totals[order]
                counts[-1], totals[-1] = (K - whole) * int(counts[-1]), (K - whole) * int(totals[-1])
            count, total = Fraction(counts.sum()), Fraction(totals.sum())
            m = self.n_pos * K
            return Line(count / m, (total - count * divisor) / m * slope_of)
        b, c, delta, shared = self._table
        low = np.concatenate([np.zeros(1, object), np.cumsum(np.sort(positive))])
        high = np.concatenate([np.zeros(1, object), np.cumsum(np.sort(negative)[::-1])])
        moved = 2 * (high[c] - low[b])
        best = int(np.argmax(delta * (self.n * divisor) + shared * moved))
        found = Line(Fraction(int(delta[best]), shared), Fraction(int(moved[best]), self.n) * slope_of)
        return found if found.d + found.slope * t > 0 else Line(Fraction(0), Fraction(0))


class Ray(NamedTuple):
    """J(t) = curvature t^2 / 2 + R(t), with the scores at t = 1 as whole numbers times a unit."""

    exact: Exact
    scores: Whole
    unit: Fraction
    curvature: Fraction

    def line(self, t: Fraction) -> Line:
        """Return the linear function that equals R near t > 0."""
        factor = self.unit * t  # scores * factor.numerator, in units of 1 / factor.denominator
        return self.exact.line(self.scores * factor.numerator, factor.denominator, t, 1 / (factor.denominator * t))

    def J(self, t: Fraction) -> Fraction:
        """Return J at t > 0."""
        line = self.line(t)
        return HALF * self.curvature * t * t + line.d + line.slope * t

    def least(self, t: Fraction = Fraction(1)) -> tuple[Fraction, Fraction]:
        """Return the t > 0 that minimizes J, and the minimum, by cutting planes in one variable, starting at t.

        One line is kept on each side of the minimum. The next t is the minimizer of the larger of the two lines plus
        the square: the point where the lines cross, or the minimizer for one line. The method ends after finitely many
        steps, since there are finitely many lines. It is exact, unless the limit of 60 steps is reached.
        """
        best = t, self.J(t)
        if not self.curvature:
            return best
        falling: Line | None = None
        rising: Line | None = None
        for _ in range(60):
            line = self.line(t)
            J = HALF * self.curvature * t * t + line.d + line.slope * t
            best = min(best, (t, J), key=lambda pair: pair[1])
            if self.curvature * t + line.slope <= 0:
                falling = line
            else:
                rising = line
            before, t = t, self._next(t, falling, rising)
            if t == before:
                break
        return best

    def _next(self, t: Fraction, falling: Line | None, rising: Line | None) -> Fraction:
        if falling is None or rising is None:
            (line,) = (side for side in (falling, rising) if side is not None)
            return -line.slope / self.curvature if line.slope < 0 else t / 1024
        if rising.slope == falling.slope:
            return t
        crossing = (falling.d - rising.d) / (rising.slope - falling.slope)
        low, high = -rising.slope / self.curvature, -falling.slope / self.curvature
        return max(low, min(high, crossing))


def least(exact: Exact, points: Iterable[Point]) -> tuple[Fraction, Floats]:
    """Return the least J on the rays from 0 through these points, and its w (p,), rounded to floats."""
    zero = np.zeros(exact.p)
    best = exact.J(zero), zero
    for point in points:
        if np.any(point.whole):
            t, J = exact.ray(point).least()
            if best[0] > J:
                best = J, (point.whole * (point.unit * t)).astype(float)
    return best
