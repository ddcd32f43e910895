"""Choose a lambda quickly: cross-validate a few lambdas with trainings to a large gap, and take a moderate one; for
`--lambda auto`, and for quick ROCArea models. The sample depends only on data and seed, not on the number of ranks.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Measure, display_name
from distsms.base.typing import Floats
from distsms.features.rows import RowParts, no_rows, stacked
from distsms.matrix.arrays import as_features
from distsms.matrix.coded import CodedRows, code_rows
from distsms.matrix.side_by_side import SideBySide
from distsms.optim.result import Result
from distsms.optim.settings import Settings
from distsms.shards import dataset, from_arrays
from distsms.shards.dataset import DataBlock, MemoryBudget, ends_in_memory
from distsms.shards.manifest import Manifest
from distsms.shards.splits import Shares, in_sample
from distsms.training.task import TrainingTask
from distsms.workflow import choice
from distsms.workflow.choice import Choice, Mean, Point
from distsms.workflow.path import ALONE, PathOutcome, PathRows, Problem, run, shares_folds
from distsms.workflow.requests import DEFAULT_LAMBDA
from distsms.workflow.verdict import OnFolds

GRID = (1.0, 1e-1, 1e-2, 1e-3)
"""The lambdas that are tried first. More are tried beyond an end of the grid while the best one is there."""
MODERATE = 1e-2
"""If the folds show no clear difference between the best lambda and others, the one nearest to this is taken."""
FOLDS, FOLDS_OF_FEW = 3, 5
"""The usual number of folds, and the number for samples of at most FEWEST_ROWS rows."""
FEWEST_ROWS = 20_000  # of a sample, if the data have so many
EPSILON, RELATIVE = 2e-3, 0.02  # a training here ends at this gap, or at this gap as a share of J
EVALUATIONS, EVALUATIONS_OF_PLANES = 12, 30
"""The most evaluations of a training here: with a solver for smoothed risks, and with cutting planes. The ROCArea of
held-out rows hardly changes after so many.
"""


def cross_validate(rows: PathRows, problem: Problem, stop_wanted: Callable[[], bool] = lambda: False) -> PathOutcome:
    """Cross-validate the lambdas of `GRID`, and more beyond; no points if some folds lack one. **Collective.**"""
    starts, by = Starts(), problem.select or Measure.parse(problem.measure).chooser
    settings, at_once = loosened(problem.settings), 1
    if isinstance(rows.block, DataBlock):
        at_once = max(1, int(settings.vector_bytes // settings.vectors_held(rows.block.features.shape[1])))
    quick = replace(problem, lambdas=GRID, settings=settings, all_rows=False, select=by, at_once=at_once)
    extend = partial(choice.extension, measure=by, grid=GRID)
    outcome = run(rows, quick, starts.add, start=starts.nearest, stop_wanted=stop_wanted, extend=extend)
    whole = len({point.fold for point in outcome.points}) == problem.folds
    return outcome if whole else outcome._replace(points=[])


def number_of_folds(counts: tuple[int, int]) -> int:
    """Return into how many folds to divide so many rows of each class; below 2 there are too few of them."""
    return min(FOLDS_OF_FEW if sum(counts) <= FEWEST_ROWS else FOLDS, min(counts))


def moderate_choice(points: Sequence[Point], measure: str) -> Choice | None:
    """Return the lambda nearest to `MODERATE` of those at most a standard error of the folds' differences below the
    best; None if none is usable. With few rows the best mean is often at a large lambda by chance.
    """
    curve, unusable = choice.means(points, measure), choice.faults(points)
    usable = [mean for mean in curve if mean.lam not in unusable]
    if not usable:
        return None
    best = choice.choose(curve, "best", unusable).chosen
    values = {(point.lam, point.fold): point.held_out[measure] for point in points if point.held_out and point.fold}
    folds = sorted({fold for _, fold in values})
    of_folds = {mean.lam: [values[mean.lam, fold] for fold in folds] for mean in curve}
    as_good = [mean for mean in usable if not choice.leads(of_folds[best.lam], of_folds[mean.lam])]
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
        self._models: defaultdict[int, dict[float, Floats]] = defaultdict(dict)

    def add(self, point: Point, result: Result, scores: Floats | None = None) -> None:
        """Keep a model. For each fold, only the models of the largest and of the newest lambda are kept."""
        of_fold = self._models[point.fold]
        for lam in sorted(of_fold)[:-1]:
            del of_fold[lam]
        of_fold[point.lam] = result.w

    def nearest(self, fold: int, lam: float) -> Floats | None:
        """Return the model of a fold whose lambda is nearest in the logarithm; None without one."""
        of_fold = self._models[fold]
        return of_fold[choice.nearest(of_fold, lam)] if of_fold else None


def load_sample(
    manifest: Manifest,
    comm: Communicator,
    shares: Shares,
    budget: MemoryBudget | None = None,
    whole_groups: bool = False,
) -> DataBlock:
    """Read this rank's part of a sample of rows or `whole_groups`, with the groups if there are some, normalized as in
    training, and numbered as if the sample were a data set of its own; `budget` counts if that is all. **Collective.**
    """
    with_groups = whole_groups or manifest.group is not None
    if min(shares) >= 1:
        return dataset.load(manifest, comm, budget=budget, with_groups=with_groups)
    parts = RowParts.of_rank(manifest, comm)
    if ends := ends_in_memory(manifest, comm.rank):
        parts = RowParts(manifest, ends[0].row, ends[1].row)
    pieces, groups = [no_rows(manifest, manifest.p_entries)], [np.empty(0, np.uint64)]
    codes = [[np.empty((0, each.n_codes), each.dtype)] for each in manifest.coded.maps]
    with comm.fail_together():
        for part in parts:
            of_rows = part.shard.read_groups(part.place) if with_groups else np.empty(0, np.uint64)
            numbers = part.first + np.arange(len(part.labels))
            taken = in_sample(of_rows if whole_groups else numbers, part.labels, shares)
            pieces.append(part.take(taken))
            groups += [of_rows[taken]] if with_groups else []
            for of_map, of_part in zip(codes, part.shard.read_code_rows(part.place) if codes else (), strict=True):
                of_map.append(of_part[taken])
    rows = stacked(pieces)
    features = comm.root_first(lambda: _features(manifest, rows.X, codes))
    with comm.fail_together():
        features.normalize(manifest.normalization)
    block = from_arrays.block(features, None, comm, weights=rows.weights)
    return replace(block, labels=rows.labels, groups=np.concatenate(groups) if with_groups else None)


def _features(manifest: Manifest, X: Any, codes: Sequence[list[NDArray[Any]]]) -> Any:
    """Return rows as features, from X and from pieces of the codes of each group, (rows, codes of a row) each."""
    groups: list[Any] = [] if manifest.layout == "coded" else [as_features(X)]
    for code_map, pieces in zip(manifest.coded.maps, codes, strict=True):
        rows = np.concatenate(pieces)
        groups.append(CodedRows(code_map, code_rows(rows, code_map), [0, len(rows)]))
    return groups[0] if len(groups) == 1 else SideBySide(groups)


MOST_ROWS, PART_OF_ROWS = 10**6, 12
"""A sample has one in PART_OF_ROWS of the rows, but at least FEWEST_ROWS and at most MOST_ROWS."""
MOST_ENTRIES = 50_000_000  # stored entries of a sample, over all ranks
FEW, LEAST = 0.5, 0.01
"""If the folds have at most the share FEW of the rows of the rarer class, and smaller lambdas are worse on them, the
lambda is multiplied by this share, but not by less than LEAST. With more rows, less regularization is needed: lambda n
is constant if the regularizer stands for a prior distribution of the coefficients.
"""
LEAST_OF_CLASS = 300  # the sample is enlarged if it would have fewer rows of a class


class LambdaChoice(NamedTuple):
    """A lambda that was chosen automatically. All ranks have the same, but for `seconds`."""

    lam: float  # it need not be one of those that were tried
    means: list[Mean]  # of the measure on the held-out folds, of the lambdas that were tried, from the largest on
    rows: int  # the number of rows of the sample
    seconds: float  # with those for reading the sample
    reason: str  # one sentence that says why
    chance: str = ""  # why a model will rank no better than chance on new rows, if the folds show this
    measure: str = ""  # the measure that chose
    searched: str = ""  # the measure of the request, if a search compared features and losses on the folds; else ""

    @property
    def on_folds(self) -> OnFolds | None:
        """The best mean of the measure on the held-out folds; None if none could be tried."""
        best = max(self.means, key=lambda mean: mean.mean, default=None)
        return None if best is None else OnFolds(self.measure, best.mean, best.error, bool(self.searched))

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a model file has them."""
        return self._asdict() | {"means": [mean._asdict() for mean in self.means]}


def choose_lambda(
    task: TrainingTask,
    comm: Communicator,
    stop_wanted: Callable[[], bool] = lambda: False,
    budget: MemoryBudget | None = None,
) -> LambdaChoice:
    """Choose a lambda for a training, by its measure on held-out rows; its own lambda, target and limits do not count.
    **Collective.** Raises InputError on all ranks if the data cannot be read.
    """
    begun, data, measure = time.perf_counter(), task.data, task.measure
    if measure.k and measure.k > data.n:
        raise InputError(f"{measure.name}: there are {data.n:,} training rows, and K cannot be larger", everywhere=True)
    sizes = (data.n_pos, data.n_neg) if isinstance(data, Manifest) else _class_counts(data, comm)
    rows = _sample(data, sizes, measure, comm, budget)
    counts, by = _class_counts(rows.data, rows.trainers), "rows" if rows.fold_keys is None else "groups"
    n_folds, part = number_of_folds(counts), sum(counts) / sum(sizes)
    by_measure = measure.on_part(part / max(n_folds, 1)).chooser

    def result(lam: float, means: list[Mean], reason: str, chance: str = "") -> LambdaChoice:
        return LambdaChoice(lam, means, sum(counts), time.perf_counter() - begun, reason, chance, by_measure)

    too_few = f"the default, since {min(counts)} rows of the rarer class are too few to compare lambdas"
    if n_folds < 2:
        return result(DEFAULT_LAMBDA, [], too_few)
    step = "root" if task.distribution.step == "auto" else task.distribution.step
    distribution = task.distribution._replace(step=step)
    name = measure.on_part(part * (1 - 1 / n_folds)).name
    problem = Problem(
        name, GRID, n_folds, 0, task.settings, distribution, folds_by=by, select=by_measure, bias=task.bias
    )
    try:
        trained = cross_validate(rows, problem, stop_wanted)
    except InputError as error:
        if not error.everywhere:
            raise
        return result(DEFAULT_LAMBDA, [], f"the default, since lambdas cannot be compared on these rows: {error}")
    means = choice.means(trained.points, by_measure)
    if not means:
        return result(DEFAULT_LAMBDA, [], "the default, since the choice was stopped" if trained.stopped else too_few)
    lambdas = choice.describe_lambdas(means)
    moderate = moderate_choice(trained.points, by_measure)
    chance = choice.why_chance(trained.points)
    if moderate is None:
        why = chance or f"none of {lambdas} makes J clearly smaller than at w = 0"
        return result(DEFAULT_LAMBDA, means, f"the default, since {why}", chance)
    in_time = isinstance(data, Manifest) and data.time is not None
    by_time = ", not by time as in distsms path --folds-by time" if in_time else ""
    folds_text = f"on {n_folds} held-out folds (by {by}{by_time}) of {sum(counts)} rows"
    reason = _describe_choice(moderate, display_name(by_measure), lambdas, folds_text)
    share, chosen = min(counts) * (1 - 1 / n_folds) / min(sizes), moderate.chosen.lam
    if (lam := for_more_rows(chosen, moderate.low.lam, means, share)) != chosen:
        more = f"{1 / share:.3g} times as many rows of the rarer class as that of a fold"
        reason += f". The training has {more}, with which a smaller lambda is better: {chosen:g} becomes {lam:g}"
    return result(lam, means, f"{reason}. But {chance}" if chance else reason, chance)


def for_more_rows(lam: float, low: float, means: Sequence[Mean], share: float) -> float:
    """Return the lambda for more rows than folds had by this share: smaller, if those below `low` are worse."""
    if share > FEW or means[-1].lam >= low:
        return lam
    return float(f"{lam * max(share, LEAST):.1g}")


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


def sample_shares(n_pos: int, n_neg: int, nnz: int, measure: Measure, most: int = MOST_ROWS) -> Shares:
    """Return each class's share of rows in a sample; the rarer has up to a quarter where frequencies do not matter."""
    n = n_pos + n_neg
    rarer = max(min(n_pos, n_neg), 1)
    rows = max(FEWEST_ROWS, n // PART_OF_ROWS)
    by_class = measure.family.ignores_prevalence
    if not by_class:
        rows = max(rows, LEAST_OF_CLASS * n // rarer)
    rows = min(rows, most, MOST_ENTRIES * n // max(nnz, 1))
    if rows >= n:
        return Shares(1.0, 1.0)
    if not by_class or rarer >= n * 0.25:
        return Shares(rows / n, rows / n)
    rarer_rows = min(rarer, rows // 4)
    of_rarer, of_other = rarer_rows / rarer, (rows - rarer_rows) / (n - rarer)
    return Shares(of_rarer, of_other) if n_pos <= n_neg else Shares(of_other, of_rarer)


def _sample(
    data: Manifest | DataBlock,
    sizes: tuple[int, int],
    measure: Measure,
    comm: Communicator,
    budget: MemoryBudget | None,
) -> PathRows:
    """Return a sample of so many rows of each class, with the groups that folds keep together. Collective."""
    (n_pos, n_neg), in_groups = sizes, measure.within_groups is not None
    if isinstance(data, Manifest):
        shares = sample_shares(n_pos, n_neg, data.nnz, measure)
        share = (shares.positive * n_pos + shares.negative * n_neg) / data.n
        few = shares_folds(data.n, 0, comm) and shares_folds(0, int(share * (data.n + data.nnz)), comm)
        # Of few rows, each rank reads the whole sample, and trains the models of some folds alone.
        share_folds = few and ends_in_memory(data, comm.rank) is None
        with comm.fail_together() if share_folds else nullcontext():
            block = load_sample(data, ALONE if share_folds else comm, shares, budget=budget, whole_groups=in_groups)
        return PathRows(block, comm, block.groups, share_folds)
    shares = sample_shares(n_pos, n_neg, int(comm.sum(np.array([data.features.nnz]))[0]), measure)
    keys: Any = data.groups if in_groups else data.first_row + np.arange(len(data.labels))
    weights = np.where(in_sample(keys, data.labels, shares), 1.0 if data.weights is None else data.weights, 0.0)
    return PathRows(data if min(shares) >= 1 else replace(data, weights=weights), comm, data.groups)


def _class_counts(block: DataBlock, comm: Communicator) -> tuple[int, int]:
    """Return how many positive and negative rows count, over all ranks. Collective."""
    counts = [np.count_nonzero(block.counted & (block.labels == sign)) for sign in (1, -1)]
    n_pos, n_neg = map(int, comm.sum(np.array(counts)))
    return n_pos, n_neg
