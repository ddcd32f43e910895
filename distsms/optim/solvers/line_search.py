"""The line search of More & Thuente (ACM Transactions on Mathematical Software 20, 1994), which ends where a function
has become lower and flat enough; the cases are those of its section 4, numbers left open those of TAO and SciPy.

One end of its interval is the best trial so far, which falls towards the other end. The next step minimizes a
polynomial with values and slopes of trials, at first with the required decrease subtracted, lest good steps are lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

# A search ends if the function falls by at least `DECREASE` times what the slope at its beginning promises, and is at
# most `CURVATURE` times as steep as there.
DECREASE, CURVATURE = 1e-4, 0.9
SHORTEST, LONGEST = 1e-20, 1e20
TRIALS = 100
PRECISION = 1e-14
"""A search fails if its interval is shorter than this share of the longer end."""
SHARE = 0.66
"""If two trials shorten the interval to more than this share, the next step halves it. And a step in the direction in
which trials become flatter goes at most so far to the other end.
"""
NEAR, FAR = 1.1, 4.0
"""Without an interval, the next step goes on by at least, and at most, this many times the distance of the last two."""


class Trial(NamedTuple):
    """A step, and the function and its slope there."""

    step: float
    value: float
    slope: float

    def minus(self, rate: float) -> Trial:
        return Trial(self.step, self.value - rate * self.step, self.slope - rate)


def search(
    evaluate: Callable[[float], tuple[float, float]], value: float, slope: float, longest: float = LONGEST
) -> bool:
    """Evaluate a function at steps, the first of which is 1. Return whether the last of them is a good end.

    `evaluate` returns the function and its slope at a step; `value` and `slope` < 0 are those at 0. The longest step is
    a good end, too, if it is low enough and the function still falls there.
    """
    best = other_end = Trial(0.0, value, slope)
    decrease, step = DECREASE * slope, 1.0
    width, last_width = longest, 2.0 * longest
    bracketed, low_enough_before = False, False
    for _ in range(TRIALS):
        # 1) A trial: is it the end?
        f, f_slope = evaluate(step)
        trial = Trial(step, float(f), float(f_slope))
        low_enough = trial.value <= value + decrease * step
        if low_enough and (abs(trial.slope) <= -CURVATURE * slope or (step == longest and trial.slope <= decrease)):
            return True
        if step == SHORTEST:
            return False
        # 2) The next step, by interpolation.
        low_enough_before |= low_enough and trial.slope >= 0
        shift = 0.0 if low_enough or low_enough_before or trial.value > best.value else decrease
        x, y, t = best.minus(shift), other_end.minus(shift), trial.minus(shift)
        is_higher, slope_turned = t.value > x.value, t.slope * math.copysign(1.0, x.slope) < 0
        bracketed |= is_higher or slope_turned
        try:
            step = next_step(x, y if bracketed else None, t)
        except ZeroDivisionError:  # rounding hides the function's changes
            return False
        # 3) The interval, which must shrink.
        best, other_end = (best, trial) if is_higher else (trial, best if slope_turned else other_end)
        if bracketed:
            left, right = sorted((best.step, other_end.step))
            if right - left >= SHARE * last_width:
                step = best.step + 0.5 * (other_end.step - best.step)
            width, last_width = right - left, width
            if not left < step < right or right - left <= PRECISION * right:  # also if it is not a number
                return False
        step = min(max(step, SHORTEST), longest)
    return False


def next_step(x: Trial, y: Trial | None, t: Trial) -> float:
    """Return the next step after a trial t; x is the best before, y the interval's other end, None if all fall."""
    if t.value > x.value:  # case 1
        cubic = cubic_minimizer(x, t)
        way = t.step - x.step
        quadratic = x.step + 0.5 * x.slope / ((x.value - t.value) / way + x.slope) * way
        return cubic if abs(cubic - x.step) < abs(quadratic - x.step) else cubic + 0.5 * (quadratic - cubic)

    def distance(step: float) -> float:
        return abs(step - t.step)

    turned = t.slope * math.copysign(1.0, x.slope) < 0
    farthest = t.step + FAR * (t.step - x.step) if y is None else y.step
    if not turned and abs(t.slope) >= abs(x.slope):  # case 4
        return farthest if y is None else cubic_minimizer(t, y)
    secant = t.step + t.slope / (t.slope - x.slope) * (x.step - t.step)
    cubic = cubic_minimizer(t, x)
    if turned:  # case 2
        return max(secant, cubic, key=distance)
    # case 3: the cubic may have no minimizer on the other side of t
    if not (cubic - t.step) * (t.step - x.step) > 0:
        cubic = farthest
    if y is None:
        nearest = t.step + NEAR * (t.step - x.step) if x.step else t.step
        return min(max(secant, cubic, nearest, key=distance), farthest)
    return min(secant, cubic, t.step + SHARE * (y.step - t.step), key=distance)


def cubic_minimizer(a: Trial, b: Trial) -> float:
    """Return the minimizer, nearer to a for the sake of rounding, of the cubic through two trials; NaN if none."""
    theta = 3.0 * (a.value - b.value) / (b.step - a.step) + a.slope + b.slope
    scale = max(abs(theta), abs(a.slope), abs(b.slope))
    root = scale * math.sqrt(max(0.0, (theta / scale) * (theta / scale) - (a.slope / scale) * (b.slope / scale)))
    if root == 0:
        return math.nan
    if b.step < a.step:
        root = -root
    return a.step + (root - a.slope + theta) / (root - a.slope + root + b.slope) * (b.step - a.step)
