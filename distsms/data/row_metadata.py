"""What rows have beside their features that says which of them belong together: a group, and a time.

A group is kept as 64 bits of a hash of its text, so that it is the same from every format: "17" in CSV, 17 or 17.0 in
Parquet and arrays, `qid:17` in svmlight text. A time is a number, or a date as in ISO 8601, which becomes seconds since
1970 (in UTC, unless it names another offset). Neither may be missing: nobody could say where such a row belongs.
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
Fail = Callable[[int, str], NoReturn]
"""Raises InputError for a row, number 0 being the first of those given, with what is wrong."""

NUMBERS, DATES = "numbers", "dates"
EARLIEST, LATEST = -62135596800.0, 253402300799.0  # seconds since 1970 of the years 1 and 9999, whose end they are
NO_GROUP = "the group is missing; a row that belongs to no other needs a name of its own"
NO_TIME = "expected a time: a number, or a date such as 2024-05-31 or 2024-05-31T12:30:00Z"
TOO_LONG = "times are kept in double precision, which cannot tell whole numbers of this size apart; subtract the first"
_WHOLE = re.compile(r"\+?(-?[0-9]+)(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Beside(NamedTuple):
    """Of some rows; None where there is none. kinds : which of NUMBERS and DATES the times are."""

    groups: Hashes | None = None  # (n,)
    times: Times | None = None  # (n,) finite
    kinds: frozenset[str] = frozenset()

    def some(self, rows: NDArray[np.intp] | slice) -> Beside:
        """Of some of the rows."""
        groups = None if self.groups is None else self.groups[rows]
        times = None if self.times is None else self.times[rows]
        return Beside(groups, times, self.kinds)


def together(parts: Sequence[Beside]) -> Beside:
    """Of the rows of all parts, in order; all of them have the same."""
    hashes = [one.groups for one in parts if one.groups is not None]
    seconds = [one.times for one in parts if one.times is not None]
    kinds = frozenset[str]().union(*(one.kinds for one in parts))
    return Beside(np.concatenate(hashes) if hashes else None, np.concatenate(seconds) if seconds else None, kinds)


def read(
    group: str | None,
    time: str | None,
    texts: Callable[[str], Sequence[str]],
    fail: Callable[[str, int, str], NoReturn],
) -> Beside:
    """What the columns of these names say, as far as there are any.

    texts : of a column, (n,).  fail : raises InputError for a column and a row, number 0 being the first one.
    """
    kept = None if group is None else groups(texts(group), partial(fail, group))
    if time is None:
        return Beside(kept)
    return Beside(kept, *times(texts(time), partial(fail, time)))


def groups(texts: Sequence[str], fail: Fail) -> Hashes:
    """(n,): a hash of each text; of a whole number written as 17.0, that of 17. Calls `fail` for an empty one."""
    number: dict[str, int] = {}
    places = [number.setdefault(text, len(number)) for text in texts]
    if "" in number:
        fail(texts.index(""), NO_GROUP)
    digests = (hashlib.blake2b(_plain(text).encode(), digest_size=8).digest() for text in number)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)[places]


def _plain(text: str) -> str:
    whole = _WHOLE.fullmatch(text)
    return ("0" if whole[1] == "-0" else whole[1]) if whole else text


def times(texts: Sequence[str], fail: Fail) -> tuple[Times, frozenset[str]]:
    """(n,): the time that each text says, and of which kinds they are. Calls `fail` for one that says none."""
    found, kinds = list[float](), set[str]()
    for row, text in enumerate(texts):
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
    """Of a date, or NaN if it is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH).total_seconds()


def time_in_words(time: float, kind: str) -> str:
    """A time for people: a number, or a date with the time of the day unless that is midnight."""
    if kind == DATES:
        date = (_EPOCH + timedelta(seconds=time)).replace(tzinfo=None)
        return date.date().isoformat() if time % 86400 == 0 else date.isoformat(" ", "seconds")
    return f"{time:.15g}"


def texts(values: NDArray[Any]) -> list[str]:
    """Numbers, strings or dates of an array, (n,), as texts; one that is missing (NaN, NaT) is empty."""
    if values.dtype.kind == "M":
        return ["" if one == "NaT" else one for one in values.astype(str).tolist()]
    return [_text(one) for one in values.tolist()]


def _text(one: Any) -> str:
    if isinstance(one, bytes):
        return one.decode("utf-8", "replace").strip()
    if one is None or (isinstance(one, float) and math.isnan(one)):
        return ""
    if isinstance(one, float) and one.is_integer():
        return str(int(one))  # 1e16 as well
    return str(one).strip()
