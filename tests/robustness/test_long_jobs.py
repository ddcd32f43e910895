"""Runs that are stopped or killed, and started again: what they leave, where they continue, what they refuse."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import time

import pytest

from distsms.training import checkpoint
from distsms.training.checkpoint import NEWEST, OLDER
from tests.support import forked, simulated_program
from tests.support.program import (
    TIME_LIMIT,
    children,
    finish,
    rank_of,
    run,
    run_json,
    run_module,
    start,
    write_svmlight,
)

pytestmark = [pytest.mark.e2e, pytest.mark.serial]
SOON = 30  # seconds within which a broken job must end


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data set on which a run to a narrow gap takes some hundreds of evaluations."""
    folder = tmp_path_factory.mktemp("long")
    write_svmlight(folder / "t.svm", n=3000, p=60)
    run("shard", folder / "t.svm", folder / "data", "--shards", 3)
    return folder / "data"


@pytest.fixture
def line(data, tmp_path):
    """A command line that starts a run, and continues it if there is a checkpoint."""
    files = ("--output", tmp_path / "m.h5", "--trace", tmp_path / "trace.jsonl", "--checkpoint", tmp_path / "c")
    limits = ("--lambda", "1e-7", "--epsilon", "1e-7", "--checkpoint-every", "0.05s")
    return ("train", data, *files, *limits, "--resume")


def states(folder):
    return [json.loads(one) for one in (folder / "trace.jsonl").read_text().splitlines()]


def wait_until(done):
    end = time.monotonic() + TIME_LIMIT
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def wait_for(path, lines):
    wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") >= lines)


def is_one_course(folder):
    """Check that the trace has every evaluation once, that bounds never fall, and that the model counts them all."""
    course, info = states(folder), run_json("info", folder / "m.h5")
    assert [s["evaluation"] for s in course] == list(range(1, len(course) + 1))
    for a, b in itertools.pairwise(course):
        assert b["lower_bound"] >= a["lower_bound"] and b["best_J"] <= a["best_J"] and b["seconds"] >= a["seconds"]
    assert info["evaluations"] == len(course)
    return info


SLOW = """
import sys, time
from distsms.optim import objective
from distsms.__main__ import main

answer = objective.Objective._answer
objective.Objective._answer = lambda *words: time.sleep(0.02) or answer(*words)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def slowly(tmp_path):
    """Start the program with evaluations that take long enough to be interrupted on any machine."""
    (tmp_path / "slow.py").write_text(SLOW)
    return functools.partial(start, program=(str(tmp_path / "slow.py"),))


@pytest.mark.parametrize("everyone", [pytest.param(False, marks=pytest.mark.slow), True])
def test_killed_and_started_again(line, slowly, tmp_path, everyone):
    """After kill -9 only the evaluations since the last checkpoint are lost, also with another number of ranks."""
    for ranks, lines in ((2, 8), (3, 30), (2, 50)):
        process = slowly(*line, ranks=ranks)
        wait_for(tmp_path / "trace.jsonl", lines)
        wait_until(lambda: checkpoint.exists(tmp_path / "c"))
        pids = [pid for pid in children(process.pid) if rank_of(pid) >= 0]
        for pid in pids if everyone else pids[-1:]:
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        code, _, _ = finish(process)
        assert code != 0
        assert time.monotonic() - began < SOON
        left = next(path for name in (NEWEST, OLDER) if (path := tmp_path / "c" / name).exists())
        found, words = checkpoint.load(tmp_path / "c", checkpoint.read(left).problem)
        assert not words
        assert 0 < found.numbers["count"] <= states(tmp_path)[-1]["evaluation"]
    out = run(*line)
    assert f"evaluation {found.numbers['count']}," in out
    assert "4 starts" in out
    info = is_one_course(tmp_path)
    assert info["status"] == "proved"
    assert info["starts"] == 4


@pytest.mark.parametrize("number, ranks", [(signal.SIGTERM, 3), (signal.SIGUSR1, None), (signal.SIGUSR2, None)])
def test_a_signal_leaves_checkpoint_and_model(line, slowly, tmp_path, number, ranks):
    process = slowly(*line, ranks=ranks)
    wait_for(tmp_path / "trace.jsonl", 20)
    pid = process.pid if ranks is None else next(pid for pid in children(process.pid) if rank_of(pid) == 1)
    os.kill(pid, number)
    code, out, err = finish(process)
    assert code == 75, out + err
    assert "stopped by a signal" in out
    info, kept = is_one_course(tmp_path), checkpoint.read(tmp_path / "c" / NEWEST)
    assert (info["status"], info["evaluations"]) == ("stopped", kept.numbers["count"])
    assert info["gap"] == pytest.approx(info["J"] - kept.numbers["certificate.lower_bound"], abs=1e-6)
    run(*line)
    again = is_one_course(tmp_path)
    assert again["status"] == "proved" and again["evaluations"] > info["evaluations"]


def test_ctrl_c_without_a_checkpoint_leaves_a_model(data, slowly, tmp_path):
    trace, model = tmp_path / "trace.jsonl", tmp_path / "m.h5"
    process = slowly("train", data, "--lambda", "1e-7", "--epsilon", "1e-15", "--trace", trace, "--output", model)
    wait_for(trace, 5)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert code == 75, out + err
    assert "stopped by a signal" in out
    assert run_json("info", model)["status"] == "stopped"


EARLY = """
import os, signal, sys
from distsms.__main__ import main
from distsms.shards import dataset as shards
from distsms.parallel import mpi

module = {"world": mpi, "load": shards}[sys.argv[1]]
there = getattr(module, sys.argv[1])

def signalled(*words, **more):
    if os.environ.get("OMPI_COMM_WORLD_RANK", "1") == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    return there(*words, **more)

setattr(module, sys.argv[1], signalled)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    "moment, ranks", [("world", None), ("load", 2), pytest.param("world", 2, marks=pytest.mark.slow)]
)
def test_a_signal_before_the_first_evaluation(line, tmp_path, moment, ranks):
    """A signal before MPI starts or while rows are loaded stops the run after its first evaluation; it can continue."""
    code, out, err = finish(start(*line, ranks=ranks, program=("-c", EARLY, moment)))
    assert code == 75, out + err
    first = is_one_course(tmp_path)
    assert (first["status"], first["evaluations"]) == ("stopped", 1)
    run(*line, "--epsilon", "1e-3")
    assert is_one_course(tmp_path)["status"] == "proved"


@pytest.mark.parametrize("command", ["path", "baseline"])
def test_a_signal_before_other_long_commands(data, tmp_path, command):
    """The same for the other commands that run for long."""
    code, out, err = finish(start(command, data, "--output", tmp_path / "o", program=("-c", EARLY, "world")))
    assert code == 75, out + err


def test_the_time_limit_and_a_smaller_target(line, tmp_path):
    out = run(*line, "--time-limit", "0.05s", code=75)
    assert "starts from the beginning" in out
    first = is_one_course(tmp_path)
    assert first["status"] == "time"
    run(*line, "--epsilon", "1e-3")
    rough = is_one_course(tmp_path)
    assert rough["status"] == "proved"
    run(*line, ranks=2)
    fine = is_one_course(tmp_path)
    assert fine["status"] == "proved"
    assert first["evaluations"] <= rough["evaluations"] < fine["evaluations"]
    assert fine["starts"] == 3


@pytest.mark.slow
def test_random_moments(data):
    """A short round of tests.robustness.kill, which checks the interrupted run itself."""
    words = ("--rounds", 1, "--strikes", 3, "--lambda", "1e-7", "--span", 30, "--every", "0.05")
    out = run_module("tests.robustness.kill", data, *words, "--", "--epsilon", "1e-7")
    assert "round 1:" in out


def test_refusals(line, data, tmp_path):
    """Refused before rows are read: another problem, a folder in use, an old checkpoint without --resume."""
    folder = tmp_path / "c"
    run(*line, "--max-evaluations", 5, code=4)
    before, files = (folder / NEWEST).read_bytes(), sorted(os.listdir(folder))
    for more, words in (
        (("--lambda", "1e-6"), "lambda: there 1e-07, now 1e-06"),
        (("--measure", "prbep"), "measure: there rocarea, now prbep"),
        (("--solver", "agm"), "solver: there lmvm, now agm"),
        (("--bias",), "bias: there none, now 1.0"),
        (("--c-mu", "10"), "c_mu: there none, now 10.0"),
    ):
        assert words in simulated_program.run(2, *line, *more, code=1)
    write_svmlight(tmp_path / "o.svm", seed=5)
    run("shard", tmp_path / "o.svm", tmp_path / "other")
    assert "data: there" in simulated_program.run(1, "train", tmp_path / "other", *line[2:], code=1)
    assert "give --resume to continue" in simulated_program.run(1, *line[:-1], code=1)
    alone = ["train", str(data), "--resume", "--output", str(tmp_path / "m.h5")]
    assert "needs --checkpoint" in forked.run(alone, TIME_LIMIT)[2]
    for inside in (data, tmp_path / "m.h5"):
        words = ("train", data, "--checkpoint", inside, "--output", tmp_path / "m.h5")
        assert "in use" in simulated_program.run(1, *words, code=1)
    assert (folder / NEWEST).read_bytes() == before
    assert sorted(os.listdir(folder)) == files


def test_two_jobs_in_one_folder(line, tmp_path):
    """The second job is refused, and the error names the process of the first, which can be stopped and continued."""
    process = start(*line, "--epsilon", "1e-15", "--max-evaluations", "1000000")
    wait_for(tmp_path / "trace.jsonl", 5)
    err = run(*line[:-1], code=1)
    assert f"another job is writing here (process {process.pid} on {os.uname().nodename}" in err
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 75
    run(*line)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_refused(line, tmp_path):
    (tmp_path / "c").mkdir(mode=0o500)
    assert "cannot be written" in simulated_program.run(1, *line, code=1)


def test_what_is_no_folder_is_refused(line, tmp_path):
    (tmp_path / "c").write_text("a file")
    assert "cannot be written" in simulated_program.run(2, *line, code=1)


def test_a_damaged_checkpoint_makes_way_for_the_older(line, tmp_path):
    run(*line, "--max-evaluations", 20, code=4)
    run(*line, "--max-evaluations", 25, code=4)
    with open(tmp_path / "c" / NEWEST, "r+b") as file:
        file.seek(300)
        file.write(b"junk")
    older = checkpoint.read(tmp_path / "c" / OLDER).numbers["count"]
    out = run(*line)
    assert "damaged" in out
    assert f"checkpoint.npz: evaluation {older}," in out
    assert is_one_course(tmp_path)["status"] == "proved"


def test_a_disk_that_fills_up_costs_checkpoints_not_the_run(line, tmp_path):
    """A limit on the size of files simulates the full disk: writing fails in the middle of each file.

    The limit is half of the first checkpoint, since the later ones may be smaller or larger.
    """
    run(*line, "--max-evaluations", 5, code=4)
    before, names = (tmp_path / "c" / NEWEST).read_bytes(), sorted(os.listdir(tmp_path / "c"))
    script = tmp_path / "limited.py"
    script.write_text(
        "import resource, signal, sys\nfrom distsms.__main__ import main\nsignal.signal(signal.SIGXFSZ, "
        "signal.SIG_IGN)\nfrom distsms.training import checkpoint\nwrite = checkpoint._write\ndef limited(member, "
        f"array):\n    resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) // 2}, resource.RLIM_INFINITY))\n    "
        "try:\n        write(member, array)\n    finally:\n        resource.setrlimit(resource.RLIMIT_FSIZE, "
        "(resource.RLIM_INFINITY, resource.RLIM_INFINITY))\ncheckpoint._write = limited\nsys.exit(main(sys.argv[1:]))\n"
    )
    code, out, err = finish(start(*line, program=(str(script),)))
    assert code == 0, out + err
    assert "warning: no checkpoint was written" in err
    assert "File too large" in err
    assert (tmp_path / "c" / NEWEST).read_bytes() == before
    assert run_json("info", tmp_path / "m.h5")["status"] == "proved"
    assert sorted(os.listdir(tmp_path / "c")) == names  # no part of a file that did not fit


def test_a_stopped_rank_ends_the_job(line, tmp_path):
    """The next start continues from the last checkpoint."""
    process = start(*line, "--stall-timeout", "2s", "--epsilon", "1e-15", "--max-evaluations", "1000000", ranks=3)
    wait_for(tmp_path / "trace.jsonl", 20)
    stopped = next(pid for pid in children(process.pid) if rank_of(pid) == 2)
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    code, _, err = finish(process)
    assert time.monotonic() - began < SOON
    assert code != 0
    assert f"no answer from rank 2 (on {os.uname().nodename}, process {stopped}, which is stopped)" in err
    run(*line)
    assert is_one_course(tmp_path)["status"] == "proved"


def test_a_trace_that_is_gone_or_longer(line, tmp_path):
    """The trace continues at the checkpoint: later lines are removed, and a missing trace starts there."""
    run(*line, "--max-evaluations", 20, code=4)
    text = (tmp_path / "trace.jsonl").read_text()
    (tmp_path / "trace.jsonl").write_text(text + text.splitlines()[-1].replace(": 20,", ": 21,") + '\n{"evalu')
    run(*line, "--max-evaluations", 30, code=4)
    assert len(states(tmp_path)) == is_one_course(tmp_path)["evaluations"] == 30
    (tmp_path / "trace.jsonl").unlink()
    run(*line, "--max-evaluations", 40, code=4)
    assert [s["evaluation"] for s in states(tmp_path)] == list(range(31, 41))
