"""Sums over pairs (`distsms.losses.pairwise`) where every rank sorts all q, and pairs them with its own rows b of the
other class. With k values q, a rank receives 16 k bytes, with weights 24 k; O(k log P + n/P) time, 240 k bytes of
memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats
from distsms.losses.pairwise import PairSums, SortedClass
from distsms.losses.sorting import LEAST, radix_sort, sort_with_rows


class WholeClass:
    """The sorted class on every rank: call `tabulate`, `add_points` and `total`, then `write`. Construction is
    **collective**. `rows` (m,) are this rank's rows of the class, kept in the order of the last values `q` (m,), which
    are to be set before `tabulate`.
    """

    def __init__(self, rows: NDArray[Any], weights: Floats | None, comm: Communicator) -> None:
        self._weights, self.comm, counts = weights, comm, comm.allgather(len(rows))
        self.rows, self._counts, self._run = rows, [count + 1 for count in counts], np.empty(len(rows) + 1)
        self.q = self._run[1:]
        if max(self._counts) > LEAST:
            radix_sort(np.empty(0), rows[:0])  # compile it, or load it, before the first evaluation
        self._table = SortedClass(sum(counts), weights is not None)

    @property
    def sums(self) -> PairSums:
        """The sums over the pairs with the points that this rank has added so far."""
        return self._table.sums

    def tabulate(self, finite: bool, nu: float) -> bool:
        """Sort all ranks' values, forget all points; return whether all ranks' margins are finite. **Collective.**"""
        self.rows = sort_with_rows(self.q, self.rows)
        # Each rank adds one number that says whether all its margins are finite. If so, the number is -inf, which comes
        # first after sorting; if not, it is NaN, which comes last.
        self._run[0] = -np.inf if finite else np.nan
        q, weights = self.comm.allgather_rows(self._run, self._counts), None
        if self._weights is None:
            q.sort(kind="stable")  # a single rank has its run itself here, which is sorted already
        else:
            weights = self.comm.allgather_rows(np.append(0.0, self._weights[self.rows]), self._counts)
            order = np.argsort(q, kind="stable")
            q, weights = q[order], weights[order][self.comm.size :]
        if not q[-1] < np.inf:
            return False
        self._table.tabulate(q[self.comm.size :], nu, weights)
        return True

    def add_points(
        self, scores: Floats, rows: NDArray[Any], sign: float, offset: float, factor: float, out: Floats
    ) -> None:
        """Add the points of some of this rank's rows; see `SortedClass.add_points`. Local."""
        self._table.add_points(scores, rows, sign, offset, factor, out, self._weights)

    def gamma(self) -> Floats:
        """Return gamma of each different q over this rank's points; see `SortedClass.gamma`. Local."""
        return self._table.gamma()

    def total(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Return gamma of each different q, ascending, and `numbers`, both summed over ranks. **Collective.**"""
        total = self.comm.sum(np.concatenate([self.gamma(), numbers]))
        gamma, numbers = np.split(total, [len(total) - len(numbers)])
        return gamma, numbers

    def write(self, gamma: Floats, factor: float, out: Floats) -> None:
        """Set out[row] to factor times gamma (and the weight) of each of this rank's rows of the class. Local."""
        self._table.write_gamma(gamma, self.q, self.rows, factor, out, self._weights)
