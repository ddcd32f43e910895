"""Show the progress of a run, and what it used, to a person at a terminal or to a log."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from distsms.optim.result import State
from distsms.utils.formatting import format_bytes, format_table

if TYPE_CHECKING:
    from distsms.data.shards.manifest import Manifest


class TrainingProgress:
    """Shows each evaluation: rewritten in place on a terminal, thinned plain lines in a log, nothing if quiet.

    stream : where to; None is quiet.  live : whether it is a terminal that a person watches.
    In a log the first ten evaluations have a line each, then every tenth, then every hundredth, and at the least one
    every ten seconds.
    """

    def __init__(self, stream: TextIO | None, live: bool = False) -> None:
        self._stream = stream
        self._live = live
        self._last_time = 0.0
        self._pending: State | None = None
        if stream is not None:
            self._print(f"{'eval':>6} {'seconds':>9} {'best J':>14} {'lower bound':>14} {'gap':>10} {'nu':>9}\n")

    def __call__(self, state: State) -> None:
        """Show the state, or keep it for `close`."""
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
        """Show the last state, if it was not, and end the live line."""
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
        except OSError:  # the reader has gone; the run goes on
            self._stream = None


def shard_counter(talks: bool) -> Callable[[int, int], None]:
    """What to call after each shard that this rank has written: says how many of how many, and when."""
    start = time.monotonic()

    def show(done: int, of: int) -> None:
        if talks and of > 1:
            print(f"shard {done} of {of} on this rank, {time.monotonic() - start:.1f} s", flush=True)

    return show


def usage_table(ranks: Sequence[dict[str, Any]]) -> str:
    """Seconds per phase, bytes and peak memory, one row for each rank; see `usage`."""
    phases = list(dict.fromkeys(name for one in ranks for name in one["seconds"]))
    rows = [
        [
            str(rank),
            *[f"{one['seconds'].get(name, 0.0):.3f}" for name in phases],
            format_bytes(one["bytes_sent"]),
            format_bytes(one["bytes_received"]),
            format_bytes(one["bytes_read"]),
            format_bytes(one["peak_memory"]),
        ]
        for rank, one in enumerate(ranks)
    ]
    return format_table(["rank", *[f"{name} [s]" for name in phases], "sent", "received", "read", "peak memory"], rows)


def bytes_table(ranks: Sequence[dict[str, Any]], phases: Sequence[str], evaluations: int) -> str:
    """Bytes that the root, and the rank that moves most, send and receive in a phase of an evaluation, in the mean."""
    rows = []
    for name in phases:
        moved = [[one[way].get(name, 0) / evaluations for way in ("sent", "received")] for one in ranks]
        most = [max(column) for column in zip(*moved, strict=True)]
        rows.append([name, *[format_bytes(number) for number in (*moved[0], *most)]])
    return format_table(["each evaluation", "root sends", "receives", "any rank at most sends", "receives"], rows)


def files_in_words(manifest: Manifest) -> str:
    """How many files a data set has, their size, and how they hold its values."""
    values = manifest.dtype if any(shard.values for shard in manifest.shards) else "none, all are 1"
    how = "" if manifest.compression == "none" else f" ({manifest.compression})"
    n_bytes = format_bytes(sum(shard.bytes for shard in manifest.shards))
    return f"{len(manifest.shards)} shard(s), {n_bytes}{how}, values: {values}"
