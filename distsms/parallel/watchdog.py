"""Watch over the ranks of a job, each by a process of its own (`distsms.parallel.watcher`) that is started here."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from distsms.parallel import watcher

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator

LOOPBACK = "127.0.0.1"
FOLDER = str(Path(watcher.__file__).parents[2])
START = f"import sys; sys.path.append({FOLDER!r}); from {watcher.__name__} import main; main()"
"""The program of a watcher, which finds this package without site-packages."""


class Watchdog:
    """A context manager for the watcher of this rank; none with 0 seconds, or without /proc. The job ends if a rank is
    idle or not heard from for `timeout` seconds, or if MPI does not start within them; until `watch` is called, that is
    awaited.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout if os.path.exists("/proc/self/stat") else 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Watchdog:
        if self._timeout:
            self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, contextlib.suppress(OSError):  # without a watcher the job runs, and the root reports that
                self._process = subprocess.Popen(  # noqa: S603 - a module of this package
                    [sys.executable, "-I", "-S", "-c", START, str(self._timeout)], stdin=theirs.fileno(), cwd="/"
                )
        return self

    def watch(self, comm: Communicator) -> None:
        """Watch all ranks of a job of several from now on, by a key that the root sends. **Collective.**"""
        if comm.size == 1 or not self._timeout:
            self._tell(watcher.BYE)
            return
        one_node = len(comm.node_ranks()) == comm.size
        sockets = _bound([LOOPBACK] if one_node else _addresses()) if comm.is_root else []
        key, peers = comm.bcast((secrets.token_hex(), [sock.getsockname() for sock in sockets]))
        setup = {"rank": comm.rank, "size": comm.size, "key": key, "root": peers, "survive": bool(comm.failures)}
        self._tell(json.dumps(setup).encode(), sockets)
        for sock in sockets:
            sock.close()
        if self._process is not None:
            self._listen(min(watcher.HEARING, self._timeout / 2))
        comm.barrier()
        self._tell(watcher.BEGIN)
        comm.on_death = lambda ranks: self._tell(json.dumps(ranks).encode())

    def _tell(self, message: bytes, sockets: list[socket.socket] | None = None) -> None:
        """Send the watcher a message and sockets. If the watcher has failed, the run continues without it."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                socket.send_fds(self._end, [message], [sock.fileno() for sock in sockets or []])

    def _listen(self, seconds: float) -> None:
        """Take what the watcher says within this time, which is that it has heard the others."""
        with contextlib.suppress(OSError):
            if select.select([self._end], [], [], seconds)[0]:
                self._end.recv(len(watcher.HEARD))

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        if self._timeout:
            self._tell(watcher.BYE)
            self._listen(0.0)  # a socket that is closed before all is read makes the other end fail
            self._end.close()  # the watcher ends after this process


def _addresses() -> list[str]:
    """Return the IPv4 addresses by which other hosts may reach this one."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(sock, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
                addresses.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in addresses if not address.startswith("127.")]


def _bound(addresses: list[str]) -> list[socket.socket]:
    """Return a UDP socket at a free port of each address."""
    sockets = []
    for address in addresses:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((address, 0))
        sockets.append(sock)
    return sockets
