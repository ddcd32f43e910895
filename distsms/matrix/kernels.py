"""The compiled loops of `distsms.matrix.local`, on the rows of one part, as `SparseRows` stores them: columns (nnz,),
values (nnz,) or None if all are 1, and `Runs`. Sums are float64. The kernels check nothing.

Their form comes from measurements: a processor predicts the end of a row badly unless the rows before had the same
length, so rows are sorted into runs. Two running sums hide the latency of additions. Long rows prefetch; if w is larger
than a core's caches, also the entries of w that the columns name, which halves their time with 2^20 columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from distsms.base.jit import njit
from distsms.matrix.base import ColumnStatistics
from distsms.matrix.blocks import Part

Array = NDArray[Any]
Values = Array | None

AHEAD = np.uint64(256)  # how many entries ahead to prefetch columns and values
NEXT = np.uint64(128)  # how many entries ahead to prefetch what a column names; fewer, since its column must be there
FAR = 2**17  # a vector with more entries is not in the caches of a core
_ONE, _TWO, _THREE, _FOUR = (np.uint64(i) for i in range(1, 5))
_EIGHT, _SIXTY_FOUR = np.uint64(8), np.uint64(64)  # rows of at least so many entries get an unrolled loop


class Runs(NamedTuple):
    """Runs of equally long rows, inside blocks."""

    lengths: Array  # (runs,) unsigned: the length of the rows of each run
    counts: Array  # (runs,) uint8: the number of rows of each run, minus 1
    # (n_local,) uint8: for each stored row, its original place in its block; empty if the rows have not been reordered
    order: Array
    block: int  # rows of a block, a power of 2


@intrinsic  # type: ignore[misc]
def _prefetch(_: Any, array: Any, i: Any) -> Any:
    """Prefetch array[i] for reading into all cache levels; i may lie beyond the end."""

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
def number_at(numbers: Values, k: Any) -> Any:
    """Return number k of values or factors; 1 where they are None."""
    if numbers is None:
        return 1.0
    return np.float64(numbers[k])


@njit()
def _fetch(columns: Array, values: Values, k: Any) -> None:
    _prefetch(columns, k + AHEAD)  # type: ignore[call-arg]
    if values is not None:
        _prefetch(values, k + AHEAD)  # type: ignore[call-arg]


@njit()
def _reach(vector: Array, part: Part) -> Any:
    """Return the entry of a part before which `_foresee` works: 0 if the vector is in the caches."""
    stop = np.uint64(part.stop)
    return stop - min(stop, NEXT + _THREE) if len(vector) > FAR else np.uint64(0)


@njit(inline="always")
def _foresee(vector, columns, k, reach, count):  # type: ignore[no-untyped-def]
    """Prefetch what the columns of up to four entries after k + NEXT name in a vector."""
    if k < reach:
        for i in range(count):
            _prefetch(vector, np.uint64(columns[k + NEXT + np.uint64(i)]))


@njit()
def _place(order: Array, block: int, q: Any) -> Any:
    """Return the original index of the row that is stored at place q."""
    return (q & -block) + order[q] if len(order) else q


@njit()
def find_rows(runs: Runs, n: int, places: Array | None, begins: Array, ends: Array) -> None:
    """Set begins[k] and ends[k] of the stored entries of n rows; k is places[row] (< 0: passed over), or the row."""
    q = run = 0
    stop: Any = 0
    while q < n:
        length, end = np.int64(runs.lengths[run]), q + runs.counts[run] + 1
        run += 1
        while q < end:
            begin, stop, row = stop, stop + length, _place(runs.order, runs.block, q)
            k = row if places is None else places[row]
            if k >= 0:
                begins[k], ends[k] = begin, stop
            q += 1


@njit()
def arrange_rows(
    stored: Array, stored_values: Values, runs: Runs, part: Part, begin: Array, columns: Array, values: Values
) -> None:
    """Copy a part's entries from the original order of rows to where they are stored. begin : (block,), memory."""
    lengths, counts = runs.lengths, runs.counts
    order, block = runs.order, runs.block
    source = target = np.uint64(0)
    run = part.run
    for here in range(part.first, part.last, block):
        end, q, at = min(here + block, part.last), here, run
        while q < end:
            for _ in range(counts[at] + 1):
                begin[_place(order, block, q) - here] = lengths[at]
                q += 1
            at += 1
        for i in range(end - here):
            length = begin[i]
            begin[i] = source
            source += length
        q = here
        while q < end:
            length = np.uint64(lengths[run])
            for _ in range(counts[run] + 1):
                k = begin[_place(order, block, q) - here]
                stop = k + length
                while k < stop:
                    columns[target] = stored[k]
                    if values is not None:
                        values[target] = stored_values[k]  # type: ignore[index]
                    k += _ONE
                    target += _ONE
                q += 1
            run += 1


@njit()
def checksum(words: Array) -> np.uint64:
    """Return a number that changes if any one word changes, or if two words are exchanged. words : uint32."""
    total = np.uint64(0)
    for i in range(len(words)):
        total += np.uint64(words[i]) * (_TWO * np.uint64(i) + _ONE)
    return total


@njit()
def dot_rows(columns: Array, values: Values, runs: Runs, part: Part, w: Array, out: Array) -> None:
    """Set out[i] = <x_i, w> for the rows of a part. w : (p,); out : (n_local,)."""
    stop, q, run = np.uint64(part.start), part.first, part.run
    reach = _reach(w, part)
    while q < part.last:
        length, end = np.uint64(runs.lengths[run]), q + runs.counts[run] + 1
        run += 1
        long = length >= _EIGHT
        while q < end:
            k = stop
            stop = k + length
            a = b = 0.0
            if long:
                while k + _THREE < stop:
                    _fetch(columns, values, k)
                    _foresee(w, columns, k, reach, 4)
                    a += number_at(values, k) * w[columns[k]]
                    b += number_at(values, k + _ONE) * w[columns[k + _ONE]]
                    a += number_at(values, k + _TWO) * w[columns[k + _TWO]]
                    b += number_at(values, k + _THREE) * w[columns[k + _THREE]]
                    k += _FOUR
            while k + _ONE < stop:
                _foresee(w, columns, k, reach, 2)
                a += number_at(values, k) * w[columns[k]]
                b += number_at(values, k + _ONE) * w[columns[k + _ONE]]
                k += _TWO
            if k < stop:
                _foresee(w, columns, k, reach, 1)
                a += number_at(values, k) * w[columns[k]]
            out[_place(runs.order, runs.block, q)] = a + b
            q += 1


@njit()
def add_rows(
    columns: Array, values: Values, runs: Runs, part: Part, skip: bool, coefficients: Array, out: Array
) -> None:
    """Add sum_i c_i x_i over the rows of a part to out. c : (n_local,); out : (p,). skip : skip rows with c_i = 0."""
    # Reading these from the tuple inside the loop costs some percent here, and nothing in `dot_rows`.
    lengths, counts, order, block = runs
    stop, q, run = np.uint64(part.start), part.first, part.run
    reach = _reach(out, part)
    while q < part.last:
        length, end = np.uint64(lengths[run]), q + counts[run] + 1
        run += 1
        long = length >= (_EIGHT if reach else _SIXTY_FOUR)
        while q < end:
            k = stop
            stop = k + length
            c = coefficients[_place(order, block, q)]
            q += 1
            if skip and c == 0:
                continue
            if long:
                while k + _THREE < stop:
                    _fetch(columns, values, k)
                    _foresee(out, columns, k, reach, 4)
                    out[columns[k]] += c * number_at(values, k)
                    out[columns[k + _ONE]] += c * number_at(values, k + _ONE)
                    out[columns[k + _TWO]] += c * number_at(values, k + _TWO)
                    out[columns[k + _THREE]] += c * number_at(values, k + _THREE)
                    k += _FOUR
            while k + _ONE < stop:
                _foresee(out, columns, k, reach, 2)
                out[columns[k]] += c * number_at(values, k)
                out[columns[k + _ONE]] += c * number_at(values, k + _ONE)
                k += _TWO
            if k < stop:
                _foresee(out, columns, k, reach, 1)
                out[columns[k]] += c * number_at(values, k)


@njit()
def factor_of(factors: Array, i: Any) -> Any:
    if len(factors):
        return factors[i]
    return 1.0


@njit()
def largest_row(columns: Array, values: Values, runs: Runs, part: Part, w: Array, factors: Array) -> float:
    """Return the maximum of (entries + 2) sum_j |x_ij w_j| times the row's factor over a part's rows, or 0."""
    best: Any = 0.0
    stop, q, run = np.uint64(part.start), part.first, part.run
    reach = _reach(w, part)
    while q < part.last:
        length, end = np.uint64(runs.lengths[run]), q + runs.counts[run] + 1
        run += 1
        while q < end:
            k = stop
            stop = k + length
            a = 0.0
            while k < stop:
                _foresee(w, columns, k, reach, 1)
                a += abs(number_at(values, k) * w[columns[k]])
                k += _ONE
            best = max(best, a * (length + 2.0) * factor_of(factors, _place(runs.order, runs.block, q)))
            q += 1
    return best


@njit()
def describe_columns(
    columns: Array, values: Values, runs: Runs, part: Part, factors: Array, statistics: ColumnStatistics
) -> None:
    """Update the statistics of each column with a part's rows times their factors; only counts if all entries are 1."""
    largest, counts, squares = statistics
    stop, q, run = np.uint64(part.start), part.first, part.run
    ones, reach = values is None and not len(factors), _reach(counts, part)
    while q < part.last:
        length, end = np.uint64(runs.lengths[run]), q + runs.counts[run] + 1
        run += 1
        while q < end:
            k = stop
            stop = k + length
            factor = factor_of(factors, _place(runs.order, runs.block, q))
            while k < stop:
                if k < reach:  # three calls of `_foresee` would make this loop ten times slower
                    ahead = np.uint64(columns[k + NEXT])
                    _prefetch(counts, ahead)  # type: ignore[call-arg]
                    if not ones:
                        _prefetch(largest, ahead)  # type: ignore[call-arg]
                        _prefetch(squares, ahead)  # type: ignore[call-arg]
                j = columns[k]
                counts[j] += 1.0
                if not ones:
                    size = abs(number_at(values, k)) * factor
                    largest[j] = max(largest[j], size)
                    squares[j] += size**2
                k += _ONE
            q += 1


@njit()
def add_products(columns, values, runs, part, factors, group, weights, sums, products):  # type: ignore[no-untyped-def]
    """Add a_i x_i to the sums (k, p), and the lower half of a_i x_i x_i' to the products, of the group of each row."""
    stop, q, run = np.uint64(part.start), part.first, part.run
    while q < part.last:
        length, end = np.uint64(runs.lengths[run]), q + runs.counts[run] + 1
        run += 1
        while q < end:
            start = stop
            stop = start + length
            i = _place(runs.order, runs.block, q)
            q += 1
            if group[i] < 0:
                continue
            total, product, factor = sums[group[i]], products[group[i]], factor_of(factors, i)
            for k in range(start, stop):
                x = factor * number_at(values, k)
                left = factor_of(weights, i) * x
                total[columns[k]] += left
                row = product[columns[k]]
                for other in range(start, k + _ONE):  # columns ascend
                    row[columns[other]] += left * (factor * number_at(values, other))


@njit()
def row_lengths(columns: Array, values: Values, runs: Runs, part: Part, out: Array) -> None:
    """Set out_i = ||x_i|| for the rows of a part; (n_local,). No square overflows."""
    stop, q, run = np.uint64(part.start), part.first, part.run
    while q < part.last:
        length, end = np.uint64(runs.lengths[run]), q + runs.counts[run] + 1
        run += 1
        while q < end:
            start = stop
            stop = start + length
            largest: Any = 0.0
            k = start
            while k < stop:
                largest = max(largest, abs(number_at(values, k)))
                k += _ONE
            a = 0.0
            k = start if largest > 0 else stop
            while k < stop:
                a += (number_at(values, k) / largest) ** 2
                k += _ONE
            out[_place(runs.order, runs.block, q)] = largest * np.sqrt(a)
            q += 1


# Rows that are stored as arrays.

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
