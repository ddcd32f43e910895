"""Signals that ask a run to stop in order: remembered here, acted on after the present evaluation.

Batch systems announce preemption and time limits by SIGTERM, SIGUSR1 or SIGUSR2, often to one rank only.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class StopSignals:
    """While entered, `wanted()` tells whether one of the signals came. A second SIGINT (Ctrl-C) ends at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def wanted(self) -> bool:
        """Whether this process was asked to stop."""
        return self.received is not None

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
            self._before[number] = signal.signal(number, self._remember)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():  # once the end is decided, a second one must not change it
            signal.signal(number, signal.SIG_IGN if self.wanted() and not error else handler)  # type: ignore[arg-type]

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
