"""Write the results of a baseline as a table with a row for each method, and as sentences with the conclusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from distsms.measures import SHOWN, display_name
from distsms.metrics.confidence import LEVEL, Interval
from distsms.metrics.estimates import METHOD
from distsms.selection.competitors import METHODS, OURS
from distsms.selection.method_results import BEST, BEST_FEATURES, CHOSEN, MethodResult
from distsms.utils import formatting

TRAINED = {
    "prbep": "a linear SVM, with hinge loss, an intercept that is not regularized, and C = 8 n+ / (lambda n^2)",
    "rocarea": "a ranking SVM, with hinge loss over all pairs of a positive and a negative row",
}
"""The model that minimizes J, for each measure; see docs/theory/support-vector-machines.md."""


CHANCE = "the interval contains 0, so this may be chance"


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
    """Return the setting that most folds have, with a star if it is at an end of the grid for most folds."""
    if result.method in CHOSEN:
        return ""
    most = max(sorted(set(result.chosen)), key=result.chosen.count)
    return (f"{most:g}" if METHODS[result.method].linear else f"best of {most:g}") + "*" * result.at_end


def table(results: Sequence[MethodResult], select: str) -> str:
    """Return the table, with a row for each method. `select` is the measure that chose the settings."""
    return formatting.format_table(header(select), [cells(result, select) for result in results])


def head_table(found: Mapping[str, Sequence[MethodResult]]) -> str:
    """Return the table of the measures of the head; found : for each of them, the methods tuned for it."""
    methods = list(dict.fromkeys(result.method for results in found.values() for result in results))
    by_method = {name: {result.method: result.intervals[name] for result in found[name]} for name in found}
    rows = [[method, *(_with_limits(by_method[name][method], ".1f") for name in found)] for method in methods]
    return formatting.format_table(["method", *(f"{display_name(name)} [%]" for name in found)], rows)


def head_sentences(found: Mapping[str, Sequence[MethodResult]]) -> list[str]:
    """Return a sentence for each measure of the head on whether distsms is ahead, every method tuned for it."""
    lines = []
    for name, results in found.items():
        for best in (result for result in results if result.method == BEST):
            difference, by = best.differences[name], display_name(name)
            if difference.why:
                lines.append(f"By {by}, there is no verdict: {difference.why}.")
                continue
            doubt = "" if difference.low > 0 or difference.high < 0 else f"; {CHANCE}"
            lead = _describe_lead(difference, "the best of the other linear models", by)
            lines.append(f"Tuned for {by}, distsms is {lead}{doubt}.")
    return lines


def sentences(results: Sequence[MethodResult], measure: str, select: str | None = None) -> list[str]:
    """Return sentences on whether direct optimization pays, on trees, and on how to read the table.

    `measure` was trained for, and `select` chose the settings; by default they are the same.
    """
    select, lines = select or measure, []
    name = display_name(select)
    for result in sorted(results, key=lambda result: result.method != BEST):
        if result.method == BEST:
            lines.append(_compare_with_linear(result, select))
            if measure in TRAINED:
                lines.append(f"What distsms trains for {SHOWN[measure]} is itself {TRAINED[measure]}.")
            others = [other for other in SHOWN if other != select]
            lines += [_by_other_measure(result.differences[other], other, measure) for other in others]
        elif result.method == BEST_FEATURES:
            lines += _compare_features(result, select)
        elif result.differences and not METHODS[result.method].linear:
            lines.append(_compare_with_trees(result, select, name))
        elif result.with_features:
            lines.append(_compare_on_features(result, select))
    if lines and all(result.method in CHOSEN or METHODS[result.method].linear for result in results):
        lines.append("A model that is not linear may be ahead of all of these; --methods with trees shows it.")
    if any(result.at_end for result in results):
        lines.append("* The lambda of most folds is at an end of the grid; there may be a better one beyond it.")
    lines += [f"{result.method}: {result.notes}." for result in results if result.notes and result.method not in CHOSEN]
    lines.append(
        f"The intervals ({100 * LEVEL:g} %) are of {METHOD}: they show how much a value would change. Each interval "
        "stands for its own row of the table; do not compare methods by whether their intervals overlap."
    )
    return lines


def _compare_with_linear(best: MethodResult, select: str) -> str:
    difference, name = best.differences[select], display_name(select)
    if difference.why:
        return f"No verdict on whether direct optimization pays: {difference.why}."
    other = "the best of the other linear models, chosen for each fold by the other folds"
    chosen = f"The models chosen, with their numbers of folds: {best.notes}."
    lead = _describe_lead(difference, other, name)
    if difference.low > 0:
        return f"Direct optimization is {lead}. {_doubts(best, select, '')}{chosen}"
    if difference.high < 0:
        return f"Direct optimization does not pay here: it is {lead}. {chosen}"
    return f"Direct optimization is {lead}; {CHANCE}. {_doubts(best, select, 'Take either. ')}{chosen}"


def _doubts(best: MethodResult, select: str, otherwise: str) -> str:
    """Return what to take if distsms is not behind by `select`, but perhaps by another measure of the table."""
    others = {display_name(name): best.differences[name] for name in SHOWN if name != select}
    behind = " and ".join(name for name, difference in others.items() if difference.high < 0)
    ahead = " and ".join(name for name, difference in others.items() if difference.low > 0)
    if behind:
        return f"But it is clearly behind by {behind}; take the other model if that is what counts for you. "
    if ahead and otherwise:
        return f"It is clearly ahead by {ahead}, so take distsms if that counts for you. "
    return otherwise


def _by_other_measure(difference: Interval, other: str, measure: str) -> str:
    """Return a sentence that compares the same models by another measure, by which they were not chosen."""
    name = SHOWN[other]
    if other == measure:
        option = "These models were trained, but not chosen for it"
    else:
        option = f"--measure {other} compares models that are trained and chosen for it"
    if difference.why:
        return f"By {name}, there is no verdict on these models: {difference.why}. {option}."
    doubt = "" if difference.low > 0 or difference.high < 0 else f"; {CHANCE}"
    lead = _describe_lead(difference, "the best other ones", name)
    return f"By {name}, these linear models of distsms are {lead}{doubt}. {option}."


def _compare_features(best: MethodResult, select: str) -> list[str]:
    """Return a sentence on what features are worth, if distsms was also trained on the original columns."""
    if not (difference := best.differences.get(select)):
        return []
    chosen = f"The features chosen, with their numbers of folds: {best.notes}."
    if difference.why:
        return [f"No verdict on features: {difference.why}. {chosen}"]
    lead = _describe_lead(_reverse(difference), f"{OURS} on the original columns", display_name(select))
    doubt = "" if difference.low > 0 or difference.high < 0 else f"; {CHANCE}"
    return [f"{OURS} on the features that the other folds choose for each fold is {lead}{doubt}. {chosen}"]


def _compare_on_features(result: MethodResult, select: str) -> str:
    """Return a sentence that compares distsms with another method on the same features."""
    difference, features = result.with_features[select], METHODS[result.method].features
    if difference.why:
        return f"No verdict on {result.method}: {difference.why}."
    doubt = "" if difference.low > 0 or difference.high < 0 else f"; {CHANCE}"
    return f"On {features}, distsms is {_describe_lead(difference, result.method, display_name(select))}{doubt}."


def _reverse(difference: Interval) -> Interval:
    return replace(difference, value=-difference.value, low=-difference.high, high=-difference.low)


def _compare_with_trees(trees: MethodResult, select: str, name: str) -> str:
    difference = trees.differences[select]
    about = f"{METHODS[trees.method].about}, the best of {max(trees.chosen):g} settings on a fifth of the training rows"
    if difference.why:
        return f"No verdict on trees ({about}): {difference.why}."
    lead, beside = _describe_lead(_reverse(difference), "distsms", name), ""
    if with_features := trees.with_features.get(select):
        doubt = "" if with_features.low > 0 or with_features.high < 0 else f"; {CHANCE}"
        beside = f" With the best features, distsms is {_describe_lead(with_features, 'these trees', name)}{doubt}."
        if difference.high < 0:
            return f"Trees ({about}) are {lead}.{beside}"
    if difference.high < 0:
        return f"Trees ({about}) are {lead}. Take them if the model need not be linear."
    if difference.low > 0:
        return f"Trees ({about}) are {lead}. A linear model is enough here.{beside}"
    return f"Trees ({about}) are {lead}; {CHANCE}. More rows would tell.{beside}"


def _describe_lead(difference: Interval, other: str, name: str) -> str:
    """Return "ahead of OTHER, by 0.427 points of ROCArea (interval ...)", or "behind OTHER, by ...".

    The interval has the sign of the words.
    """
    side = "ahead of"
    if difference.value < 0:
        side = "behind"
        difference = replace(difference, value=-difference.value, low=-difference.high, high=-difference.low)
    limits = describe_interval(difference, ".3f")
    return f"{side} {other}, by {100 * difference.value:.3f} points of {name} (interval {limits})"
