"""Estimate what a training on 1e9 rows takes on 32 cores, from evaluations of fewer rows on two cores.

The rows are like those of Criteo: 39 nonzeros each, 2^20 columns, 3 % positive. The estimate assumes that products and
loss take the same time for each row on each core, that the number of evaluations stays the same, and that the steps of
the solver do not get faster with more cores. Both vectors of an evaluation pass through a network of 10 Gbit/s, in as
many steps as a binary tree of all ranks has levels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distsms.data.shards.dataset import read_manifest
from scripts.benchmarks.measuring import EPSILON, Row, Set, row
from scripts.benchmarks.running import run_module, train
from scripts.experiments.common import run_program

NONZEROS, COLUMNS, ROWS, FEW, LAMBDA = 39, 2**20, 4e6, 2e4, 1e-4
TARGET_ROWS, CORES, NETWORK = 1e9, 32, 1.25e9
PUBLISHED = {"Vowpal Wabbit": 6431 * 1.71, "Spark": 5133 * 512}
"""Seconds times cores of logistic regression on 1e9 rows of Criteo's data: github.com/rambler-digital-solutions/
criteo-1tb-benchmark (2017), in results/vw_xgb.tsv (with the mean load of the cores) and results/metrics.tsv.
"""


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows. `given` is not used; the data set stays in the folder."""
    n, ranks = FEW if quick else ROWS, 2
    data = folder / f"like-criteo-{n:.0g}"
    if not (data / "manifest.json").exists():
        words = ("--rows", n, "--columns", COLUMNS, "--density", NONZEROS / COLUMNS, "--positive", 0.03)
        run_program("synth", "sparse", data, *words, "--dtype", "float32", "--quiet", ranks=ranks)
    manifest = read_manifest(data)
    name = f"synthetic, {manifest.n:.3g} rows, {manifest.nnz / manifest.n:.3g} nonzeros each"
    pairs = np.array(run_module("two_ranks", data, 3, "rocarea", ranks=ranks)["rocarea"]["two"])
    found, _ = train(data, folder / "model.h5", "--lambda", LAMBDA, "--epsilon", EPSILON, ranks=ranks)
    evaluations = found["evaluations"]
    steps = max(0.0, found["seconds"] / evaluations - float(np.median(pairs)))
    of_rows = ranks * pairs * TARGET_ROWS / manifest.n / CORES
    moving = 2 * 8 * COLUMNS / NETWORK * math.ceil(math.log2(CORES))
    seconds = evaluations * (of_rows + steps + moving)
    yield row(
        "billion",
        name,
        "an evaluation of ROCArea on 2 cores: core-nanoseconds for each nonzero",
        1e9 * ranks * pairs / manifest.nnz,
        "ns",
    )
    yield row("billion", name, f"ROCArea, {found['status']} to {EPSILON:g}: evaluations", evaluations)
    large = f"{TARGET_ROWS:.0g} rows, {CORES} cores, estimated"
    yield row(
        "billion",
        large,
        "share of products and loss in the time of an evaluation",
        100 * of_rows / (of_rows + steps + moving),
        "%",
    )
    yield row("billion", large, "share of moving two vectors", 100 * moving / (of_rows + steps + moving), "%")
    yield row("billion", large, "seconds of solving", seconds, "s")
    for other, published in PUBLISHED.items():
        what = f"core-seconds published for {other} ({published:,.0f}) / those of solving"
        yield row("billion", large, what, published / (CORES * seconds), "x")
