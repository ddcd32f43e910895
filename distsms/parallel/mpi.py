"""The collective operations over MPI, and the communicator of this job; launcher and mpi4py must use one library.

Arrays travel in messages small enough for MPI's 32-bit counts. A vector that every rank reads whole is a copy on each
rank, or one on each node, in whose memory sums can be made, too.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator, Replica
from distsms.base.errors import InputError, LaunchError
from distsms.base.typing import Floats

LAUNCHER = re.compile(
    "(OMPI_COMM|PMI|PMIX(?!_MCA)|MPI|MPIRUN|HYDRA?|MV2|MPISPAWN|SLURM|PALS|ALPS|FLUX|JSM|PBS|LSB|PRTE(?!_MCA)|MPIEXEC)_"
)
"""Matches environment variables that MPI launchers, and schedulers that start ranks, set for their processes."""
COUNT_LIMIT = 2**30
"""Maximum number of elements in one MPI message; tests lower it so that small arrays are split, too."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux, and so MPI, keeps shared memory; we create no files there


class MPICommunicator(Communicator):
    def __init__(self, mpi_comm: Any) -> None:
        from distsms.base.jit import compiling

        super().__init__()
        self._comm = mpi_comm
        self.rank = mpi_comm.Get_rank()
        self.size = mpi_comm.Get_size()
        compiling.silent |= self.rank > 0

    @property
    def mpi(self) -> Any:
        """mpi4py's module MPI."""
        from mpi4py import MPI

        return MPI

    @property
    def mpi_comm(self) -> Any:
        return self._comm

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        for piece in pieces(array):
            self._comm.Bcast(piece, root=0)
        self.sent += array.nbytes * self.is_root
        self.received += array.nbytes * (not self.is_root)
        return array

    def sum(self, array: NDArray[Any]) -> NDArray[Any]:
        return self._reduce(self.mpi.SUM, array)

    def maximum(self, array: NDArray[Any]) -> NDArray[Any]:
        return self._reduce(self.mpi.MAX, array)

    def _reduce(self, operation: Any, array: NDArray[Any]) -> NDArray[Any]:
        for piece in pieces(array):
            self._comm.Allreduce(self.mpi.IN_PLACE, piece, op=operation)
        self.sent += array.nbytes
        self.received += array.nbytes
        return array

    def reduce(self, array: NDArray[Any], piece: int | None = None) -> NDArray[Any]:
        self._reduce_to(0, array, piece)
        self.sent += array.nbytes * (not self.is_root)
        self.received += array.nbytes * self.is_root
        return array

    def _reduce_to(self, root: int, array: NDArray[Any], piece: int | None = None) -> None:
        for part in pieces(array, piece):
            mine = (self.mpi.IN_PLACE, part) if self.rank == root else (part, None)
            self._comm.Reduce(*mine, op=self.mpi.SUM, root=root)

    def reduce_scatter(self, array: NDArray[Any], counts: Sequence[int], in_turn: bool = False) -> NDArray[Any]:
        mine = np.empty(counts[self.rank], array.dtype)
        if in_turn or array.size > COUNT_LIMIT:
            for rank, part in parts(array, counts):
                self._reduce_to(rank, part)
                if rank == self.rank:
                    mine[:] = part
        else:
            self._comm.Reduce_scatter(array, mine, counts)
        self.sent += array.nbytes - mine.nbytes
        self.received += mine.nbytes
        return mine

    def replica(self, k: int, length: int, shared: bool) -> Replica:
        node = self.node_ranks() if shared else [self.rank]
        nodes = self.allgather(node)
        contiguous = all(ranks == list(range(ranks[0], ranks[-1] + 1)) for ranks in nodes)
        if contiguous and max(len(ranks) for ranks in nodes) > 1 and self._has_shared_memory(node, 8 * k * length):
            return OnePerNode(self, k, length, sorted({tuple(ranks) for ranks in nodes}))
        return OnePerRank(self, k, length)

    def shared_sum(self, length: int) -> SharedSum | None:
        node = self.node_ranks()
        alone = bool(self.maximum(np.array([len(node) < self.size], np.int64))[0])
        if self.size == 1 or alone or not self._has_shared_memory(node, 8 * length * self.size):
            return None
        return SharedSum(self, length)

    def _has_shared_memory(self, node: list[int], size: int) -> bool:
        """Return whether the shared memory of every node has at least `size` free bytes. **Collective.**"""
        try:
            free = shutil.disk_usage(SHARED_MEMORY).free
        except OSError:
            free = 0
        return bool(self.maximum(np.array([self.rank == node[0] and free < size + 2**24], np.int64))[0] == 0)

    def gather_rows(self, local: NDArray[Any]) -> NDArray[Any] | None:
        counts = np.zeros(self.size, np.int64)
        counts[0] = len(local)
        whole, _ = self.alltoall_rows(local, counts)
        return whole if self.is_root else None

    def scatter_rows(self, whole: Floats | None, n_local: int) -> Floats:
        counts = self._comm.gather(n_local, root=0)
        if not self.is_root:
            whole, counts = np.empty(0), np.zeros(self.size)
        return self.alltoall_rows(np.asarray(whole, np.float64), counts)[0]

    def allgather_rows(self, local: NDArray[Any], counts: Sequence[int]) -> NDArray[Any]:
        local = np.ascontiguousarray(local)
        whole = np.empty(sum(counts), local.dtype)
        share(whole, counts, self.rank)[:] = local
        self.complete(whole, counts, self._comm)
        return whole

    def complete(self, whole: NDArray[Any], counts: Sequence[int], among: Any) -> None:
        """Fill in the other ranks' shares of an array (sum(counts),), in rank order. **Collective** `among` them."""
        if len(whole) <= COUNT_LIMIT:
            among.Allgatherv(self.mpi.IN_PLACE, [whole, counts])
        else:  # MPI's counts and offsets are 32 bits wide, so each rank in turn broadcasts its share in pieces.
            for rank, part in parts(whole, counts):
                for piece in pieces(part):
                    among.Bcast(piece, root=rank)
        mine = counts[among.Get_rank()] * whole.itemsize
        self.sent += mine
        self.received += whole.nbytes - mine

    def alltoall_rows(self, rows: NDArray[Any], counts: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        rows, counts = np.ascontiguousarray(rows), np.ascontiguousarray(counts, np.int64)
        incoming = np.empty_like(counts)
        self._comm.Alltoall(counts, incoming)
        got = np.empty(int(incoming.sum()), rows.dtype)
        requests, mine = [], rows[:0]
        # Single messages rather than Alltoallv: they can be split into pieces, and ranks that have nothing for each
        # other exchange nothing.
        for rank, part in parts(rows, counts):
            if rank == self.rank:
                mine = part
                continue
            requests += [self._comm.Isend(piece, dest=rank) for piece in pieces(part)]
            self.sent += part.nbytes
        for rank, part in parts(got, incoming):
            if rank == self.rank:
                part[:] = mine
                continue
            requests += [self._comm.Irecv(piece, source=rank) for piece in pieces(part)]
            self.received += part.nbytes
        self.mpi.Request.Waitall(requests)
        return got, incoming

    def allgather(self, item: Any) -> list[Any]:
        return self._comm.allgather(item)

    def bcast(self, item: Any) -> Any:
        return self._comm.bcast(item, root=0)

    def node_ranks(self) -> list[int]:
        node = self._comm.Split_type(self.mpi.COMM_TYPE_SHARED)
        ranks = node.allgather(self.rank)
        node.Free()
        return ranks

    def barrier(self) -> None:
        self._comm.Barrier()

    def abort(self, code: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._comm.Abort(code)


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
            share(whole, counts, comm.rank)[:] = mine
            comm.complete(whole, counts, comm.mpi_comm)
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
            for piece in pieces(self._rows):
                self._leaders.Bcast(piece, root=0)
            self._comm.sent += self._rows.nbytes * self._comm.is_root
            self._comm.received += self._rows.nbytes * (not self._comm.is_root)
        self._synchronize()
        return self._rows

    def gather(self, slices: Sequence[Floats], counts: Sequence[int]) -> Floats:
        self._synchronize()
        for whole, mine in zip(self._rows, slices, strict=True):
            share(whole, counts, self._comm.rank)[:] = mine
        self._synchronize()
        if self._leads:
            node_counts = [sum(counts[rank] for rank in ranks) for ranks in self._nodes]
            for whole in self._rows:
                self._comm.complete(whole, node_counts, self._leaders)
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
        first, *others = (share(vector, counts, self._comm.rank) for vector in self._vectors)
        total = first.copy()
        for other in others:
            total += other
        return total

    def reduce(self, array: Floats) -> Floats:
        """Set the root's array, of any length, to the sum of all ranks' arrays; return the array. **Collective.**"""
        rank, size = self._comm.rank, self._comm.size
        for piece in pieces(array, len(self._vectors[0])):
            counts = [len(piece) // size + (other < len(piece) % size) for other in range(size)]
            share(self._vectors[0], counts, rank)[:] = self.scatter(piece, counts)
            self._synchronize()
            if self._comm.is_root:
                piece[:] = self._vectors[0][: len(piece)]
        return array

    def close(self) -> None:
        """Free the memory. **Collective.**"""
        del self._vectors
        self._window.Unlock_all()
        self._window.Free()


def share(whole: NDArray[Any], counts: Sequence[int], rank: int) -> NDArray[Any]:
    """Return a view of a rank's share of an array of all ranks' shares, in rank order, with counts[rank] rows each."""
    start = sum(counts[:rank])
    return whole[start : start + counts[rank]]


def pieces(array: NDArray[Any], most: int | None = None) -> Iterator[NDArray[Any]]:
    """Yield views of at most `most` elements (`COUNT_LIMIT`) that cover a C-contiguous array in memory order."""
    flat, most = array.reshape(-1), most or COUNT_LIMIT
    assert np.shares_memory(flat, array) or not flat.size
    for start in range(0, flat.size, most):
        yield flat[start : start + most]


def parts(whole: NDArray[Any], counts: Sequence[int] | NDArray[np.int64]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (rank, view) for each rank's share of an array that holds all shares in rank order."""
    for rank, (end, count) in enumerate(zip(np.cumsum(counts), counts, strict=True)):
        yield rank, whole[end - count : end]


def launched_size() -> int:
    """Return how many ranks the launcher started, according to the variables that launchers set; 0 without one."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS"):
        with contextlib.suppress(KeyError, ValueError):
            return int(os.environ[name])
    return 0


def world() -> Communicator:
    """Return the communicator of all ranks of this job; a single rank, without starting MPI, if there is no launcher or
    no mpi4py. Raises LaunchError if launcher and mpi4py use different MPI libraries: each process would do the whole
    job.
    """
    launched = launched_size()
    if not any(LAUNCHER.match(name) for name in os.environ):
        return Communicator()
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        if "PMIX_RANK" in os.environ:  # the MPICH of PyPI would fail there, in words for its developers
            library = f"MPICH {importlib.metadata.version('mpich')} of this environment"
            raise LaunchError(f"the launcher cannot start ranks of this MPI. {_other_library(library)}")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is there, but no MPI library
        if launched > 1:
            remedy = "Install it with an MPI library, by pip install 'distsms[mpi]', or start a single process"
            problem = f"started as {launched} processes, but mpi4py cannot be imported: {error}"
            raise LaunchError(f"{problem}. {remedy}") from error
        return Communicator()
    size = MPI.COMM_WORLD.Get_size()
    if size == 1 and launched > 1:
        other = _other_library(library_versions()["MPI library"])
        raise LaunchError(f"the launcher started {launched} processes, but MPI sees each as rank 0 of 1. {other}")
    return MPICommunicator(MPI.COMM_WORLD) if size > 1 else Communicator()


def _other_library(library: str) -> str:
    launcher = own_launcher()
    return (
        f"The launcher belongs to another MPI library than mpi4py, which uses {library}. Use that library's own mpirun"
        f"{f', {launcher}' if launcher else ''} (or `srun --mpi=` with a type that the library supports), or reinstall"
        " mpi4py and petsc4py with the launcher's MPI."
    )


def own_launcher() -> str:
    """Return the path of the mpirun that was installed in this Python's environment; empty if there is none."""
    path = Path(sys.prefix, "bin", "mpirun")
    return str(path) if path.exists() else ""


def describe_launcher() -> str:
    """Return in words which mpirun starts the ranks of this installation."""
    launcher, in_path = own_launcher(), shutil.which("mpirun") or ""
    if not launcher or (in_path and os.path.samefile(launcher, in_path)):
        return in_path or "none in the PATH"
    other = f"has {in_path}" if in_path else "has none"
    return f"{launcher} (the PATH {other}: activate the environment, or start ranks with this path)"


def as_communicator(comm: Any) -> Communicator:
    """Wrap mpi4py's communicator; None is this process alone; a `Communicator` stays. Raises InputError for others."""
    if isinstance(comm, Communicator):
        return comm
    if comm is not None and not hasattr(comm, "Get_size"):
        problem = f"comm is a communicator of mpi4py, and a {type(comm).__name__} was given"
        remedy = "Give rows with their labels as one pair, train((X, y)), or as a DataFrame, train(frame, label='y')"
        raise InputError(f"{problem}. {remedy}", everywhere=True)
    return Communicator() if comm is None or comm.Get_size() == 1 else MPICommunicator(comm)


def library_versions() -> dict[str, str]:
    """Return the versions of mpi4py and of the MPI library, without initializing MPI."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return {"mpi4py": f"not usable: {error}"}
    return {
        "mpi4py": mpi4py.__version__,
        "MPI library": MPI.Get_library_version().split("\0")[0].strip().splitlines()[0],
    }
