"""GAUC: scikit-learn for each group, any number of ranks, and intervals whose unit is the group."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.metrics.confidence import MeanEstimate
from distsms.metrics.within_groups import gauc_difference_interval, gauc_estimate, gauc_interval, group_areas
from distsms.parallel import groups as whole_groups
from tests.support.examples import examples


def by_scikit_learn(weighting, scores, labels, groups, weights):
    """GAUC and its standard error, group by group."""
    areas, omega = [], []
    for g in np.unique(groups):
        rows = groups == g
        pos, neg = (np.sum(weights[rows & (labels == sign)]) for sign in (1, -1))
        if pos and neg:
            areas.append(roc_auc_score(labels[rows], scores[rows], sample_weight=weights[rows]))
            omega.append(pos * neg if weighting == "pairs" else 1.0)
    if not areas:
        return math.nan, math.nan
    share = np.array(omega) / np.sum(omega)
    value = np.sum(share * areas)
    size = 1 / np.sum(share**2)
    variance = np.sum((share * (np.array(areas) - value)) ** 2) * size / (size - 1) if size >= 2 else math.nan
    return value, math.sqrt(variance)


@pytest.mark.parametrize("weighting", ["pairs", "each"])
@examples(0.25)
@given(
    seed=st.integers(0, 10**6), n=st.integers(1, 120), n_groups=st.integers(1, 40), least=st.sampled_from([0, 15, 4096])
)
def test_equals_scikit_learn(weighting, comm, seed, n, n_groups, least):
    rng = np.random.default_rng(seed)
    groups = (rng.integers(0, n_groups, n) ** 2 // n_groups).astype(np.uint64)
    labels = np.where(rng.random(n) < 0.4, 1, -1).astype(np.int8)
    scores, weights = np.round(rng.normal(size=n), 1), np.exp(rng.normal(size=n))
    mine = rng.integers(0, comm.size, n) == comm.rank
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_groups, "LEAST", least)
        for a in (None, weights):
            own = None if a is None else a[mine]
            found = gauc_estimate(weighting, Scored(scores[mine], labels[mine], comm, own, groups[mine]))
            value, error = by_scikit_learn(weighting, scores, labels, groups, np.ones(n) if a is None else a)
            np.testing.assert_allclose(found.value, value, rtol=1e-11)
            if not math.isnan(error):
                np.testing.assert_allclose(found.error, error, rtol=1e-7, atol=1e-9)


def some_groups(rng, n_groups, effect):
    """Rows of groups that differ in size, in the share of positives, in level, and in how well they are ranked."""
    sizes = rng.integers(4, 30, n_groups)
    groups = np.repeat(np.arange(n_groups), sizes).astype(np.uint64)
    labels = np.where(rng.random(len(groups)) < rng.uniform(0.1, 0.6, n_groups)[groups.astype(int)], 1, -1)
    strength = rng.normal(effect, 0.8, n_groups)[groups.astype(int)] * (0.5 + groups % 2)
    scores = 10 * rng.normal(size=n_groups)[groups.astype(int)] + strength * (labels > 0) + rng.normal(size=len(groups))
    return Scored(scores, labels.astype(np.int8), Communicator(), groups=groups)


@pytest.mark.serial
@pytest.mark.by_turns
@pytest.mark.parametrize("weighting", ["pairs", "each"])
def test_intervals_contain_the_true_value_as_often_as_they_say(weighting):
    """400 samples of 300 groups; a binomial with p = 0.95 is between 0.915 and 0.985 but once in a thousand times."""
    rng = np.random.default_rng(2)
    true = gauc_estimate(weighting, some_groups(rng, 60_000, 0.7)).value
    covered, naive = 0, 0
    for _ in range(400):
        sample = some_groups(rng, 300, 0.7)
        found = gauc_interval(gauc_estimate(weighting, sample), 0.95)
        covered += found.low <= true <= found.high
        n = min(*map(np.sum, sample.classes))
        naive += abs(found.value - true) <= 1.96 * math.sqrt(found.value * (1 - found.value) / n) / 2
    assert 0.915 <= covered / 400 <= 0.985
    assert naive / 400 < 0.85  # rows are not the unit


def test_differences_are_paired_by_groups(comm):
    rng = np.random.default_rng(4)
    drawn = some_groups(rng, 80, 0.7)
    scores, labels, groups = drawn.scores, drawn.labels, drawn.groups
    better = scores + 0.5 * (labels > 0)
    mine = rng.integers(0, comm.size, len(labels)) == comm.rank
    first, other = (group_areas(Scored(of[mine], labels[mine], comm, groups=groups[mine])) for of in (better, scores))
    estimates = [areas.estimate("pairs", comm) for areas in (first, other)]
    less = first._replace(areas=first.areas - other.areas).estimate("pairs", comm)
    interval = gauc_difference_interval(less, 0.95)
    assert interval.value == pytest.approx(estimates[0].value - estimates[1].value, rel=1e-9)
    assert interval.low > 0 and interval.p < 1e-3 and interval.standard_error < estimates[1].error
    same = other._replace(areas=other.areas - other.areas).estimate("pairs", comm)
    assert gauc_difference_interval(same, 0.95).p == 1.0


def test_too_few_groups():
    assert "fewer than two groups" in gauc_interval(MeanEstimate(0.8, (0.0,), (1.0, 1.0)), 0.95).why
    assert "in no group" in gauc_interval(MeanEstimate(math.nan, (math.nan,), (0.0, 0.0)), 0.95).why
    assert "5 groups are too few" in gauc_difference_interval(MeanEstimate(0.1, (0.2,), (5.0, 5.0)), 0.95).why


@pytest.mark.serial
def test_light_groups_count_beside_heavy_ones():
    """The heavy group of one class and the heavy rows of the first group hide no pairs of the others."""
    scores, labels = np.array([0.0, 1, 1, 0, 0, 1, 5]), np.array([1, -1, 1, -1, 1, -1, 1], np.int8)
    groups = np.array([0, 0, 1, 1, 2, 2, 3], np.uint64)
    for factor in (1.0, 1e-20, 1e-120):
        weights = np.array([1.0, 1.0, *4 * [factor], 1e100])
        found = gauc_estimate("each", Scored(scores, labels, Communicator(), weights, groups))
        assert found.value == pytest.approx(1 / 3, rel=1e-12)
