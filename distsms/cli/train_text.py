"""What `distsms train` prints: the problem and the method, how a run ended, and what it took."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.errors import EXIT_REQUEUE, InputError
from distsms.base.formatting import format_bytes, format_objective, format_seconds
from distsms.base.measures import display_name
from distsms.base.typing import Floats
from distsms.cli import progress, shard_text
from distsms.cli.options import rows_held
from distsms.cli.terminal import Speaker, fold, is_watched, print_warning
from distsms.losses.base import WIDE
from distsms.models.decision_text import describe
from distsms.optim.settings import usual_pairs
from distsms.shards.dataset import DataBlock
from distsms.shards.labels import class_names
from distsms.shards.manifest import Manifest
from distsms.shards.row_statistics import doubles_warning
from distsms.training.plan import Layout, Plan
from distsms.training.task import TrainingTask
from distsms.workflow.tables import DataSets
from distsms.workflow.train import Trained, TrainObserver
from distsms.workflow.trained_model import TrainedModel
from distsms.workflow.verdict import AreaOnTest

SHORT = 0.1
"""A certificate that falls short of the proved bound by more than this share of the gap to prove gets a warning."""

if TYPE_CHECKING:
    from distsms.models.inputs import InputOptions
    from distsms.optim.result import Result, State
    from distsms.parallel.vectors import Vectors


def describe_task(name: str, task: TrainingTask, manifest: Manifest, plan: Plan, brief: bool = False) -> list[str]:
    """Return lines that describe the data, which users know by `name`, the problem and, unless `brief`, the method."""
    settings, bias = task.settings, task.bias
    longest = Layout(plan.distribution.step, plan.ranks).longest(manifest.p + bool(bias))
    planes = settings.planes_within(longest)
    pairs = usual_pairs(manifest.p + bool(bias), manifest.n, task.measure.family.history)
    history, usual = settings.history_within(longest, pairs), settings.history_within(1, pairs)
    smoothing = f"smoothing fixed, c_mu = {settings.c_mu:g}" if settings.c_mu else "smoothing adaptive"
    smoothing = "no smoothing, since the loss is smooth" if task.measure.family.smooth_by_itself else smoothing
    smoothing = smoothing if settings.traits.smooth else "the exact risk"
    kept = f"history {history}, {planes} planes" if history else f"{planes} planes"
    if history and (history, planes) != (usual, settings.planes):
        kept += f" (not {usual} and {settings.planes}: --vector-memory {format_bytes(settings.vector_bytes)})"
    up_to = "up to " if planes > settings.planes else ""
    l1 = f", l1 {settings.l1:g}" if settings.l1 else ""
    constant = f", a constant feature of {bias:g}" if bias else ""
    kind = manifest.normalization.kind
    names = class_names(manifest.label_map)
    labels = {sign: f" ({name})" if brief and name else "" for sign, name in names.items()}
    shards = f", {manifest.describe_entries()}, {len(manifest.shards)} shard{'s' if len(manifest.shards) > 1 else ''}"
    lines = [
        f"data      {name}: {manifest.n} {'training ' * brief}rows, {manifest.p} columns{'' if brief else shards}",
        f"          {manifest.n_pos} positive{labels['+1']}, {manifest.n_neg} negative{labels['-1']} rows"
        f" ({100 * manifest.n_pos / manifest.n:.3g} % positive)" + (f"; normalized: {kind}" if kind != "none" else ""),
        f"problem   {task.measure}, lambda {settings.lam:g}{l1}{constant}; gap to prove: {settings.describe_target()}",
    ]
    if not brief:
        lines.append(f"method    {settings.solver}, {up_to}{kept}, {smoothing}")
    if manifest.table and (many := manifest.table.very_many()):
        remedy = "--min-count N puts those of few rows together, and --drop COLUMN leaves a column out"
        lines.append(
            f"note      {'; '.join(many)}. Few rows have each value, which a model may know by heart; {remedy}"
        )
    if warning := doubles_warning(manifest):
        lines.append(f"warning   {warning}")
    if task.measure.k not in (None, manifest.n_pos):
        lines.append(
            f"warning   K differs from the number of positive rows, {manifest.n_pos}: the model may be useless although"
            " its gap is proved, since adding the same number to all scores can lower its risk. Compare it with models"
            " for rocarea and prbep by `distsms evaluate --k K`" + ("; train without --bias" if bias else "")
        )
    return lines


class TrainingNarrator(shard_text.ShardNarrator, TrainObserver):
    """Prints what a training tells; `closing` gets what is to be closed at the end, also after an error."""

    def __init__(
        self, args: argparse.Namespace, comm: Communicator, closing: contextlib.ExitStack, files: bool = False
    ) -> None:
        super().__init__(comm.is_root and not args.quiet)
        self._args, self._comm, self._closing = args, comm, closing
        self._converting = closing.enter_context(contextlib.ExitStack())
        if files:  # while shards are made, nothing looks for those signals that later stop the training cleanly
            self._converting.enter_context(args.signals.ending_at_once())
        self._report: str | None = None  # the one that is to be written, on the root
        self._say = Speaker(comm.is_root and not args.quiet)
        self._memory, self._begun = args.memory, time.perf_counter()
        self._progress = progress.TrainingProgress(None)
        self._sets: DataSets | None = None
        self._task: TrainingTask

    @property
    def _brief(self) -> bool:
        return self._sets is not None and not self._args.usage

    def opening(self, files: Sequence[str]) -> None:
        self._report = None if self._args.no_report else check_report(self._args, files)

    def began(self, sets: DataSets | None) -> None:
        self._converting.close()
        self.close()
        self._sets = sets
        if sets is not None and sets.made and self._comm.is_root:
            self._show(sets)
        self._closing.enter_context(self._args.signals)
        self._closing.callback(self._say.close)
        if self._args.survive and self._comm.size == 1:
            self.noted("survive", "a single process has no others to go on; start several by mpirun --with-ft ulfm")

    def _show(self, sets: DataSets) -> None:
        parts = [part for part in (sets.training, sets.held_out) if part is not None]
        for part in parts if not self._brief else ():
            shard_text.show_summary(part, self._say)
        shard_text.show_split(parts, self._say, self._brief)
        if not self._brief:
            shard_text.show_rate(sets.training, time.perf_counter() - self._begun, self._comm, self._say)

    def noted(self, kind: str, text: str) -> None:
        self._say("\n" * (kind == "folds") + f"{kind:<9} {text}")

    def ready(self, task: TrainingTask) -> None:
        self._task = task

    def planned(self, plan: Plan, notes: list[str]) -> None:
        assert self._task.manifest is not None
        args, manifest, brief = self._args, self._task.manifest, self._brief
        directory = os.fspath(manifest.directory)
        name = args.data[0] if self._sets is None else self._sets.called.get(directory, directory)
        task_lines = describe_task(name, self._task, manifest, plan, brief)
        self._say("\n".join([*task_lines, *(plan.on_device if brief else plan.describe(args.usage)), *notes]))
        if plan.allowed is not None and args.memory is None:
            as_with = f"{format_bytes(plan.allowed)}, as with --memory {plan.allowed / 2**20:.0f}MiB"
            text = f"not all rows fit, so each rank takes at most {as_with}; others are read from temporary shards"
            self.noted("memory", f"{text} on each pass")
        self._memory = plan.allowed

    def loaded(self, block: DataBlock, vectors: Vectors) -> None:
        lines = rows_held(block, self._comm, self._memory, self._args.usage)
        lines += [f"vectors   {vectors.describe()}"] * (self._args.usage and self._comm.size > 1)
        self._say("\n".join([*lines, ""]))
        stream = sys.stdout if self._comm.is_root and not self._args.quiet else None
        self._progress = progress.TrainingProgress(stream, is_watched(sys.stdout), self._brief)
        self._closing.callback(self._progress.stop)

    def evaluated(self, state: State, w: Floats) -> None:
        self._progress(state)

    def minimized(self) -> None:
        self._progress.close()

    def trained(self, trained: Trained) -> None:
        self._args.written = self._args.output
        run = trained.run
        lines = describe_result(self._args, self._task, run.result)
        lines += describe_certificate(self._args.certificate, run)
        lines += [f"  survived  {survived}" for survived in run.fit.rows.survived]
        measures = describe_measures(trained.model.info["training"])
        lines += [f"  training  {measures}   threshold {run.threshold:.6g}"]
        if run.scores.means:
            mean, share = (100 * run.scores.means["by_weight"][name] for name in ("mean", "share"))
            lines.append(f"            mean probability {mean:.3g} %, share of positives {share:.3g} %")
        self._say("\n".join([*lines, *describe(run.decided or {})]))

    def tested(self, trained: Trained) -> None:
        assert trained.test is not None and trained.area is not None
        test = self._args.test if self._sets is None else self._sets.test
        name = "" if self._sets is not None and self._sets.temporary else f"   ({test})"
        self._say(f"  test      {describe_measures(trained.test)}{name}")
        self._say(f"            {describe_area(trained.area)}")

    def ended(self, trained: Trained) -> None:
        args, run = self._args, trained.run
        for warning in run.warnings():
            self._say.warn(warning, "red" if run.vacuous else "yellow")
        self._say.close()
        if args.quiet and self._comm.is_root:
            status = run.result.status
            if status.exit_code:
                print(fold(f"distsms train: {status.sentence}; gap {run.result.gap:.3g}"), file=sys.stderr)
            for warning in trained.warnings:
                print_warning(warning, args.program)
        self._closing.close()
        report = self._comm.bcast(self._report)
        if report is not None and self._sets is not None and run.exit_code != EXIT_REQUEUE:
            write_report(args, self._sets, trained.reading, report, self._comm)

    def took(self, trained: Trained) -> None:
        """Print what the whole run took, when nothing is left to do."""
        run = trained.run
        self._say(describe_usage(trained.usage, run.result.starts, run.fit.vectors, self._args.usage))


def describe_result(args: argparse.Namespace, task: TrainingTask, result: Result) -> list[str]:
    """Return lines on how the run ended, what was proved, where the model is, and how to continue."""
    share = f"{100 * result.gap / result.J:.3g} % of J" if result.J else "J is 0"
    width = f", final width nu {result.nu:.3g}" if result.nu else ""
    starts = f", in {result.starts} starts" if result.starts > 1 else ""
    files = {"model": args.output, "trace": args.trace, "checkpoint": args.checkpoint}
    nonzeros = f"  nonzeros  {np.count_nonzero(result.w[: task.data.p])} of {task.data.p} coefficients"
    J, lower_bound = (format_objective(value) for value in (result.J, result.lower_bound))
    lines = [
        f"\n{result.status.sentence}{': ' + result.detail if result.detail else ''}",
        f"  J {J}   lower bound {lower_bound}   J at w = 0: {result.J_at_zero:.6g}",
        f"  gap {result.gap:.3g} ({share}; target {task.settings.target(result.J):.3g})",
        f"  {result.evaluations} evaluations, {result.seconds:.2f} s{starts}{width}",
        *describe_interval(result, args.usage),
        *([nonzeros] if task.settings.l1 else []),
        *(f"  {name:<9} {path}" for name, path in files.items() if path),
    ]
    if result.status.exit_code == EXIT_REQUEUE:
        without = f"--init {args.output}, since there is no --checkpoint"
        lines.append(f"  continue  {'the same line with --resume' if args.checkpoint else without}")
    return lines


def describe_interval(result: Result, whole: bool) -> list[str]:
    """Return a line on the interval of J, if `whole` or if it was too wide, and on how evaluations were made."""
    if not ((result.ways or result.width) and (whole or WIDE in (result.ways or {}))):
        return []
    ways = ", ".join(f"{count} {way}" for way, count in (result.ways or {}).items())
    J = f"the upper end of an interval of width {result.width:.2g}" if result.width else "exact"
    return [f"  bins      J is {J}" + f"; evaluations: {ways}" * bool(ways)]


def describe_certificate(path: str | None, run: TrainedModel) -> list[str]:
    """Return lines on what a certificate proves by itself, and what it took."""
    if path is None:
        return []
    if (certified := run.fit.certified) is None:
        return [f"  proof     {path} was not written, since the run did not come to its end"]
    bound = format_objective(certified["bound"])
    took = f"{certified['points']} evaluation{'s' * (certified['points'] != 1)} again, {certified['seconds']:.2f} s"
    lines = [f"  proof     {path}, which proves the lower bound {bound} by itself; {took}"]
    lost, target = run.result.lower_bound - certified["bound"], run.task.settings.target(run.result.J)
    if lost > SHORT * target:
        why = "single precision does not suffice, or not all points of the mixture fitted into --vector-memory"
        lines.append(f"warning   the certificate proves {lost:.2g} less than the run did: {why}")
    return lines


def describe_measures(measures: dict[str, float]) -> str:
    """Return what `summary_measures` computed, in one line."""
    return "   ".join(f"{display_name(name)} {value:.6f}" for name, value in measures.items())


def describe_area(area: AreaOnTest) -> str:
    """Return how sure the ROCArea on the test rows is, and on how many rows of each class it was measured."""
    rows = f"{area.n_pos} positive and {area.n_neg} negative rows"
    if area.measure.within_groups:
        rows += f", in groups that say as much as {area.effective:.4g} of equal weight"
    if area.area.why:
        return rows
    return f"{rows}; {area.name} {area.area.low:.3f} to {area.area.high:.3f} (95 %)"


def describe_usage(usage: list[dict[str, Any]], starts: int, vectors: Vectors, whole: bool) -> str:
    """Return what the run took: if `whole`, tables of seconds, bytes and memory of each rank; if not, one line."""
    if not whole:
        return progress.usage_line(usage)
    evaluations = usage[0]["evaluations"]
    here = f" (this start's, of {evaluations} evaluations)" if starts > 1 else ""
    lines = [f"\nwhat it took{here}", progress.usage_table(usage)]
    if len(usage) > 1:
        lines += [
            f"waiting for other ranks counts as {vectors.outward}, loss and {vectors.inward}\n",
            progress.bytes_table(usage, (vectors.outward, "loss", vectors.inward), max(1, evaluations)),
        ]
    return "\n".join(lines)


def write_report(
    args: argparse.Namespace, sets: DataSets, reading: InputOptions, report: str, comm: Communicator
) -> None:
    """Write the report on the test rows. **Collective.**"""
    from distsms.models.evaluation import EvaluationOptions
    from distsms.page.report import report as write
    from distsms.workflow.requests import ReportRequest

    assert sets.test is not None
    test, begun = os.fspath(sets.test), time.perf_counter()
    called = sets.called.get(test, test)
    try:
        write(ReportRequest(args.output, test, EvaluationOptions(), report, reading=reading, called=called), comm)
    except InputError as error:
        raise InputError(f"{error}; the model is complete: {args.output}", error.everywhere) from error
    if comm.is_root and not args.quiet:
        seconds = format_seconds(time.perf_counter() - begun)
        print(f"\nmodel: {args.output}   report on the test rows: {report} ({seconds})", flush=True)


def check_report(args: argparse.Namespace, names: Sequence[str]) -> str | None:
    """Return the report to write, or None. Raises InputError if it cannot be written. On the root."""
    from distsms.models import inputs
    from distsms.workflow.report import check_page

    saved = Path(args.output)  # the reports of several models in a folder differ
    path = args.report or str(saved.with_name("report.html" if saved.name == "model.h5" else f"{saved.stem}.html"))
    if importlib.util.find_spec("matplotlib") is None:
        if args.report:
            raise InputError(f"{path}: a report needs matplotlib: pip install 'distsms[plot]'")
        if not args.quiet:
            print("report    none, since it needs matplotlib: pip install 'distsms[plot]'")
        return None
    inputs.check_distinct(path, args.output, args.test, args.trace, args.certificate, *names)
    check_page(path)
    return path
