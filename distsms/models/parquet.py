"""Write Parquet files part by part."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as arrow_parquet


class ParquetWriter:
    """A Parquet file of columns of strings, int64 and float64, which is written part by part; a context manager.

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
        arrays = {name: pa.array(values, _type_of(values)) for name, values in columns.items()}
        table = pa.table(arrays)
        self._writer = self._writer or self._file.enter_context(arrow_parquet.ParquetWriter(self._where, table.schema))
        self._writer.write_table(table)


def _type_of(values: Any) -> Any:
    if isinstance(values, list) or values.dtype.kind == "U":
        return pa.string()
    return pa.int64() if values.dtype.kind == "i" else pa.float64()
