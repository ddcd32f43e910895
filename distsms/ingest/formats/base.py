"""The base classes of all readers of files, and of those of text without columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base import text_files
from distsms.base.text_files import BYTE_ORDER_MARK, ByteRange, TextPosition
from distsms.ingest.options import ReadOptions
from distsms.shards.column_options import ColumnReport
from distsms.shards.labels import to_signs
from distsms.shards.rows import RowBlock
from distsms.shards.sequence_rules import Sequences
from distsms.shards.table_schema import Table


class Reader(ABC):
    """A reader of files of one format. The rows do not depend on the number of shares that the files are cut into.

    Attributes
    ----------
    warnings : Counter
        What the training data did not have, or what is left out, each with the number of rows concerned so far.
    table : Table or None
        The names of the columns and their categories; None where columns have numbers only.
    sequences : Sequences or None
        How sequences become codes; None where the rows are not sequences.
    reports : list of ColumnReport or None
        The report on each column of a table; None if the reader did not have to survey the columns.
    n_columns : int or None
        The number of features p if it is known before any row is read.
    label_map : mapping or None
        Which original labels became +1 and -1; None if the rows come with their labels as written.
    compressed, has_ids : bool
        Whether svmlight text of the same rows would be far longer than the files, and whether the rows have ids.
    kept_bytes : int
        The memory that reading will give back.
    """

    table: Table | None = None
    sequences: Sequences | None = None
    reports: list[ColumnReport] | None = None
    n_columns: int | None = None
    compressed: bool = False
    has_ids: bool = False
    kept_bytes: int = 0

    def __init__(self, paths: Sequence[str], options: ReadOptions) -> None:
        self.paths, self.options, self.warnings = list(paths), options, Counter[str]()
        self.label_map: Mapping[str, Any] | None = options.label_map

    def plan(self, n_shares: int) -> list[list[Any]]:
        """Cut the input into `n_shares` consecutive shares. Local; every rank gets the same result."""
        return text_files.plan(self.paths, n_shares)

    @abstractmethod
    def read(self, share: Iterable[Any]) -> Iterator[RowBlock]:
        """Yield the rows of a share in order, in blocks of bounded size. Local. Errors name file and row."""

    def signs(self, labels: NDArray[Any], where: str) -> NDArray[Any]:
        """Return labels (n,) as they are written, or with a label map as +1 and -1; 0 if they are not needed. Local."""
        if not self.options.labelled:
            return np.zeros(len(labels))
        return labels if self.label_map is None else to_signs(labels, self.label_map, where).astype(float)


class TextReader(Reader):
    """Base class of readers of text whose lines have no columns with names."""

    block_bytes = text_files.BLOCK_BYTES
    """Bytes of text that are parsed at a time."""

    def read(self, share: Iterable[ByteRange]) -> Iterator[RowBlock]:
        """Yield the rows of a share, in order. With a label map, labels are +1 and -1."""
        for byte_range in share:
            for offset, text in self.blocks(byte_range, self.block_bytes):
                rows = self.parse(text, TextPosition(byte_range.path, offset))
                yield rows._replace(labels=self.signs(rows.labels, byte_range.path))
                self.options.meter.add(len(text))

    def blocks(self, byte_range: ByteRange, block_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Yield whole lines, or records of several lines, with their offsets in the text, as `parse` takes them."""
        return text_files.read_blocks(byte_range, block_bytes)

    @abstractmethod
    def parse(self, text: bytes, origin: TextPosition) -> RowBlock:
        """Return the rows of a block of text, whose last line may lack its newline. Local. An error names file:line."""


def whole_lines(text: bytes, origin: TextPosition) -> tuple[bytes, int]:
    """Return a text that ends in a newline, so that no loop of a kernel over a field has to look for its end,
    and where its first line begins: behind a byte order mark, if there is one."""
    first = len(BYTE_ORDER_MARK) if origin.offset == 0 and text.startswith(BYTE_ORDER_MARK) else 0
    return text if text.endswith(b"\n") else text + b"\n", first


def place_in(text: bytes, at: int, origin: TextPosition) -> str:
    """Return "file:line" of a byte in a piece of text that begins at `origin`. Reads the file up to there."""
    return f"{origin.path}:{text_files.line_number(origin, text, at)}"
