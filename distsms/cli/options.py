"""Options and settings that the training commands have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from distsms.base.choices import DEVICES, ORDERINGS, STEPS
from distsms.base.measures import CONDITIONS_OF_MODELS, WEIGHTINGS
from distsms.cli.types import add_threads, condition, count, duration, memory, not_negative, positive
from distsms.parallel.signals import StopSignals

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator
    from distsms.shards.dataset import DataBlock

SOLVERS_HELP = (
    "lmvm is the limited-memory quasi-Newton method of PETSc/TAO; lbfgs is the same method without PETSc; agm is "
    "Nesterov's accelerated gradient; bmrm is cutting planes on the exact risk; bmrm-linesearch is the same with two "
    "planes and no quadratic program"
)

USUAL_SOLVER = "The default is lmvm, or lbfgs with --l1 and where petsc4py cannot be imported"


def add_stopping(parser: argparse.ArgumentParser, time_limit: float) -> None:
    """Add the options that say when `train`, `path`, `baseline`, or each run of a comparison of solvers, ends."""
    stop = parser.add_argument_group("stopping")
    stop.add_argument(
        "--epsilon",
        metavar="GAP",
        type=positive,
        help="The gap to prove, as a difference in J (default: 1e-3, unless --relative is given).",
    )
    stop.add_argument(
        "--relative",
        type=positive,
        metavar="SHARE",
        help="The gap to prove, as a share of J: 0.01 is 1 %%. Where --epsilon is given too, the larger of the two gaps"
        " is enough.",
    )
    stop.add_argument(
        "--max-evaluations",
        type=count,
        default=10_000,
        metavar="N",
        help="Stop without a proof after N evaluations of J and its gradient (default: %(default)s).",
    )
    stop.add_argument(
        "--time-limit",
        type=duration,
        default=time_limit,
        metavar="TIME",
        help="Stop cleanly after this time of training, given as 90s, 55m or 1.5h: "
        + (
            "the model so far is written (default: no limit)."
            if time_limit == float("inf")
            else f"the limit of each run (default: {time_limit:g}s)."
        ),
    )
    parser.set_defaults(signals=StopSignals())


def add_data(parser: argparse._ActionsContainer) -> None:
    """Add the data of a command that also takes files."""
    parser.add_argument(
        "data",
        nargs="+",
        metavar="DATA|FILE",
        help="A data set made by `distsms shard`; or files of a format that it reads, folders of tables, or patterns"
        " such as 'day-*.csv'.",
    )


def add_within_groups(parser: argparse.ArgumentParser) -> None:
    """Add the option that turns ROCArea into ROCArea within groups."""
    parser.add_argument(
        "--within-groups",
        choices=WEIGHTINGS,
        help="Compare only rows of the same group (query, user, day; `distsms shard --group`), for the measure rocarea."
        " The measure is then GAUC, the mean ROCArea of the groups that have rows of both classes: pairs weights each"
        " group by its number of pairs, each counts each group alike. The measure is called gauc@pairs or gauc@each"
        " in files and messages. Without this option, groups only keep folds together.",
    )


def add_bias(parser: argparse.ArgumentParser) -> None:
    """Add the option for a constant feature."""
    parser.add_argument(
        "--bias",
        type=not_negative,
        nargs="?",
        const=1.0,
        metavar="VALUE",
        help="Add a constant feature of this value (1 if none is given; with 0, add none). Its weight is regularized"
        " like any other. ROCArea and PRBEP do not depend on it (default: 1 for logistic and logistic-balanced, else"
        " none).",
    )


FIVE_FOLDS = (
    "After the training, models are trained on four fifths of the rows each, five times, and score the other fifth:"
    " this takes up to four times as long again."
)


class Once(argparse.Action):
    """Stores the value of an option that may be given only once."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} is given twice, but a model has only one; distsms evaluate takes several")
        setattr(namespace, self.dest, values)


def add_decisions(parser: argparse.ArgumentParser, folds: str = FIVE_FOLDS) -> None:
    """Add --at and --calibrate; `folds` says which folds they use."""
    decisions = parser.add_argument_group("from scores to decisions")
    decisions.add_argument(
        "--at",
        type=partial(condition, examples=CONDITIONS_OF_MODELS),
        action=Once,
        metavar="CONDITION",
        help="Find the threshold that fulfils a condition on held-out rows, and store it for `distsms predict"
        f" --labels`: {CONDITIONS_OF_MODELS.replace('%', '%%')}. {folds}",
    )
    decisions.add_argument(
        "--calibrate",
        choices=("sigmoid", "isotonic"),
        help="Fit a curve from scores to probabilities on held-out rows, and store it for `distsms predict"
        " --probability`: sigmoid is a logistic curve, isotonic any rising curve, which needs thousands of rows. It"
        " uses the same folds.",
    )


def add_vectors(group: argparse._ActionsContainer) -> None:
    """Add the options that say how scores are sorted, where vectors are kept, and how many of them."""
    group.add_argument(
        "--ordering",
        choices=("auto", *ORDERINGS),
        default="auto",
        help="How the scores of all rows are sorted: gather sends all of them to the root; exchange sorts them where"
        " the rows are, so that no rank holds the scores of all rows; bins, for rocarea and pauc@BETA, counts rows by"
        " score in place of sorting, and encloses J in a small interval, whose upper end is reported; auto takes what"
        " costs less (default: %(default)s).",
    )
    group.add_argument(
        "--step",
        choices=("auto", *STEPS),
        default="auto",
        help="Where the solver's vectors are kept: root keeps them whole on the root, spread keeps a slice of each on"
        " every rank; auto spreads them from 2^20 columns on (default: %(default)s).",
    )
    group.add_argument(
        "--history",
        type=count,
        metavar="N",
        help="How many pairs of vectors the solver remembers (default: 50, and 100 for pauc@BETA; 10 with more"
        " than 16,384 columns; 5 with more columns than rows).",
    )
    group.add_argument(
        "--planes",
        type=count,
        default=100,
        metavar="N",
        help="How many planes the proof of the gap uses (default: %(default)s). bmrm keeps all of its planes.",
    )
    group.add_argument(
        "--scaling",
        type=float,
        metavar="S",
        help="The exponent S of the scaling of columns: lmvm and lbfgs work on w_j (m_j + lambda)^S, where m_j is"
        " the mean square of column j. With 0 they work on w itself (default: 0.125 with at most 512 columns, 0.2 with"
        " more).",
    )
    group.add_argument(
        "--no-zero-plane",
        action="store_true",
        help="Do not use the fact that the risk R is never negative, neither in the proof nor in bmrm's model of R.",
    )
    group.add_argument(
        "--vector-memory",
        type=memory,
        default=2**31,
        metavar="SIZE",
        help="The most memory that the vectors of --history and --planes together may take on each rank that holds"
        " them. If they would take more, fewer vectors are kept (default: 2GiB).",
    )
    add_threads(group)


def add_memory(group: argparse._ActionsContainer) -> None:
    """Add --memory."""
    group.add_argument(
        "--memory",
        type=memory,
        metavar="SIZE",
        help="The most memory that each rank may take, for everything. Rows that do not fit are read from the shards "
        "on each pass, with the same results. Without this option all rows are held in memory, and a run that does not "
        "fit is refused; `distsms train FILE` streams then what does not fit.",
    )


def add_device(group: argparse._ActionsContainer) -> None:
    """Add --device."""
    group.add_argument(
        "--device",
        choices=DEVICES,
        default="cpu",
        help="What computes with the rows: cpu, or cuda, the graphics processor of each rank, for rocarea, pauc@BETA,"
        " prbep and the logistic measures, with the same proof. It needs numba-cuda (pip install 'distsms[cuda]')"
        " (default: %(default)s).",
    )


def of_vectors(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that the options of `add_vectors` and --max-evaluations ask for, but not --step."""
    named = {name: getattr(args, name) for name in ("history", "planes", "scaling", "max_evaluations")}
    return named | {"zero_plane": not args.no_zero_plane, "vector_bytes": args.vector_memory}


def rows_held(block: DataBlock, comm: Communicator, allowed: float | None = None, whole: bool = True) -> list[str]:
    """Return lines on rows that ranks hold (if `whole`), and read on each pass; `allowed` is --memory. Collective."""
    from distsms.base.formatting import format_bytes

    def between(values: Sequence[int], show: Callable[[int], str] = str) -> str:
        least, most = min(values), max(values)
        return f"{show(least)} to {show(most)}" if least < most else show(most)

    rows = block.features
    of_rank = {"rows": len(block.labels), "nnz": rows.nnz, "bytes": rows.nbytes, "streamed": rows.bytes_per_pass}
    of_ranks = comm.allgather(of_rank)
    amounts = {name: [amount[name] for amount in of_ranks] for name in of_rank}
    each, streams = ", each" if comm.size > 1 else "", any(amounts["streamed"])
    memory_text = between(amounts["bytes"], format_bytes) + " with buffers" * streams
    held_rows = f"{between(amounts['rows'])} rows, {between(amounts['nnz'])} {rows.stored}, in {memory_text}"
    lines = [f"ranks     {comm.size}{each} with {held_rows}"] if whole else []
    if streams:
        streamed = between(amounts["streamed"], format_bytes)
        lines.append(f"streamed  {streamed} of the shards{each} on every pass; an evaluation takes two")
    elif allowed:
        lines.append("streamed  nothing: all rows are held")
    return lines
