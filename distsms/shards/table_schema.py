"""The encoding of a table: which columns become features, and how. The manifest and the model contain it.

Each column is treated as one of these kinds (`Column.kind`); a missing value is marked by one more feature, `COLUMN is
missing`, if the training rows had missing values in the column.

number      one feature, the number; a missing value counts as `fill`, the mean of the training rows. If this mean is
            far larger than the standard deviation, it is subtracted (`centred`)
category    a feature of 0 and 1 for each category, and if rare ones were put together, `COLUMN: other` for all others
date        the time as a number, years since 2000, and features of 0 and 1 for month, weekday, and hour; all in UTC.
            The mean is subtracted as that of numbers
hash        2^bits features; each token (or the whole value) adds 1 or -1 to the feature that its hash selects

`distsms.ingest.formats.encoding` computes the features. `VERSION` is that of the record as JSON: records of version 1
have only numbers (with a fill of 0) and categories, which are taken as they were written. In those before version 3,
only whole numbers are one category in all spellings, marks such as "-" are no missing values among numbers, and
nothing is subtracted from dates.
"""

from __future__ import annotations

import calendar
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.wording import DECIMAL, option

VERSION = 3
NUMBER, CATEGORY, DATE, HASH = "number", "category", "date", "hash"
KINDS = (NUMBER, CATEGORY, DATE, HASH)
MAX_BITS = 28
VERY_MANY = 100
"""A column with more categories has very many, of which people should know."""
THOUSANDS = (".", ",", "'", " ")
"""The marks that may separate groups of three digits; " " and "'" also stand for their typographic forms."""
_MISSING = ["", "NA", "NaN", "nan", "NULL", "null"]
MISSING = {1: _MISSING, 2: [*_MISSING, "N/A", "n/a", "#N/A", "<NA>", "NaT"]}
"""The strings that stand for a missing value, by the version of the encoding."""
AMONG_NUMBERS = (
    *("-", "--", "---", "\u2013", "\u2014", ".", "..", "?", "*", "\\N", "None", "none", "NONE", "nil", "Null"),
    *("(null)", "<null>", "NAN", "Nan", "-nan", "-NaN", "na", "Na", "N.A.", "n.a.", "#NA", "#N/A N/A", "1.#QNAN"),
    *("-1.#IND", "#DIV/0!", "#VALUE!", "#REF!", "#NUM!", "#NAME?", "#NULL!", "missing", "Missing", "unknown"),
    "Unknown",
)
"""The strings that stand for a missing value in columns whose other values are numbers."""
WEEKDAYS = tuple(calendar.day_abbr)
DATE_PARTS = {"month": tuple(map(str, range(1, 13))), "weekday": WEEKDAYS, "hour": tuple(map(str, range(24)))}
"""The parts of a date that have a feature for each value, and the names of these values."""


class Writing(NamedTuple):
    """How the numbers of a column are written."""

    unit: str  # what stands before or behind each of them, such as %; "" if nothing does
    thousands: str  # the mark between thousands, one of `THOUSANDS`; "" if there is none
    decimal: str  # the mark before decimals
    unseen: str = ""  # those of both, points or commas, that no training row has; see `amounts.as_plain`


@dataclass(frozen=True)
class Column:
    """One column of a table. A field that its kind does not need has its default."""

    name: str  # the name of the column
    # The categories, sorted, in the order of their features; None for other kinds
    categories: tuple[str, ...] | None = None
    missing: bool = False  # whether there is a feature that marks missing values
    # One of `KINDS`. If it is empty, the kind is "category" if there are categories, and "number" otherwise.
    kind: str = ""
    fill: float = 0.0  # the value that replaces a missing number, or a missing date (as years since 2000)
    other: bool = False  # whether all values that are none of the categories share one feature
    numeric: bool = False  # whether the values are numbers that name something, so that 7, 07 and 7.0 are the same one
    format: str | None = None  # how dates are written, in the letters of strptime; None is ISO 8601
    hours: bool = False  # whether a date has features for the hour
    bits: int = 0  # the logarithm of the number of features of a hashed column
    tokens: bool = False  # whether the words of a value are hashed rather than the value
    centred: bool = False  # whether `fill` is subtracted from the numbers, or from the time of the dates
    # Whether the dates of the training rows had an offset from UTC; None: some had, or it is not known
    offset: bool | None = None
    # How numbers are written, if it is not as the cells of the whole table are read; see `Writing`
    unit: str = ""
    thousands: str = ""
    decimal: str = ""
    unseen: str = ""

    def __post_init__(self) -> None:
        if not self.kind:
            object.__setattr__(self, "kind", NUMBER if self.categories is None else CATEGORY)
        if (
            self.kind not in KINDS
            or (self.kind == CATEGORY) != (self.categories is not None)
            or not np.isfinite(self.fill)
            or (self.centred and self.kind not in (NUMBER, DATE))
            or not (1 if self.kind == HASH else 0) <= self.bits <= (MAX_BITS if self.kind == HASH else 0)
            or self.decimal not in ("", ".", ",")
            or self.thousands not in ("", *THOUSANDS)
            or (not self.decimal and (self.unit or self.thousands))
            or not {*self.unseen} <= {self.thousands, self.decimal}
        ):
            raise ValueError(f"column {self.name!r:.60}: its kind and the rest of the record contradict each other")

    @property
    def writing(self) -> Writing | None:
        """How its numbers are written; None if as those of the whole table."""
        return Writing(self.unit, self.thousands, self.decimal, self.unseen) if self.decimal else None

    @property
    def parts(self) -> list[str]:
        """The parts of a date that have features, by the keys of `DATE_PARTS`."""
        return ["month", "weekday", *["hour"] * self.hours] if self.kind == DATE else []

    @property
    def n_values(self) -> int:
        """The number of features without the one that marks missing values."""
        if self.kind == NUMBER:
            return 1
        if self.kind == CATEGORY:
            return len(self.categories or ()) + self.other
        if self.kind == HASH:
            return 1 << self.bits
        return 1 + sum(len(DATE_PARTS[part]) for part in self.parts)

    @property
    def n_features(self) -> int:
        return self.n_values + self.missing

    def feature_names(self) -> list[str]:
        name = self.name
        if self.kind == CATEGORY:
            names = [f"{name}={category}" for category in self.categories or ()] + [f"{name}: other"] * self.other
        elif self.kind == HASH:
            names = [f"{name} hash {k}" for k in range(self.n_values)]
        elif self.kind == DATE:
            names = [f"{name} (years since 2000)"]
            names += [f"{name}: {part}={value}" for part in self.parts for value in DATE_PARTS[part]]
        else:
            names = [name]
        return names + [f"{name} is missing"] * self.missing

    def describe(self) -> str:
        """Return in a word or two how many features of which kind are made."""
        return {CATEGORY: str(len(self.categories or ())), HASH: f"2^{self.bits}"}.get(self.kind, self.kind)

    def describe_missing(self) -> str:
        """Return what a missing value counts as, in words."""
        marked = "marked by a feature" if self.missing else "none in training"
        return f"counts as {self.fill:.6g}; {marked}" if self.kind in (NUMBER, DATE) else marked

    def as_json(self) -> dict[str, Any]:
        """Return the record: name, kind, categories, missing, and the other fields that are not their defaults."""
        always = ("name", "categories", "missing", "kind")
        return {name: value for name, value in vars(self).items() if name in always or value != _DEFAULTS[name]}

    @classmethod
    def from_json(cls, record: Any) -> Column:
        """Return the column of a record made by `as_json`. Raises TypeError, KeyError or ValueError for any other."""
        if not isinstance(record, dict):
            raise TypeError("the record of a column must be an object")
        for name, value in record.items():
            if name not in _TYPES:
                raise ValueError(f"this distsms does not know the field {name!r:.60} of a column")
            if not isinstance(value, _TYPES[name]):
                raise TypeError(f"the field {name} of a column has another type")
        categories = record["categories"]
        if not all(isinstance(category, str) for category in categories or ()):
            raise TypeError("categories must be strings")
        return cls(**{**record, "categories": None if categories is None else tuple(categories)})


_DEFAULTS = {field.name: field.default for field in fields(Column)}
_TYPES = get_type_hints(Column) | {"categories": list | tuple | None, "fill": float | int}


@dataclass(frozen=True)
class Cells:
    """How the cells of a table are read, whatever its columns are."""

    # The version of the rules. From version 2 on, space around the strings of Parquet files is cut off, and the same
    # strings count as missing there as in CSV.
    version: int = VERSION
    decimal: str = "."  # the decimal mark of numbers that are written as strings: "," also reads points
    thousands: str = ""  # the mark between thousands in such numbers, one of `THOUSANDS`; "" if there is none
    separator: str = ""  # what separates the fields of CSV; "" if the files show it
    missing: tuple[str, ...] = ()  # further strings, or numbers, that stand for missing values
    not_missing: tuple[str, ...] = ()  # strings that are values here, and not missing ones
    # The names of the columns of CSV without a first line that has them; () if they are numbered. None: it has them
    names: tuple[str, ...] | None = None

    @cached_property
    def marks(self) -> list[str]:
        """The strings that stand for a missing value in every column."""
        usual = MISSING[min(self.version, max(MISSING))]
        return [*(mark for mark in usual if mark not in self.not_missing), *self.missing]

    @cached_property
    def among_numbers(self) -> list[str]:
        """The strings that stand for a missing value in columns of numbers, besides `marks`."""
        return [mark for mark in AMONG_NUMBERS if self.version > 2 and mark not in self.not_missing]

    @cached_property
    def numbers(self) -> list[float]:
        """The numbers that stand for a missing value."""
        return [value for mark in self.missing if DECIMAL.fullmatch(mark) and np.isfinite(value := float(mark))]

    def as_json(self) -> dict[str, Any]:
        """Return the fields that are not as in version 1 without any option."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(Cells(version=1), name)}

    @classmethod
    def from_json(cls, record: Any) -> Cells:
        """Return what `as_json` wrote, out of a record that may have more. Raises ValueError if it cannot be."""
        version = record.get("version", 1)
        if not isinstance(version, int) or not 1 <= version <= VERSION:
            raise ValueError(f"the encoding of the table has version {version!r:.20}; update distsms")
        values: dict[str, Any] = {"version": version}
        values |= {name: str(record[name]) for name in ("decimal", "thousands", "separator") if name in record}
        lists = [name for name in ("missing", "not_missing", "names") if record.get(name) is not None]
        values |= {name: tuple(map(str, record[name])) for name in lists}
        if values.get("thousands", "") not in ("", *THOUSANDS) or not is_separator(values.get("separator") or ","):
            raise ValueError("the mark between thousands, or what separates the fields, cannot be")
        return cls(**values)


USUAL = Cells()


def is_separator(text: str) -> bool:
    """Return whether a text can separate the fields of CSV: one character of ASCII that no number or name has."""
    return len(text) == 1 and text.isascii() and not text.isalnum() and text not in '"\n\r\0.-+_'


class NumberColumns(NamedTuple):
    """The m columns of a table that hold numbers, and how they become features."""

    columns: list[Column]
    starts: NDArray[np.int64]  # (m,), the feature of each
    fills: NDArray[np.float64]  # (m,), what a missing number counts as
    centres: NDArray[np.float64]  # (m,), what is subtracted


@dataclass(frozen=True)
class Table:
    """The columns of a table that become features, and those of labels and row ids."""

    columns: tuple[Column, ...]  # the columns that become features, in order
    # The columns of labels and of row ids; None if there are none
    label: str | None = None
    id: str | None = None
    # Columns that were left out. Other files of the same kind may have them or not.
    dropped: tuple[str, ...] = ()
    cells: Cells = USUAL  # how cells are read

    @cached_property
    def feature_starts(self) -> list[int]:
        """The number of the first feature of each column, followed by p."""
        return list(accumulate((column.n_features for column in self.columns), initial=0))

    @cached_property
    def placed(self) -> list[tuple[Column, int]]:
        """Each column, with the number of its first feature."""
        return list(zip(self.columns, self.feature_starts[:-1], strict=True))

    @cached_property
    def numbers(self) -> NumberColumns:
        pairs = [(column, start) for column, start in self.placed if column.kind == NUMBER]
        columns, starts = [column for column, _ in pairs], np.array([start for _, start in pairs], np.int64)
        fills = np.array([column.fill for column in columns])
        centred = np.array([column.centred for column in columns], bool)
        return NumberColumns(columns, starts, fills, np.where(centred, fills, 0.0))

    @cached_property
    def offsets(self) -> dict[int, float]:
        """What is subtracted from the numbers of a feature, for features of which something is."""
        return {start: column.fill for column, start in self.placed if column.centred and column.fill}

    @cached_property
    def plain(self) -> bool:
        """Whether all features are numbers as they are, none of which may be missing, as in arrays."""
        return all(column == Column(column.name) for column in self.columns)

    @property
    def p(self) -> int:
        return self.feature_starts[-1]

    @cached_property
    def feature_names(self) -> list[str]:
        return [name for column in self.columns for name in column.feature_names()]

    def measured(self) -> NDArray[np.bool_]:
        """Return which features hold numbers or dates, (p,): not categories, parts of dates, hashes, missing values."""
        measured = np.zeros(self.p, bool)
        measured[[start for column, start in self.placed if column.kind in (NUMBER, DATE)]] = True
        return measured

    def very_many(self) -> list[str]:
        """Return "City: 1,129 of 1,179 features" for each column with very many categories."""
        columns = (column for column in self.columns if len(column.categories or ()) > VERY_MANY)
        return [f"{column.name}: {column.n_features:,} of {self.p:,} features" for column in columns]

    def describe(self) -> str:
        """Return a line for people that says how many columns of each kind there are."""
        of = {kind: [column for column in self.columns if column.kind == kind] for kind in KINDS}
        text = f"{len(of[NUMBER])} of numbers"
        for kind, description in ((CATEGORY, "of categories"), (DATE, "of dates"), (HASH, "hashed")):
            if of[kind]:
                named = [column.name if kind == DATE else f"{column.name} ({column.describe()})" for column in of[kind]]
                text += f", {len(of[kind])} {description}: {', '.join(named[:10])}{', ...' * (len(named) > 10)}"
        missing = sum(column.missing for column in self.columns)
        return text + (f"; {missing} for missing values" if missing else "")

    def as_json(self) -> dict[str, Any]:
        """Return the record for manifest and model. Fields that are their defaults are left out."""
        record = {"columns": [column.as_json() for column in self.columns], "label": self.label, "id": self.id}
        return record | ({"dropped": list(self.dropped)} if self.dropped else {}) | self.cells.as_json()

    @classmethod
    def from_json(cls, record: Any) -> Table:
        """Return the table of a record made by `as_json`. Raises TypeError, KeyError or ValueError for any other."""
        if not isinstance(record, dict):
            raise TypeError("the record of a table must be an object")
        cells = Cells.from_json(record)
        columns = tuple(map(Column.from_json, record["columns"]))
        label, row_id = record["label"], record["id"]
        if not isinstance(label, str | None) or not isinstance(row_id, str | None):
            raise TypeError("label and id must be names of columns, or null")
        return cls(columns, label, row_id, tuple(map(str, record.get("dropped", ()))), cells)


def check_same_features(model_table: Table, data_table: Table, where: object, ignore_new: bool) -> None:
    """Raise InputError unless the features of a data set are a model's; with `ignore_new`, more may follow."""
    if model_table.columns == data_table.columns:
        return  # without the names of the features, of which a hashed column may have millions
    if difference := _difference(model_table, data_table, ignore_new):
        again = f"convert it again with {option('like', text='TRAINING_DATA')}, or give the table itself"
        raise InputError(f"{where}: has other columns or categories than the training data ({difference}): {again}")


def _difference(model_table: Table, data_table: Table, ignore_new: bool) -> str:
    """Return how the features of a data set ("there") differ from a model's ("here"); "" if they do not."""
    names, data_names = model_table.feature_names, data_table.feature_names
    if names != (data_names[: len(names)] if ignore_new else data_names):
        for k, (ours, theirs) in enumerate(zip(names, data_names, strict=False)):
            if ours != theirs:
                return f"feature {k} is {theirs!r} there and {ours!r} here"
        return f"{len(data_names)} there and {len(names)} here"
    for here, there in zip(model_table.columns, data_table.columns, strict=False):
        if (here.centred or there.centred) and (here.centred, here.fill) != (there.centred, there.fill):
            less = [column.fill if column.centred else 0.0 for column in (there, here)]
            return f"{less[0]!r} is subtracted from {here.name!r} there and {less[1]!r} here"
        if there.missing and there.fill != here.fill:
            return f"a missing {here.name!r} counts as {there.fill:.6g} there and as {here.fill:.6g} here"
        if any(getattr(here, name) != getattr(there, name) for name in ("format", "tokens", *Writing._fields[:3])):
            return f"{here.name!r} is read in another way"
    return ""


def check_columns(
    required: Sequence[str],
    columns: Sequence[str],
    optional: Sequence[str],
    path: str,
    ignore_new: bool | None,
    first: str | None = None,
) -> None:
    """Raise InputError if the file at `path` lacks a required column, or has others than these and optional ones.
    `ignore_new` allows such (None: there is no choice); `first` is the file that requires them."""
    column_set, expected = set(columns), {*required, *optional}
    if missing := [name for name in required if name not in column_set]:
        source = f"{first} has" if first else "the training data had"
        named = f"column {missing[0]!r}" if len(missing) == 1 else f"columns {format_names(missing)}"
        raise InputError(f"{path}: has no {named}, which {source}; it has {format_names(columns)}")
    new = [name for name in columns if name not in expected]
    if new and not ignore_new:
        again = "" if first else ", or make the training data again with it"
        it, again = ("it", again) if len(new) == 1 else ("them", again.replace("with it", "with them"))
        advice = f"Remove {it} from the file{again}"
        if ignore_new is not None:
            advice = f"{option('ignore_new_features')} leaves {it} out"
        lacking = f"{first} does not have" if first else "the training data did not have"
        named = f"column {new[0]!r}" if len(new) == 1 else f"columns {format_names(new)}"
        raise InputError(f"{path}: has the {named}, which {lacking}. {advice}")


def repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs again; None if all are different."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


def format_names(names: Iterable[str]) -> str:
    """Return names for a message, at most twenty."""
    shown = list(names)
    return ", ".join(map(repr, shown[:20])) + (", ..." if len(shown) > 20 else "")
