"""Files to shards, in parallel over ranks: each reads and writes its own shards, the root publishes them at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms import normalization, shards, textfiles
from distsms.comm import Communicator
from distsms.errors import InputError
from distsms.files import LOCK, exclusive
from distsms.labels import MOST, interpret, signs
from distsms.reading import Reader, Reading, open_reader, tell
from distsms.rows import Rows, concatenate

SHARD_TEXT_BYTES = 128 * 2**20
"""Text per shard where the number of shards is not given."""


class Layout(NamedTuple):
    """What is written. n_features : columns, if more than the input uses.  progress : see `convert`."""

    n_shards: int | None = None
    n_features: int | None = None
    dtype: str = "float64"
    normalize: str = "none"
    progress: Callable[[int, int], None] = lambda done, of: None


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
    **reading: Any,
) -> shards.Manifest:
    """Convert files of one format to a data set in `directory`. Collective; raises InputError on every rank.

    Rows keep their order: files as given, rows as they stand. Unless n_shards is given there is a shard for every
    128 MiB of text, and at least one for each rank. progress : called with the number of this rank's shards that are
    written, and how many it has. normalize : a kind of `normalization.KINDS`. like : a data set, whose columns,
    categories, labels and normalization are taken over. reading : label, id, drop; see `reading.Reading`.
    Memory of a rank: the text and rows of one shard, and 8 bytes for each of its rows.
    """
    asked = Reading(zero_based=zero_based, positive=positive, **reading)
    layout = Layout(n_shards, n_features, dtype, normalize or "none", progress)
    given = None
    with comm.together():
        sizes = [_size(path) for path in inputs]
        if like is not None:
            given, asked, layout = _as_in(shards.read_manifest(like), asked, layout, normalize)
    source = [{"name": Path(path).name, "bytes": size} for path, size in zip(inputs, sizes, strict=True)]
    reader = open_reader(inputs, asked, comm)
    with writing(directory, comm, overwrite):
        return _convert(reader, source, Path(directory), comm, asked, layout, given)


def _as_in(
    manifest: shards.Manifest, asked: Reading, layout: Layout, normalize: str | None
) -> tuple[normalization.Normalization, Reading, Layout]:
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
                shards.prepare(directory, overwrite)
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
    asked: Reading,
    layout: Layout,
    given: normalization.Normalization | None,
) -> shards.Manifest:
    """Read, write and publish the shares, one shard each. Collective.  given : a normalization that is known."""
    shares = _shares(reader, sum(one["bytes"] for one in source), comm.size, layout.n_shards)
    mine = range(len(shares) * comm.rank // comm.size, len(shares) * (comm.rank + 1) // comm.size)
    staged, labels, extent = {}, {}, normalization.Extent()
    columns = reader.n_columns or 0
    with comm.together():
        for done, k in enumerate(mine):
            rows = concatenate(reader.read(shares[k]))
            columns = max(columns, rows.n_columns)
            _check_columns(rows, layout.n_features, [piece.path for piece in shares[k]])
            if given is None and layout.normalize in normalization.BY_COLUMN:
                extent.add(rows.indices, rows.data)
            staged[k], labels[k] = _stage(rows, directory, k, layout.dtype, reader.named), rows.labels
            layout.progress(done + 1, len(mine))
    found = (
        {float(one) for k in mine for one in np.unique(labels[k])[: MOST + 1]} if reader.label_map is None else set()
    )
    summary = comm.allgather((found, columns, sum(one.rows for one in staged.values())))
    p = layout.n_features or max(1, *(one for _, one, _ in summary))
    n = sum(rows for _, _, rows in summary)
    tell(", ".join(one["name"] for one in source), reader.notes, comm)
    with comm.together():
        label_map = reader.label_map or interpret(set().union(*(one for one, _, _ in summary)), asked.positive).as_map()
    if given is None:
        entries = (part for one in staged.values() for part in shards.staged_entries(one))
        given = normalization.measure(layout.normalize, extent, entries, (n, p), comm)
    finished = []
    with comm.together():
        for k, shard in staged.items():
            finished.append(shards.finish_shard(shard, _signs(labels[k], reader, label_map), p))
    finished = [entry for part in comm.allgather(finished) for entry in part]
    with comm.together():
        if comm.is_root:
            shards.publish(
                directory,
                finished,
                label_map=label_map,
                zero_based=asked.zero_based,
                source=source,
                table=reader.table,
                normalization=given,
            )
    with comm.together():
        return shards.read_manifest(directory)


def _shares(reader: Reader, n_bytes: int, n_ranks: int, n_shards: int | None) -> list[list[Any]]:
    """What goes into each shard. Local, the same on every rank."""
    n_bytes *= textfiles.EXPANSION if reader.compressed else 1
    n_shards = n_shards or max(n_ranks, -(-n_bytes // SHARD_TEXT_BYTES))
    # A compressed file falls into one share whole and may leave others without any.
    return [share for share in reader.plan(min(n_shards, n_bytes + 1)) if share] or [[]]


def _stage(rows: Rows, directory: Path, number: int, dtype: str, named: bool) -> shards.StagedShard:
    shape = (len(rows.labels), rows.n_columns)
    X = sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=shape, copy=False)
    return shards.stage_shard(directory, number, X, dtype, (rows.ids or []) if named else None)


def _signs(labels: NDArray[np.float64], reader: Reader, label_map: Mapping[str, Any]) -> NDArray[np.int8]:
    """+1 and -1 for labels as the reader gave them."""
    if reader.label_map is not None:
        return labels.astype(np.int8)
    return signs(labels, label_map, "the text")


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
        shards.prepare(directory, overwrite=True)
        (Path(directory) / LOCK).unlink(missing_ok=True)
        os.rmdir(directory)
