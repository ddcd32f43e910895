"""Writing of HDF5 files to disks that may fail, and safe reading of files that may be malicious or damaged. HDF5
crashes if a write fails, so an `OutputFile` never does. It follows links, allocates what a header claims, and up to
release 2.0 loops forever on a wrong size in a heap of strings, so these are checked first. All valid files pass.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from distsms.base.errors import InputError
from distsms.base.files import DAMAGED, OutputFile, look_at, naming_failures

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HEAP = b"GCOL\x01"  # the first bytes of a heap of strings; the heap and every object in it has a header of 16 bytes
_PACKED = 1100
"""The most bytes that one byte of a compressed dataset may represent: deflate reaches 1032, Blosc's LZ4 255."""
_ATTRIBUTE_BYTES = 2**16
_FIXED = "iufbS"
"""Kinds of entries whose size is in the header: numbers, truth values, and strings of fixed length."""
_SIZED_BY_SETTINGS = {5, 6}
"""HDF5's filters nbit and scaleoffset, which allocate what their settings in the file claim."""
TEXT_BYTES = 2**27
"""Bytes of strings of variable length that are read at once."""


def versions() -> dict[str, str]:
    return {"h5py": h5py.version.version, "HDF5": h5py.version.hdf5_version}


def write_to(file: OutputFile, mode: str = "w") -> h5py.File:
    """Return an HDF5 file that is written to `file`: a new one, or with mode "r+" the one that it holds."""
    return h5py.File(file, mode)


@contextlib.contextmanager
def write_file(path: str | os.PathLike[str], new: bool = True, durable: bool = True) -> Iterator[h5py.File]:
    """Write an HDF5 file, or add to one if not `new`, `durable` on the disk. Raises InputError if any byte fails."""
    with naming_failures(path):
        if new:
            Path(path).unlink(missing_ok=True)
        file = OutputFile(path, new)
    with file, naming_failures(path, file):
        with write_to(file, "w" if new else "r+") as target:
            yield target
        file.finish(durable)


@contextlib.contextmanager
def open_file(path: str | os.PathLike[str], kind: str) -> Iterator[h5py.File]:
    """Open an HDF5 file of a kind, such as "a model", without locks; errors become an InputError with its name."""
    try:
        look_at(path)
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (OSError, *DAMAGED) as error:
        raise InputError(f"{path}: cannot be read as {kind}; copy it again, or make it again: {error}") from error


def member(file: h5py.File, name: str) -> h5py.Group | h5py.Dataset:
    """Return the group or dataset of this name; InputError if damaged, or if a link would open another file."""
    parts, links = name.encode().split(b"/"), file.id.links
    paths = [b"/".join(parts[: k + 1]) for k in range(len(parts))]
    try:
        if all(path in file.id and links.get_info(path).type == h5py.h5l.TYPE_HARD for path in paths):
            return file[name]
    except (LookupError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{file.filename}: '{name}' is damaged: {error}") from error
    raise InputError(f"{file.filename}: has no dataset '{name}', or its data are in another file.")


def dataset(file: h5py.File, name: str, packed: bool = True, strings: bool = False) -> h5py.Dataset:
    """Return the dataset of this name, unread. Raises InputError if it is a link or a view, or claims an impossible
    shape (more than the file unless `packed`), entries without a fixed size but `strings` for `texts`, or filters of
    any memory.
    """
    item = member(file, name)
    settings = item.id.get_create_plist() if isinstance(item, h5py.Dataset) else None
    if settings is None or settings.get_external_count() or settings.get_layout() == h5py.h5d.VIRTUAL:
        raise InputError(f"{file.filename}: has no dataset '{name}', or its data are in another file.")
    if item.dtype.kind not in _FIXED and not (strings and h5py.check_string_dtype(item.dtype) is not None):
        raise InputError(f"{file.filename}: '{name}' has entries of the type {item.dtype}, not numbers.")
    filters = [settings.get_filter(k)[0] for k in range(settings.get_nfilters())]
    if len(set(filters)) < len(filters) or _SIZED_BY_SETTINGS & set(filters):
        raise InputError(f"{file.filename}: '{name}' is packed in a way that is not read; h5repack -f NONE undoes it.")
    claims = math.prod(item.shape or (0,)), math.prod(item.chunks or (0,))
    if max(claims) * item.dtype.itemsize > most_bytes(file, packed and item.chunks is not None):
        raise InputError(f"{file.filename}: '{name}' claims the shape {item.shape}, for which the file is too small.")
    return item


def most_bytes(file: h5py.File, packed: bool = True) -> int:
    """Return the most bytes that the arrays of a file, compressed or not, can have together."""
    return os.path.getsize(file.filename) * (_PACKED if packed else 1)


def texts(strings: h5py.Dataset, rows: slice, longest: int) -> list[str]:
    """Return these rows of a dataset of strings, the largest of which has `longest` bytes, as `check_heaps` says."""
    # Rows may share one string of the heap, of which HDF5 makes copies. So few are read at a time, and counted.
    start, stop, _ = rows.indices(len(strings))
    step, read, total = max(1, TEXT_BYTES // max(longest, strings.dtype.itemsize)), list[str](), 0
    for first in range(start, stop, step):
        read += strings.asstr()[first : min(first + step, stop)].tolist()
        total += sum(map(len, read[first - start :]))
        if strings.dtype.kind == "O" and total > os.path.getsize(strings.file.filename):
            raise InputError(f"{strings.file.filename}: '{strings.name[1:]}' has strings larger than the file.")
    return read


def checksum(contents: Mapping[str, Any]) -> np.bytes_:
    """Return the SHA-256 of arrays, texts and whole numbers by their names, in hex digits, for an attribute."""
    digest = hashlib.sha256()
    for name, value in sorted(contents.items()):
        array = value if isinstance(value, np.ndarray) else np.frombuffer(str(value).encode(), np.uint8)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).data)
    return np.bytes_(digest.hexdigest())


def require_checksum(written: Any, contents: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Raise InputError if `written`, an attribute, is a checksum, and not that of the contents."""
    if isinstance(written, bytes) and written != checksum(contents):
        raise InputError(f"{path}: is damaged: its content is not what was written (SHA-256 differs); copy it again")


def attribute(item: h5py.Group | h5py.Dataset, name: str, text: bool = False) -> Any:
    """Return an attribute of numbers, fixed bytes or, with `text`, a string; None for any other."""
    if name not in item.attrs:
        return None
    stored = item.attrs.get_id(name)
    kind, n = stored.get_type(), stored.get_space().get_simple_extent_npoints()
    if isinstance(kind, h5py.h5t.TypeStringID) and kind.is_variable_str():
        allowed = text and n == 1
    else:
        numbers = h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID, h5py.h5t.TypeEnumID
        allowed = isinstance(kind, (*numbers, h5py.h5t.TypeStringID)) and kind.get_size() * n <= _ATTRIBUTE_BYTES
    return item.attrs[name] if allowed else None


def check_heaps(
    path: str | os.PathLike[str], otherwise: str = "cannot be read as HDF5; copy it again, or make it again"
) -> int:
    """Raise InputError unless the file is HDF5 without a damaged heap; return the bytes of the largest object there."""
    largest = 0
    try:
        look_at(path)
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            sizes = content[13:15] if content[8:9] in (b"\0", b"\1") else content[9:11]
            if content[:8] != _SIGNATURE or sizes != b"\x08\x08":
                raise InputError(f"{path}: {otherwise}")
            at = content.find(_HEAP)
            while at >= 0:
                largest = max(largest, _check_heap(content, at, path))
                at = content.find(_HEAP, at + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as HDF5: {error}") from error
    return largest


def _check_heap(content: mmap.mmap, start: int, path: str | os.PathLike[str]) -> int:
    """Check that a heap's objects follow one another to its end, as for HDF5; return the size of the largest."""
    largest, end = 0, start + int.from_bytes(content[start + 8 : start + 16], "little")
    if end > len(content):
        return 0  # not a heap: HDF5 refuses objects that extend beyond the file
    at = start + 16
    while at + 16 <= end:
        number = int.from_bytes(content[at : at + 2], "little")
        size = int.from_bytes(content[at + 8 : at + 16], "little")
        step = size if number == 0 else 16 + -(-size // 8) * 8  # number 0: the remaining space, with its header
        if not 16 <= step <= end - at:
            raise InputError(f"{path}: is damaged: a heap of strings is broken at byte {at}; copy it again")
        largest, at = max(largest, size if number else 0), at + step
    return largest
