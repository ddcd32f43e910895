"""Measure the peak memory of each rank in training, in three parts: rows, interpreter, and vectors of length p."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distsms.shards.dataset import load_matrix, read_manifest
from distsms.shards.from_arrays import write_data
from scripts.benchmarks.measuring import LAMBDA, Row, Set, row
from scripts.benchmarks.running import train_unopened

FEW = 50  # rows of each class
SMALL = 2**25
"""A share of the shards with fewer bytes disappears in what Python's own memory varies: it has no target."""


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for a data set.

    Training on a few rows with 8 columns measures the memory of the interpreter alone. Training on the same rows with
    all columns adds the vectors of length p.
    """
    words = ("--lambda", LAMBDA, "--epsilon", 1e-12, "--max-evaluations", 5 if quick else 60)
    X, y, _ = load_matrix(read_manifest(given.train))
    few = [i for sign in (1, -1) for i in (y == sign).nonzero()[0][:FEW]]
    manifest, ranks = read_manifest(given.train), 2
    share = sum(shard.bytes for shard in manifest.shards) / ranks
    base = {}
    for name, rows in (("no columns", X[few][:, :8]), ("few rows", X[few])):
        write_data(folder / "few", rows, y[few], dtype=manifest.dtype, overwrite=True)
        for _ in range(2):  # the first run compiles what is used, which takes memory
            base[name] = train_unopened(folder / "few", folder, *words, ranks=ranks)[1]
    _, peaks = train_unopened(given.train, folder, *words, ranks=ranks)
    for rank, (peak, with_p, without) in enumerate(zip(peaks, base["few rows"], base["no columns"], strict=True)):
        who = "root" if rank == 0 else f"rank {rank}"
        yield row("memory", given.name, f"{who}: memory of Python and its libraries", without / 2**20, "MiB")
        yield row(
            "memory",
            given.name,
            f"{who}: memory for vectors of length p = {manifest.p}",
            (with_p - without) / 2**20,
            "MiB",
        )
        what = f"{who}: memory for rows (its share of the shards: {share / 2**20:.3g} MiB)"
        yield row("memory", given.name, what, (peak - with_p) / 2**20, "MiB")
        if share >= SMALL:
            what = f"{who}: memory for rows / its share of the shards"
            yield row("memory", given.name, what, (peak - with_p) / share, "x", "<= 1.3")
