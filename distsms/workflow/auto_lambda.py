"""Choose a lambda quickly: cross-validate a few lambdas with trainings to a large gap, and take a moderate one; for
`--lambda auto`, and for quick ROCArea models. The sample depends only on data and seed, not on the number of ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads scipy.sparse when it is used, which saves time in each start
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Measure, display_name
from distsms.base.typing import Floats
from distsms.features.rows import RowParts
from distsms.matrix.arrays import as_features
from distsms.matrix.coded import CodedRows, code_rows
from distsms.matrix.local import DenseRows, SparseRows
from distsms.matrix.side_by_side import SideBySide
from distsms.optim.result import Result
from distsms.optim.settings import Settings
from distsms.shards import dataset
from distsms.shards.dataset import DataBlock, MemoryBudget, ends_in_memory
from distsms.shards.manifest import Manifest
from distsms.shards.row_metadata import in_range
from distsms.shards.splits import Shares, in_sample
from distsms.training.solver_choice import choose_solver, settings_for
from distsms.training.task import AUTO, Distribution
from distsms.workflow import choice, folds
from distsms.workflow.choice import Choice, Mean, Point
from distsms.workflow.path import ALONE, PathRows, Problem, Run, run, shares_folds
from distsms.workflow.requests import DEFAULT_LAMBDA
from distsms.workflow.verdict import OnFolds

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


def cross_validate(rows: PathRows, problem: Problem, stop_wanted: Callable[[], bool] = lambda: False) -> Run:
    """Cross-validate the lambdas of `GRID`, and more beyond; no points if some folds lack one. **Collective.**"""
    starts, by = Starts(), choice.chooser(problem.measure, problem.select)
    settings, at_once = loosened(problem.settings), 1
    if isinstance(rows.block, DataBlock):
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
    """Return the lambda nearest to `MODERATE` of those at most a standard error of the folds' differences below the
    best; None if none is usable. With few rows the best mean is often at a large lambda by chance.
    """
    curve, unusable = choice.means(points, measure), choice.faults(points)
    if all(mean.lam in unusable for mean in curve):  # `unusable` may also have lambdas that some folds lack
        return None
    best = choice.choose(curve, "best", unusable).chosen
    values = {(point.lam, point.fold): point.held_out[measure] for point in points if point.held_out and point.fold}
    folds = sorted({fold for _, fold in values})

    of_folds = {mean.lam: [values[mean.lam, fold] for fold in folds] for mean in curve}
    usable = [mean for mean in curve if mean.lam not in unusable]
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


class Sample(NamedTuple):
    """This rank's rows of a sample."""

    block: DataBlock  # normalized as in training, and numbered as if the sample were a data set of its own
    rows: NDArray[np.int64]  # (n_local,), the number of each row in the whole data set


def load_sample(
    manifest: Manifest,
    comm: Communicator,
    shares: Shares,
    seed: int = 0,
    budget: MemoryBudget | None = None,
    whole_groups: bool = False,
) -> Sample:
    """Read this rank's part of a sample of rows or `whole_groups`; `budget` counts if that is all. **Collective.**"""
    if min(shares) >= 1:
        block = dataset.load(manifest, comm, budget=budget, with_groups=whole_groups)
        return Sample(block, block.first_row + np.arange(len(block.labels)))
    first, last = (manifest.n * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    if ends := ends_in_memory(manifest, comm.rank):
        first, last = (end.row for end in ends)
    X, labels, rows = list[Any](), list[NDArray[np.int8]](), list[NDArray[np.int64]]()
    weights, groups = list[NDArray[Any]](), list[NDArray[np.uint64]]()
    codes: list[list[Any]] = [[] for _ in manifest.coded.maps]
    with comm.fail_together():
        for part in RowParts(manifest, first, last):
            numbers = part.first + np.arange(len(part.labels))
            keys = part.shard.read_groups(part.place) if whole_groups else None
            taken = in_sample(numbers if keys is None else keys, part.labels, shares, seed)
            X.append(part.X[taken])
            for code_group, of_part in zip(codes, part.shard.read_code_rows(part.place) if codes else (), strict=True):
                code_group.append(of_part[taken])
            labels.append(part.labels[taken])
            rows.append(numbers[taken])
            groups += [] if keys is None else [keys[taken]]
            weights += [] if part.weights is None else [part.weights[taken]]
    features = comm.root_first(lambda: _features(manifest, X, codes))
    with comm.fail_together():
        features.normalize(manifest.normalization)
    y = np.concatenate([np.empty(0, np.int8), *labels])
    a = in_range(np.concatenate([np.empty(0), *weights]), comm) if manifest.weights else None
    counts = comm.allgather(len(y))
    block = DataBlock(
        features,
        y,
        a,
        first_row=sum(counts[: comm.rank]),
        n=sum(counts),
        p=manifest.p,
        bytes_read=0,
        weighted=any(comm.allgather(dataset.other_weights(a))),
        groups=np.concatenate([np.empty(0, np.uint64), *groups]) if whole_groups else None,
    )
    return Sample(block, np.concatenate([np.empty(0, np.int64), *rows]))


def _features(
    manifest: Manifest, X: list[Any], codes: Sequence[list[NDArray[Any]]]
) -> SparseRows | DenseRows | CodedRows | SideBySide:
    """Return rows as features, from pieces of X and of the codes of each group, (rows, codes of a row) each."""
    groups: list[Any] = []
    if manifest.layout != "coded":
        nothing = np.empty((0, manifest.p_entries), manifest.dtype)
        if manifest.layout == "dense":
            groups.append(as_features(np.vstack([nothing, *X])))
        else:
            groups.append(as_features(scipy.sparse.vstack([scipy.sparse.csr_matrix(nothing), *X], "csr")))
    for code_map, pieces in zip(manifest.coded.maps, codes, strict=True):
        rows = np.concatenate([np.empty((0, code_map.n_codes), code_map.dtype), *pieces])
        groups.append(CodedRows(code_map, code_rows(rows, code_map), [0, len(rows)]))
    return groups[0] if len(groups) == 1 else SideBySide(groups)


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
    data: Manifest | DataBlock,
    measure: str | Measure,
    comm: Communicator,
    settings: Settings | None = None,
    bias: float | None = None,
    distribution: Distribution = AUTO,
    stop_wanted: Callable[[], bool] = lambda: False,
    budget: MemoryBudget | None = None,
) -> LambdaChoice:
    """Choose a lambda for a training on these data, by the same measure on held-out rows; `settings` count but for
    lambda, target and limits. **Collective.** Raises InputError on all ranks if the data cannot be read.
    """
    begun, measure = time.perf_counter(), Measure.parse(measure)
    if measure.k and measure.k > data.n:
        raise InputError(f"{measure.name}: there are {data.n:,} training rows, and K cannot be larger", everywhere=True)
    if settings is None:
        settings = settings_for(measure, choose_solver(None, measure, comm)[0], lam=DEFAULT_LAMBDA)
    share_folds = isinstance(data, Manifest) and _shares_folds(data, measure, comm)
    readers = ALONE if share_folds else comm  # each rank reads the whole sample, or its own part
    sample, by, fold_keys = _sample(data, measure, readers, budget)
    counts = _class_counts(sample.block, readers)
    n_folds, by_measure = number_of_folds(counts), choice.chooser(measure.name, None)

    def result(lam: float, means: list[Mean], reason: str, chance: str = "") -> LambdaChoice:
        return LambdaChoice(lam, means, sum(counts), time.perf_counter() - begun, reason, chance, by_measure)

    too_few = f"the default, since {min(counts)} rows of the rarer class are too few to compare lambdas"
    if n_folds < 2:
        return result(DEFAULT_LAMBDA, [], too_few)
    if distribution.step == "auto":
        distribution = distribution._replace(step="root")
    problem = Problem(measure.name, GRID, n_folds, 0, settings, distribution, folds_by=by, bias=bias)
    try:
        trained = cross_validate(PathRows(sample.block, comm, fold_keys, share_folds), problem, stop_wanted)
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
    lam = moderate.chosen.lam
    whole = (data.n_pos, data.n_neg) if isinstance(data, Manifest) else _class_counts(data, comm)
    share = min(counts) * (1 - 1 / n_folds) / min(whole)
    if (lam := for_more_rows(lam, moderate.low.lam, means, share)) != moderate.chosen.lam:
        reason += (
            f". The training has {1 / share:.3g} times as many rows of the rarer class as that of a fold, with which a"
            f" smaller lambda is better: {moderate.chosen.lam:g} becomes {lam:g}"
        )
    return result(lam, means, f"{reason}. But {chance}" if chance else reason, chance)


def for_more_rows(lam: float, low: float, means: Sequence[Mean], share: float) -> float:
    """Return the lambda for more rows than folds had by this share: smaller, if those below `low` are worse."""
    if share > FEW or means[-1].lam >= low:
        return lam
    return float(f"{lam * max(share, LEAST):.1g}")


def _shares_folds(data: Manifest, measure: Measure, comm: Communicator) -> bool:
    """Return whether each rank should read the whole sample, and train the models of some folds alone. Local."""
    if ends_in_memory(data, comm.rank) is not None:
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
    of_rarer = min(rarer, rows // 4)
    share_of_rarer, share_of_other = of_rarer / rarer, (rows - of_rarer) / (n - rarer)
    if n_pos <= n_neg:
        return Shares(positive=share_of_rarer, negative=share_of_other)
    return Shares(positive=share_of_other, negative=share_of_rarer)


def _sample(
    data: Manifest | DataBlock, measure: Measure, comm: Communicator, budget: MemoryBudget | None
) -> tuple[Sample, str, NDArray[Any] | None]:
    """Return the sample, how its folds are made, and the keys of the folds. Collective."""
    if isinstance(data, Manifest):
        shares = sample_shares(data.n_pos, data.n_neg, data.nnz, measure)
        grouped = measure.within_groups is not None
        sample, by = (
            load_sample(data, comm, shares, budget=budget, whole_groups=grouped),
            folds.choose_folds_by(None, data),
        )
        if by == "rows":
            return sample, by, None
        with comm.fail_together():
            rows = sample.rows
            first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
            keys = folds.read_fold_keys(data, by, first, last)[rows - first]
        return sample, by, keys
    n_pos, n_neg = _class_counts(data, comm)
    rows = data.first_row + np.arange(len(data.labels))
    shares = sample_shares(n_pos, n_neg, int(comm.sum(np.array([data.features.nnz]))[0]), measure)
    groups = data.groups if measure.within_groups else None
    taken = in_sample(rows if groups is None else groups, data.labels, shares)
    weights = np.where(taken, 1.0 if data.weights is None else data.weights, 0.0)
    block = data if min(shares) >= 1 else replace(data, weights=weights)
    return Sample(block, rows), "rows" if groups is None else "groups", groups


def _class_counts(block: DataBlock, comm: Communicator) -> tuple[int, int]:
    """Return how many positive and negative rows count, over all ranks. Collective."""
    counts = [np.count_nonzero(block.counted & (block.labels == sign)) for sign in (1, -1)]
    n_pos, n_neg = map(int, comm.sum(np.array(counts)))
    return n_pos, n_neg
