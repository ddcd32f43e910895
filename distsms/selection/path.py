"""Train models for a path of lambdas, on all rows and on the training rows of each fold.

Fold 0 stands for all rows. The models of fold f are trained on the rows outside of the fold or, for folds by time, on
the rows before it. There is one copy of the data; weights of 0 and 1 say on which rows a fold trains. For each fold,
models are trained from the largest lambda to the smallest, and each training starts from the model of the lambda
before. The trainings of all folds advance together and share their passes over the data
(`distsms.optim.batching`). A finished point is written to disk at once, whether its gap was proved or not. Lambdas
at which the points so far prove that w = 0 is as good are left out (`distsms.selection.left_out`).

If features are made for each fold, each fold has rows of its own. Then the folds are trained one after the other
(`FoldByFold`), and only the rows of one of them are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.data.shards.dataset import DataBlock
from distsms.matrix.augmented import split_bias, with_bias
from distsms.measures import GROUPED, Measure
from distsms.optim.batching import BatchedSolve, solve_batched
from distsms.optim.result import Status
from distsms.optim.run import TrainingRun, scale_of
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.parallel.vector_placement import make_vectors
from distsms.selection.closed_points import closed_points
from distsms.selection.folds import Folds, make_folds
from distsms.selection.folds_objective import FoldsObjective, KeptScores
from distsms.selection.left_out import gained_nothing, next_lambdas
from distsms.selection.point import Point
from distsms.training.closed_form import ClosedForm, pays
from distsms.training.objectives import make_losses
from distsms.utils.timing import Clock
from distsms.utils.typing import Floats

FoldRows = Callable[[int], tuple[DataBlock, NDArray[Any] | None]]
"""Returns this rank's rows for the models of a fold, and the keys of these rows as for `make_folds`. Collective."""
RULES = ("best", "one-se")
ALONE = Communicator()
SMALL = 2**21
"""If rows and entries together are at most this many, messages between ranks cost more than evaluations."""


@dataclass(frozen=True)
class Problem:
    """What all trainings of a path have in common."""

    measure: str
    lambdas: Sequence[float]  # from the largest to the smallest
    folds: int  # 0: only models of all rows
    seed: int
    settings: Settings  # of each training, except for lambda
    ordering: str = "auto"
    step: str = "root"
    at_once: int = 2**30  # how many trainings share a pass
    folds_by: str = "rows"  # see `distsms.selection.folds`
    all_rows: bool = True  # whether there are models of all rows; if not, only what a search needs is measured
    select: str | None = None  # the measure of held-out rows that chooses, if not `measure`
    bias: float | None = None  # the value of a constant feature, which is then the last column of the models
    scored: int | None = None  # of a closed form: how many models are scored in a pass; 0: there is none; None: decide
    scores: bool = False  # whether `keep` is also given the scores of the held-out rows of all ranks, (n_fold,)

    @property
    def needs_groups(self) -> bool:
        """Whether the groups of the rows are needed, besides for the folds."""
        return self.measure in GROUPED or self.select in GROUPED


class Run(NamedTuple):
    """The outcome of a path; the same on every rank."""

    points: list[Point]  # those that this call computed
    stopped: bool
    passes: int  # how many passes over the data the evaluations took
    evaluations: int
    left_out: Mapping[float, float]  # lambdas without points, and the most to gain there


def run(
    block: DataBlock | FoldRows,
    problem: Problem,
    comm: Communicator,
    keep: Callable[..., None],
    known: Sequence[Point] = (),
    start: Callable[[int, float], Floats | None] = lambda fold, lam: None,
    stop_wanted: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
    fold_keys: NDArray[Any] | None = None,
    extend: Callable[[Sequence[Point]], float | None] = lambda points: None,
    share_folds: bool = False,
) -> Run:
    """Solve the points that are not done yet, and pass each one to `keep` when it is finished. **Collective.**

    Parameters
    ----------
    block : DataBlock or FoldRows
        This rank's rows; or a function that returns them for each fold, 0 being all rows. The latter cannot share
        folds.
    problem : Problem
        What is trained; the same on every rank.
    comm : Communicator
        All ranks.
    keep : callable
        Called on the root with each finished point and its result, which holds the whole w (p,); if the problem asks
        for scores, also with those of the fold's held-out rows, in the order of the rows.
    known : sequence of Point
        On the root, the points that are on disk already; they are not solved again.
    start : callable
        Called on the root with a fold and the lambda that is solved first for it; returns the w (p,) to start from, or
        None for 0.
    stop_wanted : callable
        As for `Objective`. If it stops the run, the points that are not finished are lost.
    clock : Clock, optional
        Measures the phases.
    fold_keys : ndarray of shape (n_local,), optional
        `folds.read_fold_keys` of this rank's rows; folds by rows need none.
    extend : callable
        Called on the root with the points of this call when all lambdas so far are solved; returns another lambda to
        solve, or None to end.
    share_folds : bool
        If true, the ranks share the folds and not the rows: every rank has all rows in `block`, and trains the models
        of some folds alone. `keep` and `start` are then called on the rank that trains the fold. This is for small
        data, for which messages cost more than evaluations.

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
    The trainings of each fold need the memory of a training besides the data, and a few bytes for each row.
    """
    folds = range(0 if problem.all_rows else 1, problem.folds + 1)
    own = folds[comm.rank :: comm.size] if share_folds else folds
    inner = ALONE if share_folds else comm
    models = trainings(block, problem, inner, stop_wanted, clock, fold_keys, own)
    found, known = Run([], False, 0, 0, {}), comm.bcast(list(known))

    def waiting() -> tuple[list[float], Mapping[float, float]]:
        """Return the lambdas to solve next, and those that are left out so far. On the root."""
        points = [*known, *found.points]
        lambdas, left_out = next_lambdas(problem.measure, problem.settings, problem.lambdas, folds, points)
        if not lambdas and (another := extend(found.points)) is not None:
            lambdas = [another]
        return lambdas, left_out

    while True:
        with comm.fail_together():
            lambdas, left_out = waiting() if comm.is_root else ([], {})
        lambdas, left_out = comm.bcast((lambdas, left_out))
        found = found._replace(left_out=left_out)
        if not lambdas:
            break
        done = {(point.lam, point.fold) for point in [*known, *found.points]}
        further = models.run(keep, [[lam for lam in lambdas if (lam, fold) not in done] for fold in own], start)
        every = comm.allgather(further) if share_folds else [further]
        found = Run(
            found.points + [point for run in every for point in run.points],
            any(run.stopped for run in every),
            found.passes + sum(run.passes for run in every),
            sum(run.evaluations for run in every),
            left_out,
        )
        if found.stopped:
            break
    models.close()
    return found


def shares_folds(n: int, nnz: int, comm: Communicator) -> bool:
    """Return whether the ranks should share the folds rather than the rows, for n rows and nnz entries. Local."""
    return comm.size > 1 and n + nnz <= SMALL


class CrossValidation:
    """The trainings of some folds of a problem (by default of all), on this rank's rows. Creating it is **collective.**

    The parameters are those of `run`, and `numbers` has the folds. `kept` gets the scores of their held-out rows.
    """

    def __init__(
        self,
        block: DataBlock,
        problem: Problem,
        comm: Communicator,
        stop_wanted: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
        fold_keys: NDArray[Any] | None = None,
        numbers: Sequence[int] | None = None,
        kept: dict[int, KeptScores] | None = None,
    ) -> None:
        self.block, self.problem, self.comm = block, problem, comm
        self.numbers = range(problem.folds + 1) if numbers is None else numbers
        counted = block.counted
        self.folds = Folds(np.zeros(len(counted), np.int16), counted)
        if problem.folds:
            keys = counted if fold_keys is None else fold_keys
            how = problem.folds, problem.seed, comm
            self.folds = make_folds(problem.folds_by, keys, block.labels, counted, *how)
        rows = [self.folds.training(fold) for fold in self.numbers]
        _, losses = make_losses(block, problem.measure, problem.ordering, comm, rows)
        features = with_bias(block.features, problem.bias)
        self.vectors = make_vectors(problem.step, features.shape[1], comm)
        self.objective = FoldsObjective(features, losses, comm, stop_wanted, clock, self.vectors, block.weights)
        self.objective.prove_to(problem.settings.target)
        self.objective.measure, self.objective.labels = Measure.parse(problem.measure), block.labels
        self.objective.weights = block.weights if block.weighted else None
        self.objective.groups = block.groups
        self.objective.folds, self.objective.numbers = self.folds, self.numbers
        self.objective.select, self.objective.brief = problem.select, not problem.all_rows
        self.objective.scores, self.objective.kept = problem.scores, kept
        self.closed: ClosedForm | None = None
        what = block, problem.measure, comm, problem.settings.l1, len(losses)
        if losses and problem.scored != 0 and (problem.scored or pays(*what)):
            shares = self.folds.number, problem.folds, self.folds.forward
            self.closed = ClosedForm(block, comm, *shares)
        self.stop_wanted = stop_wanted

    @cached_property
    def scale(self) -> Floats | None:
        """What `scale_of` returns. **Collective.**"""
        return scale_of(self.objective, replace(self.problem.settings, lam=self.problem.lambdas[0]))

    def run(
        self,
        keep: Callable[..., None],
        lambdas: Sequence[Sequence[float]],
        start: Callable[[int, float], Floats | None] = lambda fold, lam: None,
    ) -> Run:
        """Solve the lambdas that are given for each fold; the other parameters are those of `run`. **Collective.**

        A fold ends after the largest lambda of the problem if nothing was gained there, so that `next_lambdas` can
        leave out others.
        """
        vectors, settings, comm = self.vectors, self.problem.settings, self.comm
        closed, stop, passes_of_closed = list[Point](), False, 0
        if self.closed is not None:
            closed, lambdas, stop, passes_of_closed = closed_points(self, self.closed, keep, lambdas)
        if stop or not any(lambdas):
            return Run(closed, stop, passes_of_closed, 0, {})
        starts, scale = list[Floats](), self.scale
        for fold, wanted in zip(self.numbers, lambdas, strict=True):
            with comm.fail_together():
                whole = start(fold, wanted[0]) if comm.is_root and wanted else None
            starts.append(self._scatter_start(whole))
        points: list[Point] = []
        stopped: list[int] = []

        def solve_fold(solve: BatchedSolve, k: int) -> None:
            w = starts[k]
            for lam in lambdas[k]:
                if solve.stop_requested:  # in the pass that proved the training before, or another fold's
                    stopped.append(k)
                    return
                result = TrainingRun(solve, replace(settings, lam=lam), scale).run(w)
                if result.status is Status.STOPPED:
                    stopped.append(k)
                    return
                w = result.w
                *measured, chance, scores = solve.assessment(w)
                numbers = result.numbers() | {"vacuous": result.vacuous, "idle": result.idle, "chance": chance}
                whole = vectors.gather(w)
                if whole is not None:
                    if settings.l1:
                        numbers["nonzeros"] = int(np.count_nonzero(split_bias(whole, self.problem.bias)[0]))
                    points.append(Point(lam, self.numbers[k], numbers, *measured))
                    keep(points[-1], replace(result, w=whole), *([scores] if self.problem.scores else []))
                if lam == self.problem.lambdas[0] and gained_nothing(result.J, result.J_at_zero, settings):
                    return

        solves = [lambda solve, k=k: solve_fold(solve, k) for k in range(len(self.numbers))]
        passes = solve_batched(self.objective, solves, self.problem.at_once)
        points, passes, was_stopped = comm.bcast((points, passes, bool(stopped)))
        return Run(closed + points, was_stopped, passes_of_closed + passes, self.objective.evaluations, {})

    def _scatter_start(self, whole: Floats | None) -> Floats:
        """Return this rank's slice of the root's start vector, or zeros if the root has none. **Collective.**"""
        given = self.comm.bcast(whole is not None)
        return self.vectors.scatter(whole) if given else np.zeros(self.vectors.length)

    def close(self) -> None:
        """Free what the ranks share."""
        self.vectors.close()


class FoldByFold:
    """The trainings of some folds that have rows of their own, one fold after the other.

    The parameters are those of `CrossValidation`, but `rows` returns the rows of each fold.
    """

    def __init__(
        self,
        rows: FoldRows,
        problem: Problem,
        comm: Communicator,
        stop_wanted: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
        numbers: Sequence[int] | None = None,
        kept: dict[int, KeptScores] | None = None,
    ) -> None:
        self._rows, self._problem, self._comm, self._kept = rows, problem, comm, kept
        self._stop_wanted, self._clock = stop_wanted, clock
        self.numbers = range(problem.folds + 1) if numbers is None else numbers
        self._evaluations = 0

    def run(
        self,
        keep: Callable[..., None],
        lambdas: Sequence[Sequence[float]],
        start: Callable[[int, float], Floats | None] = lambda fold, lam: None,
    ) -> Run:
        """Do what `CrossValidation.run` does. **Collective.**"""
        points, passes, stopped = list[Point](), 0, False
        for fold, wanted in zip(self.numbers, lambdas, strict=True):
            if not wanted or stopped:
                continue
            block, keys = self._rows(fold)
            how = self._stop_wanted, self._clock, keys, [fold], self._kept
            models = CrossValidation(block, self._problem, self._comm, *how)
            p = models.objective.features.shape[1]

            def fitting(fold: int, lam: float, p: int = p) -> Floats | None:
                """Return the start, if it is for these features: another version may have made others before."""
                w = start(fold, lam)
                return w if w is not None and len(w) == p else None

            try:
                found = models.run(keep, [wanted], fitting)
            finally:
                models.close()
            points, passes, stopped = points + found.points, passes + found.passes, found.stopped
            self._evaluations += found.evaluations
            del block, models, how  # before the rows of the next fold are read
        return Run(points, stopped, passes, self._evaluations, {})

    def close(self) -> None:
        """Nothing is left to free."""


def trainings(
    block: DataBlock | FoldRows,
    problem: Problem,
    comm: Communicator,
    stop_wanted: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
    fold_keys: NDArray[Any] | None = None,
    numbers: Sequence[int] | None = None,
    kept: dict[int, KeptScores] | None = None,
) -> CrossValidation | FoldByFold:
    """Return the trainings of some folds, on one block of rows, or on rows of each fold. **Collective.**

    The parameters are those of `CrossValidation`. Rows of each fold come with their own keys.
    """
    if isinstance(block, DataBlock):
        return CrossValidation(block, problem, comm, stop_wanted, clock, fold_keys, numbers, kept)
    return FoldByFold(block, problem, comm, stop_wanted, clock, numbers, kept)
