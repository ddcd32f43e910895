"""One request, sent through the command line and through the Python function, gives one baseline and one data set."""

from __future__ import annotations

import doctest
import importlib
import itertools
import json
import weakref
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import distsms
from distsms import cli
from distsms.base.errors import EXIT_OK, EXIT_REQUEUE, InputError
from distsms.cli import baseline as command
from distsms.cli.path import USUAL, lambdas
from distsms.features.feature_map import load
from distsms.optim.settings import Settings
from distsms.shards.dataset import read_manifest
from distsms.shards.from_arrays import write_data
from distsms.workflow import baseline, baseline_fits, baseline_plan, competitors, features
from distsms.workflow.features import FeaturesObserver
from distsms.workflow.requests import BaselineRequest
from tests.workflow import faces
from tests.workflow.faces import noted, run, words_of

pytestmark = pytest.mark.serial
PASSING = {"seconds", "more_seconds", "folder", "usage", "sha256"}
"""What two runs of one request need not have in common."""
lasting = partial(faces.lasting, passing=PASSING)


def by_command(*words, options):
    return run(*words, *words_of(options))


def data_set(folder, *, weighted=False, grouped=False, n=240):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 4))
    y = np.where(X[:, 0] * X[:, 1] + X[:, 2] + rng.normal(size=n) > 1, 1, -1)
    more = {"weights": rng.integers(0, 4, n).astype(float)} if weighted else {}
    more |= {"groups": rng.integers(0, 12, n)} if grouped else {}
    return write_data(folder, X, y, **more).directory


LINEAR = {"methods": ["distsms", "logistic"], "lambdas": [1e-1, 1e-2], "folds": 2, "solver": "lbfgs"}
BASELINES = [
    LINEAR | {"epsilon": 1e-4, "seed": 3},
    LINEAR | {"measure": "prbep", "select": "average-precision", "memory": 2**30},  # on distributed rows
    LINEAR | {"weighted": True, "methods": ["distsms", "svm-balanced", "logistic-leaves"]},
    LINEAR | {"grouped": True, "within_groups": "each"},
    LINEAR | {"grouped": True, "folds_by": "groups", "methods": ["distsms-crosses", "distsms", "svm"]},
]


@pytest.mark.parametrize("case", BASELINES, ids=str)
def test_a_baseline(case, tmp_path, capsys):
    options = dict(case)
    kind = {name: options.pop(name, False) for name in ("weighted", "grouped")}
    data, seen = data_set(tmp_path / "d", **kind), []
    said = {"memory": "1GiB"} if "memory" in options else {}
    assert by_command("baseline", data, "--output", tmp_path / "a", options=options | said) == EXIT_OK
    printed = " ".join(capsys.readouterr().out.split())
    result, texts = noted(lambda: distsms.baseline(data, tmp_path / "b", watch=seen.append, **options))
    of_command = json.loads((tmp_path / "a" / "baseline.json").read_text())
    in_python = json.loads((tmp_path / "b" / "baseline.json").read_text())
    assert lasting(of_command) == lasting(in_python)
    rest = {"stopped": False, "left_out": []}
    assert lasting(result.to_dict()) == lasting(
        {name: in_python[name] for name in ("problem", "solver", "select", "methods", "head", "sentences", "effort")}
        | rest
    )
    assert {name for name in options["methods"]} == {step.method for step in seen}
    for text in (*result.sentences, *result.warnings):
        assert " ".join(text.removeprefix("Warning: ").split()) in printed
    assert texts == [in_python(text) for text in result.warnings]
    frame = result.to_frame()
    assert frame["method"].tolist() == [method.method for method in result.methods]
    of_first = result.methods[0].intervals["rocarea"]
    assert frame.loc[0, ["rocarea", "rocarea_low", "rocarea_high"]].tolist() == [
        of_first.value,
        of_first.low,
        of_first.high,
    ]
    assert np.isnan(frame.loc[0, "ahead"]) == ("distsms" == frame.loc[0, "method"])


def test_a_baseline_that_was_stopped_goes_on(tmp_path, capsys):
    """By both faces; only missing fits are made, and a folder of another problem is refused by both."""
    data = data_set(tmp_path / "d")
    options = LINEAR | {"methods": ["distsms", "svm"]}
    limited = options | {"time_limit": "1e-9s"}
    assert by_command("baseline", data, "--output", tmp_path / "a", options=limited) == EXIT_REQUEUE
    calls = itertools.count()
    first = distsms.baseline(data, tmp_path / "b", stop_wanted=lambda: next(calls) >= 5, **options)
    kept = len(list((tmp_path / "b" / "fits").glob("*.json")))
    assert first.stopped and not first.methods and first.to_frame().empty and 0 < kept < 8
    assert by_command("baseline", data, "--output", tmp_path / "a", options=options) == EXIT_OK
    seen = []
    second = distsms.baseline(data, tmp_path / "b", watch=seen.append, **options)
    totals = {step.method: step.total for step in seen}  # those of a method are counted together
    assert not second.stopped and sum(totals.values()) == 8 - kept
    assert "0 of them are kept" in capsys.readouterr().out
    again = {name: distsms.baseline(data, tmp_path / name, watch=pytest.fail, **options) for name in "ab"}
    assert lasting(again["b"].to_dict()) == lasting(second.to_dict())
    for one, other in zip(again["a"].methods, second.methods, strict=True):  # models differ by less than the gap
        assert one.method == other.method
        assert one.intervals["rocarea"].value == pytest.approx(other.intervals["rocarea"].value, abs=0.02)
    changed = options | {"folds": 3}
    with pytest.raises(InputError, match=r"another problem .folds: there 2, now 3"):
        distsms.baseline(data, tmp_path / "a", **changed)
    with pytest.raises(InputError, match=r"another problem .folds: there 2, now 3"):
        by_command("baseline", data, "--output", tmp_path / "b", options=changed)


def test_groups_choose_among_models_on_features_that_are_trained_for_all_pairs(tmp_path, monkeypatch):
    """Quick trials on features measure within groups, too. Distributed rows are freed before all rows are read."""
    data = data_set(tmp_path / "d", grouped=True)
    options = LINEAR | {"methods": ["distsms", "distsms-crosses"], "lambdas": [1.0, 0.1, 1e-2, 1e-3]}
    held, load_rows, read_rows = [], baseline.load_rows, baseline_fits.read_rows

    def load(*words, **more):
        rows = load_rows(*words, **more)
        held.append(weakref.ref(rows.block.features))
        return rows

    def read(*words):
        assert [features() for features in held] == [None]
        return read_rows(*words)

    monkeypatch.setattr(baseline, "load_rows", load)
    monkeypatch.setattr(baseline_fits, "read_rows", read)
    result = distsms.baseline(data, tmp_path / "b", select="gauc@pairs", **options)
    gauc = {method.method: method.intervals["gauc@pairs"].value for method in result.methods}
    assert list(gauc) == ["distsms", "distsms-crosses", "distsms, best features"] and min(gauc.values()) > 0.5


def test_a_baseline_of_tables(tmp_path, capsys):
    """Several files and a table in memory are the same rows."""
    pd = pytest.importorskip("pandas")
    X = np.random.default_rng(0).normal(size=(120, 2))
    table = pd.DataFrame(X.round(6), columns=["a", "b"]).assign(y=(X[:, 0] > 0.5).astype(int))
    files = [tmp_path / "day-1.csv", tmp_path / "day-2.csv"]
    for file, rows in zip(files, (table[:60], table[60:]), strict=True):
        rows.to_csv(file, index=False)
    options = LINEAR | {"methods": ["distsms"], "label": "y"}
    assert by_command("baseline", *files, "--output", tmp_path / "a", options=options) == EXIT_OK
    results = [distsms.baseline(data, tmp_path / name, **options) for name, data in (("b", files), ("c", table))]
    of_command = json.loads((tmp_path / "a" / "baseline.json").read_text())["methods"]
    assert all(lasting(result.to_dict()["methods"]) == lasting(of_command) for result in results)


def test_a_baseline_takes_the_problem_of_a_path(tmp_path):
    data = data_set(tmp_path / "d")
    grid = {"lambdas": [0.3, 0.03], "folds": 3, "seed": 5, "measure": "prbep", "solver": "lbfgs", "relative": 0.05}
    assert (
        by_command("path", data, "--output", tmp_path / "path", "--quiet", options=grid | {"no_check": True}) == EXIT_OK
    )
    options = {"path": tmp_path / "path", "methods": ["distsms"], "solver": "lbfgs", "lambdas": [3e-3]}
    by_command("baseline", data, "--output", tmp_path / "a", "--quiet", options=options)
    result = distsms.baseline(data, tmp_path / "b", **options)
    assert lasting(json.loads((tmp_path / "a" / "baseline.json").read_text())["methods"]) == lasting(
        result.to_dict()["methods"]
    )
    problem = {name: result.problem[name] for name in ("folds", "seed", "measure", "relative", "epsilon")}
    assert problem == {"folds": 3, "seed": 5, "measure": "prbep", "relative": 0.05, "epsilon": None}
    made = sorted(path.name for path in (tmp_path / "b" / "fits").glob("*.npy"))
    assert made == [f"distsms_{lam}_fold{fold}.npy" for lam in (0.003, 0.03, 0.3) for fold in (1, 2, 3)]
    with pytest.raises(InputError, match=r"folds 4: .* is a path with folds 3; leave out one of the two options"):
        distsms.baseline(data, tmp_path / "c", folds=4, **options)


def test_the_warnings_of_a_baseline(tmp_path, capsys):
    """The trees of the features have seen the labels of the rows that the folds hold out."""
    pytest.importorskip("sklearn")
    data_set(tmp_path / "d")
    distsms.make_features(tmp_path / "d", tmp_path / "f", trees=3)
    result, texts = noted(lambda: distsms.baseline(tmp_path / "f", tmp_path / "b", **LINEAR))
    assert len(texts) == 1 and "trees" in texts[0] and len(result.warnings) == 1
    by_command("baseline", tmp_path / "f", "--output", tmp_path / "a", options=LINEAR)
    assert " ".join(result.warnings[0].split()) in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"methods": ["tree"]}, "there is no method 'tree'"),
        ({"measure": "f1"}, "cannot train for f1"),
        ({"select": "f1"}, "depends on a threshold"),
        ({"folds": 0}, "a baseline needs at least 2 folds"),
        ({"folds": 1}, "at least 2 folds"),
        ({"lambdas": [0.1, 0.0]}, "lambdas above 0"),
        ({"time_limit": -5}, "^time_limit is -5"),
        ({"time_limit": float("nan")}, "^time_limit is nan"),
        ({"methods": ["trees"], "trees": False}, "no method is left"),
        ({"histroy": 3}, "no option 'histroy'"),
        ({"measure": "gauc@pairs"}, "have no groups"),
    ],
    ids=str,
)
def test_what_a_baseline_cannot_be(options, refused, tmp_path):
    data_set(tmp_path / "d")
    with pytest.raises(InputError, match=refused):
        distsms.baseline(tmp_path / "d", tmp_path / "b", **({"solver": "lbfgs"} | options))
    assert not (tmp_path / "b").exists()


def test_a_baseline_of_what_is_no_data(tmp_path):
    for data in (5, None, []):
        with pytest.raises(InputError, match=r"^data is .*, and neither a path nor a table$"):
            distsms.baseline(data, tmp_path / "b", **LINEAR)


def test_the_command_line_names_what_the_workflow_has():
    """It may not load the workflow before a command runs, so it has lists of its own."""
    assert set(command.METHODS) == set(competitors.METHODS) and set(command.FEATURED) == set(competitors.FEATURED)
    assert set(command.TREES) == {name for name, method in competitors.METHODS.items() if not method.linear}
    assert lambdas(USUAL) == list(baseline_plan.LAMBDAS)
    args = cli.parse(["baseline", "d"])
    request = command._request(args)
    assert replace(request, settings={}) == BaselineRequest(data="d", output="baseline")
    assert Settings(1.0, **request.settings) == Settings(1.0)


FEATURES = [
    {},
    {"bins": 5, "crosses": "top:2", "keep": True, "weighted": True},
    {"trees": 4, "min_leaf": 7, "tree_rows": 150, "seed": 2, "grouped": True},
    {"trees": 3, "crosses": "column 1:column 2", "memory": 2**31, "shards": 3},
]


@pytest.mark.parametrize("case", FEATURES, ids=str)
def test_features(case, tmp_path, capsys):
    options = dict(case)
    kind = {name: options.pop(name, False) for name in ("weighted", "grouped")}
    data, seen = data_set(tmp_path / "d", **kind), []
    said = {"memory": "2GiB"} if "memory" in options else {}
    assert by_command("features", data, tmp_path / "a", options=options | said) == EXIT_OK
    printed = " ".join(capsys.readouterr().out.split())
    result = distsms.make_features(data, tmp_path / "b", watch=lambda *step: seen.append(step), **options)
    of_command = read_manifest(tmp_path / "a")
    assert of_command.fingerprint == result.manifest.fingerprint
    assert load(of_command).hash == result.feature_map.hash and len(of_command.shards) == len(result.manifest.shards)
    assert all(text in printed for text in (result.feature_map.describe(), *(note.text for note in result.notes)))
    assert (result.labels_note in printed) and bool(result.labels_note) == ("trees" in case or "top" in str(case))
    assert {task for task, *_ in seen} >= {"writing the shards"} and seen[-1][2] == seen[-1][3] == 240
    about = json.loads(json.dumps(result.to_dict()))
    assert about["columns"] == result.manifest.p and about["features"] in printed
    counts = result.to_frame().groupby("kind")["count"].sum().to_dict()
    forest, bins = result.feature_map.forest, result.feature_map.bins
    expected = {"leaves": sum(forest.sizes)} if forest else {}
    assert counts == expected | ({"bins": sum(bins.sizes)} if bins else {})
    # The same rules for other rows, by both faces.
    other = write_data(tmp_path / "test", np.random.default_rng(2).normal(size=(60, 4)), [1, -1] * 30).directory
    by_command("features", other, tmp_path / "c", options={"like": tmp_path / "a", "quiet": True})
    like = distsms.make_features(other, tmp_path / "e", like=tmp_path / "b")
    assert like.manifest.fingerprint == read_manifest(tmp_path / "c").fingerprint and not like.labels_note
    with pytest.raises(InputError, match="like takes all rules from the other data set; leave out bins"):
        distsms.make_features(other, tmp_path / "g", like=tmp_path / "b", bins=3)
    with pytest.raises(InputError, match=r"is there already|overwrite"):
        distsms.make_features(data, tmp_path / "b", **options)


def test_what_features_cannot_be(tmp_path):
    data_set(tmp_path / "d")
    for options, refused in (
        ({"min_leaf": 3}, "min_leaf is about trees"),
        ({"bin": 3}, "no option 'bin'"),
        ({"bins": 1}, "divided into 2 to"),
        ({"crosses": "a:b"}, "not a pair A:B"),
        ({"memory": 1000}, "memory 1000 B is too little"),
    ):
        with pytest.raises(InputError, match=refused):
            distsms.make_features(tmp_path / "d", tmp_path / "f", **options)
        assert not (tmp_path / "f").exists()


def test_many_columns_are_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr("distsms.features.fit.MANY_COLUMNS", 5)
    data = data_set(tmp_path / "d")
    result, texts = noted(lambda: distsms.make_features(data, tmp_path / "f"))
    assert len(texts) == 1 and texts[0].startswith("128 columns: training needs about") and "smaller bins" in texts[0]
    assert [note.kind for note in result.notes] == ["warning"]


def test_the_seconds_of_tasks_are_those_until_the_next_one(monkeypatch):
    now = itertools.count()  # a second between two looks at the clock
    monkeypatch.setattr(features.time, "perf_counter", lambda: next(now))
    watched = features._Watched(FeaturesObserver())
    for task, done in (("read", 0), ("read", 5), ("write", 0), ("write", 9)):
        watched.progress(task, "rows", done, 9)
    watched.end_task()
    assert watched.clock.seconds == {"read": 3, "write": 2}


@pytest.mark.parametrize("name", ["baseline", "features"])
def test_the_examples(name):
    assert doctest.testmod(importlib.import_module(f"distsms.python.{name}")).failed == 0
