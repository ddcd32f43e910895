"""Disturb every command in every way at random moments, and look what comes of it.

    python -m tests.robustness.chaos [--seeds 3] [--commands train path] [--faults SIGTERM "disk full"]
        [--sample N] [--minutes 60] [--json FILE [--resume]]

A cell of the matrix is a command, a fault, whether rows are streamed, and whether there are checkpoints. For each seed
the command runs on two ranks, the fault strikes at a random moment of the run, and the same command line is started
again. A cell is bad if the job does not end, if it ends with code 0 without its result, if a result is incomplete, if
an older result is lost, or if the second run does not come to the figures of an undisturbed one. The exit code is 1 if
a cell is bad. `--sample N` runs N cells, chosen by `--draw`. With `--resume`, the runs in FILE are not repeated.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from scripts import records
from tests.robustness.chaos import cells, commands, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", nargs="+", choices=commands.COMMANDS, default=list(commands.COMMANDS))
    parser.add_argument("--faults", nargs="+", choices=faults.FAULTS, default=list(faults.FAULTS))
    parser.add_argument("--seeds", type=int, default=3, help="runs of each cell (%(default)s)")
    parser.add_argument("--sample", type=int, help="run only so many cells")
    parser.add_argument("--draw", type=int, default=0, help="seed of the choice of cells (%(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after this time")
    parser.add_argument("--resume", action="store_true", help="continue with the file of --json")
    records.add_json(parser)
    args = parser.parse_args()
    if args.resume and not args.json:
        parser.error("--resume needs --json FILE")
    chosen = [cell for cell in cells.all_cells() if cell.command in args.commands and cell.fault in args.faults]
    random.Random(args.draw).shuffle(chosen)
    end, found = time.monotonic() + 60 * args.minutes, list[records.Record]()
    if args.resume and args.json.exists():
        found = records.read(args.json)["records"]
    done = {(_cell(record), record["seed"]) for record in found}
    with tempfile.TemporaryDirectory(prefix="distsms-chaos-") as folder:
        matrix = cells.Matrix(Path(folder))
        for cell in chosen[: args.sample]:
            for seed in range(args.seeds):
                if time.monotonic() > end:
                    break
                if (cell, seed) in done:
                    continue
                record = matrix.run(cell, seed)
                found.append(record)
                records.write(args.json, "tests.robustness.chaos", found)
                print(describe(record), flush=True)
    run = {_cell(record) for record in found}
    bad = sum(bool(record["bad"]) for record in found)
    print(f"\n{len(run)} of {len(chosen)} cells, {len(found)} runs, {bad} bad")
    return int(bad > 0)


def _cell(record: records.Record) -> cells.Cell:
    return cells.Cell(record["command"], record["fault"], record["streams"], record["checkpoint"])


def describe(record: records.Record) -> str:
    """Return a line about a run."""
    how = ("streaming, " if record["streams"] else "") + ("checkpoint, " if record["checkpoint"] else "")
    name = f"{record['command']:9s} {record['fault']:20s} {how}seed {record['seed']}"
    if record["skipped"]:
        return f"{name}: not run, {record['skipped']}"
    after = f"code {record['code']} after {record['seconds']:.1f} s, {record['left']}; again: {record['again']}"
    return f"{name} at {record['moment']:.2f} s: {after}" + (f"  BAD: {record['bad']}" if record["bad"] else "")


if __name__ == "__main__":
    sys.exit(main())
