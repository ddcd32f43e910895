"""Rows of all ranks that have a key in common, whichever ranks hold them: nothing of size n on any rank.

Each rank owns a range of the keys, after a hash has spread them evenly. It is sent the different keys of every rank,
each once, with the number of that rank's rows of each class; so it knows the sizes of its groups, and what it has to
say of them goes the same way back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.data import duplicates
from distsms.data.row_metadata import Beside, Hashes, time_in_words
from distsms.data.shards.manifest import Manifest
from distsms.errors import InputError
from distsms.parallel.communicator import Communicator
from distsms.utils import hashing

AT_ONCE = 2**21
"""Rows of a rank that are counted in one round; each takes some 100 bytes in it."""

Counts = NDArray[np.int64]
_BITS = np.uint64(32)


class Groups:
    """The rows by their keys. Building it is collective; O(n_local log n_local) time, 24 bytes sent for each key.

    keys, positive, negative : of the groups that this rank owns, (groups,): their hashed keys, which ascend over all
    ranks, and their rows of each class.
    """

    def __init__(self, keys: Hashes, labels: NDArray[np.int8], seed: int, comm: Communicator) -> None:
        """keys, labels : (n_local,).  seed : another one puts the groups into another order."""
        self._comm = comm
        own, self._of_row = np.unique(hashing.row_keys(keys, seed), return_inverse=True)
        owner = ((own >> _BITS) * np.uint64(comm.size)) >> _BITS
        sent = np.bincount(owner.astype(np.intp), minlength=comm.size)
        received, self._origin = comm.alltoall_rows(own, sent)
        self.keys, self._of_received = np.unique(received, return_inverse=True)
        positive = np.bincount(self._of_row[labels > 0], minlength=len(own))
        negative = np.bincount(self._of_row[labels < 0], minlength=len(own))
        self.positive, self.negative = (self._added(comm.alltoall_rows(one, sent)[0]) for one in (positive, negative))

    def _added(self, received: Counts) -> Counts:
        total = np.zeros(len(self.keys), np.int64)
        np.add.at(total, self._of_received, received)
        return total

    def to_rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """(n_local,): for each row what its group's owner says of the group, (groups,). Collective."""
        return self._comm.alltoall_rows(values[self._of_received], self._origin)[0][self._of_row]


class Census(NamedTuple):
    """How many rows of all ranks have a key in common with another one."""

    groups: int  # different keys
    shared: int  # rows that are not alone
    largest: int  # rows of the largest group
    mixed: int  # rows of groups that hold both classes


def census(keys: Hashes, labels: NDArray[np.int8], comm: Communicator) -> Census:
    """Count (n_local,) keys. Collective; in rounds of some AT_ONCE rows of each rank."""
    rounds = max(1, int(comm.maximum(np.array([-(-len(keys) // AT_ONCE)]))[0]))
    sums, largest = np.zeros(3, np.int64), np.zeros(1, np.int64)
    turn = hashing.row_keys(keys, 1) % np.uint64(rounds)
    for k in range(rounds):
        some = turn == k
        found = Groups(keys[some], labels[some], 0, comm)
        sizes = found.positive + found.negative
        both = (found.positive > 0) & (found.negative > 0)
        sums += np.array([len(sizes), sizes[sizes > 1].sum(), sizes[both].sum()])
        largest[0] = max(largest[0], sizes.max(initial=0))
    n_groups, shared, mixed = comm.sum(sums).tolist()
    return Census(n_groups, shared, int(comm.maximum(largest)[0]), mixed)


def known(
    hashes: Hashes, labels: NDArray[np.int8], beside: Beside, names: tuple[str | None, str | None], comm: Communicator
) -> dict[str, dict[str, Any]]:
    """What a manifest says of doubles, groups and times, from this rank's rows. Collective.

    hashes, labels : (n_local,), see `doubles.hashes`.  names : of the columns of groups and times, None for none.
    """
    equal, (group, time) = census(hashes, labels, comm), names
    found: dict[str, dict[str, Any]] = {
        "doubles": {
            "different": equal.groups,
            "rows": equal.shared,
            "largest": equal.largest,
            "contradicting": equal.mixed,
        }
    }
    if group is not None:
        counted = census(np.empty(0, np.uint64) if beside.groups is None else beside.groups, labels, comm)
        found["group"] = {"column": group, "groups": counted.groups, "largest": counted.largest}
    if time is not None:
        times = np.empty(0) if beside.times is None else beside.times
        ends = comm.maximum(np.array([np.max(-times, initial=-np.inf), np.max(times, initial=-np.inf)]))
        kinds = sorted(set().union(*comm.allgather(beside.kinds)))
        if len(kinds) > 1:
            raise InputError(f"column {time!r} holds {' and '.join(kinds)}: times must be of one kind", everywhere=True)
        found["time"] = {"column": time, "kind": kinds[0], "first": float(-ends[0]), "last": float(ends[1])}
    return found


def in_words(manifest: Manifest) -> dict[str, str]:
    """What a data set says of rows that belong together, for people: of group, time, doubles, as far as known."""
    told, n = {}, manifest.n
    if group := manifest.group:
        told["group"] = f"{group['column']}: {group['groups']} groups, the largest of {group['largest']} rows"
    if time := manifest.time:
        first, last = (time_in_words(time[end], time["kind"]) for end in ("first", "last"))
        told["time"] = f"{time['column']}: {first} to {last}"
    if manifest.doubles:
        told["doubles"] = duplicates.in_words(manifest.doubles, n)
        told |= {"warning": found} if (found := duplicates.warning(manifest.doubles, n)) else {}
    return told
