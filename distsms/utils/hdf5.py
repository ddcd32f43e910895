"""HDF5 files that somebody else may have written, or damaged: looked at before HDF5's library believes what they say.

The library follows links out of a file, claims whatever memory a header asks for, and (to its release 2.0) never comes
back from a heap of strings in which one size is wrong. What is refused here is what no sound file has.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Iterator
from typing import Any

import h5py

from distsms.errors import InputError

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HEAP = b"GCOL\x01"  # how a heap of strings begins; its header is of 16 bytes, like that of every object in it
_PACKED = 1100
"""Bytes that one byte of a compressed dataset may stand for: deflate reaches 1032, Blosc's LZ4 255."""
_ATTRIBUTE_BYTES = 2**16


def versions() -> dict[str, str]:
    """Return the versions of h5py and of the HDF5 library."""
    return {"h5py": h5py.version.version, "HDF5": h5py.version.hdf5_version}


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], kind: str, mode: str = "r") -> Iterator[h5py.File]:
    """An HDF5 file without locks; what HDF5 and h5py have to say against it becomes an InputError with its name."""
    try:
        with h5py.File(path, mode, locking=False) as file:
            yield file
    except (
        OSError,
        EOFError,
        RuntimeError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:
        verb = f"read as {kind}; copy it again, or make it again" if mode == "r" else "written"
        raise InputError(f"{path}: cannot be {verb}: {error}") from error


def dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """The dataset of this name if it lies in the file itself, and is not larger than what is stored of it can be.

    Raises InputError for links to another place, views of other files and headers that lie. Reads no data.
    """
    parts = name.split("/")
    own = all(isinstance(file.get("/".join(parts[: k + 1]), getlink=True), h5py.HardLink) for k in range(len(parts)))
    found = file[name] if own else None
    if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual:
        raise InputError(f"{file.filename}: has no dataset '{name}' of its own.")
    size = os.path.getsize(file.filename)
    claims = math.prod(found.shape or (0,)), math.prod(found.chunks or (0,))
    if max(claims) * found.dtype.itemsize > (size if found.chunks is None else _PACKED * size):
        raise InputError(f"{file.filename}: '{name}' claims the shape {found.shape}, for which the file is too small.")
    return found


def attribute(item: h5py.Group | h5py.Dataset, name: str, text: bool = False) -> Any:
    """An attribute, numbers or bytes of fixed length, or None; one of another type, which is not ours, is none.

    text : take a single string of variable length, too, of a file whose heaps were checked.
    """
    if name not in item.attrs:
        return None
    found = item.attrs.get_id(name)
    kind, n = found.get_type(), found.get_space().get_simple_extent_npoints()
    if isinstance(kind, h5py.h5t.TypeStringID) and kind.is_variable_str():
        allowed = text and n == 1
    else:
        numbers = h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID, h5py.h5t.TypeEnumID
        allowed = isinstance(kind, (*numbers, h5py.h5t.TypeStringID)) and kind.get_size() * n <= _ATTRIBUTE_BYTES
    return item.attrs[name] if allowed else None


def check_heaps(path: str | os.PathLike[str]) -> None:
    """Raise InputError if the file is not HDF5, or has a heap of strings in which HDF5 would search for ever.

    To be called before strings of variable length are read. Local; looks through the whole file once.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            sizes = content[13:15] if content[8:9] in (b"\0", b"\1") else content[9:11]
            if content[:8] != _SIGNATURE or sizes != b"\x08\x08":
                raise InputError(f"{path}: cannot be read as HDF5; copy it again, or make it again")
            at = content.find(_HEAP)
            while at >= 0:
                _check_heap(content, at, path)
                at = content.find(_HEAP, at + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as HDF5: {error}") from error


def _check_heap(content: mmap.mmap, start: int, path: str | os.PathLike[str]) -> None:
    """Whether the objects of a heap follow each other to its end, as HDF5 will go through them."""
    end = start + int.from_bytes(content[start + 8 : start + 16], "little")
    if end > len(content):
        return  # no heap: HDF5 refuses what leads out of the file
    at = start + 16
    while at + 16 <= end:
        number, size = (
            int.from_bytes(content[at : at + 2], "little"),
            int.from_bytes(content[at + 8 : at + 16], "little"),
        )
        step = size if number == 0 else 16 + -(-size // 8) * 8  # number 0: the space that is left, with its header
        if not 16 <= step <= end - at:
            raise InputError(f"{path}: is damaged: a heap of strings is broken at byte {at}; copy it again")
        at += step
