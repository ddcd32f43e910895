"""Output that cannot be written, a working directory that is gone, little memory, no room, no docstrings."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import resource
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from distsms import cli
from distsms.__main__ import main
from distsms.base import files, jit, program
from distsms.base.errors import InputError
from distsms.base.program import StandardStream
from distsms.cli import terminal
from distsms.optim.solvers import tao

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a table, and a model that was trained on it."""
    home = tmp_path_factory.mktemp("places")
    rows = [f"{k % 3 == 0:d},{k % 7 + (k % 3 == 0)},{k % 5}" for k in range(60)]
    (home / "rows.csv").write_text("\n".join(["y,a,b", *rows, ""]))
    options = ["--label", "y", "--lambda", "0.1", "--solver", "lbfgs", "--no-report", "--quiet"]
    assert main(["train", str(home / "rows.csv"), *options, "--output", str(home / "m.h5")]) in (0, 8)
    return home


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


class Lost(NamedTuple):
    stream: io.TextIOWrapper
    said: str


@pytest.fixture(params=["full", "pipe", "read-only"])
def lost(request):
    """A standard output that cannot be written, and what is said of it."""
    opened = {
        "full": lambda: os.open("/dev/full", os.O_WRONLY),
        "pipe": closed_pipe,
        "read-only": lambda: os.open(os.devnull, os.O_RDONLY),  # as where it was closed: see `open_streams`
    }[request.param]()
    stream = io.TextIOWrapper(io.BufferedWriter(StandardStream(opened)))
    yield Lost(
        stream, {"full": "No space left on device", "pipe": "", "read-only": "Bad file descriptor"}[request.param]
    )
    os.close(opened)


RESULTS = {
    "version": ("--version",),
    "help": ("shard", "--help"),
    "info": ("info", "m.h5"),
    "export": ("export", "m.h5", "--to", "csv"),
    "predict": ("predict", "m.h5", "rows.csv", "--quiet"),
    "evaluate": ("evaluate", "m.h5", "rows.csv", "--bootstrap", "0"),
    "evaluate several": ("evaluate", "m.h5", "m.h5", "--test", "rows.csv", "--json", "--bootstrap", "0"),
}


@pytest.mark.parametrize("words", RESULTS.values(), ids=RESULTS)
def test_a_result_that_is_lost_is_an_error(words, folder, lost, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    with contextlib.redirect_stdout(lost.stream):
        assert main(words) == 1
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert said.count("standard output cannot be written") == (lost.said != "") and lost.said in said


@pytest.mark.parametrize("words", [("shard", "rows.csv", "--label", "y"), ("synth", "dense", "--rows", "30")])
def test_files_are_made_although_the_text_is_lost(words, folder, lost, monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(folder)
    with contextlib.redirect_stdout(lost.stream):
        assert main([*words, "--output", str(tmp_path / "made")]) == 0
    assert (tmp_path / "made" / "manifest.json").exists()
    said = capfd.readouterr().err
    assert said.count("standard output cannot be written") == (lost.said != "") and lost.said in said


def test_what_is_written_to_a_slow_reader_is_not_lost():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    stream, size = StandardStream(writer), 2**20

    def read():
        count = 0
        while count < size:
            count += len(os.read(reader, 2**16))

    thread = threading.Thread(target=read)
    thread.start()
    assert stream.write(b"x" * size) == size and stream.failure is None
    thread.join()
    for end in (reader, writer):
        os.close(end)


def test_a_stream_that_was_closed_does_not_get_into_a_file(tmp_path, monkeypatch):
    """A file that is opened later must not get the number of standard output. In a child, whose streams are its own."""
    monkeypatch.chdir(tmp_path)
    if not (child := os.fork()):
        for number in range(3):
            os.close(number)
        for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
            setattr(sys, name, None)
        terminal.open_streams()
        with open("file", "w") as file:
            print("said")
            print("warned", file=sys.stderr)
            file.write("kept")
        os._exit(0 if terminal.output_was_lost("x") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Path("file").read_text() == "kept"


def test_evaluate_prints_nothing_but_json(folder, monkeypatch, capsys):
    monkeypatch.setattr(program, "runs", True)
    for models in (["m.h5"], ["m.h5", "m.h5"]):
        monkeypatch.setattr(jit.compiling, "seconds", 24.0)
        words = [*(str(folder / name) for name in models), "--test", str(folder / "rows.csv")]
        assert main(["evaluate", *words, "--json", "--bootstrap", "0"]) == 0
        assert json.loads(capsys.readouterr().out)


def test_a_working_directory_that_is_gone_is_named(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    model, rows = str(folder / "m.h5"), str(folder / "rows.csv")
    for words in (
        ["export", model, "--to", "csv", "--output", "w.csv"],
        ["predict", model, rows, "--output", "s.csv"],
        ["shard", rows, "data", "--label", "y"],
        ["synth", "dense", "data", "--rows", "30"],
        ["evaluate", "m.h5", rows],
    ):
        assert main(words) == 1
        said = capsys.readouterr().err
        assert "the working directory was removed" in said and "Traceback" not in said, words
    assert main(["predict", model, rows, "--output", str(tmp_path / "s.csv")]) == 0
    assert "working directory" in tao.lacking()  # so that lbfgs is taken
    monkeypatch.chdir(tmp_path)
    assert "working directory" not in tao.lacking(load=False)


@pytest.mark.parametrize("kind, option", [(resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")])
def test_too_little_memory_for_the_libraries_is_refused(kind, option, folder, monkeypatch, capsys):
    limits = {resource.RLIMIT_AS: (-1, -1), resource.RLIMIT_DATA: (-1, -1), kind: (400_000 * 1024, -1)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    assert main(["info", str(folder / "m.h5")]) == 1
    assert f"391 MiB here (ulimit {option}), and the libraries alone need 512 MiB" in capsys.readouterr().err
    monkeypatch.setitem(limits, kind, (2**30, -1))
    assert main(["info", str(folder / "m.h5")]) == 0


def test_help_needs_no_docstrings(monkeypatch):
    """PYTHONOPTIMIZE=2 removes them."""
    for name in cli.COMMANDS:
        monkeypatch.setattr(importlib.import_module(f"distsms.cli.{name}"), "__doc__", None)
    whole, parsers = cli.make_parsers()
    for name, summary in cli.COMMANDS.items():
        assert summary.split()[0] in whole.format_help() and summary.split()[0] in parsers[name].format_help()


def test_a_folder_for_temporary_files_that_cannot_be_used_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(files.tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"none.*set TMPDIR to a folder with room"), files.temporary_folder():
        pass
    within = tmp_path / f"{files.TEMPORARY}x" / "shard-00000.h5"
    full = OSError(28, "No space left on device")
    for path, advised in ((within, True), (tmp_path / "m.h5", False)):
        with pytest.raises(InputError) as refused, files.naming_failures(path):
            raise full
        assert (f"temporary files, {tmp_path / 'none'}, or set TMPDIR" in str(refused.value)) == advised
