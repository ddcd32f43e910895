"""Random 64-bit keys of rows, which depend on a seed and the row's number alone, not on the rank that holds the row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import njit

GOLDEN, MIX1, MIX2 = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
S27, S30, S31 = np.uint64(27), np.uint64(30), np.uint64(31)


def row_keys(rows: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    """Return a key (m,) uint64 for each global row number, which seeds its sequence of random numbers; all differ."""
    mix = _mix.py_func  # the Python function also works on arrays
    return mix(mix(np.array([seed], np.uint64) * GOLDEN) + rows.astype(np.uint64) * GOLDEN)


@njit(inline="always")
def _mix(z):  # type: ignore[no-untyped-def]
    """Apply the finalizer of SplitMix64 (Steele, Lea & Flood 2014)."""
    z = (z ^ (z >> S30)) * MIX1
    z = (z ^ (z >> S27)) * MIX2
    return z ^ (z >> S31)
