"""The methods of `distsms baseline`: distsms itself and the usual alternatives, each with a function that fits it.

The objective of distsms is lambda ||w||^2 / 2 plus a mean loss over rows or pairs. That of scikit-learn is ||w||^2 / 2
plus C times a sum of losses over rows. So lambda corresponds to C = 1 / (lambda n), where n is the number of training
rows. This is also true if classes are balanced, since the weights n / (2 n_class) of the rows have the mean 1. If rows
have weights, n is the sum of their weights. Trees get weights that are divided by their mean, since the settings of
trees depend on their size.
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
from distsms.measures import RANKING
from distsms.optim.result import Status
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.selection import trees
from distsms.training.fit import fit
from distsms.training.task import RunOptions, TrainingTask
from distsms.utils.typing import Floats, Hashes

ALONE = Communicator()

HELD_OUT_PARTS = 5
"""A search holds out one of this many parts of the training rows."""


class Task(NamedTuple):
    """The training rows, and what to train for."""

    X: Any  # (n, p), a SciPy sparse matrix or a NumPy array
    y: NDArray[np.int8]  # (n,), +1 or -1
    measure: str
    settings: Settings  # of distsms, except lambda
    held_out: NDArray[np.bool_] | None = None  # (n,): the rows that evaluate the settings of a search
    rounds: int = 0  # the number of boosting rounds that the search of trees found
    weights: Floats | None = None  # (n,), above 0
    groups: Hashes | None = None  # (n,), for measures within groups


class Fitted(NamedTuple):
    """A fitted model: a function that scores rows, and a remark on the fit, empty if there is none."""

    score: Callable[[Any], Floats]
    note: str = ""


class Method(NamedTuple):
    """A method of the baseline.

    Attributes
    ----------
    name : str
        The name by which `distsms baseline --methods` knows it.
    fit : callable
        Fits a task with a setting. The setting is a lambda or, for a method with a `search`, the number of a setting
        of trees (see `distsms.selection.trees`).
    about : str
        What the method is, in a few words.
    package : str
        The package that must be importable, if any.
    search : callable or None
        Tries a setting on the training rows of a task. The best setting is then fitted to all of them.
    """

    name: str
    fit: Callable[[Task, float], Fitted]
    about: str
    package: str = ""
    search: Callable[[Task, float], trees.TrialResult] | None = None

    @property
    def linear(self) -> bool:
        """Whether the method is linear, so that its setting is a lambda."""
        return self.search is None

    def settings(self, lambdas: Sequence[float], budget: int) -> Sequence[float]:
        """Return the settings to try: the lambdas, or for a search the numbers below its budget."""
        return lambdas if self.linear else [float(number) for number in range(budget)]


def _ours(task: Task, lam: float) -> Fitted:
    settings = replace(task.settings, lam=lam)
    X, weights, groups = as_features(task.X), task.weights, task.groups
    own = TrainingTask.of_rows(X, task.y, task.measure, settings, weights=weights, groups=groups)
    found = fit(own, ALONE, RunOptions(measure_rows=False))
    status = found.result.status
    note = "no better than w = 0" if found.result.vacuous else "" if status is Status.PROVED else status.name.lower()
    return Fitted(lambda X: X @ found.w, note)


def _scikit(module: str, name: str, balanced: bool) -> Callable[[Task, float], Fitted]:
    def fit_scikit(task: Task, lam: float) -> Fitted:
        from sklearn import linear_model, svm
        from sklearn.exceptions import ConvergenceWarning

        positive, weights = task.y > 0, np.ones(len(task.y)) if task.weights is None else task.weights
        total = float(weights.sum())
        if balanced:
            weights = weights * np.where(
                positive, total / (2 * weights[positive].sum()), total / (2 * weights[~positive].sum())
            )
        estimator = getattr({"svm": svm, "linear_model": linear_model}[module], name)
        model = estimator(C=1 / (lam * total), max_iter=1000)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            model.fit(task.X, task.y, sample_weight=weights)
        converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
        return Fitted(model.decision_function, "" if converged else "not converged")

    return fit_scikit


def _trees(task: Task, number: float) -> Fitted:
    return Fitted(trees.grow(task.X, task.y, int(number), task.rounds, task.weights))


def _try_trees(task: Task, number: float) -> trees.TrialResult:
    return trees.attempt(task.X, task.y, task.held_out, task.measure, int(number), task.weights, task.groups)


OURS = "distsms"
LOGISTIC = "logistic regression"
SQUARED = "linear SVM with squared hinge loss and a regularized intercept"
BALANCED = ", classes balanced"
METHODS = {
    method.name: method
    for method in (
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
        Method("trees", _trees, "XGBoost", "xgboost", _try_trees),
    )
}


def require(names: Sequence[str]) -> None:
    """Raise InputError if the package of one of these methods cannot be imported. Local."""
    for name in names:
        try:
            __import__(METHODS[name].package or "distsms")
        except ImportError as error:
            raise InputError(
                f"the method {name} needs {METHODS[name].package}, which cannot be imported: {error}. Install it with: "
                "pip install 'distsms[baseline]', or name other methods with --methods"
            ) from error


def check_select(measure: str | None) -> None:
    """Raise InputError unless `measure`, one of `distsms.measures.CHOOSERS`, can choose the settings of all methods.

    The methods have no threshold in common, so only measures that depend on the ranking alone can choose.
    """
    if measure and measure.startswith("lift@"):
        raise InputError(
            f"{measure} is a recall divided by a share of the rows; choose by {measure.replace('lift', 'recall')}"
        )
    if measure in (None, "average-precision", *RANKING) or "@" in measure:
        return
    raise InputError(
        f"{measure} depends on a threshold, and the other methods have no threshold in common with distsms;"
        " choose by rocarea, prbep, average-precision, precision@K, recall@K,"
        " tpr@fpr=RATE, recall@precision=RATE, pauc@RATE or recall@SHARE%"
    )
