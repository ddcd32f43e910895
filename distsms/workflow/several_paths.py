"""Compare paths for several values of a second setting on the same folds: several BETA of pauc, l1, or features.

All of them are judged by the measure `select` of the held-out rows. BETA, l1 and features are settings like lambda, so
what choosing one is worth is measured on folds that took no part in the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from distsms.base.measures import Measure, display_name
from distsms.base.runstore import ResumableStore
from distsms.metrics.confidence import LEVEL, Interval, folds_interval
from distsms.workflow.choice import (
    THE_MEAN,
    Choice,
    Point,
    choose,
    faults,
    interval_of,
    means,
    nonzeros,
    values_of_folds,
)
from distsms.workflow.folds import best_on_other_folds

ROCAREA = "rocarea"


class BetaStore(ResumableStore):
    """The folder of a comparison: betas.json, a path for each measure in paths/, and the best model, model.h5."""

    kind, parts, name = "betas", "paths", "path of several BETA"


class L1Store(ResumableStore):
    """The same for several l1: l1.json, a path for each l1 in paths/, and the best model, model.h5."""

    kind, parts, name = "l1", "paths", "path of several l1"


class FeaturesStore(ResumableStore):
    """The same for several features: features.json, a path for each in paths/, and the best model, model.h5."""

    kind, parts, name = "features", "paths", "path of several features"


class Setting(NamedTuple):
    """A second setting, beside lambda, of which several values are compared."""

    name: str  # what sentences call it
    header: str  # what tables call it
    usual: str  # the value with which the best one is compared
    usual_name: str  # what sentences call that
    store: type[ResumableStore]  # the folder
    key: str  # what the information on the best model calls the comparison
    each: str  # what of it each path has


BETA = Setting("BETA", "trained for", ROCAREA, "ROCArea", BetaStore, "betas", "measure")
L1 = Setting("l1", "l1", "0", "l1 = 0", L1Store, "l1_path", "l1")
FEATURES = Setting("features", "features", "raw", "the original columns", FeaturesStore, "features_path", "candidate")


def measures_of_betas(names: str) -> list[str]:
    """Return the measures to train for, from the largest BETA on. The first is ROCArea, whose BETA is 1."""
    betas = {Measure.parse(name).max_fpr: name for name in names.split(",")}
    falling = sorted((beta for beta in betas if beta and beta < 1), reverse=True)
    return [ROCAREA, *(betas[beta] for beta in falling)]


class PathComparison(NamedTuple):
    """How the paths compare."""

    select: str  # the measure that judges
    choices: dict[str, Choice]  # of lambda, for each value of the setting that has a common lambda
    useless: list[str]  # the values whose chosen model ranks no better than chance
    best: str  # whose model has the best mean; with one-se, the first within one standard error of that
    # by how much choosing both value and lambda is better than the usual value with a chosen lambda; each fold is
    # judged by what the other folds choose
    gain: Interval | None
    setting: Setting = BETA
    # with l1: of the chosen models of all rows; `compare` leaves them out, since points of l1 = 0 have none
    nonzeros: Mapping[str, int] = {}
    # with features: the measure that choosing both reaches, each fold judged by what the others choose
    expected: Interval | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the fields as betas.json or l1.json has them."""
        choices = {name: choice.chosen._asdict() for name, choice in self.choices.items()}
        fields = self._asdict() | {"choices": choices, "gain": self.gain and self.gain.as_json()}
        fields["expected"] = self.expected and self.expected.as_json()
        absent = ["setting", *(name for name in ("nonzeros", "expected") if not fields[name])]
        return {name: value for name, value in fields.items() if name not in absent}

    def table(self, evaluations: Mapping[str, int]) -> tuple[list[str], list[list[str]]]:
        """Return the header and the rows of a table with a row for each value of the setting."""
        name, rows = display_name(self.select), []
        for measure, choice in self.choices.items():
            remarks = ["best"] * (measure == self.best) + ["no better than chance"] * (measure in self.useless)
            mean, error = f"{choice.chosen.mean:.6f}", f"{choice.chosen.error:.6f}"
            size = [str(self.nonzeros[measure])] if self.nonzeros else []
            took = str(evaluations[measure])
            rows.append([measure, f"{choice.chosen.lam:g}", *size, mean, error, took, ", ".join(remarks)])
        header = [self.setting.header, "lambda", *(["nonzeros"] if self.nonzeros else [])]
        return [*header, f"held out {name}", "s.e.", "evaluations", ""], rows

    def sentences(self) -> list[str]:
        """Return sentences that say which value won, and what that is worth beside the usual value."""
        name, choices, setting = display_name(self.select), self.choices, self.setting
        mean = choices[self.best].chosen
        value = self.best if setting == BETA else f"{setting.name} {self.best}"
        sentences = [f"best      {value}, lambda {mean.lam:g}: held-out {name} {mean.mean:.6f}"]
        if self.nonzeros:
            sentences[0] += f", {self.nonzeros[self.best]} coefficients are not 0"
        if self.expected:
            low, high = self.expected.low, self.expected.high
            sentences.append(
                f"interval  {low:.6f} to {high:.6f} ({100 * LEVEL:g} %) about {self.expected.value:.6f}: of the method,"
                f" if it is trained on new rows and measured on other new rows; {setting.name} and lambda of each fold"
                f" are chosen by the other folds. {THE_MEAN}"
            )
        if setting.usual in choices:
            mean = choices[setting.usual].chosen
            usual = setting.usual_name if setting == L1 else setting.usual
            sentences.append(f"{usual:<9} lambda {mean.lam:g}: held-out {name} {mean.mean:.6f}")
        if self.gain and self.best != setting.usual:
            low, high = self.gain.low, self.gain.high
            clear = "clearly better" if low > 0 else "clearly worse" if high < 0 else "no clear difference"
            sentences.append(
                f"worth     choosing {setting.name} as well as lambda changes {name} by {self.gain.value:+.6f}"
                f" ({low:+.6f} to {high:+.6f}, with {100 * LEVEL:g} % confidence) compared with {setting.usual_name}:"
                f" {clear}. Each fold is judged by what the other folds choose"
            )
        return sentences


def compare(
    paths: Mapping[str, Sequence[Point]], select: str, rule: str = "best", setting: Setting = BETA
) -> PathComparison | None:
    """Compare finished paths, given as the points of each value; None if none has a lambda with all folds. Local.

    All paths have the same folds. Paths whose chosen model ranks no better than chance do not win unless all do. Of
    equal ones the first wins. Several l1 come from the largest to the smallest, and the rule one-se takes the largest.
    """
    choices, useless = dict[str, Choice](), list[str]()
    for measure, points in paths.items():
        unusable = faults(points)
        if curve := means(points, select):
            choices[measure] = choose(curve, rule, unusable, nonzeros(points))
            useless += [measure] * (choices[measure].chosen.lam in unusable)
    if not choices:
        return None
    best = max(choices, key=lambda measure: (measure not in useless, choices[measure].chosen.mean))
    if rule == "one-se" and setting == L1:
        least = choices[best].best.mean - choices[best].best.error
        usable = [name for name in choices if (name in useless) == (best in useless)]
        best = next(name for name in usable if choices[name].chosen.mean >= least or name == best)
    gain, usual = None, setting.usual
    folds = _judged([paths[measure] for measure in choices], select)
    if usual in choices:
        both = np.array([fold[select] for fold in folds])
        alone = np.array(values_of_folds(paths[usual], select, rule))
        gain = folds_interval((both - alone).tolist(), LEVEL)
    expected = interval_of(folds, select) if setting == FEATURES else None
    return PathComparison(select, choices, useless, best, gain, setting, expected=expected)


def _judged(paths: Sequence[Sequence[Point]], select: str) -> list[Mapping[str, Any]]:
    """Return what was measured on each fold, of that path and lambda whose mean is best on the *other* folds.

    Which lambdas are usable is found out on the other folds, too.
    """
    held_out = [{(point.lam, point.fold): point.held_out for point in points if point.held_out} for points in paths]
    grids = [[mean.lam for mean in means(points, select)] for points in paths]
    folds, judged = sorted({fold for of_path in held_out for _, fold in of_path}), list[Mapping[str, Any]]()
    for k, fold in enumerate(folds):
        candidates = []
        for points, of_path, lambdas in zip(paths, held_out, grids, strict=True):
            unusable = faults(points, fold)
            usable = [lam for lam in lambdas if lam not in unusable] or lambdas
            candidates += [[of_path[lam, other] for other in folds] for lam in usable]
        values = np.array([[of_fold[select] for of_fold in candidate] for candidate in candidates])
        judged.append(candidates[best_on_other_folds(values)[k]][k])
    return judged
