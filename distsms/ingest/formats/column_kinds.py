"""Decide how a column is used, from its survey and the options, and write the report on it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from distsms.base.errors import InputError
from distsms.base.formatting import format_rows
from distsms.base.wording import option
from distsms.ingest.formats import amounts, columns, dates
from distsms.ingest.formats.column_survey import (
    MAX_CATEGORIES,
    MAX_NUMBERS,
    Cell,
    NumberSurvey,
    TableSurvey,
    TextSurvey,
)
from distsms.shards.column_options import BITS, ColumnOptions, ColumnReport
from distsms.shards.row_metadata import plain_number
from distsms.shards.table_schema import CATEGORY, DATE, HASH, NUMBER, Column

ID_LIKE, TEXT = "id-like", "text"
FEW_ROWS, MANY_ROWS, VERY_MANY_ROWS = 100, 1000, 10_000
"""From this many rows on, a column is treated as names of rows (ids): from FEW_ROWS on if it has strings that all
differ, from MANY_ROWS on if most of its strings occur once, from VERY_MANY_ROWS on if it has whole numbers that all
differ.
"""
TEXT_WORDS, TEXT_VALUES, TEXT_SHARE = 2.5, 200, 0.05
"""A column holds text if its strings have at least TEXT_WORDS words on average, and if it has at least TEXT_VALUES
different values, which must also be at least the share TEXT_SHARE of its rows with strings.
"""
EVEN_VALUES = 120
"""A column with this many different whole numbers, spread evenly and repeated, looks like codes. (Ages are fewer.)"""
FEW_VALUES = 12
"""Whole numbers of which there are at most so many, each in ten rows or more on average, may be codes."""
MOSTLY_NUMBERS = 0.9
MANY_AMOUNTS = 20
"""From more different values on, numbers with a unit are amounts rather than categories."""
TINY = 1e-307
"""The factor that scales a column of smaller numbers to size 1 is not finite."""
_ID_NAME = re.compile(r"(?:^|[^a-z])(?:id|uuid|guid|key|no|nr|num|number|index|ref|reference)$", re.IGNORECASE)
_CODE_NAME = re.compile(
    r"(?:^|[^a-z])(?:id|code|type|kind|class|category|group|store|shop|branch|region|zone|zip|zipcode|postcode|plz|mcc"
    r"|sic|naics|product|merchant|vendor|model|customer|client|account|hospital|district|county|commune"
    r"|nr|nummer|kunde|konto|filiale|artikel|produkt|branche|gemeinde|bezirk|gruppe|klasse|kategorie|typ)$|^(?:id|code|zip|plz)[^a-z]",
    re.IGNORECASE,
)
_COUNTRY = re.compile("[A-Z]{2}")
_MARK = re.compile("[.,' \u2019\u00a0\u202f]")
_AMOUNT = re.compile(r"((?:[+-]?[$\u00a3\u00a5\u20ac]|[A-Z]{3}\s)?\s?)[+-]?\d[\d.,]*(\D*)")
"""A number with a currency before it or a unit behind it, which are the groups. Letters before a number make a code."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Where a word begins in a name such as customerId."""


def decide(
    name: str, survey: TableSurvey, options: ColumnOptions, files: Any, keep: bool = False
) -> tuple[Column | None, ColumnReport]:
    """Return the encoding of a column (None if it is left out), and the report on it; InputError says what to do."""
    place, text = survey.place[name], survey.texts.get(name)
    count, missing = survey.numbers.counts[place].tolist()
    if text is None:
        values, exact = survey.numbers.sample.different(place)
    else:
        count = text.rows_with_strings + text.rows_with_numbers
        missing += text.missing
        values, exact = text.sample.different(0)
    report = ColumnReport(name, NUMBER, min(values, count), exact, missing)
    if not name:
        report.taken_for = ID_LIKE
        report.notes.append("left out: the first column has no name, like the row names that pandas and R write")
        return None, report
    if not count:
        report.notes.append("no value at all")
        return _done(Column(name, None, missing > 0), report)
    if values == 1:
        report.notes.append("constant: every value is the same")
        if text is None and not missing and not keep and name not in options.numeric and count >= FEW_ROWS:
            report.notes[-1] += f"; left out: {option('numeric', [name])} keeps it"
            return None, report
    if missing >= (count + missing) / 2:
        report.notes.append(f"missing in {missing / (count + missing):.0%} of the rows")
    if name in options.numeric or (text is None and name not in options.hashed):
        return _number(name, survey, options, report, files, keep)
    assert text is not None
    return _words(name, text, options, report, files, keep)


def _number(
    name: str, survey: TableSurvey, options: ColumnOptions, report: ColumnReport, files: Any, keep: bool
) -> tuple[Column | None, ColumnReport]:
    place = survey.place[name]
    if (text := survey.texts.get(name)) is not None:
        if text.first is None:
            raise InputError(f"{files.paths[0]}: column {name!r}: {option('numeric')}: there is no number")
        _fail(name, text.first, files, f"{option('numeric')}: this is no number")
    if name in survey.infinite:
        _fail(name, survey.infinite[name], files, "the value is not finite; expected a decimal number")
    if name not in options.numeric and name not in survey.written:
        _check_marks(name, survey.marks.get(name, {}), report, files)
    writing = None
    if name in survey.written:
        writing, example = survey.written[name]
        plain = amounts.as_plain(columns.as_strings_column([example]), writing)[0].as_py()
        report.notes.append(
            f"numbers that are written as {example:.30} is, which counts as {plain:.30}; "
            f"{option('categorical', [name])} takes them as categories"
        )
    numbers = survey.numbers
    low, high = numbers.extremes[place]
    if 0 < max(-low, high) < TINY:
        report.notes.append(f"all numbers are smaller than {TINY:g}, too small to compute with; multiply them")
    # Whole numbers may be names of something, unless the user says that they are numbers.
    if name not in options.numeric:
        count, whole = int(numbers.counts[place, 0]), bool(numbers.whole[place])
        counted = high / 2 - low / 2 < count  # in halves, since the difference may overflow
        if (
            whole
            and not keep
            and count >= FEW_ROWS
            and numbers.sample.repeated(place) == 0
            and (counted or _ID_NAME.search(_HUMP.sub("_", name)) or count >= VERY_MANY_ROWS)
        ):
            report.taken_for = ID_LIKE
            report.notes.append(f"left out: whole numbers that all differ; {option('numeric', [name])} keeps it")
            return None, report
        if whole and max(-low, high) > 2**53:
            report.notes.append(
                "whole numbers above 2^53, whose last digits float64 cannot hold; if they are codes: "
                f"{option('categorical', [name])} or {option('id', name)} keeps all digits"
            )
        if whole and report.values > 1 and (low, high) not in ((0, 1), (-1, 1)) and not _are_years(low, high):
            few = report.values <= MAX_NUMBERS and report.exact
            digits = len(f"{low:.0f}") if low >= 100 else 0
            same_length = digits and len(f"{high:.0f}") == digits and report.values < (high - low + 1) / 2
            codes = (
                name in survey.padded
                or _CODE_NAME.search(_HUMP.sub("_", name))
                or (few and same_length and 20 * report.values <= count)
                or _is_even(numbers, place, report.values)
            )
            recur = report.exact and report.values <= FEW_VALUES and 10 * report.values <= count >= FEW_ROWS
            if codes or (recur and not survey.wide):
                codes_option = option("categorical", [name]) if few else option("hashed", {name: BITS}, text=name)
                remedy = f"{codes_option} or {option('drop', [name])}"
                kind = "whole numbers that look like codes" if codes else "few whole numbers"
                report.notes.append(f"{kind}, treated as amounts; if they are codes: {remedy}")
    if marks := survey.missing.get(name):
        report.notes.append(_missing_marks(marks, "numbers"))
    mean, centred = numbers.fill(place), numbers.is_offset(place)
    if centred:
        report.notes.append(_centred(mean))
    column = Column(name, None, report.missing > 0, fill=mean, centred=centred)
    return _done(column if writing is None else replace(column, **writing._asdict()), report)


def _centred(mean: float, noun: str = "its mean") -> str:
    return f"far from 0: {noun}, {mean:.10g}, is subtracted"


def _missing_marks(marks: Counter[str], others: str) -> str:
    listed = ", ".join(f"'{mark}' ({format_rows(rows, ',')})" for mark, rows in sorted(marks.items()))
    taking = f"{option('not_missing', text='MARK')} takes one as a value"
    return f"{listed}: taken as missing, since the others are {others}; {taking}"


def _are_years(low: float, high: float) -> bool:
    return low >= 1500 and high <= 2100


def _is_even(numbers: NumberSurvey, place: int, values: int) -> bool:
    """Return whether whole numbers recur and are spread evenly, as those that were given one after the other. Amounts
    and counts are rarely even, years and ages are too few, and numbers up to 255 may be brightness."""
    low, high = numbers.extremes[place].tolist()
    count, repeated = int(numbers.counts[place, 0]), numbers.sample.repeated(place)
    often = repeated > 0.5 and count >= 2 * values
    if values < EVEN_VALUES or high == 255 or _are_years(low, high) or not (often or (high >= 1e6 and repeated >= 0.1)):
        return False
    spread, mean = high - low, numbers.mean(place)
    deviation = numbers.deviation(place)
    return bool(abs(mean - low - spread / 2) < 0.1 * spread and 0.24 * spread < deviation < 0.34 * spread)


def _check_marks(name: str, marks: Mapping[str, set[bool]], report: ColumnReport, files: Any) -> None:
    if marks.get(".") == {True} and not files.cells.thousands:
        raise InputError(
            f"{files.paths[0]}: column {name!r}: all numbers with a point have exactly three digits behind it, and "
            f"numbers may have decimal commas here, so the point may separate thousands: {option('thousands', '.')} "
            f"reads 1.213 as 1213; {option('numeric', [name])} reads it as a decimal point"
        )
    if marks.get(".") == {True, False} and files.cells.thousands == ".":
        report.notes.append("some points are read as marks between thousands, others as decimal points")
    if marks.get(",") == {True} and not files.cells.thousands:
        report.notes.append(
            "all numbers with a comma have exactly three digits behind it, which is read as a decimal comma; if it "
            f"separates thousands: {option('thousands', ',')}; if it does not: {option('numeric', [name])}"
        )


def _marks_advice(value: str) -> str:
    """Return what a number with commas or marks between thousands may mean, and which options read it."""
    marks = [{"\u2019": "'", "\u00a0": " ", "\u202f": " "}.get(mark, mark) for mark in _MARK.findall(value)]
    if len(marks) == 1 and marks[0] == ",":
        may_be_thousands = re.search(r"[0-9],[0-9]{3}$", value)
        thousands = f", or {option('thousands', ',')} as a mark between thousands" if may_be_thousands else ""
        return f"looks like a number with a comma: {option('decimal', ',')} reads it as a decimal comma{thousands}"
    word = "space" if marks[0] == " " else marks[0].replace("'", '"\'"')
    options = option("thousands", marks[0], text=word)
    options += f" {option('decimal', ',')}" if marks[-1] == "," and marks[0] not in ".," else ""
    shown = "a space" if marks[0] == " " else marks[0]
    return f"{value:.30} looks like a number with the mark {shown} between thousands: {options} reads it"


def _words(
    name: str, text: TextSurvey, options: ColumnOptions, report: ColumnReport, files: Any, keep: bool
) -> tuple[Column | None, ColumnReport]:
    is_date = text.typed_dates or (not text.rows_with_numbers and "date" in text.may_be)
    if name in options.hashed:
        report.taken_for = TEXT if _is_text(text, report) else CATEGORY
        tokens, numeric = report.taken_for == TEXT, not text.rows_with_strings
        column = Column(name, None, report.missing > 0, HASH, numeric=numeric, bits=options.hashed[name], tokens=tokens)
        return _done(column, report)
    if name in options.categorical:
        return _category(name, text, options, report, files)
    if name in options.dates or is_date:
        if text.no_date:
            form = options.dates.get(name) or "ISO 8601, as 2024-05-31 or 2024-05-31T12:30:00"
            advice = f"; {option('categorical', [name])} takes its values as they are"
            if name in options.dates:
                advice = dates.describe_other_order(name, text.no_date.value, options.dates[name])
            _fail(name, text.no_date, files, f"there is no such date; dates are written as {form}{advice}")
        report.taken_for = DATE
        if text.marks:
            report.missing, report.values = report.missing + text.marks.total(), report.values - len(text.marks)
            report.notes.append(_missing_marks(text.marks, "dates"))
        fill, centred, written = text.dates.fill(0), text.dates.is_offset(0), options.dates.get(name)
        if centred:
            report.notes.append(_centred(fill, "the mean of its years since 2000"))
        offset = None if len(text.offsets) != 1 else True in text.offsets
        if len(text.offsets) == 2:
            report.notes.append("some dates have an offset from UTC, and others have none and count as UTC")
        dates_of_column: dict[str, Any] = {"format": written, "hours": text.hours, "offset": offset, "centred": centred}
        column = Column(name, None, report.missing > 0, DATE, fill, **dates_of_column)
        return _done(column, report)
    others = (
        f"{option('categorical', [name])} takes its values as they are, {option('drop', [name])} leaves the column out"
    )
    if not text.rows_with_numbers and "other date" in text.may_be:
        forms = dates.describe_forms(name, text.strings or [text.first.value if text.first else ""])
        problem = f"looks like a date, and could be read in several ways: name its form, as in {forms}"
        _fail(name, text.first, files, f"{problem}; {others}")
    if "marks" in text.may_be and text.first:
        longest = max([text.first.value, *(text.strings or ())], key=lambda value: len(set(_MARK.findall(value))))
        _fail(name, text.first, files, f"{_marks_advice(longest)}; {others}")
    count = text.rows_with_strings + text.rows_with_numbers
    many_numbers = text.numbers is None or len(text.numbers) > MAX_NUMBERS
    all_differ = report.values >= 0.9 * count and text.sample.repeated(0) <= 0.1
    like_ids = (count >= FEW_ROWS and all_differ) or (count >= MANY_ROWS and report.values > count / 2)
    if (many_numbers or like_ids) and text.rows_with_numbers >= MOSTLY_NUMBERS * count:
        problem = f"is not a number, but the column has more than {MAX_NUMBERS} different numbers; correct it"
        if not many_numbers:
            problem = "is not a number, but most values of the column are different numbers; correct it"
        _fail(name, text.first, files, f"{problem}, or leave the column out with {option('drop', [name])}")
    advice = f"{option('hashed', {name: BITS}, text=name)} keeps it"
    if not keep and _is_text(text, report):
        report.taken_for = TEXT
        report.notes.append(f"left out: text; {advice}")
        return None, report
    if not keep and like_ids:
        report.taken_for = ID_LIKE
        report.notes.append(f"left out: most values occur only once; {advice}")
        report.notes += filter(None, [_unit(text)])
        return None, report
    if text.strings is None or text.numbers is None or len(text.strings) + len(text.numbers) > MAX_CATEGORIES:
        report.taken_for = CATEGORY
        report.notes.append(f"left out: more than {MAX_CATEGORIES} categories; {advice}")
        return None, report
    return _category(name, text, options, report, files)


def _is_text(text: TextSurvey, report: ColumnReport) -> bool:
    count = max(text.rows_with_strings, 1)
    return text.words >= TEXT_WORDS * count and report.values >= max(TEXT_VALUES, TEXT_SHARE * count)


def _category(
    name: str, text: TextSurvey, options: ColumnOptions, report: ColumnReport, files: Any
) -> tuple[Column, ColumnReport]:
    report.taken_for = CATEGORY
    if text.strings is None or text.numbers is None or len(text.strings) + len(text.numbers) > MAX_CATEGORIES:
        raise InputError(
            f"{files.paths[0]}: column {name!r}: {option('categorical')}: there are more than {MAX_CATEGORIES} "
            f"categories; {option('hashed', {name: BITS}, text=name)} takes any number of them"
        )
    numeric = not text.rows_with_strings
    rows = spelled(text.strings + text.numbers, numeric)
    report.values, report.exact = len(rows), True
    if text.rows_with_numbers >= text.rows_with_strings > 0 and text.first:
        where = f"{text.first.value!r:.30} at {files.where(text.first.position, text.first.row)}"
        report.notes.append(f"mostly numbers; rows with something else: {text.rows_with_strings}, the first {where}")
    if unit := _unit(text):
        report.notes.append(f"{unit}; or leave the column out: {option('drop', [name])}")
    if report.missing and "NA" in files.cells.marks and all(map(_COUNTRY.fullmatch, rows)):
        report.notes.append(
            f"codes of two letters, where NA is taken as missing; {option('not_missing', ['NA'])} takes it as a value"
        )
    alike = Counter(category.lower() for category in rows)
    if twice := sum(times > 1 for times in alike.values()):
        are = "category is" if twice == 1 else "categories are"
        report.notes.append(f"{twice} {are} also written with other capital letters")
    kept = [category for category in rows if rows[category] >= options.min_count]
    if rare := len(rows) - len(kept):
        noun, are = ("category", "is taken") if rare == 1 else ("categories", "are put together")
        report.notes.append(f"{rare} {noun} with fewer than {options.min_count} rows {are} as other")
    column = Column(name, tuple(sorted(kept)), report.missing > 0, other=rare > 0, numeric=numeric)
    return _done(column, report)[0], report


def _unit(text: TextSurvey) -> str:
    """Return a note if all strings are numbers with units that cannot be read alike, or if most of many different ones
    are numbers with the same text; else ""."""
    strings = text.strings or Counter()
    units = [f"{unit!r}" if unit else "none" for unit in sorted(text.amounts.units, reverse=True)]
    if text.amounts.readings and len(units) > 1:
        return f"numbers with different units ({', '.join(units)}), which cannot be compared: write all with the same"
    if text.amounts.readings and units and text.amounts.ambiguous:
        return (
            f"numbers with {units[0]} that may be read in two ways: {option('thousands', ',')} if commas separate "
            f"thousands, {option('thousands', '.')} if points do, {option('decimal', ',')} if they have decimal commas"
        )
    matches = (_AMOUNT.fullmatch(value) for value in strings)
    affixes = Counter((match[1], match[2]) for match in matches if match and (match[1] or match[2]))
    ((before, behind), times) = max(affixes.items(), key=lambda pair: pair[1], default=(("", ""), 0))
    if len(strings) <= MANY_AMOUNTS or times < MOSTLY_NUMBERS * len(strings):
        return ""
    parts = [f"{part.strip(' +-')!r} {where} it" for part, where in ((before, "before"), (behind, "behind")) if part]
    return f"most values are a number with {' and '.join(parts)}: remove that from the file to use them as numbers"


def spelled(rows: Counter[str], numeric: bool) -> Counter[str]:
    """Return the number of rows of each category, with one spelling for equal numbers (if all are) and truth values."""
    if numeric:
        plain = {value: plain_number(value) for value in rows}
    elif {value.lower() for value in rows} <= {"true", "false"}:
        plain = {value: value.lower() for value in rows}
    else:
        return rows
    counts = Counter[str]()
    for value, count in rows.items():
        counts[plain[value]] += count
    return counts


def _done(column: Column, report: ColumnReport) -> tuple[Column, ColumnReport]:
    report.features = column.n_features
    return column, report


def _fail(name: str, cell: Cell | None, files: Any, problem: str) -> NoReturn:
    assert cell is not None
    raise InputError(f"{files.where(cell.position, cell.row)}: column {name!r}: found {cell.value!r:.40}: {problem}")
