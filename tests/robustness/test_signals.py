"""After a signal, a run writes its model and ends with exit code 75, also if only one rank gets the signal."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.support.program import TIME_LIMIT, children, finish, rank_of, run, run_json, start, write_svmlight

pytestmark = [pytest.mark.e2e, pytest.mark.serial]


def _wait_for(trace, lines=5):
    end = time.monotonic() + TIME_LIMIT
    while not trace.exists() or len(trace.read_text().splitlines()) < lines:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_stops_in_order(tmp_path, number):
    """The run finishes its evaluation, writes the best model so far with its gap, and ends with exit code 75."""
    write_svmlight(tmp_path / "t.svm", n=3000, p=60)
    run("shard", tmp_path / "t.svm", tmp_path / "d")
    trace = tmp_path / "trace.jsonl"
    words = ("train", tmp_path / "d", "--epsilon", "1e-15", "--lambda", "1e-7", "--trace", trace)
    process = start(*words, "--max-evaluations", "1000000", "--output", tmp_path / "m.h5")
    _wait_for(trace)
    process.send_signal(number)
    code, out, err = finish(process)
    assert code == 75, out + err
    assert "stopped by a signal" in out
    assert run_json("info", tmp_path / "m.h5")["status"] == "stopped"


def test_a_signal_to_one_rank_stops_all(tmp_path):
    write_svmlight(tmp_path / "t.svm", n=3000, p=60)
    run("shard", tmp_path / "t.svm", tmp_path / "d")
    trace = tmp_path / "trace.jsonl"
    words = ("train", tmp_path / "d", "--epsilon", "1e-15", "--lambda", "1e-7", "--trace", trace)
    process = start(*words, "--max-evaluations", "1000000", "--output", tmp_path / "m.h5", ranks=3)
    _wait_for(trace)
    ranks = [pid for pid in children(process.pid) if rank_of(pid) == 2]
    os.kill(ranks[0], signal.SIGUSR1)
    code, out, err = finish(process)
    assert code == 75, out + err
    assert run_json("info", tmp_path / "m.h5")["status"] == "stopped"
    last = json.loads(trace.read_text().splitlines()[-1])
    assert 0 <= run_json("info", tmp_path / "m.h5")["gap"] - last["gap"] < 1e-6  # a rounding error
