"""Solve a problem by distsms, in this process and on all ranks, with each combination of solver and settings."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats
from distsms.losses import registry
from distsms.matrix import normalization
from distsms.matrix.arrays import as_features
from distsms.matrix.augmented import WithBias
from distsms.optim.objective import Objective
from distsms.optim.result import Result, State, Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel.mpi import as_communicator
from distsms.parallel.vectors import make_vectors
from distsms.training import checkpoint
from scripts.experiments.attacks import oracle
from scripts.experiments.attacks.problems import Problem, Way


class Run(NamedTuple):
    """The result of solving a problem in one way.

    highest : the highest lower bound of all evaluations. target : the gap to prove. warned : the first warning of
    NumPy, or "".
    """

    way: Way
    result: Result
    highest: float
    target: float
    warned: str


def held(problem: Problem, mine: slice = slice(None)) -> Any:
    """Return some of the rows as features, with the normalization that is computed from all rows. Local."""
    X = problem.X[mine]
    features = as_features(sparse.csr_matrix(X) if problem.seed % 2 else X)
    if problem.normalization != "none":
        entries = [(np.arange(len(row)), row) for row in problem.X]
        n, p = problem.X.shape
        how = normalization.fit(problem.normalization, lambda: entries, (n, p), Communicator())
        features.normalize(how)
    return features


def rows(problem: Problem) -> oracle.Point:
    """Return the rows of the objective exactly: x_ij times the factors of column and row, and the constant column."""
    features, (n, p) = held(problem), problem.X.shape
    by_column = oracle.whole(features.column_factors if len(features.column_factors) else np.ones(p))
    by_row = oracle.whole(features.row_factors if len(features.row_factors) else np.ones(n))
    X = oracle.whole(problem.X)
    made = oracle.Point(X.whole * by_column.whole * by_row.whole[:, None], X.unit * by_column.unit * by_row.unit)
    if problem.bias is None:
        return made
    constant = oracle.whole(np.full((n, 1), problem.bias))
    unit = min(made.unit, constant.unit)
    parts = [block.whole * int(block.unit / unit) for block in (made, constant)]
    return oracle.Point(np.hstack(parts), unit)


def run(problem: Problem, way: Way, comm: Communicator) -> Run:
    """Solve a problem in one way. Collective. The result is the same on all ranks.

    An exception of the training is not caught, and may be raised on some ranks only.
    """
    settings = Settings(lam=problem.lam, epsilon=problem.epsilon, relative=problem.relative, **way.settings)
    bounds: list[float] = []
    found: Result | None = None
    with tempfile.TemporaryDirectory(prefix="distsms-") as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        for start, ranks in enumerate(way.ranks):
            most = way.stops[start] if start < len(way.stops) else settings.max_evaluations
            part = replace(settings, max_evaluations=most, checkpoint_every=1e9 if way.stops else None)
            some = _first(comm, min(ranks, comm.size))
            if some is not None:
                found = _started(problem, way, part, some, Path(folder), bounds, start)
            found = comm.bcast(found)
            if found.status is not Status.LIMIT:
                break
    assert found is not None
    highest = comm.bcast(max(bounds, default=-np.inf))
    warned = comm.bcast(str(caught[0].message) if caught else "")
    return Run(way, found, max(highest, found.lower_bound), settings.target(found.J), warned)


def _started(
    problem: Problem, way: Way, settings: Settings, comm: Communicator, folder: Path, bounds: list[float], start: int
) -> Result:
    """Start a run, or resume it from the checkpoint in the root's folder if `start` > 0. Collective."""

    def watch(state: State, w: Floats) -> None:
        bounds.append(state.lower_bound)

    mine = problem.share(comm.rank, comm.size)
    features = held(problem, mine)
    if problem.bias is not None:
        features = WithBias(features, problem.bias)
    loss = registry.make_loss(problem.measure, way.ordering, problem.y[mine], None, comm)
    vectors = make_vectors(way.step, features.shape[1], comm)
    try:
        keep = checkpoint.CheckpointWriter(folder, {}, {}, vectors)
        kept = checkpoint.load(folder, {})[0] if start and comm.is_root else None
        snapshot = checkpoint.restored(kept, vectors) if start else None
        return minimize(Objective(features, [loss], comm, vectors=vectors), settings, None, watch, keep, snapshot)
    finally:
        vectors.close()


@cache
def _subset(comm: Communicator, ranks: int) -> Communicator | None:
    taken = comm.rank < ranks
    part = comm.mpi_comm.Split(int(taken), comm.rank)
    return as_communicator(part) if taken else None


def _first(comm: Communicator, ranks: int) -> Communicator | None:
    """Return a communicator of the first `ranks` ranks; None on the others. Collective in the first call."""
    return comm if ranks == comm.size else _subset(comm, ranks)
