"""A model that ranks no better than chance is recognized, and what is said of it follows from the run."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

import distsms
from distsms.base.communicator import Communicator
from distsms.base.measures import Measure
from distsms.base.scored import Scored
from distsms.metrics import confidence, ranking
from distsms.optim.result import Result, Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.workflow.trained_model import TrainedModel
from distsms.workflow.verdict import (
    ALL_TIED,
    describe_chance,
    describe_constant,
    describe_distance,
    describe_idleness,
    largest_lambda,
    scores_tie,
    why_chance,
)
from tests.support.problems import data, local_part, objective

ALONE = Communicator()


def task(measure, settings, bias=None):
    """What describes a training to `describe_chance`."""
    return SimpleNamespace(measure=Measure.parse(measure), settings=settings, bias=bias)


@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.2, 1.0, 3.0]), st.integers(2, 60), st.booleans())
def test_the_verdict_is_that_of_the_standard_error_also_where_it_is_not_computed(seed, shift, n, ties):
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(n) < 0.3, 1, -1).astype(np.int8)
    labels[:2] = 1, -1
    scores = rng.normal(size=n) + shift * (labels > 0)
    scores = np.round(scores) if ties else scores
    area = ranking.rocarea(Scored(scores, labels, ALONE))
    error = confidence.rocarea_estimate(
        ranking.placements(Scored(scores, labels, ALONE)), Scored(labels, labels, ALONE)
    ).error
    chance = np.ptp(scores) == 0 or area <= 0.5 + 2 * (0.0 if math.isnan(error) else error)
    assert bool(why_chance(Scored(scores, labels, ALONE), area)) == chance


def test_the_verdict_is_the_same_on_any_number_of_ranks(comm):
    rng = np.random.default_rng(1)
    labels = np.where(rng.random(300) < 0.2, 1, -1).astype(np.int8)
    for shift, chance in ((0.0, True), (2.0, False), (-2.0, True)):
        scores = rng.normal(size=300) + shift * (labels > 0)
        area = ranking.rocarea(Scored(scores, labels, ALONE))
        why = why_chance(Scored(local_part(scores, comm), local_part(labels, comm), comm), area)
        assert bool(why) == chance and why == why_chance(Scored(scores, labels, ALONE), area)
    tied = local_part(np.full(300, 0.1), comm)
    assert why_chance(Scored(tied, local_part(labels, comm), comm), 0.5) == ALL_TIED


@pytest.mark.parametrize(
    "scores, tied", [([1.0, 1.0], True), ([1.0, 1.0 + 1e-15], True), ([0, 1e-30], False), ([], True)]
)
def test_scores_tie_up_to_rounding(scores, tied):
    assert scores_tie(np.array(scores, float), ALONE) == tied


def test_at_no_lambda_above_the_largest_one_is_w_0_beyond_the_gap():
    """An oracle: what smaller lambdas gain, at the one that is named and above it."""
    X, y = data(n=300, p=6, positive=0.2)
    run, asked = objective(X, y, ALONE), Settings(1e5, 1e-3, solver="bmrm")
    large = minimize(run, replace(asked, epsilon=1e-9))
    below = largest_lambda(asked, large)
    assert below < 1e5
    for lam in (1.01 * below, 3 * below):
        assert minimize(run, Settings(lam, 1e-7, solver="bmrm")).J > 1 - 1e-3
    rounded = replace(large, lower_bound=large.J_at_zero)  # as at a huge lambda, where nothing but rounding is left
    assert largest_lambda(asked, rounded) == pytest.approx(1e5 * 1e-8 / 1e-3)
    nothing = replace(large, J_at_zero=0.0, lower_bound=-1e-15)  # as for recall@K with K the number of all rows
    assert largest_lambda(replace(asked, epsilon=None, relative=0.01), nothing) == 1e5
    vanishing = replace(nothing, J=0.0, lower_bound=0.0, gap=0.0, status=Status.PROVED)
    told = describe_chance(ALL_TIED, task("error-rate", asked, 1.0), vanishing, 1)
    assert "every lambda above 0," in told


def test_the_distance_between_the_classes_is_that_of_a_quadratic_program():
    """D by SciPy, over the means of negative rows in which no row has a larger share than 1/K."""
    X, y = data(n=60, p=3, positive=0.3)
    positive, negative = X[y > 0].toarray(), X[y < 0].toarray()
    n_pos, n_neg = len(positive), len(negative)
    for measure, K in (("pauc@0.5", 0.5 * n_neg), ("prbep", float(n_pos))):
        share = 1.0 if measure != "prbep" else 2 * n_pos / 60

        def difference(alpha):
            return positive.mean(axis=0) - alpha @ negative

        found = optimize.minimize(
            lambda alpha: difference(alpha) @ difference(alpha),
            np.full(n_neg, 1 / n_neg),
            jac=lambda alpha: -2 * negative @ difference(alpha),
            bounds=[(0, 1 / K)] * n_neg,
            constraints={"type": "eq", "fun": lambda alpha: alpha.sum() - 1},
            options={"maxiter": 500, "ftol": 1e-14},
        )
        D = math.sqrt(found.fun)
        lam = 1e3
        run = minimize(objective(X, y, ALONE, measure), Settings(lam, 1e-12, solver="bmrm", max_evaluations=200))
        assert run.slope_at_zero == pytest.approx(share * D, rel=1e-3)
        assert run.J == pytest.approx(1 - (share * D) ** 2 / (2 * lam), abs=1e-8)
        text = describe_distance(Measure.parse(measure), run.slope_at_zero, (n_pos, n_neg))
        assert f"is at most {run.slope_at_zero / share:.2g} (K = {K:.6g})" in text
    assert describe_distance(Measure.parse("rocarea"), 0.1, (3, 7)) == ""
    assert describe_distance(Measure.parse("prbep"), 0.1, (7, 3)) == ""
    assert describe_distance(Measure.parse("pauc@0.5"), math.inf, (3, 7)) == ""


RESULT = Result(np.zeros(1), Status.PROVED, "", 1.0, 1.0, 1.0 - 1e-7, 1e-7, 1.0, 0.0, 3, 0.1)


@pytest.mark.parametrize(
    "measure, changes, said",
    [
        ("prbep", {}, "At every lambda above 1e-08, training for this measure ends with such a model"),
        ("prbep", {"lower_bound": 1.0}, "At every lambda above 1e-09, training for this measure"),
        ("rocarea", {"lower_bound": 0.999}, "use --lambda auto, or a lambda below 0.0001."),
        ("recall@7", {}, "K differs from the number of positive rows, 30"),
        ("f1", {}, "Train with --bias"),
        ("prbep", {"status": Status.LIMIT}, "ended without a proof"),
    ],
)
def test_the_advice_follows_from_the_run(measure, changes, said):
    result = replace(RESULT, **changes)
    text = describe_chance("all scores are equal", task(measure, Settings(1e-4)), result, 30)
    assert text.startswith("This model ranks no better than chance: all scores are equal. ") and said in text
    assert ("too large" in text) == (measure == "rocarea")
    told = describe_chance(ALL_TIED, task(measure, Settings(1e-4)), result, 30, no_lambda_helps=True)
    assert "too large" not in told and ("Another lambda will hardly help" in told) == (measure == "rocarea")


@pytest.mark.parametrize("measure", ["logistic", "normal-auc", "rocarea"])
def test_from_which_l1_on_all_coefficients_are_0(measure, comm):
    """The limit is the largest entry of the gradient of R at w = 0. Above it w = 0 is the minimum, and below not."""
    X, y = data(n=90)
    own = objective(X, y, comm, measure)
    how = {"epsilon": 1e-9, "solver": "lbfgs"}
    found = minimize(own, Settings(1e-2, l1=10.0, **how))
    scores = np.where(y > 0, 1 / np.sum(y > 0), -1 / np.sum(y < 0)) if measure != "logistic" else y / (2 * len(y))
    assert not np.any(found.w) and found.l1_limit == pytest.approx(np.max(np.abs(X.T @ scores)), rel=1e-9)
    for factor in (0.98, 1.02):
        again = minimize(own, Settings(1e-2, l1=factor * found.l1_limit, **how))
        assert np.any(again.w) == (factor < 1) and again.numbers()["l1_limit"] == pytest.approx(found.l1_limit)
    assert "l1_limit" not in minimize(own, Settings(1e-2, **how)).numbers()
    text = describe_chance(ALL_TIED, task(measure, Settings(1e-2, l1=10.0, **how)), found, 30)
    assert text.endswith(
        f"l1 is too large: all coefficients are 0 from l1 = {found.l1_limit:.3g} on; take a smaller one."
    )


def test_the_cure_of_too_large_an_l1_is_a_smaller_one():
    X, y = data(n=90)
    with pytest.warns(
        UserWarning, match="l1 is too large: all coefficients are 0 from l1 = [^;]*; take a smaller one.$"
    ):
        distsms.train((X.toarray(), y), measure="logistic", lam=1e-3, l1=1.0)


def test_a_constant_that_l1_made_0_is_told():
    """Half of the rows are positive but for one, so that the constant is worth little."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(101) < 50, 1, -1)
    X = rng.normal(size=(101, 4)) + 2 * (y > 0)[:, None] - 1
    for l1, told in ((0.02, True), (0.0, False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = distsms.train((X, y), measure="logistic", lam=1e-3, l1=l1)
        assert (model.info["bias"] == 0) == told and np.any(model.w)
        assert any("l1 made the weight of the constant feature 0" in str(w.message) for w in caught) == told
    assert describe_constant(Measure.parse("rocarea"), 0.1, 1.0, 0.0) == ""


def test_a_run_that_has_hardly_begun_says_so():
    assert not describe_idleness(RESULT)
    assert "allow more evaluations" in describe_idleness(replace(RESULT, status=Status.LIMIT))
    assert not describe_idleness(replace(RESULT, status=Status.LIMIT, J=0.5))


@pytest.mark.parametrize(
    ("tpr", "quantity", "told"), [(0.01, "precision", True), (0.01, "top", False), (0.5, "fpr", False)]
)
def test_a_threshold_that_hardly_any_positive_row_reaches_gets_a_warning(tpr, quantity, told):
    decision = {"why": "", "quantity": quantity, "tpr": tpr, "condition": "precision>=0.9"}
    model = SimpleNamespace(undecided=False, decided={"decision": decision})
    said = TrainedModel._about_decision(model)
    assert (
        ("Only 1 % of the positive held-out rows reach the threshold for precision>=0.9" in said) == told == bool(said)
    )
