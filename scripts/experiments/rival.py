"""Compare distsms with LightGBM, both distributed over two processes of this machine, on rows that are made here.

    . scripts/environment
    python -m scripts.experiments.rival --rows 1e7 --json rival.json

Of the rows, 1 % are positive, those with the largest f(x) + noise; x are 30 standard normal numbers. f is a linear
function plus a function with steps and products, which have the shares 1 - S and S of its variance, S of --curved. So
at S = 0 a linear model is right, and for large S trees are. A tenth as many further rows are for tests.

Each method is measured as a whole, from the files of the rows (.npy) to a model on the disk, by the operating system:
seconds, seconds of the processor over all processes, and the memory of its largest process. LightGBM trains with its
usual settings, on halves of the rows, by its own sockets (tree_learner data). distsms converts the rows to shards,
makes bins and crosses (in one of its two lines), chooses lambda for the columns, and trains for ROCArea to a proved
gap. No method is tuned.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.formatting import format_bytes
from distsms.cli.types import count
from scripts import records
from scripts.compare.tables import markdown

COLUMNS, POSITIVE, RANKS, TESTED = 30, 0.01, 2, 0.1
NOISE = 0.5
"""The standard deviation of the noise, beside 1 of f."""
BINS_LAMBDA = 1e-4
"""The lambda for bins: screened crosses know the labels of the folds by which `auto` chooses."""
EVERY = 0.05
"""How often the memory of processes is looked at, in seconds. What the system says of one that has ended includes what
the process took that started it."""
PART = 2**17
"""Rows are made in parts of so many, each from a seed of its own."""
HEAD = 0.01
"""The share of the rows with the highest scores whose precision is shown."""


class Cost(NamedTuple):
    """What one or more commands took."""

    seconds: float
    processor: float  # seconds, of all their processes
    memory: int  # bytes of the largest process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=count, default=10**5, metavar="N", help="training rows (%(default)s)")
    parser.add_argument("--curved", type=float, nargs="+", default=[0.0, 0.5], metavar="S", help="shares S (0 0.5)")
    parser.add_argument("--folder", type=Path, help="where the rows are written (default: a temporary folder)")
    parser.add_argument("--worker", metavar="OPTIONS", help=argparse.SUPPRESS)  # a process of LightGBM
    records.add_json(parser)
    args = parser.parse_args()
    if args.worker:
        train_lightgbm(json.loads(args.worker))
        return
    found = []
    for share in args.curved:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            found += compare(Path(folder), args.rows, share)
    print(table(found))
    records.write(args.json, "scripts.experiments.rival", found, rows=args.rows, columns=COLUMNS, ranks=RANKS)


def table(found: Sequence[records.Record]) -> str:
    """Return the table; see the module's docstring."""
    lines = [
        [
            f"{row['n']:.0e}".replace("e+0", "e"),
            f"{row['curved']:g}",
            row["method"],
            *(f"{row[name]:.0f}" for name in ("seconds", "processor")),
            format_bytes(row["memory"]),
            *(f"{row[name]:.4f}" for name in ("rocarea", "precision_top")),
        ]
        for row in found
    ]
    header = ["rows", "S", "method", "seconds", "processor seconds", "memory of a process", "ROCArea of test rows"]
    return markdown([*header, "precision in the top 1 %"], lines)


def compare(folder: Path, n: int, curved: float) -> list[records.Record]:
    """Make rows in a folder, and measure each method on them."""
    make(folder / "train", n, curved, seed=0)
    make(folder / "test", max(round(TESTED * n), 1000), curved, seed=1)
    X, y = (np.load(folder / "test" / f"{name}.npy", mmap_mode="r") for name in "Xy")
    found = []
    for method in (lightgbm, distsms_on_columns, distsms_on_bins):
        cost, scores = method(folder, X)
        head = np.argsort(-scores, kind="stable")[: round(HEAD * len(y))]
        found.append(
            {"method": method.__name__.replace("_", " "), "curved": curved, "n": n, **cost._asdict()}
            | {
                "rocarea": area(scores, y),
                "precision_top": float(np.mean(y[head] > 0)),
                "positive": float(np.mean(y > 0)),
            }
        )
    return found


def make(folder: Path, n: int, curved: float, seed: int) -> None:
    """Write X.npy (n, COLUMNS) float32 and y.npy (n,) of 1 and -1. The same arguments give the same rows."""
    folder.mkdir()
    X = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float32, (n, COLUMNS))
    score = np.empty(n)
    w = np.random.default_rng(7).normal(size=COLUMNS)
    w /= np.linalg.norm(w)
    for number, start in enumerate(range(0, n, PART)):
        rng = np.random.default_rng([seed, number])
        part = rng.standard_normal((min(PART, n - start), COLUMNS), np.float32)
        # Four steps of variance 1, and four products of variance 1.
        steps = np.sign(part[:, :4]).sum(axis=1) + (part[:, 4:8] * part[:, 8:12]).sum(axis=1)
        f = np.sqrt(1 - curved) * (part @ w) + np.sqrt(curved / 8) * steps
        X[start : start + len(part)], score[start : start + len(part)] = (
            part,
            f + NOISE * rng.standard_normal(len(part)),
        )
    X.flush()
    threshold = np.partition(score, n - round(POSITIVE * n))[n - round(POSITIVE * n)]
    np.save(folder / "y.npy", np.where(score >= threshold, 1, -1).astype(np.int8))


def area(scores: NDArray[np.float64], y: NDArray[Any]) -> float:
    """Return the share of the pairs of a positive and a negative row in the right order; ties count half."""
    from scipy.stats import rankdata

    ranks, n_pos = rankdata(scores), int(np.count_nonzero(y > 0))
    return float((ranks[y > 0].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * (len(y) - n_pos)))


def cost_of(*commands: list[str]) -> Cost:
    """Run commands at the same time, and return what they took. Ends this program if one fails."""
    begun = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(records.ROOT)}
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for command in commands]
    running, processor, memory = list(started), 0.0, 0
    while running:
        time.sleep(EVERY)
        for process in list(running):
            memory = max([memory, *map(peak, tree(process.pid))])
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)  # with all processes that it has waited for
            if not ended:
                continue
            running.remove(process)
            processor += usage.ru_utime + usage.ru_stime
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                for other in running:
                    other.kill()
                sys.exit(f"{' '.join(process.args)}: exit code {process.returncode}")  # type: ignore[arg-type]
    return Cost(time.perf_counter() - begun, processor, memory)


def tree(pid: int) -> list[int]:
    """Return a process and all processes that it has started, as far as they are still there."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(each for child in children for each in tree(int(child)))]


def peak(pid: int) -> int:
    """Return the most memory that a process has taken so far, in bytes."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)


def together(costs: list[Cost]) -> Cost:
    """Return what commands that ran one after the other took."""
    return Cost(sum(c.seconds for c in costs), sum(c.processor for c in costs), max(c.memory for c in costs))


def lightgbm(folder: Path, X: NDArray[Any]) -> tuple[Cost, NDArray[np.float64]]:
    """Train boosted trees in two processes, each of which reads half of the rows."""
    import lightgbm as lgb

    sockets = [socket.socket() for _ in range(RANKS)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    machines = ",".join(f"127.0.0.1:{port}" for port in ports)
    workers = [
        {"folder": str(folder), "rank": rank, "machines": machines, "port": port} for rank, port in enumerate(ports)
    ]
    module = [sys.executable, "-m", "scripts.experiments.rival", "--worker"]
    cost = cost_of(*([*module, json.dumps(worker)] for worker in workers))
    return cost, np.asarray(lgb.Booster(model_file=folder / "lightgbm.txt").predict(X))


def train_lightgbm(worker: dict[str, Any]) -> None:
    """Train on this process's half of the rows, and write the model in the first process."""
    import lightgbm as lgb

    folder, rank = Path(worker["folder"]), worker["rank"]
    X, y = (np.load(folder / "train" / f"{name}.npy", mmap_mode="r") for name in "Xy")
    half = slice(rank * len(y) // RANKS, (rank + 1) * len(y) // RANKS)
    parameters = {
        **{"objective": "binary", "num_threads": 1, "seed": 0, "verbosity": -1, "force_col_wise": True},
        **{"tree_learner": "data", "pre_partition": True, "num_machines": RANKS, "time_out": 10},
        **{"machines": worker["machines"], "local_listen_port": worker["port"]},
    }
    booster = lgb.train(parameters, lgb.Dataset(X[half], (y[half] > 0).astype(np.float32)), num_boost_round=100)
    if rank == 0:
        booster.save_model(folder / "lightgbm.txt")


def distsms_on_columns(folder: Path, X: NDArray[Any]) -> tuple[Cost, NDArray[np.float64]]:
    """Train a linear model on two ranks."""
    shards = folder / "shards"
    costs = [run("shard", folder / "train/X.npy", shards, "--label", folder / "train/y.npy")]
    costs += [run("train", shards, "--lambda", "auto", "--output", folder / "columns.h5")]
    return together(costs), scores_of(folder / "columns.h5", X)


def distsms_on_bins(folder: Path, X: NDArray[Any]) -> tuple[Cost, NDArray[np.float64]]:
    """Train a linear model on bins and screened crosses on two ranks, which converts the rows again."""
    shards, bins = folder / "shards", folder / "bins"
    costs = [run("shard", folder / "train/X.npy", shards, "--label", folder / "train/y.npy", "--overwrite")]
    costs += [run("features", shards, bins, "--bins", 32, "--crosses", "top:10", "--keep")]
    costs += [run("train", bins, "--lambda", BINS_LAMBDA, "--output", folder / "bins.h5")]
    return together(costs), scores_of(folder / "bins.h5", X)


def run(*words: object) -> Cost:
    """Run a command of distsms on two ranks."""
    return cost_of(["mpirun", "-n", str(RANKS), sys.executable, "-m", "distsms", *map(str, words), "--quiet"])


def scores_of(model: Path, X: NDArray[Any]) -> NDArray[np.float64]:
    """Return the scores of rows."""
    import distsms

    return np.asarray(distsms.predict(model, X))


if __name__ == "__main__":
    main()
