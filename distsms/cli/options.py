"""What the commands that train, `train` and `compare`, have in common: options, settings, memory, words."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distsms.cli.types import add_threads, count, duration, memory, positive

if TYPE_CHECKING:
    from distsms.manifest import Manifest
    from distsms.settings import Settings

SOLVERS_HELP = (
    "lmvm: PETSc/TAO's LMVM; lbfgs: SciPy's L-BFGS, where there is no PETSc; agm: Nesterov's accelerated gradient; "
    "bmrm: cutting planes on the exact risk; bmrm-linesearch: with two planes and no quadratic program"
)


def add_stopping(parser: argparse.ArgumentParser, time_limit: float) -> None:
    """What ends a run, of `train` and of each cell of `compare`."""
    stop = parser.add_argument_group("stopping")
    stop.add_argument("--epsilon", type=positive, help="gap to prove, absolute on J (1e-3, unless --relative is given)")
    stop.add_argument(
        "--relative",
        type=positive,
        metavar="SHARE",
        help="gap to prove as a share of J, 0.01 being 1 %%; with both, the larger will do",
    )
    stop.add_argument(
        "--max-evaluations", type=count, default=10_000, metavar="N", help="of J and its gradient (%(default)s)"
    )
    stop.add_argument(
        "--time-limit",
        type=duration,
        default=time_limit,
        metavar="TIME",
        help="such as 90s, 55m or 1.5h; then stop in order"
        + ("" if time_limit == float("inf") else f" (for each run; {time_limit:g} s)"),
    )


def add_vectors(how: argparse._ArgumentGroup) -> None:
    """How the margins are ordered, and what the solver and the proof keep."""
    how.add_argument(
        "--ordering",
        choices=("auto", "gather", "exchange"),
        default="auto",
        help="how the margins are brought into global order: on the root, or without n numbers on any rank; auto takes"
        " what costs less (%(default)s)",
    )
    how.add_argument(
        "--history", type=count, default=50, metavar="N", help="pairs in the solver's memory (%(default)s)"
    )
    how.add_argument(
        "--planes",
        type=count,
        default=40,
        metavar="N",
        help="planes in the proof of the gap (%(default)s); bmrm keeps all",
    )
    how.add_argument(
        "--scaling",
        type=float,
        default=0.125,
        metavar="S",
        help="lmvm works on w_j m_j^S, m_j the mean square of column j; 0: on w itself (%(default)s)",
    )
    how.add_argument(
        "--no-zero-plane", action="store_true", help="do not use R >= 0 in the proof, nor in bmrm's model of R"
    )
    how.add_argument(
        "--vector-memory",
        type=memory,
        default=2**31,
        metavar="SIZE",
        help="history and planes on the root are cut to this (2GiB)",
    )
    add_threads(how)


def settings_from(args: argparse.Namespace, measure: str, solver: str | None, **more: Any) -> Settings:
    """The settings that `add_stopping` and `add_vectors` ask for, and `more` of them.

    solver : None takes lmvm, and bmrm for a measure that is not smoothed.
    Raises InputError where settings contradict each other or the measure.
    """
    from distsms.fit import settings_for

    return settings_for(
        measure,
        solver,
        args.epsilon,
        args.relative,
        ordering="gather" if args.ordering == "auto" else args.ordering,
        history=args.history,
        planes=args.planes,
        scaling=args.scaling,
        zero_plane=not args.no_zero_plane,
        vector_bytes=args.vector_memory,
        max_evaluations=args.max_evaluations,
        time_limit=args.time_limit,
        **more,
    )


def fitting(
    asked: str,
    measure: str,
    manifest: Manifest,
    settings: Settings,
    size: int,
    neighbours: list[int],
    bias: bool = False,
) -> tuple[str, str, str]:
    """The ordering asked for, or the one that costs less, and two lines on it and on the memory of a rank. Local.

    neighbours : the ranks of this node. Raises InputError if it has less memory than they need.
    """
    from distsms import memory, report
    from distsms.losses import choose_ordering, loss_class

    ordering, why = choose_ordering(asked, measure, manifest.n_pos, manifest.n_neg, size)
    cost = loss_class(measure, ordering).cost(manifest.n_pos, manifest.n_neg, size)
    needs, there = memory.needs(manifest, settings, cost, bias), memory.available()
    memory.require(needs, size, neighbours, there)
    up_to = "up to " if settings.planes_within(manifest.p) > settings.planes else ""
    held = f"{report.size(needs.of_rank(size))} on each rank, {up_to}{report.size(needs.root)} more on the root"
    return ordering, f"ordering  {ordering}: {why}", f"memory    {held}; its node has {report.size(there)}"


def speaker(speaks: bool) -> Callable[[str], None]:
    """Prints, as long as somebody reads: a reader that has gone, or a full disk, costs the words, not the run."""

    def say(text: str) -> None:
        nonlocal speaks
        if speaks:
            try:
                print(text, flush=True)
            except OSError:
                speaks = False
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    return say
