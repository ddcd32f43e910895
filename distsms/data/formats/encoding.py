"""Compute features from the columns of a table: `encode` does it for every format, in training and in prediction."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.data.formats import columns, dates
from distsms.data.formats.column_survey import years
from distsms.data.formats.encoding_kernels import NO_FEATURE, NUMBER_RECORD, fill_rows
from distsms.data.formats.rows import index_dtype
from distsms.data.formats.table_schema import CATEGORY, DATE, DATE_PARTS, NUMBER, Column, Table

Codes = NDArray[np.int64]
"""A feature for each row, (n,), whose value is 1. No feature is NO_FEATURE; -2 - f is feature f with the value -1."""
Number = tuple[int, float, float, int]
"""How a column of numbers is read: see `encoding_kernels.NUMBER_RECORD`."""
DAY, HOUR = 86400 * 10**6, 3600 * 10**6
THURSDAY = 3
"""The weekday of 1970-01-01, counted from Monday."""
IN_UTC = "dates without an offset count as UTC, and the parts of dates are those in UTC"
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
    numbers, how = _numbers(table, cells, fail, warn)
    m = len(numbers)
    place, amounts, codes, order, words = 0, list[NDArray[np.float64]](), list[Codes](), list[int](), []
    for column, start in zip(table.columns, table.feature_starts, strict=False):
        if column.kind == NUMBER:
            order.append(place)
            place += 1
            continue
        cell = cells[column.name]
        missing = columns.is_missing(cell)
        n_missing = int(np.count_nonzero(missing))
        found: list[Codes] = []
        if column.kind == CATEGORY:
            found.append(_category(table, column, start, cell, missing, warn))
        elif column.kind == DATE:
            if columns.is_text(cell):
                cell = columns.without(cell, table.cells.among_numbers)[0]
                missing = columns.is_missing(cell)
                n_missing = int(np.count_nonzero(missing))
            amount, found = _date(column, start, cell, missing, fail, warn)
            order.append(m + len(amounts))
            amounts.append(amount)
            how.append((start, column.fill, column.fill if column.centred else 0.0, NO_FEATURE))
        elif column.tokens:
            words.append(_words(table, column, start, cell))
        else:
            text = columns.as_codes(cell, table.cells.version) if column.numeric or not columns.is_text(cell) else cell
            feature, positive = _hashed(column, text)
            found.append(np.where(missing, NO_FEATURE, np.where(positive, start + feature, -2 - start - feature)))
        _check_gaps(column, n_missing, warn)
        if column.missing:
            found.append(np.where(missing, start + column.n_values, NO_FEATURE))
        order += [-1 - len(codes) - k for k in range(len(found))]
        codes += found
    X = _rows((n, table.p), order, (numbers, np.array(amounts).reshape(-1, n)), how, codes)
    for entries in words:
        X = X + sparse.csr_matrix(entries, X.shape)
    return X


def _rows(
    shape: tuple[int, int],
    order: list[int],
    numbers: tuple[NDArray[np.float64], NDArray[np.float64]],
    how: list[Number],
    codes: list[Codes],
) -> sparse.csr_matrix:
    """Put the features of rows together; see `encoding_kernels.fill_rows`."""
    n, p = shape
    most = n * (len(order) + sum(gap != NO_FEATURE for *_, gap in how))
    indptr, data = np.zeros(n + 1, np.int64), np.empty(most)
    indices: NDArray[Any] = np.empty(most, index_dtype(p))
    stacked = np.array(codes, np.int64).reshape(len(codes), n)
    nnz = fill_rows(np.array(order), *numbers, np.array(how, NUMBER_RECORD), stacked, indptr, indices, data)
    return sparse.csr_matrix((data[:nnz], indices[:nnz], indptr), shape)


def _numbers(table: Table, cells: Mapping[str, Any], fail: Any, warn: Any) -> tuple[NDArray[np.float64], list[Number]]:
    """Read all columns of numbers together, since there may be very many.

    Returns the numbers (m, n), NaN where they are missing, and how each column is read.
    """
    numeric, starts, fills, centres = table.numbers
    names = [column.name for column in numeric]
    values, which, gaps, finite, _ = columns.numbers(cells, names, table.cells.among_numbers)
    if len(which) < len(names):
        name = names[min(set(range(len(names))) - set(which.tolist()))]
        cell = cells[name]
        if columns.is_text(cell):
            wrong = columns.is_not_number(columns.without(cell, table.cells.among_numbers)[0])
        else:
            wrong = ~columns.is_missing(cell)
        if wrong.any():
            fail(name, int(wrong.argmax()), "expected a number, as in the training data")
    if not finite:
        row, k = (int(place) for place in np.argwhere(np.isinf(values))[0])
        fail(names[k], row, "the value is not finite; expected a decimal number")
    for k in gaps.nonzero()[0].tolist():
        _check_gaps(numeric[k], int(gaps[k]), warn)
    marks = [start + 1 if column.missing else NO_FEATURE for column, start in zip(numeric, starts, strict=True)]
    return np.ascontiguousarray(values.T), list(zip(starts, fills, centres, marks, strict=True))


def _check_gaps(column: Column, n_missing: int, warn: Any) -> None:
    """Warn of missing values in a column that had none in the training data."""
    if n_missing and not column.missing:
        how = "they count as the mean" if column.fill else "they count as 0"
        warn(f"column {column.name!r}: missing values, of which the training data had none; {how}", n_missing)


def _category(table: Table, column: Column, start: int, cell: Any, missing: NDArray[np.bool_], warn: Any) -> Codes:
    """Return the feature of each row's category, NO_FEATURE if it has none, (n,)."""
    assert column.categories is not None
    text = columns.as_codes(cell, table.cells.version) if column.numeric or not columns.is_text(cell) else cell
    encoded = columns.is_encoded(text)
    category: Codes = columns.codes(text.dictionary if encoded else text, column.categories)
    unknown = category < 0 if encoded else (category < 0) & ~missing
    if column.other:
        category = np.where(unknown, len(column.categories), category)
    elif n_unknown := np.count_nonzero(unknown):
        problem = (
            f"column {column.name!r}: categories that the training data did not have; they add nothing to the score"
        )
        warn(problem, np.count_nonzero(columns.of_rows(unknown, text, False)) if encoded else n_unknown)
    feature: Codes = np.where(category < 0, NO_FEATURE, start + category)
    return columns.of_rows(feature, text, NO_FEATURE) if encoded else feature


def _date(
    column: Column, start: int, cell: Any, missing: NDArray[np.bool_], fail: Any, warn: Any
) -> tuple[NDArray[np.float64], list[Codes]]:
    """Return the time of each row as a number, (n,), and the features for the parts of its date."""
    encoded = columns.is_encoded(cell)
    if column.offset is not None:
        with_offset = dates.has_offset(cell, column.format)
        if n_other := np.count_nonzero((with_offset != column.offset) & ~missing):
            how = ("an offset", "none") if column.offset is False else ("no offset", "one")
            warn(
                f"column {column.name!r}: dates with {how[0]}, where the training data had {how[1]}; {IN_UTC}", n_other
            )
    time, valid = dates.as_microseconds(cell.dictionary if encoded else cell, column.format)
    wrong = ~valid
    if wrong.any():
        wrong = columns.of_rows(wrong, cell, False) if encoded else wrong & ~missing
    if wrong.any():
        form = column.format or "ISO 8601, as 2024-05-31 or 2024-05-31T12:30:00"
        fail(column.name, int(wrong.argmax()), f"expected a date, written as {form}")
    day = time // DAY
    parts = {
        "month": day.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12,
        "weekday": (day + THURSDAY) % 7,
        "hour": time // HOUR % 24,
    }
    amount, found, start = np.where(valid, years(time), column.fill), [], start + 1
    for part in column.parts:
        found.append(np.where(valid, start + parts[part], NO_FEATURE))
        start += len(DATE_PARTS[part])
    if encoded:
        return columns.of_rows(amount, cell, column.fill), [columns.of_rows(part, cell, NO_FEATURE) for part in found]
    return amount, found


def _words(table: Table, column: Column, start: int, cell: Any) -> Any:
    """Return the entries of a column whose words are hashed, as SciPy wants them: (values, (rows, features))."""
    text = (
        columns.as_codes(cell, table.cells.version)
        if column.numeric or not columns.is_text(cell)
        else columns.as_text(cell)
    )
    words = [_WORD.findall(value.lower()) if value else [] for value in text.to_pylist()]
    rows = np.repeat(np.arange(len(words)), [len(found) for found in words])
    feature, positive = _hashed(column, columns.as_strings_column([word for found in words for word in found]))
    return np.where(positive, 1.0, -1.0), (rows, start + feature)


def _hashed(column: Column, text: Any) -> tuple[Codes, NDArray[np.bool_]]:
    """Return the feature of a hashed column that the absolute value of a string's hash selects, and the hash's sign.

    The value of the feature is 1, or -1 if the hash is negative, as in scikit-learn.
    """
    found = columns.hash_strings(text).view(np.int32).astype(np.int64)
    return np.abs(found) % column.n_values, found >= 0
