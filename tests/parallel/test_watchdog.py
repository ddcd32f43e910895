"""If a rank stops, hangs or dies, the job ends with a message; if it is only slow, the job continues."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from distsms.parallel.processes import Activity
from tests.support.program import children, finish, rank_of, start

pytestmark = [pytest.mark.e2e, pytest.mark.serial]
TIMEOUT = 2.0  # seconds
SOON = 20.0  # seconds after which a job that ends must be gone

# Each rank adds up until the root has counted to argv[1] rounds; rank argv[2] does argv[3] in between.
PROGRAM = """
import sys, time, numpy as np
from distsms.parallel.mpi import world
from distsms.parallel.watcher import Watchdog

def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass

with Watchdog(float(sys.argv[4])) as watchdog:
    comm = world()
    watchdog.watch(comm)
    for k in range(int(sys.argv[1])):
        if k == 20 and comm.rank == int(sys.argv[2]):
            exec(sys.argv[3])
        if comm.is_root and k == 10:
            print("running", flush=True)
        comm.sum(np.ones(1000))
        time.sleep(0.01)
if comm.is_root:
    print("done", flush=True)
"""


def launch(tmp_path, rounds, rank=0, deed="pass", timeout=TIMEOUT):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    return start(rounds, rank, deed, timeout, ranks=3, program=(str(script),))


def pid_of(process, rank):
    return next(pid for pid in children(process.pid) if rank_of(pid) == rank)


def wait_until_gone(pids, began):
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() - began < TIMEOUT + SOON
        time.sleep(0.1)


def test_a_stopped_rank_is_named(tmp_path):
    """The root; tests/robustness/test_long_jobs.py stops another one."""
    process = launch(tmp_path, 10**6)
    assert process.stdout.readline() == "running\n"
    stopped = pid_of(process, 0)
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    code, _, err = finish(process)
    assert time.monotonic() - began < TIMEOUT + SOON
    assert code != 0
    assert f"no answer from rank 0 (on {os.uname().nodename}, process {stopped}, which is stopped)" in err
    wait_until_gone([stopped], began)


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.by_turns)])
def test_a_rank_that_is_stopped_after_its_work_ends_the_job(tmp_path, rank):
    stop = f"import os, signal\nif comm.rank == {rank}: os.kill(os.getpid(), signal.SIGSTOP)"
    script = tmp_path / "program.py"
    script.write_text(f"{PROGRAM}\n{stop}")
    code, out, err = finish(start(1, 0, "pass", TIMEOUT, ranks=3, program=(str(script),)))
    assert code != 0
    assert "done" in out
    assert re.search(rf"rank {rank} \(on .*which is stopped\) has done its work, but not ended for \d s", err)


def test_a_rank_that_hangs_is_named(tmp_path):
    code, out, err = finish(launch(tmp_path, 10**6, 1, "time.sleep(1000)"))
    assert code != 0
    assert "no answer from rank 1 (" in err
    assert "done" not in out


def test_one_that_is_continued_in_time_goes_on(tmp_path):
    process = launch(tmp_path, 300, timeout=4.0)
    assert process.stdout.readline() == "running\n"
    stopped = pid_of(process, 1)
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(1.0)
    os.kill(stopped, signal.SIGCONT)
    code, out, err = finish(process)
    assert code == 0, err
    assert "done" in out
    assert "watchdog" not in err


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.by_turns)])
def test_slow_is_not_stopped(tmp_path, rank):
    code, out, err = finish(launch(tmp_path, 40, rank, f"busy({1.5 * TIMEOUT})"))
    assert code == 0, err
    assert "done" in out


@pytest.mark.parametrize("rank", [0, 2])
def test_killed_or_failed_nothing_is_left(tmp_path, rank):
    """The launcher reports the failure, and the watchers end with their ranks."""
    process = launch(tmp_path, 10**6, timeout=600)
    assert process.stdout.readline() == "running\n"
    everyone = [descendant for pid in children(process.pid) for descendant in (pid, *children(pid))]
    os.kill(pid_of(process, rank), signal.SIGKILL)
    began = time.monotonic()
    code, _, _ = finish(process)
    assert code != 0
    assert time.monotonic() - began < SOON
    wait_until_gone(everyone, began)


def test_a_job_that_is_suspended_as_a_whole_goes_on(tmp_path):
    """Like `scontrol suspend`, which stops ranks and watchers alike, for longer than the time-out."""
    process = launch(tmp_path, 300, timeout=2 * TIMEOUT)  # a busy machine lets some of them go on later than others
    assert process.stdout.readline() == "running\n"
    everyone = [descendant for pid in children(process.pid) for descendant in (pid, *children(pid))]
    assert len(everyone) == 6
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3 * TIMEOUT)
    for pid in everyone:
        os.kill(pid, signal.SIGCONT)
    code, out, err = finish(process)
    assert code == 0, err
    assert "done" in out


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.by_turns), 2])
def test_a_rank_that_hangs_before_mpi_starts_is_seen(tmp_path, rank):
    hang = f"import os, signal\nif os.environ['OMPI_COMM_WORLD_RANK'] == '{rank}': os.kill(os.getpid(), signal.SIGSTOP)"
    script = tmp_path / "program.py"
    script.write_text(f"{hang}\n{PROGRAM}")
    code, out, err = finish(start(1, 0, "pass", TIMEOUT, ranks=3, program=(str(script),)))
    assert code != 0
    assert "for MPI to start (--stall-timeout): another rank hangs while it starts; " in err
    assert re.search(rf"; rank {rank} \(process \d+\) is stopped; ending the job", err)
    assert "running" not in out


def test_a_launcher_that_is_stopped_ends_the_job(tmp_path):
    process = launch(tmp_path, 10**6)
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGSTOP)
    code, _, err = finish(process)
    assert code != 0
    assert f"process {process.pid} on {os.uname().nodename}) has been stopped for " in err


def test_a_launcher_that_is_stopped_after_the_work_ends(tmp_path):
    stop = "import os, signal\ncomm.is_root and os.kill(os.getppid(), signal.SIGSTOP)"
    script = tmp_path / "program.py"
    script.write_text(f"{PROGRAM}\n{stop}")
    process = start(1, 0, "pass", TIMEOUT, ranks=3, program=(str(script),))
    code, _, err = finish(process)
    assert code == -signal.SIGKILL
    assert re.search(rf"the launcher \(mpirun, process {process.pid} on .*--stall-timeout 2s\)", err)


@pytest.mark.parametrize("program, state", [("while True: pass", "R"), ("import time; time.sleep(100)", "S")])
def test_what_counts_as_activity(program, state):
    """A process that computes, or does nothing, and is then stopped."""
    process = subprocess.Popen([sys.executable, "-c", program])
    activity = Activity(process.pid, least=0.05)
    end = time.monotonic() + 10
    while activity.state != state:
        assert time.monotonic() < end
        activity.look()
    time.sleep(0.5)
    began = time.monotonic()
    activity.look()
    assert (activity.since >= began) == (state == "R")
    process.send_signal(signal.SIGSTOP)
    while activity.state != "T":
        assert time.monotonic() < end
        activity.look()
    activity.look()
    stopped = activity.since
    time.sleep(0.5)
    activity.look()
    assert activity.since == stopped
    process.kill()
    process.wait()
