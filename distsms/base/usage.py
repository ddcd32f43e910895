"""Measure what a process has read, and its peak memory."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


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
