"""The result of a path, the folder that keeps it, and how several paths compare: as data, as tables and in words."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from distsms.base import schema
from distsms.base.errors import EXIT_OK, EXIT_REQUEUE, EXIT_VACUOUS
from distsms.base.formatting import format_number
from distsms.base.measures import Measure, display_name
from distsms.base.schema import Fields, ResumableStore, is_number, is_number_or_null, read_objects
from distsms.base.typing import Floats
from distsms.metrics.confidence import LEVEL, Interval, folds_interval
from distsms.models import model
from distsms.models.model import Model
from distsms.optim.result import Status
from distsms.shards.manifest import Manifest
from distsms.workflow import choice as choosing
from distsms.workflow.choice import Choice, Mean, Point
from distsms.workflow.folds import fold_name
from distsms.workflow.path import Problem
from distsms.workflow.requests import PathRequest
from distsms.workflow.rocarea_check import FoldComparison
from distsms.workflow.verdict import describe_distance

if TYPE_CHECKING:
    import pandas

MODEL = "model.h5"

RESULT: Fields = {
    "status": tuple(status.name.lower() for status in Status).__contains__,
    **dict.fromkeys(("J", "lower_bound", "gap"), is_number_or_null),
    "evaluations": is_number,
    "vacuous": (False, True).__contains__,
}
POINT: Fields = {
    "lam": is_number,
    "lane": is_number,
    "result": lambda value: schema.find_fault(value, RESULT) is None,
    "threshold": is_number_or_null,
    "training": lambda value: schema.find_fault(value, schema.MEASURED) is None,
    "held_out": lambda value: value is None or schema.find_fault(value, schema.MEASURED) is None,
}


class PathStore(ResumableStore):
    """The folder of a path: path.json, model.h5, and points/LAMBDA_all or LAMBDA_foldF, .json and .h5. For the root."""

    kind, parts = "path", "points"

    def points(self) -> list[Point]:
        """Read all points, by falling lambda and then by fold. Raises InputError if one is damaged."""
        files = (self.path / self.parts).glob("[!.]*.json")
        contents = (read_objects(file, POINT, f"Remove {file}, and the point is computed again")[0] for file in files)
        return sorted(map(Point.from_json, contents), key=lambda point: (-point.lam, point.fold))

    def keep(self, point: Point, trained: Model) -> None:
        """Write a point and its model. For each fold, only the models of the largest and the newest lambda are kept."""
        newest = self._file(point.lam, point.fold, "h5")
        model.save(newest, trained)
        self.write(self._file(point.lam, point.fold, "json"), point.as_json())
        models = self._models(point.fold) if point.fold else {}
        for lam, old in models.items():
            if lam != max(models) and old != newest:
                old.unlink()

    def start(self, fold: int, lam: float, bias: float | None = None) -> Floats | None:
        """Return the coefficients, for normalized rows, of the fold's model of the nearest lambda; None without one."""
        models = self._models(fold)
        if not models:
            return None
        loaded = model.load(models[choosing.nearest(models, lam)])
        w = loaded.normalization.unfold(loaded.w)
        return np.append(w, loaded.bias / bias) if bias else w

    def _models(self, fold: int) -> dict[float, Path]:
        """Return the files of the models of a fold, by lambda."""
        paths = (self.path / self.parts).glob(f"[!.]*_{fold_name(fold)}.h5")
        return {float(path.name.partition("_")[0]): path for path in paths}

    def model(self, lam: float) -> Model:
        """Read the model of all rows at a lambda."""
        return model.load(self._file(lam, 0, "h5"))

    def _file(self, lam: float, fold: int, suffix: str) -> Path:
        return self.path / self.parts / f"{lam!r}_{fold_name(fold)}.{suffix}"


def finished(points: Sequence[Point], problem: Problem) -> list[Point]:
    """Return the points that need not be made again: their evaluations suffice, and `select` was measured."""
    select, most = problem.select, problem.settings.max_evaluations
    measured = [point for point in points if select is None or point.held_out is None or select in point.held_out]
    limit = Status.LIMIT.name.lower()
    return [each for each in measured if each.result["status"] != limit or each.result["evaluations"] >= most]


class Setting(NamedTuple):
    """A second setting, beside lambda, of which several values are compared."""

    name: str  # what sentences call it
    header: str  # what tables call it
    usual: str  # the value with which the best one is compared
    usual_name: str  # what sentences call that
    kind: str  # the file that the folder of the paths is known by: KIND.json
    key: str  # what the information on the best model calls the comparison
    each: str  # what of it each path has

    def describe(self, value: str) -> str:
        """Return what sentences call a value."""
        return value if self == BETA else f"{self.name} {value}"


BETA = Setting("BETA", "trained for", "rocarea", "ROCArea", "betas", "betas", "measure")
L1 = Setting("l1", "l1", "0", "l1 = 0", "l1", "l1_path", "l1")
FEATURES = Setting("features", "features", "raw", "the original columns", "features", "features_path", "candidate")


class SeveralStore(ResumableStore):
    """The folder of several paths: KIND.json on the comparison, the paths in paths/, and the best model, model.h5."""

    parts = "paths"

    def __init__(self, path: str | os.PathLike[str], setting: Setting) -> None:
        self.setting, self.kind = setting, setting.kind
        super().__init__(path)
        self.name = f"path of several {setting.name}"


def measures_of_betas(names: str) -> list[str]:
    """Return the measures to train for, from the largest BETA on. The first is ROCArea, whose BETA is 1."""
    betas = {Measure.parse(name).max_fpr: name for name in names.split(",")}
    falling = sorted((beta for beta in betas if beta and beta < 1), reverse=True)
    return ["rocarea", *(betas[beta] for beta in falling)]


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
    nonzeros: Mapping[str, int] = {}  # with l1: of the chosen models of all rows
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
        best = f"best      {setting.describe(self.best)}, lambda {mean.lam:g}: held-out {name} {mean.mean:.6f}"
        size = f", {self.nonzeros[self.best]} coefficients are not 0" if self.nonzeros else ""
        sentences = [best + size]
        if self.expected:
            sentences.append(_interval_line(self.expected, f"{setting.name} and lambda of each fold are"))
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


def _interval_line(interval: Interval, of_folds: str) -> str:
    """Return a line on how good the method is on new rows, and what `of_folds` the others choose."""
    limits = f"{interval.low:.6f} to {interval.high:.6f} ({100 * LEVEL:g} %) about {interval.value:.6f}"
    above = "The mean in the line above is of the folds that chose, so it tends to look better"
    return f"interval  {limits}: of {interval.of}; {of_folds} chosen by the other folds. {above}"


def compare(paths: Mapping[str, PathResult], setting: Setting = BETA) -> PathComparison | None:
    """Compare finished paths on the same folds; None if none has a lambda with all folds. Local."""
    choices = {name: path.choice for name, path in paths.items() if path.choice is not None}
    if not choices:
        return None
    useless = [name for name, choice in choices.items() if choice.chosen.lam in paths[name].faults]
    first = next(iter(paths.values()))
    # Paths whose chosen model ranks no better than chance win only if all do so; of equal ones the first wins.
    best = max(choices, key=lambda name: (name not in useless, choices[name].chosen.mean))
    if first.rule == "one-se" and setting == L1:
        least = choices[best].best.mean - choices[best].best.error
        usable = [name for name in choices if (name in useless) == (best in useless)]
        best = next(name for name in usable if choices[name].chosen.mean >= least or name == best)
    gain, select = None, first.select
    folds = choosing.judged([paths[name].points for name in choices], select)
    if setting.usual in choices:
        both = np.array([fold[select] for fold in folds])
        alone = np.array(choosing.values_of_folds(paths[setting.usual].points, select, first.rule))
        gain = folds_interval((both - alone).tolist(), LEVEL)
    nonzeros = {}
    if setting == L1:  # of the models, since points of l1 = 0 have none
        models = {name: paths[name].model for name in choices}
        nonzeros = {name: int((each.w != 0).sum()) for name, each in models.items() if each is not None}
    expected = choosing.interval_of(folds, select) if setting == FEATURES else None
    return PathComparison(select, choices, useless, best, gain, setting, nonzeros, expected)


def point_line(point: Point, measure: str) -> str:
    """Return a line on how a point ended."""
    result, rows = point.result, f"fold {point.fold}" if point.fold else "all rows"
    kind, values = ("training", point.training) if point.held_out is None else ("held out", point.held_out)
    return (
        f"lambda {point.lam:<8g} {rows:8s} {result['status']:8s} J {format_number(result['J'], '.8f')}"
        f"  gap {format_number(result['gap'], '.2g'):>8s}  {result['evaluations']:5d} evaluations"
        f"  {kind} {display_name(measure)} {format_number(values.get(measure), '.6f')}"
    )


def points_table(path: PathResult) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table: for each lambda, the training on all rows, and the folds."""
    name, means, choice, rows = display_name(path.select), {mean.lam: mean for mean in path.means}, path.choice, []
    has_nonzeros = any("nonzeros" in point.result for point in path.points)
    for lam in dict.fromkeys(point.lam for point in path.points):
        points_here = [point for point in path.points if point.lam == lam]
        of_all_rows, mean = next((point for point in points_here if not point.fold), None), means.get(lam)
        result = of_all_rows.result if of_all_rows else {}
        status = result.get("status", "proved")
        remarks = ["chosen" if mean == choice.chosen else "best" * (mean == choice.best)] if choice and mean else []
        remarks += ["" if status == "proved" else status, path.faults.get(lam, "")]
        fold_evaluations = sum(point.result["evaluations"] for point in points_here if point.fold)
        rows.append(
            [
                f"{lam:g}",
                *([format_number(result.get("nonzeros"), "d")] if has_nonzeros else []),
                format_number(result.get("J"), ".8f"),
                format_number(result.get("gap"), ".2g"),
                format_number(result.get("evaluations"), "d") + (f" + {fold_evaluations}" if fold_evaluations else ""),
                format_number(of_all_rows and of_all_rows.training.get(path.select), ".6f"),
                format_number(mean and mean.mean, ".6f"),
                format_number(mean and mean.error, ".6f"),
                ", ".join(filter(None, remarks)),
            ]
        )
    header = ["lambda", *(["nonzeros"] if has_nonzeros else []), "J", "gap", "evaluations"]
    return [*header, f"training {name}", f"held out {name}", "s.e.", ""], rows


def describe_choice(path: PathResult) -> str:
    """Return lines on which lambda was chosen, how good it is on the folds, and what speaks against it; or ""."""
    if (choice := path.choice) is None:
        return ""
    best, mean, unusable = choice.best, choice.chosen, path.faults
    value = f"held-out {display_name(path.select)} {mean.mean:.6f}, standard error {mean.error:.6f}"
    but = "" if mean == best else f"; the best mean is {best.mean:.6f} at {best.lam:g}"
    lines = [f"\nchosen    lambda {mean.lam:g}: {value}{but}"]
    if path.interval:
        lines.append(_interval_line(path.interval, "the lambda of each fold is"))
    if len(path.means) == 1:
        flatness = "unknown, since only one lambda was tried"
    elif choice.low == choice.high:
        others = "lambdas that can be used" if unusable else "lambdas"
        flatness = f"the next larger and smaller {others} have means more than one standard error below the best"
    else:
        ends = [f"{end.mean - best.mean:+.6f} at {end.lam:g}" for end in (choice.low, choice.high) if end != best]
        which = f"the means of lambda {choice.low.lam:g} to {choice.high.lam:g}"
        flatness = f"{which} are within one standard error of the best mean: {', '.join(ends)}"
    lines.append(f"flatness  {flatness}")
    if choice.instead_of:
        lam = choice.instead_of.lam
        lines.append(f"not       lambda {lam:g}, which the rule would choose by its mean: {unusable[lam]}")
    if mean.lam not in unusable and (end := choosing.ends_at(path.means, [best.lam])):
        remedy = f"{end.replace('est', 'er')} ones may be better: add some with --lambdas, or let --extend try them"
        lines.append(f"warning   the best lambda is the {end} one that was tried; {remedy}")
    return "\n  ".join(lines)


def describe_useless(path: PathResult) -> str:
    """Return a warning, with advice, if no lambda gives a model that ranks better than chance; otherwise ""."""
    if {point.lam for point in path.points if not point.fold} - path.faults.keys():
        return ""
    other = "use --measure rocarea, and its model as it is"
    advice = "smaller lambdas may do better" if path.problem["measure"] == "rocarea" else other
    return f"  warning   none of these lambdas gives a model that ranks better than chance; {advice}"


def describe_left_out(path: PathResult, target: str, sizes: tuple[int, int] | None) -> str:
    """Return a line on which lambdas were left out, why, and how close the classes are, or "". Local."""
    if not path.left_out:
        return ""
    slopes = [point.result.get("slope_at_zero") for point in path.points if not point.fold]
    slope = min((slope for slope in slopes if slope is not None), default=None)
    distance = describe_distance(Measure.parse(path.problem["measure"]), slope, sizes)
    named = ", ".join(f"{lam:g}" for lam in sorted(path.left_out, reverse=True))
    return (
        f"left out  lambda {named}: the bounds at the other lambdas prove that J is nowhere lower than at w = 0 by more"
        f" than {max(path.left_out.values()):.2g} there, and the gap to prove is {target}{distance and '. '}{distance}"
    )


class PathTask(NamedTuple):
    """What is decided of a path before its rows are read."""

    request: PathRequest  # with one measure, one l1 and one kind of features
    manifest: Manifest
    problem: Problem
    warnings: Sequence[str]  # what the folds do not take into account
    folder: Path
    kept: int  # how many points are there from an earlier start


@dataclass(frozen=True)
class PathResult:
    """What a path found. All ranks have the same.

    Of several paths, the attributes are those of the best one.

    Attributes
    ----------
    model : Model or None
        The model of all rows at the lambda that was chosen; None without folds, if the run was stopped, and if no
        lambda has the measure on all folds.
    points : list of Point
        The outcome of each training: lambda, fold (0 for all rows), what was proved, and the measures.
    left_out : dict
        The lambdas that were not trained, and the most that could be gained there.
    select, rule : str
        The measure and the rule that chose.
    chance : str
        Why the model ranks no better than chance; "" if it ranks better.
    quick_rocarea : FoldComparison or None
        The comparison with quick ROCArea models.
    data_warnings, model_warnings : list of str
        What users must know before they trust the folds, and before they use the model.
    problem : dict
        The data and options that all points have in common.
    folder : Path or None
        The folder with the models of all points; None if it was a temporary one.
    stopped : bool
        Whether the run was stopped; the same call with the same folder continues it.
    evaluations, passes : int
        How many evaluations this run took, in how many passes over the rows.
    seconds : float
        What the trainings of this run took.
    paths : dict of str to PathResult
        With several BETA, l1 or features, the result of each of them by its name.
    comparison : PathComparison or None
        How these compare; None if there is nothing to compare.
    """

    points: list[Point]
    select: str
    rule: str
    problem: dict[str, Any]
    folder: Path | None
    stopped: bool = False
    evaluations: int = 0
    passes: int = 0
    seconds: float = 0.0
    left_out: dict[float, float] = field(default_factory=dict)
    model: Model | None = None
    chance: str = ""
    quick_rocarea: FoldComparison | None = None
    data_warnings: list[str] = field(default_factory=list)
    model_warnings: list[str] = field(default_factory=list)
    paths: dict[str, PathResult] = field(default_factory=dict)
    comparison: PathComparison | None = None

    @cached_property
    def means(self) -> list[Mean]:
        """The mean of the measure `select` over the folds, with its standard error, from the largest lambda on."""
        return choosing.means(self.points, self.select)

    @cached_property
    def faults(self) -> dict[float, str]:
        """The lambdas that are not chosen unless there is no other, and why."""
        return choosing.faults(self.points)

    @cached_property
    def choice(self) -> Choice | None:
        """The means at the chosen lambda (`choice.chosen.lam`), at the best, and at the ends of what is as good."""
        if self.stopped or not self.means:
            return None
        return choosing.choose(self.means, self.rule, self.faults, choosing.nonzeros(self.points))

    @cached_property
    def interval(self) -> Interval | None:
        """How good the method is on new rows; each fold is judged at the lambda that the others choose."""
        return None if self.choice is None else choosing.expected(self.points, self.select, self.rule)

    @property
    def warnings(self) -> list[str]:
        """What users must know, of the rows and of the model."""
        return [*self.data_warnings, *self.model_warnings]

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 if all gaps are proved and the chosen model is better than chance."""
        if self.stopped:
            return EXIT_REQUEUE
        codes = [path.exit_code for path in self.paths.values()]
        codes = codes or [Status[point.result["status"].upper()].exit_code for point in self.points]
        not_proved = [code for code in codes if code not in (EXIT_OK, EXIT_VACUOUS)]
        return max(not_proved, default=EXIT_VACUOUS if self.chance else EXIT_OK)

    @property
    def all_evaluations(self) -> int:
        """How many evaluations the trainings of all points took."""
        return sum(point.result["evaluations"] for point in self.points)

    def to_dict(self) -> dict[str, Any]:
        """Return what path.json has of a finished path, ready for JSON; of several paths, the comparison and each."""
        if self.paths:
            compared = {} if self.comparison is None else self.comparison.as_json()
            return {"problem": self.problem, **compared, "paths": {name: p.to_dict() for name, p in self.paths.items()}}
        fields: dict[str, Any] = {
            "problem": self.problem,
            "points": [point.as_json() for point in self.points],
            "warnings": self.warnings,
            "left_out": [{"lam": lam, "gain": gain} for lam, gain in self.left_out.items()],
        }
        if self.choice is not None:
            fields |= {"means": [mean._asdict() for mean in self.means], "rule": self.rule, "select": self.select}
            fields |= {name: mean and mean._asdict() for name, mean in self.choice._asdict().items()}
            fields["faults"] = [{"lam": lam, "why": why} for lam, why in self.faults.items()]
            if self.interval is not None:
                fields["interval"] = self.interval.as_json()
            fields |= {"chance": self.chance, "quick_rocarea": self.quick_rocarea and self.quick_rocarea.as_json()}
        return fields

    def to_frame(self) -> pandas.DataFrame:
        """Return a table of pandas with a row for each point.

        Its columns are lam and fold, the fields of the training's result (status, J, gap, ...), threshold, the measures
        on training and held-out rows (training_rocarea, held_out_rocarea, ...), and first, with several paths, which
        one it is.
        """
        import pandas

        rows = [
            {"path": name, "lam": point.lam, "fold": point.fold, **point.result, "threshold": point.threshold}
            | {f"training_{measure}": value for measure, value in point.training.items()}
            | {f"held_out_{measure}": value for measure, value in (point.held_out or {}).items()}
            for name, path in (self.paths or {"": self}).items()
            for point in path.points
        ]
        table = pandas.DataFrame(rows)
        return table if self.paths else table.drop(columns="path", errors="ignore")
