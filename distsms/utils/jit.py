"""`njit` for the kernels: compiled on first use, and kept in a cache that many processes may use at once.

Numba's cache keeps the compiled versions of a function (one for each combination of types) in files of their own, and
in an index the name of each. It replaces every file atomically, but not the two together: two processes that store
different versions at the same moment choose the same name for both, and from then on one version is found under the
other's types. So reading and storing are done under a lock on a file beside them.
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

LOCK = "distsms.lock"
PATIENCE = 10.0
"""Seconds that a process waits for a lock; then it goes on without, since a lock may be lost with its host."""
_given_up: set[str] = set()
"""Folders whose lock was waited for in vain."""


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` with these options, without Python's lock, and with the cache."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(nogil=True, **options)(function)
        if hasattr(dispatcher, "enable_caching"):  # NUMBA_DISABLE_JIT leaves the function itself
            try:
                dispatcher.enable_caching()
            except RuntimeError:  # there is no place that could be written to
                _tell_once(
                    "kernels are compiled at each start, since neither the package's folder nor the home directory can "
                    "be written to; NUMBA_CACHE_DIR may name a folder for them"
                )
        # Numba offers no hook. Where a future release has other names, kernels are cached as Numba does it.
        cache = getattr(dispatcher, "_cache", None)
        for name, kind in (("load_overload", fcntl.LOCK_SH), ("save_overload", fcntl.LOCK_EX)):
            if hasattr(cache, name):
                setattr(cache, name, _under_lock(getattr(cache, name), cache, kind))
        return dispatcher

    return decorate


def _under_lock(method: Callable[..., Any], cache: Any, kind: int) -> Callable[..., Any]:
    @functools.wraps(method)
    def locked(*arguments: Any) -> Any:
        # A version that cannot be stored, on a full disk, say, is compiled again by the next process.
        failing = contextlib.suppress(OSError) if kind == fcntl.LOCK_EX else contextlib.nullcontext()
        with _lock(cache.cache_path, kind), failing:
            return method(*arguments)
        return None

    return locked


@functools.cache
def _tell_once(text: str) -> None:
    print(f"distsms: {text}", file=sys.stderr)


@contextlib.contextmanager
def _lock(folder: str | None, kind: int) -> Iterator[None]:
    """Hold the lock of a folder, if it can be had: not in one that is read-only, nor on a file system without locks."""
    with contextlib.ExitStack() as stack:
        # Numba's NullCache, which NUMBA_DISABLE_JIT leaves, has no folder.
        with contextlib.suppress(OSError, TypeError):
            os.makedirs(folder, exist_ok=True)  # type: ignore[arg-type]
            file = stack.enter_context(open(os.path.join(folder, LOCK), "a+b"))  # type: ignore[arg-type]
            if folder not in _given_up and not _acquire(file.fileno(), kind):
                _given_up.add(str(folder))
                print(f"{folder}/{LOCK}: held by another process for {PATIENCE:g} s; going on without", file=sys.stderr)
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
