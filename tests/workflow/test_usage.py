"""What a run took is all that its user waited for."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import numpy as np
import pytest

from distsms.base.communicator import Communicator
from distsms.base.timing import Clock
from distsms.parallel import processes
from distsms.shards.from_arrays import write_data
from distsms.workflow.provenance import usage_of_ranks

pytestmark = pytest.mark.serial
LATE = "import sys, time; time.sleep(1.5); from distsms.__main__ import main; sys.exit(main(sys.argv[1:]))"


def test_the_phases_and_what_lies_between_are_the_whole():
    clock, begun = Clock(), time.perf_counter()
    with clock.phase("a"):
        time.sleep(0.02)
    time.sleep(0.02)
    (usage,) = usage_of_ranks(clock, Communicator(), 0, 0)
    assert list(usage["seconds"]) == ["a", "rest"] and min(usage["seconds"].values()) >= 0.02
    assert sum(usage["seconds"].values()) <= time.perf_counter() - begun + 0.01


@pytest.mark.parametrize(("above", "counts"), [("mpirun", True), ("bash", False), ("orted", False)])
def test_the_launcher_counts_where_the_user_started_it(monkeypatch, above, counts):
    """A shell may have done other things before, and a daemon of another host began later."""
    started = {processes.os.getpid(): 700, processes.os.getppid(): 300}
    monkeypatch.setattr(processes, "fields", lambda pid: ["S", *["0"] * 18, str(started[pid])])
    monkeypatch.setattr(processes, "name", lambda pid: above)
    monkeypatch.setattr(processes.time, "clock_gettime", lambda clock: 100.0)
    seconds = processes.os.sysconf("SC_CLK_TCK")
    assert processes.waited() == pytest.approx(100 - (300 if counts else 700) / seconds)


@pytest.mark.e2e
def test_the_start_of_the_process_counts(tmp_path):
    """An oracle: the clock of another process, which starts the program and waits for its end."""
    X = np.random.default_rng(0).normal(size=(60, 3))
    data = write_data(tmp_path / "d", X, np.where(X[:, 0] > 0.5, 1, -1)).directory
    begun = time.monotonic()
    words = ["train", data, "--output", tmp_path / "m.h5", "--solver", "lbfgs"]
    run = subprocess.run([sys.executable, "-c", LATE, *map(str, words)], capture_output=True, text=True, check=True)
    took = re.search(r"  took +(.+) s: ", run.stdout)
    assert 1.5 <= float(took[1]) <= time.monotonic() - begun + 0.05
    assert run.stdout.rstrip().rpartition("\n")[2].split()[0] in ("took", "(--usage")  # nothing comes after it
