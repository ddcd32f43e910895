"""The rows on which a forest grows: all of them, or a sample that a hash of the rows' numbers chooses.

Few positive rows say more about where a tree should split than one of many negative rows. So a sample takes all
positive rows, up to half of its size, and fills up with negative rows; or the other way round, if these are fewer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from distsms.base.errors import InputError
from distsms.base.typing import Floats, Labels
from distsms.features.columns import as_single
from distsms.parallel.communicator import Communicator
from distsms.shards.splits import Shares, in_sample

LIMIT = 10**6
"""The most rows on which a forest grows, unless another number is wanted."""

ALL = Shares(1.0, 1.0)


class GrowingRows(NamedTuple):
    """The rows of this rank on which a forest grows."""

    X: Any  # (n_local, p), a SciPy CSR matrix or an array
    y: Labels  # (n_local,), +1 or -1
    weights: Floats | None = None  # (n_local,), on every rank or on none


def shares(n_positive: int, n_negative: int, limit: int = LIMIT) -> Shares:
    """Return the share of each class for a sample of at most `limit` rows.

    The share is six standard deviations too small for `limit` rows of a class, since a hash draws each row for itself.
    """
    positive = min(n_positive, max(limit // 2, limit - n_negative))
    return Shares(_share(positive, n_positive), _share(min(n_negative, limit - positive), n_negative))


def _share(wanted: int, n: int) -> float:
    return 1.0 if wanted >= n else max(wanted - 6 * wanted**0.5, 0.0) / n


def sample(
    parts: Iterable[tuple[int, Any, Labels, Floats | None]], of_classes: Shares = ALL, seed: int = 0
) -> GrowingRows:
    """Return this rank's part of a sample; raises InputError if a value is not finite. Local.

    `parts` has at least one part of consecutive rows, in order: the number of its first row among the rows of all
    ranks, the rows as a CSR matrix or an array (n, p), their labels (n,) int8 of +1 or -1, and their weights (n,) or
    None. Rows of weight 0 do not count. Takes the memory of the sample in float32 twice, and of one part at a time.
    """
    pieces = list[GrowingRows]()
    for first, X, y, weights in parts:
        taken = in_sample(first + np.arange(len(y)), y, of_classes, seed)
        if weights is not None:
            taken &= weights != 0
        pieces.append(GrowingRows(singles(X[taken]), y[taken], None if weights is None else weights[taken]))
    X, labels, found = zip(*pieces, strict=True)
    rows = sparse.csr_matrix(sparse.vstack(X, "csr")) if sparse.issparse(X[0]) else np.vstack(X)
    return GrowingRows(rows, np.concatenate(labels), None if found[0] is None else np.concatenate(found))


def singles(X: Any) -> Any:
    """Return rows (n, p), sparse or dense, with values rounded to float32, as trees compare them. Local.

    Raises InputError if a value is not finite.
    """
    values = X.data if sparse.issparse(X) else X
    if not np.isfinite(values).all():
        raise InputError(
            "trees cannot grow on values that are missing (NaN) or infinite; fill them in, with columns that mark them"
        )
    if not sparse.issparse(X):
        return X if X.dtype == np.float32 else as_single(X)
    X = sparse.csr_matrix(X)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X if X.dtype == np.float32 else sparse.csr_matrix((as_single(X.data), X.indices, X.indptr), X.shape)


def whole(rows: GrowingRows, comm: Communicator) -> GrowingRows:
    """Return the rows of all ranks, in the order of the ranks, on each of them. **Collective.**

    The values are those of `singles`. The result is a CSC matrix if less than a twelfth of all values is not 0, because
    trees then grow faster, and else an array.

    Notes
    -----
    Memory: 4 bytes for each value of an array, or 16 for each nonzero of a matrix, besides the given rows.
    """
    X, counts = rows.X, comm.allgather(len(rows.y))
    entries = comm.allgather(X.nnz if sparse.issparse(X) else int(np.count_nonzero(X)))
    shape = sum(counts), X.shape[1]
    y = comm.allgather_rows(rows.y, counts)
    weights = None if rows.weights is None else comm.allgather_rows(rows.weights, counts)
    if sum(entries) >= shape[0] * shape[1] / 12:
        dense = X.toarray() if sparse.issparse(X) else np.ascontiguousarray(X)
        table = comm.allgather_rows(dense.ravel(), [count * shape[1] for count in counts])
        return GrowingRows(table.reshape(shape), y, weights)
    X = sparse.csr_matrix(X)
    values = comm.allgather_rows(X.data, entries)
    columns = comm.allgather_rows(X.indices.astype(np.int32, copy=False), entries)
    lengths = comm.allgather_rows(np.diff(X.indptr).astype(np.int64), counts)
    by_row = sparse.csr_matrix((values, columns, np.concatenate([[0], np.cumsum(lengths)])), shape)
    return GrowingRows(by_row.tocsc(), y, weights)
