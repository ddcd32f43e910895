"""A start for ROCArea on many rows: stochastic subgradient descent over pairs of rows (Pegasos).

Step t moves w against a subgradient of lambda/2 ||w||^2 + max(0, 1 - <x_i - x_j, w>) by

    eta_t = 1 / (lambda (t + t0)),    t0 = max(2, 1 / (lambda eta_0)),    eta_0 = RATE / mean ||x_i - x_j||^2

The start is the mean of w over the second half of the steps, averaged over ranks, each of which takes rows of its own
(of streamed ones, those that stay in memory) at equal distances. With many rows, a tenth of them comes close to the
minimum. If the hinges say that it is hardly better than w = 0, the run begins there.

See Shalev-Shwartz et al., Mathematical Programming 127, 2011; Agarwal et al., JMLR 15, 2014, who start L-BFGS alike.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import njit
from distsms.base.typing import Floats
from distsms.optim.dual_ascent import is_usual
from distsms.optim.objective import Objective
from distsms.optim.rows import add, column_of, score
from distsms.optim.settings import Settings, descends

RATE = 0.5
SHARE, LEAST = 0.1, 2**12
"""From each class, a rank takes as many rows as this share of its larger class has, and at least so many."""
PAIRS = 256
"""The number of pairs for the mean of ||x_i - x_j||^2."""
BETTER = 0.95
"""The start is used if it is estimated that J is at most this share of J at w = 0."""


def suits(objective: Objective, settings: Settings) -> bool:
    loss = objective.losses[0]
    return is_usual(objective, settings) and loss.family.has_descent and descends(loss.n, objective.p)


def start(objective: Objective, settings: Settings) -> tuple[Floats | None, float]:
    """Return the start (p,), alike on every rank, None if w = 0 is as good; and its seconds. **Collective.**"""
    comm, loss = objective.comm, objective.losses[0]
    lam, p = settings.lam, objective.p
    w, lag, none = np.zeros(p), np.zeros(p), np.empty(0, np.intp)
    if (rows := objective.features.row_entries(none)) is not None:  # load the loops, which does not count, or compile
        squared_distances(rows, none, none, w)
        descend(rows, none, none, lam, 2.0, w, lag)
    begun, rng = time.perf_counter(), np.random.default_rng(0)
    with objective.clock.phase("start"):
        # 1) Rows of both classes, at most a share of them.
        here, classes = objective.features.rows_in_memory(), (loss.positive, loss.negative)
        most = max(LEAST, int(SHARE * max(map(np.count_nonzero, classes))))
        picked = [_drawn(np.flatnonzero(of_class & here), loss.weights, most, rng) for of_class in classes]
        visited = np.concatenate(picked)
        places = np.arange(len(visited))
        if loss.weights is not None:  # then rows may be drawn several times
            visited, places = np.unique(visited, return_inverse=True)
        rows = objective.features.row_entries(visited)
        positives, negatives = np.split(places, [len(picked[0])])
        # 2) The length of the steps, from the mean distance of pairs.
        pairs = min([PAIRS, *map(len, picked)])
        distances = squared_distances(rows, positives[:pairs], negatives[:pairs], w) if pairs else 0.0
        total, number = comm.sum(np.array([distances, pairs]))
        # 3) Each rank descends on its rows; the start is the mean of the results.
        totals = np.zeros(p + 2)
        if pairs:
            t0 = max(2.0, total / number / (RATE * lam))
            totals[p:] = descend(rows, positives, negatives, lam, t0, w, lag)
            totals[:p] = totals[p + 1] * lag
        totals = comm.sum(totals)
        if not totals[p + 1] > 0:
            return None, time.perf_counter() - begun
        mean = totals[:p] / totals[p + 1]
        J = totals[p] / totals[p + 1] + lam / 2 * float(mean @ mean)
    better = BETTER * loss.R_at_zero >= J  # NaN is not
    return mean if better else None, time.perf_counter() - begun


def _drawn(rows: NDArray[np.intp], weights: Floats | None, most: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return at most so many of the rows, equally far apart by weight, in random order. Local."""
    k = min(most, len(rows))
    places = rng.permutation(k)
    if weights is None or not k:
        return rows[places * len(rows) // max(k, 1)]
    sums = np.cumsum(weights[rows])
    drawn = np.searchsorted(sums, (places + 0.5) / k * sums[-1], side="right")
    return rows[np.minimum(drawn, len(rows) - 1)]


@njit(error_model="numpy", fastmath={"reassoc", "nsz", "contract"})
def descend(rows, positives, negatives, lam, t0, w, lag):  # type: ignore[no-untyped-def]
    """Take a step for each of the rows in this order, those of the smaller class again and again; return the sum of the
    hinges in the second half, and their number. w and lag, zeros, become the last w, and its mean over the second half.
    """
    # w is kept as a v, so that a step costs what the entries of two rows cost. v is in the array w. After the second
    # half, the sum of a v over its steps is `scale` times v, less what each change of v has missed, which is in `lag`.
    steps = max(len(positives), len(negatives))
    a, scale, hinges = 1.0, 0.0, 0.0
    for t in range(steps):
        i, j = positives[t % len(positives)], negatives[t % len(negatives)]
        hinge = 1.0 - a * (score(rows, i, w) - score(rows, j, w))
        late = 2 * t >= steps
        a *= 1.0 - 1.0 / (t + t0)
        if hinge > 0.0:
            step = 1.0 / (lam * (t + t0) * a)
            add(rows, i, step, w)
            add(rows, j, -step, w)
            if late:
                hinges += hinge
                add(rows, i, step * scale, lag)
                add(rows, j, -step * scale, lag)
        if late:
            scale += a
    number = float(steps - (steps + 1) // 2)
    for k in range(len(w)):
        lag[k] = (scale * w[k] - lag[k]) / max(number, 1.0)
        w[k] *= a
    return hinges, number


@njit(error_model="numpy")
def squared_distances(rows, positives, negatives, difference):  # type: ignore[no-untyped-def]
    """Return the sum of ||x_i - x_j||^2 over pairs of rows (k,); `difference` (p,) is 0, and will be so again."""
    total = 0.0
    for i, j in zip(positives, negatives):  # noqa: B905 - Numba's has no `strict`
        add(rows, i, 1.0, difference)
        add(rows, j, -1.0, difference)
        for row in (i, j):
            begin = rows.begins[row]
            for k in range(begin, rows.ends[row]):
                column = column_of(rows.columns, k, begin)
                total += difference[column] ** 2
                difference[column] = 0.0
    return total
