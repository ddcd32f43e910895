"""Score rows without keeping them: a rank holds one part of its rows at a time, and otherwise only scores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distsms.base import text_files
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.typing import Floats, Hashes
from distsms.features.rows import RowParts
from distsms.ingest import file_names, frames
from distsms.ingest.formats.registry import reader_warnings
from distsms.matrix.blocks import LocalRows
from distsms.matrix.side_by_side import SideBySide
from distsms.models import inputs
from distsms.models.inputs import AS_TRAINED, InputOptions
from distsms.models.model import Model
from distsms.models.output import ScoresPart
from distsms.shards import dataset, from_arrays, row_metadata
from distsms.shards.manifest import Manifest, read_manifest

PART_BYTES = 2**25
"""Bytes of text, or of rows in memory, that a rank scores at a time: many, since opening a part takes some 10 ms."""
ENTRY_BYTES = 12
"""The assumed bytes of memory of an entry; each row is assumed to take as many in addition."""
ROWS_IN_MEMORY = "the rows given"
"""What messages call rows without a file."""

Rows: TypeAlias = LocalRows | SideBySide
Watch: TypeAlias = Callable[[Sequence[Model], Rows, list[Floats], Floats | None], None]
"""Is called with the models, some rows of this rank as the models take them, their scores, and their weights."""


@dataclass(frozen=True)
class ScoredRows(dataset.WeighedRows):
    """The scores of consecutive rows of this rank, without the rows themselves."""

    scores: list[Floats]  # of each model, (n_local,): <w, x> + bias
    labels: NDArray[np.int8]  # (n_local,)
    weights: Floats | None = None  # (n_local,); None on every rank or, once `checked`, on none
    ids: list[str] | None = None  # (n_local,)
    first_row: int = 0  # global number of the first row
    weighted: bool = False  # whether a weight of any rank is neither 0 nor 1, once `checked`
    groups: Hashes | None = None  # (n_local,), if they are read
    notes: tuple[str, ...] = ()  # what readers of files left out or took for something else, the same on every rank


def score(
    models: Sequence[Model],
    path: str | os.PathLike[str],
    comm: Communicator,
    options: InputOptions = AS_TRAINED,
    watch: Watch | None = None,
) -> ScoredRows:
    """Score this rank's share of files by models of the same columns; `watch` sees all. **Collective.**"""
    return in_range(_Pass(models, path, options, watch).scored(comm), comm)


def score_table(
    models: Sequence[Model], frame: Any, comm: Communicator, options: InputOptions, watch: Watch | None = None
) -> ScoredRows:
    """Score a table in memory with this rank's rows and the columns of the models' training data. **Collective.**"""
    options = replace(options, called="the table")
    with comm.fail_together(), frames.frame_file(frame, options.called) as path:
        of_table = _Pass(models, path, options, watch).scored(Communicator())
    notes = dict.fromkeys(note for of_rank in comm.allgather(of_table.notes) for note in of_rank)
    return in_range(checked(replace(of_table, notes=tuple(notes)), ROWS_IN_MEMORY, comm), comm)


def score_arrays(
    models: Sequence[Model],
    X: Any,
    y: ArrayLike | None,
    comm: Communicator,
    options: InputOptions,
    watch: Watch | None = None,
    *,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> ScoredRows:
    """Score this rank's rows, which a program has in memory; without y the labels come back as 0. **Collective.**"""
    model, local_notes = models[0], list[str]()
    with comm.fail_together():
        rows = inputs.rows_in_memory(X, model, options, local_notes)
    notes = dict.fromkeys(note for of_rank in comm.allgather(local_notes) for note in of_rank)
    block = from_arrays.block(rows, y, comm, model.p, model.info["label_map"], weights, groups)
    scores = score_rows(models, block.features, block.weights, watch)
    scored = ScoredRows(scores, block.labels, block.weights, groups=block.groups, notes=tuple(notes))
    return checked(scored, ROWS_IN_MEMORY, comm)


def in_range(scored: ScoredRows, comm: Communicator) -> ScoredRows:
    """Return `checked` scores with weights of a size that measures can be computed with, and with a group of its own
    for each row that has none, by its number. **Collective.**"""
    weights = None if scored.weights is None else row_metadata.in_range(scored.weights, comm)
    groups = None if scored.groups is None else row_metadata.own_groups(scored.groups, scored.first_row)
    return replace(scored, weights=weights, groups=groups)


def score_in_parts(
    model: Model,
    path: str | os.PathLike[str],
    comm: Communicator,
    options: InputOptions,
    progress: Callable[[int, int], None] = lambda done, of: None,
    notes: list[str] | None = None,
    watch: Watch | None = None,
) -> Iterator[ScoresPart]:
    """Yield the scores and names (or None) of the rows; all ranks must take all parts, in rank order in each step,
    after which `progress` is called. At the end `notes` gets what readers left out. **Collective.**"""
    row = 0
    reading = _Pass([model], path, options, watch, in_turns=True, notes=[] if notes is None else notes)
    for step, (part, steps) in enumerate(reading.parts(comm), 1):
        scored = checked(part, path, comm, row)
        yield ScoresPart(scored.scores[0], scored.ids)
        row += sum(comm.allgather(len(scored.labels)))
        progress(step, steps)


def checked(scored: ScoredRows, path: str | os.PathLike[str], comm: Communicator, row: int = 0) -> ScoredRows:
    """Return the scores, numbered from `row` of rank 0 on; InputError for some that are not finite. **Collective.**"""
    weights, groups = scored.weights, scored.groups
    first = row + sum(comm.allgather(len(scored.labels))[: comm.rank])
    with comm.fail_together():
        for scores in scored.scores:
            for place in np.flatnonzero(~np.isfinite(scores))[:1]:
                fault = f"has the score {scores[place]}: its values are too large for this model, or missing"
                raise InputError(f"{path}: row {first + place} (counted from 0) {fault}")
    weighted = any(comm.allgather(dataset.other_weights(weights)))
    if any(comm.allgather(weights is not None)) and weights is None:  # a rank without rows
        weights = np.ones(len(scored.labels))
    if any(comm.allgather(groups is not None)) and groups is None:
        groups = np.empty(0, np.uint64)
    return replace(scored, first_row=first, weights=weights, weighted=weighted, groups=groups)


def score_rows(
    models: Sequence[Model], rows: Rows, weights: Floats | None = None, watch: Watch | None = None
) -> list[Floats]:
    """Return each model's scores <w, x> + bias of local rows, (n_local,), and show them to `watch`. Local."""
    scores = rows.margins([model.w for model in models])
    scores += np.array([[model.bias] for model in models])
    if watch is not None:
        watch(models, rows, list(scores), weights)
    return list(scores)


@dataclass
class _Pass:
    """One reading of the rows: with `in_turns` part k, with names, by rank k % size; else consecutive parts."""

    models: Sequence[Model]
    path: str | os.PathLike[str]
    options: InputOptions
    watch: Watch | None = None
    in_turns: bool = False
    notes: list[str] = field(default_factory=list)  # what readers left out, once all parts are read

    def scored(self, comm: Communicator) -> ScoredRows:
        """Return all rows of this rank as one part, numbered, with the weights as they are. **Collective.**"""
        rows = _joined([part for part, _ in self.parts(comm)], len(self.models))
        return checked(replace(rows, notes=tuple(self.notes)), self.path, comm)

    def parts(self, comm: Communicator) -> Iterator[tuple[ScoredRows, int]]:
        """Yield the scored parts of this rank, not yet numbered, and how many: equally many on each. **Collective.**"""
        files = comm.of_root(lambda: file_names.files_of(self.path))  # a folder may get another one meanwhile
        if not file_names.is_data_set(files[0]):
            return self._of_files(files, comm)
        with comm.fail_together():
            manifest = read_manifest(self.path)
            inputs.check_data_set(manifest, self.models[0], self.options)
        model = self.models[0]
        as_trained = manifest.coded or (model.features is None and not inputs.missing_offsets(model, manifest.table))
        return self._of_set(manifest, comm) if as_trained else self._of_columns(manifest, comm)

    def _of_set(self, manifest: Manifest, comm: Communicator) -> Iterator[tuple[ScoredRows, int]]:
        model, options = self.models[0], self.options
        n, entries = manifest.n, manifest.entries(manifest.n, manifest.nnz)
        numbers, n_parts = self._numbers(ENTRY_BYTES * (n + entries) + manifest.coded.row_bytes * n, comm)
        has_groups = options.groups and manifest.group is not None
        for k in numbers:
            block = dataset.load(manifest, comm, model.p, options.ignore_new, model.normalization.by_row, (k, n_parts))
            with comm.fail_together():
                last = block.first_row + len(block.labels)
                ids = dataset.read_ids(manifest, block.first_row, last) if self.in_turns else None
                groups = dataset.read_groups(manifest, block.first_row, last) if has_groups else None
            of_models = score_rows(self.models, block.features, block.weights, self.watch)
            scored = ScoredRows(of_models, block.labels, block.weights, ids, groups=groups)
            del block  # before the next one is loaded
            yield scored, len(numbers)

    def _of_columns(self, manifest: Manifest, comm: Communicator) -> Iterator[tuple[ScoredRows, int]]:
        """Yield parts of a data set without codes whose rows are not stored as the models take them."""
        model = self.models[0]
        offsets = len(inputs.missing_offsets(model, manifest.table))
        row_bytes = model.coded.row_bytes + ENTRY_BYTES * (1 + offsets + len(model.coded.maps))
        numbers, n_parts = self._numbers(ENTRY_BYTES * manifest.nnz + row_bytes * manifest.n, comm)
        has_groups, has_ids = self.options.groups and manifest.group is not None, self.in_turns and manifest.ids
        for k in numbers:
            blocks = list[ScoredRows]()
            with comm.fail_together():
                first, last = (manifest.n * number // n_parts for number in (k, k + 1))
                for part in RowParts(manifest, first, last, model.p_original):
                    X = inputs.as_scored(part.X, model, part.shard.path, manifest.table)
                    groups = part.shard.read_groups(part.place) if has_groups else None
                    ids = part.shard.read_ids(part.place) if has_ids else None
                    scores = score_rows(self.models, X, part.weights, self.watch)
                    blocks.append(ScoredRows(scores, part.labels, part.weights, ids, groups=groups))
            yield _joined(blocks, len(self.models), has_ids), len(numbers)

    def _of_files(self, names: list[str], comm: Communicator) -> Iterator[tuple[ScoredRows, int]]:
        """Yield a rank's share of files as one part, whose blocks are scored as they are read."""
        with comm.fail_together():
            files = file_names.states(names, self.options.label, self.options.id, self.options.weight)
        file_names.require_common(files, comm)
        reader = inputs.reader_for(self.models[0], names, comm, self.options)
        with comm.fail_together():
            size = sum(file.size for file in files[: len(names)])
            n_bytes = size * (text_files.EXPANSION if reader.compressed else 1)
            numbers, n_parts = self._numbers(n_bytes if self.in_turns else 0, comm)
            shares = reader.plan(n_parts)
        has_ids = self.in_turns and reader.has_ids
        for k in numbers:
            blocks = list[ScoredRows]()
            with comm.fail_together():
                for rows in reader.read(shares[k]):
                    X = inputs.to_features(rows, self.models[0], self.path, self.options, reader.table)
                    signs, weights = rows.labels.astype(np.int8), rows.metadata.weights
                    scores, ids = score_rows(self.models, X, weights, self.watch), rows.ids if has_ids else None
                    blocks.append(ScoredRows(scores, signs, weights, ids, groups=rows.metadata.groups))
                    del rows, X  # before the next ones are read
            yield _joined(blocks, len(self.models), has_ids), len(numbers)
        with comm.fail_together():
            for file in files:
                file.require_same()
        self.notes += reader_warnings(self.options.called or self.path, reader.warnings, comm)

    def _numbers(self, n_bytes: int, comm: Communicator) -> tuple[range, int]:
        """Return which parts this rank reads, and how many parts of about PART_BYTES all ranks have."""
        each = max(1, -(-n_bytes // (PART_BYTES * comm.size)))
        n_parts = each * comm.size
        if self.in_turns:
            return range(comm.rank, n_parts, comm.size), n_parts
        return range(comm.rank * each, (comm.rank + 1) * each), n_parts


def _joined(parts: list[ScoredRows], models: int, has_ids: bool = False) -> ScoredRows:
    """Return consecutive parts as one."""
    if len(parts) == 1:
        return parts[0]
    weights = [part.weights for part in parts if part.weights is not None]
    groups = [part.groups for part in parts if part.groups is not None]
    return ScoredRows(
        [np.concatenate([np.empty(0), *(part.scores[k] for part in parts)]) for k in range(models)],
        np.concatenate([np.empty(0, np.int8), *(part.labels for part in parts)]),
        np.concatenate(weights) if weights else None,
        [name for part in parts for name in part.ids or ()] if has_ids else None,
        groups=np.concatenate(groups) if groups else None,
    )
