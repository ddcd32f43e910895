"""Coded columns: groups of columns whose rows are stored as a few codes, behind the columns of X, if there are any.

A shard has them in the group `codes`, with a one-dimensional dataset for each group of coded columns: `codes/0`,
`codes/1` and so on. Its attribute `part_rows` is the number of rows R of a part; the last part of a shard has fewer. A
part holds the first code of each of its rows, then the second code of each of them, and so on. So the codes of rows
0..R - 1, with B codes each, are `dataset[: R * B].reshape(B, R).T`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import h5py
import numpy as np
from numpy.typing import NDArray

from distsms.base import hdf5
from distsms.base.errors import InputError
from distsms.matrix.code_maps import CodeMap, Strings, code_map
from distsms.matrix.coded import code_rows
from distsms.shards import storage
from distsms.shards.sequence_rules import Sequences
from distsms.shards.storage import StoredArray


class FeatureReference(NamedTuple):
    """Which feature map made the codes (`distsms.features.feature_map`)."""

    hash: str  # 64 hex digits that identify the map
    columns: int  # of the rows that it takes

    @classmethod
    def of(cls, record: Any) -> FeatureReference:
        reference = cls(**record)
        is_count = type(reference.columns) is int and 1 <= reference.columns < 2**62
        if not re.fullmatch("[0-9a-f]{64}", str(reference.hash)) or not is_count:
            raise ValueError("features need a hash of 64 hex digits, and a number of columns")
        return reference


@dataclass(frozen=True)
class CodedColumns:
    """The coded columns of a data set or a model: none if `maps` is empty."""

    maps: tuple[CodeMap, ...] = ()  # what the codes of each group stand for, in the order of their columns
    sequences: Sequences | None = None  # how the codes of the only group were made from sequences, if they were
    features: FeatureReference | None = None  # which feature map made the codes from columns, if one did

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> CodedColumns:
        """Return what the fields `coded`, `sequences` and `features` of a record describe; ValueError if damaged."""
        map_records = record.get("coded", [])
        if not isinstance(map_records, list) or not all(isinstance(one_map, dict) for one_map in map_records):
            raise ValueError("coded must be a list of objects")
        maps = tuple(map(code_map, map_records))
        sequence_record = record.get("sequences")
        if sequence_record is not None and len(maps) != 1:
            raise ValueError("sequences need one group of codes")
        feature_record = record.get("features")
        if feature_record is not None and (not maps or sequence_record is not None):
            raise ValueError("features need codes that were not made from sequences")
        sequences = None if sequence_record is None else Sequences.of(sequence_record, maps[0])
        return cls(maps, sequences, None if feature_record is None else FeatureReference.of(feature_record))

    def record(self) -> dict[str, Any]:
        """Return the fields `coded`, `sequences` and `features`, ready for JSON; {} if there are no coded columns."""
        if not self:
            return {}
        record: dict[str, Any] = {"coded": [group.record() for group in self.maps]}
        record |= {"features": self.features._asdict()} if self.features else {}
        return record | ({"sequences": self.sequences.record()} if self.sequences else {})

    def __bool__(self) -> bool:
        return bool(self.maps)

    @property
    def p(self) -> int:
        return sum(group.p for group in self.maps)

    @property
    def n_codes(self) -> int:
        """The number of codes that are stored for a row."""
        return sum(group.n_codes for group in self.maps)

    @property
    def row_bytes(self) -> int:
        """The bytes of the codes of a row."""
        return sum(group.n_codes * group.dtype.itemsize for group in self.maps)

    @property
    def factor_bytes(self) -> int:
        """The bytes of the numbers that are held for a row besides its codes: a factor for each spectrum."""
        return sum(8 * len(group.spectra) for group in self.maps if isinstance(group, Strings))

    @property
    def entries(self) -> int:
        """The most nonzeros that a row has in the coded columns."""
        return sum(group.entries for group in self.maps)

    def column_name(self, j: int) -> str:
        """Return the name of coded column j. If there are several groups, it begins with the number of its group."""
        if self.sequences is not None:
            return self.sequences.column_name(j)
        for number, group in enumerate(self.maps):
            if j < group.p:
                return f"{number}/{group.column_name(j)}" if len(self.maps) > 1 else group.column_name(j)
            j -= group.p
        raise IndexError(j)

    def describe(self) -> str:
        if self.sequences is not None:
            return f"sequences of {self.sequences.describe()}"
        sizes = " and ".join(f"{group.n_codes} codes for {group.p} columns" for group in self.maps)
        return f"rows of {sizes}"


NOT_CODED = CodedColumns()
"""That there are no coded columns."""


class ColumnNames(Sequence[str]):
    """The names of p columns, made when they are asked for: there may be millions. `name(j)` is that of column j."""

    def __init__(self, p: int, name: Callable[[int], str]) -> None:
        self._p, self._name = p, name

    def __len__(self) -> int:
        return self._p

    @overload
    def __getitem__(self, j: int) -> str: ...
    @overload
    def __getitem__(self, j: slice) -> list[str]: ...
    def __getitem__(self, j: Any) -> Any:
        if isinstance(j, slice):
            return [self._name(column) for column in range(*j.indices(self._p))]
        return self._name(range(self._p)[j])


PART_ROWS, PART_BYTES = 2**18, 2**26
"""The most rows, and the most bytes, of a part that is written; a part has at least one row."""
Codes = NDArray[np.unsignedinteger]


class StoredPart(NamedTuple):
    """The codes of some rows of a shard that lie in one part."""

    first: int
    last: int  # the rows first..last - 1 of the shard
    at: int  # where the dataset has the first code of the first row
    distance: int  # from a code of a row to its next code: the number of rows of the part


def rows_of_part(code_map: CodeMap) -> int:
    """Return the number of rows of the parts that are written: as many as suit the products, if these are not large."""
    return max(1, min(PART_ROWS, code_map.part_rows, PART_BYTES // (code_map.n_codes * code_map.dtype.itemsize)))


def write_codes(file: h5py.File, codes: Sequence[Codes], coded: CodedColumns, compression: str) -> None:
    """Write the codes of all rows of a shard, an array (rows, codes of a row) for each group, which is there twice."""
    group = file.create_group("codes")
    for number, (array, group_map) in enumerate(zip(codes, coded.maps, strict=True)):
        rows = rows_of_part(group_map)
        try:
            flat = code_rows(array, group_map, [*range(0, len(array), rows), len(array)])
        except ValueError as error:
            raise InputError(f"codes {number}: {error}") from error
        storage.write(group, str(number), flat, compression)
        group[str(number)].attrs["part_rows"] = rows


def part_rows(dataset: h5py.Dataset) -> int:
    """Return the number of rows of the parts of a dataset. Raises InputError unless it is at least 1."""
    rows = hdf5.attribute(dataset, "part_rows")
    if not isinstance(rows, (int, np.integer)) or not 1 <= rows < 2**62:
        raise InputError(f"{dataset.file.filename}: {dataset.name[1:]} has no part_rows of at least 1. Convert again.")
    return int(rows)


def stored_parts(first: int, last: int, rows: int, distance: int, n_codes: int) -> Iterator[StoredPart]:
    """Yield the rows first..last - 1 by the parts of `distance` rows in which they lie, of a shard with `rows` rows."""
    while first < last:
        start = first - first % distance
        stop = min(start + distance, rows)
        end = min(stop, last)
        yield StoredPart(first, end, start * n_codes + first - start, stop - start)
        first = end


def read_part(array: StoredArray, part: StoredPart, out: Codes) -> None:
    """Read the codes of a part's rows into `out` (codes of a row, rows), C-contiguous, of the type of the array."""
    n_codes, rows = out.shape
    if rows == part.distance:
        array.read(part.at, part.at + rows * n_codes, out.reshape(-1))
        return
    for block in range(n_codes):
        start = part.at + block * part.distance
        array.read(start, start + rows, out[block])


def read_all_codes(array: StoredArray, code_map: CodeMap) -> Codes:
    """Return all codes of a shard that was written by `write_codes`, (rows, codes of a row)."""
    n_codes = code_map.n_codes
    rows = array.shape[0] // n_codes
    codes = np.empty((rows, n_codes), code_map.dtype)
    for part in stored_parts(0, rows, rows, rows_of_part(code_map), n_codes):
        codes[part.first : part.last] = array.read(part.at, part.at + part.distance * n_codes).reshape(n_codes, -1).T
    return codes


def wrong_codes(codes: Codes, code_map: CodeMap) -> NDArray[np.bool_]:
    """Return which codes (codes of a row, rows) are neither below their limits nor missing, transposed: by row."""
    limits = code_map.limits()[:, None]
    missing = np.iinfo(codes.dtype).max
    if (limits == limits[0]).all() and limits[0, 0] < missing:  # then one comparison without limits says it
        limits = limits[:1].astype(codes.dtype)
    wrong: NDArray[np.bool_] = (codes >= limits) & (codes != missing)
    return wrong.T
