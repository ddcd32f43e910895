"""Compute features from the columns of a table: `encode` does it for every format, in training and in prediction."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.base.jit import njit
from distsms.ingest.formats import amounts, columns, dates
from distsms.ingest.formats.column_survey import years
from distsms.ingest.formats.columns import Columns
from distsms.matrix.local import index_dtype
from distsms.shards.table_schema import CATEGORY, DATE, DATE_PARTS, NUMBER, Column, Table

NO_FEATURE = -1
NUMBER_RECORD = np.dtype([("start", np.int64), ("fill", np.float64), ("centre", np.float64), ("gap", np.int64)])
Features = NDArray[np.int64]
"""A feature, which is 1, for each different value of a column, (m,); or NO_FEATURE, or -2 - f: feature f is -1."""
DAY, HOUR = 86400 * 10**6, 3600 * 10**6
IN_UTC = "dates without an offset count as UTC, and the parts of dates are those in UTC"
_WORD = re.compile(r"\w+")


def encode(
    table: Table, cells: Columns, fail: Callable[[str, int, str], NoReturn], warnings: Counter[str]
) -> sparse.csr_matrix:
    """Return the features of n rows, (n, p) float64, without explicit zeros and with ascending columns. `fail` raises
    InputError for a column, a row and a problem; `warnings` counts rows with what the training rows did not have."""
    # 1) Numbers, and what each column of other kinds adds to the rows.
    numbers, records = _numbers(table, cells, fail, warnings)
    m, place, order = len(numbers), 0, list[int]()
    amounts, codes, words = list[NDArray[np.float64]](), list[tuple[NDArray[Any], Features]](), []
    for column, start in table.placed:
        if column.kind == NUMBER:
            order.append(place)
            place += 1
            continue
        different, slots = _different(table, column, cells[column.name])
        rows = np.bincount(slots, minlength=len(different) + 1)  # with each value; the last is that of missing ones
        features: list[Features] = []
        if column.kind == DATE:
            amount, features = _date(column, start, different, slots, fail, warnings)
            order.append(m + len(amounts))
            amounts.append(np.append(amount, column.fill)[slots])
            records.append((start, column.fill, column.fill if column.centred else 0.0, NO_FEATURE))
        elif column.kind == CATEGORY:
            features.append(_category(column, start, different, rows, warnings))
        elif column.tokens:
            words.append(_words(column, start, different, slots))
        else:
            feature, positive = _hashed(column, different)
            features.append(np.where(positive, start + feature, -2 - start - feature))
        _check_gaps(column, int(rows[-1]), warnings)
        order += [-1 - len(codes) - k for k in range(len(features) + column.missing)]
        codes += [(slots, np.append(feature, NO_FEATURE)) for feature in features]
        if column.missing:
            no_features = np.full(len(different), NO_FEATURE)
            codes.append((slots, np.append(no_features, start + column.n_values)))
    # 2) Fill the rows.
    n, p = cells.n, table.p
    max_entries = n * (len(order) + sum(gap != NO_FEATURE for *_, gap in records))
    indptr, data = np.zeros(n + 1, np.int64), np.empty(max_entries)
    indices: NDArray[Any] = np.empty(max_entries, index_dtype(0, p))
    of_rows = np.array([slots for slots, _ in codes], np.int32).reshape(len(codes), n)
    starts = np.cumsum([0, *(len(features) for _, features in codes)])
    of_codes = np.concatenate([np.empty(0, np.int64), *(features for _, features in codes)])
    dates_of_rows, number_records = np.array(amounts).reshape(-1, n), np.array(records, NUMBER_RECORD)
    order_of_row = np.array(order, np.int64)
    nnz = _fill_rows(
        order_of_row, numbers, dates_of_rows, number_records, of_rows, starts, of_codes, indptr, indices, data
    )
    X = sparse.csr_matrix((data[:nnz], indices[:nnz], indptr), (n, p))
    X.has_canonical_format = True
    for entries in words:
        X = X + sparse.csr_matrix(entries, X.shape)
    return X


def _different(table: Table, column: Column, cell: Any) -> tuple[Any, NDArray[Any]]:
    """Return the different values of a column, (m,), and the number of each row's value, (n,); m for missing ones."""
    if column.kind == DATE and columns.is_text(cell):
        cell = columns.without(cell, table.cells.among_numbers)[0]
    elif column.kind == DATE and not columns.is_date(cell):
        cell = columns.as_codes(cell)
    elif column.kind != DATE and (column.numeric or not columns.is_text(cell)):
        cell = columns.as_codes(cell, table.cells.version)
    different, slots = columns.dictionary_encode(cell)
    return different, np.where(slots < 0, len(different), slots) if slots.min(initial=0) < 0 else slots


@njit()
def _fill_rows(order, numbers, amounts, records, slots, starts, features, indptr, indices, data):  # type: ignore[no-untyped-def]
    """Write n rows in CSR form, without zeros, into the last three arrays; return the number of entries.

    order : (s,) int64, what makes up a row, by ascending features: k is column k of the numbers, m + k is column k of
    the amounts, and -1 - k is column k of the codes.
    numbers, amounts : (m, n) and (d, n) float64, columns of numbers, NaN where they are missing, and those of dates.
    records : (m + d,) NUMBER_RECORD, for each of them its feature, what a missing number counts as, what is subtracted,
    and the feature that marks missing numbers, or NO_FEATURE.
    slots, starts, features : (c, n) int32, (c + 1,) and int64: the feature of row i by column k of the codes is
    features[starts[k] + slots[k, i]], see `Features`.
    """
    at, m = 0, len(numbers)
    for i in range(len(indptr) - 1):
        for k in order:
            if k >= 0:  # a number: its value, and a mark if it is missing
                x = numbers[k, i] if k < m else amounts[k - m, i]
                missing = x != x
                if missing:
                    x = records[k]["fill"]
                x -= records[k]["centre"]
                if x != 0:
                    indices[at], data[at] = records[k]["start"], x
                    at += 1
                if missing and records[k]["gap"] != NO_FEATURE:
                    indices[at], data[at] = records[k]["gap"], 1.0
                    at += 1
            else:  # a feature that is 1 or -1
                feature = features[starts[-1 - k] + slots[-1 - k, i]]
                if feature >= 0:
                    indices[at], data[at] = feature, 1.0
                    at += 1
                elif feature != NO_FEATURE:
                    indices[at], data[at] = -2 - feature, -1.0
                    at += 1
        indptr[i + 1] = at
    return at


def _numbers(table: Table, cells: Columns, fail: Any, warnings: Any) -> tuple[NDArray[np.float64], list[Any]]:
    """Return all columns of numbers, (m, n) with NaN for missing ones, and the `NUMBER_RECORD` of each."""
    numeric = table.numbers
    names = [column.name for column in numeric.columns]
    numbers = cells.numbers(names, table.cells.among_numbers)
    if len(numbers.names) < len(names):
        read = set(numbers.names)
        name = next(name for name in names if name not in read)
        cell = cells[name]
        values = columns.without(cell, table.cells.among_numbers)[0] if columns.is_text(cell) else cell
        row, problem = int(columns.is_not_number(values).argmax()), "expected a number, as in the training data"
        if str(cell[row].as_py()).endswith(amounts.IN_DOUBT):
            problem += ", where no number has this mark: write thousands without it, and decimals with a digit more"
        fail(name, row, problem)
    if not numbers.finite:
        row, k = np.argwhere(np.isinf(numbers.values.T))[0].tolist()
        fail(names[k], row, "the value is not finite; expected a decimal number")
    for k in numbers.gaps.nonzero()[0].tolist():
        _check_gaps(numeric.columns[k], int(numbers.gaps[k]), warnings)
    has_marks = np.array([column.missing for column in numeric.columns], bool)
    marks = np.where(has_marks, numeric.starts + 1, NO_FEATURE)
    records = list(zip(numeric.starts, numeric.fills, numeric.centres, marks, strict=True))
    return np.ascontiguousarray(numbers.values), records


def _check_gaps(column: Column, n_missing: int, warnings: Any) -> None:
    if n_missing and not column.missing:
        effect = "they count as the mean" if column.fill else "they count as 0"
        problem = f"missing values, of which the training data had none; {effect}"
        warnings[f"column {column.name!r}: {problem}"] += n_missing


def _category(column: Column, start: int, different: Any, rows: NDArray[np.int64], warnings: Any) -> Features:
    assert column.categories is not None
    category = columns.codes(different, column.categories)
    unknown = category < 0
    if column.other:
        category = np.where(unknown, len(column.categories), category)
    elif n_unknown := int(rows[:-1][unknown].sum()):
        problem = "categories that the training data did not have; they add nothing to the score"
        warnings[f"column {column.name!r}: {problem}"] += n_unknown
    return np.where(category < 0, NO_FEATURE, start + category)


def _date(
    column: Column, start: int, different: Any, slots: NDArray[Any], fail: Any, warnings: Any
) -> tuple[NDArray[np.float64], list[Features]]:
    """Return different dates as numbers, (m,), and their features for the parts of dates."""
    if column.offset is not None:
        others = np.append(dates.has_offset(different, column.format) != column.offset, False)
        if n_other := np.count_nonzero(others[slots]):
            offsets = ("an offset", "none") if column.offset is False else ("no offset", "one")
            problem = f"dates with {offsets[0]}, where the training data had {offsets[1]}; {IN_UTC}"
            warnings[f"column {column.name!r}: {problem}"] += n_other
    time, valid = dates.as_microseconds(different, column.format)
    if not valid.all() and (wrong := np.append(~valid, False)[slots]).any():
        form = column.format or "ISO 8601, as 2024-05-31 or 2024-05-31T12:30:00"
        fail(column.name, int(wrong.argmax()), f"expected a date, written as {form}")
    day = time // DAY
    parts = {
        "month": day.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12,
        "weekday": (day + 3) % 7,  # 1970-01-01 was a Thursday
        "hour": time // HOUR % 24,
    }
    features, start = [], start + 1
    for part in column.parts:
        features.append(np.where(valid, start + parts[part], NO_FEATURE))
        start += len(DATE_PARTS[part])
    return np.where(valid, years(time), column.fill), features


def _words(column: Column, start: int, different: Any, slots: NDArray[Any]) -> Any:
    """Return the entries of a column whose words are hashed, as SciPy wants them: (values, (rows, features))."""
    words = [_WORD.findall(value.lower()) for value in different.to_pylist()]
    feature, positive = _hashed(column, columns.as_strings_column([word for some in words for word in some]))
    lengths = np.array([*map(len, words), 0])  # the last is that of missing values
    first, of_row = np.cumsum(lengths) - lengths, lengths[slots]
    rows = np.repeat(np.arange(len(slots)), of_row)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(of_row) - of_row - first[slots], of_row)
    return np.where(positive, 1.0, -1.0)[places], (rows, start + feature[places])


def _hashed(column: Column, text: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the feature that a string's absolute hash selects, and the hash's sign, as in scikit-learn."""
    hashes = columns.hash_strings(text).view(np.int32).astype(np.int64)
    return np.abs(hashes) % column.n_values, hashes >= 0
