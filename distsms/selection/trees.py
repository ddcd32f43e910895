"""XGBoost's trees, tuned by a random search whose budget is said: the ceiling of another class of models.

A setting has a number: 0 is depth 6 with the library's defaults, every other one is drawn, the same in every run, so
that a larger budget adds settings to those of a smaller one. It is tried on the rows to train on alone: four fifths of
them train, the others stop the rounds where the measure that is asked for is best on them, and judge the setting by
that value. The best setting is then grown on all these rows, with as many rounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.matrix.blocks import thread_count
from distsms.metrics import ranking
from distsms.parallel.communicator import Communicator

ALONE = Communicator()

MOST_ROUNDS, PATIENCE = 2000, 50
"""Rows that are held out stop the rounds, once `PATIENCE` of them have brought nothing."""


class Tried(NamedTuple):
    """How good a setting is on the rows held out of the search, NaN where there can be none; rounds that serve best."""

    value: float
    rounds: int


def setting(number: int) -> dict[str, Any]:
    """XGBoost's parameters."""
    if number == 0:
        return {"max_depth": 6, "eta": 0.1}
    leaves, eta, weight, l2, columns, rows = np.random.default_rng((0, number)).random(6)
    return {
        "grow_policy": "lossguide",
        "max_depth": 0,
        "max_leaves": round(_between(8, 256, leaves)),
        "eta": float(f"{_between(0.05, 0.3, eta):.2g}"),
        "min_child_weight": float(f"{_between(0.1, 10, weight):.2g}"),
        "lambda": float(f"{_between(0.1, 10, l2):.2g}"),
        "colsample_bytree": round(0.3 + 0.7 * columns, 2),
        "subsample": round(0.5 + 0.5 * rows, 2),
    }


def _between(low: float, high: float, share: float) -> float:
    """Evenly in the logarithm."""
    return low * (high / low) ** share


def words(number: int) -> str:
    """A setting in XGBoost's terms."""
    told = setting(number).items()
    return ", ".join(f"{name} {value:g}" for name, value in told if name != "grow_policy" and value)


def attempt(X: Any, y: NDArray[np.int8], held: NDArray[np.bool_] | None, measure: str, number: int) -> Tried:
    """Try a setting. X (n, p) of SciPy or NumPy, y (n,) of +1 and -1. Local.

    held : (n,), the rows held out of the search, to say when to stop and how good the setting is; None: there are none.
    """
    import xgboost

    if held is None:
        return Tried(np.nan, MOST_ROUNDS // 20)
    stopping: dict[str, Any] = {"evals": [(_rows(X[held], y[held]), "held")], "early_stopping_rounds": PATIENCE}
    told = _told(number)
    if measure == "rocarea":
        told["eval_metric"] = "auc"
    else:
        told["disable_default_eval_metric"] = 1
        stopping |= {"custom_metric": _prbep, "maximize": True}
    watched = xgboost.train(told, _rows(X[~held], y[~held]), MOST_ROUNDS, verbose_eval=False, **stopping)
    return Tried(float(watched.best_score), watched.best_iteration + 1)


def grow(X: Any, y: NDArray[np.int8], number: int, rounds: int) -> Any:
    """A function that scores rows by trees grown on all of these."""
    import xgboost

    booster = xgboost.train(_told(number), _rows(X, y), rounds)
    return lambda rows: booster.predict(xgboost.DMatrix(rows), output_margin=True).astype(float)


def _told(number: int) -> dict[str, Any]:
    same = {"objective": "binary:logistic", "tree_method": "hist", "nthread": thread_count()}
    return {**same, "verbosity": 0, "seed": 0, **setting(number)}


def _rows(X: Any, y: NDArray[np.int8]) -> Any:
    import xgboost

    return xgboost.DMatrix(X, label=y > 0)  # QuantileDMatrix predicts sparse rows ten times as slowly, in every round


def _prbep(scores: NDArray[np.float32], rows: Any) -> tuple[str, float]:
    y = np.where(rows.get_label() > 0, 1, -1).astype(np.int8)
    return "prbep", ranking.top_k(scores.astype(float), y, int(np.sum(y > 0)), ALONE).precision
