"""Convert the columns of a batch of a table with pyarrow: strings to numbers, dates and categories.

A column of a batch is a pyarrow array: of strings (with nulls for missing values), of numbers, or of timestamps in
microseconds (UTC). Strings may be encoded: then the array has the different strings once, and their number for each
row, so that whatever is to be found out about strings is done once for each different string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.program import leave_out_pandas
from distsms.base.wording import option
from distsms.shards import row_metadata
from distsms.shards.row_metadata import plain_number
from distsms.shards.table_schema import VERSION, Cells, Writing

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as absent:
    remedy = "pip install 'distsms[tables]' (or, where numpy is older than 2: pip install 'pyarrow<24')"
    raise InputError(f"tables are read by pyarrow, which cannot be loaded: {absent}. {remedy}") from absent

# These need pyarrow.
from distsms.ingest.formats import amounts  # isort: skip
from distsms.ingest.formats.amounts import MARKS  # isort: skip

leave_out_pandas(pa)
_NUMBER = r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)$"
_DECIMAL_COMMA = r"^([+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?)$"
_TIME = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?"
ISO_DATE = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ]{_TIME}(?:Z|[+-][0-9]{{2}}:?[0-9]{{2}})?)?$"
PATTERNS = {
    "date": ISO_DATE,
    "other date": r"^[0-9]{1,4}[-./ ](?:[0-9]{1,2}|[A-Za-z]{3,9})[-./ ][0-9]{2,4}(?:[T ,]+[0-9]{1,2}:[0-9]{2}\S*.*)?$",
    "marks": "^[+-]?[0-9]*(?:,[0-9]+|[0-9](?:[.,'\u2019 \u00a0\u202f][0-9]{3})+(?:[.,][0-9]+)?)$",
}
"""What all strings of a column may look like. The last are numbers with decimal commas or marks between thousands."""


class Numbers(NamedTuple):
    """Those columns of a batch that hold nothing but numbers."""

    names: list[str]
    values: NDArray[np.float64]  # (m, n), NaN where they are missing. They may be infinite
    gaps: NDArray[np.int64]  # (m,), how many are missing
    finite: bool  # whether none is infinite
    marks: Mapping[str, Mapping[str, int]]  # of the columns with marks among the numbers: the rows of each mark


class Columns:
    """The columns of a batch of n rows: m columns of finite numbers, an array (m, n) with `gaps` (m,), and `others`."""

    def __init__(
        self, names: Sequence[str], array: NDArray[np.float64], gaps: NDArray[np.int64], others: Mapping[str, Any]
    ) -> None:
        self.names, self.array = list(names), array
        self.gaps, self.others = gaps, dict(others)
        self.places = {name: k for k, name in enumerate(names)}

    @staticmethod
    def of(others: Mapping[str, Any], n: int) -> Columns:
        """Return columns of n rows, of which none is in the array of numbers."""
        return Columns([], np.empty((0, n)), np.empty(0, np.int64), others)

    def __getitem__(self, name: str) -> Any:
        return self.others[name] if name in self.others else pa.array(self.array[self.places[name]])

    @property
    def n(self) -> int:
        return self.array.shape[1]

    @property
    def nbytes(self) -> int:
        return self.array.nbytes + sum(column.nbytes for column in self.others.values())

    def take(self, rows: NDArray[np.intp]) -> Columns:
        array = self.array[:, rows]
        others = {name: take(column, rows) for name, column in self.others.items()}
        return Columns(self.names, array, np.isnan(array).sum(axis=1), others)

    def beside(self, others: Columns) -> Columns:
        """Return these columns, and of others of the same rows those that have other names."""
        there = self.places.keys() | self.others.keys()
        places = [place for name, place in others.places.items() if name not in there]
        return Columns(
            [*self.names, *(others.names[place] for place in places)],
            np.concatenate((self.array, others.array[places])) if places else self.array,
            np.concatenate((self.gaps, others.gaps[places])),
            {**others.others, **self.others},
        )

    def write(self, file: IO[bytes]) -> None:
        """Write the numbers, and the others in Arrow's format for streams."""
        file.write(np.ascontiguousarray(self.array).data)
        record = pa.record_batch(self.others)
        with pa.ipc.new_stream(file, record.schema) as stream:
            stream.write_batch(record)

    @staticmethod
    def read(content: bytes, names: Sequence[str], gaps: NDArray[np.int64], n: int) -> Columns:
        """Return n rows that `write` has written."""
        array = np.frombuffer(content, np.float64, len(names) * n).reshape(len(names), n)
        record = pa.ipc.open_stream(pa.py_buffer(content).slice(array.nbytes)).read_next_batch()
        return Columns(names, array, gaps, dict(zip(record.schema.names, record.columns, strict=True)))

    def numbers(self, names: Sequence[str], among: Sequence[str] = ()) -> Numbers:
        """Return those of some columns that hold nothing but numbers, and marks `among` them, which are missing."""
        if self.places.keys() >= set(names):
            places = np.array([self.places[name] for name in names], np.intp)
            same = len(names) == len(self.places) and np.array_equal(places, np.arange(len(names)))
            array = self.array if same else self.array[places]  # which is a copy
            return Numbers(list(names), array, self.gaps[places], True, {})
        arrays, marks = dict[str, NDArray[np.float64]](), {}
        for name in names:
            if name in self.places:
                arrays[name] = self.array[self.places[name]]
                continue
            column = self.others[name]
            if is_date(column):  # with no date at all, it may be of any kind
                values = np.full(self.n, np.nan) if column.null_count == self.n else None
            elif not is_text(column):
                values = as_float(column)
            elif (values := _cast_numbers(column)) is None:
                rest, marked = without(column, among)
                if marked.any() and (values := _cast_numbers(rest)) is not None:
                    marks[name] = _counts(column, among)
            if values is not None:
                arrays[name] = values
        array = np.array([*arrays.values()]) if arrays else np.empty((0, self.n))
        return Numbers([*arrays], array, np.isnan(array).sum(axis=1), not np.isinf(array).any(), marks)


def without(text: Any, marks: Sequence[str]) -> tuple[Any, NDArray[np.bool_]]:
    """Return strings with nulls in the place of marks, and where these were: in an encoded column, (m,), else (n,)."""
    if is_encoded(text):
        rest, marked = without(text.dictionary, marks)
        return (_mapped(text, lambda strings: rest) if marked.any() else text), marked
    marked = pc.is_in(text, value_set=pa.array(marks, pa.string()))
    return pc.if_else(marked, pa.scalar(None, pa.string()), text), marked.to_numpy(zero_copy_only=False)


def _counts(column: Any, marks: Sequence[str]) -> dict[str, int]:
    different, places = dictionary_encode(column)
    rows = np.bincount(places[places >= 0], minlength=len(different))
    return {text: int(k) for text, k in zip(different.to_pylist(), rows, strict=True) if text in marks and k}


def as_strings_column(strings: Sequence[str]) -> Any:
    return pa.array(strings, pa.string())


def numbered(codes: NDArray[np.int32], strings: Sequence[str]) -> Any:
    """Return an encoded column of the strings with these numbers, (n,)."""
    return pa.DictionaryArray.from_arrays(codes, as_strings_column(strings))


def narrow(text: Any) -> Any:
    """Return an encoded column with numbers of rows in as few bytes as they need."""
    kind = pa.from_numpy_dtype(np.min_scalar_type(-len(text.dictionary) - 1))
    return pa.DictionaryArray.from_arrays(text.indices.cast(kind), text.dictionary)


def is_encoded(column: Any) -> bool:
    """Whether a column has its different strings once, and their number for each row."""
    return pa.types.is_dictionary(column.type)


def of_rows(values: NDArray[Any], column: Any, missing: Any) -> NDArray[Any]:
    """Return each row's value, (n,), from those (m,) of the different strings of an encoded column; or `missing`."""
    return np.append(values, values.dtype.type(missing))[dictionary_encode(column)[1]]


def take(column: Any, rows: NDArray[np.intp]) -> Any:
    """Return these rows of a column; an encoded one has no string that is in none of them."""
    part = column.take(pa.array(rows))
    return pc.dictionary_encode(part.dictionary_decode()) if is_encoded(part) else part


def strings_of(column: Any) -> Any:
    """Return the strings of a column, each once if it is encoded, without space around them."""
    return pc.utf8_trim_whitespace(column.dictionary if is_encoded(column) else column)


def _mapped(column: Any, function: Callable[[Any], Any]) -> Any:
    strings = function(column.dictionary)
    if strings.equals(column.dictionary):
        return column
    encoded = pc.dictionary_encode(strings)
    return pa.DictionaryArray.from_arrays(encoded.indices.take(column.indices), encoded.dictionary)


def _cast_numbers(text: Any) -> NDArray[np.float64] | None:
    """Return strings as numbers, NaN where they are missing; None if one of them is no number."""
    if is_encoded(text):
        values = _cast_numbers(text.dictionary)
        return None if values is None else of_rows(values, text, np.nan)
    try:
        values = pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        return None
    return values if np.isnan(values).sum() == text.null_count else None  # Arrow also takes nan(...) for a number


def clean(text: Any, cells: Cells, decimal: str = ".", writing: Writing | None = None) -> Any:
    """Return strings without space around them, numbers as in English, and nulls for missing values."""
    if is_encoded(text):
        return _mapped(text, lambda strings: clean(strings, cells, decimal, writing))
    text, thousands = pc.utf8_trim_whitespace(text), cells.thousands
    if writing is not None:
        return without_numbers(amounts.as_plain(without(text, cells.marks)[0], writing), cells)
    if thousands:
        grouped = pc.match_substring_regex(text, _grouped(thousands, decimal))
        text = pc.if_else(grouped, pc.replace_substring_regex(text, MARKS[thousands], ""), text)
    if decimal == ",":
        text = pc.replace_substring_regex(text, _DECIMAL_COMMA, r"\1.\2")
    return without_numbers(without(text, cells.marks)[0], cells)


def without_numbers(column: Any, cells: Cells) -> Any:
    """Return a column of strings or numbers with nulls in the place of the numbers that stand for missing values."""
    if not cells.numbers:
        return column
    numbers = pc.if_else(pc.match_substring_regex(column, _NUMBER), column, None) if is_text(column) else column
    wrong = pc.is_in(pc.cast(numbers, pa.float64(), safe=False), value_set=pa.array(cells.numbers, pa.float64()))
    return pc.if_else(wrong, pa.scalar(None, column.type), column)


def _grouped(thousands: str, decimal: str) -> str:
    """Return the pattern of numbers whose whole part has a mark between groups of three digits."""
    before_decimals = "[.,]" if decimal == "," and thousands not in ".," else MARKS[decimal]
    return rf"^[+-]?[1-9][0-9]{{0,2}}(?:{MARKS[thousands]}[0-9]{{3}})+(?:{before_decimals}[0-9]*)?$"


def marked(text: Any) -> set[tuple[str, bool]]:
    """Return which of the marks "." and "," occur in numbers, each with whether it may separate thousands there."""
    text, answers = strings_of(text), set[tuple[str, bool]]()
    for mark, other in (".,", ",."):
        numbers = text.filter(pc.match_substring_regex(text, rf"^[+-]?[0-9]*{MARKS[mark]}[0-9]+$"))
        grouped = pc.unique(pc.match_substring_regex(numbers, _grouped(mark, other)))
        answers |= {(mark, may_separate) for may_separate in grouped.to_pylist()}
    return answers


def is_padded(column: Any) -> bool:
    """Whether a column of strings has a whole number with a leading zero, as codes have; False for other columns."""
    column = column.dictionary if is_encoded(column) else column
    return is_text(column) and bool(pc.any(pc.match_substring_regex(column, "^0[0-9]+$")).as_py())


def is_text(column: Any) -> bool:
    """Whether a column of a batch holds strings."""
    return pa.types.is_string(column.type) or is_encoded(column)


def is_date(column: Any) -> bool:
    return pa.types.is_timestamp(column.type)


def is_not_number(column: Any) -> Any:
    """Return where a column holds something that is not a number, (n,) bool."""
    if not is_text(column):
        return ~is_missing(column) & is_date(column)
    if is_encoded(column):
        return of_rows(is_not_number(column.dictionary), column, False)
    return pc.fill_null(pc.invert(pc.match_substring_regex(column, _NUMBER)), False).to_numpy(zero_copy_only=False)


def n_words(column: Any) -> NDArray[np.int64]:
    return pc.fill_null(pc.count_substring_regex(column, r"\S+"), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def dictionary_encode(column: Any) -> tuple[Any, Any]:
    """Return the different values of a column, and the index of each row's value, (n,), below 0 for none."""
    encoded = column if is_encoded(column) else pc.dictionary_encode(column)
    indices = pc.fill_null(encoded.indices, -1) if encoded.indices.null_count else encoded.indices
    return encoded.dictionary, indices.to_numpy(zero_copy_only=False)


def hash_strings(column: Any, seed: int = 0) -> NDArray[np.uint32]:
    """Return MurmurHash3 (32 bits, for x86; Appleby 2011) of each string in UTF-8, (n,); of "" where it is missing."""
    filled = pc.fill_null(pc.cast(column, pa.large_string()), "")
    if not len(filled):
        return np.empty(0, np.uint32)
    offsets = np.frombuffer(filled.buffers()[1], np.int64)[filled.offset : filled.offset + len(filled) + 1]
    text = np.append(np.frombuffer(filled.buffers()[2] or b"", np.uint8), np.zeros(4, np.uint8))
    begins, lengths = offsets[:-1], np.diff(offsets)
    hashes, strings = np.full(len(lengths), seed, np.uint32), np.arange(len(lengths))
    # 1) Four bytes after the other of all strings that have so many.
    for at in range(0, int(lengths.max(initial=0)) - 3, 4):
        strings = strings[lengths[strings] >= at + 4]
        mixed = hashes[strings] ^ _scrambled(_word(text, begins[strings] + at, 4))
        hashes[strings] = _rotated(mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    # 2) Up to three bytes at the end.
    rest = lengths % 4
    hashes ^= _scrambled(_word(text, begins + lengths - rest, rest)) ^ lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * np.uint32(factor)
    return hashes ^ (hashes >> np.uint32(16))


def _word(text: NDArray[np.uint8], at: NDArray[np.int64], size: Any) -> NDArray[np.uint32]:
    """Return the first `size` bytes at each place as a number, the lowest byte first."""
    word = np.zeros(len(at), np.uint32)
    for k in range(4):
        word |= np.where(k < size, text[at + k], 0).astype(np.uint32) << np.uint32(8 * k)
    return word


def _scrambled(word: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(word: NDArray[np.uint32], by: int) -> NDArray[np.uint32]:
    return (word << np.uint32(by)) | (word >> np.uint32(32 - by))


def as_float(column: Any) -> Any:
    """Return a column of numbers, or of strings that are numbers, as (n,) float64; NaN where it is missing."""
    safe = is_text(column)  # an unsafe cast may round integers
    return pc.cast(column, pa.float64(), safe=safe).to_numpy(zero_copy_only=False)


def as_strings(column: Any) -> list[str]:
    """Return each value of a column as it was read, "" where it is missing; as `row_metadata.as_strings`."""
    if pa.types.is_floating(column.type):
        return row_metadata.as_strings(column.to_numpy(zero_copy_only=False))
    if is_encoded(column):
        texts = [*as_strings(column.dictionary), ""]
        return [texts[k] for k in dictionary_encode(column)[1].tolist()]
    return [(text or "").strip() for text in as_text(column).to_pylist()]


def as_text(column: Any) -> Any:
    """Return a column as strings, whatever its type; timestamps as in ISO 8601, without the time at midnight."""
    if is_encoded(column):
        return column.dictionary_decode()
    if is_date(column):
        text = pc.strftime(column, format="%Y-%m-%dT%H:%M:%S")
        return pc.replace_substring_regex(text, r"T00:00:00(?:\.0+)?$", "")
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return pc.cast(column, pa.string())


def as_codes(column: Any, version: int = VERSION) -> Any:
    """Return a column as strings, with equal numbers (before version 3, whole ones) in one form: 7 for 7.0."""
    if is_encoded(column):
        return _mapped(column, lambda strings: as_codes(strings, version))
    if version > 2 and pa.types.is_floating(column.type):
        return as_codes(pc.dictionary_encode(as_text(column)))
    text = as_text(column)
    if pa.types.is_floating(column.type):
        values = column.to_numpy(zero_copy_only=False)
        whole = (np.abs(values) < 2**63) & (np.floor(values) == values)
        text = pc.if_else(whole, pc.cast(pa.array(np.where(whole, values, 0).astype(np.int64)), pa.string()), text)
    text = pc.replace_substring_regex(text, r"^\+?(-?)0*([0-9]+)(?:\.0*)?$", r"\1\2")
    if version > 2 and pc.any(pc.match_substring_regex(text, "[.eE]|^-0$")).as_py():
        text = pa.array([value and plain_number(value) for value in text.to_pylist()], pa.string())
    return text


def codes(column: Any, categories: Sequence[str]) -> Any:
    """Return the number of each row's category, (n,) int64; -1 for none. Truth values have any spelling."""
    places = _index(column, categories)
    if {category.lower() for category in categories} <= {"true", "false"}:
        numbers = {category.lower(): k for k, category in enumerate(categories)}
        other = _index(pc.utf8_lower(column), list(numbers))
        places = np.where(places < 0, np.append(list(numbers.values()), -1)[other], places)
    return places


def _index(column: Any, categories: Sequence[str]) -> NDArray[np.int64]:
    places = pc.index_in(column, value_set=pa.array(categories, pa.string()), skip_nulls=True)
    return pc.fill_null(pc.cast(places, pa.int64()), -1).to_numpy(zero_copy_only=False)


def is_missing(column: Any) -> Any:
    """Return where a column has no value, (n,) bool."""
    return pc.is_null(column, nan_is_null=True).to_numpy(zero_copy_only=False)


def typed(column: Any, name: str, path: str, cells: Cells, writing: Writing | None = None) -> Any:
    """Return a column of a Parquet file or a frame as strings, numbers, or timestamps."""
    kind = column.type
    if writing is not None and writing.unit and not (is_string(kind) or pa.types.is_null(kind)):
        raise InputError(f"{path}: column {name!r} has the type {kind}; expected strings, numbers with {writing.unit}")
    column.validate(full=True)  # otherwise strings need not be UTF-8
    if is_string(kind):
        if is_encoded(column):
            used = column.indices.dictionary_encode()
            strings = pc.cast(column.dictionary.take(used.dictionary), pa.string()).dictionary_encode()
            text = pa.DictionaryArray.from_arrays(strings.indices.take(used.indices), strings.dictionary)
        else:
            text = pc.dictionary_encode(as_text(column))
        return clean(text, cells, cells.decimal, writing) if cells.version > 1 else text
    if is_encoded(column):
        return typed(column.dictionary_decode(), name, path, cells)
    if pa.types.is_boolean(kind):
        return as_text(column)
    if pa.types.is_null(kind):
        return pc.cast(column, pa.float64())
    if pa.types.is_decimal(kind):  # as text, since Arrow's own cast does not give the nearest number
        return without_numbers(pc.cast(pc.cast(column, pa.string()), pa.float64()), cells)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        narrow = pa.types.is_float16(kind) or (pa.types.is_float32(kind) and cells.version < 3)
        return without_numbers(pc.cast(column, pa.float64()) if narrow else column, cells)
    zone = "UTC" if getattr(kind, "tz", None) else None
    times = pc.cast(column, pa.timestamp("us", getattr(kind, "tz", None)), safe=False)
    return pc.cast(times, pa.timestamp("us", zone))


def is_string(kind: Any) -> bool:
    """Whether a type is that of strings, also where they are numbered."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return str(kind) in ("string", "large_string", "string_view")


def require_readable(kind: Any, name: str, path: str) -> None:
    """Raise InputError if the columns of a type are not read: those of lists, structures and bytes."""
    value_type = kind.value_type if pa.types.is_dictionary(kind) else kind
    kinds = "integer", "floating", "decimal", "date", "timestamp", "boolean", "null"
    if not (is_string(value_type) or any(getattr(pa.types, f"is_{each}")(value_type) for each in kinds)):
        problem = f"has the type {kind}, which is neither numbers, strings nor dates"
        raise InputError(f"{path}: column {name!r} {problem}: convert it, or leave it out with {option('drop')}")
