"""Evaluate the fits of a baseline: the measures of each method over the folds, with intervals and differences.

The setting of a fold, and the best of several methods, is the one with the best mean on the *other* folds. Intervals
are for training on new rows and evaluating on others. Methods are compared by their scores of the same rows.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from distsms.base import schema
from distsms.base.errors import InputError
from distsms.base.formatting import to_json
from distsms.base.measures import COMPARED, FAMILIES, GROUPED, RANKING, HeadMeasure, Measure
from distsms.base.schema import Fields, is_number, is_text
from distsms.base.scored import Scored
from distsms.metrics import confidence
from distsms.metrics.bootstrap import Draws
from distsms.metrics.confidence import LEVEL, Interval
from distsms.metrics.row_weights import effective_sizes
from distsms.metrics.sampled import Sampled, sampled
from distsms.metrics.summary import chooser_value
from distsms.shards.row_metadata import some
from distsms.workflow.baseline_fits import BaselineStore, Fit, FoldedRows, Trial, first_round, left_lambdas
from distsms.workflow.baseline_plan import THOROUGH_TREES
from distsms.workflow.choice import ends_at, mean_over_folds
from distsms.workflow.competitors import ALONE, METHODS, OTHERS, OURS, OWN, TREES, missing, scikit_agrees
from distsms.workflow.folds import best_on_other_folds
from distsms.workflow.path import SMALL, Problem

if TYPE_CHECKING:
    from distsms.workflow.baseline_plan import BaselinePlan, LeftOut

REPLICATES = 1000
"""The number of bootstrap replicates for the intervals of PRBEP."""
BEST = "best other linear"
"""The best linear method besides distsms on the original columns, chosen for each fold by the other folds."""
BEST_FEATURES = "distsms, best features"
"""distsms on the features, the original columns among them, that the other folds choose for each fold."""
CHOSEN = (BEST, BEST_FEATURES)
"""The rows of the table that choose among methods."""
EARLY_FOLDS, EARLY_LEVEL = 2, 0.999
"""After so many folds, there is a look at whether trees are clearly better or worse than distsms, at this level."""

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
            raise InputError(f"{source}: is damaged: {why}. The same line of distsms baseline again rewrites it")
        undefined = dict.fromkeys(("standard_error", "low", "high"), np.nan)

        def read(interval: Mapping[str, Any]) -> Interval:
            return Interval(**undefined | {name: value for name, value in interval.items() if value is not None})

        fields = {"settings" if name == "chosen" else name: value for name, value in entry.items()}
        for key, name in _JSON_NAMES.items():
            fields[name] = {measure: read(interval) for measure, interval in fields.pop(key, {}).items()}
        return cls(**fields)


_JSON_NAMES = {"sure": "intervals", "less": "differences", "less_with_features": "with_features"}
"""Maps the names of fields in baseline.json to those of `MethodResult`."""

METHOD_RESULT: Fields = {
    "method": is_text,
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
    effort : Effort
        How many fits there are, and what a thorough comparison would add; None if it was stopped.
    usage : list of dict
        The seconds, bytes and memory of each rank.
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
    effort: Effort | None = None
    usage: Sequence[dict[str, Any]] = ()

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
            "effort": None if self.effort is None else self.effort._asdict(),
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


class Evaluator:
    """Evaluates methods by scores of the same rows; `trials` say which lambdas are left to a fold. On the root."""

    def __init__(
        self,
        store: BaselineStore,
        fits: Sequence[Fit],
        rows: FoldedRows,
        trials: Sequence[Trial] = (),
        level: float = LEVEL,
    ) -> None:
        self._rows, self._level, self._n_folds = rows, level, int(rows.folds.number.max())
        whole = {name: complete(fits, name, self._n_folds) for name in METHODS}
        self._fits = {name: of_method for name, of_method in whole.items() if of_method}
        self._trials = [trial for trial in trials if METHODS[trial.method].linear]
        left = {name: left_lambdas(self._trials, name) for name in METHODS}
        self._dropped = {t[:3] for t in self._trials if t.setting not in left[t.method].get(t.fold, ())}

        def part(measure: str, fit: Fit) -> Sampled:
            return sampled(measure, self._scored(fit), Draws(rows.held_out(fit.fold), REPLICATES))

        # What is computed of fits serves all measures that choose them.
        self._scored = cache(lambda fit: rows.scored(store.scores(fit), fit.fold))
        self._value, self._part = cache(self._measure), cache(part)

    def methods(self, by: str) -> list[MethodResult]:
        """Return a row for each method, with the settings that a measure chooses, and those of `CHOSEN`."""
        best_fits = self._best_fits(by)
        return [self._result(name, best_fits, by) for name in best_fits]

    def head(self, measure: str, select: str | None = None) -> dict[str, list[MethodResult]]:
        """Return the rows by each measure of the head, tuned for it; none within groups, whose rows it mixes."""
        if Measure.parse(measure).within_groups:
            return {}
        judged = self._rows.folds.number[self._rows.y < 0]
        fewest = int(np.bincount(judged, minlength=self._n_folds + 1)[1:].min())
        heads = [head for name in dict.fromkeys([*COMPARED, select or ""]) if (head := HeadMeasure.parse(name))]
        measurable = [head for head in heads if head.family not in ("tpr@fpr", "pauc") or head.level * fewest >= 1]
        return {head.name: self.methods(head.name) for head in measurable}

    def _best_fits(self, by: str) -> dict[str, list[Fit]]:
        """Return the fit of each fold whose setting the other folds choose, for each method, and so among several."""
        value = partial(self._value, by)
        best_fits = {name: choose(of_method, value, self._dropped) for name, of_method in self._fits.items()}
        ours, others = ([name for name in self._fits if name in names] for names in (OWN, OTHERS))
        for best, names in ((BEST, others if OURS in ours else []), (BEST_FEATURES, ours if len(ours) > 1 else [])):
            if candidates := [fit for name in names for fit in self._fits[name]]:
                best_fits[best] = choose(candidates, value, self._dropped)
        return best_fits

    def _result(self, name: str, best_fits: Mapping[str, Sequence[Fit]], by: str) -> MethodResult:
        """Return the row of a method or of one of `CHOSEN`."""
        fits, measures = best_fits[name], dict.fromkeys([*RANKING, by])
        settings, intervals = [fit.setting for fit in fits], {of: self._interval(of, fits) for of in measures}

        def ahead(first: str) -> dict[str, Interval]:
            """Return by how much distsms `first` is better than this method; empty without either."""
            if first == name or first not in best_fits:
                return {}
            return {of: self._interval(of, fits, best_fits[first]) for of in measures}

        if name in CHOSEN:
            counts = Counter(f"{fit.method} ({METHODS[fit.method].about})" for fit in fits)
            notes = ", ".join(f"{method} in {n}" for method, n in sorted(counts.items()))
            return MethodResult(name, settings, False, 0.0, notes, intervals, ahead(OURS))
        linear, of_method = METHODS[name].linear, self._fits[name]
        tried = [trial for trial in self._trials if trial.method == name]
        seconds = sum(fit.seconds for fit in of_method) + sum(trial.seconds for trial in tried)
        counts = Counter(fit.note for fit in of_method if fit.note)
        notes = ", ".join(f"{n} fits {note}" for note, n in sorted(counts.items()))
        at_end, beyond = False, ""
        if linear:
            value = attrgetter("value") if tried else partial(self._value, by)
            at_end, beyond = _find_ends(tried or of_method, settings, value)
        featured = ahead(f"{OURS}-{METHODS[name].features}" if linear else BEST_FEATURES)
        return MethodResult(name, settings, at_end, seconds, notes, intervals, ahead(OURS), featured, beyond)

    def _interval(self, measure: str, fits: Sequence[Fit], ours: Sequence[Fit] = ()) -> Interval:
        """Return the interval of a measure of the fits of all folds or, with `ours`, of how much better these are."""
        head = HeadMeasure.parse(measure)
        if head is None and measure not in RANKING and measure not in GROUPED:
            return self._interval_over_folds(measure, fits, ours)
        parts = [self._part(measure, fit) for fit in fits]
        if ours:
            parts = [self._part(measure, fit).less(part) for fit, part in zip(ours, parts, strict=False)]
        pooled = confidence.pool_folds([part.estimate() for part in parts], of_folds=self._n_folds)
        replicates = np.mean([part.replicates for part in parts], axis=0)
        return parts[0]._replace(replicates=replicates).interval(self._level, pooled)

    def _interval_over_folds(self, measure: str, fits: Sequence[Fit], ours: Sequence[Fit]) -> Interval:
        """Return the interval of a measure of which the folds alone say how much it varies."""
        values = [self._value(measure, fit) for fit in fits]
        if not ours:
            return confidence.folds_interval(values, self._level, measure)
        ahead = [self._value(measure, fit) - less for fit, less in zip(ours, values, strict=False)]
        judged = self._rows.folds.number > 0
        y, weights = self._rows.y[judged], some(self._rows.weights, judged)
        why = confidence.too_few(effective_sizes(Scored(np.zeros(len(y)), y, ALONE, weights)))
        return replace(confidence.folds_interval(ahead, self._level), why=why)

    def _measure(self, name: str, fit: Fit) -> float:
        """Return a measure of a fit on its fold."""
        if name in RANKING:
            return float(getattr(fit, name))
        return chooser_value(name, self._scored(fit), np.nan)


def unsettled(methods: Sequence[str], plan: BaselinePlan, rows: FoldedRows) -> list[str]:
    """Return the methods that the folds so far do not settle at `EARLY_LEVEL`, so strict (Haybittle and Peto) that the
    interval at the end may stay as narrow as without this look. On the root.
    """
    fits, trials, by = plan.counted_fits(), plan.trials(), plan.problem.chooser
    left = list[str]()
    for name in methods:
        of_both = [fit for fit in fits if fit.method in (OURS, name)]
        results = Evaluator(plan.store, of_both, rows, trials, EARLY_LEVEL).methods(by)
        differences = next((each.differences for each in results if each.method == name), {})
        left += [] if by in differences and is_settled(differences[by]) else [name]
    return left


def is_settled(difference: Interval) -> bool:
    """Return whether a difference at `EARLY_LEVEL` says which is better; bootstrap replicates alone do not show it."""
    far = abs(difference.value) > -float(ndtri((1 - EARLY_LEVEL) / 2)) * difference.standard_error
    return not difference.why and far and (difference.low > 0 or difference.high < 0)


class Effort(NamedTuple):
    """How much a baseline has done, and what a thorough one would take."""

    fits: int  # to the end
    trials: int  # quick fits of lambdas, and settings of trees
    more_fits: int  # fits and trials that a thorough comparison would add
    more_seconds: float  # about what those would take, as long as the ones so far
    unknown: list[str]  # the methods whose fits these seconds do not count, since none was made


def effort(plan: BaselinePlan) -> Effort:
    """Return how much was done, and what is left of a thorough comparison. On the root."""
    problem, optional = plan.problem, [name for each in plan.left_out if each.optional for name in each.methods]
    everything = first_round([*plan.methods, *optional], problem.lambdas, problem.folds, THOROUGH_TREES)
    done = plan.store.done()
    keys = {each[:3] for each in done}
    more = Counter(spec.method for spec in everything if spec[:3] not in keys)
    seconds = {name: [each.seconds for each in done if each.method == name] for name in METHODS}
    of_trees = [each.seconds for each in done if each.method in TREES]
    means = {name: float(np.mean(of_fits)) for name in more if (of_fits := seconds[name] or of_trees * (name in TREES))}
    return Effort(
        fits=len(plan.counted_fits()),
        trials=len(plan.store.trials()),
        more_fits=more.total(),
        more_seconds=sum(number * means.get(name, 0.0) for name, number in more.items()),
        unknown=[name for name in more if name not in means],
    )


def _find_ends(
    fits: Sequence[Fit] | Sequence[Trial], lambdas: Collection[float], value: Callable[[Any], float]
) -> tuple[bool, str]:
    """Return whether one of the lambdas is at an end of the grid of `fits`, and `MethodResult.beyond`."""
    grid = sorted({fit.setting for fit in fits}, reverse=True)
    curve = [mean_over_folds(lam, [value(fit) for fit in fits if fit.setting == lam]) for lam in grid]
    beyond = {"smallest": f"below {grid[-1]:g}", "largest": f"above {grid[0]:g}", "": ""}
    return len(grid) > 1 and not {grid[0], grid[-1]}.isdisjoint(lambdas), beyond[ends_at(curve, lambdas)]


def complete(fits: Sequence[Fit], method: str, folds: int) -> list[Fit]:
    """Return the fits of a method, descending, of the settings with all folds (of trees: the first folds)."""
    of_method = {(fit.setting, fit.fold): fit for fit in fits if fit.method == method}
    first_folds = {
        setting: next((fold for fold in range(folds) if (setting, fold + 1) not in of_method), folds)
        for setting in sorted({setting for setting, _ in of_method}, reverse=True)
    }
    settings = [setting for setting, number in first_folds.items() if number == folds]
    if not METHODS[method].linear and first_folds:
        settings = [max(first_folds, key=lambda setting: (first_folds[setting], setting))]  # with the most trials
        folds = first_folds[settings[0]] if first_folds[settings[0]] >= EARLY_FOLDS else 0
    return [of_method[setting, fold] for setting in settings for fold in range(folds, 0, -1)]


def choose(fits: Iterable[Fit], value: Callable[[Fit], float], dropped: Collection[tuple[Any, ...]] = ()) -> list[Fit]:
    """Return for each fold the fit of the method and setting, not `dropped` for it, that is best on the others."""
    table = {((fit.method, fit.setting), fit.fold): fit for fit in fits}
    candidates, folds = list(dict.fromkeys(candidate for candidate, _ in table)), sorted({fold for _, fold in table})
    values = np.array([[value(table[candidate, fold]) for fold in folds] for candidate in candidates])
    without = np.array([[(*candidate, fold) in dropped for fold in folds] for candidate in candidates])
    return [
        table[candidates[best], fold] for fold, best in zip(folds, best_on_other_folds(values, without), strict=True)
    ]


def check_logistic(results: Sequence[MethodResult], rows: FoldedRows, problem: Problem) -> list[str]:
    """Return a sentence for each logistic regression of small data: does scikit-learn find the same minimum?"""
    if rows.X is None or len(rows.y) + getattr(rows.X, "nnz", rows.X.size) > SMALL or missing(["svm"]):
        return []
    task, sentences = rows.task(1, problem), []
    for result in results:
        if (family := FAMILIES.get(result.method)) and family.log_loss:
            agrees, sentence = scikit_agrees(task, Measure.parse(result.method), result.settings[0])
            sentences.append(f"{'' if agrees else WARNING}{sentence}, on the training rows of fold 1.")
    return sentences
