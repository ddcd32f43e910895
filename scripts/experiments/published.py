"""Compare published numbers with those of this program: cross-validated AUC (thesis, table 4.6), test measures (JMLR).

    . scripts/environment
    python -m scripts.experiments.paper published OUTPUT adult9=a9a web8=w8a,w8a.t news20=news20.xz [--ranks N]

Each set is NAME=TRAIN[,TEST], svmlight text, plain or compressed; without TEST every fifth row is held out. Table 4.6
is the mean of five folds, repeated four times, over all rows of TRAIN. For JMLR's figures a model is trained on TRAIN
and measured on TEST at the paper's three values of lambda. Rows without features are left out of both. Of w8a, 45546
and 13699 rows remain, which are the numbers in the paper. The program prints a table and writes OUTPUT/published.md.
If it is killed, the same command continues.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from distsms.base.measures import SHOWN
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.common import (
    PUBLISHED,
    add_ranks,
    named_files,
    output_of,
    run_program,
    shard_pair,
    without_empty_rows,
)
from scripts.records import Record

LAMBDAS = (1e-2, 1e-4, 1e-6)
SEEDS, FOLDS = range(4), 5
CROSS_VALIDATED = {"adult9": "90.27 +- 0.37", "web8": "96.43 +- 0.57"}
"""Thesis (2019), table 4.6, for the pairwise hinge: mean and standard deviation. The thesis uses no regularizer."""
TESTED = {name: PUBLISHED[name]["test"] for name in ("web8", "news20")}
"""JMLR 13 (2012), figures 22 and 17, at `LAMBDAS`. The paper splits news20 differently."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="folder for shards, paths and the table")
    parser.add_argument("sets", nargs="+", type=named_files, metavar="NAME=TRAIN[,TEST]", help="svmlight text")
    add_ranks(parser)
    records.add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Measure every set for which something is published, and print the table."""
    unknown = [name for name, _ in args.sets if not name.startswith((*CROSS_VALIDATED, *TESTED))]
    if unknown:
        known = "the NAME must begin with adult9, web8 or news20"
        print(f"there are no published numbers for {unknown[0]!r}; {known}", file=sys.stderr)
        sys.exit(2)
    found = [record for name, paths in args.sets for record in measured(name, paths, args.output, args.ranks)]
    text = table(found)
    (args.output / "published.md").write_text(text + "\n", encoding="utf-8")
    records.write(args.json, "scripts.experiments.paper", found)
    print(text)


def table(found: list[Record]) -> str:
    """Make a table of the records."""
    columns = ("set", "measure", "lambda", "published", "found")
    lines = [[str(record[column]) for column in columns] for record in found]
    return markdown(["set", "measure [%]", "lambda", "published", "found here"], lines)


def measured(name: str, paths: list[Path], output: Path, ranks: int) -> Iterator[Record]:
    """Return the records of a set."""
    folder = output / name
    kind = next((known for known in (*CROSS_VALIDATED, *TESTED) if name.startswith(known)), "")
    if kind in CROSS_VALIDATED:
        whole = folder / "whole"
        if not (whole / "manifest.json").exists():
            folder.mkdir(parents=True, exist_ok=True)
            run_program("shard", paths[0], whole, "--quiet", ranks=ranks)
        for lam, found in cross_validated(whole, folder, ranks):
            yield _record(name, "cross-validated ROCArea", lam, CROSS_VALIDATED[kind], found)
    for measure, published in TESTED.get(kind, {}).items():
        folder.mkdir(parents=True, exist_ok=True)
        texts = [
            without_empty_rows(path, folder / f"{part}.svm")
            for path, part in zip(paths, ("train", "test"), strict=False)
        ]
        data, test = shard_pair(texts[0], texts[1] if len(texts) > 1 else None, folder / "data", ranks)
        here = tested(data, test, measure, folder, ranks)
        for value, there, found in zip(LAMBDAS, published, here, strict=True):
            yield _record(name, f"test {SHOWN[measure]}", f"{value:g}", f"{there:.2f}", found)


def cross_validated(data: Path, folder: Path, ranks: int) -> Iterator[tuple[str, str]]:
    """Return each lambda with the mean and the standard deviation of the AUC of 20 folds, in per cent."""
    points = []
    for seed in SEEDS:
        path = folder / f"path-{seed}"
        options = ("--measure", "rocarea", "--lambdas", *LAMBDAS, "--folds", FOLDS, "--seed", seed, "--relative", 0.001)
        run_program("path", data, *options, "--output", path, "--quiet", ranks=ranks)
        points += json.loads((path / "path.json").read_text())["points"]
    for lam in LAMBDAS:
        values = [100 * point["held_out"]["rocarea"] for point in points if point["lam"] == lam and point["lane"]]
        yield f"{lam:g}", f"{np.mean(values):.2f} +- {np.std(values, ddof=1):.2f}"


def tested(data: Path, test: Path, measure: str, folder: Path, ranks: int) -> Iterator[str]:
    """Return the measure of the test rows at each lambda, in per cent."""
    path = folder / measure
    options = ("--measure", measure, "--lambdas", *LAMBDAS, "--folds", 0, "--relative", 0.001)
    run_program("path", data, *options, "--output", path, "--quiet", ranks=ranks)
    for lam in LAMBDAS:
        model = path / "points" / f"{lam!r}_all.h5"
        on = ("--test", test, "--bootstrap", 0, "--ignore-new-features")
        yield f"{100 * json.loads(output_of('evaluate', model, *on, '--json', ranks=ranks))[measure]:.2f}"


def _record(name: str, measure: str, lam: str, published: str, found: str) -> Record:
    return {"set": name, "measure": measure, "lambda": lam, "published": published, "found": found}
