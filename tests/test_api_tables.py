"""`distsms.train` on a table in memory: its columns, its errors and its warnings are those of Python."""

from __future__ import annotations

import numpy as np
import pytest

import distsms
from distsms.errors import ColumnWarning, InputError
from distsms.measures import Measure
from tests.cli.test_train_files import payments

pytestmark = pytest.mark.serial


def test_a_table_in_python_tells_of_its_columns(capfd):
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
    capfd.readouterr()
    distsms.predict(found, frame.assign(city="nowhere"))
    assert capfd.readouterr().err.startswith("warning: the table: column 'city': categories that")
    with pytest.raises(InputError, match=r"the table: has the column 'more', .* ignore_new_features leaves it out"):
        distsms.predict(found, frame.assign(more=1))


@pytest.mark.parametrize(
    "change, told",
    [
        ({"when": "01.02.2024 10:00"}, r"dates=\{'when': '%d.%m.%Y %H:%M'\}"),
        ({"when": "01.02.2024"}, r"dates=\{'when': '%d.%m.%Y'\}"),
        ({"when": "1.213,50"}, r"thousands='\.' reads it; categorical=\['when'\] takes"),
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
    with pytest.raises(InputError, match=r"^the table: has no column 'city'"):
        distsms.predict(found, frame.drop(columns="city"))


def test_more_rows_at_the_top_than_there_are_is_refused_with_their_number():
    with pytest.raises(InputError, match="precision@601: there are 600 training rows"):
        distsms.train(payments().drop(columns="number"), label="isFraud", measure="precision@601")


def test_auc_is_another_name_of_rocarea():
    assert Measure.parse("auc") == Measure.parse("roc_auc") == Measure.parse("rocarea")
    found = distsms.train(([[1.0], [0.0], [2.0]], [1, -1, 1]), measure="auc", lam=0.1, solver="lbfgs")
    assert found.info["measure"] == "rocarea"


def test_all_columns_are_named_at_once():
    frame = payments().assign(one="01.02.2024", two="03.02.2024 10:00")
    with pytest.raises(InputError, match=r"(?s)dates=\{'one': '%d.%m.%Y'\}.*dates=\{'two': '%d.%m.%Y %H:%M'\}"):
        distsms.train(frame, label="isFraud")
    with pytest.warns(ColumnWarning):
        found = distsms.train(payments(), label="isFraud", lam=1e-2, solver="lbfgs", max_evaluations=20)
    with pytest.raises(InputError, match="has no columns 'amount', 'city', which"):
        distsms.predict(found, payments().drop(columns=["city", "amount"]))
    with pytest.raises(InputError, match="has the columns 'a', 'b', which the training data did not have"):
        distsms.predict(found, payments().assign(a=1, b=2))
