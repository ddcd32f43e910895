"""Whatever write fails, at whatever byte: no crash, no traceback, one sentence, and a trained model is somewhere."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys

import pytest

from distsms.models import model
from tests.support import failing_writes
from tests.support.failing_writes import Case
from tests.support.program import finish, run, start, write_svmlight

pytestmark = [pytest.mark.e2e, pytest.mark.serial, pytest.mark.by_turns]
AMPLE = 10**12


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library that makes writes fail."""
    made = failing_writes.library(tmp_path_factory.mktemp("library"))
    return made or pytest.skip("needs a C compiler, cc")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a text file, a table, a data set and models of both."""
    home = tmp_path_factory.mktemp("writes")
    X, y = write_svmlight(home / "rows.svm")
    lines = [f"row{k},{x[0]!r},{x[1]!r},{label}" for k, (x, label) in enumerate(zip(X.tolist(), y, strict=True))]
    (home / "rows.csv").write_text("\n".join(["id,a,b,label", *lines]) + "\n")
    run("shard", home / "rows.svm", home / "data")
    run("train", home / "data", "--output", home / "model.h5", "--quiet")
    table = ["--label", "label", "--id", "id", "--lambda", "1e-2", "--output", home / "table.h5"]
    run("train", home / "rows.csv", *table, "--report", home / "table.html", "--quiet")
    return home


def commands(home, out):
    """Commands of every kind that write files to `out`."""
    data, table, csv = home / "data", home / "table.h5", home / "rows.csv"
    described = "--label", "label", "--id", "id"
    more = "--trace", out / "trace.jsonl", "--checkpoint", out / "checkpoint", "--checkpoint-every", "1s"
    yield "train", data, "--output", out / "model.h5", *more
    kept = "--shards", out / "shards", "--report", out / "report.html", "--lambda", "1e-2"
    yield "train", csv, *described, "--output", out / "model.h5", *kept
    yield "shard", home / "rows.svm", out / "data"
    yield "shard", csv, out / "data", *described, "--compress", "--split", "0.8,0.2"
    yield "features", data, out / "features", "--bins", "4", "--crosses", "all", "--trees", "2"
    for ending in ("h5", "csv", "parquet", "npy", "txt"):
        yield "predict", table, csv, "--output", out / f"scores.{ending}"
    yield "path", data, "--measure", "rocarea", "--lambdas", "1e-1:1e-2", "--folds", "2", "--output", out / "path"
    yield "export", table, "--to", "onnx", "--output", out / "model.onnx"
    yield "export", table, "--to", "csv", "--output", out / "model.csv"
    yield "synth", "dense", out / "data", "--rows", "300", "--columns", "5"
    yield "report", home / "model.h5", "--test", data, "--output", out / "report.html", "--figures", out / "figures"


def case(home, words, after, rescue="rescue", **how):
    out, rescue = home / "out", home / rescue
    emptied = [str(out), str(rescue)]
    return Case([*map(str, words)], str(out), after, environment={"TMPDIR": str(rescue)}, emptied=emptied, **how)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_command_at_many_bytes(home, library, step):
    """Each command fails in five ways; a third of these, of each way as many, are tried in every run of the tests."""
    every = list(commands(home, home / "out"))
    whole = failing_writes.run([case(home, words, AMPLE) for words in every], library)
    assert [ended.code for ended in whole] == [0] * len(every), [ended.err for ended in whole if ended.code]
    cases = []
    for words, ended in zip(every, whole, strict=True):
        n = ended.written
        assert n > 80, words
        cases += [
            case(home, words, after) for after in (1, n // 2, n - n // 20)
        ]  # n varies, with times and process numbers
        cases.append(case(home, words, n // 3, errno=errno.EIO))
        cases.append(case(home, words, n // 2, calls="close"))
    cases = cases[::step]
    for made, ended in zip(cases, failing_writes.run(cases, library), strict=True):
        about = f"{made}\n{ended.code}\n{ended.out}\n{ended.err}"
        reasons = os.strerror(errno.EDQUOT), os.strerror(errno.EIO)
        failures = [line for line in ended.err.splitlines() if not line.startswith("warning: the trace ends")]
        if ended.code == 0:  # only a trace or a checkpoint was lost
            assert made.words[0] == "train", about
            assert "checkpoint" in ended.out or "trace" in ended.err, about
            continue
        assert ended.code == 1, about
        assert sum(f"distsms {made.words[0]}: " in line for line in failures) == 1, about
        assert any(reason in failures[-1] for reason in reasons), about
        assert "/out" in failures[-1], about
        assert "Traceback" not in ended.err, about
        assert "Exception ignored" not in ended.err, about


def test_no_byte_loses_the_model(home, library):
    """The message names a file that has the model."""
    data, out = home / "data", home / "out"
    words = "train", data, "--output", out / "model.h5", "--quiet"
    (whole,) = failing_writes.run([case(home, words, AMPLE)], library)
    places = [0, 1, 96, 100, *range(500, whole.written - 500, 2500), whole.written - 500]
    cases = [case(home, words, after, f"rescue{after}") for after in places]
    cases += [case(home, words, after, f"late{after}", calls="close") for after in (0, 3000)]
    for made, ended in zip(cases, failing_writes.run(cases, library), strict=True):
        rescued = re.search(r"the model was written to (\S+) instead", ended.err)
        assert rescued, f"{made}\n{ended.code}\n{ended.err}"
        assert model.load(rescued[1]).info["status"] == "proved"


def test_every_rank_ends(home, library):
    """What fails on one rank ends all of them, with one message."""
    out = home / "out"
    for words, after in (
        (("shard", home / "rows.svm", out / "data", "--shards", "3"), 9000),
        (("predict", home / "table.h5", home / "rows.csv", "--output", out / "scores.h5"), 5000),
        (("train", home / "data", "--output", out / "model.h5"), 3000),
    ):
        made = case(home, words, after)
        for folder in made.emptied:
            os.makedirs(folder, exist_ok=True)
        code, _, err = finish(start(*words, ranks=2, env={**made.variables, "LD_PRELOAD": str(library)}))
        assert code == 1, err
        assert err.count(f"distsms {words[0]}: ") == 1, err
        assert os.strerror(errno.EDQUOT) in err
        assert "Traceback" not in err


def test_a_log_on_the_same_disk_costs_no_model(home, library):
    """Nothing can be printed any more, and trace, checkpoint and model find no room: the model is rescued."""
    words = ["train", home / "data", "--output", home / "out" / "model.h5", "--trace", home / "out" / "trace.jsonl"]
    made = case(home, words, 300, "silent")
    for folder in made.emptied:
        os.makedirs(folder, exist_ok=True)
    environment = {**os.environ, **made.variables, "LD_PRELOAD": str(library)}
    with open(home / "out" / "log", "w") as log:
        command = [sys.executable, "-m", "distsms", *made.words]
        code = subprocess.run(command, stdout=log, stderr=log, env=environment, timeout=60, check=False).returncode
    assert code == 1
    (rescued,) = (home / "silent").glob("distsms-*/model.h5")
    assert model.load(rescued).info["status"] == "proved"
