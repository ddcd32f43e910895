"""Checkpoint files: what comes back, what is refused, and what is left after any accident."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

from distsms.base import files
from distsms.base.errors import InputError
from distsms.training import checkpoint
from distsms.training.checkpoint import NEWEST, OLDER, Rows, opened

pytestmark = pytest.mark.serial
PROBLEM = {"measure": "rocarea", "lambda": 1e-6, "bias": None}


def save(folder, value, **problem):
    arrays = {"w": Rows.of(np.full(3, float(value))), "planes": Rows.of(np.full((2, 3), float(value)))}
    checkpoint.save(folder, PROBLEM | problem, {"evaluations": value}, arrays)


def test_round_trip_to_the_bit(tmp_path):
    arrays = {
        "w": np.array([1.0, -0.0, 1e-300, np.pi, np.nan]),
        "planes": np.random.default_rng(0).normal(size=(4, 5)),
        "none": np.empty((0, 5)),
        "narrow": np.empty((3, 0)),
    }
    numbers = {"seconds": 0.1 + 0.2, "gap": float("inf"), "lower": -float("inf"), "none": None, "n": 2**60}
    checkpoint.save(tmp_path, PROBLEM, numbers, {name: Rows.of(one) for name, one in arrays.items()})
    found, words = checkpoint.load(tmp_path, PROBLEM)
    assert words == []
    assert found.numbers == numbers
    for name, array in arrays.items():
        assert found.shapes[name] == array.shape
        assert found.array(name).tobytes() == array.tobytes()
        assert np.load(tmp_path / NEWEST)[name].tobytes() == array.tobytes()
    assert os.listdir(tmp_path) == [NEWEST]


def test_two_generations(tmp_path):
    assert checkpoint.load(tmp_path, PROBLEM) == (None, [])
    assert not checkpoint.exists(tmp_path)
    for k in range(4):
        save(tmp_path, k)
        assert checkpoint.load(tmp_path, PROBLEM)[0].numbers == {"evaluations": k}
        assert checkpoint.exists(tmp_path)
    assert checkpoint.read(tmp_path / OLDER).numbers == {"evaluations": 2}
    assert sorted(os.listdir(tmp_path)) == [NEWEST, OLDER]


def test_every_flipped_bit_is_seen_or_changes_nothing(tmp_path):
    """In the zip file's own parts, which say where members are and what was done to them."""
    save(tmp_path, 1)
    whole, path = checkpoint.read(tmp_path / NEWEST), tmp_path / NEWEST
    content = path.read_bytes()
    refused = 0
    for place in range(content.index(b"PK\x01\x02"), len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            try:
                found = checkpoint.read(path)
                assert (found.problem, found.numbers, found.shapes) == (whole.problem, whole.numbers, whole.shapes)
                assert np.array_equal(found.array("planes"), np.full((2, 3), 1.0))
            except InputError:
                refused += 1
    assert refused > 100


def test_a_folder_that_was_cleared_away_is_made_again(tmp_path):
    save(tmp_path / "state", 1)
    shutil.rmtree(tmp_path / "state")
    save(tmp_path / "state", 2)
    assert checkpoint.load(tmp_path / "state", PROBLEM)[0].numbers == {"evaluations": 2}
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        save(tmp_path / "file", 3)


def test_the_older_one_becomes_the_newest_where_that_is_damaged(tmp_path):
    """So that the next checkpoint does not put the damaged one in its place."""
    for value in (1, 2):
        numbers = {"count": value, "seconds": 0.0, "best.J": 1.0, "certificate.lower_bound": 0.0}
        checkpoint.save(tmp_path, PROBLEM, numbers, {})
    os.truncate(tmp_path / NEWEST, 100)
    with contextlib.ExitStack() as held:
        found, words = opened(tmp_path, PROBLEM, True, held)
        assert found.numbers["count"] == 1 and "taking the older one" in words[0]
        assert checkpoint.read(tmp_path / NEWEST).numbers["count"] == 1
        assert not (tmp_path / OLDER).exists()
    (tmp_path / OLDER).mkdir()
    with contextlib.ExitStack() as held, pytest.raises(InputError, match="not a regular file"):
        opened(tmp_path, PROBLEM, True, held)


@pytest.mark.parametrize("damage", [lambda path: os.truncate(path, 100), lambda path: path.write_bytes(b"junk")])
def test_a_damaged_one_makes_way_for_the_older(tmp_path, damage):
    save(tmp_path, 1)
    save(tmp_path, 2)
    damage(tmp_path / NEWEST)
    found, words = checkpoint.load(tmp_path, PROBLEM)
    assert found.numbers == {"evaluations": 1}
    assert "checkpoint.npz: damaged" in words[0]
    save(tmp_path, 3)
    assert checkpoint.load(tmp_path, PROBLEM)[0].numbers == {"evaluations": 3}
    damage(tmp_path / NEWEST)
    damage(tmp_path / OLDER)
    with pytest.raises(InputError, match="to start anew"):
        checkpoint.load(tmp_path, PROBLEM)


def test_killed_between_the_two_renames(tmp_path):
    save(tmp_path, 1)
    os.replace(tmp_path / NEWEST, tmp_path / OLDER)
    assert checkpoint.load(tmp_path, PROBLEM)[0].numbers == {"evaluations": 1}


def test_no_flipped_byte_is_taken_for_data(tmp_path):
    """Whatever byte changes: the file is refused, or what it says is what was written."""
    save(tmp_path, 7)
    whole = (tmp_path / NEWEST).read_bytes()
    refused = 0
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 0x10
        (tmp_path / NEWEST).write_bytes(broken)
        try:
            found = checkpoint.read(tmp_path / NEWEST)
            assert (found.problem, found.numbers) == (PROBLEM, {"evaluations": 7})
            assert found.array("w").tolist() == [7] * 3
            assert found.array("planes").tolist() == [[7] * 3] * 2
        except InputError:
            refused += 1
    assert refused > len(whole) / 2


def test_cut_anywhere_it_is_refused(tmp_path):
    save(tmp_path, 7)
    whole = (tmp_path / NEWEST).read_bytes()
    for length in range(len(whole)):
        (tmp_path / NEWEST).write_bytes(whole[:length])
        with pytest.raises(InputError, match=NEWEST):
            checkpoint.read(tmp_path / NEWEST)


def test_another_problem_is_refused_in_words(tmp_path):
    save(tmp_path, 1, **{"lambda": 1e-4, "bias": 1.0})
    with pytest.raises(InputError, match="another problem") as refused:
        checkpoint.load(tmp_path, PROBLEM)
    assert "lambda: there 0.0001, now 1e-06" in str(refused.value)
    assert "bias: there 1.0, now none" in str(refused.value)
    assert "measure" not in str(refused.value)


def test_what_would_take_any_amount_of_memory_or_time_is_refused(tmp_path):
    save(tmp_path, 1)
    path = tmp_path / NEWEST
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for how in ("bzip2", "deflate", "rows"):
        kind = {"bzip2": zipfile.ZIP_BZIP2, "deflate": zipfile.ZIP_DEFLATED, "rows": zipfile.ZIP_STORED}[how]
        info, header = json.loads(members["info.json"]), io.BytesIO()
        if how == "rows":  # each of them takes no bytes
            info["shapes"]["planes"] = [10**12, 0]
            description = {"descr": "<f8", "fortran_order": False, "shape": (10**12, 0)}
            np.lib.format.write_array_header_1_0(header, description)
        with zipfile.ZipFile(path, "w", kind) as archive:
            archive.writestr("info.json", json.dumps(info) + " " * 10**6 * (how != "rows"))
            archive.writestr("w.npy", members["w.npy"])
            archive.writestr("planes.npy", header.getvalue() or members["planes.npy"])
        with pytest.raises(InputError, match=rf"{NEWEST}: damaged.*(deflate|larger than the file|size it should be)"):
            checkpoint.read(path)


def test_other_files_are_not_taken_for_checkpoints(tmp_path):
    np.savez(tmp_path / NEWEST, w=np.ones(3))
    with pytest.raises(InputError, match="not a checkpoint"):
        checkpoint.load(tmp_path, PROBLEM)
    (tmp_path / NEWEST).unlink()
    (tmp_path / NEWEST).mkdir()
    with pytest.raises(InputError, match=NEWEST):
        checkpoint.load(tmp_path, PROBLEM)


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_failed_write_leaves_both_generations(tmp_path, monkeypatch, broken):
    save(tmp_path, 1)
    save(tmp_path, 2)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(InputError, match="No space"):
        save(tmp_path, 3)
    monkeypatch.undo()
    assert checkpoint.read(tmp_path / NEWEST).numbers == {"evaluations": 2}
    assert checkpoint.read(tmp_path / OLDER).numbers == {"evaluations": 1}
    assert sorted(os.listdir(tmp_path)) == [NEWEST, OLDER]


def test_no_room_is_seen_before_anything_is_written(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(InputError, match="the disk is full"):
        checkpoint.save(tmp_path, PROBLEM, {}, {"w": Rows((2**30, 2**30), [])})
    assert checkpoint.load(tmp_path, PROBLEM)[0].numbers == {"evaluations": 1}


WRITER = """
import itertools, os, sys, pathlib, numpy as np
from distsms.training import checkpoint
for _ in sys.stdin:
    if child := os.fork():
        os.waitpid(child, 0)
        print("killed", flush=True)
        continue
    print(os.getpid(), flush=True)
    for k in itertools.count():
        arrays = {"w": checkpoint.Rows.of(np.full((50, 1000), float(k)))}
        checkpoint.save(pathlib.Path(sys.argv[1]), {}, {"k": k}, arrays)
        print(k, flush=True)
"""


def test_killed_at_any_moment_there_is_a_good_one(tmp_path):
    """A child that writes without pause is killed many times: what it said was written, or the next one, is there."""
    chance = random.Random(0)
    words = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        for _ in range(15):
            print(file=parent.stdin, flush=True)
            child, said = int(parent.stdout.readline()), [parent.stdout.readline()]
            time.sleep(chance.uniform(0.0, 0.05))
            os.kill(child, signal.SIGKILL)
            said += iter(parent.stdout.readline, "killed\n")
            found, words = checkpoint.load(tmp_path, {})
            assert words == []
            k = found.numbers["k"]
            assert int(said[-1]) <= k <= int(said[-1]) + 1
            assert (found.array("w") == k).all()
            files.remove_partial(tmp_path)
            assert set(os.listdir(tmp_path)) <= {NEWEST, OLDER}


def test_one_writer_at_a_time_and_who_it_is(tmp_path):
    with (
        files.exclusive(tmp_path / "new"),
        pytest.raises(InputError, match=rf"another job .*process {os.getpid()} on {os.uname().nodename}"),
        files.exclusive(tmp_path / "new"),
    ):
        pass
    assert os.listdir(tmp_path / "new") == []


def test_a_requeued_job_is_not_locked_out_by_itself(tmp_path, monkeypatch):
    """What a dead host left on a file server that still believes in its lock; but a lock of this host is one."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    with files.exclusive(tmp_path):
        with pytest.raises(InputError, match="another job"), files.exclusive(tmp_path):
            pass
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        with pytest.raises(InputError, match=f"another job .*process {os.getpid()}"), files.exclusive(tmp_path):
            pass
        predecessor = files._held[str(tmp_path)]
        monkeypatch.setattr(files, "_boot", lambda: "another host, or this one after a new start")
        with files.exclusive(tmp_path):
            assert json.loads((tmp_path / files.LOCK).read_text())["restart"] == "1"
            checkpoint.save(tmp_path, {}, {"k": 1}, {})
            monkeypatch.setitem(
                files._held, str(tmp_path), predecessor
            )  # which lives after all, and must write nothing
            with pytest.raises(InputError, match="a later start of this job has taken this folder"):
                checkpoint.save(tmp_path, {}, {"k": 0}, {})
            assert checkpoint.load(tmp_path, {})[0].numbers["k"] == 1 and not (tmp_path / OLDER).exists()
            monkeypatch.setenv("SLURM_JOB_ID", "18")
            with pytest.raises(InputError, match="another job"), files.exclusive(tmp_path):
                pass
