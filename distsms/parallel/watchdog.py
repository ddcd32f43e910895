"""A job in which a rank has stopped answering ends by itself, and says which one.

Beside each rank runs a watcher, a process of its own: whatever the rank's threads are held up by, in MPI, in PETSc or
on a disk that hangs, the watcher is not. It sees from outside (/proc, so on Linux only) whether its rank uses the
processor or moves bytes. A rank that computes does, and so does one that waits in MPI for another, since MPI polls;
one that is stopped, or hangs on a disk, does not. The watchers of a job tell the root's by UDP how long their ranks
have been idle, and it answers. Where a rank has been idle, or not heard of, for too long, the root's watcher says so
and has every watcher kill its rank; a watcher that has lost the root's kills its own. A launcher that does not end
then is killed, too: mpirun may wait for a host that is cut off.

A watcher that was never heard (a firewall, say) is not missed. One that finds that it has itself been asleep, since
the whole job was suspended, forgives the others as much.

This file is also the watcher's program: it must load with nothing but Python's standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distsms.parallel.communicator import Communicator

BYE = b"."
BUSY_SHARE = 1e-3  # a rank that has used a smaller share of the time-out has done nothing
BUSY_BYTES = 2**16  # nor has one that moved fewer bytes
DEATH_GRACE = 3.0  # seconds for the launcher to end a job in which a rank has died, which it says better than we do
LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra")
LAUNCHER_GRACE = 10.0  # seconds for one of these to notice: it may wait for ever for a host that is cut off
UNHEARD = 30.0  # seconds after which a watcher that was never heard is given up
STATES = {"T": "is stopped", "t": "is being traced", "D": "waits for a disk or a file server"}


@contextlib.contextmanager
def watching(comm: Communicator, timeout: float) -> Iterator[None]:
    """Watch over all ranks meanwhile; nothing with one rank, a time-out of 0 seconds, or no /proc. Collective."""
    if comm.size == 1 or not timeout or not os.path.exists("/proc/self/stat"):
        yield
        return
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("", 0))
    root = comm.bcast((secrets.token_hex(), _addresses(sock), sock.getsockname()[1]))
    setup = {"rank": comm.rank, "size": comm.size, "timeout": timeout, "root": root, "socket": sock.fileno()}
    watcher = subprocess.Popen(  # noqa: S603 - this very file
        [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, pass_fds=[sock.fileno()], cwd="/"
    )
    sock.close()
    assert watcher.stdin is not None
    with contextlib.suppress(OSError):  # whatever became of the watcher: the run is what counts
        os.write(watcher.stdin.fileno(), json.dumps(setup).encode() + b"\n")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.write(watcher.stdin.fileno(), BYE)
            watcher.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            watcher.wait(5.0)


def _addresses(sock: socket.socket) -> list[str]:
    """The IPv4 addresses of this host's interfaces."""
    found = []
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):
            answer = fcntl.ioctl(sock, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
            found.append(socket.inet_ntoa(answer[20:24]))
    return found


class Activity:
    """For how long a process has done nothing, and what it is up to."""

    def __init__(self, pid: int, least: float) -> None:
        self._pid, self._least = pid, least
        self._mark = (-1.0, -1.0)  # seconds of processor time and bytes moved, when it was last seen to do something
        self.since = time.monotonic()
        self.state = ""

    def look(self) -> None:
        """Update `since`, when it was last seen to do something, and `state`, a letter of ps."""
        try:
            with open(f"/proc/{self._pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            return  # it is gone, which its end of the pipe tells
        self.state = fields[0]
        used, moved = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 0.0
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{self._pid}/io") as file:
            moved = sum(float(line.split()[1]) for line in file if "char" in line)
        busy = used - self._mark[0] >= self._least or moved - self._mark[1] >= BUSY_BYTES
        if busy or self.state == "R":  # or it would run, if others let it
            self._mark, self.since = (used, moved), time.monotonic()


class Watcher:
    """The process beside one rank, its parent."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.rank, self.timeout = setup["rank"], setup["timeout"]
        self.token, addresses, port = setup["root"]
        self.sock = socket.socket(fileno=setup["socket"])
        self.sock.setblocking(False)
        self.others = set(range(setup["size"])) - {self.rank} if self.rank == 0 else {0}
        # Until the root's watcher has answered: wherever it may be.
        self.peers = {} if self.rank == 0 else {None: [(address, port) for address in addresses]}
        self.parent = os.getppid()
        with open(f"/proc/{self.parent}/stat") as file:
            self.launcher = int(file.read().rsplit(")", 1)[1].split()[1])
        self.activity = Activity(self.parent, BUSY_SHARE * self.timeout)
        self.interval = min(5.0, self.timeout / 10)
        self.answered: dict[int, float] = {}  # when each other rank was last known to do something
        self.about: dict[int, str] = {}  # where each one is, and how it is
        self.died: dict[int, float] = {}
        self.start = self.last = time.monotonic()

    def run(self) -> None:
        """Until the rank says that it is done, or the job is over."""
        while True:
            patience = max(0.0, self.last + self.interval - time.monotonic())
            ready = select.select([self.sock.fileno(), 0], [], [], patience)[0]
            if self.sock.fileno() in ready:
                self.receive()
            if 0 in ready:
                if os.read(0, 1) == BYE:
                    self.send("done")
                    return
                self.send("died")
                if self.rank == 0:
                    time.sleep(DEATH_GRACE)
                    self.end("rank 0 has died")
                return
            if time.monotonic() >= self.last + self.interval:
                self.beat()
                self.check()

    def beat(self) -> None:
        """Look at the own rank, and tell."""
        now = time.monotonic()
        asleep = now - self.last - self.interval
        if asleep > 2 * self.interval:  # nobody knows what the others did meanwhile
            self.answered = {rank: then + asleep for rank, then in self.answered.items()}
            self.activity.since += asleep
        self.last = now
        self.activity.look()
        self.send("beat")

    def send(self, kind: str) -> None:
        """Tell the root's watcher, or, if this is it, all that it has heard of."""
        idle = time.monotonic() - self.activity.since
        message = json.dumps([self.token, self.rank, kind, idle, self.whereabouts()]).encode()
        for addresses in self.peers.values():
            for address in addresses:
                with contextlib.suppress(OSError):
                    self.sock.sendto(message, address)

    def whereabouts(self) -> str:
        """Where the own rank is, and how, for people."""
        why = STATES.get(self.activity.state, "")
        return f"on {os.uname().nodename}, process {self.parent}{why and ', which ' + why}"

    def receive(self) -> None:
        """Take in what has come."""
        try:
            data, address = self.sock.recvfrom(4096)
            token, rank, kind, idle, about = json.loads(data)
        except (OSError, ValueError, TypeError):
            return
        if token != self.token or rank not in self.others:
            return
        if self.rank == 0 or None in self.peers:
            self.peers = {**self.peers, rank: [address]}
            self.peers.pop(None, None)
        if kind == "end":
            self.kill()
        elif kind == "done":
            self.others.discard(rank)
            self.answered.pop(rank, None)
        elif kind == "died":
            self.died.setdefault(rank, time.monotonic())
        else:
            self.answered[rank] = time.monotonic() - idle
        self.about[rank] = about

    def check(self) -> None:
        """End the job if a rank has not answered for too long, or has died."""
        now = time.monotonic()
        late = {rank: now - then for rank, then in self.answered.items() if now - then > self.timeout}
        if self.rank == 0 and now - self.activity.since > self.timeout:
            late[0], self.about[0] = now - self.activity.since, self.whereabouts()
        if late:
            time.sleep(0.05 * min(self.rank, 20))  # where all have lost the root, one of them shall say so
            ranks = [f"rank {rank} ({self.about[rank]}) for {late[rank]:.0f} s" for rank in sorted(late)]
            self.end(f"no answer from {', '.join(ranks)} (--stall-timeout {self.timeout:g}s)")
        if any(now - then > DEATH_GRACE for then in self.died.values()):
            self.end(", ".join(f"rank {rank} ({self.about[rank]}) has died" for rank in sorted(self.died)))
        if self.rank == 0 and self.start and now - self.start > UNHEARD:
            self.start = 0.0
            if unheard := sorted(self.others - set(self.answered)):
                say(f"warning: ranks {unheard} are not watched, since nothing is heard from their hosts (UDP)")

    def end(self, why: str) -> None:
        """Say why, and end every rank."""
        say(f"{why}; ending the job")
        for _ in range(3 if self.rank == 0 else 0):
            self.send("end")
        self.kill()

    def kill(self) -> None:
        """End the own rank, whatever state it is in, its launcher if that does not end by itself, and this process."""
        if os.getppid() == self.parent:
            os.kill(self.parent, signal.SIGKILL)
        for stream in (1, 2):  # which the launcher may wait for
            os.close(stream)
        end = time.monotonic() + LAUNCHER_GRACE
        while _name(self.launcher) in LAUNCHERS:
            time.sleep(0.1)
            if time.monotonic() > end:
                os.kill(self.launcher, signal.SIGKILL)
        sys.exit(1)


def _name(pid: int) -> str:
    """The name of a process, "" if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
    return ""


def say(text: str) -> None:
    """A line on standard error."""
    with contextlib.suppress(OSError):
        os.write(2, f"distsms watchdog: {text}\n".encode())


def main() -> None:
    """The watcher's program; its parent writes its setup, and BYE when all is done, into its standard input."""
    os.setsid()  # a launcher that clears up after its ranks is to leave this one to its work
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    setup = b""
    while not setup.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return
        setup += byte
    Watcher(json.loads(setup)).run()


if __name__ == "__main__":
    main()
