"""Train a linear model to a proved gap."""

from __future__ import annotations

import argparse
import gc
import sys
from typing import TYPE_CHECKING

from distsms.cli.options import (
    SOLVERS_HELP,
    USUAL_SOLVER,
    add_memory,
    add_stopping,
    add_vectors,
    long_run,
    settings_from,
    solver_for,
    speaker,
)
from distsms.cli.types import duration, measure, positive
from distsms.measures import NAMES
from distsms.optim.solvers.base import SOLVERS

if TYPE_CHECKING:
    from distsms.parallel.communicator import Communicator
    from distsms.parallel.signals import StopSignals
    from distsms.training.fit import TrainingTask

NAME = "train"
USAGE = "DATA [options] [-- PETSC OPTIONS]"
EPILOG = """\
The objective is J(w) = lambda/2 ||w||^2 + R(w), R the exact risk of the measure over all rows of all ranks. The run
ends when best J - lower bound is below --epsilon (or --relative): the model is proved to be that near to the optimum.

exit codes:
  0 proved   1 error   2 usage   3 smoothing floor (--c-mu)   4 --max-evaluations reached   5 no further progress
  6 NaN or infinity in the objective   75 stopped by a signal or --time-limit   130 interrupted twice
  137 a rank was killed, or has stopped answering (--stall-timeout)
With all but 1, 2, 130 and 137 the best model so far is written, with its proved gap.

Words after -- go to PETSc (solver lmvm), for example: -- -tao_ls_type armijo -tao_monitor

A run that is stopped or killed goes on from its last checkpoint: with --checkpoint FOLDER --resume the same line serves
its first start and every other. Evaluations and seconds add up, the trace is continued; data, measure, lambda and
method must be the same, limits, outputs and the number of ranks may change.

examples:
  distsms train data/train --measure rocarea --lambda 1e-4 --test data/test
  distsms train data/train --measure f1 --bias --lambda 1e-4
  mpirun -n 32 distsms train data/train --measure prbep --lambda 1e-6 --output model.h5 --trace trace.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `distsms train` takes."""
    parser.add_argument("data", metavar="DATA", help="a data set made by `distsms shard`")
    parser.add_argument(
        "--measure",
        type=measure,
        default="rocarea",
        metavar="NAME",
        help=f"what to optimize: {NAMES} (%(default)s)",
    )
    parser.add_argument(
        "--lambda", dest="lam", type=positive, default=1e-4, help="weight of the regularizer (%(default)g)"
    )
    parser.add_argument(
        "--bias",
        type=positive,
        nargs="?",
        const=1.0,
        metavar="VALUE",
        help="add a constant feature of this value (1), regularized like any other; ROCArea and PRBEP do not see it",
    )
    parser.add_argument(
        "--test",
        metavar="DATA2",
        help="a data set, or a file that `distsms shard` reads, to evaluate the model on at the end",
    )
    parser.add_argument("--output", default="model.h5", metavar="FILE", help="where the model goes (%(default)s)")
    parser.add_argument(
        "--trace", metavar="FILE", help="one JSON line per evaluation: J, lower_bound, gap, seconds, ..."
    )
    parser.add_argument("--init", metavar="MODEL", help="start from this model's coefficients")
    how = parser.add_argument_group("method")
    how.add_argument(
        "--c-mu",
        type=positive,
        metavar="C",
        help="fixed smoothing, mu = C epsilon/D; the paper takes 10 (default: adaptive)",
    )
    how.add_argument(
        "--solver",
        choices=tuple(SOLVERS),
        help=f"{SOLVERS_HELP} ({USUAL_SOLVER}; bmrm for F-beta and @K, which are not smoothed)",
    )
    add_vectors(how)
    add_memory(how)
    add_stopping(parser, float("inf"))
    keep = parser.add_argument_group("long jobs")
    keep.add_argument(
        "--checkpoint", metavar="FOLDER", help="keep the state of the run there, now and then and at its end"
    )
    keep.add_argument(
        "--checkpoint-every", type=duration, default=300.0, metavar="TIME", help="seconds, or such as 10m (300s)"
    )
    keep.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint; if there is none, start anew"
    )
    parser.add_argument(
        "--ignore-new-features", action="store_true", help="leave out test columns that the model lacks"
    )
    parser.add_argument("--quiet", action="store_true", help="print only errors")
    parser.set_defaults(check=_check)


def _check(args: argparse.Namespace) -> str | None:
    """What is wrong with the command line, beyond what argparse sees."""
    return (
        "--resume needs --checkpoint FOLDER, where the checkpoints are" if args.resume and not args.checkpoint else None
    )


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Load, train, write, evaluate. Collective."""
    with long_run(args, comm) as (signals, _):
        return _run(args, comm, signals)


def _run(args: argparse.Namespace, comm: Communicator, signals: StopSignals) -> int:
    from distsms.cli import train_text as text
    from distsms.inference import inputs, model, scoring
    from distsms.metrics.headline import headline_measures
    from distsms.training.fit import RunOptions, fit

    say = speaker(comm.is_root and not args.quiet)
    solver = solver_for(args, args.solver, args.measure, comm, say)
    with comm.together():  # what can be refused before the data are read; `fit` refuses the rest
        task = _task(args, solver)
        if comm.is_root:
            _check_outputs(args)
    options = RunOptions(args.memory, args.checkpoint, args.resume, args.trace, signals.wanted)
    observer = text.TrainingNarrator(args, task, comm, say)
    trained = fit(task, comm, options, observer)
    observer.close()
    result, saved = trained.result, trained.to_model(comm)
    with comm.together():
        if comm.is_root:
            model.save_somewhere(args.output, saved)
    for line in text.describe_result(args, task, result):
        say(line)
    say(f"  training  {text.describe_measures(saved.info['training'])}   threshold {trained.threshold:.6g}")
    if args.test:
        gc.collect()  # the memory of the training rows is needed for the test rows
        with trained.clock.phase("test"):
            with trained.reading:
                test = scoring.score([saved], args.test, comm, inputs.InputOptions(args.ignore_new_features))
            on_test = headline_measures(task.measure, *test.judged(), trained.threshold, comm)
        saved.info["test"] = on_test
        say(f"  test      {text.describe_measures(on_test)}   ({args.test})")
    usage = trained.usage(comm)
    saved.info["usage"] = trained.usage_info(usage)
    with comm.together():
        if comm.is_root:
            model.save_somewhere(args.output, saved)
    say(text.describe_usage(usage, result.starts, trained.vectors))
    if args.quiet and comm.is_root and result.status.exit_code:
        print(f"distsms train: {result.status.sentence}; gap {result.gap:.3g}", file=sys.stderr)
    comm.barrier()  # a launcher may kill the rest once one rank returns an exit code other than 0
    return result.status.exit_code


def _task(args: argparse.Namespace, solver: str) -> TrainingTask:
    """Return what the command line asks for. Raises InputError if it, or the test data, cannot be used."""
    from distsms.data.shards import dataset
    from distsms.inference import inputs, model
    from distsms.training.fit import TrainingTask

    every = args.checkpoint_every if args.checkpoint else None
    others = {"c_mu": args.c_mu, "solver_options": tuple(args.solver_options), "checkpoint_every": every}
    settings = settings_from(args, args.measure, solver, lam=args.lam, **others)
    manifest = dataset.read_manifest(args.data)
    start = None if args.init is None else model.load(args.init)
    if args.test:
        inputs.check(args.test, inputs.like(manifest), inputs.InputOptions(args.ignore_new_features))
    layout = {"ordering": args.ordering, "step": args.step}
    return TrainingTask(manifest, args.measure, settings, args.bias, start, args.init, **layout)


def _check_outputs(args: argparse.Namespace) -> None:
    """Raise InputError if a file to be written would replace one that is used, or cannot be written. On the root."""
    from distsms.inference import inputs, model

    model.check_replaceable(args.output)
    inputs.check_distinct(args.output, args.data, args.test, args.trace)
    if args.trace:
        inputs.check_distinct(args.trace, args.data, args.test, args.init)
    if args.checkpoint:
        inputs.check_distinct(args.checkpoint, args.data, args.test, args.output, args.trace, args.init)
