"""The columns of some rows, one at a time, whether the rows are sparse or dense."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

_LARGEST = np.finfo(np.float32).max


class Columns:
    """The columns of rows X (n, p), without NaN, in float32, in which bins, categories and trees compare them."""

    def __init__(self, X: Any) -> None:
        self.n = X.shape[0]
        self._dense = None if scipy.sparse.issparse(X) else np.asarray(X)
        self._sparse = X.tocsc() if scipy.sparse.issparse(X) else None

    def values(self, j: int) -> NDArray[np.float32]:
        """Return column j, (n,)."""
        if self._dense is not None:
            return as_single(self._dense[:, j])
        found = np.zeros(self.n, np.float32)
        rows, entries = self._entries(j)
        found[rows] = as_single(entries)
        return found

    def is_set(self, j: int) -> NDArray[np.bool_]:
        """Return where column j, which should be of 0 and 1, is above 1/2, (n,)."""
        if self._dense is not None:
            return as_single(self._dense[:, j]) > np.float32(0.5)
        found = np.zeros(self.n, np.bool_)
        rows, entries = self._entries(j)
        found[rows] = as_single(entries) > np.float32(0.5)
        return found

    def _entries(self, j: int) -> tuple[NDArray[Any], NDArray[Any]]:
        assert self._sparse is not None
        here = slice(self._sparse.indptr[j], self._sparse.indptr[j + 1])
        return self._sparse.indices[here], self._sparse.data[here]


def as_single(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers rounded to float32. Numbers that are too large for it become the largest, and -0 becomes 0."""
    with np.errstate(over="ignore"):
        found = values.astype(np.float32)
    np.clip(found, -_LARGEST, _LARGEST, out=found)
    found += np.float32(0)
    return found
