"""Find the files that arguments stand for: names of files, patterns such as `day-*.csv`, or folders of tables."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence

from distsms.data.formats.registry import format_of
from distsms.data.shards.manifest import MANIFEST
from distsms.errors import InputError


def are_files(words: Sequence[str]) -> bool:
    """Return whether the words stand for files, or folders of tables, rather than for a data set. Local."""
    if len(words) > 1 or _is_pattern(words[0]) or os.path.isfile(words[0]):
        return True
    return bool(_tables_in(words[0])) or (format_of(words[0]) == "table" and not os.path.isdir(words[0]))


def is_data_set(word: str | os.PathLike[str]) -> bool:
    """Return whether rows to score are read as a data set: those of a folder without tables. Local."""
    return os.path.isdir(word) and not _tables_in(os.fspath(word))


def files_of(word: str | os.PathLike[str]) -> list[str]:
    """Return the files that a name of rows stands for, as `expand` does; that of a data set alone. Local."""
    return [os.fspath(word)] if is_data_set(word) else expand([os.fspath(word)])


def expand(words: Sequence[str]) -> list[str]:
    """Return the files that the words stand for. Those of a pattern or a folder are sorted by name. Local.

    Raises InputError for a pattern that no file matches, and for a folder without tables, such as a data set.
    """
    found = []
    for word in words:
        matches = sorted(glob.glob(word)) if _is_pattern(word) else [word]
        files = [file for match in matches for file in (_tables_in(match) if os.path.isdir(match) else [match])]
        if not files and _is_pattern(word):
            raise InputError(f"{word}: there is no such file")
        if not files:
            raise InputError(
                f"{word}: is a folder without CSV or Parquet files; give one data set, or files, but not both"
            )
        found += files
    return found


def _is_pattern(word: str) -> bool:
    return glob.has_magic(word) and not os.path.exists(word)


def _tables_in(folder: str) -> list[str]:
    """Return the tables in a folder, and in its folders COLUMN=VALUE; none if it is a data set, or no folder."""
    if not os.path.isdir(folder) or os.path.exists(os.path.join(folder, MANIFEST)):
        return []
    found = list[str]()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.startswith((".", "_")):
            found += _tables_in(path) if "=" in name else [path] if format_of(name) == "table" else []
    return found
