"""The opening in the space of the rows: the same optimum as without it, on any number of ranks, and its limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from distsms.optim import opening, run
from distsms.optim.dual_ascent import ascend
from distsms.optim.objective import Request
from distsms.optim.opening import open_run, suits
from distsms.optim.penalty import SquaredNorm
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from tests.support.problems import asked, data, noting, objective


@pytest.fixture(autouse=True)
def without_ascent(monkeypatch):
    """ROCArea and PRBEP begin with the search, which otherwise comes after dual coordinate ascent."""

    def of_logistic(objective, *others):
        return ascend(objective, *others) if objective.losses[0].smooth_by_itself else None

    monkeypatch.setattr(run, "ascend", of_logistic)


MEASURES = ("rocarea", "prbep", "pauc@0.4", "logistic")


def wide(n=40, p=400, seed=0):
    return data(n=n, p=p, seed=seed)


def without(X, y, comm, measure, settings):
    """The same run without an opening."""
    return minimize(objective(X, y, comm, measure), replace(settings, bundle_steps=False))


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("lam", [1e-1, 1e-4])
@pytest.mark.parametrize("step", ["root", "spread"])
def test_the_same_optimum(measure, lam, step, comm):
    X, y = wide()
    settings, states = Settings(lam, 1e-4, 1e-2, solver="lbfgs"), []
    problem = objective(X, y, comm, measure, step=step)
    assert suits(problem, settings) == (not measure.startswith("pauc"))
    result = minimize(problem, settings, watch=noting(states))
    usual = without(X, y, comm, measure, settings)
    assert result.status is usual.status is Status.PROVED
    assert result.lower_bound <= usual.J and usual.lower_bound <= result.J
    assert comm.allgather(result.w.tobytes()) == [result.w.tobytes()] * comm.size
    alone = objective(X, y, Communicator(), measure)
    assert alone.evaluate([Request(result.w, 0.0, SquaredNorm(lam))])[0].J == pytest.approx(result.J, rel=1e-9)
    if problem.vectors.runs_solver:
        counts = [state.evaluation for state in states]
        assert counts[-1] == result.evaluations and np.all(np.diff(counts) > 0)
        assert len(counts) == result.evaluations or measure == "logistic"  # dual coordinate ascent reports now and then
        assert np.all(np.diff([state.lower_bound for state in states]) >= 0)
        assert np.all(np.diff([state.gap for state in states]) <= 0)


@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
def test_its_plane_is_below_the_risk(measure, comm):
    """At many w, also far from those of the search."""
    X, y = wide(seed=3)
    problem, lam = objective(X, y, comm, measure, step="spread"), 1e-3
    found = open_run(problem, Settings(lam, 1e-4, solver="lbfgs"), lambda state, w: None)
    r, w = problem.vectors.allgather(found.r), problem.vectors.allgather(found.w)
    alone, rng = objective(X, y, Communicator(), measure), np.random.default_rng(0)
    for scale in (0.0, 1e-2, 1.0, 100.0):
        v = scale * rng.normal(size=len(w)) + w * (scale < 1)
        assert r @ v + found.d <= alone.evaluate([Request(v, 0.0, SquaredNorm(lam))])[0].R + 1e-9


@pytest.mark.serial
def test_far_fewer_evaluations_where_rows_can_be_separated():
    X, y = wide(n=150, p=3000, seed=1)
    settings = Settings(1e-5, 1e-4, solver="lbfgs")
    problem = objective(X, y, Communicator(), "prbep")
    assert 2 * minimize(problem, settings).evaluations < without(X, y, Communicator(), "prbep", settings).evaluations


@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
def test_few_places_for_planes(measure, comm):
    """Planes are dropped and merged; the bound stays valid, and the proof is found."""
    X, y = wide(n=100, p=200, seed=2)
    settings = Settings(1e-3, 1e-3, solver="lbfgs", planes=2, history=1)
    assert settings.opening_within(200) == 9
    result, usual = minimize(objective(X, y, comm, measure), settings), without(X, y, comm, measure, settings)
    assert result.status is usual.status is Status.PROVED
    assert result.lower_bound <= usual.J and usual.lower_bound <= result.J


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7])
def test_limits_hold(most, comm):
    X, y = wide()
    states = []
    settings = Settings(1e-4, 1e-9, solver="lbfgs", max_evaluations=most)
    problem = objective(X, y, comm)
    result = minimize(problem, settings, watch=noting(states))
    assert (result.status, result.evaluations) == (Status.LIMIT, most)
    if problem.vectors.runs_solver:
        assert len(states) == most


def test_it_stops_when_asked_and_in_time(comm):
    X, y = wide()
    problem = objective(X, y, comm, stop_wanted=lambda: comm.rank == comm.size - 1)
    assert minimize(problem, Settings(1e-5, 1e-9, solver="lbfgs")).status is Status.STOPPED
    result = minimize(objective(X, y, comm), Settings(1e-5, 1e-9, solver="lbfgs", time_limit=1e-9))
    assert result.status is Status.TIME and result.evaluations < 10


@pytest.mark.serial
def test_scores_that_are_not_finite():
    X, y = wide()
    problem = objective(1e200 * X, y, Communicator())
    assert minimize(problem, Settings(1e-5, solver="lbfgs")).status is not Status.PROVED


@pytest.mark.serial
def test_it_ends_where_the_first_plane_is_a_proof():
    X, y = wide()
    assert minimize(objective(X, y, Communicator()), Settings(1e6, solver="lbfgs")).evaluations == 2


@pytest.mark.serial
def test_who_has_none(monkeypatch):
    X, y = wide()
    usual = Settings(1e-3, solver="lbfgs")
    assert suits(objective(X, y, Communicator()), usual)
    for other in (
        {"solver": "bmrm"},
        {"solver": "agm"},
        {"c_mu": 10.0},
        {"bundle_steps": False},
        {"checkpoint_every": 9.0},
    ):
        assert not suits(objective(X, y, Communicator()), replace(usual, **other))
    assert not suits(objective(X, y, Communicator()), replace(usual, l1=1e-3))
    monkeypatch.setattr(opening, "MOST_ROWS", 39)
    assert not suits(objective(X, y, Communicator()), usual)
    for measure in ("rocarea", "logistic"):
        tall = objective(*data(n=50, p=49 if measure == "rocarea" else 99), Communicator(), measure)
        assert not suits(tall, usual)


def test_it_hands_its_best_w_to_those_who_watch(comm):
    X, y = wide(seed=5)
    problem, alone, lam = objective(X, y, comm), objective(X, y, Communicator()), 1e-3
    seen = []
    minimize(problem, Settings(lam, 1e-3, solver="lbfgs"), watch=lambda state, w: seen.append((state.best_J, w.copy())))
    if comm.is_root:
        found = asked(alone, [Request(w, 0.0, SquaredNorm(lam)) for _, w in seen])
        np.testing.assert_allclose([e.J for e in found], [J for J, _ in seen], rtol=1e-9)
