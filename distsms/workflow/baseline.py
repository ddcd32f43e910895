"""A baseline as a user asks for it: several methods on the same folds, and by how much distsms is ahead or behind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from distsms.base import files
from distsms.base.measures import GROUPED, display_name
from distsms.features import arrays
from distsms.models import inputs
from distsms.parallel.communicator import Communicator
from distsms.shards import dataset
from distsms.shards.dataset import DataBlock
from distsms.shards.groupby import doubles_warning
from distsms.shards.manifest import Manifest
from distsms.shards.row_shares import MemoryBudget
from distsms.training.solver_choice import choose_solver
from distsms.workflow import baseline_fits, baseline_text, competitors, folds, method_results
from distsms.workflow.baseline_fits import BaselineStore, Fit, FitSpec, FoldedRows, Trial
from distsms.workflow.baseline_plan import (
    BaselinePlan,
    MethodPlan,
    baseline_problem,
    check_measures,
    identity,
    leave_out,
    plan_methods,
    requested_methods,
)
from distsms.workflow.competitors import FEATURED, METHODS
from distsms.workflow.fold_features import FOLDER, FoldFeatures, FoldsObserver
from distsms.workflow.method_results import WARNING, Baseline
from distsms.workflow.path import SMALL, PathRows, Problem
from distsms.workflow.requests import BaselineRequest


class FitProgress(NamedTuple):
    """How many fits are done, and which is the next."""

    done: int
    total: int
    method: str
    setting: str = ""  # such as "0.001", "try 3" or "best of 20"; "" for all lambdas
    fold: int | None = None  # None for all folds
    shared: bool = False  # whether each rank makes fits of its own, and `done` and `total` count those of this rank


class BaselineObserver(FoldsObserver):
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
    """Make the fits that are missing in the folder, and evaluate all of them. **Collective.**

    `stop_wanted` is asked on every rank before each fit and at each evaluation; True ends the run, which keeps what is
    finished. Raises InputError on all ranks if the request contradicts itself, the folder belongs to another one, or a
    method that the user named cannot be trained.
    """
    with ExitStack() as opened:
        run = _BaselineRun(request, comm, observer, stop_wanted, opened)
        return run.conclude(run.fit())


class _BaselineRun:
    """The steps of a baseline. Creating it, and its methods, are collective."""

    def __init__(
        self,
        request: BaselineRequest,
        comm: Communicator,
        observer: BaselineObserver,
        stop_wanted: Callable[[], bool],
        opened: ExitStack,
    ) -> None:
        self._request, self._comm, self._observer = request, comm, observer
        self._store = BaselineStore(request.output)
        self._neighbours = comm.node_ranks()
        self._rows: FoldedRows | None = None  # what evaluates the fits
        self._plan = self._decide(opened)
        observer.planned(self._plan)
        end = time.monotonic() + request.time_limit
        self._stop_wanted = lambda: stop_wanted() or time.monotonic() > end

    def _decide(self, opened: ExitStack) -> BaselinePlan:
        """Make all checks that can be made before the rows are read, open the folder, and see what is missing."""
        request, comm, store = self._request, self._comm, self._store
        with comm.fail_together():
            methods = requested_methods(request)
            check_measures(request)
        solver = request.solver or "lmvm"
        if any(METHODS[name].by_distsms for name in methods):
            solver, why = choose_solver(request.solver, request.measure, comm)
            self._observer.chose_solver(solver, why)
        with comm.fail_together():
            competitors.check_select(request.select)
            manifest = dataset.read_manifest(request.data)
            dataset.check_readable(manifest)
            problem = baseline_problem(request, solver, manifest)
            if not {problem.measure, request.select}.isdisjoint(GROUPED):
                dataset.read_groups(manifest, 0, 0)  # raises InputError if the rows have no groups
        left_out = leave_out(request, methods, manifest, self._neighbours, comm)
        methods = [name for name in methods if not any(name in each.methods for each in left_out)]
        # On small data, messages would cost more than evaluations.
        distribute = request.memory is not None or manifest.n + manifest.nnz > SMALL
        by_distsms = [name for name in methods if METHODS[name].by_distsms and name not in FEATURED]
        done: set[FitSpec] = set()
        with comm.fail_together():
            competitors.require(methods)
            distributed = plan_methods(
                request, problem, manifest, by_distsms if distribute else [], comm.size, self._neighbours
            )
            if comm.is_root:
                inputs.check_distinct(request.output, request.data, request.path)
                store.check()
                opened.enter_context(files.exclusive(store.path))
                store.open(identity(request, problem, manifest))
                done = store.done()
        done = comm.bcast(done)
        first = baseline_fits.first_round(methods, problem.lambdas, problem.folds, request.tree_fits)
        return BaselinePlan(
            manifest=manifest,
            problem=problem,
            select=request.select or problem.measure,
            methods=methods,
            left_out=left_out,
            distributed=distributed,
            total=len(first),
            missing=[spec for spec in first if spec not in done],
        )

    def fit(self) -> bool:
        """Make the missing fits; return whether they were stopped."""
        stopped = self._plan.distributes_rows and self._fit_distributed()
        return stopped or self._fit_on_features() or self._fit_alone()

    def _fit_distributed(self) -> bool:
        """Make the fits on distributed rows; return whether they were stopped."""
        comm, plan = self._comm, self._plan
        block = dataset.load(plan.manifest, comm, budget=self._budget(plan.distributed), with_groups=plan.needs_groups)
        self._observer.loaded(block)
        with comm.fail_together():
            last = block.first_row + len(block.labels)
            fold_keys = folds.read_fold_keys(plan.manifest, plan.problem.folds_by, block.first_row, last)
        rows, problems = PathRows(block, comm, fold_keys), _problems(plan.distributed)
        specs = plan.missing_of(list(plan.distributed))
        recorder = _Recorder(self._store, self._observer, len(specs))
        stopped = baseline_fits.fit_distributed(
            rows, problems, specs, recorder.keep, self._stop_wanted, recorder.begin_method
        )
        self._observer.fitted()
        self._rows = baseline_fits.gather_rows(rows, plan.problem, plan.needs_groups)
        return stopped

    def _budget(self, methods: Mapping[str, MethodPlan]) -> MemoryBudget | None:
        """Return the memory that the method that takes most leaves for rows; None if it is not limited. Local."""
        plans = [method.memory for method in methods.values()]
        largest = max(plans, key=lambda plan: plan.needs.least(self._comm.size, True), default=None)
        return None if largest is None else largest.room(self._comm.is_root)

    def _fit_on_features(self) -> bool:
        """Make the fits on features, which are made for each fold from its training rows; return whether stopped."""
        comm, folder = self._comm, self._store.path / FOLDER
        specs = self._plan.missing_of(FEATURED)
        if not specs:
            return False
        recorder = _Recorder(self._store, self._observer, len(specs))
        kinds = dict.fromkeys(METHODS[spec.method].features for spec in specs)
        stopped = any(self._fit_on(kind, specs, recorder) for kind in kinds)
        if not stopped:
            comm.barrier()
            if comm.is_root:
                shutil.rmtree(folder, ignore_errors=True)
        self._observer.fitted()
        return stopped

    def _fit_on(self, kind: str, specs: Sequence[FitSpec], recorder: _Recorder) -> bool:
        """Make the fits on one kind of features; return whether they were stopped."""
        request, comm, plan = self._request, self._comm, self._plan
        methods = list(dict.fromkeys(spec.method for spec in specs if METHODS[spec.method].features == kind))
        # 1) Make the features of all folds.
        fold_features = FoldFeatures(
            plan.manifest,
            options=arrays.options(kind),
            folder=self._store.path / FOLDER / kind,
            problem=plan.problem,
            comm=comm,
            observer=self._observer,
            memory=request.memory,
        )
        for fold in range(1, plan.problem.folds + 1):
            fold_features.manifest(fold)
            if any(comm.allgather(self._stop_wanted())):
                return True
        # 2) Train on them, one fold after the other.
        with comm.fail_together():
            featured = fold_features.manifest(1)
            method_plans = plan_methods(
                request, plan.problem, featured, methods, comm.size, self._neighbours, one_by_one=True
            )
        fold_features.budget, fold_features.with_groups = self._budget(method_plans), plan.problem.needs_groups
        return baseline_fits.fit_distributed(
            PathRows(fold_features.rows, comm),
            _problems(method_plans),
            specs,
            recorder.keep,
            self._stop_wanted,
            recorder.begin_method,
            before=fold_features.seconds,
        )

    def _fit_alone(self) -> bool:
        """Make the fits that take whole rows, each on one of the ranks; return whether any rank was stopped."""
        plan, comm, store = self._plan, self._comm, self._store
        if not plan.alone:
            return False
        problem = plan.problem
        with comm.fail_together():
            rows = baseline_fits.read_rows(
                plan.manifest, problem.folds_by, problem.folds, problem.seed, within=plan.needs_groups
            )
        self._rows = rows
        if self._share(rows, plan.missing_of(plan.alone)):
            return True
        best: list[FitSpec] = []
        with comm.fail_together():
            if comm.is_root:
                done = {(fit.method, fit.setting, fit.fold) for fit in store.fits()}
                second = baseline_fits.second_round(store.trials(), self._request.tree_fits)
                best = [spec for spec in second if not METHODS[spec.method].linear and spec[:3] not in done]
        return self._share(rows, comm.bcast(best))

    def _share(self, rows: FoldedRows, specs: Sequence[FitSpec]) -> bool:
        """Make these fits, each on one of the ranks; return whether any rank was stopped."""
        comm, problem = self._comm, self._plan.problem
        of_rank = specs[comm.rank :: comm.size]
        recorder = _Recorder(self._store, self._observer, len(of_rank), shared=True)
        stopped = baseline_fits.fit_alone(
            rows, of_rank, problem.measure, problem.settings, recorder.keep, self._stop_wanted, recorder.begin
        )
        self._observer.fitted()
        return any(comm.allgather(stopped))

    def conclude(self, stopped: bool) -> Baseline:
        """Evaluate all complete fits in the folder, and write baseline.json, unless the fits were stopped."""
        plan, comm, store = self._plan, self._comm, self._store
        result = Baseline(
            folder=store.path,
            problem=identity(self._request, plan.problem, plan.manifest),
            solver=plan.problem.settings.solver,
            select=plan.select,
            stopped=stopped,
            left_out=plan.left_out,
        )
        if stopped:
            return result
        with comm.fail_together():
            if comm.is_root:
                assert self._rows is not None
                result = _evaluate(result, self._request.select, plan, store, self._rows)
                store.describe(result.problem, **result.results())
        return comm.bcast(result)


class _Recorder:
    """Keeps the results of fits, and tells an observer how many are done, and which fit is being made."""

    def __init__(self, store: BaselineStore, observer: BaselineObserver, total: int, shared: bool = False) -> None:
        self._store, self._observer, self._shared = store, observer, shared
        self._done, self._total = 0, total

    def begin(self, spec: FitSpec) -> None:
        """Tell what is about to be fitted."""
        setting = f"{spec.setting:g}"
        if not METHODS[spec.method].linear:
            setting = f"best of {setting}" if spec.best else f"try {setting}"
        self._observer.fitting(self._progress(spec.method, setting, spec.fold))

    def begin_method(self, spec: FitSpec) -> None:
        """Tell which method is about to be fitted to all folds."""
        self._observer.fitting(self._progress(spec.method))

    def _progress(self, method: str, setting: str = "", fold: int | None = None) -> FitProgress:
        return FitProgress(self._done, self._total, method, setting, fold, self._shared)

    def keep(self, result: Fit | Trial, scores: Any = None) -> None:
        """Keep the result of a fit."""
        self._store.keep(result, scores)
        self._done += 1


def _problems(methods: Mapping[str, MethodPlan]) -> dict[str, Problem]:
    return {name: method.problem for name, method in methods.items()}


def _evaluate(
    result: Baseline, select: str | None, plan: BaselinePlan, store: BaselineStore, rows: FoldedRows
) -> Baseline:
    """Return the result with the table and the sentences of all complete fits in the folder. On the root."""
    measure, fits = plan.problem.measure, store.fits()
    methods = method_results.evaluate_methods(store, fits, rows, measure, select)
    head = method_results.evaluate_head(store, fits, rows, measure, select)
    sentences = baseline_text.sentences(methods, measure, select) + baseline_text.head_sentences(head)
    sentences += baseline_text.describe_beyond([methods, *head.values()], sentences)
    sentences += [f"Settings are chosen by {display_name(select)} on the other folds."] if select else []
    sentences += method_results.check_logistic(methods, rows, measure, plan.problem.settings)
    sentences += _notes(plan.problem.folds_by, plan.manifest)
    return replace(result, methods=methods, head=head, sentences=sentences)


def _notes(by: str, manifest: Manifest) -> list[str]:
    """Return sentences on what the folds do not take into account."""
    applying = [kind for kind in folds.CAVEATS if kind == by or (kind == "groups" and manifest.group)]
    warnings = filter(None, [doubles_warning(manifest, by), folds.labels_warning(manifest)])
    return [f"Note: {folds.CAVEATS[kind]}." for kind in applying] + [f"{WARNING}{text}." for text in warnings]
