"""Time the losses at margins from a training, compared with NumPy's sort and with SciPy's products X w and X'c."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from distsms.base.communicator import Communicator
from distsms.shards.dataset import load_matrix, read_manifest
from scripts.benchmarks.measuring import Row, Set, objective_of, requests, row, timed

SORT = {"covertype-nominal": ">= 10"}
PRODUCTS = {"adult9": "<= 2", "web8": "<= 1", "news20": "<= 0.1"}
FEW = 6  # evaluations in a round


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for a data set. In every round, all functions use the same successive w of a training."""
    block, (X, y, _) = given.load(), load_matrix(read_manifest(given.train))
    c = np.random.default_rng(0).normal(size=len(y))
    losses, asked, margins = {}, {}, {}
    for measure in ("rocarea", "prbep", "pauc@0.05"):
        objective = objective_of(block, measure, Communicator())
        losses[measure] = objective.losses[0]
        asked[measure] = (requests(objective) * FEW)[:FEW]  # if there are fewer requests, they are repeated
        margins[measure] = [block.features.margins(request.w) for request in asked[measure]]

    def evaluations(measure: str) -> None:
        for request, s in zip(asked[measure], margins[measure], strict=True):
            losses[measure].evaluate(s, request.nu)

    functions: dict[str, Callable[[], object]] = {
        "rocarea": lambda: evaluations("rocarea"),
        "prbep": lambda: evaluations("prbep"),
        "pauc": lambda: evaluations("pauc@0.05"),
        "sorts": lambda: [(np.sort(s[y > 0]), np.sort(s[y < 0])) for s in margins["rocarea"]],
        "products": lambda: [(X @ request.w, X.T @ c) for request in asked["rocarea"]],
    }
    times = timed(functions, 0.2 if quick else 6.0)
    for what, this, that, wanted in (
        ("time ratio ROCArea loss / SciPy's X w and X'c", "rocarea", "products", target(PRODUCTS, given.name)),
        ("time ratio NumPy's sort of both classes / ROCArea loss", "sorts", "rocarea", target(SORT, given.name)),
        ("time ratio PRBEP loss / ROCArea loss", "prbep", "rocarea", "<= 1"),
        ("time ratio pauc@0.05 loss / ROCArea loss", "pauc", "rocarea", "<= 2"),
    ):
        yield row("loss", given.name, what, times[this] / times[that], "x", wanted)


def target(targets: dict[str, str], name: str) -> str:
    """Return the target of a data set whose name begins with a key of `targets`; "" if there is none."""
    return next((wanted for known, wanted in targets.items() if name.startswith(known)), "")
