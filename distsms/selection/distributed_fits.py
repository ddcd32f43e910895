"""Make fits of a baseline with rows that are distributed over the ranks, and may be streamed from the disk.

These are the fits of the methods that distsms trains itself. For each method, all folds are trained in the same passes,
from the largest lambda to the smallest, as `distsms path` does it. The other methods need all rows in one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.data.shards.dataset import DataBlock
from distsms.measures import Measure
from distsms.optim.result import Result
from distsms.parallel.communicator import Communicator
from distsms.selection.baseline import Fit, FitSpec, FoldedRows
from distsms.selection.competitors import METHODS, describe_end, with_target
from distsms.selection.folds import Folds, make_folds
from distsms.selection.path import FoldRows, Problem, trainings
from distsms.selection.point import Point
from distsms.utils.typing import Floats


def method_problem(problem: Problem, method: str, share: float) -> Problem:
    """Return the problem of a method, for the problem of the baseline and the share of positive rows."""
    measure = Measure.parse(METHODS[method].trains or problem.measure)
    settings = with_target(problem.settings, measure, share)
    bias = measure.bias(None)
    return replace(problem, measure=measure.name, settings=settings, bias=bias, all_rows=False, scores=True)


def run(
    block: DataBlock | FoldRows,
    problems: dict[str, Problem],
    specs: Sequence[FitSpec],
    comm: Communicator,
    keep: Callable[[Fit, Floats], None],
    stop_wanted: Callable[[], bool],
    begin: Callable[[FitSpec], None],
    fold_keys: NDArray[Any] | None = None,
    before: Callable[[int], float] = lambda fold: 0.0,
) -> bool:
    """Make fits, one method after the other. **Collective.**

    Parameters
    ----------
    block : DataBlock or FoldRows
        This rank's rows, as for `distsms.selection.path.run`.
    problems : dict
        The problem of each method, from `method_problem`, with the ordering and the step of its plan.
    specs : sequence of FitSpec
        The fits to make, the same on every rank.
    comm : Communicator
        The ranks.
    keep : callable
        Called on the root with each finished fit, and the scores (n_fold,) of the fold's rows.
    stop_wanted : callable
        As for `distsms.optim.objective.Objective`; fits that are not finished then are lost.
    begin : callable
        Called before the fits of a method, with the first of them.
    fold_keys : ndarray of shape (n_local,), optional
        `folds.read_fold_keys` of this rank's rows.
    before : callable
        Called on the root with a fold; returns the seconds that were spent on the rows of the fold before. The first
        fit of each method on the fold takes so much longer.

    Returns
    -------
    bool
        Whether `stop_wanted` ended the run.
    """
    for name, problem in problems.items():
        missing = {(spec.setting, spec.fold): spec for spec in specs if spec.method == name}
        if not missing:
            continue
        begin(next(iter(missing.values())))
        folds, started = range(1, problem.folds + 1), time.perf_counter()
        models = trainings(block, problem, comm, stop_wanted, fold_keys=fold_keys, numbers=folds)
        first = set(folds)

        def keep_point(point: Point, result: Result, scores: Floats, name: str = name, first: set[int] = first) -> None:
            nonlocal started
            assert point.held_out is not None
            now = time.perf_counter()
            if point.fold in first:
                first.remove(point.fold)
                started -= before(point.fold)
            values = point.held_out["rocarea"], point.held_out["prbep"]
            note = describe_end(result.status, result.vacuous)
            keep(Fit(name, point.lam, point.fold, now - started, *values, note), scores)
            started = now  # the fits of all folds share their seconds, which add up to those of the method

        stopped = False
        while missing and not stopped:  # `CrossValidation` may leave out the smaller lambdas of its first run
            lambdas = [sorted((lam for lam, own in missing if own == fold), reverse=True) for fold in folds]
            found = models.run(keep_point, lambdas)
            stopped = found.stopped
            for point in found.points:
                missing.pop((point.lam, point.fold), None)
        models.close()
        if stopped:
            return True
    return False


def gather_rows(
    block: DataBlock, problem: Problem, comm: Communicator, fold_keys: NDArray[Any] | None, within: bool = False
) -> FoldedRows | None:
    """Return what evaluates the fits, without the entries of the rows; None on ranks other than the root. Collective.

    It takes up to 11 bytes for each row of the data, and 8 more where measures are taken `within` groups.
    """
    counted = block.counted
    keys = counted if fold_keys is None else fold_keys
    folds = make_folds(problem.folds_by, keys, block.labels, counted, problem.folds, problem.seed, comm)
    y, number = comm.gather_rows(block.labels[counted]), comm.gather_rows(folds.number[counted])
    assert block.weights is not None or not block.weighted
    weights = comm.gather_rows(block.weights[counted]) if block.weighted else None  # type: ignore[index]
    groups = comm.gather_rows(block.groups[counted]) if within and block.groups is not None else None
    if y is None or number is None:
        return None
    dealt = Folds(number, np.ones(len(y), bool), folds.forward)
    return FoldedRows(None, y, dealt, problem.folds_by, weights=weights, groups=groups)
