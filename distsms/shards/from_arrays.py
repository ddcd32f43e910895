"""Rows that a program has in memory, as arrays or tables, on one rank or all: to train on, or to write as data sets."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from distsms.base import hashing
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import exclusive
from distsms.base.typing import Floats, Hashes, Labels
from distsms.base.wording import format_value
from distsms.matrix.arrays import as_features, as_numbers, require_finite
from distsms.matrix.blocks import LocalRows
from distsms.matrix.code_maps import CodeMap
from distsms.matrix.side_by_side import SideBySide
from distsms.shards import row_metadata, row_statistics
from distsms.shards.coded_columns import CodedColumns, Codes
from distsms.shards.dataset import DataBlock, other_weights
from distsms.shards.labels import format_labels, interpret, original_labels, plain_form, to_signs
from distsms.shards.manifest import Manifest, prepare, publish
from distsms.shards.row_metadata import HEAVIEST, NO_WEIGHT, MetadataColumns, RowMetadata, in_range
from distsms.shards.table_schema import Column, Table, check_columns, format_names, repeated
from distsms.shards.writer import ShardForm, finish_shard, stage_shard


def is_frame(data: Any) -> bool:
    """Return whether data are a table in memory, of pandas, polars or pyarrow. Local."""
    if hasattr(data, "to_arrow") or (hasattr(data, "columns") and hasattr(data, "iloc")):
        return True
    arrow = sys.modules.get("pyarrow")  # which is loaded where a table of its own is
    return arrow is not None and isinstance(data, arrow.Table | arrow.RecordBatch)


def names_of(X: Any) -> list[str] | None:
    """Return the names of the columns of a table in memory; None for other data, and for columns 0, 1, 2, ... Local."""
    if not is_frame(X) or (hasattr(X, "iloc") and list(X.columns) == list(range(X.shape[1]))):
        return None
    return _names(X)


def ordered(X: Any, table: Table, ignore_new: bool) -> Any:
    """Return the numbers of a table in memory, (n, p), with the columns of an encoding of numbers. Local."""
    features, names = [column.name for column in table.columns], _names(X)
    optional = [*table.dropped, *(name for name in (table.label, table.id) if name)]
    check_columns(features, names, optional, "X", ignore_new)
    return _array(X, names, features)


def numbers(X: Any, comm: Communicator, earlier: Sequence[str] | None = None) -> tuple[Any, list[str] | None]:
    """Return the rows of all ranks with their columns in one order, that of `earlier` rows or of the first rank whose
    columns have names, and these names. **Collective.**"""
    with comm.fail_together():
        local_names = names_of(X)
    names = next((candidate for candidate in [earlier, *comm.allgather(local_names)] if candidate is not None), None)
    with comm.fail_together():
        if local_names is None and names is not None and earlier is None and np.shape(X)[:1] != (0,):
            raise InputError("the columns of X have names on some ranks and none on others; give tables on all ranks")
        if local_names is not None and names is not None and set(local_names) != set(names):
            both = f"{format_names(local_names)}, and other rows have {format_names(names)}"
            raise InputError(f"X has the columns {both}; give the same columns, in any order")
        if is_frame(X):
            X = _array(X, local_names, names if local_names else None)
    return X, None if names is None else list(names)


def table_of(names: Sequence[str] | None) -> Table | None:
    """Return the encoding of a table whose columns are numbers and features as they are; None without names."""
    return None if names is None else Table(tuple(map(Column, names)))


def _names(X: Any) -> list[str]:
    names = list(map(str, X.columns if hasattr(X, "iloc") or hasattr(X, "to_arrow") else X.schema.names))
    if (twice := repeated(names)) is not None:
        raise InputError(f"X has two columns that are named {format_value(twice)}; give each column a name of its own")
    return names


def _array(X: Any, names: Sequence[str] | None, order: Sequence[str] | None) -> Any:
    """Return columns of a table in memory, which has these names, in this order, as an array of numbers."""
    if names is not None and order is not None and list(names) != list(order):
        X = X.iloc[:, [names.index(name) for name in order]] if hasattr(X, "iloc") else X.select(list(order))
    values = np.asarray(X)
    if values.dtype.kind in "biuf":
        return values
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        remedy = "give the table with its column of labels, which reads such columns: train(frame, label='y')"
        raise InputError(f"X has a column that is not numbers, or lacks values ({error}): {remedy}") from error


def pair(data: Any) -> tuple[Any, Any]:
    """Return X and y. Raises InputError for anything that is no pair, and for a list of paths. Local."""
    if hasattr(data, "__len__") and len(data) == 2 and not any(isinstance(part, os.PathLike | str) for part in data):
        return data[0], data[1]
    kinds = "one path (a file, a folder of tables, or a pattern such as 'day-*.csv'), a DataFrame, or a pair (X, y)"
    value = f"a {type(data).__name__} of {len(data)}" if hasattr(data, "__len__") else f"{format_value(data):.60}"
    raise InputError(f"data are {kinds}; {value} is none of these")


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
    ready = isinstance(X, LocalRows | SideBySide)
    with comm.fail_together():
        X = X if ready else as_numbers(X)
        n_local, width = X.shape
        labels = np.zeros(n_local) if y is None else _one_each(y, "y", n_local)
        row_weights = None if weights is None else _weights(weights, n_local)
        keys = None if groups is None else group_keys(groups, n_local)
        if not ready:
            require_finite(X, "X, ")
        if p is not None and width != p:
            raise InputError(f"X has {width} columns, but the model has {p}; give the columns of the training data")
    counts, widths = comm.allgather(n_local), set(comm.allgather(width))
    for name, values in (("weights", row_weights), ("groups", keys)):
        if len(set(comm.allgather(values is None))) > 1:
            raise InputError(f"some ranks have {name} and others have none; give {name} on every rank or on none", True)
    weighted = any(comm.allgather(other_weights(row_weights)))
    row_weights = None if row_weights is None else in_range(row_weights, comm)
    if len(widths) > 1:
        raise InputError(f"X has {min(widths)} to {max(widths)} columns; all ranks must have the same", True)
    label_map, signs = (None, np.zeros(n_local, np.int8)) if y is None else _signs(labels, comm, model_labels)
    features = comm.root_first(lambda: X if ready else as_features(X))
    return DataBlock(
        features,
        signs,
        row_weights,
        first_row=sum(counts[: comm.rank]),
        n=sum(counts),
        p=width,
        bytes_read=0,
        label_map=label_map,
        weighted=weighted,
        groups=keys,
    )


def _one_each(values: ArrayLike, name: str, n: int) -> NDArray[Any]:
    """Return the values of n rows, (n,), as an array. Raises InputError for another shape."""
    array = np.asarray(values)
    if array.shape != (n,):
        raise InputError(f"{name} has shape {array.shape}, but X has {n} rows; give one for each row")
    return array


def _refuse(name: str, row: int, problem: str) -> NoReturn:
    raise InputError(f"{name}, row {row} (counted from 0): {problem}")


def group_keys(groups: ArrayLike, n_local: int) -> Hashes:
    """Return the hash of each row's group, (n_local,), the same as in shards; each row must have one. Local."""
    values, refuse = _one_each(groups, "groups", n_local), partial(_refuse, "groups")
    if values.dtype.kind in "iu":  # each different number is hashed once
        different, codes = np.unique(values, return_inverse=True)
        return row_metadata.groups(row_metadata.as_strings(different), refuse)[codes]
    return row_metadata.groups(row_metadata.as_strings(values), refuse)


def _weights(weights: ArrayLike, n: int) -> Floats:
    array = _one_each(weights, "weight", n)
    if array.dtype.kind not in "biuf":
        raise InputError(f"weight has the type {array.dtype}; give a number for each row")
    values = array.astype(np.float64)
    wrong = ~((values >= 0) & (values <= HEAVIEST))
    if wrong.any():
        row = int(wrong.argmax())
        _refuse("weight", row, f"found {values[row]:g}: {NO_WEIGHT}")
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
                pairs = "+1 and -1, 0 and 1, 1 and 2, True and False, yes and no; for others, give y == POSITIVE"
                raise InputError(f"y: found the labels {format_labels(total, total)}; expected {pairs}") from error
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
    X = scipy.sparse.coo_array(X if scipy.sparse.issparse(X) else np.asarray(X, float))
    values = X.data.astype(float)
    positive = first_row + np.flatnonzero(labels > 0)
    row_keys = hashing.row_keys(first_row + X.row.astype(np.int64), 0)
    hashes = (row_keys | np.uint64(1)) * (hashing.row_keys(X.col, 1) ^ values.view(np.uint64))
    parts = [hashes, hashing.row_keys(positive, 2)]
    for seed, further in ((3, None if weights is None else weights.view(np.uint64)), (4, groups)):
        if further is not None:
            rows = first_row + np.arange(len(further))
            parts.append((hashing.row_keys(rows, seed) | np.uint64(1)) * further)
    total = np.concatenate(parts).sum(dtype=np.uint64, keepdims=True)  # modulo 2^64
    return f"{int(comm.sum(total)[0]):016x}"


def write_data(
    directory: str | os.PathLike[str],
    X: Any,
    y: ArrayLike,
    n_shards: int = 1,
    weights: ArrayLike | None = None,
    dtype: str = "float64",
    label_map: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    compression: str = "none",
    groups: ArrayLike | None = None,
    times: ArrayLike | None = None,
    codes: Sequence[tuple[CodeMap, ArrayLike]] = (),
) -> Manifest:
    """Write arrays as a data set; by one process. X (n, p) is a matrix, array or DataFrame, or None; y (n,) has +1 and
    -1, weights are from 0 to 1e250, and groups and times are numbers, strings or dates. `codes` are groups of coded
    columns behind those of X: a map, and codes (n, codes of a row). InputError says what does not fit."""
    coded = CodedColumns(tuple(code_map for code_map, _ in codes))
    code_arrays = [_codes(number, code_map, values) for number, (code_map, values) in enumerate(codes)]
    if X is None and coded:
        (n, p), names = (len(code_arrays[0]), 0), None
    else:
        X, names = numbers(X, Communicator())
        X = as_numbers(X)
        if min(X.shape) < 1:
            raise InputError(f"X has shape {X.shape}; a data set needs rows and columns")
        n, p = X.shape
    if wrong := [array.shape for array in code_arrays if len(array) != n]:
        raise InputError(f"codes have shape {wrong[0]}, but there are {n} rows")
    y = _one_each(y, "y", n)
    if not np.isin(y, (-1, 1)).all():
        shown = ", ".join(map(str, np.unique(y)[:5]))
        raise InputError(f"labels must be +1 and -1, but y has {shown}; pass 2 * y - 1 for 0 and 1")
    metadata = RowMetadata(
        groups=None if groups is None else group_keys(groups, n),
        weights=None if weights is None else _weights(weights, n),
    )
    if times is not None:
        strings = row_metadata.as_strings(_one_each(times, "times", n))
        seconds, kinds = row_metadata.times(strings, partial(_refuse, "times"))
        metadata = metadata._replace(times=seconds, kinds=kinds)
    named = {"groups": groups, "times": times, "weights": weights}
    columns = MetadataColumns._make(None if values is None else name for name, values in named.items())
    with exclusive(Path(directory)):
        prepare(directory, overwrite)
        form, entries = ShardForm(dtype, compression, coded), []
        for number in range(n_shards):
            rows = slice(n * number // n_shards, n * (number + 1) // n_shards)
            part, part_codes = None if X is None else X[rows], [array[rows] for array in code_arrays]
            of_rows = metadata.take(rows)
            staged = stage_shard(directory, number, part, form, metadata=of_rows, codes=part_codes)
            entries.append(finish_shard(staged, y[rows], p + coded.p, of_rows.weights))
        hashes = hashing.hash_codes(code_arrays, None if X is None else hashing.hash_rows(X, dtype))
        return publish(
            directory,
            entries,
            label_map=label_map or {"+1": 1, "-1": -1},
            zero_based=False,
            statistics=row_statistics.group_statistics(hashes, y, metadata, columns, Communicator()),
            coded=coded,
            table=table_of(names),
        )


def _codes(number: int, code_map: CodeMap, values: ArrayLike) -> Codes:
    array, largest = np.asarray(values), np.iinfo(code_map.dtype).max
    if array.ndim != 2 or array.shape[1] != code_map.n_codes or array.dtype.kind not in "iu":
        raise InputError(f"codes {number}: whole numbers of shape (n, {code_map.n_codes}) are wanted")
    if array.size and not 0 <= array.min() <= array.max() <= largest:
        raise InputError(f"codes {number} are not all from 0 to {largest}")
    return array.astype(code_map.dtype, copy=False)
