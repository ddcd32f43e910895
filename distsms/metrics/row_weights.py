"""Sums of the weights of rows over all ranks, whole numbers without weights (on all ranks or none), and what rows of
different weights are worth. Rows of weight 0 have been left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.parallel.order_statistics import FEW, POSITIVE, PositionSearch

BLOCK = 2**14
"""Number of rows that are worked on at a time, where arrays for all rows would take much memory."""
ROUNDING = 1e-13
"""By this share of their sum, weights may differ from it if they are added in another order."""


def masses(groups: Iterable[NDArray[np.bool_]], weights: Floats | None, comm: Communicator) -> NDArray[Any]:
    """Return the sum of weights of each of `groups` of rows, (n_local,) each: int64 without weights. **Collective.**"""
    if weights is None:
        return comm.sum(np.array([np.count_nonzero(rows) for rows in groups]))
    return comm.sum(np.array([np.sum(weights[rows]) for rows in groups]))


def mass_of_classes(scored: Scored) -> tuple[float, float]:
    """Return the sum of the weights of all positive rows, and that of all negative rows. **Collective.**"""
    positive, negative = masses(scored.classes, scored.weights, scored.comm).tolist()
    return positive, negative


def effective_sizes(scored: Scored) -> tuple[float, float]:
    """Return both classes' effective numbers of rows, (sum a_i)^2 / sum a_i^2 (Kish 1965). **Collective.**"""
    weights, comm = scored.weights, scored.comm
    if weights is None:
        return mass_of_classes(scored)
    largest = comm.maximum(np.array([np.max(weights, where=rows, initial=0.0) for rows in scored.classes]))
    largest[largest == 0] = 1.0
    parts = weights / np.where(scored.labels > 0, *largest)  # whose squares neither overflow nor vanish
    sums, squares = (masses(scored.classes, values, comm) for values in (parts, parts * parts))
    positive, negative = np.where(squares > 0, sums**2 / np.where(squares > 0, squares, 1.0), 0.0).tolist()
    return positive, negative


def weighted_mean(
    values: Floats, rows: NDArray[np.bool_], weights: Floats, comm: Communicator
) -> tuple[float, float, float]:
    """Return the weighted mean of values, its `MeanEstimate.squares`, and effective number; or NaN. **Collective.**"""
    size = effective_sizes(Scored(values, np.where(rows, 1, -1).astype(np.int8), comm, weights))[0]
    if not size:
        return math.nan, math.nan, 0.0
    total, product = comm.sum(np.array([np.sum(weights[rows]), np.sum(weights[rows] * values[rows])])).tolist()
    mean = product / total
    squares = float(comm.sum(np.array([np.sum((weights[rows] / total * (values[rows] - mean)) ** 2)]))[0])
    return mean, size**2 * squares, size


def mean_and_deviation(scored: Scored) -> tuple[float, float]:
    """Return the (weighted) mean of all scores and their standard deviation; NaN without rows. **Collective.**"""

    def total(centre: float, power: int) -> float:
        blocks = (scored.of(slice(start, start + BLOCK)) for start in range(0, len(scored.scores), BLOCK))
        return sum((float(np.sum(rows.mass * (rows.scores - centre) ** power)) for rows in blocks), start=0.0)

    mass_here = float(len(scored.scores)) if scored.weights is None else float(np.sum(scored.weights))
    summed, mass = scored.comm.sum(np.array([total(0.0, 1), mass_here])).tolist()
    if not mass:
        return math.nan, math.nan
    mean = summed / mass
    return mean, math.sqrt(float(scored.comm.sum(np.array([total(mean, 2)]))[0]) / mass)


def describe_weights(scored: Scored) -> dict[str, float]:
    """Return the sum of the weights of each class, and the effective numbers of rows. **Collective.**"""
    names = ("positive", "negative", "effective_positive", "effective_negative")
    return dict(zip(names, (*mass_of_classes(scored), *effective_sizes(scored)), strict=True))


def effective(scored: Scored) -> Scored:
    """Return rows with weights of the same ratios whose sum is the effective number of all rows. **Collective.**"""
    weights, comm = scored.weights, scored.comm
    if weights is None:
        return scored
    parts = weights / (float(comm.maximum(np.array([weights.max(initial=0.0)]))[0]) or 1.0)
    total, squares = comm.sum(np.array([np.sum(parts), np.sum(parts * parts)])).tolist()
    return replace(scored, weights=parts * (total / (squares or 1.0)))


def differ(weights: Floats | None, comm: Communicator) -> bool:
    """Return whether some rows have other weights than others, over all ranks. **Collective** with weights."""
    if weights is None:
        return False
    high, low = comm.maximum(np.array([weights.max(initial=-np.inf), np.max(-weights, initial=-np.inf)])).tolist()
    return bool(high > -low)


def require_equal(weights: Floats | None, measure: str, comm: Communicator) -> None:
    """Raise InputError if some rows have other weights than others, since the measure counts rows. **Collective.**"""
    if differ(weights, comm):
        raise InputError(
            f"{measure} counts rows, so different weights of rows mean nothing to it: leave the weights out, or choose "
            "a measure such as rocarea, prbep, error-rate or average-precision",
            everywhere=True,
        )


def select_by_weight(scored: Scored, mass: float) -> float:
    """Return the highest score from which on the rows weigh `mass` or more, the lowest if all weigh less; NaN without
    rows or a mass above 0, and for scores that are not finite. **Collective**, as `order_statistics.select`."""
    scores, weights, comm = scored.scores, scored.mass, scored.comm
    total, n = comm.sum(np.array([np.sum(weights), len(scores)])).tolist()
    if not (total > 0 and mass > 0):
        return float("nan")
    reached = min(mass, total * (1 - ROUNDING))
    if n <= FEW:
        scores, weights = (comm.allgather_rows(each, comm.allgather(len(each))) for each in (scores, weights))
        order = np.argsort(-scores)
        at = int(np.searchsorted(np.cumsum(weights[order]), reached))
        return float(scores[order[min(at, len(order) - 1)]]) if np.isfinite(scores).all() else float("nan")
    search = PositionSearch(np.full(len(scores), POSITIVE, np.uint8), reached, weights, comm)
    return -search.find(-np.asarray(scores, np.float64), 0.0)  # the lowest of the negative scores
