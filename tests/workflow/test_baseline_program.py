"""`distsms baseline` from the command line: stopped, continued, with the folds of a path, and in a report."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from distsms import cli
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.shards import dataset
from distsms.workflow.baseline_plan import baseline_problem, requested_methods
from distsms.workflow.method_results import BEST
from distsms.workflow.path_result import FEATURES, L1, PathStore, SeveralStore
from distsms.workflow.requests import BaselineRequest
from tests.support import program
from tests.support.conversion import convert

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("kind", ["standard", "l2"])
def test_others_get_the_rows_that_training_sees(tmp_path, kind):
    program.write_svmlight(tmp_path / "rows.svm", n=80)
    manifest = convert([tmp_path / "rows.svm"], tmp_path / "data", Communicator(), normalize=kind)
    X, _, _ = dataset.load_matrix(manifest)
    w = np.random.default_rng(0).normal(size=X.shape[1])
    assert X @ w == pytest.approx(dataset.load(manifest, Communicator()).features.margins(w))


WITHOUT_PETSC = """
import sys
sys.modules["petsc4py"] = None
from distsms.__main__ import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.e2e
@pytest.mark.by_turns
def test_the_program(tmp_path):
    """Run on two ranks, stop, go on with one rank, use the folds of a path, and show the results in a report."""
    program.write_svmlight(tmp_path / "rows.svm", n=200)
    program.run("shard", tmp_path / "rows.svm", tmp_path / "data")
    words = ("baseline", tmp_path / "data", "--output", tmp_path / "out")
    program.run("path", tmp_path / "data", "--lambdas", 1e-1, 1e-2, "--folds", 3, "--output", tmp_path / "path")
    those = (*words, "--path", tmp_path / "path", "--methods", "distsms", "logistic")
    out = program.run(*those, "--time-limit", "1e-6s", ranks=2, code=75)
    assert "give the same command line again" in out
    out = program.run(*those, ranks=2)
    assert "irect optimization is" in out
    whole = json.loads((tmp_path / "out" / "baseline.json").read_text())
    assert [one["method"] for one in whole["methods"]] == ["distsms", "logistic", BEST]
    assert "12; 12 of them are kept from an earlier start" in program.run(*those)
    alone = (*words[:-1], tmp_path / "alone", *those[4:], "--solver", "lbfgs")
    assert "irect optimization is" in program.run(*alone, program=("-c", WITHOUT_PETSC))
    again = json.loads((tmp_path / "out" / "baseline.json").read_text())
    assert again == whole
    held = {
        (one["lam"], one["lane"]): one["held_out"]
        for one in json.loads((tmp_path / "path/path.json").read_text())["points"]
    }
    for path in (tmp_path / "out" / "fits").glob("distsms_*.json"):
        fit = json.loads(path.read_text())
        assert fit["rocarea"] == pytest.approx(
            held[fit["setting"], fit["fold"]]["rocarea"], abs=0.02
        )  # both to epsilon
    assert "is a path with measure rocarea" in program.run(*those, "--measure", "prbep", code=1)
    assert "folds: there 3, now 4" in program.run(*words, "--folds", 4, "--methods", "distsms", code=1)
    pytest.importorskip("xgboost")
    pytest.importorskip("lightgbm")
    out = program.run(*those[:-2], "trees", "lightgbm", "--tree-fits", 2, ranks=2)
    assert "rees (XGBoost, the best of 2" in out and "rees (LightGBM, the best of 2" in out
    out = program.run_module("scripts.experiments.on_test_rows", tmp_path / "out", tmp_path / "data")
    assert "200 rows, of which 200 occur among the training rows" in out and "2 settings tried" in out
    assert [line.split()[0] for line in out.splitlines()[-4:]] == ["distsms", "logistic", "trees", "lightgbm"]
    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    rest = ("--test", tmp_path / "data", "--output", page, "--bootstrap", 0)
    program.run("report", tmp_path / "path" / "model.h5", *rest, "--baseline", tmp_path / "out")
    assert "Path of lambdas, 3 folds" in page.read_text() and "Beside other methods" in page.read_text()


def test_only_a_path_of_comparable_models_is_taken(tmp_path, monkeypatch):
    """The models of a baseline have no l1, so that a comparison with those of the path would be of other models; and of
    its measures the largest value is the best."""

    def problem_with(store):
        request = BaselineRequest("data", tmp_path / "out", path=str(store.path), lambdas=[1e-3])
        return baseline_problem(request, "lbfgs", manifest)

    manifest = SimpleNamespace(fingerprint="f", group=None)
    problem = {"data": {"path": "data", "fingerprint": "f"}, "measure": "rocarea", "folds": 3, "folds_by": "rows"}
    problem |= {"seed": 0, "epsilon": 1e-3, "relative": None}
    several = "holds several paths; name one of them, .*/paths/NAME"
    for store, more, refused in (
        (SeveralStore(tmp_path / "l1s", L1), {}, several + "$"),
        (SeveralStore(tmp_path / "made", FEATURES), {}, several + ", which is raw"),
        (PathStore(tmp_path / "l1"), {"l1": 0.01}, "has l1 0.01"),
        (PathStore(tmp_path / "log"), {"measure": "logistic"}, "was trained for logistic, and a baseline trains"),
    ):
        store.path.mkdir()
        store.describe(problem | more, points=[])
        with pytest.raises(InputError, match=refused):
            problem_with(store)
    usable = PathStore(tmp_path / "usable")
    usable.path.mkdir()
    usable.describe(problem, points=[])
    monkeypatch.setattr(PathStore, "points", lambda store: [SimpleNamespace(lam=0.1)])
    assert problem_with(usable).lambdas == [0.1, 0.001]  # --lambdas goes further than the path


def test_no_trees():
    methods = requested_methods(BaselineRequest("data", "out", trees=False))
    assert not {"trees", "lightgbm"} & set(methods) and {"distsms", "logistic", "svm"} <= set(methods)
    with pytest.raises(SystemExit):
        cli.parse(["baseline", "data", "--methods", "trees", "--no-trees"])
