"""How much memory this machine has available, and how much of it, and of files, this process has taken."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

_LIMITS = ("memory.max", "memory.limit_in_bytes")
"""The files in which control groups of version 2 and 1 have their limit of memory."""


@dataclass(frozen=True)
class Memory:
    """The bytes that a part of a run takes on every rank, in addition on the root, and once for all ranks of a node."""

    each: int = 0
    root: int = 0
    node: int = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.each + other.each, self.root + other.root, self.node + other.node)

    def __mul__(self, times: int) -> Memory:
        return Memory(self.each * times, self.root * times, self.node * times)


def available(root: Path = Path("/"), held: int = 0) -> int:
    """Return the bytes of memory that are available here, with those `held`, or a control group's limit. Local."""
    fields = (line.split() for line in _lines(root / "proc/meminfo"))
    amounts = [1024 * int(field[1]) + held for field in fields if field[0] == "MemAvailable:"]
    amounts = amounts or [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _lines(root / "proc/self/cgroup"):
        _, controller, group = line.split(":", 2)
        at = root / "sys/fs/cgroup" / controller
        inner = at / group.lstrip("/")
        for place in (inner, *inner.parents):
            if place.is_relative_to(at):
                limits = [text for name in _LIMITS for text in _lines(place / name)]
                amounts += [int(text) for text in limits if text.isdecimal()]  # "max" means that there is no limit
    return min(amounts)


def give_back() -> None:
    """Return unused memory that glibc holds, for arrays up to 32 MiB, to the system; about 0.1 s for each GiB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process takes now; where the system does not say so, its peak. Local."""
    fields = [line.split() for line in _lines(root / "proc/self/statm")]
    return int(fields[0][1]) * os.sysconf("SC_PAGE_SIZE") if fields else peak_memory()


def peak_memory() -> int:
    """Return the most bytes of memory that this process has taken so far. Local."""
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
        fields = (line.split() for line in _lines(Path("/proc/self/io")))
        return next((int(field[1]) for field in fields if field[0] == "rchar:"), 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
