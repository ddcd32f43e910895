"""The opening: who has one, the same optimum as without it, on any number of ranks, and its limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.measures import FAMILIES
from distsms.losses.registry import make_loss
from distsms.matrix.augmented import with_bias
from distsms.matrix.local import DenseRows
from distsms.optim.dual_ascent import suits
from distsms.optim.objective import Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.proof import Proof
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings, ascends
from tests.support.problems import data, noting, objective

MEASURES = ("rocarea", "prbep", "pauc@0.4", "logistic")


def without(X, y, comm, measure, settings):
    """The same run without an opening."""
    return minimize(objective(X, y, comm, measure), replace(settings, bundle_steps=False))


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("lam", [1e-1, 1e-4])
@pytest.mark.parametrize("shape, step", [((40, 400), "spread"), ((40, 45), "root"), ((60, 30), "spread")])
def test_the_same_optimum(measure, lam, shape, step, comm):
    X, y = data(*shape)
    settings, states = Settings(lam, 1e-4, 1e-2, solver="lbfgs"), []
    problem = objective(X, y, comm, measure, step=step)
    assert suits(problem, settings) == (measure in ("rocarea", "prbep") or (measure == "logistic" and shape[1] == 400))
    result = minimize(problem, settings, watch=noting(states))
    usual = without(X, y, comm, measure, settings)
    assert result.status is usual.status is Status.PROVED
    assert result.lower_bound <= usual.J and usual.lower_bound <= result.J
    assert comm.allgather(result.w.tobytes()) == [result.w.tobytes()] * comm.size
    if comm.is_root:
        (alone,) = objective(X, y, Communicator(), measure).evaluate([Request(result.w, 0.0, ElasticNet(lam))])
        assert alone.J == pytest.approx(result.J, rel=1e-9)
    if problem.vectors.runs_solver:
        counts = [state.evaluation for state in states]
        assert counts[-1] == result.evaluations and np.all(np.diff(counts) > 0)
        assert np.all(np.diff([state.best_J for state in states]) <= 1e-12)


@pytest.mark.serial
def test_far_fewer_evaluations_with_about_as_many_columns_as_rows():
    X = sparse.random(300, 250, 0.1, "csr", random_state=1, data_rvs=np.random.default_rng(1).standard_normal)
    y = np.where(np.arange(300) % 5, -1, 1).astype(np.int8)
    settings = Settings(1e-6, 1e-4, solver="lbfgs")
    problem = objective(X, y, Communicator(), "prbep")
    assert 2 * minimize(problem, settings).evaluations < without(X, y, Communicator(), "prbep", settings).evaluations


@pytest.mark.serial
def test_scores_that_are_not_finite():
    X, y = data(40, 400)
    problem = objective(1e200 * X, y, Communicator())
    assert minimize(problem, Settings(1e-5, solver="lbfgs")).status is not Status.PROVED


@pytest.mark.serial
def test_it_ends_where_the_first_plane_is_a_proof():
    X, y = data(40, 400)
    assert minimize(objective(X, y, Communicator()), Settings(1e6, solver="lbfgs")).evaluations <= 4


@pytest.mark.serial
def test_who_has_none():
    X, y = data(40, 400)
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
    for measure, rows in (("rocarea", 81), ("logistic", 21)):  # more than that are too many for 40 columns
        assert suits(
            objective(*data(rows - 1 if rows > 32 else 32, 64 if rows == 21 else 40), Communicator(), measure), usual
        )
        assert not suits(objective(*data(rows, 40), Communicator(), measure), usual)
    assert not suits(objective(*data(31, 400), Communicator()), usual)


@pytest.mark.serial
@pytest.mark.parametrize(
    "measure, p, most",
    [("logistic", 2**20, 2**19), ("prbep", 2**23, 2**24), ("rocarea", 2**17, 2**18), ("rocarea", 2**23, 2**19)],
)
def test_with_how_many_rows_there_is_one(measure, p, most):
    assert ascends(most, p, FAMILIES[measure]) and not ascends(most + 1, p, FAMILIES[measure])


@pytest.mark.serial
def test_no_gap_is_advised_where_none_is_finite():
    proof = Proof(objective(*data(40, 5), Communicator()), Settings(1.0, zero_plane=False))
    assert proof._remedy(1e-9).endswith("ask for a larger gap")


@pytest.mark.serial
@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
def test_no_evaluation_is_finite(measure):
    """Then there is no best w whose rounding errors a pass over the data could bound."""
    X, y = 1e150 * np.random.default_rng(0).normal(size=(45, 90)), np.where(np.arange(45) % 3, -1, 1).astype(np.int8)
    loss = make_loss(measure, "gather", y, None, Communicator())
    problem = Objective(with_bias(DenseRows(X), 1.0), [loss], Communicator())
    found = minimize(problem, Settings(1e-8, 1e-9, solver="lbfgs"))
    assert found.status is Status.NONFINITE and found.gap == np.inf
