"""A row has one score everywhere, in training and later: <w, x> of the row as it is stored, in extended precision."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base.errors import InputError
from distsms.matrix import local
from distsms.matrix.normalization import KINDS, Normalization
from distsms.models import export, model
from distsms.python import api
from distsms.python.estimator import SMSClassifier
from distsms.shards import dataset
from distsms.shards.dataset import MemoryBudget
from distsms.shards.from_arrays import write_data
from tests.models.test_export import with_csv, with_onnx
from tests.support import oracles
from tests.support.conversion import convert
from tests.support.files import on_root, write
from tests.support.sharded import RankOf

EXACT = np.longdouble
INFO = {"label_map": {"+1": 1, "-1": -1}, "zero_based": False, "threshold": 0.0, "bias": 0.0}


def dense(X):
    return X.toarray() if sparse.issparse(X) else np.asarray(X)


def lengths(X):
    """Return the lengths of rows in extended precision; 1 for empty ones."""
    found = np.sqrt((dense(X).astype(EXACT) ** 2).sum(axis=1))
    return np.where(found > 0, found, EXACT(1))


def assert_scores(found, X, w, kind="none", bias=0.0):
    """Scores of raw rows X equal X w to 1e-12 of the sizes of their terms."""
    X, w = dense(X).astype(EXACT), w.astype(EXACT)
    of = lengths(X) if kind == "l2" else EXACT(1)
    sizes = (np.abs(X) @ np.abs(w)) / of + abs(bias)
    assert np.all(np.abs(found - (X @ w / of + bias)) <= 1e-12 * sizes)


def table(n, p, seed=0, dtype="float32"):
    """Return columns of many sizes, one of them hardly varying, one constant and one empty; and an empty row."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * 10.0 ** rng.integers(-6, 7, p) * (rng.random((n, p)) < 0.7)
    X[:, 0] = 4e6 + rng.integers(-4, 5, n)
    X[:, 1], X[:, 2], X[n // 2] = 0, 7, 0
    y = np.where(X[:, 0] + rng.normal(size=n) * 3 > 4e6 + 2, 1, -1)
    y[:2] = 1, -1
    return X.astype(dtype).astype(float), y


def loaded(manifest, comm, streamed):
    """Load this rank's rows; if `streamed` and they exceed the buffers, they come from the files on each pass."""
    if not streamed:
        return dataset.load(manifest, comm)
    try:
        return dataset.load(manifest, comm, budget=MemoryBudget(1))
    except InputError as error:
        return dataset.load(manifest, comm, budget=MemoryBudget(int(re.search(r"and (\d+) are needed", str(error))[1])))


@pytest.mark.serial
@given(
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from(["float32", "float64"]),
    layout=st.sampled_from(["sparse", "ones", "dense"]),
    kind=st.sampled_from(KINDS),
    compression=st.sampled_from(["none", "blosc-lz4"]),
    streamed=st.booleans(),
    ranks=st.integers(1, 3),
)
def test_training_and_scoring_see_the_same_rows(seed, dtype, layout, kind, compression, streamed, ranks):
    """Margins in training are those of the raw rows by the model's w, bit for bit; all other products agree."""
    X, y = table(40, 6, seed, dtype)
    X = X if layout == "dense" else sparse.csr_matrix((X != 0).astype(float) if layout == "ones" else X)
    rng = np.random.default_rng(seed)
    how = Normalization(kind, 10.0 ** rng.uniform(-7, 7, 6) if kind in ("standard", "maxabs") else None)
    v, factors = rng.normal(size=6) * 10.0 ** rng.integers(-3, 3, 6), np.ones(6) if how.scale is None else how.scale
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "PART_ENTRIES", 16)
        manifest = write_data(folder, X, y, 3, dtype=dtype, compression=compression)
        manifest = replace(manifest, normalization=how)
        for rank in range(ranks):
            comm = RankOf(rank, ranks)
            block = loaded(manifest, comm, streamed)
            assert ranks > 1 or (block.features.source is not None) == streamed
            rows, mine = block.features, dense(X)[block.first_row : block.first_row + len(block.labels)]
            scores = rows.margins(v)
            assert_scores(scores, mine, how.fold(v), kind)
            raw = dataset.load(manifest, comm, normalization=how.by_row).features
            assert raw.margins(how.fold(v)).tolist() == scores.tolist()

            seen = mine.astype(EXACT) * factors / (lengths(mine)[:, None] if kind == "l2" else 1)
            c = rng.normal(size=(2, len(mine)))
            sizes = np.abs(c) @ np.abs(seen)
            assert np.all(np.abs(rows.transposed_times(c) - c @ seen) <= 1e-12 * sizes)
            assert np.all(np.abs(rows.margins(np.stack([v, -v])) - [scores, -scores]) == 0)
            largest = np.abs(seen).max(axis=0, initial=0)
            np.testing.assert_allclose(rows.columns().largest, largest.astype(float), rtol=1e-13)
            np.testing.assert_allclose(rows.columns().squares, (seen**2).sum(axis=0).astype(float), rtol=1e-12)
            stored = np.full(len(mine), 6) if layout == "dense" else np.count_nonzero(mine, axis=1)
            terms = (stored + 2) * (np.abs(seen) @ np.abs(v))
            np.testing.assert_allclose(rows.largest_terms(v), float(terms.max(initial=0)), rtol=1e-12)
        others, *_ = dataset.load_matrix(manifest)
        seen = dense(X).astype(EXACT) * factors / (lengths(X)[:, None] if kind == "l2" else 1)
        np.testing.assert_allclose(dense(others), seen.astype(float), rtol=1e-13)
        assert_scores(api.predict(model.from_training(v, INFO, manifest), folder), X, how.fold(v), kind)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "bool"])
@pytest.mark.parametrize("layout", [np.asarray, np.asfortranarray, sparse.csr_matrix, sparse.coo_matrix])
@pytest.mark.parametrize("kind", ["none", "l2"])
def test_rows_in_memory_are_scored_as_they_are(comm, dtype, layout, kind):
    """Scores do not depend on the form in which rows are held."""
    rng = np.random.default_rng(comm.rank)
    X = (rng.normal(size=(20, 5)) * 100 * (rng.random((20, 5)) < 0.7)).astype(dtype)
    if layout in (sparse.csr_matrix, sparse.coo_matrix) and dtype == "float16":
        X = X.astype("float32")  # SciPy has no others
    w = np.array([1e6, -1e-3, np.pi, 2.0, 0.0])
    one = model.Model(w, INFO | {"normalize": kind, "bias": 0.1})
    found = api.predict(one, layout(X), comm.mpi_comm)
    assert_scores(found, X, w, kind, 0.1)
    y = np.tile([1, -1], 10)
    pooled = np.concatenate(comm.allgather(found)), np.concatenate(comm.allgather(y))
    area = oracles.rocarea(pooled[0][pooled[1] > 0], pooled[0][pooled[1] < 0])
    assert api.evaluate(one, (layout(X), y), comm.mpi_comm)["rocarea"] == pytest.approx(float(area), rel=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "bool"])
@pytest.mark.parametrize("kind", ["none", "l2"])
def test_arrays_in_files_are_scored_as_they_are(tmp_path, dtype, kind):
    """Test NumPy's dense and SciPy's sparse matrices, of any dtype."""
    X = (np.random.default_rng(0).normal(size=(20, 5)) * 100).astype(dtype)
    X[::3, 2] = 0
    np.save(tmp_path / "a.npy", X)
    one = model.Model(np.array([1e6, -1e-3, np.pi, 2.0, 0.0]), INFO | {"normalize": kind})
    assert_scores(api.predict(one, tmp_path / "a.npy"), X, one.w, kind)
    if dtype != "float16":  # SciPy has none
        sparse.save_npz(tmp_path / "a.npz", sparse.csr_matrix(X))
        assert_scores(api.predict(one, tmp_path / "a.npz"), X, one.w, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("measure, dtype", [("prbep", "float32"), ("rocarea", "float32"), ("rocarea", "float64")])
def test_what_is_proved_is_of_the_rows(comm, shared_dir, measure, dtype, kind):
    """A column of 4e6 +- 4 is exact in float32, but not after a division: J, measures, scores and exports agree."""
    X, y = table(60, 6)
    data = shared_dir / "data"
    reading = on_root(comm, lambda: (write(shared_dir / "a.csv", X, y), np.save(shared_dir / "b.npy", X))[0])
    convert([shared_dir / "a.csv"], data, comm, 3, dtype=dtype, normalize=kind, **reading)
    one = api.train(data, comm.mpi_comm, measure=measure, lam=1e-4, solver="lbfgs", max_evaluations=60)
    found = api.evaluate(one, data, comm.mpi_comm)
    assert {name: found[name] for name in ("rocarea", "prbep")} == one.info["training"]
    again = api.evaluate(one, shared_dir / "a.csv", comm.mpi_comm)
    assert [again[name] for name in ("rocarea", "prbep", "tp", "fp")] == [
        found[name] for name in ("rocarea", "prbep", "tp", "fp")
    ]

    v = one.normalization.unfold(one.w)
    scores = X.astype(EXACT) @ one.w.astype(EXACT) / (lengths(X) if kind == "l2" else 1)
    risk = oracles.rocarea_risk if measure == "rocarea" else oracles.prbep_risk
    omega = one.info["lambda"] / 2 * float(np.sum(v.astype(EXACT) ** 2))
    J = omega + float(risk(scores[y > 0], scores[y < 0]))
    sizes = np.abs(X) @ np.abs(one.w) / (lengths(X) if kind == "l2" else 1)
    rounding = np.finfo(float).eps * float(8 * np.max(sizes) + 60 * (J + 4))
    assert one.info["lower_bound"] - rounding <= J and abs(J - one.info["J"]) <= rounding

    for path in (data, shared_dir / "a.csv"):
        mine = api.predict(one, path, comm.mpi_comm)
        assert_scores(np.concatenate(comm.allgather(mine)), X, one.w, kind)
    plain = replace(one, table=None)  # arrays have no names of columns
    assert_scores(
        np.concatenate(comm.allgather(api.predict(plain, shared_dir / "b.npy", comm.mpi_comm))), X, one.w, kind
    )
    if kind == "l2" or not comm.is_root:
        return
    assert_scores(with_onnx(export.onnx(one), X)[0], X, one.w)
    assert_scores(with_csv(export.csv(one), X, one.feature_names)[0], X, one.w)
    weights = export.liblinear(one).decode().partition("\nw\n")[2].split()
    assert [float(text) for text in weights] == [*one.w.tolist(), model.intercept(one.bias, one.threshold)]
    model.save(shared_dir / "m.h5", one)
    classifier = SMSClassifier.from_model(shared_dir / "m.h5")
    for rows in (X, X.astype("float32"), sparse.csr_matrix(X.astype("float32"))):
        assert_scores(classifier.decision_function(rows), X, one.w, bias=float(classifier.intercept_[0]))
