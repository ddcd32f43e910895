"""Columns that folders named COLUMN=VALUE hold, as Hive, Spark, pyarrow and polars write tables in parts."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np

from distsms.ingest.formats import columns
from distsms.ingest.formats.arrow import Batch

MISSING = "__HIVE_DEFAULT_PARTITION__"
"""The value in the folder's name if the column has none."""


def values_of(path: str) -> dict[str, str]:
    """Return the columns that the folders of a file hold, each with its value; "" if it is missing."""
    pairs = [part.partition("=") for part in os.path.dirname(path).split(os.sep)]
    return {unquote(name): "" if value == MISSING else unquote(value) for name, mark, value in pairs if name and mark}


class PartitionedFiles:
    """Files, of CSV or Parquet, with the columns that their folders hold. A column of the file itself comes first."""

    def __init__(self, files: Any, values: Mapping[str, Mapping[str, str]]) -> None:
        self._files, self._values = files, values
        self.headers = {
            path: [*names, *(name for name in values[path] if name not in names)]
            for path, names in files.headers.items()
        }
        self.names = self.headers[files.paths[0]]
        self.from_folders = {name for path in files.paths for name in values[path] if name not in files.headers[path]}
        self.constant = {
            name for name in self.from_folders if len({values[path].get(name) for path in files.paths}) == 1
        }

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def is_text(self, name: str) -> bool:
        """Whether a column holds strings."""
        return name in self.from_folders or self._files.is_text(name)

    def batches(
        self,
        share: Iterable[Any],
        names: Sequence[str],
        metadata: Sequence[str] = (),
        as_numbers: Callable[[str], bool] = lambda name: False,
        keep_bytes: float = 0,
    ) -> Iterator[Batch]:
        """Yield the rows of a share, as `CsvFiles.batches` does."""
        for part in share:
            header = self._files.headers[part.path]
            in_file = [name for name in names if name in header] or header[:1]
            metadata_in_file = [name for name in metadata if name in header]
            for batch in self._files.batches([part], in_file, metadata_in_file, as_numbers, keep_bytes):
                others = [name for name in (*names, *metadata) if name not in header]
                folders = {name: self._column(part.path, name, batch.n) for name in others}
                strings = {name: columns.as_strings(folders[name]) for name in metadata if name in folders}
                yield batch._replace(
                    columns=ChainMap(folders, batch.columns) if folders else batch.columns,  # type: ignore[arg-type]
                    metadata={**batch.metadata, **strings},
                )

    def _column(self, path: str, name: str, n: int) -> Any:
        text = columns.numbered(np.zeros(n, np.int32), [self._values[path][name]])
        return columns.clean(text, self._files.cells, self._files.cells.decimal)
