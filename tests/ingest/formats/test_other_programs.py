"""Tables as other programs write them: separators, quotes, marks of missing values, folders, types, endings."""

from __future__ import annotations

import csv
import io
import lzma
import warnings
from decimal import Decimal

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import distsms
from distsms.__main__ import main
from distsms.base import text_files
from distsms.base.errors import InputError
from distsms.ingest.file_names import expand
from distsms.ingest.formats.arrow import values_of
from distsms.ingest.formats.table import TableReader
from distsms.ingest.options import ReadOptions
from distsms.models.inputs import untrained_model
from distsms.shards.dataset import read_manifest
from distsms.shards.row_metadata import plain_number
from distsms.shards.rows import concatenate
from distsms.shards.table_schema import Table
from tests.support.conversion import convert
from tests.support.files import ALONE, content, numbers, on_root, write_anndata

pandas = pytest.importorskip("pandas")


def read(folder, data, name="a.csv", comm=ALONE, **how):
    """Return the features, the rows, and the notes on the columns of a file with these contents and the label y."""
    on_root(comm, lambda: (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode()))
    shown = []
    how = {"label": "y", "normalize": "none", "show_columns": shown.extend, **how}
    made = convert([folder / name], folder / "d", comm, overwrite=True, **how)
    return made.table.feature_names, content(folder / "d")[0].tolist(), {one.name: " ".join(one.notes) for one in shown}


@pytest.mark.parametrize(
    "text, how, names, rows",
    [
        ("Umsatz (EUR,netto);Alter;y\n1,5;2;1\n2,5;3;0\n", {}, ["Umsatz (EUR,netto)", "Alter"], [[1.5, 2], [2.5, 3]]),
        ("a (x,z);y\n1,5;1\n2,5;0\n", {}, ["a (x,z)"], [[1.5], [2.5]]),
        ("a|b, c|y\n1|2|1\n3|4|0\n", {}, ["a", "b, c"], [[1, 2], [3, 4]]),
        ("a,b;c,y\n1,2,1\n3,4,0\n", {}, ["a", "b;c"], [[1, 2], [3, 4]]),
        ("sep=;\r\na;y\r\n1;1\r\n3;0\r\n", {}, ["a"], [[1], [3]]),
        ("\ufeffsep=\t\na\ty\n1\t1\n3\t0\n", {}, ["a"], [[1], [3]]),
        ("a b y\n1 2 1\n3 4 0\n", {"separator": " "}, ["a", "b"], [[1, 2], [3, 4]]),
        ("a~y\n1~1\n3~0\n", {"separator": "~"}, ["a"], [[1], [3]]),
        ("a b y\n1 2 1\n3 4 0\n", {}, ["a", "b"], [[1, 2], [3, 4]]),
        ("a;b;c,y\n1;2;3,1\n1;2;4,0\n", {}, ["a;b;c=1;2;3", "a;b;c=1;2;4"], [[1, 0], [0, 1]]),
        ('a, "b" ,y\n1, "p, q", 1\n2,\t"r" ,0\n', {}, ["a", "b=p, q", "b=r"], [[1, 1, 0], [2, 0, 1]]),
        ('a,b,y\n1,5" q,1\n2, 6",0\n', {}, ["a", 'b=5" q', 'b=6"'], [[1, 1, 0], [2, 0, 1]]),
    ],
)
def test_what_separates_the_fields_and_what_is_quoted(comm, shared_dir, text, how, names, rows):
    assert read(shared_dir, text, comm=comm, **how)[:2] == (names, rows)


@pytest.mark.parametrize(
    "data, name, told",
    [
        ("a~z\n1~1\n3~0\n", "a.csv", "it has 'a~z'; if '~' separates them: --separator '~'"),
        ("a,z\n1,1\n", "a.tsv", "it has 'a,z'; if ',' separates them: --separator ','"),
        ('"a","y"\n"1",2,1\n"2",4,0\n', "a.csv", "one field more .* the row's name at the beginning, as R writes it"),
        ("a,y\n2,1,\n4,0,\n", "a.csv", "one field more .* an empty one at the end"),
        ("a\ty\n2\t1\t\n4\t0\t\n", "a.tsv", "one field more .* an empty one at the end"),
        (b"sep=\xa7\na\xa7y\n1\xa70\n", "a.csv", r"a\.csv:1: is not UTF-8"),
        ('a,"b\nc,y\n1,1,1\n', "a.csv", "a quote opens among the names of the columns"),
        (b"a,y\r1,1\r3,0\r", "a.csv", r"carriage return \(CR\) alone"),
        (b"a,y\n1,1\r3,0\n", "a.csv", r"carriage return \(CR\) alone"),
        (b">s label=1\rACGT\r", "a.fa", r"carriage return \(CR\) alone"),
        ("i,x,y\nNA,1,1\nb,2,0\n", "a.csv", "2: column 'i': found 'NA': the row id is missing"),
        (b"PAR1\x15\x04\x15", "a.csv", "is Parquet, whose name must end in .parquet"),
        (b"PK\x03\x04\0\0\0", "a.xlsx", "is a ZIP archive"),
        (b"ARROW1\0\0", "a.feather", "is an Arrow .* which distsms does not read"),
        (b"\x1f\x8b\x08\0", "a.parquet.gz", "cannot be read while it is compressed"),
        ("a,y\n1,1\n", "a.txt", "is taken for svmlight text.* CSV files end in .csv"),
    ],
)
@pytest.mark.serial
def test_what_cannot_be_read_is_refused_by_name(tmp_path, data, name, told):
    how = {"label": None} if name.endswith(".fa") else {"id": "i"} if "NA" in str(data) else {}
    with pytest.raises(InputError, match=told):
        read(tmp_path, data, name, **how)


@pytest.mark.serial
def test_a_fault_in_the_first_line_of_an_unknown_format_names_the_endings(tmp_path):
    with pytest.raises(InputError, match=r"a\.jsonl:1: .* Taken for svmlight text because of its name; .*\.csv"):
        read(tmp_path, '{"x":1}\n', "a.jsonl", label=None)


@pytest.mark.parametrize("block", [3, 2**24])
def test_an_empty_line_of_a_single_column_is_a_missing_value(comm, shared_dir, monkeypatch, block):
    """As polars writes it. In other tables, empty lines are no rows."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    read(shared_dir, "a,y\n0,0\n1,1\n\n2,1\n\n", comm=comm)
    assert read_manifest(shared_dir / "d").n == 3
    with pytest.raises(
        InputError, match="column 'y': the label is missing"
    ):  # a row of missing values, not an empty one
        read(shared_dir, "a\ty\n0\t0\n1\t1\n\t\n", "a.tsv", comm=comm)
    on_root(comm, lambda: (shared_dir / "one.csv").write_text("a\n0.5\n\n1.5\n\n"))
    table = read_manifest(shared_dir / "d").table
    assert values(table, shared_dir / "one.csv") == [0.5, 1.0, 1.5, 1.0]


def values(table, path):
    """Return the values of rows that have a single feature."""
    reader = TableReader([str(path)], ReadOptions(table=table, labelled=False), ALONE)
    return concatenate(reader.read(reader.plan(1)[0])).data.tolist()


@pytest.mark.parametrize("name", ["A.CSV", "a.CSV.XZ", "B.PARQUET", "C.Tsv"])
@pytest.mark.serial
def test_capital_and_small_letters_of_endings_are_the_same(tmp_path, name):
    text = b"x\ty\n1\t1\n2\t0\n"
    if name == "B.PARQUET":
        pq.write_table(pa.table({"x": [1, 2], "y": [1, 0]}), tmp_path / name)
        text = (tmp_path / name).read_bytes()
    assert read(tmp_path, lzma.compress(text) if name.endswith("XZ") else text, name)[:2] == (["x"], [[1], [2]])


@pytest.mark.serial
def test_padding_and_skipped_frames_are_valid_parts_of_compressed_files(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    halves, skipped = (b"x,y\n1,1\n", b"2,0\n"), b"\x50\x2a\x4d\x18\4\0\0\0skip"
    xz, zst = ([packed(half) for half in halves] for packed in (lzma.compress, zstandard.compress))
    for name, data in ("a.csv.xz", xz[0] + bytes(8) + xz[1] + bytes(4)), ("a.csv.zst", skipped + b"".join(zst)):
        assert read(tmp_path, data, name)[:2] == (["x"], [[1], [2]])


@pytest.mark.parametrize("block", [8, 2**24])
@pytest.mark.parametrize("mark", ["-", "None", ".", "?", "\\N"])
def test_marks_among_numbers_and_dates_are_missing_values(comm, shared_dir, monkeypatch, mark, block):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    for cells, why in (("1 2 {} 3 {}", "numbers"), ("{} 2024-01-03 2024-01-02 {} 2024-01-01", "dates")):
        cells = cells.format(mark, mark).split()
        text = "a,y\n" + "".join(f"{cell},{k % 2}\n" for k, cell in enumerate(cells))
        names, rows, notes = read(shared_dir, text, comm=comm)
        assert [row[-1] for row in rows] == [cell == mark for cell in cells] and names[-1] == "a is missing"
        assert not comm.is_root or f"'{mark}' (2 rows): taken as missing, since the others are {why}" in notes["a"]
        assert read(shared_dir, text, comm=comm, not_missing=(mark,))[0] == [f"a={cell}" for cell in sorted({*cells})]


@pytest.mark.parametrize("cells", ["- - ? -", "- + - .", "- x 1 2"])
@pytest.mark.parametrize("block", [4, 2**24])
@pytest.mark.serial
def test_such_marks_are_categories_among_other_strings(tmp_path, monkeypatch, cells, block):
    monkeypatch.setattr(text_files, "BLOCK_BYTES", block)
    text = "a,y\n" + "".join(f"{cell},{k % 2}\n" for k, cell in enumerate(cells.split()))
    assert read(tmp_path, text)[0] == [f"a={cell}" for cell in sorted(set(cells.split()))]


@pytest.mark.serial
def test_further_marks_and_marks_that_are_values(tmp_path):
    how = {"missing": ("-999", "none"), "not_missing": ("NA",)}
    text = "n,w,y\n-999,NA,1\n3,none,0\n-999.0,b,1\n5,,1\n"
    names, rows, _ = read(tmp_path, text, **how)
    assert names == ["n", "n is missing", "w=NA", "w=b", "w is missing"]
    assert rows == [[4, 1, 1, 0, 0], [3, 0, 0, 0, 1], [4, 1, 0, 1, 0], [5, 0, 0, 0, 1]]
    frame = pandas.DataFrame({"n": [-999, 3, -999, 5], "w": ["NA", "none", "b", ""], "y": [1, 0, 1, 1]})
    frame.to_parquet(tmp_path / "a.parquet")
    assert read(tmp_path, (tmp_path / "a.parquet").read_bytes(), "a.parquet", **how)[:2] == (names, rows)
    table = read_manifest(tmp_path / "d").table
    assert Table.from_json(table.as_json()) == table and table.cells.missing == ("-999", "none")
    model = distsms.train(frame, label="y", lam=1.0, solver="lbfgs", missing="-999", not_missing="NA")
    assert model.table.feature_names[:4] == ["n", "n is missing", "w=NA", "w=b"]
    for wrong in {"separator": "ab"}, {"not_missing": ("",)}:
        with pytest.raises(InputError, match=r"one character|always a missing value"):
            read(tmp_path, text, **wrong)


@pytest.mark.serial
def test_whole_numbers_that_may_be_codes_are_marked(tmp_path):
    n = 200
    columns = {
        "SEX": np.arange(n) % 2 + 1,
        "EDUCATION": np.arange(n) % 4,
        "acct": 2**53 + np.arange(n) % 50,
        "truth": np.arange(n) % 2,
        "sign": np.arange(n) % 2 * 2 - 1,
        "year": 2000 + np.arange(n) % 5,
        "many": np.arange(n) % 60,
        "half": np.arange(n) % 4 / 2,
        "y": np.arange(n) % 3 == 0,
    }
    frame = pandas.DataFrame(columns).assign(zip=[f"0{k % 40:03d}" for k in range(n)])
    _, _, notes = read(tmp_path, frame.to_csv(index=False))
    marked = {name: note for name, note in notes.items() if "codes" in note}
    assert set(marked) == {"SEX", "EDUCATION", "acct", "zip"}
    assert "few whole numbers, treated as amounts; if they are codes: --categorical SEX" in marked["SEX"]
    assert "above 2^53" in marked["acct"] and "look like codes" in marked["zip"]


@pytest.mark.parametrize(
    "spellings, one",
    [
        ("7 07 7.0 +7 7e0 70e-1", "7"),
        ("0.5 .5 0.50 5e-1 +0.5", "0.5"),
        ("1000 1e3 1E+3", "1000"),
        ("0 -0 0.0 -0e5 1e-999", "0"),
        ("9007199254740993 9007199254740993.0", "9007199254740993"),
        ("1e-7 0.0000001", "1e-07"),
        ("100000000000000000000 1e20", "100000000000000000000"),
    ],
)
def test_equal_numbers_have_one_form(spellings, one):
    assert {plain_number(text) for text in spellings.split()} == {one}
    assert plain_number("1e999") == "1e999" and plain_number("x") == "x"


@pytest.mark.serial
def test_tables_in_every_format_have_the_same_features_and_scores(tmp_path):
    rng, n = np.random.default_rng(0), 200
    cents = rng.integers(0, 300, n)
    frame = pandas.DataFrame(
        {
            "amount": [Decimal(int(value)).scaleb(-2) for value in cents],
            "rate": [Decimal(int(value)).scaleb(-2) for value in 50 + cents % 8],
            "single": rng.choice([0.1, 0.2, 0.25], n).astype(np.float32),
            "gaps": np.where(rng.random(n) < 0.1, "-", cents.astype(str)),
            "when": pandas.date_range("2024-01-01", periods=n, freq="37h", tz="Europe/Berlin"),
            "zip": [f"{value:05d}" for value in cents % 30],
            "said": np.array(['a "b" c', "p, q", " lead", "x;y"])[cents % 4],
            "g": np.array(["u", "v"])[cents % 2],
            "part": cents // 100,
            "y": (cents + rng.integers(0, 300, n)) > 300,
        }
    )
    how = {"label": "y", "categorical": ["rate", "single"], "lam": 0.01, "solver": "lbfgs"}
    model = distsms.train(frame, **how)
    scores = distsms.predict(model, frame)
    for name, by in ("a.csv", ","), ("b.csv", ";"), ("c.tsv", "\t"), ("d.CSV.GZ", ","), ("e.csv", "|"):
        packed = {"compression": "gzip"} if name.endswith("GZ") else {}
        frame.to_csv(tmp_path / name, index=False, sep=by, **packed)
    with open(tmp_path / "a.csv", newline="") as one, open(tmp_path / "f.csv", "w", newline="") as other:
        quoted = csv.writer(stream := io.StringIO(), quoting=csv.QUOTE_ALL)
        quoted.writerows(csv.reader(one))
        other.write(stream.getvalue().replace('","', '", "'))
    frame.to_parquet(tmp_path / "g.pq")
    pq.write_to_dataset(pa.Table.from_pandas(frame), tmp_path / "hive", partition_cols=["g", "part"])
    for name in "a.csv", "b.csv", "c.tsv", "d.CSV.GZ", "e.csv", "f.csv", "g.pq":
        assert distsms.train(tmp_path / name, **how).table == model.table, name
        np.testing.assert_array_equal(distsms.predict(model, tmp_path / name), scores)
    parts = distsms.train(tmp_path / "hive", **how)
    assert sorted(parts.table.feature_names) == sorted(model.table.feature_names)
    order = []
    for path in expand([str(tmp_path / "hive")]):
        held = values_of(path)
        rows = (frame.g == held["g"]) & (frame.part == int(held["part"]))
        np.testing.assert_array_equal(distsms.predict(model, path), scores[rows])
        order += np.flatnonzero(rows).tolist()
    # what trains is read by its name wherever rows are scored: a folder of Hive, a pattern
    distsms.save_model(tmp_path / "m.h5", model)
    for name in "hive", "hive/*/*", "hive/*/*/*.parquet":
        np.testing.assert_array_equal(distsms.predict(model, tmp_path / name), scores[order])
        assert distsms.evaluate(model, str(tmp_path / name))["n"] == n
        assert main(["evaluate", str(tmp_path / "m.h5"), "--test", str(tmp_path / name)]) == 0
        output = str(tmp_path / "scores.npy")
        assert main(["predict", str(tmp_path / "m.h5"), str(tmp_path / name), "--output", output]) == 0
        np.testing.assert_array_equal(np.load(output), scores[order])
    train = ["train", str(tmp_path / "hive"), "--test", str(tmp_path / "hive"), "--label", "y", "--lambda", "0.01"]
    assert main([*train, "--solver", "lbfgs", "--no-report", "--output", str(tmp_path / "t.h5")]) == 0
    assert distsms.load_model(tmp_path / "t.h5").info["test_rows"]["training_rows"] > 0.9
    with pytest.raises(InputError, match=r"none-\*: there is no such file"):
        distsms.predict(model, tmp_path / "none-*")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_folders_hold_columns(comm, shared_dir, kind):
    """As Hive writes them; a missing value has a name of its own, and what is the same in all folders says nothing."""

    def write():
        for k, value in enumerate(["b%20c", "__HIVE_DEFAULT_PARTITION__", "d"]):
            folder = shared_dir / "run=3" / f"g={value}" / f"y={k % 2}"
            folder.mkdir(parents=True)
            frame = pandas.DataFrame({"x": [k, k + 0.5]})
            frame.to_csv(folder / "p.csv", index=False) if kind == "csv" else frame.to_parquet(folder / "p.parquet")

    on_root(comm, write)
    for word in "run=3", "run=*", f"run=3/*/*/*.{kind}":
        names = expand([str(shared_dir / word)])
        made = convert(names, shared_dir / "d", comm, label="y", overwrite=True, normalize="none")
        X, y = content(shared_dir / "d")
        assert made.table.feature_names == ["x", "g=b c", "g=d", "g is missing"]
        scores = distsms.predict(untrained_model(made), shared_dir / word, comm)
        assert sum(comm.allgather(len(scores))) == len(y)
        by_row = {tuple(row): label for row, label in zip(X.tolist(), y.tolist(), strict=True)}
        assert by_row == {
            (k + half, k == 0, k == 2, k == 1): (-1) ** (k % 2 + 1) for k in range(3) for half in (0.0, 0.5)
        }
        comm.barrier()


@pytest.mark.serial
def test_offsets_of_dates_that_the_training_dates_did_not_have(tmp_path):
    days = pandas.date_range("2024-01-01", periods=40, freq="37h")
    frame = pandas.DataFrame({"day": days, "x": range(40), "y": np.arange(40) % 2})
    aware = frame.assign(day=frame.day.dt.tz_localize("Asia/Tokyo"))
    for ours, theirs, told in (frame, aware, "with an offset"), (aware, frame, "with no offset"):
        model = distsms.train(ours, label="y", lam=1.0, solver="lbfgs")
        theirs.to_csv(tmp_path / "new.csv", index=False)
        for same, data in (True, ours), (False, theirs), (False, tmp_path / "new.csv"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                distsms.predict(model, data)
            assert any(f"dates {told}" in str(warning.message) for warning in caught) != same


@pytest.mark.serial
def test_anndata_that_lacks_something_is_refused_by_name(tmp_path):
    X, y = numbers()
    write_anndata(tmp_path / "a.h5ad", X, list("abcdefg"), {"y": y})
    with h5py.File(tmp_path / "a.h5ad", "r+") as file:
        file["layers/raw"] = X
        del file["X"]
    with pytest.raises(InputError, match=r"has no X.* layers: 'raw'"):
        convert([tmp_path / "a.h5ad"], tmp_path / "d", ALONE, label="y")
    with h5py.File(tmp_path / "a.h5ad", "r+") as file:
        file["X"] = X
        del file["obs"]
        file["obs"] = np.array([(b"a", 1)], [("index", "S1"), ("y", "i1")])
    with pytest.raises(InputError, match=r"was written by anndata before 0\.7"):
        convert([tmp_path / "a.h5ad"], tmp_path / "d", ALONE, label="y")


@pytest.mark.serial
def test_names_of_anndata_may_be_strings_that_may_be_missing(tmp_path):
    X, y = numbers()
    write_anndata(tmp_path / "a.h5ad", X, list("abcdefg"), {"y": y})
    with h5py.File(tmp_path / "a.h5ad", "r+") as file:
        del file["var/gene"]
        file["var/gene/values"], file["var/gene/mask"] = np.array(list("gfedcba"), "S1"), np.zeros(7, bool)
    assert convert([tmp_path / "a.h5ad"], tmp_path / "d", ALONE, label="y", positive="7").table.feature_names == list(
        "gfedcba"
    )


@pytest.mark.parametrize("weights, told", [("000000", "a.csv: all rows"), ("010101", "all positive rows")])
@pytest.mark.serial
def test_weights_that_are_all_0_are_named(tmp_path, weights, told):
    frame = pandas.DataFrame({"x": range(6), "w": list(map(int, weights)), "y": [1, 0] * 3})
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(InputError, match=f"{told} have weight 0"):
        distsms.train(tmp_path / "a.csv", label="y", weight="w", lam=1.0)


@pytest.mark.serial
def test_the_index_of_a_dataframe_is_no_feature(tmp_path):
    """Parquet files of pandas have it as a column, if it is not 0, 1, 2, ...; it numbers the rows."""
    frame = pandas.DataFrame({"x": [0.5, 1.5, 2.5, 4.0], "y": [0, 1, 0, 1]})
    frame.iloc[[2, 0, 3, 1]].to_parquet(tmp_path / "a.parquet")
    frame.to_parquet(tmp_path / "b.parquet")
    for names in ("a", "b"), ("b", "a"):
        made = convert(
            [tmp_path / f"{name}.parquet" for name in names], tmp_path / "d", ALONE, label="y", overwrite=True
        )
        assert made.table.feature_names == ["x"]
    model = distsms.train(pa.Table.from_pandas(frame.iloc[[2, 0, 3, 1]]), label="y", solver="lbfgs")
    scores = distsms.predict(model, frame)
    np.testing.assert_array_equal(distsms.predict(model, tmp_path / "a.parquet"), scores[[2, 0, 3, 1]])
    one = distsms.train(tmp_path / "a.parquet", label="y", numeric=["__index_level_0__"], solver="lbfgs")
    assert one.feature_names == ["x", "__index_level_0__"]
    with pytest.raises(InputError, match="has no column '__index_level_0__'"):
        distsms.predict(one, tmp_path / "b.parquet")
