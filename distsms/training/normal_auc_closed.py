"""The minimum of the pairwise square for any lambda, from the moments of both classes, with a proof.

With means m+ and m-, covariances C+ and C-, delta = m+ - m-, S = C+ + C-, `distsms.losses.normal_auc` has the objective

    J(w) = lambda/2 ||w||^2 + (t^2 + w'Sw) / 2,   t = 1 - w'delta

and has its minimum 1 / (2 (1 + u'delta)) at w = u / (1 + u'delta), u = (S + lambda I)^-1 delta: one pass over the rows
for all lambdas and folds. By convexity, min J >= J(w) - ||g||^2 / (2 lambda) at any w, g = Sw - t delta + lambda w.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.measures import Measure
from distsms.base.typing import Floats
from distsms.matrix.blocks import LocalRows
from distsms.matrix.moments import Moments
from distsms.optim.result import Result, Status
from distsms.optim.settings import Settings
from distsms.shards.dataset import DataBlock

EPS = float(np.finfo(float).eps)
PRODUCTS, BLAS = 50, 8
"""An iteration takes about as many products of X with a vector for a model as `PRODUCTS` says. A product of matrices
takes the time of a product with a vector that has so many times fewer operations.
"""
MOST_BYTES = 2**30
"""The moments may take at most this much memory on a rank."""

Numbers = NDArray[np.int16] | None
"""Of the fold of each local row, (n_local,)."""


class Solution(NamedTuple):
    """The minimum for one lambda: w (p,), J, R, a proved lower bound and gap with rounding, delta (p,), and ROCArea."""

    w: Floats
    J: float
    R: float
    lower_bound: float
    gap: float
    delta: Floats
    rocarea: float


def solve(classes: Moments, lam: float) -> Solution:
    """Return the minimum of J for one lambda from the moments of the positive and the negative rows, two groups. Local.

    p^3 / 3 operations, three matrices (p, p). Rounding: with q_j^2 the sum of both classes' mean squares of column j,
    S_jk is wrong by at most c q_j q_k and delta_j by c q_j, c = EPS (2 n + p + 64). With T = sum_j |w_j| q_j, t is
    wrong by at most c T, and g_j by c q_j (3 T + |t| + c T).
    """
    mass = np.where(classes.mass > 0, classes.mass, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that are not finite are seen below
        delta = classes.mean[0] - classes.mean[1]
        S = classes.scatter[0] / mass[0] + classes.scatter[1] / mass[1]
        sizes = np.sqrt(np.diag(S) + classes.mean[0] ** 2 + classes.mean[1] ** 2)
    p = len(delta)
    unsolved = Solution(np.zeros(p), 0.5, 0.5, -math.inf, math.inf, delta, 0.5)
    if not (np.isfinite(S).all() and np.isfinite(sizes).all() and np.all(classes.mass > 0)):
        return unsolved
    M = S + (lam + p * EPS * float(np.max(np.diag(S), initial=0.0))) * np.eye(p)
    try:
        factor = scipy.linalg.cho_factor(M, lower=True, overwrite_a=True, check_finite=False)
        u = scipy.linalg.cho_solve(factor, delta, check_finite=False)
        u += scipy.linalg.cho_solve(factor, delta - S @ u - lam * u, check_finite=False)
    except np.linalg.LinAlgError:  # only where entries are so large that rounding hides lambda
        u = np.zeros(p)
    w = u / (1 + u @ delta)
    Sw, t, size = S @ w, 1 - float(w @ delta), float(np.abs(w) @ sizes)
    variance, c = max(float(w @ Sw), 0.0), EPS * (2 * float(np.sum(classes.count)) + p + 64)
    R = 0.5 * (t * t + variance)
    J = R + 0.5 * lam * float(w @ w)
    rounding = c * (size * (abs(t) + (1 + c) * size) + J)
    slope = np.linalg.norm(Sw - t * delta + lam * w) + EPS * lam * np.linalg.norm(w)
    slope += c * np.linalg.norm(sizes) * (3 * size + abs(t) + c * size)
    bound = J - rounding - float(slope) * float(slope) / (2 * lam)
    if not math.isfinite(J + rounding - bound):
        return unsolved
    bound = max(0.0, bound)  # J is a sum of squares
    ahead, deviation = float(w @ delta), math.sqrt(variance)
    area = float(scipy.special.ndtr(ahead / deviation)) if deviation else 0.5 + 0.5 * float(np.sign(ahead))
    return Solution(w, J, R, bound, J + rounding - bound, delta, area)


def bytes_of_moments(
    measure: str | Measure, n: int, p: int, entries: int, coded: bool, losses: int = 1, l1: float = 0.0
) -> int:
    """Return the memory of the closed form on each rank; 0 if there is none, as for codes, or iterating costs less."""
    if not Measure.parse(measure).family.closed_form or coded or l1 or not n:
        return 0
    dense = entries >= n * p / 2
    gathering = n * p**2 / BLAS if dense else entries**2 / n
    work, memory = gathering + losses * p**3 / (3 * BLAS), 8 * p**2 * (2 * losses + 5)
    return memory if work <= losses * PRODUCTS * entries and memory <= MOST_BYTES else 0


def pays(block: DataBlock, measure: str | Measure, comm: Communicator, l1: float, losses: int = 1) -> bool:
    """Return whether the closed form is possible for these rows, and costs less than iterating. **Collective.**"""
    if not Measure.parse(measure).family.closed_form or l1:
        return False
    features = block.features
    n, entries = comm.sum(np.array([features.shape[0], features.nnz], np.int64)).tolist()
    # Rows have moments if they are stored as numbers, not as codes.
    coded = not isinstance(features, LocalRows) or type(features)._gather is LocalRows._gather
    return bytes_of_moments(measure, n, block.p, entries, coded, losses, l1) > 0


def moments_of(block: DataBlock, comm: Communicator, number: Numbers = None, numbers: int = 1) -> Moments:
    """Return the moments of both classes, the positive one first, of all ranks' rows of each `number` (n_local,).
    **Collective.** Rows of weight 0 are left out; without numbers all rows have 0."""
    assert isinstance(block.features, LocalRows)
    of_rows = np.zeros(len(block.labels), np.int16) if number is None else number
    group = np.where(block.counted, 2 * of_rows + (block.labels < 0), -1).astype(np.int16)
    return block.features.moments(group, 2 * numbers, block.weights).over_ranks(comm)


class ClosedForm:
    """The minima of normal-auc on all rows, and on the training rows of each fold. Creating it is **collective.**"""

    def __init__(
        self, block: DataBlock, comm: Communicator, number: Numbers = None, folds: int = 0, forward: bool = False
    ) -> None:
        self._moments = moments_of(block, comm, number, folds + 1)
        self._folds, self._forward, self.passes = folds, forward, 1  # passes over the rows that are not counted yet
        self._of_fold: dict[int, Moments] = {}  # of the last one that was asked for

    def classes(self, fold: int) -> Moments:
        """Return the moments of the positive and of the negative training rows of a fold; 0 stands for all rows."""
        if fold not in self._of_fold:
            numbers = np.arange(self._folds + 1)
            kept = 2 * (numbers[numbers < fold if self._forward else numbers != fold] if fold else numbers)
            unions = [self._moments.union(kept + sign) for sign in (0, 1)]
            parts = zip(*(vars(union).values() for union in unions), strict=True)
            self._of_fold = {fold: Moments(*(np.concatenate(part) for part in parts))}
        return self._of_fold[fold]

    def result(self, fold: int, settings: Settings, constant: bool = False) -> Result | None:
        """Return the outcome for a fold and lambda; None if rounding hides the gap; a constant weighs 0. Local."""
        begun = time.perf_counter()
        solution = solve(self.classes(fold), settings.lam)
        if not solution.gap <= settings.target(solution.J):
            return None
        w = np.append(solution.w, 0.0) if constant else solution.w
        return Result(
            w,
            Status.PROVED,
            "",
            solution.J,
            solution.R,
            solution.lower_bound,
            solution.gap,
            J_at_zero=0.5,
            nu=0.0,
            evaluations=0,
            seconds=time.perf_counter() - begun,
            slope_at_zero=float(np.linalg.norm(solution.delta)),
        )
