"""Which rows a sample has: a hash of each row's number says so, on any number of ranks alike."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.utils.hashing import row_keys

_STREAM = 3 * 2**61
"""Added to the seed, so that a sample draws other numbers than folds, splits and intervals do."""


class Shares(NamedTuple):
    """The share of the positive and of the negative rows that a sample has; 1 takes all of them."""

    positive: float
    negative: float


def in_sample(rows: NDArray[Any], labels: NDArray[np.int8], shares: Shares, seed: int = 0) -> NDArray[np.bool_]:
    """Return which of these rows belong to the sample, (n,). Local.

    Parameters
    ----------
    rows : ndarray of int64 or uint64, shape (n,)
        The numbers of the rows in the whole data set, or the keys of their groups.
    labels : ndarray of int8, shape (n,)
        +1 or -1.
    shares : Shares
    seed : int
        Another seed draws another sample.
    """
    return row_keys(rows, _STREAM + seed) / 2.0**64 < np.where(labels > 0, shares.positive, shares.negative)
