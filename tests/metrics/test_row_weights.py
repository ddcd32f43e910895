"""Measures of rows with weights: whole numbers are repeated rows, others are scikit-learn's, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base import hashing
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import HeadMeasure, Measure
from distsms.base.scored import Scored
from distsms.metrics import bootstrap, confidence, curves, differences, ranking, row_weights, summary
from distsms.metrics.head_intervals import head_estimate, head_interval, head_replicates, point_intervals
from distsms.metrics.operating_points import OperatingPoint, contingency, head_value
from distsms.metrics.ranking import average_precision
from distsms.metrics.tied_scores import tied_scores
from tests.metrics.test_operating_points import columns
from tests.support.problems import drawn_scores, local_part

ALONE = Communicator()
MEASURES = ("rocarea", "prbep", "error-rate", "f1", "average-precision", "accuracy", "precision", "recall")
weighted_rows = st.lists(
    st.tuples(st.integers(-3, 3), st.sampled_from([1, -1]), st.integers(1, 4)), min_size=2, max_size=14
)


def _repeated(weights, *arrays):
    return [np.repeat(array, weights.astype(int)) for array in arrays]


def _drawn(n=300, share=0.2, decimals=1, seed=0):
    """Return scores with ties, labels, and weights of which a few are far larger than the rest."""
    scores, labels = drawn_scores(n, share, decimals=decimals)
    return scores, labels, np.random.default_rng(seed).lognormal(0.0, 2.0, n)


@given(weighted_rows)
def test_whole_weights_are_repeated_rows(comm, rows):
    """In every measure, threshold, share among the highest scores, and point of a curve."""
    scores, labels, weights = columns(rows)
    own = Scored(*(local_part(array, comm) for array in (scores, labels)), comm, local_part(weights, comm))
    many = Scored(*_repeated(weights, scores, labels), ALONE)
    for name in MEASURES:
        found = summary.chooser_value(name, own, 0.5)
        assert found == pytest.approx(summary.chooser_value(name, many, 0.5), rel=1e-13), name
    n_pos = int(np.sum(labels > 0))
    if n_pos:
        found = ranking.decision_threshold(n_pos, own)
        assert found == ranking.decision_threshold(int(np.sum(many.labels > 0)), many)
        of_pos = row_weights.mass_of_classes(own)[0]
        np.testing.assert_allclose(
            np.repeat(
                np.concatenate(comm.allgather(ranking.top_k_shares(own, of_pos))),
                weights.astype(int),
            ),
            ranking.top_k_shares(many, int(of_pos)),
            atol=1e-13,
        )
    assert contingency(own, 0.5) == contingency(many, 0.5)
    drawn = curves.curve(own, [0.5])
    for threshold, tp, fp in zip(drawn.thresholds, drawn.tp, drawn.fp, strict=True):
        called = many.scores >= threshold
        assert (tp, fp) == tuple(np.sum(called & rows) for rows in many.classes)
    bins, whole = curves.histogram(own, drawn, 7), curves.curve(many, [0.5])
    found = curves.histogram(many, whole, 7)
    assert (bins.positive.sum(), bins.negative.sum()) == (found.positive.sum(), found.negative.sum())


@pytest.mark.parametrize("share, decimals", [(0.03, 9), (0.5, 0), (0.97, 1)])
def test_weights_of_any_size_are_scikit_learns(comm, monkeypatch, share, decimals):
    """Also from small samples and pieces, and up to a factor of all weights."""
    metrics = pytest.importorskip("sklearn.metrics")
    monkeypatch.setattr("distsms.metrics.tied_scores.SAMPLE", 3)
    monkeypatch.setattr(ranking, "PIECE", 7)
    scores, labels, weights = _drawn(1000, share, decimals)
    called = scores >= 0.5
    for factor in (1.0, 3e-7):
        own = Scored(*(local_part(array, comm) for array in (scores, labels)), comm, local_part(factor * weights, comm))
        assert ranking.rocarea(own) == pytest.approx(
            metrics.roc_auc_score(labels, scores, sample_weight=weights), rel=1e-12
        )
        assert average_precision(own) == pytest.approx(
            metrics.average_precision_score(labels, scores, sample_weight=weights), rel=1e-12
        )
        table = contingency(own, 0.5)
        wanted = metrics.confusion_matrix(labels, np.where(called, 1, -1), sample_weight=factor * weights)
        np.testing.assert_allclose([[table.tn, table.fp], [table.fn, table.tp]], wanted, rtol=1e-12)
        assert table.f(1.0) == pytest.approx(metrics.f1_score(labels, np.where(called, 1, -1), sample_weight=weights))


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e12])
@pytest.mark.parametrize("decimals, few", [(0, 0), (1, 0), (9, 0), (1, 2**14)])
def test_the_score_at_which_the_highest_rows_weigh_enough(comm, decimals, few, size, monkeypatch):
    monkeypatch.setattr(row_weights, "FEW", few)
    scores, _, weights = _drawn(200, decimals=decimals)
    weights *= size
    order = np.argsort(-scores)
    reached = np.cumsum(weights[order])
    mine = Scored(local_part(scores, comm), local_part(np.ones(200), comm), comm, local_part(weights, comm))
    for share in (1e-9, *np.random.default_rng(2).random(20), 1.0, 1.1):
        mass = share * weights.sum()
        at = min(int(np.searchsorted(reached, mass * (1 - 1e-12))), len(scores) - 1)
        assert row_weights.select_by_weight(mine, mass) == scores[order][at]
    assert np.isnan(row_weights.select_by_weight(Scored(np.array([1.0, np.nan]), np.ones(2), comm, np.ones(2)), 1.0))
    assert np.isnan(row_weights.select_by_weight(Scored(np.empty(0), np.empty(0), comm, np.empty(0)), 1.0))


@pytest.mark.parametrize("margin", [20, 0])
def test_replicates_draw_rows_whatever_they_weigh(comm, monkeypatch, margin):
    """Row i counts as often as it is drawn, times its weight; also with windows that are too narrow at first."""
    monkeypatch.setattr(bootstrap, "MARGIN", margin)
    monkeypatch.setattr(bootstrap, "SPREAD", margin / 2)
    scores, labels, weights = _drawn(150, 0.2)
    wanted = []
    for b in range(20):
        times = np.zeros((1, len(scores)), np.int64)
        bootstrap.tabulate(hashing.row_keys(np.arange(150), 7), np.arange(150), np.array([b]), times, None)
        drawn = times[0] > 0
        wanted.append(ranking.prbep(Scored(scores[drawn], labels[drawn], ALONE, (times[0] * weights)[drawn])))
    *own, rows = (local_part(array, comm) for array in (scores, labels, np.arange(150)))
    found = bootstrap.prbep_replicates(Scored(*own, comm, local_part(weights, comm)), bootstrap.Draws(rows, 20, 7))
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_equal_weights_change_no_interval_whatever_their_size(comm):
    """The row is the unit: rows of weight 1000 do not say more than rows of weight 1."""
    scores, labels, _ = _drawn(200, 0.3)
    own = [local_part(array, comm) for array in (scores, labels)]
    for name in ("rocarea", "prbep"):
        plain = confidence.measure_estimate(name, Scored(*own, comm))
        heavy = confidence.measure_estimate(name, Scored(*own, comm, np.full(len(own[0]), 1000.0)))
        assert heavy.value == pytest.approx(plain.value, rel=1e-12)
        assert heavy.error == pytest.approx(plain.error, rel=1e-9)
        assert heavy.counts == pytest.approx(plain.counts)
        assert confidence.limits(heavy, 0.95) == pytest.approx(confidence.limits(plain, 0.95), rel=1e-9)


def test_the_effective_number_of_rows_is_kishs(comm):
    weights, labels = np.array([1.0, 3.0, 0.5, 0.5, 7.0]), np.array([1, 1, -1, -1, -1], np.int8)
    own = local_part(labels, comm), local_part(weights, comm)
    assert row_weights.effective_sizes(Scored(own[0], own[0], comm, own[1])) == pytest.approx((16 / 10, 64 / 49.5))
    assert row_weights.effective_sizes(Scored(own[0], own[0], comm, 1e200 * own[1])) == pytest.approx(
        (16 / 10, 64 / 49.5)
    )
    unequal = np.where(own[0] > 0, 1e200, 1e-200) * own[1]  # each class has a unit of its own
    assert row_weights.effective_sizes(Scored(own[0], own[0], comm, unequal)) == pytest.approx((16 / 10, 64 / 49.5))


def test_measures_at_k_refuse_different_weights_and_allow_equal_ones(comm):
    scores, labels, weights = _drawn(50, 0.3)
    own, mine = [local_part(array, comm) for array in (scores, labels)], local_part(weights, comm)
    with pytest.raises(InputError, match="precision@5 counts rows"):
        ranking.measure_value("precision@5", Scored(*own, comm, mine), 0.0)
    equal = np.full(len(mine), 2.0)
    assert ranking.measure_value("recall@5", Scored(*own, comm, equal), 0.0) == ranking.measure_value(
        "recall@5", Scored(*own, comm), 0.0
    )


@pytest.mark.parametrize("measure", ["rocarea", "prbep", "error-rate", "f1"])
def test_differences_of_models_use_the_weights(comm, measure):
    """The difference is that of the measures; equal weights give nearly the interval without weights."""
    scores, labels, weights = _drawn(400, 0.3, 2)
    other = scores + np.random.default_rng(5).normal(0, 1.0, 400)
    measure = Measure.parse(measure)
    own = [local_part(array, comm) for array in (labels, np.arange(400), scores, other)]

    def difference(given):
        both = tuple(Scored(of_model, own[0], comm, given) for of_model in own[2:])
        judged = differences.JudgedRows(both, own[1], (0.5, 0.7))
        return differences.difference(measure, judged)

    found = difference(local_part(weights, comm))
    values = [
        ranking.measure_value(measure, Scored(s, own[0], comm, local_part(weights, comm)), at)
        for s, at in ((own[2], 0.5), (own[3], 0.7))
    ]
    sign = -1 if measure.family.name == "error-rate" else 1
    assert found.value == pytest.approx(sign * (values[0] - values[1]), abs=1e-12)
    assert found.low < found.value < found.high
    plain, equal = difference(None), difference(np.full(len(own[0]), 9.0))
    assert equal.value == pytest.approx(plain.value, abs=1e-12)
    assert equal.standard_error == pytest.approx(plain.standard_error, rel=0.15)
    assert found.standard_error > 1.3 * plain.standard_error  # a few rows have most of the weight


def _simulated(rng, n, rate=0.2):
    """Draw scores whose classes are further apart in heavy rows, and weights like amounts of money."""
    labels = np.where(rng.random(n) < rate, 1, -1).astype(np.int8)
    weights = rng.lognormal(0.0, 1.0, n)
    return (
        rng.normal(0.4 + 0.3 * np.log(weights), 1.0, n) * (labels > 0) + rng.normal(size=n) * (labels < 0),
        labels,
        (weights),
    )


@pytest.mark.serial
@pytest.mark.by_turns
@pytest.mark.parametrize("measure, runs", [("rocarea", 400), ("prbep", 150)])
def test_intervals_contain_the_truth_as_often_as_they_say(measure, runs):
    """And as if each unit of weight were a row, they would contain it far less often.

    Bounds: 95 % less what three standard deviations of the simulation and samples of this size explain; and 85 %.
    """
    truth = confidence.measure_estimate(measure, _with_weights(np.random.default_rng(1), 1_000_000)).value
    rng, covered, naive = np.random.default_rng(0), 0, 0
    for _ in range(runs):
        scores, labels, weights = _simulated(rng, 500)
        found = confidence.measure_estimate(measure, Scored(scores, labels, ALONE, weights))
        if measure == "prbep":
            drawn = bootstrap.prbep_replicates(
                Scored(scores, labels, ALONE, weights), bootstrap.Draws(np.arange(500), 200)
            )
            interval = confidence.prbep_interval(found, drawn, 0.95)
        else:
            interval = confidence.rocarea_interval(found, 0.95)
        covered += interval.low <= truth <= interval.high
        many = _repeated(np.ceil(3 * weights), scores, labels)
        area = confidence.measure_estimate(measure, Scored(*many, ALONE))
        low, high = confidence.limits(area, 0.95)
        naive += low <= truth <= high
    assert covered / runs > 0.95 - 3 * np.sqrt(0.95 * 0.05 / runs) - 0.01
    assert naive / runs < 0.85


def _with_weights(rng, n):
    scores, labels, weights = _simulated(rng, n)
    return Scored(scores, labels, ALONE, weights)


HEADS = ("tpr@fpr=0.3", "recall@precision=0.5", "precision@recall=0.5", "pauc@0.3", "lift@30%")


@given(weighted_rows)
def test_whole_weights_are_repeated_rows_in_the_head(comm, rows):
    scores, labels, weights = columns(rows)
    own = Scored(*(local_part(array, comm) for array in (scores, labels)), comm, local_part(weights, comm))
    many = Scored(*_repeated(weights, scores, labels), ALONE)
    for name in HEADS:
        found = summary.chooser_value(name, own, 0.5)
        assert found == pytest.approx(summary.chooser_value(name, many, 0.5), rel=1e-12), name


def test_equal_weights_change_no_replicate_of_the_head(comm):
    scores, labels, _ = _drawn(400, 0.2, 2)
    *own, rows = (local_part(array, comm) for array in (scores, labels, np.arange(400)))
    draws = bootstrap.Draws(rows, 30)
    measures = [HeadMeasure.parse(name) for name in HEADS]
    alike = Scored(*own, comm)
    plain = head_replicates(measures, tied_scores(alike), alike, draws)
    scaled = row_weights.effective(Scored(*own, comm, np.full(len(own[0]), 250.0)))
    np.testing.assert_allclose(scaled.weights, 1.0)
    equal = head_replicates(measures, tied_scores(scaled), scaled, draws)
    for name in plain:
        np.testing.assert_allclose(equal[name], plain[name], rtol=1e-9)


@pytest.mark.serial
def test_intervals_of_the_head_contain_the_truth():
    """Bounds: 95 % less three standard deviations of the simulation, and 3 % for samples of this size."""
    measures, runs = [HeadMeasure.parse(name) for name in ("pauc@0.2", "recall@precision=0.4")], 100
    scores, labels, weights = _simulated(np.random.default_rng(1), 300_000)
    truth = {
        each.name: head_value(each, tied_scores(Scored(scores, labels, ALONE, weights)), ALONE) for each in measures
    }
    rng, covered = np.random.default_rng(0), {name: [] for name in truth}
    for _ in range(runs):
        scores, labels, weights = _simulated(rng, 1000)
        scaled = row_weights.effective(Scored(scores, labels, ALONE, weights))
        tied, sizes = tied_scores(scaled), row_weights.effective_sizes(scaled)
        drawn = head_replicates(measures, tied, scaled, bootstrap.Draws(np.arange(1000), 200))
        for each in measures:
            estimate = head_estimate(each, head_value(each, tied, ALONE), *sizes)
            found = head_interval(each, estimate, drawn[each.name], 0.95)
            covered[each.name] += [] if found.why else [found.low <= truth[each.name] <= found.high]
    for name, of_runs in covered.items():
        n = len(of_runs)  # in some runs few rows reach the precision, and there is no interval
        assert n > runs / 2 and np.mean(of_runs) > 0.95 - 3 * np.sqrt(0.95 * 0.05 / n) - 0.03, (name, n)


def test_rates_at_a_threshold_are_weighted_means(comm):
    """Equal weights give nearly the binomial interval without weights; unequal ones a wider one."""
    scores, labels, weights = _drawn(600, 0.3, 2)
    own = [local_part(array, comm) for array in (scores, labels)]

    def rates(given):
        scored = Scored(*own, comm, given)
        return point_intervals(OperatingPoint(0.5, contingency(scored, 0.5)), 0.95, scored)

    plain, equal, unequal = rates(None), rates(np.full(len(own[0]), 3.0)), rates(local_part(weights, comm))
    for name in ("precision", "recall", "fpr"):
        assert equal[name].low == pytest.approx(plain[name].low, rel=1e-9)
        assert equal[name].high == pytest.approx(plain[name].high, rel=1e-9)
        assert unequal[name].high - unequal[name].low > 1.3 * (plain[name].high - plain[name].low)


def test_perfect_order_is_a_rocarea_of_one(comm):
    """Though sums of weights in two orders differ in their last digits."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        weights, labels = rng.uniform(1, 4, 7), np.array([1, 1, 1, -1, -1, -1, -1], np.int8)
        mine = [local_part(array, comm) for array in (-np.arange(7.0), labels)]
        assert 1 - 1e-15 <= ranking.rocarea(Scored(*mine, comm, local_part(weights, comm))) <= 1


@pytest.mark.serial
def test_rates_near_0_have_intervals_and_no_rate_is_above_1():
    """Squares of a rate of 1e-200 vanish; sums of weights may exceed the sum at the place of PRBEP by rounding."""
    scores, labels = np.array([3.0, 2.0, 1.0, 0.0]), np.array([1, 1, -1, -1], np.int8)
    weights = np.array([1e-200, 1.0, 1.0, 1.0])
    point = OperatingPoint(2.5, contingency(Scored(scores, labels, ALONE, weights), 2.5))
    for interval in point_intervals(point, 0.95, Scored(scores, labels, ALONE, weights)).values():
        assert interval.why or 0 <= interval.low <= interval.value <= interval.high <= 1
    assert 0 <= confidence.limits(confidence.MeanEstimate(1e-200, (0.0,), (1.0, 0.0)), 0.95)[0] <= 1e-200
    rng = np.random.default_rng(0)
    for n in range(2, 300):
        amounts = rng.lognormal(0, 3, n)
        assert ranking.prbep(Scored(np.arange(n) + 0.0, np.where(np.arange(n) >= n // 2, 1, -1), ALONE, amounts)) <= 1
