"""Hints that a model may be worse in use than its measures say: a column tells the outcome, or the model overfits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from distsms.base.measures import display_name
from distsms.base.typing import Floats
from distsms.base.wording import Message, option
from distsms.metrics.ranking import rocarea
from distsms.parallel.communicator import Communicator
from distsms.shards.dataset import DataBlock
from distsms.shards.table_schema import Table
from distsms.training.verdict import AreaOnTest

SUSPICIOUS, LEAK, PERFECT = 0.98, 0.995, 0.9995
"""If a model's ROCArea on its training rows is above SUSPICIOUS, its columns are looked at one by one. A column whose
own ROCArea is above LEAK is named. A ROCArea above PERFECT is printed as 1.000.
"""
MOST_COLUMNS, MOST_WEIGHTS = 20, 2**22
"""The most columns that are looked at, and the most weights of theirs that are held at a time."""
CLEAR, ERRORS = 0.05, 2.0
"""Overfitting is clear if ROCArea is lower on test rows by more than CLEAR, and by more than what chance explains:
ERRORS standard errors on the training rows, and half the interval on the test rows.
"""


class LeakingColumn(NamedTuple):
    """A column that ranks the training rows almost perfectly by itself, with its ROCArea."""

    name: str
    rocarea: float


def leaking_columns(block: DataBlock, table: Table, w: Floats, n_pos: int, comm: Communicator) -> list[LeakingColumn]:
    """Return the columns that rank the training rows almost perfectly by themselves, the best first. **Collective.**

    Parameters
    ----------
    block : DataBlock
        This rank's training rows.
    table : Table
        The columns that the features are made of.
    w : ndarray of shape (p,)
        The coefficients of the model.
    n_pos : int
        The number of positive rows of all ranks.
    comm : Communicator
        The ranks.

    Notes
    -----
    A column ranks the rows by its part of the model's scores: the sum of its features, each with its weight. Columns
    with many features are left out, since they can learn the rows by heart. Of the others, the MOST_COLUMNS with the
    largest weights are looked at. This costs as much as that many evaluations of the objective.
    """
    starts = table.feature_starts
    own = [slice(start, end) for start, end in pairwise(starts)]
    largest = [float(np.abs(w[part]).max(initial=0.0)) for part in own]
    few = [k for k, part in enumerate(own) if largest[k] and part.stop - part.start <= max(3, n_pos / 5)]
    chosen = sorted(few, key=lambda k: -largest[k])[:MOST_COLUMNS]
    at_once, found = max(1, MOST_WEIGHTS // len(w)), []
    for first in range(0, len(chosen), at_once):
        columns = chosen[first : first + at_once]
        W = np.zeros((len(columns), len(w)))
        for row, k in enumerate(columns):
            W[row, own[k]] = w[own[k]]
        for k, scores in zip(columns, block.features.margins(W), strict=True):
            own_scores, labels, weights = block.counted_scores(scores)
            area = rocarea(own_scores, labels, comm, weights)
            found += [LeakingColumn(table.columns[k].name, area)] if area > LEAK else []
    return sorted(found, key=lambda column: -column.rocarea)


def describe_leaks(leaks: list[LeakingColumn]) -> str:
    """Return a warning about columns that rank almost perfectly by themselves, or "" if there are none."""
    if not leaks:
        return ""
    names = ", ".join(leak.name for leak in leaks[:3]) + (f" and {len(leaks) - 3} more" if len(leaks) > 3 else "")
    begin = f"Column {names} alone ranks" if len(leaks) == 1 else f"Each of the columns {names} alone ranks"
    return Message(
        f"{begin} the training rows almost perfectly (ROCArea {leaks[0].rocarea:.4f}). Is that known before the "
        "outcome is? If not, the model is of no use on new rows; train without it: "
        f"{option('drop', [leak.name for leak in leaks])}"
    )


class OnFolds(NamedTuple):
    """The mean of a measure over held-out folds of the training rows, with its standard error."""

    measure: str
    mean: float
    error: float


def describe_doubt(test: AreaOnTest, folds: OnFolds | None) -> str:
    """Return a warning if test rows fit chance as well as what held-out folds show, which is better; else "". Local."""
    if not test.why_chance() or folds is None or folds.measure != test.measure.name:
        return ""
    if not (folds.mean > 0.5 + ERRORS * folds.error and folds.mean <= test.area.high):
        return ""
    return (
        f"The test rows do not tell whether this model ranks better than chance: their {test.name} is "
        f"{test.area.value:.3f}, with a standard error of {test.area.standard_error:.2g}, so that it may be 0.5, which"
        f" is chance, or the {folds.mean:.3f} of held-out folds of the training rows. Test it on more rows before you"
        " use it."
    )


def describe_test(
    training: Mapping[str, float],
    test: AreaOnTest,
    data: Mapping[str, Any],
    check_perfect: bool,
    folds: OnFolds | None = None,
    automatic: bool = False,
) -> str:
    """Return a warning if ROCArea on test rows is too good, unclear, or far below that of the training rows; else "".

    Local. That a model has learned its rows by heart is said only where held-out folds show it as well: one split
    alone may be unlucky, and its test rows may be of another kind. `data` is what is known of the training rows,
    `check_perfect` says whether a ROCArea of 1 is suspicious, and `automatic` whether the folds have chosen lambda.
    """
    area, own, name = test.area.value, training[test.measure.name], test.name
    if area > PERFECT and check_perfect and test.enough:
        return (
            f"{name} on the test rows is {area:.4f}, which real data hardly ever allow. Check that every column is "
            "known before the outcome is, and that test rows are no copies of training rows."
        )
    weights = data.get("weights")
    sizes = (data[name] for name in ("n_pos", "n_neg"))
    if weights:
        sizes = (weights[name] for name in ("effective_positive", "effective_negative"))
    error = math.sqrt(own * (1 - own) / max(min(sizes), 1))
    unclear = test.why_unknown()
    half = (test.area.high - test.area.low) / 2
    if not own - area > max(CLEAR, math.hypot(ERRORS * error, half)):
        return unclear
    clear = (
        f"{name} is {own:.3f} on the training rows ({data['n_pos']} positive), but {area:.3f} on the test rows "
        f"({test.n_pos} positive)"
    )
    if folds is None or folds.measure not in training:
        clear += (
            ". The model may have learned its training rows by heart, or the test rows are of another kind, or the"
            " split is unlucky: the held-out folds of distsms path tell which."
        )
        return Message(f"{clear} {unclear}".rstrip())
    held_out = (
        f"{display_name(folds.measure)} is {training[folds.measure]:.3f} on the training rows, and {folds.mean:.3f}"
    )
    if training[folds.measure] - folds.mean > max(CLEAR, ERRORS * folds.error):
        clear += (
            f", and held-out folds of the training rows show this, too ({held_out} on them): the model has learned its "
            f"training rows by heart. Fewer features help ({option('drop')}, {option('min_count')}; for `distsms "
            f"features` fewer bins and crosses, and a larger {option('min_leaf')})"
            + ("." if automatic else f", or a larger lambda: {option('lam', 'auto')} compares lambdas on such folds.")
        )
    else:
        clear += (
            f". But the model has not learned its training rows by heart, since held-out folds of them do not show this"
            f" ({held_out} on them): the test rows are of another kind, or the split is unlucky."
        )
    return Message(f"{clear} {unclear}".rstrip())
