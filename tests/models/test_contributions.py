"""What features contribute to scores: sums over rows, compared with a walk row by row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.errors import InputError
from distsms.features import arrays
from distsms.features.attributes import Attribute
from distsms.features.bins import Bins, purified
from distsms.features.feature_map import FeatureMap
from distsms.models.model import Model
from distsms.python import api
from distsms.python.judging import contributions
from distsms.shards.from_arrays import write_data
from tests.support.problems import share

INFO = {"measure": "rocarea", "threshold": 0.0, "label_map": {"+1": 1, "-1": -1}, "zero_based": True, "bias": 0.25}


def table(n=400, seed=0):
    """Rows with two numbers that depend on each other, one with gaps, a category that some rows lack, and noise."""
    rng = np.random.default_rng(seed)
    X = np.zeros((n, 8))
    X[:, 0] = rng.normal(size=n)
    X[:, 1] = X[:, 0] + rng.exponential(size=n)
    X[:, 2] = rng.random(n) < 0.1
    X[np.arange(n), 3 + rng.integers(0, 4, n)] = 1  # the fourth one has no category, and is a number
    X[:, 7] = rng.integers(0, 3, n)
    y = np.where(X[:, 0] * X[:, 1] + X[:, 3] + rng.normal(size=n) > 1, 1, -1).astype(np.int8)
    return X, y


def made_map(X, y, keep, trees=True):
    edges = [np.quantile(X[:, j], np.linspace(0, 1, 7)[1:-1]).astype(np.float32) for j in (0, 1)]
    attributes = [Attribute("a", (0,)), Attribute("b", (1,), missing=2), Attribute("c", (3, 4, 5), tuple("xyz"))]
    bins = Bins(attributes, [*edges, np.empty(0, np.float32)], [(0, 1), (0, 2), (1, 2)])
    forest = arrays.fit_arrays(X, y, arrays.options({"trees": 5, "min_leaf": 2})).forest if trees else None
    return FeatureMap(8, bins, forest, keep)


def model_of(made, seed=0):
    w = np.random.default_rng(seed).normal(size=made.p)
    return Model(w, dict(INFO), coded=made.coded, features=made)


def by_hand(model, X):
    """The contributions of each row, from the codes of the row alone: attributes, pairs, columns by trees, the rest."""
    made, found = model.features, contributions(model, X)
    codes = [np.where(own < size, own, size) for own, size in zip(made.bins.codes(X).T, made.bins.sizes, strict=True)]
    terms = [term.values[codes[term.attributes[0]]] for term in found.attributes]
    terms += [term.values[codes[term.attributes[0]], codes[term.attributes[1]]] for term in found.pairs]
    of_columns = np.zeros((8, len(X)))
    if made.forest is not None:
        first = 8 * made.keep + made.bins.code_map.p
        values = model.w[first:]
        leaves = made.forest.codes(X)
        offsets = made.forest.code_map.offsets
        for t in range(made.forest.n_trees):
            own = values[offsets[t] + leaves[:, t].astype(int)]
            paths = [made.forest.path(t, leaf) for leaf in leaves[:, t].tolist()]
            for depth in range(max(map(len, paths))):  # the rows with the same way so far
                keys = [tuple(path[:depth]) for path in paths]
                longer = [tuple(path[: depth + 1]) for path in paths]
                mean, then = (pd.Series(own).groupby(pd.Series(key)).transform("mean") for key in (keys, longer))
                for i, path in enumerate(paths):
                    if depth < len(path):
                        of_columns[path[depth][0], i] += then[i] - mean[i]
    kept = (X * model.w[:8]).T - (X * model.w[:8]).mean(axis=0)[:, None] if made.keep else np.zeros((8, len(X)))
    return found, terms, of_columns, kept


@pytest.mark.serial
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("trees", [False, True])
def test_contributions_add_up_to_the_score_of_each_row_and_shares_to_one(keep, trees):
    X, y = table()
    X[:5, 3:7] = 0  # no category, which no row of the map had a code for
    model = model_of(made_map(X, y, keep, trees))
    scores = api.predict(model, X)
    found, terms, of_columns, kept = by_hand(model, X)
    total = found.intercept + sum(terms) + of_columns.sum(axis=0) + kept.sum(axis=0)
    np.testing.assert_allclose(total, scores, atol=1e-10)
    np.testing.assert_allclose([found.intercept, found.deviation], [scores.mean(), scores.std()])
    of_names = [np.add.reduceat(own, [0, 1, 3, 6, 7]) for own in (of_columns, kept)]  # columns of an attribute are one
    shares = [np.cov(own, scores, bias=True)[0, 1] / scores.var() for own in (*terms, *of_names[0], *of_names[1])]
    own = [term.share for term in (*found.attributes, *found.pairs)]
    np.testing.assert_allclose([*own, *found.forest, *found.kept], shares, atol=1e-10)
    np.testing.assert_allclose(sum(own) + found.forest.sum() + found.kept.sum(), 1)
    every = (*found.attributes, *found.pairs)
    np.testing.assert_allclose([term.deviation for term in every], [np.std(own) for own in terms], atol=1e-10)
    assert found.columns == ["a", "b", "c", "column 6", "column 7"] and found.n == len(X)


@pytest.mark.serial
@given(st.integers(0, 2**31))
def test_shares_add_up_to_one_with_rows_that_have_neither_category_of_a_pair(seed):
    rng = np.random.default_rng(seed)
    X = np.zeros((30, 8))
    X[:, 0], X[:, 1] = rng.normal(size=30), rng.random(30) < 0.3
    for first in (2, 4):  # two categories each, or neither of them
        X[np.arange(30), first + rng.integers(0, 2, 30)] = rng.random(30) < 0.6
    number = Attribute("a", (0,), missing=1)
    attributes = [number, *(Attribute(name, (j, j + 1), tuple("xy")) for name, j in (("b", 2), ("c", 4)))]
    edges = [np.zeros(1, np.float32), *2 * [np.empty(0, np.float32)]]
    model = model_of(FeatureMap(8, Bins(attributes, edges, [(0, 1), (1, 2)])), seed)
    scores = api.predict(model, X)
    found, terms, *_ = by_hand(model, X)
    shares = [term.share for term in (*found.attributes, *found.pairs)]
    np.testing.assert_allclose(found.intercept + sum(terms), scores, atol=1e-9)
    np.testing.assert_allclose(
        shares, [np.cov(own, scores, bias=True)[0, 1] / scores.var() for own in terms], atol=1e-8
    )
    np.testing.assert_allclose(sum(shares), 1)


@pytest.mark.serial
def test_pairs_say_nothing_that_an_attribute_could_say():
    X, y = table()
    found = contributions(model_of(made_map(X, y, False, False)), X)
    for term in found.pairs:
        for axis in (0, 1):
            np.testing.assert_allclose((term.rows * term.values).sum(axis=axis), 0, atol=1e-9)
    for term in found.attributes:
        assert abs(term.rows @ term.values) < 1e-12 and abs(term.rows.sum() - 1) < 1e-12


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))
def test_purified_tables_against_least_squares(n_u, n_v, seed):
    """The part of single attributes is the best sum a(u) + b(v) by weighted least squares; codes may have no rows."""
    rng = np.random.default_rng(seed)
    F, rows = rng.normal(size=(n_u, n_v)), rng.integers(0, 3, (n_u, n_v)).astype(float)
    G, a, b = purified(F, rows)
    np.testing.assert_allclose(G + a[:, None] + b, F, atol=1e-12)
    design = np.hstack([np.repeat(np.eye(n_u), n_v, axis=0), np.tile(np.eye(n_v), (n_u, 1))])
    root = np.sqrt(rows.ravel())
    best = np.linalg.lstsq(design * root[:, None], F.ravel() * root, rcond=None)[0]
    np.testing.assert_allclose((G.ravel() * root), (F.ravel() - design @ best) * root, atol=1e-8)


def test_every_kind_of_rows_and_any_number_of_ranks(comm, shared_dir):
    X, y = table()
    weights = np.random.default_rng(1).integers(0, 3, len(y)) * 0.5
    model = model_of(made_map(X, y, True))
    own = share(comm, len(y))
    whole = contributions(model, np.repeat(X, (2 * weights).astype(int), axis=0))
    if comm.is_root:
        write_data(shared_dir / "x", X, y, weights=weights, n_shards=2)
    comm.barrier()
    of_arrays = contributions(model, X[own], comm, weight=weights[own])
    for found in (of_arrays, contributions(model, shared_dir / "x", comm)):
        np.testing.assert_allclose(found.n * 2, whole.n)
        for name in ("intercept", "deviation", "forest", "kept"):
            np.testing.assert_allclose(getattr(found, name), getattr(whole, name), atol=1e-10)
        for term, other in zip((*found.attributes, *found.pairs), (*whole.attributes, *whole.pairs), strict=True):
            np.testing.assert_allclose(term.values, other.values, atol=1e-9)
            np.testing.assert_allclose([term.share, term.deviation], [other.share, other.deviation], atol=1e-9)


@pytest.mark.serial
def test_without_rows_all_codes_count_alike():
    X, y = table()
    model = model_of(made_map(X, y, False, False))
    found = contributions(model)
    assert found.n == 0 and np.isnan(found.deviation) and all(np.isnan(term.share) for term in found.attributes)
    bins = model.features.bins
    codes = bins.codes(X).astype(int)
    known = (codes < bins.sizes).all(axis=1)
    terms = [term.values[tuple(codes[known][:, list(term.attributes)].T)] for term in (*found.attributes, *found.pairs)]
    np.testing.assert_allclose(found.intercept + sum(terms), api.predict(model, X)[known], atol=1e-10)
    for term in found.pairs:
        np.testing.assert_allclose(term.values[:-1, :-1].mean(axis=0), 0, atol=1e-10)


@pytest.mark.serial
def test_tables_for_data_frames():
    X, y = table()
    X[:5, 3:7] = 0
    found = contributions(model_of(made_map(X, y, True)), X)
    tables = {name: pd.DataFrame(own) for name, own in found.tables().items()}
    assert list(tables["attributes"]["name"]) == ["a", "b", "c"] and tables["pairs"]["name"][0] == "a & b"
    assert list(tables["columns"].columns) == ["name", "trees", "grown", "kept"]
    b, c, pair = (pd.DataFrame(term.table()) for term in (found.attributes[1], found.attributes[2], found.pairs[1]))
    assert list(b["code"])[-1] == "missing" and b["low"][0] == -np.inf and np.isnan(b["high"].iloc[-1])
    assert (b["high"].iloc[:-2].to_numpy() == b["low"].iloc[1:-1].to_numpy()).all()
    assert list(c["code"]) == ["x", "y", "z", "unknown"] and c["low"].isna().all()
    assert abs(b["rows"].sum() - 1) < 1e-12 and abs(pair["rows"].sum() - 1) < 1e-12
    assert {"unknown", "x"} <= set(pair["second"])


@pytest.mark.serial
def test_models_without_fixed_contributions_are_refused():
    X, y = table()
    model = model_of(made_map(X, y, True))
    with pytest.raises(InputError, match="unit length"):
        contributions(Model(model.w, INFO | {"normalize": "l2"}, coded=model.coded, features=model.features), X)
    with pytest.raises(InputError, match="codes, which belong to no columns"):
        contributions(Model(model.w, INFO, coded=model.coded), X)
    with pytest.raises(InputError, match="no row"):
        contributions(model, X[:0])
    flat = contributions(Model(0 * model.w, INFO, coded=model.coded, features=model.features), X)
    assert flat.deviation == 0 and not np.any(flat.forest) and flat.intercept == 0.25
    assert all(term.share == 0 for term in flat.attributes)
