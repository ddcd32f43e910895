"""The lambda of a training: that of a run that is resumed, or one that is chosen automatically."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from distsms.cli.types import positive

if TYPE_CHECKING:
    from collections.abc import Callable

    from distsms.data.shards.manifest import Manifest
    from distsms.parallel.communicator import Communicator
    from distsms.selection.auto_lambda import LambdaChoice
    from distsms.training.task import TrainingTask


def number_or_auto(text: str) -> float | str:
    """Parse a positive number, or the word auto."""
    try:
        return text if text == "auto" else positive(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; auto chooses it") from error


def of_checkpoint(folder: Path) -> float | None:
    """Return the lambda of the run that is to be resumed; None if the folder has no readable checkpoint. Local."""
    from distsms.errors import InputError
    from distsms.training import checkpoint

    for name in (checkpoint.NEWEST, checkpoint.OLDER):
        try:
            return float(checkpoint.read(folder / name).problem["lambda"])
        except (FileNotFoundError, InputError, KeyError):
            continue
    return None


def made_from_table(manifest: Manifest) -> bool:
    """Return whether a data set was made from CSV or Parquet files, so that lambda is chosen automatically."""
    from distsms.data.formats.registry import format_of

    return any(format_of(str(file.get("name", ""))) == "table" for file in manifest.source)


def choose(
    task: TrainingTask,
    memory: float | None,
    comm: Communicator,
    stop_wanted: Callable[[], bool],
    say: Callable[[str], None],
) -> LambdaChoice:
    """Choose the lambda of a task by cross-validation on a sample, and print it with the reason. **Collective.**"""
    from distsms.data.shards.row_memory import MemoryBudget
    from distsms.selection.auto_lambda import choose_lambda

    manifest = task.manifest
    assert manifest is not None
    budget = None if memory is None else MemoryBudget(int(memory / 2))
    how = task.settings, task.bias, task.ordering, task.step
    chosen = choose_lambda(manifest, task.measure, comm, *how, stop_wanted=stop_wanted, budget=budget)
    say(f"lambda    {chosen.lam:g}, chosen automatically in {chosen.seconds:.1f} s: {chosen.reason}")
    return chosen
