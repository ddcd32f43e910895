"""The search of settings of trees."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.metrics import ranking
from distsms.optim.settings import Settings
from distsms.workflow.competitors import METHODS, Task, parameters
from distsms.workflow.folds import deal_rows
from tests.support.problems import data

pytestmark = pytest.mark.serial
ALONE = Communicator()
SETTINGS = Settings(lam=1.0)


def attempt(X, y, held_out, measure, number, weights=None, groups=None, library="xgboost"):
    """Try a setting on the rows that are not held out."""
    method = METHODS["trees" if library == "xgboost" else library]
    return method.search(Task(X, y, measure, SETTINGS, held_out, weights=weights, groups=groups), number)


def grow(X, y, number, rounds, weights=None, library="xgboost"):
    """Train with a setting on all these rows, and return what scores rows."""
    method = METHODS["trees" if library == "xgboost" else library]
    return method.fit(Task(X, y, "rocarea", SETTINGS, rounds=rounds, weights=weights), number).score


@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
def test_a_setting_of_trees_is_judged_by_inner_rows_at_its_best_rounds(measure):
    xgboost = pytest.importorskip("xgboost")
    X, y = data(400)
    held = deal_rows(y, np.ones(400, bool), 5, 0, ALONE) == 1
    found = attempt(X, y, held, measure, 3)
    assert attempt(X, y, held, measure, 3) == found  # no chance is left in it
    words = {"objective": "binary:logistic", "tree_method": "hist", "seed": 0, "nthread": 1, **parameters(3, "xgboost")}
    model = xgboost.train(words, xgboost.DMatrix(X[~held], label=y[~held] > 0), found.rounds)
    ranked = ranking.ranking(Scored(model.predict(xgboost.DMatrix(X[held])).astype(float), y[held], ALONE))
    assert found.value == pytest.approx(getattr(ranked, measure), abs=1e-6)
    one = np.where(np.arange(400) == 5, 1, -1).astype(np.int8)
    value, rounds = attempt(X, one, None, measure, 0)  # no inner rows to judge by
    assert np.isnan(value) and np.isfinite(grow(X, one, 0, rounds)(X)).all()


@pytest.mark.parametrize("measure, weighted", [("rocarea", True), ("prbep", True), ("rocarea", False)])
def test_a_setting_of_lightgbm_is_judged_by_inner_rows_at_its_best_rounds(measure, weighted):
    lightgbm = pytest.importorskip("lightgbm")
    X, y = data(400)
    held = deal_rows(y, np.ones(400, bool), 5, 0, ALONE) == 1
    weights = np.random.default_rng(0).uniform(0.5, 2, 400) if weighted else None
    found = attempt(X, y, held, measure, 3, weights, library="lightgbm")
    assert attempt(X, y, held, measure, 3, weights, library="lightgbm") == found
    words = {"objective": "binary", "seed": 0, "verbosity": -1, "num_threads": 1, **parameters(3, "lightgbm")}
    own, judged = (None, None) if weights is None else (weights[~held], weights[held])
    rows = lightgbm.Dataset(X[~held], y[~held] > 0, weight=None if own is None else own / own.mean())
    scores = lightgbm.train(words | {"deterministic": True, "force_col_wise": True}, rows, found.rounds).predict(
        X[held]
    )
    if measure == "rocarea":
        expected = roc_auc_score(y[held], scores, sample_weight=judged)
    else:
        expected = ranking.prbep(Scored(scores, y[held], ALONE, judged))
    assert found.value == pytest.approx(expected, abs=1e-6)
    again = grow(X[~held], y[~held], 3, found.rounds, own, library="lightgbm")(X[held])
    assert roc_auc_score(y[held], again) == pytest.approx(roc_auc_score(y[held], scores), abs=1e-9)


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_trees_within_groups_are_stopped_by_gauc(library):
    pytest.importorskip(library)
    X, y = data(400)
    held = deal_rows(y, np.ones(400, bool), 5, 0, ALONE) == 1
    groups = (np.arange(400) % 20).astype(np.uint64)
    found = attempt(X, y, held, "gauc@each", 0, None, groups, library)
    scores = grow(X[~held], y[~held], 0, found.rounds, library=library)(X[held])
    own = [(y[held][groups[held] == g], scores[groups[held] == g]) for g in range(20)]
    areas = [roc_auc_score(labels, values) for labels, values in own if 0 < np.sum(labels > 0) < len(labels)]
    assert found.value == pytest.approx(np.mean(areas), abs=1e-6)


def test_the_settings_of_trees_are_the_same_in_every_run_and_differ():
    settings = [parameters(number, "xgboost") for number in range(30)]
    assert settings[0] == {"max_depth": 6, "eta": 0.1}
    assert settings == [parameters(number, "xgboost") for number in range(30)]
    assert len(set(map(str, settings))) == 30
    assert all(8 <= setting["max_leaves"] <= 256 for setting in settings[1:])
    shared = ("max_leaves", "eta", "lambda", "colsample_bytree", "subsample")
    for number, setting in enumerate(settings[1:], 1):
        assert {name: setting[name] for name in shared}.items() <= parameters(number, "lightgbm").items()


def test_lightgbm_takes_the_names_of_parameters_that_are_those_of_xgboost():
    lightgbm = pytest.importorskip("lightgbm")
    X, y = data(400)
    setting = parameters(3, "lightgbm")
    theirs = {
        "max_leaves": "num_leaves",
        "eta": "learning_rate",
        "lambda": "lambda_l2",
        "colsample_bytree": "feature_fraction",
        "subsample": "bagging_fraction",
    }
    shared = {"objective": "binary", "seed": 0, "verbosity": -1, "num_threads": 1, "deterministic": True}
    scores = [
        lightgbm.train({**shared, **words}, lightgbm.Dataset(X, y > 0), 20).predict(X)
        for words in (setting, {theirs.get(name, name): value for name, value in setting.items()})
    ]
    np.testing.assert_array_equal(*scores)
    assert np.ptp(scores[0]) > 0
