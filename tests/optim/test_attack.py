"""Proofs under attack: small nasty problems, each by its kind and seed, with J in rational arithmetic as the judge."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from scripts.experiments.attacks import independent, judgement, oracle, problems
from tests.support import oracles
from tests.support.examples import EXAMPLES

FALSE = [
    "identical-rows:1000030",
    "identical-rows:1000033",
    "identical-rows:1000054",
    "identical-rows:5000000",
    "one-negative:1000053",
    "tiny-lambda:1000006",
    "tiny-lambda:1000016",
    "offset:1000014",
    "offset:1000022",
    "offset:1000032",
    "offset:1000037",
    "offset:1000156",
    "offset:1000162",
    "offset:1000168",
    "offset:1000189",
    "column-scales:1000058",
    "column-scales:2000014",
]
"""Each of these once had a lower bound above the J of a vector, most of them from planes that were merged."""


def named(name):
    kind, seed = name.split(":")
    return problems.problem(kind, int(seed))


def false(problem, comm):
    """What is false of which run, by how much."""
    return [(one.solver, one.settings, one.false) for one in judgement.verdicts(problem, comm) if one.false]


@pytest.mark.parametrize("name", FALSE)
def test_what_was_false(name, comm):
    problem = named(name)
    if comm.size > 1:  # simulated ranks, over which PETSc spreads nothing
        ways = (way._replace(step="root") if way.settings["solver"] == "lmvm" else way for way in problem.ways)
        problem = problem._replace(ways=tuple(ways))
    assert false(problem, comm) == []


def test_the_bound_of_merged_planes(comm):
    """Eleven rows that are all the same: J is least at w = 1/2, and there 6/11 + lambda / 8."""
    way = problems.Way({"solver": "lmvm", "planes": 2}, "gather", "root", (4,), ())
    rows = named("identical-rows:1")._replace(X=np.ones((11, 1)), y=np.array([1] * 3 + [-1] * 8, np.int8), bias=None)
    problem = rows._replace(measure="error-rate", lam=1e-8, normalization="none", ways=(way,))
    (verdict,) = judgement.verdicts(problem._replace(epsilon=1e-3, relative=None), comm)
    assert verdict.false == {}
    assert verdict.proved and verdict.least == pytest.approx(6 / 11 + 1e-8 / 8, abs=1e-16)


@pytest.mark.serial
@pytest.mark.parametrize("kind", problems.KINDS)
@settings(max_examples=max(2, EXAMPLES // 5), phases=[Phase.generate])  # no shrinking: a seed is short enough
@given(seed=st.integers(0, 99_999))
def test_no_bound_above_any_J(kind, seed):
    problem = problems.problem(kind, seed)
    assert (problem.name, false(problem, Communicator())) == (problem.name, [])


@pytest.mark.mpi(only=True)  # PETSc
@pytest.mark.parametrize("kind", problems.KINDS)
def test_the_same_over_ranks(kind, comm):
    if comm.size == 1:
        pytest.skip("test_no_bound_above_any_J solves such problems on one rank")
    problem = problems.problem(kind, 100 + comm.size)
    assert false(problem, comm) == []


# That the judge is right


@pytest.mark.serial
@pytest.mark.parametrize("kind", problems.KINDS)
def test_the_judge_agrees_with_the_definitions(kind):
    """J exactly, and no J below the least one on a ray."""
    for seed in range(2):
        problem = problems.problem(kind, seed)
        rng = np.random.default_rng(seed)
        w = rng.normal(size=problem.X.shape[1]) * 10.0 ** rng.integers(-6, 7)
        exact = oracle.Exact(oracle.whole(problem.X), problem.y, problem.measure, problem.lam)
        J, W = exact.J(w), oracles.rational(w)
        scores = np.array([sum(oracles.rational(row) * W) for row in problem.X], object)
        assert Fraction(problem.lam) / 2 * sum(W * W) + risk(problem, scores) == J
        ray = exact.ray(oracle.whole(w))
        t, least = ray.least()
        assert least <= J
        if least < exact.J(0 * w):  # else it is at t = 0
            assert all(least <= ray.J(t * Fraction(factor)) for factor in (0.1, 0.999999, 1.000001, 10))


def risk(problem, scores):
    """R by the definitions of tests/oracles.py."""
    measure, positive, negative = problem.measure, scores[problem.y > 0], scores[problem.y < 0]
    if measure == "rocarea":
        return Fraction(oracles.rocarea_risk(positive, negative))
    if measure == "prbep":
        return oracles.prbep_risk(positive, negative)
    if measure.startswith("pauc"):
        return oracles.pauc_risk(positive, negative, float(measure[5:]))
    family, at, parameter = measure.partition("@")
    if at:
        family, parameter = f"{family}@k", int(parameter)
    elif measure != "error-rate":
        family, parameter = "f-beta", float(measure[1:])
    return oracles.contingency_risk(family, parameter, positive, negative, oracles.extreme_subsets)


@pytest.mark.serial
@pytest.mark.parametrize(
    "measure", ["rocarea", "pauc@0.4", "prbep", "error-rate", "f1", "f2", "precision@3", "recall@5"]
)
def test_an_independent_solver_finds_the_same_least_J(measure):
    """Between what Clarabel finds and what distsms proves there is next to nothing."""
    pytest.importorskip("clarabel")
    rng = np.random.default_rng(1)
    y = np.array([1] * 4 + [-1] * 7, np.int8)
    X = rng.normal(size=(11, 3)) + (y > 0)[:, None]
    way = problems.Way({"solver": "bmrm"}, "gather", "root", (4,), ())
    given = named("plain:1")._replace(X=X, y=y, measure=measure, lam=1e-2, bias=None, normalization="none", ways=(way,))
    (verdict,) = judgement.verdicts(given._replace(epsilon=1e-9, relative=None), Communicator())
    exact = oracle.Exact(oracle.whole(X), y, measure, 1e-2)
    least, _ = oracle.least(exact, independent.minimizers(X, y, measure, 1e-2))
    assert verdict.proved and verdict.lower_bound <= float(least) <= verdict.lower_bound + 2e-9
