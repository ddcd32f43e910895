"""A run that waits for its rows when a signal comes has nothing to save, and ends soon, whatever it waits in."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import pytest

from distsms.parallel import signals

pytestmark = pytest.mark.serial


def _locked():
    """Wait for ever in C, as HDF5 does for a disk that hangs: signals do not interrupt it, and Python cannot go on."""
    lock = ctypes.create_string_buffer(256)  # a mutex of zeros is one that nobody holds
    python = ctypes.PyDLL(None)
    python.pthread_mutex_lock(lock)
    python.pthread_mutex_lock(lock)


WAITING = {"in Python": (lambda: time.sleep(60), 75), "in C": (_locked, -signal.SIGKILL)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forking where NumPy may have threads
@pytest.mark.parametrize("wait, code", WAITING.values(), ids=WAITING)
def test_a_run_that_has_not_begun_ends_after_a_signal(wait, code, monkeypatch):
    monkeypatch.setattr(signals, "GRACE", 0.1)
    monkeypatch.setattr(signals, "LAST_GRACE", 0.1)

    def wait_for_rows(stop, ready):
        ready()
        wait()

    assert _code_after_a_signal(wait_for_rows) == code


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_that_has_begun_is_left_alone(monkeypatch):
    monkeypatch.setattr(signals, "GRACE", 0.1)

    def train(stop, ready):
        assert not stop.wanted()
        ready()
        for _ in range(600):
            if stop.wanted():
                time.sleep(0.5)  # longer than it would be waited for
                os._exit(3)
            time.sleep(0.1)

    assert _code_after_a_signal(train) == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("begun", "said"), [(False, signals.TOO_EARLY), (True, signals.IN_HASTE)])
def test_what_happens_is_said_at_once_under_mpirun(begun, said, monkeypatch):
    """While the run computes in C, where Python's handlers wait: mpirun kills its ranks a second after SIGTERM."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setattr(signals, "GRACE", 60)
    errors, written = os.pipe()
    ready, started = os.pipe()
    if not (process := os.fork()):
        try:
            os.dup2(written, 2)
            with signals.StopSignals() as stop:
                assert not begun or not stop.wanted()
                os.write(started, b".")
                _locked()
        finally:
            os._exit(1)
    os.close(written)
    os.read(ready, 1)
    os.kill(process, signal.SIGTERM)
    text = b""
    while len(text.split()) <= len(said.split()):
        text += os.read(errors, 1000)
    assert " ".join(text.decode().split()) == f"distsms: {said}"
    os.kill(process, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    assert os.read(errors, 1) == b""  # the process beside it has ended, too


def _code_after_a_signal(work):
    """Return how a process ends that does this work, and gets a signal as soon as it says that it is ready."""
    ready, started = os.pipe()
    if not (process := os.fork()):
        try:
            with signals.StopSignals() as stop:
                work(stop, lambda: os.write(started, b"."))
        finally:
            os._exit(1)
    os.read(ready, 1)
    time.sleep(0.05)
    os.kill(process, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_the_process_beside_a_run_keeps_nothing_open_that_the_run_closes():
    """Or else what reads a pipe to its end, as the remover of temporary folders does, would wait for that process."""
    end, start = os.pipe()
    with signals.StopSignals():
        os.close(start)
        os.set_blocking(end, False)
        for _ in range(1000):  # until the new process has come so far
            try:
                assert os.read(end, 1) == b""
                break
            except BlockingIOError:
                time.sleep(0.01)
        else:
            pytest.fail("another process still has the pipe open")
    os.close(end)
