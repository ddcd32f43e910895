"""The rows of all ranks that have the same key, wherever they are. No rank needs memory for all n rows.

Each rank owns a range of the keys, which a hash has spread evenly. Every rank sends each of its different keys once to
the owner, with the number of its rows of each class. So the owner knows the sizes of its groups, and its answers go
back the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base import hashing
from distsms.parallel.communicator import Communicator

_BITS = np.uint64(32)


class Groups:
    """The rows of all ranks, grouped by key. Building it is **collective**, and takes O(n_local log n_local) time.

    `keys` are the hashed keys of the groups that this rank owns, which ascend over all ranks; `positive` and `negative`
    are the numbers of all ranks' rows of each class in them, `holders` the number of ranks that have rows of the group,
    and `holder` the last of these ranks, (groups,) each. `local_keys` are the different hashed keys of this rank's
    rows, and `of_row` (n_local,) is the place of each row's group there. 24 bytes are sent for each different key of a
    rank.
    """

    def __init__(self, keys: NDArray[np.uint64], labels: NDArray[np.int8], seed: int, comm: Communicator) -> None:
        """Group the rows by `keys` (n_local,) with `labels` (n_local,). Another `seed` gives another order."""
        self._comm = comm
        self.local_keys, self.of_row = np.unique(hashing.row_keys(keys, seed), return_inverse=True)
        owner = ((self.local_keys >> _BITS) * np.uint64(comm.size)) >> _BITS
        self._sent = np.bincount(owner.astype(np.intp), minlength=comm.size)
        received, self._origin = comm.alltoall_rows(self.local_keys, self._sent)
        self.keys, self._of_received = np.unique(received, return_inverse=True)
        self.positive, self.negative = (self.total((labels * sign > 0).astype(float)) for sign in (1, -1))
        self.positive, self.negative = self.positive.astype(np.int64), self.negative.astype(np.int64)
        self.holders = np.bincount(self._of_received, minlength=len(self.keys))
        self.holder = np.zeros(len(self.keys), np.int64)
        self.holder[self._of_received] = np.repeat(np.arange(comm.size), self._origin)

    def total(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of all ranks' `values` (n_local,) over each group that this rank owns, (groups,). Collective.

        Sums of whole numbers below 2^53 are exact.
        """
        local = np.bincount(self.of_row, values, len(self.local_keys)).astype(float)  # bincount of nothing has integers
        received = self._comm.alltoall_rows(local, self._sent)[0]
        total: NDArray[np.float64] = np.bincount(self._of_received, received, len(self.keys)).astype(float)
        return total

    def to_rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the value of each row's group, (n_local,), from the `values` (groups,) of the groups that a rank owns.

        **Collective.**
        """
        return self._comm.alltoall_rows(values[self._of_received], self._origin)[0][self.of_row]
