"""What a baseline says: a row for each method, and sentences on whether direct optimization pays."""

from __future__ import annotations

from collections.abc import Sequence

from distsms.measures import SHOWN
from distsms.metrics.confidence import LEVEL, METHOD, Interval
from distsms.selection.baseline import BEST, MethodResult
from distsms.selection.competitors import METHODS
from distsms.utils import formatting

TRAINED = {
    "prbep": "a linear SVM, with hinge loss, an intercept that is not regularized, and C = 8 n+ / (lambda n^2)",
    "rocarea": "a ranking SVM, with hinge loss over all pairs of a positive and a negative row",
}
"""What minimizes J, for each measure; see docs/theory/support-vector-machines.md."""

HEADER = ("method", "ROCArea [%]", "interval", "PRBEP [%]", "interval", "lambda", "s")


def header(measure: str) -> list[str]:
    """Of `cells`."""
    return [*HEADER[:5], f"distsms ahead by, {SHOWN[measure]}", "interval", *HEADER[5:]]


def cells(one: MethodResult, measure: str) -> list[str]:
    """A method's row: measures in per cent."""
    words = [one.method]
    for name in SHOWN:
        words += [f"{100 * one.sure[name].value:.2f}", between(one.sure[name])]
    less = one.less.get(measure)
    words += [f"{100 * less.value:+.3f}", between(less, "+.3f")] if less else ["", ""]
    return [*words, setting(one), f"{one.seconds:.1f}"]


def between(one: Interval, form: str = ".2f") -> str:
    """An interval in per cent."""
    return "none" if one.why else f"{100 * one.low:{form}} to {100 * one.high:{form}}"


def setting(one: MethodResult) -> str:
    """What most folds were given; a star where most of them are at an end of the grid."""
    if one.method == BEST:
        return ""
    most = max(sorted(set(one.chosen)), key=one.chosen.count)
    return (f"{most:g}" if METHODS[one.method].linear else f"best of {most:g}") + "*" * one.at_end


def table(found: Sequence[MethodResult], measure: str) -> str:
    """A row for each method."""
    return formatting.format_table(header(measure), [cells(one, measure) for one in found])


def sentences(found: Sequence[MethodResult], measure: str) -> list[str]:
    """Whether direct optimization pays, and what to know of the table."""
    name, words = SHOWN[measure], []
    for one in sorted(found, key=lambda one: one.method != BEST):
        if one.method == BEST:
            words.append(_pays(one, one.less[measure], name))
            words.append(f"What distsms trains for {name} is itself {TRAINED[measure]}.")
        elif one.less and not METHODS[one.method].linear:
            words.append(_ceiling(one, one.less[measure], name))
    if any(one.at_end for one in found):
        words.append("* the lambda of most folds is at an end of the grid: there may be a better one beyond it.")
    words += [f"{one.method}: {one.notes}." for one in found if one.notes and one.method != BEST]
    words.append(
        f"Intervals of {100 * LEVEL:g} % are of {METHOD}: how much a value would move with other rows to train on and "
        "others to judge by. Each is of its own row of the table alone."
    )
    return words


def _pays(best: MethodResult, less: Interval, name: str) -> str:
    over = f"the best of the other linear models, chosen for each fold by the other folds ({best.notes})"
    if less.why:
        return f"No verdict on whether direct optimization pays: {less.why}."
    if less.low > 0:
        return f"Direct optimization is ahead of {over}, by {_points(less, name)}."
    if less.high < 0:
        return f"Direct optimization does not pay here: it is behind {over}, by {_points(less, name)}."
    return (
        f"Direct optimization makes no difference that these rows show to {over}: {_points(less, name)}. Take either."
    )


def _ceiling(trees: MethodResult, less: Interval, name: str) -> str:
    about = f"{METHODS[trees.method].about}, the best of {max(trees.chosen):g} settings by a fifth of the training rows"
    if less.why:
        return f"No verdict on trees ({about}): {less.why}."
    if less.high < 0:
        return f"Trees ({about}) are ahead by {_points(less, name)}: where a model need not be linear, take them."
    if less.low > 0:
        return f"Trees ({about}) are behind by {_points(less, name)}: nothing here wants more than a linear model."
    return f"Trees ({about}) and distsms are not told apart: {_points(less, name)}."


def _points(less: Interval, name: str) -> str:
    return f"{abs(100 * less.value):.3f} points of {name} (interval {between(less, '+.3f')})"
