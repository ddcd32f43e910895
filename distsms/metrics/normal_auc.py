"""ROCArea by normal theory: what it would be if the scores of each class had a normal distribution."""

from __future__ import annotations

import math

import numpy as np
import scipy  # loads scipy.special when it is used, which saves time in each start

from distsms.base.typing import Floats, Labels
from distsms.metrics.row_weights import mean_and_deviation
from distsms.parallel.communicator import Communicator


def normal_auc(scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None) -> float:
    """Return Phi((m+ - m-) / sqrt(v+ + v-)) of the means and variances of the scores of both classes. **Collective.**

    The result is 1/2 if all scores are equal, and NaN if a class has no rows.
    """
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
