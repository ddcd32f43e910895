"""Row weights: a whole number has the effect of repeating the row, and a common factor has none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.losses.registry import make_loss
from tests.support.files import on_root
from tests.support.problems import ALL, build, local_part, problems, spread_scores

WIDTHS = (0.0, 1e-9, 1e-3, 0.1, 0.7, 5.0, 1e10)


def made(way, labels, comm, weights=None):
    if way in OF_ROWS:
        return make_loss(*way, np.asarray(labels, np.int8), weights, comm)
    return build(way, labels, comm, weights)


OF_ROWS = (("error-rate", "gather"), ("logistic", "gather"), ("logistic-balanced", "gather"))
"""Losses that are sums over rows, and are given only their own rows."""
ways = pytest.mark.parametrize("way", [*ALL, *OF_ROWS])


def check_equal(found, expected, slack=1e-12):
    """Equal numbers, and coefficients relative to the largest of them."""
    np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-9, atol=slack)
    largest = np.abs(expected.coefficients).max(initial=0.0)
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-9, atol=1e-9 * largest + slack)


def check_against_repeating(way, scores, labels, weights, nu, comm=None, slack=1e-12):
    """Compare with one rank on which each row is there as often as its weight says, with gathering."""
    comm = comm or Communicator()

    def of_copies():
        rows = np.repeat(np.arange(len(labels)), weights)
        copies = made((way[0], "gather"), labels[rows], Communicator())
        value = copies.evaluate(scores[rows], nu)
        summed = np.bincount(rows, value.coefficients, len(labels))
        return value._replace(coefficients=summed), copies.R_at_zero, copies.kappa

    expected, R_at_zero, kappa = on_root(comm, of_copies)
    loss = made(way, local_part(labels, comm), comm, local_part(weights.astype(float), comm))
    value = loss.evaluate(local_part(scores, comm), nu)
    check_equal(value, expected._replace(coefficients=local_part(expected.coefficients, comm)), slack)
    assert loss.R_at_zero == pytest.approx(R_at_zero, rel=1e-12)
    assert loss.kappa == pytest.approx(kappa, rel=1e-12)


@pytest.mark.serial
@ways
@given(problem=problems(max_rows=20), draw=st.data())
def test_whole_weights_repeat_rows(way, problem, draw):
    scores, labels, nu = problem
    weights = np.array(draw.draw(st.lists(st.integers(0, 4), min_size=len(labels), max_size=len(labels))))
    weights[:2] = np.maximum(weights[:2], 1)
    size = np.abs(scores).max() + len(scores)
    for width in (nu, 0.0):
        resolution = min(1.0, 64 * np.spacing(size) * 4 / width) if width else 0.0
        check_against_repeating(way, scores, labels, weights, width, slack=1e-12 * (1 + size) + resolution)


@ways
@pytest.mark.parametrize("positive", [0.03, 0.4, 0.8])
def test_whole_weights_repeat_rows_on_more_rows_and_ranks(way, positive, comm):
    rng = np.random.default_rng(8)
    n = 2000
    labels = np.where(rng.random(n) < positive, 1, -1)
    weights = rng.integers(0, 6, n) * np.where(rng.random(n) < 0.01, 100, 1)
    for scores in (rng.normal(size=n) + labels, np.round(rng.normal(size=n)), np.exp(4 * rng.normal(size=n))):
        for nu in WIDTHS:
            check_against_repeating(way, scores, labels, weights, nu, comm)


@ways
def test_real_weights_are_close_to_whole_ones(way, comm):
    """Weights of many sizes agree with a thousand million times themselves, rounded, and with themselves scaled."""
    rng = np.random.default_rng(3)
    n = 1500
    labels, scores = np.where(rng.random(n) < 0.3, 1, -1), rng.normal(size=n)
    weights = np.exp(3 * rng.normal(size=n))
    for nu in WIDTHS:
        values = [
            made(way, local_part(labels, comm), comm, local_part(a, comm)).evaluate(local_part(scores, comm), nu)
            for a in (weights, np.round(weights * 2.0**40), 1e-200 * weights, 3e250 * weights)
        ]
        for other in values[1:]:
            check_equal(other, values[0], 1e-10 if nu == 0 else 1e-11)


@pytest.mark.parametrize("way", [way for way in ALL if way[1] != "gather"])
@pytest.mark.parametrize("spread", ["normal", "far from zero", "outliers", "few values", "equal", "long tails"])
def test_orderings_agree_with_real_weights(way, spread, comm):
    """With weights of many sizes, on more rows, and on all ranks."""
    rng = np.random.default_rng(5)
    n = 3000
    labels = np.where(rng.random(n) < 0.3, 1, -1)
    weights, x = np.exp(3 * rng.normal(size=n)) * (rng.random(n) < 0.9), rng.normal(size=n) + 0.5 * labels
    scores = spread_scores(spread, x, rng)
    mine = [local_part(array, comm) for array in (labels, weights)]
    losses = [build((way[0], ordering), mine[0], comm, mine[1]) for ordering in ("gather", way[1])]
    for nu in (0.0, 1e-3, 0.1, 0.7, 5.0, 1e10):
        expected, found = (loss.evaluate(local_part(scores, comm), nu) for loss in losses)
        resolution = min(1.0, 64 * np.spacing(np.abs(scores).max()) / nu) if nu and way[0] != "rocarea" else 0.0
        largest = comm.maximum(np.array([np.abs(expected.coefficients).max(initial=0.0)]))[0]
        np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-9 + resolution)
        difference = np.abs(found.coefficients - expected.coefficients).max(initial=0.0)
        assert difference <= (1e-9 + resolution) * largest


@pytest.mark.serial
@ways
def test_equal_weights_are_no_weights(way):
    """To the bit, and without the cost of weights."""
    rng = np.random.default_rng(6)
    labels, scores = np.where(rng.random(60) < 0.3, 1, -1), rng.normal(size=60)
    kept = np.where(rng.random(60) < 0.8, 1.0, 0.0)
    once, often = (made(way, labels, Communicator(), factor * kept) for factor in (1.0, 7.3))
    assert often.weights is None
    for nu in (0.0, 0.3):
        for a, b in zip(once.evaluate(scores, nu), often.evaluate(scores, nu), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("measure", ["f1", "precision@2", "recall@1"])
def test_measures_that_count_rows_refuse_weights(measure, comm):
    labels = np.array([1, -1, -1], np.int8)
    with pytest.raises(InputError, match=f"^{measure} counts rows"):
        make_loss(measure, "gather", labels, np.array([1.0, 2.0, 1.0 + comm.rank]), comm)
    make_loss(measure, "gather", labels, np.array([1.0, 0.0, 1.0]), comm)


@pytest.mark.parametrize("large, small", [(1e300, 1e-300), (1.0, 1e-310)])
def test_a_class_that_vanishes_beside_the_other_is_refused(comm, large, small):
    labels, weights = np.array([1, 1, -1, -1]), np.array([large, large, small, small])
    with pytest.raises(InputError, match="weights of the negative rows are so small"):
        made(("rocarea", "exchange"), local_part(labels, comm), comm, local_part(weights, comm))


@pytest.mark.parametrize("way", ALL)
@pytest.mark.parametrize("first", [0.0, np.inf])
def test_coefficients_may_take_the_place_of_scores(way, first, comm):
    """They are the same, also those of rows that are left out, and where a score is not finite."""
    rng, n = np.random.default_rng(6), 300
    labels, scores = np.where(rng.random(n) < 0.3, 1, -1), rng.normal(size=n)
    weights, scores[0] = (rng.random(n) < 0.8).astype(float), first
    rows = local_part(labels, comm), comm, local_part(weights, comm)
    expected = build(way, *rows).evaluate(local_part(scores, comm), 0.3)
    room = local_part(scores, comm).copy()
    found = build(way, *rows).evaluate_in_place(room, 0.3)
    for of_room, value in zip(found, expected, strict=True):
        np.testing.assert_array_equal(of_room, value)
