"""Show the progress of a run and the resources it used, on a terminal or in a log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from distsms.optim.result import State
from distsms.parallel.mpi import launched_size
from distsms.utils.formatting import format_bytes, format_table

if TYPE_CHECKING:
    from distsms.data.shards.manifest import Manifest


class TrainingProgress:
    """Shows the evaluations of a training: in one line that changes on a terminal, or in lines of a log.

    A log has a line for each of the first ten evaluations, then for every tenth, then for every hundredth and so on,
    and at least one every ten seconds.

    Parameters
    ----------
    stream : file or None
        Where to write; None writes nothing.
    live : bool
        Whether the stream is a terminal that a person watches.
    """

    def __init__(self, stream: TextIO | None, live: bool = False) -> None:
        self._stream = stream
        self._live = live
        self._last_time = 0.0
        self._pending: State | None = None
        if stream is not None:
            self._print(f"{'eval':>6} {'seconds':>9} {'best J':>14} {'lower bound':>14} {'gap':>10} {'nu':>9}\n")

    def __call__(self, state: State) -> None:
        """Show the state of an evaluation if it is due, or else keep it for `close`."""
        if self._stream is None:
            return
        now = time.monotonic()
        step = 10 ** max(0, int(math.log10(state.evaluation)))
        due = now - self._last_time > (0.1 if self._live else 10.0)
        self._pending = state
        if due or (not self._live and state.evaluation % step == 0):
            self._show(state)
            self._last_time = now

    def close(self) -> None:
        """Show the last state, if it has not been shown, and end the line on a terminal."""
        if self._stream is not None and self._pending is not None:
            self._show(self._pending)
        if self._stream is not None and self._live:
            print(file=self._stream)

    def _show(self, s: State) -> None:
        nu = f"{s.nu:9.3g}" if s.nu else f"{'-':>9}"
        line = f"{s.evaluation:6d} {s.seconds:9.2f} {s.best_J:14.8f} {s.lower_bound:14.8f} {s.gap:10.3g} {nu}"
        self._pending = None
        self._print(f"\r{line}" if self._live else f"{line}\n")

    def _print(self, text: str) -> None:
        try:
            print(text, end="", file=self._stream, flush=True)
        except OSError:  # whoever read the output has gone; the run goes on
            self._stream = None


def shard_counter(enabled: bool) -> Callable[[int, int], None]:
    """Return a function to call after each shard that this rank has written, which prints how many are done."""
    start = time.monotonic()

    def show(done: int, of: int) -> None:
        if enabled and of > 1:
            print(f"shard {done} of {of} on this rank, {time.monotonic() - start:.1f} s", flush=True)

    return show


def counter(what: str, stream: TextIO | None) -> Callable[[int, int], None]:
    """Return a function to call after each of many parts, which shows what share is done and how long the rest takes.

    On a terminal that is a line which changes, in a log a line every ten seconds. `what` is a word such as "scored".
    """
    start = last = time.monotonic()
    live = stream is not None and stream.isatty() and not launched_size()

    def show(done: int, of: int) -> None:
        nonlocal last, stream
        now = time.monotonic()
        if stream is None or (now - last < (0.2 if live else 10.0) and done < of) or (done == of and not live):
            return
        last, left = now, (now - start) * (of - done) / done
        line = f"{what} {100 * done / of:.0f} %, {now - start:.0f} s, about {left:.0f} s left" if done < of else ""
        try:
            print(f"\r{line:60}\r" if live else f"{line}\n", end="", file=stream, flush=True)
        except OSError:  # whoever read the output has gone
            stream = None

    return show


def usage_table(ranks: Sequence[dict[str, Any]]) -> str:
    """Return a table with a row for each rank: its seconds in each phase, bytes and peak memory.

    `ranks` has what `distsms.utils.usage.resource_usage` measured on each rank.
    """
    phases = list(dict.fromkeys(name for usage in ranks for name in usage["seconds"]))
    rows = [
        [
            str(rank),
            *[f"{usage['seconds'].get(name, 0.0):.3f}" for name in phases],
            format_bytes(usage["bytes_sent"]),
            format_bytes(usage["bytes_received"]),
            format_bytes(usage["bytes_read"]),
            format_bytes(usage["peak_memory"]),
        ]
        for rank, usage in enumerate(ranks)
    ]
    return format_table(["rank", *[f"{name} [s]" for name in phases], "sent", "received", "read", "peak memory"], rows)


def bytes_table(ranks: Sequence[dict[str, Any]], phases: Sequence[str], evaluations: int) -> str:
    """Return a table of the bytes that an evaluation sends and receives in each phase, on average.

    A row has the bytes of the root, and the most that any rank sends and receives.
    """
    rows = []
    for name in phases:
        moved = [[usage[way].get(name, 0) / evaluations for way in ("sent", "received")] for usage in ranks]
        most = [max(column) for column in zip(*moved, strict=True)]
        rows.append([name, *[format_bytes(count) for count in (*moved[0], *most)]])
    return format_table(["each evaluation", "root sends", "receives", "any rank at most sends", "receives"], rows)


def describe_files(manifest: Manifest) -> str:
    """Return how many files a data set has, their size, and the type of the values in them."""
    values = manifest.dtype if any(shard.values for shard in manifest.shards) else "none, all are 1"
    compression = "" if manifest.compression == "none" else f" ({manifest.compression})"
    n_bytes = format_bytes(sum(shard.bytes for shard in manifest.shards))
    return f"{len(manifest.shards)} shard(s), {n_bytes}{compression}, values: {values}"
