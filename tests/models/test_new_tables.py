"""Tables that are scored, beside those that trained: other columns, types, labels and ids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distsms.base.errors import InputError
from distsms.models import inputs, model, scoring
from distsms.python import api
from tests.models.test_output import predicted, table, trained
from tests.support.conversion import convert
from tests.support.files import ALONE, HEADER, content, mixed, numbers, on_root, write, write_csv


def test_other_tables_are_read_as_the_training_data(comm, shared_dir):
    """Columns in another order, no label, unknown categories, values missing for the first time: all are counted."""
    rows = [[x or "0", w, k, y] for x, w, k, y in mixed()]
    on_root(comm, lambda: table(shared_dir, rows=rows))
    one = trained(shared_dir, comm, "standard", id="id")
    assert [name for name in one.feature_names if "missing" in name] == ["w is missing"]
    new = [["bob", "2", ""], ["who", "2", "1"], ["", "3", "-1"], ["who", "", "5e-1"]]
    on_root(comm, lambda: write_csv(shared_dir / "new.csv", ["w", "k", "x"], new))
    w = dict(zip(one.feature_names, one.w, strict=True))
    x, k = (np.mean([float(row[place]) for row in rows]) for place in (0, 2))  # what missing numbers count as
    expected = [x * w["x"] + 2 * w["k"] + w["w=bob"], w["x"] + 2 * w["k"]]
    expected += [3 * w["k"] - w["x"] + w["w is missing"], w["x"] / 2 + k * w["k"]]
    notes = []
    ids, scores = predicted(one, shared_dir / "new.csv", comm, shared_dir, notes=notes)
    np.testing.assert_allclose(scores, expected, rtol=1e-12)
    assert ids == []
    for what, count in (
        ("'w': categories that the training data did not have", 2),
        ("'x': missing", 1),
        ("'k': missing", 1),
    ):
        assert any(what in line and f": {count} row" in line for line in notes)


def test_labels_of_other_words_are_told_with_those_of_the_training_data(comm, shared_dir):
    rows = mixed()
    numbers = [[*row[:3], int(row[3] == "y")] for row in rows]
    on_root(comm, lambda: (table(shared_dir, rows=numbers), table(shared_dir, "new.csv", rows)))
    one = trained(shared_dir, comm, "none", id="id", positive=1)
    with pytest.raises(InputError, match=r"found '[yn]': expected a label of the training data: 1 \(positive\) or 0"):
        scoring.score([one], shared_dir / "new.csv", comm, inputs.AS_TRAINED)


@pytest.mark.parametrize(
    "header, row, message",
    [
        (["x", "k"], ["1", "2"], r"no column 'w', which the training data had; it has 'id', 'x', 'k'"),
        (
            ["x", "w", "k", "z"],
            ["1", "ann", "2", "3"],
            r"column 'z', which the training data did not have.*--ignore-new",
        ),
        (["x", "w", "k"], ["1", "ann", "two"], r"new\.csv:2: column 'k': found 'two': expected a number"),
        (["x", "w", "k"], ["inf", "ann", "2"], r"new\.csv:2: column 'x'.*not finite"),
    ],
)
def test_tables_that_do_not_fit(comm, shared_dir, header, row, message):
    on_root(comm, lambda: (table(shared_dir), table(shared_dir, "new.csv", [row], header)))
    one = trained(shared_dir, comm, "none", id="id")
    with pytest.raises(InputError, match=message):
        predicted(one, shared_dir / "new.csv", comm, shared_dir)
    comm.barrier()
    if "--ignore" in message:
        assert len(predicted(one, shared_dir / "new.csv", comm, shared_dir, ignore_new=True)[1]) == 1
    else:
        assert not (shared_dir / "scores.txt").exists()


@pytest.mark.parametrize("kind", ["csv", "parquet", "h5ad", "sparse.h5ad"])
def test_dropped_columns_may_be_there_or_not(comm, shared_dir, kind, capsys):
    """Tables are scored and sharded, also by a model that was saved and by a set that was itself made like another."""
    X, y = numbers()
    names = ["c0", "", *(f"c{k}" for k in range(2, 7))]  # pandas writes an index without a name
    kept, some = [0, 2, 3, 4, 6], [6, 2, 1, 0, 3, 4]
    files = {"all": list(range(7)), "some": some, "none": kept}

    def prepare():
        write(shared_dir / "a.csv", X, y, names)
        for name, which in files.items():
            write(shared_dir / f"{name}.{kind}", X[:, which], y, [names[k] for k in which])
        write(shared_dir / f"new.{kind}", X[:, [*range(7), 0]], y, [*names, "z"])

    on_root(comm, prepare)
    one = trained(shared_dir, comm, "maxabs", positive=7, drop=("c5", "", "c5"))
    on_root(comm, lambda: model.save(shared_dir / "m.h5", one))
    one, like = model.load(shared_dir / "m.h5"), shared_dir / "train"
    assert one.feature_names == [names[k] for k in kept] and one.table.dropped == ("c5", "")
    capsys.readouterr()
    notes = []
    for name in files:
        path = shared_dir / f"{name}.{kind}"
        np.testing.assert_allclose(
            predicted(one, path, comm, shared_dir, notes=notes)[1], X[:, kept] @ one.w, rtol=1e-9
        )
        assert convert([path], shared_dir / name, comm, 2, like=like).table == one.table
        np.testing.assert_array_equal(content(shared_dir / name)[0], X[:, kept])
        found = [api.evaluate(one, data, comm.mpi_comm) for data in (path, shared_dir / name)]
        assert found[0] == found[1]
        like = shared_dir / name
    assert capsys.readouterr().err == "" and not notes
    with pytest.raises(InputError, match=r"'z', which the training data did not have\. --ignore-new-features"):
        predicted(one, shared_dir / f"new.{kind}", comm, shared_dir)
    with pytest.raises(
        InputError, match=r"'z', which the training data did not have\. Remove it from the file, or make"
    ):
        convert([shared_dir / f"new.{kind}"], shared_dir / "x", comm, like=like)


@pytest.mark.serial
def test_labels_and_ids_of_training_are_not_new_columns(tmp_path):
    """Another column has the labels, or one of several files lacks the ids."""
    table(tmp_path)
    one = trained(tmp_path, ALONE, "none", id="id")
    path = table(tmp_path, "b.csv", [[*row, row[-1]] for row in mixed()], [*HEADER, "truth"])
    expected = scoring.score([one], tmp_path / "train", ALONE, inputs.InputOptions())
    found = scoring.score([one], path, ALONE, inputs.InputOptions(label="truth"))
    np.testing.assert_allclose(found.scores[0], expected.scores[0], rtol=1e-12)
    np.testing.assert_array_equal(found.labels, expected.labels)
    write_csv(tmp_path / "c.csv", HEADER, mixed())
    made = convert([tmp_path / "a.csv", tmp_path / "c.csv"], tmp_path / "d", ALONE, like=tmp_path / "train")
    assert made.n == 400 and not made.ids


@pytest.mark.serial
def test_types_that_changed(tmp_path):
    table(tmp_path)
    one = trained(tmp_path, ALONE, "none", id="id")
    columns = {"x": [1.0], "w": [2.0], "k": [3.0]}
    for change, message in (
        ({"k": ["a"]}, "'k': found 'a': expected a number"),
        ({"x": np.array(["2020-01-01"], "M8[s]")}, "'x': found .*2020.*: expected a number"),
        ({"x": [[1.0]]}, "'x' has the type"),
    ):
        pq.write_table(pa.table({**columns, **change}), tmp_path / "new.parquet")
        with pytest.raises(InputError, match=message):
            predicted(one, tmp_path / "new.parquet", ALONE, tmp_path)
    with pytest.raises(InputError, match="is a table, but the columns of the model's training data"):
        predicted(model.Model(one.w, one.info), tmp_path / "a.csv", ALONE, tmp_path)


def test_test_sets_are_made_like_the_training_data(comm, shared_dir):
    """A table and its shards give the same figures; without --like the features differ, and are refused."""
    rows = mixed()
    few = [row for row in rows if row[1] != "eve"][:50]
    on_root(comm, lambda: (table(shared_dir, rows=rows), table(shared_dir, "few.csv", few)))
    one = trained(shared_dir, comm, "standard", id="id")
    how = {"label": "y", "id": "id"}
    convert([shared_dir / "few.csv"], shared_dir / "like", comm, 2, like=shared_dir / "train", **how)
    convert([shared_dir / "few.csv"], shared_dir / "unlike", comm, 2, "y", **how)
    found = [api.evaluate(one, shared_dir / name, comm.mpi_comm) for name in ("few.csv", "like")]
    assert found[0] == found[1] and found[0]["n"] == 50
    with pytest.raises(InputError, match=r"feature 4 is 'w=é' there and 'w=eve' here.*like=TRAINING_DATA"):
        api.evaluate(one, shared_dir / "unlike", comm.mpi_comm)
    with pytest.raises(InputError, match="--like TRAINING_DATA"):
        predicted(one, shared_dir / "unlike", comm, shared_dir, ignore_new=True)
    with pytest.raises(InputError, match="--like takes what --positive, --drop"):
        convert([shared_dir / "few.csv"], shared_dir / "x", comm, positive="y", like=shared_dir / "train")


@pytest.mark.serial
def test_the_rest_is_negative(tmp_path):
    """Labels that the training data did not have are negative only if there were several negative ones."""
    for name, labels in (("many.csv", "abcabc"), ("two.csv", "abab"), ("new.csv", "ad")):
        write_csv(tmp_path / name, ["x", "y"], [[k, label] for k, label in enumerate(labels)])
    one = trained(tmp_path, ALONE, "none", "many.csv", positive="a")
    assert one.info["label_map"] == {"+1": "a", "-1": ["b", "c"]} and one.classes == (-1, 1)
    assert api.evaluate(one, tmp_path / "new.csv")["n_neg"] == 1
    convert([tmp_path / "two.csv"], tmp_path / "two", ALONE, 1, "a", label="y")
    one = api.train(tmp_path / "two", lam=1e-2, solver="lbfgs")
    with pytest.raises(InputError, match=r"has the label d, but the model knows a \(positive\) and b"):
        api.evaluate(one, tmp_path / "new.csv")
