"""Brute-force implementations of the definitions: slow, short and independent of the package.

With scores from `rational`, they compute in rational numbers, without rounding errors.
"""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from itertools import combinations

import numpy as np


def rational(values):
    """Return the exact rational value of each float, as an object array."""
    return np.array([Fraction(float(v)) for v in np.ravel(values)], dtype=object)


def rocarea_pairs(positive, negative):
    """Return t_ij = 1 - (s_i - s_j) of all pairs, (n+, n-)."""
    return 1 - (np.asarray(positive)[:, None] - np.asarray(negative)[None, :])


def rocarea_risk(positive, negative):
    """Return R from all pairs."""
    t = rocarea_pairs(positive, negative)
    return np.sum(np.where(t > 0, t, 0)) / t.size


def rocarea_smoothed(positive, negative, nu):
    """Return R_mu, d, and the coefficients of P and of N, from all pairs and their beta_ij."""
    t = rocarea_pairs(positive, negative)
    beta = np.where(t <= 0, 0 * t, np.where(t >= nu, 0 * t + 1, t / nu))
    m = t.size
    value = np.sum(beta * t - nu * beta * beta / 2) / m
    return value, np.sum(beta) / m, -np.sum(beta, axis=1) / m, np.sum(beta, axis=0) / m


def pauc_risk(positive, negative, max_fpr):
    """Return R as the mean over the pairs with the K = max_fpr n- highest negatives, the last of them in part."""
    K = (positive[0] * 0 + 1) * len(negative) * (Fraction(max_fpr) if isinstance(positive[0], Fraction) else max_fpr)
    left, total = K, 0 * K
    for high in sorted(negative, reverse=True):
        if not left:
            break
        taken = min(1 + 0 * K, left)
        total, left = total + taken * sum(max(0 * K, 1 - (low - high)) for low in positive), left - taken
    return total / len(positive) / K


def pauc_smoothed(positive, negative, nu, max_fpr):
    """Return R_mu, d, and the coefficients of P and of N, from all pairs, with the root x between two kinks."""
    K = len(negative) * Fraction(max_fpr)
    zero, one = Fraction(0), Fraction(1)

    def alpha(x):
        return [min(one, max(zero, (s - x) / nu)) for s in negative]

    kinks = sorted({s - e for s in negative for e in (0, nu)})
    k = bisect_right(kinks, -K, key=lambda x: -sum(alpha(x))) - 1  # the sum falls as x rises
    x = kinks[k]
    if sum(alpha(x)) > K:
        step = kinks[k + 1] - x
        x += step * (sum(alpha(x)) - K) / (sum(alpha(x)) - sum(alpha(kinks[k + 1])))
    t = np.array([[high - max(low - 1, x) for high in negative] for low in positive])
    beta = np.array([[min(one, max(zero, value / nu)) for value in row] for row in t])
    m = len(positive) * K
    value = np.sum(beta * t - nu * beta * beta / 2) + K * sum(max(zero, x - (low - 1)) for low in positive)
    return value / m, np.sum(beta) / m, -np.sum(beta, axis=1) / m, np.sum(beta, axis=0) / m


def prbep_risk(positive, negative):
    """Return R as the maximum over k of swapping the k lowest positives with the k highest negatives."""
    n_pos, n = len(positive), len(positive) + len(negative)
    low, high = sorted(positive), sorted(negative, reverse=True)
    one = low[0] * 0 + 1
    return max(
        one * k / n_pos + (sum(high[:k], 0 * one) - sum(low[:k], 0 * one)) * 2 / n
        for k in range(min(n_pos, len(negative)) + 1)
    )


def prbep_risk_by_labelings(positive, negative):
    """Return R as the maximum over all labelings z with n+ rows called positive. Only for tiny n."""
    scores = np.concatenate([positive, negative])
    y = np.concatenate([np.ones(len(positive)), -np.ones(len(negative))])
    n, n_pos = len(y), len(positive)
    best = -np.inf
    for called in combinations(range(n), n_pos):  # b = c means that n+ rows are called positive
        z = -np.ones(n)
        z[list(called)] = 1
        b = np.sum((y > 0) & (z < 0))
        best = max(best, b / n_pos + np.sum(scores * (z - y)) / n)
    return best


def prbep_risk_as_svm(positive, negative):
    """Return R as the hinge loss of an SVM: min over b of 1/(2 n+) sum max(0, 1 - y_i (4 n+/n)(s_i - b)).

    The loss is convex and piecewise linear in b, so its minimum is at a kink.
    """
    n_pos, n = len(positive), len(positive) + len(negative)
    one = positive[0] * 0 + 1
    slope = one * 4 * n_pos / n
    signed = [(1, s) for s in positive] + [(-1, s) for s in negative]

    def loss(b):
        return sum(max(0 * one, 1 - y * slope * (s - b)) for y, s in signed) / (2 * n_pos)

    return min(loss(s - y / slope) for y, s in signed)


def prbep_smoothed(positive, negative, nu):
    """Return R_mu, d, and the coefficients of P and of N, from the dual of the concave problem in beta.

    The problem is max over beta in [0, 1]^n with sum_P beta = sum_N beta of
    1/n+ sum_P beta - 2/n sum_i y_i s_i beta_i - mu/2 sum beta^2, with mu = 2 nu / n. Bisection finds the two kinks
    between which the multiplier of the constraint is; on this linear piece it is computed exactly.
    """
    n_pos, n = len(positive), len(positive) + len(negative)
    mu = nu * 2 / n
    one = mu * 0 + 1
    gain_pos = [one / n_pos - s * 2 / n for s in positive]  # the gain per unit of beta, for each row of P
    gain_neg = [s * 2 / n for s in negative]

    def beta(gain, price):
        return [min(one, max(0 * one, (g - price) / mu)) for g in gain]

    def excess(price):  # falls as the price rises
        return sum(beta(gain_pos, price)) - sum(beta(gain_neg, -price))

    kinks = sorted({g - e for g in gain_pos for e in (0, mu)} | {-(g - e) for g in gain_neg for e in (0, mu)})
    low, high = 0, len(kinks) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if excess(kinks[middle]) >= 0 else (low, middle)
    a, b = kinks[low], kinks[high]
    e_a, e_b = excess(a), excess(b)
    price = a if e_a == e_b else a + (b - a) * e_a / (e_a - e_b)
    beta_pos, beta_neg = beta(gain_pos, price), beta(gain_neg, -price)
    linear = sum(x * g for x, g in zip(beta_pos, gain_pos, strict=True))
    linear += sum(x * g for x, g in zip(beta_neg, gain_neg, strict=True))
    value = linear - mu / 2 * (sum(x * x for x in beta_pos) + sum(x * x for x in beta_neg))
    d = sum(beta_pos) / n_pos
    return value, d, [-x * 2 / n for x in beta_pos], [x * 2 / n for x in beta_neg]


def contingency(measure, parameter, n_pos, n_neg):
    """Return the exact function Delta(b, c), and the number of rows that z calls positive (None: any number)."""
    beta2 = Fraction(parameter or 1) ** 2

    def delta(b, c):
        tp = n_pos - b
        if measure == "error-rate":
            return Fraction(b + c, n_pos + n_neg)
        if measure == "f-beta":
            return 1 - (1 + beta2) * tp / ((1 + beta2) * tp + beta2 * b + c) if tp else Fraction(1)
        return 1 - Fraction(tp, parameter if measure == "precision@k" else n_pos)

    return delta, parameter if measure.endswith("@k") else None


def contingency_risk(measure, parameter, positive, negative, sums):
    """Return R = max over z of max(0, Delta + 1/n sum_i s_i (z_i - y_i)).

    sums : function that returns the sizes and sums of the sets of rows that z may get wrong in a class.
    """
    delta, calls = contingency(measure, parameter, len(positive), len(negative))
    n = len(positive) + len(negative)
    lowest, highest = {}, {}  # the best sum of each size, since Delta depends on the sizes alone
    for b, missed in sums(positive, False):
        lowest[b] = min(missed, lowest.get(b, missed))
    for c, wrong in sums(negative, True):
        highest[c] = max(wrong, highest.get(c, wrong))
    return max(
        [Fraction(0)]
        + [
            delta(b, c) + (wrong - missed) * 2 / n
            for b, missed in lowest.items()
            for c, wrong in highest.items()
            if calls in (None, len(positive) - b + c)
        ]
    )


def all_subsets(scores, _):
    """Return (size, sum) of every subset of a class, so that all labelings are tried."""
    found = [(0, Fraction(0))]
    for score in scores:
        found += [(size + 1, total + score) for size, total in found]
    return found


def extreme_subsets(scores, largest):
    """Return (size, sum) of the best subset of each size, found by sorting."""
    found = [(0, Fraction(0))]
    for score in sorted(scores, reverse=largest):
        found.append((len(found), found[-1][1] + score))
    return found


def orders(positive, negative):
    """Return for all pairs, (n+, n-), 1 if they are in the right order, 0.5 for a tie, and otherwise 0."""
    difference = np.asarray(positive)[:, None] - np.asarray(negative)[None, :]
    return (difference > 0) + 0.5 * (difference == 0)


def rocarea(positive, negative):
    """Return ROCArea from all pairs."""
    return float(np.mean(orders(positive, negative)))


def true_positives_at(positive, negative, k):
    """Return the number of positives among the k highest, as the mean over all orders of the tied rows."""
    scores = np.concatenate([positive, negative])
    y = np.concatenate([np.ones(len(positive)), np.zeros(len(negative))])
    at = np.sort(scores)[::-1][k - 1]
    sure, tied = y[scores > at], y[scores == at]
    ways = [np.sum(sure) + np.sum(tied[list(chosen)]) for chosen in combinations(range(len(tied)), k - len(sure))]
    return float(np.mean(ways))


def prbep(positive, negative):
    """Return PRBEP: the precision among the n+ highest."""
    return true_positives_at(positive, negative, len(positive)) / len(positive)
