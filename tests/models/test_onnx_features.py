"""ONNX models with feature maps give the scores of `predict`, also where values lie on thresholds and edges."""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.errors import InputError
from distsms.features.attributes import Attribute
from distsms.features.bins import Bins
from distsms.features.build import build
from distsms.features.feature_map import FeatureMap
from distsms.features.fit import FeatureOptions
from distsms.features.growing import grow
from distsms.features.rows import Rows
from distsms.models import export, onnx_features, onnx_graph
from distsms.models.model import Model
from distsms.python import api
from tests.models.test_onnx_graph import agrees
from tests.support.conversion import convert
from tests.support.files import ALONE

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.serial

ABOUT = {"threshold": 0.1, "bias": -0.5, "label_map": {"-1": 0.0, "+1": 1.0}, "zero_based": False}
EDGES = np.array([-3e38, -1.5, -1e-45, 0.0, 1e-45, 0.1, 0.30000001, 7.0, 3.4e38], np.float32)


def near(values, rng, n):
    """Values on numbers of float32, and one unit in the last place of float32 or float64 beside them."""
    own = rng.choice(values, n)
    up, down = (np.nextafter(own, np.float32(way)) for way in (np.inf, -np.inf))
    exact = own.astype(float)
    ways = [exact, up.astype(float), down.astype(float), np.nextafter(exact, np.inf), np.nextafter(exact, -np.inf)]
    return np.clip(np.choose(rng.integers(0, 5, n), ways), -1e300, 1e300)


def rows(forest=None, n=500, seed=0):
    """Rows of six columns: two numbers, a mark that the second one is missing, and three categories."""
    rng = np.random.default_rng(seed)
    X = np.zeros((n, 6))
    for j in (0, 1):
        own = [] if forest is None else [forest.arrays()["threshold"][forest.arrays()["column"] == j]]
        X[:, j] = near(np.concatenate([EDGES, *own]), rng, n)
    X[:, 2] = rng.random(n) < 0.2
    X[np.arange(n), rng.integers(3, 6, n)] = 1
    X[rng.random(n) < 0.2, 3:] = 0
    X[rng.random(n) < 0.05, 3:] = 1  # not as in training: the first category counts
    X[:3, 0] = 1e300, -1e300, -0.0
    return X


def bins(pairs=(), none=True):
    attributes = [
        Attribute("a", (0,)),
        Attribute("c", (3, 4, 5), ("x", "y", "z"), none=none),
        Attribute("b", (1,), missing=2),
        Attribute("d", (4,)),
    ]
    return Bins(attributes, [EDGES, EDGES[:0], EDGES[3:7], EDGES[:0]], pairs)


@functools.cache
def forest(trees=7):
    rng = np.random.default_rng(3)
    X = rows(n=400, seed=1)
    X[:, :2] = np.clip(X[:, :2], -10, 10) + rng.standard_normal((400, 2))
    y = np.where(X[:, 0] * X[:, 1] + X[:, 4] + rng.standard_normal(400) > 0, 1, -1).astype(np.int8)
    return grow(Rows(X, y), ALONE, trees)


MAPS = {
    "bins": lambda keep: FeatureMap(6, bins(none=False), keep=keep),
    "crosses": lambda keep: FeatureMap(6, bins([(0, 1), (0, 2), (1, 2), (2, 3)]), keep=keep),
    "trees": lambda keep: FeatureMap(6, forest=forest(), keep=keep),
    "crosses and trees": lambda keep: FeatureMap(6, bins([(1, 2)]), forest(), keep=keep),
}


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("normalize", ["none", "l2"])
def test_scores_are_those_of_predict_on_thresholds_and_edges(kind, keep, normalize):
    feature_map = MAPS[kind](keep)
    w = np.random.default_rng(0).standard_normal(feature_map.p) * 10.0 ** np.arange(-3, 3)[np.arange(feature_map.p) % 6]
    model = Model(w, {**ABOUT, "normalize": normalize}, coded=feature_map.coded, features=feature_map)
    X = rows(getattr(feature_map, "forest", None))
    if keep:  # sums with terms of 1e300 hide everything else
        X[:, :2] = np.where(np.abs(X[:, :2]) > 1e3, X[:, :2] / 1e290 / 1e9, X[:, :2])
    session = onnxruntime.InferenceSession(onnx_graph.build(model), providers=["CPUExecutionProvider"])
    score, label = session.run(["score", "label"], {"X": X})
    expected = api.predict(model, X)
    np.testing.assert_allclose(score, expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max())
    assert len(np.unique(expected)) > 50
    sure = np.abs(expected - model.threshold) > 1e-9
    np.testing.assert_array_equal(label[sure], (expected >= model.threshold)[sure])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(1, 2000), st.integers(-300, 250))
def test_sums_of_digits_are_exact_in_float32(values, n_terms, exponent):
    w = np.array(values) * 10.0**exponent
    largest = n_terms * np.abs(w).max()
    found, powers = onnx_features.digits(w, largest, n_terms)
    assert (np.abs(found).max(axis=0) * n_terms < 2**24).all() and (found == np.rint(found)).all()
    for number, own in zip(w.tolist(), found.tolist(), strict=True):
        exact = sum(Fraction(digit) * Fraction(power) for digit, power in zip(own, powers.tolist(), strict=True))
        assert n_terms * abs(exact - Fraction(number)) <= max(Fraction(largest) * 2**-52, Fraction(10) ** -289)


@pytest.mark.parametrize("keep", [False, True])
def test_a_table_with_missing_values_and_new_categories(tmp_path, keep):
    rng, n = np.random.default_rng(0), 400
    frame = pd.DataFrame({"amount": rng.lognormal(size=n).round(2), "city": rng.choice(["Rome", "Oslo", "Bern"], n)})
    frame["age"] = np.where(rng.random(n) < 0.2, np.nan, rng.integers(18, 90, n))
    frame["card"] = rng.choice(["gold", "blue", "rare"], n, p=[0.5, 0.45, 0.05])
    frame["year"] = 1600000000 + rng.integers(0, 50, n) / 10
    frame["fraud"] = np.where(frame.amount + (frame.city == "Rome") + rng.normal(size=n) > 2.5, "yes", "no")
    frame.to_csv(tmp_path / "a.csv", index=False)
    convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="fraud", positive="yes")
    build(tmp_path / "d", tmp_path / "f", ALONE, FeatureOptions(bins=8, crosses="all", trees=5, keep=keep))
    model = api.train(tmp_path / "f", lam=1e-2, solver="lbfgs")
    new = pd.read_csv(tmp_path / "a.csv", dtype=str, keep_default_na=False).drop(columns="fraud")
    agrees(model, new, tmp_path)
    new.loc[:20, "city"], new.loc[10:30, "city"], new.loc[5:40, "age"], new.loc[8:12, "amount"] = "Lima", "", "", ""
    agrees(model, new, tmp_path)


def test_what_onnx_cannot_hold_is_refused_in_words(monkeypatch, tmp_path):
    feature_map = MAPS["trees"](False)
    model = Model(np.ones(feature_map.p), ABOUT, coded=feature_map.coded, features=feature_map)
    with pytest.raises(InputError, match="liblinear cannot turn"):
        export.write(model, "liblinear", tmp_path / "a", None)
    monkeypatch.setattr(onnx_features, "_MOST_BYTES", 1000)
    with pytest.raises(InputError, match="fewer --trees"):
        export.write(model, "onnx", tmp_path / "a", None)
