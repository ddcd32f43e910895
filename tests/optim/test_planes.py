"""Lower bounds: never above the truth, as tight as an independent solver's, never looser with more planes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize

from distsms.base.communicator import Communicator
from distsms.optim.penalty import ElasticNet
from distsms.optim.planes import Mixture, Origins, Planes
from distsms.optim.qp import simplex_least_squares, simplex_qp
from distsms.optim.result import Origin
from distsms.parallel.vectors import make_vectors
from tests.support.examples import EXAMPLES

pytestmark = pytest.mark.serial


def whole(p):
    return make_vectors("root", p, Communicator())


def value(Q, d, alpha):
    return d @ alpha - alpha @ Q @ alpha / 2


@given(st.integers(1, 12), st.integers(1, 6), st.integers(-4, 4), st.booleans(), st.integers(0, 10**6))
@example(12, 6, 3, False, 4006)  # what rounding left in a direction without curvature counted as its slope
def test_the_program_is_solved(k, rank, size, doubled, seed):
    """Optimality: no vertex of the simplex is a direction of ascent."""
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(rank, k))
    if doubled and k > 1:
        B[:, 1] = B[:, 0]  # equal planes
    B *= 10.0 ** (size / 2)
    Q, d = B.T @ B, rng.random(k)
    for alpha in (simplex_qp(Q, d, rng.normal(size=k)), simplex_least_squares(B, d, rng.normal(size=k))):
        assert alpha.min() >= 0
        assert alpha.sum() == pytest.approx(1, abs=1e-12)
        slope = d - Q @ alpha
        assert slope.max() - alpha @ slope <= 1e-9 * (np.abs(Q).max() + 1)


@given(
    st.integers(1, 40), st.integers(1, 40), st.floats(0, 6), st.floats(-75, 75), st.booleans(), st.integers(0, 10**6)
)
def test_steep_flat_and_equal_planes_of_any_scale(k, rank, steep, scale, warm, seed):
    """The value is at least that of the guess, of each plane alone, and of the slow method, but for rounding."""
    rng = np.random.default_rng(seed)
    F = rng.normal(size=(rank, k)) * 10.0 ** rng.uniform(-steep, steep, k)
    F = F[:, rng.integers(0, k, k)]  # some planes are equal
    F[:, rng.random(k) < 0.1] = 0.0
    F *= 10.0**scale
    Q, d, guess = F.T @ F, rng.random(k) * 10.0 ** (2 * scale), rng.random(k) * (rng.random(k) < 0.5)
    if warm and k > 1:  # the best mixture of all planes but the last
        guess = np.append(simplex_qp(Q[:-1, :-1], d[:-1], guess[:-1]), 0.0)
    alpha, other = simplex_qp(Q, d, guess), simplex_least_squares(F, d, guess)
    assert alpha.min() >= 0
    assert alpha.sum() == pytest.approx(1, abs=1e-12)
    others = [other, *np.eye(k)] + ([guess / guess.sum()] if guess.any() else [])
    terms = [d @ a + (a @ np.sqrt(np.diag(Q))) ** 2 for a in (alpha, *others)]
    for a, size in zip(others, terms[1:], strict=True):
        assert value(Q, d, alpha) >= value(Q, d, a) - 1e-13 * (terms[0] + size)


@given(st.integers(2, 6), st.integers(0, 10**6))
def test_as_good_as_an_independent_solver(k, seed):
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(4, k))
    Q, d = B.T @ B, rng.random(k)
    other = minimize(
        lambda a: -value(Q, d, a),
        np.full(k, 1 / k),
        jac=lambda a: Q @ a - d,
        bounds=[(0, 1)] * k,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(k)},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert value(Q, d, simplex_qp(Q, d, np.zeros(k))) >= -other.fun - 1e-9


@pytest.mark.parametrize("capacity", [2, 3, 10, 100])
@pytest.mark.parametrize("nonnegative", [True, False])
def test_bounds_hold_and_grow(capacity, nonnegative):
    """Planes of R(w) = max_k <a_k, w> + b_k with min J known from an independent solver of the primal."""
    rng = np.random.default_rng(capacity)
    A, b, lam = rng.normal(size=(8, 5)), rng.normal(size=8), 0.3
    if nonnegative:
        A, b = np.vstack([A, np.zeros(5)]), np.append(b, 0.0)
    primal = minimize(
        lambda u: lam / 2 * u[:5] @ u[:5] + u[5],
        np.append(np.zeros(5), b.max()),
        constraints={"type": "ineq", "fun": lambda u: u[5] - A @ u[:5] - b},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    certificate = Planes(whole(5), ElasticNet(lam), nonnegative, capacity)
    bounds = []
    for step in range(120):
        w = primal.x[:5] + rng.normal(size=5) / (1 + step)
        k = np.argmax(A @ w + b)
        bounds.append(certificate.add(A[k], b[k]))
    assert np.all(np.diff(bounds) >= 0)
    assert bounds[-1] <= primal.fun + 1e-9
    if capacity >= 10:  # room for every plane there is
        assert bounds[-1] == pytest.approx(primal.fun, abs=1e-7)


@pytest.mark.parametrize("zero_plane", [True, False])
def test_the_minimum_is_the_models(zero_plane):
    """No gap of duality: the highest plane at the minimizer, and the regularizer, add up to the bound."""
    rng, regularizer = np.random.default_rng(2), ElasticNet(1e-6)
    certificate = Planes(whole(20), regularizer, zero_plane, 100)
    A, b = rng.normal(size=(80, 20)), rng.random(80)
    for k in range(80):
        certificate.add(A[k], b[k])
        w, least = certificate.minimum()
        highest = max((A @ w + b)[: k + 1].max(), 0.0 if zero_plane else -np.inf)
        assert regularizer.value(w @ w) + highest == pytest.approx(least, rel=1e-9, abs=1e-6)
        assert least == pytest.approx(certificate.lower_bound, rel=1e-9, abs=1e-6)


def test_one_plane_gives_the_formula():
    """min J >= d - ||r||^2 / (2 lam), and the zero plane mixes in where R >= 0."""
    r, d, lam = np.array([3.0, 4.0]), 1.0, 100.0
    assert Planes(whole(2), ElasticNet(lam), False, 2).add(r, d) == pytest.approx(1 - 25 / 200)
    assert Planes(whole(2), ElasticNet(lam), True, 2).add(r, d) == pytest.approx(1 - 25 / 200)
    # with a small lam the best mixture a r, a d has a = lam d / ||r||^2, the bound a d / 2
    assert Planes(whole(2), ElasticNet(1.0), True, 2).add(r, d) == pytest.approx(1 / 50)
    for d_error in (0.1, 1e-9, 1e9):  # subtracted whole, to the last bit
        assert Planes(whole(2), ElasticNet(1.0), False, 2, d_error=d_error).add(np.zeros(2), 0.0) <= -d_error


def test_weights_that_add_up_to_two_prove_what_their_halves_prove():
    bundle, alpha, planes = Planes(whole(2), ElasticNet(0.1), False, 5), np.array([0.3, 0.7]), np.eye(2)
    for r in planes:
        bundle.add(r, 0.5)
    square = alpha @ alpha
    halves = bundle.lower_bound_of(Mixture(alpha, square, noise=1e-3, first_order=1e-3, off=1e-3))
    found = bundle.lower_bound_of(Mixture(2 * alpha, 4 * square, noise=4e-3, first_order=4e-3, off=2e-3))
    assert tuple(found) == pytest.approx(tuple(halves), rel=1e-9)


@pytest.mark.parametrize("length, steep", [(1.0, False), (1e4, True)])
def test_only_steep_planes_are_factorized(length, steep, monkeypatch):
    """Where the usual error of ||m||^2, 128 roundoffs of its terms, is above the tolerance in the bound, or in the
    value of the program of a level point, whose lambda is larger.
    """
    vectors, lam, factorized = whole(3), 0.1, []
    factor = vectors.qr_factor
    monkeypatch.setattr(vectors, "qr_factor", lambda planes: factorized.append(0) or factor(planes))
    bundle = Planes(vectors, ElasticNet(lam), False, 5)
    for r in length * np.eye(3):
        bundle.add(r, 0.5, tolerance=1e-6)
    assert bool(factorized) == steep
    bundle.level_point(np.ones(3), length + 1, 0.3)
    _, lost = bundle._level_point(np.ones(3), length + 1, 0.3)
    error = 64 * np.finfo(float).eps * length**2
    assert bool(factorized) == steep and lost == pytest.approx(ElasticNet(lam + bundle._proximity).conjugate(error))


def test_the_points_of_a_mixture_prove_the_bound():
    """Also where planes were merged: with the shares of their points, the planes themselves prove it."""
    rng, lam = np.random.default_rng(3), 0.1
    A, b = rng.normal(size=(30, 5)), rng.random(30)
    bundle = Planes(whole(5), ElasticNet(lam), True, 4, origins=Origins(100))
    for k in range(30):
        bundle.add(A[k], b[k], point=Origin(np.array([k]), 0.0))
        mixture = bundle.origins.mixture()
        shares, points = np.array([each.share for each in mixture]), [int(each.w[0]) for each in mixture]
        m = shares @ A[points]
        assert shares.sum() <= 1 + 1e-12
        assert shares @ b[points] - m @ m / (2 * lam) == pytest.approx(bundle.lower_bound, abs=1e-9)
    assert len(mixture) > 4  # so some were merged


def test_points_that_are_too_many_leave_their_shares_to_the_others():
    """That of least weight goes, in the best mixture and in the planes; and a restored object goes on as the first."""

    def shares(origins):
        return {int(point.w[0]): point.share for point in origins.mixture()}

    def point(number):
        return Origin(np.array([float(number)]), nu=number / 8)

    first, restored = Origins(most=4), Origins(most=4)
    for slot in range(4):
        first.put(slot, point(slot))
    first.follow(np.array([0.1, 0.2, 0.3, 0.4]), best=True)
    assert shares(first) == {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}
    first.merge(3, 0, 0.9, 0.1)
    first.put(0, point(4))
    # The weights of the points 0 to 4 are now 0.14, 0.4, 0.4, 0.76 and 0.3.
    first.follow(np.array([0.3, 0.2, 0.1, 0.4]), best=False)
    assert shares(first) == pytest.approx({1: 2 / 9, 2: 3 / 9, 3: 4 / 9})
    assert len(first.snapshot().vectors["points"]) == 4
    restored.restore(first.snapshot())
    for origins in (first, restored):
        assert shares(origins) == pytest.approx({1: 2 / 9, 2: 3 / 9, 3: 4 / 9})
        origins.follow(np.array([0.2, 0.2, 0.2, 0.4]), best=True)
        assert shares(origins) == pytest.approx({4: 0.2, 1: 0.2, 2: 0.2, 3: 0.4})
        origins.put(2, point(5))
        origins.follow(np.array([0.2, 0.0, 0.5, 0.3]), best=True)
        assert shares(origins) == pytest.approx({4: 0.2, 5: 0.5, 3: 0.3})
        assert all(each.nu == each.w[0] / 8 for each in origins.mixture())


def test_shares_that_have_underflowed_take_over_nothing():
    origins = Origins(most=1)
    origins.put(0, Origin(np.zeros(1), 0.0))
    origins.put(1, Origin(np.ones(1), 0.0, share=0.25))
    origins.merge(0, 1, 1.0, 5e-324)  # the first plane has a quarter of that from the second point, which is 0
    origins.follow(np.array([0.1, 0.9]), best=True)
    assert [(point.w[0], point.share) for point in origins.mixture()] == [(1.0, pytest.approx(0.325))]


def test_merging_keeps_the_gram_matrix_true():
    rng = np.random.default_rng(0)
    certificate = Planes(whole(6), ElasticNet(1e-3), True, 4)
    for _ in range(50):
        certificate.add(rng.normal(size=6) * 0.1 + 0.3, rng.random())
    planes = certificate._planes
    np.testing.assert_allclose(certificate._gram, planes @ planes.T, rtol=1e-10, atol=1e-12)


def test_a_plane_without_slope_beside_the_zero_plane():
    """Contradictory rows give r = 0 with d > 0; at a tiny lam the program's terms differ by ten orders of magnitude."""
    certificate = Planes(whole(1), ElasticNet(1e-8), True, 3)
    for r, d in ((0.0, 0.5), (-999.0, 0.5), (0.0, 0.5), (3.0, 0.7), (-1e-9, 0.1), (0.0, 0.2)):
        certificate.add(np.array([r]), d)
        assert np.isfinite(certificate._alpha).all()
    assert certificate.lower_bound == pytest.approx(0.5, abs=1e-9)
    np.testing.assert_array_equal(simplex_qp(np.zeros((2, 2)), np.array([1.0, 0.0]), np.array([0.3, 0.7])), [1, 0])


@pytest.mark.parametrize("steep", [1.0, 1e3, 1e6, 1e9])
def test_a_steep_plane_does_not_hide_a_flat_one(steep):
    """Beside <steep, v> + 1 the flat plane d = 1/2 alone is best, whatever lambda makes of their sizes."""
    bundle = Planes(whole(1), ElasticNet(1e-8), True, 5)
    bundle.add(np.array([steep]), 1.0)
    assert bundle.add(np.array([0.0]), 0.5) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("steep", [1e3, 1e5, 1e6, 1e8])
def test_never_below_a_single_plane(steep):
    """A few steep planes, then one that is nearly flat: the bundle proves what that plane proves alone."""
    for seed in range(round(2.5 * EXAMPLES)):
        rng = np.random.default_rng(seed)
        bundle = Planes(whole(3), ElasticNet(1e-3), True, 40)
        for _ in range(rng.integers(2, 5)):
            bundle.add(rng.normal(size=3) * steep, rng.random())
        flat = rng.normal(size=3) * 1e-2
        assert bundle.add(flat, 0.9) >= 0.9 - flat @ flat / 2e-3 - 1e-9
        assert bundle.minimum()[1] >= bundle.lower_bound - 1e-9


def exact_model(w, planes, lam):
    """Omega(w) + the highest of the planes (r, d), in rational numbers."""

    def product(a, b):
        return sum((Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)), Fraction(0))

    return Fraction(lam) / 2 * product(w, w) + max(product(r, w) + Fraction(d) for r, d in planes)


@given(
    st.integers(1, 4),
    st.integers(2, 12),
    st.sampled_from([2, 3, 5, 40]),
    st.floats(-13, 6),
    st.floats(0, 9),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_no_bound_above_the_model(p, count, capacity, lam, steep, zero_plane, seed):
    """Steep planes that all but cancel, merged or not: the bound is never above the exact model, wherever that is."""
    rng, lam = np.random.default_rng(seed), 10.0**lam
    bundle = Planes(whole(p), ElasticNet(lam), zero_plane, capacity)
    planes = [(np.zeros(p), 0.0)] if zero_plane else []
    directions = rng.normal(size=(2, p)) * 10.0**steep
    points = [np.zeros(p)]
    for k in range(count):
        r = directions[k % 2] * (-1) ** k * rng.uniform(0.5, 2) + rng.normal(size=p) * 10.0 ** rng.uniform(-6, 0)
        planes.append((r, rng.random()))
        bundle.add(*planes[-1])
        points += [bundle.minimum()[0], bundle.level_point(points[-1], 1.0, 0.3)]
        least = min(exact_model(w, planes, lam) for w in points)
        assert Fraction(bundle.lower_bound) <= least


def test_steep_planes_that_cancel_are_told_apart():
    """Where the Gram matrix knows ||m||^2 / (2 lam) to some units only: planes of 2.5e6 and 2.5e7, lambda 1.5e-5.

    The model is least where both are equally high. That w is 1e-9 of what rounding does to m / lambda.
    """
    planes, lam = [(np.array([-2524890.57710239]), 5 / 6), (np.array([24742785.47175459]), 2 / 3)], 1.46e-5
    bundle = Planes(whole(1), ElasticNet(lam), True, 40)
    for r, d in planes:
        bundle.add(r, d, tolerance=1e-6)
    (r, d), (s, e) = planes
    meeting = (d - e) / (s - r)
    w, bound = bundle.minimum()
    assert w == pytest.approx(meeting, rel=1e-9)
    assert bound == pytest.approx((d + r * meeting).item(), abs=1e-9)
    # A third plane, through the same height at 0 but falling the other way, raises the bound to that height.
    assert bundle.add(np.array([1598906.96213791]), d, tolerance=1e-6) == pytest.approx(d, abs=1e-9)


@pytest.mark.parametrize("capacity", [2, 5])
def test_what_merging_moves_is_taken_off(capacity):
    """The planes that are merged would prove 0.6; no rounding of their mixture may claim more."""
    rng = np.random.default_rng(1)
    bundle = Planes(whole(3), ElasticNet(1e-12), False, capacity)
    r = rng.normal(size=3) * 1e4
    for k in range(60):
        bundle.add(r * (-1) ** k * (1 + k / 7), 0.6)
    assert 0.6 - 1e-3 <= bundle.lower_bound <= 0.6


@given(st.integers(1, 6), st.floats(0.1, 0.9), st.integers(0, 10**6))
def test_level_points_are_near_and_low_enough(k, share, seed):
    """The model is at most at the level there, and the centre not twice as far as the nearest such point."""
    rng, lam = np.random.default_rng(seed), 0.3
    A, b, centre = rng.normal(size=(k, 4)), rng.normal(size=k), 3 * rng.normal(size=4)
    certificate = Planes(whole(4), ElasticNet(lam), False, 10)
    for row, height in zip(A, b, strict=True):
        certificate.add(row, height)

    def model(w):
        return lam / 2 * w @ w + np.max(A @ w + b)

    J = model(centre)
    level = certificate.lower_bound + share * (J - certificate.lower_bound)
    w = certificate.level_point(centre, J, share)
    nearest = minimize(
        lambda v: (v - centre) @ (v - centre),
        w,
        constraints={"type": "ineq", "fun": lambda v: level - lam / 2 * v @ v - A @ v - b},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert model(w) <= level + 1e-9 * (1 + abs(J))
    assert np.linalg.norm(w - centre) <= 2 * np.linalg.norm(nearest.x - centre) + 1e-4


@pytest.mark.parametrize("heights, gone", [((5.0, 1.0, 2.0, 3.0), 1.0), ((2.0, 1.0, 1.5, 5.0, 3.0), 1.0)])
def test_the_plane_that_was_of_no_use_for_longest_goes_first(heights, gone):
    """Of a bundle that is full; what came last stays, though it has no weight, since the next step may need it.

    In the second case the first plane was of use until the highest one came.
    """
    certificate = Planes(whole(2), ElasticNet(1.0), False, len(heights) - 1)
    for d in heights:  # flat planes: only the highest has a weight
        certificate.add(np.zeros(2), d)
    assert sorted(certificate._d) == sorted(set(heights) - {gone})
