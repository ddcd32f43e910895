"""Measure the time from text to a written and evaluated model, beside LIBLINEAR, Vowpal Wabbit and XGBoost.

    python -m scripts.experiments.from_text --gigabytes 0.1 1 --json from-text.json

Texts of each size are drawn: svmlight, and CSV with numbers, categories and dates; a tenth as many rows are for the
test. Each program reads the text, trains, writes its model, and predicts the test rows. The programs take turns in each
round, on one core and on two where a program can use them. The table gives seconds, and seconds of the processor, which
other programs on the machine disturb less, as multiples of those of distsms on one core, which proves its gap. With
`--lambda auto` it also chooses lambda, on a sample of the rows.
What takes more than two minutes runs in the first round only. Programs that are not installed are left out:

    apt install liblinear-tools; pip install 'distsms[bench,baseline]'

Vowpal Wabbit gets the rows in its own format, which costs it nothing here. XGBoost reads CSV by pandas and pyarrow.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv
from scipy.stats import rankdata

from distsms.cli.types import count, positive
from scripts import records
from scripts.compare.tables import markdown

LAMBDA = 1e-4
OURS, OURS_AUTO = "distsms", "distsms --lambda auto"
ENTRIES, COLUMNS = 30, 2**17
"""Entries of a row of svmlight text, and columns."""
AT_ONCE = 5_000
"""Rows that are drawn at a time."""
LONG = 120.0
"""Seconds of a run from which on a program runs in the first round only."""

VOWPAL_WABBIT = """
from vowpalwabbit import Workspace
Workspace("-d {train}.vw --loss_function logistic -b 18 -f {model} --quiet {passes}").finish()
Workspace("-t -i {model} -d {test}.vw -p {scores} --quiet").finish()
"""
XGBOOST = """
import numpy, xgboost
def read(path):
    if path.endswith(".svm"):
        return xgboost.DMatrix(path + "?format=libsvm", nthread={cores})
    import pandas
    frame = pandas.read_csv(path, engine="pyarrow")
    y, frame["day"] = frame.pop("y"), pandas.to_datetime(frame["day"]).astype("int64")
    for name in frame.columns[frame.dtypes == object]:
        frame[name] = frame[name].astype("category")
    return xgboost.DMatrix(frame, y, enable_categorical=True, nthread={cores})
options = {{"objective": "binary:logistic", "nthread": {cores}, **{options}}}
model = xgboost.train(options, read("{train}"), 100)
model.save_model("{model}.json")
numpy.savetxt("{scores}", model.predict(read("{test}")))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", nargs="+", type=positive, default=[0.1], metavar="SIZE", help="sizes of texts")
    parser.add_argument("--formats", nargs="+", choices=("svm", "csv"), default=["svm", "csv"])
    parser.add_argument("--programs", nargs="+", metavar="NAME", help="only these, as the table names them (all)")
    parser.add_argument("--cores", nargs="+", type=int, choices=(1, 2), default=[1, 2])
    parser.add_argument("--rounds", type=count, default=3, metavar="N", help="how often each runs (%(default)s)")
    parser.add_argument(
        "--limit", type=count, default=1800, metavar="SECONDS", help="stop other programs then (%(default)s)"
    )
    parser.add_argument("--folder", type=Path, help="where the texts are made (default: a temporary folder)")
    records.add_json(parser)
    args = parser.parse_args()
    for kind in args.formats:
        warm_up(kind, args.cores)
    found: list[records.Record] = []
    for size in args.gigabytes:
        for kind in args.formats:
            with tempfile.TemporaryDirectory(dir=args.folder) as folder:
                train, test = make(kind, size, Path(folder))
                os.sync()  # otherwise the first program runs while the texts are written to the disk
                for cores in args.cores:
                    long: set[str] = set()
                    for number in range(args.rounds):
                        for program, command in programs(train, test, cores):
                            if program in long or program not in (args.programs or [program]):
                                continue
                            row = {"format": kind, "gigabytes": size, "cores": cores, "round": number}
                            limit = math.inf if program in (OURS, OURS_AUTO) else args.limit
                            row |= {"program": program, **measured(command, cores, limit)}
                            print(
                                f"{kind}, {size:g} GB, {cores} core(s), {program}: {row['seconds']:.1f} s", flush=True
                            )
                            if row["seconds"] > LONG and program != OURS:
                                long.add(program)
                            if program in (OURS, OURS_AUTO) and "stopped" not in row:
                                predict(test)
                            if program == OURS and "stopped" not in row:
                                row |= conversion(train, cores)
                            found.append(row if "stopped" in row else {**row, "auc": auc(test)})
                            records.write(args.json, "scripts.experiments.from_text", found)
                    print(table(found), flush=True)


def warm_up(kind: str, cores: Sequence[int]) -> None:
    """Run distsms on a small text, since its kernels are compiled on first use and then kept on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        train, test = make(kind, 0.003, Path(folder))
        for n_ranks in cores:
            for program, command in programs(train, test, n_ranks):
                if program in (OURS, OURS_AUTO):
                    measured(command, n_ranks)
            conversion(train, n_ranks)


def make(kind: str, gigabytes: float, folder: Path) -> tuple[Path, Path]:
    """Draw texts of this size, to train on and to test on; for svmlight also in the format of Vowpal Wabbit."""
    rng, paths = np.random.default_rng(1), (folder / f"train.{kind}", folder / f"test.{kind}")
    for path, n_bytes in zip(paths, (gigabytes * 1e9, gigabytes * 1e8), strict=True):
        with open(path, "wb") as file, open(f"{path}.vw", "wb") as other:
            while file.tell() < n_bytes:
                if kind == "csv":
                    options = csv.WriteOptions(include_header=not file.tell(), quoting_style="none")
                    csv.write_csv(draw_table(rng), file, options)
                    continue
                labels, entries = draw_sparse(rng)
                signs = pc.replace_substring(labels, "0", "-1")  # as Vowpal Wabbit wants them
                for stream, classes, mark in ((file, labels, " "), (other, signs, " | ")):
                    lines = pc.binary_join_element_wise(classes, entries, mark)
                    stream.write("\n".join(lines.to_pylist()).encode() + b"\n")
    return paths


def draw_sparse(rng: np.random.Generator) -> tuple[Any, Any]:
    """Return labels and entries of some rows, as strings."""
    features = np.sort(COLUMNS * rng.random((AT_ONCE, ENTRIES)) ** 4, axis=1).astype(int) + np.arange(1, ENTRIES + 1)
    values = rng.random((AT_ONCE, ENTRIES)).round(4)
    weights = np.random.default_rng(2).normal(size=COLUMNS + ENTRIES + 1)
    y = labels_of((values * weights[features]).sum(axis=1), rng)
    entry = pc.binary_join_element_wise(
        pc.cast(pa.array(features.ravel()), pa.string()), pc.cast(pa.array(values.ravel()), pa.string()), ":"
    )
    rows = pa.ListArray.from_arrays(pa.array(np.arange(0, len(entry) + 1, ENTRIES, np.int32)), entry)
    return pc.cast(pa.array(y), pa.string()), pc.binary_join(rows, " ")


def draw_table(rng: np.random.Generator) -> Any:
    """Return some rows with numbers, categories, dates and labels."""
    numbers = {f"x{k}": rng.normal(size=AT_ONCE).round(5) for k in range(10)}
    counts = {f"n{k}": rng.poisson(20, AT_ONCE) for k in range(4)}
    words = {f"c{k}": pa.array([f"name{j}" for j in range(30)]).take(rng.integers(0, 30, AT_ONCE)) for k in range(4)}
    day = pa.array(np.datetime64("2024-01-01") + rng.integers(0, 300, AT_ONCE))
    score = numbers["x0"] - numbers["x1"] + counts["n0"] / 10 + 0.1 * rng.normal(size=AT_ONCE)
    return pa.table({**numbers, **counts, **words, "day": day, "y": labels_of(score, rng)})


def labels_of(score: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return labels 0 and 1 of rows with these scores; a tenth is 1, with noise."""
    noisy = score + score.std() * rng.normal(size=len(score))
    return (noisy > np.quantile(noisy, 0.9)).astype(np.int64)


def distsms(cores: int) -> list[str]:
    """Return the beginning of a command of distsms."""
    return [*(["mpirun", "-n", str(cores)] if cores > 1 else []), sys.executable, "-m", "distsms"]


def programs(train: Path, test: Path, cores: int) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield each program that is installed with its commands, which write the scores of test rows to a file."""
    folder, python = train.parent, sys.executable
    at: dict[str, Any] = {"train": train, "test": test, "cores": cores}
    at |= {"model": folder / "model", "scores": folder / "scores"}
    label = ["--label", "y"] if train.suffix == ".csv" else []
    fit = ["train", str(train), *label, "--test", str(test), "--no-report", "--output", f"{folder}/model.h5"]
    yield OURS, [[*distsms(cores), *fit, "--lambda", str(LAMBDA)]]
    if cores == 1:
        yield OURS_AUTO, [[*distsms(cores), *fit, "--lambda", "auto", *["--plain"] * (train.suffix == ".csv")]]
    if train.suffix == ".svm" and cores == 1:
        if shutil.which("liblinear-train"):
            with train.open("rb") as lines:
                n = sum(1 for _ in lines)
            fit = ["liblinear-train", "-q", "-s", "0", "-c", str(1 / (LAMBDA * n)), str(train), f"{folder}/model"]
            yield (
                "LIBLINEAR -s 0",
                [fit, ["liblinear-predict", "-b", "1", str(test), f"{folder}/model", f"{folder}/scores"]],
            )
        if importlib.util.find_spec("vowpalwabbit"):
            for name, passes in (("", ""), (", 10 passes", "--passes 10 --cache --kill_cache --holdout_off")):
                yield f"Vowpal Wabbit{name}", [[python, "-c", VOWPAL_WABBIT.format(**at, passes=passes)]]
    if importlib.util.find_spec("xgboost") and (train.suffix == ".svm" or importlib.util.find_spec("pandas")):
        for name, options in (("gblinear", {"booster": "gblinear"}), ("hist", {"tree_method": "hist"})):
            if train.suffix == ".svm" or name == "hist":  # gblinear takes no categories
                yield f"XGBoost {name}", [[python, "-c", XGBOOST.format(**at, options=options)]]


def measured(commands: Sequence[Sequence[str]], cores: int, limit: float = math.inf) -> records.Record:
    """Run commands on so many cores, at most `limit` seconds; return their seconds, and those of the processor."""
    begin, cpu = time.perf_counter(), 0.0
    # Python may keep what it has compiled, as it does for users.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for command in commands:
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the process has it, too
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**environment, "OMP_NUM_THREADS": "1"},
            preexec_fn=(lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])),
        )
        timer = threading.Timer(min(limit, threading.TIMEOUT_MAX), process.terminate)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode == -signal.SIGKILL:  # by the system
            return {"seconds": seconds, "stopped": True, "out_of_memory": True}
        if seconds >= limit:
            return {"seconds": limit, "stopped": True}
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{errors.read()}")
        cpu += usage.ru_utime + usage.ru_stime
    return {"seconds": time.perf_counter() - begin, "cpu": cpu}


def predict(test: Path) -> None:
    """Predict the test rows by the model of distsms, outside of the measured time."""
    folder = test.parent
    measured([[*distsms(1), "predict", f"{folder}/model.h5", str(test), "--output", f"{folder}/scores"]], 1)


def conversion(train: Path, cores: int) -> records.Record:
    """Measure the seconds of the processor of `distsms shard`."""
    label = ["--label", "y"] if train.suffix == ".csv" else []
    command = [*distsms(cores), "shard", str(train), str(train.parent / "shards"), "--overwrite", *label]
    return {"shard_cpu": measured([command], cores)["cpu"], "bytes": train.stat().st_size}


def auc(test: Path) -> float:
    """Return ROCArea of the scores that were written for the rows of a test text."""
    if test.suffix == ".csv":
        y = csv.read_csv(test)["y"].to_numpy()
    else:
        y = np.array([line[:1] == b"1" for line in test.open("rb")])
    scores = read_scores(test.parent / "scores")
    ranks, n_pos = rankdata(scores), int(np.sum(y > 0))
    return float((ranks[y > 0].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * (len(y) - n_pos)))


def read_scores(path: Path) -> NDArray[np.float64]:
    """Read the scores of rows, or the probability of label 1 where LIBLINEAR wrote those of both labels."""
    with open(path) as file:
        first = file.readline().split()
        if first[0] == "labels":
            column = 1 + first[1:].index("1")
            return np.array([float(line.split()[column]) for line in file])
        return np.array([float(first[0]), *(float(line.split()[0]) for line in file)])


def table(found: Sequence[records.Record]) -> str:
    """Return the table; see the module's docstring. Brackets hold the quartiles over several rounds."""
    runs: dict[tuple[Any, ...], dict[int, records.Record]] = {}
    for row in found:
        key = row["format"], row["gigabytes"], row["cores"], row["program"]
        runs.setdefault(key, {})[row["round"]] = row
    lines = []
    for key, rounds in runs.items():
        ours = runs[min(other for other in runs if other[:2] == key[:2] and other[3] == OURS)]
        complete = all("auc" in row for row in rounds.values())
        spent = [_ratio(rounds, ours, kind, complete) for kind in ("seconds", "cpu")]
        rates = [row["bytes"] / 1e6 / row["shard_cpu"] for row in rounds.values() if "shard_cpu" in row]
        rate = f"{np.median(rates):.0f}" if rates else ""
        areas = [row["auc"] for row in rounds.values() if "auc" in row]
        area = f"{np.median(areas):.4f}" if areas else ""
        lines.append([key[0], f"{key[1]:g}", str(key[2]), key[3], *spent, area, rate])
    of_ours = "distsms on one core"
    head = [
        "text",
        "GB",
        "cores",
        "program",
        f"seconds / {of_ours}",
        f"CPU seconds / {of_ours}",
        "ROCArea on test rows",
    ]
    return markdown([*head, "shard: MB per CPU second"], lines)


def _ratio(rounds: dict[int, records.Record], ours: dict[int, records.Record], kind: str, complete: bool) -> str:
    """Return the median and the quartiles of what a program took in each round, divided by what distsms took."""
    ratios = [row[kind] / ours[number][kind] for number, row in rounds.items() if kind in row]
    if rounds is ours or not ratios:
        return "1" if ratios else ""
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    if any("out_of_memory" in row for row in rounds.values()):
        return "out of memory"
    if not complete:
        return f"more than {low:.2f}"
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]" if len(ratios) > 1 else f"{middle:.2f}"


if __name__ == "__main__":
    main()
