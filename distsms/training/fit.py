"""Train a model: the one function behind the command line, the library and the estimator.

`fit` plans the memory, loads the rows (or streams them), minimizes the objective to a proved gap, keeps a trace and
checkpoints of the run, and determines the decision threshold. `TrainedModel.to_model` adds where the model comes from.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace
from typing import Any

from distsms.base.errors import InputError
from distsms.base.timing import Clock
from distsms.base.typing import Floats
from distsms.base.usage import ReadCounter
from distsms.features import feature_map
from distsms.matrix.augmented import split_bias
from distsms.matrix.base import Features
from distsms.metrics import calibration
from distsms.metrics.headline import decision_threshold, headline_measures
from distsms.metrics.row_sample import sample_rows
from distsms.metrics.row_weights import describe_weights, mean_and_deviation
from distsms.metrics.within_groups import gauc_estimate
from distsms.optim.result import Result, State, Status
from distsms.parallel.communicator import Communicator
from distsms.parallel.vector_placement import choose_step, make_vectors
from distsms.parallel.vectors import Vectors
from distsms.shards.dataset import DataBlock
from distsms.training.closed_form import ClosedForm, pays
from distsms.training.plan import Plan, make_plan, memory_to_stream
from distsms.training.recorder import recording
from distsms.training.rows import Survived, TrainingRows
from distsms.training.task import RunOptions, TrainingTask
from distsms.workflow.hints import SUSPICIOUS, leaking_columns
from distsms.workflow.provenance import Distribution, describe_data_set, describe_rows
from distsms.workflow.quick_check import reserve
from distsms.workflow.trained_model import TrainedModel
from distsms.workflow.verdict import why_chance

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

    def survived(self, survived: Survived) -> None:
        """Called when ranks have died and the others have read the rows again."""

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

    def make_plan_for(node_ranks: list[int]) -> Plan:
        assert manifest is not None
        decide = options.decide  # its models need memory at the same time, one by one or together
        return make_plan(
            manifest,
            task.measure,
            settings,
            ranks=comm.size,
            node_ranks=node_ranks,
            ordering=task.ordering,
            step=task.step,
            memory=options.memory,
            bias=bool(task.bias),
            losses=decide.folds if decide else 1,
            solves=decide.at_once(manifest.p, options.memory) if decide else 1,
        )

    node_ranks, plan = comm.node_ranks(), None
    with comm.fail_together():
        task.check()
        start = task.start_vector()
    if options.temporary and options.memory is None:  # after an error, the shards would have to be made again
        options = replace(options, memory=memory_to_stream(lambda: make_plan_for(node_ranks), comm))
    with comm.fail_together():
        if manifest is not None:
            if comm.is_root:
                feature_map.check(manifest)  # the model will need it
            plan = make_plan_for(node_ranks)
        elif options.memory is not None:
            raise InputError(
                "a memory limit is only for data sets, whose rows can be streamed; these rows are in memory already"
            )
    unlike_rocarea = task.measure.family not in ("rocarea", "gauc") and not task.measure.has_probabilities
    checked = options.check is not None and unlike_rocarea
    with contextlib.ExitStack() as stack:
        recorder = stack.enter_context(
            recording(comm, settings, options.trace, options.checkpoint, options.resume, task.identity())
        )
        if plan is not None:
            observer.planned(plan, recorder.notes)
        reserved = None
        if checked and plan is not None and options.memory is not None:
            reserved = reserve(options.memory, plan.needs.least(comm.size, root=True))
            checked = reserved is not None
        groups = options.decide is not None and manifest is not None and manifest.group is not None  # of its folds
        rows = TrainingRows(
            task,
            comm,
            plan,
            make_plan_for,
            reserved=reserved or 0.0,
            recorder=recorder,
            clock=clock,
            reading=reading,
            temporary=options.temporary,
            groups=groups,
        )
        rows.told = observer.survived
        comm.surviving(rows.load)

        def prepare() -> tuple[str, Vectors]:
            if options.decide is not None:
                options.decide.make_folds(rows.block, task, comm)  # an error is better found before the training
            p = rows.features.shape[1]
            step, _ = choose_step(plan.step if plan else task.step, p, comm.size)
            with clock.phase("measure"):
                vectors = make_vectors(step, p, comm)
            observer.loaded(rows.block, vectors)
            return step, vectors

        step, vectors = rows.surviving(prepare)
        stack.callback(vectors.close)
        begun = time.monotonic()

        def first_point() -> tuple[Floats | None, float]:
            if start is not None or not (
                plan.scored > 0 if plan else pays(rows.block, task.measure, comm, settings.l1)
            ):
                return start, 0.0
            with clock.phase("moments"), reading:
                closed = ClosedForm(rows.block, comm)
                solved = closed.result(0, settings, bool(task.bias)) if comm.is_root else None
                found: tuple[Floats | None, float] = comm.bcast((solved and solved.w, time.monotonic() - begun))
                return found

        first, before = rows.surviving(first_point)
        objective = rows.objective(options.stop_wanted, vectors)
        with reading if plan is not None and rows.block.features.bytes_per_pass else contextlib.nullcontext():
            result = recorder.minimize(objective, first, observer.evaluated)
            result = replace(result, seconds=before + result.seconds)
    calls_positive, evaluations = rows.loss.calls_positive, objective.evaluations
    del objective  # free its arrays before the measures need memory

    def find() -> dict[str, Any]:
        rows.free_loss()
        found = _measured(task, options, comm, rows.block, rows.features, result, calls_positive, clock)
        check = None
        if options.check is not None and checked and result.status not in UNFINISHED:
            with clock.phase("check"):
                check = options.check(
                    block=rows.block,
                    measure=task.measure,
                    settings=settings,
                    bias=task.bias,
                    seconds=result.seconds,
                    evaluations=result.evaluations,
                    w=result.w,
                    comm=comm,
                    memory=reserved,
                    stop_wanted=options.stop_wanted,
                    hold_out=options.hold_out,
                )
        spread, decided = found.pop("spread"), None
        if options.decide is not None and result.status not in UNFINISHED:
            observer.deciding(options.decide.folds, result.seconds)
            end = begun + settings.time_limit
            limits_of_run = options.memory, spread, lambda: options.stop_wanted() or time.monotonic() > end
            with clock.phase("folds"):
                decided = options.decide(rows.block, task, comm, rows.ordering, step, *limits_of_run)
            found["threshold"] = (decided or {}).get("threshold", found["threshold"])
        return found | {"check": check, "decided": decided}

    found = rows.surviving(find, evaluations)
    w, bias = split_bias(result.w, task.bias)
    return TrainedModel(
        task,
        options,
        w,
        bias,
        result=result,
        distribution=Distribution(rows.ordering, step, comm.size),
        vectors=vectors,
        clock=clock,
        reading=reading,
        evaluations=evaluations,
        survived=[Survived(tuple(dead), *others) for dead, *others in recorder.survived],
        **found,
    )


def _measured(
    task: TrainingTask,
    options: RunOptions,
    comm: Communicator,
    block: DataBlock,
    features: Features,
    result: Result,
    calls_positive: Any,
    clock: Clock,
) -> dict[str, Any]:
    """Return what a trained model says of the training rows, by the names of its attributes. **Collective.**

    `spread` has the mean and the deviation of the scores.
    """
    with clock.phase("threshold"):
        scores, labels, weights = block.counted_scores(features.margins(result.w))
        spread = mean_and_deviation(scores, weights, comm)
        groups, weighting, within = block.counted_groups, task.measure.within_groups, None
        threshold, training, data = decision_threshold(calls_positive, scores, labels, comm, weights), None, None
        manifest, means = task.manifest, None
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
        kind = "float64" if manifest is None else manifest.dtype
        sample = sample_rows(scores, labels, comm, kind) if options.measure_rows else None
    found: dict[str, Any] = {"threshold": threshold, "training": training, "data": data, "means": means}
    found["row_sample"] = sample
    return found | {"leaks": leaks, "chance": chance, "spread": spread}
