"""The collective operations over MPI, and the communicator of this job; launcher and mpi4py must use one library."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError, LaunchError
from distsms.base.typing import Floats
from distsms.parallel import buffers, shared_memory
from distsms.parallel.shared_memory import Replica, SharedSum

LAUNCHER = re.compile(
    "(OMPI_COMM|PMI|PMIX(?!_MCA)|MPI|MPIRUN|HYDRA?|MV2|MPISPAWN|SLURM|PALS|ALPS|FLUX|JSM|PBS|LSB|PRTE(?!_MCA)|MPIEXEC)_"
)
"""Matches environment variables that MPI launchers, and schedulers that start ranks, set for their processes."""


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
        for piece in buffers.pieces(array):
            self._comm.Bcast(piece, root=0)
        (self.received if self.rank else self.sent)["broadcast"] += array.nbytes
        return array

    def sum(self, array: NDArray[Any]) -> NDArray[Any]:
        return self._reduce("sum", self.mpi.SUM, array)

    def maximum(self, array: NDArray[Any]) -> NDArray[Any]:
        return self._reduce("maximum", self.mpi.MAX, array)

    def _reduce(self, name: str, operation: Any, array: NDArray[Any]) -> NDArray[Any]:
        for piece in buffers.pieces(array):
            self._comm.Allreduce(self.mpi.IN_PLACE, piece, op=operation)
        self.sent[name] += array.nbytes
        self.received[name] += array.nbytes
        return array

    def reduce(self, array: NDArray[Any], piece: int | None = None) -> NDArray[Any]:
        self._reduce_to(0, array, piece)
        (self.sent if self.rank else self.received)["reduce"] += array.nbytes
        return array

    def _reduce_to(self, root: int, array: NDArray[Any], piece: int | None = None) -> None:
        for part in buffers.pieces(array, piece):
            mine = (self.mpi.IN_PLACE, part) if self.rank == root else (part, None)
            self._comm.Reduce(*mine, op=self.mpi.SUM, root=root)

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

    def shared_sum(self, length: int) -> SharedSum | None:
        return shared_memory.shared_sum(self, length)

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

    def scatter_rows(self, whole: Floats | None, n_local: int) -> Floats:
        counts = self._comm.gather(n_local, root=0)
        local = np.empty(n_local)
        if self.rank != 0:
            for piece in buffers.pieces(local):
                self._comm.Recv(piece, source=0)
            self.received["scatter"] += local.nbytes
            return local
        assert whole is not None
        whole = np.ascontiguousarray(whole, np.float64)
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
        buffers.share(whole, counts, self.rank)[:] = local
        buffers.complete(self.mpi, self._comm, whole, counts)
        self.sent["allgather"] += local.nbytes
        self.received["allgather"] += whole.nbytes - local.nbytes
        return whole

    def alltoall_rows(self, rows: NDArray[Any], counts: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        rows, counts = np.ascontiguousarray(rows), np.ascontiguousarray(counts, np.int64)
        incoming = np.empty_like(counts)
        self._comm.Alltoall(counts, incoming)
        got = np.empty(int(incoming.sum()), rows.dtype)
        requests, mine = [], rows[:0]
        # Single messages rather than Alltoallv: they can be split into pieces, and ranks that have nothing for each
        # other exchange nothing.
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
    _refuse_pmix()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is there, but no MPI library
        if launched > 1:
            raise LaunchError(
                f"started as {launched} processes, but mpi4py cannot be imported: {error}. Install mpi4py and an MPI "
                "library (pip install 'distsms[mpi]' brings both), or start a single process"
            ) from error
        return Communicator()
    size = MPI.COMM_WORLD.Get_size()
    if size == 1 and launched > 1:
        library = MPI.Get_library_version().split("\0")[0].strip().splitlines()[0]
        raise LaunchError(
            f"the launcher started {launched} processes, but MPI sees each as rank 0 of 1. {_other_library(library)}"
        )
    return MPICommunicator(MPI.COMM_WORLD) if size > 1 else Communicator()


def _refuse_pmix() -> None:
    """Raise LaunchError if a launcher of PMIx meets the MPICH of PyPI, which would fail in words for its developers."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        if "PMIX_RANK" in os.environ:
            library = f"MPICH {importlib.metadata.version('mpich')} of this environment"
            raise LaunchError(f"the launcher cannot start ranks of this MPI. {_other_library(library)}")


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
        raise InputError(
            f"comm is a communicator of mpi4py, and a {type(comm).__name__} was given. Rows and labels belong together "
            "in one pair, as in train((X, y)); of a DataFrame, the label is a column, as in train(frame, label='y')",
            everywhere=True,
        )
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
