"""Read sequences of letters as codes, from lines `LABEL SEQUENCE` or from FASTA. Errors name file:line.

Lines: fields are separated by spaces or tabs. Blank lines, and what follows a #, are skipped. Where no labels are
wanted, a line may be a sequence alone.

FASTA: a record is a line `>NAME ...` and the letters of the sequence on any number of lines. The name is the row's id.
Its label is that of the name in a file of labels, if there is such a file; else what follows `label=` in the header, or
the second word of a header of two words.

Groups, times and weights of rows are words such as `chromosome=III`, in headers or in comments after the sequence. The
first sequence says how many letters every sequence has. A line or record belongs to the share in which it begins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from distsms.base import text_files
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.text_files import BYTE_ORDER_MARK, ByteRange, TextPosition
from distsms.base.wording import DECIMAL, option, printable
from distsms.ingest.formats import sequence_kernels as kernel
from distsms.ingest.formats.base import TO_UTF8, TextReader, place_in, whole_lines
from distsms.ingest.options import ReadOptions
from distsms.shards import row_metadata
from distsms.shards.labels import Label, in_one_type
from distsms.shards.row_metadata import RowMetadata
from distsms.shards.rows import RowBlock
from distsms.shards.sequence_rules import LONGEST, SequenceOptions, Sequences, code_table, encoding

FIRST_BYTES = 2**16
"""Bytes of text that are read at a time where only the first sequence is of interest."""
LONGEST_RECORD = 2 * LONGEST + 2**22
"""The bytes of a record, with its header and the ends of its lines, that are read at most, besides a block."""
_NUMBER = re.compile(DECIMAL.pattern.encode())
PROBLEMS = {
    kernel.NO_SEQUENCE: "expected LABEL SEQUENCE, and found one word only",
    kernel.TOO_MUCH: "expected LABEL SEQUENCE, and found more than two words",
    kernel.NO_HEADER: "expected a header, a line that begins with >, before the first letter",
}
"""What is said of those faults that need no more words."""


class SequenceReader(TextReader):
    """Reader of sequences; see `distsms.ingest.formats.base.Reader`. Building it is **collective**."""

    sequences: Sequences
    block_bytes = 2**22

    def __init__(self, paths: Sequence[str], options: ReadOptions, comm: Communicator, fasta: bool) -> None:
        super().__init__(paths, options)
        self.fasta = self.has_ids = fasta
        sequence_options = options.sequences or SequenceOptions()
        self._labels_file = sequence_options.labels
        self._alphabet = options.encoding.alphabet if options.encoding else sequence_options.alphabet
        self._table = code_table(self._alphabet)
        self._pass = kernel.scan_records if fasta else partial(kernel.scan_lines, options.labelled)
        with comm.fail_together():
            self._refuse_options()
            self._label_of = None if self._labels_file is None else read_labels(self._labels_file)
        comm.root_first(lambda: self._length_in(b"", TextPosition()))  # compiles the kernel
        with comm.fail_together():
            self.sequences = options.encoding or encoding(sequence_options, self._first_length(), self.paths[0])
        self.n_columns = self.sequences.code_map.p

    def _refuse_options(self) -> None:
        options, name = self.options, self.paths[0]
        if wrong := [option(each) for each in ("label", "id", "zero_based") if getattr(options, each)]:
            labels = f"labels are in the text (or for FASTA in {option('labels', text='FILE')}), ids are names in FASTA"
            raise InputError(f"{name}: {wrong[0]} is for columns, and sequences have none: {labels}")
        for word in options.metadata_columns:
            if "=" in word or word.split() != [word] or word == "label":
                wrong_name = f"{option('group')}, {option('time')} or {option('weight', text=repr(word))}"
                raise InputError(f"{name}: {wrong_name}: give the NAME of words NAME=VALUE, and not that of the label")
        if (file := self._labels_file) is not None and not self.fasta:
            raise InputError(f"{option('labels', file)}: is for FASTA; in other text, a line begins with its label")

    def blocks(self, byte_range: ByteRange, block_bytes: int) -> Iterator[tuple[int, bytes]]:
        return (read_records if self.fasta else text_files.read_blocks)(byte_range, block_bytes)

    def _first_length(self) -> int:
        """Return the number of letters of the first sequence. Local; reads the beginning of the input."""
        for byte_range in self.plan(1)[0]:
            for offset, text in self.blocks(byte_range, FIRST_BYTES):
                if (length := self._length_in(text, TextPosition(byte_range.path, offset))) is not None:
                    return length
        raise InputError(f"{', '.join(self.paths)}: there is no sequence")

    def _length_in(self, text: bytes, origin: TextPosition) -> int | None:
        """Return the number of letters of the first sequence in a text. The kernel says it if others are expected."""
        text, begin = whole_lines(text, origin)
        buffer, codes, fields = np.frombuffer(text, np.uint8), np.empty((1, 0), np.uint8), np.empty((1, 2), np.int64)
        scan = kernel.Scan._make(self._pass(buffer, begin, self._table, 0, 0, -1, codes, fields))
        if scan.fault not in (0, kernel.WRONG_LENGTH):
            self._refuse(scan, text, origin)
        return scan.letters if scan.fault else None

    def parse(self, text: bytes, origin: TextPosition) -> RowBlock:
        text, begin = whole_lines(text, origin)
        length, (first, last) = self.sequences.length, self.sequences.window
        buffer, max_rows = np.frombuffer(text, np.uint8), len(text) // max(length, 1) + 2
        codes, fields = np.empty((max_rows, last - first + 1), np.uint8), np.zeros((max_rows, 2), np.int64)
        scan = kernel.Scan._make(self._pass(buffer, begin, self._table, first - 1, last, length, codes, fields))
        if scan.fault:
            self._refuse(scan, text, origin)
        n = scan.rows
        places = fields[:n].tolist()
        words = [text[start:stop] for start, stop in places]

        def place(row: int) -> str:
            return place_in(text, places[row][0], origin)

        names = None
        if self.fasta:
            first_words = (next(iter(header.split(None, 1)), b"") for header in words)
            names = [text_of(word, place, row) for row, word in enumerate(first_words)]
        labels = self._labels(words, names, place) if self.options.labelled else np.zeros(n)
        metadata = RowMetadata()
        if self.options.metadata_columns:
            if not self.fasta:  # only comments say more about a row
                lines = (text[start : text.find(b"\n", start)] for start, _ in places)
                words = [line.partition(b"#")[2] for line in lines]
            metadata = self._metadata(words, place)
        indptr, indices, data = np.zeros(n + 1, np.int64), np.empty(0, np.int32), np.empty(0)
        return RowBlock(labels, indptr, indices, data, n_columns=0, ids=names, metadata=metadata, codes=codes[:n])

    def _metadata(self, words: list[bytes], place: Callable[[int], str]) -> RowMetadata:
        def strings(name: str) -> list[str]:
            return [text_of(value_in(text, name), place, row) for row, text in enumerate(words)]

        def fail(name: str, row: int, problem: str) -> NoReturn:
            where = "the header" if self.fasta else "a comment (#) after the sequence"
            lacking = "" if value_in(words[row], name) else f"there is no {name}=VALUE in {where}; "
            raise InputError(f"{place(row)}: {lacking or name + ': '}{problem}")

        return row_metadata.read(self.options.row_columns, strings, fail)

    def _labels(self, words: list[bytes], names: list[str] | None, place: Callable[[int], str]) -> NDArray[Any]:
        texts, labels = list[bytes | None](words), self._label_of
        if names is not None:
            texts = [labels.get(name) for name in names] if labels is not None else [*map(label_in, words)]
        if names is not None and None in texts:
            row, of_file = texts.index(None), option("labels", text="FILE")
            header = f"the header; expected >NAME LABEL or label=LABEL, or a file (`distsms shard {of_file}`)"
            raise InputError(f"{place(row)}: {printable(names[row])!r} has no label in {self._labels_file or header}")
        return labels_of(texts, place)  # type: ignore[arg-type]

    def _refuse(self, scan: kernel.Scan, text: bytes, origin: TextPosition) -> NoReturn:
        at, has_model = scan.at, self.options.encoding is not None
        problem = PROBLEMS.get(scan.fault, "")
        if scan.fault == kernel.WRONG_LENGTH:
            others = f"{'the training data have' if has_model else 'the first sequence has'} {self.sequences.length}"
            problem = f"the sequence has {scan.letters} letters, but {others}; all must have as many"
        elif scan.fault == kernel.BAD_LETTER:
            column, alphabet = at - text.rfind(b"\n", 0, at), self._alphabet
            shown = printable(text[at : at + 4].decode("utf-8", "replace")[:1])
            problem = f"character {column} of the line, {shown!r}, is no letter of {alphabet}"
            if alphabet != "protein" and text[at : at + 1].isalpha() and not has_model:
                problem += f" (for protein give {option('alphabet', 'protein')})"
        raise InputError(f"{place_in(text, at, origin)}: {problem}")


def read_records(byte_range: ByteRange, block_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset in the text, whole records) for the records of FASTA that begin in a byte range; what comes before
    the first header belongs to the range at byte 0. Memory: a block, and a record of up to `LONGEST_RECORD` bytes."""
    inside = byte_range.start == 0
    rest = partial(_rest_of_record, byte_range.path)
    for offset, text in text_files.read_blocks(byte_range, block_bytes, rest=rest):
        first = 0 if inside or text.startswith(b">") else text.find(b"\n>") + 1
        if inside or first or text.startswith(b">"):  # up to the first header, the text belongs to the record before it
            inside = True
            yield offset + first, text[first:]


def _rest_of_record(path: str, offset: int, text: bytes, stream: Any) -> bytes:
    """Return the lines of a stream up to the next header, which belong to the record that is last in the text."""
    lines, n_bytes = list[bytes](), len(text) - (text.rfind(b"\n>") + 1)
    while stream.peek(1)[:1] not in (b"", b">"):
        lines.append(text_files.read_line(stream, path, text_files.LONGEST_LINE))
        n_bytes += len(lines[-1])
        if n_bytes > LONGEST_RECORD:
            raise InputError(f"{path}: a sequence takes over {LONGEST_RECORD} bytes; cut windows out of longer ones")
    return b"".join(lines)


def text_of(word: bytes, place: Callable[[int], str], row: int) -> str:
    """Return a word as a string. Raises InputError unless it is UTF-8; `place(row)` is for messages."""
    try:
        return word.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{place(row)}: {printable(word.decode('latin-1'))!r} is not UTF-8; {TO_UTF8}") from error


def label_in(header: bytes) -> bytes | None:
    """Return what follows `label=` in a header, or its second word if it has two; else None."""
    if named := value_in(header, "label"):
        return named
    words = header.split()
    return words[1] if len(words) == 2 else None


def value_in(text: bytes, name: str) -> bytes:
    """Return what follows `name=` in a header or comment; b"" if nothing does."""
    sign = name.encode() + b"="
    return next((word[len(sign) :] for word in text.split() if word.startswith(sign)), b"")


def labels_of(texts: Sequence[bytes], place: Callable[[int], str]) -> NDArray[Any]:
    """Return labels (n,) as float64 if all are (finite) numbers, else as strings; `place(row)` is for messages."""
    values: dict[bytes, Label] = {}
    for row, text in enumerate(texts):
        if text in values:
            continue
        values[text] = float(text) if _NUMBER.fullmatch(text) else text_of(text, place, row)
        if isinstance(values[text], float) and not math.isfinite(values[text]):  # type: ignore[arg-type]
            raise InputError(f"{place(row)}: the label {printable(text.decode())} is too large for a double (1.8e308)")
    place_of = {text: place for place, text in enumerate(values)}
    return in_one_type([*values.values()])[[place_of[text] for text in texts]]


def read_labels(path: str) -> dict[str, bytes]:
    """Return the label of each name in a file with lines `NAME LABEL`, and comments after #. Local."""
    labels: dict[str, bytes] = {}
    for offset, text in text_files.read_blocks(ByteRange(path)):
        at = 0
        for line in text.split(b"\n"):
            if words := line.removeprefix(BYTE_ORDER_MARK).partition(b"#")[0].split():
                place = partial(place_in, text, origin=TextPosition(path, offset))
                name = text_of(words[0], place, at)
                if len(words) != 2 or name in labels:
                    problem = "expected NAME LABEL" if len(words) != 2 else f"{printable(name)!r} has a label already"
                    raise InputError(f"{place(at)}: {problem}")
                labels[name] = words[1]
            at += len(line) + 1
    return labels
