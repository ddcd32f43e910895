"""numba.cuda in one place: the device of a rank, its memory, launches of kernels, and vectors on it.

Sums of floats are added up in a fixed order (`LANES` in tiles of `TILE` rows, in pairs, and the tiles on the host), and
others are whole numbers, so that runs are equal to the bit. In CUDA's simulator (NUMBA_ENABLE_CUDASIM=1), each thread
is one of Python: tiles and blocks are small then, so that a few hundred rows pass all of their edges.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from typing import Any

import numpy as np
from numba import cuda, float64
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes
from distsms.base.typing import Floats
from distsms.base.wording import option

config: Any = cuda.config
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # the last blocks of rows are small, and so are tests
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")  # read again when kernels are compiled
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack  # numba-cuda 0.30 asks for it, which NumPy 2.5 has no more

SIMULATED = bool(config.ENABLE_CUDASIM)
if SIMULATED:
    from numba.cuda.simulator import kernel, kernelapi

    sys.setswitchinterval(1e-4)  # its threads wait for each other all the time
    _CUDA, _LOCK = cuda, threading.Lock()

    class _Both:
        """What is simulated, and the rest of `cuda`, for good: Numba takes it away while other threads still use it."""

        def __init__(self, simulated: Any) -> None:
            self._simulated = simulated

        def __getattr__(self, name: str) -> Any:
            try:
                return getattr(self._simulated, name)
            except AttributeError:
                return getattr(_CUDA, name)

    def _shared_array(self: Any, shape: Any, dtype: Any) -> Any:
        """Return the array that a block's threads share, one for each line that asks. Numba can make two."""
        asking = sys._getframe(1)
        with _LOCK:
            place = asking.f_code.co_filename, asking.f_lineno
            if place not in self._allocations:
                self._allocations[place] = np.empty(shape, str(dtype))
            return self._allocations[place]

    kernelapi.FakeCUDAShared.array = _shared_array  # type: ignore[method-assign]
    _SIMULATOR: Any = kernel
    _SIMULATOR.swapped_cuda_module = lambda of, both: contextlib.nullcontext(of.__globals__.update(cuda=_Both(both)))
THREADS = 2 if SIMULATED else 256
BLOCKS = 2 if SIMULATED else 132 * 8
"""The threads of a block, and the largest number of blocks: eight for each multiprocessor of an H100."""
LANES = 4 if SIMULATED else 256
TILE = 128 if SIMULATED else 4096
"""Rows of a tile, and the running sums in it. Results depend on them in the last digits; both are powers of two."""
ABREAST = 4
"""Rows that a thread computes at a time in kernels that wait for the memory, whose answers then arrive together."""
OLDEST = (6, 0)
"""The compute capability of the oldest devices that are driven: those before have few units for float64."""
SPARE = 0.05
"""The share of the free memory that is left to the driver and to small arrays."""


class DeviceVector:
    """A number for each local row on the device, (n_local,) float64: scores, whose place coefficients take."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @classmethod
    def of(cls, values: Floats) -> DeviceVector:
        return cls(cuda.to_device(np.ascontiguousarray(values, np.float64)))

    @classmethod
    def empty(cls, n: int) -> DeviceVector:
        return cls(cuda.device_array(n, np.float64))

    def start(self, kernel: Any, *arguments: Any) -> None:
        """Start a kernel on all rows, whose first argument is this vector."""
        launch(kernel, blocks_for(len(self)), self.array, *arguments)

    def copy(self) -> DeviceVector:
        other = DeviceVector.empty(len(self))
        other.array.copy_to_device(self.array)
        return other

    def __len__(self) -> int:
        return int(self.array.shape[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self.array.copy_to_host(), dtype)

    def __setitem__(self, rows: slice, values: Any) -> None:
        """Set all elements, v[:] = numbers or v[:] = number."""
        assert rows == slice(None)
        if np.ndim(values):
            self.array.copy_to_device(np.ascontiguousarray(values, np.float64))
        else:
            self.start(fill, float(values))


def launch(kernel: Any, blocks: int | tuple[int, int], *arguments: Any, stream: Any = 0, wide: bool = False) -> None:
    """Start a kernel on blocks of `THREADS`, or twice as many; what follows in its stream, or in none, waits for it."""
    kernel[blocks, 2 * THREADS if wide else THREADS, stream](*arguments)


def zeros(*shape: int) -> Any:
    return cuda.to_device(np.zeros(shape, np.int64))


def tiles_of(n: int) -> int:
    return -(-n // TILE)


def blocks_for(n: int) -> int:
    """Return the number of blocks for a kernel that goes over n rows, tile by tile; at least 1."""
    return max(1, min(BLOCKS, tiles_of(n)))


@cuda.jit
def fill(out, value):  # type: ignore[no-untyped-def]
    for i in range(cuda.grid(1), out.shape[0], cuda.gridsize(1)):
        out[i] = value


@cuda.jit(device=True)
def fold(lanes, maxima, count):  # type: ignore[no-untyped-def]
    """Reduce lanes (count, LANES) to their first column, the first `maxima` rows by max, the others by a sum."""
    cuda.syncthreads()
    width = LANES // 2
    while width > 0:
        for lane in range(cuda.threadIdx.x, width, cuda.blockDim.x):
            for k in range(count):
                a, b = lanes[k, lane], lanes[k, lane + width]
                lanes[k, lane] = max(a, b) if k < maxima else a + b
        cuda.syncthreads()
        width //= 2


@cuda.jit(device=True)
def keep(lanes, maxima, count, parts, tile):  # type: ignore[no-untyped-def]
    """Write what `fold` makes of lanes to the row of a tile, and let the block go on to its next tile."""
    fold(lanes, maxima, count)
    if cuda.threadIdx.x == 0:
        for k in range(count):
            parts[tile, k] = lanes[k, 0]
    cuda.syncthreads()


@cuda.jit
def fold_tiles(parts, maxima, out):  # type: ignore[no-untyped-def]
    """Reduce parts (tiles, k) to out (k,), the first `maxima` columns by max, the others by a sum. For one block."""
    lanes = cuda.shared.array((9, LANES), float64)  # no kernel has more sums of a tile
    for lane in range(cuda.threadIdx.x, LANES, cuda.blockDim.x):
        for k in range(parts.shape[1]):
            value = -math.inf if k < maxima else 0.0
            for tile in range(lane, parts.shape[0], LANES):
                value = max(value, parts[tile, k]) if k < maxima else value + parts[tile, k]
            lanes[k, lane] = value
    fold(lanes, maxima, parts.shape[1])
    for k in range(cuda.threadIdx.x, parts.shape[1], cuda.blockDim.x):
        out[k] = lanes[k, 0]


def folded(parts: Any, maxima: int = 0) -> Floats:
    """Return what `fold_tiles` makes of the sums of tiles, (k,) on the host."""
    out = cuda.device_array(parts.shape[1], np.float64)
    launch(fold_tiles, 1, parts, maxima, out)
    return np.asarray(out.copy_to_host())


@cuda.jit
def quotients(totals, units, out):  # type: ignore[no-untyped-def]
    """Set out to whole numbers in units of one."""
    for j in range(cuda.grid(1), out.shape[0], cuda.gridsize(1)):
        out[j] = totals[j] / units[j]


@cuda.jit
def sizes(c, parts):  # type: ignore[no-untyped-def]
    """Write max |c_i|, sum |c_i| and sum c_i of each tile of rows to parts (tiles, 3)."""
    lanes = cuda.shared.array((3, LANES), float64)
    for tile in range(cuda.blockIdx.x, parts.shape[0], cuda.gridDim.x):
        for lane in range(cuda.threadIdx.x, LANES, cuda.blockDim.x):
            most = absolute = total = 0.0
            for i in range(tile * TILE + lane, min((tile + 1) * TILE, c.shape[0]), LANES):
                most = max(most, abs(c[i]))
                absolute += abs(c[i])
                total += c[i]
            lanes[0, lane], lanes[1, lane], lanes[2, lane] = most, absolute, total
        keep(lanes, 1, 3, parts, tile)


def open_device(comm: Communicator) -> str:
    """Choose this rank's device by its place on its node; return it in words. **Collective.** InputError without."""
    neighbours = comm.node_ranks()
    with comm.fail_together():
        if not cuda.is_available():
            why = " ".join(str(getattr(cuda, "cuda_error", lambda: None)() or "no device answers").split())[:200]
            raise InputError(
                f"{option('device', 'cuda')}: there is no device, or its driver cannot be loaded ({why}). "
                f"`nvidia-smi` shows devices and driver; in a container, devices have to be passed in (docker run "
                f"--gpus all, apptainer --nv). Without {option('device')} the processor computes the same"
            )
        count = len(cuda.gpus)
        number = neighbours.index(comm.rank) % count
        device = cuda.gpus[number]
        cuda.select_device(number)
        if not SIMULATED and tuple(device.compute_capability) < OLDEST:
            capability = ".".join(map(str, device.compute_capability))
            raise InputError(
                f"{option('device', 'cuda')}: {_name(device)} has the compute capability {capability}, and "
                f"{'.'.join(map(str, OLDEST))} is needed. Take a newer device, or leave out {option('device')}"
            )
        identity = "" if SIMULATED else f"{getattr(device, 'uuid', device.id)}"
    taken = comm.allgather((neighbours[0], identity))
    with comm.fail_together():
        if identity and (others := [rank for rank, one in enumerate(taken) if one == taken[comm.rank]])[1:]:
            raise InputError(
                f"{option('device', 'cuda')}: ranks {others[0]} and {others[1]} would share a device: start one rank"
                f" for each of the {count} on a node (mpirun -n {count}; srun --gpus-per-task=1)"
            )
    if SIMULATED:
        return "cuda: CUDA's simulator, which computes on the processor, for tests"
    return f"cuda: {_name(device)}, {format_bytes(free_bytes())} free on it"


def free_bytes() -> float:
    """Return how many bytes of this rank's device may be taken."""
    return (1 - SPARE) * float(cuda.current_context().get_memory_info()[0])


def _name(device: Any) -> str:
    name = getattr(device, "name", "a device")
    return name.decode() if isinstance(name, bytes) else str(name)
