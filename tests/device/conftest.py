"""What a device computes is tested on one if there is one, and else in CUDA's simulator.

The simulator has to be chosen before Numba is loaded. So `test_in_simulator.py` starts a process of its own, and in
others these files are not even loaded. With a device, or with NUMBA_ENABLE_CUDASIM=1: pytest -m cuda tests/device
"""

from __future__ import annotations

from importlib.util import find_spec

import numba


def usable() -> bool:
    """Return whether kernels can be started in this process."""
    if numba.config.ENABLE_CUDASIM:
        return True
    if find_spec("numba_cuda") is None:
        return False
    from numba import cuda

    return bool(cuda.is_available())


OF_DEVICE = ["test_products.py", "test_losses.py", "test_training.py"]
collect_ignore = [] if usable() else OF_DEVICE
