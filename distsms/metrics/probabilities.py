"""How good the probabilities 1 / (1 + exp(-s)) are that the scores of logistic regression stand for."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from distsms.metrics.row_weights import mass_of_classes
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats, Labels


def log_loss(
    scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None, balanced: bool = False
) -> float:
    """Return the mean of -log p over the rows, p the probability of the true label. **Collective.**

    Parameters
    ----------
    scores, labels : (n_local,)
        This rank's scores, and labels +1 or -1.
    comm : Communicator
        The ranks.
    weights : (n_local,) float64, optional
        The weights of the rows, above 0.
    balanced : bool
        Whether to return the mean of both classes' means.

    Returns
    -------
    float
        NaN if a class that is needed has no rows.
    """
    return _mean(np.logaddexp(0.0, -labels * scores), labels, comm, weights, balanced)


def brier(
    scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None, balanced: bool = False
) -> float:
    """Return the Brier score, the mean of (1 - p)^2; the parameters are those of `log_loss`. **Collective.**"""
    return _mean(expit(-labels * scores) ** 2, labels, comm, weights, balanced)


def _mean(terms: Floats, labels: Labels, comm: Communicator, weights: Floats | None, balanced: bool) -> float:
    weighted, positive = terms if weights is None else weights * terms, labels > 0
    sums = comm.sum(np.array([np.sum(weighted[positive]), np.sum(weighted[~positive])]))
    masses = np.array(mass_of_classes(labels, weights, comm))
    with np.errstate(invalid="ignore"):
        return float(np.mean(sums / masses) if balanced else np.sum(sums) / np.sum(masses))
