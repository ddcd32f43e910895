"""What happens to simulated ranks: deaths, signals, power cuts, disks that fail, files that change, clocks.

`installed` replaces the functions of Python's modules through which the package reaches files, clocks, signals and
random names. For ranks of a job with a `Disturbance` they take note, may let another rank come first, and do what the
faults of the job want; for everybody else they are what they were. Only what goes through Python is seen: HDF5 and
Arrow read files themselves, so that of their reading only the opening can fail, and that of HDF5 alone.

A rank that has died does nothing more: `Job` unwinds it only when all is over, and nothing it does then reaches a file.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import functools
import io
import os
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import h5py
from h5py._objects import phil

import distsms.cli.main as program
from distsms.base import memory
from distsms.parallel import mpi, processes, signals, survival
from tests.support.simulated import communicator
from tests.support.simulated_job import Job, Rank, Turn

WRITING = ("open", "write", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir", "ftruncate")
"""Functions of the module os that change files; those that get a path or a descriptor of a job's folder are watched."""
MOMENTS = ("death", "node", "stop", "signal", "power", "exchange")
"""Faults that come between two steps of a rank; others strike a file while it is written or read."""


class Fault(NamedTuple):
    """What happens to a rank, and when.

    kind : "death" (of a rank), "node" (all ranks of a node die), "stop" (a rank stands still until no other can go on),
    "power" (all ranks die, and what was not flushed to the disk is lost), "signal", "exchange" (a file gets another
    content), "stale" (a node sees other files in a folder), "write", "read", "short" (a write), "pieces" (every read of
    an open file gives half of what it could), or "unreadable" (what a file holds cannot be read, though it opens).
    at : the number of the step, or of the writing or reading call, of this rank. detail : the number of the signal or
    of the error, the seconds of a stop, or the paths of the file and of its other content.
    """

    kind: str
    rank: int
    at: int
    detail: Any = None

    def __str__(self) -> str:
        number = signal.Signals(self.detail).name if self.kind == "signal" else ""
        number = errno.errorcode[self.detail] if self.kind in ("write", "read") else number
        return f"{self.kind} {number} of rank {self.rank} at {self.at}".replace("  ", " ")


class Disturbance:
    """The files, the clock and the faults of a job, below one folder."""

    latest: ClassVar[Disturbance | None] = None  # for threads, which belong to no rank

    def __init__(self, job: Job, folder: Path, faults: list[Fault], seed: int) -> None:
        self.job, self.folder, self.faults, self.chance = job, os.fspath(folder), faults, random.Random(seed)
        kinds = dict.fromkeys(MOMENTS, "step") | {"write": "write", "short": "write", "read": "read"}
        self.at = {(f.rank, kinds[f.kind], f.at): f for f in reversed(faults) if f.kind in kinds}
        self.now, self.fast = 1.8e9, self.chance.choice((1e-6, 1e-4, 1e-2))
        self.counts: Counter[tuple[int, str]] = Counter()  # of steps, and of calls that write and that read
        self.handles: dict[int, tuple[int, int]] = {}
        self.unflushed: set[tuple[int, int]] = set()
        self.happened = list[Fault]()
        self.stale = [fault for fault in faults if fault.kind == "stale"]
        self.of_reads = [fault for fault in faults if fault.kind in ("pieces", "unreadable")]
        Disturbance.latest = self
        job.disturb, job.disturbance = self.step, self  # type: ignore[attr-defined]
        job.ended, job.unwound = self.ended, self.unwound  # type: ignore[method-assign]

    def of(self, kind: str, rank: Rank) -> Fault | None:
        """Count something of this kind, and return the fault that strikes now."""
        at = self.counts[rank.number, kind] + 1
        self.counts[rank.number, kind] = at
        fault = self.at.get((rank.number, kind, at))
        if fault is not None:
            self.happened.append(fault)
        return fault

    def step(self, rank: Rank, where: str) -> None:
        """See `Job.disturb`."""
        self.now += self.chance.random() * self.fast
        fault = self.of("step", rank)
        if fault is None:
            return
        if fault.kind == "signal":
            self.deliver(rank, fault.detail)
        elif fault.kind == "stop":
            self.job.stop()
            self.now += fault.detail
        elif fault.kind == "exchange":
            place, other = fault.detail
            if os.path.exists(place):
                opened = REAL["built-in open"]
                with opened(other, "rb") as source, opened(f"{place}.new", "wb") as target:
                    target.write(source.read())
                REAL["replace"](f"{place}.new", place)
        else:
            if fault.kind == "power":
                self.job.survives = False
            self.job.die(with_node=fault.kind == "node")

    def deliver(self, rank: Rank, number: int) -> None:
        """Let a signal reach a rank."""
        handler = rank.handlers.get(number, signal.SIG_DFL)
        if handler is signal.SIG_DFL:
            self.job.die()
        elif handler is not signal.SIG_IGN:
            handler(number, None)

    def ended(self) -> None:
        """After a power cut, what was not flushed is lost."""
        if any(fault.kind == "power" for fault in self.happened):
            for path in Path(self.folder).rglob("*"):
                about = path.lstat()
                if path.is_file() and (about.st_dev, about.st_ino) in self.unflushed:
                    os.truncate(path, 0)
        Disturbance.latest = None

    def unwound(self) -> None:
        """Give up the locks of dead ranks, whose files Python may close later."""
        for handle, about in self.handles.items():
            with contextlib.suppress(OSError):
                state = os.fstat(handle)
                if (state.st_dev, state.st_ino) == about:
                    fcntl.flock(handle, fcntl.LOCK_UN)

    def concerns(self, place: Any) -> bool:
        """Return whether a path or a descriptor is one of the job's."""
        if isinstance(place, int):
            return place in self.handles
        try:
            return os.fspath(place).startswith(self.folder)
        except (TypeError, ValueError):
            return False

    def seen(self, place: Any, rank: Rank) -> Any:
        """Return the file that a rank sees at this path."""
        for fault in self.stale:
            if fault.rank == rank.node and os.fspath(place).startswith(fault.detail[0]):
                if fault not in self.happened:
                    self.happened.append(fault)
                return os.fspath(place).replace(*fault.detail)
        return place


REAL: dict[str, Any] = {name: getattr(os, name) for name in WRITING} | {
    "close": os.close,
    "built-in open": builtins.open,
    "h5py": h5py.File.__init__,
    "_exit": os._exit,
}


def _now() -> tuple[Rank, Disturbance] | None:
    rank = Turn.rank
    disturbance = rank and getattr(rank.job, "disturbance", None)
    return (rank, disturbance) if rank is not None and disturbance is not None else None


def _touch(rank: Rank, disturbance: Disturbance, name: str, kind: str, place: Any) -> Fault | None:
    """Count an access to a file, and raise what the faults want; return one that shortens it."""
    if rank.job.over:
        raise OSError(errno.EIO, "the rank is dead")
    if not phil._is_owned():  # HDF5 must not be called by another rank while it calls us
        rank.job.step(name)
    fault = disturbance.of(kind, rank)
    if name in ("unlink", "rmdir"):  # if it failed, nothing could take away what is then left behind
        return None
    if fault is not None and fault.kind != "short":
        raise OSError(fault.detail, os.strerror(fault.detail), None if isinstance(place, int) else os.fspath(place))
    return fault


def _writing(name: str) -> Callable[..., Any]:
    real = REAL[name]

    def replaced(place: Any, *args: Any, **more: Any) -> Any:
        now = _now()
        if now is None or not now[1].concerns(place):
            return real(place, *args, **more)
        rank, disturbance = now
        reads = name == "open" and not args[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        short = _touch(rank, disturbance, name, "read" if reads else "write", place)
        if name == "write":
            disturbance.unflushed.add(disturbance.handles[place])
            if short:
                return real(place, memoryview(args[0])[: max(1, len(args[0]) // 2)])
        if reads:
            place = disturbance.seen(place, rank)
        result = real(place, *args, **more)
        if name == "open":
            about = os.fstat(result)
            disturbance.handles[result] = about.st_dev, about.st_ino
        elif name == "fsync":
            disturbance.unflushed.discard(disturbance.handles[place])
        return result

    return replaced


def _close(handle: int) -> None:
    if (now := _now()) is not None:
        now[1].handles.pop(handle, None)
    REAL["close"](handle)


def _open(place: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
    now = _now()
    if now is None or isinstance(place, int) or not now[1].concerns(place):
        return REAL["built-in open"](place, mode, *args, **more)
    rank, disturbance = now
    reads = "r" in mode and "+" not in mode
    _touch(rank, disturbance, "open", "read" if reads else "write", place)
    file = REAL["built-in open"](disturbance.seen(place, rank) if reads else place, mode, *args, **more)
    if not reads:
        about = os.fstat(file.fileno())
        disturbance.unflushed.add((about.st_dev, about.st_ino))
    return file


def _stat(place: Any, *args: Any, real: Any = os.stat, **more: Any) -> os.stat_result:
    now = _now()
    if now is not None and not isinstance(place, int) and now[1].concerns(place):
        place = now[1].seen(place, now[0])
    return real(place, *args, **more)


def _open_hdf5(self: Any, name: Any, *args: Any, **more: Any) -> None:
    now = _now()
    if now is not None and isinstance(name, str | os.PathLike) and now[1].concerns(name):
        rank, disturbance = now
        _touch(rank, disturbance, "h5py", "read", name)
        name = disturbance.seen(name, rank)
    REAL["h5py"](self, name, *args, **more)


def _read(handle: int, buffers: list[Any], *at: int, real: Any) -> int:
    """Read from an open file. This may be another thread than that of the ranks."""
    latest = Disturbance.latest
    for fault in latest.of_reads if latest is not None else ():
        if fault.kind == "unreadable" and os.readlink(f"/proc/self/fd/{handle}") != fault.detail:
            continue
        if fault not in latest.happened:
            latest.happened.append(fault)
        if fault.kind == "unreadable":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        buffers = [buffers[0][: (len(buffers[0]) + 1) // 2]]
    return real(handle, buffers, *at)


def _clock(real: Callable[[], float]) -> Callable[[], float]:
    def replaced() -> float:
        if (now := _now()) is None:
            return real()
        now[1].now += now[1].fast * now[1].chance.random()
        return now[1].now

    return replaced


def _memory_lines(path: Path) -> list[str]:
    """What the system says of memory, always the same."""
    return {"meminfo": ["MemAvailable: 8388608 kB"], "statm": ["0 25600"]}.get(path.name, [])


def _sleep(seconds: float, real: Any = time.sleep) -> None:
    if (now := _now()) is None:
        real(seconds)
    else:
        now[1].now += seconds
        now[0].job.step("sleep")


def _token(n_bytes: int, real: Any = secrets.token_hex) -> str:
    now = _now()
    return real(n_bytes) if now is None else f"{now[1].chance.getrandbits(8 * n_bytes):0{2 * n_bytes}x}"


def _exit(code: int) -> None:
    if Turn.rank is None:
        REAL["_exit"](code)
    else:
        Turn.rank.job.leave(code)


class _Signals:
    """The module signal, for a rank."""

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)

    @staticmethod
    def signal(number: int, handler: Any) -> Any:
        rank = Turn.rank
        if rank is None:
            return signal.signal(number, handler)
        before = rank.handlers.get(number, signal.SIG_DFL)
        rank.handlers[number] = handler
        return before

    @staticmethod
    def raise_signal(number: int) -> None:
        now = _now()
        assert now is not None
        now[1].deliver(now[0], number)


_signals = _Signals()
_signals_os = SimpleNamespace(  # no process is forked that would end a rank that does not look for signals
    fork=lambda: 1,
    pipe=os.pipe,
    close=os.close,
    kill=lambda *_: None,
    waitpid=lambda *_: None,
    set_blocking=os.set_blocking,
    write=lambda _, content: len(content),
    environ={},
)
_signals.set_wakeup_fd = lambda *_, **__: -1  # type: ignore[attr-defined]


def _world() -> Any:
    rank = Turn.rank
    assert rank is not None
    if rank.job.world.members[1:]:
        return communicator(rank)
    return mpi.Communicator()


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Watch the files, clocks and signals of jobs with a `Disturbance`, and let the program run on simulated ranks."""
    new: list[tuple[Any, str, Any]] = [(os, name, _writing(name)) for name in WRITING]
    new += [(os, "stat", _stat), (os, "close", _close), (os, "remove", _writing("unlink")), (os, "_exit", _exit)]
    new += [(os, name, functools.partial(_read, real=getattr(os, name))) for name in ("readv", "preadv")]
    new += [(builtins, "open", _open), (io, "open", _open), (h5py.File, "__init__", _open_hdf5)]
    new += [(memory, "_lines", _memory_lines)]
    new += [(time, name, _clock(getattr(time, name))) for name in ("time", "monotonic", "perf_counter")]
    new += [(time, "sleep", _sleep), (secrets, "token_hex", _token)]
    new += [(signals, "signal", _signals), (signals, "os", _signals_os)]
    new += [(mpi, "world", _world), (program, "open_streams", lambda: None)]
    new += [(survival, "library_versions", lambda: {"MPI library": "Open MPI v5.0.11", "mpi4py": "4.1.2"})]
    new += [(processes, "deaths_forgiven", lambda: True)]
    old = [(module, name, getattr(module, name)) for module, name, _ in new]
    for module, name, value in new:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in old:
            setattr(module, name, value)
