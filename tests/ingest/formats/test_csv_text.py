"""Rows of CSV that have several lines, as Python's csv and pyarrow read them, wherever a rank begins."""

from __future__ import annotations

import csv
import gzip
import io
import random

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distsms.base import text_files
from distsms.base.errors import InputError
from distsms.ingest.formats import csv_files, csv_text
from distsms.ingest.formats.arrow import Selection
from distsms.ingest.formats.table import TableReader
from distsms.ingest.options import ReadOptions
from distsms.shards.dataset import read_manifest
from tests.support.conversion import convert
from tests.support.files import ALONE, content, on_root

CELL = st.text(st.sampled_from('ab",;\n\r 0'), max_size=6)


def as_csv(rows, end="\n", by=",", quoting=csv.QUOTE_MINIMAL):
    stream = io.StringIO()
    csv.writer(stream, lineterminator=end, delimiter=by, quoting=quoting).writerows(rows)
    return stream.getvalue()


@given(
    st.lists(st.tuples(CELL, CELL), min_size=1, max_size=12),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.integers(1, 60),
    st.integers(1, 9),
    st.booleans(),
)
@example([('a\n"b","c"\nd', "x"), ("1", '"\n')], "\n", csv.QUOTE_MINIMAL, 1, 9, False)
def test_rows_are_those_of_python_and_of_pyarrow(tmp_path_factory, cells, end, quoting, block, n_shares, compressed):
    """Whatever the blocks and the shares, and in whichever order these are read."""
    if any("\r" in cell for row in cells for cell in row):
        quoting = csv.QUOTE_ALL  # else Python leaves them without quotes
    text = as_csv([("x", "z"), *cells], end, quoting=quoting)
    path = tmp_path_factory.mktemp("rows") / ("a.csv.gz" if compressed else "a.csv")
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    _, *rows = csv.reader(io.StringIO(text, newline=""))
    expected = [[cell.strip() or None for cell in row] for row in rows if row]
    parsed = arrow_csv.read_csv(
        pa.py_buffer(text.encode()),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(column_types={"x": pa.string(), "z": pa.string()}),
    )
    of_arrow = [[(cell or "").strip() or None for cell in row.values()] for row in parsed.to_pylist()]
    assert of_arrow == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files.read_blocks, "__defaults__", (block,))
        files = csv_files.CsvFiles([str(path)])
        shares = list(enumerate(files.plan(n_shares)))
        random.Random(block).shuffle(shares)
        found, lines = {}, []
        for k, share in shares:
            found[k] = []
            for batch in files.batches(share, Selection(["x", "z"])):
                found[k] += zip(*(batch.columns[name].to_pylist() for name in "xz"), strict=True)
                lines += [files.where(batch.position, row) for row in range(batch.n)]
    assert [list(row) for k in sorted(found) for row in found[k]] == expected
    ends, reader = [0], csv.reader(io.StringIO(text, newline=""))
    begins = [
        (ends[-1] + 1, ends.append(reader.line_num))[0] for row in reader if row or not ends.append(reader.line_num)
    ]
    if "\r" not in text.replace("\r\n", ""):  # which Python counts as an end of a line
        assert sorted(lines) == sorted(f"{path}:{line}" for line in begins[1:])


def table_with(late, n=400):
    """Return rows with texts and numbers; those from `late` on may have several lines, some with rows inside."""
    texts = ["one", 'a "b"', "c, d", "", "two"]
    lines = ["p\nq", "a\n1,5,x,0\nb", 'say "x"\n"y"', "\n\n", "3,4,a,1\n5,6,b,0"]
    cells = [(lines if k >= late and k % 3 == 0 else texts)[k % 5] for k in range(n)]
    return [[str(k % 7), cell, "uvw"[k % 3], str(k % 2)] for k, cell in enumerate(cells)]


@pytest.mark.parametrize("late", [0, 200, 399])
@pytest.mark.parametrize("block", [5, 300, 2**24])
def test_ranks_agree_on_where_rows_begin(comm, shared_dir, monkeypatch, late, block):
    """The first row of several lines may be in the sample, or far behind it; then the columns are looked at again."""
    rows = table_with(late)
    text = as_csv([["x", "t", "w", "y"], *rows], "\r\n" if late else "\n")
    on_root(comm, lambda: (shared_dir / "a.csv").write_bytes(text.encode()))
    for module, name, value in ((csv_files, "SAMPLE_BYTES", 300), (csv_text, "CELL", 100)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(text_files.read_blocks, "__defaults__", (block,))
    follow, followed = csv_text.CsvText.find_rows, []

    def find_rows(self, paths, comm):
        followed.append(paths)
        follow(self, paths, comm)

    monkeypatch.setattr(csv_text.CsvText, "find_rows", find_rows)
    made = convert([shared_dir / "a.csv"], shared_dir / "d", comm, label="y", normalize="none", n_shards=5)
    texts = [row[1].strip() for row in rows]
    categories = sorted({*texts} - {""})
    assert made.table.columns[1].categories == tuple(categories) and made.n == len(rows)
    X, y = content(shared_dir / "d")
    assert X[:, 0].tolist() == [float(row[0]) for row in rows] and (y > 0).tolist() == [row[3] == "1" for row in rows]
    of_text = X[:, 1 : 1 + len(categories)]
    assert of_text.tolist() == [[float(text == category) for category in categories] for text in texts]
    assert len(followed) == (comm.size > 1)
    # Scoring: the ranks read parts in turns, of a table that is known.
    table = read_manifest(shared_dir / "d").table
    reader = TableReader([str(shared_dir / "a.csv")], ReadOptions(table=table, labelled=False), comm)
    shares = reader.plan(3 * comm.size)
    mine = range(comm.rank, len(shares), comm.size)
    of_rank = {k: [block.data.tolist() for block in reader.read(shares[k])] for k in mine}
    together = {k: blocks for each in comm.allgather(of_rank) for k, blocks in each.items()}
    assert [value for k in sorted(together) for block in together[k] for value in block] == X[X != 0].tolist()


@pytest.mark.parametrize(
    "text, told",
    [
        ('x,t,y\n1,a,0\n2,"b\n3,c,1\n', r"a\.csv:3: a quote opens in this line, and none closes it"),
        ('x,t,y\n1,"a\nb",0\n2,"b\n3,c,1\n', r"a\.csv:4: a quote opens in this line, and none closes it"),
        ('x,t,y\n1,"a,0\n2,"b",1\n', r"a\.csv:2: a quote opens in this line, and the next one is in another"),
        ('x,t,y\n1,"a\n\nb",0\n2,c\n', r"a\.csv:5: found 2 fields, expected 3"),
        ('x,t,y\n1,"a\nb",0\n2,"c\n\nd",1\n\n3,"e\nf",\n', r"a\.csv:8: column 'y'.*the label is missing"),
        ('x,"t\n",y\n1,"a\nb",0\ninf,c,1\n', r"a\.csv:5: column 'x': found 'inf'"),
        ('x,"t,y\n1,2,0\n', r"a\.csv:1: a quote opens among the names"),
    ],
)
@pytest.mark.parametrize("block", [1, 2**24])
def test_messages_name_the_line_where_a_row_or_a_quote_begins(comm, shared_dir, monkeypatch, text, told, block):
    monkeypatch.setattr(text_files.read_blocks, "__defaults__", (block,))
    monkeypatch.setattr(csv_text, "CELL", 4)
    on_root(comm, lambda: (shared_dir / "a.csv").write_text(text))
    with pytest.raises(InputError, match=told):
        convert([shared_dir / "a.csv"], shared_dir / "d", comm, label="y", n_shards=4)


@pytest.mark.serial
def test_a_field_that_nothing_closes_takes_no_more_memory_than_a_line_may(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 1000)
    monkeypatch.setattr(text_files.read_blocks, "__defaults__", (50,))
    (tmp_path / "a.csv").write_text('x,y\n1,0\n"2,1\n' + "3,1\n" * 10_000)
    with pytest.raises(InputError, match=r"a\.csv:3: a quote opens in this line, and none closes it within 1000 bytes"):
        convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="y")


def test_plain_rows_of_several_lines_are_read_without_pyarrow():
    text = b'1,"a\nb ""c""\r\n"\n2,"a\nb ""c""\r\n"\n'
    found = csv_files.read_plain_lines(text, ord(","), ["x", "t"], ["x", "t"], ["x"], n_inner=4)
    assert found.columns.array.tolist() == [[1.0, 2.0]] and found.columns["t"].to_pylist() == ['a\nb "c"\r\n'] * 2
    assert csv_files.read_plain_lines(text, ord(","), ["x", "t"], ["x", "t"], ["x"]) is None
    assert csv_files.read_plain_lines(b'1,"a\n', ord(","), ["x", "t"], ["x", "t"], ["x"]) is None


def test_a_single_column_of_several_lines(tmp_path):
    (tmp_path / "a.csv").write_text('x\n"1\n"\n\n"\n2"\n')
    files = csv_files.CsvFiles([str(tmp_path / "a.csv")])
    assert [batch.columns["x"].to_pylist() for batch in files.batches(files.plan(1)[0], Selection(["x"]))] == [
        ["1", None, "2"]
    ]
