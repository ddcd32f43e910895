"""CSV text that pyarrow converts to numbers while it parses: the same rows and messages as from strings."""

from __future__ import annotations

import csv
import io
import json
import re
import weakref

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distsms.base import text_files
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.hashing import GOLDEN, _mix
from distsms.ingest.formats import columns, csv_files, table
from distsms.ingest.formats.arrow import Selection
from distsms.ingest.formats.column_survey import NumberSurvey
from distsms.shards.dataset import load_matrix
from tests.support.conversion import convert
from tests.support.files import ALONE, on_root
from tests.support.simulated import run_ranks

COLUMNS = {
    "numbers": ["1", "2.5", "-3e2", " 4", '"5"', "+6", ".7"],
    "missing": ["1", "", "NA", "n/a", "2", "3", "null"],
    "padded": ["0012", "7", "8", "9", "10", "11", "12"],
    "padded and quoted": ['" 07 "', "7.5", "8", "9", "10", "11", "12"],
    "times": ["2024-01-01 00:12", "2024-01-01 01:12"],
    "late words": [*"1234567" * 30, "x"],
    "early words": ["x", *"1234567" * 30],
    "nan": ["1", "nan(3)", "2"],
    "infinite": [*"1234567" * 20, "1e999"],
    "blanks": ["1", "\u00a02", "3"],
    "words": ["a", " a", "b", "NULL", '"c ""d"""'],
}


@pytest.mark.parametrize("cells", [["2", "NULL", "", "1"], ["-inf", "1", "2"], ["inf", ""], ["1", "inf", "-inf"]])
@pytest.mark.parametrize("words", [["w"], ["w", "v", "NA"], []])
def test_what_a_column_holds_does_not_depend_on_the_ranks(comm, shared_dir, cells, words):
    """Words at both ends show what the numbers between them mean, which other ranks may read."""
    rows = [*words, *cells * 20, *words, *cells * 20]
    text = "x,z,y\n" + "".join(f"{cell},{k % 5},{k % 2}\n" for k, cell in enumerate(rows))
    on_root(comm, lambda: (shared_dir / "a.csv").write_text(text))
    found = outcome(comm, shared_dir, "a")
    alone = on_root(comm, lambda: outcome(Communicator(), shared_dir, "b"))
    if comm.is_root:
        assert (re.sub(r" \[rank .*", "", found) if isinstance(found, str) else found) == alone
        if not isinstance(found, str):
            assert found["columns"][0]["missing"] == sum(cell in ("", "NA", "NULL") for cell in rows)


LONG = "somebody with a very long name, "


@pytest.mark.parametrize(
    "text, told",
    [
        ("", r"a\.csv: the file is empty"),
        ("x,y\n", r"a\.csv: there is no row below"),
        (
            "0,1,0\n1,2,1\n",
            "the column name '0' occurs twice; the first line must name the columns, and seems to be mis",
        ),
        (
            "0.5,red,1\n0.7,blue,0\n",
            "has no column 'y'; it has '0.5', 'red', '1'; the first line must name the columns",
        ),
        ("x,z\n1,2\n", "has no column 'y'; it has 'x', 'z'$"),
        (f"x,y\n1,0\n{LONG * 2},1\n", r":3: found 4 fields, expected 2 .*',' must be in quotes: '.{30} \.\.\. .*, ,1'"),
        ("x,z,y\n1,1,0\n1,1\n", ":3: found 2 fields, expected 3 .* the line may be cut off: '1,1'"),
    ],
)
def test_faults_of_the_first_line_and_of_fields_are_named(comm, shared_dir, text, told):
    on_root(comm, lambda: (shared_dir / "a.csv").write_text(text))
    with pytest.raises(InputError) as raised:
        convert([shared_dir / "a.csv"], shared_dir / "d", comm, label="y")
    assert re.search(told, re.sub(r" \[rank .*", "", str(raised.value)))


@pytest.mark.serial
def test_texts_that_share_a_place_in_the_table_are_left_to_pyarrow():
    """Otherwise a file that was made for it would take quadratic time."""

    def place(text):  # in a table for so many texts
        h = 0
        for byte in text.encode():
            h = ((h ^ byte) * 0x100000001B3) % 2**64
        return (h * int(GOLDEN) % 2**64 >> 32) % 256

    texts = [f"t{k}" for k in range(30_000)]
    shared = [text for text in texts if place(text) == place("t0")][:100]
    assert len(shared) == 100
    for words, plain in ((texts[:100], True), (shared[:60], True), (shared, False)):
        lines = "".join(f"{word},1\n" for word in words).encode()
        found = csv_files.read_plain_lines(lines, ord(","), ["x", "y"], ["x", "y"], ["y"])
        assert (found is not None) == plain
        assert found is None or found.columns["x"].to_pylist() == words


def outcome(comm, folder, name, n_shards=3, **options):
    """What becomes of a text: the manifest but for what depends on the moment, or the message."""
    try:
        convert([folder / "a.csv"], folder / name, comm, label="y", n_shards=n_shards, **options)
    except InputError as error:
        return str(error)
    found = json.loads((folder / name / "manifest.json").read_text())
    return {key: value for key, value in found.items() if key not in ("created", "creator")}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("block", [150, 2**24])
def test_numbers_come_out_as_if_they_had_been_read_as_strings(comm, shared_dir, monkeypatch, name, block):
    cells = COLUMNS[name]
    rows = [f"{cells[k % len(cells)]},{k % 5},{k % 2}\r\n" + "\n" * (k == 40) for k in range(400)]
    on_root(comm, lambda: (shared_dir / "a.csv").write_text("x,z,y\n" + "".join(rows)))
    monkeypatch.setattr(text_files.read_blocks, "__defaults__", (block,))
    monkeypatch.setattr(csv_files, "SAMPLE_BYTES", 40)
    found = outcome(comm, shared_dir, "a")
    monkeypatch.setattr(table, "KEPT_BYTES", 0)
    assert outcome(comm, shared_dir, "b") == found
    monkeypatch.setattr(csv_files, "read_plain_lines", lambda *arguments: None)
    assert outcome(comm, shared_dir, "p") == found
    read = csv_files.CsvFiles._parse
    monkeypatch.setattr(
        csv_files.CsvFiles, "_parse", lambda self, text, at, names, numeric: read(self, text, at, names, ())
    )
    assert outcome(comm, shared_dir, "c") == found


@pytest.mark.parametrize("ranks, n_shards", [(4, 3), (5, 2)])
def test_fewer_shards_than_ranks_have_each_row_once(ranks, n_shards, tmp_path, monkeypatch):
    """What the survey keeps is of other shares of the text then, which may end within its blocks, as some do here."""
    lines = [f"{k:04d}.5,{k % 2}\n" for k in range(250)]
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(lines))
    for n_lines in (2, 3, 4, 7, 10):
        monkeypatch.setattr(text_files.read_blocks, "__defaults__", (n_lines * len(lines[0]),))

        def converted(comm, folder=tmp_path / str(n_lines)):
            return convert([tmp_path / "a.csv"], folder, comm, label="y", n_shards=n_shards, normalize="none")

        (manifest, *_) = run_ranks(ranks, converted)
        X = np.sort(load_matrix(manifest)[0].toarray()[:, 0])
        np.testing.assert_allclose(X - X[0], np.arange(250), atol=1e-9)  # the column is centred


SIMPLE = [
    "0",
    "-0",
    "7",
    "007",
    "-07",
    "0.5",
    ".5",
    "5.",
    "-1.25e-3",
    "1E5",
    "123456789012345678",
    "1234567.123456789",
    "",
]
ODD = ["+5", " 5", "5 ", "NA", "nan", "inf", "1e400", "1e-30", ".", "-", "1.2.3", "5#", "é", '"5"', "1,5", "1\r", "x"]
WORDS = ["", "a", "b", "ab", "NA", " a", "é", "#", "x" * 70]


@given(
    st.lists(st.tuples(st.sampled_from(SIMPLE) | st.floats(-1e6, 1e6).map(repr), st.sampled_from(WORDS)), min_size=1),
    st.sampled_from(["\n", "\r\n"]),
    st.none() | st.sampled_from(ODD),
)
def test_plain_lines_are_read_as_pyarrow_reads_them(tmp_path_factory, cells, end, odd):
    path = tmp_path_factory.mktemp("plain") / "a.csv"
    path.write_text("x,unused,word\n")
    files = csv_files.CsvFiles([str(path)])
    rows = [f"{number},z,{word}{end}" for number, word in cells]
    rows += [f"{odd},z,a{end}"] * (odd is not None)
    text, position = "".join(rows).encode(), csv_files.BatchPosition(str(path), 0)
    plain = csv_files.read_plain_lines(text, ord(","), files.names, ["word", "x"], ["x"], files.cells.marks)
    if odd in ("1,5", "1\r"):
        assert plain is None
        return
    strings = files._read(text, position, ["word", "x"])
    number = columns.clean(strings["x"], files.cells)
    assert columns.clean(plain.columns["word"], files.cells).equals(columns.clean(strings["word"], files.cells))
    if plain.words:
        assert odd in ODD and columns.clean(plain.columns["x"], files.cells).equals(number)
    else:
        assert odd in (None, "NA", "nan", "1e-30", '"5"')
        assert (
            plain.columns.array[0].tobytes()
            == columns.Columns.of({"x": number}, len(number)).numbers(["x"]).values[0].tobytes()
        )
        assert plain.columns.gaps.tolist() == [number.null_count]
        assert plain.padded == ({"x"} if any(re.fullmatch("0[0-9]+", number) for number, _ in cells) else set())


def test_lines_without_fields_and_other_ends_of_lines_are_not_plain():
    for text in (b"1\n\n", b"\n1\n", b"1\r2\n", b"1\r\n\r\n", b"1,2\n", b'1\n"2\n', b"\xef\xbb\xbf1\n2\n"):
        assert csv_files.read_plain_lines(text, ord(","), ["x"], ["x"], ["x"]) is None
    assert csv_files.read_plain_lines(b"1\n2\n", ord(","), ["x"], ["x"], ["x"]) is not None


def test_numpy_may_count_in_integers_of_its_own(monkeypatch):
    """As it does from 2.4 on: they have no bit_length."""
    monkeypatch.setattr(np, "count_nonzero", lambda array: np.int64(np.sum(array)))
    assert len(csv_files.read_plain_lines(b"1,a\n2,b\n", ord(","), ["x", "y"], ["x", "y"], ["x"]).columns.array[0]) == 2


@pytest.mark.parametrize("kept", [2**30, 2500, 1])
def test_what_the_survey_has_parsed_is_not_parsed_again(comm, shared_dir, monkeypatch, kept):
    """It is in memory, or in a file."""
    rows = "".join(f"{k % 9},{'abc'[k % 3]},{k % 5},r{k},{k % 2}\n" for k in range(700))
    on_root(comm, lambda: (shared_dir / "a.csv").write_text("x,z,g,id,y\n" + rows))
    monkeypatch.setattr(text_files.read_blocks, "__defaults__", (150,))
    options = {"id": "id", "group": "g", "n_shards": max(3, comm.size)}  # with fewer than ranks, nothing is kept
    whole = outcome(comm, shared_dir, "b", **options)
    monkeypatch.setattr(table, "KEPT_BYTES", kept)
    parse, parsed = csv_files.CsvFiles._parse, []

    def counted(self, text, at, *others):
        parsed.append(at)
        return parse(self, text, at, *others)

    monkeypatch.setattr(csv_files.CsvFiles, "_parse", counted)
    assert outcome(comm, shared_dir, "a", **options) == whole
    assert len(parsed) == len(set(parsed)) > 0


def test_batches_that_are_in_the_file_take_no_memory(tmp_path):
    array = np.arange(2000.0).reshape(2, 1000)
    texts = {"w": columns.numbered(np.zeros(1000, np.int32), ["a"])}
    plain = columns.Columns(["x", "z"], array, np.zeros(2, np.int64), texts)
    position = csv_files.BatchPosition("a", 7)
    batch = csv_files.Batch(position, plain, n_bytes=5)
    kept, of_array = csv_files.KeptBatches(tmp_path), weakref.ref(array)
    kept.add(batch, 1)
    del array, plain, batch
    assert of_array() is None and kept.nbytes == 0 and not list(tmp_path.iterdir())
    assert kept.find(position).batch.n_bytes == 5
    found = kept.take(position)
    assert found.columns.array.tolist() == np.arange(2000.0).reshape(2, 1000).tolist()
    assert found.columns["w"].to_pylist() == ["a"] * 1000 and kept.take(position) is None


LATE = ["word", "?", "2024-05-01", "+5", "1e400", '"a ""b"""', "NA", "", "007", "1e-300", "12345678901234567890"]


@given(
    st.lists(st.sampled_from(["1", "2.5", "-3", "", "007", '"4"', "NA"]), min_size=20, max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(LATE)), max_size=4),
    st.sampled_from([2**30, 400, 1]),
)
def test_kinds_that_are_mended_late_are_those_known_from_the_start(tmp_path_factory, cells, late, kept):
    """A value that contradicts what a column seemed to hold changes this column, as if it had stood in the first line;
    and no other column is parsed again."""
    folder = tmp_path_factory.mktemp("late")
    cells = [*cells, *(value for _, value in late)] if late else cells
    rows = [f"{cell},{k % 5},{'abc'[k % 3]},{k % 2}\n" for k, cell in enumerate(cells)]
    (folder / "a.csv").write_text("x,z,w,y\n" + "".join(rows))
    found = {}
    for name, block, n_bytes, numeric in (("late", 60, kept, True), ("whole", 2**24, 0, True), ("text", 60, 0, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_files.read_blocks, "__defaults__", (block,))
            patch.setattr(table, "KEPT_BYTES", n_bytes)
            parse, parsed = csv_files.CsvFiles._parse, []

            def recorded(self, text, at, names, numbers, parse=parse, parsed=parsed, numeric=numeric):
                parsed.append((at, tuple(names)))
                return parse(self, text, at, names, numbers if numeric else ())

            patch.setattr(csv_files.CsvFiles, "_parse", recorded)
            found[name] = outcome(ALONE, folder, name)
            if name == "late" and n_bytes:
                first = {}
                assert all(names == ("x",) for at, names in parsed if first.setdefault(at, names) != names)
                assert len(parsed) <= 2 * len(first)
    assert found["late"] == found["whole"] == found["text"]


CELL = st.text(st.sampled_from('0012x. "\t'), max_size=5)


@example([("", "", '00"')], "\n")
@given(st.lists(st.tuples(CELL, CELL, CELL), min_size=1, max_size=5), st.sampled_from(["\n", "\r\n"]))
def test_codes_with_leading_zeros_are_found_in_the_text(tmp_path_factory, rows, end):
    path, stream = tmp_path_factory.mktemp("padded") / "a.csv", io.StringIO()
    csv.writer(stream, lineterminator=end).writerows([[cell.replace("\t", " ") for cell in row] for row in rows])
    path.write_text("a,b,c\n" + stream.getvalue(), newline="")
    files = csv_files.CsvFiles([str(path)])
    found = set()
    for batch in files.batches(files.plan(1)[0], Selection("abc", as_numbers=lambda name: True)):
        found |= batch.padded | {name for name in batch.columns.others if columns.is_padded(batch.columns[name])}
    read = zip(*csv.reader(io.StringIO(stream.getvalue(), newline="")), strict=True)
    padded = {name for name, cells in zip("abc", read, strict=True) if any(map(PADDED.fullmatch, cells))}
    assert found == padded


PADDED = re.compile(r"\s*0[0-9]+\s*")


@given(st.lists(st.sampled_from(["", "a", "b"]), min_size=1), st.sampled_from(["\n", "\r\n"]))
def test_empty_lines_are_rows_of_a_single_column_alone(tmp_path_factory, lines, end):
    folder = tmp_path_factory.mktemp("lines")
    for names, texts in (("x", lines), ("x,y", [f"{line},1" if line else "" for line in lines])):
        (folder / "a.csv").write_text(names + end + "".join(text + end for text in texts), newline="")
        files = csv_files.CsvFiles([str(folder / "a.csv")])
        read = [batch.columns["x"].to_pylist() for batch in files.batches(files.plan(1)[0], Selection(["x"]))]
        expected = [line or None for line in lines if line or names == "x"]
        assert [value for column in read for value in column] == expected


def test_the_sample_counts_each_value_whatever_the_order():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 3000, (20_000, 1)).astype(float)
    survey = NumberSurvey(1)
    for part in np.split(values, 4):
        survey.add(part.T, np.zeros(1, np.intp))
    different, rows = np.unique(values, return_counts=True)
    hashes = _mix.py_func(different.view(np.uint64) * GOLDEN + np.uint64(1))
    order = np.argsort(hashes)[: survey.sample.hashes.shape[1]]
    assert survey.sample.hashes[0].tolist() == hashes[order].tolist()
    assert survey.sample.times[0].tolist() == rows[order].tolist()
    assert survey.extremes.tolist() == [[values.min(), values.max()]]


def test_rows_with_weights_may_have_no_column_of_numbers(comm, shared_dir):
    rows = "".join(f"{'ab'[k % 2]},{1 + k % 3},{k % 2}\n" for k in range(30))
    on_root(comm, lambda: (shared_dir / "a.csv").write_text("x,w,y\n" + rows))
    made = convert([shared_dir / "a.csv"], shared_dir / "a", comm, label="y", weight="w")
    assert made.table.feature_names == ["x=a", "x=b"]
