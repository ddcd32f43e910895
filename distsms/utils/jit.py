"""`njit` for the kernels, compiled on first use and kept in a cache that many processes may use at once.

Numba compiles a version of a function for each combination of argument types. Its cache stores each version in a file,
and the names of these files in an index. Numba replaces each file atomically, but not a file and the index together.
If two processes store different versions at the same moment, they choose the same file name for both. From then on, the
index leads to the wrong version for one of the two combinations of types. So this module locks a file in the folder of
the cache while Numba loads or stores a version.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numba
from numba.core import event
from numba.core.caching import NullCache
from numba.core.runtime import rtsys

LOCK = "distsms.lock"
PATIENCE = 10.0
"""A process waits this many seconds for the lock. Then it continues without it, since the lock of a failed host may
remain.
"""
UNCOUNTED = {"_nrt": False}
"""An option for kernels that make no arrays: references to arrays are not counted.

Otherwise each call of another kernel with an array counts them, by atomic instructions that take longer than reading a
number.
"""
_given_up: set[str] = set()
"""The folders whose lock this process no longer waits for."""


class _Compiling(event.Listener):  # type: ignore[misc]
    """Adds up the seconds in which this process compiles kernels. Numba tells it when it begins and ends."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0  # a kernel may need others, which are then compiled meanwhile
        self.kept = True  # whether later processes find what is compiled in a cache

    def on_start(self, event: Any) -> None:
        self.seconds -= time.monotonic() * (self._depth == 0)
        self._depth += 1

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        self.seconds += time.monotonic() * (self._depth == 0)


compiling = _Compiling()
event.register("numba:compile", compiling)


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return `numba.njit` with these options, without Python's global lock, and with the cache."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(nogil=True, **options)(function)
        # Numba has no public interface for all this. If a future release renames its methods, its own cache remains.
        if isinstance(getattr(dispatcher, "_cache", None), NullCache):
            dispatcher._cache = _CacheToOpen(dispatcher)
        elif hasattr(dispatcher, "enable_caching"):  # with NUMBA_DISABLE_JIT it is the function itself
            _enable_caching(dispatcher)
        return dispatcher

    return decorate


class _CacheToOpen(NullCache):  # type: ignore[misc]
    """The cache of a kernel that has not been called: to open each cache at the start would take 0.2 ms."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher

    def _open(self) -> Any:
        self._dispatcher._cache = NullCache()
        _enable_caching(self._dispatcher)
        return self._dispatcher._cache

    def load_overload(self, *arguments: Any) -> Any:
        return self._open().load_overload(*arguments)

    def save_overload(self, *arguments: Any) -> None:
        self._open().save_overload(*arguments)


def _enable_caching(dispatcher: Any) -> None:
    """Give a dispatcher Numba's cache, with methods that hold the lock."""
    try:
        with _absolute_home():
            dispatcher.enable_caching()
    except RuntimeError:  # no folder is writable
        compiling.kept = False
        _warn_once(
            "kernels are compiled at each start, since neither the package's folder nor the home directory can "
            "be written to; set NUMBA_CACHE_DIR to a writable folder to keep them"
        )
    cache: Any = getattr(dispatcher, "_cache", None)
    if hasattr(cache, "load_overload") and hasattr(cache, "_load_overload"):
        cache.load_overload = _without_compiler(cache.load_overload, cache._load_overload)
    for name, kind in (("load_overload", fcntl.LOCK_SH), ("save_overload", fcntl.LOCK_EX)):
        if hasattr(cache, name):
            setattr(cache, name, _under_lock(getattr(cache, name), cache, kind))


@contextlib.contextmanager
def _absolute_home() -> Iterator[None]:
    """If nothing says where the home directory is, let Numba find it unusable, rather than make a folder named ~."""
    home = os.environ.get("HOME")
    if os.path.isabs(os.path.expanduser("~")):
        yield
        return
    os.environ["HOME"] = os.devnull
    try:
        yield
    finally:
        os.environ.pop("HOME") if home is None else os.environ.update(HOME=home)


def _without_compiler(load: Callable[..., Any], load_only: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that loads a compiled version without importing what is needed only to compile.

    Numba imports its implementation of all of Python and NumPy before it looks into the cache, which takes 0.2 s in
    each process. Compiled code needs none of it but the runtime that counts references.
    """

    def loaded(signature: Any, target: Any) -> Any:
        rtsys.initialize(target)
        found = load_only(signature, target)
        return load(signature, target) if found is None else found

    return loaded


def _under_lock(method: Callable[..., Any], cache: Any, kind: int) -> Callable[..., Any]:
    @functools.wraps(method)
    def locked(*arguments: Any) -> Any:
        # If a version cannot be stored, because the disk is full, say, the next process compiles it again.
        failing = contextlib.suppress(OSError) if kind == fcntl.LOCK_EX else contextlib.nullcontext()
        with _lock(cache.cache_path, kind), failing:
            return method(*arguments)
        return None

    return locked


@functools.cache
def _warn_once(text: str) -> None:
    print(f"distsms: {text}", file=sys.stderr)


@contextlib.contextmanager
def _lock(folder: str | None, kind: int) -> Iterator[None]:
    """Hold the lock of a folder, if possible.

    A read-only folder, or a file system without locks, is used without it.
    """
    with contextlib.ExitStack() as stack:
        # Numba's NullCache, in use with NUMBA_DISABLE_JIT, has no folder.
        with contextlib.suppress(OSError, TypeError):
            os.makedirs(folder, exist_ok=True)  # type: ignore[arg-type]
            file = stack.enter_context(open(os.path.join(folder, LOCK), "a+b"))  # type: ignore[arg-type]
            if folder not in _given_up and not _acquire(file.fileno(), kind):
                _given_up.add(str(folder))
                print(
                    f"{folder}/{LOCK}: another process has held this lock for {PATIENCE:g} s; continuing without it",
                    file=sys.stderr,
                )
        yield


def _acquire(descriptor: int, kind: int) -> bool:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
        else:
            return True
        time.sleep(0.005)


@njit(inline="always", error_model="numpy")
def weight_of(weights: Any, i: Any) -> Any:
    """Return weights[i]; 1.0 if `weights` is None, for which Numba compiles a version of the calling kernel."""
    if weights is None:
        return 1.0
    return weights[i]
