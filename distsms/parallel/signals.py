"""Signals that ask a run to save its state and stop.

The signal handler only records the signal. The run stops after the current evaluation.

Batch systems announce preemption and time limits by SIGTERM, SIGUSR1 or SIGUSR2, which they often send to one rank
only.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopSignals:
    """A context in which stop signals are recorded and do not end the process. `wanted` says whether there was one.

    A second SIGINT (Ctrl-C) raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def wanted(self) -> bool:
        """Return whether this process was asked to stop."""
        return self.received is not None

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
            self._before[number] = signal.signal(number, self._remember)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # If the run is stopping, further signals are ignored, so that they do not interrupt the writing of files.
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self.wanted() and not error else handler)  # type: ignore[arg-type]

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
