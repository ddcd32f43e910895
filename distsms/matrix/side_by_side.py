"""Several groups of columns of the same rows, side by side: sparse or dense rows, and any number of coded ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.matrix.base import ColumnStatistics, RowEntries
from distsms.matrix.blocks import LocalRows, Vectors, prepared
from distsms.matrix.normalization import Normalization, inverse


class SideBySide:
    """The rows [x_i of the first group, x_i of the second, ...]; see `Features`. ValueError if their numbers differ."""

    stored = "nonzeros and codes"

    def __init__(self, groups: Sequence[LocalRows]) -> None:
        self.groups = list(groups)
        if len({group.shape[0] for group in self.groups}) != 1:
            raise ValueError(f"the groups have different numbers of rows: {[group.shape[0] for group in self.groups]}")
        ends = [0, *accumulate(group.shape[1] for group in self.groups)]
        self._columns = [slice(start, stop) for start, stop in pairwise(ends)]
        self.shape = self.groups[0].shape[0], ends[-1]
        self.nnz = sum(group.nnz for group in self.groups)

    @property
    def nbytes(self) -> int:
        return sum(group.nbytes for group in self.groups)

    @property
    def bytes_per_pass(self) -> int:
        return sum(group.bytes_per_pass for group in self.groups)

    def normalize(self, normalization: Normalization) -> None:
        """Use normalized rows from now on; see `LocalRows.normalize`. The length of a row is that of all its groups."""
        scale = normalization.scale
        for group, columns in zip(self.groups, self._columns, strict=True):
            if scale is not None:
                group.normalize(Normalization(normalization.kind, scale[columns]))
        if normalization.kind == "l2":
            factors = inverse(self.lengths())
            for group in self.groups:
                group.row_factors = factors

    def lengths(self) -> Floats:
        lengths = np.zeros(self.shape[0])
        for group in self.groups:
            np.hypot(lengths, group.lengths(), out=lengths)
        return lengths

    def score_buffer(self, k: int) -> Floats:
        return self.groups[0].score_buffer(k)

    def take(self, rows: NDArray[np.bool_]) -> SideBySide:
        return SideBySide([group.take(rows) for group in self.groups])

    def margins(self, W: Vectors, out: Floats | None = None) -> Floats:
        vectors, out, _ = prepared(W, out, self.shape[1], self.shape[0])
        of_all = out.reshape(len(vectors), -1)
        for number, (group, columns) in enumerate(zip(self.groups, self._columns, strict=True)):
            group.margins([w[columns] for w in vectors], of_all, add=number > 0)
        return out

    def transposed_times(self, C: Vectors, out: Floats | None = None) -> Floats:
        vectors, out, rows = prepared(C, out, self.shape[0], self.shape[1])
        for group, columns in zip(self.groups, self._columns, strict=True):
            for total, part in zip(rows, group.transposed_times(vectors), strict=True):
                total[columns] = part
        return out

    def largest_terms(self, w: Floats) -> float:
        """Return a bound: adding group g rounds the sums of g groups; each bound is at least twice its sum."""
        bounds = [group.largest_terms(w[columns]) for group, columns in zip(self.groups, self._columns, strict=True)]
        return (1 + len(self.groups) / 2) * sum(bounds)

    def most_terms(self, largest: float) -> float:
        return (1 + len(self.groups) / 2) * sum(group.most_terms(largest) for group in self.groups)

    def columns(self, weights: Floats | None = None) -> ColumnStatistics:
        of_groups = [group.columns(weights) for group in self.groups]
        return ColumnStatistics._make(map(np.concatenate, zip(*of_groups, strict=True)))

    def rows_in_memory(self) -> NDArray[np.bool_]:
        return np.zeros(self.shape[0], bool)  # no row has its entries in one place

    def row_entries(self, rows: NDArray[Any] | None = None) -> RowEntries | None:
        return None
