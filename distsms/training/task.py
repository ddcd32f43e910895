"""What is trained, and with which options."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from distsms.base.choices import ORDERINGS, STEPS, require_choice
from distsms.base.measures import Measure
from distsms.base.typing import Floats, Hashes, Labels
from distsms.device.place import PROCESSOR, Place
from distsms.optim.settings import Settings
from distsms.shards.dataset import DataBlock, other_weights
from distsms.shards.manifest import Manifest


class Distribution(NamedTuple):
    """How scores are sorted, and on which ranks the solver's vectors are kept; "auto" takes what costs less."""

    ordering: str = "auto"
    step: str = "auto"

    def check(self) -> None:
        """Raise InputError unless both are ways that exist."""
        require_choice("ordering", self.ordering, ("auto", *ORDERINGS))
        require_choice("step", self.step, ("auto", *STEPS))


AUTO = Distribution()


class Reserve(NamedTuple):
    """The part of a rank's memory that a run leaves free for the steps after it, if it can train with the rest."""

    bytes: float
    share: float  # of the memory, which the rank may not use, either

    def of(self, memory: float, least: float) -> float:
        """Return the bytes that are left free; 0 if a rank, which needs `least` bytes, could not train then. Local."""
        reserved = self.bytes + self.share * memory
        return reserved if least + reserved <= memory else 0.0


@dataclass(frozen=True)
class TrainingTask:
    """The data, the measure and the settings of a training. All ranks have the same, except for rows in memory."""

    data: Manifest | DataBlock  # a data set, of which each rank loads its share, or this rank's rows
    measure: Measure  # what to optimize
    settings: Settings  # lambda, the solver, when to stop
    bias: float | None = None  # the value of a constant feature; with None there is no such feature
    start: Floats | None = None  # the coefficients that the run begins from, (p,) or with a bias (p + 1,); None for 0
    distribution: Distribution = AUTO
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
        """Return the task of training on all rows in memory, of which `as_features` made the features."""
        n, p = len(labels), features.shape[1]
        block = DataBlock(features, labels, weights, 0, n, p, 0, weighted=other_weights(weights), groups=groups)
        return cls(block, Measure.parse(measure), settings, bias)

    @property
    def manifest(self) -> Manifest | None:
        return self.data if isinstance(self.data, Manifest) else None

    def identity(self) -> dict[str, Any]:
        """Return what a run must have in common with this one to continue from its checkpoint, for JSON."""
        return {
            "data": self.manifest.fingerprint if self.manifest else self.fingerprint,
            "measure": self.measure.name,
            "bias": self.bias,
            **self.settings.identity(self.data.p + bool(self.bias)),
        }


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that do not change its result: memory, files, and when to stop."""

    memory: float | None = None  # the most bytes of a rank; rows that do not fit are read again on each pass
    # a folder for the state of the run, written every `Settings.checkpoint_every` seconds and at the end
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False  # whether to continue from the newest checkpoint in that folder, if there is one
    trace: str | os.PathLike[str] | None = None  # a file that gets one JSON line for each evaluation
    stop_wanted: Callable[[], bool] = lambda: False  # asked at each evaluation; True on any rank ends the run
    certificate: str | os.PathLike[str] | None = None  # a file that gets the certificate; needs `Settings.points`
    # whether the data set is for this run alone, and its shards may be removed as they are read. Then rows that do
    # not fit are streamed without being asked by `memory`, since the caller would have to make the data set again.
    temporary: bool = False
    folds: int = 0  # of so many, models are trained afterwards on the rows, which then need more memory, and groups
    reserve: Reserve | None = None  # the memory that is left free for other steps afterwards
    place: Place = PROCESSOR  # where rows and loss are computed
