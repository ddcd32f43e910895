"""The solver's vectors of length p, and operations on them: whole on the root, or distributed in slices over all ranks.

`Vectors`: w goes to all ranks by Bcast, X'c to the root by Reduce; the others wait for the root's requests.
`DistributedVectors`: slices of w go to all ranks by Allgather, X'c becomes slices by Reduce-scatter. The ranks that run
the solver take the same decisions, by sums over ranks or the root's numbers (`root_values`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from distsms.base.communicator import Communicator, Replica
from distsms.base.errors import DistsmsError
from distsms.base.typing import Floats
from distsms.parallel.communicator import self_communicator

SPREAD_FROM = 2**20
"""Number of columns from which vectors are distributed: a pass over one then takes longer than the extra sums."""
SHARED_FROM = 2**17
"""Number of columns from which the ranks of a node share one copy of w, which then takes 1 MiB or more."""
MEASURED_FROM = 2**13
"""Number of columns from which the collectives are timed: the cost of shorter messages does not depend on theirs."""
PIECE = 2**17
"""Number of elements in a piece, where a reduction proceeds in pieces."""
IN_MEMORY = "shared memory"
"""The name of the way to sum X'c in memory that all ranks share."""
SUMMED = 2**14
"""Number of entries that are summed in one go; to add these sums afterwards keeps rounding errors small."""
Way = Callable[[Floats], Floats]


class Vectors:
    """Whole vectors on the root, which runs the solver and needs the sum X'c; the others answer its requests.

    A rank that runs the solver holds slices of `length` entries, the longest of which has `longest`. `outward` and
    `inward` name the collectives that send w and sum X'c; `measured` has the seconds of each way that was timed.
    """

    outward = "broadcast"

    def __init__(self, comm: Communicator, p: int, shared: bool = False) -> None:
        self.comm, self.p, self._shared = comm, p, shared
        self.runs_solver, self.longest = comm.is_root, p
        self.length = p if comm.is_root else 0
        self._replica: tuple[int, Replica] | None = None
        self._buffer, self._keeps_buffer = np.empty(0), not comm.is_root
        self._shared_sum: Any = None  # what `Communicator.shared_sum` returns
        self.inward, self._sum = next(iter(self._ways().items()))
        self.measured: dict[str, float] = {}

    @property
    def mpi_comm(self) -> Any:
        """mpi4py's communicator of the ranks that run the solver, for PETSc; None without mpi4py."""
        return self_communicator()

    def _ways(self) -> dict[str, Way]:
        """Return the ways to sum an array over ranks, by name; each returns this rank's part of the sum."""
        comm, shared = self.comm, self._shared_sum
        in_pieces: Way = partial(comm.reduce, piece=PIECE)
        ways: dict[str, Way] = {"reduce": comm.reduce, "reduce by pieces": in_pieces, "allreduce": comm.sum}
        return ways if shared is None else {**ways, IN_MEMORY: shared.reduce}

    def send_request(self, query: int, numbers: Floats) -> None:
        """Send a query and numbers (k, 2) from the root to the ranks in `receive_request`."""
        first, others = (numbers[0], numbers[1:]) if len(numbers) else (np.zeros(2), numbers)
        self.comm.broadcast(np.array([query, *first]))
        if len(others):
            self.comm.broadcast(np.ascontiguousarray(others))

    def receive_request(self) -> tuple[int, Floats]:
        """Wait for a request of the root; return its query and numbers."""
        query, *first = self.comm.broadcast(np.empty(3))
        numbers = np.empty((max(1, int(query)), 2))
        numbers[0] = first
        if query > 1:
            self.comm.broadcast(numbers[1:])
        return int(query), numbers

    def replicate(self, k: int, slices: Sequence[Floats] | None) -> Floats:
        """Return k whole vectors (k, p), until the next call, from slices on ranks with the solver. **Collective.**"""
        return self._room_for_copies(k).broadcast(slices)

    def buffer(self, k: int) -> Floats:
        """Return a buffer for k vectors and a flag, (k p + 1,), to be filled and passed to `sum_buffer`. Local."""
        # On the root, `sum_buffer` returns a view of this buffer, and the caller keeps it. So the root needs a new one.
        if not self._keeps_buffer:
            return np.empty(k * self.p + 1)
        if len(self._buffer) != k * self.p + 1:
            self._buffer = np.empty(k * self.p + 1)
        return self._buffer

    def free_buffer(self) -> None:
        self._buffer = np.empty(0)

    def sum_buffer(self, buffer: Floats) -> tuple[Floats, bool]:
        """Sum k vectors and a flag over ranks, in place; return slices (k, length), and the flag. **Collective.**"""
        self._sum(buffer)
        return buffer[:-1].reshape(-1, self.p), bool(buffer[-1])

    def sum_vector(self, local: Floats) -> Floats:
        """Return this rank's slice of the sum over ranks of (p,) arrays, which are overwritten. **Collective.**"""
        return self.local_slice(self._sum(local))

    def local_slice(self, whole: Floats) -> Floats:
        """Return this rank's slice of a vector (p,), a view. Local."""
        return whole if self.runs_solver else whole[:0]

    def gather(self, mine: Floats) -> Floats | None:
        """Return a whole vector (p,) on the root, None elsewhere. **Collective** among the ranks with the solver."""
        return mine

    def scatter(self, whole: Floats | None) -> Floats:
        """Return this rank's slice of the root's vector (p,), None elsewhere: reverse `gather`. **Collective.**"""
        return np.empty(0) if whole is None else whole

    def maximum(self, local: Floats) -> Floats:
        """Return this rank's slice of the maximum of (p,) arrays, which are overwritten. **Collective.**"""
        return self.local_slice(self.comm.maximum(local)).copy()

    def allgather(self, mine: Floats | None) -> Floats:
        """Return a whole vector (p,), a copy, on every rank; `mine` is None where no solver runs. **Collective.**"""
        self.free_buffer()
        return self.replicate(1, None if mine is None else [mine])[0].copy()

    def _room_for_copies(self, k: int) -> Replica:
        if self._replica is None or self._replica[0] != k:
            self._close_copies()
            self._replica = k, self.comm.replica(k, self.p, self._shared)
        return self._replica[1]

    def __enter__(self) -> Vectors:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        """Close, but not if this rank fails alone: it would wait for the others here, and they for it elsewhere."""
        if error is None or (isinstance(error, DistsmsError) and error.everywhere):
            self.close()

    def close(self) -> None:
        """Free the memory that the ranks of a node share. **Collective.**"""
        self._close_copies()
        self._close_sum()

    def _close_copies(self) -> None:
        if self._replica is not None:
            self._replica[1].close()
            self._replica = None

    def _close_sum(self) -> None:
        if self._shared_sum is not None:
            self._shared_sum.close()
            self._shared_sum = None

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
        parts = (slice(start, start + SUMMED) for start in range(0, max(len(b), 1), SUMMED))
        return self.sum_values(sum(np.matmul(A[:, part], b[part]) for part in parts))  # np.dot would copy the slices

    @property
    def longest_sum(self) -> int:
        """The maximum number of successive additions in `dots`."""
        return min(self.longest, SUMMED) + -(-self.longest // SUMMED) + self.comm.size

    def qr_factor(self, A: Floats) -> Floats:
        """Return F (q, k) with F'F the inner products of k vectors, by QR. **Collective** among these ranks."""
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
        if self.inward != IN_MEMORY:
            self._close_sum()

    def _seconds_of(self, way: Way, buffer: Floats) -> float:
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


class DistributedVectors(Vectors):
    """A slice of every vector on every rank, of p/P entries or one more; all ranks run the solver in lock-step."""

    outward = "allgather"

    def __init__(self, comm: Communicator, p: int, shared: bool = False) -> None:
        self._counts = [p // comm.size + (rank < p % comm.size) for rank in range(comm.size)]
        super().__init__(comm, p, shared)
        self.runs_solver, self.length, self.longest = True, self._counts[comm.rank], self._counts[0]
        self._keeps_buffer = True

    @property
    def mpi_comm(self) -> Any:
        return self.comm.mpi_comm

    def _ways(self) -> dict[str, Way]:
        counts, shared, scatter = self._counts, self._shared_sum, self.comm.reduce_scatter
        in_turn: Way = partial(scatter, counts=counts, in_turn=True)
        ways: dict[str, Way] = {"reduce-scatter": partial(scatter, counts=counts), "reduces in turn": in_turn}
        return ways if shared is None else {**ways, IN_MEMORY: partial(shared.scatter, counts=counts)}

    def send_request(self, query: int, numbers: Floats) -> None:
        pass  # every rank runs the solver and knows what is next

    def receive_request(self) -> tuple[int, Floats]:
        raise AssertionError("all ranks run the solver, so none waits for requests")

    def replicate(self, k: int, slices: Sequence[Floats] | None) -> Floats:
        assert slices is not None
        return self._room_for_copies(k).gather(slices, self._counts)

    def sum_buffer(self, buffer: Floats) -> tuple[Floats, bool]:
        flag = bool(self.comm.maximum(buffer[-1:])[0])
        return np.array([self._sum(vector) for vector in buffer[:-1].reshape(-1, self.p)]), flag

    def sum_vector(self, local: Floats) -> Floats:
        return self._sum(local)

    def local_slice(self, whole: Floats) -> Floats:
        start = sum(self._counts[: self.comm.rank])
        return whole[start : start + self.length]

    def gather(self, mine: Floats) -> Floats | None:
        return self.comm.gather_rows(mine)

    def scatter(self, whole: Floats | None) -> Floats:
        return self.comm.scatter_rows(whole, self.length)

    def sum_values(self, values: Floats) -> Floats:
        return self.comm.sum(values)

    def root_values(self, values: Floats) -> Floats:
        return self.comm.broadcast(values)

    def qr_factor(self, A: Floats) -> Floats:
        return triangular(np.vstack(self.comm.allgather(super().qr_factor(A))))

    def minimum(self, values: Floats) -> float:
        return -float(self.comm.maximum(np.array([-super().minimum(values)]))[0])


def choose_step(step: str, p: int, size: int) -> tuple[str, str]:
    """Return "root" or, from `SPREAD_FROM` columns on, "spread": where vectors are held; and why, in words. Local."""
    if step != "auto":
        return step, "as asked for"
    if size == 1:
        return "root", "there is one rank"
    if p >= SPREAD_FROM:
        return "spread", f"{p} columns, at least {SPREAD_FROM}"
    return "root", f"{p} columns, fewer than {SPREAD_FROM}"


def make_vectors(step: str, p: int, comm: Communicator) -> Vectors:
    """Build a run's vectors and choose the fastest collective; nodes may share one copy of w. **Collective.**"""
    vectors = {"root": Vectors, "spread": DistributedVectors}[step](comm, p, p >= SHARED_FROM)
    vectors.choose_collective()
    return vectors


def triangular(A: Floats) -> Floats:
    """Return the factor R of A = Q R if A has more rows than columns, else A itself."""
    return np.asarray(np.linalg.qr(A, mode="r")) if len(A) > A.shape[1] else A
