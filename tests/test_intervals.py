"""DeLong's variance and the bootstrap of PRBEP, against brute force, other formulas and their own promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from distsms import bootstrap, intervals, measures
from distsms.comm import Communicator
from tests import oracles
from tests.problems import local_part

ALONE = Communicator()
rows_with_ties = st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([1, -1])), min_size=4, max_size=14)


def drawn(n, share, seed=0, decimals=1, shift=1.0):
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(n) < share, 1, -1).astype(np.int8)
    labels[:4] = 1, 1, -1, -1
    return np.round(rng.normal(size=n) + shift * (labels > 0), decimals), labels


def area(scores, labels, level=0.95, comm=ALONE):
    return intervals.of_rocarea(intervals.delong(measures.placements(scores, labels, comm), labels, comm), level)


def error_by_pairs(labels, *scores):
    """The variance of ROCArea, or of a difference of two, from the definition: the matrix of all pairs, its means."""
    order = [oracles.orders(one[labels > 0], one[labels < 0]) for one in scores]
    psi = order[0] - order[1] if len(order) > 1 else order[0]
    n_pos, n_neg = psi.shape
    return math.sqrt(np.var(psi.mean(1), ddof=1) / n_pos + np.var(psi.mean(0), ddof=1) / n_neg)


def error_by_midranks(labels, scores):
    """The same by ranks (Sun & Xu 2014)."""
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
    area, error, why = intervals.delong(measures.placements(scores.astype(float), labels, ALONE), labels, ALONE)
    assert area == measures.rocarea(scores.astype(float), labels, ALONE) and not why
    assert error == pytest.approx(error_by_pairs(labels, scores), abs=1e-12)


@pytest.mark.parametrize("share", [0.03, 0.5, 0.9])
@pytest.mark.parametrize("piece", [1, 7, 2**24])
@pytest.mark.parametrize("size", [1.0, 1e8, 1e-8])
def test_delong_on_any_ranks(comm, monkeypatch, share, piece, size):
    """By pieces of the smaller class, whichever that is; equal to the formula by ranks, and to a permutation's."""
    monkeypatch.setattr(measures, "PIECE", piece)
    scores, labels = drawn(150, share)
    order = np.random.default_rng(1).permutation(len(scores))
    for one in (np.arange(len(scores)), order):
        mine, of_mine = local_part(size * scores[one], comm), local_part(labels[one], comm)
        found = intervals.of_rocarea(intervals.delong(measures.placements(mine, of_mine, comm), of_mine, comm), 0.95)
        assert found.value == measures.rocarea(size * scores, labels, ALONE)
        assert found.standard_error == pytest.approx(error_by_midranks(labels, scores), rel=1e-12)
        assert found == area(scores, labels)
        assert 0 < found.low < found.value < found.high < 1


def test_the_difference_of_two_models(comm):
    (scores, labels), noise = drawn(300, 0.2), np.random.default_rng(1).normal(size=300)
    other = scores + noise.round(1)
    mine = local_part(labels, comm)
    placed = [measures.placements(local_part(one, comm), mine, comm) for one in (scores, other)]

    def difference(twice, other):
        return intervals.of_rocarea_difference(intervals.delong(twice - other, mine, comm), 0.9)

    found = difference(*placed)
    assert found.standard_error == pytest.approx(error_by_pairs(labels, scores, other), rel=1e-12)
    z = found.value / found.standard_error
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(z)))
    assert (found.low > 0 or found.high < 0) == (found.p < 0.1)
    back = difference(*placed[::-1])
    assert (back.value, back.low, back.p) == (-found.value, -found.high, found.p)
    same = difference(placed[0], placed[0])
    assert same.p == 1 and intervals.verdict(same, "a", "b") == "not distinguishable"


@pytest.mark.parametrize("labels, word", [([1, -1, -1], "one positive"), ([1, 1, -1], "one negative")])
def test_one_row_of_a_class_has_no_variance(comm, labels, word):
    labels = local_part(np.array(labels, np.int8), comm)
    scores = local_part(np.array([1.0, 3.0, 2.0]), comm)
    found = area(scores, labels, comm=comm)
    assert word in found.why and math.isnan(found.low) and found.value in (0.0, 0.5)


@pytest.mark.serial
@pytest.mark.parametrize("scores, word", [([2, 2, 1, 1], "wrong order"), ([1, 1, 1, 1], "same place")])
def test_where_nothing_varies_there_is_no_interval(scores, word):
    labels = np.array([1, 1, -1, -1], np.int8)
    found = area(np.array(scores, float), labels)
    assert word in found.why and math.isnan(found.low)
    one_class = area(np.zeros(2), np.ones(2, np.int8))
    assert one_class.why == "a class is missing" and math.isnan(one_class.value)


@pytest.mark.serial
def test_sums_beyond_64_bits():
    values = np.full(8, 2**62, np.int64)
    assert measures.exact_sum(values, ALONE) == 2**65
    assert measures.exact_sum(-values, ALONE) == -(2**65)
    large = np.array([2**45 + 12345, -(2**45) - 54321, 7], np.int64)
    assert intervals._squares(large, ALONE) == sum(int(one) ** 2 for one in large)


def replicates_by_hand(scores, labels, count, seed):
    """Each replicate's rows written out as often as they are drawn, and measured like any data."""
    keys, found = bootstrap.keys(np.arange(len(scores)), seed), []
    for b in range(count):
        times = np.zeros((1, len(scores)), np.int64)
        bootstrap._tabulate(keys, np.arange(len(scores)), np.array([b]), times)
        s, y = (np.repeat(one, times[0]) for one in (scores, labels))
        found.append(measures.ranking(s, y, ALONE).prbep)
    return np.array(found)


@pytest.mark.parametrize(
    "n, share, decimals", [(200, 0.2, 1), (200, 0.9, 0), (2000, 0.3, 2), (40, 0.05, 9), (9, 0.5, -9)]
)
@pytest.mark.parametrize("margin, block", [(20, 2**20), (0, 1)])
def test_replicates_are_the_resampled_rows(comm, monkeypatch, n, share, decimals, margin, block):
    """On any number of ranks, with windows that are too narrow at first, and one replicate at a time."""
    monkeypatch.setattr(bootstrap, "BLOCK", block)
    monkeypatch.setattr(bootstrap, "MARGIN", margin)
    monkeypatch.setattr(bootstrap, "SPREAD", margin / 2)
    scores, labels = drawn(n, share, decimals=decimals)
    found = bootstrap.prbep(*(local_part(one, comm) for one in (scores, labels, np.arange(n))), 25, 7, comm)
    np.testing.assert_allclose(found, replicates_by_hand(scores, labels, 25, 7), rtol=1e-14)


@pytest.mark.serial
def test_the_draws_are_poisson_and_independent():
    """Counts of 4e5 draws against Poisson(1) by chi-square, and neighbouring rows and replicates by their correlation.

    Bounds: quantiles of the statistics' own laws at 1e-6.
    """
    rows, reps = 4000, 100
    table = np.zeros((reps, rows), np.int64)
    bootstrap._tabulate(bootstrap.keys(np.arange(rows), 3), np.arange(rows), np.arange(reps), table)
    seen = np.bincount(np.minimum(table.ravel(), 6), minlength=7)
    expected = table.size * np.append(stats.poisson.pmf(np.arange(6), 1), stats.poisson.sf(5, 1))
    assert stats.chisquare(seen, expected).pvalue > 1e-6
    for a, b in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * math.sqrt(a.size) < stats.norm.isf(5e-7)
    other = np.zeros_like(table)
    bootstrap._tabulate(bootstrap.keys(np.arange(rows), 4), np.arange(rows), np.arange(reps), other)
    assert abs(np.corrcoef(table.ravel(), other.ravel())[0, 1]) * math.sqrt(table.size) < stats.norm.isf(5e-7)


def test_one_positive_cannot_be_resampled(comm):
    scores, labels = np.arange(5.0), np.array([1, -1, -1, -1, -1], np.int8)
    found = bootstrap.prbep(*(local_part(one, comm) for one in (scores, labels, np.arange(5))), 50, 0, comm)
    assert np.isnan(found).any() and not np.isnan(found).all()  # the row is not drawn in 37 % of them
    assert "two positive rows" in intervals.of_prbep(0.0, found, 0.95, 1).why
    none = bootstrap.prbep(np.arange(2.0), -np.ones(2, np.int8), np.arange(2), 3, 0, comm)
    assert np.isnan(none).all()


@pytest.mark.serial
def test_paired_replicates_tell_models_apart():
    scores, labels = drawn(4000, 0.2, decimals=9, shift=2.0)
    worse = scores + np.random.default_rng(5).normal(size=4000)
    values = [measures.ranking(one, labels, ALONE).prbep for one in (scores, worse)]
    draws = [bootstrap.prbep(one, labels, np.arange(4000), 400, 0, ALONE) for one in (scores, worse)]
    n_pos = int(np.sum(labels > 0))
    found = intervals.of_prbep_difference(*values, *draws, 0.95, n_pos)
    assert intervals.verdict(found, "a", "b") == "a is better" and found.p == 2 / 401
    same = intervals.of_prbep_difference(values[0], values[0], draws[0], draws[0], 0.95, n_pos)
    assert same.p == 1 and intervals.verdict(same, "a", "b") == "not distinguishable"
    none = intervals.of_prbep_difference(*values, draws[0][:0], draws[0][:0], 0.95, n_pos)
    assert intervals.verdict(none, "a", "b") == "not comparable: there are no replicates"


@pytest.mark.serial
def test_coverage():
    """Of 400 data sets drawn from one law, about 90 % have its true value in their interval of 90 %.

    The count is binomial: 0.9 +- 4.5 standard deviations, 0.0675. To that comes what an interval itself is off at n+
    of about 60: 0.03 for both methods (of an order of 1/sqrt(n+) one-sided, less two-sided).
    """
    shift, share, n, repeats = 1.5, 0.2, 300, 400
    cut = _threshold_where_n_pos_are_called(shift, share)
    truth = {"rocarea": stats.norm.cdf(shift / math.sqrt(2)), "prbep": stats.norm.sf(cut - shift)}
    inside = dict.fromkeys(truth, 0)
    for seed in range(repeats):
        scores, labels = drawn(n, share, seed, 12, shift)
        ranked = measures.ranking(scores, labels, ALONE)
        draws = bootstrap.prbep(scores, labels, np.arange(n), 200, seed, ALONE)
        found = {
            "rocarea": area(scores, labels, 0.9),
            "prbep": intervals.of_prbep(ranked.prbep, draws, 0.9, ranked.n_pos),
        }
        for name, one in found.items():
            inside[name] += one.low <= truth[name] <= one.high
    for name, count in inside.items():
        assert abs(count / repeats - 0.9) < 4.5 * math.sqrt(0.09 / repeats) + 0.03, (name, count)


def _threshold_where_n_pos_are_called(shift, share):
    """Where P(score >= cut) = P(positive): the law's own PRBEP point, by bisection."""
    low, high = -10.0, 10.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        called = share * stats.norm.sf(middle - shift) + (1 - share) * stats.norm.sf(middle)
        low, high = (middle, high) if called > share else (low, middle)
    return low
