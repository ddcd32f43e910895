"""The command `distsms train`, on a data set or on files."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING, Any

from distsms.base.choices import DEVICES
from distsms.base.errors import InputError
from distsms.base.measures import NAMES
from distsms.cli import options, shard
from distsms.cli.columns import SEQUENCES
from distsms.cli.types import add_options, measure, not_negative, patience, positive
from distsms.parallel.signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distsms.base.communicator import Communicator
    from distsms.workflow.requests import TrainRequest

USAGE = "DATA|FILE... [options] [-- PETSC OPTIONS]"
EPILOG = """\
The command minimizes J(w) = lambda/2 ||w||^2 + R(w), to which --l1 adds L1 ||w||_1, where R is the exact convex risk of
the measure over all rows of all ranks, until the gap is at most --epsilon (or --relative): no other linear model has a
J that is smaller by more than the gap.

exit codes:
  0 proved   1 error   2 usage   3 smoothing floor (--c-mu)   4 --max-evaluations reached   5 no further progress
  6 NaN or infinity in the objective   8 proved, but the model ranks no better than chance
  75 stopped by a signal or --time-limit   130 interrupted twice
  137 a rank was killed, or has stopped answering (--stall-timeout); with --survive, only if it was rank 0

The best model so far is written with its proved gap, unless the exit code is 1, 2, 130 or 137.

Words after -- go to PETSc (solver lmvm only), for example: -- -tao_ls_type armijo -tao_monitor

With --checkpoint FOLDER --resume, the same command line first starts the run, and later resumes it. Data, measure,
lambda and method must stay the same; ordering, limits, outputs and the number of ranks may change.

With files instead of a data set, such as a CSV file and --label, the command does all that a first model needs: it
makes shards, holds out a fifth of the rows (the latest with --time, whole groups with --group), searches among features
of the columns (--search, --plain), trains, evaluates the model on the held-out rows, and writes model.h5
and report.html.

examples:
  distsms train payments.csv --label isFraud --time day
  distsms train data/train --measure rocarea --lambda 1e-4 --test data/test
  distsms train data/train --measure f1 --bias --lambda 1e-4
  mpirun -n 32 distsms train data/train --measure prbep --lambda 1e-6 --output model.h5 --trace trace.jsonl
"""

READING = ["label", "positive", "id", "drop", "group", "time", "weight", "weight_file", "keep", "normalize"]
READING += ["categorical", "numeric", "date", "hash", "min_count", "decimal", "thousands", "separator", "missing"]
READING += ["not_missing", "no_header", "names", "missing_group", "zero_based", *SEQUENCES]
"""The options of `distsms shard` on reading files, which `distsms baseline` has, too, by their names in argparse's
namespace."""
OF_SHARD = [*READING, "split", "split_by", "seed"]
"""Those that `distsms train` has for files."""
USUAL_SPLIT = (0.8, 0.2)

FOLDS = (
    "After the training, models are trained on four fifths of the rows each, five times, and score the other fifth:"
    " this takes up to four times as long again."
)
BUT = " and with --l1; for F-beta and the measures at K, which have no smoothed risk, it is bmrm"
OPTIONS = f"""\
{options.DATA}
--measure NAME  What to optimize: {NAMES}
    (default: %(default)s).
{options.WITHIN_GROUPS}
--lambda LAMBDA  The weight lambda of the regularizer lambda/2 ||w||^2. auto chooses it by a quick cross-validation on a
    sample of the rows (default: auto for data sets that were made from CSV or Parquet; 1e-4 for others; with --resume
    that of the checkpoint, or 1e-4).
--l1 L1  The weight of ||w||_1: the regularizer is then the elastic net, and many coefficients are 0 (default: 0).
{options.BIAS}
--test DATA  Evaluate the model at the end on this data set or file (default for files: the rows that are held out).
--output FILE  The model file to write; an older model there is replaced (default: %(default)s).
--trace FILE  Write a JSON line after each evaluation: J, lower_bound, gap, seconds and more.
--certificate FILE  Write a certificate, a number for each row, from which `distsms verify` or others derive the lower
    bound.
--init MODEL  Start from this model, for example that of a larger lambda.
--ignore-new-features  Leave out those columns of --test that the model lacks, instead of refusing them.
--no-check  Do not compare the model with a quick ROCArea model. After a training for a measure other than ROCArea and
    the logistic ones, one is trained on a sample of the rows, in at most a tenth of the run's time or two seconds (and
    more when its loops are first compiled), and a warning says if it is clearly better on rows that trained neither.
--usage  Show the reasons of the plan, and what the run took on each rank: seconds by phase, bytes, memory.
--quiet  Print nothing but errors and warnings on the model.
method:
--c-mu C  Keep the smoothing fixed at mu = C epsilon/D; the paper takes C = 10 (default: it is reduced during the run).
{options.SOLVER.format(of="", but=BUT)}
{options.VECTORS}
{options.MEMORY}
--device  What computes with the rows: cpu, or cuda, the graphics processor of each rank, for rocarea, pauc@BETA, prbep
    and the logistic measures, with the same proof. It needs numba-cuda (pip install 'distsms[cuda]') (default:
    %(default)s).
{options.STOPPING.format(limit="no limit")}
{options.DECISIONS.format(folds=FOLDS)}
long jobs:
--checkpoint FOLDER  Keep the state of the run in this folder, at intervals and at the end.
--checkpoint-every TIME  The time between two checkpoints (default: 300s).
--resume  Continue from the newest state in the folder of --checkpoint; without one, start at the beginning.
--survive  Go on if a rank other than rank 0 dies once the rows are loaded. It needs Open MPI 5, started by mpirun
    --with-ft ulfm.
files instead of a data set:
    The files become shards. A fifth of the rows is held out as test rows unless --split or --test says otherwise. The
    options from --label on are those of `distsms shard`.
--shards FOLDER  Keep the shards, in FOLDER/train and, without --test, FOLDER/test (default: a temporary folder, which
    is removed at the end; training rows are in memory alone if they fit, unless --memory is given). Runs on several
    hosts, and runs with --checkpoint, need it.
--overwrite  Replace the data sets that the folder of --shards has already.
either --search TIME  The time for the search among features and losses: the columns, their bins, crosses, and leaves of
    trees, each trained for the measure and by logistic regression, are compared on folds of the training rows, and the
    best is trained (default: ten times what a training on the columns takes, and at least 30s; no search with fewer
    than 1,000 rows or 50 of a class, and where an option is for a model of the columns).
or --plain  Train a model of the columns, for the measure, without a search, as --search 0 does.
either --report FILE  The report on the test rows (default: report.html beside model.h5, NAME.html beside NAME.h5).
or --no-report  Write no report, which takes about a second.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    others = {
        **options.COMMON,
        "--measure": {"type": measure, "default": "rocarea"},
        "--lambda": {"dest": "lam", "type": _number_or_auto},
        "--l1": {"type": not_negative, "default": 0.0},
        "--output": {"default": "model.h5"},
        "--init": {"dest": "start"},
        "--c-mu": {"type": positive},
        "--device": {"choices": DEVICES, "default": "cpu"},
        "--checkpoint-every": {"default": 300.0},
        "--search": {"type": patience},
        "--plain": {"action": "store_const", "dest": "search", "const": 0.0},
    }
    add_reading(add_options(parser, OPTIONS, others), OF_SHARD)
    parser.set_defaults(check=_check, signals=StopSignals())


def add_reading(group: argparse._ActionsContainer, names: Sequence[str] = READING) -> None:
    """Add options of `distsms shard` to a command that takes files in place of a data set."""
    for action in _shard_parser()._actions:
        if action.dest in names:
            group._add_action(action)


def has_files(args: argparse.Namespace, comm: Communicator, names: Sequence[str]) -> bool:
    """Return whether the data are files. **Collective.** InputError if these options are given, and they are none."""
    from distsms.shards.manifest import MANIFEST
    from distsms.workflow.tables import are_tables

    if are_tables(args.data, comm):
        return True
    usual, path = _shard_parser(), args.data[0]
    for_files = [name for name in names if getattr(args, name, None) != usual.get_default(name)]
    others = ("shards", "report", "no_report", "overwrite", "search")
    for_files += [name for name in others if getattr(args, name, None) not in (None, False)]
    if not for_files:
        return False
    why = f"{path}: is no data set, and no folder of CSV or Parquet files"
    if not os.path.exists(path):
        why = f"{path}: there is no such file or data set"
    elif os.path.exists(os.path.join(path, MANIFEST)):
        leave_out = "Leave the option out; it is one of `distsms shard`, which makes data sets"
        why = f"--{for_files[0].replace('_', '-')} is for files, such as CSV, and {path} is a data set. {leave_out}"
    raise InputError(why, everywhere=True)


def reading_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return how files are read, by the names of the arguments of `distsms.ingest.convert.convert`."""
    return shard.reading_options(args) | {"normalize": args.normalize, "weight_file": args.weight_file}


def _shard_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    shard.add_arguments(parser)
    return parser


def _number_or_auto(text: str) -> float | str:
    """Parse a positive number, or the word auto."""
    try:
        return text if text == "auto" else positive(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; auto chooses it") from error


def _check(args: argparse.Namespace) -> str | None:
    """Return what is wrong with the arguments, beyond what argparse finds itself, or None."""
    if args.resume and not args.checkpoint:
        return "--resume needs --checkpoint FOLDER, where the checkpoints are"
    if args.survive and args.step == "spread":
        return "--survive keeps the solver's vectors on rank 0; leave out --step spread, which puts some on each rank"
    try:
        args.measure.within(args.within_groups)
    except InputError as error:
        return str(error)
    return None


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Load the rows, train the model, write it, and evaluate it. Collective."""
    from distsms.cli.train_text import TrainingNarrator
    from distsms.workflow.train import train

    files = has_files(args, comm, OF_SHARD)
    if files and args.survive:
        raise InputError("--survive is for data sets; make one from these files by `distsms shard`", everywhere=True)
    with contextlib.ExitStack() as closing:
        narrator = TrainingNarrator(args, comm, closing, files)
        trained = train(_request(args, files), comm, narrator, args.signals.wanted)
        narrator.took(trained)
        return trained.run.exit_code


def _request(args: argparse.Namespace, files: bool) -> TrainRequest:
    """Return what the command line asks for; `files` says whether the data are files."""
    from distsms.training.task import Distribution
    from distsms.workflow.requests import Split, TrainRequest

    shares = USUAL_SPLIT if files and args.split is None and args.test is None else args.split
    return options.request_of(
        TrainRequest,
        args,
        measure=args.measure.within(args.within_groups),
        distribution=Distribution(args.ordering, "root" if args.survive else args.step),
        checkpoint_every=args.checkpoint_every if args.checkpoint else None,
        split=Split(shares, args.split_by, args.seed),
        reading=reading_of(args) if files else {},
        check=not args.no_check,
    )
