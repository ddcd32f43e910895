"""The rows of a training on this rank, and what is made of them: features and loss. If a rank dies and the others go
on, they read the rows again, each its share of that many ranks.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.base.memory import ReadCounter
from distsms.base.timing import Clock
from distsms.base.typing import Floats
from distsms.device.place import PROCESSOR, Place
from distsms.losses.base import Loss
from distsms.losses.registry import choose_ordering
from distsms.matrix.base import Features
from distsms.optim.objective import Objective
from distsms.optim.result import State
from distsms.parallel.vectors import Vectors
from distsms.shards import dataset
from distsms.shards.dataset import DataBlock
from distsms.training.plan import Plan, plan_run
from distsms.training.recorder import RunRecorder
from distsms.training.task import RunOptions, TrainingTask

T = TypeVar("T")


class Survived(NamedTuple):
    """What happened when ranks died and the others went on."""

    dead: tuple[str, ...]  # the ranks that died, and where they ran
    ranks: int  # how many ranks went on
    evaluation: int  # how many evaluations the run had completed, in all its starts
    seconds: float  # how long it took to read the rows again

    def __str__(self) -> str:
        went_on = f"{self.ranks} went on, and read the rows again in {self.seconds:.2f} s"
        return f"{' and '.join(self.dead)} died after evaluation {self.evaluation}; {went_on}"


class TrainingObserver:
    """Receives what `fit` reports during a run. Override its methods, which are called on every rank."""

    def planned(self, plan: Plan, notes: list[str]) -> None:
        """Called before a data set is loaded. On the root, `notes` are lines on the checkpoint that the run resumes."""

    def loaded(self, block: DataBlock, vectors: Vectors) -> None:
        """Called when the rows are loaded and the places of the solver's vectors are chosen. May be collective."""

    def noted(self, kind: str, text: str) -> None:
        """Called with what has been decided or has happened, as a line with a word before it."""

    def evaluated(self, state: State, w: Floats) -> None:
        """Called after each evaluation, on ranks that run the solver; w is the rank's slice of the best w so far."""

    def minimized(self) -> None:
        """Called when the last evaluation is made."""


@dataclass(eq=False, repr=False)
class TrainingRows:
    """This rank's rows, their loss and features, after `load`; `reserved` bytes are left free (inf: no limit),
    equally many on all ranks. Creating it is **collective.**"""

    task: TrainingTask
    comm: Communicator
    options: RunOptions
    plan: Plan | None
    recorder: RunRecorder
    clock: Clock
    observer: TrainingObserver
    block: DataBlock = field(init=False)
    loss: Loss = field(init=False)
    features: Features = field(init=False)
    ordering: str = field(init=False)

    def __post_init__(self) -> None:
        self.reading, self.reserved = ReadCounter(), math.inf
        self._deaths = 0  # so many have been recorded
        if self.plan is not None and self.options.memory is not None:
            least, reserve = self.plan.needs.least(self.comm.size, root=True), self.options.reserve
            least = max(self.comm.allgather(least))  # what a rank leaves free decides on the steps after the run
            self.reserved = 0.0 if reserve is None else reserve.of(self.options.memory, least)

    @property
    def survived(self) -> list[Survived]:
        """Of all starts of the run, on the root."""
        return [Survived(tuple(dead), *others) for dead, *others in self.recorder.survived]

    def load(self, evaluations: int = 0) -> None:
        """Read this rank's rows within the plan's memory, after `evaluations`, and make the loss. **Collective.**"""
        task, comm, start = self.task, self.comm, time.perf_counter()
        self.free()  # the new ones need the memory
        if self.plan is not None and self.plan.ranks != comm.size:
            node_ranks = comm.node_ranks()
            with comm.fail_together():
                self.plan = plan_run(task, self.options, comm.size, node_ranks)
        if comm.dead and isinstance(task.data, DataBlock):
            raise InputError("rows in memory are lost with their rank; --survive is for data sets", everywhere=True)
        self.block = task.data if isinstance(task.data, DataBlock) else self._read()
        if comm.failures and task.manifest is not None:
            comm.require_all(task.manifest.n, len(self.block.labels))
        ordering = (self.plan or task).distribution.ordering
        place = self.options.place
        self.ordering, (self.loss,) = make_losses(self.block, task.measure, ordering, comm, place=place)
        self.features = place.features(self.block.features, task.bias, comm)
        if dead := tuple(str(rank) for rank in comm.dead[self._deaths :]):
            self._deaths += len(dead)
            evaluations += self.recorder.evaluations
            self.recorder.survived.append(Survived(dead, comm.size, evaluations, time.perf_counter() - start))
            self.observer.noted("survived", str(self.recorder.survived[-1]))

    def _read(self) -> DataBlock:
        manifest, comm, options = self.task.manifest, self.comm, self.options
        assert self.plan is not None and manifest is not None
        budget = self.plan.room(comm.is_root)
        budget = budget and budget._replace(bytes=budget.bytes - int(self.reserved))
        of_folds = options.folds > 0 and manifest.group is not None
        with self.clock.phase("load"), contextlib.nullcontext() if comm.dead else self.reading:
            return dataset.load(
                manifest,
                comm,
                budget=budget,
                with_groups=of_folds or self.task.measure.within_groups is not None,
                temporary=options.temporary,
            )

    def surviving(self, work: Callable[[], T], evaluations: int = 0) -> T:
        """Return `work()`, repeated with the rows read again after a rank has died. **Collective.**"""
        return self.comm.surviving(work, lambda: self.reload(evaluations))

    def objective(self, stop_wanted: Callable[[], bool], vectors: Vectors) -> Objective:
        """Return the objective over the rows that the ranks hold now, which reads them again itself. Local."""
        reload, n = self.reload if self.comm.failures else None, self.task.manifest.n if self.task.manifest else None
        weights, losses = self.block.weights, [self.loss]
        return Objective(self.features, losses, self.comm, stop_wanted, self.clock, vectors, weights, reload, n)

    def reload(self, evaluations: int = 0) -> tuple[Features, Sequence[Loss], Floats | None]:
        """Read the rows again after a rank has died, and return what an objective needs of them. **Collective.**"""
        self.load(evaluations)
        return self.features, [self.loss], self.block.weights

    def free(self, *names: str) -> None:
        """Free the memory of the loss, the features or the block. `load` makes them again."""
        for name in (freed := names or ("block", "loss", "features")):
            vars(self).pop(name, None)
        if "features" in freed:
            self.options.place.free()


def make_losses(
    block: DataBlock,
    measure: str | Measure,
    ordering: str,
    comm: Communicator,
    subsets: Sequence[NDArray[np.bool_] | None] = (None,),
    place: Place = PROCESSOR,
) -> tuple[str, list[Loss]]:
    """Return the ordering, and a loss for each mask of `subsets` (None: all rows). **Collective.** Raises as `Loss`."""
    measure, labels, weights = Measure.parse(measure), block.labels, block.weights
    counts = np.array([np.count_nonzero(block.counted & (labels == sign)) for sign in (1, -1)])
    n_pos, n_neg = (max(int(count), 1) for count in comm.sum(counts))
    ordering, _ = choose_ordering(ordering, measure, n_pos, n_neg, comm.size)

    def weighting(rows: NDArray[np.bool_] | None) -> NDArray[np.float64] | None:
        return weights if rows is None else np.where(rows, 1.0 if weights is None else weights, 0.0)

    losses = [place.loss(measure, ordering, labels, weighting(rows), comm, block.groups) for rows in subsets]
    return ordering, losses
