"""Every script of tables and figures runs to its end on small data, and refuses what it cannot do before it begins."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path

import pytest

from distsms.__main__ import main
from tests.program import finish, run, start, write_svmlight

pytestmark = [pytest.mark.e2e, pytest.mark.serial]
SCRIPTS = Path(__file__).parents[1] / "scripts"
TINY = ("--measures", "rocarea", "--lambdas", "1e-1", "--max-evaluations", "20")
COMPARISONS = ("table2", "figure_objective", "figure_test_measure", "figure_c_mu", "figure_agm")
ALL = (*COMPARISONS, "accuracy", "measures", "sweep", "figure_lower_bounds", "experiments", "kill_test")


def script(name, *words, **more):
    return run(*words, program=(str(SCRIPTS / name),), **more)


@pytest.fixture
def texts(tmp_path):
    paths = tmp_path / "train.svm", tmp_path / "test.svm"
    for seed, path in enumerate(paths):
        write_svmlight(path, n=100, seed=seed)
    return paths


def test_every_script_is_here():
    assert {path.name for path in SCRIPTS.iterdir() if path.read_bytes().startswith(b"#!/usr/bin/env python")} == set(
        ALL
    )


def test_scripts_of_one_comparison_share_their_runs(texts, tmp_path):
    pytest.importorskip("matplotlib")
    for name in COMPARISONS:
        out = script(name, *texts, "--output", tmp_path / "out", *TINY)
        files = out.rpartition("\n\n")[2].split()
        assert files, name
        assert all(Path(file).stat().st_size > 100 for file in files)
    assert "was run before" in out


def test_the_lower_bounds(tmp_path):
    pytest.importorskip("matplotlib")
    out = script("figure_lower_bounds", "--epsilons", "0.1", "--max-evaluations", "40", "--output", tmp_path / "out")
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".md", ".png", ".svg"}
    assert "| prbep | 0.1 | " in out
    assert "n.a." not in out


def test_a_sweep(texts):
    out = script("sweep", "--planes", "2", "--max-evaluations", "3", "--", texts[0])
    assert out.count(" | 3 (limit)") == 2  # measures


@pytest.mark.parametrize(
    "name, words, rows",
    [("accuracy", (), 2), ("measures", ("--max-evaluations", "20"), 6)],
    ids=["accuracy", "measures"],
)
def test_tables_of_train_and_evaluate(name, words, rows, texts, monkeypatch, capsys):
    """In this process: starting the program for each model would take most of the time."""

    def told(*words, **more):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main([str(word) for word in words]) == 0
        return out.getvalue()

    monkeypatch.syspath_prepend(str(SCRIPTS))
    import experiment

    monkeypatch.setattr(experiment, "told", told)
    all_words = [str(SCRIPTS / name), *map(str, texts), "--lambdas", "1e-1", "--epsilon", "0.1", *words]
    monkeypatch.setattr(sys, "argv", all_words)
    runpy.run_path(all_words[0], run_name="__main__")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + rows
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(
    "name, words, error",
    [
        ("table2", ("nowhere.svm",), "there is no file nowhere.svm"),
        ("sweep", ("--history", "5", "--", "nowhere.svm"), "there is no file nowhere.svm"),
        ("experiments", ("out", "a=nowhere.svm"), "there is no file nowhere.svm"),
        ("figure_agm", (__file__, "--frobnicate"), "unrecognized arguments: --frobnicate"),
        ("experiments", ("out", f"a={__file__}", "--lambdas", "-1"), "'-1' is not a positive number"),
    ],
)
def test_refused_before_anything_is_written(name, words, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = finish(start(*words, program=(str(SCRIPTS / name),)))
    assert (code, out) == (2, "")
    assert error in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
