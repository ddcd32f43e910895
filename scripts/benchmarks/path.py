"""Time a cross-validated path with all models trained in one pass over the data, compared with one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scripts.benchmarks.measuring import Row, Set, row
from scripts.benchmarks.running import run_module


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for a data set: for the whole path and for its products alone, on one rank and on two."""
    for ranks in (1, 2):
        for measure, found in run_module("one_pass", given.train, 2 if quick else 7, ranks=ranks).items():
            times = {name: np.array(values) for name, values in found.items()}
            on = f"{measure}, {ranks} rank{'s' * (ranks > 1)}"
            yield row(
                "path",
                given.name,
                f"{on}: time ratio one by one / in one pass",
                times["one by one"] / times["one pass"],
                "x",
            )
            products = times["products one by one"] / times["products one pass"]
            yield row(
                "path", given.name, f"{on}: time ratio one by one / in one pass, X w and X'c alone", products, "x"
            )
            share = 100 * times["products one by one"] / times["one by one"]
            yield row("path", given.name, f"{on}: share of the time for X w and X'c, one by one", share, "%")
