"""Where a path extends its grid, and which measure chooses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from distsms.base import formatting
from distsms.base.errors import InputError
from distsms.base.measures import Measure, check_chooser
from distsms.cli.path import USUAL, lambdas
from distsms.metrics import confidence
from distsms.workflow import path_result
from distsms.workflow.choice import (
    DECADES,
    Mean,
    Point,
    choose,
    expected,
    extension,
    faults,
    means,
    nonzeros,
    why_chance,
)
from distsms.workflow.path_result import L1, PathResult, compare

pytestmark = pytest.mark.serial


def points_of(value, lams, useless=lambda lam: False):
    """Return the points of three folds, whose mean is value(lam), with a standard error of 0.01."""
    for lam in lams:
        yield Point(lam, 0, {"vacuous": False, "chance": "ties" * useless(lam)}, 0.0, {}, None)
        for fold, less in enumerate((-1, 0, 1), 1):
            measured = value(lam) + less * 0.01 * math.sqrt(3)
            yield Point(lam, fold, {"vacuous": False, "chance": "ties" * useless(lam)}, 0.0, {}, {"rocarea": measured})


def path_of(points, select="rocarea", rule="best", trained="rocarea"):
    return PathResult(points, select, rule, {"measure": trained}, None)


def extended(value, grid, useless=lambda lam: False, rule="best"):
    """Return the lambdas that a path ends up with."""
    lams = list(grid)
    while (lam := extension([*points_of(value, lams, useless)], "rocarea", grid, rule)) is not None:
        assert lam not in lams
        lams.append(lam)
    return sorted(lams, reverse=True)


def peak(at):
    """A measure that is best at one lambda, and falls by 0.02 with each power of ten."""
    return lambda lam: 0.9 - 0.02 * abs(math.log10(lam / at))


GRID = lambdas(USUAL)


def test_lambdas_by_range():
    assert lambdas("1e-1:1e-4") == [0.1, 0.01, 0.001, 1e-4]
    assert lambdas("1e-4:1e-2") == [1e-4, 0.001, 0.01]
    assert lambdas("1e-1:1e-2:3") == [0.1, 0.0316228, 0.01]
    assert lambdas("3e-5") == [3e-5]


def test_the_grid_grows_until_the_best_lambda_is_inside():
    assert GRID == [1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5]
    assert extended(peak(0.01), GRID) == GRID
    assert extended(peak(10.0), GRID) == [100.0, 10.0, *GRID]
    assert extended(peak(1e-7), GRID) == [*GRID, 1e-6, 1e-7, 1e-8]


def test_it_ends_four_powers_of_ten_beyond_the_grid():
    assert extended(peak(1e9), GRID)[0] == 10.0**DECADES
    assert extended(peak(1e-19), GRID)[-1] == 1e-9


def test_it_does_not_grow_where_the_measure_is_flat_or_models_say_nothing():
    assert extended(lambda lam: 0.9, GRID) == GRID
    assert extended(lambda lam: 0.9 - 9e-4 * (lam < 1), GRID) == GRID  # no more than FLAT standard errors
    assert extended(peak(1e3), GRID, useless=lambda lam: lam > 5) == [10.0, *GRID]
    assert extended(peak(1e3), GRID, useless=lambda lam: lam > 0.5) == GRID
    # No lambda of the grid is of use: smaller ones may be.
    assert extended(peak(1e-7), GRID, useless=lambda lam: lam > 5e-7) == [*GRID, 1e-6, 1e-7, 1e-8]


def test_a_short_w_that_ranks_well_is_no_fault():
    """At a large lambda, the least J is near J(0), too. Only the ranks of the rows say whether a model is of use."""
    near_zero = [point._replace(result={**point.result, "idle": True}) for point in points_of(peak(10.0), [10.0])]
    assert faults(near_zero) == {}
    of_folds = [point for point in near_zero if point.fold]  # a training at this lambda might end at w = 0
    assert faults(of_folds) == {10.0: "no better than w = 0"}
    of_earlier_versions = [Point(1.0, 0, {"vacuous": True}, 0.0, {}, None)]
    assert faults(of_earlier_versions) == {1.0: "no better than chance"}


def test_the_rule_one_se_wants_its_own_lambda_inside():
    slope = lambda lam: 0.9 - 0.004 * abs(math.log10(lam / 0.1))  # noqa: E731
    assert extended(slope, GRID) == GRID
    assert extended(slope, GRID, rule="one-se")[0] == 100.0  # 10 is the largest within a standard error


def test_with_l1_the_rule_one_se_prefers_few_coefficients():
    """With l1, a larger lambda gives more coefficients here, and the grid grows to where they are fewest."""
    lams = [1.0, 0.1, 0.01]
    points = [*points_of(lambda lam: 0.9 - 0.004 * abs(math.log10(lam / 0.1)), lams)]
    sparse = [point._replace(result={**point.result, "nonzeros": 20 + int(math.log10(point.lam))}) for point in points]
    found = choose(means(points, "rocarea"), "one-se", faults(points), nonzeros(sparse))
    assert nonzeros(points) == {} and nonzeros(sparse) == {1.0: 20, 0.1: 19, 0.01: 18} and found.chosen.lam == 0.01
    assert extension(points, "rocarea", lams, "one-se") == 10.0
    assert extension(sparse, "rocarea", lams, "one-se") == 1e-3
    compared = compare({"0.1": PathResult(sparse, "rocarea", "one-se", {}, None)}, L1)
    assert compared.choices["0.1"].chosen.lam == 0.01


def test_a_single_lambda_grows_both_ways():
    assert extended(peak(0.1), [0.1]) == [1.0, 0.1, 0.01]


def test_measures_that_choose():
    for name in ("rocarea", "prbep", "average-precision", "accuracy", "precision", "recall", "f2", "precision@9"):
        assert check_chooser(name) == name
    for name in ("error-rate", "Error-Rate"):
        with pytest.raises(InputError, match="choose by accuracy"):
            check_chooser(name)
    with pytest.raises(InputError, match="no measure called 'gain' can choose"):
        check_chooser("gain")
    assert check_chooser("auc") == check_chooser("AUC") == "rocarea"
    assert Measure.parse("error-rate").chooser == "accuracy" and Measure.parse("prbep").chooser == "prbep"


def test_an_interval_of_any_measure_is_from_the_spread_of_the_folds():
    """A path that trains for ROCArea and chooses by another measure keeps the squares of ROCArea."""
    values = (0.3, 0.5, 0.4)
    kept = {"squares": [1.0, 1.0], "counts": [10, 10], "squares_of": "rocarea", "rocarea": 0.9}
    points = [
        Point(0.1, fold, {"vacuous": False}, 0.0, {}, {"precision@5": value, **kept})
        for fold, value in enumerate(values, 1)
    ]
    found = expected(points, "precision@5")
    assert found.value == pytest.approx(0.4) and found.of == confidence.METHOD
    assert found.standard_error == pytest.approx(0.1 * math.sqrt(1 / 3 + 1 / 2))
    assert found.high - 0.4 == pytest.approx(4.30265 * found.standard_error, rel=1e-5)  # t with 2 degrees of freedom
    assert means(points, "precision@5")[0].mean == pytest.approx(0.4)


def curve(*values, error=0.01):
    return [Mean(10.0**-k, value, error) for k, value in enumerate(values)]


def test_the_choice_and_how_flat_it_is():
    some = curve(0.895, 0.80, 0.893, 0.90, 0.9, 0.85, 0.899)
    best = choose(some, "best")
    assert (best.best, best.chosen, best.low, best.high) == (some[3], some[3], some[4], some[2])
    assert choose(some, "one-se").chosen == some[2]  # the first one is within, too, but on another hill
    sizes = {mean.lam: size for mean, size in zip(some, (1, 1, 30, 25, 20, 1, 1), strict=True)}
    assert choose(some, "one-se", (), sizes).chosen == some[4]  # of the unbroken range, with the fewest coefficients
    assert choose(some, "best", (), sizes).chosen == some[3]
    assert choose(some, "one-se", [some[4].lam], sizes).instead_of == some[4]
    sharp = curve(0.8, 0.9, 0.8)
    assert choose(sharp, "one-se") == (*(sharp[1],) * 4, None)
    assert choose(curve(0.5), "one-se").chosen.mean == 0.5
    flat = curve(0.5, 0.5, 0.5)
    assert choose(flat, "best").chosen == flat[0]


def test_what_says_nothing_is_not_chosen_and_it_is_said_why():
    """Both rules pass over such a lambda as long as there is another; the run around the best one ends before it."""

    def points(*lines):
        for k, (chance, *areas) in enumerate(lines):
            lam = 10.0**-k
            yield Point(lam, 0, {"vacuous": chance, "chance": "ties" * chance, "status": "proved"}, 0.0, {}, None)
            yield from (
                Point(lam, f, {"vacuous": False}, 0.0, {}, {"rocarea": a, "prbep": a}) for f, a in enumerate(areas, 1)
            )

    some = [*points((True, 0.80, 0.90), (False, 0.74, 0.90), (False, 0.72, 0.90), (False, 0.40, 0.55))]
    curve, wrong = means(some, "prbep"), faults(some)
    assert wrong == {1.0: "no better than chance", 0.001: "ROCArea of the folds not above chance"}
    for rule in ("best", "one-se"):
        assert choose(curve, rule).chosen.lam == 1.0  # the rule alone
        found = choose(curve, rule, wrong)
        assert (found.chosen.lam, found.best.lam, found.high.lam, found.instead_of.lam) == (0.1, 0.1, 0.1, 1.0)
        assert (
            "lambda 1, which the rule would choose by its mean: no better than chance"
            in path_result.describe_choice(path_of(some, "prbep", rule))
        )
    one_se = [*points((True, 0.70, 0.90), (False, 0.74, 0.90), (False, 0.75, 0.90))]
    curve = means(one_se, "prbep")
    assert choose(curve, "best", faults(one_se)).instead_of is None
    found = choose(curve, "one-se", faults(one_se))
    assert (found.chosen.lam, found.instead_of.lam) == (0.1, 1.0)
    nothing = [*points((True, 0.8, 0.9), (True, 0.7, 0.9))]
    curve = means(nothing, "prbep")
    found = choose(curve, "best", faults(nothing))
    assert found.chosen.lam == 1.0 and found.instead_of is None
    assert "warning   none of these lambdas" in path_result.describe_useless(path_of(nothing, "prbep"))


def test_means_are_of_the_lambdas_that_all_folds_have():
    def point(lam, fold, value=0.0):
        return Point(lam, fold, {}, 0.0, {}, {"prbep": value} if fold else None)

    points = [point(0.1, 0), point(0.1, 1, 0.2), point(0.1, 2, 0.4), point(0.1, 3, 0.9), point(0.01, 2, 0.5)]
    (found,) = means(points, "prbep")
    assert found.lam == 0.1
    assert found.mean == pytest.approx(0.5)
    assert found.error**2 == pytest.approx((0.3**2 + 0.1**2 + 0.4**2) / 2 / 3)  # the sample's variance over 3
    assert means([point(0.1, 0)], "prbep") == []
    for undefined in (math.nan, None):  # as a run has it, and a file
        assert means([*points, point(0.01, 1, undefined), point(0.01, 3, 0.5)], "prbep") == [found]


def test_the_interval_is_of_the_rule_that_chooses():
    """If lambda 1 is within a standard error of lambda 0.1 on any three folds, one-se takes it for the fourth."""
    result, told = {"status": "proved", "vacuous": False}, {"squares": [2.0, 3.0], "counts": [40, 60]}
    values = {1.0: (0.70, 0.80, 0.75, 0.85), 0.1: (0.71, 0.81, 0.76, 0.86)}
    points = [
        Point(lam, fold, result, 0.0, {}, {"rocarea": value, **told})
        for lam, own in values.items()
        for fold, value in enumerate(own, 1)
    ]
    for rule, lam in (("best", 0.1), ("one-se", 1.0)):
        assert choose(means(points, "rocarea"), rule).chosen.lam == lam
        assert expected(points, "rocarea", rule).value == pytest.approx(np.mean(values[lam]))


def test_the_interval_is_of_lambdas_that_each_fold_leaves_to_the_others():
    """By hand: one of three folds would choose another lambda for itself than the other two do."""
    values = {(1.0, 1): 0.9, (1.0, 2): 0.6, (1.0, 3): 0.6, (0.1, 1): 0.5, (0.1, 2): 0.7, (0.1, 3): 0.8}
    told = {"prbep": None, "squares": [2.0, 3.0], "counts": [40, 60]}
    result = {"status": "proved", "vacuous": False}
    points = [
        Point(lam, fold, result, 0.0, {}, {"rocarea": value, **told}) for (lam, fold), value in values.items()
    ] + [Point(1.0, 0, result, 0.0, {}, None)]
    found = expected(points, "rocarea")
    assert found.value == pytest.approx((0.5 + 0.6 + 0.6) / 3)  # 0.1 for the first, by 1.5 to 1.2; 1.0 for the others
    about = np.array([0.5, 0.6, 0.6]) - found.value
    squares = [6 + 40 * about @ about, 9 + 60 * about @ about]
    assert found.standard_error == pytest.approx(np.sqrt(2.5 * (squares[0] / 120 / 119 + squares[1] / 180 / 179)))
    assert found.low < found.value < found.high and found.of == confidence.METHOD
    assert "of the method" in path_result.describe_choice(path_of(points))
    older = [one._replace(held_out=one.held_out and {"rocarea": one.held_out["rocarea"]}) for one in points]
    assert expected(older, "rocarea") is None and expected(points[-1:], "rocarea") is None


def test_words_on_points_that_came_to_nothing():
    nothing = {"status": "nonfinite", "J": None, "gap": None, "evaluations": 0, "vacuous": False}
    some = {**nothing, "status": "proved", "J": 0.5, "gap": 1e-4, "vacuous": True}
    points = [
        Point(0.1, 0, some, 0.0, {"prbep": 0.6}, None),
        Point(0.1, 1, nothing, 0.0, {"prbep": 0.6}, {"prbep": None}),
        Point(0.01, 0, nothing, 0.0, {"prbep": None}, None),
    ]
    assert "nonfinite J -  gap        -" in path_result.point_line(points[1], "prbep")
    lines = formatting.format_table(*path_result.points_table(path_of(points, "prbep"))).splitlines()
    assert " ".join(lines[2].split()) == "0.1 0.50000000 0.0001 0 0.600000 - - no better than chance"
    assert lines[3].split() == ["0.01", "-", "-", "0", "-", "-", "-", "nonfinite"]


def test_words_on_the_choice():
    some = {1.0: 0.80, 0.1: 0.8951, 0.01: 0.90, 1e-3: 0.7}
    text = path_result.describe_choice(path_of([*points_of(some.get, some)], rule="one-se"))
    assert "lambda 0.1: held-out ROCArea 0.895100, standard error 0.010000; the best mean is 0.900000 at 0.01" in text
    assert "of lambda 0.01 to 0.1 are within one standard error of the best mean: -0.004900 at 0.1" in text
    assert "warning" not in text
    assert "is the largest one" in path_result.describe_choice(path_of([*points_of(some.get, [0.01, 1e-3])]))


def test_words_on_a_choice_that_says_nothing():
    """Where no w beats w = 0, larger lambdas than the largest are no advice."""
    for vacuous in (True, False):
        points = [*points_of({1.0: 0.6, 0.1: 0.55}.get, [1.0, 0.1], useless=lambda lam, vacuous=vacuous: vacuous)]
        text = path_result.describe_choice(path_of(points))
        assert ("is the largest one" in text) != vacuous
        assert ("--measure rocarea" in path_result.describe_useless(path_of(points, trained="prbep"))) == vacuous
        assert ("smaller lambdas may" in path_result.describe_useless(path_of(points))) == vacuous
        better = Point(1e-9, 0, {"vacuous": False}, 0.0, {}, None)
        assert not path_result.describe_useless(path_of([*points, better], trained="prbep"))


@pytest.mark.parametrize("lams", [[0.1], [1.0, 0.1, 0.01]])
def test_no_lambda_ranks_held_out_rows_better_than_chance(lams):
    """The means have a standard error of 0.01."""
    why = why_chance([*points_of(lambda lam: 0.519, lams)])
    assert ("3 lambdas from 0.01 to 1" if len(lams) > 1 else "1 lambda, 0.1,") in why and "0.519" in why
    assert not why_chance([*points_of(lambda lam: 0.519 if lam < 0.1 else 0.521, lams)])
    assert not why_chance([])
