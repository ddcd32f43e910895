"""The command `distsms path`: its options, and the request that they stand for."""

from __future__ import annotations

import argparse
import math
from contextlib import closing
from typing import TYPE_CHECKING, Any

from distsms.base.choices import RULES, TOGETHER
from distsms.base.errors import InputError
from distsms.base.measures import CHOOSERS, RANKING, RIVALS, Measure
from distsms.cli import options, types
from distsms.cli.types import add_old_names, add_options, count, positive, whole
from distsms.optim.solvers.base import WIDE
from distsms.parallel.signals import StopSignals
from distsms.workflow.candidates import COLUMNS, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distsms.base.communicator import Communicator

USUAL = "1:1e-5"
"""The lambdas that are tried if the user gives none; `distsms path` adds more at an end where it finds the best one."""


def lambdas(text: str) -> list[float]:
    """Parse a positive number, or FROM:TO[:COUNT] with COUNT numbers, or one for each power of ten."""
    try:
        ends = [positive(end) for end in text.split(":")[:2]]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor FROM:TO or FROM:TO:COUNT, as 1e-1:1e-7 is") from error
    if ":" not in text:
        return ends
    if text.count(":") > 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO or FROM:TO:COUNT, as 1e-1:1e-7 is")
    first, last = math.log10(ends[0]), math.log10(ends[1])
    number = count(text.split(":")[2]) if text.count(":") == 2 else round(abs(first - last)) + 1
    steps = max(number - 1, 1)
    return [float(f"{10 ** (first + (last - first) * i / steps):.6g}") for i in range(number)]


def l1s(text: str) -> list[float]:
    """Parse a number of at least 0, or several positive ones as `lambdas` does."""
    return lambdas(text) if ":" in text else [types.not_negative(text)]


def flat(lists: Sequence[list[float]]) -> list[float]:
    """Return the numbers of an option each of whose words stands for several."""
    return [number for some in lists for number in some]


def folds(text: str) -> int:
    """Parse a whole number of at least 2, or 0."""
    number = whole(text)
    if number == 1:
        raise argparse.ArgumentTypeError("1 fold would leave no rows to train on; give at least 2, or 0 for no folds")
    return number


GRID = f"""\
--lambdas LAMBDA  The weights of the regularizer to try: numbers, or FROM:TO for one at each power of ten, or
    FROM:TO:COUNT for COUNT of them, evenly spaced in the logarithm (default: {USUAL}).
--measure NAME  What to optimize, and what chooses lambda: {{names}} (default: %(default)s).
--select MEASURE  Choose lambda by another measure of the held-out rows: {{choosers}}. K counts the rows of a fold
    (default: the measure that is optimized{{rivals}}).
--folds K  The number of folds; `distsms path` also takes 0, and trains the path alone (default: %(default)s).
--folds-by  What the folds keep together: rows keeps nothing together, groups the rows of a group of `distsms shard
    --group`, doubles duplicate rows; with time, models are evaluated on rows that come later than those they are
    trained on (default: groups where the data have them, else rows).
--seed N  The seed of the folds (default: %(default)s)."""
GRID_KEYWORDS: dict[str, dict[str, Any]] = {
    **options.COMMON,
    "--lambdas": {"nargs": "+", "type": lambdas},
    "--select": {"type": types.chooser},
    "--folds": {"type": folds, "default": 5},
    "--folds-by": {"choices": TOGETHER},
    "--seed": {"type": whole, "default": 0},
}
"""What argparse is told of measure, lambdas and folds, which `path` and `baseline` share."""

USAGE = "DATA [options]"
EPILOG = """\
For each lambda the command trains a model on all rows and, for each fold, a model on the rows outside of that fold.
Each model starts from the model of the lambda before, and its gap is proved as by `distsms train`. The mean of the
measure over the folds, each scored by the model that was trained without it, chooses lambda.

Folds by rows have equal numbers of rows of each class, up to one row; they depend on --seed and the order of the rows.
Folds by groups or doubles (duplicate rows) are as even as the groups allow. For K folds by time the rows are cut into K
+ 1 blocks in the order of time: each block but the first evaluates the models that are trained on all blocks before it.

The rule one-se starts at the best lambda, and takes the largest lambda up to which all means are within one standard
error of the best mean. Neither rule takes a lambda whose model ranks no better than chance, or whose held-out ROCArea
is not above chance, unless there is no other; the output names a lambda that was passed over, and says why.

The folder of --output gets model.h5, path.json and a folder `points` with each result, and the model of all rows at
each lambda. The same command line again, perhaps with more lambdas, keeps the points that are finished.

With several BETA, such as --measure pauc@0.01,0.05,0.2, several --l1 or several --features, there is a path for each in
the folder `paths`, and a table that compares them; model.h5 is the best model, and betas.json, l1.json or features.json
has the comparison. Those of BETA, with one for ROCArea (BETA = 1), are judged by --select. With several --l1, one-se
takes the largest l1 whose mean is within one standard error of the best mean.

With --features, features are made from the columns as `distsms features` does it: for each fold from the rows outside
of it alone, and for the model of all rows from all rows. The models take rows with the original columns.

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

NAMES = ", ".join([*RANKING, *RIVALS, "pauc@BETA[,BETA...]"])
FOLDS = (
    "When lambda is chosen, the models of the folds are trained once more at this lambda, from those that the path has"
    " kept."
)
OPTIONS = f"""\
data DATA  A data set made by `distsms shard`.
{GRID.format(names=NAMES, choosers=CHOOSERS.replace("%", "%%"), rivals=", or rocarea for " + ", ".join(RIVALS))}
{options.WITHIN_GROUPS}
{options.BIAS}
--l1 L1  The weight of ||w||_1: with a positive number the regularizer is the elastic net L1 ||w||_1 + lambda/2 ||w||^2,
    and many coefficients are exactly 0. For several numbers, also FROM:TO or FROM:TO:COUNT as for --lambdas, there is a
    path for each (default: 0).
--features FEATURES  Make features from the columns, for each fold from the rows outside of it: bins, crosses (of all
    pairs of bins), leaves or trees (of 100 trees), or options of `distsms features` such as bins=16,crosses=top:20 or
    trees=300,min-leaf=5,keep. raw are the columns themselves. If there are several, the folds choose one (default:
    raw).
--rule  best takes the lambda with the best mean; one-se takes the largest lambda whose mean is within a standard error
    of it or, with --l1, the lambda with the fewest nonzero coefficients among those (default: %(default)s).
--extend  While the best lambda is the smallest or the largest of those tried, try another one beyond it, by a power of
    ten; at most four at each end (default: yes, unless --lambdas is given).
--output FOLDER  The folder for points, table and model (default: %(default)s).
--no-check  Do not compare the models with quick ROCArea models on the same folds, as is done where another measure is
    optimized or chooses.
--usage  Show the reasons of the plan, and what each rank holds.
--quiet  Print nothing but errors and warnings on the model.
method:
{options.SOLVER.format(of="", but=" and with --l1")}
--at-once N  How many models are trained in the same passes, each with vectors of its own (default: all of them, but
    only one where there are {WIDE:,} columns or more, since vectors then cost more than rows).
{options.VECTORS}
{options.MEMORY}
{options.STOPPING.format(limit="no limit")}
{options.DECISIONS.format(folds=FOLDS)}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    others = {
        **GRID_KEYWORDS,
        "data": {},
        "--measure": {"type": types.path_measures, "default": "rocarea"},
        "--l1": {"nargs": "+", "type": l1s, "default": [[0.0]]},
        "--features": {"nargs": "+", "action": "extend", "type": types.checked(parse)},
        "--rule": {"choices": RULES, "default": "best"},
        "--extend": {"action": argparse.BooleanOptionalAction},
        "--output": {"default": "path"},
    }
    add_options(parser, OPTIONS, others)
    add_old_names(parser, **{"lambda": "lambdas"})
    parser.set_defaults(check=check_measure, signals=StopSignals())


def measure_of(args: argparse.Namespace) -> str:
    """Return the measure that is to be optimized, within groups if that is asked for. Raises InputError."""
    if args.within_groups is None:
        return str(args.measure)
    return Measure.parse(args.measure.partition(",")[0]).within(args.within_groups).name


def check_measure(args: argparse.Namespace) -> str | None:
    """Return what is wrong with the measure, or None."""
    try:
        measure_of(args)
    except InputError as error:
        return str(error)
    return None


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Solve the missing points, then choose a lambda. **Collective.**"""
    from distsms.cli.path_text import PathNarrator
    from distsms.workflow.path_run import run_path
    from distsms.workflow.requests import PathRequest

    request = options.request_of(
        PathRequest,
        args,
        measure=measure_of(args),
        lambdas=args.lambdas and flat(args.lambdas),
        l1=flat(args.l1),
        features=args.features or [COLUMNS],
        check=not args.no_check,
    )
    with args.signals as signals, closing(PathNarrator(args, comm)) as narrator:
        return run_path(request, comm, narrator, signals.wanted).exit_code
