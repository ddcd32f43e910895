"""Rows that are streamed from their shards are those in memory, whatever fits: in every product, to the bit."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms import features
from distsms.comm import Communicator
from distsms.errors import InputError
from distsms.normalization import Normalization
from distsms.shards import load, write_data
from distsms.streaming import Room

ALONE = Communicator()


class RankOf(Communicator):
    """One of several ranks, played alone."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size


def rows_of(seed, n, p, kind):
    """Rows of many lengths, some empty and some full, and labels."""
    rng = np.random.default_rng(seed)
    keep = rng.random((n, p)) < rng.choice([0, 0.1, 0.3, 1], size=(n, 1))
    array = (np.ones((n, p)) if kind == "pattern" else rng.normal(size=(n, p))) * keep
    return (array if kind == "dense" else sparse.csr_matrix(array)), np.where(rng.random(n) < 0.4, 1, -1)


def products(rows, seed=0):
    """Everything that the objective asks of rows, twice over: what one pass leaves behind must not show in the next."""
    rng, (n_local, p) = np.random.default_rng(seed), rows.shape
    W, C = rng.normal(size=(3, p)), rng.normal(size=(3, n_local)) * (rng.random((3, n_local)) < 0.5)
    found = []
    for _ in range(2):
        found += [rows.margins(W), rows.transposed_times(list(C)), rows.margins(W[0]), rows.transposed_times(C[0])]
        found += [rows.largest_terms(W[0]), *rows.columns(), rows.second_moments()]
    return found


def assert_same(streamed, resident):
    assert streamed.source is not None and resident.source is None
    assert streamed.shape == resident.shape and streamed.nnz == resident.nnz
    for mine, theirs in zip(products(streamed), products(resident), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def smallest(load):
    """What `load(room)` gives with hardly more room than it needs, found by asking; and that room."""
    room = 1
    while True:
        try:
            return load(room), room
        except InputError as error:
            assert "--memory leaves" in str(error)
            room *= 2


@given(
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(["float32", "float64", "pattern", "dense"]),
    n=st.sampled_from([1, 7, 60, 300]),
    p=st.sampled_from([1, 5, 40]),
    n_shards=st.integers(1, 4),
    part=st.sampled_from([1, 16, 100, 1000]),
    ranks=st.integers(1, 4),
    threads=st.integers(1, 3),
    normalize=st.sampled_from(["none", "l2"]),
)
def test_streamed_rows_are_those_in_memory(seed, kind, n, p, n_shards, part, ranks, threads, normalize):
    """Whatever the parts: rows longer than one, parts of several shards, empty rows, ranks without any."""
    X, y = rows_of(seed, n, p, kind)
    how = Normalization(normalize)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "PART_ENTRIES", part)
        patch.setenv("OMP_NUM_THREADS", str(threads))
        dtype = "float64" if kind in ("pattern", "dense") else kind
        write_data(folder, X, y, n_shards, dtype=dtype, weights=y > 0)
        for rank in range(ranks):
            comm = RankOf(rank, ranks)
            resident = load(folder, comm, normalization=how)
            if not resident.features.nnz:
                continue
            block, room = smallest(lambda room, comm=comm: load(folder, comm, normalization=how, room=Room(room)))
            np.testing.assert_array_equal(block.labels, resident.labels)
            np.testing.assert_array_equal(block.weights, resident.weights)
            if block.features.source is not None:
                assert_same(block.features, resident.features)
                assert block.features.source.nbytes <= room
