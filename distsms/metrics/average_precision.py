"""Average precision over all ranks, by a sample sort."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats, Labels

SAMPLE = 512
"""The average number of scores that each rank contributes to the sample from which `average_precision` chooses its
ranges. Tests lower it.
"""


def average_precision(scores: Floats, labels: Labels, comm: Communicator, weights: Floats | None = None) -> float:
    """Compute the average precision of all ranks' scores, on every rank. **Collective.**

    Parameters
    ----------
    scores, labels : (n_local,)
        This rank's scores, and labels +1 or -1.
    comm : Communicator
        The ranks.
    weights : (n_local,) float64, optional
        The weights of the rows, above 0.

    Returns
    -------
    float
        NaN without positive rows, or if a score is NaN.

    Notes
    -----
    This is a sample sort. Each rank gets the different scores in one range, with the number of rows of each class that
    have them, and learns how many rows are above its range. A rank sends 16 bytes for each different score that it has
    in a class. It receives at most about 1/P + 2/SAMPLE of the scores of all ranks. O((n/P) log n) time.
    """
    classes = [
        _different(scores[rows], None if weights is None else weights[rows]) for rows in (labels > 0, labels < 0)
    ]
    sizes = [np.count_nonzero(labels > 0), np.count_nonzero(np.isnan(scores)), *(len(values) for values, _ in classes)]
    n_pos, undefined, *different = map(int, comm.sum(np.array(sizes)))
    if undefined or not n_pos:
        return float("nan")
    # Each score in the sample stands for `step` scores, or fewer for the last one of a rank and class. So the places of
    # the sample's quantiles among all scores are wrong by at most 2 P steps.
    step = -(-sum(different) // (SAMPLE * comm.size))
    own = np.concatenate([values[::step] for values, _ in classes])
    sample = np.sort(comm.allgather_rows(own, comm.allgather(len(own))))
    splitters = sample[len(sample) * np.arange(1, comm.size) // comm.size]
    ranges = [_own_range(values, counts, splitters, comm) for values, counts in classes]
    # For each positive, how many positives and how many negatives have at least its score.
    positive, counts, _ = ranges[0]
    tp, fp = (reach[np.searchsorted(values, positive)] for values, _, reach in ranges)
    total, of_all = comm.sum(np.array([np.sum(counts * (tp / (tp + fp))), np.sum(counts)], np.float64)).tolist()
    return float(total / of_all)


def _different(scores: Floats, weights: Floats | None) -> tuple[Floats, NDArray[Any]]:
    """Return the different scores, sorted, and how many rows have each of them, or the sum of their weights."""
    if weights is None:
        return np.unique(scores, return_counts=True)
    values, which = np.unique(scores, return_inverse=True)
    return values, np.bincount(which, weights, len(values)).astype(np.float64)  # of no rows, NumPy returns integers


def _own_range(
    values: Floats, counts: NDArray[Any], splitters: Floats, comm: Communicator
) -> tuple[Floats, NDArray[Any], NDArray[Any]]:
    """Return the scores of a class that are in this rank's range.

    Collective. The parameters are this rank's different scores, sorted, and the number of rows that have them. The
    results are: the m sorted scores in this rank's range, (m,), where a score occurs once for each rank that sent it;
    how many rows of that rank have it, (m,); and for each place in this order, and for its end, how many rows of all
    ranks are at or after it, (m + 1,). With weights, the numbers are sums of weights.
    """
    to = np.bincount(np.searchsorted(splitters, values, "right"), minlength=comm.size)
    values, counts = (comm.alltoall_rows(array, to)[0] for array in (values, counts))
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    reach = np.cumsum(np.append(counts, 0)[::-1])[::-1]
    return values, counts, reach + sum(comm.allgather(reach[0].item())[comm.rank + 1 :])
