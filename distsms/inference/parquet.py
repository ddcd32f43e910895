"""Write Parquet files part by part."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as arrow_parquet


class ParquetWriter:
    """A Parquet file of columns of strings and of float64, which is written part by part; a context manager.

    Parameters
    ----------
    where : path or binary file
        What is written to; a file stays open.
    """

    def __init__(self, where: Any) -> None:
        self._where, self._file = where, contextlib.ExitStack()
        self._writer: Any = None

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def append(self, columns: Mapping[str, Any]) -> None:
        """Write rows: name -> strings as a list, or numbers as an array (n,). All parts have the same columns."""
        types = {name: pa.string() if isinstance(values, list) else pa.float64() for name, values in columns.items()}
        table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
        self._writer = self._writer or self._file.enter_context(arrow_parquet.ParquetWriter(self._where, table.schema))
        self._writer.write_table(table)
