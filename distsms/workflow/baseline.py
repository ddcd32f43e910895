"""A baseline as a user asks for it: several methods on the same folds, and by how much distsms is ahead or behind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import display_name
from distsms.base.timing import Clock
from distsms.base.wording import format_value
from distsms.features import arrays
from distsms.ingest import frames
from distsms.ingest.options import ConversionObserver
from distsms.shards.dataset import DataBlock
from distsms.shards.row_statistics import doubles_warning
from distsms.workflow import baseline_fits, baseline_text, folds, method_results, tables
from distsms.workflow.auto_lambda import Starts
from distsms.workflow.baseline_fits import FitSpec, FoldedRows
from distsms.workflow.baseline_plan import BaselinePlan, decide, plan_methods
from distsms.workflow.candidates import named
from distsms.workflow.competitors import FEATURED, METHODS
from distsms.workflow.fold_features import FOLDER, FoldFeatures, FoldsObserver
from distsms.workflow.method_results import EARLY_FOLDS, WARNING, Baseline
from distsms.workflow.path import PathRows, Problem, load_rows
from distsms.workflow.provenance import usage_of_ranks
from distsms.workflow.requests import BaselineRequest, TrainRequest


class FitProgress(NamedTuple):
    """How many fits of a series are done, and which is the next."""

    done: int
    total: int
    method: str
    setting: str = ""  # such as "0.001", "try 3" or "best of 20"; "" for all lambdas
    fold: int | None = None  # None for all folds
    shared: bool = False  # whether each rank makes fits of its own, and `done` and `total` count those of this rank


class BaselineObserver(FoldsObserver, ConversionObserver):
    """Receives what `compare_methods` reports."""

    def planned(self, plan: BaselinePlan) -> None:
        """Called before the rows are read, with all that was decided."""

    def loaded(self, block: DataBlock) -> None:
        """Called with this rank's rows, if they are distributed. May be collective."""

    def fitting(self, progress: FitProgress) -> None:
        """Called before a fit, or before the fits of a method to all folds."""

    def fitted(self) -> None:
        """Called after each series of fits, also if it was stopped."""


def compare_methods(
    request: BaselineRequest,
    comm: Communicator,
    observer: BaselineObserver = BaselineObserver(),  # noqa: B008 - without state
    stop_wanted: Callable[[], bool] = lambda: False,
) -> Baseline:
    """Make the fits that are missing in the folder, and evaluate all of them. True of `stop_wanted`, asked on every
    rank before each fit and at each evaluation, ends the run, which keeps what is finished. Raises InputError on all
    ranks if the request contradicts itself or the folder, or a method cannot be trained. **Collective.**"""
    clock, called = Clock(comm.bytes_moved), ""
    with ExitStack() as opened:
        if tables.are_tables(request.data, comm):
            # All rows are used, since the folds hold out those that judge, and folds are read from files.
            rows = TrainRequest(
                request.data, reading=request.reading, shards=request.shards, resume=True, memory=request.memory
            )
            sets = opened.enter_context(tables.as_data_sets(rows, comm, observer, clock, in_files=True))
            for warning in sets.warnings if comm.is_root else ():
                observer.cautioned(warning)
            called = frames.short_list(sets.files) or "the table"
            request = replace(request, data=sets.training.directory)
        elif request.reading or request.shards is not None:
            raise InputError("label, shards, and how columns are read are for tables, such as CSV or Parquet", True)
        elif not (paths := tables.of_paths(request.data)):
            raise InputError(f"data is {format_value(request.data):.60}, and neither a path nor a table", True)
        else:
            request = replace(request, data=paths[0])
        plan = decide(request, called, comm, observer, opened)
        observer.planned(plan)
        run = _BaselineRun(plan, comm, observer, stop_wanted)
        with clock.phase("fits"), suppress(_Stopped):
            run.fit()
        with clock.phase("intervals"):
            result = run.conclude()
    return replace(result, usage=usage_of_ranks(clock, comm, 0, 0))


class _Stopped(Exception):
    """The run was to be stopped on a rank. Raised on all of them."""


class _BaselineRun:
    """The steps of a baseline. Its methods are collective."""

    def __init__(
        self, plan: BaselinePlan, comm: Communicator, observer: BaselineObserver, stop_wanted: Callable[[], bool]
    ) -> None:
        self._plan, self._comm, self._observer = plan, comm, observer
        self._rows: FoldedRows | None = None  # what evaluates the fits
        self._stopped = True  # until all fits are made
        end = time.monotonic() + plan.request.time_limit
        self._stop_wanted = lambda: stop_wanted() or time.monotonic() > end

    def fit(self) -> None:
        """Make the missing fits."""
        self._fit_by_distsms()
        self._fit_on_features()
        self._fit_alone()
        self._stopped = False

    def _end_if(self, stopped: bool) -> None:
        """End the run if this rank, or another, was stopped."""
        if any(self._comm.allgather(stopped)):
            raise _Stopped

    def _fit_by_distsms(self) -> None:
        """Make the fits of distsms on the columns, and see to the rows that evaluate all."""
        comm, plan = self._comm, self._plan
        manifest, problem = plan.manifest, plan.problem
        if plan.by_distsms or not plan.holds_rows:
            rows = load_rows(manifest, problem, comm, plan.budget, share_folds=plan.small)
            if not plan.small:
                self._observer.loaded(rows.data)
            self._train(rows, plan.by_distsms)
            if not plan.holds_rows:
                self._rows = baseline_fits.gather_rows(rows, problem)
            del rows  # before all rows are read
        if plan.holds_rows:
            with comm.fail_together():
                self._rows = baseline_fits.read_rows(manifest, problem)

    def _train(
        self, rows: PathRows, problems: Mapping[str, Problem], before: Callable[[int], float] = lambda fold: 0.0
    ) -> None:
        """Make the fits of methods that distsms trains on these rows: those of a few lambdas, or quick trials first."""
        keep, stop_wanted = self._plan.store.keep, self._stop_wanted
        try:
            for name, problem in problems.items():
                starts = Starts()
                while specs := self._comm.of_root(partial(self._plan.missing, [name])):
                    self._observer.fitting(FitProgress(0, len(specs), name, shared=rows.share_folds))
                    if specs[0].quick:
                        stopped = baseline_fits.try_lambdas(rows, problem, specs, keep, stop_wanted, starts)
                    else:
                        with rows.fail_together():
                            stopped = baseline_fits.fit_distributed(
                                rows, problem, specs, keep, stop_wanted, before, starts.nearest
                            )
                    self._end_if(stopped)
        finally:
            self._observer.fitted()

    def _tell(self, total: int, spec: FitSpec, done: int) -> None:
        """Tell which of this rank's fits is next."""
        setting = f"{spec.setting:g}"
        if not METHODS[spec.method].linear:
            setting = f"best of {setting}" if spec.best else f"try {setting}"
        self._observer.fitting(FitProgress(done, total, spec.method, setting, spec.fold, shared=True))

    def _fit_on_features(self) -> None:
        """Make the fits on features, which are made for each fold from its training rows."""
        plan = self._plan
        names = [name for name in plan.methods if name in FEATURED]
        if not self._comm.of_root(partial(plan.missing, names)):
            return
        for kind in dict.fromkeys(METHODS[name].features for name in names):
            self._fit_on(kind, [name for name in names if METHODS[name].features == kind])
        self._comm.barrier()
        if self._comm.is_root:
            shutil.rmtree(plan.store.path / FOLDER, ignore_errors=True)

    def _fit_on(self, kind: str, methods: Sequence[str]) -> None:
        """Make the fits on one kind of features."""
        comm, plan = self._comm, self._plan
        # 1) Make the features of all folds.
        options, folder, memory = arrays.options(named(kind)), plan.store.path / FOLDER / kind, plan.request.memory
        fold_features = FoldFeatures(plan.manifest, options, folder, plan.problem, comm, self._observer, memory)
        for fold in range(1, plan.problem.folds + 1):
            fold_features.manifest(fold)
            self._end_if(self._stop_wanted())
        # 2) Train on them, one fold after the other.
        neighbours = comm.node_ranks()
        with comm.fail_together():
            featured = fold_features.manifest(1)
            problems, budget = plan_methods(
                plan.request, plan.problem, featured, methods, comm, neighbours, one_by_one=True
            )
        fold_features.budget = budget
        self._train(PathRows(fold_features.rows, comm), problems, fold_features.seconds)

    def _fit_alone(self) -> None:
        """Make the fits that take whole rows, each on one of the ranks."""
        plan, rows = self._plan, self._rows
        if not plan.alone:
            return
        assert rows is not None
        linear = [name for name in plan.alone if METHODS[name].linear]
        searches = [name for name in plan.alone if not METHODS[name].linear]
        # 1) Try lambdas quickly, and more where the best one is at an end; then fit those that are left.
        self._share(rows, partial(plan.missing, linear))
        # 2) Search settings of trees, and fit the best: on the first folds, and on the others if that settles nothing.
        for of_folds in (range(1, EARLY_FOLDS + 1), range(EARLY_FOLDS + 1, plan.problem.folds + 1)):
            self._share(rows, partial(plan.missing, searches, of_folds))
            if of_folds.start == 1 and not plan.request.thorough:
                searches = self._comm.of_root(partial(method_results.unsettled, searches, plan, rows))

    def _share(self, rows: FoldedRows, missing: Callable[[], list[FitSpec]]) -> None:
        """Make fits, each on one of the ranks, as long as the root misses some."""
        comm, plan = self._comm, self._plan
        while specs := comm.of_root(missing):
            of_rank = specs[comm.rank :: comm.size]
            begin = partial(self._tell, len(of_rank))
            keep, stop_wanted = plan.store.keep, self._stop_wanted
            with comm.fail_together():
                stopped = baseline_fits.fit_alone(rows, of_rank, plan.problem, keep, stop_wanted, begin)
            self._observer.fitted()
            self._end_if(stopped)

    def conclude(self) -> Baseline:
        """Evaluate all complete fits in the folder, and write baseline.json, unless the fits were stopped."""
        plan, comm = self._plan, self._comm
        result = Baseline(
            folder=plan.store.path,
            problem=plan.identity,
            solver=plan.problem.settings.solver,
            select=plan.problem.chooser,
            stopped=self._stopped,
            left_out=plan.left_out,
        )
        if self._stopped:
            return result
        return comm.of_root(lambda: _evaluate(result, plan, self._rows))


def _evaluate(result: Baseline, plan: BaselinePlan, rows: FoldedRows | None) -> Baseline:
    """Return the result with the table and the sentences of all complete fits in the folder. On the root."""
    assert rows is not None
    measure, select = plan.problem.measure, plan.request.select
    evaluator = method_results.Evaluator(plan.store, plan.counted_fits(), rows, plan.trials())
    methods, head = evaluator.methods(plan.problem.chooser), evaluator.head(measure, select)
    sentences = baseline_text.sentences(methods, measure, select) + baseline_text.head_sentences(head)
    sentences += baseline_text.describe_beyond([methods, *head.values()], sentences)
    sentences += [f"Settings are chosen by {display_name(select)} on the other folds."] if select else []
    sentences += method_results.check_logistic(methods, rows, plan.problem)
    # What the folds do not take into account.
    manifest, by = plan.manifest, plan.problem.folds_by
    applying = [kind for kind in folds.CAVEATS if kind == by or (kind == "groups" and manifest.group)]
    sentences += [f"Note: {folds.CAVEATS[kind]}." for kind in applying]
    warnings = doubles_warning(manifest, by), folds.labels_warning(manifest)
    sentences += [f"{WARNING}{text}." for text in warnings if text]
    effort = method_results.effort(plan)
    result = replace(result, methods=methods, head=head, sentences=sentences, effort=effort)
    plan.store.describe(result.problem, **result.results())
    return result
