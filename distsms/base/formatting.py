"""Text for people and JSON: lines and tables that fit the terminal, bytes, durations, and NaN as null."""

from __future__ import annotations

import difflib
import json
import math
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from distsms.base.errors import InputError
from distsms.base.wording import printable


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, with NaN and infinities as null, since JSON has no notation for them."""
    return json.dumps(finite(value), indent=indent, allow_nan=False)


def finite(value: Any) -> Any:
    """Return a value with None in place of numbers that are not finite, also in the lists and dictionaries in it."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def format_number(value: Any, form: str = "") -> str:
    """Return a value in a format such as ".6f", or "-" without one."""
    return "-" if value is None else format(value, form)


def terminal_width() -> int:
    """Return the number of columns of the terminal, or of COLUMNS; 80 where there is no terminal, and 40 at least."""
    return max(40, shutil.get_terminal_size().columns)


def wrap(text: str, width: int) -> str:
    """Break wider lines at spaces, and indent what follows a label ("data a.svm: ..."); words are never cut."""
    lines = []
    for line in text.split("\n"):
        label = re.match(r"( *\S+(?: \S+)*? {2,}| *)", line)
        indent = " " * len(label[0]) if label and len(label[0]) < width // 2 else ""
        folded = len(line) > width and textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += folded or [line]
    return "\n".join(lines)


NARROW = 24
"""Columns of a table are not folded to fewer characters than this."""


def format_table(header: Sequence[str], rows: Sequence[Sequence[Any]], width: int | None = None) -> str:
    """Return a table of texts, and numbers of four significant digits, with all columns but the first aligned to the
    right. If it is wider than `width` (the terminal's), headers, then long texts are folded; at last there are several
    tables.
    """
    width = width or terminal_width()
    cells = [
        list(header),
        *[[printable(cell) if isinstance(cell, str) else f"{cell:.4g}" for cell in row] for row in rows],
    ]
    columns = [[[cell] for cell in column] for column in zip(*cells, strict=True)]

    def excess() -> int:
        return sum(map(_column_width, columns)) + 2 * (len(columns) - 1) - width

    if excess() > 0:
        for column in columns:
            words = column[0][0].split()
            column[0] = _fold(column[0][0], max(_column_width(column[1:]), *map(len, words), 1))
    spare = width - sum(min(_column_width(column), NARROW) + 2 for column in columns) + 2
    while spare >= 0 and excess() > 0:
        widest = max(columns, key=_column_width)
        _fold_column(widest, max(NARROW, _column_width(widest) - excess()))
    if spare < 0:
        _fold_column(columns[0], max(NARROW, width // 3))
        for column in columns[1:]:
            _fold_column(column, width - 2 - _column_width(columns[0]))
    blocks = [columns[:1]]
    for column in columns[1:]:
        together = [*blocks[-1], column]
        if len(together) > 2 and sum(map(_column_width, together)) + 2 * (len(together) - 1) > width:
            blocks.append([columns[0], column])
        else:
            blocks[-1] = together
    return "\n\n".join(map(_write_columns, blocks))


def _fold_column(column: list[list[str]], width: int) -> None:
    if _column_width(column) > width:
        column[:] = [_fold(" ".join(lines), width) for lines in column]


def _fold(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _column_width(column: Sequence[Sequence[str]]) -> int:
    return max((len(line) for lines in column for line in lines), default=0)


def _write_columns(columns: Sequence[Sequence[Sequence[str]]]) -> str:
    widths = [_column_width(column) for column in columns]
    left = [k == 0 or any(len(lines) > 1 for lines in column[1:]) for k, column in enumerate(columns)]
    written = []
    for number, row in enumerate(zip(*columns, strict=True)):
        if number and len(columns) > 1 and not any(text for lines in row[1:] for text in lines):
            continue  # this row has no text in these columns
        for line in zip_longest(*row, fillvalue=""):
            padded = [
                text.ljust(size) if to_left else text.rjust(size)
                for text, size, to_left in zip(line, widths, left, strict=True)
            ]
            written.append("  ".join(padded).rstrip())
        if number == 0:
            written.append("  ".join("-" * size for size in widths))
    return "\n".join(written)


UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "B": 1}


def _parse_amount(text: str, units: Mapping[str, float], noun: str) -> float:
    """Return a positive number that has one of these units behind it, or none; else InputError says what is wanted."""
    unit = next((name for name in units if text.endswith(name)), "")
    try:
        value = float(text.removesuffix(unit)) * units.get(unit, 1)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{text!r} is not {noun}", everywhere=True)
    return value


def parse_bytes(text: str) -> float:
    """Return the bytes of an amount of memory such as 1000000, 500MiB or 4GiB (MB and GB are powers of ten)."""
    return _parse_amount(text, UNITS, "an amount of memory such as 500MiB or 4GiB")


def parse_duration(text: str) -> float:
    """Return the seconds of a time such as 90, 90s, 55m, 1.5h or 2d."""
    return _parse_amount(text, {"s": 1, "m": 60, "h": 3600, "d": 86400}, "a time such as 90s, 55m or 1.5h")


def format_bytes(n_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.4g} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.4g} TiB"


def format_rows(n: float, form: str = "") -> str:
    """Format a number of rows, such as 1 row or 12 rows."""
    return f"{n:{form}} row{'s' * (n != 1)}"


def format_duration(seconds: float) -> str:
    """Format a duration for people, such as 12 s, 3 min 20 s, 2 h 5 min or 3 d 4 h."""
    whole = round(seconds)
    for size, unit, smaller, part in ((86400, "d", "h", 3600), (3600, "h", "min", 60), (60, "min", "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def format_seconds(seconds: float) -> str:
    """Format a measured time for people, to a hundredth of a second where it is below ten."""
    return f"{seconds:.2f} s" if seconds < 10 else format_duration(seconds)


def format_objective(value: float) -> str:
    """Format a value of the objective with eight digits after the point; very small or large ones as 1.2345679e-12."""
    return f"{value:.8f}" if value == 0 or 1e-4 <= abs(value) < 1e5 else f"{value:.7e}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question with the known name that is most like a name, with a semicolon before it; "" if none is."""
    close = difflib.get_close_matches(name, sorted(names), 1, 0.7)
    return f"; did you mean {close[0]}?" if close else ""
