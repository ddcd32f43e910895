"""Every program of scripts/ runs on small data, and refuses bad arguments before it writes anything."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from distsms.__main__ import main
from distsms.workflow.provenance import versions
from scripts import records
from scripts.benchmarks import check, history, liblinear, pictures, running
from scripts.benchmarks.kernels import kernels
from scripts.benchmarks.measuring import Row, row
from scripts.experiments import feature_samples, features, head, rival, small_beta, trainings
from scripts.experiments.attacks import report
from tests.support.program import ROOT, TIME_LIMIT, finish, run, run_module, start, write_svmlight

pytestmark = [pytest.mark.e2e, pytest.mark.serial, pytest.mark.by_turns]
SCRIPTS = ROOT / "scripts"
TINY = ("--measures", "rocarea", "--lambdas", "1e-1", "--max-evaluations", "20")
COMPARISONS = ("table2", "figure_objective", "figure_test_measure", "figure_c_mu", "figure_agm")
PROGRAMS = {
    "scripts.benchmarks.check",
    "scripts.benchmarks.device",  # see tests/device
    "scripts.benchmarks.first_run",  # see tests/test_first_run.py
    "scripts.benchmarks.run",
    "scripts.benchmarks.scaling",
    "scripts.benchmarks.streamed_path",
    "scripts.experiments.all",
    "scripts.experiments.attack",
    "scripts.experiments.certificates",
    "scripts.experiments.coverage",
    "scripts.experiments.criteo",
    "scripts.experiments.feature_samples",
    "scripts.experiments.features",
    "scripts.experiments.from_text",
    "scripts.experiments.gaps",
    "scripts.experiments.head",
    "scripts.experiments.decisions",
    "scripts.experiments.head_coverage",
    "scripts.experiments.lambdas",
    "scripts.experiments.lower_bounds",
    "scripts.experiments.on_test_rows",  # see tests/workflow/test_baseline_program.py
    "scripts.experiments.paper",
    "scripts.experiments.rival",
    "scripts.experiments.small_beta",
    "scripts.experiments.strings",
    "scripts.experiments.table2",
    "scripts.experiments.tables",
    "scripts.experiments.thesis",
    "scripts.experiments.trainings",
    "scripts.examples.to_mlflow",  # see tests/docs/test_mlflow.py
    "scripts.verify_certificate",  # see tests/test_verify_certificate.py
}


def script(name, *words, **more):
    return run_module(f"scripts.{name}", *words, **more)


@pytest.fixture
def texts(tmp_path):
    paths = tmp_path / "train.svm", tmp_path / "test.svm"
    for seed, path in enumerate(paths):
        write_svmlight(path, n=100, seed=seed)
    return paths


def test_every_program_is_here():
    """The modules under scripts/ that take arguments are the programs; the others are parts of them."""
    found = {path for path in SCRIPTS.rglob("*.py") if "argparse.ArgumentParser(description" in path.read_text()}
    assert {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in found} == PROGRAMS


def provenance(path, program):
    """Read a file that --json has written, and check that it records its origin."""
    found = json.loads(path.read_text())
    assert found["program"] == f"scripts.{program}" and found["records"]
    assert found["machine"]["cores"] >= 1 and found["versions"]["distsms"] and found["arguments"]
    assert not any("/" in argument for argument in found["arguments"])
    return found


@pytest.mark.slow
def test_commands_of_one_comparison_share_their_runs(texts, tmp_path):
    pytest.importorskip("matplotlib")
    for name in COMPARISONS:
        out = script("experiments.paper", name, *texts, "--output", tmp_path / "out", *TINY)
        files = out.rpartition("\n\n")[2].split()
        assert files, name
        assert all(Path(file).stat().st_size > 100 for file in files)
    assert "was run before" in out


def test_the_lower_bounds(tmp_path):
    pytest.importorskip("matplotlib")
    words = ("--epsilons", "0.1", "--max-evaluations", "40", "--output", tmp_path / "out")
    out = script("experiments.lower_bounds", *words, "--json", tmp_path / "bounds.json")
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".md", ".png", ".svg"}
    assert "| PRBEP | 0.1 | " in out
    assert "n.a." not in out
    assert all(
        record["proved"] for record in provenance(tmp_path / "bounds.json", "experiments.lower_bounds")["records"]
    )


@pytest.mark.slow
def test_published_figures(texts, tmp_path):
    words = (tmp_path / "out", f"web8={texts[0]},{texts[1]}", f"news20={texts[0]}")
    out = script("experiments.paper", "published", *words, "--json", tmp_path / "published.json")
    lines = [line.split(" | ") for line in out.splitlines()[2:]]
    assert [line[0] for line in lines] == ["| web8"] * 9 + ["| news20"] * 6
    assert all(0 <= float(line[4].split()[0]) <= 100 for line in lines)
    assert (tmp_path / "out" / "published.md").read_text() in out + "\n"
    assert len(provenance(tmp_path / "published.json", "experiments.paper")["records"]) == len(lines)
    command = ("published", tmp_path, f"other={texts[0]}")
    refused = start(*command, program=("-m", "scripts.experiments.paper"), env={"PYTHONPATH": str(ROOT)})
    assert "there are no published numbers for 'other'" in finish(refused)[2]


@pytest.mark.slow
def test_coverage():
    """Ten simulations of each table row; the results do not depend on the number of processes."""
    words = ("--parts", "pair", "--simulations", 10, "--minutes", 0.001, "--processes")
    alone, both = (script("experiments.coverage", *words, processes) for processes in (1, 2))
    assert alone == both and "pair: at least 10 simulations per row" in alone
    *_, last = alone.strip().split("\n\n")
    header, _, *rows = last.splitlines()
    assert "ROCArea: mean false verdicts [%]" in header
    assert [row.split(" | ")[0] for row in rows] == ["| 10", "| 20", "| 50", "| 200"]
    assert all(row.count("±") == 4 for row in rows)


def test_a_streamed_path(texts, tmp_path):
    run("shard", texts[0], tmp_path / "data")
    more = ("--memory", "1GiB", "--rounds", 2, "--", "--lambdas", "1e-1", "1e-2", "--folds", 2, "--solver", "lbfgs")
    lines = script("benchmarks.streamed_path", tmp_path / "data", tmp_path, *more).splitlines()
    names = ["GiB read", "cpu [s]", "clock [s]"]
    assert [line.partition(" one by one ")[0].strip() for line in lines[:-1]] == names
    assert all(0 < float(line.partition("; ratio ")[2].split()[0]) for line in lines[:-1])
    assert lines[-1].startswith("lambda chosen: 0.") and "," not in lines[-1]


def test_a_sweep(texts):
    words = ("sweep", "--planes", "2", "--max-evaluations", "3", "--json", texts[0].with_name("sweep.json"))
    out = script("experiments.trainings", *words, "--", texts[0])
    assert out.count(" | 3 (limit)") == 2  # measures
    found = provenance(texts[0].with_name("sweep.json"), "experiments.trainings")["records"]
    assert [record["evaluations"] for record in found] == [3, 3]


@pytest.mark.slow
def test_features_beside_boosted_trees(texts, tmp_path):
    """A second run makes no fit again, and prints the same tables."""
    pytest.importorskip("xgboost")
    pytest.importorskip("lightgbm")
    words = (f"a={texts[0]},{texts[1]}", "--tree-fits", 1, "--output", tmp_path / "out", "--json", tmp_path / "a.json")
    out = script("experiments.features", *words)
    found = provenance(tmp_path / "a.json", "experiments.features")["records"]
    assert [row["measure"] for row in found] == ["rocarea", "prbep"] and found[0]["n_test"] == 100
    assert all(features.table(found, show) in out for show in features.TABLES)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert len(before) == 14 and script("experiments.features", *words) == out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.slow
def test_forests_on_samples(texts, tmp_path):
    write_svmlight(texts[0], n=1500)  # a sample of few rows could lack a class
    words = (f"a={texts[0]}", "--trees", 10, "--min-leaf", 1, "--splits", 1, "--json", tmp_path / "a.json")
    out = script("experiments.feature_samples", *words)
    found = provenance(tmp_path / "a.json", "experiments.feature_samples")["records"]
    assert len(found) == 10 and feature_samples.table(found) in out


def test_the_head_of_the_ranking(texts, tmp_path):
    """Each measure has a row; a method is judged on each fold by what the other folds choose."""
    words = ("--folds", "2", "--lambdas", "1e-1", "--betas", "0.5", "--output", tmp_path / "out")
    out = script("experiments.head", f"a={texts[0]}", *words, "--json", tmp_path / "head.json")
    found = provenance(tmp_path / "head.json", "experiments.head")["records"]
    assert head.table(found) in out
    assert {row["select"] for row in found} == set(head.MEASURES)
    assert {row["method"] for row in found} == {"rocarea", "prbep", "pauc", *head.OTHERS}
    curves = {"pauc": {("pauc@0.1", 1.0): [0.5, 0.1], ("pauc@0.2", 1.0): [0.4, 0.3]}}
    curves["svm"] = {("rocarea", 1.0): [0.2, 0.1]}
    ours, other = head.judged(curves, "tpr@fpr=0.1", {})
    assert ours["mean"] == pytest.approx((0.4 + 0.1) / 2) and ours["trained_for"] == "pauc@0.2"
    assert other["mean"] == pytest.approx(0.15) and ours["ahead_by"] == pytest.approx(0.1)


def test_evaluations_for_a_small_beta(texts, tmp_path):
    words = ("--lambdas", "1e-1", "--betas", "0.5", "0.1", "--max-evaluations", "7")
    out = script("experiments.small_beta", f"a={texts[0]}", *words, "--json", tmp_path / "beta.json")
    found = provenance(tmp_path / "beta.json", "experiments.small_beta")["records"]
    assert small_beta.table(found) in out
    assert [row["measure"] for row in found] == ["rocarea", "pauc@0.5", "pauc@0.1"]
    assert all(row["evaluations"] <= 7 for row in found) and found[2]["in_stages"] <= 14 and "in_stages" not in found[1]


def test_the_attack(tmp_path):
    """First problems of some kinds, then a single one."""
    words = ("--problems", "4", "--seed", "3", "--json", tmp_path / "attack.json")
    out = script("experiments.attack", *words)
    found = provenance(tmp_path / "attack.json", "experiments.attack")["records"]
    assert out.lstrip().startswith("4 problems, ") and out.strip() == report.text(found)
    assert len({record["kind"] for record in found if record["by"] == "kind"}) == 4
    assert sum(record["runs"] for record in found if record["by"] == "kind, solver") == found[0]["runs"]
    alone = script("experiments.attack", "--only", "plain:3000000", ranks=2)
    assert alone.count("\nplain:3000000 ") >= 1 and "FALSE" not in alone


def test_evaluations(texts, tmp_path):
    run("shard", texts[0], tmp_path / "data")
    words = ("--lambdas", "1e-1", "--max-evaluations", "3", "--output", tmp_path / "out")
    out = script("experiments.paper", "evaluations", tmp_path / "data", *words)
    assert out.count("n.a. (limit) / n.a. (limit)") >= 2  # measures
    assert (tmp_path / "out" / "evaluations.md").read_text() in out
    found = provenance(tmp_path / "out" / "evaluations.json", "experiments.paper")["records"]
    assert [len(record[setting]["course"]) for record in found for setting in ("default", "paper")] == [3] * 4


@pytest.mark.parametrize(
    "part, rows",
    [("loss", 3), ("products", 5)]
    + [
        pytest.param(*one, marks=pytest.mark.slow)
        for one in (
            *(("forest", 9), ("ranks", 4), ("memory", 6), ("path", 12), ("comparators", 4), ("logistic", 5)),
            *(("roofline", 19), ("history", 9), ("billion", 16), ("text", 4)),
        )
    ],
)
def test_benchmarks(part, rows, texts, tmp_path):
    """More rows where dlib is installed. `leaves` and `large` take too long here."""
    out = script("benchmarks.run", part, "--quick", "--data", f"a={texts[0]},{texts[1]}", "--output", tmp_path)
    lines = [line for line in out.splitlines() if line.startswith(f"| {part} |")]
    found = json.loads((tmp_path / "bench.json").read_text())[part]["rows"]
    assert len(lines) == len(found) >= rows
    assert (tmp_path / "bench.md").read_text().count(f"| {part} |") == len(lines)
    for one in found:
        assert one["low"] is None or one["low"] <= one["value"] <= one["high"]


@pytest.mark.parametrize(
    "what, values, target, found, verdict",
    [
        ("time ratio", 3, "<= 1.5", "3 x (once)", "missed by a factor of 2"),
        ("time ratio", [1, 2, 3], ">= 2", "2 x (1.5 to 2.5)", "met"),
        ("time ratio", 0.5, ">= 0.7", "0.5 x (once)", "missed by a factor of 1.4"),
        ("speedup of two ranks", 3.5, ">= 1.8", "3.5 x (once)", "none: more than 2 is not possible"),
        ("speedup of two ranks", [1.9, 2.02, 2.1], ">= 1.8", "2.02 x (1.96 to 2.06)", "met"),
        ("speedup of two ranks", 0.8, ">= 1.8", "0.8 x (once)", "missed: slower than one"),
        ("speedup of two ranks", 3.5, "", "3.5 x (once)", ""),
    ],
)
def test_verdicts(what, values, target, found, verdict):
    made = row("part", "data", what, values, "x", target)
    assert made.cells() == ["part", "data", what, target, found, verdict]
    assert Row.of(made.numbers() | {"verdict": "of an older version"}) == made


def test_real_and_made_sets_are_summed_up_apart():
    """The worst ratio keeps its quartiles."""
    whats = ("ROCArea: time ratio to LIBLINEAR", "PRBEP: time ratio to LIBLINEAR")
    values = {"adult9": (1, 3), "noisy": (0.2, 0.4), "a9a": ([4, 5, 6], 0.1)}
    lines = [row("liblinear", name, whats[k], values[name][k], "x", "<= 1.5") for name in values for k in range(2)]
    assert [(line.data, line.what, *line.cells()[4:]) for line in liblinear.summary(lines)] == [
        ("real sets", "4 time ratios to LIBLINEAR: median", "2 x (0.775 to 3.5)", "missed by a factor of 2.857"),
        ("real sets: a9a", f"worst: {whats[0]}", "5 x (4.5 to 5.5)", "missed by a factor of 3.333"),
        ("made sets", "2 time ratios to LIBLINEAR: median", "0.3 x (0.25 to 0.35)", "met"),
        ("made sets: noisy", f"worst: {whats[1]}", "0.4 x (once)", "met"),
        ("all sets", "6 time ratios to LIBLINEAR: median", "0.7 x (0.25 to 2.5)", "met"),
    ]


def test_a_kernel_that_became_slower_is_found(monkeypatch):
    """The ratios are measured here; the stored ones are only asked for their kernels."""
    monkeypatch.setattr(check, "SECONDS", 0.2)
    kernel, *_ = all_kernels = list(kernels(10_000))
    slower = kernel._replace(name="slower", ours=lambda: (kernel.ours(), kernel.ours()))
    found = check.ratios_of([kernel, slower])
    assert check.slow(found, dict.fromkeys(found, found[kernel.name]), check.SLOWER) == ["slower"]
    stored = json.loads(check.STORED.read_text())
    assert [row["kernel"] for row in stored["records"]] == [one.name for one in all_kernels]
    assert not stored["dirty"] and check.same_machine({**stored, "machine": records.machine(), "versions": versions()})


def test_versions_stand_side_by_side(tmp_path):
    """The oldest is the first; a figure that a version lacks is left empty. The picture shows means over the sets."""
    (tmp_path / "CHANGES.md").write_text("# Changes\n\n## Not yet released\n\n## 0.1.0\n")
    assert history.version_of(tmp_path) == "Not yet released"
    assert history.file_name("Not yet released") == "history-not-yet-released"
    values = {"0.2": {"a": 2.0, "b": 1.0}, "0.1": {"a": 8.0, "b": 4.0, "c": 3.0}}
    files = [
        {
            "version": version,
            "committed": f"2026-0{version[-1]}-01",
            "records": [row("history", data, history.COUNT, value).numbers() for data, value in found.items()],
        }
        for version, found in values.items()
    ]
    lines = history.table(files).splitlines()
    assert lines[0] == "| figure | of | 0.1 | 0.2 |"
    assert lines[2:] == [f"| {history.COUNT} | {line} |" for line in ("a | 8 | 2", "b | 4 | 1", "c | 3 | ")]
    pytest.importorskip("matplotlib")
    assert "relative to 0.1" in pictures.over_versions(files)
    kernel = row("roofline", "9 MB", "X w", [60.0, 65.0, 68.0], "%").numbers()
    assert "X w" in pictures.roofline({"records": [kernel]})


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_peak_memory_of_each_rank_is_read_from_what_train_prints(ranks, texts, tmp_path):
    data = tmp_path / "data"
    run("shard", texts[0], data, "--quiet")
    told, peaks = running.train(data, tmp_path / "m.h5", "--max-evaluations", 3, ranks=ranks)
    assert told["evaluations"] == 3 and len(peaks) == ranks
    assert max(peaks) == pytest.approx(told["usage"]["peak_memory"], rel=1e-2)
    if ranks == 2:
        steps, peaks = running.features(data, tmp_path / "f", "--bins", 4, ranks=ranks)
        assert {"dividing numbers into bins", "writing the shards"} <= set(steps) and len(peaks) == ranks


@pytest.mark.parametrize("name, words, rows", [("accuracy", (), 2), ("measures", ("--max-evaluations", "20"), 6)])
def test_tables_of_train_and_evaluate(name, words, rows, texts, monkeypatch, capsys):
    """Everything runs in this process, because starting the program for each model would take most of the time."""

    def output_of(*words, **more):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main([str(word) for word in words]) == 0
        return out.getvalue()

    monkeypatch.setattr(trainings, "output_of", output_of)
    words = [name, *map(str, texts), "--lambdas", "1e-1", "--epsilon", "0.1", *words]
    monkeypatch.setattr(sys, "argv", ["trainings", *words])
    trainings.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + rows
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(
    "name, words, error",
    [
        ("experiments.paper", ("table2", "nowhere.svm"), "there is no file nowhere.svm"),
        ("experiments.paper", ("figure_agm", __file__, "--frobnicate"), "unrecognized arguments: --frobnicate"),
        ("experiments.paper", ("evaluations", "data", "--frobnicate"), "unrecognized arguments: --frobnicate"),
        ("experiments.trainings", ("sweep", "--history", "5", "--", "nowhere.svm"), "there is no file nowhere.svm"),
        ("experiments.all", ("out", "a=nowhere.svm"), "there is no file nowhere.svm"),
        ("experiments.all", ("out", f"a={__file__}", "--lambdas", "-1"), "'-1' is not a positive number"),
        ("benchmarks.run", ("loss", "--data", "a=nowhere.svm"), "there is no file nowhere.svm"),
        ("benchmarks.run", ("roofline", "--quick", "--publish"), "--publish needs a clone without uncommitted changes"),
        ("benchmarks.run", ("loss", "stream"), "--data is required by: loss"),
        ("benchmarks.run", ("speed", "--data", f"a={__file__}"), "there is no part 'speed'"),
        ("experiments.attack", ("--kinds", "ties,kind"), "there is no kind kind"),
    ],
)
def test_refused_before_anything_is_written(name, words, error, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *words])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"scripts.{name}").main()
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert error in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_bench_starts_its_program():
    done = subprocess.run([str(SCRIPTS / "bench"), "--help"], capture_output=True, text=True, timeout=TIME_LIMIT)
    assert done.returncode == 0 and "compressed shards compared with plain ones" in " ".join(done.stdout.split()), (
        done.stderr
    )


@pytest.mark.slow
def test_what_is_packaged_installs():
    """Needs the network, and takes minutes."""
    done = subprocess.run([str(SCRIPTS / "package")], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.by_turns
def test_a_rival_is_measured_beside_distsms(tmp_path):
    """Rows are made again to the byte; the linear part of half of the score is found, and LightGBM ranks, too."""
    pytest.importorskip("lightgbm")
    said = script("experiments.rival", "--rows", "4000", "--curved", "0.5", "--json", tmp_path / "rival.json")
    records = provenance(tmp_path / "rival.json", "experiments.rival")["records"]
    assert [record["method"] for record in records] == ["lightgbm", "distsms on columns", "distsms on bins"]
    for record in records:
        assert record["rocarea"] > 0.7 and record["positive"] == 0.01 and 0 <= record["precision_top"] <= 1
        assert record["seconds"] > 0 and record["processor"] > 0 and record["memory"] > 2**26
        assert record["method"] in said
    for name in ("one", "two"):
        rival.make(tmp_path / name, 300, 0.5, seed=3)
    assert (tmp_path / "one/X.npy").read_bytes() == (tmp_path / "two/X.npy").read_bytes()
    scores, y = np.array([3.0, 1.0, 1.0, 0.0]), np.array([1, 1, -1, -1])
    assert rival.area(scores, y) == 3.5 / 4
