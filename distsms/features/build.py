"""Make a data set with features from another one: every rank writes its share, and the root publishes all."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from distsms.base import hashing, hdf5
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.typing import Hashes, Labels
from distsms.base.wording import option
from distsms.features import feature_map
from distsms.features.feature_map import FeatureMap
from distsms.features.fit import FeatureOptions, fit
from distsms.features.growing import UNWATCHED, FeaturesObserver
from distsms.features.rows import RowParts
from distsms.matrix.normalization import BY_COLUMN, Normalization
from distsms.shards import dataset, storage
from distsms.shards.manifest import FEATURES_PARTIAL, NOT_NORMALIZED, Manifest, publish, publishing, read_manifest
from distsms.shards.row_metadata import MetadataColumns, RowMetadata, concatenate
from distsms.shards.row_statistics import group_statistics
from distsms.shards.rows import of_rank
from distsms.shards.table_schema import check_same_features
from distsms.shards.writer import ShardForm, finish_shard, stage_shard

SHARD_BYTES = 2**28
"""The most memory that the rows of one shard may take."""


def build(
    data: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    comm: Communicator,
    options: FeatureOptions | None = None,
    like: str | os.PathLike[str] | None = None,
    n_shards: int | None = None,
    compression: str = "none",
    overwrite: bool = False,
    observer: FeaturesObserver = UNWATCHED,
    fitted: FeatureMap | None = None,
    room: float = math.inf,
) -> Manifest:
    """Make a data set whose rows are the features of the rows of another one. **Collective.** The features are those of
    `options`, of the data set `like`, or of the map `fitted`; all else is that of `data`. There are as many shards as
    `data` has, at least one for each rank, or `n_shards`, and more if one takes more than SHARD_BYTES. A rank has
    `room` bytes left for the rows of a shard, twice, a part of `data`, and what `fit` needs."""
    with comm.fail_together():
        storage.check_codec(compression)
        manifest = read_manifest(data)
        storage.check_codec(manifest.compression, manifest.directory)
        refuse_codes(manifest)
        if Path(os.path.realpath(directory)) == Path(os.path.realpath(data)):
            raise InputError(f"{directory}: is the data set that the features are made from; name another directory")
        normalization = None
        if like is not None:
            fitted, normalization = _like(like, manifest)
    with publishing(directory, comm, overwrite):
        fitted = fitted or fit(manifest, comm, options or FeatureOptions(), observer, room=room)
        # 1) How many shards there are, and which of them this rank writes.
        bytes_kept = 12 * manifest.nnz if manifest.layout == "csr" else 8 * manifest.n * fitted.columns
        n_bytes = 2 * manifest.n * fitted.coded.row_bytes + fitted.keep * bytes_kept
        fewest_shards = -(-n_bytes // int(min(SHARD_BYTES, room / 2)))
        shard_count = min(manifest.n, max(n_shards or max(comm.size, len(manifest.shards)), fewest_shards))
        shard_numbers = of_rank(shard_count, comm)
        row_ends = [manifest.n * number // shard_count for number in (*shard_numbers, shard_numbers.stop)]
        # 2) Write them.
        n_local = row_ends[-1] - row_ends[0]
        writer = _ShardWriter(manifest, fitted, Path(directory), compression, observer, n_local)
        comm.root_first(writer.compile)
        with comm.fail_together():
            writer.advance(0)
            for number, (first, last) in zip(shard_numbers, pairwise(row_ends), strict=True):
                writer.write(number, first, last)
        # 3) Publish the data set.
        _publish(writer, normalization or _normalization(manifest, fitted), comm)
    with comm.fail_together():
        return read_manifest(directory)


def refuse_codes(manifest: Manifest) -> None:
    """Raise InputError if the rows of a data set are codes already, so that no features can be made of them. Local."""
    if manifest.coded.sequences is not None:
        kmers = f"the k-mers are their features (distsms shard {option('degree')}, {option('spectra')})"
        raise InputError(f"{manifest.directory}: has sequences, which have no columns to make features from: {kmers}")
    if manifest.coded:
        kind = "has features already" if manifest.coded.features else "has codes that were written from Python"
        raise InputError(f"{manifest.directory}: {kind}; give the data set that distsms shard has made")


def _like(like: str | os.PathLike[str], manifest: Manifest) -> tuple[FeatureMap, Normalization]:
    """Return the feature map of another data set, and how its features are normalized."""
    other = read_manifest(like)
    of_other = feature_map.load(other)
    if of_other is None:
        raise InputError(f"{option('like', like)}: that data set has no features; make it with distsms features")
    check_columns(manifest, of_other, other.table)
    return of_other, other.normalization


def check_columns(manifest: Manifest, of_training: FeatureMap, table: Any, ignore_new: bool = False) -> None:
    """Raise InputError unless rows without codes have the columns of a map, made for `table` (or None). Local."""
    if manifest.table is not None and table is not None:
        check_same_features(table, manifest.table, manifest.directory, ignore_new)
    elif (manifest.table is None) != (table is None):
        which = ("a table", "data without names") if table is None else ("data without names", "a table")
        raise InputError(f"{manifest.directory}: was made from {which[0]}, but the features from {which[1]}")
    if not ignore_new:
        dataset.check_width(manifest, of_training.columns)


def _normalization(manifest: Manifest, fitted: FeatureMap) -> Normalization:
    """Return how training normalizes the rows: columns that are kept as before, and codes not at all."""
    of_columns = manifest.normalization
    if not fitted.keep:
        return NOT_NORMALIZED
    if of_columns.kind not in BY_COLUMN or of_columns.scale is None:
        return of_columns
    ones = np.ones(fitted.p - len(of_columns.scale))
    return Normalization(of_columns.kind, np.concatenate([of_columns.scale, ones]))


@dataclass
class _ShardWriter:
    """Writes the shards of this rank, and keeps what the whole data set needs to know of them. Local."""

    manifest: Manifest
    features: FeatureMap
    directory: Path
    compression: str
    observer: FeaturesObserver
    n_local: int
    done: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list)  # of the finished shards, for the manifest
    labels: list[Labels] = field(default_factory=lambda: [np.empty(0, np.int8)])
    hashes: list[Hashes] = field(default_factory=lambda: [np.empty(0, np.uint64)])
    metadata: list[RowMetadata] = field(default_factory=list)

    def compile(self) -> None:
        row = np.zeros((1, self.features.columns), self.manifest.dtype)
        X = sparse.csr_matrix(row) if self.manifest.layout == "csr" else row
        hashing.hash_codes(self.features.codes(X))

    def advance(self, n: int) -> None:
        self.done += n
        self.observer.progress("writing the shards", "rows", self.done, self.n_local)

    def write(self, number: int, first: int, last: int) -> None:
        manifest, features = self.manifest, self.features
        parts = RowParts(manifest, first, last, features.columns)
        # Each code of all rows lies together, as in the file, so that writing need not turn them around.
        codes = [np.empty((part.code_map.n_codes, last - first), part.code_map.dtype).T for part in features.parts]
        X_parts, ids = list[Any](), list[str]()
        labels, metadata = list[Labels](), list[RowMetadata]()
        for part in parts:
            for all_codes, part_codes in zip(codes, features.codes(part.X), strict=True):
                all_codes[part.place.after(first)] = part_codes
            X_parts += [part.X] if features.keep else []
            ids += part.shard.read_ids(part.place) if manifest.ids else []
            labels.append(part.labels)
            groups = part.shard.read_groups(part.place) if manifest.group else None
            times = part.shard.read_times(part.place) if manifest.time else None
            kinds = frozenset([manifest.time["kind"]] if manifest.time else [])
            metadata.append(RowMetadata(groups, times, kinds, part.weights))
            self.advance(len(part.labels))
        X = None
        if features.keep:
            X = sparse.vstack(X_parts, "csr") if manifest.layout == "csr" else np.vstack(X_parts)
        y, of_shard = np.concatenate(labels), concatenate(metadata)
        form = ShardForm(manifest.dtype, self.compression, features.coded)
        staged = stage_shard(self.directory, number, X, form, ids if manifest.ids else None, of_shard, codes)
        self.entries.append(finish_shard(staged, y, features.p, of_shard.weights))
        self.labels.append(y)
        of_columns = None if X is None else hashing.hash_rows(X, manifest.dtype)
        self.hashes.append(hashing.hash_codes(codes, of_columns))
        self.metadata.append(of_shard)


def _publish(writer: _ShardWriter, normalization: Normalization, comm: Communicator) -> None:
    """Publish the shards of all ranks. **Collective.**"""
    manifest, directory = writer.manifest, writer.directory
    entries = comm.allgather(writer.entries)
    of_rows = (manifest.group, manifest.time, manifest.weight)
    columns = MetadataColumns._make(None if record is None else record["column"] for record in of_rows)
    hashes, labels = np.concatenate(writer.hashes), np.concatenate(writer.labels)
    statistics = group_statistics(hashes, labels, concatenate(writer.metadata), columns, comm)
    with comm.fail_together():
        if comm.is_root:
            with hdf5.write_file(directory / FEATURES_PARTIAL) as file:
                feature_map.write(writer.features, file)
            same = ("label_map", "zero_based", "source", "table", "split", "columns")
            publish(
                directory,
                [entry for of_rank in entries for entry in of_rank],
                normalization=normalization,
                statistics=statistics,
                coded=writer.features.coded,
                **{name: getattr(manifest, name) for name in same},
            )
