"""The command `distsms path`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distsms.base.measures import RANKING, RIVALS
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
from distsms.cli.path_grid import add_grid, l1s
from distsms.cli.types import count, path_measures
from distsms.optim.solvers.base import SOLVERS, WIDE

if TYPE_CHECKING:
    from distsms.parallel.communicator import Communicator

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
    from distsms.cli import path_run, path_several
    from distsms.workflow.path_store import PathStore

    with long_run(args, comm) as (signals, held):
        args.l1s = sorted({l1 for given in args.l1 for l1 in given}, reverse=True)
        args.l1, args.before = args.l1s[0], None
        args.candidates = different(args.features)
        args.candidate = args.candidates[0]
        if "," in args.measure or len(args.l1s) > 1 or len(args.candidates) > 1:
            return path_several.run(args, comm, signals, held)
        return path_run.run(args, comm, signals, PathStore(args.output), held)
