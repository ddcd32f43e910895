"""Types of arrays that annotations name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int8]
"""+1, -1, or 0 where a row has no label."""
