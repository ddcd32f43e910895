"""Tables: features follow from columns and categories by the rules, and damaged tables are refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.errors import InputError
from distsms.ingest.formats import arrow
from distsms.shards.dataset import read_ids
from distsms.shards.table_schema import Table
from tests.support.conversion import convert
from tests.support.files import ALONE, content, on_root, write_csv

COLUMNS = {
    "size": (["", "1", "2.5", "-3e2", "+.5", "0"], None),
    "who": (["", "ann", "bob", "1", "NA", " ann ", "a,b", 'q"'], str),
    "flag": (["true", "false"], str),
}


def one_hot(rows):
    """Return feature names, and a dictionary of values for each row, by the rules, without any library."""
    cleaned = [["" if cell.strip() in ("", "NA") else cell.strip() for cell in row] for row in rows]
    features, columns = [], list(zip(*cleaned, strict=True))
    cells = dict(zip(COLUMNS, columns, strict=True))
    for (name, (_, kind)), column in zip(COLUMNS.items(), columns, strict=True):
        words = kind is str and any(one.strip("+-.0123456789e") for one in column)
        features += [f"{name}={one}" for one in sorted(set(column) - {""})] if words else [name]
        features += [f"{name} is missing"] * ("" in column)
    X = np.zeros((len(rows), len(features)))
    for i, row in enumerate(cleaned):
        for name, cell in zip(COLUMNS, row, strict=True):
            for feature, value in (
                ((f"{name} is missing", 1), (f"{name}={cell}", 1)) if cell else ((f"{name} is missing", 1),)
            ):
                if (feature.endswith("is missing")) == (cell == "") and feature in features:
                    X[i, features.index(feature)] = value
            if name in features:
                known = [float(other) for other in cells[name] if other]
                X[i, features.index(name)] = float(cell) if cell else sum(known) / len(known) if known else 0
    return features, X


@pytest.mark.serial
@given(
    st.lists(st.tuples(*(st.sampled_from(values) for values, _ in COLUMNS.values())), min_size=2, max_size=12),
    st.integers(1, 5),
)
def test_tables_are_encoded_by_the_rules(tmp_path_factory, rows, n_shards):
    folder = tmp_path_factory.mktemp("t")
    labelled = [[*row, "no" if k else "yes", f"r{k}"] for k, row in enumerate(rows)]
    write_csv(folder / "a.csv", [*COLUMNS, "y", "id"], labelled)
    manifest = convert([folder / "a.csv"], folder / "d", ALONE, n_shards, "yes", label="y", id="id")
    features, X = one_hot(rows)
    assert manifest.table.feature_names == features
    np.testing.assert_allclose(content(folder / "d")[0], X, rtol=1e-15)
    assert read_ids(manifest, 0, manifest.n) == [f"r{k}" for k in range(len(rows))]


@pytest.mark.serial
def test_types_of_parquet(tmp_path, monkeypatch):
    """Read dictionaries, truth values, integers, decimals, nulls and NaN. A category with the code 0 is not lost."""
    from decimal import Decimal

    monkeypatch.delattr(pa.types, "is_string_view", raising=False)  # which pyarrow 15 does not have

    table = pa.table(
        {
            "d": pa.array(["b", None, "a", "b"]).dictionary_encode(),
            "t": pa.array([True, False, None, True]),
            "i": pa.array([1, None, 3, 2**40]),
            "f": pa.array([0.5, float("nan"), None, -0.0]),
            "m": pa.array([Decimal("1.25"), Decimal("2.50"), Decimal("0.00"), None]),
            "y": pa.array([True, False, True, False]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    manifest = convert([tmp_path / "a.parquet"], tmp_path / "d", ALONE, label="y")
    names = "d=a d=b,d is missing,t=false t=true,t is missing,i,i is missing,f,f is missing,m,m is missing"
    assert manifest.table.feature_names == [
        one for part in names.split(",") for one in ([part] if "is" in part else part.split())
    ]
    expected = [
        [0, 1, 0, 0, 1, 0, 1, 0, 0.5, 0, 1.25, 0],
        [0, 0, 1, 1, 0, 0, (2**40 + 4) / 3, 1, 0.25, 1, 2.5, 0],
        [1, 0, 0, 0, 0, 1, 3, 0, 0.25, 1, 0, 0],
        [0, 1, 0, 0, 1, 0, 2**40, 0, 0, 0, 1.25, 1],
    ]
    X, y = content(tmp_path / "d")
    np.testing.assert_array_equal(X, expected)
    assert y.tolist() == [1, -1, 1, -1] and manifest.label_map == {"+1": "true", "-1": "false"}


@pytest.mark.serial
def test_a_column_of_dates_without_any_date(tmp_path):
    """Its values are missing numbers, in training and where that had numbers; other columns keep their values."""
    of_type = {"none": pa.array([None] * 4, pa.timestamp("us")), "numbers": pa.array([1.5, None, 2.5, 2.0])}
    for name, column in of_type.items():
        table = pa.table({"t": column, "n": [1, 2, 3, 5], "y": [0, 1, 0, 1]})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        manifest = convert([tmp_path / f"{name}.parquet"], tmp_path / name, ALONE, label="y")
        assert manifest.table.feature_names == ["t", "t is missing", "n"]
    np.testing.assert_array_equal(content(tmp_path / "none")[0], [[0, 1, 1], [0, 1, 2], [0, 1, 3], [0, 1, 5]])
    convert([tmp_path / "none.parquet"], tmp_path / "new", ALONE, label="y", like=tmp_path / "numbers")
    np.testing.assert_array_equal(content(tmp_path / "new")[0], [[2, 1, 1], [2, 1, 2], [2, 1, 3], [2, 1, 5]])
    table = table.set_column(2, "y", pa.array([0, 1, 2, 3], pa.timestamp("us")))
    pq.write_table(table, tmp_path / "dates.parquet")
    with pytest.raises(InputError, match=r"expected a label of the training data: 1 .positive. or 0"):
        convert([tmp_path / "dates.parquet"], tmp_path / "other", ALONE, label="y", like=tmp_path / "numbers")


@pytest.mark.serial
def test_many_columns_of_parquet_are_read_in_few_rows_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow, "BATCH_CELLS", 14)
    pq.write_table(pa.table(dict.fromkeys("abcde", range(5))), tmp_path / "a.parquet")
    files = arrow.ParquetFiles([str(tmp_path / "a.parquet")])
    for names, sizes in (("abcde", [2, 2, 1]), ("ab", [5])):
        batches = files.batches(files.plan(1)[0], arrow.Selection(list(names)))
        assert [batch.n for batch in batches] == sizes


@pytest.mark.serial
def test_what_is_kept_of_a_table(tmp_path):
    """The description counts every feature; a record has `dropped` only if something was dropped."""
    write_csv(tmp_path / "a.csv", ["n", "w", "note", "y"], [["", "a", "x", 0], [2, "", "y", 1], [3, "b", "z", 1]])
    whole = convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="y", drop=("w", "note")).table
    assert whole.describe() == "1 of numbers; 1 for missing values" and whole.p == 2
    assert whole.as_json()["dropped"] == ["w", "note"] and Table.from_json(whole.as_json()) == whole
    plain = convert([tmp_path / "a.csv"], tmp_path / "e", ALONE, label="y").table
    assert plain.describe() == "1 of numbers, 2 of categories: w (2), note (3); 2 for missing values" and plain.p == 8
    assert set(plain.as_json()) == {"version", "columns", "label", "id"} and Table.from_json(plain.as_json()) == plain


def test_files_of_one_table_have_the_same_columns(comm, shared_dir):
    """Files need the same columns except for dropped ones; without training data, the message names the first file."""
    for name, header in (("a", "xyd"), ("b", "yx"), ("c", "xyz"), ("d", "yd")):
        on_root(comm, lambda n=name, h=header: write_csv(shared_dir / f"{n}.csv", h, [[0] * len(h), [1] * len(h)]))
    files = [shared_dir / f"{name}.csv" for name in "abcd"]
    assert convert(files[:2], shared_dir / "ok", comm, label="y", drop=("d",)).n == 4
    for other, message in (
        (files[2], "'z', which .*a.csv does not have. Remove"),
        (files[3], "'x', which .*a.csv has;"),
    ):
        with pytest.raises(InputError, match=message):
            convert([files[0], other], shared_dir / "no", comm, label="y", drop=("d",))


BAD_TABLES = [
    ("x,y\n1,a\n2,b,c\n", {}, r"a\.csv:3: found 3 fields, expected 2"),
    ("x,x,y\n1,2,a\n", {}, "'x' occurs twice"),
    ("x,y\n1,a\n\n2,\n3,b\n", {}, r"a\.csv:4: column 'y'.*label is missing"),
    ("x,y\n1,a\ninf,b\n", {}, r"a\.csv:3: column 'x'.*'inf'.*not finite"),
    ("x,y\n1,a\n2,a\n", {}, "has only the value a"),
    ("x,y\n1,a\n2,b\n", {"positive": "c"}, r"found the labels: a \(1 row\), b \(1 row\); --positive c is none of them"),
    ("x,y\n1,a\n2,b\n", {"positive": None}, r"found the labels: a \(1 row\), b \(1 row\); .*--positive"),
    ("x,y\n1,a\n2,b\n", {"label": None}, "--label COLUMN; columns: 'x', 'y'"),
    ("x,y\n1,a\n2,b\n", {"id": "z"}, "has no column 'z'"),
    ("x,,y\n0,1,a\n1,2,b\n", {}, "column 2 has no name"),
    ('x,y\n1,"a\n2,b"\n', {}, r"column 'y': has only the value a\\n2,b;"),
    (
        "x,y\n" + "".join(f"{k},{'ab'[k % 2]}\n" for k in range(1500)) + "12o,a\n",
        {},
        r"a\.csv:1502: column 'x': found '12o': is not a number",
    ),
    ("y\na\nb\n", {}, "has only labels and ids"),
    (
        "x,y\n" + "".join(f"1,{k}\n" for k in range(1500)),
        {"positive": "3"},
        r"more than 1000 values: is it the label\? .* frame\['y'\] > LIMIT in pandas",
    ),
    (
        "x,y\n" + "".join(f"1,{k}\n" for k in range(11)),
        {"positive": None},
        r"'y' has 11 different numbers: is it the label\? A label tells two .*, or name the positive .* --positive",
    ),
    ("x,y\n" + "".join(f"1,{k}\n" for k in range(10)), {"positive": None}, "found 10 different labels"),
]


@pytest.mark.parametrize("text, how, message", BAD_TABLES)
def test_bad_tables(comm, shared_dir, text, how, message):
    if comm.is_root:
        (shared_dir / "a.csv").write_text(text)
    comm.barrier()
    how = {"label": "y", "positive": "a", **how}
    with pytest.raises(InputError, match=message):
        convert([shared_dir / "a.csv"], shared_dir / "d", comm, **how)
    comm.barrier()
    assert not (shared_dir / "d").exists()
