"""The kernels of the products with X: sparse and dense rows, and codes of categories.

A block of rows has tiles (t, 4) int64: the first local row of each, its number of rows, where its first entry is, and
for codes the distance from a row's code to its next. X w: a thread computes a row. X'c: each term is rounded to a whole
number of small units (`fixed`), so that sums do not depend on their order. Those of the `HOT` most frequent columns are
in shared memory, in three limbs of `bits` bits, for which devices have native atomics; before a limb can overflow,
after 2^(32 - bits) rows, they are added to 64-bit numbers in global memory.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float64, int32, int64, uint32

from distsms.device.runtime import ABREAST, SIMULATED, TILE

HOT = 8 if SIMULATED else 4096
"""Columns whose sums are in shared memory: 48 KiB, which each block of any device may take."""
LOWER = 2 * HOT  # the lower limbs of these
MOST_THREADS = 1024


@cuda.jit(device=True)
def fixed(value):  # type: ignore[no-untyped-def]
    """Return the nearest whole number; from 2^52 on, one of the nearest two."""
    return np.int64(math.floor(value + 0.5))


@cuda.jit(device=True)
def times(numbers, factors, i):  # type: ignore[no-untyped-def]
    return numbers[i] * factors[i] if factors.shape[0] > 0 else numbers[i]


@cuda.jit(device=True)
def add_to_row(out, i, score, factors):  # type: ignore[no-untyped-def]
    out[i] += score * factors[i] if factors.shape[0] > 0 else score


@cuda.jit
def dot_dense(tiles, X, w, factors, out):  # type: ignore[no-untyped-def]
    """Add <x_i, w> to out[i], for the rows of X, which is flat, (rows p,)."""
    p = w.shape[0]
    for tile in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
        first, n, at = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2]
        for r in range(cuda.threadIdx.x, n, cuda.blockDim.x):
            score = 0.0
            for j in range(p):
                score += w[j] * X[at + r * p + j]
            add_to_row(out, first + r, score, factors)


@cuda.jit
def dot_sparse(tiles, columns, values, begins, lengths, w, factors, out):  # type: ignore[no-untyped-def]
    """Add <x_i, w> to out[i]; entries are 1 if there are no values. begins, lengths: (n_local,) of all rows."""
    for tile in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
        first, n, at = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2]
        for r in range(cuda.threadIdx.x, n, cuda.blockDim.x):
            begin, score = begins[first + r] - at, 0.0
            for k in range(begin, begin + np.int64(lengths[first + r])):
                x = values[k] if values.shape[0] > 0 else 1.0
                score += w[columns[k]] * x
            add_to_row(out, first + r, score, factors)


@cuda.jit
def dot_codes(tiles, codes, offsets, values, w, factors, out):  # type: ignore[no-untyped-def]
    """Add values[b] w[offsets[b] + code], over blocks b, to out[i]. w (p + 1,) ends with a 0 for missing codes."""
    scores = cuda.local.array(ABREAST, float64)
    for tile in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
        first, n, at, run = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2], tiles[tile, 3]
        for r in range(cuda.threadIdx.x, n, ABREAST * cuda.blockDim.x):
            for k in range(ABREAST):
                scores[k] = 0.0
            for b in range(values.shape[0]):
                for k in range(ABREAST):
                    code = offsets[b] + np.int64(codes[at + b * run + min(r + k * cuda.blockDim.x, n - 1)])
                    scores[k] += values[b] * w[code if code < offsets[b + 1] else w.shape[0] - 1]
            for k in range(ABREAST):
                if r + k * cuda.blockDim.x < n:
                    add_to_row(out, first + r + k * cuda.blockDim.x, scores[k], factors)


@cuda.jit
def add_dense(tiles, X, c, factors, units, totals):  # type: ignore[no-untyped-def]
    """Add c_i x_ij in units of column j to totals[j]: each thread has a column, and rows at equal distances."""
    sums = cuda.shared.array(MOST_THREADS, int64)
    p = totals.shape[0]
    width = min(p, cuda.blockDim.x)
    abreast = cuda.blockDim.x // width
    column, row = cuda.blockIdx.y * width + cuda.threadIdx.x % width, cuda.threadIdx.x // width
    total = np.int64(0)
    if row < abreast and column < p:
        for tile in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
            first, n, at = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2]
            for r in range(row, n, abreast):
                total += fixed(times(c, factors, first + r) * X[at + r * p + column] * units[column])
    sums[cuda.threadIdx.x] = total
    cuda.syncthreads()
    if row == 0 and column < p:
        for k in range(cuda.threadIdx.x + width, abreast * width, width):
            total += sums[k]
        if total != 0:
            cuda.atomic.add(totals, column, total)


@cuda.jit(device=True)
def tiles_together(bits):  # type: ignore[no-untyped-def]
    """Return after how many tiles limbs have to be emptied."""
    return (np.int64(1) << (32 - bits)) // TILE


@cuda.jit(device=True)
def clear_limbs(low, high):  # type: ignore[no-untyped-def]
    """Set the limbs of all slots to 0, by all threads of a block, which wait for each other."""
    for slot in range(cuda.threadIdx.x, HOT, cuda.blockDim.x):
        low[slot] = low[HOT + slot] = np.uint32(0)
        high[slot] = np.int32(0)
    cuda.syncthreads()


@cuda.jit(device=True)
def add_limbs(low, high, slot, bits, number):  # type: ignore[no-untyped-def]
    """Add a number to the limbs of a slot: two below without a sign, and one above with it."""
    mask = (np.int64(1) << bits) - 1
    cuda.atomic.add(low, slot, np.uint32(number & mask))
    cuda.atomic.add(low, HOT + slot, np.uint32((number >> bits) & mask))
    cuda.atomic.add(high, slot, np.int32(number >> (2 * bits)))


@cuda.jit(device=True)
def empty_limbs(low, high, bits, hot, start, totals):  # type: ignore[no-untyped-def]
    """Add the limbs of each slot, once no thread adds to them, to totals[start + hot[slot]], and set them to 0."""
    cuda.syncthreads()
    for slot in range(cuda.threadIdx.x, hot.shape[0], cuda.blockDim.x):
        upper = (np.int64(high[slot]) << bits) + np.int64(low[HOT + slot])
        total = (upper << bits) + np.int64(low[slot])
        if total != 0:
            cuda.atomic.add(totals, start + np.int64(hot[slot]), total)
        low[slot] = low[HOT + slot] = np.uint32(0)
        high[slot] = np.int32(0)
    cuda.syncthreads()


@cuda.jit
def add_codes(tiles, codes, offsets, slots, hot, c, factors, unit, bits, totals):  # type: ignore[no-untyped-def]
    """Add c_i in units to totals[offsets[b] + code], b = blockIdx.y; slots (p,), -1: none; hot (B, HOT): of slots."""
    low = cuda.shared.array(LOWER, uint32)
    high = cuda.shared.array(HOT, int32)
    b = cuda.blockIdx.y
    start, size = offsets[b], offsets[b + 1] - offsets[b]
    few = size <= HOT
    clear_limbs(low, high)
    together = tiles_together(bits)
    for begin in range(cuda.blockIdx.x * together, tiles.shape[0], cuda.gridDim.x * together):
        # 1) The rows of some tiles.
        for tile in range(begin, min(begin + together, tiles.shape[0])):
            first, n, at, run = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2], tiles[tile, 3]
            for r in range(cuda.threadIdx.x, n, cuda.blockDim.x):
                code, number = np.int64(codes[at + b * run + r]), fixed(times(c, factors, first + r) * unit)
                if code < size and number != 0:
                    slot = code if few else np.int64(slots[start + code])
                    if slot >= 0:
                        add_limbs(low, high, slot, bits, number)
                    else:
                        cuda.atomic.add(totals, start + code, number)
        # 2) What the limbs have, before they overflow.
        empty_limbs(low, high, bits, hot[b, : min(size, HOT)], start, totals)


@cuda.jit
def add_sparse(tiles, columns, values, begins, lengths, slots, hot, c, factors, units, bits, totals):  # type: ignore[no-untyped-def]
    """Add c_i x_ij in units of column j to totals[j], as `add_codes` does. A row may have a column only once."""
    low = cuda.shared.array(LOWER, uint32)
    high = cuda.shared.array(HOT, int32)
    clear_limbs(low, high)
    together = tiles_together(bits)
    for begin in range(cuda.blockIdx.x * together, tiles.shape[0], cuda.gridDim.x * together):
        # 1) The rows of some tiles.
        for tile in range(begin, min(begin + together, tiles.shape[0])):
            first, n, at = tiles[tile, 0], tiles[tile, 1], tiles[tile, 2]
            for r in range(cuda.threadIdx.x, n, cuda.blockDim.x):
                start, coefficient = begins[first + r] - at, times(c, factors, first + r)
                stop = start + (np.int64(lengths[first + r]) if coefficient != 0.0 else 0)
                for k in range(start, stop):
                    j = np.int64(columns[k])
                    number = fixed(coefficient * (values[k] if values.shape[0] > 0 else 1.0) * units[j])
                    slot = np.int64(slots[j])
                    if slot >= 0:
                        add_limbs(low, high, slot, bits, number)
                    else:
                        cuda.atomic.add(totals, j, number)
        # 2) What the limbs have, before they overflow.
        empty_limbs(low, high, bits, hot[0], 0, totals)
