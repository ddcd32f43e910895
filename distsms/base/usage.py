"""Measure the resources that a process has used: seconds, bytes moved and read, and peak memory."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distsms.base.timing import Clock


def resource_usage(clock: Clock, moved: tuple[int, int], read: int, evaluations: int) -> dict[str, Any]:
    """Return what this rank has used so far, with bytes `moved` (sent, received) and `read`, ready for JSON. Local."""
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


def maximum_usage(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the maximum over ranks of each number in `resource_usage`; this is what a model records."""
    first = ranks[0]
    return {
        name: {phase: max(usage[name].get(phase, 0) for usage in ranks) for rank in ranks for phase in rank[name]}
        if isinstance(first[name], dict)
        else max(usage[name] for usage in ranks)
        for name in first
    }


def peak_memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class ReadCounter:
    """A context that adds to `bytes` what this process reads from files (on Linux), but not memory-mapped pages."""

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
