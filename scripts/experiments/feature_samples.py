"""Compare forests that grow on a sample of the training rows with forests that grow on all of them.

    . scripts/environment
    OMP_NUM_THREADS=1 python -m scripts.experiments.feature_samples covertype-20k=covertype-20k.xz [--json FILE]

Whatever the forest grows on, the linear models on its leaves are trained on all training rows. The ways to take a
sample of --share of the rows are: `alike`, the same share of both classes; `positives first`, as `distsms features
--tree-rows` does it; `in turn`, where each tenth of the trees has an `alike` sample of its own. `balanced` trees grow
on all rows, with both classes of the same weight. Only lambda is chosen, by a fifth of the training rows, as in
`scripts.experiments.features`: the table shows the test rows of all ways.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, cast

import numpy as np

from distsms.base.measures import RANKING, SHOWN
from distsms.cli.types import count
from distsms.features import growing
from distsms.features.arrays import ArrayRows
from distsms.features.feature_map import FeatureMap
from distsms.features.forest import Forest
from distsms.features.growing import grow
from distsms.shards.splits import Shares
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.common import named_files
from scripts.experiments.feature_fits import ALONE, START, Features, Judge, Split, climb, trained, value
from scripts.experiments.feature_sets import SetRows, splits
from scripts.records import Record

ALL, BALANCED, ALIKE, FIRST, TURNS = "all rows", "all rows, balanced", "alike", "positives first", "in turn"
GROUPS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=named_files, metavar="NAME=TRAIN[,TEST]", help="svmlight text")
    parser.add_argument("--share", type=float, default=0.25, help="of the training rows (%(default)s)")
    parser.add_argument("--trees", nargs="+", type=count, default=[100, 300], metavar="N", help="(100 300)")
    parser.add_argument("--min-leaf", nargs="+", type=count, default=[3, 1], metavar="N", help="(3 1)")
    parser.add_argument("--splits", type=count, default=3, metavar="N", help="of sets without TEST (%(default)s)")
    records.add_json(parser)
    args = parser.parse_args()
    found: list[Record] = []
    for name, paths in args.sets:
        for number, (train, test) in enumerate(splits(paths, 1, args.splits)):
            split = Split.of(train, test)
            for way in ways(args):
                for record in judged(split, *way, args.share):
                    found.append({"set": name, "split": number, **record})
                    print(found[-1], flush=True)
                    records.write(args.json, "scripts.experiments.feature_samples", found, share=args.share)
    print(table(found))


def ways(args: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Yield what forests grow on, their number of trees, and the least number of rows in a leaf."""
    usual = args.trees[0], args.min_leaf[0]
    yield ALL, *usual
    yield BALANCED, *usual
    yield from product((ALIKE, FIRST, TURNS), args.trees, args.min_leaf)


def forest(rows: SetRows, way: str, trees: int, min_leaf: int, share: float) -> Forest:
    """Grow a forest."""
    y = rows.labels
    weights = np.where(y > 0, len(y) / rows.n_pos, len(y) / rows.n_neg) / 2 if way == BALANCED else None
    of_rows = ArrayRows(rows.X, y, weights)

    def on(shares: Shares, n: int, seed: int = 0) -> Forest:
        return grow(growing.sample(cast(Any, of_rows), of_rows, shares, seed), ALONE, n, min_leaf, seed)

    if way != TURNS:
        alike = Shares(1.0, 1.0) if way in (ALL, BALANCED) else Shares(share, share)
        first = growing.sample_shares(rows.n_pos, rows.n_neg, round(share * len(y)))
        return on(first if way == FIRST else alike, trees)
    groups = [on(Shares(share, share), trees // GROUPS, seed).arrays() for seed in range(GROUPS)]
    columns, thresholds = (np.concatenate([own[what] for own in groups]) for what in ("column", "threshold"))
    sizes = np.concatenate([np.diff(own["start"]) for own in groups])
    return Forest(columns, thresholds, np.cumsum([0, *sizes]), np.mean([own["importance"] for own in groups], axis=0))


def judged(split: Split, way: str, trees: int, min_leaf: int, share: float) -> Iterator[Record]:
    """Choose lambda, train and test, for each measure."""

    def made(rows: SetRows) -> Features:
        grown = FeatureMap(rows.p, forest=forest(rows, way, trees, min_leaf, share))
        return Features(grown.rows, trees, grown.p, 0.0)

    judge = Judge(made(split.inner), split.inner, split.outer)
    whole = made(split.train)
    rows, test = whole.rows(split.train.X), whole.rows(split.test.X)
    for measure in RANKING:
        lam = climb(partial(judge.held_out, measure, measure), START[measure])
        model = trained(rows, split.train.labels, measure, lam * trees, 1e-3, 1000)
        yield {
            "way": way,
            "trees": trees,
            "min_leaf": min_leaf,
            "measure": measure,
            "lambda": lam * trees,
            "columns": whole.columns,
            "held_out": judge.held_out(measure, measure, lam),
            "test": value(measure, test.margins(model.w), split.test.labels),
        }


def table(found: list[Record]) -> str:
    """Return the means over splits, and what is lost compared with growing on all rows."""
    keys = list(dict.fromkeys(tuple(record[key] for key in ("set", "way", "trees", "min_leaf")) for record in found))

    def mean(key: tuple[Any, ...], measure: str) -> float:
        own = [
            record["test"]
            for record in found
            if (record["set"], record["way"], record["trees"], record["min_leaf"]) == key
            and record["measure"] == measure
        ]
        return 100 * float(np.mean(own))

    lines = []
    for key in keys:
        base = next(other for other in keys if other[:2] == (key[0], ALL))
        line = [str(part) for part in key]
        for measure in RANKING:
            line += [f"{mean(key, measure):.2f}", f"{mean(key, measure) - mean(base, measure):+.2f}"]
        lines.append(line)
    columns = [text for measure in RANKING for text in (f"{SHOWN[measure]} [%]", "difference")]
    return markdown(["set", "forest grows on", "trees", "min leaf", *columns], lines)


if __name__ == "__main__":
    main()
