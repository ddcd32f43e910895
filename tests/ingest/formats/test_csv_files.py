"""CSV text that pyarrow converts to numbers while it parses: the same rows and messages as from strings."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distsms.base import text_files
from distsms.base.errors import InputError
from distsms.base.hashing import GOLDEN, _mix
from distsms.ingest.formats import columns, csv_files, table
from distsms.ingest.formats.column_survey import NumberSurvey
from distsms.ingest.formats.csv_kernels import count_lines, find_padded
from distsms.parallel.communicator import Communicator
from tests.support.conversion import convert
from tests.support.files import on_root

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
        found = csv_files.read_plain_lines(lines, len(words), ord(","), ["x", "y"], ["x", "y"], ["y"])
        assert (found is not None) == plain
        assert found is None or found.texts["x"].to_pylist() == words


def outcome(comm, folder, name, **options):
    """What becomes of a text: the manifest but for what depends on the moment, or the message."""
    try:
        convert([folder / "a.csv"], folder / name, comm, label="y", n_shards=3, **options)
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
    plain = csv_files.read_plain_lines(text, len(rows), ord(","), files.names, ["word", "x"], ["x"])
    read = None if odd == "1,5" else files._read(text, len(rows), position, ["word", "x"], ["x"])
    if odd is not None or read is None:
        assert plain is None
    elif plain is not None:  # else a number whose rounding is not proved
        expected = read["x"].to_numpy(zero_copy_only=False)
        assert plain.values[0].tobytes() == np.where(np.isnan(expected), np.nan, expected).tobytes()
        assert plain.gaps.tolist() == [np.isnan(expected).sum()]
        assert plain.padded == ({"x"} if any(re.fullmatch("0[0-9]+", number) for number, _ in cells) else set())
        assert columns.clean(plain.texts["word"], files.cells).equals(columns.clean(read["word"], files.cells))


def test_lines_without_fields_and_other_ends_of_lines_are_not_plain():
    for text in (b"1\n\n", b"\n1\n", b"1\r2\n", b"1\r\n\r\n", b"1,2\n", b"1\n2\n3\n", b"\xef\xbb\xbf1\n2\n"):
        assert csv_files.read_plain_lines(text, 2, ord(","), ["x"], ["x"], ["x"]) is None
    assert csv_files.read_plain_lines(b"1\n2\n", 2, ord(","), ["x"], ["x"], ["x"]) is not None


def test_what_the_survey_has_parsed_is_not_parsed_again(comm, shared_dir, monkeypatch):
    rows = "".join(f"{k % 9},{k % 2}\n" for k in range(2000))
    on_root(comm, lambda: (shared_dir / "a.csv").write_text("x,y\n" + rows))
    monkeypatch.setattr(text_files.read_blocks, "__defaults__", (150,))
    parse, parsed = csv_files.CsvFiles._parse, []

    def counted(self, text, at, *others):
        parsed.append(at)
        return parse(self, text, at, *others)

    monkeypatch.setattr(csv_files.CsvFiles, "_parse", counted)
    convert([shared_dir / "a.csv"], shared_dir / "a", comm, label="y", n_shards=7)
    assert len(parsed) == len(set(parsed)) > 0


CELL = st.text(st.sampled_from('0012x. "\t'), max_size=5)


@example([("", "", '00"')], "\n")
@given(st.lists(st.tuples(CELL, CELL, CELL), min_size=1, max_size=5), st.sampled_from(["\n", "\r\n"]))
def test_codes_with_leading_zeros_are_found_in_the_text(rows, end):
    stream = io.StringIO()
    csv.writer(stream, lineterminator=end).writerows([[cell.replace("\t", " ") for cell in row] for row in rows])
    text = np.frombuffer(stream.getvalue().encode(), np.uint8)
    found = np.zeros(3, bool)
    find_padded(text, ord(","), found)
    read = zip(*csv.reader(io.StringIO(stream.getvalue(), newline="")), strict=True)
    assert found.tolist() == [any(re.fullmatch("0[0-9]+", cell.strip()) for cell in column) for column in read]


@given(st.text("a\r\n", min_size=1).map(lambda text: text + "\n"))
def test_lines_are_counted(text):
    lines, empty = count_lines(np.frombuffer(text.encode(), np.uint8))
    assert lines == text.count("\n")
    assert empty or all(line.rstrip("\r") for line in text[:-1].split("\n"))


def test_the_sample_counts_each_value_whatever_the_order():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 3000, (20_000, 1)).astype(float)
    survey = NumberSurvey(1)
    for part in np.split(values, 4):
        survey.add(part, np.zeros(1, np.intp))
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
