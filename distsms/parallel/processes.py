"""What Linux says of this host's processes in /proc. The watcher uses it, so it imports only the standard library."""

from __future__ import annotations

import contextlib
import os
import time

BUSY_SHARE = 1e-3  # a rank is idle if its processor time is less than this share of the time-out,
BUSY_BYTES = 2**16  # and if it moves fewer bytes than this
DEATH_GRACE = 3.0  # seconds that a launcher has to start all ranks, or to end a job in which a rank has died
STARTED_BY_USERS = ("mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra")
LAUNCHERS = (*STARTED_BY_USERS, "orted", "prted", "hydra_pmi_proxy")
ULFM = "OMPI_MCA_mpi_ft_enable"
"""The environment variable with which `mpirun --with-ft ulfm` tells the ranks that it forgives deaths."""
RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")  # variables of launchers


class Activity:
    """A process's `state`, a letter as in ps, and `since` when it uses less than `least` seconds of processor time."""

    def __init__(self, pid: int, least: float) -> None:
        self._pid, self._least = pid, least
        self._mark = (-1.0, -1.0)  # its seconds of processor time and bytes moved when it was last seen active
        self.since = time.monotonic()
        self.state = ""

    def look(self) -> None:
        now = fields(self._pid)
        if not now:
            return  # the process has ended, which `run` notices by the closed pipe
        self.state = now[0]
        used, moved = (int(now[11]) + int(now[12])) / os.sysconf("SC_CLK_TCK"), 0.0
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{self._pid}/io") as file:
            moved = sum(float(line.split()[1]) for line in file if "char" in line)
        busy = used - self._mark[0] >= self._least or moved - self._mark[1] >= BUSY_BYTES
        if busy or self.state == "R":  # R: it is running, or waits for a processor
            self._mark, self.since = (used, moved), time.monotonic()


def fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as file:
        return file.read().rsplit(")", 1)[1].split()
    return []


def state(pid: int) -> str:
    return (fields(pid) or [""])[0]


def end_of(pid: int) -> list[int]:
    """Return a descriptor that becomes readable when the process ends; nothing if there is none on this system."""
    with contextlib.suppress(OSError, AttributeError):  # the process has ended, or the system is too old
        return [os.pidfd_open(pid)]
    return []


def parent(pid: int) -> int:
    return int((fields(pid) or ["", "0"])[1])


def children(pid: int) -> list[int]:
    return [child for child in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(child) == pid]


def waited() -> float:
    """Return the seconds since this process, or a launcher that is its parent, was started; 0 if Linux does not say."""
    own, above = os.getpid(), os.getppid()
    started = fields(above if name(above) in STARTED_BY_USERS else own) or fields(own)
    if not started or not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started[19]) / os.sysconf("SC_CLK_TCK")


def name(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as file:
        return file.read().strip()
    return ""


def deaths_forgiven() -> bool:
    """Return whether the launcher lets the other ranks go on when one dies, and does not count that as a failure."""
    return os.environ.get(ULFM, "").lower() in ("1", "true", "yes", "on")


class Siblings:
    """The ranks of this host; a job that forgives deaths hangs, unseen by MPI, if one dies before MPI starts."""

    def __init__(self, pid: int) -> None:
        self._pid, self._complete = pid, time.monotonic()

    def lost(self) -> int:
        """Return how many have been gone for some seconds, if the launcher does not end the job; call it repeatedly."""
        now, gone = time.monotonic(), deaths_forgiven() and others_gone(self._pid)
        if not gone:
            self._complete = now
        return gone if now - self._complete > DEATH_GRACE else 0


def others_gone(pid: int) -> int:
    """Return how many of the ranks that the launcher started here beside a rank have ended; 0 if unknown."""
    started, launcher = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 0)), parent(pid)
    if not started or name(launcher) not in LAUNCHERS:
        return 0
    alive = [child for child in children(launcher) if state(child) not in ("", "Z", "X") and rank_of(child) != "?"]
    return max(0, started - len(alive))


def rank_of(pid: int) -> str:
    """Return the rank that the launcher gave a process; "?" if it is not known."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        variables = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
        return next((variables[name.encode()].decode() for name in RANKS if name.encode() in variables), "?")
    return "?"
