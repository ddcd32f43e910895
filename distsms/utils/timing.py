"""Seconds per phase on this rank, and bytes that moved meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator


class Clock:
    """Adds up wall seconds by the name of a phase; `seconds` maps each name to its sum, in order of first use.

    moved : bytes sent and received so far; `sent` and `received` map each name to what was added to them meanwhile.
    """

    def __init__(self, moved: Callable[[], tuple[int, int]] = lambda: (0, 0)) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self._moved = moved

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the body's time under `name`. Phases do not nest."""
        start, (sent, received) = time.perf_counter(), self._moved()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start
            now = self._moved()
            self.sent[name] += now[0] - sent
            self.received[name] += now[1] - received
