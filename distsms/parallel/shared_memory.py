"""The same vectors for every rank to read: a copy on each rank, or one in memory that the ranks of a node share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distsms.parallel import buffers

if TYPE_CHECKING:
    from distsms.parallel.communicator import MPICommunicator

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - not for files of ours: where Linux, and so MPI, keeps shared memory


class Replica:
    """The same k vectors for every rank to read; of one rank alone, they are the ones that it gives."""

    def broadcast(self, rows: Sequence[NDArray[np.float64]] | None) -> NDArray[np.float64]:
        """The root's k vectors (m,), as (k, m), until the next call. None elsewhere. Collective."""
        assert rows is not None
        return rows[0][None, :] if len(rows) == 1 else np.array(rows)

    def gather(self, slices: Sequence[NDArray[np.float64]], counts: Sequence[int]) -> NDArray[np.float64]:
        """The k vectors of which each rank has a slice (counts[rank],), in rank order; as `broadcast`. Collective."""
        return self.broadcast(slices)

    def close(self) -> None:
        """Free the memory. Collective."""


def over_ranks(comm: MPICommunicator, k: int, length: int, shared: bool) -> Replica:
    """Room for k vectors (length,): shared by the ranks of each node, if wanted and there is memory. Collective."""
    node = comm.node_ranks() if shared else [comm.rank]
    nodes = comm.allgather(node)
    contiguous = all(ranks == list(range(ranks[0], ranks[-1] + 1)) for ranks in nodes)
    if contiguous and max(len(ranks) for ranks in nodes) > 1 and _shared_memory(comm, node, 8 * k * length):
        return OnePerNode(comm, k, length, sorted({tuple(ranks) for ranks in nodes}))
    return OnePerRank(comm, k, length)


def _shared_memory(comm: MPICommunicator, node: list[int], wanted: int) -> bool:
    """Whether every node has room for so many bytes where shared memory is kept on Linux. Collective."""
    try:
        place = os.statvfs(SHARED_MEMORY)
        room = place.f_bavail * place.f_frsize
    except OSError:
        room = 0
    return bool(comm.maximum(np.array([comm.rank == node[0] and room < wanted + 2**24], np.int64))[0] == 0)


class OnePerRank(Replica):
    """A copy on each rank; on the root a broadcast vector is its own."""

    def __init__(self, comm: MPICommunicator, k: int, length: int) -> None:
        self._comm, self._shape = comm, (k, length)
        self._rows: NDArray[np.float64] | None = None

    def _room(self) -> NDArray[np.float64]:
        if self._rows is None:
            self._rows = np.empty(self._shape)
        return self._rows

    def broadcast(self, rows: Sequence[NDArray[np.float64]] | None) -> NDArray[np.float64]:
        return self._comm.broadcast(self._room() if rows is None else super().broadcast(rows))

    def gather(self, slices: Sequence[NDArray[np.float64]], counts: Sequence[int]) -> NDArray[np.float64]:
        room, comm = self._room(), self._comm
        for whole, mine in zip(room, slices, strict=True):
            buffers.own(whole, counts, comm.rank)[:] = mine
            buffers.complete(comm.mpi, comm.library, whole, counts)
            comm.sent["allgather"] += mine.nbytes
            comm.received["allgather"] += whole.nbytes - mine.nbytes
        return room

    def close(self) -> None:
        self._rows = None


class OnePerNode(Replica):
    """A copy in memory that the ranks of a node share; only the first rank of each, its leader, communicates.

    The ranks of a node are consecutive. Before a rank writes, all others of its node have come here, so that none
    still reads; before one reads, all have written (MPI 3.1, section 11.4: separate barriers and memory barriers).
    """

    def __init__(self, comm: MPICommunicator, k: int, length: int, nodes: Sequence[tuple[int, ...]]) -> None:
        self._comm, self._nodes = comm, nodes
        self._node = comm.library.Split_type(comm.mpi.COMM_TYPE_SHARED)
        self._leads = self._node.Get_rank() == 0
        self._leaders = comm.library.Split(0 if self._leads else comm.mpi.UNDEFINED)
        self._window = comm.mpi.Win.Allocate_shared(8 * k * length if self._leads else 0, 8, comm=self._node)
        memory: Any = self._window.Shared_query(0)[0]
        self._rows = np.frombuffer(memory, np.float64, k * length).reshape(k, length)
        self._window.Lock_all(comm.mpi.MODE_NOCHECK)

    def _meet(self) -> None:
        self._window.Sync()
        self._node.Barrier()
        self._window.Sync()

    def broadcast(self, rows: Sequence[NDArray[np.float64]] | None) -> NDArray[np.float64]:
        self._meet()
        if rows is not None:
            for mine, given in zip(self._rows, rows, strict=True):
                mine[:] = given
        if self._leads:
            for piece in buffers.pieces(self._rows):
                self._leaders.Bcast(piece, root=0)
            (self._comm.received if self._comm.rank else self._comm.sent)["broadcast"] += self._rows.nbytes
        self._meet()
        return self._rows

    def gather(self, slices: Sequence[NDArray[np.float64]], counts: Sequence[int]) -> NDArray[np.float64]:
        self._meet()
        for whole, mine in zip(self._rows, slices, strict=True):
            buffers.own(whole, counts, self._comm.rank)[:] = mine
        self._meet()
        if self._leads:
            together = [sum(counts[rank] for rank in ranks) for ranks in self._nodes]
            for whole in self._rows:
                buffers.complete(self._comm.mpi, self._leaders, whole, together)
                sent = 8 * together[self._leaders.Get_rank()]
                self._comm.sent["allgather"] += sent
                self._comm.received["allgather"] += whole.nbytes - sent
        self._meet()
        return self._rows

    def close(self) -> None:
        del self._rows
        self._window.Unlock_all()
        self._window.Free()
        for one in (self._leaders, self._node):
            if one:  # false is the null communicator of those that do not lead
                one.Free()
