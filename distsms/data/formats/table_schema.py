"""The columns of a table and the features that are made of them, the same in training and in prediction.

A column of numbers is one feature. A column of words (categories) is a feature for each category, 1 in the rows that
have it. A missing value is 0 in all features of its column; where the training data had missing values, one more
feature says so: 1 in the rows where the column is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from distsms.errors import InputError

MOST_CATEGORIES = 100_000
"""Of a column: one with more is rather a text or an identifier."""


@dataclass(frozen=True)
class Column:
    """One column. categories : in the order of their features, which is that of their characters; None for numbers."""

    name: str
    categories: tuple[str, ...] | None = None
    missing: bool = False

    @property
    def width(self) -> int:
        """The number of its features."""
        return (1 if self.categories is None else len(self.categories)) + self.missing

    def features(self) -> list[str]:
        """The names of its features."""
        named = [self.name] if self.categories is None else [f"{self.name}={one}" for one in self.categories]
        return named + [f"{self.name} is missing"] * self.missing


@dataclass(frozen=True)
class Table:
    """The columns that are features, in order, and those of labels and row ids: None where there are none.

    dropped : columns that were left out on purpose; other files of the kind may have them or not.
    """

    columns: tuple[Column, ...]
    label: str | None = None
    id: str | None = None
    dropped: tuple[str, ...] = ()

    @cached_property
    def starts(self) -> list[int]:
        """The first feature of each column, and p at the end."""
        return list(accumulate((one.width for one in self.columns), initial=0))

    @property
    def p(self) -> int:
        """The number of features."""
        return self.starts[-1]

    @cached_property
    def features(self) -> list[str]:
        """The names of all p features."""
        return [name for column in self.columns for name in column.features()]

    def in_words(self) -> str:
        """What there is, for people."""
        numbers = sum(one.categories is None for one in self.columns)
        words = [f"{one.name} ({len(one.categories)})" for one in self.columns if one.categories is not None]
        shown = ", ".join(words[:10]) + (", ..." if len(words) > 10 else "")
        missing = sum(one.missing for one in self.columns)
        return (
            f"{numbers} of numbers"
            + (f", {len(words)} of categories: {shown}" if words else "")
            + (f"; {missing} for missing values" if missing else "")
        )

    def as_json(self) -> dict[str, Any]:
        """For manifest and model; `dropped` is there only if something was: other records stay as they were."""
        record = asdict(self)
        return record if self.dropped else {key: one for key, one in record.items() if key != "dropped"}

    @classmethod
    def from_json(cls, record: Any) -> Table:
        """The reverse of `as_json`. Raises TypeError, KeyError or ValueError for something else."""
        columns = tuple(
            Column(str(one["name"]), None if (found := one["categories"]) is None else tuple(found), one["missing"])
            for one in record["columns"]
        )
        return cls(columns, record["label"], record["id"], tuple(map(str, record.get("dropped", ()))))


def check_same(ours: Table, theirs: Table, where: object, ignore_new: bool) -> None:
    """Raise InputError where the features of a data set, `theirs`, are not those of a model, `ours`, or begin so."""
    if ours.features == (theirs.features[: ours.p] if ignore_new else theirs.features):
        return
    pairs = zip(ours.features, theirs.features, strict=False)
    k, (a, b) = next(((k, pair) for k, pair in enumerate(pairs) if pair[0] != pair[1]), (-1, ("", "")))
    difference = f"feature {k} is {b!r} there and {a!r} here" if k >= 0 else f"{theirs.p} there and {ours.p} here"
    raise InputError(
        f"{where}: was made with other columns or categories than the model's training data ({difference}). "
        "Convert it again with --like TRAINING_DATA, or give the table itself"
    )


def match(
    wanted: Sequence[str],
    there: Sequence[str],
    optional: Sequence[str],
    path: str,
    ignore_new: bool | None,
    first: str | None = None,
) -> None:
    """Raise InputError where a file lacks a wanted column, or has others than those and the `optional` ones.

    ignore_new : whether others may be there; None where the user has no such choice, but must mend the file.
    first : the file whose columns are wanted, where they are not those of training data.
    """
    source = f"{first} has" if first else "the training data had"
    if missing := [name for name in wanted if name not in set(there)]:
        raise InputError(f"{path}: has no column {missing[0]!r}, which {source}; it has {shown(there)}")
    new = [name for name in there if name not in {*wanted, *optional}]
    if new and not ignore_new:
        anew = "" if first else ", or make the training data anew"
        advice = f"Remove it from the file{anew}" if ignore_new is None else "--ignore-new-features leaves new ones out"
        raise InputError(f"{path}: has the column {new[0]!r}, which {source} not. {advice}")


def shown(names: Sequence[str]) -> str:
    """Names for a message, twenty at most; a single one that looks like several says so."""
    text = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
    if len(names) == 1 and (mark := next((one for one in ";\t|" if one in names[0]), None)):
        text += f" (fields must be separated by commas, or tabs in .tsv; found {mark!r})"
    return text
