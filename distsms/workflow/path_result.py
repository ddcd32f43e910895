"""What is decided of a path before its rows are read, and what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distsms.base.errors import EXIT_OK, EXIT_REQUEUE, EXIT_VACUOUS
from distsms.metrics.confidence import Interval
from distsms.models.model import Model
from distsms.optim.result import Status
from distsms.shards.manifest import Manifest
from distsms.workflow import choice as choosing
from distsms.workflow.choice import Choice, Mean, Point
from distsms.workflow.path import Problem
from distsms.workflow.requests import PathRequest
from distsms.workflow.rocarea_check import FoldComparison
from distsms.workflow.several_paths import PathComparison

if TYPE_CHECKING:
    import pandas


class PathTask(NamedTuple):
    """What is decided of a path before its rows are read."""

    request: PathRequest  # with one measure, one l1 and one kind of features
    manifest: Manifest
    problem: Problem
    identity: Mapping[str, Any]  # the data and options that all points have in common, as path.json has them
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
        The model of all rows at the lambda that was chosen; None without folds, and if the run was stopped.
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
        """The means at the lambda that was chosen (`choice.chosen.lam`), at the best one, and at the ends of the range
        where the mean is within one standard error of the best one; None without folds, and if the run was stopped.
        """
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
        if not self.paths:
            codes = [Status[point.result["status"].upper()].exit_code for point in self.points]
            codes += [EXIT_VACUOUS] * bool(self.chance)
            return max(codes, key=lambda code: (code != EXIT_VACUOUS, code) if code else (False, 0), default=EXIT_OK)
        codes = [path.exit_code for path in self.paths.values()]
        if self.comparison is None:
            return max(codes)
        others = [code for code in codes if code not in (EXIT_OK, EXIT_VACUOUS)]
        return max(others) if others else self.paths[self.comparison.best].exit_code

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

        Its columns are lam and fold, the fields of the training's result (status, J, lower_bound, gap, evaluations,
        ...), threshold, and the measures on the rows that trained (training_rocarea, ...) and on those that were held
        out (held_out_rocarea, ...). With several paths, the first column says of which of them the point is.
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
