"""Shards: what is written comes back, every row once, on any number of ranks; broken files are refused by name."""

import math
import pickle
import shutil
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base.errors import InputError
from distsms.ingest.staging import stacked
from distsms.matrix.local import DenseRows, SparseRows
from distsms.shards import dataset
from distsms.shards.dataset import MemoryBudget, load, read_manifest
from distsms.shards.from_arrays import write_data
from distsms.shards.manifest import COMPRESSIONS, prepare, publish, verify
from distsms.shards.writer import ShardForm, finish_shard, stage_shard
from tests.support.sharded import ALONE, as_array, draw, load_all


def logical_bytes(directory):
    """Return the bytes of all datasets of all shards."""
    total = 0

    def add(_, item):
        nonlocal total
        stored = isinstance(item, h5py.Dataset) and not item.name.startswith("/checksums/")
        total += item.size * item.dtype.itemsize if stored else 0

    for path in sorted(Path(directory).glob("*.h5")):
        with h5py.File(path, "r") as file:
            file.visititems(add)
    return total


# ------------------------------------------------------------------------------------------------------ round trips


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["sparse", "pattern", "dense"])
@pytest.mark.parametrize("n_shards", [1, 3])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_round_trip(own_dir, layout, dtype, n_shards, compression):
    X, y = draw(ones=layout == "pattern")
    given_rows = X.toarray() if layout == "dense" else X
    manifest = write_data(own_dir, given_rows, y, n_shards, dtype=dtype, weights=y > 0, compression=compression)
    block = load(own_dir, ALONE)
    assert manifest.compression == compression
    assert isinstance(block.features, DenseRows if layout == "dense" else SparseRows)
    assert (block.features.arrays[-1] is None) == (layout == "pattern")
    np.testing.assert_array_equal(as_array(block.features), X.toarray().astype(dtype))
    np.testing.assert_array_equal(block.labels, y)
    np.testing.assert_array_equal(block.weights, y > 0)
    assert block.labels.dtype == np.int8 and block.weights.dtype == np.float64
    assert (block.n, block.p, block.first_row) == (40, 12, 0)
    assert manifest == read_manifest(own_dir)
    assert (manifest.n_pos, manifest.n_neg) == (np.sum(y > 0), np.sum(y < 0))
    assert manifest.nnz == (480 if layout == "dense" else X.nnz)
    assert verify(own_dir) == []


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_rows_in_pieces(own_dir, dtype, compression):
    """Consecutive pieces give the shard of all rows; they may be empty, narrow, or have indices of another type."""
    X, y = draw()
    pieces = [X[:3], X[:0, :2], X[3:20], X[20:]]
    pieces[2].indices = pieces[2].indices.astype(np.int64)
    prepare(own_dir)
    staged = stage_shard(own_dir, 0, stacked(pieces), ShardForm(dtype, compression))
    publish(own_dir, [finish_shard(staged, y, 12)], label_map={"+1": 1, "-1": -1}, zero_based=True)
    np.testing.assert_array_equal(as_array(load(own_dir, ALONE).features), X.toarray().astype(dtype))
    assert read_manifest(own_dir).nnz == X.nnz and verify(own_dir) == []


def write_mixed(directory):
    """Write four shards: one with values, one with ones only, one without rows, one with a single class."""
    values, y = draw(10, 12, seed=1)
    ones, _ = draw(10, 12, seed=2, ones=True)
    parts = [(values, y), (ones, y), (values[:0], y[:0]), (values[:4], np.ones(4))]
    prepare(directory)
    staged = [stage_shard(directory, k, X) for k, (X, _) in zip((3, 100000, 0, 2), parts, strict=True)]
    entries = [finish_shard(one, y, 12) for one, (_, y) in zip(staged, parts, strict=True)]
    publish(directory, entries, label_map={"+1": 1.0, "-1": [0.0, 2.0]}, zero_based=False)
    return sparse.vstack([X for X, _ in parts]).toarray(), np.concatenate([y for _, y in parts])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 24])
def test_mixed_empty_and_one_class_shards(own_dir, size):
    X, y = write_mixed(own_dir)
    assert [shard.values for shard in read_manifest(own_dir).shards] == [True, False, False, True]
    blocks = load_all(own_dir, size)
    np.testing.assert_array_equal(np.concatenate([as_array(block.features) for block in blocks]), X)
    np.testing.assert_array_equal(np.concatenate([block.labels for block in blocks]), y)


@given(
    st.integers(1, 60),
    st.integers(1, 6),
    st.integers(1, 7),
    st.sampled_from([0.0, 0.05, 0.4]),
    st.booleans(),
    st.integers(0, 99),
)
def test_any_shards_on_any_ranks(n, n_shards, size, density, dense, seed):
    heavy = np.random.default_rng(seed).choice(n, size=n // 9, replace=False)
    X, y = draw(n, 15, seed, density, heavy=heavy)
    with tempfile.TemporaryDirectory() as directory:
        write_data(directory, X.toarray() if dense else X, y, n_shards, weights=np.arange(n))
        blocks = load_all(directory, size)
        total = logical_bytes(directory)
    np.testing.assert_array_equal(np.concatenate([as_array(block.features) for block in blocks]), X.toarray())
    np.testing.assert_array_equal(np.concatenate([block.labels for block in blocks]), y)
    np.testing.assert_array_equal(np.concatenate([block.weights for block in blocks]), np.arange(n))
    counts = [len(block.labels) for block in blocks]
    assert [block.first_row for block in blocks] == list(np.cumsum([0, *counts[:-1]]))
    check_balance(blocks, X.shape[1] + 1 if dense else 1 + np.diff(X.indptr).max(), size)
    # Beyond the rows: one pointer more per piece, and the search for two boundaries.
    extra = 8 * (n_shards + 1 + 2 * (2 + math.log2(n)))
    assert total - 8 * n_shards <= sum(block.bytes_read for block in blocks) <= total + size * extra
    for block in blocks:
        row_bytes = 12 * block.features.nnz + 17 * len(block.labels)
        assert block.bytes_read <= row_bytes + extra


def check_balance(blocks, heaviest, size):
    weights = [block.features.nnz + len(block.labels) for block in blocks]
    assert max(weights) <= sum(weights) / size + heaviest


@pytest.mark.parametrize("n_shards", [1, 3, 41])
def test_forty_rows_on_32_ranks(own_dir, n_shards):
    X, y = draw(40)
    write_data(own_dir, X, y, n_shards)
    blocks = load_all(own_dir, 32)
    assert sum(len(block.labels) for block in blocks) == 40
    np.testing.assert_array_equal(np.concatenate([as_array(block.features) for block in blocks]), X.toarray())
    check_balance(blocks, 13, 32)


def test_more_ranks_than_rows(own_dir):
    X, y = draw(3)
    write_data(own_dir, X, y, 2)
    blocks = load_all(own_dir, 16)
    assert sum(len(block.labels) for block in blocks) == 3
    assert all(block.features.shape == (len(block.labels), 12) for block in blocks)


@pytest.mark.parametrize("layout", ["csr", "dense"])
@pytest.mark.parametrize("n_shards", [1, 4])
def test_boundaries_are_where_they_are_said_to_be(own_dir, layout, n_shards):
    """Rank r of P starts at the first row with r W / P or more before it; W counts rows and entries."""
    X, y = draw(40, 5, density=0.4, heavy=[3, 4, 30])
    write_data(own_dir, X if layout == "csr" else X.toarray(), y, n_shards)
    before = np.cumsum([0, *(np.diff(X.indptr) + 1 if layout == "csr" else np.full(40, 6))])
    for size in (1, 2, 3, 7, 31):
        starts = [int(np.argmax(before * size >= rank * before[-1])) for rank in range(size)]
        assert [block.first_row for block in load_all(own_dir, size)] == starts


def test_one_giant_row(own_dir):
    X, y = draw(30, 500, density=0.0, heavy=[7])
    write_data(own_dir, X, y)
    blocks = load_all(own_dir, 4)
    assert [len(block.labels) for block in blocks] == [8, 0, 0, 22]


def test_on_the_ranks_of_this_job(comm, shared_dir):
    X, y = draw(50, 9, seed=4)
    if comm.is_root:
        write_data(shared_dir, X, y, 3)
    comm.barrier()
    block = load(shared_dir, comm)
    np.testing.assert_array_equal(np.concatenate(comm.allgather(as_array(block.features))), X.toarray())
    np.testing.assert_array_equal(np.concatenate(comm.allgather(block.labels)), y)
    c = np.arange(50.0)[block.first_row : block.first_row + len(block.labels)]
    np.testing.assert_allclose(comm.sum(block.features.transposed_times(c)), X.T @ np.arange(50.0), atol=1e-12)


@pytest.mark.parametrize("layout", ["csr", "dense"])
def test_temporary_shards_are_removed_as_they_are_read(comm, shared_dir, layout, monkeypatch):
    X, y = draw(60, 9, seed=4)
    if comm.is_root:
        write_data(shared_dir, X if layout == "csr" else X.toarray(), y, 6, groups=np.arange(60, dtype=np.uint64) // 7)
    comm.barrier()
    manifest, kept = read_manifest(shared_dir), load(shared_dir, comm, with_groups=True)
    with monkeypatch.context() as patched:
        patched.setattr(dataset, "held_bytes", lambda *args: 2**30)
        streamed = load(shared_dir, comm, budget=MemoryBudget(2**29), temporary=True)
    np.testing.assert_array_equal(as_array(streamed.features), as_array(kept.features))
    comm.barrier()
    assert len(list(shared_dir.glob("*.h5"))) == 6
    comm.barrier()
    block = load(shared_dir, comm, with_groups=True, temporary=True)
    for found, wanted in ((block.labels, kept.labels), (block.groups, kept.groups)):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(as_array(block.features), as_array(kept.features))
    starts = [first for first in comm.allgather(block.first_row) if 0 < first < 60]
    cut = [
        k for k, shard in enumerate(manifest.shards) if any(10 * k < first < 10 * k + shard.rows for first in starts)
    ]
    assert sorted(path.name for path in shared_dir.glob("*.h5")) == [manifest.shards[k].file for k in cut]
    comm.barrier()
    with pytest.raises(InputError, match=r"this shard is missing"):
        load(shared_dir, comm)


def test_every_rank_writes_a_shard(comm, shared_dir):
    """Write as the converter does: shards are staged, p is agreed on, shards are finished, the root publishes."""
    X, y = draw(6, 5 + comm.rank, seed=comm.rank)
    if comm.is_root:
        prepare(shared_dir)
    comm.barrier()
    staged = stage_shard(shared_dir, comm.rank, X)
    p = max(comm.allgather(staged.columns))
    entries = comm.allgather(finish_shard(staged, y, p))
    if comm.is_root:
        publish(shared_dir, entries, label_map={"+1": "yes", "-1": "no"}, zero_based=True)
    comm.barrier()
    block = load(shared_dir, comm)
    assert block.n == 6 * comm.size and block.p == p
    assert sum(comm.allgather(len(block.labels))) == block.n
    np.testing.assert_array_equal(np.concatenate(comm.allgather(block.labels))[6 * comm.rank :][:6], y)


# --------------------------------------------------------------------------------------------------------- the files


def test_a_shard_is_three_lines_of_scipy(own_dir):
    X, y = draw()
    write_data(own_dir, X, y)
    with h5py.File(own_dir / "shard-00000.h5") as file:
        x = file["X"]
        again = sparse.csr_matrix((x["data"][:], x["indices"][:], x["indptr"][:]), shape=x.attrs["shape"])
        assert (again != X).nnz == 0
        assert x.attrs["encoding-type"] == "csr_matrix" and x.attrs["encoding-version"] == "0.1.0"
        assert x["indices"].dtype == np.int32 and x["indptr"].dtype == np.int64 and file["y"].dtype == np.int8
        assert file.attrs["complete"] == 1
        assert all(one.chunks is None and one.compression is None for one in x.values())


def test_a_pattern_shard_has_no_values(own_dir):
    X, y = draw(ones=True)
    write_data(own_dir, X, y)
    with h5py.File(own_dir / "shard-00000.h5") as file:
        assert sorted(file["X"]) == ["indices", "indptr"]


def test_unsorted_and_doubled_entries_are_put_in_order(own_dir):
    X = sparse.csr_matrix((np.array([3.0, 1.0, 2.0, 4.0]), [2, 0, 2, 1], [0, 3, 4]), shape=(2, 3))
    write_data(own_dir, X, [1, -1])
    np.testing.assert_array_equal(as_array(load(own_dir, ALONE).features), [[1, 0, 5], [0, 4, 0]])
    assert X.nnz == 4 and list(X.indices) == [2, 0, 2, 1]


@pytest.mark.parametrize("kind", [sparse.csc_matrix, sparse.coo_matrix, sparse.csr_array])
def test_other_sparse_kinds(own_dir, kind):
    X, y = draw()
    write_data(own_dir, kind(X), y, 2)
    np.testing.assert_array_equal(as_array(load(own_dir, ALONE).features), X.toarray())


def test_large_columns(own_dir):
    X = sparse.csr_matrix((np.ones(2), np.array([5, 2**31 + 7]), np.array([0, 1, 2])), shape=(2, 2**31 + 8))
    manifest = write_data(own_dir, X, [1, -1])
    assert manifest.shards[0].columns == 2**31 + 8
    block = load(own_dir, ALONE, n_columns=6, ignore_new_features=True)
    np.testing.assert_array_equal(as_array(block.features), [[0, 0, 0, 0, 0, 1], [0] * 6])


def test_fingerprint_tells_data_apart(own_dir):
    X, y = draw()
    first = write_data(own_dir / "a", X, y, 2, label_map={"+1": "yes", "-1": "no"})
    time.sleep(1.1)  # no time stamp may get into the files
    assert write_data(own_dir / "b" / "c", X, y, 2).fingerprint == first.fingerprint
    shutil.move(own_dir / "a", own_dir / "moved")
    assert read_manifest(own_dir / "moved").fingerprint == first.fingerprint
    flipped = y.copy()
    flipped[3] *= -1
    others = [write_data(own_dir / "d", X, flipped, 2), write_data(own_dir / "e", X * 2, y, 2)]
    others += [write_data(own_dir / "f", X, y, 2, weights=np.ones(40))]
    assert len({first.fingerprint, *(one.fingerprint for one in others)}) == 4


def test_a_manifest_can_be_sent_and_loaded(own_dir):
    X, y = draw()
    manifest = pickle.loads(pickle.dumps(write_data(own_dir, X, y)))
    np.testing.assert_array_equal(load(manifest, ALONE).labels, y)


# ----------------------------------------------------------------------------------------------- columns of a model


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_columns(own_dir, dense, size, compression):
    X, y = draw(20, 8)
    write_data(own_dir, X.toarray() if dense else X, y, 2, compression=compression)

    def rows(**options):
        return np.concatenate([as_array(block.features) for block in load_all(own_dir, size, **options)])

    np.testing.assert_array_equal(rows(n_columns=11), np.hstack([X.toarray(), np.zeros((20, 3))]))
    np.testing.assert_array_equal(rows(n_columns=5, ignore_new_features=True), X.toarray()[:, :5])
    with pytest.raises(InputError, match=r"shard-00000\.h5: uses column 8 \(counted from 1\).* 5 columns"):
        rows(n_columns=5)


@pytest.mark.parametrize("dense", [False, True])
def test_columns_that_nothing_uses_do_not_count(own_dir, dense):
    X, y = draw(20, 8)
    X = sparse.hstack([X, sparse.csr_matrix((20, 4))], format="csr")
    write_data(own_dir, X.toarray() if dense else X, y)
    block = load(own_dir, ALONE, n_columns=9)
    assert block.p == 9 and block.features.shape == (20, 9)
    np.testing.assert_array_equal(as_array(block.features), X.toarray()[:, :9])


def test_new_features_of_a_pattern(own_dir):
    X, y = draw(20, 8, ones=True, density=0.5)
    write_data(own_dir, X, y)
    block = load(own_dir, ALONE, n_columns=3, ignore_new_features=True)
    assert isinstance(block.features, SparseRows) and block.features.arrays[-1] is None
    np.testing.assert_array_equal(as_array(block.features), X.toarray()[:, :3])


# ------------------------------------------------------------------------------------------------- refused at writing


def test_nothing_to_write(own_dir):
    with pytest.raises(InputError, match="needs rows and columns"):
        write_data(own_dir / "a", np.empty((0, 3)), [])
    with pytest.raises(InputError, match="needs rows and columns"):
        write_data(own_dir / "a", np.empty((3, 0)), [1, 1, -1])
    prepare(own_dir)
    entry = finish_shard(stage_shard(own_dir, 0, sparse.csr_matrix((0, 3))), [], 3)
    for entries in ([], [entry]):
        with pytest.raises(InputError, match="there is no row to write"):
            publish(own_dir, entries, label_map={}, zero_based=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": [1, 0, -1]}, r"labels must be \+1 and -1"),
        ({"y": [1, -1]}, "3 rows"),
        ({"weights": [1, -1, 0]}, "weight, row 1"),
        ({"weights": [1, np.nan, 0]}, "weight, row 1"),
        ({"X": np.array([[1.0], [np.nan], [0.0]])}, "NaN"),
        ({"X": sparse.csr_matrix([[1.0], [np.inf], [0.0]])}, "NaN, infinite"),
        ({"X": np.full((3, 1), 1e300), "dtype": "float32"}, "too large for float32"),
        ({"dtype": "float16"}, "float16"),
    ],
)
def test_refused_rows(own_dir, change, message):
    arguments = {"X": np.ones((3, 1)), "y": [1, -1, 1]} | change
    with pytest.raises(InputError, match=message):
        write_data(own_dir, **arguments)
    with pytest.raises(InputError, match="not a data set"):
        load(own_dir, ALONE)


def test_p_smaller_than_the_columns_used(own_dir):
    staged = stage_shard(own_dir, 0, sparse.csr_matrix([[0.0, 2.0]]))
    with pytest.raises(InputError, match="uses 2 columns, but p = 1"):
        finish_shard(staged, [1], 1)
