"""Compare models for pauc@BETA with other linear models, by measures of the head of the ranking, on several data sets.

    python -m scripts.experiments.head web8=web8.train.xz adult9=adult9.train.xz --output head --json head.json

For each data set the program runs `distsms baseline` with logistic regression and the linear SVM (classes as they are,
and balanced) and distsms for ROCArea, and then for PRBEP and for pauc at each BETA, all on the same folds. Each method
is tuned for each measure: the lambda of a fold, and the BETA, are those that are best by this measure on the other
folds. The table has the mean of each measure over the folds, in per cent, and by how much pauc is ahead of the best of
the other programs' models, which the other folds choose as well, with an interval from the spread of the folds. Fits
that are finished are kept in OUTPUT, so that a run can be continued.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base.scored import Scored
from distsms.metrics.confidence import LEVEL, folds_interval
from distsms.metrics.summary import chooser_value
from distsms.shards import dataset
from distsms.workflow.baseline_fits import BaselineStore
from distsms.workflow.competitors import ALONE, OURS
from distsms.workflow.folds import best_on_other_folds, make_folds
from distsms.workflow.method_results import complete
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.common import add_ranks, named_data, run_program

MEASURES = ("tpr@fpr=0.001", "tpr@fpr=0.01", "recall@precision=0.9", "pauc@0.01", "pauc@0.05")
OTHERS = ("logistic", "logistic-balanced", "svm", "svm-balanced")
PAUC = "pauc"
Curve = dict[tuple[str, float], list[float]]
"""For a candidate (what was trained for, lambda): the measure on each fold."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    about = "svmlight text, plain or compressed, or a data set of `distsms shard`"
    parser.add_argument("data", nargs="+", type=named_data, metavar="NAME=DATA", help=about)
    parser.add_argument("--betas", nargs="+", default=["0.01", "0.05", "0.2"], metavar="BETA", help="(%(default)s)")
    parser.add_argument("--lambdas", nargs="+", default=["1e-1:1e-5"], metavar="LAMBDA", help="as of `distsms path`")
    parser.add_argument("--folds", default="5", metavar="K", help="number of folds (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("head"), metavar="OUTPUT", help="folder (%(default)s)")
    parser.add_argument("--max-evaluations", default="1000", metavar="N", help="limit of each fit (%(default)s)")
    add_ranks(parser)
    records.add_json(parser)
    args = parser.parse_args()
    found: list[records.Record] = []
    for name, paths in args.data:
        found += of_data_set(name, paths[0], args)
        print(f"\n{table([row for row in found if row['data'] == name])}\n", flush=True)
        records.write(args.json, "scripts.experiments.head", found)


def of_data_set(name: str, data: Path, args: argparse.Namespace) -> list[records.Record]:
    """Run the baselines of a data set or text, and return a record for each measure and method."""
    folder = args.output / name
    folder.mkdir(parents=True, exist_ok=True)
    if not data.is_dir():
        text, data = data, folder / "data"
        if not (data / "manifest.json").exists():
            run_program("shard", text, data, "--quiet", ranks=args.ranks)
    stores = {}
    for measure in ("rocarea", "prbep", *(f"{PAUC}@{beta}" for beta in args.betas)):
        methods = [OURS, *OTHERS] if measure == "rocarea" else [OURS]
        stores[measure] = folder / measure
        grid = "--lambdas", *args.lambdas, "--folds", args.folds, "--max-evaluations", args.max_evaluations
        run_program(
            *("baseline", data, "--measure", measure, *grid, "--methods", *methods, "--thorough", "--quiet"),
            *("--output", stores[measure]),
            ranks=args.ranks,
        )
    manifest = dataset.read_manifest(data)
    _, y, _ = dataset.load_matrix(manifest)
    folds = make_folds("rows", y, y, np.ones(len(y), bool), int(args.folds), 0, ALONE)
    found = []
    for select in MEASURES:
        curves = {method: curve for method, curve in _curves(stores, y, folds, select) if curve}
        found += judged(curves, select, {"data": name, "rows": manifest.n, "positive": manifest.n_pos})
    return found


def _curves(stores: dict[str, Path], y: Any, folds: Any, select: str) -> list[tuple[str, Curve]]:
    """Return for each method the measure of its candidates on each fold."""
    found: dict[str, Curve] = {}
    for measure, folder in stores.items():
        store = BaselineStore(folder)
        fits = store.fits()
        for method in (OURS, *OTHERS):
            name = method if method != OURS else PAUC if measure.startswith(PAUC) else measure
            for fit in sorted(complete(fits, method, folds.number.max())):
                value = chooser_value(select, Scored(store.scores(fit), y[folds.judged(fit.fold)], ALONE), np.nan)
                found.setdefault(name, {}).setdefault((measure, fit.setting), []).append(float(value))
    return list(found.items())


def judged(curves: dict[str, Curve], select: str, more: dict[str, Any]) -> list[records.Record]:
    """Return a record for each method: its mean over the folds, each with the candidate that the others choose."""
    values = {method: _on_folds(list(curve.values())) for method, curve in curves.items()}
    others = [row for method in OTHERS for row in curves.get(method, {}).values()]
    rows = []
    for method, of_folds in values.items():
        keys, own = list(curves[method]), np.array(list(curves[method].values()))
        best = keys[int(np.argmax(own.mean(axis=1)))]
        row = {**more, "select": select, "method": method, "mean": float(of_folds.mean())}
        row |= {"trained_for": best[0], "lambda": best[1]}
        if method == PAUC and others:
            lead = folds_interval((of_folds - _on_folds(others)).tolist(), LEVEL)
            row |= {"ahead_by": lead.value, "low": lead.low, "high": lead.high}
        rows.append(row)
    return rows


def _on_folds(candidates: Sequence[Sequence[float]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = np.array(candidates)
    return values[best_on_other_folds(values), np.arange(values.shape[1])]


def table(rows: Sequence[records.Record]) -> str:
    """Return a table with a row for each data set and measure."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = []
    for data, select in dict.fromkeys((row["data"], row["select"]) for row in rows):
        here = {str(row["method"]): row for row in rows if (row["data"], row["select"]) == (data, select)}
        ours = here.get(PAUC, {})
        lead = [f"{100 * ours[key]:+.1f}" for key in ("ahead_by", "low", "high")] if "ahead_by" in ours else []
        ahead = f"{lead[0]} ({lead[1]} to {lead[2]})" if lead else ""
        means = [f"{100 * here[method]['mean']:.1f}" if method in here else "" for method in methods]
        lines.append([data, select, *means, ours.get("trained_for", ""), ahead])
    return markdown(["data", "measure", *methods, "best pauc", "pauc ahead by [points]"], lines)


if __name__ == "__main__":
    main()
