"""Equal rows: a hash finds them, all ranks count them, and a warning is given where it matters."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base import hashing
from distsms.shards import row_statistics
from distsms.shards.coded_columns import NOT_CODED
from distsms.shards.from_arrays import write_data
from distsms.shards.row_statistics import describe, doubles_warning
from distsms.workflow import folds
from tests.support.conversion import convert
from tests.support.files import on_root
from tests.support.problems import share

VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 3e30, 1e-30])
ROWS = st.lists(st.tuples(*[VALUES] * 3), min_size=1, max_size=30)


@pytest.mark.serial
@given(ROWS)
def test_hashes_are_equal_where_rows_are(rows):
    dense = np.array(rows)
    stored = sparse.csr_matrix(np.ones_like(dense))  # zeros are stored there, too
    stored.data[:] = dense.ravel()
    rounded = dense.astype(np.float32).astype(float)
    found = hashing.hash_rows(dense)
    np.testing.assert_array_equal(hashing.hash_rows(sparse.csr_matrix(dense)), found)
    np.testing.assert_array_equal(hashing.hash_rows(stored), found)
    np.testing.assert_array_equal(hashing.hash_rows(dense, "float32"), hashing.hash_rows(rounded))
    equal = (dense[:, None] == dense[None]).all(axis=2)
    np.testing.assert_array_equal(found[:, None] == found[None], equal)


@pytest.mark.serial
@given(ROWS)
def test_few_rows_have_the_same_hashes_as_many(rows):
    hashes = []
    for few in (-1, 2**20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hashing, "FEW", few)
            hashes.append(hashing.hash_rows(np.array(rows)))
            times = Counter(hashes[-1].tolist())
            shared = hashing.share_places(hashes[-1])
        assert shared[[times[key] > 1 for key in hashes[-1].tolist()]].all()
    assert hashes[0].tolist() == hashes[1].tolist()


@pytest.mark.serial
def test_columns_and_values_in_any_order_and_type():
    a = sparse.csr_matrix((np.ones(3), np.array([5, 2, 2**30], np.int32), [0, 3]), (1, 2**31 - 1))
    b = sparse.csr_matrix((np.ones(3), np.array([2, 5, 2**30], np.int64), [0, 3]), (1, 2**40))
    assert hashing.hash_rows(a) == hashing.hash_rows(b) != hashing.hash_rows(2 * b)
    assert hashing.hash_rows(sparse.csr_matrix((2, 5)))[0] == hashing.hash_rows(np.zeros((1, 3)))[0]
    rng = np.random.default_rng(0)
    many = (rng.random((100_000, 3)) * 50).astype(int)
    assert len(np.unique(hashing.hash_rows(many))) == len(np.unique(many, axis=0))


@given(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from([1, -1])), max_size=60),
    st.sampled_from([1, 4, 2**21]),
    st.sampled_from([2**58 + 1, 2**60]),
)
def test_census_by_brute_force(comm, rows, at_once, step):
    """Keys that differ in their low bits, and keys that do not."""
    keys = np.array([key for key, _ in rows], np.uint64) * np.uint64(step)
    labels = np.array([label for _, label in rows], np.int8)
    mine, before = share(comm, len(rows)), row_statistics.AT_ONCE
    row_statistics.AT_ONCE = at_once
    try:
        found = row_statistics.count_groups(keys[mine], labels[mine], comm)
    finally:
        row_statistics.AT_ONCE = before
    sizes, classes = Counter(keys.tolist()), defaultdict(set)
    for key, label in zip(keys.tolist(), labels.tolist(), strict=True):
        classes[key].add(label)
    assert found.different == len(sizes) and found.largest == max(sizes.values(), default=0)
    assert found.rows == sum(size for size in sizes.values() if size > 1)
    assert found.contradicting == sum(sizes[key] for key, both in classes.items() if len(both) == 2)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n_shards", [1, 5])
def test_shard_counts_them(comm, shared_dir, dtype, n_shards):
    """Rows are compared as they are stored: some differ only in float64. The files give the same hashes."""
    rng = np.random.default_rng(3)
    X = rng.integers(0, 3, (60, 3)) + 1e-12 * rng.integers(0, 2, (60, 3))
    y = rng.integers(0, 2, 60)

    def write():
        rows = zip(y, X.tolist(), strict=True)
        text = "".join(f"{k} " + " ".join(f"{j + 1}:{v!r}" for j, v in enumerate(row)) + "\n" for k, row in rows)
        (shared_dir / "a.svm").write_text(text)

    on_root(comm, write)
    manifest = convert([shared_dir / "a.svm"], shared_dir / "d", comm, n_shards, dtype=dtype)
    _, inverse, counts = np.unique(X.astype(dtype), axis=0, return_inverse=True, return_counts=True)
    both = [len(set(y[inverse.ravel() == k])) == 2 for k in range(len(counts))]
    wanted = {"different": len(counts), "rows": counts[counts > 1].sum(), "largest": counts.max()}
    assert manifest.doubles == {**wanted, "contradicting": counts[both].sum()}
    hashes = folds.read_fold_keys(manifest, "doubles", 0, 60)
    np.testing.assert_array_equal(hashes, hashing.hash_rows(X, dtype))
    if comm.is_root:
        dense = write_data(shared_dir / "dense", X, 2 * y - 1, 3, dtype=dtype)
        np.testing.assert_array_equal(folds.read_fold_keys(dense, "doubles", 7, 50), hashes[7:50])
        assert dense.doubles == manifest.doubles


@pytest.mark.serial
def test_a_warning_where_doubles_lead_astray():
    """Many rows that each occur a few times give a warning; a few equal rows, or few different rows, do not."""
    with_doubles = partial(SimpleNamespace, n=10_000, split=None, coded=NOT_CODED)
    assert "7.0 % of the rows" in doubles_warning(with_doubles(doubles={"rows": 700, "largest": 99}))
    for rows, largest in ((500, 99), (700, 100), (0, 1)):
        assert not doubles_warning(with_doubles(doubles={"rows": rows, "largest": largest}))
    assert not doubles_warning(with_doubles(doubles=None))
    assert not doubles_warning(with_doubles(doubles={"rows": 700, "largest": 99}), "doubles")
    with_doubles = partial(with_doubles, group=None, time=None, weight=None, unknown=None)
    several = {"rows": 700, "largest": 99, "different": 9400, "contradicting": 12}
    sentence = describe(with_doubles(doubles=several))["repeated"]
    assert "7.0 %" in sentence and "12 rows have both labels" in sentence
    none = {"rows": 0, "largest": 1, "different": 5, "contradicting": 0}
    assert "no row" in describe(with_doubles(doubles=none))["repeated"]
