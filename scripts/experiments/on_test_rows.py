"""Measure the methods of a finished `distsms baseline` on test rows, after fitting them to all training rows.

    . scripts/environment
    distsms baseline data/train --output baseline
    python -m scripts.experiments.on_test_rows baseline data/test

A linear method gets the lambda with the best mean over the baseline's folds. For trees, as many settings as in the
baseline are tried again on all training rows. The program prints ROCArea and PRBEP of the test rows in per cent, and by
how much distsms is better in the baseline's measure. Before that it prints how many of the test rows also occur among
the training rows, with exactly the same entries. If many do, the table shows what the models have memorized, and not
how good they are on new rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from distsms.base.formatting import format_table
from distsms.base.measures import SHOWN, Measure
from distsms.base.scored import Scored
from distsms.features import arrays
from distsms.matrix.arrays import as_features
from distsms.metrics import ranking
from distsms.metrics.differences import JudgedRows, difference
from distsms.shards import dataset
from distsms.training.solver_choice import settings_for
from distsms.workflow.baseline_fits import BaselineStore, Fit
from distsms.workflow.baseline_text import describe_interval
from distsms.workflow.candidates import named
from distsms.workflow.competitors import ALONE, HELD_OUT_PARTS, METHODS, OURS, Fitted, Method, Task, describe_end, train
from distsms.workflow.folds import hold_out
from distsms.workflow.method_results import complete
from scripts import records
from scripts.experiments.feature_fits import describe_trees


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baseline", metavar="BASELINE", help="folder of a finished `distsms baseline`")
    parser.add_argument("test", metavar="TEST", help="a data set made by `distsms shard --like` the training rows")
    records.add_json(parser)
    args = parser.parse_args()
    store = BaselineStore(args.baseline)
    baseline = store.read("problem", "methods")
    problem = baseline["problem"]
    measure, fits = problem["measure"], store.fits()
    X, y, _ = dataset.load_matrix(dataset.read_manifest(problem["data"]["path"]))
    X_test, y_test, _ = dataset.load_matrix(dataset.read_manifest(args.test))
    known = rows_in_common(X, X_test)
    print(f"test      {args.test}: {len(y_test)} rows, of which {known} occur among the training rows")
    settings = settings_for(measure, baseline["solver"], problem["epsilon"], problem["relative"], lam=1.0)
    scores, chosen = {}, {}
    for name, method in METHODS.items():
        own, task = complete(fits, name, problem["folds"]), Task(X, y, measure, settings)
        if own and method.linear:
            chosen[name] = best_setting(own, measure)
        elif own:
            chosen[name], task = search_trees(task, method, int(best_setting(own, measure)))
        if own:
            fit = method.fit or partial(fit_by_distsms, method)
            scores[name] = fit(task, chosen[name]).score(X_test)
    found: list[records.Record] = []
    lines = []
    for name, method_scores in scores.items():
        ranked = ranking.ranking(Scored(method_scores, y_test, ALONE))
        lead = (
            None
            if name == OURS or OURS not in scores
            else difference(
                Measure.parse(measure),
                JudgedRows(
                    (Scored(scores[OURS], y_test, ALONE), Scored(method_scores, y_test, ALONE)),
                    np.arange(len(y_test)),
                    (0.0, 0.0),
                ),
            )
        )
        by = [f"{100 * lead.value:+.2f}", describe_interval(lead, "+.2f")] if lead else ["", ""]
        setting = f"{chosen[name]:g}" if METHODS[name].linear else "search"
        lines.append([name, f"{100 * ranked.rocarea:.2f}", f"{100 * ranked.prbep:.2f}", *by, setting])
        limits = {"ahead_by": lead.value, "low": lead.low, "high": lead.high} if lead else {}
        found.append({"method": name, "rocarea": ranked.rocarea, "prbep": ranked.prbep, "setting": setting, **limits})
    header = [
        "method",
        "ROCArea [%]",
        "PRBEP [%]",
        f"distsms ahead by [points of {SHOWN[measure]}]",
        "interval",
        "lambda",
    ]
    print(f"\n{format_table(header, lines)}")
    more = {"measure": measure, "test_rows": len(y_test), "among_training_rows": known}
    records.write(args.json, "scripts.experiments.on_test_rows", found, **more)


def fit_by_distsms(method: Method, task: Task, lam: float) -> Fitted:
    """Fit a method that distsms trains on rows in memory."""
    rows_of: Callable[[Any], Any] = as_features
    if method.features:
        rows_of = arrays.fit_arrays(task.X, task.y, arrays.options(named(method.features)), task.weights).rows
    measure = Measure.parse(method.trains or task.measure)
    model = train(task._replace(X=rows_of(task.X)), measure, lam)
    w, bias = model.w, model.bias  # not the rows
    return Fitted(lambda X: rows_of(X).margins(w) + bias, describe_end(model.result))


def best_setting(fits: list[Fit], measure: str) -> float:
    """Return the setting with the best mean over the folds; the largest if there are several."""
    settings = sorted({fit.setting for fit in fits}, reverse=True)

    def mean(setting: float) -> float:
        return float(np.mean([getattr(fit, measure) for fit in fits if fit.setting == setting]))

    return max(settings, key=mean)


def search_trees(task: Task, method: Method, budget: int) -> tuple[float, Task]:
    """Try `budget` settings of trees; return the number of the best one, and the task with its rounds."""
    assert method.search is not None
    task = task._replace(held_out=hold_out("rows", task.y, task.y, HELD_OUT_PARTS))
    found = [method.search(task, number) for number in range(budget)]
    number = int(np.argmax([attempt.value for attempt in found]))
    about = describe_trees(number, method.package)
    print(f"{method.name:9} {budget} settings tried; {found[number].rounds} rounds, {about}", flush=True)
    return float(number), task._replace(rounds=found[number].rounds)


def rows_in_common(train: csr_matrix, test: csr_matrix) -> int:
    """Return how many rows of `test` are among those of `train`."""

    def as_bytes(X: csr_matrix) -> list[bytes]:
        ends = zip(X.indptr, X.indptr[1:], strict=False)
        return [X.indices[a:b].astype(np.int64).tobytes() + X.data[a:b].tobytes() for a, b in ends]

    there = set(as_bytes(train))
    return sum(row in there for row in as_bytes(test))


if __name__ == "__main__":
    main()
