"""New files whose writing may fail at any byte: the failure is remembered, and the library that writes never sees it.

HDF5 crashes the process where a write fails; others raise what they like, and again when they close the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distsms.base.errors import InputError

PARTIAL = ".partial"
"""The ending of the names of files that are being written."""
TEMPORARY = "distsms-shards-"
"""The names of temporary folders begin so."""
ABANDONED = 86400
"""Seconds after which a temporary file of another host counts as left over, where locks do not tell."""
MOST_LINKS = 40
"""The most symbolic links that are followed, as in Linux."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class OutputFile(io.RawIOBase):
    """A binary file to write to, and to read back from, that remembers the first failure, which `check` and `finish`
    raise, and drops what is written after it. It is locked while open. With `new`, it must not exist yet; else it must.
    """

    def __init__(self, path: str | os.PathLike[str], new: bool = True) -> None:
        # O_NOFOLLOW, since a symbolic link could lead to a file of somebody else
        self._handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if new else 0), 0o666)
        self._failure: OSError | None = None
        with contextlib.suppress(OSError):
            fcntl.flock(self._handle, fcntl.LOCK_EX)

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def finish(self, durable: bool = True) -> None:
        """Flush the file to the disk, if `durable`. Raises OSError if that, or anything before it, failed."""
        if durable:
            self._try(os.fsync, self._handle)
        self._try(lambda: os.close(os.dup(self._handle)))  # some file servers report a failure only on closing
        self.check()

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Return whether `path` still leads to this file, which nobody has removed."""
        try:
            return os.path.samestat(os.fstat(self._handle), os.stat(path))
        except FileNotFoundError:
            return False

    def _try(self, call: Any, *args: Any) -> Any:
        if self._failure is None:
            try:
                return call(*args)
            except OSError as error:
                self._failure = error
        return None

    # What a file has, for those who write to it.

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._handle, offset, whence)

    def write(self, data: Any) -> int:
        content = memoryview(data)
        rest = content.cast("B") if content.nbytes else content[:0]
        while len(rest) and (count := self._try(os.write, self._handle, rest)) is not None:
            rest = rest[count:]
        self.seek(len(rest), os.SEEK_CUR)
        return content.nbytes

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        self._try(os.ftruncate, self._handle, size)
        return size

    def readinto(self, out: Any) -> int:
        view = memoryview(out).cast("B")
        count = 0
        while count < len(view) and (more := os.readv(self._handle, [view[count:]])):  # HDF5 wants all of it at once
            count += more
        if self._failure is not None:  # what was dropped reads as zeros
            view[count:] = bytes(len(view) - count)
            count = len(view)
        return count

    def close(self) -> None:
        """Close the file; failures that matter were raised by `finish`."""
        if not self.closed:
            with contextlib.suppress(OSError):
                os.close(self._handle)
        super().close()


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return where an output goes: its path with all symbolic links followed. In a folder where everybody may write
    (/tmp), a link counts only if it is this user's or the folder's owner's; else, or in a loop, this raises InputError.
    """
    whole = Path(path) if os.path.isabs(path) else Path(os.getcwd(), path)
    here, parts, links = Path("/"), [*reversed(whole.parts[1:])], 0
    while parts:
        part = parts.pop()
        if part == "..":
            here = here.parent
            continue
        place = here / part
        try:
            target, about, folder = os.readlink(place), os.lstat(place), os.stat(here)
        except OSError:  # no link, or nothing there
            here = place
            continue
        is_shared = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
        if is_shared and about.st_uid not in (os.geteuid(), folder.st_uid):
            raise InputError(f"{path}: {place} is a link of another user, so nothing is written there; remove it")
        if (links := links + 1) > MOST_LINKS:
            raise InputError(f"{path}: leads through more than {MOST_LINKS} links; name the file itself")
        here = Path("/") if target.startswith("/") else here
        parts += [*reversed(Path(target).parts)]
    return here


@contextlib.contextmanager
def naming_failures(path: str | os.PathLike[str], file: OutputFile | None = None) -> Iterator[None]:
    """Turn OSError into an InputError with the file's name and the remedy; any error, if a write to `file` failed."""
    try:
        try:
            yield
        except Exception:
            if file is not None:
                file.check()  # the cause of whatever was raised
            raise
    except OSError as error:
        raise InputError(describe_failure(path, error)) from error


def describe_failure(path: str | os.PathLike[str], error: OSError) -> str:
    """Return the sentence for a file that cannot be written."""
    remedy = (
        make_space(path)
        if error.errno in NO_ROOM
        else "write to a folder where you have permission and whose disk is sound"
    )
    return f"{path}: cannot be written: {error.strerror or error}; {remedy}"


def make_space(path: str | os.PathLike[str]) -> str:
    """Return what to do if there is no room for a file, which may be in a temporary folder that users do not know."""
    if TEMPORARY not in os.fspath(path):
        return "free some space there or get a larger quota, or write to another disk"
    return f"make space in the folder for temporary files, {tempfile.gettempdir()}, or set TMPDIR to another"


def create_partial(path: Path) -> tuple[Path, OutputFile]:
    """Create and lock a temporary file beside `path`; remove those that killed processes left for this name."""
    host = hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]
    while True:
        temporary = path.with_name(f".{path.name}.{host}-{secrets.token_hex(8)}{PARTIAL}")
        file = OutputFile(temporary)
        if file.is_at(temporary):  # else another process took it for left over, before it was locked
            break
        file.close()
    _remove_left_over(path, host, temporary)
    return temporary, file


def _remove_left_over(path: Path, host: str, own: Path) -> None:
    """Remove what nobody writes for `path`: of this host, if unlocked; of others, whose locks may not show, if old."""
    name = re.compile(
        rf"\.{re.escape(path.name)}\.(?:([0-9a-f]{{8}})-[0-9a-f]{{16}}|[0-9a-f]{{32}}){re.escape(PARTIAL)}"
    )
    with contextlib.suppress(OSError):
        now = own.stat().st_mtime  # by the clock of the file server
        for found in path.parent.iterdir():
            if found != own and (match := name.fullmatch(found.name)):
                with contextlib.suppress(OSError):  # it is locked, or gone
                    _remove_if_free(found, match[1] == host or now - found.stat().st_mtime > ABANDONED)


def _remove_if_free(path: Path, left_over: bool) -> None:
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if left_over:
            path.unlink()
    finally:
        os.close(handle)
