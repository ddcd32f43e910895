"""Whether the model that a path chose is of use: better than chance, and than a quick ROCArea model on a fold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.data.shards.dataset import DataBlock
from distsms.measures import Measure
from distsms.optim.result import Result, Status
from distsms.parallel.communicator import Communicator
from distsms.selection import choice
from distsms.selection.folds import make_folds
from distsms.selection.path import Point, Problem
from distsms.training.advice import advise, describe_chance, largest_lambda
from distsms.training.quick_check import Checker, QuickCheck
from distsms.training.verdict import ALL_TIED


@dataclass(frozen=True)
class Findings:
    """What is found about the model that a path chose.

    Attributes
    ----------
    vacuous : bool
        Whether it ranks no better than chance.
    warnings : list of str
        Sentences for people; mostly none.
    check : QuickCheck or None
        The comparison with a quick ROCArea model.
    """

    vacuous: bool = False
    warnings: list[str] = field(default_factory=list)
    check: QuickCheck | None = None

    def as_info(self) -> dict[str, Any]:
        """Return what the model file says."""
        found: dict[str, Any] = {"vacuous": self.vacuous, "warnings": self.warnings}
        return found | ({"rocarea_check": self.check.as_json()} if self.check else {})


def chosen_point(points: Sequence[Point], measure: str, rule: str) -> Point | None:
    """Return the model of all rows at the lambda that a rule chooses by a measure; None if there is none. Local."""
    curve = choice.means(points, measure)
    if not curve:
        return None
    lam = choice.choose(curve, rule, choice.faults(points)).chosen.lam
    return next((point for point in points if point.lam == lam and not point.fold), None)


def check_point(
    point: Point,
    points: Sequence[Point],
    seconds: float,
    problem: Problem,
    block: DataBlock,
    fold_keys: NDArray[Any] | None,
    n_pos: int,
    comm: Communicator,
    compare: bool = True,
    memory: float | None = None,
    stop_wanted: Callable[[], bool] = lambda: False,
) -> Findings:
    """Say whether a model of all rows is of use. **Collective.**

    Parameters
    ----------
    point : Point
        The model.
    points : sequence of Point
        All points of the path.
    seconds : float
        What the path took, of which the check takes at most a tenth, or a second.
    problem : Problem
        The path.
    block : DataBlock
        This rank's rows.
    fold_keys : ndarray of shape (n_local,), optional
        As for `distsms.selection.path.run`.
    n_pos : int
        The number of positive rows.
    comm : Communicator
        The ranks that share the rows.
    compare : bool
        Whether to compare with a ROCArea model. The last fold is held out: both measures are trained on the rows that
        it leaves.
    memory, stop_wanted
        As for `Checker`.
    """
    measure, settings = Measure.parse(problem.measure), replace(problem.settings, lam=point.lam)
    check = None
    if compare and problem.folds and measure.family != "rocarea":
        keys = block.counted if fold_keys is None else fold_keys
        how = problem.folds, problem.seed, comm
        held_out = make_folds(problem.folds_by, keys, block.labels, block.counted, *how).judged(problem.folds)
        evaluations = sum(each.result["evaluations"] for each in points)
        run = seconds, evaluations, None
        checker = Checker(block, measure, settings, None, *run, comm, held_out, len(points), memory, stop_wanted)
        check = checker.run(hold_out=True)
    vacuous = bool(point.result["vacuous"])
    advice = advise(check, measure, vacuous)
    if not vacuous:
        return Findings(False, [advice] if advice else [], check)
    area = point.training["rocarea"]
    why = ALL_TIED if area == 0.5 else f"its ROCArea on the training rows is {area:.3f}; chance is 0.5"
    proofs = [(each.lam, _result(each)) for each in points if not each.fold]
    lam, result = min(proofs, key=lambda proof: largest_lambda(*proof))  # what says most of lambda
    said = describe_chance(why, measure, lam, None, result, n_pos)
    return Findings(True, [f"{said} {advice}".rstrip()], check)


def _result(point: Point) -> Result:
    """Return a point's result, without w."""
    numbers = ("J", "R", "lower_bound", "gap", "J_at_zero", "nu", "evaluations", "seconds")
    known: dict[str, Any] = {name: point.result.get(name) for name in numbers}
    known = {name: math.nan if value is None else value for name, value in known.items()}
    return Result(np.empty(0), Status[point.result["status"].upper()], "", **known)
