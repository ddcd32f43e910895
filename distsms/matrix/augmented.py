"""Features that wrap others without copying them: with a constant column (the bias), or with repeated rows (weights).

`WithBias` adds the constant feature of JMLR, section 5.1. The model's bias is its weight times the constant. The weight
is regularized like every other weight, so the larger the constant, the less the bias is regularized. ROCArea and PRBEP
do not depend on the bias.

`RepeatedRows` repeats each row as often as its weight says, which is a whole number. For every measure, a row of weight
k has the same risk as k equal rows, so the losses need no code for weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.matrix.base import ColumnStatistics, Features
from distsms.matrix.local import as_features
from distsms.utils.typing import Floats

BLOCK = 2**12
"""Number of rows whose squares are held in memory at a time."""


class WithBias:
    """The rows [x_i, value] for the rows x_i of other features; the constant is the last column.

    Parameters
    ----------
    features : Features
        This rank's rows, with p columns.
    value : float
        The constant, above 0.

    Notes
    -----
    `distsms.matrix.base.Features` describes the methods; here they have p + 1 columns.
    """

    def __init__(self, features: Features, value: float) -> None:
        self._features, self._value = features, value

    @property
    def shape(self) -> tuple[int, int]:
        """(n_local, p + 1)."""
        return self._features.shape[0], self._features.shape[1] + 1

    def margins(self, W: Floats, out: Floats | None = None) -> Floats:
        """Compute [X, value] W; see `Features.margins`."""
        out = self._features.margins(W[..., :-1], out)
        out += self._value * W[..., -1:]
        return out

    def transposed_times(self, C: Sequence[Floats] | Floats, out: Floats | None = None) -> Floats:
        """Compute this rank's contribution to [X, value]' C; see `Features.transposed_times`."""
        inner = self._features.transposed_times(C)
        out = np.empty((*inner.shape[:-1], inner.shape[-1] + 1)) if out is None else out
        out[..., :-1] = inner
        out[..., -1] = self._value * np.array([np.sum(c) for c in C] if inner.ndim == 2 else np.sum(C))
        return out

    def largest_terms(self, w: Floats) -> float:
        """Return an upper bound as described in `Features.largest_terms`.

        Notes
        -----
        Let S = sum_j |x_ij w_j| over the wrapped columns, and B the absolute value of the constant's term. The wrapped
        features return a bound of (entries + 2) S, which is at least 2 S. Rounding B and adding it to X w adds at most
        eps/2 (S + 2 B) to the error, to first order.
        """
        return 1.5 * self._features.largest_terms(w[:-1]) + 3.0 * self._value * abs(float(w[-1]))

    def columns(self) -> ColumnStatistics:
        """Describe each column; see `Features.columns`."""
        rows = self.shape[0]
        with np.errstate(over="ignore"):
            constant = self._value if rows else 0.0, float(rows), rows * np.square(self._value)
        return ColumnStatistics(*map(np.append, self._features.columns(), constant))


class RepeatedRows:
    """The rows x_i of X, each repeated weights_i times in succession; a row of weight 0 is left out.

    Parameters
    ----------
    X : (n_local, p) SciPy sparse matrix or array-like
        See `as_features`.
    weights : (n_local,) int64
        Whole numbers >= 0.

    Notes
    -----
    `distsms.matrix.base.Features` describes the methods; here n_local is the sum of the weights. Beyond the features'
    own cost, each product takes O(sum of weights) time, and 8 bytes are held for each repeated row.
    """

    def __init__(self, X: Any, weights: NDArray[np.int64]) -> None:
        self._X, self._weights, self._features = X, weights, as_features(X)
        self._row = np.repeat(np.arange(len(weights)), weights)

    @property
    def shape(self) -> tuple[int, int]:
        """(sum of weights, p)."""
        return len(self._row), self._features.shape[1]

    def margins(self, W: Floats, out: Floats | None = None) -> Floats:
        """Compute X W of the repeated rows; see `Features.margins`."""
        return np.take(self._features.margins(W), self._row, axis=-1, out=out)

    def transposed_times(self, C: Sequence[Floats] | Floats, out: Floats | None = None) -> Floats:
        """Compute X' C of the repeated rows; see `Features.transposed_times`."""
        single = isinstance(C, np.ndarray) and C.ndim == 1
        sums: list[Any] = [np.bincount(self._row, c, len(self._weights)) for c in ([C] if single else C)]
        return self._features.transposed_times(sums[0] if single else sums, out)

    def largest_terms(self, w: Floats) -> float:
        """Return the bound of `Features.largest_terms` over all rows of X, those of weight 0 included."""
        return self._features.largest_terms(w)

    def columns(self) -> ColumnStatistics:
        """Describe each column; see `Features.columns`. The largest entries and the counts are upper bounds."""
        largest, counts, total = self._features.columns()
        total[:] = 0
        for start in range(0, len(self._weights), BLOCK):
            rows = self._X[start : start + BLOCK].astype(np.float64)
            squares = rows.multiply(rows) if sparse.issparse(rows) else np.square(rows, out=rows)
            total += squares.T @ self._weights[start : start + BLOCK]
        return ColumnStatistics(largest, counts * self._weights.max(initial=0), total)
