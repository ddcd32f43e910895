"""What is known of the paper's lower-bound data (JMLR, sections 2.2 and 2.3): iterates of cutting planes, and w*."""

from __future__ import annotations

import numpy as np

C = np.sqrt(2) / 4


def iterates(source):
    """Return the number of iterates that equation (10) or (12) gives."""
    return source.size - (source.measure == "prbep")


def iterate(source, k):
    """Return w_k of equation (10) or (12), from k = 1."""
    if source.measure == "prbep":
        return _vector(source, [2 * C, 2 * C], k, 2 * C / k)
    return _vector(source, [1 / np.sqrt(source.size)], k, 1 / k)


def J(source, k):
    """Return J at w_k."""
    return (2 + 1 / k) / 4 if source.measure == "prbep" else (1 / source.size + 1 / k) / 2


def minimizer(source):
    """Return w*: w_n times a factor for the most iterates."""
    n = iterates(source)
    factor = 1 / (1 + 1 / (2 * n)) if source.measure == "prbep" else 0.5
    return factor * iterate(source, n)


def _vector(source, entries, count, value):
    """Return the vector with these entries from column 2 on, and with `value` in `count` columns behind them."""
    w = np.zeros(source.p)
    w[1 : 1 + len(entries)] = entries
    w[1 + len(entries) : 1 + len(entries) + count] = value
    return w
