"""The objective J and its smoothed form J_mu, over the rows of all ranks (JMLR, equations (1), (6), (24)).

With Omega(w) = lam/2 ||w||^2 and the letters of `distsms.losses.base`, J = Omega + R and J_mu = Omega + R_mu. An
elastic net has l1 ||w||_1 in Omega, too; "gradient" is then that of the smooth part. An evaluation, of one w or several
in one pass: each rank computes s = X w; the loss computes R, R_mu, d and c; the sum of X'c over ranks is r, and the
gradient lam w + r. Ranks with the solver (`distsms.parallel.vectors`) call `evaluate`; others take part in
`serve`. "A slice" means the whole vector if the root alone runs the solver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.timing import Clock
from distsms.base.typing import Floats
from distsms.losses.base import Loss
from distsms.matrix.base import Features
from distsms.optim.curvature import local_sums
from distsms.optim.penalty import ElasticNet
from distsms.optim.rows import EPS, RowSizes
from distsms.parallel.vectors import Vectors

T = TypeVar("T")

BLOCK = 2**16
"""Number of entries of vectors that are worked on at a time."""
QUERIES = ("plane_rounding", "margin_rounding", "assess", "curvature", "exact_risk")
"""What the ranks in `serve` are asked, each answered by the method of this name: they get -1, -2, and so on; k > 0 asks
for k evaluations, and 0 lets them leave.
"""
_NOTHING, _NO_NUMBERS = np.empty(0), np.empty((0, 2))


class Request(NamedTuple):
    """A request for one evaluation: a slice of w, the width nu, the regularizer, and the index of the loss."""

    w: Floats
    nu: float
    regularizer: ElasticNet
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


class Objective:
    """The objective over the rows of all ranks, on each rank for its `features`, with a loss for each subset of the
    rows that is trained on. `stop_wanted` is asked on every rank at each evaluation. By default the root holds
    `vectors` whole. `weights` are for the scaling of variables. `reload`, collective, gets the number of evaluations
    after a rank has died, and returns features, losses and weights of this rank's new share, of which all have `n`
    rows. Cost: two passes over the nonzeros, the loss, 16 p bytes for each w.
    """

    def __init__(
        self,
        features: Features,
        losses: Sequence[Loss],
        comm: Communicator,
        stop_wanted: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
        vectors: Vectors | None = None,
        weights: Floats | None = None,
        reload: Callable[[int], tuple[Features, Sequence[Loss], Floats | None]] | None = None,
        n: int | None = None,
    ) -> None:
        self.features, self.losses = features, losses
        self.comm, self._weights = comm, weights
        self._reload, self._n, self._complete_for = reload, n, 0
        self._target: Callable[[float], float] = Loss.target
        self.p = features.shape[1]
        self.vectors = vectors or Vectors(comm, self.p)
        self.clock = clock or Clock()
        self.evaluations = 0  # if a pass answers several requests, each counts
        self.stop_requested = False  # at the last evaluation by any rank; the same on all ranks that run the solver
        self.stop_wanted = stop_wanted
        self._column_errors: Floats | None = None
        self._most_terms = np.inf  # at least the `Features.most_terms` of all ranks, once the columns are described
        self.row_sizes: RowSizes | None = None  # set by an opening, it bounds rounding errors without a pass
        self._scores = features.score_buffer(1)

    # The ranks that run the solver call these methods while the others are in `serve`.

    def evaluate(self, requests: Sequence[Request]) -> list[Evaluation]:
        """Answer the requests in one pass over the data, on the ranks that run the solver."""

        def answer() -> list[Evaluation]:
            numbers = np.array([[request.nu, request.loss] for request in requests])
            with self.clock.phase(self.vectors.outward):
                self.vectors.send_request(len(requests), numbers)
            values, gradients = self._answer([request.w for request in requests], numbers)
            of_requests = zip(requests, values, gradients, strict=True)
            return [self._evaluation(request, value, r) for request, value, r in of_requests]

        return self.surviving(answer)

    def _evaluation(self, request: Request, value: tuple[float, ...], r: Floats) -> Evaluation:
        w, regularizer = request.w, request.regularizer
        gradient, products = np.empty_like(r), np.zeros(())
        with np.errstate(over="ignore", invalid="ignore"):  # `Course` reports numbers that are not finite
            for start in range(0, max(len(w), 1), BLOCK):  # a block stays in the caches for all that is done with it
                w_block, r_block, gradient_block = (vector[start : start + BLOCK] for vector in (w, r, gradient))
                gradient_block[:] = regularizer.gradient(w_block, r_block)
                of_block = [np.dot(r_block, w_block), *regularizer.sums(w_block, r_block, gradient_block)]
                products = products + np.array(of_block)
        # One sum over ranks adds up the products of slices, and gives all ranks the numbers of the root, to the bit.
        numbers = np.array(value if self.comm.is_root else [0.0] * len(value))
        totals = self.vectors.sum_values(np.concatenate((numbers, products))).tolist()
        (R, R_mu, d), (width, rw) = totals[:3], totals[3:5]
        omega, optimization_gap = regularizer.value_and_gap(totals[5:], rw)
        return Evaluation(
            w=w,
            nu=request.nu,
            J=omega + R,
            J_mu=omega + R_mu,
            gradient=gradient,
            R=R,
            R_mu=R_mu,
            r=r,
            d=d,
            smoothing_gap=R - (rw + d),
            optimization_gap=optimization_gap,
            width=width,
        )

    def plane_errors(self, loss: int = 0) -> tuple[Floats | float, float]:
        """Return bounds on the rounding errors of a plane: of r, a slice or with `row_sizes` the length of the error;
        and of d. The first call may take a pass over the data.

        r_j is a sum of c_i x_ij, and all |c_i| sum to at most 2. So if column j has m entries on a rank, and m counts
        additions in coefficients, too, its error is at most m eps max_i |x_ij|.
        """
        of_d = EPS * self.losses[loss].additions
        if self._column_errors is None:
            if self.row_sizes is not None:
                return self.row_sizes.plane_error(self._coefficient_additions), of_d
            self._column_errors = self._ask("plane_rounding")
        return self._column_errors, of_d

    def rounding(self, evaluation: Evaluation, enough: float = 0.0, loss: int = 0) -> float:
        """Return a bound on the rounding error of J at an evaluation, which need not be less than `enough`.

        A margin of L terms is wrong by at most L eps/2 sum_j |x_ij w_j|, J by twice the largest, and R by its
        `Loss.additions` times R + 4; above `planes_up_to`, coefficients of means of squares grow as the root of R. One
        pass over the data, unless sizes of rows are enough.
        """
        w, R, sizes = evaluation.w, evaluation.R, self.row_sizes
        limit = self.losses[loss].planes_up_to
        growth = max(1.0, R / limit) ** 0.5
        of_sum = self.losses[loss].additions * (R + 4) * (1 if growth == 1 else 4)
        of_sum += (min(self.p, BLOCK) + self.p / BLOCK + 8) * (evaluation.J - R)
        norm = max(self.vectors.dot(w, w), 1e-300) ** 0.5  # where squares vanish, the length is not known better
        terms = 2 * (self._most_terms * norm if sizes is None else sizes.margin_terms(norm))
        if not EPS * (growth * terms + of_sum) <= enough:
            terms = self._ask("margin_rounding", [w])
        square = 0.5 * EPS * terms * terms if growth > 1 else 0.0
        return float(EPS * (growth * terms + square + of_sum))

    @property
    def _coefficient_additions(self) -> float:
        return max(loss.coefficient_additions for loss in self.losses)

    def assessment(self, w: Floats, loss: int = 0) -> Any:
        """Return the result of `assess` for the margins at a slice of w. One pass over the data."""
        return self._ask("assess", [w], np.array([[0.0, loss]]))

    def exact_risk(self, w: Floats, evaluations: float, loss: int = 0) -> float:
        """Return R at a slice of w for a loss that encloses it; NaN if that is not cheap (`Loss.exact_is_cheap`)."""
        return float(self._ask("exact_risk", [w], np.array([[evaluations, loss]], float)))

    def curvature(self, w: Floats, nu: float) -> Floats:
        """Return the sums that `distsms.optim.curvature.factor` needs, at a slice of w. One pass over the data."""
        return self._ask("curvature", [w], np.array([[nu, 0.0]]))

    def release(self) -> None:
        """Let the other ranks leave `serve`."""
        self.surviving(lambda: self.vectors.send_request(0, _NO_NUMBERS))

    def _ask(self, query: str, slices: list[Floats] | None = None, numbers: Floats = _NO_NUMBERS) -> Any:
        def answer() -> Any:
            self.vectors.send_request(-1 - QUERIES.index(query), numbers)
            return getattr(self, f"_{query}")(slices, numbers)

        return self.surviving(answer)

    # All ranks call these methods.

    def prove_to(self, target: Callable[[float], float]) -> None:
        """Set the `Loss.target` of all losses, also of those that are made anew after a death. Local."""
        self._target = target
        for loss in self.losses:
            loss.target = target

    def surviving(self, work: Callable[[], T]) -> T:
        """Return `work()`, repeated after a rank has died: see `Communicator.surviving`. **Collective.**"""
        if self._reload is None:
            return work()
        before = self.evaluations

        def on_all_rows() -> T:
            if self._n is not None and self._complete_for != self.comm.size:  # once, and after each death
                self.comm.require_all(self._n, self.features.shape[0], len(self.losses[0].positive))
                self._complete_for = self.comm.size
            return work()

        return self.comm.surviving(on_all_rows, lambda: self._renew(before))

    def _renew(self, evaluations: int) -> None:
        """Replace this rank's rows by its share after a death; `evaluations` were made before. **Collective.**"""
        assert self._reload is not None
        self.evaluations = evaluations
        if "losses" in vars(self):
            self._ways = [loss.ways for loss in self.losses]
        for name in ("features", "losses", "_scores", "_weights"):  # the new ones need their memory
            vars(self).pop(name, None)  # they are not there if another rank died while these were read
        self.vectors.close()
        self.features, self.losses, self._weights = self._reload(self.evaluations)
        for loss, ways in zip(self.losses, self._ways, strict=True):
            loss.ways.update(ways)
        self.prove_to(self._target)
        self._scores = self.features.score_buffer(1)

    def assess(self, scores: Floats, loss: int) -> Any:
        """Compute a subclass's measures from the margins (n_local,), for one of the losses. **Collective.**"""
        raise NotImplementedError

    def second_moments(self) -> Floats:
        """Return a slice of the weighted mean of x_ij^2 of each column; a pass, with weights two. **Collective.**"""
        weights, n = self._weights, float(self.features.shape[0])
        if weights is not None:
            largest = float(self.comm.maximum(np.array([weights.max(initial=0.0)]))[0])
            weights = weights / (largest or 1.0)
            n = float(np.sum(weights))
        errors, squares = self._describe_columns(weights)
        self._column_errors = self.vectors.maximum(errors)
        del errors
        moments = self.vectors.sum_vector(squares)
        moments /= self.comm.sum(np.array([n]))[0]
        return moments

    def _describe_columns(self, weights: Floats | None = None) -> tuple[Floats, Floats]:
        """Return bounds on rounding in this rank's part of r, and sum_i a_i x_ij^2, (p,) each. **Collective.**"""
        self.vectors.free_buffer()
        largest, counts, squares = self.features.columns(weights)
        if self.comm.failures:  # the bounds must hold however the rows are distributed after a rank has died
            counts, largest = self.comm.sum(counts), self.comm.maximum(largest)
        terms = self.features.most_terms(float(largest.max(initial=0.0)))
        self._most_terms = float(self.comm.maximum(np.array([terms]))[0])
        counts += self.comm.size + 8 + self._coefficient_additions
        counts *= EPS
        largest *= counts
        return largest, squares

    def serve(self) -> None:
        """Take part in evaluations until the ranks that run the solver call `release`. On those it returns at once."""
        while not self.vectors.runs_solver and self.surviving(self._serve_request):
            pass

    def _serve_request(self) -> bool:
        """Wait for a request and take part in its answer; return False if it was the last."""
        with self.clock.phase(self.vectors.outward):
            query, numbers = self.vectors.receive_request()
        if query > 0:
            self._answer(None, numbers)
        elif query < 0:
            getattr(self, f"_{QUERIES[-1 - query]}")(None, numbers)
        return query != 0

    # The answers to requests, all collective. slices: of the vectors in the request; None where no solver runs.

    def _plane_rounding(self, slices: list[Floats] | None, numbers: Floats) -> Floats:
        with self.clock.phase("rounding"):
            return self.vectors.maximum(self._describe_columns()[0])

    def _margin_rounding(self, slices: list[Floats] | None, numbers: Floats) -> float:
        """Return twice the largest `Features.largest_terms` at w over all ranks."""
        with self.clock.phase("rounding"):
            local = np.array([2 * self.features.largest_terms(self.vectors.replicate(1, slices)[0])])
            return float(self.comm.maximum(local)[0])

    def _assess(self, slices: list[Floats] | None, numbers: Floats) -> Any:
        with self.clock.phase("measures"):
            return self.assess(self.features.margins(self.vectors.replicate(1, slices)[0]), int(numbers[0, 1]))

    def _curvature(self, slices: list[Floats] | None, numbers: Floats) -> Floats:
        with self.clock.phase("curvature"):
            scores = self.features.margins(self.vectors.replicate(1, slices)[0])
            return self.comm.sum(local_sums(self.features, self.losses[0], scores, float(numbers[0, 0])))

    def _exact_risk(self, slices: list[Floats] | None, numbers: Floats) -> float:
        (evaluations, index), w = numbers[0], self.vectors.replicate(1, slices)[0]
        loss, entries = self.losses[int(index)], float(self.comm.sum(np.array([float(self.features.nnz)]))[0])
        if not loss.exact_is_cheap(entries / self.comm.size, evaluations):
            return np.nan
        with self.clock.phase("exact risk"):
            return loss.exact_risk(self.features.margins(w))

    def _answer(self, slices: list[Floats] | None, numbers: Floats) -> tuple[list[tuple[float, ...]], Floats]:
        """Return R, R_mu, d and width of each w, and slices of r where a solver runs; numbers (k, 2): nu and loss."""
        clock, k = self.clock, len(numbers)
        self.evaluations += k
        # 1) The margins s = X w.
        with clock.phase(self.vectors.outward):
            W = self.vectors.replicate(k, slices)
        with clock.phase("margins X w"):
            if len(self._scores) != k:
                self._scores = self.features.score_buffer(k)
            self.features.margins(W, self._scores)
        # 2) The risk, and a coefficient for each row.
        coefficients, values = list[Floats](), list[tuple[float, ...]]()
        with clock.phase("loss"):
            for scores, (nu, index) in zip(self._scores, numbers, strict=True):
                value = self.losses[int(index)].evaluate_in_place(scores, float(nu))
                coefficients.append(value.coefficients)
                values.append((value.R, value.R_mu, value.d, value.width))
        # 3) The slopes X'c, summed over the ranks.
        buffer = self.vectors.buffer(k)  # all gradients, and the stop flag
        with clock.phase("gradient X'c"):
            self.features.transposed_times(coefficients, buffer[:-1].reshape(k, self.p))
            buffer[-1] = self.stop_wanted()
        with clock.phase(self.vectors.inward):
            gradients, self.stop_requested = self.vectors.sum_buffer(buffer)
        return values, gradients
