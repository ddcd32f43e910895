"""The regularizer lambda/2 ||w||^2 of equation (1), and its conjugate, by which a plane gives a lower bound on J."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError


@dataclass(frozen=True)
class SquaredNorm:
    """Omega(w) = lam/2 ||w||^2, with lam > 0.

    Some methods take the squared norm of a vector, since the vector itself may be distributed over ranks.
    """

    lam: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.lam) and self.lam > 0):
            raise InputError(f"lambda is {self.lam}; it must be a positive number")

    def value(self, norm2: float) -> float:
        """Return Omega(w) from norm2 = ||w||^2."""
        return 0.5 * self.lam * norm2

    def add_gradient(self, w: NDArray[np.float64], gradient: NDArray[np.float64]) -> None:
        """Add lam w to the gradient, in place; both are (p,)."""
        gradient += self.lam * w

    def conjugate(self, norm2: float) -> float:
        """Return Omega*(-r) = max_w [ -<r, w> - Omega(w) ] = ||r||^2 / (2 lam) from norm2 = ||r||^2."""
        return 0.5 * norm2 / self.lam

    def minimizer(self, r: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return argmin_w [ <r, w> + Omega(w) ] = -r / lam, where the conjugate is attained; (p,)."""
        return -r / self.lam
