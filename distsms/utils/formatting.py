"""What a run tells: its course line by line, the trace file, and tables for people."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from distsms.errors import InputError
from distsms.optim.result import State
from distsms.utils.timing import Clock

if TYPE_CHECKING:
    from distsms.data.shards.manifest import Manifest


class Course:
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


class Trace:
    """A file of JSON lines, one for each evaluation; does nothing without a path. Raises InputError if not writable.

    solver : named in every line.
    after : the evaluation that a run goes on from: what an old file says up to it stays, what comes after it goes.
    """

    def __init__(self, path: str | None, solver: str, after: int = 0) -> None:
        self._file, self._solver = None, solver
        if path is not None:
            try:
                if after and Path(path).is_file():
                    os.truncate(path, _length_up_to(path, after))
                self._file = open(path, "a" if after else "w", encoding="utf-8")  # noqa: SIM115 - closed by close()
            except OSError as error:
                raise InputError(f"{path}: the trace cannot be written: {error}") from error

    def __call__(self, state: State) -> None:
        """Append the state, readable by others at once. A disk that fills up costs the trace, not the run."""
        if self._file is not None:
            try:
                self._file.write(to_json({**state._asdict(), "solver": self._solver}) + "\n")
                self._file.flush()
            except OSError as error:
                print(f"warning: the trace ends at evaluation {state.evaluation}: {error}", file=sys.stderr, flush=True)
                with contextlib.suppress(OSError):
                    self._file.close()
                self._file = None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def check_trace(path: str) -> None:
    """Raise InputError if there is a file at `path` that is no trace: something else would be lost. Local."""
    try:
        if not Path(path).is_file():
            return
        with open(path, "rb") as file:
            start = file.read(2**16)
        if start and "evaluation" not in json.loads(start.split(b"\n")[0]):
            raise ValueError
    except OSError as error:
        raise InputError(f"{path}: the trace cannot be written: {error}") from error
    except (ValueError, TypeError):
        raise InputError(f"{path}: exists and is not a trace; name another file, or remove it first") from None


def _length_up_to(path: str, evaluation: int) -> int:
    """How many bytes of a trace are whole lines on evaluations up to this one."""
    length = 0
    with open(path, "rb") as file:
        for line in file:
            try:
                if not line.endswith(b"\n") or json.loads(line)["evaluation"] > evaluation:
                    break
            except (ValueError, KeyError, TypeError):  # of a writer that was killed, or no trace at all
                break
            length += len(line)
    return length


def to_json(thing: Any, indent: int | None = None) -> str:
    """JSON with NaN and infinities as null, which JSON has no words for."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [clean(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(clean(thing), indent=indent, allow_nan=False)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns aligned to the right, the first to the left."""
    cells = [list(header), *[[cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def usage_table(ranks: Sequence[dict[str, Any]]) -> str:
    """Seconds per phase, bytes and peak memory, one row for each rank; see `usage`."""
    phases = list(dict.fromkeys(name for one in ranks for name in one["seconds"]))
    rows = [
        [
            str(rank),
            *[f"{one['seconds'].get(name, 0.0):.3f}" for name in phases],
            size(one["bytes_sent"]),
            size(one["bytes_received"]),
            size(one["bytes_read"]),
            size(one["peak_memory"]),
        ]
        for rank, one in enumerate(ranks)
    ]
    return table(["rank", *[f"{name} [s]" for name in phases], "sent", "received", "read", "peak memory"], rows)


def used(clock: Clock, moved: tuple[int, int], read: int, evaluations: int) -> dict[str, Any]:
    """What this rank took so far: seconds and bytes of each phase, bytes moved and read, peak memory. Local."""
    return {
        "seconds": dict(clock.seconds),
        "sent": dict(clock.sent),
        "received": dict(clock.received),
        "bytes_sent": moved[0],
        "bytes_received": moved[1],
        "bytes_read": read,
        "evaluations": evaluations,
        "peak_memory": peak_memory(),
    }


def busiest(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of usages, each number's largest among the ranks: what is kept with a model."""
    first = ranks[0]
    return {
        name: {phase: max(one[name].get(phase, 0) for one in ranks) for one in ranks for phase in one[name]}
        if isinstance(first[name], dict)
        else max(one[name] for one in ranks)
        for name in first
    }


def bytes_table(ranks: Sequence[dict[str, Any]], phases: Sequence[str], evaluations: int) -> str:
    """Bytes that the root, and the rank that moves most, send and receive in a phase of an evaluation, in the mean."""
    rows = []
    for name in phases:
        moved = [[one[way].get(name, 0) / evaluations for way in ("sent", "received")] for one in ranks]
        most = [max(column) for column in zip(*moved, strict=True)]
        rows.append([name, *[size(number) for number in (*moved[0], *most)]])
    return table(["each evaluation", "root sends", "receives", "any rank at most sends", "receives"], rows)


def size(n_bytes: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.4g} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.4g} TiB"


def files_in_words(manifest: Manifest) -> str:
    """How many files a data set has, their size, and how they hold its values."""
    values = manifest.dtype if any(shard.values for shard in manifest.shards) else "none, all are 1"
    how = "" if manifest.compression == "none" else f" ({manifest.compression})"
    n_bytes = size(sum(shard.bytes for shard in manifest.shards))
    return f"{len(manifest.shards)} shard(s), {n_bytes}{how}, values: {values}"


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class ReadCounter:
    """Adds up, in `bytes`, what this process reads from files while it is entered, by the system's own count (Linux).

    Where the system does not tell, 0. What is not counted: pages of files that are mapped rather than read.
    """

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> None:
        self.bytes -= self._so_far()

    def __exit__(self, *failure: object) -> None:
        self.bytes += self._so_far()

    @staticmethod
    def _so_far() -> int:
        try:
            return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])
        except (OSError, IndexError, ValueError):
            return 0
