"""Read drawn texts, CSV and svmlight: distsms beside pyarrow's bare parser of CSV, LIBLINEAR and Vowpal Wabbit.

The programs take turns in each round, each as a process on one core; the times are seconds of the processor, with the
start of the process. LIBLINEAR reads, and ends at once (its tolerance is huge). Vowpal Wabbit gets the rows in its own
format, and learns in one pass. From text to a model that has predicted a tenth as many test rows, the commands are
those of `scripts.experiments.from_text`. Programs that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from scripts.benchmarks.measuring import Row, Set, row, say
from scripts.experiments.from_text import OURS, distsms, make, measured, programs

GIGABYTES, ROUNDS = 0.1, 7
SHARD, READ = "distsms shard", "Vowpal Wabbit, reading and one pass"
TRAIN, PASS = "distsms train --test", "one pass of Vowpal Wabbit, and predicting"
PYARROW = "import sys; from pyarrow import csv; csv.read_csv(sys.argv[1], csv.ReadOptions(use_threads=False))"
VOWPAL_WABBIT = (
    "import sys; from vowpalwabbit import Workspace; "
    "Workspace(f'-d {sys.argv[1]}.vw --loss_function logistic -b 18 -f {sys.argv[1]}.model --quiet').finish()"
)


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for texts, which are drawn in the folder and removed. `given` is not used."""
    gigabytes = 0.003 if quick else GIGABYTES
    for kind in ("csv", "svm"):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            text, test = make(kind, gigabytes, Path(place))
            os.sync()  # otherwise the first program runs while the text is written to the disk
            commands = {name: [command] for name, command in readers(text)}
            trainings = {OURS: TRAIN, "Vowpal Wabbit": PASS}
            commands |= {trainings[name]: some for name, some in programs(text, test, 1) if name in trainings}
            for some in commands.values():
                measured(some, 1)  # kernels are compiled, and files come into the memory
            rounds = [
                {name: measured(some, 1)["cpu"] for name, some in commands.items()}
                for _ in range(2 if quick else ROUNDS)
            ]
            name, size = f"{kind}, {gigabytes:g} GB", text.stat().st_size / 1e6
        seconds = {program: np.array([of_round[program] for of_round in rounds]) for program in commands}
        for program, times in seconds.items():
            if program not in (TRAIN, PASS):
                yield row("text", name, f"{program}: text read in a second of the processor", size / times, "MB")
            if program not in (SHARD, TRAIN, PASS):
                yield row("text", name, f"time ratio {SHARD} / {program}", seconds[SHARD] / times, "x")
        if PASS in seconds:
            target = "" if quick else "<= 1.2"
            yield row("text", name, f"time ratio {TRAIN} / {PASS}", seconds[TRAIN] / seconds[PASS], "x", target)


def readers(text: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the programs that are installed, each with its command to read a text."""
    label = ["--label", "y"] if text.suffix == ".csv" else []
    yield SHARD, [*distsms(1), "shard", str(text), str(text.parent / "shards"), "--overwrite", *label]
    if text.suffix == ".csv":
        yield "pyarrow's bare parser", [sys.executable, "-c", PYARROW, str(text)]
        return
    if shutil.which("liblinear-train"):
        yield "LIBLINEAR's reader", ["liblinear-train", "-q", "-s", "0", "-e", "1e9", str(text), f"{text}.liblinear"]
    else:
        say("text: LIBLINEAR is not installed, so it is left out; install it: apt install liblinear-tools")
    if importlib.util.find_spec("vowpalwabbit"):
        yield READ, [sys.executable, "-c", VOWPAL_WABBIT, str(text)]
    else:
        say("text: Vowpal Wabbit is not installed, so it is left out; install it: pip install 'distsms[bench]'")
