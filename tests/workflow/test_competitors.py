"""The methods of a baseline, each by itself: what they fit, what they need, and which are left out."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.scored import Scored
from distsms.features import build as building
from distsms.features.fit import FeatureOptions
from distsms.metrics import ranking
from distsms.optim.settings import Settings
from distsms.shards import dataset
from distsms.shards.dataset import read_manifest
from distsms.shards.from_arrays import write_data
from distsms.workflow.baseline_plan import leave_out_features, leave_out_missing, requested_methods
from distsms.workflow.competitors import FEATURED, METHODS, OURS, Task, require
from distsms.workflow.requests import BaselineRequest
from tests.support.methods import fit_of
from tests.support.problems import data

pytestmark = pytest.mark.serial
ALONE = Communicator()
SETTINGS = Settings(lam=1.0, epsilon=1e-4)


@pytest.mark.parametrize("method", ["svm", "svm-balanced"])
@pytest.mark.parametrize("lam", [1e-1, 1e-3])
def test_lambda_means_the_same_to_others(method, lam):
    """At their w the gradient of lambda/2 ||w||^2 plus the weighted mean loss is 0, up to their tolerance."""
    X, y = data(300)
    fitted = fit_of(method)(Task(X, y, "rocarea", Settings(lam=1.0, epsilon=1e-9)), lam)
    assert not fitted.note
    s = fitted.score(X)
    w = sparse.linalg.lsqr(sparse.hstack([X, np.ones((300, 1))]), s, atol=1e-14, btol=1e-14)[0][:-1]
    slope = -2 * y * np.maximum(1 - y * s, 0)
    weight = np.where(y > 0, 150 / np.sum(y > 0), 150 / np.sum(y < 0)) if "balanced" in method else np.ones(300)
    assert (
        np.abs(lam * w + X.T @ (weight * slope) / 300).max() < 1e-3 * np.abs(X.T @ (weight * slope) / 300).sum() + 1e-4
    )


def test_ours_is_proved_and_trees_see_what_no_plane_can():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    y = np.where(X[:, 0] * X[:, 1] > 0, 1, -1).astype(np.int8)
    task = Task(X, y, "rocarea", SETTINGS, np.arange(600) % 5 == 0)
    ours = fit_of(OURS)(task, 1e-2)
    assert not ours.note
    pytest.importorskip("xgboost")
    trees = METHODS["trees"]
    scores = trees.fit(task._replace(rounds=trees.search(task, 0).rounds), 0).score(X)
    assert ranking.rocarea(Scored(scores, y, ALONE)) > 0.95 > 0.7 > ranking.rocarea(Scored(ours.score(X), y, ALONE))


def test_features_that_do_not_suit_are_left_out(tmp_path):
    rng = np.random.default_rng(0)
    y = np.where(rng.random(60) < 0.4, 1, -1)

    def left(folder, **options):
        request = BaselineRequest(tmp_path / folder, "out", **options)
        methods = requested_methods(request)
        return methods, leave_out_features(request, methods, read_manifest(tmp_path / folder), ALONE)

    def kept(p, **options):
        write_data(tmp_path / f"{p}", rng.normal(size=(60, p)), y, overwrite=True)
        methods, left_out = left(f"{p}", **options)
        gone = [name for each in left_out for name in each.methods]
        names = [name for name in methods if name not in gone and ("-leaves" in name or "-crosses" in name)]
        return names, " ".join(each.why for each in left_out)

    every = list(FEATURED)
    assert kept(32) == (every, "") and kept(32, trees=False) == ([], "")
    names, said = kept(33)
    assert names == every[2:] and "33 attributes have many pairs" in said
    names, said = kept(501)
    assert names == [] and "more than 500 columns take long" in said
    assert kept(501, methods=["distsms-leaves"]) == (["distsms-leaves"], "")
    building.build(tmp_path / "32", tmp_path / "bins", ALONE, FeatureOptions(3))
    assert "but codes" in left("bins")[1][0].why
    with pytest.raises(InputError, match="has features already"):
        left("bins", methods=["logistic-leaves"])


def test_a_package_that_is_missing_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    require(["distsms", "logistic"])
    with pytest.raises(InputError, match=r"trees needs xgboost.*distsms\[baseline\].*--methods"):
        require(["distsms", "trees"])


def test_methods_whose_package_is_missing_are_left_out_in_words_unless_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    request = BaselineRequest("data", "out")
    (left_out,) = leave_out_missing(request, ["distsms", "logistic", "lightgbm"], ALONE)
    assert left_out.methods == ["lightgbm"]
    assert left_out.why.startswith("it needs lightgbm, which is not installed (pip install")
    assert leave_out_missing(request, ["distsms", "logistic"], ALONE) == []
    named = BaselineRequest("data", "out", methods=["distsms", "lightgbm"])
    assert leave_out_missing(named, named.methods, ALONE) == []
    with pytest.raises(InputError, match="the method lightgbm needs lightgbm"):
        require(named.methods)


@pytest.mark.parametrize("kind", ["values", "pattern", "dense"])
def test_the_matrix_of_a_data_set(tmp_path, kind):
    X, y = data(60)
    X = X.toarray() if kind == "dense" else X
    if kind == "pattern":
        X = (X != 0).astype(float)
    weights = np.where(np.arange(60) % 7 == 3, 0.0, 1.0)
    found, labels, _ = dataset.load_matrix(write_data(tmp_path / "a", X, y, 3))
    assert (found != X).sum() == 0 and np.array_equal(labels, y) and found.dtype == float
    found, labels, _ = dataset.load_matrix(write_data(tmp_path / "b", X, y, 2, weights))
    assert (found != X[weights > 0]).sum() == 0 and np.array_equal(labels, y[weights > 0])
