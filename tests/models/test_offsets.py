"""Columns far from 0, such as a timestamp as a number: their mean is subtracted wherever rows are scored."""

from __future__ import annotations

import csv
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics import roc_auc_score

from distsms.__main__ import main
from distsms.base.errors import InputError
from distsms.features.build import build
from distsms.features.fit import FeatureOptions
from distsms.models import export
from distsms.python import api
from distsms.python.estimator import SMSClassifier
from distsms.shards.column_options import ColumnOptions
from distsms.shards.from_arrays import write_data
from distsms.shards.table_schema import Column
from tests.models.test_onnx_graph import agrees
from tests.support.conversion import convert
from tests.support.files import ALONE, content, on_root, write, write_anndata

pandas = pytest.importorskip("pandas")
pytest.importorskip("onnxruntime")
pa = pytest.importorskip("pyarrow")
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
def test_the_time_of_dates_counts_as_the_same_time_as_a_number(tmp_path):
    """Its mean is subtracted, a missing date counts as the mean, and rows of numbers get the same scores."""
    frame = visits().assign(when=lambda rows: pandas.to_datetime(rows.time.round(), unit="s").where(rows.amount < 3))
    days = frame[["when", "fraud"]]
    years = ((days.when - pandas.Timestamp("2000-01-01")) / pandas.Timedelta(days=365.25)).to_numpy()
    days.to_csv(tmp_path / "a.csv", index=False)
    made = convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="fraud", positive="yes", normalize="none")
    (column,) = made.table.columns
    assert column.centred and column.fill == pytest.approx(np.nanmean(years), rel=1e-12)
    X = content(tmp_path / "d")[0]
    np.testing.assert_allclose(X[:, 0], np.nan_to_num(years - np.nanmean(years)), rtol=1e-6, atol=1e-12)
    assert "the mean of its years since 2000" in made.columns[0].notes[0]
    one = api.train(tmp_path / "d", lam=1e-2, solver="lbfgs")
    X[:, 0] += column.fill  # as numbers have it that no table made
    expected = api.predict(one, tmp_path / "a.csv")
    for rows in (X, days.drop(columns="fraud"), tmp_path / "d"):
        np.testing.assert_allclose(api.predict(one, rows), expected, rtol=1e-9, atol=1e-12)


def numbers_in(measures):
    return {name: value for name, value in measures.items() if isinstance(value, float | int)}


def sources(folder, frame, X):
    """Return the same rows in every format, by its name: by the names of columns, and as numbers in their order."""
    rows, shuffled = frame.drop(columns="fraud"), frame.sample(frac=1, axis=1, random_state=0)
    y = np.where(frame.fraud == "yes", 1, -1)
    rows.to_csv(folder / "named.csv", index=False)
    shuffled.to_csv(folder / "shuffled.tsv.gz", index=False, sep="\t")
    shuffled.to_parquet(folder / "named.parquet")
    frame.to_csv(folder / "labelled.csv", index=False)
    write(folder / "numbers.svm", X, y)
    np.savez(folder / "dense.npz", X=X, y=frame.fraud.to_numpy(str))
    np.save(folder / "dense.npy", X)
    sparse.save_npz(folder / "sparse.npz", sparse.csr_matrix(X))
    convert([folder / "labelled.csv"], folder / "like", ALONE, label="fraud", like=folder / "d")
    convert([folder / "numbers.svm"], folder / "of_numbers", ALONE)
    for name, matrix in (("dense", X), ("sparse", sparse.csr_matrix(X))):
        write_data(folder / name, matrix, y)
    names = ("named.csv", "shuffled.tsv.gz", "named.parquet", "labelled.csv", "numbers.svm", "dense.npz", "dense.npy")
    names += ("sparse.npz", "like", "of_numbers", "dense", "sparse")
    found = {name: folder / name for name in names} | {"array": X, "list": X.tolist(), "CSR": sparse.csr_matrix(X)}
    return found | {"DataFrame": rows, "shuffled": shuffled, "pyarrow": pa.Table.from_pandas(shuffled)}


@pytest.mark.serial
@pytest.mark.parametrize("normalize", ["standard", "none", "l2", "features"])
def test_a_row_has_one_score(tmp_path, normalize):
    """In every format, and by every way of scoring: Python, the program, scikit-learn's way, onnxruntime."""
    frame, new = visits(), visits(n=50, seed=2)
    frame.to_csv(tmp_path / "a.csv", index=False)
    made = normalize == "features"
    kind = "standard" if made else normalize
    d = convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="fraud", positive="yes", normalize=kind)
    if made:
        build(tmp_path / "d", tmp_path / "f", ALONE, FeatureOptions(bins=8, keep=True, trees=5))
    one = api.train(tmp_path / ("f" if made else "d"), lam=1e-2, solver="lbfgs", measure="logistic", bias=1.0)
    api.save_model(tmp_path / "m.h5", one)
    one = api.load_model(tmp_path / "m.h5")
    X = new.drop(columns="fraud").fillna(frame.drop(columns="fraud").mean()).assign(missing=new.year.isna())
    X["year"] = X.year.where(new.year.notna(), d.table.columns[3].fill)  # the same mean, to the bit
    X = np.ascontiguousarray(X.drop(columns="constant"), float)
    given = sources(tmp_path, new, X)
    if made:
        build(tmp_path / "like", tmp_path / "like_f", ALONE, like=tmp_path / "f")
        given["features"] = tmp_path / "like_f"
    expected = api.predict(one, given["named.csv"])
    assert np.ptp(expected) > 0
    same = partial(np.testing.assert_allclose, desired=expected, rtol=1e-12, atol=1e-12)
    measured = numbers_in(api.evaluate(one, given["labelled.csv"]))
    for name, rows in given.items():
        same(api.predict(one, rows), err_msg=name)
        if not isinstance(rows, Path):
            assert numbers_in(api.evaluate(one, (rows, new.fraud))) == pytest.approx(measured, rel=1e-12, nan_ok=True)
        elif normalize == "standard":
            words = ["predict", tmp_path / "m.h5", rows, "--output", tmp_path / "s.npy", "--quiet"]
            assert main([*map(str, words)]) == 0
            same(np.load(tmp_path / "s.npy"), err_msg=name)
    for name in ("dense.npz", "like", "of_numbers"):
        assert numbers_in(api.evaluate(one, given[name])) == pytest.approx(measured, rel=1e-12, nan_ok=True), name
    whole = new[new.year.notna()]
    write_anndata(
        tmp_path / "a.h5ad",
        whole[["amount", "year", "time", "temperature"]].to_numpy(),
        ["amount", "year", "time", "temperature"],
        {"fraud": whole.fraud.to_numpy(str)},
    )
    np.testing.assert_allclose(
        api.predict(one, tmp_path / "a.h5ad"), expected[new.year.notna()], rtol=1e-12, atol=1e-12
    )
    agrees(one, new.drop(columns="fraud"), tmp_path)  # onnxruntime
    if normalize == "none":  # a model of numbers adds the means that a table's data set lacks
        of_numbers = api.train(tmp_path / "of_numbers", lam=1e-2, solver="lbfgs", max_evaluations=20)
        for name in ("like", "array"):
            np.testing.assert_allclose(api.predict(of_numbers, given[name]), X @ of_numbers.w, rtol=1e-12)
    if normalize == "l2":
        return
    classifier = SMSClassifier.from_model(tmp_path / "m.h5")
    for rows in (X, sparse.csr_matrix(X), pandas.DataFrame(X, columns=d.table.feature_names)):
        same(classifier.decision_function(rows) + classifier.threshold_)
        assert (classifier.predict(rows) == np.where(expected >= one.threshold, "yes", "no")).all()
        np.testing.assert_allclose(classifier.predict_proba(rows)[:, 1], one.probabilities(expected), rtol=1e-12)
    if made:
        tables = [
            api.contributions(one, rows).tables()
            for name, rows in given.items()
            if name in ("like", "array", "DataFrame", "numbers.svm")
        ]
        for table in tables[1:]:
            np.testing.assert_allclose(table["attributes"]["share"], tables[0]["attributes"]["share"], rtol=1e-9)
        return
    np.testing.assert_allclose(
        X @ classifier.coef_[0] + classifier.intercept_ + classifier.threshold_, expected, rtol=1e-6, atol=1e-6
    )
    told = {row["name"]: float(row["value"]) for row in csv.DictReader(export.csv(one).decode().splitlines())}
    by_hand = X @ [told[name] for name in one.feature_names] + told["bias"]
    np.testing.assert_allclose(by_hand, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.serial
def test_a_record_of_an_earlier_version_has_no_centre(tmp_path):
    old = {"name": "time", "categories": None, "missing": False, "kind": "number", "fill": TIME}
    column = Column.from_json(old)
    assert not column.centred and column.as_json() == old
    with pytest.raises(ValueError, match="contradict each other"):
        Column("day", kind="hash", bits=3, centred=True)


@pytest.mark.serial
def test_data_with_another_mean_are_refused(tmp_path):
    for name, seed in (("a", 0), ("b", 1)):
        visits(seed=seed).to_csv(tmp_path / f"{name}.csv", index=False)
        convert([tmp_path / f"{name}.csv"], tmp_path / name, ALONE, label="fraud", positive="yes")
    one = api.train(tmp_path / "a", lam=1e-2, solver="lbfgs")
    with pytest.raises(InputError, match=r"is subtracted from 'time' there and 16\d+\.\d+ here.*like=TRAINING_DATA"):
        api.predict(one, tmp_path / "b")
