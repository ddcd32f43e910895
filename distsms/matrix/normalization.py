"""Normalization of rows to a common size, by column (standard, maxabs) or by row (l2). Zeros stay zero.

    standard    x_ij / s_j       s_j the standard deviation of column j, with the zeros counted
    maxabs      x_ij / m_j       m_j = max_i |x_ij|
    l2          x_i / ||x_i||

Columns are not centred, which would make sparse rows dense (those of a table are as they are read:
`ingest/formats/encoding.py`); constant columns and empty rows stay as they are. Rows are stored without normalization:
training multiplies w or the scores by the factors, and the w of a saved model includes those of the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base import memory
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes
from distsms.base.jit import njit
from distsms.base.typing import Floats
from distsms.base.wording import option

BY_COLUMN = ("standard", "maxabs")
KINDS = ("none", *BY_COLUMN, "l2")
CONSTANT = 8 * float(np.finfo(float).eps)
"""A column counts as constant if its standard deviation is at most this share of its largest absolute entry."""
COLUMN_BYTES = 160
"""Bytes for each column that `fit` for standard or maxabs and the manifest with its result take on a rank."""
_BITS = 26
"""Before numbers are added, each is rounded and split into two whole numbers of this many bits (`_add_whole`). So sums
are exact and do not depend on how the rows are distributed.
"""


@dataclass(frozen=True, eq=False)
class Normalization:
    """A normalization of rows. `blocks.LocalRows.normalize` applies it."""

    kind: str = "none"  # "none", "standard", "maxabs" or "l2"
    scale: Floats | None = None  # (p,) float64: the factor of each column for standard and maxabs, else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Normalization) or self.kind != other.kind:
            return False
        return np.array_equal(self.scale, other.scale)  # type: ignore[arg-type]  # they may both be None

    def __hash__(self) -> int:
        return hash(self.kind)

    @property
    def by_row(self) -> Normalization:
        return self if self.kind == "l2" else Normalization()

    def fold(self, w: Floats) -> Floats:
        """Convert coefficients (p,) for normalized rows into those for raw rows."""
        return w if self.scale is None else w * self.scale

    def unfold(self, w: Floats) -> Floats:
        """Convert coefficients (p,) for raw rows into those for normalized rows."""
        return w if self.scale is None else w / self.scale


MANY = 2**18
"""From so many entries on, a compiled loop saves more than compiling it takes; NumPy takes ten times as long."""
Entries = tuple[NDArray[Any], NDArray[Any]] | tuple[NDArray[Any], NDArray[Any], Floats | None]
"""Columns and values of the entries of some rows, (entries,) each, and the weight of each entry's row if it has one."""


class Extent:
    """The smallest and largest entry of each column, their number and, with weights, its sum; of rows as read."""

    def __init__(self, p: int) -> None:
        self.low, self.high = np.full(p, np.inf), np.full(p, -np.inf)
        self.count, self.mass = np.zeros(p, np.int64), np.zeros(p)

    def add(self, indices: NDArray[Any], values: NDArray[Any], weights: Floats | None = None) -> None:
        """Include the entries of some rows, see `Entries`. Entries of weight 0 are left out."""
        indices, values, weights = _present(indices, values, weights)
        if len(indices) < MANY:
            np.minimum.at(self.low, indices, values)
            np.maximum.at(self.high, indices, values)
            np.add.at(self.count, indices, 1)
        else:
            _extend(indices, values, self.low, self.high, self.count)
        if weights is not None:
            np.add.at(self.mass, indices, weights)

    def merge(self, n: int, comm: Communicator) -> NDArray[np.bool_]:
        """Combine the extents of all ranks' rows, n together; return which columns are 1 only. **Collective.**"""
        self.low, self.high = -comm.maximum(-self.low), comm.maximum(self.high)
        self.count, self.mass = comm.sum(self.count), comm.sum(self.mass)
        flags = (self.low == 1) & (self.high == 1)
        sparse = self.count < n
        self.low[sparse] = np.minimum(self.low[sparse], 0)
        self.high[sparse] = np.maximum(self.high[sparse], 0)
        return flags


def fit(
    kind: str,
    entries: Callable[[], Iterable[Entries]],
    shape: tuple[int, int],
    comm: Communicator,
    measured: NDArray[np.bool_] | None = None,
    weight: float | None = None,
) -> Normalization:
    """Compute the normalization of all ranks' rows, n of weight > 0 with p columns (`shape`). **Collective.**

    `entries` returns the entries of this rank's rows, part by part, and is called twice for `standard`. Columns that
    are not `measured` (m <= p,) numbers, or only 0 and 1, keep the factor 1: dividing would make what is rare large.
    `weight` is the sum of all weights, if any. Raises InputError on every rank, if a node has too little memory.
    """
    if kind not in BY_COLUMN:
        return Normalization(kind)  # needs no vector of length p
    (n, p), neighbours = shape, len(comm.node_ranks())
    with comm.fail_together():
        _require_memory(kind, p, neighbours)
        extent = Extent(p)
        for part in entries():
            extent.add(*part)
    flags = extent.merge(n, comm)
    sizes = np.maximum(-extent.low, extent.high)
    if kind == "standard":
        deviations = _deviations(extent, entries(), n, weight, comm)
        sizes = np.where(deviations > CONSTANT * sizes, deviations, 0.0)
    if measured is not None:
        sizes[flags | ~np.pad(measured, (0, p - len(measured)))] = 1.0
    return Normalization(kind, inverse(sizes))


def _require_memory(kind: str, p: int, neighbours: int) -> None:
    needed, there = neighbours * p * COLUMN_BYTES, memory.available()
    if needed > there:
        raise InputError(
            f"{option('normalize', kind)} takes {COLUMN_BYTES} bytes for each of the {p} columns on each rank, "
            f"{format_bytes(needed)} on this node, but only {format_bytes(there)} are available. Use "
            f"{option('normalize', 'none')} or l2, start fewer ranks on a node, or leave out columns that few rows use"
        )


def inverse(sizes: Floats) -> Floats:
    """Return the factors to size 1 of columns or rows; 1 where the size is 0 or too small to invert."""
    with np.errstate(over="ignore", divide="ignore"):
        scale = 1 / sizes
    return np.where((sizes > 0) & np.isfinite(scale), scale, 1.0)


def _present(
    indices: NDArray[Any], values: NDArray[Any], weights: Floats | None = None
) -> tuple[NDArray[Any], NDArray[Any], Floats | None]:
    if weights is None or (there := weights > 0).all():
        return indices, values, weights
    return indices[there], values[there], weights[there]


def _deviations(extent: Extent, entries: Iterable[Entries], n: int, weight: float | None, comm: Communicator) -> Floats:
    """Compute the columns' standard deviations, from sums of t, -1 to 1 over their range. **Collective.**"""
    p = len(extent.low)
    middle, half = extent.low / 2 + extent.high / 2, extent.high / 2 - extent.low / 2
    size = np.where(half > 0, half, 1.0)
    sums, whole = np.zeros((2, p)), np.zeros((4, p), np.int64)
    with comm.fail_together():
        for part in entries:
            indices, values, weights = _present(*part)
            if weights is None:
                (_add_whole if len(indices) < MANY else _add_many)(indices, values, middle, size, whole)
                continue
            t = (values - middle[indices]) / size[indices]
            for k, term in enumerate((t, t * t)):
                np.add.at(sums[k], indices, weights * term)
    if weight is None:  # each sum is two whole numbers, in the rows 0 and 1, or 2 and 3; see `_add_whole`
        whole = comm.sum(whole)
        first, second = (whole[::2] + whole[1::2] / 2.0**_BITS) / 2.0**_BITS
    else:
        first, second = comm.sum(sums)
    total, mass = (n, extent.count) if weight is None else (weight, extent.mass)
    zeros, t = np.where(extent.count < n, total - mass, 0.0), -middle / size
    mean, square = (first + zeros * t) / total, (second + zeros * t * t) / total
    return half * np.sqrt(np.maximum(square - mean**2, 0))


def _add_whole(indices: NDArray[Any], values: Floats, middle: Floats, size: Floats, sums: NDArray[np.int64]) -> None:
    """Add t = (value - middle) / size, exact to 2^-53 as two whole numbers, and its square to the sums (4, p)."""
    t, unit = (values - middle[indices]) / size[indices], 2.0**_BITS
    for k, term in enumerate((t, t * t)):
        upper = np.floor(term * unit)
        np.add.at(sums[2 * k], indices, upper.astype(np.int64))
        np.add.at(sums[2 * k + 1], indices, np.rint((term * unit - upper) * unit).astype(np.int64))


@njit()
def _extend(indices, values, low, high, count):  # type: ignore[no-untyped-def]
    """Include entries in the extremes of their columns, (p,), and count them."""
    for k in range(len(indices)):
        j = indices[k]
        low[j], high[j] = min(low[j], values[k]), max(high[j], values[k])
        count[j] += 1


@njit(error_model="numpy")
def _add_many(indices, values, middle, size, sums):  # type: ignore[no-untyped-def]
    """Do as `_add_whole`."""
    unit = 2.0**_BITS
    for k in range(len(indices)):
        j = indices[k]
        t = (values[k] - middle[j]) / size[j]
        for place, term in ((0, t), (2, t * t)):
            upper = np.floor(term * unit)
            sums[place, j] += np.int64(upper)
            sums[place + 1, j] += np.int64(np.rint((term * unit - upper) * unit))
