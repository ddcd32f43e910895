"""The start by stochastic subgradient descent over pairs: its steps, whether it helps, and when there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.losses.registry import make_loss
from distsms.matrix import local
from distsms.matrix.augmented import with_bias
from distsms.matrix.local import DenseRows
from distsms.optim import dual_ascent, run, stochastic
from distsms.optim.objective import Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings, descends
from distsms.shards.dataset import MemoryBudget, load
from distsms.shards.from_arrays import write_data
from tests.optim.test_curvature import KINDS, rows_of
from tests.support.examples import examples
from tests.support.problems import asked, data, objective, share

SETTINGS = Settings(1e-3, 1e-4)


def J_at(objective, w):
    found = asked(objective, [Request(objective.vectors.local_slice(w), 0.0, ElasticNet(SETTINGS.lam))])
    return objective.comm.bcast(found and found[0].J)


def with_start(monkeypatch, used=True):
    """Let runs on small data have such a start, or none; return a list of the starts of later runs."""
    found, start = [], stochastic.start

    def noted(objective, settings):
        found.append(start(objective, settings))
        return found[-1]

    monkeypatch.setattr(stochastic, "start", noted)
    monkeypatch.setattr(stochastic, "descends", lambda n, p: used)
    return found


@pytest.mark.serial
@examples(0.5)
@given(st.sampled_from(KINDS), st.integers(1, 9), st.integers(1, 9), st.sampled_from([1e-3, 1.0, 50.0]))
def test_steps_are_those_of_the_method(kind, n_pos, n_neg, lam):
    """The steps in dense vectors, without factors and without a running mean."""
    rng = np.random.default_rng(n_pos + 10 * n_neg)
    X = sparse.random(20, 6, 0.6, "csr", random_state=rng, data_rvs=rng.standard_normal)
    features = rows_of(kind, X)
    dense = features.margins(np.eye(features.shape[1])).T.copy()
    dense[:, 6:] = 0  # the constant feature is the same in all rows
    visits = rng.integers(0, 20, n_pos), rng.integers(0, 20, n_neg)
    w, lag = np.zeros((2, features.shape[1]))
    hinges, number = stochastic.descend(features.row_entries(), *visits, lam, 3.0, w, lag)
    v, late, expected, steps = np.zeros(features.shape[1]), [], [], max(n_pos, n_neg)

    for t in range(steps):
        difference = dense[visits[0][t % n_pos]] - dense[visits[1][t % n_neg]]
        hinge = 1 - difference @ v
        v = (1 - 1 / (t + 3.0)) * v + (hinge > 0) / (lam * (t + 3.0)) * difference
        if 2 * t >= steps:
            late.append(v)
            expected.append(max(0.0, hinge))
    np.testing.assert_allclose(w, v, rtol=1e-9, atol=1e-9 / lam)
    np.testing.assert_allclose(lag, np.mean(late or [0 * v], axis=0), rtol=1e-9, atol=1e-9 / lam)
    assert not (w[6:].any() or lag[6:].any())
    np.testing.assert_allclose([hinges, number], [np.sum(expected), len(late)], rtol=1e-9)


@pytest.mark.serial
@pytest.mark.parametrize("kind", KINDS)
def test_squared_distances(kind):
    rng = np.random.default_rng(0)
    X = sparse.random(20, 6, 0.6, "csr", random_state=rng, data_rvs=rng.standard_normal)
    features, first, second = rows_of(kind, X), np.array([0, 3, 3, 7]), np.array([1, 3, 9, 2])
    dense = features.margins(np.eye(features.shape[1])).T
    found = stochastic.squared_distances(features.row_entries(), first, second, np.zeros(features.shape[1]))
    np.testing.assert_allclose(found, np.sum((dense[first] - dense[second]) ** 2), rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_start_is_near_the_minimum_and_saves_evaluations(comm, monkeypatch, weighted):
    X, y = data(6000, 8)
    weights = 10.0 * (X[:, 0].toarray().ravel() > 0.5) + 0.1 if weighted else None
    begun = with_start(monkeypatch)
    found = minimize(objective(X, y, comm, weights=weights), SETTINGS)
    (w, seconds), at_zero = begun[0], 1.0
    with_start(monkeypatch, False)
    plain = minimize(objective(X, y, comm, weights=weights), SETTINGS)
    assert found.status is plain.status is Status.PROVED and abs(found.J - plain.J) <= SETTINGS.epsilon
    J = J_at(objective(X, y, comm, weights=weights), w)
    assert J - plain.J < 0.1 * (at_zero - plain.J) and found.evaluations < plain.evaluations
    assert seconds > 0 and (seconds < found.seconds or not comm.is_root)  # the result has the seconds of the root
    for other in comm.allgather(w):
        np.testing.assert_array_equal(other, w)


@pytest.mark.parametrize("room", [2**15, pytest.param(2**16, marks=pytest.mark.by_turns)])
def test_streamed_rows_have_one_by_the_rows_in_memory(comm, monkeypatch, shared_dir, room):
    """Files are in order of a column, and few rows are in memory."""
    monkeypatch.setattr(local, "PART_ENTRIES", 50)
    X, y = data(3000, 8)
    order = np.argsort(X[:, 0].toarray().ravel(), kind="stable")
    with comm.fail_together():
        if comm.is_root:
            write_data(shared_dir / "d", X[order], y[order], 4)
    block = load(shared_dir / "d", comm, budget=MemoryBudget(room // comm.size))
    here = block.features.rows_in_memory()
    share_held = comm.sum(np.array([np.sum(here)], float))[0] / 3000
    assert 0 < share_held < 0.9
    with monkeypatch.context() as patch:  # nor is dual ascent possible, also not on rows with a constant feature
        patch.setattr(dual_ascent, "ascends", lambda n, p, smooth: True)
        for features in (block.features, with_bias(block.features, 1.0)):
            loss = make_loss("rocarea", "exchange", block.labels, None, comm)
            assert not dual_ascent.suits(Objective(features, [loss], comm), SETTINGS)
    begun, runs = with_start(monkeypatch), []
    for used in (True, False):
        monkeypatch.setattr(stochastic, "descends", lambda n, p, used=used: used)
        loss = make_loss("rocarea", "exchange", block.labels, None, comm)
        runs.append(minimize(Objective(block.features, [loss], comm), SETTINGS))
    assert begun[0][0] is not None and runs[0].evaluations < runs[1].evaluations, share_held
    assert all(one.status is Status.PROVED for one in runs) and abs(runs[0].J - runs[1].J) <= SETTINGS.epsilon


def test_rows_of_one_class_on_each_rank(comm, monkeypatch):
    """Then there are no pairs, and the run begins at 0. On one rank there are pairs."""
    X, y = data(500, 8)
    order = np.argsort(y, kind="stable") if comm.size == 2 else np.arange(500)
    here = slice(0, np.sum(y < 0)) if comm.rank == 0 else slice(np.sum(y < 0), None)
    here = order[here] if comm.size == 2 else np.arange(500)[share(comm, 500)]
    loss = make_loss("rocarea", "exchange", y[here], None, comm)
    begun = with_start(monkeypatch)
    found = minimize(Objective(DenseRows(X[here].toarray()), [loss], comm), SETTINGS)
    assert (begun[0][0] is None) == (comm.size == 2) and found.status is Status.PROVED


def test_labels_without_signal_have_no_start(comm, monkeypatch):
    X, y = data(4000, 20)
    y = np.where(np.random.default_rng(5).random(4000) < 0.3, 1, -1).astype(np.int8)
    begun = with_start(monkeypatch)
    assert minimize(objective(X, y, comm), replace(SETTINGS, lam=1e-2)).status is Status.PROVED
    assert begun[0][0] is None


@pytest.mark.parametrize(
    "change", [{"l1": 1e-3, "solver": "lbfgs"}, {"c_mu": 10.0}, {"solver": "bmrm"}, {"zero_plane": False}]
)
def test_other_problems_have_none(comm, monkeypatch, change):
    X, y = data(300, 8)
    begun = with_start(monkeypatch)
    minimize(objective(X, y, comm), replace(SETTINGS, max_evaluations=3, **change))
    assert not begun


@pytest.mark.serial
@pytest.mark.parametrize("most", [5, 200])
def test_rows_are_drawn_as_often_as_their_weights_say(most):
    rows, rng = np.arange(3, 13), np.random.default_rng(0)
    assert len({*stochastic._drawn(rows, None, most, rng)}) == min(most, 10)
    weights = np.ones(20)
    weights[4], weights[7] = 9.5, 1e-9
    found = stochastic._drawn(rows, weights, most, rng)
    counts = np.bincount(found, minlength=13)
    np.testing.assert_allclose(counts[3:], min(most, 10) * weights[3:13] / weights[3:13].sum(), atol=1)
    assert not len(stochastic._drawn(rows[:0], weights, most, rng))


def test_other_measures_and_starts_have_none(comm, monkeypatch):
    X, y = data(300, 8)
    begun, few = with_start(monkeypatch), replace(SETTINGS, max_evaluations=3)
    minimize(objective(X, y, comm, measure="prbep"), few)
    minimize(objective(X, y, comm), few, np.zeros(8))
    assert not begun
    minimize(objective(X, y, comm), few)
    assert begun


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_extreme_values_do_no_harm(comm, monkeypatch, scale):
    X, y = data(300, 8)
    with_start(monkeypatch)
    with np.errstate(all="ignore"):
        found = minimize(objective(X * scale, y, comm), replace(SETTINGS, max_evaluations=20))
        monkeypatch.undo()
        plain = minimize(objective(X * scale, y, comm), replace(SETTINGS, max_evaluations=20))
    assert found.status is plain.status and not found.J > 1.0


@pytest.mark.serial
def test_the_usual_conditions():
    assert descends(20_000, 2_000) and not descends(9_999, 1) and not descends(20_000, 2_001)
    X, y = data(12_000, 8)
    small, large = (objective(X[:n], y[:n], Communicator()) for n in (5_000, 12_000))
    assert not stochastic.suits(small, SETTINGS) and stochastic.suits(large, SETTINGS)
    assert run.minimize(large, SETTINGS).status is Status.PROVED


@pytest.mark.serial
@pytest.mark.parametrize(("hinges", "used"), [(0.60, True), (0.75, False)])
def test_the_estimate_has_the_regularizer(hinges, used, monkeypatch):
    """J is estimated as the mean of the hinges and lambda/2 ||w||^2, here 0.3, beside 0.95 of J(0) = 1."""

    def descend(rows, positives, negatives, lam, t0, w, lag):
        lag[:] = np.sqrt(2 * 0.3 / SETTINGS.lam / len(lag))
        return 10 * hinges, 10.0

    monkeypatch.setattr(stochastic, "descend", descend)
    w, _ = stochastic.start(objective(*data(200), Communicator()), SETTINGS)
    assert (w is not None) == used
