"""Replicates of the measures of the head are resampled rows, on any number of ranks, and the intervals cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from distsms.base.communicator import Communicator
from distsms.base.measures import HEAD, Condition, HeadMeasure
from distsms.base.scored import Scored
from distsms.metrics import bootstrap, head_intervals, operating_points
from distsms.metrics.bootstrap import Draws
from distsms.metrics.confidence import MeanEstimate, prbep_difference_interval
from distsms.metrics.head_intervals import head_estimate, head_interval, head_replicates
from distsms.metrics.operating_points import head_value, operating_point
from distsms.metrics.tied_scores import tied_scores
from tests.metrics.test_bootstrap import replicates_by_hand
from tests.support.files import on_root
from tests.support.problems import drawn_scores, local_part

ALONE = Communicator()
SHOWN = [HeadMeasure.parse(name) for name in (*HEAD, "precision@recall=0.8", "tpr@fpr=0.3", "pauc@1")]
EVERY_ROW = HeadMeasure("all", "precision@share", 1.0)  # makes the head so deep that all rows are drawn


def replicates(measures, scores, labels, count, comm=ALONE, seed=7):
    *mine, rows = (local_part(array, comm) for array in (scores, labels, np.arange(len(scores))))
    scored = Scored(*mine, comm)
    return head_replicates(measures, tied_scores(scored), scored, Draws(rows, count, seed))


@pytest.mark.parametrize("n, share, decimals", [(200, 0.2, 1), (300, 0.9, 0), (40, 0.05, 9)])
@pytest.mark.parametrize("block", [2**20, 1])
def test_replicates_are_the_resampled_rows(comm, monkeypatch, n, share, decimals, block):
    """With a threshold at every score; then nothing is rounded."""
    monkeypatch.setattr(bootstrap, "BLOCK", block)
    monkeypatch.setattr(head_intervals, "COARSE", 1e-4)
    scores, labels = drawn_scores(n, share, decimals=decimals)
    found = replicates([*SHOWN, EVERY_ROW], scores, labels, 20, comm)

    def by_hand(s, y):
        tied = tied_scores(Scored(s, y, ALONE))
        return [head_value(measure, tied, ALONE) for measure in SHOWN]

    expected = on_root(comm, lambda: replicates_by_hand(scores, labels, 20, 7, by_hand))
    for measure, values in zip(SHOWN, expected.T, strict=True):
        np.testing.assert_allclose(found[measure.name], values, rtol=1e-12, err_msg=measure.name)


def test_with_few_thresholds_replicates_are_nearly_the_same(comm, monkeypatch):
    """Means and deviations agree within a tenth of a deviation with those of all thresholds."""
    scores, labels = drawn_scores(6000, 0.05, decimals=12, shift=2.0)
    few = replicates(SHOWN, scores, labels, 200, comm)
    monkeypatch.setattr(head_intervals, "COARSE", 1e-4)
    every = replicates([*SHOWN, EVERY_ROW], scores, labels, 200, comm)
    for measure in SHOWN:
        a, b = few[measure.name], every[measure.name]
        assert abs(a.mean() - b.mean()) < 0.1 * b.std() and abs(a.std() - b.std()) < 0.1 * b.std(), measure.name


@pytest.mark.serial
def test_among_all_rows_are_all_positive_ones():
    """Also where the last negatives are below all thresholds."""
    labels = np.where(np.arange(2620) >= 2520, 1, -1).astype(np.int8)
    measures = [HeadMeasure.parse(f"{name}@100%") for name in ("recall", "lift", "precision")]
    recall, lift, precision = replicates(measures, np.arange(2620.0), labels, 50).values()
    np.testing.assert_allclose([recall, lift], 1.0, rtol=1e-12)
    assert precision.mean() == pytest.approx(100 / 2620, rel=0.1)


def test_missing_classes_and_no_replicates(comm):
    scores, labels = drawn_scores(50, 0.5)
    assert all(np.isnan(found).all() for found in replicates(SHOWN, scores, np.ones(50, np.int8), 3, comm).values())
    assert all(len(found) == 0 for found in replicates(SHOWN, scores, labels, 0, comm).values())
    tied = tied_scores(Scored(scores, np.ones(50, np.int8), ALONE))
    estimate = head_estimate(SHOWN[0], head_value(SHOWN[0], tied, ALONE), 50, 0)
    assert "a class is missing" in head_interval(SHOWN[0], estimate, np.zeros(0), 0.95).why


@pytest.mark.serial
def test_a_recall_that_few_rows_reach_has_no_interval():
    scores, labels = np.arange(100.0), np.where(np.arange(100) % 10 == 9, 1, -1).astype(np.int8)
    measure, tied = HeadMeasure.parse("recall@precision=0.9"), tied_scores(Scored(scores, labels, ALONE))
    estimate = head_estimate(measure, head_value(measure, tied, ALONE), 10, 90)
    found = head_interval(measure, estimate, np.zeros(0), 0.95)
    assert found.why.startswith("fewer than 20 positive rows") and math.isnan(found.low)
    point = operating_point(Condition("precision", 0.9), tied, ALONE)
    rates = head_intervals.point_intervals(point, 0.95, Scored(scores, labels, ALONE))
    assert rates["recall"].why and rates["precision"].why and not rates["fpr"].why


@pytest.mark.serial
@pytest.mark.parametrize("name", [*HEAD, "precision@recall=0.8"])
def test_perfect_and_useless_rankings_have_intervals(name):
    measure, labels = HeadMeasure.parse(name), np.where(np.arange(300) % 7 == 0, 1, -1).astype(np.int8)
    for scores in (labels + 0.01 * np.sin(np.arange(300)), -labels.astype(float), np.zeros(300)):
        tied = tied_scores(Scored(scores, labels, ALONE))
        value, drawn = head_value(measure, tied, ALONE), replicates([measure], scores, labels, 50)[name]
        found = head_interval(measure, head_estimate(measure, value, 43, 257), drawn, 0.95)
        few_reach_it = name == "precision@recall=0.8" or (name.startswith("recall@precision") and value == 0)
        assert bool(found.why) == few_reach_it
        assert few_reach_it or (found.low <= value * (1 + 1e-12) and value <= found.high * (1 + 1e-12))


@pytest.mark.serial
def test_the_interval_of_a_lift_is_that_of_the_recall():
    lift, recall = HeadMeasure.parse("lift@2%"), HeadMeasure.parse("recall@2%")
    drawn = np.random.default_rng(0).uniform(0.1, 0.3, 100)
    of_recall = head_interval(recall, head_estimate(recall, 0.2, 50, 950), drawn, 0.95)
    of_lift = head_interval(lift, head_estimate(lift, 10.0, 50, 950), drawn / 0.02, 0.95)
    ends = (of_lift.value, of_lift.low, of_lift.high)
    assert ends == pytest.approx((10.0, of_recall.low / 0.02, of_recall.high / 0.02))


@pytest.mark.serial
def test_the_first_rows_hold_no_more_positive_rows_than_they_are():
    """If a share of 0.2 is positive, the first 1 % have at most five times as many; but the share is not known so well.

    If the first 1 % of all rows are positive, the truth is inside also where a sample has a few positive rows more.
    """
    lift, drawn = HeadMeasure.parse("lift@1%"), np.full(100, 4.9)
    fewest = stats.beta(200.5, 800.5).ppf(0.025)
    assert head_interval(lift, head_estimate(lift, 4.9, 200, 800), drawn, 0.95).high == pytest.approx(1 / fewest)
    recall = HeadMeasure.parse("recall@1%")
    found = head_interval(recall, head_estimate(recall, 10 / 26, 26, 974), np.full(100, 10 / 26), 0.95)
    assert found.high > 0.5  # 2 % of all rows are positive


@pytest.mark.serial
def test_rates_at_a_point_have_clopper_and_pearsons_limits():
    scores, labels = drawn_scores(500, 0.3, shift=2.0)
    point = operating_point(Condition("fpr", 0.1), tied_scores(Scored(scores, labels, ALONE)), ALONE)
    table = point.table
    found = head_intervals.point_intervals(point, 0.9, Scored(scores, labels, ALONE))
    pairs = {"precision": table.tp + table.fp, "recall": table.tp + table.fn}
    for name, whole in pairs.items():
        low = special.betaincinv(table.tp, whole - table.tp + 1, 0.05)
        high = special.betaincinv(table.tp + 1, whole - table.tp, 0.95)
        assert (found[name].low, found[name].high) == pytest.approx((low, high), abs=1e-12)
    assert found["fpr"].value == table.fp / (table.fp + table.tn)


def normal_truth(shift):
    """Return TPR at FPR 5 % and pAUC to 5 % of infinitely many normal scores."""
    fpr = (np.arange(20_000) + 0.5) / 20_000 * 0.05
    curve = special.ndtr(special.ndtri(fpr) + shift)
    return {"tpr@fpr=0.05": special.ndtr(special.ndtri(0.05) + shift), "pauc@0.05": curve.mean()}


@pytest.mark.serial
def test_intervals_cover_and_equal_models_are_seldom_told_apart():
    """Of 150 samples of 40 positives among 800 rows. At 93 %, fewer than 132 would hold in 1 of 150 runs of chance."""
    measures = [HeadMeasure.parse(name) for name in normal_truth(2.0)]
    truth, held, apart = normal_truth(2.0), dict.fromkeys(normal_truth(2.0), 0), dict.fromkeys(normal_truth(2.0), 0)
    labels = np.where(np.arange(800) < 40, 1, -1).astype(np.int8)
    for seed in range(150):
        rng = np.random.default_rng(seed)
        common = rng.normal(size=800)
        both = [0.8 * common + 0.6 * rng.normal(size=800) + 2.0 * (labels > 0) for _ in range(2)]
        tied = [tied_scores(Scored(scores, labels, ALONE)) for scores in both]
        drawn = [replicates(measures, scores, labels, 200, seed=seed) for scores in both]
        for measure in measures:
            values = [operating_points.head_value(measure, each, ALONE) for each in tied]
            estimate = head_estimate(measure, values[0], 40, 760)
            interval = head_interval(measure, estimate, drawn[0][measure.name], 0.95)
            held[measure.name] += interval.low <= truth[measure.name] <= interval.high
            less = MeanEstimate(values[0] - values[1], (math.nan,), (40, 760))
            found = prbep_difference_interval(less, drawn[0][measure.name] - drawn[1][measure.name], 0.95)
            apart[measure.name] += found.low > 0 or found.high < 0
    assert min(held.values()) >= 132, held
    assert max(apart.values()) <= 18, apart
