"""Make a data set with features from another one: every rank writes its share, and the root publishes all."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from distsms.base import hdf5
from distsms.base.errors import InputError
from distsms.base.typing import Hashes, Labels
from distsms.base.wording import option
from distsms.features import feature_map
from distsms.features.feature_map import FeatureMap
from distsms.features.fit import FeatureOptions, Progress, fit
from distsms.features.rows import RowParts
from distsms.matrix.normalization import BY_COLUMN, Normalization
from distsms.parallel.communicator import Communicator
from distsms.shards import dataset, duplicates
from distsms.shards.groupby import group_statistics
from distsms.shards.manifest import NOT_NORMALIZED, Manifest
from distsms.shards.publish import FEATURES_PARTIAL, writing
from distsms.shards.row_metadata import MetadataColumns, RowMetadata, concatenate
from distsms.shards.table_schema import check_same_features

SHARD_BYTES = 2**28
"""The most memory that the rows of one shard may take."""


class _Finished(NamedTuple):
    """What a rank knows of its finished shards."""

    entries: list[dict[str, Any]]
    labels: list[Labels]
    hashes: list[Hashes]
    metadata: list[RowMetadata]


def build(
    data: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    comm: Communicator,
    options: FeatureOptions | None = None,
    like: str | os.PathLike[str] | None = None,
    n_shards: int | None = None,
    compression: str = "none",
    overwrite: bool = False,
    progress: Progress = lambda task, unit, done, of: None,
    say: Callable[[str], None] = lambda text: None,
    made: FeatureMap | None = None,
    room: float = math.inf,
) -> Manifest:
    """Make a data set whose rows are the features of the rows of another one. **Collective.**

    Labels, names of rows, groups, times, weights and the record of a split are those of the other data set, and so is
    the order of the rows.

    Parameters
    ----------
    data : path
        A data set that `distsms shard` has made, without codes.
    directory : path
        The directory of the new data set. It is created if it does not exist.
    comm : Communicator
        The ranks that read and write.
    options : FeatureOptions, optional
        Which features to make from the rows of `data`.
    like : path, optional
        A data set with features, whose map is used instead.
    n_shards : int, optional
        The number of shards; by default that of `data`, and at least one for each rank. There are more if the rows of
        one would take more than SHARD_BYTES of memory.
    compression : str
        One of `manifest.COMPRESSIONS`.
    overwrite : bool
        Whether to replace a data set that is there already.
    progress, say
        As for `fit`.
    made : FeatureMap, optional
        A map that was made before; it is used instead.
    room : float
        The bytes that each rank has left; see `memory_limit.room`.

    Returns
    -------
    Manifest
        The new data set.

    Raises
    ------
    InputError
        On every rank, if the data, the options or the map do not fit together, or a file cannot be read or written.

    Notes
    -----
    Memory of a rank: the rows of one shard twice, a part of the rows of `data`, and what `fit` needs.
    """
    with comm.fail_together():
        dataset.check_writable(compression)
        manifest = dataset.read_manifest(data)
        dataset.check_readable(manifest)
        refuse_codes(manifest)
        if Path(os.path.realpath(directory)) == Path(os.path.realpath(data)):
            raise InputError(f"{directory}: is the data set that the features are made from; name another directory")
        known = None if like is None else _like(like, manifest)
    with writing(directory, comm, overwrite):
        if known is None:
            made = made or fit(manifest, comm, options or FeatureOptions(), progress, say, room=room)
            known = made, _normalization(manifest, made)
        shard_bytes = int(min(SHARD_BYTES, room / 2))
        return _write(manifest, *known, Path(directory), comm, n_shards, compression, progress, shard_bytes)


def refuse_codes(manifest: Manifest) -> None:
    """Raise InputError if the rows of a data set are codes already, so that no features can be made of them. Local."""
    if manifest.coded.sequences is not None:
        raise InputError(
            f"{manifest.directory}: has sequences, which have no columns to make features from: the k-mers are their "
            f"features (distsms shard {option('degree')}, {option('spectra')})"
        )
    if manifest.coded:
        what = "has features already" if manifest.coded.features else "has codes that were written from Python"
        raise InputError(f"{manifest.directory}: {what}; give the data set that distsms shard has made")


def _like(like: str | os.PathLike[str], manifest: Manifest) -> tuple[FeatureMap, Normalization]:
    """Return the map and the normalization of another data set. Local.

    Raises InputError if the rows of a data set do not fit the map.
    """
    other = dataset.read_manifest(like)
    found = feature_map.load(other)
    if found is None:
        raise InputError(f"{option('like', like)}: that data set has no features; make it with distsms features")
    check_columns(manifest, found, other.table)
    return found, other.normalization


def check_columns(manifest: Manifest, made: FeatureMap, table: Any, ignore_new: bool = False) -> None:
    """Raise InputError if the rows of a data set without codes do not have the columns that a map is made for. Local.

    table : the encoding of the training table, or None. ignore_new : whether the rows may have further columns.
    """
    if manifest.table is not None and table is not None:
        check_same_features(table, manifest.table, manifest.directory, ignore_new)
    elif (manifest.table is None) != (table is None):
        which = ("a table", "data without names") if table is None else ("data without names", "a table")
        raise InputError(f"{manifest.directory}: was made from {which[0]}, but the features from {which[1]}")
    if not ignore_new:
        dataset.check_columns(manifest, made.columns)


def _write(
    manifest: Manifest,
    made: FeatureMap,
    normalization: Normalization,
    directory: Path,
    comm: Communicator,
    n_shards: int | None,
    compression: str,
    progress: Progress,
    shard_bytes: int,
) -> Manifest:
    """Write, finish and publish the shards. Collective."""
    coded, p = made.coded, made.p
    entry_bytes = 12 if manifest.layout == "csr" else 8
    entries = manifest.nnz if manifest.layout == "csr" else manifest.n * made.columns
    n_bytes = 2 * manifest.n * coded.row_bytes + made.keep * entry_bytes * entries
    wanted = max(n_shards or max(comm.size, len(manifest.shards)), -(-n_bytes // shard_bytes))
    count = min(manifest.n, wanted)
    mine = range(count * comm.rank // comm.size, count * (comm.rank + 1) // comm.size)
    rows = [(manifest.n * k // count, manifest.n * (k + 1) // count) for k in mine]
    found, done, of = _Finished([], [], [], []), 0, sum(last - first for first, last in rows)

    def advance(n: int) -> None:
        nonlocal done
        done += n
        progress("writing the shards", "rows", done, of)

    row = np.zeros((1, made.columns), manifest.dtype)
    row = sparse.csr_matrix(row) if manifest.layout == "csr" else row
    comm.root_first(lambda: duplicates.hash_codes(made.codes(row)))  # compiles the kernels
    with comm.fail_together():
        advance(0)
        for number, (first, last) in zip(mine, rows, strict=True):
            parts = RowParts(manifest, first, last, made.columns)
            _write_shard(parts, made, directory, number, compression, p, found, advance)
    all_entries = comm.allgather(found.entries)
    group, time, weight = (
        None if record is None else record["column"] for record in (manifest.group, manifest.time, manifest.weight)
    )
    statistics = group_statistics(
        np.concatenate([np.empty(0, np.uint64), *found.hashes]),
        np.concatenate([np.empty(0, np.int8), *found.labels]),
        concatenate(found.metadata),
        MetadataColumns(group, time, weight),
        comm,
    )
    with comm.fail_together():
        if comm.is_root:
            with hdf5.write_file(directory / FEATURES_PARTIAL) as file:
                feature_map.write(made, file)
            dataset.publish(
                directory,
                [entry for own in all_entries for entry in own],
                label_map=manifest.label_map,
                zero_based=manifest.zero_based,
                source=manifest.source,
                table=manifest.table,
                normalization=normalization,
                split=manifest.split,
                statistics=statistics,
                columns=manifest.columns,
                coded=coded,
            )
    with comm.fail_together():
        return dataset.read_manifest(directory)


def _normalization(manifest: Manifest, made: FeatureMap) -> Normalization:
    """Return how training normalizes the rows: columns that are kept as before, and codes not at all."""
    known = manifest.normalization
    if not made.keep:
        return NOT_NORMALIZED
    if known.kind not in BY_COLUMN or known.scale is None:
        return known
    return Normalization(known.kind, np.concatenate([known.scale, np.ones(made.p - len(known.scale))]))


def _write_shard(
    parts: RowParts,
    made: FeatureMap,
    directory: Path,
    number: int,
    compression: str,
    p: int,
    found: _Finished,
    advance: Callable[[int], None],
) -> None:
    """Write the features of consecutive rows to a finished shard, and add what is known of it. Local.

    advance : called with the number of rows of each part whose features are known.
    """
    manifest, n = parts.manifest, parts.last - parts.first
    # Each code of all rows lies together, as in the file, so that writing need not turn them around.
    codes = [np.empty((part.code_map.n_codes, n), part.code_map.dtype).T for part in made.parts]
    kept, ids, labels, about = list[Any](), list[str](), list[Labels](), list[RowMetadata]()
    kinds = frozenset([manifest.time["kind"]] if manifest.time else [])
    for part in parts:
        here = slice(part.first - parts.first, part.first - parts.first + len(part.labels))
        try:
            for own, made_codes in zip(codes, made.codes(part.X), strict=True):
                own[here] = made_codes
        except InputError as error:
            raise InputError(f"{part.shard.path}: {error}") from error
        kept += [part.X] if made.keep else []
        ids += part.shard.read_ids(part.place) if manifest.ids else []
        labels.append(part.labels)
        groups = part.shard.read_groups(part.place) if manifest.group else None
        times = part.shard.read_times(part.place) if manifest.time else None
        about.append(RowMetadata(groups, times, kinds if manifest.time else frozenset(), part.weights))
        advance(len(part.labels))
    X = None
    if made.keep:
        X = sparse.vstack(kept, "csr") if manifest.layout == "csr" else np.vstack(kept)
    y, metadata = np.concatenate(labels), concatenate(about)
    names = ids if manifest.ids else None
    staged = dataset.stage_shard(directory, number, X, manifest.dtype, names, compression, metadata, codes, made.coded)
    found.entries.append(dataset.finish_shard(staged, y, p, metadata.weights))
    found.labels.append(y)
    hashes = None if X is None else duplicates.hash_rows(X, manifest.dtype)
    found.hashes.append(duplicates.hash_codes(codes, hashes))
    found.metadata.append(metadata)
