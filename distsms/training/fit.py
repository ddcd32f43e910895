"""Train a model: the one function behind the command line, the library and the estimator.

`fit` plans the memory, loads the rows (or streams them), minimizes the objective to a proved gap, keeps a trace and
checkpoints of the run, and determines the decision threshold. `TrainedModel.to_model` adds where the model comes from.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

from distsms.data.shards import dataset
from distsms.data.shards.dataset import DataBlock
from distsms.errors import InputError
from distsms.matrix.augmented import split_bias, with_bias
from distsms.metrics import calibration
from distsms.metrics.headline import decision_threshold, headline_measures
from distsms.metrics.row_weights import describe_weights, mean_and_deviation
from distsms.metrics.within_groups import gauc_estimate
from distsms.optim.objective import Objective
from distsms.optim.result import State, Status
from distsms.parallel.communicator import Communicator
from distsms.parallel.vector_placement import choose_step, make_vectors
from distsms.parallel.vectors import Vectors
from distsms.training.hints import SUSPICIOUS, leaking_columns
from distsms.training.objectives import make_losses
from distsms.training.plan import Plan, make_plan
from distsms.training.provenance import Distribution, describe_data_set, describe_rows
from distsms.training.quick_check import reserve
from distsms.training.recorder import recording
from distsms.training.task import RunOptions, TrainingTask
from distsms.training.trained_model import TrainedModel
from distsms.training.verdict import why_chance
from distsms.utils.timing import Clock
from distsms.utils.typing import Floats
from distsms.utils.usage import ReadCounter

UNFINISHED = (Status.STOPPED, Status.TIME, Status.NONFINITE)
"""If a run ended in one of these ways, its model is not compared with others: time is short, or there is no model."""


class TrainingObserver:
    """Receives what `fit` reports during a run. Override its methods, which are called on every rank."""

    def planned(self, plan: Plan, notes: list[str]) -> None:
        """Called before a data set is loaded. On the root, `notes` are lines on the checkpoint that the run resumes."""

    def loaded(self, block: DataBlock, vectors: Vectors) -> None:
        """Called when the rows are loaded and the places of the solver's vectors are chosen. May be collective."""

    def deciding(self, folds: int, seconds: float) -> None:
        """Called before the models of folds are trained. `seconds` is what the training of all rows took."""

    def evaluated(self, state: State, w: Floats) -> None:
        """Called after each evaluation, on ranks that run the solver; w is the rank's slice of the best w so far."""


def fit(
    task: TrainingTask,
    comm: Communicator,
    options: RunOptions = RunOptions(),  # noqa: B008 - immutable
    observer: TrainingObserver = TrainingObserver(),  # noqa: B008 - without state
) -> TrainedModel:
    """Train a linear model to a proved gap. **Collective.**

    Parameters
    ----------
    task : TrainingTask
        What is trained.
    comm : Communicator
        The ranks that share the rows.
    options : RunOptions
        How the run is conducted and kept.
    observer : TrainingObserver
        Learns of the plan, of the loaded rows and of each evaluation.

    Raises
    ------
    InputError
        On all ranks, if the data cannot be read, a class is missing, the memory does not suffice, or settings, bias,
        start, checkpoint or trace cannot be used. All checks that need no rows are made before the rows are read.

    Notes
    -----
    `distsms.training.plan` says which memory a run takes besides the rows. Besides the solver's evaluations, a run
    makes one pass over the rows for their scores, and with `measure_rows` sorts these over all ranks.
    """
    clock, reading, manifest, settings = Clock(comm.bytes_moved), ReadCounter(), task.manifest, task.settings
    node_ranks, ordering, step, plan = comm.node_ranks(), task.ordering, task.step, None
    with comm.fail_together():
        task.check()
        start = task.start_vector()
        if manifest is not None:
            asked: list[Any] = [ordering, step, options.memory, bool(task.bias)]
            if decide := options.decide:  # its models need memory at the same time, one by one or together
                asked += [decide.folds, decide.at_once(manifest.p, options.memory)]
            plan = make_plan(manifest, task.measure, settings, comm.size, node_ranks, *asked)
            ordering, step = plan.ordering, plan.step
        elif options.memory is not None:
            raise InputError(
                "a memory limit is only for data sets, whose rows can be streamed; these rows are in memory already"
            )
    unlike_rocarea = task.measure.family not in ("rocarea", "gauc") and not task.measure.has_probabilities
    checked = options.check is not None and unlike_rocarea
    keep = options.trace, options.checkpoint, options.resume, task.identity()
    with recording(comm, settings, *keep) as recorder, contextlib.ExitStack() as stack:
        if plan is not None:
            observer.planned(plan, recorder.notes)
        reserved = None
        if checked and plan is not None and options.memory is not None:
            reserved = reserve(options.memory, plan.needs.least(comm.size, root=True))
            checked = reserved is not None
        block = (
            task.data if isinstance(task.data, DataBlock) else _load(task, comm, plan, reserved or 0.0, clock, reading)
        )
        if options.decide is not None:
            options.decide.make_folds(block, task, comm)  # an error is better found before the training
        ordering, (loss,) = make_losses(block, task.measure, ordering, comm)
        features = with_bias(block.features, task.bias)
        step, _ = choose_step(step, features.shape[1], comm.size)
        with clock.phase("measure"):
            vectors = make_vectors(step, features.shape[1], comm)
        stack.callback(vectors.close)
        observer.loaded(block, vectors)
        objective = Objective(features, [loss], comm, options.stop_wanted, clock, vectors, block.weights)
        begun = time.monotonic()
        with reading if plan is not None and block.features.bytes_per_pass else contextlib.nullcontext():
            result = recorder.minimize(objective, start, observer.evaluated)
    calls_positive, evaluations = loss.calls_positive, objective.evaluations
    del objective, loss  # free their arrays before the measures need memory
    with clock.phase("threshold"):
        scores, labels, weights = block.counted_scores(features.margins(result.w))
        spread = mean_and_deviation(scores, weights, comm)
        groups, weighting, within = block.counted_groups, task.measure.within_groups, None
        threshold, training, data = decision_threshold(calls_positive, scores, labels, comm, weights), None, None
        means = None
        if options.measure_rows:
            training = headline_measures(task.measure, scores, labels, threshold, comm, weights)
            if task.measure.family == "logistic":
                means = calibration.means_of_logistic(scores, labels, comm, weights)
            if weighting and groups is not None:
                within = gauc_estimate(weighting, scores, labels, groups, comm, weights)
                training[task.measure.name] = within.value
            if manifest is not None:
                data = describe_data_set(manifest, manifest.directory)
            else:
                data = describe_rows(block, task.fingerprint, comm)
            if weights is not None:
                data["weights"] = describe_weights(labels, weights, comm)
                if manifest is not None and manifest.weight:
                    data["weights"]["column"] = manifest.weight["column"]
        leaks = []
        of_table = manifest is not None and manifest.table is not None and not manifest.coded
        if data and training and of_table and training["rocarea"] > SUSPICIOUS:
            assert manifest is not None and manifest.table is not None
            leaks = leaking_columns(block, manifest.table, result.w[: block.p], data["n_pos"], comm)
        chance = why_chance(scores, labels, training["rocarea"] if training else math.nan, comm, weights, within)
    del scores, labels, weights
    check = None
    if options.check is not None and checked and result.status not in UNFINISHED:
        with clock.phase("check"):
            ended = result.seconds, result.evaluations, result.w
            what = block, task.measure, settings, task.bias, *ended, comm
            limits = {"memory": reserved, "stop_wanted": options.stop_wanted}
            check = options.check(*what, **limits, hold_out=options.hold_out)
    decided = None
    if options.decide is not None and result.status not in UNFINISHED:
        observer.deciding(options.decide.folds, result.seconds)
        end = begun + settings.time_limit
        limits_of_run = options.memory, spread, lambda: options.stop_wanted() or time.monotonic() > end
        with clock.phase("folds"):
            decided = options.decide(block, task, comm, ordering, step, *limits_of_run)
        threshold = (decided or {}).get("threshold", threshold)
    w, bias = split_bias(result.w, task.bias)
    made = Distribution(ordering, step, comm.size)
    found = task, options, w, bias, threshold, result, made, chance, check, training, data
    return TrainedModel(*found, vectors, clock, reading, evaluations, leaks, decided, means)


def _load(
    task: TrainingTask, comm: Communicator, plan: Plan | None, reserved: float, clock: Clock, reading: ReadCounter
) -> DataBlock:
    """Load this rank's rows within the memory of the plan, less `reserved` bytes for later use. Collective."""
    assert plan is not None and task.manifest is not None
    room, grouped = plan.room(comm.is_root), task.measure.within_groups is not None
    with clock.phase("load"), reading:
        budget = room and room._replace(bytes=room.bytes - int(reserved))
        return dataset.load(task.manifest, comm, budget=budget, with_groups=grouped)
