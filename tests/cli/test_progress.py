"""What people and programs read: thinned lines, valid JSON, aligned tables."""

from __future__ import annotations

import io
import json
import math
import time

import pytest

from distsms.base import formatting, memory
from distsms.base.errors import InputError
from distsms.cli import progress
from distsms.optim.result import State
from distsms.training.recorder import Trace

pytestmark = pytest.mark.serial


def state(k):
    return State(k, 0.1 * k, 1.0, 0.0, 1.0 / k, 1.0, 1.0, 1.0, 0.5, 0.1, 0.1)


@pytest.mark.parametrize(
    ("brief", "rounds", "expected"),
    [
        (False, 1234, [*range(1, 11), *range(20, 101, 10), *range(200, 1001, 100), 1234]),
        (True, 34, [1, 10, 20, 30, 34]),
    ],
)
def test_a_log_has_few_lines_and_always_the_last(brief, rounds, expected):
    stream = io.StringIO()
    course = progress.TrainingProgress(stream, brief=brief)
    for k in range(1, rounds + 1):
        course(state(k))
    course.close()
    assert [int(line.split()[0]) for line in stream.getvalue().splitlines()[1:]] == expected
    assert "\r" not in stream.getvalue()


def test_a_terminal_sees_one_line_that_changes():
    stream = io.StringIO()
    course = progress.TrainingProgress(stream, live=True)
    for k in range(1, 50):
        course(state(k))
    course.close()
    _, line = stream.getvalue().rstrip("\n").split("\n")
    assert line.split("\r")[-1].split()[0] == "49"


@pytest.mark.parametrize("live", [False, True])
def test_a_step_that_takes_long_gives_signs_of_life(live):
    """They become rarer, say how long it takes, and end with the run."""
    stream = io.StringIO()
    course = progress.TrainingProgress(stream, live=live, patience=0.05)
    end = time.monotonic() + 60
    while "without an evaluation" not in stream.getvalue():
        assert time.monotonic() < end
        time.sleep(0.01)
    course(state(5))
    while stream.getvalue().count("since evaluation 5") < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    course.close()
    length = len(stream.getvalue())
    time.sleep(0.5)
    assert len(stream.getvalue()) == length
    assert (stream.getvalue().count("\r") > 0) == live


def test_quiet_is_quiet(capsys):
    course = progress.TrainingProgress(None)
    course(state(1))
    course.close()
    assert capsys.readouterr().out == ""


def test_trace_lines_are_json(tmp_path):
    trace = Trace(str(tmp_path / "t.jsonl"), "agm")
    trace(state(1))
    trace(state(2)._replace(gap=math.inf, J=math.nan))
    first, second = map(json.loads, (tmp_path / "t.jsonl").read_text().splitlines())  # before it is closed
    assert first["gap"] == 1.0 and first["solver"] == "agm"
    assert second["gap"] is None
    trace.close()
    with pytest.raises(InputError, match="trace"):
        Trace(str(tmp_path / "no" / "t.jsonl"), "agm")


def test_sizes_and_tables():
    assert [formatting.format_bytes(n) for n in (0, 1023, 2048, 3 * 2**30, 2**50)] == [
        "0 B",
        "1023 B",
        "2 KiB",
        "3 GiB",
        "1024 TiB",
    ]
    lines = formatting.format_table(["name", "x"], [["a", 1.5], ["long name", "text"]]).splitlines()
    assert len({len(line) for line in lines}) == 1
    usage = {
        "seconds": {"loss": 1.0},
        "bytes_sent": 1,
        "bytes_received": 3 * 2**30,
        "bytes_read": 2048,
        "peak_memory": 2**20,
    }
    shown = progress.usage_table([usage, {**usage, "seconds": {"test": 1.0}}])
    assert "2 KiB" in shown and "3 GiB" in shown


def test_bytes_read_are_counted(tmp_path):
    (tmp_path / "x").write_bytes(b"0" * 100_000)
    counter = memory.ReadCounter()
    with counter:
        (tmp_path / "x").read_bytes()
    assert 100_000 <= counter.bytes < 110_000
    (tmp_path / "x").read_bytes()
    assert counter.bytes < 110_000


def test_a_full_disk_costs_the_trace(tmp_path, capsys):
    trace = Trace(str(tmp_path / "trace"), "agm")
    trace.file_entry.close()
    trace.file_entry = open("/dev/full", "w")  # noqa: SIM115 - closed by close()
    trace(state(1))
    trace(state(2))
    trace.close()
    assert capsys.readouterr().err.count("the trace ends at evaluation 1") == 1
