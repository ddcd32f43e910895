"""The regularizer Omega, lambda/2 ||w||^2 or the elastic net; by its conjugate Omega*, planes bound J from below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distsms.base.errors import InputError
from distsms.base.measures import SMALLEST_LAMBDA
from distsms.base.typing import Floats


@dataclass(frozen=True)
class ElasticNet:
    """Omega(w) = l1 ||w||_1 + lam/2 ||w||^2, with lam > 0; Omega*(-r) = ||S(r)||^2 / (2 lam), S soft thresholding by
    l1. Gradients are those of lam/2 ||w||^2. Vectors may be slices, so methods take squared norms and sums.
    """

    lam: float
    l1: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.lam) and self.lam >= SMALLEST_LAMBDA):
            raise InputError(f"lambda is {self.lam}; it must be a finite number of at least {SMALLEST_LAMBDA:g}")
        if not (np.isfinite(self.l1) and self.l1 >= 0):
            raise InputError(f"l1 is {self.l1}; it must be a positive number, or 0 for none")

    def value(self, norm2: float, length: float = 0.0) -> float:
        """Return Omega(w) from ||w||^2 and, if there is an l1, ||w||_1."""
        return 0.5 * self.lam * norm2 + self.l1 * length

    def gradient(self, w: Floats, r: Floats) -> Floats:
        gradient: Floats = self.lam * w
        gradient += r
        return gradient

    def sums(self, w: Floats, r: Floats, gradient: Floats) -> list[float]:
        """Return the numbers of a slice that `value_and_gap` takes: their sums over slices are those of the vectors."""
        if not self.l1:
            return [np.dot(w, w), np.dot(gradient, gradient)]
        excess = soft_threshold(r, self.l1)
        return [np.dot(w, w), np.dot(excess, excess), np.sum(np.abs(w))]

    def value_and_gap(self, sums: Sequence[float], rw: float) -> tuple[float, float]:
        """Return Omega(w), and Omega(w) + Omega*(-r) + <r, w>, by which r proves J_mu to be near its minimum."""
        if not self.l1:
            return self.value(sums[0]), self.conjugate(sums[1])
        omega = self.value(sums[0], sums[2])
        return omega, omega + self.conjugate(sums[1]) + rw

    def conjugate(self, norm2: float) -> float:
        """Return Omega*(-r) = max_w [ -<r, w> - Omega(w) ] from norm2 = ||S(r)||^2."""
        return 0.5 * norm2 / self.lam

    def minimizer(self, r: Floats) -> Floats:
        """Return argmin_w [ <r, w> + Omega(w) ] = -S(r) / lam, where the conjugate is attained; (p,)."""
        return -soft_threshold(r, self.l1) / self.lam


def soft_threshold(vector: Floats, threshold: float | Floats) -> Floats:
    """Return sign(v) max(|v| - threshold, 0) for each entry v."""
    return vector - np.clip(vector, -threshold, threshold) if np.any(threshold) else vector
