"""A data set on the disk: a directory with shards, and a manifest that lists them and describes the data.

The shards are `shard-00000.h5`, ... (`distsms.shards.reader` describes these), and the manifest is `manifest.json`, a
JSON file whose last field is a checksum of what is before it. It is written last and atomically, so a directory without
one is not a data set, even if it has shards.

Files of an old data set in the directory keep their names until the new one is complete, whose files get other names.
Then one step exchanges the manifests: before it, the directory holds the old data set, and after it the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from distsms.base._version import __version__
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import LOCK, PARTIAL, OutputFile, digest_of, exclusive, naming_failures, note, read_whole, sync
from distsms.base.wording import option
from distsms.matrix.normalization import BY_COLUMN, KINDS, Normalization
from distsms.shards.coded_columns import NOT_CODED, CodedColumns, FeatureReference
from distsms.shards.column_options import ColumnReport
from distsms.shards.entries_in_memory import RowsInMemory
from distsms.shards.row_metadata import DATES, EARLIEST, LATEST, NUMBERS
from distsms.shards.table_schema import Table

FORMAT = "distsms-shards"
VERSION, CODED_VERSION, TABLE_VERSION = 4, 3, 2
"""The version of manifests with a feature map, of others with coded columns, and of those of data from tables; else it
is 1. Older programs do not know the map, the coded columns and the encoding.
"""
SHARD_VERSION = 1
MANIFEST = "manifest.json"
FEATURES = "features.h5"
COMPRESSIONS = ("none", "blosc-lz4")
MOST_EXPANDED = 256
"""An upper bound on the number of bytes that LZ4 can expand one byte to."""
NOT_NORMALIZED = Normalization()

_OPTIONAL: dict[str, dict[str, Any]] = {  # what only some data sets have: the fields and their types
    "split": {"fractions": list, "seed": int, "part": str, "of": int},
    "group": {"column": str, "groups": int, "largest": int},
    "time": {"column": str, "kind": str, "first": float, "last": float},
    "weight": dict.fromkeys(("positive", "negative", "largest", "effective"), float) | {"column": str},
    "doubles": dict.fromkeys(("different", "rows", "largest", "contradicting"), int),
    "unknown": {"letters": int, "rows": int},
}
_SUMS = {"n": "rows", "nnz": "nnz", "n_pos": "n_pos", "n_neg": "n_neg"}
"""Counts of the data set, and those of the shards that they are the sums of."""
_NOUNS = {int: "a count", str: "a string", bool: "true or false", list: "a list", dict: "an object", float: "a number"}


@dataclass(frozen=True)
class Shard:
    """The manifest's entry for one shard."""

    file: str
    rows: int
    nnz: int
    n_pos: int
    n_neg: int
    columns: int  # the largest column that is used, counted from 0, plus one
    bytes: int
    sha256: str
    values: bool  # whether the file has values; if not, every stored value is 1
    digests: Mapping[str, str] | None = None  # of the checksums of each array; see `storage.read_checksums`


@dataclass(frozen=True)
class Manifest:
    """The manifest of a data set. All counts are global; `shards` are in the order of the rows."""

    directory: Path = field(compare=False)
    n: int
    p: int
    nnz: int  # stored entries and codes
    n_pos: int
    n_neg: int
    layout: str  # of X: "csr" or "dense"; "coded" if there are coded columns only
    dtype: str  # of the values in the shards: "float32" or "float64"
    weights: bool
    label_map: dict[str, Any]  # the original label, or list of labels, of each class: {"+1": 1.0, "-1": 0.0}
    zero_based: bool  # whether the source counted columns from 0; the shards always do
    source: tuple[dict[str, Any], ...]  # {"name": ..., "bytes": ...} of each file that was converted
    shards: tuple[Shard, ...]
    creator: str
    ids: bool = False  # whether the rows have names
    table: Table | None = None  # the columns and categories of the features; None: columns have numbers only
    columns: tuple[ColumnReport, ...] | None = None  # how the columns of the table were interpreted
    normalization: Normalization = NOT_NORMALIZED  # for training; the shards hold the rows as they were
    split: dict[str, Any] | None = None  # for a part of the input; see `Splitter.record`
    compression: str = "none"  # of the arrays in the shards; see `distsms.shards.storage`
    # These four are as of `row_statistics.group_statistics`: None if the rows have no groups, times or weights, or if
    # equal rows were not counted.
    group: dict[str, Any] | None = None
    time: dict[str, Any] | None = None
    weight: dict[str, Any] | None = None
    doubles: dict[str, int] | None = None
    unknown: dict[str, int] | None = None  # letters of sequences that are unknown, and the rows that have some
    coded: CodedColumns = NOT_CODED  # the columns behind those of X
    # The entries of temporary shards that are in memory, not in files; only `convert` makes such a data set.
    in_memory: RowsInMemory | None = field(default=None, compare=False, repr=False)

    @property
    def p_original(self) -> int:
        """The number of columns of rows as they were before a feature map made codes of them."""
        return self.coded.features.columns if self.coded.features else self.p

    @property
    def p_entries(self) -> int:
        """The number of columns of X, whose entries are stored: all but the coded ones."""
        return self.p - self.coded.p

    def entries(self, rows: int, nnz: int) -> int:
        """Return the number of entries of X in so many rows with so many stored entries and codes."""
        return nnz - rows * self.coded.n_codes

    @property
    def explicit(self) -> int:
        """The most nonzeros that all rows have, if every one of them is written out as in a CSR matrix."""
        return self.entries(self.n, self.nnz) + self.n * self.coded.entries

    def describe_entries(self) -> str:
        """Return how much is stored of the rows, such as "17 nonzeros"."""
        codes = self.n * self.coded.n_codes
        parts = [f"{self.nnz - codes} nonzeros"] if self.layout != "coded" else []
        return " and ".join(parts + ([f"{codes} codes"] if codes else []))

    @property
    def path(self) -> Path:
        return self.directory / MANIFEST

    @property
    def features_path(self) -> Path:
        """The file of the feature map, if one made the codes (`distsms.features.feature_map`)."""
        assert self.coded.features is not None
        path = self.directory / features_name(self.coded.features)
        return path if path.exists() else self.directory / FEATURES

    @property
    def fingerprint(self) -> str:
        """64 hex digits that identify the data, whatever their directory, and whether they are in files."""
        identity = [FORMAT, self.n, self.p, self.nnz, self.n_pos, self.n_neg, [shard.sha256 for shard in self.shards]]
        if scaling := normalization_record(self.normalization):
            identity.append(scaling)
        if self.coded:
            identity.append(self.coded.record())
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def column_name(self, column: int) -> str:
        """Return the name or number that a column (counted from 0) has in the source of the data, for messages."""
        if column >= self.p_entries:
            return repr(self.coded.column_name(column - self.p_entries))
        if self.table is not None:
            return repr(self.table.feature_names[column])
        return f"{column} (counted from 0)" if self.zero_based else f"{column + 1} (counted from 1)"

    def checked_path(self, shard: Shard) -> Path:
        """Return the shard's file; check that it is there, has its size, and is inside the directory."""
        path = self.directory / shard.file
        if path.resolve().parent != self.directory.resolve():
            raise InputError(f"{path}: is a link that leads out of the data set; put the file itself there.")
        if not path.is_file():
            raise InputError(f"{path}: this shard is missing; copy it, or run again if it was just replaced.")
        size = path.stat().st_size
        if size != shard.bytes:
            problem = f"has {size} bytes, but {MANIFEST} says {shard.bytes}: truncated, or of another data set"
            raise InputError(f"{path}: {problem}. Copy it again, or convert again.")
        return path


def read_manifest(directory: str | os.PathLike[str], in_memory: RowsInMemory | None = None) -> Manifest:
    """Read and check the manifest of a data set. InputError names file and field. Local; O(number of shards)."""
    directory = Path(directory)
    path = directory / MANIFEST
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: is a file; a data set is a folder with a {MANIFEST}. Use distsms shard.")
    try:
        content = read_whole(path)
        record = json.loads(content)
    except FileNotFoundError as error:
        if inside := sorted(str(path.parent) for path in directory.glob(f"*/{MANIFEST}")):
            shown = ", ".join(inside[:3]) + ", ..." * (len(inside) > 3)
            raise InputError(f"{directory}: is a folder with data sets: {shown}. Name one of them.") from error
        if not directory.exists():
            raise InputError(f"{directory}: there is no such file or folder") from error
        problem = f"is not a data set, since it has no {MANIFEST}, which `distsms shard` writes last"
        raise InputError(f"{directory}: {problem}. If it was killed, convert again.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    digest = xxhash.xxh3_128_hexdigest(content.rpartition(_SEAL)[0])
    if isinstance(record, dict) and record.get("checksum", digest) != digest:  # older programs wrote none
        raise InputError(f"{path}: its content is not what was written. Copy the data set again, or convert again.")
    note(path, xxhash.xxh3_128_hexdigest(content))
    return parse_manifest(record, directory, in_memory)


_SEAL = b'"checksum"'


def sealed(text: str) -> bytes:
    """Return the JSON object of a manifest, with the checksum of its content behind it."""
    content = text[:-1].rstrip().encode() + b",\n "
    return b'%b%b: "%b"\n}' % (content, _SEAL, xxhash.xxh3_128_hexdigest(content).encode())


def features_name(reference: FeatureReference) -> str:
    """Return the name of the file of a feature map beside that of another data set, which is to be replaced."""
    return f"features-{reference.hash[:8]}.h5"


def parse_manifest(record: Any, directory: Path, in_memory: RowsInMemory | None = None) -> Manifest:
    """Return the manifest that a JSON object describes, after checking it. Raises InputError."""
    path = directory / MANIFEST
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(f"{path}: not the manifest of a data set (its field 'format' is not '{FORMAT}').")
    version = _checked(record, {"version": int}, str(path))["version"]
    if version > VERSION:
        raise InputError(f"{path}: has format version {version}, this distsms reads up to {VERSION}; update distsms.")
    values = _checked(record, _kinds(Manifest, {"source": list, "shards": list}), str(path))
    for number, source in enumerate(values["source"]):
        _checked(source, {"name": str, "bytes": int}, f"{path}: source {number}")
    shards = []
    for number, shard in enumerate(values["shards"]):
        more = {"digests": dict} if isinstance(shard, dict) and "digests" in shard else {}  # older programs wrote none
        shards.append(Shard(**_checked(shard, _kinds(Shard, more), f"{path}: shard {number}")))
    for name, kinds in _OPTIONAL.items():
        if record.get(name) is not None:
            _checked(record[name], kinds, f"{path}: {name}")
    values |= {name: record.get(name) for name in _OPTIONAL}
    values |= {"source": tuple(values["source"]), "shards": tuple(shards)}
    try:
        table = None if record.get("table") is None else Table.from_json(record["table"])
        columns = None if record.get("columns") is None else tuple(map(ColumnReport.from_json, record["columns"]))
        kind, scale = record.get("normalize", "none"), record.get("scale")
        normalization = Normalization(kind, None if scale is None else np.array(scale, np.float64))
        coded = CodedColumns.of(record)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{path}: table, columns, scale, coded or sequences is damaged: {error!r}") from error
    manifest = Manifest(
        directory=directory,
        ids=bool(record.get("ids", False)),
        table=table,
        columns=columns,
        normalization=normalization,
        compression=record.get("compression", "none"),
        coded=coded,
        in_memory=in_memory,
        **values,
    )
    _check(manifest)
    return manifest


def _kinds(record: type, more: Mapping[str, type]) -> dict[str, type]:
    """Return the required fields of a record whose types are plain in JSON, and more."""
    plain = {"int": int, "str": str, "bool": bool, "dict[str, Any]": dict}
    required = [each for each in fields(record) if each.default is MISSING and each.type in plain]
    return {each.name: plain[str(each.type)] for each in required} | dict(more)


def normalization_record(normalization: Normalization) -> dict[str, Any]:
    """Return the manifest's fields for the normalization; {} if there is none."""
    if normalization.kind == "none":
        return {}
    record: dict[str, Any] = {"normalize": normalization.kind}
    return record if normalization.scale is None else record | {"scale": normalization.scale.tolist()}


def _checked(record: Any, kinds: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the named fields of a JSON object, each of its type; counts are from 0 to 2^63 - 1."""
    if not isinstance(record, dict):
        raise InputError(f"{where}: must be an object.")
    for name, kind in kinds.items():
        value = record.get(name)
        if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 2**63):
            raise InputError(f"{where}: field '{name}' must be {_NOUNS[kind]}, not {value!r:.60}.")
    return {name: record[name] for name in kinds}


def _check(manifest: Manifest) -> None:
    def require(condition: Any, problem: str, where: object = manifest.path) -> None:
        if not condition:
            raise InputError(f"{where}: {problem}.")

    # 1) The data set.
    n, p, p_entries, layout = manifest.n, manifest.p, manifest.p_entries, manifest.layout
    require(n >= 1 and p >= 1, f"n = {n} rows and p = {p} columns must be at least 1")
    require(layout in ("csr", "dense", "coded"), f"layout '{layout:.60}' is not 'csr', 'dense' or 'coded'")
    possible = p_entries == 0 if layout == "coded" else p_entries >= 1
    require(possible, f"p = {p} columns do not fit the layout '{layout}' and {manifest.coded.p} coded columns")
    if manifest.coded.features:
        require(p_entries in (0, manifest.p_original), f"p = {p} columns do not fit the feature map")
    require(manifest.dtype in ("float32", "float64"), f"dtype '{manifest.dtype:.60}' is neither float32 nor float64")
    packing = manifest.compression
    require(packing in COMPRESSIONS, f"this distsms does not know the compression {packing!r:.60}; update distsms")
    kind, scale, table = manifest.normalization.kind, manifest.normalization.scale, manifest.table
    by_column = scale is not None and scale.shape == (p,) and np.all(scale > 0)
    fits = table is None or table.p <= manifest.p_original
    scaled = by_column if kind in BY_COLUMN else scale is None
    require(kind in KINDS and scaled and fits, f"normalize, scale or table do not fit p = {p}")
    if time := manifest.time:
        least, most = (EARLIEST, LATEST) if time["kind"] == DATES else (-sys.float_info.max, sys.float_info.max)
        ordered = time["kind"] in (NUMBERS, DATES) and least <= time["first"] <= time["last"] <= most
        require(ordered, "time: must be of numbers or of dates, from a first to a last one")
    require(set(manifest.label_map) <= {"+1", "-1"}, "label_map may have the keys '+1' and '-1' only")
    for name, part in _SUMS.items():
        whole, total = getattr(manifest, name), sum(getattr(shard, part) for shard in manifest.shards)
        require(whole == total, f"{name} = {whole}, but the shards' {part} add up to {total}")
    names = [shard.file for shard in manifest.shards]
    require(len(set(names)) == len(names), "the same file is named twice")

    # 2) Its shards.
    for shard in manifest.shards:
        where, rows = f"{manifest.path}: shard '{shard.file:.80}'", shard.rows
        plain = shard.file not in ("", ".", "..") and not set(shard.file) & set("/\\:\0")
        require(plain, "the name must be that of a file in the directory of the manifest, without folders", where)
        require(shard.n_pos + shard.n_neg == rows, f"n_pos + n_neg is not rows = {rows}", where)
        require(shard.columns <= p, f"uses {shard.columns} columns of p = {p}", where)
        entries, most_entries = manifest.entries(rows, shard.nnz), rows * p_entries
        if layout == "csr":
            possible = 0 <= entries <= min(most_entries, rows * shard.columns)
        else:
            possible = entries == most_entries and (shard.values or layout == "coded")
        # A count that is too large for the file is refused here. Otherwise memory would be allocated for it.
        most, in_file = shard.bytes * (1 if packing == "none" else MOST_EXPANDED), manifest.in_memory is None
        possible = possible and most >= rows * (1 + manifest.coded.row_bytes) + 4 * entries * in_file
        require(possible, f"nnz = {shard.nnz} is impossible with {rows} rows, {shard.bytes} bytes", where)
        require(re.fullmatch("[0-9a-f]{64}", shard.sha256), "sha256 must be 64 hex digits", where)


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
        remedy = f"name another folder, or replace it ({option('overwrite')})"
        raise InputError(f"{directory}: holds a data set already; {remedy}")


def prepare(directory: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Make the directory ready for `stage_shard`: create it, and remove what a killed conversion left. Local: one rank.
    An old data set stays complete and usable until `publish`."""
    directory = Path(directory)
    with naming_failures(directory):
        directory.mkdir(parents=True, exist_ok=True)
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
    if not any(entry["rows"] for entry in entries):
        raise InputError(f"{directory}: there is no row to write; a data set needs at least one")
    record: dict[str, Any] = {"format": FORMAT, "version": 1, "creator": f"distsms {__version__}"}
    for name, part in _SUMS.items():
        record[name] = sum(entry[part] for entry in entries)
    in_common = ("p", "layout", "dtype", "weights", *_DEFAULTS)
    unequal = [name for name in in_common if len({entry[name] for entry in entries}) > 1]
    if unequal or len({entry["staged"] for entry in entries}) < len(entries):
        raise ValueError(f"shards differ in {', '.join(unequal)}" if unequal else "two shards are one file")
    record |= {name: named[0][name] for name in in_common if named[0][name] != _DEFAULTS.get(name)}
    record["shards"] = [{each.name: entry[each.name] for each in fields(Shard)} for entry in named]
    record |= {"label_map": dict(label_map), "zero_based": zero_based, "source": [dict(file) for file in source]}
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
    with file, naming_failures(manifest.path, file):
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
    digest = digest_of(path, hashlib.sha256())
    digest.update(appended)
    return digest.hexdigest()


@contextlib.contextmanager
def publishing(directory: str | os.PathLike[str], comm: Communicator, overwrite: bool) -> Iterator[None]:
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
