"""Svmlight text: every number equals `float`, every row is read as written, and errors name file:line."""

from __future__ import annotations

import gzip
import io
import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from distsms.base import text_files
from distsms.base.errors import InputError
from distsms.base.text_files import TextPosition, plan
from distsms.ingest.formats import svmlight
from distsms.ingest.formats.svmlight import SvmlightReader
from distsms.ingest.options import ReadOptions
from distsms.shards.rows import RowBlock, concatenate
from tests.support.examples import examples
from tests.support.files import parse, read

pytestmark = pytest.mark.serial


def assert_same(rows: RowBlock, expected: RowBlock) -> None:
    for one, other in zip(rows[:4], expected[:4], strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()  # bit for bit: -0.0 is not 0.0
    assert rows.n_columns == expected.n_columns


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


# --- numbers -------------------------------------------------------------------------------------------------------

digits = st.text("0123456789", max_size=25)
mantissas = st.one_of(
    st.builds("{}.{}".format, digits, digits),
    digits,
    st.integers(2**53 - 5, 10**19).map(str),
    st.builds("0.{}{}".format, st.integers(0, 30).map("0".__mul__), st.integers(1, 10**18).map(str)),
).filter(lambda text: any(letter.isdigit() for letter in text))
exponents = st.one_of(st.just(""), st.builds("{}{:d}".format, st.sampled_from(["e", "E", "e+"]), st.integers(0, 40)))
exponents |= st.builds("{}{:0{}d}".format, st.sampled_from(["e-", "E-"]), st.integers(0, 400), st.integers(1, 4))
tokens = st.builds("{}{}{}".format, st.sampled_from(["", "+", "-"]), mantissas, exponents)
doubles = st.floats(allow_nan=False, allow_infinity=False)
formats = st.sampled_from(["{!r}", "{:.17g}", "{:.18g}", "{:.25g}", "{:e}", "{:.3f}", "{:+.6G}", "{:.16e}", "{:f}"])
tokens |= st.builds(str.format, formats, doubles | st.floats(-1e6, 1e6) | st.floats(0, 1))


@examples(25)
@given(st.lists(tokens, min_size=1, max_size=20))
@example(
    ["9007199254740993", "9007199254740993e-22", "0.1", "1e23", "1e22", "-0e-9", "123456789012345678.", ".5", "5."]
)
@example(["0." + "0" * 330 + "1", "0e999999999999999999999", "1e-400", "1E+0000000000000005", "0" * 400, "1e308"])
def test_every_number_equals_float(texts: list[str]) -> None:
    texts = [text for text in texts if math.isfinite(float(text))]
    stored = [float(text) for text in texts if float(text) != 0]
    rows = parse(("0 " + " ".join(f"{i}:{text}" for i, text in enumerate(texts, 1)) + "#").encode())
    assert [bits(value) for value in rows.data] == [bits(value) for value in stored]
    assert rows.n_columns == len(texts)
    rows = parse("\n".join(texts).encode())
    assert [bits(value) for value in rows.labels] == [bits(float(text)) for text in texts]


def test_halfway_cases_and_their_neighbours() -> None:
    """Draw decimal texts at, just below and just above the middle between two doubles, with 16 to 19 digits."""
    random = np.random.default_rng(5)
    texts = []
    for mantissa in random.integers(2**53, 2**54, 3000, dtype=np.int64).tolist():
        middle = (mantissa // 2 * 2 + 1) * 2 ** int(random.integers(0, 4))
        texts += [str(middle + change) for change in (-1, 0, 1)]
        texts += [f"{middle + change}e-{random.integers(1, 23)}" for change in (-1, 0, 1)]
        texts += [f"{10 * middle + change}e-1" for change in (-1, 0, 1)]
    for value in random.random(5000).tolist():
        texts += [f"{value:.17f}", f"{value:.18f}", f"{value:.18e}", repr(value)]
    texts += [f"{mantissa}e-7" for mantissa in (9 * 10**18, 9 * 10**18 + 1, 2**63 - 1, 2**63, 10**19 - 1, 10**19)]
    rows = parse("\n".join(texts).encode())
    assert rows.labels.tolist() == [float(text) for text in texts]


@pytest.mark.parametrize("style", ["{:.17g}", "{!r}", "{:.16e}"])
def test_usual_numbers_do_not_need_python(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).uniform(1e-4, 1e4, 2000)
    text = "\n".join(style.format(value) for value in values.tolist()).encode()
    calls = []
    monkeypatch.setattr(svmlight, "_number", lambda *arguments: calls.append(arguments) or 0.0)
    parse(text)
    assert len(calls) < 5


# --- rows ----------------------------------------------------------------------------------------------------------

values = doubles | st.sampled_from([0.0, -0.0, 1.0, 0.5])
entries = st.dictionaries(st.integers(0, 300), values, max_size=6).map(lambda row: sorted(row.items()))
tables = st.lists(st.tuples(doubles | st.sampled_from([1.0, -1.0]), entries), max_size=12)


def expected_rows(table: list[tuple[float, list[tuple[int, float]]]]) -> RowBlock:
    kept = [[(index, value) for index, value in row if value != 0] for _, row in table]
    return RowBlock(
        np.array([label for label, _ in table], float),
        np.cumsum([0, *map(len, kept)], dtype=np.int64),
        np.array([index for row in kept for index, _ in row], np.int32),
        np.array([value for row in kept for _, value in row], float),
        max((index + 1 for _, row in table for index, _ in row), default=0),
    )


@st.composite
def texts_of(draw: st.DrawFn) -> tuple[bytes, bool, RowBlock]:
    """Draw a text in a random style, whether it is zero-based, and the rows that it holds."""
    table = draw(tables)
    base = draw(st.integers(0, 1))
    number = draw(st.sampled_from(["{!r}", "{:.17g}", "{:.16e}", "{:+.17G}"]))
    separator = draw(st.sampled_from([" ", "\t", "  ", " \t "]))
    lead, trail = draw(st.sampled_from(["", " ", "\t"])), draw(st.sampled_from(["", " ", " # 7:8 é", "#x"]))
    filler = draw(st.sampled_from([[], [""], ["# a comment 1:1"], ["  ", "\t# 2:", ""]]))
    lines = []
    for label, row in table:
        fields = [number.format(label), *(f"{index + base}:{number.format(value)}" for index, value in row)]
        lines += [*filler, lead + separator.join(fields) + trail]
    end = draw(st.sampled_from(["\n", "\r\n"]))
    text = end.join(lines) + draw(st.sampled_from(["", end]))
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + text.encode(), base == 0, expected_rows(table)


@examples(6.7)
@given(texts_of())
def test_parse_gives_back_what_was_written(written: tuple[bytes, bool, RowBlock]) -> None:
    text, zero_based, expected = written
    assert_same(parse(text, zero_based), expected)


@examples(2.5)
@given(tables.filter(bool), st.booleans())
def test_parse_agrees_with_scikit_learn(table: list, zero_based: bool) -> None:
    text = "".join(
        f"{label!r} {' '.join(f'{index + 1 - zero_based}:{value!r}' for index, value in row)}\n" for label, row in table
    ).encode()
    rows = parse(text, zero_based)
    matrix, labels = load_svmlight_file(io.BytesIO(text), zero_based=zero_based)
    matrix.eliminate_zeros()
    assert rows.labels.tobytes() == labels.tobytes()
    assert rows.data.tobytes() == matrix.data.tobytes()
    assert rows.indices.tolist() == matrix.indices.tolist()
    assert rows.indptr.tolist() == matrix.indptr.tolist()


@pytest.mark.parametrize("text", [b"", b"\n", b"# nothing\n", b"\r\n \t\n", b" ", b"#", b"\r"])
def test_text_without_rows(text: bytes) -> None:
    assert_same(parse(text), concatenate([]))
    assert len(concatenate([]).indptr) == 1


def test_wide_indices() -> None:
    assert parse(b"1 2147483647:1").indices.dtype == np.int32
    rows = parse(b"1 2147483648:1")
    assert rows.indices.dtype == np.int64
    assert rows.n_columns == 2**31
    assert parse(f"1 00000000000000000000{2**62}:1".encode()).n_columns == 2**62
    assert concatenate([parse(b"1 1:1"), rows]).indices.tolist() == [0, 2**31 - 1]


# --- faults --------------------------------------------------------------------------------------------------------

FAULTS = [
    (b"x 1:1", r"found 'x': expected a decimal number as label"),
    (b"1,0 1:1", r"found '1,0': expected a decimal number as label"),
    (b"3:1 4:1", r"found '3:1': the line begins without a label"),
    (b"nan 1:1", r"found 'nan': the label is not finite"),
    (b"-Inf", r"found '-Inf': the label is not finite"),
    (b"1e999 1:1", r"found '1e999': the label is too large"),
    (b"1_0 1:1", r"found '1_0': expected a decimal number as label"),
    (b"1 2:nan", r"found '2:nan': the value is not finite"),
    (b"1 2:-infinity", r"found '2:-infinity': the value is not finite"),
    (b"1 2:1e999 3:1", r"found '2:1e999': the value is too large"),
    (b"1 2:" + b"9" * 400, r"found '2:9{38}'\.\.\.: the value is too large"),
    (b"1 2:", r"found '2:': the value is missing"),
    (b"1 2: 3", r"found '2:': the value is missing"),
    (b"1 2:#", r"found '2:': the value is missing"),
    (b"1 2:3:4", r"found '2:3:4': expected a decimal number as value"),
    (b"1 2:0x1p3", r"found '2:0x1p3': expected a decimal number as value"),
    (b"1 2:1e", r"found '2:1e': expected a decimal number as value"),
    (b"1 2:.", r"found '2:\.': expected a decimal number as value"),
    (b"1 2:+-1", r"found '2:\+-1': expected a decimal number as value"),
    (b"1 2:1_0", r"found '2:1_0': expected a decimal number as value"),
    (b"1 2:1\0", r"found '2:1\\x00': .*; is this a text file"),
    (b"1 2:1 7", r"found '7': the colon is missing"),
    (b"1 2 :1", r"found '2': the colon is missing"),
    (b"1 word", r"found 'word': the colon is missing"),
    (b"1 a:1", r"found 'a:1': expected index:value, with a whole number"),
    (b"1 :1", r"found ':1': expected index:value, with a whole number"),
    (b"1 1.5:1", r"found '1\.5:1': expected index:value, with a whole number"),
    (b"1 +2:1", r"found '\+2:1': expected index:value, with a whole number"),
    (b"1 -2:1", r"found '-2:1': the index is negative"),
    (b"1 0:1", r"found '0:1': indices begin at 1; use --zero-based"),
    (b"1 5:1 0:1", r"found '0:1': indices begin at 1; use --zero-based"),
    (b"1 12:1 7:1", r"found '7:1': the index comes after 12; expected ascending"),
    (b"1 12:1\t 12:1", r"found '12:1': the index comes after 12; .* each once"),
    (b"1 12:0 0012:1", r"found '0012:1': the index comes after"),
    (b"1 3:1 " + b"0" * 5000 + b"2:1", r"found '0{40}'\.\.\.: the index comes after"),
    (b"1 4611686018427387905:1", r"found '4611686018427387905:1': the index is too large; expected at most 2\^62"),
    (b"1 18446744073709551617:1", r"found '18446744073709551617:1': the index is too large"),
    (b"1 " + b"7" * 5000 + b":1", r"found '7{40}'\.\.\.: the index is too large"),
    (b"1 qid:3 qid:3 1:1", r"found 'qid:3': expected a query id once, after the label, as a whole number"),
    (b"1 1:1 qid:3", r"found 'qid:3': expected a query id once"),
    (b"1 qid:x 1:1", r"found 'qid:x': expected a query id once"),
    (b"1 qid: 1:1", r"found 'qid:': expected a query id once"),
    (b"1 qid:3:1 1:1", r"found 'qid:3:1': expected a query id once"),
    (b"1 qi", r"found 'qi': the colon is missing"),
    (b"1 1:1\r-1 2:1", r"a carriage return within a line"),
    (b"1\0", r"found '1\\x00': .*; is this a text file, in ASCII or UTF-8\?"),
    (b"\xff\xfe1\0 \0", r"found '\\xff\\xfe1\\x00': .*; is this a text file"),
    (b"1 \xc3\xa9:1", r"found '\\xe9:1': .*; is this a text file"),
    (b"1 2:1 \x1b[31m", r"found '\\x1b\[31m': the colon is missing"),
    (b"+1 ACGTACGT", r"found 'ACGTACGT': the colon is missing"),
]


def test_query_ids_are_left_out_and_counted() -> None:
    reader, text = (
        SvmlightReader([], ReadOptions()),
        b"1 qid:3 1:2 4:1\n-1\tqid:0012 2:1\n1 qid:7\n1 3:1 # qid:8\n0 qid:9#\n",
    )
    rows = reader.parse(text, TextPosition())
    expected = parse(b"1 1:2 4:1\n-1 2:1\n1\n1 3:1\n0\n")
    for mine, theirs in zip(rows, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert list(reader.warnings.values()) == [4]


@pytest.mark.parametrize(("line", "message"), FAULTS)
def test_a_fault_names_its_line(line: bytes, message: str, tmp_path: Path) -> None:
    before, after = b"# head\r\n\n" + b"1 1:0.5 2:1\n" * 50, b"\n" + b"-1 2:1\n" * 50 + b"rubbish"
    text = before + line + after
    for compress in (bytes, gzip.compress):
        path = tmp_path / "rows.txt"
        path.write_bytes(compress(text))
        pattern = f"^{path}:53: .*{message}"
        for n_shares, block_bytes in ((1, 2**21), (1, 100), (9, 100), (300, 10)):
            for share in plan([path], n_shares):
                try:
                    list(read(share, block_bytes=block_bytes))
                except InputError as error:
                    assert len(str(error)) < 250 + len(str(path))
                    assert str(error).isprintable()
                    with pytest.raises(InputError, match=pattern):
                        raise
                    break
            else:
                pytest.fail("no rank found the fault")
    with pytest.raises(InputError, match=f"^<text>:53: .*{message}"):
        parse(text)


def test_where_a_text_begins_counts() -> None:
    with pytest.raises(InputError, match=r"^other:2: found 'x'"):
        parse(b"1\nx\n", origin=TextPosition("other"))
    with pytest.raises(InputError, match=r"^<text>:2: "):  # the first fault of the text, whoever finds it
        parse(b"1\n1 2:1e999\n1 0:1\n")


@examples(10)
@given(
    st.lists(st.sampled_from(["1", "0", "9", ":", ".", "-", "e", " ", "\t", "\n", "\r", "#", "\0", "x", "é"])).map(
        "".join
    )
)
def test_any_text_gives_rows_or_a_fault(text: str) -> None:
    """Compare with a plain parser, line by line."""
    expected = []
    fault = None
    for number, line in enumerate(text.replace("\r\n", "\n").removesuffix("\r").split("\n"), 1):
        fields = line.split("#")[0].replace("\t", " ").split(" ")
        fields = [field for field in fields if field]
        try:
            if fields:
                assert not any(letter in field for field in fields for letter in "\r_é")
                row = [(int(index), float(value)) for index, value in (field.split(":") for field in fields[1:])]
                assert all(field[0].isdigit() and field.split(":")[0].isdigit() for field in fields[1:])
                indices = [index for index, _ in row]
                assert indices == sorted(set(indices))
                assert all(1 <= index <= 2**62 for index in indices)
                assert all(map(math.isfinite, [float(fields[0]), *(value for _, value in row)]))
                expected.append((float(fields[0]), row))
        except (ValueError, AssertionError):
            fault = number
            break
    if fault is None:
        rows = parse(text.encode())
        assert rows.labels.tolist() == [label for label, _ in expected]
        assert rows.data.tolist() == [value for _, row in expected for _, value in row if value != 0]
        assert (rows.indices + 1).tolist() == [index for _, row in expected for index, value in row if value != 0]
    else:
        with pytest.raises(InputError, match=f"^<text>:{fault}: "):
            parse(text.encode())


def test_gigantic_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of any length are read, and other text is refused with a short excerpt; but a line may not be endless."""
    path = tmp_path / "long"
    path.write_bytes(b"1 " + b" ".join(b"%d:1" % k for k in range(1, 2**20)) + b"\n-1 1:2\n")
    rows = concatenate(read(plan([path], 1)[0], block_bytes=2**16))
    assert rows.indptr.tolist() == [0, 2**20 - 1, 2**20]
    path.write_bytes(b"1 1:1\n" + b"\xff" * 2**23)
    with pytest.raises(InputError, match=r"long:2: found '(\\xff){40}'\.\.\.: ") as caught:
        list(read(plan([path], 1)[0]))
    assert len(str(caught.value)) < 500
    monkeypatch.setattr(text_files, "LONGEST_LINE", 2**20)
    with gzip.open(path, "wb") as file:
        file.write(b"1 " + b"0" * 2**25)
    with pytest.raises(InputError, match="long: a line has more than 1048576 bytes"):
        list(read(plan([path], 1)[0]))
