"""Single rows: loops over their entries, and bounds on rounding that their sizes give, weaker than those of a pass."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from distsms.base.jit import njit
from distsms.base.typing import Floats
from distsms.matrix.base import RowEntries
from distsms.matrix.kernels import number_at

EPS = float(np.finfo(float).eps)
_ONE, _TWO, _THREE, _FOUR = (np.uint64(i) for i in range(1, 5))


@njit()
def column_of(columns: Any, k: Any, begin: Any) -> Any:
    """Return the column of entry k of a row whose entries begin at `begin`; see `RowEntries.columns`."""
    if columns is None:
        return k - begin
    return columns[k]


@njit()
def _term(rows: RowEntries, k: Any, begin: Any, w: Floats) -> Any:
    j = column_of(rows.columns, k, begin)
    return number_at(rows.values, k) * number_at(rows.column_factors, j) * w[j]


@njit()
def _inner_product(rows: RowEntries, begin: Any, end: Any, w: Floats) -> Any:
    k = begin
    s0 = s1 = s2 = s3 = 0.0  # several running sums hide the latency of additions
    while k + _THREE < end:
        s0 += _term(rows, k, begin, w)
        s1 += _term(rows, k + _ONE, begin, w)
        s2 += _term(rows, k + _TWO, begin, w)
        s3 += _term(rows, k + _THREE, begin, w)
        k += _FOUR
    while k < end:
        s0 += _term(rows, k, begin, w)
        k += _ONE
    return (s0 + s1) + (s2 + s3)


@njit()
def score(rows: RowEntries, i: int, w: Floats) -> Any:
    """Return <x_i, w>."""
    s = number_at(rows.row_factors, i) * _inner_product(rows, np.uint64(rows.begins[i]), np.uint64(rows.ends[i]), w)
    return s + rows.constant * w[-1] if rows.constant != 0 else s


@njit()
def square(rows: RowEntries, i: int) -> Any:
    """Return ||x_i||^2."""
    begin, end = np.uint64(rows.begins[i]), np.uint64(rows.ends[i])
    square = 0.0
    for k in range(begin, end):
        x = number_at(rows.values, k) * number_at(rows.column_factors, column_of(rows.columns, k, begin))
        square += x * x
    return number_at(rows.row_factors, i) ** 2 * square + rows.constant**2


@njit()
def add(rows: RowEntries, i: int, step: float, w: Floats) -> None:
    """Add step x_i to w."""
    begin, end = np.uint64(rows.begins[i]), np.uint64(rows.ends[i])
    scaled = step * number_at(rows.row_factors, i)
    for k in range(begin, end):
        j = column_of(rows.columns, k, begin)
        w[j] += scaled * number_at(rows.values, k) * number_at(rows.column_factors, j)
    if rows.constant != 0:
        w[-1] += step * rows.constant


class RowSizes(NamedTuple):
    """The largest sizes of those rows of all ranks that the risk depends on."""

    length: float  # the largest ||x_i||
    terms: float  # the largest (entries + 4) ||x_i||
    additions: float  # at least those that make one entry of X'c: the number of rows and of ranks, and 8

    def plane_error(self, more: float = 0.0) -> float:
        """Return a bound on the length of any r's rounding error, `additions` eps/2 sum_i |c_i| ||x_i||."""
        return (self.additions + more) * EPS * self.length

    def margin_terms(self, norm: float) -> float:
        """Return at least `Features.largest_terms` at any w of this norm; a constant column adds half of it."""
        return 1.5 * self.terms * norm

    def loss_of_proof(self, largest: float, lam: float) -> float:
        """Return by how much both bounds may weaken a proof, where J(0) is `largest`, which bounds Omega."""
        norm, error = math.sqrt(2 * largest / lam), self.plane_error()
        return error * norm + 0.5 * error * error / lam + 2 * EPS * self.margin_terms(norm)
