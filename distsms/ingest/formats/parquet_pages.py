"""The sizes of the pages of a Parquet file, as their headers claim them; pyarrow allocates whatever they claim.

A column of a row group is a sequence of pages, each with a header in Thrift's compact protocol before it. Its second
field is the size of the page in memory, its third the size in the file. The other fields are skipped here.
"""

from __future__ import annotations

from typing import Any, BinaryIO

from distsms.base.errors import InputError
from distsms.base.wording import option

MOST_BYTES = 2**28
"""The largest page that is read. Writers make pages of about 1 MiB, or of a thousand texts if these are longer."""
_HEADER_BYTES = 2**10, 2**20
"""The bytes of a header that are looked at: first so many, and more if it is longer."""
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12


def require_small(file: BinaryIO, column: Any, path: str) -> None:
    """Raise InputError if a page of a column, of one row group of the file at `path`, is larger than `MOST_BYTES`.

    Headers that are damaged are left to pyarrow.
    """
    at = column.data_page_offset
    if column.has_dictionary_page and column.dictionary_page_offset:
        at = min(at, column.dictionary_page_offset)
    end = at + column.total_compressed_size
    while at < end:
        file.seek(at)
        header = file.read(_HEADER_BYTES[0])
        try:
            try:
                fields, length = _struct(header, 0)
            except IndexError:
                header += file.read(_HEADER_BYTES[1])
                fields, length = _struct(header, 0)
            in_memory, in_file = fields[2], fields[3]
        except (LookupError, RecursionError):
            return
        if in_memory > MOST_BYTES:
            raise InputError(
                f"{path}: column {column.path_in_schema!r} has a page of {in_memory} bytes, and at most {MOST_BYTES} "
                f"are read; write it with smaller pages, or leave out the column with {option('drop')}"
            )
        if in_file < 0:
            return
        at += length + in_file


def _struct(data: bytes, at: int) -> tuple[dict[int, int], int]:
    """Return the fields of a struct that are integers, by their numbers, and the place after the struct."""
    fields, number = dict[int, int](), 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        if head & 15 in _INTEGERS:
            fields[number], at = _integer(data, at)
        elif head & 15 not in _BOOLEANS:
            at = _skip(data, at, head & 15)
    return fields, at + 1


def _skip(data: bytes, at: int, kind: int) -> int:
    """Return the place after a value."""
    if kind in (*_BOOLEANS, _BYTE):
        return at + 1
    if kind in _INTEGERS:
        return _varint(data, at)[1]
    if kind == _DOUBLE:
        return at + 8
    if kind == _BINARY:
        length, at = _varint(data, at)
        return at + length
    if kind == _STRUCT:
        return _struct(data, at)[1]
    if kind not in _LISTS:
        raise LookupError(kind)
    length, kind, at = data[at] >> 4, data[at] & 15, at + 1
    if length == 15:
        length, at = _varint(data, at)
    for _ in range(length):
        data[at]
        at = _skip(data, at, kind)
    return at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Return a signed integer, and the place after it."""
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 128:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return value | data[at] << shift, at + 1
