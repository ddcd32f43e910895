"""Peak memory of each rank of a training: its share of the shards, the interpreter, and what p costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.measuring import LAMBDA, Row, Set, row
from benchmarks.running import train

from distsms.data.shards.dataset import load_matrix, read_manifest, write_data

FEW = 50  # rows of each class


def benchmark(one: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Rows of a set. What p costs is measured on a few rows of it; the base on these without their columns."""
    words = ("--lambda", LAMBDA, "--epsilon", 1e-12, "--max-evaluations", 5 if quick else 60)
    X, y, _ = load_matrix(read_manifest(one.train))
    few = [i for sign in (1, -1) for i in (y == sign).nonzero()[0][:FEW]]
    manifest, ranks = read_manifest(one.train), 2
    share = sum(shard.bytes for shard in manifest.shards) / ranks
    base = {}
    for name, rows in (("no columns", X[few][:, :8]), ("few rows", X[few])):
        write_data(folder / "few", rows, y[few], dtype=manifest.dtype, overwrite=True)
        base[name] = train(folder / "few", folder / "model.h5", *words, ranks=ranks)[1]
    _, peaks = train(one.train, folder / "model.h5", *words, ranks=ranks)
    for rank, (peak, with_p, without) in enumerate(zip(peaks, base["few rows"], base["no columns"], strict=True)):
        who = "root" if rank == 0 else f"rank {rank}"
        yield row("memory", one.name, f"{who}: the interpreter's base", without / 2**20, "MiB")
        yield row("memory", one.name, f"{who}: what p = {manifest.p} costs", (with_p - without) / 2**20, "MiB")
        what = f"{who}: memory for rows / its share of the shards, {share / 2**20:.3g} MiB"
        yield row("memory", one.name, what, (peak - with_p) / share, "x", "<= 1.3")
