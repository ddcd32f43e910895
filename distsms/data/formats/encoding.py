"""Compute features from the columns of a table: `encode` does it for every format, in training and in prediction."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.data.formats import columns
from distsms.data.formats.column_survey import years
from distsms.data.formats.rows import index_dtype
from distsms.data.formats.table_schema import CATEGORY, DATE, DATE_PARTS, HASH, NUMBER, Column, Table

Entries = tuple[NDArray[np.intp], NDArray[Any], NDArray[np.float64]]
"""Rows, features and values, (m,) each."""
DAY, HOUR = 86400 * 10**6, 3600 * 10**6
THURSDAY = 3
"""The weekday of 1970-01-01, counted from Monday."""
_WORD = re.compile(r"\w+")


def encode(
    table: Table,
    cells: Mapping[str, Any],
    n: int,
    fail: Callable[[str, int, str], NoReturn],
    warn: Callable[[str, int], None] = lambda problem, rows: None,
) -> sparse.csr_matrix:
    """Return the features of rows.

    Parameters
    ----------
    table : Table
        The encoding.
    cells : mapping
        The columns, as `distsms.data.formats.columns` describes them.
    n : int
        The number of rows.
    fail : callable
        Raises InputError for a column and a row, counted from 0, with what is wrong.
    warn : callable
        Is called with a text on what the training rows did not have, and the number of rows that have it.

    Returns
    -------
    csr_matrix of shape (n, p)
        float64, without explicit zeros, with ascending columns.
    """
    found = [_numbers(table, cells, fail, warn)]
    for column, start in zip(table.columns, table.feature_starts, strict=False):
        if column.kind == NUMBER:
            continue
        cell = cells[column.name]
        missing = columns.is_missing(cell)
        how = {CATEGORY: _category, DATE: _date, HASH: _hash}[column.kind]
        rows, features, values = how(column, cell, missing, fail, warn)
        found.append((rows, features + start, values))
        found.append(_gaps(column, start, missing, warn))
    rows, features, values = (np.concatenate(part) for part in zip(*found, strict=True))
    X = sparse.coo_matrix((values, (rows, features.astype(index_dtype(table.p)))), (n, table.p)).tocsr()
    X.sum_duplicates()
    X.eliminate_zeros()
    return X


def _numbers(table: Table, cells: Mapping[str, Any], fail: Any, warn: Any) -> Entries:
    """Encode all columns of numbers together, since there may be very many."""
    numeric, starts, fills, centres = table.numbers
    names = [column.name for column in numeric]
    values, missing, which = columns.numbers(cells, names)
    if len(which) < len(names):
        name = names[min(set(range(len(names))) - set(which.tolist()))]
        cell = cells[name]
        wrong = columns.is_not_number(cell) if columns.is_text(cell) else ~columns.is_missing(cell)
        if wrong.any():
            fail(name, int(wrong.argmax()), "expected a number, as in the training data")
    if (wrong := np.isinf(values)).any():
        row, k = (int(place) for place in np.argwhere(wrong)[0])
        fail(names[k], row, "the value is not finite; expected a decimal number")
    values = np.where(missing, fills, values) - centres
    rows, places = np.nonzero(values)
    found = [(rows, starts[places], values[rows, places])]
    for gap in missing.any(axis=0).nonzero()[0].tolist():
        found.append(_gaps(numeric[gap], int(starts[gap]), missing[:, gap], warn))
    rows, features, amounts = (np.concatenate(part) for part in zip(*found, strict=True))
    return rows, features, amounts


def _gaps(column: Column, start: int, missing: NDArray[np.bool_], warn: Any) -> Entries:
    """Mark missing values."""
    rows = np.flatnonzero(missing)
    if len(rows) and not column.missing:
        how = "they count as the mean" if column.fill else "they count as 0"
        warn(f"column {column.name!r}: missing values, of which the training data had none; {how}", len(rows))
        rows = rows[:0]
    return rows, np.full(len(rows), start + column.n_values), np.ones(len(rows))


def _category(column: Column, cell: Any, missing: NDArray[np.bool_], fail: Any, warn: Any) -> Entries:
    assert column.categories is not None
    text = columns.as_codes(cell) if column.numeric or not columns.is_text(cell) else cell
    category = columns.codes(text, column.categories)
    unknown = (category < 0) & ~missing
    if column.other:
        category = np.where(unknown, len(column.categories), category)
    elif unknown.any():
        problem = f"column {column.name!r}: categories that the training data did not have; they count as 0"
        warn(problem, int(unknown.sum()))
    rows = np.flatnonzero(category >= 0)
    return rows, category[rows], np.ones(len(rows))


def _date(column: Column, cell: Any, missing: NDArray[np.bool_], fail: Any, warn: Any) -> Entries:
    time, valid = columns.as_microseconds(cell, column.format)
    if (wrong := ~valid & ~missing).any():
        form = column.format or "ISO 8601, as 2024-05-31 or 2024-05-31T12:30:00"
        fail(column.name, int(wrong.argmax()), f"expected a date, written as {form}")
    day = time // DAY
    parts = {
        "month": day.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12,
        "weekday": (day + THURSDAY) % 7,
        "hour": time // HOUR % 24,
    }
    rows, there = np.arange(len(time)), np.flatnonzero(valid)
    found = [(rows, np.zeros(len(time), np.int64), np.where(valid, years(time), column.fill))]
    start = 1
    for part in column.parts:
        found.append((there, start + parts[part][there], np.ones(len(there))))
        start += len(DATE_PARTS[part])
    rows, features, values = (np.concatenate(entries) for entries in zip(*found, strict=True))
    return rows, features, values


def _hash(column: Column, cell: Any, missing: NDArray[np.bool_], fail: Any, warn: Any) -> Entries:
    """Add 1 or -1, by the sign of the hash, to the feature that its absolute value selects, as scikit-learn does."""
    text = columns.as_codes(cell) if column.numeric or not columns.is_text(cell) else cell
    if column.tokens:
        words = [_WORD.findall(value.lower()) if value else [] for value in text.to_pylist()]
        rows = np.repeat(np.arange(len(words)), [len(found) for found in words])
        text = columns.as_strings_column([word for found in words for word in found])
    else:
        rows = np.flatnonzero(~missing)
        text = text.filter(~missing)
    found = columns.hash_strings(text).view(np.int32).astype(np.int64)
    return rows, np.abs(found) % column.n_values, np.where(found >= 0, 1.0, -1.0)
