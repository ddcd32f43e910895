"""Make leaves of trees for millions of rows and train on them, in memory and streamed: rates, memory, two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distsms.optim.settings import Settings
from distsms.shards.dataset import read_manifest
from distsms.training.plan import make_plan
from scripts.benchmarks.measuring import LAMBDA, Row, Set, row
from scripts.benchmarks.running import features, train_unopened
from scripts.experiments.common import run_program

HELD, STREAMED, SHARED, FEW = 5e6, 2e7, 5e5, 2e4
"""Rows of the sets that are held in memory, that are streamed, that one rank and two compare, and of the smallest."""
COLUMNS, TREES, TREE_ROWS = 20, 100, 1e5
TIMES = 4
"""The entries of the streamed set take so many times the memory that is allowed for them."""
HISTORY, PLANES = 10, 20
"""The solver's options for the streamed set: a million leaves make each of its vectors as large as many rows."""
GROWING, WRITING = "growing trees", "writing the shards"
EVALUATIONS, ROUNDS = 12, 3
"""Evaluations of each training, and rounds in which one rank and two take turns, after one that compiles."""


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for synthetic sets, which stay in the folder. `given` is not used."""
    held, streamed, shared, few = (4e4, 8e4, 2e4, 2e3) if quick else (HELD, STREAMED, SHARED, FEW)
    trees = 4 if quick else TREES
    yield from _ranks(folder, shared, 4 if quick else 16)
    leaves = folder / f"leaves-{held:.0e}"
    steps, peaks = features(_made(folder, held), leaves, "--trees", trees, "--tree-rows", TREE_ROWS, ranks=2)
    p, name = read_manifest(leaves).p, f"{held:.3g} rows, {COLUMNS} columns, {trees} trees"
    name = f"{name}, {p} leaves"
    yield row("leaves", name, "2 ranks: rows per second, trees included", held / sum(steps.values()), "1/s")
    yield row("leaves", name, "2 ranks: share of the time for growing", 100 * steps[GROWING] / sum(steps.values()), "%")
    yield row("leaves", name, "2 ranks: rows per second while writing leaves", held / steps[WRITING], "1/s")
    yield row("leaves", name, "2 ranks: largest peak memory of a rank", max(peaks) / 2**20, "MiB")
    small = folder / "leaves-few"
    features(_made(folder, few), small, "--like", leaves)
    base, (found, peaks) = _trained(small, folder, 2)[1], _trained(leaves, folder, 2)
    more_bytes = max(peak - without for peak, without in zip(peaks, base, strict=True))
    what = "2 ranks: memory of training for rows / 2 bytes for each tree and row"
    yield row("leaves", name, what, more_bytes / (held * trees * 2 / 2), "x", "" if quick else "<= 1.3")
    rate = held / _evaluation(found)
    yield row("leaves", name, "2 ranks, in memory: rows per second of an evaluation", rate, "1/s")
    many = folder / f"leaves-{streamed:.0e}"
    steps, more = features(_made(folder, streamed), many, "--like", leaves, ranks=2)
    name = f"{streamed:.3g} rows, the same trees"
    yield row("leaves", name, "2 ranks: rows per second while writing leaves", streamed / steps[WRITING], "1/s")
    yield row("leaves", name, "2 ranks: largest peak memory of a rank", max(more) / 2**20, "MiB")
    plan = make_plan(read_manifest(many), "rocarea", Settings(LAMBDA, history=HISTORY, planes=PLANES), 2, [0, 1])
    share = streamed * trees * 2 / 2
    allowed = plan.needs.least(2, root=True) + share / TIMES
    options = ("--history", HISTORY, "--planes", PLANES)
    found, peaks = _trained(many, folder, 2, "--memory", int(allowed), *options)
    what = (
        f"2 ranks, streamed: peak memory of a rank / --memory {allowed / 2**20:.4g}MiB, which holds a {TIMES}th of its "
        f"{share / 2**20:.4g} MiB of leaves"
    )
    yield row("leaves", name, what, max(peaks) / allowed, "x", "<= 1")
    own = streamed / _evaluation(found)
    yield row("leaves", name, "2 ranks, streamed: rows per second of an evaluation", own, "1/s")
    yield row("leaves", name, "time of an evaluation for a row, streamed / in memory", rate / own, "x")


def _ranks(folder: Path, rows: float, trees: int) -> Iterator[Row]:
    """Yield the table rows that compare two ranks with one."""
    data, times = _made(folder, rows), dict[int, list[dict[str, float]]]({1: [], 2: []})
    for _ in range(1 + ROUNDS):
        for ranks, found in times.items():
            made = folder / f"leaves-{ranks}"
            steps = features(data, made, "--trees", trees, "--tree-rows", TREE_ROWS, ranks=ranks)[0]
            found.append(steps | {"an evaluation": _evaluation(_trained(made, folder, ranks)[0])})
    for step in (GROWING, WRITING, "an evaluation"):
        alone, pair = (np.array([steps[step] for steps in found[1:]]) for found in times.values())
        what = f"{step}: speedup of two ranks over one"
        yield row("leaves", f"{rows:.3g} rows, {trees} trees", what, alone / pair, "x", ">= 1.8")


def _trained(data: Path, folder: Path, ranks: int, *options: object) -> tuple[dict[str, Any], list[float]]:
    words = ("--lambda", 1e-3, "--epsilon", 1e-6, "--max-evaluations", EVALUATIONS, *options)
    return train_unopened(data, folder, *words, ranks=ranks)


def _evaluation(found: dict[str, Any]) -> float:
    """Return the seconds of an evaluation, without those of the solver and of loading."""
    seconds = found["usage"]["seconds"]
    return sum(seconds.get(name, 0.0) for name in ("margins X w", "loss", "gradient X'c")) / found["evaluations"]


def _made(folder: Path, rows: float) -> Path:
    data = folder / f"table-{rows:.0e}"
    if not (data / "manifest.json").exists():
        words = ("--rows", rows, "--columns", COLUMNS, "--dtype", "float32", "--quiet")
        run_program("synth", "dense", data, *words, ranks=2)
    return data
