"""The second derivatives of J_mu, estimated from a sample of rows, for ROCArea.

The coefficient of a row is a function of its score alone, the same for all rows of a class but for their weights:
c_i = a_i f(s_i). So its slope a_i f'(s_i) is how much c_i differs between rows with neighbouring scores. The matrix is

    H = sum_i a_i f'(s_i) (x_i - m)(x_i - m)' + lambda I,     m the mean of the x_i with these weights

The true one has (x_i - x_j)(x_i - x_j)' for pairs whose hinge is curved, and H treats all pairs alike.
"""

from __future__ import annotations

import numpy as np

from distsms.base.jit import njit
from distsms.base.typing import Floats
from distsms.losses.base import Loss
from distsms.losses.sorting import sort_with_rows
from distsms.matrix.base import Features, RowEntries
from distsms.optim.rows import column_of, number_at

EPS = float(np.finfo(float).eps)
SAMPLE = 2**13
"""The most rows of each class on a rank that are taken, at equal distances."""
REPEATED = 10
"""If a score occurs so often, on average, the risk has kinks in place of a curvature, and H is not used."""
NEIGHBOURS = 16
"""A slope is that between the rows that are so many places before and after a row."""


def slopes(scores: Floats, coefficients: Floats) -> Floats:
    """Return |f'(s_i)| for rows of one class from their increasing scores and f(s_i), (n,). Local; O(n)."""
    n = len(scores)
    k, places, steps = max(1, min(NEIGHBOURS, n // 50)), np.arange(n), np.flatnonzero(scores[1:] > scores[:-1]) + 1
    starts, run = np.append(0, steps), np.repeat(np.arange(len(steps) + 1), np.diff(steps, prepend=0, append=n))
    first, last = starts[run], np.append(steps, n)[run]  # of the rows with the same score
    low = np.maximum(np.minimum(places - k, first - 1), 0)
    high = np.minimum(np.maximum(places + k, last), n - 1)
    width = scores[high] - scores[low]
    return np.divide(np.abs(coefficients[high] - coefficients[low]), width, out=np.zeros(n), where=width > 0)


def local_sums(features: Features, loss: Loss, scores: Floats, nu: float) -> Floats:
    """Return this rank's sums of a_i f'(s_i) times 1, x_i and x_i x_i' over the sample, in one array (1 + p + p^2,).

    The rows of a class that are left out are counted like those of the sample. The first number is infinite if there is
    no curvature to speak of. The scores are overwritten. **Collective**, since the loss is evaluated.
    """
    classes = [
        (np.flatnonzero(rows), size) for rows, size in ((loss.positive, loss.A_pos), (loss.negative, loss.A_neg))
    ]
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


@njit()
def add_squares(rows: RowEntries, weights: Floats, mean: Floats, matrix: Floats) -> None:
    """Add weights_i x_i to the mean (p,), and weights_i x_i x_i' to the lower half of the matrix (p, p).

    Rows whose weight is 0 are passed over.
    """
    p = len(mean)
    columns, values = np.empty(p, np.int64), np.empty(p)
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
            columns[count], values[count] = p - 1, rows.constant
            count += 1
        for k in range(count):
            j, x = columns[k], a * values[k]
            mean[j] += x
            for other in range(k + 1):
                matrix[max(j, columns[other]), min(j, columns[other])] += x * values[other]


def factor(sums: Floats, p: int, lam: float, moments: Floats) -> Floats | None:
    """Return L, lower triangular (p, p), from the sums of all ranks; None if nothing is curved, or not finite.

    Columns that the sample hardly has get a small share of their mean squares `moments` (p,), so that steps along them
    are not too long. Local; O(p^3).
    """
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
