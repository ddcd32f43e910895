"""Minimize the objective of a training: plan the memory, load the rows (or stream them), and find a proved minimum."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from distsms.base.communicator import Communicator
from distsms.base.errors import EXIT_NONFINITE, EXIT_REQUEUE, InputError
from distsms.base.timing import Clock
from distsms.base.typing import Floats
from distsms.matrix.augmented import split_bias
from distsms.optim.result import Result
from distsms.parallel.vectors import Vectors, choose_step, make_vectors
from distsms.training.normal_auc_closed import ClosedForm, pays
from distsms.training.plan import memory_to_stream, plan_run
from distsms.training.recorder import recording
from distsms.training.rows import TrainingObserver, TrainingRows
from distsms.training.task import Distribution, RunOptions, TrainingTask


@dataclass
class Fit:
    """A minimum, and what the steps after it need. All ranks have the same, except for the rows."""

    rows: TrainingRows
    result: Result  # how the run ended, and what it proved
    step: str  # where the solver's vectors were kept
    vectors: Vectors  # their places, which also say what was sent between ranks
    calls_positive: int | None  # how many rows the measure calls positive, see `distsms.losses.base.Loss`
    evaluations: int  # the number of evaluations since the run was started or last resumed
    begun: float  # when the minimization began, by `time.monotonic`
    certified: dict[str, Any] | None = None  # what a model says of its certificate

    @cached_property
    def w(self) -> Floats:
        """The coefficients, without that of the constant feature."""
        return split_bias(self.result.w, self.rows.task.bias)[0]

    @cached_property
    def bias(self) -> float:
        return split_bias(self.result.w, self.rows.task.bias)[1]

    @property
    def distribution(self) -> Distribution:
        return Distribution(self.rows.ordering, self.step)


def fit(
    task: TrainingTask,
    comm: Communicator,
    options: RunOptions = RunOptions(),  # noqa: B008 - immutable
    observer: TrainingObserver = TrainingObserver(),  # noqa: B008 - without state
) -> Fit:
    """Minimize the objective of a task to a proved gap. **Collective.** Raises InputError on all ranks if data, memory
    (`distsms.training.plan`), settings or files do not suffice; checks that need no rows come first.
    """
    with loaded_run(task, comm, options, observer, Clock(comm.bytes_moved)) as run:
        return run.minimize()


@contextlib.contextmanager
def loaded_run(
    task: TrainingTask, comm: Communicator, options: RunOptions, observer: TrainingObserver, clock: Clock
) -> Iterator[LoadedRun]:
    """Plan the memory, open the files of a run, load its rows, and close the files; see `fit`. **Collective.**"""
    node_ranks, plan = comm.node_ranks(), None
    if options.temporary and options.memory is None:  # after an error, the shards would have to be made again
        allowed = memory_to_stream(lambda: plan_run(task, options, comm.size, node_ranks), comm)
        options = replace(options, memory=allowed)
    with comm.fail_together():
        if task.manifest is not None:
            plan = plan_run(task, options, comm.size, node_ranks)
        elif options.memory is not None:
            raise InputError("a memory limit is for data sets, which can be streamed; these rows are in memory already")
    with recording(comm, task.settings, options, task.identity()) as recorder:
        if plan is not None:
            observer.planned(plan, recorder.notes)
        run = LoadedRun(task, comm, options, plan, recorder, clock, observer)
        comm.surviving(run.load)
        yield run


class LoadedRun(TrainingRows):
    """The rows of a training, and its steps up to the minimum. Methods are collective."""

    def minimize(self) -> Fit:
        task, path = self.task, self.options.certificate
        if path is not None:
            from distsms.training.certificate import check  # which few runs need

            check(task, self.loss)
        step, vectors = self.surviving(self.prepare)
        with vectors:
            begun, certified = time.monotonic(), None
            start, seconds = self.surviving(self.first_point)
            objective = self.objective(self.options.stop_wanted, vectors)
            streamed = self.plan is not None and self.block.features.bytes_per_pass
            with self.reading if streamed else contextlib.nullcontext():
                result = self.recorder.minimize(objective, start, self.observer.evaluated)
                if path and result.status.exit_code not in (EXIT_REQUEUE, EXIT_NONFINITE):
                    certified = self.certify(path, result, vectors, objective.evaluations)
        self.observer.minimized()
        result = replace(result, mixture=None, opening=None, seconds=seconds + result.seconds)
        evaluations, calls_positive = objective.evaluations, self.loss.calls_positive
        return Fit(self, result, step, vectors, calls_positive, evaluations, begun, certified)

    def certify(
        self, path: str | os.PathLike[str], result: Result, vectors: Vectors, evaluations: int
    ) -> dict[str, Any]:
        """Write the certificate, again with the rows read again if a rank dies meanwhile."""
        from distsms.training.certificate import certify

        def renew() -> None:
            vectors.close()
            self.reload(evaluations)

        with self.clock.phase("certify"):
            return self.comm.surviving(lambda: certify(path, result, self.task, self, vectors), renew)

    def prepare(self) -> tuple[str, Vectors]:
        """Choose where the solver's vectors are kept, and make them."""
        p, comm = self.features.shape[1], self.comm
        step, _ = choose_step((self.plan or self.task).distribution.step, p, comm.size)
        with self.clock.phase("measure"):
            vectors = make_vectors(step, p, comm)
        self.observer.loaded(self.block, vectors)
        return step, vectors

    def first_point(self) -> tuple[Floats | None, float]:
        """Return where to begin, the minimum where a closed form pays, None for 0; and its seconds."""
        task, comm, begun = self.task, self.comm, time.monotonic()
        if task.start is not None:
            return task.start, 0.0
        scored = self.plan.scored if self.plan else pays(self.block, task.measure, comm, task.settings.l1)
        if not (task.measure.family.closed_form and min(comm.allgather(scored))):  # a node may have less memory
            return None, 0.0
        with self.clock.phase("moments"), self.reading:
            closed = ClosedForm(self.block, comm)
            solved = closed.result(0, task.settings, bool(task.bias)) if comm.is_root else None
            point: tuple[Floats | None, float] = comm.bcast((solved and solved.w, time.monotonic() - begun))
            return point
