"""Numbers as people write them: with a unit, as in 12% or € 1,200.50, and with marks between thousands.

A column is read as such numbers if all of its values have the same unit, or all have none, and if there is one way to
read them. A mark with exactly three digits behind it may separate thousands or decimals, so other values have to show
what it is: 1,200.50 does, and so do 1,234,567 and 12,5. Without a unit, some value must have two marks, since 1,5 may
be two numbers, or a name.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from distsms.shards.table_schema import Cells, Writing

import pyarrow.compute as pc  # isort: skip

UNITS = ("%", "$", "\u20ac", "\u00a3", "\u00a5", "\u20b9", "USD", "EUR", "GBP", "CHF", "JPY")
MARKS = {".": r"\.", ",": ",", "'": "['\u2019]", " ": "[ \u00a0\u202f]"}
"""The marks that may separate thousands, and the pattern of each with its typographic forms."""
READINGS = ((",", "."), (".", ","), ("'", "."), (" ", "."), (" ", ","), ("'", ","), ("", "."), ("", ","))
"""The marks between thousands and before decimals that go together, the usual ones first."""
_ANY_UNIT = f"(?:{'|'.join(map(re.escape, UNITS))})"
_SPACE, _INSIDE = "[ \u00a0\u202f]", "[0-9.,'\u2019 \u00a0\u202f]"
_AMOUNT = (
    rf"^[+-]?(?P<before>{_ANY_UNIT}?){_SPACE}?[+-]?(?P<number>[0-9.,](?:{_INSIDE}*[0-9.,])?){_SPACE}?"
    rf"(?P<behind>{_ANY_UNIT}?)$"
)
IN_DOUBT = "(thousands or decimals?)"
"""What is added to numbers that may be read in two ways, since training had no such mark."""
_TWO_MARKS = "[.,].*[.,]|['\u2019 \u00a0\u202f].*[.,]"


@cache
def _number(marks: tuple[str, str]) -> str:
    """Return the pattern of numbers with marks between thousands and before decimals, without sign and unit."""
    thousands, decimal = marks
    grouped = rf"|[1-9][0-9]{{0,2}}(?:{MARKS[thousands]}[0-9]{{3}})+" if thousands else ""
    return rf"(?:(?:[0-9]+{grouped})(?:{MARKS[decimal]}[0-9]*)?|{MARKS[decimal]}[0-9]+)"


def readings_of(cells: Cells) -> frozenset[tuple[str, str]]:
    """Return the marks that may be meant, where the user has named some of them."""
    if cells.thousands:
        return frozenset({(cells.thousands, "," if cells.thousands == "." else cells.decimal)})
    return frozenset(reading for reading in READINGS if cells.decimal == "." or reading[1] == ",")


class Amounts:
    """What the values of a column look like, if all may be numbers with units and marks."""

    def __init__(self, readings: frozenset[tuple[str, str]] = frozenset(READINGS)) -> None:
        self.units = set[str]()  # "" is there if some values have none
        self.readings = readings  # those of `READINGS` that fit all values; none if something else is among them
        self._named = len(readings) == 1  # whether the user has named both marks
        self._marks, self._two_marks = set[str](), False

    def add(self, values: Any) -> None:
        """Include different strings, which may be missing."""
        parts = pc.extract_regex(values.drop_null(), pattern=_AMOUNT)
        if not self.readings or not len(parts):
            return
        if parts.null_count:
            self.readings = frozenset()
            return
        before, number, behind = (pc.struct_field(parts, name) for name in ("before", "number", "behind"))
        self.units |= set(pc.unique(pc.binary_join_element_wise(before, behind, "")).to_pylist())
        self.readings = frozenset(each for each in self.readings if all_match(number, f"^{_number(each)}$"))
        self._marks |= {mark for mark, pattern in MARKS.items() if _any_matches(number, pattern)}
        self._two_marks |= _any_matches(number, _TWO_MARKS)

    def merge(self, other: Amounts) -> None:
        self.units |= other.units
        self.readings &= other.readings
        self._marks |= other._marks
        self._two_marks |= other._two_marks

    @property
    def ambiguous(self) -> bool:
        """Whether a mark may separate thousands or decimals."""
        meanings = {tuple(mark == thousands for mark in sorted(self._marks)) for thousands, _ in self.readings}
        return len(meanings) > 1

    def writing(self) -> Writing | None:
        """Return how the numbers are written; None if they cannot be read, or in several ways."""
        if len(self.units) != 1 or self.units - {*UNITS, ""} or not self.readings or self.ambiguous:
            return None
        (unit,) = self.units
        if not unit and not self._two_marks:
            return None
        usual = [("", "."), *READINGS] if not self._marks else READINGS
        thousands, decimal = next(reading for reading in usual if reading in self.readings)
        unseen = "" if self._named else "".join(sorted({thousands, decimal} & {".", ","} - self._marks))
        return Writing(unit, thousands, decimal, unseen)


def all_match(values: Any, pattern: str) -> bool:
    """Whether all strings, but missing ones, match a pattern."""
    return bool(pc.all(pc.match_substring_regex(values, pattern), min_count=0).as_py())


def _any_matches(values: Any, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def as_plain(text: Any, writing: Writing) -> Any:
    """Return strings that are written in this way as plain numbers. Other numbers become strings that are none, and so
    do those with a mark that training had not where three digits follow, as in 3.125, which may be 3125 elsewhere."""
    unit, number = re.escape(writing.unit), _number((writing.thousands, writing.decimal))
    with_unit = rf"(?:[+-]?{unit}{_SPACE}?|{unit}{_SPACE}?[+-]?){number}|[+-]?{number}{_SPACE}?{unit}"
    fits = pc.match_substring_regex(text, f"^(?:{with_unit})$")
    left_out = "|".join(filter(None, (unit, MARKS.get(writing.thousands), _SPACE)))
    plain = pc.replace_substring_regex(text, left_out, "")
    if writing.decimal == ",":
        plain = pc.replace_substring(plain, ",", ".")
    other = pc.binary_join_element_wise(text, f"(not {_shown(writing)})", " ")
    others = pc.if_else(pc.match_substring_regex(text, r"^[+-]?[0-9.,]+$"), other, text)
    if writing.unseen:
        group = rf"^[^0-9.,]*[1-9][0-9]{{0,2}}[{writing.unseen}][0-9]{{3}}[^0-9.,]*$"
        in_doubt = pc.and_(fits, pc.match_substring_regex(text, group))
        plain = pc.if_else(in_doubt, pc.binary_join_element_wise(text, IN_DOUBT, " "), plain)
    return pc.if_else(fits, plain, others)


def _shown(writing: Writing) -> str:
    example = f"1{writing.thousands}234{writing.decimal}5"
    return f"written with {writing.unit}" if writing.unit else f"written as {example}"
