"""What a rank holds of X (its local rows): products with w and with the per-row coefficients, and nothing else.

Three classes with one interface; no other module asks which one it has:

    shape, nnz, nbytes      (n_local, p), stored entries, bytes of memory held
    margins(W)              s = X w      W (p,) or (p, k)              -> (n_local,) or (n_local, k)
    transposed_times(C)     X' c         C (n_local,) or (n_local, k)  -> (p,) or (p, k): this rank's summand
    second_moments()        sum_i x_ij^2                               -> (p,): this rank's summand
    largest_terms(w)        what rounding can do to X w                -> a number
    columns()               max_i |x_ij| and the count of entries      -> (p,) and (p,), of this rank's rows

All arrays are local and float64, C-contiguous where they have two axes. Nothing communicates: the caller sums X'c and
the second moments over ranks. Values are held as float64 whatever the file holds, since SciPy would copy a float32
matrix at every product with a float64 vector. n_local = 0 is an ordinary case: X'c is then zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Floats = NDArray[np.float64]


def index_dtype(nnz: int, p: int) -> Any:
    """int32 if local entries and columns can be counted in it, else int64; SciPy wants one type for both."""
    return np.int32 if max(nnz, p) <= np.iinfo(np.int32).max else np.int64


_TERMS = 2**22  # entries of which absolute values are held at a time


class Sparse:
    """Local rows in compressed form (CSR): 12 bytes per entry with int32 indices. Products cost O(nnz k)."""

    def __init__(self, values: Floats, indices: NDArray[Any], indptr: NDArray[Any], p: int) -> None:
        """values (nnz,), indices (nnz,) zero-based, strictly ascending in each row, indptr (n_local + 1,).

        Nothing is copied if values are float64 and both index arrays have `index_dtype(nnz, p)`.
        """
        shape = (len(indptr) - 1, p)
        values = np.asarray(values, np.float64)
        self._rows = sparse.csr_matrix((values, indices, indptr), shape=shape, copy=False)
        self._columns = self._rows.T  # the same arrays read as CSC: made once, it costs more than a small product

    @property
    def shape(self) -> tuple[int, int]:
        """(n_local, p)."""
        return self._rows.shape

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return int(self._rows.nnz)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._rows.data.nbytes + self._rows.indices.nbytes + self._rows.indptr.nbytes

    def margins(self, W: Floats) -> Floats:
        """X W: (n_local,) or (n_local, k)."""
        return self._rows @ W

    def transposed_times(self, C: Floats) -> Floats:
        """X' C: (p,) or (p, k), to be summed over ranks."""
        return self._columns @ C

    def largest_terms(self, w: Floats) -> float:
        """See `Dense`; costs a copy of a few rows at a time."""
        best, w = 0.0, np.abs(w)
        for start, stop in self._parts():
            lengths = np.diff(self._rows.indptr[start : stop + 1]) + 2
            best = max(best, float((lengths * (abs(self._rows[start:stop]) @ w)).max()))
        return best

    def columns(self) -> tuple[Floats, Floats]:
        """See `Dense`; costs O(nnz) and a copy of a few rows at a time."""
        largest, counts = np.zeros(self.shape[1]), np.zeros(self.shape[1])
        indptr = self._rows.indptr
        for start, stop in self._parts():
            part = slice(indptr[start], indptr[stop])
            np.maximum.at(largest, self._rows.indices[part], np.abs(self._rows.data[part]))
            np.add.at(counts, self._rows.indices[part], 1.0)
        return largest, counts

    def _parts(self) -> Iterator[tuple[int, int]]:
        """Row ranges of about _TERMS entries each."""
        indptr, start = self._rows.indptr, 0
        while start < self.shape[0]:
            stop = max(start + 1, int(np.searchsorted(indptr, indptr[start] + _TERMS, side="right")) - 1)
            yield start, stop
            start = stop

    def second_moments(self) -> Floats:
        """Costs O(nnz) and, for its duration, a second array of values."""
        with np.errstate(over="ignore"):
            squares = (np.square(self._rows.data), self._rows.indices, self._rows.indptr)
        return sparse.csr_matrix(squares, shape=self.shape, copy=False).T @ np.ones(self.shape[0])


class Pattern:
    """Local rows of a 0/1 matrix: only the places of the ones are given. Products cost O(nnz k).

    SciPy's products read values, so an array of ones is held inside for now (and counted in `nbytes`). Kernels that
    need none, at 4 bytes per entry and less traffic, can replace it without any other module noticing.
    """

    def __init__(self, indices: NDArray[Any], indptr: NDArray[Any], p: int) -> None:
        """indices (nnz,) and indptr (n_local + 1,) as for `Sparse`."""
        self._ones = Sparse(np.ones(len(indices)), indices, indptr, p)

    @property
    def shape(self) -> tuple[int, int]:
        """(n_local, p)."""
        return self._ones.shape

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return self._ones.nnz

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._ones.nbytes

    def margins(self, W: Floats) -> Floats:
        """X W: (n_local,) or (n_local, k)."""
        return self._ones.margins(W)

    def transposed_times(self, C: Floats) -> Floats:
        """X' C: (p,) or (p, k), to be summed over ranks."""
        return self._ones.transposed_times(C)

    def largest_terms(self, w: Floats) -> float:
        """See `Dense`."""
        return self._ones.largest_terms(w)

    def columns(self) -> tuple[Floats, Floats]:
        """See `Dense`."""
        return self._ones.columns()

    def second_moments(self) -> Floats:
        """The column counts, since 1^2 = 1."""
        return self._ones.transposed_times(np.ones(self.shape[0]))


class Dense:
    """Local rows as one C-contiguous array: 8 bytes per entry; products by BLAS in O(n_local p k)."""

    def __init__(self, array: Floats) -> None:
        """array (n_local, p); not copied if it is float64 and C-contiguous."""
        self._array = np.ascontiguousarray(array, np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        """(n_local, p)."""
        return self._array.shape[0], self._array.shape[1]

    @property
    def nnz(self) -> int:
        """Stored entries."""
        return self._array.size

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        return self._array.nbytes

    def margins(self, W: Floats) -> Floats:
        """X W: (n_local,) or (n_local, k)."""
        return self._array @ W

    def transposed_times(self, C: Floats) -> Floats:
        """X' C: (p,) or (p, k), to be summed over ranks."""
        return self._array.T @ C

    def largest_terms(self, w: Floats) -> float:
        """The largest over rows of (entries + 2) sum_j |x_ij w_j|: eps/2 of it bounds what rounding does to X w."""
        best, w = 0.0, np.abs(w)
        step = max(1, _TERMS // max(1, self.shape[1]))
        for start in range(0, self.shape[0], step):
            best = max(best, float((np.abs(self._array[start : start + step]) @ w).max()))
        return best * (self.shape[1] + 2)

    def columns(self) -> tuple[Floats, Floats]:
        """The largest |x_ij| of each column, and how many entries it has; both (p,), local."""
        largest = np.maximum(self._array.max(axis=0, initial=0.0), -self._array.min(axis=0, initial=0.0))
        return largest, np.full(self.shape[1], float(self.shape[0]))

    def second_moments(self) -> Floats:
        """Costs O(n_local p), without a temporary array."""
        return np.einsum("ij,ij->j", self._array, self._array)


Features = Sparse | Pattern | Dense
