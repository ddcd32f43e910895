"""Bad input and broken processes give a clear message and an exit code; nothing is lost, and no rank hangs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

import distsms
from distsms.optim.objective import Objective
from distsms.shards.manifest import read_manifest
from tests.support import forked, simulated_program
from tests.support.program import TIME_LIMIT, finish, run, run_json, start, write_svmlight
from tests.support.sharded import forget_checksums, rewrite

pytestmark = [pytest.mark.e2e, pytest.mark.serial]
SOON = 20  # seconds within which a broken job must end


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A text, its data set of two shards, and a model."""
    folder = tmp_path_factory.mktemp("faults")
    write_svmlight(folder / "train.svm")
    run("shard", folder / "train.svm", folder / "data", "--shards", 2)
    run("train", folder / "data", "--output", folder / "model.h5", "--solver", "lbfgs")
    return folder


@pytest.fixture
def data(made, tmp_path):
    """A copy of the data set, beside one of the text."""
    shutil.copy(made / "train.svm", tmp_path)
    return shutil.copytree(made / "data", tmp_path / "data")


@pytest.fixture
def model(made, tmp_path):
    return shutil.copy(made / "model.h5", tmp_path / "model.h5")


def train(data, *words, **more):
    return run("train", data, "--output", data.parent / "model.h5", *words, **more)


def is_refused(err, data, *parts):
    for part in parts:
        assert part in err
    assert "Traceback" not in err
    assert err.count("distsms train:") == 1
    assert not (data.parent / "model.h5").exists()


def spoil(data):
    with h5py.File(data / "shard-00001.h5", "r+") as file:
        file["X/data"][7] = np.nan


@pytest.mark.parametrize("ranks", [1, 3])
class TestInput:
    """All ranks refuse bad input together, with one message."""

    def refuse(self, data, ranks, *parts):
        err = simulated_program.run(ranks, "train", data, "--output", data.parent / "model.h5", code=1)
        is_refused(err, data, *parts)

    def test_no_such_data(self, tmp_path, ranks):
        self.refuse(tmp_path / "nowhere", ranks, "nowhere", "there is no such file or folder")

    def test_truncated_shard(self, data, ranks):
        shard = data / "shard-00001.h5"
        os.truncate(shard, shard.stat().st_size // 2)
        self.refuse(data, ranks, "shard-00001.h5", "bytes, but manifest.json says")

    def test_missing_shard(self, data, ranks):
        (data / "shard-00000.h5").unlink()
        self.refuse(data, ranks, "shard-00000.h5", "missing")

    def test_nan_in_a_shard(self, data, ranks):
        spoil(data)
        self.refuse(data, ranks, "shard-00001.h5", "its content is not what was written")
        forget_checksums(data)
        self.refuse(data, ranks, "shard-00001.h5", "nan", "row")

    def test_one_class(self, tmp_path, ranks):
        (tmp_path / "one.svm").write_text("1 1:1\n1 2:1\n")
        assert "only one class" in simulated_program.run(ranks, "shard", tmp_path / "one.svm", tmp_path / "one")
        self.refuse(tmp_path / "one", ranks, "2 positive and 0 negative")

    def test_bad_text(self, tmp_path, ranks):
        lines = [f"{1 if i % 2 else -1} 1:{i} 2:3\n" for i in range(400)]
        lines[333] = "1 1:nan\n"
        (tmp_path / "bad.svm").write_text("".join(lines))
        err = simulated_program.run(ranks, "shard", tmp_path / "bad.svm", tmp_path / "bad", code=1)
        assert "bad.svm:334:" in err
        assert err.count("distsms shard:") == 1
        assert not (tmp_path / "bad").exists()

    def test_no_place_for_the_model(self, data, ranks):
        err = simulated_program.run(ranks, "train", data, "--output", data / "no" / "folder" / "m.h5", code=1)
        assert "does not exist" in err

    def test_a_model_that_is_none(self, data, ranks):
        (data.parent / "junk.h5").write_bytes(b"junk")
        for path, told in ((data.parent / "junk.h5", "junk.h5"), (data / "shard-00000.h5", "not a (complete) model")):
            assert told in simulated_program.run(ranks, "evaluate", path, data, code=1)


def test_ranks_of_mpi_refuse_together(data):
    """The rows of one rank are bad; the launcher adds nothing to its message."""
    spoil(data)
    is_refused(train(data, code=1, ranks=3), data, "shard-00001.h5", "its content is not what was written")


def test_a_flipped_byte_is_found_on_request(data):
    shard = data / "shard-00001.h5"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    code, out, _ = forked.run(["info", str(data), "--verify"], TIME_LIMIT)
    assert code == 1
    assert "shard-00001.h5" in out
    assert "shard-00000.h5" not in out


def test_a_data_set_is_not_overwritten_unasked(data):
    before = read_manifest(data).fingerprint
    assert "--overwrite" in simulated_program.run(1, "shard", data.parent / "train.svm", data, code=1)
    assert read_manifest(data).fingerprint == before
    run("shard", data.parent / "train.svm", data, "--overwrite", "--shards", 1)
    holds_one_set_alone(data, 1)


def holds_one_set_alone(data, n_shards):
    files = [shard.file for shard in read_manifest(data).shards]
    assert len(files) == n_shards and {path.name for path in data.iterdir()} == {"manifest.json", *files}


def test_a_failed_conversion_leaves_the_old_data_set(data):
    before = read_manifest(data).fingerprint
    (data.parent / "bad.svm").write_text("1 1:1\n-1 junk\n")
    words = ("shard", data.parent / "bad.svm", data, "--overwrite")
    assert "bad.svm:2:" in simulated_program.run(2, *words, code=1)
    assert read_manifest(data).fingerprint == before


FAULTS = """
import os, signal, sys
from distsms.optim import objective
from distsms.__main__ import main

answer = objective.Objective._answer
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])

def broken(self, *questions):
    if self.evaluations == 5 and rank == int(sys.argv[2]):
        {deed}
    return answer(self, *questions)

objective.Objective._answer = broken
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize(
    "rank, deed, word",
    [
        (2, "raise RuntimeError('a defect')", "RuntimeError: a defect"),
        (0, "os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
    ],
)
def test_one_rank_breaks_inside_the_objective(data, rank, deed, word):
    """The job ends within seconds with an error that has the reason, and writes no model."""
    script = data.parent / "broken.py"
    script.write_text(FAULTS.format(deed=deed))
    began = time.monotonic()
    words = ["train", data, "--output", data.parent / "model.h5", "--epsilon", "1e-9"]
    code, out, err = finish(start("x", rank, *words, ranks=3, program=(str(script),)))
    assert time.monotonic() - began < SOON
    assert code != 0
    assert word in out + err
    if "defect" in word:
        assert f"rank {rank} of 3" in err
        assert "Traceback" in err
    assert not (data.parent / "model.h5").exists()


@pytest.mark.parametrize("closed", ["> /dev/full", ">&-", "| head -1"])
def test_a_display_that_is_lost_costs_no_model(data, closed):
    model = data.parent / "model.h5"
    command = f"{sys.executable} -m distsms train {data} --output {model} --solver lbfgs {closed}"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert run_json("info", model)["status"] == "proved"


def test_outputs_that_would_overwrite_inputs(data, model):
    text = data.parent / "train.svm"
    before = text.read_bytes()
    for told, *words in (
        ("not a model", "train", data, "--output", data / "manifest.json"),
        ("would overwrite", "train", data, "--output", data / "new.h5"),
        ("would overwrite", "train", data, "--trace", data / "manifest.json"),
        ("would overwrite", "train", data, "--trace", model, "--output", model),
        ("not a model", "train", data, "--output", text),
        ("would overwrite", "predict", model, text, "--output", text),
        ("would overwrite", "predict", model, text, "--output", model),
    ):
        assert told in simulated_program.run(1, *words, code=1)
    assert text.read_bytes() == before
    assert run_json("info", model)["status"] == "proved"
    assert run_json("info", data)["n"] == 300


def test_two_conversions_into_one_directory(data):
    """One of them writes, the other is refused; the result is one of the two data sets, complete."""
    lines = (data.parent / "train.svm").read_text().splitlines()
    texts = [data.parent / "a.svm", data.parent / "b.svm"]
    for text, rows in zip(texts, (lines, lines[::-1]), strict=True):
        text.write_text("\n".join(rows * 60) + "\n")
    both = [start("shard", text, data, "--overwrite", "--shards", 4) for text in texts]
    codes = [finish(one) for one in both]
    assert sorted(code for code, _, _ in codes) in ([0, 0], [0, 1])
    assert all("another job is writing" in err for code, _, err in codes if code)
    run("info", data, "--verify")
    holds_one_set_alone(data, 4)
    model = data.parent / "model.h5"
    run("train", data, "--output", model, "--quiet")
    expected = [run("predict", model, text) for text in texts]
    assert run("predict", model, data) in expected


def test_a_refused_conversion_leaves_the_running_one_alone(data):
    """If a second conversion starts while the first holds the directory, it changes no file of the first."""
    from distsms.base.files import LOCK, exclusive

    with exclusive(data):
        (data / "shard-00000.h5.partial").write_text("of the first")
        for words, why in ((), "holds a data set already"), (("--overwrite",), "another job is writing"):
            assert why in run("shard", data.parent / "train.svm", data, *words, code=1)
        assert (data / "shard-00000.h5.partial").read_text() == "of the first"
    (data / LOCK).write_text("left by a killed one")
    run("shard", data.parent / "train.svm", data, "--overwrite", "--shards", 2)
    holds_one_set_alone(data, 2)


def test_scores_do_not_replace_a_model(data, model):
    other = shutil.copy(model, data.parent / "other.h5")
    assert "is a model" in simulated_program.run(1, "predict", model, data, "--output", other, code=1)


def test_scores_that_are_not_finite_are_refused(data, model):
    text = data.parent / "huge.svm"
    text.write_text("1 1:1\n-1 " + " ".join(f"{c}:1.7e308" for c in range(1, 11)) + "\n")
    for command in ("evaluate", "predict"):
        err = simulated_program.run(2, command, model, text, code=1)
        assert "row 1 (counted from 0) has the score" in err


def test_a_label_map_the_other_way_round_is_refused(data, model):
    swapped = data.parent / "swapped"
    run("shard", data.parent / "train.svm", swapped, "--positive", "-1")
    for words in (("evaluate", model, swapped), ("train", data, "--output", model, "--test", swapped)):
        assert "other sign" in simulated_program.run(1, *words, code=1)


def test_values_where_there_should_be_none(data):
    rewrite(data, lambda record: [shard.update(values=False) for shard in record["shards"]])
    assert "says that all are 1" in train(data, code=1)


@pytest.mark.parametrize(
    "words, message",
    [
        (("--", "-tao_type", "nonsense"), "PETSc does not accept the options -tao_type nonsense"),
        (("--vector-memory", "1B", "--planes", "1e15"), None),
    ],
)
def test_odd_options(data, words, message):
    if message:
        assert message in train(data, *words, code=1)
    else:
        train(data, *words)


def test_more_columns_than_memory(data):
    (data.parent / "wide.svm").write_text("1 1:1 4000000000000:1\n-1 2:1\n")
    run("shard", data.parent / "wide.svm", data.parent / "wide")
    assert "fewer columns" in train(data.parent / "wide", code=1)


@contextlib.contextmanager
def mounted(folder, option):
    """Mount a small file system in a new folder; yield False if this is not allowed."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", option, "tmpfs", folder]
    allowed = not subprocess.run(words, capture_output=True, check=False).returncode
    try:
        yield allowed
    finally:
        if allowed:
            subprocess.run(["umount", folder], check=True)


def test_a_full_disk(data):
    """A full disk gives a clear error, and no incomplete data set."""
    full = data.parent / "full"
    with mounted(full, "size=64k") as allowed:
        if not allowed:
            pytest.skip("no permission to mount a file system")
        assert "disk is full" in simulated_program.run(2, "shard", data.parent / "train.svm", full / "data", code=1)
        assert not (full / "data").exists()
        err = run("train", data, "--output", full / "m.h5", code=1)
        assert "the model was written to" in err
        rescued = err.split("the model was written to ")[1].split(" instead")[0]
        assert run_json("info", rescued)["status"] == "proved"
        shutil.rmtree(os.path.dirname(rescued))


def test_a_trace_replaces_nothing_else(data, model, tmp_path):
    """A new trace replaces an older trace, but neither a model nor a text."""
    for name, content in (("model.h5", None), ("notes.txt", "1 1:2\n")):
        path = tmp_path / name
        if content:
            path.write_text(content)
        before = path.read_bytes()
        refused = simulated_program.run(1, "train", data, "--trace", path, "--output", tmp_path / "other.h5", code=1)
        assert "trace" in refused
        assert path.read_bytes() == before
    for _ in range(2):
        train(data, "--trace", tmp_path / "t.jsonl")


def test_a_shard_that_vanishes_in_mid_run_is_not_missed(data, monkeypatch):
    """The run does not need the shard any more, since its rows are in memory."""
    shard, answer = data / "shard-00001.h5", Objective._answer

    def vanishing(self, *questions):
        if self.evaluations == 5:
            shard.unlink(missing_ok=True)
        return answer(self, *questions)

    monkeypatch.setattr(Objective, "_answer", vanishing)
    assert distsms.train(data, epsilon=1e-9, solver="lbfgs").info["status"] == "proved"
    assert not shard.exists()


def test_folders_that_cannot_be_written_to(data, model):
    """Every command that writes refuses a read-only folder, before it reads anything."""
    fixed = data.parent / "fixed"
    with mounted(fixed, "ro") as allowed:
        if not allowed:
            fixed.chmod(0o500)
            if os.access(fixed, os.W_OK):
                pytest.skip("no permission to mount a file system, but permission to write anywhere")
        for words in (
            ("shard", data.parent / "train.svm", fixed / "data"),
            ("train", data, "--output", fixed / "m.h5"),
            ("train", data, "--trace", fixed / "t.jsonl"),
            ("train", data, "--checkpoint", fixed),
            ("predict", model, data, "--output", fixed / "scores.txt"),
            ("export", model, "--to", "csv", "--output", fixed / "m.csv"),
        ):
            err = simulated_program.run(1, *words, code=1)
            assert str(fixed) in err and "Traceback" not in err, words
        assert not list(fixed.iterdir())
