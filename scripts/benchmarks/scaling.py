"""Time the parts of an evaluation of ROCArea on 1, 2, 4, ... ranks of this machine, in one run.

    scripts/bench scaling --rows 1e7 --ranks 1 2 4 8 16 [--mpirun "mpirun --bind-to core"] [--json FILE]
    python -m scripts.benchmarks.scaling --rows 1e7 --ranks 1 2 4 8 16      the same, in any Python environment

It needs distsms, NumPy, SciPy, Numba, h5py, mpi4py and an mpirun, but neither PETSc nor a network. The rows are drawn:
39 entries of 1 in 2^20 columns, of which a few are frequent, 3 % positive. They are the same on any number of ranks.

Every rank does the same at the same time, and the parts take turns. A time is the median of all rounds, of the slowest
rank: the triad (a = b + 3 c, larger than the caches), X w, the loss by sorting and from cells, X'c, the sum of X'c over
ranks, and the whole evaluation with either loss. "processor seconds" are those of the loss on all ranks together,
without the time in MPI; they show what more ranks cost even if there are fewer cores than ranks.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for name in ("OMP", "OPENBLAS", "MKL", "NUMBA"):  # one core for each process; before NumPy is loaded
    os.environ.setdefault(f"{name}_NUM_THREADS", "1")

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.cli.types import count, positive
from distsms.losses.registry import make_loss
from distsms.matrix.local import SparseRows
from distsms.optim.objective import Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel.mpi import world
from distsms.parallel.vectors import choose_step, make_vectors
from scripts import records
from scripts.compare.tables import markdown

ENTRIES, COLUMNS, POSITIVE, NU, LAMBDA = 39, 2**20, 0.03, 0.01, 1e-5
PART = 2**14  # rows that are drawn with one seed
ORDERINGS = {"by sorting": "exchange", "from cells": "bins"}
TRIAD = 2**22


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive, default=1e7, help="number of rows on all ranks (%(default)g)")
    parser.add_argument("--ranks", type=count, nargs="+", default=[1, 2, 4, 8, 16], help="numbers of ranks")
    parser.add_argument("--rounds", type=count, default=7, help="how often each part is timed (%(default)s)")
    parser.add_argument("--mpirun", default="mpirun", help="the launcher with its options (%(default)s)")
    parser.add_argument("--solve", action="store_true", help="also solve to a gap of 1e-3 by lbfgs, with either loss")
    records.add_json(parser)
    parser.add_argument("--out", help=argparse.SUPPRESS)  # a rank writes its numbers here
    args = parser.parse_args()
    if args.out:
        return measure(args)
    rows: list[records.Record] = []
    with tempfile.TemporaryDirectory(prefix="distsms-") as folder:
        for ranks in args.ranks:
            out = Path(folder) / f"{ranks}.json"
            words = ["--rows", args.rows, "--rounds", args.rounds, "--out", out, *["--solve"] * args.solve]
            line = [sys.executable, "-m", "scripts.benchmarks.scaling", *map(str, words)]
            subprocess.run([*shlex.split(args.mpirun), "-n", str(ranks), *line], check=True)
            rows.append({"ranks": ranks, **json.loads(out.read_text())})
            print(f"{ranks} ranks done", file=sys.stderr, flush=True)
    print(table(rows))
    records.write(args.json, "scripts.benchmarks.scaling", rows)
    return 0


def table(rows: list[records.Record]) -> str:
    """Return a Markdown table of the seconds on each number of ranks, and how many times as fast that is as the first.

    Bytes and processor seconds are given as they are, and as multiples of the first.
    """
    lines = []
    for what, first in rows[0].items():
        if what == "ranks":
            continue
        rising = "bytes" in what or "processor" in what or "evaluations" in what
        ratios = [row[what] / first if rising else first / row[what] for row in rows if first]
        if "triad" in what:  # each rank has a triad of its own
            ratios = [ratio * row["ranks"] / rows[0]["ranks"] for ratio, row in zip(ratios, rows, strict=True)]
        lines.append([what, *(f"{row[what]:.4g}" for row in rows), " / ".join(f"{ratio:.3g}" for ratio in ratios)])
    names = ["ranks", *(str(row["ranks"]) for row in rows), "first / this (rising: this / first; triads: rate)"]
    return markdown(names, lines)


def drawn_part(start: int, n: int, w: Any) -> tuple[Any, Any]:
    """Return the columns (n, 39) of some rows, and their scores with noise."""
    rng = np.random.default_rng([1, start])
    columns = np.sort((COLUMNS * rng.random((n, ENTRIES), np.float32) ** 4).astype(np.int32), axis=1)
    return columns, w[columns].sum(axis=1) / ENTRIES**0.5 + 0.5 * rng.normal(size=n)


def draw(rows: int, comm: Communicator) -> tuple[SparseRows, Any, Any]:
    """Return this rank's rows, their labels, and the w of which the labels are made (p,)."""
    ends = [min(rows, PART * (-(-rows // PART) * rank // comm.size)) for rank in range(comm.size + 1)]
    w = np.random.default_rng(0).normal(size=COLUMNS)
    threshold = np.quantile(drawn_part(0, PART, w)[1], 1 - POSITIVE)
    n = ends[comm.rank + 1] - ends[comm.rank]
    columns, y = np.empty(n * ENTRIES, np.int32), np.empty(n, np.int8)
    for start in range(0, n, PART):
        stop = min(start + PART, n)
        some, score = drawn_part(ends[comm.rank] + start, stop - start, w)
        columns[ENTRIES * start : ENTRIES * stop], y[start:stop] = some.ravel(), np.where(score > threshold, 1, -1)
    pointers = np.arange(0, n * ENTRIES + 1, ENTRIES, dtype=np.int64)
    X = sparse.csr_matrix((np.ones(len(columns), np.float32), columns, pointers), (n, COLUMNS))
    return SparseRows.of(X), y, w


class InMpi:
    """Adds up the processor seconds of this rank in the collectives of a communicator."""

    def __init__(self, comm: Communicator) -> None:
        self.seconds = 0.0
        for name in ("sum", "maximum", "allgather_rows", "alltoall_rows", "allgather"):
            setattr(comm, name, self._timed(getattr(comm, name)))

    def _timed(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            begun = time.thread_time()
            found = collective(*arguments, **named)
            self.seconds += time.thread_time() - begun
            return found

        return timed


def measure(args: argparse.Namespace) -> int:
    """Time all parts on this rank; the root writes the numbers of the slowest one. Collective."""
    comm, n = world(), int(args.rows)
    features, y, truth = draw(n, comm)
    losses = [make_loss("rocarea", ordering, y, None, comm) for ordering in ORDERINGS.values()]
    vectors = make_vectors(choose_step("auto", COLUMNS, comm.size)[0], COLUMNS, comm)
    objective = Objective(features, losses, comm, vectors=vectors)
    w, a, b, c = 0.1 * truth, *np.ones((3, TRIAD))
    scores, out, in_mpi = features.margins(w), np.zeros(COLUMNS), InMpi(comm)
    coefficients = [losses[-1].evaluate(scores, NU).coefficients]
    parts: dict[str, Callable[[], object]] = {
        "triad": lambda: np.add(b, np.multiply(c, 3.0, out=a), out=a),
        "X w": lambda: features.margins(w),
        **{
            f"loss {how}": functools.partial(loss.evaluate, scores, NU)
            for how, loss in zip(ORDERINGS, losses, strict=True)
        },
        "X'c": lambda: features.transposed_times(coefficients, out[None, :]),
        "sum over ranks": lambda: comm.sum(out),
    }
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    spent: dict[str, list[float]] = {name: [] for name in parts if name.startswith("loss")}
    moved = dict.fromkeys(spent, 0)
    for turn in range(args.rounds + 1):
        for name, part in parts.items():
            comm.barrier()
            begun, used, waited, before = (
                time.perf_counter(),
                time.thread_time(),
                in_mpi.seconds,
                sum(comm.bytes_moved()),
            )
            part()
            taken, used = time.perf_counter() - begun, time.thread_time() - used - (in_mpi.seconds - waited)
            if turn:  # the first is not counted
                seconds[name].append(taken)
            if turn and name in spent:
                spent[name].append(used)
                moved[name] = sum(comm.bytes_moved()) - before
    found = {f"{name} [s]": float(np.median(times)) for name, times in seconds.items()}
    slowest = dict(zip(found, comm.maximum(np.array(list(found.values()))).tolist(), strict=True))
    for name, times in spent.items():
        slowest[f"{name}: processor seconds"] = float(comm.sum(np.array([np.median(times)]))[0])
        slowest[f"{name}: bytes of a rank"] = float(comm.maximum(np.array([float(moved[name])]))[0])
    slowest |= evaluations(objective, w, args.rounds)
    slowest["peak memory of a rank, bytes"] = float(
        comm.maximum(np.array([1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))[0]
    )
    if args.solve:
        slowest |= solved(features, y, comm)
    if comm.is_root:
        Path(args.out).write_text(json.dumps(slowest))
    vectors.close()
    return 0


def evaluations(objective: Objective, w: Any, rounds: int) -> dict[str, float]:
    """Return the seconds of whole evaluations with each loss, in turns. Collective."""
    times: dict[str, list[float]] = {how: [] for how in ORDERINGS}
    if objective.vectors.runs_solver:
        own = np.array(objective.vectors.local_slice(w), float)
        for turn in range(rounds + 1):
            for index, how in enumerate(ORDERINGS):
                begun = time.perf_counter()
                objective.evaluate([Request(own, NU, ElasticNet(LAMBDA), index)])
                if turn:
                    times[how].append(time.perf_counter() - begun)
        objective.release()
    else:
        objective.serve()
    found = np.array([float(np.median(some)) if some else 0.0 for some in times.values()])
    return {
        f"evaluation {how} [s]": s for how, s in zip(ORDERINGS, objective.comm.maximum(found).tolist(), strict=True)
    }


def solved(features: SparseRows, y: Any, comm: Communicator) -> dict[str, float]:
    """Return the seconds and evaluations of a whole training with each loss. Collective."""
    found = {}
    for how, ordering in ORDERINGS.items():
        vectors = make_vectors(choose_step("auto", COLUMNS, comm.size)[0], COLUMNS, comm)
        objective = Objective(features, [make_loss("rocarea", ordering, y, None, comm)], comm, vectors=vectors)
        comm.barrier()
        begun = time.perf_counter()
        result = minimize(objective, Settings(lam=LAMBDA, epsilon=1e-3, solver="lbfgs"))
        found[f"solving {how} [s]"] = time.perf_counter() - begun
        found[f"solving {how}: evaluations"] = float(result.evaluations)
        vectors.close()
    return found


if __name__ == "__main__":
    sys.exit(main())
