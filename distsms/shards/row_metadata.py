"""Groups, times and weights of rows. They are no features: they say which rows belong together, when, and how much.

A group is kept as a 64-bit hash of its text, the same from every format. A time is a number, or a date as in ISO 8601,
which becomes seconds since 1970. Neither may be missing; only in a table, a row may be a group of its own. A weight is
from 0 to 1e250; a row of weight 3 counts as three rows.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from distsms.base import hashing, text_files
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.typing import Floats, Hashes
from distsms.base.wording import DECIMAL

Times = NDArray[np.float64]
RaiseForRow = Callable[[int, str], NoReturn]
"""A function that raises InputError for a row, counted from 0 in the rows that were given, with what is wrong."""

NUMBERS, DATES = "numbers", "dates"
LARGEST = 2.0**332  # about 1e100; see `in_range`
HEAVIEST = 1e250  # so that float64 can hold the sum of any number of weights
EARLIEST, LATEST = -62135596800.0, 253402300799.0  # the first second of the year 1 and the last one of the year 9999
OWN_GROUP = np.uint64(0)
"""Stands for the group of a row that has none, until `own_groups` gives it one of its own."""
NO_GROUP = "the group is missing; a row that belongs to no other row needs a group name of its own"
NO_WEIGHT = "expected a weight: a number from 0 to 1e250, where 0 leaves the row out"
NO_TIME = "expected a time: a number, or a date such as 2024-05-31 or 2024-05-31T12:30:00Z"
TOO_LONG = (
    "times are stored as float64, which cannot distinguish whole numbers of this size; subtract the first time from all"
)
_LONGEST = 2**12  # bytes of a line of a file of weights
_WHOLE = re.compile(r"\+?(-?[0-9]+)(?:\.0*)?")
_OWN = 0x67726F75  # of which nothing else makes keys
_NO_VALUES = ("None", "nan", "NaT", "<NA>")  # as Python, NumPy and pandas write them
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class MetadataColumns(NamedTuple):
    """The names of the columns of groups, times and weights; None for what rows do not have."""

    group: str | None
    time: str | None
    weight: str | None


class RowMetadata(NamedTuple):
    """What is known of some rows; None for what they do not have. `kinds`: which of NUMBERS and DATES the times are."""

    groups: Hashes | None = None  # (n,)
    times: Times | None = None  # (n,) finite
    kinds: frozenset[str] = frozenset()
    weights: Floats | None = None  # (n,) finite, at least 0

    def take(self, rows: NDArray[np.bool_] | slice) -> RowMetadata:
        return RowMetadata(some(self.groups, rows), some(self.times, rows), self.kinds, some(self.weights, rows))


def some(array: Any, rows: Any) -> Any:
    """Return what an array has of some rows; None if there is none."""
    return None if array is None else array[rows]


def concatenate(parts: Sequence[RowMetadata]) -> RowMetadata:
    """Return what is known of the rows of all parts, in order. Either all parts have groups, times, ... or none has."""

    def joined(name: str) -> Any:
        arrays = [array for part in parts if (array := getattr(part, name)) is not None]
        return np.concatenate(arrays) if arrays else None

    kinds = frozenset[str]().union(*(part.kinds for part in parts))
    return RowMetadata(joined("groups"), joined("times"), kinds, joined("weights"))


def read(
    columns: MetadataColumns,
    strings: Callable[[str], Sequence[str]],
    fail: Callable[[str, int, str], NoReturn],
    alone: bool = False,
) -> RowMetadata:
    """Return what columns hold, whose values `strings` returns; `fail` raises InputError for a column and a row. Rows
    may be `alone`, without a group."""
    group, time, weight = columns
    hashes = None if group is None else groups(strings(group), partial(fail, group), alone)
    seconds, kinds = (None, frozenset[str]()) if time is None else times(strings(time), partial(fail, time))
    amounts = None if weight is None else weights(strings(weight), partial(fail, weight))
    return RowMetadata(hashes, seconds, kinds, amounts)


def groups(strings: Sequence[str], fail: RaiseForRow, alone: bool = False) -> Hashes:
    """Return a hash of each string, (n,). Fails for "", or returns OWN_GROUP. Hashes of 17 and 17.0 are the same."""
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(text, len(numbers)) for text in strings]
    if "" in numbers and not alone:
        fail(strings.index(""), NO_GROUP)
    digests = (hashlib.blake2b(_plain(text).encode(), digest_size=8).digest() for text in numbers)
    hashes = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
    if "" in numbers:
        hashes[numbers[""]] = OWN_GROUP
    return hashes[codes]


def own_groups(groups: Hashes, first: int) -> Hashes:
    """Return hashes with a group of its own for each row that has none, by the rows' numbers from `first` on."""
    rows = np.flatnonzero(groups == OWN_GROUP)
    hashes = groups.copy()
    hashes[rows] = hashing.row_keys(rows + first, _OWN)
    return hashes


def _plain(text: str) -> str:
    """Return the text of a whole number without sign and decimals that change nothing; other texts as they are."""
    whole = _WHOLE.fullmatch(text)
    return ("0" if whole[1] == "-0" else whole[1]) if whole else text


def plain_number(text: str) -> str:
    """Return a decimal number in one form: whole ones with all digits, others as the shortest text of a float64."""
    if not DECIMAL.fullmatch(text) or not math.isfinite(value := float(text)):
        return text
    exact = Decimal(text) if value else Decimal(0)
    return f"{exact:.0f}" if exact == exact.to_integral_value() else repr(value)


def times(strings: Sequence[str], fail: RaiseForRow) -> tuple[Times, frozenset[str]]:
    """Return the time that each string stands for, (n,), and which kinds occur. Fails for a string that is no time."""
    values, kinds = list[float](), set[str]()
    for row, text in enumerate(strings):
        is_number = DECIMAL.fullmatch(text)
        value = float(text) if is_number else _seconds(text)
        if not math.isfinite(value):
            fail(row, f"found {text!r:.40}: {NO_TIME}")
        # Python makes no int of a text with very many digits, which may be zeros before the others.
        if abs(value) >= 2**53 and (match := _WHOLE.fullmatch(text)) and Decimal(value) != Decimal(match[1]):
            fail(row, f"found {text!r:.40}: {TOO_LONG}")
        values.append(value)
        kinds.add(NUMBERS if is_number else DATES)
    return np.array(values, np.float64), frozenset(kinds)


def weights(strings: Sequence[str], fail: RaiseForRow) -> Floats:
    """Return the weight that each string stands for, (n,). Fails for a string that is no weight."""
    try:
        values = np.array([math.nan if "_" in text else float(text) for text in strings], np.float64)
    except ValueError:
        values = np.array([float(text) if DECIMAL.fullmatch(text) else math.nan for text in strings], np.float64)
    wrong = ~((values >= 0) & (values <= HEAVIEST))
    if wrong.any():
        row = int(wrong.argmax())
        fail(row, f"found {strings[row]!r:.40}: {NO_WEIGHT}")
    return values


def in_range(weights: Floats, comm: Communicator) -> Floats:
    """Return weights whose sums and squares float64 can hold: multiplied by the power of two that brings the largest of
    all ranks to between 1/2 and 1 if it is not from 1 / `LARGEST` to `LARGEST`. **Collective.**"""
    high = float(comm.maximum(np.array([weights.max(initial=0.0)]))[0])
    scaled = np.ldexp(weights, -math.frexp(high)[1])
    if comm.maximum(np.array([np.count_nonzero(weights) - np.count_nonzero(scaled)]))[0]:
        problem = f"some weights other than 0 vanish in float64 beside the largest, {high:g}"
        remedy = "give weights that are closer to each other, and the weight 0 to rows that do not count"
        raise InputError(f"{problem}: {remedy}", everywhere=True)
    return weights if high == 0 or 1 / LARGEST <= high <= LARGEST else scaled


def read_weight_file(path: str | os.PathLike[str], first: int, count: int, n_rows: int) -> Floats:
    """Return the weights of `count` rows from row `first` on, out of a file with one number on each line. Local. It may
    be compressed, begin with a byte order mark and end with empty lines, and needs a line for each of `n_rows` rows."""

    def fail(row: int, problem: str) -> NoReturn:
        raise InputError(f"{path}:{first + row + 1}: {problem}")

    texts, n_lines = list[str](), 0
    with text_files.open_text(os.fspath(path)) as lines:
        for row, line in enumerate(iter(partial(text_files.read_line, lines, os.fspath(path), _LONGEST), b"")):
            text = (line if row else line.removeprefix(text_files.BYTE_ORDER_MARK)).strip()
            if text:
                n_lines = row + 1  # lines at the end that are empty do not count
            if first <= row < first + count:
                texts.append(text.decode("ascii", "replace"))
    if n_lines != n_rows:
        raise InputError(f"{path}: has {n_lines} lines, but the data have {n_rows} rows; give one weight for each row")
    return weights(texts, fail)


def _seconds(text: str) -> float:
    """Return the seconds since 1970 of a date, from `EARLIEST` to `LATEST`, or NaN if the text is not a date."""
    # Python 3.10 reads neither Z nor fractions of a second that have not three or six digits.
    text = re.sub(r"(?<=:[0-9]{2})[.,]([0-9]{1,6})[0-9]*", lambda match: f".{match[1]:0<6}", text)
    try:
        date = datetime.fromisoformat(re.sub(r"(:.*)Z$", r"\1+00:00", text))
    except ValueError:
        return math.nan
    seconds = ((date if date.tzinfo else date.replace(tzinfo=timezone.utc)) - _EPOCH).total_seconds()
    return min(max(seconds, EARLIEST), LATEST)


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


def is_missing(value: Any) -> bool:
    """Return whether an object of Python, NumPy or pandas stands for a missing value."""
    return not isinstance(value, str) and str(value) in _NO_VALUES


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").strip()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # also where str would write an exponent, as for 1e16
    text = str(value).strip()
    return "" if text in _NO_VALUES else text
