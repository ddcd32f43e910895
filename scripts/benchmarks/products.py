"""Compare X w and X'c with SciPy's on the same float64 data: time, memory per nonzero, and memory bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distsms.matrix.local import SparseRows
from distsms.shards.dataset import load_matrix, read_manifest
from scripts.benchmarks.measuring import Row, Set, Triad, row, timed


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for a data set. No coefficient is zero, so that X'c cannot skip rows."""
    features, (X, y, _) = given.load().features, load_matrix(read_manifest(given.train))
    if not isinstance(features, SparseRows):
        return
    rng = np.random.default_rng(0)
    w, c = rng.normal(size=X.shape[1]), rng.normal(size=len(y))
    transposed, s, r = X.T, np.empty(len(y)), np.empty(X.shape[1])
    functions = {
        "X w": lambda: features.margins(w, s),
        "X'c": lambda: features.transposed_times(c, r),
        "SciPy X w": lambda: X @ w,
        "SciPy X'c": lambda: transposed @ c,
    }
    times, triad = timed(functions, 0.2 if quick else 6.0), Triad().rate()
    ones = features.arrays[-1] is None
    for name in ("X w", "X'c"):
        ratio = times[f"SciPy {name}"] / times[name]
        yield row(
            "products", given.name, f"{name}: time ratio SciPy / distsms", ratio, "x", ">= 1.5" if ones else ">= 1"
        )
        rate = (features.nbytes + 8 * len(y)) / times[name]
        yield row("products", given.name, f"{name}: memory bandwidth / that of a triad", 100 * rate / triad, "%")
    yield row("products", given.name, "bytes of memory per nonzero", features.nbytes / features.nnz, "", _most(given))
    if not ones and X.data.dtype != np.float32:
        narrow = SparseRows(X.data.astype(np.float32), X.indices, np.diff(X.indptr), X.shape[1])
        what = "bytes of memory per nonzero with --dtype float32"
        yield row("products", given.name, what, narrow.nbytes / narrow.nnz, "", "<= 8.2")


def _most(given: Set) -> str:
    """Return the target for the bytes of memory per nonzero."""
    manifest = read_manifest(given.train)
    if not any(shard.values for shard in manifest.shards):
        return "<= 2.1" if manifest.p <= 2**16 else "<= 4.2"
    return "<= 8.2" if manifest.dtype == "float32" else ""
