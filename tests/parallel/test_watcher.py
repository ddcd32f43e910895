"""What a watcher takes from the network: messages of its job, each once, and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms import cli
from distsms.parallel import processes
from distsms.parallel import watcher as watching
from distsms.parallel.watcher import DIGEST_BYTES, HEARD, Message, Watcher

pytestmark = pytest.mark.serial
KEY = b"k" * 32
MESSAGES = st.builds(
    Message,
    st.sampled_from(["beat", "done", "died", "end", "kill"]),
    st.integers(0, 2**32 - 1),
    st.integers(1, 2**63),
    st.floats(0, 1e9),
    st.text(st.characters(codec="utf-8"), max_size=200),
)


@given(MESSAGES)
def test_a_message_arrives_as_it_was_sent(message):
    assert Message.unpack(message.pack(KEY), KEY) == message


@given(MESSAGES, st.data())
def test_a_message_that_was_changed_is_dropped(message, data):
    datagram = bytearray(message.pack(KEY))
    at = data.draw(st.integers(0, len(datagram) - 1))
    datagram[at] ^= data.draw(st.integers(1, 255))
    assert Message.unpack(bytes(datagram), KEY) is None
    assert Message.unpack(message.pack(KEY)[: data.draw(st.integers(0, len(datagram) - 1))], KEY) is None
    assert Message.unpack(message.pack(b"j" * 32), KEY) is None


@given(st.binary(max_size=4096) | st.sampled_from([b"[" * 4000, b'["token", 1, "end", 0.0, ""]', b""]))
def test_what_nobody_of_the_job_has_sent_is_dropped(datagram):
    assert Message.unpack(datagram, KEY) is None


@pytest.fixture
def root():
    """The root's watcher of a job of three ranks, and a way to send datagrams to it."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    watcher = Watcher({"rank": 0, "size": 3, "key": KEY.hex(), "root": []}, [receiver], 10.0)
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def send(datagram):
        receiver.setblocking(True)
        sender.sendto(datagram, receiver.getsockname())
        watcher.receive(receiver)

    with receiver, sender:
        yield watcher, send


def test_the_root_hears_its_ranks(root):
    watcher, send = root
    send(Message("beat", 1, 1, 0.0, "on a host").pack(KEY))
    assert list(watcher.answered) == list(watcher.peers) == [1]
    assert watcher.about[1] == "on a host"
    send(Message("done", 1, 2, 0.0, "on a host").pack(KEY))
    assert watcher.others == {2}


def test_the_root_answers_at_once_when_it_first_hears_a_rank(root, monkeypatch):
    """And it tells its rank when it has heard all."""
    watcher, send = root
    sent = []
    watcher.send = lambda kind, to=None: sent.append((kind, to))
    monkeypatch.setattr(os, "write", lambda channel, message: sent.append((channel, message)))
    for number in (1, 2):
        send(Message("beat", 1, number, 0.0, "on a host").pack(KEY))
    send(Message("beat", 2, 1, 0.0, "on a host").pack(KEY))
    assert sent == [("beat", 1), ("beat", 2), (0, HEARD)]


def test_a_job_ends_if_a_host_is_lost_before_the_work_begins(root):
    watcher, _ = root
    ends = []
    watcher.end = ends.append
    watcher.check()
    assert not ends
    watcher.start -= 11.0
    watcher.check()
    assert "a host may be cut off" in ends.pop()
    watcher.begun = True
    watcher.check()
    assert not ends


def test_a_start_that_takes_long_has_the_whole_time_out(root, monkeypatch):
    """Also where it is longer than the time after which ranks that were never heard from are ignored."""
    watcher, _ = root
    watcher.timeout, ends, said = 600.0, [], []
    watcher.end = ends.append
    monkeypatch.setattr(watching, "say", said.append)
    watcher.start -= watching.UNHEARD + 1.0
    for _ in range(2):
        watcher.check()
    assert not ends and not said
    watcher.begun = True
    for _ in range(2):
        watcher.check()
    (warning,) = said
    assert "[1, 2] are not watched" in warning and not ends


@pytest.mark.parametrize(
    "datagram",
    [
        b"[" * 4000,
        b"",
        bytes(DIGEST_BYTES + 21),
        Message("died", 1, 9, 0.0, "").pack(b"another key"),
        Message("died", 0, 9, 0.0, "").pack(KEY),  # the root's own, reflected
        Message("died", 3, 9, 0.0, "").pack(KEY),  # of a rank that the job does not have
    ],
)
def test_a_datagram_of_others_changes_nothing(root, datagram):
    watcher, send = root
    send(datagram)
    assert not watcher.answered and not watcher.peers and not watcher.died and watcher.others == {1, 2}


def test_a_repeated_beat_does_not_keep_a_rank_alive(root):
    watcher, send = root
    beat = Message("beat", 1, 5, 0.0, "").pack(KEY)
    send(beat)
    first = watcher.answered[1]
    time.sleep(0.01)
    send(beat)
    send(Message("beat", 1, 4, 0.0, "").pack(KEY))
    assert watcher.answered[1] == first
    send(Message("beat", 1, 6, 0.0, "").pack(KEY))
    assert watcher.answered[1] > first


def test_every_command_on_several_ranks_is_watched():
    _, parsers = cli.make_parsers()
    watched = {name for name, parser in parsers.items() if "--stall-timeout" in parser.format_help()}
    assert watched == set(parsers) - {"info", "export"}


def test_in_a_job_that_goes_on_a_silent_rank_is_killed_alone(root):
    watcher, send = root
    watcher.survive = True
    send(Message("beat", 1, 1, 20.0, "on a host").pack(KEY))  # idle for twice the time-out
    sent = []
    watcher.send = lambda kind, to=None: sent.append((kind, to))
    watcher.check()
    assert sent == [("kill", 1)]
    assert list(watcher.died) == [1]
    watcher.check()  # the rank gets the time-out to die and to be left out
    assert sent == [("kill", 1)]
    watcher.forget([1])
    for number, kind in enumerate(("died", "beat"), 2):  # sent before, and read only now
        send(Message(kind, 1, number, 20.0, "on a host").pack(KEY))
    assert not (watcher.died or watcher.answered or watcher.peers)
    assert watcher.others == {2}


def test_a_job_ends_if_mpi_never_notices_a_death(root):
    watcher, send = root
    watcher.survive = True
    send(Message("died", 2, 1, 0.0, "on a host").pack(KEY))
    ends = []
    watcher.end = ends.append
    watcher.check()
    assert not ends
    watcher.died[2] -= 11.0
    watcher.check()
    assert len(ends) == 1
    assert "rank 2" in ends[0]


@pytest.fixture
def siblings(tmp_path, monkeypatch):
    """Three ranks that a launcher has started."""
    launcher = tmp_path / "mpirun"
    launcher.write_text("#!/bin/bash\nfor k in 0 1 2; do OMPI_COMM_WORLD_RANK=$k sleep 60 & echo $!; done\nwait\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "3")
    monkeypatch.setenv(processes.ULFM, "1")
    with subprocess.Popen([launcher], stdout=subprocess.PIPE, text=True) as process:
        ranks = [int(process.stdout.readline()) for _ in range(3)]
        yield ranks
        process.kill()
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)


def test_a_rank_that_ends_while_mpi_starts_is_missed(siblings, monkeypatch):
    wait_until(lambda: not processes.others_gone(siblings[0]))  # the last of them may not have its variables yet
    started = processes.Siblings(siblings[0])
    assert not started.lost()
    os.kill(siblings[2], signal.SIGKILL)
    wait_until(lambda: processes.others_gone(siblings[0]) == 1)
    assert not started.lost()  # the launcher gets some seconds
    started._complete -= 10.0
    assert started.lost() == 1
    monkeypatch.delenv(processes.ULFM)  # then the launcher ends the job itself
    assert not started.lost()


def test_a_launcher_that_forgives_deaths_is_asked_to_end(siblings, monkeypatch):
    launcher = processes.parent(siblings[0])
    monkeypatch.setattr(os, "close", lambda stream: None)
    with pytest.raises(SystemExit):
        watching.kill_rank(0, launcher)
    assert processes.state(launcher) in ("", "Z")  # it ended by SIGTERM


def test_a_process_may_wait_for_a_disk_for_an_instant(monkeypatch):
    """While a rank that waits for MPI looks at the others, their states change."""
    states, said = itertools.cycle("DS"), []
    channel, rank = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(os, "dup", lambda number: channel.detach())
    monkeypatch.setattr(os, "getppid", os.getpid)  # so that this process is a rank, beside itself
    monkeypatch.setattr(processes, "state", lambda pid: next(states))
    monkeypatch.setattr(watching, "say", said.append)
    monkeypatch.setattr(watching, "kill_rank", lambda parent, launcher: sys.exit(1))
    with rank, pytest.raises(SystemExit):
        watching.wait_for_setup(0.1)
    assert "waits for a disk" in said[0]


def test_the_name_of_a_process_may_be_any_bytes(tmp_path):
    program = os.fsencode(tmp_path) + b"/caf\xe9"
    os.symlink(shutil.which("sleep"), program)
    with subprocess.Popen([program, "20"]) as process:
        try:
            wait_until(lambda: processes.name(process.pid) == "caf\ufffd")
            assert process.pid in processes.children(os.getpid())
        finally:
            process.kill()


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
