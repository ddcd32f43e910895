"""The methods of `distsms baseline`: distsms itself and the usual alternatives, each with a function that fits it.

A lambda is scikit-learn's C = 1 / (lambda n), where n is the sum of the weights of the training rows; balanced weights
n / (2 n_class) have the mean 1. The boosted trees of XGBoost and LightGBM are tuned by random search, with the same
budget for both: setting 0 is the usual one, and the others are drawn alike in every run. A setting is trained on four
fifths of the training rows: the best measure on the other fifth is its value, and says for how many rounds all rows are
then trained.
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
from distsms.base.scored import Scored
from distsms.base.typing import Floats, Hashes
from distsms.base.wording import option
from distsms.losses.registry import make_loss
from distsms.matrix.arrays import as_features
from distsms.matrix.blocks import thread_count
from distsms.metrics import ranking
from distsms.metrics.within_groups import gauc_estimate
from distsms.optim.result import Result
from distsms.optim.settings import Settings
from distsms.shards.row_metadata import some
from distsms.training.fit import Fit, fit
from distsms.training.task import TrainingTask
from distsms.workflow.path import ALONE

HELD_OUT_PARTS = 5
"""A search holds out one of this many parts of the training rows."""
XGBOOST, LIGHTGBM = "xgboost", "lightgbm"  # the names of the packages
MOST_ROUNDS, PATIENCE = 2000, 50
"""The most rounds of boosting, which ends after `PATIENCE` rounds without a better measure on the held-out rows."""


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

    def part(self, rows: NDArray[np.bool_]) -> Task:
        """Return the task on some of its rows."""
        weights, groups = some(self.weights, rows), some(self.groups, rows)
        return self._replace(X=self.X[rows], y=self.y[rows], weights=weights, groups=groups, held_out=None)

    @property
    def scaled_weights(self) -> NDArray[np.float32] | None:
        """The weights with mean 1, since the settings of trees depend on their size."""
        return None if self.weights is None else (self.weights / self.weights.mean()).astype(np.float32)


class Fitted(NamedTuple):
    """A fitted model: a function that scores rows, and a remark on the fit, empty if there is none."""

    score: Callable[[Any], Floats]
    note: str = ""


class TrialResult(NamedTuple):
    """The result of trying a setting of trees."""

    value: float  # the measure on the rows held out; NaN if no rows could be held out
    rounds: int  # the number of rounds with that value


UNTRIED = TrialResult(np.nan, MOST_ROUNDS // 20)
"""Where no rows can be held out."""


class Method(NamedTuple):
    """A method of the baseline."""

    name: str  # by which `distsms baseline --methods` knows it
    about: str  # what the method is, in a few words
    package: str = ""  # that must be importable, if any
    # with a lambda or, for a method with a `search`, the number of a setting; None if distsms trains the model
    fit: Callable[[Task, float], Fitted] | None = None
    # tries a setting on the training rows; the best is then fitted to all of them
    search: Callable[[Task, float], TrialResult] | None = None
    trains: str = ""  # the measure that distsms trains for; empty if it is the one that the user asked for
    features: str = ""  # that are made from the training rows of each fold, a key of `candidates.PRESETS`; "" for none

    @property
    def by_distsms(self) -> bool:
        """Whether distsms trains the model, so that the rows may be distributed over the ranks."""
        return self.fit is None

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


def train(task: Task, measure: Measure, lam: float) -> Fit:
    """Train a model of distsms on these rows alone."""
    settings = replace(with_target(task.settings, measure, float(np.mean(task.y > 0))), lam=lam)
    bias = measure.bias(None)
    groups = task.groups if measure.name in GROUPED else None
    training = TrainingTask.of_rows(task.X, task.y, measure, settings, bias, task.weights, groups)
    return fit(training, ALONE)


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
    return Method(name, about, "sklearn", fit_svm)


def scikit_agrees(task: Task, measure: Measure, lam: float) -> tuple[bool, str]:
    """Return whether scikit-learn finds the minimum that distsms proves for logistic regression, and a sentence."""
    from sklearn.linear_model import LogisticRegression

    ours = train(task._replace(X=as_features(task.X)), measure, lam).result
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


def parameters(number: int, library: str) -> dict[str, Any]:
    """Return the parameters of a setting of trees, as far as possible by names that both libraries understand."""
    if number == 0:
        return {"eta": 0.1} | ({"max_depth": 6} if library == XGBOOST else {"max_leaves": 31})
    draws = np.random.default_rng((0, number)).random(6)

    def drawn(k: int, low: float, high: float) -> float:
        """Return a number between two, evenly in the logarithm."""
        return float(low * (high / low) ** draws[k])

    setting = {
        "max_leaves": round(drawn(0, 8, 256)),
        "eta": float(f"{drawn(1, 0.05, 0.3):.2g}"),
        "lambda": float(f"{drawn(3, 0.1, 10):.2g}"),
        "colsample_bytree": round(0.3 + 0.7 * draws[4], 2),
        "subsample": round(0.5 + 0.5 * draws[5], 2),
    }
    if library == LIGHTGBM:
        return setting | {"min_data_in_leaf": round(drawn(2, 1, 100)), "bagging_freq": 1}
    of_leaves = {"grow_policy": "lossguide", "max_depth": 0, "min_child_weight": float(f"{drawn(2, 0.1, 10):.2g}")}
    return setting | of_leaves


_Grown = tuple[Callable[[Any], Floats], TrialResult]
"""What scores rows, and the best value on held-out rows."""


def _grow_xgboost(task: Task, number: int, rounds: int, held_out: Task | None = None) -> _Grown:
    """Train with a setting; with held-out rows, until their metric, or else AUC, rises no more."""
    import xgboost

    def matrix(rows: Task) -> Any:
        # Not QuantileDMatrix: that predicts sparse rows ten times as slowly, and early stopping predicts in each round.
        return xgboost.DMatrix(rows.X, label=rows.y > 0, weight=rows.scaled_weights)

    options = {"objective": "binary:logistic", "tree_method": "hist", "nthread": thread_count(), "verbosity": 0}
    options |= {"seed": 0, **parameters(number, XGBOOST)}
    stopping: dict[str, Any] = {}
    if held_out is not None:
        stopping = {"evals": [(matrix(held_out), "held")], "early_stopping_rounds": PATIENCE, "verbose_eval": False}
        metric = _metric(held_out)
        stopping |= {"custom_metric": metric, "maximize": True} if metric else {}
        options |= {"disable_default_eval_metric": 1} if metric else {"eval_metric": "auc"}
    booster = xgboost.train(options, matrix(task), rounds, **stopping)
    best = TrialResult(float(booster.best_score), booster.best_iteration + 1) if stopping else UNTRIED
    return lambda X: booster.predict(xgboost.DMatrix(X), output_margin=True).astype(float), best


def _grow_lightgbm(task: Task, number: int, rounds: int, held_out: Task | None = None) -> _Grown:
    """Do what `_grow_xgboost` does."""
    import lightgbm

    def dataset(rows: Task, reference: Any = None) -> Any:
        label = (rows.y > 0).astype(np.float32)
        return lightgbm.Dataset(rows.X, label=label, weight=rows.scaled_weights, reference=reference)

    # Without `deterministic` and a fixed layout, LightGBM times two layouts and takes the faster one.
    options = {"objective": "binary", "deterministic": True, "force_col_wise": True, "num_threads": thread_count()}
    options |= {"verbosity": -1, "seed": 0, **parameters(number, LIGHTGBM)}
    rows, stopping = dataset(task), dict[str, Any]()
    if held_out is not None:
        metric = _metric(held_out)
        options["metric"] = "None" if metric else "auc"
        stopping = {"valid_sets": [dataset(held_out, reference=rows)], "valid_names": ["held"]}
        stopping["callbacks"] = [lightgbm.early_stopping(PATIENCE, verbose=False)]
        stopping["feval"] = (lambda scores, data: (*metric(scores, data), True)) if metric else None
    model = lightgbm.train(options, rows, rounds, **stopping)
    best = TrialResult(float(max(model.best_score["held"].values())), model.best_iteration) if stopping else UNTRIED
    return lambda X: np.asarray(model.predict(X, raw_score=True, num_threads=thread_count()), float), best


def _metric(held_out: Task) -> Callable[[NDArray[Any], Any], tuple[str, float]] | None:
    """Return what gives the libraries PRBEP or GAUC of the held-out rows; None for AUC, which they have themselves."""
    groups, within = held_out.groups, Measure.parse(held_out.measure).within_groups
    if held_out.measure != "prbep" and not within:
        return None
    weights = None if held_out.weights is None else np.asarray(held_out.scaled_weights, float)

    def metric(scores: NDArray[Any], rows: Any) -> tuple[str, float]:
        scored = Scored(scores.astype(float), held_out.y, ALONE, weights, groups)
        if within and groups is not None:
            # NaN if no held-out group has rows of both classes; 0 is as good, since it is the same in all rounds
            return "gauc", float(np.nan_to_num(gauc_estimate(within, scored).value))
        return "prbep", ranking.prbep(scored)

    return metric


def _boosted(name: str, library: str, about: str, grow: Callable[..., _Grown]) -> Method:
    """Return the method of a library's boosted trees."""

    def try_trees(task: Task, number: float) -> TrialResult:
        if task.held_out is None:
            return UNTRIED
        return grow(task.part(~task.held_out), int(number), MOST_ROUNDS, task.part(task.held_out))[1]

    return Method(name, about, library, lambda task, number: Fitted(grow(task, int(number), task.rounds)[0]), try_trees)


OURS = "distsms"
REGRESSION = "logistic regression with a regularized intercept"
METHODS = {
    method.name: method
    for method in (
        Method(OURS, "linear model, trained for the measure"),
        Method("logistic", REGRESSION, trains="logistic"),
        Method("logistic-balanced", f"{REGRESSION}, classes balanced", trains="logistic-balanced"),
        *(
            Method(f"{name}-{features}", f"{name} on {about}", package, trains=trains, features=features)
            for features, about, package in (
                ("crosses", "bins and all their crosses", ""),
                ("leaves", "the leaves of 100 random trees", "sklearn"),
            )
            for name, trains in ((OURS, ""), ("logistic", "logistic"))
        ),
        _svm("svm", False),
        _svm("svm-balanced", True),
        _boosted("trees", XGBOOST, "XGBoost", _grow_xgboost),
        _boosted("lightgbm", LIGHTGBM, "LightGBM", _grow_lightgbm),
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
            remedy = f"Install it (pip install 'distsms[baseline]'), or name others with {option('methods')}"
            needs = f"the method {name} needs {METHODS[name].package}, which cannot be imported: {error}"
            raise InputError(f"{needs}. {remedy}") from error


def missing(names: Sequence[str]) -> list[str]:
    """Return those of these methods whose package is not installed. Local; imports none of them."""
    return [name for name in names if METHODS[name].package and find_spec(METHODS[name].package) is None]
