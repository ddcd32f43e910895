"""Split the rows of an input into parts, such as training and test rows, by a hash or in the order of time.

The hash is of the row's number, group, or content; a part depends on this, the fractions and the seed alone, and not on
ranks, shards or formats. So does whether a row belongs to a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.hashing import row_keys
from distsms.base.wording import option
from distsms.parallel.order_statistics import select

_STREAM, _SAMPLE_STREAM = 2**63, 3 * 2**61
"""Added to seeds, so that splits, samples, folds and intervals all draw other numbers."""
_ROUNDING = 1e-9


def usual_split(group: str | None, time: str | None) -> str:
    """Return what a split keeps together by default, given the columns of groups and of times (None: no column)."""
    return "groups" if group else "time" if time else "rows"


@dataclass(frozen=True)
class Splitter:
    """How rows are split into parts, by "rows", "groups", "doubles" (equal rows stay together) or "time". Fractions are
    the shares of the parts; if their sum is below 1, the other rows are left out."""

    fractions: tuple[float, ...]
    seed: int = 0
    by: str = "rows"

    def __post_init__(self) -> None:
        total = sum(self.fractions)
        if len(self.fractions) < 2 or not all(fraction > 0 for fraction in self.fractions) or total > 1 + _ROUNDING:
            shown = ",".join(f"{fraction:g}" for fraction in self.fractions)
            remedy = f"give two or more fractions above 0 whose sum is at most 1, as in {option('split', (0.8, 0.2))}"
            raise InputError(f"{option('split', tuple(self.fractions), text=shown)}: {remedy}", everywhere=True)

    @property
    def names(self) -> list[str]:
        n = len(self.fractions)
        return ["train", "test"] if n == 2 else [f"part-{k + 1}" for k in range(n)]

    def parts(self, keys: NDArray[Any], comm: Communicator) -> NDArray[np.intp]:
        """Return the part of each row, (n_local,), from its key; the number of parts if it is left out. **Collective**
        by time: then the keys are times, and the earliest rows are in the first part."""
        if self.by == "time":
            return periods(keys, self._ends, comm)
        return np.searchsorted(self._ends, row_keys(keys, _STREAM + self.seed) / 2.0**64, side="right")

    def record(self, part: int, n: int) -> dict[str, Any]:
        """Return the record of the split for the manifest of a part; `n` is the number of rows of the input."""
        record = {"part": self.names[part], "of": n, "fractions": list(self.fractions), "seed": self.seed}
        return record if self.by == "rows" else record | {"by": self.by}

    @property
    def _ends(self) -> list[float]:
        """The share of all rows at which each part ends; infinite for the last one if nothing is left out."""
        ends = list(accumulate(self.fractions))
        return [*ends[:-1], np.inf if ends[-1] > 1 - _ROUNDING else ends[-1]]


def periods(times: NDArray[Any], ends: Sequence[float], comm: Communicator) -> NDArray[np.intp]:
    """Return the part of each row, (n_local,), from 0, by cutting all ranks' rows in the order of (finite) times after
    given shares, of which infinite ones are ignored. Rows of equal time stay with the first of them. **Collective.**"""
    n = int(comm.sum(np.array([len(times)]))[0])
    counts = [min(int(n * end + _ROUNDING), n) for end in ends if end < np.inf]
    values = np.asarray(times, np.float64)
    # The last time before each cut; there is none before a cut at the very beginning.
    last = [select(values, n - count + 1, comm) if count else -np.inf for count in counts]
    return np.searchsorted(np.array(last), values, side="left")


class Shares(NamedTuple):
    """The share of the positive and of the negative rows that a sample has; 1 takes all of them."""

    positive: float
    negative: float


def in_sample(rows: NDArray[Any], labels: NDArray[np.int8], shares: Shares, seed: int = 0) -> NDArray[np.bool_]:
    """Return which rows (numbers, or keys of groups) with these labels belong to the sample of a seed, (n,). Local."""
    return row_keys(rows, _SAMPLE_STREAM + seed) / 2.0**64 < np.where(labels > 0, shares.positive, shares.negative)
