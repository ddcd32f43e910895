"""The interface of a rank's feature matrix, as the objective uses it.

Each rank holds n_local rows x_i of the global matrix X, with p columns. `distsms.matrix.local` has the implementations
that store entries, `distsms.matrix.coded` the one that stores codes, `distsms.matrix.side_by_side` the one that puts
several next to each other, and `distsms.matrix.augmented` those that wrap other features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats


class ColumnStatistics(NamedTuple):
    """What one pass over this rank's rows finds out about each column: arrays (p,) of float64."""

    largest: Floats  # max_i |x_ij|, or an upper bound of it
    counts: Floats  # the number of stored entries, or an upper bound of it
    squares: Floats  # sum_i x_ij^2, infinite where it overflows


class RowEntries(NamedTuple):
    """The entries of this rank's rows, for compiled loops that go from one row to another in any order."""

    # (nnz,) unsigned: the column of each entry. None if each row has an entry in every column, in their order.
    columns: NDArray[Any] | None
    values: NDArray[Any] | None  # (nnz,) float32 or float64: None if all entries are 1
    begins: NDArray[np.int64]  # (n_local,): row i has the entries k with begins[i] <= k < ends[i]
    ends: NDArray[np.int64]
    # (p,) and (n_local,) float64: factors of the values; None if all are 1
    column_factors: Floats | None = None
    row_factors: Floats | None = None
    constant: float = 0.0  # the value of one more column, the last one, in each row; 0 if there is none


class Features(Protocol):
    """The products and column statistics that the objective needs of this rank's rows.

    Everything is local: no method communicates, and the caller sums over ranks where the description says so. All
    vectors are float64. k vectors are the rows of a C-contiguous array, and they share one pass over the data. A rank
    may have no rows.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """(n_local, p)."""

    @property
    def nnz(self) -> int:
        """The number of stored entries and codes."""

    def score_buffer(self, k: int) -> Any:
        """Return k vectors (n_local,) for `margins` to write to, where rows are computed, for a loss to overwrite."""

    def margins(self, W: Floats, out: Floats | None = None) -> Floats:
        """Compute this rank's margins X w, (n_local,) or (k, n_local), for W (p,) or (k, p), in C-contiguous `out`."""

    def transposed_times(self, C: Sequence[Floats] | Floats, out: Floats | None = None) -> Floats:
        """Compute this rank's part of X'c, (p,) or (k, p), for C (n_local,) or k of these, in C-contiguous `out`."""

    def largest_terms(self, w: Floats) -> float:
        """Return the maximum over this rank's rows of (entries + 2) sum_j |x_ij w_j|, or an upper bound of it.

        eps/2 times this number bounds the rounding error of the margins X w (eps: the machine epsilon of float64).
        """

    def most_terms(self, largest: float) -> float:
        """Return at least `largest_terms` at any w of length 1, if no |x_ij| is larger than `largest`. No pass."""

    def columns(self, weights: Floats | None = None) -> ColumnStatistics:
        """Describe each column of this rank's rows. One pass over the data, with weights (n_local,) two: each row's
        squares are multiplied by its weight, at least 0; largest and counts are those of all rows. The arrays are new.
        """

    def rows_in_memory(self) -> NDArray[np.bool_]:
        """Return which local rows `row_entries` has, (n_local,). Where rows are streamed, these are some; else all."""

    def row_entries(self, rows: NDArray[Any] | None = None) -> RowEntries | None:
        """Return the entries of some rows, all different, which are in memory, or of all rows; None if entries are not
        kept row by row, or if all rows are asked for and some are streamed. O(n_local) time, but O(1) for an empty
        list; 16 bytes of memory for each of the rows, and 4 for each local row if these are some.
        """
