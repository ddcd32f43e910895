"""A training as a user asks for it: from files, tables or rows in memory to a model that is judged on test rows.

`train` decides what the command line, `distsms.train` and `SMSClassifier` leave open, makes all checks, and returns
what it found as data. It prints nothing, and tells an observer of its progress. Messages name options as the command
line writes them.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distsms.base.errors import InputError
from distsms.base.timing import Clock
from distsms.ingest import frames
from distsms.ingest.file_names import is_data_set
from distsms.ingest.formats.registry import format_of
from distsms.ingest.options import ConversionObserver
from distsms.metrics.headline import headline_measures
from distsms.models import inputs, model, scoring
from distsms.models.model import Model
from distsms.optim.result import Result
from distsms.parallel.communicator import Communicator
from distsms.shards import frame_columns
from distsms.shards.column_options import ColumnReport
from distsms.shards.dataset import DataBlock
from distsms.shards.manifest import Manifest, read_manifest
from distsms.shards.row_shares import MemoryBudget
from distsms.training import checkpoint
from distsms.training.fit import TrainingObserver, fit
from distsms.training.solver_choice import choose_solver, settings_for
from distsms.training.task import RunOptions, TrainingTask
from distsms.training.trained_model import TrainedModel
from distsms.training.verdict import AreaOnTest
from distsms.workflow import rocarea_check, tables
from distsms.workflow.decisions import Decisions
from distsms.workflow.folds import labels_warning
from distsms.workflow.lambda_search import DEFAULT
from distsms.workflow.requests import Arrays, TrainRequest
from distsms.workflow.tables import DataSets

if TYPE_CHECKING:
    from distsms.workflow.auto_lambda import LambdaChoice

CHECKPOINT_EVERY = 300.0
"""Seconds between two checkpoints, unless the user says otherwise."""


@dataclass
class Trained:
    """What a training found. All ranks have the same."""

    model: Model  # the model, whose information has all that is known of the run
    run: TrainedModel  # the findings of the run
    lambda_choice: LambdaChoice | None = None  # how lambda was chosen, if it was chosen automatically
    sets: DataSets | None = None  # the data sets that were made of files or of a table
    data_warnings: list[str] = field(default_factory=list)  # what is odd about the training rows
    test: dict[str, float] | None = None  # the measures on test rows, if there are some
    area: AreaOnTest | None = None  # how sure the ROCArea on the test rows is
    usage: list[dict[str, Any]] = field(default_factory=list)  # every rank's seconds, bytes and memory

    @property
    def result(self) -> Result:
        """How the run ended, and what it proved."""
        return self.run.result

    @property
    def columns(self) -> Sequence[ColumnReport]:
        """How the columns of files and tables became features."""
        return () if self.sets is None else self.sets.training.columns or ()

    @property
    def warnings(self) -> list[str]:
        """What users must know before they use the model, of the rows and of the model."""
        return [*self.data_warnings, *self.run.warnings()]


class TrainObserver(ConversionObserver, TrainingObserver):
    """Receives what `train` reports. Override its methods, which are called on every rank unless they say otherwise."""

    def opening(self, files: Sequence[str]) -> None:
        """Called on the root before files are read. May raise InputError."""

    def converted(self, sets: DataSets) -> None:
        """Called when data sets have been made of files or of a table."""

    def began(self) -> None:
        """Called when the data are there, before anything is decided."""

    def chose_solver(self, solver: str, why: str) -> None:
        """Called with the solver, and why it is not the usual one; "" if it is."""

    def warned(self, warnings: Sequence[str]) -> None:
        """Called with what is odd about the training rows."""

    def chose_lambda(self, lam: float, choice: LambdaChoice | None, resumed: bool) -> None:
        """Called unless the user gave a number: how lambda was chosen, or whether it is that of a run to resume."""

    def ready(self, task: TrainingTask) -> None:
        """Called before the training, with all that was decided."""

    def trained(self, trained: Trained) -> None:
        """Called after the training, when the model is written."""

    def tested(self, trained: Trained) -> None:
        """Called when the model has been judged on test rows."""

    def ended(self, trained: Trained) -> None:
        """Called at the end, while temporary data sets are still there. May be collective."""


def train(
    request: TrainRequest,
    comm: Communicator,
    observer: TrainObserver = TrainObserver(),  # noqa: B008 - without state
    stop_wanted: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train a linear model to a proved gap, and judge it on test rows if there are some. **Collective.**

    Parameters
    ----------
    request : TrainRequest
        What the user asks for.
    comm : Communicator
        The ranks that share the rows.
    observer : TrainObserver
        Is told of the progress.
    stop_wanted : callable
        Asked on every rank at each evaluation; True on any rank ends the run with what it has.

    Raises
    ------
    InputError
        On all ranks, if the request contradicts itself, or something that it names cannot be read or written. All
        checks that need no rows are made before the rows are read.
    """
    clock = Clock(comm.bytes_moved)
    if tables.are_tables(request.data, comm):
        with tables.as_data_sets(request, comm, observer, clock) as sets:
            observer.converted(sets)
            return _train(request, sets, clock, comm, observer, stop_wanted)
    if request.reading or request.split.shares is not None or request.shards is not None:
        raise InputError(
            "label, weight, group, split, shards and how columns are read are for tables: DataFrames, CSV or Parquet;"
            " data sets have the weights and groups with which distsms shard made them",
            everywhere=True,
        )
    return _train(request, None, clock, comm, observer, stop_wanted)


class _Decided(NamedTuple):
    """What is decided of a training before its rows are read."""

    task: TrainingTask
    automatic: bool  # whether lambda is to be chosen
    resumed: bool  # whether it is that of the run that is resumed
    decisions: Decisions | None
    test: str | os.PathLike[str] | None  # the test rows
    reading: inputs.InputOptions  # how these are read
    same_rows: bool  # whether they are known to be training rows
    warnings: list[str]


def _train(
    request: TrainRequest,
    sets: DataSets | None,
    clock: Clock,
    comm: Communicator,
    observer: TrainObserver,
    stop_wanted: Callable[[], bool],
) -> Trained:
    """Train on a data set or on rows in memory, and judge the model. **Collective.**"""
    observer.began()
    decided = _decide(request, sets, comm, observer)
    task, test, choice = decided.task, decided.test, None
    if decided.automatic:
        with clock.phase("lambda"):
            choice = _choose_lambda(request, task, comm, stop_wanted)
        task = replace(task, settings=replace(task.settings, lam=choice.lam))
    if request.lam in (None, "auto"):
        observer.chose_lambda(task.settings.lam, choice, decided.resumed)
    observer.ready(task)
    options = RunOptions(
        request.memory,
        request.checkpoint,
        request.resume,
        request.trace,
        stop_wanted,
        check=rocarea_check.check if request.check else None,
        hold_out=test is None,
        decide=decided.decisions,
        temporary=sets is not None and sets.temporary,
    )
    run = fit(task, comm, options, observer)
    run.clock.begin_with(clock)
    if choice:
        run.unseen, run.automatic, run.on_folds = choice.chance, True, choice.on_folds

    def first_save() -> Model:
        saved = run.to_model(comm)
        if choice:
            saved.info["auto_lambda"] = choice.as_json()
        if sets and sets.temporary:  # name the user's files instead of a folder that will be gone
            saved.info["data"]["directory"] = frames.short_list(sets.files) or None
        _save(request, saved, comm)
        return saved

    trained = Trained(comm.surviving(first_save), run, choice, sets, decided.warnings)
    info = trained.model.info
    observer.trained(trained)
    if test is not None:
        gc.collect()  # the memory of the training rows is needed for the test rows
        with run.clock.phase("test"):
            trained.test, trained.area = comm.surviving(lambda: _judge(trained, decided, comm))
        info.update(run.findings(), test=trained.test, test_rows=trained.area.as_json())
        observer.tested(trained)
    trained.usage = comm.surviving(lambda: run.usage(comm))
    info["usage"] = run.usage_info(trained.usage)
    comm.surviving(lambda: _save(request, trained.model, comm))
    observer.ended(trained)
    return trained


def _decide(request: TrainRequest, sets: DataSets | None, comm: Communicator, observer: TrainObserver) -> _Decided:
    """Decide what the request leaves open, and check what needs no rows; `fit` checks more. **Collective.**"""
    of_petsc, l1 = "PETSc's options" if request.settings.get("solver_options") else "", request.settings.get("l1", 0.0)
    solver, why = choose_solver(request.solver, request.measure, comm, lmvm_only=of_petsc, l1=l1)
    observer.chose_solver(solver, why)
    resumed = None
    if request.resume and request.checkpoint is not None and request.lam in (None, "auto"):
        resumed = comm.bcast(lambda_of_checkpoint(Path(request.checkpoint)) if comm.is_root else None)
    block, fingerprint = _rows(request, comm) if isinstance(request.data, Arrays) else (None, None)
    with comm.fail_together():
        decisions = Decisions.wanted(request.at, request.calibrate, request.folds)
        decisions = decisions and replace(decisions, features_of=request.features_of)
        data: Manifest | DataBlock | None = sets.training if sets else block
        data = read_manifest(tables.of_paths(request.data)[0]) if data is None else data
        manifest = data if isinstance(data, Manifest) else None
        lam = resumed or request.lam or ("auto" if _of_tables(manifest) and not request.resume else DEFAULT)
        task = _task(request, data, solver, DEFAULT if lam == "auto" else float(lam), fingerprint)
        test = sets.test if sets else request.test
        if comm.is_root:
            _check_outputs(request, manifest, test)
        warnings, same_rows = list(sets.warnings) if sets else [], sets is not None and sets.same_rows
        if manifest is not None and (decisions is not None or lam == "auto"):
            warnings += filter(None, [labels_warning(manifest)])
        reading = inputs.AS_TRAINED
        if manifest is not None and test is not None:
            reading = _reading_of_test(request, manifest, test)
            inputs.check(test, inputs.untrained_model(manifest), reading)
            same_rows |= is_data_set(test) and read_manifest(test).fingerprint == manifest.fingerprint
    observer.warned(warnings)
    return _Decided(task, lam == "auto", resumed is not None, decisions, test, reading, same_rows, warnings)


def _rows(request: TrainRequest, comm: Communicator) -> tuple[DataBlock, str | None]:
    """Return this rank's rows in memory, and what identifies those of all ranks in a checkpoint. **Collective.**"""
    from distsms.shards import in_memory  # which loads parts of SciPy

    X, y, weights, groups = request.data
    X, names = frame_columns.numbers(X, comm)
    block = replace(in_memory.block(X, y, comm, weights=weights, groups=groups), table=frame_columns.table_of(names))
    if request.checkpoint is None:
        return block, None
    return block, in_memory.fingerprint(X, block.labels, block.first_row, comm, block.weights, block.groups)


def _of_tables(manifest: Manifest | None) -> bool:
    """Return whether a data set was made from tables, so that its lambda is chosen automatically. Local."""
    return manifest is not None and any(format_of(str(file.get("name", ""))) == "table" for file in manifest.source)


def lambda_of_checkpoint(folder: Path) -> float | None:
    """Return the lambda of the run that is to be resumed; None if the folder has no readable checkpoint. Local."""
    for name in (checkpoint.NEWEST, checkpoint.OLDER):
        try:
            return float(checkpoint.read(folder / name).problem["lambda"])
        except (FileNotFoundError, InputError, KeyError):
            continue
    return None


def _task(
    request: TrainRequest, data: Manifest | DataBlock, solver: str, lam: float, fingerprint: str | None
) -> TrainingTask:
    """Return what a request asks for. Raises InputError if it contradicts itself, or its start cannot be read."""
    every = request.checkpoint_every
    if request.checkpoint is None and (request.resume or every is not None):
        raise InputError("resume and checkpoint_every need checkpoint, the folder where the checkpoints are")
    every = CHECKPOINT_EVERY if every is None and request.checkpoint is not None else every
    start = request.start
    return TrainingTask(
        data,
        request.measure,
        settings_for(request.measure, solver, lam=lam, checkpoint_every=every, **request.settings),
        request.measure.bias(request.bias),
        model.load(start) if isinstance(start, str | os.PathLike) else start,
        os.fspath(start) if isinstance(start, str | os.PathLike) else "start",
        request.ordering,
        request.step,
        fingerprint,
    )


def _check_outputs(request: TrainRequest, manifest: Manifest | None, test: str | os.PathLike[str] | None) -> None:
    """Raise InputError if an output file cannot be written, or is also an input or another output. On the root."""
    data, start = None if manifest is None else manifest.directory, request.start
    used = [data, test, None if isinstance(start, Model) else start]
    if request.output is not None:
        model.check_replaceable(request.output)
        inputs.check_distinct(request.output, data, test, request.trace)
    if request.trace is not None:
        inputs.check_distinct(request.trace, *used)
    if request.checkpoint is not None:
        inputs.check_distinct(request.checkpoint, *used, request.output, request.trace)


def _reading_of_test(request: TrainRequest, manifest: Manifest, test: str | os.PathLike[str]) -> inputs.InputOptions:
    """Return how test rows are read: files have weights and groups in the same columns as the training rows. Local."""
    within = request.measure.within_groups is not None
    if is_data_set(test):
        return inputs.InputOptions(request.ignore_new, groups=within)
    group = manifest.group["column"] if within and manifest.group else None
    return inputs.InputOptions(request.ignore_new, weight=request.reading.get("weight"), group=group)


def _choose_lambda(
    request: TrainRequest, task: TrainingTask, comm: Communicator, stop_wanted: Callable[[], bool]
) -> LambdaChoice:
    """Choose lambda by a quick cross-validation, within half of the memory. **Collective.**"""
    from distsms.workflow.auto_lambda import choose_lambda  # which loads parts of SciPy

    return choose_lambda(
        task.data,
        task.measure,
        comm,
        task.settings,
        task.bias,
        task.ordering,
        task.step,
        stop_wanted=stop_wanted,
        budget=None if request.memory is None else MemoryBudget(int(request.memory / 2)),
    )


def _save(request: TrainRequest, saved: Model, comm: Communicator) -> None:
    """Write the model, if the request names a file for it. **Collective.**"""
    with comm.fail_together():
        if comm.is_root and request.output is not None:
            model.save_or_rescue(request.output, saved)


def _judge(trained: Trained, decided: _Decided, comm: Communicator) -> tuple[dict[str, float], AreaOnTest]:
    """Return the measures on the test rows, and their ROCArea with its interval. **Collective.**

    The model is also compared with the quick ROCArea model of the run, unless test rows are training rows.
    """
    run, test = trained.run, os.fspath(decided.test or "")
    quick = run.rocarea_model(trained.model)
    with run.reading:
        scored = scoring.score([trained.model, *([quick] if quick else [])], test, comm, decided.reading)
    scores, labels, weights = scored.counted_scores()
    groups = scored.counted_groups
    measures = headline_measures(run.task.measure, scores, labels, run.threshold, comm, weights, groups)
    area = run.judge_test(scores, labels, comm, weights, groups, decided.same_rows)
    if quick and not area.training_rows:
        run.compare(scored, trained.sets.called.get(test, test) if trained.sets else test, comm)
    return measures, area
