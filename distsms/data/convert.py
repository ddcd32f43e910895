"""Convert files to shards in parallel: every rank reads and writes its share, and the root publishes all at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.data import duplicates, row_metadata
from distsms.data.coded_columns import NOT_CODED, CodedColumns
from distsms.data.formats import text_files
from distsms.data.formats.base import Meter, Reader, ReadOptions
from distsms.data.formats.column_options import ColumnOptions, ColumnReport
from distsms.data.formats.registry import open_reader, print_warnings
from distsms.data.formats.rows import RowBlock, RowRange, combined
from distsms.data.formats.sequence_rules import SequenceOptions
from distsms.data.groupby import group_statistics
from distsms.data.highest_column import HighestColumn
from distsms.data.labels import MAX_LABELS, in_one_type, interpret, to_signs
from distsms.data.row_metadata import Hashes, RowMetadata
from distsms.data.shards import dataset
from distsms.data.shards.manifest import MANIFEST
from distsms.data.shards.publish import writing
from distsms.data.splits import Splitter
from distsms.errors import InputError
from distsms.matrix import normalization
from distsms.parallel.communicator import Communicator

SHARD_TEXT_BYTES = 128 * 2**20
"""Bytes of text that one shard gets, if the number of shards is not given."""
SHARD_BYTES = 2 * SHARD_TEXT_BYTES
"""The most memory that the rows of one shard may take, whatever number of shards is asked for.

The rows of SHARD_TEXT_BYTES of text mostly take less.
"""


class OutputOptions(NamedTuple):
    """What is written; see `convert` for the fields."""

    n_shards: int | None = None
    n_features: int | None = None
    dtype: str = "float64"
    compression: str = "none"
    normalize: str | None = None  # None: "standard" for tables, else "none"
    split: Splitter | None = None
    show_columns: Callable[[Sequence[ColumnReport]], None] = lambda reports: None
    say: Callable[[str], None] = lambda text: None


class _Staged(NamedTuple):
    """A shard on the disk that still lacks its labels +1 and -1, since their meaning is known only at the end."""

    shard: dataset.StagedShard
    values: NDArray[Any]  # the different labels, as the reader gave them: numbers or strings
    codes: NDArray[Any]  # (rows,): the index in `values` of each row's label; of a small type, to save memory
    hashes: Hashes  # (rows,): see `duplicates.hash_rows`
    metadata: RowMetadata


def convert(
    inputs: Sequence[str | os.PathLike[str]],
    directory: str | os.PathLike[str],
    comm: Communicator,
    n_shards: int | None = None,
    positive: float | str | None = None,
    zero_based: bool = False,
    n_features: int | None = None,
    dtype: str = "float64",
    overwrite: bool = False,
    progress: Callable[[str, str, float, float], None] = lambda task, unit, done, of: None,
    normalize: str | None = None,
    like: str | os.PathLike[str] | None = None,
    split: Splitter | None = None,
    compression: str = "none",
    show_columns: Callable[[Sequence[ColumnReport]], None] = lambda reports: None,
    say: Callable[[str], None] = lambda text: None,
    **read_options: Any,
) -> dataset.Manifest:
    """Convert files of one format to a data set in `directory`. **Collective.**

    The rows keep their order: first all rows of the first file, then those of the second, and so on.

    Parameters
    ----------
    inputs : sequence of path
        The files.
    directory : path
        The directory of the data set. It is created if it does not exist.
    comm : Communicator
        The ranks that read and write.
    n_shards : int, optional
        The number of shards. By default one for every 128 MiB of text, and at least one for each rank. There are more
        if the rows of one would take more than SHARD_BYTES of memory.
    positive : float or str, optional
        The label of the positive class.
    zero_based : bool
        Whether svmlight text counts columns from 0.
    n_features : int, optional
        The number of columns, if it is more than the input uses.
    dtype : str
        "float32" or "float64".
    overwrite : bool
        Whether to replace a data set that is there already.
    progress : callable
        Is called with what is being done, what is counted ("MiB" or "rows"), how much of it this rank has done, and
        how much it has to do.
    normalize : str, optional
        A kind of `normalization.KINDS`; "standard" for CSV and Parquet by default, else "none".
    like : path, optional
        A data set whose columns, categories, labels and normalization are taken over.
    split : Splitter, optional
        If given, each part becomes a data set in a folder inside `directory`. All of them have the same columns,
        categories and labels, and are normalized by the factors of the first part, whose manifest is returned.
    compression : str
        The compression of the shards, one of `manifest.COMPRESSIONS`.
    show_columns : callable
        Is called on the root with the reports on all columns of a table, before the rows are written.
    say : callable
        Is called on the root with other lines for users.
    **read_options
        label, id, drop, group, time, keep, columns, decimal, thousands, sequences: see `ReadOptions`.

    Returns
    -------
    Manifest
        The data set, or that of the first part.

    Raises
    ------
    InputError
        On every rank, if options contradict each other, or if the files have a fault.

    Notes
    -----
    Memory of a rank: twice the rows of one shard, and 9 bytes for each row that the rank writes, with 8 more if rows
    have groups, and 8 more if they have times.
    """
    options = ReadOptions(zero_based=zero_based, positive=positive, meter=Meter(progress), **read_options)
    if options.label is not None and options.label in options.metadata_columns:
        raise InputError(f"--group or --time {options.label}: that column is the label", everywhere=True)
    if split is not None and split.by == "groups" and options.group is None:
        raise InputError(
            "--split-by groups needs to know which column has the groups; name it with --group COLUMN", everywhere=True
        )
    output = OutputOptions(n_shards, n_features, dtype, compression, normalize, split, show_columns, say)
    given = None
    with comm.fail_together():
        sizes = [_size(path) for path in inputs]
        dataset.check_writable(compression)
        if like is not None:
            given, options, output = _options_like(dataset.read_manifest(like), options, output, normalize)
    for path, *seen in zip(inputs, *comm.allgather(sizes), strict=True):
        if len(set(seen)) > 1:  # then the ranks would divide the file differently
            raise InputError(
                f"{path}: is being written: its size is not the same on all ranks. Try again", everywhere=True
            )
    source = [{"name": Path(path).name, "bytes": size} for path, size in zip(inputs, sizes, strict=True)]
    reader = open_reader(inputs, options, comm)
    if reader.sequences is not None and (n_features is not None or normalize not in (None, "none")):
        raise InputError(
            "--columns and --normalize are not for sequences: their columns follow from the degrees, and their rows "
            "have length 1",
            True,
        )
    if reader.reports is not None and comm.is_root:
        show_columns(reader.reports)
    with contextlib.ExitStack() as locks:
        if split is not None:
            with comm.fail_together():
                _check_free(Path(directory))
        for folder in dict.fromkeys((Path(directory), *_folders(Path(directory), split))):
            locks.enter_context(writing(folder, comm, overwrite))
        return _convert(reader, source, Path(directory), comm, options, output, given)


def _folders(directory: Path, split: Splitter | None) -> list[Path]:
    """Return the directories of the data sets that are made."""
    return [directory] if split is None else [directory / name for name in split.names]


def _check_free(directory: Path) -> None:
    if (directory / MANIFEST).exists():
        raise InputError(
            f"{directory}: is a data set, and --split would write data sets inside it; name another directory"
        )


def _options_like(
    manifest: dataset.Manifest, options: ReadOptions, output: OutputOptions, normalize: str | None
) -> tuple[normalization.Normalization, ReadOptions, OutputOptions]:
    """Return the normalization and the options for a data set like another one. Local."""
    dates = {name: form for name, form in options.columns.dates.items() if name != options.time}
    asked = replace(options.columns, dates=dates) != ColumnOptions() or options.decimal != "." or options.thousands
    if options.sequences is not None and replace(options.sequences, fasta=None, labels=None) != SequenceOptions():
        raise InputError(
            "with --like, alphabet, window and degrees come from the other data set; leave out --alphabet, --window, "
            "--degree, --spectrum and --spectrum-degree"
        )
    if manifest.coded and manifest.coded.sequences is None:
        raise InputError(f"--like {manifest.directory}: its codes were written from Python, and no file has such codes")
    if options.positive is not None or options.drop or normalize is not None or asked:
        raise InputError(
            "with --like, the settings of --positive, --drop, --normalize and of the options for columns come from "
            "the other data set; leave these options out"
        )
    options = replace(
        options,
        table=manifest.table,
        encoding=manifest.coded.sequences,
        label_map=manifest.label_map,
        zero_based=options.zero_based or manifest.zero_based,
    )
    output = output._replace(n_features=output.n_features or manifest.p)
    return manifest.normalization, options, output


def _convert(
    reader: Reader,
    source: list[dict[str, Any]],
    directory: Path,
    comm: Communicator,
    options: ReadOptions,
    output: OutputOptions,
    given: normalization.Normalization | None,
) -> dataset.Manifest:
    """Read, write and publish the shares. Collective. `given` is the normalization, if it is known."""
    n_bytes = sum(file["bytes"] for file in source)
    staged, highest = _stage_all(reader, n_bytes, directory, comm, output, options.meter)
    found = {label for block in staged for label in block.values[: MAX_LABELS + 1].tolist()}
    labels_of, columns_of, counts = zip(
        *comm.allgather((found, highest.columns, sum(block.shard.rows for block in staged))), strict=True
    )
    p = output.n_features or max(1, reader.n_columns or 0, *columns_of)
    names = ", ".join(file["name"] for file in source)
    print_warnings(names, reader.warnings, comm)
    if reader.n_columns is None:
        highest.report(sum(counts), 0 if options.zero_based else 1, comm, output.say)
    with comm.fail_together():
        label_map = (
            reader.label_map or interpret(in_one_type([*set().union(*labels_of)]).tolist(), options.positive).as_map()
        )
    folders, parts = _folders(directory, output.split), [staged]
    if output.split is not None:
        part_of = _part_of(staged, sum(counts[: comm.rank]), output.split, comm)
        with comm.fail_together():
            parts = _divide(staged, part_of, folders, options.meter)
    sizes = _sizes(parts, folders if sum(counts) else [names], comm)
    if given is None:
        kind = output.normalize or ("none" if reader.reports is None else "standard")
        measured = None if reader.reports is None or reader.table is None else reader.table.measured()
        given = normalization.fit(kind, partial(_entries, parts[0]), (sizes[0], p), comm, measured)
    finished, labels = [], []
    with comm.fail_together():
        for part in parts:
            labels.append([_signs(block, reader, label_map) for block in part])
            finished.append(
                [dataset.finish_shard(block.shard, y, p) for block, y in zip(part, labels[-1], strict=True)]
            )
    all_finished = comm.allgather(finished)
    statistics = [_statistics(part, y, options, comm) for part, y in zip(parts, labels, strict=True)]
    with comm.fail_together():
        if comm.is_root:
            for folder in folders[1:]:  # so that new parts are never found together with old ones
                dataset.withdraw(folder)
            for k, folder in enumerate(folders):
                dataset.publish(
                    folder,
                    [entry for of_rank in all_finished for entry in of_rank[k]],
                    label_map=label_map,
                    zero_based=options.zero_based,
                    source=source,
                    table=reader.table,
                    normalization=given,
                    split=None if output.split is None else output.split.record(k, sum(counts)),
                    statistics=statistics[k],
                    columns=reader.reports,
                    coded=_coded(reader),
                )
    with comm.fail_together():
        return dataset.read_manifest(folders[0])


def _stage_all(
    reader: Reader, n_bytes: int, directory: Path, comm: Communicator, output: OutputOptions, meter: Meter
) -> tuple[list[_Staged], HighestColumn]:
    """Write this rank's rows to staged shards; return these and the highest column that they use. Collective."""
    shares = _shares(reader, n_bytes, comm.size, output.n_shards)
    mine = range(len(shares) * comm.rank // comm.size, len(shares) * (comm.rank + 1) // comm.size)
    staged, highest = list[_Staged](), HighestColumn()
    comm.root_first(lambda: duplicates.hash_rows(sparse.csr_matrix((1, 1))))  # compiles its kernel
    with comm.fail_together():
        meter.begin("writing the shards", [part for k in mine for part in shares[k]])
        for k in mine:
            number = k
            for rows in combined(reader.read(shares[k]), SHARD_BYTES):
                highest.add(rows, shares[k])
                _check_columns(rows, output.n_features, [file_range.path for file_range in shares[k]])
                staged.append(_stage(rows, directory, number, output, reader))
                number += len(shares)
                del rows  # before the next ones are read
    return staged, highest


def _part_of(staged: Sequence[_Staged], first: int, split: Splitter, comm: Communicator) -> list[NDArray[np.uint8]]:
    """Return the part of each staged row. Row number `first` of the input is the first of them. Collective."""
    numbers = np.arange(first, first + sum(block.shard.rows for block in staged))
    keys: NDArray[Any] = numbers
    if split.by == "doubles":
        keys = np.concatenate([np.empty(0, np.uint64), *(block.hashes for block in staged)])
    elif split.by == "groups":
        keys = np.concatenate([np.empty(0, np.uint64), *(block.metadata.groups for block in staged)])
    elif split.by == "time" and staged and staged[0].metadata.times is not None:
        keys = np.concatenate([np.empty(0), *(block.metadata.times for block in staged)])
    found = split.in_time(keys, comm) if split.by == "time" else split.by_hash(keys)
    return np.split(found, np.cumsum([block.shard.rows for block in staged])[:-1]) if staged else []


def _divide(
    staged: Sequence[_Staged], part_of: Sequence[NDArray[np.uint8]], folders: Sequence[Path], meter: Meter
) -> list[list[_Staged]]:
    """Write the staged rows again, each to a staged shard in the folder of its part, and remove the old shards."""
    parts: list[list[_Staged]] = [[] for _ in folders]
    meter.begin("dealing out the rows", [RowRange("", 0, block.shard.rows, 0) for block in staged])
    for block, part in zip(staged, part_of, strict=True):
        X, ids, codes = dataset.staged_rows(block.shard)
        for k, folder in enumerate(folders):
            rows = np.flatnonzero(part == k)
            if len(rows):
                names, metadata = None if ids is None else [ids[row] for row in rows], block.metadata.take(rows)
                how = block.shard.dtype, names, block.shard.compression, metadata
                own, taken = None if X is None else X[rows], [group[rows] for group in codes]
                shard = dataset.stage_shard(folder, block.shard.number, own, *how, taken, block.shard.coded)
                parts[k].append(_Staged(shard, block.values, block.codes[rows], block.hashes[rows], metadata))
        block.shard.path.unlink()
        meter.add(block.shard.rows)
    return parts


def _statistics(
    part: Sequence[_Staged], labels: Sequence[NDArray[np.int8]], options: ReadOptions, comm: Communicator
) -> dict[str, Any]:
    """Return what the manifest says about groups, times and equal rows of a part. Collective."""
    hashes = np.concatenate([np.empty(0, np.uint64), *(block.hashes for block in part)])
    y = np.concatenate([np.empty(0, np.int8), *labels])
    return group_statistics(
        hashes, y, row_metadata.concatenate([block.metadata for block in part]), (options.group, options.time), comm
    )


def _sizes(parts: Sequence[Sequence[_Staged]], places: Sequence[Path | str], comm: Communicator) -> list[int]:
    """Return the number of rows of each part, over all ranks. Collective.

    Raises InputError, naming the part's place, if a part has no row.
    """
    every = comm.allgather([sum(block.shard.rows for block in part) for part in parts])
    sizes = [sum(counts) for counts in zip(*every, strict=True)]
    for place, size in zip(places, sizes, strict=False):
        if not size:
            raise InputError(f"{place}: there is no row to write; a data set needs at least one", True)
    return sizes


def _entries(staged: Sequence[_Staged]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    for block in staged:
        yield from dataset.staged_entries(block.shard)


def _shares(reader: Reader, n_bytes: int, n_ranks: int, n_shards: int | None) -> list[list[Any]]:
    """Cut the input into a share for each shard. Local; every rank gets the same result."""
    n_bytes *= text_files.EXPANSION if reader.compressed else 1
    n_shards = n_shards or max(n_ranks, -(-n_bytes // SHARD_TEXT_BYTES))
    # A compressed file is in one share as a whole, and may leave other shares empty.
    return [share for share in reader.plan(min(n_shards, n_bytes + 1)) if share] or [[]]


def _stage(rows: RowBlock, directory: Path, number: int, output: OutputOptions, reader: Reader) -> _Staged:
    values, label_codes = np.unique(rows.labels, return_inverse=True)
    label_codes = label_codes.astype(np.min_scalar_type(len(values)))
    ids, coded = (rows.ids or []) if reader.has_ids else None, _coded(reader)
    how = output.dtype, ids, output.compression, rows.metadata
    if coded:
        codes = np.empty((0, coded.n_codes), np.uint8) if rows.codes is None else rows.codes
        shard = dataset.stage_shard(directory, number, None, *how, [codes], coded)
        return _Staged(shard, values, label_codes, duplicates.hash_codes([codes]), rows.metadata)
    shape = (len(rows.labels), rows.n_columns)
    X = sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=shape, copy=False)
    shard = dataset.stage_shard(directory, number, X, *how)
    return _Staged(shard, values, label_codes, duplicates.hash_rows(X, output.dtype), rows.metadata)


def _coded(reader: Reader) -> CodedColumns:
    """Return the coded columns that a reader gives."""
    read = reader.sequences
    return NOT_CODED if read is None else CodedColumns((read.code_map,), read)


def _signs(staged: _Staged, reader: Reader, label_map: Mapping[str, Any]) -> NDArray[np.int8]:
    """Return +1 and -1 for the labels as the reader gave them."""
    values = staged.values
    found = values.astype(np.int8) if reader.label_map is not None else to_signs(values, label_map, "the text")
    return found[staged.codes]


def _size(path: str | os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _check_columns(rows: RowBlock, n_features: int | None, paths: Sequence[str]) -> None:
    if n_features is not None and rows.n_columns > n_features:
        raise InputError(
            f"{', '.join(sorted(set(paths)))}: uses column {rows.n_columns} (counted from 1), but --columns is "
            f"{n_features}; give a larger number, or leave it out"
        )
