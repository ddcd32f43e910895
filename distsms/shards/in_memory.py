"""Rows that a program has in memory, as arrays, on one rank or all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from distsms.base import hashing
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.typing import Floats, Hashes, Labels
from distsms.base.wording import format_value
from distsms.matrix.arrays import as_features, as_numbers, require_finite
from distsms.matrix.blocks import LocalRows
from distsms.matrix.side_by_side import SideBySide
from distsms.shards import row_metadata
from distsms.shards.dataset import DataBlock, other_weights
from distsms.shards.labels import format_labels, interpret, original_labels, plain_form, to_signs
from distsms.shards.row_metadata import HEAVIEST, NO_WEIGHT, in_range


def pair(data: Any) -> tuple[Any, Any]:
    """Return X and y. Raises InputError for anything that is no pair, and for a list of paths. Local."""
    if not hasattr(data, "__len__"):
        raise InputError(f"data are a path, a DataFrame, or a pair (X, y); {format_value(data):.60} is none of these")
    if len(data) == 2 and not any(isinstance(part, os.PathLike | str) for part in data):
        return data[0], data[1]
    raise InputError(
        "data are one path (a file, a folder of tables, or a pattern such as 'day-*.csv'), a DataFrame, or a pair "
        f"(X, y); a {type(data).__name__} of {len(data)} was given"
    )


def block(
    X: Any,
    y: ArrayLike | None,
    comm: Communicator,
    p: int | None = None,
    model_labels: Mapping[str, Any] | None = None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> DataBlock:
    """Return the rows of all ranks, anything like an array or `LocalRows`, as a block. **Collective.** Without y all
    labels are 0; `model_labels` is the `label_map` of a model. Weights and groups are on every rank or on none."""
    with comm.fail_together():
        if not isinstance(X, LocalRows | SideBySide):
            X = as_numbers(X)
        n_local, width = X.shape
        labels = np.zeros(n_local) if y is None else np.asarray(y)
        if labels.shape != (n_local,):
            raise InputError(f"y has shape {labels.shape}, but X has {n_local} rows; one label for each row is wanted")
        row_weights = None if weights is None else _weights(weights, n_local)
        keys = None if groups is None else group_keys(groups, n_local)
        if not isinstance(X, LocalRows | SideBySide):
            require_finite(X, "X, ")
        if p is not None and width != p:
            raise InputError(f"X has {width} columns, but the model has {p}; give the columns of the training data")
    sizes = comm.allgather((n_local, width))
    have_weights, weighted = zip(*comm.allgather((row_weights is not None, other_weights(row_weights))), strict=True)
    if len(set(have_weights)) > 1:
        raise InputError("some ranks have weights and others have none; give weights on every rank or on none", True)
    if len(set(comm.allgather(keys is not None))) > 1:
        raise InputError("some ranks have groups and others have none; give groups on every rank or on none", True)
    row_weights = None if row_weights is None else in_range(row_weights, comm)
    widths = [columns for _, columns in sizes]
    if len(set(widths)) > 1:
        raise InputError(f"X has {min(widths)} to {max(widths)} columns; all ranks must have the same", True)
    label_map, signs = (None, np.zeros(n_local, np.int8)) if y is None else _signs(labels, comm, model_labels)
    features = comm.root_first(lambda: X if isinstance(X, LocalRows | SideBySide) else as_features(X))
    counts = [rows for rows, _ in sizes]
    first, n = sum(counts[: comm.rank]), sum(counts)
    return DataBlock(features, signs, row_weights, first, n, width, 0, label_map, any(weighted), keys)


def group_keys(groups: ArrayLike, n_local: int) -> Hashes:
    """Return the hash of each row's group, (n_local,), the same as in shards; each row must have one. Local."""
    values = np.asarray(groups)
    if values.shape != (n_local,):
        raise InputError(f"groups has shape {values.shape}, but X has {n_local} rows; one group for each row is wanted")
    if values.dtype.kind in "iu":  # each different number is hashed once
        different, codes = np.unique(values, return_inverse=True)
        return row_metadata.groups(row_metadata.as_strings(different), _refuse_group)[codes]
    return row_metadata.groups(row_metadata.as_strings(values), _refuse_group)


def _refuse_group(row: int, problem: str) -> NoReturn:
    raise InputError(f"groups, row {row} (counted from 0): {problem}")


def _weights(weights: ArrayLike, n_local: int) -> Floats:
    array = np.asarray(weights)
    if array.shape != (n_local,) or array.dtype.kind not in "biuf":
        raise InputError(f"weight has shape {array.shape} and type {array.dtype}; give a number for each row")
    values = array.astype(np.float64)
    wrong = ~((values >= 0) & (values <= HEAVIEST))
    if wrong.any():
        row = int(wrong.argmax())
        raise InputError(f"weight, row {row} (counted from 0): found {values[row]:g}: {NO_WEIGHT}")
    return values


def _signs(
    y: NDArray[Any], comm: Communicator, model_labels: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any], NDArray[np.int8]]:
    """Return the label map of the labels of all ranks, and this rank's (n_local,) as +1 and -1. Collective. If a model
    knows all labels, they mean what they meant in training; otherwise they must be a known pair."""
    with comm.fail_together():
        kind = y.dtype.kind
        if kind not in "biufOU" or (kind == "f" and not np.isfinite(y).all()):
            wrong = "is missing or not finite" if kind == "f" else f"has the type {y.dtype}"
            raise InputError(f"y: a label {wrong}; labels are numbers, strings, or True and False")
        values = y if kind == "b" else y.astype(np.float64) if kind in "iuf" else np.array(y.tolist(), dtype=str)
        different, counts = np.unique(values, return_counts=True)
    total: Counter[Any] = Counter()
    for part in comm.allgather(dict(zip(different.tolist(), counts.tolist(), strict=True))):
        total.update(part)
    with comm.fail_together():
        of_model = [label for sign in ("+1", "-1") for label in original_labels(model_labels or {}, sign)]
        if model_labels is not None and {plain_form(label) for label in total} <= set(map(plain_form, of_model)):
            label_map = dict(model_labels)
        else:
            try:
                label_map = interpret(total)
            except InputError as error:
                raise InputError(
                    f"y: found the labels {format_labels(total, total)}; wanted are +1 and -1, 0 and 1, 1 and 2, True "
                    "and False, or yes and no. Give y == POSITIVE for others, with the positive label"
                ) from error
        return label_map, to_signs(values, label_map, "y")


def fingerprint(
    X: Any,
    labels: Labels,
    first_row: int,
    comm: Communicator,
    weights: Floats | None = None,
    groups: Hashes | None = None,
) -> str:
    """Return a hash of the rows of all ranks, whichever has them; takes 40 bytes an entry. **Collective.**"""
    X = sparse.coo_array(X if sparse.issparse(X) else np.asarray(X, float))
    values = X.data.astype(float)
    positive = first_row + np.flatnonzero(labels > 0)
    row_keys = hashing.row_keys(first_row + X.row, 0)
    hashes = (row_keys | np.uint64(1)) * (hashing.row_keys(X.col, 1) ^ values.view(np.uint64))
    parts = [hashes, hashing.row_keys(positive, 2)]
    for seed, further in ((3, None if weights is None else weights.view(np.uint64)), (4, groups)):
        if further is not None:
            rows = first_row + np.arange(len(further))
            parts.append((hashing.row_keys(rows, seed) | np.uint64(1)) * further)
    total = np.concatenate(parts).sum(dtype=np.uint64, keepdims=True)  # modulo 2^64
    return f"{int(comm.sum(total)[0]):016x}"
