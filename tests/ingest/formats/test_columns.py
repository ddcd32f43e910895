"""How columns are treated and encoded, compared with pandas and scikit-learn, on any ranks, in any format."""

from __future__ import annotations

import re
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import HashingVectorizer

from distsms.base import text_files
from distsms.base.errors import InputError
from distsms.base.timing import Clock
from distsms.cli.columns import WIDTH, format_columns
from distsms.ingest.formats.table import TableReader
from distsms.ingest.options import ReadOptions
from distsms.shards.coded_columns import FeatureReference
from distsms.shards.column_options import ColumnOptions, ColumnReport
from distsms.shards.dataset import read_manifest
from distsms.shards.rows import concatenate
from distsms.shards.table_schema import Column, Table
from distsms.workflow.requests import TrainRequest
from distsms.workflow.tables import as_data_sets
from distsms.workflow.train import TrainObserver
from tests.support.conversion import convert
from tests.support.files import ALONE, content, on_root, write_csv

pandas = pytest.importorskip("pandas")
WORDS = np.array(["late", "refund", "card", "travel", "food", "shop", "online", "gift", "cash", "phone"])
ASKED = ColumnOptions(("mcc",), (), {"paid": "%d.%m.%Y"}, {"note": 6, "customer": 5}, 30)


def payments(n=600, seed=0):
    """Payments with an id, dates in two forms, codes, text, rare categories, truth values, and missing values."""
    rng = np.random.default_rng(seed)
    when = pandas.Timestamp("2023-01-01") + pandas.to_timedelta(rng.integers(0, 500 * 86400, n), unit="s")
    amount = np.round(rng.lognormal(3, 1, n), 2)
    amount[rng.random(n) < 0.1] = np.nan
    country = rng.choice(["DE", "FR", "IT", "AX", "missing"], n, p=[0.5, 0.2, 0.19, 0.01, 0.1])
    when = pandas.Series(when).where(rng.random(n) < 0.95)
    return pandas.DataFrame(
        {
            "transaction": 10**6 + np.arange(n),
            "when": when,
            "paid": [f"{1 + k % 28:02d}.{1 + k % 12:02d}.{2020 + k % 4}" for k in range(n)],
            "amount": amount,
            "mcc": rng.choice([4111, 5411, 5812], n),
            "customer": [f"C{k:06d}" for k in rng.integers(0, 10**6, n)],
            "note": [" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in range(n)],
            "country": pandas.Series(country).where(country != "missing"),
            "online": rng.random(n) < 0.4,
            "currency": "EUR",
            "fraud": rng.random(n) < 0.3,
        }
    )


def by_pandas(frame):
    """Return the features by their names."""
    found = {"amount": frame.amount.fillna(frame.amount.mean()), "amount is missing": frame.amount.isna()}
    days = pandas.to_datetime(frame.paid, format="%d.%m.%Y")
    for name, stamps in (("when", frame.when), ("paid", days)):
        years = (stamps - pandas.Timestamp("2000-01-01")) / pandas.Timedelta(days=365.25)
        centre = years.mean() if abs(years.mean()) > 10 * years.std() else 0.0
        found[f"{name} (years since 2000)"] = years.fillna(years.mean()) - centre
        parts = [("month", stamps.dt.month), ("weekday", stamps.dt.day_name().str[:3])]
        for part, values in [*parts, *([("hour", stamps.dt.hour)] if name == "when" else [])]:
            for value in values.dropna().unique():
                shown = value if isinstance(value, str) else int(value)
                found[f"{name}: {part}={shown}"] = values == value
    found["when is missing"] = frame.when.isna()
    for code in frame.mcc.unique():
        found[f"mcc={code}"] = frame.mcc == code
    rows = frame.country.value_counts()
    for country in rows.index[rows >= 30]:
        found[f"country={country}"] = frame.country == country
    found["country: other"] = frame.country.isin(rows.index[rows < 30])
    found["country is missing"] = frame.country.isna()
    found |= {"online=true": frame.online, "online=false": ~frame.online, "currency=EUR": np.ones(len(frame))}
    for name, bits, words in (("note", 6, r"(?u)\w+"), ("customer", 5, r"(?s).+")):
        how = {"n_features": 2**bits, "norm": None, "token_pattern": words, "lowercase": name == "note"}
        X = HashingVectorizer(**how).transform(frame[name]).toarray()
        found |= {f"{name} hash {k}": X[:, k] for k in range(2**bits)}
    return found


def test_a_first_column_without_a_name_is_left_out(comm, shared_dir):
    """pandas and R write the names or numbers of the rows there."""
    rows = "".join(f"{k},{k % 7},{k % 2}\n" for k in range(40))
    on_root(comm, lambda: (shared_dir / "a.csv").write_text(",x,y\n" + rows))
    shown = []
    made = convert([shared_dir / "a.csv"], shared_dir / "a", comm, label="y", show_columns=shown.extend)
    assert made.table.feature_names == ["x"] and made.table.dropped == ("",)
    assert not comm.is_root or (
        "(no name)" in format_columns(shown) and "left out: the first column" in shown[0].notes[0]
    )


def test_features_are_those_of_pandas_and_scikit_learn(comm, shared_dir, monkeypatch):
    """They are the same from CSV and Parquet, on any ranks, and whatever the blocks are."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 5000)
    monkeypatch.setattr("distsms.ingest.formats.arrow.BATCH_ROWS", 70)
    frame = payments()
    on_root(comm, lambda: (frame.to_csv(shared_dir / "a.csv", index=False), frame.to_parquet(shared_dir / "a.parquet")))
    found, expected = {}, by_pandas(frame)
    for kind in ("csv", "parquet"):
        made = convert([shared_dir / f"a.{kind}"], shared_dir / kind, comm, 3, label="fraud", columns=ASKED)
        found[kind] = content(shared_dir / kind)
        assert set(expected) <= set(made.table.feature_names) and made.table.dropped == ("transaction",)
        X = np.column_stack([expected.get(name, np.zeros(len(frame))) for name in made.table.feature_names])
        np.testing.assert_allclose(found[kind][0], X.astype(float), rtol=1e-12)
        np.testing.assert_array_equal(found[kind][1] > 0, frame.fraud)
        assert made.normalization.kind == "standard"
        measured = [name in ("amount",) or name.endswith("2000)") for name in made.table.feature_names]
        np.testing.assert_array_equal(made.normalization.scale != 1, measured)
        sizes = [1 / X[:, k].std() for k in np.flatnonzero(measured)]
        np.testing.assert_allclose(made.normalization.scale[measured], sizes, rtol=1e-9)
        comm.barrier()
    np.testing.assert_array_equal(found["csv"][0], found["parquet"][0])
    by_table = [read_manifest(shared_dir / kind) for kind in ("csv", "parquet")]
    assert by_table[0].table == by_table[1].table
    # Each reads the other's file, also as rows in memory.
    for kind, other in (("csv", "parquet"), ("parquet", "csv")):
        convert([shared_dir / f"a.{other}"], shared_dir / "like", comm, like=shared_dir / kind, overwrite=True)
        np.testing.assert_array_equal(content(shared_dir / "like")[0], found["csv"][0])
        comm.barrier()
    rows = np.array_split(np.arange(len(frame)), comm.size)[comm.rank]
    part = frame.iloc[rows] if comm.rank % 2 else pa.Table.from_pandas(frame.iloc[rows], preserve_index=False)
    reading = {"label": "fraud", "columns": ASKED}
    request = TrainRequest(part, shards=shared_dir / "frame", reading=reading)
    with as_data_sets(request, comm, TrainObserver(), Clock()) as sets:
        assert sets.training.table == by_table[0].table
        np.testing.assert_array_equal(content(shared_dir / "frame")[0], found["csv"][0])


@pytest.mark.serial
def test_what_columns_are_taken_for(tmp_path):
    frame = payments(3000).drop(columns="paid")
    frame["store"] = np.arange(3000) % 45 + 1
    frame["row"] = np.arange(3000) * 1.5
    frame.to_csv(tmp_path / "a.csv", index=False)
    shown = []
    made = convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="fraud", show_columns=shown.extend)
    assert list(made.columns) == shown
    kinds = {report.name: report.taken_for for report in shown}
    ids = dict.fromkeys(("transaction", "customer"), "id-like")
    categories = dict.fromkeys(("country", "online", "currency"), "category")
    numbers = dict.fromkeys(("amount", "mcc", "store", "row"), "number")
    assert kinds == {**ids, **categories, **numbers, "when": "date", "note": "text"}
    notes = {report.name: " ".join(report.notes) for report in shown}
    assert made.table.dropped == ("transaction", "customer", "note")
    for name, told in (
        ("transaction", "left out.*--numeric transaction"),
        ("customer", "left out.*--hash customer"),
        ("note", "left out: text; --hash note"),
        ("mcc", "look like codes.*--categorical mcc"),
        ("store", "look like codes"),
        ("currency", "constant"),
        ("when", "far from 0: the mean of its years since 2000, .*, is subtracted"),
    ):
        assert re.search(told, notes[name]), (name, notes[name])
    assert not notes["amount"] and not notes["row"]
    by_name = {report.name: report for report in shown}
    for name in ("amount", "country", "mcc", "customer"):
        assert by_name[name].missing == frame[name].isna().sum()
        assert (
            abs(by_name[name].values - frame[name].nunique()) <= (0.15 * frame[name].nunique(), 0)[by_name[name].exact]
        )
    assert by_name["mcc"].exact and not by_name["customer"].exact
    assert max(map(len, format_columns(shown).split("\n"))) <= WIDTH
    asked = ColumnOptions(numeric=("transaction",), hashed={"customer": 3})
    kept = convert([tmp_path / "a.csv"], tmp_path / "k", ALONE, label="fraud", columns=asked).table
    assert kept.dropped == ("note",) and {"transaction", "customer hash 7"} <= set(kept.feature_names)


@pytest.mark.serial
@pytest.mark.parametrize(
    "cells, how, told",
    [
        (
            ["31/05/2024", "01/02/2023"],
            {},
            r"a\.csv:2: column 'x': found '31/05/2024': looks like a date.*--date x:%d/%m/%Y",
        ),
        (["2024-05-31", "2024-02-30"], {}, r"a\.csv:3: .*found '2024-02-30': there is no such date"),
        (['"1,5"', '"2,75"'], {}, r"a\.csv:2: .*'1,5': looks like a number with a comma: --decimal ,"),
        (['"1,500"', '"2,750"'], {}, "--thousands , as a mark between thousands"),
        (["a", "b"], {"numeric": ("x",)}, "found 'a': --numeric: this is no number"),
        (["a", "b"], {"dates": {"x": "%d.%m.%Y"}}, r"found 'a': there is no such date; .*%d\.%m\.%Y"),
        (["a", "b"], {"dates": {"x": "dd"}}, "a form is written as"),
        (["a", "b"], {"hashed": {"x": 40}}, "the number of bits is from 1 to 28"),
        (["a", "b"], {"hashed": {"z": 4}}, "'z' of .*--hash is not there"),
        (["a", "b"], {"hashed": {"y": 4}}, "'y' of .*--hash is not a feature"),
        (["a", "b"], {"hashed": {"x": 4}, "numeric": ("x",)}, "named twice"),
        (
            [str(k) for k in range(200)],
            {},
            r"no feature is left; x: left out: whole numbers that all differ; --numeric x",
        ),
    ],
)
def test_columns_that_need_a_word(tmp_path, cells, how, told):
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{cell},{k % 2}\n" for k, cell in enumerate(cells)))
    with pytest.raises(InputError, match=told):
        convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="y", columns=ColumnOptions(**how))


@pytest.mark.serial
def test_decimal_commas_and_semicolons(tmp_path):
    (tmp_path / "a.csv").write_text("x;w;y\n1,5;a,b;1\n-2,25e1;c;0\n3;a,b;0\n")
    (tmp_path / "b.csv").write_text('x,w,y\n"1,5","a,b",1\n"-2,25e1",c,0\n3,"a,b",0\n')
    one = convert([tmp_path / "a.csv"], tmp_path / "one", ALONE, label="y")
    two = convert([tmp_path / "b.csv"], tmp_path / "two", ALONE, label="y", decimal=",")
    np.testing.assert_array_equal(content(tmp_path / "one")[0], [[1.5, 1, 0], [-22.5, 0, 1], [3, 1, 0]])
    np.testing.assert_array_equal(content(tmp_path / "two")[0], content(tmp_path / "one")[0])
    assert one.table.cells.decimal == "." and two.table.cells.decimal == ","
    again = convert([tmp_path / "b.csv"], tmp_path / "again", ALONE, like=tmp_path / "two")
    assert again.table == two.table


CELLS = st.sampled_from(
    ["", "1", "2.5", "007", "7.0", "red", "red red", "2024-05-31", "2024-05-31T10:00:00Z", "True", "é"]
)


@pytest.mark.serial
@given(st.lists(st.tuples(CELLS, CELLS), min_size=2, max_size=9), st.integers(1, 4), st.sampled_from([1, 2]))
def test_an_encoding_that_is_kept_reads_the_same_rows(tmp_path_factory, cells, n_shards, min_count):
    """Whatever the cells are: the record is the table, and by it the same features come out, also from Parquet."""
    folder = tmp_path_factory.mktemp("t")
    rows = [[*row, k % 2] for k, row in enumerate(cells)]
    write_csv(folder / "a.csv", ["a", "b", "y"], rows)
    strings = {name: [row[k] for row in cells] for k, name in enumerate("ab")}
    pq.write_table(pa.table({**strings, "y": [k % 2 for k in range(len(rows))]}), folder / "a.parquet")
    how = ColumnOptions(categorical=("b",), min_count=min_count)
    made = convert([folder / "a.csv"], folder / "d", ALONE, n_shards, label="y", columns=how)
    assert Table.from_json(made.table.as_json()) == made.table and read_manifest(folder / "d") == made
    other = convert([folder / "a.parquet"], folder / "p", ALONE, label="y", columns=how)
    assert other.table == made.table
    plain = [[(report.taken_for, report.values, report.features) for report in each.columns] for each in (made, other)]
    assert plain[0] == plain[1]
    convert([folder / "a.parquet"], folder / "like", ALONE, like=folder / "d")
    for name in ("p", "like"):
        np.testing.assert_array_equal(content(folder / name)[0], content(folder / "d")[0])


@pytest.mark.serial
def test_records_of_version_1_are_read(tmp_path):
    """Numbers and categories as before: missing numbers are 0, and strings of Parquet are taken as they are."""
    columns = [
        {"name": "x", "categories": None, "missing": True},
        {"name": "w", "categories": [" a", "NA"], "missing": False},
    ]
    table = Table.from_json({"columns": columns, "label": "y", "id": None})
    assert table.columns == (Column("x", None, True), Column("w", (" a", "NA"))) and table.cells.version == 1
    pq.write_table(pa.table({"x": [None, 2.0], "w": [" a", "NA"]}), tmp_path / "a.parquet")
    reader = TableReader([str(tmp_path / "a.parquet")], ReadOptions(table=table, labelled=False), ALONE)
    block = concatenate([block for block in reader.read(reader.plan(1)[0])])
    assert block.indices.tolist() == [1, 2, 0, 3] and block.data.tolist() == [1, 1, 2, 1]
    assert Table.from_json(table.as_json()) == table
    for wrong in (
        {"version": 4},
        {"columns": [{**columns[0], "kind": "x"}]},
        {"columns": [{**columns[0], "later": 1}]},
    ):
        with pytest.raises(ValueError, match=r"version|kind|field"):
            Table.from_json({"columns": columns, "label": "y", "id": None, **wrong})
    others = [("name", 3), ("missing", "yes"), ("missing", None), ("fill", []), ("kind", None), ("categories", [1])]
    for name, value in [*others, ("categories", "uvw"), ("categories", {"u": 1})]:
        with pytest.raises(TypeError, match=r"another type|must be strings"):
            Table.from_json({"columns": [columns[0] | {name: value}], "label": "y", "id": None})


@pytest.mark.serial
def test_records_with_other_types_are_refused():
    report = vars(ColumnReport("x", "number", 3, True, 0))
    assert vars(ColumnReport.from_json(report)) == report
    reference = {"hash": "0" * 64, "columns": 2}
    assert FeatureReference.of(reference)._asdict() == reference
    for make, record, wrong in (
        (ColumnReport.from_json, report, [{"values": "3"}, {"exact": None}, {"notes": "x"}, {"missing": 1.5}]),
        (FeatureReference.of, reference, [{"columns": 2.5}, {"columns": True}, {"hash": 3}, {"columns": [2]}]),
    ):
        for change in wrong:
            with pytest.raises(ValueError, match=r"another type|64 hex digits"):
                make(record | change)


@pytest.mark.serial
def test_numbers_that_come_before_the_first_word(tmp_path, monkeypatch):
    """Their values are categories, too, although only a later block shows it."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 20)
    write_csv(tmp_path / "a.csv", ["x", "y"], [[k % 5, k % 2] for k in range(40)] + [["red", 1]])
    made = convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="y")
    assert made.table.feature_names == ["x=0", "x=1", "x=2", "x=3", "x=4", "x=red"]
    assert "mostly numbers; rows with something else: 1, the first 'red' at" in made.columns[0].notes[0]


@pytest.mark.serial
@pytest.mark.by_turns
def test_wide_tables_take_time_in_proportion_to_their_columns(tmp_path):
    """Eight times the columns take less than 20 times the processor time; it was 64 times."""
    seconds = []
    for width in (2000, 16000):
        X = np.random.default_rng(0).random((20, width)).round(2)
        rows = [[*x, k % 2] for k, x in enumerate(X)]
        write_csv(tmp_path / f"{width}.csv", [f"g{k}" for k in range(width)] + ["y"], rows)
    for width in (2000, 16000, 2000, 16000):
        start = time.process_time()
        convert([tmp_path / f"{width}.csv"], tmp_path / "d", ALONE, label="y", overwrite=True)
        seconds.append(time.process_time() - start)
    np.testing.assert_array_equal(content(tmp_path / "d")[0], X)
    assert min(seconds[1::2]) < 20 * min(seconds[::2])


@pytest.mark.serial
def test_a_constant_column_of_numbers_is_left_out(tmp_path):
    """Dividing by its standard deviation would make it as large as rounding can tell, and hide the other columns."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"a": rng.normal(size=200), "k": 10**14, "y": rng.integers(0, 2, 200)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    made = convert([tmp_path / "t.csv"], tmp_path / "d", ALONE, label="y")
    assert made.table.feature_names == ["a"]
    kept = convert([tmp_path / "t.csv"], tmp_path / "e", ALONE, label="y", columns=ColumnOptions(numeric=("k",)))
    assert kept.table.feature_names == ["a", "k"]


@pytest.mark.serial
def test_missing_labels_are_counted(tmp_path):
    label = ["1", "0", ""] * 40
    (tmp_path / "m.csv").write_text("x,y\n" + "".join(f"{k},{label[k]}\n" for k in range(120)))
    with pytest.raises(InputError, match=r"m\.csv:4: .*in 40 of 120 rows in all.*dropna\(subset=\['y'\]\)"):
        convert([tmp_path / "m.csv"], tmp_path / "e", ALONE, label="y")
