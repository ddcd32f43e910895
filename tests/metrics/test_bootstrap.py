"""The replicates of the bootstrap are resampled rows, on any number of ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from distsms.base import hashing
from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.metrics import bootstrap, ranking
from tests.support.files import on_root
from tests.support.problems import drawn_scores, local_part

ALONE = Communicator()


def replicates_by_hand(scores, labels, count, seed, measure=lambda s, y: ranking.prbep(Scored(s, y, ALONE))):
    """Repeat each replicate's rows as often as they are drawn, and measure them like any data."""
    keys, found = hashing.row_keys(np.arange(len(scores)), seed), []
    for b in range(count):
        times = np.zeros((1, len(scores)), np.int64)
        bootstrap.tabulate(keys, np.arange(len(scores)), np.array([b]), times, None)
        s, y = (np.repeat(array, times[0]) for array in (scores, labels))
        found.append(measure(s, y))
    return np.array(found)


@pytest.mark.parametrize(
    "n, share, decimals", [(200, 0.2, 1), (200, 0.9, 0), (2000, 0.3, 2), (40, 0.05, 9), (9, 0.5, -9)]
)
@pytest.mark.parametrize("margin, block", [(20, 2**20), (0, 1)])
def test_replicates_are_the_resampled_rows(comm, monkeypatch, n, share, decimals, margin, block):
    """On any number of ranks, with windows that are too narrow at first, and with one replicate at a time."""
    monkeypatch.setattr(bootstrap, "BLOCK", block)
    monkeypatch.setattr(bootstrap, "MARGIN", margin)
    monkeypatch.setattr(bootstrap, "SPREAD", margin / 2)
    scores, labels = drawn_scores(n, share, decimals=decimals)
    draws = bootstrap.Draws(local_part(np.arange(n), comm), 25, 7)
    found = bootstrap.prbep_replicates(Scored(*(local_part(array, comm) for array in (scores, labels)), comm), draws)
    expected = on_root(comm, lambda: replicates_by_hand(scores, labels, 25, 7))
    np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("k", [1, 7, 60, 195, 200, 201])
@pytest.mark.parametrize("margin, decimals", [(20, 1), (0, 9)])
def test_replicates_at_k_are_the_resampled_rows(comm, monkeypatch, k, margin, decimals):
    """Where a replicate has fewer than k rows, all of them are taken; there are none for k above n."""
    monkeypatch.setattr(bootstrap, "MARGIN", margin)
    monkeypatch.setattr(bootstrap, "SPREAD", margin / 2)
    scores, labels = drawn_scores(200, 0.2, decimals=decimals)

    def by_hand(s, y):
        recall = ranking.top_k(Scored(s, y, ALONE), min(k, len(s))).recall
        return recall, recall * np.sum(y > 0) / k

    *mine, rows = (local_part(array, comm) for array in (scores, labels, np.arange(200)))
    precision, recall = bootstrap.top_k_replicates(Scored(*mine, comm), bootstrap.Draws(rows, 25, 7), k)
    if k > 200:
        assert np.isnan(precision).all()
        return
    expected = on_root(comm, lambda: replicates_by_hand(scores, labels, 25, 7, by_hand))
    np.testing.assert_allclose(np.c_[recall, precision], expected, rtol=1e-13)


@pytest.mark.serial
def test_the_draws_are_poisson_and_independent():
    """Compare counts of 4e5 draws with Poisson(1) by chi-square, and check the correlation of neighbouring rows and
    replicates.

    Bounds: the quantiles of the statistics' own distributions at 1e-6.
    """
    rows, reps = 4000, 100
    table = np.zeros((reps, rows), np.int64)
    bootstrap.tabulate(hashing.row_keys(np.arange(rows), 3), np.arange(rows), np.arange(reps), table, None)
    seen = np.bincount(np.minimum(table.ravel(), 6), minlength=7)
    expected = table.size * np.append(stats.poisson.pmf(np.arange(6), 1), stats.poisson.sf(5, 1))
    assert stats.chisquare(seen, expected).pvalue > 1e-6
    for a, b in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * math.sqrt(a.size) < stats.norm.isf(5e-7)
    other = np.zeros_like(table)
    bootstrap.tabulate(hashing.row_keys(np.arange(rows), 4), np.arange(rows), np.arange(reps), other, None)
    assert abs(np.corrcoef(table.ravel(), other.ravel())[0, 1]) * math.sqrt(table.size) < stats.norm.isf(5e-7)


@pytest.mark.parametrize("weighted", [False, True])
def test_numpy_draws_the_same_rows(weighted, monkeypatch):
    rng = np.random.default_rng(0)
    keys, column, weights = hashing.row_keys(np.arange(500), 3), rng.integers(0, 9, 500), rng.random(500)
    tables = []
    monkeypatch.setattr(bootstrap, "is_compiled", lambda kernel, arguments: False)
    for few in (0, 2**20):
        monkeypatch.setattr(bootstrap, "FEW", few)
        tables.append(np.zeros((40, 9), float if weighted else np.int64))
        bootstrap.tabulate(keys, column, np.arange(5, 45), tables[-1], weights if weighted else None)
    assert tables[0].tobytes() == tables[1].tobytes() and tables[0].any()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [None, 2])
def test_scores_that_are_no_numbers_have_no_replicates(weighted, k, comm):
    """Some replicates have too many of them above any window; it does not become wider without an end."""
    scores, labels = np.array([np.nan, np.nan, 1.0, 0.0, -1.0, 2.0]), np.array([1, -1, 1, -1, 1, -1], np.int8)
    mine, rows = ([local_part(array, comm) for array in (scores, labels)], local_part(np.arange(6), comm))
    scored = Scored(*mine, comm, np.ones(len(rows)) if weighted else None)
    values = bootstrap._replicates(scored, bootstrap.Draws(rows, 30), k)[0]
    assert np.isnan(values).any() and not np.isinf(values).any()
