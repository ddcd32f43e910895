"""The reported measures against brute force and scikit-learn, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms import measures
from distsms.comm import Communicator
from tests import oracles
from tests.test_losses import local_part


def of(scores, labels, comm=None):
    return measures.ranking(np.asarray(scores, float), np.asarray(labels, np.int8), comm or Communicator())


@pytest.mark.serial
@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([1, -1])), min_size=2, max_size=14))
def test_equal_brute_force_with_ties(rows):
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    labels[:2] = 1, -1
    found = of(scores, labels)
    positive, negative = scores[labels > 0].astype(float), scores[labels < 0].astype(float)
    assert found.rocarea == pytest.approx(oracles.rocarea(positive, negative), abs=1e-14)
    assert found.prbep == pytest.approx(oracles.prbep(positive, negative), abs=1e-14)


@pytest.mark.serial
@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([1, -1])), min_size=1, max_size=12), st.data())
def test_precision_and_recall_at_k_equal_brute_force(rows, data):
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    labels[0] = 1
    k = data.draw(st.integers(1, len(rows)))
    found = measures.at_k(scores.astype(float), labels, k, Communicator())
    assert found[:2] == pytest.approx(oracles.at_k(scores, labels, k), abs=1e-14)
    called = np.sum(scores >= found.threshold)
    assert called == np.sum(scores >= np.sort(scores)[-k])  # k of them, or all that tie there


def test_at_k_does_not_depend_on_ranks(comm):
    rng = np.random.default_rng(2)
    scores, labels = np.round(rng.normal(size=700), 1), np.where(rng.random(700) < 0.2, 1, -1).astype(np.int8)
    for k in (1, 70, 350, 700):
        alone = measures.at_k(scores, labels, k, Communicator())
        assert measures.at_k(local_part(scores, comm), local_part(labels, comm), k, comm) == alone
    assert alone.recall == 1 and alone.precision == np.mean(labels > 0)


@pytest.mark.parametrize("decimals", [0, 1, 12])
def test_rocarea_is_scikit_learns(comm, decimals):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(decimals)
    labels = np.where(rng.random(5000) < 0.03, 1, -1).astype(np.int8)
    scores = np.round(rng.normal(size=5000) + labels, decimals)
    found = of(local_part(scores, comm), local_part(labels, comm), comm)
    assert found.rocarea == pytest.approx(metrics.roc_auc_score(labels, scores), abs=1e-12)
    assert (found.n_pos, found.n_neg) == (np.sum(labels > 0), np.sum(labels < 0))


def test_at_the_prbep_threshold_precision_is_recall_is_prbep(comm):
    rng = np.random.default_rng(0)
    labels = np.where(rng.random(999) < 0.2, 1, -1).astype(np.int8)
    scores = rng.normal(size=999) + labels
    found = of(local_part(scores, comm), local_part(labels, comm), comm)
    table = measures.contingency(local_part(scores, comm), local_part(labels, comm), found.threshold, comm)
    assert table.precision == table.recall == table.f1 == pytest.approx(found.prbep, abs=1e-15)
    assert table.tp + table.fn == np.sum(labels > 0)
    assert table.tp + table.fp + table.fn + table.tn == 999
    assert table.error_rate == pytest.approx(np.mean((scores >= found.threshold) != (labels > 0)))


@pytest.mark.serial
def test_the_threshold_lies_between_scores():
    assert of([3, 2, 1], [1, -1, -1]).threshold == 2.5
    assert of([3, 3, 1], [1, -1, -1]).threshold == 3  # tied: all of them are called positive
    assert of([3, 2], [1, 1]).threshold == 2  # all rows are positive
    following = np.nextafter(1.0, 0)
    assert of([1.0, following], [1, -1]).threshold == 1.0


@pytest.mark.parametrize("sign", [1, -1])
def test_one_class_is_not_a_number(comm, sign):
    found = of(np.zeros(2), np.full(2, sign), comm)
    assert np.isnan(found.rocarea)
    assert found.n_pos + found.n_neg == 2 * comm.size
    table = measures.contingency(np.zeros(2), np.full(2, sign), 1.0, comm)
    assert np.isnan(table.precision)  # nothing is called positive
    assert np.isnan(table.recall) == (sign < 0)


@pytest.mark.serial
def test_pair_counts_beyond_64_bits():
    """The counting itself, with the numbers of a case too large to hold: 2^33 ordered places, 2^33 times."""

    class Huge(np.ndarray):
        pass

    places = np.full(4, 2**62, np.int64)  # their plain sum, 2^64, is 0 in 64 bits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures.np, "searchsorted", lambda *_: places // 2)
        value = measures.rocarea(np.zeros(4), np.zeros(4))
    assert value == 2**64 / 32
