"""Measure what a process has used: seconds, bytes moved and read, and peak memory."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distsms.utils.timing import Clock

if TYPE_CHECKING:
    pass


def used(clock: Clock, moved: tuple[int, int], read: int, evaluations: int) -> dict[str, Any]:
    """What this rank took so far: seconds and bytes of each phase, bytes moved and read, peak memory. Local."""
    return {
        "seconds": dict(clock.seconds),
        "sent": dict(clock.sent),
        "received": dict(clock.received),
        "bytes_sent": moved[0],
        "bytes_received": moved[1],
        "bytes_read": read,
        "evaluations": evaluations,
        "peak_memory": peak_memory(),
    }


def busiest(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of usages, each number's largest among the ranks: what is kept with a model."""
    first = ranks[0]
    return {
        name: {phase: max(one[name].get(phase, 0) for one in ranks) for one in ranks for phase in one[name]}
        if isinstance(first[name], dict)
        else max(one[name] for one in ranks)
        for name in first
    }


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class ReadCounter:
    """Adds up, in `bytes`, what this process reads from files while it is entered, by the system's own count (Linux).

    Where the system does not tell, 0. What is not counted: pages of files that are mapped rather than read.
    """

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> None:
        self.bytes -= self._so_far()

    def __exit__(self, *failure: object) -> None:
        self.bytes += self._so_far()

    @staticmethod
    def _so_far() -> int:
        try:
            return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])
        except (OSError, IndexError, ValueError):
            return 0
