"""`distsms train` on a table: one command from a file to a model and a report, with nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import distsms
from distsms import cli
from distsms.base import files
from distsms.base.communicator import Communicator
from distsms.base.errors import EXIT_LIMIT, InputError
from distsms.base.files import temporary_folder
from distsms.cli.train_text import TrainingNarrator
from distsms.ingest import convert, frames
from distsms.models import model
from distsms.shards import entries_in_memory
from distsms.shards.dataset import read_ids, read_manifest
from distsms.shards.manifest import MANIFEST
from distsms.training import plan
from distsms.workflow.tables import RECORD
from tests.support.files import on_root
from tests.support.program import finish, start


def payments(n=600, seed=0):
    """Return a table with numbers, words, missing values, groups, times and a label."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"amount": rng.lognormal(size=n), "city": rng.choice(["Rome", "Oslo", "Bern", None], n)})
    frame["age"] = np.where(rng.random(n) < 0.2, np.nan, rng.integers(18, 90, n))
    frame["user"], frame["number"] = rng.integers(0, 60, n), np.arange(n)
    frame["day"] = pd.to_datetime("2024-01-01") + pd.to_timedelta(rng.integers(0, 50, n), "D")
    frame["isFraud"] = (frame.amount + (frame.city == "Rome") + rng.normal(size=n) > 2.5).astype(int)
    return frame


@pytest.fixture
def table(comm, shared_dir):
    """Return a CSV file of these payments."""
    on_root(comm, lambda: payments().to_csv(shared_dir / "my.csv", index=False))
    return shared_dir / "my.csv"


@pytest.fixture
def own_temporary(comm, shared_dir, monkeypatch):
    """Return a folder in which temporary folders are made."""
    on_root(comm, lambda: (shared_dir / "temporary").mkdir())
    monkeypatch.setattr(tempfile, "tempdir", str(shared_dir / "temporary"))
    return shared_dir / "temporary"


def train(comm, *words):
    args = cli.parse(["train", *map(str, words)])
    return args.run(args, comm)


QUICK = ("--solver", "lbfgs", "--lambda", "1e-2", "--id", "number", "--label", "isFraud", "--max-evaluations", 30)


@pytest.mark.parametrize("words", [["--drop", "user", "--drop", "day"], ["--group", "user", "--drop", "day"]])
def test_one_command(comm, shared_dir, table, own_temporary, words):
    """The measures on the test rows are scikit-learn's on those rows of the table that the hash holds out."""
    output = shared_dir / "model.h5"
    assert train(comm, table, *QUICK, *words, "--split", "0.7,0.3", "--seed", 5, "--output", output) in (0, 4)
    one, frame = model.load(output), payments()
    scores = distsms.predict(output, table)
    how = {"label": "isFraud", "id": "number", "drop": ("user", "day")}
    if "--group" in words:
        how |= {"group": "user", "drop": ("day",)}
    shard = ["shard", table, shared_dir / "d", "--label", "isFraud", "--id", "number", *words, "--split", "0.7,0.3"]
    args = cli.parse([*map(str, shard), "--seed", "5", "--quiet"])
    args.run(args, comm)
    test = read_manifest(shared_dir / "d/test")
    rows = list(map(int, read_ids(test, 0, test.n)))
    assert one.info["test"]["rocarea"] == pytest.approx(roc_auc_score(frame.isFraud[rows], scores[rows]), abs=1e-12)
    assert one.info["data"]["n"] == len(frame) - test.n and one.info["data"]["directory"] == str(table)
    assert "distsms report" in (shared_dir / "report.html").read_text()[:1000]
    comm.barrier()
    assert not list(own_temporary.iterdir())


def test_by_time_the_latest_rows_are_held_out_and_shards_are_kept(comm, shared_dir, table, own_temporary):
    words = ["--time", "day", "--drop", "user", "--shards", shared_dir / "kept", "--report", shared_dir / "own.html"]
    assert train(comm, table, *QUICK, *words, "--output", shared_dir / "model.h5") in (0, 4)
    parts, day = [read_manifest(shared_dir / "kept" / name) for name in ("train", "test")], payments().day
    rows = [day[list(map(int, read_ids(part, 0, part.n)))] for part in parts]
    assert rows[0].max() < rows[1].min() and parts[1].n == pytest.approx(0.2 * len(day), abs=20)
    assert (shared_dir / "own.html").exists() and not (shared_dir / "report.html").exists()
    comm.barrier()
    with pytest.raises(InputError, match="holds a data set"):
        train(comm, table, *QUICK, *words, "--output", shared_dir / "model.h5", "--quiet")
    comm.barrier()
    assert train(comm, shared_dir / "kept/train", *QUICK[:4], "--output", shared_dir / "again.h5", "--quiet") == 0
    again, first = (model.load(shared_dir / name) for name in ("again.h5", "model.h5"))
    np.testing.assert_allclose(again.info["J"], first.info["J"], atol=2e-3)


def test_temporary_shards_do_not_wait_for_the_disk(comm, shared_dir, table, own_temporary, monkeypatch):
    """Shards that are kept do. And with --no-report there is no report."""
    flushed, flush = list[str](), os.fsync

    def fsync(handle):
        flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
        flush(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    line = [table, *QUICK[:-1], 1, "--drop", "user", "--drop", "day", "--no-report", "--quiet"]
    for where in [], ["--shards", shared_dir / "kept"]:
        flushed.clear()
        assert train(comm, *line, *where, "--output", shared_dir / "m.h5") == EXIT_LIMIT
        assert any(comm.allgather(any("shard-" in name for name in flushed))) == bool(where)
    assert not (shared_dir / "m.html").exists()
    with pytest.raises(InputError, match="--no-report is for files"):
        train(comm, shared_dir / "kept/train", "--no-report", "--output", shared_dir / "m.h5")


def test_temporary_shards_are_gone_when_their_rows_are_loaded(comm, shared_dir, table, own_temporary, monkeypatch):
    """Of one rank: others may share shards. The test rows stay, and are judged in the end."""
    found, loaded = dict[bool, list[str]](), TrainingNarrator.loaded

    def look(self, *args):
        for place in shared_dir.rglob("shard-*.h5"):
            found.setdefault(own_temporary in place.parents, []).append(place.parent.name)
        loaded(self, *args)

    monkeypatch.setattr(TrainingNarrator, "loaded", look)
    line = [table, *QUICK, "--drop", "user", "--drop", "day", "--no-report", "--quiet"]
    for where in [], ["--shards", shared_dir / "kept"]:
        assert train(comm, *line, *where, "--output", shared_dir / "m.h5") == 0
    assert ("train" in found[True]) == (comm.size > 1) and {*found[False]} == {"train", "test"}
    assert "rocarea" in model.load(shared_dir / "m.h5").info["test"]


def test_rows_that_do_not_fit_are_streamed(comm, shared_dir, table, own_temporary, monkeypatch, capsys):
    """A run on the data set itself is refused, as its user can repeat it with --memory."""
    line = ["--lambda", "1e-2", "--solver", "lbfgs", "--no-check"]
    files = [table, "--label", "isFraud", "--id", "number", "--drop", "user", "--drop", "day", "--no-report"]
    assert train(comm, *files, *line, "--shards", shared_dir / "kept", "--output", shared_dir / "held.h5") == 0
    monkeypatch.setattr(entries_in_memory, "room", lambda *sizes: 0)
    monkeypatch.setattr(plan, "available", lambda held: comm.size * 2**30)
    monkeypatch.setattr(plan, "held_bytes", lambda *asked: 100 * 2**30)
    capsys.readouterr()
    assert train(comm, *files, *line, "--output", shared_dir / "streamed.h5") == 0
    comm.barrier()
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "takes at most 1 GiB, as with --memory 1024MiB; others are read from temporary shards on each pass" in shown
    ) == comm.is_root
    held, streamed = (model.load(shared_dir / f"{name}.h5").info for name in ("held", "streamed"))
    assert streamed["gap"] <= 1e-3
    assert streamed["J"] == pytest.approx(held["J"], abs=1e-3)
    with pytest.raises(InputError, match="or give --memory 1024MiB"):
        train(comm, shared_dir / "kept/train", *line, "--output", shared_dir / "m.h5")
    monkeypatch.setattr(entries_in_memory, "room", lambda *sizes: 2**24)  # no file has the entries
    monkeypatch.setattr("distsms.ingest.convert.FEW_BYTES", 0)
    monkeypatch.setattr("distsms.ingest.convert.UNEVEN", 10.0)
    with pytest.raises(InputError, match="or give --memory 1024MiB"):
        train(comm, *files, *line, "--output", shared_dir / "m.h5")


def test_a_run_that_is_resumed_keeps_its_automatic_lambda(comm, shared_dir, table, own_temporary, capsys):
    line = [table, "--label", "isFraud", "--id", "number", "--drop", "user", "--drop", "day", "--solver", "lbfgs"]
    line += ["--shards", shared_dir / "kept", "--checkpoint", shared_dir / "ck"]
    line += ["--no-report", "--output", shared_dir / "m.h5"]
    assert train(comm, *line, "--max-evaluations", 2) == EXIT_LIMIT
    first = model.load(shared_dir / "m.h5")
    assert train(comm, *line, "--resume") == 0
    resumed = model.load(shared_dir / "m.h5")
    assert resumed.info["lambda"] == first.info["lambda"] == first.info["auto_lambda"]["lam"]
    assert resumed.info["evaluations"] > first.info["evaluations"]
    if comm.is_root:
        assert "that of the run that is resumed" in capsys.readouterr().out


def test_shards_of_other_options_or_files_are_not_used_again(comm, shared_dir, table, own_temporary):
    """A run that is resumed with other options for the table would train on what they do not say."""
    line = [table, *QUICK[:-1], 3, "--drop", "user", "--drop", "day", "--shards", shared_dir / "kept", "--quiet"]
    line += ["--no-report", "--checkpoint", shared_dir / "ck", "--output", shared_dir / "m.h5"]
    assert train(comm, *line) == EXIT_LIMIT
    with pytest.raises(InputError, match="holds a data set already"):
        train(comm, *line)
    with pytest.raises(InputError, match="made with another --drop"):
        train(comm, *line, "--drop", "age", "--resume")
    with pytest.raises(InputError, match="without --resume"):
        train(comm, *line, "--resume", "--overwrite")
    fingerprint = read_manifest(shared_dir / "kept/train").fingerprint
    with pytest.raises(InputError, match="holds a checkpoint; give --resume"):
        train(comm, *line, "--drop", "age", "--overwrite")
    assert read_manifest(shared_dir / "kept/train").fingerprint == fingerprint
    comm.barrier()
    on_root(comm, lambda: (shared_dir / "kept" / RECORD).unlink())  # a run that was killed had replaced the shards
    with pytest.raises(InputError, match="another problem"):
        train(comm, *line, "--drop", "age", "--resume")
    assert read_manifest(shared_dir / "kept/train").fingerprint != fingerprint
    comm.barrier()
    on_root(comm, lambda: (shared_dir / "kept" / RECORD).unlink())
    assert train(comm, *line, "--resume", "--max-evaluations", 30) == 0
    assert read_manifest(shared_dir / "kept/train").fingerprint == fingerprint
    comm.barrier()
    on_root(comm, lambda: table.write_text(table.read_text().replace("Rome", "Nice")))  # of the same length
    with pytest.raises(InputError, match="files have changed"):
        train(comm, *line, "--resume")


def test_files_folders_and_patterns(comm, shared_dir, own_temporary):
    """The rows of several files are trained on in order; a test file of one's own takes the place of a split."""
    frame = payments().drop(columns=["user", "day"])
    if comm.is_root:
        (shared_dir / "days").mkdir()
        frame[:300].to_csv(shared_dir / "days/a.csv", index=False)
        frame[300:].to_csv(shared_dir / "days/b.csv", index=False)
        (shared_dir / "days/notes.txt").write_text("not a table")
        payments(seed=1).drop(columns=["user", "day"]).to_parquet(shared_dir / "later.parquet")
    comm.barrier()
    found, end = [], ["--test", shared_dir / "later.parquet", "--quiet", "--output", shared_dir / "m.h5", "--no-report"]
    several = [shared_dir / "days/a.csv", shared_dir / "days/b.csv"]
    for words in (several, [shared_dir / "days"], [shared_dir / "days/*.csv"]):
        assert train(comm, *words, *QUICK, *end) == 0
        found.append(model.load(shared_dir / "m.h5"))
        comm.barrier()
    assert train(comm, *several, *QUICK, *end, "--shards", shared_dir / "kept") == 0
    assert read_manifest(shared_dir / "kept/train").n == len(frame) and not (shared_dir / "kept/test").exists()
    with pytest.raises(InputError, match=r"kept/train: holds a data set already"):
        train(comm, *several, *QUICK, *end, "--shards", shared_dir / "kept")
    assert train(comm, *several[:1], *QUICK, *end, "--shards", shared_dir / "kept", "--overwrite") == 0
    assert read_manifest(shared_dir / "kept/train").n == 300
    with pytest.raises(InputError, match="--overwrite replaces the shards in the folder of --shards"):
        train(comm, *several, *QUICK, *end, "--overwrite")
    with pytest.raises(InputError, match="--overwrite is for files"):
        train(comm, shared_dir / "kept/train", *end[:-1], "--overwrite")
    assert {one.info["data"]["n"] for one in found} == {len(frame)}
    assert len({one.info["data"]["fingerprint"] for one in found}) == 1
    with pytest.raises(InputError, match=r"nosuch.*csv: there is no such file"):
        train(comm, shared_dir / "nosuch*.csv", *QUICK)
    with pytest.raises(InputError, match=r"nosuch.svm: there is no such file or folder(?: \[rank|$)"):
        train(comm, shared_dir / "nosuch.svm")


def test_what_it_took_has_the_shards_and_the_choice_of_lambda(comm, shared_dir, table, own_temporary, capsys):
    words = [table, "--label", "isFraud", "--id", "number", "--drop", "user,day", "--solver", "lbfgs"]
    assert train(comm, *words, "--output", shared_dir / "m.h5") == 0
    seconds = model.load(shared_dir / "m.h5").info["usage"]["seconds"]
    assert list(seconds)[:3] == ["shards", "lambda", "load"] and min(seconds["shards"], seconds["lambda"]) > 0.01
    if comm.is_root:
        told = " ".join(capsys.readouterr().out.split())
        of_report, whole = re.search(r"report on the test rows: \S*m\.html \((.+) s\) took (.+) s: ", told).groups()
        # The model was written before the report; of several ranks it has the largest seconds of each phase.
        phases = sum(seconds.values()) if comm.size == 1 else seconds["shards"] + seconds["lambda"]
        assert float(whole) >= phases + float(of_report) - 0.05
        assert seconds["rest"] >= 0 and "start-up" not in seconds  # which is of the program, and not of a function


def test_outputs_may_lie_in_the_folder_of_the_tables(comm, shared_dir, table, own_temporary, monkeypatch):
    """But they must not be one of the tables."""
    monkeypatch.chdir(shared_dir)
    assert train(comm, ".", *QUICK, "--drop", "user,day", "--trace", "trace.jsonl") in (0, 4)
    assert {"model.h5", "report.html", "trace.jsonl"} < {path.name for path in shared_dir.iterdir()}
    comm.barrier()
    for words in (["--trace", "my.csv"], ["--report", "my.csv"], ["--certificate", "c.html", "--report", "c.html"]):
        with pytest.raises(InputError, match=rf"{words[-1]}: would overwrite"):
            train(comm, ".", *QUICK, "--drop", "user,day", *words)


@pytest.mark.parametrize("more", [["--at", "recall>=0.8"], ["--calibrate", "sigmoid"]])
def test_folds_by_groups_do_not_need_the_shards_again(comm, shared_dir, table, own_temporary, more):
    """They are removed as soon as the rows are loaded. The result is that of shards that are kept."""
    found = []
    for where in [], ["--shards", shared_dir / "kept"]:
        words = [table, *QUICK, "--group", "user", "--drop", "day", "--no-report", "--quiet", *more, *where]
        assert train(comm, *words, "--output", shared_dir / "m.h5") == 0
        found.append(model.load(shared_dir / "m.h5"))
        comm.barrier()
    assert found[0].threshold == pytest.approx(found[1].threshold, abs=1e-12)
    for name in ("decision", "calibration"):
        one, other = ({**each.info.get(name, {}), "seconds": 0.0} for each in found)
        assert one == other and (len(one) > 1) == (name == {"--at": "decision", "--calibrate": "calibration"}[more[0]])


def test_the_last_rows_are_held_out_where_there_is_no_time(comm, shared_dir, own_temporary, capsys):
    on_root(comm, lambda: (shared_dir / "x.svm").write_text("".join(f"{k % 2} 1:{k % 5} 2:1\n" for k in range(100))))
    line = [shared_dir / "x.svm", "--split-by", "time", "--solver", "lbfgs", "--lambda", "1e-2", "--no-report"]
    assert train(comm, *line, "--output", shared_dir / "m.h5") in (0, 8)
    shown = capsys.readouterr().out
    assert ("80 to train, and the last 20 held out to test, in the order of the files" in shown) == comm.is_root


@pytest.mark.serial
def test_a_full_folder_for_temporary_files_is_named(comm, shared_dir, table, own_temporary, monkeypatch):
    monkeypatch.setattr(files, "SLACK_BYTES", 2**60)
    with pytest.raises(
        InputError, match=f"make space in the folder for temporary files, {own_temporary}, or set TMPDIR"
    ):
        train(comm, table, *QUICK, "--drop", "user", "--drop", "day", "--output", shared_dir / "m.h5")


def test_test_rows_that_are_the_training_rows(comm, shared_dir, table, own_temporary, capsys):
    kept, line = shared_dir / "kept", [*QUICK, "--drop", "user", "--drop", "day", "--no-report"]
    some = pd.concat([payments()[::-2], payments(seed=1)[:200]])[payments().columns[::-1]]  # 60 % are training rows
    on_root(comm, lambda: some.to_csv(shared_dir / "some.csv", index=False))
    data = ["--solver", "lbfgs", "--lambda", "1e-2", "--output", shared_dir / "m.h5"]
    for words, same in (
        ([table, *line, "--test", table, "--output", shared_dir / "m.h5"], True),
        ([table, *line, "--shards", kept, "--output", shared_dir / "m.h5"], False),
        ([kept / "train", *data, "--test", kept / "train"], True),
        ([kept / "train", *data, "--test", kept / "test"], False),
        ([table, *line, "--test", shared_dir / "some.csv", "--output", shared_dir / "m.h5"], "About 60 %"),
    ):
        said = "All of these rows were training rows of the model" if same is True else f"{same} of these rows were"
        assert train(comm, *words) == 0
        comm.barrier()
        shown, info = " ".join(capsys.readouterr().out.split()), model.load(shared_dir / "m.h5").info
        assert (said in shown) == (bool(same) and comm.is_root) and (said in " ".join(info["warnings"])) == bool(same)
        assert info["test_rows"]["training_rows"] == pytest.approx(
            0.6 if isinstance(same, str) else float(same), abs=0.005
        )
        if "--shards" in words:
            continue
        assert train(comm, *words, "--quiet") == 0
        comm.barrier()
        alone = " ".join(capsys.readouterr().err.split())
        assert (f"warning: {said}" in alone) == (bool(same) and comm.is_root)


@pytest.mark.serial
def test_test_rows_of_one_class(comm, shared_dir, table, own_temporary, capsys):
    """They are known only after the training, and then the model is written."""
    frame = payments(seed=1)
    frame[frame.isFraud == 0].to_csv(shared_dir / "one.csv", index=False)
    words = [*QUICK, "--drop", "user", "--drop", "day", "--test", shared_dir / "one.csv", "--no-report"]
    assert train(comm, table, *words, "--output", shared_dir / "m.h5") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "The test rows have no positive rows, so the model is not tested" in shown
    (shared_dir / "one.svm").write_text("1 1:2\n1 2:3\n1 1:1\n1 1:4\n1 1:5\n")
    with pytest.raises(InputError, match="training rows are positive; two classes are needed"):
        train(comm, shared_dir / "one.svm", "--positive", "1", "--lambda", "1e-2", "--output", shared_dir / "m.h5")


@pytest.mark.parametrize("kind", ["csv", "svm"])
def test_a_file_that_changes_while_it_is_read(comm, shared_dir, own_temporary, kind, monkeypatch):
    """Rows of two files would be mixed, since a file is opened for each block."""
    text = "y,a\n1,2\n0,3\n1,5\n" if kind == "csv" else "1 1:2\n0 1:3\n1 1:5\n"
    path, other = shared_dir / f"t.{kind}", shared_dir / f"other.{kind}"
    on_root(comm, lambda: (path.write_text(text), other.write_text(text)))
    read = convert.open_reader

    def replaced(*args):
        reader = read(*args)
        on_root(comm, lambda: other.exists() and os.replace(other, path))
        return reader

    monkeypatch.setattr(convert, "open_reader", replaced)
    words = [path, *(["--label", "y"] if kind == "csv" else []), "--lambda", "1e-2", "--split-by", "rows"]
    with pytest.raises(InputError, match=rf"t.{kind}: was changed or replaced while it was read"):
        train(comm, *words, "--output", shared_dir / "m.h5")
    assert not (shared_dir / "m.h5").exists()


def test_what_is_refused(comm, shared_dir, table, own_temporary, monkeypatch):
    drop = ["--drop", "user", "--drop", "day", "--quiet", "--output", shared_dir / "m.h5"]
    for words, message in (
        (["--label", "nosuch", *drop], "has no column 'nosuch'"),
        ([*QUICK, *drop, "--checkpoint", shared_dir / "c"], "--shards FOLDER"),
        ([*QUICK, *drop, "--split", "0.5,0.3,0.2"], "such as 0.8,0.2"),
        ([*QUICK, *drop, "--memory", "100MiB"], "100 MiB is too little: Python and its libraries"),
        ([*QUICK, *drop, "--split", "0.75"], "such as 0.75,0.25(?! *; it)"),
        ([*QUICK, *drop, "--split", "0.7,0.3", "--test", table], "--split holds out test rows, and --test names"),
        ([*QUICK, *drop, "--report", table], "would overwrite"),
        ([*QUICK, *drop, "--test", "nosuch.csv"], "--test nosuch.csv: there is no such"),
        ([*QUICK, *drop, "--shards", table], "is not a folder"),
        ([*QUICK, *drop, "--split", "0.999,0.001"], "no model can be judged|there is no row"),
    ):
        with pytest.raises(InputError, match=message):
            train(comm, table, *words)
        comm.barrier()
    on_root(comm, lambda: (shared_dir / "m.html").write_text("my own"))
    with pytest.raises(InputError, match="is not a report"):
        train(comm, table, *QUICK, *drop)
    assert not list(own_temporary.iterdir()) and not (shared_dir / "m.h5").exists()
    monkeypatch.setattr(frames, "on_several_hosts", lambda comm: True)
    with pytest.raises(InputError, match=r"on several hosts.*--shards FOLDER"):
        train(comm, table, *QUICK, *drop)


def test_messages_name_the_users_file(comm, shared_dir, table, own_temporary, capsys):
    """Nothing that is printed, raised or kept names a folder that is gone afterwards."""
    drop, model_file = ["--drop", "user,day", "--measure", "prbep"], shared_dir / "m.h5"
    assert train(comm, table, *QUICK, *drop, "--output", model_file) in (0, 4)
    out = capsys.readouterr().out
    kept = (shared_dir / "m.html").read_text() + str(model.load(model_file).info | {"command": ""})
    assert str(own_temporary) not in out + kept and f"test rows of {table}" in kept
    assert not comm.is_root or (f"data      {table}: " in " ".join(out.split("\n")) and len(out.splitlines()) < 45)
    with pytest.raises(InputError) as raised:
        train(comm, table, *QUICK, *drop, "--split", "0.9999,0.0001", "--output", model_file)
    assert str(own_temporary) not in str(raised.value)
    frame = payments().assign(isFraud=lambda rows: rows.isFraud.where(rows.number != 300))
    with pytest.raises(InputError, match=r"the table.*the label is missing") as raised:
        distsms.train(frame[comm.rank :: comm.size], comm.mpi_comm, label="isFraud")
    assert str(own_temporary) not in str(raised.value)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("line", "files", "drop"),
    [
        ("train my.csv --drop a b --label y", ["my.csv"], ["a", "b"]),
        ("train my.csv --drop a,b --drop c", ["my.csv"], ["a,b", "c"]),
        ("train --drop a my.csv --label y", ["my.csv"], ["a"]),
        ("shard in.csv --drop a out", ["in.csv"], ["a"]),
        ("shard in.csv out --drop a b", ["in.csv"], ["a", "b"]),
    ],
)
def test_columns_and_files_on_one_line(line, files, drop):
    args = cli.parse(line.split())
    assert (args.data if line.startswith("train") else args.input) == files and args.drop == drop


@pytest.mark.serial
def test_usage_errors_fit_the_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        cli.parse(["train", "x", "--nosuch-option", "that", "makes", "a", "long", "line", "of", "words"])
    assert max(map(len, capsys.readouterr().err.splitlines()[1:])) <= 60


def test_options_for_files_beside_a_data_set(comm, shared_dir, table):
    args = cli.parse(["shard", str(table), str(shared_dir / "d"), "--label", "isFraud", "--drop", "day", "--quiet"])
    args.run(args, comm)
    for words in (["--label", "isFraud"], ["--split", "0.8,0.2"], ["--shards", "x"]):
        with pytest.raises(InputError, match=rf"{words[0]} is for files, .*d is a data set"):
            train(comm, shared_dir / "d", *words)
    with pytest.raises(InputError, match="nothing: there is no such file or data set"):
        train(comm, shared_dir / "nothing", "--no-report")
    with pytest.raises(InputError, match="one data set, or files"):
        train(comm, shared_dir / "d", table, "--label", "isFraud", "--output", shared_dir / "m.h5")


def test_a_frame_in_python(comm, shared_dir, table, own_temporary):
    """A DataFrame, whose rows the ranks share out, gives the model of the file, and is scored as the file is."""
    frame = payments()
    bounds = [len(frame) * rank // comm.size for rank in (comm.rank, comm.rank + 1)]
    mine, how = frame[slice(*bounds)], {"label": "isFraud", "time": "day", "drop": ["user"], "id": "number"}
    how |= {"split": (0.8, 0.2), "solver": "lbfgs", "lam": 1e-2, "categorical": ("age",), "min_count": 3}
    one = distsms.train(mine, comm.mpi_comm, **how)
    other = distsms.train(table, comm.mpi_comm, **how)
    assert one.info["data"]["n"] == other.info["data"]["n"] and one.table.feature_names == other.table.feature_names
    np.testing.assert_allclose(one.info["J"], other.info["J"], atol=2e-3)
    scores, expected = distsms.predict(one, mine, comm.mpi_comm), distsms.predict(one, table)[slice(*bounds)]
    np.testing.assert_allclose(scores, expected, rtol=1e-12)
    latest = frame.day > frame.day.sort_values().iloc[int(0.8 * len(frame)) - 1]
    expected = roc_auc_score(frame.isFraud[latest], distsms.predict(one, table)[latest])
    assert one.info["test"]["rocarea"] == pytest.approx(expected, abs=1e-12)
    measures = distsms.evaluate(one, mine, comm.mpi_comm)
    assert measures["rocarea"] == pytest.approx(roc_auc_score(frame.isFraud, distsms.predict(one, table)), abs=1e-12)
    with pytest.raises(InputError, match="no option 'nosuch'"):
        distsms.train(mine, comm.mpi_comm, **how, nosuch=1)
    with pytest.raises(InputError, match="has no column 'y'"):
        distsms.train(mine, comm.mpi_comm, label="y")
    with pytest.raises(InputError, match="are for tables"):
        distsms.train((np.eye(3), [1, -1, 1]), label="y")
    comm.barrier()
    assert not list(own_temporary.iterdir())


@pytest.mark.serial
def test_a_temporary_folder_is_gone_after_an_error(own_temporary):
    with pytest.raises(KeyError), temporary_folder() as folder:
        (folder / "sub").mkdir()
        raise KeyError
    assert not folder.exists() and folder.parent == own_temporary


@pytest.mark.serial
@pytest.mark.e2e
@pytest.mark.parametrize("ranks, number", [(None, signal.SIGKILL), (2, signal.SIGTERM)])
def test_nothing_is_left_by_a_killed_run(tmp_path, ranks, number):
    """Killed during the training, which would go on for long."""
    payments(20000).drop(columns=["user", "day"]).to_csv(tmp_path / "my.csv", index=False)
    (tmp_path / "temporary").mkdir()
    words = ["train", tmp_path / "my.csv", *QUICK[:6], "--label", "isFraud", "--lambda", "1e-9", "--epsilon", "1e-14"]
    files = ["--output", tmp_path / "m.h5", "--trace", tmp_path / "trace"]
    process = start(*words, *files, ranks=ranks, env={"TMPDIR": str(tmp_path / "temporary")})
    deadline = time.monotonic() + 60
    while not list((tmp_path / "temporary").glob(f"distsms-shards-*/my.csv/train/{MANIFEST}")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, number)
    finish(process)
    while list((tmp_path / "temporary").glob("distsms-shards-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list((tmp_path / "temporary").glob("distsms-shards-*"))


@pytest.mark.serial
def test_warnings_on_the_data_are_printed_at_the_end(tmp_path, capsys):
    payments().to_csv(tmp_path / "my.csv", index=False)
    words = ["train", tmp_path / "my.csv", *QUICK, "--group", "user", "--time", "day", "--output", tmp_path / "m.h5"]
    args = cli.parse(list(map(str, words)))
    args.run(args, Communicator())
    lines = [line for line in capsys.readouterr().out.split("\n") if line and not line.startswith("model: ")]
    first = next(k for k, line in enumerate(lines) if line.startswith("warning   "))
    assert "whole groups were held out" in " ".join(lines[first:])
    last = next(k for k, line in enumerate(lines) if line.startswith("  took "))
    assert first < last and all(line.startswith(("warning   ", "          ")) for line in lines[first:last])


@pytest.mark.serial
def test_dates_and_a_random_split_propose_time(tmp_path, capsys):
    frame = payments()
    for columns, option, told in (([], [], True), ([], ["--time", "day"], False), (["day"], [], False)):
        frame.drop(columns=columns).to_csv(tmp_path / "my.csv", index=False)
        words = ["shard", tmp_path / "my.csv", tmp_path / "d", "--label", "isFraud", "--split", "0.8,0.2", *option]
        args = cli.parse([*map(str, words), "--overwrite"])
        args.run(args, Communicator())
        assert ("--time day would" in " ".join(capsys.readouterr().out.split())) == told
