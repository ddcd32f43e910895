"""Problems solved by distsms in this process, in the ways that were drawn, on all the ranks that there are."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms import checkpoint, keeping, losses, normalization
from distsms.bias import WithConstant
from distsms.comm import Communicator, communicator
from distsms.features import rows_of
from distsms.objective import Objective
from distsms.result import Result, State, Status
from distsms.settings import Settings
from distsms.training import train
from distsms.vectors import make_vectors
from scripts.attacks.problems import Problem, Way

Floats = NDArray[np.float64]


class Run(NamedTuple):
    """How a way of solving a problem ended. highest : of all lower bounds that were told; warned : what NumPy said."""

    way: Way
    result: Result
    highest: float
    target: float
    warned: str


def rows(problem: Problem) -> Floats:
    """The rows that the problem's numbers are about: normalized, with the constant of a bias; (n, p) or (n, p + 1)."""
    X = problem.X
    if problem.normalization == "l2":
        lengths = np.sqrt(np.sum(X * X, axis=1))
        X = X / np.where(lengths > 0, lengths, 1.0)[:, None]
    elif problem.normalization != "none":
        entries = [(np.arange(X.shape[1]), row) for row in X]
        how = normalization.measure(problem.normalization, lambda: entries, X.shape, Communicator())
        assert how.scale is not None
        X = X * how.scale
    return X if problem.bias is None else np.column_stack([X, np.full(len(X), problem.bias)])


def run(problem: Problem, way: Way, comm: Communicator) -> Run:
    """Solve it. Collective; what comes back is the same on all ranks.

    Raises what training raises, on the ranks that it is raised on.
    """
    settings = Settings(lam=problem.lam, epsilon=problem.epsilon, relative=problem.relative, **way.settings)
    told: list[float] = []
    found: Result | None = None
    with tempfile.TemporaryDirectory(prefix="distsms-") as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        for start, ranks in enumerate(way.ranks):
            most = way.stops[start] if start < len(way.stops) else settings.max_evaluations
            part = replace(settings, max_evaluations=most, checkpoint_every=1e9 if way.stops else None)
            some = _first(comm, min(ranks, comm.size))
            if some is not None:
                found = _started(problem, way, part, some, Path(folder), told, start)
            found = comm.bcast(found)
            if found.status is not Status.LIMIT:
                break
    assert found is not None
    highest = comm.bcast(max(told, default=-np.inf))
    warned = comm.bcast(str(caught[0].message) if caught else "")
    return Run(way, found, max(highest, found.lower_bound), settings.target(found.J), warned)


def _started(
    problem: Problem, way: Way, settings: Settings, comm: Communicator, folder: Path, told: list[float], start: int
) -> Result:
    """One start of a run, from the checkpoint in the root's folder where it is not the first. Collective."""

    def watch(state: State, w: Floats) -> None:
        told.append(state.lower_bound)

    mine = problem.share(comm.rank, comm.size)
    X = rows(problem)[:, : problem.X.shape[1]][mine]
    features = rows_of(sparse.csr_matrix(X) if problem.seed % 2 else X)
    if problem.bias is not None:
        features = WithConstant(features, problem.bias)
    loss = losses.make_loss(problem.measure, way.ordering, problem.y[mine], None, comm)
    vectors = make_vectors(way.step, features.shape[1], comm)
    try:
        keep = keeping.Keeper(folder, {}, {}, vectors)
        kept = checkpoint.load(folder, {})[0] if start and comm.is_root else None
        snapshot = keeping.restored(kept, vectors) if start else None
        return train(Objective(features, [loss], comm, vectors=vectors), settings, None, watch, keep, snapshot)
    finally:
        vectors.close()


@cache
def _subset(comm: Communicator, ranks: int) -> Communicator | None:
    taken = comm.rank < ranks
    part = comm.library.Split(int(taken), comm.rank)
    return communicator(part) if taken else None


def _first(comm: Communicator, ranks: int) -> Communicator | None:
    """The first so many ranks; None on the others. Collective when it is asked for the first time."""
    return comm if ranks == comm.size else _subset(comm, ranks)
