"""`python -m scripts.compare` as its users run it: killed, resumed, grown, refused, contradicted."""

from __future__ import annotations

import json
import lzma
import signal
import subprocess
import sys
import time

import pytest

from distsms import cli
from distsms.base.errors import EXIT_USAGE
from distsms.base.schema import sealed
from scripts.compare.command import main
from scripts.compare.grid import RunSpec
from tests.support.problems import made
from tests.support.program import TIME_LIMIT, finish, killed, run, run_json, run_module, start, write_svmlight

pytestmark = [pytest.mark.e2e, pytest.mark.serial, pytest.mark.by_turns]
GRID = ("--measures", "prbep", "--lambdas", "1e-2", "1e-3", "--solvers", "lmvm", "bmrm", "--no-figures")
PROGRAM = ("-m", "scripts.compare")
SHORT = ("--epsilon", "1e-9", "--max-evaluations", "12")  # every run ends at its 12th evaluation


@pytest.fixture
def compare(capsys):
    """A function that runs a comparison: in this process, or on several ranks."""

    def compare(*words, code=0, ranks=None):
        if ranks is not None:
            return run(*words, code=code, ranks=ranks, program=PROGRAM)
        capsys.readouterr()
        assert main([str(word) for word in words]) == code
        told = capsys.readouterr()
        return told.err if code == 1 else told.out

    return compare


@pytest.fixture
def words(tmp_path):
    """The first words, up to the grid: test rows are text."""
    write_svmlight(tmp_path / "train.svm")
    write_svmlight(tmp_path / "test.svm", n=150, seed=1)
    run("shard", tmp_path / "train.svm", tmp_path / "data", "--shards", 2)
    return (tmp_path / "data", "--test", tmp_path / "test.svm", "--output", tmp_path / "out")


def results(folder):
    return {path.parent.name: json.loads(path.read_text()) for path in folder.glob("cells/*/result.json")}


def test_killed_and_resumed(words, compare, tmp_path):
    """Two runs of at most 15 evaluations are finished when the 36th comes; the end is that of an undisturbed one."""
    killed(36, *words, *GRID, *SHORT, module="scripts.compare.command")
    before = results(tmp_path / "out")
    cells = {path.name for path in (tmp_path / "out" / "cells").iterdir()}
    assert len(before) == 2
    assert len(cells) == 3  # one in mid-run
    out = compare(*words, *GRID, *SHORT, ranks=2)
    assert out.count("was run before") == 2
    after = results(tmp_path / "out")
    assert len(after) == 4
    assert {name: after[name] for name in before} == before
    for path in (tmp_path / "out" / "cells").iterdir():
        assert len((path / "trace.jsonl").read_text().splitlines()) == 12
    compare(*words[:-1], tmp_path / "whole", *GRID, *SHORT, ranks=2)
    for name, one in results(tmp_path / "whole").items():
        assert after[name]["J"] == pytest.approx(one["J"], rel=1e-12)
        assert after[name]["test"] == pytest.approx(one["test"], rel=1e-12)
    table = (tmp_path / "out" / "table.md").read_text()
    assert table.count("| prbep | 0.01 |") + table.count("| prbep | 0.001 |") >= 4
    assert len((tmp_path / "out" / "table.csv").read_text().splitlines()) == 5


def test_a_signal_ends_in_order(words, tmp_path):
    endless = ("--lambdas", "1e-7", "--solvers", "bmrm-linesearch", "--epsilon", "1e-13", "--max-evaluations", "1e7")
    process = start(*words, *endless, "--measures", "rocarea", "--no-figures", program=PROGRAM)
    end = time.monotonic() + TIME_LIMIT
    while not list(tmp_path.glob("out/cells/*/trace.jsonl")):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert code == 75, out + err
    assert "Give the same command line again: it repeats this run" in out
    assert results(tmp_path / "out") == {}
    assert "0 of the 1 runs asked for last are finished" in (tmp_path / "out" / "table.md").read_text()


def test_grown_refused_and_begun_anew(words, compare, tmp_path):
    compare(*words, *GRID)
    first = results(tmp_path / "out")
    out = compare(*words, *GRID, "--lambdas", "1e-1", "1e-2", "--c-mu", "adaptive", "10")
    assert out.count("was run before") == 2
    assert {name: one for name, one in results(tmp_path / "out").items() if name in first} == first
    assert len(results(tmp_path / "out")) == 4 + 2 + 2
    err = compare(*words, *GRID, "--epsilon", "1e-2", code=1)
    assert "settings.epsilon: there 0.001, now 0.01" in err
    assert "--overwrite" in err
    assert "ranks: there 1, now 2" in compare(*words, *GRID, ranks=2, code=1)
    compare(*words, *GRID, "--epsilon", "1e-2", "--overwrite")
    assert len(results(tmp_path / "out")) == 4
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    assert "not a comparison" in compare(*words[:-1], tmp_path / "mine", *GRID, "--overwrite", code=1)
    assert "would overwrite" in compare(*words[:-1], tmp_path / "data" / "here", *GRID, code=1)


def test_what_is_damaged_is_refused_in_a_sentence(words, compare, tmp_path):
    cell = made(tmp_path / "out", RunSpec("prbep", 1e-2, "lmvm"), [1.0], files=True)
    (tmp_path / "out" / "comparison.json").write_text("garbage")
    one = (*words, *GRID[:2], "--lambdas", "1e-2", "--solvers", "lmvm")
    assert "or replace it (--overwrite)" in compare(*one, code=1)
    assert "was run before" not in compare(*one, "--no-figures", "--overwrite")
    (tmp_path / "out" / "figures").touch()
    assert "figures: cannot be written" in compare(*one, code=1)
    trace = cell / "trace.jsonl"
    trace.write_bytes(trace.read_bytes()[:-9])
    err = compare(*one, code=1)
    assert str(trace) in err
    assert f"Remove this run's folder, {cell}; the run is then made again" in err
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert "Traceback" not in compare(*words[:-1], tmp_path / "circle", code=1)
    assert "Traceback" not in run("train", tmp_path / "data", "--output", tmp_path / "circle", code=1)


def test_a_larger_limit_runs_again_what_a_smaller_one_ended(words, compare, tmp_path):
    compare(*words, *GRID, "--max-evaluations", "16")
    first = results(tmp_path / "out")
    proved = {name: one for name, one in first.items() if one["status"] == "proved"}
    assert 0 < len(proved) < len(first)  # both kinds are here
    out = compare(*words, *GRID)
    assert out.count("was run before") == len(proved)
    second = results(tmp_path / "out")
    assert {one["status"] for one in second.values()} == {"proved"}
    assert {name: second[name] for name in proved} == proved
    assert compare(*words, *GRID, "--max-evaluations", "5").count("was run before") == 4


def test_what_each_rank_may_take(words, compare, tmp_path):
    """The same runs within it; too little is refused, and runs with another one do not stand in one table."""
    compare(*words, *GRID, *SHORT)
    assert "--memory 1 MiB is too little" in compare(*words, *GRID, *SHORT, "--memory", "1MiB", code=1)
    assert "memory: there none, now" in compare(*words, *GRID, *SHORT, "--memory", "2GiB", code=1)
    assert "300 rows" in compare(*words[:-1], tmp_path / "again", *GRID, *SHORT, "--memory", "2GiB")
    again = results(tmp_path / "again")
    for name, one in results(tmp_path / "out").items():
        assert (one["J"], one["test"]) == (again[name]["J"], again[name]["test"])


def test_a_contradiction_is_loud(words, compare, tmp_path, capsys):
    compare(*words, *GRID)
    path = tmp_path / "out" / "cells" / "prbep_0.01_bmrm" / "result.json"
    forged = json.loads(path.read_text())
    del forged["sha256"]
    path.write_text(json.dumps(sealed(forged | {"lower_bound": 2 * forged["J"]})))
    capsys.readouterr()
    assert main([str(word) for word in (*words, *GRID, "--quiet")]) == 7
    out, err = capsys.readouterr()
    assert out == ""
    assert "contradict" in err
    assert "lmvm found J" in err


def test_figures_with_and_without_matplotlib(words, compare, tmp_path, monkeypatch):
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "scripts.compare.figures", raising=False)
        without.delattr(sys.modules["scripts.compare"], "figures", raising=False)
        without.setitem(sys.modules, "matplotlib", None)
        out = compare(*words, *GRID[:-1])
    assert "pip install 'distsms[plot]'" in out
    assert (tmp_path / "out" / "table.md").exists()
    assert not (tmp_path / "out" / "figures").exists()
    pytest.importorskip("matplotlib")
    out = compare(*words, *GRID[:-1])
    assert out.count("was run before") == 4
    assert (tmp_path / "out" / "figures" / "test_prbep.png").stat().st_size > 1000


def test_it_starts_neither_numpy_nor_mpi_for_its_help():
    code = (
        "import sys\nfrom scripts.compare.command import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "assert not {'numpy', 'mpi4py', 'numba', 'matplotlib'} & set(sys.modules)"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "python -m scripts.compare DATA [options]" in out


def test_the_command_says_where_it_is_now(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.parse(["compare", "data", "--test", "test"])
    assert ended.value.code == EXIT_USAGE
    assert " ".join(capsys.readouterr().err.split()) == cli.COMPARE_MOVED


@pytest.mark.slow
def test_all_experiments_with_held_out_rows(tmp_path):
    """Every fifth row is held out of compressed text; the paper's figures stand beside a set that it has."""
    pytest.importorskip("matplotlib")
    write_svmlight(tmp_path / "plain.svm", n=201)
    text = (tmp_path / "plain.svm").read_bytes()
    (tmp_path / "rows.xz").write_bytes(lzma.compress(b"# a comment\n" + text))
    words = (tmp_path / "all", f"web8={tmp_path / 'rows.xz'}", "--lambdas", "1e-1", "--time-limit", "5s")
    out = run_module("scripts.experiments.all", *words)
    sizes = [run_json("info", tmp_path / "all" / "web8" / "data" / part)["n"] for part in ("train", "test")]
    assert sizes == [161, 40]
    lines = (tmp_path / "all" / "table.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| web8")]
    assert [row.split(" | ")[:3] for row in rows] == 2 * [["| web8", one, "0.1"] for one in ("prbep", "rocarea")]
    assert rows[0].endswith("| 4.35 s | 1.26 s |")
    assert rows[1].endswith("| 10.4 s | 0.59 s |")
    names = {path.name for path in (tmp_path / "all" / "web8" / "comparison" / "figures").iterdir()}
    assert {f"{kind}_prbep.svg" for kind in ("objective", "suboptimality", "test", "c_mu", "agm")} <= names
    assert str(tmp_path / "all" / "table.md") in out
