"""`njit` for the kernels, compiled on first use and kept in a cache that many processes may use at once.

Numba stores each version of a function in a file, and their names in an index, each replaced atomically but not both
together: so a file in the folder is locked while it loads or stores. Cached code runs: so a folder is used only if it
belongs to this user and nobody else can write to it, and a file only if its checksum is right.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from numba.core import event
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, NullCache
from numba.core.dispatcher import Dispatcher
from numba.core.runtime import rtsys

LOCK = "distsms.lock"
PATIENCE = 10.0
"""A process waits so many seconds for the lock, and then does without: that of a failed host may remain."""
UNCOUNTED = {"_nrt": False}
"""An option for kernels that make no arrays: to count references takes longer than to read a number."""
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_DIGEST = hashlib.sha256().digest_size
_given_up: set[str] = set()
"""The folders whose lock this process no longer waits for."""


class _Compiling(event.Listener):  # type: ignore[misc]
    """Adds up the seconds in which this process compiles kernels. Numba tells it when it begins and ends."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0  # a kernel may need others, which are then compiled meanwhile
        self.told = False  # whether the user was told of earlier seconds
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


class _OwnFolder:
    """One of Numba's ways to find a folder for the cache, which finds none where another user could put code."""

    def __init__(self, locator: Any) -> None:
        self._locator = locator

    def from_function(self, function: Any, path: str) -> Any:
        if (found := self._locator.from_function(function, path)) is None:
            return None
        folder = Path(found.get_cache_path()).resolve()
        in_package = folder.name == "__pycache__"
        if not in_package and folder.stat().st_uid == os.geteuid():  # made by us, perhaps with a umask like 002
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) & ~_BY_OTHERS)
        if is_private(folder):
            return found
        if not in_package:
            _warn_once(
                f"{folder}: is not used for compiled kernels, since other users could put code there; set "
                "NUMBA_CACHE_DIR to a folder that belongs to you and that only you can write to"
            )
        return None


def is_private(folder: Path) -> bool:
    """Return whether a folder belongs to this user, and nobody else can put files into it, or exchange it."""
    above = [place.stat().st_mode for place in folder.parents]
    return _is_own(folder) and all(not mode & stat.S_IWOTH or mode & stat.S_ISVTX for mode in above)


def _is_own(path: str | os.PathLike[str]) -> bool:
    """Return whether a file or folder belongs to this user, and nobody else can write to it."""
    about = os.stat(path)
    by_others = stat.S_IWOTH if about.st_gid == about.st_uid else _BY_OTHERS  # by convention a group of this user alone
    return about.st_uid == os.geteuid() and not about.st_mode & by_others


class _Places(CompileResultCacheImpl):  # type: ignore[misc]
    @property
    def _locator_classes(self) -> list[_OwnFolder]:  # type: ignore[override]
        return [_OwnFolder(locator) for locator in CompileResultCacheImpl._locator_classes]


class _CheckedFile(IndexDataCacheFile):  # type: ignore[misc]
    """The files of a kernel, with checksums at their ends; those of other users or damaged ones are compiled again."""

    def _load_index(self) -> Any:
        return self._if_whole(self._index_path, super()._load_index) or {}

    def _load_data(self, name: str) -> Any:
        return self._if_whole(self._data_path(name), lambda: super(_CheckedFile, self)._load_data(name))

    @staticmethod
    def _if_whole(path: str, load: Callable[[], Any]) -> Any:
        try:
            content = Path(path).read_bytes()
            if _is_own(path) and hashlib.sha256(content[:-_DIGEST]).digest() == content[-_DIGEST:]:
                return load()
        except Exception:  # noqa: S110 - whatever it is, it is compiled again
            pass
        return None

    @contextlib.contextmanager
    def _open_for_write(self, path: str) -> Iterator[Any]:
        content = io.BytesIO()
        yield content
        with super()._open_for_write(path) as file:
            os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode) & ~_BY_OTHERS)
            file.write(content.getvalue() + hashlib.sha256(content.getvalue()).digest())


class _Cache(FunctionCache):  # type: ignore[misc]
    _impl_class = _Places

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file.__class__ = _CheckedFile
        self._cache_file._source_stamp = self._cache_file._source_stamp, *_compiled_in(function)


def _compiled_in(function: Any) -> list[tuple[str, str]]:
    """Return what is compiled into a kernel: digests of the files of kernels that it calls, and global constants."""
    parts, waiting, seen = dict[str, str](), [function], set[Any]()
    while waiting:
        kernel = waiting.pop()
        seen.add(kernel)
        parts[kernel.__module__] = _digest_of_file(kernel.__code__.co_filename)
        names = kernel.__code__.co_names
        values = {name: kernel.__globals__.get(name) for name in names}
        modules = [value for value in values.values() if isinstance(value, ModuleType)]
        values |= {f"{module.__name__}.{name}": getattr(module, name, None) for module in modules for name in names}
        for name, value in values.items():
            if isinstance(value, Dispatcher) and value.py_func not in seen:
                waiting.append(value.py_func)
            elif isinstance(value, int | float | tuple):
                parts[f"{kernel.__module__}.{kernel.__qualname__}: {name}"] = repr(value)
    return sorted(parts.items())


@functools.cache
def _digest_of_file(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _enable_caching(dispatcher: Any) -> None:
    try:
        with _absolute_home():
            dispatcher._cache = _Cache(dispatcher.py_func)
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
    """Return a method that loads a compiled version without what only compiling needs, which takes 0.2 s to import."""

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
    """Hold the lock of a folder, if possible; a read-only folder, or a file system without locks, is used without."""
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
