"""Files to shards, in parallel over ranks: each reads and writes its own shards, the root publishes them at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.data import duplicates
from distsms.data.formats import text_files
from distsms.data.formats.base import Reader, ReadOptions
from distsms.data.formats.registry import open_reader, tell
from distsms.data.formats.rows import Rows, gathered
from distsms.data.groupby import known
from distsms.data.labels import MOST, interpret, signs
from distsms.data.row_metadata import Beside, Hashes, together
from distsms.data.shards import dataset
from distsms.data.shards.manifest import MANIFEST
from distsms.data.splits import Split
from distsms.errors import InputError
from distsms.matrix import normalization
from distsms.parallel.communicator import Communicator
from distsms.utils.files import LOCK, exclusive

SHARD_TEXT_BYTES = 128 * 2**20
"""Text per shard where the number of shards is not given."""
SHARD_BYTES = 2 * SHARD_TEXT_BYTES
"""What the rows of a shard may take in memory, whatever number is asked for: mostly more than that much text makes."""


class Layout(NamedTuple):
    """What is written. n_features : columns, if more than the input uses.  progress, split : see `convert`."""

    n_shards: int | None = None
    n_features: int | None = None
    dtype: str = "float64"
    compression: str = "none"
    normalize: str = "none"
    progress: Callable[[int, int], None] = lambda done, of: None
    split: Split | None = None


class _Staged(NamedTuple):
    """A shard on the disk whose labels wait for their meaning."""

    shard: dataset.StagedShard
    values: NDArray[np.float64]  # the different labels, as the reader gave them
    codes: NDArray[Any]  # (rows,): which of them; mostly a byte each, since they are kept for all rows
    hashes: Hashes  # (rows,): see `doubles`
    beside: Beside


def convert(
    inputs: Sequence[str | os.PathLike[str]],
    directory: str | os.PathLike[str],
    comm: Communicator,
    n_shards: int | None = None,
    positive: float | str | None = None,
    zero_based: bool = False,
    n_features: int | None = None,
    dtype: str = "float64",
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
    normalize: str | None = None,
    like: str | os.PathLike[str] | None = None,
    split: Split | None = None,
    compression: str = "none",
    **reading: Any,
) -> dataset.Manifest:
    """Convert files of one format to a data set in `directory`. Collective; raises InputError on every rank.

    Rows keep their order: files as given, rows as they stand. Unless n_shards is given there is a shard for every
    128 MiB of text, and at least one for each rank; more where the rows of one would take more than SHARD_BYTES.
    progress : called with the number of this rank's shares that are written, and how many it has. normalize : a kind of
    `normalization.KINDS`. like : a data set, whose columns, categories, labels and normalization are taken over.
    split : makes a data set of each part, in directories of `directory`, of common columns, categories and labels, and
    normalized by the factors of the first, which is what is returned. compression : of the files, one of
    `manifest.COMPRESSIONS`. reading : label, id, drop, group, time, keep; see `reading.Reading`.
    Memory of a rank: the rows of one shard twice, and for each of its rows 9 bytes, 8 more for a group, 8 for a time.
    """
    asked = ReadOptions(zero_based=zero_based, positive=positive, **reading)
    if wrong := set(asked.keep) - set(asked.beside):
        raise InputError(f"--keep {sorted(wrong)[0]}: is for the column of --group or of --time", everywhere=True)
    if asked.label is not None and asked.label in asked.beside:
        raise InputError(f"--group or --time {asked.label}: that column is the label", everywhere=True)
    if wrong := set(asked.drop) & set(asked.beside):
        raise InputError(
            f"--drop {sorted(wrong)[0]}: the column of --group or --time is no feature anyway", everywhere=True
        )
    if split is not None and split.by == "groups" and asked.group is None:
        raise InputError("--split-by groups: which column is the group? --group COLUMN", everywhere=True)
    layout = Layout(n_shards, n_features, dtype, compression, normalize or "none", progress, split)
    given = None
    with comm.together():
        sizes = [_size(path) for path in inputs]
        if like is not None:
            given, asked, layout = _as_in(dataset.read_manifest(like), asked, layout, normalize)
    source = [{"name": Path(path).name, "bytes": size} for path, size in zip(inputs, sizes, strict=True)]
    reader = open_reader(inputs, asked, comm)
    with contextlib.ExitStack() as held:
        if split is not None:
            with comm.together():
                _check_free(Path(directory))
        for folder in dict.fromkeys((Path(directory), *_folders(Path(directory), split))):
            held.enter_context(writing(folder, comm, overwrite))
        return _convert(reader, source, Path(directory), comm, asked, layout, given)


def _folders(directory: Path, split: Split | None) -> list[Path]:
    """Of the data sets that are made."""
    return [directory] if split is None else [directory / name for name in split.names]


def _check_free(directory: Path) -> None:
    if (directory / MANIFEST).exists():
        raise InputError(f"{directory}: holds a data set, and those of --split would lie inside it; name another one")


def _as_in(
    manifest: dataset.Manifest, asked: ReadOptions, layout: Layout, normalize: str | None
) -> tuple[normalization.Normalization, ReadOptions, Layout]:
    """How to make a data set like another one. Local."""
    if asked.positive is not None or asked.drop or normalize is not None:
        raise InputError("--like takes --positive, --drop and --normalize over from that data set; leave them out")
    asked = replace(
        asked, table=manifest.table, label_map=manifest.label_map, zero_based=asked.zero_based or manifest.zero_based
    )
    layout = layout._replace(n_features=layout.n_features or manifest.p)
    return manifest.normalization, asked, layout


@contextlib.contextmanager
def writing(directory: str | os.PathLike[str], comm: Communicator, overwrite: bool) -> Iterator[None]:
    """While entered, the shards of a new data set may be staged, finished and published. Collective.

    One job at a time: another one is refused. If the body raises InputError, what it wrote is removed, and the
    directory if nothing else is in it; a data set that was there stays.
    """
    with contextlib.ExitStack() as held:
        with comm.together():
            if comm.is_root:
                held.enter_context(exclusive(Path(directory)))
                dataset.prepare(directory, overwrite)
        try:
            yield
        except InputError:
            if comm.is_root:
                _tidy(directory)
            raise


def _convert(
    reader: Reader,
    source: list[dict[str, Any]],
    directory: Path,
    comm: Communicator,
    asked: ReadOptions,
    layout: Layout,
    given: normalization.Normalization | None,
) -> dataset.Manifest:
    """Read, write and publish the shares. Collective.  given : a normalization that is known."""
    staged, columns = _stage_all(reader, sum(one["bytes"] for one in source), directory, comm, layout)
    found = {float(label) for one in staged for label in one.values[: MOST + 1]}
    summary = comm.allgather((found, columns, sum(one.shard.rows for one in staged)))
    p = layout.n_features or max(1, *(one for _, one, _ in summary))
    counts = [rows for _, _, rows in summary]
    names = ", ".join(one["name"] for one in source)
    tell(names, reader.notes, comm)
    with comm.together():
        label_map = reader.label_map or interpret(set().union(*(one for one, _, _ in summary)), asked.positive).as_map()
    folders, parts = _folders(directory, layout.split), [staged]
    if layout.split is not None:
        part_of = _part_of(staged, sum(counts[: comm.rank]), layout.split, comm)
        with comm.together():
            parts = _divide(staged, part_of, folders)
    sizes = _sizes(parts, folders if sum(counts) else [names], comm)
    if given is None:
        entries = partial(_entries, parts[0])
        given = normalization.measure(layout.normalize, entries, (sizes[0], p), comm)
    finished, labels = [], []
    with comm.together():
        for part in parts:
            labels.append([_signs(one, reader, label_map) for one in part])
            finished.append([dataset.finish_shard(one.shard, y, p) for one, y in zip(part, labels[-1], strict=True)])
    all_finished = comm.allgather(finished)
    belonging = [_known(part, y, asked, comm) for part, y in zip(parts, labels, strict=True)]
    with comm.together():
        if comm.is_root:
            for folder in folders[1:]:  # at no moment a new part stands beside an old one
                dataset.withdraw(folder)
            for k, folder in enumerate(folders):
                dataset.publish(
                    folder,
                    [entry for mine in all_finished for entry in mine[k]],
                    label_map=label_map,
                    zero_based=asked.zero_based,
                    source=source,
                    table=reader.table,
                    normalization=given,
                    split=None if layout.split is None else layout.split.record(k, sum(counts)),
                    belonging=belonging[k],
                )
    with comm.together():
        return dataset.read_manifest(folders[0])


def _stage_all(
    reader: Reader, n_bytes: int, directory: Path, comm: Communicator, layout: Layout
) -> tuple[list[_Staged], int]:
    """Write this rank's rows, and tell how many columns they use. Collective."""
    shares = _shares(reader, n_bytes, comm.size, layout.n_shards)
    mine = range(len(shares) * comm.rank // comm.size, len(shares) * (comm.rank + 1) // comm.size)
    staged, columns = list[_Staged](), reader.n_columns or 0
    comm.root_first(lambda: duplicates.hashes(sparse.csr_matrix((1, 1))))  # compiles its kernel
    with comm.together():
        for done, k in enumerate(mine):
            number = k
            for rows in gathered(reader.read(shares[k]), SHARD_BYTES):
                columns = max(columns, rows.n_columns)
                _check_columns(rows, layout.n_features, [piece.path for piece in shares[k]])
                staged.append(_stage(rows, directory, number, layout, reader.named))
                number += len(shares)
                del rows  # before there are others
            layout.progress(done + 1, len(mine))
    return staged, columns


def _part_of(staged: Sequence[_Staged], first: int, split: Split, comm: Communicator) -> list[NDArray[np.uint8]]:
    """The part of each staged row; they are number `first` of the input and so on. Collective."""
    numbers = np.arange(first, first + sum(one.shard.rows for one in staged))
    marks: NDArray[Any] = numbers
    if split.by == "doubles":
        marks = np.concatenate([np.empty(0, np.uint64), *(one.hashes for one in staged)])
    elif split.by == "groups":
        marks = np.concatenate([np.empty(0, np.uint64), *(one.beside.groups for one in staged)])
    elif split.by == "time" and staged and staged[0].beside.times is not None:
        marks = np.concatenate([np.empty(0), *(one.beside.times for one in staged)])
    found = split.in_time(marks, comm) if split.by == "time" else split.by_hash(marks)
    return np.split(found, np.cumsum([one.shard.rows for one in staged])[:-1]) if staged else []


def _divide(
    staged: Sequence[_Staged], part_of: Sequence[NDArray[np.uint8]], folders: Sequence[Path]
) -> list[list[_Staged]]:
    """The staged rows, staged again in the folders of their parts."""
    parts: list[list[_Staged]] = [[] for _ in folders]
    for one, part in zip(staged, part_of, strict=True):
        X, ids = dataset.staged_rows(one.shard)
        for k, folder in enumerate(folders):
            rows = np.flatnonzero(part == k)
            if len(rows):
                names, beside = None if ids is None else [ids[row] for row in rows], one.beside.some(rows)
                how = one.shard.dtype, names, one.shard.compression, beside
                shard = dataset.stage_shard(folder, one.shard.number, X[rows], *how)
                parts[k].append(_Staged(shard, one.values, one.codes[rows], one.hashes[rows], beside))
        one.shard.path.unlink()
    return parts


def _known(
    part: Sequence[_Staged], labels: Sequence[NDArray[np.int8]], asked: ReadOptions, comm: Communicator
) -> dict[str, Any]:
    """What the manifest says of rows that belong together. Collective."""
    hashes = np.concatenate([np.empty(0, np.uint64), *(one.hashes for one in part)])
    y = np.concatenate([np.empty(0, np.int8), *labels])
    return known(hashes, y, together([one.beside for one in part]), (asked.group, asked.time), comm)


def _sizes(parts: Sequence[Sequence[_Staged]], places: Sequence[Path | str], comm: Communicator) -> list[int]:
    """The rows of each part, of all ranks. Collective; raises InputError, with its place, where a part has none."""
    every = comm.allgather([sum(one.shard.rows for one in part) for part in parts])
    sizes = [sum(one) for one in zip(*every, strict=True)]
    for place, size in zip(places, sizes, strict=False):
        if not size:
            raise InputError(f"{place}: not a single row to write; a data set needs at least one", True)
    return sizes


def _entries(staged: Sequence[_Staged]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    for one in staged:
        yield from dataset.staged_entries(one.shard)


def _shares(reader: Reader, n_bytes: int, n_ranks: int, n_shards: int | None) -> list[list[Any]]:
    """What goes into each shard. Local, the same on every rank."""
    n_bytes *= text_files.EXPANSION if reader.compressed else 1
    n_shards = n_shards or max(n_ranks, -(-n_bytes // SHARD_TEXT_BYTES))
    # A compressed file falls into one share whole and may leave others without any.
    return [share for share in reader.plan(min(n_shards, n_bytes + 1)) if share] or [[]]


def _stage(rows: Rows, directory: Path, number: int, layout: Layout, named: bool) -> _Staged:
    shape = (len(rows.labels), rows.n_columns)
    X = sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=shape, copy=False)
    values, codes = np.unique(rows.labels, return_inverse=True)
    ids = (rows.ids or []) if named else None
    shard = dataset.stage_shard(directory, number, X, layout.dtype, ids, layout.compression, rows.beside)
    hashes = duplicates.hashes(X, layout.dtype)
    return _Staged(shard, values, codes.astype(np.min_scalar_type(len(values))), hashes, rows.beside)


def _signs(staged: _Staged, reader: Reader, label_map: Mapping[str, Any]) -> NDArray[np.int8]:
    """+1 and -1 for labels as the reader gave them."""
    values = staged.values
    found = values.astype(np.int8) if reader.label_map is not None else signs(values, label_map, "the text")
    return found[staged.codes]


def _size(path: str | os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _check_columns(rows: Rows, n_features: int | None, paths: Sequence[str]) -> None:
    if n_features is not None and rows.n_columns > n_features:
        raise InputError(
            f"{', '.join(sorted(set(paths)))}: uses column {rows.n_columns} (counted from 1), but --n-features is "
            f"{n_features}; give a larger one, or leave it out"
        )


def _tidy(directory: str | os.PathLike[str]) -> None:
    """Remove what a failed conversion wrote, and the directory if nothing else is in it."""
    with contextlib.suppress(OSError, InputError):
        dataset.prepare(directory, overwrite=True)
        (Path(directory) / LOCK).unlink(missing_ok=True)
        os.rmdir(directory)
