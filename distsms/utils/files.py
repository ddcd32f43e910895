"""Files that are either complete or absent: atomic replacement, a check for disk space, one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from distsms.errors import InputError
from distsms.utils.output_file import PARTIAL, OutputFile, create_partial, describe_failure, naming_failures

SLACK_BYTES = 2**20
"""Disk space that is required beyond the data themselves, for HDF5's own structures and for what others write
meanwhile.
"""

LOCK = ".writing"
"""The file in a directory that its writer holds locked."""


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[OutputFile]:
    """Replace a file atomically: yield a file to write to, which takes the place of `path` when the body succeeds.

    If something fails, or if the process is killed, `path` is either the complete new file or the old file. If `path`
    is a symbolic link, the file to which it points is replaced. What a killed process left of its file for `path` is
    removed.

    Raises
    ------
    InputError
        If `path` cannot be written, at whatever byte, or is not a regular file.
    """
    path = Path(os.path.realpath(path))
    require_regular(path)
    with naming_failures(path):
        temporary, file = create_partial(path)
    try:
        with naming_failures(path, file):
            yield file
            file.finish()
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
    """Yield a new folder, which is removed at the end, even if this process is killed meanwhile.

    A second process waits for the end of this one, and removes the folder.
    """
    folder = Path(tempfile.mkdtemp(prefix="distsms-shards-"))
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


def require_regular(path: Path) -> None:
    """Raise InputError if `path` exists and is not a regular file, but a directory or a device, say."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{path}: is not a regular file, so nothing is written there; name another file")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error}") from error


MAKE_SPACE = "free some space, or name a directory on another disk"


class FileState:
    """The size of a file, and when it was last written, before it is read. Local.

    A file is opened for each part that is read. If it was replaced in between, some rows would be those of another one.

    Parameters
    ----------
    path : path
        The file.

    Attributes
    ----------
    path : path
        The file.
    size : int
        Its size in bytes.
    seen : tuple of int
        Its size, time and number, which are the same on all hosts that share it.

    Raises
    ------
    InputError
        If there is no such file.
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
            found = os.stat(path)
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
            + MAKE_SPACE
        )


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Create a directory and hold it for one writer while the body runs.

    If a writer is killed, the directory is free again. This also works for a SLURM job that was requeued after its host
    failed: the new run ignores a lock of the earlier run, which a file server may still consider valid.

    Raises
    ------
    InputError
        If another process holds the directory, or it cannot be written to.
    """
    path = directory / LOCK
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
    except BlockingIOError as error:
        raise InputError(
            f"{directory}: another job is writing here{error.strerror}; wait until it has ended"
        ) from error
    except OSError as error:
        raise InputError(describe_failure(directory, error)) from error
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(path)):  # not a successor's lock file
                path.unlink()
        with contextlib.suppress(OSError):  # a disk without room, which matters no more
            lock.close()


def _locked(path: Path) -> IO[bytes]:
    """Return the lock file, open and locked, with its owner in it.

    Raises BlockingIOError, which says which process holds it, or OSError if it cannot be written.
    """
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
            if os.path.samestat(os.fstat(lock.fileno()), os.stat(path)):
                lock.truncate(0)
                lock.write(json.dumps(me).encode())
                return lock
        lock.close()  # the holder before us has removed the file between our opening and locking it; try again


def _owner() -> dict[str, str]:
    """Describe this process to others that find its lock."""
    return {
        "pid": str(os.getpid()),
        "host": os.uname().nodename,
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "job": os.environ.get("SLURM_JOB_ID", ""),
        "restart": os.environ.get("SLURM_RESTART_COUNT", "0"),
    }


def _read_owner(lock: IO[bytes]) -> dict[str, str] | None:
    """Return what a lock file says of its holder; None if that is missing or unreadable."""
    try:
        lock.seek(0)
        found = json.loads(lock.read())
        return found if set(_owner()) <= set(found) else None
    except (OSError, ValueError, TypeError):
        return None


def _went_before(holder: dict[str, str] | None, me: dict[str, str]) -> bool:
    """Return whether the holder is an earlier run of this job, before it was requeued. That run must have ended."""
    return bool(holder and me["job"] and holder["job"] == me["job"] and holder["restart"] != me["restart"])


def sync(path: Path) -> None:
    """Flush a directory's entries, or a closed file, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        # Some file systems do not support fsync of a directory.
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(handle)
    finally:
        os.close(handle)
