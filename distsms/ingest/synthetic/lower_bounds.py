"""The data sets on which cutting planes are slow (JMLR, sections 2.2 and 2.3; lambda = 1), with their known solutions.

e_i is the unit vector of column i, counted from 1 as in the paper; e_1 occurs only in w_0. The paper's formulas were
derived again and are correct except for one sign: R of section 2.3 must contain <w, x_1 - x_i>, which is also what the
paper's following formulas for u_i use. The paper does not say what min J is for PRBEP. By convexity and symmetry, it is
the minimum of 1/2 ||w||^2 + max(0, 1 + <a, w>), where a is the mean of the n - 1 subgradients and ||a||^2 =
1 + 1/(2 (n - 1)) > 1. So it is 1/(2 ||a||^2), attained at w* = -a / ||a||^2.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.base.errors import InputError
from distsms.base.typing import Floats
from distsms.shards.coded_columns import NOT_CODED

_C = sqrt(2) / 4


class _LowerBound:
    """The base class of both constructions, a `write.RowSource`. Row 1 is the only positive row."""

    measure: str
    least: int  # the smallest size
    x_1: float  # the factor of e_2 in the row x_1
    row_bytes, coded = 33.0, NOT_CODED
    block_rows = 2**16

    def __init__(self, size: int, rows: int) -> None:
        if size < self.least:
            raise InputError(f"--n {size}: this construction needs an n of at least {self.least}")
        self.size, self.n, self.p = size, rows, size + 2

    def block(self, number: int) -> tuple[sparse.csr_matrix, NDArray[np.int8]]:
        first = number * self.block_rows
        i = np.arange(first + 1, min(self.n, first + self.block_rows) + 1)  # the paper's i, from 1
        columns, values = self._negatives(i)
        entries = np.full(len(i), columns.shape[1])
        if number == 0:
            entries[0], columns[0, 0], values[0, 0] = 1, 2, self.x_1
        stored = np.arange(columns.shape[1]) < entries[:, None]
        indptr = np.concatenate(([0], np.cumsum(entries)))
        X = sparse.csr_matrix((values[stored], columns[stored] - 1, indptr), shape=(len(i), self.p))
        return X, np.where(i == 1, 1, -1).astype(np.int8)

    def _negatives(self, i: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
        """Return the columns, from 1 and ascending, and the values of the rows x_i, i >= 2, each (rows, entries)."""
        raise NotImplementedError

    def _start(self, *entries: float) -> Floats:
        """Return w_0 (p,), which has these entries in its first columns."""
        return np.append(entries, np.zeros(self.p - len(entries)))


class PrbepLowerBound(_LowerBound):
    """Section 2.2: n rows, x_1 = c n e_2 and x_i = -c n e_3 - c n e_{i+2}, with c = sqrt(2)/4."""

    measure, least = "prbep", 2

    def __init__(self, size: int, epsilon: Fraction | None = None) -> None:
        """Construct the data for n = `size` >= 2, chosen for `epsilon`, by default 1/(n - 1), the smallest."""
        super().__init__(size, rows=size)
        self.epsilon, self.x_1 = epsilon or Fraction(1, size - 1), _C * size
        norm = 1 + 1 / (2 * (size - 1))  # ||a||^2
        self.w_0 = self._start(1.0, 2 * _C, 2 * _C)
        self.J_0 = 1.0
        self.minimum = 1 / (2 * norm)
        self.steps = floor(1 / (5 * self.epsilon))

    @staticmethod
    def of(epsilon: float) -> PrbepLowerBound:
        """Return the construction for an epsilon: n = ceil(1/epsilon) + 1."""
        exact = _exact(epsilon)
        return PrbepLowerBound(ceil(1 / exact) + 1, exact)

    def _negatives(self, i: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
        return np.column_stack((np.full_like(i, 3), i + 2)), np.full((len(i), 2), -_C * self.size)


class RocAreaLowerBound(_LowerBound):
    """Section 2.3: n negatives and n + 1 rows, x_1 = sqrt(n) e_2 and x_i = -n e_{i+1}."""

    measure, least = "rocarea", 1

    def __init__(self, size: int, epsilon: Fraction | None = None) -> None:
        """Construct the data for n = `size` >= 1, chosen for `epsilon`, by default 1/n."""
        super().__init__(size, rows=size + 1)
        self.epsilon, self.x_1 = epsilon or Fraction(1, size), sqrt(size)
        self.w_0 = self._start(1.0, 1 / sqrt(size))
        self.J_0 = (1 + 1 / size) / 2
        self.minimum = 1 / (4 * size)
        self.steps = floor(2 / (3 * self.epsilon))

    @staticmethod
    def of(epsilon: float) -> RocAreaLowerBound:
        """Return the construction for an epsilon: n = floor(1/epsilon)."""
        exact = _exact(epsilon)
        return RocAreaLowerBound(floor(1 / exact), exact)

    def _negatives(self, i: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
        return (i + 1)[:, None], np.full((len(i), 1), -float(self.size))


LOWER_BOUNDS: dict[str, type[PrbepLowerBound] | type[RocAreaLowerBound]] = {
    "prbep-lower-bound": PrbepLowerBound,
    "rocarea-lower-bound": RocAreaLowerBound,
}


def _exact(epsilon: float) -> Fraction:
    """Return epsilon as the exact decimal number that was written, so that the ceiling of 1/epsilon is right."""
    if not 1e-9 <= epsilon <= 1:
        raise InputError(f"--epsilon {epsilon:g}: must be from 1e-9 to 1")
    return Fraction(repr(float(epsilon)))
