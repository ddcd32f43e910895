"""What a solver asks of an objective (`distsms.optim.objective`), and what it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from distsms.base.timing import Clock
from distsms.base.typing import Floats
from distsms.losses.base import Loss
from distsms.optim.penalty import SquaredNorm
from distsms.parallel.vectors import Vectors

_NOTHING = np.empty(0)


class Request(NamedTuple):
    """A request for one evaluation: a slice of w, the width nu, the regularizer, and the index of the loss."""

    w: Floats
    nu: float
    regularizer: SquaredNorm
    loss: int = 0


class Evaluation(NamedTuple):
    """The result of one evaluation on the ranks that run the solver: global numbers, and slices of vectors."""

    w: Floats  # the array of the request
    nu: float  # the width of the smoothing
    J: float  # the objective and the risk, exact and smoothed
    J_mu: float
    gradient: Floats  # of J_mu; with an elastic net, of J_mu - l1 ||w||_1
    R: float
    R_mu: float
    r: Floats  # the gradient of R_mu, and the constant of its plane: <r, v> + d <= R(v) for every v
    d: float
    smoothing_gap: float  # R(w) - (<r, w> + d) >= 0, caused by the smoothing alone
    # Omega(w) + Omega*(-r) + <r, w> >= J_mu(w) - min J_mu, with Omega* the conjugate of Omega. The sum of the two gaps
    # is J(w) minus the lower bound that this one plane proves.
    optimization_gap: float
    width: float = 0.0  # J and R are the upper ends of intervals of this width; see `distsms.losses.base.LossValue`

    def without_slopes(self) -> Evaluation:
        return self._replace(gradient=_NOTHING, r=_NOTHING)


class Evaluator(Protocol):
    """The part of an objective that a run uses. `Objective` and `distsms.optim.batching.BatchedSolve` provide it."""

    vectors: Vectors
    clock: Clock
    losses: Sequence[Loss]

    @property
    def stop_requested(self) -> bool: ...
    def evaluate(self, requests: Sequence[Request]) -> list[Evaluation]: ...
    def plane_errors(self) -> tuple[Floats | float, float]: ...
    def rounding(self, evaluation: Evaluation, enough: float) -> float: ...
    def exact_risk(self, w: Floats, evaluations: float) -> float: ...
    def curvature(self, w: Floats, nu: float) -> Floats: ...
