"""The program as its users run it: from text to a model and its scores, on one rank and on many."""

from __future__ import annotations

import gzip
import json
import re

import h5py
import numpy as np
import pytest

from distsms.models.model import load
from distsms.shards.dataset import read_manifest
from distsms.shards.manifest import prepare, publish
from distsms.shards.writer import finish_shard, stage_shard
from tests.support import simulated_program
from tests.support.program import finish, run, run_json, start, write_svmlight

pytestmark = [pytest.mark.e2e, pytest.mark.serial, pytest.mark.by_turns]
LBFGS = ("--solver", "lbfgs")  # for simulated ranks


def rounded(found):
    """Return what `evaluate --json` printed, but for the data's name, with nine digits of each number.

    The ranks have other parts of the rows of a file than of a data set, so that sums may be rounded differently.
    """
    return json.loads(json.dumps({**found, "data": ""}), parse_float=lambda text: float(f"{float(text):.9g}"))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    write_svmlight(folder / "train.svm", seed=1, shift=3.0)
    write_svmlight(folder / "test.svm", n=150, seed=2)
    run("shard", folder / "train.svm", folder / "train", "--shards", 3)
    run("shard", folder / "test.svm", folder / "test")
    return folder


@pytest.mark.parametrize(
    "measure, ranks",
    [
        ("rocarea", None),
        ("prbep", 2),
        pytest.param("rocarea", 3, marks=pytest.mark.slow),
        pytest.param("prbep", None, marks=pytest.mark.slow),
    ],
)
def test_from_text_to_scores(text, tmp_path, measure, ranks):
    metrics = pytest.importorskip("sklearn.metrics")
    shards = [tmp_path / "train", tmp_path / "test"]
    for shard in shards:
        run("shard", text / f"{shard.name}.svm", shard, ranks=ranks)
    model, trace = tmp_path / "model.h5", tmp_path / "trace.jsonl"
    command = ["train", shards[0], "--test", shards[1], "--measure", measure, "--lambda", "1e-3", "--output", model]
    out = run(*command, "--trace", trace, "--usage", ranks=ranks)
    for word in ("proved", "gap", "test      ROCArea", "peak memory", "loss [s]", "300 rows, 10 columns"):
        assert word in out
    assert len(re.findall(r"rank \d", out.split("what it took")[1])) == (ranks or 1)  # a column of usage for each rank

    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [line["evaluation"] for line in lines] == list(range(1, len(lines) + 1))
    told = run_json("info", model)
    assert told["gap"] <= 1e-3
    assert told["J"] == min(line["J"] for line in lines) == lines[-1]["best_J"]
    assert told["lower_bound"] == pytest.approx(lines[-1]["lower_bound"], abs=1e-9)  # less what rounding can do
    assert all({"J", "lower_bound", "gap", "evaluation", "seconds"} <= set(line) for line in lines)

    scores = tmp_path / "scores.txt"
    run("predict", model, text / "test.svm", "--output", scores, ranks=ranks)
    found = np.loadtxt(scores)
    X, y = write_svmlight(tmp_path / "again.svm", n=150, seed=2)
    with h5py.File(model) as file:
        np.testing.assert_allclose(found, X @ file["w"][:], rtol=1e-12, atol=1e-12)
    run("predict", model, shards[1], "--output", tmp_path / "scores.h5", ranks=ranks)
    with h5py.File(tmp_path / "scores.h5") as file:
        np.testing.assert_array_equal(file["scores"][:], found)
    printed = run("predict", model, text / "test.svm", ranks=ranks)
    assert np.array_equal(np.array(printed.split(), float), found)

    judged = run_json("evaluate", model, shards[1], ranks=ranks)
    assert judged["rocarea"] == pytest.approx(metrics.roc_auc_score(y, found), abs=1e-12)
    assert judged["average_precision"] == pytest.approx(metrics.average_precision_score(y, found), abs=1e-12)
    assert judged["f1"] == pytest.approx(metrics.f1_score(y > 0, found >= judged["threshold"]), abs=1e-12)
    assert judged["tp"] + judged["fn"] == np.sum(y > 0)
    of_text = run_json("evaluate", model, text / "test.svm", ranks=ranks)
    assert rounded(of_text) == rounded(judged)
    told = run("evaluate", model, shards[1], "--at", "precision>=0.5", "--at", "top=1%")
    for words in ("F1", "TPR at FPR 1 %", "BEDROC", "at precision>=0.5: the threshold is", "false positive rate"):
        assert words in told


def test_models_side_by_side(text, tmp_path):
    """A table of models says what each is for and came to; `--usage` what it took; other files are refused."""
    run("shard", text / "train.svm", tmp_path / "d")
    models = [tmp_path / f"{measure}.h5" for measure in ("rocarea", "prbep")]
    for model, words in zip(models, ((), ("--test", tmp_path / "d")), strict=True):
        simulated_program.run(2, "train", tmp_path / "d", "--measure", model.stem, *words, "--output", model, *LBFGS)
    first, second = run_json("info", *models)
    assert first["usage"]["bytes_sent"] > 0 < second["usage"]["seconds"]["loss"]
    assert "test" not in first and second["test"] == second["training"]
    rows = [line.split() for line in run("info", *models).splitlines()[2:4]]
    assert [row[1:4] for row in rows] == [["rocarea", "0.0001", "proved"], ["prbep", "0.0001", "proved"]]
    assert rows[0][-2:] == ["-", "-"] and float(rows[1][-2]) == pytest.approx(second["test"]["rocarea"], rel=1e-4)
    usage = run("info", "--usage", *models).splitlines()
    assert "loss [s]" in usage[0] and [line.split()[1] for line in usage[2:]] == ["2", "2"]
    assert "must all be models" in run("info", models[0], tmp_path / "d", code=1)


def test_any_number_of_ranks_trains_the_same_model(text, tmp_path):
    """Within the proved gaps; and the conversion is the same to the bit."""
    J, w = [], []
    for ranks in (None, 4):
        model = tmp_path / f"{ranks}.h5"
        run("train", text / "train", "--lambda", "1e-2", "--epsilon", "1e-5", "--output", model, "--quiet", ranks=ranks)
        told = run_json("info", model)
        J.append((told["J"], told["gap"]))
        w.append(np.array(h5py.File(model)["w"]))
    for value, gap in J[1:]:
        assert abs(value - J[0][0]) <= max(gap, J[0][1])
    # J is lam-strongly convex: both lie within sqrt(2 gap / lam) of the optimum
    assert max(np.linalg.norm(one - w[0]) for one in w) <= 2 * np.sqrt(2 * 1e-5 / 1e-2)
    for ranks in (1, 4):
        simulated_program.run(ranks, "shard", text / "train.svm", tmp_path / f"s{ranks}", "--shards", 5)
    one, four = (read_manifest(tmp_path / f"s{ranks}") for ranks in (1, 4))
    assert one.fingerprint == four.fingerprint


@pytest.mark.parametrize(
    "ranks", [pytest.param(None, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_vectors_spread_or_on_the_root(text, tmp_path, ranks):
    """The same model within the proved gaps, with a bias and from another model."""
    found = {}
    for step in ("root", "spread"):
        model, trace = tmp_path / f"{step}.h5", tmp_path / f"{step}.jsonl"
        words = ["train", text / "train", "--measure", "error-rate", "--bias", "--lambda", "1e-2", "--step", step]
        words += ["--test", text / "test", "--trace", trace, "--output", model, "--usage"]
        out = run(*words, ranks=ranks)
        assert f"step      {step}: as asked for" in out and ("each evaluation" in out) == bool(ranks)
        more = run(*words, "--init", model, "--epsilon", "1e-5", "--", "-tao_monitor", ranks=ranks)
        monitored = [line for line in more.splitlines() if "Function value" in line]
        assert monitored and len(set(monitored)) == len(monitored)  # PETSc speaks with one voice
        found[step] = run_json("info", model)
        assert len(trace.read_text().splitlines()) == found[step]["evaluations"]
    root, spread = found["root"], found["spread"]
    assert abs(root["J"] - spread["J"]) <= max(root["gap"], spread["gap"]) <= 1e-5
    for one in found.values():
        assert one["training"]["error-rate"] == pytest.approx(root["training"]["error-rate"], abs=0.01)


@pytest.mark.parametrize("many", [7, 32])
def test_many_ranks_on_40_rows(tmp_path, many):
    """One shard empty and one of one class; the answer is that of one rank."""
    X, y = write_svmlight(tmp_path / "rows.svm", n=40, p=6, positive=0.3)
    order = np.argsort(y, kind="stable")  # the first shard holds negatives only
    prepare(tmp_path / "with-empty")
    entries = []
    for k, rows in enumerate((order[:15], order[:0], order[15:])):
        entries.append(finish_shard(stage_shard(tmp_path / "with-empty", k, X[rows]), y[rows], 6))
    publish(tmp_path / "with-empty", entries, label_map={"+1": 1, "-1": -1}, zero_based=True)
    told = {}
    for ranks in (1, many):
        words = ("train", tmp_path / "with-empty", "--lambda", "0.1", "--output", tmp_path / f"{ranks}.h5")
        simulated_program.run(ranks, *words, *LBFGS)
        told[ranks] = load(tmp_path / f"{ranks}.h5").info
        assert told[ranks]["status"] == "proved"
    assert told[many]["J"] == pytest.approx(told[1]["J"], abs=1e-3)
    words = ("evaluate", tmp_path / "1.h5", tmp_path / "with-empty")
    judged = [simulated_program.run_json(ranks, *words) for ranks in (1, many)]
    # Fractions are summed in another order.
    rounded = [json.loads(json.dumps(one), parse_float=lambda text: float(f"{float(text):.10g}")) for one in judged]
    assert rounded[0] == rounded[1]


@pytest.mark.slow
def test_on_seven_ranks():
    """The tests of the losses and the objective once more, on a number of ranks that divides nothing."""
    out = run(
        "-q",
        "tests/losses/test_losses.py",
        "tests/optim/test_objective.py",
        "-m",
        "not serial",
        ranks=7,
        program=("-m", "pytest"),
    )
    assert "passed" in out


def test_gzip_and_several_files(text, tmp_path):
    """Parts, one of them compressed, are the whole: the same numbers in the same order."""
    lines = (text / "train.svm").read_bytes().splitlines(keepends=True)
    (tmp_path / "a.svm").write_bytes(b"".join(lines[:100]))
    (tmp_path / "b.svm.gz").write_bytes(gzip.compress(b"# part two\n\n" + b"".join(lines[100:])))
    simulated_program.run(2, "shard", tmp_path / "a.svm", tmp_path / "b.svm.gz", tmp_path / "parts")
    run("shard", text / "train.svm", tmp_path / "whole")
    model = tmp_path / "m.h5"
    run("train", tmp_path / "whole", "--output", model, "--quiet", *LBFGS)
    for ranks, name in ((3, "parts"), (1, "whole")):
        simulated_program.run(ranks, "predict", model, tmp_path / name, "--output", tmp_path / f"{name}.txt")
    assert (tmp_path / "parts.txt").read_text() == (tmp_path / "whole.txt").read_text()


@pytest.mark.parametrize(
    "labels, words, fails",
    [
        (("+1", "-1"), (), None),
        (("1", "0"), (), None),
        (("1", "2"), (), None),
        (("3", "7"), ("--positive", "7"), None),
        (("3", "7"), (), "--positive"),
        (("3", "7"), ("--positive", "5"), "none of them"),
    ],
)
def test_labels(tmp_path, labels, words, fails):
    (tmp_path / "x.svm").write_text("".join(f"{labels[i % 3 > 0]} 1:{i}.5\n" for i in range(9)))
    if fails:
        assert fails in run("shard", tmp_path / "x.svm", tmp_path / "d", *words, code=1)
        assert not (tmp_path / "d").exists()
        return
    simulated_program.run(2, "shard", tmp_path / "x.svm", tmp_path / "d", *words)
    told = run_json("info", tmp_path / "d")
    positive = labels[1] if "--positive" in words else labels[0]
    assert (told["n_pos"], told["n_neg"]) == ((6, 3) if "--positive" in words else (3, 6))
    assert told["label_map"]["+1"] == float(positive)


def test_columns_of_the_test_data(text, tmp_path):
    """Fewer than the model's are fine; more are refused with file and column, or left out on request."""
    model = tmp_path / "m.h5"
    run("train", text / "train", "--output", model, "--quiet")
    (tmp_path / "few.svm").write_text("1 1:2\n-1 3:1\n")
    (tmp_path / "more.svm").write_text("1 1:2 77:5\n-1 3:1\n")
    for name in ("few", "more"):
        run("shard", tmp_path / f"{name}.svm", tmp_path / name)
    few = run("predict", model, tmp_path / "few")
    scores = tmp_path / "scores.txt"
    for data in ("more", "more.svm"):
        for command in (("predict", "--output", scores), ("evaluate",)):
            err = simulated_program.run(2, *command, model, tmp_path / data, code=1)
            assert "77" in err
            assert data in err
        words = ("predict", model, tmp_path / data, "--ignore-new-features", "--output", scores)
        simulated_program.run(2, *words)
        assert scores.read_text() == few
    err = run("train", text / "train", "--test", tmp_path / "more", "--output", model, code=1)
    assert "column 77 (counted from 1)" in err
    run("train", text / "train", "--test", tmp_path / "more", "--output", model, "--ignore-new-features", "--quiet")


def test_options_of_the_solver(text, tmp_path):
    out = run("train", text / "train", "--output", tmp_path / "m.h5", "--", "-tao_monitor", "-tao_mispelt", "3")
    assert "TAO,  Function value" in out
    assert "tao_mispelt" in out  # PETSc names what nothing asked for


@pytest.mark.slow
def test_another_solver(text, tmp_path):
    model = tmp_path / "m.h5"
    for solver in ("agm", "bmrm", "bmrm-linesearch"):
        common = ["train", text / "train", "--output", model, "--lambda", "0.1", "--solver", solver]
        assert f"method    {solver}" in run(*common, ranks=2)
        told = run_json("info", model)
        assert (told["status"], told["settings"]["solver"]) == ("proved", solver)
        assert (told["nu"] == 0) == solver.startswith("bmrm")
    assert "exact risk" in run(*common, "--c-mu", "10", code=1)
    run(*common, "--no-zero-plane", "--max-evaluations", "5", code=4)
    assert run_json("info", model)["lower_bound"] is not None


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_measure_of_the_table_with_a_bias(text, tmp_path, ranks):
    """The trained measure is shown, its threshold is 0, and every command adds the bias to its scores."""
    model = tmp_path / "m.h5"
    command = ["train", text / "train", "--test", text / "test", "--lambda", "1e-2", "--output", model]
    command += ["--measure", "f0.5", "--bias", "2"]
    out = simulated_program.run(ranks, *command)
    assert "method    bmrm" in out
    assert "no smoothed risk" in out
    told = run_json("info", model)
    assert (told["status"], told["threshold"], told["settings"]["solver"]) == ("proved", 0.0, "bmrm")
    X, y = write_svmlight(tmp_path / "again.svm", n=150, seed=2)
    scores = tmp_path / "scores.txt"
    simulated_program.run(ranks, "predict", model, text / "test.svm", "--output", scores)
    found = np.loadtxt(scores)
    with h5py.File(model) as file:
        assert len(file["w"]) == 10
        np.testing.assert_allclose(found, X @ file["w"][:] + told["bias"], rtol=1e-12, atol=1e-12)
    assert told["bias"] != 0
    judged = simulated_program.run_json(ranks, "evaluate", model, text / "test", "--k", 20)
    called, positive = found >= 0, y > 0
    tp, fp, fn = np.sum(called & positive), np.sum(called & ~positive), np.sum(~called & positive)
    assert (judged["tp"], judged["fp"], judged["fn"]) == (tp, fp, fn)
    assert judged["f0.5"] == pytest.approx(1.25 * tp / (1.25 * tp + 0.25 * fn + fp))
    assert judged["precision@20"] == pytest.approx(np.sum(positive[np.argsort(-found)[:20]]) / 20)
    assert f"f0.5 {judged['f0.5']:.6f}" in out.split("test      ROCArea")[1]
    trace = tmp_path / "t.jsonl"
    simulated_program.run(ranks, *command, "--init", model, "--trace", trace, "--quiet")
    assert json.loads(trace.read_text().splitlines()[0])["J"] == pytest.approx(told["J"], rel=1e-9)


def test_a_useless_model_ends_with_exit_code_8(tmp_path):
    """On any number of ranks, also with --quiet and with test rows; `info` and `path` say the same."""
    for name, seed in (("rare", 0), ("test", 1)):
        shape = ["--rows", 8000, "--columns", 4, "--positive", 0.03, "--noise", 1, "--seed", seed]
        run("synth", "dense", tmp_path / name, *shape)
    model, said = tmp_path / "m.h5", "ranks no better than chance: all scores are equal"
    common = ["train", tmp_path / "rare", "--measure", "prbep", "--output", model]
    for ranks in (None, 3):
        code, out, err = finish(start(*common, "--test", tmp_path / "test", "--quiet", ranks=ranks))
        assert code == 8 and not out and said in err and "Use the measure rocarea" in err
        told = run_json("info", model)
        in_time = "why" not in told["rocarea_check"]  # on a busy machine the ROCArea model may not be ready in time
        assert (f"on {tmp_path}/test." in err) == in_time
        assert told["vacuous"] and told["status"] == "proved" and told["exit_code"] == 8 and said in told["warnings"][0]
    assert said in " ".join(run(*common, "--no-check", code=8).split())
    assert "rocarea_check" not in run_json("info", model)
    run(*common[:2], "--measure", "rocarea", "--lambda", "100", "--output", model, "--quiet")
    assert not run_json("info", model)["warnings"]
    code, _, err = finish(start("path", *common[1:4], "--output", tmp_path / "path", "--folds", 3, "--quiet"))
    assert code == 8 and said in err and run_json("info", tmp_path / "path" / "model.h5")["vacuous"]


@pytest.mark.slow
def test_at_k_and_what_cannot_be(text, tmp_path):
    model = tmp_path / "m.h5"
    command = ["train", text / "train", "--lambda", "1e-2", "--output", model]
    run(*command, "--measure", "precision@40", "--quiet")
    judged = run_json("evaluate", model, text / "train")
    assert judged["tp"] + judged["fp"] == 40  # the threshold lies behind the 40 highest training scores
    assert judged["precision@40"] == judged["tp"] / 40
    assert {"precision@9", "recall@9"} <= set(run_json("evaluate", model, text / "test", "--k", 9))
    assert run_json("evaluate", model, text / "test", "--k", 151)["precision@151"] is None
    run(*command, "--measure", "error-rate", "--bias", "--quiet")  # smoothed, by lmvm
    assert run_json("info", model)["settings"]["solver"] == "lmvm"
    assert run_json("evaluate", model, text / "train")["error_rate"] < 0.2
    assert "use bmrm or bmrm-linesearch" in run(*command, "--measure", "f1", "--solver", "agm", code=1, ranks=2)
    assert "the data have 300 rows" in run(*command, "--measure", "recall@301", code=1, ranks=2)
    assert run(*command, "--measure", "recall@0", code=2) == ""


def test_exit_codes_and_warm_start(text, tmp_path):
    model = tmp_path / "m.h5"
    common = ["train", text / "train", "--output", model, "--lambda", "1e-4"]
    assert "evaluation limit" in run(*common, "--max-evaluations", 4, code=4)
    first = run_json("info", model)
    assert first["status"] == "limit"
    assert "smoothing floor" in simulated_program.run(2, *common, *LBFGS, "--c-mu", 3000, code=3)
    assert "time limit" in simulated_program.run(2, *common, *LBFGS, "--time-limit", "0.000001s", code=75)
    run(*common)
    evaluations = run_json("info", model)["evaluations"]
    run(*common, "--init", model)
    assert run_json("info", model)["evaluations"] < evaluations


def test_help_and_usage():
    assert "mpirun" in run("--help")
    for words in ((), ("train", "x", "--time-limit", "soon")):
        assert run(*words, code=2) == ""


def test_info_without_arguments():
    assert {"distsms", "petsc4py", "MPI library", "h5py", "numpy"} <= set(run_json("info"))


@pytest.mark.by_turns
def test_warnings_of_all_ranks_are_one_in_plain_words(tmp_path):
    """Each process marks options in texts in its own way, and only the root prints."""
    rows = [f"r{k},{'yn'[k % 3 == 0]},{'' if k % 5 == 0 else f'u{k % 40}'},{k % 7}" for k in range(300)]
    (tmp_path / "t.csv").write_text("id,label,user,x\n" + "\n".join(rows) + "\n")
    words = ("shard", tmp_path / "t.csv", tmp_path / "d", "--label", "label", "--group", "user")
    _, _, told = finish(start(*words, ranks=3))
    assert told.count("rows without a group") == 1
    assert "each is a group of its own (--missing-group drop leaves them out): 60 rows" in " ".join(told.split())
