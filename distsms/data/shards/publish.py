"""Prepare a directory for a data set, and publish the finished shards: give them their names, and write the manifest.

The order of the steps ensures that a directory never has the manifest of one data set and the shards of another.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from distsms._version import __version__
from distsms.data.coded_columns import NOT_CODED, CodedColumns
from distsms.data.formats.column_options import ColumnReport
from distsms.data.formats.table_schema import Table
from distsms.data.shards.manifest import (
    CODED_VERSION,
    FEATURES,
    FORMAT,
    MANIFEST,
    NOT_NORMALIZED,
    TABLE_VERSION,
    VERSION,
    Manifest,
    Shard,
    normalization_record,
    parse_manifest,
    read_manifest,
)
from distsms.errors import InputError
from distsms.matrix.normalization import Normalization
from distsms.parallel.communicator import Communicator
from distsms.utils.files import LOCK, atomic_write, exclusive, look_at, sync

PARTIAL = ".partial"
WIDE = 1000
_SHARD_NAME = re.compile(r"shard-\d{5,}\.h5")
_DEFAULTS = {"ids": False, "compression": "none"}  # values that the manifest does not mention


def shard_name(number: int) -> str:
    """Return the final name of a shard. While it is written, `PARTIAL` is appended."""
    return f"shard-{number:05d}.h5"


def check_free(directory: Path, overwrite: bool = False) -> None:
    """Raise InputError if the directory holds a data set and `overwrite` is False. Local."""
    if (directory / MANIFEST).exists() and not overwrite:
        raise InputError(f"{directory}: holds a data set already; name another directory, or replace it (--overwrite).")


def prepare(directory: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Make the directory ready for `stage_shard`: create it, and remove what a killed conversion left. Local: one rank.

    Raises InputError if the directory holds a data set and `overwrite` is False. An old data set stays complete and
    usable until `publish`.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}: the directory cannot be created: {error.strerror}") from error
    check_free(directory, overwrite)
    for path in directory.glob(f"*{PARTIAL}"):
        if _SHARD_NAME.fullmatch(path.stem) or path.stem in (MANIFEST, FEATURES):
            path.unlink(missing_ok=True)


def publish(
    directory: str | os.PathLike[str],
    entries: Iterable[Mapping[str, Any]],
    *,
    label_map: Mapping[str, Any],
    zero_based: bool,
    source: Iterable[Mapping[str, Any]] = (),
    table: Table | None = None,
    normalization: Normalization = NOT_NORMALIZED,
    split: Mapping[str, Any] | None = None,
    statistics: Mapping[str, Mapping[str, Any]] | None = None,
    columns: Sequence[ColumnReport] | None = None,
    coded: CodedColumns = NOT_CODED,
) -> Manifest:
    """Make finished shards a data set. Local: one rank (the root), after all ranks have finished theirs.

    Parameters
    ----------
    directory : path
        Where the shards were staged.
    entries : iterable of mapping
        The results of `finish_shard`, in the order of the rows. The shards are numbered in this order.
    label_map, zero_based, source, table, normalization, split
        See `Manifest`.
    statistics : mapping, optional
        What the manifest says about groups, times and equal rows, from `groupby.group_statistics`.
    columns : sequence of ColumnReport, optional
        How the columns of a table were interpreted.
    coded : CodedColumns
        The coded columns. If a feature map made them, the file of the map is there, under its name with `PARTIAL`.

    Returns
    -------
    Manifest
        The data set.

    Raises
    ------
    InputError
        If there is not a single row. Nothing is changed then.

    Notes
    -----
    If the directory held a data set, this function removes it. Its manifest is removed first, so that the directory
    never has the manifest of one data set and the shards of another. Its shards are replaced or removed.
    """
    directory = Path(directory)
    named = [{**entry, "file": shard_name(number)} for number, entry in enumerate(entries)]
    record = _summed(named)
    record |= {"label_map": dict(label_map), "zero_based": zero_based, "source": [dict(file) for file in source]}
    if not record["n"]:
        raise InputError(f"{directory}: there is no row to write; a data set needs at least one")
    record |= {} if table is None else {"version": TABLE_VERSION, "table": table.as_json()}
    record |= {"version": VERSION if coded.features else CODED_VERSION, **coded.record()} if coded else {}
    record |= {} if columns is None else {"columns": [dict(vars(report)) for report in columns]}
    record |= normalization_record(normalization)
    more = {"split": split, **(statistics or {})}
    record |= {name: dict(value) for name, value in more.items() if value is not None}
    manifest = parse_manifest(record, directory)  # refuses what could not be read back
    withdraw(directory)
    names = {shard.file for shard in manifest.shards}
    for entry in named:
        os.replace(directory / entry["staged"], directory / entry["file"])
    for path in directory.glob("shard-*.h5"):
        if _SHARD_NAME.fullmatch(path.name) and path.name not in names:
            path.unlink()
    if coded.features:
        os.replace(directory / (FEATURES + PARTIAL), directory / FEATURES)
    else:
        (directory / FEATURES).unlink(missing_ok=True)
    sync(directory)
    with atomic_write(manifest.path) as file:
        # Without an indent JSON is written faster, which matters if there are very many columns.
        file.write(json.dumps(record, indent=1 if max(len(columns or ()), manifest.p) < WIDE else None).encode())
    return manifest


def withdraw(directory: Path) -> None:
    """Remove the manifest, so that the directory is no longer a data set. Local."""
    if os.path.lexists(directory / MANIFEST):  # also true for a broken symbolic link, which writing would follow
        (directory / MANIFEST).unlink()
        sync(directory)


def verify(directory: str | os.PathLike[str]) -> list[str]:
    """Recompute the checksum of every shard, and return a message for each file that is missing or damaged.

    Local; reads all bytes. Raises InputError if the manifest itself cannot be used.
    """
    manifest = read_manifest(directory)
    problems = []
    for shard in manifest.shards:
        try:
            path = manifest.checked_path(shard)
            if file_sha256(path) != shard.sha256:
                raise InputError(f"{path}: its content is not what was written (SHA-256 differs from {MANIFEST}).")
        except (InputError, OSError) as error:
            problems.append(str(error))
    return problems


def file_sha256(path: Path, more: bytes = b"") -> str:
    """Return the SHA-256 checksum of a file, followed by `more` bytes, in hex digits."""
    look_at(path)
    digest, buffer = hashlib.sha256(), memoryview(bytearray(2**18))  # stays in a cache
    with open(path, "rb", buffering=0) as file:
        while n_bytes := file.readinto(buffer):
            digest.update(buffer[:n_bytes])
    digest.update(more)
    return digest.hexdigest()


def _summed(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the manifest's record of the shards: their entries, the sums, and what they have in common."""
    if len({entry["staged"] for entry in entries}) < len(entries):
        raise ValueError("two shards are one file")
    record: dict[str, Any] = {"format": FORMAT, "version": 1, "creator": f"distsms {__version__}"}
    record["n"] = sum(entry["rows"] for entry in entries)
    record |= {name: sum(entry[name] for entry in entries) for name in ("nnz", "n_pos", "n_neg")}
    for name in ("p", "layout", "dtype", "weights", *_DEFAULTS):
        kinds = {entry[name] for entry in entries}
        if len(kinds) > 1:
            raise ValueError(f"shards differ in {name}: {sorted(map(str, kinds))}")
        record[name] = kinds.pop() if kinds else None
    for name, default in _DEFAULTS.items():
        if record[name] in (default, None):
            del record[name]
    names = [field.name for field in fields(Shard)]
    record["shards"] = [{name: entry[name] for name in names} for entry in entries]
    return record


@contextlib.contextmanager
def writing(directory: str | os.PathLike[str], comm: Communicator, overwrite: bool) -> Iterator[None]:
    """Hold a directory while the body stages, finishes and publishes the shards of a new data set. **Collective.**

    Only one job at a time may write to a directory; a second job gets an InputError. If the body raises InputError, the
    files that it wrote are removed, and so is the directory if it is then empty. An old data set is kept.
    """
    with contextlib.ExitStack() as lock:
        with comm.fail_together():
            if comm.is_root:
                lock.enter_context(exclusive(Path(directory)))
                prepare(directory, overwrite)
        try:
            yield
        except InputError:
            if comm.is_root:
                _tidy(directory)
            raise


def _tidy(directory: str | os.PathLike[str]) -> None:
    """Remove what a failed conversion wrote, and the directory if nothing else is in it."""
    with contextlib.suppress(OSError, InputError):
        prepare(directory, overwrite=True)
        (Path(directory) / LOCK).unlink(missing_ok=True)
        os.rmdir(directory)
