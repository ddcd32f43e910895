"""Make the losses of this rank's rows: one for a training, or one for each fold of a cross-validation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distsms.base.measures import Measure
from distsms.losses.base import Loss
from distsms.losses.registry import choose_ordering, make_loss
from distsms.parallel.communicator import Communicator
from distsms.shards.dataset import DataBlock


def make_losses(
    block: DataBlock,
    measure: str | Measure,
    ordering: str,
    comm: Communicator,
    subsets: Sequence[NDArray[np.bool_] | None] = (None,),
) -> tuple[str, list[Loss]]:
    """Return how the scores are sorted (the ordering), and one loss for each subset of the rows. **Collective.**

    Parameters
    ----------
    block : DataBlock
        This rank's rows.
    measure : str or Measure
        What is trained for.
    ordering : str
        ``"gather"``, ``"exchange"``, ``"bins"`` or ``"auto"``, which takes what costs less for these numbers of rows.
    subsets : sequence of ndarray of shape (n_local,) or None
        The rows of each loss; None means all rows. Rows of weight 0 are in no loss.

    Raises
    ------
    InputError
        On all ranks, if a class is missing, or if there are weights that the loss does not support.
    """
    counted, labels, weights = block.counted, block.labels, block.weights
    counts = np.array([np.count_nonzero(counted & (labels == sign)) for sign in (1, -1)])
    n_pos, n_neg = (max(int(count), 1) for count in comm.sum(counts))
    groups = block.groups
    ordering, _ = choose_ordering(ordering, measure, n_pos, n_neg, comm.size)

    def weighting(rows: NDArray[np.bool_] | None) -> NDArray[np.float64] | None:
        return weights if rows is None else np.where(rows, 1.0 if weights is None else weights, 0.0)

    return ordering, [make_loss(measure, ordering, labels, weighting(rows), comm, groups) for rows in subsets]
