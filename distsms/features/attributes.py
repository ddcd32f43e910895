"""Attributes: columns of numbers that are divided into bins, and sets of 0/1 columns that are one categorical variable:
those of one column of a table, or neighbouring ones that no row sets together, by one pass (`Survey`), or as a file
says (`read_attributes`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import note_content, read_whole
from distsms.base.jit import njit
from distsms.base.wording import option
from distsms.matrix.arrays import without_duplicates
from distsms.shards.table_schema import CATEGORY, DATE, DATE_PARTS, HASH, Column, Table, repeated

COVERED = 0.9
"""Columns that are never set together are taken as one attribute if at least this share of the rows sets one."""


@dataclass(frozen=True)
class Attribute:
    """What one code of a row says: the bin of a number, or a category."""

    name: str  # the name for people
    columns: tuple[int, ...]  # the column of the number, or the columns of 0 and 1 of the categories, counted from 0
    categories: tuple[str, ...] | None = None  # the names of the categories; None for a number
    # the column that is 1 where the number is missing, if there is one. Such rows have a code of their own.
    missing: int | None = None
    none: bool = False  # whether rows in which no category is set have a code of their own
    centre: float = 0.0  # what was subtracted from the number when the table was read; only names of bins need it

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.categories is not None:
            object.__setattr__(self, "categories", tuple(self.categories))

    def record(self) -> dict[str, Any]:
        """Return the fields that are not their defaults, ready for JSON."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}


class Survey:
    """What one pass over n rows finds out about their columns, each (p,) int64: in how many rows one is not 0, or
    neither 0 nor 1 (`other`), and the nearest one `before` it that is set in the same row, or -1."""

    def __init__(self, p: int) -> None:
        self.set_rows, self.other, self.before = (np.zeros(p, np.int64) for _ in range(3))
        self.before -= 1
        self.n = 0

    def add(self, X: Any) -> None:
        X = without_duplicates(X)
        _survey(X.indptr.astype(np.int64), X.indices, X.data, self.set_rows, self.other, self.before)
        self.n += X.shape[0]

    def reduce(self, comm: Communicator) -> None:
        """Bring the ranks together. **Collective.**"""
        comm.sum(self.set_rows)
        comm.sum(self.other)
        comm.maximum(self.before)
        self.n = sum(comm.allgather(self.n))

    def sets(self) -> list[range]:
        """Return the sets of two or more neighbouring 0/1 columns that are one categorical variable."""
        sets, p = list[range](), len(self.before)
        first, stop = 0, 1
        rows = np.concatenate([[0], np.cumsum(self.set_rows)])
        while first < p:
            stop = max(stop, first + 1)
            while stop < p and self.before[stop] < first and not self.other[stop] and not self.other[first]:
                stop += 1
            if stop - first > 1 and rows[stop] - rows[first] >= COVERED * self.n > 0:
                sets.append(range(first, stop))
                first = stop
            else:  # the next column may be the first of a set
                first += 1
        return sets


@njit()
def _survey(indptr, columns, values, set_rows, other, before):  # type: ignore[no-untyped-def]
    for row in range(len(indptr) - 1):
        last = -1
        for k in range(indptr[row], indptr[row + 1]):
            if values[k] != 0.0:
                j = columns[k]
                set_rows[j] += 1
                other[j] += values[k] != 1.0
                before[j] = max(before[j], last)
                last = j


def attributes_of(survey: Survey, name: Callable[[int], str]) -> list[Attribute]:
    """Return the attributes of columns that no table describes; `name` returns that of a column, from 0."""
    attributes, at = list[Attribute](), 0
    for columns in [*survey.sets(), range(len(survey.before), len(survey.before))]:
        attributes += [Attribute(name(j), (j,)) for j in range(at, columns.start)]
        if columns:
            none = bool(survey.set_rows[columns.start : columns.stop].sum() < survey.n)
            names = tuple(map(name, columns))
            attributes.append(Attribute(f"{names[0]}..{names[-1]}", tuple(columns), names, none=none))
        at = columns.stop
    return attributes


def table_attributes(table: Table) -> list[Attribute]:
    """Return the attributes of a table; columns that were hashed have none."""
    attributes = list[Attribute]()
    for column, start in table.placed:
        if column.kind != HASH and column.n_features:
            attributes += _of_column(column, start)
    return attributes


def _of_column(column: Column, start: int) -> list[Attribute]:
    names, stop = column.feature_names(), start + column.n_features
    if column.kind == CATEGORY:
        shown = [name.removeprefix(f"{column.name}=") for name in names[: column.n_values - column.other]]
        shown += ["other"] * column.other + ["missing"] * column.missing
        return [Attribute(column.name, tuple(range(start, stop)), tuple(shown))]
    missing = stop - 1 if column.missing else None
    centre = column.fill if column.centred else 0.0
    attributes, at = [Attribute(names[0], (start,), missing=missing, centre=centre)], start + 1
    for part in column.parts if column.kind == DATE else ():
        values = DATE_PARTS[part]
        attributes.append(
            Attribute(f"{column.name}: {part}", tuple(range(at, at + len(values))), values, none=column.missing)
        )
        at += len(values)
    return attributes


def read_attributes(
    path: str | os.PathLike[str], number: Callable[[str], int], of_table: Sequence[Attribute] = ()
) -> list[Attribute]:
    """Read a file of the user that says which columns belong together, beside those of the table. Local. Each name of a
    JSON object is an attribute: "COLUMN" is divided into bins, a list of 0/1 columns is one variable (the caller finds
    out whether rows set none). `number` returns the number of a column by its name."""
    by_name = {each.name: each for each in of_table}
    try:
        note_content(path)
        content = json.loads(read_whole(path), object_pairs_hook=lambda pairs: _unique(pairs, path))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    example = 'such as {"age": "age", "job": ["job=clerk", "job=cook"]}'
    if not isinstance(content, dict) or not content:
        raise InputError(f"{path}: must be an object that names the columns of each attribute, {example}")
    attributes, owner = list[Attribute](), dict[int, str]()
    for name, columns in content.items():
        several = isinstance(columns, list)
        listed = columns if several else [columns]
        if not listed or not all(type(column) in (str, int) for column in listed):
            raise InputError(f"{path}: {name!r} must have a column, or a list of columns, {example}")
        entry = None if several else by_name.get(str(columns))
        try:
            numbers = [number(str(column)) for column in listed] if entry is None else list(entry.columns)
        except InputError as error:
            raise InputError(f"{path}: {name!r}: {error}") from error
        for k, j in enumerate(numbers):
            if j in owner:
                column = listed[k if several else 0]
                raise InputError(f"{path}: column {column!r} belongs to {owner[j]!r} and to {name!r}")
            owner[j] = name
        categories = _categories(listed) if several else None
        attributes.append(replace(entry, name=name) if entry else Attribute(name, tuple(numbers), categories))
    return attributes


def _categories(columns: Sequence[object]) -> tuple[str, ...]:
    """Return the names of columns as those of categories: what all of them begin with, such as "job=", is left out."""
    shown = [str(column) for column in columns]
    begin = f"{shown[0].partition('=')[0]}="
    return tuple(text.removeprefix(begin) if all(each.startswith(begin) for each in shown) else text for text in shown)


def _unique(pairs: list[tuple[str, Any]], path: object) -> dict[str, Any]:
    if (twice := repeated(name for name, _ in pairs)) is not None:
        raise InputError(f"{path}: names the attribute {twice!r} twice; give each attribute a name of its own")
    return dict(pairs)


def used_columns(attributes: Sequence[Attribute]) -> NDArray[np.int64]:
    columns = {j for each in attributes for j in (*each.columns, *([] if each.missing is None else [each.missing]))}
    return np.array(sorted(columns), np.int64)


def unique_names(attributes: Sequence[Attribute]) -> None:
    if (twice := repeated(each.name for each in attributes)) is not None:
        raise InputError(f"two attributes are named {twice!r}; rename one ({option('attributes', text='FILE')})")
