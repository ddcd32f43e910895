"""Small nasty problems, and the ways to solve them: each follows from the name of its kind and its seed alone.

A kind says what the rows are like; everything else (measure, lambda, target, bias, normalization) is drawn alike for
all kinds. The number of ranks changes only who holds which rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from distsms.losses import registry
from distsms.optim.solvers.base import SOLVERS, Planes, solver_class
from distsms.utils.typing import Floats, Labels

Random = np.random.Generator

MEASURES = ("rocarea", "prbep", "error-rate", "f1", "f0.5", "f2", "precision@k", "recall@k")
SHARES_OF_MEASURES = [0.2, 0.2, 0.2, 0.1, 0.05, 0.05, 0.1, 0.1]
SMALLEST_LAMBDA, LARGEST_LAMBDA = 1e-13, 1e6
SHARES = {"lmvm": 0.6, "lbfgs": 0.4, "agm": 0.25, "bmrm": 0.6, "bmrm-linesearch": 0.6}
"""Of the problems that each solver gets, by what it takes and how it fared."""
LONGEST = {"bmrm-linesearch": 200, "agm": 300}
"""At most so many evaluations: both need thousands by nature, and what they prove before is what is judged."""
MOST_EVALUATIONS, MOST_SECONDS = 1500, 60.0  # of the others; the seconds are for what hangs


class Way(NamedTuple):
    """One way to solve a problem.

    settings : of `distsms.optim.settings.Settings`, without the problem's.  ordering, step : as `distsms train` has
    them. ranks : how many of those there are take part, in each start of the run; from the second on it goes on from a
    snapshot.  stops : after how many evaluations each start but the last one ends.
    """

    settings: dict[str, Any]
    ordering: str
    step: str
    ranks: tuple[int, ...]
    stops: tuple[int, ...]


class Problem(NamedTuple):
    """X (n, p), y (n,), what is minimized over them, to which gap, and in which ways.

    cuts : shares of the rows, ascending, at which they are cut among ranks, one less than ranks at most.
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
        """The name by which --only takes it."""
        return f"{self.kind}:{self.seed}"

    def share(self, rank: int, size: int) -> slice:
        """The rows that a rank of so many holds; perhaps none."""
        inner = [round(cut * len(self.y)) for cut in self.cuts[: size - 1]]
        ends = [0, *sorted(inner), len(self.y)]
        return slice(ends[rank], ends[rank + 1])


def problem(kind: str, seed: int) -> Problem:
    """The problem of that name. Local, and the same on every rank."""
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
    """The names of `count` problems, kinds in turn."""
    chosen = kinds or tuple(KINDS)
    return [(chosen[i % len(chosen)], 1_000_000 * seed + i // len(chosen)) for i in range(count)]


# What a problem is solved by


def _measure(rng: Random, n: int, kind: str) -> str:
    """Where all rows are the same, ROCArea and PRBEP have their minimum at 0, and nothing is left to prove."""
    shares = [0.05, 0.05, 0.6, 0.1, 0.05, 0.05, 0.05, 0.05] if kind == "identical-rows" else SHARES_OF_MEASURES
    measure = str(rng.choice(MEASURES, p=shares))
    return measure.replace("@k", f"@{rng.integers(1, n + 1)}")


def _ways(rng: Random, measure: str) -> tuple[Way, ...]:
    """The default solver as it is, and some of those that take the measure, as drawn."""
    smooth = registry.loss_class(measure, "gather").smooth
    able = [name for name in SOLVERS if smooth or not solver_class(name).traits.smooth]
    plain = Way(_settings(able[0]), "gather", "root", (4,), ())
    drawn = [_way(rng, name, measure) for name in able if rng.random() < SHARES[name]]
    return (plain, *drawn)


def _settings(solver: str) -> dict[str, Any]:
    return {
        "solver": solver,
        "max_evaluations": LONGEST.get(solver, MOST_EVALUATIONS),
        "time_limit": MOST_SECONDS,
    }


def _way(rng: Random, solver: str, measure: str) -> Way:
    traits = solver_class(solver).traits
    settings = _settings(solver)
    if traits.planes is Planes.PROOF:
        settings["planes"] = int(rng.choice([2, 2, 2, 2, 3, 5, 10, 30, 100]))
    if traits.planes is Planes.MODEL and rng.random() < 0.2:
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
    ordering = "exchange" if measure in ("rocarea", "prbep") and rng.random() < 0.4 else "gather"
    step = "spread" if traits.spreadable and rng.random() < 0.4 else "root"
    starts = int(rng.choice([1, 2, 3], p=[0.85, 0.1, 0.05]))
    ranks = tuple(int(one) for one in rng.integers(1, 5, starts)) if starts > 1 else (4,)
    return Way(settings, ordering, step, ranks, tuple(np.cumsum(rng.integers(1, 25, starts - 1)).tolist()))


# What rows are like


def _size(rng: Random, low: float, high: float) -> float:
    """Log-uniform."""
    return float(10 ** rng.uniform(np.log10(low), np.log10(high)))


def _sizes(rng: Random, low: float, high: float, count: Any) -> Floats:
    return 10 ** rng.uniform(np.log10(low), np.log10(high), count)


def _shape(rng: Random) -> tuple[int, int]:
    """Rows, mostly few, and columns."""
    n = int(rng.integers(2, 15)) if rng.random() < 0.9 else int(rng.integers(15, 41))
    return n, int(rng.integers(1, 9))


def _labels(rng: Random, n: int, n_pos: int | None = None) -> Labels:
    n_pos = int(rng.integers(1, n)) if n_pos is None else n_pos
    y = np.full(n, -1, np.int8)
    y[rng.choice(n, n_pos, replace=False)] = 1
    return y


def _noise(rng: Random, y: Labels, p: int) -> Floats:
    """Normal rows, the positive ones moved a little."""
    return rng.normal(size=(len(y), p)) + np.outer(y > 0, rng.normal(size=p))


def plain(rng: Random) -> tuple[Floats, Labels]:
    """Nothing special."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    return _noise(rng, y, p), y


def identical_rows(rng: Random) -> tuple[Floats, Labels]:
    """All rows are the same, of any size."""
    n, p = _shape(rng)
    row = np.ones(p) if rng.random() < 0.5 else rng.normal(size=p)
    return np.tile(row * (1.0 if rng.random() < 0.5 else _size(rng, 1e-6, 1e6)), (n, 1)), _labels(rng, n)


def ties(rng: Random) -> tuple[Floats, Labels]:
    """Small whole numbers, and doubles of rows, also of other labels."""
    n, p = _shape(rng)
    X = rng.integers(-1, 2, (n, p)).astype(float)
    return X[rng.integers(0, max(1, n // 2), n)], _labels(rng, n)


def one_positive(rng: Random) -> tuple[Floats, Labels]:
    """A single positive row."""
    n, p = _shape(rng)
    y = _labels(rng, n, 1)
    return _noise(rng, y, p), y


def one_negative(rng: Random) -> tuple[Floats, Labels]:
    """A single negative row."""
    n, p = _shape(rng)
    y = _labels(rng, n, n - 1)
    return _noise(rng, y, p), y


def more_positives(rng: Random) -> tuple[Floats, Labels]:
    """n+ > n-, by far or by little, rows of whole numbers or not."""
    n, p = _shape(rng)
    n = max(n, 3)
    y = _labels(rng, n, int(rng.integers(n // 2 + 1, n)))
    X = _noise(rng, y, p)
    return np.round(X) if rng.random() < 0.5 else X, y


def column_scales(rng: Random) -> tuple[Floats, Labels]:
    """Columns of sizes from 1e-12 to 1e12."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    return _noise(rng, y, p) * _sizes(rng, 1e-12, 1e12, p), y


def one_scale(rng: Random) -> tuple[Floats, Labels]:
    """All values of one size, from 1e-12 to 1e12."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    return _noise(rng, y, p) * _size(rng, 1e-12, 1e12), y


def bad_columns(rng: Random) -> tuple[Floats, Labels]:
    """Few columns of sizes from 1 to 1e7, all with signal: nearly what people have who scale nothing."""
    n, p = int(rng.integers(6, 31)), int(rng.integers(2, 6))
    y = _labels(rng, n)
    return _noise(rng, y, p) * _sizes(rng, 1e-1, 1e7, p), y


def mixed_scales(rng: Random) -> tuple[Floats, Labels]:
    """Every value, or every row, of its own size; many zeros."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    far = float(rng.choice([1e3, 1e6, 1e12]))
    sizes = _sizes(rng, 1 / far, far, (n, p) if rng.random() < 0.5 else (n, 1))
    return _noise(rng, y, p) * sizes * (rng.random((n, p)) < 0.7), y


def offset(rng: Random) -> tuple[Floats, Labels]:
    """Rows that are nearly the same: what tells them apart is far smaller than what they share."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    shared = rng.normal(size=p) * _sizes(rng, 1, 1e9, p)
    return shared + _noise(rng, y, p) * _size(rng, 1e-6, 1.0), y


def steep(rng: Random) -> tuple[Floats, Labels]:
    """A few rows far out among near ones: steep planes beside flat ones, which nearly cancel."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    X = _noise(rng, y, p)
    X[rng.random(n) < 0.3] *= _size(rng, 1e3, 1e9)
    if n > 3:  # opposite twins
        X[1] = X[0] * (-1 if rng.random() < 0.5 else 1)
    return X, y


def wide(rng: Random) -> tuple[Floats, Labels]:
    """Far more columns than rows."""
    n, p = int(rng.integers(2, 9)), int(rng.integers(30, 90))
    y = _labels(rng, n)
    return _noise(rng, y, p) * (rng.random((n, p)) < rng.choice([0.1, 1.0])), y


def separable(rng: Random) -> tuple[Floats, Labels]:
    """The classes apart along one direction, by little or by much."""
    n, p = _shape(rng)
    y = _labels(rng, n)
    direction = rng.normal(size=p)
    X = rng.normal(size=(n, p))
    X -= np.outer(X @ direction, direction) / (direction @ direction)
    return X + np.outer(y * rng.uniform(1, 2, n), direction) * _size(rng, 1e-6, 1e2), y


def zeros(rng: Random) -> tuple[Floats, Labels]:
    """Rows and columns of zeros only, perhaps all of them."""
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
"""From and to, where not everything."""
