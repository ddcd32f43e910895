"""Signals that ask a run to save its state and stop after the current evaluation: SIGTERM, SIGUSR1 and SIGUSR2, by
which batch systems announce the end, often to one rank only. A run that still waits for its rows, perhaps from a disk
that hangs, is ended by a small process beside it, `GRACE` seconds after the signal. That process also speaks for a run
that is computing: Open MPI's mpirun, when it is interrupted, kills its ranks a second after SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from distsms.base.errors import EXIT_REQUEUE
from distsms.base.formatting import terminal_width, wrap

GRACE, LAST_GRACE = 10.0, 2.0
"""Seconds after the first signal at which a process that has not looked for any is ended, and until it is killed."""
MOST_FILES = 2**16  # that a process is taken to have open
OF_BATCH_SYSTEMS = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2
BEGUN = b"\0"
"""Tells the process beside a run, which gets the numbers of signals, that the run looks for signals itself."""
TOO_EARLY = "SIGTERM before the first evaluation: no model is written"
IN_HASTE = (
    "SIGTERM: the run ends after this evaluation, and writes what it has. After Ctrl-C, mpirun leaves it one second for"
    " that; if this is too short, there is no model, but the last checkpoint (--checkpoint FOLDER). --time-limit, or"
    " SIGUSR1 to mpirun, ends a run without haste"
)
"""What is said at once of a signal under Open MPI's mpirun."""


class StopSignals:
    """A context in which stop signals are recorded and end nothing, but a second Ctrl-C, a KeyboardInterrupt."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}
        self._guard: tuple[int, int] | None = None  # the process beside this one, and the pipe to it
        self._begun = False  # whether that process knows that the run looks for signals

    def wanted(self) -> bool:
        """Return whether this process was asked to stop."""
        if self._guard is not None and not self._begun:
            self._begun = True
            with contextlib.suppress(OSError):
                os.write(self._guard[1], BEGUN)
        if self.received is not None:
            self._dismiss()
        return self.received is not None

    def remember(self, numbers: Iterable[int] = OF_BATCH_SYSTEMS, program: str = "distsms") -> None:
        """Record these signals from now on, also before the context is entered; start the process beside this one."""
        if not self._before:
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _end)
            end, start = os.pipe()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the new process calls nothing that needs a lock
                process = os.fork()
            if not process:
                _guard(end, program if os.environ.get("OMPI_COMM_WORLD_RANK") == "0" else "")
            os.close(end)
            os.set_blocking(start, False)
            signal.set_wakeup_fd(start, warn_on_full_buffer=False)
            self._guard = process, start
        for number in set(numbers) - set(self._before):
            self._before[number] = signal.signal(number, self._remember)

    @contextmanager
    def ending_at_once(self) -> Iterator[None]:
        """While this lasts, the signals of batch systems end the process at once, also one that was recorded before."""
        handlers = {number: signal.signal(number, signal.SIG_DFL) for number in OF_BATCH_SYSTEMS}
        try:
            if self.received in handlers:
                signal.raise_signal(self.received)
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def __enter__(self) -> StopSignals:
        self.remember((*OF_BATCH_SYSTEMS, signal.SIGINT))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._dismiss()
        # If the run is stopping, further signals are ignored, so that they do not interrupt the writing of files.
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self.wanted() and not error else handler)  # type: ignore[arg-type]
        self._before.clear()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def _dismiss(self) -> None:
        """End the process beside this one."""
        if self._guard is not None:
            (process, start), self._guard = self._guard, None
            signal.set_wakeup_fd(-1)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(start)


def _guard(end: int, program: str) -> None:
    """Wait in a process of its own for a signal of the parent, of which Python's own handler tells; end the parent if
    it has not begun. Say what happens if `program` is not empty."""
    parent, begun = os.getppid(), False
    try:
        for number in (*OF_BATCH_SYSTEMS, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        # What else the parent has open must not stay open here: who reads a pipe of the parent waits for its end.
        for first, last in ((0, 2), (3, end), (end + 1, MOST_FILES)):
            os.closerange(first, last)
        while byte := os.read(end, 1):
            begun = begun or byte == BEGUN
            if program and byte[0] == signal.SIGTERM:
                os.write(2, f"{wrap(f'{program}: {IN_HASTE if begun else TOO_EARLY}', terminal_width())}\n".encode())
            if begun:
                continue
            for patience, number in ((GRACE, signal.SIGALRM), (LAST_GRACE, signal.SIGKILL)):
                closed = select.poll()
                closed.register(end, 0)  # tells only that the parent has ended
                if closed.poll(1000 * patience) or os.getppid() != parent:
                    break
                os.kill(parent, number)
            break
    finally:
        os._exit(0)


def _end(number: int, frame: FrameType | None) -> None:
    text = f"distsms: stopped by a signal before the first evaluation, which did not come within {GRACE:g} s\n"
    os.write(2, text.encode())
    os._exit(EXIT_REQUEUE)
