"""After a training, a quick ROCArea model is compared with what was trained, and the one that is better is named."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from distsms.base.communicator import Communicator
from distsms.base.errors import EXIT_LIMIT, EXIT_OK, EXIT_VACUOUS
from distsms.base.measures import Measure
from distsms.base.scored import Scored
from distsms.metrics.confidence import Interval
from distsms.metrics.operating_points import contingency
from distsms.models import scoring
from distsms.training.rows import TrainingRows
from distsms.training.solver_choice import settings_for
from distsms.training.task import Reserve, RunOptions, TrainingTask
from distsms.workflow import rocarea_check
from distsms.workflow.auto_lambda import choose_lambda
from distsms.workflow.rocarea_check import COMPARE, Checker, Contest, QuickCheck, advise
from distsms.workflow.train import train_task
from distsms.workflow.verdict import describe_no_bias
from tests.support.problems import block, share

ALONE = Communicator()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """Do not let a slow machine decide."""
    monkeypatch.setattr(rocarea_check, "LEAST_SECONDS", 60.0)


def rare(n=3000, shift=1.7, seed=0):
    """3 % positives, shifted in one of three columns: ROCArea 0.88, where PRBEP's risk is smallest at w = 0."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < 0.03, 1, -1).astype(np.int8)
    X = rng.normal(size=(n, 3))
    X[:, 0] += shift * (y > 0)
    return X, y


def train(comm, X, y, measure, lam=1e-4, bias=None, check=True, **settings):
    from scipy import sparse

    solver = "lbfgs" if Measure.parse(measure).family.smooth else "bmrm"
    rows = block(comm, sparse.csr_matrix(X), y)
    task = TrainingTask(rows, Measure.parse(measure), settings_for(measure, solver, lam=lam, **settings), bias)
    return train_task(task, comm, check=check)


@pytest.mark.parametrize("measure, bias", [("prbep", None), ("f1", 1.0), ("precision@30", None), ("recall@100", None)])
def test_a_useless_model_is_proved_and_vacuous_and_says_what_to_use_instead(comm, measure, bias):
    X, y = rare()
    X = X - 3 if measure.endswith(("@30", "@100")) else X  # there a shift of all scores lowers the risk
    trained = train(comm, X, y, measure, bias=bias)
    saved, (warning,) = trained.to_model(comm), trained.warnings()
    assert trained.exit_code == saved.info["exit_code"] == EXIT_VACUOUS and saved.info["vacuous"]
    assert saved.info["status"] == "proved" and saved.info["warnings"] == [warning]
    assert warning.startswith("This model ranks no better than chance")
    assert "smaller lambda may" not in warning and "Use the measure rocarea with lambda" in warning
    contest = trained.check.contest
    assert contest.theirs["rocarea"] > 0.8 and contest.useful and contest.gains["rocarea"].low > 0.1
    assert "trained neither" in contest.on


def test_the_beta_that_is_named_is_not_vacuous(comm):
    """An oracle for the smallest BETA; and a training at a larger one makes J lower than at w = 0."""
    X, y = rare()
    trained = train(comm, X, y, "prbep")
    check = trained.check
    assert "Training for pauc@BETA does not end with such a model if BETA is 0.0" in trained.warnings()[0]
    scores, positive = X @ check.w, y > 0  # of all rows; the check has seen two thirds of them
    falling = np.sort(scores[~positive])[::-1]
    means = np.cumsum(falling) / np.arange(1, len(falling) + 1)
    assert check.least_beta == pytest.approx(np.mean(means >= scores[positive].mean()), rel=0.2)
    larger = train(comm, X, y, f"pauc@{1.5 * check.least_beta:g}", lam=1e-3)
    assert not larger.result.idle and larger.exit_code == EXIT_OK


@pytest.mark.parametrize("weighted", [False, True])
def test_the_least_beta_is_that_of_all_cuts(comm, weighted):
    rng = np.random.default_rng(5)
    s, y, a = rng.normal(size=60).round(1), np.where(rng.random(60) < 0.3, 1, -1), rng.integers(1, 4, 60)
    s[y > 0] += 1.0
    a = a if weighted else np.ones(60, int)
    negatives = np.sort(np.repeat(s[y < 0], a[y < 0]))[::-1]
    mean = np.average(s[y > 0], weights=a[y > 0])
    cuts = [k / len(negatives) for k in range(1, len(negatives) + 1) if negatives[:k].mean() < mean]
    own = share(comm, 60)
    found = rocarea_check.least_beta(Scored(s[own], y[own], comm, a[own].astype(float)))
    step = a.max() / len(negatives)  # rows of one weight are one step
    assert cuts[0] <= found <= cuts[0] + step
    assert np.isnan(rocarea_check.least_beta(Scored(-s[own], y[own], comm)))


def test_a_good_model_is_not_warned_of_even_where_J_is_near_that_of_zero(comm):
    X, y = rare()
    large = train(comm, X, y, "rocarea", lam=100.0)
    assert large.result.J > 0.97 * large.result.J_at_zero and large.scores.measures["rocarea"] > 0.85
    assert large.exit_code == EXIT_OK and not large.warnings() and large.check is None
    easy = train(comm, *rare(shift=6.0), "prbep", lam=1e-3)
    assert easy.exit_code == EXIT_OK and not easy.vacuous and not easy.warnings()
    assert easy.check.contest.ours["measure"] > 0.9


def test_a_model_that_ranks_clearly_worse_is_told_so_with_exit_code_0(comm):
    """As it would be said of a model that is not no better than chance."""
    own = train(comm, *rare(shift=1.5, seed=3), "prbep")
    trained = replace(own, scores=replace(own.scores, chance=""))
    (warning,) = trained.warnings()
    assert trained.exit_code == EXIT_OK
    assert warning.startswith("This model ranks clearly worse than a quick ROCArea model, which has")


def test_columns_that_say_nothing_get_another_advice(comm):
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(2000, 2)), np.where(rng.random(2000) < 0.05, 1, -1).astype(np.int8)
    (warning,) = train(comm, X, y, "prbep").warnings()
    assert "does not clearly do so either" in warning and "Use the measure" not in warning


def test_without_a_check_nothing_more_is_trained(comm):
    X, y = rare(n=1000)
    trained = train(comm, X, y, "prbep", check=False)
    assert trained.check is None and trained.warnings()[0].endswith(f"Use the measure rocarea instead, {COMPARE}")
    cut = train(comm, X, y, "prbep", check=False, max_evaluations=1)
    assert cut.exit_code == EXIT_LIMIT and "allow it more" in cut.warnings()[0]


@pytest.mark.serial
def test_a_check_that_has_no_time_says_nothing(monkeypatch):
    monkeypatch.setattr(rocarea_check, "LEAST_SECONDS", 0.0)
    trained = train(ALONE, *rare(n=1000), "prbep")
    assert trained.check.why == "it did not end in its time" and trained.check.contest is None
    assert trained.rocarea_model(trained.to_model(ALONE)) is None
    few = np.array([1, -1, -1], np.int8)
    assert "too few" in train(ALONE, np.eye(3), few, "prbep").check.why


@pytest.mark.serial
def test_a_sample_has_its_share_of_the_rows_and_of_k(monkeypatch):
    X, y = rare(n=4000)
    rows = block(ALONE, as_csr(X), y)
    task = TrainingTask(rows, Measure.parse("precision@100"), settings_for("precision@100", "bmrm", lam=1e-2))
    monkeypatch.setattr(rocarea_check, "MOST_ROWS", 1000)
    found = checker(task).run(hold_out=True)
    n_out = int(found.contest.on.split()[0])
    assert 800 < found.rows + n_out < 1200 and 0.25 < n_out / (found.rows + n_out) < 0.42
    assert found.contest.measure == f"precision@{round(100 * n_out / 4000)}"


@pytest.mark.serial
def test_a_sample_of_rows_with_groups(monkeypatch):
    """The groups are there for the folds that find a threshold."""
    X, y = rare(n=4000)
    rows = replace(block(ALONE, as_csr(X), y), groups=np.arange(4000, dtype=np.uint64) // 4)
    task = TrainingTask(rows, Measure.parse("prbep"), settings_for("prbep", "lbfgs", lam=1e-2))
    monkeypatch.setattr(rocarea_check, "MOST_ROWS", 1000)
    assert checker(task).run(hold_out=True).contest is not None


@pytest.mark.serial
@pytest.mark.parametrize("measure", ["error-rate", "f2"])
def test_the_threshold_is_the_best_one(measure):
    X, y = rare(n=300)
    settings = settings_for(measure, "bmrm", lam=1e-2)
    task = TrainingTask(block(ALONE, as_csr(X), y), Measure.parse(measure), settings)
    scores = np.round(X[:, 0], 1)
    best = checker(task)._best_threshold(Scored(scores, y, ALONE))

    def merit(at):
        table = contingency(Scored(scores, y, ALONE), at)
        return -table.error_rate if measure == "error-rate" else table.f(2.0)

    assert merit(best) == pytest.approx(max(merit(at) for at in scores))


def test_on_test_rows_the_runs_own_model_is_compared(comm, tmp_path):
    from distsms.shards.dataset import read_manifest
    from distsms.shards.from_arrays import write_data

    with comm.fail_together():
        if comm.is_root:
            for name, seed in (("train", 0), ("test", 1)):
                write_data(tmp_path / name, *rare(seed=seed))
    folder = comm.bcast(str(tmp_path))
    task = TrainingTask(
        read_manifest(f"{folder}/train"), Measure.parse("prbep"), settings_for("prbep", "lbfgs", lam=1e-2)
    )
    trained = train_task(task, comm, check=True, hold_out=False)
    assert trained.check.contest is None
    saved = trained.to_model(comm)
    test = scoring.score([saved, trained.rocarea_model(saved)], f"{folder}/test", comm)
    trained.compare(test, f"{folder}/test", comm)
    contest = trained.check.contest
    assert contest.ours["rocarea"] == 0.5 and contest.theirs["rocarea"] > 0.8 and contest.measure == "prbep"
    (warning,) = trained.warnings()
    assert f"on {folder}/test. Training for pauc@BETA does not" in warning
    assert warning.endswith(f" Use the measure rocarea with lambda {trained.check.lam:g} instead, {COMPARE}")


@pytest.mark.serial
def test_a_check_keeps_within_the_memory_and_is_left_out_where_it_has_no_room(tmp_path):
    from distsms.shards.from_arrays import write_data
    from distsms.training.plan import make_plan

    manifest = write_data(tmp_path / "train", *rare())
    settings = settings_for("prbep", "lbfgs", lam=1e-2)
    task = TrainingTask(manifest, Measure.parse("prbep"), settings)
    least = make_plan(manifest, "prbep", settings, 1, [0], memory=2**40).needs.least(1, root=True)
    assert train_task(task, ALONE, RunOptions(memory=1.2 * least), check=True).check.contest is not None
    assert train_task(task, ALONE, RunOptions(memory=1.02 * least), check=True).check is None


def test_all_ranks_have_room_for_a_check_or_none(comm):
    """One of two nodes may have less, and a check is collective."""
    plan = SimpleNamespace(needs=SimpleNamespace(least=lambda ranks, root: 100.0 + comm.rank))
    options = RunOptions(memory=200, reserve=Reserve(100, 0.0))
    rows = TrainingRows(None, comm, options, plan, None, None, None)
    assert comm.allgather(rows.reserved) == [100.0 if comm.size == 1 else 0.0] * comm.size


def checker(task):
    """Return what checks a model of zeros that a run for this task made in a tenth of a second."""
    rows = SimpleNamespace(block=task.data, reserved=math.inf, task=task, options=RunOptions())
    result = SimpleNamespace(seconds=0.1, evaluations=10, w=np.zeros(task.data.p))
    return Checker(SimpleNamespace(rows=rows, result=result), ALONE)


def as_csr(X):
    from scipy import sparse

    return sparse.csr_matrix(X)


@pytest.mark.serial
def test_the_lambda_is_the_one_that_auto_takes():
    """For the same rows: a check with test rows holds out no others."""
    X, y = rare()
    X = np.hstack([X, np.random.default_rng(1).normal(size=(len(X), 40))])
    rows = block(ALONE, as_csr(X), y)
    task = TrainingTask(rows, Measure.parse("prbep"), settings_for("prbep", "lbfgs", lam=1e-4))
    found = checker(task).run(hold_out=False)
    automatic = choose_lambda(
        replace(task, measure=Measure.parse("rocarea"), settings=settings_for("rocarea", "lbfgs", lam=1.0)), ALONE
    )
    assert found.rows == len(y) and found.lam == automatic.lam


@pytest.mark.serial
def test_a_difference_that_is_small_or_may_be_chance_raises_no_alarm():
    """F1 of balanced classes: both models separate them equally well."""
    for seed in (0, 1, 2):
        rng = np.random.default_rng(seed)
        y = np.where(rng.random(1000) < 0.5, 1, -1).astype(np.int8)
        X = rng.normal(size=(1000, 5)) + 0.5 * (y > 0)[:, None] * np.eye(1, 5)
        assert not train(ALONE, X, y, "f1", lam=0.1, bias=1.0).warnings()
    little = Interval(0.011, 0.005, 0.001, 0.021, "bootstrap, paired", "")
    large = Interval(0.05, 0.01, 0.03, 0.07, "bootstrap, paired", "")
    values = {"rocarea": 0.7, "measure": 0.67}
    for gain, alarm in ((little, False), (large, True)):
        contest = Contest("rows", "f1", values, values, {"measure": gain, "rocarea": little}, True)
        check, f1 = QuickCheck(np.zeros(1), 0.1, contest=contest), Measure.parse("f1")
        assert bool(advise(check, f1, False)) == alarm
    assert "Train with --bias 1: without it, " in (told := advise(check, f1, False, describe_no_bias(f1, 0.0)))
    assert told.endswith("Or use the measure rocarea with lambda 0.1 instead, " + COMPARE)
    assert not describe_no_bias(f1, 1.0) and not describe_no_bias(Measure.parse("prbep"), None)
