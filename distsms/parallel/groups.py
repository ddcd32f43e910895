"""The rows of all ranks that have the same key, wherever they are. No rank needs memory for all n rows.

Each rank owns a range of the keys, which a hash has spread evenly; every rank sends each of its keys once to the owner,
with its rows of each class, and answers go back the same way. `WholeGroups` brings the rows of each group with both
classes together. A *small* group is handled whole on one rank: that of all its rows, or the owner of its key, to which
rows travel. A *large* group has more rows than half of a rank's share (and than `LEAST`); all ranks share it.

Cost on each rank: O(n_local log n_local) time and about 150 bytes for each row at first; then 8, or 24, bytes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base import hashing
from distsms.base.communicator import Communicator
from distsms.base.typing import Floats, Hashes, Labels

_BITS = np.uint64(32)
Masks = NDArray[np.bool_]

LEAST = 4096
"""Groups of at most this many rows are never large: messages would cost more than the work on one rank."""


class Groups:
    """The rows of all ranks, grouped by key. Building it is **collective**, and sends 24 bytes for each key of a rank.

    `keys` are the hashed keys that this rank owns, ascending over all ranks; `positive` and `negative` the rows of each
    class in all ranks; `holders` the number of ranks that have some, and `holder` the last of these (groups,).
    `local_keys` are those of this rank's rows, and `of_row` (n_local,) the place of each row's there.
    """

    def __init__(self, keys: NDArray[np.uint64], labels: NDArray[np.int8], seed: int, comm: Communicator) -> None:
        self._comm = comm
        self.local_keys, self.of_row = np.unique(hashing.row_keys(keys, seed), return_inverse=True)
        owner = ((self.local_keys >> _BITS) * np.uint64(comm.size)) >> _BITS
        self._sent = np.bincount(owner.astype(np.intp), minlength=comm.size)
        received, self._origin = comm.alltoall_rows(self.local_keys, self._sent)
        self.keys, self._of_received = np.unique(received, return_inverse=True)
        of_classes = (self.total((labels * sign > 0).astype(float)) for sign in (1, -1))
        self.positive, self.negative = (total.astype(np.int64) for total in of_classes)
        self.holders = np.bincount(self._of_received, minlength=len(self.keys))
        self.holder = np.zeros(len(self.keys), np.int64)
        self.holder[self._of_received] = np.repeat(np.arange(comm.size), self._origin)

    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums of all ranks' `values` (n_local,) over this rank's groups, exact if whole. **Collective.**"""
        local = np.bincount(self.of_row, values, len(self.local_keys)).astype(float)  # bincount of nothing has integers
        received = self._comm.alltoall_rows(local, self._sent)[0]
        total: NDArray[np.float64] = np.bincount(self._of_received, received, len(self.keys)).astype(float)
        return total

    def to_rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the value of each row's group, (n_local,), from those of the groups that ranks own. **Collective.**"""
        return self._comm.alltoall_rows(values[self._of_received], self._origin)[0][self.of_row]


class LargeGroup(NamedTuple):
    """A group on which all ranks work together."""

    rows: NDArray[np.intp]  # (m,): this rank's rows of the group
    positive: float  # the sums of the weights of each class over all ranks
    negative: float


class WholeGroups:
    """The rows of groups with both classes. Building it is **collective**.

    `rows` are those of the small groups of this rank, as places in what `extend` returns, group by group, positives
    first; `edges` (2 groups + 1,) says where the rows of each class begin. `positive` and `negative` (groups,) are sums
    of weights, `large` the large groups, alike on every rank, `count` the number of groups, `pairs` their sum of
    products of weights. `weights` are scaled by a power of two, so that the largest sum is near 1.
    """

    def __init__(
        self, keys: Hashes, positive: Masks, negative: Masks, weights: Floats | None, comm: Communicator
    ) -> None:
        self._comm = comm
        kept = np.flatnonzero(positive | negative)
        signs = positive[kept].astype(np.int8) - negative[kept]
        groups = Groups(keys[kept], signs, 0, comm)
        masses = [groups.positive.astype(float), groups.negative.astype(float)]
        both = (groups.positive > 0) & (groups.negative > 0)
        if weights is not None:
            masses = [groups.total(weights[kept] * (signs * sign > 0)) for sign in (1, -1)]
            heaviest = float(comm.maximum(np.array([max(np.max(mass[both], initial=0.0) for mass in masses)]))[0])
            exponent, needed = -math.frexp(heaviest)[1], np.zeros(len(keys), bool)
            needed[kept] = groups.to_rows(both)
            weights = np.ldexp(np.where(needed, weights, 0.0), exponent)
            masses = [np.ldexp(np.where(both, mass, 0.0), exponent) for mass in masses]
        numbers = np.array([np.count_nonzero(both), np.sum((masses[0] * masses[1])[both]), len(kept)])
        count, self.pairs, n = comm.sum(numbers).tolist()
        self.count = int(count)
        is_large = both & (groups.positive + groups.negative > max(n / (2 * comm.size), LEAST))
        place = np.where(groups.holders == 1, groups.holder, comm.rank)
        place[~both | is_large] = -1
        place = groups.to_rows(place)
        self.large = _large(groups, kept, is_large, masses, comm)
        self._n_local = len(keys)
        self._plan(kept, keys, signs, place, weights)

    def _plan(
        self, kept: NDArray[np.intp], keys: Hashes, signs: Labels, place: NDArray[np.int64], weights: Floats | None
    ) -> None:
        """Decide which of the `kept` rows go to what `place` (-1: none), and order this rank's. **Collective.**"""
        comm = self._comm
        leaving = np.flatnonzero((place >= 0) & (place != comm.rank))
        leaving = leaving[np.argsort(place[leaving], kind="stable")]
        self._leaving, self._sent = kept[leaving], np.bincount(place[leaving], minlength=comm.size)
        self._travels = bool(comm.maximum(np.array([len(leaving)]))[0])
        staying = place == comm.rank
        rows, held_keys, held_signs = kept[staying], keys[kept[staying]], signs[staying]
        self._origin = self._sent
        if self._travels:
            arrived, self._origin = comm.alltoall_rows(keys[self._leaving], self._sent)
            held_keys = np.concatenate([held_keys, arrived])
            held_signs = np.concatenate([held_signs, comm.alltoall_rows(signs[leaving], self._sent)[0]])
            rows = np.concatenate([rows, self._n_local + np.arange(len(arrived))])
        # Groups are numbered in the order of their first rows, so that neighbouring rows are read together.
        _, first, group = np.unique(held_keys, return_index=True, return_inverse=True)
        number = np.empty(len(first), np.intp)
        number[np.argsort(first)] = np.arange(len(first))
        part = 2 * number[group] + (held_signs < 0)
        self.rows = rows[np.argsort(part, kind="stable")]
        self.edges = np.concatenate([[0], np.cumsum(np.bincount(part, minlength=2 * len(first)))])
        self.weights = None if weights is None else self.extend(weights)
        row_weights = np.ones(len(rows)) if self.weights is None else self.weights[rows]
        masses = np.bincount(part, row_weights, 2 * len(first)).astype(float)  # bincount of nothing has integers
        self.positive, self.negative = masses[::2].copy(), masses[1::2].copy()

    @property
    def extended(self) -> int:
        """The length of what `extend` returns: that of this rank's rows and of those that come from other ranks."""
        return self._n_local + int(self._origin.sum()) * self._travels

    def extend(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of this rank's rows, (n_local,), then of those that came, if any. **Collective.**"""
        if not self._travels:
            return values
        return np.concatenate([values, self._comm.alltoall_rows(values[self._leaving], self._sent)[0]])

    def bring_back(self, extended: NDArray[Any]) -> NDArray[Any]:
        """Return the values of this rank's rows from those in `extend`'s order, overwritten. **Collective.**"""
        if not self._travels:
            return extended
        back = self._comm.alltoall_rows(extended[self._n_local :], self._origin)[0]
        local = extended[: self._n_local]
        local[self._leaving] = back
        return local


def _large(
    groups: Groups, kept: NDArray[np.intp], is_large: Masks, masses: list[Floats], comm: Communicator
) -> list[LargeGroup]:
    """Return the large groups among `kept` rows; is_large, masses : of this rank's groups. **Collective.**"""
    of_rank = groups.keys[is_large], masses[0][is_large], masses[1][is_large]
    keys, positive, negative = (np.concatenate(parts) for parts in zip(*comm.allgather(of_rank), strict=True))
    if not len(keys):
        return []
    # Keys ascend over ranks. The number of the large group of each local key, or len(keys) for other keys:
    number = np.minimum(np.searchsorted(keys, groups.local_keys), len(keys) - 1)
    number = np.where(keys[number] == groups.local_keys, number, len(keys))[groups.of_row]
    order = np.argsort(number, kind="stable")
    ends = np.searchsorted(number[order], np.arange(len(keys) + 1))
    return [
        LargeGroup(kept[order[ends[k] : ends[k + 1]]], float(positive[k]), float(negative[k])) for k in range(len(keys))
    ]
