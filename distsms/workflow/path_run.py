"""A path as a user asks for it: models at several lambdas, on all rows and on folds, and the choice among them.

With several BETA of pauc, several l1 or several kinds of features there is a path for each, and they are compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from distsms.base.choices import RULES, require_choice
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import GROUPED, RIVALS, Measure, check_chooser, check_path_measures
from distsms.base.typing import Floats
from distsms.base.wording import option
from distsms.features import arrays
from distsms.features.build import refuse_codes
from distsms.features.fit import FeatureOptions
from distsms.ingest.frames import folder_of_all
from distsms.matrix.augmented import split_bias, with_bias
from distsms.metrics import calibration
from distsms.metrics.row_sample import sample_rows
from distsms.metrics.row_weights import mean_and_deviation
from distsms.models import inputs, model
from distsms.models.contributions import mean_contributions
from distsms.optim.result import Result
from distsms.optim.solvers.base import WIDE
from distsms.shards.dataset import DataBlock, read_groups
from distsms.shards.manifest import Manifest, read_manifest
from distsms.shards.row_statistics import doubles_warning
from distsms.training.plan import Plan, make_plan
from distsms.training.solver_choice import choose_solver, settings_for
from distsms.workflow import choice as choosing
from distsms.workflow import decisions, folds, path_result
from distsms.workflow.candidates import COLUMNS, distinct
from distsms.workflow.choice import Mean, Point
from distsms.workflow.fold_features import FOLDER, FoldFeatures, FoldsObserver, record_of
from distsms.workflow.path import PathRows, Problem, load_rows, run, shares_folds
from distsms.workflow.path_result import (
    BETA,
    FEATURES,
    L1,
    MODEL,
    PathResult,
    PathStore,
    PathTask,
    Setting,
    SeveralStore,
)
from distsms.workflow.provenance import describe_data_set, model_info, provenance
from distsms.workflow.requests import LAMBDAS, PathRequest
from distsms.workflow.rocarea_check import LEAST_SECONDS, SHARE, FoldComparison, compare_on_folds
from distsms.workflow.verdict import describe_constant


class PathObserver(FoldsObserver):
    """Receives what `run_path` reports."""

    def comparing(self, setting: Setting, name: str, number: int, of: int) -> None:
        """Called before each of several paths: which setting differs, its value, and the number of the path."""

    def began(self, task: PathTask) -> None:
        """Called when all checks are made that need no rows."""

    def planned(self, plan: Plan) -> None:
        """Called before the rows are loaded."""

    def loaded(self, block: DataBlock, rows_on_all_ranks: bool) -> None:
        """Called when the rows are loaded, unless each fold has its own. May be collective."""

    def training(self, done: int, of: int, models_of_rank: bool) -> None:
        """Called before the first training: how many models are there, of how many, of this rank or of all."""

    def extended(self, lam: float) -> None:
        """Called on the root before a lambda beyond an end of those so far is tried."""

    def kept(self, point: Point, done: int, of: int) -> None:
        """Called on the rank that trained a model when it is kept: the outcome, and how many models are there."""

    def trained(self) -> None:
        """Called when the last model is trained."""

    def deciding(self, lam: float) -> None:
        """Called before the models of the folds are trained again, for a threshold and probabilities."""

    def ended(self, result: PathResult) -> None:
        """Called at the end of each path."""

    def compared(self, result: PathResult) -> None:
        """Called at the end of several paths."""


def run_path(
    request: PathRequest,
    comm: Communicator,
    observer: PathObserver = PathObserver(),  # noqa: B008 - without state
    stop_wanted: Callable[[], bool] = lambda: False,
) -> PathResult:
    """Train the models of a path that are not there yet, and choose one; or several paths, and compare. True of
    `stop_wanted`, asked on every rank at each evaluation, ends the run, which keeps what is finished. Raises InputError
    on all ranks if the request contradicts itself, or files cannot be used. **Collective.**"""
    if request.output is None:
        with folder_of_all(comm) as folder:
            result = run_path(replace(request, output=folder / "path"), comm, observer, stop_wanted)
        paths = {name: replace(path, folder=None) for name, path in result.paths.items()}
        return replace(result, folder=None, paths=paths)
    with comm.fail_together():
        request = _checked(request)
    if several := _several(request):
        setting, requests = several
        return _run_several(request, setting, requests, comm, observer, stop_wanted)
    return _PathRun(request, comm, observer, stop_wanted)()


def _checked(request: PathRequest) -> PathRequest:
    """Return a request whose values are in order, each once. Raises InputError if one is none that a path knows."""
    if wrong := [lam for lam in request.lambdas or () if not 0 < lam < math.inf]:
        raise InputError(f"{option('lambdas')} {wrong[0]}: is not a positive number")
    if wrong := [l1 for l1 in request.l1 if not 0 <= l1 < math.inf]:
        raise InputError(f"{option('l1')} {wrong[0]}: is not a weight")
    require_choice("rule", request.rule, RULES)
    if request.folds == 1:
        raise InputError(f"{option('folds')} {request.folds}: give at least 2, or 0 for no folds")
    return replace(
        request,
        measure=check_path_measures(request.measure),
        lambdas=sorted(set(request.lambdas or ()), reverse=True) or None,
        l1=sorted(set(request.l1), reverse=True) or [0.0],
        features=distinct(request.features) or [COLUMNS],
        select=None if request.select is None else check_chooser(request.select),
    )


class _PathRun:
    """The steps of one path. Methods are collective, unless they say that the root calls them."""

    _earlier: Sequence[Point] = ()  # those that are there when the run begins, on the root
    _warnings: Sequence[str] = ()  # what the folds do not take into account
    _options: FeatureOptions | None = None  # those of the features that are made for each fold
    _features: FoldFeatures | None = None
    _plan: Plan | None = None

    def __init__(
        self,
        request: PathRequest,
        comm: Communicator,
        observer: PathObserver,
        stop_wanted: Callable[[], bool],
        start_from: PathStore | None = None,
    ) -> None:
        assert request.output is not None
        self._request, self._comm, self._observer = request, comm, observer
        self._stopped_by_user, self._start_from = stop_wanted, start_from
        self._store, self._measure = PathStore(request.output), Measure.parse(request.measure)
        self._select = request.select or self._measure.chooser

    def __call__(self) -> PathResult:
        with ExitStack() as closing:
            self._observer.began(self._check(closing))
            self._prepare()
            result = self._train()
            result = replace(result, quick_rocarea=self._compare(result))
            decided = None if result.choice is None else self._decide(result.choice.chosen.lam)
            if decided is None and result.choice is not None:
                result = replace(result, stopped=True)
            result = self._comm.of_root(lambda: self._conclude(result, decided or {}))
            self._observer.ended(result)
            if self._features is not None and not result.stopped:
                self._comm.barrier()  # when no rank needs the features of the folds
                if self._comm.is_root:
                    self._features.remove(but_all=True)
            return result

    def _check(self, closing: ExitStack) -> PathTask:
        """Make all checks that can be made before the data are read, and open the folder."""
        request, comm, store = self._request, self._comm, self._store
        solver, why = choose_solver(request.solver, self._measure, comm, l1=request.l1[0])
        self._observer.chose_solver(solver, why)
        self._node_ranks = comm.node_ranks()
        with comm.fail_together():
            self._manifest = manifest = read_manifest(request.data)
            self._condition = decisions.check(request.at, request.calibrate, request.folds)
            self._problem = problem = self._make_problem(solver)
            if problem.needs_groups:
                read_groups(manifest, 0, 0)  # raises InputError if the rows have no groups, before features are made
            if (options := request.features[0].options) is None:
                self._plan = self._make_plan(manifest)
            else:
                refuse_codes(manifest)
                self._options = arrays.options(options)
            self._identity = self._describe_problem()
            if request.folds:
                warnings = doubles_warning(manifest, problem.folds_by), folds.labels_warning(manifest)
                self._warnings = [warning for warning in warnings if warning]
            if comm.is_root:
                inputs.check_distinct(store.path, request.data)
                store.hold(self._identity, closing)
                self._earlier = path_result.finished(store.points(), problem)
        self._kept = comm.bcast({(point.lam, point.fold) for point in self._earlier})
        return PathTask(request, manifest, problem, self._warnings, store.path, kept=len(self._kept))

    def _make_problem(self, solver: str) -> Problem:
        """Return what is trained. Raises InputError if options contradict each other. Local."""
        request, measure, p = self._request, self._measure, self._manifest.p
        lambdas, most = list(request.lambdas or LAMBDAS), request.folds + 1
        one_by_one = p >= WIDE or request.features[0].options is not None
        at_once = min(most, request.at_once or (1 if one_by_one else most))
        settings = settings_for(
            measure, solver, lam=lambdas[0], l1=request.l1[0], time_limit=request.time_limit, **request.settings
        )
        # The limits of time and memory are for all points together.
        settings = replace(settings, time_limit=math.inf, vector_bytes=settings.vector_bytes // at_once)
        return Problem(
            request.measure,
            lambdas,
            request.folds,
            request.seed,
            settings,
            at_once=at_once,
            folds_by=folds.choose_folds_by(request.folds_by, self._manifest),
            select=request.select or (self._select if request.measure in RIVALS else None),
            bias=measure.bias(request.bias),
        )

    def _make_plan(self, manifest: Manifest) -> Plan:
        """Plan the run on a data set. Local."""
        request, problem, models = self._request, self._problem, self._request.folds + 1
        return make_plan(
            manifest,
            request.measure,
            problem.settings,
            ranks=self._comm.size,
            node_ranks=self._node_ranks,
            distribution=request.distribution,
            memory=request.memory,
            bias=bool(problem.bias),
            losses=models if self._options is None else 1,  # with features, folds take turns
            solves=problem.at_once,
            models=models * len(problem.lambdas),
        )

    def _describe_problem(self) -> dict[str, Any]:
        """Return the data and options that all points of a path have in common. Local."""
        problem, settings = self._problem, self._problem.settings
        identity: dict[str, Any] = {"data": {"path": self._request.data, "fingerprint": self._manifest.fingerprint}}
        if self._options is not None:
            identity["features"] = record_of(self._options)
        if settings.l1:
            identity["l1"] = settings.l1
        identity |= {name: getattr(problem, name) for name in ("measure", "folds", "folds_by", "seed")}
        identity |= {"epsilon": settings.epsilon, "relative": settings.relative}
        # Folders of earlier versions do not name the usual constant feature.
        return identity if problem.bias == self._measure.bias(None) else identity | {"bias": problem.bias}

    def _prepare(self) -> None:
        """Make the features, plan the run, and load the rows."""
        request, comm, manifest, features = self._request, self._comm, self._manifest, None
        if self._options is not None:
            folder, observer = self._store.path / FOLDER, self._observer
            features = FoldFeatures(manifest, self._options, folder, self._problem, comm, observer, request.memory)
        self._features = features
        with comm.fail_together():
            plan = self._plan or self._make_plan(manifest if features is None else features.manifest(0))
        self._observer.planned(plan)
        scored = min(comm.allgather(plan.scored))  # a node may have less memory than others
        self._problem = problem = replace(self._problem, distribution=plan.distribution, scored=scored)
        budget = plan.room(comm.is_root)
        if features is not None:
            features.budget, self._rows = budget, PathRows(features.rows, comm)
            return
        share_folds = request.memory is None and shares_folds(manifest.n, manifest.nnz, comm)
        self._rows = load_rows(manifest, problem, comm, budget, share_folds)
        self._observer.loaded(self._rows.data, share_folds)

    def _until(self, end: float) -> Callable[[], bool]:
        """Return what says whether the user, or the end of the time, stops the run."""
        return lambda: self._stopped_by_user() or time.monotonic() > end

    def _train(self) -> PathResult:
        """Train the missing models, each of which is kept as soon as it is there."""
        request, observer = self._request, self._observer
        rows, problem, features = self._rows, self._problem, self._features
        begun = time.monotonic()
        self._stop_wanted = self._until(begun + request.time_limit)
        folds_of_rank, earlier = rows.folds_of_rank(problem), self._earlier
        models = {(lam, fold) for lam in problem.lambdas for fold in folds_of_rank}
        done, of = len(self._kept & models), len(models)
        observer.training(done, of, rows.share_folds)
        data = describe_data_set(self._manifest, request.data)

        def keep(point: Point, result: Result, scores: Floats | None) -> None:
            """Write a point and its model into the folder. The rank that trained it calls this."""
            nonlocal done
            w, bias = split_bias(result.w, problem.bias)
            info = model_info(
                self._measure,
                replace(problem.settings, lam=point.lam),
                result,
                problem.distribution,
                rows.trainers.size,
                bias,
                point.threshold,
                dict(point.training),
                data,
                provenance() | ({"constant": problem.bias} if problem.bias else {}),
            )
            trained_on = self._manifest if features is None else features.manifest(point.fold)
            self._store.keep(point, model.from_training(w, info, trained_on))
            done += 1
            observer.kept(point, done, of)

        def extend(points: Sequence[Point]) -> float | None:
            """Return the lambda to try next, given the points of the run so far, or None. The root calls this."""
            nonlocal of
            if not request.folds or not (request.lambdas is None if request.extend is None else request.extend):
                return None
            lam = choosing.extension([*earlier, *points], self._select, problem.lambdas, request.rule)
            if lam is not None:
                of += len(folds_of_rank)
                observer.extended(lam)
            return lam

        trained = run(rows, problem, keep, earlier, self._start, self._stop_wanted, extend=extend)
        seconds = time.monotonic() - begun
        observer.trained()
        return PathResult(
            points=self._comm.of_root(self._store.points),
            select=self._select,
            rule=request.rule,
            problem=self._identity,
            folder=self._store.path,
            stopped=trained.stopped,
            evaluations=trained.evaluations,
            passes=trained.passes,
            seconds=self._comm.bcast(seconds),
            left_out=dict(trained.left_out),
            data_warnings=list(self._warnings),
        )

    def _start(self, fold: int, lam: float) -> Floats | None:
        """Return the coefficients from which a training begins. The root calls this."""
        stores = filter(None, (self._store, self._start_from))
        starts = (store.start(fold, lam, self._problem.bias) for store in stores)
        return next((w for w in starts if w is not None), None)

    def _compare(self, result: PathResult) -> FoldComparison | None:
        """Return the root's comparison with quick ROCArea models on the same folds, if that is of use."""
        request, measure = self._request, self._request.measure
        of_use = measure not in GROUPED and not measure == self._select == "rocarea" and self._features is None
        if not (request.check and of_use and request.folds) or result.stopped:
            return None
        stop_wanted = self._until(time.monotonic() + max(LEAST_SECONDS, SHARE * result.seconds))
        return compare_on_folds(self._rows, self._problem, result.points, stop_wanted, request.rule)

    def _decide(self, lam: float) -> dict[str, Any] | None:
        """Return the sample, threshold and probabilities that the model's information gets; None if it was stopped."""
        request, comm = self._request, self._comm
        w: Any = comm.of_root(lambda: self._start(0, lam))
        block = self._rows.of_fold(0).data
        features, trainers = with_bias(block.features, self._problem.bias), self._rows.trainers
        training = block.counted_scores(features.margins(w), trainers)
        info: dict[str, Any] = {"row_sample": sample_rows(training, self._manifest.dtype)}
        if self._measure.family.has_probabilities:
            info["mean_probability"] = calibration.means_of_logistic(training)
        manifest = self._manifest if self._features is None else self._features.manifest(0)
        if manifest.table is not None:
            w, _ = split_bias(w, self._problem.bias)
            info[model.MEAN_CONTRIBUTIONS] = mean_contributions(w, block, manifest, trainers)
        if request.at is None and not request.calibrate:
            return info
        self._observer.deciding(lam)
        again = replace(self._problem, lambdas=[lam], at_once=min(self._problem.at_once, request.folds))
        spread = mean_and_deviation(training)
        del block, features, training  # before the features of the folds are read
        scored = decisions.held_out(self._rows, again, spread, self._start, self._stop_wanted)
        return None if scored is None else decisions.findings(self._condition, request.calibrate, scored, comm) | info

    def _conclude(self, result: PathResult, decided: dict[str, Any]) -> PathResult:
        """Write the chosen model and path.json; return the result with the model. The root calls this."""
        if result.stopped:
            return result
        if result.choice is not None:
            result = self._with_model(result, result.choice.chosen, decided)
        fields = result.to_dict()
        self._store.describe(fields.pop("problem"), **fields)
        return result

    def _with_model(self, result: PathResult, at_lambda: Mean, decided: dict[str, Any]) -> PathResult:
        """Write the model at a lambda; return the result with it, and what is odd about it. The root calls this."""
        best, warnings = self._store.model(at_lambda.lam), list[str]()
        # 1) Whether it ranks no better than chance, on its training rows or on those of the folds.
        of_model = [point.result for point in result.points if not point.fold and point.lam == at_lambda.lam]
        on_training, on_folds = of_model[0].get("chance") if of_model else None, choosing.why_chance(result.points)
        chance = str(on_training or on_folds)
        if chance:
            where = " on rows that it has not seen" if chance == on_folds else ""
            warnings.append(f"This model ranks no better than chance{where}: {chance}.")
        # 2) What would be better.
        if result.quick_rocarea and (better := result.quick_rocarea.warning(self._select, bool(chance))):
            warnings.append(better)
        constant = describe_constant(self._measure, self._problem.settings.l1, self._problem.bias, best.bias)
        if constant and not chance:
            warnings.append(constant)
        if why := (decided.get("decision") or {}).get("why"):
            warnings.append(f"The model has no threshold for labels: {why}.")
        # 3) Where it comes from.
        origin = {name: self._identity[name] for name in ("folds", "folds_by", "seed")}
        origin |= {"rule": result.rule, "select": result.select, "held_out": at_lambda._asdict()}
        info = best.info | decided | {"path": origin, "vacuous": bool(chance), "warnings": warnings}
        best = replace(best, info=info)
        model.save(self._store.path / MODEL, best)
        return replace(result, model=best, chance=chance, model_warnings=warnings)


def _several(request: PathRequest) -> tuple[Setting, dict[str, PathRequest]] | None:
    """Return the setting with several values, and each path's request by its folder's name; None if there is one."""
    several = dict[Setting, dict[str, PathRequest]]()
    if "," in request.measure:
        names = path_result.measures_of_betas(request.measure)
        several[BETA] = {name: replace(request, measure=name) for name in names}
    if len(request.l1) > 1:
        short = [f"{l1:g}" for l1 in request.l1]
        names = [repr(l1) if short.count(name) > 1 else name for l1, name in zip(request.l1, short, strict=True)]
        several[L1] = {name: replace(request, l1=[l1]) for l1, name in zip(request.l1, names, strict=True)}
    if len(request.features) > 1:
        several[FEATURES] = {candidate.folder: replace(request, features=[candidate]) for candidate in request.features}
    if len(several) > 1:
        raise InputError("several BETA, l1 and features make too many paths: give several of one of them only", True)
    return next(iter(several.items()), None)


def _run_several(
    request: PathRequest,
    setting: Setting,
    requests: dict[str, PathRequest],
    comm: Communicator,
    observer: PathObserver,
    stop_wanted: Callable[[], bool],
) -> PathResult:
    """Make a path for each value of a setting, and compare them. **Collective.**"""
    assert request.output is not None
    store, end = SeveralStore(request.output, setting), time.monotonic() + request.time_limit
    identity, paths, start_from = dict[str, Any](), dict[str, PathResult](), None
    with ExitStack() as closing:
        with comm.fail_together():
            identity = _identity_of_several(request, setting, read_manifest(request.data))
            if comm.is_root:
                inputs.check_distinct(store.path, request.data)
                store.hold(identity, closing)
        for number, (name, of_path) in enumerate(requests.items(), 1):
            observer.comparing(setting, name, number, len(requests))
            folder, seconds_left = store.path / store.parts / name, max(end - time.monotonic(), 1e-3)
            of_path = replace(of_path, output=folder, check=False, time_limit=seconds_left)
            paths[name] = _PathRun(of_path, comm, observer, stop_wanted, start_from)()
            if paths[name].stopped:
                return replace(paths[name], problem=identity, folder=store.path, paths=paths)
            start_from = PathStore(folder) if setting == L1 else None
        result = comm.of_root(lambda: _compare_paths(store, identity, paths))
        observer.compared(result)
        comm.barrier()
        return result


def _identity_of_several(request: PathRequest, setting: Setting, manifest: Manifest) -> dict[str, Any]:
    """Return what several paths have in common. Raises InputError if they cannot be compared. Local."""
    if not request.folds or (setting == BETA and request.select is None):
        by = f" by one measure: name it, such as {option('select')} tpr@fpr=0.01, and" if setting == BETA else ":"
        folds = f"give at least 2 {option('folds')}"
        raise InputError(f"several {setting.name} are compared on held-out rows{by} {folds}", everywhere=True)
    if setting == FEATURES:
        refuse_codes(manifest)
    identity: dict[str, Any] = {"data": {"path": request.data, "fingerprint": manifest.fingerprint}}
    identity |= {name: getattr(request, name) for name in ("select", "folds", "seed", "rule")}
    identity |= {} if setting == BETA else {"measure": request.measure}
    return identity | ({"l1": request.l1[0]} if setting == FEATURES else {})


def _compare_paths(store: SeveralStore, identity: dict[str, Any], paths: dict[str, PathResult]) -> PathResult:
    """Compare finished paths, and write the best model and the comparison. The root calls this."""
    first, setting = next(iter(paths.values())), store.setting
    comparison = path_result.compare(paths, setting)
    if comparison is None:
        return replace(first, problem=identity, folder=store.path, paths=paths)
    best = paths[comparison.best]
    assert best.model is not None
    best_model = replace(best.model, info=best.model.info | {setting.key: comparison.as_json()})
    model.save(store.path / MODEL, best_model)
    evaluations = {name: path.all_evaluations for name, path in paths.items()}
    store.describe(identity, **comparison.as_json(), evaluations=evaluations)
    return replace(best, problem=identity, folder=store.path, model=best_model, paths=paths, comparison=comparison)
