"""Random rows that are labelled by a planted w, in blocks of a fixed size that depend only on the seed.

Each block has its own counter-based stream of random numbers (Philox with the key (seed, number of the block)). A row
is positive if its score <w, x> plus noise is above a threshold, a quantile of this sum: for dense rows that of a normal
distribution; for wide sparse rows, whose sum is nearly normal, it follows from the first four cumulants; for others a
pilot sample is drawn, whose scores are corrected by the exact mean and variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from distsms.base.errors import InputError
from distsms.base.jit import njit
from distsms.base.typing import Floats
from distsms.matrix.local import index_dtype
from distsms.shards.coded_columns import NOT_CODED

BLOCK_ENTRIES, BLOCK_ROWS = 2**18, 2**16
WIDE = 30.0  # if rows have more entries on average, their scores are taken to be nearly normal
PILOT_ROWS, PILOT_ENTRIES = 2**18, 2**24
# The most frequent columns have MAX_RATE and so occur in a share of 1 - exp(-3) = 0.950 of the rows.
MAX_DENSITY, MAX_RATE = 0.95, 3.0
FACTORS = 8  # normal numbers of a row that its correlated dense features share
PLANTED, PILOT = 2**63, 2**63 + 2**62  # numbers of streams that no block has

LabelledRows = tuple[Any, NDArray[np.int8]]  # X (CSR or a 2-D array), and y of +1 and -1


@dataclass(frozen=True)
class Recipe:
    """The parameters that all random data sets have. Raises InputError if a value is not allowed."""

    n: int
    p: int
    positive: float = 0.1  # the share of positive rows
    noise: float = 0.5  # the noise's standard deviation, divided by that of the planted score
    seed: int = 0
    dtype: str = "float64"

    def __post_init__(self) -> None:
        _require(2 <= self.n < 2**53, f"--rows {self.n}: must be at least 2, for both classes, and below 2^53")
        _require(1 <= self.p < 2**31, f"--columns {self.p}: must be from 1 to 2^31 - 1")
        _require(0 < self.positive < 1, f"--positive {self.positive:g}: must be a share of rows, above 0 and below 1")
        _require(0.001 <= self.noise <= 1000, f"--noise {self.noise:g}: must be from 0.001 (separable) to 1000")
        _require(0 <= self.seed < 2**64, f"--seed {self.seed}: must be from 0 to 2^64 - 1")
        _require(self.dtype in ("float32", "float64"), f"--dtype {self.dtype}: is neither float32 nor float64")

    def stream(self, number: int) -> np.random.Generator:
        """Return the random numbers of stream `number` of this seed."""
        return np.random.Generator(np.random.Philox(key=np.array([self.seed, number], np.uint64)))

    def rows_of(self, number: int, block_rows: int) -> int:
        return min(block_rows, self.n - number * block_rows)

    def label(self, number: int, margins: Floats, threshold: float) -> NDArray[np.int8]:
        """Return +1 where a noisy score (rows,) is above the threshold, else -1. In the first block the row with the
        highest, or lowest, score changes sides if it has one class only, since training needs both."""
        y = np.where(margins > threshold, 1, -1).astype(np.int8)
        if number == 0 and y.max() < 0:
            y[margins.argmax()] = 1
        elif number == 0 and y.min() > 0:
            y[margins.argmin()] = -1
        return y


class DenseSource:
    """Rows of independent standard normal features; with a `correlation`, the rows of FACTORS further normal numbers
    times loadings of that size are added. <w, x> has variance 1, so the threshold is a normal quantile. Then the
    features are multiplied by `scale`."""

    coded = NOT_CODED

    def __init__(self, recipe: Recipe, correlation: float = 0.0, scale: float = 1.0) -> None:
        """Draw w. Memory: 8 p bytes (or 100 p), and a block of 2 MiB or two rows."""
        self.recipe, self.n, self.p = recipe, recipe.n, recipe.p
        self.scale, self.block_rows = scale, block_rows(self.p)
        self.row_bytes = self.p * np.dtype(recipe.dtype).itemsize + 1.0
        planted = recipe.stream(PLANTED)
        w = planted.standard_normal(self.p)
        self.loadings = correlation * planted.standard_normal((FACTORS if correlation else 0, self.p))
        self.w = w / np.hypot(np.linalg.norm(w), np.linalg.norm(self.loadings @ w))
        self.threshold = float(np.hypot(1, recipe.noise) * ndtri(1 - recipe.positive))

    def block(self, number: int) -> LabelledRows:
        recipe, rng = self.recipe, self.recipe.stream(number)
        rows = recipe.rows_of(number, self.block_rows)
        X = rng.standard_normal((rows, self.p), recipe.dtype)  # type: ignore[call-overload]
        if len(self.loadings):
            X += rng.standard_normal((rows, FACTORS)) @ self.loadings
        margins = X @ self.w + recipe.noise * rng.standard_normal(rows)
        if self.scale != 1:
            X *= self.scale
        return X, recipe.label(number, margins, self.threshold)


class SparseSource:
    """Rows with column j with probability q_j = 1 - exp(-rate_j), rate_j = min(C (j + 1)^-skew, 3), independently. C is
    such that the q_j add up to density * p. Values are uniform on (0, 1], or all 1 (pattern); rows may be empty. With
    `unit`, rows are divided by their lengths. With `informative`, w is 0 but for that many of the first columns. With
    `spread`, columns then get another order, in which frequent ones are no neighbours."""

    coded = NOT_CODED

    def __init__(
        self,
        recipe: Recipe,
        density: float,
        skew: float = 1.0,
        pattern: bool = False,
        unit: bool = False,
        informative: int | None = None,
        spread: bool = False,
    ) -> None:
        """Draw w and compute the threshold; takes 20 p bytes (about 50 p meanwhile), and the time of a pilot sample."""
        _require(0 < density <= MAX_DENSITY, f"--density {density:g}: must be above 0 and at most {MAX_DENSITY}")
        _require(0 <= skew <= 5, f"--skew {skew:g}: must be from 0 (the same density in all columns) to 5")
        self.recipe, self.pattern, self.unit = recipe, pattern, unit
        self.n, self.p, self.step = recipe.n, recipe.p, 1
        if spread:
            self.step = next(step for step in range(int(0.618 * self.p) + 1, 2 * self.p) if gcd(step, self.p) == 1)
        entries = density * self.p
        self.block_rows = block_rows(entries)
        self.row_bytes = entries * (4 + (0 if pattern else np.dtype(recipe.dtype).itemsize)) + 9
        rates = _rates(self.p, entries, skew)
        # Each row is a line of length ends[p-1], of which the interval from ends[j-1] to ends[j] belongs to column j.
        self.ends = np.cumsum(rates)
        cells = np.arange(self.p + 1) * (self.ends[-1] / self.p)
        self.guide = np.searchsorted(self.ends, cells, "right").astype(np.int32)  # the first column in p equal cells
        self.w = recipe.stream(PLANTED).standard_normal(self.p)
        self.w[self.p if informative is None else informative :] = 0
        self.threshold, self.sigma = self._calibrated(-np.expm1(-rates))

    def block(self, number: int) -> LabelledRows:
        rows = self.recipe.rows_of(number, self.block_rows)
        rng = self.recipe.stream(number)
        X = self._features(rng, rows)
        margins = X @ self.w + self.sigma * rng.standard_normal(rows)
        if self.step > 1:
            X.indices = (X.indices.astype(np.int64) * self.step % self.p).astype(X.indices.dtype)
            X.has_sorted_indices = False
            X.sort_indices()
            X.has_canonical_format = True
        return X, self.recipe.label(number, margins, self.threshold)

    def _features(self, rng: np.random.Generator, rows: int) -> sparse.csr_matrix:
        """Draw the entries of all rows by a Poisson process of rate 1 on one long line, on which row follows row. A row
        has a column if at least one point is in its interval; points ascend, so nothing has to be sorted."""
        at = _poisson_process(rng, rows * self.ends[-1])
        indices = np.empty(len(at), index_dtype(len(at), self.p))
        indptr = np.zeros(rows + 1, indices.dtype)
        indices = indices[: _columns_at(at, self.ends, self.guide, indices, indptr)]
        if self.pattern:
            values: Any = np.ones(len(indices), self.recipe.dtype)
        else:
            values = 1 - rng.random(len(indices), self.recipe.dtype)  # type: ignore[call-overload]
        X = sparse.csr_matrix((values, indices, indptr), shape=(rows, self.p), copy=False)
        if self.unit:
            lengths = np.sqrt(X.multiply(X).sum(axis=1).A1)
            X.data /= np.repeat(lengths, np.diff(indptr)).astype(X.dtype)
        return X

    def _calibrated(self, q: Floats) -> tuple[float, float]:
        """Return the threshold of the noisy score and the noise's standard deviation; q (p,) as in the class."""
        recipe = self.recipe
        moments = np.ones(4) if self.pattern else 1 / np.arange(2.0, 6.0)  # of a value: E v, ..., E v^4
        mean, variance, third, fourth = _cumulants(q, moments, self.w)
        spread = float(np.sqrt(variance))
        sigma, total = recipe.noise * spread, spread * float(np.hypot(1, recipe.noise))
        if self.ends[-1] > WIDE and not self.unit:  # Cornish and Fisher's expansion
            z, skewness, kurtosis = float(ndtri(1 - recipe.positive)), third / total**3, fourth / total**4
            quantile = z + skewness * (z**2 - 1) / 6 + kurtosis * (z**3 - 3 * z) / 24
            return float(mean + total * (quantile - skewness**2 * (2 * z**3 - 5 * z) / 36)), sigma
        rows = min(PILOT_ROWS, max(4 * self.n, 1000), int(PILOT_ENTRIES // self.ends[-1]))
        streams = map(recipe.stream, range(PILOT, PILOT - (-rows // self.block_rows)))
        scores = np.concatenate([self._features(stream, self.block_rows) @ self.w for stream in streams])
        if self.unit:
            return threshold_of(scores, recipe)
        if scores.std() > 0:
            scores = mean + spread * (scores - scores.mean()) / scores.std()
        return threshold_of(scores, recipe, spread)


def threshold_of(scores: Floats, recipe: Recipe, spread: float | None = None) -> tuple[float, float]:
    """Return the threshold of the noisy score, and the noise's standard deviation, from the scores of a pilot sample,
    whose standard deviation is `spread` if the exact one is known."""
    spread = float(scores.std()) if spread is None else spread
    sigma = recipe.noise * spread

    def excess(t: float) -> float:
        # The noise is integrated exactly rather than drawn: P(positive) = mean of Phi((s - t) / sigma).
        return float(ndtr((scores - t) / sigma).mean()) - recipe.positive

    low, high = float(scores.min()) - 40 * sigma, float(scores.max()) + 40 * sigma
    return float(brentq(excess, low, high, xtol=1e-9 * spread)), sigma


def _cumulants(q: Floats, moments: Floats, w: Floats) -> Floats:
    """Return the first four cumulants (4,) of sum_j w_j x_j, where x_j has the moments q_j E v^k."""
    total = np.zeros(4)
    for start in range(0, len(q), 2**16):  # a part of the columns at a time, to save memory if p is large
        part = slice(start, start + 2**16)
        m1, m2, m3, m4 = moments[:, None] * q[part]
        third, fourth = m3 - 3 * m2 * m1 + 2 * m1**3, m4 - 4 * m3 * m1 - 3 * m2**2 + 12 * m2 * m1**2 - 6 * m1**4
        of_x = m1, m2 - m1**2, third, fourth
        total += [kappa @ w[part] ** k for k, kappa in enumerate(of_x, 1)]
    return total


def block_rows(entries: float) -> int:
    """Return the rows of a block from the mean number of entries of a row: at least two, for the two classes."""
    return int(min(BLOCK_ROWS, max(2, BLOCK_ENTRIES // max(entries, 1))))


def _rates(p: int, entries: float, skew: float) -> Floats:
    """Return the rate_j (p,) of `SparseSource` with which a row has `entries` of its p columns on average."""
    popularity = np.arange(1, p + 1, dtype=np.float64) ** -skew

    def excess(log_c: float) -> float:
        return float(-np.expm1(-np.minimum(np.exp(log_c) * popularity, MAX_RATE)).sum()) - entries

    # 1 - exp(-x) <= x bounds C from below. At the upper bound, every column has the highest rate.
    low, high = np.log(entries / popularity.sum()) - 1e-6, np.log(MAX_RATE / popularity[-1])
    return np.minimum(np.exp(brentq(excess, low, high, xtol=1e-12)) * popularity, MAX_RATE)


@njit()
def _columns_at(at: Floats, ends: Floats, guide: NDArray[np.int32], indices: NDArray[Any], indptr: NDArray[Any]) -> int:
    """Convert ascending points to CSR arrays without repeated entries; return their number. The guide (p + 1,)
    restricts the search to a few columns, so that a point needs one or two memory accesses, and not log p."""
    p, rows, length = len(ends), len(indptr) - 1, ends[-1]
    count, row = 0, 0
    for t in at:
        while row < rows - 1 and t >= (row + 1) * length:
            row += 1
            indptr[row] = count
        u = t - row * length
        cell = min(int(u / length * p), p - 1)
        # One cell more on both sides, because u and the cells are rounded.
        low, high = guide[max(cell - 1, 0)], min(guide[min(cell + 2, p)], p - 1)
        while low < high:
            middle = (low + high) // 2
            if ends[middle] <= u:
                low = middle + 1
            else:
                high = middle
        if count == indptr[row] or indices[count - 1] != low:
            indices[count] = low
            count += 1
    for after in range(row + 1, rows + 1):
        indptr[after] = count
    return count


def _poisson_process(rng: np.random.Generator, length: float) -> Floats:
    """Return the points of a Poisson process of rate 1 on [0, length), in ascending order."""
    count = int(length + 6 * np.sqrt(length)) + 16
    at = np.cumsum(rng.standard_exponential(count))
    while at[-1] < length:  # too few points were drawn, which happens in about one of 1e9 blocks
        at = np.concatenate((at, at[-1] + np.cumsum(rng.standard_exponential(count))))
    return at[: np.searchsorted(at, length)]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)
