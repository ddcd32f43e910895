"""The compiled loops of `distsms.features`.

Sparse rows: columns (nnz,) unsigned, lengths (n_local,) unsigned, the entries of each row; values (nnz,) float32 or
float64, or None where all are 1: the compiler then drops them. Sums are float64 whatever the values are. A kernel works
on the rows first..last, whose entries begin at `start`. Nothing is checked here.

What is odd in these loops was measured. More sums than one hide the latency of additions. The one to three entries that
are left of a row are added without a branch, since a processor guesses row lengths badly; only where rows are alike
(`rows_alike`) it guesses well, and branches are cheaper. And the compiler's unrolling defeats the processor's own
prefetching where the entries of w miss the cache, so it is told what to fetch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from distsms.compiling import njit

Array = NDArray[Any]
Values = Array | None

AHEAD = np.uint64(256)  # entries
_ZERO, _ONE, _TWO, _THREE, _FOUR = (np.uint64(i) for i in range(5))
_ANY_ORDER = {"reassoc", "contract", "nsz"}  # lets the compiler split a sum over the lanes of a vector register


@intrinsic  # type: ignore[misc]
def _prefetch(_: Any, array: Any, i: Any) -> Any:
    """Ask for array[i], in a cache line that is read soon; i may lie beyond the end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        to_read, keep, is_data = number(0), number(3), number(1)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        address = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(function, [address, to_read, keep, is_data])
        return context.get_dummy_value()

    return types.void(array, i), generate


@njit()
def _value(values: Values, k: Any) -> Any:
    if values is None:
        return 1.0
    return np.float64(values[k])


@njit()
def _fetch(columns: Array, values: Values, k: Any) -> None:
    _prefetch(columns, k + AHEAD)  # type: ignore[call-arg]
    if values is not None:
        _prefetch(values, k + AHEAD)  # type: ignore[call-arg]


def rows_alike(lengths: Array) -> bool:
    """Whether most rows leave as many entries after the last four: a sample of lengths (n_local,) tells."""
    left = np.bincount(lengths[:: 1 + len(lengths) // 1024].astype(np.intp) % 4, minlength=4)
    return bool(left.max() > 0.75 * left.sum())


@njit()
def dot_rows(
    columns: Array, values: Values, lengths: Array, first: int, last: int, start: int, alike: bool, w: Array, out: Array
) -> None:
    """out[i] = <x_i, w> of the rows first..last; w (p,), out (n_local,)."""
    stop = np.uint64(start)
    for i in range(first, last):
        k = stop
        stop = k + np.uint64(lengths[i])
        branches = alike or stop - k < _FOUR
        a = b = 0.0
        while k + _THREE < stop:
            _fetch(columns, values, k)
            a += _value(values, k) * w[columns[k]]
            b += _value(values, k + _ONE) * w[columns[k + _ONE]]
            a += _value(values, k + _TWO) * w[columns[k + _TWO]]
            b += _value(values, k + _THREE) * w[columns[k + _THREE]]
            k += _FOUR
        if branches:
            if k + _ONE < stop:
                a += _value(values, k) * w[columns[k]]
                b += _value(values, k + _ONE) * w[columns[k + _ONE]]
                k += _TWO
            if k < stop:
                a += _value(values, k) * w[columns[k]]
        else:
            x = _value(values, stop - _THREE) * w[columns[stop - _THREE]]
            y = _value(values, stop - _TWO) * w[columns[stop - _TWO]]
            z = _value(values, stop - _ONE) * w[columns[stop - _ONE]]
            a += x if k + _TWO < stop else 0.0
            b += y if k + _ONE < stop else 0.0
            a += z if k < stop else 0.0
        out[i] = a + b


@njit()
def add_rows(
    columns: Array,
    values: Values,
    lengths: Array,
    first: int,
    last: int,
    start: int,
    alike: bool,
    skip: bool,
    coefficients: Array,
    out: Array,
) -> None:
    """out += sum_i c_i x_i over the rows first..last; c (n_local,), out (p,). skip: pass over rows with c_i = 0."""
    stop = np.uint64(start)
    for i in range(first, last):
        k = stop
        stop = k + np.uint64(lengths[i])
        c = coefficients[i]
        if skip and c == 0:
            continue
        branches = alike or stop - k < _FOUR
        while k + _THREE < stop:
            _fetch(columns, values, k)
            out[columns[k]] += c * _value(values, k)
            out[columns[k + _ONE]] += c * _value(values, k + _ONE)
            out[columns[k + _TWO]] += c * _value(values, k + _TWO)
            out[columns[k + _THREE]] += c * _value(values, k + _THREE)
            k += _FOUR
        if branches:
            if k + _ONE < stop:
                out[columns[k]] += c * _value(values, k)
                out[columns[k + _ONE]] += c * _value(values, k + _ONE)
                k += _TWO
            if k < stop:
                out[columns[k]] += c * _value(values, k)
        else:
            x = c * _value(values, stop - _THREE)
            y = c * _value(values, stop - _TWO)
            z = c * _value(values, stop - _ONE)
            out[columns[stop - _THREE]] += x if k + _TWO < stop else 0.0
            out[columns[stop - _TWO]] += y if k + _ONE < stop else 0.0
            out[columns[stop - _ONE]] += z if k < stop else 0.0


@njit()
def largest_row(columns: Array, values: Values, lengths: Array, first: int, last: int, start: int, w: Array) -> float:
    """The largest over the rows first..last of (entries + 2) sum_j |x_ij w_j|; 0 without rows."""
    best = 0.0
    k = np.uint64(start)
    for i in range(first, last):
        stop = k + np.uint64(lengths[i])
        a = 0.0
        while k < stop:
            a += abs(_value(values, k) * w[columns[k]])
            k += _ONE
        best = max(best, a * (lengths[i] + 2.0))
    return best


@njit()
def describe_columns(columns: Array, values: Values, largest: Array, counts: Array) -> None:
    """Into the (p,) arrays, zero before: max |x_ij| and the number of entries, of all rows."""
    for i in range(len(columns)):
        k = np.uint64(i)
        j = columns[k]
        largest[j] = max(largest[j], abs(_value(values, k)))
        counts[j] += 1.0


@njit()
def add_squares(columns: Array, values: Values, squares: Array) -> None:
    """Into the (p,) array, zero before: sum x_ij^2 of all rows."""
    for i in range(len(columns)):
        k = np.uint64(i)
        squares[columns[k]] += _value(values, k) ** 2


@njit()
def split_rows(lengths: Array, rows: Array, entries: Array) -> None:
    """Where to cut the rows into parts of nearly equal work: rows[t], entries[t] come before part t.

    rows, entries (parts + 1,) int64, with the totals in their last places; a row weighs 1 + its entries.
    """
    parts = len(rows) - 1
    total = rows[parts] + entries[parts]
    before = np.int64(0)
    t = 0
    for i in range(len(lengths)):
        while t < parts and (i + before) * parts >= t * total:
            rows[t] = i
            entries[t] = before
            t += 1
        before += np.int64(lengths[i])
    while t < parts:
        rows[t] = len(lengths)
        entries[t] = before
        t += 1


@njit(fastmath=_ANY_ORDER)
def dot_dense(array: Array, first: int, last: int, w: Array, out: Array) -> None:
    """As `dot_rows`, of rows of an (n_local, p) array."""
    for i in range(first, last):
        row = array[i]
        a = 0.0
        for j in range(len(w)):
            a += np.float64(row[j]) * w[j]
        out[i] = a


@njit(fastmath=_ANY_ORDER)
def add_dense(array: Array, first: int, last: int, c: Array, out: Array) -> None:
    """As `add_rows`, of rows of an (n_local, p) array, four rows for each visit of `out`."""
    i = first
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
def largest_dense(array: Array, first: int, last: int, w: Array) -> float:
    """As `largest_row`, of rows of an (n_local, p) array."""
    best = 0.0
    for i in range(first, last):
        row = array[i]
        a = 0.0
        for j in range(len(w)):
            a += abs(row[j] * w[j])
        best = max(best, a)
    return best * (len(w) + 2.0)


@njit()
def largest_dense_entries(array: Array, largest: Array) -> None:
    """Into the (p,) array, zero before: max |x_ij|."""
    for i in range(len(array)):
        row = array[i]
        for j in range(len(largest)):
            largest[j] = max(largest[j], abs(np.float64(row[j])))


@njit()
def add_squares_dense(array: Array, squares: Array) -> None:
    """Into the (p,) array, zero before: sum x_ij^2."""
    for i in range(len(array)):
        row = array[i]
        for j in range(len(squares)):
            squares[j] += np.float64(row[j]) ** 2
