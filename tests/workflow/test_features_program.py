"""`distsms path --features` and the methods of `distsms baseline` on features: ranks, kills, choice, and refusals."""

from __future__ import annotations

import json

import pytest

from distsms.models import model
from distsms.shards.dataset import read_manifest
from distsms.workflow.baseline_plan import requested_methods
from distsms.workflow.requests import BaselineRequest
from tests.support.program import killed, write_svmlight
from tests.support.simulated_program import run, run_json

pytestmark = pytest.mark.serial
GRID = ("--lambdas", 1e-1, 1e-2, "--folds", 3, "--solver", "lbfgs")


@pytest.fixture
def data(tmp_path):
    write_svmlight(tmp_path / "train.svm")
    run(1, "shard", tmp_path / "train.svm", tmp_path / "data", "--shards", 2)
    return tmp_path / "data"


def points(folder):
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("points/*.json")}


@pytest.mark.e2e
@pytest.mark.by_turns
def test_killed_resumed_and_the_same_on_two_ranks(data, tmp_path):
    words = ("path", data, "--features", "trees=5", *GRID)
    killed(30, *words, "--output", tmp_path / "out")
    before = points(tmp_path / "out")
    assert 0 < len(before) < 8
    out = run(2, *words, "--output", tmp_path / "out", "--at", "precision>=0.5", "--memory", "400MiB")
    assert f"{len(before)} points are there" in out and "the models of the folds are trained again" in out
    run(1, *words, "--output", tmp_path / "whole")
    found, whole = points(tmp_path / "out"), points(tmp_path / "whole")
    assert {name: found[name] for name in before} == before and len(found) == 8
    for name, point in whole.items():
        assert found[name]["result"]["lower_bound"] <= point["result"]["J"]
        assert point["result"]["lower_bound"] <= found[name]["result"]["J"]
    made = model.load(tmp_path / "out" / "model.h5")
    assert made.features.forest.n_trees == 5 and made.info["decision"]["n"] == read_manifest(data).n
    assert made.features.hash == read_manifest(tmp_path / "out" / "features" / "all").coded.features.hash
    assert not list((tmp_path / "out" / "features").glob("fold*"))
    own = next(p for p in found.values() if p["lam"] == made.info["lambda"] and not p["lane"])
    of_raw_rows = run_json(1, "evaluate", tmp_path / "out" / "model.h5", data, "--bootstrap", 0)
    assert of_raw_rows["rocarea"] == pytest.approx(own["training"]["rocarea"], abs=1e-12)
    assert "0 evaluations in 0 passes" in run(1, *words, "--output", tmp_path / "out")
    changed = (*words[:3], "trees=6", *GRID, "--output", tmp_path / "out")
    assert "features" in run(1, *changed, code=1)


@pytest.mark.by_turns
def test_the_folds_choose_features(data, tmp_path):
    words = ("path", data, *GRID, "--features", "raw", "bins=4", "--output", tmp_path / "out")
    out = run(1, *words)
    found = json.loads((tmp_path / "out" / "features.json").read_text())
    assert set(found["choices"]) == {"raw", "bins=4"} and f"best      features {found['best']}" in out
    assert "features and lambda of each fold are chosen by the other folds" in " ".join(out.split())
    best = model.load(tmp_path / "out" / "model.h5")
    assert (best.features is not None) == (found["best"] != "raw") and best.info["features_path"]["expected"]
    assert "too many paths" in run(1, *words, "--l1", 0, 0.1, code=1)
    assert "compared on held-out rows" in run(1, *words[:5], "--folds", 0, *words[7:-1], tmp_path / "none", code=1)
    run(1, "features", data, tmp_path / "leaves", "--trees", 2)
    leaves = ("path", tmp_path / "leaves", *GRID, "--output", tmp_path / "of-leaves")
    assert "has features already" in run(1, *leaves, "--features", "bins", code=1)
    assert "--features trees=2" in " ".join(run(1, *leaves).split())
    path = ("baseline", data, "--path", tmp_path / "out" / "paths" / "bins=4", "--output", tmp_path / "beside")
    assert "has made features" in run(1, *path, code=1)


@pytest.mark.by_turns
def test_a_baseline_with_features(data, tmp_path):
    pytest.importorskip("sklearn")
    names = ("distsms", "distsms-leaves", "logistic-leaves")
    words = (
        "baseline",
        data,
        "--lambdas",
        1e-1,
        "--folds",
        2,
        "--solver",
        "lbfgs",
        "--output",
        tmp_path / "out",
        "--methods",
        *names,
    )
    assert "give the same command line again" in run(1, *words, "--time-limit", "1e-6s", code=75)
    out = " ".join(run(2, *words).split())
    assert "distsms with the best features is" in out
    assert "On leaves, distsms is" in out
    found = json.loads((tmp_path / "out" / "baseline.json").read_text())["methods"]
    assert [own["method"] for own in found] == [*names, "distsms, best features"]
    assert set(found[2]["less_with_features"]) == {"rocarea", "prbep"} and not found[1]["less_with_features"]
    assert all(own["seconds"] > 0 for own in found[:3]) and not (tmp_path / "out" / "features").exists()
    assert "6; 6 of them are kept" in run(1, *words)
    alone = (*words[:8], "--output", tmp_path / "alone", "--methods", "distsms-leaves")
    assert "distsms-leaves" in run(1, *alone)


def test_without_features():
    methods = requested_methods(BaselineRequest("data", "out", features=False))
    assert "distsms" in methods and not any("leaves" in name or "crosses" in name for name in methods)
    assert "distsms-leaves" in requested_methods(BaselineRequest("data", "out"))
