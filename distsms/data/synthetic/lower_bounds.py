"""The data on which cutting planes are slow (JMLR, sections 2.2 and 2.3; lambda = 1), with all that is known of them.

e_i counts columns from 1, as the paper does; e_1 occurs in w_0 alone. Checked against their derivation, the paper's
formulas hold but for one sign: R of section 2.3 needs <w, x_1 - x_i>, the u_i that it goes on with. What the paper
leaves open is min J for PRBEP: by convexity and symmetry it is that of 1/2 ||w||^2 + max(0, 1 + <a, w>) with a the mean
of the n - 1 subgradients, ||a||^2 = 1 + 1/(2 (n - 1)) > 1, hence 1/(2 ||a||^2) at w* = -a / ||a||^2.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.errors import InputError
from distsms.utils.typing import Floats

_C = sqrt(2) / 4


class _LowerBound:
    """What both constructions share: row 1 is the only positive one, and blocks as `synthesis.Source` wants them."""

    measure: str
    row_bytes = 33.0
    block_rows = 2**16

    def __init__(self, size: int, rows: int, epsilon: Fraction) -> None:
        self.size, self.n, self.p, self.epsilon = size, rows, size + 2, epsilon

    def block(self, number: int) -> tuple[sparse.csr_matrix, NDArray[np.int8]]:
        """X (rows, p) CSR and y of a block. Local."""
        first = number * self.block_rows
        i = np.arange(first + 1, min(self.n, first + self.block_rows) + 1)  # the paper's i, from 1
        columns, values = self._negatives(i)
        entries = np.full(len(i), columns.shape[1])
        if number == 0:
            entries[0], columns[0, 0], values[0, 0] = 1, 2, self._x_1
        stored = np.arange(columns.shape[1]) < entries[:, None]
        indptr = np.concatenate(([0], np.cumsum(entries)))
        X = sparse.csr_matrix((values[stored], columns[stored] - 1, indptr), shape=(len(i), self.p))
        return X, np.where(i == 1, 1, -1).astype(np.int8)

    @property
    def _x_1(self) -> float:
        """x_1 as a multiple of e_2."""
        raise NotImplementedError

    def _negatives(self, i: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
        """Columns, from 1 and ascending, and values of the rows x_i, i >= 2, each (rows, entries)."""
        raise NotImplementedError

    def _vector(self, entries: dict[int, float], first: int = 1, count: int = 0, value: float = 0.0) -> Floats:
        """sum of entries[i] e_i, plus `value` times the `count` unit vectors from e_first on."""
        w = np.zeros(self.p)
        for i, one in entries.items():
            w[i - 1] = one
        w[first - 1 : first - 1 + count] = value
        return w


class PrbepLowerBound(_LowerBound):
    """Section 2.2: n rows, x_1 = c n e_2 and x_i = -c n e_3 - c n e_{i+2}, with c = sqrt(2)/4."""

    measure = "prbep"

    def __init__(self, size: int, epsilon: Fraction | None = None) -> None:
        """size : the paper's n; epsilon: what it was made from, by default the smallest. Raises InputError below 2."""
        _require_size(size, 2)
        super().__init__(size, size, epsilon or Fraction(1, size - 1))
        norm = 1 + 1 / (2 * (size - 1))  # ||a||^2
        self.w_0 = self._vector({1: 1.0, 2: 2 * _C, 3: 2 * _C})
        self.J_0 = 1.0
        shared = 2 * _C / norm
        self.minimizer = self._vector({2: shared, 3: shared}, 4, size - 1, shared / (size - 1))
        self.minimum = 1 / (2 * norm)
        self.iterates = size - 1
        self.steps = floor(1 / (5 * self.epsilon))

    @staticmethod
    def of(epsilon: float) -> PrbepLowerBound:
        """n = ceil(1/epsilon) + 1."""
        exact = _exact(epsilon)
        return PrbepLowerBound(ceil(1 / exact) + 1, exact)

    def iterate(self, k: int) -> Floats:
        """w_k of equation (10), 1 <= k <= n - 1."""
        return self._vector({2: 2 * _C, 3: 2 * _C}, 4, k, 2 * _C / k)

    def J(self, k: int) -> float:
        """J(w_k)."""
        return (2 + 1 / k) / 4

    @property
    def _x_1(self) -> float:
        return _C * self.size

    def _negatives(self, i: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
        return np.column_stack((np.full_like(i, 3), i + 2)), np.full((len(i), 2), -_C * self.size)


class RocAreaLowerBound(_LowerBound):
    """Section 2.3: n negatives and n + 1 rows, x_1 = sqrt(n) e_2 and x_i = -n e_{i+1}."""

    measure = "rocarea"

    def __init__(self, size: int, epsilon: Fraction | None = None) -> None:
        """size : the paper's n; epsilon: what it was made from, by default 1/n. Raises InputError below 1."""
        _require_size(size, 1)
        super().__init__(size, size + 1, epsilon or Fraction(1, size))
        self.w_0 = self._vector({1: 1.0, 2: 1 / sqrt(size)})
        self.J_0 = (1 + 1 / size) / 2
        self.minimizer = self._vector({2: 1 / (2 * sqrt(size))}, 3, size, 1 / (2 * size))
        self.minimum = 1 / (4 * size)
        self.iterates = size
        self.steps = floor(2 / (3 * self.epsilon))

    @staticmethod
    def of(epsilon: float) -> RocAreaLowerBound:
        """n = floor(1/epsilon)."""
        exact = _exact(epsilon)
        return RocAreaLowerBound(floor(1 / exact), exact)

    def iterate(self, k: int) -> Floats:
        """w_k of equation (12), 1 <= k <= n."""
        return self._vector({2: 1 / sqrt(self.size)}, 3, k, 1 / k)

    def J(self, k: int) -> float:
        """J(w_k)."""
        return (1 / self.size + 1 / k) / 2

    @property
    def _x_1(self) -> float:
        return sqrt(self.size)

    def _negatives(self, i: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
        return (i + 1)[:, None], np.full((len(i), 1), -float(self.size))


LOWER_BOUNDS: dict[str, type[PrbepLowerBound] | type[RocAreaLowerBound]] = {
    "prbep-lower-bound": PrbepLowerBound,
    "rocarea-lower-bound": RocAreaLowerBound,
}


def _exact(epsilon: float) -> Fraction:
    """The decimal number that was meant, so that no rounding lifts the ceiling of its inverse."""
    if not 1e-9 <= epsilon <= 1:
        raise InputError(f"--epsilon {epsilon:g}: must be from 1e-9 to 1")
    return Fraction(repr(float(epsilon)))


def _require_size(size: int, least: int) -> None:
    if size < least:
        raise InputError(f"--n {size}: this construction needs an n of at least {least}")
