"""The reported measures agree with brute force and scikit-learn, on any number of ranks."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.metrics import ranking, tied_scores
from distsms.metrics.operating_points import contingency
from distsms.metrics.ranking import average_precision
from tests.support import oracles
from tests.support.problems import local_part


def of(scores, labels, comm=None):
    return ranking.ranking(Scored(np.asarray(scores, float), np.asarray(labels, np.int8), comm or Communicator()))


@pytest.mark.serial
@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([1, -1])), min_size=2, max_size=14))
def test_equal_brute_force_with_ties(rows):
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    labels[:2] = 1, -1
    found = of(scores, labels)
    positive, negative = scores[labels > 0].astype(float), scores[labels < 0].astype(float)
    assert found.rocarea == pytest.approx(oracles.rocarea(positive, negative), abs=1e-14)
    assert found.prbep == pytest.approx(oracles.prbep(positive, negative), abs=1e-14)


def test_at_k_does_not_depend_on_ranks(comm):
    rng = np.random.default_rng(2)
    scores, labels = np.round(rng.normal(size=700), 1), np.where(rng.random(700) < 0.2, 1, -1).astype(np.int8)
    for k in (1, 70, 350, 700):
        alone = ranking.top_k(Scored(scores, labels, Communicator()), k)
        assert ranking.top_k(Scored(local_part(scores, comm), local_part(labels, comm), comm), k) == alone
    assert alone.recall == 1 and alone.precision == np.mean(labels > 0)


@pytest.mark.parametrize("decimals", [0, 1, 12])
def test_rocarea_is_scikit_learns(comm, decimals):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(decimals)
    labels = np.where(rng.random(5000) < 0.03, 1, -1).astype(np.int8)
    scores = np.round(rng.normal(size=5000) + labels, decimals)
    found = of(local_part(scores, comm), local_part(labels, comm), comm)
    assert found.rocarea == pytest.approx(metrics.roc_auc_score(labels, scores), abs=1e-12)


def test_at_the_prbep_threshold_precision_is_recall_is_prbep(comm):
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(999) < 0.2, 1, -1).astype(np.int8)
    scores = rng.normal(size=999) + labels
    found = of(local_part(scores, comm), local_part(labels, comm), comm)
    point = ranking.top_k(Scored(local_part(scores, comm), local_part(labels, comm), comm), int(np.sum(labels > 0)))
    assert point.precision == point.recall == found.prbep
    table = contingency(Scored(local_part(scores, comm), local_part(labels, comm), comm), point.threshold)
    assert table.precision == table.recall == table.f(1.0) == pytest.approx(found.prbep, abs=1e-15)
    assert table.tp + table.fn == np.sum(labels > 0)
    assert table.tp + table.fp + table.fn + table.tn == 999
    assert table.error_rate == pytest.approx(np.mean((scores >= point.threshold) != (labels > 0)))


@pytest.mark.parametrize("sample", [1, 512])
@pytest.mark.parametrize("decimals", [0, 1, 12])
@pytest.mark.parametrize("share", [0.003, 0.5, 0.97])
def test_average_precision_is_scikit_learns(comm, monkeypatch, share, decimals, sample):
    """With few and many positives, no and many ties, and ranges chosen from small and large samples."""
    metrics = pytest.importorskip("sklearn.metrics")
    monkeypatch.setattr(tied_scores, "SAMPLE", sample)
    rng = np.random.default_rng(decimals)
    labels = np.where(rng.random(3000) < share, 1, -1).astype(np.int8)
    for scores in (np.round(rng.normal(size=3000) + labels, decimals), np.zeros(3000), 1e8 + labels * 1e-8):
        found = average_precision(Scored(local_part(scores, comm), local_part(labels, comm), comm))
        assert found == pytest.approx(metrics.average_precision_score(labels, scores), abs=1e-12)


@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([1, -1])), min_size=1, max_size=14))
def test_average_precision_equals_its_definition(comm, rows):
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    found = average_precision(Scored(local_part(scores.astype(float), comm), local_part(labels, comm), comm))
    positive = scores[labels > 0]
    if not len(positive):
        assert np.isnan(found)
        return
    exact = sum(Fraction(int(np.sum(positive >= s)), int(np.sum(scores >= s))) for s in positive) / len(positive)
    assert found == pytest.approx(float(exact), abs=1e-15)


def test_average_precision_of_what_is_no_number(comm):
    assert np.isnan(average_precision(Scored(np.array([1.0, np.nan]), np.array([1, -1]), comm)))


@pytest.mark.serial
@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([1, -1])), min_size=2, max_size=14), st.integers(1, 14))
def test_at_k_equals_brute_force_with_ties(rows, k):
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    labels[:2] = 1, -1
    found = ranking.top_k(Scored(scores.astype(float), labels, Communicator()), k)
    if k > len(rows):
        assert np.isnan(found).all()
        return
    expected = oracles.true_positives_at(scores[labels > 0].astype(float), scores[labels < 0].astype(float), k)
    assert found.precision == pytest.approx(expected / k, abs=1e-14)
    assert found.recall == pytest.approx(expected / np.sum(labels > 0), abs=1e-14)
    called = np.sum(scores >= found.threshold)
    assert called >= k
    if len(set(scores)) == len(scores):
        assert called == k


@pytest.mark.parametrize(
    "measure, exact",
    [
        ("f0.5", "f"),
        ("f1", "f"),
        ("f3", "f"),
        ("error-rate", "error"),
        ("precision@60", "@"),
        ("recall@60", "@"),
        ("rocarea", "order"),
        ("prbep", "order"),
    ],
)
def test_a_measure_by_its_name(comm, measure, exact):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(3)
    labels = np.where(rng.random(400) < 0.2, 1, -1).astype(np.int8)
    scores = rng.normal(size=400) + labels
    found = ranking.measure_value(measure, Scored(local_part(scores, comm), local_part(labels, comm), comm), 0.3)
    if exact == "f":
        expected = metrics.fbeta_score(labels, np.where(scores >= 0.3, 1, -1), beta=float(measure[1:]))
    elif exact == "error":
        expected = 1 - metrics.accuracy_score(labels, np.where(scores >= 0.3, 1, -1))
    elif exact == "@":
        head = labels[np.argsort(-scores)[:60]] > 0
        expected = head.sum() / (60 if measure.startswith("precision") else np.sum(labels > 0))
    else:
        expected = getattr(of(scores, labels), measure)
    assert found == pytest.approx(expected, abs=1e-14)


@pytest.mark.serial
def test_the_threshold_lies_between_scores():
    def at(k, *scores):
        return ranking.top_k(
            Scored(np.array(scores, float), np.ones(len(scores), np.int8), Communicator()), k
        ).threshold

    assert at(1, 3, 2, 1) == 2.5
    assert at(1, 3, 3, 1) == 3  # tied: all of them are called positive
    assert at(2, 3, 2) == 2  # all rows are called positive
    assert at(1, 1.0, np.nextafter(1.0, 0)) == 1.0


def test_scores_that_are_not_numbers_have_no_head(comm):
    assert np.isnan(ranking.top_k(Scored(np.full(2, np.nan), np.array([1, -1]), comm), 2)).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_one_class_is_not_a_number(comm, sign):
    found = of(np.zeros(2), np.full(2, sign), comm)
    assert np.isnan(found.rocarea)
    assert np.isnan(ranking.top_k(Scored(np.zeros(2), np.full(2, sign), comm), 1).recall) == (sign < 0)
    table = contingency(Scored(np.zeros(2), np.full(2, sign), comm), 1.0)
    assert np.isnan(table.precision)  # nothing is called positive
    assert np.isnan(table.recall) == (sign < 0)


@pytest.mark.parametrize("positive", [0.03, 0.5, 0.9])
@pytest.mark.parametrize("piece", [1, 7, 2**24])
def test_rocarea_from_pieces_of_the_smaller_class(comm, monkeypatch, positive, piece):
    """For any number of rows at a time, of either class, most of them on the last rank, the value is the same."""
    rng = np.random.default_rng(int(100 * positive))
    labels = np.where(rng.random(200) < positive, 1, -1).astype(np.int8)
    scores = np.round(rng.normal(size=200) + labels, 1)
    expected = oracles.rocarea(scores[labels > 0], scores[labels < 0])
    monkeypatch.setattr(ranking, "PIECE", piece)
    ends = np.concatenate([np.arange(comm.size), [200]])
    mine = slice(ends[comm.rank], ends[comm.rank + 1])
    assert ranking.rocarea(Scored(scores[mine], labels[mine], comm)) == pytest.approx(expected, abs=1e-15)


@pytest.mark.serial
def test_pair_counts_beyond_64_bits():
    """Only the counting, with the numbers of a case that is too large to hold: 4 times 2^62 ordered places."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "searchsorted", lambda low, high, side: np.full(len(high), 2**61))  # 0 if summed in 64 bits
        patch.setattr(ranking, "SORTED", 1)
        assert ranking._twice_ordered(np.zeros(4), np.zeros((4, 1))) == 2**64
        assert ranking.rocarea(Scored(np.zeros(8), np.repeat([1, -1], 4), Communicator())) == 2**64 / 32
