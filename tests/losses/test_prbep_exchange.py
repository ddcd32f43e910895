"""PRBEP without gathering equals the gathering reference at the same w, with few and small messages."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.losses.registry import make_loss
from distsms.metrics.ranking import top_k
from tests.support.problems import problems, share


class Watched:
    """A communicator that counts its collectives and records the length of the longest; it has few of them."""

    def __init__(self, comm):
        self.comm, self.calls, self.longest = comm, 0, 0
        self.rank, self.size, self.allgather = comm.rank, comm.size, comm.allgather

    def sum(self, array):
        self.calls, self.longest = self.calls + 1, max(self.longest, array.size)
        return self.comm.sum(array)

    def allgather_rows(self, local, counts):
        self.calls, self.longest = self.calls + 1, max(self.longest, sum(counts))
        return self.comm.allgather_rows(local, counts)

    def maximum(self, array):
        self.calls, self.longest = self.calls + 1, max(self.longest, array.size)
        return self.comm.maximum(array)


def pair(labels, comm, watched=None, weights=None):
    """Build the loss with both orderings on this rank's share of the rows."""
    here = share(comm, len(labels))
    mine, own = labels[here], None if weights is None else weights[here]
    return [
        make_loss("prbep", *way, mine, own, with_)
        for way, with_ in ((("exchange",), watched or comm), (("gather",), comm))
    ]


def assert_equal(found, expected, n, slack=1e-9):
    """The numbers agree to a relative 1e-9, the coefficients to 1e-9 of the largest that a row can have."""
    np.testing.assert_allclose(found[:3], expected[:3], rtol=1e-9, atol=slack * 1e-3)
    np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=0, atol=slack * 2 / n)


def drifting(n, seed):
    """Yield scores that change as in training: small steps, a jump, a return, ties, another scale, and all equal."""
    rng = np.random.default_rng(seed)
    scores, direction = rng.normal(size=n), rng.normal(size=n)
    yield np.zeros(n)
    for step in (0.3, 0.1, 0.1, 0.03, 0.01, 0.01, 1e-3, 1e-6, 0.0, 0.0, 100.0, -100.0, 0.01):
        scores = scores + step * direction
        yield scores
    yield np.round(scores, 1)
    yield 1e-8 * scores
    yield 1e8 + scores
    yield scores + 1e8 * (np.arange(n) == 0)
    yield np.full(n, -3.25)
    yield scores


@pytest.mark.parametrize("nu", [0.0, 1e-9, 1e-3, 0.1, 3.0, 1e4, 1e10])
@pytest.mark.parametrize("n, n_pos", [(900, 90), (900, 600), (30, 1), (2, 1)])
def test_equals_gathering_all_along_a_run(n, n_pos, nu, comm):
    labels = np.random.default_rng(n_pos).permutation(np.repeat([1, -1], [n_pos, n - n_pos]))
    exchange, gather = pair(labels, comm)
    for scores in drifting(n, n_pos):
        mine = scores[share(comm, n)]
        # with scores of size S, beta is determined only to S eps / nu
        resolution = 32 * np.spacing(np.abs(scores).max()) / nu if nu else 0.0
        assert_equal(exchange.evaluate(mine, nu), gather.evaluate(mine, nu), n, 1e-9 + min(1.0, resolution))


@pytest.mark.serial
@given(problem=problems(max_rows=30))
def test_equals_gathering(problem):
    scores, labels, nu = problem
    exchange, gather = pair(labels, Communicator())
    resolution = 32 * np.spacing(np.abs(scores).max() + len(scores)) / nu
    for width in (nu, 0.0, nu):
        found, expected = exchange.evaluate(scores, width), gather.evaluate(scores, width)
        assert_equal(found, expected, len(scores), 1e-9 + min(1.0, resolution * (width > 0)))


def test_few_and_small_messages(comm):
    """For any n: some rounds for tau0 and a few steps while the scores drift, and a known bound after any jump."""
    n = 40_000
    labels = np.where(np.arange(n) % 7 == 0, 1, -1)
    watched = Watched(comm)
    exchange, _ = pair(labels, comm, watched)
    calls = []
    for nu in (0.3, 0.0):
        for scores in drifting(n, 4):
            watched.calls = 0
            exchange.evaluate(scores[share(comm, n)], nu)
            calls.append(watched.calls)
    assert max(calls) <= 36  # in brackets, the division of one, and Newton's method
    assert np.median(calls) <= 10
    assert watched.longest <= 2 * (3 + 4 * 2**9)


@pytest.mark.mpi(only=True)  # the memory of a process
@pytest.mark.parametrize("what", ["loss", "report"])
def test_no_rank_holds_what_all_ranks_have(what, comm):
    """The root has almost no rows; its memory must not grow by a number, or even a byte, for each row of the other
    ranks.
    """
    if comm.size == 1:
        pytest.skip("one rank holds everything")
    n = 300_000 if comm.rank == comm.size - 1 else 10
    rng = np.random.default_rng(comm.rank)
    labels, scores = np.where(rng.random(n) < 0.1, 1, -1).astype(np.int8), rng.normal(size=n)
    make_loss("prbep", "exchange", labels[:10], None, comm)  # loads the kernels
    tracemalloc.start()
    if what == "loss":
        loss = make_loss("prbep", "exchange", labels, None, comm)
        for nu in (0.1, 0.0):
            loss.evaluate(scores, nu)
    else:
        top_k(Scored(scores, labels, comm), 20_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if comm.is_root:
        assert peak < 300_000


@pytest.mark.serial
@given(st.lists(st.sampled_from([0.0, 1e-300, 1e-20, 1.0, 1e3, 1e20, 1e100, 1e300]), min_size=2, max_size=6), st.data())
def test_what_was_before_does_not_matter(sizes, data):
    """After scores of any size, each evaluation gives the same as a newly built loss."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    labels = np.where(np.arange(data.draw(st.integers(2, 30))) % 3 == 0, 1, -1).astype(np.int8)
    exchange, gather = pair(labels, Communicator())
    for size in sizes:
        scores, nu = rng.normal(size=len(labels)) * size, data.draw(st.sampled_from([0.0, 1e-9, 1e-2, 1.0, 1e3]))
        value, expected = exchange.evaluate(scores, nu), gather.evaluate(scores, nu)
        np.testing.assert_allclose(value[:2], expected[:2], rtol=1e-9, atol=1e-14 * size)
        fresh = pair(labels, Communicator())[0].evaluate(scores, nu)
        np.testing.assert_allclose(value[:2], fresh[:2], rtol=1e-9, atol=1e-14 * size)


@pytest.mark.serial
@pytest.mark.parametrize("away", [1e10, 1e25, 1e50, 1e150])
def test_rows_far_away_from_the_rest(away):
    """With one positive far above and one negative far below, the risk is that of the other rows, and as exact."""
    rng = np.random.default_rng(1)
    labels, scores = np.where(np.arange(40) % 3 == 0, 1, -1), rng.normal(size=40)
    scores[0], scores[1] = away, -away
    exchange, gather = (loss.evaluate(scores, 1e-3) for loss in pair(labels, Communicator()))
    np.testing.assert_allclose(exchange[:3], gather[:3], rtol=1e-9)
    np.testing.assert_allclose(exchange.coefficients, gather.coefficients, rtol=1e-9, atol=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("nu", [5e-324, 1e-300])
def test_widths_below_the_grid(nu):
    labels = np.array([1, -1, -1])
    for scores in (np.zeros(3), np.array([8e10, 8e10, -1.0])):
        exchange, gather = (loss.evaluate(scores, nu) for loss in pair(labels, Communicator()))
        np.testing.assert_allclose(exchange[:2], gather[:2], rtol=1e-9, atol=1e-5)


@pytest.mark.serial
def test_distances_below_every_normal_number():
    """At nu = 0 the plane touches R here, too."""
    for loss in pair(np.array([1, 1, -1, -1]), Communicator()):
        scores = np.array([5e-324, 0.0, 0.0, 0.0])
        found = loss.evaluate(scores, 0.0)
        assert found.R == found.d + found.coefficients @ scores == 1.0


@pytest.mark.serial
def test_weights_that_vanish_leave_no_trace_of_earlier_scores():
    rng = np.random.default_rng(0)
    for _ in range(8):
        labels, weights = np.where(rng.random(3000) < 0.4, 1, -1), np.where(rng.random(3000) < 0.9, 5e-324, 1e10)
        exchange, gather = pair(labels, Communicator(), weights=weights)
        middle = rng.normal(size=3000)
        for k in range(6):
            scores = middle + 1e-3 * k * rng.normal(size=3000)
            np.testing.assert_allclose(
                exchange.evaluate(scores, 0.01)[:3], gather.evaluate(scores, 0.01)[:3], rtol=1e-9
            )
