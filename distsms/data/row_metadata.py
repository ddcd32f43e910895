"""Groups and times of rows. They are not features, but say which rows belong together, and in which order.

A group is kept as a 64-bit hash of its text, which is the same from every format: "17" in CSV, 17 or 17.0 in Parquet
and arrays, `qid:17` in svmlight text. A time is a number, or a date as in ISO 8601, which becomes seconds since 1970
(in UTC, unless it names another offset). Neither may be missing, because nobody could say where such a row belongs.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Times = NDArray[np.float64]
RaiseForRow = Callable[[int, str], NoReturn]
"""A function that raises InputError for a row, counted from 0 in the rows that were given, with what is wrong."""

NUMBERS, DATES = "numbers", "dates"
EARLIEST, LATEST = -62135596800.0, 253402300799.0  # the first second of the year 1 and the last one of the year 9999
NO_GROUP = "the group is missing; a row that belongs to no other row needs a group name of its own"
NO_TIME = "expected a time: a number, or a date such as 2024-05-31 or 2024-05-31T12:30:00Z"
TOO_LONG = (
    "times are stored as float64, which cannot distinguish whole numbers of this size; subtract the first time from all"
)
_WHOLE = re.compile(r"\+?(-?[0-9]+)(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RowMetadata(NamedTuple):
    """Groups and times of some rows; None if the rows have none. `kinds`: which of NUMBERS and DATES the times are."""

    groups: Hashes | None = None  # (n,)
    times: Times | None = None  # (n,) finite
    kinds: frozenset[str] = frozenset()

    def take(self, rows: NDArray[np.intp] | slice) -> RowMetadata:
        """Return groups and times of a selection of the rows."""
        groups = None if self.groups is None else self.groups[rows]
        times = None if self.times is None else self.times[rows]
        return RowMetadata(groups, times, self.kinds)


def concatenate(parts: Sequence[RowMetadata]) -> RowMetadata:
    """Return groups and times of the rows of all parts, in order. Either all parts have them or none has."""
    hashes = [part.groups for part in parts if part.groups is not None]
    seconds = [part.times for part in parts if part.times is not None]
    kinds = frozenset[str]().union(*(part.kinds for part in parts))
    return RowMetadata(np.concatenate(hashes) if hashes else None, np.concatenate(seconds) if seconds else None, kinds)


def read(
    group: str | None,
    time: str | None,
    strings: Callable[[str], Sequence[str]],
    fail: Callable[[str, int, str], NoReturn],
) -> RowMetadata:
    """Return what the columns `group` and `time` hold; None stands for no column.

    Parameters
    ----------
    strings : callable
        Returns the strings of a column, (n,).
    fail : callable
        Raises InputError for a column and a row, counted from 0, with what is wrong.
    """
    hashes = None if group is None else groups(strings(group), partial(fail, group))
    if time is None:
        return RowMetadata(hashes)
    return RowMetadata(hashes, *times(strings(time), partial(fail, time)))


def groups(strings: Sequence[str], fail: RaiseForRow) -> Hashes:
    """Return a hash of each string, (n,). Fails for "". The hashes of 17 and 17.0 are the same."""
    numbers: dict[str, int] = {}
    which = [numbers.setdefault(text, len(numbers)) for text in strings]
    if "" in numbers:
        fail(strings.index(""), NO_GROUP)
    digests = (hashlib.blake2b(_plain(text).encode(), digest_size=8).digest() for text in numbers)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)[which]


def _plain(text: str) -> str:
    """Return the text of a whole number without sign and decimals that change nothing; other texts as they are."""
    whole = _WHOLE.fullmatch(text)
    return ("0" if whole[1] == "-0" else whole[1]) if whole else text


def times(strings: Sequence[str], fail: RaiseForRow) -> tuple[Times, frozenset[str]]:
    """Return the time that each string stands for, (n,), and which kinds occur. Fails for a string that is no time."""
    found, kinds = list[float](), set[str]()
    for row, text in enumerate(strings):
        is_number = _NUMBER.fullmatch(text)
        value = float(text) if is_number else _seconds(text)
        if abs(value) >= 2**53 and (whole := _WHOLE.fullmatch(text)) and int(value) != int(whole[1]):
            fail(row, f"found {text!r:.40}: {TOO_LONG}")
        if not math.isfinite(value):
            fail(row, f"found {text!r:.40}: {NO_TIME}")
        found.append(value)
        kinds.add(NUMBERS if is_number else DATES)
    return np.array(found, np.float64), frozenset(kinds)


def _seconds(text: str) -> float:
    """Return the seconds since 1970 of a date, or NaN if the text is not a date."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH).total_seconds()


def format_time(time: float, kind: str) -> str:
    """Return a time for people: a number, or a date, with the time of the day unless that is midnight."""
    if kind == DATES:
        date = (_EPOCH + timedelta(seconds=time)).replace(tzinfo=None)
        return date.date().isoformat() if time % 86400 == 0 else date.isoformat(" ", "seconds")
    return f"{time:.15g}"


def as_strings(values: NDArray[Any]) -> list[str]:
    """Return the numbers, strings or dates of an array (n,) as strings; missing ones (NaN, NaT, None) are empty."""
    if values.dtype.kind == "M":
        return ["" if text == "NaT" else text for text in values.astype(str).tolist()]
    return [_text(value) for value in values.tolist()]


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").strip()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # also where str would write an exponent, as for 1e16
    return str(value).strip()
