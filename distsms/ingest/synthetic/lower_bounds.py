"""The data sets on which cutting planes are slow (JMLR, sections 2.2 and 2.3; lambda = 1), with their known solutions.

e_i is the unit vector of column i, counted from 1 as in the paper; e_1 occurs only in w_0. The paper's formulas were
derived again and are correct except for one sign: R of section 2.3 must contain <w, x_1 - x_i>, which is also what the
paper's following formulas for u_i use. The paper does not say what min J is for PRBEP. By convexity and symmetry, it is
the minimum of 1/2 ||w||^2 + max(0, 1 + <a, w>), where a is the mean of the n - 1 subgradients and ||a||^2 =
1 + 1/(2 (n - 1)) > 1. So it is 1/(2 ||a||^2), attained at w* = -a / ||a||^2.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.base.errors import InputError
from distsms.shards.coded_columns import NOT_CODED

_C = sqrt(2) / 4


class LowerBound:
    """The base class of both constructions, a `write.RowSource`. Row 1 is the only positive row."""

    measure: str
    least: int  # the smallest size, which has one negative row
    rounded: Callable[[Fraction], int]  # the number of negative rows for 1/epsilon
    share: Fraction  # of 1/epsilon: how many steps are needed
    columns: tuple[int, ...]  # that all negative rows x_i have; their last column is i + `shift`
    shift: int
    x_1: float  # the values of the rows x_1 (in column 2) and x_i
    x_i: float
    J_0: float  # at w_0
    minimum: float
    row_bytes, coded, block_rows = 33.0, NOT_CODED, 2**16

    def __init__(self, size: int, epsilon: Fraction | None = None) -> None:
        """Construct the data for n = `size`, chosen for `epsilon`, by default the smallest."""
        if size < self.least:
            raise InputError(f"--n {size}: this construction needs an n of at least {self.least}")
        negatives = size + 1 - self.least
        self.size, self.n, self.p = size, negatives + 1, size + 2
        self.epsilon = epsilon or Fraction(1, negatives)
        self.steps, self.w_0 = floor(self.share / self.epsilon), np.zeros(self.p)

    @classmethod
    def of(cls, epsilon: float) -> LowerBound:
        """Return the construction for an epsilon."""
        if not 1e-9 <= epsilon <= 1:
            raise InputError(f"--epsilon {epsilon:g}: must be from 1e-9 to 1")
        exact = Fraction(repr(float(epsilon)))  # as it was written, so that the ceiling of 1/epsilon is right
        return cls(cls.rounded(1 / exact) + cls.least - 1, exact)

    def block(self, number: int) -> tuple[sparse.csr_matrix, NDArray[np.int8]]:
        first, less = number * self.block_rows, len(self.columns)
        i = np.arange(first + 1, min(self.n, first + self.block_rows) + 1)  # the paper's i, from 1
        columns = np.column_stack([*(np.full_like(i, column) for column in self.columns), i + self.shift]).ravel()
        values, indptr = np.full(len(columns), self.x_i), np.arange(len(i) + 1) * (less + 1)
        if number == 0:  # x_1 has one entry
            columns, values = columns[less:], values[less:]
            columns[0], values[0] = 2, self.x_1
            indptr[1:] -= less
        X = sparse.csr_matrix((values, columns - 1, indptr), shape=(len(i), self.p))
        return X, np.where(i == 1, 1, -1).astype(np.int8)


class PrbepLowerBound(LowerBound):
    """Section 2.2: n rows, x_1 = c n e_2 and x_i = -c n e_3 - c n e_{i+2}, with c = sqrt(2)/4."""

    measure, least = "prbep", 2
    rounded, share = staticmethod(ceil), Fraction(1, 5)
    columns, shift = (3,), 2

    def __init__(self, size: int, epsilon: Fraction | None = None) -> None:
        super().__init__(size, epsilon)
        self.x_1, self.x_i = _C * size, -_C * size
        self.w_0[:3] = 1.0, 2 * _C, 2 * _C
        self.J_0 = 1.0
        self.minimum = 1 / (2 * (1 + 1 / (2 * (size - 1))))  # 1 / (2 ||a||^2)


class RocAreaLowerBound(LowerBound):
    """Section 2.3: n negatives and n + 1 rows, x_1 = sqrt(n) e_2 and x_i = -n e_{i+1}."""

    measure, least = "rocarea", 1
    rounded, share = staticmethod(floor), Fraction(2, 3)
    columns, shift = (), 1

    def __init__(self, size: int, epsilon: Fraction | None = None) -> None:
        super().__init__(size, epsilon)
        self.x_1, self.x_i = sqrt(size), -float(size)
        self.w_0[:2] = 1.0, 1 / sqrt(size)
        self.J_0 = (1 + 1 / size) / 2
        self.minimum = 1 / (4 * size)


LOWER_BOUNDS: dict[str, type[LowerBound]] = {
    "prbep-lower-bound": PrbepLowerBound,
    "rocarea-lower-bound": RocAreaLowerBound,
}
