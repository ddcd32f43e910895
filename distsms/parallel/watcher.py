"""The watcher: a process beside each rank, started by the rank's `Watchdog`, that ends the job when a rank has stopped
responding, and names that rank.

It observes from outside (in /proc) whether its rank uses the processor or moves bytes, as one does that computes or
waits in MPI; a rank that is stopped, or hangs on a disk, is idle. Watchers report by UDP to the root's watcher, which
answers. If a rank has been idle, or its watcher silent, for too long, the root's watcher prints which it is, and makes
every watcher kill its rank, and the launcher, if that does not end. A watcher that no longer hears from the root's
kills its own rank. The job ends as well if the launcher is suspended for too long.

A job begins its work when all watchers have heard each other, or after two seconds; a watcher that was never heard from
(because of a firewall, say) is then ignored. One that has itself been asleep, with the whole job, allows the others the
same time. Datagrams begin with a keyed digest, and have rising numbers: forged or repeated ones have no effect. The
watcher runs without site-packages, so this module and what it imports use nothing but Python's standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from distsms.parallel import processes

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator

BYE, HEARD, BEGIN = b".", b"h", b"b"
"""What a rank and its watcher tell each other: the work is done; all other watchers were heard; the work begins."""
HEARING = 2.0  # seconds that a rank waits at its start for its watcher to hear the others
FORGIVING_GRACE = 2.0  # seconds that a launcher has to kill this rank itself, if it forgives deaths
LAUNCHER_GRACE = 10.0  # seconds that a launcher has to end by itself; it might wait forever for an unreachable host
UNHEARD = 30.0  # seconds after which a watcher that was never heard from is ignored
FOLDER = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
START = f"import sys; sys.path.append({FOLDER!r}); from distsms.parallel.watcher import main; main()"
"""The program of a watcher, which finds this package without site-packages."""
STATES = {"T": "is stopped", "t": "is being traced", "D": "waits for a disk or a file server"}
DIGEST_BYTES = hashlib.sha256().digest_size


class Message(NamedTuple):
    """What one watcher tells another."""

    kind: str  # beat, done, died, end or kill
    rank: int  # the sender's
    number: int  # larger than in the sender's previous message
    idle: float  # seconds for which the sender's rank has been idle
    about: str  # where the sender's rank runs and what state it is in, for people

    def pack(self, key: bytes) -> bytes:
        """Return the datagram of this message: its keyed digest, and itself."""
        body = json.dumps(self).encode()
        return hmac.digest(key, body, "sha256") + body

    @classmethod
    def unpack(cls, datagram: bytes, key: bytes) -> Message | None:
        """Return the message of a datagram; None unless it was made with this key."""
        digest, body = datagram[:DIGEST_BYTES], datagram[DIGEST_BYTES:]
        genuine = hmac.compare_digest(digest, hmac.digest(key, body, "sha256"))
        return cls._make(json.loads(body)) if genuine else None


class Watcher:
    """The process beside a rank, its parent, which ends the job if a rank is idle or silent for `timeout` seconds.
    `setup` has `rank`, `size`, the job's `key` in hexadecimal, `root`, address and port of each of the root's
    `sockets`, and `survive`.
    """

    def __init__(self, setup: dict[str, Any], sockets: list[socket.socket], timeout: float) -> None:
        self.rank, self.key, self.timeout = setup["rank"], bytes.fromhex(setup["key"]), timeout
        self.option = f"(--stall-timeout {timeout:g}s)"  # of which each message says that it was exceeded
        self.survive = bool(setup.get("survive"))
        self.others = set(range(setup["size"])) - {self.rank} if self.rank == 0 else {0}
        # Where each other rank is reached: a socket, and an address if the socket is not connected to it. The other
        # ranks use all addresses of the root's host until one has answered.
        self.peers: dict[int, list[tuple[socket.socket, Any]]] = {}
        if self.rank:
            sockets = [_connected(address, port) for address, port in setup["root"]]
            self.peers = {0: [(sock, None) for sock in sockets]}
        self.sockets = sockets
        for sock in sockets:
            sock.setblocking(False)
        self.number, self.heard = 0, dict.fromkeys(self.others, 0)  # of the last message sent, and of each rank's last
        self.parent = os.getppid()
        self.launcher = processes.parent(self.parent)
        self.siblings = processes.Siblings(self.parent)
        self.activity = processes.Activity(self.parent, processes.BUSY_SHARE * self.timeout)
        self.interval = min(5.0, self.timeout / 10)
        self.answered: dict[int, float] = {}  # when each other rank was last known to be active
        self.about: dict[int, str] = {}  # where each rank runs, and its state
        self.died: dict[int, float] = {}
        self.all_heard = self.begun = False
        self.start = self.last = self.launcher_ran = time.monotonic()

    def run(self) -> None:
        self.send("beat")
        while True:
            patience = max(0.0, self.last + self.interval - time.monotonic())
            ready = select.select([0, *(sock.fileno() for sock in self.sockets)], [], [], patience)[0]
            for sock in self.sockets:
                if sock.fileno() in ready:
                    self.receive(sock)
            news = os.read(0, 2**16) if 0 in ready else None
            if news == BYE:
                self.send("done")
                self.wait_for_end()
                return
            if news == b"":
                self.send("died")
                if self.rank == 0:
                    time.sleep(processes.DEATH_GRACE)
                    self.end("rank 0 has died")
                return
            if news == BEGIN:
                self.begun = True
            elif news:
                self.forget(json.loads(news))
            elif time.monotonic() >= self.last + self.interval:
                self.observe()
                self.send("beat")
                self.check()

    def wait_for_end(self) -> None:
        """Watch the rank, which has done its work, until it has ended."""
        for sock in self.sockets:
            sock.close()
        self.start = self.launcher_ran = time.monotonic()
        ended = processes.end_of(self.parent)
        while os.getppid() == self.parent:
            select.select(ended, [], [], self.interval if ended else 0.05)
            if time.monotonic() >= self.last + self.interval:
                self.observe()
                waited = time.monotonic() - self.start
                # A rank that merely waits for another one in MPI lets the watcher of that one report first. If the
                # launcher is stopped, `check_launcher` ends the job.
                patience = self.timeout + (0 if self.activity.state in STATES else 5 * self.interval)
                if waited > patience and processes.state(self.launcher) != "T":
                    why = f"has done its work, but not ended for {waited:.0f} s {self.option}"
                    self.end(f"rank {self.rank} ({self.whereabouts()}) {why}")
                self.check_launcher()
        self.wait_for_launcher()

    def wait_for_launcher(self) -> None:
        """Watch the launcher, which ends after its ranks, unless it waits for a host that is cut off."""
        for stream in (1, 2):  # it may wait until these are closed
            os.close(stream)
        ended, self.launcher_ran = processes.end_of(self.launcher), time.monotonic()
        while ended and processes.name(self.launcher) in processes.LAUNCHERS and processes.state(self.launcher) != "Z":
            select.select(ended, [], [], self.interval)
            if time.monotonic() >= self.last + self.interval:
                self.observe()
                if (waited := time.monotonic() - self.launcher_ran) > self.timeout:
                    why = f"has not ended for {waited:.0f} s after the last rank on its host"
                    say(f"{self.of_launcher(why)}; ending it")
                    signal.pidfd_send_signal(ended[0], signal.SIGKILL)
                    return

    def observe(self) -> None:
        now = time.monotonic()
        asleep = now - self.last - self.interval
        if asleep > 2 * self.interval:  # so it cannot know whether the other ranks were active in this time
            self.answered = {rank: then + asleep for rank, then in self.answered.items()}
            self.activity.since += asleep
            self.start = self.start and self.start + asleep
            self.launcher_ran += asleep
        self.last = now
        self.activity.look()

    def forget(self, ranks: list[int]) -> None:
        """Expect nothing more from ranks that have died, since the others go on."""
        for rank in ranks:
            self.others.discard(rank)
            for kept in (self.answered, self.died, self.peers):
                kept.pop(rank, None)

    def send(self, kind: str, to: int | None = None) -> None:
        """Send a message to the root's watcher, or from there to one watcher or all that it has heard from."""
        self.number += 1
        idle = time.monotonic() - self.activity.since
        datagram = Message(kind, self.rank, self.number, idle, self.whereabouts()).pack(self.key)
        for ways in self.peers.values() if to is None else [self.peers[to]]:
            for sock, address in ways:
                with contextlib.suppress(OSError):
                    sock.send(datagram) if address is None else sock.sendto(datagram, address)

    def whereabouts(self) -> str:
        why = STATES.get(self.activity.state, "")
        return f"on {os.uname().nodename}, process {self.parent}{why and ', which ' + why}"

    def receive(self, sock: socket.socket) -> None:
        """Read one datagram and act on it; drop it if it is old, or from a rank of which nothing more is expected."""
        try:
            data, address = sock.recvfrom(4096)
        except OSError:
            return
        message = Message.unpack(data, self.key)
        if message is None or message.rank not in self.others or message.number <= self.heard[message.rank]:
            return
        first, self.heard[message.rank] = not self.heard[message.rank], message.number
        self.peers[message.rank] = [(sock, None if self.rank else address)]
        if message.kind == "end":
            kill_rank(self.parent, self.launcher)
        elif message.kind == "kill":
            os.kill(self.parent, signal.SIGKILL)
        elif message.kind == "done":
            self.others.discard(message.rank)
            self.answered.pop(message.rank, None)
        elif message.kind == "died":
            self.died.setdefault(message.rank, time.monotonic())
        else:
            self.answered[message.rank] = time.monotonic() - message.idle
            if first and self.rank == 0:
                self.send("beat", message.rank)
            if not (self.all_heard or self.begun) and self.others <= set(self.answered):
                self.all_heard = True
                with contextlib.suppress(OSError):
                    os.write(0, HEARD)
        self.about[message.rank] = message.about

    def check(self) -> None:
        """End the job if a rank has been idle or silent for too long, or has died."""
        now = time.monotonic()
        late = {rank: now - then for rank, then in self.answered.items() if now - then > self.timeout}
        if self.rank == 0 and now - self.activity.since > self.timeout:
            late[0], self.about[0] = now - self.activity.since, self.whereabouts()
        if late and self.survive and 0 not in late:
            for rank in sorted(late):
                say(f"no answer from rank {rank} ({self.about[rank]}) for {late[rank]:.0f} s; killing it")
                self.answered.pop(rank)
                self.died[rank] = now
                self.send("kill", rank)
        elif late:
            time.sleep(0.05 * min(self.rank, 20))  # if all have lost the root, the first to wake up reports it
            ranks = [f"rank {rank} ({self.about[rank]}) for {late[rank]:.0f} s" for rank in sorted(late)]
            self.end(f"no answer from {', '.join(ranks)} {self.option}")
        self.check_launcher()
        if not self.begun and now - self.start > self.timeout:
            why = f"has waited {now - self.start:.0f} s for the others since MPI started: a host may be cut off"
            self.end(f"rank {self.rank} ({self.whereabouts()}) {why} {self.option}")
        if not self.begun and (lost := self.siblings.lost()):
            self.end(f"{lost_text(lost)} before the work began")
        # A job that goes on tells its watchers which ranks it has left out.
        patience = self.timeout if self.survive and self.begun else processes.DEATH_GRACE
        if any(now - then > patience for then in self.died.values()):
            self.end(", ".join(f"rank {rank} ({self.about[rank]}) has died" for rank in sorted(self.died)))
        # Before the work begins, `start` is needed above, and silent ranks end the job.
        if self.rank == 0 and self.begun and self.start and now - self.start > UNHEARD:
            self.start = 0.0
            if unheard := sorted(self.others - set(self.answered)):
                say(f"warning: ranks {unheard} are not watched, since no UDP message arrives from their hosts")
        if self.rank or not self.start:  # sockets that reached no other watcher are not needed any more
            used = [sock for ways in self.peers.values() for sock, _ in ways]
            self.sockets = [sock for sock in self.sockets if sock in used]

    def check_launcher(self) -> None:
        """End the job if the launcher has been stopped for too long."""
        now = time.monotonic()
        if processes.state(self.launcher) != "T":
            self.launcher_ran = now
        elif now - self.launcher_ran > self.timeout:
            self.end(self.of_launcher(f"has been stopped for {now - self.launcher_ran:.0f} s"))

    def of_launcher(self, why: str) -> str:
        """Return a sentence on the launcher, and let its standard error be this process's: it forwards no output."""
        time.sleep(0.05 * min(self.rank, 20))  # the first rank to wake up reports it
        with contextlib.suppress(OSError):
            os.dup2(os.open(f"/proc/{self.launcher}/fd/2", os.O_WRONLY), 2)
        name, host = processes.name(self.launcher), os.uname().nodename
        return f"the launcher ({name}, process {self.launcher} on {host}) {why} {self.option}"

    def end(self, why: str) -> None:
        """Print why, and end every rank."""
        say(f"{why}; ending the job")
        for _ in range(3 if self.rank == 0 or self.survive else 0):
            self.send("died" if self.rank else "end")
        kill_rank(self.parent, self.launcher)


def _connected(address: str, port: int) -> socket.socket:
    """Return a UDP socket that is connected to this address of the root, and so receives from there alone."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError):  # there is no way from here to this address of the root
        sock.connect((address, port))
    return sock


def say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"distsms watchdog: {text}\n".encode(errors="replace"))


def lost_text(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''} on {os.uname().nodename} {'have' if ranks > 1 else 'has'} ended"


def kill_rank(parent: int, launcher: int) -> None:
    """Kill a rank, then the launcher unless it ends by itself or was asked to (one that forgives deaths); then exit."""
    if processes.deaths_forgiven() and processes.name(launcher) in processes.LAUNCHERS:
        with contextlib.suppress(ProcessLookupError):
            os.kill(launcher, signal.SIGTERM)
        end = time.monotonic() + FORGIVING_GRACE
        while os.getppid() == parent and time.monotonic() < end:
            time.sleep(0.05)
    if os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)
    for stream in (1, 2):  # the launcher may wait until these are closed
        os.close(stream)
    end = time.monotonic() + LAUNCHER_GRACE
    while processes.name(launcher) in processes.LAUNCHERS and processes.state(launcher) != "Z":
        time.sleep(0.1)
        if time.monotonic() > end:
            os.kill(launcher, signal.SIGKILL)
    sys.exit(1)


def wait_for_setup(timeout: float) -> tuple[bytes, list[int]]:
    """Wait for the rank's message and sockets, after MPI has started; end the job if another rank hangs before."""
    parent, waited = os.getppid(), 0.0
    interval, siblings = min(1.0, timeout / 10), processes.Siblings(parent)
    with socket.socket(fileno=os.dup(0)) as channel:
        while not select.select([channel], [], [], interval)[0]:
            if lost := siblings.lost():
                say(f"{lost_text(lost)} before MPI had started; ending the job")
                kill_rank(parent, processes.parent(parent))
            waited += interval  # intervals are counted, since the clock also runs while the whole job is suspended
            if waited > timeout:
                launcher, rank = processes.parent(parent), processes.rank_of(parent)
                me = f"rank {rank} (on {os.uname().nodename}, process {parent})"
                stopped = [
                    f"; rank {processes.rank_of(pid)} (process {pid}) {STATES[state]}"
                    for pid in processes.children(launcher)
                    if (state := processes.state(pid)) in STATES
                ]
                say(
                    f"{me} has waited {waited:.0f} s for MPI to start (--stall-timeout): another rank hangs while it "
                    f"starts{''.join(stopped)}; ending the job"
                )
                kill_rank(parent, launcher)
        message, sockets, _, _ = socket.recv_fds(channel, 2**16, 250)
        return message, list(sockets)


def main() -> None:
    """Run the watcher; its parent sends the setup through its standard input, and `BYE` when all is done."""
    os.setsid()  # a launcher that kills its ranks' process groups must not kill this process
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    timeout = float(sys.argv[1])
    message, sockets = wait_for_setup(timeout)
    if message not in (b"", BYE):
        Watcher(json.loads(message), [socket.socket(fileno=number) for number in sockets], timeout).run()


class Watchdog:
    """A context manager on each rank for its watcher; none with 0 seconds, or without /proc. The job ends if a rank is
    idle or not heard from for `timeout` seconds, or if MPI does not start within them; until `watch` is called, that is
    awaited.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout if os.path.exists("/proc/self/stat") else 0.0
        self._process: Any = None

    def __enter__(self) -> Watchdog:
        if self._timeout:
            import subprocess  # a watcher, which has this module as well, shall start in little time

            self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, contextlib.suppress(OSError):  # without a watcher the job runs, and the root reports that
                self._process = subprocess.Popen(  # noqa: S603 - a module of this package
                    [sys.executable, "-I", "-S", "-c", START, str(self._timeout)], stdin=theirs.fileno(), cwd="/"
                )
        return self

    def watch(self, comm: Communicator) -> None:
        """Watch all ranks of a job of several from now on, by a key that the root sends. **Collective.**"""
        if comm.size == 1 or not self._timeout:
            self._tell(BYE)
            return
        one_node = len(comm.node_ranks()) == comm.size
        sockets = _bound(["127.0.0.1"] if one_node else _addresses()) if comm.is_root else []
        key, peers = comm.bcast((os.urandom(32).hex(), [sock.getsockname() for sock in sockets]))
        setup = {"rank": comm.rank, "size": comm.size, "key": key, "root": peers, "survive": bool(comm.failures)}
        self._tell(json.dumps(setup).encode(), sockets)
        for sock in sockets:
            sock.close()
        if self._process is not None:
            self._listen(min(HEARING, self._timeout / 2))
        comm.barrier()
        self._tell(BEGIN)
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
                self._end.recv(len(HEARD))

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        if self._timeout:
            self._tell(BYE)
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
