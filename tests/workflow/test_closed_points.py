"""The closed form of a path gives the models that iterations find, from one pass for moments and one for scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.matrix.arrays import as_features
from distsms.matrix.blocks import LocalRows
from distsms.matrix.local import SparseRows
from distsms.optim.settings import Settings
from distsms.shards.dataset import DataBlock
from distsms.training.task import Distribution
from distsms.workflow import path
from distsms.workflow.decisions import held_out
from distsms.workflow.folds import make_folds
from distsms.workflow.path import PathRows, Problem, run
from distsms.workflow.rocarea_check import compare_on_folds
from tests.support.problems import data, share

ALONE = Communicator()
LAMBDAS = [1e-1, 1e-3]
PROBLEM = Problem("normal-auc", LAMBDAS, 3, 0, Settings(lam=1.0, epsilon=1e-6, solver="lbfgs"))


def weighted_block(comm, X, y, a):
    rows = share(comm, len(y))
    return DataBlock(SparseRows.of(X[rows].tocsr()), y[rows], a[rows], rows.start, len(y), X.shape[1], 0, weighted=True)


def solved(comm, problem, block, fold_keys=None, **more):
    w = {}
    rows = PathRows(block, comm, fold_keys)
    found = run(rows, problem, lambda point, result, scores: w.update({(point.lam, point.fold): result.w}), **more)
    return found, comm.bcast(w)


@pytest.mark.parametrize(
    "kind, step, bias",
    [("rows", "root", None), ("rows", "spread", 2.0), ("time", "root", 2.0), ("time", "spread", None)],
)
def test_it_finds_what_iterations_find(kind, step, bias, comm):
    X, y = data(160, 6)
    a = np.random.default_rng(0).integers(0, 3, 160).astype(float)
    block = weighted_block(comm, X, y, a)
    keys = np.arange(160.0)[share(comm, 160)]
    problem = replace(PROBLEM, folds_by=kind, distribution=Distribution(step=step), bias=bias)
    found, w = solved(comm, problem, block, fold_keys=keys)
    other, by_iterations = solved(comm, replace(problem, scored=0), block, fold_keys=keys)
    assert (found.passes, found.evaluations) == (2, 0) and other.evaluations > 8
    iterated = {(point.lam, point.fold): point for point in other.points}
    assert {(point.lam, point.fold) for point in found.points} == set(iterated)
    for point in found.points:
        key = point.lam, point.fold
        result, there = point.result, iterated[key].result
        assert result["status"] == "proved" and result["gap"] < 1e-11
        assert there["lower_bound"] <= result["J"] <= there["J"] + 1e-12
        assert not bias or w[key][-1] == 0
        np.testing.assert_allclose(w[key], by_iterations[key], atol=2 * np.sqrt(2e-6 / point.lam))
        for name, value in (point.held_out or {}).items():
            if name in ("rocarea", "normal-auc"):
                assert value == pytest.approx(iterated[key].held_out[name], abs=0.03)


def elastic_net(X, y, w, lam, l1):
    """Return J of normal-auc with an elastic net, from its definition over all pairs."""
    s = X @ w
    pairs = 1 - (s[y > 0][:, None] - s[y < 0][None, :])
    return l1 * np.abs(w).sum() + 0.5 * lam * w @ w + 0.5 * np.mean(pairs**2)


def test_an_elastic_net_is_iterated(comm):
    """The closed form knows no l1: its models are dense, and their J would lack l1 ||w||_1."""
    X, y = data(160, 6)
    l1, block = 0.2, weighted_block(comm, X, y, np.ones(160))
    problem = replace(PROBLEM, settings=replace(PROBLEM.settings, l1=l1))
    found, w = solved(comm, problem, block)
    folds = make_folds("rows", np.zeros(160), y, np.ones(160, bool), 3, 0, ALONE)
    assert found.evaluations > 0
    for point in found.points:
        own, here = folds.training(point.fold), w[point.lam, point.fold]
        assert point.result["status"] == "proved" and np.count_nonzero(here) < 6
        J = elastic_net(X.toarray()[own], y[own], here, point.lam, l1)
        assert point.result["J"] == pytest.approx(J, rel=1e-9)
    held = held_out(PathRows(block, comm), replace(problem, lambdas=[LAMBDAS[-1]]), (0.0, 1.0))
    for fold in (1, 2, 3):
        own, out = folds.training(fold), folds.judged(fold)
        s = X.toarray() @ w[LAMBDAS[-1], fold]
        expected = np.sort((s[out] - s[own].mean()) / s[own].std())
        scores = np.sort(np.concatenate(comm.allgather(held.scored.scores[held.folds == fold])))
        assert scores == pytest.approx(expected, abs=0.02)


@pytest.mark.serial
def test_there_is_one_pass_for_moments_and_one_for_scores(comm, monkeypatch):
    """The passes are counted where rows are read; with little memory for scores there are more of them."""
    X, y = data(100, 5)
    counts = {"moments": 0, "margins": 0, "transposed_times": 0, "columns": 0, "largest_terms": 0}
    for name in counts:
        inner = getattr(LocalRows, name)

        def counting(self, *arguments, name=name, inner=inner):
            counts[name] += 1
            return inner(self, *arguments)

        monkeypatch.setattr(LocalRows, name, counting)
    block = DataBlock(as_features(X), y, None, 0, 100, 5, 0)
    assert solved(comm, PROBLEM, block)[0].passes == 2
    assert counts == {"moments": 1, "margins": 1, "transposed_times": 0, "columns": 0, "largest_terms": 0}
    monkeypatch.setattr(path, "SCORE_BYTES", 1)
    assert solved(comm, PROBLEM, block)[0].passes == 3  # four folds are scored together
    added = iter([1e-4, None])
    assert len(solved(comm, PROBLEM, block, extend=lambda points: next(added))[0].points) == 12


@pytest.mark.serial
def test_it_stops_and_leaves_to_iterations_what_rounding_hides(comm):
    X, y = data(100, 5)
    block = DataBlock(as_features(X), y, None, 0, 100, 5, 0)
    found, w = solved(comm, PROBLEM, block, stop_wanted=lambda: True)
    assert found.stopped and not found.points and not w
    far = sparse.csr_matrix(X.toarray() + np.array([3e6, 0, 0, 0, 0]))  # its mean squares hide its covariance
    block = DataBlock(as_features(far), y, None, 0, 100, 5, 0)
    limited = replace(PROBLEM, settings=replace(PROBLEM.settings, max_evaluations=3))
    found, _ = solved(comm, limited, block)
    assert found.evaluations > 0 and {point.result["status"] for point in found.points} != {"proved"}


@pytest.mark.serial
def test_the_models_that_it_is_compared_with_are_of_rocarea(monkeypatch):
    """Their ordering is their own, since that of the closed form would gather all scores on the root."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(200) < 0.3, 1, -1)
    X = rng.normal(size=(200, 3)) + np.outer(y > 0, [1, 0.5, 0]) + np.outer(rng.random(200) < 0.05, [0, -30, 0])
    block = weighted_block(ALONE, sparse.csr_array(X), y, np.ones(200))
    problem = replace(PROBLEM, distribution=Distribution("gather", "root"))
    found, _ = solved(ALONE, problem, block)
    orderings, make_losses = [], path.make_losses
    monkeypatch.setattr(path, "make_losses", lambda *words: orderings.append(words[1:3]) or make_losses(*words))
    closed, iterated = (
        compare_on_folds(PathRows(block, ALONE), replace(problem, scored=scored), found.points, lambda: False, "best")
        for scored in (4, 0)
    )
    assert closed == iterated and closed.theirs != closed.ours
    assert orderings == [("rocarea", "auto")] * 2
