"""J, J_mu, the gradient and a plane of one w, or of several in one pass over the data (JMLR, equations (1), (6), (24)).

    w --Bcast--> margins s = X w on each rank --the loss orders them--> R, R_mu, d and one coefficient c_i per row
      --> r = X'c on each rank --Allreduce--> J = Omega(w) + R,  J_mu = Omega(w) + R_mu,  grad J_mu = lam w + r

The root asks (`evaluate`), the other ranks answer (`serve`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from distsms.clock import Clock
from distsms.comm import Communicator
from distsms.losses import Loss
from distsms.regularizer import SquaredNorm

Floats = NDArray[np.float64]

EPS = float(np.finfo(float).eps)
RELEASE, TERMS = 0, -1
"""What the root may ask for besides a number of evaluations."""


class Features(Protocol):
    """What the objective needs of the rows that a rank holds; see `distsms.features`."""

    @property
    def shape(self) -> tuple[int, int]: ...
    def margins(self, W: Floats, out: Floats | None = None) -> Floats: ...
    def transposed_times(self, C: Sequence[Floats] | Floats, out: Floats | None = None) -> Floats: ...
    def largest_terms(self, w: Floats) -> float: ...
    def columns(self) -> tuple[Floats, Floats]: ...
    def second_moments(self) -> Floats: ...


class Request(NamedTuple):
    """One question: w (p,), the width nu, the regularizer, and which of the objective's losses (one per weighting)."""

    w: Floats
    nu: float
    regularizer: SquaredNorm
    loss: int = 0


class Evaluation(NamedTuple):
    """The answer, on the root. All numbers are of the whole data set."""

    w: Floats  # (p,), the request's own array
    nu: float
    J: float
    J_mu: float
    gradient: Floats  # (p,), of J_mu
    R: float
    R_mu: float
    r: Floats  # (p,), grad R_mu: the plane <r, v> + d <= R(v) for every v
    d: float
    smoothing_gap: float  # R(w) - (<r, w> + d) >= 0: how far below R its own plane lies; only smoothing causes it
    optimization_gap: (
        float  # Omega*(grad J_mu) >= J_mu(w) - min J_mu; with the one above, J(w) - the plane's lower bound
    )


class Objective:
    """The distributed objective of this rank's rows. Building it is local; every rank builds its own.

    dot : inner product of two vectors such as w, where the vectors live (the root holds them whole).
    Cost of one evaluation: two passes over the local nonzeros, the loss's exchange, 8 (p + 1) bytes broadcast and
    8 (p + 1) reduced, for each w.
    """

    def __init__(
        self,
        features: Features,
        losses: Sequence[Loss],
        comm: Communicator,
        stop_wanted: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
        dot: Callable[[Floats, Floats], float] = np.dot,
    ) -> None:
        self.features, self.losses, self.comm, self.dot = features, losses, comm, dot
        self.p = features.shape[1]
        self.clock = clock or Clock()
        self.evaluations = 0
        self.stop_requested = False
        """True on every rank, from the same evaluation on, once `stop_wanted()` was true on any of them."""
        self._stop_wanted = stop_wanted
        self._column_errors: Floats | None = None
        self._scores = np.empty((1, features.shape[0]))

    def evaluate(self, requests: Sequence[Request]) -> list[Evaluation]:
        """Answer the requests in one pass over the data. On the root, while the other ranks are in `serve`."""
        k = len(requests)
        with self.clock.phase("broadcast"):
            self.comm.broadcast(np.array([k]))
        questions = np.empty((k, self.p + 2))
        for row, request in zip(questions, requests, strict=True):
            row[:-2], row[-2], row[-1] = request.w, request.nu, request.loss
        values, gradients = self._answer(questions)
        return [self._evaluation(*one) for one in zip(requests, values, gradients, strict=True)]

    def _evaluation(self, request: Request, value: tuple[float, float, float], r: Floats) -> Evaluation:
        (R, R_mu, d), (w, nu, regularizer, _) = value, request
        omega = regularizer.value(self.dot(w, w))
        gradient = r.copy()
        regularizer.add_gradient(w, gradient)
        smoothing_gap = R - (self.dot(r, w) + d)
        optimization_gap = regularizer.conjugate(self.dot(gradient, gradient))
        return Evaluation(w, nu, omega + R, omega + R_mu, gradient, R, R_mu, r, d, smoothing_gap, optimization_gap)

    def rounding(self, evaluation: Evaluation, dual: Floats, regularizer: SquaredNorm) -> float:
        """How much rounding can have changed the gap between J at an evaluation and a lower bound attained at `dual`.

        J: a margin is a sum of L terms, wrong by at most L eps/2 sum_j |x_ij w_j|, and J by twice the largest such
        error, since the coefficients of every loss sum to at most 2 in absolute value: ROCArea's are mean slopes of a
        hinge over pairs, the others' are mixtures of (z_i - y_i) / n with |z_i - y_i| <= 2.
        The bound d - Omega*(-r): where r is wrong by e, it is wrong by at most <|e|, |dual|> + Omega*(e), and summing
        the m entries of column j gives |e_j| <= m eps max_i |x_ij|. R and d are sums of n terms of sizes that add up
        to at most R + 4 (in most losses to R, since all are positive), at K to twice the largest margin on top of that,
        for which the first part has room.
        On the root, while the others serve. One pass over the data; two more the first time.
        """
        self.comm.broadcast(np.array([TERMS]))
        terms, e = self._terms(evaluation.w)
        own = self.losses[0].n * (evaluation.R + 4)
        first_order = self.dot(e, np.abs(dual))
        return float(EPS * (terms + own) + first_order + regularizer.conjugate(self.dot(e, e)))

    def second_moments(self) -> Floats:
        """mean_i x_ij^2 of each column over all rows, (p,), on every rank. Collective; one pass over the data."""
        moments = self.comm.sum(self.features.second_moments())
        moments /= self.comm.sum(np.array([self.features.shape[0]]))[0]
        return moments

    def serve(self) -> None:
        """Answer the root's requests until it calls `release`. On every rank but the root."""
        header = np.zeros(1, np.int64)
        while True:
            with self.clock.phase("broadcast"):
                k = int(self.comm.broadcast(header)[0])
            if k == RELEASE:
                return
            if k == TERMS:
                self._terms(np.empty(self.p))
            else:
                self._answer(np.empty((k, self.p + 2)))

    def release(self) -> None:
        """Let the other ranks leave `serve`. On the root."""
        self.comm.broadcast(np.array([RELEASE]))

    def _terms(self, w: Floats) -> tuple[float, Floats]:
        """Twice `Features.largest_terms` at the root's w (p,), and the bound e (p,) on rounding in r. Collective."""
        with self.clock.phase("rounding"):
            if self._column_errors is None:
                largest, counts = self.features.columns()
                self.comm.maximum(largest)
                self.comm.sum(counts)
                self._column_errors = EPS * (counts + self.comm.size + 8) * largest
            self.comm.broadcast(w)
            local = np.array([2 * self.features.largest_terms(w)])
            return float(self.comm.maximum(local)[0]), self._column_errors

    def _answer(self, questions: Floats) -> tuple[list[tuple[float, float, float]], Floats]:
        """R, R_mu, d of each row [w, nu, loss] of questions, and r as (k, p). Collective."""
        clock, k = self.clock, len(questions)
        self.evaluations += k
        with clock.phase("broadcast"):
            self.comm.broadcast(questions)
        with clock.phase("margins X w"):
            if len(self._scores) != k:
                self._scores = np.empty((k, self.features.shape[0]))
            self.features.margins(questions[:, :-2], self._scores)
        coefficients, values = [], []
        with clock.phase("loss"):
            for scores, (nu, index) in zip(self._scores, questions[:, -2:], strict=True):
                value = self.losses[int(index)].evaluate(scores, float(nu))
                coefficients.append(value.coefficients)
                values.append((value.R, value.R_mu, value.d))
        buffer = np.empty(k * self.p + 1)  # all gradients, and the stop flag
        with clock.phase("gradient X'c"):
            self.features.transposed_times(coefficients, buffer[:-1].reshape(k, self.p))
            buffer[-1] = self._stop_wanted()
        with clock.phase("allreduce"):
            self.comm.sum(buffer)
        self.stop_requested = bool(buffer[-1] > 0)
        return values, buffer[:-1].reshape(k, self.p)
