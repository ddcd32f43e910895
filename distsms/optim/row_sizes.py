"""Bounds on rounding errors that follow from the sizes of the rows, without a pass over the data.

They are weaker than those of `distsms.optim.objective`, but on rows of usual sizes far smaller than any gap to prove.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from distsms.base.typing import Floats
from distsms.matrix.base import RowEntries

EPS = float(np.finfo(float).eps)


class RowSizes(NamedTuple):
    """The largest sizes of those rows of all ranks that the risk depends on.

    Attributes
    ----------
    length : float
        The largest ||x_i||.
    terms : float
        The largest (entries + 4) ||x_i||.
    additions : float
        At least the number of additions that make one entry of X'c: the number of rows and of ranks, and 8.
    """

    length: float
    terms: float
    additions: float

    def plane_error(self, more: float = 0.0) -> float:
        """Return a bound on the length of the rounding error of any r, with `more` additions for a coefficient.

        r_j is a sum of at most n terms c_i x_ij, so its error is at most `additions` eps/2 sum_i |c_i x_ij|. The length
        of this vector is at most `additions` eps/2 sum_i |c_i| ||x_i||, and the |c_i| sum to at most 2.
        """
        return (self.additions + more) * EPS * self.length

    def margin_terms(self, norm: float) -> float:
        """Return at least what `Features.largest_terms` returns at any w of this norm, also with a constant column.

        sum_j |x_ij w_j| is at most ||x_i|| ||w||, and the constant column adds half (see `distsms.matrix.augmented`).
        """
        return 1.5 * self.terms * norm

    def loss_of_proof(self, largest: float, lam: float) -> float:
        """Return by how much both bounds may weaken a proof, where J at w = 0 is `largest`.

        No w counts whose lambda/2 ||w||^2 is larger, and no mixture m of planes with a larger ||m||^2 / (2 lambda).
        """
        norm, error = math.sqrt(2 * largest / lam), self.plane_error()
        return error * norm + 0.5 * error * error / lam + 2 * EPS * self.margin_terms(norm)


def row_sizes(rows: RowEntries, squares: Floats, counts: Floats, ranks: int) -> RowSizes:
    """Return the sizes of rows with the squares ||x_i||^2; those with a count of 0 are left out."""
    kept = np.flatnonzero(counts)
    lengths, entries = np.sqrt(squares[kept]), (rows.ends - rows.begins)[kept]
    return RowSizes(
        float(np.max(lengths, initial=0.0)),
        float(np.max((entries + 4) * lengths, initial=0.0)),
        float(len(squares) + ranks + 8),
    )
