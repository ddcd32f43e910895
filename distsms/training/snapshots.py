"""A run's snapshots to and from its checkpoint folder: the root writes and reads, vectors travel one at a time."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distsms.errors import InputError
from distsms.optim.state import Snapshot
from distsms.parallel.vectors import Vectors
from distsms.training import checkpoint
from distsms.training.checkpoint import Checkpoint, Rows
from distsms.utils import files


@dataclass(frozen=True)
class CheckpointWriter:
    """Keeps snapshots. problem : what may not differ in a run that goes on from them; about : words for people."""

    folder: Path
    problem: Mapping[str, Any]
    about: Mapping[str, Any]
    vectors: Vectors

    def __call__(self, snapshot: Snapshot) -> None:
        """Write a snapshot; where that fails, a warning, and what was there is still there.

        Collective among the ranks that step. A vector (p,) more on the root, where it has only slices.
        """
        arrays = {f"table.{name}": Rows.of(table) for name, table in snapshot.tables.items()}
        for name, slices in snapshot.vectors.items():
            rows = (self.vectors.gather(one) for one in slices)
            arrays[f"vector.{name}"] = Rows((len(slices), self.vectors.p), rows)  # type: ignore[arg-type]
        if self.vectors.comm.is_root:
            try:
                checkpoint.save(self.folder, self.problem, {**snapshot.numbers, "about": self.about}, arrays)
            except InputError as error:
                print(f"warning: no checkpoint: {error}; the run goes on", file=sys.stderr, flush=True)
        for array in arrays.values():  # the others' part in it, and the root's where writing has failed
            for _ in array.rows:
                pass


def opened(
    folder: Path, problem: Mapping[str, Any], resume: bool, held: contextlib.ExitStack
) -> tuple[Checkpoint | None, list[str]]:
    """Make the folder ready and hold it; the checkpoint to go on from, if there is one, and words on it. On the root.

    Raises InputError if another job holds it, nothing can be written there, it has a checkpoint of another problem, or
    one that a run which starts anew would replace.
    """
    held.enter_context(files.exclusive(folder))
    files.remove_partial(folder)
    for name in (checkpoint.NEWEST, checkpoint.OLDER):
        files.require_regular(folder / name)
    if not resume:
        if checkpoint.exists(folder):
            raise InputError(f"{folder}: holds a checkpoint; --resume goes on from it, or remove the folder")
        return None, []
    found, words = checkpoint.load(folder, problem)
    if found is None:
        return None, [f"resume    {folder} holds no checkpoint: the run starts anew"]
    if words:  # the good one becomes the newest: the next checkpoint must not put a damaged one in its place
        os.replace(found.path, newest := folder / checkpoint.NEWEST)
        found = replace(found, path=newest)
    numbers = found.numbers
    words = [f"warning   {one}; taking the older one" for one in words]
    so_far = f"evaluation {numbers['count']}, {numbers['seconds']:.2f} s, best J {numbers['best.J']:.8f}"
    return found, [*words, f"resume    {found.path}: {so_far}, lower bound {numbers['certificate.lower_bound']:.8f}"]


def restored(found: Checkpoint | None, vectors: Vectors) -> Snapshot | None:
    """The snapshot in the root's checkpoint, as ranks that step hold it; None where the root has none. Collective."""
    shapes = vectors.comm.bcast(found and found.shapes)
    if shapes is None:
        return None
    numbers = vectors.comm.bcast(found and found.numbers)
    tables: dict[str, Any] = {}
    slices: dict[str, Any] = {}
    for name, shape in shapes.items():
        kind, _, key = name.partition(".")
        if kind == "table":
            tables[key] = vectors.comm.broadcast(found.array(name) if found else np.empty(shape))
        else:
            rows = found.rows(name) if found else [None] * shape[0]
            slices[key] = [vectors.scatter(row) for row in rows]
    return Snapshot(numbers, tables, slices)
