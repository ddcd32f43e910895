"""Moments of groups of rows are those that NumPy computes, however the rows are stored, divided and merged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.matrix import local
from distsms.matrix.arrays import as_features
from distsms.matrix.code_maps import Categories
from distsms.matrix.coded import CodedRows
from distsms.matrix.local import SparseRows
from distsms.matrix.moments import Moments
from distsms.matrix.normalization import Normalization
from tests.support.problems import share

KINDS = {
    "dense": lambda X: as_features(X.toarray()),
    "float32": lambda X: as_features(X.toarray().astype(np.float32)),
    "sparse": as_features,
    "sorted": lambda X: SparseRows(
        X.data.copy(), X.indices.astype(np.uint16), np.diff(X.indptr), X.shape[1], sort=True
    ),
    "pattern": lambda X: local.SparseRows(None, X.indices.astype(np.uint16), np.diff(X.indptr), X.shape[1], sort=True),
}


def rows_and_groups(n=150, p=7, k=3, seed=0):
    rng = np.random.default_rng(seed)
    X = sparse.random(n, p, 0.4, format="csr", random_state=seed, data_rvs=lambda m: rng.integers(-4, 9, m) / 2)
    return X, rng.integers(-1, k, n).astype(np.int16), rng.integers(0, 4, n) / 2


def expected(rows, a):
    """Return mass, mean and scatter of some rows (m, p) by their definitions."""
    if not a.sum():
        return 0.0, np.zeros(rows.shape[1]), np.zeros((rows.shape[1], rows.shape[1]))
    mean = np.average(rows, axis=0, weights=a)
    return a.sum(), mean, sum(w * np.outer(row - mean, row - mean) for w, row in zip(a, rows, strict=True))


def check(found, rows, group, a, tolerance=1e-13):
    for k in range(len(found.count)):
        assert found.count[k] == np.sum(group == k)
        for one, other in zip(
            (found.mass[k], found.mean[k], found.scatter[k]), expected(rows[group == k], a[group == k]), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=tolerance * (1 + np.abs(rows).max() ** 2) * len(a))


@pytest.mark.serial
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_those_of_numpy_for_all_kinds_of_rows(kind, monkeypatch):
    monkeypatch.setattr(local, "PART_ENTRIES", 64)
    X, group, a = rows_and_groups()
    if kind == "pattern":
        X.data[:] = 1
    raw, features = X.toarray(), KINDS[kind](X)
    check(features.moments(group, 4), raw, group, np.ones(len(a)))  # group 3 has no rows
    check(features.moments(group, 3, a), raw, group, a)
    features.normalize(Normalization("standard", np.linspace(0.5, 2, 7)))
    check(features.moments(group, 3, a), raw * np.linspace(0.5, 2, 7), group, a)
    again = KINDS[kind](X)
    again.normalize(Normalization("l2"))
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    check(again.moments(group, 3, a), raw / np.where(lengths > 0, lengths, 1), group, a)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_ranks_do_not_matter(kind, comm):
    """The ranks have different numbers of rows, and the last one has none if there are three or more."""
    X, group, a = rows_and_groups(n=90)
    group[:30] = 0  # so that some ranks have rows of one class only
    mine = share(comm, 90)
    found = KINDS[kind](X[mine]).moments(group[mine], 3, a[mine]).over_ranks(comm)
    check(found, X.toarray(), group, a)


@pytest.mark.serial
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    offset=st.sampled_from([0.0, 1e3, 1e8]),
    seed=st.integers(0, 99),
)
def test_merging_gives_the_moments_of_all_rows(sizes, offset, seed):
    """Large offsets do not spoil the scatter of dense rows: they are centred before they are squared."""
    rng = np.random.default_rng(seed)
    rows = offset + rng.normal(size=(sum(sizes), 3))
    batch = np.repeat(np.arange(len(sizes)), sizes).astype(np.int16)
    whole = as_features(rows).moments(batch, len(sizes)).union(range(len(sizes)))
    added = Moments.empty(1, 3)
    for k in range(len(sizes)):
        added.include(0, as_features(rows[batch == k]).moments(np.zeros(sizes[k], np.int16), 1))
    for found in (whole, added):
        assert found.count[0] == found.mass[0] == len(rows)
        _, mean, scatter = expected(rows, np.ones(len(rows)))
        np.testing.assert_allclose(found.mean[0], mean, atol=1e-15 * (1 + offset) * len(rows))
        np.testing.assert_allclose(found.scatter[0], scatter, atol=1e-14 * (1 + offset) * (1 + len(rows)))


@pytest.mark.serial
def test_codes_have_no_moments():
    rows = CodedRows(Categories((2,)), np.zeros(3, np.uint8), [0, 3])
    with pytest.raises(NotImplementedError):
        rows.moments(np.zeros(3, np.int16), 1)
