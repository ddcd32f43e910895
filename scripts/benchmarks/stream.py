"""Train on rows that need four times the allowed memory, and compare the speed of passes with that of the disk."""

from __future__ import annotations

import gc
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from distsms.base.communicator import Communicator
from distsms.shards.dataset import MemoryBudget, load, read_manifest
from distsms.shards.manifest import Manifest
from scripts.benchmarks.measuring import Row, Set, row
from scripts.benchmarks.running import train
from scripts.experiments.common import run_program

ROWS, COLUMNS, DENSITY, SMALL = 2.5e6, 1e4, 0.02, 2e5
TIMES = 4  # the data set is this many times as large as the memory that all ranks together may use
BLOCK = 2**24


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for a synthetic data set, which stays in the folder. `given` is not used."""
    data = folder / f"long-rows-{SMALL if quick else ROWS:.0g}"
    if not (data / "manifest.json").exists():
        words = ("--rows", SMALL if quick else ROWS, "--columns", COLUMNS, "--density", DENSITY)
        run_program("synth", "sparse", data, *words, "--dtype", "float32", "--quiet", ranks=2)
    manifest = read_manifest(data)
    n_bytes = sum(shard.bytes for shard in manifest.shards)
    name = f"synthetic, {manifest.n:.3g} rows, {n_bytes / 2**30:.3g} GiB"
    yield from _memory(name, data, n_bytes, folder, quick)
    yield from _passes(name, data, n_bytes, 3 if quick else 5)


def _memory(name: str, data: Path, n_bytes: int, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows that compare training with and without the limit --memory: peak memory, J, gap, time."""
    words = ("--lambda", 1e-4, "--max-evaluations", 4 if quick else 10, "--history", 5, "--planes", 20)
    train(data, folder / "model.h5", *words, "--memory", n_bytes // 2)  # so that all kernels are compiled
    for ranks in (1, 2):
        allowed = max(n_bytes / TIMES / ranks, 300 * 2**20)  # Python alone takes most of 300 MiB
        streamed, peaks = train(data, folder / "model.h5", *words, "--memory", int(allowed), ranks=ranks)
        resident, whole = train(data, folder / "model.h5", *words, ranks=ranks)
        on = f"{ranks} rank{'s' * (ranks > 1)}"
        what = f"{on}: peak memory of a rank / --memory {allowed / 2**20:.4g}MiB"
        yield row("stream", name, what, max(peaks) / allowed, "x", "<= 1")
        yield row("stream", name, f"{on}: peak memory of a rank without --memory", max(whole) / 2**20, "MiB")
        apart = abs(streamed["J"] - resident["J"]) + abs(streamed["gap"] - resident["gap"])
        yield row("stream", name, f"{on}: difference of J plus that of the gap, with and without --memory", apart)
        seconds = streamed["seconds"] / resident["seconds"]
        what = f"{on}: time ratio of training with / without --memory, files in the page cache"
        yield row("stream", name, what, seconds, "x")


def _passes(name: str, data: Path, n_bytes: int, rounds: int) -> Iterator[Row]:
    """Yield the table rows that compare a pass of one rank with merely reading as many bytes of the same files."""
    manifest = read_manifest(data)
    features = load(manifest, Communicator(), budget=MemoryBudget(n_bytes // TIMES)).features
    rng = np.random.default_rng(0)
    (n, p), size = features.shape, features.bytes_per_pass
    w, c, s, r = rng.normal(size=p), rng.normal(size=n), np.empty(n), np.empty(p)
    functions: dict[str, tuple[bool, Callable[[], object]]] = {
        "X w, cold": (True, lambda: features.margins(w, s)),
        "X'c, cold": (True, lambda: features.transposed_times(c, r)),
        "direct": (True, lambda: read(manifest, size, os.O_DIRECT)),
        "plain": (True, lambda: read(manifest, size)),
        "X w, warm": (False, lambda: features.margins(w, s)),
        "X'c, warm": (False, lambda: features.transposed_times(c, r)),
        "cached": (False, lambda: read(manifest, size)),
    }
    times: dict[str, list[float]] = {what: [] for what in functions}
    for _ in range(rounds):
        for what, (cold, function) in functions.items():
            if cold:
                forget(manifest)
            elif what == "X w, warm":
                read(manifest, n_bytes)
            start = time.perf_counter()
            function()
            times[what].append(time.perf_counter() - start)
    found = {what: np.array(some) for what, some in times.items()}
    yield row("stream", name, "bytes read in one pass of one rank", size / 2**30, "GiB")
    for what in ("direct", "plain", "cached"):
        how = {"direct": "O_DIRECT", "plain": "read(), from disk", "cached": "read(), from the page cache"}[what]
        yield row("stream", name, f"reading the files alone, {how}", size / found[what] / 2**30, "GiB/s")
    for product in ("X w", "X'c"):
        from_disk, warm = found[f"{product}, cold"], found[f"{product}, warm"]
        yield row("stream", name, f"{product}, from disk", size / from_disk / 2**30, "GiB/s")
        yield row(
            "stream",
            name,
            f"{product}, from disk: time ratio pass / reading alone, O_DIRECT",
            from_disk / found["direct"],
            "x",
        )
        yield row(
            "stream",
            name,
            f"{product}, from disk: time ratio pass / reading alone, read()",
            from_disk / found["plain"],
            "x",
        )
        yield row("stream", name, f"{product}, from the page cache", size / warm / 2**30, "GiB/s")
    del features
    gc.collect()
    features = load(manifest, Communicator()).features
    for product, function in {
        "X w": lambda: features.margins(w, s),
        "X'c": lambda: features.transposed_times(c, r),
    }.items():
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - start)
        yield row(
            "stream",
            name,
            f"{product}, from the page cache: time ratio streamed / all rows in memory",
            found[f"{product}, warm"] / seconds,
            "x",
        )


def forget(manifest: Manifest) -> None:
    """Remove the shards from the operating system's cache."""
    for shard in manifest.shards:
        with open(manifest.directory / shard.file, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(manifest: Manifest, size: int, flags: int = 0) -> None:
    """Read `size` bytes of the shards, beginning with the last shard, in large blocks."""
    with mmap.mmap(-1, BLOCK) as block:
        for shard in manifest.shards[::-1]:
            file = os.open(manifest.directory / shard.file, os.O_RDONLY | flags)
            for at in range(0, min(size, shard.bytes), BLOCK):
                size -= os.preadv(file, [block], at)
            os.close(file)
            if size <= 0:
                return
