"""The default of `distsms baseline`: lambdas are halved, trees may end early, and neither makes false verdicts."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distsms
from distsms.metrics.confidence import LEVEL
from distsms.shards.from_arrays import write_data
from distsms.workflow.baseline_fits import KEPT, BaselineStore, Trial, left_lambdas
from distsms.workflow.baseline_plan import BaselinePlan
from distsms.workflow.baseline_text import describe_effort
from distsms.workflow.competitors import METHODS, OURS, Fitted, TrialResult
from distsms.workflow.requests import LAMBDAS
from scripts.experiments.simulations import Plan
from tests.support.files import write_csv
from tests.workflow.faces import run

pytestmark = pytest.mark.serial


PLANS = [Plan(400, 100, 8, 5, 1.0, 0.0), pytest.param(Plan(300, 60, 20, 5, 1.0, 0.0), marks=pytest.mark.by_turns)]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_equal_methods_are_seldom_told_apart(plan):
    """Looks that take the usual intervals say far too often that one is better: so these simulations can show it."""
    verdicts = np.array([plan.simulate((0, number)) for number in range(200)])
    *wrong, naive = np.mean(verdicts != 0, axis=0)
    error = np.sqrt(LEVEL * (1 - LEVEL) / len(verdicts))
    assert max(wrong) <= 1 - LEVEL + 2 * error < 0.12 < naive


def test_methods_that_differ_are_told_apart():
    verdicts = np.array([Plan(1500, 500, 8, 5, 1.0, 0.6).simulate((1, number)) for number in range(10)])
    assert verdicts[:, :2].min() == 1


@given(st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=3, max_size=5), st.integers(0, 2))
def test_no_trial_on_a_fold_says_which_lambdas_are_left_to_it(table, fold):
    def left():
        return left_lambdas(
            [Trial("svm", 0.1**k, f, 1.0, v / 4, 0) for k, of in enumerate(table) for f, v in enumerate(of, 1)], "svm"
        )[fold + 1]

    others = {0.1**k: sum(values) - values[fold] for k, values in enumerate(table)}
    best = sorted(others, key=lambda lam: -others[lam])[:KEPT]  # of equal ones, the largest lambdas
    assert left() == best
    for values in table:
        values[fold] = 4 - values[fold]
    assert left() == best


@pytest.fixture
def rows(tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1000, 4))
    y = np.where(X[:, 0] + X[:, 1] + rng.normal(size=1000) > 1, 1, -1)
    return X, y, write_data(tmp_path / "d", X, y).directory


@pytest.mark.parametrize(("good", "folds"), [(True, 2), (False, 5)])
def test_trees_end_early_where_the_first_folds_settle_it(monkeypatch, rows, tmp_path, good, folds):
    """They score like the labels, or as a linear model does; a thorough comparison fits the other folds, too."""
    X, y, data = rows
    grown = []

    def fit(task, number):
        grown.append(len(task.y))
        sign = {tuple(row): value for row, value in zip(X.round(9), y, strict=True)}
        label = lambda of: np.array([sign[tuple(row)] for row in of.round(9)], float)  # noqa: E731
        return Fitted(label if good else (lambda of: of[:, :2].sum(axis=1)))

    search = lambda task, number: TrialResult(0.5, 3)  # noqa: E731
    monkeypatch.setitem(METHODS, "trees", METHODS["trees"]._replace(search=search, fit=fit, package=""))
    options = {"methods": [OURS, "trees"], "lambdas": [1e-1, 1e-2], "solver": "lbfgs"}
    result = distsms.baseline(data, tmp_path / "out", **options)
    of_trees = next(method for method in result.methods if method.method == "trees")
    assert len(grown) == len(of_trees.settings) == folds
    assert any("2 of 5 folds settle the verdict" in text for text in result.sentences) == good
    again = distsms.baseline(data, tmp_path / "out", watch=pytest.fail, **options)
    assert again.sentences == result.sentences and len(grown) == folds
    whole = distsms.baseline(data, tmp_path / "out", thorough=True, tree_fits=1, **options)
    assert len(whole.methods[1].settings) == len(grown) == 5


def test_lambdas_are_halved_and_more_can_be_asked_for(rows, tmp_path):
    """Each fold takes what a thorough comparison would take of the lambdas that are left to it."""
    options = {"methods": [OURS, "logistic", "svm"], "solver": "lbfgs"}
    quick = distsms.baseline(rows[2], tmp_path / "out", **options)
    made = {path.stem for path in (tmp_path / "out" / "fits").glob("*.npy")}
    assert 3 * 5 * KEPT <= len(made) < 3 * 6 * 5 and quick.effort.fits == len(made)
    assert quick.effort.more_fits == 3 * 6 * 5 - sum(float(name.split("_")[1]) <= 1 for name in made)
    said = describe_effort(quick.effort, quick.methods, "rocarea")
    assert f"--thorough would add {quick.effort.more_fits} fits" in said
    again = distsms.baseline(rows[2], tmp_path / "out", watch=pytest.fail, **options)
    assert again.methods == quick.methods
    whole = distsms.baseline(rows[2], tmp_path / "out", thorough=True, **options)
    assert whole.effort.more_fits == 0 and "--thorough" not in describe_effort(whole.effort, whole.methods, "rocarea")
    for one, other in zip(quick.methods, whole.methods, strict=True):
        assert one.method == other.method
        assert one.intervals["rocarea"].value == pytest.approx(other.intervals["rocarea"].value, abs=0.01)


def test_quick_trials_by_several_measures_are_not_mixed(rows, tmp_path):
    """Whatever a folder was asked for before, and where earlier versions did not note the measure."""
    options = {"methods": [OURS], "folds": 2, "solver": "lbfgs", "lambdas": LAMBDAS}
    distsms.baseline(rows[2], tmp_path / "out", **options)
    for path in (tmp_path / "out" / "fits").glob("*_try*.json"):
        old = {name: value for name, value in json.loads(path.read_text()).items() if name not in ("by", "sha256")}
        path.with_name(path.name.replace("_rocarea", "")).write_text(json.dumps(old | {"value": 0.0}))
    for folder in ("out", "alone"):
        distsms.baseline(rows[2], tmp_path / folder, select="average-precision", **options)
    both, alone = ({t[:3]: t.value for t in BaselineStore(tmp_path / folder).trials() if t.by == "average-precision"}
                   for folder in ("out", "alone"))  # fmt: skip
    assert both.keys() == alone.keys() and len(both) == 2 * len(LAMBDAS)
    assert list(both.values()) == pytest.approx([alone[key] for key in both], abs=0.01)


def test_what_was_tried_beyond_the_grid_does_not_count_in_a_thorough_comparison():
    """So that it does not matter whether its folder has seen a quick one. Settings of trees are no lambdas."""
    inside, beyond, of_trees = (Trial(name, setting, 1, 0.0, 0.5, 0) for name, setting in (
        ("svm", LAMBDAS[-1]), ("svm", LAMBDAS[-1] / 10), ("trees", 7)))  # fmt: skip
    store: Any = SimpleNamespace(fits=lambda: [inside, beyond, of_trees])
    for thorough, counted in ((True, [inside, of_trees]), (False, [inside, beyond, of_trees])):
        request, problem = SimpleNamespace(thorough=thorough), SimpleNamespace(lambdas=LAMBDAS)
        plan: Any = BaselinePlan(request, None, problem, ["svm"], [], {}, None, True, store)
        assert plan.counted_fits() == counted


def test_a_table_is_taken_as_training_takes_it(rows, tmp_path):
    """The same as a data set that `distsms shard` has made of it."""
    X, y, _ = rows
    names = [*(f"x{k}" for k in range(4)), "paid"]
    write_csv(
        tmp_path / "t.csv", names, [[*row, "yes" if label > 0 else "no"] for row, label in zip(X, y, strict=True)]
    )
    options = {"methods": [OURS, "svm"], "lambdas": [1e-1], "folds": 3, "solver": "lbfgs"}
    table = {"label": "paid", "positive": "no", "drop": "x3"}
    result = distsms.baseline(tmp_path / "t.csv", tmp_path / "a", **table, **options)
    data = distsms.shard(tmp_path / "t.csv", tmp_path / "data", **table).directories[0]
    other = distsms.baseline(data, tmp_path / "b", **options)
    assert [method.intervals for method in result.methods] == [method.intervals for method in other.methods]
    assert result.problem["data"]["path"].endswith("t.csv")
    words = [
        "--label",
        "paid",
        "--positive",
        "no",
        "--drop",
        "x3",
        "--methods",
        *options["methods"],
        "--lambdas",
        "0.1",
    ]
    words += ["--folds", "3", "--solver", "lbfgs", "--output", str(tmp_path / "e"), "--shards", str(tmp_path / "kept")]
    for _ in range(2):  # the second one takes the shards and the fits that are there
        assert run("baseline", tmp_path / "t.csv", *words) == 0
    kept = json.loads((tmp_path / "e" / "baseline.json").read_text())["methods"]
    assert [method["sure"]["rocarea"]["value"] for method in kept] == [
        method.intervals["rocarea"].value for method in result.methods
    ]
    again = distsms.baseline(tmp_path / "t.csv", tmp_path / "a", watch=pytest.fail, **table, **options)
    assert again.methods == result.methods
    with pytest.raises(distsms.InputError, match="are for tables"):
        distsms.baseline(data, tmp_path / "c", label="paid", **options)
