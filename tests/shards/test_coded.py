"""Coded columns in shards: read by any ranks, streamed, checked code by code, and refused where they do not fit."""

from __future__ import annotations

import json
import tempfile

import h5py
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base import memory
from distsms.base.errors import InputError
from distsms.losses.base import ROW_BYTES, Cost
from distsms.matrix.code_maps import Categories, Strings
from distsms.matrix.coded import to_csr
from distsms.models import inputs, model
from distsms.optim.settings import Settings
from distsms.python import api
from distsms.shards import coded_columns, dataset
from distsms.shards.dataset import MemoryBudget, load, load_matrix, read_manifest
from distsms.shards.from_arrays import write_data
from distsms.shards.manifest import verify
from distsms.shards.splits import in_sample
from distsms.training import plan
from distsms.workflow import folds
from distsms.workflow.auto_lambda import Shares, load_sample
from distsms.workflow.train import start_vector
from tests.shards.test_streaming import assert_same, smallest
from tests.support.examples import examples
from tests.support.files import on_root
from tests.support.sharded import ALONE, RankOf, forget_checksums, rewrite

MAPS = {
    "categories": Categories((3, 1, 250), (0.5, -2.0, 1.0)),
    "wide": Categories((300, 70_000)),
    "strings": Strings("dna", 7, 3, ((2, 6, 2),)),
}
X_KINDS = ["none", "dense", "sparse"]


def draw_codes(code_map, n, seed=0, missing=0.1):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, code_map.limits(), (n, code_map.n_codes)).astype(code_map.dtype)
    codes[rng.random(codes.shape) < missing] = np.iinfo(code_map.dtype).max
    return codes


def draw(n=90, x="none", names=("strings",), seed=0):
    """Return X of a kind or None, labels, groups of codes, and all columns as a matrix."""
    rng = np.random.default_rng(seed)
    X = None if x == "none" else rng.normal(size=(n, 4)) * (rng.random((n, 4)) < (0.5 if x == "sparse" else 2))
    X = sparse.csr_matrix(X) if x == "sparse" else X
    groups = [(MAPS[name], draw_codes(MAPS[name], n, seed + k)) for k, name in enumerate(names)]
    parts = [*([] if X is None else [sparse.csr_matrix(X)]), *(to_csr(*group) for group in groups)]
    return X, np.where(rng.random(n) < 0.4, 1, -1), groups, sparse.hstack(parts, "csr")


@pytest.mark.serial
@examples(0.42)
@given(
    seed=st.integers(0, 99),
    n=st.sampled_from([1, 7, 90]),
    x=st.sampled_from(X_KINDS),
    names=st.lists(st.sampled_from(list(MAPS)), min_size=1, max_size=3),
    n_shards=st.integers(1, 3),
    rows=st.sampled_from([1, 8, 50]),
    ranks=st.integers(1, 4),
    threads=st.integers(1, 3),
    compression=st.sampled_from(["none", "blosc-lz4"]),
)
@example(seed=0, n=7, x="none", names=["categories"], n_shards=1, rows=1, ranks=1, threads=1, compression="none")
def test_rows_are_those_written_in_memory_and_streamed(seed, n, x, names, n_shards, rows, ranks, threads, compression):
    """Any parts, shards, ranks and threads. Streamed rows give the same products bit for bit."""
    X, y, groups, whole = draw(n, x, names, seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(coded_columns, "PART_ROWS", rows)
        patch.setenv("OMP_NUM_THREADS", str(threads))
        manifest = write_data(folder, X, y, n_shards, codes=groups, compression=compression)
        assert read_manifest(folder) == manifest and manifest.p == whole.shape[1] and verify(folder) == []
        assert manifest.nnz == sum(array.size for _, array in groups) + (0 if X is None else X.size)
        matrix, labels, _ = load_matrix(manifest)
        np.testing.assert_allclose(matrix.toarray(), whole.toarray())
        np.testing.assert_array_equal(labels, y)
        w, found = np.random.default_rng(seed).normal(size=manifest.p), []
        for rank in range(ranks):
            resident = load(manifest, RankOf(rank, ranks))
            found.append(resident.features.margins(w))
            if not resident.features.nnz:
                continue
            streamed, _ = smallest(
                lambda room, rank=rank: load(manifest, RankOf(rank, ranks), budget=MemoryBudget(room))
            )
            if len(groups) == 1 and X is None and streamed.features.source is not None:
                assert_same(streamed.features, resident.features)
            np.testing.assert_array_equal(streamed.features.margins(w), resident.features.margins(w))
            c = np.random.default_rng(1).normal(size=len(resident.labels))
            for _ in range(2):
                np.testing.assert_array_equal(
                    streamed.features.transposed_times(c), resident.features.transposed_times(c)
                )
        np.testing.assert_allclose(np.concatenate(found), whole @ w, atol=1e-9)


def test_codes_are_read_by_h5py_alone(tmp_path, monkeypatch):
    """The lines of the manual give the codes, of each group and shard, also where parts are cut short."""
    monkeypatch.setattr(coded_columns, "PART_ROWS", 16)
    X, y, groups, _ = draw(90, "sparse", ("strings", "wide"))
    write_data(tmp_path, X, y, 2, codes=groups)
    for shard, rows_of_shard in enumerate((slice(0, 45), slice(45, 90))):
        with h5py.File(tmp_path / f"shard-{shard:05d}.h5") as file:
            for number, (code_map, array) in enumerate(groups):
                codes, rows, B = file[f"codes/{number}"], file[f"codes/{number}"].attrs["part_rows"], code_map.n_codes
                parts = [codes[k : k + rows * B].reshape(B, -1).T for k in range(0, len(codes), rows * B)]
                np.testing.assert_array_equal(np.concatenate(parts), array[rows_of_shard])


def test_a_rank_reads_its_own_codes_only(tmp_path, monkeypatch):
    monkeypatch.setattr(coded_columns, "PART_ROWS", 16)
    _, y, groups, _ = draw(200)
    manifest = write_data(tmp_path, None, y, 2, codes=groups)
    sizes = [load(manifest, RankOf(rank, 5)).bytes_read for rank in range(5)]
    assert sizes == [40 * (7 + 1)] * 5


DAMAGES = [
    ("codes/0", 3, 4, "code 0 of group 0: 4 at row 3 of the shard .* must be below 4, or 255 if it is missing"),
    ("codes/0", 50 + 9, 254, r"code 1 of group 0: 254 at row 9 of the shard \(row 9 of the data"),
    ("codes/1", 7, 300, "code 0 of group 1: 300 at row 7"),
]


@pytest.mark.parametrize(("name", "at", "value", "message"), DAMAGES)
@pytest.mark.parametrize("streamed", [False, True])
def test_every_code_is_checked(tmp_path, monkeypatch, name, at, value, message, streamed):
    monkeypatch.setattr(coded_columns, "PART_ROWS", 50)
    _, y, groups, _ = draw(90, names=("strings", "wide"))
    write_data(tmp_path, None, y, codes=groups)
    forget_checksums(tmp_path)
    with h5py.File(tmp_path / "shard-00000.h5", "r+") as file:
        file[name][at] = value
    budget = MemoryBudget(2500) if streamed else None
    with pytest.raises(InputError, match=message):
        load(tmp_path, ALONE, budget=budget)
    assert "SHA-256" in verify(tmp_path)[0]


@pytest.mark.parametrize(
    ("old", "message"), [(True, "the file has changed while it was in use"), (False, "its content is not what was")]
)
def test_a_file_that_changes_while_it_is_streamed(tmp_path, monkeypatch, old, message):
    monkeypatch.setattr(coded_columns, "PART_ROWS", 8)
    _, y, groups, _ = draw(90)
    write_data(tmp_path, None, y, codes=groups)
    if old:
        forget_checksums(tmp_path)
    rows = load(tmp_path, ALONE, budget=MemoryBudget(200)).features
    row = np.flatnonzero(~rows.source.rows_in_memory(90))[0]  # the first that is read again
    with h5py.File(tmp_path / "shard-00000.h5", "r+") as file:
        at = row // 8 * 8 * rows.code_map.n_codes + row % 8
        file["codes/0"][at] = (file["codes/0"][at] + 1) % 4
    with pytest.raises(InputError, match=rf"shard-00000.h5: near row .* {message}"):
        for _ in range(2):
            rows.margins(np.ones(rows.shape[1]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.__delitem__("codes/0"), "codes/0"),
        (lambda file: file["codes/0"].attrs.__delitem__("part_rows"), "part_rows"),
        (lambda file: file["codes/0"].attrs.__setitem__("part_rows", 0), "no part_rows of at least 1"),
        (lambda file: file["codes/0"].attrs.__setitem__("part_rows", "x"), "part_rows"),
        (lambda file: file["codes/0"].attrs.__setitem__("part_rows", [1, 2]), "part_rows"),
        (lambda file: (file.__delitem__("codes/0"), file.create_dataset("codes/0", (5,), "u1")), "of shape"),
    ],
)
def test_damaged_shards_are_refused(tmp_path, change, message):
    _, y, groups, _ = draw(90)
    write_data(tmp_path, None, y, codes=groups)
    with h5py.File(tmp_path / "shard-00000.h5", "r+") as file:
        change(file)
    rewrite(tmp_path, lambda record: record["shards"][0].update(bytes=(tmp_path / "shard-00000.h5").stat().st_size))
    with pytest.raises(InputError):  # also by the checksums, of which part_rows is a part
        load(tmp_path, ALONE)
    forget_checksums(tmp_path)
    with pytest.raises(InputError, match=message):
        load(tmp_path, ALONE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(version=9), "has format version 9, this distsms reads up to 4"),
        (lambda record: record.pop("coded"), "layout"),
        (lambda record: record.update(layout="csr"), "do not fit the layout"),
        (lambda record: record["coded"][0].update(degree=9), "coded or sequences is damaged"),
        (lambda record: record["coded"].append(1), "coded or sequences is damaged"),
        (lambda record: record.update(coded={}), "coded or sequences is damaged"),
        (lambda record: record.update(sequences={"alphabet": "dna"}), "coded or sequences is damaged"),
        (lambda record: record["shards"][0].update(nnz=629) or record.update(nnz=629), "nnz = 629 is impossible"),
    ],
)
def test_damaged_manifests_are_refused(tmp_path, change, message):
    _, y, groups, _ = draw(90)
    write_data(tmp_path, None, y, codes=groups)
    assert json.loads((tmp_path / "manifest.json").read_text())["version"] == 3
    rewrite(tmp_path, change)
    with pytest.raises(InputError, match=message):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.zeros((5, 2), int), r"codes 0: whole numbers of shape \(n, 3\) are wanted"),
        (np.zeros((5, 3)), "codes 0: whole numbers"),
        (np.full((5, 3), 256), "codes 0 are not all from 0 to 255"),
        (np.full((5, 3), -1), "codes 0 are not all from 0 to 255"),
        (np.full((5, 3), 2), "codes 0: row 0: code 1 is 2, but must be below 1"),
        (np.zeros((4, 3), int), r"codes have shape \(4, 3\), but there are 5 rows"),
    ],
)
def test_codes_that_cannot_be_written(tmp_path, codes, message):
    with pytest.raises(InputError, match=f"^({message})"):
        write_data(tmp_path, np.ones((5, 1)), np.ones(5), codes=[(MAPS["categories"], codes)])


@pytest.mark.parametrize("x", X_KINDS)
def test_samples_and_folds_by_doubles(comm, shared_dir, x):
    X, y, groups, whole = draw(60, x, ("categories", "strings"))
    twice = [(code_map, np.concatenate([array, array])) for code_map, array in groups]
    X2 = None if X is None else sparse.vstack([X, X], "csr") if x == "sparse" else np.concatenate([X, X])
    on_root(comm, lambda: write_data(shared_dir, X2, np.concatenate([y, y]), 3, codes=twice))
    manifest = read_manifest(shared_dir)
    assert manifest.doubles["rows"] == 120 and manifest.doubles["largest"] == 2
    keys = folds.read_fold_keys(manifest, "doubles", 0, 120)
    np.testing.assert_array_equal(keys[:60], keys[60:])
    assert len(np.unique(keys)) == 60 == manifest.doubles["different"]
    sample, shares = load_sample(manifest, comm, Shares(0.7, 0.4)), Shares(0.7, 0.4)
    rows = np.flatnonzero(in_sample(np.arange(120), np.concatenate([y, y]), shares))
    rows = rows[sample.first_row : sample.first_row + len(sample.labels)]
    assert sample.n == np.sum(comm.allgather(len(rows)))
    w = np.random.default_rng(1).normal(size=manifest.p)
    np.testing.assert_allclose(sample.features.margins(w), whole[rows % 60] @ w, atol=1e-9)


def test_a_matrix_that_would_not_fit_is_refused(tmp_path, monkeypatch):
    _, y, groups, _ = draw(90)
    manifest = write_data(tmp_path, None, y, codes=groups)
    assert manifest.explicit == 90 * MAPS["strings"].entries
    monkeypatch.setattr(memory, "available", lambda: 24 * manifest.explicit - 1)
    with pytest.raises(InputError, match=r"its codes would take .* as a matrix"):
        load_matrix(manifest)


def test_the_plan_knows_the_memory_of_codes(tmp_path):
    """The memory is that of codes, a factor for each row and spectrum, and vectors; not that of a CSR matrix."""
    _, y, groups, _ = draw(5000)
    manifest = write_data(tmp_path, None, y, codes=groups)
    needed = plan.needs(manifest, Settings(1.0), Cost(0, 0))
    rows = load(manifest, ALONE).features
    rows.margins(np.zeros(manifest.p))  # computes the factors of the spectrum
    assert needed.data == rows.nbytes + ROW_BYTES * 5000 == (7 + 8 + ROW_BYTES) * 5000
    assert dataset.work_bytes(manifest) == 40 * 5000
    assert needed.buffers == 2 * 7 * 2**16 == dataset.buffer_bytes(manifest, 1)


def test_models_know_what_codes_mean(tmp_path):
    """A model keeps the maps; data sets with other maps, and files, are refused in words."""
    X, y, groups, whole = draw(90, "dense", ("categories", "strings"))
    write_data(tmp_path / "d", X, y, codes=groups)
    trained = api.train(tmp_path / "d", lam=1e-2, solver="lbfgs")
    api.save_model(tmp_path / "m.h5", trained)
    again = model.load(tmp_path / "m.h5")
    assert again.coded == trained.coded and again.feature_names[4] == "0/0=0" and again.feature_names[-1] == "1/2-6:TT"
    with h5py.File(tmp_path / "m.h5") as file:
        assert file.attrs["version"] == 3
    np.testing.assert_allclose(api.predict(again, tmp_path / "d"), whole @ again.w, atol=1e-9)
    write_data(tmp_path / "e", X, y, codes=[groups[0], (Strings("dna", 7, 2), groups[1][1])])
    write_data(tmp_path / "f", X, y)
    (tmp_path / "a.svm").write_text("1 1:1\n")
    (tmp_path / "a.csv").write_text("a\n1\n")
    for name, message in [
        ("e", "has rows of 3 codes for 254 columns and 7 codes for 124 columns, but the model was trained on"),
        ("f", "has rows without codes, but the model was trained on rows of 3 codes"),
        ("a.svm", "the model was trained on codes that were written from Python"),
        ("a.csv", "the model was trained on codes that were written from Python"),
    ]:
        with pytest.raises(InputError, match=message):
            inputs.check(tmp_path / name, again)
    with pytest.raises(InputError, match="was trained on no codes, and the data have rows of 3 codes"):
        plain = api.train(tmp_path / "f", lam=1e-2, solver="lbfgs")
        start_vector(plain, read_manifest(tmp_path / "d"), None)


def test_codes_have_the_widths_of_their_data_set(tmp_path):
    _, y, groups, _ = draw(9)
    manifest = write_data(tmp_path, None, y, codes=groups)
    with pytest.raises(InputError, match=r"has coded columns, .* and cannot be read with 5"):
        dataset.load(manifest, ALONE, 5, ignore_new_features=True)
