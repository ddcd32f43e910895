"""Find the rows of all ranks that have the same key, wherever they are. No rank needs memory for all n rows.

Each rank owns a range of the keys, which a hash has spread evenly. Every rank sends each of its different keys once to
the owner, with the number of its rows of each class. So the owner knows the sizes of its groups, and its answers go
back the same way.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.data import duplicates
from distsms.data.row_metadata import Hashes, RowMetadata, format_time
from distsms.data.shards.manifest import Manifest
from distsms.errors import InputError
from distsms.parallel.communicator import Communicator
from distsms.utils import hashing
from distsms.utils.typing import Floats

AT_ONCE = 2**21
"""The number of rows of a rank that are counted in one round. Each takes some 100 bytes during the round."""

Counts = NDArray[np.int64]
_BITS = np.uint64(32)


class Groups:
    """The rows of all ranks, grouped by key. Building it is collective.

    Attributes
    ----------
    keys : (groups,) uint64
        The hashed keys of the groups that this rank owns; they ascend over all ranks.
    positive, negative : (groups,) int64
        The numbers of rows of each class in these groups, over all ranks.

    Notes
    -----
    O(n_local log n_local) time; 24 bytes are sent for each different key of a rank.
    """

    def __init__(self, keys: Hashes, labels: NDArray[np.int8], seed: int, comm: Communicator) -> None:
        """Group the rows by `keys` (n_local,) with `labels` (n_local,). Another `seed` gives another order."""
        self._comm = comm
        own, self._of_row = np.unique(hashing.row_keys(keys, seed), return_inverse=True)
        owner = ((own >> _BITS) * np.uint64(comm.size)) >> _BITS
        sent = np.bincount(owner.astype(np.intp), minlength=comm.size)
        received, self._origin = comm.alltoall_rows(own, sent)
        self.keys, self._of_received = np.unique(received, return_inverse=True)
        positive = np.bincount(self._of_row[labels > 0], minlength=len(own))
        negative = np.bincount(self._of_row[labels < 0], minlength=len(own))
        self.positive, self.negative = (self._summed(comm.alltoall_rows(n, sent)[0]) for n in (positive, negative))

    def _summed(self, received: Counts) -> Counts:
        total = np.zeros(len(self.keys), np.int64)
        np.add.at(total, self._of_received, received)
        return total

    def to_rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the value of each row's group, (n_local,), from the `values` (groups,) of the groups that a rank owns.

        **Collective.**
        """
        return self._comm.alltoall_rows(values[self._of_received], self._origin)[0][self._of_row]


class GroupCounts(NamedTuple):
    """How many rows of all ranks have a key in common with another row."""

    groups: int  # different keys
    shared: int  # rows in groups of two or more
    largest: int  # rows in the largest group
    mixed: int  # rows in groups that hold both classes


def count_groups(keys: Hashes, labels: NDArray[np.int8], comm: Communicator) -> GroupCounts:
    """Count the rows that share their key (n_local,) with others.

    **Collective.** Counts AT_ONCE rows of each rank in a round.
    """
    rounds = max(1, int(comm.maximum(np.array([-(-len(keys) // AT_ONCE)]))[0]))
    sums, largest = np.zeros(3, np.int64), np.zeros(1, np.int64)
    round_of = hashing.row_keys(keys, 1) % np.uint64(rounds)
    for k in range(rounds):
        chosen = round_of == k
        found = Groups(keys[chosen], labels[chosen], 0, comm)
        sizes = found.positive + found.negative
        both = (found.positive > 0) & (found.negative > 0)
        sums += np.array([len(sizes), sizes[sizes > 1].sum(), sizes[both].sum()])
        largest[0] = max(largest[0], sizes.max(initial=0))
    n_groups, shared, mixed = comm.sum(sums).tolist()
    return GroupCounts(n_groups, shared, int(comm.maximum(largest)[0]), mixed)


def group_statistics(
    hashes: Hashes,
    labels: NDArray[np.int8],
    metadata: RowMetadata,
    names: tuple[str | None, str | None, str | None],
    comm: Communicator,
) -> dict[str, dict[str, Any]]:
    """Return what the manifest says about equal rows, groups and times. **Collective.**

    Parameters
    ----------
    hashes : (n_local,) uint64
        From `duplicates.hash_rows`.
    labels : (n_local,) int8
        +1 and -1.
    metadata : RowMetadata
        Groups, times and weights of the local rows.
    names : tuple of str or None
        The columns of groups, of times and of weights; None if there is none.

    Returns
    -------
    dict
        The manifest's records "doubles", "group", "time" and "weight", the latter three if rows have such things.

    Raises
    ------
    InputError
        On every rank, if some times are numbers and others are dates.
    """
    equal, (group, time, weight) = count_groups(hashes, labels, comm), names
    doubles = {
        "different": equal.groups,
        "rows": equal.shared,
        "largest": equal.largest,
        "contradicting": equal.mixed,
    }
    found: dict[str, dict[str, Any]] = {"doubles": doubles}
    if group is not None:
        counted = count_groups(np.empty(0, np.uint64) if metadata.groups is None else metadata.groups, labels, comm)
        found["group"] = {"column": group, "groups": counted.groups, "largest": counted.largest}
    if time is not None:
        times = np.empty(0) if metadata.times is None else metadata.times
        ends = comm.maximum(np.array([np.max(-times, initial=-np.inf), np.max(times, initial=-np.inf)]))
        kinds = sorted(set().union(*comm.allgather(metadata.kinds)))
        if len(kinds) > 1:
            raise InputError(
                f"column {time!r} holds both {' and '.join(kinds)}; times must be all numbers or all dates",
                everywhere=True,
            )
        found["time"] = {"column": time, "kind": kinds[0], "first": float(-ends[0]), "last": float(ends[1])}
    if weight is not None:
        found["weight"] = {"column": weight, **_weight_statistics(labels, metadata.weights, comm)}
    return found


def _weight_statistics(labels: NDArray[np.int8], weights: Floats | None, comm: Communicator) -> dict[str, float]:
    """Return the sum of the weights of each class, the largest, and the effective sample size. Collective.

    They are rounded to 12 digits, so that they do not depend on the number of ranks.
    """
    weights = np.empty(0) if weights is None else weights
    largest = float(comm.maximum(np.array([weights.max(initial=0.0)]))[0])
    parts = weights / (largest or 1.0)  # whose squares neither overflow nor vanish
    sums = [math.fsum(parts[labels > 0]), math.fsum(parts[labels < 0]), math.fsum(parts * parts)]
    positive, negative, squares = (math.fsum(part) for part in zip(*comm.allgather(sums), strict=True))
    effective = (positive + negative) ** 2 / squares if squares else 0.0
    found = {"positive": positive * largest, "negative": negative * largest, "largest": largest, "effective": effective}
    return {name: float(f"{value:.12g}") for name, value in found.items()}


def doubles_warning(manifest: Manifest, by: str | None = None) -> str:
    """Return the warning of `duplicates.warning` for a data set; `by` says how it is divided into folds, if it is."""
    return duplicates.warning(manifest.doubles, manifest.n, by or (manifest.split or {}).get("by"))


def describe(manifest: Manifest) -> dict[str, str]:
    """Return lines for people on the groups, times, weights and equal rows of a data set, as far as they are known."""
    lines, n = {}, manifest.n
    if group := manifest.group:
        lines["group"] = f"{group['column']}: {group['groups']} groups, the largest of {group['largest']} rows"
    if time := manifest.time:
        first, last = (format_time(time[end], time["kind"]) for end in ("first", "last"))
        lines["time"] = f"{time['column']}: {first} to {last}"
    if weight := manifest.weight:
        total = weight["positive"] + weight["negative"]
        lines["weight"] = (
            f"{weight['column']}: sum {total:.9g}, of the positive rows {weight['positive']:.9g}, "
            f"largest {weight['largest']:.6g}; they say as much as {weight['effective']:.6g} rows of equal weight "
            "(the effective sample size)"
        )
    if manifest.doubles:
        lines["repeated"] = duplicates.describe(manifest.doubles, n)
        lines |= {"warning": found} if (found := doubles_warning(manifest)) else {}
    return lines
