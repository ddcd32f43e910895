"""Wall time and bytes moved, by phase, on this rank."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator


class Clock:
    """Adds up wall time, and bytes `moved` (sent and received so far), by phases, in order of first use."""

    def __init__(self, moved: Callable[[], tuple[int, int]] = lambda: (0, 0)) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self._moved, self._begun = moved, time.perf_counter()

    def since_begin(self) -> float:
        """Return the seconds since this clock was made."""
        return time.perf_counter() - self._begun

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the body's time and bytes under `name`. Phases must not be nested."""
        start, (sent, received) = time.perf_counter(), self._moved()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start
            now = self._moved()
            self.sent[name] += now[0] - sent
            self.received[name] += now[1] - received
