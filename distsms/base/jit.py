"""`njit` for the kernels, compiled on first use and kept in a cache that many processes may use at once.

Each version of a kernel, for a combination of types of its arguments, is a file. Its name has a digest of all that the
machine code follows from: bytecode, constants and options of the kernel and of the kernels that it calls, the types,
the kind of processor, and the versions of Python and the libraries. So a kernel that has not changed is taken from the
cache after an upgrade, too. A file is complete before it gets its name, so that no process waits for another.

What is in the cache is code that runs. So a folder is used only if it belongs to this user, or to the owner of this
program, and nobody else can write to it, and a file only if its checksum is right: damaged machine code crashes the
process, or computes something else.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import logging
import os
import pickle
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import llvmlite
import numba
import numpy as np
from numba.core import event, types
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

UNCOUNTED = {"_nrt": False}
"""An option for kernels that make no arrays: to count references takes longer than to read a number."""
LONG = 2.0
"""The user is told of compiling that takes so many seconds."""
KEPT = 50
"""So many versions of a kernel stay in the cache."""
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_DIGEST = hashlib.sha256().digest_size
_OF_PROGRAM = Path(__file__).parents[1] / "compiled"
"""The folder of what was compiled when the program was installed, as in the image of a container."""


class _Compiling(event.Listener):  # type: ignore[misc]
    """Adds up the seconds in which this process compiles kernels. Numba tells it when it begins and ends."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0  # a kernel may need others, which are then compiled meanwhile
        self.announced = False  # whether the user was told of earlier seconds
        self.kept = True  # whether later processes find what is compiled in a cache
        self.silent = False  # whether nothing shall be said while kernels are compiled
        self._collects = False

    def on_start(self, event: Any) -> None:
        if self._depth == 0:
            self.seconds -= time.monotonic()
            # A search for garbage would go through all that the compiler makes, most of which stays.
            self._collects = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.monotonic()
            if self._collects:
                gc.enable()
            if self.seconds >= LONG and not self.silent:
                self.silent = True
                later = "; later runs take them from a cache" * self.kept
                logging.getLogger("distsms").warning("distsms compiles its loops for such data%s", later)


compiling = _Compiling()
event.register("numba:compile", compiling)


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return `numba.njit` with these options, without Python's global lock, and with the cache."""

    def decorate(function: Callable[..., Any]) -> Any:
        # No kernel is passed to another one as an argument, which is what C wrappers are for.
        make: Any = numba.njit
        dispatcher = make(nogil=True, no_cfunc_wrapper=True, **options)(function)
        # Numba has no public interface for this. If a future release renames it, each start compiles.
        if isinstance(getattr(dispatcher, "_cache", None), NullCache):
            dispatcher._cache = _Cache(dispatcher)
            dispatcher.get_call_template = _without_literals(dispatcher.get_call_template)
        return dispatcher

    return decorate


def _without_literals(template: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method for which the number that a variable begins with is no type, which would cost a version."""
    return lambda args, kws: template(tuple(map(types.unliteral, args)), kws)


def is_compiled(kernel: Any, arguments: Sequence[Any]) -> bool:
    """Return whether there is a version of a kernel for such arguments, in this process or in the cache."""
    if not isinstance(getattr(kernel, "_cache", None), _Cache):
        return True
    signature, cache, codegen = tuple(map(numba.typeof, arguments)), kernel._cache, kernel.targetctx.codegen()
    return signature in kernel.overloads or cache.find(signature, codegen) is not None


class _Cache(NullCache):  # type: ignore[misc]
    """The versions of a kernel in the folders of the cache."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return a version, or None, without what Numba imports to compile, its Python and NumPy, which takes 0.2 s."""
        rtsys.initialize(target)
        content = self.find(signature, target.codegen())
        with contextlib.suppress(Exception):  # whatever it is, the version is compiled again
            return content and CompileResult._rebuild(target, *pickle.loads(content))  # noqa: S301 - ours
        return None

    def find(self, signature: Any, codegen: Any) -> bytes | None:
        """Return the content of a version's file, if it is ours and whole."""
        name = self._name(signature, codegen)
        for folder in _places(os.environ.get("NUMBA_CACHE_DIR")).to_read:
            with contextlib.suppress(OSError):
                content = (folder / name).read_bytes()
                if _is_ours(folder / name) and hashlib.sha256(content[:-_DIGEST]).digest() == content[-_DIGEST:]:
                    return content[:-_DIGEST]
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Write a version. If that fails, because the disk is full, say, the next process compiles it again."""
        folder = _places(os.environ.get("NUMBA_CACHE_DIR")).to_write
        if folder is None:
            compiling.kept = False
            remedy = "set NUMBA_CACHE_DIR to a writable folder to keep them"
            _warn_once(f"kernels are compiled at each start, as there is no folder to write them to; {remedy}")
        if folder is None or compiled.library.has_dynamic_globals:
            return
        name = self._name(signature, compiled.library.codegen)
        content = dumps(compiled._replace(type_annotation="")._reduce())  # to write down all types takes long
        of_kernel = f"{name.rpartition('-')[0]}-"
        with contextlib.suppress(OSError):
            with tempfile.NamedTemporaryFile(dir=folder, prefix=of_kernel, delete=False) as file:
                file.write(content + hashlib.sha256(content).digest())
            os.chmod(file.name, 0o644)
            os.replace(file.name, folder / name)
            for path in sorted(folder.glob(f"{of_kernel}*"), key=lambda path: -path.stat().st_mtime)[KEPT:]:
                path.unlink()

    def _name(self, signature: Any, codegen: Any) -> str:
        parts = *_platform(codegen), *_content(self._kernel), *map(_described, signature)
        function, digest = self._kernel.py_func, hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}-{digest[:40]}.nbc"


@functools.cache
def _platform(codegen: Any) -> tuple[str, ...]:
    versions = (module.__version__ for module in (numba, llvmlite, np))
    return str(sys.implementation.cache_tag), *versions, *codegen.magic_tuple()


def _described(kind: Any) -> str:
    """Return the name of a type; for a tuple with the names of the fields, from which kernels read."""
    fields = getattr(getattr(kind, "instance_class", None), "_fields", ())
    return f"{kind} {fields} {[_described(part) for part in getattr(kind, 'types', ())]}"


@functools.cache
def _content(kernel: Any) -> list[str]:
    """Return what is compiled into a kernel: bytecode, constants and options, also of the kernels that it calls."""
    parts, waiting, seen = list[str](), [kernel], set[Any]()
    while waiting:
        if (kernel := waiting.pop()) in seen:
            continue
        seen.add(kernel)
        function = kernel.py_func if isinstance(kernel, Dispatcher) else kernel._defn
        options = getattr(kernel, "targetoptions", {})
        options = {name: sorted(value) if isinstance(value, set) else value for name, value in options.items()}
        parts.append(f"{function.__qualname__} {sorted(options.items())} {function.__defaults__}")
        parts.append(_text_of(function.__code__, function.__doc__))
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        for name, value in [*zip(function.__code__.co_freevars, cells, strict=True), *_globals(function)]:
            if isinstance(value, Dispatcher) or hasattr(value, "_defn"):
                waiting.append(value)
            elif isinstance(value, np.ndarray):
                parts.append(f"{name} {value.dtype} {value.shape} {value.tobytes().hex()}")
            elif isinstance(value, int | float | str | tuple | np.generic):
                parts.append(f"{name} {value!r}")
    return parts


def _text_of(code: CodeType, about: str | None = None) -> str:
    """Return what a function does: all of its code but the docstring, and where it stands."""
    constants = [_text_of(each) if isinstance(each, CodeType) else each for each in code.co_consts if each != about]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames} {code.co_argcount}"


def _globals(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield the global values that a function may use, and those of modules that it names."""
    names = function.__code__.co_names
    for name in names:
        value = function.__globals__.get(name)
        yield name, value
        if isinstance(value, ModuleType):
            yield from ((f"{value.__name__}.{each}", getattr(value, each, None)) for each in names)


class _Places(NamedTuple):
    """The folders of the cache."""

    to_read: list[Path]
    to_write: Path | None


@functools.cache
def _places(named: str | None) -> _Places:
    """Return the folders, with the one that a variable of the environment names in place of that in the home folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    places = [_OF_PROGRAM]
    if named or home.is_absolute():  # where nothing says where the home folder is, there is one named ~
        places.insert(0, Path(named or home, "distsms"))
    to_write = next(filter(_can_be_written, places), None)
    return _Places([place for place in places if place.is_dir() and is_private(place)], to_write)


def _can_be_written(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid == os.geteuid():  # made by us, perhaps with a umask like 002
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) & ~_BY_OTHERS)
        private = is_private(folder)
    except OSError:
        return False
    if not private and folder != _OF_PROGRAM:
        remedy = "set NUMBA_CACHE_DIR to a folder of yours that only you can write to"
        _warn_once(f"{folder}: is not used for compiled kernels, since other users could put code there; {remedy}")
    return private and os.access(folder, os.W_OK)


def is_private(folder: Path) -> bool:
    """Return whether a folder is ours, and nobody else can put files into it, or exchange it."""
    above = [place.stat().st_mode for place in folder.absolute().parents]
    return _is_ours(folder) and all(not mode & stat.S_IWOTH or mode & stat.S_ISVTX for mode in above)


def _is_ours(path: Path) -> bool:
    """Return whether a file or folder is this user's, or the owner's of this program, who alone can write to it."""
    about = path.stat()
    by_others = stat.S_IWOTH if about.st_gid == about.st_uid else _BY_OTHERS  # by convention a group of this user alone
    return about.st_uid in (os.geteuid(), os.stat(__file__).st_uid) and not about.st_mode & by_others


@functools.cache
def _warn_once(text: str) -> None:
    print(f"distsms: {text}", file=sys.stderr)


@njit(inline="always", error_model="numpy")
def weight_of(weights: Any, i: Any) -> Any:
    """Return weights[i]; 1.0 if `weights` is None, for which Numba compiles a version of the calling kernel."""
    if weights is None:
        return 1.0
    return weights[i]
