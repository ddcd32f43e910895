"""The highest column that the rows of a text use, which decides how long every vector of a training is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distsms.base.formatting import format_bytes
from distsms.base.text_files import ByteRange, TextPosition, line_number, read_blocks
from distsms.ingest.options import ConversionObserver
from distsms.parallel.communicator import Communicator
from distsms.shards.rows import RowBlock

WIDE = 2**20
"""From this number of columns on, users learn which line has the highest index: a vector takes 8 MiB or more."""
FEW = 1000
"""With up to this number of columns, a mistaken index costs nothing."""
RARE = 1000
"""An index is far above the others if at most one row in so many, or a single row, has one of the same size."""
_NEAR = 3
"""Indices whose binary numbers are at most this many digits shorter than the highest one are of the same size."""


class HighestColumn:
    """Collects, block by block, the highest column of this rank's rows, and how high the others are."""

    def __init__(self) -> None:
        self.columns = 0  # the highest one, counted from 1; 0 without rows
        self.share = list[ByteRange]()  # where it is
        self._rows = np.zeros(65, np.int64)  # by the number of binary digits of the row's highest column, from 1

    def add(self, rows: RowBlock, share: list[Any]) -> None:
        """Include rows of a share. O(rows)."""
        last = rows.indices[rows.indptr[1:][np.diff(rows.indptr) > 0] - 1].astype(np.float64) + 1
        self._rows += np.bincount(np.frexp(last)[1], minlength=65)
        if rows.n_columns > self.columns:
            self.columns, self.share = rows.n_columns, share

    def report(self, n: int, base: int, comm: Communicator, observer: ConversionObserver) -> None:
        """Tell on the root which line has the highest index of n rows, and warn if it is far above. **Collective.**

        Indices of the text begin at `base`. Costs one pass over the text of a share, if there is anything to say.
        """
        highest_of_ranks = comm.allgather((self.columns, comm.rank))
        columns, rank = max(highest_of_ranks, key=lambda pair: (pair[0], -pair[1]))
        near = columns.bit_length() - _NEAR
        rows = max(1, int(comm.sum(self._rows.copy())[max(near, 0) :].sum()))
        far = columns > FEW and n > 1 and rows <= max(1, n // RARE)
        if not far and columns < WIDE:
            return
        index = columns - 1 + base
        with comm.fail_together():
            place = _find(index, self.share) if comm.rank == rank else ""
        place = comm.allgather(place)[rank]
        if not comm.is_root:
            return
        if not far:
            observer.told(f"{place}: has the highest index, {index}")
            return
        observer.cautioned(
            f"{place}: has the index {index}, which is far above the others: only {rows} of {n} rows "
            f"{'has' if rows == 1 else 'have'} one of {2 ** (near - 1) - 1 + base} or more. A training holds many "
            f"vectors with a number for each of the {columns} columns ({format_bytes(8 * columns)} each). If this is a "
            "mistake, correct the line and convert again"
        )


def _find(index: int, share: Sequence[ByteRange]) -> str:
    """Return "file:line" of the first entry with this index. Local."""
    prefix = b"%d:" % index
    for byte_range in share:
        for offset, text in read_blocks(byte_range):
            at = text.find(prefix)
            while at >= 0:
                line = text[text.rfind(b"\n", 0, at) + 1 : at]
                if b"#" not in line and not line.rstrip(b"0")[-1:].isdigit():
                    return f"{byte_range.path}:{line_number(TextPosition(byte_range.path, offset), text, at)}"
                at = text.find(prefix, at + 1)
    return ", ".join(sorted({byte_range.path for byte_range in share}))  # the file has changed meanwhile
