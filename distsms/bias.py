"""A constant feature beside those that the data have: its weight is the model's bias (JMLR, section 5.1).

It is regularized like every other weight, so a larger value makes a bias cheaper. ROCArea and PRBEP do not see it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distsms.features import Features

Floats = NDArray[np.float64]


class WithConstant:
    """The rows [x_i, value] of features with rows x_i, which are not copied; the constant is the last column.

    value : above 0.  See `distsms.features` for the methods. Local.
    """

    def __init__(self, features: Features, value: float) -> None:
        self._features, self._value = features, value

    @property
    def shape(self) -> tuple[int, int]:
        """(n_local, p + 1)."""
        return self._features.shape[0], self._features.shape[1] + 1

    def margins(self, W: Floats) -> Floats:
        """[X, value] W: (n_local,) or (n_local, k)."""
        return self._features.margins(W[:-1]) + self._value * W[-1]

    def transposed_times(self, C: Floats) -> Floats:
        """[X, value]' C: (p + 1,) or (p + 1, k), to be summed over ranks."""
        return np.concatenate([self._features.transposed_times(C), self._value * np.sum(C, axis=0, keepdims=True)])

    def largest_terms(self, w: Floats) -> float:
        """As for features: eps/2 of it bounds what rounding does to a margin.

        With S = sum_j |x_ij w_j| and B the constant's term, rounding B and adding it to X w come to at most eps/2
        (S + 2 B), to first order, and S is at most half of what the features answer, (entries + 2) S.
        """
        return 1.5 * self._features.largest_terms(w[:-1]) + 3.0 * self._value * abs(float(w[-1]))

    def columns(self) -> tuple[Floats, Floats]:
        """The largest |x_ij| of each column and its count of entries: (p + 1,) each."""
        largest, counts = self._features.columns()
        rows = self.shape[0]
        return np.append(largest, self._value if rows else 0.0), np.append(counts, float(rows))

    def second_moments(self) -> Floats:
        """sum_i x_ij^2 of each column: (p + 1,), to be summed over ranks."""
        return np.append(self._features.second_moments(), self.shape[0] * self._value**2)
