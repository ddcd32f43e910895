"""What models of other programs' methods are measured by: the log loss, and ROCArea by normal theory."""

from __future__ import annotations

import math

import numpy as np
import scipy  # loads scipy.special when it is used, which saves time in each start

from distsms.base.typing import Floats, Labels
from distsms.metrics.row_weights import mass_of_classes, mean_and_deviation
from distsms.parallel.communicator import Communicator


def log_loss(
    scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None, balanced: bool = False
) -> float:
    """Return the mean of -log(1 / (1 + exp(-y s))), or of both classes' means if `balanced`; or NaN. **Collective.**"""
    terms, positive = np.logaddexp(0.0, -labels * scores), labels > 0
    weighted = terms if weights is None else weights * terms
    sums = comm.sum(np.array([np.sum(weighted[positive]), np.sum(weighted[~positive])]))
    masses = np.array(mass_of_classes(labels, weights, comm))
    with np.errstate(invalid="ignore"):
        return float(np.mean(sums / masses) if balanced else np.sum(sums) / np.sum(masses))


def normal_auc(scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None) -> float:
    """Return Phi((m+ - m-) / sqrt(v+ + v-)) of the scores; 1/2 if all are equal, or NaN. **Collective.**"""
    means, deviations = zip(
        *(
            mean_and_deviation(scores[rows], None if weights is None else weights[rows], comm)
            for rows in (labels > 0, labels < 0)
        ),
        strict=True,
    )
    deviation, ahead = math.hypot(*deviations), means[0] - means[1]
    if math.isnan(ahead):
        return math.nan
    return float(scipy.special.ndtr(ahead / deviation)) if deviation else 0.5 + 0.5 * float(np.sign(ahead))
