"""Paths of lambdas over folds give the same as trainings on the rows of each fold alone, in one pass or one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from distsms.errors import InputError
from distsms.losses.registry import MEASURES
from distsms.metrics import confidence
from distsms.optim.batching import solve_batched
from distsms.optim.objective import Request
from distsms.optim.penalty import SquaredNorm
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.optim.solvers.base import SOLVERS
from distsms.parallel.communicator import Communicator
from distsms.parallel.vector_placement import STEPS
from distsms.selection import path_text
from distsms.selection.choice import Mean, choose, expected, faults, means
from distsms.selection.folds import make_folds
from distsms.selection.path import CrossValidation, Point, Problem, run
from distsms.selection.path_store import PathStore, finished
from distsms.utils import formatting
from tests.support.problems import asked, block, data, objective, share

EPSILON = 1e-4
PROBLEM = Problem("rocarea", [1e-1, 1e-2], 3, 0, Settings(lam=1.0, epsilon=EPSILON))
RANKING = [key for key in MEASURES if key[0] in ("rocarea", "prbep")]


def solved(comm, problem, X, y, **more):
    """Return what `run` returns, and on the root the w of each point, by lambda and fold."""
    w = {}

    def keep(point, result):
        w[point.lam, point.fold] = result.w.copy()

    return run(block(comm, X, y), problem, comm, keep, **more), w


@pytest.mark.parametrize("kind", ["groups", "time"])
@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
def test_a_fold_trains_and_is_judged_on_rows_that_the_folds_name(measure, kind, comm):
    """By time, no fold is trained on rows that come later, and the first block evaluates nothing."""
    X, y = data(n=160)
    marks = np.arange(160) // 8 if kind == "groups" else np.random.default_rng(0).permutation(160) // 2
    marks = marks.astype(np.uint64 if kind == "groups" else float)
    problem = replace(PROBLEM, measure=measure, folds_by=kind, lambdas=[1e-1])
    found, w = solved(comm, problem, X, y, fold_keys=marks[share(comm, 160)])
    these = make_folds(kind, marks, y, np.ones(160, bool), 3, 0, Communicator())
    for lam, fold, result, _, training, held_out in found.points:
        own, out = these.training(fold), these.judged(fold)
        assert not fold or kind == "groups" or marks[own].max() < marks[out].min()
        alone = minimize(objective(X[own], y[own], Communicator(), measure), Settings(lam=lam, epsilon=EPSILON))
        assert result["lower_bound"] <= alone.J
        assert alone.lower_bound <= result["J"]
        if comm.is_root:
            scores = X @ w[lam, fold]
            assert training["rocarea"] == pytest.approx(roc_auc_score(y[own], scores[own]), abs=1e-12)
            if fold:
                assert held_out["rocarea"] == pytest.approx(roc_auc_score(y[out], scores[out]), abs=1e-12)


def rows_of(comm, problem, X, y, fold):
    """Return which rows of all ranks a fold is trained on."""
    folds = np.concatenate(comm.allgather(CrossValidation(block(comm, X, y), problem, comm).folds.number))
    return folds != fold


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("measure, ordering", RANKING)
def test_a_fold_is_the_problem_of_its_rows_alone(measure, ordering, step, comm):
    X, y = data(n=120)
    problem = replace(PROBLEM, measure=measure, ordering=ordering, step=step)
    models = CrossValidation(block(comm, X, y), problem, comm)
    w = np.random.default_rng(1).normal(size=X.shape[1])
    requests = [
        Request(models.vectors.local_slice(w), nu, SquaredNorm(0.1), f) for nu in (0.3, 0.0) for f in models.numbers
    ]
    found = asked(models.objective, requests)
    folds = np.concatenate(comm.allgather(models.folds.number))
    for k, (_, nu, _, fold) in enumerate(requests):
        alone = objective(X[folds != fold], y[folds != fold], Communicator(), measure)
        (other,) = alone.evaluate([Request(w, nu, SquaredNorm(0.1))])
        if found:
            assert [found[k].J, found[k].J_mu] == pytest.approx([other.J, other.J_mu], abs=1e-9)
            assert found[k].gradient == pytest.approx(models.vectors.local_slice(other.gradient), abs=1e-9) or nu == 0
    models.vectors.close()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
def test_what_is_proved_of_a_point_is_true_of_its_rows(measure, step, comm):
    X, y = data(n=120)
    problem = replace(PROBLEM, measure=measure, step=step)
    found, w = solved(comm, problem, X, y)
    assert {(point.lam, point.fold) for point in found.points} == {
        (lam, f) for lam in problem.lambdas for f in range(4)
    }
    assert not found.stopped
    for lam, fold, result, threshold, training, held_out in found.points:
        mine = rows_of(comm, problem, X, y, fold)
        alone = minimize(objective(X[mine], y[mine], Communicator(), measure), Settings(lam=lam, epsilon=EPSILON))
        assert result["status"] == "proved"
        assert result["gap"] <= EPSILON
        assert result["lower_bound"] <= alone.J
        assert alone.lower_bound <= result["J"]
        if comm.is_root:
            scores = X @ w[lam, fold]
            assert training["rocarea"] == pytest.approx(roc_auc_score(y[mine], scores[mine]), abs=1e-12)
            assert np.sum(scores[mine] >= threshold) == np.sum(y[mine] > 0)
            if fold:
                assert held_out["rocarea"] == pytest.approx(roc_auc_score(y[~mine], scores[~mine]), abs=1e-12)
                spread = confidence.measure_estimate(measure, scores[~mine], y[~mine], Communicator())
                assert tuple(held_out["squares"]) == pytest.approx(spread.squares)
                assert tuple(held_out["counts"]) == spread.counts == (np.sum(y[~mine] > 0), np.sum(y[~mine] < 0))
    assert all(point.held_out is None for point in found.points if not point.fold)


@pytest.mark.serial
@pytest.mark.parametrize("solver", SOLVERS)
def test_one_pass_gives_what_one_by_one_does(solver):
    """One process rounds alike for any number of vectors, so that every fold is the same to the bit."""
    X, y = data(n=120)
    problem = replace(PROBLEM, settings=Settings(lam=1.0, epsilon=1e-3, solver=solver))
    runs = {n: solved(Communicator(), replace(problem, at_once=n), X, y) for n in (1, 2, 4)}
    (one, w1), (two, w2), (all_, w4) = runs.values()
    assert {(p.lam, p.fold): p.result["evaluations"] for p in one.points} == {
        (p.lam, p.fold): p.result["evaluations"] for p in all_.points
    }
    for key in w1:
        assert np.array_equal(w1[key], w2[key])
        assert np.array_equal(w1[key], w4[key])
    by_fold = [sum(p.result["evaluations"] for p in one.points if p.fold == f) for f in range(4)]
    assert one.passes == one.evaluations == all_.evaluations == sum(by_fold)
    assert all_.passes == max(by_fold)
    assert max(by_fold) < two.passes < sum(by_fold)


def test_warm_starts_need_fewer_evaluations(comm):
    X, y = data(n=150, seed=3)
    lambdas = [10.0**-i for i in range(1, 6)]
    problem = replace(PROBLEM, lambdas=lambdas, folds=0)
    found, _ = solved(comm, problem, X, y)
    cold = [minimize(objective(X, y, comm), Settings(lam=lam, epsilon=EPSILON)).evaluations for lam in lambdas]
    assert sum(point.result["evaluations"] for point in found.points) < sum(cold)


@pytest.mark.parametrize("step", STEPS)
def test_points_that_are_there_are_not_computed_again(step, comm):
    X, y = data(n=120)
    problem = replace(PROBLEM, step=step)
    whole, w = solved(comm, problem, X, y)
    there = {(0.1, 0), (0.1, 1), (0.1, 2), (0.1, 3), (0.01, 2)}
    rest, v = solved(
        comm, problem, X, y, done=lambda lam, fold: (lam, fold) in there, start=lambda fold, lam: w.get((0.1, fold))
    )
    assert {(point.lam, point.fold) for point in rest.points} == {(0.01, 0), (0.01, 1), (0.01, 3)}
    before = {(point.lam, point.fold): point.result["evaluations"] for point in whole.points}
    assert all(point.result["evaluations"] == before[point.lam, point.fold] for point in rest.points)  # the same start
    assert all(np.allclose(v[key], w[key], rtol=1e-9, atol=1e-9) for key in v)
    nothing, _ = solved(comm, problem, X, y, done=lambda lam, fold: True)
    assert nothing.points == [] and not nothing.stopped and nothing.passes == 0


def test_a_stop_keeps_what_is_finished(comm):
    X, y = data(n=120)
    problem = replace(PROBLEM, lambdas=[1e-1, 1e-2, 1e-4])
    asked_for, first = [0], solved(comm, problem, X, y)[0].passes // 2

    def wanted():
        asked_for[0] += 1
        return asked_for[0] > first and comm.rank == comm.size - 1

    found, w = solved(comm, problem, X, y, stop_wanted=wanted)
    assert found.stopped
    assert 0 < len(found.points) < 12
    assert found.passes == first + 1
    assert all(point.result["status"] == "proved" for point in found.points)
    assert comm.is_root == (len(w) == len(found.points))


@pytest.mark.serial
def test_what_one_solve_raises_ends_all():
    X, y = data(n=50)
    ended = []

    def waits(solve):
        try:
            while True:
                solve.evaluate([Request(np.zeros(X.shape[1]), 0.1, SquaredNorm(1.0))])
        finally:
            ended.append("waiting")

    def fails(solve):
        solve.evaluate([Request(np.ones(X.shape[1]), 0.1, SquaredNorm(1.0))])
        raise InputError("the disk is full")

    models = CrossValidation(block(Communicator(), X, y), replace(PROBLEM, folds=2), Communicator())
    with pytest.raises(InputError, match="the disk is full"):
        solve_batched(models.objective, [waits, fails, waits], 3)
    assert ended == ["waiting", "waiting"]


def test_too_few_rows_for_the_folds_are_refused_everywhere(comm):
    X, y = data(n=40)
    y[:] = np.where(np.arange(40) < 2, 1, -1)
    with pytest.raises(
        InputError, match="3 folds need at least 3 rows of each class, and there are only 2 positive ones"
    ):
        solved(comm, PROBLEM, X, y)


def test_rows_of_weight_0_are_in_no_fold_and_other_weights_are_refused(comm):
    X, y = data(n=120)
    weights = np.where(np.arange(120) % 4 == 1, 0.0, 1.0)
    weights[:2] = 1.0
    given = block(comm, X, y)
    mine = slice(given.first_row, given.first_row + len(given.labels))
    models = CrossValidation(replace(given, weights=weights[mine]), PROBLEM, comm)
    folds = np.concatenate(comm.allgather(models.folds.number))
    assert np.array_equal(folds == 0, weights == 0)
    assert models.objective.losses[0].n == np.sum(weights)
    assert [loss.n for loss in models.objective.losses[1:]] == [np.sum((folds != f) & (folds != 0)) for f in (1, 2, 3)]
    with pytest.raises(InputError, match="weights other than 0 and 1"):
        CrossValidation(replace(given, weights=2 * weights[mine]), PROBLEM, comm)


def curve(*values, error=0.01):
    return [Mean(10.0**-k, value, error) for k, value in enumerate(values)]


@pytest.mark.serial
def test_the_choice_and_how_flat_it_is():
    some = curve(0.895, 0.80, 0.893, 0.90, 0.9, 0.85, 0.899)
    best = choose(some, "best")
    assert (best.best, best.chosen, best.low, best.high) == (some[3], some[3], some[4], some[2])
    assert choose(some, "one-se").chosen == some[2]  # the first one is within, too, but on another hill
    sharp = curve(0.8, 0.9, 0.8)
    assert choose(sharp, "one-se") == (*(sharp[1],) * 4, None)
    assert choose(curve(0.5), "one-se").chosen.mean == 0.5
    flat = curve(0.5, 0.5, 0.5)
    assert choose(flat, "best").chosen == flat[0]


@pytest.mark.serial
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
        assert "lambda 1, which the rule would choose by its mean: no better than chance" in path_text.choice(
            "prbep", found, curve, some
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
    assert "warning   no better than chance" in path_text.choice("prbep", found, curve, nothing)


@pytest.mark.serial
def test_means_are_of_the_lambdas_that_all_folds_have():
    def point(lam, fold, value=0.0):
        return Point(lam, fold, {}, 0.0, {}, {"prbep": value} if fold else None)

    points = [point(0.1, 0), point(0.1, 1, 0.2), point(0.1, 2, 0.4), point(0.1, 3, 0.9), point(0.01, 2, 0.5)]
    (found,) = means(points, "prbep")
    assert found.lam == 0.1
    assert found.mean == pytest.approx(0.5)
    assert found.error**2 == pytest.approx((0.3**2 + 0.1**2 + 0.4**2) / 2 / 3)  # the sample's variance over 3
    assert means([point(0.1, 0)], "prbep") == []


@pytest.mark.serial
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


@pytest.mark.serial
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
    assert "of the method" in path_text.choice("rocarea", choose(means(points, "rocarea"), "best"), curve(0.5), points)
    older = [one._replace(held_out=one.held_out and {"rocarea": one.held_out["rocarea"]}) for one in points]
    assert expected(older, "rocarea") is None and expected(points[-1:], "rocarea") is None


def test_a_run_that_a_limit_ended_is_made_again_under_a_larger_one():
    def point(status, evaluations):
        result = {"status": status.name.lower(), "evaluations": evaluations}
        return Point(0.1, 0, result, 0.0, {}, None)

    settings = Settings(lam=1.0, max_evaluations=50)
    assert finished(point(Status.PROVED, 10), settings)
    assert finished(point(Status.STALLED, 10), settings)
    assert finished(point(Status.LIMIT, 50), settings)
    assert not finished(point(Status.LIMIT, 20), settings)


@pytest.mark.serial
def test_a_folder_that_is_not_this_paths_is_refused(tmp_path):
    problem = {"data": {"path": "a", "fingerprint": "f"}, "measure": "prbep", "folds": 5}
    folder = PathStore(tmp_path / "one")
    folder.path.mkdir()
    folder.open(problem)
    folder.check()
    folder.open({**problem, "folds": 7})  # without a point nothing is lost
    folder.open(problem)
    (folder.path / "points" / "0.1_all.json").write_text("{}")
    folder.open({**problem, "data": {"path": "moved", "fingerprint": "f"}})
    with pytest.raises(InputError, match=r"measure: there prbep, now rocarea; folds: there 5, now 3"):
        folder.open({**problem, "measure": "rocarea", "folds": 3})
    with pytest.raises(InputError, match="with other content"):
        folder.open({**problem, "data": {"path": "a", "fingerprint": "g"}})
    with pytest.raises(InputError, match=r"Remove .*0\.1_all\.json, and the point is computed again"):
        folder.points()
    (folder.path / "path.json").unlink()
    with pytest.raises(InputError, match="something that is not a path"):
        folder.check()
    with pytest.raises(InputError, match="is not a folder"):
        PathStore(tmp_path / "one" / "points" / "0.1_all.json").check()


@pytest.mark.serial
def test_words_on_points_that_came_to_nothing():
    nothing = {"status": "nonfinite", "J": None, "gap": None, "evaluations": 0, "vacuous": False}
    some = {**nothing, "status": "proved", "J": 0.5, "gap": 1e-4, "vacuous": True}
    points = [
        Point(0.1, 0, some, 0.0, {"prbep": 0.6}, None),
        Point(0.1, 1, nothing, 0.0, {"prbep": 0.6}, {"prbep": None}),
        Point(0.01, 0, nothing, 0.0, {"prbep": None}, None),
    ]
    assert "nonfinite J -  gap        -" in path_text.line(points[1], "prbep")
    lines = formatting.format_table(*path_text.table(points, "prbep", None)).splitlines()
    assert " ".join(lines[2].split()) == "0.1 0.50000000 0.0001 0 0.600000 - - no better than chance"
    assert lines[3].split() == ["0.01", "-", "-", "0", "-", "-", "-", "nonfinite"]


@pytest.mark.serial
def test_words_on_the_choice():
    some = curve(0.80, 0.8951, 0.90, 0.7)
    text = path_text.choice("rocarea", choose(some, "one-se"), some)
    assert "lambda 0.1: held-out ROCArea 0.895100, standard error 0.010000; the best mean is 0.900000 at 0.01" in text
    assert "of lambda 0.01 to 0.1 are within one standard error of the best mean: -0.004900 at 0.1" in text
    assert "warning" not in text
    assert "is the largest one" in path_text.choice("rocarea", choose(some[2:], "best"), some[2:])


@pytest.mark.serial
def test_words_on_a_choice_that_says_nothing():
    """Where no w beats w = 0, larger lambdas than the largest are no advice."""
    some = curve(0.6, 0.5)
    for vacuous in (True, False):
        points = [Point(one.lam, 0, {"vacuous": vacuous}, 0.0, {}, None) for one in some]
        text = path_text.choice("prbep", choose(some, "best"), some, points)
        assert ("no better than chance" in text) == vacuous
        assert ("is the largest one" in text) != vacuous
        assert ("--measure rocarea" in path_text.nothing("prbep", points)) == vacuous
        assert ("smaller lambdas may" in path_text.nothing("rocarea", points)) == vacuous
        better = Point(1e-9, 0, {"vacuous": False}, 0.0, {}, None)
        assert not path_text.nothing("prbep", [*points, better])
