"""The command `distsms baseline`."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from distsms.base.errors import EXIT_OK, EXIT_REQUEUE
from distsms.base.measures import RANKING, RANKING_CHOOSERS
from distsms.cli import options, train
from distsms.cli.path import GRID, GRID_KEYWORDS, check_measure, flat, measure_of
from distsms.cli.types import add_old_names, add_options, ranking_measure
from distsms.parallel.signals import StopSignals

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator
    from distsms.workflow.requests import BaselineRequest

USAGE = "DATA|FILE... [options]"
TREES = ("trees", "lightgbm")
FEATURED = ("distsms-crosses", "logistic-crosses", "distsms-leaves", "logistic-leaves")
METHODS = ("distsms", "logistic", "logistic-balanced", *FEATURED, "svm", "svm-balanced", *TREES)
EPILOG = """\
The methods are distsms itself, logistic regression and the LinearSVC of scikit-learn (classes as they are, and
balanced), and the gradient-boosted trees of XGBoost (trees) and of LightGBM (lightgbm). They are trained on the folds
that `distsms path` makes with the same --folds, --folds-by and --seed. The rows of each fold are scored by the model
whose lambda is best on the other folds, and two methods are compared by their scores of the same rows. An interval says
how the method would do if it were trained on new rows and tested on other new rows.

The first answer takes about as long as some trainings. Each linear method tries its lambdas quickly on all folds, and
others beyond an end where the best one is; for each fold, the two that are best on the other folds are then trained to
the end. Trees get the usual settings, and no more than two folds if these settle the verdict. The last lines say how
much was done, and what --thorough would add: all lambdas to the end; LightGBM; 20 settings of trees, searched on the
training rows of each fold; and distsms and logistic regression on features that are made from these rows, which are
bins with all their crosses (distsms-crosses, logistic-crosses) and the leaves of 100 random trees (distsms-leaves,
logistic-leaves). The row "distsms, best features" takes the columns, the crosses or the leaves, as the other folds say.

A second table compares the methods by measures of the head of the ranking, for each of which all settings are chosen by
this measure. --select adds another one, such as tpr@fpr=0.005 or recall@2%; give it to a finished folder, and no fit is
repeated.

distsms trains its own models and those of logistic regression itself, also where rows do not fit into memory. The other
methods need all rows in each process. If these do not fit, or a library is missing (pip install 'distsms[baseline]'),
they are left out, unless --methods names them.

The folder of --output gets baseline.json and a folder `fits` with each fit and its scores. If you give the same
command line again, it keeps the fits that are finished and makes the others. If you add lambdas, methods or --thorough,
only their fits are made.

exit codes:
  0 the table is complete   1 error   2 usage
  75 stopped by a signal or --time-limit; give the same command line again to continue

examples:
  distsms baseline payments.csv --label isFraud --id payment --drop customer,day --output pays
  distsms baseline data/train --measure rocarea
  distsms path data/train --output path
  mpirun -n 4 distsms baseline data/train --path path --output beside-path
  mpirun -n 4 distsms baseline data/train --methods distsms logistic --memory 2GiB
"""

OPTIONS = f"""\
{options.DATA}
{GRID.format(names=", ".join([*RANKING, "pauc@BETA"]), choosers=RANKING_CHOOSERS.replace("%", "%%"), rivals="")}
{options.WITHIN_GROUPS}
--path FOLDER  Take measure, lambdas, folds, seed and target from this folder of `distsms path`, which has no l1. The
    lambdas of --lambdas are tried, too.
--methods METHOD  The methods to compare, of {", ".join(METHODS)}
    (default: the linear ones on the columns and one library of trees; with --thorough all).
--thorough  Fit all lambdas to the end on all folds, and try all methods and 20 settings of trees, which may take a
    hundred times as long. What is in the folder is kept.
--no-trees  Leave out the trees, which take most of the time of a comparison, and the models on features, too, unless
    --methods names them.
--no-features  Leave out the models on features, those on crosses and on leaves.
--tree-fits N  How many settings of trees are tried for each fold (default: 1, or 20 with --thorough).
--output FOLDER  The folder for fits and table (default: %(default)s).
{options.SOLVER.format(of=" of the fits of distsms", but="")}
--quiet  Print nothing but errors.
method of distsms:
{options.VECTORS}
{options.MEMORY}
{options.STOPPING.format(limit="no limit")}
files instead of a data set:
    The files become shards. All rows are used, since the folds hold out those that judge models. All of these options
    except --shards are those of `distsms shard`.
--shards FOLDER  Keep the shards in this folder, as on several hosts.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    others = {
        **GRID_KEYWORDS,
        "--measure": {"type": ranking_measure, "default": "rocarea"},
        "--methods": {"nargs": "+", "choices": METHODS},
        "--output": {"default": "baseline"},
    }
    train.add_reading(add_options(parser, OPTIONS, others))
    add_old_names(parser, **{"lambda": "lambdas"})
    parser.set_defaults(check=_check, signals=StopSignals())


def _check(args: argparse.Namespace) -> str | None:
    """Return what is wrong with the arguments, or None."""
    left = set(args.methods or METHODS) - {*TREES * args.no_trees, *FEATURED * args.no_features}
    return check_measure(args) or (None if left else "no method is left to compare")


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Make the missing fits, and print the table. **Collective.**"""
    from distsms.cli.baseline_text import BaselineNarrator
    from distsms.workflow.baseline import compare_methods

    files = train.has_files(args, comm, train.READING)
    with args.signals as signals, closing(BaselineNarrator(args, comm)) as narrator:
        result = compare_methods(_request(args, files), comm, narrator, signals.wanted)
        narrator.conclude(result)
        return EXIT_REQUEUE if result.stopped else EXIT_OK


def _request(args: argparse.Namespace, files: bool = False) -> BaselineRequest:
    """Return what the command line asks for; `files` says whether the data are files."""
    from distsms.workflow.requests import BaselineRequest

    return options.request_of(
        BaselineRequest,
        args,
        data=args.data if len(args.data) > 1 else args.data[0],
        reading=train.reading_of(args) if files else {},
        measure=measure_of(args),
        lambdas=args.lambdas and flat(args.lambdas),
        trees=not args.no_trees,
        features=not args.no_features,
    )
