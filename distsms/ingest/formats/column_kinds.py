"""Decide how a column is used, from its survey and the options, and write the report on it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any, NoReturn

from distsms.base.errors import InputError
from distsms.base.formatting import format_rows
from distsms.base.wording import Message, option
from distsms.ingest.formats import amounts, columns, dates
from distsms.ingest.formats.column_survey import MAX_CATEGORIES, MAX_NUMBERS, Cell, TableSurvey, TextSurvey
from distsms.shards.column_options import BITS, ColumnOptions, ColumnReport
from distsms.shards.row_metadata import plain_number
from distsms.shards.table_schema import CATEGORY, DATE, HASH, NUMBER, Column

ID_LIKE, TEXT = "id-like", "text"
FEW_ROWS, MANY_ROWS, VERY_MANY_ROWS = 100, 1000, 10_000
"""From so many rows on, a column is taken for names of rows (ids): if it has strings that all differ, if most of its
strings occur once, and if it has whole numbers that all differ."""
TEXT_WORDS, TEXT_VALUES, TEXT_SHARE = 2.5, 200, 0.05
"""A column holds text if its strings have so many words on average, and if there are so many different values, which
must also be this share of its rows with strings."""
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


class Decision:
    """How a column is used: its encoding `column`, None if it is left out, and the `report` on it."""

    def __init__(
        self, name: str, survey: TableSurvey, options: ColumnOptions, files: Any, keep: bool, example: str
    ) -> None:
        """Decide. InputError says what to do. An `example` shows how numbers with units or marks are written, which
        `files` reads as plain numbers."""
        self.name, self.options, self.files = name, options, files
        self.survey, self.numbers, self.keep = survey, survey.numbers, keep
        self.place, text = survey.place[name], survey.texts.get(name)
        self.low, self.high = survey.numbers.extremes[self.place].tolist()
        count, missing = survey.numbers.counts[self.place].tolist()
        if text is None:
            values, exact = survey.numbers.sample.different(self.place)
        else:
            count, missing = text.rows_with_strings + text.rows_with_numbers, missing + text.missing
            values, exact = text.sample.different(0)
        self.text, self.count = text, count  # rows with a value
        self.report = ColumnReport(name, NUMBER, min(values, count), exact, missing)
        self.column = self._encoding(example)
        self.report.features = 0 if self.column is None else self.column.n_features

    def _encoding(self, example: str) -> Column | None:
        name, count, missing = self.name, self.count, self.report.missing
        is_number = name in self.options.numeric
        if not name:
            return self._left_out(ID_LIKE, "the first column has no name, like the row names that pandas and R write")
        if not count:
            self._note("no value at all")
            return Column(name, None, missing > 0)
        if self.report.values == 1:
            left_out = self.text is None and not (missing or self.keep or is_number) and count >= FEW_ROWS
            keeps = f"; left out: {option('numeric', [name])} keeps it" if left_out else ""
            self._note(f"constant: every value is the same{keeps}")
            if left_out:
                return None
        if missing >= (count + missing) / 2:
            self._note(f"missing in {100 * missing / (count + missing):.0f} % of the rows")
        if is_number or (self.text is None and name not in self.options.hashed):
            return self._number(example)
        assert self.text is not None
        return self._words(self.text)

    def _number(self, example: str) -> Column | None:
        name = self.name
        # 1) Refuse what is no number.
        if self.text is not None:
            if self.text.first is None:
                self._refuse(f"{option('numeric')}: there is no number")
            self._fail(self.text.first, f"{option('numeric')}: this is no number")
        if name in self.survey.infinite:
            self._fail(self.survey.infinite[name], "the value is not finite; expected a decimal number")
        # 2) Say how numbers with units and marks were read.
        writing = self.files.writings[name] if example else None
        if writing is not None:
            plain = amounts.as_plain(columns.as_strings_column([example]), writing)[0].as_py()
            categories = f"{option('categorical', [name])} takes them as categories"
            self._note(f"numbers such as {example:.30}, which counts as {plain:.30}; {categories}")
        elif name not in self.options.numeric:
            self._check_marks()
        if 0 < max(-self.low, self.high) < TINY:
            self._note(f"all numbers are smaller than {TINY:g}, too small to compute with; multiply them")
        # 3) Whole numbers may be names of something, unless the user says that they are numbers.
        if name not in self.options.numeric and self.numbers.whole[self.place]:
            if self._are_ids():
                return self._left_out(ID_LIKE, f"whole numbers that all differ; {option('numeric', [name])} keeps it")
            self._look_for_codes()
        if marks := self.survey.missing.get(name):
            self._note_missing(marks, "numbers")
        mean, centred = self.numbers.fill(self.place), self.numbers.is_offset(self.place)
        if centred:
            self._note(_centred(mean))
        column = Column(name, None, self.report.missing > 0, fill=mean, centred=centred)
        return column if writing is None else replace(column, **writing._asdict())

    def _are_ids(self) -> bool:
        """Return whether whole numbers all differ and number the rows, as far as can be seen."""
        if self.keep or self.count < FEW_ROWS or self.numbers.sample.repeated(self.place) > 0:
            return False
        counted = self.high / 2 - self.low / 2 < self.count  # in halves, since the difference may overflow
        return bool(counted or _ID_NAME.search(_HUMP.sub("_", self.name)) or self.count >= VERY_MANY_ROWS)

    def _look_for_codes(self) -> None:
        """Note whole numbers that may be codes."""
        name, low, high = self.name, self.low, self.high
        count, values, exact = self.count, self.report.values, self.report.exact
        if max(-low, high) > 2**53:
            remedy = f"if they are codes: {option('categorical', [name])} or {option('id', name)} keeps all digits"
            self._note(f"whole numbers above 2^53, whose last digits float64 cannot hold; {remedy}")
        if values == 1 or (low, high) in ((0, 1), (-1, 1)) or (low >= 1500 and high <= 2100):  # years
            return
        few = values <= MAX_NUMBERS and exact
        digits = len(f"{low:.0f}") if low >= 100 else 0
        same_length = digits and len(f"{high:.0f}") == digits and values < (high - low + 1) / 2
        codes = (
            name in self.survey.padded
            or _CODE_NAME.search(_HUMP.sub("_", name))
            or (few and same_length and 20 * values <= count)
            or self._is_even()
        )
        recur = exact and values <= FEW_VALUES and 10 * values <= count >= FEW_ROWS
        if codes or (recur and not self.survey.wide):
            codes_option = option("categorical", [name]) if few else option("hashed", {name: BITS}, text=name)
            kind = "whole numbers that look like codes" if codes else "few whole numbers"
            self._note(f"{kind}, treated as amounts; if they are codes: {codes_option} or {option('drop', [name])}")

    def _is_even(self) -> bool:
        """Return whether whole numbers recur and are spread evenly, as those that were given one after the other.
        Amounts and counts are rarely even, years and ages too few, and numbers up to 255 may be brightness."""
        repeated, spread, high = self.numbers.sample.repeated(self.place), self.high - self.low, self.high
        often = repeated > 0.5 and self.count >= 2 * self.report.values
        if self.report.values < EVEN_VALUES or high == 255 or not (often or (high >= 1e6 and repeated >= 0.1)):
            return False
        off_middle = abs(self.numbers.mean(self.place) - self.low - spread / 2)
        return off_middle < 0.1 * spread and 0.24 * spread < self.numbers.deviation(self.place) < 0.34 * spread

    def _check_marks(self) -> None:
        marks, thousands = self.survey.marks.get(self.name, set()), self.files.cells.thousands
        points, commas = ({answer for mark, answer in marks if mark == which} for which in ".,")
        if points == {True} and not thousands:
            remedy = f"{option('thousands', '.')} reads 1.213 as 1213, {option('numeric', [self.name])} as a decimal"
            problem = "all numbers with a point have exactly three digits behind it, and decimal commas are possible"
            self._refuse(f"{problem}, so it may separate thousands: {remedy}")
        if points == {True, False} and thousands == ".":
            self._note("some points are read as marks between thousands, others as decimal points")
        if commas == {True} and not thousands:
            remedy = f"if it separates thousands: {option('thousands', ',')}; if not: {option('numeric', [self.name])}"
            self._note(f"all numbers with a comma, read as a decimal comma, have three digits behind it; {remedy}")

    def _words(self, text: TextSurvey) -> Column | None:
        name, report, options = self.name, self.report, self.options
        count, missing = self.count, report.missing > 0
        # 1) What the user says, and dates.
        if name in options.hashed:
            report.taken_for = TEXT if self._is_text(text) else CATEGORY
            tokens, numeric = report.taken_for == TEXT, not text.rows_with_strings
            return Column(name, None, missing, HASH, numeric=numeric, bits=options.hashed[name], tokens=tokens)
        if name in options.categorical:
            return self._category(text)
        if name in options.dates or text.typed_dates or (not text.rows_with_numbers and "date" in text.may_be):
            return self._date(text)
        # 2) Refuse what may be dates or numbers that are written in another way.
        others = f"{option('categorical', [name])} takes its values as they are, {option('drop', [name])} leaves it out"
        if not text.rows_with_numbers and "other date" in text.may_be:
            forms = dates.describe_forms(name, text.strings or [text.first.value if text.first else ""])
            problem = f"looks like a date, and could be read in several ways: name its form, as in {forms}"
            self._fail(text.first, f"{problem}; {others}")
        if "marks" in text.may_be and text.first:
            longest = max([text.first.value, *(text.strings or ())], key=lambda value: len(set(_MARK.findall(value))))
            self._fail(text.first, f"{_marks_advice(longest)}; {others}")
        many_numbers = text.numbers is None or len(text.numbers) > MAX_NUMBERS
        all_differ = report.values >= 0.9 * count and text.sample.repeated(0) <= 0.1
        like_ids = (count >= FEW_ROWS and all_differ) or (count >= MANY_ROWS and report.values > count / 2)
        if (many_numbers or like_ids) and text.rows_with_numbers >= MOSTLY_NUMBERS * count:
            most = f"the column has more than {MAX_NUMBERS}" if many_numbers else "most values of the column are"
            remedy = f"correct it, or leave the column out: {option('drop', [name])}"
            self._fail(text.first, f"is not a number, but {most} different numbers; {remedy}")
        # 3) Leave out text, names of rows, and too many categories.
        keeps = f"{option('hashed', {name: BITS}, text=name)} keeps it"
        if not self.keep and self._is_text(text):
            return self._left_out(TEXT, f"text; {keeps}")
        if not self.keep and like_ids:
            self._left_out(ID_LIKE, f"most values occur only once; {keeps}")
            if unit := _unit(text):
                self._note(unit)
            return None
        if text.categories is None:
            return self._left_out(CATEGORY, f"more than {MAX_CATEGORIES} categories; {keeps}")
        return self._category(text)

    def _date(self, text: TextSurvey) -> Column:
        name, report, form = self.name, self.report, self.options.dates.get(self.name)
        report.taken_for = DATE
        if text.no_date:
            written = form or "ISO 8601, as 2024-05-31 or 2024-05-31T12:30:00"
            advice = f"; {option('categorical', [name])} takes its values as they are"
            if name in self.options.dates:
                advice = dates.describe_other_order(name, text.no_date.value, form)
            self._fail(text.no_date, f"there is no such date; dates are written as {written}{advice}")
        if text.marks:
            report.missing, report.values = report.missing + text.marks.total(), report.values - len(text.marks)
            self._note_missing(text.marks, "dates")
        fill, centred = text.dates.fill(0), text.dates.is_offset(0)
        if centred:
            self._note(_centred(fill, "the mean of its years since 2000"))
        if len(text.offsets) == 2:
            self._note("some dates have an offset from UTC, and others have none and count as UTC")
        offset = None if len(text.offsets) != 1 else True in text.offsets
        return Column(
            name, None, report.missing > 0, DATE, fill, format=form, hours=text.hours, offset=offset, centred=centred
        )

    def _category(self, text: TextSurvey) -> Column:
        name, report, min_count = self.name, self.report, self.options.min_count
        report.taken_for = CATEGORY
        if text.categories is None:
            remedy = f"{option('hashed', {name: BITS}, text=name)} takes any number of them"
            self._refuse(f"{option('categorical')}: there are more than {MAX_CATEGORIES} categories; {remedy}")
        numeric = not text.rows_with_strings
        rows = spelled(text.categories, numeric)
        report.values, report.exact = len(rows), True
        if text.rows_with_numbers >= text.rows_with_strings > 0 and text.first:
            where = f"{text.first.value!r:.30} at {self.files.where(text.first.position, text.first.row)}"
            self._note(f"mostly numbers; rows with something else: {text.rows_with_strings}, the first {where}")
        if unit := _unit(text):
            self._note(f"{unit}; or leave the column out: {option('drop', [name])}")
        if report.missing and "NA" in self.files.cells.marks and all(map(_COUNTRY.fullmatch, rows)):
            value = option("not_missing", ["NA"])
            self._note(f"codes of two letters, where NA is taken as missing; {value} takes it as a value")
        alike = Counter(category.lower() for category in rows)
        if twice := sum(times > 1 for times in alike.values()):
            are = "category is" if twice == 1 else "categories are"
            self._note(f"{twice} {are} also written with other capital letters")
        kept = [category for category in rows if rows[category] >= min_count]
        if rare := len(rows) - len(kept):
            noun, are = ("category", "is taken") if rare == 1 else ("categories", "are put together")
            self._note(f"{rare} {noun} with fewer than {min_count} rows {are} as other")
        return Column(name, tuple(sorted(kept)), report.missing > 0, other=rare > 0, numeric=numeric)

    def _is_text(self, text: TextSurvey) -> bool:
        count = max(text.rows_with_strings, 1)
        return text.words >= TEXT_WORDS * count and self.report.values >= max(TEXT_VALUES, TEXT_SHARE * count)

    def _note(self, note: str) -> None:
        self.report.notes.append(Message(note))

    def _note_missing(self, marks: Counter[str], others: str) -> None:
        listed = ", ".join(f"'{mark}' ({format_rows(rows, ',')})" for mark, rows in sorted(marks.items()))
        taking = f"{option('not_missing', text='MARK')} takes one as a value"
        self._note(f"{listed}: taken as missing, since the others are {others}; {taking}")

    def _left_out(self, taken_for: str, problem: str) -> Column | None:
        """Note why the column is left out; return no column."""
        self.report.taken_for = taken_for
        self._note(f"left out: {problem}")
        return None

    def _refuse(self, problem: str) -> NoReturn:
        raise InputError(f"{self.files.paths[0]}: column {self.name!r}: {problem}")

    def _fail(self, cell: Cell | None, problem: str) -> NoReturn:
        assert cell is not None
        where = self.files.where(cell.position, cell.row)
        raise InputError(f"{where}: column {self.name!r}: found {cell.value!r:.40}: {problem}")


def _centred(mean: float, noun: str = "its mean") -> str:
    return f"far from 0: {noun}, {mean:.10g}, is subtracted"


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


def _unit(text: TextSurvey) -> str:
    """Return a note if all strings are numbers with units that cannot be read alike, or if most of many different ones
    are numbers with the same text; else ""."""
    strings = text.strings or Counter()
    units = [f"{unit!r}" if unit else "none" for unit in sorted(text.amounts.units, reverse=True)]
    if text.amounts.readings and len(units) > 1:
        return f"numbers with different units ({', '.join(units)}), which cannot be compared: write all with the same"
    if text.amounts.readings and units and text.amounts.ambiguous:
        thousands = f"{option('thousands', ',')} if commas separate thousands, {option('thousands', '.')} if points do"
        decimals = f"{option('decimal', ',')} if they have decimal commas"
        return f"numbers with {units[0]} that may be read in two ways: {thousands}, {decimals}"
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
