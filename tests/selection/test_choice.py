"""Where a path extends its grid, and which measure chooses."""

from __future__ import annotations

import math

import pytest

from distsms.cli.path import USUAL, lambdas
from distsms.errors import InputError
from distsms.measures import check_chooser
from distsms.metrics import confidence
from distsms.selection.choice import DECADES, chooser, expected, extension, faults, means
from distsms.selection.path import Point

pytestmark = pytest.mark.serial


def points_of(value, lams, useless=lambda lam: False):
    """Return the points of three folds, whose mean is value(lam), with a standard error of 0.01."""
    for lam in lams:
        yield Point(lam, 0, {"vacuous": False, "chance": "ties" * useless(lam)}, 0.0, {}, None)
        for fold, less in enumerate((-1, 0, 1), 1):
            measured = value(lam) + less * 0.01 * math.sqrt(3)
            yield Point(lam, fold, {"vacuous": False, "chance": "ties" * useless(lam)}, 0.0, {}, {"rocarea": measured})


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


def test_a_single_lambda_grows_both_ways():
    assert extended(peak(0.1), [0.1]) == [1.0, 0.1, 0.01]


def test_measures_that_choose():
    for name in ("rocarea", "prbep", "average-precision", "accuracy", "precision", "recall", "f2", "precision@9"):
        assert check_chooser(name) == name
    with pytest.raises(InputError, match="choose by accuracy"):
        check_chooser("error-rate")
    with pytest.raises(InputError, match="no measure called 'auc' can choose"):
        check_chooser("auc")
    assert chooser("error-rate", None) == "accuracy"
    assert chooser("prbep", None) == "prbep" and chooser("prbep", "f1") == "f1"


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
