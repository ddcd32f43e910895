"""A constant feature beside those that the data have: its weight is the model's bias (JMLR, section 5.1).

It is regularized like every other weight, so a larger value makes a bias cheaper. ROCArea and PRBEP do not see it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distsms.matrix.base import Features
from distsms.utils.typing import Floats


class WithConstant:
    """The rows [x_i, value] of features with rows x_i, which are not copied; the constant is the last column.

    value : above 0.  See `distsms.matrix.local` for the methods. Local.
    """

    def __init__(self, features: Features, value: float) -> None:
        self._features, self._value = features, value

    @property
    def shape(self) -> tuple[int, int]:
        """(n_local, p + 1)."""
        return self._features.shape[0], self._features.shape[1] + 1

    def margins(self, W: Floats, out: Floats | None = None) -> Floats:
        """[X, value] W: W (p + 1,) or (k, p + 1) -> (n_local,) or (k, n_local), into `out` if given."""
        out = self._features.margins(W[..., :-1], out)
        out += self._value * W[..., -1:]
        return out

    def transposed_times(self, C: Sequence[Floats] | Floats, out: Floats | None = None) -> Floats:
        """[X, value]' C: C (n_local,) or k of them -> (p + 1,) or (k, p + 1), to be summed over ranks."""
        inner = self._features.transposed_times(C)
        out = np.empty((*inner.shape[:-1], inner.shape[-1] + 1)) if out is None else out
        out[..., :-1] = inner
        out[..., -1] = self._value * np.array([np.sum(c) for c in C] if inner.ndim == 2 else np.sum(C))
        return out

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
        with np.errstate(over="ignore"):
            return np.append(self._features.second_moments(), self.shape[0] * np.square(self._value))
