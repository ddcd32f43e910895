"""Prepare a directory for a data set, and publish the finished shards: give them their names, and write the manifest.

Files of an old data set in the directory keep their names until the new one is complete, whose files get other names.
Then one step exchanges the manifests: before it, the directory holds the old data set, and after it the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from distsms.base._version import __version__
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import LOCK, exclusive, look_at, sync
from distsms.base.output_file import OutputFile, naming_failures
from distsms.base.wording import option
from distsms.matrix.normalization import Normalization
from distsms.shards.coded_columns import NOT_CODED, CodedColumns
from distsms.shards.column_options import ColumnReport
from distsms.shards.entries_in_memory import RowsInMemory
from distsms.shards.manifest import (
    CODED_VERSION,
    FEATURES,
    FORMAT,
    MANIFEST,
    NOT_NORMALIZED,
    TABLE_VERSION,
    VERSION,
    Manifest,
    Shard,
    features_name,
    normalization_record,
    parse_manifest,
    read_manifest,
    sealed,
)
from distsms.shards.table_schema import Table

PARTIAL = ".partial"
WIDE = 1000
_SHARD_NAME = re.compile(r"shard-\d{5,}(-[0-9a-f]{8})?\.h5")
_FEATURES_NAME = re.compile(r"features(-[0-9a-f]{8})?\.h5")
FEATURES_FOLDER = "features"
"""The folder, in that of a data set, with the features that a search has made of it."""
FEATURES_PARTIAL = FEATURES + PARTIAL
"""The name of the file of the feature map until `publish`."""
_DEFAULTS = {"ids": False, "compression": "none"}  # values that the manifest does not mention


def shard_name(number: int) -> str:
    """Return the name of a shard. While it is written, `PARTIAL` is appended."""
    return f"shard-{number:05d}.h5"


def shard_names(directory: Path, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the final names of finished shards: the numbers, and a checksum if there are others already. Local."""
    names = [shard_name(number) for number in range(len(entries))]
    if not _own_files(directory):
        return names
    return [name.replace(".h5", f"-{entry['sha256'][:8]}.h5") for name, entry in zip(names, entries, strict=True)]


def check_free(directory: Path, overwrite: bool = False) -> None:
    """Raise InputError if the directory holds a data set and `overwrite` is False. Local."""
    if (directory / MANIFEST).exists() and not overwrite:
        raise InputError(f"{directory}: holds a data set already; name another, or replace it ({option('overwrite')}).")


def prepare(directory: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Make the directory ready for `stage_shard`: create it, and remove what a killed conversion left. Local: one rank.
    An old data set stays complete and usable until `publish`."""
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}: the directory cannot be created: {error.strerror}") from error
    check_free(directory, overwrite)
    for path in directory.glob(f"*{PARTIAL}"):
        if _SHARD_NAME.fullmatch(path.stem) or path.name in (MANIFEST + PARTIAL, FEATURES_PARTIAL):
            path.unlink(missing_ok=True)


def publish(
    directory: str | os.PathLike[str], entries: Iterable[Mapping[str, Any]], **manifest_fields: Any
) -> Manifest:
    """Make finished shards the data set of the directory, in the place of an old one; see `complete`. Local."""
    return exchange([complete(directory, entries, **manifest_fields)])[0]


def exchange(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Give complete data sets the places of old ones; manifests of several parts go first. Local."""
    for manifest in manifests[1:]:
        if os.path.lexists(manifest.path):  # also true for a broken symbolic link
            manifest.path.unlink()
            sync(manifest.directory)
    for manifest in manifests:
        with naming_failures(manifest.path):
            os.replace(manifest.directory / (MANIFEST + PARTIAL), manifest.path)
            sync(manifest.directory)
    for manifest in manifests:
        _keep(manifest.directory, _files_of(manifest))
    return list(manifests)


def _own_files(directory: Path) -> set[str]:
    names = {path.name for path in directory.glob("*.h5")}
    return {name for name in names if _SHARD_NAME.fullmatch(name) or _FEATURES_NAME.fullmatch(name)}


def _files_of(manifest: Manifest) -> set[str]:
    features = {manifest.features_path.name} if manifest.coded.features else set()
    return {shard.file for shard in manifest.shards} | features


def _keep(directory: Path, names: Collection[str]) -> None:
    for name in _own_files(directory).difference(names):
        (directory / name).unlink(missing_ok=True)


def remove_features_of(directory: Path) -> None:
    """Remove the features that a search has made of a data set that is replaced, but nothing else. Local."""
    folder = directory / FEATURES_FOLDER
    if (folder / MANIFEST).exists() and read_manifest(folder).coded.features:
        (folder / MANIFEST).unlink()
        _keep(folder, ())
        (folder / LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something else is in it
            folder.rmdir()


def complete(
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
    in_memory: RowsInMemory | None = None,
) -> Manifest:
    """Complete a data set, for `exchange`: name its files, and write its manifest to a `PARTIAL` file. The root calls
    this with what `finish_shard` returned on all ranks, in the order of the rows. An old data set stays."""
    directory, entries = Path(directory), list(entries)
    named = [{**entry, "file": name} for entry, name in zip(entries, shard_names(directory, entries), strict=True)]
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
    manifest = parse_manifest(record, directory, in_memory)  # refuses what could not be read back
    # Without an indent JSON is written faster, which matters if there are very many columns.
    text = json.dumps(record, indent=1 if max(len(columns or ()), manifest.p) < WIDE else None)
    with naming_failures(manifest.path):
        file = OutputFile(directory / (MANIFEST + PARTIAL))
    with contextlib.closing(file), naming_failures(manifest.path, file):
        file.write(sealed(text))
        file.finish()
    renamed = {entry["staged"]: entry["file"] for entry in named}
    if coded.features:
        renamed[FEATURES_PARTIAL] = features_name(coded.features) if _own_files(directory) else FEATURES
    with naming_failures(directory):
        for staged, name in renamed.items():
            os.replace(directory / staged, directory / name)
        sync(directory)
    return manifest


def verify(directory: str | os.PathLike[str]) -> list[str]:
    """Recompute the checksum of every shard; return a message for each file that is missing or damaged. Local."""
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


def file_sha256(path: Path, appended: bytes = b"") -> str:
    """Return the SHA-256 checksum of a file, followed by other bytes, in hex digits."""
    look_at(path)
    digest, buffer = hashlib.sha256(), memoryview(bytearray(2**18))  # stays in a cache
    with open(path, "rb", buffering=0) as file:
        while n_bytes := file.readinto(buffer):
            digest.update(buffer[:n_bytes])
    digest.update(appended)
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
    """Hold a directory while the body writes a data set; its files are removed if that fails. **Collective.**"""
    with contextlib.ExitStack() as lock:
        with comm.fail_together():
            if comm.is_root:
                lock.enter_context(exclusive(Path(directory)))
                prepare(directory, overwrite)
                old = _own_files(Path(directory))
        try:
            yield
        except (InputError, OSError):
            if comm.is_root:
                _tidy(directory, old)
            raise


def _tidy(directory: str | os.PathLike[str], old: Collection[str]) -> None:
    """Remove what a failed conversion wrote, but for `old` files and a manifest's, and the directory if it is empty."""
    with contextlib.suppress(OSError, InputError):
        # The manifest is the old one, or the new one if only the removal of old files has failed.
        named = _files_of(read_manifest(directory)) if Path(directory, MANIFEST).exists() else set[str]()
        prepare(directory, overwrite=True)
        _keep(Path(directory), {*old, *named})
        (Path(directory) / LOCK).unlink(missing_ok=True)
        os.rmdir(directory)
