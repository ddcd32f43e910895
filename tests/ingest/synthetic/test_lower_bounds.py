"""BMRM on the data that JMLR 2.2 and 2.3 build against it: every iterate as equations (10) and (12) give it.

The proofs break ties the adversary's way: of all violated (or just tied) negatives one not used before. Ordinary
separation takes all tied rows at once; the oracle of the proofs is put in its place here.
"""

from __future__ import annotations

from itertools import pairwise
from math import log2

import numpy as np
import pytest

from distsms.base.communicator import Communicator
from distsms.ingest.synthetic.lower_bounds import PrbepLowerBound, RocAreaLowerBound
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from scripts.experiments.lower_bounds import ProofsSeparation
from tests.ingest.synthetic.worst_cases import J, iterate, iterates
from tests.support.problems import noting, objective

pytestmark = pytest.mark.serial


def problem(source):
    X, y = source.block(0)
    return objective(X, y, Communicator(), source.measure)


def recorded(one, monkeypatch):
    """Note each w at which the objective is evaluated."""
    asked, evaluate = [], one.evaluate

    def note(requests):
        asked.extend(request.w.copy() for request in requests)
        return evaluate(requests)

    monkeypatch.setattr(one, "evaluate", note)
    return asked


@pytest.mark.parametrize("kind", [PrbepLowerBound, RocAreaLowerBound])
@pytest.mark.parametrize("size", [2, 5, 40])
def test_bmrm_goes_the_way_of_the_proof(kind, size, monkeypatch):
    source = kind(size)
    one, states = problem(source), []
    one.losses = [ProofsSeparation(source, one.losses[0])]
    asked = recorded(one, monkeypatch)
    steps = min(iterates(source), size - 1)
    settings = Settings(lam=1.0, epsilon=1e-12, solver="bmrm", zero_plane=False, max_evaluations=steps)
    minimize(one, settings, source.w_0, watch=noting(states))
    assert len(asked) == steps
    assert states[0].J == pytest.approx(source.J_0, abs=1e-9)
    for k in range(1, steps):
        np.testing.assert_allclose(asked[k], iterate(source, k), atol=1e-9)
        assert states[k].J == pytest.approx(J(source, k), abs=1e-9)
        assert states[k].lower_bound <= source.minimum + 1e-9


@pytest.mark.parametrize("kind", [PrbepLowerBound, RocAreaLowerBound])
@pytest.mark.parametrize("solver", ["bmrm", "lmvm"])
def test_ordinary_separation_and_smoothing_need_a_few_steps(kind, solver):
    """An unlucky cutting-plane method needs the theorem's 1 / (5 epsilon), or 2 / (3 epsilon), steps."""
    source = kind.of(0.001)
    result = minimize(problem(source), Settings(lam=1.0, epsilon=1e-3, solver=solver), source.w_0)
    assert result.status is Status.PROVED
    assert source.minimum - 1e-9 <= result.J <= source.minimum + 1e-3
    assert result.evaluations < source.steps / 4


@pytest.mark.parametrize("kind", [PrbepLowerBound, RocAreaLowerBound])
@pytest.mark.parametrize("as_in_the_proofs", [True, False])
@pytest.mark.parametrize("epsilon", [0.3, 0.03, 0.01])
def test_bmrm_is_as_fast_as_the_theorems_say(kind, as_in_the_proofs, epsilon):
    """JMLR, theorem 3: the steps to a gap of epsilon. NIPS 2007, theorem 4: what each step gains."""
    source = kind.of(epsilon)
    one, states, squares = problem(source), [], []
    if as_in_the_proofs:
        one.losses = [ProofsSeparation(source, one.losses[0])]
    evaluate = one.evaluate

    def measured(requests):
        evaluations = evaluate(requests)
        squares.extend(float(evaluation.r @ evaluation.r) for evaluation in evaluations)
        return evaluations

    one.evaluate = measured
    settings = Settings(lam=1.0, epsilon=epsilon, solver="bmrm", zero_plane=not as_in_the_proofs)
    result = minimize(one, settings, source.w_0, watch=noting(states))
    steepest = max(squares)  # G^2
    assert result.status is Status.PROVED and epsilon < 4 * steepest
    assert result.evaluations <= log2(result.J_at_zero / steepest) + 8 * steepest / epsilon - 1
    for before, after in pairwise(state.gap for state in states):
        assert before - after >= before / 2 * min(1, before / (4 * steepest)) - 1e-12
