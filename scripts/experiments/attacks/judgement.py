"""Check the statements of a run (lower bound, gap, J) in rational numbers, with the least J that was found.

A run has a result w, J, lower_bound and gap. J(w) is the exact objective at w, and `least` is the least exact J of all
vectors that were found. A run is false if one of these is true:

    bound    lower_bound > least
    trace    a lower bound that the run reported on its way > least
    gap      J(w) - least > gap, so w is farther from the minimum than the gap says
    value    J(w) > J + allowance, so J is not the objective at w
    proved   the run says that the target is proved, but J(w) - lower_bound > target + allowance

The allowance is the bound on rounding errors that distsms claims for J (`Objective.rounding`): eps (2 (p + 2) max_i
sum_j |x_ij w_j| + n (R + 4)). The first three have no allowance.

Two floors say which targets can be proved at all. The floor of a problem is eps times the size of the terms of J and d
at the solution: eps (sum_j max_i |x_ij| |w_j| + lambda/2 ||w||^2 + R + 1). If the target is smaller, a run without a
proof has not failed. If it is more than `FLOORS` times as large, the run may have failed, unless the second floor
explains it. The floor of slopes is due to the rounding of the slopes r to float64: an error e_j = eps max_i |x_ij| in
each entry of r, which is one rounding of the largest term, lowers a bound by Omega*(e) = ||e||^2 / (2 lambda).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats
from distsms.optim.result import Status
from scripts.experiments.attacks import independent, oracle
from scripts.experiments.attacks.problems import Problem, Way
from scripts.experiments.attacks.runs import Run, rows, run

EPS = float(np.finfo(float).eps)
FLOORS = 1e3


class Truth(NamedTuple):
    """The least J that was found, its w rounded to floats, and the two floors of the module's docstring."""

    exact: oracle.Exact
    X: Floats
    least: Fraction
    w: Floats
    floor: float
    slopes: float


class Verdict(NamedTuple):
    """The verdict on a run, in a form that can be written as JSON.

    way : the index of the run among those of the problem; 0 is the default solver.
    false : for each false statement, its name in the module's docstring and by how much it is false.
    excess : J(w) - least.
    reason : the run's explanation of its status, with # in place of numbers.
    """

    problem: str
    way: int
    kind: str
    solver: str
    measure: str
    lam: float
    settings: dict[str, Any]
    status: str
    reason: str
    evaluations: int
    J: float
    lower_bound: float
    gap: float
    target: float
    floor: float
    slopes: float
    least: float
    excess: float
    false: dict[str, float]
    warned: str

    @property
    def proved(self) -> bool:
        """Whether the run says that its target is proved."""
        return self.status == Status.PROVED.name

    @property
    def provable(self) -> bool:
        """Whether the target is more than `FLOORS` times the problem's floor."""
        return self.target > FLOORS * self.floor

    @property
    def provable_in_doubles(self) -> bool:
        """Whether the target is more than `FLOORS` times the sum of both floors."""
        return self.target > FLOORS * (self.floor + self.slopes)


def verdicts(problem: Problem, comm: Communicator) -> list[Verdict]:
    """Return the verdicts on all runs of a problem, on every rank. Collective; the root computes them."""
    found = [run(problem, way, comm) for way in problem.ways]
    made: list[Verdict] = []
    if comm.is_root:
        known = truth(problem, [run_made.result.w for run_made in found])
        made = [judge(problem, number, run_made, known) for number, run_made in enumerate(found)]
    return comm.bcast(made)


def truth(problem: Problem, found: Sequence[Floats]) -> Truth:
    """Find the least J, from the results `found` of runs, (p,) each, and from other candidates."""
    exact_rows = rows(problem)
    X = exact_rows.floats()
    exact = oracle.Exact(exact_rows, problem.y, problem.measure, problem.lam)
    # Where all rows have one direction, the least J is on its ray.
    with np.errstate(over="ignore"):
        difference = X[problem.y > 0].mean(axis=0) - X[problem.y < 0].mean(axis=0)
    directions = [direction for row in (X[0], difference) for direction in (row, -row)]
    others = independent.minimizers(X, problem.y, problem.measure, problem.lam)
    points = [oracle.whole(vector) for vector in (*found, *directions) if np.isfinite(vector).all()]
    least, w = oracle.least(exact, [*points, *others])
    omega = problem.lam / 2 * float(w @ w)
    with np.errstate(over="ignore"):
        largest = np.max(np.abs(X), axis=0)
        terms = float(largest @ np.abs(w)) + omega + float(least) + 1.0
        slopes = float(np.sum((EPS * largest) ** 2)) / (2 * problem.lam)
    return Truth(exact, X, least, w, EPS * terms, slopes)


def judge(problem: Problem, number: int, judged: Run, truth: Truth) -> Verdict:
    """Return the verdict on a run."""
    result, least = judged.result, truth.least
    finite = bool(np.isfinite(result.w).all())
    J = truth.exact.J(result.w) if finite else None
    false: dict[str, float] = {}

    def above(name: str, value: Any, limit: Any) -> None:
        if np.isfinite(float(value)) and np.isfinite(float(limit)) and Fraction(value) > Fraction(limit):
            false[name] = float(Fraction(value) - Fraction(limit))

    above("bound", result.lower_bound, least)
    above("trace", judged.highest, least)
    if J is not None:
        allowance = Fraction(_allowance(truth.X, result.w, result.R))
        above("gap", J - least, result.gap)
        above("value", J, Fraction(result.J) + allowance if np.isfinite(result.J) else np.inf)
        if result.status is Status.PROVED:
            above("proved", J - Fraction(result.lower_bound), Fraction(judged.target) + allowance)
    return Verdict(
        problem.name,
        number,
        problem.kind,
        judged.way.settings["solver"],
        problem.measure,
        problem.lam,
        _described(judged.way),
        result.status.name,
        re.sub(r"[-+]?(\d+\.?\d*|inf|nan)(e[-+]?\d+)?", "#", result.detail),
        result.evaluations,
        result.J,
        result.lower_bound,
        result.gap,
        judged.target,
        truth.floor,
        truth.slopes,
        float(least),
        float(J - least) if J is not None else np.inf,
        false,
        judged.warned,
    )


def _allowance(X: Floats, w: Floats, R: float) -> float:
    """Return the bound on the rounding error of J at w that distsms claims."""
    n, p = X.shape
    with np.errstate(over="ignore"):
        terms = float(np.max(np.abs(X) @ np.abs(w)))
    return EPS * (2 * (p + 2) * terms + n * (R + 4))


def _described(way: Way) -> dict[str, Any]:
    usual: dict[str, Callable[[Any], bool]] = {
        "solver": lambda value: True,
        "ordering": lambda value: value == "gather",
        "step": lambda value: value == "root",
        "ranks": lambda value: value == (4,),
        "stops": lambda value: not value,
    }
    everything = {**way.settings, "ordering": way.ordering, "step": way.step, "ranks": way.ranks, "stops": way.stops}
    return {name: value for name, value in everything.items() if not usual.get(name, lambda value: False)(value)}
