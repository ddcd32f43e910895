"""Time an evaluation on two ranks compared with one rank, and measure how much faster two cores run a triad."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distsms.shards.dataset import read_manifest
from scripts.benchmarks.measuring import Row, Set, row
from scripts.benchmarks.running import run_module

LARGE = 5_000_000
"""A data set has a target if it has at least this many nonzeros."""


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for a data set. For a small one, they show the additional time that a second rank costs."""
    found = run_module("two_ranks", given.train, 3 if quick else 15, ranks=2)
    large = read_manifest(given.train).nnz >= LARGE
    for measure, times in found.items():
        alone, pair, triad, triads = (np.array(times[name]) for name in ("one", "two", "triad alone", "triads"))
        gain = 2 * triad / triads
        target = f">= {min(1.7, 0.85 * float(np.median(gain))):.3g}" if large else ""
        yield row("ranks", given.name, f"{measure}: speedup of two ranks over one", alone / pair, "x", target)
        if large:
            yield row("ranks", given.name, "speedup of two triads at once over one after the other", gain, "x")
        else:
            extra = 100 * (pair - alone / 2) / alone
            what = f"{measure}: time on two ranks minus half the time on one, as a share of the time on one"
            yield row("ranks", given.name, what, extra, "%")
