"""The solver's vectors of length p, of which a rank that runs the solver holds `length` entries. These ranks take the
same decisions, by sums over ranks or the root's numbers (`root_values`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from distsms.base.communicator import Communicator, Replica
from distsms.base.typing import Floats
from distsms.parallel.shared_memory import SharedSum

MEASURED_FROM = 2**13
"""Number of columns from which the collectives are timed: the cost of shorter messages does not depend on their length.
"""
IN_MEMORY = "shared memory"
"""The name of the way to sum X'c in memory that all ranks share."""
SUMMED = 2**14
"""Number of entries that are summed in one go; to add these sums afterwards keeps rounding errors small."""


class Vectors(ABC):
    """Vectors of length p on the ranks of a communicator; the ranks of a node may share a copy of w. `length` is that
    of this rank's slice, `longest` that of the longest; `outward` and `inward` name the collectives that send w and sum
    X'c, and `measured` has the seconds of each way that was timed.
    """

    length: int
    runs_solver: bool
    outward: ClassVar[str]

    def __init__(self, comm: Communicator, p: int, shared: bool = False) -> None:
        self.comm, self.p, self._shared = comm, p, shared
        self._replica: tuple[int, Replica] | None = None
        self._buffer = np.empty(0)
        self._shared_sum: SharedSum | None = None
        self.inward, self._sum = next(iter(self._ways().items()))
        self.measured: dict[str, float] = {}

    @property
    @abstractmethod
    def longest(self) -> int: ...

    @property
    @abstractmethod
    def mpi_comm(self) -> Any:
        """mpi4py's communicator of the ranks that run the solver, for PETSc; None without mpi4py."""

    @abstractmethod
    def _ways(self) -> dict[str, Callable[[Floats], Floats]]:
        """Return the ways to sum an array over ranks, by name; each returns this rank's part of the sum."""

    @abstractmethod
    def send_request(self, query: int, numbers: Floats) -> None:
        """Send a query and numbers (k, 2) from the root to the ranks in `receive_request`."""

    @abstractmethod
    def receive_request(self) -> tuple[int, Floats]:
        """Wait for a request of the root; return its query and numbers."""

    @abstractmethod
    def replicate(self, k: int, slices: Sequence[Floats] | None) -> Floats:
        """Return k whole vectors (k, p), until the next call, from slices on ranks with the solver. **Collective.**"""

    @abstractmethod
    def sum_buffer(self, buffer: Floats) -> tuple[Floats, bool]:
        """Sum k vectors and a flag, both in a (k p + 1,) array from `buffer`, which is overwritten, over ranks; return
        slices (k, length), meaningless where no solver runs, and whether any flag was not 0. **Collective.**
        """

    @abstractmethod
    def sum_vector(self, local: Floats) -> Floats:
        """Return this rank's slice of the sum over ranks of (p,) arrays, which are overwritten. **Collective.**"""

    @abstractmethod
    def local_slice(self, whole: Floats) -> Floats:
        """Return this rank's slice of a vector (p,), a view. Local."""

    @abstractmethod
    def scatter(self, whole: Floats | None) -> Floats:
        """Return this rank's slice of the root's vector (p,), None elsewhere: reverse `gather`. **Collective.**"""

    def maximum(self, local: Floats) -> Floats:
        """Return this rank's slice of the maximum of (p,) arrays, which are overwritten. **Collective.**"""
        return self.local_slice(self.comm.maximum(local)).copy()

    def allgather(self, mine: Floats | None) -> Floats:
        """Return a whole vector (p,), a copy, on every rank; `mine` is None where no solver runs. **Collective.**"""
        self.free_buffer()
        return self.replicate(1, None if mine is None else [mine])[0].copy()

    @abstractmethod
    def gather(self, mine: Floats) -> Floats | None:
        """Return a whole vector (p,) on the root, None elsewhere. **Collective** among the ranks with the solver."""

    def buffer(self, k: int) -> Floats:
        """Return a buffer for k vectors and a flag, (k p + 1,), to be filled and passed to `sum_buffer`. Local."""
        if len(self._buffer) != k * self.p + 1:
            self._buffer = np.empty(k * self.p + 1)
        return self._buffer

    def free_buffer(self) -> None:
        """Free the buffer until it is needed again. Local."""
        self._buffer = np.empty(0)

    def _room_for_copies(self, k: int) -> Replica:
        if self._replica is None or self._replica[0] != k:
            self._close_copies()
            self._replica = k, self.comm.replica(k, self.p, self._shared)
        return self._replica[1]

    def close(self) -> None:
        """Free the memory that the ranks of a node share. **Collective.**"""
        self._close_copies()
        if self._shared_sum is not None:
            self._shared_sum.close()
            self._shared_sum = None

    def _close_copies(self) -> None:
        if self._replica is not None:
            self._replica[1].close()
            self._replica = None

    # Operations on vectors, for the ranks that run the solver

    def sum_values(self, values: Floats) -> Floats:
        """Sum (k,) values over slices, in place. **Collective** among the ranks that run the solver."""
        return values

    def root_values(self, values: Floats) -> Floats:
        """Replace (k,) values by the root's, in place. **Collective** among the ranks that run the solver."""
        return values

    def minimum(self, values: Floats) -> float:
        """Return a vector's smallest entry, infinity if it has none. **Collective** among the ranks with the solver."""
        return float(np.min(values, initial=np.inf))

    def dot(self, a: Floats, b: Floats) -> float:
        """Return the inner product of two slices' vectors. **Collective** among the ranks that run the solver."""
        # np.vdot does not warn of an overflow, which the caller sees; to keep np.dot quiet would take far longer.
        return float(self.sum_values(np.array([np.vdot(a, b)]))[0])

    @np.errstate(over="ignore", invalid="ignore")  # the caller sees that the result is not finite
    def dots(self, A: Floats, b: Floats) -> Floats:
        """Return the inner products of k vectors (k, length) with one, each with an error of at most `longest_sum` unit
        roundoffs times both norms. **Collective** among the ranks with the solver.
        """
        starts = range(0, max(len(b), 1), SUMMED)  # matmul, since np.dot would copy slices that are not contiguous
        return self.sum_values(
            sum(np.matmul(A[:, start : start + SUMMED], b[start : start + SUMMED]) for start in starts)
        )

    @property
    def longest_sum(self) -> int:
        """The maximum number of successive additions in `dots`."""
        return min(self.longest, SUMMED) + -(-self.longest // SUMMED) + self.comm.size

    def qr_factor(self, A: Floats) -> Floats:
        """Return F (q, k) with F'F the inner products of k vectors (k, length), by QR, whose errors are relative to the
        norms and not their squares; 2 length k^2. **Collective** among the ranks with the solver.
        """
        factor = np.empty((0, len(A)))
        for start in range(0, A.shape[1], SUMMED):
            factor = triangular(np.vstack([factor, A[:, start : start + SUMMED].T]))
        return factor

    def choose_collective(self) -> None:
        """Time the ways to sum X'c for about a second, and use the fastest from now on. **Collective.**"""
        if self.comm.size == 1 or self.p < MEASURED_FROM:
            return
        buffer = self.buffer(1)[:-1]
        self.measured = {name: self._seconds_of(way, buffer) for name, way in self._ways().items()}
        if self._shared and (shared := self.comm.shared_sum(self.p + 1)):  # last: now MPI needs no memory any more
            self._shared_sum = shared
            self.measured[IN_MEMORY] = self._seconds_of(self._ways()[IN_MEMORY], buffer)
        self.inward = self.comm.bcast(min(self.measured, key=self.measured.__getitem__))
        self._sum = self._ways()[self.inward]
        if self._shared_sum is not None and self.inward != IN_MEMORY:
            self._shared_sum.close()
            self._shared_sum = None

    def _seconds_of(self, way: Callable[[Floats], Floats], buffer: Floats) -> float:
        taken: list[float] = []
        while len(taken) < 2 or (len(taken) < 5 and sum(taken) < 1.0):
            buffer[:] = 0
            self.comm.barrier()
            start = time.perf_counter()
            way(buffer)
            taken.append(float(self.comm.maximum(np.array([time.perf_counter() - start]))[0]))
        return min(taken[1:])

    def describe(self) -> str:
        times = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in self.measured.items())
        return f"{self.outward} and {self.inward}" + (f", the fastest of {times}" if times else "")


def triangular(A: Floats) -> Floats:
    """Return the factor R of A = Q R if A has more rows than columns, else A itself."""
    return np.asarray(np.linalg.qr(A, mode="r")) if len(A) > A.shape[1] else A
