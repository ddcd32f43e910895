"""Find out what the columns of a table hold, in one pass over the rows, with memory that does not grow with the rows.

The result does not depend on which rank has which rows. `distsms.ingest.formats.column_kinds` draws the conclusions.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.hashing import GOLDEN, _mix
from distsms.base.typing import Floats, Hashes
from distsms.ingest.formats import arrow, columns, dates
from distsms.ingest.formats.amounts import Amounts, all_match, readings_of
from distsms.ingest.formats.survey_kernels import RECENT, SCALE, add_numbers
from distsms.shards.table_schema import Cells

MAX_CATEGORIES = 100_000
"""The largest number of different strings that are kept."""
MOST_MET = 10_000
"""So many different strings of a column are remembered, of which then only rows are counted."""
MAX_NUMBERS = 1000
"""A column with more different numbers than this holds numbers: then a few other values in it are mistakes."""
SAMPLE, SAMPLES = 1024, 2**21
"""The most values in the sample of a column, and in those of all columns together."""
OFFSET = 10.0
"""The mean is subtracted from columns whose mean is more standard deviations away from 0 than this."""
WIDE = 1000
"""With so many columns, what takes time for each of them is left out."""
FEW = 2**17
"""Up to so many numbers of a batch are added by NumPy."""


class Cell(NamedTuple):
    """A value in a row of a batch, for messages."""

    position: arrow.BatchPosition
    row: int
    value: Any


class Sample:
    """Samples of the different values of some columns: those k of each with the smallest hashes, and how many rows have
    them. So a sample does not depend on the order of the rows, and those of two sets of rows can be merged."""

    def __init__(self, n_columns: int) -> None:
        k = max(8, min(SAMPLE, SAMPLES // max(n_columns, 1)))
        self.hashes = np.zeros((n_columns, k), np.uint64)
        self.times = np.zeros((n_columns, k), np.int64)
        self.sizes = np.zeros(n_columns, np.int64)

    def merge(self, other: Sample) -> None:
        for column, size in enumerate(other.sizes):
            self.include(column, other.hashes[column, :size], other.times[column, :size])

    def include(self, column: int, hashes: Hashes, rows: NDArray[np.int64]) -> None:
        """Add values to the sample of a column, by their hashes, with the number of rows that have each of them."""
        size = self.sizes[column]
        different, place = np.unique(np.concatenate([self.hashes[column, :size], hashes]), return_inverse=True)
        totals = np.bincount(place, np.concatenate([self.times[column, :size], rows]))
        self.sizes[column] = size = min(len(different), self.hashes.shape[1])
        self.hashes[column, :size], self.times[column, :size] = different[:size], totals[:size]

    def different(self, column: int) -> tuple[int, bool]:
        """Return how many different values there are, and whether that is exact."""
        size, k = int(self.sizes[column]), self.hashes.shape[1]
        if size < k:
            return size, True
        return round((k - 1) * 2.0**64 / float(self.hashes[column, -1])), False

    def repeated(self, column: int) -> float:
        """Return the share of the sampled values that occur more than once."""
        size = int(self.sizes[column])
        return float(np.mean(self.times[column, :size] > 1)) if size else 0.0


class NumberSurvey:
    """Counts, means, extremes and samples of columns of numbers."""

    def __init__(self, n_columns: int) -> None:
        self.counts = np.zeros((n_columns, 2), np.int64)  # rows with a number, and rows without
        self.sums = np.zeros((n_columns, 3))  # each the rounded sum, its rounding error, and the sum of squares
        self.weighted = np.zeros((n_columns, 2))  # the sum of weights, and of weights times numbers, if there are any
        self.extremes = np.tile([np.inf, -np.inf], (n_columns, 1))
        self.whole = np.ones(n_columns, bool)
        self.sample = Sample(n_columns)

    def add(self, values: NDArray[np.float64], where: NDArray[np.intp], weights: Floats | None = None) -> None:
        """Include n rows of the columns `where` (m,), as `values` (m, n), NaN if missing, with their weights (n,)."""
        if weights is not None and len(where):
            missing = np.isnan(values)
            self.weighted[where, 0] += weights @ ~missing.T
            self.weighted[where, 1] += weights @ np.where(missing, 0.0, values * SCALE).T
        values = np.ascontiguousarray(values)
        if values.size <= FEW:
            self._add_few(values, where)
            return
        recent, seen = np.empty(RECENT, np.uint64), np.zeros(RECENT, np.int64)
        hashes, times, sizes = self.sample.hashes, self.sample.times, self.sample.sizes
        bits = values.view(np.uint64)
        add_numbers(
            values, bits, where, recent, seen, self.counts, self.sums, self.extremes, self.whole, hashes, times, sizes
        )

    def _add_few(self, values: NDArray[np.float64], where: NDArray[np.intp]) -> None:
        """Do what `add_numbers` does, to the bit, by NumPy: it sorts values, but is not compiled."""
        for c, column in zip(where.tolist(), values, strict=True):
            x = column[~np.isnan(column)] + 0.0
            self.counts[c] += len(x), len(column) - len(x)
            self.extremes[c] = x.min(initial=self.extremes[c, 0]), x.max(initial=self.extremes[c, 1])
            self.whole[c] &= bool((x == np.floor(x)).all())
            terms, sums = x * SCALE, self.sums[c]
            with np.errstate(over="ignore", invalid="ignore"):
                totals = np.cumsum(np.append(sums[0], terms))  # one after the other
                part = totals[1:] - totals[:-1]
                errors = (totals[:-1] - (totals[1:] - part)) + (terms - part)
                sums[1:] = [np.cumsum(np.append(sums[k], more))[-1] for k, more in ((1, errors), (2, terms * terms))]
            sums[0] = totals[-1]
            bits = np.where(x != 0, x.view(np.uint64), np.uint64(0))
            self.sample.include(c, _mix.py_func(bits * GOLDEN + np.uint64(1)), np.ones(len(x), np.int64))

    def merge(self, other: NumberSurvey) -> None:
        self.counts += other.counts
        total = self.sums[:, 0] + other.sums[:, 0]
        part = total - self.sums[:, 0]
        error = (self.sums[:, 0] - (total - part)) + (other.sums[:, 0] - part)
        rest = self.sums[:, 1:] + other.sums[:, 1:]
        self.sums = np.column_stack([total, rest[:, 0] + error, rest[:, 1]])
        self.weighted += other.weighted
        self.extremes[:, 0] = np.minimum(self.extremes[:, 0], other.extremes[:, 0])
        self.extremes[:, 1] = np.maximum(self.extremes[:, 1], other.extremes[:, 1])
        self.whole &= other.whole
        self.sample.merge(other.sample)

    def mean(self, column: int) -> float:
        """Return the mean of a column, 0 if it has no number."""
        count = int(self.counts[column, 0])
        return float(self.sums[column, :2].sum() / count / SCALE) if count else 0.0

    def fill(self, column: int) -> float:
        """Return the number for missing ones: the mean; with weights rounded, so that ranks hardly ever matter."""
        total, product = self.weighted[column].tolist()
        return float(f"{product / total / SCALE:.14g}") if total else self.mean(column)

    def deviation(self, column: int) -> float:
        """Return the standard deviation of a column, 0 if it has no number."""
        count, mean = max(int(self.counts[column, 0]), 1), self.mean(column) * SCALE
        return math.sqrt(max(0.0, self.sums[column, 2] / count - mean * mean)) / SCALE

    def is_offset(self, column: int) -> bool:
        """Return whether the mean of different values is more than `OFFSET` standard deviations away from 0."""
        (low, high), total, squares = self.extremes[column], float(self.sums[column, :2].sum()), self.sums[column, 2]
        return bool(low < high and self.counts[column, 0] * squares < (1 + OFFSET**-2) * total * total)


class TextSurvey:
    """What a column holds that has strings or dates, or whose numbers are asked for as names of something."""

    def __init__(self, cells: Cells, form: str | None = None, wants_dates: bool = False) -> None:
        """Take how cells are read, the form of dates, and whether the column is known to hold dates."""
        self.form, self.wants_dates, self.among = form, wants_dates, cells.among_numbers
        self.amounts = Amounts(readings_of(cells))
        self.marks = Counter[str]()  # rows of each mark of missing values among numbers
        self.rows_with_strings = self.rows_with_numbers = self.missing = self.words = 0
        self.strings: Counter[str] | None = Counter()  # rows of each string that is no number; None: too many
        self.numbers: Counter[str] | None = Counter()  # the same of numbers, as they are written
        self.shapes = set(columns.PATTERNS)  # what all strings look like, but marks
        self.first: Cell | None = None  # the first string that is no mark
        self.no_date: Cell | None = None  # the first value that should be a date
        self.first_missing: Cell | None = None
        self.typed_dates = False
        self.dates, self.hours = NumberSurvey(1), False  # as years since 2000
        self.offsets = set[bool]()  # whether dates have an offset from UTC
        self.sample = Sample(1)
        self._met = dict[str, float]()  # strings of which all but their rows is known -> the date, or NaN
        self._pending = Counter[str]()  # rows of such strings, which are still to be counted

    def add(self, batch: arrow.Batch, name: str, weights: Floats | None = None) -> None:
        """Include a column of a batch, with the weights of its rows if they have some."""
        column, position = batch.columns[name], batch.position
        is_date = columns.is_date(column)
        text = column if columns.is_text(column) else columns.as_text(column) if is_date else columns.as_codes(column)
        self.typed_dates |= is_date
        different, codes = columns.dictionary_encode(text)
        rows = np.bincount(codes + 1, minlength=len(different) + 1)
        missing, rows = int(rows[0]), rows[1:]
        self.missing += missing
        if self.first_missing is None and missing:
            self.first_missing = Cell(position, int((codes < 0).argmax()), None)
        if not len(different):
            return
        if self.amounts.readings and not is_date:
            written = columns.strings_of(batch.written[name]) if name in batch.written else different
            self.amounts.add(columns.without(written, self.among)[0])
        # Mostly there is nothing new: then only the rows of each string are counted, and the dates of each row.
        strings = different.to_pylist() if len(different) <= MOST_MET and not is_date else []
        if met := bool(strings) and self._met.keys() >= set(strings):
            self._pending.update(dict(zip(strings, rows.tolist(), strict=True)))
        else:
            is_string, plain = columns.is_not_number(different), columns.without(different, self.among)[0]
            self._count(different, rows, is_string)
            plain_strings = plain.filter(is_string)
            self.shapes = {shape for shape in self.shapes if all_match(plain_strings, columns.PATTERNS[shape])}
            if self.first is None and (is_plain := is_string & ~columns.is_missing(plain)).any():
                row = int(((codes >= 0) & is_plain[codes]).argmax())
                self.first = Cell(position, row, text[row].as_py())
        amounts = np.full(len(different), np.nan)
        if self.wants_dates or self.typed_dates or "date" in self.shapes:
            if is_date:
                plain, codes = column, np.arange(len(column))
            if met:
                amounts = np.array([self._met[string] for string in strings])
            else:
                amounts = self._years(plain, codes, position, text)
            self.dates.add(np.append(amounts, np.nan)[codes][None], np.zeros(1, np.intp), weights)
        if strings and not met and len(self._met) < MOST_MET:
            self._met.update(zip(strings, amounts.tolist(), strict=True))

    def _count(self, different: Any, rows: NDArray[np.int64], is_string: NDArray[np.bool_]) -> None:
        """Include rows of different strings, whatever their order."""
        hashes = columns.hash_strings(different).astype(np.uint64) << np.uint64(32)
        hashes |= columns.hash_strings(different, 1)
        self.sample.include(0, hashes, rows)
        self.rows_with_strings += int(rows[is_string].sum())
        self.rows_with_numbers += int(rows[~is_string].sum())
        self.strings = _counted(self.strings, different, rows, is_string)
        self.numbers = _counted(self.numbers, different, rows, ~is_string)
        self.words += int(columns.n_words(different)[is_string] @ rows[is_string])
        marked = columns.without(different, self.among)[1]
        self.marks.update(dict(zip(different.filter(marked).to_pylist(), rows[marked].tolist(), strict=True)))

    def finish(self) -> None:
        """Count the rows that are still to be counted."""
        if self._pending:
            strings, rows = columns.as_strings_column([*self._pending]), np.array([*self._pending.values()])
            self._count(strings, rows, columns.is_not_number(strings))
        self._pending.clear()
        self._met.clear()

    @property
    def categories(self) -> Counter[str] | None:
        """The rows of each string and number, as they are written; None if there are too many."""
        if self.strings is None or self.numbers is None:
            return None
        return _added(Counter(self.strings), self.numbers)

    @property
    def example(self) -> str:
        """A string of the column: the longest, where all are known."""
        return max(self.strings or [self.first.value if self.first else ""], key=lambda string: (len(string), string))

    @property
    def may_be(self) -> set[str]:
        """What all strings look like, by the keys of `columns.PATTERNS`, if there are more strings than marks."""
        return self.shapes if self.rows_with_strings > self.marks.total() else set()

    def merge(self, other: TextSurvey) -> None:
        self.marks.update(other.marks)
        for name in ("rows_with_strings", "rows_with_numbers", "missing", "words"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.strings = _added(self.strings, other.strings)
        self.numbers = _added(self.numbers, other.numbers)
        self.shapes &= other.shapes
        self.amounts.merge(other.amounts)
        self.first, self.no_date = self.first or other.first, self.no_date or other.no_date
        self.first_missing = self.first_missing or other.first_missing
        self.typed_dates, self.hours = self.typed_dates or other.typed_dates, self.hours or other.hours
        self.dates.merge(other.dates)
        self.offsets |= other.offsets
        self.sample.merge(other.sample)

    def _years(self, different: Any, codes: NDArray[Any], position: arrow.BatchPosition, text: Any) -> Floats:
        """Return different dates as years since 2000, NaN for what is no date; `codes` are those of the rows."""
        times, valid = dates.as_microseconds(different, self.form)
        self.offsets |= set(dates.has_offset(different, self.form)[valid].tolist())
        wrong = np.append(~valid & ~columns.is_missing(different), False)[codes]
        if self.no_date is None and wrong.any():
            row = int(wrong.argmax())
            self.no_date = Cell(position, row, text[row].as_py())
        self.hours |= bool((times % (86400 * 10**6) != 0)[valid].any())
        return np.where(valid, years(times), np.nan)


class TableSurvey:
    """What the columns of a table hold in the rows that were added. `as_text` are those whose numbers are names or that
    hold dates, `date_forms` the forms of these; the column `label`, if any, is surveyed apart from them."""

    def __init__(
        self,
        names: Sequence[str],
        cells: Cells,
        as_text: Collection[str] = (),
        date_forms: Mapping[str, str | None] | None = None,
        label: str | None = None,
    ) -> None:
        self.names, self.cells, forms = list(names), cells, date_forms or {}
        self.wide = len(self.names) >= WIDE
        self.place = {name: k for k, name in enumerate(self.names)}
        self.numbers = NumberSurvey(len(self.names))
        self.texts = {name: TextSurvey(cells, forms.get(name), name in forms) for name in as_text}
        self.label_name, self.label = label, TextSurvey(cells)
        self.marks = defaultdict[str, set[tuple[str, bool]]](set)  # of the columns of numbers; see `columns.marked`
        self.missing = defaultdict[str, Counter[str]](Counter)  # of the same: the rows of marks of missing values
        self.padded = set[str]()  # columns that have a number with a leading zero, such as 0910
        self.infinite = dict[str, Cell]()  # the first infinite number of columns

    def add(self, batch: arrow.Batch, weights: Floats | None = None) -> None:
        """Include a batch, with the weights of its rows if they have some."""
        names = [name for name in self.names if name not in self.texts]
        numbers = batch.columns.numbers(names, self.cells.among_numbers)
        for name, rows in numbers.marks.items():
            self.missing[name].update(rows)
        values = numbers.values
        if not numbers.finite:  # infinite numbers are refused only if later rows show no words
            infinite = np.isinf(values)
            for k in infinite.any(axis=1).nonzero()[0].tolist():
                name, row = numbers.names[k], int(infinite[k].argmax())
                self.infinite.setdefault(name, Cell(batch.position, row, batch.columns[name][row].as_py()))
            values = np.where(infinite, np.nan, values)
        self.numbers.add(values, np.array([self.place[name] for name in numbers.names], np.intp), weights)
        numeric = set(numbers.names)
        for name in self.names if len(numeric) < len(self.names) else ():
            if name not in numeric:
                if name not in self.texts:
                    self.texts[name] = TextSurvey(self.cells)
                self.texts[name].add(batch, name, weights)
        if self.label_name is not None:
            self.label.add(batch, self.label_name)
        for name in numeric & batch.written.keys():
            self.marks[name] |= columns.marked(batch.written[name])
        if not self.wide:
            self.padded |= batch.padded
            self.padded |= {name for name in numeric - self.padded if columns.is_padded(batch.columns[name])}

    def finish(self) -> None:
        """Count what is still to be counted."""
        for text in (*self.texts.values(), self.label):
            text.finish()

    def merge(self, other: TableSurvey) -> None:
        """Include what another survey has counted; both are finished."""
        self.numbers.merge(other.numbers)
        self.label.merge(other.label)
        self.infinite = other.infinite | self.infinite
        for name, text in other.texts.items():
            self.texts.setdefault(name, TextSurvey(self.cells)).merge(text)
        for name, marks in other.marks.items():
            self.marks[name] |= marks
        for name, rows in other.missing.items():
            self.missing[name].update(rows)
        self.padded |= other.padded

    def recount(self, other: TableSurvey) -> None:
        """Take the texts of columns from another survey, which has counted all their rows."""
        self.texts |= other.texts
        for name in other.texts:
            self.numbers.counts[self.place[name]] = 0
            self.missing.pop(name, None)

    def uncounted(self) -> list[str]:
        """Return the columns with strings of which rows were not kept, as they came before any string or mark."""
        counted = {name for name, k in self.place.items() if self.numbers.counts[k, 0]}
        before = counted | self.infinite.keys() | self.missing.keys()
        with_strings = [name for name, text in self.texts.items() if name in before and text.rows_with_strings]
        return with_strings + [name for name in self.missing if name not in self.texts and name not in counted]


def years(microseconds: NDArray[np.int64]) -> Floats:
    """Return times, in microseconds since 1970, as years of 365.25 days since 2000."""
    return (microseconds - 946684800 * 10**6) / (365.25 * 86400e6)


def _counted(
    counter: Counter[str] | None, different: Any, rows: NDArray[np.int64], where: NDArray[np.bool_]
) -> Counter[str] | None:
    if counter is None or not where.any():
        return counter
    counts = dict(zip(different.filter(where).to_pylist(), rows[where].tolist(), strict=True))
    return _added(counter, Counter(counts))


def _added(counter: Counter[str] | None, other: Counter[str] | None) -> Counter[str] | None:
    if counter is None or other is None:
        return None
    counter.update(other)
    return None if len(counter) > MAX_CATEGORIES else counter
