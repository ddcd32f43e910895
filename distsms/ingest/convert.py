"""Convert files to shards in parallel: every rank reads and writes its share, and the root publishes all at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base import addresses, memory, text_files
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import FileState
from distsms.base.formatting import format_bytes
from distsms.base.text_files import ByteRange, TextPosition, read_blocks
from distsms.base.wording import option
from distsms.ingest import file_names, staging
from distsms.ingest.formats.base import Reader, place_in
from distsms.ingest.formats.registry import open_reader, reader_warnings
from distsms.ingest.options import ConversionObserver, Meter, ReadOptions, WriteOptions
from distsms.matrix import normalization
from distsms.shards import entries_in_memory, manifest, storage
from distsms.shards.coded_columns import NOT_CODED, CodedColumns
from distsms.shards.column_options import ColumnOptions
from distsms.shards.entries_in_memory import EntriesInMemory, RowsInMemory
from distsms.shards.labels import MAX_LABELS, in_one_type, interpret
from distsms.shards.manifest import MANIFEST, Manifest, read_manifest
from distsms.shards.rows import RowBlock, batches, of_rank
from distsms.shards.sequence_rules import SequenceOptions
from distsms.shards.table_schema import USUAL
from distsms.shards.writer import ShardForm

SHARD_TEXT_BYTES = 128 * 2**20
"""Bytes of text that one shard gets, if the number of shards is not given."""
SHARD_BYTES = 2 * SHARD_TEXT_BYTES
"""The most memory that the rows of one shard may take; those of SHARD_TEXT_BYTES of text mostly take less."""
UNEVEN, FEW_BYTES = 1.1, 2**26
"""Entries do not stay in memory if some rank has more than UNEVEN times the mean of the ranks; nor on several ranks if
they come from less than FEW_BYTES of text, since the ranks may then share other work, for which each reads all rows.
"""


def convert(
    inputs: Sequence[str | os.PathLike[str]],
    directory: str | os.PathLike[str],
    comm: Communicator,
    reading: ReadOptions,
    writing: WriteOptions,
    *,
    like: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    observer: ConversionObserver = ConversionObserver(),  # noqa: B008 - without state
) -> list[Manifest]:
    """Convert files of one format to a data set in `directory`; return it, or the parts of a split. **Collective.** The
    columns, categories, labels and normalization of the data set `like` are taken over. A rank holds the rows of a
    shard, what stays in memory, up to 33 bytes for each row, and `table.KEPT_BYTES` of columns of CSV."""
    directory, reading, n_features = Path(directory), replace(reading, meter=Meter(observer)), writing.n_features
    # 1) Refuse what can be refused before the text is read, and take over what `like` says.
    _check_options(reading, writing)
    factors = None
    with comm.fail_together():
        if writing.weight_file is not None:
            FileState(writing.weight_file)  # refuses a missing file before the rows are read
        sequence_labels = reading.sequences.labels if reading.sequences else None
        files = file_names.states(inputs, writing.weight_file, sequence_labels, reading.label, reading.id)
        storage.check_codec(writing.compression)
        if writing.split is not None and (directory / MANIFEST).exists():
            raise InputError(f"{directory}: is a data set itself; name another directory for {option('split')}")
        for folder in writing.folders(directory):  # before the text is read; `publishing` checks it again
            manifest.check_free(folder, overwrite)
        if like is not None:
            model_data = read_manifest(like)
            reading = _options_like(model_data, reading, writing.normalize)
            factors, writing = model_data.normalization, replace(writing, n_features=n_features or model_data.p)
    # 2) Open the files; a table is surveyed.
    sizes = [file.size for file in files[: len(inputs)]]
    file_names.require_common(files, comm)
    source = [{"name": addresses.name_of(path), "bytes": size} for path, size in zip(inputs, sizes, strict=True)]
    n_shares = _n_shares(sum(sizes), comm.size, writing.n_shards)
    folder = next(folder for folder in (directory.absolute(), *directory.absolute().parents) if folder.is_dir())
    workspace = reading.workspace._replace(folder=folder, rows_stay=writing.in_memory)
    reader = open_reader(inputs, replace(reading, n_shares=n_shares, workspace=workspace), comm)
    if reader.sequences is not None and like is not None and reading.encoding is None:
        raise InputError(f"{option('like', like)}: that data set has no sequences, as {inputs[0]} has", True)
    if reader.sequences is not None and (n_features is not None or writing.normalize not in (None, "none")):
        raise InputError(f"{option('n_features')} and {option('normalize')} are not for sequences", True)
    if reader.reports is not None and comm.is_root:
        observer.surveyed(reader.reports)
    # 3) Convert, while nobody else writes into the directories.
    conversion = _Conversion(reader, source, directory, comm, reading, writing, factors, observer)
    with contextlib.ExitStack() as locks:
        for folder in dict.fromkeys((directory, *writing.folders(directory))):
            locks.enter_context(manifest.publishing(folder, comm, overwrite))
        manifests = conversion.run(files)
    memory.give_back()  # a training may follow
    return manifests


def _check_options(reading: ReadOptions, writing: WriteOptions) -> None:
    if reading.label is not None and reading.label in reading.metadata_columns:
        raise InputError(f"{option('group')}, {option('time')} or {option('weight', reading.label)} is the label", True)
    if reading.label is not None and reading.label in reading.drop:
        raise InputError(f"{option('drop', [reading.label])} is the label ({option('label')}): drop others", True)
    if writing.weight_file is not None and reading.weight is not None:
        raise InputError(f"{option('weight')} and {option('weight_file')} contradict each other: give one", True)
    if writing.split is not None and writing.split.by == "groups" and reading.group is None:
        raise InputError(f"{option('split_by', 'groups')} needs {option('group', text='COLUMN')}", True)


def _options_like(model_data: Manifest, options: ReadOptions, normalize: str | None) -> ReadOptions:
    """Return the options with which files are read like another data set; refuse those that come from it."""
    dates = {name: form for name, form in options.columns.dates.items() if name != options.time}
    usual = replace(options.columns, dates=dates) == ColumnOptions() and replace(options.cells, separator="") == USUAL
    if options.positive is not None or options.drop or normalize is not None or not usual:
        others = f"{option('positive')}, {option('drop')}, {option('normalize')} and the options for columns"
        raise InputError(f"{option('like')} takes what {others} say from the other data set; leave these out")
    if options.sequences is not None and replace(options.sequences, fasta=None, labels=None) != SequenceOptions():
        raise InputError(f"with {option('like')}, alphabet, window and degrees come from there; leave them out")
    if model_data.coded and model_data.coded.sequences is None:
        raise InputError(f"{option('like', model_data.directory)}: has codes written from Python, as no file has")
    return replace(
        options,
        table=model_data.table,
        encoding=model_data.coded.sequences,
        label_map=model_data.label_map,
        zero_based=options.zero_based or model_data.zero_based,
    )


@dataclass
class _Conversion:
    """A conversion of files that have been opened. All methods but the local ones are collective."""

    reader: Reader
    source: list[dict[str, Any]]  # the name and the bytes of each file
    directory: Path
    comm: Communicator
    reading: ReadOptions
    writing: WriteOptions
    factors: normalization.Normalization | None  # the normalization, if it comes from another data set
    observer: ConversionObserver

    def run(self, files: Sequence[FileState]) -> list[Manifest]:
        """Read, write and publish this rank's share; `files` are their states before they were first read."""
        comm, reader, writing = self.comm, self.reader, self.writing
        # 1) Write this rank's rows to shards that still lack their labels.
        highest = HighestColumn()
        rows = self._stage_all(highest)
        with comm.fail_together():
            for file in files:
                file.require_same()

        # 2) Agree on the number of rows and columns, and on the meaning of the labels.
        labels = {label for block in rows.blocks for label in block.values[: MAX_LABELS + 1].tolist()}
        row_counts = comm.allgather(rows.n)
        n, first = sum(row_counts), sum(row_counts[: comm.rank])
        p = writing.n_features or max(1, reader.n_columns or 0, *comm.allgather(highest.columns))
        all_labels = set().union(*comm.allgather(labels))
        names = self.reading.workspace.called or ", ".join(file["name"] for file in self.source)
        for warning in reader_warnings(names, reader.warnings, comm):
            if comm.is_root:
                self.observer.cautioned(warning)
        if reader.n_columns is None:
            highest.report(n, 0 if self.reading.zero_based else 1, comm, self.observer)
        with comm.fail_together():
            if self.reading.group is not None:
                rows.number_groups(first)
            if writing.weight_file is not None:
                rows.weigh(writing.weight_file, first, n)
            label_map = reader.label_map or interpret(in_one_type([*all_labels]).tolist(), self.reading.positive)

        # 3) Deal out the rows to the parts of a split. Entries stay in memory only if the ranks have about as many.
        folders, parts = writing.folders(self.directory), [rows]
        if writing.split is not None:
            part_of = rows.split(first, writing.split, comm)
            with comm.fail_together():
                parts = rows.divide(part_of, folders, self.reading.meter)
        sizes_in_memory = comm.allgather(sum(block.shard.rows + block.shard.nnz for block in parts[0].blocks))
        if max(sizes_in_memory) * comm.size > UNEVEN * sum(sizes_in_memory):
            with comm.fail_together():
                parts[0].write_out()
        if parts[0].store is not None:
            parts[0].store.trim()
        sizes = self._sizes(parts, folders if n else [names])

        # 4) Compute the factors that normalize the rows, from the first part.
        factors = self.factors or self._fit_normalization(parts[0], sizes[0], p, names)

        # 5) Add the labels, and give the shards their final names.
        with comm.fail_together():
            entries = [part.finish(label_map, reader.label_map is not None, p) for part in parts]
        entries_of_ranks = comm.allgather(entries)
        in_memory = None
        if parts[0].store is not None:
            in_memory = self._rows_in_memory(parts[0], [of_parts[0] for of_parts in entries_of_ranks])

        # 6) Write the manifests. The data sets take the places of old ones together.
        columns_of_metadata = self.reading.row_columns
        if writing.weight_file is not None:
            columns_of_metadata = columns_of_metadata._replace(weight=Path(writing.weight_file).name)
        statistics = [part.statistics(columns_of_metadata, reader.sequences is not None, comm) for part in parts]
        with comm.fail_together():
            if comm.is_root:
                manifests = [
                    manifest.complete(
                        folder,
                        [entry for of_rank in entries_of_ranks for entry in of_rank[k]],
                        label_map=label_map,
                        zero_based=self.reading.zero_based,
                        source=self.source,
                        table=reader.table,
                        normalization=factors,
                        split=None if writing.split is None else writing.split.record(k, n),
                        statistics=statistics[k],
                        columns=reader.reports,
                        coded=self.coded,
                        in_memory=in_memory if k == 0 else None,
                    )
                    for k, folder in enumerate(folders)
                ]
                manifest.exchange(manifests)
        with comm.fail_together():
            written = [read_manifest(folder, in_memory if k == 0 else None) for k, folder in enumerate(folders)]
        columns = None if reader.reports is None else tuple(reader.reports)  # whose notes know their options
        return [replace(data_set, columns=columns) for data_set in written]

    def _stage_all(self, highest: HighestColumn) -> staging.Part:
        """Write this rank's rows to staged shards, whose entries stay in memory if there is room on all ranks."""
        comm, reader, writing, coded = self.comm, self.reader, self.writing, self.coded
        n_bytes = sum(file["bytes"] for file in self.source)
        expanded = n_bytes * (text_files.EXPANSION if reader.compressed else 1)
        # All ranks cut alike. A compressed file is in one share as a whole, and may leave other shares empty.
        shares = [share for share in reader.plan(_n_shares(expanded, comm.size, writing.n_shards)) if share] or [[]]
        my_shares = of_rank(len(shares), comm)
        part = staging.Part()
        plain = writing.compression == "none" and writing.dtype in ("float32", "float64") and not coded
        if writing.in_memory and plain and (comm.size == 1 or n_bytes >= FEW_BYTES):
            n_reserved = entries_in_memory.room(n_bytes, len(comm.node_ranks()), reader.kept_bytes)
            part.store = EntriesInMemory.reserve(n_reserved, writing.dtype)
        form = ShardForm(writing.dtype, writing.compression, coded, writing.durable)
        scratch = None if part.store is not None or coded else EntriesInMemory.reserve(SHARD_BYTES, writing.dtype)
        with comm.fail_together():
            self.reading.meter.begin("writing the shards", [byte_range for k in my_shares for byte_range in shares[k]])
            for k in my_shares:
                for number, blocks in enumerate(batches(self._read(shares[k], highest), SHARD_BYTES)):
                    numbered = k + number * len(shares)
                    stays, store = part.store is not None, part.store or scratch
                    block = staging.stage(blocks, self.directory, numbered, form, reader.has_ids, store, stays)
                    part.blocks.append(block)
                    if block.shard.in_memory is None:
                        part.write_out()  # if there was no room
                    if scratch is not None:
                        scratch.rewind()
        if not all(comm.allgather(part.store is not None)):
            with comm.fail_together():
                part.write_out()
        return part

    def _read(self, share: list[Any], highest: HighestColumn) -> Iterator[RowBlock]:
        """Yield the rows of a share, which are counted and checked. Local."""
        n_features = self.writing.n_features
        for rows in self.reader.read(share):
            highest.add(rows, share)
            if n_features is not None and rows.n_columns > n_features:
                allowed = f"{option('n_features')} or {option('like')} allows {n_features}"
                raise InputError(f"{_names(share)}: uses column {rows.n_columns} (counted from 1), but {allowed}")
            yield rows

    def _sizes(self, parts: Sequence[staging.Part], places: Sequence[Path | str]) -> list[int]:
        """Return the number of rows of each part. Raises InputError, naming the part's place, if it has no row."""
        split, sizes = self.writing.split, self.comm.sum(np.array([part.n for part in parts])).tolist()
        if 0 in sizes:
            needs = "a data set needs at least one"
            if split is not None and split.by == "groups":
                needs += f". Groups are drawn at random: try another {option('seed')}"
            elif split is not None and sum(sizes):
                shares = option("split", text="F,F")
                needs += f"; a split of {sum(sizes)} rows leaves none. Give more rows, or other shares by {shares}"
            raise InputError(f"{places[sizes.index(0)]}: there is no row to write; {needs}", True)
        return sizes

    def _fit_normalization(self, part: staging.Part, n: int, p: int, names: str) -> normalization.Normalization:
        reader = self.reader
        kind = self.writing.normalize or ("none" if reader.reports is None else "standard")
        measured = None if reader.reports is None or reader.table is None else reader.table.measured()
        n_present, weight = part.present(n, self.comm)
        if not n_present:
            raise InputError(f"{names}: all rows have weight 0", everywhere=True)
        return normalization.fit(kind, part.entries, (n_present, p), self.comm, measured, weight)

    def _rows_in_memory(self, part: staging.Part, entries_of_ranks: Sequence[Sequence[Any]]) -> RowsInMemory:
        ranks = [rank for rank, entries in enumerate(entries_of_ranks) for _ in entries]
        entries = [entry for entries in entries_of_ranks for entry in entries]
        folder = self.writing.folders(self.directory)[0]
        names = self.comm.of_root(lambda: manifest.shard_names(folder, entries))
        my_names = [name for name, rank in zip(names, ranks, strict=True) if rank == self.comm.rank]
        shards = {name: block.shard.in_memory for name, block in zip(my_names, part.blocks, strict=True)}
        return RowsInMemory(dict(zip(names, ranks, strict=True)), {k: v for k, v in shards.items() if v is not None})

    @property
    def coded(self) -> CodedColumns:
        sequences = self.reader.sequences
        return NOT_CODED if sequences is None else CodedColumns((sequences.code_map,), sequences)


def _n_shares(n_bytes: int, n_ranks: int, n_shards: int | None) -> int:
    return min(n_shards or n_ranks * max(1, -(-n_bytes // (n_ranks * SHARD_TEXT_BYTES))), n_bytes + 1)


WIDE, FEW = 2**20, 1000
"""From WIDE columns on, users learn which line has the highest index; up to FEW, a mistaken index costs nothing."""
RARE, _NEAR = 1000, 3
"""An index is far above the others if at most one row in RARE, or a single row, has one of the same size, whose binary
number is at most _NEAR digits shorter.
"""


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
        """Tell on the root which line has the highest index of n rows, and warn if it is far above. **Collective.**"""
        columns, minus_rank = max(comm.allgather((self.columns, -comm.rank)))
        near = columns.bit_length() - _NEAR
        rows = max(1, int(comm.sum(self._rows.copy())[max(near, 0) :].sum()))
        far = columns > FEW and n > 1 and rows <= max(1, n // RARE)
        if not far and columns < WIDE:
            return
        index = columns - 1 + base
        with comm.fail_together():
            place = _find(index, self.share) if comm.rank == -minus_rank else ""
        place = comm.allgather(place)[-minus_rank]
        if comm.is_root and not far:
            observer.told(f"{place}: has the highest index, {index}")
        elif comm.is_root:
            have = f"{rows} of {n} rows {'has' if rows == 1 else 'have'} one of {2 ** (near - 1) - 1 + base} or more"
            above = f"has the index {index}, which is far above the others: only {have}"
            vectors = f"A training holds many vectors of {columns} numbers ({format_bytes(8 * columns)} each)"
            observer.cautioned(f"{place}: {above}. {vectors}. If this is a mistake, correct the line and convert again")


def _find(index: int, share: Sequence[ByteRange]) -> str:
    """Return "file:line" of the first entry with this index. Local."""
    prefix = b"%d:" % index
    for byte_range in share:
        for offset, text in read_blocks(byte_range):
            at = text.find(prefix)
            while at >= 0:
                line = text[text.rfind(b"\n", 0, at) + 1 : at]
                if b"#" not in line and not line.rstrip(b"0")[-1:].isdigit():
                    return place_in(text, at, TextPosition(byte_range.path, offset))
                at = text.find(prefix, at + 1)
    return _names(share)  # the file has changed meanwhile


def _names(share: Sequence[Any]) -> str:
    return ", ".join(sorted({part.path for part in share}))
