"""Estimate what a training for ROCArea takes on 1e9 rows and 32 cores, and on 1e12 rows and 4096 cores.

The rows are like those of Criteo: 39 nonzeros each, 2^20 columns, 3 % positive. The seconds of products and loss are
those of each row in docs/results/data/scaling.json, where 16 ranks share the memory of one machine, and each rank has
one core. Bytes and memory are those that `Loss.cost` counts. Messages pass through a network of 10 Gbit/s, in as many
steps as a binary tree of all ranks has levels. The number of evaluations is that of 1e8 rows that are made like
Criteo's. One pass of Vowpal Wabbit takes as much time for each row as was measured on 2e7 of those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distsms.losses.binned import MOST, RocAreaBins
from distsms.losses.rocarea import RocAreaExchange
from scripts import records
from scripts.benchmarks.measuring import Row, Set, row

COLUMNS, POSITIVE, NETWORK = 2**20, 0.03, 1.25e9
TARGETS = ((10**9, 32), (10**12, 4096))  # rows and ranks
MEASURED_ROWS = 1e7


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows. Nothing is run: the arguments are not used."""
    measured = max(_records("scaling"), key=lambda record: record["ranks"])
    of_row = measured["ranks"] / MEASURED_ROWS  # seconds for each row of a rank, from those of all
    products = of_row * (measured["X w [s]"] + measured["X'c [s]"])
    loss = of_row * measured["loss from cells [s]"]
    evaluations = _record("criteo", "rocarea")["evaluations"]
    vowpal = _record("criteo-2e7", "Vowpal Wabbit")
    for n, ranks in TARGETS:
        n_pos = round(POSITIVE * n)
        levels, name = math.ceil(math.log2(ranks)), f"{n:.0g} rows, {ranks} cores, estimated"
        bins, sorting = (of.cost(n_pos, n - n_pos, ranks) for of in (RocAreaBins, RocAreaExchange))
        seconds = {
            "X w and X'c": products * n / ranks,
            "the loss from cells": loss * n / ranks,
            "messages: two vectors, and the most cells": (16 * COLUMNS + 32 * MOST) / NETWORK * levels,
        }
        for part, value in seconds.items():
            yield row("billion", name, f"an evaluation, {part}", value, "s")
        whole = sum(seconds.values())
        yield row("billion", name, f"a proof in {evaluations} evaluations", evaluations * whole, "s")
        one_pass = vowpal["cpu"] / vowpal["rows"] * n
        what = f"a proof: core-seconds / those of one pass of Vowpal Wabbit ({one_pass:,.0f})"
        yield row("billion", name, what, ranks * evaluations * whole / one_pass, "x")
        for how, cost in (("cells", bins), ("sorting", sorting)):
            yield row("billion", name, f"memory of a rank for the loss, by {how}", cost.held_by_each / 2**20, "MiB")
        yield row(
            "billion", name, "bytes of a rank for the loss, by sorting / from cells", sorting.bytes / bins.bytes, "x"
        )


def _records(name: str) -> list[dict[str, Any]]:
    return list(records.read(records.PUBLISHED / f"{name}.json")["records"])


def _record(name: str, program: str) -> dict[str, Any]:
    """Return the record of a program in a file of `scripts.experiments.criteo`."""
    return next(record for record in _records(name) if record["program"] == program)
