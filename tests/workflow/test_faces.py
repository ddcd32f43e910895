"""One request, sent through the command line, `distsms.train` and `SMSClassifier`, gives one result."""

from __future__ import annotations

import json
import os

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import distsms
from distsms import SMSClassifier
from distsms.base.errors import EXIT_LIMIT, InputError
from distsms.base.wording import in_python as in_python_words
from distsms.optim.run import TrainingRun
from distsms.shards.from_arrays import write_data
from distsms.workflow import auto_lambda
from tests.cli.test_train_files import payments
from tests.workflow.faces import lasting, noted, run, words_of

pytestmark = pytest.mark.serial


def by_command(folder, data, **options):
    """Train by the command line; True stands for an option without a value. The exit code must be that of the model."""
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    words = words_of(options, lam="lambda")
    code = run("train", data, "--output", folder / "m.h5", "--quiet", *words)
    model = distsms.load_model(folder / "m.h5")
    assert code == model.info["exit_code"]
    return model


def in_python(data, **options):
    """Train by `distsms.train`: the warnings that it gives are those that the model keeps."""
    model, warned = noted(lambda: distsms.train(data, **options))
    assert warned == [in_python_words(text) for text in model.info["warnings"]]
    return model


def same(one, other, but=()):
    """Whether two models and all that they say are the same."""
    np.testing.assert_array_equal(one.w, other.w)
    first, second = (json.loads(json.dumps(lasting(model.info))) for model in (one, other))
    assert {**first, **dict.fromkeys(but)} == {**second, **dict.fromkeys(but)}


def rows(n=400, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    y = np.where(X[:, 0] + 0.5 * X[:, 1] + rng.normal(size=n) > 1, 1, -1)
    return X, y, rng.integers(1, 4, n).astype(float), rng.integers(0, 25, n)


CASES = [
    {"measure": "rocarea", "lam": 1e-2},
    {"measure": "prbep", "lam": 1e-2, "at": "recall>=0.7", "calibrate": "sigmoid"},
    {"measure": "rocarea", "lam": 1e6},  # no better than chance
    {"measure": "logistic", "lam": 1e-3, "l1": 1e-3, "weighted": True},
    {"measure": "gauc@pairs", "lam": 1e-2, "grouped": True},
    {"measure": "f1", "lam": 1e-2},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_data_set_and_arrays(case, tmp_path):
    X, y, weights, groups = rows()
    own = dict(case)
    weights, groups = weights if own.pop("weighted", False) else None, groups if own.pop("grouped", False) else None
    own |= {"epsilon": 1e-4, "solver": "bmrm" if own["measure"] == "f1" else "lbfgs"}
    written = {"weights": weights, "groups": groups}
    write_data(tmp_path / "d", X, y, **{name: value for name, value in written.items() if value is not None})
    command = by_command(tmp_path, tmp_path / "d", no_check=True, **own)
    same(in_python(tmp_path / "d", check=False, **own), command)
    arrays = in_python((X, y), check=False, weight=weights, group=groups, **own)
    kept = {"at", "calibrate", "measure", "lam", "l1", "epsilon", "solver"}
    estimator = SMSClassifier(**{name: value for name, value in own.items() if name in kept})
    _, warned = noted(lambda: estimator.fit(X, y, sample_weight=weights, groups=groups))
    assert warned == [in_python_words(text) for text in arrays.info["warnings"]]
    assert bool(warned) == (case["lam"] > 1)
    np.testing.assert_array_equal(estimator.coef_[0], arrays.w)
    np.testing.assert_allclose(arrays.w, command.w, rtol=1e-9, atol=1e-12)  # from rows in another order of sums
    for name, attribute in {"J": "objective_", "lower_bound": "lower_bound_", "threshold": "threshold_"}.items():
        assert getattr(estimator, attribute) == arrays.info[name]
        assert arrays.info[name] == pytest.approx(command.info[name], abs=1e-9)
    for name in ("decision", "calibration"):
        found = [getattr(estimator, f"{name}_", None), arrays.info.get(name)]
        assert lasting(found[0]) == lasting(found[1])


@pytest.mark.parametrize(
    "case",
    [
        {"lam": 1e-2},
        {"measure": "prbep", "lam": 1e-2, "time": "day"},  # with a quick ROCArea model on the test rows
        {"memory": 2**30, "group": "user"},  # lambda auto
        {"measure": "prbep", "lam": 1e-2, "weight": "amount", "at": "recall>=0.7"},
        {"lam": 1e-2, "group": "user", "within_groups": "each", "bias": 0},
    ],
    ids=str,
)
def test_a_table(case, tmp_path):
    frame = payments(1000)
    frame.to_csv(tmp_path / "a.csv", index=False)
    own = case | {
        "label": "isFraud",
        "id": "number",
        "solver": "lbfgs",
        "split": (0.7, 0.3),
        "seed": 3,
        "epsilon": 1e-3,
    }
    own["drop"] = [name for name in ("user", "day") if name not in (case.get("time"), case.get("group"))]
    command = by_command(tmp_path, tmp_path / "a.csv", no_report=True, **own)
    assert {"rocarea"} < set(command.info["test"]) and command.info["test_rows"]["training_rows"] == 0.0
    assert ("rocarea_check" in command.info) == (case.get("measure") == "prbep")
    if case.get("measure") == "prbep":
        assert f"test rows of {tmp_path / 'a.csv'}" == command.info["rocarea_check"]["on"]
    own["memory"] = float(own["memory"]) if "memory" in own else None
    file, table = in_python(tmp_path / "a.csv", **own), in_python(frame, **own)
    assert file.info.pop("columns") == table.info.pop("columns")
    same(file, command)
    np.testing.assert_allclose(table.w, file.w, rtol=1e-6, atol=1e-9)
    for name in ("J", "lower_bound", "threshold", "training", "test"):
        assert table.info[name] == pytest.approx(file.info[name], abs=1e-6), name


def test_a_run_on_a_table_that_was_stopped_goes_on(tmp_path):
    """By every face; and what has changed is refused."""
    frame = payments().drop(columns=["user", "day"])
    frame.to_csv(tmp_path / "a.csv", index=False)
    own = {"label": "isFraud", "id": "number", "solver": "lbfgs", "split": (0.7, 0.3), "epsilon": 1e-6}
    kept = [{"shards": tmp_path / f"s{k}", "checkpoint": tmp_path / f"c{k}"} for k in range(3)]
    faces = [
        lambda **more: by_command(tmp_path, tmp_path / "a.csv", no_report=True, **own, **kept[0], **more),
        lambda **more: noted(lambda: distsms.train(tmp_path / "a.csv", **own, **kept[1], **more))[0],
        lambda **more: noted(lambda: distsms.train(frame, **own, **kept[2], **more))[0],
    ]
    for go in faces:
        first = go(max_evaluations=2)
        assert first.info["exit_code"] == EXIT_LIMIT and "auto_lambda" in first.info
        last = go(resume=True)
        assert (last.info["status"], last.info["starts"]) == ("proved", 2)
        assert last.info["lambda"] == first.info["lambda"] and "test" in last.info
    with pytest.raises(InputError, match=r"another problem \(data: there"):
        distsms.train(frame.assign(amount=frame.amount + 1e-3), **own, **kept[2], resume=True)
    with pytest.raises(InputError, match="made with another drop"):
        distsms.train(tmp_path / "a.csv", **own, **kept[1], drop="age", resume=True)
    with pytest.raises(InputError, match="s1/train: was made from other files than these"):
        distsms.train(frame, **own, **kept[1], resume=True)
    frame.iloc[::-1].to_csv(tmp_path / "a.csv", index=False)
    os.utime(tmp_path / "a.csv", (0, 0))
    with pytest.raises(InputError, match="files have changed"):
        distsms.train(tmp_path / "a.csv", **own, **kept[1], resume=True)


def test_memory_reaches_the_choice_of_lambda(tmp_path, monkeypatch):
    X, y, _, _ = rows()
    write_data(tmp_path / "d", X, y)
    budgets, choose = [], auto_lambda.choose_lambda

    def seen(*args, budget, **more):
        budgets.append(budget)
        return choose(*args, budget=budget, **more)

    monkeypatch.setattr(auto_lambda, "choose_lambda", seen)
    own = {"lam": "auto", "solver": "lbfgs"}
    same(in_python(tmp_path / "d", memory=2.0**30, **own), by_command(tmp_path, tmp_path / "d", memory="1GiB", **own))
    assert [budget.bytes for budget in budgets] == [2**29, 2**29]


def test_what_is_odd_about_the_labels(tmp_path, capsys):
    """It is said by every face, unless the user has named the positive label."""
    frame = pd.DataFrame({"y": ["yes"] * 90 + ["no"] * 10, "x": np.arange(100) * 0.7})
    frame.to_csv(tmp_path / "a.csv", index=False)
    own = {"label": "y", "lam": 1e-2, "solver": "lbfgs"}
    odd = "90.0 % of the rows count as positive (label yes); if you look for the rare class, name its label: "
    for more, said in (({}, True), ({"positive": "yes"}, False)):
        _, warned = noted(lambda more=more: distsms.train(tmp_path / "a.csv", **own, **more))
        assert (f"{odd}positive='no'" in warned) == said
        capsys.readouterr()
        by_command(tmp_path, tmp_path / "a.csv", no_report=True, split=(0.5, 0.5), **own, **more)
        assert ("of the rows count as positive" in capsys.readouterr().err) == said


def test_names_in_messages_are_left_as_they_are(tmp_path):
    """Each face names options as its users write them, and changes no name of a file or a column."""
    path = tmp_path / "data--old.csv"
    pd.DataFrame({"y": [1, 0] * 10, "a--x": range(20)}).to_csv(path, index=False)
    own = {"label": "y", "group": "a--x", "drop": ["a--x"], "lam": 1.0}
    with pytest.raises(InputError, match=r"^--drop a--x: the column of .* is not a feature anyway"):
        by_command(tmp_path, path, **own)
    with pytest.raises(InputError, match=r"^drop=\['a--x'\]: the column of .* is not a feature anyway"):
        distsms.train(path, **own)
    with pytest.raises(InputError, match=r"data--old.csv: has no column 'b--y'; it has 'y', 'a--x'"):
        distsms.train(path, label="b--y")


@pytest.mark.parametrize("given, expected", [(None, 1), ("2", 2)])
def test_blas_has_as_many_threads_as_the_kernels(tmp_path, monkeypatch, given, expected):
    """While anything trains from Python, whatever it had before; and then it has those again."""

    def threads():
        return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}

    X, y, _, _ = rows(100)
    write_data(tmp_path / "d", X, y)
    settings = {"solver": "lbfgs", "lambdas": [1e-1, 1e-2], "folds": 2}
    calls = [
        lambda: distsms.train((X, y), solver="lbfgs", check=False),
        lambda: distsms.path(tmp_path / "d", **settings),
        lambda: distsms.baseline(tmp_path / "d", tmp_path / "out", methods=["distsms"], **settings),
        lambda: SMSClassifier(solver="lbfgs").fit(X, y),
    ]
    seen, solve = [], TrainingRun._solve
    monkeypatch.setattr(TrainingRun, "_solve", lambda run: (seen.append(threads()), solve(run)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    for call in calls:
        seen.clear()
        with threadpool_limits(3, "blas"):
            call()
            assert threads() == {3}
        assert seen
        assert all(each == {expected} for each in seen)
