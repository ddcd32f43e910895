"""The rows of an input dealt out to parts, such as training and test rows, by a hash of each row's number.

So where a row goes depends on its number, the fractions and the seed alone: not on ranks, shards, format or content.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.bootstrap import keys
from distsms.errors import InputError

_STREAM = 2**63
"""Added to seeds: the numbers of folds and intervals are others."""
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Split:
    """fractions : of the rows that each part gets, on average; what is missing to 1 is left out.

    Raises InputError for fractions that are none.
    """

    fractions: tuple[float, ...]
    seed: int = 0

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
        ends = list(accumulate(self.fractions))
        if self._sum > 1 - _ROUNDING:
            ends[-1] = np.inf
        uniform = keys(np.arange(first, first + n), _STREAM + self.seed) / 2.0**64
        return np.searchsorted(ends, uniform, side="right")

    def record(self, part: int, n: int) -> dict[str, Any]:
        """For the manifest of a part.  n : rows of the input."""
        return {"part": self.names[part], "of": n, "fractions": list(self.fractions), "seed": self.seed}

    @property
    def _sum(self) -> float:
        return sum(self.fractions)
