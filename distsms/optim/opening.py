"""The opening of a run on data with at most as many rows as columns: a search in the space of the rows.

Every w that counts is a combination of rows, w = X'c. Its scores s = X w are linear in c, and the inner product of two
such vectors is <X'a, X'b> = a's_b. So if c and s of each vector are kept (n numbers each, not p), then all planes,
their Gram matrix and the minimizer of their maximum are known without vectors of length p. Each iteration

1. takes the minimizer m of the model of planes (see `distsms.optim.bundle`), whose scores are known;
2. minimizes J_mu over the best point plus the span of m, of the gradient and of the last step. Their scores are known,
   too, so this costs evaluations of the loss only;
3. adds the planes at m (exact) and at the point found (smoothed): X'c and X(X'c) for both, in one pass each.

The planes at m raise the lower bound, as in the cutting-plane methods, and the search lowers J, so that neither waits
for the other. Step 2 is that of Franc & Sonnenburg, Optimized cutting plane algorithm for large-scale risk
minimization, JMLR 10, 2009, in more than one dimension.

The numbers of this search prove nothing: errors of rounding are not bounded. At its end the mixture of planes with the
highest bound is one plane, and the run takes this plane and the best w as its beginning. It evaluates J there, and the
proof is its own. Where there are many columns, another opening comes first, and the search goes on from what that
found, if it has not come far enough: see `distsms.optim.dual_ascent`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from distsms.losses.base import LossValue
from distsms.losses.registry import Loss, make_loss
from distsms.optim.bundle import USUAL
from distsms.optim.objective import Objective
from distsms.optim.penalty import SquaredNorm
from distsms.optim.qp import simplex_qp
from distsms.optim.result import State
from distsms.optim.settings import Settings, ascends
from distsms.optim.smoothing import SHRINK, START_COST
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats

ROUNDING = 0.02
"""The search subtracts this share of the target from its bounds, and the usual rounding error of the Gram matrix, since
the proof subtracts the most that rounding may do.
"""
SLOW, SHARE = 40, 0.8
"""The search ends if this many iterations have not reduced the gap to this share."""
SMOOTHING_SHARE = 0.25
"""The width of the smoothing shrinks if its gap is more than this share of the whole gap."""
STEPS, ACCURACY = 15, 1e-9
"""The limits of the minimization over the span: iterations, and the relative decrease of J_mu in one of them."""
LEAST = 3
"""A run that may take no more evaluations has no opening, unless the risk is smooth by itself."""
LOSSES = ("rocarea", "prbep", "logistic", "logistic-balanced")
"""The losses that have an opening: those for which the root of several ranks can work alone."""
MOST_ROWS = 2**18
"""With more rows than this there is no opening, on any number of ranks, since the root works alone over all rows."""
DEPENDENT = 1e-10
"""Directions of the span count as dependent below this eigenvalue of the matrix of their cosines."""


class Point(NamedTuple):
    """A vector X'c, by c and by its scores, both (n_local,)."""

    c: Floats
    s: Floats


class Start(NamedTuple):
    """Where the search can begin: a point, and a plane with its constant d."""

    point: Point
    plane: Point
    d: float


class Opened(NamedTuple):
    """What the search found: slices of the best w and of a plane <r, w> + d below R, and what it took.

    `final`: whether the evaluation at w probably ends the run, by a proof, by a limit or since it was asked to stop.
    `start`: where the search in the space of the rows can go on.
    """

    w: Floats
    r: Floats
    d: float
    nu: float
    evaluations: int
    seconds: float
    final: bool = False
    start: Start | None = None


class Found(NamedTuple):
    """An evaluation of the loss at a point, the width there, J, and the two gaps, as `Evaluation` has them."""

    point: Point
    value: LossValue
    nu: float
    J: float
    smoothing_gap: float = np.nan
    optimization_gap: float = np.nan


def suits(objective: Objective, settings: Settings) -> bool:
    """Return whether a run with w = 0 at its start shall have an opening. **Collective.**

    It is for the usual solvers. Runs that write checkpoints have none, since its state is not among what they write,
    and streamed rows have none, since it takes memory for each row.
    """
    loss, features = objective.losses[0], objective.features
    usual = settings.traits.movable and settings.bundle_steps and settings.c_mu is None and not settings.solver_options
    possible = loss.smooth and loss.nonnegative and loss.planes_up_to == np.inf and settings.checkpoint_every is None
    possible &= loss.name in LOSSES and not settings.l1  # it knows no other regularizer than lambda/2 ||w||^2
    if objective.comm.failures:  # the search could not go on without the rows of a rank that dies
        return False
    least = 1 if loss.smooth_by_itself else LEAST
    if not (usual and possible and settings.zero_plane and settings.max_evaluations > least):
        return False
    n, streamed = objective.comm.sum(np.array([features.shape[0], getattr(features, "bytes_per_pass", 0)], float))
    few = ascends(n, objective.p) if loss.smooth_by_itself else n <= objective.p
    return bool(few and n <= MOST_ROWS and not streamed)


def open_run(
    objective: Objective, settings: Settings, watch: Callable[[State, Floats], None], before: Opened | None = None
) -> Opened | None:
    """Search in the space of the rows, from w = 0 or from what was found before. **Collective.**

    Returns None if a number is not finite. `watch` is called as in `distsms.optim.run.minimize`.
    """
    return _Search(objective, settings, watch, before).run()


class _Search:
    """The state of the search, on each rank; arrays over rows have those of this rank.

    All ranks have the same numbers, since these are sums over ranks, or the root's.
    """

    def __init__(
        self,
        objective: Objective,
        settings: Settings,
        watch: Callable[[State, Floats], None],
        before: Opened | None = None,
    ) -> None:
        from scipy.optimize import minimize  # here, since importing it takes a while: the clock does not count it

        self._minimize = minimize
        self._objective, self._settings, self._watch = objective, settings, watch
        self._comm, self._loss, self._features = objective.comm, objective.losses[0], objective.features
        self._lam, self._regularizer = settings.lam, SquaredNorm(settings.lam)
        n, places = self._features.shape[0], settings.opening_within(objective.p)
        self._planes = Point(np.empty((places, n)), np.empty((places, n)))  # take no memory before they are written to
        self._planes.c[0] = self._planes.s[0] = 0.0  # the zero plane
        self._gram, self._d, self._alpha = np.zeros((places, places)), np.zeros(places), np.zeros(places)
        self._alpha[0], self._count = 1.0, 1
        self._nu = START_COST / self._loss.smoothing_cost()
        self._bound, self._evaluations, self._stopped = -np.inf, 0, False
        self._begun, self._watching = time.perf_counter(), 0.0
        self._best, self._J = Point(np.zeros(n), np.zeros(n)), np.inf
        self._alone = self._loss if self._comm.size == 1 else self._loss_alone()
        if before is not None:
            self._evaluations, self._begun = before.evaluations, self._begun - before.seconds
            if before.start is not None:
                self._best, (self._planes.c[1], self._planes.s[1]), self._d[1] = before.start
                self._gram[1, 1] = self._sums(self._planes.c[1] @ self._planes.s[1])[0]
                self._count, self._nu = 2, before.nu

    def _loss_alone(self) -> Loss | None:
        """Return the loss of all rows on the root, None elsewhere. **Collective.**"""
        loss, gather = self._loss, self._comm.gather_rows
        kept = (loss.positive | loss.negative).astype(float)
        labels = gather(np.where(loss.positive, 1, -1).astype(np.int8))
        weights = gather(kept if loss.weights is None else kept * loss.weights)
        return None if labels is None else make_loss(loss.name, "gather", labels, weights, Communicator())

    def run(self) -> Opened | None:
        """Return what the search finds."""
        at = self._best
        first = self._found(at, self._nu, float(self._sums(at.c @ at.s)[0]))
        if not np.isfinite([first.J, first.value.d]).all():
            return None
        self._J = first.J
        self._add([first])
        directions, last, since = list[Point](), np.inf, 0
        while not self._done and self._evaluations + 2 < self._settings.max_evaluations:
            model = self._model_minimum()
            directions = [Point(model.c - at.c, model.s - at.s), *directions]
            step, norm2, at_model = self._step(at, Point(*map(np.array, zip(*directions, strict=True))), model)
            before, at = at, Point(at.c + step.c, at.s + step.s)
            found = [self._found(model, 0.0, at_model), self._found(at, self._nu, norm2)]
            if not np.isfinite([(each.J, each.value.d) for each in found]).all():
                return None
            if self._J > found[-1].J:
                self._J, self._best = found[-1].J, at
            newest, plane = self._add(found)
            gap, target = self._J - self._bound, self._settings.target(self._J)
            since, last = (0, gap) if SHARE * last >= gap else (since + 1, last)
            if since >= SLOW:
                break
            self._narrow(newest, gap, target)
            gradient = Point(self._lam * at.c + plane.c, self._lam * at.s + plane.s)
            directions = [gradient, Point(at.c - before.c, at.s - before.s)]
        return self._end()

    @property
    def _done(self) -> bool:
        return self._stopped or self._settings.target(self._J) >= self._J - self._bound

    def _sums(self, *values: Any) -> Floats:
        """Return local sums, added over ranks, with the same bits on each."""
        return self._comm.sum(np.concatenate([np.ravel(value) for value in values]))

    def _found(self, point: Point, nu: float, norm2: float) -> Found:
        """Evaluate the loss at a point, whose squared norm is norm2. The numbers are the root's."""
        with self._objective.clock.phase("loss"):
            value = self._loss.evaluate(point.s, nu)
        R, R_mu, d = self._comm.broadcast(np.array([value.R, value.R_mu, value.d])).tolist()
        return Found(point, value._replace(R=R, R_mu=R_mu, d=d), nu, self._regularizer.value(norm2) + R)

    def _model_minimum(self) -> Point:
        weights = -self._alpha[: self._count] / self._lam
        return Point(weights @ self._planes.c[: self._count], weights @ self._planes.s[: self._count])

    def _step(self, at: Point, span: Point, model: Point) -> tuple[Point, float, float]:
        """Minimize J_mu over `at` plus the span of k directions, the first of which leads to the model's minimum.

        Returns
        -------
        The step, and the squared norms of `at` plus the step and of the model's minimum.
        """
        comm, lam, k = self._comm, self._lam, len(span.c)
        sums = self._sums(span.c @ span.s.T, span.c @ at.s, at.c @ at.s, model.c @ model.s)
        gram, along, own, of_model = sums[: k * k].reshape(k, k), sums[k * k : -2], float(sums[-2]), float(sums[-1])
        lengths = np.sqrt(np.maximum(np.diag(gram), 1e-300))
        values, vectors = np.linalg.eigh(gram / np.outer(lengths, lengths))
        kept = values > DEPENDENT
        # Rows are coefficients of vectors of length 1 at right angles. All ranks take the root's.
        basis = comm.bcast((vectors[:, kept] / np.sqrt(values[kept])).T / lengths)
        scores, along = basis @ span.s, basis @ along
        # The root searches alone: sums over ranks at each evaluation would take longer than the evaluations.
        origin, gathered = comm.gather_rows(at.s), [comm.gather_rows(each) for each in scores]
        x = np.empty(len(basis))
        with self._objective.clock.phase("search"):
            if self._alone is not None and origin is not None and len(basis):
                loss, rows = self._alone, np.array(gathered)

                def function(x: Floats) -> tuple[float, Floats]:
                    value = loss.evaluate(origin + x @ rows, self._nu)
                    omega = self._regularizer.value(own + float(2 * along @ x + x @ x))
                    return omega + value.R_mu, lam * (along + x) + rows @ value.coefficients

                start = 0.1 * np.linalg.lstsq(basis.T, np.eye(k)[0], rcond=None)[0]
                limits = {"maxiter": STEPS, "ftol": ACCURACY}
                x = self._minimize(function, start, jac=True, method="L-BFGS-B", options=limits).x
            x = comm.broadcast(np.asarray(x))
        weights = x @ basis
        norm2 = own + float(2 * along @ x + x @ x)
        return Point(weights @ span.c, weights @ span.s), norm2, of_model

    def _narrow(self, newest: Found, gap: float, target: float) -> None:
        """Reduce the width of the smoothing if it contributes too much to the gap."""
        smoothing, optimization = newest.smoothing_gap, newest.optimization_gap
        near = optimization < 10 * max(smoothing, target) or smoothing > SMOOTHING_SHARE * gap
        if smoothing > target / 2 and near:
            self._nu *= SHRINK

    def _add(self, found: list[Found]) -> tuple[Found, Point]:
        """Add the planes of some evaluations, and improve the bound. Return the last one, with its gaps, and its plane.

        Where the solver runs, `watch` is told of each.
        """
        objective, planes, vectors = self._objective, self._planes, self._objective.vectors
        while self._count + len(found) > len(self._d):
            self._make_room()
        coefficients = [each.value.coefficients for each in found]
        k, new = len(found), slice(self._count, self._count + len(found))
        planes.c[new] = coefficients
        slices = self._combined([*coefficients, self._best.c])
        with objective.clock.phase(vectors.outward):
            W = vectors.replicate(k, None if slices is None else list(slices[:k]))
        with objective.clock.phase("margins X w"):
            scores = np.empty((k, self._features.shape[0]))
            planes.s[new] = self._features.margins(W, scores)
        self._count += k
        objective.evaluations += k
        with objective.clock.phase("certificate"):
            end = time.perf_counter() - self._begun - self._watching >= self._settings.time_limit
            stop = float(objective.stop_wanted() or (end and self._comm.is_root))
            own = [(*self._own(each, s), stop) for each, s in zip(found, planes.s[new], strict=True)]
            sums = self._sums(planes.c[: self._count] @ planes.s[new].T, own)
            products, own_sums = sums[: -3 * k].reshape(self._count, k), sums[-3 * k :].reshape(k, 3)
            self._gram[: self._count, new], self._gram[new, : self._count] = products, products.T
            self._stopped = bool(sums[-1] > 0)
            self._d[new], self._alpha[new] = [each.value.d for each in found], 0.0
            gram, d = self._gram[: self._count, : self._count], self._d[: self._count]
            alpha = simplex_qp(gram, self._lam * d, self._alpha[: self._count])
            alpha = self._alpha[: self._count] = self._comm.broadcast(alpha)
            size = float(alpha @ np.sqrt(np.diag(gram)))
            square = float(alpha @ gram @ alpha) + 4 * USUAL * size**2
            bound = float(d @ alpha) - self._regularizer.conjugate(square)
            self._bound = max(self._bound, bound - ROUNDING * self._settings.target(self._J))
        for each, (inner, square, _) in zip(found, own_sums.tolist(), strict=True):
            smoothing = each.value.R - inner - each.value.d
            newest = each._replace(smoothing_gap=smoothing, optimization_gap=self._regularizer.conjugate(square))
            self._report(newest, None if slices is None else slices[k])
        return newest, Point(planes.c[new][-1], planes.s[new][-1])

    def _own(self, found: Found, s: Floats) -> tuple[float, float]:
        """Return local shares of <r, w> and of ||lam w + r||^2 where something was evaluated; s are the scores of r."""
        (c_of_w, s_of_w), c, lam = found.point, found.value.coefficients, self._lam
        return float(c @ s_of_w), float((lam * c_of_w + c) @ (lam * s_of_w + s))

    def _combined(self, coefficients: list[Floats]) -> Floats | None:
        """Return slices of X'c for several c, (k, length), in one pass; None where the solver does not run."""
        vectors, clock, k = self._objective.vectors, self._objective.clock, len(coefficients)
        buffer = vectors.buffer(k)
        with clock.phase("gradient X'c"):
            self._features.transposed_times(coefficients, buffer[:-1].reshape(k, self._objective.p))
            buffer[-1] = 0.0
        with clock.phase(vectors.inward):
            slices, _ = vectors.sum_buffer(buffer)
        return slices if vectors.runs_solver else None

    def _make_room(self) -> None:
        """Drop the planes of weight 0, but the newest; if none has weight 0, merge the half of least weight."""
        k, alpha = self._count, self._alpha[: self._count]
        kept = np.flatnonzero((alpha > 0) | (np.arange(k) == 0) | (np.arange(k) >= k - 4))
        merge = np.eye(k)[kept]
        if len(kept) > 3 * k // 4:
            least = kept[1:][np.argsort(alpha[kept[1:]])][: k // 2]
            weights = np.where(np.isin(np.arange(k), least), alpha, 0.0)
            total = weights.sum()
            mixture = weights / total if total > 0 else np.eye(k)[least[0]]
            merge = np.vstack([np.eye(k)[np.setdiff1d(kept, least)], mixture])
        m = self._count = len(merge)
        for rows in self._planes:
            rows[:m] = merge @ rows[:k]
        self._gram[:m, :m] = merge @ self._gram[:k, :k] @ merge.T
        self._d[:m] = merge @ self._d[:k]
        self._alpha[:m] = np.linalg.lstsq(merge.T, alpha, rcond=None)[0]

    def _report(self, found: Found, w: Floats | None) -> None:
        """Count an evaluation, and call `watch` on ranks that run the solver."""
        self._evaluations += 1
        seconds = time.perf_counter() - self._begun - self._watching
        if w is not None:
            _, value, nu, J, *gaps = found
            bounds, others = (self._bound, self._J - self._bound), (J - value.R + value.R_mu, value.R, nu)
            self._watch(State(self._evaluations, seconds, J, *bounds, self._J, *others, *gaps), w)
        self._watching = time.perf_counter() - self._begun - seconds

    def _end(self) -> Opened:
        alpha = self._alpha[: self._count]
        slices = self._combined([self._best.c, alpha @ self._planes.c[: self._count]])
        w, r = slices if slices is not None else (np.empty(0), np.empty(0))
        seconds = time.perf_counter() - self._begun - self._watching
        return Opened(w, r, float(alpha @ self._d[: self._count]), self._nu, self._evaluations, seconds)
