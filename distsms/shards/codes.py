"""Codes in a shard: written and read in parts of rows, block by block.

The group `codes` has a one-dimensional dataset for each group of coded columns: `codes/0`, `codes/1` and so on. Its
attribute `part_rows` is the number of rows R of a part; the last part of a shard has fewer. A part holds the first code
of each of its rows, then the second code of each of them, and so on. So the codes of rows 0..R - 1, with B codes each,
are `dataset[: R * B].reshape(B, R).T`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from distsms.base import hdf5
from distsms.base.errors import InputError
from distsms.matrix.code_maps import CodeMap
from distsms.matrix.coded import code_rows
from distsms.shards import storage
from distsms.shards.coded_columns import CodedColumns
from distsms.shards.storage import StoredArray

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


def write(file: h5py.File, codes: Sequence[Codes], coded: CodedColumns, compression: str) -> None:
    """Write the codes of all rows of a shard, an array (rows, codes of a row) for each group, which is there twice."""
    group = file.create_group("codes")
    for number, (array, code_map) in enumerate(zip(codes, coded.maps, strict=True)):
        rows = rows_of_part(code_map)
        try:
            flat = code_rows(array, code_map, [*range(0, len(array), rows), len(array)])
        except ValueError as error:
            raise InputError(f"{file.filename}: codes {number}: {error}") from error
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


def read_rows(array: StoredArray, code_map: CodeMap) -> Codes:
    """Return all codes of a shard that was written by `write`, (rows, codes of a row)."""
    n_codes = code_map.n_codes
    rows = array.shape[0] // n_codes
    codes = np.empty((rows, n_codes), code_map.dtype)
    for part in stored_parts(0, rows, rows, rows_of_part(code_map), n_codes):
        codes[part.first : part.last] = array.take(part.at, part.at + part.distance * n_codes).reshape(n_codes, -1).T
    return codes


def wrong_codes(codes: Codes, code_map: CodeMap) -> NDArray[np.bool_]:
    """Return which codes (codes of a row, rows) are neither below their limits nor missing, transposed: by row."""
    limits = code_map.limits()[:, None]
    missing = np.iinfo(codes.dtype).max
    if (limits == limits[0]).all() and limits[0, 0] < missing:  # then one comparison without limits says it
        limits = limits[:1].astype(codes.dtype)
    wrong: NDArray[np.bool_] = (codes >= limits) & (codes != missing)
    return wrong.T
