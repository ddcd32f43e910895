"""Forests: their leaves against scikit-learn's and against a walk node by node, and arrays that are no forest."""

from __future__ import annotations

import re
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.tree import ExtraTreeClassifier

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.features import forest as forests
from distsms.features import growing
from distsms.features.arrays import ArrayRows
from distsms.features.feature_map import FeatureMap
from distsms.features.forest import MOST_LEAVES, Forest
from distsms.features.rows import Rows
from distsms.matrix import local
from distsms.matrix.coded import to_csr
from distsms.shards.row_metadata import some
from tests.support.problems import data, share

ALONE = Communicator()


def grow(rows, *options, **more):
    """Grow trees on rows as `sample` returns them: in float32, and none of weight 0."""
    there = slice(None) if rows.weights is None else rows.weights != 0
    sampled = Rows(growing.singles(rows.X[there]), rows.labels[there], some(rows.weights, there))
    return growing.grow(sampled, *options, **more)


def table(n=300, p=6, seed=0):
    """Rows with a constant column, a column of few values, zeros, and values of any size."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * 10.0 ** rng.integers(-30, 30, p)
    X[:, 0], X[:, 1] = 3.0, rng.integers(0, 3, n)
    X[rng.random((n, p)) < 0.3] = 0.0
    y = np.where(X[:, -1] * rng.random(n) > 0.1 * np.abs(X[:, -1]).mean(), 1, -1).astype(np.int8)
    y[:2] = 1, -1
    return X, y


def walk(forest, X):
    """The leaves, node by node, in Python, from the arrays alone."""
    column, threshold, start, _ = forest.arrays().values()

    def tree(i):
        """Return a nested tuple and the node behind it; leaves are numbers of nodes."""
        if column[i] < 0:
            return i, i + 1
        left, middle = tree(i + 1)
        right, end = tree(middle)
        return (column[i], threshold[i], left, right), end

    found = np.empty((len(X), forest.n_trees), int)
    for t in range(forest.n_trees):
        root, end = tree(int(start[t]))
        assert end == start[t + 1]
        numbers = {i: k for k, i in enumerate(i for i in range(start[t], end) if column[i] < 0)}
        for r, row in enumerate(np.asarray(X, np.float32)):
            node = root
            while isinstance(node, tuple):
                node = node[2] if row[node[0]] <= node[1] else node[3]
            found[r, t] = numbers[node]
    return found


def same(a, b):
    return all(np.array_equal(x, y) and x.dtype == y.dtype for x, y in zip(a.values(), b.values(), strict=True))


def beside_thresholds(forest, n=400, seed=1):
    """Rows with values on thresholds, and one unit in the last place of float32 or float64 beside them."""
    rng = np.random.default_rng(seed)
    column, threshold, _, _ = forest.arrays().values()
    X = np.zeros((n, forest.columns))
    for j in forest.used:
        own = rng.choice(threshold[column == j], n)
        ways = [own, np.nextafter(own, np.float32(np.inf)), np.nextafter(own, np.float32(-np.inf))]
        ways = [way.astype(float) for way in ways]
        ways += [np.nextafter(ways[0], np.inf), np.nextafter(ways[0], -np.inf), (ways[0] + ways[1]) / 2]
        X[:, j] = np.choose(rng.integers(0, len(ways), n), ways)
    return X


@pytest.mark.serial
@pytest.mark.parametrize("min_leaf", [1, 3, 40])
def test_the_trees_and_the_leaves_are_those_of_scikit_learn(min_leaf):
    X, y = table()
    forest = grow(Rows(X, y), ALONE, 5, min_leaf, seed=7)
    rows = np.vstack([X, beside_thresholds(forest)])
    importance = []
    for t in range(5):
        state = int(np.random.SeedSequence((7, t)).generate_state(1)[0])
        tree = ExtraTreeClassifier(max_features=None, min_samples_leaf=min_leaf, random_state=state)
        tree.fit(X.astype(np.float32), y)
        numbers = np.cumsum(tree.tree_.children_left < 0) - 1
        assert forest.sizes[t] == tree.get_n_leaves()
        np.testing.assert_array_equal(forest.codes(rows)[:, t], numbers[tree.apply(rows.astype(np.float32))])
        importance.append(tree.feature_importances_)
    np.testing.assert_allclose(forest.importance, np.mean(importance, axis=0), atol=1e-12)
    np.testing.assert_array_equal(forest.codes(rows), walk(forest, rows))


@pytest.mark.serial
@pytest.mark.parametrize("threads, small", [("1", -1), ("3", -1), ("3", 2**19)])
def test_every_kind_of_rows_reaches_the_same_leaves(monkeypatch, threads, small):
    """Up to `small` values, NumPy finds the leaves."""
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    X, y = table(2000)
    forest = grow(Rows(X, y), ALONE, 3)
    rows = np.vstack([X, beside_thresholds(forest)])
    wanted = forest.codes(rows)
    monkeypatch.setattr(local, "SMALL", small)
    assert wanted.dtype == forest.code_map.dtype and wanted.shape == (2400, 3)
    twice = sparse.csr_matrix((np.repeat(rows.ravel() / 2, 2), np.repeat(np.tile(np.arange(6), 2400), 2),
                               np.arange(2401) * 12), rows.shape)  # fmt: skip
    kinds = [rows.astype(np.float32), np.asfortranarray(rows), sparse.csr_matrix(rows), sparse.csc_matrix(rows),
             sparse.csr_matrix(rows.astype(np.float32)), twice]  # fmt: skip
    for kind in kinds:
        np.testing.assert_array_equal(forest.codes(kind), wanted)
    assert not twice.has_canonical_format  # the caller's matrix is as it was
    np.testing.assert_array_equal(forest.codes(rows[:0]), wanted[:0])
    whole = np.arange(12).reshape(2, 6)
    np.testing.assert_array_equal(forest.codes(whole), forest.codes(whole.astype(float)))


@pytest.mark.serial
def test_codes_stand_for_leaves_and_have_names():
    X, y = table()
    forest = grow(Rows(X, y), ALONE, 4)
    codes = forest.codes(X)
    assert codes.dtype == forest.code_map.dtype == np.uint8
    explicit = to_csr(forest.code_map, codes)
    assert (explicit.sum(axis=1) == 4).all() and explicit.shape[1] == sum(forest.sizes)
    for j in (0, forest.sizes[0], sum(forest.sizes) - 1):
        t, leaf = map(int, re.fullmatch(r"tree (\d+), leaf (\d+)", forest.column_name(j)).groups())
        here = explicit[:, [j]].toarray().ravel() > 0
        np.testing.assert_array_equal(here, codes[:, t] == leaf)
        on_path = np.ones(len(X), bool)
        for column, threshold, left in forest.path(t, leaf):
            on_path &= (X[:, column].astype(np.float32) <= np.float32(threshold)) == left
        np.testing.assert_array_equal(here, on_path)


def test_the_forest_is_the_same_on_any_number_of_ranks(comm):
    for sparse_rows, weights in ((True, None), (False, np.random.default_rng(0).integers(0, 4, 200) / 1.5)):
        X, y = data(p=30, seed=1)
        X = X.multiply(np.arange(30) < 3).tocsr() if sparse_rows else X.toarray()
        own = share(comm, len(y))
        of_rank = Rows(X[own], y[own], None if weights is None else weights[own])
        seen, observer = [], growing.FeaturesObserver()
        observer.progress = lambda task, unit, done, of, seen=seen: seen.append(done)
        forest = grow(of_rank, comm, 7, 2, observer=observer)
        assert same(forest.arrays(), grow(Rows(X, y, weights), ALONE, 7, 2).arrays())
        assert seen == list(range(len(range(comm.rank, 7, comm.size)) + 1))
        other = grow(of_rank, comm, 7, 2, seed=1)
        assert not same(forest.arrays(), other.arrays())


@pytest.mark.serial
def test_weights_are_those_of_scikit_learn_and_rows_of_weight_0_do_not_count():
    X, y = table()
    weights = np.random.default_rng(0).integers(0, 3, len(y)) * 0.7
    forest = grow(Rows(X, y, weights), ALONE, 1)
    state = int(np.random.SeedSequence((0, 0)).generate_state(1)[0])
    tree = ExtraTreeClassifier(max_features=None, min_samples_leaf=3, random_state=state)
    tree.fit(X[weights > 0].astype(np.float32), y[weights > 0], weights[weights > 0])
    numbers = np.cumsum(tree.tree_.children_left < 0) - 1
    np.testing.assert_array_equal(forest.codes(X)[:, 0], numbers[tree.apply(X.astype(np.float32))])


def sampled(X, y, weights, limit, cuts, seed=0):
    """The sample of a rank that reads rows in parts."""
    rows = ArrayRows(X, y, weights)
    parts = [Rows(X[a:b], y[a:b], some(weights, slice(a, b)), a) for a, b in cuts]
    return growing.sample(rows, parts, growing.sample_shares(int((y > 0).sum()), int((y < 0).sum()), limit), seed)


def test_the_sample_does_not_depend_on_ranks_or_parts(comm):
    X, y = data(2000, positive=0.05)
    weights = np.random.default_rng(0).integers(0, 2, 2000).astype(float)
    of_rank = share(comm, 2000)
    middle = (of_rank.start + of_rank.stop) // 2
    own = sampled(X, y, weights, 600, [(of_rank.start, middle), (middle, of_rank.stop)])
    whole, alone = (growing.whole(*given) for given in
                    ((own, comm), (sampled(X, y, weights, 600, [(0, 2000)]), ALONE)))  # fmt: skip
    np.testing.assert_array_equal(whole.labels, alone.labels)
    np.testing.assert_array_equal(whole.X, alone.X)
    assert len(whole.labels) < 600 and (whole.weights == 1).all()


@pytest.mark.serial
def test_a_sample_keeps_the_rare_class():
    X, y = data(20_000, 3, positive=0.01)
    found = sampled(X, y, None, 5000, [(0, 20_000)])
    assert (found.labels > 0).sum() == (y > 0).sum() and 4000 < len(found.labels) <= 5000
    for positive, negative in ((10**7, 10), (10, 10**7), (10**7, 10**7), (10, 10), (0, 5)):
        shares = growing.sample_shares(positive, negative, 10**6)
        assert positive * shares.positive + negative * shares.negative <= 10**6
        assert all(0 <= share <= 1 for share in shares)
        assert (min(shares) == 1) == (positive + negative <= 10**6)
    assert sampled(X, y, None, 30_000, [(0, 20_000)]).X.shape == X.shape
    assert sampled(X, y, None, 5000, [(0, 20_000)], 1).X.nnz != found.X.nnz


@pytest.mark.serial
@pytest.mark.parametrize("small", [-1, 2**19])
def test_trees_of_few_rows_constant_columns_and_huge_values(monkeypatch, small):
    monkeypatch.setattr(local, "SMALL", small)
    y = np.array([1, -1, 1, -1, -1], np.int8)
    forest = grow(Rows(np.ones((5, 2)), y), ALONE, 3)
    assert forest.sizes == (1, 1, 1) and not forest.importance.any() and len(forest.used) == 0
    assert not forest.codes(np.full((2, 2), np.nan)).any()  # no tree looks at a value
    huge = np.array([[-1e300], [1e300], [-1e299], [1e299], [5.0]])
    forest = grow(Rows(huge, y), ALONE, 3, 1)
    np.testing.assert_array_equal(forest.codes(huge), walk(forest, np.clip(huge, -3e38, 3e38)))
    assert forest.codes(huge).max() > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forest._leaves_of_few(huge, np.empty((5, 3), np.uint16))


@pytest.mark.serial
def test_too_many_leaves_are_merged(monkeypatch):
    X, y = table(2000)
    y = np.where(np.random.default_rng(0).random(2000) < 0.5, 1, -1).astype(np.int8)
    free = grow(Rows(X, y), ALONE, 2, 1)
    monkeypatch.setattr(growing, "MOST_LEAVES", 50)
    bound = grow(Rows(X, y), ALONE, 2, 1)
    assert min(free.sizes) > 100 and 25 < max(bound.sizes) <= 50
    for t in range(2):  # the small trees divide the rows in the same way, but less
        pairs = np.unique(np.column_stack([forest.codes(X)[:, t] for forest in (free, bound)]), axis=0)
        assert len(pairs) == len(np.unique(pairs[:, 0]))


@pytest.mark.serial
def test_what_trees_cannot_grow_on_is_refused_in_words(monkeypatch):
    X, y = table()
    wrong = X.copy()
    wrong[7, 2] = np.nan
    for rows, message in (
        (Rows(X, np.ones(300, np.int8)), "none is negative"),
        (Rows(X[y < 0], y[y < 0]), "none is positive"),
        (Rows(X[:0], y[:0]), "of 0 rows, none is positive"),
        (Rows(X, y, (y > 0) * 1.0), "none is negative"),
        (Rows(wrong, y), "missing"),
        (Rows(sparse.csr_matrix(wrong), y), "missing"),
    ):
        with pytest.raises(InputError, match=message):
            grow(rows, ALONE, 2)
    for options in ({"n_trees": 0}, {"min_leaf": 0}, {"seed": -1}):
        with pytest.raises(InputError, match="a forest has"):
            growing.check_growing(**{"n_trees": 2} | options)
    forest = grow(Rows(X, y), ALONE, 2)
    for rows in (wrong, sparse.csr_matrix(wrong)):
        with pytest.raises(InputError, match="a value is NaN"):
            FeatureMap(6, forest=forest).codes(rows)
    monkeypatch.setitem(sys.modules, "sklearn.tree", None)
    with pytest.raises(InputError, match="pip install"):
        growing.check_growing(2)
    assert forest.codes(X).any()


def changes(arrays, name, index, value):
    found = {key: array.copy() for key, array in arrays.items()}
    found[name][index] = value
    return found


@pytest.mark.serial
def test_a_changed_forest_is_refused_in_words():
    X, y = table()
    arrays = grow(Rows(X, y), ALONE, 3).arrays()
    assert same(Forest(**arrays).arrays(), arrays)
    inner, leaf = int(np.flatnonzero(arrays["column"] >= 0)[2]), int(np.flatnonzero(arrays["column"] < 0)[2])
    for changed, message in (
        (changes(arrays, "column", inner, 6), "one of the 6 columns"),
        (changes(arrays, "column", inner, -2), "one of the 6 columns"),
        (changes(arrays, "column", inner, -1), "tree 0 do not form"),
        (changes(arrays, "column", leaf, 1), "tree 0 do not form"),
        (changes(arrays, "start", 1, arrays["start"][1] + 1), "tree 0 do not form"),
        (changes(arrays, "start", 1, arrays["start"][2]), "follow one another"),
        (changes(arrays, "start", 0, 1), "follow one another"),
        (changes(arrays, "start", -1, 10**9), "follow one another"),
        (arrays | {"column": arrays["column"][:, None]}, "are vectors"),
        (arrays | {"column": arrays["column"][:0]}, "needs columns"),
    ):
        with pytest.raises(ValueError, match=message):
            Forest(**changed)


@pytest.mark.serial
def test_a_tree_with_too_many_leaves_is_refused():
    n = MOST_LEAVES + 1
    column = np.array([0, -1] * (n - 1) + [-1])  # a chain: each left child is a leaf
    threshold = np.where(column < 0, 0.0, np.repeat(np.arange(n), 2)[: len(column)])
    with pytest.raises(ValueError, match="tree 0 has 65536 leaves"):
        Forest(column, threshold, [0, len(column)], [1.0])
    forest = Forest(column[2:], threshold[2:], [0, len(column) - 2], [1.0])
    assert forest.sizes == (MOST_LEAVES,) and forest.code_map.dtype == np.uint16
    np.testing.assert_array_equal(forest.codes(np.array([[-5.0], [7.0], [1e9]])).ravel(), [0, 6, MOST_LEAVES - 1])


@pytest.mark.serial
@given(st.data())
def test_whatever_the_arrays_hold_they_are_a_forest_or_refused(draws):
    def some(kind, size):
        return draws.draw(st.lists(kind, min_size=0, max_size=size))

    column = some(st.integers(-1, 3), 12)
    cuts = sorted(some(st.integers(0, len(column)), 3))
    threshold = [0.0 if j < 0 else draws.draw(st.floats(width=32)) for j in column]
    try:
        forest = Forest(**{"column": np.array(column, int), "threshold": threshold, "start": [0, *cuts, len(column)],
                            "importance": [0.5] * 3})  # fmt: skip
    except ValueError:
        return
    X = np.array(some(st.tuples(*[st.floats(allow_nan=False)] * 3), 5)).reshape(-1, 3)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(forest.codes(X), walk(forest, X))
        np.testing.assert_array_equal(forest.codes(sparse.csr_matrix(X)), walk(forest, X))


@pytest.mark.serial
def test_wide_rows_need_little_memory_and_blocks_do_not_change_leaves(monkeypatch):
    X, y = table(500)
    wide = sparse.hstack([sparse.csr_matrix((500, 100_000)), sparse.csr_matrix(X)], "csr")
    forest = grow(Rows(wide, y), ALONE, 2)
    assert forest.columns == 100_006 and forest.used.min() >= 100_000
    wanted = walk(forest, wide[:20].toarray())
    np.testing.assert_array_equal(forest.codes(wide)[:20], wanted)
    monkeypatch.setattr(forests, "_BLOCK", 1)
    np.testing.assert_array_equal(forest.codes(wide)[:20], wanted)
