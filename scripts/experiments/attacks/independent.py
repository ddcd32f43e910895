"""Minimizers by Clarabel, an interior-point solver: J as a quadratic program, one for each kind of measure.

ROCArea, all pairs:      R = 1/m sum xi_ij                     xi_ij >= 1 - (s_i - s_j), xi >= 0
pauc@BETA, K = BETA n-:  R = 1/(n+ K) (K tau + sum eta_j)      eta_j >= sum_i xi_ij - tau, eta >= 0, xi as for ROCArea
error rate:              R = 2/n sum xi_i                      xi_i >= 1/2 - y_i s_i, xi >= 0
PRBEP, by duality over sum_P beta = sum_N beta, an L1-hinge SVM with a free intercept:
                         R = 1/(2 n+) sum xi_i                 xi_i >= 1 - y_i (4 n+ / n) (s_i - b), xi >= 0
the others, by tables:   R = v >= 0,  v >= Delta(b, c) + 2/n (C_c - B_b) with the sum of the c largest numbers
                         C_c = c tau_c + sum_j xi_cj,          xi_cj >= s_j - tau_c, xi >= 0, and -B_b likewise

The results are only candidates for the minimizer. `oracle` computes J at these points.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.base.typing import Floats
from scripts.experiments.attacks import oracle
from tests.support import oracles

MOST_TABLES = 15
"""The largest number of rows for which programs over tables are solved, since they have O(n^2) variables."""


def minimizers(X: Floats, y: NDArray[np.int8], measure: str, lam: float) -> Iterator[oracle.Point]:
    """Yield points w (p,) that approximately minimize J, if Clarabel is installed and finds any.

    The program is solved four times, in variables v with w = B v. B is the identity, or it has the principal axes of
    the rows as its columns. Its columns are scaled so that the rows have size 1, or so that the regularizer has. X B is
    computed exactly and rounded once, so that small differences between nearly equal rows are not lost. For some
    problems only one of the four results is good.
    """
    try:
        import clarabel
    except ImportError:
        return
    if measure.startswith("pauc"):
        program = _head
    elif "@" in measure or measure.startswith("f"):
        if len(y) > MOST_TABLES:
            return
        program = _tables
    else:
        program = {"rocarea": _pairs, "error-rate": _rows, "prbep": _balanced}[measure]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    settings.max_iter = 100
    n, p = X.shape
    sizes = _sizes(X)
    axes = np.linalg.svd(X / sizes)[2].T / sizes[:, None] if p <= 2 * n else np.linalg.svd(X, full_matrices=False)[2].T
    rows = oracle.whole(X)
    for B in (np.eye(p), axes):
        basis = oracle.whole(B)
        Z = (np.dot(rows.whole, basis.whole) * (rows.unit * basis.unit)).astype(float)
        for scale in (1 / _sizes(Z), (lam * np.sum(B * B, axis=0)) ** -0.5):
            q, A, low = program(Z * scale, y, measure)
            P = np.zeros((len(q), len(q)))
            P[: len(scale), : len(scale)] = lam * (B * scale).T @ (B * scale)
            cones = [clarabel.NonnegativeConeT(len(low))]
            quadratic = sparse.csc_matrix(np.triu(P))
            found = clarabel.DefaultSolver(quadratic, q, sparse.csc_matrix(-A), -low, cones, settings).solve()
            v = np.array(found.x[: len(scale)]) * scale
            if np.isfinite(v).all():
                point = oracle.whole(v)
                yield oracle.Point(np.dot(basis.whole, point.whole), basis.unit * point.unit)


def _sizes(X: Floats) -> Floats:
    sizes = np.max(np.abs(X), axis=0)
    return np.where(sizes > 0, sizes, 1.0)


Program = tuple[Floats, Any, Floats]
"""min w'Pw / 2 + q'x over A x >= low, x beginning with w (p,): q (k,), A (m, k), low (m,)."""


def _hinges(scores: Any, low: Floats, price: float, free: int = 0) -> Program:
    """Return the program with R = price * sum xi, where xi_i >= low_i - <scores_i, w> and xi >= 0.

    scores : (m, p). low : (m,).
    """
    m, p = scores.shape
    q = np.append(np.zeros(p), np.full(m, price))
    A = sparse.bmat([[scores, sparse.eye(m)], [None, sparse.eye(m)]])
    return q, A, np.append(low, np.zeros(m))


def _pairs(X: Floats, y: NDArray[np.int8], measure: str) -> Program:
    differences = (X[y > 0][:, None, :] - X[y < 0][None, :, :]).reshape(-1, X.shape[1])
    m = len(differences)
    return _hinges(differences, np.ones(m), 1 / m)


def _head(X: Floats, y: NDArray[np.int8], measure: str) -> Program:
    """Return the program of pauc: the sum of the K largest of k numbers is the least K tau + sum (number - tau)_+."""
    n_pos, n_neg = int(np.sum(y > 0)), int(np.sum(y < 0))
    K = float(measure[5:]) * n_neg
    differences = (X[y > 0][:, None, :] - X[y < 0][None, :, :]).reshape(-1, X.shape[1])
    m, p = differences.shape
    of_negative = np.tile(-np.eye(n_neg), n_pos)  # the xi of a negative row
    q = np.concatenate([np.zeros(p), np.zeros(m), [1 / n_pos], np.full(n_neg, 1 / (n_pos * K))])
    one = np.ones((n_neg, 1))
    A = sparse.bmat(
        [
            [differences, sparse.eye(m), None, None],
            [None, sparse.csr_matrix(of_negative), one, sparse.eye(n_neg)],
            [sparse.csr_matrix((m, p)), sparse.eye(m), None, None],
            [None, None, None, sparse.eye(n_neg)],
        ]
    )
    return q, A, np.concatenate([np.ones(m), np.zeros(n_neg), np.zeros(m), np.zeros(n_neg)])


def _rows(X: Floats, y: NDArray[np.int8], measure: str) -> Program:
    return _hinges(y[:, None] * X, np.full(len(y), 0.5), 2 / len(y))


def _balanced(X: Floats, y: NDArray[np.int8], measure: str) -> Program:
    n, n_pos = len(y), int(np.sum(y > 0))
    with_intercept = np.column_stack([X, -np.ones(n)])
    return _hinges(4 * n_pos / n * y[:, None] * with_intercept, np.ones(n), 1 / (2 * n_pos))


def _tables(X: Floats, y: NDArray[np.int8], measure: str) -> Program:
    """Return the program over contingency tables.

    Its variables are w, v and, for each class and each count k = 1, 2, ..., tau_k and one xi for each row.
    """
    n, p = X.shape
    sides = (-X[y > 0], X[y < 0])
    starts, place = [], p + 1
    for rows in sides:
        starts.append(place)
        place += len(rows) * (len(rows) + 1)
    entries: list[Any] = []
    low: list[float] = []

    def constraint(coefficients: dict[int, float], least: float) -> None:
        entries.extend((len(low), column, value) for column, value in coefficients.items())
        low.append(least)

    constraint({p: 1.0}, 0.0)
    for rows, start in zip(sides, starts, strict=True):
        m = len(rows)
        for k in range(m):
            tau = start + k * (m + 1)
            for j in range(m):
                xi = tau + 1 + j
                constraint({xi: 1.0}, 0.0)
                constraint({xi: 1.0, tau: 1.0, **{i: -rows[j, i] for i in range(p) if rows[j, i]}}, 0.0)
    family, parameter = (measure.split("@")[0] + "@k", int(measure.split("@")[1])) if "@" in measure else (None, None)
    delta, calls = oracles.contingency(
        family or "f-beta", parameter or float(measure[1:]), len(sides[0]), len(sides[1])
    )

    def largest(side: int, k: int) -> dict[int, float]:
        m = len(sides[side])
        tau = starts[side] + (k - 1) * (m + 1)
        return {tau: -2.0 * k / n, **dict.fromkeys(range(tau + 1, tau + 1 + m), -2.0 / n)} if k else {}

    for b in range(len(sides[0]) + 1):
        for c in range(len(sides[1]) + 1):
            if calls in (None, len(sides[0]) - b + c):
                constraint({p: 1.0, **largest(0, b), **largest(1, c)}, float(delta(b, c)))
    row, column, value = zip(*entries, strict=True)
    A = sparse.csr_matrix((value, (row, column)), (len(low), place))
    q = np.zeros(place)
    q[p] = 1.0
    return q, A, np.array(low)
