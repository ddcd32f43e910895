"""Bootstrap replicates of PRBEP over rows: the same on any number of ranks, and nothing of size n gathered.

In replicate b, row i counts K_bi times, independent Poisson numbers of mean 1: as drawing n rows out of n with
replacement, but for their total. K_bi depends on (seed, b, global row number) alone: the b-th number of SplitMix64
(Steele, Lea & Flood 2014), started at a hash of seed and row, through the inverse of the Poisson distribution. So no
rank needs to know what others drew, and the replicates of two models are paired.

A replicate's PRBEP is decided around its own n+-th place, which is near that of the data: within some sqrt(n+) places.
So one pass over the rows adds up, for each replicate, the counts of all that lies above this window, of all positives
below it, and at each different score in it; one Allreduce per block of replicates adds the ranks' tables. Negatives
below the window are not even drawn. Replicates whose place lies outside are counted again with a wider window.

Cost: B draws for each positive and each row of the window or above, some 5 ns each; 16 B U bytes by Allreduce in all,
U <= 41 + 17 sqrt(n+) different scores in the window; `BLOCK` numbers of memory.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.parallel.communicator import Communicator
from distsms.parallel.order_statistics import select
from distsms.utils.hashing import GOLDEN, _mix, keys
from distsms.utils.jit import njit
from distsms.utils.typing import Floats

BLOCK = 2**20
"""Numbers in the table of a block of replicates; tests lower it."""

MARGIN, SPREAD = 20, 6 * math.sqrt(2)  # places of the window to either side: MARGIN + SPREAD sqrt(n+)


def _poisson() -> NDArray[np.uint64]:
    """P(K <= k) of Poisson(1) in units of 2^-64; the last one is the largest number there is."""
    share = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(18)])
    return np.array([min(int(one * 2.0**64), 2**64 - 1) for one in share] + [2**64 - 1], np.uint64)


UP_TO = _poisson()


def prbep(
    scores: Floats, labels: NDArray[np.int8], rows: NDArray[np.int64], replicates: int, seed: int, comm: Communicator
) -> Floats:
    """(replicates,) values of PRBEP, the same on every rank; NaN where no positive was drawn. Collective.

    scores, labels, rows : (n_local,), rows their global numbers. Ties as in `measures`: the expected value.
    """
    n, n_pos = map(int, comm.sum(np.array([len(scores), np.count_nonzero(labels > 0)])))
    found = np.full(replicates, np.nan)
    if not n_pos:
        return found
    comm.root_first(lambda: _tabulate(np.zeros(0, np.uint64), np.zeros(0, np.int64), *_EMPTY))
    wanted, margin = np.arange(replicates), MARGIN + int(SPREAD * math.sqrt(n_pos))
    while len(wanted):
        window = _window(scores, labels, rows, seed, (max(n_pos - margin, 1), min(n_pos + margin, n)), comm)
        step = max(1, BLOCK // window.columns)
        for block in (wanted[start : start + step] for start in range(0, len(wanted), step)):
            table = np.zeros((len(block), window.columns), np.int64)
            _tabulate(window.keys, window.column, block, table)
            found[block] = _of_tables(comm.sum(table))
        wanted = wanted[np.isinf(found[wanted])]
        margin = 4 * margin + 1
    return found


class _Window(NamedTuple):
    """The rows of this rank that are drawn: where each one's numbers begin, and the column that it is counted in.

    Columns: negatives and positives above the window, then of each different score in it from above, then the
    positives below.
    """

    keys: NDArray[np.uint64]
    column: NDArray[np.int64]
    columns: int


def _window(
    scores: Floats,
    labels: NDArray[np.int8],
    rows: NDArray[np.int64],
    seed: int,
    places: tuple[int, int],
    comm: Communicator,
) -> _Window:
    """The window between two places, counted from 1 for the highest score. Collective."""
    high, low = (select(scores, k, comm) for k in places)
    own = np.unique(scores[(scores >= low) & (scores <= high)])
    values = np.unique(comm.allgather_rows(own, comm.allgather(len(own))))
    positive = labels > 0
    # From above: 0 for what is higher than all values, k + 1 for the k-th highest value, U + 1 for what is below.
    level = len(values) - np.searchsorted(values, scores, "right") + (scores <= high)
    column = 2 * level + positive
    below = scores < low
    column[below] = last = 2 * len(values) + 2
    drawn = positive | ~below
    return _Window(keys(rows[drawn], seed), column[drawn], last + 1)


def _of_tables(table: NDArray[np.int64]) -> Floats:
    """PRBEP of each replicate from its summed table, (B, columns); infinite where its place is not in the window."""
    n_pos = table[:, 1::2].sum(axis=1) + table[:, -1]
    all_rows, positive = table[:, 0:-1:2] + table[:, 1::2], table[:, 1::2]
    up_to = np.cumsum(all_rows, axis=1)
    at = np.argmax(up_to >= n_pos[:, None], axis=1)
    each = np.arange(len(table))
    tied, tied_pos = all_rows[each, at], positive[each, at]
    wanted = n_pos - (up_to[each, at] - tied)
    tp = np.cumsum(positive, axis=1)[each, at] - tied_pos + tied_pos * (wanted / np.maximum(tied, 1))
    outside = (up_to[:, -1] < n_pos) | ((at == 0) & (tied > n_pos))
    with np.errstate(invalid="ignore"):
        return np.where(n_pos == 0, np.nan, np.where(outside, np.inf, tp / n_pos))


@njit()
def _tabulate(keys, column, replicates, table):  # type: ignore[no-untyped-def]
    """Add to table[j, column[i]] how often row i is drawn in the replicate replicates[j]."""
    for j in range(len(replicates)):
        step = np.uint64(replicates[j] + 1) * GOLDEN
        for i in range(len(keys)):
            drawn = _mix(keys[i] + step)
            # Four comparisons without a branch, since what cannot be predicted costs more; the rest is for 1 in 270.
            k = int(drawn > UP_TO[0]) + int(drawn > UP_TO[1]) + int(drawn > UP_TO[2]) + int(drawn > UP_TO[3])
            while drawn > UP_TO[k]:
                k += 1
            table[j, column[i]] += k


_EMPTY = (np.zeros(0, np.int64), np.zeros((0, 1), np.int64))
