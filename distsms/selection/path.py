"""Train for a whole path of lambdas, on all rows and for each fold, and choose a lambda.

A *lane* is one sequence of trainings on one set of rows. Lane 0 trains on all rows. Lane f trains on the rows that fold
f does not hold out: those outside the fold or, for folds in time, those before it. The data are held once; weights of 0
and 1 say which rows a lane trains on. Each lane goes from the largest lambda to the smallest, and each training starts
from the model of the one before it. All lanes advance together and share their passes over the data
(`distsms.optim.batching`). A finished point is written to disk at once, whether its gap was proved or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.data.shards.dataset import DataBlock
from distsms.measures import Measure
from distsms.metrics import confidence
from distsms.metrics.confidence import Interval, MeanEstimate
from distsms.metrics.headline import decision_threshold, headline_measures
from distsms.optim.batching import BatchedSolve, solve_batched
from distsms.optim.objective import Objective
from distsms.optim.result import Result, Status
from distsms.optim.run import TrainingRun, scale_of
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.parallel.vector_placement import make_vectors
from distsms.selection.folds import Folds, best_on_other_folds, dealt
from distsms.training.objectives import make_losses
from distsms.utils.timing import Clock
from distsms.utils.typing import Floats, Labels

RULES = ("best", "one-se")


class Point(NamedTuple):
    """The outcome of one training: one lambda of one lane. Measures are given by name, as in `headline_measures`."""

    lam: float
    lane: int
    result: Mapping[str, Any]  # of `Result.numbers`, and `vacuous` and `idle`
    threshold: float
    training: Mapping[str, float]  # on the lane's own rows
    held_out: Mapping[str, Any] | None  # on the fold's rows, with `MeanEstimate.squares`, `counts`; lane 0 has none


@dataclass(frozen=True)
class Problem:
    """What all lanes have in common."""

    measure: str
    lambdas: Sequence[float]  # falling
    folds: int  # 0: the path alone
    seed: int
    settings: Settings  # of each point, but for lambda
    ordering: str = "auto"
    step: str = "root"
    at_once: int = 2**30  # how many lanes advance in one pass
    folds_by: str = "rows"  # see `distsms.selection.folds`


class Run(NamedTuple):
    """The outcome of all lanes; the same on every rank."""

    points: list[Point]  # those that this call computed
    stopped: bool
    passes: int  # over the data that evaluations took
    evaluations: int


def run(
    block: DataBlock,
    problem: Problem,
    comm: Communicator,
    keep: Callable[[Point, Result], None],
    done: Callable[[float, int], bool] = lambda lam, lane: False,
    start: Callable[[int], Floats | None] = lambda lane: None,
    stop_wanted: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
    belonging: NDArray[Any] | None = None,
) -> Run:
    """Solve the points that are not done yet, and pass each one to `keep` when it is finished. **Collective.**

    Parameters
    ----------
    block : DataBlock
        This rank's rows.
    problem : Problem
        What is trained; the same on every rank.
    comm : Communicator
        All ranks.
    keep : callable
        Called on the root with each finished point and its result, which holds the whole w (p,).
    done : callable
        Says whether the point of a lambda and a lane is on disk already.
    start : callable
        Called on the root with the number of a lane; returns the w (p,) from which the lane starts, or None for 0.
    stop_wanted : callable
        As for `Objective`. If it stops the run, the points that are not finished are lost.
    clock : Clock, optional
        Measures the phases.
    belonging : ndarray of shape (n_local,), optional
        `folds.read_fold_keys` of this rank's rows; folds by rows need none.

    Returns
    -------
    Run
        The same on every rank.

    Raises
    ------
    InputError
        On all ranks, if a class has fewer rows than there are folds.

    Notes
    -----
    Each lane needs the memory of a training besides the data, and a few bytes for each row.
    """
    lanes = Lanes(block, problem, comm, stop_wanted, clock, belonging)
    found = lanes.run(keep, [[lam for lam in problem.lambdas if not done(lam, f)] for f in lanes.numbers], start)
    lanes.vectors.close()
    return found


class LaneObjective(Objective):
    """The objective of all lanes; it also measures the model of a lane.

    Attributes
    ----------
    measure : Measure
        The measure that the lanes optimize.
    labels : ndarray of shape (n_local,)
        The labels of this rank's rows.
    folds : Folds
        Which rows each lane trains on, and which it holds out.
    """

    measure: Measure
    labels: Labels
    folds: Folds

    def assess(self, scores: Floats, loss: int) -> tuple[float, Mapping[str, float], Mapping[str, Any] | None]:
        """Return the threshold of a lane's model and its measures on training and held-out rows. **Collective.**

        Lane 0 trains on all rows, so its held-out measures are None.
        """
        labels, comm, own = self.labels, self.comm, self.folds.training(loss)
        threshold = decision_threshold(self.losses[loss].calls_positive, scores[own], labels[own], comm)
        training = headline_measures(self.measure, scores[own], labels[own], threshold, comm)
        if not loss:
            return threshold, training, None
        out = self.folds.judged(loss)
        spread = confidence.measure_estimate(self.measure.name, scores[out], labels[out], comm)
        parts = {"squares": list(spread.squares), "counts": list(spread.counts)}
        return threshold, training, headline_measures(self.measure, scores[out], labels[out], threshold, comm) | parts


class Lanes:
    """All lanes of a problem, on this rank's rows. Creating it is **collective.**"""

    def __init__(
        self,
        block: DataBlock,
        problem: Problem,
        comm: Communicator,
        stop_wanted: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
        belonging: NDArray[Any] | None = None,
    ) -> None:
        self.block, self.problem, self.comm = block, problem, comm
        self.numbers = range(problem.folds + 1)
        counted = block.counted
        self.folds = Folds(np.zeros(len(counted), np.int16), counted)
        if problem.folds:
            marks = counted if belonging is None else belonging
            how = problem.folds, problem.seed, comm
            self.folds = dealt(problem.folds_by, marks, block.labels, counted, *how)
        rows = [self.folds.training(lane) for lane in self.numbers]
        _, losses = make_losses(block, problem.measure, problem.ordering, comm, rows)
        self.vectors = make_vectors(problem.step, block.features.shape[1], comm)
        self.objective = LaneObjective(block.features, losses, comm, stop_wanted, clock, self.vectors)
        self.objective.measure, self.objective.labels = Measure.parse(problem.measure), block.labels
        self.objective.folds = self.folds

    def run(
        self,
        keep: Callable[[Point, Result], None],
        lambdas: Sequence[Sequence[float]],
        start: Callable[[int], Floats | None] = lambda lane: None,
    ) -> Run:
        """Solve the lambdas that are given for each lane; the other parameters are those of `run`. **Collective.**"""
        vectors, settings, comm = self.vectors, self.problem.settings, self.comm
        scale = scale_of(self.objective, replace(settings, lam=self.problem.lambdas[0]))
        starts = [self._dealt(start(lane) if comm.is_root else None) for lane in self.numbers]
        points: list[Point] = []

        def lane(seat: BatchedSolve, number: int) -> None:
            w = starts[number]
            for lam in lambdas[number]:
                result = TrainingRun(seat, replace(settings, lam=lam), scale).run(w)
                if result.status is Status.STOPPED:
                    return
                w = result.w
                numbers = result.numbers() | {"vacuous": result.vacuous, "idle": result.idle}
                points.append(Point(lam, number, numbers, *seat.assessment(w)))
                whole = vectors.gather(w)
                if whole is not None:
                    keep(points[-1], replace(result, w=whole))

        solves = [lambda seat, number=number: lane(seat, number) for number in self.numbers]
        passes = solve_batched(self.objective, solves, self.problem.at_once)
        points, passes = comm.bcast((points, passes))
        return Run(points, len(points) < sum(map(len, lambdas)), passes, self.objective.evaluations)

    def _dealt(self, whole: Floats | None) -> Floats:
        """Return this rank's slice of the root's start vector, or zeros if the root has none. **Collective.**"""
        given = self.comm.bcast(whole is not None)
        return self.vectors.scatter(whole) if given else np.zeros(self.vectors.length)


class Mean(NamedTuple):
    """The mean of the measure over the held-out folds at a lambda, and its standard error."""

    lam: float
    mean: float
    error: float


class Choice(NamedTuple):
    """The lambda that was chosen, and how flat the measure is around the best one.

    Attributes
    ----------
    best : Mean
        The best mean among the usable lambdas (see `faults`).
    chosen : Mean
        What the rule chooses.
    low, high : Mean
        The smallest and the largest lambda of the run around the best one in which all means are within one standard
        error of the best mean.
    instead_of : Mean or None
        What the rule would choose if all lambdas were usable, where that is not `chosen`.
    """

    best: Mean
    chosen: Mean
    low: Mean
    high: Mean
    instead_of: Mean | None = None


def means(points: Sequence[Point], measure: str) -> list[Mean]:
    """Return the means over the folds, by falling lambda, for each lambda that has a point of every fold.

    The standard error of a mean is s / sqrt(folds), where s is the sample standard deviation of the folds' measures.
    """
    folds = max((point.lane for point in points), default=0)
    curve = []
    for lam in sorted({point.lam for point in points}, reverse=True):
        here = [point.held_out for point in points if point.lam == lam and point.held_out is not None]
        values: list[Any] = [held_out.get(measure) for held_out in here]
        if folds and len(values) == folds and None not in values:
            curve.append(Mean(lam, float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(folds)))
    return curve


def expected(points: Sequence[Point], measure: str, rule: str = "best") -> Interval | None:
    """Estimate the measure that this way of choosing lambda reaches, with its interval.

    It is the mean over the folds, where each fold is evaluated at the lambda that the rule chooses by the other folds,
    so that no fold is evaluated by a choice that it took part in. The result is None if no lambda has a point of every
    fold, or if the points were written by a version that did not keep `squares`.
    """
    held = {(point.lam, point.lane): point.held_out for point in points if point.held_out}
    lams, folds = [mean.lam for mean in means(points, measure)], sorted({fold for _, fold in held})
    if not lams or any("squares" not in held_out for held_out in held.values()):
        return None
    values = np.array([[held[lam, fold][measure] for fold in folds] for lam in lams])
    if rule == "best" or len(folds) < 3:  # the mean of one other fold has no standard error
        at = [lams[k] for k in best_on_other_folds(values)]
    else:
        at, unusable = [], faults(points)
        for k in range(len(folds)):
            others = np.delete(values, k, axis=1)
            errors = np.std(others, axis=1, ddof=1) / math.sqrt(others.shape[1])
            curve = [Mean(*mean) for mean in zip(lams, others.mean(axis=1).tolist(), errors.tolist(), strict=True)]
            at.append(choose(curve, rule, unusable).chosen.lam)
    chosen = [held[lam, fold] for lam, fold in zip(at, folds, strict=True)]
    pooled = confidence.pool_folds(
        [MeanEstimate(fold[measure], tuple(fold["squares"]), tuple(fold["counts"])) for fold in chosen]
    )
    if measure == "rocarea":
        return confidence.rocarea_interval(pooled, confidence.LEVEL)
    return confidence.prbep_interval(pooled, np.empty(0), confidence.LEVEL)


def faults(points: Sequence[Point]) -> dict[float, str]:
    """Return the lambdas whose models are not usable, and why.

    The model of all rows is hardly better than w = 0, or the mean ROCArea of the held-out folds is not more than one
    standard error above that of chance, 0.5.
    """
    reasons = {}
    for point in points:
        if not point.lane and (point.result["vacuous"] or point.result.get("idle")):
            reasons[point.lam] = "no better than w = 0"
    for mean in means(points, "rocarea"):
        if mean.mean - mean.error <= 0.5:
            reasons.setdefault(mean.lam, "ROCArea of the folds not above chance")
    return reasons


def choose(curve: Sequence[Mean], rule: str, without: Collection[float] = ()) -> Choice:
    """Choose a lambda.

    Parameters
    ----------
    curve : sequence of Mean
        The means, at least one, by falling lambda.
    rule : {"best", "one-se"}
        Take the lambda of the best mean (the largest one if several are equal), or the largest lambda of the run around
        it in which all means are within one standard error of the best one.
    without : collection of float
        Lambdas that are not chosen as long as there are others; see `faults`.

    References
    ----------
    Breiman et al., Classification and Regression Trees (1984), section 3.4.3.
    """
    usable = [i for i, mean in enumerate(curve) if mean.lam not in without] or range(len(curve))
    at = max(usable, key=lambda i: curve[i].mean)
    least, first, last = curve[at].mean - curve[at].error, at, at
    while first - 1 in usable and curve[first - 1].mean >= least:
        first -= 1
    while last + 1 in usable and curve[last + 1].mean >= least:
        last += 1
    chosen = curve[first if rule == "one-se" else at]
    alone = choose(curve, rule).chosen if without else chosen
    return Choice(curve[at], chosen, curve[last], curve[first], None if alone == chosen else alone)
