"""Rows that are the same in every column: found by a hash of each row, and counted over all ranks.

It has 64 bits and covers columns and values without zeros, so it is the same from sparse and dense shards of any type.
Among n different rows, about n^2 / 2^65 pairs are treated as equal: for 1e8 rows, 3e-4 pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base.hashing import GOLDEN, _mix
from distsms.base.jit import njit
from distsms.base.typing import Hashes
from distsms.base.wording import Message, option

_STRIP = 2**12
"""Rows whose hashes stay in a cache."""
FEW = 2**19
"""NumPy does for up to so many entries or keys what is compiled for more."""
MANY, ONE_ROW = 0.05, 0.01
"""Folds by rows are misleading if more than the share MANY of the rows have an equal row, and no row makes up the share
ONE_ROW: then many rows occur a few times each, and a model remembers them. Others are combinations of categories.
"""


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


def warning(doubles: Mapping[str, int] | None, n: int, by: str | None = None) -> str:
    """Return a warning that a split of n rows by anything but "doubles" separates equal rows; "" if they are few."""
    if by == "doubles" or doubles is None or doubles["rows"] <= MANY * n or doubles["largest"] >= ONE_ROW * n:
        return ""
    return Message(
        f"{doubles['rows'] / n:.1%} of the rows have an exact duplicate. If rows are held out, their duplicates may be "
        f"among the training rows, and the measures on them are too good. `{option('split_by', 'doubles')}` (of "
        f"`shard` and `train`) and `{option('folds_by', 'doubles')}` (of `path` and `baseline`) keep equal rows "
        "together"
    )


def describe(doubles: Mapping[str, int], n: int) -> str:
    """Return a line for people about the equal rows among n rows."""
    if not doubles["rows"]:
        return "no row occurs twice"
    text = f"{doubles['rows'] / n:.1%} of the rows have a duplicate: {doubles['different']} different rows, "
    text += f"the most frequent one occurs {doubles['largest']} times"
    if not doubles["contradicting"]:
        return f"{text}; their labels agree"
    return f"{text}; the duplicates of {doubles['contradicting']} rows have both labels"


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
