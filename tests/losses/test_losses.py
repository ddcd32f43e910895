"""Both losses agree with brute force, with finite differences, with their own bounds, and with themselves on other
ranks.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.losses.registry import make_loss
from tests.support import oracles
from tests.support.problems import ALL, PAUC, WAYS, build, local_part, problems

MAX_FPR = Measure.parse(PAUC).max_fpr
RISK = {
    "rocarea": oracles.rocarea_risk,
    PAUC: lambda *classes: oracles.pauc_risk(*classes, MAX_FPR),
    "prbep": oracles.prbep_risk,
}
SMOOTHED = {
    "rocarea": oracles.rocarea_smoothed,
    PAUC: lambda *given: oracles.pauc_smoothed(*given, MAX_FPR),
    "prbep": oracles.prbep_smoothed,
}


def evaluate(measure, scores, labels, nu):
    return build(measure, labels).evaluate(np.asarray(scores, float), nu)


def check_equal(measure, value, expected, coefficients):
    """Equal to the bit if the root sums up alone, to rounding if the ranks do."""
    tolerance = 0 if measure[1] == "gather" else 1e-12
    np.testing.assert_allclose(value[:3], expected[:3], rtol=tolerance)
    np.testing.assert_allclose(value.coefficients, coefficients, rtol=tolerance, atol=tolerance / 10)


def check_against_brute_force(measure, scores, labels, widths):
    """Compare everything that the losses of a measure return with exact rational arithmetic."""
    positive, negative = (oracles.rational(scores[labels == sign]) for sign in (1, -1))
    R = float(RISK[measure](positive, negative))
    # The precision of floats: scores of size S and offsets of size 1 add up with an error of S eps, and beta has slope
    # 1/nu.
    eps = 4 * np.finfo(float).eps * len(scores)
    largest = 1 + float(np.abs(scores).max()) + len(scores)
    # in units where a single row's largest coefficient is about 1
    scale = {1: len(positive), -1: len(negative)} if measure != "prbep" else dict.fromkeys((1, -1), len(scores))
    for nu in widths:
        R_mu, d, *coefficients = SMOOTHED[measure](positive, negative, oracles.rational([nu])[0])
        for way in (way for way in ALL if way[0] == measure):
            value = evaluate(way, scores, labels, nu)
            assert pytest.approx(R, rel=1e-12, abs=eps * largest) == value.R
            assert value.R_mu == pytest.approx(float(R_mu), rel=1e-12, abs=eps * largest)
            slack = min(1.0, eps * largest / nu)
            if slack < 0.1:
                assert value.d == pytest.approx(float(d), abs=slack + 1e-13)
                for sign, expected in zip((1, -1), coefficients, strict=True):
                    found = value.coefficients[labels == sign] * scale[sign]
                    np.testing.assert_allclose(found, np.array(expected, float) * scale[sign], atol=2 * slack + 1e-13)


@pytest.mark.serial
@pytest.mark.parametrize("measure", RISK)
@given(problem=problems())
def test_equals_brute_force(measure, problem):
    scores, labels, nu = problem
    check_against_brute_force(measure, scores, labels, [nu])


@pytest.mark.serial
@pytest.mark.parametrize("measure", RISK)
@pytest.mark.parametrize("n_pos, n_neg", [(1, 1), (1, 30), (30, 1), (40, 25), (25, 40)])
@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
def test_equals_brute_force_on_more_rows(measure, n_pos, n_neg, size):
    rng = np.random.default_rng(n_pos)
    labels = rng.permutation(np.repeat([1, -1], [n_pos, n_neg]))
    scores = rng.normal(size=n_pos + n_neg) + (labels > 0)
    if size == 1e8:  # far from zero and close to each other, so that prefix sums would cancel
        scores += size
    else:
        scores *= size
    check_against_brute_force(measure, scores, labels, (1e-3, 0.3, 50.0))


@pytest.mark.serial
@given(problem=problems(max_rows=8))
def test_prbep_over_k_is_prbep_over_all_labelings(problem):
    scores, labels, _ = problem
    positive, negative = scores[labels > 0], scores[labels < 0]
    by_k = oracles.prbep_risk(list(positive), list(negative))
    assert oracles.prbep_risk_by_labelings(positive, negative) == pytest.approx(by_k, rel=1e-12, abs=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("measure", ALL)
def test_at_zero(measure):
    """With all scores equal, R = 1 for ROCArea and pauc, and min(n+, n-) / n+ for PRBEP."""
    for n_pos, n_neg in ((3, 7), (7, 3), (1, 1)):
        labels = np.repeat([1, -1], [n_pos, n_neg])
        for shift in (0.0, -17.5, 1e8):
            value = evaluate(measure, np.full(n_pos + n_neg, shift), labels, 1e-6)
            assert pytest.approx(1.0 if measure[0] != "prbep" else min(n_pos, n_neg) / n_pos, abs=1e-6) == value.R
        assert build(measure, labels).R_at_zero == pytest.approx(
            evaluate(measure, np.zeros(len(labels)), labels, 1e-6).R
        )


@pytest.mark.serial
@pytest.mark.parametrize("measure", ALL)
@given(problem=problems(max_rows=40), seed=st.integers(0, 10))
def test_bounds_and_planes(measure, problem, seed):
    """R - kappa nu <= R_mu <= R; the plane is below R here and at other scores, and below R_mu + beta's prox term."""
    scores, labels, nu = problem
    loss = build(measure, labels)
    value = loss.evaluate(scores, nu)
    slack = 1e-12 * (1 + np.abs(scores).max() + len(scores))
    assert value.R_mu <= value.R + slack
    assert value.R_mu >= value.R - loss.kappa * nu - slack
    rng = np.random.default_rng(seed)
    for other in (scores, rng.normal(size=len(scores)) * (1 + np.abs(scores).max()), np.zeros(len(scores))):
        plane = float(value.coefficients @ other) + value.d
        assert plane <= loss.evaluate(other, 1.0).R + 1e-12 * (1 + np.abs(other).max() + np.abs(plane)) * len(scores)
    assert abs(value.coefficients.sum()) <= 1e-12  # a constant feature changes nothing


@pytest.mark.serial
@pytest.mark.parametrize("measure", ALL)
@given(problem=problems(max_rows=30), seed=st.integers(0, 10))
def test_the_exact_risk_at_width_zero(measure, problem, seed):
    """R_mu = R, as by brute force; the plane is a subgradient's: it touches R here and is below it elsewhere, with or
    without ties.
    """
    scores, labels, _ = problem
    loss = build(measure, labels)
    value = loss.evaluate(scores, 0.0)
    slack = 4 * np.finfo(float).eps * len(scores) * (1 + np.abs(scores).max() + len(scores))
    exact = RISK[measure[0]](*(oracles.rational(scores[labels == sign]) for sign in (1, -1)))
    assert value.R == value.R_mu == pytest.approx(float(exact), rel=1e-12, abs=slack)
    assert value.coefficients @ scores + value.d == pytest.approx(value.R, rel=1e-12, abs=slack)
    assert abs(value.coefficients.sum()) <= 1e-12
    rng = np.random.default_rng(seed)
    size = 1 + np.abs(scores).max()
    for other in (scores + rng.normal(size=len(scores)), rng.normal(size=len(scores)) * size, np.zeros(len(scores))):
        R = loss.evaluate(other, 0.0).R
        assert value.coefficients @ other + value.d <= R + 1e-12 * len(scores) * (size + np.abs(other).max())


@pytest.mark.serial
@pytest.mark.parametrize("measure", [way for way in ALL if way[0] == "rocarea"])
@given(problem=problems(max_rows=20))
def test_rocarea_at_width_zero_counts_the_pairs(measure, problem):
    scores, labels, _ = problem
    scores = np.round(2 * scores / (1 + np.abs(scores).max())) / 2  # halves: t is exact, and often exactly 0
    value = evaluate(measure, scores, labels, 0.0)
    beta = oracles.rocarea_pairs(scores[labels > 0], scores[labels < 0]) > 0
    np.testing.assert_allclose(value.coefficients[labels > 0], -beta.sum(axis=1) / beta.size, atol=1e-15)
    np.testing.assert_allclose(value.coefficients[labels < 0], beta.sum(axis=0) / beta.size, atol=1e-15)
    assert value.d == pytest.approx(beta.mean(), abs=1e-15)


@pytest.mark.serial
@pytest.mark.parametrize("measure", [measure for measure in ALL if measure[0] == "prbep"])
@pytest.mark.parametrize("n_pos, n_neg", [(3, 7), (7, 3), (1, 1), (1, 9)])
def test_prbep_at_width_zero_shares_the_tie(measure, n_pos, n_neg):
    """With equal scores, all rows of the smaller class are swapped, and the rows of the larger class share the swaps
    equally.
    """
    labels = np.repeat([1, -1], [n_pos, n_neg])
    beta = np.abs(evaluate(measure, np.zeros(len(labels)), labels, 0.0).coefficients) * len(labels) / 2
    swapped = min(n_pos, n_neg)
    np.testing.assert_allclose(beta, np.repeat([swapped / n_pos, swapped / n_neg], [n_pos, n_neg]), rtol=1e-14)


@pytest.mark.serial
@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize("nu", [0.05, 0.5, 5.0])
def test_coefficients_are_the_gradient(measure, nu):
    """Compare with finite differences of R_mu in each score, at random points, where R_mu is almost surely twice
    differentiable.
    """
    rng = np.random.default_rng(3)
    labels = np.where(rng.random(30) < 0.3, 1, -1)
    loss = build(measure, labels)
    h = 1e-6
    for _ in range(2):
        scores = rng.normal(size=30)
        value = loss.evaluate(scores, nu)
        for i in range(30):
            up, down = scores.copy(), scores.copy()
            up[i] += h
            down[i] -= h
            slope = (loss.evaluate(up, nu).R_mu - loss.evaluate(down, nu).R_mu) / (2 * h)
            assert value.coefficients[i] == pytest.approx(slope, abs=2e-5 * max(1, 1 / nu) / 30)


@pytest.mark.mpi
@pytest.mark.many
@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize("n", [2, 5, 300])
@pytest.mark.parametrize("nu", [0.3, 0.0])
def test_ranks_do_not_matter(measure, n, nu, comm):
    """Coefficients, R, R_mu and d equal those of a single rank; to the bit if gathered."""
    rng = np.random.default_rng(n)
    scores, labels = np.round(rng.normal(size=n), 1), np.where(np.arange(n) % 3 == 0, 1, -1)
    alone = evaluate(measure, scores, labels, nu)
    value = build(measure, local_part(labels, comm), comm).evaluate(local_part(scores, comm), nu)
    check_equal(measure, value, alone, local_part(alone.coefficients, comm))


@pytest.mark.parametrize("measure", ALL)
def test_weight_zero_is_a_row_left_out(measure, comm):
    rng = np.random.default_rng(1)
    scores, labels, kept = rng.normal(size=50), np.where(rng.random(50) < 0.4, 1, -1), rng.random(50) < 0.7
    alone = evaluate(measure, scores[kept], labels[kept], 0.2)
    weights = local_part(kept.astype(float), comm)
    value = build(measure, local_part(labels, comm), comm, weights).evaluate(local_part(scores, comm), 0.2)
    expected = np.zeros(50)
    expected[kept] = alone.coefficients
    check_equal(measure, value, alone, local_part(expected, comm))


@pytest.mark.parametrize("measure", ALL)
def test_refusals(measure, comm):
    for sign, word in ((1, "0 negative"), (-1, "0 positive")):
        with pytest.raises(InputError, match=word):
            build(measure, np.full(3 if comm.is_root else 0, sign), comm)
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(InputError, match="finite numbers >= 0"):
            build(measure, np.array([1, -1]), comm, np.array([1.0, bad if comm.is_root else 1.0]))


@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_margin_that_is_not_finite_is_seen_on_every_rank(measure, bad, comm):
    loss = build(measure, np.array([1, -1, -1]), comm)
    value = loss.evaluate(np.array([0.0, bad if comm.rank == comm.size - 1 else 1.0, 2.0]), 0.1)
    assert np.isnan(value[:3]).all()
    assert not value.coefficients.any()


@pytest.mark.serial
@pytest.mark.parametrize("measure", ALL)
def test_paper_width(measure):
    """mu = c_mu eps / D in score units: 2 c_mu eps for ROCArea and pauc, c_mu eps for PRBEP."""
    assert WAYS[measure].paper_width(10, 1e-3) == pytest.approx(0.01 if measure[0] == "prbep" else 0.02)


@pytest.mark.parametrize("nu", [1e-15, 3e-14])
def test_a_width_below_the_rounding_of_the_scores(nu):
    """R_mu is R then, though a ramp ends where it begins or is wider than nu."""
    rng, labels = np.random.default_rng(0), np.where(np.arange(30) < 6, 1, -1).astype(np.int8)
    for _ in range(30):
        loss = make_loss("prbep", "gather", labels, rng.lognormal(0, 1, 30), Communicator())
        found = loss.evaluate(rng.normal(size=30) * 1e3, nu)
        assert found.R_mu == pytest.approx(found.R, rel=1e-12)
