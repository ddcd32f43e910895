"""The logistic losses agree with their definition, are tangent to it, and are the same on any number of ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.losses import logistic
from distsms.losses.registry import make_loss
from tests.support.problems import local_part, problems

NAMES = ("logistic", "logistic-balanced")
names = pytest.mark.parametrize("name", NAMES)


def build(name, labels, comm=None, weights=None):
    return make_loss(name, "gather", np.asarray(labels, np.int8), weights, comm or Communicator())


def shares(name, labels, weights=None):
    """Return the a_i, which sum to 1."""
    a = np.ones(len(labels)) if weights is None else weights
    if name == "logistic":
        return a / a.sum()
    return 0.5 * a / np.where(labels > 0, a[labels > 0].sum(), a[labels < 0].sum())


def by_definition(name, scores, labels, weights=None):
    """Return R and the coefficients by their definition, in extended precision."""
    a, margins = shares(name, labels, weights).astype(np.longdouble), labels * scores.astype(np.longdouble)
    e = np.exp(-np.abs(margins))
    coefficients = -a * labels * np.where(margins > 0, e, 1) / (1 + e)
    return np.sum(a * np.logaddexp(0, -margins)), coefficients


def rows(n=60, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(n) < 0.3, 1, -1)
    labels[:2] = 1, -1
    return rng.normal(size=n) * 3, labels, rng.uniform(0.1, 4, n), rng


@pytest.mark.serial
@names
@given(problem=problems(max_rows=30), draw=st.data())
def test_equals_its_definition(name, problem, draw):
    scores, labels, nu = problem
    weights = draw.draw(st.sampled_from([None, np.linspace(0.5, 3, len(labels))]))
    value = build(name, labels, weights=weights).evaluate(scores, nu)
    R, coefficients = by_definition(name, scores, labels, weights)
    assert value.R == value.R_mu == pytest.approx(float(R), rel=1e-14)
    np.testing.assert_allclose(value.coefficients, coefficients.astype(float), rtol=1e-14, atol=1e-300)
    assert np.abs(value.coefficients).sum() <= 1 + 1e-14  # what the bounds on rounding rely on
    touching = float(R - coefficients @ scores)
    assert 0 <= value.d <= math.log(2) + 1e-15
    assert value.d == pytest.approx(touching, abs=1e-15 * (1 + np.abs(scores).max()))


@pytest.mark.serial
@names
@given(problem=problems(max_rows=30), seed=st.integers(0, 10))
def test_planes_are_below_the_risk_everywhere(name, problem, seed):
    scores, labels, _ = problem
    loss, rng = build(name, labels), np.random.default_rng(seed)
    value, size = loss.evaluate(scores, 0.0), 1 + np.abs(scores).max()
    for other in (scores, scores + rng.normal(size=len(scores)), rng.normal(size=len(scores)) * size, 0 * scores):
        assert value.coefficients @ other + value.d <= loss.evaluate(other, 0.0).R + 1e-14 * (
            size + np.abs(other).max()
        )


@pytest.mark.serial
@names
def test_coefficients_are_the_gradient(name):
    scores, labels, weights, _ = rows(30)
    loss, h = build(name, labels, weights=weights), 1e-5
    coefficients = loss.evaluate(scores, 0.0).coefficients
    for i, step in enumerate(h * np.eye(30)):
        slope = (loss.evaluate(scores + step, 0.0).R - loss.evaluate(scores - step, 0.0).R) / (2 * h)
        assert coefficients[i] == pytest.approx(slope, abs=1e-10)


@names
@pytest.mark.parametrize("n", [2, 5, 300])
def test_ranks_and_blocks_do_not_matter(name, n, comm, monkeypatch):
    scores, labels, weights, _ = rows(n)
    left_out = np.arange(n) % 7 == 4
    for a in (None, np.where(left_out, 0.0, 1.0), np.where(left_out, 0.0, weights)):
        alone = build(name, labels, weights=a).evaluate(scores, 0.0)
        if a is not None:
            assert not alone.coefficients[left_out].any()
        monkeypatch.setattr(logistic, "BLOCK", 16)
        mine = local_part(labels, comm), comm, None if a is None else local_part(a, comm)
        found = build(name, *mine).evaluate(local_part(scores, comm), 0.0)
        np.testing.assert_allclose(found[:3], alone[:3], rtol=1e-13)
        np.testing.assert_allclose(found.coefficients, local_part(alone.coefficients, comm), rtol=1e-13)


@names
def test_where_all_scores_are_zero(name, comm):
    _, labels, weights, _ = rows(9)
    loss = build(name, local_part(labels, comm), comm, local_part(weights, comm))
    value = loss.evaluate(np.zeros(loss.positive.size), 1.0)
    assert loss.R_at_zero == math.log(2) == pytest.approx(value.R, rel=1e-15) == pytest.approx(value.d, rel=1e-15)
    assert (loss.kappa, loss.calls_positive) == (0.0, None)


@names
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_seen_on_every_rank(name, bad, comm):
    labels = np.array([1, -1, -1, 1] * 3)
    scores = np.where(np.arange(3 * 4) == 7, bad, 1.0)
    value = build(name, local_part(labels, comm), comm).evaluate(local_part(scores, comm), 0.0)
    assert np.isnan(value[:3]).all() and not value.coefficients.any()


def test_scores_of_any_size(comm):
    """Nothing overflows, and a loss of almost 0 keeps its digits."""
    labels = np.array([1, -1])
    loss = build("logistic", local_part(labels, comm), comm)
    for size, R in ((800.0, 0.0), (-1e308, 1e308), (50.0, math.exp(-50)), (30.0, math.log1p(math.exp(-30)))):
        assert loss.evaluate(local_part(size * labels, comm), 0.0).R == pytest.approx(R, rel=1e-14)


@names
def test_refusals(name, comm):
    for sign, word in ((1, "0 negative"), (-1, "0 positive")):
        with pytest.raises(InputError, match=word):
            build(name, np.full(3 if comm.is_root else 0, sign), comm)
