"""The points of a path that the closed form of normal-auc solves, with the measures of their models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from distsms.optim.result import Result
from distsms.selection.point import Point
from distsms.training.closed_form import ClosedForm

if TYPE_CHECKING:
    from distsms.selection.path import CrossValidation

SCORE_BYTES = 2**28
"""The memory for the scores of the models that are scored in the same pass, if no plan says another number."""


def closed_points(
    models: CrossValidation, closed: ClosedForm, keep: Callable[..., None], lambdas: Sequence[Sequence[float]]
) -> tuple[list[Point], list[list[float]], bool, int]:
    """Solve the lambdas of each fold as far as the closed form can prove them, and score the models. **Collective.**

    Parameters
    ----------
    models : CrossValidation
        The trainings of the path.
    closed : ClosedForm
        The moments of the folds.
    keep, lambdas
        As for `CrossValidation.run`.

    Returns
    -------
    points : list of Point
        Those that are solved.
    lambdas : list of list of float
        For each fold, those that are left.
    stopped : bool
        Whether `stop_wanted` ended it.
    passes : int
        The passes over the rows: one for the moments, unless it was counted before, and one for all models whose scores
        fit into memory together.
    """
    comm, problem, objective = models.comm, models.problem, models.objective
    left = [list(of_fold) for of_fold in lambdas]
    wanted = [(k, lam) for k, of_fold in enumerate(lambdas) for lam in of_fold]
    points, passes = list[Point](), closed.uncounted_passes()
    rows = int(comm.maximum(np.array([len(objective.labels)]))[0])
    at_once = problem.scored or max(len(models.numbers), SCORE_BYTES // (8 * max(rows, 1)))
    for first in range(0, len(wanted), at_once):
        if comm.maximum(np.array([float(models.stop_wanted())]))[0]:
            return points, left, True, passes
        solved = list[tuple[int, float, Result]]()
        for k, lam in wanted[first : first + at_once] if comm.is_root else ():
            settings = replace(problem.settings, lam=lam)
            if result := closed.result(models.numbers[k], settings, bool(problem.bias)):
                solved.append((k, lam, result))
        solved = comm.bcast(solved)
        if not solved:
            continue
        scores = objective.features.margins(np.array([result.w for _, _, result in solved]))
        passes += 1
        for (k, lam, result), of_model in zip(solved, scores, strict=True):
            threshold, training, held_out, chance, held = objective.assess(of_model, k)
            numbers = result.numbers() | {"vacuous": result.vacuous, "idle": result.idle, "chance": chance}
            points.append(Point(lam, models.numbers[k], numbers, threshold, training, held_out))
            left[k].remove(lam)
            if comm.is_root:
                keep(points[-1], result, *([held] if problem.scores else []))
    return comm.bcast(points), left, False, passes
