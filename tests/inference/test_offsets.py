"""Columns far from 0, such as a timestamp as a number: their mean is subtracted wherever rows are scored."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from distsms import api
from distsms.data.convert import convert
from distsms.data.formats.column_options import ColumnOptions
from distsms.data.formats.table_schema import Column
from distsms.errors import InputError
from distsms.estimator import SMSClassifier
from distsms.inference import export
from tests.inference.test_onnx_graph import agrees
from tests.support.files import ALONE, content, on_root

pandas = pytest.importorskip("pandas")
pytest.importorskip("onnxruntime")
TIME = 1.6e9


def visits(n=600, seed=0, offset=TIME):
    """A time in seconds that says something, a temperature, an amount, a year that is missing now and then."""
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.3
    return pandas.DataFrame(
        {
            "time": offset + np.round(1e5 * rng.normal(size=n) + 1e5 * y),
            "temperature": np.round(37 + 0.5 * rng.normal(size=n) + 0.4 * y, 2),
            "amount": np.round(rng.lognormal(size=n), 2),
            "year": pandas.Series(rng.integers(2015, 2024, n).astype(float)).where(rng.random(n) < 0.9),
            "constant": np.ones(n),
            "fraud": np.where(y, "yes", "no"),
        }
    )


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_mean_is_subtracted_where_it_is_far_larger_than_the_deviation(comm, shared_dir, kind):
    frame = visits()
    path = shared_dir / f"a.{kind}"
    on_root(comm, lambda: frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path))
    asked = ColumnOptions(numeric=("constant",))
    made = convert([path], shared_dir / "d", comm, 2, label="fraud", positive="yes", columns=asked, normalize="none")
    numbers = frame.drop(columns="fraud")
    far = (numbers.mean().abs() > 10 * numbers.std()) & (numbers.nunique() > 1)
    assert {column.name for column in made.table.columns if column.centred} == {"time", "temperature", "year"}
    assert set(numbers.columns[far]) == {"time", "temperature", "year"}
    expected = numbers.fillna(numbers.mean()) - numbers.mean() * far
    expected["year is missing"] = numbers.year.isna()
    found = content(shared_dir / "d")[0]
    wanted = np.column_stack([expected[name] for name in made.table.feature_names]).astype(float)
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-6)


@pytest.mark.serial
@pytest.mark.parametrize("measure", ["rocarea", "precision@60"])
def test_the_model_is_that_of_a_table_with_the_offset_subtracted_by_hand(tmp_path, measure):
    """The ROCArea of other rows, too. With the offset, precision@K would be a matter of the longest column."""
    found = []
    for offset in (TIME, 0.0):
        train, test = visits(offset=offset), visits(seed=1, offset=offset)
        if not offset:  # by hand
            for name in ("temperature", "year"):
                test[name] -= train[name].mean()
                train[name] -= train[name].mean()
            test["time"] -= train["time"].mean()
            train["time"] -= train["time"].mean()
        one = api.train(train, label="fraud", positive="yes", measure=measure, lam=1e-2, solver="bmrm", check=False)
        found.append((one.w, roc_auc_score(test.fraud == "yes", api.predict(one, test.drop(columns="fraud")))))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4, atol=1e-9)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-3) and found[0][1] > 0.6


@pytest.mark.serial
@pytest.mark.parametrize("normalize", ["standard", "none", "l2"])
def test_scores_agree_wherever_rows_are_scored(tmp_path, normalize):
    """In CSV, Parquet, a DataFrame, shards made --like the training data, onnxruntime, and scikit-learn's way."""
    frame, new = visits(), visits(n=50, seed=2)
    frame.to_csv(tmp_path / "a.csv", index=False)
    convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="fraud", positive="yes", normalize=normalize)
    one = api.train(tmp_path / "d", lam=1e-2, solver="lbfgs")
    rows = new.drop(columns="fraud")
    expected = api.predict(one, rows)
    assert np.ptp(expected) > 0
    agrees(one, rows, tmp_path)  # CSV and onnxruntime
    rows.to_parquet(tmp_path / "b.parquet")
    np.testing.assert_allclose(api.predict(one, tmp_path / "b.parquet"), expected, rtol=1e-9)
    new.to_csv(tmp_path / "new.csv", index=False)
    convert([tmp_path / "new.csv"], tmp_path / "like", ALONE, label="fraud", like=tmp_path / "d")
    np.testing.assert_allclose(api.predict(one, tmp_path / "like"), expected, rtol=1e-9)
    if normalize == "l2":
        return
    X = rows.fillna(frame.drop(columns="fraud").mean()).assign(missing=rows.year.isna())
    X = X.drop(columns="constant").to_numpy(float)
    api.save_model(tmp_path / "m.h5", one)
    made = SMSClassifier.from_model(tmp_path / "m.h5")
    np.testing.assert_allclose(X @ made.coef_[0] + made.intercept_ + made.threshold_, expected, rtol=1e-6, atol=1e-6)
    told = {row["name"]: float(row["value"]) for row in csv.DictReader(export.csv(one).decode().splitlines())}
    by_hand = X @ [told[name] for name in one.feature_names] + told["bias"]
    np.testing.assert_allclose(by_hand, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.serial
def test_a_record_of_an_earlier_version_has_no_centre(tmp_path):
    old = {"name": "time", "categories": None, "missing": False, "kind": "number", "fill": TIME}
    column = Column.from_json(old)
    assert not column.centred and column.as_json() == old
    with pytest.raises(ValueError, match="centred contradict"):
        Column("day", kind="date", centred=True)


@pytest.mark.serial
def test_data_with_another_mean_are_refused(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        visits(seed=seed).to_csv(tmp_path / f"{name}.csv", index=False)
        convert([tmp_path / f"{name}.csv"], tmp_path / name, ALONE, label="fraud", positive="yes")
    one = api.train(tmp_path / "a", lam=1e-2, solver="lbfgs")
    with pytest.raises(InputError, match=r"is subtracted from 'time' there and 16\d+\.\d+ here.*--like TRAINING_DATA"):
        api.predict(one, tmp_path / "b")
