"""Signals that ask a run to stop in order.

They are recorded here, and the run acts on them after the current evaluation.

Batch systems announce preemption and time limits by SIGTERM, SIGUSR1 or SIGUSR2, often to one rank only.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopSignals:
    """A context in which stop signals are recorded rather than fatal; `wanted` tells whether one came.

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
        for number, handler in self._before.items():  # once the run is stopping, a second signal must not interfere
            signal.signal(number, signal.SIG_IGN if self.wanted() and not error else handler)  # type: ignore[arg-type]

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
