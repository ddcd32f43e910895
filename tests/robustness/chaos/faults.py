"""The faults of the chaos matrix: what they do to a running job, and how they are repaired."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.robustness.chaos.hosts import cut
from tests.support.program import rank_of


@dataclass
class Job:
    """A job that runs, as the faults see it.

    launcher : the process of mpirun.
    mark : the value of the variable CHAOS in the environment of all processes of the job.
    home, out : the folders of the inputs (a copy for this cell) and of the results.
    reads : the input that may vanish.
    """

    launcher: int
    mark: str
    home: Path
    out: Path
    reads: str

    def processes(self) -> list[int]:
        """Return all processes of the job, also those that lost their parent."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._belongs(pid)]

    def rank(self, number: int) -> int | None:
        """Return the process of a rank, without its watcher."""
        return self.ranks().get(number)

    def ranks(self) -> dict[int, int]:
        """Return the processes of all ranks, without their watchers."""
        found = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):
                if b"distsms" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found[rank_of(pid)] = pid
        return found

    def _belongs(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return f"CHAOS={self.mark}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False


@dataclass(frozen=True)
class Fault:
    """A fault: what it does at a random moment, what the environment has from the start, how it is repaired.

    strike : does it; returns False if there was nothing to strike at.
    variables : variables of failing_writes.c, from the start of the job and a random share of the bytes.
    repair : undoes it before the next run.
    writes : whether it concerns only commands that write files.
    """

    about: str
    strike: Callable[[Job, Random], bool] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    repair: Callable[[Job], None] | None = None
    writes: bool = False


def _signal(number: int, rank: int | None) -> Callable[[Job, Random], bool]:
    def strike(job: Job, chance: Random) -> bool:
        pid = job.launcher if rank is None else job.rank(rank)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    return strike


def _fill(job: Job, chance: Random) -> bool:
    """Fill the disk of the results to the last byte."""
    with contextlib.suppress(OSError), open(job.out / FILLER, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return True


def _remove(job: Job, chance: Random) -> bool:
    os.rename(job.home / job.reads, job.home / "taken away")
    return True


def _put_back(job: Job) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.rename(job.home / "taken away", job.home / job.reads)


FILLER = "filler"
FAULTS = {
    "kill -9 of a rank": Fault("SIGKILL to rank 1", _signal(signal.SIGKILL, 1)),
    "kill -9 of the root": Fault("SIGKILL to rank 0", _signal(signal.SIGKILL, 0)),
    "kill -9 of mpirun": Fault("SIGKILL to the launcher", _signal(signal.SIGKILL, None)),
    "SIGSTOP": Fault("SIGSTOP to rank 1, which nobody continues", _signal(signal.SIGSTOP, 1)),
    "SIGTERM": Fault("SIGTERM to rank 1", _signal(signal.SIGTERM, 1)),
    "SIGTERM to mpirun": Fault("SIGTERM to the launcher", _signal(signal.SIGTERM, None)),
    "host cut off": Fault(
        "the network of rank 1's host is switched off", lambda job, chance: cut(True), repair=lambda job: cut(False)
    ),
    "disk full": Fault(
        "another program fills the disk of the results",
        _fill,
        repair=lambda job: (job.out / FILLER).unlink(missing_ok=True),
        writes=True,
    ),
    "quota": Fault(
        "writes fail after some bytes: EDQUOT",
        variables={"FAILING_ERRNO": str(errno.EDQUOT), "FAILING_CALLS": "write"},
        writes=True,
    ),
    "EIO on read": Fault(
        "reads of the input fail after some bytes", variables={"FAILING_ERRNO": str(errno.EIO), "FAILING_CALLS": "read"}
    ),
    "input removed": Fault("a shard (for shard: the text) is taken away", _remove, repair=_put_back),
}
