"""J, J_mu, the gradient and a plane of one w, or of several in one pass over the data (JMLR, equations (1), (6), (24)).

    w --> margins s = X w on each rank --the loss orders them--> R, R_mu, d and one coefficient c_i per row
      --> r = X'c on each rank --sum--> J = Omega(w) + R,  J_mu = Omega(w) + R_mu,  grad J_mu = lam w + r

The ranks that run the solver ask (`evaluate`), and the others, if there are any, answer (`serve`). Which ranks run the
solver depends on `distsms.parallel.vector_placement`: the root alone, which has vectors whole, or all ranks, each with
a slice of every vector. "A slice" below is the whole vector if the root runs the solver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from distsms.losses.registry import Loss
from distsms.matrix.base import Features
from distsms.optim.penalty import SquaredNorm
from distsms.parallel.communicator import Communicator
from distsms.parallel.vector_placement import RootVectors
from distsms.parallel.vectors import Vectors
from distsms.utils.timing import Clock
from distsms.utils.typing import Floats

EPS = float(np.finfo(float).eps)
_NOTHING, _NO_NUMBERS = np.empty(0), np.empty((0, 2))


class Query(IntEnum):
    """What the ranks that run the solver ask of the others, besides evaluations.

    It is the first number of the message that announces it; a number above 0 there asks for so many evaluations.
    """

    RELEASE = 0  # the others may leave `serve`
    MARGIN_ROUNDING = -1
    ASSESS = -2
    PLANE_ROUNDING = -3


class Request(NamedTuple):
    """One evaluation that is asked for: at a slice of w, of width nu, with a regularizer and one of the losses."""

    w: Floats
    nu: float
    regularizer: SquaredNorm
    loss: int = 0


class Evaluation(NamedTuple):
    """One evaluation, on the ranks that asked for it. Numbers are of the whole data set, and identical on these ranks.

    Attributes
    ----------
    w : ndarray of shape (length,)
        The request's own slice of w.
    nu : float
        The width of the smoothing.
    J, J_mu, R, R_mu : float
        The objective and the risk, exact and smoothed.
    gradient : ndarray of shape (length,)
        A slice of the gradient of J_mu.
    r, d : ndarray of shape (length,), float
        A slice of the gradient of R_mu, and the height of the plane: <r, v> + d <= R(v) for every v.
    smoothing_gap : float
        R(w) - (<r, w> + d) >= 0: how far the plane lies below R at w, which is due to smoothing alone.
    optimization_gap : float
        Omega*(grad J_mu) >= J_mu(w) - min J_mu. The sum of both gaps is J(w) less the plane's own lower bound.
    """

    w: Floats
    nu: float
    J: float
    J_mu: float
    gradient: Floats
    R: float
    R_mu: float
    r: Floats
    d: float
    smoothing_gap: float
    optimization_gap: float

    def without_slopes(self) -> Evaluation:
        """Return the evaluation without its two gradients, for keeping."""
        return self._replace(gradient=_NOTHING, r=_NOTHING)


class Evaluator(Protocol):
    """What a run needs of an objective: an `Objective`, or a `distsms.optim.batching.BatchedSolve`."""

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
    """J of the rows of all ranks. Building it is local, and every rank builds its own.

    Parameters
    ----------
    features : Features
        This rank's rows.
    losses : sequence of Loss
        One for each subset of the rows that is trained on.
    comm : Communicator
        The ranks.
    stop_wanted : callable
        Asked on every rank at each evaluation.
    clock : Clock, optional
        Counts the seconds of each phase.
    vectors : Vectors, optional
        Where vectors such as w live; by default whole on the root.

    Attributes
    ----------
    evaluations : int
        How many there were; several in one pass count each.
    stop_requested : bool
        On the ranks that run the solver: True from the same evaluation on, once `stop_wanted` returned True on any
        rank.

    Notes
    -----
    Cost of an evaluation: two passes over the local nonzeros, the exchange of the loss, and for each w 8 p bytes
    broadcast (or gathered) and 8 p bytes reduced.
    """

    def __init__(
        self,
        features: Features,
        losses: Sequence[Loss],
        comm: Communicator,
        stop_wanted: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
        vectors: Vectors | None = None,
    ) -> None:
        self.features, self.losses, self.comm = features, losses, comm
        self.p = features.shape[1]
        self.vectors = vectors or RootVectors(comm, self.p)
        self.clock = clock or Clock()
        self.evaluations = 0
        self.stop_requested = False
        self._stop_wanted = stop_wanted
        self._column_errors: Floats | None = None
        self._scores = np.empty((1, features.shape[0]))

    # On the ranks that run the solver, while the others are in `serve`

    def evaluate(self, requests: Sequence[Request]) -> list[Evaluation]:
        """Answer the requests in one pass over the data, on the ranks that run the solver."""
        numbers = np.array([[request.nu, request.loss] for request in requests])
        with self.clock.phase(self.vectors.outward):
            self.vectors.send_request(len(requests), numbers)
        values, gradients = self._answer([request.w for request in requests], numbers)
        return [self._evaluation(*answer) for answer in zip(requests, values, gradients, strict=True)]

    def _evaluation(self, request: Request, value: tuple[float, float, float], r: Floats) -> Evaluation:
        w, nu, regularizer, _ = request
        gradient = r.copy()
        regularizer.add_gradient(w, gradient)
        # One sum over ranks, to which the numbers of the loss come from the root alone: all are the same everywhere.
        numbers = np.array(value if self.comm.is_root else (0.0, 0.0, 0.0))
        with np.errstate(over="ignore", invalid="ignore"):  # the run ends if a number is not finite, and says so
            products = np.array([np.dot(w, w), np.dot(r, w), np.dot(gradient, gradient)])
        R, R_mu, d, ww, rw, gg = self.vectors.sum_values(np.append(numbers, products)).tolist()
        omega, smoothing_gap, optimization_gap = regularizer.value(ww), R - (rw + d), regularizer.conjugate(gg)
        return Evaluation(w, nu, omega + R, omega + R_mu, gradient, R, R_mu, r, d, smoothing_gap, optimization_gap)

    def plane_errors(self, loss: int = 0) -> tuple[Floats, float]:
        """Return by how much rounding may have put the planes off: a slice of e, for each entry of r; and for d.

        Notes
        -----
        r is a sum over rows of c_i x_ij, where the |c_i| of every loss sum to at most 2 (ROCArea's are mean slopes of a
        hinge over pairs, the others' mixtures of (z_i - y_i) / n with |z_i - y_i| <= 2). So summing the m entries of
        column j puts r_j off by |e_j| <= m eps max_i |x_ij|. Over ranks, the largest such product of a single rank
        is a bound, since the |c_i| of all ranks together sum to at most 2. d is a sum of n terms >= 0 that add up to at
        most 1. The first call takes a pass over the data, unless `second_moments` has taken it.
        """
        if self._column_errors is None:
            self._column_errors = self._ask(Query.PLANE_ROUNDING)
        return self._column_errors, EPS * self.losses[loss].n

    def rounding(self, evaluation: Evaluation, loss: int = 0) -> float:
        """Return by how much rounding can have put J at an evaluation off.

        Notes
        -----
        A margin is a sum of L terms, wrong by at most L eps/2 sum_j |x_ij w_j|, and J by twice the largest such error,
        since the coefficients of every loss sum to at most 2 in absolute value. R itself is a sum of n terms of sizes
        that add up to at most R + 4 (in most losses to R, since all are positive), at K to twice the largest margin on
        top of that, for which the first part has room. One pass over the data.
        """
        return EPS * (self._ask(Query.MARGIN_ROUNDING, [evaluation.w]) + self.losses[loss].n * (evaluation.R + 4))

    def assessment(self, w: Floats, loss: int = 0) -> Any:
        """Return what `assess` makes of the margins at a slice of w. One pass over the data."""
        return self._ask(Query.ASSESS, [w], np.array([[0.0, loss]]))

    def release(self) -> None:
        """Let the other ranks leave `serve`."""
        self.vectors.send_request(Query.RELEASE, _NO_NUMBERS)

    def _ask(self, query: Query, slices: list[Floats] | None = None, numbers: Floats = _NO_NUMBERS) -> Any:
        self.vectors.send_request(query, numbers)
        return self._ANSWERS[query](self, slices, numbers)

    # On all ranks

    def assess(self, scores: Floats, loss: int) -> Any:
        """Judge the margins of this rank's rows at some w, for one of the losses; a subclass says how. Collective."""
        raise NotImplementedError

    def second_moments(self) -> Floats:
        """Return a slice of mean_i x_ij^2 of each column over all rows. **Collective.**

        One pass over the data, which also gives what `plane_errors` needs.
        """
        errors, squares = self._describe_columns()
        self._column_errors = self.vectors.maximum(errors)
        del errors
        moments = self.vectors.sum_vector(squares)
        moments /= self.comm.sum(np.array([self.features.shape[0]]))[0]
        return moments

    def _describe_columns(self) -> tuple[Floats, Floats]:
        """Return what rounding can do to this rank's summand of r, and its sum_i x_ij^2: (p,) each.

        Local; one pass over the data, in which three vectors (p,) are held.
        """
        self.vectors.free_buffer()
        largest, counts, squares = self.features.columns()
        counts += self.comm.size + 8
        counts *= EPS
        largest *= counts
        return largest, squares

    def serve(self) -> None:
        """Answer what is asked until `release` is called. Ranks that run the solver return at once."""
        while not self.vectors.runs_solver:
            with self.clock.phase(self.vectors.outward):
                query, numbers = self.vectors.receive_request()
            if query == Query.RELEASE:
                return
            if query > 0:
                self._answer(None, numbers)
            else:
                self._ANSWERS[Query(query)](self, None, numbers)

    # The answers. Collective; slices : this rank's slices of the vectors that are asked about, None if it has none

    def _plane_rounding(self, slices: list[Floats] | None, numbers: Floats) -> Floats:
        """Return a slice of the bound e on rounding in r: see `plane_errors`."""
        with self.clock.phase("rounding"):
            return self.vectors.maximum(self._describe_columns()[0])

    def _margin_rounding(self, slices: list[Floats] | None, numbers: Floats) -> float:
        """Return twice `Features.largest_terms` at w, of all rows."""
        with self.clock.phase("rounding"):
            local = np.array([2 * self.features.largest_terms(self.vectors.replicate(1, slices)[0])])
            return float(self.comm.maximum(local)[0])

    def _assess(self, slices: list[Floats] | None, numbers: Floats) -> Any:
        with self.clock.phase("measures"):
            return self.assess(self.features.margins(self.vectors.replicate(1, slices)[0]), int(numbers[0, 1]))

    _ANSWERS: ClassVar[dict[Query, Callable[[Objective, list[Floats] | None, Floats], Any]]] = {
        Query.PLANE_ROUNDING: _plane_rounding,
        Query.MARGIN_ROUNDING: _margin_rounding,
        Query.ASSESS: _assess,
    }

    def _answer(self, slices: list[Floats] | None, numbers: Floats) -> tuple[list[tuple[float, float, float]], Floats]:
        """Return R, R_mu and d of each w and, on ranks that run the solver, slices of r (k, length).

        numbers : (k, 2), the width and the loss of each w.
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
