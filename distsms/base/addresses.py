"""Files by their addresses, such as https://host/table.csv or s3://bucket/table.parquet, which fsspec reads. Each read
asks the server for so many bytes. From a server that sends no parts, a file is read from its beginning."""

from __future__ import annotations

import contextlib
import io
import os
import re
import socket
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from distsms.base.errors import InputError
from distsms.base.wording import printable

BUFFER, DISCARDED = 2**20, 2**22
"""The least bytes that a server is asked for, and how many are read at once of those that are not needed."""
TIMEOUT = 60.0
"""The seconds that a server of the web may be silent. fsspec asks twice, in two ways, before it gives up."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_VERSION = ("ETag", "etag", "Last-Modified", "LastModified", "last_modified", "mtime", "updated")


def is_address(path: str | os.PathLike[str]) -> bool:
    return isinstance(path, str) and _ADDRESS.match(path) is not None


def local_path(path: str) -> str:
    """Return the path of an address that begins with file://, and all others as they are."""
    return unquote(urlsplit(path).path) if path.lower().startswith("file://") else path


def without_query(path: str) -> str:
    """Return a path or an address without what follows the name of the file in addresses of the web."""
    return re.split("[?#]", path)[0] if path.lower().startswith(("http://", "https://")) else path


def name_of(path: str | os.PathLike[str]) -> str:
    """Return the name of a file without its folders."""
    return Path(without_query(os.fspath(path))).name


def expand(pattern: str) -> list[str]:
    """Return the addresses that a pattern with * stands for."""
    files, path = _file_system(pattern)
    with _naming_failures(pattern):
        return sorted(files.unstrip_protocol(match) for match in files.glob(path))


def status(path: str | os.PathLike[str]) -> os.stat_result:
    """Return the state of a file. At an address, it has the size, and a number that changes with what the server says
    of the file's version. Raises OSError, or at an address InputError."""
    if not is_address(path):
        return os.stat(path)
    files, name = _file_system(str(path))
    with _naming_failures(path):
        files.invalidate_cache()
        info = files.info(name)
    if info.get("type", "file") != "file":
        raise InputError(f"{path}: is a folder; name the files in it, as in {str(path).rstrip('/')}/*.parquet")
    if info.get("size") is None:
        raise InputError(f"{path}: the server does not say how long the file is; download it, and give the copy")
    version = zlib.crc32(repr([info.get(key) for key in _VERSION]).encode())
    fields = (stat.S_IFREG | 0o444, 0, 0, 1, 0, 0, info["size"], 0, 0, 0)
    return os.stat_result(fields, {"st_mtime_ns": version})


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading."""
    if not is_address(path):
        return open(path, "rb")
    return io.BufferedReader(_Remote(str(path)), BUFFER)


class _Remote(io.RawIOBase):
    """A file at an address. Reading raises InputError."""

    def __init__(self, address: str) -> None:
        self._address, self._size = address, status(address).st_size
        self._files, self._path = _file_system(address)
        self._at, self._in_parts = 0, True
        self._file = self._open()

    def _open(self) -> Any:
        options = {"block_size": BUFFER, "cache_type": "none"} if self._in_parts else {"block_size": 0}
        with _naming_failures(self._address):
            return self._files.open(self._path, "rb", **options)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, out: Any) -> int:
        n_bytes = min(len(out), self._size - self._at)
        if n_bytes <= 0:
            return 0
        with _naming_failures(self._address):
            part = self._part(n_bytes)
        if not part:
            raise InputError(f"{self._address}: the server broke off at byte {self._at} of {self._size}; try again")
        out[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _part(self, n_bytes: int) -> bytes:
        """Return at most so many of the bytes that come next."""
        if self._in_parts:
            try:
                self._file.seek(self._at)
                return self._file.read(n_bytes)
            except ValueError:  # what fsspec says of a server that sends no parts, or if it cannot seek
                self._in_parts = False
                self._file = self._open()
        if self._file.tell() > self._at:
            self._file.close()
            self._file = self._open()
        while (behind := self._at - self._file.tell()) > 0:
            if not self._file.read(min(behind, DISCARDED)):
                return b""
        return self._file.read(n_bytes)

    def close(self) -> None:
        if not self.closed and (file := getattr(self, "_file", None)) is not None:
            file.close()
        super().close()


def _file_system(address: str) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and what it calls the file."""
    with _naming_failures(address):
        import fsspec

        protocol, options = address.split("://")[0].lower(), {}
        if protocol in ("http", "https"):
            import aiohttp

            timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT, sock_read=TIMEOUT)
            of_user = fsspec.config.conf.get(protocol, {}).get("client_kwargs", {})
            options = {"client_kwargs": {"timeout": timeout, **of_user}}
        return fsspec.core.url_to_fs(address, **options)


@contextlib.contextmanager
def _naming_failures(address: str | os.PathLike[str]) -> Iterator[None]:
    """Raise InputError for what fsspec and the libraries below it raise, which are many kinds of exceptions."""
    try:
        yield
    except InputError:
        raise
    except Exception as failure:
        error = failure
        if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
            error = error.__cause__  # fsspec says of all that goes wrong on the web that there is no file
        raise InputError(f"{address}: {_problem(error)}") from error


def _problem(error: Exception) -> str:
    import asyncio

    text = re.sub(r" ssl:\w+", "", printable(str(error))) or type(error).__name__
    answer = getattr(error, "status", None)
    if type(error).__name__ == "ClientConnectorDNSError" or isinstance(error.__cause__, socket.gaierror):
        return f"there is no such host, or no network ({text}); check the address"
    if isinstance(error, ImportError):
        return f"addresses are read by packages that are not installed ({text}): pip install 'distsms[remote]'"
    if isinstance(error, FileNotFoundError) or answer == 404:
        return "the server has no such file"
    if isinstance(error, PermissionError) or answer in (401, 403) or "redential" in text:
        return f"the server refuses access ({text}); set the credentials that fsspec takes for such addresses"
    if isinstance(error, ValueError) and "rotocol" in text:
        return f"addresses of this kind are not known ({text})"
    if isinstance(error, asyncio.TimeoutError):  # from Python 3.11 on TimeoutError itself
        return f"the server has not answered for {TIMEOUT:g} seconds; try again"
    if type(error).__name__ == "TooManyRedirects":
        return "the server redirects in a circle; is the address right?"
    if isinstance(answer, int) and answer >= 500:
        return f"the server answered {answer}, which says that it has failed; try again later"
    return f"the server does not answer, or broke off ({text}); try again"
