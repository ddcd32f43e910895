"""Count the evaluations that pauc@BETA takes until its gap is proved, from w = 0 and from the model of a larger BETA.

    python -m scripts.experiments.small_beta web8=web8.train.xz adult9=adult9.train.xz --json small-beta.json

The table has a row for each data set and lambda, and a column for ROCArea and for each BETA. With the largest BETA as
the first stage (its gap to prove is FIRST_GAP), the model of this stage is where the run for a smaller BETA begins; the
number in parentheses counts the evaluations of both. An asterisk marks problems that are proved to be vacuous: at their
lambda, w = 0 is as good as any other model.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import distsms
from distsms.cli.types import count, positive
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.common import named_data, run_program

FIRST_GAP = 0.03
"""The gap to prove in the first stage."""
NOTHING_GAINED = 1e-3
"""A proved problem is called vacuous if J(0) = 1 is larger than its least J by at most this."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "svmlight text, plain or compressed, or a data set of `distsms shard`"
    parser.add_argument("data", nargs="+", type=named_data, metavar="NAME=DATA", help=about)
    parser.add_argument("--betas", nargs="+", type=positive, default=[0.05, 0.01, 0.005], metavar="BETA")
    parser.add_argument("--lambdas", nargs="+", type=positive, default=[1e-3, 1e-4, 1e-5, 1e-6], metavar="LAMBDA")
    parser.add_argument("--max-evaluations", type=count, default=2000, metavar="N", help="of each run (%(default)s)")
    records.add_json(parser)
    args = parser.parse_args()
    found: list[records.Record] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, paths in args.data:
            data = paths[0]
            if not data.is_dir():
                text, data = data, Path(folder) / name
                run_program("shard", text, data, "--quiet")
            for lam in args.lambdas:
                rows = of_lambda(data, lam, sorted(args.betas, reverse=True), args.max_evaluations)
                found += [{"set": name, "lambda": lam, **row} for row in rows]
                print(table(found[-len(rows) :]), flush=True)
                records.write(args.json, "scripts.experiments.small_beta", found)
    print(table(found))


def of_lambda(data: Path, lam: float, betas: Sequence[float], limit: int) -> list[records.Record]:
    """Train for ROCArea and for each BETA at a lambda, and return a record for each."""

    def train(measure: str, start: distsms.Model | None = None, epsilon: float = 1e-3) -> distsms.Model:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # vacuous models are expected
            return distsms.train(
                data, measure=measure, lam=lam, start=start, check=False, epsilon=epsilon, max_evaluations=limit
            )

    stage = train(f"pauc@{betas[0]:g}", epsilon=FIRST_GAP)
    rows = []
    for measure in ("rocarea", *(f"pauc@{beta:g}" for beta in betas)):
        info = train(measure).info
        row = {"measure": measure} | {name: info[name] for name in ("evaluations", "status", "J")}
        if measure not in ("rocarea", f"pauc@{betas[0]:g}"):
            row["in_stages"] = stage.info["evaluations"] + train(measure, stage).info["evaluations"]
        rows.append(row)
    return rows


def table(found: Sequence[records.Record]) -> str:
    """Return the table; see the module's docstring."""
    measures = list(dict.fromkeys(str(row["measure"]) for row in found))
    lines: dict[tuple[str, str], list[str]] = {}
    for row in found:
        cell = f"{row['evaluations']}"
        if row["status"] != "proved":
            cell += f" ({row['status']})"
        elif row["J"] >= 1 - NOTHING_GAINED:
            cell += "*"
        if "in_stages" in row:
            cell += f" ({row['in_stages']})"
        lines.setdefault((row["set"], f"{row['lambda']:g}"), []).append(cell)
    return markdown(["set", "lambda", *measures], [[*key, *cells] for key, cells in lines.items()])


if __name__ == "__main__":
    main()
