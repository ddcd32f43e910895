"""Paths of lambdas over folds give the same as trainings on the rows of each fold alone, in one pass or one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics import roc_auc_score

from distsms.base.choices import STEPS
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.scored import Scored
from distsms.metrics import confidence
from distsms.optim.batching import solve_batched
from distsms.optim.objective import Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.optim.solvers.base import SOLVERS
from distsms.parallel.vectors import Vectors
from distsms.training.task import Distribution
from distsms.workflow import decisions
from distsms.workflow.choice import Point
from distsms.workflow.folds import make_folds
from distsms.workflow.path import CrossValidation, PathRows, Problem, run
from distsms.workflow.path_result import L1, PathResult, PathStore, SeveralStore, describe_left_out, finished
from tests.support.problems import LOSSES, asked, block, data, local_part, objective, share
from tests.support.simulated import run_ranks

EPSILON = 1e-4
PROBLEM = Problem("rocarea", [1e-1, 1e-2], 3, 0, Settings(lam=1.0, epsilon=EPSILON))
RANKING = [key for key in LOSSES if key[0] in ("rocarea", "prbep")]


def solved(comm, problem, X, y, fold_keys=None, **more):
    """Return what `run` returns, and on the root the w of each point, by lambda and fold."""
    w = {}

    def keep(point, result, scores):
        w[point.lam, point.fold] = result.w.copy()

    return run(PathRows(block(comm, X, y), comm, fold_keys), problem, keep, **more), w


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
        if comm.is_root:
            alone = minimize(objective(X[own], y[own], Communicator(), measure), Settings(lam=lam, epsilon=EPSILON))
            assert result["lower_bound"] <= alone.J
            assert alone.lower_bound <= result["J"]
            scores = X @ w[lam, fold]
            assert training["rocarea"] == pytest.approx(roc_auc_score(y[own], scores[own]), abs=1e-12)
            if fold:
                assert held_out["rocarea"] == pytest.approx(roc_auc_score(y[out], scores[out]), abs=1e-12)


def rows_of(comm, problem, X, y, fold):
    """Return which rows of all ranks a fold is trained on."""
    folds = np.concatenate(comm.allgather(CrossValidation(PathRows(block(comm, X, y), comm), problem).folds.number))
    return folds != fold


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("measure, ordering", RANKING)
def test_a_fold_is_the_problem_of_its_rows_alone(measure, ordering, step, comm):
    X, y = data(n=120)
    problem = replace(PROBLEM, measure=measure, distribution=Distribution(ordering, step))
    models = CrossValidation(PathRows(block(comm, X, y), comm), problem)
    w = np.random.default_rng(1).normal(size=X.shape[1])
    requests = [
        Request(models.vectors.local_slice(w), nu, ElasticNet(0.1), f) for nu in (0.3, 0.0) for f in models.numbers
    ]
    found = asked(models, requests)
    folds = np.concatenate(comm.allgather(models.folds.number))
    near = 1e-4 if ordering == "bins" else 1e-9  # bins take the mean of the scores in a cell for each of them
    for k, (_, nu, _, fold) in enumerate(requests):
        alone = objective(X[folds != fold], y[folds != fold], Communicator(), measure)
        (other,) = alone.evaluate([Request(w, nu, ElasticNet(0.1))])
        if found:
            assert other.J - 1e-9 <= found[k].J <= other.J + found[k].width + 1e-9
            assert found[k].J_mu == pytest.approx(other.J_mu, abs=near)
            assert found[k].gradient == pytest.approx(models.vectors.local_slice(other.gradient), abs=near) or nu == 0
    models.vectors.close()


@pytest.mark.parametrize(
    "measure, step, solver",
    [
        ("rocarea", "root", "lbfgs"),
        pytest.param("rocarea", "spread", "lmvm", marks=pytest.mark.mpi(only=True)),  # PETSc
        ("prbep", "root", "lmvm"),
        ("prbep", "spread", "lbfgs"),
    ],
)
def test_what_is_proved_of_a_point_is_true_of_its_rows(measure, step, solver, comm):
    X, y = data(n=120)
    settings = replace(PROBLEM.settings, solver=solver)
    problem = replace(PROBLEM, measure=measure, settings=settings, distribution=Distribution(step=step))
    found, w = solved(comm, problem, X, y)
    assert {(point.lam, point.fold) for point in found.points} == {
        (lam, f) for lam in problem.lambdas for f in range(4)
    }
    assert not found.stopped
    for lam, fold, result, threshold, training, held_out in found.points:
        mine = rows_of(comm, problem, X, y, fold)
        assert result["status"] == "proved"
        assert result["gap"] <= EPSILON
        if comm.is_root:
            alone = minimize(objective(X[mine], y[mine], Communicator(), measure), Settings(lam=lam, epsilon=EPSILON))
            assert result["lower_bound"] <= alone.J
            assert alone.lower_bound <= result["J"]
            scores = X @ w[lam, fold]
            assert training["rocarea"] == pytest.approx(roc_auc_score(y[mine], scores[mine]), abs=1e-12)
            assert np.sum(scores[mine] >= threshold) == np.sum(y[mine] > 0)
            if fold:
                assert held_out["rocarea"] == pytest.approx(roc_auc_score(y[~mine], scores[~mine]), abs=1e-12)
                spread = confidence.measure_estimate(measure, Scored(scores[~mine], y[~mine], Communicator()))
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
    settings = replace(PROBLEM.settings, solver="lbfgs")
    problem = replace(PROBLEM, settings=settings, distribution=Distribution(step=step))
    whole, w = solved(comm, problem, X, y)
    there = {(0.1, 0), (0.1, 1), (0.1, 2), (0.1, 3), (0.01, 2)}
    known = [point for point in whole.points if (point.lam, point.fold) in there]
    rest, v = solved(comm, problem, X, y, earlier=known, start=lambda fold, lam: w.get((0.1, fold)))
    assert {(point.lam, point.fold) for point in rest.points} == {(0.01, 0), (0.01, 1), (0.01, 3)}
    before = {(point.lam, point.fold): point.result["evaluations"] for point in whole.points}
    assert all(point.result["evaluations"] == before[point.lam, point.fold] for point in rest.points)  # the same start
    assert all(np.allclose(v[key], w[key], rtol=1e-9, atol=1e-9) for key in v)
    nothing, _ = solved(comm, problem, X, y, earlier=whole.points)
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


def mixed(n=200):
    """Return rows whose positives lie in the middle of the negatives, so that PRBEP is vacuous at every lambda."""
    rng = np.random.default_rng(3)
    y = np.where(np.arange(n) % 5 == 0, 1, -1).astype(np.int8)
    return sparse.csr_matrix(rng.normal(size=(n, 3)) * np.where(y > 0, 0.1, 2.0)[:, None]), y


@pytest.mark.parametrize("measure", ["prbep", "pauc@0.2", "rocarea"])
def test_lambdas_that_are_left_out_gain_nothing(measure, comm):
    """An oracle: cutting planes on all rows and on the rows of each fold, at the lambdas that were left out."""
    X, y = mixed()
    lambdas = [1.0, 1e-1, 1e-2, 1e-3] if measure != "rocarea" else [1e3, 3e2, 1e2, 1e-2]
    problem = replace(PROBLEM, measure=measure, lambdas=lambdas, settings=Settings(lam=1.0, epsilon=1e-3))
    found, _ = solved(comm, problem, X, y)
    tried = {point.lam for point in found.points}
    assert tried >= {lambdas[0], lambdas[-1]} and found.left_out and set(found.left_out) == set(lambdas) - tried
    folds = np.concatenate(comm.allgather(CrossValidation(PathRows(block(comm, X, y), comm), problem).folds.number))
    for lam, gain in found.left_out.items() if comm.is_root else ():
        assert gain <= 1e-3
        for own in (folds > 0, folds != 1, folds != 2, folds != 3):
            alone = objective(X[own], y[own], Communicator(), measure)
            least = minimize(alone, Settings(lam, 1e-6, solver="bmrm", max_evaluations=300))
            assert least.J_at_zero - least.J <= gain * (1 + 1e-6)
    again, _ = solved(comm, problem, X, y, earlier=found.points)
    assert not again.points and again.left_out == found.left_out
    some = [point for point in found.points if point.fold != 2 or point.lam != lambdas[-1]]
    rest, _ = solved(comm, problem, X, y, earlier=some)
    assert [(point.lam, point.fold) for point in rest.points] == [(lambdas[-1], 2)]


def test_what_is_left_out_is_named_with_the_most_that_could_be_gained():
    path = PathResult([], "rocarea", "best", {"measure": "rocarea"}, None)
    line = describe_left_out(replace(path, left_out={0.01: 2e-4, 0.1: 5e-5}), "0.001", None)
    assert line.startswith("left out  lambda 0.1, 0.01: ") and "by more than 0.0002 there" in line
    assert describe_left_out(path, "0.001", None) == ""


def test_nothing_is_left_out_where_something_can_be_gained(comm):
    X, y = data(n=120)
    found, _ = solved(comm, replace(PROBLEM, measure="prbep", lambdas=[1e4, 1e-1, 1e-2]), X, y)
    assert not found.left_out and len(found.points) == 12


@pytest.mark.serial
def test_what_one_solve_raises_ends_all():
    X, y = data(n=50)
    ended = []

    def waits(solve):
        try:
            while True:
                solve.evaluate([Request(np.zeros(X.shape[1]), 0.1, ElasticNet(1.0))])
        finally:
            ended.append("waiting")

    def fails(solve):
        solve.evaluate([Request(np.ones(X.shape[1]), 0.1, ElasticNet(1.0))])
        raise InputError("the disk is full")

    models = CrossValidation(PathRows(block(Communicator(), X, y), Communicator()), replace(PROBLEM, folds=2))
    with pytest.raises(InputError, match="the disk is full"):
        solve_batched(models, [waits, fails, waits], 3)
    assert ended == ["waiting", "waiting"]


@pytest.mark.parametrize("case", ["iterated", "spread", "closed", "shared"])
def test_where_a_point_cannot_be_kept_all_ranks_fail(case, comm, monkeypatch):
    """And what they share is freed."""
    (X, y), freed = data(n=60), []
    monkeypatch.setattr(Vectors, "close", lambda made: freed.append(made))
    settings, measure = replace(PROBLEM.settings, solver="lbfgs"), "normal-auc" if case == "closed" else "rocarea"
    distribution = Distribution(step="spread" if case == "spread" else "root")
    problem = Problem(measure, PROBLEM.lambdas, 2, 0, settings, distribution, scored=int(case == "closed"))
    rows = PathRows(block(Communicator(), X, y), comm, share_folds=True)
    rows = rows if case == "shared" else PathRows(block(comm, X, y), comm)

    def keep(point, result, scores):
        if point.fold == 1:
            raise InputError("the disk is full")

    with pytest.raises(InputError, match="the disk is full"):
        run(rows, problem, keep)
    assert freed


def in_groups(two_classes):
    """Return rows of ten groups, the first of them with both classes and the others with one, and the groups."""
    group = np.arange(60) // 6
    y = np.where(group < two_classes, np.arange(60) % 2, group % 2) * 2 - 1
    X = sparse.csr_matrix(np.random.default_rng(0).normal(size=(60, 3)) + y[:, None])
    return X, y.astype(np.int8), group.astype(np.uint64)


GAUC = Problem("gauc@each", [1e-1], 3, 0, Settings(lam=1.0, solver="lbfgs"), folds_by="groups")


@pytest.mark.serial
@pytest.mark.parametrize("case", ["one class", "no group with both"])
def test_what_is_refused_on_the_rank_of_one_fold_is_refused_on_all(case):
    """The fold of all rows, where there is no other; and that whose training rows lack the only group of both."""
    X, y, groups = in_groups(two_classes=1)
    problem, why = replace(GAUC, select="rocarea"), "no group has both"
    if case == "one class":
        y[:], problem, why = 1, replace(PROBLEM, folds=0), "60 positive and 0 negative"

    def on_ranks(comm):
        rows = replace(block(Communicator(), X, y), groups=groups)
        with pytest.raises(InputError, match=why):
            run(PathRows(rows, comm, groups, share_folds=True), problem, lambda *of_point: None)

    run_ranks(3, on_ranks)


def test_folds_without_a_group_of_both_classes_are_refused_if_gauc_chooses(comm):
    """Of three folds, one has neither of two groups."""
    X, y, groups = in_groups(two_classes=2)
    rows = PathRows(replace(block(comm, X, y), groups=local_part(groups, comm)), comm, local_part(groups, comm))
    with pytest.raises(InputError, match=r"3 folds by groups: fold . has no group with rows of both classes, so that"):
        run(rows, GAUC, lambda *of_point: None)
    found = run(rows, replace(GAUC, select="rocarea"), lambda *of_point: None)
    values = [point.held_out["gauc@each"] for point in found.points if point.fold]
    assert len(values) == 3 and np.isnan(values).sum() == 1
    scored = decisions.held_out(rows, GAUC, (0.0, 1.0)).scored  # for a threshold, which compares no groups
    assert sum(comm.allgather(len(scored.scores))) == 60


def test_too_few_rows_for_the_folds_are_refused_everywhere(comm):
    X, y = data(n=40)
    y[:] = np.where(np.arange(40) < 2, 1, -1)
    with pytest.raises(
        InputError, match="3 folds need at least 3 rows of each class, and there are only 2 positive ones"
    ):
        solved(comm, PROBLEM, X, y)


def test_rows_of_weight_0_are_in_no_fold(comm):
    X, y = data(n=120)
    weights = np.where(np.arange(120) % 4 == 1, 0.0, 1.0)
    weights[:2] = 1.0
    given = block(comm, X, y)
    mine = slice(given.first_row, given.first_row + len(given.labels))
    models = CrossValidation(PathRows(replace(given, weights=weights[mine]), comm), PROBLEM)
    folds = np.concatenate(comm.allgather(models.folds.number))
    assert np.array_equal(folds == 0, weights == 0)
    assert models.losses[0].n == np.sum(weights)
    assert [loss.n for loss in models.losses[1:]] == [np.sum((folds != f) & (folds != 0)) for f in (1, 2, 3)]
    doubled = CrossValidation(PathRows(replace(given, weights=2 * weights[mine]), comm), PROBLEM)
    assert [loss.n for loss in doubled.losses] == [loss.n for loss in models.losses]


def test_a_run_that_a_limit_ended_is_made_again_under_a_larger_one():
    def point(status, evaluations):
        result = {"status": status.name.lower(), "evaluations": evaluations}
        return Point(0.1, 0, result, 0.0, {}, None)

    problem = replace(PROBLEM, settings=Settings(lam=1.0, max_evaluations=50))
    assert finished([point(Status.PROVED, 10)], problem)
    assert finished([point(Status.STALLED, 10)], problem)
    assert finished([point(Status.LIMIT, 50)], problem)
    assert not finished([point(Status.LIMIT, 20)], problem)


@pytest.mark.serial
def test_a_folder_whose_first_file_could_not_be_written_is_usable(tmp_path, monkeypatch):
    folder = PathStore(tmp_path / "one")
    folder.path.mkdir()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(PathStore, "write", lambda self, path, value: (_ for _ in ()).throw(OSError("full")))
        folder.open({"measure": "prbep"})
    folder.check()
    folder.open({"measure": "prbep"})
    assert (folder.path / "points").is_dir()


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
    with pytest.raises(InputError, match="something that is not a path;"):
        folder.check()
    with pytest.raises(InputError, match="something that is not a path of several l1;"):
        SeveralStore(folder.path, L1).check()
    with pytest.raises(InputError, match="is not a folder"):
        PathStore(tmp_path / "one" / "points" / "0.1_all.json").check()
