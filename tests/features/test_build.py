"""Data sets with features: what is carried over, models on them, and rows that are scored, on any number of ranks."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from distsms.base.errors import InputError
from distsms.features import build as building
from distsms.features import feature_map, growing, rows, screen
from distsms.features import fit as fitting
from distsms.features.build import build
from distsms.features.fit import FeatureOptions, room
from distsms.matrix.arrays import subtract
from distsms.matrix.code_maps import Categories
from distsms.models import inputs, model, scoring
from distsms.python import api
from distsms.python.judging import contributions
from distsms.shards import dataset
from distsms.shards.column_options import ColumnOptions
from distsms.shards.dataset import load_matrix, read_manifest
from distsms.shards.from_arrays import write_data
from distsms.shards.manifest import NOT_NORMALIZED, verify
from distsms.shards.sequence_rules import SequenceOptions
from distsms.shards.writer import finish_shard
from tests.support.conversion import convert
from tests.support.files import ALONE, on_root, write_csv
from tests.support.sharded import rewrite

HEADER = ["id", "x", "w", "k", "day", "user", "amount", "y"]


def table(n=150, seed=0):
    """Rows with missing numbers and words, dates, groups, weights (some are 0) and labels that depend on them."""
    rng = np.random.default_rng(seed)
    found = []
    for k in range(n):
        x, w, number = rng.normal(), rng.choice(["ann", "bob", "eve", ""]), int(rng.integers(0, 5))
        y = "yes" if (x > 0) != (w == "bob") or rng.random() < 0.1 else "no"
        x = "" if rng.random() < 0.1 else f"{x:.3f}"
        day = f"2024-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d}"
        found.append([f"r{k}", x, w, str(number), day, f"u{rng.integers(9)}", str(rng.integers(0, 3)), y])
    return found


@pytest.fixture
def data(comm, shared_dir, monkeypatch):
    """A table as a data set, which is read in small parts."""
    monkeypatch.setattr(rows, "PART_ROWS", 16)
    monkeypatch.setattr(scoring, "PART_BYTES", 2000)
    on_root(comm, lambda: write_csv(shared_dir / "a.csv", HEADER, table()))
    named = {"label": "y", "id": "id", "group": "user", "time": "day", "keep": ("day",), "weight": "amount"}
    return convert(
        [shared_dir / "a.csv"], shared_dir / "d", comm, 3, columns=ColumnOptions(categorical=frozenset(["k"])), **named
    )


def everything(manifest):
    """All that a data set says of its rows, from one process."""
    return {
        "ids": dataset.read_ids(manifest, 0, manifest.n),
        "groups": dataset.read_groups(manifest, 0, manifest.n) if manifest.group else None,
        "weights": dataset.read_weights(manifest),
        "labels": np.concatenate([part.labels for part in rows.RowParts(manifest, 0, manifest.n, 0)]),
        "times": np.concatenate([part.shard.read_times(part.place) for part in rows.RowParts(manifest, 0, manifest.n)])
        if manifest.time
        else None,
    }


OPTIONS = (
    FeatureOptions(8),
    FeatureOptions(5, "all", keep=True),
    FeatureOptions(6, "top:2", trees=5, seed=1),
    FeatureOptions(None, trees=7, min_leaf=2, tree_rows=140, keep=True),
    FeatureOptions(8, "x:w,k:x"),
)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_features_are_the_same_on_any_number_of_ranks(comm, shared_dir, data, options):
    """The map is that of one process, rows keep all that they have, and the codes are those of the map."""
    made = build(data.directory, shared_dir / "f", comm, options, n_shards=4)
    alone = on_root(comm, lambda: build(data.directory, shared_dir / "alone", ALONE, options).coded)
    assert made.coded == alone and made.coded.features is not None
    found = feature_map.load(made)
    assert not verify(made.directory) and made.n == data.n and len(made.shards) >= 4
    for name, value in everything(data).items():
        np.testing.assert_array_equal(everything(made)[name], value)
    assert (made.label_map, made.table, made.columns) == (data.label_map, data.table, data.columns)
    assert (made.group, made.time, made.weight) == (data.group, data.time, data.weight)
    X, labels, _ = load_matrix(made)
    raw, raw_labels, _ = load_matrix(replace(data, normalization=NOT_NORMALIZED))
    np.testing.assert_array_equal(labels, raw_labels)
    expected = found.rows(sparse.csr_matrix(raw)).margins(np.eye(made.p)).T
    if made.normalization.scale is not None:
        expected *= made.normalization.scale
        scale = data.normalization.scale
        np.testing.assert_array_equal(made.normalization.scale[: data.p], scale)
        assert options.keep and (made.normalization.scale[data.p :] == 1).all()
    np.testing.assert_allclose(X.toarray(), expected, rtol=1e-15)
    assert (made.layout == "csr") == options.keep
    if options.bins:
        names = [own.name for own in found.bins.attributes]
        assert names == ["x", "w", "k", "day (years since 2000)", "day: month", "day: weekday"]


def as_stored(manifest):
    """The data set without normalization, in which all rows count."""
    return replace(manifest, normalization=NOT_NORMALIZED, weights=False)


@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
def test_a_model_scores_a_row_the_same_everywhere(comm, shared_dir, data, options):
    """CSV, Parquet, a DataFrame, raw data sets, and data sets with the features; and the model file holds the map."""
    made = build(data.directory, shared_dir / "f", comm, options)
    trained = api.train(made.directory, comm.mpi_comm, lam=1e-2, solver="lbfgs", max_evaluations=30)
    on_root(comm, lambda: model.save(shared_dir / "m.h5", trained))
    read = model.load(shared_dir / "m.h5")
    assert read.features.reference == trained.features.reference and read.coded == made.coded
    assert read.p == made.p and read.p_original == data.p
    new = table(80, 1)
    new[3][1], new[5][2] = "7", "who"
    frame = pd.DataFrame(new, columns=HEADER)

    def write():
        write_csv(shared_dir / "b.csv", HEADER, new)
        columns = [pa.array(column) for column in zip(*new, strict=True)]
        pq.write_table(pa.table(columns, HEADER), shared_dir / "b.parquet")

    on_root(comm, write)
    raw = convert([shared_dir / "b.csv"], shared_dir / "e", comm, 2, like=data.directory, label="y", id="id",
                  group="user", time="day", keep=("day",), weight="amount", dtype="float32")  # fmt: skip
    mapped = build(raw.directory, shared_dir / "g", comm, like=made.directory)
    assert mapped.coded == made.coded and mapped.normalization.kind == made.normalization.kind
    how = inputs.InputOptions(labelled=False)
    found = []
    for name in ("b.csv", "b.parquet", "e", "g"):
        scores, ids = [], []
        for part in scoring.score_in_parts(read, shared_dir / name, comm, how):
            scores, ids = scores + comm.allgather(part.scores.tolist()), ids + comm.allgather(part.ids)
        found.append(list(itertools.chain(*scores)))
        assert list(itertools.chain(*ids)) == [row[0] for row in new]
    X, _, _ = load_matrix(as_stored(mapped))
    for scores in found[:3]:
        np.testing.assert_allclose(scores, found[3], rtol=1e-13, atol=1e-6 * options.keep)
    np.testing.assert_allclose(found[3], X @ read.w + read.bias, rtol=1e-9)
    whole = api.predict(read, frame if comm.is_root else frame[:0], comm.mpi_comm)
    np.testing.assert_allclose(whole, found[0] if comm.is_root else [], rtol=1e-12)
    raw_rows, _, _ = load_matrix(as_stored(raw))
    raw_rows = subtract(raw_rows, {j: -mean for j, mean in raw.table.offsets.items()})  # as the table has the numbers
    for given in (raw_rows, raw_rows.toarray()):
        np.testing.assert_allclose(api.predict(read, given, comm.mpi_comm), found[2], rtol=1e-12)
    of_file = scoring.score([read], shared_dir / "e", comm, inputs.InputOptions(groups=True))
    assert of_file.groups is not None and of_file.weights is not None
    ours, theirs = (api.evaluate(read, shared_dir / name, comm.mpi_comm)["rocarea"] for name in ("e", "g"))
    assert ours == pytest.approx(theirs)
    assert read.feature_names[0] == ("x" if options.keep else read.features.column_name(0))


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_columns_without_names(comm, shared_dir, kind):
    """Text and arrays: new rows may lack the last columns, and columns that are new are refused or left out."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(90, 2)), rng.integers(0, 3, 90)[:, None] == np.arange(3), np.arange(90) < 1])
    y = np.where(X[:, 0] * X[:, 1] + 0.1 * rng.normal(size=90) > 0, 1, -1)
    given = sparse.csr_matrix(X) if kind == "csr" else X
    data = on_root(comm, lambda: write_data(shared_dir / "d", given, y, 2))
    made = build(data.directory, shared_dir / "f", comm, FeatureOptions(6, "all", trees=3))
    attributes = feature_map.load(made).bins.attributes
    assert [own.name for own in attributes] == ["column 1", "column 2", "column 3..column 5", "column 6"]
    trained = api.train(made.directory, comm.mpi_comm, lam=1e-2, solver="lbfgs", max_evaluations=20)
    less = on_root(comm, lambda: write_data(shared_dir / "less", given[:, :5], y))
    more = np.hstack([X, np.ones((90, 1))])
    more = on_root(comm, lambda: write_data(shared_dir / "more", sparse.csr_matrix(more) if kind == "csr" else more, y))
    at = [90 * rank // comm.size for rank in (comm.rank, comm.rank + 1)]

    def scores(rows, **how):
        return np.concatenate(comm.allgather(api.predict(trained, rows, comm.mpi_comm, **how)))

    expected = scores(np.where(np.arange(6) < 5, X, 0)[at[0] : at[1]])
    np.testing.assert_allclose(scores(less.directory), expected, rtol=1e-12)
    np.testing.assert_allclose(scores(more.directory, ignore_new_features=True), scores(data.directory), rtol=1e-12)
    with pytest.raises(InputError, match=r"uses column 7 \(counted from 1\), but the model has 6 columns"):
        api.predict(trained, more.directory, comm.mpi_comm)
    with pytest.raises(InputError, match="uses column 7"):
        build(more.directory, shared_dir / "g", comm, like=made.directory)
    comm.barrier()  # the root removes what it made
    assert not (shared_dir / "g").exists()
    build(less.directory, shared_dir / "g", comm, like=made.directory)
    X[3, 0] = np.nan
    with pytest.raises(InputError, match="NaN"):
        api.predict(trained, X, comm.mpi_comm)
    with pytest.raises(InputError, match="6 columns"):
        api.predict(trained, X[:, :4], comm.mpi_comm)


def test_names_of_the_user_are_those_that_people_see(comm, shared_dir, data):
    """In data without names, and in a table, whose columns may be named whole."""
    X = np.column_stack([np.arange(8.0), np.arange(8) % 2, 1 - np.arange(8) % 2, np.ones(8)])
    plain = on_root(comm, lambda: write_data(shared_dir / "p", X, [1, -1] * 4))
    chosen = {"age": 1, "job": [2, "3"]}
    on_root(comm, lambda: (shared_dir / "a.json").write_text(json.dumps(chosen)))
    options = FeatureOptions(2, keep=True, attributes=shared_dir / "a.json", trees=2, min_leaf=1)
    made = build(plain.directory, shared_dir / "f", comm, options)
    trained = api.train(made.directory, comm.mpi_comm, lam=1.0, solver="lbfgs", max_evaluations=5)
    assert contributions(trained).columns == ["age", "job", "column 4"]
    assert list(trained.feature_names)[:5] == ["age", "job=2", "job=3", "column 4", "age < 4"]
    chosen = {"number": "x", "who": "w", "some": ["day: month=1", "day: month=2"]}
    on_root(comm, lambda: (shared_dir / "a.json").write_text(json.dumps(chosen)))
    made = build(data.directory, shared_dir / "t", comm, FeatureOptions(2, attributes=shared_dir / "a.json"))
    x, w, some = feature_map.load(made).bins.attributes
    assert (x.missing, x.categories, w.categories) == (1, None, ("ann", "bob", "eve", "missing"))
    assert some.categories == ("1", "2") and some.none
    trained = api.train(made.directory, comm.mpi_comm, lam=1.0, solver="lbfgs", max_evaluations=5)
    assert contributions(trained).columns == ["number", "who", "k", "day", "some"]


def test_attributes_of_the_user(comm, shared_dir, data):
    names = data.table.feature_names
    chosen = {"who": [name for name in names if name.startswith("w=")], "x": "x"}
    on_root(comm, lambda: (shared_dir / "a.json").write_text(json.dumps(chosen)))
    made = build(data.directory, shared_dir / "f", comm, FeatureOptions(4, "x:who", attributes=shared_dir / "a.json"))
    found = feature_map.load(made).bins
    assert [own.name for own in found.attributes] == ["who", "x"] and found.pairs == ((0, 1),)
    assert found.attributes[0].none  # rows without a word
    for wrong, message in (
        ({"x": ["x", "w=ann"]}, "has other values than 0 and 1"),
        ({"both": ["w=ann", "day: month=1", "day: month=2"]}, "a row sets 2 of its columns"),
        ({"z": "z"}, "there is no column 'z'"),
    ):
        on_root(comm, lambda wrong=wrong: (shared_dir / "b.json").write_text(json.dumps(wrong)))
        with pytest.raises(InputError, match=message):
            build(data.directory, shared_dir / "g", comm, FeatureOptions(4, attributes=shared_dir / "b.json"))
        comm.barrier()  # the root removes what it made
        assert not (shared_dir / "g").exists()


def test_options_that_do_not_fit(comm, shared_dir, data):
    for options, message in (
        (FeatureOptions(8, "x:zebra"), "'x:zebra' is not a pair A:B"),
        (FeatureOptions(8, "x:x"), "'x:x' is not a pair"),
        (FeatureOptions(8, "top:0"), "top:K needs a whole number"),
        (FeatureOptions(8, ""), "'' is not a pair"),
        (FeatureOptions(1), "2 to 16384 bins, not 1"),
        (FeatureOptions(10**6), "bins, not 1000000"),
        (FeatureOptions(8, attributes="/nowhere"), "cannot be read"),
        (FeatureOptions(None, trees=10**9), "trees"),
        (FeatureOptions(None, trees=2, seed=-1), "a seed from 0 to"),
    ):
        with pytest.raises(InputError, match=message):
            build(data.directory, shared_dir / "f", comm, options)
        comm.barrier()  # the root removes what it made
        assert not (shared_dir / "f").exists()
    for wrong, message in (({"tree_rows": -5}, "it must be at least 100"), ({"seed": 2**63}, r"at most 2\^62")):
        with pytest.raises(InputError, match=message):
            FeatureOptions(None, trees=2, **wrong)


def test_many_columns_are_said_before_training(comm, shared_dir, data, monkeypatch):
    said, observer = [], growing.FeaturesObserver()
    observer.noted = lambda kind, text: said.append((kind, text))
    monkeypatch.setattr(fitting, "MANY_COLUMNS", 5)
    build(data.directory, shared_dir / "f", comm, FeatureOptions(4, "all", trees=2), observer=observer)
    assert len(said) == comm.is_root
    if comm.is_root:
        ((kind, text),) = said
        assert kind == "warning" and "columns: training needs about" in text
        assert "--min-leaf" in text and "--crosses top:K" in text


def test_data_that_cannot_get_features(comm, shared_dir, data):
    made = build(data.directory, shared_dir / "f", comm, FeatureOptions(4))
    on_root(comm, lambda: (shared_dir / "s.strings").write_text("1 ACGT\n-1 ACGA\n"))
    sites = convert([shared_dir / "s.strings"], shared_dir / "s", comm, sequences=SequenceOptions(degree=2))
    codes = np.zeros((4, 1), np.uint8)
    own = on_root(comm, lambda: write_data(shared_dir / "c", None, [1, -1, 1, -1], codes=[(Categories((2,)), codes)]))
    for path, like, message in (
        (sites.directory, None, "has sequences, which have no columns"),
        (made.directory, None, "has features already"),
        (own.directory, None, "written from Python"),
        (data.directory, data.directory, "that data set has no features"),
        (data.directory, own.directory, "that data set has no features"),
    ):
        with pytest.raises(InputError, match=message):
            build(path, shared_dir / "g", comm, like=like)
    with pytest.raises(InputError, match="is the data set that the features are made from"):
        build(data.directory, data.directory, comm, overwrite=True)
    with pytest.raises(InputError, match="holds a data set already"):
        build(data.directory, made.directory, comm)
    other = on_root(comm, lambda: write_data(shared_dir / "o", np.eye(4), [1, -1, 1, -1]))
    with pytest.raises(InputError, match="was made from data without names, but the features from a table"):
        build(other.directory, shared_dir / "g", comm, like=made.directory)
    trained = api.train(made.directory, comm.mpi_comm, lam=1.0, solver="lbfgs", max_evaluations=5)
    again = build(data.directory, shared_dir / "h", comm, FeatureOptions(5))
    for path, message in (
        (again.directory, "were made by other rules than those of the model"),
        (own.directory, "has rows of 1 codes"),
        (sites.directory, "has sequences of"),
        (shared_dir / "s.strings", "has sequences, but the model was not trained on sequences"),
    ):
        with pytest.raises(InputError, match=message):
            api.predict(trained, path, comm.mpi_comm)
    comm.barrier()  # the root removes what it made
    assert not (shared_dir / "g").exists()


def test_files_of_maps_that_were_changed(comm, shared_dir, data):
    """A map that is missing, that of another data set, and one that was changed by hand: refused in words."""
    made = build(data.directory, shared_dir / "f", comm, FeatureOptions(4, trees=2))
    other = build(data.directory, shared_dir / "o", comm, FeatureOptions(5))
    path = made.directory / "features.h5"
    for action, message in (
        (lambda: path.unlink(), "is missing; copy the data set again"),
        (lambda: shutil.copy(other.directory / "features.h5", path), "is not the one that it was written with"),
        (lambda: path.write_bytes(b"nothing"), "cannot be read as a feature map"),
    ):
        on_root(comm, action)
        with pytest.raises(InputError, match=message):
            feature_map.load(read_manifest(made.directory))
        with pytest.raises(InputError, match=message):
            build(data.directory, shared_dir / "g", comm, like=made.directory)


def test_an_old_data_set_stays_until_the_new_one_is_complete(comm, shared_dir, data, monkeypatch):
    """A failure on one rank leaves the old data set, its map included, and none of the new files."""
    made = build(data.directory, shared_dir / "f", comm, FeatureOptions(4))
    comm.barrier()  # the root is the last to leave, as it removes its lock
    before = sorted((path.name, path.read_bytes()) for path in made.directory.iterdir())
    comm.barrier()
    finish, last = finish_shard, comm.rank == comm.size - 1

    def fail(*args, **more):
        if last:
            raise InputError("the disk is full")
        return finish(*args, **more)

    monkeypatch.setattr(building, "finish_shard", fail)
    with pytest.raises(InputError, match="the disk is full"):
        build(data.directory, made.directory, comm, FeatureOptions(6, trees=2), overwrite=True)
    comm.barrier()
    assert sorted((path.name, path.read_bytes()) for path in made.directory.iterdir()) == before
    monkeypatch.undo()
    comm.barrier()
    again = build(data.directory, made.directory, comm, FeatureOptions(6), overwrite=True)
    assert feature_map.load(again).bins.sizes[0] == 7  # six bins and the missing number
    comm.barrier()  # all have read the map before the root removes it
    plain = on_root(comm, lambda: write_data(made.directory, np.eye(3), [1, -1, 1], overwrite=True))
    assert not (plain.directory / "features.h5").exists()


def test_shards_are_divided_where_memory_wants_it(comm, shared_dir, data, monkeypatch):
    monkeypatch.setattr(building, "SHARD_BYTES", 200)
    made = build(data.directory, shared_dir / "f", comm, FeatureOptions(4, keep=True))
    assert len(made.shards) > 20 and sum(shard.rows for shard in made.shards) == data.n


def test_a_memory_limit_changes_no_feature_or_is_refused_in_words(comm, shared_dir, data, monkeypatch):
    options, column = FeatureOptions(4, "top:1", keep=True), 32 * -(-data.n // comm.size)
    made = build(data.directory, shared_dir / "f", comm, options)
    monkeypatch.setattr(screen, "row_bytes", lambda attributes: 1)
    small = build(data.directory, shared_dir / "s", comm, options, room=column + 50)
    assert small.coded == made.coded and len(small.shards) > len(made.shards)
    with pytest.raises(InputError, match=r"the values of one column, while they are divided, take .* more ranks"):
        build(data.directory, shared_dir / "g", comm, options, room=column - 50)
    monkeypatch.setattr(screen, "row_bytes", lambda attributes: 10**6 * attributes)
    with pytest.raises(InputError, match=r"the rows by which pairs are screened take .*, and --memory leaves"):
        build(data.directory, shared_dir / "g", comm, options, room=column + 50)
    trees = FeatureOptions(None, trees=4, min_leaf=1)
    with pytest.raises(InputError, match=r"to grow a tree on .* --memory leaves 1000 B for it: allow more memory( |$)"):
        build(data.directory, shared_dir / "g", comm, trees, room=1000)
    with pytest.raises(InputError, match=r"--memory leaves 79\.1 KiB .*, or take fewer rows \(--tree-rows 100\)"):
        build(data.directory, shared_dir / "g", comm, trees, room=81_000)
    monkeypatch.setattr(growing, "_EXCHANGE_BYTES", 2**30)
    with pytest.raises(InputError, match=r"have \d+ nodes, and there is memory for 0 .* fewer --trees"):
        build(data.directory, shared_dir / "g", comm, trees, room=10**7)
    with pytest.raises(InputError, match=r"--memory 1\.907 MiB is too little: Python, .* take \d+"):
        room(data, comm, 2e6)
    assert room(data, comm, 2e6 + 2**40) < 2**40
    comm.barrier()  # the root removes what it made
    assert not (shared_dir / "g").exists()


def test_a_map_that_is_not_that_of_the_codes_is_refused_before_training(comm, shared_dir, data):
    """The map and the name of the map of another data set, put in place by hand."""
    made = build(data.directory, shared_dir / "f", comm, FeatureOptions(4))
    other = build(data.directory, shared_dir / "o", comm, FeatureOptions(5))

    def forge():
        shutil.copy(other.directory / "features.h5", made.directory / "features.h5")
        features = json.loads(other.path.read_text())["features"]
        rewrite(made.directory, lambda record: record.update(features=features))

    on_root(comm, forge)
    seen = []
    with pytest.raises(InputError, match=r"manifest\.json: its codes are not those of its feature map"):
        api.train(made.directory, comm.mpi_comm, lam=1.0, solver="lbfgs", watch=seen.append)
    assert not seen
