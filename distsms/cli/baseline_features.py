"""The methods of `distsms baseline` on features, which are made for each fold from its training rows."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from distsms.cli.baseline_recorder import FitRecorder
    from distsms.optim.settings import Settings
    from distsms.parallel.communicator import Communicator
    from distsms.shards.manifest import Manifest
    from distsms.workflow.baseline import BaselineStore, FitSpec

MOST_ATTRIBUTES = 32
"""Crosses are tried if there are at most this many attributes, which have 496 pairs."""
MOST_COLUMNS = 500
"""Leaves are tried if there are at most this many columns, since the trees try all of them at each node."""


def leave_out_unsuitable(args: argparse.Namespace, manifest: Manifest, comm: Communicator) -> list[str]:
    """Leave out the methods on features that do not suit the data, unless the user named them. **Collective.**

    Returns lines that say so.

    Raises
    ------
    InputError
        On all ranks, if the user named such a method and the data have codes already.
    """
    from distsms.features.build import refuse_codes
    from distsms.features.fit import count_attributes
    from distsms.workflow.competitors import METHODS

    kinds = {METHODS[name].features for name in args.methods} - {""}
    if not kinds:
        return []
    if args.named:
        with comm.fail_together():
            refuse_codes(manifest)
        return []
    why = dict.fromkeys(kinds, "")
    if manifest.coded:
        why = dict.fromkeys(kinds, "the data have no columns to make features from, but codes")
    elif manifest.p > MOST_COLUMNS:
        why = dict.fromkeys(kinds, f"more than {MOST_COLUMNS} columns take long")
    elif "crosses" in kinds and (found := count_attributes(manifest, comm)) > MOST_ATTRIBUTES:
        why["crosses"] = f"{found} attributes have many pairs, and more than {MOST_ATTRIBUTES} take long"
    lines = []
    for kind in sorted(kind for kind in kinds if why[kind]):
        names = [name for name in args.methods if METHODS[name].features == kind]
        lines.append(f"left out  {', '.join(names)}: {why[kind]}; --methods with these names tries them")
    args.methods = [name for name in args.methods if not why.get(METHODS[name].features)]
    return lines


def run(
    args: argparse.Namespace,
    identity: dict[str, Any],
    lambdas: list[float],
    settings: Settings,
    manifest: Manifest,
    missing: Sequence[FitSpec],
    store: BaselineStore,
    recorder: FitRecorder,
    stop_wanted: Callable[[], bool],
    comm: Communicator,
    say: Callable[[str], None],
) -> bool:
    """Make the missing fits of the methods on features; return whether they were stopped. **Collective.**

    Raises
    ------
    InputError
        On all ranks, if features cannot be made, or --memory is too little.
    """
    import shutil

    from distsms.cli import baseline_plan
    from distsms.cli.progress import TaskProgress
    from distsms.features import arrays
    from distsms.workflow import distributed_fits
    from distsms.workflow.competitors import METHODS
    from distsms.workflow.fold_features import FOLDER, FoldFeatures
    from distsms.workflow.path import PathRows, Problem

    progress, neighbours = TaskProgress(comm.is_root and not args.quiet), comm.node_ranks()

    def show(text: str) -> None:
        progress.close()
        say(text)

    for kind in dict.fromkeys(METHODS[spec.method].features for spec in missing):
        methods = list(dict.fromkeys(spec.method for spec in missing if METHODS[spec.method].features == kind))
        whole = Problem(identity["measure"], lambdas, identity["folds"], identity["seed"], settings)
        whole = replace(whole, folds_by=identity["folds_by"])
        where, most = store.path / FOLDER / kind, math.inf if args.memory is None else args.memory
        made = FoldFeatures(manifest, arrays.options(kind), where, whole, comm, progress, show, most)
        for fold in range(1, whole.folds + 1):
            made.manifest(fold)
            if any(comm.allgather(stop_wanted())):
                return True
        with comm.fail_together():
            how = args, identity, lambdas, settings, made.manifest(1), methods, comm.size, neighbours, True
            plans = baseline_plan.plans(*how)
        plan = max((plan for plan, _ in plans.values()), key=lambda plan: plan.needs.least(comm.size, True))
        made.budget, made.with_groups = plan.room(comm.is_root), whole.needs_groups
        problems = {name: problem for name, (_, problem) in plans.items()}
        rows = PathRows(made.rows, comm)
        if distributed_fits.run(
            rows, problems, missing, recorder.keep, stop_wanted, recorder.begin_method, made.seconds
        ):
            return True
    comm.barrier()
    if comm.is_root:
        shutil.rmtree(store.path / FOLDER, ignore_errors=True)
    return False
