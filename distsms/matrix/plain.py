"""The loops of `distsms.matrix.kernels` over sparse rows, by NumPy: the same functions, the same results to the bit.

They need no compiling, and take some three times as long. Sums have the same terms in the same order.
"""

from __future__ import annotations

import numpy as np

from distsms.base.typing import Floats
from distsms.matrix.base import ColumnStatistics
from distsms.matrix.blocks import Part
from distsms.matrix.kernels import Array, Runs, Values


class _Stored:
    """The rows of a part as they are stored."""

    def __init__(self, runs: Runs, part: Part, columns: Array, values: Values) -> None:
        here, entries = slice(part.first, part.last), slice(part.start, part.stop)
        place = np.arange(part.first, part.last)
        self.rows = (place & -runs.block) + runs.order[here] if len(runs.order) else place  # in the original order
        self.lengths = np.repeat(runs.lengths, runs.counts.astype(np.intp) + 1)[here].astype(np.intp)
        self.columns = columns[entries].astype(np.intp)
        self.values = None if values is None else values[entries].astype(np.float64)

    def repeated(self, numbers: Array) -> Array:
        """Return a number for each row as one for each entry."""
        return np.repeat(numbers, self.lengths)

    def times(self, numbers: Floats) -> Floats:
        """Return the values times a number for each entry."""
        return numbers if self.values is None else self.values * numbers

    def sums(self, terms: Floats) -> Array:
        return np.bincount(self.repeated(np.arange(len(self.rows))), terms, len(self.rows))

    def factors(self, factors: Floats) -> Floats:
        return factors[self.rows] if len(factors) else np.ones(len(self.rows))


def find_rows(runs: Runs, n: int, places: Array | None, begins: Array, ends: Array) -> None:
    rows = _Stored(runs, Part(0, n), np.empty(0, np.uint16), None)
    k = rows.rows if places is None else places[rows.rows]
    stops, kept = np.cumsum(rows.lengths), k >= 0
    begins[k[kept]], ends[k[kept]] = (stops - rows.lengths)[kept], stops[kept]


def arrange_rows(
    stored: Array, stored_values: Values, runs: Runs, part: Part, begin: Array, columns: Array, values: Values
) -> None:
    rows = _Stored(runs, part, columns[:0], None)
    lengths = np.empty_like(rows.lengths)
    lengths[rows.rows - part.first] = rows.lengths
    begins = (np.cumsum(lengths) - lengths)[rows.rows - part.first]
    order = rows.repeated(begins - np.cumsum(rows.lengths) + rows.lengths) + np.arange(rows.lengths.sum())
    columns[: len(order)] = stored[order]
    if values is not None:
        values[: len(order)] = stored_values[order]  # type: ignore[index]


def dot_rows(columns: Array, values: Values, runs: Runs, part: Part, w: Floats, out: Floats) -> None:
    rows = _Stored(runs, part, columns, values)
    # The kernel has two running sums, of every other entry of a row.
    place = np.arange(len(rows.columns)) - rows.repeated(np.cumsum(rows.lengths) - rows.lengths)
    of_entries = 2 * rows.repeated(np.arange(len(rows.rows))) + (place & 1)
    sums = np.bincount(of_entries, rows.times(w[rows.columns]), 2 * len(rows.rows))
    out[rows.rows] = sums[::2] + sums[1::2]


def add_rows(
    columns: Array, values: Values, runs: Runs, part: Part, skip: bool, coefficients: Floats, out: Floats
) -> None:
    rows = _Stored(runs, part, columns, values)
    np.add.at(out, rows.columns, rows.times(rows.repeated(coefficients[rows.rows])))


def largest_row(columns: Array, values: Values, runs: Runs, part: Part, w: Floats, factors: Floats) -> float:
    rows = _Stored(runs, part, columns, values)
    sums = rows.sums(np.abs(rows.times(w[rows.columns])))
    return float(np.max(sums * (rows.lengths + 2.0) * rows.factors(factors), initial=0.0))


def describe_columns(
    columns: Array, values: Values, runs: Runs, part: Part, factors: Floats, statistics: ColumnStatistics
) -> None:
    rows = _Stored(runs, part, columns, values)
    largest, counts, squares = statistics
    counts += np.bincount(rows.columns, minlength=len(counts))
    if values is not None or len(factors):
        sizes = np.abs(rows.times(rows.repeated(rows.factors(factors))))
        np.maximum.at(largest, rows.columns, sizes)
        np.add.at(squares, rows.columns, sizes**2)


def row_lengths(columns: Array, values: Values, runs: Runs, part: Part, out: Floats) -> None:
    rows = _Stored(runs, part, columns, values)
    sizes = np.abs(rows.times(np.ones(len(rows.columns))))
    largest = np.zeros(len(rows.rows))
    np.maximum.at(largest, rows.repeated(np.arange(len(rows.rows))), sizes)
    divisors = rows.repeated(np.where(largest > 0, largest, 1.0))
    out[rows.rows] = largest * np.sqrt(rows.sums((sizes / divisors) ** 2))
