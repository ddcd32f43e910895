"""What `distsms train` tells: the problem and the method, how a run ended, and what it took."""

from __future__ import annotations

import argparse
from typing import Any

from distsms.cli import progress
from distsms.data.shards.manifest import Manifest
from distsms.errors import EXIT_REQUEUE
from distsms.measures import SHOWN, at
from distsms.optim.result import Result
from distsms.optim.settings import Settings
from distsms.parallel.vectors import Vectors
from distsms.training.plan import Layout


def problem(args: argparse.Namespace, settings: Settings, manifest: Manifest, size: int) -> list[str]:
    """What is about to be solved, on what, in lines; from the manifest alone."""
    longest = Layout(args.step, size).longest(manifest.p + bool(args.bias))
    history, planes = settings.history_within(longest), settings.planes_within(longest)
    fixed = f"smoothing fixed, c_mu = {settings.c_mu:g}" if settings.c_mu else "smoothing adaptive"
    fixed = fixed if settings.traits.smooth else "the exact risk"
    kept = f"history {history}, {planes} planes" if history else f"{planes} planes"
    up_to = "up to " if planes > settings.planes else ""
    constant = f", a constant feature of {args.bias:g}" if args.bias else ""
    lines = [
        f"data      {args.data}: {manifest.n} rows, {manifest.p} columns, {manifest.nnz} nonzeros,"
        f" {len(manifest.shards)} shard{'s' if len(manifest.shards) > 1 else ''}",
        f"          {manifest.n_pos} positive, {manifest.n_neg} negative rows"
        f" ({100 * manifest.n_pos / manifest.n:.3g} % positive)"
        + (f"; normalized: {how}" if (how := manifest.normalization.kind) != "none" else ""),
        f"problem   {args.measure}, lambda {settings.lam:g}{constant}; gap to prove: {settings.target_in_words()}",
        f"method    {settings.solver}, {up_to}{kept}, {fixed}",
    ]
    if at(args.measure) not in (None, manifest.n_pos):
        lines.append(
            f"warning   K is not n+ = {manifest.n_pos}: a shift of all scores lowers this risk whatever their order,"
            "\n          and a model may be proved and useless. Compare with a prbep model by `distsms evaluate --k`"
            + ("; train without --bias" if args.bias else "")
        )
    return lines


def conclude(say: Any, args: argparse.Namespace, settings: Settings, result: Result) -> None:
    """What was proved, and where it is."""
    say(f"\n{result.status.sentence}{': ' + result.detail if result.detail else ''}")
    share = f"{100 * result.gap / result.J:.3g} % of J" if result.J > 0 else "J is 0"
    say(
        f"  J {result.J:.8f}   lower bound {result.lower_bound:.8f}   gap {result.gap:.3g}"
        f" ({share}; target {settings.target(result.J):.3g})   J at w = 0: {result.J_at_zero:.6g}"
    )
    width = f", final width nu {result.nu:.3g}" if result.nu else ""
    starts = f", in {result.starts} starts" if result.starts > 1 else ""
    say(f"  {result.evaluations} evaluations, {result.seconds:.2f} s{starts}{width}")
    kept = [f"   {name} {path}" for name, path in (("trace", args.trace), ("checkpoint", args.checkpoint)) if path]
    say(f"  model     {args.output}{''.join(kept)}")
    if result.status.exit_code == EXIT_REQUEUE:
        how = "the same line with --resume" if args.checkpoint else f"--init {args.output}, for want of a --checkpoint"
        say(f"  go on     {how}")
    if result.vacuous:
        advice = "A smaller lambda may do better"
        if args.measure == "prbep":
            advice = "Use a model of --measure rocarea, as it is; a smaller lambda may do better, or not"
        say(
            f"  warning   {result.against_zero}: at this lambda the convex risk sees next to nothing in these"
            f"\n            data. {advice}"
        )
    elif result.idle:
        say("  warning   no better than w = 0 yet: it wants more evaluations or, to need fewer, a larger lambda")


def figures(measured: dict[str, float]) -> str:
    """What `fit.measured` found, for people."""
    return "   ".join(f"{SHOWN.get(name, name)} {value:.6f}" for name, value in measured.items())


def took(usage: list[dict[str, Any]], starts: int, vectors: Vectors) -> str:
    """Every rank's seconds, bytes and memory, as tables."""
    evaluations = usage[0]["evaluations"]
    here = f" (this start's, of {evaluations} evaluations)" if starts > 1 else ""
    lines = [f"\nwhat it took{here}", progress.usage_table(usage)]
    if len(usage) > 1:
        lines += [
            f"waiting for other ranks counts as {vectors.outward}, loss and {vectors.inward}\n",
            progress.bytes_table(usage, (vectors.outward, "loss", vectors.inward), max(1, evaluations)),
        ]
    return "\n".join(lines)
