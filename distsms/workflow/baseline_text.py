"""Write the results of a baseline as a table with a row for each method, and as sentences with the conclusions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from distsms.base import formatting
from distsms.base.measures import SHOWN, display_name
from distsms.base.wording import Message, option
from distsms.metrics.confidence import LEVEL, METHOD, Interval
from distsms.workflow.competitors import METHODS, OTHERS, OURS, OWN
from distsms.workflow.method_results import BEST, BEST_FEATURES, CHOSEN, EARLY_LEVEL, Effort, MethodResult

TRAINED = {
    "prbep": "a linear SVM, with hinge loss, an intercept that is not regularized, and C = 8 n+ / (lambda n^2)",
    "rocarea": "a ranking SVM, with hinge loss over all pairs of a positive and a negative row",
}
"""The model that minimizes J, for each measure; see docs/theory/support-vector-machines.md."""


def shown(select: str) -> list[str]:
    """Return the measures that are shown: that which chose the settings first, then the others of `SHOWN`."""
    return list(SHOWN) if select in SHOWN else [select, *SHOWN]


def header(select: str) -> list[str]:
    """Return the header of the table; `cells` returns its rows. `select` is the measure that chose the settings."""
    names = [f"{display_name(name)} [%]" for name in shown(select)]
    return ["method", *names, f"distsms ahead by, {display_name(select)}", "lambda", "s"]


def cells(result: MethodResult, select: str) -> list[str]:
    """Return the row of a method, with measures in per cent."""
    values = [_with_limits(result.intervals[name], ".2f") for name in shown(select)]
    difference = result.differences.get(select)
    ahead = _with_limits(difference, "+.3f") if difference else ""
    return [result.method, *values, ahead, describe_setting(result), f"{result.seconds:.1f}"]


def _with_limits(interval: Interval, form: str) -> str:
    """Return a value and the limits of its interval, in per cent."""
    return f"{100 * interval.value:{form}}" + ("" if interval.why else f" ({describe_interval(interval, form)})")


def describe_interval(interval: Interval, form: str = ".2f") -> str:
    """Return the limits of an interval in per cent."""
    return "none" if interval.why else f"{100 * interval.low:{form}} to {100 * interval.high:{form}}"


def describe_setting(result: MethodResult) -> str:
    """Return the settings of the folds, from the smallest to the largest, with a star if one is an end of the grid."""
    if result.method in CHOSEN:
        return ""
    low, high = min(result.settings), max(result.settings)
    if not METHODS[result.method].linear:
        return f"best of {high:g}"
    return (f"{low:g}" if low == high else f"{low:g} to {high:g}") + "*" * result.at_end


def table(results: Sequence[MethodResult], select: str) -> str:
    """Return the table, with a row for each method. `select` is the measure that chose the settings."""
    return formatting.format_table(header(select), [cells(result, select) for result in results])


def head_table(by_measure: Mapping[str, Sequence[MethodResult]]) -> str:
    """Return the table of the measures of the head; by_measure : for each of them, the methods tuned for it."""
    methods = list(dict.fromkeys(result.method for results in by_measure.values() for result in results))
    intervals = {name: {result.method: result.intervals[name] for result in by_measure[name]} for name in by_measure}
    rows = [[method, *(_with_limits(intervals[name][method], ".1f") for name in by_measure)] for method in methods]
    return formatting.format_table(["method", *(f"{display_name(name)} [%]" for name in by_measure)], rows)


def head_sentences(by_measure: Mapping[str, Sequence[MethodResult]]) -> list[str]:
    """Return a sentence for each measure of the head on whether distsms is ahead, every method tuned for it."""
    subject, other, texts = "distsms is", "the best of the other linear models", dict[str, str]()
    for name, results in by_measure.items():
        for best in (result for result in results if result.method == BEST):
            compared = _Verdicts(results, name).compare(subject, best.differences[name], other, [OURS], OTHERS)
            texts[display_name(name)] = compared.text
    lines = [f"Tuned for {shown}, {text}." for shown, text in texts.items() if "(**)" not in text]
    undecided = [shown for shown, text in texts.items() if "(**)" in text]
    return lines + [f"Tuned for {_all(undecided)}, {_undecided(subject, other)}."] * bool(undecided)


def describe_beyond(tables: Iterable[Sequence[MethodResult]], lines: Sequence[str]) -> list[str]:
    """Return the note on what "(**)" in other sentences means, which says which lambdas to try; none without it."""
    places = [f"for {result.method} {result.beyond}" for results in tables for result in results if result.beyond]
    if not any("(**)" in line for line in lines):
        return []
    return [
        "** The best lambda is an end of the grid, and better ones beyond it might change the verdict: give --lambdas "
        f"that go further, {_all(list(dict.fromkeys(places)))}."
    ]


def sentences(results: Sequence[MethodResult], measure: str, select: str | None = None) -> list[str]:
    """Return sentences on whether direct optimization pays, on trees, and on how to read the table."""
    verdicts, lines = _Verdicts(results, select or measure), []
    for result in sorted(results, key=lambda result: [BEST, BEST_FEATURES, result.method].index(result.method)):
        if result.method == BEST:
            lines.append(verdicts.on_linear(result))
            if measure in TRAINED:
                lines.append(f"What distsms trains for {SHOWN[measure]} is itself {TRAINED[measure]}.")
            lines += [_by_other_measure(result, results, each, measure) for each in SHOWN if each != verdicts.measure]
        elif result.method == BEST_FEATURES:
            lines += verdicts.on_features(result)
        elif result.differences and not METHODS[result.method].linear:
            lines.append(verdicts.on_trees(result))
        elif result.with_features:
            ours = f"{OURS}-{METHODS[result.method].features}"
            difference = result.with_features[verdicts.measure]
            compared = verdicts.compare("distsms is", difference, result.method, [ours], [result.method])
            lines.append(f"On {METHODS[result.method].features}, {compared.text}.")
    folds = max((len(result.settings) for result in results), default=0)
    lines += [
        f"{result.method}: {len(result.settings)} of {folds} folds settle the verdict, since their interval of "
        f"{100 * EARLY_LEVEL:g} % does not contain 0, either."
        for result in results
        if len(result.settings) < folds
    ]
    if lines and all(result.method in CHOSEN or METHODS[result.method].linear for result in results):
        lines.append("A model that is not linear may be ahead of all of these; --methods with trees shows it.")
    if any(result.at_end for result in results):
        more = "give the same command line with other --lambdas; --methods NAME tries them for one method alone"
        lines.append(f"* A lambda of at least one fold is an end of the grid. To try those beyond it, {more}.")
    lines += [f"{result.method}: {result.notes}." for result in results if result.notes and result.method not in CHOSEN]
    lines.append(
        f"The intervals ({100 * LEVEL:g} %) are of {METHOD}: they show how much a value would change. Each interval "
        "stands for its own row of the table; do not compare methods by whether their intervals overlap."
    )
    return lines


def describe_effort(effort: Effort, results: Sequence[MethodResult], select: str) -> str:
    """Return how much was done, whether the verdict is settled, and what a thorough comparison would add."""
    quick = f" and {effort.trials} quick ones" * bool(effort.trials)
    settled = [_side(result.differences[select]) for result in results if result.method == BEST]
    verdict = "settled" if any(settled) else "open, and the fits of this plan are spent"
    said = f"{effort.fits} fits{quick} were made{f'; the verdict is {verdict}' if settled else ''}."
    if not effort.more_fits:
        return said
    unknown = f", not counting {_all(effort.unknown)}" * bool(effort.unknown)
    seconds = formatting.format_duration(effort.more_seconds)
    return Message(f"{said} {option('thorough')} would add {effort.more_fits} fits in about {seconds}{unknown}.")


class Comparison(NamedTuple):
    """What a difference says in words, and by `_side`, which is None if lambdas beyond the grid might change it."""

    text: str
    side: int | None


class _Verdicts(NamedTuple):
    """What the differences in a table say by a measure."""

    results: Sequence[MethodResult]
    measure: str

    def compare(
        self, subject: str, difference: Interval, other: str, ours: Collection[str], theirs: Collection[str]
    ) -> Comparison:
        """Say "SUBJECT ahead of OTHER, by ..." or "behind"; the grids of both sides may end too early."""
        if difference.why:
            return Comparison(f"there is no verdict on whether {subject} ahead of {other}: {difference.why}", None)
        # 1) Where lambdas beyond the grid might change this.
        shown = display_name(self.measure)
        side, tie = _side(difference), difference.low == difference.value == difference.high == 0
        names = [*(ours if side <= 0 and not tie else ()), *(theirs if side >= 0 and not tie else ())]
        of_sides = [result for result in self.results if result.method in names]
        if any(result.beyond for result in of_sides):
            on_it = f"{100 * difference.value:+.3f} points of {shown}, interval {describe_interval(difference, '+.3f')}"
            return Comparison(f"{_undecided(subject, other)}; the difference on this grid is {on_it}", None)
        flat, on_grid = [each.method for each in of_sides if METHODS[each.method].linear and each.at_end], ""
        if flat:
            at_end = f"{_all(flat)} took an end of their grid (*), whose last step changed little"
            on_grid = f"; this is so with the lambdas tried: {at_end}"
        # 2) Who is ahead.
        if _is_tie(difference):
            points = f"0.000 points of {shown} (interval {describe_interval(difference, '.3f')})"
            return Comparison(f"{subject} level with {other}: the difference is {points}{on_grid}", side)
        where, ahead = ("behind", _reverse(difference)) if difference.value < 0 else ("ahead of", difference)
        points = f"{100 * ahead.value:.3f} points of {shown} (interval {describe_interval(ahead, '.3f')})"
        chance = "" if side else "; the interval contains 0, so this may be chance"
        return Comparison(f"{subject} {where} {other}, by {points}{chance}{on_grid}", side)

    def on_linear(self, best: MethodResult) -> str:
        """Return whether direct optimization pays, and what to take."""
        other = "the best of the other linear models, chosen for each fold by the other folds"
        models = f"The models chosen, with their numbers of folds: {best.notes}."
        compared = self.compare("direct optimization is", best.differences[self.measure], other, [OURS], OTHERS)
        if compared.side == -1:
            text = compared.text.replace("direct optimization", "it", 1)
            return f"Direct optimization does not pay here: {text}. {models}"
        doubts = "" if compared.side is None else _doubts(best, self.measure, "" if compared.side else "Take either. ")
        return f"{_capital(compared.text)}. {doubts}{models}"

    def on_features(self, best: MethodResult) -> list[str]:
        """Return what the row of the best features is, and what features are worth beside the original columns."""
        lines = [
            f'The row "{BEST_FEATURES}" is distsms on the original columns or on features, whichever are best on the '
            f"other folds for each fold. Chosen, with their numbers of folds: {best.notes}."
        ]
        if difference := best.differences.get(self.measure):
            subject, other = "distsms with the best features is", f"{OURS} on the original columns"
            featured = [name for name in OWN if name != OURS]
            text = self.compare(subject, _reverse(difference), other, featured, [OURS]).text
            lines.append(f"{_capital(text)}.")
        return lines

    def on_trees(self, trees: MethodResult) -> str:
        """Return whether trees are ahead, what to take, and whether they are ahead of the best features, too."""
        difference, beside, advice = trees.differences[self.measure], "", ""
        tried = f"the best of {max(trees.settings):g} settings on a fifth of the training rows"
        about = f"{METHODS[trees.method].about}, {tried if max(trees.settings) > 1 else 'with usual settings'}"
        compared = self.compare(f"trees ({about}) are", _reverse(difference), "distsms", [], [OURS])
        if not difference.why and (with_features := trees.with_features.get(self.measure)):
            subject = "with the best features, distsms is"
            beside = f" {_capital(self.compare(subject, with_features, 'these trees', OWN, []).text)}."
        if compared.side is not None:
            advices = {1: " Take them if the model need not be linear." * (not beside), 0: " More rows would tell."}
            advice = advices.get(compared.side, " A linear model is enough here.")
        return f"{_capital(compared.text)}.{advice}{beside}"


def _doubts(best: MethodResult, select: str, otherwise: str) -> str:
    """Return what to take if distsms is not behind by `select`, but perhaps by another measure of the table."""
    sides = {display_name(name): _side(best.differences[name]) for name in SHOWN if name != select}
    behind = " and ".join(name for name, side in sides.items() if side < 0)
    ahead = " and ".join(name for name, side in sides.items() if side > 0)
    if behind:
        return f"But it is clearly behind by {behind}; take the other model if that is what counts for you. "
    if ahead and otherwise:
        return f"It is clearly ahead by {ahead}, so take distsms if that counts for you. "
    return otherwise


def _by_other_measure(best: MethodResult, results: Sequence[MethodResult], other: str, measure: str) -> str:
    """Return a sentence that compares the same models by another measure, by which they were not chosen."""
    hint = f"--measure {other} compares models that are trained and chosen for it"
    if other == measure:
        hint = "These models were trained, but not chosen for it"
    subject, rivals = "these linear models of distsms are", "the best other ones"
    compared = _Verdicts(results, other).compare(subject, best.differences[other], rivals, [OURS], OTHERS)
    return f"By {display_name(other)}, {compared.text}. {hint}."


def _reverse(difference: Interval) -> Interval:
    return replace(difference, value=0.0 - difference.value, low=0.0 - difference.high, high=0.0 - difference.low)


def _side(difference: Interval) -> int:
    """Return 1 if the interval shows that the first method is ahead, -1 if it is behind, and 0 if neither."""
    return 0 if _is_tie(difference) else int(difference.low > 0) - int(difference.high < 0)


def _is_tie(difference: Interval) -> bool:
    """Return whether a difference is 0 as it is shown."""
    return round(100 * float(difference.value), 3) == 0


def _undecided(subject: str, other: str) -> str:
    return f"it is not decided (**) whether {subject} ahead of {other}"


def _all(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _capital(sentence: str) -> str:
    return sentence if sentence.startswith(OURS) else sentence[0].upper() + sentence[1:]
