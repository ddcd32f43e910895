"""Printing on the root: lines are wrapped to fit the terminal, and all warnings are printed together at the end."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from typing import Any, TextIO

from distsms.utils import program
from distsms.utils.formatting import terminal_width, wrap
from distsms.utils.untrusted_text import printable

COLOURS = {"red": "31", "yellow": "33"}
LONG = 1.0
"""Compiling is mentioned if it takes so many seconds."""
WARNING = re.compile(r" *warning {2,}")


def is_watched(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that a person watches.

    A launcher such as mpirun gives its processes a terminal even if nobody watches it. So the answer is False for
    processes that a launcher started.
    """
    from distsms.parallel.mpi import launched_size

    return stream.isatty() and not launched_size()


def paint(text: str, colour: str, stream: TextIO) -> str:
    """Return the text in a colour of `COLOURS`; or unchanged if no person watches the stream, or NO_COLOR is set."""
    if not is_watched(stream) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[1;{COLOURS[colour]}m{text}\x1b[0m"


class Unfailing(io.RawIOBase):
    """A stream to a file descriptor that drops what cannot be written, so that a log that is lost ends no run."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        rest = memoryview(data)
        with contextlib.suppress(OSError):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        return len(data)


def unfailing_stderr() -> TextIO:
    """Return a standard error to which writing never fails."""
    buffered = io.BufferedWriter(Unfailing(2))
    return io.TextIOWrapper(buffered, sys.stderr.encoding, "backslashreplace", line_buffering=True)


def fold(text: str) -> str:
    """Return a text for standard error: its lines fit the terminal. In a log they stay long, unless COLUMNS is set."""
    return wrap(text, terminal_width()) if sys.stderr.isatty() or os.environ.get("COLUMNS") else text


class Speaker:
    """Prints lines at once, but keeps those that begin with "warning", and prints each of these once, at the end.

    If standard output is closed or full, the speaker prints no more, and the run continues.

    Parameters
    ----------
    speaks : bool
        Whether it prints at all: true on the root, unless the user gave --quiet.
    """

    def __init__(self, speaks: bool) -> None:
        self._speaks = speaks
        self._warnings: dict[str, str] = {}  # the colour of each warning

    def __call__(self, text: str, end: str = "\n") -> None:
        """Print a text; its warnings are kept for the end."""
        lines = []
        for line in text.split("\n"):
            if label := WARNING.match(line):
                self.warn(line[label.end() :])
            else:
                lines.append(line)
        if lines:
            self._print(wrap(printable("\n".join(lines), "\n"), terminal_width()) + end)

    def warn(self, text: str, colour: str = "yellow") -> None:
        """Keep a warning for the end."""
        self._warnings[printable(text, "\n")] = colour

    def close(self) -> None:
        """Print how long compiling has taken since the last time, if that was long, and the warnings."""
        jit = sys.modules.get("distsms.utils.jit")  # what has not loaded Numba has compiled nothing
        if program.runs and jit is not None and jit.compiling.seconds >= LONG:
            seconds = f"{jit.compiling.seconds:.0f} s"
            self._print(f"compiled  kernels for such data in {seconds}; later runs take them from a cache\n")
            jit.compiling.seconds = 0.0
        for number, (text, colour) in enumerate(self._warnings.items()):
            self._print(
                "\n" * (not number) + paint(wrap(f"warning   {text}", terminal_width()), colour, sys.stdout) + "\n"
            )
        self._warnings.clear()

    def _print(self, text: str) -> None:
        if self._speaks:
            try:
                print(text, end="", flush=True)
            except OSError:
                self._speaks = False
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
