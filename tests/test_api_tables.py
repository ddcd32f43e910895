"""`distsms.train` on a table in memory: its columns, its errors and its warnings are those of Python."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import distsms
from distsms.__main__ import main
from distsms.base.errors import ColumnWarning, InputError, ModelWarning
from distsms.base.measures import Measure
from distsms.shards.from_arrays import write_data
from tests.cli.test_train_files import payments
from tests.support.files import write_anndata

pytestmark = pytest.mark.serial


def test_a_table_in_python_tells_of_its_columns():
    frame = payments().assign(store_id=np.arange(600) % 7, note=[f"n{k}" for k in range(600)])
    with pytest.warns(ColumnWarning, match=r"info\['columns'\] describes") as told:
        found = distsms.train(frame, label="isFraud", lam=1e-2, solver="lbfgs", max_evaluations=20)
    (said,) = [str(warning.message) for warning in told if warning.category is ColumnWarning]
    lines = said.splitlines()[1:]
    assert lines[1] == "  note: left out: most values occur only once; hashed={'note': 16} keeps it"
    assert [line.split(":")[0].strip() for line in lines[:2]] == ["number", "note"]  # those that are lost come first
    assert any(line.startswith("  store_id: whole numbers that look like codes") for line in lines[2:])
    records = {record["name"]: record for record in found.info["columns"]}
    assert set(records) == set(frame) - {"isFraud"} and records["city"]["taken_for"] == "category"
    assert "hashed={'note': 16} keeps it" in records["note"]["notes"][0]
    assert "categorical=['store_id'] or drop=['store_id']" in records["store_id"]["notes"][0]
    with pytest.warns(ColumnWarning, match=r"^the table: column 'city': categories that"):
        distsms.predict(found, frame.assign(city="nowhere"))
    with pytest.raises(InputError, match=r"the table: has the column 'more', .* ignore_new_features leaves it out"):
        distsms.predict(found, frame.assign(more=1))


@pytest.mark.parametrize(
    "change, told",
    [
        ({"when": "01.02.2024 10:00"}, r"dates=\{'when': '%d.%m.%Y %H:%M'\}"),
        ({"when": "01.02.2024"}, r"dates=\{'when': '%d.%m.%Y'\}"),
        ({"when": "1 213"}, r"thousands=' ' reads it; categorical=\['when'\] takes"),
    ],
)
def test_errors_in_python_name_the_options_of_python(change, told):
    with pytest.raises(InputError, match=told) as caught:
        distsms.train(payments().assign(**change), label="isFraud")
    assert "--" not in str(caught.value)


def test_wrong_calls_in_python_say_what_is_right():
    frame = payments()
    for X in (frame, frame[["amount"]].to_numpy()):
        with pytest.raises(InputError, match=r"train\(\(X, y\)\).*label='y'"):
            distsms.train(X, frame.isFraud)
    with pytest.raises(InputError, match="label is the name of a column, and a Series was given"):
        distsms.train(frame, label=frame.isFraud)
    with pytest.warns(ColumnWarning):
        found = distsms.train(frame, label="isFraud", lam=1e-2, solver="lbfgs", max_evaluations=20)
    for split in 0.2, "0.8,0.2", (0.8, None):
        with pytest.raises(InputError, match=r"^split=.*: give shares as split=\(0.8, 0.2\)$"):
            distsms.train(frame, label="isFraud", split=split)
    with pytest.raises(InputError, match=r"^split=\(0.8, 0.3\): give two or more .* as in split=\(0.8, 0.2\)$"):
        distsms.train(frame, label="isFraud", split=(0.8, 0.3))
    for name, meant in ("date", "dates"), ("hash", "hashed"), ("categorial", "categorical"):
        with pytest.raises(InputError, match=f"no option '{name}'; did you mean {meant}"):
            distsms.train(frame, label="isFraud", **{name: ["city"]})
    for for_readers in ({"labelled": False}, {"table": 3}, {"n_shares": 2}):  # the program alone tells them
        with pytest.raises(InputError, match="there is no option"):
            distsms.train(frame, label="isFraud", **for_readers)
    with pytest.raises(InputError, match="no option 'time_limt' for these rows; did you mean time_limit"):
        distsms.train(([[1.0], [0.0]], [1, -1]), time_limt=1)
    for paths in (["a.csv"], ["a.csv", "b.csv"], ["a.csv", "b.csv", "c.csv"]):
        for call in distsms.train, partial(distsms.evaluate, found):
            with pytest.raises(InputError, match=r"pattern such as 'day-\*.csv'.*is none of these"):
                call(paths)
    for rows, words in ((np.ones((4, 2)), "a ndarray of 4"), ((1, 2, 3), "a tuple of 3"), (5, "5")):
        with pytest.raises(InputError, match=rf"a pair \(X, y\); {words} is none of these$"):
            distsms.train(rows)
    with pytest.raises(InputError, match=r"^the table: has no column 'city'"):
        distsms.predict(found, frame.drop(columns="city"))


def test_more_rows_at_the_top_than_there_are_is_refused_with_their_number():
    with pytest.raises(InputError, match="precision@601: there are 600 training rows"):
        distsms.train(payments().drop(columns="number"), label="isFraud", measure="precision@601")


def test_auc_is_another_name_of_rocarea():
    assert Measure.parse("auc") == Measure.parse("roc_auc") == Measure.parse("rocarea")
    found = distsms.train(([[1.0], [0.0], [2.0]], [1, -1, 1]), measure="auc", lam=0.1, solver="lbfgs")
    assert found.info["measure"] == "rocarea"


def test_all_columns_are_named_at_once(tmp_path):
    frame = payments().assign(one="01.02.2024", two="03.02.2024 10:00")
    with pytest.raises(InputError, match=r"(?s)dates=\{'one': '%d.%m.%Y'\}.*dates=\{'two': '%d.%m.%Y %H:%M'\}"):
        distsms.train(frame, label="isFraud")
    with pytest.warns(ColumnWarning):
        found = distsms.train(payments(), label="isFraud", lam=1e-2, solver="lbfgs", max_evaluations=20)
    with pytest.raises(InputError, match="has no columns 'amount', 'city', which"):
        distsms.predict(found, payments().drop(columns=["city", "amount"]))
    with pytest.raises(InputError, match="has the columns 'a', 'b', which the training data did not have"):
        distsms.predict(found, payments().assign(a=1, b=2))
    write_anndata(tmp_path / "a.h5ad", np.ones((2, 1)), ["amount"], {})
    with pytest.raises(InputError, match=r"has numbers only, and lacks 'city'"):
        distsms.predict(found, tmp_path / "a.h5ad")


def risks(n=200, seed=0):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(n, 3)), columns=["age", "income", "risk"]).assign(member=rng.random(n) < 0.5)
    return X, np.where(3 * X.risk - X.age + rng.normal(size=n) > 0, 1, -1)


def by_pairs(X, y, folder):
    return distsms.train((X, y), lam=0.01, solver="lbfgs", check=False)


def by_moments(X, y, folder):
    found = distsms.ClassMoments(4).update(X[:100], y[:100])
    found.save(folder / "moments.h5")
    found = distsms.ClassMoments.load(folder / "moments.h5").update(
        X[["risk", "member", "age", "income"]][100:], y[100:]
    )
    with pytest.raises(InputError, match="'risk', and other rows have 'age'"):
        found.update(X[["age", "risk"]], y)
    with pytest.raises(InputError, match="other names, or another order"):
        found.merge(distsms.ClassMoments(4).update(X[["risk", "member", "age", "income"]], y))
    return found.model(0.01)


def by_data_set(X, y, folder):
    write_data(folder / "written", X, y)
    return distsms.train(folder / "written", lam=0.01, solver="lbfgs", check=False)


@pytest.mark.parametrize("made", [by_pairs, by_moments, by_data_set])
def test_columns_of_tables_are_found_by_their_names(made, tmp_path, capfd):
    """Also where the labels are apart from the table, in whatever order the columns come."""
    (X, y), (new, labels) = risks(), risks(seed=1)
    one, other = made(X, y, tmp_path), new[["risk", "member", "income", "age"]]
    assert one.feature_names == list(X)
    distsms.save_model(tmp_path / "m.h5", one)
    one = distsms.load_model(tmp_path / "m.h5")
    expected = new.to_numpy(float) @ one.w
    assert np.mean((expected > one.threshold) == (labels > 0)) > 0.8
    tables = [
        new,
        other,
        pa.Table.from_pandas(other),
        pa.RecordBatch.from_pandas(other),
        other.astype({"member": "boolean"}),
    ]
    for rows in (*tables, new.to_numpy(), new.to_numpy(float).tolist()):
        np.testing.assert_allclose(distsms.predict(one, rows), expected, atol=1e-14)
        assert distsms.evaluate(one, (rows, labels))["tp"] == distsms.evaluate(one, (new, labels))["tp"]
    np.testing.assert_allclose(distsms.predict(one, new.assign(more=1), ignore_new_features=True), expected, atol=1e-14)
    other.astype(float).assign(y=labels).to_csv(tmp_path / "new.csv", index=False)
    command = [
        "predict",
        tmp_path / "m.h5",
        tmp_path / "new.csv",
        "--ignore-new-features",
        "--output",
        tmp_path / "s.npy",
    ]
    assert main(list(map(str, command))) == 0
    np.testing.assert_allclose(np.load(tmp_path / "s.npy"), expected, atol=1e-14)
    assert main(["evaluate", str(tmp_path / "m.h5"), str(tmp_path / "new.csv")]) == 1
    assert "which column is the label?" in " ".join(capfd.readouterr().err.split())
    assert main(["evaluate", str(tmp_path / "m.h5"), str(tmp_path / "new.csv"), "--label", "y"]) == 0
    for rows, told in (
        (new.rename(columns={"age": "years"}), "has no column 'age'"),
        (new.drop(columns="age"), "has no column 'age'"),
        (new.assign(more=1), "has the column 'more', .* ignore_new_features leaves it out"),
        (pd.DataFrame(new.to_numpy()), "has no columns 'age', 'income', 'risk', 'member'"),
        (pd.concat([new, new.age], axis=1), "has two columns that are named 'age'"),
    ):
        for scored in (distsms.predict, lambda model, rows: distsms.evaluate(model, (rows, labels))):
            with pytest.raises(InputError, match=f"^X:? {told}"):
                scored(one, rows)
    with pytest.raises(InputError, match="does not know which column has the labels"):
        distsms.evaluate(one, new.assign(y=labels))


def test_a_table_for_a_model_without_names_is_refused():
    """But for one whose columns are numbered as those of an array."""
    X, y = risks()
    one = distsms.train((X.to_numpy(float), y), lam=0.01, solver="lbfgs", check=False)
    numbered = pd.DataFrame(X.to_numpy(float))
    np.testing.assert_array_equal(distsms.predict(one, numbered), distsms.predict(one, X.to_numpy(float)))
    for rows, told in ((X, "'age', 'income'"), (numbered[[2, 0, 1, 3]], "'2', '0'")):
        for scored in (distsms.predict, lambda model, rows: distsms.evaluate(model, (rows, y))):
            with pytest.raises(InputError, match=f"names of columns .{told}.*had none; give the numbers alone"):
                scored(one, rows)
    with pytest.raises(InputError, match=r"not numbers, or lacks values.*train\(frame, label='y'\)"):
        distsms.train((X.assign(word="a"), y))


def test_warnings_on_rows_are_of_the_users_line_and_table():
    frame = payments().assign(shop=[None, *np.arange(599) % 9])
    with pytest.warns(ModelWarning, match="without a group") as told:
        distsms.train(frame, label="isFraud", group="shop", lam=1e-2, solver="lbfgs", max_evaluations=5)
    (of_groups,) = [warning for warning in told if "without a group" in str(warning.message)]
    assert str(of_groups.message).startswith("the table: column 'shop': ")
    assert str(of_groups.message).endswith(": 1 row") and of_groups.filename == __file__
    with pytest.raises(InputError, match=r"drop=.*isFraud.* is the label"):
        distsms.train(frame, label="isFraud", drop=["isFraud"])
