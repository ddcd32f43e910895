"""Methods beside each other on the same folds: every fit by itself, then measures, intervals, differences.

A fit is a method, a setting and a fold: trained on the rows outside of the fold, it scores those inside. Fits are dealt
out to the ranks, and each rank holds all rows, since other libraries know no other way. Trees are searched on the rows
outside of the fold alone: settings are tried there, and only the best of them is then fitted, in a second round.

A fold's setting is the one whose mean measure on the *other* folds is best, so that no fold is measured by a setting
that it has helped to choose. A measure is the mean over folds; its interval is that of the rows, the models given:
DeLong's variances of the folds added up, or the folds' bootstrap replicates averaged. Differences are paired by row.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms import bootstrap, cells, intervals, measures
from distsms.cells import Fields, number, number_or_null, read_objects
from distsms.competitors import ALONE, METHODS, OURS, Floats, Task
from distsms.errors import InputError
from distsms.files import replacing, require_space
from distsms.intervals import Interval
from distsms.measure_names import RANKING
from distsms.resumable import Resumable
from distsms.settings import Settings

LEVEL, REPLICATES = 0.95, 1000


class Rows(NamedTuple):
    """All rows that count, X (n, p), y (n,), and the fold from 1 on of each, (n,)."""

    X: Any
    y: NDArray[np.int8]
    fold: NDArray[np.int16]


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


class Folder(Resumable):
    """A baseline's folder: fits/METHOD_SETTING_foldF.json, and .npy with the scores of the fold's rows, in their order.
    Tries of a search are METHOD_tryN_foldF.json.

    `keep` may be called on any rank.
    """

    kind, parts = "baseline", "fits"

    def keep(self, found: Fit | Try, scores: Floats | None = None) -> None:
        """Write a fit and the scores (n_fold,), or a try."""
        if scores is not None:
            require_space(self.path, scores.nbytes)
            with replacing(self._file(found, "npy")) as temporary, open(temporary, "wb") as file:
                np.save(file, scores)
        self.write(self._file(found, "json"), found._asdict())

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
        path = self._file(fit, "npy")
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: cannot be read: {error}. Remove the .json beside it; it is fitted anew"
            ) from error

    def _file(self, one: Fit | Try, kind: str) -> Path:
        setting = f"try{one.setting:g}" if isinstance(one, Try) else repr(one.setting)
        return self.path / self.parts / f"{one.method}_{setting}_fold{one.fold}.{kind}"


FIT: Fields = {
    "method": METHODS.__contains__,
    **dict.fromkeys(("setting", "fold", "seconds", *RANKING), number),
    "note": lambda value: isinstance(value, str),
}
TRY: Fields = {
    "method": METHODS.__contains__,
    **dict.fromkeys(("setting", "fold", "seconds", "rounds"), number),
    "value": number_or_null,
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
        method, setting, inside = METHODS[unit.method], unit.setting, rows.fold == unit.fold
        task, begun = Task(rows.X[~inside], rows.y[~inside], measure, settings), time.perf_counter()
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
        found = measures.ranking(scores, rows.y[inside], ALONE)
        keep(Fit(*unit[:3], seconds, found.rocarea, found.prbep, fitted.note), scores)
    return False


class Standing(NamedTuple):
    """A method's place in the table."""

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
    "seconds": number,
    "sure": lambda value: isinstance(value, dict) and set(value) == set(RANKING),
    "less": lambda value: isinstance(value, dict),
}


def read_standing(told: Mapping[str, Any], where: object) -> Standing:
    """A line of baseline.json. Raises InputError where it is damaged."""
    if why := cells.fault(told, STANDING):
        raise InputError(f"{where}: is damaged: {why}. The same line of distsms baseline again writes it anew")

    def of(words: Mapping[str, Any]) -> dict[str, Interval]:
        nothing = dict.fromkeys(("standard_error", "low", "high"), np.nan)
        return {
            key: Interval(**{**nothing, **{k: v for k, v in one.items() if v is not None}})
            for key, one in words.items()
        }

    return Standing(**{**told, "sure": of(told["sure"]), "less": of(told["less"])})


def standings(folder: Folder, fits: Sequence[Fit], rows: Rows, measure: str) -> list[Standing]:
    """The methods that have fits of a setting on all folds. For the root; memory: their scores of all rows."""
    folds, n_pos = int(rows.fold.max()), int(np.sum(rows.y > 0))
    judged = [_Judged(folder, own, rows, measure) for name in METHODS if (own := complete(fits, name, folds))]
    ours = next((one for one in judged if one.method == OURS), None)
    found = []
    for one in judged:
        area = intervals.of_rocarea(intervals.mean_of_folds([*one.delong(one.placed)]), LEVEL)
        sure = {"rocarea": area, "prbep": intervals.of_prbep(one.prbep, one.replicates, LEVEL, n_pos)}
        less = {}
        if ours and one is not ours:
            pairs = [a - b for a, b in zip(ours.placed, one.placed, strict=True)]
            less["rocarea"] = intervals.of_rocarea_difference(intervals.mean_of_folds([*one.delong(pairs)]), LEVEL)
            both = ours.replicates, one.replicates
            less["prbep"] = intervals.of_prbep_difference(ours.prbep, one.prbep, *both, LEVEL, n_pos)
        found.append(Standing(one.method, one.chosen, one.at_end, one.seconds, one.notes, sure, less))
    return found


def complete(fits: Sequence[Fit], method: str, folds: int) -> dict[tuple[float, int], Fit]:
    """A method's fits by setting and fold, of the settings that all folds have; of a search those of the most tries."""
    own = {(fit.setting, fit.fold): fit for fit in fits if fit.method == method}
    there = {key: fit for key, fit in own.items() if all((key[0], fold) in own for fold in range(1, folds + 1))}
    most = 0.0 if METHODS[method].linear else max((setting for setting, _ in there), default=0.0)
    return {key: fit for key, fit in there.items() if key[0] >= most}


def chosen(fits: Mapping[tuple[float, int], Fit], measure: str) -> list[float]:
    """For each fold the setting of the best mean measure on the others, of several the largest. See `complete`."""
    settings, folds = sorted({one for one, _ in fits}, reverse=True), sorted({fold for _, fold in fits})
    values = np.array([[getattr(fits[one, fold], measure) for fold in folds] for one in settings])
    others = values.sum(axis=1, keepdims=True) - values
    return [settings[int(np.argmax(column))] for column in np.round(others, 12).T]


class _Judged:
    """A method's chosen fits: placements of each fold's rows, replicates of the mean PRBEP."""

    def __init__(self, folder: Folder, fits: Mapping[tuple[float, int], Fit], rows: Rows, measure: str) -> None:
        self.chosen = chosen(fits, measure)
        folds = range(1, len(self.chosen) + 1)
        own = [fits[setting, fold] for setting, fold in zip(self.chosen, folds, strict=True)]
        self.method, self.prbep = own[0].method, float(np.mean([one.prbep for one in own]))
        self.seconds = sum(one.seconds for one in fits.values())
        notes = Counter(one.note for one in fits.values() if one.note)
        self.notes = ", ".join(f"{count} fits {note}" for note, count in sorted(notes.items()))
        ends = [extreme(setting for setting, _ in fits) for extreme in (min, max)]
        at_ends = sum(one in ends for one in self.chosen)
        self.at_end = METHODS[self.method].linear and ends[0] < ends[1] and 2 * at_ends > len(self.chosen)
        self._labels = [rows.y[rows.fold == fold] for fold in folds]
        scores = [folder.scores(one) for one in own]
        self.placed = [measures.placements(s, y, ALONE) for s, y in zip(scores, self._labels, strict=True)]
        drawn = [
            bootstrap.prbep(s, y, np.flatnonzero(rows.fold == fold), REPLICATES, 0, ALONE)
            for s, y, fold in zip(scores, self._labels, folds, strict=True)
        ]
        self.replicates = np.mean(drawn, axis=0)

    def delong(self, placed: Sequence[NDArray[np.int64]]) -> Iterator[tuple[float, float, str]]:
        """Of each fold."""
        return (intervals.delong(one, y, ALONE) for one, y in zip(placed, self._labels, strict=True))
