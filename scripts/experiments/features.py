"""Train linear models on the leaves of forests, and see what test rows say of them.

    . scripts/environment
    python -m scripts.experiments.features covertype=covertype-20k.xz web8=web8.train.xz,web8.test.xz [--json FILE]

Each set is svmlight text, NAME=TRAIN[,TEST]. Without TEST there are --splits random splits, 3 of 4 rows to train on. A
forest grows on the training rows, or on a sample of them (--shares 1 0.25), and a linear model is trained for each
measure on the leaves of all training rows, to a proved gap. The rows have length 1: each leaf has the value 1 over the
root of the number of trees.

Lambda is chosen on a fifth of the training rows. For that, another forest grows on the other four fifths, with at most
50 trees, and a model is trained for each lambda. No row that judges a lambda has grown a tree or trained a model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.cli.types import count
from distsms.data.sampling import Shares
from distsms.data.shards import dataset
from distsms.features import growing_rows
from distsms.features.forest import Forest
from distsms.features.growing import grow
from distsms.matrix.blocks import LocalRows
from distsms.matrix.coded import CodedRows, code_rows
from distsms.matrix.normalization import Normalization
from distsms.measures import RANKING, SHOWN
from distsms.metrics import ranking
from distsms.parallel.communicator import Communicator
from distsms.study.tables import markdown
from distsms.training.fit import fit
from distsms.training.solver_choice import settings_for
from distsms.training.task import RunOptions, TrainingTask
from scripts import records
from scripts.experiments.common import named_files, output_of
from scripts.records import Record

ALONE = Communicator()
GRID = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5)
TRIAL_TREES = 50
Rows = tuple[Any, NDArray[np.int8]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=named_files, metavar="NAME=TRAIN[,TEST]", help="svmlight text")
    parser.add_argument("--trees", type=count, default=100, metavar="N", help="trees of a forest (%(default)s)")
    parser.add_argument("--min-leaf", type=count, default=3, metavar="N", help="rows of a leaf (%(default)s)")
    about = "shares of the training rows on which the forest grows (1)"
    parser.add_argument("--shares", nargs="+", type=float, default=[1.0], metavar="SHARE", help=about)
    parser.add_argument(
        "--splits", type=count, default=3, metavar="N", help="splits of sets without TEST (%(default)s)"
    )
    parser.add_argument("--balanced", action="store_true", help="grow trees with both classes of the same weight")
    records.add_json(parser)
    args = parser.parse_args()
    found: list[Record] = []
    for name, paths in args.sets:
        for split, (train, test) in enumerate(splits(paths, args.splits)):
            for share in args.shares:
                for record in judged(train, test, share, args):
                    found.append({"set": name, "split": split, "share": share, "trees": args.trees, **record})
                    print(found[-1], flush=True)
                    records.write(args.json, "scripts.experiments.features", found)
    print(table(found))


def table(found: list[Record]) -> str:
    """Return the means over splits: a row for each set, share and measure."""
    rows = []
    keys = dict.fromkeys((record["set"], record["share"], record["measure"]) for record in found)
    for key in keys:
        own = [record for record in found if (record["set"], record["share"], record["measure"]) == key]
        values = [100 * record["test"] for record in own]
        seconds = [np.mean([record[f"{what}_seconds"] for record in own]) for what in ("growing", "leaves", "training")]
        lams = ", ".join(f"{record['lambda']:g}" for record in own)
        set_name, share, measure = key
        start = [
            set_name,
            f"{share:g}",
            SHOWN[measure],
            f"{np.mean(values):.2f}",
            f"{min(values):.2f}",
            f"{max(values):.2f}",
        ]
        rows.append([*start, lams, *(f"{value:.1f}" for value in seconds)])
    header = ["set", "rows that grow", "measure", "test [%]", "least", "most", "lambda"]
    return markdown([*header, "s to grow", "s to find leaves", "s to train"], rows)


def splits(paths: list[Path], n: int) -> Iterator[tuple[Rows, Rows]]:
    """Yield training and test rows."""
    parts = [read(path) for path in paths]
    p = max(X.shape[1] for X, _ in parts)
    for X, _ in parts:
        X.resize(X.shape[0], p)
    if len(parts) == 2:
        yield parts[0], parts[1]
        return
    ((X, y),) = parts
    for split in range(n):
        order = np.random.default_rng(split).permutation(len(y))
        first, last = np.sort(order[len(y) // 4 :]), np.sort(order[: len(y) // 4])
        yield (X[first], y[first]), (X[last], y[last])


def read(path: Path) -> Rows:
    """Return the rows of an svmlight file."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        output_of("shard", path, f"{folder}/data", "--normalize", "none", "--quiet")
        X, y, _ = dataset.load_matrix(dataset.read_manifest(f"{folder}/data"))
    return sparse.csr_matrix(X), y


def grown(rows: Rows, share: float, trees: int, args: argparse.Namespace) -> Forest:
    """Grow a forest on a share of some rows."""
    X, y = rows
    weights = np.where(y > 0, len(y) / np.sum(y > 0), len(y) / np.sum(y < 0)) / 2 if args.balanced else None
    return grow(growing_rows.sample([(0, X, y, weights)], Shares(share, share)), ALONE, trees, args.min_leaf)


def coded(forest: Forest, X: Any) -> LocalRows:
    """Return leaves as rows of length 1."""
    codes = forest.codes(X)
    made = CodedRows(forest.code_map, code_rows(codes, forest.code_map), [0, len(codes)])
    made.normalize(Normalization("l2"))
    return made


def trained(rows: LocalRows, y: NDArray[np.int8], measure: str, lam: float) -> tuple[Any, float]:
    """Return a result of training, to a proved gap of a thousandth of J, and its seconds."""
    begun = time.perf_counter()
    settings = settings_for(measure, "lbfgs", None, 1e-3, lam=lam, max_evaluations=1000)
    found = fit(TrainingTask.of_rows(rows, y, measure, settings), ALONE, RunOptions(measure_rows=False))
    return found, time.perf_counter() - begun


def value(measure: str, rows: LocalRows, w: Any, y: NDArray[np.int8]) -> float:
    return float(getattr(ranking.ranking(rows.margins(w), y, ALONE), measure))


def judged(train: Rows, test: Rows, share: float, args: argparse.Namespace) -> Iterator[Record]:
    """Choose lambda, train, and test, for each measure."""
    order = np.random.default_rng(0).permutation(len(train[1]))
    inner, outer = (np.sort(part) for part in (order[len(order) // 5 :], order[: len(order) // 5]))
    X, y = train
    trial = grown((X[inner], y[inner]), share, min(args.trees, TRIAL_TREES), args)
    trial_rows, trial_test = coded(trial, X[inner]), coded(trial, X[outer])
    begun = time.perf_counter()
    forest = grown(train, share, args.trees, args)
    growing = time.perf_counter() - begun
    rows = coded(forest, X)
    test_rows, begun = coded(forest, test[0]), time.perf_counter()
    forest.codes(X)
    leaves = time.perf_counter() - begun
    for measure in RANKING:
        tried = {
            lam: value(measure, trial_test, trained(trial_rows, y[inner], measure, lam)[0].w, y[outer]) for lam in GRID
        }
        lam = max(tried, key=lambda lam: tried[lam])
        found, seconds = trained(rows, y, measure, lam)
        yield {
            "measure": measure,
            "test": value(measure, test_rows, found.w, test[1]),
            "lambda": lam,
            "inner": list(tried.values()),
            "status": found.result.status.name,
            "gap": found.result.gap,
            "J": found.result.J,
            "evaluations": found.result.evaluations,
            "growing_seconds": growing,
            "leaves_seconds": leaves,
            "training_seconds": seconds,
            "columns": forest.code_map.p,
            "n": len(y),
        }


if __name__ == "__main__":
    main()
