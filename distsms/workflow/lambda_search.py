"""Search for a lambda: cross-validate a few lambdas with trainings to a large gap, and take a moderate one.

`--lambda auto`, and the quick ROCArea models that other models are compared with, choose their lambda in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from distsms.base.typing import Floats
from distsms.optim.result import Result
from distsms.optim.settings import Settings
from distsms.shards.dataset import DataBlock
from distsms.workflow import choice
from distsms.workflow.choice import Choice, Point
from distsms.workflow.path import PathRows, Problem, Run, run

DEFAULT = 1e-4
"""The lambda of runs that do not choose one, and of data with too few rows to choose one."""
GRID = (1.0, 1e-1, 1e-2, 1e-3)
"""The lambdas that are tried first. More are tried beyond an end of the grid while the best one is there."""
MODERATE = 1e-2
"""If the folds show no clear difference between the best lambda and others, the one nearest to this is taken."""
FOLDS, FOLDS_OF_FEW = 3, 5
"""The usual number of folds, and the number for samples of at most FEWEST_ROWS rows."""
FEWEST_ROWS = 20_000
"""Samples have at least this many rows, if the data have."""
EPSILON, RELATIVE = 2e-3, 0.02
"""A training here ends at this gap, or at this gap as a share of J."""
EVALUATIONS, EVALUATIONS_OF_PLANES = 12, 30
"""The most evaluations of a training here: with a solver for smoothed risks, and with cutting planes. The ROCArea of
held-out rows hardly changes after so many.
"""


def search(rows: PathRows, problem: Problem, stop_wanted: Callable[[], bool] = lambda: False) -> Run:
    """Cross-validate the lambdas of `GRID`, and more beyond its ends, with quick trainings. **Collective.**

    The parameters are those of `distsms.workflow.path.run`. The lambdas of the problem and the limits of its settings
    do not matter, and there are no models of all rows. As many folds share a pass as the memory for vectors allows. If
    the search is stopped before every fold has a point, there are no points, since one fold alone says too little.
    """
    assert isinstance(rows.block, DataBlock)
    starts, by = Starts(), choice.chooser(problem.measure, problem.select)
    settings = loosened(problem.settings)
    at_once = max(1, int(settings.vector_bytes // settings.vectors_held(rows.block.features.shape[1])))
    outcome = run(
        rows,
        replace(problem, lambdas=GRID, settings=settings, all_rows=False, select=by, at_once=at_once),
        starts.add,
        start=starts.nearest,
        stop_wanted=stop_wanted,
        extend=lambda points: choice.extension(points, by, GRID),
    )
    whole = len({point.fold for point in outcome.points}) == problem.folds
    return outcome if whole else outcome._replace(points=[])


def number_of_folds(counts: tuple[int, int]) -> int:
    """Return into how many folds to divide so many rows of each class; below 2 there are too few of them."""
    return min(FOLDS_OF_FEW if sum(counts) <= FEWEST_ROWS else FOLDS, min(counts))


def moderate_choice(points: Sequence[Point], measure: str) -> Choice | None:
    """Return the most moderate lambda that is about as good as the best one; `low` and `high` are the ends of those.

    The result is None if no lambda has a usable model (see `distsms.workflow.choice.faults`).

    A lambda is about as good if its measure is on average at most one standard error below that of the best lambda,
    where the standard error is that of the differences of the folds. Of these lambdas, the one nearest to `MODERATE` is
    taken. The reasons: with few folds and few rows, the best mean is often at a large lambda by chance; and the best
    lambda becomes smaller as the number of rows grows.
    """
    curve, unusable = choice.means(points, measure), choice.faults(points)
    if all(mean.lam in unusable for mean in curve):  # `unusable` may also have lambdas that some folds lack
        return None
    best = choice.choose(curve, "best", unusable).chosen
    values = {(point.lam, point.fold): point.held_out[measure] for point in points if point.held_out and point.fold}
    folds = sorted({fold for _, fold in values})

    def is_as_good(lam: float) -> bool:
        behind = np.array([values[best.lam, fold] - values[lam, fold] for fold in folds])
        return bool(behind.mean() <= behind.std(ddof=1) / np.sqrt(len(behind)) + 1e-12)

    as_good = [mean for mean in curve if mean.lam not in unusable and is_as_good(mean.lam)]
    moderate = min(as_good, key=lambda mean: abs(np.log(mean.lam / MODERATE)))
    return Choice(best, moderate, low=as_good[-1], high=as_good[0])


def loosened(settings: Settings) -> Settings:
    """Return the settings of quick trainings: those of a training, but with a loose target and other limits."""
    return replace(
        settings,
        lam=GRID[0],
        epsilon=EPSILON,
        relative=RELATIVE,
        max_evaluations=EVALUATIONS if settings.traits.smooth else EVALUATIONS_OF_PLANES,
        time_limit=float("inf"),
        checkpoint_every=None,
    )


class Starts:
    """The models of each fold so far, on the root. The next training of a fold starts from the nearest lambda's."""

    def __init__(self) -> None:
        self._models: dict[tuple[int, float], Floats] = {}

    def add(self, point: Point, result: Result, scores: Floats | None = None) -> None:
        """Keep a model. For each fold, only the models of the largest and of the newest lambda are kept."""
        lams = [lam for fold, lam in self._models if fold == point.fold]
        for lam in lams:
            if lam != max(lams):
                del self._models[point.fold, lam]
        self._models[point.fold, point.lam] = result.w

    def nearest(self, fold: int, lam: float) -> Floats | None:
        """Return the model of a fold whose lambda is nearest in the logarithm; None without one."""
        lams = [other for of_fold, other in self._models if of_fold == fold]
        return self._models[fold, min(lams, key=lambda other: abs(np.log(other / lam)))] if lams else None
