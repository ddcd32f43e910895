"""Estimate what a training on 1e9 rows takes on 32 cores, from evaluations of fewer rows on two cores.

The rows are like those of Criteo: 39 nonzeros each, 2^20 columns, 3 % positive. The estimate assumes 32 ranks of one
core each, that products and loss take the same time for each row on each core, and that the steps of the solver do not
get faster with more cores. Both vectors of an evaluation pass through a network of 10 Gbit/s, in as many steps as a
binary tree of all ranks has levels. The number of evaluations is that of these rows, or that of 1e8 rows that are made
like Criteo's. Every rank sorts all positive rows in each evaluation and
pairs them with its share of the negative ones; this is measured on an eighth of both, and added to the rest, which has
the loss of few rows already. One pass of Vowpal Wabbit takes as much time for each row as was measured on 2e7 of those.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distsms.losses.registry import make_loss
from distsms.parallel.communicator import Communicator
from distsms.shards.dataset import read_manifest
from scripts import records
from scripts.benchmarks.measuring import EPSILON, Row, Set, row
from scripts.benchmarks.running import run_module, train
from scripts.experiments.common import run_program

NONZEROS, COLUMNS, ROWS, FEW, LAMBDA, POSITIVE, NU = 39, 2**20, 4e6, 2e4, 1e-4, 0.03, 0.04
TARGET_ROWS, CORES, NETWORK = 1e9, 32, 1.25e9


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows. `given` is not used; the data set stays in the folder."""
    n, ranks = FEW if quick else ROWS, 2
    data = folder / f"like-criteo-{n:.0g}"
    if not (data / "manifest.json").exists():
        words = ("--rows", n, "--columns", COLUMNS, "--density", NONZEROS / COLUMNS, "--positive", POSITIVE)
        run_program("synth", "sparse", data, *words, "--dtype", "float32", "--quiet", ranks=ranks)
    manifest = read_manifest(data)
    name = f"synthetic, {manifest.n:.3g} rows, {manifest.nnz / manifest.n:.3g} nonzeros each"
    pairs = np.array(run_module("two_ranks", data, 3, "rocarea", ranks=ranks)["rocarea"]["two"])
    found, _ = train(data, folder / "model.h5", "--lambda", LAMBDA, "--epsilon", EPSILON, ranks=ranks)
    steps = max(0.0, found["seconds"] / found["evaluations"] - float(np.median(pairs)))
    of_rows = ranks * pairs * TARGET_ROWS / manifest.n / CORES
    of_rows = of_rows + seconds_of_loss(4096 if quick else 8)
    moving = 2 * 8 * COLUMNS / NETWORK * math.ceil(math.log2(CORES)) + 24 * POSITIVE * TARGET_ROWS / NETWORK
    yield row(
        "billion",
        name,
        "an evaluation of ROCArea on 2 cores: core-nanoseconds for each nonzero",
        1e9 * ranks * pairs / manifest.nnz,
        "ns",
    )
    what = f"ROCArea, lambda {LAMBDA:g}, {found['status']} to {EPSILON:g}: evaluations"
    yield row("billion", name, what, found["evaluations"])
    yield from estimates(of_rows, steps, moving, found["evaluations"])


def seconds_of_loss(part: int) -> float:
    """Return what the loss of a rank takes, from one with 1 / part of all positive and of the rank's negative rows."""
    n_pos, n_neg = (int(TARGET_ROWS * share / part) for share in (POSITIVE, (1 - POSITIVE) / CORES))
    labels = np.repeat(np.array([1, -1], np.int8), [n_pos, n_neg])
    scores = np.random.default_rng(0).normal(size=len(labels)) + labels
    loss, seconds = make_loss("rocarea", "exchange", labels, None, Communicator()), []
    for _ in range(3):
        start = time.process_time()
        loss.evaluate(scores, NU)
        seconds.append(time.process_time() - start)
    return part * float(np.median(seconds))


def estimates(of_rows: np.ndarray, steps: float, moving: float, evaluations: int) -> Iterator[Row]:
    """Yield the estimates, from the seconds that each part of an evaluation takes."""
    large, whole = f"{TARGET_ROWS:.0g} rows, {CORES} cores, estimated", of_rows + steps + moving
    what = "share of products and loss in the time of an evaluation"
    yield row("billion", large, what, 100 * of_rows / whole, "%")
    yield row(
        "billion", large, "share of moving two vectors and the scores of positive rows", 100 * moving / whole, "%"
    )
    others = _measured("criteo-2e7", "Vowpal Wabbit")
    one_pass = others["cpu"] / others["rows"] * TARGET_ROWS
    for count in (evaluations, _measured("criteo", "rocarea")["evaluations"]):
        proof = f"a proof in {count} evaluations"
        yield row("billion", large, f"{proof}: seconds", count * whole, "s")
        what = f"{proof}: core-seconds / those of one pass of Vowpal Wabbit ({one_pass:,.0f})"
        yield row("billion", large, what, CORES * count * whole / one_pass, "x")


def _measured(name: str, program: str) -> dict[str, Any]:
    """Return the record of a program in a file of `scripts.experiments.criteo`."""
    found = records.read(records.PUBLISHED / f"{name}.json")["records"]
    return next(record for record in found if record["program"] == program)
