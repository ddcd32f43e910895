"""Fits of a baseline with distributed rows are those that one process makes, on any number of ranks, and resumable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import distsms
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.base.scored import Scored
from distsms.matrix import local
from distsms.metrics import ranking
from distsms.optim.settings import Settings
from distsms.shards import dataset, from_arrays
from distsms.shards.dataset import MemoryBudget
from distsms.shards.from_arrays import write_data
from distsms.shards.row_metadata import some
from distsms.training.task import Distribution
from distsms.workflow import baseline_fits, competitors, method_results
from distsms.workflow.baseline_fits import FitSpec, first_round, method_problem, read_rows
from distsms.workflow.competitors import OURS, Task
from distsms.workflow.method_results import MethodResult
from distsms.workflow.path import PathRows, Problem
from tests.support.methods import fit_of
from tests.support.problems import data, local_part, share

ALONE = Communicator()
SETTINGS = Settings(lam=1.0, epsilon=1e-6, solver="lbfgs")
LAMBDAS = (1e-1, 1e-2)
PROBLEM = Problem("rocarea", LAMBDAS, 3, 0, SETTINGS)
NAMES = (OURS, "logistic", "logistic-balanced")


def block(X, y, comm, weights=None):
    """Return this rank's share of the rows."""
    mine = None if weights is None else local_part(weights, comm)
    return from_arrays.block(X[share(comm, len(y))], local_part(y, comm), comm, weights=mine)


def fitted(rows, comm, specs, lambdas=LAMBDAS, stop_wanted=lambda: False, **more):
    """Return the fits by specification, with their scores, as the root gets them; and whether the run was stopped."""
    whole = replace(PROBLEM, lambdas=lambdas, **more)
    problems = {name: method_problem(whole, name, 0.3) for name in NAMES}
    found = {}

    def keep(fit, scores):
        found[FitSpec(fit.method, fit.setting, fit.fold)] = fit, scores

    stopped = False
    for name, problem in problems.items():
        own = [spec for spec in specs if spec.method == name]
        stopped = stopped or baseline_fits.fit_distributed(PathRows(rows, comm), problem, own, keep, stop_wanted)
    return found, stopped


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("step", ["root", "spread"])
def test_they_are_the_fits_of_one_process(weighted, step, comm):
    X, y = data(160, 6, positive=0.3)
    weights = np.where(np.arange(160) % 9 == 4, 0.0, np.linspace(0.5, 2, 160)) if weighted else None
    specs = first_round(NAMES, LAMBDAS, 3, 0)
    rows = block(X, y, comm, weights)
    found, stopped = fitted(rows, comm, specs, distribution=Distribution(step=step))
    whole = baseline_fits.gather_rows(PathRows(rows, comm), PROBLEM)
    assert not stopped
    if not comm.is_root:
        assert not found and whole is None
        return
    assert set(found) == set(specs) and sum(fit.seconds for fit, _ in found.values()) > 0
    kept = np.ones(160, bool) if weights is None else weights > 0
    np.testing.assert_array_equal(whole.y, y[kept])
    np.testing.assert_array_equal(whole.weights, None if weights is None else weights[kept])
    for spec in specs if comm.size == 1 else specs[1::5]:
        fit, scores = found[spec]
        training, out = whole.folds.training(spec.fold), whole.folds.judged(spec.fold)
        task = Task(X[kept][training], y[kept][training], "rocarea", SETTINGS, weights=some(whole.weights, training))
        alone = fit_of(spec.method)(task, spec.setting).score(X[kept][out])
        np.testing.assert_allclose(scores, alone, atol=0.02)  # both are within 1e-6 of the least J
        again = ranking.ranking(Scored(scores, y[kept][out], ALONE, some(whole.weights, out)))
        assert (fit.rocarea, fit.prbep, fit.note) == (pytest.approx(again.rocarea), pytest.approx(again.prbep), "")


def test_only_what_is_missing_is_fitted_and_a_stop_keeps_what_is_done(comm):
    X, y = data(90, 5)
    specs = first_round(NAMES, LAMBDAS, 3, 0)
    found, _ = fitted(block(X, y, comm), comm, specs[3:4] + specs[8:9])
    assert set(found) == (set(specs[3:4] + specs[8:9]) if comm.is_root else set())
    found, stopped = fitted(block(X, y, comm), comm, specs, stop_wanted=lambda: True)
    assert stopped and not found


def test_every_lambda_is_fitted_although_nothing_is_gained_at_the_largest(comm):
    X, y = data(90, 5)
    specs = first_round(["logistic"], (1e9, 1e8, 1e-2), 3, 0)
    found, _ = fitted(block(X, y, comm), comm, specs, (1e9, 1e8, 1e-2))
    assert len(found) == 9 * comm.is_root


@pytest.mark.serial
def test_rows_of_a_data_set_may_be_streamed(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "PART_ENTRIES", 50)
    X, y = data(400, 8)
    manifest = dataset.read_manifest(write_data(tmp_path / "a", X, y, 3).directory)
    specs = first_round(["logistic"], LAMBDAS, 3, 0)
    held, streamed = (dataset.load(manifest, ALONE, budget=budget) for budget in (None, MemoryBudget(1800)))
    assert streamed.features.bytes_per_pass and not held.features.bytes_per_pass
    (first, _), (second, _) = (fitted(rows, ALONE, specs) for rows in (held, streamed))
    for spec, (fit, scores) in first.items():
        np.testing.assert_allclose(second[spec][1], scores, rtol=1e-9)
        assert second[spec][0].rocarea == fit.rocarea
    np.testing.assert_array_equal(
        baseline_fits.gather_rows(PathRows(streamed, ALONE), PROBLEM).folds.number,
        read_rows(manifest, PROBLEM).folds.number,
    )


@pytest.mark.serial
@pytest.mark.parametrize("name", ["logistic", "logistic-balanced"])
@pytest.mark.parametrize("weighted", [False, True])
def test_scikit_learn_finds_the_same_minimum(name, weighted, monkeypatch):
    """And it is said if it does not."""
    pytest.importorskip("sklearn")
    X, y = data(300, positive=0.1)
    task = Task(X, y, "rocarea", SETTINGS, weights=np.linspace(0.1, 4, 300) if weighted else None)
    for of_rows in (task, task._replace(X=X.toarray())):
        agrees, said = competitors.scikit_agrees(of_rows, Measure.parse(name), 1e-2)
        assert agrees and f"finds the same minimum as {name}" in said
    train = competitors.train
    monkeypatch.setattr(competitors, "train", lambda task, measure, lam: train(task, measure, 1.5 * lam))
    agrees, said = competitors.scikit_agrees(task, Measure.parse(name), 1e-2)
    assert not agrees and "does not find the same minimum" in said


@pytest.mark.serial
def test_the_check_is_of_small_data_with_scikit_learn(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    X, y = data(90, 5)
    write_data(tmp_path / "a", X, y, 1)
    rows = read_rows(dataset.read_manifest(tmp_path / "a"), PROBLEM)
    results = [MethodResult(name, [1e-1] * 3, False, 0.0, "", {}, {}) for name in (*NAMES, "svm")]
    sentences = method_results.check_logistic(results, rows, PROBLEM)
    assert [said.partition(":")[0].split()[-1] for said in sentences] == [*NAMES[1:]]
    monkeypatch.setattr(method_results, "scikit_agrees", lambda *of_fold: (False, "It differs"))
    (sentence,) = method_results.check_logistic(results[:2], rows, PROBLEM)
    assert sentence.startswith("Warning: It differs, on the")
    assert not method_results.check_logistic(results, rows._replace(X=None), PROBLEM)
    monkeypatch.setattr(method_results, "SMALL", 100)
    assert not method_results.check_logistic(results, rows, PROBLEM)


@pytest.mark.serial
def test_the_gap_is_as_strict_where_positives_are_rare():
    """It is epsilon times the risk of the best constant model, and a share of J stays one."""
    settings, share = Settings(lam=1.0, epsilon=1e-3, relative=1e-2), 0.01
    least = min(-(share * np.log(p) + (1 - share) * np.log1p(-p)) for p in np.linspace(1e-3, 0.5, 10_000))
    made = {name: competitors.with_target(settings, Measure.parse(name), share) for name in ("prbep", *NAMES[1:])}
    assert made["prbep"] == settings and {of.relative for of in made.values()} == {1e-2}
    assert made["logistic"].epsilon == pytest.approx(1e-3 * least, rel=1e-6)
    assert made["logistic-balanced"].epsilon == pytest.approx(1e-3 * np.log(2))


def test_groups_come_along_where_measures_are_taken_within_them(comm):
    X, y = data(160, 6, positive=0.3)
    rows = block(X, y, comm)
    rows = replace(rows, groups=local_part(np.arange(160, dtype=np.uint64) // 4, comm))
    for select, within in (("gauc@pairs", True), ("prbep", False)):
        whole = baseline_fits.gather_rows(PathRows(rows, comm), replace(PROBLEM, select=select))
        if comm.is_root:
            np.testing.assert_array_equal(whole.groups, np.arange(160) // 4 if within else None)
        else:
            assert whole is None


@pytest.mark.parametrize("options", [{}, {"thorough": True}, {"thorough": True, "memory": 2**30}, {"methods": ["svm"]}])
def test_where_a_fit_cannot_be_kept_all_ranks_fail(options, comm, shared_dir, monkeypatch):
    """Be it a trial, a fit of one rank or a fit of all."""

    def keep(store, result, scores=None):
        if result.fold == 1:
            raise InputError("the disk is full")

    if comm.is_root:
        write_data(shared_dir / "data", *data(n=60))
    comm.barrier()
    monkeypatch.setattr(baseline_fits.BaselineStore, "keep", keep)
    usual = {"methods": [OURS], "lambdas": LAMBDAS, "folds": 2, "solver": "lbfgs", "trees": False}
    with pytest.raises(InputError, match="the disk is full"):
        distsms.baseline(shared_dir / "data", shared_dir / "fits", comm, **usual | options)
