"""Convert files to shards in parallel: every rank reads and writes its share, and the root publishes all at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.base import memory, text_files
from distsms.base.errors import InputError
from distsms.base.files import FileState
from distsms.ingest import file_names, staging
from distsms.ingest.formats.base import Meter, Reader, ReadOptions
from distsms.ingest.formats.registry import open_reader, print_warnings
from distsms.ingest.highest_column import HighestColumn
from distsms.matrix import normalization
from distsms.parallel.communicator import Communicator
from distsms.shards import dataset, duplicates, entries_in_memory, publish
from distsms.shards.coded_columns import NOT_CODED, CodedColumns
from distsms.shards.column_options import ColumnOptions, ColumnReport
from distsms.shards.entries_in_memory import EntriesInMemory
from distsms.shards.labels import MAX_LABELS, in_one_type, interpret, to_signs
from distsms.shards.manifest import MANIFEST, Manifest
from distsms.shards.row_metadata import MetadataColumns
from distsms.shards.rows import RowBlock, batches, of_rank
from distsms.shards.sequence_rules import SequenceOptions
from distsms.shards.splits import Splitter
from distsms.shards.table_schema import USUAL

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


@dataclass(frozen=True)
class WriteOptions:
    """How a data set is written."""

    # The number of shards. By default one for every 128 MiB of text, equally many on all ranks. There are more if the
    # rows of one would take more than SHARD_BYTES of memory.
    n_shards: int | None = None
    n_features: int | None = None  # the number of columns, if it is more than the input uses
    dtype: str = "float64"  # "float32" or "float64"
    compression: str = "none"  # the compression of the shards, one of `manifest.COMPRESSIONS`
    # A kind of `normalization.KINDS`; "standard" for CSV and Parquet by default, else "none"
    normalize: str | None = None
    # If given, each part becomes a data set in a folder inside the directory. All of them have the same columns,
    # categories and labels, and are normalized by the factors of the first part.
    split: Splitter | None = None
    # A file with the weight of each row on a line of its own, in the order of the rows
    weight_file: str | os.PathLike[str] | None = None
    # Whether the shards must survive a failure of the machine. Temporary ones need not, and then nobody waits for the
    # disk.
    durable: bool = True
    # Whether the entries of temporary shards (of a split: of its first part) are to stay in memory rather than in their
    # files. They are written nevertheless if they take too much memory on some rank, or if some rank has many more of
    # them than others.
    in_memory: bool = False

    def folders(self, directory: Path) -> list[Path]:
        """Return the directories of the data sets that are made."""
        return [directory] if self.split is None else [directory / name for name in self.split.names]


def sort_options(options: Mapping[str, Any]) -> tuple[ReadOptions, WriteOptions]:
    """Return options, by their names, as those for reading and those for writing. Raises TypeError for any other."""
    writing = {field.name for field in fields(WriteOptions)}
    read_options = {name: value for name, value in options.items() if name not in writing}
    return ReadOptions(**read_options), WriteOptions(**{name: options[name] for name in writing & options.keys()})


def convert(
    inputs: Sequence[str | os.PathLike[str]],
    directory: str | os.PathLike[str],
    comm: Communicator,
    reading: ReadOptions,
    writing: WriteOptions,
    *,
    like: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Callable[[str, str, float, float], None] = lambda task, unit, done, of: None,
    show_columns: Callable[[Sequence[ColumnReport]], None] = lambda reports: None,
    say: Callable[[str], None] = lambda text: None,
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
    reading, writing : ReadOptions, WriteOptions
        How the files are read, and how the data set is written.
    like : path, optional
        A data set whose columns, categories, labels and normalization are taken over.
    overwrite : bool
        Whether to replace a data set that is there already.
    progress : callable
        Is called with what is being done, what is counted ("MiB" or "rows"), how much of it this rank has done, and
        how much it has to do.
    show_columns : callable
        Is called on the root with the reports on all columns of a table, before the rows are written.
    say : callable
        Is called on the root with other lines for users.

    Returns
    -------
    Manifest
        The data set, or that of the first part of a split.

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
    directory, reading, n_features = Path(directory), replace(reading, meter=Meter(progress)), writing.n_features
    # 1) Refuse what can be refused before the text is read, and take over what `like` says.
    _check_options(reading, writing)
    factors = None
    with comm.fail_together():
        if writing.weight_file is not None:
            FileState(writing.weight_file)  # refuses a missing file before the rows are read
        sequence_labels = reading.sequences.labels if reading.sequences else None
        files = file_names.states(inputs, writing.weight_file, sequence_labels, reading.label, reading.id)
        dataset.check_writable(writing.compression)
        if writing.split is not None and (directory / MANIFEST).exists():
            raise InputError(
                f"{directory}: is a data set, and --split would write data sets inside it; name another directory"
            )
        for folder in writing.folders(directory):  # before the text is read; `publish.writing` checks it again
            publish.check_free(folder, overwrite)
        if like is not None:
            model_data = dataset.read_manifest(like)
            reading = _options_like(model_data, reading, writing.normalize)
            factors, writing = model_data.normalization, replace(writing, n_features=n_features or model_data.p)
    # 2) Open the files; a table is surveyed.
    sizes = [file.size for file in files[: len(inputs)]]
    file_names.require_common(files, comm)
    source = [{"name": Path(path).name, "bytes": size} for path, size in zip(inputs, sizes, strict=True)]
    n_shares = _n_shares(sum(sizes), comm.size, writing.n_shards)
    reader = open_reader(inputs, replace(reading, n_shares=n_shares), comm)
    if reader.sequences is not None and like is not None and reading.encoding is None:
        raise InputError(f"--like {like}: that data set has no sequences, as {inputs[0]} has", True)
    if reader.sequences is not None and (n_features is not None or writing.normalize not in (None, "none")):
        raise InputError(
            "--columns and --normalize are not for sequences: their columns follow from the degrees, and their rows "
            "have length 1",
            True,
        )
    if reader.reports is not None and comm.is_root:
        show_columns(reader.reports)
    # 3) Convert, while nobody else writes into the directories.
    with contextlib.ExitStack() as locks:
        for folder in dict.fromkeys((directory, *writing.folders(directory))):
            entries_in_memory.forget(folder)
            locks.enter_context(publish.writing(folder, comm, overwrite))
        manifest = _convert(reader, source, directory, comm, reading, writing, factors, files, say)
    memory.give_back()  # a training may follow
    return manifest


def _check_options(reading: ReadOptions, writing: WriteOptions) -> None:
    """Raise InputError, on every rank, if options contradict each other."""
    if reading.label is not None and reading.label in reading.metadata_columns:
        raise InputError(f"--group, --time or --weight {reading.label}: that column is the label", everywhere=True)
    if writing.weight_file is not None and reading.weight is not None:
        raise InputError("--weight and --weight-file contradict each other: give one of them", everywhere=True)
    if writing.split is not None and writing.split.by == "groups" and reading.group is None:
        raise InputError(
            "--split-by groups needs to know which column has the groups; name it with --group COLUMN", everywhere=True
        )


def _options_like(manifest: Manifest, options: ReadOptions, normalize: str | None) -> ReadOptions:
    """Return the options with which files are read like another data set. Local.

    Raises InputError if `options` or `normalize` ask for what comes from the other data set.
    """
    dates = {name: form for name, form in options.columns.dates.items() if name != options.time}
    sets_columns = (
        replace(options.columns, dates=dates) != ColumnOptions() or replace(options.cells, separator="") != USUAL
    )
    if options.positive is not None or options.drop or normalize is not None or sets_columns:
        raise InputError(
            "with --like, the settings of --positive, --drop, --normalize and of the options for columns come from "
            "the other data set; leave these options out"
        )
    if options.sequences is not None and replace(options.sequences, fasta=None, labels=None) != SequenceOptions():
        raise InputError(
            "with --like, alphabet, window and degrees come from the other data set; leave out --alphabet, --window, "
            "--degree, --spectrum and --spectrum-degree"
        )
    if manifest.coded and manifest.coded.sequences is None:
        raise InputError(f"--like {manifest.directory}: its codes were written from Python, and no file has such codes")
    return replace(
        options,
        table=manifest.table,
        encoding=manifest.coded.sequences,
        label_map=manifest.label_map,
        zero_based=options.zero_based or manifest.zero_based,
    )


def _convert(
    reader: Reader,
    source: list[dict[str, Any]],
    directory: Path,
    comm: Communicator,
    reading: ReadOptions,
    writing: WriteOptions,
    factors: normalization.Normalization | None,
    files: Sequence[FileState],
    say: Callable[[str], None],
) -> dataset.Manifest:
    """Read, write and publish the shares. Collective.

    factors : the normalization, if it comes from another data set.
    files : their states before they were first read.
    """
    # 1) Write this rank's rows to shards that still lack their labels.
    n_bytes, split = sum(file["bytes"] for file in source), writing.split
    staged, highest, store = _stage_all(reader, n_bytes, directory, comm, writing, reading.meter)
    with comm.fail_together():
        for file in files:
            file.require_same()

    # 2) Agree on the number of rows and columns, and on the meaning of the labels.
    labels = {label for block in staged for label in block.values[: MAX_LABELS + 1].tolist()}
    labels_of_ranks, columns_of_ranks, row_counts = zip(
        *comm.allgather((labels, highest.columns, sum(block.shard.rows for block in staged))), strict=True
    )
    n, first = sum(row_counts), sum(row_counts[: comm.rank])
    p = writing.n_features or max(1, reader.n_columns or 0, *columns_of_ranks)
    names = ", ".join(file["name"] for file in source)
    print_warnings(names, reader.warnings, comm)
    if reader.n_columns is None:
        highest.report(n, 0 if reading.zero_based else 1, comm, say)
    if writing.weight_file is not None:
        with comm.fail_together():
            staged = staging.weigh(staged, writing.weight_file, first, n)
    with comm.fail_together():
        all_labels = in_one_type([*set().union(*labels_of_ranks)]).tolist()
        label_map = reader.label_map or interpret(all_labels, reading.positive).as_map()

    # 3) Deal out the rows to the parts of a split. Entries stay in memory only if the ranks have about as many.
    folders, parts = writing.folders(directory), [staged]
    if split is not None:
        part_of = staging.part_of(staged, first, split, comm)
        with comm.fail_together():
            parts = staging.divide(staged, part_of, folders, reading.meter, store)
    sizes_in_memory = comm.allgather(sum(block.shard.rows + block.shard.nnz for block in parts[0]))
    if store is not None and max(sizes_in_memory) * comm.size > UNEVEN * sum(sizes_in_memory):
        with comm.fail_together():
            parts[0], store = [staging.write_out(block) for block in parts[0]], None
    if store is not None:
        store.trim()
    hint = ". Groups are drawn at random: try another --seed" if split and split.by == "groups" else ""
    sizes = _sizes(parts, folders if n else [names], comm, hint)

    # 4) Compute the factors that normalize the rows, from the first part.
    if factors is None:
        kind = writing.normalize or ("none" if reader.reports is None else "standard")
        measured = None if reader.reports is None or reader.table is None else reader.table.measured()
        n_present, weight = staging.present(parts[0], sizes[0], comm)
        if not n_present:
            raise InputError(f"{names}: all rows have weight 0", everywhere=True)
        factors = normalization.fit(kind, partial(staging.entries, parts[0]), (n_present, p), comm, measured, weight)

    # 5) Add the labels, and give the shards their final names.
    signs, entries_of_parts = [], []
    with comm.fail_together():
        for part in parts:
            signs.append([_signs(block, reader, label_map) for block in part])
            entries_of_parts.append(
                [
                    dataset.finish_shard(block.shard, y, p, block.metadata.weights, block.hashes)
                    for block, y in zip(part, signs[-1], strict=True)
                ]
            )
    entries_of_ranks = comm.allgather(entries_of_parts)
    entries = [(rank, entry) for rank, of_rank in enumerate(entries_of_ranks) for entry in of_rank[0]]
    shard_names = comm.bcast(publish.shard_names(folders[0], [entry for _, entry in entries]) if comm.is_root else [])
    for name, (rank, entry) in zip(shard_names, entries, strict=True):
        if entry["in_memory"]:
            entries_in_memory.rename(folders[0] / entry["staged"], folders[0] / name, rank, comm.rank)

    # 6) Write the manifests. The data sets take the places of old ones together.
    weight_column = reading.weight or (None if writing.weight_file is None else Path(writing.weight_file).name)
    columns = MetadataColumns(reading.group, reading.time, weight_column)
    statistics = [
        staging.statistics(part, y, columns, reader.sequences is not None, comm)
        for part, y in zip(parts, signs, strict=True)
    ]
    with comm.fail_together():
        if comm.is_root:
            manifests = [
                publish.complete(
                    folder,
                    [entry for of_rank in entries_of_ranks for entry in of_rank[k]],
                    label_map=label_map,
                    zero_based=reading.zero_based,
                    source=source,
                    table=reader.table,
                    normalization=factors,
                    split=None if split is None else split.record(k, n),
                    statistics=statistics[k],
                    columns=reader.reports,
                    coded=_coded(reader),
                )
                for k, folder in enumerate(folders)
            ]
            publish.exchange(manifests)
    with comm.fail_together():
        return dataset.read_manifest(folders[0])


def _stage_all(
    reader: Reader, n_bytes: int, directory: Path, comm: Communicator, writing: WriteOptions, meter: Meter
) -> tuple[list[staging.Staged], HighestColumn, EntriesInMemory | None]:
    """Write this rank's rows to staged shards. Collective.

    Returns the shards, the highest column that they use, and their entries if those of all ranks are in memory.
    """
    shares = _shares(reader, n_bytes, comm.size, writing.n_shards)
    my_shares = of_rank(len(shares), comm)
    staged, highest, store = list[staging.Staged](), HighestColumn(), None
    plain = writing.compression == "none" and writing.dtype in ("float32", "float64") and not _coded(reader)
    if writing.in_memory and plain and (comm.size == 1 or n_bytes >= FEW_BYTES):
        n_reserved = entries_in_memory.room(n_bytes, len(comm.node_ranks()))
        store = EntriesInMemory.reserve(n_reserved, writing.dtype)
    comm.root_first(
        lambda: duplicates.share_places(duplicates.hash_rows(sparse.csr_matrix((1, 1))))
    )  # compiles kernels
    with comm.fail_together():
        meter.begin("writing the shards", [part for k in my_shares for part in shares[k]])
        for k in my_shares:
            number = k
            for blocks in batches(reader.read(shares[k]), SHARD_BYTES):
                for rows in blocks:
                    highest.add(rows, shares[k])
                    _check_columns(rows, writing.n_features, [file_range.path for file_range in shares[k]])
                block = staging.stage(
                    blocks,
                    directory,
                    number,
                    dtype=writing.dtype,
                    compression=writing.compression,
                    named=reader.has_ids,
                    coded=_coded(reader),
                    durable=writing.durable,
                    store=store,
                )
                staged.append(block)
                if store is not None and entries_in_memory.find(block.shard.path) is None:  # there was no room
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
    sizes_of_ranks = comm.allgather([sum(block.shard.rows for block in part) for part in parts])
    sizes = [sum(counts) for counts in zip(*sizes_of_ranks, strict=True)]
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
    sequences = reader.sequences
    return NOT_CODED if sequences is None else CodedColumns((sequences.code_map,), sequences)


def _signs(staged: staging.Staged, reader: Reader, label_map: Mapping[str, Any]) -> NDArray[np.int8]:
    """Return +1 and -1 for the labels as the reader gave them."""
    values = staged.values
    signs = values.astype(np.int8) if reader.label_map is not None else to_signs(values, label_map, "the text")
    return signs[staged.codes]


def _check_columns(rows: RowBlock, n_features: int | None, paths: Sequence[str]) -> None:
    if n_features is not None and rows.n_columns > n_features:
        raise InputError(
            f"{', '.join(sorted(set(paths)))}: uses column {rows.n_columns} (counted from 1), but --columns is "
            f"{n_features}; give a larger number, or leave it out"
        )
