"""Reasons for single scores: the columns that move the score of a row most, compared with the mean training row."""

import re

import numpy as np
import pandas as pd
import pytest

import distsms
from distsms import cli
from distsms.base.errors import ColumnWarning, InputError
from distsms.models import contributions as of_rows


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    n = 400
    frame = pd.DataFrame({"age": rng.integers(18, 80, n), "income": rng.normal(1000, 300, n).round(1)})
    frame["shop"] = rng.choice(["games", "food", "books"], n)
    score = 0.03 * frame["age"] - 0.002 * frame["income"] + (frame["shop"] == "games") * 1.5 + rng.normal(0, 1, n)
    frame["fraud"] = np.where(score > np.quantile(score, 0.7), "yes", "no")
    return frame


@pytest.fixture(scope="module")
def trained(table):
    return distsms.train(table, label="fraud", lam=1e-2, normalize="standard", positive="yes", solver="lbfgs")


def parsed(texts):
    """Return the number at the end of each reason, by its name, for each row."""
    return [{re.fullmatch(r"(.*) ([+-]\S+)", text)[1]: float(text.rsplit(" ", 1)[1]) for text in row} for row in texts]


def test_all_reasons_add_up_to_the_score_less_its_mean(table, trained):
    rows = table.drop(columns="fraud")
    scores, texts = distsms.predict(trained, rows), parsed(distsms.reasons(trained, rows, 9))
    assert all(set(row) == {"age", "income", "shop"} for row in texts)
    np.testing.assert_allclose([sum(row.values()) for row in texts], scores - scores.mean(), atol=0.02)
    # The oracle: what changes if a column takes its mean.
    means = rows.assign(age=rows["age"].mean(), income=rows["income"].mean())
    for name in ("age", "income"):
        moved = scores - distsms.predict(trained, rows.assign(**{name: means[name]}))
        np.testing.assert_allclose([row[name] for row in texts], moved, atol=0.01)


def test_the_largest_come_first(table, trained):
    rows = table.drop(columns="fraud")
    every, first = distsms.reasons(trained, rows, 3), distsms.reasons(trained, rows, 1)
    assert np.array_equal(every[:, :1], first)
    for row in parsed(every):
        sizes = np.abs(list(row.values()))
        assert np.all(sizes[:-1] >= sizes[1:] - 0.01)


def test_bins_and_crosses_are_terms_of_columns(table, tmp_path):
    table.to_csv(tmp_path / "rows.csv", index=False)
    distsms.shard(tmp_path / "rows.csv", tmp_path / "data", label="fraud", positive="yes")
    distsms.make_features(tmp_path / "data", tmp_path / "features", bins=4, crosses="all", keep=True)
    model = distsms.train(tmp_path / "features", lam=1e-2, solver="lbfgs")
    names, term = of_rows.terms_of(model)
    assert names == ["age", "income", "shop", "age & income", "age & shop", "income & shop"]
    assert len(term) == model.p and set(term) == set(range(6))
    rows = table.drop(columns="fraud")
    scores, texts = distsms.predict(model, rows), parsed(distsms.reasons(model, rows, 6))
    np.testing.assert_allclose([sum(row.values()) for row in texts], scores - scores.mean(), atol=0.03)


def test_a_data_set_may_have_more_columns_than_its_table(table, tmp_path):
    table[["age", "income", "fraud"]].to_csv(tmp_path / "rows.csv", index=False)
    distsms.shard(tmp_path / "rows.csv", tmp_path / "data", label="fraud", positive="yes", n_features=4)
    model, rows = distsms.train(tmp_path / "data", lam=1e-2, solver="lbfgs"), table[["age", "income"]]
    assert of_rows.terms_of(model)[0] == ["age", "income", "column 3", "column 4"]
    scores, texts = distsms.predict(model, rows), parsed(distsms.reasons(model, rows, 4))
    np.testing.assert_allclose([sum(row.values()) for row in texts], scores - scores.mean(), atol=0.02)


def test_the_command_writes_them_in_every_format(table, trained, comm, shared_dir):
    if comm.is_root:
        distsms.save_model(shared_dir / "m.h5", trained)
        table.drop(columns="fraud").to_csv(shared_dir / "new.csv", index=False)
    comm.barrier()
    expected = distsms.reasons(trained, shared_dir / "new.csv", 2)
    for name, reader in (("s.csv", pd.read_csv), ("s.parquet", pd.read_parquet)):
        words = ("predict", shared_dir / "m.h5", shared_dir / "new.csv", "--reasons", 2, "--output", shared_dir / name)
        args = cli.parse([*map(str, words)])
        args.run(args, comm)
        comm.barrier()
        columns = reader(shared_dir / name)
        assert list(columns) == ["score", "reason_1", "reason_2"]
        assert np.array_equal(columns[["reason_1", "reason_2"]].to_numpy(object), expected)


def test_the_model_of_a_path_has_them(table, tmp_path):
    rows = table.drop(columns="fraud")
    table.to_csv(tmp_path / "rows.csv", index=False)
    distsms.shard(tmp_path / "rows.csv", tmp_path / "data", label="fraud", positive="yes", normalize="standard")
    for features in ("raw", "bins=4,keep"):
        options = {"folds": 2, "measure": "logistic", "features": features, "solver": "lbfgs"}
        path = distsms.path(tmp_path / "data", lambdas=[1e-1, 1e-2], output=tmp_path / features, **options)
        scores, texts = distsms.predict(path.model, rows), parsed(distsms.reasons(path.model, rows, 6))
        np.testing.assert_allclose([sum(row.values()) for row in texts], scores - scores.mean(), atol=0.03)
        with pytest.raises(InputError, match="of a path, the chosen one does"):
            distsms.reasons(next((tmp_path / features).rglob("*_all.h5")), rows)


def test_models_without_reasons_say_why(table, trained):
    X, y = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2
    with pytest.raises(InputError, match="train it on a table"):
        distsms.reasons(distsms.train((X, y), lam=1e-2, solver="lbfgs"), X)
    scaled = distsms.train(table, label="fraud", lam=1e-2, normalize="l2", positive="yes", solver="lbfgs")
    with pytest.raises(InputError, match="unit length"):
        distsms.reasons(scaled, table.drop(columns="fraud"))
    for count in (-1, 0, 2.5):
        with pytest.raises(InputError, match=f"is {count}; it must be a whole number"):
            distsms.reasons(trained, table.drop(columns="fraud"), count)


def test_a_category_that_is_new_is_told(table, trained):
    rows = table.drop(columns="fraud").assign(shop="toys")
    for function in (distsms.predict, distsms.reasons):
        with pytest.warns(ColumnWarning, match="toys|shop"):
            function(trained, rows)


def test_contributions_of_a_plain_model_add_up(table, trained):
    found = distsms.contributions(trained, table.drop(columns="fraud"))
    assert found.columns == ["age", "income", "shop"] and not found.attributes
    assert found.kept.sum() == pytest.approx(1.0)
