"""ROCArea where only the rows are sorted in which the classes overlap: the same numbers, and less work."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.losses import rocarea_exchange
from distsms.losses.registry import make_loss
from distsms.losses.rocarea_exchange import RocAreaExchange
from tests.support.problems import problems


@pytest.fixture
def divided(monkeypatch):
    """Let small classes be divided, and return the numbers of the rows that were sorted."""
    sorted_, real = [], RocAreaExchange._divided

    def watched(self, *given):
        found = real(self, *given)
        sorted_.append(None if found is None else (len(self._low.rows), len(self._high.rows)))
        return found

    monkeypatch.setattr(rocarea_exchange, "FEW", 0)
    monkeypatch.setattr(RocAreaExchange, "_divided", watched)
    return sorted_


def check(scores, labels, weights, nu, mine, comm):
    """R, R_mu, d and the coefficients are those of gathering, also where these take the place of the scores."""
    local = scores[mine], labels[mine].astype(np.int8), None if weights is None else weights[mine]
    expected = make_loss("rocarea", "gather", *local[1:], comm).evaluate(local[0], nu)
    loss = make_loss("rocarea", "exchange", *local[1:], comm)
    for found in (loss.evaluate(local[0], nu), loss.evaluate_in_place(local[0].copy(), nu)):
        np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-9)
        np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-9, atol=1e-18)


@pytest.mark.parametrize("positive", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("digits", [1, 12])
def test_classes_that_are_well_apart(positive, weighted, digits, divided, comm):
    """Also with ties, with rows that are left out, and with ranks that have one class or no rows."""
    rng, n = np.random.default_rng(3), 3000
    labels = np.where(rng.random(n) < positive, 1, -1)
    scores = np.round(rng.normal(size=n) + 2.2 * labels, digits)
    weights = rng.integers(0, 4, n) / 2.0 if weighted else None
    owners = rng.integers(0, comm.size, n), np.where(labels > 0, 0, comm.size - 1), np.full(n, comm.size - 1)
    for owner in owners:
        for nu in (0.0, 0.04, 1.0, 50.0):
            check(scores, labels, weights, nu, owner == comm.rank, comm)
    low, high = divided[0]
    total = comm.sum(np.array([float(low), high])).sum()
    assert total < 0.4 * n * min(positive, 1 - positive)
    assert all(numbers is not None for numbers in divided)


@given(problem=problems(max_rows=60), seed=st.integers(0, 999))
def test_any_cut_gives_the_same(problem, seed, comm):
    """A cut is only about time: anywhere, also below or above all scores, the numbers are the same."""
    scores, labels, nu = problem
    rng = np.random.default_rng(seed)
    places = np.concatenate([scores, 1 - scores, scores - 1, -scores, [-1e300, 1e300]])
    cut, mine = rng.choice(places), rng.integers(0, comm.size, len(labels)) == comm.rank
    weights = None if seed % 2 else rng.random(len(labels)) + 0.1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocarea_exchange, "FEW", 0)
        patch.setattr(RocAreaExchange, "_cut", lambda self, scores: cut)
        for width in (nu, 0.0):
            check(scores, labels, weights, width, mine, comm)


def test_classes_that_overlap_are_sorted_as_before(divided, comm):
    rng = np.random.default_rng(0)
    labels, scores = np.where(rng.random(400) < 0.5, 1, -1), rng.normal(size=400)
    check(scores, labels, None, 0.1, np.arange(400) % comm.size == comm.rank, comm)
    assert divided == []


def test_a_sample_that_deceives_costs_time_only(divided, comm, monkeypatch):
    """It promises few rows above the cut where there are more than can be listed."""
    rng, n = np.random.default_rng(0), 4000
    labels = np.where(np.arange(n) % 4 == 0, 1, -1)
    scores = np.where(labels > 0, 1.0, 9.0) + rng.random(n)
    monkeypatch.setattr(rocarea_exchange, "FEW", 0)
    monkeypatch.setattr(RocAreaExchange, "_cut", lambda self, scores: 5.0)
    check(scores, labels, None, 0.1, np.arange(n) % comm.size == comm.rank, comm)
    assert divided == [None, None]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite(bad, divided, comm):
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(800) < 0.5, 1, -1).astype(np.int8)
    scores = rng.normal(size=800) + 5 * labels
    loss = make_loss("rocarea", "exchange", labels, None, comm)
    assert np.isfinite(loss.evaluate(scores, 0.1).R)
    assert len(divided) == 1
    if comm.rank == comm.size - 1:
        scores[7] = bad
    for bad_scores in (scores, np.full(800, bad)):  # on one rank, and everywhere
        value = loss.evaluate(bad_scores, 0.1)
        assert np.isnan(value[:3]).all()
        assert (value.coefficients == 0).all()
