"""The command `distsms train`."""

from __future__ import annotations

import argparse
import gc
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from distsms.cli import train_files, train_lambda
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
    settings_from,
    solver_for,
    speaker,
)
from distsms.cli.path_features import labels_warning
from distsms.cli.terminal import fold
from distsms.cli.types import duration, measure, not_negative, positive
from distsms.measures import NAMES
from distsms.optim.solvers.base import SOLVERS

if TYPE_CHECKING:
    from contextlib import ExitStack

    from distsms.inference import inputs
    from distsms.inference.model import Model
    from distsms.parallel.communicator import Communicator
    from distsms.parallel.signals import StopSignals
    from distsms.training.task import TrainingTask
    from distsms.training.verdict import AreaOnTest

USAGE = "DATA|FILE... [options] [-- PETSC OPTIONS]"
EPILOG = """\
The command minimizes J(w) = lambda/2 ||w||^2 + R(w), to which --l1 adds L1 ||w||_1, where R is the exact convex risk of
the measure over all rows of all ranks. The run ends when the difference between the best J found and a proved lower
bound on the minimum of J (the gap) is at most --epsilon (or --relative): then the J of no other linear model is smaller
by more than the gap.

exit codes:
  0 proved   1 error   2 usage   3 smoothing floor (--c-mu)   4 --max-evaluations reached   5 no further progress
  6 NaN or infinity in the objective   8 proved, but the model ranks no better than chance
  75 stopped by a signal or --time-limit   130 interrupted twice
  137 a rank was killed, or has stopped answering (--stall-timeout); with --survive, only if it was rank 0

The best model so far is written with its proved gap, unless the exit code is 1, 2, 130 or 137.

Words after -- go to PETSc (solver lmvm only), for example: -- -tao_ls_type armijo -tao_monitor

A run that was stopped or killed can continue from its last checkpoint. With --checkpoint FOLDER --resume, the same
command line first starts the run, and later resumes it. Evaluations and seconds are counted over all starts, and the
trace is continued. Data, measure, lambda and method must stay the same; limits, outputs and the number of ranks may
change.

With files instead of a data set, such as a CSV file and --label, the command does all that a first model needs: it
makes shards in a temporary folder, holds out a fifth of the rows (the latest with --time, whole groups with --group),
trains, evaluates the model on the held-out rows, and writes model.h5 and report.html.

examples:
  distsms train payments.csv --label isFraud --time day
  distsms train data/train --measure rocarea --lambda 1e-4 --test data/test
  distsms train data/train --measure f1 --bias --lambda 1e-4
  mpirun -n 32 distsms train data/train --measure prbep --lambda 1e-6 --output model.h5 --trace trace.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `distsms train`."""
    parser.add_argument(
        "data",
        nargs="+",
        metavar="DATA|FILE",
        help="A data set made by `distsms shard`; or files of a format that it reads, folders of tables, or patterns"
        " such as 'day-*.csv'.",
    )
    parser.add_argument(
        "--measure",
        type=measure,
        default="rocarea",
        metavar="NAME",
        help=f"What to optimize: {NAMES} (default: %(default)s).",
    )
    add_within_groups(parser)
    parser.add_argument(
        "--lambda",
        metavar="LAMBDA",
        dest="lam",
        type=train_lambda.number_or_auto,
        help="The weight lambda of the regularizer lambda/2 ||w||^2. auto chooses it before the training, by a quick"
        " cross-validation on a sample of the rows (default: auto for data sets that were made from CSV or Parquet;"
        " 1e-4 for others; with --resume that of the checkpoint, or 1e-4).",
    )
    parser.add_argument(
        "--l1",
        metavar="L1",
        type=not_negative,
        default=0.0,
        help="The weight of ||w||_1. With a positive number the regularizer is the elastic net L1 ||w||_1 + lambda/2"
        " ||w||^2, and many coefficients of the model are exactly 0 (default: 0).",
    )
    add_bias(parser)
    parser.add_argument(
        "--test",
        metavar="DATA",
        help="Evaluate the model at the end on this data set, or on this file of a format that `distsms shard` reads"
        " (default for files: the rows that are held out).",
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
        " smoothing is reduced during the run.",
    )
    how.add_argument(
        "--solver",
        choices=tuple(SOLVERS),
        help=f"The solver. {SOLVERS_HELP}. {USUAL_SOLVER}; for F-beta and the measures at K, which have no smoothed "
        "risk, it is bmrm.",
    )
    add_vectors(how)
    add_memory(how)
    add_stopping(parser, float("inf"))
    add_decisions(parser)
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
        help="Continue from the newest checkpoint in the folder of --checkpoint; without one, start at the beginning.",
    )
    keep.add_argument(
        "--survive",
        action="store_true",
        help="Go on if a rank other than rank 0 dies once the rows are loaded: the others read the rows again, and"
        " repeat the evaluation. This needs Open MPI 5, started by mpirun --with-ft ulfm.",
    )
    parser.add_argument(
        "--ignore-new-features",
        action="store_true",
        help="Leave out those columns of --test that the model lacks, instead of refusing them.",
    )
    train_files.add_arguments(parser)
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="Do not compare the model with a quick ROCArea model. After a training for another measure than rocarea,"
        " such a model is trained on a sample of the rows, in at most a tenth of the run's time or two seconds, and a"
        " warning says if it is clearly better on rows that trained neither: those of --test, or a part of the sample."
        " The first time, compiling its loops takes some seconds more.",
    )
    parser.add_argument(
        "--usage",
        action="store_true",
        help="Show the reasons of the plan, and what the run took on each rank: seconds by phase, bytes, memory.",
    )
    parser.add_argument("--quiet", action="store_true", help="Print nothing but errors and warnings on the model.")
    parser.set_defaults(check=_check, shown={}, brief=False, temporary=False, same_rows=False)


def _check(args: argparse.Namespace) -> str | None:
    """Return what is wrong with the arguments, beyond what argparse finds itself, or None."""
    if args.resume and not args.checkpoint:
        return "--resume needs --checkpoint FOLDER, where the checkpoints are"
    if args.survive:
        if args.step == "spread":
            return (
                "--survive keeps the solver's vectors on rank 0; leave out --step spread, which puts some on each rank"
            )
        args.step = "root"
    return put_within_groups(args)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Load the rows, train the model, write it, and evaluate it. Collective."""
    from distsms.data.file_names import are_files
    from distsms.utils.timing import Clock

    args.warnings = []  # those on the data, which are printed before the training
    args.clock = Clock(comm.bytes_moved)  # of what comes before the training itself
    if not comm.bcast(are_files(args.data)):
        train_files.check_data_set(args)
        (args.data,) = args.data
        return _watched(args, comm)
    with train_files.as_data_sets(args, comm) as files:
        code = _watched(args, comm)
        files.finish(args, code, comm)
    return code


def _watched(args: argparse.Namespace, comm: Communicator) -> int:
    with long_run(args, comm) as (signals, held):
        return _run(args, comm, signals, held)


def _run(args: argparse.Namespace, comm: Communicator, signals: StopSignals, held: ExitStack) -> int:
    from distsms.cli import train_text as text
    from distsms.inference import model, scoring
    from distsms.inference.decision_text import describe
    from distsms.metrics.headline import headline_measures
    from distsms.selection import rocarea_check
    from distsms.selection.decisions import Decisions
    from distsms.training.fit import fit
    from distsms.training.task import RunOptions

    say = speaker(comm.is_root and not args.quiet)
    held.callback(say.close)
    if args.survive and comm.size == 1:
        say("survive   a single process has no others that could go on; start several by mpirun --with-ft ulfm")
    solver = solver_for(args, args.solver, args.measure, comm, say)
    stored = None
    if args.resume and args.lam in (None, "auto"):
        stored = comm.bcast(train_lambda.of_checkpoint(Path(args.checkpoint)) if comm.is_root else None)
        args.lam = stored or args.lam
    hint = args.lam is None
    with comm.fail_together():  # all checks that can be made before the data are read; `fit` makes the others
        decide = Decisions.wanted(args.at, args.calibrate)
        task = _task(args, solver)
        if comm.is_root:
            _check_outputs(args)
        by_folds = decide is not None or args.lam == "auto"
        known = labels_warning(task.manifest) if by_folds and task.manifest is not None else ""
        args.same_rows = args.same_rows or train_files.same_rows(task.manifest, args.test)
    args.warnings += filter(None, [known])
    for warning in args.warnings:
        say.warn(warning)
    chosen = None
    if args.lam == "auto":
        with args.clock.phase("lambda"):
            chosen = train_lambda.choose(task, args.memory, comm, signals.wanted, say)
        task = replace(task, settings=replace(task.settings, lam=chosen.lam))
    elif stored:
        say(f"lambda    {stored:g}, that of the run that is resumed")
    elif hint:
        say(f"lambda    {task.settings.lam:g}, the default; --lambda auto chooses it by a quick cross-validation")
    options = RunOptions(
        args.memory,
        args.checkpoint,
        args.resume,
        args.trace,
        signals.wanted,
        check=None if args.no_check else rocarea_check.check,
        hold_out=not args.test,
        decide=decide,
        temporary=args.temporary,
    )
    observer = text.TrainingNarrator(args, task, comm, say)
    trained = fit(task, comm, options, observer)
    trained.clock.begin_with(args.clock)
    observer.close()
    if chosen:
        trained.unseen, trained.automatic, trained.on_folds = chosen.chance, True, chosen.on_folds
    result = trained.result

    def save(saved: Model) -> None:
        with comm.fail_together():
            if comm.is_root:
                model.save_or_rescue(args.output, saved)

    def first_save() -> Model:
        saved = trained.to_model(comm)
        if chosen:
            saved.info["auto_lambda"] = chosen.as_json()
        save(saved)
        return saved

    saved = comm.surviving(first_save)
    args.written = args.output
    for line in text.describe_result(args, task, result):
        say(line)
    for survived in trained.survived:
        say(f"  survived  {survived}")
    say(f"  training  {text.describe_measures(saved.info['training'])}   threshold {trained.threshold:.6g}")
    if trained.means:
        say(f"            {text.describe_means(trained.means['by_weight'])}")
    for line in describe(trained.decided or {}):
        say(line)
    if args.test:
        test_name = args.shown.get(args.test, args.test)
        gc.collect()  # the memory of the training rows is needed for the test rows

        def judge() -> tuple[dict[str, float], AreaOnTest]:
            quick = trained.rocarea_model(saved)
            with trained.reading:
                judged = [saved, *([quick] if quick else [])]
                test = scoring.score(judged, args.test, comm, _test_options(args))
            scores, labels, weights = test.counted_scores()
            groups = test.counted_groups
            on_test = headline_measures(task.measure, scores, labels, trained.threshold, comm, weights, groups)
            area = trained.judge_test(scores, labels, comm, weights, groups, args.same_rows)
            if quick and not area.training_rows:
                trained.compare(test, test_name, comm)
            return on_test, area

        with trained.clock.phase("test"):
            on_test, area = comm.surviving(judge)
        saved.info.update(trained.findings())
        saved.info.update(test=on_test, test_rows=area.as_json())
        say(f"  test      {text.describe_measures(on_test)}" + ("" if args.shown else f"   ({test_name})"))
        say(f"            {text.describe_area(area)}")
    for warning in trained.warnings():
        say.warn(warning, "red" if trained.vacuous else "yellow")
    usage = comm.surviving(lambda: trained.usage(comm))
    saved.info["usage"] = trained.usage_info(usage)
    comm.surviving(lambda: save(saved))
    say(text.describe_usage(usage, result.starts, trained.vectors, args.usage))
    say.close()
    if args.quiet and comm.is_root:
        if result.status.exit_code:
            print(fold(f"distsms train: {result.status.sentence}; gap {result.gap:.3g}"), file=sys.stderr)
        for warning in (*args.warnings, *trained.warnings()):
            print(fold(f"distsms train: warning: {warning}"), file=sys.stderr)
    return trained.exit_code


def _task(args: argparse.Namespace, solver: str) -> TrainingTask:
    """Return what the command line asks for. Raises InputError if it, or the test data, cannot be used."""
    from distsms.data.shards import dataset
    from distsms.inference import inputs, model
    from distsms.selection.lambda_search import DEFAULT
    from distsms.training.task import TrainingTask

    every = args.checkpoint_every if args.checkpoint else None
    others = {"c_mu": args.c_mu, "solver_options": tuple(args.solver_options), "checkpoint_every": every}
    manifest = dataset.read_manifest(args.data)
    if args.lam is None:
        args.lam = "auto" if train_lambda.made_from_table(manifest) and not args.resume else DEFAULT
    lam = DEFAULT if args.lam == "auto" else args.lam
    settings = settings_from(args, args.measure, solver, lam=lam, **others)
    start = None if args.init is None else model.load(args.init)
    if args.test:
        inputs.check(args.test, inputs.untrained_model(manifest), _test_options(args))
    layout = {"ordering": args.ordering, "step": args.step}
    return TrainingTask(manifest, args.measure, settings, args.measure.bias(args.bias), start, args.init, **layout)


def _test_options(args: argparse.Namespace) -> inputs.InputOptions:
    """Return how test rows are read: files have weights and groups in the same columns as the training rows."""
    from distsms.data.file_names import is_data_set
    from distsms.data.shards import dataset
    from distsms.inference import inputs

    if is_data_set(args.test):
        return inputs.InputOptions(args.ignore_new_features, groups=args.measure.within_groups is not None)
    known = dataset.read_manifest(args.data).group if args.measure.within_groups else None
    return inputs.InputOptions(args.ignore_new_features, weight=args.weight, group=known["column"] if known else None)


def _check_outputs(args: argparse.Namespace) -> None:
    """Raise InputError if an output file cannot be written, or is also an input or another output. On the root."""
    from distsms.inference import inputs, model

    model.check_replaceable(args.output)
    inputs.check_distinct(args.output, args.data, args.test, args.trace)
    if args.trace:
        inputs.check_distinct(args.trace, args.data, args.test, args.init)
    if args.checkpoint:
        inputs.check_distinct(args.checkpoint, args.data, args.test, args.output, args.trace, args.init)
