"""Write arrays in memory as a data set, by one process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy
from numpy.typing import ArrayLike

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import exclusive
from distsms.matrix.code_maps import CodeMap
from distsms.shards import duplicates, frame_columns, row_metadata
from distsms.shards.coded_columns import CodedColumns
from distsms.shards.codes import Codes
from distsms.shards.groupby import group_statistics
from distsms.shards.manifest import Manifest
from distsms.shards.publish import prepare, publish
from distsms.shards.row_metadata import HEAVIEST, MetadataColumns, RowMetadata
from distsms.shards.writer import ShardForm, finish_shard, stage_shard


def write_data(
    directory: str | os.PathLike[str],
    X: Any,
    y: ArrayLike,
    n_shards: int = 1,
    weights: ArrayLike | None = None,
    dtype: str = "float64",
    label_map: Mapping[str, Any] | None = None,
    zero_based: bool = False,
    source: Iterable[Mapping[str, Any]] = (),
    overwrite: bool = False,
    compression: str = "none",
    groups: ArrayLike | None = None,
    times: ArrayLike | None = None,
    codes: Sequence[tuple[CodeMap, ArrayLike]] = (),
) -> Manifest:
    """Write arrays as a data set; by one process. X (n, p) is a matrix, array or DataFrame, or None; y (n,) has +1 and
    -1, weights are from 0 to 1e250, and groups and times are numbers, strings or dates. `codes` are groups of coded
    columns behind those of X: a map, and codes (n, codes of a row). InputError says what does not fit."""
    y, names = np.asarray(y), None
    coded, arrays = _codes(directory, codes)
    if X is None and coded:
        shape = arrays[0].shape[0], 0
    else:
        X, names = frame_columns.numbers(X, Communicator())
        X = X.tocsr() if scipy.sparse.issparse(X) else np.asarray(X)
        shape = X.shape
        if len(shape) != 2 or min(shape) < 1:
            raise InputError(f"{directory}: X has shape {shape}; a data set needs rows and columns.")
    weights = None if weights is None else np.asarray(weights, np.float64)
    if wrong := [array.shape for array in arrays if len(array) != shape[0]]:
        raise InputError(f"{directory}: codes have shape {wrong[0]}, but there are {shape[0]} rows.")
    if y.shape != shape[:1] or (weights is not None and weights.shape != y.shape):
        raise InputError(f"{directory}: X has {shape[0]} rows; y and weights must have as many entries.")
    if weights is not None and not ((weights >= 0) & (weights <= HEAVIEST)).all():
        raise InputError(f"{directory}: weights must be from 0 to 1e250.")
    if not np.isin(y, (-1, 1)).all():
        shown = ", ".join(map(str, np.unique(y)[:5]))
        raise InputError(f"{directory}: labels must be +1 and -1, but y has {shown}. Pass 2 * y - 1 for 0 and 1.")
    metadata = _metadata(directory, len(y), {"groups": groups, "times": times})._replace(weights=weights)
    with exclusive(Path(directory)):
        prepare(directory, overwrite)
        form, entries = ShardForm(dtype, compression, coded), []
        for number in range(n_shards):
            rows = slice(len(y) * number // n_shards, len(y) * (number + 1) // n_shards)
            part, part_codes = None if X is None else X[rows], [array[rows] for array in arrays]
            staged = stage_shard(directory, number, part, form, metadata=metadata.take(rows), codes=part_codes)
            weight = None if weights is None else weights[rows]
            entries.append(finish_shard(staged, y[rows], shape[1] + coded.p, weight))
        hashes = None if X is None else duplicates.hash_rows(X, dtype)
        if hashes is None or arrays:
            hashes = duplicates.hash_codes(arrays, hashes)
        return publish(
            directory,
            entries,
            label_map=label_map or {"+1": 1, "-1": -1},
            zero_based=zero_based,
            source=source,
            statistics=group_statistics(
                hashes,
                y,
                metadata,
                MetadataColumns(
                    group=None if groups is None else "groups",
                    time=None if times is None else "times",
                    weight=None if weights is None else "weights",
                ),
                Communicator(),
            ),
            coded=coded,
            table=frame_columns.table_of(names),
        )


def _codes(
    directory: str | os.PathLike[str], codes: Sequence[tuple[CodeMap, ArrayLike]]
) -> tuple[CodedColumns, list[Codes]]:
    arrays = []
    for number, (code_map, values) in enumerate(codes):
        array = np.asarray(values)
        if array.ndim != 2 or array.shape[1] != code_map.n_codes or array.dtype.kind not in "iu":
            raise InputError(f"{directory}: codes {number}: whole numbers of shape (n, {code_map.n_codes}) are wanted.")
        if array.size and not 0 <= array.min() <= array.max() <= np.iinfo(code_map.dtype).max:
            raise InputError(f"{directory}: codes {number} are not all from 0 to {np.iinfo(code_map.dtype).max}.")
        arrays.append(array.astype(code_map.dtype, copy=False))
    return CodedColumns(tuple(code_map for code_map, _ in codes)), arrays


def _metadata(directory: str | os.PathLike[str], n: int, arrays: Mapping[str, ArrayLike | None]) -> RowMetadata:
    columns = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    for name, column in columns.items():
        if column.shape != (n,):
            raise InputError(f"{directory}: {name} have shape {column.shape}; there must be one for each of {n} rows.")

    def fail(name: str, row: int, problem: str) -> NoReturn:
        raise InputError(f"{directory}: {name}, row {row} (counted from 0): {problem}.")

    group, time = (name if name in columns else None for name in ("groups", "times"))
    return row_metadata.read(
        MetadataColumns(group, time, None), lambda name: row_metadata.as_strings(columns[name]), fail
    )
