"""Make temporary data sets of tables in memory and of files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import temporary_folder
from distsms.base.formatting import did_you_mean
from distsms.base.output_file import naming_failures
from distsms.base.untrusted_text import without_credentials
from distsms.base.wording import Message, format_value, in_python, marked, option
from distsms.ingest.options import ReadOptions
from distsms.matrix.arrays import as_numbers
from distsms.shards.column_options import ColumnOptions, ColumnReport
from distsms.shards.manifest import Manifest
from distsms.shards.sequence_rules import SequenceOptions

NO_FOLDER = "the ranks are on several hosts, so the shards must be in a folder that all hosts see; name it with %s"


def write_frame(frame: Any, path: str | os.PathLike[str]) -> None:
    """Write a table in memory as a Parquet file, without the index that a DataFrame of pandas has. Local."""
    import pyarrow as pa
    import pyarrow.parquet as arrow_parquet

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
    others = {name: column.astype(str) if column.dtype == object else column for name, column in others.items()}
    if sparse.issparse(X):
        rows = X.tocsr()
        X_arrays = {"indptr": rows.indptr, "indices": rows.indices, "data": rows.data, "shape": np.array(rows.shape)}
    else:
        X_arrays = {"X": np.ascontiguousarray(as_numbers(X))}
    with naming_failures(path):
        np.savez(path, **X_arrays, **others)


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


SHOWN = 8
"""So many columns a warning describes."""


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
def frame_file(frame: Any) -> Iterator[str]:
    """Yield a Parquet file of a table in memory. Local."""
    with temporary_folder() as folder:
        path = os.fspath(folder / "table.parquet")
        write_frame(frame, path)
        yield path


def shares(split: Any) -> tuple[float, ...]:
    """Return the shares of a split. Raises InputError if they are no numbers."""
    try:
        return tuple(map(float, split))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"split={format_value(split)}: give the shares of both as {option('split', (0.8, 0.2))}", True
        ) from error


def conversion_options(
    arguments: Mapping[str, Any], others: Collection[str] = (), function: str = "train"
) -> dict[str, Any]:
    """Return options for `convert`, whose lists and options for columns users may write shorter. InputError names the
    function, and for an unknown option the one that may be meant, also one of the `others` of the caller."""
    if not isinstance(label := arguments.get("label"), str | None):
        raise InputError(
            f"label is the name of a column, and a {type(label).__name__} was given. Put the labels into the table, as "
            f"in {function}(frame.assign(y=labels), label='y')"
        )
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()
    }
    lists = {"drop", "keep", "categorical", "numeric", "missing", "not_missing", "names"}
    options |= {name: (value,) for name, value in options.items() if name in lists and isinstance(value, str)}
    if of_columns := _take(options, ColumnOptions):
        options["columns"] = ColumnOptions(**of_columns)
    if of_sequences := _take(options, SequenceOptions):
        if "window" in of_sequences:
            of_sequences["window"] = _span("window", of_sequences["window"])
        if "spectra" in of_sequences:
            of_sequences["spectra"] = tuple(_span("spectra", region) for region in of_sequences["spectra"])
        options["sequences"] = SequenceOptions(**of_sequences)
    allowed = {field.name for field in fields(ReadOptions) if field.compare}
    allowed |= {"normalize", "n_shards", "dtype", "weight_file"}
    allowed |= {"n_features", "compression"} if function == "shard" else set()
    if wrong := set(options) - allowed:
        every = {field.name for kind in (ColumnOptions, SequenceOptions) for field in fields(kind)}.union(
            allowed, others
        )
        raise InputError(f"{function}: there is no option {min(wrong)!r}{did_you_mean(min(wrong), every)}")
    return options


def _take(options: dict[str, Any], kind: Any) -> dict[str, Any]:
    return {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}


def _span(name: str, span: Any) -> tuple[int, int]:
    """Return two positions that are given as a pair or as text FROM:TO."""
    try:
        first, last = map(int, span.split(":") if isinstance(span, str) else span)
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"train: {name}={format_value(span)}: expected a pair of positions, such as (139, 279)"
        ) from error
    return first, last


def describe_columns(
    reports: Sequence[ColumnReport], where: str = "model.info['columns'] describes"
) -> tuple[list[dict[str, Any]], str]:
    """Return the list of columns as records, and a warning of those that were left out or look odd; "" if none is."""
    records = [asdict(report) | {"notes": [in_python(note) for note in report.notes]} for report in reports]
    odd = [record for record in records if record["notes"] or not record["features"]]
    if not odd:
        return records, ""
    # those that are lost first, and no more lines than a person reads
    shown = sorted(odd, key=lambda record: record["features"] > 0)[:SHOWN]
    lines = [f"{record['name'] or '(no name)'}: {'; '.join(record['notes']) or 'left out'}" for record in shown]
    lines += [f"and {len(odd) - SHOWN} more columns"] if len(odd) > SHOWN else []
    head = "some columns are left out, or may mean something else than numbers or categories"
    return records, "\n  ".join([f"{head}; {where} all of them:", *lines])
