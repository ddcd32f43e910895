"""Curves have exact counts at every point and no gaps; histograms count every row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.metrics import curves, ranking
from tests.support.problems import drawn_scores, local_part

ALONE = Communicator()


def of(scores, labels, comm=ALONE, also=()):
    return curves.curve(Scored(local_part(scores, comm), local_part(labels, comm), comm), also)


def check_counts(curve, scores, labels):
    """Each point has the counts of the definition, from no rows to all."""
    positive, negative = scores[labels > 0], scores[labels < 0]
    for threshold, tp, fp in zip(curve.thresholds, curve.tp, curve.fp, strict=True):
        assert (tp, fp) == (np.sum(positive >= threshold), np.sum(negative >= threshold))
    assert curve.thresholds[0] == np.inf and (curve.tp[-1], curve.fp[-1]) == (len(positive), len(negative))
    assert np.all(np.diff(curve.thresholds) < 0)


@pytest.mark.serial
@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([1, -1])), min_size=2, max_size=14))
def test_of_few_rows_every_point_is_there(rows):
    scores, labels = (np.array(column, float) for column in zip(*rows, strict=True))
    labels[:2] = 1, -1
    curve = of(scores, labels.astype(np.int8))
    check_counts(curve, scores, labels)
    assert set(curve.thresholds[1:]) == set(scores)
    below = np.sum(np.diff(curve.fpr) * (curve.tpr[1:] + curve.tpr[:-1]) / 2)
    assert below == pytest.approx(ranking.rocarea(Scored(scores, labels, ALONE)))


@pytest.mark.parametrize("share, decimals", [(0.002, 9), (0.3, 9), (0.3, 1), (0.97, 3)])
@pytest.mark.parametrize("size", [1.0, 1e8, 1e-8])
def test_of_many_rows_points_are_exact_and_near_each_other(comm, monkeypatch, share, decimals, size):
    """Neighbouring points are as near to each other as the numbers of rows and ranks imply.

    With P ranks, less than s = max(1, n_c // (P STEPS)) rows of a class lie between neighbouring thresholds that one
    rank proposes, and so less than P s + 1 <= n_c / STEPS + P + 1 including the threshold itself. Points that are left
    out lie within n_c / STEPS.
    """
    monkeypatch.setattr(curves, "STEPS", 25)
    scores, labels = drawn_scores(20_000, share, decimals=decimals)
    scores = size * scores
    n_pos = int(np.sum(labels > 0))
    head = ranking.top_k(Scored(scores, labels, ALONE), n_pos)
    curve = of(scores, labels, comm, (head.threshold,))
    check_counts(curve, scores, labels)
    assert head.threshold in curve.thresholds
    assert len(curve.thresholds) < 32 + 3 + 2 * 2 * 25
    if decimals == 9:
        at = curve.thresholds.tolist().index(head.threshold)
        assert curve.tp[at] / (curve.tp[at] + curve.fp[at]) == curve.tpr[at] == head.precision
        for counts in (curve.tp, curve.fp):
            assert np.diff(counts).max() <= 2 * counts[-1] / 25 + comm.size + 1


@pytest.mark.serial
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=36, max_size=120))
def test_points_are_left_out_where_they_are_near_the_previous_one(steps):
    """Of the points after the 32nd: those that nobody wants, less than 1/STEPS from the last one kept in both rates."""
    rises, wanted = np.array([step[:2] for step in steps]), np.array([step[2] and step[0] > 7 for step in steps])
    rates = np.cumsum(rises, axis=0) / (10 * curves.STEPS)
    kept, last = curves._spread(*rates.T, wanted), np.zeros(2)
    for i, point in enumerate(rates):
        assert kept[i] == (i < 32 or wanted[i] or i == len(rates) - 1 or (point - last).max() >= 1 / curves.STEPS)
        last = point if kept[i] else last


@pytest.mark.parametrize("labels", [[], [1], [-1, -1], [1, -1]])
def test_next_to_nothing(comm, labels):
    labels = np.array(labels, np.int8)
    scores = np.full(len(labels), 5.0)
    curve = of(scores, labels, comm)
    check_counts(curve, scores, labels)
    found = curves.histogram(Scored(local_part(scores, comm), local_part(labels, comm), comm), curve, 5)
    assert found.positive.sum() == np.sum(labels > 0) and found.negative.sum() == np.sum(labels < 0)
    assert np.all(np.diff(found.edges) > 0)
    assert not len(labels) or found.edges[0] < 5 < found.edges[-1]


@pytest.mark.parametrize("size", [1.0, 1e8, 1e-8])
def test_histograms_count_every_row(comm, size):
    scores, labels = drawn_scores(3000, 0.2, decimals=9)
    scores[5:7] = 1e6, -1e6  # outliers do not squeeze the other rows into a single bar
    scores = size * scores
    curve = of(scores, labels, comm)
    found = curves.histogram(Scored(local_part(scores, comm), local_part(labels, comm), comm), curve, 20)
    assert found.edges[-1] - found.edges[0] < 12 * size
    for sign, counts in ((1, found.positive), (-1, found.negative)):
        inside = np.clip(scores[labels == sign], found.edges[0], found.edges[-1])
        np.testing.assert_array_equal(counts, np.histogram(inside, found.edges)[0])


@pytest.mark.serial
@pytest.mark.parametrize("ties", [1, 3, 40, 120])
def test_precision_and_recall_of_any_number_of_highest_scores_lie_on_the_curve(ties):
    """Also of those that cut through ties, where they are expected values; and there is a curve if all rows tie."""
    alone, rng = Communicator(), np.random.default_rng(ties)
    scores = np.repeat(np.arange(120 // ties), ties).astype(float)
    labels = np.where(rng.random(len(scores)) < 0.2 + 0.5 * scores / scores.max(initial=1), 1, -1).astype(np.int8)
    recall, precision = curves.curve(Scored(scores, labels, alone)).precision_recall()
    assert len(recall) >= 50 and (np.diff(recall) >= 0).all()
    for k in range(1, len(scores), 7):
        head = ranking.top_k(Scored(scores, labels, alone), k)
        nearest = np.hypot(recall - head.recall, precision - head.precision).min()
        assert nearest < 0.02 if ties > 1 else nearest < 1e-12


@pytest.mark.parametrize("swapped", [False, True])
def test_histograms_end_where_the_last_rows_of_a_class_begin(comm, swapped):
    """The bins reach over the thresholds at which the curve has between TAIL and 1 - TAIL of either class."""
    counts = np.array([0, 1, 500, 997, 999, 1000]), np.array([0, 1, 600, 900, 999, 1000])
    drawn = curves.Curve(np.array([np.inf, 50.0, 1.0, 0.0, -50.0, -100.0]), *(counts[::-1] if swapped else counts))
    found = curves.histogram(Scored(np.empty(0), np.empty(0, np.int8), comm), drawn, 4)
    np.testing.assert_array_equal(found.edges, [0.0, 0.25, 0.5, 0.75, 1.0])
