"""Dates in the columns of a batch of a table: what is written becomes microseconds since 1970."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from distsms.base.wording import option
from distsms.ingest.formats import columns

MOST_TRIED = 1000
"""At most so many values of a column show how its dates are written."""
_AWARE = r":[0-9]{2}\S*(?:Z|[+-][0-9]{2}:?[0-9]{2})$"
_FRACTION = r"^(?P<before>.*)\.(?P<fraction>[0-9]{1,6})(?P<behind>.*)$"


def as_microseconds(column: Any, form: str | None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return dates as microseconds since 1970 in UTC, (n,), and where they are dates, (n,). Strings are written in the
    `form`, in the letters of strptime; None is ISO 8601, in UTC where no offset is named."""
    if not columns.is_date(column):
        column = _dates(column, form) if form else _iso_dates(column)
    times = pc.cast(column, pa.int64())
    return pc.fill_null(times, 0).to_numpy(zero_copy_only=False), pc.is_valid(times).to_numpy(zero_copy_only=False)


def has_offset(column: Any, form: str | None) -> NDArray[np.bool_]:
    """Return which dates, in the same columns as for `as_microseconds`, have an offset from UTC, (n,)."""
    if columns.is_date(column) or form is not None or not columns.is_text(column):
        aware = "%z" in form if form is not None and columns.is_text(column) else getattr(column.type, "tz", None)
        return np.full(len(column), bool(aware))
    matches = pc.match_substring_regex(column, _AWARE)
    return pc.fill_null(matches, False).to_numpy(zero_copy_only=False)


def guess_forms(values: Iterable[str]) -> list[str]:
    """Return the forms, in the letters of strptime, that fit most strings: two if they do not decide between day and
    month, of which the day is likelier to be first, but the month where times have AM or PM."""
    texts = [text.strip() for text in values]
    forms = Counter(form for text in texts[:: -(-len(texts) // MOST_TRIED) or 1] for form in _possible_forms(text))
    if not forms:
        return ["%d.%m.%Y"]
    best = max(forms, key=lambda form: (forms[form], form.startswith("%m") == ("%p" in form)))
    other = _other_order(best)
    return [best, other] if other != best and forms[other] == forms[best] else [best]


def describe_forms(name: str, values: Iterable[str]) -> str:
    """Return the options that name the form of a column's dates, for a message: two if the values do not decide it."""
    forms = guess_forms(values)
    options = [option("dates", {name: form}) for form in forms]
    if len(forms) == 1:
        return options[0]
    order = ["month first" if form.startswith("%m") else "day first" for form in forms]
    listed = " or ".join(f"{words} ({meaning})" for words, meaning in zip(options, order, strict=True))
    return f"{listed}: the values that were looked at do not decide which of them is right"


def describe_other_order(name: str, text: str, form: str | None) -> str:
    """Return advice, with a semicolon before it, if a date fits the form with day and month exchanged; else ""."""
    swapped = _other_order(form or "")
    if swapped == form or _fault(text, swapped):
        return ""
    return f"; day and month seem to be the other way round: {option('dates', {name: swapped})} reads this value"


def _other_order(form: str) -> str:
    return re.sub("%[dm]", lambda match: {"%d": "%m", "%m": "%d"}[match[0]], form)


def _possible_forms(text: str) -> Iterator[str]:
    match = re.fullmatch(r"(\w+)([-./ ])(\w+)\2(\d+)(?:([T ,]+)\d+:\d+(:\d+)?(\.\d+)?( ?[AaPp][Mm])?)?", text)
    if match is None:
        return
    month = "%m" if match[3].isdigit() else "%b" if len(match[3]) == 3 else "%B"
    year = "%Y" if len(match[4]) == 4 else "%y"
    orders = [("%Y", month, "%d")] if len(match[1]) == 4 else [("%d", month, year), ("%m", "%d", year)]
    clock = ""
    if match[5]:
        clock = f"{match[5]}{'%I' if match[8] else '%H'}:%M{':%S' if match[6] else ''}{'.%f' if match[7] else ''}"
        clock += match[8].replace(match[8].strip(), "%p") if match[8] else ""
    for order in orders:
        form = match[2].join(order) + clock
        if not _fault(text, form):
            yield form


def _fault(text: str, form: str) -> str:
    """Return what Python says against a date of this form, such as "day is out of range for month"; "" if it fits."""
    try:
        datetime.strptime(text, form)
    except ValueError as error:
        return str(error)
    return ""


def _dates(text: Any, form: str) -> Any:
    """Return timestamps, with nulls for dates that do not exist: pyarrow takes 31 February for 2 or 3 March."""
    if ".%f" in form:  # fractions of a second, which the strptime of C does not know
        before, fraction, behind = pc.extract_regex(text, _FRACTION).flatten()
        rest = pc.cast(pc.cast(pc.utf8_rpad(fraction, 6, "0"), pa.int64()), pa.duration("us"))
        return pc.add(_dates(pc.binary_join_element_wise(before, behind, ""), form.replace(".%f", "")), rest)
    times = pc.strptime(text, format=form, unit="us", error_is_null=True)
    early = pc.fill_null(pc.less_equal(pc.day(times), 3), False)
    values = pc.unique(text.filter(early)).to_pylist()
    wrong = [value for value in values if "out of range for month" in _fault(value, form)]
    return pc.if_else(pc.is_in(text, value_set=pa.array(wrong, pa.string())), None, times) if wrong else times


def _iso_dates(text: Any) -> Any:
    text = pc.if_else(pc.match_substring_regex(text, columns.ISO_DATE), text, pa.scalar(None, pa.string()))
    text = pc.replace_substring_regex(text, r"(\.[0-9]{6})[0-9]+", r"\1")
    zoned = pc.match_substring_regex(text, _AWARE)
    none = pa.scalar(None, pa.string())
    local = _cast_dates(pc.if_else(zoned, none, text), pa.timestamp("us"))
    aware = _cast_dates(pc.if_else(zoned, text, none), pa.timestamp("us", "UTC"))
    return pc.coalesce(pc.cast(local, pa.int64()), pc.cast(aware, pa.int64()))


def _cast_dates(text: Any, kind: Any) -> Any:
    try:
        return pc.cast(text, kind)
    except pa.ArrowInvalid:
        if len(text) == 1:
            return pa.nulls(1, kind)
        half = len(text) // 2
        return pa.concat_arrays([_cast_dates(text[:half], kind), _cast_dates(text[half:], kind)])
