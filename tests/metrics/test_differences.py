"""How much better a model is agrees with formulas, resampling by brute force, and any number of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from distsms.base.communicator import Communicator
from distsms.base.measures import Measure
from distsms.base.scored import Scored
from distsms.metrics.differences import JudgedRows, difference
from distsms.metrics.ranking import measure_value
from tests.support.problems import local_part

ALONE = Communicator()
MEASURES = ["rocarea", "prbep", "error-rate", "f1", "f0.5", "precision@40", "recall@80", "pauc@0.2"]


def judged(seed=0, n=600, better=1.0):
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(n) < 0.15, 1, -1).astype(np.int8)
    common = rng.normal(size=n)
    scores = tuple(common + rng.normal(size=n) + shift * (labels > 0) for shift in (1 + better, 1.0))
    return JudgedRows(tuple(Scored(each, labels, ALONE) for each in scores), np.arange(n), (1.5, 1.5))


@pytest.mark.parametrize("name", MEASURES)
def test_the_difference_is_that_of_the_values_and_the_same_on_any_ranks(comm, name):
    rows, measure = judged(), Measure.parse(name)
    parts = tuple(Scored(*(local_part(a, comm) for a in (each.scores, each.labels)), comm) for each in rows.scored)
    found = difference(measure, JudgedRows(parts, local_part(rows.rows, comm), rows.thresholds))
    first, other = (measure_value(measure, each, 1.5) for each in rows.scored)
    assert found.value == pytest.approx((other - first) if name == "error-rate" else (first - other))
    assert found.low < found.value < found.high
    alone = difference(measure, rows)
    assert (found.low, found.high) == pytest.approx((alone.low, alone.high), rel=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("name", ["error-rate", "f2", "recall@80", "precision@40", "pauc@0.2"])
def test_the_standard_error_is_that_of_resampled_rows(name):
    rows, measure = judged(seed=3), Measure.parse(name)
    rng, values = np.random.default_rng(0), []
    for _ in range(400):
        at = rng.integers(0, len(rows.rows), len(rows.rows))
        both = [measure_value(measure, each.of(at), 1.5) for each in rows.scored]
        values.append(both[0] - both[1])
    # K highest of other rows are other rows: the shares' error leaves that out, so it is a rough one.
    rough = 0.4 if measure.k else 0.12
    assert difference(measure, rows).standard_error == pytest.approx(np.std(values), rel=rough)


@pytest.mark.serial
@pytest.mark.parametrize("name", MEASURES)
def test_equal_models_are_not_distinguished_and_few_rows_give_no_verdict(name):
    rows = judged(better=0.0)
    found = difference(Measure.parse(name), rows._replace(scored=(rows.scored[0], rows.scored[0])))
    assert found.value == 0 and not found.low > 0 and not found.high < 0
    few = judged(n=30)
    assert difference(Measure.parse(name.replace("40", "4").replace("80", "8")), few).why


@pytest.mark.serial
@pytest.mark.parametrize("name", ["precision@17", "recall@17"])
def test_an_interval_at_k_is_never_of_no_width(name):
    """One model has all ten positives among its 17 highest scores, and the other gives all rows the same score."""
    labels = np.where(np.arange(1500) < 10, 1, -1).astype(np.int8)
    both = 1.0 * (labels > 0) + 1e-3 * np.arange(1500) / 1500, np.zeros(1500)
    judged = JudgedRows(tuple(Scored(scores, labels, ALONE) for scores in both), np.arange(1500), (0, 0))
    found = difference(Measure.parse(name), judged)
    assert found.low < found.value < found.high or found.why


@pytest.mark.serial
@pytest.mark.parametrize("name", ["precision@40", "recall@80"])
def test_at_k_rows_are_counted_whatever_weight_all_have(name):
    rows, measure = judged(), Measure.parse(name)
    heavy = rows._replace(scored=tuple(replace(each, weights=np.full(600, 2.0)) for each in rows.scored))
    found, expected = difference(measure, heavy), difference(measure, rows)
    assert (found.value, found.low, found.high) == (expected.value, expected.low, expected.high)
