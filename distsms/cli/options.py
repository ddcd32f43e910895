"""Options and settings that the training commands have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from distsms.base.choices import ORDERINGS, STEPS
from distsms.base.formatting import format_bytes
from distsms.base.measures import CONDITIONS_OF_MODELS, WEIGHTINGS
from distsms.cli import types
from distsms.cli.types import THREADS, condition_of_models, not_negative, positive
from distsms.optim.solvers.base import SOLVERS

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator
    from distsms.shards.dataset import DataBlock
    from distsms.workflow.requests import FitRequest

    R = TypeVar("R", bound=FitRequest)

USUAL_SOLVER = "The default is lmvm, or lbfgs where petsc4py cannot be imported"
DATA = """\
data DATA|FILE  A data set made by `distsms shard`; or files that it reads, folders of tables, or patterns
    ('day-*.csv')."""
SOLVER = f"""\
--solver  The solver{{of}}. lmvm is the limited-memory quasi-Newton method of PETSc/TAO; lbfgs is the same method
    without PETSc; agm is Nesterov's accelerated gradient; bmrm is cutting planes on the exact risk; bmrm-linesearch is
    the same with two planes and no quadratic program. {USUAL_SOLVER}{{but}}."""
STOPPING = """\
stopping:
--epsilon GAP  The gap to prove, as a difference in J (default: 1e-3, or none with --relative).
--relative SHARE  The gap to prove, as a share of J: 0.01 is 1 %%. With --epsilon, the larger of the two gaps is enough.
--max-evaluations N  Stop without a proof after N evaluations of J and its gradient (default: %(default)s).
--time-limit TIME  After this time of training, such as 90s, 55m or 1.5h, stop and write what there is (default:
    {limit})."""
WITHIN_GROUPS = """\
--within-groups  Compare only rows of the same group (query, user, day; `distsms shard --group`), for the measure
    rocarea. The measure is then GAUC, the mean ROCArea of the groups that have rows of both classes: pairs weights each
    group by its number of pairs, each counts each group alike. The measure is called gauc@pairs or gauc@each in files
    and messages. Without this option, groups only keep folds together."""
BIAS = """\
--bias VALUE  Add a constant feature of this value (1 if none is given; with 0, add none). Its weight is regularized
    like any other. ROCArea and PRBEP do not depend on it (default: 1 for logistic and logistic-balanced, else none)."""
DECISIONS = f"""\
from scores to decisions:
--at CONDITION  Find the threshold that fulfils a condition on held-out rows, and store it for `distsms predict
    --labels`: {CONDITIONS_OF_MODELS.replace("%", "%%")}. {{folds}}
--calibrate  Fit a curve from scores to probabilities on held-out rows, and store it for `distsms predict
    --probability`: sigmoid is a logistic curve, isotonic any rising curve, which needs thousands of rows. It uses the
    same folds."""
VECTORS = f"""\
--ordering  How the scores of all rows are sorted: gather sends all of them to the root; exchange sorts them where the
    rows are, so that no rank holds the scores of all rows; bins, for rocarea and pauc@BETA, counts rows by score in
    place of sorting, and encloses J in a small interval, whose upper end is reported; auto takes what costs less
    (default: %(default)s).
--step  Where the solver's vectors are: root keeps them whole on the root, spread keeps a slice of each on every rank;
    auto spreads them from 2^20 columns on (default: auto).
--history N  How many pairs of vectors the solver remembers (default: 50, and 100 for pauc@BETA; 10 with more than
    16,384 columns; 5 with more columns than rows).
--planes N  How many planes the proof of the gap uses (default: %(default)s). bmrm keeps all of its planes.
--scaling S  The exponent S of the scaling of columns: lmvm and lbfgs work on w_j (m_j + lambda)^S, where m_j is the
    mean square of column j. With 0 they work on w itself (default: 0.125 with at most 512 columns, 0.2 with more).
--no-zero-plane  Do not use the fact that the risk R is never negative, neither in the proof nor in bmrm's model of R.
--vector-memory SIZE  The most memory for --history and --planes on a rank; if they need more, fewer are kept (default:
    2GiB).
{THREADS}"""
MEMORY = """\
--memory SIZE  The most memory that each rank may take, for everything. Rows that do not fit are read from the shards on
    each pass, with the same results. Without this option all rows are held, and a run that does not fit is refused;
    `distsms train FILE` streams then what does not fit."""


class Once(argparse.Action):
    """Stores the value of an option that may be given only once."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} is given twice, but a model has only one; distsms evaluate takes several")
        setattr(namespace, self.dest, values)


COMMON: dict[str, dict[str, Any]] = {
    **types.COMMON,
    "--at": {"type": condition_of_models, "action": Once},
    "--bias": {"type": not_negative, "nargs": "?", "const": 1.0},
    "--calibrate": {"choices": ("sigmoid", "isotonic")},
    "--max-evaluations": {"default": 10_000},
    "--no-zero-plane": {"action": "store_false", "dest": "zero_plane"},
    "--ordering": {"choices": ("auto", *ORDERINGS), "default": "auto"},
    "--planes": {"default": 100},
    "--relative": {"type": positive},
    "--scaling": {"type": float},
    "--solver": {"choices": tuple(SOLVERS)},
    "--step": {"choices": ("auto", *STEPS), "default": "auto"},
    "--time-limit": {"default": float("inf")},
    "--vector-memory": {"dest": "vector_bytes", "default": 2**31},
    "--within-groups": {"choices": WEIGHTINGS},
    "data": {"nargs": "+"},
}
"""What argparse is told of the options that training commands have in common."""


def request_of(kind: type[R], args: argparse.Namespace, **others: Any) -> R:
    """Return a request: the options that have the names of its fields, or of settings, and `others` in their place."""
    return kind.of_options({name: value for name, value in vars(args).items() if name in kind.option_names()}, **others)


def rows_held(block: DataBlock, comm: Communicator, allowed: float | None, whole: bool) -> list[str]:
    """Return lines on rows that ranks hold (if `whole`), and read on each pass; `allowed` is --memory. Collective."""

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
