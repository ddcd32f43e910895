"""Where the solver's vectors of length p are held: whole on the root, or distributed in slices over all ranks.

`RootVectors`: w goes to all ranks by Bcast, X'c to the root by Reduce; the others wait for the root's requests.
`DistributedVectors`: slices of w go to all ranks by Allgather, X'c becomes slices by Reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats
from distsms.parallel.communicator import self_communicator
from distsms.parallel.vectors import IN_MEMORY, Vectors, triangular

SPREAD_FROM = 2**20
"""Number of columns from which vectors are distributed: a pass over one then takes longer than the extra sums."""
SHARED_FROM = 2**17
"""Number of columns from which the ranks of a node share one copy of w, which then takes 1 MiB or more."""
PIECE = 2**17
"""Number of elements in a piece, where a reduction proceeds in pieces."""


class RootVectors(Vectors):
    """Whole vectors on the root, which runs the solver and needs the sum X'c; the others answer its requests."""

    outward = "broadcast"

    def __init__(self, comm: Communicator, p: int, shared: bool = False) -> None:
        self.runs_solver = comm.is_root
        self.length = p if comm.is_root else 0
        super().__init__(comm, p, shared)

    @property
    def longest(self) -> int:
        return self.p

    @property
    def mpi_comm(self) -> Any:
        return self_communicator()

    def _ways(self) -> dict[str, Callable[[Floats], Floats]]:
        comm = self.comm
        ways: dict[str, Callable[[Floats], Floats]] = {
            "reduce": comm.reduce,
            "reduce by pieces": lambda array: comm.reduce(array, PIECE),
            "allreduce": comm.sum,
        }
        return ways if self._shared_sum is None else {**ways, IN_MEMORY: self._shared_sum.reduce}

    def send_request(self, query: int, numbers: Floats) -> None:
        first, others = (numbers[0], numbers[1:]) if len(numbers) else (np.zeros(2), numbers)
        self.comm.broadcast(np.array([query, *first]))
        if len(others):
            self.comm.broadcast(np.ascontiguousarray(others))

    def receive_request(self) -> tuple[int, Floats]:
        query, *first = self.comm.broadcast(np.empty(3))
        numbers = np.empty((max(1, int(query)), 2))
        numbers[0] = first
        if query > 1:
            self.comm.broadcast(numbers[1:])
        return int(query), numbers

    def replicate(self, k: int, slices: Sequence[Floats] | None) -> Floats:
        return self._room_for_copies(k).broadcast(slices)

    def buffer(self, k: int) -> Floats:
        # On the root, `sum_buffer` returns a view of this buffer, and the caller keeps it. So the root needs a new one.
        return np.empty(k * self.p + 1) if self.runs_solver else super().buffer(k)

    def sum_buffer(self, buffer: Floats) -> tuple[Floats, bool]:
        self._sum(buffer)
        return buffer[:-1].reshape(-1, self.p), bool(buffer[-1])

    def sum_vector(self, local: Floats) -> Floats:
        return self.local_slice(self._sum(local))

    def local_slice(self, whole: Floats) -> Floats:
        return whole if self.runs_solver else whole[:0]

    def gather(self, mine: Floats) -> Floats | None:
        return mine

    def scatter(self, whole: Floats | None) -> Floats:
        return np.empty(0) if whole is None else whole


class DistributedVectors(Vectors):
    """A slice of every vector on every rank, of p/P entries or one more; all ranks run the solver in lock-step."""

    outward = "allgather"
    runs_solver = True

    def __init__(self, comm: Communicator, p: int, shared: bool = False) -> None:
        self._counts = [p // comm.size + (rank < p % comm.size) for rank in range(comm.size)]
        self.length = self._counts[comm.rank]
        super().__init__(comm, p, shared)

    @property
    def longest(self) -> int:
        return self._counts[0]

    @property
    def mpi_comm(self) -> Any:
        return self.comm.mpi_comm

    def _ways(self) -> dict[str, Callable[[Floats], Floats]]:
        comm, counts, shared = self.comm, self._counts, self._shared_sum
        ways: dict[str, Callable[[Floats], Floats]] = {
            "reduce-scatter": lambda array: comm.reduce_scatter(array, counts),
            "reduces in turn": lambda array: comm.reduce_scatter(array, counts, in_turn=True),
        }
        return ways if shared is None else {**ways, IN_MEMORY: lambda array: shared.scatter(array, counts)}

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
    vectors = {"root": RootVectors, "spread": DistributedVectors}[step](comm, p, p >= SHARED_FROM)
    vectors.choose_collective()
    return vectors
