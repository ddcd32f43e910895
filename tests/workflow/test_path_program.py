"""The program `distsms path`: on any number of ranks, killed and resumed, with more lambdas, and refused."""

from __future__ import annotations

import json
import signal
import time

import h5py
import numpy as np
import pytest

from distsms.models.model import load
from distsms.workflow.path_result import PathStore
from tests.support import simulated_program
from tests.support.program import TIME_LIMIT, finish, killed, run, start, write_svmlight

pytestmark = [pytest.mark.serial, pytest.mark.by_turns]
GRID = ("--lambdas", "1e-1:1e-3", "--folds", 3)


def run_here(*words, ranks=1, code=0):
    """Run `distsms path` on simulated ranks of this process."""
    return simulated_program.run(ranks, *words, "--solver", "lbfgs", code=code)


@pytest.fixture
def words(tmp_path):
    """Return the beginning of the command line, up to the grid."""
    write_svmlight(tmp_path / "train.svm")
    shards = "--shards", 2, "--normalize", "maxabs"
    simulated_program.run(1, "shard", tmp_path / "train.svm", tmp_path / "data", *shards)
    return ("path", tmp_path / "data", "--output", tmp_path / "out")


def points(folder):
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("points/*.json")}


def test_the_same_on_one_rank_and_two(words, tmp_path):
    out = run_here(*words, *GRID)
    run_here(*words[:-1], tmp_path / "two", *GRID, ranks=2)
    run_here(*words[:-1], tmp_path / "spread", *GRID, "--step", "spread", ranks=3)
    one, *others = (json.loads((tmp_path / name / "path.json").read_text()) for name in ("out", "two", "spread"))
    assert len(one["points"]) == 3 * 4
    for other in others:
        for a, b in zip(one["points"], other["points"], strict=True):
            assert (a["lam"], a["lane"]) == (b["lam"], b["lane"])
            assert a["result"]["lower_bound"] <= b["result"]["J"]
            assert b["result"]["lower_bound"] <= a["result"]["J"]
    means = {mean["lam"]: mean["mean"] for mean in one["means"]}
    assert one["chosen"]["mean"] == max(means.values())
    assert f"lambda {one['chosen']['lam']:g}: held-out ROCArea {one['chosen']['mean']:.6f}" in out
    assert "models: 12 proved" in out
    own = next(p for p in one["points"] if p["lam"] == one["chosen"]["lam"] and not p["lane"])
    judged = "evaluate", tmp_path / "out" / "model.h5", tmp_path / "data", "--bootstrap", 0
    found = simulated_program.run_json(1, *judged)
    assert found["rocarea"] == pytest.approx(own["training"]["rocarea"], abs=1e-12)
    there = PathStore(tmp_path / "out")
    w, info = there.start(0, own["lam"]), there.model(own["lam"]).info
    assert info["J"] == pytest.approx(info["lambda"] / 2 * w @ w + info["R"], rel=1e-12)  # as normalized rows see w
    kept = {path.name for path in (tmp_path / "out" / "points").glob("*.h5")}
    assert kept == {f"{lam}_all.h5" for lam in (0.1, 0.01, 0.001)} | {
        f"{lam}_fold{f}.h5" for lam in (0.1, 0.001) for f in (1, 2, 3)
    }


def test_one_pass_and_a_constant_feature(words, tmp_path):
    words = (*words, *GRID, "--measure", "normal-auc")
    out = run_here(*words, "--bias", 2, "--memory", "400MiB")
    assert "0 evaluations in 2 passes over the data" in out and "models: 12 proved" in out
    assert PathStore(tmp_path / "out").model(0.1).bias == 0.0
    assert "bias: there 2.0, now none" in run_here(*words, code=1)
    bias = {}
    for name, value in (("usual", ()), ("one", ("--bias",)), ("ten", ("--bias", 10))):
        run_here(*words[:3], tmp_path / name, "--measure", "logistic", "--lambdas", 0.1, "--folds", 0, *value)
        bias[name] = PathStore(tmp_path / name).model(0.1).bias
    assert bias["usual"] == bias["one"] != bias["ten"]


@pytest.mark.e2e
def test_killed_and_resumed(words, tmp_path):
    killed(10, *words, *GRID)
    before = points(tmp_path / "out")
    assert 0 < len(before) < 12
    out = run(*words, *GRID, ranks=2)
    assert f"{len(before)} points are there" in out
    after = points(tmp_path / "out")
    assert len(after) == 12
    assert {name: after[name] for name in before} == before
    run(*words[:-1], tmp_path / "whole", *GRID, ranks=2)
    for name, one in points(tmp_path / "whole").items():
        assert after[name]["result"]["status"] == "proved"
        assert after[name]["result"]["lower_bound"] <= one["result"]["J"]
        assert one["result"]["lower_bound"] <= after[name]["result"]["J"]
    done = (tmp_path / "out" / "path.json").read_text()
    assert "0 evaluations in 0 passes" in run(*words, *GRID)
    assert (tmp_path / "out" / "path.json").read_text() == done


def test_grown_refused_and_limited(words, tmp_path):
    run_here(*words, *GRID, "--max-evaluations", 2, code=4)
    assert {one["result"]["status"] for one in points(tmp_path / "out").values()} == {"limit"}
    assert "points are there" not in run_here(*words, *GRID)
    first = points(tmp_path / "out")
    run_here(*words, "--lambdas", "3e-2", "--folds", 3, "--rule", "one-se")
    assert len(points(tmp_path / "out")) == 16
    assert {name: one for name, one in points(tmp_path / "out").items() if name in first} == first
    found = json.loads((tmp_path / "out" / "path.json").read_text())
    assert found["rule"] == "one-se"
    assert found["chosen"]["lam"] == found["high"]["lam"] >= found["best"]["lam"]
    assert "folds: there 3, now 4" in run_here(*words, "--folds", 4, code=1)
    assert "seed: there 0, now 1" in run_here(*words, *GRID, "--seed", 1, code=1)
    assert "epsilon: there 0.001, now 0.01" in run_here(*words, *GRID, "--epsilon", 1e-2, code=1)
    assert "would overwrite" in run_here(*words[:-1], tmp_path / "data" / "here", code=1)
    assert "not a path" in run_here(*words[:-1], tmp_path, code=1)


def test_several_betas_and_the_best_of_them(words, tmp_path):
    betas = (*words, *GRID, "--measure", "pauc@0.3,0.6")
    assert "name it, such as --select tpr@fpr=0.01" in run_here(*betas, code=1)
    out = run_here(*betas, "--select", "tpr@fpr=0.3")
    found = json.loads((tmp_path / "out" / "betas.json").read_text())
    assert list(found["choices"]) == ["rocarea", "pauc@0.6", "pauc@0.3"]
    assert found["best"] == max(found["choices"], key=lambda name: found["choices"][name]["mean"])
    assert f"best      {found['best']}, lambda {found['choices'][found['best']]['lam']:g}" in out
    own = json.loads((tmp_path / "out" / "paths" / found["best"] / "path.json").read_text())
    info = load(tmp_path / "out" / "model.h5").info
    assert info["measure"] == found["best"] and info["lambda"] == own["chosen"]["lam"]
    assert run_here(*betas, "--select", "tpr@fpr=0.3").count("0 evaluations in 0 passes") == 3
    assert "select: there" in run_here(*betas, "--select", "pauc@0.3", code=1)


def test_several_l1_and_the_best_of_them(words, tmp_path):
    several = (*words, "--lambdas", "1e-1", "1e-2", "--folds", 3, "--l1", "1e-1", "1e-2", "0")
    assert "give at least 2 --folds" in run_here(*words, "--l1", "1e-1:1e-2", "--folds", 0, code=1)
    out = run_here(*several)
    found = json.loads((tmp_path / "out" / "l1.json").read_text())
    assert list(found["choices"]) == ["0.1", "0.01", "0"]
    assert found["best"] == max(found["choices"], key=lambda name: found["choices"][name]["mean"])
    assert f"best      l1 {found['best']}, lambda" in out
    sparse = {name: json.loads((tmp_path / "out/paths" / name / "path.json").read_text()) for name in ("0.1", "0.01")}
    for name, path in sparse.items():
        for point in path["points"]:
            assert point["result"]["status"] == "proved"
        own = PathStore(tmp_path / "out" / "paths" / name)
        chosen = own.model(path["chosen"]["lam"])
        assert chosen.info["l1"] == float(name)
        assert np.count_nonzero(chosen.w) == chosen.info["nonzeros"] == found["nonzeros"][name]
    assert found["nonzeros"]["0.1"] < found["nonzeros"]["0.01"] <= 10
    assert run_here(*several).count("0 evaluations in 0 passes") == 3
    dense = tmp_path / "dense"
    out = run_here(*words[:-1], dense, *several[len(words) : -3], 1, 0)  # l1 = 1 leaves nothing, so that 0 wins
    assert "best      l1 0, lambda" in out and "10 coefficients are not 0" in out
    sizes = json.loads((dense / "l1.json").read_text())["nonzeros"]
    assert sizes == {"1": 0, "0": np.count_nonzero(load(dense / "model.h5").w)}
    simple = run_here(*several, "--rule", "one-se", "--output", tmp_path / "simple")
    means = found["choices"]
    best = max(means.values(), key=lambda mean: mean["mean"])
    largest = next(name for name, mean in means.items() if mean["mean"] >= best["mean"] - best["error"])
    assert f"best      l1 {largest}," in simple


def test_too_few_positives_for_the_folds(tmp_path):
    write_svmlight(tmp_path / "few.svm", positive=0.0)
    simulated_program.run(1, "shard", tmp_path / "few.svm", tmp_path / "few")
    words = "path", tmp_path / "few", "--output", tmp_path / "none"
    for ranks in (1, 2):
        assert "there are only 1 positive ones; give fewer --folds" in run_here(*words, code=1, ranks=ranks)
    # Nothing was solved there, so that the folder can be used for another problem.
    out = run_here(*words, "--folds", 0, "--lambdas", 0.1)
    assert "models: 1 proved" in out
    assert not (tmp_path / "none" / "model.h5").exists()
    with h5py.File(tmp_path / "none" / "points" / "0.1_all.h5") as f:
        assert np.isfinite(f["w"][:]).all()


@pytest.mark.e2e
def test_a_signal_and_the_time_limit_end_in_order(words, tmp_path):
    endless = ("--epsilon", "1e-13", "--solver", "bmrm-linesearch", "--max-evaluations", "1e7", *GRID)
    process = start(*words, *endless)
    end = time.monotonic() + TIME_LIMIT
    while not (tmp_path / "out" / "path.json").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert code == 75, out + err
    assert "give the same command line again" in out
    run(*words[:-1], tmp_path / "short", *endless, "--time-limit", "1s", code=75, ranks=2)
