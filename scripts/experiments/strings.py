"""Train on the sequences of the paper's largest experiment, with k-mers that are made from the letters in every pass.

    . scripts/environment
    python -m scripts.experiments.strings accuracy TRAIN TEST [--window 139:279] [--degrees 5 8] [--json FILE]
    python -m scripts.experiments.strings table2 TRAIN TEST OUTPUT [--window 139:279] [--degree 5] [--json FILE]
    python -m scripts.experiments.strings repeat TRAIN OUTPUT --rows 2e7 [--mutate 0.1] [--seed 0]
    python -m scripts.experiments.strings large MODEL ... [--json FILE]

accuracy   Weighted degree features of several degrees, and those of the paper: degree 8 with spectra of both sides of
           the splice site. Models for ROCArea and PRBEP by LMVM; without spectra also by AGM and BMRM.
           J, the proved gap, evaluations, time of training (without loading) compared with LMVM's, peak memory, and
           both measures of the test rows.
table2     Seconds to within 1 % of the least J, as in table 2 of JMLR 13 (2012), with the paper's width of smoothing
           (c_mu 10) and the adaptive one. The folder OUTPUT also gets the figures: J and the test measure against
           seconds. If the program is stopped, the same command continues.
repeat     Write a larger file of sequences: rows of TRAIN in turn, of which only the window is kept, with each letter
           replaced by a random one with the probability --mutate. These rows are no new observations: they serve to
           measure time and memory, and say nothing about accuracy.
large      What models say of their training on such rows: evaluations, seconds, memory; and, in proportion to the rows,
           the seconds for the 50 million rows of the paper's largest experiment.

TRAIN and TEST have lines LABEL SEQUENCE, plain or compressed. The paper's sequences have 141 letters, with the splice
site (AG) at 60 and 61; --window says which letters of longer sequences these are.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from distsms.base.formatting import format_bytes
from distsms.base.measures import SHOWN
from distsms.cli.columns import span
from distsms.cli.types import count, positive
from scripts import records
from scripts.compare import tables
from scripts.compare.grid import RunStore
from scripts.experiments.common import add_train_and_test, compare, existing_file, open_bytes, output_of
from scripts.records import Record

LEFT, RIGHT = (1, 59), (62, 141)
"""The regions of the paper's two spectra, in the window."""
PAPER_DEGREE = 8
PAPER = {"BMRM 2012": "more than 30,000 s", "SMS 2012": "27,514 s"}
"""The paper's table 2 for ROCArea, on 32 processes; it has no numbers for PRBEP."""
PAPER_ROWS = 50_000_000
BLOCK = 2**17
"""Rows that `repeat` makes at a time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("accuracy", help="see above")
    add_train_and_test(command)
    add_window(command)
    command.add_argument("--degrees", nargs="+", type=count, default=[5, 8], help="(5 8)")
    command.add_argument("--time-limit", default="10m", metavar="TIME", help="for each training (%(default)s)")
    command.add_argument("--lambda", dest="lam", type=positive, default=1e-5, help="weight of the regularizer (1e-5)")
    command.add_argument("--epsilon", type=positive, default=1e-3, help="gap to prove (%(default)g)")
    records.add_json(command)
    command = commands.add_parser("table2", help="see above")
    add_train_and_test(command)
    command.add_argument("output", type=Path, metavar="OUTPUT", help="folder for shards, runs and figures")
    add_window(command)
    command.add_argument("--degree", type=count, default=5, metavar="K", help="(%(default)s)")
    command.add_argument("--time-limit", default="5m", metavar="TIME", help="for each run (%(default)s)")
    records.add_json(command)
    command = commands.add_parser("repeat", help="see above")
    command.add_argument("train", type=existing_file, metavar="TRAIN", help="lines LABEL SEQUENCE")
    command.add_argument("output", type=Path, metavar="OUTPUT", help="the file to write")
    add_window(command)
    command.add_argument("--rows", type=count, required=True, metavar="N", help="the number of rows to write")
    command.add_argument("--mutate", type=float, default=0.1, metavar="SHARE", help="(%(default)g)")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="(%(default)s)")
    command = commands.add_parser("large", help="see above")
    command.add_argument("models", nargs="+", type=existing_file, metavar="MODEL", help="models of `distsms train`")
    records.add_json(command)
    args = parser.parse_args()
    if args.command == "large":
        found = [{"large": large(path)} for path in args.models]
        records.write(args.json, "scripts.experiments.strings", found)
        print(table(found))
        return
    if args.command == "repeat":
        repeat(args)
        return
    if args.command == "table2":
        print(table(table2(args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = accuracy(args, Path(folder))
    print(table(found))


def add_window(parser: argparse.ArgumentParser) -> None:
    """Add the option --window."""
    parser.add_argument("--window", type=span, default=(139, 279), metavar="FROM:TO", help="(139:279)")


def accuracy(args: argparse.Namespace, work: Path) -> list[Record]:
    """Train on each map of features, and evaluate on the test rows."""
    first, _ = args.window
    spectra = [word for low, high in (LEFT, RIGHT) for word in ("--spectrum", f"{first + low - 1}:{first + high - 1}")]
    maps = {f"degree {degree}": ["--degree", degree] for degree in args.degrees}
    maps[f"the paper's: degree {PAPER_DEGREE}, two spectra"] = ["--degree", PAPER_DEGREE, *spectra]
    found = []
    for number, (name, options) in enumerate(maps.items()):
        shard(args, work, options)
        for solver in ("lmvm", "agm", "bmrm") if number < len(args.degrees) else ("lmvm",):
            for measure in ("rocarea", "prbep"):
                found.append({"map": name, "solver": solver, "measure": measure, **_train(args, work, solver, measure)})
                print(f"{name}, {solver}, {measure}: {found[-1]['evaluations']} evaluations", flush=True)
                records.write(args.json, "scripts.experiments.strings", found)  # each training may take long
    return found


def shard(args: argparse.Namespace, folder: Path, options: Sequence[object]) -> None:
    """Convert the text to the data sets `train`, with these options, and `test` in a folder."""
    window = ":".join(map(str, args.window))
    for part in ("train", "test"):
        how = ("--window", window, *options) if part == "train" else ("--like", folder / "train")
        output_of("shard", getattr(args, part), folder / part, "--strings", *how, "--quiet", "--overwrite")


def table2(args: argparse.Namespace) -> list[Record]:
    """Compare the solvers, and return the lines of the table with the paper's numbers beside them."""
    data, comparison = args.output / "data", args.output / "comparison"
    if not (data / "test" / "manifest.json").exists():
        data.mkdir(parents=True, exist_ok=True)
        shard(args, data, ["--degree", args.degree])
    goal = ["--relative", "0.001", "--c-mu", "adaptive", "10", "--time-limit", args.time_limit]
    compare(data / "train", data / "test", comparison, goal, 1)
    runs = RunStore(comparison).all_finished()
    header, lines = tables.table2(runs, True)
    best = [line for line in tables.table2(runs)[1] if line[0] == "rocarea"]  # the paper has the best lambda only
    found = [{"cells": dict(zip(header, line, strict=True)) | (PAPER if line in best else {})} for line in lines]
    records.write(args.json, "scripts.experiments.strings", found)
    return found


def large(path: Path) -> dict[str, str]:
    """Return the cells of the table on a training with many rows."""
    info = json.loads(output_of("info", path, "--json"))
    n, seconds = info["data"]["n"], info["seconds"]
    return {
        "rows": f"{n:,}",
        "columns": f"{info['p']:,}",
        "ranks": str(info["ranks"]),
        "options": " ".join(info["command"].split()[3:]),
        "proved gap": f"{info['gap']:.1e}" + ("" if info["status"] == "proved" else f" ({info['status']})"),
        "evaluations": str(info["evaluations"]),
        "loading": f"{info['usage']['seconds']['load']:.1f} s",
        "training": f"{seconds:.1f} s",
        "peak memory": format_bytes(info["usage"]["peak_memory"]),
        f"{PAPER_ROWS // 10**6} million rows, in proportion": f"{seconds * PAPER_ROWS / n:.0f} s",
    }


def _train(args: argparse.Namespace, work: Path, solver: str, measure: str) -> Record:
    """Train and evaluate a model; return what the table shows."""
    model = work / "model.h5"
    goal = ("--lambda", args.lam, "--epsilon", args.epsilon, "--solver", solver, "--time-limit", args.time_limit)
    output_of("train", work / "train", "--measure", measure, *goal, "--output", model, "--quiet", codes=(0, 3, 4, 5))
    info = json.loads(output_of("info", model, "--json"))
    test = json.loads(output_of("evaluate", model, work / "test", "--json"))
    kept = {key: info[key] for key in ("lambda", "J", "gap", "status", "evaluations", "seconds")}
    memory = info["usage"]["peak_memory"]
    return {**kept, "p": info["p"], "peak_memory": memory, **{key: test[key] for key in ("rocarea", "prbep")}}


def table(found: list[Record]) -> str:
    """Make a table of the records of `accuracy`, `table2` or `large`."""
    if "map" not in found[0]:
        rows = [cells for record in found for cells in record.values()]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        return tables.markdown(columns, [[row.get(column, "") for column in columns] for row in rows])
    header = ["features", "p", "solver", "trained for", "J", "proved gap", "evaluations"]
    header += ["time / LMVM's", "peak memory", "test ROCArea [%]", "test PRBEP [%]"]
    lmvm = {(record["map"], record["measure"]): record["seconds"] for record in found if record["solver"] == "lmvm"}
    lines = [
        [
            record["map"],
            f"{record['p']:,}",
            record["solver"],
            SHOWN[record["measure"]],
            f"{record['J']:.6f}",
            f"{record['gap']:.1e}" + ("" if record["status"] == "proved" else f" ({record['status']})"),
            str(record["evaluations"]),
            f"{record['seconds'] / lmvm[record['map'], record['measure']]:.1f}",
            format_bytes(record["peak_memory"]),
            f"{100 * record['rocarea']:.2f}",
            f"{100 * record['prbep']:.2f}",
        ]
        for record in found
    ]
    return tables.markdown(header, lines)


def repeat(args: argparse.Namespace) -> None:
    """Write rows of a file in turn, with random letters here and there."""
    with open_bytes(args.train) as file:
        words = [line.split() for line in file if line.strip()]
    first, last = args.window
    letters = np.frombuffer(b"".join(word[1][first - 1 : last] for word in words), np.uint8)
    letters = letters.reshape(len(words), last - first + 1)
    labels = np.array([word[0].rjust(2) + b" " for word in words]).view(np.uint8).reshape(len(words), 3)
    rng = np.random.default_rng(args.seed)
    with open(args.output, "wb") as output:
        for start in range(0, args.rows, BLOCK):
            rows = np.arange(start, min(start + BLOCK, args.rows)) % len(words)
            kept = letters[rows]
            changed = np.flatnonzero(rng.random(kept.shape, np.float32) < args.mutate)
            kept.reshape(-1)[changed] = np.frombuffer(b"ACGT", np.uint8)[rng.integers(0, 4, len(changed))]
            line = np.full((len(rows), 1), ord("\n"), np.uint8)
            output.write(np.hstack((labels[rows], kept, line)).tobytes())


if __name__ == "__main__":
    main()
