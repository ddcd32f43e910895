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
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError, ModelWarning
from distsms.base.measures import BALANCED, Measure
from distsms.base.typing import Floats
from distsms.base.wording import in_python
from distsms.features import arrays
from distsms.features.feature_map import FeatureMap
from distsms.models import inputs, model, scoring
from distsms.models.export import refuse_row_normalization
from distsms.models.model import Model
from distsms.python.api import Progress
from distsms.python.calls import blas_like_kernels
from distsms.python.transformers import in_two_classes
from distsms.shards.row_metadata import some
from distsms.workflow import train as workflow
from distsms.workflow.candidates import RAW, named
from distsms.workflow.requests import FOLDS, Arrays, TrainRequest

PROVED = {"objective_": "J", "lower_bound_": "lower_bound", "gap_": "gap", "n_iter_": "evaluations"}
"""Maps attributes of the estimator to their names in results and model files."""
ALONE = Communicator()
SMALLEST = 5e-324
"""Is added to decisions, so that a row whose score equals the threshold is positive; to others it adds nothing."""


@dataclass(eq=False, repr=False)
class SMSClassifier(ClassifierMixin, BaseEstimator):
    """A linear classifier of two classes that optimizes ROCArea, PRBEP or another measure, to a proved gap.

    Parameters
    ----------
    measure : str
        What to optimize: "rocarea", "pauc@0.05" (or another false positive rate), "prbep", "error-rate", "logistic",
        "logistic-balanced", "normal-auc", "f1" (or "f0.5", ...), "precision@K" or "recall@K". For ROCArea within
        groups, "gauc@pairs" or "gauc@each".
    lam : float or "auto"
        Weight of the regularizer lam/2 ||w||^2. The risk is a mean, so a good lam does not grow with the number of
        rows. "auto" chooses it by a quick cross-validation on a sample of the rows; GridSearchCV searches further.
    epsilon : float, optional
        The gap to prove, as a difference in the objective; 1e-3 if neither `epsilon` nor `relative` is given.
    relative : float, optional
        The gap to prove, as a share of the objective. If both are given, the larger of the two gaps is enough.
    solver : str, optional
        "lbfgs", "lmvm", "agm", "bmrm" or "bmrm-linesearch". None means bmrm for F-beta and the measures at K, and lbfgs
        for all others. Only "lmvm" needs PETSc, which starts MPI.
    max_evaluations : int
        The most evaluations of the objective. A run that ends without the proof warns (`ConvergenceWarning`).
    bias : float, optional
        Value of a constant feature, whose weight is regularized like any other, for error-rate, F-beta and logistic
        regression; 0 means that there is none. The default is 1 for logistic regression, and none for other measures.
    at : str, optional
        A condition for the threshold of `predict`, such as "precision>=0.9", "recall>=0.95", "fpr<=0.001" or "top=1%".
        The threshold is found on held-out folds. If none of them fulfils the condition, `fit` warns.
    calibrate : {"sigmoid", "isotonic"}, optional
        Fit a curve from scores to probabilities on held-out folds. With it, there is `predict_proba`.
    folds : int
        The number of these folds. They are stratified, and by `groups` if these are given.
    l1 : float
        Weight of ||w||_1. With a positive number the regularizer is the elastic net l1 ||w||_1 + lam/2 ||w||^2, and
        many coefficients are exactly 0.
    features : str or dict, optional
        Make features from the columns: "leaves" (or "trees") are the leaves of 100 extremely randomized trees, "bins"
        are at most 32 bins of each column, and "crosses" are bins and all pairs of them. A dict has options of
        `distsms features`: {"trees": 300, "min_leaf": 5, "keep": True}, say. A text may have them, too, as `distsms
        path --features` takes it: "leaves,min_leaf=20"; "raw" is None. For `at` and `calibrate`, the features of each
        held-out fold are made from the other rows.
    class_weight : dict or "balanced", optional
        The weight of each class, by which the weights of its rows are multiplied; "balanced" takes n / (2 n_class), as
        everywhere in scikit-learn. It matters for error-rate, logistic and prbep. ROCArea, also within groups, pauc and
        normal-auc compare the classes with each other, so that it changes no coefficient, but only the threshold of
        `predict`; "logistic-balanced" is balanced already; in these cases `fit` warns. F-beta and the measures at K
        count rows, and refuse it.
    certificate : path, optional
        A file that gets what others need to check `lower_bound_`: a number for each row; see `distsms.verify`.
    device : {"cpu", "cuda"}
        What computes with the rows in the training: the processor, or a graphics processor, for rocarea, pauc, prbep
        and the logistic measures.

    Attributes
    ----------
    coef_ : ndarray of shape (1, p)
        The coefficients; with `features`, those of the features.
    map_ : FeatureMap
        With `features`: how columns become features. `map_.column_name(j)` is the name of a coded feature.
    intercept_ : ndarray of shape (1,)
        The intercept of the decision function, for other programs. It is the bias minus `threshold_`, increased to the
        next larger double, so that a row whose score equals `threshold_` is positive.
    threshold_ : float
        The threshold for the scores of `distsms predict`, chosen for the condition `at`, or else for the measure. These
        scores are `decision_function(X) + threshold_`, up to rounding.
    objective_, lower_bound_, gap_ : float
        The objective J of the model, the proved lower bound on the minimum of J, and their difference.
    decision_, calibration_ : dict
        With `at` and `calibrate`: what held-out rows say of the threshold and of the probabilities. See the page on the
        model file.
    model_ : Model
        With `certificate`: the model, for `distsms.verify` and `distsms.save_model`. Its labels are -1 and +1.
    n_iter_ : int
        Number of evaluations.
    lam_ : float
        The weight of the regularizer: `lam`, or what "auto" chose.
    solver_ : str
        The solver that was used.
    classes_ : ndarray of shape (2,)
        The classes in sorted order; `classes_[1]` is the positive one.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Their names, if the columns had any.

    Notes
    -----
    The estimator runs in one process and does not start MPI, except for the solver "lmvm". The decision function is
    `X @ coef_[0] + intercept_[0]` up to rounding, with the features in place of X if `features` are made; it is
    computed from `coef_` and `threshold_`. As usual in scikit-learn, the class of a row is `classes_[1]` if it is above
    0.
    """

    measure: str = "rocarea"
    lam: float | str = 1e-4
    epsilon: float | None = None
    relative: float | None = None
    solver: str | None = None
    max_evaluations: int = 10_000
    bias: float | None = None
    at: str | None = None
    calibrate: str | None = None
    folds: int = FOLDS
    l1: float = 0.0
    features: str | dict[str, Any] | None = None
    class_weight: str | dict[Any, float] | None = None
    certificate: str | os.PathLike[str] | None = None
    device: str = "cpu"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_class = False
        return tags

    def fit(
        self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> SMSClassifier:
        """Train.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, p)
            The rows, float64 or float32. C-contiguous arrays are not copied. Of CSR matrices the values are not copied,
            and the indices are copied only if p <= 65,536.
        y : array-like of shape (n,)
            Labels of two classes.
        sample_weight : array-like of shape (n,), optional
            Finite numbers of at least 0: a row of weight 3 counts as three rows, and a row of weight 0 is ignored. A
            common factor of all weights changes nothing. F-beta and the measures at K count rows, and refuse rows of
            different weights.
        groups : array-like of shape (n,), optional
            The group of each row, such as its query or user, for the measures "gauc@pairs" and "gauc@each", which need
            it. Other measures take no groups.

        Returns
        -------
        SMSClassifier
            The estimator itself.

        Raises
        ------
        ValueError
            If a weight is below 0 or not finite, if groups are missing or not wanted, if settings contradict each
            other, or if a class has no rows.
        """
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=(np.float64, np.float32), order="C")
        self.classes_, labels = in_two_classes(y)
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if self.class_weight is not None:
            weights = compute_sample_weight(self.class_weight, y) * (1.0 if weights is None else weights)
        try:
            if groups is not None and Measure.parse(self.measure).within_groups is None:
                raise InputError(f"groups are for the measures gauc@pairs and gauc@each, and not for {self.measure}")
            trained = self._train(X, Arrays(X, labels, weights, groups))
        except InputError as error:
            raise ValueError(in_python(error.message)) from error
        run, result = trained.run, trained.run.result
        self.solver_, self.lam_ = run.task.settings.solver, run.task.settings.lam
        self._take(trained.model)
        if self.certificate is not None:
            self.model_, features = trained.model, getattr(self, "map_", None)
            if features is not None:
                self.model_ = replace(self.model_, features=features, coded=features.coded)
        for attribute, name in PROVED.items():
            setattr(self, attribute, getattr(result, name))
        if not result.proved:
            warnings.warn(f"{result.status.sentence}; gap {result.gap:.3g}", ConvergenceWarning, stacklevel=2)
        else:
            for warning in trained.warnings:
                warnings.warn(in_python(warning), ModelWarning, stacklevel=2)
        if self.class_weight is not None and (effect := _effect_of_class_weights(run.task.measure)):
            warnings.warn(f"class_weight {effect}", ModelWarning, stacklevel=2)
        return self

    def _train(self, X: Any, rows: Arrays) -> workflow.Trained:
        """Make the features, and train; `rows` has the labels +1 and -1."""
        measure, names = Measure.parse(self.measure), getattr(self, "feature_names_in_", None)
        for attribute in {"map_", "model_", "decision_", "calibration_"} & vars(self).keys():
            delattr(self, attribute)
        features_of: Callable[[NDArray[np.bool_]], Any] | None = None
        if self.features is not None and self.features != RAW:
            options = arrays.options(named(self.features))
            self.map_: FeatureMap = arrays.fit_arrays(X, rows.y, options, rows.weights, names)
            rows = rows._replace(X=self.map_.rows(X))

            def of_fold(taken: NDArray[np.bool_]) -> Any:
                weights = some(rows.weights, taken)
                return arrays.fit_arrays(X[taken], rows.y[taken], options, weights, names).rows(X)

            features_of = of_fold

        params = {name: value for name, value in self.get_params().items() if name in TrainRequest.option_names()}
        request = TrainRequest.of_options(
            params,
            data=rows,
            measure=measure,
            solver=self.solver or ("lbfgs" if measure.family.smooth else None),
            check=False,
            features_of=features_of,
        )
        with blas_like_kernels():
            return workflow.train(request, ALONE, Progress(ALONE))

    def _take(self, trained: Model) -> None:
        self.coef_, self.threshold_ = trained.w.reshape(1, -1), trained.threshold
        self._bias, self._table = trained.bias, trained.table
        self.intercept_ = np.array([model.intercept(trained.raw_bias, trained.threshold)])
        self._curve = trained.curve
        for name in {"decision", "calibration"} & trained.info.keys():
            setattr(self, f"{name}_", trained.info[name])

    @classmethod
    def from_model(cls, path: str | os.PathLike[str]) -> SMSClassifier:
        """Make a fitted classifier of a model file.

        Parameters
        ----------
        path : path
            A model written by `distsms train`.

        Returns
        -------
        SMSClassifier
            The classifier. Its `feature_names_in_` are the names of a table's features. Its `classes_` are the negative
            and the positive label of the model, in this order, even if they are 2 and 1. scikit-learn's scorers take
            the last label in sorted order for the positive one; so in this case give them y == 1.

        Raises
        ------
        InputError
            If the file is no model, its rows are normalized by l2, or it takes sequences.
        """
        read = model.load(path)
        refuse_row_normalization(read)
        if read.coded and read.features is None:
            rows = read.coded.describe()
            raise InputError(f"{path}: the model takes {rows}, and no arrays; score them by distsms.predict")
        info = read.info
        classifier = cls(measure=info.get("measure", "rocarea"), lam=info.get("lambda", 1e-4), l1=info.get("l1", 0.0))
        classifier.lam_ = float(classifier.lam)
        classifier.at = (info.get("decision") or {}).get("condition")
        classifier.calibrate = info.get("calibration", {}).get("method")
        classifier.classes_ = np.array(read.classes)
        classifier.solver_ = info.get("settings", {}).get("solver")
        classifier._take(read)
        classifier.n_features_in_, names = read.p_original, read.feature_names
        if read.features is not None:
            classifier.map_, names = read.features, None if read.table is None else read.table.feature_names
        if names is not None:
            classifier.feature_names_in_ = np.array(names, object)
        for attribute, name in PROVED.items():
            setattr(classifier, attribute, info.get(name))
        return classifier

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Score rows.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, p)
            The rows.

        Returns
        -------
        ndarray of shape (n,)
            The scores of `distsms predict` minus `threshold_`. They are above 0 for rows that `predict` calls
            `classes_[1]`.
        """
        return self._scores(X) - self.threshold_ + SMALLEST

    def _model(self, info: dict[str, Any]) -> Model:
        return Model(self.coef_[0], info, self._table, features=getattr(self, "map_", None))

    def _scores(self, X: Any) -> Floats:
        """Return the scores of `distsms predict`."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=(np.float64, np.float32), reset=False)
        fitted = self._model({"bias": self._bias})
        return scoring.score_rows([fitted], inputs.as_scored(X, fitted, "X"))[0]

    def predict(self, X: Any) -> NDArray[Any]:
        """Classify rows by the stored threshold.

        Parameters
        ----------
        X : array or sparse matrix of shape (n, p)
            The rows.

        Returns
        -------
        ndarray of shape (n,)
            One of `classes_` for each row.
        """
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]

    @property
    def predict_proba(self) -> Callable[[Any], NDArray[np.float64]]:
        """The method ``predict_proba(X)``, which returns the probabilities of both classes.

        They are those of the curve that was fitted on held-out folds or, without `calibrate`, of logistic regression.
        For X of shape (n, p) they have the shape (n, 2), in the order of `classes_`. They may lead to another class
        than `predict`, whose threshold is that of `at` or of the measure, and not a probability of 0.5.

        Raises
        ------
        AttributeError
            If there are no probabilities: they need the parameter `calibrate`, or the measure logistic.
        """
        if self.calibrate is None and self.measure != "logistic":
            why = BALANCED.why_no_probabilities if self.measure == BALANCED.name else ""
            needs = "predict_proba needs calibrate='sigmoid', calibrate='isotonic' or measure='logistic'"
            raise AttributeError(f"{why}{needs}; fit again with one of these")
        return self._probabilities

    def _probabilities(self, X: Any) -> NDArray[np.float64]:
        scores = self._scores(X)
        if self._curve is None:
            raise NotFittedError("the parameter calibrate or measure was changed after the fit; fit again")
        positive = self._model({"calibration": self._curve}).probabilities(scores)
        return np.column_stack([1 - positive, positive])


def _effect_of_class_weights(measure: Measure) -> str:
    """Return why weights of classes do not change the coefficients; "" if they do."""
    if measure.family.balanced:
        return f"changes nothing for {measure}, which is balanced already: use the measure logistic"
    if measure.family.ignores_class_weights:
        return (
            f"changes no coefficient for {measure}, which compares the classes with each other, but only the threshold"
            " of predict: choose that by the parameter at"
        )
    return ""
