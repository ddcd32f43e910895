"""The edges of bins: quantiles of columns over all ranks, exact in float32. docs/reference/features.md says which these
are, and docs/theory/features.md how all ranks find their bits. Where h values have bins of their own, the other rows,
of weight W, are divided at the smallest values up to which they weigh more than k W / (B - 2 h); without such values,
this is `np.sort(x)[k * n // B]`. As many columns at a time are divided as fit into memory, with a pass for each group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats
from distsms.features.attributes import Attribute
from distsms.features.rows import Columns, Rows
from distsms.shards.row_metadata import some

Singles = NDArray[np.float32]
Keys = NDArray[np.uint32]

BYTES = 2**29
"""The memory of a rank for the values of the columns that it divides at a time."""
VALUE_BYTES = 32
"""Bytes for each value while it is sorted: as it was read, with its weight, and sorted."""
_ABOVE = 2**32
"""A number above all keys."""


class _Sorted(NamedTuple):
    """This rank's values of a column: their keys, ascending and different, and the weights up to each, from 0."""

    keys: Keys
    sums: Floats  # (keys + 1,)

    def up_to(self, keys: NDArray[np.int64]) -> Floats:
        """Return the weight of the values up to each key, which may be -1."""
        places = np.searchsorted(self.keys, np.maximum(keys, 0).astype(np.uint32), side="right")
        return self.sums[places * (keys >= 0)]


def edges_of(
    passes: Callable[[], Iterable[Rows]],
    numbers: Sequence[Attribute],
    n_bins: int,
    n_local: int,
    comm: Communicator,
    n_bytes: int = BYTES,
) -> list[Singles]:
    """Return the edges between the bins of each number, at most `n_bins`, ascending. **Collective.** `passes` returns
    this rank's `n_local` rows, part by part; values take about `n_bytes`."""
    most = int(comm.maximum(np.array([n_local]))[0])
    step = max(1, n_bytes // (VALUE_BYTES * max(1, most)))
    edges = list[Singles]()
    for first in range(0, len(numbers), step):
        with comm.fail_together():
            values = _collect(passes(), numbers[first : first + step])
        edges += [_singles(keys) for keys in _divide(values, n_bins, comm)]
    return edges


def _collect(parts: Iterable[Rows], numbers: Sequence[Attribute]) -> list[_Sorted]:
    collected: list[list[tuple[Keys, Floats]]] = [[] for _ in numbers]
    for part in parts:
        part = part.counted()
        columns = Columns(part.X)
        for pieces, number in zip(collected, numbers, strict=True):
            keys, weights = _keys(columns.values(number.columns[0])), part.weights
            if number.missing is not None:
                there = ~columns.is_set(number.missing)
                keys, weights = keys[there], some(weights, there)
            pieces.append(_added_up(keys, weights))
    values = list[_Sorted]()
    for pieces in collected:
        keys = np.concatenate([np.empty(0, np.uint32), *(piece for piece, _ in pieces)])
        weights = np.concatenate([np.empty(0), *(piece for _, piece in pieces)])
        pieces.clear()
        keys, weights = _added_up(keys, weights)
        values.append(_Sorted(keys, np.concatenate([[0.0], np.cumsum(weights)])))
    return values


def _added_up(keys: Keys, weights: Floats | None) -> tuple[Keys, Floats]:
    """Return the different keys, ascending, and the weight of each."""
    if weights is None:
        different, counts = np.unique(keys, return_counts=True)
        return different, counts.astype(float)
    different, which = np.unique(keys, return_inverse=True)
    return different, np.bincount(which, weights, len(different)).astype(float)


def _divide(values: Sequence[_Sorted], n_bins: int, comm: Communicator) -> list[NDArray[np.int64]]:
    """Return the edges of the bins of columns. Collective."""
    few = comm.allgather([column.keys if len(column.keys) <= n_bins else None for column in values])
    edges: list[NDArray[np.int64] | None] = []
    for of_ranks in zip(*few, strict=True):
        union = None if any(keys is None for keys in of_ranks) else np.unique(np.concatenate(of_ranks)).astype(np.int64)
        edges.append(union[1:] if union is not None and len(union) <= n_bins else None)
    many = [column for column, keys in zip(values, edges, strict=True) if keys is None]
    quantiles = iter(_quantiles(many, n_bins, comm))
    return [next(quantiles) if keys is None else keys for keys in edges]


def _quantiles(values: Sequence[_Sorted], n_bins: int, comm: Communicator) -> list[NDArray[np.int64]]:
    """Return the edges of columns with more than n_bins values. Collective."""
    if not values:
        return []
    wholes = comm.sum(np.array([column.sums[-1] for column in values]))
    # Sums of whole numbers are exact; other sums differ by far less than `slack` if ranks add in another order.
    inexact = comm.maximum(np.array([1.0 * any((column.sums % 1).any() for column in values)]))[0]
    slack = 1 + 1e-9 * float(inexact)
    candidates = _select(values, slack * wholes[:, None] * np.arange(1, n_bins) / n_bins, comm)
    weights = comm.sum(
        np.array([column.up_to(keys) - column.up_to(keys - 1) for column, keys in zip(values, candidates, strict=True)])
    )
    are_heavy = weights > slack * 2 * wholes[:, None] / n_bins
    heavy = [np.unique(keys[which]) for keys, which in zip(candidates, are_heavy, strict=True)]
    lighter = [k for k, keys in enumerate(heavy) if len(keys)]
    rest = [_without(values[k], heavy[k]) for k in lighter]
    targets = np.full((len(rest), n_bins - 1), np.inf)
    totals = comm.sum(np.array([column.sums[-1] for column in rest]))
    for row, k, total in zip(targets, lighter, totals, strict=True):
        bins = n_bins - 2 * len(heavy[k])
        row[: max(0, bins - 1)] = slack * total * np.arange(1, bins) / bins
    for k, row, keys in zip(lighter, targets, _select(rest, targets, comm), strict=True):
        candidates[k] = keys[: np.count_nonzero(np.isfinite(row))]
    # The smallest value, and the next one after each heavy value.
    after = [np.concatenate([[-1], keys]) for keys in heavy]
    ends = np.full((len(values), n_bins), _ABOVE, np.int64)
    for row, column, keys in zip(ends, values, after, strict=True):
        places = np.searchsorted(column.keys, keys, side="right")
        row[: len(keys)] = np.append(column.keys.astype(np.int64), _ABOVE)[places]
    ends = -comm.maximum(-ends)
    return [
        np.setdiff1d(np.concatenate([keys, heavy_keys, row[1:]]), [row[0], _ABOVE])
        for keys, heavy_keys, row in zip(candidates, heavy, ends, strict=True)
    ]


def _without(values: _Sorted, keys: NDArray[np.int64]) -> _Sorted:
    there = ~np.isin(values.keys, keys)
    return _Sorted(values.keys[there], np.concatenate([[0.0], np.cumsum(np.diff(values.sums)[there])]))


def _select(values: Sequence[_Sorted], targets: Floats, comm: Communicator) -> list[NDArray[np.int64]]:
    """Return the smallest key up to which values weigh more than each target, or the largest. Collective."""
    keys = np.zeros(targets.shape, np.int64)
    if not targets.size:
        return list(keys)
    for bit in range(31, -1, -1):
        tried = keys + (2**bit - 1)  # the largest key that continues the bits so far with a 0
        weights = np.array([column.up_to(of_column) for column, of_column in zip(values, tried, strict=True)])
        keys[comm.sum(weights) <= targets] += 2**bit
    return list(keys)


def _keys(values: Singles) -> Keys:
    bits = values.view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(2**31))


def _singles(keys: NDArray[np.int64]) -> Singles:
    bits = keys.astype(np.uint32)
    return np.where(bits >> 31, bits & np.uint32(2**31 - 1), ~bits).view(np.float32)
