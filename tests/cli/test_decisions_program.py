"""`path --at`, `train --at`, `--calibrate`, `predict --labels --probability` and `info`: the program, end to end."""

from __future__ import annotations

import csv
import json

import pytest

from distsms.models import model
from tests.support import simulated_program
from tests.support.program import run, run_json, write_svmlight

pytestmark = [pytest.mark.e2e, pytest.mark.serial, pytest.mark.by_turns]
ASKED = ("--at", "recall>=0.6", "--calibrate", "sigmoid")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decided")
    write_svmlight(folder / "train.svm", n=400)
    run("shard", folder / "train.svm", folder / "data", "--shards", 2)
    return folder / "data"


def test_train_and_predict_on_ranks(data, tmp_path):
    words = ("train", data, "--lambda", "1e-2", "--epsilon", "1e-6", "--solver", "lbfgs", *ASKED)
    told = run(*words, "--output", tmp_path / "one.h5")
    simulated_program.run(3, *words, "--output", tmp_path / "three.h5")
    assert (
        "folds     5 more models" in told and "decision  recall>=0.6: threshold" in told and "curve     sigmoid" in told
    )
    one, three = (run_json("info", tmp_path / name) for name in ("one.h5", "three.h5"))
    assert three["threshold"] == pytest.approx(one["threshold"], abs=0.02)
    assert three["decision"]["tp"] == one["decision"]["tp"]
    assert three["calibration"]["brier"]["after"] == pytest.approx(one["calibration"]["brier"]["after"], rel=1e-2)
    assert "recall>=0.6: threshold" in run("info", tmp_path / "one.h5")
    wanted = ("predict", tmp_path / "one.h5", data, "--labels", "--probability")
    run(*wanted, "--output", tmp_path / "a.csv")
    simulated_program.run(3, *wanted, "--output", tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    with open(tmp_path / "a.csv") as file:
        rows = list(csv.DictReader(file))
    assert all((row["label"] == "1") == (float(row["score"]) >= one["threshold"]) for row in rows) and len(rows) == 400


def test_path_and_a_condition_that_is_added_later(data, tmp_path):
    words = ("path", data, "--lambdas", "1e-1:1e-2", "--folds", 3, "--solver", "lbfgs", "--output", tmp_path / "out")
    run(*words)
    assert not model.load(tmp_path / "out" / "model.h5").has_decision
    told = simulated_program.run(2, *words, *ASKED)
    assert "6 points are there" in told or "8 points are there" in told
    found = model.load(tmp_path / "out" / "model.h5")
    assert found.info["decision"]["tpr"] >= 0.6 and found.threshold == found.info["decision"]["threshold"]
    assert found.info["decision"]["folds"] == 3 and found.info["decision"]["n"] == 400
    chosen = json.loads((tmp_path / "out" / "path.json").read_text())["chosen"]["lam"]
    assert found.info["lambda"] == chosen
    assert "give at least 2 folds" in run(*words[:4], "--folds", 0, *ASKED, "--output", tmp_path / "no", code=1)
