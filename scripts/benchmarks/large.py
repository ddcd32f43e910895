"""Train on a large sparse synthetic data set with 2 ranks; compare J of a small one on 32 ranks and on one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from distsms.shards.dataset import read_manifest
from scripts.benchmarks.measuring import EPSILON, Row, Set, Triad, row, two_cores
from scripts.benchmarks.running import train
from scripts.experiments.common import run_program

LAMBDA = 1e-4
ROWS, COLUMNS, SMALL = 2e7, 1e6, 2e4


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for two synthetic data sets, which stay in the folder. `given` is not used."""
    rows, few, many = (2e4, 2e3, 5) if quick else (ROWS, SMALL, 32)
    data, model = _made(folder / f"sparse-{rows:.0g}", rows, COLUMNS), folder / "model.h5"
    manifest = read_manifest(data)
    name = f"synthetic, {manifest.n:.3g} rows, {manifest.nnz:.3g} nonzeros"
    n_bytes = sum(shard.bytes for shard in manifest.shards)
    yield row("large", name, "size of the shards", n_bytes / 2**30, "GiB", "" if quick else ">= 1")
    for measure in ("rocarea", "prbep"):
        start = time.perf_counter()
        found, peaks = train(data, model, *_words(measure), ranks=2)
        whole = time.perf_counter() - start
        what = f"{measure}, 2 ranks, {found['status']} after {found['evaluations']} evaluations"
        bare = 2 * found["evaluations"] * n_bytes / two_cores([Triad(), Triad()])
        yield row(
            "large",
            name,
            f"{what}: solving / reading all rows twice an evaluation as fast as two triads",
            found["seconds"] / bare,
            "x",
        )
        yield row("large", name, f"{what}: the whole command / solving", whole / found["seconds"], "x")
        yield row("large", name, f"{measure}, 2 ranks: proved gap", found["gap"], "", f"<= {EPSILON:g}")
        yield row("large", name, f"{measure}, 2 ranks: largest peak memory of a rank", max(peaks) / 2**30, "GiB")
    data = _made(folder / f"sparse-{few:.0g}", few, 1e4)
    for measure in ("rocarea", "prbep"):
        alone, together = (train(data, model, *_words(measure), ranks=ranks)[0] for ranks in (1, many))
        apart = abs(alone["J"] - together["J"])
        what = f"{measure}: difference of J on {many} ranks and on one / larger proved gap"
        yield row("large", f"synthetic, {few:.0g} rows", what, apart / max(alone["gap"], together["gap"]), "x", "<= 1")


def _words(measure: str) -> tuple[object, ...]:
    return "--measure", measure, "--lambda", LAMBDA, "--epsilon", EPSILON


def _made(data: Path, rows: float, columns: float) -> Path:
    if not (data / "manifest.json").exists():
        run_program(
            "synth", "sparse", data, "--rows", rows, "--columns", columns, "--dtype", "float32", "--quiet", ranks=2
        )
    return data
