"""What a run has taken: every second that a user waited, bytes moved and read, and peak memory, on each rank.

The time of a command begins when its launcher starts, such as mpirun, or else this process; that of a function in
Python with the call. It ends with the line on it, which is the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distsms.base import program
from distsms.base.communicator import Communicator
from distsms.base.memory import peak_memory
from distsms.base.timing import Clock
from distsms.parallel import processes

START, REST = "start-up", "rest"
"""The phases before the clock began (launcher, interpreter, imports, MPI), and between the other ones."""


def usage_of_ranks(clock: Clock, comm: Communicator, read: int, evaluations: int) -> list[dict[str, Any]]:
    """Return what each rank has used: phases of the clock, completed, and bytes `read`. **Collective.**"""
    seconds, since = dict(clock.seconds), clock.since_begin()
    if program.runs:
        seconds = {START: max(processes.waited() - since, 0.0)} | seconds
    seconds[REST] = max(since - sum(clock.seconds.values()), 0.0)
    sent, received = comm.bytes_moved()
    return comm.allgather(
        {
            "seconds": seconds,
            "sent": dict(clock.sent),
            "received": dict(clock.received),
            "bytes_sent": sent,
            "bytes_received": received,
            "bytes_read": read,
            "evaluations": evaluations,
            "peak_memory": peak_memory(),
        }
    )


def maximum_usage(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the maximum over ranks of each number in `usage_of_ranks`; this is what a model records."""
    first = ranks[0]
    return {
        name: {phase: max(usage[name].get(phase, 0) for usage in ranks) for rank in ranks for phase in rank[name]}
        if isinstance(first[name], dict)
        else max(usage[name] for usage in ranks)
        for name in first
    }
