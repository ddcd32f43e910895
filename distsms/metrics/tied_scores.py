"""Sort the scores of all ranks (a sample sort): each rank gets the different scores in one range, with the rows of each
class at every score, and how many rows are above. A measure of a ranking is then a sum over the ranks' scores.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.scored import Scored
from distsms.base.typing import Floats

SAMPLE = 512
"""The average number of scores of each rank in the sample from which the ranges are chosen. Tests lower it."""


class TiedScores(NamedTuple):
    """The different scores in this rank's range, from the highest to the lowest, with the rows that have them."""

    values: Floats  # (m,) float64: the different scores. Higher ranks have higher scores, and no score is on two ranks.
    positive: NDArray[Any]  # (m,) int64, or float64 with weights: all ranks' positive rows that have exactly this score
    negative: NDArray[Any]
    tp: NDArray[Any]  # (m,) likewise: the positive rows that have at least this score
    fp: NDArray[Any]
    n_pos: float  # all positive rows of all ranks
    n_neg: float


def tied_scores(scored: Scored) -> TiedScores:
    """Sort the scores of all ranks, rows by their weights; as if there were no rows if a score is NaN. A rank sends 24
    bytes for each of its scores, and receives at most about 1/P + 2/SAMPLE of all. **Collective.**"""
    if scored.weights is not None and not scored.weights.all():
        scored = scored.of(scored.weights > 0)
    comm, kind = scored.comm, np.int64 if scored.weights is None else np.float64
    values, at = np.unique(scored.scores, return_inverse=True)
    counts_here = [_count(at[rows], len(values), scored.weights_of(rows), kind) for rows in scored.classes]
    undefined, different = map(int, comm.sum(np.array([np.count_nonzero(np.isnan(values)), len(values)])))
    if undefined:
        values, counts_here, different = values[:0], [counts[:0] for counts in counts_here], 0
    # Each score in the sample stands for `step` scores, or fewer for the last one of a rank. So the places of the
    # sample's quantiles among all scores are wrong by at most P steps.
    picks = values[:: max(1, -(-different // (SAMPLE * comm.size)))]
    sample = np.sort(comm.allgather_rows(picks, comm.allgather(len(picks))))
    splitters = sample[len(sample) * np.arange(1, comm.size) // comm.size] if different else sample
    to = np.bincount(np.searchsorted(splitters, values, "right"), minlength=comm.size)
    received, *counts = (comm.alltoall_rows(array, to)[0] for array in (values, *counts_here))
    values, at = np.unique(received, return_inverse=True)
    positive, negative = (_count(at, len(values), each, kind)[::-1] for each in counts)
    sums = comm.allgather((positive.sum().item(), negative.sum().item()))
    above, total = (np.array(part, kind).reshape(-1, 2).sum(axis=0).tolist() for part in (sums[comm.rank + 1 :], sums))
    reach = [np.cumsum(each) + start for each, start in zip((positive, negative), above, strict=True)]
    return TiedScores(values[::-1], positive, negative, *reach, *total)


def _count(at: NDArray[np.int64], length: int, amounts: NDArray[Any] | None, kind: Any) -> NDArray[Any]:
    """Return how many entries of `at` are 0, 1, ..., length - 1, or the sums of their amounts."""
    return np.bincount(at, amounts, length).astype(kind)  # without entries, bincount ignores the amounts' type
