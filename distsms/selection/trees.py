"""Tune and train the boosted trees of XGBoost and LightGBM by random search, with the same budget for both.

They show what a model that is not linear can reach on the same data. Each setting has a number. Setting 0 has a
learning rate (eta) of 0.1, and otherwise the defaults of the library: trees of depth 6 in XGBoost, of 31 leaves in
LightGBM. Every other setting is drawn at random, but in the same way in every run and for both libraries, so that a
larger budget adds settings to those of a smaller one. A setting is tried on training rows only: trees are trained on
four fifths of them, and the number of rounds is the one at which the measure on the other fifth is best. This best
measure is the value of the setting. With the best setting, trees are then trained on all training rows for the same
number of rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.matrix.blocks import thread_count
from distsms.measures import Measure
from distsms.metrics import ranking
from distsms.metrics.within_groups import gauc_estimate
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats, Hashes

ALONE = Communicator()

XGBOOST, LIGHTGBM = "xgboost", "lightgbm"
"""The libraries, by the names of their packages."""

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
    leaves, eta, child, l2, columns, rows = np.random.default_rng((0, number)).random(6)
    most_leaves, rate = round(_between(8, 256, leaves)), float(f"{_between(0.05, 0.3, eta):.2g}")
    regularization = float(f"{_between(0.1, 10, l2):.2g}")
    of_columns, of_rows = round(0.3 + 0.7 * columns, 2), round(0.5 + 0.5 * rows, 2)
    if library == XGBOOST:
        return {
            "grow_policy": "lossguide",
            "max_depth": 0,
            "max_leaves": most_leaves,
            "eta": rate,
            "min_child_weight": float(f"{_between(0.1, 10, child):.2g}"),
            "lambda": regularization,
            "colsample_bytree": of_columns,
            "subsample": of_rows,
        }
    return {
        "num_leaves": most_leaves,
        "learning_rate": rate,
        "min_data_in_leaf": round(_between(1, 100, child)),
        "lambda_l2": regularization,
        "feature_fraction": of_columns,
        "bagging_fraction": of_rows,
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
    """Try a setting. Local.

    Parameters
    ----------
    X : sparse matrix or ndarray, shape (n, p)
        The training rows.
    y : ndarray of int8, shape (n,)
        +1 or -1.
    held_out : ndarray of bool, shape (n,), or None
        The rows that are not used for training, but to stop it and to evaluate the setting. If it is None, nothing is
        tried: the value of the result is NaN, and its number of rounds is a constant.
    measure : str
        The measure that stops the rounds and is returned: PRBEP or GAUC if it is one of these, and else ROCArea.
    number : int
        The number of the setting.
    weights : ndarray, shape (n,), optional
        The weights of the rows.
    groups : ndarray of uint64, shape (n,), optional
        The groups of the rows, for GAUC.
    library : {"xgboost", "lightgbm"}
        Whose trees are trained.
    """
    if held_out is None:
        return TrialResult(np.nan, MOST_ROUNDS // 20)
    out, own = (None, None) if weights is None else (weights[held_out], weights[~held_out])
    training, watched = (X[~held_out], y[~held_out], own), (X[held_out], y[held_out], out)
    within = Measure.parse(measure).within_groups
    metric = None
    if measure == "prbep" or within:
        judged = None if groups is None else groups[held_out]

        def metric(scores: NDArray[Any], rows: Any) -> tuple[str, float]:
            return _metric(scores, rows, within, judged)

    tried = _try_xgboost if library == XGBOOST else _try_lightgbm
    return tried(number, training, watched, metric)


def grow(
    X: Any, y: NDArray[np.int8], number: int, rounds: int, weights: Floats | None = None, library: str = XGBOOST
) -> Callable[[Any], Floats]:
    """Train trees with a setting on all these rows, and return a function that scores rows. Local."""
    if library == LIGHTGBM:
        import lightgbm

        model = lightgbm.train(_lightgbm_options(number), _dataset(X, y, weights), rounds)
        return lambda rows: np.asarray(model.predict(rows, raw_score=True, num_threads=thread_count()), float)
    import xgboost

    booster = xgboost.train(_xgboost_options(number), _matrix(X, y, weights), rounds)
    return lambda rows: booster.predict(xgboost.DMatrix(rows), output_margin=True).astype(float)


_Rows = tuple[Any, NDArray[np.int8], Floats | None]
_Metric = Callable[[NDArray[Any], Any], tuple[str, float]]


def _try_xgboost(number: int, training: _Rows, watched: _Rows, metric: _Metric | None) -> TrialResult:
    import xgboost

    stopping: dict[str, Any] = {"evals": [(_matrix(*watched), "held")], "early_stopping_rounds": PATIENCE}
    options = _xgboost_options(number)
    if metric:
        options["disable_default_eval_metric"] = 1
        stopping |= {"custom_metric": metric, "maximize": True}
    else:
        options["eval_metric"] = "auc"
    booster = xgboost.train(options, _matrix(*training), MOST_ROUNDS, verbose_eval=False, **stopping)
    return TrialResult(float(booster.best_score), booster.best_iteration + 1)


def _xgboost_options(number: int) -> dict[str, Any]:
    fixed = {"objective": "binary:logistic", "tree_method": "hist", "nthread": thread_count()}
    return {**fixed, "verbosity": 0, "seed": 0, **parameters(number, XGBOOST)}


def _matrix(X: Any, y: NDArray[np.int8], weights: Floats | None) -> Any:
    import xgboost

    # Not QuantileDMatrix: that predicts sparse rows ten times as slowly, and early stopping predicts in every round.
    return xgboost.DMatrix(X, label=y > 0, weight=None if weights is None else weights / weights.mean())


def _try_lightgbm(number: int, training: _Rows, watched: _Rows, metric: _Metric | None) -> TrialResult:
    import lightgbm

    rows = _dataset(*training)
    model = lightgbm.train(
        _lightgbm_options(number) | {"metric": "None" if metric else "auc"},
        rows,
        MOST_ROUNDS,
        valid_sets=[_dataset(*watched, reference=rows)],
        valid_names=["held"],
        feval=(lambda scores, of: (*metric(scores, of), True)) if metric else None,
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    return TrialResult(float(max(model.best_score["held"].values())), model.best_iteration)


def _lightgbm_options(number: int) -> dict[str, Any]:
    # Without `deterministic` and a fixed layout, LightGBM times two layouts and takes the faster one.
    fixed = {"objective": "binary", "deterministic": True, "force_col_wise": True, "num_threads": thread_count()}
    return {**fixed, "verbosity": -1, "seed": 0, **parameters(number, LIGHTGBM)}


def _dataset(X: Any, y: NDArray[np.int8], weights: Floats | None, reference: Any = None) -> Any:
    import lightgbm

    of_rows = None if weights is None else weights / weights.mean()
    return lightgbm.Dataset(X, label=(y > 0).astype(np.float32), weight=of_rows, reference=reference)


def _metric(scores: NDArray[Any], rows: Any, within: str | None, groups: Hashes | None) -> tuple[str, float]:
    """Return GAUC if groups are given, and else PRBEP, with a name for the library. Local."""
    y = np.where(rows.get_label() > 0, 1, -1).astype(np.int8)
    given = rows.get_weight()  # None in LightGBM, and empty in XGBoost, if rows have no weights
    weights = np.empty(0) if given is None else given.astype(float)
    own = scores.astype(float), y
    if within and groups is not None:
        # NaN if no held-out group has rows of both classes; 0 is as good, since it is the same in all rounds
        found = gauc_estimate(within, *own, groups, ALONE, weights if len(weights) else None).value
        return "gauc", float(np.nan_to_num(found))
    return "prbep", ranking.prbep(*own, ALONE, weights if len(weights) else None)
