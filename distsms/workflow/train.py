"""A training as a user asks for it: from files, tables or rows in memory to a model that is judged on test rows."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.formatting import format_duration
from distsms.base.timing import Clock
from distsms.base.typing import Floats
from distsms.base.wording import Message, marked, option
from distsms.device.place import Place, place_of
from distsms.ingest import frames
from distsms.ingest.file_names import is_data_set
from distsms.ingest.formats.registry import format_of
from distsms.ingest.options import ConversionObserver
from distsms.matrix.normalization import Normalization
from distsms.metrics import calibration
from distsms.metrics.ranking import decision_threshold
from distsms.metrics.row_sample import sample_rows
from distsms.metrics.row_weights import describe_weights, mean_and_deviation
from distsms.metrics.summary import summary_measures
from distsms.models import inputs, model, scoring
from distsms.models.model import Model
from distsms.optim.result import Status
from distsms.shards import from_arrays
from distsms.shards.coded_columns import NOT_CODED
from distsms.shards.dataset import DataBlock, MemoryBudget
from distsms.shards.manifest import Manifest, read_manifest
from distsms.training import checkpoint
from distsms.training.fit import Fit, loaded_run
from distsms.training.rows import TrainingObserver
from distsms.training.solver_choice import choose_solver, settings_for
from distsms.training.task import RunOptions, TrainingTask
from distsms.workflow import tables
from distsms.workflow.folds import labels_warning
from distsms.workflow.provenance import describe_data_set, describe_rows
from distsms.workflow.requests import DEFAULT_LAMBDA, Arrays, Split, TrainRequest
from distsms.workflow.tables import DataSets
from distsms.workflow.trained_model import TrainedModel, TrainingScores
from distsms.workflow.verdict import SUSPICIOUS, AreaOnTest, leaking_columns, why_chance, within_groups

if TYPE_CHECKING:  # what many trainings do not need is loaded where it is used, since each start would take longer
    from distsms.workflow.auto_lambda import LambdaChoice
    from distsms.workflow.decisions import Decisions
    from distsms.workflow.search import Search

CHECKPOINT_EVERY = 300.0
"""Seconds between two checkpoints, unless the user says otherwise."""
UNFINISHED = (Status.STOPPED, Status.TIME, Status.NONFINITE)
"""If a run ended in one of these ways, its model is not compared with others: time is short, or there is no model."""


@dataclass
class Trained:
    """What a training found. All ranks have the same."""

    model: Model  # the model, whose information has all that is known of the run
    run: TrainedModel  # the findings of the run
    sets: DataSets | None = None  # the data sets that were made of files or of a table
    search: Search | None = None  # what a search among features has tried
    data_warnings: list[str] = field(default_factory=list)  # what is odd about the training rows
    test: dict[str, float] | None = None  # the measures on test rows, if there are some
    area: AreaOnTest | None = None  # how sure the ROCArea on the test rows is
    reading: inputs.InputOptions = inputs.AS_TRAINED  # how the test rows are read
    usage: list[dict[str, Any]] = field(default_factory=list)  # seconds, bytes and memory of ranks, in the end of all

    @property
    def warnings(self) -> list[str]:
        """What users must know before they use the model, of the rows and of the model."""
        return [*self.data_warnings, *self.run.warnings()]


class TrainObserver(ConversionObserver, TrainingObserver):
    """Receives what `train` reports. Override its methods, which are called on every rank unless they say otherwise."""

    def began(self, sets: DataSets | None) -> None:
        """Called when the data are there, those that were made of files or of a table, before anything is decided."""

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
    """Train a linear model to a proved gap, and judge it on test rows if there are some. True of `stop_wanted`, asked
    on every rank at each evaluation, ends the run with what it has. Raises InputError on all ranks if the request
    contradicts itself, or files cannot be used; checks that need no rows come first. **Collective.**
    """
    run = _Run(request, comm, observer, stop_wanted)
    if tables.are_tables(request.data, comm):
        trained = run.on_table()
    elif request.reading or request.split != Split() or request.shards or request.overwrite or request.search:
        raise InputError(
            "label, weight, group, split, split_by, seed, shards, overwrite, search and how columns are read are for"
            " tables (DataFrame, CSV or Parquet); distsms shard has given data sets theirs",
            everywhere=True,
        )
    else:
        observer.began(None)
        trained = run.train()
    trained.usage = comm.surviving(lambda: trained.run.usage(comm))
    return trained


class _Run:
    """The steps of a training. Methods are collective, unless they say otherwise."""

    sets: DataSets | None = None  # those that were made of files or of a table
    search: Search | None = None  # what a search has tried, and the lambda that it has chosen
    choice: LambdaChoice | None = None
    # What `_decide` sets:
    task: TrainingTask  # without its lambda, if that is `automatic`, which is to be chosen
    automatic: bool
    resumed: bool  # whether lambda is that of the run that is resumed
    decisions: Decisions | None
    test: str | os.PathLike[str] | None  # the test rows
    reading: inputs.InputOptions  # how these are read
    same_rows: bool  # whether they are known to be training rows
    warnings: list[str]

    def __init__(
        self, request: TrainRequest, comm: Communicator, observer: TrainObserver, stop_wanted: Callable[[], bool]
    ) -> None:
        self.request, self.comm, self.observer, self.stop_wanted = request, comm, observer, stop_wanted
        self.clock = Clock(comm.bytes_moved)
        self.place = place_of(request.device, request.measure, comm)

    def on_table(self) -> Trained:
        """Make data sets, search among features of their columns, train what is chosen, and judge it."""
        from distsms.workflow import search  # which loads what makes features

        request, comm, observer = self.request, self.comm, self.observer
        why_left_out = search.why_not_searched(request, comm)
        searched = why_left_out is None  # features are made from files
        with tables.as_data_sets(request, comm, observer, self.clock, in_files=searched) as self.sets:
            observer.began(self.sets)
            why_left_out = search.why_too_few(request, self.sets.training) if searched else why_left_out
            if why_left_out:
                observer.noted("search", Message(f"left out: {marked(why_left_out)}"))
            elif why_left_out is None:
                self._decide(TrainObserver())  # only for what it refuses, before the search
                with self.clock.phase("search"):
                    self.search = search.search(request, self.sets.training, comm, observer, self.stop_wanted)
                    if self.search is not None:
                        chosen = search.request_of(request, self.sets, self.search, comm)
                        self.request, self.sets, self.choice = chosen
                search.end_if_stopped(self.stop_wanted, comm)
            return self.train()

    def train(self) -> Trained:
        """Train on a data set or on rows in memory, and judge the model; a search may have chosen."""
        request, comm, sets, observer, clock = self.request, self.comm, self.sets, self.observer, self.clock
        self._decide(observer)
        self._choose_lambda()
        observer.ready(self.task)
        options = RunOptions(
            memory=request.memory,
            checkpoint=request.checkpoint,
            resume=request.resume,
            trace=request.trace,
            stop_wanted=self.stop_wanted,
            certificate=request.certificate,
            temporary=sets is not None and sets.temporary,
            place=self.place,
        )
        run = train_task(
            self.task,
            comm,
            options,
            check=request.check,
            hold_out=self.test is None,
            decisions=self.decisions,
            observer=observer,
            clock=clock,
            lambda_choice=self.choice,
        )

        def first_save() -> Model:
            saved = run.to_model(comm)
            if self.search is not None:
                saved.info["search"] = self.search.as_json()
            if sets and sets.temporary:  # name the user's files instead of a folder that will be gone
                saved.info["data"]["directory"] = frames.short_list(sets.files) or None
            self._save(saved)
            return saved

        trained = Trained(comm.surviving(first_save), run, sets, self.search, self.warnings, reading=self.reading)
        info = trained.model.info
        observer.trained(trained)
        if self.test is not None:
            gc.collect()  # the memory of the training rows is needed for the test rows
            with clock.phase("test"):
                trained.test, trained.area = comm.surviving(lambda: self._judge(trained))
            info.update(run.findings(), test=trained.test, test_rows=trained.area.as_json())
            observer.tested(trained)
        info["usage"] = run.usage_info(comm.surviving(lambda: run.usage(comm)))
        comm.surviving(lambda: self._save(trained.model))
        with clock.phase("report") if sets else nullcontext():
            observer.ended(trained)
        return trained

    def _decide(self, observer: TrainObserver) -> None:
        """Decide what the request leaves open, and check what needs no rows; `fit` checks more."""
        request, sets, comm = self.request, self.sets, self.comm
        of_petsc = "PETSc's options" if request.settings.get("solver_options") else ""
        l1 = request.settings.get("l1", 0.0)
        solver, why = choose_solver(request.solver, request.measure, comm, lmvm_only=of_petsc, l1=l1)
        if why:
            observer.noted("solver", f"{solver}: {why}")
        lam_of_checkpoint = None
        if request.resume and request.checkpoint is not None and request.lam in (None, "auto"):
            kept, _ = checkpoint.newest(Path(request.checkpoint)) if comm.is_root else (None, [])
            lam_of_checkpoint = comm.bcast(kept and kept.problem.get("lambda"))
        block, fingerprint = _rows(request, comm) if isinstance(request.data, Arrays) else (None, None)
        with comm.fail_together():
            self.decisions = None
            if request.at is not None or request.calibrate:
                from distsms.workflow.decisions import Decisions, check

                self.decisions = Decisions(check(request.at, request.calibrate, request.folds), request)
            data: Manifest | DataBlock | None = sets.training if sets else block
            data = read_manifest(tables.of_paths(request.data)[0]) if data is None else data
            manifest = data if isinstance(data, Manifest) else None
            sources = [] if manifest is None else [str(file.get("name", "")) for file in manifest.source]
            of_table = any(format_of(name) == "table" for name in sources) and not request.resume
            usual = "auto" if of_table else DEFAULT_LAMBDA
            lam = lam_of_checkpoint or (usual if request.lam is None else request.lam)
            if lam == "auto" and request.features_of is not None:
                why = "would choose on rows whose labels have made the features"
                remedy = "give a number, or compare lambdas by GridSearchCV, which makes features for each fold"
                raise InputError(f"{option('lam', 'auto')} {why}; {remedy}")
            self.automatic, self.resumed = lam == "auto", lam_of_checkpoint is not None
            number = DEFAULT_LAMBDA if lam == "auto" else float(lam)
            self.task = _task(request, data, solver, number, self.place, fingerprint)
            self.test = test = sets.test if sets else request.test
            if comm.is_root:
                if manifest is not None and manifest.coded.features:
                    from distsms.features import feature_map

                    feature_map.load(manifest, keep=False)  # the model will need it
                _check_outputs(request, manifest, test)
            self.warnings, self.same_rows = list(sets.warnings) if sets else [], sets is not None and sets.same_rows
            if manifest is not None and (self.decisions is not None or self.automatic):
                self.warnings += filter(None, [labels_warning(manifest)])
            self.reading = inputs.AS_TRAINED
            if manifest is not None and test is not None:
                self.reading = _reading_of_test(request, manifest, test)
                inputs.check(test, inputs.untrained_model(manifest), self.reading)
                self.same_rows |= is_data_set(test) and read_manifest(test).fingerprint == manifest.fingerprint
        for warning in self.warnings:
            observer.noted("warning", warning)

    def _choose_lambda(self) -> None:
        """Choose the lambda of the task, if that is to be; say why it has this one, if the user named none."""
        request, task, why = self.request, self.task, "that of the run that is resumed"
        if self.automatic:
            from distsms.workflow import auto_lambda

            with self.clock.phase("lambda"):
                budget = None if request.memory is None else MemoryBudget(int(request.memory / 2))
                self.choice = auto_lambda.choose_lambda(task, self.comm, self.stop_wanted, budget=budget)
            self.task = replace(task, settings=replace(task.settings, lam=self.choice.lam))
        if request.lam in (None, "auto"):
            if self.choice is not None:
                why = f"chosen automatically in {self.choice.seconds:.1f} s: {self.choice.reason}"
            elif not self.resumed:
                why = f"the default; {option('lam', 'auto')} chooses it by a quick cross-validation"
            self.observer.noted("lambda", Message(f"{self.task.settings.lam:g}, {why}"))

    def _save(self, saved: Model) -> None:
        """Write the model, if the request names a file for it."""
        with self.comm.fail_together():
            if self.comm.is_root and self.request.output is not None:
                model.save_or_rescue(self.request.output, saved)

    def _judge(self, trained: Trained) -> tuple[dict[str, float], AreaOnTest]:
        """Return the measures on the test rows, and their ROCArea with its interval."""
        run, test, comm = trained.run, os.fspath(self.test or ""), self.comm
        quick = run.rocarea_model(trained.model)
        with run.fit.rows.reading:
            scored = scoring.score([trained.model, *([quick] if quick else [])], test, comm, self.reading)
        for note in scored.notes if comm.is_root else ():
            self.observer.cautioned(note)
        measures, area = run.judge_test(scored, comm, self.same_rows)
        if quick and not area.training_rows:
            run.compare(scored, self.sets.called.get(test, test) if self.sets else test, comm)
        return measures, area


def train_task(
    task: TrainingTask,
    comm: Communicator,
    options: RunOptions = RunOptions(),  # noqa: B008 - immutable
    check: bool = False,
    hold_out: bool = True,
    decisions: Decisions | None = None,
    observer: TrainObserver = TrainObserver(),  # noqa: B008 - without state
    clock: Clock | None = None,
    lambda_choice: LambdaChoice | None = None,
) -> TrainedModel:
    """Fit a model, and find out what it is worth on its training rows, again if a rank dies. With `check`, models for
    other measures are compared with a quick ROCArea model, on training rows if these are to `hold_out`; `decisions`
    find a threshold and probabilities on folds. **Collective.**
    """
    measure, clock = task.measure, clock or Clock(comm.bytes_moved)
    check = check and not measure.family.compares_pairs and not measure.family.log_loss
    folds = decisions.request.folds if decisions else 0
    if check:
        from distsms.workflow.rocarea_check import RESERVE

        options = replace(options, reserve=RESERVE)
    options = replace(options, folds=folds)
    with loaded_run(task, comm, options, observer, clock) as rows:
        if decisions:  # an error is better found before the training
            rows.surviving(lambda: decisions.make_folds(rows.block, comm))
        fit = rows.minimize()
    finished = fit.result.status not in UNFINISHED

    def conclude() -> TrainedModel:
        rows.free("loss")
        scores = _measure_training_rows(fit, comm)
        quick = decided = None
        if check and rows.reserved and finished:
            from distsms.workflow.rocarea_check import Checker

            with rows.clock.phase("check"):
                quick = Checker(fit, comm).run(hold_out)
        if decisions and finished:
            limit = format_duration(max((folds - 1) * fit.result.seconds, 1.0))
            each = f"{folds} more models, each trained on {100 * (1 - 1 / folds):.0f} % of the rows"
            observer.noted("folds", f"{each}; this takes up to about {limit}")
            with rows.clock.phase("folds"):
                decided = decisions.decide(fit, scores.spread, comm)
        return TrainedModel(fit, scores, quick, decided, lambda_choice)

    trained = rows.surviving(conclude, fit.evaluations)
    rows.free()
    return trained


def _measure_training_rows(fit: Fit, comm: Communicator) -> TrainingScores:
    """Score the training rows, and find the threshold, the measures and what is odd about them. **Collective.**"""
    task, block, manifest = fit.rows.task, fit.rows.block, fit.rows.task.manifest
    with fit.rows.clock.phase("threshold"):
        scored = block.counted_scores(fit.rows.features.margins(fit.result.w), comm)
        spread = mean_and_deviation(scored)
        threshold = decision_threshold(fit.calls_positive, scored)
        measures = summary_measures(task.measure, replace(scored, groups=None), threshold)
        means = calibration.means_of_logistic(scored) if task.measure.family.has_probabilities else None
        if (within := within_groups(task.measure, scored)) is not None:
            measures[task.measure.name] = within.value
        in_files = manifest and describe_data_set(manifest, manifest.directory)
        data = in_files or describe_rows(block, task.fingerprint, comm)
        if scored.weights is not None:
            data["weights"] = describe_weights(scored)
            if manifest is not None and manifest.weight:
                data["weights"]["column"] = manifest.weight["column"]
        leaks = dict[str, float]()
        table = None if manifest is None or manifest.coded else manifest.table
        if table is not None and measures["rocarea"] > SUSPICIOUS:
            leaks = leaking_columns(block, table, fit.result.w[: block.p], data["n_pos"], comm)
        chance = why_chance(scored, measures["rocarea"], within)
        sample = sample_rows(scored, "float64" if manifest is None else manifest.dtype)
        contributions = None
        if (manifest or block).table is not None:
            from distsms.models.contributions import mean_contributions  # which loads what knows of features

            contributions = mean_contributions(fit.w, block, manifest, comm)
    return TrainingScores(threshold, measures, data, chance, spread, sample, means, leaks, contributions)


def _rows(request: TrainRequest, comm: Communicator) -> tuple[DataBlock, str | None]:
    """Return this rank's rows in memory, and what identifies those of all ranks in a checkpoint. **Collective.**"""
    rows = request.data
    X, names = from_arrays.numbers(rows.X, comm)
    block = from_arrays.block(X, rows.y, comm, weights=rows.weights, groups=rows.groups)
    block = replace(block, table=from_arrays.table_of(names))
    if request.checkpoint is None:
        return block, None
    return block, from_arrays.fingerprint(X, block.labels, block.first_row, comm, block.weights, block.groups)


def _task(
    request: TrainRequest, data: Manifest | DataBlock, solver: str, lam: float, place: Place, fingerprint: str | None
) -> TrainingTask:
    """Return what a request asks for. Raises InputError if it contradicts itself, or its start cannot be read."""
    every = request.checkpoint_every
    if request.checkpoint is None and (request.resume or every is not None):
        raise InputError("resume and checkpoint_every need checkpoint, the folder where the checkpoints are")
    every = CHECKPOINT_EVERY if every is None and request.checkpoint is not None else every
    measure, points = request.measure, request.certificate is not None
    bias, begin, name = measure.bias(request.bias), request.start, "start"
    if isinstance(begin, str | os.PathLike):
        name, begin = os.fspath(begin), model.load(begin)
    settings = settings_for(measure, solver, lam=lam, checkpoint_every=every, points=points, **request.settings)
    start = None if begin is None else start_vector(begin, data, bias, name)
    ordering = place.ordering(request.distribution.ordering, measure)
    distribution = request.distribution._replace(ordering=ordering)
    return TrainingTask(data, measure, settings, bias, start, distribution, fingerprint)


def start_vector(begin: Model, data: Manifest | DataBlock, bias: float | None, name: str = "start") -> Floats:
    """Return the coefficients of a model, called `name`, to begin from, (p,) or with a bias (p + 1,). Local."""
    normalization = data.normalization if isinstance(data, Manifest) else Normalization()
    coded = data.coded if isinstance(data, Manifest) else NOT_CODED
    if begin.coded.maps != coded.maps:
        theirs, ours = (columns.describe() if columns else "no codes" for columns in (begin.coded, coded))
        raise InputError(f"{name}: was trained on {theirs}, and the data have {ours}")
    if begin.p > data.p:
        raise InputError(f"{name}: has {begin.p} columns, and the data {data.p}; a start must not have more")
    before, now = begin.normalization.kind, normalization.kind
    if (before == "l2") != (now == "l2"):
        raise InputError(f"{name}: is for rows normalized as {before}, the data are {now}")
    new = np.zeros(data.p - begin.p)  # new columns come before the coded ones
    w = normalization.unfold(np.insert(begin.w, begin.p - coded.p, new))
    return np.append(w, begin.bias / bias) if bias else w


def _check_outputs(request: TrainRequest, manifest: Manifest | None, test: str | os.PathLike[str] | None) -> None:
    """Raise InputError if an output file cannot be written, or is also an input or another output. On the root."""
    data, start = None if manifest is None else manifest.directory, request.start
    if request.output is not None:
        model.check_replaceable(request.output)
        inputs.check_distinct(request.output, data, test)
    if request.certificate is not None:
        from distsms.training import certificate

        certificate.check_replaceable(request.certificate)
    used = [data, test, None if isinstance(start, Model) else start, request.output]
    for path in (request.trace, request.certificate, request.checkpoint):
        if path is not None:
            inputs.check_distinct(path, *used)
        used.append(path)


def _reading_of_test(request: TrainRequest, manifest: Manifest, test: str | os.PathLike[str]) -> inputs.InputOptions:
    """Return how test rows are read: files have weights and groups in the same columns as the training rows, and lose
    the rows without a group if these did. Local."""
    within = request.measure.within_groups is not None
    if is_data_set(test):
        return inputs.InputOptions(request.ignore_new, groups=within)
    missing_group = request.reading.get("missing_group") or "own"
    group = manifest.group["column"] if manifest.group and (within or missing_group == "drop") else None
    weight = request.reading.get("weight")
    return inputs.InputOptions(request.ignore_new, weight=weight, group=group, missing_group=missing_group)
