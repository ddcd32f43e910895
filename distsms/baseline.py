"""Methods beside each other on the same folds: every fit by itself, then measures, intervals, differences.

A fit is a method, a setting and a fold: trained on the rows outside of the fold (or before it in time), it scores those
inside. Fits are dealt
out to the ranks, and each rank holds all rows, since other libraries know no other way.

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
from distsms.cells import Fields, number, read_objects
from distsms.competitors import ALONE, HELD, METHODS, OURS, Floats, Task
from distsms.errors import InputError
from distsms.files import replacing, require_space
from distsms.folds import Folds, held_out
from distsms.intervals import Interval
from distsms.measure_names import RANKING
from distsms.resumable import Resumable
from distsms.settings import Settings

LEVEL, REPLICATES = 0.95, 1000


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


class Unit(NamedTuple):
    """One fit."""

    method: str
    setting: float
    fold: int


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

    `keep` may be called on any rank.
    """

    kind, parts = "baseline", "fits"

    def keep(self, fit: Fit, scores: Floats) -> None:
        """Write a fit and the scores (n_fold,)."""
        require_space(self.path, scores.nbytes)
        with replacing(self._file(fit, "npy")) as temporary, open(temporary, "wb") as file:
            np.save(file, scores)
        self.write(self._file(fit, "json"), fit._asdict())

    def fits(self) -> list[Fit]:
        """All that are kept. Raises InputError where one is damaged."""
        found = []
        for path in (self.path / self.parts).glob("[!.]*.json"):
            found.append(Fit(**read_objects(path, FIT, f"Remove {path}, and it is fitted anew")[0]))
        return found

    def scores(self, fit: Fit) -> Floats:
        """The scores that a fit gave its fold's rows, (n_fold,)."""
        path = self._file(fit, "npy")
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: cannot be read: {error}. Remove the .json beside it; it is fitted anew"
            ) from error

    def _file(self, fit: Unit | Fit, kind: str) -> Path:
        return self.path / self.parts / f"{fit.method}_{fit.setting!r}_fold{fit.fold}.{kind}"


FIT: Fields = {
    "method": METHODS.__contains__,
    **dict.fromkeys(("setting", "fold", "seconds", *RANKING), number),
    "note": lambda value: isinstance(value, str),
}


def units(methods: Sequence[str], lambdas: Sequence[float], folds: int) -> list[Unit]:
    """All fits of a baseline."""
    return [
        Unit(name, setting, fold)
        for name in methods
        for setting, fold in product(METHODS[name].settings(lambdas), range(1, folds + 1))
    ]


def run(
    rows: Rows,
    these: Sequence[Unit],
    measure: str,
    settings: Settings,
    keep: Callable[[Fit, Floats], None],
    stop_wanted: Callable[[], bool] = lambda: False,
) -> bool:
    """Fit these, and hand each to `keep`, with its scores of the fold's rows; whether it was stopped before. Local."""
    for method, setting, fold in these:
        if stop_wanted():
            return True
        inside, task = rows.folds.judged(fold), rows.task(fold, measure, settings)
        begun = time.perf_counter()
        fitted = METHODS[method].fit(task, setting)
        seconds = time.perf_counter() - begun
        scores = np.asarray(fitted.score(rows.X[inside]), float)
        if not np.isfinite(scores).all():
            raise InputError(f"{method} with {setting:g} gives scores that are not finite; are columns of like size?")
        found = measures.ranking(scores, rows.y[inside], ALONE)
        keep(Fit(method, setting, fold, seconds, found.rocarea, found.prbep, fitted.note), scores)
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
    folds, n_pos = int(rows.fold.max()), int(np.sum(rows.y[rows.fold > 0] > 0))
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
    """A method's fits by setting and fold, of the settings that all folds have."""
    own = {(fit.setting, fit.fold): fit for fit in fits if fit.method == method}
    return {key: fit for key, fit in own.items() if all((key[0], fold) in own for fold in range(1, folds + 1))}


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
