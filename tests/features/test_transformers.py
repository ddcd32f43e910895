"""Transformers and the estimator with features, in scikit-learn's checks and tools."""

from __future__ import annotations

import doctest
import pickle
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from distsms import BinCodes, LeafCodes, SMSClassifier
from distsms.base.errors import InputError, ModelWarning
from distsms.features.arrays import fit_arrays, options
from distsms.features.build import build
from distsms.features.feature_map import load
from distsms.features.fit import FeatureOptions
from distsms.python import api, transformers
from distsms.shards.from_arrays import write_data
from distsms.shards.manifest import read_manifest
from distsms.workflow.candidates import named
from tests.support.files import ALONE
from tests.support.sharded import rewrite

pytestmark = [pytest.mark.serial, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]


def product(n=600, seed=0):
    """Rows of which no linear model knows anything: the sign of a product of two columns."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 4))
    X[:, 3] = rng.integers(0, 3, n)
    return X, np.where(X[:, 0] * X[:, 1] + 0.1 * rng.standard_normal(n) > 0, "yes", "no")


@parametrize_with_checks(
    [LeafCodes(trees=5), BinCodes(4, "top:2")],
    expected_failed_checks=lambda estimator: (
        dict.fromkeys(
            ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
            "a repeated row counts as two for the least rows of a leaf, and in the hash of a sample",
        )
        if isinstance(estimator, LeafCodes)
        else {}
    ),
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("features", [None, {"bins": 4}])
@pytest.mark.parametrize("column", [-1, 99])
def test_a_sparse_matrix_whose_columns_do_not_exist(features, column):
    X, y = product(60)
    good, bad = sparse.csr_matrix(X), sparse.csr_matrix(X)
    bad.indices[5] = column
    model, bins = SMSClassifier(lam=0.01, features=features), BinCodes(4)
    for call, error in (
        (lambda: model.fit(bad, y), ValueError),
        (lambda: model.fit(good, y).decision_function(bad), InputError),
        (lambda: bins.fit(bad), ValueError),
        (lambda: bins.fit(good).transform(bad), InputError),
    ):
        with pytest.raises(error, match="indices must be"):
            call()


@pytest.mark.by_turns  # others of their kind are checked always
@parametrize_with_checks(
    [BinCodes(bins=4), SMSClassifier(lam=1e-2, features={"bins": np.int64(4), "keep": np.bool_(True)})]
)
def test_scikit_learns_checks_that_take_turns(estimator, check):
    check(estimator)


def test_the_examples_of_the_module():
    assert doctest.testmod(transformers).failed == 0


@pytest.mark.parametrize(
    "features", ["trees", {"trees": 20, "keep": True}, {"bins": 8, "crosses": "all"}, {"bins": 8, "crosses": "top:1"}]
)
def test_features_learn_what_no_linear_model_can(features):
    X, y = product()
    if features == "trees":
        assert cross_val_score(SMSClassifier(), X, y, cv=3, scoring="roc_auc").mean() < 0.65
    made = SMSClassifier(lam=1e-3, features=features)
    assert cross_val_score(made, X, y, cv=3, scoring="roc_auc").mean() > 0.85
    made.fit(X, y)
    scores = made.decision_function(X)
    assert made.coef_.shape == (1, made.map_.p) and made.gap_ <= 1e-3
    for kind in (sparse.csr_matrix(X), pd.DataFrame(X).to_numpy()):
        np.testing.assert_allclose(made.decision_function(kind), scores, atol=1e-12)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(made)).decision_function(X), scores)
    assert clone(made).get_params() == made.get_params()
    assert not hasattr(made.set_params(features=None).fit(X, y), "map_")


def test_a_pipeline_is_the_estimator():
    X, y = product()
    lam, trees = 1e-2, 10
    estimator = SMSClassifier(lam=lam, epsilon=1e-7, features={"trees": trees, "seed": 3}).fit(X, y)
    pipeline = make_pipeline(LeafCodes(trees=trees, seed=3), SMSClassifier(lam=lam, epsilon=1e-7)).fit(X, y)
    scores = estimator.decision_function(X)
    # J is strongly convex, so that the gaps bound how far the two w, which other openings find, are from each other.
    near = sum((2 * own.gap_ / lam * trees) ** 0.5 for own in (estimator, pipeline[-1]))
    assert near < 0.05 * np.ptp(scores)
    ranks = np.subtract(scores, pipeline.decision_function(X))  # a threshold may add the same number to all
    assert np.ptp(ranks) <= 2 * near
    assert make_pipeline(BinCodes(8, "all"), LogisticRegression()).fit(X, y).score(X, y) > 0.9


def test_names_and_columns_of_transformers():
    X, y = product()
    for made, name in ((LeafCodes(trees=3), "tree 2, leaf "), (BinCodes(4, "column 0:column 1"), "column 0 ")):
        Z = made.fit(X, y).transform(X)
        names = made.get_feature_names_out()
        assert Z.shape == (600, len(names)) and len(set(names)) == len(names) and any(name in own for own in names)
        assert (np.asarray(Z.sum(axis=1)).ravel() == {"L": 3, "B": 5}[type(made).__name__[0]]).all()
    frame = pd.DataFrame(X, columns=[f"column {k}" for k in (1, 0, *range(2, X.shape[1]))])
    named = BinCodes(4, "column 0:column 1").fit(frame, y).map_.bins
    assert [own.name for own in named.attributes] == list(frame) and named.pairs == ((0, 1),)
    assert SMSClassifier(lam=1e-2, features="bins=4").fit(frame, y).map_.column_name(0).startswith("column 1 < ")
    same = frame.set_axis(["a"] * X.shape[1], axis=1)
    assert (
        fit_arrays(X, np.where(y == "yes", 1, -1), FeatureOptions(4), names=list(same)).column_name(0)[:8] == "column 0"
    )


def test_maps_of_arrays_are_those_of_data_sets(tmp_path):
    X, y = product()
    labels = np.where(y == "yes", 1, -1).astype(np.int8)
    write_data(tmp_path / "d", X, labels)
    rewrite(tmp_path / "d", lambda record: record.update(zero_based=True))
    for wanted in (FeatureOptions(8, "all"), FeatureOptions(None, trees=3), FeatureOptions(8, "top:2", trees=3)):
        build(tmp_path / "d", tmp_path / "f", ALONE, wanted, overwrite=True)
        assert load(read_manifest(tmp_path / "f")).hash == fit_arrays(X, labels, wanted).hash


def test_an_estimator_of_a_model_file_with_features(tmp_path):
    X, y = product()
    write_data(tmp_path / "d", X, np.where(y == "yes", 1, -1).astype(np.int8))
    build(tmp_path / "d", tmp_path / "f", ALONE, FeatureOptions(8, "all", trees=3))
    model = api.train(tmp_path / "f", lam=1e-3, solver="lbfgs")
    api.save_model(tmp_path / "m.h5", model)
    made = SMSClassifier.from_model(tmp_path / "m.h5")
    assert made.n_features_in_ == 4
    np.testing.assert_allclose(made.decision_function(X) + made.threshold_, api.predict(model, X), atol=1e-12)


def test_features_in_memory_need_no_pyarrow(monkeypatch):
    """It does not come with distsms[sklearn]."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    X, y = product(60)
    assert SMSClassifier(lam=1e-2, features="bins").fit(X, y).predict(X).shape == (60,)


def test_what_cannot_be_is_refused_in_words():
    X, y = product()
    for settings, told in (
        ({"features": "forest"}, "features='forest': 'forest' is not one of .*min_leaf=5,keep, or a dict of options"),
        ({"features": {"tress": 10}}, "no option 'tress'; there are .* min_leaf"),
        ({"features": {"min-leaf": 10}}, "min_leaf is about trees; say how many"),
        ({"features": {"min-leaf": 10, "min_leaf": 10, "trees": 3}}, "an option is there twice"),
        ({"features": "leaves,tree_rows=50"}, "tree_rows is 50; it must be at least 100"),
        ({"features": {"trees": True}}, "trees is True, and not a whole number"),
        ({"features": {"crosses": 3}}, "crosses is 3, and not a text"),
        ({"features": {"attributes": 5}}, "attributes is 5, and not a path"),
        ({"features": 3}, "needs one of 'bins'"),
        ({"features": {"crosses": "column 0:column 9"}}, "not a pair"),
        ({"features": {"bins": 1}}, "2 to"),
    ):
        with pytest.raises(ValueError, match=told):
            SMSClassifier(**settings).fit(X, y)
    with pytest.raises(ValueError, match="y has 3"):
        LeafCodes().fit(X, np.arange(600) % 3)
    calibrated = CalibratedClassifierCV(SMSClassifier(lam=1e-3, features={"trees": 10}), cv=3).fit(X, y)
    assert calibrated.predict_proba(X).shape == (600, 2)
    assert SMSClassifier(lam=1e-3, features="bins", at="fpr<=0.5").fit(X, y).decision_["condition"] == "fpr<=0.5"
    assert (
        options(named("trees,min_leaf=4"))
        == options({"trees": 100, "min-leaf": 4})
        == FeatureOptions(None, trees=100, min_leaf=4)
    )
    assert not hasattr(SMSClassifier(features="raw").fit(X, y), "map_")
    with pytest.raises(ValueError, match=r"take the strongest with crosses='top:K'") as told:
        BinCodes(2, "all").fit(np.random.default_rng(0).normal(size=(20, 300)))
    assert "--" not in str(told.value)
    assert options(named("trees")) == FeatureOptions(None, trees=100) and options({"trees": 3, "bins": 4}).bins == 4


def test_held_out_folds_have_trees_that_do_not_know_their_labels():
    """Labels are drawn at random. Trees that knew them would give certain probabilities, and a threshold."""
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((300, 3)), rng.random(300) < 0.4
    weights = np.where(np.arange(300) % 7 == 0, 0.0, 1.0)
    model = SMSClassifier(lam=1e-2, features={"trees": 20, "min_leaf": 1}, at="precision>=0.7", calibrate="sigmoid")
    with pytest.warns(ModelWarning, match=r"no threshold of the 257 held-out rows has precision>=0\.7"):
        model.fit(X, y, sample_weight=weights)
    assert model.score(X[weights > 0], y[weights > 0]) > 0.95  # the training rows are known by heart
    brier = model.calibration_["brier"]
    assert brier["after"] > 0.97 * brier["constant"]
    assert model.predict_proba(X).shape == (300, 2)
