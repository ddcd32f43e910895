"""Search for a lambda: cross-validate a few lambdas with trainings to a large gap, and take a moderate one.

`--lambda auto`, and the quick ROCArea models that other models are compared with, choose their lambda in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.data.shards.dataset import DataBlock
from distsms.optim.result import Result
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.selection import choice
from distsms.selection.choice import Mean
from distsms.selection.path import Problem, Run, run
from distsms.selection.point import Point
from distsms.utils.typing import Floats

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


def search(
    block: DataBlock,
    problem: Problem,
    comm: Communicator,
    stop_wanted: Callable[[], bool] = lambda: False,
    fold_keys: NDArray[Any] | None = None,
    share_folds: bool = False,
) -> Run:
    """Cross-validate the lambdas of `GRID`, and more beyond its ends, with quick trainings. **Collective.**

    The parameters are those of `distsms.selection.path.run`. The lambdas of the problem and the limits of its settings
    do not matter, and there are no models of all rows. As many folds share a pass as the memory for vectors allows. If
    the search is stopped before every fold has a point, there are no points, since one fold alone says too little.
    """
    starts, by = Starts(), choice.chooser(problem.measure, problem.select)
    settings = loosened(problem.settings)
    at_once = max(1, int(settings.vector_bytes // settings.vectors_held(block.features.shape[1])))
    quick = replace(problem, lambdas=GRID, settings=settings, all_rows=False, select=by, at_once=at_once)
    found = run(
        block,
        quick,
        comm,
        starts.add,
        start=starts.nearest,
        stop_wanted=stop_wanted,
        fold_keys=fold_keys,
        extend=lambda points: choice.extension(points, by, GRID),
        share_folds=share_folds,
    )
    whole = len({point.fold for point in found.points}) == problem.folds
    return found if whole else found._replace(points=[])


def number_of_folds(n_pos: int, n_neg: int) -> int:
    """Return into how many folds to divide so many rows; below 2 there are too few of them."""
    return min(FOLDS_OF_FEW if n_pos + n_neg <= FEWEST_ROWS else FOLDS, n_pos, n_neg)


class ModerateChoice(NamedTuple):
    """A choice of lambda that prefers moderate ones.

    Attributes
    ----------
    best, taken : Mean
        The best mean, and that of the lambda to take.
    smaller_is_worse : bool
        Whether smaller lambdas than those that are about as good as the best have been tried.
    """

    best: Mean
    taken: Mean
    smaller_is_worse: bool


def moderate_choice(points: Sequence[Point], measure: str) -> ModerateChoice | None:
    """Return the most moderate lambda that is about as good as the best one.

    The result is None if no lambda has a usable model (see `distsms.selection.choice.faults`).

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
    folds_of = sorted({fold for _, fold in values})

    def as_good(mean: Mean) -> bool:
        behind = np.array([values[best.lam, fold] - values[mean.lam, fold] for fold in folds_of])
        return bool(behind.mean() <= behind.std(ddof=1) / np.sqrt(len(behind)) + 1e-12)

    usable = [mean for mean in curve if mean.lam not in unusable and as_good(mean)]
    taken = min(usable, key=lambda mean: abs(np.log(mean.lam / MODERATE)))
    return ModerateChoice(best, taken, min(mean.lam for mean in curve) < min(mean.lam for mean in usable))


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

    def add(self, point: Point, result: Result) -> None:
        """Keep a model. For each fold, only the models of the largest and of the newest lambda are kept."""
        lams = [lam for fold, lam in self._models if fold == point.fold]
        for lam in lams:
            if lam != max(lams):
                del self._models[point.fold, lam]
        self._models[point.fold, point.lam] = result.w

    def nearest(self, fold: int, lam: float) -> Floats | None:
        """Return the model of a fold whose lambda is nearest in the logarithm; None without one."""
        lams = [own for known, own in self._models if known == fold]
        return self._models[fold, min(lams, key=lambda own: abs(np.log(own / lam)))] if lams else None
