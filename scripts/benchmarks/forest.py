"""Compare the leaves that rows reach with scikit-learn's `apply`, and products on leaves with SciPy's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.features.growing import MIN_LEAF, grow, singles
from distsms.features.rows import Rows
from distsms.shards import dataset
from scripts.benchmarks.coded import MOST, compared
from scripts.benchmarks.measuring import Row, Set, row, timed

ROWS, TREES = 50_000, 100
"""The most rows, on all of which the trees grow."""


def benchmark(given: Set, _folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows of a set."""
    from sklearn.ensemble import ExtraTreesClassifier

    X, y, _ = dataset.load_matrix(dataset.read_manifest(given.train))
    n = 1000 if quick else ROWS
    X, y, trees, seconds = sparse.csr_matrix(X)[:n], y[:n], 5 if quick else TREES, 0.2 if quick else 5.0
    dense = X.toarray()
    wanted: dict[str, Any] = {"max_features": None, "min_samples_leaf": MIN_LEAF, "random_state": 0}
    theirs, ours = ExtraTreesClassifier(trees, **wanted), list[Any]()
    single, rows = dense.astype(np.float32), Rows(singles(X), y)
    functions = {
        "scikit-learn": lambda: theirs.fit(single, y),
        "distsms": lambda: ours.append(grow(rows, Communicator(), trees)),
    }
    theirs_seconds, our_seconds = timed_once(functions)
    ratio = theirs_seconds / our_seconds
    yield row("forest", given.name, f"growing {trees} trees: time ratio scikit-learn / distsms, {len(y)} rows", ratio)
    forest = ours[-1]
    times = timed(
        {
            "theirs": lambda: theirs.apply(single),
            "dense": lambda: forest.codes(dense),
            "sparse": lambda: forest.codes(X),
        },
        seconds,
    )
    name = f"{given.name}, {trees} trees of {np.mean(forest.sizes):.0f} leaves"
    for kind in ("dense", "sparse"):
        ratio = times["theirs"] / times[kind]
        yield row("forest", name, f"{kind} rows: leaves of rows per second", len(y) / times[kind], "1/s")
        yield row("forest", name, f"{kind} rows: time ratio scikit-learn's apply / distsms", ratio, "x", ">= 1")
    codes = forest.codes(X)
    codes = np.resize(codes, (max(1, int(MOST / trees)), trees)) if not quick else codes
    yield row("forest", name, "bytes of codes per row and tree", codes.nbytes / codes.size)
    yield from compared("forest", name, forest.code_map, codes, ">= 3", quick)


def timed_once(functions: dict[str, Any]) -> list[float]:
    """Return the seconds of each function, which is called once."""
    found = []
    for function in functions.values():
        begun = time.perf_counter()
        function()
        found.append(time.perf_counter() - begun)
    return found
