"""The scikit-learn estimator: one process, no MPI, on arrays in memory.

>>> import numpy as np
>>> from sklearn.model_selection import cross_val_score
>>> from distsms import SMSClassifier
>>> rng = np.random.default_rng(0)
>>> y = np.where(rng.random(500) < 0.2, "fraud", "good")
>>> X = rng.normal(size=(500, 3)) + np.outer(y == "good", [2, 1, 0])
>>> model = SMSClassifier(measure="prbep", lam=1e-2).fit(X, y)
>>> model.gap_ <= 1e-3
True
>>> bool(np.all(model.predict(X) == model.classes_[(model.decision_function(X) > 0).astype(int)]))
True
>>> bool(cross_val_score(SMSClassifier(), X, y, scoring="roc_auc").mean() > 0.9)
True
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from threadpoolctl import threadpool_limits

from distsms.errors import InputError
from distsms.inference import model
from distsms.inference.export import refuse_row_normalization
from distsms.matrix.local import rows_of
from distsms.matrix.repetition import Repeated
from distsms.optim.result import Status
from distsms.parallel.communicator import Communicator
from distsms.training.fit import RunOptions, TrainedModel, TrainingTask, fit
from distsms.training.solver_choice import choose_solver, settings_for

PROVED = {"objective_": "J", "lower_bound_": "lower_bound", "gap_": "gap", "n_iter_": "evaluations"}
"""Attributes, and what training and model files call them."""


class SMSClassifier(ClassifierMixin, BaseEstimator):
    """A linear classifier of two classes that optimizes ROCArea, PRBEP or another measure, to a proved gap.

    measure : "rocarea", "prbep", "error-rate", "f1" (or "f0.5", ...), "precision@K" or "recall@K".
    lam : weight of the regularizer lam/2 ||w||^2; the risk is a mean, so it does not scale with the number of rows.
    epsilon, relative : the gap to prove, absolute and as a share of the objective; where both are given either will do,
    where neither is, epsilon is 1e-3.
    solver : "lbfgs" and the program's others; None takes lbfgs, and bmrm for F-beta and the measures at K. Only "lmvm"
    needs PETSc, which starts MPI; no other starts any.
    max_evaluations : of the objective; a run that ends without the proof warns (ConvergenceWarning).
    bias : value of a constant feature, regularized like any other, for error-rate and F-beta; None is without.

    Of two classes the last in sorted order is the positive one: classes_[1].

    Fitted: coef_ (1, p) and intercept_ (1,), float64; decision_function(X) = X coef_' + intercept_, and a row is
    classes_[1] where that is above 0, as scikit-learn has it. threshold_ is the measure's own decision in terms of the
    scores that `distsms predict` gives: these are the decision function + threshold_ (to rounding), and intercept_ is
    the bias - threshold_, so little larger that a score of just threshold_ is positive. objective_ J, lower_bound_ and
    gap_ : what was proved; n_iter_ : evaluations; solver_ : which one it was; classes_ (2,), n_features_in_,
    feature_names_in_ (for named columns).
    """

    def __init__(
        self,
        measure: str = "rocarea",
        lam: float = 1e-4,
        epsilon: float | None = None,
        relative: float | None = None,
        solver: str | None = None,
        max_evaluations: int = 10_000,
        bias: float | None = None,
    ) -> None:
        self.measure = measure
        self.lam = lam
        self.epsilon = epsilon
        self.relative = relative
        self.solver = solver
        self.max_evaluations = max_evaluations
        self.bias = bias

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> SMSClassifier:
        """Train. X (n, p) dense or SciPy sparse, float32 or float64 as it is; y (n,) of two classes.

        Not copied are C-contiguous arrays, and of CSR the values (and the indices, where p > 65,536).
        sample_weight : (n,) whole numbers >= 0: a row of weight 3 counts as three rows, one of 0 not at all. Costs time
        and memory as if these rows were there, but for X.
        Raises ValueError for other weights, for settings that contradict each other, and without rows of both classes.
        """
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=(np.float64, np.float32), order="C")
        check_classification_targets(y)
        if (kind := type_of_target(y, input_name="y", raise_unknown=True)) != "binary":
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"two classes are needed, and y has one class: {self.classes_[0]!r}")
        labels = np.where(codes == 1, 1, -1).astype(np.int8)
        weights = None if sample_weight is None else _whole(_check_sample_weight(sample_weight, X))
        try:
            found = self._fit(X, labels, weights)
        except InputError as error:
            raise ValueError(str(error)) from error
        result = found.result
        self._take(found.w, found.bias, found.threshold)
        for attribute, name in PROVED.items():
            setattr(self, attribute, getattr(result, name))
        if result.status is not Status.PROVED:
            warnings.warn(f"{result.status.sentence}; gap {result.gap:.3g}", ConvergenceWarning, stacklevel=2)
        elif result.idle:
            warnings.warn(f"{result.against_zero}; a smaller lam may do better", ConvergenceWarning, stacklevel=2)
        return self

    def _fit(self, X: Any, labels: NDArray[np.int8], weights: NDArray[np.int64] | None) -> TrainedModel:
        self.solver_, _ = choose_solver(self.solver, self.measure, Communicator(), usual="lbfgs")
        settings = settings_for(
            self.measure,
            self.solver_,
            self.epsilon,
            self.relative,
            lam=self.lam,
            max_evaluations=self.max_evaluations,
        )
        features = rows_of(X) if weights is None else Repeated(X, weights)
        labels = labels if weights is None else np.repeat(labels, weights)
        with threadpool_limits(1, "blas"):  # what L-BFGS and the proof have for it is too small for more
            task = TrainingTask.of_rows(features, labels, self.measure, settings, self.bias)
            return fit(task, Communicator(), RunOptions(measure_rows=False))

    def _take(self, w: NDArray[np.float64], bias: float, threshold: float) -> None:
        self.coef_, self.threshold_ = w.reshape(1, -1), threshold
        self.intercept_ = np.array([model.intercept(bias, threshold)])

    @classmethod
    def from_model(cls, path: str | os.PathLike[str]) -> SMSClassifier:
        """The classifier that a model file of `distsms train` describes, fitted. Raises InputError if it is none.

        classes_ are the model's negative and positive label, so for the labels 1 (positive) and 2 not in sorted order:
        scikit-learn's scorers take the last of the sorted ones for positive, and have to be given y == 1 there.
        """
        read = model.load(path)
        refuse_row_normalization(read)
        known = read.info
        made = cls(measure=known.get("measure", "rocarea"), lam=known.get("lambda", 1e-4))
        made.classes_ = np.array(read.classes)
        made.solver_ = known.get("settings", {}).get("solver")
        made._take(read.w, read.bias, read.threshold)
        made.n_features_in_ = read.p
        for attribute, name in PROVED.items():
            setattr(made, attribute, known.get(name))
        return made

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """(n,): above 0 where a row is called classes_[1]; the order is that of the scores."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)
        return safe_sparse_dot(X, self.coef_[0]) + self.intercept_[0]

    def predict(self, X: Any) -> NDArray[Any]:
        """(n,): one of classes_ for each row, by the stored threshold."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]


def _whole(weights: NDArray[Any]) -> NDArray[np.int64]:
    """Weights as integers. Raises ValueError where one is not a whole number >= 0."""
    wrong = weights[~((weights >= 0) & (weights == np.floor(weights)))]
    if len(wrong):
        raise ValueError(
            f"sample_weight {wrong[0]:g}: weights are whole numbers, a row of weight 3 counting as three rows. "
            "Others are not supported; multiplied by a common factor and rounded they would be (for rocarea, prbep and "
            "error-rate a factor changes nothing)"
        )
    return weights.astype(np.int64)
