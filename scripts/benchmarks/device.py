"""Test and time what a graphics processor computes, in one run of at most five minutes that needs no network.

    scripts/bench device [--rows 1e7 1e8] [--json FILE]
    NUMBA_ENABLE_CUDASIM=1 scripts/bench device --rows 2000       shows in CUDA's simulator that it works

It needs what distsms needs, and numba-cuda. Wheels of what a machine lacks, tests included, may lie in the folder
`wheels` of the clone: `scripts/bench device --fetch 3.12`, where there is a network, gets those for that Python.

1. The tests marked `cuda`, on this device.
2. J, the lower bound and w of trainings beside those of the processor, on a hundredth of the rows (2,000 to 1e6).
3. For each number of rows, like Criteo's (13 numbers and 26 codes, 3 % positive): the seconds of each part, and the
   share of a copy's bandwidth at which it reads and writes what it must; whole evaluations; a training to a gap of
   1e-3; and products with a part of the rows streamed. A time is the median of five.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

for name in ("OMP", "OPENBLAS", "MKL"):  # all cores for the one process; before NumPy is loaded
    os.environ.setdefault(f"{name}_NUM_THREADS", str(len(os.sched_getaffinity(0))))

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.base.typing import Floats
from distsms.cli.types import positive
from distsms.device.place import OFFERED, place_of
from distsms.matrix.code_maps import Categories
from distsms.matrix.coded import CodedRows
from distsms.matrix.local import DenseRows
from distsms.matrix.side_by_side import SideBySide
from distsms.optim.objective import Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import Result
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from scripts import records
from scripts.compare.tables import markdown

SIZES: tuple[int, ...] = (1460, 583, 65000, 65000, 305, 24, 12517, 633, 3, 65000, 5683, 65000, 3194)
SIZES += (27, 14992, 65000, 10, 5652, 2173, 4, 65000, 18, 15, 65000, 105, 65000)
"""The numbers of codes of Criteo's columns; large ones are cut to what 16 bits hold."""
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") != "0"
NUMBERS, POSITIVE, NU, LAMBDA, ROUNDS = 13, 0.03, 0.04, 1e-5, 1 if SIMULATED else 5
PART = 2**7 if SIMULATED else 2**18  # rows that are drawn with one seed
WHEELS = "scipy h5py greenlet zstandard xxhash threadpoolctl"
WHEELS += " pytest pluggy iniconfig packaging hypothesis sortedcontainers attrs"
BESIDE = ("rocarea", "pauc@0.05", "prbep", "logistic")
ALONE, SETTINGS = Communicator(), Settings(lam=LAMBDA, epsilon=1e-3, solver="lbfgs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive, nargs="+", default=[1e7, 1e8], help="numbers of rows (%(default)s)")
    parser.add_argument("--seconds", type=positive, default=300.0, help="nothing is begun after these (%(default)g)")
    parser.add_argument("--fetch", metavar="VERSION", help="download wheels for this Python to `wheels`, and end")
    records.add_json(parser)
    args = parser.parse_args()
    if args.fetch:
        words = ["download", "--only-binary=:all:", "--no-deps", "--python-version", args.fetch]
        return subprocess.run(
            [sys.executable, "-m", "pip", *words, "--dest", records.ROOT / "wheels", *WHEELS.split()]
        ).returncode
    end, rows = time.monotonic() + args.seconds, list[records.Record]()
    place = place_of("cuda", Measure.parse("rocarea"), ALONE)
    print(place.describe(), flush=True)
    tested = tests()
    few = draw(200 if SIMULATED else int(min(max(min(args.rows) / 100, 2000), 1e6)))
    rows += [beside(measure, few) for measure in BESIDE]
    print(table(rows), flush=True)
    del few
    for number, n in enumerate(sorted(map(int, args.rows))):
        if time.monotonic() > end - 100 * (number > 0):
            print(f"{n} rows are left out, since {args.seconds:g} s are nearly over")
            continue
        of_rows = timed(draw(n))
        print(table(of_rows), flush=True)
        rows += of_rows
    records.write(args.json, "scripts.benchmarks.device", rows)
    return tested


def table(rows: list[records.Record]) -> str:
    """Return a Markdown table with a line for each record."""
    names = [*dict.fromkeys(name for row in rows for name in row)]
    lines = [
        [f"{row[name]:.5g}" if isinstance(row.get(name), float) else str(row.get(name, "")) for name in names]
        for row in rows
    ]
    return markdown(names, lines)


def tests() -> int:
    """Run the tests of devices, if there is a pytest; return their exit code."""
    if find_spec("pytest") is None:
        print("no pytest is installed here: the tests are left out")
        return 1
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "cuda", "tests/device"]
    words += ["-k", "test_products.py and not streamed"] if SIMULATED else []
    return subprocess.run([sys.executable, *words], cwd=records.ROOT).returncode


class Rows:
    """Drawn rows: 13 numbers and 26 codes each, and labels with the signal of a linear model."""

    def __init__(self, n: int) -> None:
        self.sizes = tuple(min(size, max(2, n // 100)) for size in SIZES)
        self.X, self.y = np.empty((n, NUMBERS), np.float32), np.empty(n, np.int8)
        code_map = Categories(self.sizes)
        self.codes, self.dtype = np.empty(n * len(self.sizes), code_map.dtype), code_map.dtype
        self.cuts = [*range(0, n, PART), n]
        self.truth = np.random.default_rng(0).normal(size=NUMBERS + code_map.p) / 5
        self.starts = NUMBERS + code_map.offsets
        self.threshold = 0.0
        scores = self._draw(0, min(PART, n))
        self.threshold = float(np.quantile(scores, 1 - POSITIVE))
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(self._draw, self.cuts[:-1], self.cuts[1:]))
        self.features = SideBySide([DenseRows(self.X), CodedRows(code_map, self.codes, self.cuts)])

    def _draw(self, start: int, stop: int) -> Floats:
        """Draw the rows of a part, and return their scores with noise."""
        rng, n, B = np.random.default_rng([1, start]), stop - start, len(self.sizes)
        rng.standard_normal(out=(numbers := np.empty((n, NUMBERS), np.float32)), dtype=np.float32)
        self.X[start:stop] = numbers
        scores = numbers @ self.truth[:NUMBERS] + rng.normal(size=n)
        codes = self.codes[start * B : stop * B].reshape(B, n)
        for b, size in enumerate(self.sizes):
            codes[b] = (size * rng.random(n, np.float32) ** 3).astype(self.dtype)
            scores += self.truth[self.starts[b] + codes[b]]
        self.y[start:stop] = np.where(scores > self.threshold, 1, -1)
        return scores


def draw(n: int) -> Rows:
    begun = time.perf_counter()
    rows = Rows(n)
    print(f"\n{n} rows drawn in {time.perf_counter() - begun:.1f} s", flush=True)
    return rows


def beside(measure: str, rows: Rows) -> records.Record:
    """Train on the device and on the processor; say how J, lower bound and w differ, and what both take."""
    results = dict[str, Result]()
    for name in ("cuda", "cpu"):
        objective, close = made(measure, rows, name)
        results[name] = minimize(objective, SETTINGS)
        close()
    device, cpu = results["cuda"], results["cpu"]
    return {
        "measure": measure,
        "rows": len(rows.y),
        "J": device.J,
        "J of the processor": cpu.J,
        "lower bound": device.lower_bound,
        "that of the processor": cpu.lower_bound,
        "gap": device.gap,
        "difference of w": float(np.linalg.norm(device.w - cpu.w) / np.linalg.norm(cpu.w)),
        "evaluations": f"{device.evaluations} / {cpu.evaluations}",
        "seconds": device.seconds,
        "of the processor": cpu.seconds,
    }


def made(measure: str, rows: Rows, device: str) -> tuple[Objective, Callable[[], None]]:
    """Return an objective of the rows, and what frees what it takes."""
    parsed = Measure.parse(measure)
    place = place_of(device, parsed, ALONE)
    features = place.features(rows.features, None, ALONE)
    loss = place.loss(parsed, OFFERED[parsed.family.name], rows.y, None, ALONE, None)
    return Objective(features, [loss], ALONE), place.free


class Notes(list[records.Record]):
    """The seconds of parts, with the rate at which they move bytes, and its share of that of a copy on the device."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n, self.rate = n, math.inf

    def note(self, part: str, seconds: float, moved: float = 0.0) -> None:
        rate = moved / seconds
        rates = {"GB/s": rate / 1e9, "share of a copy": rate / self.rate} if moved else {}
        self.append({"rows": self.n, "part": part, "seconds": seconds, **rates})

    def time(self, part: str, moved: float, call: Callable[[], object]) -> None:
        self.note(part, median(call), moved)


def median(call: Callable[[], object]) -> float:
    """Return the median of the seconds of some calls, after one that compiles."""
    from numba import cuda

    times = []
    for _ in range(ROUNDS + 1):
        begun = time.perf_counter()
        call()
        cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return float(np.median(times[1:]))


def timed(rows: Rows) -> list[records.Record]:
    """Return the seconds of each part of an evaluation, of a training, and of streamed products."""
    notes, entries = Notes(len(rows.y)), float(rows.X.nbytes + rows.codes.nbytes)
    scores = time_parts(rows, entries, notes)
    time_streamed(rows, entries, scores, notes)
    return notes


def time_parts(rows: Rows, entries: float, notes: Notes) -> Floats:
    """Time a copy, the parts of an evaluation, the whole, and a training; return scores."""
    from distsms.device.runtime import DeviceVector

    n, begun = len(rows.y), time.perf_counter()
    objective, close = made("rocarea", rows, "cuda")
    notes.note("rows to the device, statistics of columns", time.perf_counter() - begun)
    features: Any = objective.features
    loss: Any = objective.losses[0]
    w = 0.3 * rows.truth
    scores, other = features.score_buffer(2)
    copied = median(lambda: other.array.copy_to_device(scores.array))
    notes.rate = 16 * n / copied
    notes.note("copy", copied, 16.0 * n)
    notes.time("X w", entries + 24.0 * n * len(rows.features.groups), lambda: features.margins(w[None], [scores]))
    notes.time("loss: least and largest scores", 9.0 * n, lambda: loss._ends(scores))
    notes.time("loss, all of it, and a copy of the scores", 51.0 * n, lambda: loss.evaluate(scores, NU))
    coefficients = loss.evaluate(scores, NU).coefficients
    moved = entries + 8.0 * n * (2 + len(rows.sizes))
    notes.time("X'c", moved, lambda: features.transposed_times(coefficients))
    request = Request(w, NU, ElasticNet(LAMBDA))
    notes.time("evaluation", 0.0, lambda: objective.evaluate([request]))
    result = minimize(objective, SETTINGS)
    ended = f"{result.evaluations} evaluations, {result.status.name.lower()}, gap {result.gap:.2g}"
    notes.note(f"training: {ended}", result.seconds)
    close()
    return np.asarray(DeviceVector(scores.array))


def time_streamed(rows: Rows, entries: float, scores: Floats, notes: Notes) -> None:
    """Time products for which only a part of the rows stays on the device."""
    from distsms.device.rows import BLOCK, DeviceFeatures, _besides
    from distsms.device.runtime import DeviceVector

    room = _besides(rows.features.groups, rows.features.shape) + entries - 2.5 * BLOCK
    try:
        features = DeviceFeatures(rows.features, room=room)
    except InputError as error:
        print(f"nothing is streamed: {error}")
        return
    vector, w, out = DeviceVector.of(scores / len(scores)), rows.truth[None], features.score_buffer(1)
    size = f"{features.streamed / 1e9:.3g} GB of {entries / 1e9:.3g} streamed"
    notes.time(f"X w, {size}", features.streamed, lambda: features.margins(w, out))
    notes.time(f"X'c, {size}", features.streamed, lambda: features.transposed_times(vector))
    features.close()


if __name__ == "__main__":
    sys.exit(main())
