"""pauc@BETA is what programs of linear and quadratic optimization find, and ROCArea and TopPush at the ends of BETA."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, sparse

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.losses.registry import make_loss
from tests.losses.test_prbep_exchange import Watched, drifting
from tests.support.problems import local_part, problems

ORDERINGS = ("gather", "exchange")
orderings = pytest.mark.parametrize("ordering", ORDERINGS)
max_fprs = st.sampled_from(["0.01", "0.1", "0.25", "0.37", "0.5", "0.9", "1"])


def build(name, labels, ordering="exchange", weights=None, comm=None):
    return make_loss(name, ordering, np.asarray(labels, np.int8), weights, comm or Communicator())


def pairs(scores, labels, weights, max_fpr):
    """Return t_ij, the weights a_i a_j / (A+ K) of the pairs, a_j, and K."""
    positive, negative = labels > 0, labels < 0
    a_pos, a_neg = weights[positive], weights[negative]
    K = max_fpr * a_neg.sum()
    t = 1 - (scores[positive][:, None] - scores[negative][None, :])
    return t, np.outer(a_pos, a_neg) / a_pos.sum() / K, a_neg, K


def by_linear_program(t, pair_weights, a_neg, K):
    """Maximize over all beta_ij and alpha_j at once."""
    n_pos, n_neg = t.shape
    m = t.size
    below = sparse.hstack([sparse.eye(m), -sparse.kron(np.ones((n_pos, 1)), sparse.eye(n_neg))])
    of_alpha = np.concatenate([np.zeros(m), a_neg])[None, :]
    found = optimize.linprog(
        -np.concatenate([(pair_weights * t).ravel(), np.zeros(n_neg)]),
        A_ub=sparse.vstack([below, sparse.csr_matrix(of_alpha)]),
        b_ub=np.append(np.zeros(m), K),
        bounds=(0, 1),
    )
    assert found.success
    return -found.fun


def by_quadratic_program(t, pair_weights, a_neg, K, nu):
    """Maximize over beta for given alpha, which is simple, and over alpha by the price of a unit of a_j alpha_j."""
    of_pos = pair_weights / a_neg  # a_i / (A+ K)

    def gain(alpha, j):  # of a little more of alpha_j, per unit of a_j
        return np.sum(of_pos[:, j] * np.maximum(t[:, j] - nu * alpha, 0.0))

    def bought(price, j):
        if gain(0.0, j) <= price:
            return 0.0
        return 1.0 if gain(1.0, j) >= price else optimize.brentq(lambda x: gain(x, j) - price, 0, 1, xtol=1e-15)

    def alphas(price):
        return np.array([bought(price, j) for j in range(t.shape[1])])

    alpha = alphas(0.0)
    if a_neg @ alpha > K:
        top = max(gain(0.0, j) for j in range(t.shape[1]))
        alpha = alphas(optimize.brentq(lambda price: a_neg @ alphas(price) - K, 0, top, xtol=1e-15))
    beta = np.clip(t / nu, 0, alpha)
    return np.sum(pair_weights * (beta * t - nu / 2 * beta * beta))


@pytest.mark.serial
@orderings
@given(problem=problems(max_rows=10), max_fpr=max_fprs, weighted=st.booleans(), seed=st.integers(0, 99))
def test_equals_programs_over_all_beta(ordering, problem, max_fpr, weighted, seed):
    """With ties, with K that is no whole number, and with weights."""
    scores, labels, nu = problem
    size = np.abs(scores).max()
    if not 0 < size < 1e3:
        return
    weights = np.random.default_rng(seed).random(len(labels)) * 3 + 0.01 if weighted else np.ones(len(labels))
    loss = build(f"pauc@{max_fpr}", labels, ordering, weights)
    given_pairs = pairs(scores, labels, weights, float(max_fpr))
    slack = 3e-7 * (1 + size)  # that of the program's solver
    exact, smooth = loss.evaluate(scores, 0.0), loss.evaluate(scores, nu)
    assert exact.R == pytest.approx(by_linear_program(*given_pairs), abs=slack)
    assert smooth.R == pytest.approx(exact.R, rel=1e-12, abs=1e-14)
    if 1e-3 <= nu <= 10:
        assert smooth.R_mu == pytest.approx(by_quadratic_program(*given_pairs, nu), abs=slack)


@pytest.mark.serial
@orderings
@given(problem=problems(max_rows=30), weighted=st.booleans())
def test_at_one_it_is_rocarea(ordering, problem, weighted):
    scores, labels, nu = problem
    weights = np.random.default_rng(1).random(len(labels)) + 0.1 if weighted else None
    losses = [build(name, labels, ordering, weights) for name in ("pauc@1", "rocarea")]
    slack = 8 * np.finfo(float).eps * (1 + np.abs(scores).max())
    for width in (nu, 0.0):
        whole, area = (loss.evaluate(scores, width) for loss in losses)
        np.testing.assert_allclose(whole[:2], area[:2], rtol=1e-12, atol=slack)
        if width > 0:  # at nu = 0, ties at the lowest negative may count or not
            np.testing.assert_allclose(whole.coefficients, area.coefficients, atol=1e-13 + min(1.0, slack / width))


@pytest.mark.serial
@orderings
@given(problem=problems(max_rows=30), weighted=st.booleans())
def test_below_one_negative_it_is_that_of_the_highest(ordering, problem, weighted):
    """TopPush: the mean hinge of the positives with the highest negative, if K is at most its weight."""
    scores, labels, _ = problem
    weights = np.random.default_rng(2).random(len(labels)) + 0.5 if weighted else np.ones(len(labels))
    positive, highest = labels > 0, scores[labels < 0].max()
    hinges = np.maximum(1 - (scores[positive] - highest), 0)
    for max_fpr in (1e-3, 0.3 / len(labels)):
        found = build(f"pauc@{max_fpr:.17f}", labels, ordering, weights).evaluate(scores, 0.0)
        expected = weights[positive] @ hinges / weights[positive].sum()
        assert found.R == pytest.approx(expected, rel=1e-12, abs=1e-14 * (1 + np.abs(scores).max()))


@pytest.mark.parametrize("nu", [0.0, 1e-9, 1e-3, 0.1, 3.0, 1e10])
@pytest.mark.parametrize("max_fpr", [0.001, 0.05, 0.6])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_gathering_all_along_a_run(max_fpr, nu, weighted, comm):
    """While scores change as in training, and the searches begin at the last roots."""
    n = 900
    rng = np.random.default_rng(4)
    labels = rng.permutation(np.repeat([1, -1], [90, 810]))
    weights = local_part(np.exp(rng.normal(size=n)), comm) if weighted else None
    gather, exchange = (
        build(f"pauc@{max_fpr}", local_part(labels, comm), ordering, weights, comm) for ordering in ORDERINGS
    )
    for scores in drifting(n, 9):
        mine = local_part(scores, comm)
        expected, found = (loss.evaluate(mine, nu) for loss in (gather, exchange))
        np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-9)
        np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-8, atol=1e-11 / max_fpr / n)


@pytest.mark.serial
def test_what_was_before_does_not_matter():
    """A loss that has seen other scores gives what a newly built one gives, apart from rounding."""
    labels = np.random.default_rng(3).permutation(np.repeat([1, -1], [200, 4800]))
    old = build("pauc@0.02", labels)
    for scores in drifting(5000, 7):
        for nu in (0.3, 0.01, 0.0):
            found, fresh = old.evaluate(scores, nu), build("pauc@0.02", labels).evaluate(scores, nu)
            np.testing.assert_allclose(found[:3], fresh[:3], rtol=1e-13)
            np.testing.assert_allclose(found.coefficients, fresh.coefficients, rtol=1e-10, atol=1e-18)


def test_few_rounds(comm):
    """The number of messages does not grow with the rows."""
    n = 30_000
    labels = np.where(np.arange(n) % 50 == 0, 1, -1)
    watched, calls = Watched(comm), []
    loss = build("pauc@0.05", local_part(labels, comm), comm=watched)
    for scores in drifting(n, 2):
        watched.calls = 0
        loss.evaluate(local_part(scores, comm), 0.1)
        calls.append(watched.calls)
    assert np.median(calls) <= 12


@pytest.mark.mpi(only=True)  # the memory of a process
def test_no_rank_holds_the_negatives(comm):
    """The memory of a root with few rows does not grow with the other ranks' negatives."""
    if comm.size == 1:
        pytest.skip("one rank holds everything")
    n = 300_000 if comm.rank == comm.size - 1 else 10
    rng = np.random.default_rng(comm.rank)
    labels, scores = np.where(np.arange(n) % 500 == 7, 1, -1).astype(np.int8), rng.normal(size=n)
    build("pauc@0.1", labels[:10], comm=comm)  # loads the kernels
    tracemalloc.start()
    loss = build("pauc@0.1", labels, comm=comm)
    for nu in (0.1, 0.0):
        loss.evaluate(scores, nu)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if comm.is_root:
        assert peak < 1_000_000


@pytest.mark.serial
def test_names():
    for name, max_fpr in (("pauc@0.05", 0.05), ("pauc@1", 1.0), ("pauc@.3", 0.3), ("pauc@1e-3", 1e-3)):
        measure = Measure.parse(name)
        assert (measure.family.name, measure.max_fpr, measure.parameters, str(measure)) == (
            "pauc",
            max_fpr,
            (max_fpr,),
            name,
        )
        assert measure.family.smooth
    for bad in (
        "pauc",
        "pauc@",
        "pauc@0",
        "pauc@1.01",
        "pauc@-0.1",
        "pauc@5%",
        "pauc@1e-400",
        "pauc@5e-324",
        "pauc@9e-13",
        "pauc@nan",
    ):
        with pytest.raises(InputError, match=r"pauc@0\.05"):
            Measure.parse(bad)


@pytest.mark.parametrize("ordering", ["gather", "exchange"])
def test_a_class_that_vanishes_in_the_product_of_both_is_refused(ordering):
    labels, weights = np.array([1, -1], np.int8), np.array([1e-300, 1.0])
    with pytest.raises(InputError, match=r"so small .* pauc@1e-12 vanishes"):
        make_loss("pauc@1e-12", ordering, labels, weights, Communicator())
