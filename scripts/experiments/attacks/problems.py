"""Small difficult problems, and the ways to solve them. The kind and the seed of a problem determine everything.

The kind determines how the rows are made. Everything else (measure, lambda, target, bias, normalization) is drawn at
random, in the same way for most kinds. The number of ranks only changes which rank holds which rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from distsms.base.measures import Measure
from distsms.base.typing import Floats, Labels
from distsms.optim.solvers.base import SOLVERS, PlaneUse, solver_class

Random = np.random.Generator

MEASURES = ("rocarea", "prbep", "error-rate", "f1", "f0.5", "f2", "precision@k", "recall@k")
SHARES_OF_MEASURES = [0.2, 0.2, 0.2, 0.1, 0.05, 0.05, 0.1, 0.1]
SHARE_OF_HEADS = 0.3  # of the problems with ROCArea, for which the measure is then pauc@BETA
SMALLEST_LAMBDA, LARGEST_LAMBDA = 1e-13, 1e6
SHARES = {"lmvm": 0.6, "lbfgs": 0.4, "agm": 0.25, "bmrm": 0.6, "bmrm-linesearch": 0.6}
"""For each solver, the share of the problems that it solves in addition to the default run. Slow solvers get fewer."""
LONGEST = {"bmrm-linesearch": 200, "agm": 300}
"""The largest number of evaluations of two solvers, which would often need thousands to reach the target. What they
have proved by then is judged.
"""
MOST_EVALUATIONS, MOST_SECONDS = 1500, 60.0  # limits of the other solvers, and the time limit in case a run hangs


class Way(NamedTuple):
    """One way to solve a problem.

    settings : arguments of `distsms.optim.settings.Settings`, without those that the problem gives.
    ordering, step : as in the options of `distsms train`.
    ranks : the number of ranks that take part in each start of the run. Later starts resume from a snapshot.
    stops : the numbers of evaluations after which the starts end; the last start has none.
    """

    settings: dict[str, Any]
    ordering: str
    step: str
    ranks: tuple[int, ...]
    stops: tuple[int, ...]


class Problem(NamedTuple):
    """A problem: rows X (n, p), labels y (n,), the objective, the gap to prove, and the ways to solve it.

    cuts : numbers from 0 to 1. With P ranks, the rows are divided at the first P - 1 of these shares, after sorting.
    """

    kind: str
    seed: int
    X: Floats
    y: Labels
    measure: str
    lam: float
    bias: float | None
    normalization: str
    epsilon: float | None
    relative: float | None
    cuts: tuple[float, ...]
    ways: tuple[Way, ...]

    @property
    def name(self) -> str:
        """The name of the problem, which can be given to the option --only."""
        return f"{self.kind}:{self.seed}"

    def share(self, rank: int, size: int) -> slice:
        """Return the range of the rows that a rank holds if there are `size` ranks. It may be empty."""
        inner = [round(cut * len(self.y)) for cut in self.cuts[: size - 1]]
        ends = [0, *sorted(inner), len(self.y)]
        return slice(ends[rank], ends[rank + 1])


def problem(kind: str, seed: int) -> Problem:
    """Make the problem of this kind and seed. Local; the result is the same on every rank."""
    rng = np.random.default_rng([zlib.crc32(kind.encode()), seed])
    X, y = KINDS[kind](rng)
    measure = _measure(rng, len(y), kind)
    low, high = LAMBDAS.get(kind, (SMALLEST_LAMBDA, LARGEST_LAMBDA))
    lam = _size(rng, low, high)
    which = rng.random()
    epsilon = _size(rng, 1e-7, 1e-2) if which < 0.8 else None
    relative = _size(rng, 1e-6, 1e-1) if which > 0.6 else None
    bias = _size(rng, 1e-2, 1e2) if rng.random() < 0.15 else None
    normalization = str(rng.choice(["none", "standard", "maxabs", "l2"], p=[0.76, 0.08, 0.08, 0.08]))
    cuts = tuple(rng.random(3).tolist())
    return Problem(kind, seed, X, y, measure, lam, bias, normalization, epsilon, relative, cuts, _ways(rng, measure))


def problems(count: int, seed: int, kinds: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    """Return the kinds and seeds of `count` problems; the kinds alternate."""
    chosen = kinds or tuple(KINDS)
    return [(chosen[i % len(chosen)], 1_000_000 * seed + i // len(chosen)) for i in range(count)]


# The measure of a problem, and the ways to solve it


def _measure(rng: Random, n: int, kind: str) -> str:
    """Draw a measure. For identical rows it is rarely ROCArea or PRBEP, which then have their minimum at w = 0."""
    shares = [0.05, 0.05, 0.6, 0.1, 0.05, 0.05, 0.05, 0.05] if kind == "identical-rows" else SHARES_OF_MEASURES
    measure = str(rng.choice(MEASURES, p=shares))
    if measure == "rocarea":  # drawn by another generator, so that all else is the same with both measures
        head = np.random.default_rng(rng.bit_generator.state["state"]["state"] >> 64)
        if head.random() < SHARE_OF_HEADS:
            return f"pauc@{head.choice([1 / n, 0.05, 0.1, 0.3, 0.5, head.uniform(0.01, 0.9)]):.4g}"
    return measure.replace("@k", f"@{rng.integers(1, n + 1)}")


def _ways(rng: Random, measure: str) -> tuple[Way, ...]:
    """Return the default way, and ways with drawn settings for some of the solvers that support the measure."""
    smooth = Measure.parse(measure).family.smooth
    able = [name for name in SOLVERS if smooth or not solver_class(name).traits.smooth]
    plain = Way(_settings(able[0]), "gather", "root", (4,), ())
    drawn = [_way(rng, name, measure) for name in able if rng.random() < SHARES[name]]
    return (plain, *drawn)


def _settings(solver: str) -> dict[str, Any]:
    return {"solver": solver, "max_evaluations": LONGEST.get(solver, MOST_EVALUATIONS), "time_limit": MOST_SECONDS}


def _way(rng: Random, solver: str, measure: str) -> Way:
    traits = solver_class(solver).traits
    settings = _settings(solver)
    if traits.planes is PlaneUse.PROOF:
        settings["planes"] = int(rng.choice([2, 2, 2, 2, 3, 5, 10, 30, 100]))
    if traits.planes is PlaneUse.MODEL and rng.random() < 0.2:
        settings["vector_bytes"] = float(_size(rng, 500, 50_000))  # so that planes are merged
    if rng.random() < 0.5:
        settings["zero_plane"] = False
    if traits.history and rng.random() < 0.3:
        settings["history"] = int(rng.integers(1, 50))
    if traits.scaled and rng.random() < 0.3:
        settings["scaling"] = float(rng.choice([0.0, 0.25, 0.5, 1.0]))
    if traits.smooth and rng.random() < 0.2:
        settings["bundle_steps"] = False
    if traits.smooth and rng.random() < 0.05:
        settings["c_mu"] = float(rng.choice([0.5, 10.0, 100.0]))
    pairs = measure == "rocarea" or measure.startswith("pauc")
    drawn = rng.random() if pairs or measure == "prbep" else 1.0
    ordering = "bins" if drawn < 0.2 and pairs else "exchange" if drawn < 0.4 else "gather"
    step = "spread" if rng.random() < 0.4 else "root"
    starts = int(rng.choice([1, 2, 3], p=[0.85, 0.1, 0.05]))
    ranks = tuple(int(number) for number in rng.integers(1, 5, starts)) if starts > 1 else (4,)
    return Way(settings, ordering, step, ranks, tuple(np.cumsum(rng.integers(1, 25, starts - 1)).tolist()))


# The kinds: functions that make rows and labels


def _size(rng: Random, low: float, high: float) -> float:
    """Draw a number from a log-uniform distribution."""
    return float(10 ** rng.uniform(np.log10(low), np.log10(high)))


def _sizes(rng: Random, low: float, high: float, count: Any) -> Floats:
    return 10 ** rng.uniform(np.log10(low), np.log10(high), count)


def _shape(rng: Random) -> tuple[int, int]:
    """Draw the numbers of rows (usually few) and of columns."""
    n = int(rng.integers(2, 15)) if rng.random() < 0.9 else int(rng.integers(15, 41))
    return n, int(rng.integers(1, 9))


def _labels(rng: Random, n: int, n_pos: int | None = None) -> Labels:
    n_pos = int(rng.integers(1, n)) if n_pos is None else n_pos
    y = np.full(n, -1, np.int8)
    y[rng.choice(n, n_pos, replace=False)] = 1
    return y


def _noise(rng: Random, y: Labels, p: int) -> Floats:
    """Draw normal rows, with the positive ones shifted by a random vector."""
    return rng.normal(size=(len(y), p)) + np.outer(y > 0, rng.normal(size=p))


def plain(rng: Random) -> tuple[Floats, Labels]:
    """Make normal rows without special properties."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    return _noise(rng, y, p), y


def identical_rows(rng: Random) -> tuple[Floats, Labels]:
    """Make rows that are all identical; their size varies between problems."""
    n, p = _shape(rng)
    row = np.ones(p) if rng.random() < 0.5 else rng.normal(size=p)
    return np.tile(row * (1.0 if rng.random() < 0.5 else _size(rng, 1e-6, 1e6)), (n, 1)), _labels(rng, n)


def ties(rng: Random) -> tuple[Floats, Labels]:
    """Make rows of small whole numbers, many of which are repeated, also with different labels."""
    n, p = _shape(rng)
    X = rng.integers(-1, 2, (n, p)).astype(float)
    return X[rng.integers(0, max(1, n // 2), n)], _labels(rng, n)


def one_positive(rng: Random) -> tuple[Floats, Labels]:
    """Make normal rows of which a single one is positive."""
    n, p = _shape(rng)
    y = _labels(rng, n, 1)
    return _noise(rng, y, p), y


def one_negative(rng: Random) -> tuple[Floats, Labels]:
    """Make normal rows of which a single one is negative."""
    n, p = _shape(rng)
    y = _labels(rng, n, n - 1)
    return _noise(rng, y, p), y


def more_positives(rng: Random) -> tuple[Floats, Labels]:
    """Make rows with n+ > n-. Their entries are rounded to whole numbers in half of the problems."""
    n, p = _shape(rng)
    n = max(n, 3)
    y = _labels(rng, n, int(rng.integers(n // 2 + 1, n)))
    X = _noise(rng, y, p)
    return np.round(X) if rng.random() < 0.5 else X, y


def column_scales(rng: Random) -> tuple[Floats, Labels]:
    """Make columns of very different sizes, from 1e-12 to 1e12."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    return _noise(rng, y, p) * _sizes(rng, 1e-12, 1e12, p), y


def one_scale(rng: Random) -> tuple[Floats, Labels]:
    """Make values of a common size, which is from 1e-12 to 1e12."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    return _noise(rng, y, p) * _size(rng, 1e-12, 1e12), y


def bad_columns(rng: Random) -> tuple[Floats, Labels]:
    """Make a few informative columns of sizes from 0.1 to 1e7, as in tables whose columns were not scaled."""
    n, p = int(rng.integers(6, 31)), int(rng.integers(2, 6))
    y = _labels(rng, n)
    return _noise(rng, y, p) * _sizes(rng, 1e-1, 1e7, p), y


def mixed_scales(rng: Random) -> tuple[Floats, Labels]:
    """Make values, or rows, of very different sizes, with many zeros."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    far = float(rng.choice([1e3, 1e6, 1e12]))
    sizes = _sizes(rng, 1 / far, far, (n, p) if rng.random() < 0.5 else (n, 1))
    return _noise(rng, y, p) * sizes * (rng.random((n, p)) < 0.7), y


def offset(rng: Random) -> tuple[Floats, Labels]:
    """Make rows that are nearly equal: a common vector plus much smaller differences."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    shared = rng.normal(size=p) * _sizes(rng, 1, 1e9, p)
    return shared + _noise(rng, y, p) * _size(rng, 1e-6, 1.0), y


def steep(rng: Random) -> tuple[Floats, Labels]:
    """Make a few rows that are much longer than the others, which gives steep planes that nearly cancel each other."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    X = _noise(rng, y, p)
    X[rng.random(n) < 0.3] *= _size(rng, 1e3, 1e9)
    if n > 3:  # two rows that are equal or opposite
        X[1] = X[0] * (-1 if rng.random() < 0.5 else 1)
    return X, y


def wide(rng: Random) -> tuple[Floats, Labels]:
    """Make far more columns than rows."""
    n, p = int(rng.integers(2, 9)), int(rng.integers(30, 90))
    y = _labels(rng, n)
    return _noise(rng, y, p) * (rng.random((n, p)) < rng.choice([0.1, 1.0])), y


def separable(rng: Random) -> tuple[Floats, Labels]:
    """Make classes that are separable along one direction, by a small or a large distance."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    direction = rng.normal(size=p)
    X = rng.normal(size=(n, p))
    X -= np.outer(X @ direction, direction) / (direction @ direction)
    return X + np.outer(y * rng.uniform(1, 2, n), direction) * _size(rng, 1e-6, 1e2), y


def zeros(rng: Random) -> tuple[Floats, Labels]:
    """Make some rows and columns that are entirely zero, in some problems all of them."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    X = _noise(rng, y, p)
    X[rng.random(n) < 0.4] = 0
    X[:, rng.random(p) < 0.4] = 0
    return X, y


KINDS: dict[str, Callable[[Random], tuple[Floats, Labels]]] = {
    "plain": plain,
    "identical-rows": identical_rows,
    "ties": ties,
    "one-positive": one_positive,
    "one-negative": one_negative,
    "more-positives": more_positives,
    "column-scales": column_scales,
    "one-scale": one_scale,
    "bad-columns": bad_columns,
    "mixed-scales": mixed_scales,
    "offset": offset,
    "steep": steep,
    "wide": wide,
    "separable": separable,
    "zeros": zeros,
    "tiny-lambda": plain,
    "large-lambda": plain,
}
LAMBDAS = {
    "tiny-lambda": (SMALLEST_LAMBDA, 1e-8),
    "large-lambda": (1.0, LARGEST_LAMBDA),
    "bad-columns": (1e-6, 1.0),
    "identical-rows": (SMALLEST_LAMBDA, 1.0),
}
"""The range of lambda for kinds that do not use the whole range."""
