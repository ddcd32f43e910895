"""Rows that count several times, as if the data had them so often: what whole-number weights of rows mean.

A risk that sees k equal rows is the risk with that row's weight k, for every measure alike, so nothing in the losses
has to know of weights. X is not copied; margins and coefficients are as long as the weights' sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.matrix.local import rows_of
from distsms.utils.typing import Floats

BLOCK = 2**12
"""Rows whose squares are held at a time."""


class Repeated:
    """The rows x_i of X, each weights_i times in a row; a weight of 0 leaves it out. See `distsms.matrix.local`. Local.

    X : (n_local, p), see `rows_of`.  weights : (n_local,) whole numbers >= 0.
    Cost beyond the features': O(sum of weights) for each product, and 8 bytes held for each.
    """

    def __init__(self, X: Any, weights: NDArray[np.int64]) -> None:
        self._X, self._weights, self._features = X, weights, rows_of(X)
        self._row = np.repeat(np.arange(len(weights)), weights)

    @property
    def shape(self) -> tuple[int, int]:
        """(sum of weights, p)."""
        return len(self._row), self._features.shape[1]

    def margins(self, W: Floats, out: Floats | None = None) -> Floats:
        """X W of the repeated rows: W (p,) or (k, p) -> (rows,) or (k, rows), into `out` if given."""
        return np.take(self._features.margins(W), self._row, axis=-1, out=out)

    def transposed_times(self, C: Sequence[Floats] | Floats, out: Floats | None = None) -> Floats:
        """X' C of the repeated rows: C (rows,) or k of them -> (p,) or (k, p), into `out` if given."""
        single = isinstance(C, np.ndarray) and C.ndim == 1
        sums: list[Any] = [np.bincount(self._row, c, len(self._weights)) for c in ([C] if single else C)]
        return self._features.transposed_times(sums[0] if single else sums, out)

    def largest_terms(self, w: Floats) -> float:
        """As for features, of rows that are left out, too."""
        return self._features.largest_terms(w)

    def columns(self) -> tuple[Floats, Floats]:
        """As for features: bounds on the largest |x_ij| of each column and its count of entries; (p,) each."""
        largest, counts = self._features.columns()
        return largest, counts * self._weights.max(initial=0)

    def second_moments(self) -> Floats:
        """sum_i weights_i x_ij^2 of each column, (p,)."""
        total = np.zeros(self.shape[1])
        for start in range(0, len(self._weights), BLOCK):
            some = self._X[start : start + BLOCK].astype(np.float64)
            squares = some.multiply(some) if sparse.issparse(some) else np.square(some, out=some)
            total += squares.T @ self._weights[start : start + BLOCK]
        return total
