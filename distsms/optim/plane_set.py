"""The planes of a bundle in memory: their slopes r, their constants d, their Gram matrix, and their weights.

If there is no room for one more plane, the plane that has been of no use for longest gives up its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.optim.qp import simplex_qp
from distsms.optim.state import Snapshot
from distsms.parallel.vectors import Vectors

U = float(np.finfo(float).eps) / 2  # the unit roundoff

AT_FIRST = 2**22
"""There are as many places for planes at first as take so many bytes; if that is less than 4, all of them."""

OF_PLANES = ("d", "lengths", "drift", "d_drift", "alpha", "last_use")
"""The attributes of the bundle, one number for each plane, that a snapshot contains besides r and the Gram matrix."""


class PlaneSet:
    """Planes <r_k, v> + d_k with the weights alpha_k of their present mixture.

    Parameters
    ----------
    vectors : Vectors
        How vectors are distributed over the ranks; the r are slices.
    zero_plane : bool
        Whether the first plane is the zero plane, which stays.
    capacity : int
        The largest number of other planes, at least 2.

    Notes
    -----
    Memory: 8 capacity (p + capacity) bytes, used gradually as planes are added. Cost of adding the k-th plane: one pass
    over k p numbers.
    """

    def __init__(self, vectors: Vectors, zero_plane: bool, capacity: int) -> None:
        if capacity < 2:
            raise ValueError(f"capacity is {capacity}; it must be at least 2")
        self._vectors = vectors
        self._fixed = int(zero_plane)  # the zero plane is the first, and stays
        self._places = places = capacity + self._fixed
        few = AT_FIRST // (8 * max(1, vectors.length))
        # It takes no memory before it is written to; but the system needs time to provide it, which many runs can save.
        self._planes = np.empty((places if few < 4 else min(places, few), vectors.length))
        self._gram = np.zeros((1, 1))  # grows with the planes
        self._d = np.zeros(places)
        self._lengths = np.zeros(places)  # ||r_k||
        # Merging planes has rounding errors, too: these are bounds on the error of r_k (as a length) and of d_k.
        self._drift, self._d_drift = np.zeros(places), np.zeros(places)
        self._alpha = np.zeros(places)
        self._last_use = np.zeros(places)  # the value of _added when the plane was added, or last had a weight > 0
        self._added = 0
        self._count = self._fixed
        self._planes[: self._fixed] = 0.0

    def _put(self, r: Floats, d: float) -> int:
        """Store a plane of weight 0, and return its index. **Collective** among these ranks."""
        slot = self._free_slot()
        self._planes[slot] = r
        self._set_products(slot)
        self._lengths[slot] = math.sqrt(self._gram[slot, slot])
        self._drift[slot] = self._d_drift[slot] = 0.0
        self._d[slot], self._alpha[slot] = d, 0.0
        return slot

    def _free_slot(self) -> int:
        """Return the index of the next plane.

        If the bundle is full, it is the index of the plane of weight 0 that was used least recently. If there is none,
        the two planes of least weight are merged, and the index is that of one of them.
        """
        if self._count < self._places:
            if self._count == len(self._planes):
                first = self._planes
                self._planes = np.empty((self._places, first.shape[1]))
                self._planes[: self._count] = first
            self._count += 1
            if self._count > len(self._gram):
                self._gram = np.pad(self._gram, (0, min(len(self._gram) + 40, self._places - len(self._gram))))
            return self._count - 1
        own = slice(self._fixed, None)
        first, second = self._fixed + np.lexsort((self._last_use[own], self._alpha[own]))[:2]
        if self._alpha[first] > 0:
            self._merge(int(second), int(first))
        return int(first)

    def _merge(self, kept: int, gone: int) -> None:
        """Replace plane `kept` by the mixture of both planes. The present mixture of all planes stays unchanged."""
        total = self._alpha[kept] + self._alpha[gone]
        a, b = self._alpha[kept] / total, self._alpha[gone] / total
        self._planes[kept] *= a
        self._planes[kept] += b * self._planes[gone]
        self._set_products(kept)
        for drift, sizes in ((self._drift, self._lengths), (self._d_drift, np.abs(self._d))):
            drift[kept] = a * (drift[kept] + 4 * U * sizes[kept]) + b * (drift[gone] + 4 * U * sizes[gone])
        self._d[kept] = a * self._d[kept] + b * self._d[gone]
        self._lengths[kept] = math.sqrt(self._gram[kept, kept])
        self._alpha[kept], self._alpha[gone] = total, 0.0

    def _set_products(self, slot: int) -> None:
        """Compute the row and the column of a plane in the Gram matrix."""
        k = self._count
        self._gram[slot, :k] = self._gram[:k, slot] = self._vectors.dots(self._planes[:k], self._planes[slot])

    def _note_use(self, alpha: Floats) -> None:
        self._last_use[: len(alpha)][alpha > 0] = self._added

    def slope_at_zero(self, value: float) -> float:
        """Return the least length of a mixture of the planes that touch R at 0, where R has this value. Local.

        Their r are subgradients of R at 0. So, up to rounding, the result bounds how steeply R falls there, and min J
        is at least `value` - Omega*(result). It is infinity if no plane touches R at 0.
        """
        touching = self._touching(value)
        gram = self._gram[np.ix_(touching, touching)]
        largest = float(np.max(np.diag(gram), initial=0.0))
        if not (len(touching) and math.isfinite(largest)):
            return math.inf
        if largest < 1e-300:
            return math.sqrt(largest)
        alpha = simplex_qp(gram / largest, np.ones(len(touching)), np.ones(len(touching)))
        return math.sqrt(max(0.0, float(alpha @ gram @ alpha)))

    def _touching(self, value: float) -> NDArray[np.intp]:
        """Return the planes that touch R at 0, where R has this value. Local."""
        return np.flatnonzero(self._d[: self._count] >= (1 - 1e-12) * value)

    def _agreed(self, values: Sequence[float] | Floats, *more: float) -> list[float]:
        return self._vectors.root_values(np.concatenate((values, more))).tolist()

    def _length(self, vector: Floats) -> float:
        return math.sqrt(self._vectors.dots(vector[None, :], vector)[0])

    def snapshot(self) -> Snapshot:
        """Return the state; see `restore`."""
        k = self._count
        return Snapshot(
            {"added": self._added},
            {name: getattr(self, f"_{name}")[:k] for name in OF_PLANES} | {"gram": self._gram[:k, :k]},
            {"planes": list(self._planes[:k])},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Set the state to exactly that of another set. All its planes are kept, even if they exceed `capacity`."""
        k = self._count = len(snapshot.tables["d"])
        places = self._places = max(k, self._places)
        self._planes = np.empty((places, self._planes.shape[1]))
        self._gram = snapshot.tables["gram"].copy()
        for name in OF_PLANES:
            whole = np.zeros(places)
            whole[:k] = snapshot.tables[name]
            setattr(self, f"_{name}", whole)
        self._added = snapshot.numbers["added"]
        for row, plane in zip(self._planes, snapshot.vectors["planes"], strict=False):
            row[:] = plane
