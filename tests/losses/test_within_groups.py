"""ROCArea within groups: compared with brute force, on any number of ranks, wherever the rows are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import GROUPED
from distsms.losses import within_groups
from distsms.losses.registry import make_loss
from distsms.parallel import groups as whole_groups
from tests.support.examples import examples

WIDTHS = (0.0, 1e-3, 0.3, 5.0)


def by_brute_force(measure, scores, labels, weights, groups, nu):
    """R, R_mu, d and the coefficients, with all pairs of each group in a matrix."""
    sums, coefficients, rows, mass = np.zeros(3), np.zeros(len(scores)), {}, {}
    for g in np.unique(groups):
        P, N = rows[g] = [np.flatnonzero((groups == g) & (labels == sign) & (weights > 0)) for sign in (1, -1)]
        if len(P) and len(N):
            mass[g] = weights[P].sum() * weights[N].sum()
    for g, m in mass.items():
        P, N = rows[g]
        share = 1 / len(mass) if measure == "gauc@each" else m / sum(mass.values())
        pair = share / m * np.outer(weights[P], weights[N])
        t = scores[N][None] - (scores[P] - 1.0)[:, None]
        beta = (t > 0) * 1.0 if nu == 0 else np.clip(t / nu, 0, 1)
        sums += [np.sum(pair * np.maximum(t, 0)), np.sum(pair * beta * (t - nu / 2 * beta)), np.sum(pair * beta)]
        coefficients[P] -= np.sum(pair * beta, axis=1)
        coefficients[N] += np.sum(pair * beta, axis=0)
    return *sums, coefficients


def check(measure, scores, labels, weights, groups, mine, comm):
    own = None if weights is None else weights[mine]
    loss = make_loss(measure, "exchange", labels[mine], own, comm, groups[mine])
    a = np.ones(len(labels)) if weights is None else weights
    for nu in (*WIDTHS, WIDTHS[0]):  # again, since rows are left in the order of the last scores
        found, expected = (
            loss.evaluate(scores[mine], nu),
            by_brute_force(measure, scores, labels, a / a.max(), groups, nu),
        )
        np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.coefficients, expected[3][mine], rtol=1e-9, atol=1e-13)
    assert loss.R_at_zero == pytest.approx(loss.evaluate(np.zeros(np.count_nonzero(mine)), 0.0).R, rel=1e-12)


def some_rows(rng, n, n_groups, digits, weighted=False):
    groups = (rng.integers(0, n_groups, n) ** 2 // n_groups).astype(np.uint64)  # small and large ones
    labels = np.where(rng.random(n) < rng.random(n_groups)[groups.astype(int)], 1, -1).astype(np.int8)
    labels[:2], groups[:2] = (1, -1), 0
    weights = rng.integers(0, 4, n) * rng.choice([1.0, 0.37, 1e3], n) if weighted else None
    if weights is not None:
        weights[:2] = 1.5
    return np.round(rng.normal(size=n), digits), labels, weights, groups


@pytest.mark.parametrize("measure", GROUPED)
@examples(0.25)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 90),
    n_groups=st.integers(1, 30),
    digits=st.integers(0, 3),
    weighted=st.booleans(),
    least=st.sampled_from([0, 20, 4096]),
    holders=st.integers(1, 5),
)
def test_equals_brute_force(measure, comm, seed, n, n_groups, digits, weighted, least, holders):
    """Groups of one class and of both, ties, weights, ranks without rows, groups that are split, large groups."""
    rng = np.random.default_rng(seed)
    scores, labels, weights, groups = some_rows(rng, n, n_groups, digits, weighted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_groups, "LEAST", least)
        mine = rng.integers(0, min(holders, comm.size), n) == comm.rank
        check(measure, scores, labels, weights, groups, mine, comm)


@pytest.mark.parametrize("measure", GROUPED)
@pytest.mark.parametrize("spread", ["shuffled", "in order", "one large", "on the last rank"])
def test_equals_brute_force_on_more_rows(measure, spread, comm, monkeypatch):
    monkeypatch.setattr(whole_groups, "LEAST", 500)
    rng = np.random.default_rng(3)
    n = 3000
    groups = np.sort(rng.integers(0, 60, n)).astype(np.uint64)
    groups[: 1800 * (spread == "one large")] = 7
    if spread != "in order":
        groups = rng.permutation(groups)
    labels = np.where(rng.random(n) < 0.2, 1, -1).astype(np.int8)
    holder = np.full(n, comm.size - 1) if spread == "on the last rank" else np.arange(n) * comm.size // n
    check(measure, rng.normal(size=n), labels, np.exp(rng.normal(size=n)), groups, holder == comm.rank, comm)


@pytest.mark.parametrize("measure", GROUPED)
@pytest.mark.parametrize("least", [100, 10**6])
def test_one_group_of_all_rows_is_rocarea(measure, least, comm, monkeypatch):
    monkeypatch.setattr(whole_groups, "LEAST", least)
    rng = np.random.default_rng(1)
    scores, labels, n = rng.normal(size=800), np.where(rng.random(800) < 0.1, 1, -1).astype(np.int8), 800
    mine = rng.integers(0, comm.size, n) == comm.rank
    one = make_loss(measure, "exchange", labels[mine], None, comm, np.zeros(mine.sum(), np.uint64))
    all_rows = make_loss("rocarea", "exchange", labels[mine], None, comm)
    for nu in WIDTHS:
        found, expected = (loss.evaluate(scores[mine], nu) for loss in (one, all_rows))
        np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-12)
        np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-11)


@pytest.mark.serial
@given(seed=st.integers(0, 10**6), measure=st.sampled_from(list(GROUPED)), nu=st.sampled_from(WIDTHS))
def test_the_order_of_rows_and_other_rows_change_nothing(seed, measure, nu):
    rng, comm = np.random.default_rng(seed), Communicator()
    scores, labels, weights, groups = some_rows(rng, 200, 30, 1, weighted=True)
    one_class = np.repeat(np.arange(1000, 1005), 3).astype(np.uint64)  # these groups count nothing
    order = rng.permutation(215)
    more = [
        np.concatenate([part, extra])[order]
        for part, extra in (
            (scores, rng.normal(size=15)),
            (labels, np.ones(15, np.int8)),
            (weights, np.ones(15)),
            (groups, one_class),
        )
    ]
    value = make_loss(measure, "exchange", labels, weights, comm, groups).evaluate(scores, nu)
    other = make_loss(measure, "exchange", more[1], more[2], comm, more[3]).evaluate(more[0], nu)
    np.testing.assert_allclose(other[:3], value[:3], rtol=1e-11)
    back = np.empty(215)
    back[order] = other.coefficients
    np.testing.assert_allclose(back, np.append(value.coefficients, np.zeros(15)), rtol=1e-10, atol=1e-15)


def test_the_plane_is_below_the_risk(comm):
    rng = np.random.default_rng(5)
    _, labels, weights, groups = some_rows(rng, 300, 40, 2, weighted=True)
    mine = rng.integers(0, comm.size, 300) == comm.rank
    loss = make_loss("gauc@each", "exchange", labels[mine], weights[mine], comm, groups[mine])
    v = rng.normal(size=300)[mine]
    for nu in WIDTHS:
        found = loss.evaluate(rng.normal(size=300)[mine], nu)
        assert 0 <= found.R - found.R_mu <= loss.kappa * nu + 1e-12
        product = comm.sum(np.array([np.sum(found.coefficients * v)]))[0]
        assert loss.evaluate(v, 0.0).R >= product + found.d - 1e-12


def test_scores_that_are_not_finite(comm):
    labels, groups = np.tile([1, -1], 20).astype(np.int8), np.arange(40, dtype=np.uint64) // 4
    mine = np.arange(40) % comm.size == comm.rank
    loss = make_loss("gauc@pairs", "exchange", labels[mine], None, comm, groups[mine])
    for bad in (np.nan, np.inf, -np.inf):
        value = loss.evaluate(np.where(np.arange(40) == 5, bad, 0.0)[mine], 0.1)
        assert np.isnan(value[:3]).all() and not value.coefficients.any()


def test_groups_without_pairs_are_refused(comm):
    labels = np.where(np.arange(20) < 10, 1, -1).astype(np.int8)
    groups = np.arange(20, dtype=np.uint64)
    mine = np.arange(20) % comm.size == comm.rank
    with pytest.raises(InputError, match="no group has both positive and negative rows"):
        make_loss("gauc@pairs", "exchange", labels[mine], None, comm, groups[mine])
    with pytest.raises(InputError, match="needs the group of each row"):
        make_loss("gauc@pairs", "exchange", labels[mine], None, comm)


@pytest.mark.parametrize("measure", sorted(GROUPED))
def test_rows_that_no_group_needs_may_be_heavy(measure, comm):
    """Their weights would let the products of the others vanish. Groups that vanish beside others are refused."""
    labels, groups = np.array([1, -1, 1, -1, 1], np.int8), np.array([0, 0, 1, 1, 2], np.uint64)
    scores, mine = np.array([0.5, 0.0, 0.0, 0.5, 1.0]), np.arange(5) % comm.size == comm.rank
    check(measure, scores, labels, np.array([1e-100, 2e-100, 3e-100, 1e-100, 0.0]), groups, mine, comm)
    weights = np.array([1e-100, 2e-100, 3e-100, 1e-100, 1e100])
    found = make_loss(measure, "exchange", labels[mine], weights[mine], comm, groups[mine]).evaluate(scores[mine], 0.0)
    usual = make_loss(measure, "exchange", labels[mine], (1e100 * weights * (weights < 1))[mine], comm, groups[mine])
    assert found.R == pytest.approx(usual.evaluate(scores[mine], 0.0).R, rel=1e-12)
    if measure == "gauc@each":
        vanishing = np.array([1.0, 1.0, 1e-200, 1e-200, 1.0])
        with pytest.raises(InputError, match="of a group are so small"):
            make_loss(measure, "exchange", labels[mine], vanishing[mine], comm, groups[mine])


@pytest.mark.parametrize("measure", GROUPED)
@pytest.mark.parametrize("n_groups", [1, 3])
def test_groups_too_large_to_sort_are_enclosed(measure, comm, n_groups, monkeypatch):
    """Their rows are counted into bins: R is the upper end of an interval, and the plane is below R at other scores."""
    monkeypatch.setattr(whole_groups, "LEAST", 200)
    monkeypatch.setattr(within_groups, "EVERYWHERE", 50)
    rng = np.random.default_rng(3)
    scores, labels, weights, groups = some_rows(rng, 2000, n_groups, 9, weighted=True)
    mine = rng.integers(0, comm.size, len(scores)) == comm.rank
    loss = make_loss(measure, "exchange", labels[mine], weights[mine], comm, groups[mine])
    loss.target = lambda R: 1e-6
    for nu in (0.0, 0.3):
        found, expected = (
            loss.evaluate(scores[mine], nu),
            by_brute_force(measure, scores, labels, weights, groups, nu),
        )
        assert 0 < found.width <= 1e-8
        assert found.R - found.width - 1e-13 <= expected[0] <= found.R + 1e-13
        for other in (scores, rng.normal(size=len(scores))):
            slope = comm.sum(np.array([found.coefficients @ other[mine]]))[0]
            assert slope + found.d <= by_brute_force(measure, other, labels, weights, groups, 0.0)[0] + 1e-12
    assert sum(loss.ways.values()) > 0
