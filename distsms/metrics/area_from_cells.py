"""ROCArea without sending a class to all ranks: rows are counted by score into cells, and ROCArea is enclosed.

Pairs from different cells are in a known order, and those of a single score are ties; the others make the interval, of
which the middle is returned: they count as ties, too. The edges are quantiles of a sample; if pairs in cells are more
than `WIDTH` of all, the worst cells are divided. Each count sums 32 bytes for each cell over ranks; 100 bytes of memory
for each. A row's share of ordered pairs is wrong by half the share of the other class in its cell, and the standard
deviation that DeLong's error needs by at most the root mean square of that.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats, Labels

CELLS, WIDTH = 2**18, 1e-5
DIVISIONS = 3  # so often cells are divided
SORTED = 2**20  # rows that are sorted at a time


class Cells(NamedTuple):
    """What all ranks' rows have in each cell; the first row of an array is that of the negative rows."""

    edges: Floats  # one less than cells: one cell is below the first edge, and one begins at each edge
    mass: Floats  # (2, cells): the number of rows, or the sum of their weights
    low: Floats  # (cells,): the lowest and the highest score; low > high in an empty cell
    high: Floats


def enclosed_area(scores: Floats, labels: Labels, weights: Floats | None, comm: Communicator) -> float:
    """Return a number that differs from ROCArea by at most half of `WIDTH`; NaN if there is none. **Collective.**"""
    if (cells := _narrow_cells(scores, labels, weights, comm)) is None:
        return math.nan
    negative, positive = cells.mass / cells.mass.sum(axis=1, keepdims=True)
    return float(positive @ (np.cumsum(negative) - negative / 2))


def enclosed_placements(
    scores: Floats, labels: Labels, weights: Floats | None, comm: Communicator
) -> NDArray[Any] | None:
    """Return `ranking.placements` as if rows of a cell were ties; None where `enclosed_area` is NaN. **Collective.**"""
    if (cells := _narrow_cells(scores, labels, weights, comm)) is None:
        return None
    negative, positive = cells.mass if weights is not None else cells.mass.astype(np.int64)
    of_positive, of_negative = 2 * np.cumsum(negative) - negative, 2 * np.cumsum(positive[::-1])[::-1] - positive
    twice = np.empty(len(scores), of_positive.dtype)
    for start in range(0, len(scores), SORTED):
        block = slice(start, start + SORTED)
        cell = np.searchsorted(cells.edges, scores[block], "right")
        twice[block] = np.where(labels[block] > 0, of_positive[cell], of_negative[cell])
    return twice


def _narrow_cells(scores: Floats, labels: Labels, weights: Floats | None, comm: Communicator) -> Cells | None:
    """Return cells with at most `WIDTH` of all pairs in unknown order; None if there are none. **Collective.**"""
    n, undefined = comm.sum(np.array([len(scores), np.count_nonzero(np.isnan(scores))])).tolist()
    if undefined:
        return None
    some = scores[:: -(-n // CELLS)]
    sample, times = np.unique(comm.allgather_rows(some, comm.allgather(len(some))), return_counts=True)
    edges = np.union1d(sample, np.nextafter(sample[times > 1], np.inf))  # a score that many rows have is a cell
    for _ in range(DIVISIONS + 1):
        cells = _count(scores, labels, weights, edges, comm)
        negative, positive = cells.mass / cells.mass.sum(axis=1, keepdims=True)
        unknown = negative * positive * (cells.low < cells.high)
        if np.sum(unknown) <= WIDTH:
            return cells
        worst = np.argsort(-unknown, kind="stable")[: CELLS // 16]
        low, high = cells.low[worst], cells.high[worst]
        with np.errstate(over="ignore", invalid="ignore"):
            inside = low + (high - low) * np.linspace(0, 1, 17)[:-1, None]
        more = np.concatenate([inside.ravel(), np.nextafter(low, np.inf), high])
        edges = np.union1d(edges, more[np.isfinite(more)])
    return None


def _count(scores: Floats, labels: Labels, weights: Floats | None, edges: Floats, comm: Communicator) -> Cells:
    """Count all ranks' rows in the cells between these edges. **Collective.**"""
    mass, ends = np.zeros((2, len(edges) + 1)), np.full((2, len(edges) + 1), -np.inf)
    for start in range(0, len(scores), SORTED):
        block = slice(start, start + SORTED)
        for of_class, rows in zip(mass, (labels[block] < 0, labels[block] > 0), strict=True):
            x = scores[block][rows]
            if weights is None:
                x.sort()
            else:
                order = np.argsort(x)
                x, reach = x[order], np.append(0.0, np.cumsum(weights[block][rows][order]))
            at = np.concatenate([[0], np.searchsorted(x, edges), [len(x)]])
            of_class += np.diff(at if weights is None else reach[at])
            present = at[:-1] < at[1:]
            first, last = x[at[:-1][present]], x[at[1:][present] - 1]
            ends[:, present] = np.maximum(ends[:, present], [-first, last])
    low, high = comm.maximum(ends.ravel()).reshape(ends.shape)
    return Cells(edges, comm.sum(mass.ravel()).reshape(mass.shape), -low, high)
