"""What Linux says of the processes of this host in /proc: names, parents, states, and whether they do anything.

`distsms.parallel.watcher` uses it, so it imports nothing but Python's standard library.
"""

from __future__ import annotations

import contextlib
import os
import time

BUSY_SHARE = 1e-3  # a rank is idle if its processor time is less than this share of the time-out,
BUSY_BYTES = 2**16  # and if it moves fewer bytes than this
RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")  # variables of launchers


class Activity:
    """For how long a process has been idle, and its state.

    Parameters
    ----------
    pid : int
        The process.
    least : float
        Seconds of processor time that count as activity.

    Attributes
    ----------
    since : float
        When it was last seen active, by `time.monotonic`.
    state : str
        Its state, a letter as in ps.
    """

    def __init__(self, pid: int, least: float) -> None:
        self._pid, self._least = pid, least
        self._mark = (-1.0, -1.0)  # its seconds of processor time and bytes moved when it was last seen active
        self.since = time.monotonic()
        self.state = ""

    def look(self) -> None:
        """Observe the process, and update `since` and `state`."""
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
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()
    return []


def state(pid: int) -> str:
    """Return the state of a process, a letter as in ps; "" if it has ended."""
    return (fields(pid) or [""])[0]


def end_of(pid: int) -> list[int]:
    """Return a descriptor that becomes readable when the process ends; nothing if there is none on this system."""
    with contextlib.suppress(OSError, AttributeError):  # the process has ended, or the system is too old
        return [os.pidfd_open(pid)]
    return []


def parent(pid: int) -> int:
    """Return the parent of a process; 0 if the process has ended."""
    return int((fields(pid) or ["", "0"])[1])


def name(pid: int) -> str:
    """Return the name of a process; "" if it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
    return ""


def rank_of(pid: int) -> str:
    """Return the rank that the launcher gave a process; "?" if it is not known."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        variables = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
        return next((variables[name.encode()].decode() for name in RANKS if name.encode() in variables), "?")
    return "?"
