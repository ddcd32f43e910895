"""Code maps of categories, of bins and of their crosses; `distsms.matrix.code_maps` says what a code map is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats

LONGEST = 2**20
"""Sequences and rows with more codes than this are refused; so sums of small numbers stay far below 2^63."""
ROWS_FOR_EACH_CODE = 8
"""Rows for each code of a block, with which fetching its table costs little beside looking up the codes of the rows."""
MOST_COLUMNS = 2**40
"""The most columns that crosses may have."""


class CodeMap(ABC):
    """What codes mean. Maps are equal if their records are."""

    @property
    @abstractmethod
    def n_codes(self) -> int:
        """The number of codes that a row stores."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """uint8, uint16 or uint32: the type of the codes. Its largest number means that the code is missing."""

    @property
    @abstractmethod
    def p(self) -> int:
        """The number of columns."""

    @property
    @abstractmethod
    def entries(self) -> int:
        """The largest number of nonzeros that a row can have."""

    @property
    def part_rows(self) -> int:
        """The number of rows of a part that suits the products: large enough that making tables does not count."""
        return 2**16

    @abstractmethod
    def limits(self) -> NDArray[np.int64]:
        """Return for each code the number that it must stay below unless it is missing, (n_codes,)."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return a description that can be written as JSON; `code_map` reads it."""

    @abstractmethod
    def column_name(self, j: int) -> str:
        """Return a name of column j, 0 <= j < p."""


@dataclass(frozen=True)
class Categories(CodeMap):
    """Blocks of categories: code c of block b stands for one column of the block. Raises ValueError out of range."""

    sizes: tuple[int, ...]  # the number of columns of each block, at least 1
    values: tuple[float, ...] | None = None  # the value of the entries of each block; 1 if there are none

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(map(index, self.sizes)))
        if self.values is not None:
            object.__setattr__(self, "values", tuple(float(value) for value in self.values))
        if not 1 <= len(self.sizes) <= LONGEST or not all(1 <= size < 2**32 for size in self.sizes):
            raise ValueError(f"a row needs 1 to {LONGEST} blocks of 1 to 2^32 - 1 categories")
        if self.values is not None and (
            len(self.values) != len(self.sizes) or not all(0 < abs(v) < math.inf for v in self.values)
        ):
            raise ValueError("each block of categories needs a value that is finite and not 0")

    @property
    def n_codes(self) -> int:
        return len(self.sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        largest = max(self.sizes)
        return np.dtype(np.uint8 if largest < 2**8 else np.uint16 if largest < 2**16 else np.uint32)

    @cached_property
    def p(self) -> int:
        return sum(self.sizes)

    @property
    def entries(self) -> int:
        return len(self.sizes)

    @property
    def part_rows(self) -> int:
        """2^16, or more if blocks have thousands of codes: a pass over a part fetches all their tables."""
        return max(super().part_rows, ROWS_FOR_EACH_CODE * (self.p // self.n_codes))

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The first column of each block, and p at the end: (n_codes + 1,)."""
        return np.array([0, *accumulate(self.sizes)], np.int64)

    @cached_property
    def factors(self) -> Floats:
        return np.ones(self.n_codes) if self.values is None else np.array(self.values)

    def limits(self) -> NDArray[np.int64]:
        return np.array(self.sizes, np.int64)

    def record(self) -> dict[str, Any]:
        optional = {} if self.values is None else {"values": list(self.values)}
        return {"map": "categories", "sizes": list(self.sizes), **optional}

    def place(self, j: int) -> tuple[int, int]:
        """Return the block and the code that column j stands for."""
        b = int(np.searchsorted(self.offsets, j, side="right")) - 1
        return b, j - int(self.offsets[b])

    def column_name(self, j: int) -> str:
        block, code = self.place(j)
        return f"{block}={code}"


@dataclass(frozen=True)
class Crosses(CodeMap):
    """Blocks of categories, whose columns come first, and crosses of two, with sizes[a] sizes[b] columns each: codes
    c_a and c_b have the value 1 in column c_a sizes[b] + c_b, none if one is missing. Raises ValueError for numbers out
    of range.
    """

    sizes: tuple[int, ...]  # the number of columns of each block, at least 1
    # the blocks a < b of each cross, counted from 0; at least one cross, and none twice
    pairs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        blocks = Categories(self.sizes)
        object.__setattr__(self, "sizes", blocks.sizes)
        object.__setattr__(self, "pairs", tuple((index(a), index(b)) for a, b in self.pairs))
        if not self.pairs or not all(0 <= a < b < blocks.n_codes for a, b in self.pairs):
            raise ValueError("crosses need pairs of different blocks, the smaller number first")
        if len(set(self.pairs)) < len(self.pairs):
            raise ValueError("a pair of blocks is crossed twice")
        if max(self.sizes[a] * self.sizes[b] for a, b in self.pairs) >= 2**32 or self.p > MOST_COLUMNS:
            raise ValueError(f"a cross can have up to 2^32 - 1 columns, and all of them {MOST_COLUMNS}")

    @cached_property
    def blocks(self) -> Categories:
        return Categories(self.sizes)

    @property
    def n_codes(self) -> int:
        return len(self.sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.blocks.dtype

    @cached_property
    def p(self) -> int:
        return self.blocks.p + sum(self.sizes[a] * self.sizes[b] for a, b in self.pairs)

    @property
    def entries(self) -> int:
        return len(self.sizes) + len(self.pairs)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The first column of each cross, and p at the end: (crosses + 1,)."""
        sizes = (self.sizes[a] * self.sizes[b] for a, b in self.pairs)
        return np.array([*accumulate(sizes, initial=self.blocks.p)], np.int64)

    def limits(self) -> NDArray[np.int64]:
        return self.blocks.limits()

    def record(self) -> dict[str, Any]:
        return {"map": "crosses", "sizes": list(self.sizes), "pairs": [list(pair) for pair in self.pairs]}

    def place(self, j: int) -> tuple[tuple[int, int], ...]:
        """Return the block and the code that column j stands for, or both blocks and codes of a cross."""
        if j < self.blocks.p:
            return (self.blocks.place(j),)
        k = int(np.searchsorted(self.offsets, j, side="right")) - 1
        a, b = self.pairs[k]
        first, second = divmod(j - int(self.offsets[k]), self.sizes[b])
        return (a, first), (b, second)

    def column_name(self, j: int) -> str:
        return " & ".join(f"{block}={code}" for block, code in self.place(j))
