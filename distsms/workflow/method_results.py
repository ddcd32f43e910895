"""Evaluate the fits of a baseline: the measures of each method over the folds, with intervals and differences.

The setting of a fold, and in the same way the best of several methods, is the one with the best mean on the *other*
folds. The interval of a mean over the folds says how the method would do if it were trained on new rows and evaluated
on other new ones (`distsms.metrics.confidence`). Two methods are compared by their scores of the same rows.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base import schema
from distsms.base.errors import InputError
from distsms.base.formatting import to_json
from distsms.base.measures import COMPARED, FAMILIES, GROUPED, RANKING, HeadMeasure, Measure
from distsms.base.schema import Fields, is_number
from distsms.base.typing import Floats
from distsms.metrics import bootstrap, confidence, estimates, head_intervals, ranking
from distsms.metrics.confidence import LEVEL, Interval
from distsms.metrics.estimates import MeanEstimate
from distsms.metrics.headline import chooser_value
from distsms.metrics.operating_points import head_value
from distsms.metrics.row_weights import effective, effective_sizes, mass_of_classes
from distsms.metrics.tied_scores import tied_scores
from distsms.metrics.within_groups import GroupAreas, gauc_difference_interval, gauc_interval, group_areas
from distsms.optim.settings import Settings
from distsms.workflow.baseline_fits import BaselineStore, Fit, FoldedRows
from distsms.workflow.choice import ends_at, mean_over_folds
from distsms.workflow.competitors import ALONE, METHODS, OTHERS, OURS, OWN, is_installed, scikit_agrees
from distsms.workflow.folds import best_on_other_folds
from distsms.workflow.path import SMALL

if TYPE_CHECKING:
    from distsms.workflow.baseline_plan import LeftOut

REPLICATES = 1000
"""The number of bootstrap replicates for the intervals of PRBEP."""
BEST = "best other linear"
"""The name, in tables, of the best linear method besides distsms, which is chosen for each fold by the other folds.

The methods on features that are made from the columns do not belong to it.
"""
BEST_FEATURES = "distsms, best features"
"""The name of distsms on the features, the original columns among them, that the other folds choose for each fold."""
CHOSEN = (BEST, BEST_FEATURES)
"""The rows of the table that choose among methods."""


WARNING = "Warning: "
"""Begins those sentences that are warnings."""


class MethodResult(NamedTuple):
    """The results of a method over all folds: a row of the table."""

    method: str
    settings: list[float]  # the setting of each fold
    at_end: bool  # whether one of them is at an end of the grid of lambdas
    seconds: float  # of all its fits
    notes: str  # remarks on its fits; for those of `CHOSEN`, which methods were chosen on how many folds
    intervals: dict[str, Interval]  # of "rocarea", "prbep" and the measure that chose the settings, by name
    differences: dict[str, Interval]  # distsms minus this method, with the same keys; empty for distsms
    # The same with features: distsms on the features of this method minus this method, or if this method is not linear,
    # distsms on the best features minus this method. Empty if there is nothing to compare with.
    with_features: Mapping[str, Interval] = {}
    beyond: str = ""  # where a better lambda may be, such as "below 0.001", if the grid ends too early; see `ends_at`

    def as_json(self) -> dict[str, Any]:
        """Return the entry of this method in baseline.json."""
        fields = {"chosen" if name == "settings" else name: value for name, value in self._asdict().items()}
        for key, name in _JSON_NAMES.items():
            fields[key] = {measure: interval.as_json() for measure, interval in fields.pop(name).items()}
        return fields

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], source: object) -> MethodResult:
        """Read an entry of baseline.json, the file `source`. Raises InputError if it is damaged."""
        if why := schema.find_fault(entry, METHOD_RESULT):
            raise InputError(
                f"{source}: is damaged: {why}. Give the same command line of distsms baseline again to rewrite it"
            )
        undefined = dict.fromkeys(("standard_error", "low", "high"), np.nan)
        fields = {"settings" if name == "chosen" else name: value for name, value in entry.items()}
        for key, name in _JSON_NAMES.items():
            fields[name] = {
                measure: Interval(
                    **undefined | {field: value for field, value in interval.items() if value is not None}
                )
                for measure, interval in fields.pop(key, {}).items()
            }
        return cls(**fields)


_JSON_NAMES = {"sure": "intervals", "less": "differences", "less_with_features": "with_features"}
"""Maps the names of fields in baseline.json to those of `MethodResult`."""

METHOD_RESULT: Fields = {
    "method": lambda value: isinstance(value, str),
    "chosen": lambda value: isinstance(value, list),
    "seconds": is_number,
    "sure": lambda value: isinstance(value, dict) and set(value) >= set(RANKING),
    "less": lambda value: isinstance(value, dict),
}


@dataclass(frozen=True)
class Baseline:
    """What a baseline shows; the same on every rank. If it was stopped, it has no results yet.

    Attributes
    ----------
    folder : Path
        The folder with the fits and ``baseline.json``.
    problem : dict
        The data, the measure that is trained for, the folds and the target, as in ``baseline.json``.
    solver : str
        The solver of distsms.
    select : str
        The measure that chooses the settings of each method.
    stopped : bool
        Whether a signal, `stop_wanted` or the time limit ended it. The same call again continues it.
    left_out : sequence of LeftOut
        The methods that were not compared (`methods`), and `why`.
    methods : sequence of MethodResult
        A row of the table for each method, with intervals.
    head : dict
        For each measure of the head of the ranking, the methods as they are if tuned for it.
    sentences : sequence of str
        The conclusions in words, with notes and warnings.
    """

    folder: Path
    problem: Mapping[str, Any]
    solver: str
    select: str
    stopped: bool = False
    left_out: Sequence[LeftOut] = ()
    methods: Sequence[MethodResult] = ()
    head: Mapping[str, Sequence[MethodResult]] | None = None
    sentences: Sequence[str] = ()

    @property
    def warnings(self) -> list[str]:
        """Those of the sentences that are warnings."""
        return [text.removeprefix(WARNING) for text in self.sentences if text.startswith(WARNING)]

    def results(self) -> dict[str, Any]:
        """Return what ``baseline.json`` has beside the problem."""
        return {
            "solver": self.solver,
            "select": self.select,
            "methods": [result.as_json() for result in self.methods],
            "head": {name: [result.as_json() for result in results] for name, results in (self.head or {}).items()},
            "sentences": list(self.sentences),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as ``baseline.json`` has it, with None for NaN, and `folder`, `stopped` and `left_out`."""
        left_out = [{"methods": list(each.methods), "why": each.why} for each in self.left_out]
        rest = {"folder": os.fspath(self.folder), "stopped": self.stopped, "left_out": left_out}
        return dict(json.loads(to_json({"problem": self.problem, **self.results(), **rest})))

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each method.

        Its columns are the measures with the limits of their intervals (``rocarea``, ``rocarea_low``,
        ``rocarea_high``), by how much distsms is ahead by `select` (``ahead``, ...), the smallest and the largest
        setting of the folds, and the seconds.
        """
        import pandas as pd

        rows = []
        for result in self.methods:
            intervals = dict(result.intervals)
            intervals |= {"ahead": result.differences[self.select]} if result.differences else {}
            row: dict[str, Any] = {"method": result.method}
            for name, interval in intervals.items():
                row |= {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
            ends = {"least_setting": min(result.settings), "largest_setting": max(result.settings)}
            rows.append(row | ends | {"seconds": result.seconds})
        return pd.DataFrame(rows)


def evaluate_methods(
    store: BaselineStore, fits: Sequence[Fit], rows: FoldedRows, measure: str, select: str | None = None
) -> list[MethodResult]:
    """Evaluate the methods with a setting on all folds, chosen by `select`, and those of `CHOSEN`. On the root."""
    folds, by = int(rows.fold.max()), select or measure

    @cache
    def value(fit: Fit) -> float:
        """Return the measure that chooses the settings, for a fit on its fold."""
        if by in RANKING:
            return float(getattr(fit, by))
        judged = rows.folds.judged(fit.fold)
        y, weights, groups = rows.y[judged], rows.weights_of(judged), rows.groups_of(judged)
        return chooser_value(by, store.scores(fit), y, np.nan, ALONE, weights, groups)

    # 1) The setting of each fold is chosen by the other folds, and in the same way the best of several methods.
    by_method = {name: whole for name in METHODS if (whole := complete(fits, name, folds))}
    best_fits = {name: choose(whole, value) for name, whole in by_method.items()}
    seconds = {name: sum(fit.seconds for fit in whole.values()) for name, whole in by_method.items()}
    notes = {
        name: ", ".join(f"{n} fits {note}" for note, n in _counts(fit.note for fit in whole.values() if fit.note))
        for name, whole in by_method.items()
    }
    ours, others = [name for name in by_method if name in OWN], [name for name in by_method if name in OTHERS]
    for best, names in ((BEST, others if OURS in by_method else []), (BEST_FEATURES, ours if len(ours) > 1 else [])):
        if names:
            candidates = {
                ((name, setting), fold): fit for name in names for (setting, fold), fit in by_method[name].items()
            }
            best_fits[best], seconds[best] = choose(candidates, value), 0.0
            counts = _counts(fit.method for fit in best_fits[best])
            notes[best] = ", ".join(f"{name} ({METHODS[name].about}) in {n}" for name, n in counts)

    # 2) These are compared by their scores of the same rows.
    compared = {name: _FoldScores(store, best_fits[name], rows) for name in best_fits if name in (*ours, BEST_FEATURES)}
    head, within = HeadMeasure.parse(by), Measure.parse(by).within_groups if by in GROUPED else None

    def intervals_of(name: str, scores: _FoldScores) -> dict[str, Interval]:
        """Return the intervals of a method."""
        intervals = scores.intervals()
        if head:
            intervals[by] = scores.head_interval(head)
        elif within:
            intervals[by] = scores.within_interval(within)
        elif by not in RANKING:  # of other measures, the spread of the folds is known
            intervals[by] = confidence.folds_interval([value(fit) for fit in best_fits[name]], LEVEL, by)
        return intervals

    def differences_of(of: str, name: str, scores: _FoldScores) -> dict[str, Interval]:
        """Return the intervals of the differences of distsms `of` from another method; empty without either."""
        if of not in compared or of == name:
            return {}
        differences = scores.differences(compared[of])
        if head:
            differences[by] = scores.head_difference(head, compared[of])
        elif within:
            differences[by] = scores.within_difference(within, compared[of])
        elif by not in RANKING:
            ahead = [value(a) - value(b) for a, b in zip(best_fits[of], best_fits[name], strict=True)]
            judged = rows.fold > 0
            why = confidence.too_few(effective_sizes(rows.y[judged], rows.weights_of(judged), ALONE))
            differences[by] = replace(confidence.folds_interval(ahead, LEVEL), why=why)
        return differences

    results = []
    for name, fits_of_folds in best_fits.items():
        settings, method = [fit.setting for fit in fits_of_folds], METHODS.get(name)
        linear = method is not None and method.linear
        at_end, beyond = _find_ends(by_method[name], settings, value) if linear else (False, "")
        beside = "" if method is None else f"{OURS}-{method.features}" if linear else BEST_FEATURES
        scores = compared.get(name) or _FoldScores(store, fits_of_folds, rows)
        result = MethodResult(
            method=name,
            settings=settings,
            at_end=at_end,
            seconds=seconds[name],
            notes=notes[name],
            intervals=intervals_of(name, scores),
            differences=differences_of(OURS, name, scores),
            with_features=differences_of(beside, name, scores),
            beyond=beyond,
        )
        results.append(result)
    return results


def _find_ends(
    fits: Mapping[tuple[float, int], Fit], lambdas: Collection[float], value: Callable[[Fit], float]
) -> tuple[bool, str]:
    """Return whether one of the lambdas is at an end of the grid of `fits`, and `MethodResult.beyond`."""
    grid = sorted({lam for lam, _ in fits}, reverse=True)
    curve = [mean_over_folds(lam, [value(fit) for fit in fits.values() if fit.setting == lam]) for lam in grid]
    beyond = {"smallest": f"below {grid[-1]:g}", "largest": f"above {grid[0]:g}", "": ""}
    return len(grid) > 1 and not {grid[0], grid[-1]}.isdisjoint(lambdas), beyond[ends_at(curve, lambdas)]


def evaluate_head(
    store: BaselineStore, fits: Sequence[Fit], rows: FoldedRows, measure: str, select: str | None = None
) -> dict[str, list[MethodResult]]:
    """Evaluate the methods by each measure of the head, tuned for it; none within groups, whose rows it mixes."""
    if Measure.parse(measure).within_groups:
        return {}
    names = dict.fromkeys([*COMPARED, *[name for name in [select] if name and HeadMeasure.parse(name)]])
    judged = rows.fold[rows.y < 0]
    fewest = int(np.bincount(judged, minlength=int(rows.fold.max()) + 1)[1:].min())
    measurable = [
        head.name
        for name in names
        if (head := HeadMeasure.parse(name)) and not (head.family in ("tpr@fpr", "pauc") and head.level * fewest < 1)
    ]
    return {name: evaluate_methods(store, fits, rows, measure, name) for name in measurable}


def complete(fits: Sequence[Fit], method: str, folds: int) -> dict[tuple[float, int], Fit]:
    """Return the fits of a method by (setting, fold), of settings that have all folds, in descending order."""
    of_method = {(fit.setting, fit.fold): fit for fit in fits if fit.method == method}
    whole = {
        key: fit for key, fit in of_method.items() if all((key[0], fold) in of_method for fold in range(1, folds + 1))
    }
    # Of a search, only the fits with the most trials count.
    least = 0.0 if METHODS[method].linear else max((setting for setting, _ in whole), default=0.0)
    return dict(sorted(((key, fit) for key, fit in whole.items() if key[0] >= least), reverse=True))


def choose(fits: Mapping[tuple[Any, int], Fit], value: Callable[[Fit], float]) -> list[Fit]:
    """Return for each fold the fit of the candidate with the best mean `value` on the other folds."""
    candidates, folds = list(dict.fromkeys(candidate for candidate, _ in fits)), sorted({fold for _, fold in fits})
    values = np.array([[value(fits[candidate, fold]) for fold in folds] for candidate in candidates])
    return [fits[candidates[best], fold] for fold, best in zip(folds, best_on_other_folds(values), strict=True)]


def _counts(texts: Iterable[str]) -> list[tuple[str, int]]:
    return sorted(Counter(texts).items())


class _ScoredFold(NamedTuple):
    """The rows that evaluate a fold, with the scores that a method gives them."""

    numbers: NDArray[np.intp]
    scores: Floats
    y: NDArray[np.int8]
    weights: Floats | None


class _FoldScores:
    """What is computed for the intervals of a method: placements, shares of the top, replicates of PRBEP."""

    def __init__(self, store: BaselineStore, fits: Sequence[Fit], rows: FoldedRows) -> None:
        inside = [rows.fold == fit.fold for fit in fits]
        self._folds = [
            _ScoredFold(np.flatnonzero(mask), store.scores(fit), rows.y[mask], rows.weights_of(mask))
            for fit, mask in zip(fits, inside, strict=True)
        ]
        self._placements = [ranking.placements(fold.scores, fold.y, ALONE, fold.weights) for fold in self._folds]
        self._shares = [
            ranking.top_k_shares(fold.scores, mass_of_classes(fold.y, fold.weights, ALONE)[0], ALONE, fold.weights)
            for fold in self._folds
        ]
        replicates = [
            bootstrap.prbep_replicates(fold.scores, fold.y, fold.numbers, REPLICATES, 0, ALONE, fold.weights)
            for fold in self._folds
        ]
        self._replicates = np.mean(replicates, axis=0)
        self._areas: list[GroupAreas] = []
        if rows.groups is not None:
            self._areas = [
                group_areas(fold.scores, fold.y, rows.groups[fold.numbers], ALONE, fold.weights) for fold in self._folds
            ]

    def intervals(self) -> dict[str, Interval]:
        """Return the measures, each the mean over the folds, with their intervals."""
        area, prbep = self._spreads(self._placements, self._shares)
        return {
            "rocarea": confidence.rocarea_interval(area, LEVEL),
            "prbep": confidence.prbep_interval(prbep, self._replicates, LEVEL),
        }

    def differences(self, ours: _FoldScores) -> dict[str, Interval]:
        """Return the measures of `ours` minus those of this method, with intervals."""
        placements = [a - b for a, b in zip(ours._placements, self._placements, strict=True)]
        area, prbep = self._spreads(placements, [a - b for a, b in zip(ours._shares, self._shares, strict=True)])
        return {
            "rocarea": confidence.rocarea_difference_interval(area, LEVEL),
            "prbep": confidence.prbep_difference_interval(prbep, ours._replicates - self._replicates, LEVEL),
        }

    def _head(self, measure: HeadMeasure) -> tuple[list[float], Floats]:
        """Return a measure of the head on each fold, and the replicates of the mean over the folds."""
        values, replicates = [], []
        for numbers, scores, y, weights in self._folds:
            scaled = effective(weights, ALONE)
            tied = tied_scores(scores, y, scaled, ALONE)
            values.append(head_value(measure, tied, ALONE))
            of_fold = head_intervals.head_replicates([measure], tied, scores, y, numbers, REPLICATES, 0, ALONE, scaled)
            replicates.append(of_fold[measure.name])
        return values, np.mean(replicates, axis=0)

    def _sizes(self) -> list[tuple[float, float]]:
        return [effective_sizes(fold.y, fold.weights, ALONE) for fold in self._folds]

    def head_interval(self, measure: HeadMeasure) -> Interval:
        """Return a measure of the head of the ranking, the mean over the folds, with its interval."""
        values, replicates = self._head(measure)
        pooled = estimates.pool_folds(
            [
                head_intervals.head_estimate(measure, value, n_pos, n_neg)
                for value, (n_pos, n_neg) in zip(values, self._sizes(), strict=True)
            ]
        )
        return head_intervals.head_interval(measure, pooled, replicates, LEVEL)

    def head_difference(self, measure: HeadMeasure, ours: _FoldScores) -> Interval:
        """Return how much better `ours` is by a measure of the head, with its interval."""
        our_values, our_replicates = ours._head(measure)
        values, replicates = self._head(measure)
        differences = [
            head_intervals.difference_estimate(a - b, n_pos, n_neg)
            for a, b, (n_pos, n_neg) in zip(our_values, values, self._sizes(), strict=True)
        ]
        pooled = estimates.pool_folds(differences)
        return confidence.prbep_difference_interval(pooled, our_replicates - replicates, LEVEL)

    def within_interval(self, weighting: str) -> Interval:
        """Return GAUC, the mean over the folds, with its interval."""
        folds = [areas.estimate(weighting, ALONE) for areas in self._areas]
        return gauc_interval(estimates.pool_folds(folds), LEVEL)

    def within_difference(self, weighting: str, ours: _FoldScores) -> Interval:
        """Return how much better `ours` is by GAUC, with its interval."""
        both = zip(ours._areas, self._areas, strict=True)
        less = [mine._replace(areas=mine.areas - theirs.areas).estimate(weighting, ALONE) for mine, theirs in both]
        return gauc_difference_interval(estimates.pool_folds(less), LEVEL)

    def _spreads(
        self, placements: Sequence[NDArray[np.int64]], shares: Sequence[Floats]
    ) -> tuple[MeanEstimate, MeanEstimate]:
        """Return the spreads of ROCArea and PRBEP over the folds."""
        area = [
            estimates.rocarea_estimate(of_fold, fold.y, ALONE, fold.weights)
            for of_fold, fold in zip(placements, self._folds, strict=True)
        ]
        prbep = [
            estimates.prbep_estimate(of_fold, fold.y, ALONE, fold.weights)
            for of_fold, fold in zip(shares, self._folds, strict=True)
        ]
        return estimates.pool_folds(area), estimates.pool_folds(prbep)


def check_logistic(results: Sequence[MethodResult], rows: FoldedRows, measure: str, settings: Settings) -> list[str]:
    """Return a sentence for each logistic regression of small data: does scikit-learn find the same minimum?"""
    if rows.X is None or len(rows.y) + getattr(rows.X, "nnz", rows.X.size) > SMALL or not is_installed("sklearn"):
        return []
    task, sentences = rows.task(1, measure, settings), []
    for result in results:
        if (family := FAMILIES.get(result.method)) and family.log_loss:
            agrees, sentence = scikit_agrees(task, Measure.parse(result.method), result.settings[0])
            sentences.append(f"{'' if agrees else WARNING}{sentence}, on the training rows of fold 1.")
    return sentences
