"""The rows of a training on this rank, and what is made of them: the features and the loss.

If a rank dies and the others go on, these read the rows again. Each then has a share of all rows as if the job had been
started with that many ranks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from distsms.base.errors import InputError
from distsms.base.timing import Clock
from distsms.base.typing import Floats
from distsms.base.usage import ReadCounter
from distsms.losses.base import Loss
from distsms.matrix.augmented import with_bias
from distsms.matrix.base import Features
from distsms.optim.objective import Objective
from distsms.parallel.communicator import Communicator
from distsms.parallel.vectors import Vectors
from distsms.shards import dataset
from distsms.shards.dataset import DataBlock
from distsms.training.objectives import make_losses
from distsms.training.plan import Plan
from distsms.training.recorder import RunRecorder
from distsms.training.task import TrainingTask

T = TypeVar("T")


class Survived(NamedTuple):
    """What happened when ranks died and the others went on."""

    dead: tuple[str, ...]  # the ranks that died, and where they ran
    ranks: int  # how many ranks went on
    evaluation: int  # how many evaluations the run had completed, in all its starts
    seconds: float  # how long it took to read the rows again

    def __str__(self) -> str:
        return (
            f"{' and '.join(self.dead)} died after evaluation {self.evaluation}; {self.ranks} went on, and read"
            f" the rows again in {self.seconds:.2f} s"
        )

    def as_json(self) -> dict[str, Any]:
        """Return what a model file says of it."""
        return self._asdict()


class TrainingRows:
    """This rank's rows, their loss, and their features with the constant one. `load` must be called first.

    `replan` returns the plan for fewer ranks; its argument is a list of those on this rank's node. `reserved` bytes
    of a rank's memory are kept for later use. If `temporary`, the shards may be removed as they are read, and then
    the rows cannot be read again. With `groups` the groups of the rows are read even if the measure does not depend
    on them. `told` is called with each `Survived`, when ranks have died and the others have read the rows again.
    """

    block: DataBlock
    loss: Loss
    features: Features
    ordering: str

    def __init__(
        self,
        task: TrainingTask,
        comm: Communicator,
        plan: Plan | None,
        replan: Callable[[list[int]], Plan],
        reserved: float,
        recorder: RunRecorder,
        clock: Clock,
        reading: ReadCounter,
        temporary: bool = False,
        groups: bool = False,
    ) -> None:
        self._groups = groups or task.measure.within_groups is not None
        self._task, self._comm, self._plan, self._replan, self._reserved = task, comm, plan, replan, reserved
        self._clock, self._reading, self._temporary = clock, reading, temporary
        self._recorder, self._known = recorder, 0  # so many deaths have been recorded
        self.told: Callable[[Survived], None] = lambda survived: None

    def load(self, evaluations: int = 0) -> None:
        """Read this rank's rows within the memory of the plan, and make the loss. **Collective.**

        Parameters
        ----------
        evaluations : int
            The number of evaluations of this start so far.

        Raises
        ------
        InputError
            On all ranks, if the rows do not fit into the memory of the ranks that live, or cannot be read.
        """
        task, comm, start = self._task, self._comm, time.perf_counter()
        for name in ("block", "loss", "features"):
            vars(self).pop(name, None)  # if they are there, the new ones need their memory
        if self._plan is not None and self._plan.ranks != comm.size:
            node_ranks = comm.node_ranks()
            with comm.fail_together():
                self._plan = self._replan(node_ranks)
        if comm.dead and isinstance(task.data, DataBlock):
            raise InputError("rows in memory are lost with their rank; --survive is for data sets", everywhere=True)
        self.block = task.data if isinstance(task.data, DataBlock) else self._read()
        if comm.failures and task.manifest is not None:
            comm.require_all(task.manifest.n, len(self.block.labels))
        ordering = self._plan.ordering if self._plan else task.ordering
        self.ordering, (self.loss,) = make_losses(self.block, task.measure, ordering, comm)
        self.features = with_bias(self.block.features, task.bias)
        if dead := tuple(str(rank) for rank in comm.dead[self._known :]):
            self._known += len(dead)
            evaluations += self._recorder.evaluations
            self._recorder.survived.append(Survived(dead, comm.size, evaluations, time.perf_counter() - start))
            self.told(self._recorder.survived[-1])

    def _read(self) -> DataBlock:
        plan, manifest, comm = self._plan, self._task.manifest, self._comm
        assert plan is not None and manifest is not None
        room = plan.room(comm.is_root)
        budget = room and room._replace(bytes=room.bytes - int(self._reserved))
        with self._clock.phase("load"), contextlib.nullcontext() if comm.dead else self._reading:
            return dataset.load(manifest, comm, budget=budget, with_groups=self._groups, temporary=self._temporary)

    def surviving(self, work: Callable[[], T], evaluations: int = 0) -> T:
        """Return `work()`, repeated with the rows read again after a rank has died. **Collective.**

        `work` takes the rows from here each time it is called. See `Communicator.surviving`.
        """
        return self._comm.surviving(work, lambda: self.reload(evaluations))

    def objective(self, stop_wanted: Callable[[], bool], vectors: Vectors) -> Objective:
        """Return the objective over the rows that the ranks hold now, which reads them again itself. Local."""
        survives, n = bool(self._comm.failures), self._task.manifest.n if self._task.manifest else None
        return Objective(
            self.features,
            [self.loss],
            self._comm,
            stop_wanted,
            clock=self._clock,
            vectors=vectors,
            weights=self.block.weights,
            reload=self.reload if survives else None,
            n=n,
        )

    def reload(self, evaluations: int = 0) -> tuple[Features, Sequence[Loss], Floats | None]:
        """Read the rows again after a rank has died, and return what an objective needs of them. **Collective.**"""
        self.load(evaluations)
        return self.features, [self.loss], self.block.weights

    def free_loss(self) -> None:
        """Free the memory of the loss, which is not needed any more."""
        vars(self).pop("loss", None)
