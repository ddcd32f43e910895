"""Convert files to shards in parallel: every rank reads and writes its share, and the root publishes all at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.data import duplicates, input_files, staging
from distsms.data.coded_columns import NOT_CODED, CodedColumns
from distsms.data.formats import text_files
from distsms.data.formats.base import Meter, Reader, ReadOptions
from distsms.data.formats.column_options import ColumnReport
from distsms.data.formats.registry import open_reader, print_warnings
from distsms.data.formats.rows import RowBlock, batches, of_rank
from distsms.data.highest_column import HighestColumn
from distsms.data.labels import MAX_LABELS, in_one_type, interpret, to_signs
from distsms.data.like import options_like
from distsms.data.shards import dataset, entries_in_memory
from distsms.data.shards.entries_in_memory import EntriesInMemory
from distsms.data.shards.manifest import MANIFEST
from distsms.data.shards.publish import check_free, complete, exchange, shard_names, writing
from distsms.data.splits import Splitter
from distsms.errors import InputError
from distsms.matrix import normalization
from distsms.parallel.communicator import Communicator
from distsms.utils import memory
from distsms.utils.files import FileState

SHARD_TEXT_BYTES = 128 * 2**20
"""Bytes of text that one shard gets, if the number of shards is not given."""
SHARD_BYTES = 2 * SHARD_TEXT_BYTES
"""The most memory that the rows of one shard may take, whatever number of shards is asked for.

The rows of SHARD_TEXT_BYTES of text mostly take less.
"""
UNEVEN, FEW_BYTES = 1.1, 2**26
"""Entries do not stay in memory if some rank has more than UNEVEN times the mean of the ranks; nor on several ranks if
they come from less than FEW_BYTES of text, since the ranks may then share other work, for which each reads all rows.
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
    weight_file: str | os.PathLike[str] | None = None
    durable: bool = True
    in_memory: bool = False


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
    weight_file: str | os.PathLike[str] | None = None,
    durable: bool = True,
    in_memory: bool = False,
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
        The number of shards. By default one for every 128 MiB of text, equally many on all ranks. There are more if the
        rows of one would take more than SHARD_BYTES of memory.
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
    weight_file : path, optional
        A file with the weight of each row on a line of its own, in the order of the rows.
    durable : bool
        Whether the shards must survive a failure of the machine. Temporary ones need not, and then nobody waits for the
        disk.
    in_memory : bool
        Whether the entries of temporary shards (of a split: of its first part) are to stay in memory rather than in
        their files. They are written nevertheless if they take too much memory on some rank, or if some rank has many
        more of them than others.
    **read_options
        label, id, drop, group, time, weight, keep, columns, decimal, thousands, separator, missing, not_missing,
        sequences: see `ReadOptions`.

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
    Memory of a rank: the rows of one shard, entries that stay in memory, and 9 bytes for each row, with 8 more if rows
    have groups, 8 more if they have times, and 8 more if they have weights. Of a CSV file it also keeps
    `table.KEPT_BYTES` of columns until they become rows.
    """
    options = ReadOptions(zero_based=zero_based, positive=positive, meter=Meter(progress), **read_options)
    if options.label is not None and options.label in options.metadata_columns:
        raise InputError(f"--group, --time or --weight {options.label}: that column is the label", everywhere=True)
    if weight_file is not None and options.weight is not None:
        raise InputError("--weight and --weight-file contradict each other: give one of them", everywhere=True)
    if split is not None and split.by == "groups" and options.group is None:
        raise InputError(
            "--split-by groups needs to know which column has the groups; name it with --group COLUMN", everywhere=True
        )
    written = n_shards, n_features, dtype, compression, normalize, split
    output = OutputOptions(*written, show_columns, say, weight_file, durable, in_memory)
    given = None
    with comm.fail_together():
        if weight_file is not None:
            FileState(weight_file)  # refuses a missing file before the rows are read
        labels = options.sequences.labels if options.sequences else None
        files = input_files.states(inputs, weight_file, labels, options.label, options.id)
        dataset.check_writable(compression)
        if split is not None:
            _check_not_inside(Path(directory))
        for folder in _folders(Path(directory), split):  # before the text is read; `writing` checks it again
            check_free(folder, overwrite)
        if like is not None:
            known = dataset.read_manifest(like)
            options = options_like(known, options, normalize)
            given, output = known.normalization, output._replace(n_features=n_features or known.p)
    sizes = [file.size for file in files[: len(inputs)]]
    input_files.require_common(files, comm)
    source = [{"name": Path(path).name, "bytes": size} for path, size in zip(inputs, sizes, strict=True)]
    n_shares = _n_shares(sum(sizes), comm.size, n_shards)
    reader = open_reader(inputs, replace(options, n_shares=n_shares), comm)
    if reader.sequences is not None and like is not None and options.encoding is None:
        raise InputError(f"--like {like}: that data set has no sequences, as {inputs[0]} has", True)
    if reader.sequences is not None and (n_features is not None or normalize not in (None, "none")):
        raise InputError(
            "--columns and --normalize are not for sequences: their columns follow from the degrees, and their rows "
            "have length 1",
            True,
        )
    if reader.reports is not None and comm.is_root:
        show_columns(reader.reports)
    with contextlib.ExitStack() as locks:
        for folder in dict.fromkeys((Path(directory), *_folders(Path(directory), split))):
            entries_in_memory.forget(folder)
            locks.enter_context(writing(folder, comm, overwrite))
        made = _convert(reader, source, Path(directory), comm, options, output, given, files)
    memory.give_back()  # a training may follow
    return made


def _folders(directory: Path, split: Splitter | None) -> list[Path]:
    """Return the directories of the data sets that are made."""
    return [directory] if split is None else [directory / name for name in split.names]


def _check_not_inside(directory: Path) -> None:
    if (directory / MANIFEST).exists():
        raise InputError(
            f"{directory}: is a data set, and --split would write data sets inside it; name another directory"
        )


def _convert(
    reader: Reader,
    source: list[dict[str, Any]],
    directory: Path,
    comm: Communicator,
    options: ReadOptions,
    output: OutputOptions,
    given: normalization.Normalization | None,
    read: Sequence[FileState],
) -> dataset.Manifest:
    """Read, write and publish the shares. Collective.

    given : the normalization, if it is known.
    read : the files, before they were first read.
    """
    n_bytes = sum(file["bytes"] for file in source)
    staged, highest, store = _stage_all(reader, n_bytes, directory, comm, output, options.meter)
    with comm.fail_together():
        for one in read:
            one.require_same()
    found = {label for block in staged for label in block.values[: MAX_LABELS + 1].tolist()}
    labels_of, columns_of, counts = zip(
        *comm.allgather((found, highest.columns, sum(block.shard.rows for block in staged))), strict=True
    )
    p = output.n_features or max(1, reader.n_columns or 0, *columns_of)
    names = ", ".join(file["name"] for file in source)
    print_warnings(names, reader.warnings, comm)
    if reader.n_columns is None:
        highest.report(sum(counts), 0 if options.zero_based else 1, comm, output.say)
    if output.weight_file is not None:
        with comm.fail_together():
            staged = staging.weigh(staged, output.weight_file, sum(counts[: comm.rank]), sum(counts))
    with comm.fail_together():
        label_map = (
            reader.label_map or interpret(in_one_type([*set().union(*labels_of)]).tolist(), options.positive).as_map()
        )
    folders, parts = _folders(directory, output.split), [staged]
    if output.split is not None:
        part_of = staging.part_of(staged, sum(counts[: comm.rank]), output.split, comm)
        with comm.fail_together():
            parts = staging.divide(staged, part_of, folders, options.meter, store)
    in_memory = comm.allgather(sum(block.shard.rows + block.shard.nnz for block in parts[0]))
    if store is not None and max(in_memory) * comm.size > UNEVEN * sum(in_memory):
        with comm.fail_together():
            parts[0], store = [staging.write_out(block) for block in parts[0]], None
    if store is not None:
        store.trim()
    hint = ". Groups are drawn at random: try another --seed" if output.split and output.split.by == "groups" else ""
    sizes = _sizes(parts, folders if sum(counts) else [names], comm, hint)
    if given is None:
        kind = output.normalize or ("none" if reader.reports is None else "standard")
        measured = None if reader.reports is None or reader.table is None else reader.table.measured()
        n, weight = staging.present(parts[0], sizes[0], comm)
        if not n:
            raise InputError(f"{names}: all rows have weight 0", everywhere=True)
        given = normalization.fit(kind, partial(staging.entries, parts[0]), (n, p), comm, measured, weight)
    finished, labels = [], []
    with comm.fail_together():
        for part in parts:
            labels.append([_signs(block, reader, label_map) for block in part])
            finished.append(
                [
                    dataset.finish_shard(block.shard, y, p, block.metadata.weights, block.hashes)
                    for block, y in zip(part, labels[-1], strict=True)
                ]
            )
    all_finished = comm.allgather(finished)
    entries = [(rank, entry) for rank, of_rank in enumerate(all_finished) for entry in of_rank[0]]
    names = comm.bcast(shard_names(folders[0], [entry for _, entry in entries]) if comm.is_root else [])
    for name, (rank, entry) in zip(names, entries, strict=True):
        if entry["in_memory"]:
            entries_in_memory.rename(folders[0] / entry["staged"], folders[0] / name, rank, comm.rank)
    file = None if output.weight_file is None else Path(output.weight_file).name
    columns = options.group, options.time, options.weight or file
    known = columns, reader.sequences is not None, comm
    statistics = [staging.statistics(part, y, *known) for part, y in zip(parts, labels, strict=True)]
    with comm.fail_together():
        if comm.is_root:
            made = [
                complete(
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
                for k, folder in enumerate(folders)
            ]
            exchange(made)
    with comm.fail_together():
        return dataset.read_manifest(folders[0])


def _stage_all(
    reader: Reader, n_bytes: int, directory: Path, comm: Communicator, output: OutputOptions, meter: Meter
) -> tuple[list[staging.Staged], HighestColumn, EntriesInMemory | None]:
    """Write this rank's rows to staged shards. Collective.

    Returns the shards, the highest column that they use, and their entries if those of all ranks are in memory.
    """
    shares = _shares(reader, n_bytes, comm.size, output.n_shards)
    mine = of_rank(len(shares), comm)
    staged, highest, store = list[staging.Staged](), HighestColumn(), None
    fit = output.compression == "none" and output.dtype in ("float32", "float64") and not _coded(reader)
    if output.in_memory and fit and (comm.size == 1 or n_bytes >= FEW_BYTES):
        room = entries_in_memory.room(n_bytes, len(comm.node_ranks()))
        store = EntriesInMemory.reserve(room, output.dtype)
    comm.root_first(
        lambda: duplicates.share_places(duplicates.hash_rows(sparse.csr_matrix((1, 1))))
    )  # compiles kernels
    with comm.fail_together():
        meter.begin("writing the shards", [part for k in mine for part in shares[k]])
        for k in mine:
            number = k
            for blocks in batches(reader.read(shares[k]), SHARD_BYTES):
                for rows in blocks:
                    highest.add(rows, shares[k])
                    _check_columns(rows, output.n_features, [file_range.path for file_range in shares[k]])
                how = output.dtype, output.compression, reader.has_ids, _coded(reader), output.durable
                staged.append(staging.stage(blocks, directory, number, *how, store))
                if store is not None and entries_in_memory.find(staged[-1].shard.path) is None:  # there was no room
                    staged, store = [staging.write_out(block) for block in staged], None
                number += len(shares)
                del rows, blocks  # before the next ones are read
    if not all(comm.allgather(store is not None)):
        with comm.fail_together():
            staged, store = [staging.write_out(block) for block in staged], None
    return staged, highest, store


def _sizes(
    parts: Sequence[Sequence[staging.Staged]], places: Sequence[Path | str], comm: Communicator, hint: str
) -> list[int]:
    """Return the number of rows of each part, over all ranks. Collective.

    Raises InputError, naming the part's place and with a hint, if a part has no row.
    """
    every = comm.allgather([sum(block.shard.rows for block in part) for part in parts])
    sizes = [sum(counts) for counts in zip(*every, strict=True)]
    for place, size in zip(places, sizes, strict=False):
        if not size:
            raise InputError(f"{place}: there is no row to write; a data set needs at least one{hint}", True)
    return sizes


def _shares(reader: Reader, n_bytes: int, n_ranks: int, n_shards: int | None) -> list[list[Any]]:
    """Cut the input into a share for each shard. Local; every rank gets the same result."""
    n_shares = _n_shares(n_bytes * (text_files.EXPANSION if reader.compressed else 1), n_ranks, n_shards)
    # A compressed file is in one share as a whole, and may leave other shares empty.
    return [share for share in reader.plan(n_shares) if share] or [[]]


def _n_shares(n_bytes: int, n_ranks: int, n_shards: int | None) -> int:
    return min(n_shards or n_ranks * max(1, -(-n_bytes // (n_ranks * SHARD_TEXT_BYTES))), n_bytes + 1)


def _coded(reader: Reader) -> CodedColumns:
    """Return the coded columns that a reader gives."""
    read = reader.sequences
    return NOT_CODED if read is None else CodedColumns((read.code_map,), read)


def _signs(staged: staging.Staged, reader: Reader, label_map: Mapping[str, Any]) -> NDArray[np.int8]:
    """Return +1 and -1 for the labels as the reader gave them."""
    values = staged.values
    found = values.astype(np.int8) if reader.label_map is not None else to_signs(values, label_map, "the text")
    return found[staged.codes]


def _check_columns(rows: RowBlock, n_features: int | None, paths: Sequence[str]) -> None:
    if n_features is not None and rows.n_columns > n_features:
        raise InputError(
            f"{', '.join(sorted(set(paths)))}: uses column {rows.n_columns} (counted from 1), but --columns is "
            f"{n_features}; give a larger number, or leave it out"
        )
