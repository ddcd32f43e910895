"""Compressed shards compared with plain ones: their size, and the time to read them from disk and from the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.shards.dataset import MemoryBudget, load, load_matrix, read_manifest
from distsms.shards.from_arrays import write_data
from distsms.shards.manifest import COMPRESSIONS, Manifest
from scripts.benchmarks.measuring import Row, Set, row
from scripts.benchmarks.stream import forget, read

BYTES, SMALL = 2**29, 2**25
TIMES = 4  # the data set is this many times as large as the memory allowed for rows


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for a data set, which is repeated until its plain shards have half a GiB.

    The repeated data sets stay in the folder. Measurements of plain and of compressed shards alternate.
    """
    plain, packed = (_copy(given, folder, kind, SMALL if quick else BYTES) for kind in COMPRESSIONS)
    sizes = [sum(shard.bytes for shard in manifest.shards) for manifest in (plain, packed)]
    yield row("compression", given.name, "size ratio plain / compressed", sizes[0] / sizes[1])
    functions = {
        "loading": [_loading(manifest) for manifest in (plain, packed)],
        f"X w with memory for 1/{TIMES} of the rows": [_streaming(manifest, sizes[0]) for manifest in (plain, packed)],
    }
    times: dict[tuple[str, str], list[list[float]]] = {}
    for _ in range(3 if quick else 7):
        for place in ("disk", "the page cache"):
            for what, pair in functions.items():
                found = []
                for manifest, function in zip((plain, packed), pair, strict=True):
                    forget(manifest) if place == "disk" else read(manifest, 2 * sizes[0])
                    start = time.perf_counter()
                    function()
                    found.append(time.perf_counter() - start)
                times.setdefault((place, what), []).append(found)
    for (place, what), some in times.items():
        seconds = np.array(some)
        yield row(
            "compression",
            given.name,
            f"{what}, from {place}: time ratio compressed / plain",
            seconds[:, 1] / seconds[:, 0],
            "x",
        )


def _copy(given: Set, folder: Path, compression: str, n_bytes: int) -> Manifest:
    """Write the data set so many times that its plain shards have about `n_bytes`, with one shard for each copy."""
    data = folder / f"{given.name}-{compression}-{n_bytes}"
    if not (data / "manifest.json").exists():
        manifest = read_manifest(given.train)
        X, y, _ = load_matrix(manifest)
        times = max(1, n_bytes // (12 * X.nnz))
        stack = sparse.vstack([X] * times, "csr") if sparse.issparse(X) else np.tile(X, (times, 1))
        write_data(data, stack, np.tile(y, times), times, dtype=manifest.dtype, compression=compression)
    return read_manifest(data)


def _loading(manifest: Manifest) -> Callable[[], object]:
    return lambda: load(manifest, Communicator())


def _streaming(manifest: Manifest, plain_bytes: int) -> Callable[[], object]:
    features = load(manifest, Communicator(), budget=MemoryBudget(max(plain_bytes // TIMES, 2**26))).features
    w, s = np.random.default_rng(0).normal(size=features.shape[1]), np.empty(features.shape[0])
    return lambda: features.margins(w, s)
