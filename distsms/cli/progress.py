"""Show the progress of a run and the resources it used, on a terminal or in a log."""

from __future__ import annotations

import math
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from distsms.base.formatting import (
    format_bytes,
    format_duration,
    format_objective,
    format_seconds,
    format_table,
    terminal_width,
)
from distsms.cli.terminal import is_watched
from distsms.optim.result import State

if TYPE_CHECKING:
    from distsms.shards.manifest import Manifest


PATIENCE = 30.0
"""Seconds without an evaluation after which a run gives a sign of life."""


class TrainingProgress:
    """Shows evaluations: in one line of a terminal (`live`), or in ever fewer lines of a log (one of the first ten, if
    `brief`). A thread gives a sign of life after `patience` seconds without one."""

    def __init__(
        self, stream: TextIO | None, live: bool = False, brief: bool = False, patience: float = PATIENCE
    ) -> None:
        self._stream, self._live, self._brief = stream, live, brief
        self._last_time = 0.0
        self._last: State | None = None
        self._pending: State | None = None
        self._moved, self._ended, self._lock = threading.Event(), False, threading.Lock()
        if stream is not None:
            self._print(f"{'eval':>6} {'seconds':>9} {'best J':>14} {'lower bound':>14} {'gap':>10} {'nu':>9}\n")
            threading.Thread(target=self._give_signs_of_life, args=(patience,), daemon=True).start()

    def __call__(self, state: State) -> None:
        """Show the state after an evaluation if a line is due; otherwise keep it, for `close` to show."""
        if self._stream is None:
            return
        now = time.monotonic()
        step = 10 ** max(int(self._brief), int(math.log10(state.evaluation)))
        due = now - self._last_time > (0.1 if self._live else 10.0)
        self._last = self._pending = state
        self._moved.set()
        if due or (not self._live and state.evaluation % step == 0):
            self._show(state)
            self._last_time = now

    def stop(self) -> None:
        """End the signs of life, also if the run fails."""
        self._ended = True
        self._moved.set()

    def close(self) -> None:
        """Show the last state, if it has not been shown, and end the line on a terminal."""
        self.stop()
        if self._stream is not None and self._pending is not None:
            self._show(self._pending)
        if self._stream is not None and self._live:
            print(file=self._stream)

    def _show(self, s: State) -> None:
        nu = f"{s.nu:9.3g}" if s.nu else f"{'-':>9}"
        J, lower_bound = format_objective(s.best_J), format_objective(s.lower_bound)
        line = f"{s.evaluation:6d} {s.seconds:9.2f} {J:>14} {lower_bound:>14} {s.gap:10.3g} {nu}"
        self._pending = None
        self._print(f"\r{line[: terminal_width() - 1]}" if self._live else f"{line}\n")

    def _print(self, text: str) -> None:
        with self._lock:
            print(text, end="", file=self._stream, flush=True)

    def _give_signs_of_life(self, patience: float) -> None:
        """Say how long nothing has happened, while the run goes on. In a thread of its own."""
        wait, since = patience, time.monotonic()
        while not self._ended:
            if self._moved.wait(wait):
                self._moved.clear()
                wait, since = patience, time.monotonic()
            elif not self._ended:
                last, seconds = self._last, time.monotonic() - since
                after = f"since evaluation {last.evaluation}" if last else "without an evaluation"
                so_far = seconds + (last.seconds if last else 0.0)
                text = f"{'...':>6} {so_far:9.2f}   {format_duration(seconds)} {after}"
                self._print(f"\r{text[: terminal_width() - 1]:<66}" if self._live else f"{text}\n")
                wait = min(2 * wait, 300.0)


class Progress:
    """Shows what share of a long task is done, and how long the rest takes: in a line of a terminal (`live`), or in a
    log, after ten seconds and then ever more rarely. `earlier` units were done in an earlier start."""

    def __init__(self, name: str, unit: str, stream: TextIO | None, live: bool = False, earlier: float = 0) -> None:
        self._stream, self._live = stream, live
        self.begin(name, unit, earlier)

    @classmethod
    def on_root(cls, speaks: bool, name: str = "", unit: str = "") -> Progress:
        """Return a progress that is shown on standard output if `speaks` is true: on the root, without --quiet."""
        return cls(name, unit, sys.stdout if speaks else None, is_watched(sys.stdout))

    def begin(self, name: str, unit: str, earlier: float = 0) -> None:
        """Begin a task, of which so many units were done in an earlier start."""
        self._name, self._unit, self._earlier = name, unit, earlier
        self._start = self._last_time = time.monotonic()
        self._shown = ""

    def of_task(self, name: str, unit: str, done: float, of: float, note: str = "") -> None:
        """Show the same of a task; another one than before, or one of which nothing is done, begins a new line."""
        if name != self._name or not done:
            self.close()
            self.begin(name, unit)
        self(done, of, note)

    def __call__(self, done: float, of: float, note: str = "") -> None:
        """Show that `done` of `of` units are done, if a line is due; `note` is a text on the last unit."""
        if self._stream is None:
            return
        now = time.monotonic()
        elapsed = now - self._start
        interval = 0.1 if self._live else max(10.0, min(300.0, 0.2 * elapsed))
        if now - self._last_time < interval and not (self._live and not self._shown):
            return
        self._last_time = now
        here = done - self._earlier
        left = f", about {format_duration(elapsed * (of - done) / here)} left" if here > 0 and done < of else ""
        line = f"{self._name}  {100 * done / max(of, 1):.0f} %  {done:,.0f} of {of:,.0f} {self._unit}"
        self._print(f"{line}, {format_duration(elapsed)}{left}{'  ' + note if note else ''}")

    def close(self) -> None:
        """Remove the line from a terminal, so that something else can be printed there."""
        if self._live and self._shown:
            self._print("")

    def _print(self, line: str) -> None:
        line = line[: terminal_width() - 1] if self._live else line
        padded = f"\r{line.ljust(len(self._shown))}" if self._live else f"{line}\n"
        print(padded if line or not self._live else f"{padded}\r", end="", file=self._stream, flush=True)
        self._shown = line


FEW_RANKS = 6
"""The table of what a run took has a column for each rank, if there are at most this many ranks."""


def usage_line(ranks: Sequence[dict[str, Any]]) -> str:
    """Return a line with all that the user waited, the longest phases of it, and the peak memory."""
    from distsms.workflow.provenance import maximum_usage

    whole = format_seconds(max(sum(usage["seconds"].values()) for usage in ranks))
    seconds = maximum_usage(ranks)["seconds"]
    longest = sorted(seconds, key=lambda name: -seconds[name])[:3]
    phases = ", ".join(f"{name} {format_seconds(seconds[name])}" for name in longest)
    memory = format_bytes(max(usage["peak_memory"] for usage in ranks))
    each = " on the busiest rank" if len(ranks) > 1 else ""
    return f"  took      {whole}: {phases}; peak memory {memory}{each} (--usage shows more)"


def usage_table(ranks: Sequence[dict[str, Any]]) -> str:
    """Return a table of `usage_of_ranks` by rank; of more than `FEW_RANKS`, the root, least, median and most."""
    phases = list(dict.fromkeys(name for usage in ranks for name in usage["seconds"]))
    amounts = {"bytes_sent": "sent", "bytes_received": "received", "bytes_read": "read", "peak_memory": "peak memory"}
    rows = {f"{name} [s]": [usage["seconds"].get(name, 0.0) for usage in ranks] for name in phases}
    rows |= {shown: [usage[name] for usage in ranks] for name, shown in amounts.items()}
    header = [f"rank {rank}" for rank in range(len(ranks))]
    if len(ranks) > FEW_RANKS:
        header = ["root", "least", "median", "most"]
        rows = {name: [row[0], min(row), statistics.median(row), max(row)] for name, row in rows.items()}
    shown = [
        [name, *[f"{value:.3f}" if name.endswith("[s]") else format_bytes(value) for value in row]]
        for name, row in rows.items()
    ]
    return format_table(["", *header], shown)


def bytes_table(ranks: Sequence[dict[str, Any]], phases: Sequence[str], evaluations: int) -> str:
    """Return a table of the bytes of each phase in an evaluation: those of the root, and the most of any rank."""
    rows = []
    for name in phases:
        moved = [[usage[way].get(name, 0) / evaluations for way in ("sent", "received")] for usage in ranks]
        most = [max(column) for column in zip(*moved, strict=True)]
        rows.append([name, *[format_bytes(count) for count in (*moved[0], *most)]])
    return format_table(["each evaluation", "root sends", "receives", "any rank at most sends", "receives"], rows)


def describe_files(manifest: Manifest) -> str:
    """Return how many files a data set has, their size, and the type of the values in them."""
    values = manifest.dtype if any(shard.values for shard in manifest.shards) else "none, all are 1"
    values = "none, but codes" if manifest.layout == "coded" else values
    compression = "" if manifest.compression == "none" else f" ({manifest.compression})"
    n_bytes = format_bytes(sum(shard.bytes for shard in manifest.shards))
    return f"{len(manifest.shards)} shard(s), {n_bytes}{compression}, values: {values}"
