"""The columns of a table and the features that are made of them, the same in training and in prediction.

A column of numbers is one feature. A column of strings is categorical: each category is a feature that is 1 in the rows
that have it. A missing value is 0 in all features of its column. If the training data had missing values in a column,
one more feature marks them: it is 1 in the rows where the value is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from distsms.errors import InputError

MAX_CATEGORIES = 100_000
"""The largest number of categories: a column with more is probably free text or an identifier."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    name : str
        The name of the column.
    categories : tuple of str or None
        The categories, sorted, in the order of their features; None for a column of numbers.
    missing : bool
        Whether there is a feature that marks missing values.
    """

    name: str
    categories: tuple[str, ...] | None = None
    missing: bool = False

    @property
    def n_features(self) -> int:
        """The number of features that are made of the column."""
        return (1 if self.categories is None else len(self.categories)) + self.missing

    def feature_names(self) -> list[str]:
        """Return the names of the column's features."""
        names = [self.name] if self.categories is None else [f"{self.name}={category}" for category in self.categories]
        return names + [f"{self.name} is missing"] * self.missing


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
        Columns that were left out on purpose. Other files of the same kind may have them or not.
    """

    columns: tuple[Column, ...]
    label: str | None = None
    id: str | None = None
    dropped: tuple[str, ...] = ()

    @cached_property
    def feature_starts(self) -> list[int]:
        """The number of the first feature of each column, followed by p."""
        return list(accumulate((column.n_features for column in self.columns), initial=0))

    @property
    def p(self) -> int:
        """The number of features."""
        return self.feature_starts[-1]

    @cached_property
    def feature_names(self) -> list[str]:
        """The names of all p features."""
        return [name for column in self.columns for name in column.feature_names()]

    def describe(self) -> str:
        """Return a line for people that says how many columns of each kind there are."""
        numbers = sum(column.categories is None for column in self.columns)
        categorical = [f"{column.name} ({len(column.categories)})" for column in self.columns if column.categories]
        shown = ", ".join(categorical[:10]) + (", ..." if len(categorical) > 10 else "")
        missing = sum(column.missing for column in self.columns)
        return (
            f"{numbers} of numbers"
            + (f", {len(categorical)} of categories: {shown}" if categorical else "")
            + (f"; {missing} for missing values" if missing else "")
        )

    def as_json(self) -> dict[str, Any]:
        """Return the record for manifest and model. It has the key `dropped` only if something was dropped."""
        record = asdict(self)
        if not self.dropped:
            del record["dropped"]
        return record

    @classmethod
    def from_json(cls, record: Any) -> Table:
        """Return the table of a record made by `as_json`. Raises TypeError, KeyError or ValueError for any other."""
        columns = tuple(
            Column(
                str(column["name"]),
                None if column["categories"] is None else tuple(column["categories"]),
                column["missing"],
            )
            for column in record["columns"]
        )
        return cls(columns, record["label"], record["id"], tuple(map(str, record.get("dropped", ()))))


def check_same_features(ours: Table, theirs: Table, where: object, ignore_new: bool) -> None:
    """Raise InputError unless the features of a data set, `theirs`, are those of a model, `ours`.

    With `ignore_new`, the data set may have more features after those of the model.
    """
    if ours.feature_names == (theirs.feature_names[: ours.p] if ignore_new else theirs.feature_names):
        return
    pairs = zip(ours.feature_names, theirs.feature_names, strict=False)
    k, (a, b) = next(((k, pair) for k, pair in enumerate(pairs) if pair[0] != pair[1]), (-1, ("", "")))
    difference = f"feature {k} is {b!r} there and {a!r} here" if k >= 0 else f"{theirs.p} there and {ours.p} here"
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
    if missing := [name for name in wanted if name not in set(there)]:
        source = f"{first} has" if first else "the training data had"
        raise InputError(f"{path}: has no column {missing[0]!r}, which {source}; it has {format_names(there)}")
    new = [name for name in there if name not in {*wanted, *optional}]
    if new and not ignore_new:
        again = "" if first else ", or make the training data again with it"
        advice = f"Remove it from the file{again}" if ignore_new is None else "--ignore-new-features leaves it out"
        lacking = f"{first} does not have" if first else "the training data did not have"
        raise InputError(f"{path}: has the column {new[0]!r}, which {lacking}. {advice}")


def format_names(names: Sequence[str]) -> str:
    """Return names for a message, at most twenty. If a single name looks like several fields, say so."""
    text = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
    if len(names) == 1 and (mark := next((mark for mark in ";\t|" if mark in names[0]), None)):
        text += f" (fields must be separated by commas, or tabs in .tsv; found {mark!r})"
    return text
