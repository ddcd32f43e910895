"""Array types for annotations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int8]
"""+1, -1, or 0 for a row without a label."""
Hashes = NDArray[np.uint64]
"""Hashed keys of rows or groups."""
