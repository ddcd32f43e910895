"""Read tables in memory, such as DataFrames, in the same batches as files, and write them as Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from distsms.data.formats import arrow, rows
from distsms.data.formats.table_schema import VERSION
from distsms.errors import InputError
from distsms.parallel.communicator import Communicator

import pyarrow as pa  # isort: skip
import pyarrow.parquet as arrow_parquet  # isort: skip


def is_frame(data: Any) -> bool:
    """Return whether data are a table in memory: of pandas, polars or pyarrow."""
    return (
        isinstance(data, pa.Table) or hasattr(data, "to_arrow") or (hasattr(data, "columns") and hasattr(data, "iloc"))
    )


def write_frame(frame: Any, path: str | os.PathLike[str]) -> None:
    """Write a table in memory as a Parquet file, without the index that a DataFrame of pandas has.

    Raises InputError if a column holds what Parquet has no type for.
    """
    try:
        if hasattr(frame, "to_arrow"):
            frame = frame.to_arrow()
        elif not isinstance(frame, pa.Table):
            frame = pa.Table.from_pandas(frame, preserve_index=False)
        arrow_parquet.write_table(frame, path)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(f"the table cannot be read: {error}; convert the column to numbers or to strings") from error


class FrameFile:
    """Rows in memory, a pyarrow Table or a pandas DataFrame, that are read like a file. Each rank has its own."""

    compressed = False
    thousands = ""
    declared = frozenset[str]()

    def __init__(self, frame: Any, name: str = "the table", version: int = VERSION) -> None:
        try:
            table = frame if isinstance(frame, pa.Table) else pa.Table.from_pandas(frame, preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InputError(f"{name}: cannot be read as a table: {error}") from error
        self._table, self._version = table.combine_chunks(), version
        self.paths = [name]
        self.names = arrow.distinct([str(column) for column in table.column_names], name)
        self.headers = {name: self.names}

    def mine(self, comm: Communicator) -> list[rows.RowRange]:
        """Return all rows, since they all belong to this rank."""
        return self.plan(1)[0]

    def plan(self, n_shares: int) -> list[list[rows.RowRange]]:
        """Cut this rank's rows into shares."""
        return rows.plan([(self.paths[0], self._table.num_rows)], n_shares)

    def batches(
        self, share: Iterable[rows.RowRange], names: Sequence[str], metadata: Sequence[str] = ()
    ) -> Iterator[arrow.Batch]:
        """Yield the rows of a share, as `CsvFiles.batches` does."""
        for row_range in share:
            for part in row_range.parts(arrow.BATCH_ROWS):
                chosen = self._table.slice(part.start, part.stop - part.start)
                position = arrow.BatchPosition(part.path, part.start)
                yield arrow.batch_of(chosen.combine_chunks().to_batches()[0], position, names, metadata, self._version)

    def is_text(self, name: str) -> bool:
        """Whether a column holds strings."""
        return arrow.is_string(self._table.schema.field(name).type)

    def where(self, position: arrow.BatchPosition, row: int) -> str:
        """Return the number of a row of the batch at `position`, for messages."""
        return f"{position.path}: row {position.at + row} (counted from 0)"
