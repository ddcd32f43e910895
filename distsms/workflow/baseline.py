"""A baseline as a user asks for it: several methods on the same folds, and by how much distsms is ahead or behind.

`compare_methods` decides what the command line and `distsms.baseline` leave open, makes all checks before the rows are
read, makes the fits that are missing in the folder, and returns what they show as data. It prints nothing, and tells an
observer of its progress. Messages name options as the command line writes them.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from distsms.base import files, memory
from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes
from distsms.base.measures import GROUPED, RANKING, Measure, check_chooser, display_name
from distsms.features import arrays
from distsms.features.build import refuse_codes
from distsms.features.fit import count_attributes
from distsms.losses.base import ROW_BYTES
from distsms.models import inputs
from distsms.optim.solvers.base import WIDE
from distsms.parallel.communicator import Communicator
from distsms.shards import dataset
from distsms.shards.dataset import DataBlock
from distsms.shards.groupby import doubles_warning
from distsms.shards.manifest import Manifest
from distsms.shards.row_memory import MemoryBudget
from distsms.training.plan import INTERPRETER, Plan, make_plan
from distsms.training.solver_choice import choose_solver, settings_for
from distsms.workflow import baseline_fits, baseline_text, competitors, folds, method_results
from distsms.workflow.baseline_fits import BaselineStore, Fit, FitSpec, FoldedRows, Trial
from distsms.workflow.competitors import FEATURED, METHODS, OURS
from distsms.workflow.fold_features import FOLDER, FoldFeatures
from distsms.workflow.method_results import MethodResult
from distsms.workflow.path import SMALL, PathRows, Problem
from distsms.workflow.path_store import PathStore
from distsms.workflow.requests import BaselineRequest
from distsms.workflow.several_paths import BetaStore, FeaturesStore, L1Store

LAMBDAS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""The lambdas that are tried if the user names neither lambdas nor a path."""
MOST_ATTRIBUTES = 32
"""Crosses are tried if there are at most this many attributes, which have 496 pairs."""
MOST_COLUMNS = 500
"""Leaves are tried if there are at most this many columns, since the trees try all of them at each node."""
MANY_COLUMNS = 10_000
"""From so many columns on, trees take far longer than linear models."""
ENTRY_BYTES = 48
"""The bytes of memory that a nonzero entry of the data takes on a rank.

They are for SciPy's matrix, for the copy of its training rows, and for what the libraries make of that copy.
"""
EVALUATION_BYTES = 50
"""The bytes of memory that a row takes on the root for each method, and for the best one, when it is evaluated."""
OF_PATH = ("measure", "folds", "folds_by", "seed", "epsilon", "relative")
"""What a request takes from the folder of a path, unless it says something else than by default."""


class LeftOut(NamedTuple):
    """Methods that are not compared, although the user has not left them out."""

    methods: Sequence[str]
    why: str


class MethodPlan(NamedTuple):
    """How a method is trained on rows that are distributed over the ranks."""

    memory: Plan
    problem: Problem


class FitProgress(NamedTuple):
    """How many fits are done, and which is the next."""

    done: int
    total: int
    method: str
    setting: str = ""  # such as "0.001", "try 3" or "best of 20"; "" for all lambdas
    fold: int | None = None  # None for all folds
    shared: bool = False  # whether each rank makes fits of its own, and `done` and `total` count those of this rank


@dataclass(frozen=True)
class BaselinePlan:
    """What is decided of a baseline before its rows are read; the same on every rank."""

    manifest: Manifest
    problem: Problem  # what all fits have in common: measure, lambdas, folds and settings
    select: str  # the measure that chooses the settings
    methods: Sequence[str]
    left_out: Sequence[LeftOut]
    distributed: Mapping[str, MethodPlan]  # the methods on the columns whose rows are distributed
    total: int  # the number of fits, without those of the best settings of a search
    missing: Sequence[FitSpec]  # those of them that are not in the folder yet

    @property
    def alone(self) -> list[str]:
        """The methods whose fits are made by one rank each, which holds all rows."""
        return [name for name in self.methods if name not in self.distributed and name not in FEATURED]

    @property
    def needs_groups(self) -> bool:
        """Whether measures are taken within groups."""
        return not {self.problem.measure, self.select}.isdisjoint(GROUPED)

    def missing_of(self, methods: Sequence[str]) -> list[FitSpec]:
        """Return the missing fits of some methods."""
        return [spec for spec in self.missing if spec.method in methods]


class BaselineObserver:
    """Receives what `compare_methods` reports. Its methods are called on every rank unless they say otherwise."""

    def chose_solver(self, solver: str, why: str) -> None:
        """Called with the solver of distsms, and why it is not the usual one; "" if it is."""

    def planned(self, plan: BaselinePlan) -> None:
        """Called before the rows are read, with all that was decided."""

    def loaded(self, block: DataBlock) -> None:
        """Called with this rank's rows, if they are distributed. May be collective."""

    def fitting(self, progress: FitProgress) -> None:
        """Called before a fit, or before the fits of a method to all folds."""

    def fitted(self) -> None:
        """Called after each series of fits, also if it was stopped."""

    def making_features(self, task: str, unit: str, done: float, of: float) -> None:
        """Called as features are made: what is done, in which unit, how much of it, and of how much."""

    def told(self, text: str) -> None:
        """Called on the root with a line for users on the features of a fold."""


@dataclass(frozen=True)
class Baseline:
    """What a baseline shows; the same on every rank. If it was stopped, it has no results yet.

    Attributes
    ----------
    folder : Path
        The folder with the fits and ``baseline.json``.
    problem : dict
        The data, the measure that is trained for, the folds and the target, as in ``baseline.json``.
    solver : str
        The solver of distsms.
    select : str
        The measure that chooses the settings of each method.
    stopped : bool
        Whether a signal, `stop_wanted` or the time limit ended it. The same call again continues it.
    left_out : sequence of LeftOut
        The methods that were not compared (`methods`), and `why`.
    methods : sequence of MethodResult
        A row of the table for each method, with intervals.
    head : dict
        For each measure of the head of the ranking, the methods as they are if tuned for it.
    sentences : sequence of str
        The conclusions in words, with notes and warnings.
    """

    folder: Path
    problem: Mapping[str, Any]
    solver: str
    select: str
    stopped: bool = False
    left_out: Sequence[LeftOut] = ()
    methods: Sequence[MethodResult] = ()
    head: Mapping[str, Sequence[MethodResult]] | None = None
    sentences: Sequence[str] = ()

    @property
    def warnings(self) -> list[str]:
        """Those of the sentences that are warnings."""
        return [text.removeprefix(WARNING) for text in self.sentences if text.startswith(WARNING)]

    def results(self) -> dict[str, Any]:
        """Return what ``baseline.json`` has beside the problem."""
        return {
            "solver": self.solver,
            "select": self.select,
            "methods": [result.as_json() for result in self.methods],
            "head": {name: [result.as_json() for result in results] for name, results in (self.head or {}).items()},
            "sentences": list(self.sentences),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as ``baseline.json`` has it, and `folder`, `stopped` and `left_out`."""
        left_out = [{"methods": list(each.methods), "why": each.why} for each in self.left_out]
        rest = {"folder": os.fspath(self.folder), "stopped": self.stopped, "left_out": left_out}
        return {"problem": dict(self.problem), **self.results(), **rest}

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each method.

        Its columns are the measures and the limits of their intervals, such as ``rocarea``, ``rocarea_low`` and
        ``rocarea_high``; by how much distsms is ahead by `select` (``ahead``, ``ahead_low``, ``ahead_high``); the
        smallest and the largest setting of the folds; and the seconds.
        """
        import pandas as pd

        rows = []
        for result in self.methods:
            intervals = dict(result.intervals)
            intervals |= {"ahead": result.differences[self.select]} if result.differences else {}
            row: dict[str, Any] = {"method": result.method}
            for name, interval in intervals.items():
                row |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
            ends = {"least_setting": min(result.chosen), "largest_setting": max(result.chosen)}
            rows.append(row | ends | {"seconds": result.seconds})
        return pd.DataFrame(rows)


WARNING = "Warning: "
"""Begins those sentences that are warnings."""


def compare_methods(
    request: BaselineRequest,
    comm: Communicator,
    observer: BaselineObserver = BaselineObserver(),  # noqa: B008 - without state
    stop_wanted: Callable[[], bool] = lambda: False,
) -> Baseline:
    """Make the fits that are missing in the folder, and evaluate all of them. **Collective.**

    Parameters
    ----------
    request : BaselineRequest
        What the user asks for.
    comm : Communicator
        The ranks, which share rows or fits.
    observer : BaselineObserver
        Is told of the progress.
    stop_wanted : callable
        Asked on every rank before each fit and at each evaluation; True ends the run. Finished fits are kept.

    Raises
    ------
    InputError
        On all ranks, if the request contradicts itself, the folder belongs to another one, or a method that the user
        named cannot be trained.
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
            _check_measures(request)
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
        plan, stopped = self._plan, False
        if (
            plan.distributed or not plan.alone
        ):  # without any method on the columns, their rows still evaluate the others
            stopped = self._fit_distributed()
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
            progress=self._observer.making_features,
            say=self._observer.told,
            memory=math.inf if request.memory is None else request.memory,
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


def requested_methods(request: BaselineRequest) -> list[str]:
    """Return the methods that a request asks for, before some are left out. Raises InputError if there are none."""
    methods = list(METHODS if request.methods is None else dict.fromkeys(request.methods))
    if unknown := [name for name in methods if name not in METHODS]:
        raise InputError(f"there is no method {unknown[0]!r}; there are {', '.join(METHODS)}")
    if not request.features or (not request.trees and request.methods is None):
        methods = [name for name in methods if name not in FEATURED]
    if not request.trees:
        methods = [name for name in methods if METHODS[name].linear]
    if not methods:
        raise InputError("no method is left to compare")
    return methods


def _check_measures(request: BaselineRequest) -> None:
    """Raise InputError if no baseline can train for the measure, or choose by the measure, of a request."""
    measure = Measure.parse(request.measure)
    if measure.family not in (*RANKING, "gauc", "pauc"):
        raise InputError(
            f"a baseline cannot train for {measure}; train for {', '.join(RANKING)} or pauc@BETA, such as pauc@0.05"
        )
    if request.select is not None:
        check_chooser(request.select)


def baseline_problem(request: BaselineRequest, solver: str, manifest: Manifest) -> Problem:
    """Return what all fits of a baseline have in common.

    Raises InputError if the path does not fit the data or the request, or there are no folds.
    """
    shared = {name: getattr(request, name) for name in OF_PATH}
    lambdas = set(LAMBDAS if request.lambdas is None else request.lambdas)
    if request.path is not None:
        store = PathStore(request.path)
        shared = _of_path(request, store, manifest)
        lambdas = {point.lam for point in store.points()} | set(request.lambdas or ())
    if not shared["folds"]:
        raise InputError(
            "a baseline needs at least 2 folds; give --folds 2 or more"
            if request.path is None
            else f"a baseline needs at least 2 folds, and the path {request.path} has none; make a path with --folds"
        )
    if not lambdas or min(lambdas) <= 0 or shared["folds"] < 2:
        raise InputError("a baseline needs lambdas above 0, and at least 2 folds")
    grid = sorted(lambdas, reverse=True)
    measure, target = shared["measure"], {name: shared[name] for name in ("epsilon", "relative")}
    return Problem(
        measure=measure,
        lambdas=grid,
        folds=shared["folds"],
        seed=shared["seed"],
        settings=settings_for(measure, solver, lam=grid[0], **target, **request.settings),
        folds_by=folds.choose_folds_by(shared["folds_by"], manifest),
    )


def _of_path(request: BaselineRequest, store: PathStore, manifest: Manifest) -> dict[str, Any]:
    """Return what a baseline takes from a path. Raises InputError if the path does not fit the data or the request."""
    folder = request.path
    for several in (BetaStore(store.path), L1Store(store.path), FeaturesStore(store.path)):
        if several.identity.exists():
            each = several.path / several.parts
            of_features = (
                f", which for several --features is raw: baseline makes features of its own, and takes no others;"
                f" without {each}/raw, make a path without --features"
            )
            raise InputError(
                f"{folder}: holds several paths; name one of them, {each}/NAME"
                + of_features * isinstance(several, FeaturesStore)
            )
    problem = store.read("problem", "points")["problem"]
    if problem["data"]["fingerprint"] != manifest.fingerprint:
        raise InputError(
            f"{folder}: this path is of other data, {problem['data']['path']}; name a path of {request.data}"
        )
    if l1 := problem.get("l1"):
        raise InputError(
            f"{folder}: this path has l1 {l1:g}, and baseline compares models without l1; name a path without --l1"
        )
    if problem.get("features"):
        raise InputError(
            f"{folder}: this path has made features, and baseline makes those of its own; name a path without"
            " --features"
        )
    usual = {field.name: field.default for field in fields(request)}
    of_path = {name: problem.get(name, getattr(request, name)) for name in OF_PATH}
    for name in OF_PATH:
        value = getattr(request, name)
        if value not in (usual[name], of_path[name]):
            raise InputError(
                f"--{name.replace('_', '-')} {value}: {folder} is a path with {name} {of_path[name]}; leave out one of"
                " the two options"
            )
    return of_path


def identity(request: BaselineRequest, problem: Problem, manifest: Manifest) -> dict[str, Any]:
    """Return what baseline.json says of the problem, by which a folder is continued or refused."""
    return {
        "data": {"path": os.fspath(request.data), "fingerprint": manifest.fingerprint},
        "measure": problem.measure,
        "folds": problem.folds,
        "folds_by": problem.folds_by,
        "seed": problem.seed,
        "epsilon": problem.settings.epsilon,
        "relative": problem.settings.relative,
    }


def leave_out(
    request: BaselineRequest, methods: Sequence[str], manifest: Manifest, neighbours: Sequence[int], comm: Communicator
) -> list[LeftOut]:
    """Return which methods to leave out, unless the user named them. **Collective.**

    These are methods whose packages are not installed, that need all rows in each process where these do not fit, and
    on features that do not suit the data. Raises InputError on all ranks if the user named such a method, or no method
    has its package.
    """
    left_out = leave_out_missing(request, methods, comm)

    def rest() -> list[str]:
        return [name for name in methods if not any(name in each.methods for each in left_out)]

    others = [name for name in rest() if not METHODS[name].by_distsms]
    why = next(filter(None, comm.allgather(_lack_of_memory(request.memory, manifest, len(neighbours)))), "")
    if others and why:
        if request.methods is not None:
            raise InputError(f"{', '.join(others)}: {why}. Use fewer ranks, or a sample of the rows", everywhere=True)
        left_out.append(LeftOut(others, why))
    return left_out + leave_out_features(request, rest(), manifest, comm)


def leave_out_missing(request: BaselineRequest, methods: Sequence[str], comm: Communicator) -> list[LeftOut]:
    """Leave out the methods whose packages are not installed; see `leave_out`. **Collective.**"""
    missing = {name for of_rank in comm.allgather(competitors.missing(methods)) for name in of_rank}
    if missing and (request.methods is not None or missing.issuperset(methods)):
        with comm.fail_together():
            competitors.require(methods)
    install = "pip install 'distsms[baseline]'"
    return [
        LeftOut([name], f"it needs {METHODS[name].package}, which is not installed ({install})")
        for name in methods
        if name in missing
    ]


def _lack_of_memory(allowed: float | None, manifest: Manifest, ranks_here: int) -> str:
    """Return why the ranks of this node cannot hold all rows each; "" if they can. Local."""
    each, available = INTERPRETER + ENTRY_BYTES * manifest.explicit + ROW_BYTES * manifest.n, memory.available()
    if allowed is not None and each > allowed:
        return f"each rank would hold all rows, about {format_bytes(each)}, and --memory allows {format_bytes(allowed)}"
    if ranks_here * each <= available:
        return ""
    return (
        f"{ranks_here} rank(s) of this node would need {format_bytes(ranks_here * each)}, but only "
        f"{format_bytes(available)} are available: each rank would hold all rows, about {format_bytes(each)}"
    )


def leave_out_features(
    request: BaselineRequest, methods: Sequence[str], manifest: Manifest, comm: Communicator
) -> list[LeftOut]:
    """Leave out the methods on features that do not suit the data; see `leave_out`. **Collective.**"""
    kinds = {METHODS[name].features for name in methods} - {""}
    if not kinds:
        return []
    if request.methods is not None:
        with comm.fail_together():
            refuse_codes(manifest)
        return []
    reasons = dict.fromkeys(kinds, "")
    if manifest.coded:
        reasons = dict.fromkeys(kinds, "the data have no columns to make features from, but codes")
    elif manifest.p > MOST_COLUMNS:
        reasons = dict.fromkeys(kinds, f"more than {MOST_COLUMNS} columns take long")
    elif "crosses" in kinds and (n_attributes := count_attributes(manifest, comm)) > MOST_ATTRIBUTES:
        reasons["crosses"] = f"{n_attributes} attributes have many pairs, and more than {MOST_ATTRIBUTES} take long"
    return [
        LeftOut(
            [name for name in methods if METHODS[name].features == kind],
            f"{why}; --methods with these names tries them",
        )
        for kind, why in sorted(reasons.items())
        if why
    ]


def plan_methods(
    request: BaselineRequest,
    problem: Problem,
    manifest: Manifest,
    methods: Sequence[str],
    size: int,
    neighbours: Sequence[int],
    one_by_one: bool = False,
) -> dict[str, MethodPlan]:
    """Return the plan of each method whose rows are distributed. Local. Raises InputError if one does not fit.

    With `one_by_one`, each fold has rows of its own, and one fold is trained after the other.
    """
    at_once = 1 if one_by_one or manifest.p >= WIDE else problem.folds
    settings = replace(problem.settings, time_limit=math.inf, vector_bytes=problem.settings.vector_bytes // at_once)
    whole, plans = replace(problem, settings=settings, at_once=at_once), dict[str, MethodPlan]()
    for name in methods:
        of_method = baseline_fits.method_problem(whole, name, manifest.n_pos / manifest.n)
        plan = make_plan(
            manifest,
            of_method.measure,
            settings,
            size,
            list(neighbours),
            ordering=request.ordering if name == OURS else "auto",
            step=request.step,
            memory=request.memory,
            bias=bool(of_method.bias),
            losses=1 if one_by_one else problem.folds,
            solves=at_once,
        )
        plans[name] = MethodPlan(plan, replace(of_method, ordering=plan.ordering, step=plan.step))
    at_end = INTERPRETER + EVALUATION_BYTES * manifest.n * (len(methods) + 1)
    if request.memory is not None and methods and at_end > request.memory:
        raise InputError(
            f"--memory {format_bytes(request.memory)} is too little: the root needs {format_bytes(at_end)} at the end,"
            f" for the intervals of {len(methods)} methods on {manifest.n} rows. Allow more memory, or name fewer"
            " --methods"
        )
    return plans


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
