"""Train models for a path of lambdas, on all rows (fold 0) and on the training rows of each fold.

Weights of 0 and 1 say on which rows a fold trains. Models are trained from the largest lambda to the smallest, each
from the one before, and those of all folds share their passes; with features of their own, they take turns.

A lambda is left out if what any lambda can gain (`optim.result.largest_gain`), by the bounds at others, is at most the
target for all rows and each fold. The smallest one is never left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.measures import GROUPED, RANKING, Measure
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.matrix.augmented import split_bias, with_bias
from distsms.metrics import confidence
from distsms.metrics.ranking import decision_threshold
from distsms.metrics.row_weights import mean_and_deviation
from distsms.metrics.summary import chooser_value, summary_measures
from distsms.optim.batching import BatchedSolve, solve_batched
from distsms.optim.objective import Objective
from distsms.optim.result import Result, Status, largest_gain
from distsms.optim.run import TrainingRun, scale_of
from distsms.optim.settings import Settings
from distsms.parallel.vectors import make_vectors
from distsms.shards.dataset import DataBlock, MemoryBudget, load
from distsms.shards.manifest import Manifest
from distsms.training.normal_auc_closed import ClosedForm, pays
from distsms.training.rows import make_losses
from distsms.training.task import Distribution
from distsms.workflow.choice import Point
from distsms.workflow.folds import Folds, make_folds, read_fold_keys
from distsms.workflow.verdict import ALL_TIED, scores_tie, why_chance, within_groups

FoldRows = Callable[[int], "PathRows"]
"""Returns the rows for the models of a fold, whose `block` is this rank's. Collective."""
Start = Callable[[int, float], Floats | None]
"""Returns on the root the w (p,) from which the training at a lambda, the first of a fold, starts; None: from 0."""
Keep = Callable[[Point, Result, Floats | None], None]
"""Called on the root with each finished point, its result with the whole w (p,), and the scores of the fold's held-out
rows of all ranks, in the order of the rows, if `Problem.scores` asks for them.
"""
ALONE = Communicator()
ON_ROOT = Distribution(step="root")
SMALL = 2**21  # of at most so many rows and entries together, messages between ranks cost more than evaluations
SCORE_BYTES = 2**28  # for the scores of the models that are scored in the same pass, if no plan says another number


@dataclass(frozen=True)
class Problem:
    """What all trainings of a path have in common."""

    measure: str
    lambdas: Sequence[float]  # from the largest to the smallest
    folds: int  # 0: only models of all rows
    seed: int
    settings: Settings  # of each training, except for lambda
    distribution: Distribution = ON_ROOT
    at_once: int = 2**30  # how many trainings share a pass
    folds_by: str = "rows"  # see `distsms.workflow.folds`
    all_rows: bool = True  # whether there are models of all rows; if not, only what a search needs is measured
    select: str | None = None  # the measure of held-out rows that chooses, if not `measure`
    bias: float | None = None  # the value of a constant feature, which is then the last column of the models
    scored: int | None = None  # of a closed form: how many models are scored in a pass; 0: there is none; None: decide
    scores: bool = False  # whether `Keep` gets the scores of the held-out rows of all ranks, (n_fold,)

    @property
    def chooser(self) -> str:
        """The measure of held-out rows that chooses among models."""
        return self.select or self.measure

    @property
    def needs_groups(self) -> bool:
        """Whether the groups of the rows are needed, besides for the folds."""
        return self.measure in GROUPED or self.select in GROUPED

    @property
    def trained_folds(self) -> range:
        """The folds whose models are trained, with 0 for all rows."""
        return range(0 if self.all_rows else 1, self.folds + 1)


class PathOutcome(NamedTuple):
    """The outcome of a path; the same on every rank."""

    points: list[Point]  # those that this call computed
    stopped: bool = False
    passes: int = 0  # how many passes over the data the evaluations took
    evaluations: int = 0
    left_out: Mapping[float, float] = {}  # lambdas without points, and the most to gain there


def joined(runs: Sequence[PathOutcome]) -> PathOutcome:
    """Return what several runs did together."""
    return PathOutcome(
        points=[point for run in runs for point in run.points],
        stopped=any(run.stopped for run in runs),
        passes=sum(run.passes for run in runs),
        evaluations=sum(run.evaluations for run in runs),
        left_out={lam: gain for run in runs for lam, gain in run.left_out.items()},
    )


@dataclass(frozen=True)
class PathRows:
    """The rows of a path, and how the ranks hold them."""

    block: DataBlock | FoldRows  # this rank's rows, or what returns them for each fold, which excludes `share_folds`
    comm: Communicator  # all ranks
    fold_keys: NDArray[Any] | None = None  # (n_local,), `folds.read_fold_keys` of them; folds by rows need none
    # Whether the ranks share the folds and not the rows: each has all rows, and trains the models of some folds alone.
    # This is for small data, for which messages cost more than evaluations.
    share_folds: bool = False

    @property
    def data(self) -> DataBlock:
        """This rank's rows, if they are the same for all folds."""
        assert isinstance(self.block, DataBlock)
        return self.block

    def of_fold(self, fold: int) -> PathRows:
        """Return the rows for the models of a fold. **Collective.**"""
        return self if isinstance(self.block, DataBlock) else self.block(fold)

    @property
    def trainers(self) -> Communicator:
        """The ranks that train a model together."""
        return ALONE if self.share_folds else self.comm

    def fail_together(self) -> AbstractContextManager[None]:
        """Return in what this rank's trainings run: of ranks that share the folds, one alone may fail."""
        return self.comm.fail_together() if self.share_folds else nullcontext()

    def folds_of_rank(self, problem: Problem) -> Sequence[int]:
        """Return the folds whose models this rank trains, alone or with the others. Local."""
        folds = problem.trained_folds
        return folds[self.comm.rank :: self.comm.size] if self.share_folds else folds

    def make_folds(self, problem: Problem) -> Folds:
        """Assign the rows of `block` to the folds of a problem. **Collective** among `trainers`."""
        counted, labels = self.data.counted, self.data.labels
        if not problem.folds:
            return Folds(np.zeros(len(counted), np.int16), counted)
        keys = counted if self.fold_keys is None else self.fold_keys
        groups = self.data.groups if problem.chooser in GROUPED else None
        return make_folds(problem.folds_by, keys, labels, counted, problem.folds, problem.seed, self.trainers, groups)


def load_rows(
    manifest: Manifest,
    problem: Problem,
    comm: Communicator,
    budget: MemoryBudget | None,
    share_folds: bool = False,
    made_from: Manifest | None = None,
) -> PathRows:
    """Load this rank's rows or, to `share_folds`, all, with fold keys of what they were `made_from`. **Collective.**"""
    share = (0, 1) if share_folds else None
    block, keys = load(manifest, comm, share=share, budget=budget, with_groups=problem.needs_groups), None
    with comm.fail_together():
        if problem.folds:
            last = block.first_row + len(block.labels)
            keys = read_fold_keys(made_from or manifest, problem.folds_by, block.first_row, last)
    return PathRows(block, comm, keys, share_folds)


def run(
    rows: PathRows,
    problem: Problem,
    keep: Keep,
    earlier: Sequence[Point] = (),
    start: Start = lambda fold, lam: None,
    stop_wanted: Callable[[], bool] = lambda: False,
    extend: Callable[[Sequence[Point]], float | None] = lambda points: None,
    kept: dict[int, HeldOutScores] | None = None,
) -> PathOutcome:
    """Solve the points that are not done yet, and pass each one to `keep` when it is finished. **Collective.** `keep`
    and `start` are called on the root or, if the ranks share the folds, where the fold is trained; `extend` gets the
    points of this call when all lambdas are solved, and returns another lambda or None; `kept` gets the scores of each
    fold's last model. Raises InputError on all ranks if a class has too few rows.
    """
    comm = rows.comm

    def decide_next() -> tuple[list[float], dict[float, float]]:
        """Return the next lambdas, and those to leave out, by the bounds proved so far. The root calls this."""
        lambdas, left_out = next_lambdas(problem, [*earlier, *outcome.points])
        further = None if lambdas else extend(outcome.points)
        return lambdas if further is None else [further], left_out

    with rows.fail_together():  # the rows of one fold may be refused
        models = Trainings(rows, problem, stop_wanted, kept)
    outcome, earlier = PathOutcome([]), comm.bcast(list(earlier))
    with models.vectors:
        while not outcome.stopped:
            lambdas, left_out = comm.of_root(decide_next)
            outcome = outcome._replace(left_out=left_out)
            if not lambdas:
                break
            # Of these, each fold solves those for which it has no point.
            done = {(point.lam, point.fold) for point in [*earlier, *outcome.points]}
            missing = [[lam for lam in lambdas if (lam, fold) not in done] for fold in models.numbers]
            with rows.fail_together():
                trained = models.run(keep, missing, start)
            outcome = joined([outcome, *(comm.allgather(trained) if rows.share_folds else [trained])])
    return outcome


def shares_folds(n: int, nnz: int, comm: Communicator) -> bool:
    """Return whether the ranks should share the folds rather than the rows, for n rows and nnz entries. Local."""
    return comm.size > 1 and n + nnz <= SMALL


class HeldOutScores(NamedTuple):
    """The scores that the model of a fold gives this rank's rows of the fold."""

    rows: Scored
    spread: tuple[float, float]  # mean and deviation of the model's scores of its training rows


class Assessment(NamedTuple):
    """What is measured of a model; the same on every rank, but for `scores`."""

    threshold: float
    training: Mapping[str, float]  # the measures on the training rows; empty if only a search needs them
    held_out: Mapping[str, Any] | None  # those on the held-out rows; None for fold 0, which is trained on all rows
    chance: str  # why the model ranks its training rows no better than chance; "" if it ranks them better
    scores: Floats | None  # on the root, those of the held-out rows of all ranks, if the problem asks for them


class CrossValidation(Objective):
    """The objective of trainings of folds, by default this rank's, with a loss for each, and their models' measures."""

    def __init__(
        self,
        rows: PathRows,
        problem: Problem,
        stop_wanted: Callable[[], bool] = lambda: False,
        kept: dict[int, HeldOutScores] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        block, comm = rows.data, rows.trainers
        self.problem, self._measure, self._block, self._kept = problem, Measure.parse(problem.measure), block, kept
        self.numbers = rows.folds_of_rank(problem) if numbers is None else numbers
        self.folds = rows.make_folds(problem)
        training = [self.folds.training(fold) for fold in self.numbers]
        _, losses = make_losses(block, problem.measure, problem.distribution.ordering, comm, training)
        features = with_bias(block.features, problem.bias)
        vectors = make_vectors(problem.distribution.step, features.shape[1], comm)
        super().__init__(features, losses, comm, stop_wanted, vectors=vectors, weights=block.weights)
        self._failure: Exception | None = None  # of `keep`
        self.prove_to(problem.settings.target)
        self._closed: ClosedForm | None = None
        may_be_closed, l1 = losses and problem.scored != 0, problem.settings.l1
        if may_be_closed and (problem.scored or pays(block, problem.measure, comm, l1, len(losses))):
            self._closed = ClosedForm(block, comm, self.folds.number, problem.folds, self.folds.forward)

    @cached_property
    def scale(self) -> Floats | None:
        """What `scale_of` returns. **Collective.**"""
        return scale_of(self, replace(self.problem.settings, lam=self.problem.lambdas[0]))

    def run(self, keep: Keep, lambdas: Sequence[Sequence[float]], start: Start) -> PathOutcome:
        """Solve these lambdas of each fold as `run`; ends after the largest if nothing was gained. **Collective.**"""
        outcome = self._run(keep, lambdas, start)
        with self.comm.fail_together():
            if self._failure is not None:
                raise self._failure
        return outcome

    def _run(self, keep: Keep, lambdas: Sequence[Sequence[float]], start: Start) -> PathOutcome:
        vectors, settings, comm = self.vectors, self.problem.settings, self.comm
        closed = PathOutcome([])
        if self._closed is not None:
            closed, lambdas = self._solve_closed(self._closed, keep, lambdas)
        if closed.stopped or not any(lambdas):
            return closed
        starts, scale, evaluated = list[Floats](), self.scale, self.evaluations
        for fold, lambdas_of_fold in zip(self.numbers, lambdas, strict=True):
            with comm.fail_together():
                w = start(fold, lambdas_of_fold[0]) if comm.is_root and lambdas_of_fold else None
            # Another version may have made other features, with another number of columns.
            of_root = comm.bcast(w is not None and len(w) == self.features.shape[1])
            starts.append(vectors.scatter(w) if of_root else np.zeros(vectors.length))
        points: list[Point] = []
        stopped: list[int] = []

        def solve_fold(solve: BatchedSolve, k: int) -> None:
            w = starts[k]
            for lam in lambdas[k]:
                # 1) Train, unless the pass that proved the training before, or another fold's, asked to stop.
                result = None
                if not solve.stop_requested:
                    result = TrainingRun(solve, replace(settings, lam=lam), scale).run(w)
                if result is None or result.status is Status.STOPPED:
                    stopped.append(k)
                    return
                # 2) Measure the model, and keep it on the root.
                w = result.w
                assessment = solve.assessment(w)
                whole = vectors.gather(w)
                if whole is not None:
                    points.append(self._keep(keep, k, lam, replace(result, w=whole), assessment))
                # 3) The next training starts from this model, unless nothing was gained.
                if lam == self.problem.lambdas[0] and gained_nothing(result.J, result.J_at_zero, settings):
                    return

        solves = [lambda solve, k=k: solve_fold(solve, k) for k in range(len(self.numbers))]
        passes = solve_batched(self, solves, self.problem.at_once)
        points, passes, was_stopped = comm.bcast((points, passes, bool(stopped)))
        return joined([closed, PathOutcome(points, was_stopped, passes, self.evaluations - evaluated)])

    def _keep(self, keep: Keep, k: int, lam: float, result: Result, assessed: Assessment) -> Point:
        """Return the point of a trained model, and pass it to `keep`. On the root."""
        problem = self.problem
        numbers = result.numbers() | {"vacuous": result.vacuous, "idle": result.idle, "chance": assessed.chance}
        if problem.settings.l1:
            numbers["nonzeros"] = int(np.count_nonzero(split_bias(result.w, problem.bias)[0]))
        point = Point(lam, self.numbers[k], numbers, assessed.threshold, assessed.training, assessed.held_out)
        try:
            keep(point, result, assessed.scores)
        except Exception as error:  # the other ranks wait for evaluations, and have to be stopped first
            self._failure, self.stop_wanted = error, lambda: True
        return point

    def _solve_closed(
        self, closed_form: ClosedForm, keep: Keep, lambdas: Sequence[Sequence[float]]
    ) -> tuple[PathOutcome, list[list[float]]]:
        """Solve the lambdas of each fold as far as the closed form proves them; return what is left. **Collective.**"""
        comm, problem = self.comm, self.problem
        left = [list(of_fold) for of_fold in lambdas]
        missing = [(k, lam) for k, of_fold in enumerate(lambdas) for lam in of_fold]
        points, passes, closed_form.passes = list[Point](), closed_form.passes, 0
        largest_share = int(comm.maximum(np.array([self.features.shape[0]]))[0])
        at_once = problem.scored or max(len(self.numbers), SCORE_BYTES // (8 * max(largest_share, 1)))
        for first in range(0, len(missing), at_once):
            if comm.maximum(np.array([float(self.stop_wanted())]))[0]:
                return PathOutcome(comm.bcast(points), True, passes), left
            # 1) The root solves as many as are scored in a pass.
            solved = list[tuple[int, float, Result]]()
            for k, lam in missing[first : first + at_once] if comm.is_root else ():
                settings = replace(problem.settings, lam=lam)
                if result := closed_form.result(self.numbers[k], settings, bool(problem.bias)):
                    solved.append((k, lam, result))
            solved = comm.bcast(solved)
            if not solved:
                continue
            # 2) All ranks score and measure them.
            scores = self.features.margins(np.array([result.w for _, _, result in solved]))
            passes += 1
            for (k, lam, result), of_model in zip(solved, scores, strict=True):
                assessment = self.assess(of_model, k)
                left[k].remove(lam)
                if comm.is_root:
                    points.append(self._keep(keep, k, lam, result, assessment))
        return PathOutcome(comm.bcast(points), False, passes), left

    def assess(self, scores: Floats, loss: int) -> Assessment:
        """Measure the model of a fold on the rows that it trained on and those that it holds out. **Collective.**"""
        comm, problem, fold = self.comm, self.problem, self.numbers[loss]
        in_fold = self.folds.judged(fold) & bool(fold)
        training, held_out = self._scored(scores, self.folds.training(fold)), self._scored(scores, in_fold)
        scores_of_all = comm.gather_rows(held_out.scores) if problem.scores and fold else None
        if self._kept is not None and fold:
            self._kept[fold] = HeldOutScores(held_out, mean_and_deviation(training))
        threshold = decision_threshold(self.losses[loss].calls_positive, training)
        if not problem.all_rows:
            chance = ALL_TIED * scores_tie(scores, comm)
            return Assessment(threshold, {}, self._measures(held_out, threshold), chance, scores_of_all)
        measures = self._measures(training, threshold)
        chance = why_chance(training, measures["rocarea"], within_groups(self._measure, training))
        if not fold:
            return Assessment(threshold, measures, None, chance, scores_of_all)
        ranked = (name for name in (problem.select, self._measure.name) if name in RANKING or name in GROUPED)
        name = next(ranked, RANKING[0])
        spread = within_groups(Measure.parse(name), held_out) or confidence.measure_estimate(name, held_out)
        parts = {"squares": list(spread.squares), "counts": list(spread.counts), "squares_of": name}
        return Assessment(threshold, measures, self._measures(held_out, threshold) | parts, chance, scores_of_all)

    def _scored(self, scores: Floats, rows: NDArray[np.bool_]) -> Scored:
        """Return some rows with their scores, of the scores (n_local,) of all rows. Local."""
        block = self._block
        weights = block.weights if block.weighted else None
        return Scored(scores, block.labels, self.comm, weights, block.groups).of(rows)

    def _measures(self, rows: Scored, threshold: float) -> dict[str, Any]:
        select, measures = self.problem.select, summary_measures(self._measure, rows, threshold)
        if select and select not in measures:
            measures[select] = chooser_value(select, rows, threshold)
        return measures


class Trainings:
    """The trainings of this rank's folds: in the same passes or, with rows of their own, in turn. **Collective.**"""

    def __init__(
        self,
        rows: PathRows,
        problem: Problem,
        stop_wanted: Callable[[], bool] = lambda: False,
        kept: dict[int, HeldOutScores] | None = None,
    ) -> None:
        self.numbers = rows.folds_of_rank(problem)
        self._models = lambda fold: CrossValidation(rows.of_fold(fold), problem, stop_wanted, kept, [fold])
        self._of_all = CrossValidation(rows, problem, stop_wanted, kept) if isinstance(rows.block, DataBlock) else None
        # A `with` of them frees in the end what the ranks share.
        self.vectors: AbstractContextManager[Any] = nullcontext() if self._of_all is None else self._of_all.vectors

    def run(self, keep: Keep, lambdas: Sequence[Sequence[float]], start: Start) -> PathOutcome:
        """Do what `CrossValidation.run` does. **Collective.**"""
        if self._of_all is not None:
            return self._of_all.run(keep, lambdas, start)
        outcome = PathOutcome([])
        for fold, lambdas_of_fold in zip(self.numbers, lambdas, strict=True):
            if lambdas_of_fold and not outcome.stopped:
                models = self._models(fold)
                with models.vectors:
                    outcome = joined([outcome, models.run(keep, [lambdas_of_fold], start)])
                del models  # before the features of the next fold are made
        return outcome


def gained_nothing(J: float | None, J_at_zero: float | None, settings: Settings) -> bool:
    """Return whether J is not lower than J(0) by more than the target; None stands for a number that is not finite."""
    return J is not None and J_at_zero is not None and J_at_zero - J <= settings.target(J_at_zero)


def next_lambdas(problem: Problem, points: Sequence[Point]) -> tuple[list[float], dict[float, float]]:
    """Return the lambdas to train next, the largest first, and those to leave out, each with the most to gain there."""
    lambdas, settings = problem.lambdas, problem.settings
    of_folds: dict[int, dict[float, Any]] = {fold: {} for fold in problem.trained_folds}
    for point in points:
        of_folds.get(point.fold, {})[point.lam] = point.result
    missing = [lam for lam in lambdas if any(lam not in solved for solved in of_folds.values())]
    solved_somewhere = {min(lambdas)}.union(*of_folds.values())
    untouched = [lam for lam in missing if lam not in solved_somewhere]
    gains = {lam: [_gain(solved, lam, settings) for solved in of_folds.values()] for lam in untouched}
    left_out = {lam: max(of_lam) for lam, of_lam in gains.items() if of_lam and max(of_lam) < float("inf")}
    rest, first = [lam for lam in missing if lam not in left_out], lambdas[0]
    idle = all(
        first in solved and gained_nothing(solved[first]["J"], solved[first].get("J_at_zero"), settings)
        for solved in of_folds.values()
    )
    if idle and min(lambdas) in rest and Measure.parse(problem.measure).family.can_be_vacuous:
        rest = [min(lambdas)]
    return rest, left_out


def _gain(solved: dict[float, Any], lam: float, settings: Settings) -> float:
    """Return the most to gain at a lambda, by the results of others; infinity if more than the target."""
    bounds = [
        (largest_gain(result["J_at_zero"], result["lower_bound"], other, lam), result["J_at_zero"])
        for other, result in solved.items()
        if result["lower_bound"] is not None and result.get("J_at_zero") is not None
    ]
    return min((gain for gain, J_at_zero in bounds if gain <= settings.target(J_at_zero)), default=float("inf"))
