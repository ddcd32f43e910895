"""The option `--features`, and the data sets with features that `distsms path` makes for its folds."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from distsms.features.candidates import RAW, Candidate, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distsms.parallel.communicator import Communicator
    from distsms.shards.manifest import Manifest
    from distsms.workflow.fold_features import FoldFeatures
    from distsms.workflow.path import Problem
    from distsms.workflow.path_store import PathStore


def candidate(text: str) -> Candidate:
    """Parse `raw`, `leaves`, or options such as bins=16,crosses=all."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_features(parser: argparse.ArgumentParser) -> None:
    """Add the option `--features`."""
    parser.add_argument(
        "--features",
        nargs="+",
        action="extend",
        type=candidate,
        metavar="FEATURES",
        help="Make features from the columns, for each fold from the rows outside of it: bins, crosses (of all pairs of"
        " bins), leaves or trees (of 100 trees), or options of `distsms features` such as bins=16,crosses=top:20 or"
        " trees=300,min-leaf=5,keep. raw are the columns themselves. If there are several, the folds choose one"
        " (default: raw).",
    )


def different(given: Sequence[Candidate] | None) -> list[Candidate]:
    """Return the candidates without those that make the same features as one before."""
    found = list[Candidate]()
    for own in given or [Candidate(RAW, None)]:
        found += [] if any(own.options == other.options for other in found) else [own]
    return found


def made_for_folds(
    chosen: Candidate,
    manifest: Manifest,
    folder: PathStore,
    problem: Problem,
    comm: Communicator,
    quiet: bool,
    memory: float | None,
    say: Callable[[str], None],
) -> FoldFeatures | None:
    """Return the data sets with features that the models of a path are trained on; None for raw. **Collective.**"""
    from distsms.cli.progress import TaskProgress
    from distsms.features import arrays
    from distsms.workflow.fold_features import FOLDER, FoldFeatures

    if chosen.options is None:
        return None
    progress = TaskProgress(comm.is_root and not quiet)

    def show(text: str) -> None:
        progress.close()
        say(text)

    options = arrays.options(chosen.options)
    most = math.inf if memory is None else memory
    return FoldFeatures(manifest, options, folder.path / FOLDER, problem, comm, progress, show, most)
