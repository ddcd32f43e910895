"""Two ranks against one for an evaluation, beside what two cores gain over one in a triad."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distsms.data.shards.dataset import read_manifest
from scripts.benchmarks.measuring import Row, Set, row
from scripts.benchmarks.running import run_module

LARGE = 5_000_000
"""Nonzeros of the sets that have a target."""


def benchmark(one: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Rows of a set; on the small ones, what a rank costs that has little to do."""
    found = run_module("two_ranks", one.train, 3 if quick else 15, ranks=2)
    large = read_manifest(one.train).nnz >= LARGE
    for measure, times in found.items():
        alone, pair, triad, triads = (np.array(times[name]) for name in ("one", "two", "triad alone", "triads"))
        gain = 2 * triad / triads
        target = f">= {min(1.7, 0.85 * float(np.median(gain))):.3g}" if large else ""
        yield row("ranks", one.name, f"{measure}: two ranks, times faster than one", alone / pair, "x", target)
        if large:
            yield row("ranks", one.name, "two triads at once, times faster than one after the other", gain, "x")
        else:
            extra = 1e3 * (pair - alone / 2)
            yield row("ranks", one.name, f"{measure}: two ranks need more than half of one's time by", extra, "ms")
