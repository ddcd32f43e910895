"""The columns of tables in memory whose rows are numbers: their names, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.wording import format_value
from distsms.shards.table_schema import Column, Table, check_columns, format_names


def is_frame(data: Any) -> bool:
    """Return whether data are a table in memory, of pandas, polars or pyarrow. Local; may load pyarrow."""
    if hasattr(data, "to_arrow") or (hasattr(data, "columns") and hasattr(data, "iloc")):
        return True
    if not hasattr(data, "columns"):
        return False
    import pyarrow as pa

    return isinstance(data, pa.Table | pa.RecordBatch)


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
            raise InputError(
                f"X has the columns {format_names(local_names)}, and other rows have {format_names(names)}; give "
                "the same columns, in any order"
            )
        if is_frame(X):
            X = _array(X, local_names, names if local_names else None)
    return X, None if names is None else list(names)


def table_of(names: Sequence[str] | None) -> Table | None:
    """Return the encoding of a table whose columns are numbers and features as they are; None without names."""
    return None if names is None else Table(tuple(map(Column, names)))


def _names(X: Any) -> list[str]:
    names = list(map(str, X.columns if hasattr(X, "iloc") or hasattr(X, "to_arrow") else X.schema.names))
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
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
        raise InputError(
            f"X has a column that is not numbers, or in which values are missing ({error}). Give the table with its "
            "column of labels, which reads such columns: train(frame, label='y')"
        ) from error
