"""The files that arguments stand for: names of files, patterns such as `day-*.csv`, or folders of tables.

All ranks must see the same ones, since each of them reads a part.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

from distsms.base import addresses
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import FileState, note_content
from distsms.ingest.formats.registry import format_of
from distsms.shards.manifest import MANIFEST


def are_files(words: Sequence[str]) -> bool:
    """Return whether the words stand for files, or folders of tables, rather than for a data set. Local."""
    if len(words) > 1 or addresses.is_address(words[0]) or _is_pattern(words[0]) or os.path.isfile(words[0]):
        return True
    return bool(_tables_in(words[0])) or (format_of(words[0]) == "table" and not os.path.isdir(words[0]))


def is_data_set(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a folder, but not one of tables: a data set, or what is refused as one. Local."""
    return os.path.isdir(path) and not _tables_in(os.fspath(path))


def files_of(word: str | os.PathLike[str]) -> list[str]:
    """Return the files that a name of rows stands for, as `expand` does; that of a data set alone. Local."""
    return [os.fspath(word)] if is_data_set(word) else expand([os.fspath(word)])


def expand(words: Sequence[str]) -> list[str]:
    """Return the files that the words stand for; those of a pattern or a folder are sorted by name. Local."""
    paths = []
    for word in map(addresses.local_path, words):
        if addresses.is_address(word):
            matches = addresses.expand(word) if "*" in addresses.without_query(word) else [word]
            if not matches:
                raise InputError(f"{word}: no file at this address fits the pattern; check the folder and the name")
            paths += matches
            continue
        matches = sorted(glob.glob(word)) if _is_pattern(word) else [word]
        files = [file for match in matches for file in (_tables_in(match) if os.path.isdir(match) else [match])]
        if not files:
            folder = "is a folder without CSV or Parquet files; give one data set, or files"
            raise InputError(f"{word}: {'there is no such file' if _is_pattern(word) else folder}")
        paths += files
    return paths


def states(inputs: Sequence[str | os.PathLike[str]], *others: str | os.PathLike[str] | None) -> list[FileState]:
    """Return the states of the inputs, and of those others that are files. Local."""
    files = [path for path in others if path is not None and os.path.isfile(path)]
    return [FileState(path) for path in (*inputs, *files)]


def require_common(files: Sequence[FileState], comm: Communicator) -> None:
    """Raise InputError on all ranks unless they see the same files; copies are read and compared. **Collective.**"""
    of_ranks = comm.allgather([file.seen for file in files])
    with comm.fail_together():
        for file, *seen in zip(files, *of_ranks, strict=True):
            if len({size for size, _, _ in seen}) > 1:  # then the ranks would divide the file differently
                raise InputError(f"{file.path}: is being written: its size is not the same on all ranks. Try again")
            if len(set(seen)) > 1:
                note_content(file.path)


def _is_pattern(word: str) -> bool:
    return glob.has_magic(word) and not os.path.exists(word)


def _tables_in(folder: str) -> list[str]:
    """Return the tables in a folder, and in its folders COLUMN=VALUE; none if it is a data set, or no folder."""
    if not os.path.isdir(folder) or os.path.exists(os.path.join(folder, MANIFEST)):
        return []
    tables = list[str]()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.startswith((".", "_")):
            tables += _tables_in(path) if "=" in name else [path] if format_of(name) == "table" else []
    return tables
