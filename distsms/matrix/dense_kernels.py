"""The compiled loops of `distsms.matrix.local` for rows that are stored as arrays: see `distsms.matrix.kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np

from distsms.base.jit import njit
from distsms.matrix.kernels import Array, factor_of

_ANY_ORDER = {"reassoc", "contract", "nsz"}  # lets the compiler split a sum over the lanes of a vector register


@njit(fastmath=_ANY_ORDER)
def dot_dense(array: Array, w: Array, out: Array) -> None:
    """Do what `dot_rows` does for all rows of an array (rows, p); out : (rows,)."""
    for i in range(len(array)):
        row = array[i]
        a = 0.0
        for j in range(len(w)):
            a += np.float64(row[j]) * w[j]
        out[i] = a


@njit(fastmath=_ANY_ORDER)
def add_dense(array: Array, c: Array, out: Array) -> None:
    """Do what `add_rows` does for all rows of an array (rows, p), four rows for each pass over `out`; c : (rows,)."""
    i, last = 0, len(array)
    while i + 4 <= last:
        row0, row1, row2, row3 = array[i], array[i + 1], array[i + 2], array[i + 3]
        c0, c1, c2, c3 = c[i], c[i + 1], c[i + 2], c[i + 3]
        for j in range(len(out)):
            out[j] += (c0 * row0[j] + c1 * row1[j]) + (c2 * row2[j] + c3 * row3[j])
        i += 4
    while i < last:
        row0, c0 = array[i], c[i]
        for j in range(len(out)):
            out[j] += c0 * row0[j]
        i += 1


@njit(fastmath=_ANY_ORDER)
def largest_dense(array: Array, w: Array, factors: Array) -> float:
    """Do what `largest_row` does for all rows of an array (rows, p)."""
    best = 0.0
    for i in range(len(array)):
        row = array[i]
        a = 0.0
        for j in range(len(w)):
            a += abs(row[j] * w[j])
        best = max(best, a * factor_of(factors, i))
    return best * (len(w) + 2.0)


@njit()
def describe_dense(array: Array, factors: Array, largest: Array, squares: Array) -> None:
    """Update max |x_ij| and sum x_ij^2 of each column with all rows times their factors; (p,) each."""
    for i in range(len(array)):
        row, factor = array[i], factor_of(factors, i)
        for j in range(len(largest)):
            size = abs(np.float64(row[j])) * factor
            largest[j] = max(largest[j], size)
            squares[j] += size**2


@njit()
def lengths_dense(array: Array, out: Array) -> None:
    """Do what `row_lengths` does for all rows of an array (rows, p); out : (rows,)."""
    for i in range(len(array)):
        row = array[i]
        largest: Any = 0.0
        for j in range(len(row)):
            largest = max(largest, abs(np.float64(row[j])))
        a = 0.0
        if largest > 0:
            for j in range(len(row)):
                a += (np.float64(row[j]) / largest) ** 2
        out[i] = largest * np.sqrt(a)
