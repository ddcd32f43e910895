"""The batches of CSV that the survey has parsed, so that the text is read once: in memory, or in a temporary file."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from distsms.ingest.formats.arrow import Batch
from distsms.ingest.formats.columns import PlainColumns, narrow

ROOM = 4
"""Batches are written to a file only where the disk has room for so many times their bytes, since shards follow."""
Place = tuple[str, int]
"""A file, and the offset of a block in its text."""


class StoredBatch(NamedTuple):
    """A batch whose columns are in the file, at these bytes: numbers, then texts in Arrow's format for streams."""

    batch: Batch  # without its columns
    names: list[str]  # of the columns of numbers
    gaps: Any
    others: frozenset[str]
    first: int
    stop: int


class KeptBatches:
    """Batches by the places of their blocks of text."""

    def __init__(self, folder: Path | None) -> None:
        """Take the folder of the file; without it, only as many batches are kept as fit into memory."""
        self._folder, self._file, self._end, self._bytes = folder, None, 0, 0
        self._in_memory, self._stored = dict[Place, Batch](), dict[Place, StoredBatch]()

    def add(self, place: Place, batch: Batch, most_bytes: float) -> None:
        """Keep a batch, in memory if all batches there then take at most so many bytes."""
        columns = batch.columns
        others = {name: narrow(column) for name, column in columns.others.items()}
        columns = PlainColumns(columns.names, columns.values, columns.gaps, others)
        batch = batch._replace(columns=columns, written={}, metadata={})
        if self._bytes + batch.columns.nbytes <= most_bytes:
            self._in_memory[place] = batch
            self._bytes += batch.columns.nbytes
        elif self._folder is not None:
            with contextlib.suppress(OSError):  # then the text is read again
                self._store(place, batch)

    def texts_and_numbers(self, place: Place) -> tuple[frozenset[str], frozenset[str]]:
        """Return the columns of texts and of numbers that were kept of a block."""
        if batch := self._in_memory.get(place):
            return frozenset(batch.columns.others), frozenset(batch.columns.names)
        stored = self._stored.get(place)
        return (stored.others, frozenset(stored.names)) if stored else (frozenset(), frozenset())

    def length(self, place: Place) -> int:
        """Return the bytes of a block's text; 0 if nothing of it was kept."""
        batch = self._in_memory.get(place) or (place in self._stored and self._stored[place].batch)
        return batch.n_bytes or 0 if batch else 0

    def take(self, place: Place) -> Batch | None:
        """Return what was kept of a block, and keep it no more."""
        if batch := self._in_memory.pop(place, None):
            self._bytes -= batch.columns.nbytes
            return batch
        if (stored := self._stored.pop(place, None)) is None:
            return None
        assert self._file is not None
        content = os.pread(self._file.fileno(), stored.stop - stored.first, stored.first)
        m, n = len(stored.names), stored.batch.n
        values = np.frombuffer(content, np.float64, m * n).reshape(m, n)
        record = pa.ipc.open_stream(pa.py_buffer(content).slice(values.nbytes)).read_next_batch()
        others = dict(zip(record.schema.names, record.columns, strict=True))
        if not self._stored:
            self._file, self._end = self._file.close(), 0
        return stored.batch._replace(columns=PlainColumns(stored.names, values, stored.gaps, others))

    def _store(self, place: Place, batch: Batch) -> None:
        columns = batch.columns
        if shutil.disk_usage(self._folder).free < ROOM * (self._end + columns.nbytes):
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)
        first = self._file.seek(self._end)
        self._file.write(np.ascontiguousarray(columns.values))
        record = pa.record_batch(columns.others)
        with pa.ipc.new_stream(self._file, record.schema) as stream:
            stream.write_batch(record)
        self._file.flush()
        self._end = self._file.tell()
        names, others = columns.names, frozenset(columns.others)
        self._stored[place] = StoredBatch(batch._replace(columns={}), names, columns.gaps, others, first, self._end)
