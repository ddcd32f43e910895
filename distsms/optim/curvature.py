"""A change of variables in which the risk is curved about equally in all directions: for ROCArea with few columns.

Where lambda is small, L-BFGS needs many evaluations along flat directions. So the matrix of second derivatives of J_mu
is estimated from a sample of rows, whose coefficients are functions of their scores, c_i = a_i f(s_i):

    H = sum_i a_i f'(s_i) (x_i - m)(x_i - m)' + lambda I,     m the mean of the x_i with these weights

and the solver starts anew on u = L'w with LL' = H. An inexact H makes it slower, but nothing wrong.
"""

from __future__ import annotations

import math

import numpy as np

from distsms.base.jit import UNCOUNTED, njit
from distsms.base.typing import Floats
from distsms.losses.base import Loss
from distsms.losses.pairwise import sort_with_rows
from distsms.matrix.base import Features, RowEntries
from distsms.matrix.kernels import number_at
from distsms.optim.rows import column_of
from distsms.optim.solvers.base import OtherVariables, Problem

FIRST, GROWTH, DEAREST = 5, 2, 30.0
"""H is estimated after so many evaluations, or after as many as take the same time, and again after `GROWTH` times as
many. It is not if it takes as long as more than `DEAREST` evaluations.
"""
MORE, LATEST = 10.0, 20
"""It is estimated only if so many more evaluations are expected, or if so many have been made, whatever is expected."""
OF_ROW, OF_PRODUCT = 10.0, 0.3
"""What a row and a multiplication for H take, as multiples of the time for one entry in an evaluation; measured."""


def evaluations_worth(n: float, p: int, entries: float, ranks: int) -> float:
    """Return how many evaluations take as long as an estimate of H for n rows, on all ranks together."""
    share = min(1.0, 2 * SAMPLE * ranks / n)
    cost = share * (OF_ROW * n + OF_PRODUCT * entries**2 / n) + OF_PRODUCT * p**3 / 3
    return cost / (entries + OF_ROW * n)


def pays(evaluations: int, gap: float, target: float) -> bool:
    """Return whether many more evaluations are expected, if the gap, 1 at first, falls on as it did."""
    fallen = -math.log(gap) if 0 < gap < 1 else 0.0
    return evaluations >= LATEST or evaluations * math.log(max(gap / target, 1.0)) > MORE * fallen


class Preconditioned(OtherVariables):
    """The same problem in u = L'w, with L (p, p) lower triangular: two products with it an evaluation; no l1."""

    def __init__(self, problem: Problem, L: Floats) -> None:
        super().__init__(problem, problem.strong_convexity / float(np.sum(L**2)))
        self._L, self._inverse = L, np.linalg.inv(L)

    def value_and_gradient(self, u: Floats) -> tuple[float, Floats]:
        value, gradient = self._problem.value_and_gradient(u @ self._inverse)
        return value, self._inverse @ gradient

    def variables(self, w: Floats) -> Floats:
        return w @ self._L


EPS = float(np.finfo(float).eps)
SAMPLE = 2**13
"""The most rows of each class on a rank that are taken, at equal distances."""
REPEATED = 10
"""If a score occurs so often, on average, the risk has kinks in place of a curvature, and H is not used."""
NEIGHBOURS = 16
"""A slope is that between the rows that are so many places before and after a row."""


def slopes(scores: Floats, coefficients: Floats) -> Floats:
    """Return |f'(s_i)| for rows of one class from their increasing scores and f(s_i), (n,). Local; O(n log n)."""
    n = len(scores)
    k, places = max(1, min(NEIGHBOURS, n // 50)), np.arange(n)
    first, last = (np.searchsorted(scores, scores, side) for side in ("left", "right"))  # of the rows with the score
    low = np.maximum(np.minimum(places - k, first - 1), 0)
    high = np.minimum(np.maximum(places + k, last), n - 1)
    width = scores[high] - scores[low]
    return np.divide(np.abs(coefficients[high] - coefficients[low]), width, out=np.zeros(n), where=width > 0)


def local_sums(features: Features, loss: Loss, scores: Floats, nu: float) -> Floats:
    """Return this rank's sums of a_i f'(s_i) times 1, x_i and x_i x_i' over the sample, for all rows of its class, (1 +
    p + p^2,); the first is infinite without curvature. Scores are overwritten. **Collective**: the loss is evaluated.
    """
    classes = (np.flatnonzero(loss.positive), loss.A_pos), (np.flatnonzero(loss.negative), loss.A_neg)
    samples = [(rows[:: -(-len(rows) // SAMPLE)], len(rows), size) for rows, size in classes if len(rows) >= 2]
    increasing = [scores[sample] for sample, *_ in samples]
    coefficients = loss.evaluate_in_place(scores, nu).coefficients
    p = features.shape[1]
    total, mean, matrix = 0.0, np.zeros(p), np.zeros((p, p))
    for (sample, count, size), s in zip(samples, increasing, strict=True):
        sample = sort_with_rows(s, sample)
        if len(sample) > REPEATED * (1 + np.count_nonzero(np.diff(s))):
            total = np.inf
            break
        weights = np.ones(len(sample)) if loss.weights is None else loss.weights[sample]
        second = slopes(s, coefficients[sample] / weights)
        second = np.minimum(second, 1 / (size * max(nu, EPS))) * weights * (count / len(sample))
        rows = features.row_entries(sample)
        if rows is not None:
            add_squares(rows, second, mean, matrix)
        total += float(np.sum(second))
    return np.concatenate([[total], mean, matrix.ravel()])


def add_squares(rows: RowEntries, weights: Floats, mean: Floats, matrix: Floats) -> None:
    """Add weights_i x_i to the mean (p,), and weights_i x_i x_i' to the lower half of the matrix (p, p)."""
    _add_squares(rows, weights, mean, matrix, np.empty(len(mean), np.int64), np.empty(len(mean)))


@njit(**UNCOUNTED)
def _add_squares(rows, weights, mean, matrix, columns, values):  # type: ignore[no-untyped-def]
    for i in range(len(weights)):
        a = weights[i]
        if a == 0:
            continue
        count, factor = 0, number_at(rows.row_factors, i)
        for k in range(rows.begins[i], rows.ends[i]):
            j = column_of(rows.columns, k, rows.begins[i])
            columns[count] = j
            values[count] = factor * number_at(rows.values, k) * number_at(rows.column_factors, j)
            count += 1
        if rows.constant != 0:
            columns[count], values[count] = len(mean) - 1, rows.constant
            count += 1
        for k in range(count):
            j, x = columns[k], a * values[k]
            mean[j] += x
            for other in range(k + 1):
                matrix[max(j, columns[other]), min(j, columns[other])] += x * values[other]


def factor(sums: Floats, p: int, lam: float, moments: Floats) -> Floats | None:
    """Return L (p, p), lower triangular, from the sums of all ranks; None if nothing is curved or finite. O(p^3)."""
    total, mean, matrix = sums[0], sums[1 : p + 1], sums[p + 1 :].reshape(p, p)
    if not (total > 0 and np.isfinite(sums).all()):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        H = matrix - np.outer(mean, mean) / total
        H[np.diag_indices(p)] += lam + p / SAMPLE * total * moments
        try:
            L = np.linalg.cholesky(H)  # reads the lower half
            return L if np.isfinite([L, np.linalg.inv(L)]).all() else None
        except np.linalg.LinAlgError:
            return None
