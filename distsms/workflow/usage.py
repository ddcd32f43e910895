"""What a run has taken: every second that a user waited, bytes moved and read, and peak memory, on each rank.

The time of a command begins where its user's does: when the launcher starts that is the parent of this process, such as
mpirun, or else this process. That of a function in Python begins with the call. It ends when the line on it is printed,
which is the last one. Nobody here knows how long a queue or the shell took before, nor how long the launcher needs for
its end; and ranks whose host has only a daemon of the launcher count from when that started them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distsms.base import program
from distsms.base.timing import Clock
from distsms.base.usage import peak_memory
from distsms.parallel import processes
from distsms.parallel.communicator import Communicator

START, REST = "start-up", "rest"
"""The phases before the clock began (launcher, interpreter, imports, MPI), and between the other ones."""


def usage_of_ranks(clock: Clock, comm: Communicator, read: int, evaluations: int) -> list[dict[str, Any]]:
    """Return what each rank has used so far, ready for JSON, in rank order. **Collective.** `clock` has the phases,
    which `START` and `REST` complete; this rank has read so many bytes.
    """
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
