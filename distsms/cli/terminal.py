"""Printing on the root: lines are wrapped to fit the terminal, and all warnings are printed together at the end."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

from distsms.base import program
from distsms.base.formatting import terminal_width, wrap
from distsms.base.program import StandardStream, failure_of_standard_output
from distsms.base.wording import printable, without_credentials

COLOURS = {"red": "31", "yellow": "33"}
LONG = 1.0
"""Compiling is mentioned if it takes so many seconds."""
WARNING = re.compile(r" *warning {2,}")


def is_watched(stream: TextIO) -> bool:
    """Return whether a person watches the stream: a terminal, but not that of a process that a launcher started."""
    from distsms.parallel.mpi import launched_size

    return stream.isatty() and not launched_size()


def paint(text: str, colour: str, stream: TextIO) -> str:
    """Return the text in a colour of `COLOURS`; or unchanged if no person watches the stream, or NO_COLOR is set."""
    if not is_watched(stream) or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[1;{COLOURS[colour]}m{text}\x1b[0m"


def open_streams() -> None:
    """Replace standard output and error, also closed ones, by streams to which writing never fails."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)  # gets the lowest free number; whatever is printed there counts as lost
    for number, name in enumerate(("stdout", "stderr"), 1):
        stream = getattr(sys, name)
        if stream is not getattr(sys, f"__{name}__"):
            continue  # a notebook or a test has put its own stream there
        buffered = io.BufferedWriter(StandardStream(number))
        by_line = number == 2 or os.isatty(number)
        # names of files may hold what the terminal cannot show
        encoding = "utf-8" if stream is None else stream.encoding
        setattr(sys, name, io.TextIOWrapper(buffered, encoding, "backslashreplace", line_buffering=by_line))


def output_was_lost(program: str) -> bool:
    """Return whether standard output could not be written; say so, unless its reader has gone (head, less)."""
    sys.stdout.flush()
    failure = failure_of_standard_output()
    if failure is not None and failure.errno != errno.EPIPE:
        print(f"{program}: standard output cannot be written: {failure}", file=sys.stderr)
    return failure is not None


def fold(text: str) -> str:
    """Return a text for standard error: its lines fit the terminal. In a log they stay long, unless COLUMNS is set."""
    return wrap(text, terminal_width()) if sys.stderr.isatty() or os.environ.get("COLUMNS") else text


def print_warning(warning: str, program: str = "") -> None:
    """Print a warning on files to standard error; one on a model begins with the program, such as "distsms train"."""
    text = f"{program}: warning: {warning}" if program else f"warning: {warning}"
    print(fold(printable(without_credentials(text))), file=sys.stderr, flush=True)


class Speaker:
    """Prints lines, if it `speaks`, but each line that begins with "warning" only once, at the end."""

    def __init__(self, speaks: bool) -> None:
        self._speaks = speaks
        self._warnings: dict[str, str] = {}  # the colour of each warning

    def __call__(self, text: str) -> None:
        lines = []
        for line in text.split("\n"):
            if label := WARNING.match(line):
                self.warn(line[label.end() :])
            else:
                lines.append(line)
        if lines:
            self._print(wrap(printable(without_credentials("\n".join(lines)), "\n"), terminal_width()) + "\n")

    def warn(self, text: str, colour: str = "yellow") -> None:
        """Keep a warning for the end."""
        self._warnings[printable(without_credentials(text), "\n")] = colour

    def close(self, warnings: Sequence[str] = (), colour: str = "yellow") -> None:
        """Print how long compiling has taken since the last time, if that was long, and all warnings, also these."""
        for warning in warnings:
            self.warn(warning, colour)
        jit = sys.modules.get("distsms.base.jit")  # what has not loaded Numba has compiled nothing
        if program.runs and jit is not None and jit.compiling.seconds >= LONG:
            later = "; later runs take them from a cache" * jit.compiling.kept
            further = "further " * jit.compiling.announced
            took = f"{jit.compiling.seconds:.0f} s of this run's time"
            self._print(f"compiled  {further}kernels for such data, {took}{later}\n")
            jit.compiling.seconds, jit.compiling.announced = 0.0, self._speaks
        for number, (text, colour) in enumerate(self._warnings.items()):
            self._print(
                "\n" * (not number) + paint(wrap(f"warning   {text}", terminal_width()), colour, sys.stdout) + "\n"
            )
        self._warnings.clear()

    def _print(self, text: str) -> None:
        if self._speaks:
            print(text, end="", flush=True)
