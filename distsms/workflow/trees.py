"""Tune and train the boosted trees of XGBoost and LightGBM by random search, with the same budget for both.

Setting 0 is the usual one, and the others are drawn alike in every run. A setting is trained on four fifths of the
training rows: the best measure on the other fifth is its value, and says for how many rounds all rows are then trained.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.measures import Measure
from distsms.base.scored import Scored
from distsms.base.typing import Floats, Hashes
from distsms.matrix.blocks import thread_count
from distsms.metrics import ranking
from distsms.metrics.within_groups import gauc_estimate
from distsms.shards.row_metadata import some
from distsms.workflow.path import ALONE

XGBOOST, LIGHTGBM = "xgboost", "lightgbm"  # the names of the packages
MOST_ROUNDS, PATIENCE = 2000, 50
"""The most rounds of boosting. They end earlier if the measure on the held-out rows has not risen for `PATIENCE`
rounds.
"""


class TrialResult(NamedTuple):
    """The result of trying a setting."""

    value: float  # the measure on the rows held out; NaN if no rows could be held out
    rounds: int  # the number of rounds with that value


def parameters(number: int, library: str = XGBOOST) -> dict[str, Any]:
    """Return the parameters of a setting, by the names that the library gives them."""
    if number == 0:
        return {"max_depth": 6, "eta": 0.1} if library == XGBOOST else {"num_leaves": 31, "learning_rate": 0.1}
    draws = iter(np.random.default_rng((0, number)).random(6))
    leaves = round(_between(8, 256, next(draws)))
    eta = float(f"{_between(0.05, 0.3, next(draws)):.2g}")
    child = next(draws)
    l2 = float(f"{_between(0.1, 10, next(draws)):.2g}")
    columns, rows = round(0.3 + 0.7 * next(draws), 2), round(0.5 + 0.5 * next(draws), 2)
    if library == XGBOOST:
        return {
            "grow_policy": "lossguide",
            "max_depth": 0,
            "max_leaves": leaves,
            "eta": eta,
            "min_child_weight": float(f"{_between(0.1, 10, child):.2g}"),
            "lambda": l2,
            "colsample_bytree": columns,
            "subsample": rows,
        }
    return {
        "num_leaves": leaves,
        "learning_rate": eta,
        "min_data_in_leaf": round(_between(1, 100, child)),
        "lambda_l2": l2,
        "feature_fraction": columns,
        "bagging_fraction": rows,
        "bagging_freq": 1,
    }


def _between(low: float, high: float, share: float) -> float:
    """Interpolate between two positive numbers, evenly in the logarithm."""
    return low * (high / low) ** share


def describe(number: int, library: str = XGBOOST) -> str:
    """Return a setting as text, in the terms of the library."""
    named = parameters(number, library).items()
    return ", ".join(f"{name} {value:g}" for name, value in named if name != "grow_policy" and value)


def attempt(
    X: Any,
    y: NDArray[np.int8],
    held_out: NDArray[np.bool_] | None,
    measure: str,
    number: int,
    weights: Floats | None = None,
    groups: Hashes | None = None,
    library: str = XGBOOST,
) -> TrialResult:
    """Try a setting on training rows, and evaluate it on those `held_out`; NaN if there are none. Local."""
    if held_out is None:
        return TrialResult(np.nan, MOST_ROUNDS // 20)
    training, validation = (_Rows(X[rows], y[rows], some(weights, rows)) for rows in (~held_out, held_out))
    within, metric = Measure.parse(measure).within_groups, None
    if measure == "prbep" or within:
        metric = partial(_metric, within=within, groups=some(groups, held_out))
    if library == LIGHTGBM:
        model = _train_lightgbm(number, training, MOST_ROUNDS, validation, metric)
        return TrialResult(float(max(model.best_score["held"].values())), model.best_iteration)
    booster = _train_xgboost(number, training, MOST_ROUNDS, validation, metric)
    return TrialResult(float(booster.best_score), booster.best_iteration + 1)


def grow(
    X: Any, y: NDArray[np.int8], number: int, rounds: int, weights: Floats | None = None, library: str = XGBOOST
) -> Callable[[Any], Floats]:
    """Train trees with a setting on all these rows, and return a function that scores rows. Local."""
    if library == LIGHTGBM:
        model = _train_lightgbm(number, _Rows(X, y, weights), rounds)
        return lambda rows: np.asarray(model.predict(rows, raw_score=True, num_threads=thread_count()), float)
    import xgboost

    booster = _train_xgboost(number, _Rows(X, y, weights), rounds)
    return lambda rows: booster.predict(xgboost.DMatrix(rows), output_margin=True).astype(float)


class _Rows(NamedTuple):
    X: Any
    y: NDArray[np.int8]
    weights: Floats | None

    def scaled_weights(self) -> Floats | None:
        """Return the weights with mean 1."""
        return None if self.weights is None else self.weights / self.weights.mean()


_Metric = Callable[[NDArray[Any], Any], tuple[str, float]]


def _train_xgboost(
    number: int, training: _Rows, rounds: int, validation: _Rows | None = None, metric: _Metric | None = None
) -> Any:
    """Train with a setting; with rows for validation, until their metric, or else AUC, rises no more."""
    import xgboost

    def matrix(rows: _Rows) -> Any:
        # Not QuantileDMatrix: that predicts sparse rows ten times as slowly, and early stopping predicts in each round.
        return xgboost.DMatrix(rows.X, label=rows.y > 0, weight=rows.scaled_weights())

    options = {"objective": "binary:logistic", "tree_method": "hist", "nthread": thread_count(), "verbosity": 0}
    options |= {"seed": 0, **parameters(number, XGBOOST)}
    stopping: dict[str, Any] = {}
    if validation is not None:
        stopping = {"evals": [(matrix(validation), "held")], "early_stopping_rounds": PATIENCE, "verbose_eval": False}
        stopping |= {"custom_metric": metric, "maximize": True} if metric else {}
        options |= {"disable_default_eval_metric": 1} if metric else {"eval_metric": "auc"}
    return xgboost.train(options, matrix(training), rounds, **stopping)


def _train_lightgbm(
    number: int, training: _Rows, rounds: int, validation: _Rows | None = None, metric: _Metric | None = None
) -> Any:
    """Do what `_train_xgboost` does."""
    import lightgbm

    def dataset(rows: _Rows, reference: Any = None) -> Any:
        label = (rows.y > 0).astype(np.float32)
        return lightgbm.Dataset(rows.X, label=label, weight=rows.scaled_weights(), reference=reference)

    # Without `deterministic` and a fixed layout, LightGBM times two layouts and takes the faster one.
    options = {"objective": "binary", "deterministic": True, "force_col_wise": True, "num_threads": thread_count()}
    options |= {"verbosity": -1, "seed": 0, **parameters(number, LIGHTGBM)}
    rows, stopping = dataset(training), dict[str, Any]()
    if validation is not None:
        options["metric"] = "None" if metric else "auc"
        stopping = {"valid_sets": [dataset(validation, reference=rows)], "valid_names": ["held"]}
        stopping["callbacks"] = [lightgbm.early_stopping(PATIENCE, verbose=False)]
        stopping["feval"] = (lambda scores, data: (*metric(scores, data), True)) if metric else None
    return lightgbm.train(options, rows, rounds, **stopping)


def _metric(scores: NDArray[Any], rows: Any, within: str | None, groups: Hashes | None) -> tuple[str, float]:
    """Return GAUC if groups are given, and else PRBEP, with a name for the library. Local."""
    y = np.where(rows.get_label() > 0, 1, -1).astype(np.int8)
    weights = rows.get_weight()  # None in LightGBM, and empty in XGBoost, if rows have no weights
    weights = None if weights is None or not len(weights) else weights.astype(float)
    scored = Scored(scores.astype(float), y, ALONE, weights, groups)
    if within and groups is not None:
        # NaN if no held-out group has rows of both classes; 0 is as good, since it is the same in all rounds
        gauc = gauc_estimate(within, scored).value
        return "gauc", float(np.nan_to_num(gauc))
    return "prbep", ranking.prbep(scored)
