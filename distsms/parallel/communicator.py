"""Every collective of the program, over MPI or on one process. No other module imports mpi4py.

`Communicator` is one rank alone: its collectives are copies or nothing at all. `MPICommunicator` gives them their
distributed meaning. What calls them never asks which one it has. Arrays are C-contiguous numpy arrays; buffers of more
than `buffers.COUNT_LIMIT` elements travel in pieces, since MPI counts them in 32 bits.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from distsms.errors import DistsmsError, LaunchError
from distsms.parallel import buffers, shared_memory
from distsms.parallel.shared_memory import Replica

T = TypeVar("T")


class Communicator:
    """One rank alone.

    `sent` and `received` count bytes by name of the collective: what this rank hands to the transport, and what it gets
    from it. What it keeps for itself is neither. A buffer that is reduced counts once each way and a broadcast one once
    at the root and once at each other rank, by whatever tree the library passes it on. Counts of rows, and the Python
    objects of set-up, are not counted.
    """

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, which writes the files."""
        return self.rank == 0

    def moved(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return sum(self.sent.values()), sum(self.received.values())

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """Fill every rank's `array` (same shape and dtype everywhere) with the root's. Collective, in place."""
        return array

    def sum(self, array: NDArray[Any]) -> NDArray[Any]:
        """Replace `array` (same shape and dtype everywhere) by the sum over ranks. Collective, in place."""
        return array

    def maximum(self, array: NDArray[Any]) -> NDArray[Any]:
        """Replace `array` (same shape and dtype everywhere) by the largest over ranks. Collective, in place."""
        return array

    def reduce(self, array: NDArray[Any], piece: int | None = None) -> NDArray[Any]:
        """Replace the root's `array` by the sum over ranks, at most `piece` elements at a time. Collective, in place.

        The other ranks' arrays, of the same shape and dtype, stay what they are.
        """
        return array

    def reduce_scatter(self, array: NDArray[Any], counts: Sequence[int], in_turn: bool = False) -> NDArray[Any]:
        """Sum (n,) arrays over ranks and deal the sum out, counts[rank] to each in rank order. Collective.

        in_turn : by a reduction to each rank in turn, rather than by the library's own collective.
        One rank alone gets its own array back, not a copy.
        """
        return array

    def replica(self, k: int, length: int, shared: bool) -> Replica:
        """Room for k vectors that every rank reads. Collective.

        shared : whether ranks that share a node shall share one copy; where they cannot, each has its own.
        """
        return Replica()

    @property
    def library(self) -> Any:
        """mpi4py's communicator of all ranks, for libraries that want one; None without mpi4py."""
        return alone()

    def gather_rows(self, local: NDArray[Any]) -> NDArray[Any] | None:
        """Concatenate each rank's (n_local,) array in rank order on the root; None elsewhere. Collective."""
        return local

    def scatter_rows(self, whole: NDArray[Any] | None, n_local: int, dtype: Any = np.float64) -> NDArray[Any]:
        """The inverse of `gather_rows`: the root's (n,) array is dealt out, n_local to each rank. Collective."""
        assert whole is not None
        return whole

    def allgather_rows(self, local: NDArray[Any], counts: Sequence[int]) -> NDArray[Any]:
        """Concatenate each rank's (counts[rank],) array in rank order, on every rank. Collective.

        One rank alone gets its own array back, not a copy.
        """
        return local

    def alltoall_rows(self, rows: NDArray[Any], counts: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Deal out an array to all ranks: the first counts[0] rows to rank 0, the next counts[1] to rank 1, and so on.

        Returns what this rank got, in rank order, and how much of it from each rank, (size,): called with these, it
        takes answers the same way back. Collective. One rank alone gets its own array back, not a copy.
        """
        return rows, counts

    def allgather(self, item: Any) -> list[Any]:
        """Every rank's small Python object, in rank order. Collective; for set-up, never per evaluation."""
        return [item]

    def bcast(self, item: Any) -> Any:
        """The root's small Python object, on every rank. Collective; for set-up, never per evaluation."""
        return item

    def node_ranks(self) -> list[int]:
        """The ranks that share this rank's node and its memory, itself among them. Collective; for set-up."""
        return [self.rank]

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""

    def root_first(self, make: Callable[[], T]) -> T:
        """What `make` gives on each rank, called on the root before the others. Collective; `make` is local.

        For what needs compiled kernels: one rank compiles them, the others find them in the cache.
        """
        made = make() if self.is_root else None
        self.barrier()
        return make() if made is None else made

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Run local work that may fail (reading files, say) and let all ranks fail if one does. Collective at the end.

        The body must not communicate. An error that a user can mend (`DistsmsError`) on any rank is raised on every
        rank, with the lowest failing rank's message, so that it is reported once and the job ends in order. Anything
        else is a defect: it goes straight to the abort guard of `distsms.__main__`.
        """
        error: DistsmsError | None = None
        try:
            yield
        except DistsmsError as caught:
            error = caught
        failures = [(rank, one) for rank, one in enumerate(self.allgather(error)) if one is not None]
        if failures:
            rank, first = failures[0]
            note = f" [rank {rank} of {self.size}]" if self.size > 1 else ""
            raise type(first)(f"{first}{note}", everywhere=True) from error

    def abort(self, code: int) -> None:
        """End the whole job at once with this exit code, whatever the other ranks are doing."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class MPICommunicator(Communicator):
    """All ranks of an mpi4py communicator."""

    def __init__(self, mpi_comm: Any) -> None:
        super().__init__()
        self._comm = mpi_comm
        self.rank = mpi_comm.Get_rank()
        self.size = mpi_comm.Get_size()

    @property
    def mpi(self) -> Any:
        """mpi4py's module MPI, for `replicas` and `buffers`."""
        from mpi4py import MPI

        return MPI

    @property
    def library(self) -> Any:
        return self._comm

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        for piece in buffers.pieces(array):
            self._comm.Bcast(piece, root=0)
        (self.received if self.rank else self.sent)["broadcast"] += array.nbytes
        return array

    def sum(self, array: NDArray[Any]) -> NDArray[Any]:
        from mpi4py import MPI

        return self._reduce("sum", MPI.SUM, array)

    def maximum(self, array: NDArray[Any]) -> NDArray[Any]:
        from mpi4py import MPI

        return self._reduce("maximum", MPI.MAX, array)

    def _reduce(self, name: str, operation: Any, array: NDArray[Any]) -> NDArray[Any]:
        from mpi4py import MPI

        for piece in buffers.pieces(array):
            self._comm.Allreduce(MPI.IN_PLACE, piece, op=operation)
        self.sent[name] += array.nbytes
        self.received[name] += array.nbytes
        return array

    def reduce(self, array: NDArray[Any], piece: int | None = None) -> NDArray[Any]:
        self._reduce_to(0, array, piece)
        (self.sent if self.rank else self.received)["reduce"] += array.nbytes
        return array

    def _reduce_to(self, root: int, array: NDArray[Any], piece: int | None = None) -> None:
        from mpi4py import MPI

        for part in buffers.pieces(array, piece):
            mine = (MPI.IN_PLACE, part) if self.rank == root else (part, None)
            self._comm.Reduce(*mine, op=MPI.SUM, root=root)

    def reduce_scatter(self, array: NDArray[Any], counts: Sequence[int], in_turn: bool = False) -> NDArray[Any]:
        mine = np.empty(counts[self.rank], array.dtype)
        if in_turn or array.size > buffers.COUNT_LIMIT:
            for rank, part in buffers.parts(array, counts):
                self._reduce_to(rank, part)
                if rank == self.rank:
                    mine[:] = part
        else:
            self._comm.Reduce_scatter(array, mine, counts)
        self.sent["reduce-scatter"] += array.nbytes - mine.nbytes
        self.received["reduce-scatter"] += mine.nbytes
        return mine

    def replica(self, k: int, length: int, shared: bool) -> Replica:
        return shared_memory.over_ranks(self, k, length, shared)

    def gather_rows(self, local: NDArray[Any]) -> NDArray[Any] | None:
        local = np.ascontiguousarray(local)
        counts = self._comm.gather(len(local), root=0)
        if self.rank != 0:
            for piece in buffers.pieces(local):
                self._comm.Send(piece, dest=0)
            self.sent["gather"] += local.nbytes
            return None
        whole = np.empty(sum(counts), local.dtype)
        for rank, part in buffers.parts(whole, counts):
            if rank == 0:
                part[:] = local
                continue
            for piece in buffers.pieces(part):
                self._comm.Recv(piece, source=rank)
            self.received["gather"] += part.nbytes
        return whole

    def scatter_rows(self, whole: NDArray[Any] | None, n_local: int, dtype: Any = np.float64) -> NDArray[Any]:
        counts = self._comm.gather(n_local, root=0)
        local = np.empty(n_local, dtype)
        if self.rank != 0:
            for piece in buffers.pieces(local):
                self._comm.Recv(piece, source=0)
            self.received["scatter"] += local.nbytes
            return local
        assert whole is not None
        whole = np.ascontiguousarray(whole, dtype)
        for rank, part in buffers.parts(whole, counts):
            if rank == 0:
                local[:] = part
                continue
            for piece in buffers.pieces(part):
                self._comm.Send(piece, dest=rank)
            self.sent["scatter"] += part.nbytes
        return local

    def allgather_rows(self, local: NDArray[Any], counts: Sequence[int]) -> NDArray[Any]:
        local = np.ascontiguousarray(local)
        whole = np.empty(sum(counts), local.dtype)
        buffers.own(whole, counts, self.rank)[:] = local
        buffers.complete(self.mpi, self._comm, whole, counts)
        self.sent["allgather"] += local.nbytes
        self.received["allgather"] += whole.nbytes - local.nbytes
        return whole

    def alltoall_rows(self, rows: NDArray[Any], counts: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        from mpi4py import MPI

        rows, counts = np.ascontiguousarray(rows), np.ascontiguousarray(counts, np.int64)
        incoming = np.empty_like(counts)
        self._comm.Alltoall(counts, incoming)
        got = np.empty(int(incoming.sum()), rows.dtype)
        requests, mine = [], rows[:0]
        # Message by message rather than Alltoallv: pieces of any number, and nothing between ranks that have nothing.
        for rank, part in buffers.parts(rows, counts):
            if rank == self.rank:
                mine = part
                continue
            requests += [self._comm.Isend(piece, dest=rank) for piece in buffers.pieces(part)]
            self.sent["alltoall"] += part.nbytes
        for rank, part in buffers.parts(got, incoming):
            if rank == self.rank:
                part[:] = mine
                continue
            requests += [self._comm.Irecv(piece, source=rank) for piece in buffers.pieces(part)]
            self.received["alltoall"] += part.nbytes
        MPI.Request.Waitall(requests)
        return got, incoming

    def allgather(self, item: Any) -> list[Any]:
        return self._comm.allgather(item)

    def bcast(self, item: Any) -> Any:
        return self._comm.bcast(item, root=0)

    def node_ranks(self) -> list[int]:
        from mpi4py import MPI

        node = self._comm.Split_type(MPI.COMM_TYPE_SHARED)
        ranks = node.allgather(self.rank)
        node.Free()
        return ranks

    def barrier(self) -> None:
        self._comm.Barrier()

    def abort(self, code: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._comm.Abort(code)


def launched_size() -> int:
    """How many ranks the launcher says it started, from the variables it sets; 0 if there was none."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS"):
        with contextlib.suppress(KeyError, ValueError):
            return int(os.environ[name])
    return 0


def world() -> Communicator:
    """All ranks of this job; one rank alone if mpi4py is not installed.

    Raises LaunchError where the launcher started several processes but MPI sees each as "rank 0 of 1": two MPI
    libraries are mixed, and 32 jobs would otherwise do the same work and overwrite each other's files.
    """
    launched = launched_size()
    try:
        from mpi4py import MPI
    except ImportError as error:
        if launched > 1:
            raise LaunchError(f"started as {launched} processes, but mpi4py cannot be imported: {error}") from error
        return Communicator()
    size = MPI.COMM_WORLD.Get_size()
    if size == 1 and launched > 1:
        library = MPI.Get_library_version().split("\0")[0].strip().splitlines()[0]
        raise LaunchError(
            f"the launcher started {launched} processes, but MPI sees each as rank 0 of 1. The launcher belongs to "
            f"another MPI than mpi4py, which uses {library}. Use that library's own mpirun (or `srun --mpi=` with a "
            "type it knows), or reinstall mpi4py and petsc4py with the launcher's MPI."
        )
    return MPICommunicator(MPI.COMM_WORLD) if size > 1 else Communicator()


def communicator(comm: Any) -> Communicator:
    """All ranks of an mpi4py communicator; None is this process alone. A `Communicator` is returned as it is. Local."""
    if isinstance(comm, Communicator):
        return comm
    return Communicator() if comm is None or comm.Get_size() == 1 else MPICommunicator(comm)


def alone() -> Any:
    """mpi4py's communicator of this process alone, for libraries that want one; None without mpi4py."""
    try:
        from mpi4py import MPI
    except ImportError:
        return None
    return MPI.COMM_SELF


def library_versions() -> dict[str, str]:
    """Versions of mpi4py and of the MPI library behind it, without initializing MPI."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.initialize = False
        from mpi4py import MPI
    except ImportError as error:
        return {"mpi4py": f"not usable: {error}"}
    return {
        "mpi4py": mpi4py.__version__,
        "MPI library": MPI.Get_library_version().split("\0")[0].strip().splitlines()[0],
    }
