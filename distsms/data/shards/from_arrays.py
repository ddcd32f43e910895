"""Write arrays in memory as a data set, by one process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from distsms.data import duplicates, row_metadata
from distsms.data.groupby import group_statistics
from distsms.data.row_metadata import RowMetadata
from distsms.data.shards.manifest import Manifest
from distsms.data.shards.publish import prepare, publish
from distsms.data.shards.writer import finish_shard, stage_shard
from distsms.errors import InputError
from distsms.parallel.communicator import Communicator
from distsms.utils.files import exclusive


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
) -> Manifest:
    """Write arrays as a data set. Local: for one process.

    Parameters
    ----------
    directory : path
        The directory of the data set; it is created if necessary.
    X : sparse matrix or array-like, (n, p)
        The features.
    y : array-like, (n,)
        The labels, +1 and -1.
    n_shards : int
        The number of shards.
    weights : array-like, (n,), optional
        A weight for each row, finite and not negative.
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
        (`distsms.data.row_metadata`).

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
    X, y = X.tocsr() if sparse.issparse(X) else np.asarray(X), np.asarray(y)
    weights = None if weights is None else np.asarray(weights, np.float64)
    if X.ndim != 2 or min(X.shape) < 1:
        raise InputError(f"{directory}: X has shape {X.shape}; a data set needs rows and columns.")
    if y.shape != X.shape[:1] or (weights is not None and weights.shape != y.shape):
        raise InputError(f"{directory}: X has {X.shape[0]} rows; y and weights must have as many entries.")
    if not np.isin(y, (-1, 1)).all():
        found = ", ".join(map(str, np.unique(y)[:5]))
        raise InputError(
            f"{directory}: labels must be +1 and -1, but y has {found}. If the labels are 0 and 1, pass 2 * y - 1."
        )
    metadata = _metadata(directory, len(y), groups, times)._replace(weights=weights)
    with exclusive(Path(directory)):
        prepare(directory, overwrite)
        entries = []
        for number in range(n_shards):
            rows = slice(X.shape[0] * number // n_shards, X.shape[0] * (number + 1) // n_shards)
            staged = stage_shard(
                directory, number, X[rows], dtype, compression=compression, metadata=metadata.take(rows)
            )
            entries.append(finish_shard(staged, y[rows], X.shape[1], None if weights is None else weights[rows]))
        return publish(
            directory,
            entries,
            label_map=label_map or {"+1": 1, "-1": -1},
            zero_based=zero_based,
            source=source,
            statistics=group_statistics(
                duplicates.hash_rows(X, dtype),
                y,
                metadata,
                (*_names(groups, times), None if weights is None else "weights"),
                Communicator(),
            ),
        )


def _metadata(
    directory: str | os.PathLike[str], n: int, groups: ArrayLike | None, times: ArrayLike | None
) -> RowMetadata:
    given = {name: np.asarray(column) for name, column in (("groups", groups), ("times", times)) if column is not None}
    for name, column in given.items():
        if column.shape != (n,):
            raise InputError(f"{directory}: {name} have shape {column.shape}; there must be one for each of {n} rows.")

    def fail(name: str, row: int, problem: str) -> NoReturn:
        raise InputError(f"{directory}: {name}, row {row} (counted from 0): {problem}.")

    return row_metadata.read(*_names(groups, times), lambda name: row_metadata.as_strings(given[name]), fail)


def _names(groups: ArrayLike | None, times: ArrayLike | None) -> tuple[str | None, str | None]:
    """Return the names of groups and times in messages and in the manifest."""
    return (None if groups is None else "groups"), (None if times is None else "times")
