"""J, J_mu, gradient and plane: finite differences in w, agreement over ranks, several w in one pass, the stop flag."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.sparse import csr_matrix, diags

from distsms.base.choices import STEPS
from distsms.base.communicator import Communicator
from distsms.losses.registry import make_loss
from distsms.optim.objective import EPS, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from tests.support import oracles
from tests.support.problems import asked, data, objective, share

MEASURES = ("rocarea", "prbep")


def alone(X, y, measure, requests):
    return asked(objective(X, y, Communicator(), measure), requests)


@pytest.mark.serial
@pytest.mark.parametrize("measure", MEASURES)
def test_gradient_by_finite_differences(measure):
    X, y = data()
    rng, h, omega = np.random.default_rng(1), 1e-6, ElasticNet(0.1)
    w = rng.normal(size=X.shape[1])
    problem = objective(X, y, Communicator(), measure)
    at = problem.evaluate([Request(w, 0.5, omega)])[0]
    for i in range(len(w)):
        step = np.zeros(len(w))
        step[i] = h
        up, down = problem.evaluate([Request(w + step, 0.5, omega), Request(w - step, 0.5, omega)])
        assert at.gradient[i] == pytest.approx((up.J_mu - down.J_mu) / (2 * h), abs=1e-6)


@pytest.mark.parametrize("measure", MEASURES)
def test_any_ranks_give_the_same(measure, comm):
    """To 1e-11 of the largest term, as many ranks as there are against one."""
    X, y = data(seed=3)
    w = np.random.default_rng(2).normal(size=X.shape[1])
    requests = [Request(w, 0.02, ElasticNet(1e-4))]
    found = asked(objective(X, y, comm, measure), requests)
    if comm.is_root:
        expected = alone(X, y, measure, requests)[0]
        assert found[0].R == expected.R
        assert found[0].R_mu == expected.R_mu
        assert found[0].d == expected.d
        for name in ("J", "J_mu", "gradient", "r", "smoothing_gap"):
            one, other = np.array(getattr(found[0], name)), np.array(getattr(expected, name))
            assert np.abs(one - other).max() <= 1e-11 * max(1.0, np.abs(other).max()), name


@pytest.mark.parametrize("measure", MEASURES)
def test_several_w_in_one_pass(measure, comm):
    """k requests with their own w, nu, lambda and row weights are what k single ones are."""
    X, y = data(seed=4)
    rng = np.random.default_rng(0)
    weights = (rng.random(len(y)) < 0.6).astype(float)
    weights[:2] = 1
    rows = share(comm, len(y))
    both = objective(X, y, comm, measure)
    both.losses = [both.losses[0], make_loss(measure, "gather", y[rows], weights[rows], comm)]
    requests = [
        Request(rng.normal(size=X.shape[1]), nu, ElasticNet(lam), fold)
        for nu, lam, fold in ((0.1, 1e-2, 0), (1.0, 1e-4, 1), (0.1, 1e-4, 1))
    ]
    together = asked(both, requests)
    singly = [asked(both, [one]) for one in requests]
    if comm.is_root:
        for one, (other,) in zip(together, singly, strict=True):
            np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-12, atol=1e-14)
            assert one.J == pytest.approx(other.J, rel=1e-13)
            assert one.d == pytest.approx(other.d, rel=1e-13)
        assert together[1].R != together[0].R
        held_in = alone(X[weights > 0], y[weights > 0], measure, [requests[1]._replace(loss=0)])[0]
        assert together[1].J == pytest.approx(held_in.J, rel=1e-12)
        np.testing.assert_allclose(together[1].gradient, held_in.gradient, atol=1e-13)
    assert both.evaluations == 6


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("nu", [1e-6, 0.1, 10.0])
def test_planes_certify(measure, nu, comm):
    """J(w) - (the plane's lower bound on min J) = smoothing gap + optimization gap, and the plane holds elsewhere."""
    X, y = data(seed=5)
    rng, omega = np.random.default_rng(0), ElasticNet(0.01)
    points = [rng.normal(size=X.shape[1]) * size for size in (0.0, 0.3, 3.0)]
    found = asked(objective(X, y, comm, measure), [Request(w, nu, omega) for w in points])
    if comm.is_root:
        for one in found:
            bound = one.d - omega.conjugate(one.r @ one.r)
            gap = one.smoothing_gap + one.optimization_gap
            assert one.J - bound == pytest.approx(gap, abs=1e-9 * (1 + abs(bound)))
            assert one.smoothing_gap >= -1e-12
            for other in found:
                assert one.r @ other.w + one.d <= other.R + 1e-12
                assert bound <= other.J + 1e-12


def test_one_rank_asks_and_all_ranks_know(comm):
    X, y = data()
    last = comm.size - 1
    problem = objective(X, y, comm, stop_wanted=lambda: comm.rank == last)
    request = [Request(np.zeros(X.shape[1]), 1.0, ElasticNet(1.0))]
    assert not problem.stop_requested
    asked(problem, request)
    assert problem.stop_requested or not problem.vectors.runs_solver


def test_more_ranks_than_rows(comm):
    """Two rows on however many ranks; the others hold nothing and take part all the same."""
    X, y = csr_matrix([[1.0, 0.0], [0.0, 2.0]]), np.array([1, -1], np.int8)
    found = asked(objective(X, y, comm), [Request(np.zeros(2), 0.5, ElasticNet(1.0))])
    if comm.is_root:
        assert found[0].J == 1.0
        np.testing.assert_allclose(found[0].gradient, [-1.0, 2.0])


@pytest.mark.parametrize("step", STEPS)
def test_what_is_known_of_the_columns(step, comm):
    """Mean squares over all rows; and the largest bound on rounding of any rank: its entries times its largest one."""
    X, y = data(seed=5)
    array, n = X.toarray(), len(y)
    mine = array[share(comm, n)]
    bound = (np.count_nonzero(mine, axis=0) + comm.size + 8) * EPS * np.abs(mine).max(axis=0, initial=0)
    largest = np.max(comm.allgather(bound), axis=0)
    problem = objective(X, y, comm, step=step)
    here = problem.vectors.local_slice
    np.testing.assert_allclose(problem.second_moments(), here((array**2).mean(axis=0)), rtol=1e-12)
    if problem.vectors.runs_solver:
        errors, of_d = problem.plane_errors()
        np.testing.assert_allclose(errors, here(largest), rtol=1e-12)
        assert of_d == EPS * n


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_mean_squares_have_the_weights_of_the_rows(size, comm):
    """Also where the weights are so large or small that their squares are not numbers."""
    X, y = data(seed=5)
    problem, weights = objective(X, y, comm), np.arange(len(y)) % 4.0
    problem._weights = size * weights[share(comm, len(y))]
    means = problem.vectors.local_slice(np.average(X.toarray() ** 2, axis=0, weights=weights))
    np.testing.assert_allclose(problem.second_moments(), means, rtol=1e-12)


@pytest.mark.parametrize("solver", ["lmvm", "bmrm"])
def test_one_pass_describes_the_columns(solver, comm, monkeypatch):
    """Whether the solver works on scaled columns or not: scales and bounds on rounding come from the same pass."""
    X, y = data()
    problem, passes = objective(X, y, comm), []
    describe = problem.features.columns
    monkeypatch.setattr(problem.features, "columns", lambda weights=None: passes.append(0) or describe())
    minimize(problem, Settings(lam=1e-2, solver=solver, max_evaluations=3))
    assert len(passes) == 1


@pytest.mark.parametrize("measure", ["rocarea", "prbep", "logistic"])
@pytest.mark.parametrize("step", STEPS)
def test_how_wrong_J_may_be(step, measure, comm, monkeypatch):
    """The bound from sizes alone takes no pass; it holds in rational numbers, and is larger than that from a pass."""
    X, y = data(seed=5)
    problem, passes, w = objective(X, y, comm, measure, step=step), [], np.linspace(-1, 1, X.shape[1])
    bound = problem.features.largest_terms
    monkeypatch.setattr(problem.features, "largest_terms", lambda w: passes.append(0) or bound(w))
    problem.second_moments()
    if not problem.vectors.runs_solver:
        return problem.serve()
    here = problem.vectors.local_slice
    (found,) = problem.evaluate([Request(here(w), 0.0, ElasticNet(0.1))])
    enough, made = problem.rounding(found, 1e-9), len(passes)
    least = problem.rounding(found)
    zero = problem.rounding(found._replace(w=0 * here(w)), 1e-9)
    problem.release()
    assert (made, len(passes)) == (0, 1) and zero < least <= enough <= 1e-9
    if measure == "rocarea":
        entries = oracles.rational(X.toarray()).reshape(X.shape)
        scores = entries @ oracles.rational(w)
        exact = oracles.rocarea_risk(scores[y > 0], scores[y < 0])
        assert abs(oracles.rational(found.R)[0] - exact) <= oracles.rational(least)[0]
    return None


@pytest.mark.parametrize("l1", [0.0, 0.01])
@pytest.mark.parametrize("size", [1.0, 1e4, 1e8])
def test_how_wrong_J_may_be_where_scores_are_large(size, l1):
    """As where a run begins at another model: squares of scores, and of w, that cancel in the scores or do not."""
    exact, half = lambda values: oracles.rational(np.atleast_1d(values)), Fraction(1, 2)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(6, 2)) + rng.choice([0.0, 1e3]), np.array([1, 1, -1, -1, -1, -1], np.int8)
        w = size * rng.normal(size=2)
        if seed % 2:
            X[:, 1], w[1] = X[:, 0] * (1 + 1e-7 * rng.normal(size=6)), -w[0]
        problem = objective(csr_matrix(X), y, Communicator(), "normal-auc")
        (found,) = problem.evaluate([Request(w, 0.0, ElasticNet(0.1, l1))])
        scores = exact(X.ravel()).reshape(X.shape) @ exact(w)
        centres = [sum(scores[y == sign]) / sum(y == sign) for sign in (1, -1)]
        variances = (
            sum((scores[y == sign] - centre) ** 2) / sum(y == sign)
            for sign, centre in zip((1, -1), centres, strict=True)
        )
        J = half * ((1 - centres[0] + centres[1]) ** 2 + sum(variances)) + half * exact(0.1)[0] * sum(exact(w) ** 2)
        J += exact(l1)[0] * sum(abs(exact(w)))
        assert abs(exact(found.J)[0] - J) <= exact(problem.rounding(found))[0] <= exact(1e-6 * (1 + found.J))[0]


def test_how_wrong_J_may_be_where_scores_lose_all_their_digits():
    """Scores of -127 and 127 are computed as 0; then the squares of these errors are most of the error of J."""
    lost = np.array([2.0**60, -(2.0**60), 127.0])
    X, y = np.array([-lost, lost, [1.0, 0.0, 0.0]]), [1, -1, -1]
    problem = objective(csr_matrix(X), np.array(y, np.int8), Communicator(), "normal-auc")
    (found,) = problem.evaluate([Request(np.ones(3), 0.0, ElasticNet(0.1))])
    exact = 0.5 * np.mean([(1 + 127 + score) ** 2 for score in (127, 1)])
    assert found.R == 1.25 and exact - found.R <= problem.rounding(found)


def test_huge_entries_take_a_pass(comm):
    """Where their coefficients are tiny, the pass finds that J is accurate, which the sizes of the rows do not show."""
    X, y = data(seed=5)
    scale = np.append(1e9, np.ones(X.shape[1] - 1))
    problem, settings = objective((X @ diags(scale)).tocsr(), y, comm), Settings(1e-2, 1e-3, solver="lmvm")
    assert minimize(problem, settings).status is Status.PROVED
    assert "rounding" in problem.clock.seconds
    usual = objective(X, y, comm)
    assert minimize(usual, settings).status is Status.PROVED
    assert "rounding" not in usual.clock.seconds
