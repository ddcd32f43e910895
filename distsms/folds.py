"""Rows dealt out to folds: stratified to the row, and the same on any number of ranks; and what folds choose.

Each class is numbered in the order of the data set, and cut into runs of as many rows as there are folds; the rows of a
run go to the folds in an order that is a hash of seed, class and numbers. So the sizes of a class's folds differ by at
most 1, and where a row goes does not depend on which rank holds it: no row travels, and one count of each class does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distsms.bootstrap import keys
from distsms.comm import Communicator
from distsms.errors import InputError


def best_of_others(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each fold the candidate of the best mean over the *other* folds, of several the first, (folds,). Local.

    values : (candidates, folds).  So no fold is measured by what it has helped to choose.
    """
    others = np.round(values.sum(axis=1, keepdims=True) - values, 12)
    return np.argmax(others, axis=0)


def deal(
    labels: NDArray[np.int8], counted: NDArray[np.bool_], folds: int, seed: int, comm: Communicator
) -> NDArray[np.int16]:
    """The fold, from 1 to `folds`, of each of this rank's rows, (n_local,); 0 where a row does not count. Collective.

    labels : (n_local,) +1 or -1.  counted : (n_local,).  O(n_local folds).
    Raises InputError, on all ranks, where a class has fewer rows than there are folds: a fold would lack it.
    """
    found = np.zeros(len(labels), np.int16)
    for sign, name in ((1, "positive"), (-1, "negative")):
        rows = np.flatnonzero(counted & (labels == sign))
        counts = comm.allgather(len(rows))
        if sum(counts) < folds:
            raise InputError(
                f"{folds} folds want at least {folds} rows of each class, and there are {sum(counts)} {name} ones; "
                "give fewer --folds",
                everywhere=True,
            )
        first = sum(counts[: comm.rank])  # this rank's rows are first, first + 1, ... of the class
        skipped, runs = first % folds, -(-(first % folds + len(rows)) // folds)
        numbers = first - skipped + np.arange(runs * folds)
        order = np.argsort(keys(numbers, 2 * seed + (sign > 0)).reshape(runs, folds), axis=1, kind="stable")
        places = np.argsort(order, axis=1).ravel()[skipped : skipped + len(rows)]
        found[rows] = 1 + places
    return found
