"""Tune and train XGBoost's trees by random search, to see what a model that is not linear can reach on the same data.

Each setting has a number. Setting 0 has a depth of 6, a learning rate (eta) of 0.1, and the defaults of the library.
Every other setting is drawn at random, but in the same way in every run, so that a larger budget adds settings to those
of a smaller one. A setting is tried on training rows only: trees are trained on four fifths of them, and the number of
rounds is the one at which the measure on the other fifth is best. This best measure is the value of the setting. With
the best setting, trees are then trained on all training rows for the same number of rounds.
"""

from __future__ import annotations

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

MOST_ROUNDS, PATIENCE = 2000, 50
"""The most rounds of boosting. They end earlier if the measure on the held-out rows has not risen for `PATIENCE`
rounds.
"""


class TrialResult(NamedTuple):
    """The result of trying a setting."""

    value: float  # the measure on the rows held out; NaN if no rows could be held out
    rounds: int  # the number of rounds with that value


def parameters(number: int) -> dict[str, Any]:
    """Return the parameters of XGBoost in a setting."""
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
    """Interpolate between two positive numbers, evenly in the logarithm."""
    return low * (high / low) ** share


def describe(number: int) -> str:
    """Return a setting as text, in XGBoost's terms."""
    named = parameters(number).items()
    return ", ".join(f"{name} {value:g}" for name, value in named if name != "grow_policy" and value)


def attempt(
    X: Any,
    y: NDArray[np.int8],
    held_out: NDArray[np.bool_] | None,
    measure: str,
    number: int,
    weights: Floats | None = None,
    groups: Hashes | None = None,
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
    """
    import xgboost

    if held_out is None:
        return TrialResult(np.nan, MOST_ROUNDS // 20)
    out, own = (None, None) if weights is None else (weights[held_out], weights[~held_out])
    watched = _rows(X[held_out], y[held_out], out)
    stopping: dict[str, Any] = {"evals": [(watched, "held")], "early_stopping_rounds": PATIENCE}
    options = _options(number)
    within = Measure.parse(measure).within_groups
    if measure == "prbep" or within:
        judged = None if groups is None else groups[held_out]
        options["disable_default_eval_metric"] = 1
        stopping |= {"custom_metric": lambda scores, rows: _metric(scores, rows, within, judged), "maximize": True}
    else:
        options["eval_metric"] = "auc"
    booster = xgboost.train(
        options, _rows(X[~held_out], y[~held_out], own), MOST_ROUNDS, verbose_eval=False, **stopping
    )
    return TrialResult(float(booster.best_score), booster.best_iteration + 1)


def grow(X: Any, y: NDArray[np.int8], number: int, rounds: int, weights: Floats | None = None) -> Any:
    """Train trees with a setting on all these rows, and return a function that scores rows. Local."""
    import xgboost

    booster = xgboost.train(_options(number), _rows(X, y, weights), rounds)
    return lambda rows: booster.predict(xgboost.DMatrix(rows), output_margin=True).astype(float)


def _options(number: int) -> dict[str, Any]:
    fixed = {"objective": "binary:logistic", "tree_method": "hist", "nthread": thread_count()}
    return {**fixed, "verbosity": 0, "seed": 0, **parameters(number)}


def _rows(X: Any, y: NDArray[np.int8], weights: Floats | None) -> Any:
    import xgboost

    # Not QuantileDMatrix: that predicts sparse rows ten times as slowly, and early stopping predicts in every round.
    return xgboost.DMatrix(X, label=y > 0, weight=None if weights is None else weights / weights.mean())


def _metric(scores: NDArray[np.float32], rows: Any, within: str | None, groups: Hashes | None) -> tuple[str, float]:
    """Return GAUC if groups are given, and else PRBEP, with a name for XGBoost. Local."""
    y = np.where(rows.get_label() > 0, 1, -1).astype(np.int8)
    weights = rows.get_weight().astype(float)
    own = scores.astype(float), y
    if within and groups is not None:
        # NaN if no held-out group has rows of both classes; 0 is as good, since it is the same in all rounds
        found = gauc_estimate(within, *own, groups, ALONE, weights if len(weights) else None).value
        return "gauc", float(np.nan_to_num(found))
    return "prbep", ranking.prbep(*own, ALONE, weights if len(weights) else None)
