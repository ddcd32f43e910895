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
The command minimizes J(w) = lambda/2 ||w||^2 + R(w), where R is the exact convex risk of the measure over all rows of
all ranks. The run ends when the best J found is within --epsilon (or --relative) of a proved lower bound on all J:
then no other model can be better by more than that.

exit codes:
  0 proved   1 error   2 usage   3 smoothing floor (--c-mu)   4 --max-evaluations reached   5 no further progress
  6 NaN or infinity in the objective   75 stopped by a signal or --time-limit   130 interrupted twice
  137 a rank was killed, or has stopped answering (--stall-timeout)

The best model so far is written with its proved gap, unless the exit code is 1, 2, 130 or 137.

Words after -- go to PETSc (solver lmvm only), for example: -- -tao_ls_type armijo -tao_monitor

A run that was stopped or killed can go on from its last checkpoint. With --checkpoint FOLDER --resume the same command
line starts the run and resumes it. Evaluations and seconds add up, and the trace is continued. Data, measure, lambda
and method must be the same; limits, outputs and the number of ranks may change.

examples:
  distsms train data/train --measure rocarea --lambda 1e-4 --test data/test
  distsms train data/train --measure f1 --bias --lambda 1e-4
  mpirun -n 32 distsms train data/train --measure prbep --lambda 1e-6 --output model.h5 --trace trace.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `distsms train` takes."""
    parser.add_argument("data", metavar="DATA", help="A data set made by `distsms shard`.")
    parser.add_argument(
        "--measure",
        type=measure,
        default="rocarea",
        metavar="NAME",
        help=f"What to optimize: {NAMES} (default: %(default)s).",
    )
    parser.add_argument(
        "--lambda",
        metavar="LAMBDA",
        dest="lam",
        type=positive,
        default=1e-4,
        help="The weight lambda of the regularizer lambda/2 ||w||^2 (default: %(default)g).",
    )
    parser.add_argument(
        "--bias",
        type=positive,
        nargs="?",
        const=1.0,
        metavar="VALUE",
        help="Add a constant feature of this value (1 if none is given). Its weight is regularized like any other."
        " ROCArea and PRBEP do not depend on it.",
    )
    parser.add_argument(
        "--test",
        metavar="DATA2",
        help="Evaluate the model at the end on this data set, or on this file of a format that `distsms shard` reads.",
    )
    parser.add_argument(
        "--output",
        default="model.h5",
        metavar="FILE",
        help="The model file to write; an older model there is replaced (default: %(default)s).",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="Write a JSON line after each evaluation, with J, lower_bound, gap, seconds and more.",
    )
    parser.add_argument(
        "--init",
        metavar="MODEL",
        help="Start from the coefficients of this model, for example that of a larger lambda.",
    )
    how = parser.add_argument_group("method")
    how.add_argument(
        "--c-mu",
        type=positive,
        metavar="C",
        help="Keep the smoothing fixed at the paper's mu = C epsilon/D; the paper takes C = 10. Without this option the"
        " smoothing is reduced as the run goes on.",
    )
    how.add_argument(
        "--solver",
        choices=tuple(SOLVERS),
        help=f"The solver. {SOLVERS_HELP}. {USUAL_SOLVER}; for F-beta and the measures at K, which have no smoothed"
        f" risk,"
        " it is bmrm.",
    )
    add_vectors(how)
    add_memory(how)
    add_stopping(parser, float("inf"))
    keep = parser.add_argument_group("long jobs")
    keep.add_argument(
        "--checkpoint", metavar="FOLDER", help="Keep the state of the run in this folder, at intervals and at the end."
    )
    keep.add_argument(
        "--checkpoint-every",
        type=duration,
        default=300.0,
        metavar="TIME",
        help="The time between two checkpoints (default: 300s).",
    )
    keep.add_argument(
        "--resume",
        action="store_true",
        help="Go on from the newest checkpoint in the folder of --checkpoint; start anew if there is none.",
    )
    parser.add_argument(
        "--ignore-new-features",
        action="store_true",
        help="Leave out those columns of --test that the model lacks, instead of refusing them.",
    )
    parser.add_argument("--quiet", action="store_true", help="Print nothing but errors.")
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
    from distsms.matrix.augmented import WithBias
    from distsms.optim.objective import Objective
    from distsms.optim.settings import describe
    from distsms.optim.train import train
    from distsms.parallel.mpi import launched_size
    from distsms.parallel.vectors import make_vectors
    from distsms.training import fit, snapshots
    from distsms.training.trace import Trace, check_trace
    from distsms.utils.timing import Clock
    from distsms.utils.usage import ReadCounter, maximum_usage, resource_usage

    say = speaker(comm.is_root and not args.quiet)
    solver = solver_for(args, args.solver, args.measure, comm, say)
    clock, reading, neighbours = Clock(comm.bytes_moved), ReadCounter(), comm.node_ranks()
    with comm.fail_together():  # everything that can be refused before the data are read
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
    features = WithBias(block.features, args.bias) if args.bias else block.features
    with clock.phase("measure"):
        vectors = make_vectors(args.step, features.shape[1], comm)
    say(rows_held(block, comm, args.memory) + (f"vectors   {vectors.describe()}\n" if comm.size > 1 else ""))

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
    with comm.fail_together():
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
    usage = comm.allgather(resource_usage(clock, comm.bytes_moved(), reading.bytes, evaluations))
    trained.info["usage"] = maximum_usage(usage) | {"outward": vectors.outward, "inward": vectors.inward}
    with comm.fail_together():
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
