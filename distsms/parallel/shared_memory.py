"""Vectors that every rank can read whole, as a copy on each rank or one on each node, and sums in a node's memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from distsms.base.communicator import Replica
from distsms.base.typing import Floats
from distsms.parallel import buffers

MPICommunicator: TypeAlias = Any
"""The class in `distsms.parallel.mpi`, which imports this module and so cannot be imported here."""

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux, and so MPI, keeps shared memory; we create no files there


def over_ranks(comm: MPICommunicator, k: int, length: int, shared: bool) -> Replica:
    """Return buffers for k vectors (length,), `shared` by the ranks of a node where possible. **Collective.**"""
    node = comm.node_ranks() if shared else [comm.rank]
    nodes = comm.allgather(node)
    contiguous = all(ranks == list(range(ranks[0], ranks[-1] + 1)) for ranks in nodes)
    if contiguous and max(len(ranks) for ranks in nodes) > 1 and _shared_memory(comm, node, 8 * k * length):
        return OnePerNode(comm, k, length, sorted({tuple(ranks) for ranks in nodes}))
    return OnePerRank(comm, k, length)


def _shared_memory(comm: MPICommunicator, node: list[int], size: int) -> bool:
    """Return whether the shared memory of every node has at least `size` free bytes. **Collective.**"""
    try:
        status = os.statvfs(SHARED_MEMORY)
        free = status.f_bavail * status.f_frsize
    except OSError:
        free = 0
    return bool(comm.maximum(np.array([comm.rank == node[0] and free < size + 2**24], np.int64))[0] == 0)


class OnePerRank(Replica):
    """One copy on each rank. In `broadcast`, the root uses its own vector and makes no copy."""

    def __init__(self, comm: MPICommunicator, k: int, length: int) -> None:
        self._comm, self._shape = comm, (k, length)
        self._rows: Floats | None = None

    def _buffer(self) -> Floats:
        if self._rows is None:
            self._rows = np.empty(self._shape)
        return self._rows

    def broadcast(self, rows: Sequence[Floats] | None) -> Floats:
        return self._comm.broadcast(self._buffer() if rows is None else super().broadcast(rows))

    def gather(self, slices: Sequence[Floats], counts: Sequence[int]) -> Floats:
        vectors, comm = self._buffer(), self._comm
        for whole, mine in zip(vectors, slices, strict=True):
            buffers.share(whole, counts, comm.rank)[:] = mine
            buffers.complete(comm.mpi, comm.mpi_comm, whole, counts)
            comm.sent["allgather"] += mine.nbytes
            comm.received["allgather"] += whole.nbytes - mine.nbytes
        return vectors

    def close(self) -> None:
        self._rows = None


class OnePerNode(Replica):
    """One copy per node, for which the node's first rank communicates; with barriers (MPI 3.1, section 11.4)."""

    def __init__(self, comm: MPICommunicator, k: int, length: int, nodes: Sequence[tuple[int, ...]]) -> None:
        self._comm, self._nodes = comm, nodes
        self._node = comm.mpi_comm.Split_type(comm.mpi.COMM_TYPE_SHARED)
        self._leads = self._node.Get_rank() == 0
        self._leaders = comm.mpi_comm.Split(0 if self._leads else comm.mpi.UNDEFINED)
        self._window = comm.mpi.Win.Allocate_shared(8 * k * length if self._leads else 0, 8, comm=self._node)
        memory: Any = self._window.Shared_query(0)[0]
        self._rows = np.frombuffer(memory, np.float64, k * length).reshape(k, length)
        self._window.Lock_all(comm.mpi.MODE_NOCHECK)

    def _synchronize(self) -> None:
        self._window.Sync()
        self._node.Barrier()
        self._window.Sync()

    def broadcast(self, rows: Sequence[Floats] | None) -> Floats:
        self._synchronize()
        if rows is not None:
            for mine, row in zip(self._rows, rows, strict=True):
                mine[:] = row
        if self._leads:
            for piece in buffers.pieces(self._rows):
                self._leaders.Bcast(piece, root=0)
            (self._comm.received if self._comm.rank else self._comm.sent)["broadcast"] += self._rows.nbytes
        self._synchronize()
        return self._rows

    def gather(self, slices: Sequence[Floats], counts: Sequence[int]) -> Floats:
        self._synchronize()
        for whole, mine in zip(self._rows, slices, strict=True):
            buffers.share(whole, counts, self._comm.rank)[:] = mine
        self._synchronize()
        if self._leads:
            node_counts = [sum(counts[rank] for rank in ranks) for ranks in self._nodes]
            for whole in self._rows:
                buffers.complete(self._comm.mpi, self._leaders, whole, node_counts)
                sent = 8 * node_counts[self._leaders.Get_rank()]
                self._comm.sent["allgather"] += sent
                self._comm.received["allgather"] += whole.nbytes - sent
        self._synchronize()
        return self._rows

    def close(self) -> None:
        del self._rows
        self._window.Unlock_all()
        self._window.Free()
        for comm in (self._leaders, self._node):
            if comm:  # ranks that are not leaders have the null communicator, which is false
                comm.Free()


class SharedSum:
    """Sums vectors of ranks of one node in shared memory, a slice on each. Construction is **collective**."""

    def __init__(self, comm: MPICommunicator, length: int) -> None:
        self._comm = comm
        self._window = comm.mpi.Win.Allocate_shared(8 * length, 8, comm=comm.mpi_comm)
        memory = [self._window.Shared_query(rank)[0] for rank in range(comm.size)]
        self._vectors = [np.frombuffer(of_rank, np.float64, length) for of_rank in memory]
        self._window.Lock_all(comm.mpi.MODE_NOCHECK)

    def _synchronize(self) -> None:
        self._window.Sync()
        self._comm.barrier()
        self._window.Sync()

    def scatter(self, array: Floats, counts: Sequence[int]) -> Floats:
        """Return this rank's slice (counts[rank],) of the sum of all arrays, up to `length`. **Collective.**"""
        self._synchronize()
        self._vectors[self._comm.rank][: len(array)] = array
        self._synchronize()
        first, *others = (buffers.share(vector, counts, self._comm.rank) for vector in self._vectors)
        total = first.copy()
        for other in others:
            total += other
        return total

    def reduce(self, array: Floats) -> Floats:
        """Set the root's array, of any length, to the sum of all ranks' arrays; return the array. **Collective.**"""
        rank, size = self._comm.rank, self._comm.size
        for piece in buffers.pieces(array, len(self._vectors[0])):
            counts = [len(piece) // size + (other < len(piece) % size) for other in range(size)]
            buffers.share(self._vectors[0], counts, rank)[:] = self.scatter(piece, counts)
            self._synchronize()
            if self._comm.is_root:
                piece[:] = self._vectors[0][: len(piece)]
        return array

    def close(self) -> None:
        """Free the memory. **Collective.**"""
        del self._vectors
        self._window.Unlock_all()
        self._window.Free()


def shared_sum(comm: MPICommunicator, length: int) -> SharedSum | None:
    """Return what sums vectors in shared memory, if all ranks are on one node with enough of it. **Collective.**"""
    node = comm.node_ranks()
    alone = bool(comm.maximum(np.array([len(node) < comm.size], np.int64))[0])
    if comm.size == 1 or alone or not _shared_memory(comm, node, 8 * length * comm.size):
        return None
    return SharedSum(comm, length)
