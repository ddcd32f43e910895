"""Measure the main figures of a version, this one or that in another clone, beside programs that do not change.

Each figure is a count or a ratio to another program in the same run, so that versions can be compared although they
were measured on different days. Times of whole commands are seconds of the processor.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from distsms.shards.dataset import load_matrix, read_manifest
from scripts import records
from scripts.benchmarks.measuring import EPSILON, Row, Set, row
from scripts.compare.tables import markdown
from scripts.records import ROOT

LAMBDA, ROUNDS = 1e-4, 7
MEASURES = {"rocarea": "ROCArea", "prbep": "PRBEP"}
LIBRARIES = "import numpy, scipy.sparse, scipy.special, h5py"
COUNT, SOLVING, COMMAND, MEMORY, TEXT = (
    "evaluations to the proof",
    "solving / scikit-learn's logistic regression",
    "the command train / importing NumPy, SciPy and h5py",
    "peak memory of train / that of these imports",
    "shard / scikit-learn's reader of the same text",
)


def version_of(clone: Path) -> str:
    """Return the name of the version in a clone: the first heading of CHANGES.md."""
    text = (clone / "CHANGES.md").read_text(encoding="utf-8")
    return re.search(r"^## (.+)$", text, re.M)[1].strip()  # type: ignore[index]


def file_name(version: str) -> str:
    """Return the name of the file with the figures of a version, without .json."""
    return "history-" + re.sub(r"[^\w.]+", "-", version.lower())


def origin(clone: Path) -> dict[str, Any]:
    """Return what the file says about the measured version."""
    return {"version": version_of(clone), "committed": records.git("log", "-1", "--format=%cI", folder=clone)} | (
        records.commit(clone)
    )


def benchmark(given: Set, folder: Path, quick: bool, clone: Path = ROOT) -> Iterator[Row]:
    """Yield the figures of a data set. The programs take turns in each round."""
    from sklearn.datasets import dump_svmlight_file, load_svmlight_file
    from sklearn.linear_model import LogisticRegression

    X, y, _ = load_matrix(read_manifest(given.train))
    text, data, model = folder / f"{given.name}.svm", folder / f"{given.name}-of-history", folder / "history.h5"
    dump_svmlight_file(X, y, str(text), zero_based=False)
    shard = ("shard", text, data, "--overwrite", "--quiet")
    goal = ("--lambda", LAMBDA, "--epsilon", EPSILON, "--output", model, "--quiet")
    words = {name: ("train", data, "--measure", name, *goal) for name in MEASURES}
    rival = LogisticRegression(C=1 / (LAMBDA * len(y)), max_iter=1000, fit_intercept=False)

    def fit() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rival.fit(X, y)

    def run(*line: object) -> tuple[float, float]:
        return _run(("-m", "distsms", *map(str, line)), clone, folder)

    for line in (shard, *words.values()):  # compiles what is used
        run(*line)
    found: dict[tuple[str, str], list[float]] = {}

    def note(figure: str, what: str, value: float) -> None:
        found.setdefault((figure, what), []).append(value)

    for _ in range(1 if quick else ROUNDS):
        imports, small = _run(("-c", LIBRARIES), clone, folder)
        seconds, reading = _seconds(fit), _seconds(lambda: load_svmlight_file(str(text)), time.process_time)
        note(TEXT, given.name, run(*shard)[0] / reading)
        for name, shown in MEASURES.items():
            whole, peak = run(*words[name])
            info = json.loads(_output(("-m", "distsms", "info", str(model), "--json"), clone, folder))
            note(SOLVING, f"{shown}, {given.name}", info["seconds"] / seconds)
            note(COMMAND, f"{shown}, {given.name}", whole / imports)
            note(MEMORY, f"{shown}, {given.name}", peak / small)
            note(COUNT, f"{shown}, {given.name}", info["evaluations"])
    text.unlink()
    for (figure, what), values in found.items():
        yield row("history", what, figure, values, "" if figure == COUNT else "x")


def table(files: Iterable[dict[str, Any]]) -> str:
    """Make a table: a row for each figure and set, a column for each version, the oldest first."""
    ordered = in_order(files)
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for file in ordered:
        for record in file["records"]:
            line = cells.setdefault((record["what"], record["data"]), {})
            line[file["version"]] = Row.of(record).cells()[4]
    names = [file["version"] for file in ordered]
    return markdown(
        ["figure", "of", *names],
        [[*key, *(line.get(name, "") for name in names)] for key, line in sorted(cells.items())],
    )


def in_order(files: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort the files of versions by the dates of their commits."""
    return sorted(files, key=lambda file: str(file["committed"]))


def _seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    work()
    return clock() - start


def _run(words: Iterable[str], clone: Path, folder: Path) -> tuple[float, float]:
    """Run Python with the package of a clone; return the seconds of the processor and the peak memory in bytes.

    The kernel's record of the peak memory of a child includes that of this process, so it is read from /proc instead,
    as long as the child lives.
    """
    peak, status = 0.0, 0
    environment = _environment(clone)
    with subprocess.Popen([sys.executable, *words], cwd=folder, env=environment, stdout=subprocess.DEVNULL) as process:
        known = Path(f"/proc/{process.pid}/status")
        ended = 0
        while not ended:
            found = re.search(r"VmHWM:\s+(\d+) kB", known.read_text())
            peak = 1024.0 * int(found[1]) if found else peak
            time.sleep(2e-3)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(words)}: exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime, peak


def _output(words: Iterable[str], clone: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=_environment(clone), capture_output=True, check=True
    )
    return done.stdout.decode()


def _environment(clone: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(clone)}
