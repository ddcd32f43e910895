"""Which files this rank has read that must be the same for all ranks: a network file system may show some an old one.

`distsms.base.communicator.Communicator.fail_together` compares what the ranks have noted since they last did so.
"""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from distsms.base.files import look_at

_noted = dict[str, str]()


def note(path: str | os.PathLike[str], digest: str) -> None:
    """Remember that a file with this digest was read at this path."""
    _noted[os.fspath(path)] = digest


def note_content(path: str | os.PathLike[str]) -> None:
    """Remember what a file holds. Reads all of it. Raises OSError, or InputError if it is no regular file."""
    look_at(path)
    digest, buffer = xxhash.xxh3_128(), memoryview(bytearray(2**18))  # stays in a cache
    with open(Path(path), "rb", buffering=0) as file:
        while n_bytes := file.readinto(buffer):
            digest.update(buffer[:n_bytes])
    note(path, digest.hexdigest())


def take() -> dict[str, str]:
    taken = dict(_noted)
    _noted.clear()
    return taken
