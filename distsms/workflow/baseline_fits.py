"""The fits of a baseline: which there are, the folder that keeps them, and making them, in one process or over ranks.

A linear method tries lambdas quickly on all folds, and fits those that are best on the *other* folds to the end:
successive halving, in which no fold helps to choose its own lambda. Trees are tried on parts of the training rows.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.files import atomic_write, require_space
from distsms.base.measures import GROUPED, RANKING, Measure
from distsms.base.schema import Fields, ResumableStore, is_number, is_number_or_null, is_text, read_objects
from distsms.base.scored import Scored
from distsms.base.typing import Floats, Hashes
from distsms.base.wording import option
from distsms.ingest.formats.npy import NpyArray
from distsms.metrics import ranking
from distsms.metrics.summary import chooser_value
from distsms.optim.result import Result
from distsms.shards.dataset import DataBlock, load_matrix, read_groups, read_weights
from distsms.shards.manifest import Manifest
from distsms.shards.row_metadata import some
from distsms.workflow.auto_lambda import Starts, loosened
from distsms.workflow.choice import Point
from distsms.workflow.competitors import ALONE, HELD_OUT_PARTS, METHODS, Task, describe_end, with_target
from distsms.workflow.folds import Folds, hold_out, make_folds, read_fold_keys
from distsms.workflow.path import PathRows, Problem, Start, Trainings, run

FEW_LAMBDAS, KEPT = 3, 2
"""So many lambdas are all fitted; of more, each fold gets `KEPT`, which are best in quick trials on the other folds."""


class FoldedRows(NamedTuple):
    """All rows that are used, and their folds."""

    X: Any  # (n, p), sparse or an array; None if rows are distributed over the ranks, and only evaluated here
    y: NDArray[np.int8]  # (n,), +1 or -1
    folds: Folds
    folds_by: str = "rows"  # how the folds were made
    fold_keys: NDArray[Any] | None = None  # (n,), see `folds.read_fold_keys`; not needed for folds by rows
    weights: Floats | None = None  # (n,); None if all are 1
    groups: Hashes | None = None  # (n,), for measures within groups

    def task(self, fold: int, problem: Problem) -> Task:
        """Return the training task of a fold."""
        rows = self.folds.training(fold)
        whole = Task(self.X, self.y, problem.measure, problem.settings, weights=self.weights, groups=self.groups)
        task, keys = whole.part(rows), self.y if self.fold_keys is None else self.fold_keys
        return task._replace(held_out=hold_out(self.folds_by, keys[rows], task.y, HELD_OUT_PARTS))

    def held_out(self, fold: int) -> NDArray[np.intp]:
        """Return the numbers of the rows that evaluate a fold."""
        return np.flatnonzero(self.folds.judged(fold))

    def scored(self, scores: Floats, fold: int) -> Scored:
        """Return the rows that evaluate a fold, with their scores."""
        rows = self.held_out(fold)
        return Scored(scores, self.y[rows], ALONE, some(self.weights, rows), some(self.groups, rows))


def read_rows(manifest: Manifest, problem: Problem) -> FoldedRows:
    """Read all rows that count, with their groups if the problem needs them, and assign them to folds. Local."""
    X, y, counted = load_matrix(manifest)
    by, weights = problem.folds_by, read_weights(manifest)
    keys = read_fold_keys(manifest, by, 0, manifest.n)[counted]
    groups = read_groups(manifest, 0, manifest.n)[counted] if problem.needs_groups else None
    judging = groups if problem.chooser in GROUPED else None
    folds = make_folds(by, keys, y, np.ones(len(y), bool), problem.folds, problem.seed, ALONE, judging)
    return FoldedRows(X, y, folds, by, keys, some(weights, counted), groups)


class Trial(NamedTuple):
    """A setting of a search that was tried on the training rows of a fold (`trees.TrialResult`), or a quick fit."""

    method: str
    setting: float
    fold: int
    seconds: float
    value: float  # of a quick fit: the measure that chooses, on the rows of the fold
    rounds: int
    by: str = ""  # of a quick fit: that measure, which earlier versions did not note


class FitSpec(NamedTuple):
    """A fit that is to be made, or a trial of a setting; with `best`, the fit of the best of `setting` trials."""

    method: str
    setting: float
    fold: int
    best: Trial | None = None
    quick: bool = False  # whether it is the trial of a lambda


class Fit(NamedTuple):
    """A fit that was made, with its measures on the fold's rows. Its scores are kept in a file of their own."""

    method: str
    setting: float
    fold: int
    seconds: float
    rocarea: float
    prbep: float
    note: str


class BaselineStore(ResumableStore):
    """The folder of a baseline: baseline.json, and in fits/ METHOD_SETTING_foldF.json with the scores in .npy, and
    METHOD_tryN_foldF.json, with the measure of a quick fit after N. Any rank may call `keep`, only the root the others.
    """

    kind, parts = "baseline", "fits"

    def keep(self, result: Fit | Trial, scores: Floats | None = None) -> None:
        """Write a fit with its scores (n_fold,), or a trial."""
        if scores is not None:
            require_space(self.path, scores.nbytes)
            with atomic_write(self._file(result, "npy")) as file:
                np.save(file, scores)
                file.write(hashlib.sha256(np.ascontiguousarray(scores).data).digest())
        self.write(self._file(result, "json"), result._asdict())

    def fits(self) -> list[Fit]:
        """Read all fits. Raises InputError if one is damaged."""
        return [Fit(**fields) for fields in self._read(FIT, False)]

    def trials(self, by: str | None = None) -> list[Trial]:
        """Read all trials or, of quick ones, those by a measure. Raises InputError if one is damaged."""
        trials = [Trial(**{"value": np.nan, **fields}) for fields in self._read(TRIAL, True)]
        return [trial for trial in trials if by in (None, trial.by) or not METHODS[trial.method].linear]

    def done(self) -> list[Fit | Trial]:
        """Return what there is of the `first_round`."""
        fits = [fit for fit in self.fits() if METHODS[fit.method].linear]
        return [*fits, *(trial for trial in self.trials() if not METHODS[trial.method].linear)]

    def _read(self, fields: Fields, trials: bool) -> Iterator[dict[str, Any]]:
        for path in (self.path / self.parts).glob("[!.]*.json"):
            if ("_try" in path.name) == trials:
                content = read_objects(path, fields, f"Remove {path}, and it is fitted again")[0]
                by = {"by": str(content["by"])} if "by" in content else {}
                yield {name: content[name] for name in fields if content[name] is not None} | by

    def scores(self, fit: Fit) -> Floats:
        """Read the scores of the rows of a fit's fold, (n_fold,). Raises InputError if the file cannot be read."""
        path = self._file(fit, "npy")
        try:
            NpyArray(str(path))  # raises if its header claims more than the file holds
            with open(path, "rb") as file:
                scores, written = np.load(file, allow_pickle=False), file.read()
            if written and written != hashlib.sha256(scores.data).digest():  # earlier versions wrote none
                raise ValueError("it is not what was written (SHA-256 differs)")
            return scores
        except (OSError, ValueError, InputError) as error:
            raise InputError(f"{path}: cannot be read: {error}. Remove its .json, and it is fitted again") from error

    def _file(self, result: Fit | Trial, suffix: str) -> Path:
        setting = repr(result.setting)
        if isinstance(result, Trial):
            setting = "_".join(filter(None, (f"try{setting.removesuffix('.0')}", result.by)))
        return self.path / self.parts / f"{result.method}_{setting}_fold{result.fold}.{suffix}"


FIT: Fields = {
    "method": METHODS.__contains__,
    **dict.fromkeys(("setting", "fold", "seconds", *RANKING), is_number),
    "note": is_text,
}
TRIAL: Fields = {
    "method": METHODS.__contains__,
    **dict.fromkeys(("setting", "fold", "seconds", "rounds"), is_number),
    "value": is_number_or_null,
}


def first_round(methods: Sequence[str], lambdas: Sequence[float], folds: int, budget: int) -> list[FitSpec]:
    """Return the fits of the linear methods, and `budget` trials for each fold of the methods with a search."""
    numbers = [float(number) for number in range(budget)]
    return [
        FitSpec(name, setting, fold)
        for name in methods
        for setting, fold in product(lambdas if METHODS[name].linear else numbers, range(1, folds + 1))
    ]


def tried_values(trials: Sequence[Trial], method: str) -> dict[float, dict[int, float]]:
    """Return the value of each fold for those lambdas of a method that all its folds have tried, the largest first."""
    values = dict[float, dict[int, float]]()
    for trial in sorted((trial for trial in trials if trial.method == method), reverse=True):
        values.setdefault(trial.setting, {})[trial.fold] = 0.0 if np.isnan(trial.value) else trial.value
    most = max(map(len, values.values()), default=0)
    return {lam: of_folds for lam, of_folds in values.items() if len(of_folds) == most}


def left_lambdas(trials: Sequence[Trial], method: str) -> dict[int, list[float]]:
    """Return for each fold the `KEPT` lambdas whose trials are best on the *other* folds; empty without trials."""
    values = tried_values(trials, method)
    folds = {fold for of_folds in values.values() for fold in of_folds}
    others = {lam: {fold: round(sum(of.values()) - of[fold], 12) for fold in folds} for lam, of in values.items()}
    return {fold: sorted(values, key=lambda lam: -others[lam][fold])[:KEPT] for fold in folds}


def second_round(trials: Sequence[Trial], budget: int) -> list[FitSpec]:
    """Return the fit of the best trial, the first of equal ones, for each search and fold whose trials are all done."""
    specs = []
    for name, fold in sorted({(trial.method, trial.fold) for trial in trials if not METHODS[trial.method].linear}):
        tried = sorted(t for t in trials if (t.method, t.fold) == (name, fold) and t.setting < budget)
        if len(tried) == budget:
            best = max(tried, key=lambda trial: -np.inf if np.isnan(trial.value) else round(trial.value, 12))
            specs.append(FitSpec(name, float(budget), fold, best._replace(seconds=sum(t.seconds for t in tried))))
    return specs


Keep = Callable[["Fit | Trial", "Floats | None"], None]
"""Keeps a finished trial, or a finished fit and its scores of the fold's rows, (n_fold,)."""


def fit_alone(
    rows: FoldedRows,
    specs: Sequence[FitSpec],
    problem: Problem,
    keep: Keep,
    stop_wanted: Callable[[], bool] = lambda: False,
    begin: Callable[[FitSpec, int], None] = lambda spec, done: None,
) -> bool:
    """Make fits and trials, each after a call of `begin`; return whether `stop_wanted` ended the run. Local."""
    for done, spec in enumerate(specs):
        if stop_wanted():
            return True
        begin(spec, done)
        method, best = METHODS[spec.method], spec.best
        task, started = rows.task(spec.fold, problem)._replace(quick=spec.quick), time.perf_counter()
        # 1) A trial of trees is judged on a part of the training rows alone.
        if method.search and best is None:
            tried = method.search(task, spec.setting)
            seconds = time.perf_counter() - started
            keep(Trial(spec.method, spec.setting, spec.fold, seconds, tried.value, tried.rounds), None)
            continue
        # 2) A fit takes all training rows, and scores the rows of the fold.
        assert method.fit is not None
        fitted = method.fit(task._replace(rounds=best.rounds), best.setting) if best else method.fit(task, spec.setting)
        seconds = time.perf_counter() - started + (best.seconds if best else 0.0)
        scores = np.asarray(fitted.score(rows.X[rows.held_out(spec.fold)]), float)
        if not np.isfinite(scores).all():
            remedy = f"make the data with distsms shard {option('normalize', 'standard')}, or leave the method out"
            raise InputError(f"{method.name} with {spec.setting:g} gives scores that are not finite; {remedy}")
        scored = rows.scored(scores, spec.fold)
        if spec.quick:
            by = problem.chooser
            value = chooser_value(by, scored, np.nan)
            keep(Trial(spec.method, spec.setting, spec.fold, seconds, value, 0, by), None)
            continue
        ranked, searched = ranking.ranking(scored), best is None or np.isfinite(best.value)
        note = fitted.note if searched else "without a search, since no training rows of both classes could be held out"
        keep(Fit(spec.method, spec.setting, spec.fold, seconds, ranked.rocarea, ranked.prbep, note), scores)
    return False


def method_problem(problem: Problem, method: str, share: float) -> Problem:
    """Return the problem of a method, for the problem of the baseline and the share of positive rows."""
    measure = Measure.parse(METHODS[method].trains or problem.measure)
    settings = with_target(problem.settings, measure, share)
    bias = measure.bias(None)
    return replace(problem, measure=measure.name, settings=settings, bias=bias, all_rows=False, scores=True)


def try_lambdas(
    rows: PathRows,
    problem: Problem,
    specs: Sequence[FitSpec],
    keep: Keep,
    stop_wanted: Callable[[], bool],
    starts: Starts,
) -> bool:
    """Make quick trials on all folds, which `keep` gets on the root; return whether stopped. **Collective.**"""
    by, lambdas = problem.chooser, sorted({spec.setting for spec in specs}, reverse=True)
    begun = time.perf_counter()
    quick = replace(problem, lambdas=lambdas, settings=loosened(problem.settings), select=by, scores=False)
    outcome = run(rows, quick, starts.add, start=starts.nearest, stop_wanted=stop_wanted)
    if outcome.stopped:
        return True
    seconds = (time.perf_counter() - begun) / max(len(outcome.points), 1)
    values = {(lam, fold): np.nan for lam in outcome.left_out for fold in problem.trained_folds}  # as good as w = 0
    values |= {(point.lam, point.fold): float((point.held_out or {})[by]) for point in outcome.points}
    with rows.comm.fail_together():
        for (lam, fold), value in values.items() if rows.comm.is_root else ():
            keep(Trial(specs[0].method, lam, fold, seconds, value, 0, by), None)
    return False


def fit_distributed(
    rows: PathRows,
    problem: Problem,
    specs: Sequence[FitSpec],
    keep: Keep,
    stop_wanted: Callable[[], bool],
    before: Callable[[int], float] = lambda fold: 0.0,
    start: Start = lambda fold, lam: None,
) -> bool:
    """Make these fits of a method that distsms trains; return whether stopped. **Collective.** `keep`, and `before`
    with the seconds that a fold's rows took, are called on the root or, if ranks share folds, on one's own.
    """
    folds, stopped, started = rows.folds_of_rank(problem), False, time.perf_counter()
    missing = {(spec.setting, spec.fold) for spec in specs if spec.fold in folds}
    if not missing:
        return False
    models = Trainings(rows, problem, stop_wanted)
    without_fit = set(models.numbers)

    def keep_point(point: Point, result: Result, scores: Floats | None) -> None:
        nonlocal started
        assert point.held_out is not None and scores is not None
        fold, now = point.fold, time.perf_counter()
        seconds = now - started + (before(fold) if fold in without_fit else 0.0)
        without_fit.discard(fold)
        rocarea, prbep = (point.held_out[name] for name in RANKING)
        keep(Fit(specs[0].method, point.lam, fold, seconds, rocarea, prbep, describe_end(result)), scores)
        started = now  # the fits of all folds share their seconds, which add up to those of the method

    with models.vectors:
        while missing and not stopped:  # `CrossValidation` may leave out the smaller lambdas of its first run
            lambdas = [sorted((lam for lam, f in missing if f == fold), reverse=True) for fold in models.numbers]
            outcome = models.run(keep_point, lambdas, start)
            stopped = outcome.stopped
            missing -= {(point.lam, point.fold) for point in outcome.points}
    return stopped


def gather_rows(rows: PathRows, problem: Problem) -> FoldedRows | None:
    """Return what evaluates the fits, on the root, without the entries: at most 19 bytes a row. **Collective.**"""
    assert isinstance(rows.block, DataBlock)
    block, comm, folds = rows.block, rows.trainers, rows.make_folds(problem)
    counted = block.counted
    y, number = comm.gather_rows(block.labels[counted]), comm.gather_rows(folds.number[counted])
    of_rank = block.weights if block.weighted else None
    weights = None if of_rank is None else comm.gather_rows(of_rank[counted])
    groups = comm.gather_rows(block.groups[counted]) if problem.needs_groups and block.groups is not None else None
    if y is None or number is None:
        return None
    folds = Folds(number, np.ones(len(y), bool), folds.forward)
    return FoldedRows(None, y, folds, problem.folds_by, weights=weights, groups=groups)
