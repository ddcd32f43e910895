"""Every script of tables and figures runs to its end on small data, and refuses what it cannot do before it begins."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from distsms.__main__ import main
from tests.support.program import finish, run, start, write_svmlight

pytestmark = [pytest.mark.e2e, pytest.mark.serial]
SCRIPTS = Path(__file__).parents[1] / "scripts"
TINY = ("--measures", "rocarea", "--lambdas", "1e-1", "--max-evaluations", "20")
COMPARISONS = ("table2", "figure_objective", "figure_test_measure", "figure_c_mu", "figure_agm")
ALL = (
    *COMPARISONS,
    "accuracy",
    "attack",
    "bench",
    "cost_model",
    "coverage",
    "evaluations",
    "experiments",
    "figure_lower_bounds",
    "fuzz",
    "kill_test",
    "measures",
    "published",
    "sweep",
    "test_rows",
)


def script(name, *words, **more):
    return run(*words, program=(str(SCRIPTS / name),), **more)


@pytest.fixture
def texts(tmp_path):
    paths = tmp_path / "train.svm", tmp_path / "test.svm"
    for seed, path in enumerate(paths):
        write_svmlight(path, n=100, seed=seed)
    return paths


def test_every_script_is_here():
    files = (path for path in SCRIPTS.iterdir() if path.is_file())
    assert {path.name for path in files if path.read_bytes().startswith(b"#!/usr/bin/env python")} == set(ALL)


@pytest.mark.slow
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


@pytest.mark.slow
def test_published_figures(texts, tmp_path):
    out = script("published", tmp_path / "out", f"web8={texts[0]},{texts[1]}", f"news20={texts[0]}")
    lines = [line.split(" | ") for line in out.splitlines()[2:]]
    assert [line[0] for line in lines] == ["| web8"] * 9 + ["| news20"] * 6
    assert all(0 <= float(line[4].split()[0]) <= 100 for line in lines)
    assert (tmp_path / "out" / "published.md").read_text() in out + "\n"
    assert (
        "nothing published is known of 'other'"
        in finish(start(tmp_path, f"other={texts[0]}", program=(str(SCRIPTS / "published"),)))[2]
    )


@pytest.mark.slow
def test_the_cost_model(texts, tmp_path):
    """It sees what runs took, knows each phase, and draws what it predicts."""
    pytest.importorskip("matplotlib")
    rates, network, model, figure = (
        tmp_path / name for name in ("rates.json", "network.json", "model.h5", "scaling.svg")
    )
    run("shard", texts[0], tmp_path / "data", "--quiet")
    script("cost_model", "network", "--output", network, ranks=2)
    script("cost_model", "rates", tmp_path / "data", "--output", rates)
    run("train", tmp_path / "data", "--output", model, "--quiet", ranks=2)
    lines = script("cost_model", "check", rates, "--network", network, "--models", model).splitlines()
    assert lines[1].split()[:2] == ["run", "ranks"] and lines[3].split()[:3] == ["model", "2", "exchange"]
    assert lines[3].count(" / ") == 7
    predicted = script("cost_model", "curves", rates, "--output", figure, "--rows", "1e6").splitlines()
    assert sum(" strong " in line for line in predicted) == 2 * 2 * 6  # measures, orderings, numbers of ranks
    assert "Prediction" in figure.read_text()


@pytest.mark.slow
def test_coverage():
    """Ten simulations of each row, and the same whoever makes them."""
    words = ("--parts", "pair", "--simulations", 10, "--minutes", 0.001, "--processes")
    alone, both = (script("coverage", *words, processes) for processes in (1, 2))
    assert alone == both and "pair: 10 simulations a row" in alone
    *_, last = alone.strip().split("\n\n")
    header, _, *rows = last.splitlines()
    assert "ROCArea: false, mean" in header and [row.split(" | ")[0] for row in rows] == [
        "| 10",
        "| 20",
        "| 50",
        "| 200",
    ]
    assert all(row.count("±") == 4 for row in rows)


def test_a_sweep(texts):
    out = script("sweep", "--planes", "2", "--max-evaluations", "3", "--", texts[0])
    assert out.count(" | 3 (limit)") == 2  # measures


def test_the_attack(tmp_path):
    """A problem of each kind, then one alone."""
    out = script("attack", "--problems", "17", "--seed", "3", "--json", tmp_path / "attack.json")
    told = json.loads((tmp_path / "attack.json").read_text())
    assert out.lstrip().startswith(told["summary"]) and told["summary"].startswith("17 problems, ")
    assert len({group.split()[0] for group in told["table"]}) == 17
    alone = script("attack", "--only", "plain:3000000", ranks=2)
    assert alone.count("\nplain:3000000 ") >= 1 and "FALSE" not in alone


def test_evaluations(texts, tmp_path):
    run("shard", texts[0], tmp_path / "data")
    words = ("--lambdas", "1e-1", "--max-evaluations", "3", "--output", tmp_path / "out")
    out = script("evaluations", tmp_path / "data", *words)
    assert out.count("n.a. (limit) / n.a. (limit)") >= 2  # measures
    table, runs = (tmp_path / "out" / f"evaluations.{kind}" for kind in ("md", "json"))
    assert table.read_text() in out
    courses = [one[setting]["course"] for one in json.loads(runs.read_text()) for setting in ("default", "paper")]
    assert [len(course) for course in courses] == [3] * 4


@pytest.mark.parametrize(
    "part, rows",
    [("loss", 3), ("products", 5)]
    + [
        pytest.param(*one, marks=pytest.mark.slow)
        for one in (("ranks", 4), ("memory", 6), ("path", 12), ("comparators", 4))
    ],
)
def test_benchmarks(part, rows, texts, tmp_path):
    """More rows where dlib is installed. `large` takes too long here."""
    out = script("bench", part, "--quick", "--data", f"a={texts[0]},{texts[1]}", "--output", tmp_path)
    lines = [line for line in out.splitlines() if line.startswith(f"| {part} | a")]
    found = json.loads((tmp_path / "bench.json").read_text())[part]["rows"]
    assert len(lines) == len(found) >= rows
    assert (tmp_path / "bench.md").read_text().count(f"| {part} |") == len(lines)
    for one in found:
        assert one["low"] is None or one["low"] <= one["value"] <= one["high"]
        assert bool(one["target"]) == bool(one["verdict"])


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
        ("bench", ("loss", "--data", "a=nowhere.svm"), "there is no file nowhere.svm"),
        ("bench", ("speed", "--data", f"a={__file__}"), "there is no part 'speed'"),
        ("figure_agm", (__file__, "--frobnicate"), "unrecognized arguments: --frobnicate"),
        ("attack", ("--kinds", "ties,kind"), "no such kind: kind"),
        ("experiments", ("out", f"a={__file__}", "--lambdas", "-1"), "'-1' is not a positive number"),
    ],
)
def test_refused_before_anything_is_written(name, words, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = finish(start(*words, program=(str(SCRIPTS / name),)))
    assert (code, out) == (2, "")
    assert error in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_is_packaged_installs():
    """Needs the network, and takes minutes."""
    done = subprocess.run([str(SCRIPTS / "package")], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
