"""The obvious alternatives, and ours, behind one function each; what imports scikit-learn's models.

lambda of ours weighs ||w||^2 / 2 against a mean over rows or pairs; scikit-learn's C weighs a sum over rows against
||w||^2 / 2. So the same lambda is C = 1 / (lambda n), n being the rows trained on, whether classes are balanced (the
weights n / (2 n_class) are 1 in the mean) or not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError
from distsms.matrix.local import as_features
from distsms.optim.result import Status
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.selection import trees
from distsms.training.fit import RunOptions, TrainingTask, fit
from distsms.utils.typing import Floats

ALONE = Communicator()

HELD = 5
"""One of so many parts of the training rows is held out of a search."""


class Task(NamedTuple):
    """Rows to train on, X (n, p) of SciPy or NumPy and y (n,) of +1 and -1, and what for."""

    X: Any
    y: NDArray[np.int8]
    measure: str
    settings: Settings  # of ours, but for lambda
    held: NDArray[np.bool_] | None = None  # (n,): rows that say when to stop, where a method wants some
    rounds: int = 0  # of trees, as the search found them


class Fitted(NamedTuple):
    """A function that scores rows, and what there is to say of the fit."""

    score: Callable[[Any], Floats]
    note: str = ""


class Method(NamedTuple):
    """How to fit with a setting, and what it is, for people.

    A setting is a lambda or, for a method that has a `search`, a number of `trees.setting`: all are tried on the rows
    to train on, the best is fitted.
    """

    name: str
    fit: Callable[[Task, float], Fitted]
    about: str
    package: str = ""
    search: Callable[[Task, float], trees.Tried] | None = None

    @property
    def linear(self) -> bool:
        """Whether lambdas tune it."""
        return self.search is None

    def settings(self, lambdas: Sequence[float], budget: int) -> Sequence[float]:
        """What is tried."""
        return lambdas if self.linear else [float(number) for number in range(budget)]


def _ours(task: Task, lam: float) -> Fitted:
    settings = replace(task.settings, lam=lam)
    own = TrainingTask.of_rows(as_features(task.X), task.y, task.measure, settings)
    found = fit(own, ALONE, RunOptions(measure_rows=False))
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


def _trees(task: Task, number: float) -> Fitted:
    return Fitted(trees.grow(task.X, task.y, int(number), task.rounds))


def _attempt(task: Task, number: float) -> trees.Tried:
    return trees.attempt(task.X, task.y, task.held, task.measure, int(number))


OURS = "distsms"
LOGISTIC = "logistic regression"
SQUARED = "linear SVM with squared hinge loss and a regularized intercept"
BALANCED = ", classes balanced"
METHODS = {
    one.name: one
    for one in (
        Method(OURS, _ours, "linear model, trained for the measure"),
        Method("logistic", _scikit("linear_model", "LogisticRegression", False), LOGISTIC, "sklearn"),
        Method(
            "logistic-balanced",
            _scikit("linear_model", "LogisticRegression", True),
            LOGISTIC + BALANCED,
            "sklearn",
        ),
        Method("svm", _scikit("svm", "LinearSVC", False), SQUARED, "sklearn"),
        Method("svm-balanced", _scikit("svm", "LinearSVC", True), SQUARED + BALANCED, "sklearn"),
        Method("trees", _trees, "XGBoost", "xgboost", _attempt),
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
