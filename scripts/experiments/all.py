"""Run the experiments of JMLR, section 5, on several data sets, and make all tables and figures.

    . scripts/environment
    python -m scripts.experiments.all OUTPUT adult9=a9a,a9a.t web8=w8a,w8a.t news20=news20.xz [--time-limit 5m]

Each set is NAME=TRAIN[,TEST], svmlight text, plain or compressed; without TEST every fifth row is held out. If the
program was killed or stopped, the same command continues where it was, and sets can be added. OUTPUT/NAME/comparison
has a set's tables and figures. OUTPUT/table.md has the table of all sets. If the NAME of a set begins with the name of
a set in the paper's table 2, the paper's numbers are in the table, too.

All solvers run with the adaptive width of smoothing. lmvm and agm also run with the paper's c_mu = 10 (lmvm is then
the paper's SMS), and lmvm with 100 and 1000 at the smallest lambda. The gap to prove is 0.1 % of J. So the least J
known is at most 0.1 % above the minimum, and "within 1 % of the least J known" is nearly the same as "within 1 % of the
minimum". If a proof takes too long, the time limit ends the run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts import records
from scripts.compare import tables
from scripts.compare.grid import RunStore
from scripts.experiments.common import (
    CONTRADICTION,
    PUBLISHED,
    add_ranks,
    check_options_of_compare,
    compare,
    named_files,
    shard_pair,
)
from scripts.records import Record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="folder for the shards and runs of all sets")
    parser.add_argument("sets", nargs="+", type=named_files, metavar="NAME=TRAIN[,TEST]", help="svmlight text")
    add_ranks(parser)
    about = "weights of the regularizer (1e-2 1e-4 1e-6)"
    parser.add_argument("--lambdas", nargs="+", metavar="LAMBDA", default=["1e-2", "1e-4", "1e-6"], help=about)
    parser.add_argument("--time-limit", default="5m", metavar="TIME", help="for each run (%(default)s)")
    records.add_json(parser)
    args = parser.parse_args()
    limits = ["--relative", "0.001", "--time-limit", args.time_limit]
    check_options_of_compare([*limits, "--lambdas", *args.lambdas])
    smallest = min(args.lambdas, key=float)
    calls = [
        ["--no-figures", "--lambdas", *args.lambdas],
        ["--no-figures", "--lambdas", *args.lambdas, "--solvers", "lmvm", "agm", "--c-mu", "10"],
        ["--lambdas", smallest, "--solvers", "lmvm", "--c-mu", "100", "1000"],
    ]
    agree = True
    for name, paths in args.sets:
        folder = args.output / name
        train, test = shard_pair(paths[0], paths[1] if len(paths) > 1 else None, folder / "data", args.ranks)
        results = [compare(train, test, folder / "comparison", [*limits, *call], args.ranks) for call in calls]
        agree &= all(results)
    found = all_records(args.output)
    text = table(found)
    (args.output / "table.md").write_text(text + "\n", encoding="utf-8")
    records.write(args.json, "scripts.experiments.all", found)
    print(f"\n{text}\n\nThe tables are in {args.output / 'table.md'}")
    sys.exit(0 if agree else CONTRADICTION)


def all_records(output: Path) -> list[Record]:
    """Return the lines of `tables.table2` of every set in a folder: at the best lambda, then at every lambda."""
    found: list[Record] = []
    for every_lambda in (False, True):
        for path in sorted(output.glob("*/comparison")):
            header, lines = tables.table2(RunStore(path).all_finished(), every_lambda)
            for line in lines:
                name = path.parent.name
                cells = {"set": name, **dict(zip(header, line, strict=True))}
                if not every_lambda:  # the paper gives one lambda
                    cells |= _published(name, line[0])
                found.append({"every_lambda": every_lambda, "cells": cells})
    return found


def _published(name: str, measure: str) -> dict[str, str]:
    """Return the paper's two columns for a set and a measure, if it has them."""
    times = next((times for known, times in PUBLISHED.items() if name.startswith(known)), None)
    seconds = {} if times is None else {"BMRM 2012": times["bmrm"][measure], "SMS 2012": times["sms"][measure]}
    return {column: f"{each} s" for column, each in seconds.items() if each is not None}


def table(found: list[Record]) -> str:
    """Make two tables: at the lambda of the best test measure, with the paper's columns, and at every lambda."""
    text = "Seconds (evaluations) to within 1 % of the least J known, at the lambda of the best test measure:\n\n"
    return text + _table(found, False) + "\n\nThe same at every lambda:\n\n" + _table(found, True)


def _table(found: list[Record], every_lambda: bool) -> str:
    rows = [record["cells"] for record in found if record["every_lambda"] is every_lambda]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return tables.markdown(columns, [[row.get(column, "") for column in columns] for row in rows])


if __name__ == "__main__":
    main()
