"""Which columns the codes of a row stand for: a row stores a few small numbers, its *codes*; X has many more columns.

In `Categories`, code c of block b stands for the column o_b + c, with the value v_b (1 unless said). `Crosses` also has
columns for pairs of codes. `Strings` stands for k-mers, the words of k letters in a sequence, in parts of length 1:

- *weighted degree*: a column for each position, each k up to K and each k-mer, with the value sqrt(beta_k) / N, beta_k
  = 2 (K - k + 1) / (K (K + 1)), N^2 = sum_k (L - k + 1) beta_k (JMLR, section 5.1; Sonnenburg and Franc, 2010)
- *spectrum*: a column for each k-mer, with the value sqrt(beta_k) m / N_i for m of them in a region of the sequence

A k-mer with an unknown letter counts nothing. Parts have weights, divided by the root of the sum of their squares.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.matrix.base import ColumnStatistics
from distsms.matrix.blocks import Part

ALPHABETS = {"dna": "ACGT", "rna": "ACGU", "protein": "ACDEFGHIKLMNPQRSTVWY"}
HIGHEST_DEGREE = {"dna": 8, "rna": 8, "protein": 4}
UNKNOWN = 255
"""The code of an unknown letter."""
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


class CategoryBlocks(CodeMap):
    """Maps of blocks of categories: code c of block b is below sizes[b], or missing."""

    sizes: tuple[int, ...]

    @property
    @abstractmethod
    def blocks(self) -> Categories:
        """The map of the columns of single codes, which come first."""

    @property
    def n_codes(self) -> int:
        return len(self.sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        largest = max(self.sizes)
        return np.dtype(np.uint8 if largest < 2**8 else np.uint16 if largest < 2**16 else np.uint32)

    def limits(self) -> NDArray[np.int64]:
        return np.array(self.sizes, np.int64)


@dataclass(frozen=True)
class Categories(CategoryBlocks):
    """Blocks of categories: code c of block b stands for one column of the block. Raises ValueError out of range."""

    sizes: tuple[int, ...]  # the number of columns of each block, at least 1
    values: tuple[float, ...] | None = None  # the value of the entries of each block; 1 if there are none

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(map(index, self.sizes)))
        if not 1 <= len(self.sizes) <= LONGEST or not all(1 <= size < 2**32 for size in self.sizes):
            raise ValueError(f"a row needs 1 to {LONGEST} blocks of 1 to 2^32 - 1 categories")
        if self.values is not None:
            object.__setattr__(self, "values", tuple(float(value) for value in self.values))
            if len(self.values) != len(self.sizes) or not all(0 < abs(value) < math.inf for value in self.values):
                raise ValueError("each block of categories needs a value that is finite and not 0")

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

    @property
    def blocks(self) -> Categories:
        return self

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The first column of each block, and p at the end: (n_codes + 1,)."""
        return np.array([0, *accumulate(self.sizes)], np.int64)

    @cached_property
    def factors(self) -> Floats:
        return np.ones(self.n_codes) if self.values is None else np.array(self.values)

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
class Crosses(CategoryBlocks):
    """Blocks of categories, whose columns come first, and crosses of two, with sizes[a] sizes[b] columns each: codes
    c_a and c_b have the value 1 in column c_a sizes[b] + c_b, none if one is missing. Raises ValueError out of range.
    """

    sizes: tuple[int, ...]  # the number of columns of each block, at least 1
    pairs: tuple[tuple[int, int], ...]  # the blocks a < b of each cross; at least one cross, and none twice

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


class Spectrum(NamedTuple):
    """The k-mers, k = 1, ..., degree, that lie wholly at the positions first..last of the window, counted from 1."""

    first: int
    last: int
    degree: int


@dataclass(frozen=True)
class Strings(CodeMap):
    """The k-mers of sequences of one length: the weighted degree, by position, k and number of the k-mer (the first
    letter counts most), then spectra of regions, by k and number. Raises ValueError for numbers out of range.
    """

    alphabet: str  # a code is the place of the letter in `ALPHABETS[alphabet]`, or `UNKNOWN`
    length: int  # the number of letters L that are kept of each sequence: the window
    degree: int = 0  # the weighted degree K; 0 if there is no such part
    spectra: tuple[Spectrum, ...] = ()  # the regions, with positions in the window
    weights: tuple[float, ...] | None = None  # of the weighted degree, if there is one, and each spectrum; 1 by default

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", index(self.length))
        object.__setattr__(self, "degree", index(self.degree))
        object.__setattr__(self, "spectra", tuple(Spectrum(*map(index, spectrum)) for spectrum in self.spectra))
        if self.alphabet not in ALPHABETS:
            raise ValueError(f"unknown alphabet {self.alphabet!r}: {', '.join(ALPHABETS)} are known")
        highest = HIGHEST_DEGREE[self.alphabet]
        if not 1 <= self.length <= LONGEST:
            raise ValueError(f"sequences need 1 to {LONGEST} letters, not {self.length}")
        if not 0 <= self.degree <= highest or not all(1 <= spectrum.degree <= highest for spectrum in self.spectra):
            raise ValueError(f"k-mers of {self.alphabet} can have a degree of 1 to {highest}")
        if not all(1 <= spectrum.first <= spectrum.last <= self.length for spectrum in self.spectra):
            raise ValueError(f"the region of a spectrum must lie within 1:{self.length}")
        n_parts = (self.degree > 0) + len(self.spectra)
        if not n_parts:
            raise ValueError("k-mers need a weighted degree, a spectrum, or both")
        if self.weights is not None:
            object.__setattr__(self, "weights", tuple(float(weight) for weight in self.weights))
            if len(self.weights) != n_parts or not all(0 < weight < math.inf for weight in self.weights):
                raise ValueError("each part of the k-mers needs a weight that is finite and above 0")

    @property
    def letters(self) -> str:
        return ALPHABETS[self.alphabet]

    @property
    def n_codes(self) -> int:
        return self.length

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8)

    @cached_property
    def p(self) -> int:
        return int(self.starts[-1]) + sum(self.block_size(spectrum.degree) for spectrum in self.spectra)

    @cached_property
    def entries(self) -> int:
        places = sum(max(self.length - k + 1, 0) for k in range(1, self.degree + 1))
        for spectrum in self.spectra:
            span = spectrum.last - spectrum.first + 1
            places += sum(min(len(self.letters) ** k, max(span - k + 1, 0)) for k in range(1, spectrum.degree + 1))
        return places

    @property
    def part_rows(self) -> int:
        """Four rows for each of the longest k-mers, but at least 2^16."""
        degree = max([self.degree, *(spectrum.degree for spectrum in self.spectra)])
        return max(2**16, 4 * len(self.letters) ** degree)

    def block_size(self, degree: int) -> int:
        return sum(len(self.letters) ** k for k in range(1, degree + 1))

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first column of each position of the weighted degree, and the first after them: (L + 1,)."""
        sizes = [self.block_size(min(self.degree, self.length - i)) for i in range(self.length)]
        return np.array([0, *accumulate(sizes)], np.int64)

    @cached_property
    def spectrum_starts(self) -> tuple[int, ...]:
        sizes = [self.block_size(spectrum.degree) for spectrum in self.spectra]
        return tuple(accumulate([int(self.starts[-1]), *sizes[:-1]])) if sizes else ()

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """The length of a row in each part: the weighted degree (0 if there is none), and each spectrum."""
        weights = self.weights or (1.0,) * ((self.degree > 0) + len(self.spectra))
        shares = tuple(weight / math.hypot(*weights) for weight in weights)
        return shares if self.degree else (0.0, *shares)

    @cached_property
    def degree_values(self) -> Floats:
        """The value of an entry of the weighted degree for each k, (K,)."""
        beta = betas(self.degree)
        count = np.maximum(self.length - np.arange(self.degree), 0)
        return self.shares[0] * np.sqrt(beta / (count @ beta)) if self.degree else np.empty(0)

    def limits(self) -> NDArray[np.int64]:
        return np.full(self.length, len(self.letters))

    def record(self) -> dict[str, Any]:
        optional = {} if self.weights is None else {"weights": list(self.weights)}
        plain = {name: getattr(self, name) for name in ("alphabet", "length", "degree")}
        return {"map": "strings", **plain, "spectra": [list(spectrum) for spectrum in self.spectra], **optional}

    def column_name(self, j: int) -> str:
        """Return POSITION:KMER for the weighted degree and FIRST-LAST:KMER for a spectrum; positions count from 1."""
        if j < self.starts[-1]:
            i = int(np.searchsorted(self.starts, j, side="right")) - 1
            return f"{i + 1}:{self._kmer(j - int(self.starts[i]))}"
        k = max(k for k, start in enumerate(self.spectrum_starts) if start <= j)
        spectrum = self.spectra[k]
        return f"{spectrum.first}-{spectrum.last}:{self._kmer(j - self.spectrum_starts[k])}"

    def _kmer(self, number: int) -> str:
        """Return the k-mer of a column, from its number among those of k = 1, 2, ..."""
        k, size = 1, len(self.letters)
        while number >= size**k:
            number, k = number - size**k, k + 1
        return "".join(self.letters[number // size**power % size] for power in range(k - 1, -1, -1))


def betas(degree: int) -> Floats:
    """Return the weights beta_k = 2 (K - k + 1) / (K (K + 1)) for k = 1, ..., K; their sum is 1."""
    return 2 * np.arange(degree, 0, -1.0) / (degree * (degree + 1) or 1)


def code_map(record: Mapping[str, Any]) -> CodeMap:
    """Return the map that a record describes. Raises ValueError if the record is damaged."""
    kinds: dict[str, type[CodeMap]] = {"categories": Categories, "crosses": Crosses, "strings": Strings}
    arguments = dict(record)
    try:
        result = kinds[arguments.pop("map")](**arguments)
        whole = result.record()
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"the record of coded columns is damaged: {error}") from error
    if whole != {"map": whole["map"], **arguments}:
        raise ValueError("the record of coded columns is damaged: its numbers are not of the right kind")
    return result


Codes = NDArray[Any]


class Products(ABC):
    """The products of a part's rows with vectors; scales (n_scales, rows) is what `scale` returned for them."""

    n_scales = 0
    """Numbers that are computed once for each row, and given to all other methods."""
    roundings: int
    """The largest number of roundings on the way from a term of a score to the score."""

    def scale(self, part: Part, codes: Codes, out: Floats) -> None:
        raise NotImplementedError  # called only if there are such numbers

    @abstractmethod
    def dot(self, part: Part, codes: Codes, scales: Floats, w: Floats, absolute: bool, out: Floats) -> None:
        """Set out[i] = <x_i, w>, or sum_j |x_ij w_j| with `absolute`."""

    @abstractmethod
    def add(self, part: Part, codes: Codes, scales: Floats, c: Floats, out: Floats) -> None:
        """Add sum_i c_i x_i to out (p,)."""

    @abstractmethod
    def describe(self, part: Part, codes: Codes, scales: Floats, factors: Floats, statistics: ColumnStatistics) -> None:
        """Update what is found about the columns, with the rows multiplied by their factors; see `Features.columns`."""

    @abstractmethod
    def length(self, part: Part, codes: Codes, scales: Floats, out: Floats) -> None:
        """Set out[i] = ||x_i||."""
