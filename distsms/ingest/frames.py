"""Make temporary data sets of tables in memory and of files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import naming_failures, temporary_folder
from distsms.base.wording import Message, marked, without_credentials
from distsms.matrix.arrays import as_numbers
from distsms.shards.manifest import Manifest
from distsms.shards.row_metadata import is_missing

NO_FOLDER = "the ranks are on several hosts, so the shards must be in a folder that all hosts see; name it with %s"


def write_frame(frame: Any, path: str | os.PathLike[str]) -> None:
    """Write a table in memory as a Parquet file, without the index that a DataFrame of pandas has. Local."""
    from distsms.ingest.formats.columns import pa  # which says so where pyarrow is missing

    import pyarrow.parquet as arrow_parquet  # isort: skip

    try:
        if hasattr(frame, "to_arrow"):
            frame = frame.to_arrow()
        elif isinstance(frame, pa.RecordBatch):
            frame = pa.Table.from_batches([frame])
        elif not isinstance(frame, pa.Table):
            frame = pa.Table.from_pandas(frame, preserve_index=False)
        with naming_failures(path):
            arrow_parquet.write_table(frame, path)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"the table cannot be read: {error}; convert or rename the column") from error


def write_arrays(path: str | os.PathLike[str], X: Any, y: Any, weights: Any = None, groups: Any = None) -> None:
    """Write rows in memory as a .npz file, whose arrays have the names of the arguments. Local."""
    from scipy import sparse  # which is large

    columns = {"y": y, "weights": weights, "groups": groups}
    others = {name: np.asarray(column) for name, column in columns.items() if column is not None}
    others = {name: _as_texts(column) if column.dtype == object else column for name, column in others.items()}
    X = as_numbers(X)
    if sparse.issparse(X):
        X_arrays = {"indptr": X.indptr, "indices": X.indices, "data": X.data, "shape": np.array(X.shape)}
    else:
        X_arrays = {"X": np.ascontiguousarray(X)}
    with naming_failures(path):
        np.savez(path, **X_arrays, **others)


def _as_texts(values: NDArray[Any]) -> NDArray[Any]:
    """Return objects as texts, with "" for missing ones, which readers then find."""
    missing = [is_missing(value) for value in values.flat]
    return np.where(np.array(missing, bool).reshape(values.shape), "", values.astype(str))


def on_several_hosts(comm: Communicator) -> bool:
    """Return whether the ranks are on several hosts, so that some share no memory. **Collective.**"""
    return any(comm.allgather(len(comm.node_ranks()) < comm.size))


@contextlib.contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """In the messages of InputErrors, replace the first of these names of temporary files, which users do not know."""
    try:
        yield
    except InputError as error:
        raise InputError(renamed(error.message, names), error.everywhere) from error


def renamed(message: str, names: Mapping[str, str]) -> Message:
    """Return a message with other names for files."""
    text = marked(message)
    for temporary, name in names.items():
        text = text.replace(temporary, "temporary files for " * ("TMPDIR" in text) + name)
    return Message(text)


def rename_in_notes(data_sets: Sequence[Manifest], names: Mapping[str, str]) -> None:
    """Give files other names in the notes on columns, which the manifests share."""
    for report in (report for each in data_sets for report in each.columns or ()):
        report.notes = [renamed(note, names) for note in report.notes]


def short_list(names: Sequence[str]) -> str:
    """Return names as a text: all if there are at most three, else the first two and how many more."""
    names = [*map(without_credentials, names)]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]} and {len(names) - 2} more files"


@contextlib.contextmanager
def folder_of_all(comm: Communicator) -> Iterator[Path]:
    """Yield a temporary folder, which all ranks share, and which the root removes at the end. **Collective.**"""
    with contextlib.ExitStack() as stack:
        with comm.fail_together():
            local_folder = stack.enter_context(temporary_folder()) if comm.is_root else None
        yield comm.bcast(local_folder)
        comm.barrier()


@contextlib.contextmanager
def frame_file(frame: Any, called: str) -> Iterator[str]:
    """Yield a Parquet file of a table in memory, with another name in the messages of InputErrors. Local."""
    with temporary_folder() as folder:
        path = os.fspath(folder / "table.parquet")
        with renaming({path: called}):
            write_frame(frame, path)
            yield path
