"""The rows of a data set as they are in its shards, before any normalization, a part at a time; and their columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats
from distsms.matrix.arrays import without_duplicates
from distsms.shards import dataset
from distsms.shards.manifest import Manifest
from distsms.shards.reader import OpenShard, ShardRange
from distsms.shards.row_metadata import some

_LARGEST = np.finfo(np.float32).max


class Columns:
    """The columns of rows X (n, p), without NaN, in float32, in which bins, categories and trees compare them."""

    def __init__(self, X: Any) -> None:
        self.n = X.shape[0]
        self._X: Any = without_duplicates(X).tocsc() if scipy.sparse.issparse(X) else np.asarray(X)

    def values(self, j: int) -> NDArray[np.float32]:
        if not scipy.sparse.issparse(self._X):
            return as_single(self._X[:, j])
        column, here = np.zeros(self.n, np.float32), slice(self._X.indptr[j], self._X.indptr[j + 1])
        column[self._X.indices[here]] = as_single(self._X.data[here])
        return column

    def is_set(self, j: int) -> NDArray[np.bool_]:
        """Return where column j, which should be of 0 and 1, is above 1/2, (n,)."""
        return self.values(j) > np.float32(0.5)


def as_single(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers rounded to float32. Numbers that are too large for it become the largest, and -0 becomes 0."""
    with np.errstate(over="ignore"):
        singles = values.astype(np.float32)
    np.clip(singles, -_LARGEST, _LARGEST, out=singles)
    singles += np.float32(0)
    return singles


PART_ROWS, PART_ENTRIES = 2**16, 2**22
"""The most rows, and about the most entries, of a part."""


class Rows(NamedTuple):
    """Some rows of a data set."""

    X: Any  # (n, p), CSR or dense
    labels: NDArray[np.int8]  # (n,) int8: +1 and -1
    weights: Floats | None = None  # (n,) float64: None if the data set has no weights
    # Of consecutive rows: the number of the first one in the whole data set, and where they are, unless in memory
    first: int = 0
    shard: OpenShard | Any = None
    place: ShardRange | Any = None

    def take(self, rows: NDArray[np.bool_]) -> Rows:
        return Rows(self.X[rows], self.labels[rows], some(self.weights, rows))

    def counted(self) -> Rows:
        """Return the rows that count: all but those of weight 0."""
        return self if self.weights is None or self.weights.all() else self.take(self.weights != 0)


def no_rows(manifest: Manifest, p: int) -> Rows:
    """Return no rows of p columns, with which the pieces of a rank begin, which may have none."""
    X = np.empty((0, p), manifest.dtype)
    X = X if manifest.layout == "dense" else scipy.sparse.csr_matrix(X)
    return Rows(X, np.empty(0, np.int8), np.empty(0) if manifest.weights else None)


def stacked(pieces: Sequence[Rows]) -> Rows:
    """Return the rows of all pieces, at least one, in order. Local."""
    X: Any = [piece.X for piece in pieces]
    labels = np.concatenate([piece.labels for piece in pieces])
    weights = [piece.weights for piece in pieces if piece.weights is not None]
    X = scipy.sparse.csr_matrix(scipy.sparse.vstack(X, "csr")) if scipy.sparse.issparse(X[0]) else np.vstack(X)
    return Rows(X, labels, np.concatenate(weights) if weights else None)


class RowParts:
    """The rows first..last - 1 of a data set, part by part, as often as needed, with p columns: more are 0, others left
    out. If only some are `counted` (last - first,), all others get the weight 0."""

    def __init__(
        self, manifest: Manifest, first: int, last: int, p: int | None = None, counted: NDArray[np.bool_] | None = None
    ) -> None:
        self.manifest, self.first, self.last, self._counted = manifest, first, last, counted
        self.p = manifest.p_entries if p is None else p

    @classmethod
    def of_rank(cls, manifest: Manifest, comm: Communicator, counted: NDArray[np.bool_] | None = None) -> RowParts:
        first, last = (manifest.n * rank // comm.size for rank in (comm.rank, comm.rank + 1))
        return cls(manifest, first, last, counted=counted)

    def __iter__(self) -> Iterator[Rows]:
        manifest = self.manifest
        entries = manifest.entries(manifest.n, manifest.nnz)
        rows = int(np.clip(PART_ENTRIES * manifest.n // max(1, entries), 1, PART_ROWS))
        for shard, piece in dataset.open_shards(manifest, self.first, self.last):
            for place in piece.parts(rows):
                X = widened(shard.read_rows(place), self.p)
                labels, weights = shard.read_labels(place), shard.read_weights(place)
                if self._counted is not None:
                    counted = self._counted[place.after(self.first)]
                    weights = 1.0 * counted if weights is None else weights * counted
                yield Rows(X, labels, weights, place.offset + place.start, shard, place)


def widened(X: Any, p: int) -> Any:
    """Return rows (n, columns) with p columns: the further ones are 0, or columns beyond p are left out."""
    n, columns = X.shape
    if columns >= p:
        return X if columns == p else X[:, :p]
    if scipy.sparse.issparse(X):
        return scipy.sparse.csr_matrix((X.data, X.indices, X.indptr), (n, p))
    return np.hstack([X, np.zeros((n, p - columns), X.dtype)])
