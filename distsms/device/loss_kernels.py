"""The kernels of the losses, each a pass over the scores of a rank: what `distsms.losses` computes on a processor.

kinds (n_local,) int8 is 1 for a positive row, -1 for a negative one and 0 for one that is left out; weights (n_local,)
float64 are empty if all are 1. `parts` (tiles, k) get sums of tiles, see `distsms.device.runtime`.

The cell of a score has to be the same when rows are counted and when coefficients are looked up. So in its formula,
that of `distsms.losses.binned_kernels`, the multiplication and addition that a compiler may join are one `fma`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float64

from distsms.device.runtime import LANES, SIMULATED, TILE, keep

BELOW = 2.0**30
"""The units of the lower word of a weight in one of the upper word; so many rows may be added up."""
BUCKETS = 64 if SIMULATED else 2**12
"""The buckets into which places are counted at a time."""


@cuda.jit(device=True)
def weight_of(weights, i):  # type: ignore[no-untyped-def]
    return weights[i] if weights.shape[0] > 0 else 1.0


@cuda.jit
def extremes(scores, kinds, parts):  # type: ignore[no-untyped-def]
    """Write -min and max of the positive scores, those of the negative ones, and 1 if any is not finite, (tiles, 5)."""
    lanes = cuda.shared.array((5, LANES), float64)
    for tile in range(cuda.blockIdx.x, parts.shape[0], cuda.gridDim.x):
        for lane in range(cuda.threadIdx.x, LANES, cuda.blockDim.x):
            low_pos = high_pos = low_neg = high_neg = -math.inf
            bad = 0.0
            for i in range(tile * TILE + lane, min((tile + 1) * TILE, scores.shape[0]), LANES):
                s, kind = scores[i], kinds[i]
                if not math.isfinite(s):
                    bad = 1.0
                elif kind > 0:
                    low_pos, high_pos = max(low_pos, -s), max(high_pos, s)
                elif kind < 0:
                    low_neg, high_neg = max(low_neg, -s), max(high_neg, s)
            lanes[0, lane], lanes[1, lane], lanes[2, lane], lanes[3, lane] = low_pos, high_pos, low_neg, high_neg
            lanes[4, lane] = bad
        keep(lanes, 5, 5, parts, tile)


@cuda.jit(device=True)
def place_of(score, kind, low, scale, bits, top, fine):  # type: ignore[no-untyped-def]
    """Return the place of a row in a table (2 cells,), negatives of a cell first, and its offset in the cell."""
    z = cuda.fma((score - (1.0 if kind > 0 else 0.0)) - low, scale, float(np.int64(1) << bits))
    z = z if z > 0.0 else 0.0
    units = np.int64(z if z < top else top)
    cell, offset = units >> bits, units & ((np.int64(1) << bits) - 1)
    if fine.shape[1] > 0:
        shift = fine[1, cell]
        cell, offset = fine[0, cell] + (offset >> shift), offset & ((np.int64(1) << shift) - 1)
    return 2 * cell + (1 if kind > 0 else 0), offset


@cuda.jit(device=True)
def add_words(totals, word, place, value, scale):  # type: ignore[no-untyped-def]
    """Add a value at least 0, in units of 1 / scale, to two words: whole units, and what is left in units 1 / BELOW."""
    units = math.floor(value * scale + 0.5)
    cuda.atomic.add(totals, (word, place), np.int64(units))
    cuda.atomic.add(totals, (word + 1, place), np.int64(math.floor((value * scale - units) * BELOW + 0.5)))


@cuda.jit
def count(scores, kinds, weights, low, high, scale, bits, top, fine, weight_scale, totals, parts):  # type: ignore[no-untyped-def]
    """Count rows by cell: numbers of rows and sums of offsets (2, 2 cells) int64; with weights, both in two words each
    (4, 2 cells), and offsets in cells of size 1. parts (tiles, 2): the sums of low - q below and of b - high above.
    """
    lanes = cuda.shared.array((2, LANES), float64)
    for tile in range(cuda.blockIdx.x, parts.shape[0], cuda.gridDim.x):
        for lane in range(cuda.threadIdx.x, LANES, cuda.blockDim.x):
            below = above = 0.0
            for i in range(tile * TILE + lane, min((tile + 1) * TILE, scores.shape[0]), LANES):
                s, kind, a = scores[i], kinds[i], weight_of(weights, i)
                if kind == 0:
                    continue
                place, offset = place_of(s, kind, low, scale, bits, top, fine)
                if kind > 0:
                    below += a * max(low - (s - 1.0), 0.0)
                else:
                    above += a * max(s - high, 0.0)
                if weights.shape[0] == 0:
                    cuda.atomic.add(totals, (0, place), np.int64(1))
                    cuda.atomic.add(totals, (1, place), offset)
                else:
                    add_words(totals, 0, place, a, weight_scale)
                    add_words(totals, 2, place, a * (float(offset) / float(np.int64(1) << bits)), weight_scale)
            lanes[0, lane], lanes[1, lane] = below, above
        keep(lanes, 0, 2, parts, tile)


@cuda.jit
def look_up(scores, kinds, weights, low, scale, bits, top, fine, table, out):  # type: ignore[no-untyped-def]
    """Set out[i] to the number at the row's place in the table (2 cells,), times its weight."""
    for i in range(cuda.grid(1), scores.shape[0], cuda.gridsize(1)):
        kind = kinds[i]
        place, _ = place_of(scores[i], kind, low, scale, bits, top, fine)
        out[i] = table[place] * weight_of(weights, i) if kind != 0 else 0.0


@cuda.jit
def logistic(scores, kinds, weights, of_pos, of_neg, out, parts):  # type: ignore[no-untyped-def]
    """Write coefficients, perhaps in place of the scores, and the sums for R and d to parts (tiles, 2)."""
    lanes = cuda.shared.array((2, LANES), float64)
    for tile in range(cuda.blockIdx.x, parts.shape[0], cuda.gridDim.x):
        for lane in range(cuda.threadIdx.x, LANES, cuda.blockDim.x):
            R = d = 0.0
            for i in range(tile * TILE + lane, min((tile + 1) * TILE, scores.shape[0]), LANES):
                s, kind = scores[i], kinds[i]
                a = weight_of(weights, i) * (of_pos if kind > 0 else of_neg) * abs(kind)
                margin, e = kind * s, math.exp(-abs(s))
                log1p, small = math.log1p(e), e / (1.0 + e)  # small: the probability of the less probable label
                R += a * (log1p + max(-margin, 0.0))
                d += a * (log1p + abs(margin) * small)
                out[i] = -a * kind * (small if margin > 0.0 else 1.0 - small)
            lanes[0, lane], lanes[1, lane] = R, d
        keep(lanes, 0, 2, parts, tile)


@cuda.jit(device=True)
def position(score, kind, added):  # type: ignore[no-untyped-def]
    """Return a row's place among those of both classes: s on P, s + a on N."""
    return score + added if kind < 0 else score


@cuda.jit(device=True)
def bucket_of(place, low, high, quarter):  # type: ignore[no-untyped-def]
    """Return the bucket of a place, never falling from low to high; quarter: 1, or 1/4 where differences overflow."""
    return np.int64((quarter * place - quarter * low) / (quarter * high - quarter * low) * (BUCKETS - 1))


@cuda.jit
def ends_of_places(scores, kinds, added, low, high, quarter, bucket, parts):  # type: ignore[no-untyped-def]
    """Write -min and max of the places in [low, high] in a bucket (-1: any), and whether a score is not finite."""
    lanes = cuda.shared.array((3, LANES), float64)
    for tile in range(cuda.blockIdx.x, parts.shape[0], cuda.gridDim.x):
        for lane in range(cuda.threadIdx.x, LANES, cuda.blockDim.x):
            least = most = -math.inf
            bad = 0.0
            for i in range(tile * TILE + lane, min((tile + 1) * TILE, scores.shape[0]), LANES):
                s, kind = scores[i], kinds[i]
                if not math.isfinite(s):
                    bad = 1.0
                elif kind != 0:
                    place = position(s, kind, added)
                    if low <= place <= high and (bucket < 0 or bucket_of(place, low, high, quarter) == bucket):
                        least, most = max(least, -place), max(most, place)
            lanes[0, lane], lanes[1, lane], lanes[2, lane] = least, most, bad
        keep(lanes, 3, 3, parts, tile)


@cuda.jit
def count_places(scores, kinds, weights, added, low, high, quarter, weight_scale, totals):  # type: ignore[no-untyped-def]
    """Add up the weights of the rows with places in [low, high] by bucket, in two words each: totals (2, buckets)."""
    for i in range(cuda.grid(1), scores.shape[0], cuda.gridsize(1)):
        kind = kinds[i]
        place = position(scores[i], kind, added)
        if kind != 0 and low <= place <= high:
            bucket = bucket_of(place, low, high, quarter)
            if weights.shape[0] == 0:
                cuda.atomic.add(totals, (0, bucket), np.int64(1))
            else:
                add_words(totals, 0, bucket, weights[i], weight_scale)


@cuda.jit(device=True)
def hinge_argument(score, kind, added, tau0, delta):  # type: ignore[no-untyped-def]
    """Return u, a row's distance from tau0, and t; see `distsms.losses.prbep`."""
    u = score + added - tau0 if kind < 0 else tau0 - score
    return u, (u - delta if kind < 0 else u + delta)


@cuda.jit(device=True)
def ramp(t, width):  # type: ignore[no-untyped-def]
    """Return clip(t / width, 0, 1), without a quotient that overflows."""
    if t <= 0.0:
        return 0.0
    return 1.0 if t >= width else t / width


@cuda.jit
def balance(scores, kinds, weights, added, tau0, delta, nu, width, parts):  # type: ignore[no-untyped-def]
    """Write the nine sums of a `Balance` of each tile to parts (tiles, 9). width: nu, or a number just above 0."""
    lanes = cuda.shared.array((9, LANES), float64)
    for tile in range(cuda.blockIdx.x, parts.shape[0], cuda.gridDim.x):
        for lane in range(cuda.threadIdx.x, LANES, cuda.blockDim.x):
            for k in range(9):
                lanes[k, lane] = 0.0
            for i in range(tile * TILE + lane, min((tile + 1) * TILE, scores.shape[0]), LANES):
                kind, a = kinds[i], weight_of(weights, i)
                if kind == 0:
                    continue
                u, t = hinge_argument(scores[i], kind, added, tau0, delta)
                beta, first = ramp(t, width), 0 if kind > 0 else 3
                lanes[first, lane] += a * beta
                if abs(t) <= nu:
                    lanes[first + 1, lane] += a
                    lanes[first + 2, lane] += a * beta
                if 0.0 < beta < 1.0:
                    lanes[6, lane] += a
                lanes[7, lane] += a * beta * (t - 0.5 * nu * beta)
                lanes[8, lane] += a * max(u, 0.0)
        keep(lanes, 0, 9, parts, tile)


@cuda.jit
def balanced(scores, kinds, weights, added, tau0, delta, nu, width, corrections, out):  # type: ignore[no-untyped-def]
    """Set out to the coefficients. corrections (2, 3): share, goal and scale of the positive and the negative rows."""
    for i in range(cuda.grid(1), scores.shape[0], cuda.gridsize(1)):
        kind = kinds[i]
        _, t = hinge_argument(scores[i], kind, added, tau0, delta)
        beta = ramp(t, width)
        of_class = 0 if kind > 0 else 1
        share = corrections[of_class, 0] if abs(t) <= nu else 0.0
        value = corrections[of_class, 2] * (beta + share * (corrections[of_class, 1] - beta))
        out[i] = weight_of(weights, i) * value if kind != 0 else 0.0
