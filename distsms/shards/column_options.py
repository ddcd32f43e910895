"""The options for the columns of a table, and the reports on the columns."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distsms.base.choices import check_fields

BITS = 16
"""A hashed column gets 2^BITS features, unless the user gives another exponent."""


@dataclass(frozen=True)
class ColumnOptions:
    """What the user says about the columns of a table."""

    # Columns that are treated as categories or as numbers, whatever they look like
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    # Columns of dates, each with the form that strings have, in the letters of strptime; None is ISO 8601
    dates: Mapping[str, str | None] = field(default_factory=dict)
    # Columns whose words or values are hashed, each with the logarithm of the number of features
    hashed: Mapping[str, int] = field(default_factory=dict)
    min_count: int = 1  # categories with fewer rows have no features of their own, but one feature together

    def __post_init__(self) -> None:
        check_fields(self, {"min_count": 1})

    @property
    def as_text(self) -> list[str]:
        """The columns that are surveyed as text, each once."""
        return list(dict.fromkeys([*self.categorical, *self.hashed, *self.dates]))

    def split(self, table_columns: Container[str]) -> ColumnOptions:
        """Return the same options with names such as "a,b" split, unless the table has such a column."""
        categorical, numeric = split_names(self.categorical, table_columns), split_names(self.numeric, table_columns)
        dates = {name: form for key, form in self.dates.items() for name in split_names([key], table_columns)}
        hashed = {name: bits for key, bits in self.hashed.items() for name in split_names([key], table_columns)}
        return replace(self, categorical=categorical, numeric=numeric, dates=dates, hashed=hashed)

    @property
    def named(self) -> list[str]:
        """The columns, once for each time that they are named."""
        return [*self.categorical, *self.numeric, *self.dates, *self.hashed]


def split_names(names: Iterable[str], table_columns: Container[str]) -> tuple[str, ...]:
    """Return the columns that are named. What has a comma and is not itself a known column, is a list of columns."""
    return tuple(
        part
        for name in names
        for part in ([name] if name in table_columns else [part.strip() for part in name.split(",")])
    )


@dataclass
class ColumnReport:
    """What the list of columns shows about a column. The manifest has it as JSON."""

    name: str
    taken_for: str  # one of `table_schema.KINDS` except "hash", or "id-like", or "text"
    values: int  # how many different ones; exact up to some 1000, else within a few percent
    exact: bool
    missing: int
    features: int = 0  # 0 for columns that were left out
    notes: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, record: Any) -> ColumnReport:
        """Return the report of a record in a manifest. Raises KeyError, TypeError or ValueError for any other."""
        for name, kind in _KINDS.items():
            if not isinstance(record[name], kind):
                raise ValueError(f"{name} of a column has another type")
        return cls(**record)


_KINDS = {"name": str, "taken_for": str, "values": int, "exact": bool, "missing": int, "features": int, "notes": list}
