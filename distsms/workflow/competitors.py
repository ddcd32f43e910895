"""The methods of `distsms baseline`: distsms itself and the usual alternatives, each with a function that fits it.

A lambda is scikit-learn's C = 1 / (lambda n), where n is the sum of the weights of the training rows; balanced weights
n / (2 n_class) have the mean 1. Trees get weights of mean 1, since their settings depend on the size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.base.errors import InputError
from distsms.base.measures import GROUPED, Measure
from distsms.base.typing import Floats, Hashes
from distsms.features import arrays
from distsms.losses.registry import make_loss
from distsms.matrix.arrays import as_features
from distsms.optim.result import Result
from distsms.optim.settings import Settings
from distsms.training.fit import Fit, fit
from distsms.training.task import TrainingTask
from distsms.workflow import trees
from distsms.workflow.candidates import named
from distsms.workflow.path import ALONE

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
    quick: bool = False  # whether the fit need not be exact, since it only says which lambda is good


class Fitted(NamedTuple):
    """A fitted model: a function that scores rows, and a remark on the fit, empty if there is none."""

    score: Callable[[Any], Floats]
    note: str = ""


class Method(NamedTuple):
    """A method of the baseline."""

    name: str  # by which `distsms baseline --methods` knows it
    # with a lambda or, for a method with a `search`, the number of a setting of `trees`
    fit: Callable[[Task, float], Fitted]
    about: str  # what the method is, in a few words
    package: str = ""  # that must be importable, if any
    # tries a setting on the training rows; the best is then fitted to all of them
    search: Callable[[Task, float], trees.TrialResult] | None = None
    by_distsms: bool = False  # whether distsms trains the model, so that the rows may be distributed over the ranks
    trains: str = ""  # the measure that distsms trains for; empty if it is the one that the user asked for
    features: str = ""  # that are made from the training rows of each fold, a key of `candidates.PRESETS`; "" for none

    @property
    def linear(self) -> bool:
        """Whether the method is linear, so that its setting is a lambda."""
        return self.search is None


def describe_end(result: Result) -> str:
    """Return a remark on a training of distsms; empty if it was proved and its model is better than w = 0."""
    return "no better than w = 0" if result.vacuous else "" if result.proved else result.status.name.lower()


def with_target(settings: Settings, measure: Measure, share: float) -> Settings:
    """Return the settings with a gap to prove that is as strict for logistic regression: an absolute gap times the risk
    of a constant score, which is 1 for ROCArea, and here the entropy of the classes, with a `share` of positives.
    """
    if not measure.family.log_loss or settings.epsilon is None:
        return settings
    share = 0.5 if measure.family.balanced else share
    return replace(settings, epsilon=-settings.epsilon * (share * math.log(share) + (1 - share) * math.log1p(-share)))


def _train(task: Task, measure: Measure, lam: float) -> Fit:
    settings = replace(with_target(task.settings, measure, float(np.mean(task.y > 0))), lam=lam)
    bias = measure.bias(None)
    groups = task.groups if measure.name in GROUPED else None
    training = TrainingTask.of_rows(task.X, task.y, measure, settings, bias, task.weights, groups)
    return fit(training, ALONE)


def _by_distsms(name: str, about: str, trains: str = "", features: str = "") -> Method:
    """Return a method that distsms trains."""

    def fit_distsms(task: Task, lam: float) -> Fitted:
        rows_of: Callable[[Any], Any] = as_features
        if features:
            rows_of = arrays.fit_arrays(task.X, task.y, arrays.options(named(features)), task.weights).rows
        model = _train(task._replace(X=rows_of(task.X)), Measure.parse(trains or task.measure), lam)
        w, bias = model.w, model.bias  # not the rows
        return Fitted(lambda X: rows_of(X).margins(w) + bias, describe_end(model.result))

    package = "sklearn" if features == "leaves" else ""
    return Method(name, fit_distsms, about, package, by_distsms=True, trains=trains, features=features)


def _balancing(task: Task, balanced: bool) -> tuple[Floats, float]:
    """Return the weights of the rows for scikit-learn, balanced if that is wanted, and their sum without that."""
    positive, weights = task.y > 0, np.ones(len(task.y)) if task.weights is None else task.weights
    total = float(weights.sum())
    if balanced:
        weights = weights * (total / (2 * np.where(positive, weights[positive].sum(), weights[~positive].sum())))
    return weights, total


def _svm(name: str, balanced: bool) -> Method:
    """Return the method of the LinearSVC of scikit-learn."""

    def fit_svm(task: Task, lam: float) -> Fitted:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.svm import LinearSVC

        weights, total = _balancing(task, balanced)
        model = LinearSVC(C=1 / (lam * total), **(dict(max_iter=30, tol=1e-2) if task.quick else dict(max_iter=1000)))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            model.fit(task.X, task.y, sample_weight=weights)
        converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
        return Fitted(model.decision_function, "" if converged else "not converged")

    about = "linear SVM with squared hinge loss and a regularized intercept" + ", classes balanced" * balanced
    return Method(name, fit_svm, about, "sklearn")


def scikit_agrees(task: Task, measure: Measure, lam: float) -> tuple[bool, str]:
    """Return whether scikit-learn finds the minimum that distsms proves for logistic regression, and a sentence."""
    from sklearn.linear_model import LogisticRegression

    ours = _train(task._replace(X=as_features(task.X)), measure, lam).result
    weights, total = _balancing(task, measure.family.balanced)
    constant = np.full((len(task.y), 1), measure.bias(None))
    X = sparse.hstack([task.X, constant], format="csr") if sparse.issparse(task.X) else np.hstack([task.X, constant])
    model = LogisticRegression(C=1 / (lam * total), tol=1e-6, max_iter=1000, fit_intercept=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # J says whether it converged
        w = model.fit(X, task.y, sample_weight=weights).coef_[0]
    loss = make_loss(measure, "gather", task.y, task.weights, ALONE)
    J = lam / 2 * float(w @ w) + loss.evaluate(X @ w, 0.0).R
    target = with_target(task.settings, measure, float(np.mean(task.y > 0))).target(ours.J)
    agrees = ours.lower_bound <= J <= ours.J + target
    verdict = "finds the same minimum" if agrees else "does not find the same minimum"
    return agrees, (
        f"scikit-learn's LogisticRegression {verdict} as {measure}: at lambda {lam:g} its J is {J:.6g}, and that of "
        f"distsms is {ours.J:.6g}, proved to be at most {ours.gap:.2g} above the minimum"
    )


def _boosted(name: str, about: str, library: str) -> Method:
    """Return the method of a library's boosted trees."""

    def fit_trees(task: Task, number: float) -> Fitted:
        return Fitted(trees.grow(task.X, task.y, int(number), task.rounds, task.weights, library))

    def try_trees(task: Task, number: float) -> trees.TrialResult:
        return trees.attempt(
            task.X, task.y, task.held_out, task.measure, int(number), task.weights, task.groups, library
        )

    return Method(name, fit_trees, about, library, try_trees)


OURS = "distsms"
REGRESSION = "logistic regression with a regularized intercept"
_FEATURED = {"crosses": "bins and all their crosses", "leaves": "the leaves of 100 random trees"}


METHODS = {
    method.name: method
    for method in (
        _by_distsms(OURS, "linear model, trained for the measure"),
        _by_distsms("logistic", REGRESSION, "logistic"),
        _by_distsms("logistic-balanced", f"{REGRESSION}, classes balanced", "logistic-balanced"),
        *(
            _by_distsms(f"{name}-{features}", f"{name} on {about}", trains, features)
            for features, about in _FEATURED.items()
            for name, trains in ((OURS, ""), ("logistic", "logistic"))
        ),
        _svm("svm", False),
        _svm("svm-balanced", True),
        _boosted("trees", "XGBoost", trees.XGBOOST),
        _boosted("lightgbm", "LightGBM", trees.LIGHTGBM),
    )
}


FEATURED = tuple(name for name, method in METHODS.items() if method.features)
"""The methods on features that are made from the columns."""
OWN = tuple(name for name, method in METHODS.items() if method.by_distsms and not method.trains)
"""distsms itself, on the original columns and on features."""
OTHERS = tuple(name for name, method in METHODS.items() if method.linear and name not in OWN and not method.features)
"""The other linear methods on the original columns."""
TREES = tuple(name for name, method in METHODS.items() if not method.linear)


def require(names: Sequence[str]) -> None:
    """Raise InputError if the package of one of these methods cannot be imported. Local."""
    for name in names:
        try:
            __import__(METHODS[name].package or "distsms")
        except (ImportError, OSError) as error:  # OSError: a library of the system is missing
            raise InputError(
                f"the method {name} needs {METHODS[name].package}, which cannot be imported: {error}. Install it with: "
                "pip install 'distsms[baseline]', or name other methods with --methods"
            ) from error


def missing(names: Sequence[str]) -> list[str]:
    """Return those of these methods whose package is not installed. Local; imports none of them."""
    return [name for name in names if METHODS[name].package and find_spec(METHODS[name].package) is None]
