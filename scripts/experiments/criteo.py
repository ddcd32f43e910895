"""Train on rows like those of Criteo's advertisements: 13 numbers and 26 hashed categories, 3 % positive.

    python -m scripts.experiments.criteo FOLDER --rows 1e8 --memory 6GiB --json criteo.json

The rows are made: categories are as frequent as powers of uniform numbers, and labels are drawn from a planted model
with noise. A hundredth as many rows, at least 100,000, are for the test. For each measure a run is continued from its
checkpoint to smaller and smaller gaps, and the model at each gap is evaluated on the test rows. So the table shows the
gap from which on the measure of test rows stays the same. Vowpal Wabbit (`pip install vowpalwabbit`), if it is there,
reads the same rows through a pipe in its own format, passes over them once, and learns on one core.

The table gives seconds of training (without making and loading rows), and core-seconds: these are the seconds times the
number of ranks, or, for Vowpal Wabbit, the seconds of its processor, with parsing, since the process that draws its
rows and writes them as text is slower than it is. If the program is stopped, the same command continues: it makes no
rows and no model again that is there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.formatting import format_bytes
from distsms.base.scored import Scored
from distsms.cli.types import count, positive
from distsms.matrix.code_maps import Categories
from distsms.metrics.ranking import rocarea
from distsms.shards.coded_columns import CodedColumns, Codes
from distsms.shards.manifest import prepare, publish, read_manifest
from distsms.shards.writer import ShardForm, finish_shard, stage_shard
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.common import STOPPED, output_of, run_program
from scripts.experiments.from_text import measured, read_scores

NUMBERS = 13
CARDINALITIES = (
    *(1460, 583, 65_000, 65_000, 305, 24, 12_517, 633, 3, 65_000, 5683, 65_000, 3194),
    *(27, 14_992, 65_000, 10, 5652, 2173, 4, 65_000, 18, 15, 65_000, 105, 65_000),
)
"""The numbers of categories of Criteo's columns; large ones are hashed to 65,000 places."""
BYTE, WORD = (tuple(k for k, n in enumerate(CARDINALITIES) if (n < 2**8) == small) for small in (True, False))
"""Which columns are stored as codes of one byte, and which as codes of two. A row takes 96 bytes with its numbers."""
CODED = CodedColumns(tuple(Categories(tuple(CARDINALITIES[k] for k in columns)) for columns in (BYTE, WORD)))
SHARD_ROWS = 2**18
SEED, TEST, PLANTED = 20, 2**31, 2**32
"""The seed of all random numbers, the first block of the test rows, and the stream that draws the planted model."""
EPSILONS = (0.1, 0.03, 0.01, 0.003, 0.001)
VOWPAL_WABBIT = """
from vowpalwabbit import Workspace
Workspace("-d {rows} --loss_function logistic -b 22 -f {model} --quiet").finish()
"""
PREDICT = """
from vowpalwabbit import Workspace
Workspace("-t -i {model} -d {rows} -p {scores} --quiet").finish()
"""


class Rows(NamedTuple):
    """Some rows: numbers (rows, 13) float32, codes (rows, 26) uint16 and labels +1 and -1."""

    numbers: NDArray[np.float32]
    codes: NDArray[np.uint16]
    labels: NDArray[np.int8]


def stream(number: int) -> np.random.Generator:
    """Return the random numbers of a block."""
    return np.random.Generator(np.random.Philox(key=np.array([SEED, number], np.uint64)))


def draw(number: int, rows: int) -> Rows:
    """Return a block of rows, which depends on its number alone."""
    planted, rng = stream(PLANTED), stream(number)
    numbers, codes = rng.standard_normal((rows, NUMBERS), np.float32), np.empty((rows, len(CARDINALITIES)), np.uint16)
    score = numbers @ planted.normal(0.0, 0.15, NUMBERS) - 5.32
    for k, size in enumerate(CARDINALITIES):
        rank = (size * rng.random(rows, np.float32) ** 3).astype(np.int64)  # small ranks are frequent
        codes[:, k] = rank * 48_271 % size  # hashing brings frequent categories to any place: 48,271 is prime
        score += planted.normal(0.0, 0.25, size)[codes[:, k]]
    labels = np.where(score + rng.logistic(0.0, 1.0, rows) > 0, 1, -1).astype(np.int8)
    return Rows(numbers, codes, labels)


def write_shard(folder: Path, first: int, rows: int, number: int) -> dict[str, Any]:
    """Write one shard of the data set; return its entry of the manifest."""
    found = draw(first + number, min(SHARD_ROWS, rows - number * SHARD_ROWS))
    codes: list[Codes] = [found.codes[:, BYTE].astype(np.uint8), found.codes[:, WORD]]
    staged = stage_shard(folder, number, found.numbers, ShardForm("float32", coded=CODED), codes=codes)
    return finish_shard(staged, found.labels, NUMBERS + CODED.p)


def make(folder: Path, first: int, rows: int, cores: int) -> None:
    """Write a data set of so many rows, unless it is there."""
    if (folder / "manifest.json").exists():
        if (there := read_manifest(folder).n) != rows:
            sys.exit(f"{folder} has {there} rows, not {rows}: give another folder")
        return
    prepare(folder, overwrite=True)
    write, shards = partial(write_shard, folder, first, rows), range(-(-rows // SHARD_ROWS))
    with get_context("spawn").Pool(cores) as pool:
        entries = pool.map(write, shards, chunksize=1)
    meaning, source = {"+1": 1, "-1": -1}, [{"name": "criteo", "bytes": 0}]
    publish(folder, entries, label_map=meaning, zero_based=False, source=source, coded=CODED)


def as_text(rows: Rows) -> bytes:
    """Return rows in the format of Vowpal Wabbit."""
    numbers = [pc.cast(pa.array(column.round(4)), pa.string()) for column in rows.numbers.T]
    named = [pc.binary_join_element_wise(f"n{k}", column, ":") for k, column in enumerate(numbers)]
    codes = [pc.cast(pa.array(column), pa.string()) for column in rows.codes.T]
    named += [pc.binary_join_element_wise(f"c{k}", column, "_") for k, column in enumerate(codes)]
    labels = pc.cast(pa.array(rows.labels), pa.string())
    lines = pc.binary_join_element_wise(labels, "|", *named, " ")
    return "\n".join(lines.to_pylist()).encode() + b"\n"


def piped(program: str, first: int, rows: int, folder: Path, **names: Path) -> records.Record:
    """Run a Python program that reads so many rows from the pipe {rows}; return its seconds and its seconds of CPU."""
    pipe = folder / "rows.pipe"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    feeder = [
        sys.executable,
        "-m",
        "scripts.experiments.criteo",
        "feed",
        str(pipe),
        "--first",
        str(first),
        "--rows",
        str(rows),
    ]
    with subprocess.Popen(feeder):
        return measured([[sys.executable, "-c", program.format(rows=pipe, **names)]], 1)


def feed(pipe: Path, first: int, rows: int) -> None:
    """Write rows to a pipe."""
    with pipe.open("wb") as file:
        for number in range(-(-rows // SHARD_ROWS)):
            file.write(as_text(draw(first + number, min(SHARD_ROWS, rows - number * SHARD_ROWS))))


def main() -> None:
    if sys.argv[1:2] == ["feed"]:
        parser = argparse.ArgumentParser()
        parser.add_argument("pipe", type=Path)
        parser.add_argument("--first", type=int)
        parser.add_argument("--rows", type=int)
        feed(**vars(parser.parse_args(sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for data sets and models")
    parser.add_argument("--rows", type=count, default=1_000_000, metavar="N", help="rows to train on (1e6)")
    parser.add_argument("--memory", metavar="SIZE", help="memory of each rank; rows that do not fit are streamed")
    parser.add_argument("--ranks", type=count, default=2, metavar="N", help="(%(default)s)")
    parser.add_argument(
        "--measures", nargs="*", default=["rocarea", "logistic"], metavar="MEASURE", help="none: Vowpal Wabbit alone"
    )
    parser.add_argument("--epsilons", nargs="+", type=positive, default=EPSILONS, metavar="GAP", help="descending")
    parser.add_argument("--lambda", dest="lam", type=positive, default=1e-6, help="weight of the regularizer (1e-6)")
    parser.add_argument("--options", type=shlex.split, default=[], help="of `distsms train`: --options='--step spread'")
    records.add_json(parser)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    make(args.folder / "train", 0, args.rows, args.ranks)
    make(args.folder / "test", TEST, max(100_000, args.rows // 100), args.ranks)
    found = []
    for each in trained(args):
        found.append(each)
        records.write(args.json, "scripts.experiments.criteo", found)
    if importlib.util.find_spec("vowpalwabbit"):
        found.append(vowpal_wabbit(args))
        records.write(args.json, "scripts.experiments.criteo", found)
    print(table(found))


def trained(args: argparse.Namespace) -> Iterator[records.Record]:
    """Train for each measure to each gap, and yield what a model says of its run, and its ROCArea on the test rows."""
    more = [*(["--memory", args.memory] if args.memory else []), *args.options]
    for measure in args.measures:
        name = "-".join([measure, f"{args.lam:g}", str(args.ranks), *more]).replace("/", "_")
        for epsilon in sorted(args.epsilons, reverse=True):
            model, checkpoint = args.folder / f"{name}-{epsilon:g}.h5", args.folder / f"{name}.checkpoint"
            if not model.exists():
                words = ["--measure", measure, "--lambda", args.lam, "--epsilon", epsilon, "--no-check", *more]
                words += ["--checkpoint", checkpoint, "--checkpoint-every", "60s", "--resume", "--output", model]
                if run_program("train", args.folder / "train", *words, ranks=args.ranks, codes=(0, STOPPED)):
                    sys.exit("stopped: the same command continues")
            info = json.loads(output_of("info", model, "--json"))
            tested = json.loads(output_of("evaluate", model, args.folder / "test", "--json"))
            kept = {name: info[name] for name in ("evaluations", "seconds", "gap", "J", "status")}
            yield {
                "program": measure,
                "lambda": args.lam,
                "epsilon": epsilon,
                "rows": args.rows,
                "ranks": args.ranks,
                **kept,
            } | {
                "peak_memory": info["usage"]["peak_memory"],
                "auc": tested["rocarea"],
            }


def vowpal_wabbit(args: argparse.Namespace) -> records.Record:
    """Return the seconds of Vowpal Wabbit on the same rows, and its ROCArea of the test rows."""
    names = {"model": args.folder / "vw.model", "scores": args.folder / "vw.scores"}
    taken = piped(VOWPAL_WABBIT, 0, args.rows, args.folder, **names)
    n_test = read_manifest(args.folder / "test").n
    piped(PREDICT, TEST, n_test, args.folder, **names)
    blocks = range(-(-n_test // SHARD_ROWS))
    labels = np.concatenate([draw(TEST + k, min(SHARD_ROWS, n_test - k * SHARD_ROWS)).labels for k in blocks])
    area = rocarea(Scored(read_scores(names["scores"]), labels, Communicator()))
    return {"program": "Vowpal Wabbit", "rows": args.rows, "ranks": 1, **taken, "auc": area}


def table(found: Sequence[records.Record]) -> str:
    """Return the table; see the module's docstring."""
    lines = []
    for row in found:
        seconds = row.get("cpu", row["seconds"] * row["ranks"])
        per_pass = 1e8 / row["rows"] * seconds / row.get("evaluations", 1)
        numbers = [f"{row[name]:.2g}" if name in row else "" for name in ("epsilon", "gap")]
        numbers += [str(row.get("evaluations", "")), "" if "cpu" in row else f"{row['seconds']:.0f}"]
        numbers += [f"{seconds:.0f}", f"{per_pass:.1f}"]
        memory = format_bytes(row["peak_memory"]) if "peak_memory" in row else ""
        lines.append([row["program"], *numbers, memory, f"{row['auc']:.4f}"])
    head = ["program", "gap asked for", "gap proved", "evaluations", "seconds", "core-seconds"]
    head += ["core-seconds of an evaluation (or pass), for 1e8 rows", "memory of a rank", "ROCArea of test rows"]
    return markdown(head, lines)


if __name__ == "__main__":
    main()
