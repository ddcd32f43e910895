"""Shards with more than 2^31 nonzeros: offsets beyond the reach of 32 bits, in files that are nearly all holes."""

from __future__ import annotations

from itertools import pairwise

import h5py
import numpy as np
import pytest
from scipy import sparse

from distsms.base.measures import Measure
from distsms.matrix.code_maps import Categories
from distsms.matrix.local import SparseRows
from distsms.optim.settings import Settings
from distsms.shards import from_arrays
from distsms.shards.coded_columns import NOT_CODED, CodedColumns
from distsms.shards.dataset import MemoryBudget, load, read_manifest
from distsms.shards.local_rows import Stream
from distsms.shards.manifest import SHARD_VERSION, prepare, publish
from distsms.shards.reader import MARK
from distsms.training.fit import fit
from distsms.training.task import TrainingTask
from tests.support.sharded import ALONE, forget_checksums

pytestmark = pytest.mark.serial

LAST, PART = 128, 16
"""The rows that are there, at the end. Those before them are holes of the file, and have as many nonzeros."""


def with_holes(file, name, n, tail):
    """Make a contiguous array of n entries of which only the last ones are written."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
    space, kind = h5py.h5s.create_simple((n, *tail.shape[1:])), h5py.h5t.py_create(tail.dtype, logical=True)
    group, _, leaf = name.rpartition("/")
    h5py.h5d.create(file.require_group(f"/{group}").id, leaf.encode(), kind, space, properties)
    file[name][n - len(tail) :] = tail


@pytest.fixture(params=["csr", "dense", "coded"])
def shard(request, tmp_path):
    """A data set with one shard of more than 2^31 nonzeros: its manifest, its last rows, and their labels."""
    rng, layout, wide = np.random.default_rng(0), request.param, 2**16
    n = 2**31 // wide + LAST
    coded, p = NOT_CODED, wide
    prepare(tmp_path)
    with h5py.File(tmp_path / "shard-00000.h5.partial", "w") as file:
        file.attrs.update({"format": MARK, "version": SHARD_VERSION, "complete": 1})
        y = np.where(rng.random(n) < 0.5, 1, -1).astype(np.int8)
        file["y"] = y
        if layout == "dense":
            X = rng.normal(size=(LAST, wide)).astype(np.float32)
            with_holes(file, "X", n, X)
        elif layout == "csr":
            p = 2 * wide
            columns = 2 * np.arange(wide, dtype=np.int32) + rng.integers(0, 2, (LAST, wide), np.int32)
            indptr = np.arange(n + 1, dtype=np.int64) * wide
            X = sparse.csr_matrix((np.ones(LAST * wide), columns.ravel(), indptr[: LAST + 1]), (LAST, p))
            with_holes(file, "X/indices", n * wide, columns.ravel())
            file["X/indptr"] = indptr
            file["X"].attrs["shape"] = np.array([n, p])
        else:
            coded, p = CodedColumns((Categories((2,) * wide),)), 2 * wide
            codes = rng.integers(0, 2, (LAST, wide), np.uint8)
            X = sparse.csr_matrix(
                (np.ones(LAST * wide), (codes + 2 * np.arange(wide)).ravel(), np.arange(LAST + 1) * wide), (LAST, p)
            )
            parts = [codes[first : first + PART].T.ravel() for first in range(0, LAST, PART)]
            with_holes(file, "codes/0", n * wide, np.concatenate(parts))
            file["codes/0"].attrs["part_rows"] = PART
    return published(tmp_path, y, n * wide, p, layout, coded), X, y[-LAST:]


def published(folder, y, nnz, p, layout, coded=NOT_CODED):
    """Make the file in the folder a data set without checksums."""
    size = (folder / "shard-00000.h5.partial").stat()
    assert size.st_size > 2**31 and size.st_blocks * 512 < 2**27
    n_pos = int(np.sum(y > 0))
    entry = {"staged": "shard-00000.h5.partial", "rows": len(y), "nnz": nnz, "n_pos": n_pos, "n_neg": len(y) - n_pos}
    entry |= {"columns": p, "bytes": size.st_size, "sha256": 64 * "0", "values": layout == "dense", "p": p}
    entry |= {
        "layout": layout,
        "dtype": "float32",
        "weights": False,
        "ids": False,
        "compression": "none",
        "digests": {},
    }
    publish(folder, [entry], label_map={"+1": 1, "-1": -1}, zero_based=False, coded=coded)
    forget_checksums(folder)
    return read_manifest(folder)


def test_the_last_rows_are_read_from_beyond_2_to_the_31(shard):
    manifest, X, y = shard
    assert manifest.nnz > 2**31
    shares = manifest.n // LAST
    half = MemoryBudget(2**22 if manifest.layout == "coded" else 5 * 2**22)  # of what the rows take
    rng = np.random.default_rng(1)
    w, c = rng.normal(size=manifest.p), rng.normal(size=LAST)
    for budget in (half, None):
        block = load(manifest, ALONE, share=(shares - 1, shares), budget=budget)
        assert (block.features.source is not None) == (budget is half)
        assert block.first_row == manifest.n - LAST and np.array_equal(block.labels, y)
        np.testing.assert_allclose(block.features.margins(w), X @ w, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(block.features.transposed_times(c), X.T @ c, rtol=1e-4, atol=1e-4)


def test_parts_of_one_rank_go_beyond_2_to_the_31():
    """Rows whose entries a source supplies: their parts are whole, in order, and of all entries."""
    n, wide = 2**12 + 5, np.uint32(2**20)
    rows = SparseRows(None, np.empty(0, np.uint32), np.full(n, wide), 2**20, source=Stream, sort=True)
    parts = [part for run in rows.runs for part in run]
    assert rows.nnz == n * 2**20 == parts[-1].stop > 2**32
    assert parts[0].start == 0 and all(a.stop == b.start and a.last == b.first for a, b in pairwise(parts))
    assert all(part.stop - part.start == (part.last - part.first) * 2**20 for part in parts)


@pytest.mark.slow
def test_more_than_2_to_the_31_nonzeros_are_trained_on(tmp_path):
    """Dense rows of one shard, nearly all of them zeros, are streamed; the same rows without zeros are held."""
    n, p = 2**21 + 2**12, 2**10
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2**12, p)).astype(np.float32), np.where(rng.random(n) < 0.3, 1, -1).astype(np.int8)
    prepare(tmp_path)
    with h5py.File(tmp_path / "shard-00000.h5.partial", "w") as file:
        file.attrs.update({"format": MARK, "version": SHARD_VERSION, "complete": 1})
        file["y"] = y
        with_holes(file, "X", n, X)
    manifest, settings = published(tmp_path, y, n * p, p, "dense"), Settings(1e-6, 1e-3, max_evaluations=3)
    streamed = load(manifest, ALONE, budget=MemoryBudget(2**27))
    held = from_arrays.block(sparse.vstack([sparse.csr_matrix((n - 2**12, p), dtype=np.float32), X], "csr"), y, ALONE)
    assert streamed.features.nnz == n * p > 2**31 and streamed.features.bytes_per_pass > 2**32
    J = [fit(TrainingTask(block, Measure.parse("rocarea"), settings), ALONE).result.J for block in (streamed, held)]
    assert J[0] == pytest.approx(J[1], rel=1e-9) and J[0] < 1
