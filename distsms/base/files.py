"""Files that are either complete or absent: writing that may fail at any byte, atomic replacement, a check for disk
space, and one writer at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib
import io
import json
import os
import re
import secrets
import stat
import subprocess
import sys
import tempfile
import time
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import xxhash

from distsms.base import addresses
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


class OutputFile(io.FileIO):
    """A binary file to write to, and to read back from, that remembers the first failure, which `check` and `finish`
    raise, and drops what is written after it. It is locked while open. With `new`, it must not exist yet; else it must.
    """

    def __init__(self, path: str | os.PathLike[str], new: bool = True) -> None:
        # O_NOFOLLOW, since a symbolic link could lead to a file of somebody else
        super().__init__(
            path, "x+" if new else "r+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666)
        )
        self._failure: OSError | None = None
        with contextlib.suppress(OSError):
            fcntl.flock(self, fcntl.LOCK_EX)

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def finish(self, durable: bool = True) -> None:
        """Flush the file to the disk, if `durable`. Raises OSError if that, or anything before it, failed."""
        if durable:
            self._try(os.fsync, self.fileno())
        self._try(lambda: os.close(os.dup(self.fileno())))  # some file servers report a failure only on closing
        self.check()

    def _try(self, call: Any, *args: Any) -> Any:
        if self._failure is None:
            try:
                return call(*args)
            except OSError as error:
                self._failure = error
        return None

    def write(self, data: Any) -> int:
        content = memoryview(data)
        rest = content.cast("B") if content.nbytes else content[:0]
        while len(rest) and (count := self._try(os.write, self.fileno(), rest)) is not None:
            rest = rest[count:]
        self.seek(len(rest), os.SEEK_CUR)
        return content.nbytes

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        self._try(os.ftruncate, self.fileno(), size)
        return size

    def readinto(self, out: Any) -> int:
        view = memoryview(out).cast("B")
        count = 0
        while count < len(view) and (more := os.readv(self.fileno(), [view[count:]])):  # HDF5 wants all of it at once
            count += more
        if self._failure is not None:  # what was dropped reads as zeros
            view[count:] = bytes(len(view) - count)
            count = len(view)
        return count

    def close(self) -> None:
        """Close the file; failures that matter were raised by `finish`."""
        with contextlib.suppress(OSError):
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
        sound = "write to a folder where you have permission and whose disk is sound"
        remedy = make_space(path) if error.errno in NO_ROOM else sound
        raise InputError(f"{path}: cannot be written: {error.strerror or error}; {remedy}") from error


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
        if _is_at(file.fileno(), temporary):  # else another process took it for left over, before it was locked
            break
        file.close()
    _remove_left_over(path, host, temporary)
    return temporary, file


def _remove_left_over(path: Path, host: str, new: Path) -> None:
    """Remove what nobody writes for `path`: of this host, if unlocked; of others, whose locks may not show, if old."""
    name = re.compile(
        rf"\.{re.escape(path.name)}\.(?:([0-9a-f]{{8}})-[0-9a-f]{{16}}|[0-9a-f]{{32}}){re.escape(PARTIAL)}"
    )
    with contextlib.suppress(OSError):
        now = new.stat().st_mtime  # by the clock of the file server
        for beside in path.parent.iterdir():
            if beside != new and (match := name.fullmatch(beside.name)):
                with contextlib.suppress(OSError):  # it is locked, or gone
                    _remove_if_free(beside, match[1] == host or now - beside.stat().st_mtime > ABANDONED)


def _remove_if_free(path: Path, left_over: bool) -> None:
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if left_over:
            path.unlink()
    finally:
        os.close(handle)


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
        raise InputError(f"no temporary folder can be made: {error}; set TMPDIR to a folder with room") from error
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
    status = addresses.status(path)
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path}: is a directory; name the files in it")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: is no regular file; every rank must be able to read it at any byte")
    return status


def digest_of(path: str | os.PathLike[str], digest: Any) -> Any:
    """Return a digest, of hashlib or xxhash, after adding what a file holds. InputError or OSError as of `look_at`."""
    look_at(path)
    buffer = memoryview(bytearray(2**18))  # stays in a cache
    with open(path, "rb", buffering=0) as file:
        while n_bytes := file.readinto(buffer):
            digest.update(buffer[:n_bytes])
    return digest


_read_by_all = dict[str, str]()
"""The digests of files that this rank has read and that must be the same for all ranks: a network file system may show
some an old one. `Communicator.fail_together` compares what the ranks have noted since they last did so.
"""


def note(path: str | os.PathLike[str], digest: str) -> None:
    """Remember that a file with this digest was read at this path, which must be so on all ranks."""
    _read_by_all[os.fspath(path)] = digest


def note_content(path: str | os.PathLike[str]) -> None:
    """Remember what a file holds, as `note` does. Reads all of it. Raises InputError or OSError as `look_at`."""
    note(path, digest_of(Path(path), xxhash.xxh3_128()).hexdigest())


def take_noted() -> dict[str, str]:
    noted = dict(_read_by_all)
    _read_by_all.clear()
    return noted


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file of at most `MOST_TEXT` bytes. Local. Raises InputError or OSError as `look_at`."""
    if (size := look_at(path).st_size) > MOST_TEXT:
        raise InputError(f"{path}: has {size} bytes, and at most {MOST_TEXT} are read; is it the right file?")
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
    folder = real_path(path).parent
    if not folder.is_dir():
        raise InputError(f"{path}: the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: no permission to write in {folder}")
    require_regular(Path(path))


def require_regular(path: Path) -> None:
    """Raise InputError if `path` exists and is not a regular file, but a directory or a device, say."""
    with naming_failures(path), contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{path}: is not a regular file, so nothing is written there; name another file")


class FileState:
    """The size of a file, and when it was last written, before it is read: it is opened for each part, and may be
    replaced in between. `seen` has size, time and number, the same on all hosts that share it. Local.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self._at_first = path, self._now(path)
        self.size, self.seen = self._at_first[0], self._at_first[:3]

    def require_same(self) -> None:
        """Raise InputError if the file was changed or replaced since."""
        if self._now(self.path) != self._at_first:
            raise InputError(f"{self.path}: was changed or replaced while it was read. Run the command again")

    @staticmethod
    def _now(path: str | os.PathLike[str]) -> tuple[int, ...]:
        try:
            status = addresses.status(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev


def require_space(directory: Path, n_bytes: int) -> None:
    """Raise InputError if the disk lacks space for n_bytes more: a failing write may crash HDF5 and the process."""
    with naming_failures(directory):
        free = os.statvfs(directory)
    available = free.f_bavail * free.f_frsize
    if available < (needed := n_bytes + SLACK_BYTES):
        problem = f"the disk is full: {needed} bytes are needed, {available} are free"
        raise InputError(f"{directory}: {problem}; {make_space(directory)}")


@contextlib.contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Create a directory and hold it for one writer, also after one was killed; InputError if another process does."""
    path = directory / LOCK
    with naming_failures(directory):
        real_path(directory).mkdir(parents=True, exist_ok=True)
        try:
            lock = _locked(path)
        except BlockingIOError as error:
            message = f"{directory}: another job is writing here{error.strerror}; wait until it has ended"
            raise InputError(message) from error
    _held[os.path.realpath(directory)] = lock
    try:
        yield
    finally:
        _held.pop(os.path.realpath(directory), None)
        with contextlib.suppress(OSError):
            if _is_at(lock.fileno(), path):  # not a successor's lock file
                path.unlink()
        with contextlib.suppress(OSError):  # a disk without room, which matters no more
            lock.close()


_held: dict[str, IO[bytes]] = {}
"""The directories that this process holds, and their locks."""


def _is_at(handle: int, path: Path) -> bool:
    """Return whether a path still leads to an open file, which nobody has removed or replaced."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _require_held(path: Path) -> None:
    """Raise InputError if a directory that this process held belongs to a successor, which takes it for dead."""
    for folder in path.parents:
        lock = _held.get(os.fspath(folder))
        if lock is not None and not _is_at(lock.fileno(), folder / LOCK) and (folder / LOCK).exists():
            raise InputError(f"{folder}: a later start of this job has taken this folder; nothing is written to it")


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
            by_whom = " (process {pid} on {host}, since {since})".format(**holder) if holder else ""
            raise BlockingIOError(error.errno, by_whom) from error
        except OSError:  # a file system without locks
            return lock
        if _is_at(lock.fileno(), path):
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
        record = json.loads(lock.read())
        return record if set(_owner()) <= set(record) else None
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


DAMAGED = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy, zipfile and h5py raise if an archive, or the header of an array, is damaged."""


def open_zip(file: Any) -> zipfile.ZipFile:
    """Return an archive of arrays, given its path or stream. Raises ValueError unless NumPy may have written it."""
    archive = zipfile.ZipFile(file)
    # Of other kinds of compression than deflate, zipfile expands whole blocks, however large they become.
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in archive.infolist()):
        archive.close()
        raise ValueError("it is compressed, but not by deflate")
    return archive
