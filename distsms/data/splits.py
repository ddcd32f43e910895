"""The rows of an input dealt out to parts, such as training and test rows: by a hash, or in the order of time.

The hash is of the row's number, of its group, or of its content, so that doubles stay together. Where a row goes
depends on that, the fractions and the seed alone: not on ranks, shards or format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError
from distsms.parallel.communicator import Communicator
from distsms.parallel.order_statistics import select
from distsms.utils.hashing import row_keys

_STREAM = 2**63
"""Added to seeds: the numbers of folds and intervals are others."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Split:
    """fractions : of the rows that each part gets, on average; what is missing to 1 is left out.  by : see `BY`.

    Raises InputError for fractions that are none.
    """

    fractions: tuple[float, ...]
    seed: int = 0
    by: str = "rows"

    def __post_init__(self) -> None:
        if len(self.fractions) < 2 or not all(one > 0 for one in self.fractions) or self._sum > 1 + _ROUNDING:
            shown = ",".join(f"{one:g}" for one in self.fractions)
            raise InputError(
                f"--split {shown}: give two or more fractions above 0 whose sum is at most 1, as in --split 0.8,0.2",
                everywhere=True,
            )

    @property
    def names(self) -> list[str]:
        """Of the parts, which are the names of their directories."""
        n = len(self.fractions)
        return ["train", "test"] if n == 2 else [f"part-{k + 1}" for k in range(n)]

    def assign(self, first: int, n: int) -> NDArray[np.intp]:
        """(n,): the part, from 0, of each of the rows first, first + 1, ... of the input; one more: left out."""
        return self.by_hash(np.arange(first, first + n))

    def by_hash(self, marks: NDArray[Any]) -> NDArray[np.intp]:
        """(n,): the part of each row, from the number of the row, or of what it belongs to, (n,). Local."""
        return np.searchsorted(self._ends, row_keys(marks, _STREAM + self.seed) / 2.0**64, side="right")

    def in_time(self, times: NDArray[Any], comm: Communicator) -> NDArray[np.intp]:
        """(n_local,): the part of each row, the earliest rows in the first one. Collective."""
        return periods(times, self._ends, comm)

    def record(self, part: int, n: int) -> dict[str, Any]:
        """For the manifest of a part.  n : rows of the input."""
        told = {"part": self.names[part], "of": n, "fractions": list(self.fractions), "seed": self.seed}
        return told if self.by == "rows" else told | {"by": self.by}

    @property
    def _ends(self) -> list[float]:
        """Where each part ends, of all rows; infinite if nothing is left out."""
        ends = list(accumulate(self.fractions))
        return [*ends[:-1], np.inf if self._sum > 1 - _ROUNDING else ends[-1]]

    @property
    def _sum(self) -> float:
        return sum(self.fractions)


def periods(times: NDArray[Any], ends: Sequence[float], comm: Communicator) -> NDArray[np.intp]:
    """(n_local,): rows in the order of time, cut after these shares of them; which part each is in, from 0. Collective.

    times : (n_local,) finite. Equal ones stay together, in the part where the first of them falls.
    """
    n = int(comm.sum(np.array([len(times)]))[0])
    places = [min(int(n * end + _ROUNDING), n) for end in ends if end < np.inf]
    values = np.asarray(times, np.float64)
    # The last time of each part; a place of 0 has none.
    last = [select(values, n - place + 1, comm) if place else -np.inf for place in places]
    return np.searchsorted(np.array(last), values, side="left")
