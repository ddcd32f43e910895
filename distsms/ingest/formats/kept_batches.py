"""The batches of CSV that the survey has parsed, so that the text is read once: in memory, or in a temporary file."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from distsms.base import memory
from distsms.ingest.formats.arrow import Batch
from distsms.ingest.formats.columns import Columns, narrow

ROOM = 4
"""Batches are written to the file only where the disk has room for so many times their bytes, since shards follow."""
GIVE_BACK = 2**28
"""The bytes of batches that are taken before their memory is given back to the system."""
Place = tuple[str, int]
"""A file, and the offset of a block in its text."""


class KeptBatch(NamedTuple):
    """A batch, and the names of its columns; if it is in the file, at the bytes start..stop - 1, it has no columns."""

    batch: Batch
    texts: frozenset[str]
    numbers: list[str]
    start: int = 0
    stop: int = 0


class KeptBatches:
    """Batches by the places of their blocks of text."""

    def __init__(self, folder: Path | None) -> None:
        """Take the folder of the file; without it, only as many batches are kept as fit into memory."""
        self.folder, self._end, self._taken = folder, 0, 0
        self.nbytes = 0  # of batches in memory
        self._file: IO[bytes] | None = None
        self._batches = dict[Place, KeptBatch]()

    def find(self, place: Place) -> KeptBatch | None:
        return self._batches.get(place)

    def add(self, place: Place, batch: Batch, most_bytes: float) -> None:
        """Keep a batch, in memory if all batches there then take at most so many bytes."""
        others = {name: narrow(column) for name, column in batch.columns.others.items()}
        columns = Columns(batch.columns.names, batch.columns.array, batch.columns.gaps, others)
        kept = KeptBatch(batch._replace(columns=columns, written={}), frozenset(others), columns.names)
        if self.nbytes + columns.nbytes <= most_bytes:
            self._batches[place] = kept
            self.nbytes += columns.nbytes
        elif self.folder is not None and shutil.disk_usage(self.folder).free >= ROOM * (self._end + columns.nbytes):
            with contextlib.suppress(OSError):  # then the text is read again
                start, self._end = self._end, self._write(columns)
                empty = Columns([], np.empty((0, columns.n)), columns.gaps, {})
                self._batches[place] = kept._replace(
                    batch=kept.batch._replace(columns=empty), start=start, stop=self._end
                )

    def forget(self, names: Collection[str]) -> None:
        """Take texts of columns for missing from now on."""
        self._batches = {place: kept._replace(texts=kept.texts - set(names)) for place, kept in self._batches.items()}

    def take(self, place: Place) -> Batch | None:
        """Return what was kept of a block, and keep it no more."""
        if (kept := self._batches.pop(place, None)) is None:
            return None
        columns = kept.batch.columns
        if kept.start == kept.stop:
            self.nbytes -= columns.nbytes
            self._taken += columns.nbytes
            if self._taken > GIVE_BACK:  # else the memory of batches would still be held beside that of rows
                memory.give_back()
                self._taken = 0
            return kept.batch
        assert self._file is not None
        content = os.pread(self._file.fileno(), kept.stop - kept.start, kept.start)
        return kept.batch._replace(columns=Columns.read(content, kept.numbers, columns.gaps, columns.n))

    def _write(self, columns: Columns) -> int:
        """Write columns behind what is there; return where they end."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - as long as this object
        self._file.seek(self._end)
        columns.write(self._file)
        self._file.flush()
        return self._file.tell()
