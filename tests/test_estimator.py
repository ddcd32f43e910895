"""The estimator under scikit-learn's own checks and tools; no MPI; weights."""

from __future__ import annotations

import doctest
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import distsms
from distsms import SMSClassifier
from distsms.base.errors import ModelWarning
from distsms.matrix.arrays import as_features
from distsms.python import estimator
from tests.support.problems import data

pytestmark = [pytest.mark.serial, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]


COUNTS_ROWS = dict.fromkeys(
    (
        "check_sample_weights_not_overwritten",
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
        "check_class_weight_classifiers",
    ),
    "F-beta counts rows, and refuses different weights in words",
)

NO_MODEL = {"check_class_weight_classifiers": "PRBEP's risk with hardly any positives is smallest at w = 0"}


@parametrize_with_checks([SMSClassifier(), SMSClassifier("logistic", lam=1e-1)])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.by_turns
@parametrize_with_checks(
    [
        SMSClassifier("prbep", lam=1e-2),
        SMSClassifier(lam=1e-2, l1=1e-2),
        SMSClassifier("f1", lam=1e-1, bias=1.0),
    ],
    expected_failed_checks=lambda estimator: {"f1": COUNTS_ROWS, "prbep": NO_MODEL}.get(estimator.measure, {}),
)
def test_scikit_learns_checks_of_other_measures(estimator, check):
    """None is expected to fail but those that weigh rows where that means nothing."""
    check(estimator)


def test_the_examples_of_the_module():
    assert doctest.testmod(estimator).failed == 0


def loaded(code):
    program = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    return set(subprocess.check_output([sys.executable, "-c", program], text=True).split("\n")[-2].split())


FIT = """
import numpy as np
from distsms import SMSClassifier
X, y = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2
for measure, solver in (("rocarea", None), ("prbep", "agm"), ("f1", None)):
    SMSClassifier(measure, lam=1.0, solver=solver).fit(X, y).predict(X)
"""


def test_it_starts_no_mpi():
    assert not loaded(FIT) & {"mpi4py", "mpi4py.MPI", "petsc4py", "petsc4py.PETSc"}


def test_it_needs_neither_mpi4py_nor_petsc4py():
    told = "try: SMSClassifier(solver='lmvm').fit(X, y)\nexcept ValueError as e: assert 'then lbfgs is used' in str(e)"
    loaded("sys.modules['mpi4py'] = sys.modules['petsc4py'] = None" + FIT + told + "\nelse: raise AssertionError")


def test_the_solver_of_the_program_finds_the_same():
    X, y = data()
    one, other = (SMSClassifier(lam=1e-2, epsilon=1e-5, solver=solver).fit(X, y) for solver in (None, "lmvm"))
    assert abs(one.objective_ - other.objective_) <= 1e-5
    assert np.linalg.norm(one.coef_ - other.coef_) <= 2 * np.sqrt(2 * 1e-5 / 1e-2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dense_and_sparse_rows_are_the_same_and_not_copied(dtype):
    X, y = data()
    X = X.astype(dtype)
    dense = X.toarray()
    models = [SMSClassifier(lam=1e-2).fit(rows, y) for rows in (X, dense, X.tocsc(), np.asfortranarray(dense))]
    for one in models[1:]:
        np.testing.assert_allclose(one.coef_, models[0].coef_, rtol=1e-6, atol=1e-9)
    assert np.shares_memory(as_features(dense).arrays[0], dense)
    wide = sparse.csr_matrix((X.data, X.indices, X.indptr), shape=(X.shape[0], 2**16 + 1))
    indices, values = as_features(wide).arrays
    assert np.shares_memory(values, X.data) and np.shares_memory(indices, wide.indices)


def test_entries_that_come_twice_or_unsorted_are_put_in_order_in_a_copy():
    X = sparse.csr_matrix((np.array([1.0, 2.0, 4.0]), np.array([1, 0, 1]), np.array([0, 3])), shape=(1, 2))
    np.testing.assert_array_equal(as_features(X).margins(np.array([1.0, 10.0])), [52.0])
    assert X.indices.tolist() == [1, 0, 1]


@pytest.mark.parametrize("measure", ["rocarea", "prbep", "error-rate"])
def test_weights_are_repeated_rows(measure):
    X, y = data(n=80)
    weights = np.random.default_rng(0).integers(0, 4, 80)
    settings = {"measure": measure, "lam": 1e-1, "max_evaluations": 4}  # rounding has not yet parted their ways
    weighted = SMSClassifier(**settings).fit(X, y, sample_weight=weights)
    repeated = SMSClassifier(**settings).fit(X[np.repeat(np.arange(80), weights)], np.repeat(y, weights))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-6, atol=1e-9)
    assert weighted.threshold_ == pytest.approx(repeated.threshold_, rel=1e-6, abs=1e-9)
    assert weighted.objective_ == pytest.approx(repeated.objective_, rel=1e-9)


@pytest.mark.parametrize("measure", ["rocarea", "prbep", "error-rate"])
def test_a_common_factor_of_weights_changes_nothing(measure):
    X, y = data(n=80)
    one, three = (
        SMSClassifier(measure, lam=0.1, max_evaluations=4).fit(X, y, k * (0.3 + np.arange(80) % 7)) for k in (1, 3e5)
    )
    np.testing.assert_allclose(one.coef_, three.coef_, rtol=1e-6, atol=1e-9)
    assert one.objective_ == pytest.approx(three.objective_, rel=1e-9)
    assert one.threshold_ == pytest.approx(three.threshold_, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("bad, told", [(np.nan, "NaN"), (-1.0, "Negative"), (np.inf, "infinity")])
def test_wrong_weights_are_refused(bad, told):
    X, y = data(n=20)
    with pytest.raises(ValueError, match=told):
        SMSClassifier().fit(X, y, sample_weight=np.r_[bad, np.ones(19)])


@pytest.mark.parametrize("measure", ["f1", "precision@5"])
def test_measures_that_count_rows_refuse_different_weights(measure):
    X, y = data(n=20)
    with pytest.raises(ValueError, match=f"{measure} counts rows"):
        SMSClassifier(measure).fit(X, y, sample_weight=np.r_[0.5, np.ones(19)])
    SMSClassifier(measure, max_evaluations=2).fit(X, y, sample_weight=np.r_[0, np.full(19, 2.0)])


def test_in_pipelines_searches_clones_and_pickles():
    X, y = data(n=120)
    steps = make_pipeline(StandardScaler(with_mean=False), SMSClassifier(epsilon=1e-2))
    search = GridSearchCV(steps, {"smsclassifier__lam": [1e-1, 1.0]}, scoring="roc_auc", cv=3).fit(X, y)
    found = search.best_estimator_
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.decision_function(X), found.decision_function(X))
    refit = clone(found).fit(X, y)
    np.testing.assert_array_equal(refit[-1].coef_, found[-1].coef_)


def test_what_is_proved_is_on_record_and_what_is_not_warns():
    X, y = data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = SMSClassifier("prbep", lam=1e-2, relative=0.01).fit(X, y)
    assert model.gap_ <= max(1e-3, 0.01 * model.objective_)
    assert model.gap_ == pytest.approx(model.objective_ - model.lower_bound_, rel=1e-6, abs=1e-12)
    assert np.sum(model.predict(X) == 1) == np.sum(y == 1)  # PRBEP's own decision
    with pytest.warns(ConvergenceWarning, match=r"limit reached.*gap"):
        SMSClassifier(max_evaluations=1, epsilon=1e-9).fit(X, y)
    with pytest.warns(ModelWarning, match="ranks no better than chance: all scores are equal"):
        SMSClassifier("prbep", lam=1e6).fit(X, y)


@pytest.mark.parametrize(
    "settings, told",
    [
        ({"measure": "area"}, "no measure is called 'area'"),
        ({"solver": "sgd"}, "no solver is called"),
        ({"measure": "f1", "solver": "lbfgs"}, "no smoothed risk"),
        ({"lam": -1.0}, "lambda is -1"),
        ({"bias": -1.0}, "bias is -1"),
    ],
)
def test_settings_that_cannot_be_are_value_errors(settings, told):
    X, y = data(n=20)
    with pytest.raises(ValueError, match=told):
        SMSClassifier(**settings).fit(X, y)


@pytest.mark.parametrize("weighted", [False, True])
def test_weights_of_classes_are_weights_of_rows(weighted):
    X, y = data(300, seed=3)
    own = np.random.default_rng(0).uniform(0.5, 2.0, len(y)) if weighted else None
    balanced = len(y) / (2 * np.array([np.sum(y < 0), np.sum(y > 0)]))
    by_class = {-1: balanced[0], 1: balanced[1]}
    rows = np.where(y > 0, balanced[1], balanced[0]) * (1.0 if own is None else own)
    expected = SMSClassifier("logistic", lam=1e-2).fit(X, y, sample_weight=rows)
    for weights in ("balanced", by_class):
        found = SMSClassifier("logistic", lam=1e-2, class_weight=weights).fit(X, y, sample_weight=own)
        np.testing.assert_array_equal(found.coef_, expected.coef_)
    assert np.abs(SMSClassifier("logistic", lam=1e-2).fit(X, y, sample_weight=own).coef_ - expected.coef_).max() > 1e-3


@pytest.mark.parametrize("measure", ["rocarea", "pauc@0.5", "normal-auc", "logistic-balanced"])
def test_where_weights_of_classes_change_no_coefficient(measure):
    """It is said, and it is true, within the gap."""
    X, y = data(300, seed=3)
    own = {"measure": measure, "lam": 1e-1, "epsilon": 1e-8}
    with pytest.warns(ModelWarning, match="class_weight changes no"):
        found = SMSClassifier(**own, class_weight="balanced").fit(X, y)
    plain = SMSClassifier(**own).fit(X, y)
    np.testing.assert_allclose(found.coef_, plain.coef_, atol=2 * np.sqrt(2 * 1e-8 / 1e-1))
    assert np.abs(plain.coef_).max() > 0.01


def test_lambda_is_chosen_as_everywhere():
    X, y = data(600, seed=2)
    found = SMSClassifier(lam="auto").fit(X, y)
    model = distsms.train((X, y), lam="auto", solver="lbfgs", check=False)
    assert found.lam_ == model.info["lambda"] and "auto_lambda" in model.info
    np.testing.assert_array_equal(found.coef_[0], model.w)
    with pytest.raises(ValueError, match="lam='auto' would choose on rows whose labels have made the features"):
        SMSClassifier(lam="auto", features="bins").fit(X.toarray(), y)
    with pytest.raises(ValueError, match="lam is 'best', and neither a number nor 'auto'"):
        SMSClassifier(lam="best").fit(X, y)
    assert SMSClassifier(lam=0.25).fit(X, y).lam_ == 0.25


def test_a_model_without_probabilities_says_how_to_get_some():
    X, y = data(60)
    with pytest.raises(AttributeError, match=r"predict_proba needs calibrate='sigmoid', .* fit again"):
        SMSClassifier().fit(X, y).predict_proba(X)
    assert not hasattr(SMSClassifier(), "predict_proba") and hasattr(SMSClassifier("logistic"), "predict_proba")
