"""Write and read snapshots of a run in its checkpoint folder. Only the root uses files; it sends vectors one by one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base import files
from distsms.base.errors import InputError
from distsms.base.typing import Floats
from distsms.base.wording import option
from distsms.optim.state import Snapshot
from distsms.parallel.vectors import Vectors
from distsms.training import checkpoint
from distsms.training.checkpoint import Checkpoint, Rows


@dataclass(frozen=True)
class CheckpointWriter:
    """Writes snapshots of a run into its checkpoint folder."""

    folder: Path  # the checkpoint folder
    problem: Mapping[str, Any]  # what must be the same in a run that is resumed from a checkpoint, ready for JSON
    about: Mapping[str, Any]  # more for people to read, such as the settings
    vectors: Vectors  # where the run's vectors live

    def __call__(self, snapshot: Snapshot) -> None:
        """Write a snapshot. If this fails, print a warning; the older checkpoints are kept, and the run continues.

        **Collective** among the ranks that run the solver. If vectors are spread over the ranks, the root needs memory
        for one whole vector.
        """
        arrays = {f"table.{name}": Rows.of(table) for name, table in snapshot.tables.items()}
        for name, vectors in snapshot.vectors.items():
            slices = list(vectors)
            rows = (self.vectors.gather(part) for part in slices)
            arrays[f"vector.{name}"] = Rows((len(slices), self.vectors.p), rows)  # type: ignore[arg-type]
        if self.vectors.comm.is_root:
            try:
                checkpoint.save(self.folder, self.problem, {**snapshot.numbers, "about": self.about}, arrays)
            except InputError as error:
                print(f"warning: no checkpoint was written: {error}; the run continues", file=sys.stderr, flush=True)
        # The other ranks take part in gathering here, and so must the root if writing has failed.
        for array in arrays.values():
            for _ in array.rows:
                pass


def opened(
    folder: Path, problem: Mapping[str, Any], resume: bool, held: contextlib.ExitStack
) -> tuple[Checkpoint | None, list[str]]:
    """Lock the checkpoint folder, and return the checkpoint to resume (or None) and lines for the user. On the root.

    `held` unlocks it when it is closed. Raises InputError if another job has locked the folder, if nothing can be
    written there, if it has a checkpoint of another problem, or if it has any checkpoint and `resume` is false,
    since the run would replace it.
    """
    held.enter_context(files.exclusive(folder))
    files.remove_partial(folder)
    for name in (checkpoint.NEWEST, checkpoint.OLDER):
        files.require_regular(folder / name)
    if not resume:
        if checkpoint.exists(folder):
            raise InputError(
                f"{folder}: holds a checkpoint; give {option('resume')} to continue its run, or remove the folder"
            )
        return None, []
    found, words = checkpoint.load(folder, problem)
    if found is None:
        return None, [f"resume    {folder} has no checkpoint: the run starts from the beginning"]
    if words:
        # Move the undamaged checkpoint to the newest place. Otherwise the next one would replace it by the damaged one.
        os.replace(found.path, newest := folder / checkpoint.NEWEST)
        found = replace(found, path=newest)
    numbers = found.numbers
    words = [f"warning   {damage}; taking the older one" for damage in words]
    so_far = f"evaluation {numbers['count']}, {numbers['seconds']:.2f} s, best J {numbers['best.J']:.8f}"
    return found, [*words, f"resume    {found.path}: {so_far}, lower bound {numbers['certificate.lower_bound']:.8f}"]


def restored(found: Checkpoint | None, vectors: Vectors) -> Snapshot | None:
    """Return the snapshot of the root's checkpoint, with this rank's slices; None if there is none. **Collective.**

    Its vectors are read when the run asks for them, once, so that they are not in memory a second time. Reading them is
    **collective** among the ranks that run the solver.
    """
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
            rows: Iterable[Floats | None] = found.rows(name) if found else [None] * shape[0]
            slices[key] = map(vectors.scatter, rows)
    return Snapshot(numbers, tables, slices)
