"""Rows brought to a common size: by column (standard, maxabs) or by row (l2), without a zero becoming anything else.

    standard    x_ij / s_j       s_j the standard deviation of column j, zeros counted
    maxabs      x_ij / m_j       m_j = max_i |x_ij|
    l2          x_i / ||x_i||

`standard` does not centre: that would shift the scores of all rows alike, which ROCArea and PRBEP do not see, and fill
sparse rows. Columns without variance but for rounding (without a value, for maxabs) and empty rows stay as they are.

Data sets hold rows as they were, and so does memory. Training multiplies w by the factors of the columns, or scores by
those of the rows (`parts.Rows.normalize`); the w of a model has the factors of the columns in it. So the score of a row
is <w, x>, or <w, x> / ||x|| for l2, of the row as it was read, in float64, in training and everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats

BY_COLUMN = ("standard", "maxabs")
KINDS = ("none", *BY_COLUMN, "l2")
CONSTANT = 8 * float(np.finfo(float).eps)
"""A column whose deviation is at most this share of its largest entry is constant but for rounding."""
_BITS = 26
"""Sums are taken of whole numbers in two parts of so many bits, exactly: they do not depend on who has which rows."""


@dataclass(frozen=True, eq=False)
class Normalization:
    """What is done to rows. scale : (p,) the factor of each column for standard and maxabs, else None.

    `parts.Rows.normalize` does it.
    """

    kind: str = "none"
    scale: Floats | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Normalization) and (self.kind, _numbers(self)) == (other.kind, _numbers(other))

    def __hash__(self) -> int:
        return hash(self.kind)

    @property
    def by_row(self) -> Normalization:
        """What is left to do to rows where the factors of columns are in w."""
        return self if self.kind == "l2" else Normalization()

    def fold(self, w: Floats) -> Floats:
        """Coefficients (p,) for raw rows, from those for normalized ones."""
        return w if self.scale is None else w * self.scale

    def unfold(self, w: Floats) -> Floats:
        """Coefficients (p,) for normalized rows, from those for raw ones."""
        return w if self.scale is None else w / self.scale


def _numbers(one: Normalization) -> list[float] | None:
    return None if one.scale is None else one.scale.tolist()


class Extent:
    """The least and the largest entry of each column, and how many there are, of rows as they come by."""

    def __init__(self) -> None:
        self.low, self.high, self.count = np.empty(0), np.empty(0), np.empty(0, np.int64)

    def add(self, indices: NDArray[Any], values: NDArray[Any]) -> None:
        """Entries of some rows."""
        self._widen(int(indices.max(initial=-1)) + 1)
        np.minimum.at(self.low, indices, values)
        np.maximum.at(self.high, indices, values)
        self.count += np.bincount(indices, minlength=len(self.count))

    def _widen(self, p: int) -> None:
        more = max(p - len(self.low), 0)
        self.low = np.pad(self.low, (0, more), constant_values=np.inf)
        self.high = np.pad(self.high, (0, more), constant_values=-np.inf)
        self.count = np.pad(self.count, (0, more))

    def merge(self, p: int, n: int, comm: Communicator) -> None:
        """Of the n rows of all ranks, with p columns and their zeros. Collective."""
        self._widen(p)
        self.low, self.high = -comm.maximum(-self.low), comm.maximum(self.high)
        self.count = comm.sum(self.count)
        sparse = self.count < n
        self.low[sparse] = np.minimum(self.low[sparse], 0)
        self.high[sparse] = np.maximum(self.high[sparse], 0)


def measure(
    kind: str, entries: Callable[[], Iterable[tuple[Any, Any]]], shape: tuple[int, int], comm: Communicator
) -> Normalization:
    """The normalization of all ranks' rows, `shape` of them together. Collective; the same however they are dealt out.

    entries : gives (columns, values) of this rank's rows, a part at a time, each column at most once in a row; asked
    twice for `standard`, once for `maxabs`.
    """
    if kind not in BY_COLUMN:
        return Normalization(kind)  # without a vector of length p
    (n, p), extent = shape, Extent()
    with comm.together():
        for indices, values in entries():
            extent.add(indices, values)
    extent.merge(p, n, comm)
    if kind == "maxabs":
        return Normalization(kind, inverse(np.maximum(-extent.low, extent.high)))
    deviations = _deviations(extent, entries(), n, comm)
    deviations[deviations <= CONSTANT * np.maximum(-extent.low, extent.high)] = 0.0
    return Normalization(kind, inverse(deviations))


def inverse(sizes: Floats) -> Floats:
    """The factors that bring columns or rows of these sizes to size 1; 1 where there is none."""
    with np.errstate(over="ignore", divide="ignore"):
        scale = 1 / sizes
    return np.where((sizes > 0) & np.isfinite(scale), scale, 1.0)


def _deviations(extent: Extent, entries: Iterable[tuple[Any, Any]], n: int, comm: Communicator) -> Floats:
    """The standard deviation of each column, from t = (x - middle of its range) / half its range, in [-1, 1]."""
    p = len(extent.low)
    middle, half = extent.low / 2 + extent.high / 2, extent.high / 2 - extent.low / 2
    size = np.where(half > 0, half, 1.0)
    sums = np.zeros((4, p), np.int64)
    for indices, values in entries:
        t = (values - middle[indices]) / size[indices]
        for k, term in ((0, t), (2, t * t)):
            for part, whole in enumerate(_whole(term)):
                sums[k + part] += np.bincount(indices, whole, p).astype(np.int64)
    first, second = (comm.sum(sums)[[0, 2]] + sums[[1, 3]] / 2.0**_BITS) / 2.0**_BITS
    zeros, t = n - extent.count, -middle / size
    mean, square = (first + zeros * t) / n, (second + zeros * t * t) / n
    return half * np.sqrt(np.maximum(square - mean**2, 0))


def _whole(t: Floats) -> tuple[Floats, Floats]:
    """t in [-1, 1] as whole numbers a, b of at most 2^26 with t = (a + b / 2^26) / 2^26 to 2^-53."""
    a = np.floor(np.ldexp(t, _BITS))
    return a, np.rint(np.ldexp(np.ldexp(t, _BITS) - a, _BITS))
