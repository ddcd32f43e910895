"""Write arrays in memory as a data set, by one process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy
from numpy.typing import ArrayLike

from distsms.base.errors import InputError
from distsms.base.files import exclusive
from distsms.base.typing import Hashes
from distsms.matrix.code_maps import CodeMap
from distsms.parallel.communicator import Communicator
from distsms.shards import duplicates, frame_columns, row_metadata
from distsms.shards.coded_columns import CodedColumns
from distsms.shards.codes import Codes
from distsms.shards.groupby import group_statistics
from distsms.shards.manifest import Manifest
from distsms.shards.publish import prepare, publish
from distsms.shards.row_metadata import MetadataColumns, RowMetadata
from distsms.shards.writer import finish_shard, stage_shard


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
    """Write arrays as a data set. Local: for one process.

    Parameters
    ----------
    directory : path
        The directory of the data set; it is created if necessary.
    X : sparse matrix, array-like or DataFrame, (n, p), or None
        The features. The data set has the names of a DataFrame's columns. None if there are codes only.
    y : array-like, (n,)
        The labels, +1 and -1.
    n_shards : int
        The number of shards.
    weights : array-like, (n,), optional
        A weight for each row, from 0 to 1e250.
    dtype : str
        "float32" or "float64", of the values in the shards.
    label_map, zero_based, source
        What the manifest says about the origin of the data; see `Manifest`.
    overwrite : bool
        Whether to replace a data set that is there already.
    compression : str
        One of `manifest.COMPRESSIONS`.
    groups, times : array-like, (n,), optional
        Which rows belong together, and when they were recorded: numbers, strings or dates
        (`distsms.shards.row_metadata`).
    codes : sequence of (CodeMap, array-like)
        Groups of coded columns, which follow those of X: a map of `distsms.matrix.code_maps`, and the codes, (n, codes
        of a row). The largest number of the map's `dtype` means that a code is missing.

    Returns
    -------
    Manifest
        The data set.

    Raises
    ------
    InputError
        If the arrays do not fit together, hold no row or invalid values, or if the directory holds a data set and
        `overwrite` is False.
    """
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
    if not np.isin(y, (-1, 1)).all():
        shown = ", ".join(map(str, np.unique(y)[:5]))
        raise InputError(f"{directory}: labels must be +1 and -1, but y has {shown}. Pass 2 * y - 1 for 0 and 1.")
    metadata = _metadata(directory, len(y), {"groups": groups, "times": times})._replace(weights=weights)
    with exclusive(Path(directory)):
        prepare(directory, overwrite)
        entries = []
        for number in range(n_shards):
            rows = slice(len(y) * number // n_shards, len(y) * (number + 1) // n_shards)
            part, part_codes = None if X is None else X[rows], [array[rows] for array in arrays]
            staged = stage_shard(
                directory, number, part, dtype, None, compression, metadata.take(rows), part_codes, coded
            )
            weight = None if weights is None else weights[rows]
            entries.append(finish_shard(staged, y[rows], shape[1] + coded.p, weight))
        return publish(
            directory,
            entries,
            label_map=label_map or {"+1": 1, "-1": -1},
            zero_based=zero_based,
            source=source,
            statistics=group_statistics(
                _hashes(X, dtype, arrays),
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


def _hashes(X: Any, dtype: str, codes: list[Codes]) -> Hashes:
    of_entries = None if X is None else duplicates.hash_rows(X, dtype)
    return of_entries if of_entries is not None and not codes else duplicates.hash_codes(codes, of_entries)


def _codes(
    directory: str | os.PathLike[str], codes: Sequence[tuple[CodeMap, ArrayLike]]
) -> tuple[CodedColumns, list[Codes]]:
    """Return the coded columns and the codes (n, codes of a row) of each group, in the types of their maps."""
    arrays = []
    for number, (code_map, values) in enumerate(codes):
        array = np.asarray(values)
        if array.ndim != 2 or array.shape[1] != code_map.n_codes or array.dtype.kind not in "iu":
            raise InputError(f"{directory}: codes {number} must be whole numbers of shape (n, {code_map.n_codes}).")
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

    group, time = ("groups" if "groups" in columns else None), ("times" if "times" in columns else None)
    return row_metadata.read(group, time, lambda name: row_metadata.as_strings(columns[name]), fail)
