"""The manifest of a data set: which shards belong to it, and what is known of them. Plain JSON, no HDF5.

A data set is a directory with `manifest.json` and `shard-00000.h5`, ... (`distsms.data.shards.dataset` says what is in
those). The
manifest is written last and atomically, so a directory without one is not a data set, whatever else it holds.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from distsms._version import __version__
from distsms.data.formats.table_schema import Table
from distsms.data.row_metadata import DATES, EARLIEST, LATEST, NUMBERS
from distsms.errors import InputError
from distsms.matrix.normalization import BY_COLUMN, KINDS, Normalization
from distsms.utils.files import atomic_write, sync

FORMAT = "distsms-shards"
VERSION = 1
MANIFEST = "manifest.json"
PARTIAL = ".partial"
COMPRESSIONS = ("none", "blosc-lz4")
EXPANSION = 256
"""Bytes that LZ4 can make of one, or more."""
_AS_THEY_ARE = Normalization()
_SHARD = re.compile(r"shard-\d{5,}\.h5")
_USUAL = {"ids": False, "compression": "none"}  # what the manifest does not mention
_FOUND: dict[str, dict[str, Any]] = {  # what may be known of the rows besides
    "group": {"column": str, "groups": int, "largest": int},
    "time": {"column": str, "kind": str, "first": float, "last": float},
    "doubles": dict.fromkeys(("different", "rows", "largest", "contradicting"), int),
}
_WORDS = {int: "a count", str: "a string", bool: "true or false", list: "a list", dict: "an object", float: "a number"}


@dataclass(frozen=True)
class Shard:
    """What the manifest says of one shard. `columns` is the largest column used, plus one."""

    file: str
    rows: int
    nnz: int
    n_pos: int
    n_neg: int
    columns: int
    bytes: int
    sha256: str
    values: bool  # False: every stored value is 1 and none is in the file


@dataclass(frozen=True)
class Manifest:
    """A data set as a whole; all counts are global. `shards` are in the order of the rows."""

    directory: Path = field(compare=False)
    n: int
    p: int
    nnz: int
    n_pos: int
    n_neg: int
    layout: str  # "csr" or "dense"
    dtype: str  # of the values in the files: "float32" or "float64"
    weights: bool
    label_map: dict[str, Any]  # original label, or list of them, of each class: {"+1": 1.0, "-1": 0.0}
    zero_based: bool  # how the source counted columns; the files count from zero
    source: tuple[dict[str, Any], ...]  # {"name": ..., "bytes": ...} of what was converted
    shards: tuple[Shard, ...]
    creator: str
    ids: bool = False  # whether the rows have names
    table: Table | None = None  # the columns and categories that the features were made of; None: numbered columns
    normalization: Normalization = _AS_THEY_ARE  # for training; the files hold the rows as they were
    split: dict[str, Any] | None = None  # if this is a part of the input: see `distsms.data.splits`
    compression: str = "none"  # of the arrays in the files: see `distsms.data.shards.storage`
    group: dict[str, Any] | None = None  # if the rows have groups: {"column", "groups": how many, "largest": its rows}
    time: dict[str, Any] | None = (
        None  # if they have times: {"column", "kind": see `distsms.data.row_metadata`, "first", "last"}
    )
    doubles: dict[str, int] | None = None  # what `doubles.count` found, where they were counted

    @property
    def path(self) -> Path:
        """The manifest's own file."""
        return self.directory / MANIFEST

    @property
    def fingerprint(self) -> str:
        """64 hex digits that identify the data wherever they lie: sizes, label counts and checksums of the shards."""
        identity = [FORMAT, self.n, self.p, self.nnz, self.n_pos, self.n_neg, [shard.sha256 for shard in self.shards]]
        if how := _normalization_record(self.normalization):
            identity.append(how)
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def column_name(self, column: int) -> str:
        """A zero-based column as the source of the data counts it, or calls it."""
        if self.table is not None:
            return repr(self.table.features[column])
        return f"{column} (counted from 0)" if self.zero_based else f"{column + 1} (counted from 1)"

    def checked_path(self, shard: Shard) -> Path:
        """The shard's file if it is in the directory, there, and of the right size; else InputError."""
        path = self.directory / shard.file
        if path.resolve().parent != self.directory.resolve():
            raise InputError(f"{path}: is a link that leads out of the data set; put the file itself there.")
        if not path.is_file():
            raise InputError(f"{path}: this shard is missing; copy the data set again, or convert again.")
        size = path.stat().st_size
        if size != shard.bytes:
            raise InputError(
                f"{path}: has {size} bytes where {MANIFEST} says {shard.bytes}: cut short, or of another data set. "
                "Copy it again, or convert again."
            )
        return path


def shard_name(number: int) -> str:
    """The final name of a shard; while it is written, `PARTIAL` is appended."""
    return f"shard-{number:05d}.h5"


def read_manifest(directory: str | os.PathLike[str]) -> Manifest:
    """Read and check the manifest of a data set. Local; O(number of shards).

    Raises InputError, naming the file and the field, if there is none, it is too new, or contradicts itself.
    """
    directory = Path(directory)
    path = directory / MANIFEST
    if directory.exists() and not directory.is_dir():
        raise InputError(
            f"{directory}: is a file; a data set is a directory with a {MANIFEST}. Make one by distsms shard"
        )
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        if inside := sorted(str(one.parent) for one in directory.glob(f"*/{MANIFEST}")):
            named = ", ".join(inside[:3]) + ", ..." * (len(inside) > 3)
            raise InputError(
                f"{directory}: not a data set, but a folder of some: {named}. Give one of them."
            ) from error
        raise InputError(
            f"{directory}: not a data set, it has no {MANIFEST} (which a conversion writes last: perhaps it was "
            "killed). Convert again."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    return _parse(record, directory)


def prepare(directory: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Make the directory ready for `stage_shard`: it exists, without leftovers of a killed one. Local, one rank.

    Raises InputError if it holds a data set already and may not be overwritten. That set stays whole until `publish`.
    """
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}: cannot be made a directory: {error.strerror}") from error
    if (directory / MANIFEST).exists() and not overwrite:
        raise InputError(f"{directory}: holds a data set already; name another one, or replace it (--overwrite).")
    for path in directory.glob(f"*{PARTIAL}"):
        if _SHARD.fullmatch(path.stem) or path.stem == MANIFEST:
            path.unlink(missing_ok=True)


def publish(
    directory: str | os.PathLike[str],
    entries: Iterable[Mapping[str, Any]],
    *,
    label_map: Mapping[str, Any],
    zero_based: bool,
    source: Iterable[Mapping[str, Any]] = (),
    table: Table | None = None,
    normalization: Normalization = _AS_THEY_ARE,
    split: Mapping[str, Any] | None = None,
    belonging: Mapping[str, Mapping[str, Any]] | None = None,
) -> Manifest:
    """Make a data set of finished shards. Local, one rank (the root), after all ranks have finished theirs.

    entries: what `finish_shard` gave, in the order of the rows, by which the files are named. A set that was there
    before ends here: its manifest goes first, so that at no moment a manifest and the shards of another set look like
    one; its surplus shards go, too. Raises InputError, with nothing changed, if there is not a single row.
    belonging : what the manifest says of group, time and doubles, see `groups.known`.
    """
    directory = Path(directory)
    named = [{**entry, "file": shard_name(number)} for number, entry in enumerate(entries)]
    record = _summed(named)
    record |= {"label_map": dict(label_map), "zero_based": zero_based, "source": [dict(one) for one in source]}
    if not record["n"]:
        raise InputError(f"{directory}: not a single row to write; a data set needs at least one")
    record |= {} if table is None else {"table": table.as_json()}
    record |= _normalization_record(normalization)
    record |= {name: dict(one) for name, one in {"split": split, **(belonging or {})}.items() if one is not None}
    manifest = _parse(record, directory)  # what could not be read back is not published
    withdraw(directory)
    names = {shard.file for shard in manifest.shards}
    for entry in named:
        os.replace(directory / entry["staged"], directory / entry["file"])
    for path in directory.glob("shard-*.h5"):
        if _SHARD.fullmatch(path.name) and path.name not in names:
            path.unlink()
    sync(directory)
    with atomic_write(manifest.path) as partial:
        partial.write_bytes(json.dumps(record, indent=1).encode())
    return manifest


def withdraw(directory: Path) -> None:
    """Let what is in the directory be no data set any more. Local."""
    if os.path.lexists(directory / MANIFEST):  # also a link that leads nowhere: it would be followed
        (directory / MANIFEST).unlink()
        sync(directory)


def verify(directory: str | os.PathLike[str]) -> list[str]:
    """Recompute the checksum of every shard: one message per bad file, none if all is well. Local; reads all bytes.

    Raises InputError if the manifest itself cannot be used.
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


def file_sha256(path: Path) -> str:
    """The checksum of a file in hex digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(2**22):
            digest.update(piece)
    return digest.hexdigest()


def _summed(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """The manifest's record but for what concerns the source: sums and common properties of the shards' entries."""
    if len({entry["staged"] for entry in entries}) < len(entries):
        raise ValueError("two shards are one file")
    record: dict[str, Any] = {"format": FORMAT, "version": VERSION, "creator": f"distsms {__version__}"}
    record["n"] = sum(entry["rows"] for entry in entries)
    record |= {name: sum(entry[name] for entry in entries) for name in ("nnz", "n_pos", "n_neg")}
    for name in ("p", "layout", "dtype", "weights", *_USUAL):
        kinds = {entry[name] for entry in entries}
        if len(kinds) > 1:
            raise ValueError(f"shards differ in {name}: {sorted(map(str, kinds))}")
        record[name] = kinds.pop() if kinds else None
    for name, usual in _USUAL.items():
        if record[name] in (usual, None):
            del record[name]
    names = [one.name for one in fields(Shard)]
    record["shards"] = [{name: entry[name] for name in names} for entry in entries]
    return record


def _parse(record: Any, directory: Path) -> Manifest:
    """A checked Manifest of the JSON record."""
    path = directory / MANIFEST
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(f"{path}: not the manifest of a data set (its field 'format' is not '{FORMAT}').")
    version = _checked(record, {"version": int}, str(path))["version"]
    if version > VERSION:
        raise InputError(f"{path}: has format version {version}, this distsms reads up to {VERSION}; update distsms.")
    kinds = {"n": int, "p": int, "nnz": int, "n_pos": int, "n_neg": int, "layout": str, "dtype": str, "weights": bool}
    kinds |= {"label_map": dict, "zero_based": bool, "source": list, "shards": list, "creator": str}
    known = _checked(record, kinds, str(path))
    for number, source in enumerate(known["source"]):
        _checked(source, {"name": str, "bytes": int}, f"{path}: source {number}")
    known["source"] = tuple(known["source"])
    known["shards"] = tuple(_parse_shard(one, f"{path}: shard {k}") for k, one in enumerate(known["shards"]))
    known |= _parse_optional(record, str(path))
    manifest = Manifest(directory=directory, **known)
    _check_whole(manifest)
    for shard in manifest.shards:
        _check_shard(manifest, shard)
    return manifest


def _parse_optional(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What the manifests of tables, of normalized data and of parts have besides."""
    if (split := record.get("split")) is not None:
        _checked(split, {"fractions": list, "seed": int, "part": str, "of": int}, f"{where}: split")
    for name, kinds in _FOUND.items():
        if record.get(name) is not None:
            _checked(record[name], kinds, f"{where}: {name}")
    if (time := record.get("time")) and not (
        (time["kind"] == NUMBERS and -math.inf < time["first"] <= time["last"] < math.inf)
        or (time["kind"] == DATES and EARLIEST <= time["first"] <= time["last"] <= LATEST)
    ):
        raise InputError(f"{where}: time: is neither of numbers nor of dates, or not from a first to a last one.")
    try:
        table = None if record.get("table") is None else Table.from_json(record["table"])
        kind, scale = record.get("normalize", "none"), record.get("scale")
        normalization = Normalization(kind, None if scale is None else np.array(scale, np.float64))
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(f"{where}: table or scale is damaged: {error!r}") from error
    p, compression = record["p"], record.get("compression", "none")
    if compression not in COMPRESSIONS:
        raise InputError(f"{where}: compression {compression!r:.60} is none that this distsms knows; update distsms.")
    by_column = kind in BY_COLUMN
    if (
        kind not in KINDS
        or by_column != (normalization.scale is not None)
        or (by_column and not (normalization.scale.shape == (p,) and np.all(normalization.scale > 0)))  # type: ignore
        or (table is not None and table.p > p)
    ):
        raise InputError(f"{where}: normalize, scale or table do not fit p = {p}.")
    return {
        "ids": bool(record.get("ids", False)),
        "table": table,
        "normalization": normalization,
        "split": split,
        "compression": compression,
        **{name: record.get(name) for name in _FOUND},
    }


def _normalization_record(normalization: Normalization) -> dict[str, Any]:
    if normalization.kind == "none":
        return {}
    record: dict[str, Any] = {"normalize": normalization.kind}
    return record if normalization.scale is None else record | {"scale": normalization.scale.tolist()}


def _parse_shard(record: Any, where: str) -> Shard:
    kinds = {"file": str, "sha256": str, "values": bool}
    kinds |= {name: int for name in ("rows", "nnz", "n_pos", "n_neg", "columns", "bytes")}
    return Shard(**_checked(record, kinds, where))


def _checked(record: Any, kinds: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The named fields of a JSON object, each of its type; counts are from 0 to 2^63 - 1."""
    if not isinstance(record, dict):
        raise InputError(f"{where}: must be an object.")
    for name, kind in kinds.items():
        value = record.get(name)
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 2**63):
            raise InputError(f"{where}: field '{name}' must be {_WORDS[kind]}, not {value!r:.60}.")
    return {name: record[name] for name in kinds}


def _check_whole(manifest: Manifest) -> None:
    """The fields of a manifest against each other."""

    def require(condition: bool, what: str) -> None:
        if not condition:
            raise InputError(f"{manifest.path}: {what}.")

    require(
        manifest.n >= 1 and manifest.p >= 1, f"n = {manifest.n} rows and p = {manifest.p} columns must be at least 1"
    )
    require(manifest.layout in ("csr", "dense"), f"layout '{manifest.layout:.60}' is neither 'csr' nor 'dense'")
    require(manifest.dtype in ("float32", "float64"), f"dtype '{manifest.dtype:.60}' is neither float32 nor float64")
    require(set(manifest.label_map) <= {"+1", "-1"}, "label_map may have the keys '+1' and '-1' only")
    for name, part in (("n", "rows"), ("nnz", "nnz"), ("n_pos", "n_pos"), ("n_neg", "n_neg")):
        whole, total = getattr(manifest, name), sum(getattr(shard, part) for shard in manifest.shards)
        require(whole == total, f"{name} = {whole}, but the shards' {part} add up to {total}")
    names = [shard.file for shard in manifest.shards]
    require(len(set(names)) == len(names), "the same file is named twice")


def _check_shard(manifest: Manifest, shard: Shard) -> None:
    """One shard's fields against each other and against the whole."""
    where = f"{manifest.path}: shard '{shard.file:.80}'"
    if shard.file in ("", ".", "..") or set(shard.file) & set("/\\:\0"):
        raise InputError(f"{where}: a plain file name is required, in the directory of the manifest.")
    if shard.n_pos + shard.n_neg != shard.rows:
        raise InputError(f"{where}: n_pos + n_neg is not rows = {shard.rows}.")
    if shard.columns > manifest.p:
        raise InputError(f"{where}: uses {shard.columns} columns of p = {manifest.p}.")
    if manifest.layout == "dense":
        possible = shard.values and shard.nnz == shard.rows * manifest.p
    else:
        possible = shard.nnz <= shard.rows * shard.columns
    # A count that does not fit in the file would be met as a lack of memory later on.
    most = shard.bytes * (1 if manifest.compression == "none" else EXPANSION)
    if not possible or most < shard.rows + 4 * shard.nnz:
        raise InputError(f"{where}: nnz = {shard.nnz} is impossible with {shard.rows} rows, {shard.bytes} bytes.")
    if not re.fullmatch("[0-9a-f]{64}", shard.sha256):
        raise InputError(f"{where}: sha256 must be 64 hex digits.")
