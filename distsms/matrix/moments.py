"""Means and covariances of groups of rows in one pass, merged over batches, groups and ranks: for each group the mass,
the mean row m, and the scatter sum_i a_i (x_i - m)(x_i - m)'. That of two sets with means d apart is the sum of both
and of mass_a mass_b / (mass_a + mass_b) d d' (Chan, Golub & LeVeque, 1983).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats


@dataclass(frozen=True)
class Moments:
    """The moments of k groups of rows with p columns. They are not finite where squares overflow."""

    count: NDArray[np.int64]  # (k,): the number of rows of each group
    mass: Floats  # (k,): the sum of their weights
    mean: Floats  # (k, p): the weighted mean of their rows; 0 in a group without mass
    scatter: Floats  # (k, p, p): the weighted sums of the products of their deviations from the mean

    @classmethod
    def empty(cls, k: int, p: int) -> Moments:
        return cls(np.zeros(k, np.int64), np.zeros(k), np.zeros((k, p)), np.zeros((k, p, p)))

    @np.errstate(over="ignore", invalid="ignore")
    def include(self, group: int, other: Moments) -> None:
        """Add the rows of the only group of `other` to one of these groups, in place."""
        whole = self.mass[group] + other.mass[0]
        self.count[group] += other.count[0]
        if not whole:
            return
        gap, share = other.mean[0] - self.mean[group], other.mass[0] / whole
        self.scatter[group] += other.scatter[0]
        self.scatter[group] += (self.mass[group] * share) * np.outer(gap, gap)
        self.mean[group] += share * gap
        self.mass[group] = whole

    def add(self, other: Moments) -> None:
        """Add the rows of each group of `other` to the same group of these, in place."""
        for group in range(len(self.count)):
            self.include(group, other.union([group]))

    def union(self, groups: Sequence[int] | NDArray[np.intp]) -> Moments:
        """Return the moments, as one group, of the rows of some groups."""
        union = Moments.empty(1, self.mean.shape[1])
        for group in groups:
            union.include(0, Moments(*(part[group : group + 1] for part in vars(self).values())))
        return union

    @np.errstate(over="ignore", invalid="ignore")
    def over_ranks(self, comm: Communicator) -> Moments:
        """Return the moments of all ranks' rows; overwrites these. **Collective**: k (p + 2) and k p^2 numbers."""
        count, mass = comm.sum(self.count.copy()), comm.sum(self.mass.copy())
        mean = comm.sum(self.mean * self.mass[:, None]) / np.where(mass > 0, mass, 1.0)[:, None]
        for group, gap in enumerate(self.mean - mean):
            self.scatter[group] += self.mass[group] * np.outer(gap, gap)
        return Moments(count, mass, mean, comm.sum(self.scatter))
