"""Whether a trained model ranks better than chance, hints that it may be worse in use, and what to use instead.

It does not if all scores are equal, or if its ROCArea or GAUC on the training rows is not more than two standard errors
above 0.5. With many features a model learns noise by heart, so test rows decide as well (`AreaOnTest`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from decimal import ROUND_CEILING, Context
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.formatting import finite
from distsms.base.measures import GROUPED, Measure, display_name
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.base.wording import Message, marked, option
from distsms.metrics.confidence import LEVEL, Interval, MeanEstimate, measure_estimate, rocarea_interval
from distsms.metrics.ranking import rocarea
from distsms.metrics.row_weights import effective_sizes, masses
from distsms.metrics.within_groups import gauc_estimate, gauc_interval
from distsms.optim.result import Result, Status, largest_gain
from distsms.optim.settings import Settings
from distsms.shards.dataset import DataBlock
from distsms.shards.table_schema import Table
from distsms.training.task import TrainingTask

ROCAREA = Measure.parse("rocarea")
ERRORS = 2.0
"""The ROCArea of a useful model is more than this many standard errors above 0.5."""
ALL_TIED = "all scores are equal"
FEWEST_TESTED = 30
"""Test rows can show that a model ranks no better than chance only if they have this many rows of each class."""

SUSPICIOUS, LEAK, PERFECT = 0.98, 0.995, 0.9995
"""A ROCArea on training rows above which columns are looked at one by one, that of a column alone above which it is
named, and one that is printed as 1.000.
"""
MOST_COLUMNS, MOST_WEIGHTS = 20, 2**22
"""The most columns that are looked at, and the most weights of theirs that are held at a time."""
CLEAR = 0.05
"""ROCArea must be lower on test rows by more than this, and than chance explains, for overfitting to be clear."""


class AreaOnTest(NamedTuple):
    """The ROCArea on test rows, or GAUC, with its interval; `effective`: the smaller effective number of rows of a
    class (`row_weights.effective_sizes`), or of groups; `training_rows`: the share of them that are training rows.
    """

    area: Interval
    n_pos: int
    n_neg: int
    effective: float = math.inf
    measure: Measure = ROCAREA
    training_rows: float = 0.0

    @property
    def name(self) -> str:
        """How the area is called in messages."""
        return self.measure.display_name

    @property
    def enough(self) -> bool:
        """Whether there are enough rows of both classes for a verdict."""
        return min(self.n_pos, self.n_neg, self.effective) >= FEWEST_TESTED

    @property
    def above_chance(self) -> bool:
        """Whether the area is more than two standard errors above 0.5."""
        return self.area.value > 0.5 + ERRORS * self.area.standard_error

    def as_json(self) -> dict[str, object]:
        """Return the numbers of rows and the limits of the interval; None in place of a limit that does not exist."""
        name = self.measure.family
        limits = {f"{name}_low": self.area.low, f"{name}_high": self.area.high}
        limits |= {"groups": self.effective} if self.measure.within_groups else {}
        return {"n_pos": self.n_pos, "n_neg": self.n_neg, **finite(limits), "training_rows": self.training_rows}

    def why_chance(self) -> str:
        """Return why the model ranks no better than chance on these rows; "" if it does, or if they are too few."""
        if self.above_chance or not self.enough:
            return ""
        rows = f"test rows ({self.n_pos} positive, {self.n_neg} negative)"
        return _near_chance(self.name, rows, self.area.value, self.area.standard_error)

    def why_unknown(self) -> str:
        """Return a warning if the rows are too few to tell whether the model ranks better than chance; else ""."""
        if self.above_chance or self.enough:
            return ""
        least, fewer = min((self.n_pos, "positive rows"), (self.n_neg, "negative rows"))
        if not least:
            return f"The test rows have no {fewer}, so the model is not tested. Test it on rows of both classes."
        few = "groups with both classes" if self.measure.within_groups else fewer
        return (
            f"The test rows have too few {few} ({min(least, self.effective):.4g}) to tell whether this model ranks "
            f"better than chance (0.5): their {self.name} is {self.area.value:.3f}. Test it on more rows first."
        )


def within_groups(measure: Measure, scored: Scored) -> MeanEstimate | None:
    """Return the estimate of the GAUC of scores, for a measure within groups; None for others. **Collective.**"""
    if not measure.within_groups or scored.groups is None:
        return None
    return gauc_estimate(measure.within_groups, scored)


def area_on_test(scored: Scored, measure: Measure = ROCAREA) -> AreaOnTest:
    """Return the area of the scores of test rows with its interval; equal scores have none. **Collective.**"""
    n_pos, n_neg = map(int, masses(scored.classes, None, scored.comm))
    estimate = within_groups(measure, scored)
    if estimate is None:
        measure, estimate = ROCAREA, measure_estimate("rocarea", scored)
    area = gauc_interval(estimate, LEVEL) if measure.within_groups else rocarea_interval(estimate, LEVEL)
    if scores_tie(scored.scores, scored.comm):
        area = replace(area, low=math.nan, high=math.nan, why=ALL_TIED)
    return AreaOnTest(area, n_pos, n_neg, min(estimate.counts), measure)


def scores_tie(scores: Floats, comm: Communicator) -> bool:
    """Return whether all scores of all ranks are equal, up to rounding. **Collective**: two numbers are exchanged."""
    ends = np.array([np.max(scores, initial=-np.inf), -np.min(scores, initial=np.inf)])
    high, low = comm.maximum(ends) * (1, -1)
    return bool(high - low <= 1e-14 * max(abs(high), abs(low)))


def why_chance(scored: Scored, rocarea: float, within: MeanEstimate | None = None) -> str:
    """Return why scores, or `within` their GAUC, rank no better than chance, or ""; NaN for `rocarea`: only if all are
    equal. **Collective.** The bound of DeLong's error, the root of A (1 - A) / min(n+, n-), often suffices.
    """
    if scores_tie(scored.scores, scored.comm):
        return ALL_TIED
    name, estimate = "GAUC", within
    if estimate is None:
        n_min = min(effective_sizes(scored))
        if math.isnan(rocarea) or rocarea - 0.5 > ERRORS * math.sqrt(rocarea * (1 - rocarea) / n_min):
            return ""
        name, estimate = "ROCArea", measure_estimate("rocarea", scored)._replace(value=rocarea)
    error = float(np.nan_to_num(estimate.error))
    return _near_chance(name, "training rows", estimate.value, error) if estimate.value <= 0.5 + ERRORS * error else ""


def _near_chance(name: str, rows: str, value: float, error: float) -> str:
    return f"its {name} on the {rows} is {value:.3f}, with a standard error of {error:.2g}; chance is 0.5"


def leaking_columns(block: DataBlock, table: Table, w: Floats, n_pos: int, comm: Communicator) -> dict[str, float]:
    """Return the ROCArea of columns that rank the training rows almost perfectly by their part of the scores, the best
    first, but for those with many features, which can learn rows by heart. **Collective**, as `MOST_COLUMNS` passes.
    """
    features = [slice(start, end) for start, end in pairwise(table.feature_starts)]
    largest = [float(np.abs(w[part]).max(initial=0.0)) for part in features]
    few = [k for k, part in enumerate(features) if largest[k] and part.stop - part.start <= max(3, n_pos / 5)]
    heaviest = sorted(few, key=lambda k: -largest[k])[:MOST_COLUMNS]
    at_once, leaks = max(1, MOST_WEIGHTS // len(w)), dict[str, float]()
    for first in range(0, len(heaviest), at_once):
        columns = heaviest[first : first + at_once]
        W = np.zeros((len(columns), len(w)))
        for row, k in enumerate(columns):
            W[row, features[k]] = w[features[k]]
        for k, scores in zip(columns, block.features.margins(W), strict=True):
            if (area := rocarea(block.counted_scores(scores, comm))) > LEAK:
                leaks[table.columns[k].name] = area
    return dict(sorted(leaks.items(), key=lambda leak: -leak[1]))


def describe_leaks(leaks: Mapping[str, float]) -> str:
    """Return a warning about columns that rank almost perfectly by themselves, or "" if there are none."""
    if not leaks:
        return ""
    names = ", ".join(list(leaks)[:3]) + f" and {len(leaks) - 3} more" * (len(leaks) > 3)
    begin = f"Column {names} alone ranks" if len(leaks) == 1 else f"Each of the columns {names} alone ranks"
    return Message(
        f"{begin} the training rows almost perfectly (ROCArea {max(leaks.values()):.4f}). Is that known before the "
        f"outcome is? If not, the model is of no use on new rows; train without it: {option('drop', list(leaks))}"
    )


class OnFolds(NamedTuple):
    """The mean of a measure over held-out folds of the training rows, with its standard error."""

    measure: str
    mean: float
    error: float
    compared: bool = False  # whether features were compared on them, so that models which learn by heart are no news


def describe_doubt(test: AreaOnTest, folds: OnFolds | None) -> str:
    """Return a warning if test rows fit chance as well as what held-out folds show, which is better; else "". Local."""
    if folds is None or folds.measure != test.measure.name or not test.why_chance():
        return ""
    if not 0.5 + ERRORS * folds.error < folds.mean <= test.area.high:
        return ""
    return (
        f"The test rows do not tell whether this model ranks better than chance: their {test.name} is "
        f"{test.area.value:.3f}, with a standard error of {test.area.standard_error:.2g}, so that it may be 0.5, which "
        f"is chance, or the {folds.mean:.3f} of held-out folds of the training rows. Test it on more rows first."
    )


def describe_test(
    training: Mapping[str, float],
    test: AreaOnTest,
    data: Mapping[str, Any],
    check_perfect: bool,
    folds: OnFolds | None = None,
    automatic: bool = False,
) -> str:
    """Return a warning if the area on test rows is too good, unclear, or far below that in training; else "". One split
    may be unlucky, so that it is learned by heart is said only where held-out folds show it.
    """
    area, before, name = test.area.value, training[test.measure.name], test.name
    if area > PERFECT and check_perfect and test.enough:
        check = "that every column is known before the outcome is, and that test rows are no copies of training rows"
        return f"{name} on the test rows is {area:.4f}, which real data hardly ever allow. Check {check}."
    n_pos, n_neg = data["n_pos"], data["n_neg"]
    if weights := data.get("weights"):
        n_pos, n_neg = weights["effective_positive"], weights["effective_negative"]
    error = math.sqrt(before * (1 - before) / max(min(n_pos, n_neg), 1))
    unclear, half = test.why_unknown(), (test.area.high - test.area.low) / 2
    if not before - area > max(CLEAR, math.hypot(ERRORS * error, half)):
        return unclear
    on_test = f"{area:.3f} on the test rows ({test.n_pos} positive)"
    clear = f"{name} is {before:.3f} on the training rows ({data['n_pos']} positive), but {on_test}"
    other_rows = "the test rows are of another kind, or the split is unlucky"
    if folds is None or folds.measure not in training:
        clear += f". The model may have learned its training rows by heart, or {other_rows}: the held-out folds of"
        return f"{clear} distsms path tell which. {unclear}".rstrip()
    on_training, measure = training[folds.measure], display_name(folds.measure)
    held_out = f"({measure} is {on_training:.3f} on the training rows, and {folds.mean:.3f} on them)"
    if not on_training - folds.mean > max(CLEAR, ERRORS * folds.error):
        clear += ". But the model has not learned its training rows by heart, since held-out folds of them do not show"
        return f"{clear} this {held_out}: {other_rows}. {unclear}".rstrip()
    if folds.compared:
        return unclear
    lambdas = f", or a larger lambda: {option('lam', 'auto')} compares lambdas on such folds" * (not automatic)
    return Message(
        f"{clear}, and held-out folds of the training rows show this, too {held_out}: the model has learned its "
        f"training rows by heart. Fewer features help ({option('drop')}, {option('min_count')}; for `distsms features` "
        f"fewer bins and crosses, and a larger {option('min_leaf')}){lambdas}. {unclear}".rstrip()
    )


OTHER_COLUMNS = "Another lambda will hardly help; other columns or more rows may."


def rounded_up(value: float, digits: int) -> float:
    """Return a number, rounded up to so many significant digits. Local."""
    return float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(value))))


def largest_lambda(settings: Settings, result: Result) -> float:
    """Return a lambda from which on, by the proved lower bound, J(0) is within the wanted gap of min J. Local."""
    gain = largest_gain(result.J_at_zero, result.lower_bound, settings.lam, settings.lam)
    return settings.lam * min(1.0, gain / (settings.target(result.J_at_zero) or gain or 1.0))


def describe_chance(
    why: str,
    task: TrainingTask,
    result: Result,
    n_pos: int,
    weights: tuple[float, float] | None = None,
    no_lambda_helps: bool = False,
) -> str:
    """Return sentences on a model that ranks no better than chance for this reason, and what to do. Local."""
    measure, settings, cause = task.measure, task.settings, ""
    below = largest_lambda(settings, result)
    if not result.proved:
        more = "allow it more evaluations or time, or take a larger lambda"
        rounding = result.status is Status.ROUNDING
        cause = f"The run ended without a proof: {f'rounding errors, {result.detail}' if rounding else more}."
    elif measure.k not in (None, n_pos):
        effect = "adding the same number to all scores can lower the risk, and changes nothing in their order"
        cause = f"K differs from the number of positive rows, {n_pos}. Then {effect}."
    elif settings.l1 >= result.l1_limit:
        cause = f"l1 is too large: all coefficients are 0 from l1 = {result.l1_limit:.3g} on; take a smaller one."
    elif settings.l1 and (measure.family.smooth_by_itself or measure.family.compares_pairs):
        cause = f"l1 or lambda is too large: use an {option('l1')} below {settings.l1:g}, or {option('lam', 'auto')}."
    elif measure.family.compares_pairs and no_lambda_helps:
        cause = OTHER_COLUMNS
    elif measure.family.compares_pairs:
        cause = f"This lambda is too large: use {option('lam', 'auto')}, or a lambda below {float(f'{below:.1g}'):g}."
    elif result.idle:
        lam, gain = f"{rounded_up(below, 1):g}", max(result.J_at_zero - result.lower_bound, 0.0)
        cause = (
            f"At every lambda above {lam}{' with this l1' if settings.l1 else ''}, training for this measure ends with "
            "such a model: no w has a J that is lower than that of w = 0 by more than the gap to prove, "
            f"{settings.target(result.J_at_zero):g} (at lambda {settings.lam:g}: by more than {gain:.2g}). "
            f"{describe_distance(measure, result.slope_at_zero, weights)}"
        ).rstrip()
    first = f"This model ranks no better than chance: {why}."
    return Message(" ".join(filter(None, [first, cause, marked(describe_no_bias(measure, task.bias))])))


def describe_no_bias(measure: Measure, bias: float | None) -> str:
    """Return advice to add a constant feature where the measure depends on the threshold and there is none, or ""."""
    if bias or not measure.family.has_threshold:
        return ""
    return Message(f"Train with {option('bias', 1)}: without it, a row is called positive if its score is at least 0.")


def describe_constant(measure: Measure, l1: float, constant: float | None, bias: float) -> str:
    """Return a warning if l1 made the weight of the `constant` 0 where the measure depends on it; else "". Local."""
    if not (l1 and constant) or bias or measure.family.ignores_shift:
        return ""
    use = "probabilities" if measure.family.log_loss else "labels"
    return Message(
        f"l1 made the weight of the constant feature 0. So a row of zeros has the score 0, and the {use} may be wrong. "
        f"Give the constant feature a larger value ({option('bias', 10.0 * constant)}), or take a smaller l1."
    )


def describe_distance(measure: Measure, slope: float | None, weights: tuple[float, float] | None) -> str:
    """Return a sentence on the distance D from the mean of the positive rows to means of negative rows with shares of
    at most 1/K. Local. `slope` bounds the shortest subgradient of R at 0, for pauc D, for PRBEP (2 n+ / n) D, and J >=
    J(0) - slope^2 / (2 lambda).
    """
    if weights is None or slope is None or not math.isfinite(slope):
        return ""
    positive, negative = weights
    if measure.max_fpr is not None:
        K, share, least = measure.max_fpr * negative, 1.0, "D^2 / (2 lambda)"
    elif measure.family.can_be_vacuous and positive <= negative:
        K, share = positive, 2 * positive / (positive + negative)
        least = f"({share:.3g} D)^2 / (2 lambda)"
    else:
        return ""
    return (
        f"The distance D from the mean of the positive rows to the nearest mean of negative rows, in which no row has a"
        f" larger share than 1/K, is at most {slope / share:.2g} (K = {K:.6g}), and J is at least 1 - {least}."
    )


def describe_unseen(why: str, training: Mapping[str, float], automatic: bool) -> str:
    """Return sentences on a model that ranks no better than chance on rows that it has not seen. Local."""
    name = next((name for name in training if name in GROUPED), "rocarea")
    area = f"{display_name(name)} is {training[name]:.3f}"
    noise = f"What it has learned is the noise of its training rows, where its {area}."
    auto = f"{option('lam', 'auto')} may find a better lambda; other columns or more rows may help."
    said = f"This model ranks no better than chance on rows that it has not seen: {why}. {noise}"
    return Message(f"{said} {OTHER_COLUMNS if automatic else auto}")


def describe_idleness(result: Result) -> str:
    """Return a sentence if a run ended without proof and with a model that is no better than w = 0; else "". Local."""
    advice = "allow more evaluations, or take a larger lambda, which needs fewer."
    return "" if result.proved or not result.idle else f"This model is not yet better than w = 0: {advice}"
