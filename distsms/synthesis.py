"""Synthetic data sets of any size with a planted w, written in parallel straight to shards.

The rows come in blocks of a fixed size, each from its own counter-based stream of random numbers (Philox with the key
(seed, number of the block)). So the data depend on the options alone, not on how many ranks write how many shards, and
nobody ever holds more than one shard.

A row is positive where <w, x> + noise > t. t is found beforehand from the distribution of the left side: a normal one
for dense rows; for sparse rows that of a pilot sample, with its mean and variance put right by the exact ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from distsms import shards
from distsms.comm import Communicator
from distsms.conversion import tidy
from distsms.errors import InputError
from distsms.features import index_dtype

SHARD_BYTES = 64 * 2**20
"""Size of a shard where the number of shards is not given; never of the number of ranks, nor are the data."""
BLOCK_ENTRIES, BLOCK_ROWS = 2**18, 2**16
PILOT_ENTRIES, PILOT_ROWS = 2**22, 2**16
MAX_DENSITY, MAX_RATE = 0.95, 3.0  # 1 - exp(-3) is just above 0.95: the share of rows that the commonest columns reach
_PLANTED, _PILOT = 2**63, 2**63 + 2**62  # streams beyond those of any block

Rows = tuple[Any, NDArray[np.int8]]  # X, CSR or a 2-D array, and y of +1 and -1


class Source(Protocol):
    """Rows that can be made block by block, in any order, on any rank."""

    @property
    def n(self) -> int: ...
    @property
    def p(self) -> int: ...
    @property
    def block_rows(self) -> int: ...
    @property
    def row_bytes(self) -> float:
        """Of a row in a file, on average."""
        ...

    def block(self, number: int) -> Rows:
        """The rows from number * block_rows on: block_rows of them, or what is left of n. Local."""
        ...


@dataclass(frozen=True)
class Recipe:
    """What random rows are made of. Raises InputError for what cannot be made."""

    n: int
    p: int
    positive: float = 0.1  # share of positive rows
    noise: float = 0.5  # standard deviation of the noise in the planted score, in units of the score's own
    seed: int = 0
    dtype: str = "float64"

    def __post_init__(self) -> None:
        _require(self.n >= 2, f"--rows {self.n}: both classes need a row; give at least 2")
        _require(1 <= self.p < 2**31, f"--columns {self.p}: must be from 1 to 2^31 - 1")
        _require(0 < self.positive < 1, f"--positive {self.positive:g}: is a share of the rows, above 0 and below 1")
        _require(0.001 <= self.noise <= 1000, f"--noise {self.noise:g}: must be from 0.001 (separable) to 1000")
        _require(0 <= self.seed < 2**64, f"--seed {self.seed}: must be from 0 to 2^64 - 1")
        _require(self.dtype in ("float32", "float64"), f"--dtype {self.dtype}: is neither float32 nor float64")

    def stream(self, number: int) -> np.random.Generator:
        """Random numbers of this seed that no other stream has."""
        return np.random.Generator(np.random.Philox(key=np.array([self.seed, number], np.uint64)))

    def rows_of(self, number: int, block_rows: int) -> int:
        """The number of rows of a block."""
        return min(block_rows, self.n - number * block_rows)

    def label(self, number: int, margins: NDArray[np.float64], threshold: float) -> NDArray[np.int8]:
        """+1 where a noisy score (rows,) is above the threshold, else -1; the first block has both classes.

        If it had not, its highest row becomes positive or its lowest negative: the least that makes any set trainable.
        """
        y = np.where(margins > threshold, 1, -1).astype(np.int8)
        if number == 0:
            if y.max() < 0:
                y[margins.argmax()] = 1
            elif y.min() > 0:
                y[margins.argmin()] = -1
        return y


class DenseRows:
    """Independent standard normal features; <w, x> has variance 1, so that the threshold is a normal quantile."""

    def __init__(self, recipe: Recipe) -> None:
        """Memory: 8 p bytes, and a block of 2 MiB or two rows."""
        self.recipe, self.n, self.p = recipe, recipe.n, recipe.p
        self.block_rows = _block_rows(self.p)
        self.row_bytes = self.p * np.dtype(recipe.dtype).itemsize + 1.0
        w = recipe.stream(_PLANTED).standard_normal(self.p)
        self.w = w / np.linalg.norm(w)
        self.threshold = float(np.hypot(1, recipe.noise) * ndtri(1 - recipe.positive))

    def block(self, number: int) -> Rows:
        """X (rows, p) in the recipe's dtype, and y. Local; O(rows p)."""
        recipe, rng = self.recipe, self.recipe.stream(number)
        rows = recipe.rows_of(number, self.block_rows)
        X = rng.standard_normal((rows, self.p), recipe.dtype)  # type: ignore[call-overload]
        margins = X @ self.w + recipe.noise * rng.standard_normal(rows)
        return X, recipe.label(number, margins, self.threshold)


class SparseRows:
    """Rows in which column j occurs, independently of all others, with probability q_j = 1 - exp(-rate_j).

    rate_j = min(C (j + 1)^-skew, 3), with C such that the q_j add up to density * p. Values are uniform on (0, 1], or
    all 1 (pattern). A row may be empty where density * p is small.
    """

    def __init__(self, recipe: Recipe, density: float, skew: float = 1.0, pattern: bool = False) -> None:
        """Raises InputError. Memory: 16 p bytes (48 p meanwhile) and some blocks of 2^18 entries; O(p + 2^22) time."""
        _require(0 < density <= MAX_DENSITY, f"--density {density:g}: above 0, and {MAX_DENSITY} at the most")
        _require(0 <= skew <= 5, f"--skew {skew:g}: must be from 0 (all columns alike) to 5")
        self.recipe, self.n, self.p, self.pattern = recipe, recipe.n, recipe.p, pattern
        entries = density * self.p
        self.block_rows = _block_rows(entries)
        self.row_bytes = entries * (4 + (0 if pattern else np.dtype(recipe.dtype).itemsize)) + 9
        rates = _rates(self.p, entries, skew)
        self.ends = np.cumsum(rates)  # column j owns [ends_j-1, ends_j) of a line of length ends_p-1
        self.w = recipe.stream(_PLANTED).standard_normal(self.p)
        self.threshold, self.sigma = self._calibrated(-np.expm1(-rates))

    def block(self, number: int) -> Rows:
        """X (rows, p) CSR in the recipe's dtype, and y. Local; O(entries log p)."""
        rows = self.recipe.rows_of(number, self.block_rows)
        rng = self.recipe.stream(number)
        X = self._features(rng, rows)
        margins = X @ self.w + self.sigma * rng.standard_normal(rows)
        return X, self.recipe.label(number, margins, self.threshold)

    def _features(self, rng: np.random.Generator, rows: int) -> sparse.csr_matrix:
        """A Poisson process of rate 1 on the rows' lines, laid end to end.

        Its points come in order, so nothing is sorted. A column is in a row if any point falls on it: several on one
        are one entry, which makes its probability 1 - exp(-rate), independently of all others.
        """
        length = self.ends[-1]
        at = _poisson_process(rng, rows * length)
        row = np.minimum((at / length).astype(np.int64), rows - 1)
        at -= row * length
        column = np.minimum(np.searchsorted(self.ends, at, "right"), self.p - 1)
        new = np.ones(len(at), np.bool_)
        np.not_equal(column[1:], column[:-1], out=new[1:])
        new[1:] |= row[1:] != row[:-1]
        indptr = np.zeros(rows + 1, index_dtype(len(at), self.p))
        np.cumsum(np.bincount(row[new], minlength=rows), out=indptr[1:])
        indices = column[new].astype(indptr.dtype)
        if self.pattern:
            values: Any = np.ones(len(indices), self.recipe.dtype)
        else:
            values = 1 - rng.random(len(indices), self.recipe.dtype)  # type: ignore[call-overload]
        return sparse.csr_matrix((values, indices, indptr), shape=(rows, self.p), copy=False)

    def _calibrated(self, q: NDArray[np.float64]) -> tuple[float, float]:
        """The threshold of the noisy score, and the noise's standard deviation; q (p,) as in the class.

        The noise is averaged out rather than drawn: P(positive) = mean of Phi((s - t) / sigma) over the pilot's s.
        """
        first, second = (1.0, 1.0) if self.pattern else (1 / 2, 1 / 3)  # moments of a value
        mean = first * float(q @ self.w)
        spread = float(np.sqrt(np.sum(self.w**2 * q * (second - first**2 * q))))
        rows = min(PILOT_ROWS, max(2, int(PILOT_ENTRIES / self.ends[-1])))
        parts = range(-(-rows // self.block_rows))
        pilot = [self._features(self.recipe.stream(_PILOT + k), self.block_rows) @ self.w for k in parts]
        scores = np.concatenate(pilot)
        if scores.std() > 0:
            scores = mean + spread * (scores - scores.mean()) / scores.std()
        sigma = self.recipe.noise * spread
        reach = 40 * sigma
        below, above = scores.min() - reach, scores.max() + reach

        def excess(t: float) -> float:
            return float(ndtr((scores - t) / sigma).mean()) - self.recipe.positive

        return float(brentq(excess, below, above, xtol=1e-9 * spread)), sigma


def write(
    source: Source,
    directory: str | os.PathLike[str],
    comm: Communicator,
    n_shards: int | None = None,
    dtype: str = "float64",
    overwrite: bool = False,
    name: str = "synthetic",
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> shards.Manifest:
    """Write all rows of a source as a data set. Collective; raises InputError on every rank.

    Unless n_shards is given there is a shard for every 64 MiB; a shard has at least one row. name : kept in the
    manifest as what the data were made from. progress : as in `conversion.convert`. Memory of a rank: its largest
    shard, twice for a moment, and a block.
    """
    n_shards = min(source.n, n_shards or max(1, round(source.n * source.row_bytes / SHARD_BYTES)))
    with comm.together():
        if comm.is_root:
            shards.prepare(directory, overwrite)
    comm.barrier()
    mine = range(n_shards * comm.rank // comm.size, n_shards * (comm.rank + 1) // comm.size)
    try:
        entries = []
        with comm.together():
            for done, k in enumerate(mine):
                X, y = rows(source, source.n * k // n_shards, source.n * (k + 1) // n_shards)
                entries.append(shards.finish_shard(shards.stage_shard(directory, k, X, dtype), y, source.p))
                progress(done + 1, len(mine))
        entries = [entry for part in comm.allgather(entries) for entry in part]
        with comm.together():
            if comm.is_root:
                meaning = {"+1": 1, "-1": -1}
                made_from = [{"name": name, "bytes": 0}]
                shards.publish(directory, entries, label_map=meaning, zero_based=False, source=made_from)
    except InputError:
        if comm.is_root:
            tidy(directory)
        raise
    with comm.together():
        return shards.read_manifest(directory)


def rows(source: Source, start: int, stop: int) -> Rows:
    """The global rows start..stop (start < stop) of a source. Local; blocks at the ends are made whole, and cut."""
    size = source.block_rows
    parts, labels = [], []
    for number in range(start // size, -(-stop // size)):
        X, y = source.block(number)
        cut = slice(max(start - number * size, 0), stop - number * size)
        parts.append(X if len(y[cut]) == len(y) else X[cut])
        labels.append(y[cut])
    return _stacked(parts), np.concatenate(labels)


def _stacked(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    return sparse.vstack(parts, format="csr") if sparse.issparse(parts[0]) else np.concatenate(parts)


def _block_rows(entries: float) -> int:
    """Rows of a block, from the mean entries of a row: two at least, for there are two classes."""
    return int(min(BLOCK_ROWS, max(2, BLOCK_ENTRIES // max(entries, 1))))


def _rates(p: int, entries: float, skew: float) -> NDArray[np.float64]:
    """rate_j (p,) of `SparseRows`, so that a row has `entries` of its p columns on average."""
    popularity = np.arange(1, p + 1, dtype=np.float64) ** -skew

    def excess(log_c: float) -> float:
        return float(-np.expm1(-np.minimum(np.exp(log_c) * popularity, MAX_RATE)).sum()) - entries

    # 1 - exp(-x) <= x bounds C from below; above, every column has the highest rate.
    low, high = np.log(entries / popularity.sum()) - 1e-6, np.log(MAX_RATE / popularity[-1])
    return np.minimum(np.exp(brentq(excess, low, high, xtol=1e-12)) * popularity, MAX_RATE)


def _poisson_process(rng: np.random.Generator, length: float) -> NDArray[np.float64]:
    """The points of a Poisson process of rate 1 on [0, length), ascending."""
    count = int(length + 6 * np.sqrt(length)) + 16
    at = np.cumsum(rng.standard_exponential(count))
    while at[-1] < length:  # once in 1e9 blocks or so
        at = np.concatenate((at, at[-1] + np.cumsum(rng.standard_exponential(count))))
    return at[: np.searchsorted(at, length)]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)
