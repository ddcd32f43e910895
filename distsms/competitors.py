"""The obvious alternatives, and ours, behind one function each; what imports scikit-learn's models and XGBoost.

lambda of ours weighs ||w||^2 / 2 against a mean over rows or pairs; scikit-learn's C weighs a sum over rows against
||w||^2 / 2. So the same lambda is C = 1 / (lambda n), n being the rows trained on, whether classes are balanced (the
weights n / (2 n_class) are 1 in the mean) or not. Trees have depths in lambda's place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.comm import Communicator
from distsms.errors import InputError
from distsms.features import rows_of
from distsms.fit import fit
from distsms.parts import threads_wanted
from distsms.result import Status
from distsms.settings import Settings

Floats = NDArray[np.float64]
ALONE = Communicator()

DEPTHS = (3.0, 6.0, 9.0)
ETA, MOST_ROUNDS, PATIENCE, HELD = 0.1, 1000, 20, 5
"""Of trees: as many rounds as serve best a `HELD`-th of the training rows, which is then trained on, too."""


class Task(NamedTuple):
    """Rows to train on, X (n, p) of SciPy or NumPy and y (n,) of +1 and -1, and what for."""

    X: Any
    y: NDArray[np.int8]
    measure: str
    settings: Settings  # of ours, but for lambda
    held: NDArray[np.bool_] | None = None  # (n,): rows that say when to stop, where a method wants some


class Fitted(NamedTuple):
    """A function that scores rows, and what there is to say of the fit."""

    score: Callable[[Any], Floats]
    note: str = ""


class Method(NamedTuple):
    """How to fit with a setting, lambda or, where `linear` is not, a depth; which package it is from."""

    name: str
    fit: Callable[[Task, float], Fitted]
    package: str = ""
    linear: bool = True

    def settings(self, lambdas: Sequence[float]) -> Sequence[float]:
        """What is tried."""
        return lambdas if self.linear else DEPTHS


def _ours(task: Task, lam: float) -> Fitted:
    settings = replace(task.settings, lam=lam)
    found = fit(rows_of(task.X), task.y, None, task.measure, settings, ALONE)
    status = found.result.status
    note = "no better than w = 0" if found.result.vacuous else "" if status is Status.PROVED else status.name.lower()
    return Fitted(lambda X: X @ found.w, note)


def _scikit(module: str, name: str, balanced: bool) -> Callable[[Task, float], Fitted]:
    def fitted(task: Task, lam: float) -> Fitted:
        from sklearn import linear_model, svm
        from sklearn.exceptions import ConvergenceWarning

        words = {"class_weight": "balanced"} if balanced else {}
        make = getattr({"svm": svm, "linear_model": linear_model}[module], name)
        model = make(C=1 / (lam * len(task.y)), max_iter=1000, **words)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ConvergenceWarning)
            model.fit(task.X, task.y)
        note = "not converged" if any(issubclass(one.category, ConvergenceWarning) for one in told) else ""
        return Fitted(model.decision_function, note)

    return fitted


def _trees(task: Task, depth: float) -> Fitted:
    import xgboost

    words = {
        "objective": "binary:logistic",
        "eval_metric": "auc" if task.measure == "rocarea" else "aucpr",
        "tree_method": "hist",
        "max_depth": int(depth),
        "eta": ETA,
        "nthread": threads_wanted(),
        "verbosity": 0,
        "seed": 0,
    }

    def rows(some: NDArray[np.bool_] | slice) -> Any:
        return xgboost.DMatrix(task.X[some], label=task.y[some] > 0)

    rounds, held = MOST_ROUNDS // 10, task.held
    if held is not None:
        stopping: dict[str, Any] = {"evals": [(rows(held), "held")], "early_stopping_rounds": PATIENCE}
        watched = xgboost.train(words, rows(~held), MOST_ROUNDS, verbose_eval=False, **stopping)
        rounds = watched.best_iteration + 1
    booster = xgboost.train(words, rows(slice(None)), rounds)
    return Fitted(lambda X: booster.predict(xgboost.DMatrix(X), output_margin=True).astype(float))


OURS = "distsms"
METHODS = {
    one.name: one
    for one in (
        Method(OURS, _ours),
        Method("logistic", _scikit("linear_model", "LogisticRegression", False), "sklearn"),
        Method("logistic-balanced", _scikit("linear_model", "LogisticRegression", True), "sklearn"),
        Method("svm", _scikit("svm", "LinearSVC", False), "sklearn"),
        Method("svm-balanced", _scikit("svm", "LinearSVC", True), "sklearn"),
        Method("trees", _trees, "xgboost", linear=False),
    )
}


def require(names: Sequence[str]) -> None:
    """Raise InputError, with the remedy, if a method's package cannot be loaded. Local."""
    for name in names:
        try:
            __import__(METHODS[name].package or "distsms")
        except ImportError as error:
            raise InputError(
                f"{name} wants {METHODS[name].package}, which cannot be loaded: {error}. "
                "pip install 'distsms[baseline]', or leave it out by --methods"
            ) from error
