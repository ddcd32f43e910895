"""Choose a lambda quickly, before a training: cross-validate a few lambdas on a sample of the rows.

The sample is so small that the choice takes about as long as the training that follows, or some seconds on small data.
The sample depends only on the data and the seed, so the choice is the same on any number of ranks, up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.measures import Measure, display_name
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.shards.dataset import DataBlock
from distsms.shards.manifest import Manifest
from distsms.shards.row_shares import MemoryBudget, rows_in_memory
from distsms.training.solver_choice import choose_solver, settings_for
from distsms.training.task import AUTO, Distribution
from distsms.workflow import choice, folds
from distsms.workflow.choice import Choice, Mean
from distsms.workflow.lambda_search import (
    DEFAULT,
    FEWEST_ROWS,
    GRID,
    MODERATE,
    moderate_choice,
    number_of_folds,
    search,
)
from distsms.workflow.path import ALONE, PathRows, Problem, shares_folds
from distsms.workflow.sample import Sample, Shares, in_sample, load_sample
from distsms.workflow.verdict import OnFolds

MOST_ROWS, PART_OF_ROWS = 10**6, 12
"""A sample has one in PART_OF_ROWS of the rows, but at least FEWEST_ROWS and at most MOST_ROWS."""
MOST_ENTRIES = 50_000_000
"""The most stored entries of a sample, over all ranks."""
FEW, LEAST = 0.5, 0.01
"""If the folds have at most the share FEW of the rows of the rarer class, and smaller lambdas are worse on them, the
lambda is multiplied by this share, but not by less than LEAST. With more rows, less regularization is needed: lambda n
is constant if the regularizer stands for a prior distribution of the coefficients.
"""
LEAST_OF_CLASS = 300
"""The sample is enlarged if it would have fewer rows of a class than this."""


class LambdaChoice(NamedTuple):
    """A lambda that was chosen automatically. All ranks have the same, but for `seconds`."""

    lam: float  # it need not be one of those that were tried
    means: list[Mean]  # of the measure on the held-out folds, of the lambdas that were tried, from the largest on
    rows: int  # the number of rows of the sample
    seconds: float  # with those for reading the sample
    reason: str  # one sentence that says why
    chance: str = ""  # why a model will rank no better than chance on new rows, if the folds show this
    measure: str = ""  # the measure that chose

    @property
    def on_folds(self) -> OnFolds | None:
        """The best mean of the measure on the held-out folds; None if none could be tried."""
        best = max(self.means, key=lambda mean: mean.mean, default=None)
        return None if best is None else OnFolds(self.measure, best.mean, best.error)

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a model file has them."""
        return self._asdict() | {"means": [mean._asdict() for mean in self.means]}


def choose_lambda(
    data: Manifest | DataBlock,
    measure: str | Measure,
    comm: Communicator,
    settings: Settings | None = None,
    bias: float | None = None,
    distribution: Distribution = AUTO,
    seed: int = 0,
    stop_wanted: Callable[[], bool] = lambda: False,
    budget: MemoryBudget | None = None,
) -> LambdaChoice:
    """Choose a lambda for a training on these data. **Collective.**

    Parameters
    ----------
    data : Manifest or DataBlock
        A data set, of which a sample is read; or this rank's rows, of which a sample is used.
    measure : str or Measure
        What will be trained for. The same measure on held-out rows chooses.
    comm : Communicator
        The ranks.
    settings : Settings, optional
        The settings of the training. Solver, number of planes and so on are taken from them, but not lambda, target and
        limits. The default is the settings of the usual solver.
    bias : float, optional
        The value of the constant feature, if the training has one.
    distribution : Distribution
        As for `distsms.training.task.TrainingTask`.
    seed : int
        The seed of the sample and of the folds.
    stop_wanted : callable
        Asked on every rank at each evaluation; True on any rank ends the choice with what is known so far.
    budget : MemoryBudget, optional
        The memory that this rank may use for its rows. It is used only if the sample has all rows.

    Returns
    -------
    LambdaChoice

    Raises
    ------
    InputError
        On all ranks, if the data cannot be read.

    Notes
    -----
    A data set is read once. For three folds, models of about six lambdas are trained to a large gap, all folds in the
    same passes. This takes some 100 evaluations on two thirds of the sample. The sample of large data has a twelfth of
    the rows. Where smaller lambdas are clearly worse on the folds, and the data have many more rows than these, the
    lambda is smaller than the folds say; see `FEW`.
    """
    begun, measure = time.perf_counter(), Measure.parse(measure)
    if measure.k and measure.k > data.n:
        raise InputError(f"{measure.name}: there are {data.n:,} training rows, and K cannot be larger", everywhere=True)
    if settings is None:
        settings = settings_for(measure, choose_solver(None, measure, comm)[0], lam=DEFAULT)
    share_folds = isinstance(data, Manifest) and _shares_folds(data, measure, comm)
    readers = ALONE if share_folds else comm  # each rank reads the whole sample, or its own part
    sample, by, fold_keys = _sample(data, measure, readers, seed, budget)
    counts = _class_counts(sample.block, readers)
    n_folds, by_measure = number_of_folds(counts), choice.chooser(measure.name, None)

    def result(lam: float, means: list[Mean], reason: str, chance: str = "") -> LambdaChoice:
        return LambdaChoice(lam, means, sum(counts), time.perf_counter() - begun, reason, chance, by_measure)

    too_few = f"the default, since {min(counts)} rows of the rarer class are too few to compare lambdas"
    if n_folds < 2:
        return result(DEFAULT, [], too_few)
    step = "root" if distribution.step == "auto" else distribution.step
    problem = Problem(measure.name, GRID, n_folds, seed, settings, distribution.ordering, step, folds_by=by, bias=bias)
    try:
        trained = search(PathRows(sample.block, comm, fold_keys, share_folds), problem, stop_wanted)
    except InputError as error:
        if not error.everywhere:
            raise
        return result(DEFAULT, [], f"the default, since lambdas cannot be compared on these rows: {error}")
    means = choice.means(trained.points, by_measure)
    if not means:
        return result(DEFAULT, [], "the default, since the choice was stopped" if trained.stopped else too_few)
    lambdas = choice.describe_lambdas(means)
    moderate = moderate_choice(trained.points, by_measure)
    chance = choice.why_chance(trained.points)
    if moderate is None:
        why = chance or f"none of {lambdas} makes J clearly smaller than at w = 0"
        return result(DEFAULT, means, f"the default, since {why}", chance)
    in_time = isinstance(data, Manifest) and data.time is not None
    by_time = ", not by time as in distsms path --folds-by time" if in_time else ""
    folds_text = f"on {n_folds} held-out folds (by {by}{by_time}) of {sum(counts)} rows"
    reason = _describe_choice(moderate, display_name(by_measure), lambdas, folds_text)
    lam = moderate.chosen.lam
    whole = (data.n_pos, data.n_neg) if isinstance(data, Manifest) else _class_counts(data, comm)
    share = min(counts) * (1 - 1 / n_folds) / min(whole)
    if share <= FEW and means[-1].lam < moderate.low.lam:  # smaller lambdas are worse, but with more rows perhaps not
        lam = float(f"{lam * max(share, LEAST):.1g}")
        reason += (
            f". The training has {1 / share:.3g} times as many rows of the rarer class as that of a fold, with which a"
            f" smaller lambda is better: {moderate.chosen.lam:g} becomes {lam:g}"
        )
    return result(lam, means, f"{reason}. But {chance}" if chance else reason, chance)


def _shares_folds(data: Manifest, measure: Measure, comm: Communicator) -> bool:
    """Return whether each rank should read the whole sample, and train the models of some folds alone. Local."""
    if rows_in_memory(data, comm.rank) is not None:
        return False
    shares = sample_shares(data.n_pos, data.n_neg, data.nnz, measure)
    share = (shares.positive * data.n_pos + shares.negative * data.n_neg) / data.n
    return shares_folds(data.n, 0, comm) and shares_folds(0, int(share * (data.n + data.nnz)), comm)


def _describe_choice(moderate: Choice, name: str, lambdas: str, folds_text: str) -> str:
    """Return why a lambda was taken; see `moderate_choice`. `name` is that of the measure."""
    best, chosen = moderate.best, moderate.chosen
    if chosen == best:
        return f"the best mean {name} of {lambdas} {folds_text}: {best.mean:.4f}"
    mean = f"{chosen.mean:.4f}"
    mean += " as well" if mean == f"{best.mean:.4f}" else ""
    return (
        f"of {lambdas}, the one nearest to {MODERATE:g} among those whose mean {name} {folds_text} is at most one"
        f" standard error below the best, {best.mean:.4f} at lambda {best.lam:g}; here it is {mean}"
    )


def sample_shares(n_pos: int, n_neg: int, nnz: int, measure: Measure) -> Shares:
    """Return which share of each class's rows is in the sample of a data set of this size.

    For ROCArea and pauc, which do not depend on how frequent the classes are, up to a quarter of the sample is of the
    rarer class. For other measures both classes have the same share.
    """
    n = n_pos + n_neg
    rarer = max(min(n_pos, n_neg), 1)
    rows = max(FEWEST_ROWS, n // PART_OF_ROWS)
    by_class = measure.family.ignores_prevalence
    if not by_class:
        rows = max(rows, LEAST_OF_CLASS * n // rarer)
    rows = min(rows, MOST_ROWS, MOST_ENTRIES * n // max(nnz, 1))
    if rows >= n:
        return Shares(1.0, 1.0)
    if not by_class or rarer >= n * 0.25:
        return Shares(rows / n, rows / n)
    of_rarer = min(rarer, rows // 4)
    share_of_rarer, share_of_other = of_rarer / rarer, (rows - of_rarer) / (n - rarer)
    if n_pos <= n_neg:
        return Shares(positive=share_of_rarer, negative=share_of_other)
    return Shares(positive=share_of_other, negative=share_of_rarer)


def _sample(
    data: Manifest | DataBlock, measure: Measure, comm: Communicator, seed: int, budget: MemoryBudget | None
) -> tuple[Sample, str, NDArray[Any] | None]:
    """Return the sample, how its folds are made, and the keys of the folds. Collective."""
    if isinstance(data, Manifest):
        shares = sample_shares(data.n_pos, data.n_neg, data.nnz, measure)
        grouped = measure.within_groups is not None
        sample, by = load_sample(data, comm, shares, seed, budget, grouped), folds.choose_folds_by(None, data)
        if by == "rows":
            return sample, by, None
        with comm.fail_together():
            rows = sample.rows
            first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
            keys = folds.read_fold_keys(data, by, first, last)[rows - first]
        return sample, by, keys
    n_pos, n_neg = _class_counts(data, comm)
    rows = data.first_row + np.arange(len(data.labels))
    shares = sample_shares(n_pos, n_neg, int(comm.sum(np.array([_nnz(data)]))[0]), measure)
    groups = data.groups if measure.within_groups else None
    taken = in_sample(rows if groups is None else groups, data.labels, shares, seed)
    weights = np.where(taken, 1.0 if data.weights is None else data.weights, 0.0)
    block = data if min(shares) >= 1 else replace(data, weights=weights)
    return Sample(block, rows), "rows" if groups is None else "groups", groups


def _class_counts(block: DataBlock, comm: Communicator) -> tuple[int, int]:
    """Return how many positive and negative rows count, over all ranks. Collective."""
    counts = [np.count_nonzero(block.counted & (block.labels == sign)) for sign in (1, -1)]
    n_pos, n_neg = map(int, comm.sum(np.array(counts)))
    return n_pos, n_neg


def _nnz(block: DataBlock) -> int:
    """Return the number of stored entries of local rows; rows without `nnz` count as dense. Local."""
    return int(getattr(block.features, "nnz", block.features.shape[0] * block.p))
