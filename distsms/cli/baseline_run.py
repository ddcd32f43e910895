"""A run of `distsms baseline`: its checks, its fits on distributed rows, on features and on whole rows, its table."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from distsms.base import files
from distsms.base.errors import EXIT_OK, EXIT_REQUEUE, InputError
from distsms.base.measures import GROUPED
from distsms.cli import baseline_features, baseline_plan, baseline_summary
from distsms.cli.baseline_recorder import FitRecorder
from distsms.cli.options import of_vectors, rows_held, solver_for, speaker
from distsms.cli.path_grid import grid
from distsms.cli.progress import Progress
from distsms.models import inputs
from distsms.shards import dataset
from distsms.training.solver_choice import settings_for
from distsms.workflow import baseline, competitors, distributed_fits, folds
from distsms.workflow.competitors import FEATURED, METHODS
from distsms.workflow.path import SMALL, PathRows, Problem
from distsms.workflow.path_store import PathStore
from distsms.workflow.several_paths import BetaStore, FeaturesStore, L1Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distsms.optim.settings import Settings
    from distsms.parallel.communicator import Communicator
    from distsms.parallel.signals import StopSignals
    from distsms.shards.manifest import Manifest
    from distsms.workflow.baseline import FitSpec


def run(args: argparse.Namespace, comm: Communicator, signals: StopSignals, held: ExitStack) -> int:
    """Make the missing fits, then the table, and return the exit code. **Collective.**

    `args` are those of `distsms baseline`; `held` closes what the run opens.
    """
    return _BaselineRun(args, comm, signals, held)()


class _BaselineRun:
    """The steps of a run, in their order. All methods but `_stop_wanted` are collective."""

    def __init__(self, args: argparse.Namespace, comm: Communicator, signals: StopSignals, held: ExitStack) -> None:
        self._args, self._comm, self._signals, self._held = args, comm, signals, held
        self._store = baseline.BaselineStore(args.output)
        self._say = speaker(comm.is_root and not args.quiet)
        held.callback(self._say.close)
        self._rows: Any = None  # all rows, of which those methods that are not ours need a copy in each process

    def __call__(self) -> int:
        self._check()
        self._announce()
        self._end = time.monotonic() + self._args.time_limit
        if self._apart or not self._alone:  # without any method on the columns, their rows still evaluate the others
            self._say("rows      distributed over the ranks")
            stopped = self._fit_distributed()
        else:
            self._say("")
            stopped = False
        return self._conclude(stopped or self._fit_on_features() or self._fit_alone())

    def _check(self) -> None:
        """Make all checks that can be made before the data are read, open the folder, and find what is missing."""
        args, comm, store = self._args, self._comm, self._store
        own = [name for name in args.methods if METHODS[name].own and name not in FEATURED]
        ours = own or any(name in FEATURED for name in args.methods)
        solver = solver_for(args, args.solver, args.measure, comm, self._say) if ours else args.solver or "lmvm"
        with comm.fail_together():
            competitors.check_select(args.select)
            self._manifest = manifest = dataset.read_manifest(args.data)
            dataset.check_readable(manifest)
            self._identity, self._lambdas, self._settings = _problem(args, solver, manifest)
            self._within = not {self._identity["measure"], args.select}.isdisjoint(GROUPED)
            if self._within:
                dataset.read_groups(manifest, 0, 0)  # raises InputError if the rows have no groups
        neighbours = comm.node_ranks()
        self._left_out = baseline_plan.leave_out_missing(args, comm)
        self._left_out += baseline_plan.leave_out(args, manifest, neighbours, comm)
        self._left_out += baseline_features.leave_out_unsuitable(args, manifest, comm)
        # The methods whose rows are distributed. On small data, messages would cost more than evaluations.
        self._apart = own if args.memory is not None or manifest.n + manifest.nnz > SMALL else []
        self._alone = [name for name in args.methods if name not in (*self._apart, *FEATURED)]
        done: set[FitSpec] = set()
        with comm.fail_together():
            competitors.require(args.methods)
            how = args, self._identity, self._lambdas, self._settings, manifest, self._apart, comm.size, neighbours
            self._plans = baseline_plan.plans(*how)
            if comm.is_root:
                inputs.check_distinct(args.output, args.data, args.path)
                store.check()
                self._held.enter_context(files.exclusive(store.path))
                store.open(self._identity)
                done = store.done()
        done = comm.bcast(done)
        wanted = baseline.first_round(args.methods, self._lambdas, self._identity["folds"], args.tree_fits)
        self._wanted, self._missing = len(wanted), [spec for spec in wanted if spec not in done]

    def _announce(self) -> None:
        args, say, manifest, identity = self._args, self._say, self._manifest, self._identity
        say(f"data      {args.data}: {manifest.n} rows, {manifest.p} columns, {manifest.n_pos} positive")
        lambdas = ", ".join(f"{lam:g}" for lam in self._lambdas)
        say(f"problem   {identity['measure']}; {identity['folds']} folds by {identity['folds_by']}; lambda {lambdas}")
        say(f"fits      {self._wanted}; {self._wanted - len(self._missing)} of them are kept from an earlier start")
        for line in self._left_out:
            say(line)
        for name in [name for name in args.methods if not METHODS[name].linear]:
            about = METHODS[name].about
            tries = f"{args.tree_fits} settings tried for each fold, on its training rows"
            say(f"{name:9} {about}: {tries}; then the best is fitted")
        for line in baseline_plan.costs(manifest, self._alone) if self._alone else ():
            say(line)

    def _stop_wanted(self) -> bool:
        return self._signals.wanted() or time.monotonic() > self._end

    def _recorder(self, fits: int, unit: str = "fits") -> FitRecorder:
        progress = Progress.on_root("fitting", unit, self._comm.is_root and not self._args.quiet)
        return FitRecorder(self._store, fits, progress)

    def _fit_distributed(self) -> bool:
        """Make the fits on distributed rows; return whether they were stopped."""
        args, comm, manifest, identity = self._args, self._comm, self._manifest, self._identity
        plans, by = [plan for plan, _ in self._plans.values()], identity["folds_by"]
        largest = max(plans, key=lambda plan: plan.needs.least(comm.size, True), default=None)
        budget = None if largest is None else largest.room(comm.is_root)
        block = dataset.load(manifest, comm, budget=budget, with_groups=self._within)
        for line in [*rows_held(block, comm, args.memory, False), ""]:
            self._say(line)
        with comm.fail_together():
            keys = folds.read_fold_keys(manifest, by, block.first_row, block.first_row + len(block.labels))
        specs = [spec for spec in self._missing if spec.method in self._apart]
        recorder, problems = self._recorder(len(specs)), {name: problem for name, (_, problem) in self._plans.items()}
        rows = PathRows(block, comm, keys)
        stopped = distributed_fits.run(rows, problems, specs, recorder.keep, self._stop_wanted, recorder.begin_method)
        recorder.close()
        whole = identity["measure"], self._lambdas, identity["folds"], identity["seed"], self._settings
        self._rows = distributed_fits.gather_rows(rows, Problem(*whole, folds_by=by), self._within)
        return stopped

    def _fit_on_features(self) -> bool:
        """Make the fits on features; return whether they were stopped."""
        specs = [spec for spec in self._missing if spec.method in FEATURED]
        if not specs:
            return False
        recorder = self._recorder(len(specs))
        what = self._args, self._identity, self._lambdas, self._settings, self._manifest, specs, self._store, recorder
        stopped = baseline_features.run(*what, self._stop_wanted, self._comm, self._say)
        recorder.close()
        return stopped

    def _fit_alone(self) -> bool:
        """Make the fits that take whole rows, each on one of the ranks; return whether any rank was stopped."""
        if not self._alone:
            return False
        comm, store, budget, identity = self._comm, self._store, self._args.tree_fits, self._identity
        with comm.fail_together():
            how = identity["folds_by"], identity["folds"], identity["seed"], self._within
            self._rows = baseline.read_rows(self._manifest, *how)
        if self._fit([spec for spec in self._missing if spec.method in self._alone]):
            return True
        best: Sequence[FitSpec] = ()
        with comm.fail_together():
            if comm.is_root:
                fitted = {(fit.method, fit.setting, fit.fold) for fit in store.fits()}
                second = baseline.second_round(store.trials(), budget)
                best = [spec for spec in second if not METHODS[spec.method].linear and spec[:3] not in fitted]
        return self._fit(comm.bcast(best))

    def _fit(self, specs: Sequence[FitSpec]) -> bool:
        """Make these fits, each on one of the ranks; return whether any rank was stopped."""
        comm, measure = self._comm, self._identity["measure"]
        own = specs[comm.rank :: comm.size]
        recorder = self._recorder(len(own), "fits of this rank" if comm.size > 1 else "fits")
        conduct = recorder.keep, self._stop_wanted, recorder.begin
        stopped = baseline.run(self._rows, own, measure, self._settings, *conduct)
        recorder.close()
        return any(comm.allgather(stopped))

    def _conclude(self, stopped: bool) -> int:
        """Print and write the table, and return the exit code."""
        if stopped:
            self._say("\nstopped; finished fits are kept. To continue, give the same command line again")
        with self._comm.fail_together():
            if self._comm.is_root and not stopped:
                found = self._store, self._identity, self._rows, self._settings, self._args.select, self._manifest
                baseline_summary.conclude(*found, self._say)
        self._say.close()
        return EXIT_REQUEUE if stopped else EXIT_OK


def _problem(args: argparse.Namespace, solver: str, manifest: Manifest) -> tuple[dict[str, Any], list[float], Settings]:
    """Return the options that all fits of a baseline share, the lambdas, and the settings of the fits of distsms.

    Raises InputError where --path does not fit the data or the options, or there are no folds.
    """
    problem = {name: getattr(args, name) for name in args.usual}
    lambdas = grid(args)
    if args.path:
        path_store = PathStore(args.path)
        for several in (BetaStore(args.path), L1Store(args.path), FeaturesStore(args.path)):
            if several.identity.exists():
                each = several.path / several.parts
                of_features = ", which for several --features is raw: baseline makes features of its own, and takes no "
                of_features += f"others; without {each}/raw, make a path without --features"
                raise InputError(
                    f"{args.path}: holds several paths; name one of them, {each}/NAME"
                    + of_features * isinstance(several, FeaturesStore)
                )
        path_problem = path_store.read("problem", "points")["problem"]
        if path_problem["data"]["fingerprint"] != manifest.fingerprint:
            raise InputError(
                f"{args.path}: this path is of other data, {path_problem['data']['path']}; name a path of {args.data}"
            )
        if l1 := path_problem.get("l1"):
            raise InputError(
                f"{args.path}: this path has l1 {l1:g}, and baseline compares models without l1; name a path without"
                " --l1"
            )
        if path_problem.get("features"):
            raise InputError(
                f"{args.path}: this path has made features, and baseline makes those of its own; name a path without"
                " --features"
            )
        given = {name: value for name, value in problem.items() if value != args.usual[name]}
        problem = {name: path_problem.get(name, problem[name]) for name in problem}
        for name, value in given.items():
            if value != problem[name]:
                raise InputError(
                    f"--{name.replace('_', '-')} {value}: {args.path} is a path with {name} {problem[name]}; leave out "
                    "one of the two options"
                )
        lambdas = sorted(
            {point.lam for point in path_store.points()} | set(lambdas if args.lambdas else ()), reverse=True
        )
    if not problem["folds"]:
        raise InputError(
            f"a baseline needs at least 2 folds, and the path {args.path} has none; make a path with --folds"
            if args.path
            else "a baseline needs at least 2 folds; give --folds 2 or more"
        )
    target = problem["epsilon"], problem["relative"]
    settings = settings_for(problem["measure"], solver, *target, lam=lambdas[0], **of_vectors(args))
    problem |= {"epsilon": settings.epsilon, "relative": settings.relative}
    problem |= {"folds_by": folds.choose_folds_by(problem["folds_by"], manifest)}
    return {"data": {"path": args.data, "fingerprint": manifest.fingerprint}, **problem}, lambdas, settings
