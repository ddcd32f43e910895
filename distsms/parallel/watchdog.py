"""A watchdog that ends a job in which a rank has stopped responding, and names that rank.

Each rank has a watcher, a process of its own. If the threads of the rank are blocked in MPI, in PETSc or by a disk that
does not respond, the watcher is not. It reads in /proc (so on Linux only) whether its rank uses the processor, reads or
writes. A rank that computes uses the processor. So does a rank that waits in MPI for another rank, since MPI polls. A
rank that is stopped, or that waits for a disk, is idle.

By UDP, the watchers of a job report to the root's watcher how long their ranks have been idle, and it answers. If a
rank has been idle for too long, or its watcher has been silent for too long, the root's watcher prints this and makes
every watcher kill its rank. A watcher that no longer receives messages from the root's watcher kills its own rank. If
the launcher does not end after that, it is killed, too, since mpirun may wait for a host that is no longer reachable.

A watcher from which no message ever arrived (because of a firewall, for example) is ignored. If a watcher notices that
it was itself suspended, because the whole job was, it adds this time to what the others are allowed.

This file is also the watcher's program, so it must import nothing but Python's standard library.
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
# A rank is idle if its processor time is less than this share of the time-out and it reads and writes fewer bytes.
BUSY_SHARE = 1e-3
BUSY_BYTES = 2**16
# If a rank has died, the launcher may end the job within this many seconds, since its message is more precise.
DEATH_GRACE = 3.0
LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra")
LAUNCHER_GRACE = 10.0  # the launcher is killed if it has not ended this many seconds after the ranks
UNHEARD = 30.0  # a watcher is ignored if no message from it arrives within this many seconds after the start
STATES = {"T": "is stopped", "t": "is being traced", "D": "waits for a disk or a file server"}


@contextlib.contextmanager
def watching(comm: Communicator, timeout: float) -> Iterator[None]:
    """Watch all ranks while the body runs. **Collective.**

    Does nothing with a single rank, with a time-out of 0, or without /proc.

    Parameters
    ----------
    comm : Communicator
        The ranks.
    timeout : float
        The job ends if a rank is idle or not heard from for this many seconds.
    """
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
    with contextlib.suppress(OSError):  # if the watcher could not be started, the run goes on without one
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
    """Return the IPv4 addresses of this host's interfaces."""
    found = []
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError):
            answer = fcntl.ioctl(sock, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
            found.append(socket.inet_ntoa(answer[20:24]))
    return found


class Activity:
    """Observes how long a process has been idle, and its state.

    Parameters
    ----------
    pid : int
        The process.
    least : float
        Seconds of processor time that count as activity.

    Attributes
    ----------
    since : float
        The time (of `time.monotonic`) when the process was last seen active.
    state : str
        The state of the process, as the letter that the command ps prints.
    """

    def __init__(self, pid: int, least: float) -> None:
        self._pid, self._least = pid, least
        self._mark = (-1.0, -1.0)  # its seconds of processor time and bytes moved when it was last seen active
        self.since = time.monotonic()
        self.state = ""

    def look(self) -> None:
        """Observe the process, and update `since` and `state`."""
        try:
            with open(f"/proc/{self._pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            return  # the process has ended, which `run` notices by the closed pipe
        self.state = fields[0]
        used, moved = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 0.0
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{self._pid}/io") as file:
            moved = sum(float(line.split()[1]) for line in file if "char" in line)
        busy = used - self._mark[0] >= self._least or moved - self._mark[1] >= BUSY_BYTES
        if busy or self.state == "R":  # R: it is running, or waits for a processor
            self._mark, self.since = (used, moved), time.monotonic()


class Watcher:
    """The process that watches one rank. The rank is its parent process.

    Parameters
    ----------
    setup : dict
        The setup that `watching` makes: rank, size, timeout, root and socket.
    """

    def __init__(self, setup: dict[str, Any]) -> None:
        self.rank, self.timeout = setup["rank"], setup["timeout"]
        self.token, addresses, port = setup["root"]
        self.sock = socket.socket(fileno=setup["socket"])
        self.sock.setblocking(False)
        self.others = set(range(setup["size"])) - {self.rank} if self.rank == 0 else {0}
        # Until the root's watcher has answered, messages are sent to all addresses of its host.
        self.peers = {} if self.rank == 0 else {None: [(address, port) for address in addresses]}
        self.parent = os.getppid()
        with open(f"/proc/{self.parent}/stat") as file:
            self.launcher = int(file.read().rsplit(")", 1)[1].split()[1])
        self.activity = Activity(self.parent, BUSY_SHARE * self.timeout)
        self.interval = min(5.0, self.timeout / 10)
        self.answered: dict[int, float] = {}  # when each other rank was last known to be active
        self.about: dict[int, str] = {}  # where each rank runs, and its state
        self.died: dict[int, float] = {}
        self.start = self.last = time.monotonic()

    def run(self) -> None:
        """Watch until the rank reports that it is done, or the job is over."""
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
        """Observe this watcher's rank, and report to the other watchers."""
        now = time.monotonic()
        asleep = now - self.last - self.interval
        if asleep > 2 * self.interval:  # this watcher was suspended, so it cannot know whether other ranks were active
            self.answered = {rank: then + asleep for rank, then in self.answered.items()}
            self.activity.since += asleep
        self.last = now
        self.activity.look()
        self.send("beat")

    def send(self, kind: str) -> None:
        """Send a message to the root's watcher, or from there to all watchers that it has heard from."""
        idle = time.monotonic() - self.activity.since
        message = json.dumps([self.token, self.rank, kind, idle, self.whereabouts()]).encode()
        for addresses in self.peers.values():
            for address in addresses:
                with contextlib.suppress(OSError):
                    self.sock.sendto(message, address)

    def whereabouts(self) -> str:
        """Return words that say where this watcher's rank runs and in what state it is."""
        why = STATES.get(self.activity.state, "")
        return f"on {os.uname().nodename}, process {self.parent}{why and ', which ' + why}"

    def receive(self) -> None:
        """Read one message and act on it; ignore what is not from this job."""
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
        """End the job if a rank has been idle or silent for too long, or has died."""
        now = time.monotonic()
        late = {rank: now - then for rank, then in self.answered.items() if now - then > self.timeout}
        if self.rank == 0 and now - self.activity.since > self.timeout:
            late[0], self.about[0] = now - self.activity.since, self.whereabouts()
        if late:
            time.sleep(0.05 * min(self.rank, 20))  # if the root is lost, the first watcher that wakes up reports it
            ranks = [f"rank {rank} ({self.about[rank]}) for {late[rank]:.0f} s" for rank in sorted(late)]
            self.end(f"no answer from {', '.join(ranks)} (--stall-timeout {self.timeout:g}s)")
        if any(now - then > DEATH_GRACE for then in self.died.values()):
            self.end(", ".join(f"rank {rank} ({self.about[rank]}) has died" for rank in sorted(self.died)))
        if self.rank == 0 and self.start and now - self.start > UNHEARD:
            self.start = 0.0
            if unheard := sorted(self.others - set(self.answered)):
                say(f"warning: ranks {unheard} are not watched, since no UDP message arrives from their hosts")

    def end(self, why: str) -> None:
        """Print why, and end every rank."""
        say(f"{why}; ending the job")
        for _ in range(3 if self.rank == 0 else 0):
            self.send("end")
        self.kill()

    def kill(self) -> None:
        """Kill this watcher's rank, whatever its state, then the launcher if it does not end by itself; then exit."""
        if os.getppid() == self.parent:
            os.kill(self.parent, signal.SIGKILL)
        for stream in (1, 2):  # the launcher may wait until these are closed
            os.close(stream)
        end = time.monotonic() + LAUNCHER_GRACE
        while _name(self.launcher) in LAUNCHERS:
            time.sleep(0.1)
            if time.monotonic() > end:
                os.kill(self.launcher, signal.SIGKILL)
        sys.exit(1)


def _name(pid: int) -> str:
    """Return the name of a process, "" if it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
    return ""


def say(text: str) -> None:
    """Print a line on standard error."""
    with contextlib.suppress(OSError):
        os.write(2, f"distsms watchdog: {text}\n".encode())


def main() -> None:
    """Run the watcher; its parent writes the setup to its standard input, and `BYE` when all is done."""
    os.setsid()  # a launcher that kills its ranks' process groups must not kill this process
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
