"""Methods beside each other on the same folds: every fit by itself, then measures, intervals, differences.

A fit is a method, a setting and a fold: trained on the rows outside of the fold (or before it in time), it scores
those inside. Fits are dealt out to the ranks, and each rank holds all rows, since other libraries know no other way.
Trees are searched on the training rows of the fold alone: settings are tried there, and only the best of them is then
fitted, in a second round.

A fold's setting is the one whose mean measure on the *other* folds is best, so that no fold is measured by a setting
that it has helped to choose; nor does a fold help to choose which of the other linear methods is the best one there. A
measure is the mean over folds; its interval is that of the method, trained on new rows, on new rows
(`distsms.metrics.confidence`). Differences are paired by row.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError
from distsms.measures import RANKING
from distsms.metrics import bootstrap, confidence, ranking
from distsms.metrics.confidence import LEVEL, Interval, MeanEstimate
from distsms.optim.settings import Settings
from distsms.selection.competitors import ALONE, HELD, METHODS, OURS, Task
from distsms.selection.folds import Folds, best_of_others, held_out
from distsms.utils import schema
from distsms.utils.files import atomic_write, require_space
from distsms.utils.runstore import ResumableStore
from distsms.utils.schema import Fields, is_number, is_number_or_null, read_objects
from distsms.utils.typing import Floats

REPLICATES = 1000
BEST = "best other linear"
"""The table's name for what is, on each fold, the other linear method and setting that are best on the other folds."""


class Rows(NamedTuple):
    """All rows that count, X (n, p), y (n,), and the folds that they are dealt out to."""

    X: Any
    y: NDArray[np.int8]
    folds: Folds
    by: str = "rows"
    marks: NDArray[Any] | None = None  # (n,), see `folds.marks`; not wanted for folds by rows

    def task(self, fold: int, measure: str, settings: Settings) -> Task:
        """The training of a fold."""
        own = self.folds.training(fold)
        y = self.y[own]
        held = held_out(self.by, y if self.marks is None else self.marks[own], y, HELD)
        return Task(self.X[own], y, measure, settings, held)

    @property
    def fold(self) -> NDArray[np.int16]:
        """(n,): the fold from 1 on that judges each row, 0 where none does."""
        return self.folds.number


class Try(NamedTuple):
    """A setting of a search, tried on the rows outside of a fold. value, rounds : see `trees.Tried`."""

    method: str
    setting: float
    fold: int
    seconds: float
    value: float
    rounds: int


class Unit(NamedTuple):
    """One fit. Of what is searched: a try or, with `best`, the fit of the best of so many tries as `setting` says."""

    method: str
    setting: float
    fold: int
    best: Try | None = None


class Fit(NamedTuple):
    """What came of one; its scores lie beside it. Measures are those of the fold's rows."""

    method: str
    setting: float
    fold: int
    seconds: float
    rocarea: float
    prbep: float
    note: str


class BaselineStore(ResumableStore):
    """A baseline's folder: fits/METHOD_SETTING_foldF.json, and .npy with the scores of the fold's rows, in their order.
    Tries of a search are METHOD_tryN_foldF.json.

    `keep` may be called on any rank.
    """

    kind, parts = "baseline", "fits"

    def keep(self, found: Fit | Try, scores: Floats | None = None) -> None:
        """Write a fit and the scores (n_fold,), or a try."""
        if scores is not None:
            require_space(self.path, scores.nbytes)
            with atomic_write(self.file_entry(found, "npy")) as temporary, open(temporary, "wb") as file:
                np.save(file, scores)
        self.write(self.file_entry(found, "json"), found._asdict())

    def fits(self) -> list[Fit]:
        """All that are kept. Raises InputError where one is damaged."""
        return [Fit(**told) for told in self._read(FIT, False)]

    def tries(self) -> list[Try]:
        """Likewise."""
        return [Try(**{"value": np.nan, **told}) for told in self._read(TRY, True)]

    def done(self) -> set[Unit]:
        """Of the first round; see `units`."""
        there: list[Fit | Try] = [fit for fit in self.fits() if METHODS[fit.method].linear]
        return {Unit(one.method, one.setting, one.fold) for one in [*there, *self.tries()]}

    def _read(self, fields: Fields, tries: bool) -> Iterator[dict[str, Any]]:
        for path in (self.path / self.parts).glob("[!.]*.json"):
            if ("_try" in path.name) == tries:
                told = read_objects(path, fields, f"Remove {path}, and it is fitted anew")[0]
                yield {name: value for name, value in told.items() if value is not None}

    def scores(self, fit: Fit) -> Floats:
        """The scores that a fit gave its fold's rows, (n_fold,)."""
        path = self.file_entry(fit, "npy")
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: cannot be read: {error}. Remove the .json beside it; it is fitted anew"
            ) from error

    def file_entry(self, one: Fit | Try, kind: str) -> Path:
        setting = f"try{one.setting:g}" if isinstance(one, Try) else repr(one.setting)
        return self.path / self.parts / f"{one.method}_{setting}_fold{one.fold}.{kind}"


FIT: Fields = {
    "method": METHODS.__contains__,
    **dict.fromkeys(("setting", "fold", "seconds", *RANKING), is_number),
    "note": lambda value: isinstance(value, str),
}
TRY: Fields = {
    "method": METHODS.__contains__,
    **dict.fromkeys(("setting", "fold", "seconds", "rounds"), is_number),
    "value": is_number_or_null,
}


def units(methods: Sequence[str], lambdas: Sequence[float], folds: int, budget: int) -> list[Unit]:
    """The fits of a baseline, and of methods that are searched the tries, `budget` for each fold: the first round."""
    return [
        Unit(name, setting, fold)
        for name in methods
        for setting, fold in product(METHODS[name].settings(lambdas, budget), range(1, folds + 1))
    ]


def searched(tries: Sequence[Try], budget: int) -> list[Unit]:
    """The second round: for each fold whose tries are all there, the best of them on its inner rows, of several the
    first. Its seconds are those of all."""
    found = []
    for name, fold in sorted({(one.method, one.fold) for one in tries}):
        own = sorted(one for one in tries if (one.method, one.fold) == (name, fold) and one.setting < budget)
        if len(own) == budget:
            best = max(own, key=lambda one: -np.inf if np.isnan(one.value) else round(one.value, 12))
            found.append(Unit(name, float(budget), fold, best._replace(seconds=sum(one.seconds for one in own))))
    return found


def run(
    rows: Rows,
    these: Sequence[Unit],
    measure: str,
    settings: Settings,
    keep: Callable[..., None],
    stop_wanted: Callable[[], bool] = lambda: False,
    begin: Callable[[Unit], None] = lambda unit: None,
) -> bool:
    """Fit these, telling `begin` of each, and hand each to `keep`: a try, or a fit and its scores of the fold's rows;
    whether it was stopped before. Local."""
    for unit in these:
        if stop_wanted():
            return True
        begin(unit)
        method, setting, inside = METHODS[unit.method], unit.setting, rows.folds.judged(unit.fold)
        task, begun = rows.task(unit.fold, measure, settings), time.perf_counter()
        if method.search and unit.best is None:
            tried = method.search(task, setting)
            keep(Try(*unit[:3], time.perf_counter() - begun, *tried))
            continue
        if unit.best:
            task, setting, begun = task._replace(rounds=unit.best.rounds), unit.best.setting, begun - unit.best.seconds
        fitted = method.fit(task, setting)
        seconds = time.perf_counter() - begun
        scores = np.asarray(fitted.score(rows.X[inside]), float)
        if not np.isfinite(scores).all():
            raise InputError(
                f"{method.name} with {setting:g} gives scores that are not finite; are columns of like size?"
            )
        found = ranking.ranking(scores, rows.y[inside], ALONE)
        searched = unit.best is None or np.isfinite(unit.best.value)
        note = fitted.note if searched else "without a search, since no training rows of both classes could be held out"
        keep(Fit(*unit[:3], seconds, found.rocarea, found.prbep, note), scores)
    return False


class MethodResult(NamedTuple):
    """A method's place in the table; of `BEST`, notes say which methods it is."""

    method: str
    chosen: list[float]  # the setting of each fold
    at_end: bool  # of the grid of lambdas, in most folds
    seconds: float  # of all its fits
    notes: str
    sure: dict[str, Interval]  # of "rocarea" and "prbep"
    less: dict[str, Interval]  # by how much ours is better; empty for ours

    def as_json(self) -> dict[str, Any]:
        """For baseline.json."""
        intervals_of = {
            name: {key: one.as_json() for key, one in getattr(self, name).items()} for name in ("sure", "less")
        }
        return {**self._asdict(), **intervals_of}


STANDING: Fields = {
    "method": lambda value: isinstance(value, str),
    "chosen": lambda value: isinstance(value, list),
    "seconds": is_number,
    "sure": lambda value: isinstance(value, dict) and set(value) == set(RANKING),
    "less": lambda value: isinstance(value, dict),
}


def read_standing(told: Mapping[str, Any], where: object) -> MethodResult:
    """A line of baseline.json. Raises InputError where it is damaged."""
    if why := schema.find_fault(told, STANDING):
        raise InputError(f"{where}: is damaged: {why}. The same line of distsms baseline again writes it anew")

    def of(words: Mapping[str, Any]) -> dict[str, Interval]:
        nothing = dict.fromkeys(("standard_error", "low", "high"), np.nan)
        return {
            key: Interval(**{**nothing, **{k: v for k, v in one.items() if v is not None}})
            for key, one in words.items()
        }

    return MethodResult(**{**told, "sure": of(told["sure"]), "less": of(told["less"])})


def standings(folder: BaselineStore, fits: Sequence[Fit], rows: Rows, measure: str) -> list[MethodResult]:
    """The methods that have fits of a setting on all folds, and then the best of the other linear ones. For the root;
    memory: their scores of all rows."""
    folds = int(rows.fold.max())
    of_each = {name: own for name in METHODS if (own := complete(fits, name, folds))}
    ours = _Judged(folder, chosen(of_each[OURS], measure), rows) if OURS in of_each else None
    found = []
    for name, own in of_each.items():
        these = chosen(own, measure)
        judged = ours if ours and name == OURS else _Judged(folder, these, rows)
        settings = [one.setting for one in these]
        ends = [extreme(setting for setting, _ in own) for extreme in (min, max)]
        at_end = METHODS[name].linear and ends[0] < ends[1] and 2 * sum(one in ends for one in settings) > folds
        notes = _counted(one.note for one in own.values() if one.note)
        seconds, told = sum(one.seconds for one in own.values()), [f"{n} fits {note}" for note, n in notes]
        found.append(MethodResult(name, settings, at_end, seconds, ", ".join(told), judged.sure(), judged.less(ours)))
    others = {
        ((name, setting), fold): fit
        for name, own in of_each.items()
        for (setting, fold), fit in own.items()
        if name != OURS and METHODS[name].linear
    }
    if ours and others:
        these = chosen(others, measure)
        judged, settings = _Judged(folder, these, rows), [one.setting for one in these]
        told = [f"{name} ({METHODS[name].about}) in {n}" for name, n in _counted(one.method for one in these)]
        found.append(MethodResult(BEST, settings, False, 0.0, ", ".join(told), judged.sure(), judged.less(ours)))
    return found


def complete(fits: Sequence[Fit], method: str, folds: int) -> dict[tuple[float, int], Fit]:
    """A method's fits by falling setting and fold, of the settings that all folds have; of a search the most tries."""
    own = {(fit.setting, fit.fold): fit for fit in fits if fit.method == method}
    there = {key: fit for key, fit in own.items() if all((key[0], fold) in own for fold in range(1, folds + 1))}
    most = 0.0 if METHODS[method].linear else max((setting for setting, _ in there), default=0.0)
    return dict(sorted(((key, fit) for key, fit in there.items() if key[0] >= most), reverse=True))


def chosen(fits: Mapping[tuple[Any, int], Fit], measure: str) -> list[Fit]:
    """For each fold its fit of the candidate with the best mean measure on the others, of several the first.

    fits : by candidate, which is a setting or method and setting, and fold, from 1 on; each candidate has all folds.
    """
    candidates, folds = list(dict.fromkeys(one for one, _ in fits)), sorted({fold for _, fold in fits})
    values = np.array([[getattr(fits[one, fold], measure) for fold in folds] for one in candidates])
    return [fits[candidates[at], fold] for fold, at in zip(folds, best_of_others(values), strict=True)]


def _counted(words: Iterable[str]) -> list[tuple[str, int]]:
    return sorted(Counter(words).items())


class _Judged:
    """A fit for each fold: placements and shares (`top_k_shares`) of its rows, and replicates of the mean PRBEP."""

    def __init__(self, folder: BaselineStore, fits: Sequence[Fit], rows: Rows) -> None:
        inside = [rows.fold == one.fold for one in fits]
        self._labels = [rows.y[one] for one in inside]
        scored = [(folder.scores(fit), y) for fit, y in zip(fits, self._labels, strict=True)]
        self._placed = [ranking.placements(s, y, ALONE) for s, y in scored]
        self._shares = [ranking.top_k_shares(s, int(np.sum(y > 0)), ALONE) for s, y in scored]
        drawn = [
            bootstrap.prbep_replicates(s, y, np.flatnonzero(one), REPLICATES, 0, ALONE)
            for (s, y), one in zip(scored, inside, strict=True)
        ]
        self._replicates = np.mean(drawn, axis=0)

    def sure(self) -> dict[str, Interval]:
        """The measures."""
        area, prbep = self._spreads(self._placed, self._shares)
        return {
            "rocarea": confidence.rocarea_interval(area, LEVEL),
            "prbep": confidence.prbep_interval(prbep, self._replicates, LEVEL),
        }

    def less(self, ours: _Judged | None) -> dict[str, Interval]:
        """By how much ours is better; empty for ours."""
        if ours is None or ours is self:
            return {}
        placed = [a - b for a, b in zip(ours._placed, self._placed, strict=True)]
        area, prbep = self._spreads(placed, [a - b for a, b in zip(ours._shares, self._shares, strict=True)])
        return {
            "rocarea": confidence.rocarea_difference_interval(area, LEVEL),
            "prbep": confidence.prbep_difference_interval(prbep, ours._replicates - self._replicates, LEVEL),
        }

    def _spreads(
        self, placed: Sequence[NDArray[np.int64]], shares: Sequence[Floats]
    ) -> tuple[MeanEstimate, MeanEstimate]:
        """Of both measures, over the folds."""
        area = [confidence.rocarea_estimate(one, y, ALONE) for one, y in zip(placed, self._labels, strict=True)]
        prbep = [confidence.prbep_estimate(one, y, ALONE) for one, y in zip(shares, self._labels, strict=True)]
        return confidence.pool_folds(area), confidence.pool_folds(prbep)
