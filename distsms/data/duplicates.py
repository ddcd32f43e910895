"""Rows that are the same in every column: found by a hash of each, counted over all ranks.

The hash has 64 bits, of the columns and values of a row with zeros left out: it is the same from sparse and dense
shards, and from float32 and float64 if the values are. Of n different rows some n^2 / 2^65 pairs would be taken for
doubles: 3e-4 of one pair at 1e8 rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.data.row_metadata import Hashes
from distsms.utils.hashing import GOLDEN, _mix
from distsms.utils.jit import njit

MANY, ONE_ROW = 0.05, 0.01
"""Doubles lead folds by rows astray where more than this share of the rows have one, and no single row makes up more
than the other share: many rows, each a few times, are remembered; a few rows, very often, are categories."""


def hashes(X: Any, dtype: str = "float64") -> Hashes:
    """(n,): of the rows of X, sparse or dense (n, p), as they would be in files of a dtype. Local; O(nnz)."""
    if not sparse.issparse(X):
        X = sparse.csr_matrix(X)
    elif not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    found = np.empty(X.shape[0], np.uint64)
    _hash(X.indptr.astype(np.int64, copy=False), X.indices, _bits(X.data, dtype), found)
    return found


def _bits(values: NDArray[Any], dtype: str) -> NDArray[np.uint64]:
    return np.ascontiguousarray(values.astype(dtype, copy=False), np.float64).view(np.uint64)


@njit()
def _hash(indptr, columns, bits, found):  # type: ignore[no-untyped-def]
    """Of each row the sum of what its entries are mixed to, whatever their order."""
    for row in range(len(found)):
        total = np.uint64(0)
        for k in range(indptr[row], indptr[row + 1]):
            if bits[k] << np.uint64(1):  # neither 0 nor -0
                total += _mix(_mix(np.uint64(columns[k]) * GOLDEN + GOLDEN) ^ bits[k])
        found[row] = _mix(total)


def warning(found: Mapping[str, int] | None, n: int) -> str:
    """What to know of folds that part doubles, where it matters, or no words.  found : of the manifest of n rows."""
    if found is None or found["rows"] <= MANY * n or found["largest"] >= ONE_ROW * n:
        return ""
    return (
        f"{found['rows'] / n:.1%} of the rows have an exact double: where that is trained on, a row may measure what a "
        "model remembers. --folds-by doubles keeps them together, and shows what it is worth"
    )


def in_words(found: Mapping[str, int], n: int) -> str:
    """What was counted of n rows, for people."""
    if not found["rows"]:
        return "no row occurs twice"
    told = f"{found['rows'] / n:.1%} of the rows have one: {found['different']} different rows, the most frequent one "
    told += f"{found['largest']} times"
    if not found["contradicting"]:
        return f"{told}; their labels agree"
    return f"{told}; the doubles of {found['contradicting']} rows have both labels"
