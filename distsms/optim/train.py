"""Minimizing J over all ranks' rows to a proved gap: who steps and who serves, and in which variables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distsms.errors import InputError
from distsms.optim.objective import Objective
from distsms.optim.result import Result
from distsms.optim.run import Keeper, TrainingRun, Watcher
from distsms.optim.settings import Settings
from distsms.optim.state import Snapshot
from distsms.parallel.vectors import NOT_SPREADABLE
from distsms.utils.typing import Floats


def train(
    objective: Objective,
    settings: Settings,
    w: Floats | None = None,
    watch: Watcher = lambda state, w: None,
    keep: Keeper = lambda snapshot: None,
    snapshot: Snapshot | None = None,
) -> Result:
    """Minimize J over all ranks' rows from w (p,), by default 0. Collective; the settings are the same on every rank.

    watch : called after every evaluation, on each rank that steps (see `distsms.parallel.vectors`), with the state and
    this rank's slice of the best w so far, not to be changed. The run's seconds, and its time limit, do not count what
    watching takes.
    keep : called likewise with a snapshot of the run, every `settings.checkpoint_every` seconds and when it ends.
    snapshot : what `keep` had from a run of the same problem, solver and smoothing, on any number of ranks; this one
    goes on from there, not from w. Evaluations and seconds add up; the time limit is for this one alone.
    Raises InputError if the solver needs a smoothed risk and the loss has none, or whole vectors, and they are spread.
    Memory beyond the data: `Settings.vectors_held` on each rank that steps, two vectors (p,) on each.
    """
    comm, vectors = objective.comm, objective.vectors
    scale, found = scale_of(objective, settings), None
    if vectors.runs_solver:
        start = np.zeros(vectors.length) if w is None else np.array(vectors.local_slice(w), float)
        found = TrainingRun(objective, settings, scale, watch, keep).run(start, snapshot)
        objective.release()
    else:
        objective.serve()
    best = vectors.allgather(found.w if found else None)
    return replace(comm.bcast(found and replace(found, w=np.empty(0))), w=best)


def scale_of(objective: Objective, settings: Settings) -> Floats | None:
    """What the solver's variables are multiplied by to give w, a slice; None if its variables are w. Collective.

    Raises InputError if the solver needs a smoothed risk and the loss has none, or whole vectors, and they are spread.
    """
    settings.check_measure(objective.losses[0].name, objective.losses[0].smooth)
    if objective.vectors.longest < objective.p and not settings.traits.spreadable:
        raise InputError(NOT_SPREADABLE, everywhere=True)
    if not (settings.traits.scaled and settings.scaling):
        return None
    with objective.clock.phase("scaling"):
        moments = objective.second_moments()
        return np.where((moments > 0) & np.isfinite(moments), moments, 1.0) ** -settings.scaling
