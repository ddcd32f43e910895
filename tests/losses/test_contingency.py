"""Losses of the contingency table: separation agrees with a search over all labelings, and planes, edge cases, ranks
and optima are right.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize
from scipy.sparse import csr_matrix

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import LARGEST_BETA, SMALLEST_BETA, Measure
from distsms.losses.registry import loss_class, make_loss
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.optim.solvers.base import SOLVERS
from tests.support import oracles
from tests.support.problems import data, local_part, objective, problems

NAMES = ("error-rate", "f1", "f0.5", "f0.01", "f2", "f20", "precision@{}", "recall@{}")
EXACT_ONLY = ("f1", "f0.5", "precision@3", "recall@7")


def build(measure, labels, comm=None, weights=None):
    return make_loss(measure, "gather", np.asarray(labels, np.int8), weights, comm or Communicator())


def exact_risk(measure, scores, labels, sums=oracles.all_subsets):
    family, parameters = Measure.parse(measure).family.name, Measure.parse(measure).parameters
    positive, negative = (oracles.rational(scores[labels == sign]) for sign in (1, -1))
    return oracles.contingency_risk(family, *(parameters or (None,)), positive, negative, sums)


def plane(value, scores):
    """Compute the plane's height at other scores, exactly."""
    terms = zip(oracles.rational(value.coefficients), oracles.rational(scores), strict=True)
    return sum((c * s for c, s in terms), Fraction(value.d))


def check_against_brute_force(measure, scores, labels, sums, seed=0):
    """R equals the oracle's; the plane touches R here and is below it elsewhere."""
    value = build(measure, labels).evaluate(scores, 0.0)
    size, n = np.abs(scores).max(), len(scores)
    slack = 4 * np.finfo(float).eps * n
    R = exact_risk(measure, scores, labels, sums)
    assert value.R == value.R_mu == pytest.approx(float(R), rel=1e-12, abs=slack * (4 + size))
    assert float(plane(value, scores)) == pytest.approx(value.R, rel=1e-12, abs=slack * (4 + size))
    assert np.abs(value.coefficients).sum() <= 2 * (1 + slack)
    rng = np.random.default_rng(seed)
    for other in (scores + rng.normal(size=n), rng.normal(size=n) * (1 + size), np.zeros(n), scores + size):
        below = exact_risk(measure, other, labels, sums) - plane(value, other)
        assert float(below) >= -slack * (4 + np.abs(other).max())


@pytest.mark.serial
@pytest.mark.parametrize("name", NAMES)
@given(problem=problems(max_rows=10), k=st.integers(1, 10), seed=st.integers(0, 10))
def test_equals_every_labeling(name, problem, k, seed):
    scores, labels, _ = problem
    check_against_brute_force(name.format(min(k, len(labels))), scores, labels, oracles.all_subsets, seed)


@pytest.mark.serial
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_pos", [2, 6, 10])
def test_equals_every_labeling_of_twelve_rows(name, n_pos):
    rng = np.random.default_rng(n_pos)
    labels = np.repeat([1, -1], [n_pos, 12 - n_pos])
    scores = np.round(rng.normal(size=12) + 0.5 * labels, 1)
    check_against_brute_force(name.format(5), scores, labels, oracles.all_subsets)


@pytest.mark.serial
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_pos, n_neg", [(1, 1), (1, 30), (30, 1), (25, 15), (15, 25)])
@pytest.mark.parametrize("size, shift", [(1e-8, 0.0), (1.0, 0.0), (1e8, 0.0), (1.0, 1e8), (1.0, -1e8)])
def test_equals_every_table_of_more_rows(name, n_pos, n_neg, size, shift):
    rng = np.random.default_rng(n_neg)
    n = n_pos + n_neg
    labels = rng.permutation(np.repeat([1, -1], [n_pos, n_neg]))
    scores = size * (rng.normal(size=n) + (labels > 0)) + shift
    for k in sorted({1, n_pos, (n + 1) // 2, n}) if "@" in name else [0]:
        check_against_brute_force(name.format(k), scores, labels, oracles.extreme_subsets)


@pytest.mark.serial
@given(problem=problems(max_rows=40))
def test_at_k_equal_to_the_positives_they_are_prbep(problem):
    """The risk is PRBEP's, and a constant feature does not change it."""
    scores, labels, _ = problem
    R = build("prbep", labels).evaluate(scores, 0.0).R
    slack = 4 * np.finfo(float).eps * len(scores) * (1 + np.abs(scores).max() + len(scores))
    for measure in ("precision", "recall"):
        value = build(f"{measure}@{np.sum(labels > 0)}", labels).evaluate(scores, 0.0)
        assert value.R == pytest.approx(R, rel=1e-12, abs=slack)
        assert abs(value.coefficients.sum()) <= 1e-12


@pytest.mark.serial
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_pos, n_neg", [(3, 7), (7, 3), (1, 1)])
def test_at_zero(name, n_pos, n_neg):
    labels = np.repeat([1, -1], [n_pos, n_neg])
    for k in range(1, n_pos + n_neg + 1):
        loss = build(name.format(k), labels)
        assert loss.R_at_zero == pytest.approx(loss.evaluate(np.zeros(len(labels)), 0.0).R, abs=1e-15)


@pytest.mark.serial
@pytest.mark.parametrize("name", NAMES)
def test_right_by_a_margin_costs_nothing(name):
    """R = 0 and the zero plane if the classes are far apart around 0.

    With k = n+ + 1, there is a false positive at -9.
    """
    labels = np.array([1, 1, -1, -1, -1])
    value = build(name.format(3), labels).evaluate(9.0 * labels, 0.0)
    assert value.R == value.d == 0
    assert not value.coefficients.any()


@pytest.mark.serial
@pytest.mark.parametrize("k, sign", [(2, 1), (5, -1)])
def test_a_bias_alone_takes_the_risk_at_k_to_zero(k, sign):
    """If k != n+ = 3, y calls another number of rows positive: a shift of n / (2 |k - n+|) outweighs Delta <= 1."""
    labels = np.repeat([1, -1], [3, 7])
    scores = np.full(10, 1.01 * sign * 10 / (2 * abs(k - 3)))
    for measure in (f"precision@{k}", f"recall@{k}"):
        assert build(measure, labels).evaluate(scores, 0.0).R == 0
        assert build(measure, labels).evaluate(scores * 0.4, 0.0).R > 0


@pytest.mark.serial
def test_they_see_a_constant_feature():
    labels, scores = np.repeat([1, -1], [3, 7]), np.zeros(10)
    for measure in ("error-rate", "f1", "precision@2", "recall@5"):
        loss = build(measure, labels)
        assert abs(loss.evaluate(scores, 0.0).coefficients.sum()) > 0.1
        assert loss.evaluate(scores - 0.3, 0.0).R != pytest.approx(loss.evaluate(scores, 0.0).R, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [2, 5, 300])
def test_ranks_and_row_order_do_not_matter(name, n, comm):
    rng = np.random.default_rng(n)
    scores, labels = np.round(rng.normal(size=n), 1), np.where(np.arange(n) % 3 == 0, 1, -1)
    measure = name.format(n // 2)
    alone = build(measure, labels).evaluate(scores, 0.0)
    value = build(measure, local_part(labels, comm), comm).evaluate(local_part(scores, comm), 0.0)
    np.testing.assert_allclose(value[:3], alone[:3], rtol=1e-13 if name == "error-rate" else 0)
    np.testing.assert_array_equal(value.coefficients, local_part(alone.coefficients, comm))
    assert comm.allgather(value[:3]) == [value[:3]] * comm.size
    order = rng.permutation(n)
    other = build(measure, labels[order]).evaluate(scores[order], 0.0)
    np.testing.assert_allclose(other[:3], alone[:3], rtol=1e-13)
    if name[0] != "f":  # the worst table of F-beta takes as many tied rows as it needs, in any order
        np.testing.assert_allclose(other.coefficients, alone.coefficients[order], atol=1e-15)


@pytest.mark.parametrize("name", NAMES)
def test_weight_zero_is_a_row_left_out(name, comm):
    rng = np.random.default_rng(1)
    scores, labels, kept = rng.normal(size=50), np.where(rng.random(50) < 0.4, 1, -1), rng.random(50) < 0.7
    measure = name.format(9)
    alone = build(measure, labels[kept]).evaluate(scores[kept], 0.0)
    weights = local_part(kept.astype(float), comm)
    value = build(measure, local_part(labels, comm), comm, weights).evaluate(local_part(scores, comm), 0.0)
    np.testing.assert_allclose(value[:3], alone[:3], rtol=1e-13)
    expected = np.zeros(50)
    expected[kept] = alone.coefficients
    np.testing.assert_array_equal(value.coefficients, local_part(expected, comm))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_margin_that_is_not_finite_is_seen_on_every_rank(name, bad, comm):
    loss = build(name.format(2), np.array([1, -1, -1]), comm)
    value = loss.evaluate(np.array([0.0, bad if comm.rank == comm.size - 1 else 1.0, 2.0]), 0.0)
    assert np.isnan(value[:3]).all()
    assert not value.coefficients.any()


def test_k_beyond_the_rows_is_refused(comm):
    labels = local_part(np.array([1, -1, -1, 1, -1]), comm)
    for measure in ("precision@6", "recall@6"):
        with pytest.raises(InputError, match="k = 6: the data have 5 rows"):
            build(measure, labels, comm)
        build(measure.replace("6", "5"), labels, comm)


@pytest.mark.serial
def test_an_ordering_that_a_measure_lacks_is_refused():
    with pytest.raises(InputError, match="f1 is not offered with the ordering 'none'; choose one of: gather"):
        loss_class("f1", "none")


@pytest.mark.serial
def test_what_is_called_positive():
    labels = np.repeat([1, -1], [3, 7])
    calls = {name: build(name, labels).calls_positive for name in ("prbep", "error-rate", "f1", "recall@5")}
    assert calls == {"prbep": 3, "error-rate": None, "f1": None, "recall@5": 5}


@pytest.mark.serial
def test_whether_there_is_a_smoothed_risk_is_said_alike():
    for name in NAMES:
        measure = Measure.parse(name.format(3))
        assert measure.family is loss_class(measure, "gather").family


@pytest.mark.serial
def test_names():
    assert (Measure.parse("f0.5").family.name, Measure.parse("f0.5").beta) == ("f-beta", 0.5)
    for limit in (SMALLEST_BETA, LARGEST_BETA):  # in the form in which the message prints them
        assert Measure.parse(f"f{limit:g}").beta == limit
    assert Measure.parse("f2.") == Measure.parse("f2") and str(Measure.parse("f2.")) == "f2."
    assert (Measure.parse("recall@12").family.name, Measure.parse("recall@12").parameters) == ("recall@k", (12,))
    assert (Measure.parse("precision@7").k, Measure.parse("f1").k) == (7, None)
    for bad in (
        "",
        "area",
        "f",
        "f0",
        "f.",
        "f-1",
        "f1e",
        "f1e7",
        "f9e-7",
        "f1e400",
        "f\N{SUPERSCRIPT TWO}",
        "precision@0",
        "recall@",
        "recall@-1",
    ):
        with pytest.raises(InputError, match="error-rate"):
            Measure.parse(bad)


# The error rate's smoothing


@pytest.mark.serial
@given(problem=problems(max_rows=30), seed=st.integers(0, 10))
def test_the_smoothed_error_rate(problem, seed):
    """Huber hinges by their definition; R - kappa nu <= R_mu <= R; planes lie below R elsewhere."""
    scores, labels, nu = problem
    loss = build("error-rate", labels)
    value = loss.evaluate(scores, nu)
    t = [Fraction(1, 2) - int(y) * s for y, s in zip(labels, oracles.rational(scores), strict=True)]
    exact_nu = Fraction(nu)
    hubers = [0 if x <= 0 else x * x / (2 * exact_nu) if x <= exact_nu else x - exact_nu / 2 for x in t]
    slack = 1e-14 * len(scores) * (1 + np.abs(scores).max())
    assert value.R_mu == pytest.approx(float(sum(hubers)) * 2 / len(t), rel=1e-12, abs=slack)
    assert value.R - loss.kappa * nu - slack <= value.R_mu <= value.R + slack
    rng = np.random.default_rng(seed)
    for other in (scores, rng.normal(size=len(scores)) * (1 + np.abs(scores).max()), np.zeros(len(scores))):
        assert float(plane(value, other)) <= loss.evaluate(other, 0.0).R + 1e-14 * (1 + np.abs(other).max()) * len(t)


@pytest.mark.serial
@pytest.mark.parametrize("nu", [0.05, 0.5, 5.0])
def test_its_coefficients_are_the_gradient(nu):
    rng = np.random.default_rng(3)
    labels, scores, h = np.where(rng.random(30) < 0.3, 1, -1), rng.normal(size=30), 1e-6
    loss = build("error-rate", labels)
    coefficients = loss.evaluate(scores, nu).coefficients
    for i, step in enumerate(h * np.eye(30)):
        slope = (loss.evaluate(scores + step, nu).R_mu - loss.evaluate(scores - step, nu).R_mu) / (2 * h)
        assert coefficients[i] == pytest.approx(slope, abs=2e-5 * max(1, 1 / nu) / 30)


@pytest.mark.serial
def test_its_width_in_the_paper():
    """mu = c_mu epsilon / D with D = n / 2 and mu = 2 nu / n."""
    assert loss_class("error-rate", "gather").paper_width(10, 1e-3) == pytest.approx(0.01)


# Whole runs


def by_all_planes(X, y, measure, lam):
    """Compute min J from the planes of all labelings: a quadratic program in w and the height of the highest plane."""
    family, parameters = Measure.parse(measure).family.name, Measure.parse(measure).parameters
    delta, calls = oracles.contingency(family, *(parameters or (None,)), np.sum(y > 0), np.sum(y < 0))
    r, d = [np.zeros(X.shape[1])], [0.0]
    for z in map(np.array, product([1, -1], repeat=len(y))):
        if calls in (None, np.sum(z > 0)):
            r.append(X.T @ (z - y) / len(y))
            d.append(float(delta(int(np.sum(y > z)), int(np.sum(z > y)))))
    r, d = np.array(r), np.array(d)
    found = optimize.minimize(
        lambda v: lam / 2 * v[:-1] @ v[:-1] + v[-1],
        np.append(np.zeros(X.shape[1]), d.max()),
        jac=lambda v: np.append(lam * v[:-1], 1.0),
        constraints={
            "type": "ineq",
            "fun": lambda v: v[-1] - r @ v[:-1] - d,
            "jac": lambda v: np.c_[-r, np.ones(len(d))],
        },
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.success
    return found.fun


@pytest.mark.parametrize(
    "measure", ["error-rate", "f1", "f0.5", "f2", "precision@2", "precision@5", "recall@2", "recall@6"]
)
@pytest.mark.parametrize("lam", [1.0, 0.1])
def test_the_optimum_is_that_of_all_labelings(measure, lam, comm):
    """With a constant column; by cutting planes with and without the zero plane, and with the line search."""
    rng = np.random.default_rng(4)
    y = np.array([1, 1, 1, -1, -1, -1, -1], np.int8)
    X = np.c_[rng.normal(size=(7, 2)) + 0.5 * (y[:, None] > 0), np.ones(7)]
    least = comm.bcast(by_all_planes(X, y, measure, lam) if comm.is_root else None)
    for solver, zero_plane, epsilon in (("bmrm", True, 1e-6), ("bmrm", False, 1e-6), ("bmrm-linesearch", True, 1e-2)):
        settings = Settings(lam=lam, epsilon=epsilon, solver=solver, zero_plane=zero_plane)
        result = minimize(objective(csr_matrix(X), y, comm, measure), settings)
        assert result.status is Status.PROVED
        assert result.lower_bound - 1e-8 <= least <= result.J + 1e-8
        assert result.J <= least + epsilon + 1e-8


@pytest.mark.parametrize("lam", [1.0, 0.1])
def test_error_rate_is_the_linear_svm(lam, comm):
    """Every solver, with and without smoothing, agrees with the linear SVM's dual.

    The dual is over a box: max sum alpha / 2 - ||sum_i alpha_i y_i x_i||^2 / (2 lam), alpha <= 2/n.
    """
    X, y = data(n=60, p=4, seed=2)
    A, n = X.toarray() * y[:, None], len(y)

    def dual(alpha):
        v = alpha @ A
        return v @ v / (2 * lam) - alpha.sum() / 2, A @ v / lam - 0.5

    alpha = optimize.minimize(
        dual, np.zeros(n), jac=True, bounds=[(0, 2 / n)] * n, options={"maxiter": 5000, "ftol": 1e-15}
    ).x
    w = alpha @ A / lam
    lower, upper = -dual(alpha)[0], lam / 2 * w @ w + 2 / n * np.maximum(0.5 - A @ w, 0).sum()
    assert upper - lower < 1e-5
    for solver in SOLVERS:
        result = minimize(objective(X, y, comm, "error-rate"), Settings(lam=lam, solver=solver))
        assert result.status is Status.PROVED
        assert result.lower_bound <= upper
        assert lower <= result.J <= upper + 1e-3


@pytest.mark.parametrize("measure", EXACT_ONLY)
@pytest.mark.parametrize("solver", ["lmvm", "agm"])
def test_solvers_of_smoothed_risks_are_refused_on_every_rank(measure, solver, comm):
    X, y = data()
    with pytest.raises(InputError, match=f"{solver} needs one; use bmrm or bmrm-linesearch"):
        minimize(objective(X, y, comm, measure), Settings(lam=1.0, solver=solver))


@pytest.mark.parametrize("measure", EXACT_ONLY)
def test_a_start_elsewhere_finds_the_same(measure, comm):
    X, y = data(seed=1)
    settings = Settings(lam=0.1, solver="bmrm")
    cold, warm = (minimize(objective(X, y, comm, measure), settings, w) for w in (None, np.full(X.shape[1], 0.3)))
    assert cold.status is warm.status is Status.PROVED
    assert warm.J == pytest.approx(cold.J, abs=1e-3)
    assert cold.J_at_zero == warm.J_at_zero == 1.0
    assert minimize(objective(X, y, comm, measure), Settings(lam=1e9, solver="bmrm")).vacuous
