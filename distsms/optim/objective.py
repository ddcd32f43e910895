"""J, J_mu, the gradient and a plane of one w, or of several in one pass over the data (JMLR, equations (1), (6), (24)).

    w --> margins s = X w on each rank --the loss orders them--> R, R_mu, d and one coefficient c_i per row
      --> r = X'c on each rank --sum--> J = Omega(w) + R,  J_mu = Omega(w) + R_mu,  grad J_mu = lam w + r

The ranks that step ask (`evaluate`), the others, if there are any, answer (`serve`); `distsms.parallel.vectors` says
which, and what of a vector each holds: "a slice" below, which is all of it where the root steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from distsms.losses.registry import Loss
from distsms.matrix.base import Features
from distsms.optim.penalty import SquaredNorm
from distsms.parallel.communicator import Communicator
from distsms.parallel.vectors import RootVectors, Vectors
from distsms.utils.timing import Clock
from distsms.utils.typing import Floats

EPS = float(np.finfo(float).eps)
RELEASE, TERMS, JUDGE, ERRORS = 0, -1, -2, -3
"""What may be asked for besides a number of evaluations."""
_NO_NUMBERS = np.empty((0, 2))


_NOTHING = np.empty(0)


class Request(NamedTuple):
    """One question: a slice of w, the width nu, the regularizer, and which of the losses (one per weighting)."""

    w: Floats
    nu: float
    regularizer: SquaredNorm
    loss: int = 0


class Evaluation(NamedTuple):
    """The answer, where it was asked. All numbers are of the whole data set, and the same to the bit there."""

    w: Floats  # a slice, the request's own array
    nu: float
    J: float
    J_mu: float
    gradient: Floats  # a slice, of J_mu
    R: float
    R_mu: float
    r: Floats  # a slice, grad R_mu: the plane <r, v> + d <= R(v) for every v
    d: float
    smoothing_gap: float  # R(w) - (<r, w> + d) >= 0: how far below R its own plane lies; only smoothing causes it
    optimization_gap: (
        float  # Omega*(grad J_mu) >= J_mu(w) - min J_mu; with the one above, J(w) - the plane's lower bound
    )

    def without_slopes(self) -> Evaluation:
        """The same, but for its two gradients: what is worth keeping."""
        return self._replace(gradient=_NOTHING, r=_NOTHING)


class Evaluator(Protocol):
    """What a run asks, on the ranks that step: an `Objective`, or a `meeting.Seat`."""

    @property
    def vectors(self) -> Vectors: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def losses(self) -> Sequence[Loss]: ...
    @property
    def stop_requested(self) -> bool: ...
    def evaluate(self, requests: Sequence[Request]) -> list[Evaluation]: ...
    def plane_errors(self) -> tuple[Floats, float]: ...
    def rounding(self, evaluation: Evaluation) -> float: ...


class Objective:
    """The distributed objective of this rank's rows. Building it is local; every rank builds its own.

    vectors : where vectors such as w live; by default whole on the root.
    judge : what `judged` does with this rank's margins and the number of a loss. Collective.
    Cost of one evaluation: two passes over the local nonzeros, the loss's exchange, 8 p bytes broadcast (or gathered)
    and 8 p reduced, for each w.
    """

    def __init__(
        self,
        features: Features,
        losses: Sequence[Loss],
        comm: Communicator,
        stop_wanted: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
        vectors: Vectors | None = None,
        judge: Callable[[Floats, int], Any] = lambda scores, loss: None,
    ) -> None:
        self.features, self.losses, self.comm = features, losses, comm
        self.p = features.shape[1]
        self.vectors = vectors or RootVectors(comm, self.p)
        self.clock = clock or Clock()
        self.evaluations = 0
        self.stop_requested = False
        """True where ranks step, from the same evaluation on, once `stop_wanted()` was true on any rank."""
        self._stop_wanted, self._judge = stop_wanted, judge
        self._column_errors: Floats | None = None
        self._scores = np.empty((1, features.shape[0]))

    def evaluate(self, requests: Sequence[Request]) -> list[Evaluation]:
        """Answer the requests in one pass over the data. On the ranks that step, while the others are in `serve`."""
        numbers = np.array([[request.nu, request.loss] for request in requests])
        with self.clock.phase(self.vectors.outward):
            self.vectors.send_request(len(requests), numbers)
        values, gradients = self._answer([request.w for request in requests], numbers)
        return [self._evaluation(*one) for one in zip(requests, values, gradients, strict=True)]

    def _evaluation(self, request: Request, value: tuple[float, float, float], r: Floats) -> Evaluation:
        w, nu, regularizer, _ = request
        gradient = r.copy()
        regularizer.add_gradient(w, gradient)
        # One sum over ranks, to which the numbers of the loss come from the root alone: all are the same everywhere.
        numbers = np.array(value if self.comm.is_root else (0.0, 0.0, 0.0))
        with np.errstate(over="ignore", invalid="ignore"):  # the run ends where a number is not finite, and says so
            products = np.array([np.dot(w, w), np.dot(r, w), np.dot(gradient, gradient)])
        R, R_mu, d, ww, rw, gg = self.vectors.sum_values(np.append(numbers, products)).tolist()
        omega, smoothing_gap, optimization_gap = regularizer.value(ww), R - (rw + d), regularizer.conjugate(gg)
        return Evaluation(w, nu, omega + R, omega + R_mu, gradient, R, R_mu, r, d, smoothing_gap, optimization_gap)

    def plane_errors(self, loss: int = 0) -> tuple[Floats, float]:
        """The most that rounding may have put the planes off: a slice of e, of their r, entry by entry; and of their d.

        r is a sum over rows of c_i x_ij, where the |c_i| of every loss sum to at most 2 (ROCArea's are mean slopes of a
        hinge over pairs, the others' mixtures of (z_i - y_i) / n with |z_i - y_i| <= 2). So summing the m entries of
        column j puts r_j off by |e_j| <= m eps max_i |x_ij|. d is a sum of n terms >= 0 that add up to at most 1.
        On the ranks that step, while the others serve. A pass over the data the first time.
        """
        if self._column_errors is None:
            self.vectors.send_request(ERRORS, _NO_NUMBERS)
            self._column_errors = self._errors()
        return self._column_errors, EPS * self.losses[loss].n

    def rounding(self, evaluation: Evaluation, loss: int = 0) -> float:
        """How much rounding can have put J at an evaluation off.

        A margin is a sum of L terms, wrong by at most L eps/2 sum_j |x_ij w_j|, and J by twice the largest such error,
        since the coefficients of every loss sum to at most 2 in absolute value. R itself is a sum of n terms of sizes
        that add up to at most R + 4 (in most losses to R, since all are positive), at K to twice the largest margin on
        top of that, for which the first part has room. On the ranks that step, while the others serve. One pass over
        the data.
        """
        self.vectors.send_request(TERMS, _NO_NUMBERS)
        return EPS * (self._terms([evaluation.w]) + self.losses[loss].n * (evaluation.R + 4))

    def judged(self, w: Floats, loss: int = 0) -> Any:
        """What `judge` makes of the margins at a slice of w. On the ranks that step, while the others serve. A pass."""
        self.vectors.send_request(JUDGE, np.array([[0.0, loss]]))
        return self._judged([w], loss)

    def second_moments(self) -> Floats:
        """A slice of mean_i x_ij^2 of each column over all rows, where ranks step. Collective; a pass over the data."""
        moments = self.vectors.sum_vector(self.features.second_moments())
        rows = self.comm.sum(np.array([self.features.shape[0]]))[0]
        moments /= rows
        return moments

    def serve(self) -> None:
        """Answer what is asked until `release` is called. On the ranks that do not step; the others return at once."""
        while not self.vectors.runs_solver:
            with self.clock.phase(self.vectors.outward):
                k, numbers = self.vectors.receive_request()
            if k == RELEASE:
                return
            if k == TERMS:
                self._terms(None)
            elif k == ERRORS:
                self._errors()
            elif k == JUDGE:
                self._judged(None, int(numbers[0, 1]))
            else:
                self._answer(None, numbers)

    def release(self) -> None:
        """Let the other ranks leave `serve`. On the ranks that step."""
        self.vectors.send_request(RELEASE, _NO_NUMBERS)

    def _errors(self) -> Floats:
        """A slice of the bound e on rounding in r: see `plane_errors`. Collective."""
        with self.clock.phase("rounding"):
            self.vectors.free_buffer()
            largest, counts = self.features.columns()
            errors = self.vectors.maximum(largest)
            del largest
            errors *= EPS * (self.vectors.sum_vector(counts) + self.comm.size + 8)
            return errors

    def _terms(self, slices: list[Floats] | None) -> float:
        """Twice `Features.largest_terms` at w, of all rows. slices : this rank's of w, if it steps. Collective."""
        with self.clock.phase("rounding"):
            local = np.array([2 * self.features.largest_terms(self.vectors.replicate(1, slices)[0])])
            return float(self.comm.maximum(local)[0])

    def _judged(self, slices: list[Floats] | None, loss: int) -> Any:
        with self.clock.phase("measures"):
            return self._judge(self.features.margins(self.vectors.replicate(1, slices)[0]), loss)

    def _answer(self, slices: list[Floats] | None, numbers: Floats) -> tuple[list[tuple[float, float, float]], Floats]:
        """R, R_mu, d and, where ranks step, slices of r (k, length), for each w. Collective.

        slices : this rank's of each w, if it steps.  numbers : (k, 2), each one's width and loss.
        """
        clock, k = self.clock, len(numbers)
        self.evaluations += k
        with clock.phase(self.vectors.outward):
            W = self.vectors.replicate(k, slices)
        with clock.phase("margins X w"):
            if len(self._scores) != k:
                self._scores = np.empty((k, self.features.shape[0]))
            self.features.margins(W, self._scores)
        coefficients, values = [], []
        with clock.phase("loss"):
            for scores, (nu, index) in zip(self._scores, numbers, strict=True):
                value = self.losses[int(index)].evaluate(scores, float(nu))
                coefficients.append(value.coefficients)
                values.append((value.R, value.R_mu, value.d))
        buffer = self.vectors.buffer(k)  # all gradients, and the stop flag
        with clock.phase("gradient X'c"):
            self.features.transposed_times(coefficients, buffer[:-1].reshape(k, self.p))
            buffer[-1] = self._stop_wanted()
        with clock.phase(self.vectors.inward):
            gradients, self.stop_requested = self.vectors.sum_buffer(buffer)
        return values, gradients
