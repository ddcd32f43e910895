"""Compare distsms with other methods on the same folds: does direct optimization pay on these data?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distsms.cli import baseline_features, baseline_plan, baseline_summary
from distsms.cli.options import (
    SOLVERS_HELP,
    USUAL_SOLVER,
    add_memory,
    add_stopping,
    add_vectors,
    add_within_groups,
    long_run,
    put_within_groups,
)
from distsms.cli.path_grid import add_grid, grid
from distsms.cli.types import count, ranking_measure
from distsms.errors import EXIT_OK, EXIT_REQUEUE, InputError
from distsms.measures import GROUPED, RANKING
from distsms.optim.solvers.base import SOLVERS

if TYPE_CHECKING:
    from distsms.cli.progress import Progress
    from distsms.data.shards.manifest import Manifest
    from distsms.optim.settings import Settings
    from distsms.parallel.communicator import Communicator
    from distsms.parallel.signals import StopSignals
    from distsms.selection.baseline import BaselineStore, Fit, FitSpec, Trial

PROBLEM = ("measure", "folds", "folds_by", "seed", "epsilon", "relative")
"""With `--path FOLDER`, the values of these options come from the folder, unless the user gives them."""
USAGE = "DATA [options]"
TREES = ("trees", "lightgbm")
FEATURED = ("distsms-crosses", "logistic-crosses", "distsms-leaves", "logistic-leaves")
METHODS = ("distsms", "logistic", "logistic-balanced", *FEATURED, "svm", "svm-balanced", *TREES)
EPILOG = """\
The methods are distsms itself, logistic regression and the LinearSVC of scikit-learn (classes as they are, and
balanced), and gradient-boosted trees: those of XGBoost (trees) and of LightGBM (lightgbm). All of them are trained on
the folds that `distsms path` makes with the same --folds, --folds-by and --seed. The linear methods try the same
lambdas (scikit-learn's C is 1 / (lambda n)). The rows of each fold are scored by the model whose lambda is best on the
other folds. Two methods are compared by their scores of the same rows.

The settings of the trees are searched for each fold, on its training rows alone. The option --tree-fits says how many
settings are tried, the same number for both libraries. A setting consists of leaves, learning rate, minimum size of a
leaf, regularization, and shares of columns and rows; the first setting has learning rate 0.1 and the library's
defaults. Trees with each setting are trained on four fifths of the training rows, for at most 2000 rounds. The measure
on the other fifth stops this training after 50 rounds without a better value, and judges the setting. The best setting
is then fitted to all training rows. So each library takes --folds x (--tree-fits + 1) fits.

distsms and logistic regression are also trained on features of `distsms features`: on bins and all their crosses
(distsms-crosses, logistic-crosses), and on the leaves of 100 random trees (distsms-leaves, logistic-leaves). For each
fold, the features are made from its training rows. Crosses are left out where there are more than 32 attributes, and
both where there are more than 500 columns, unless --methods names them. The row "distsms, best features" takes, for
each fold, the columns, the crosses or the leaves that are best on the other folds; this is what trees are compared
with, too. The seconds of a method are those of its features and of all its fits.

An interval says how the method would do if it were trained on new rows and tested on other new rows. For this, the
variance that comes from the test rows is enlarged by what other training rows would change (correction of Nadeau and
Bengio). The table also compares distsms with the best of the other linear methods; which method that is, is chosen for
each fold on the other folds. With fewer than 10 rows of a class there is no verdict.

A second table compares the methods by measures of the head of the ranking, such as the TPR at FPR 1 %. For each of
these measures, the settings of all methods are chosen by this measure. --select adds another one, such as
tpr@fpr=0.005, recall@precision=0.8, pauc@0.01 or recall@2%; give it to a finished folder, and no fit is repeated.

With --within-groups, distsms trains for GAUC, and the settings of all methods are chosen and judged by GAUC; the other
methods train as always, since they have no measure within groups. There is no second table, because the measures of
the head compare rows of different groups.

distsms trains its own models and those of logistic regression itself, to the same proved gap. On large data, or with
--memory, the rows are distributed over the ranks for that, and rows that do not fit are read from the disk on each
pass. On small data, the ranks share the fits; if scikit-learn is installed, its LogisticRegression then makes one of
the fits again, and the results say whether both find the same minimum. Logistic regression has a constant feature of
value 1, whose weight is regularized like any other. Its gap to prove is --epsilon times the loss of the best constant
probability: a smaller one where positives are rare.

The other methods need all rows in each process. If these do not fit, the methods are left out, unless --methods names
them. They need scikit-learn, XGBoost and LightGBM (pip install 'distsms[baseline]'); a method whose library is missing
is left out, too.

The folder of --output gets baseline.json and a folder `fits` with each fit and its scores. If you give the same
command line again, it keeps the fits that are finished and makes the others. If you add lambdas or methods, only their
fits are made.

exit codes:
  0 the table is complete   1 error   2 usage
  75 stopped by a signal or --time-limit; give the same command line again to continue

examples:
  distsms baseline data/train --measure rocarea
  distsms path data/train --output path
  mpirun -n 4 distsms baseline data/train --path path --output beside-path
  mpirun -n 4 distsms baseline data/train --methods distsms logistic --memory 2GiB
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `distsms baseline`."""
    parser.add_argument("data", metavar="DATA", help="A data set made by `distsms shard`.")
    add_grid(parser, ranking_measure, (*RANKING, "pauc@BETA"))
    add_within_groups(parser)
    parser.add_argument(
        "--path",
        metavar="FOLDER",
        help="Take measure, lambdas, folds, seed and target from this folder of `distsms path`, which has no l1.",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        metavar="METHOD",
        help=f"The methods to compare, of {', '.join(METHODS)} (default: all).",
    )
    parser.add_argument(
        "--no-trees",
        action="store_true",
        help="Leave out the trees, which take most of the time of a comparison, and the models on features, too, unless"
        " --methods names them.",
    )
    parser.add_argument(
        "--no-features", action="store_true", help="Leave out the models on features, those on crosses and on leaves."
    )
    parser.add_argument(
        "--tree-fits",
        type=count,
        default=20,
        metavar="N",
        help="How many settings of trees are tried for each fold (default: %(default)s).",
    )
    parser.add_argument(
        "--output", default="baseline", metavar="FOLDER", help="The folder for fits and table (default: %(default)s)."
    )
    parser.add_argument(
        "--solver", choices=tuple(SOLVERS), help=f"The solver of the fits of distsms. {SOLVERS_HELP}. {USUAL_SOLVER}."
    )
    how = parser.add_argument_group("method of distsms")
    add_vectors(how)
    add_memory(how)
    add_stopping(parser, float("inf"))
    parser.set_defaults(usual={name: parser.get_default(name) for name in PROBLEM}, check=_check)
    parser.add_argument("--quiet", action="store_true", help="Print nothing but errors.")


def _check(args: argparse.Namespace) -> str | None:
    """Leave out the trees if --no-trees is given. Return what is wrong with the arguments, or None."""
    args.named, args.methods = args.methods is not None, args.methods or METHODS
    if args.no_features or (args.no_trees and not args.named):
        args.methods = [method for method in args.methods if method not in FEATURED]
    if args.no_trees:
        args.methods = [method for method in args.methods if method not in TREES]
    return put_within_groups(args) or (None if args.methods else "no method is left to compare")


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Make the missing fits, then the table. **Collective.**"""
    from distsms.selection.baseline import BaselineStore

    with long_run(args, comm) as (signals, held):
        return _run(args, comm, signals, BaselineStore(args.output), held)


def _run(args: argparse.Namespace, comm: Communicator, signals: StopSignals, store: BaselineStore, held: Any) -> int:
    import time

    from distsms.cli.options import rows_held, solver_for, speaker
    from distsms.cli.progress import Progress
    from distsms.data.shards import dataset
    from distsms.inference import inputs
    from distsms.selection import baseline, competitors, distributed_fits, folds
    from distsms.selection.path import SMALL, Problem
    from distsms.utils import files

    say = speaker(comm.is_root and not args.quiet)
    held.callback(say.close)
    done: set[FitSpec] = set()
    own = [name for name in args.methods if competitors.METHODS[name].own and name not in FEATURED]
    solver = (
        solver_for(args, args.solver, args.measure, comm, say)
        if own or any(map(FEATURED.__contains__, args.methods))
        else args.solver or "lmvm"
    )
    with comm.fail_together():  # all checks that can be made before the data are read
        competitors.check_select(args.select)
        manifest = dataset.read_manifest(args.data)
        dataset.check_readable(manifest)
        identity, lambdas, settings = _problem(args, solver, manifest)
        within = not {identity["measure"], args.select}.isdisjoint(GROUPED)
        if within:
            dataset.read_groups(manifest, 0, 0)  # raises InputError if the rows have no groups
    neighbours = comm.node_ranks()
    left_out = baseline_plan.leave_out_missing(args, comm) + baseline_plan.leave_out(args, manifest, neighbours, comm)
    left_out += baseline_features.leave_out_unsuitable(args, manifest, comm)
    # The methods whose rows are distributed. On small data, messages would cost more than evaluations.
    apart = own if args.memory is not None or manifest.n + manifest.nnz > SMALL else []
    with comm.fail_together():
        competitors.require(args.methods)
        plans = baseline_plan.plans(args, identity, lambdas, settings, manifest, apart, comm.size, neighbours)
        if comm.is_root:
            inputs.check_distinct(args.output, args.data, args.path)
            store.check()
            held.enter_context(files.exclusive(store.path))
            store.open(identity)
            done = store.done()
    done = comm.bcast(done)
    wanted = baseline.first_round(args.methods, lambdas, identity["folds"], args.tree_fits)
    missing = [spec for spec in wanted if spec not in done]
    say(f"data      {args.data}: {manifest.n} rows, {manifest.p} columns, {manifest.n_pos} positive")
    say(
        f"problem   {identity['measure']}; {identity['folds']} folds by {identity['folds_by']}; lambda "
        + ", ".join(f"{lam:g}" for lam in lambdas)
    )
    say(f"fits      {len(wanted)}; {len(wanted) - len(missing)} of them are kept from an earlier start")
    for line in left_out:
        say(line)
    for name in [name for name in args.methods if name in TREES]:
        about = competitors.METHODS[name].about
        tries = f"{args.tree_fits} settings tried for each fold, on its training rows"
        say(f"{name:9} {about}: {tries}; then the best is fitted")
    if alone := [name for name in args.methods if name not in (*apart, *FEATURED)]:
        for line in baseline_plan.costs(manifest, alone):
            say(line)
    end, by = time.monotonic() + args.time_limit, identity["folds_by"]

    def stop_wanted() -> bool:
        return signals.wanted() or time.monotonic() > end

    stopped, rows = False, None
    if apart or not alone:  # without any method on the columns, their rows still evaluate the others
        say("rows      distributed over the ranks")
        needed = max(
            (plan for plan, _ in plans.values()), key=lambda plan: plan.needs.least(comm.size, True), default=None
        )
        budget = None if needed is None else needed.room(comm.is_root)
        block = dataset.load(manifest, comm, budget=budget, with_groups=within)
        for line in rows_held(block, comm, args.memory, False):
            say(line)
        say("")
        with comm.fail_together():
            keys = folds.read_fold_keys(manifest, by, block.first_row, block.first_row + len(block.labels))
        specs = [spec for spec in missing if spec.method in apart]
        progress = Progress.on_root("fitting", "fits", comm.is_root and not args.quiet)
        recorder = FitRecorder(store, len(specs), progress)
        problems = {name: problem for name, (_, problem) in plans.items()}
        conduct = recorder.keep, stop_wanted, recorder.begin_method, keys
        stopped = distributed_fits.run(block, problems, specs, comm, *conduct)
        progress.close()
        whole = Problem(identity["measure"], lambdas, identity["folds"], identity["seed"], settings, folds_by=by)
        rows = distributed_fits.gather_rows(block, whole, comm, keys, within)
        missing = [spec for spec in missing if spec.method not in apart]
        del block
    else:
        say("")
    with_features = [spec for spec in missing if spec.method in FEATURED]
    missing = [spec for spec in missing if spec.method not in FEATURED]
    if with_features and not stopped:
        progress = Progress.on_root("fitting", "fits", comm.is_root and not args.quiet)
        recorder = FitRecorder(store, len(with_features), progress)
        what = args, identity, lambdas, settings, manifest, with_features, store, recorder
        stopped = baseline_features.run(*what, stop_wanted, comm, say)
        progress.close()
    if alone and not stopped:
        with comm.fail_together():
            rows = baseline.read_rows(manifest, by, identity["folds"], identity["seed"], within)

    def run(specs: list[FitSpec]) -> bool:
        """Make the fits, each on one of the ranks; return whether any rank was stopped. **Collective.**"""
        assert rows is not None
        own = specs[comm.rank :: comm.size]
        unit = "fits of this rank" if comm.size > 1 else "fits"
        progress = Progress.on_root("fitting", unit, comm.is_root and not args.quiet)
        recorder = FitRecorder(store, len(own), progress)
        stopped = baseline.run(rows, own, identity["measure"], settings, recorder.keep, stop_wanted, recorder.begin)
        progress.close()
        return any(comm.allgather(stopped))

    stopped = stopped or (bool(alone) and run(missing))
    if alone and not stopped:
        with comm.fail_together():
            if comm.is_root:
                fitted = {(fit.method, fit.setting, fit.fold) for fit in store.fits()}
                best = baseline.second_round(store.trials(), args.tree_fits)
                missing = [spec for spec in best if spec.method in TREES and spec[:3] not in fitted]
        stopped = run(comm.bcast(missing))
    if stopped:
        say("\nstopped; finished fits are kept. To continue, give the same command line again")
        code = EXIT_REQUEUE
    else:
        code = EXIT_OK
        with comm.fail_together():
            if comm.is_root:
                assert rows is not None
                baseline_summary.conclude(store, identity, rows, settings, args.select, manifest, say)
    say.close()
    return code


def _problem(args: argparse.Namespace, solver: str, manifest: Manifest) -> tuple[dict[str, Any], list[float], Settings]:
    """Return the options that all fits of a baseline share, the lambdas, and the settings of the fits of distsms.

    Raises InputError where --path does not fit the data or the options, or there are no folds.
    """
    from distsms.cli.options import of_vectors
    from distsms.selection import folds
    from distsms.selection.path_store import PathStore
    from distsms.selection.several_paths import BetaStore, FeaturesStore, L1Store
    from distsms.training.solver_choice import settings_for

    problem = {name: getattr(args, name) for name in PROBLEM}
    lambdas = grid(args)
    if args.path:
        path_store = PathStore(args.path)
        for several in (BetaStore(args.path), L1Store(args.path), FeaturesStore(args.path)):
            if several.identity.exists():
                raise InputError(
                    f"{args.path}: holds several paths; name one of them, {several.path / several.parts}/NAME"
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
        lambdas = sorted({point.lam for point in path_store.points()}, reverse=True)
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


class FitRecorder:
    """Stores the results of this rank's fits, and shows how many are done and which fit is being made."""

    def __init__(self, store: BaselineStore, count: int, progress: Progress) -> None:
        self._store, self._progress = store, progress
        self._done, self._count = 0, count

    def begin(self, spec: FitSpec) -> None:
        """Show what is about to be fitted."""
        setting = f"{spec.setting:g}"
        if spec.method in TREES:
            setting = f"best of {setting}" if spec.best else f"try {setting}"
        self._progress(self._done, self._count, f"{spec.method} {setting}, fold {spec.fold}")

    def begin_method(self, spec: FitSpec) -> None:
        """Show which method is about to be fitted to all folds."""
        self._progress(self._done, self._count, f"{spec.method}, all folds side by side")

    def keep(self, result: Fit | Trial, scores: Any = None) -> None:
        """Keep the result of a fit."""
        self._store.keep(result, scores)
        self._done += 1
