"""ONNX models take the raw columns of a table, and give the scores and labels of `distsms predict`."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.errors import InputError
from distsms.matrix.normalization import KINDS
from distsms.models import model, onnx_graph
from distsms.python import api
from distsms.shards.column_options import ColumnOptions
from distsms.shards.table_schema import Column, Table
from tests.support.conversion import convert
from tests.support.files import ALONE

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.serial


def inputs_of(frame, table):
    """Return what an ONNX model wants of a table that pandas has read without types."""
    names = dict(zip((column.name for column in table.columns), onnx_graph.input_names(table), strict=True))
    words = {column.name for column in table.columns if onnx_graph.takes_strings(column)}
    given = {
        name: (frame[column] if column in words else pd.to_numeric(frame[column], errors="coerce")).to_numpy()[:, None]
        for column, name in names.items()
    }
    if set(given) == {"X"} and not words:
        return {
            "X": np.hstack([pd.to_numeric(frame[column], errors="coerce").to_numpy(float)[:, None] for column in names])
        }
    return {name: values.astype(object if values.dtype == object else float) for name, values in given.items()}


def run(content, given):
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    assert {one.name for one in session.get_inputs()} == set(given)
    return session.run(["score", "label"], given)


def agrees(one, frame, folder):
    """Hold the scores and the labels of the rows against those of `predict`, which reads them as CSV and as Parquet."""
    frame.to_csv(folder / "new.csv", index=False)
    expected = api.predict(one, folder / "new.csv")
    score, label = run(onnx_graph.build(one), inputs_of(frame, one.table))
    np.testing.assert_allclose(score, expected, rtol=1e-10, atol=1e-10 * max(1, np.abs(expected).max()))
    sure = np.abs(expected - one.threshold) > 1e-9
    negative, positive = map(str, one.classes)
    assert (np.where(expected >= one.threshold, positive, negative)[sure] == np.array(label, str)[sure]).all()


# In ONNX, the squares of smaller numbers are 0, so that a row of nothing else is not scaled to length 1.
VALUES = st.floats(-1e6, 1e6).filter(lambda value: value == 0 or abs(value) > 1e-150)
NUMBERS = st.one_of(st.just(""), VALUES.map(repr), st.integers(-9, 9).map(str))
WORDS = st.one_of(st.sampled_from(["", "ann", "bob", "NA", "nan"]), st.text("aé,\"' x=1", max_size=3).map(str.strip))


@st.composite
def tables(draw):
    """Return columns, rows to encode them by, and other rows: values as text."""
    kinds = draw(st.lists(st.sampled_from([NUMBERS, WORDS]), min_size=1, max_size=4))
    names = draw(st.permutations(["score", "label", "a b", "X", "distsms 0"]))[: len(kinds)]
    row = st.tuples(*kinds)
    return names, draw(st.lists(row, min_size=2, max_size=8)), draw(st.lists(row, min_size=1, max_size=8))


@given(tables(), st.sampled_from(KINDS), st.integers(0, 99))
def test_scores_are_those_of_predict(tmp_path_factory, given_table, kind, seed):
    """Test any columns, with unknown categories and missing values, also where the training rows had none."""
    names, rows, others = given_table
    folder, rng = tmp_path_factory.mktemp("onnx"), np.random.default_rng(seed)
    frame = pd.DataFrame(rows, columns=names, dtype=str)
    frame.assign(target=np.arange(len(rows)) % 2).to_csv(folder / "a.csv", index=False)
    manifest = convert([folder / "a.csv"], folder / "d", ALONE, label="target", normalize=kind)
    table = manifest.table
    about = {"threshold": 0.1, "bias": -0.5, "label_map": {"-1": "no", "+1": "yes"}, "zero_based": False}
    one = model.from_training(rng.normal(size=manifest.p), about, manifest)
    agrees(one, frame, folder)
    new = pd.DataFrame(others, columns=names, dtype=str)
    for column in table.columns:
        if column.categories is None:
            new[column.name] = pd.to_numeric(new[column.name], errors="coerce").map(lambda x: "" if x != x else repr(x))
    agrees(one, new, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_model(tmp_path, kind):
    """A mixed table, from pandas to a trained model to its rows with values missing and categories that are new."""
    rng, n = np.random.default_rng(0), 300
    frame = pd.DataFrame({"amount": rng.lognormal(size=n), "city": rng.choice(["Rome", "Oslo", "Bern"], n)})
    frame["age"] = np.where(rng.random(n) < 0.2, np.nan, rng.integers(18, 90, n))
    frame["abroad"] = rng.random(n) < 0.4  # written as True and False
    frame["fraud"] = np.where(frame.amount + (frame.city == "Rome") + rng.normal(size=n) > 2.5, "yes", "no")
    frame.to_csv(tmp_path / "a.csv", index=False)
    convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="fraud", positive="yes", normalize=kind)
    one = api.train(tmp_path / "d", lam=1e-2, solver="lbfgs")
    new = pd.read_csv(tmp_path / "a.csv", dtype=str, keep_default_na=False).drop(columns="fraud")
    agrees(one, new, tmp_path)
    new["abroad"] = new["abroad"].str.upper()
    agrees(one, new, tmp_path)
    new.loc[:20, "city"], new.loc[10:30, "city"], new.loc[5:40, "age"] = "Lima", "", ""
    agrees(one, new, tmp_path)


def test_numbers_as_categories_rare_ones_and_what_is_refused(tmp_path):
    """Codes such as 7 are numbers in ONNX too; missing numbers are filled; dates and hashes are refused by name."""
    rng, n = np.random.default_rng(0), 400
    frame = pd.DataFrame({"code": rng.choice([7, 70, 8.5, 9, 10**12], n, p=[0.4, 0.3, 0.2, 0.09, 0.01])})
    frame["x"] = np.where(rng.random(n) < 0.1, np.nan, rng.normal(3, 1, n).round(3))
    frame["city"] = rng.choice(["Rome", "Oslo", "Bern", "Lima"], n, p=[0.5, 0.3, 0.19, 0.01])
    frame["day"] = pd.to_datetime("2024-01-01") + pd.to_timedelta(rng.integers(0, 90, n), "D")
    frame["y"] = rng.random(n) < 0.3
    frame.to_csv(tmp_path / "a.csv", index=False)
    asked = ColumnOptions(categorical=("code",), min_count=20)
    how = {"label": "y", "columns": asked, "normalize": "standard"}
    convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, drop=("day",), **how)
    one = api.train(tmp_path / "d", lam=1e-2, solver="lbfgs")
    assert [column.numeric for column in one.table.columns] == [True, False, False] and one.table.columns[1].fill
    new = pd.read_csv(tmp_path / "a.csv", dtype=str, keep_default_na=False).drop(columns=["y", "day"])
    agrees(one, new, tmp_path)
    new.loc[:9, "code"], new.loc[5:14, "code"], new.loc[3:7, "x"] = "123", "", ""
    agrees(one, new, tmp_path)
    hashed = ColumnOptions(hashed={"city": 4})
    for columns_asked, dropped, wrong in ((asked, (), "day"), (hashed, ("day",), "city")):
        about = {**how, "columns": columns_asked, "drop": dropped, "overwrite": True}
        convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, **about)
        with pytest.raises(
            InputError, match=rf"the operators of ONNX cannot turn .* \('{wrong}'\).*train again with --drop {wrong}$"
        ):
            onnx_graph.build(api.train(tmp_path / "d", lam=1e-2, solver="lbfgs"))


def test_of_a_sparse_model_only_the_columns_with_a_weight_are_in_the_graph():
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(5, 2000)), np.zeros(2000)
    w[[3, 700, 1999]] = 1.0, -2.0, 0.5
    about = {"threshold": 0.1, "bias": -0.5, "label_map": {"-1": 0, "+1": 1}, "zero_based": False}
    content = onnx_graph.build(model.Model(w, about))
    score, _ = run(content, {"X": X})
    np.testing.assert_allclose(score, X @ w - 0.5, rtol=1e-12)
    assert len(content) < 2000


def test_metadata_has_the_columns():
    """A column that is called as an output gets another name, which the metadata say; without words there is one X."""
    about = {"threshold": 0.25, "label_map": {"-1": 0.0, "+1": 1.0}, "zero_based": False, "measure": "prbep"}
    given = (Column("score", None, True), Column("column score", ("a", "b")), Column("x"))
    one = model.Model(np.arange(5.0), about, Table(given, "y"))
    found = onnx.load_from_string(onnx_graph.build(one))
    known = {entry.key: json.loads(entry.value) for entry in found.metadata_props}
    assert known == {
        "measure": "prbep",
        "threshold": 0.25,
        "columns": [
            {"name": "score", "input": "column column score", "kind": "number", "type": "double"},
            {"name": "column score", "input": "column score", "kind": "category", "type": "string"},
            {"name": "x", "input": "x", "kind": "number", "type": "double"},
        ],
    }
    assert [one.name for one in found.graph.input] == ["column column score", "column score", "x"]
    assert onnx_graph.input_names(Table((Column("score", None, True), Column("x")), "y")) == ["X", "X"]
