"""The command `distsms baseline`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distsms.base.measures import RANKING
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
from distsms.cli.path_grid import add_grid
from distsms.cli.types import count, ranking_measure
from distsms.optim.solvers.base import SOLVERS

if TYPE_CHECKING:
    from distsms.parallel.communicator import Communicator

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
    from distsms.cli import baseline_run

    with long_run(args, comm) as (signals, held):
        return baseline_run.run(args, comm, signals, held)
