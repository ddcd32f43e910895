"""Bootstrap replicates of PRBEP, and of precision and recall at K, over rows. No rank gathers all rows.

In replicate b, row i counts K_bi times, Poisson numbers of mean 1 from SplitMix64 (Steele, Lea & Flood 2014), which
starts at a hash of seed and the row's global number: so replicates are the same on any number of ranks, and those of
two models are paired. The place of a replicate, n+ or K, is within about its square root of that of the data. So one
pass counts the rows above a window around it, the positives below, and the rows at each score in it, 16 bytes for each
replicate and score; a replicate whose place is beyond is repeated with a wider window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.hashing import GOLDEN, _mix, row_keys
from distsms.base.jit import is_compiled, njit
from distsms.base.scored import Scored
from distsms.base.typing import Floats, Hashes
from distsms.metrics.ranking import score_at
from distsms.metrics.row_weights import masses

BLOCK = 2**20
"""Number of entries in the table of a block of replicates; tests lower it."""
FEW = 2**22
"""Up to so many rows times replicates are drawn by NumPy, if the loop would have to be compiled."""

MARGIN, SPREAD = 20, 6 * math.sqrt(2)  # the window extends MARGIN + SPREAD sqrt(n+) places in both directions

_SHARES = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(18)])
UP_TO = np.array([min(int(share * 2.0**64), 2**64 - 1) for share in _SHARES] + [2**64 - 1], np.uint64)
"""P(K <= k), k = 0, 1, ..., of a Poisson number K of mean 1, in units of 2^-64, and 2^64 - 1 at the end."""
TINY = float(np.finfo(float).tiny)


class Draws(NamedTuple):
    """How often this rank's rows are drawn."""

    rows: NDArray[np.int64]  # (n_local,): the rows' global numbers
    replicates: int
    seed: int = 0


def prbep_replicates(scored: Scored, draws: Draws) -> Floats:
    """Return replicates of PRBEP (replicates,); NaN without positives. **Collective.**"""
    tp, n_pos = _replicates(scored, draws, None)
    with np.errstate(invalid="ignore"):
        return tp / n_pos


def top_k_replicates(scored: Scored, draws: Draws, k: int) -> tuple[Floats, Floats]:
    """Compute replicates of precision@k and recall@k, as `prbep_replicates`; NaN below k rows. **Collective.**"""
    tp, n_pos = _replicates(scored, draws, k)
    with np.errstate(invalid="ignore"):
        return tp / k, tp / n_pos


def _replicates(scored: Scored, draws: Draws, k: int | None) -> tuple[Floats, Floats]:
    """Return each replicate's true positives among its k (or n+) highest scores, and its positives. **Collective.**"""
    labels, weights, comm = scored.labels, scored.weights, scored.comm
    n, n_pos = masses((labels == labels, labels > 0), weights, comm).tolist()
    values, positives = np.full(draws.replicates, np.nan), np.zeros(draws.replicates)
    place = n_pos if k is None else k
    if not 0 < place <= n:
        return values, positives
    missing = np.arange(draws.replicates)
    # How far the window around the place extends to both sides.
    margin: float = MARGIN + int(SPREAD * math.sqrt(place))
    if weights is not None:
        above = scored.scores >= score_at(scored, place)
        squares = masses((above, labels > 0), weights * weights, comm).sum()
        largest = float(comm.maximum(np.array([weights.max(initial=0.0)]))[0])
        margin = MARGIN * largest + SPREAD / math.sqrt(2) * math.sqrt(squares)
    while len(missing):
        places = max(place - margin, 1 if weights is None else TINY), min(place + margin, n)
        window = _window(scored, draws, places)
        for block, table in tables(window, missing, comm):
            values[block], positives[block] = _of_tables(table, k, places[1] == n)
        missing = missing[np.isinf(values[missing])]
        if margin >= n:  # the window held all rows, but a score that is NaN is in none
            values[missing] = np.nan
            break
        margin = 4 * margin + 1
    return values, positives


class DrawnRows(NamedTuple):
    """This rank's rows that are drawn: where each one's random numbers start, and its column in the tables."""

    keys: Hashes
    column: NDArray[np.int64]
    columns: int
    weights: Floats | None  # of these rows


def tables(
    rows: DrawnRows, replicates: NDArray[np.int64], comm: Communicator
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Yield replicates, some at a time, with the table (replicates, columns) of all ranks' rows. **Collective.**"""
    step = max(1, BLOCK // rows.columns)
    for block in (replicates[start : start + step] for start in range(0, len(replicates), step)):
        table = np.zeros((len(block), rows.columns), np.int64 if rows.weights is None else np.float64)
        tabulate(rows.keys, rows.column, block, table, rows.weights)
        yield block, comm.sum(table)


def _window(scored: Scored, draws: Draws, places: tuple[float, float]) -> DrawnRows:
    """Return the rows down to the window between two places, and all positives: columns for negatives and positives
    above it, two for each score in it from the highest, and one for positives below. **Collective.**"""
    scores, comm, positive = scored.scores, scored.comm, scored.labels > 0
    high, low = (score_at(scored, place) for place in places)
    different = np.unique(scores[(scores >= low) & (scores <= high)])
    values = np.unique(comm.allgather_rows(different, comm.allgather(len(different))))
    # Levels from above: 0 for scores higher than all values, k + 1 for the k-th highest value, U + 1 for scores below.
    level = len(values) - np.searchsorted(values, scores, "right") + (scores <= high)
    column = 2 * level + positive
    below = scores < low
    column[below] = last = 2 * len(values) + 2
    drawn = positive | ~below
    return DrawnRows(row_keys(draws.rows[drawn], draws.seed), column[drawn], last + 1, scored.weights_of(drawn))


def _of_tables(table: NDArray[Any], k: int | None, whole: bool) -> tuple[Floats, Floats]:
    """Return the true positives at the place of each replicate, infinite outside the window and NaN without a positive
    row, and its positive rows, from the tables (B, columns). `whole`: the window reaches down to the last row."""
    n_pos = table[:, 1::2].sum(axis=1) + table[:, -1]
    all_rows, positive = table[:, 0:-1:2] + table[:, 1::2], table[:, 1::2]
    up_to = np.cumsum(all_rows, axis=1)
    place = n_pos if k is None else np.full(len(table), k)
    if whole:
        place = np.minimum(place, up_to[:, -1])
    at = np.argmax(up_to >= place[:, None], axis=1)
    each = np.arange(len(table))
    tied, tied_pos = all_rows[each, at], positive[each, at]
    of_tied = place - (up_to[each, at] - tied)
    tp = np.cumsum(positive, axis=1)[each, at] - tied_pos + tied_pos * (of_tied / np.where(tied > 0, tied, 1))
    outside = (up_to[:, -1] < place) | ((at == 0) & (tied > place))
    nothing = (n_pos == 0) if k is None else np.zeros(len(table), bool)
    return np.where(nothing, np.nan, np.where(outside, np.inf, tp)), n_pos.astype(float)


def tabulate(
    keys: Hashes, column: NDArray[np.int64], replicates: NDArray[np.int64], table: NDArray[Any], weights: Floats | None
) -> None:
    """Add to table[j, column[i]], which is 0 before, how often row i is drawn in the replicate replicates[j], times its
    weight if it has one. Local."""
    if len(keys) * len(replicates) > FEW or is_compiled(_tabulate, (keys, column, replicates, table, weights)):
        _tabulate(keys, column, replicates, table, weights)
        return
    for row, step in zip(table, (replicates + 1).astype(np.uint64) * GOLDEN, strict=True):
        times = np.searchsorted(UP_TO, _mix.py_func(keys + step))
        row += np.bincount(column, times if weights is None else times * weights, len(row)).astype(row.dtype)


@njit()
def _tabulate(keys, column, replicates, table, weights):  # type: ignore[no-untyped-def]
    """Do what `tabulate` does; NumPy takes ten times as long, but is not compiled."""
    for j in range(len(replicates)):
        step = np.uint64(replicates[j] + 1) * GOLDEN
        for i in range(len(keys)):
            drawn = _mix(keys[i] + step)
            # Four comparisons without a branch are faster than mispredicted branches. One draw in 270 needs the loop.
            k = int(drawn > UP_TO[0]) + int(drawn > UP_TO[1]) + int(drawn > UP_TO[2]) + int(drawn > UP_TO[3])
            while drawn > UP_TO[k]:
                k += 1
            if weights is None:
                table[j, column[i]] += k
            else:
                table[j, column[i]] += k * weights[i]
