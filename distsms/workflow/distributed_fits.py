"""Make fits of a baseline with rows that are distributed over the ranks, and may be streamed from the disk.

These are the fits of the methods that distsms trains itself. For each method, all folds are trained in the same passes,
from the largest lambda to the smallest, as `distsms path` does it. The other methods need all rows in one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from distsms.base.measures import Measure
from distsms.base.typing import Floats
from distsms.optim.result import Result
from distsms.shards.dataset import DataBlock
from distsms.workflow.baseline import Fit, FitSpec, FoldedRows
from distsms.workflow.choice import Point
from distsms.workflow.competitors import METHODS, describe_end, with_target
from distsms.workflow.folds import Folds
from distsms.workflow.path import PathRows, Problem, trainings


def method_problem(problem: Problem, method: str, share: float) -> Problem:
    """Return the problem of a method, for the problem of the baseline and the share of positive rows."""
    measure = Measure.parse(METHODS[method].trains or problem.measure)
    settings = with_target(problem.settings, measure, share)
    bias = measure.bias(None)
    return replace(problem, measure=measure.name, settings=settings, bias=bias, all_rows=False, scores=True)


def run(
    rows: PathRows,
    problems: dict[str, Problem],
    specs: Sequence[FitSpec],
    keep: Callable[[Fit, Floats], None],
    stop_wanted: Callable[[], bool],
    begin: Callable[[FitSpec], None],
    before: Callable[[int], float] = lambda fold: 0.0,
) -> bool:
    """Make fits, one method after the other. **Collective.**

    Parameters
    ----------
    rows : PathRows
        The rows, as for `distsms.workflow.path.run`; the ranks do not share folds.
    problems : dict
        The problem of each method, from `method_problem`, with the ordering and the step of its plan.
    specs : sequence of FitSpec
        The fits to make, the same on every rank.
    keep : callable
        Called on the root with each finished fit, and the scores (n_fold,) of the fold's rows.
    stop_wanted : callable
        As for `distsms.optim.objective.Objective`; fits that are not finished then are lost.
    begin : callable
        Called before the fits of a method, with the first of them.
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
        started = time.perf_counter()
        models = trainings(rows, problem, stop_wanted)
        without_fit = set(models.numbers)

        def keep_point(
            point: Point, result: Result, scores: Floats | None, name: str = name, without_fit: set[int] = without_fit
        ) -> None:
            nonlocal started
            assert point.held_out is not None and scores is not None
            now = time.perf_counter()
            if point.fold in without_fit:
                without_fit.remove(point.fold)
                started -= before(point.fold)
            fit = Fit(
                method=name,
                setting=point.lam,
                fold=point.fold,
                seconds=now - started,
                rocarea=point.held_out["rocarea"],
                prbep=point.held_out["prbep"],
                note=describe_end(result.status, result.vacuous),
            )
            keep(fit, scores)
            started = now  # the fits of all folds share their seconds, which add up to those of the method

        stopped = False
        while missing and not stopped:  # `CrossValidation` may leave out the smaller lambdas of its first run
            lambdas = [sorted((lam for lam, f in missing if f == fold), reverse=True) for fold in models.numbers]
            outcome = models.run(keep_point, lambdas)
            stopped = outcome.stopped
            for point in outcome.points:
                missing.pop((point.lam, point.fold), None)
        models.close()
        if stopped:
            return True
    return False


def gather_rows(rows: PathRows, problem: Problem, within: bool = False) -> FoldedRows | None:
    """Return what evaluates the fits, without the entries of the rows; None on ranks other than the root. Collective.

    It takes up to 11 bytes for each row of the data, and 8 more where measures are taken `within` groups.
    """
    assert isinstance(rows.block, DataBlock)
    block, comm, folds = rows.block, rows.comm, rows.make_folds(problem)
    counted = block.counted
    y, number = comm.gather_rows(block.labels[counted]), comm.gather_rows(folds.number[counted])
    assert block.weights is not None or not block.weighted
    weights = comm.gather_rows(block.weights[counted]) if block.weighted else None  # type: ignore[index]
    groups = comm.gather_rows(block.groups[counted]) if within and block.groups is not None else None
    if y is None or number is None:
        return None
    folds = Folds(number, np.ones(len(y), bool), folds.forward)
    return FoldedRows(None, y, folds, problem.folds_by, weights=weights, groups=groups)
