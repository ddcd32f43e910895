"""What is true of runs: their bounds, gaps and J against the least J that anything has found, in rational numbers.

Of a run with result w, J, lower_bound and gap, and with `least` the least exact J of any vector that was found, it is
false if

    bound    lower_bound > least                                               how it ended
    trace    a lower bound that it told on its way > least
    gap      J(w) - least > gap                                                J(w) exact: the gap does not cover w
    value    J(w) > J + allowance                                              J is not that of w
    proved   it says so, but J(w) - lower_bound > target + allowance

with the allowance for rounding that distsms claims for J (`Objective.rounding`), eps (2 (p + 2) max_i sum_j |x_ij w_j|
+ n (R + 4)). The first three have no allowance at all.

The floor of a problem is the size of the terms of J and d at its solution times eps: eps (sum_j max_i |x_ij| |w_j| +
lambda/2 ||w||^2 + R + 1). What nobody can prove there is no failure; what is asked for above `FLOORS` times it may be
one. It is none where slopes r in doubles cannot prove it: an error e_j = eps max_i |x_ij| in each entry of r, one
rounding of the largest term, lowers a bound by Omega*(e) = ||e||^2 / (2 lambda), the floor of slopes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from distsms.optim.result import Status
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats
from scripts.experiments.attacks import independent, oracle
from scripts.experiments.attacks.problems import Problem, Way
from scripts.experiments.attacks.runs import Run, rows, run

EPS = float(np.finfo(float).eps)
FLOORS = 1e3


class Truth(NamedTuple):
    """The least J found, the vector about there, the problem's floor, and that of slopes."""

    exact: oracle.Exact
    X: Floats
    least: Fraction
    w: Floats
    floor: float
    slopes: float


class Verdict(NamedTuple):
    """A run, judged. Ready for JSON.

    way : its number among the problem's, 0 the default.  false : what is false of it (see the module) and by how much.
    excess : J(w) - least.  reason : the status in the run's own words, without its numbers.
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
        """Whether it says so."""
        return self.status == Status.PROVED.name

    @property
    def provable(self) -> bool:
        """Whether its target is well above the problem's floor."""
        return self.target > FLOORS * self.floor

    @property
    def provable_in_doubles(self) -> bool:
        """Whether it is well above that of slopes, too."""
        return self.target > FLOORS * (self.floor + self.slopes)


def verdicts(problem: Problem, comm: Communicator) -> list[Verdict]:
    """Those on all runs of a problem, the same on every rank. Collective; the judging is the root's."""
    found = [run(problem, way, comm) for way in problem.ways]
    made: list[Verdict] = []
    if comm.is_root:
        known = truth(problem, [one.result.w for one in found])
        made = [judge(problem, number, one, known) for number, one in enumerate(found)]
    return comm.bcast(made)


def truth(problem: Problem, found: Sequence[Floats]) -> Truth:
    """The least J by all means, `found` (p,) among them."""
    exact_rows = rows(problem)
    X = exact_rows.floats()
    exact = oracle.Exact(exact_rows, problem.y, problem.measure, problem.lam)
    # Where all rows have one direction, the least J is on its ray.
    with np.errstate(over="ignore"):
        difference = X[problem.y > 0].mean(axis=0) - X[problem.y < 0].mean(axis=0)
    directions = [one for row in (X[0], difference) for one in (row, -row)]
    others = independent.minimizers(X, problem.y, problem.measure, problem.lam)
    points = [oracle.whole(one) for one in (*found, *directions) if np.isfinite(one).all()]
    least, w = oracle.least(exact, [*points, *others])
    omega = problem.lam / 2 * float(w @ w)
    with np.errstate(over="ignore"):
        largest = np.max(np.abs(X), axis=0)
        terms = float(largest @ np.abs(w)) + omega + float(least) + 1.0
        slopes = float(np.sum((EPS * largest) ** 2)) / (2 * problem.lam)
    return Truth(exact, X, least, w, EPS * terms, slopes)


def judge(problem: Problem, number: int, one: Run, truth: Truth) -> Verdict:
    """What is true of a one."""
    result, least = one.result, truth.least
    finite = bool(np.isfinite(result.w).all())
    J = truth.exact.J(result.w) if finite else None
    false: dict[str, float] = {}

    def above(name: str, value: Any, limit: Any) -> None:
        if np.isfinite(float(value)) and np.isfinite(float(limit)) and Fraction(value) > Fraction(limit):
            false[name] = float(Fraction(value) - Fraction(limit))

    above("bound", result.lower_bound, least)
    above("trace", one.highest, least)
    if J is not None:
        allowance = Fraction(_allowance(truth.X, result.w, result.R))
        above("gap", J - least, result.gap)
        above("value", J, Fraction(result.J) + allowance if np.isfinite(result.J) else np.inf)
        if result.status is Status.PROVED:
            above("proved", J - Fraction(result.lower_bound), Fraction(one.target) + allowance)
    return Verdict(
        problem.name,
        number,
        problem.kind,
        one.way.settings["solver"],
        problem.measure,
        problem.lam,
        _described(one.way),
        result.status.name,
        re.sub(r"[-+]?(\d+\.?\d*|inf|nan)(e[-+]?\d+)?", "#", result.detail),
        result.evaluations,
        result.J,
        result.lower_bound,
        result.gap,
        one.target,
        truth.floor,
        truth.slopes,
        float(least),
        float(J - least) if J is not None else np.inf,
        false,
        one.warned,
    )


def _allowance(X: Floats, w: Floats, R: float) -> float:
    """What distsms says that rounding can do to J at w."""
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
