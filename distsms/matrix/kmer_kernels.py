"""The compiled loops of coded rows: k-mers, whose codes are made from letters.

A part is worked on strip by strip, and a strip position by position: `_advance` makes the numbers of the k-mers that
begin there, then `_look_up` or `_add_up` is the only loop over rows. All k-mers of a position are prefixes of the
longest, so `_expand` builds a table of sums of w over prefixes, level by level, and `_collapse` does the opposite for
X'c; level k serves where only k letters are left or known. In spectra, rows follow one another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import njit
from distsms.matrix.blocks import Part
from distsms.matrix.coded_kernels import STRIP, complete, term

Array = NDArray[Any]

_WORTH = 8
"""A table of so many k-mers for each row of the strip costs about as much as looking them up in w."""


class Kmers(NamedTuple):
    """A part of the columns of `Strings`: the weighted degree, or a spectrum, of a region of the sequences."""

    # the letters of the kmers, first..last - 1, counted from 0
    first: int
    last: int
    degree: int  # the largest k
    size: int  # the number of letters of the alphabet
    starts: Array  # (letters of the kmers,) int64: the first column of each position, perhaps that of the one before
    values: Array  # (degree,): the value of an entry for each k; in a spectrum, before the row is as long as `share`
    share: float  # the length of a row
    numbers: Array  # (0,): of the type that holds the numbers of k-mers
    strip: int  # rows of a strip; more if tables are large, so that building them does not count


@njit()
def _look_up(index: Array, table: Array, out: Array) -> None:
    for r in range(len(out)):
        out[r] += table[index[r]]


@njit()
def _add_up(index: Array, c: Array, table: Array) -> None:
    for r in range(len(c)):
        table[index[r]] += c[r]


@njit()
def _look_up_prefixes(index: Array, divisor: int, table: Array, factor: float, absolute: bool, out: Array) -> None:
    for r in range(len(out)):
        out[r] += factor * term(table[index[r] // divisor], absolute)


@njit()
def _add_up_prefixes(index: Array, divisor: int, c: Array, factor: float, table: Array) -> None:
    for r in range(len(c)):
        table[index[r] // divisor] += factor * c[r]


@njit()
def _tabulated(kmers: Kmers, n: int, complete: bool) -> int:
    """Return for how many letters a strip has tables; longer k-mers, if all letters are known, are looked up in w."""
    count, degree = kmers.size, 1
    while degree < kmers.degree and (not complete or count * kmers.size <= _WORTH * n):
        count *= kmers.size
        degree += 1
    return degree


@njit()
def _expand(w: Array, values: Array, degree: int, size: int, absolute: bool, levels: Array) -> None:
    """Set the entry of each k-mer in `levels`, by k, to the sum of values[l] w over its prefixes of l + 1 letters."""
    parent, here, count = 0, size, size
    for c in range(size):
        levels[c] = values[0] * term(w[c], absolute)
    for k in range(1, degree):
        v = values[k]
        for c in range(parent, parent + count):
            total = levels[c]
            if size == 4:
                levels[here] = total + v * term(w[here], absolute)
                levels[here + 1] = total + v * term(w[here + 1], absolute)
                levels[here + 2] = total + v * term(w[here + 2], absolute)
                levels[here + 3] = total + v * term(w[here + 3], absolute)
            else:
                for j in range(here, here + size):
                    levels[j] = total + v * term(w[j], absolute)
            here += size
        parent += count
        count *= size


@njit()
def _collapse(levels: Array, values: Array, degree: int, size: int, out: Array) -> None:
    """Add to `out` values[k - 1] times the sum of `levels`, which is used up, over all k-mers that begin with each."""
    count = size
    here = 0
    for _ in range(1, degree):
        here += count
        count *= size
    for k in range(degree - 1, 0, -1):
        v, j, above = values[k], here, here - count // size
        for c in range(above, here):
            total = 0.0
            if size == 4:
                a0, a1, a2, a3 = levels[j], levels[j + 1], levels[j + 2], levels[j + 3]
                out[j] += v * a0
                out[j + 1] += v * a1
                out[j + 2] += v * a2
                out[j + 3] += v * a3
                total = (a0 + a1) + (a2 + a3)
            else:
                for child in range(j, j + size):
                    out[child] += v * levels[child]
                    total += levels[child]
            levels[c] += total
            j += size
        count //= size
        here = above
    for c in range(size):
        out[c] += values[0] * levels[c]


@njit()
def first_levels(kmers: Kmers) -> Array:
    """Return where each level begins in a table of all levels, and its size at the end: (degree + 1,)."""
    before, count = np.zeros(kmers.degree + 1, np.int64), 1
    for k in range(kmers.degree):
        count *= kmers.size
        before[k + 1] = before[k] + count
    return before


@njit()
def _known(letter: Any, size: Any) -> Any:
    """Return a letter, or 0 if it is unknown. Both have 8 bits: with more, the loops of `_roll` are half as fast."""
    return letter if letter < size else np.uint8(0)


@njit()
def _roll(codes: Array, old: int, new: int, size: int, weight: int, numbers: Array) -> None:
    """Remove each number's first letter, of this weight, and append one; -1: none. Unknown letters count as 0."""
    n, letters = len(numbers), np.uint8(size)
    if old >= 0 and new >= 0:
        gone, come = codes[old : old + n], codes[new : new + n]
        for r in range(n):
            numbers[r] = (numbers[r] - _known(gone[r], letters) * weight) * size + _known(come[r], letters)
    elif new >= 0:
        come = codes[new : new + n]
        for r in range(n):
            numbers[r] = numbers[r] * size + _known(come[r], letters)
    else:
        gone = codes[old : old + n]
        for r in range(n):
            numbers[r] -= _known(gone[r], letters) * weight


@njit()
def _mark(codes: Array, new: int, size: int, count: int, unknown: Array) -> None:
    """Append to the bits of each row whether the letter is unknown (new = -1: append none), and keep `count` bits."""
    keep, letters = (1 << count) - 1, np.uint8(size)
    if new >= 0:
        come = codes[new : new + len(unknown)]
        for r in range(len(unknown)):
            unknown[r] = (unknown[r] << 1 | (come[r] >= letters)) & keep
    else:
        for r in range(len(unknown)):
            unknown[r] &= keep


@njit()
def _index(numbers: Array, unknown: Array, count: int, size: int, before: Array, index: Array) -> None:
    """Set index[r] to the place, in a table of all levels, of the k-mer before the first unknown letter."""
    start = before[count - 1]
    for r in range(len(numbers)):
        index[r] = start + numbers[r]
    eight = unknown.view(np.uint64)
    for q in range(len(eight)):
        if eight[q]:
            for r in range(8 * q, min(8 * q + 8, len(numbers))):
                bits, number, letters = np.int64(unknown[r]), np.int64(numbers[r]), count
                while bits:
                    bits >>= 1
                    number //= size
                    letters -= 1
                index[r] = before[letters - 1] + number if letters else before[-1]


@njit()
def _advance(codes: Array, at: int, run: int, kmers: Kmers, i: int, numbers: Array, unknown: Array) -> int:
    """Go on to position i of a strip from `at`, by `_roll` and `_mark`; return how many letters its k-mers have."""
    size, count = kmers.size, min(kmers.degree, kmers.last - i)
    marks = unknown[: len(numbers)]
    if i == kmers.first:
        numbers[:] = 0
        for k in range(count):
            _roll(codes, -1, at + (i + k) * run, size, 0, numbers)
            _mark(codes, at + (i + k) * run, size, count, marks)
        return count
    left = min(kmers.degree, kmers.last - i + 1)  # letters at the position before
    new = at + (i + count - 1) * run if left == count else -1
    _roll(codes, at + (i - 1) * run, new, size, size ** (left - 1), numbers)
    _mark(codes, new, size, count, marks)
    return count


@njit()
def _all_known(codes: Array, at: int, run: int, n: int, kmers: Kmers) -> bool:
    all_there = True
    for i in range(kmers.first, kmers.last):
        all_there = all_there and complete(codes[at + i * run : at + i * run + n], kmers.size)
    return all_there


@njit()
def dot_kmers(codes: Array, part: Part, kmers: Kmers, factors: Array, absolute: bool, w: Array, out: Array) -> None:
    """Add to out[i] the product of row i with w over k-mers, for the rows of a part; times `factors` unless empty."""
    starts, values, strip = kmers.starts, kmers.values, kmers.strip
    before = first_levels(kmers)
    levels, sums = np.zeros(before[-1] + 1), np.empty(min(strip, part.last) if len(factors) else 0)
    for first in range(0, part.last, strip):
        n, at = min(strip, part.last - first), part.start + first
        s = out[first : first + n]
        target = s
        if len(factors):
            target = sums[:n]
            target[:] = 0.0
        complete = _all_known(codes, at, part.run, n, kmers)
        # For each row the bits of unknown letters (see `_mark` and `_index`), unless all are known.
        number, unknown = np.empty(n, kmers.numbers.dtype), np.zeros(0 if complete else -(-n // 8) * 8, np.uint8)
        index = np.empty(0 if complete else n, np.uint32)
        most = _tabulated(kmers, n, complete)
        for i in range(kmers.first, kmers.last):
            count = _advance(codes, at, part.run, kmers, i, number, unknown)
            start = starts[i - kmers.first]
            if i == kmers.first or start != starts[i - kmers.first - 1]:
                _expand(w[start:], values, min(count, most), kmers.size, absolute, levels)
            if count > most:
                table = levels[before[most - 1] :]
                _look_up_prefixes(number, kmers.size ** (count - most), table, 1.0, False, target)
                for k in range(most, count):
                    table, divisor = w[start + before[k] :], kmers.size ** (count - k - 1)
                    _look_up_prefixes(number, divisor, table, values[k], absolute, target)
            elif complete:
                _look_up(number, levels[before[count - 1] :], target)
            else:
                _index(number, unknown, count, kmers.size, before, index)
                _look_up(index, levels, target)
        if len(factors):
            for r in range(n):
                s[r] += factors[first + r] * target[r]


@njit()
def add_kmers(codes: Array, part: Part, kmers: Kmers, factors: Array, coefficients: Array, out: Array) -> None:
    """Add the sum of c_i x_i over the rows of a part to the columns of a region's k-mers; see `dot_kmers`."""
    starts, values, strip = kmers.starts, kmers.values, kmers.strip
    before = first_levels(kmers)
    levels, weighted = np.empty(before[-1] + 1), np.empty(min(strip, part.last) if len(factors) else 0)
    for first in range(0, part.last, strip):
        n, at = min(strip, part.last - first), part.start + first
        c = coefficients[first : first + n]
        if len(factors):
            for r in range(n):
                weighted[r] = factors[first + r] * c[r]
            c = weighted[:n]
        complete = _all_known(codes, at, part.run, n, kmers)
        # For each row the bits of unknown letters (see `_mark` and `_index`), unless all are known.
        number, unknown = np.empty(n, kmers.numbers.dtype), np.zeros(0 if complete else -(-n // 8) * 8, np.uint8)
        index = np.empty(0 if complete else n, np.uint32)
        most = _tabulated(kmers, n, complete)
        begun = 0  # the letters of the k-mers for which `levels` was begun
        for i in range(kmers.first, kmers.last):
            count = _advance(codes, at, part.run, kmers, i, number, unknown)
            start = starts[i - kmers.first]
            if not begun:
                begun = min(count, most)
                levels[: before[begun]] = 0.0
            if count > most:
                _add_up_prefixes(number, kmers.size ** (count - most), c, 1.0, levels[before[most - 1] :])
                for k in range(most, count):
                    table, divisor = out[start + before[k] :], kmers.size ** (count - k - 1)
                    _add_up_prefixes(number, divisor, c, values[k], table)
            elif complete:
                _add_up(number, c, levels[before[count - 1] :])
            else:
                _index(number, unknown, count, kmers.size, before, index)
                _add_up(index, c, levels)
            if i + 1 == kmers.last or start != starts[i - kmers.first + 1]:
                _collapse(levels, values, begun, kmers.size, out[start:])
                begun = 0


_TILE = 64
"""Rows whose letters are copied at a time: the bytes of a line of the cache."""


@njit()
def squares_of_positions(codes: Array, part: Part, kmers: Kmers, totals: Array, out: Array) -> None:
    """Add to out[i] the sum over positions of totals[letters that are known from there on], for the rows of a part."""
    letters = np.empty(min(STRIP, part.last), np.int64)
    for first in range(0, part.last, STRIP):
        n = min(STRIP, part.last - first)
        letters[:] = 0
        for i in range(kmers.last - 1, kmers.first - 1, -1):
            start = part.start + first + i * part.run
            for r in range(n):
                letters[r] = min(letters[r] + 1, kmers.degree) if codes[start + r] < kmers.size else 0
                out[first + r] += totals[letters[r]]


@njit()
def _tile(codes: Array, part: Part, first: int, n: int, kmers: Kmers, letters: Array) -> None:
    """Copy the region's letters of n rows, the first of which is `first`, to letters (n, last - first)."""
    for i in range(kmers.last - kmers.first):
        start = part.start + first + (kmers.first + i) * part.run
        for r in range(n):
            letters[r, i] = codes[start + r]


@njit()
def _number(letters: Array, kmers: Kmers, before: Array, places: Array) -> int:
    """List the places of a row's k-mers, and k - 1, by position, in places (k-mers, 2); return how many."""
    count = 0
    for i in range(len(letters)):
        number = 0
        for k in range(min(kmers.degree, len(letters) - i)):
            if letters[i + k] >= kmers.size:
                break
            number = number * kmers.size + letters[i + k]
            places[count, 0], places[count, 1] = before[k] + number, k
            count += 1
    return count


@njit()
def squares_of_spectra(
    codes: Array, part: Part, kmers: Kmers, factors: Array, counts: Array, squares: Array, out: Array
) -> None:
    """Add the squares of values[k - 1] times the counts of k-mers, for the rows of a part: those of a row, whose root
    becomes out[i], or, unless `squares` is empty, times factors[i] to the columns of the spectrum. `counts` stay 0.
    """
    before, weights, totals = first_levels(kmers), kmers.values**2, np.empty(kmers.degree, np.int64)
    letters = np.empty((_TILE, kmers.last - kmers.first), np.uint8)
    places = np.empty((letters.shape[1] * kmers.degree, 2), np.int32)
    by_column = len(squares) > 0
    for first in range(0, part.last, _TILE):
        n = min(_TILE, part.last - first)
        _tile(codes, part, first, n, kmers, letters)
        for r in range(n):
            count = _number(letters[r], kmers, before, places)
            square = factors[first + r] ** 2 if by_column else 0.0
            totals[:] = 0
            for q in range(count):  # the square of a count is the sum of the odd numbers up to it
                j, k = places[q, 0], places[q, 1]
                odd = 2 * np.int64(counts[j]) + 1
                if by_column:
                    squares[j] += square * weights[k] * odd
                else:
                    totals[k] += odd
                counts[j] += 1
            for q in range(count):
                counts[places[q, 0]] = 0
            if not by_column:
                out[first + r] = np.sqrt(np.sum(weights * totals))
