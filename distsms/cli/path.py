"""Train models for a path of lambdas, cross-validate them, and choose a lambda."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distsms.cli.options import (
    SOLVERS_HELP,
    USUAL_SOLVER,
    add_bias,
    add_decisions,
    add_memory,
    add_stopping,
    add_vectors,
    add_within_groups,
    long_run,
    put_within_groups,
)
from distsms.cli.path_features import add_features, different
from distsms.cli.path_grid import add_grid, grid, l1s
from distsms.cli.types import count, path_measures
from distsms.measures import GROUPED, RANKING, RIVALS, Measure
from distsms.optim.solvers.base import SOLVERS, WIDE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distsms.data.shards.dataset import DataBlock
    from distsms.data.shards.manifest import Manifest
    from distsms.parallel.communicator import Communicator
    from distsms.parallel.signals import StopSignals
    from distsms.selection.path import FoldRows, Problem
    from distsms.selection.path_store import PathStore
    from distsms.selection.point import Point

NAME = "path"
USAGE = "DATA [options]"
EPILOG = """\
For each lambda the command trains a model on all rows and, for each fold, a model on the rows outside of that fold.
Each model starts from the model of the lambda before, and its gap is proved as by `distsms train`. Each fold's rows are
scored by the model that was trained without them, and the mean of the measure over the folds chooses lambda. The model
of all rows at the chosen lambda is then there already. All models are trained in the same passes over one copy of the
data.

Folds by rows have equal numbers of rows of each class, up to one row; they depend on --seed and the order of the rows.
Folds by groups or doubles (duplicate rows) are as even as the groups allow. For K folds by time the rows are cut into K
+ 1 blocks in the order of time: each block but the first evaluates the models that are trained on all blocks before it.
Folds do not depend on the number of ranks.

The rule one-se starts at the best lambda, and takes the largest lambda up to which all means are within one standard
error of the best mean. Neither rule takes a lambda whose model ranks no better than chance, or whose held-out ROCArea
is not above chance, unless there is no other; the output names a lambda that was passed over, and says why.

The folder of --output gets model.h5, path.json and a folder `points` with each result, and the model of all rows at
each lambda; a point is one lambda and one fold. If you give the same command line again, it keeps the points that are
finished and makes the others. If you add lambdas, only their points are made.

With several BETA, such as --measure pauc@0.01,0.05,0.2, there is a path for each of them and one for ROCArea, which is
BETA = 1. --select names the measure of the held-out rows by which all of them are judged. A table says which BETA won,
and what it is worth beside ROCArea. The folder gets model.h5 (the best model), betas.json, and a folder `paths`.

With several --l1 there is a path over the lambdas for each of them, from the largest l1 to the smallest, and a table
with the numbers of nonzero coefficients. The rule one-se takes the largest l1 whose mean is within one standard error
of the best mean. The folder gets model.h5, l1.json, and a folder `paths`.

With --features, features are made from the columns as `distsms features` does it: for each fold from the rows outside
of it alone, and for the model of all rows from all rows. So no fold is judged by features that have seen its labels.
The models take rows with the original columns. With several --features, there is a path for each, and the folds choose
features and lambda; the interval of the choice takes, for each fold, what the other folds choose. The folder gets
model.h5, features.json, and a folder `paths`.

exit codes:
  0 the gaps of all models are proved   1 error   2 usage
  4, 5, 6 some gaps are not proved, for the reason that the same exit code of `distsms train` has
  8 all gaps are proved, but the chosen model ranks no better than chance
  75 stopped by a signal or --time-limit; give the same command line again to continue

examples:
  distsms path data/train --measure rocarea
  distsms path data/train --folds-by time --output path-in-time
  distsms path data/train --lambdas 1e-4 --l1 1e-2:1e-4:5 0 --rule one-se --output path-sparse
  distsms path data/train --features raw leaves --output path-of-features
  distsms path data/train --measure pauc@0.01,0.05,0.2 --select tpr@fpr=0.01 --output path-of-betas
  mpirun -n 4 distsms path data/train --lambdas 1e-2:1e-6 --measure prbep --folds 10 --rule one-se --output path-prbep
"""

LEAST_CHECK = 2.0
"""The comparison with quick ROCArea models may take a tenth of the run's seconds, or this many if that is more."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `distsms path`."""
    parser.add_argument("data", metavar="DATA", help="A data set made by `distsms shard`.")
    add_grid(parser, path_measures, (*RANKING, *RIVALS, "pauc@BETA[,BETA...]"))
    add_within_groups(parser)
    add_bias(parser)
    parser.add_argument(
        "--l1",
        nargs="+",
        type=l1s,
        default=[[0.0]],
        metavar="L1",
        help="The weight of ||w||_1: with a positive number the regularizer is the elastic net L1 ||w||_1 + lambda/2"
        " ||w||^2, and many coefficients are exactly 0. For several numbers, also FROM:TO or FROM:TO:COUNT as for"
        " --lambdas, there is a path for each (default: 0).",
    )
    add_features(parser)
    parser.add_argument(
        "--rule",
        choices=("best", "one-se"),
        default="best",
        help="best takes the lambda with the best mean; one-se takes the largest lambda whose mean is within a standard"
        " error of it or, with --l1, the lambda with the fewest nonzero coefficients among those (default:"
        " %(default)s).",
    )
    parser.add_argument(
        "--extend",
        action=argparse.BooleanOptionalAction,
        help="While the best lambda is the smallest or the largest of those tried, try another one beyond it, by a"
        " power of ten; at most four at each end (default: yes, unless --lambdas is given).",
    )
    parser.add_argument(
        "--output",
        default="path",
        metavar="FOLDER",
        help="The folder for points, table and model (default: %(default)s).",
    )
    how = parser.add_argument_group("method")
    how.add_argument("--solver", choices=tuple(SOLVERS), help=f"The solver. {SOLVERS_HELP}. {USUAL_SOLVER}.")
    how.add_argument(
        "--at-once",
        type=count,
        metavar="N",
        help="How many models are trained in the same passes, each with vectors of its own (default: all of them, but"
        f" only one where there are {WIDE} columns or more, since vectors then cost more than rows).",
    )
    add_vectors(how)
    add_memory(how)
    add_stopping(parser, float("inf"))
    add_decisions(
        parser,
        "When lambda is chosen, the models of the folds are trained once more at this lambda, from those that the path"
        " has kept.",
    )
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="Do not compare the models with quick ROCArea models on the same folds, as is done where another measure"
        " is optimized or chooses.",
    )
    parser.add_argument("--usage", action="store_true", help="Show the reasons of the plan, and what each rank holds.")
    parser.add_argument("--quiet", action="store_true", help="Print nothing but errors and warnings on the model.")
    parser.set_defaults(check=put_within_groups)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Solve the missing points, then choose a lambda. **Collective.**"""
    from distsms.cli import path_several
    from distsms.selection.path_store import PathStore

    with long_run(args, comm) as (signals, held):
        args.l1s = sorted({l1 for given in args.l1 for l1 in given}, reverse=True)
        args.l1, args.before = args.l1s[0], None
        args.candidates = different(args.features)
        args.candidate = args.candidates[0]
        if "," in args.measure or len(args.l1s) > 1 or len(args.candidates) > 1:
            return path_several.run(args, comm, signals, held, _run)
        return _run(args, comm, signals, PathStore(args.output), held)


def _run(args: argparse.Namespace, comm: Communicator, signals: StopSignals, folder: PathStore, held: Any) -> int:
    import time
    from dataclasses import replace

    from distsms.cli import path_features, path_summary
    from distsms.cli.options import rows_held, solver_for, speaker
    from distsms.cli.progress import Progress
    from distsms.data.shards import dataset
    from distsms.features.build import refuse_codes
    from distsms.inference import inputs
    from distsms.selection import choice as choosing
    from distsms.selection import decisions, folds, path
    from distsms.selection.held_out import held_out, mean_probability, score_spread
    from distsms.selection.path_store import finished
    from distsms.selection.quick_rocarea import compare_on_folds
    from distsms.training.plan import make_plan
    from distsms.utils import files

    say, neighbours = speaker(comm.is_root and not args.quiet), comm.node_ranks()
    held.callback(say.close)
    solver = solver_for(args, args.solver, args.measure, comm, say)
    known: set[tuple[float, int]] = set()
    done: list[Point] = []
    featured = args.candidate.options is not None
    with comm.fail_together():  # all checks that can be made before the data are read
        manifest = dataset.read_manifest(args.data)
        decisions.check(args.at, args.calibrate, args.folds)
        problem = _problem(args, solver, manifest)
        layout = comm.size, neighbours, args.ordering, args.step, args.memory
        counts = {"losses": args.folds + 1, "solves": problem.at_once, "bias": bool(problem.bias)}
        counts |= {"models": counts["losses"] * len(problem.lambdas)} | ({"losses": 1} if featured else {})
        plan = None if featured else make_plan(manifest, args.measure, problem.settings, *layout, **counts)
        if featured:
            refuse_codes(manifest)
        identity = _identity(args, problem, manifest)
        if comm.is_root:
            inputs.check_distinct(args.output, args.data)
            folder.check()
            held.enter_context(files.exclusive(folder.path))
            folder.open(identity)
            done = [point for point in folder.points() if finished(point, problem.settings, problem.select)]
            known = {(point.lam, point.fold) for point in done}
    known = comm.bcast(known)
    warnings = _warnings(problem, manifest)
    for line in [
        *_heading(args, problem, manifest),
        *(f"warning   {warning}" for warning in warnings if args.before is None),  # else the path before has said it
    ]:
        say(line)
    if known:
        say(f"resume    {folder.path}: {len(known)} points are there")
    made = path_features.made_for_folds(args.candidate, manifest, folder, problem, comm, args.quiet, args.memory, say)
    of_all = manifest if made is None else made.manifest(0)
    with comm.fail_together():
        plan = plan or make_plan(of_all, args.measure, problem.settings, *layout, **counts)
    for line in plan.describe(args.usage):
        say(line)
    problem = replace(problem, ordering=plan.ordering, step=plan.step, scored=plan.scored)
    share_folds = args.memory is None and made is None and path.shares_folds(manifest.n, manifest.nnz, comm)
    if share_folds and args.usage:
        say("small     these data are so small that every rank holds all rows, and the ranks share the folds")
    alone = (0, 1) if share_folds else None
    budget, grouped = plan.room(comm.is_root), problem.needs_groups
    rows: DataBlock | FoldRows
    fold_keys = None
    if made is None:
        rows = block = dataset.load(manifest, comm, budget=budget, share=alone, with_groups=grouped)
        for line in rows_held(block, comm, args.memory, args.usage):
            say(line)
        with comm.fail_together():
            last = block.first_row + len(block.labels)
            fold_keys = folds.read_fold_keys(manifest, problem.folds_by, block.first_row, last) if args.folds else None
    else:
        rows, made.budget, made.with_groups = made.rows, budget, grouped
    end = time.monotonic() + args.time_limit
    own = range(args.folds + 1)[comm.rank :: comm.size] if share_folds else range(args.folds + 1)
    expected = {(lam, fold) for lam in problem.lambdas for fold in own}
    ranks, number = 1 if share_folds else comm.size, (len(known & expected), len(expected))
    unit = "models of this rank" if share_folds else "models"
    progress = Progress.on_root("training", unit, comm.is_root and not args.quiet, number[0])
    held.callback(progress.close)
    keep = path_summary.PointRecorder(args, problem, manifest, folder, ranks, number, progress, made)
    by = choosing.chooser(args.measure, args.select)

    def extend(points: Sequence[Point]) -> float | None:
        """Return the lambda to try next, given the points of the run so far, or None to try no more. On the root."""
        if not (args.folds and (args.lambdas is None if args.extend is None else args.extend)):
            return None
        lam = choosing.extension([*done, *points], by, problem.lambdas, args.rule)
        if lam is not None:
            progress.close()
            say(f"extend    lambda {lam:g}, since the best lambda so far is at an end of those tried")
            keep.expect(len(own))
        return lam

    def start(fold: int, lam: float) -> Any:
        """Return the coefficients from which a training begins. On the root."""
        w = folder.start(fold, lam, problem.bias)
        return args.before.start(fold, lam, problem.bias) if w is None and args.before else w

    begun = time.monotonic()
    found = path.run(
        rows,
        problem,
        comm,
        keep,
        done,
        start,
        lambda: signals.wanted() or time.monotonic() > end,
        fold_keys=fold_keys,
        extend=extend,
        share_folds=share_folds,
    )
    progress.close()
    seconds, compared = time.monotonic() - begun, None
    comparable = args.measure not in GROUPED and not args.measure == by == "rocarea"
    if args.folds and comparable and not (found.stopped or args.no_check) and made is None:
        until = time.monotonic() + max(LEAST_CHECK, seconds / 10)
        how = fold_keys, share_folds, lambda: signals.wanted() or time.monotonic() > until, args.rule
        compared = compare_on_folds(block, problem, [*done, *found.points], comm, *how)
    stop_wanted, decided = (lambda: signals.wanted() or time.monotonic() > end), None
    lam = comm.bcast(path_summary.chosen_lambda(args, folder.points()) if comm.is_root and not found.stopped else None)
    w = comm.bcast(start(0, lam) if comm.is_root and lam is not None else None)
    decide = (args.at is not None or args.calibrate) and lam is not None
    means = dict[str, Any]()
    if lam is not None and (decide or args.measure == "logistic"):
        block = block if made is None else made.rows(0)[0]
        model_of_all = w, block, problem.bias, path.ALONE if share_folds else comm
        means = {"mean_probability": mean_probability(*model_of_all)} if args.measure == "logistic" else {}
    if decide:
        say(f"folds     the models of the folds are trained again at lambda {lam:g}, for --at and --calibrate")
        again = replace(problem, lambdas=[lam], at_once=min(problem.at_once, args.folds))
        spread = score_spread(*model_of_all)
        held = held_out(rows, again, comm, spread, fold_keys, share_folds, start, stop_wanted)
        decided = None if held is None else decisions.findings(args.at, args.calibrate, held, comm)
        found = found._replace(stopped=held is None)
    code = 0
    with comm.fail_together():
        if comm.is_root:
            target = problem.settings.describe_target()
            classes = None if manifest.weights else (manifest.n_pos, manifest.n_neg)
            told = say, target, classes, (decided or {}) | means
            code = path_summary.conclude(args, identity, folder, found, seconds, warnings, compared, *told)
    code = comm.bcast(code)
    say.close()
    if made is not None and not found.stopped:
        comm.barrier()
        if comm.is_root:
            made.remove(but_all=True)
    return code


def _problem(args: argparse.Namespace, solver: str, manifest: Manifest) -> Problem:
    """Return the problem that the options ask for. Raises InputError if they contradict each other."""
    from dataclasses import replace

    from distsms.cli.options import settings_from
    from distsms.selection import choice as choosing
    from distsms.selection import folds
    from distsms.selection.path import Problem

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
    from distsms.features import arrays
    from distsms.selection.fold_features import record

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
    from distsms.cli.path_features import labels_warning
    from distsms.data.groupby import doubles_warning

    if not problem.folds:
        return []
    return [*filter(None, [doubles_warning(manifest, problem.folds_by), labels_warning(manifest)])]


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
