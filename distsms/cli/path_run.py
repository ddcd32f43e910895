"""A single path of `distsms path`: its checks, its rows and models, and what is made of them."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distsms.base import files
from distsms.base.measures import GROUPED, RIVALS, Measure
from distsms.cli import path_features, path_summary
from distsms.cli.options import rows_held, settings_from, solver_for, speaker
from distsms.cli.path_grid import grid
from distsms.cli.progress import Progress
from distsms.features import arrays
from distsms.features.build import refuse_codes
from distsms.models import inputs
from distsms.optim.solvers.base import WIDE
from distsms.shards import dataset
from distsms.shards.groupby import doubles_warning
from distsms.training.plan import Plan, make_plan
from distsms.training.task import Distribution
from distsms.workflow import choice as choosing
from distsms.workflow import decisions, folds, path
from distsms.workflow.fold_features import record
from distsms.workflow.held_out import held_out, mean_probability, sampled_rows, score_spread
from distsms.workflow.path import PathRows, Problem
from distsms.workflow.path_store import finished
from distsms.workflow.rocarea_check import FoldComparison, compare_on_folds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distsms.parallel.communicator import Communicator
    from distsms.parallel.signals import StopSignals
    from distsms.shards.manifest import Manifest
    from distsms.workflow.choice import Point
    from distsms.workflow.path import Run
    from distsms.workflow.path_store import PathStore

LEAST_CHECK = 2.0
"""The comparison with quick ROCArea models may take a tenth of the run's seconds, or this many if that is more."""


def run(args: argparse.Namespace, comm: Communicator, signals: StopSignals, folder: PathStore, held: ExitStack) -> int:
    """Solve the missing points of a path, choose a lambda, and return the exit code. **Collective.**

    `args` are those of `distsms path`, with a single measure, l1 and kind of features, and with the path `before`
    from which models may start. `held` closes what the path opens.
    """
    return _PathRun(args, comm, signals, folder, held)()


class _PathRun:
    """The steps of a path, in their order. Methods are collective, but for those that say that the root calls them."""

    def __init__(
        self, args: argparse.Namespace, comm: Communicator, signals: StopSignals, folder: PathStore, held: ExitStack
    ) -> None:
        self._args, self._comm, self._signals, self._folder, self._held = args, comm, signals, folder, held
        self._say, self._neighbours = speaker(comm.is_root and not args.quiet), comm.node_ranks()
        held.callback(self._say.close)
        self._done: list[Point] = []  # the points that are there when the run begins, on the root
        self._known: set[tuple[float, int]] = set()  # their lambdas and folds, on all ranks
        self._end = float("inf")

    def __call__(self) -> int:
        self._check()
        self._announce()
        self._prepare()
        begun = time.monotonic()
        found = self._train()
        seconds = time.monotonic() - begun
        compared = self._compare(found, seconds)
        found, decided = self._decide(found)
        return self._conclude(found, seconds, compared, decided)

    def _check(self) -> None:
        """Make all checks that can be made before the data are read, and open the folder."""
        args, comm = self._args, self._comm
        solver, plan = solver_for(args, args.solver, args.measure, comm, self._say), None
        with comm.fail_together():
            self._manifest = manifest = dataset.read_manifest(args.data)
            decisions.check(args.at, args.calibrate, args.folds)
            self._problem = _problem(args, solver, manifest)
            if args.candidate.options is None:
                plan = self._make_plan(manifest)
            else:
                refuse_codes(manifest)
            self._identity = _identity(args, self._problem, manifest)
            if comm.is_root:
                self._open()
        self._known, self._plan = comm.bcast(self._known), plan

    def _make_plan(self, manifest: Manifest) -> Plan:
        """Plan the run on a data set. Local."""
        args, comm, problem = self._args, self._comm, self._problem
        return make_plan(
            manifest,
            args.measure,
            problem.settings,
            comm.size,
            self._neighbours,
            Distribution(args.ordering, args.step),
            args.memory,
            bias=bool(problem.bias),
            losses=args.folds + 1 if args.candidate.options is None else 1,  # with features, folds take turns
            solves=problem.at_once,
            models=(args.folds + 1) * len(problem.lambdas),
        )

    def _open(self) -> None:
        """Open the folder, and find the points in it. The root calls this."""
        folder, problem = self._folder, self._problem
        inputs.check_distinct(self._args.output, self._args.data)
        folder.check()
        self._held.enter_context(files.exclusive(folder.path))
        folder.open(self._identity)
        self._done = [point for point in folder.points() if finished(point, problem.settings, problem.select)]
        self._known = {(point.lam, point.fold) for point in self._done}

    def _announce(self) -> None:
        self._warnings = _warnings(self._problem, self._manifest)
        for line in _heading(self._args, self._problem, self._manifest):
            self._say(line)
        for warning in self._warnings if self._args.before is None else ():  # else the path before has said it
            self._say(f"warning   {warning}")
        if self._known:
            self._say(f"resume    {self._folder.path}: {len(self._known)} points are there")

    def _prepare(self) -> None:
        """Make the features, plan the run, and load the rows."""
        args, comm, say, manifest = self._args, self._comm, self._say, self._manifest
        self._made = made = path_features.made_for_folds(
            args.candidate, manifest, self._folder, self._problem, comm, args.quiet, args.memory, say
        )
        with comm.fail_together():
            plan = self._plan or self._make_plan(manifest if made is None else made.manifest(0))
        for line in plan.describe(args.usage):
            say(line)
        self._problem = problem = replace(self._problem, **plan.distribution._asdict(), scored=plan.scored)
        fits = args.memory is None and made is None
        share_folds = fits and path.shares_folds(manifest.n, manifest.nnz, comm)
        if share_folds and args.usage:
            say("small     these data are so small that every rank holds all rows, and the ranks share the folds")
        budget = plan.room(comm.is_root)
        if made is not None:
            made.budget, made.with_groups = budget, problem.needs_groups
            self._rows = PathRows(made.rows, comm)
            return
        alone = (0, 1) if share_folds else None
        self._block = block = dataset.load(manifest, comm, budget=budget, share=alone, with_groups=problem.needs_groups)
        for line in rows_held(block, comm, args.memory, args.usage):
            say(line)
        with comm.fail_together():
            first, last = block.first_row, block.first_row + len(block.labels)
            keys = folds.read_fold_keys(manifest, problem.folds_by, first, last) if args.folds else None
        self._rows = PathRows(block, comm, keys, share_folds)

    def _stop_wanted(self) -> bool:
        return self._signals.wanted() or time.monotonic() > self._end

    def _train(self) -> Run:
        """Train the missing models, each of which is kept as soon as it is there."""
        args, comm, problem, done, rows = self._args, self._comm, self._problem, self._done, self._rows
        self._end = time.monotonic() + args.time_limit
        folds_of_rank = rows.folds_of_rank(problem)
        expected = {(lam, fold) for lam in problem.lambdas for fold in folds_of_rank}
        number = len(self._known & expected), len(expected)
        unit = "models of this rank" if rows.share_folds else "models"
        progress = Progress.on_root("training", unit, comm.is_root and not args.quiet, number[0])
        self._held.callback(progress.close)
        keep = path_summary.PointRecorder(
            args, problem, self._manifest, self._folder, rows.trainers.size, number, progress, self._made
        )
        by = choosing.chooser(args.measure, args.select)

        def extend(points: Sequence[Point]) -> float | None:
            """Return the lambda to try next, given the points of the run so far, or None. The root calls this."""
            if not (args.folds and (args.lambdas is None if args.extend is None else args.extend)):
                return None
            lam = choosing.extension([*done, *points], by, problem.lambdas, args.rule)
            if lam is not None:
                progress.close()
                self._say(f"extend    lambda {lam:g}, since the best lambda so far is at an end of those tried")
                keep.expect(len(folds_of_rank))
            return lam

        found = path.run(rows, problem, keep, done, self._start, self._stop_wanted, extend=extend)
        progress.close()
        return found

    def _start(self, fold: int, lam: float) -> Any:
        """Return the coefficients from which a training begins. The root calls this."""
        w, before = self._folder.start(fold, lam, self._problem.bias), self._args.before
        return before.start(fold, lam, self._problem.bias) if w is None and before else w

    def _compare(self, found: Run, seconds: float) -> FoldComparison | None:
        """Compare the models with quick ROCArea models on the same folds, if that is of use."""
        args = self._args
        same = args.measure == choosing.chooser(args.measure, args.select) == "rocarea"
        if (
            same
            or args.measure in GROUPED
            or args.no_check
            or not args.folds
            or found.stopped
            or self._made is not None
        ):
            return None
        until = time.monotonic() + max(LEAST_CHECK, seconds / 10)
        return compare_on_folds(
            self._rows,
            self._problem,
            [*self._done, *found.points],
            lambda: self._signals.wanted() or time.monotonic() > until,
            args.rule,
        )

    def _decide(self, found: Run) -> tuple[Run, dict[str, Any]]:
        """Sample the rows of the model at the chosen lambda, and find thresholds and probabilities on held-out rows.

        Returns the run, which may have been stopped meanwhile, and what the model's information gets.
        """
        args, comm, made = self._args, self._comm, self._made
        own = comm.is_root and not found.stopped
        lam = comm.bcast(path_summary.chosen_lambda(args, self._folder.points()) if own else None)
        decide = args.at is not None or args.calibrate
        if lam is None:
            return found, {}
        w = comm.bcast(self._start(0, lam) if comm.is_root else None)
        block = self._block if made is None else made.rows(0)[0]
        model_of_all = w, block, self._problem.bias, self._rows.trainers
        known: dict[str, Any] = {"row_sample": sampled_rows(*model_of_all, self._manifest.dtype)}
        known |= {"mean_probability": mean_probability(*model_of_all)} if args.measure == "logistic" else {}
        if not decide:
            return found, known
        self._say(f"folds     the models of the folds are trained again at lambda {lam:g}, for --at and --calibrate")
        again = replace(self._problem, lambdas=[lam], at_once=min(self._problem.at_once, args.folds))
        spread = score_spread(*model_of_all)
        scores = held_out(self._rows, again, spread, self._start, self._stop_wanted)
        if scores is None:
            return found._replace(stopped=True), known
        return found, decisions.findings(args.at, args.calibrate, scores, comm) | known

    def _conclude(self, found: Run, seconds: float, compared: FoldComparison | None, decided: dict[str, Any]) -> int:
        """Print and write the results, and return the exit code."""
        args, comm, manifest, code = self._args, self._comm, self._manifest, 0
        with comm.fail_together():
            if comm.is_root:
                target = self._problem.settings.describe_target()
                classes = None if manifest.weights else (manifest.n_pos, manifest.n_neg)
                results = found, seconds, self._warnings, compared
                told = self._say, target, classes, decided
                code = path_summary.conclude(args, self._identity, self._folder, *results, *told)
        code = comm.bcast(code)
        self._say.close()
        if self._made is not None and not found.stopped:
            comm.barrier()
            if comm.is_root:
                self._made.remove(but_all=True)
        return code


def _problem(args: argparse.Namespace, solver: str, manifest: Manifest) -> Problem:
    """Return the problem that the options ask for. Raises InputError if they contradict each other."""
    falling = grid(args)
    settings = settings_from(args, args.measure, solver, lam=falling[0])
    one_by_one = manifest.p >= WIDE or args.candidate.options is not None
    at_once = min(args.folds + 1, args.at_once or (1 if one_by_one else args.folds + 1))
    # The limits of time and memory are for all points together.
    settings = replace(settings, time_limit=float("inf"), vector_bytes=settings.vector_bytes // at_once)
    by = folds.choose_folds_by(args.folds_by, manifest)
    select = args.select or (choosing.chooser(args.measure, None) if args.measure in RIVALS else None)
    bias = Measure.parse(args.measure).bias(args.bias)
    shared = {"at_once": at_once, "folds_by": by, "select": select, "bias": bias}
    return Problem(args.measure, falling, args.folds, args.seed, settings, **shared)


def _identity(args: argparse.Namespace, problem: Problem, manifest: Manifest) -> dict[str, Any]:
    """Return the data and options that all points of a path have in common."""
    own, target = ("measure", "folds", "folds_by", "seed"), ("epsilon", "relative")
    usual = Measure.parse(problem.measure).bias(None)
    unusual = {} if problem.bias == usual else {"bias": problem.bias}  # earlier folders do not name the usual one
    options = args.candidate.options
    return {
        "data": {"path": args.data, "fingerprint": manifest.fingerprint},
        **({} if options is None else {"features": record(arrays.options(options))}),
        **({"l1": args.l1} if args.l1 else {}),
        **{name: getattr(problem, name) for name in own},
        **{name: getattr(problem.settings, name) for name in target},
        **unusual,
    }


def _warnings(problem: Problem, manifest: Manifest) -> list[str]:
    """Return warnings on what the folds do not take into account."""
    if not problem.folds:
        return []
    return [*filter(None, [doubles_warning(manifest, problem.folds_by), folds.labels_warning(manifest)])]


def _heading(args: argparse.Namespace, problem: Problem, manifest: Manifest) -> list[str]:
    """Return lines on what is about to be solved."""
    grid = ", ".join(f"{lam:g}" for lam in problem.lambdas)
    l1 = f"; l1 {args.l1:g}" if args.l1 else ""
    features = f"; features {args.candidate.text}" if args.candidate.options else ""
    rows = f" and {args.folds} folds by {problem.folds_by}, {problem.at_once} at once" if args.folds else ""
    sizes = f"{manifest.n} rows, {manifest.p} columns, {manifest.describe_entries()}, {manifest.n_pos} positive"
    return [
        f"data      {args.data}: {sizes}",
        f"problem   {args.measure}; gap to prove: {problem.settings.describe_target()}; lambda {grid}{l1}{features}",
        f"models    all rows{rows}",
    ]
