"""The command `distsms baseline`."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from distsms.base.errors import EXIT_OK, EXIT_REQUEUE
from distsms.base.measures import RANKING
from distsms.cli import options
from distsms.cli.path import FoldsNarrator, add_grid, check_measure, flat, measure_of
from distsms.cli.types import count, ranking_measure
from distsms.optim.solvers.base import SOLVERS

if TYPE_CHECKING:
    from distsms.cli.progress import Progress
    from distsms.parallel.communicator import Communicator
    from distsms.shards.dataset import DataBlock
    from distsms.workflow.baseline import Baseline, BaselineObserver, FitProgress
    from distsms.workflow.baseline_plan import BaselinePlan
    from distsms.workflow.requests import BaselineRequest
else:  # the workflow loads NumPy, which nothing may load before a command runs
    BaselineObserver = object

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
    options.add_within_groups(parser)
    parser.add_argument(
        "--path",
        metavar="FOLDER",
        help="Take measure, lambdas, folds, seed and target from this folder of `distsms path`, which has no l1. The"
        " lambdas of --lambdas are tried, too.",
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
    solvers = f"The solver of the fits of distsms. {options.SOLVERS_HELP}. {options.USUAL_SOLVER}."
    parser.add_argument("--solver", choices=tuple(SOLVERS), help=solvers)
    of_distsms = parser.add_argument_group("method of distsms")
    options.add_vectors(of_distsms)
    options.add_memory(of_distsms)
    options.add_stopping(parser, float("inf"))
    parser.set_defaults(check=_check)
    parser.add_argument("--quiet", action="store_true", help="Print nothing but errors.")


def _check(args: argparse.Namespace) -> str | None:
    """Return what is wrong with the arguments, or None."""
    without = [*TREES * args.no_trees, *FEATURED * args.no_features]
    return check_measure(args) or (
        None if set(args.methods or METHODS) - {*without} else "no method is left to compare"
    )


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Make the missing fits, and print the table. **Collective.**"""
    from distsms.workflow.baseline import compare_methods

    narrator = BaselineNarrator(args, comm)
    with args.signals as signals, ExitStack() as opened:
        opened.callback(narrator.close)
        result = compare_methods(_request(args), comm, narrator, signals.wanted)
        narrator.conclude(result)
        return EXIT_REQUEUE if result.stopped else EXIT_OK


def _request(args: argparse.Namespace) -> BaselineRequest:
    """Return what the command line asks for."""
    from distsms.training.task import Distribution
    from distsms.workflow.requests import BaselineRequest

    return BaselineRequest.of(
        vars(args),
        measure=measure_of(args),
        lambdas=args.lambdas and flat(args.lambdas),
        trees=not args.no_trees,
        features=not args.no_features,
        settings=options.of_vectors(args),
        distribution=Distribution(args.ordering, args.step),
    )


class BaselineNarrator(FoldsNarrator, BaselineObserver):
    """Prints what a baseline tells, and its results. It has all methods of `BaselineObserver`."""

    def __init__(self, args: argparse.Namespace, comm: Communicator) -> None:
        super().__init__(args, comm)
        self._of_fits: Progress | None = None

    def planned(self, plan: BaselinePlan) -> None:
        from distsms.workflow.competitors import METHODS

        say, manifest, problem = self._say, plan.manifest, plan.problem
        say(f"data      {self._args.data}: {manifest.n} rows, {manifest.p} columns, {manifest.n_pos} positive")
        lambdas = ", ".join(f"{lam:g}" for lam in problem.lambdas)
        say(f"problem   {problem.measure}; {problem.folds} folds by {problem.folds_by}; lambda {lambdas}")
        say(f"fits      {plan.total}; {plan.total - len(plan.missing)} of them are kept from an earlier start")
        for each in plan.left_out:
            say(f"left out  {', '.join(each.methods)}: {each.why}")
        for name in [name for name in plan.methods if not METHODS[name].linear]:
            tries = f"{self._args.tree_fits} settings tried for each fold, on its training rows"
            say(f"{name:9} {METHODS[name].about}: {tries}; then the best is fitted")
        for line in _costs(plan) if plan.alone else ():
            say(line)
        say("rows      distributed over the ranks" if plan.distributes_rows else "")

    def loaded(self, block: DataBlock) -> None:
        for line in [*options.rows_held(block, self._comm, self._args.memory, False), ""]:
            self._say(line)

    def fitting(self, progress: FitProgress) -> None:
        from distsms.cli.progress import Progress

        if self._of_fits is None:
            unit = "fits of this rank" if progress.shared and self._comm.size > 1 else "fits"
            self._of_fits = Progress.on_root("fitting", unit, self._speaks)
        folds = ", all folds side by side" if progress.fold is None else f" {progress.setting}, fold {progress.fold}"
        self._of_fits(progress.done, progress.total, f"{progress.method}{folds}")

    def fitted(self) -> None:
        if self._of_fits is not None:
            self._of_fits.close()
        self._of_fits = None

    def conclude(self, result: Baseline) -> None:
        """Print the tables and the sentences, or that the run was stopped."""
        from distsms.workflow import baseline_text
        from distsms.workflow.baseline import WARNING
        from distsms.workflow.baseline_fits import BaselineStore

        say, store = self._say, BaselineStore(result.folder)
        if result.stopped:
            say("\nstopped; finished fits are kept. To continue, give the same command line again")
            return
        say(f"\n{baseline_text.table(result.methods, result.select)}\n")
        if result.head:
            say(
                "head of the ranking; for each measure, the settings of all methods are those that are best by this"
                " measure"
            )
            say(f"{baseline_text.head_table(result.head)}\n")
        for sentence in result.sentences:
            is_warning = sentence.startswith(WARNING)
            say(f"warning   {sentence.removeprefix(WARNING)}" if is_warning else sentence)
        say(f"\nThe results are in {store.identity}, and each fit is beside it in {store.parts}/")

    def close(self) -> None:
        """Print the warnings."""
        self._say.close()


def _costs(plan: BaselinePlan) -> list[str]:
    """Return lines on what makes fits slow: codes that stand for many nonzeros, and many columns for the trees."""
    from distsms.base.formatting import format_bytes
    from distsms.workflow.baseline_plan import ENTRY_BYTES, MANY_COLUMNS
    from distsms.workflow.competitors import METHODS

    manifest, lines = plan.manifest, []
    if manifest.coded:
        each, stored = format_bytes(ENTRY_BYTES * manifest.explicit), manifest.describe_entries()
        nonzeros = f"up to {manifest.explicit:,} nonzeros in place of {stored}"
        lines.append(f"matrix    the other libraries need {nonzeros}: about {each} on each rank")
    if manifest.p >= MANY_COLUMNS and not all(METHODS[name].linear for name in plan.alone):
        lines.append(
            f"hint      trees try all {manifest.p:,} columns at each split, so their fits may take many times as long "
            "as the others; --no-trees leaves them out, and --tree-fits 2 tries fewer settings"
        )
    return lines
