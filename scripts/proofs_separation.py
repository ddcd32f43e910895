"""The separation with which the paper proves its lower bounds for cutting planes (JMLR, sections 2.2 and 2.3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from distsms.data.synthetic.lower_bounds import PrbepLowerBound, RocAreaLowerBound
from distsms.losses.base import Loss, LossValue
from distsms.utils.typing import Floats


class ProofsSeparation:
    """The exact risk of a construction's rows, in place of their loss, with ties broken as the proofs break them.

    Of the negatives that the subgradient may be made from it takes one alone, and one that it has not taken before, as
    long as there is one; a loss's own separation takes all of them at once. On one rank that holds all rows.
    """

    TIE = 1e-9

    def __init__(self, source: PrbepLowerBound | RocAreaLowerBound, loss: Loss) -> None:
        self.loss = loss
        self.weight = 2 / source.n if source.measure == "prbep" else 1 / source.size  # one negative's, in R
        self.d = 1.0 if source.measure == "prbep" else self.weight
        self.taken = np.arange(source.n) == 0  # row 1 is the positive one

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        """See `Loss.evaluate`; nu is not used."""
        value = self.loss.evaluate(scores, 0.0)
        planes = self.weight * (scores - scores[0]) + self.d
        new = np.flatnonzero((np.abs(planes - value.R) < self.TIE) & ~self.taken)
        if not len(new):
            return value
        self.taken[new[0]] = True
        coefficients = np.zeros(len(scores))
        coefficients[0], coefficients[new[0]] = -self.weight, self.weight
        return value._replace(d=self.d, coefficients=coefficients)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loss, name)
