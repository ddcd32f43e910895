"""The process that runs the program: what no code of users shares, and what whoever started it has left it: standard
output and error, a working directory, and memory.
"""

from __future__ import annotations

import io
import math
import os
import resource
import select
import sys
from resource import RLIM_INFINITY, RLIMIT_AS, RLIMIT_DATA
from typing import Any, NamedTuple

runs = False
"""Whether this process runs the program."""
options: dict[str, Any] = {}
"""What its command line says, with the file of --config, by the names of options; see `distsms.cli.config`."""


class _NoPandas:
    """A finder of modules for which pandas is not installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def leave_out_pandas(pyarrow: Any) -> None:
    """Let pyarrow, at its first array, take pandas for absent in the program: to load it takes up to 0.7 s."""
    if runs and "pandas" not in sys.modules:
        finder: Any = _NoPandas()
        sys.meta_path.insert(0, finder)
        pyarrow.array([])
        sys.meta_path.remove(finder)


class StandardStream(io.FileIO):
    """Standard output or error: what cannot be written is dropped, and the first `failure` kept."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.fileno(), rest) :]
            except BlockingIOError:  # another process has made it so; wait until the reader has read
                select.select([], [self], [])
            except OSError as error:
                self.failure = self.failure or error
                break
        return len(data)


def failure_of_standard_output() -> OSError | None:
    """Return why standard output could not be written, if it was opened as a `StandardStream`; None if all was."""
    return getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "failure", None)


NO_WORKING_FOLDER = "the working directory was removed, or cannot be read"


def has_working_folder() -> bool:
    """Return whether the folder in which this process works is still there, as names of files without / need."""
    try:
        os.getcwd()
    except OSError:
        return False
    return True


LEAST_MEMORY = 2**29
"""With a lower limit, in bytes, the libraries fail while they are loaded, by aborts, hangs and tracebacks."""


class MemoryLimit(NamedTuple):
    """What a process may take of memory or addresses, and the option of ulimit that sets it."""

    bytes: float
    option: str

    def __str__(self) -> str:
        return f"a process may take {self.bytes / 2**20:.0f} MiB here (ulimit {self.option})"


def memory_limit() -> MemoryLimit:
    """Return the lower one of the two limits; infinity if there is none."""
    limits = [(resource.getrlimit(kind)[0], option) for kind, option in ((RLIMIT_AS, "-v"), (RLIMIT_DATA, "-d"))]
    return min(MemoryLimit(math.inf if limit == RLIM_INFINITY else limit, option) for limit, option in limits)
