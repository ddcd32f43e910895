"""Train a linear model to a proved gap."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from typing import TYPE_CHECKING, Any

from distsms.cli.options import (
    SOLVERS_HELP,
    USUAL_SOLVER,
    add_memory,
    add_stopping,
    add_vectors,
    fitting,
    long_run,
    rows_held,
    settings_from,
    solver_for,
    speaker,
)
from distsms.cli.types import duration, measure, positive
from distsms.measures import NAMES
from distsms.optim.solvers.base import SOLVERS

if TYPE_CHECKING:
    import contextlib

    from distsms.data.shards.manifest import Manifest
    from distsms.optim.result import State
    from distsms.optim.settings import Settings
    from distsms.parallel.communicator import Communicator
    from distsms.parallel.signals import StopSignals
    from distsms.utils.typing import Floats

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
    with long_run(args, comm) as (signals, held):
        return _run(args, comm, signals, held)


def _run(args: argparse.Namespace, comm: Communicator, signals: StopSignals, held: contextlib.ExitStack) -> int:
    import contextlib
    from pathlib import Path

    from distsms.cli import progress
    from distsms.cli import train_text as words
    from distsms.cli.info import versions
    from distsms.data.shards import dataset
    from distsms.inference import inputs, model, scoring
    from distsms.losses.registry import make_loss
    from distsms.matrix.augmented import WithConstant
    from distsms.optim.objective import Objective
    from distsms.optim.settings import describe
    from distsms.optim.train import train
    from distsms.parallel.communicator import launched_size
    from distsms.parallel.vectors import make_vectors
    from distsms.training import fit, snapshots
    from distsms.training.trace import Trace, check_trace
    from distsms.utils.timing import Clock
    from distsms.utils.usage import ReadCounter, busiest, used

    say = speaker(comm.is_root and not args.quiet)
    solver = solver_for(args, args.solver, args.measure, comm, say)
    clock, reading, neighbours = Clock(comm.moved), ReadCounter(), comm.node_ranks()
    with comm.together():  # everything that can be refused before the data are read
        petsc = tuple(args.solver_options)
        more = {"lam": args.lam, "c_mu": args.c_mu, "solver_options": petsc}
        more["checkpoint_every"] = args.checkpoint_every if args.checkpoint else None
        settings = settings_from(args, args.measure, solver, **more)
        manifest = dataset.read_manifest(args.data)
        start = None if args.init is None else _start(args.init, manifest, args.bias)
        if args.test:
            inputs.check(args.test, inputs.untrained_model(manifest), inputs.InputOptions(args.ignore_new_features))
        if comm.is_root:
            model.check_replaceable(args.output)
            inputs.check_distinct(args.output, args.data, args.test, args.trace)
        if comm.is_root and args.trace:
            inputs.check_distinct(args.trace, args.data, args.test, args.init)
            check_trace(args.trace)
        args.ordering, args.step, layout_words, room = fitting(
            args, args.measure, manifest, settings, comm.size, neighbours, bool(args.bias)
        )
        found, problem = None, _identity(args, settings, manifest)
        if comm.is_root and args.checkpoint:
            inputs.check_distinct(args.checkpoint, args.data, args.test, args.output, args.trace, args.init)
            found, more_words = snapshots.opened(Path(args.checkpoint), problem, args.resume, held)
            layout_words += more_words
        count = found.numbers["count"] if found else 0
        trace = Trace(args.trace if comm.is_root else None, settings.solver, count)
    for one in [*words.problem(args, settings, manifest, comm.size), *layout_words]:
        say(one)
    with clock.phase("load"), reading:
        block = dataset.load(manifest, comm, budget=room(comm.is_root))
    loss = make_loss(args.measure, args.ordering, block.labels, block.weights, comm)
    features = WithConstant(block.features, args.bias) if args.bias else block.features
    with clock.phase("measure"):
        vectors = make_vectors(args.step, features.shape[1], comm)
    say(rows_held(block, comm, args.memory) + (f"vectors   {vectors.in_words()}\n" if comm.size > 1 else ""))

    # A launcher gives its processes a terminal of their own whether or not a person watches: live in one process only.
    stream = sys.stdout if comm.is_root and not args.quiet else None
    course = progress.TrainingProgress(stream, live=sys.stdout.isatty() and not launched_size())

    def watch(state: State, w: Floats) -> None:
        course(state)
        trace(state)

    objective = Objective(features, [loss], comm, signals.wanted, clock, vectors)
    keep = snapshots.CheckpointWriter(Path(args.checkpoint or ""), problem, {"settings": describe(settings)}, vectors)
    with reading if block.features.source else contextlib.nullcontext():
        result = train(objective, settings, start, watch, keep, snapshots.restored(found, vectors))
    vectors.close()
    course.close()
    trace.close()
    evaluations, calls_positive = objective.evaluations, loss.calls_positive
    del objective, loss  # their arrays would lie beside those of the measures
    gc.collect()  # a run and its solver refer to each other
    with clock.phase("threshold"):
        scores, labels = block.counted_scores(features.margins(result.w))
        threshold = fit.threshold_of(calls_positive, scores, labels, comm)
        on_training = fit.measured(args.measure, scores, labels, threshold, comm)
    w, bias = (result.w[:-1], args.bias * float(result.w[-1])) if args.bias else (result.w, 0.0)
    layout, came = (args.ordering, args.step, comm.size), (bias, threshold, on_training)
    about = fit.info(args.measure, settings, result, layout, *came, fit.origin(manifest, args.data), versions())
    trained = model.from_training(w, {**about, "trace": args.trace and os.path.abspath(args.trace)}, manifest)
    with comm.together():
        if comm.is_root:
            model.save_or_rescue(args.output, trained)
    words.conclude(say, args, settings, result)
    say(f"  training  {words.figures(on_training)}   threshold {threshold:.6g}")
    if args.test:
        del block, features, scores, labels  # their room is the test rows'
        gc.collect()
        with clock.phase("test"):
            with reading:
                test = scoring.score([trained], args.test, comm, inputs.InputOptions(args.ignore_new_features))
            on_test = trained.info["test"] = fit.measured(args.measure, *test.counted_scores(), threshold, comm)
        say(f"  test      {words.figures(on_test)}   ({args.test})")
    usage = comm.allgather(used(clock, comm.moved(), reading.bytes, evaluations))
    trained.info["usage"] = busiest(usage) | {"outward": vectors.outward, "inward": vectors.inward}
    with comm.together():
        if comm.is_root:
            model.save_or_rescue(args.output, trained)
    say(words.took(usage, result.starts, vectors))
    if args.quiet and comm.is_root and result.status.exit_code:
        print(f"distsms train: {result.status.sentence}; gap {result.gap:.3g}", file=sys.stderr)
    comm.barrier()  # a launcher may kill the rest once one rank returns an exit code other than 0
    return result.status.exit_code


def _start(path: str, manifest: Manifest, bias: float | None) -> Floats:
    from distsms.inference import model
    from distsms.training import fit

    return fit.start_from(model.load(path), manifest.p, bias, path, manifest.normalization)


def _identity(args: argparse.Namespace, settings: Settings, manifest: Manifest) -> dict[str, Any]:
    """What may not differ between a checkpoint and the run that goes on from it, ready for JSON."""
    names = ("solver", "c_mu", "scaling", "zero_plane")
    return {
        "data": manifest.fingerprint,
        "measure": args.measure,
        "lambda": settings.lam,
        "bias": args.bias,
        **{name: getattr(settings, name) for name in names},
    }
