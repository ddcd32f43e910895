"""Newton's method for the root of a function that rises, is piecewise linear, and costs a pass over the rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

STEPS, PATIENCE = 200, 9  # the largest number of steps; from PATIENCE on, every other one halves the bracket
ROUNDING = 2e-15  # the relative error of a sum over many rows, and of a point in the first bracket


class Piece(NamedTuple):
    """A function at a point: its value, its slope, and the sum of the absolute values of what its value consists of."""

    value: float
    slope: float
    size: float


T = TypeVar("T")


def rising_root(at: Callable[[float], tuple[Piece, T]], start: float, low: float, high: float) -> tuple[float, T]:
    """Return a root between `low` and `high`, and what `at` returned there besides the piece. Collective if `at` is. A
    step goes to the root of the present linear piece, or to the middle of the bracket if it would leave it. The end is
    where rounding is all that is left, so that the root does not depend on `start` but in the last digits.
    """
    point, smallest_step = min(max(start, low), high), ROUNDING * (high - low)
    for step in range(STEPS):
        piece, more = at(point)
        if abs(piece.value) <= ROUNDING * piece.size:
            break
        low, high = (low, point) if piece.value > 0 else (point, high)
        moved = point - piece.value / piece.slope if piece.slope > 0 else math.nan
        if not low <= moved <= high or (step >= PATIENCE and step % 2):
            moved = 0.5 * (low + high)
        if abs(moved - point) <= smallest_step:
            break
        point = moved
    return point, more
