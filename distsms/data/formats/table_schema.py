"""The encoding of a table: which columns become features, and how. The manifest and the model contain it.

Each column is treated as one of these kinds (`Column.kind`); a missing value is marked by one more feature, `COLUMN is
missing`, if the training rows had missing values in the column.

number      one feature, the number; a missing value counts as `fill`, the mean of the training rows. If this mean is
            far larger than the standard deviation, it is subtracted (`centred`)
category    a feature of 0 and 1 for each category, and if rare ones were put together, `COLUMN: other` for all others
date        the time as a number, years since 2000, and features of 0 and 1 for month, weekday, and hour; all in UTC
hash        2^bits features; each token (or the whole value) adds 1 or -1 to the feature that its hash selects

`distsms.data.formats.encoding` computes the features. `VERSION` is that of the record as JSON: records of version 1
have only numbers (with a fill of 0) and categories, which are taken as they were written.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError

VERSION = 2
NUMBER, CATEGORY, DATE, HASH = "number", "category", "date", "hash"
KINDS = (NUMBER, CATEGORY, DATE, HASH)
MAX_BITS = 28
THOUSANDS = (".", ",", "'", " ")
"""The marks that may separate groups of three digits; " " and "'" also stand for their typographic forms."""
WEEKDAYS = tuple(calendar.day_abbr)
DATE_PARTS = {"month": tuple(map(str, range(1, 13))), "weekday": WEEKDAYS, "hour": tuple(map(str, range(24)))}
"""The parts of a date that have a feature for each value, and the names of these values."""


@dataclass(frozen=True)
class Column:
    """One column of a table. A field that its kind does not need has its default.

    Parameters
    ----------
    name : str
        The name of the column.
    categories : tuple of str or None
        The categories, sorted, in the order of their features; None for other kinds.
    missing : bool
        Whether there is a feature that marks missing values.
    kind : str
        One of `KINDS`. If it is empty, the kind is "category" if there are categories, and "number" otherwise.
    fill : float
        The value that replaces a missing number, or a missing date (as years since 2000).
    other : bool
        Whether all values that are none of the categories share one feature.
    numeric : bool
        Whether the values are numbers that name something, so that 7, 07 and 7.0 are the same one.
    format : str or None
        How dates are written, in the letters of strptime; None is ISO 8601.
    hours : bool
        Whether a date has features for the hour.
    bits : int
        The logarithm of the number of features of a hashed column.
    tokens : bool
        Whether the words of a value are hashed rather than the value.
    centred : bool
        Whether `fill` is subtracted from the numbers.
    """

    name: str
    categories: tuple[str, ...] | None = None
    missing: bool = False
    kind: str = ""
    fill: float = 0.0
    other: bool = False
    numeric: bool = False
    format: str | None = None
    hours: bool = False
    bits: int = 0
    tokens: bool = False
    centred: bool = False

    def __post_init__(self) -> None:
        if not self.kind:
            object.__setattr__(self, "kind", NUMBER if self.categories is None else CATEGORY)
        if (
            self.kind not in KINDS
            or (self.kind == CATEGORY) != (self.categories is not None)
            or not np.isfinite(self.fill)
            or (self.centred and self.kind != NUMBER)
            or not (1 if self.kind == HASH else 0) <= self.bits <= (MAX_BITS if self.kind == HASH else 0)
        ):
            raise ValueError(
                f"column {self.name!r:.60}: kind, categories, fill, bits and centred contradict each other"
            )

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
        """The number of features that are made from the column."""
        return self.n_values + self.missing

    def feature_names(self) -> list[str]:
        """Return the names of the column's features."""
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

    def as_json(self) -> dict[str, Any]:
        """Return the record: name, kind, categories, missing, and the other fields that are not their defaults."""
        always, defaults = ("name", "categories", "missing", "kind"), _defaults()
        return {name: value for name, value in vars(self).items() if name in always or value != defaults[name]}

    @classmethod
    def from_json(cls, record: Any) -> Column:
        """Return the column of a record made by `as_json`. Raises TypeError, KeyError or ValueError for any other."""
        if not isinstance(record, dict):
            raise TypeError("the record of a column must be an object")
        known, kinds = dict(record), _kinds()
        for name, value in record.items():
            if name not in kinds:
                raise ValueError(f"this distsms does not know the field {name!r:.60} of a column")
            if not isinstance(value, kinds[name]):
                raise TypeError(f"the field {name} of a column has another type")
        categories = record["categories"]
        if categories is not None:
            known["categories"] = tuple(categories)
            if any(not isinstance(category, str) for category in categories):
                raise TypeError("categories must be strings")
        return cls(**known)


@cache
def _defaults() -> dict[str, Any]:
    return {field.name: field.default for field in fields(Column)}


@cache
def _kinds() -> dict[str, Any]:
    """Return the types that the fields of a column have in JSON."""
    kinds = {name: type(default) for name, default in _defaults().items()}
    return kinds | {
        "name": str,
        "categories": list | tuple | None,
        "format": str | None,
        "fill": float | int,
        "bits": int,
    }


@dataclass(frozen=True)
class Table:
    """The columns of a table that become features, and those of labels and row ids.

    Parameters
    ----------
    columns : tuple of Column
        The columns that become features, in order.
    label, id : str or None
        The columns of labels and of row ids; None if there are none.
    dropped : tuple of str
        Columns that were left out. Other files of the same kind may have them or not.
    version : int
        The version of the rules by which cells are read. From version 2 on, space around the strings of Parquet files
        is cut off, and the same strings count as missing there as in CSV.
    decimal : str
        The decimal mark of numbers that are written as strings: "," also reads points.
    thousands : str
        The mark between thousands in such numbers, one of `THOUSANDS`; "" if there is none.
    """

    columns: tuple[Column, ...]
    label: str | None = None
    id: str | None = None
    dropped: tuple[str, ...] = ()
    version: int = VERSION
    decimal: str = "."
    thousands: str = ""

    @cached_property
    def feature_starts(self) -> list[int]:
        """The number of the first feature of each column, followed by p."""
        return list(accumulate((column.n_features for column in self.columns), initial=0))

    @cached_property
    def numbers(self) -> tuple[list[Column], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """The columns of numbers; and the feature of each, what a missing number counts as, and what is subtracted."""
        found = [pair for pair in zip(self.columns, self.feature_starts, strict=False) if pair[0].kind == NUMBER]
        numbers = [column for column, _ in found]
        fills = np.array([column.fill for column in numbers])
        centred = np.array([column.centred for column in numbers], bool)
        return numbers, np.array([start for _, start in found], np.int64), fills, np.where(centred, fills, 0.0)

    @cached_property
    def offsets(self) -> dict[int, float]:
        """What is subtracted from the numbers of a feature, for features of which something is."""
        starts = zip(self.columns, self.feature_starts, strict=False)
        return {start: column.fill for column, start in starts if column.centred and column.fill}

    @cached_property
    def plain(self) -> bool:
        """Whether all features are numbers as they are, none of which may be missing, as in arrays."""
        return all(column == Column(column.name) for column in self.columns)

    @property
    def p(self) -> int:
        """The number of features."""
        return self.feature_starts[-1]

    @cached_property
    def feature_names(self) -> list[str]:
        """The names of all p features."""
        return [name for column in self.columns for name in column.feature_names()]

    def measured(self) -> NDArray[np.bool_]:
        """Return which features hold numbers or dates, (p,): not categories, parts of dates, hashes, missing values."""
        found = np.zeros(self.p, bool)
        starts = zip(self.columns, self.feature_starts, strict=False)
        found[[start for column, start in starts if column.kind in (NUMBER, DATE)]] = True
        return found

    def describe(self) -> str:
        """Return a line for people that says how many columns of each kind there are."""
        of = {kind: [column for column in self.columns if column.kind == kind] for kind in KINDS}
        text = f"{len(of[NUMBER])} of numbers"
        for kind, what in ((CATEGORY, "of categories"), (DATE, "of dates"), (HASH, "hashed")):
            if of[kind]:
                named = [column.name if kind == DATE else f"{column.name} ({column.describe()})" for column in of[kind]]
                text += f", {len(of[kind])} {what}: {', '.join(named[:10])}{', ...' * (len(named) > 10)}"
        missing = sum(column.missing for column in self.columns)
        return text + (f"; {missing} for missing values" if missing else "")

    def as_json(self) -> dict[str, Any]:
        """Return the record for manifest and model. Fields that are their defaults are left out."""
        record: dict[str, Any] = {"version": self.version} if self.version > 1 else {}
        record |= {"columns": [column.as_json() for column in self.columns], "label": self.label, "id": self.id}
        record |= {"dropped": list(self.dropped)} if self.dropped else {}
        record |= {"decimal": self.decimal} if self.decimal != "." else {}
        return record | ({"thousands": self.thousands} if self.thousands else {})

    @classmethod
    def from_json(cls, record: Any) -> Table:
        """Return the table of a record made by `as_json`. Raises TypeError, KeyError or ValueError for any other."""
        if not isinstance(record, dict):
            raise TypeError("the record of a table must be an object")
        version = record.get("version", 1)
        if not isinstance(version, int) or not 1 <= version <= VERSION:
            raise ValueError(f"the encoding of the table has version {version!r:.20}; update distsms")
        columns = tuple(map(Column.from_json, record["columns"]))
        dropped = tuple(map(str, record.get("dropped", ())))
        marks = str(record.get("decimal", ".")), str(record.get("thousands", ""))
        if marks[1] not in ("", *THOUSANDS):
            raise ValueError(f"the mark between thousands is {marks[1]!r:.20}")
        return cls(columns, record["label"], record["id"], dropped, version, *marks)


def check_same_features(ours: Table, theirs: Table, where: object, ignore_new: bool) -> None:
    """Raise InputError unless the features of a data set, `theirs`, are those of a model, `ours`.

    With `ignore_new`, the data set may have more features after those of the model.
    """
    if ours.columns == theirs.columns:
        return  # without the names of the features, of which a hashed column may have millions
    difference = ""
    if ours.feature_names != (theirs.feature_names[: ours.p] if ignore_new else theirs.feature_names):
        pairs = zip(ours.feature_names, theirs.feature_names, strict=False)
        k, (a, b) = next(((k, pair) for k, pair in enumerate(pairs) if pair[0] != pair[1]), (-1, ("", "")))
        difference = f"feature {k} is {b!r} there and {a!r} here" if k >= 0 else f"{theirs.p} there and {ours.p} here"
    else:
        for here, there in zip(ours.columns, theirs.columns, strict=False):
            if (here.centred or there.centred) and (here.centred, here.fill) != (there.centred, there.fill):
                less = [column.fill if column.centred else 0.0 for column in (there, here)]
                difference = f"{less[0]!r} is subtracted from {here.name!r} there and {less[1]!r} here"
                break
            if there.missing and there.fill != here.fill:
                difference = f"a missing {here.name!r} counts as {there.fill:.6g} there and as {here.fill:.6g} here"
                break
            if (there.format, there.tokens) != (here.format, here.tokens):
                difference = f"{here.name!r} is read in another way"
                break
    if difference:
        raise InputError(
            f"{where}: was made with other columns or categories than the model's training data ({difference}). "
            "Convert it again with --like TRAINING_DATA, or give the table itself"
        )


def check_columns(
    wanted: Sequence[str],
    there: Sequence[str],
    optional: Sequence[str],
    path: str,
    ignore_new: bool | None,
    first: str | None = None,
) -> None:
    """Raise InputError if a file lacks a wanted column, or has columns that are neither wanted nor optional.

    Parameters
    ----------
    wanted, optional : sequence of str
        The columns that must be there, and those that may be there.
    there : sequence of str
        The columns of the file.
    path : str
        The file, for messages.
    ignore_new : bool or None
        Whether other columns may be there as well. None: the user has no such choice and must mend the file.
    first : str, optional
        The file whose columns are wanted, if they are not those of training data.
    """
    present, known = set(there), {*wanted, *optional}
    if missing := [name for name in wanted if name not in present]:
        source = f"{first} has" if first else "the training data had"
        named = f"column {missing[0]!r}" if len(missing) == 1 else f"columns {format_names(missing)}"
        raise InputError(f"{path}: has no {named}, which {source}; it has {format_names(there)}")
    new = [name for name in there if name not in known]
    if new and not ignore_new:
        again = "" if first else ", or make the training data again with it"
        it, again = ("it", again) if len(new) == 1 else ("them", again.replace("with it", "with them"))
        advice = f"Remove {it} from the file{again}" if ignore_new is None else f"--ignore-new-features leaves {it} out"
        lacking = f"{first} does not have" if first else "the training data did not have"
        named = f"column {new[0]!r}" if len(new) == 1 else f"columns {format_names(new)}"
        raise InputError(f"{path}: has the {named}, which {lacking}. {advice}")


def format_names(names: Iterable[str]) -> str:
    """Return names for a message, at most twenty."""
    shown = list(names)
    return ", ".join(map(repr, shown[:20])) + (", ..." if len(shown) > 20 else "")
