"""Rows that are streamed from their shards equal those in memory, whatever fits: in every product, bit for bit."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.matrix import local
from distsms.matrix.coded import CodedRows
from distsms.matrix.normalization import Normalization
from distsms.optim.rows import score
from distsms.shards import dataset, local_rows, storage
from distsms.shards.dataset import MemoryBudget, load, read_manifest
from distsms.shards.from_arrays import write_data
from distsms.shards.manifest import prepare, publish
from distsms.shards.writer import finish_shard, stage_shard
from distsms.training.fit import fit
from distsms.training.solver_choice import settings_for
from distsms.training.task import TrainingTask
from distsms.workflow import path
from tests.support.problems import data
from tests.support.sharded import ALONE, RankOf, forget_checksums


def rows_of(seed, n, p, kind):
    """Return rows of many lengths, some empty and some full, and labels."""
    rng = np.random.default_rng(seed)
    keep = rng.random((n, p)) < rng.choice([0, 0.1, 0.3, 1], size=(n, 1))
    array = (np.ones((n, p)) if kind == "pattern" else rng.normal(size=(n, p))) * keep
    return (array if kind == "dense" else sparse.csr_matrix(array)), np.where(rng.random(n) < 0.4, 1, -1)


def products(rows, seed=0):
    """Return everything that the objective computes from rows, twice, since one pass must not influence the next."""
    rng, (n_local, p) = np.random.default_rng(seed), rows.shape
    W, C = rng.normal(size=(3, p)), rng.normal(size=(3, n_local)) * (rng.random((3, n_local)) < 0.5)
    found = []
    for _ in range(2):
        found += [rows.margins(W), rows.transposed_times(list(C)), rows.margins(W[0]), rows.transposed_times(C[0])]
        found += [rows.largest_terms(W[0]), *rows.columns()]
        if not isinstance(rows, CodedRows):  # which have no moments
            group = rng.integers(-1, 2, n_local).astype(np.int16)
            found += vars(rows.moments(group, 2, np.abs(C[0]))).values()
    return found


def entries_of(rows):
    return lambda features: features.row_entries(rows)


def assert_same(streamed, resident):
    assert streamed.source is not None and resident.source is None
    assert streamed.shape == resident.shape and streamed.nnz == resident.nnz
    for mine, theirs in zip(products(streamed), products(resident), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    held, w = np.flatnonzero(streamed.rows_in_memory()), np.linspace(-1, 2, streamed.shape[1])
    scores = [
        [score(entries, k, w) for k in range(len(held))] for entries in map(entries_of(held), (streamed, resident))
    ]
    np.testing.assert_array_equal(*scores)
    chosen = np.arange(streamed.shape[0]) % 3 == 1
    for mine, theirs in zip(products(streamed.take(chosen)), products(resident.take(chosen)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def smallest(load):
    """Return what `load(room)` gives with hardly more room than it needs, which is found by trying, and that room."""
    room = 1
    while True:
        try:
            return load(room), room
        except InputError as error:
            assert "--memory leaves" in str(error)
            room *= 2


@pytest.mark.serial
@given(
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(["float32", "float64", "pattern", "dense"]),
    n=st.sampled_from([1, 7, 60, 300]),
    p=st.sampled_from([1, 5, 40]),
    n_shards=st.integers(1, 4),
    part=st.sampled_from([1, 16, 100, 1000]),
    place=st.integers(0, 3).flatmap(lambda rank: st.tuples(st.just(rank), st.integers(rank + 1, 4))),
    threads=st.integers(1, 3),
    normalize=st.sampled_from(["none", "l2", "maxabs"]),
    piece=st.sampled_from([None, 1, 30, 2**17]),
)
def test_streamed_rows_are_those_in_memory(seed, kind, n, p, n_shards, part, place, threads, normalize, piece):
    """The parts do not matter: rows longer than a part, parts of several shards, empty rows, ranks without rows."""
    X, y = rows_of(seed, n, p, kind)
    how = Normalization(normalize, np.linspace(0.1, 9, p) if normalize == "maxabs" else None)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "PART_ENTRIES", max(part, n * p // 500))  # many parts show no more than some hundred
        patch.setattr(storage, "CHUNK", piece)
        patch.setenv("OMP_NUM_THREADS", str(threads))
        dtype = "float64" if kind in ("pattern", "dense") else kind
        compression = "blosc-lz4" if piece else "none"
        write_data(folder, X, y, n_shards, dtype=dtype, weights=y > 0, compression=compression)
        rank, ranks = place
        comm = RankOf(rank, ranks)
        resident = load(folder, comm, normalization=how)
        if not resident.features.nnz:
            return
        block, room = smallest(lambda room: load(folder, comm, normalization=how, budget=MemoryBudget(room)))
        np.testing.assert_array_equal(block.labels, resident.labels)
        np.testing.assert_array_equal(block.weights, resident.weights)
        if block.features.source is not None:
            assert_same(block.features, resident.features)
            assert block.features.source.nbytes <= room


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(local, "PART_ENTRIES", 50)


@pytest.fixture
def folder():
    """Return a directory of this rank alone."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def streamed(folder, kind="float64", room=None, old=False):
    """Return 300 rows in 3 shards, with room for half of their entries and the buffers."""
    X, y = rows_of(0, 300, 20, kind)
    manifest = write_data(folder, X, y, 3, dtype="float32" if kind == "float32" else "float64", overwrite=True)
    if old:
        forget_checksums(folder)
    return load(folder, ALONE, budget=MemoryBudget(room or half(manifest))).features


def half(manifest):
    return dataset.entry_bytes(manifest)[0] * manifest.nnz // 2


@pytest.mark.serial
@pytest.mark.parametrize("kind, entry", [("float32", 8), ("float64", 12), ("pattern", 4), ("dense", 8)])
def test_what_fits_is_held_and_the_rest_is_read_on_each_pass(kind, entry, folder, small_parts):
    """The second pass begins with the two parts that the first one left in the buffers."""
    rows = streamed(folder, kind)
    source = rows.source
    streamed_entries, held = source.bytes_per_pass // entry, source.bytes_per_pass % entry
    assert held == 0 and 0 < streamed_entries < rows.nnz
    before = source.bytes_read
    rows.margins(np.ones(20))
    first = source.bytes_read - before
    rows.transposed_times(np.ones(300))
    second = source.bytes_read - before - first
    assert second <= first <= source.bytes_per_pass
    assert source.bytes_per_pass - second >= 2 * 50 * entry // 2
    assert source.nbytes <= half(read_manifest(folder))


@pytest.mark.serial
@pytest.mark.parametrize("kind", ["float64", "pattern", "dense"])
def test_rows_in_memory_are_spread_over_the_files(kind, folder, small_parts):
    rows = streamed(folder, kind)
    held = rows.rows_in_memory()
    assert rows.row_entries() is None and all(0.1 < np.mean(third) < 0.9 for third in np.split(held, 3))
    assert load(folder, ALONE).features.rows_in_memory().all()


@pytest.mark.serial
def test_rows_on_the_disk_alone(folder, small_parts):
    rows, room = smallest(lambda room: streamed(folder, room=room))
    assert rows.source.bytes_per_pass > 0.7 * 12 * rows.nnz and rows.source.nbytes <= room
    with pytest.raises(InputError, match="--memory leaves 100 bytes for rows, and"):
        streamed(folder / "again", room=100)


@pytest.mark.serial
def test_room_for_all_is_as_without(folder):
    assert streamed(folder, room=2**40).source is None


@pytest.mark.serial
@pytest.mark.parametrize("kind", ["float64", "pattern", "dense"])
def test_a_file_that_vanishes_is_still_read(kind, folder, small_parts):
    rows, expected = streamed(folder, kind), load(folder, ALONE).features
    for file in folder.glob("*.h5"):
        file.unlink()
    assert_same(rows, expected)


@pytest.mark.serial
@pytest.mark.parametrize("kind", ["float64", "pattern", "dense"])
def test_a_file_that_is_cut_is_seen(kind, folder, small_parts):
    rows = streamed(folder, kind)
    os.truncate(folder / "shard-00002.h5", 2000)
    with pytest.raises(InputError, match=r"shard-00002.h5: near row \d+ .*shorter while it was in use"):
        rows.margins(np.ones(20))
    with pytest.raises(InputError, match=r"shard-00002.h5"):  # again: a part that was read incompletely is not used
        rows.transposed_times(np.ones(300))


@pytest.mark.serial
@pytest.mark.parametrize("name, more", [("X/indices", 2**30), ("X/indices", 1), ("X/data", 1e-9)])
@pytest.mark.parametrize("message", ["has changed while it was in use", "its content is not what was written"])
def test_a_file_that_is_changed_is_seen(name, more, message, folder, small_parts):
    """Change a file between passes, also to columns beyond p, outside of w: a file without checksums, and with some."""
    rows = streamed(folder, old="changed" in message)
    with h5py.File(folder / "shard-00002.h5", "r+") as file:
        some = np.flatnonzero(~rows.rows_in_memory()[200:] & (np.diff(file["X/indptr"]) > 0))
        file[name][file["X/indptr"][some[0]]] += more  # of a row that is read again
    with pytest.raises(InputError, match=rf"shard-00002.h5: near row \d+ .*{message}"):
        rows.margins(np.ones(20))


@pytest.mark.serial
@pytest.mark.parametrize(
    "name, at, value",
    [("X/indices", -1, 20), ("X/indices", -1, -1), ("X/data", 7, np.nan), ("y", 3, 0), ("X/indptr", 1, 10**6)],
)
def test_damaged_rows_are_refused_as_in_memory(name, at, value, folder, small_parts):
    """The message is the same, whatever part the fault is found in."""
    X, y = rows_of(0, 300, 20, "float64")
    write_data(folder, X, y, 3)
    forget_checksums(folder)
    manifest = read_manifest(folder)
    with h5py.File(folder / "shard-00001.h5", "r+") as file:
        file[name][at] = value
    with pytest.raises(InputError) as resident:
        load(manifest, ALONE)
    with pytest.raises(InputError) as found:
        load(manifest, ALONE, budget=MemoryBudget(half(manifest)))
    assert str(found.value) == str(resident.value)


@pytest.mark.parametrize(
    "measure, solver, bias",
    [("rocarea", "lbfgs", None), ("prbep", "bmrm", 2.0), ("error-rate", "agm", 2.0), ("logistic", "lbfgs", None)],
)
def test_a_streamed_run_is_the_run(measure, solver, bias, comm, shared_dir, monkeypatch):
    """J, bound and w are the same bit for bit, on any number of ranks, one of which has no rows."""
    monkeypatch.setattr(local, "PART_ENTRIES", 50)
    X, y = data(150, 9)
    with comm.fail_together():
        if comm.is_root:
            write_data(shared_dir / "d", X, y, 3)
    settings = settings_for(measure, solver, lam=0.01, epsilon=1e-3)
    results = []
    for room in (None, MemoryBudget(1800)):
        block = load(shared_dir / "d", comm, budget=room)
        results.append(fit(TrainingTask(block, Measure.parse(measure), settings, bias), comm))
    assert comm.sum(np.array([block.features.source is not None], int))[0]
    resident, streamed = (one.result for one in results)
    assert (streamed.J, streamed.lower_bound, streamed.gap) == (resident.J, resident.lower_bound, resident.gap)
    np.testing.assert_array_equal(streamed.w, resident.w)
    assert streamed.evaluations == resident.evaluations


def test_a_streamed_path_is_the_path(comm, shared_dir, monkeypatch):
    """Each pass serves several w."""
    monkeypatch.setattr(local, "PART_ENTRIES", 50)
    X, y = data(150, 9)
    with comm.fail_together():
        if comm.is_root:
            write_data(shared_dir / "d", X, y, 3)
    problem = path.Problem("rocarea", [0.1, 0.01], 2, 0, settings_for("rocarea", "lbfgs", lam=1.0))
    found = []
    for room in (None, MemoryBudget(1800)):
        rows = path.PathRows(load(shared_dir / "d", comm, budget=room), comm)
        run = path.run(rows, problem, lambda point, result, scores: None)
        found.append([(one.lam, one.fold, one.result["J"], one.result["gap"], one.held_out) for one in run.points])
    assert found[0] == found[1]


@pytest.mark.serial
def test_more_than_32_bits_in_one_shard_of_several(folder, small_parts):
    """Shards may differ in the type of their columns, and in whether they have values."""
    p = 2**31 + 5
    low = sparse.csr_matrix((np.full(200, 1.0), (np.arange(200), np.arange(200) % 7)), shape=(200, p))
    high = sparse.csr_matrix((np.full(200, 2.0), (np.arange(200), p - 1 - np.arange(200) % 7)), shape=(200, p))
    prepare(folder)
    entries = []
    for k, X in enumerate((low, high)):
        staged = stage_shard(folder, k, X)
        entries.append(finish_shard(staged, np.tile([1, -1], 100), p))
    manifest = publish(folder, entries, label_map={"+1": 1, "-1": -1}, zero_based=False)
    stream = local_rows.SparseStream(list(dataset.shard_ranges(manifest, 0, 400)), 400, p, "float64")
    for piece in dataset.shard_ranges(manifest, 0, 400):
        with dataset.open_shard(manifest, piece.shard, piece.offset) as shard:
            stream.add(shard, piece, slice(piece.offset, piece.offset + 200))
    rows = stream.features(1, False)
    stream.prepare(rows)
    stream.load(5000)
    assert stream.bytes_per_pass
    found = [(columns.copy(), values.copy()) for _, (columns, values) in stream.passing(0)]
    columns, values = (np.concatenate(some) for some in zip(*found, strict=True))
    np.testing.assert_array_equal(columns, [*(np.arange(200) % 7), *(p - 1 - np.arange(200) % 7)])
    np.testing.assert_array_equal(values, [1] * 200 + [2] * 200)
