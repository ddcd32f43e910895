"""Files that are either complete or absent: atomic replacement, a check for disk space, one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from distsms.base import addresses
from distsms.base.errors import InputError
from distsms.base.output_file import (
    PARTIAL,
    TEMPORARY,
    OutputFile,
    create_partial,
    describe_failure,
    make_space,
    naming_failures,
    real_path,
)

SLACK_BYTES = 2**20
"""Disk space that is required beyond the data, for HDF5's own structures and for what others write meanwhile."""

LOCK = ".writing"
"""The file in a directory that its writer holds locked."""


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[OutputFile]:
    """Replace a file atomically: yield a file to write to, which takes the place of `path` when the body succeeds;
    symbolic links are followed as by `real_path`. Raises InputError if any byte cannot be written, or for what is no
    regular file.
    """
    require_regular(Path(path))
    path = real_path(path)
    _require_held(path)
    with naming_failures(path):
        temporary, file = create_partial(path)
    try:
        with naming_failures(path, file):
            yield file
            file.finish()
            _require_held(path)
            os.replace(temporary, path)
            sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
        file.close()


REMOVER = """\
trap '' HUP INT TERM USR1 USR2
cat
for attempt in 1 2 3 4 5; do rm -rf -- "$1" && break; sleep 1; done
"""
"""A shell script that removes a folder once its input is closed, which the end of this process also does."""


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder; a second process removes it at the end, even if this process is killed meanwhile."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=TEMPORARY))
    except OSError as error:
        raise InputError(
            f"no folder for temporary files can be made: {error}; set TMPDIR to a folder with room"
        ) from error
    remover = subprocess.Popen(  # noqa: S603 - these are our own words
        ["/bin/sh", "-c", REMOVER, "sh", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    assert remover.stdin is not None
    try:
        yield folder
    finally:
        remover.stdin.close()
        remover.wait()


def remove_partial(directory: Path) -> None:
    """Remove from a directory, held by `exclusive`, temporary files that killed processes left; see `atomic_write`."""
    for path in directory.glob(f".*{PARTIAL}"):
        path.unlink(missing_ok=True)


MOST_TEXT = 2**30
"""The largest file, in bytes, that is read as a whole where its content takes no more than a line for each column."""


def look_at(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the state of a file before it is read; InputError for what is no regular file, and may block. Local."""
    found = addresses.status(path)
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path}: is a directory; name the files in it")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: is no regular file; every rank must be able to read it at any byte")
    return found


def read_whole(path: str | os.PathLike[str], most: int = MOST_TEXT) -> bytes:
    """Return the content of a file of at most so many bytes. Local. Raises InputError or OSError as `look_at`."""
    if (size := look_at(path).st_size) > most:
        raise InputError(f"{path}: has {size} bytes, and at most {most} are read; is it the right file?")
    with open(path, "rb") as file:
        return file.read(size)


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a TOML file says. Local. Raises InputError or OSError as `look_at`."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return cast(dict[str, Any], toml.loads(read_whole(path).decode()))
    except ValueError as error:
        raise InputError(f"{path}: is no TOML: {error}") from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise InputError if no file can be written at `path`: before a run rather than at its end."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise InputError(f"{path}: the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: no permission to write in {folder}")
    real_path(path)
    require_regular(Path(path))


def require_regular(path: Path) -> None:
    """Raise InputError if `path` exists and is not a regular file, but a directory or a device, say."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{path}: is not a regular file, so nothing is written there; name another file")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error}") from error


class FileState:
    """The size of a file, and when it was last written, before it is read: it is opened for each part, and may be
    replaced in between. `seen` has size, time and number, the same on all hosts that share it. Local.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self._found = path, self._now(path)
        self.size, self.seen = self._found[0], self._found[:3]

    def require_same(self) -> None:
        """Raise InputError if the file was changed or replaced since."""
        if self._now(self.path) != self._found:
            raise InputError(f"{self.path}: was changed or replaced while it was read. Run the command again")

    @staticmethod
    def _now(path: str | os.PathLike[str]) -> tuple[int, ...]:
        try:
            found = addresses.status(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        return found.st_size, found.st_mtime_ns, found.st_ino, found.st_dev


def require_space(directory: Path, n_bytes: int) -> None:
    """Raise InputError if the disk lacks space for n_bytes more: a failing write may crash HDF5 and the process."""
    try:
        free = os.statvfs(directory)
    except OSError as error:
        raise InputError(f"{directory}: cannot be written to: {error.strerror}") from error
    available = free.f_bavail * free.f_frsize
    if available < n_bytes + SLACK_BYTES:
        raise InputError(
            f"{directory}: the disk is full: {n_bytes + SLACK_BYTES} bytes are needed, {available} are free; "
            + make_space(directory)
        )


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Create a directory and hold it for one writer, also after one was killed; InputError if another process does."""
    path = directory / LOCK
    try:
        real_path(directory).mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
    except BlockingIOError as error:
        raise InputError(
            f"{directory}: another job is writing here{error.strerror}; wait until it has ended"
        ) from error
    except OSError as error:
        raise InputError(describe_failure(directory, error)) from error
    _held[os.path.realpath(directory)] = lock
    try:
        yield
    finally:
        _held.pop(os.path.realpath(directory), None)
        with contextlib.suppress(OSError):
            if _is_at(lock, path):  # not a successor's lock file
                path.unlink()
        with contextlib.suppress(OSError):  # a disk without room, which matters no more
            lock.close()


_held: dict[str, IO[bytes]] = {}
"""The directories that this process holds, and their locks."""


def _is_at(lock: IO[bytes], path: Path) -> bool:
    """Return whether a lock file is still there. Raises OSError if there is none."""
    return os.path.samestat(os.fstat(lock.fileno()), os.stat(path))


def _require_held(path: Path) -> None:
    """Raise InputError if a directory that this process held belongs to a successor, which takes it for dead."""
    for folder in path.parents:
        if (lock := _held.get(os.fspath(folder))) is not None:
            with contextlib.suppress(FileNotFoundError):
                if not _is_at(lock, folder / LOCK):
                    raise InputError(
                        f"{folder}: a later start of this job has taken this folder; nothing is written to it"
                    )


def _locked(path: Path) -> IO[bytes]:
    """Return the lock file, locked, with its owner in it. Raises BlockingIOError, naming the holder, or OSError."""
    me = _owner()
    while True:
        # O_NOFOLLOW, since a symbolic link could point to a file of somebody else
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        lock = open(handle, "a+b", buffering=0)  # noqa: SIM115 - closed by the caller
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _read_owner(lock)
            lock.close()
            if _went_before(holder, me):
                path.unlink(missing_ok=True)
                continue
            known = " (process {pid} on {host}, since {since})".format(**holder) if holder else ""
            raise BlockingIOError(error.errno, known) from error
        except OSError:  # a file system without locks
            return lock
        with contextlib.suppress(FileNotFoundError):
            if _is_at(lock, path):
                lock.truncate(0)
                lock.write(json.dumps(me).encode())
                return lock
        lock.close()  # the holder before us has removed the file between our opening and locking it; try again


def _owner() -> dict[str, str]:
    return {
        "pid": str(os.getpid()),
        "host": os.uname().nodename,
        "boot": _boot(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "job": os.environ.get("SLURM_JOB_ID", ""),
        "restart": os.environ.get("SLURM_RESTART_COUNT", "0"),
    }


def _boot() -> str:
    """Return what tells this start of this host from all others."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _read_owner(lock: IO[bytes]) -> dict[str, str] | None:
    try:
        lock.seek(0)
        found = json.loads(lock.read())
        return found if set(_owner()) <= set(found) else None
    except (OSError, ValueError, TypeError):
        return None


def _went_before(holder: dict[str, str] | None, me: dict[str, str]) -> bool:
    """Return whether the holder is an earlier run of this job, before it was requeued because its host failed."""
    # A lock that is held on this host, since it was started, belongs to a process that lives.
    if holder is None or not me["job"] or holder["job"] != me["job"] or holder["boot"] == me["boot"]:
        return False
    return int(holder["restart"]) < int(me["restart"])


def sync(path: Path) -> None:
    """Flush a directory's entries, or a closed file, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        # Some file systems do not support fsync of a directory.
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(handle)
    finally:
        os.close(handle)
