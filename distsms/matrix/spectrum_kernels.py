"""The compiled loops of coded rows: k-mers row by row, where a row's counts are needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.matrix.blocks import Part
from distsms.matrix.coded_kernels import STRIP
from distsms.matrix.kmer_kernels import Region, first_levels
from distsms.utils.jit import njit

Array = NDArray[Any]

_TILE = 64
"""Rows whose letters are copied at a time: the bytes of a line of the cache."""


@njit()
def squares_of_positions(codes: Array, part: Part, region: Region, totals: Array, out: Array) -> None:
    """Add to out[i] the sum over positions of totals[known], for the rows of a part.

    known is how many letters from the position on are known, in the region and up to its degree. totals : (degree + 1,)
    """
    known = np.empty(min(STRIP, part.last - part.first), np.int64)
    for first in range(part.first, part.last, STRIP):
        n = min(STRIP, part.last - first)
        known[:] = 0
        for i in range(region.last - 1, region.first - 1, -1):
            start = part.start + first - part.first + i * part.run
            for r in range(n):
                known[r] = min(known[r] + 1, region.degree) if codes[start + r] < region.size else 0
                out[first + r] += totals[known[r]]


@njit()
def _tile(codes: Array, part: Part, first: int, n: int, region: Region, letters: Array) -> None:
    """Copy the region's letters of n rows, the first of which is `first`, to letters (n, last - first)."""
    for i in range(region.last - region.first):
        start = part.start + first - part.first + (region.first + i) * part.run
        for r in range(n):
            letters[r, i] = codes[start + r]


@njit()
def _count(letters: Array, region: Region, before: Array, counts: Array, totals: Array) -> None:
    """Count each k-mer of a row in `counts`, and set totals[k - 1] to the sum of the squares of the counts for k."""
    totals[:] = 0
    for i in range(len(letters)):
        number = 0
        for k in range(min(region.degree, len(letters) - i)):
            if letters[i + k] >= region.size:
                break
            number = number * region.size + letters[i + k]
            count = counts[before[k] + number]
            totals[k] += 2 * count + 1
            counts[before[k] + number] = count + 1


@njit()
def lengths_of_spectra(codes: Array, part: Part, region: Region, values: Array, out: Array) -> None:
    """Set out[i] to the length of the vector of values[k - 1] times the count of each k-mer, for the rows of a part."""
    before, totals = first_levels(region), np.empty(region.degree, np.int64)
    counts = np.zeros(before[-1], np.int64)
    letters = np.empty((_TILE, region.last - region.first), np.uint8)
    for first in range(part.first, part.last, _TILE):
        n = min(_TILE, part.last - first)
        _tile(codes, part, first, n, region, letters)
        for r in range(n):
            _count(letters[r], region, before, counts, totals)
            square = 0.0
            for k in range(region.degree):
                square += values[k] ** 2 * totals[k]
            out[first + r] = np.sqrt(square)
            for i in range(letters.shape[1]):
                number = 0
                for k in range(min(region.degree, letters.shape[1] - i)):
                    if letters[r, i + k] >= region.size:
                        break
                    number = number * region.size + letters[r, i + k]
                    counts[before[k] + number] = 0


@njit()
def describe_spectra(
    codes: Array, part: Part, region: Region, values: Array, factors: Array, largest: Array, squares: Array
) -> None:
    """Update max x_ij and sum x_ij^2 of a spectrum's columns, (size,) each, with the rows of a part.

    x_ij is values[k - 1] factors[i] times the count. factors : (n_local,).
    """
    before, totals = first_levels(region), np.empty(region.degree, np.int64)
    counts = np.zeros(before[-1], np.int64)
    letters = np.empty((_TILE, region.last - region.first), np.uint8)
    for first in range(part.first, part.last, _TILE):
        n = min(_TILE, part.last - first)
        _tile(codes, part, first, n, region, letters)
        for r in range(n):
            _count(letters[r], region, before, counts, totals)
            for i in range(letters.shape[1]):
                number = 0
                for k in range(min(region.degree, letters.shape[1] - i)):
                    if letters[r, i + k] >= region.size:
                        break
                    number = number * region.size + letters[r, i + k]
                    j = before[k] + number
                    if counts[j]:
                        value = values[k] * factors[first + r] * counts[j]
                        largest[j] = max(largest[j], value)
                        squares[j] += value * value
                        counts[j] = 0
