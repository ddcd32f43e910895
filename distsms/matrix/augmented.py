"""Features that wrap others without copying them, with a constant column, whose weight times the constant is the bias
(JMLR, section 5.1): the larger the constant, the less the bias is regularized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.matrix.base import ColumnStatistics, Features, RowEntries
from distsms.matrix.blocks import prepared


def with_bias(features: Features, value: float | None) -> Features:
    return WithBias(features, value) if value else features


def split_bias(w: Floats, value: float | None) -> tuple[Floats, float]:
    """Return the coefficients of the other columns, and the model's bias, for the w of features `with_bias`."""
    w = w + 0.0  # no -0.0, which l1 leaves and people would read
    return (w[:-1], value * float(w[-1])) if value else (w, 0.0)


class WithBias:
    """The rows [x_i, value] for the rows x_i of other features; the constant, above 0, is the last column, number p."""

    def __init__(self, features: Features, value: float) -> None:
        self._features, self._value = features, value
        self.shape, self.nnz = (features.shape[0], features.shape[1] + 1), features.nnz
        self.score_buffer, self.rows_in_memory = features.score_buffer, features.rows_in_memory

    def margins(self, W: Floats, out: Floats | None = None) -> Floats:
        out = self._features.margins(W[..., :-1], out)
        out += self._value * W[..., -1:]
        return out

    def transposed_times(self, C: Sequence[Floats] | Floats, out: Floats | None = None) -> Floats:
        vectors, out, totals = prepared(C, out, self.shape[0], self.shape[1])
        for c, total in zip(vectors, totals, strict=True):
            total[-1] = self._value * np.sum(c)
        if len(vectors) == 1:
            self._features.transposed_times(vectors[0], totals[0][:-1])
        else:  # the others write to an array of p columns first
            out[..., :-1] = self._features.transposed_times(vectors)
        return out

    def largest_terms(self, w: Floats) -> float:
        """Return an upper bound: that of the wrapped features leaves room for rounding the addition."""
        return 1.5 * self._features.largest_terms(w[:-1]) + 3.0 * self._value * abs(float(w[-1]))

    def most_terms(self, largest: float) -> float:
        return 1.5 * self._features.most_terms(largest) + 3.0 * self._value

    def columns(self, weights: Floats | None = None) -> ColumnStatistics:
        rows = self.shape[0]
        total = float(rows if weights is None else np.sum(weights))
        with np.errstate(over="ignore"):
            constant = self._value if rows else 0.0, float(rows), total * np.square(self._value)
        return ColumnStatistics._make(map(np.append, self._features.columns(weights), constant))

    def row_entries(self, rows: NDArray[Any] | None = None) -> RowEntries | None:
        inner = self._features.row_entries(rows)
        return inner and inner._replace(constant=self._value)
