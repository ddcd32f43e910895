"""Keys of rows, of 64 bits: random ones, by a seed and the row's number alone, and hashes of what the rows hold.

A hash covers columns and values without zeros, so it is the same from sparse and dense rows of any type. Among n
different rows, about n^2 / 2^65 pairs are treated as equal: for 1e8 rows, 3e-4 pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base.jit import njit
from distsms.base.typing import Hashes

GOLDEN, MIX1, MIX2 = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
S27, S30, S31 = np.uint64(27), np.uint64(30), np.uint64(31)
_STRIP = 2**12
"""Rows whose hashes stay in a cache."""
FEW = 2**19
"""NumPy does for up to so many entries or keys what is compiled for more."""


def row_keys(rows: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    """Return a key (m,) uint64 for each global row number, which seeds its sequence of random numbers; all differ."""
    mix = _mix.py_func  # the Python function also works on arrays
    return mix(mix(np.array([seed], np.uint64) * GOLDEN) + rows.astype(np.uint64) * GOLDEN)


@njit(inline="always")
def _mix(z):  # type: ignore[no-untyped-def]
    """Apply the finalizer of SplitMix64 (Steele, Lea & Flood 2014)."""
    z = (z ^ (z >> S30)) * MIX1
    z = (z ^ (z >> S27)) * MIX2
    return z ^ (z >> S31)


def hash_rows(X: Any, dtype: str = "float64", before: int = 0) -> Hashes:
    """Return a hash of each row of X (n, p), (n,) uint64, as it would be in a file of the given dtype, after so many
    entries of other rows. Local."""
    if not scipy.sparse.issparse(X):
        X = scipy.sparse.csr_matrix(X)
    elif not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    hashes = np.zeros(X.shape[0], np.uint64)
    bits = np.ascontiguousarray(X.data.astype(dtype, copy=False), np.float64).view(np.uint64)
    if before + len(bits) <= FEW:  # what `_hash` does
        there, mix = bits << np.uint64(1) != 0, _mix.py_func
        of_entries = mix(mix(X.indices[there].astype(np.uint64) * GOLDEN + GOLDEN) ^ bits[there])
        np.add.at(hashes, np.repeat(np.arange(len(hashes)), np.diff(X.indptr))[there], of_entries)
        return mix(hashes)  # type: ignore[no-any-return]
    _hash(X.indptr.astype(np.int64, copy=False), X.indices, bits, hashes)
    return hashes


def hash_codes(codes: Sequence[NDArray[Any]], rows: Hashes | None = None) -> Hashes:
    """Return a hash of the codes (n, codes of a row) of each group, continuing `rows`, the hashes of other columns."""
    hashes = np.zeros(len(codes[0]), np.uint64) if rows is None else rows.copy()
    for group in codes:
        _hash_codes(np.ascontiguousarray(group.T), hashes)
    return hashes


@njit()
def _hash(indptr, columns, bits, hashes):  # type: ignore[no-untyped-def]
    """Hash each row. Each entry is mixed and the results are added, so the order of the entries does not matter."""
    for row in range(len(hashes)):
        total = np.uint64(0)
        for k in range(indptr[row], indptr[row + 1]):
            if bits[k] << np.uint64(1):  # neither 0 nor -0
                total += _mix(_mix(np.uint64(columns[k]) * GOLDEN + GOLDEN) ^ bits[k])
        hashes[row] = _mix(total)


@njit()
def _hash_codes(codes, hashes):  # type: ignore[no-untyped-def]
    """Continue the hash of each row with its codes (codes of a row, n), of which the order matters."""
    for first in range(0, len(hashes), _STRIP):
        totals = hashes[first : first + _STRIP]
        for block in codes:
            strip = block[first : first + _STRIP]
            for k in range(len(totals)):
                totals[k] = _mix((totals[k] ^ np.uint64(strip[k])) * GOLDEN + GOLDEN)


def share_places(keys: Hashes) -> NDArray[np.bool_]:
    """Return which keys (n,) may be equal to others: all that are, and few that share their place in a table. Local."""
    if len(keys) <= FEW:
        _, place, count = np.unique(keys, return_inverse=True, return_counts=True)
        return count[place] > 1
    shared = np.empty(len(keys), bool)
    _count_in_table(keys, np.zeros(8 << len(keys).bit_length(), np.uint8), shared)
    return shared


@njit()
def _count_in_table(keys, table, shared):  # type: ignore[no-untyped-def]
    last = np.uint64(len(table) - 1)
    for key in keys:
        table[key & last] = min(table[key & last] + 1, 2)
    for k in range(len(keys)):
        shared[k] = table[keys[k] & last] > 1
