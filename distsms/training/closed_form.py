"""The closed form of normal-auc for the rows of a training, and for the training rows of every fold, in one pass."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from distsms.base.measures import Measure
from distsms.matrix.blocks import LocalRows
from distsms.matrix.moments import Moments
from distsms.optim.result import Result, Status
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.shards.dataset import DataBlock
from distsms.training.normal_auc_closed import bytes_of_moments, solve


def pays(block: DataBlock, measure: str | Measure, comm: Communicator, l1: float, losses: int = 1) -> bool:
    """Return whether the closed form is possible, and costs less than iterating. **Collective.**

    block : this rank's rows. l1, losses : see `distsms.training.normal_auc_closed.bytes_of_moments`.
    """
    if not Measure.parse(measure).family.closed_form or l1:
        return False
    features = block.features
    sizes = comm.sum(np.array([features.shape[0], features.nnz], np.int64)).tolist()
    return bytes_of_moments(measure, sizes[0], block.p, sizes[1], not can_gather(block), losses, l1) > 0


def can_gather(block: DataBlock) -> bool:
    """Return whether the rows have moments: they are stored as numbers, not as codes. Local."""
    return isinstance(block.features, LocalRows) and type(block.features)._gather is not LocalRows._gather


class ClosedForm:
    """The minima of normal-auc on all rows, and on the training rows of each fold. Creating it is **collective.**

    Parameters
    ----------
    block : DataBlock
        This rank's rows.
    comm : Communicator
        The ranks.
    number : ndarray of int16, shape (n_local,), optional
        The fold of each row; see `distsms.workflow.folds.Folds`.
    folds : int
        The number of folds.
    forward : bool
        Whether fold f is trained on the rows of the folds before it.

    Notes
    -----
    One pass over the rows, and two sums over the ranks, of (folds + 1) p^2 numbers twice.
    """

    def __init__(
        self,
        block: DataBlock,
        comm: Communicator,
        number: NDArray[np.int16] | None = None,
        folds: int = 0,
        forward: bool = False,
    ) -> None:
        assert isinstance(block.features, LocalRows)
        of_rows = np.zeros(len(block.labels), np.int16) if number is None else number
        group = np.where(block.counted, 2 * of_rows + (block.labels < 0), -1).astype(np.int16)
        self._moments = block.features.moments(group, 2 * folds + 2, block.weights).over_ranks(comm)
        self._folds, self._forward = folds, forward
        self._trained: tuple[int, Moments | None] = (-1, None)
        self._passes = 1

    def uncounted_passes(self) -> int:
        """Return the number of passes over the rows since the last call: 1, and later 0."""
        passes, self._passes = self._passes, 0
        return passes

    def classes(self, fold: int) -> Moments:
        """Return the moments of the positive and of the negative training rows of a fold; 0 stands for all rows."""
        if self._trained[0] != fold:
            numbers = np.arange(fold if fold and self._forward else self._folds + 1)
            kept = 2 * (numbers if self._forward or not fold else numbers[numbers != fold])
            unions = [self._moments.union(kept + sign) for sign in (0, 1)]
            parts = zip(*(vars(union).values() for union in unions), strict=True)
            self._trained = fold, Moments(*(np.concatenate(part) for part in parts))
        assert self._trained[1] is not None
        return self._trained[1]

    def result(self, fold: int, settings: Settings, constant: bool = False) -> Result | None:
        """Return the outcome for a fold and the lambda of the settings; None if rounding hides the gap. Local.

        constant : whether there is a constant feature. It has no effect, and its weight is 0.
        """
        begun = time.perf_counter()
        solution = solve(self.classes(fold), settings.lam)
        if not solution.gap <= settings.target(solution.J):
            return None
        w = np.append(solution.w, 0.0) if constant else solution.w
        return Result(
            w,
            Status.PROVED,
            "",
            solution.J,
            solution.R,
            solution.lower_bound,
            solution.gap,
            J_at_zero=0.5,
            nu=0.0,
            evaluations=0,
            seconds=time.perf_counter() - begun,
            slope_at_zero=float(np.linalg.norm(solution.delta)),
        )
