"""What is decided of a baseline before its rows are read: methods, folds and lambdas, memory, and where rows lie."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from distsms.base import memory
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes
from distsms.base.measures import RANKING, RANKING_CHOOSERS, Measure, check_chooser
from distsms.base.wording import Message, option
from distsms.features.build import refuse_codes
from distsms.features.fit import count_attributes
from distsms.losses.base import ROW_BYTES
from distsms.models import inputs
from distsms.optim.solvers.base import WIDE
from distsms.shards import dataset, storage
from distsms.shards.dataset import MemoryBudget
from distsms.shards.manifest import Manifest, read_manifest
from distsms.training.plan import INTERPRETER, Plan, make_plan
from distsms.training.solver_choice import choose_solver, settings_for
from distsms.training.task import Distribution
from distsms.workflow import baseline_fits, choice, competitors, folds
from distsms.workflow.baseline_fits import BaselineStore, Fit, FitSpec, Trial
from distsms.workflow.competitors import FEATURED, METHODS, OURS, TREES
from distsms.workflow.fold_features import FoldsObserver
from distsms.workflow.path import SMALL, Problem
from distsms.workflow.path_result import BETA, FEATURES, L1, PathStore, SeveralStore
from distsms.workflow.requests import LAMBDAS, BaselineRequest
from distsms.workflow.search import MOST_ATTRIBUTES, MOST_COLUMNS

MANY_COLUMNS = 10_000
"""From so many columns on, trees take far longer than linear models."""
ENTRY_BYTES = 48
"""The bytes of a nonzero on a rank: in SciPy's matrix, the copy of its training rows, and what libraries make of that.
"""
EVALUATION_BYTES = 50
"""The bytes of memory that a row takes on the root for each method, and for the best one, when it is evaluated."""
THOROUGH_TREES = 20
"""How many settings of trees a thorough comparison tries for each fold."""
OF_PATH = ("measure", "folds", "folds_by", "seed", "epsilon", "relative")
"""What a request takes from the folder of a path, unless it says something else than by default."""


class LeftOut(NamedTuple):
    """Methods that are not compared, although the user has not left them out."""

    methods: Sequence[str]
    why: str
    optional: bool = False  # whether a thorough comparison has them


@dataclass(frozen=True)
class BaselinePlan:
    """What is decided of a baseline before its rows are read; the same on every rank, but for `budget`."""

    request: BaselineRequest
    manifest: Manifest
    problem: Problem  # what all fits have in common: measure, lambdas, folds and settings
    methods: Sequence[str]
    left_out: Sequence[LeftOut]
    by_distsms: Mapping[str, Problem]  # the methods on the columns that distsms trains
    budget: MemoryBudget | None  # what they leave for the rows of this rank; None if that is not limited
    small: bool  # whether every rank holds all rows, since messages would cost more than evaluations
    store: BaselineStore  # the folder, of which only the root reads
    identity: Mapping[str, Any] = field(default_factory=dict)  # what baseline.json says of the problem

    @property
    def halves(self) -> bool:
        """Whether quick trials say which lambdas are fitted."""
        return not self.request.thorough and len(self.problem.lambdas) > baseline_fits.FEW_LAMBDAS

    @property
    def tree_fits(self) -> int:
        """How many settings of trees are tried for each fold."""
        return self.request.tree_fits or (THOROUGH_TREES if self.request.thorough else 1)

    @property
    def all_fits(self) -> list[FitSpec]:
        """The fits of all lambdas, and the trials of trees; quick trials leave out most of them."""
        return baseline_fits.first_round(self.methods, self.problem.lambdas, self.problem.folds, self.tree_fits)

    @property
    def kept(self) -> int:
        """How many of `all_fits` are in the folder; for the root."""
        done = {each[:3] for each in self.store.done()}
        return sum(spec[:3] in done for spec in self.all_fits)

    def missing(self, methods: Sequence[str], in_folds: Sequence[int] | None = None) -> list[FitSpec]:
        """Return the trials of these methods that are not made yet or, after them, the fits to the end."""
        trials = self.store.trials(self.problem.chooser)
        for specs_of, results in ((self._trials_of, trials), (self._fits_of, self.store.fits())):
            done = {each[:3] for each in results}
            specs = [spec for name in methods for spec in specs_of(name, trials) if spec[:3] not in done]
            if specs := [spec for spec in specs if in_folds is None or spec.fold in in_folds]:
                return specs
        return []

    def _trials_of(self, name: str, trials: Sequence[Trial]) -> list[FitSpec]:
        """Return the trials of a method: of settings of trees, or of lambdas, also beyond an end with the best one."""
        if not METHODS[name].linear:
            return baseline_fits.first_round([name], (), self.problem.folds, self.tree_fits)
        if not self.halves:
            return []
        specs, request = self._all_folds(name, self.problem.lambdas), self.request
        usual = request.lambdas is None and request.path is None
        if usual and {spec[:3] for spec in specs} <= {trial[:3] for trial in trials}:
            values = baseline_fits.tried_values(trials, name)
            curve = [choice.mean_over_folds(lam, list(of_folds.values())) for lam, of_folds in values.items()]
            further = choice.beyond(curve, [max(curve, key=lambda mean: mean.mean)], self.problem.lambdas)
            specs = [] if further is None else self._all_folds(name, [further])
        return [spec._replace(quick=True) for spec in specs]

    def _fits_of(self, name: str, trials: Sequence[Trial]) -> list[FitSpec]:
        """Return the fits of a method: of all lambdas that trials leave to any fold, or of the best settings."""
        if not METHODS[name].linear:
            return baseline_fits.second_round([trial for trial in trials if trial.method == name], self.tree_fits)
        left = baseline_fits.left_lambdas(trials, name).values() if self.halves else ()
        lambdas = sorted({lam for of_fold in left for lam in of_fold}, reverse=True)
        return self._all_folds(name, lambdas or self.problem.lambdas)

    def trials(self) -> list[Trial]:
        """Return the quick trials in the folder, if they say which lambdas are fitted."""
        return self.store.trials(self.problem.chooser) if self.halves else []

    def counted_fits(self) -> list[Fit]:
        """Return the fits in the folder that this plan asks for, whatever an earlier one has tried beyond."""
        fits, grid = self.store.fits(), set(self.problem.lambdas)
        return [fit for fit in fits if self.halves or not METHODS[fit.method].linear or fit.setting in grid]

    def _all_folds(self, name: str, lambdas: Sequence[float]) -> list[FitSpec]:
        return baseline_fits.first_round([name], lambdas, self.problem.folds, 0)

    @property
    def alone(self) -> list[str]:
        """The methods whose fits are made by one rank each, which holds all rows."""
        return [name for name in self.methods if not METHODS[name].by_distsms]

    @property
    def holds_rows(self) -> bool:
        """Whether every rank holds all rows as other libraries take them."""
        return self.small or bool(self.alone)


def decide(
    request: BaselineRequest, called: str, comm: Communicator, observer: FoldsObserver, opened: ExitStack
) -> BaselinePlan:
    """Make all checks that can be made before the rows are read, open the folder, and see what is missing in it, for
    shards that were made of what is `called` so, if they are not those of the request. **Collective.**
    """
    neighbours, store = comm.node_ranks(), BaselineStore(request.output)
    with comm.fail_together():
        methods = requested_methods(request)
        check_measures(request)
    solver = request.solver or "lmvm"
    if any(METHODS[name].by_distsms for name in methods):
        solver, why = choose_solver(request.solver, request.measure, comm)
        observer.chose_solver(solver, why)
    with comm.fail_together():
        manifest = read_manifest(request.data)
        storage.check_codec(manifest.compression, manifest.directory)
        problem = baseline_problem(request, solver, manifest)
        if problem.needs_groups:
            dataset.read_groups(manifest, 0, 0)  # raises InputError if the rows have no groups
    left_out = leave_out(request, methods, manifest, neighbours, comm)
    methods = remaining(methods, left_out)
    by_distsms = [name for name in methods if METHODS[name].by_distsms and name not in FEATURED]
    data = {"path": called or os.fspath(request.data), "fingerprint": manifest.fingerprint}
    identity = {name: getattr(problem, name, getattr(problem.settings, name, None)) for name in OF_PATH}
    with comm.fail_together():
        competitors.require(methods)
        problems, budget = plan_methods(request, problem, manifest, by_distsms, comm, neighbours)
        plan = BaselinePlan(
            request=request,
            manifest=manifest,
            problem=problem,
            methods=methods,
            left_out=left_out,
            by_distsms=problems,
            budget=budget,
            small=request.memory is None and manifest.n + manifest.nnz <= SMALL,
            store=store,
            identity={"data": data} | identity,
        )
        if comm.is_root:
            inputs.check_distinct(request.output, request.data, request.path)
            store.hold(plan.identity, opened)
    return plan


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


def check_measures(request: BaselineRequest) -> None:
    """Raise InputError unless methods without a common threshold can train for, and choose by, a request's measures."""
    measure, select = Measure.parse(request.measure), request.select
    if not measure.family.on_paths:
        raise InputError(f"a baseline cannot train for {measure}; train for {', '.join(RANKING)} or pauc@BETA")
    if select is None or check_chooser(select) in ("average-precision", *RANKING):
        return
    if select.startswith("lift@"):
        recall = select.replace("lift", "recall")
        raise InputError(f"{select} is {recall} divided by a share of the rows; choose by {recall}")
    if "@" not in select:
        why = f"{select} depends on a threshold, which methods do not share"
        raise InputError(f"{why}; choose by another measure: {RANKING_CHOOSERS}")


def baseline_problem(request: BaselineRequest, solver: str, manifest: Manifest) -> Problem:
    """Return what all fits have in common. Raises InputError if the path does not fit, or there are no folds."""
    if unusual := sorted({"l1", "lam"} & set(request.settings)):
        raise InputError(f"a baseline has no {option(unusual[0])}; its lambdas are {option('lambdas')}")
    shared = {name: getattr(request, name) for name in OF_PATH}
    lambdas = set(LAMBDAS if request.lambdas is None else request.lambdas)
    if request.path is not None:
        store = PathStore(request.path)
        shared = _of_path(request, store, manifest)
        lambdas = {point.lam for point in store.points()} | set(request.lambdas or ())
    if shared["folds"] < 2:
        of_path = "" if request.path is None else f", and the path {request.path} has {shared['folds']}; make another"
        raise InputError(f"a baseline needs at least 2 {option('folds')}{of_path}")
    if not lambdas or min(lambdas) <= 0:
        raise InputError("a baseline needs lambdas above 0")
    grid, measure = sorted(lambdas, reverse=True), shared["measure"]
    of_request = {"lam": grid[0], "time_limit": request.time_limit, **request.settings}
    settings = settings_for(measure, solver, shared["epsilon"], shared["relative"], **of_request)
    settings = replace(settings, time_limit=math.inf)  # that of the request is for all fits together
    by, select = folds.choose_folds_by(shared["folds_by"], manifest), request.select or measure
    return Problem(measure, grid, shared["folds"], shared["seed"], settings, folds_by=by, select=select)


def _of_path(request: BaselineRequest, store: PathStore, manifest: Manifest) -> dict[str, Any]:
    """Return what a baseline takes from a path. Raises InputError if the path does not fit the data or the request."""
    folder = request.path
    for several in (SeveralStore(store.path, setting) for setting in (BETA, L1, FEATURES)):
        if several.identity.exists():
            each = several.path / several.parts
            raw = f", which is raw, or make a path without {option('features')}; baseline makes its own"
            raw = raw if several.setting == FEATURES else ""
            raise InputError(f"{folder}: holds several paths; name one of them, {each}/NAME{raw}")
    problem = store.read("problem", "points")["problem"]
    fault = ""
    if problem["data"]["fingerprint"] != manifest.fingerprint:
        fault = f"is of other data, {problem['data']['path']}; name a path of {request.data}"
    elif l1 := problem.get("l1"):
        fault = f"has l1 {l1:g}, and baseline compares models without l1; name a path without {option('l1')}"
    elif not Measure.parse(measure := problem["measure"]).family.on_paths:
        trains = f"trains for {', '.join(RANKING)} or pauc@BETA"
        fault = f"was trained for {measure}, and a baseline {trains}; name another path"
    elif problem.get("features"):
        fault = f"has made features, and baseline makes its own; name a path without {option('features')}"
    if fault:
        raise InputError(f"{folder}: this path {fault}")
    usual = {field.name: field.default for field in fields(request)}
    of_path = {name: problem.get(name, getattr(request, name)) for name in OF_PATH}
    for name, taken in of_path.items():
        value = getattr(request, name)
        if value not in (usual[name], taken):
            both = f"{folder} is a path with {name} {taken}; leave out one of the two options"
            raise InputError(f"{option(name)} {value}: {both}")
    return of_path


def leave_out(
    request: BaselineRequest, methods: Sequence[str], manifest: Manifest, neighbours: Sequence[int], comm: Communicator
) -> list[LeftOut]:
    """Return which methods to leave out, and why. Raises InputError if the user named one. **Collective.**"""
    left_out = leave_out_missing(request, methods, comm)
    # 1) Methods for whose rows there is no room.
    others = [name for name in remaining(methods, left_out) if not METHODS[name].by_distsms]
    why = next(filter(None, comm.allgather(_lack_of_memory(request.memory, manifest, len(neighbours)))), "")
    if others and why:
        if request.methods is not None:
            raise InputError(f"{', '.join(others)}: {why}. Use fewer ranks, or a sample of the rows", everywhere=True)
        left_out.append(LeftOut(others, why))
    # 2) Methods that a first answer does not need.
    if request.methods is None and not request.thorough:
        rest = remaining(methods, left_out)
        slow = [name for name in rest if METHODS[name].features] + [name for name in rest if name in TREES][1:]
        asking = f"{option('thorough')}, or {option('methods')} with these names, tries them"
        left_out += [LeftOut(slow, Message(f"a first answer needs no more; {asking}"), optional=True)] if slow else []
    return left_out + leave_out_features(request, remaining(methods, left_out), manifest, comm)


def remaining(methods: Sequence[str], left_out: Sequence[LeftOut]) -> list[str]:
    """Return the methods that are not left out."""
    return [name for name in methods if not any(name in each.methods for each in left_out)]


def leave_out_missing(request: BaselineRequest, methods: Sequence[str], comm: Communicator) -> list[LeftOut]:
    """Leave out the methods whose packages are not installed; see `leave_out`. **Collective.**"""
    missing = {name for of_rank in comm.allgather(competitors.missing(methods)) for name in of_rank}
    if request.methods is not None or missing.issuperset(methods):
        return []  # they are required
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
        limit = f"{option('memory')} allows {format_bytes(allowed)}"
        return Message(f"each rank would hold all rows, about {format_bytes(each)}, and {limit}")
    if ranks_here * each <= available:
        return ""
    of_node = f"{ranks_here} rank(s) of this node would need {format_bytes(ranks_here * each)} for all rows each"
    return f"{of_node}, but only {format_bytes(available)} are available"


def leave_out_features(
    request: BaselineRequest, methods: Sequence[str], manifest: Manifest, comm: Communicator
) -> list[LeftOut]:
    """Leave out the methods on features that do not suit the data; see `leave_out`. **Collective.**"""
    left, why = [name for name in methods if METHODS[name].features], ""
    if not left:
        return []
    if request.methods is not None:
        with comm.fail_together():
            refuse_codes(manifest)
        return []
    crosses = [name for name in left if METHODS[name].features == "crosses"]
    if manifest.coded:
        why = "the data have no columns to make features from, but codes"
    elif manifest.p > MOST_COLUMNS:
        why = f"more than {MOST_COLUMNS} columns take long"
    elif crosses and (n_attributes := count_attributes(manifest, comm)) > MOST_ATTRIBUTES:
        left, why = crosses, f"{n_attributes} attributes have many pairs, and more than {MOST_ATTRIBUTES} take long"
    return [LeftOut(left, Message(f"{why}; {option('methods')} with these names tries them"))] if why else []


def plan_methods(
    request: BaselineRequest,
    problem: Problem,
    manifest: Manifest,
    methods: Sequence[str],
    comm: Communicator,
    neighbours: Sequence[int],
    one_by_one: bool = False,
) -> tuple[dict[str, Problem], MemoryBudget | None]:
    """Return the problem of each distributed method, and the memory that the one which takes most leaves for the rows
    of this rank; with `one_by_one` each fold has rows of its own. Local.
    """
    at_once = 1 if one_by_one or manifest.p >= WIDE else problem.folds
    settings = replace(problem.settings, vector_bytes=problem.settings.vector_bytes // at_once)
    whole, problems, plans = replace(problem, settings=settings, at_once=at_once), dict[str, Problem](), list[Plan]()
    for name in methods:
        of_method = baseline_fits.method_problem(whole, name, manifest.n_pos / manifest.n)
        plan = make_plan(
            manifest,
            of_method.measure,
            settings,
            comm.size,
            list(neighbours),
            distribution=request.distribution if name == OURS else Distribution(step=request.distribution.step),
            memory=request.memory,
            bias=bool(of_method.bias),
            losses=1 if one_by_one else problem.folds,
            solves=at_once,
        )
        plans.append(plan)
        problems[name] = replace(of_method, distribution=plan.distribution)
    at_end = INTERPRETER + EVALUATION_BYTES * manifest.n * (len(methods) + 1)
    if request.memory is not None and methods and at_end > request.memory:
        need = f"the intervals of {len(methods)} methods take {format_bytes(at_end)} on the root"
        remedy = f"Allow more memory, or name fewer {option('methods')}"
        raise InputError(f"{option('memory')} {format_bytes(request.memory)} is too little: {need}. {remedy}")
    largest = max(plans, key=lambda plan: plan.needs.least(comm.size, True), default=None)
    return problems, None if largest is None else largest.room(comm.is_root)
