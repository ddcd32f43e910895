"""DeLong's variance and the bootstrap of PRBEP agree with brute force and other formulas, and keep their promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.metrics import bootstrap, confidence, ranking
from tests.support import oracles
from tests.support.problems import drawn_scores, local_part

ALONE = Communicator()
rows_with_ties = st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([1, -1])), min_size=4, max_size=14)


def area(scores, labels, level=0.95, comm=ALONE):
    return confidence.rocarea_interval(
        confidence.rocarea_estimate(ranking.placements(Scored(scores, labels, comm)), Scored(labels, labels, comm)),
        level,
    )


def error_by_pairs(labels, *scores):
    """Compute the standard error of ROCArea, or of a difference of two, by definition, from the matrix of all pairs."""
    order = [oracles.orders(values[labels > 0], values[labels < 0]) for values in scores]
    psi = order[0] - order[1] if len(order) > 1 else order[0]
    n_pos, n_neg = psi.shape
    return math.sqrt(np.var(psi.mean(1), ddof=1) / n_pos + np.var(psi.mean(0), ddof=1) / n_neg)


def error_by_midranks(labels, scores):
    """Compute the same from midranks (Sun & Xu 2014)."""
    own = {sign: stats.rankdata(scores[labels == sign]) for sign in (1, -1)}
    both = stats.rankdata(scores)
    n = {sign: len(own[sign]) for sign in own}
    parts = [np.var((both[labels == sign] - own[sign]) / n[-sign], ddof=1) / n[sign] for sign in own]
    return math.sqrt(sum(parts))


@pytest.mark.serial
@given(rows_with_ties)
def test_delong_equals_all_pairs(rows):
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    labels[:4] = 1, 1, -1, -1
    found = confidence.rocarea_estimate(
        ranking.placements(Scored(scores.astype(float), labels, ALONE)), Scored(labels, labels, ALONE)
    )
    assert found.value == ranking.rocarea(Scored(scores.astype(float), labels, ALONE))
    assert found.error == pytest.approx(error_by_pairs(labels, scores), abs=1e-12)


@pytest.mark.parametrize("share", [0.03, 0.5, 0.9])
@pytest.mark.parametrize("piece, size", [(1, 1e8), (7, 1e-8), (2**24, 1.0)])
def test_delong_on_any_ranks(comm, monkeypatch, share, piece, size):
    """With pieces of either class as the smaller one, the result equals the formula by ranks, and that of a
    permutation.
    """
    monkeypatch.setattr(ranking, "PIECE", piece)
    scores, labels = drawn_scores(150, share)
    order, alone = np.random.default_rng(1).permutation(len(scores)), area(scores, labels)
    for rows in (np.arange(len(scores)), order):
        mine, of_mine = local_part(size * scores[rows], comm), local_part(labels[rows], comm)
        found = confidence.rocarea_interval(
            confidence.rocarea_estimate(
                ranking.placements(Scored(mine, of_mine, comm)), Scored(of_mine, of_mine, comm)
            ),
            0.95,
        )
        assert found.value == ranking.rocarea(Scored(size * scores, labels, ALONE))
        assert found.standard_error == pytest.approx(error_by_midranks(labels, scores), rel=1e-12)
        assert found == alone
        assert 0 < found.low < found.value < found.high < 1


def test_the_difference_of_two_models(comm):
    (scores, labels), noise = drawn_scores(300, 0.2), np.random.default_rng(1).normal(size=300)
    other = scores + noise.round(1)
    mine = local_part(labels, comm)
    placed = [ranking.placements(Scored(local_part(values, comm), mine, comm)) for values in (scores, other)]

    def difference(twice, other):
        return confidence.rocarea_difference_interval(
            confidence.rocarea_estimate(twice - other, Scored(mine, mine, comm)), 0.9
        )

    found = difference(*placed)
    assert found.standard_error == pytest.approx(error_by_pairs(labels, scores, other), rel=1e-12)
    t = stats.t(min(np.sum(labels > 0), np.sum(labels < 0)) - 1)
    assert found.p == pytest.approx(2 * t.sf(abs(found.value / found.standard_error)))
    assert found.high - found.low == pytest.approx(2 * t.ppf(0.95) * found.standard_error)
    assert (found.low > 0 or found.high < 0) == (found.p < 0.1)
    back = difference(*placed[::-1])
    assert (back.value, back.low, back.p) == (-found.value, -found.high, found.p)
    same = difference(placed[0], placed[0])
    assert same.p == 1 and confidence.verdict(same, "a", "b") == "not distinguishable"


@pytest.mark.parametrize("labels", [[1, -1, -1], [1, 1, -1]])
def test_one_row_of_a_class_has_limits_and_no_standard_error(comm, labels):
    labels = local_part(np.array(labels, np.int8), comm)
    scores = local_part(np.array([1.0, 3.0, 2.0]), comm)
    found = area(scores, labels, comm=comm)
    assert math.isnan(found.standard_error) and not found.why and found.value in (0.0, 0.5)
    assert 0 <= found.low <= found.value < found.high <= 1 and found.high - found.low > 0.5


@pytest.mark.serial
@pytest.mark.parametrize("scores, value", [([2, 2, 1, 1], 1.0), ([1, 1, 2, 2], 0.0), ([1, 1, 1, 1], 0.5)])
def test_where_nothing_varies_limits_allow_for_rows_not_seen(scores, value):
    labels = np.array([1, 1, -1, -1], np.int8)
    found = area(np.array(scores, float), labels)
    assert found.value == value and found.high - found.low > 0.5
    assert (found.low, found.high)[int(value)] == value or value == 0.5
    one_class = area(np.zeros(2), np.ones(2, np.int8))
    assert one_class.why == "a class is missing" and math.isnan(one_class.value) and math.isnan(one_class.low)


@pytest.mark.serial
@given(st.integers(1, 60), st.data(), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_limits_of_zeros_and_ones_are_jeffreys_or_clopper_and_pearsons(n, data, level):
    x = data.draw(st.integers(0, n))
    spread = confidence.MeanEstimate(x / n, (x * (n - x) / n,), (n, 5))
    exact = stats.binomtest(x, n).proportion_ci(level, "exact")
    assert confidence.limits(spread, level, worst=1.0) == pytest.approx((exact.low, exact.high), abs=1e-9)
    jeffreys = stats.beta(x + 0.5, n - x + 0.5).interval(level)
    ends = jeffreys[0] if x else 0.0, jeffreys[1] if x < n else 1.0
    wider = min(ends[0], x / n), max(ends[1], x / n)  # at low levels Jeffreys' interval may leave the share out
    assert confidence.limits(spread, level) == pytest.approx(wider, abs=1e-9)


@pytest.mark.serial
def test_the_one_more_row_is_of_the_rarer_class():
    rare, other = np.array([1.0, 0.0, 0.5, 0.9]), np.array([0.6, 0.2, 0.8, 1.0, 0.4])
    squares = tuple(float(np.sum((rows - 0.6) ** 2)) for rows in (rare, other))
    found = confidence.limits(confidence.MeanEstimate(0.6, squares, (4, 5)), 0.9, worst=1.0)
    for end, limit in zip((0.0, 1.0), found, strict=True):
        rows = np.append(rare, end)
        mean, variance = rows.mean(), rows.var() / 6 + other.var() / 6
        size = mean * (1 - mean) / variance - 1
        assert limit == pytest.approx(stats.beta(mean * size, (1 - mean) * size).ppf(0.05 + 0.9 * end))


@pytest.mark.serial
def test_the_standard_errors_limits_where_rows_are_many():
    """With many rows, one more row changes nothing: the limits are the normal ones of DeLong's standard error."""
    scores, labels = drawn_scores(40_000, 0.3, decimals=9)
    found = area(scores, labels)
    half = stats.norm.ppf(0.975) * found.standard_error
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=0.03 * half)


@given(st.lists(rows_with_ties, min_size=2, max_size=4))
@pytest.mark.serial
def test_folds_are_one_sample_about_its_mean_with_more_variance(folds):
    """Compare with the rows written out: placements and shares of all folds, means and squares by definition."""
    areas, prbeps, placed, shares, signs = [], [], [], [], []
    for rows in folds:
        scores, labels = (np.array(column, float) for column in zip(*rows, strict=True))
        labels[:4] = 1, 1, -1, -1
        order = oracles.orders(scores[labels > 0], scores[labels < 0])
        twice = ranking.placements(Scored(scores, labels.astype(np.int8), ALONE))
        share = ranking.top_k_shares(Scored(scores, labels, ALONE), int(np.sum(labels > 0)))
        assert share.sum() == pytest.approx(np.sum(labels > 0))
        areas.append(confidence.rocarea_estimate(twice, Scored(labels, labels, ALONE)))
        prbeps.append(confidence.prbep_estimate(share, Scored(labels, labels, ALONE)))
        placed.append((order.mean(1), order.mean(0)))
        shares.append(share[labels > 0])
        signs.append(len(labels))
    k, (pos, neg), share = len(folds), map(np.concatenate, zip(*placed, strict=True)), np.concatenate(shares)
    found, of_prbep = confidence.pool_folds(areas), confidence.pool_folds(prbeps)
    assert found.value == pytest.approx(np.mean([pair[0].mean() for pair in placed]))
    more = 1 + k / (k - 1)
    variance = np.var(pos, ddof=1) / len(pos) + np.var(neg, ddof=1) / len(neg)
    assert found.error == pytest.approx(math.sqrt(more * variance), abs=1e-9)
    assert of_prbep.error == pytest.approx(math.sqrt(more * np.var(share, ddof=1) / len(share)), abs=1e-9)
    assert found.counts == of_prbep.counts == (len(pos), len(neg))
    assert confidence.rocarea_interval(found, 0.95).of == confidence.METHOD != areas[0].of
    alone = found._replace(folds=0)
    (low, high), (inner, outer) = confidence.limits(found, 0.9), confidence.limits(alone, 0.9)
    assert low <= inner <= outer <= high


@pytest.mark.parametrize("decimals", [0, 9])
def test_prbep_is_a_mean_over_positives_on_any_ranks(comm, decimals):
    scores, labels = drawn_scores(80, 0.3, decimals=decimals)
    k = int(np.sum(labels > 0))
    mine, of_mine = local_part(scores, comm), local_part(labels, comm)
    share = ranking.top_k_shares(Scored(mine, of_mine, comm), k)
    found = confidence.prbep_estimate(share, Scored(of_mine, of_mine, comm))
    assert found.value == pytest.approx(ranking.top_k(Scored(scores, labels, ALONE), k).recall, rel=1e-14)
    whole = ranking.top_k_shares(Scored(scores, labels, ALONE), k)
    np.testing.assert_array_equal(share, local_part(whole, comm))
    assert found.error == pytest.approx(np.std(whole[labels > 0], ddof=1) / math.sqrt(k))
    assert found.counts == (k, 80 - k)


@pytest.mark.serial
def test_sums_beyond_64_bits():
    values = np.full(8, 2**62, np.int64)
    assert ranking.exact_sum(values, ALONE) == 2**65
    assert ranking.exact_sum(-values, ALONE) == -(2**65)
    large = np.array([2**45 + 12345, -(2**45) - 54321, 7], np.int64)
    assert confidence._squares(large, ALONE) == sum(int(value) ** 2 for value in large)


def test_intervals_at_k_are_means_over_k_rows_and_over_positives(comm):
    scores, labels = drawn_scores(300, 0.2, decimals=9)
    mine = local_part(scores, comm), local_part(labels, comm)
    share = ranking.top_k_shares(Scored(mine[0], mine[1], comm), 40)
    precision, recall = confidence.top_k_estimates(share, 40, Scored(mine[1], mine[1], comm))
    head = labels[np.argsort(-scores)[:40]] > 0
    assert precision.value == pytest.approx(np.mean(head))
    assert precision.error == pytest.approx(np.std(head, ddof=1) / math.sqrt(40))
    inside = scores[labels > 0] >= np.sort(scores)[-40]
    assert recall.value == pytest.approx(np.mean(inside))
    assert recall.error == pytest.approx(np.std(inside, ddof=1) / math.sqrt(len(inside)))


@pytest.mark.serial
def test_a_precision_of_1_at_k_is_not_above_1_by_rounding():
    """7 / 25 * 25 / 7 is above 1."""
    precision, _ = confidence.top_k_estimates(
        (np.arange(50) < 7) * 1.0,
        7,
        Scored(np.where(np.arange(50) < 25, 1, -1), np.where(np.arange(50) < 25, 1, -1), ALONE),
    )
    assert precision.value == 1 and precision.error == 0


def test_one_positive_cannot_be_resampled(comm):
    scores, labels = np.arange(5.0), np.array([1, -1, -1, -1, -1], np.int8)
    draws = bootstrap.Draws(local_part(np.arange(5), comm), 50)
    found = bootstrap.prbep_replicates(Scored(*(local_part(array, comm) for array in (scores, labels)), comm), draws)
    assert np.isnan(found).any() and not np.isnan(found).all()  # the row is not drawn in 37 % of them
    mine = local_part(labels, comm)
    spread = confidence.prbep_estimate(
        ranking.top_k_shares(Scored(local_part(scores, comm), mine, comm), 1), Scored(mine, mine, comm)
    )
    sure = confidence.prbep_interval(spread, found, 0.95)
    assert sure.low == 0 and sure.high == pytest.approx(stats.beta(0.5, 1.5).ppf(0.975))  # no success in one trial
    none = bootstrap.prbep_replicates(
        Scored(np.arange(2.0), -np.ones(2, np.int8), comm), bootstrap.Draws(np.arange(2), 3)
    )
    assert np.isnan(none).all()


def of_prbep(scores, labels, level=0.95, replicates=400, seed=0, other=None):
    """Compute the interval of a model's PRBEP, or of its difference from another model's, as the program does."""
    each = []
    for values in [scores] if other is None else [scores, other]:
        share = ranking.top_k_shares(Scored(values, labels, ALONE), int(np.sum(labels > 0)))
        draws = bootstrap.Draws(np.arange(len(labels)), replicates, seed)
        each.append((share, bootstrap.prbep_replicates(Scored(values, labels, ALONE), draws)))
    if other is None:
        return confidence.prbep_interval(
            confidence.prbep_estimate(each[0][0], Scored(labels, labels, ALONE)), each[0][1], level
        )
    share, draws = (a - b for a, b in zip(*each, strict=True))
    return confidence.prbep_difference_interval(
        confidence.prbep_estimate(share, Scored(labels, labels, ALONE)), draws, level
    )


@pytest.mark.serial
@given(st.lists(st.floats(0, 1), max_size=40), st.sampled_from([0.5, 0.95]))
def test_the_interval_of_prbep_is_the_wider_one_of_two_on_each_side(replicates, level):
    """The binomial interval and the replicates' quantiles, within 0 and 1."""
    share, labels = np.repeat([1.0, 0.0], [12, 8]), np.ones(20, np.int8)
    found = confidence.prbep_estimate(share, Scored(labels, labels, ALONE))
    alone = confidence.prbep_interval(found, np.empty(0), level)
    both = confidence.prbep_interval(found, np.array(replicates), level)
    ranked, share = sorted(replicates) or [1.0, 0.0], 0.5 - level / 2
    beyond = math.floor(share * (len(replicates) - 1) + 1e-9) if replicates else 0  # how many lie outside of each end
    tails = ranked[beyond], ranked[-1 - beyond]
    assert (both.low, both.high) == pytest.approx((min(alone.low, tails[0]), max(alone.high, tails[1])))


@pytest.mark.serial
def test_paired_replicates_tell_models_apart():
    scores, labels = drawn_scores(4000, 0.2, decimals=9, shift=2.0)
    worse = scores + np.random.default_rng(5).normal(size=4000)
    found = of_prbep(scores, labels, other=worse)
    assert confidence.verdict(found, "a", "b") == "a is better" and found.p == 2 / 401
    back = of_prbep(worse, labels, other=scores)
    assert (back.low, back.high, back.p) == pytest.approx((-found.high, -found.low, found.p))
    same = of_prbep(scores, labels, other=scores)
    assert same.p == 1 and confidence.verdict(same, "a", "b") == "not distinguishable" and same.low == same.high == 0
    without = of_prbep(scores, labels, replicates=0, other=worse)
    assert confidence.verdict(without, "a", "b") == "no verdict: there are no replicates" and math.isnan(without.low)


@pytest.mark.serial
def test_p_is_below_5_per_cent_where_an_interval_of_95_leaves_out_0():
    for seed in range(40):
        scores, labels = drawn_scores(300, 0.2, seed, decimals=9, shift=2.0)
        found = of_prbep(scores, labels, other=scores + np.random.default_rng(seed).normal(size=300) * 2, seed=seed)
        assert (found.p < 0.05) == (found.low > 0) or abs(
            found.p - 0.05
        ) < 0.006  # quantiles of replicates are interpolated


@pytest.mark.serial
def test_rows_at_the_threshold_that_are_positive_more_often_than_above_it():
    """With positives right behind a band of negatives, the binomial variance misses that the threshold moves among
    them.
    """
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(1000) < 50, 1, -1).astype(np.int8)
    scores = np.where(labels > 0, 1.5 + 0.6 * rng.random(1000), rng.random(1000))
    scores[-50:] = 2 + rng.random(50)
    alone, both = of_prbep(scores, labels, replicates=0), of_prbep(scores, labels)
    assert alone.method == "binomial" and both.method == "binomial and bootstrap"
    assert both.high > 1.5 * alone.high and both.low <= alone.low


@pytest.mark.serial
@pytest.mark.parametrize("n_pos, n_neg, word", [(9, 50, "9 positive"), (50, 3, "3 negative"), (10, 10, "")])
def test_few_rows_of_a_class_give_no_verdict(n_pos, n_neg, word):
    labels = np.repeat(np.array([1, -1], np.int8), [n_pos, n_neg])
    scores = np.random.default_rng(0).normal(size=n_pos + n_neg) + labels
    found = [
        confidence.rocarea_estimate(ranking.placements(Scored(values, labels, ALONE)), Scored(labels, labels, ALONE))
        for values in (scores, -scores)
    ]
    placed = [ranking.placements(Scored(values, labels, ALONE)) for values in (scores, -scores)]
    less = confidence.rocarea_difference_interval(
        confidence.rocarea_estimate(placed[0] - placed[1], Scored(labels, labels, ALONE)), 0.95
    )
    assert less.value == pytest.approx(found[0].value - found[1].value)
    for difference in (less, of_prbep(scores, labels, other=-scores)):
        verdict = confidence.verdict(difference, "a", "b")
        assert verdict.startswith("no verdict: " + word) if word else "no verdict" not in verdict
        assert math.isnan(difference.low) == bool(word)


@pytest.mark.serial
def test_coverage_from_ten_positives_on():
    """Over 400 data sets with 10 positives, 95 % intervals contain the true value, and equal models are rarely told
    apart.

    At least 92 of 100 intervals contain the true value, and at most 8 of 100 times two models that are equal in
    expectation are called different. Normal limits in the logit are a control that fails: they contain the true value
    in less than 90 % of these data sets.
    """
    shift, share, n, repeats = 2.5, 0.05, 200, 400
    cut = _threshold_where_n_pos_are_called(shift, share)
    truth = {"rocarea": stats.norm.cdf(shift / math.sqrt(2)), "prbep": stats.norm.sf(cut - shift)}
    inside, false = dict.fromkeys((*truth, "logit"), 0), dict.fromkeys(truth, 0)
    labels = np.where(np.arange(n) < 10, 1, -1).astype(np.int8)
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        both = rng.normal(size=n) + rng.normal(size=(2, n)) + math.sqrt(2) * shift * (labels > 0)
        scores = both[0]
        sure = {"rocarea": area(scores, labels), "prbep": of_prbep(scores, labels, replicates=200, seed=seed)}
        for name, interval in sure.items():
            inside[name] += interval.low <= truth[name] <= interval.high
        rocarea, logit = sure["rocarea"], special.logit(truth["rocarea"])
        if 0 < rocarea.value < 1:
            half = 1.96 * rocarea.standard_error / (rocarea.value * (1 - rocarea.value))
            inside["logit"] += abs(special.logit(rocarea.value) - logit) <= half
        placed = [ranking.placements(Scored(values, labels, ALONE)) for values in both]
        less = {
            "rocarea": confidence.rocarea_difference_interval(
                confidence.rocarea_estimate(placed[0] - placed[1], Scored(labels, labels, ALONE)), 0.95
            ),
            "prbep": of_prbep(scores, labels, replicates=200, seed=seed, other=both[1]),
        }
        for name, difference in less.items():
            false[name] += difference.low > 0 or difference.high < 0
    assert min(inside[name] for name in truth) > 0.92 * repeats and inside["logit"] < 0.9 * repeats, inside
    assert max(false.values()) < 0.08 * repeats, false


SHAPES = {
    "normal": (lambda u: special.ndtri(u) + 1.2, special.ndtri),
    "better": (lambda u: special.ndtri(u) + 2.33, special.ndtri),
    "skewed": (lambda u: -4 * np.log1p(-u), lambda u: -np.log1p(-u)),
    "grades": (lambda u: np.floor(5 * u**0.25), lambda u: np.floor(5 * u**1.5)),
    "tails": (lambda u: 3 * special.ndtri(u) + 0.8, special.ndtri),
    "two kinds": (lambda u: np.where(u < 0.2, -1.0, 2.0), lambda u: u),
}
"""The quantile functions of positive and of negative scores."""


@pytest.mark.serial
@pytest.mark.by_turns
@pytest.mark.parametrize("n_pos", [10, 50])
def test_intervals_of_rocarea_hold_as_often_as_they_say_and_hardly_more(n_pos):
    """500 data sets of each shape: no shape is below 92 % (93 % less the simulation error), nor the mean over 98.5.

    The limits of Clopper and Pearson's kind are the control that is too wide.
    """
    grid, repeats, kinds = (np.arange(4000) + 0.5) / 4000, 500, ("own", "too wide")
    labels = np.repeat(np.array([1, -1], np.int8), [n_pos, 5 * n_pos])
    inside = {}
    for seed, (name, (positive, negative)) in enumerate(SHAPES.items()):
        rng, counts = np.random.default_rng((n_pos, seed)), dict.fromkeys(kinds, 0)
        truth = np.mean([oracles.orders(positive(grid)[k : k + 1], negative(grid)).mean() for k in range(0, 4000, 7)])
        for _ in range(repeats):
            scores = np.concatenate([positive(rng.random(n_pos)), negative(rng.random(5 * n_pos))])
            found = confidence.rocarea_estimate(
                ranking.placements(Scored(scores, labels, ALONE)), Scored(labels, labels, ALONE)
            )
            limits = confidence.limits(found, 0.95), confidence.limits(found, 0.95, worst=1.0)
            for kind, (low, high) in zip(kinds, limits, strict=True):
                counts[kind] += low <= truth <= high
        inside[name] = {kind: count / repeats for kind, count in counts.items()}
    own, too_wide = ([of_shape[kind] for of_shape in inside.values()] for kind in kinds)
    assert min(own) >= 0.92 and np.mean(own) <= 0.985 and np.mean(own) + 0.005 < np.mean(too_wide), inside


def _threshold_where_n_pos_are_called(shift, share):
    """Find the score with P(score >= cut) = P(positive), the distribution's own PRBEP point, by bisection."""
    low, high = -10.0, 10.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        called = share * stats.norm.sf(middle - shift) + (1 - share) * stats.norm.sf(middle)
        low, high = (middle, high) if called > share else (low, middle)
    return low


@pytest.mark.serial
@given(st.integers(0, 60), st.sampled_from([200, 1000, 2000]), st.booleans())
def test_an_interval_excludes_0_just_if_the_p_value_is_small(n_beyond, n, swapped):
    """Also where replicates have few different values, as PRBEP of few positive rows has."""
    sign = -1 if swapped else 1
    drawn = sign * np.where(np.arange(n) < n_beyond, 0.0, 1 / 127)
    found = confidence.MeanEstimate(sign / 127, (1.0,), (127, 4752))
    interval = confidence.prbep_difference_interval(found, drawn, 0.95)
    assert (interval.low > 0 or interval.high < 0) == (interval.p < 0.05)


def test_an_interval_over_folds_ends_where_the_measure_does():
    values = [0.1, 0.9, 0.8]
    found = confidence.folds_interval(values, 0.95, "pauc@0.5")
    assert (found.low, found.high) == (0, 1)
    lift, gain = (confidence.folds_interval(values, 0.95, measure) for measure in ("lift@1%", ""))
    assert lift.low == 0 and gain.low < 0 and lift.high == gain.high > 1
