"""The compiled loops of coded rows: k-mers row by row, where a row's counts are needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import njit
from distsms.matrix.blocks import Part
from distsms.matrix.coded_kernels import STRIP
from distsms.matrix.kmer_kernels import Region, first_levels

Array = NDArray[Any]

_TILE = 64
"""Rows whose letters are copied at a time: the bytes of a line of the cache."""


@njit()
def squares_of_positions(codes: Array, part: Part, region: Region, totals: Array, out: Array) -> None:
    """Add to out[i] the sum over positions of totals[known], for the rows of a part.

    known is how many letters from the position on are known, in the region and up to its degree. totals : (degree + 1,)
    """
    letters = np.empty(min(STRIP, part.last), np.int64)
    for first in range(0, part.last, STRIP):
        n = min(STRIP, part.last - first)
        letters[:] = 0
        for i in range(region.last - 1, region.first - 1, -1):
            start = part.start + first + i * part.run
            for r in range(n):
                letters[r] = min(letters[r] + 1, region.degree) if codes[start + r] < region.size else 0
                out[first + r] += totals[letters[r]]


@njit()
def _tile(codes: Array, part: Part, first: int, n: int, region: Region, letters: Array) -> None:
    """Copy the region's letters of n rows, the first of which is `first`, to letters (n, last - first)."""
    for i in range(region.last - region.first):
        start = part.start + first + (region.first + i) * part.run
        for r in range(n):
            letters[r, i] = codes[start + r]


@njit()
def _number(letters: Array, region: Region, before: Array, places: Array) -> int:
    """List the places, in a table of all k-mers, of the k-mers of a row; return how many. The order is by position.

    letters : (last - first,); places : (at least (last - first) * degree, 2), for the place and k - 1.
    """
    count = 0
    for i in range(len(letters)):
        number = 0
        for k in range(min(region.degree, len(letters) - i)):
            if letters[i + k] >= region.size:
                break
            number = number * region.size + letters[i + k]
            places[count, 0], places[count, 1] = before[k] + number, k
            count += 1
    return count


@njit()
def lengths_of_spectra(codes: Array, part: Part, region: Region, values: Array, counts: Array, out: Array) -> None:
    """Set out[i] to the length of the vector of values[k - 1] times the count of each k-mer, for the rows of a part.

    counts : (k-mers of all degrees,) zeros, of a type that holds the length of the region; they are zeros afterwards.
    """
    before, totals = first_levels(region), np.empty(region.degree, np.int64)
    letters = np.empty((_TILE, region.last - region.first), np.uint8)
    places = np.empty((letters.shape[1] * region.degree, 2), np.int32)
    for first in range(0, part.last, _TILE):
        n = min(_TILE, part.last - first)
        _tile(codes, part, first, n, region, letters)
        for r in range(n):
            count = _number(letters[r], region, before, places)
            totals[:] = 0
            for q in range(count):  # the square of a count is the sum of the odd numbers up to it
                j = places[q, 0]
                totals[places[q, 1]] += 2 * np.int64(counts[j]) + 1
                counts[j] += 1
            for q in range(count):
                counts[places[q, 0]] = 0
            out[first + r] = np.sqrt(np.sum(values**2 * totals))


@njit()
def add_squares_of_spectra(
    codes: Array, part: Part, region: Region, values: Array, factors: Array, counts: Array, squares: Array
) -> None:
    """Add the sum of x_ij^2 over the rows of a part to a spectrum's columns.

    x_ij is values[k - 1] factors[i] times the count of the k-mer. factors : (rows,). counts : as before.
    """
    before, weights = first_levels(region), values**2
    letters = np.empty((_TILE, region.last - region.first), np.uint8)
    places = np.empty((letters.shape[1] * region.degree, 2), np.int32)
    for first in range(0, part.last, _TILE):
        n = min(_TILE, part.last - first)
        _tile(codes, part, first, n, region, letters)
        for r in range(n):
            count, square = _number(letters[r], region, before, places), factors[first + r] ** 2
            for q in range(count):
                j = places[q, 0]
                squares[j] += square * weights[places[q, 1]] * (2 * np.int64(counts[j]) + 1)
                counts[j] += 1
            for q in range(count):
                counts[places[q, 0]] = 0
