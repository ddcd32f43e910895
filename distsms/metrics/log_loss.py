"""The loss of logistic regression, by which a model for it is measured."""

from __future__ import annotations

import numpy as np

from distsms.base.typing import Floats, Labels
from distsms.metrics.row_weights import mass_of_classes
from distsms.parallel.communicator import Communicator


def log_loss(
    scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None, balanced: bool = False
) -> float:
    """Return the mean of -log p over the rows, p = 1 / (1 + exp(-y s)) for the true label y. **Collective.**

    balanced : return the mean of both classes' means. The result is NaN if a class that is needed has no rows.
    """
    terms, positive = np.logaddexp(0.0, -labels * scores), labels > 0
    weighted = terms if weights is None else weights * terms
    sums = comm.sum(np.array([np.sum(weighted[positive]), np.sum(weighted[~positive])]))
    masses = np.array(mass_of_classes(labels, weights, comm))
    with np.errstate(invalid="ignore"):
        return float(np.mean(sums / masses) if balanced else np.sum(sums) / np.sum(masses))
