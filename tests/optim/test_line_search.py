"""The line search against SciPy's, which is another implementation of the same paper."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize._linesearch import scalar_search_wolfe1

from distsms.optim.solvers.line_search import CURVATURE, DECREASE, LONGEST, SHORTEST, TRIALS, search


def hinges(rng, smooth):
    """A sum of hinges, smoothed or not, and of a parabola: convex."""
    k = rng.integers(1, 20)
    at, rates = rng.normal(0, 3, k), rng.normal(size=k) * np.exp(rng.normal(0, 2, k))
    mu, lam = np.exp(rng.normal(-2, 2)) if smooth else 1e-300, np.exp(rng.normal(-5, 3))

    def function(t):
        z = 1 + at + rates * t
        share = np.clip(z / mu, 0, 1)
        return np.sum(share * (z - mu * share / 2)) + lam * t * t / 2, np.sum(share * rates) + lam * t

    return function


def waves(rng):
    """A wave above a valley: not convex."""
    often, begin = np.exp(rng.normal(0, 2)), rng.normal()
    return lambda t: (
        math.sin(often * t + begin) + abs(t) / 20,
        often * math.cos(often * t + begin) + math.copysign(0.05, t),
    )


def far(rng):
    """A parabola whose minimum may be near or far, of any height."""
    height, at = np.exp(rng.normal(0, 9)), np.exp(rng.normal(0, 5))
    return lambda t: (height * (t / at - 1) * (t / at - 1), 2 * height / at * (t / at - 1))


KINDS = {"smooth": lambda rng: hinges(rng, True), "kinks": lambda rng: hinges(rng, False), "waves": waves, "far": far}


def searched(function, longest):
    steps = []

    def evaluate(step):
        steps.append(step)
        return function(step)

    return search(evaluate, *function(0.0), longest), steps


def searched_by_scipy(function, longest):
    steps = []

    def value(step):
        steps.append(float(step))
        return function(step)[0]

    start, slope = function(0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limits = DECREASE, CURVATURE, longest, SHORTEST
        found = scalar_search_wolfe1(value, lambda step: function(step)[1], start, None, slope, *limits)[0]
    low_enough = value(steps[-1]) <= start + DECREASE * steps.pop() * slope
    return found is not None or (steps[-1] == longest and low_enough), steps


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10**6), longest=st.sampled_from([1.0, 7.0, LONGEST]))
def test_steps_are_scipys(kind, seed, longest):
    """They are also the same where SciPy gives up, except that it evaluates its best step again."""
    function = KINDS[kind](np.random.default_rng(seed))
    value, slope = function(0.0)
    if not slope < 0:
        return
    found, steps = searched(function, longest)
    by_scipy, others = searched_by_scipy(function, longest)
    assert found == by_scipy
    some = min(len(steps), len(others), 20)  # later steps may differ at a kink, because of rounding
    np.testing.assert_allclose(steps[:some], others[:some], rtol=1e-6)
    if found:
        assert len(steps) == len(others)
        at, low = function(steps[-1]), value + DECREASE * steps[-1] * slope
        assert at[0] <= low and (abs(at[1]) <= -CURVATURE * slope or steps[-1] == longest)


def test_where_interpolation_goes_on_by_little_the_step_goes_further():
    """The function falls ever more steeply until 1, and then as a parabola to its minimum at 6.7."""

    def function(t):
        return (-t - 4.5 * t * t, -1 - 9 * t) if t < 1 else (-5.5 + 0.875 * ((t - 6.7) ** 2 - 5.7**2), 1.75 * (t - 6.7))

    found, steps = searched(function, LONGEST)
    by_scipy, others = searched_by_scipy(function, LONGEST)
    assert found and by_scipy and steps[:2] == [1.0, 5.0] and steps[2] > 6.8
    np.testing.assert_allclose(steps, others, rtol=1e-9)


@pytest.mark.parametrize(
    "after",
    [(1.0, -1.0), (math.inf, math.inf), (math.nan, math.nan), (0.0, -1.0), (0.0, 0.0), (1.0, 0.0), (1e300, 1e-300)],
)
def test_a_search_that_cannot_succeed_ends(after):
    found, steps = searched(lambda step: after if step else (0.0, -1.0), LONGEST)
    assert not found and len(steps) <= TRIALS


def test_a_function_that_falls_for_ever_ends_at_the_longest_step():
    assert searched(lambda step: (-step, -1.0), 1000.0) == (True, [1.0, 5.0, 21.0, 85.0, 341.0, 1000.0])
