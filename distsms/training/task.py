"""What is trained, and with which options."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.base.typing import Floats, Hashes, Labels
from distsms.matrix.normalization import Normalization
from distsms.models.model import Model
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.shards.coded_columns import NOT_CODED
from distsms.shards.dataset import DataBlock, other_weights
from distsms.shards.manifest import Manifest
from distsms.workflow.quick_check import QuickCheck


@dataclass(frozen=True)
class TrainingTask:
    """The data, the measure and the settings of a training. All ranks have the same, except for rows in memory."""

    # a data set, of which each rank loads its share (a manifest), or this rank's rows (a block)
    data: Manifest | DataBlock
    measure: Measure  # what to optimize
    settings: Settings  # lambda, the solver, when to stop
    bias: float | None = None  # the value of a constant feature; with None there is no such feature
    # a model whose coefficients the run begins from; it may have fewer columns than the data
    start: Model | None = None
    start_name: str = "start"  # what error messages call `start`
    # how the scores of all rows are sorted, and on which ranks the solver's vectors are kept; see `distsms train
    # --help`. ``"auto"`` takes what costs less.
    ordering: str = "auto"
    step: str = "auto"
    fingerprint: str | None = None  # identifies rows in memory, for checkpoints; a data set has its own

    @classmethod
    def of_rows(
        cls,
        features: Any,
        labels: Labels,
        measure: str | Measure,
        settings: Settings,
        bias: float | None = None,
        weights: Floats | None = None,
        groups: Hashes | None = None,
    ) -> TrainingTask:
        """Return the task of training on rows in memory, all of them on this process.

        `features` is what `distsms.matrix.arrays.as_features` made from them.
        """
        size = 0, len(labels), features.shape[1], 0
        block = DataBlock(features, labels, weights, *size, weighted=other_weights(weights), groups=groups)
        return cls(block, Measure.parse(measure), settings, bias)

    @property
    def manifest(self) -> Manifest | None:
        """The data set; None for rows in memory."""
        return self.data if isinstance(self.data, Manifest) else None

    def identity(self) -> dict[str, Any]:
        """Return what a run must have in common with this one to continue from its checkpoint, for JSON."""
        settings = self.settings
        return {
            "data": self.manifest.fingerprint if self.manifest else self.fingerprint,
            "measure": self.measure.name,
            "lambda": settings.lam,
            **({"l1": settings.l1} if settings.l1 else {}),  # old checkpoints have none
            "bias": self.bias,
            "scaling": settings.scaling_of(self.data.p + bool(self.bias)),
            **{name: getattr(settings, name) for name in ("solver", "c_mu", "zero_plane")},
        }

    def check(self) -> None:
        """Raise InputError if the bias is neither None nor a finite positive number."""
        if self.bias is not None and not 0 < self.bias < math.inf:
            raise InputError(f"bias is {self.bias}; it must be a positive number, or 0 for no constant feature")

    def start_vector(self) -> Floats | None:
        """Return the coefficients that the run begins from, (p,) or with a bias (p + 1,); None for 0.

        Raises
        ------
        InputError
            If the model to start from has more columns than the data, or was made for rows normalized otherwise.
        """
        if self.start is None:
            return None
        p, begin, name = self.data.p, self.start, self.start_name
        how = self.manifest.normalization if self.manifest else Normalization()
        coded = self.manifest.coded if self.manifest else NOT_CODED
        if begin.coded.maps != coded.maps:
            theirs, ours = (columns.describe() if columns else "no codes" for columns in (begin.coded, coded))
            raise InputError(f"{name}: was trained on {theirs}, and the data have {ours}")
        if begin.p > p:
            raise InputError(
                f"{name}: has {begin.p} columns, the data {p}; a start wants a model of the same features or fewer"
            )
        if (begin.normalization.kind == "l2") != (how.kind == "l2"):
            raise InputError(f"{name}: is for rows normalized as {begin.normalization.kind}, the data are {how.kind}")
        before = begin.p - coded.p  # new columns come before the coded ones
        w = how.unfold(np.insert(begin.w, before, np.zeros(p - begin.p)))
        return np.append(w, begin.bias / self.bias) if self.bias else w


class Decider(Protocol):
    """Finds a threshold and probabilities with models of folds, which it trains. See `Decisions` of `selection`."""

    @property
    def folds(self) -> int:
        """The number of folds."""

    def at_once(self, p: int, memory: float | None) -> int:
        """Return how many models of p columns are trained in the same passes. Local."""

    def make_folds(self, block: DataBlock, task: TrainingTask, comm: Communicator) -> Any:
        """Raise InputError if the rows do not suffice for the folds. **Collective.**"""

    def __call__(self, block: DataBlock, task: TrainingTask, comm: Communicator, *how: Any) -> dict[str, Any] | None:
        """Return what the model's information gets; None if it was stopped. **Collective.**"""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that do not change its result: memory, files, when to stop, and what to measure at the end."""

    # the most bytes that each rank may take; rows of a data set that do not fit are read again on each pass
    memory: float | None = None
    # a folder for the state of the run, written every `Settings.checkpoint_every` seconds and at the end
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False  # whether to continue from the newest checkpoint in that folder, if there is one
    trace: str | os.PathLike[str] | None = None  # a file that gets one JSON line for each evaluation
    # asked on every rank at each evaluation; True on any rank ends the run with what it has
    stop_wanted: Callable[[], bool] = lambda: False
    measure_rows: bool = True  # whether to compute the measures on the training rows, which sorts the scores
    # compares a model for another measure with a ROCArea model: `distsms.workflow.rocarea_check.check`
    check: Callable[..., QuickCheck] | None = None
    # whether that comparison holds out training rows. If not, the caller compares the models on test rows.
    hold_out: bool = True
    # finds a threshold and probabilities on held-out folds: `distsms.workflow.decisions.Decisions`
    decide: Decider | None = None
    # whether the data set is for this run alone, and its shards may be removed as they are read. Then rows that do
    # not fit are streamed without being asked by `memory`, since the caller would have to make the data set again.
    temporary: bool = False
