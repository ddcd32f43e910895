"""The minimum of the pairwise square for any lambda, from the moments of both classes, with a proof.

With the means m+ and m- of the classes, their covariances C+ and C-, delta = m+ - m- and S = C+ + C-, the objective of
`distsms.losses.normal_auc` is

    J(w) = lambda/2 ||w||^2 + (t^2 + w'Sw) / 2,   t = 1 - w'delta

Its minimum is at w = u / (1 + u'delta), u = (S + lambda I)^-1 delta, and is 1 / (2 (1 + u'delta)). So all lambdas and
all folds of a path need one pass over the rows. The bound that is reported does not rely on the accuracy of w: J is
strongly convex, so at any w, with the gradient g = Sw - t delta + lambda w, min J >= J(w) - ||g||^2 / (2 lambda).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy

from distsms.base.measures import Measure
from distsms.base.typing import Floats
from distsms.matrix.moments import Moments

EPS = float(np.finfo(float).eps)
PRODUCTS, BLAS = 50, 8
"""An iteration takes about as many products of X with a vector for a model as `PRODUCTS` says. A product of matrices
takes the time of a product with a vector that has so many times fewer operations.
"""
MOST_BYTES = 2**30
"""The moments may take at most this much memory on a rank."""


class Solution(NamedTuple):
    """The minimum for one lambda.

    Attributes
    ----------
    w : ndarray of shape (p,)
        The coefficients.
    J, R : float
        The objective and the risk at w.
    lower_bound, gap : float
        A proved lower bound on J, and J minus this bound. Both include what rounding may change, in the moments, too.
    delta : ndarray of shape (p,)
        The difference of the mean rows of the classes.
    rocarea : float
        ROCArea of w if the scores of each class have a normal distribution.
    """

    w: Floats
    J: float
    R: float
    lower_bound: float
    gap: float
    delta: Floats
    rocarea: float


def solve(classes: Moments, lam: float) -> Solution:
    """Return the minimum of J for one lambda. Local; p^3 / 3 operations, three matrices (p, p).

    Parameters
    ----------
    classes : Moments
        The moments of two groups: the positive rows and the negative rows.
    lam : float
        The weight of the regularizer.

    Notes
    -----
    Rounding: let q_j^2 be the sum of both classes' mean squares of column j. A sum of n products is wrong by at most n
    EPS/2 times the sum of their sizes, so by the inequality of Cauchy and Schwarz each S_jk is wrong by at most c q_j
    q_k, and delta_j by c q_j, where c = EPS (2 n + p + 64) leaves room for the roundings of each product, of means and
    of merging. With T = sum_j |w_j| q_j, then t is wrong by at most c T, and g_j by c q_j (3 T + |t| + c T).
    """
    mass = np.where(classes.mass > 0, classes.mass, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that are not finite are seen below
        delta = classes.mean[0] - classes.mean[1]
        S = classes.scatter[0] / mass[0] + classes.scatter[1] / mass[1]
        sizes = np.sqrt(np.diag(S) + classes.mean[0] ** 2 + classes.mean[1] ** 2)
    p = len(delta)
    if not (np.isfinite(S).all() and np.isfinite(sizes).all() and np.all(classes.mass > 0)):
        return Solution(np.zeros(p), 0.5, 0.5, -math.inf, math.inf, delta, 0.5)
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
    gap = J + rounding - bound
    if not math.isfinite(gap):
        return Solution(np.zeros(p), 0.5, 0.5, -math.inf, math.inf, delta, 0.5)
    ahead, deviation = float(w @ delta), math.sqrt(variance)
    area = float(scipy.special.ndtr(ahead / deviation)) if deviation else 0.5 + 0.5 * float(np.sign(ahead))
    return Solution(w, J, R, bound, gap, delta, area)


def bytes_of_moments(
    measure: str | Measure, n: int, p: int, entries: int, coded: bool, losses: int = 1, l1: float = 0.0
) -> int:
    """Return the memory that the closed form takes on each rank; 0 if the measure is another, or iterating costs less.

    This is the one place that decides between the two. Local.

    Parameters
    ----------
    measure : str or Measure
        What is trained for.
    n, p, entries : int
        The numbers of rows, columns and stored entries, of all ranks.
    coded : bool
        Whether some columns are stored as codes, for which there is no closed form.
    losses : int
        How many sets of rows there are to train on: 1, or one more than there are folds.
    l1 : float
        The weight of ||w||_1; with a positive one there is no closed form.
    """
    if not Measure.parse(measure).family.closed_form or coded or l1 or not n:
        return 0
    dense = entries >= n * p / 2
    gathering = n * p**2 / BLAS if dense else entries**2 / n
    work = gathering + losses * p**3 / (3 * BLAS)
    memory = 8 * p**2 * (2 * losses + 5)
    return memory if work <= losses * PRODUCTS * entries and memory <= MOST_BYTES else 0
