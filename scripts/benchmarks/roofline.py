"""Compare the bytes per second of each kernel with those of STREAM's triad, which limit what a core can do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scripts.benchmarks.kernels import kernels
from scripts.benchmarks.measuring import Row, Set, Triad, row, timed

ENTRIES, FEW = 20_000_000, 200_000
"""Entries of the rows. They take more memory than the caches hold."""


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield a table row for each kernel. `given` is not used. The triad takes its turn in each round."""
    triad = Triad()
    for kernel in kernels(FEW if quick else ENTRIES):
        times = timed({"kernel": kernel.ours, "triad": triad}, 0.2 if quick else 3.0)
        rates = kernel.nbytes / times["kernel"] / (triad.nbytes / times["triad"])
        yield row("roofline", f"{kernel.nbytes / 1e6:.0f} MB", kernel.name, 100 * rates, "%")
