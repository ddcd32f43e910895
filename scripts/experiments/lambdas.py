"""Compare ways to choose lambda, and to normalize columns, by measures of test rows.

    . scripts/environment
    python -m scripts.experiments.lambdas Default=default.csv,default adult9=adult9.train.xz [--json FILE]

Each set is svmlight text, or a table with the name of its label column after a comma. Models are trained on 7 of 10
rows and tested on the others. For both measures and for each normalization there is a model for each of five lambdas:
1e-4, 1, the one that a path on five folds chooses, that of `--lambda auto`, and the one that auto chooses on a tenth of
the training rows. The last one shows whether a lambda that is chosen on a sample is good for all rows. All models are
trained on all training rows. Normalizations: `standard` scales all columns, `numbers` only those with other values than
0 and 1, `none` no column.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.hashing import row_keys
from distsms.base.measures import RANKING, SHOWN, Measure
from distsms.base.scored import Scored
from distsms.matrix.arrays import as_features
from distsms.metrics import ranking
from distsms.optim.settings import Settings
from distsms.shards import dataset
from distsms.shards.dataset import DataBlock
from distsms.training.fit import fit
from distsms.training.solver_choice import choose_solver, settings_for
from distsms.training.task import TrainingTask
from distsms.workflow import choice
from distsms.workflow.auto_lambda import choose_lambda
from distsms.workflow.choice import Point
from distsms.workflow.path import PathRows, Problem, run
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.common import output_of
from scripts.records import Record

ALONE = Communicator()
GRID = [1.0, 1e-1, 1e-2, 1e-3, 1e-4]
NORMALIZATIONS = ("standard", "numbers", "none")
MOST_EVALUATIONS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", metavar="NAME=FILE[,LABEL]", help="the sets, see above")
    parser.add_argument(
        "--normalizations", nargs="+", choices=NORMALIZATIONS, default=NORMALIZATIONS, help="see above (all)"
    )
    parser.add_argument("--measures", nargs="+", choices=RANKING, default=RANKING, help="measures to train for (both)")
    records.add_json(parser)
    args = parser.parse_args()
    found: list[Record] = []
    for named in args.sets:
        name, _, file = named.partition("=")
        with tempfile.TemporaryDirectory() as folder:
            path, _, label = file.partition(",")
            parts = _read(path, label, Path(folder))
        for how in args.normalizations:
            train, test = _normalized(parts, how)
            if how != args.normalizations[0] and _equal(train[0], _normalized(parts, args.normalizations[0])[0][0]):
                continue
            for measure in args.measures:
                found += _compare(train, test, measure, {"set": name, "normalization": how})
                print(found[-1], flush=True)
        records.write(args.json, "scripts.experiments.lambdas", found)
    print(table(found))


def table(found: list[Record]) -> str:
    """Make a table of the records: a row for each set, measure and normalization, a column for each way to choose."""
    header = [
        "set",
        "training rows",
        "measure",
        "normalization",
        *(f"test [%], lambda: {name}" for name in found[0]["test"]),
    ]
    header += [f"lambda of {name}" for name in ("path", "auto", "auto on a tenth")]
    rows = []
    for record in found:
        test = [f"{100 * value:.2f}" for value in record["test"].values()]
        lams = [f"{record['lambda'][name]:g}" for name in ("path", "auto", "auto on a tenth")]
        start = [record["set"], str(record["n"]), SHOWN[record["measure"]], record["normalization"]]
        rows.append([*start, *test, *lams])
    return markdown(header, rows)


Rows = tuple[Any, np.ndarray[Any, Any]]


def _read(file: str, label: str, work: Path) -> list[Rows]:
    """Return the training and test rows of a file, without normalization."""
    options = ("--label", label) if label else ()
    output_of("shard", file, work / "data", *options, "--split", "0.7,0.3", "--normalize", "none", "--quiet")
    read = [dataset.read_manifest(work / "data" / part) for part in ("train", "test")]
    p = max(manifest.p for manifest in read)
    found = []
    for manifest in read:
        X, y, _ = dataset.load_matrix(manifest)
        X = sparse.csr_matrix(X)
        X.resize(X.shape[0], p)
        found.append((X, y))
    return found


def _normalized(parts: list[Rows], how: str) -> tuple[Rows, Rows]:
    """Return training and test rows with columns scaled by the standard deviation of the training rows."""
    (X, y), (X_test, y_test) = parts
    mean = np.asarray(X.mean(axis=0)).ravel()
    deviation = np.sqrt(np.maximum(np.asarray(X.multiply(X).mean(axis=0)).ravel() - mean**2, 0))
    is_number = np.zeros(X.shape[1], bool)
    is_number[np.unique(X.indices[~np.isin(X.data, (0.0, 1.0))])] = True
    scaled = {"standard": np.ones_like(is_number), "numbers": is_number, "none": np.zeros_like(is_number)}[how]
    factors = np.where(scaled & (deviation > 1e-12), 1 / np.maximum(deviation, 1e-12), 1.0)
    scale = sparse.diags(factors)
    return (sparse.csr_matrix(X @ scale), y), (sparse.csr_matrix(X_test @ scale), y_test)


def _equal(a: Any, b: Any) -> bool:
    return bool(abs(a - b).nnz == 0)


def _block(X: Any, y: np.ndarray[Any, Any]) -> DataBlock:
    return DataBlock(as_features(X), y.astype(np.int8), None, 0, len(y), X.shape[1], 0)


def _compare(train: Rows, test: Rows, measure: str, record: Record) -> list[Record]:
    """Return a list with the record of all ways to choose lambda for a measure."""
    solver = choose_solver(None, measure, ALONE)[0]
    settings = settings_for(measure, solver, 1e-3, 0.01, lam=1e-4, max_evaluations=MOST_EVALUATIONS)
    block, seconds = _block(*train), {}
    begun = time.perf_counter()
    by_path = _by_path(block, measure, settings)
    seconds["path"] = time.perf_counter() - begun
    auto = choose_lambda(TrainingTask(block, Measure.parse(measure), settings), ALONE)
    seconds["auto"] = auto.seconds
    tenth = row_keys(np.arange(len(train[1])), 17) / 2.0**64 < 0.1
    of_tenth = choose_lambda(
        TrainingTask(_block(train[0][tenth], train[1][tenth]), Measure.parse(measure), settings), ALONE
    )
    lams = {"1e-4": 1e-4, "1": 1.0, "path": by_path, "auto": auto.lam, "auto on a tenth": of_tenth.lam}
    values: dict[float, tuple[float, float]] = {}
    for lam in lams.values():
        if lam not in values:
            values[lam] = _trained(train, test, measure, settings, lam)
    seconds["training"] = values[auto.lam][1]
    sizes = {"n": len(train[1]), "n_pos": int(np.sum(train[1] > 0)), "p": train[0].shape[1]}
    found = {"measure": measure, **sizes, "lambda": lams, "seconds": seconds, "reason": auto.reason}
    means = [mean._asdict() for mean in auto.means]
    return [record | found | {"test": {name: values[lam][0] for name, lam in lams.items()}, "tried": means}]


def _by_path(block: DataBlock, measure: str, settings: Settings) -> float:
    points: list[Point] = []
    problem = Problem(measure, GRID, 5, 0, settings, all_rows=False)
    run(
        PathRows(block, ALONE),
        problem,
        lambda point, result, scores: points.append(point),
        extend=lambda found: choice.extension(found, measure, GRID),
    )
    return choice.choose(choice.means(points, measure), "best", choice.faults(points)).chosen.lam


def _trained(train: Rows, test: Rows, measure: str, settings: Settings, lam: float) -> tuple[float, float]:
    """Train on all training rows; return the measure of the test rows, and the seconds."""
    task = TrainingTask.of_rows(as_features(train[0]), train[1], measure, replace(settings, lam=lam))
    begun = time.perf_counter()
    found = fit(task, ALONE)
    seconds = time.perf_counter() - begun
    ranked = ranking.ranking(Scored(test[0] @ found.w, test[1], ALONE))
    return float(getattr(ranked, measure)), seconds


if __name__ == "__main__":
    main()
