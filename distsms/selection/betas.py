"""Compare paths for several measures on the same folds, such as pauc@BETA for several BETA, by one measure of these.

Each path is trained for its own measure, and all of them are judged by the measure `select` of the held-out rows. BETA
is a setting like lambda, so what choosing it is worth is measured on folds that took no part in the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from distsms.measures import display_name
from distsms.metrics.confidence import LEVEL, Interval, folds_interval
from distsms.selection.choice import Choice, choose, faults, means, values_of_folds
from distsms.selection.folds import best_on_other_folds
from distsms.selection.point import Point
from distsms.utils.runstore import ResumableStore

ROCAREA = "rocarea"


class BetaStore(ResumableStore):
    """The folder of a comparison: betas.json, a path for each measure in paths/, and the best model, model.h5."""

    kind, parts = "betas", "paths"


class Comparison(NamedTuple):
    """How the paths compare.

    Attributes
    ----------
    select : str
        The measure that judges.
    choices : dict of Choice
        For each measure that was trained for, the choice of its lambda; measures without a common lambda are missing.
    useless : list of str
        The measures whose chosen model ranks no better than chance.
    best : str
        The measure whose chosen model has the best mean.
    gain : Interval or None
        By how much choosing both measure and lambda is better than ROCArea with a chosen lambda. Each fold is judged by
        what the other folds choose. None without ROCArea.
    """

    select: str
    choices: dict[str, Choice]
    useless: list[str]
    best: str
    gain: Interval | None

    def as_json(self) -> dict[str, Any]:
        """Return the fields as betas.json has them."""
        chosen = {name: choice.chosen._asdict() for name, choice in self.choices.items()}
        return self._asdict() | {"choices": chosen, "gain": self.gain and self.gain.as_json()}

    def table(self, evaluations: Mapping[str, int]) -> tuple[list[str], list[list[str]]]:
        """Return the header and the rows of a table with a row for each measure that was trained for."""
        name, rows = display_name(self.select), []
        for measure, choice in self.choices.items():
            won = ["best"] * (measure == self.best) + ["no better than chance"] * (measure in self.useless)
            mean, error = f"{choice.chosen.mean:.6f}", f"{choice.chosen.error:.6f}"
            rows.append([measure, f"{choice.chosen.lam:g}", mean, error, str(evaluations[measure]), ", ".join(won)])
        return ["trained for", "lambda", f"held out {name}", "s.e.", "evaluations", ""], rows

    def sentences(self) -> list[str]:
        """Return sentences that say which measure won, and what that is worth beside ROCArea."""
        name, choices = display_name(self.select), self.choices
        chosen = choices[self.best].chosen
        said = [f"best      {self.best}, lambda {chosen.lam:g}: held-out {name} {chosen.mean:.6f}"]
        if ROCAREA in choices:
            own = choices[ROCAREA].chosen
            said.append(f"rocarea   lambda {own.lam:g}: held-out {name} {own.mean:.6f}")
        if self.gain and self.best != ROCAREA:
            low, high = self.gain.low, self.gain.high
            clear = "clearly better" if low > 0 else "clearly worse" if high < 0 else "no clear difference"
            said.append(
                f"worth     choosing BETA as well as lambda changes {name} by {self.gain.value:+.6f} ({low:+.6f} to"
                f" {high:+.6f}, with {100 * LEVEL:g} % confidence) compared with ROCArea: {clear}. Each fold is judged"
                " by what the other folds choose"
            )
        return said


def compare(paths: Mapping[str, Sequence[Point]], select: str, rule: str = "best") -> Comparison | None:
    """Compare finished paths, given as the points of each measure; None if none has a lambda with all folds. Local.

    All paths have the same folds. Paths whose chosen model ranks no better than chance do not win unless all do. Of
    equal ones the first wins.
    """
    choices, useless = dict[str, Choice](), list[str]()
    for measure, points in paths.items():
        unusable = faults(points)
        if curve := means(points, select):
            choices[measure] = choose(curve, rule, unusable)
            useless += [measure] * (choices[measure].chosen.lam in unusable)
    if not choices:
        return None
    best = max(choices, key=lambda measure: (measure not in useless, choices[measure].chosen.mean))
    gain = None
    if ROCAREA in choices:
        both = np.array(_values_of_folds([paths[measure] for measure in choices], select))
        alone = np.array(values_of_folds(paths[ROCAREA], select, rule))
        gain = folds_interval((both - alone).tolist(), LEVEL)
    return Comparison(select, choices, useless, best, gain)


def _values_of_folds(paths: Sequence[Sequence[Point]], select: str) -> list[float]:
    """Return the measure of each fold, of that path and lambda whose mean is best on the *other* folds."""
    candidates = []
    for points in paths:
        held = {(point.lam, point.fold): point.held_out[select] for point in points if point.held_out}
        folds, unusable = sorted({fold for _, fold in held}), faults(points)
        every = [mean.lam for mean in means(points, select)]
        usable = [lam for lam in every if lam not in unusable] or every
        candidates += [[held[lam, fold] for fold in folds] for lam in usable]
    values = np.array(candidates)
    return values[best_on_other_folds(values), np.arange(values.shape[1])].tolist()
