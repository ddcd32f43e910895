"""Estimates of measures as means over rows, with their spread: what `distsms.metrics.confidence` makes intervals of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.metrics.ranking import exact_sum, placements, top_k_shares
from distsms.metrics.row_weights import effective_sizes, mass_of_classes, weighted_mean

MODEL = "this model on new rows"
TRAINED = "this model on rows that partly trained it"
METHOD = "the method, if it is trained on new rows and measured on other new rows"


class MeanEstimate(NamedTuple):
    """A measure as a mean over rows; for several folds, the mean of the folds' measures."""

    value: float  # the measure
    # the sum of squared deviations from the mean for the positive rows, and that for the negative rows. PRBEP has only
    # the first.
    squares: tuple[float, ...]
    # the number of positive and of negative rows; for precision@k, of the k rows with the highest
    # scores and of all others. With weights, the effective numbers of rows.
    counts: tuple[float, float]
    folds: int = 0  # the number of folds; 0 if the estimate is about one model
    of_folds: int = 0  # into how many folds the rows are divided, if the estimate is of some of them; 0 if it is of all

    @property
    def factor(self) -> float:
        """The factor by which the variance grows if the training rows are new, too; 1 for one model."""
        return 1 + self.folds / ((self.of_folds or self.folds) - 1) if self.folds else 1.0

    @property
    def error(self) -> float:
        """The standard error; NaN if a class has fewer than two rows."""
        parts = list(zip(self.squares, self.counts, strict=False))
        if min(n for _, n in parts) < 2:
            return math.nan
        return math.sqrt(self.factor * sum(square / (n * (n - 1)) for square, n in parts))

    @property
    def of(self) -> str:
        """What an interval is about: `MODEL` or `METHOD`."""
        return METHOD if self.folds else MODEL


def rocarea_estimate(twice: NDArray[Any], scored: Scored) -> MeanEstimate:
    """Estimate ROCArea, or a difference, by DeLong's method from `ranking.placements`, or theirs. **Collective.**"""
    weights, comm, (positive, negative) = scored.weights, scored.comm, scored.classes
    if weights is not None:
        of_pos, of_neg = mass_of_classes(scored)
        value = twice / np.where(positive, 2 * (of_neg or 1.0), 2 * (of_pos or 1.0))
        area, of_positive, size = weighted_mean(value, positive, weights, comm)
        _, of_negative, others = weighted_mean(value, negative, weights, comm)
        return MeanEstimate(area, (of_positive, of_negative), (size, others))
    n_pos, n_neg = map(int, comm.sum(np.array([np.count_nonzero(positive), np.count_nonzero(~positive)])))
    if not (n_pos and n_neg):
        return MeanEstimate(math.nan, (math.nan, math.nan), (n_pos, n_neg))
    total = exact_sum(twice[positive], comm)
    of_pos = (n_pos * _squares(twice[positive], comm) - total**2) / (n_pos * (2 * n_neg) ** 2)
    of_neg = (n_neg * _squares(twice[~positive], comm) - total**2) / (n_neg * (2 * n_pos) ** 2)
    return MeanEstimate(total / (2 * n_pos * n_neg), (of_pos, of_neg), (n_pos, n_neg))


def _squares(values: NDArray[np.int64], comm: Communicator) -> int:
    """Return the exact sum of the squares of all ranks' values, which must be below 2^46. Collective."""
    upper, lower = values >> 16, values & 0xFFFF
    parts = (exact_sum(products, comm) for products in (upper * upper, upper * lower, lower * lower))
    return sum(part << shift for part, shift in zip(parts, (32, 17, 0), strict=True))


def prbep_estimate(share: Floats, scored: Scored) -> MeanEstimate:
    """Estimate PRBEP, or a difference, and its spread from `ranking.top_k_shares`, or theirs. **Collective.**"""
    if scored.weights is not None:
        value, squares, _ = weighted_mean(share, scored.labels > 0, scored.weights, scored.comm)
        return MeanEstimate(value, (squares,), effective_sizes(scored))
    of_positives, (n_pos, n_neg) = share[scored.labels > 0], mass_of_classes(scored)
    total, square = scored.comm.sum(np.array([np.sum(of_positives), np.sum(of_positives * of_positives)])).tolist()
    if not n_pos:
        return MeanEstimate(math.nan, (math.nan,), (n_pos, n_neg))
    return MeanEstimate(total / n_pos, (max(square - total**2 / n_pos, 0.0),), (n_pos, n_neg))


def top_k_estimates(share: Floats, k: int, scored: Scored) -> tuple[MeanEstimate, MeanEstimate]:
    """Estimate precision@k, over k rows, and recall@k, over the positives, as `prbep_estimate`. **Collective.**"""
    recall = prbep_estimate(share, scored)
    n_pos, n_neg = recall.counts
    precision = min(recall.value * n_pos / k, 1.0) if n_pos else 0.0  # rounding may exceed 1
    return MeanEstimate(precision, (k * precision * (1 - precision),), (k, n_pos + n_neg - k)), recall


def measure_estimate(measure: str, scored: Scored) -> MeanEstimate:
    """Compute ROCArea or PRBEP and its spread. **Collective.**"""
    if measure == "rocarea":
        return rocarea_estimate(placements(scored), scored)
    return prbep_estimate(top_k_shares(scored, mass_of_classes(scored)[0]), scored)


def pool_folds(folds: Sequence[MeanEstimate], of_folds: int = 0) -> MeanEstimate:
    """Combine the estimates of folds, which have no row in common, into an estimate of the method's mean; `of_folds`:
    into how many folds the rows are divided, if these are some of them. Local."""
    values = np.array([fold.value for fold in folds])
    counts = np.array([fold.counts for fold in folds])
    squares = np.array([fold.squares for fold in folds])
    masses = counts[:, : squares.shape[1]]
    about = values[:, None] - (masses * values[:, None]).sum(0) / masses.sum(0)
    n_pos, n_neg = counts.sum(0).tolist()
    pooled = tuple((squares + masses * about**2).sum(0).tolist())
    return MeanEstimate(float(values.mean()), pooled, (n_pos, n_neg), len(folds), of_folds)
