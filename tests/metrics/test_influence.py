"""Influences are derivatives by the weights of rows, on any number of ranks, and the intervals made of them cover."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import special
from sklearn import metrics

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.metrics import confidence, influence, operating_points, tied_scores
from tests.support.files import on_root
from tests.support.problems import drawn_scores, local_part

ALONE = Communicator()
NAMES = "average_precision", "bedroc"


def of(scores, labels, weights=None, comm=ALONE):
    return influence.row_influences(
        tied_scores.tied_scores(Scored(scores, labels, comm, weights)), Scored(scores, labels, comm)
    )


def on_the_last_rank(array, comm):
    return array if comm.rank == comm.size - 1 else array[:0]


def bedroc(scores, labels, weights):
    return operating_points.bedroc(tied_scores.tied_scores(Scored(scores, labels, ALONE, weights)), ALONE)


def average_precision(scores, labels, weights):
    return metrics.average_precision_score(labels, scores, sample_weight=weights)


def by_differences(scores, labels, weights):
    """Return each measure's value, and its slopes in the weights of the rows."""
    for measure in (average_precision, bedroc):
        slopes = []
        for of_row in np.eye(len(scores)):
            ends = [measure(scores, labels, weights + step * of_row) for step in (1e-5, -1e-5)]
            slopes.append((ends[0] - ends[1]) / 2e-5)
        yield measure(scores, labels, weights), np.array(slopes)


@pytest.mark.parametrize("n, share, decimals", [(60, 0.2, 1), (4, 0.5, 0), (40, 0.5, 12), (30, 0.9, 1)])
def test_influences_are_derivatives_by_the_weights(comm, monkeypatch, n, share, decimals):
    """By central differences of scikit-learn's average precision and of BEDROC."""
    scores, labels = drawn_scores(n, share, decimals=decimals)
    weights = np.random.default_rng(2).uniform(0.5, 2.0, n)
    expected = on_root(comm, lambda: dict(zip(NAMES, by_differences(scores, labels, weights), strict=True)))
    for sample, part, name in product((1, 512), (local_part, on_the_last_rank), NAMES):
        monkeypatch.setattr(tied_scores, "SAMPLE", sample)
        found = of(*(part(array, comm) for array in (scores, labels, weights)), comm)
        value, slopes = expected[name]
        assert found[name].value == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(found[name].rows, part(slopes, comm), atol=1e-8)
        assert comm.sum(np.array([found[name].rows @ part(weights, comm)]))[0] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.serial
def test_rows_of_weight_2_change_the_value_like_two_rows_and_the_interval_like_one():
    scores, labels = drawn_scores(300, 0.2, decimals=12, shift=1.0)
    ends = []
    for weights in (None, np.full(300, 1.0), np.full(300, 2.0)):
        estimates = [
            influence.influence_estimate(each, Scored(labels, labels, ALONE, weights))
            for each in of(scores, labels, weights).values()
        ]
        found = [confidence.rocarea_interval(estimate, 0.95) for estimate in estimates]
        assert all(each.low < each.value < each.high for each in found)
        ends.append([(each.value, each.low, each.high, each.standard_error) for each in found])
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-12)
    np.testing.assert_allclose(ends[2], ends[0], rtol=1e-12)


def test_missing_classes_and_scores_that_are_no_numbers(comm):
    for scores, labels in (
        (np.arange(4.0), np.ones(4, np.int8)),
        (np.arange(4.0), -np.ones(4, np.int8)),
        (np.array([0.0, 1.0, math.nan, 2.0]), np.array([1, -1, 1, -1], np.int8)),
    ):
        mine = local_part(scores, comm), local_part(labels, comm)
        for found in of(*mine, comm=comm).values():
            assert confidence.rocarea_interval(
                influence.influence_estimate(found, Scored(mine[1], mine[1], comm)), 0.95
            ).why


@pytest.mark.serial
def test_intervals_cover_and_equal_models_are_seldom_told_apart():
    """Of 300 samples of 40 positives among 800 rows. At 93 %, fewer than 267 would hold in 1 of 200 runs of chance."""
    labels = np.where(np.arange(800) < 40, 1, -1).astype(np.int8)
    u = special.ndtri((np.arange(50_000) + 0.5) / 50_000)
    whole = np.r_[u + 2.0, u], np.repeat(np.array([1, -1], np.int8), 50_000), np.repeat([40.0, 760.0], 50_000)
    truth = dict(zip(NAMES, (average_precision(*whole), bedroc(*whole)), strict=True))
    held, apart = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
    for seed in range(300):
        rng = np.random.default_rng(seed)
        common = rng.normal(size=800)
        both = [of(0.8 * common + 0.6 * rng.normal(size=800) + 2.0 * (labels > 0), labels) for _ in range(2)]
        for name in NAMES:
            estimate = influence.influence_estimate(both[0][name], Scored(labels, labels, ALONE))
            found = confidence.rocarea_interval(estimate, confidence.LEVEL)
            held[name] += found.low <= truth[name] <= found.high
            less = influence.influence_estimate(both[0][name] - both[1][name], Scored(labels, labels, ALONE))
            found = confidence.rocarea_difference_interval(less, confidence.LEVEL)
            apart[name] += found.low > 0 or found.high < 0
    assert min(held.values()) >= 267, held
    assert max(apart.values()) <= 30, apart
