"""Hash rows to random 64-bit keys, which depend on a seed and the row alone, whatever rank holds the row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.utils.jit import njit

GOLDEN, MIX1, MIX2 = (np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
S27, S30, S31 = np.uint64(27), np.uint64(30), np.uint64(31)


def keys(rows: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    """(len(rows),): where each row's numbers begin; different for different rows, which are whole numbers from 0."""
    mix = _mix.py_func  # of arrays
    return mix(mix(np.array([seed], np.uint64) * GOLDEN) + rows.astype(np.uint64) * GOLDEN)


@njit(inline="always")
def _mix(z):  # type: ignore[no-untyped-def]
    """The finalizer of SplitMix64."""
    z = (z ^ (z >> S30)) * MIX1
    z = (z ^ (z >> S27)) * MIX2
    return z ^ (z >> S31)
