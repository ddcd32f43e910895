"""Rows that are only scored: a rank holds one part of them, and of the others what models say of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.data.formats import text_files
from distsms.data.formats.registry import tell
from distsms.data.shards import dataset
from distsms.errors import InputError
from distsms.inference import inputs
from distsms.inference.inputs import AS_TRAINED, InputOptions
from distsms.inference.model import Model
from distsms.matrix.local import Features, SparseRows
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats

PART_BYTES = 2**25
"""Text, or rows as they are in memory, that a rank scores at a time: large against some 10 ms to find and open them."""
ENTRY_BYTES = 12
"""What an entry takes in memory, and more or less a row besides."""


class Scored(NamedTuple):
    """Consecutive rows of this rank by what models say of them; the rows themselves are gone."""

    scores: list[Floats]  # <w, x> + bias of each model, (n_local,)
    labels: NDArray[np.int8]  # (n_local,)
    counted: NDArray[np.bool_]  # (n_local,): all but those of weight 0
    ids: list[str] | None = None
    first_row: int = 0  # global number of the first one

    def judged(self, k: int = 0) -> tuple[Floats, NDArray[np.int8]]:
        """The scores of the k-th model, and the labels, of those rows that count; copied only if not all do."""
        if self.counted.all():
            return self.scores[k], self.labels
        return self.scores[k][self.counted], self.labels[self.counted]


def score(
    models: Sequence[Model],
    path: str | os.PathLike[str],
    comm: Communicator,
    how: InputOptions = AS_TRAINED,
) -> Scored:
    """This rank's share of a data set or a file, scored in one pass by models that want the same rows. Collective.

    Memory: one part of the rows, and twice the result, which has 8 bytes for each row and model.
    Raises InputError where the rows use columns that the models do not have, naming file and column, where their
    labels contradict the models', or where a score is not finite.
    """
    wanted = _Pass(models, path, how, False)
    return checked(_joined(list(wanted.parts(comm)), len(models)), path, comm)


def score_in_turns(
    model: Model, path: str | os.PathLike[str], comm: Communicator, how: InputOptions
) -> Iterator[tuple[Floats, list[str] | None]]:
    """Scores, and names of the rows if they have some: of a part of the rows on each rank, in rank order, in turns.

    Collective at every step, until the rows end on all ranks; memory: one part. Raises InputError as `score` does.
    """
    row = 0
    for part in _Pass([model], path, how, True).parts(comm):
        found = checked(part, path, comm, row)
        yield found.scores[0], found.ids
        row += sum(comm.allgather(len(found.labels)))
    if not row and comm.is_root:
        print(f"warning: {path}: has no rows, and so there are no scores", file=sys.stderr, flush=True)


def checked(found: Scored, path: str | os.PathLike[str], comm: Communicator, row: int = 0) -> Scored:
    """The same in its place, where the ranks' rows begin with number `row`. Collective.

    Raises InputError, naming the row, if a score is not finite.
    """
    first = row + sum(comm.allgather(len(found.labels))[: comm.rank])
    with comm.fail_together():
        for one in found.scores:
            _require_finite(one, first, path)
    return found._replace(first_row=first)


def scores(models: Sequence[Model], rows: Features) -> list[Floats]:
    """Each model's scores <w, x> + bias of local rows, (n_local,). Local."""
    found = rows.margins([one.w for one in models])
    found += np.array([[one.bias] for one in models])
    return list(found)


class _Pass(NamedTuple):
    """What is read, for which models, and whether each rank reads its share or all of them in turns, with names."""

    models: Sequence[Model]
    path: str | os.PathLike[str]
    how: InputOptions
    in_turns: bool

    def parts(self, comm: Communicator) -> Iterator[Scored]:
        """The rows part by part, on each rank as many; not yet in their place. Collective at every step."""
        return self._of_set(comm) if Path(self.path).is_dir() else self._of_file(comm)

    def _of_set(self, comm: Communicator) -> Iterator[Scored]:
        p, how = self.models[0].p, self.how
        with comm.fail_together():
            manifest = dataset.read_manifest(self.path)
            inputs.check_set(manifest, self.models[0], how)
        numbers, of = self._numbers(ENTRY_BYTES * (manifest.n + manifest.nnz), comm)
        for k in numbers:
            block = dataset.load(manifest, comm, p, how.ignore_new, self.models[0].normalization.by_row, (k, of))
            with comm.fail_together():
                last = block.first_row + len(block.labels)
                ids = dataset.read_ids(manifest, block.first_row, last) if self.in_turns else None
            scored = Scored(scores(self.models, block.features), block.labels, block.counted, ids)
            del block  # before the next one is loaded
            yield scored

    def _of_file(self, comm: Communicator) -> Iterator[Scored]:
        """A rank's share of a file is one part, whose blocks are scored as they are read."""
        reader = inputs.reader_for(self.models[0], self.path, comm, self.how)
        with comm.fail_together():
            n_bytes = os.path.getsize(self.path) * (text_files.EXPANSION if reader.compressed else 1)
            numbers, of = self._numbers(n_bytes if self.in_turns else 0, comm)
            shares = reader.plan(of)
        for k in numbers:
            found, names = list[Scored](), list[str]()
            with comm.fail_together():
                for rows in reader.read(shares[k]):
                    X = SparseRows.of(inputs.matrix(rows, self.models[0], self.path, self.how))
                    X.normalize(self.models[0].normalization.by_row)
                    signs = rows.labels.astype(np.int8)
                    found.append(Scored(scores(self.models, X), signs, np.ones(len(signs), bool)))
                    names += (rows.ids or []) if self.in_turns else []
                    del rows, X  # before the next ones are read
            yield _joined(found, len(self.models))._replace(ids=names if self.in_turns and reader.named else None)
        if not self.how.quiet:
            tell(self.path, reader.notes, comm)

    def _numbers(self, n_bytes: int, comm: Communicator) -> tuple[range, int]:
        """Which parts are this rank's, of how many of about PART_BYTES each."""
        each = max(1, -(-n_bytes // (PART_BYTES * comm.size)))
        of = each * comm.size
        return range(comm.rank, of, comm.size) if self.in_turns else range(comm.rank * each, (comm.rank + 1) * each), of


def _joined(parts: list[Scored], models: int) -> Scored:
    """Parts, one after the other, as one, without names."""
    if len(parts) == 1:
        return parts[0]
    return Scored(
        [np.concatenate([np.empty(0), *(one.scores[k] for one in parts)]) for k in range(models)],
        np.concatenate([np.empty(0, np.int8), *(one.labels for one in parts)]),
        np.concatenate([np.empty(0, bool), *(one.counted for one in parts)]),
    )


def _require_finite(found: NDArray[np.float64], first_row: int, path: str | os.PathLike[str]) -> None:
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise InputError(
            f"{path}: row {first_row + bad[0]} (counted from 0) has the score {found[bad[0]]}: its values are too "
            "large for this model"
        )
