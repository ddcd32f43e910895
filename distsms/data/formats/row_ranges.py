"""Files whose rows have numbers (arrays, AnnData): shared out by spans of rows, read a bounded block at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.data import labels, row_metadata
from distsms.data.formats import rows
from distsms.data.formats.base import ReadOptions
from distsms.data.formats.rows import RowRange, Rows, index_dtype
from distsms.data.formats.table_schema import Table
from distsms.data.row_metadata import Beside
from distsms.errors import InputError
from distsms.parallel.communicator import Communicator


class Size(NamedTuple):
    """Of a file's rows."""

    n: int
    p: int
    nnz: int


class SpanReader(ABC):
    """What those formats have in common; see `reading.Reader`. Labels and ids are columns beside X."""

    table: Table | None = None

    def __init__(self, paths: Sequence[str], reading: ReadOptions, comm: Communicator) -> None:
        """Collective: where the labels are to be interpreted, all ranks read them once."""
        self.paths, self.reading, self.notes = list(paths), reading, Counter[str]()
        self.label_map: Mapping[str, Any] | None = reading.label_map
        self.named = reading.id is not None
        with comm.together():
            if reading.drop or reading.keep:
                raise InputError(f"{paths[0]}: --drop and --keep are for CSV and Parquet")
            self.sizes = {path: self.size(path) for path in paths}
            widths = {path: size.p for path, size in self.sizes.items()}
            if len(set(widths.values())) > 1:
                raise InputError(f"the files differ in their columns: {widths}")
        self.n_columns: int | None = self.sizes[paths[0]].p
        if reading.labelled and self.label_map is None:
            self._survey(comm)

    def plan(self, n_shares: int) -> list[list[RowRange]]:
        """Cut the input into shares, for `read`."""
        return rows.plan([(path, self.sizes[path].n) for path in self.paths], n_shares)

    def read(self, share: Iterable[RowRange]) -> Iterator[Rows]:
        """The rows of a share, in order. InputError names file and row."""
        for span in share:
            size = self.sizes[span.path]
            for part in span.parts(max(1, rows.BLOCK_ENTRIES * size.n // max(size.nnz, size.n))):
                X = self.block(part)
                self._require_finite(X, part)
                X.eliminate_zeros()
                yield self._rows(X, part)

    @property
    @abstractmethod
    def compressed(self) -> bool:
        """Whether the files are compressed."""

    @abstractmethod
    def size(self, path: str) -> Size:
        """Rows, columns and entries of a file. Local."""

    @abstractmethod
    def block(self, part: RowRange) -> sparse.csr_matrix:
        """Rows of X, in a matrix of their own, of float64."""

    @abstractmethod
    def beside(self, part: RowRange, name: str | None) -> NDArray[Any]:
        """What a column beside X, called `name`, or by default the labels, holds in these rows: numbers or strings."""

    def _rows(self, X: sparse.csr_matrix, part: RowRange) -> Rows:
        n, reading = part.stop - part.start, self.reading
        signs = np.zeros(n)
        if reading.labelled:
            assert self.label_map is not None
            found = self._labels(part)
            signs = labels.signs(found, self.label_map, f"{part.path}: from row {part.start} on").astype(float)
        ids = None if reading.id is None else [_text(one) for one in self.beside(part, reading.id).tolist()]
        p = X.shape[1]
        indices = X.indices.astype(index_dtype(p), copy=False)
        return Rows(signs, X.indptr.astype(np.int64), indices, X.data, p, ids, self._beside(part))

    def _beside(self, part: RowRange) -> Beside:
        def fail(name: str, row: int, problem: str) -> NoReturn:
            raise InputError(f"{part.path}: row {part.start + row} (counted from 0): {name!r}: {problem}")

        return row_metadata.read(
            self.reading.group, self.reading.time, lambda name: row_metadata.texts(self.beside(part, name)), fail
        )

    def _labels(self, part: RowRange) -> NDArray[Any]:
        """Numbers as float64, or strings; InputError names the row where one is missing."""
        found = self.beside(part, self.reading.label)
        if found.dtype.kind == "b":
            found = np.where(found, "true", "false")
        if found.dtype.kind in "iuf":
            found = found.astype(np.float64)
            bad = ~np.isfinite(found)
        else:
            found = np.array([_text(one) for one in found.tolist()], dtype=str)
            bad = found == ""
        if bad.any():
            row = part.start + int(bad.argmax())
            raise InputError(f"{part.path}: row {row} (counted from 0): the label is missing or not finite")
        return found

    def _survey(self, comm: Communicator) -> None:
        """What the labels mean. Collective."""
        found: set[Any] = set()
        with comm.together():
            for span in self.plan(comm.size)[comm.rank]:
                for part in span.parts(2**16):
                    if len(found) <= labels.MOST:
                        found |= set(np.unique(self._labels(part)).tolist())
        whole = set().union(*comm.allgather(found))
        with comm.together():
            try:
                self.label_map = labels.interpret(whole, self.reading.positive).as_map()
            except InputError as error:
                raise InputError(f"{self.paths[0]}: {error}") from error

    def _require_finite(self, X: sparse.csr_matrix, part: RowRange) -> None:
        bad = ~np.isfinite(X.data)
        if bad.any():
            at = int(bad.argmax())
            row = part.start + int(np.searchsorted(X.indptr, at, side="right")) - 1
            raise InputError(
                f"{part.path}: row {row}, column {X.indices[at]} (counted from 0): found {X.data[at]}; expected finite "
                "numbers"
            )


def csr(indptr: NDArray[Any], indices: NDArray[Any], data: NDArray[Any], p: int, part: RowRange) -> sparse.csr_matrix:
    """Rows of a file as a canonical matrix. Raises InputError where they are not CSR."""
    if (np.diff(indptr) < 0).any() or len(indices) != len(data) or len(data) != indptr[-1] - indptr[0]:
        raise InputError(f"{part.path}: near row {part.start} indptr does not fit the entries; is the file whole?")
    if indices.min(initial=0) < 0 or indices.max(initial=-1) >= p:
        raise InputError(f"{part.path}: near row {part.start} a column is not from 0 to {p - 1}")
    X = sparse.csr_matrix((as_float(data, part.path), indices, indptr - indptr[0]), shape=(len(indptr) - 1, p))
    X.sum_duplicates()
    return X


def as_float(values: NDArray[Any], path: str) -> NDArray[np.float64]:
    """Numbers of any type as float64. Raises InputError where they are no numbers."""
    if values.dtype.kind not in "biuf":
        raise InputError(f"{path}: X holds {values.dtype}; expected numbers")
    return values.astype(np.float64)


def _text(one: Any) -> str:
    return one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one)
