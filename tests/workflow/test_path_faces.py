"""One request, sent through `distsms path` and `distsms.path`, gives one result, one model and the same warnings."""

from __future__ import annotations

import doctest
import json
import weakref

import numpy as np
import pytest

import distsms
from distsms.base.errors import EXIT_REQUEUE, EXIT_VACUOUS, InputError
from distsms.base.wording import in_python
from distsms.python import path as python_path
from distsms.shards.from_arrays import write_data
from distsms.workflow import path_run
from distsms.workflow.fold_features import FoldFeatures
from distsms.workflow.path_run import PathObserver
from tests.workflow.faces import lasting, noted, run, words_of
from tests.workflow.test_faces import same

GRID = {"lambdas": [1e-1, 1e-2], "folds": 3, "solver": "lbfgs"}


@pytest.fixture(autouse=True)
def time_to_compare(monkeypatch):
    """The comparison with quick ROCArea models has all the time that it takes, also where kernels are compiled."""
    monkeypatch.setattr(path_run, "LEAST_SECONDS", 600.0)


def write_rows(folder, n=300, noise=False, **more):
    """Write a data set; without noise, the product of two columns says the class, too."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 4))
    scores = rng.normal(size=n) if noise else X[:, 0] + X[:, 0] * X[:, 1] + 0.5 * rng.normal(size=n)
    columns = {"weights": rng.integers(1, 4, n).astype(float), "groups": np.arange(n) % 30}
    write_data(folder, X, np.where(scores > 0.8, 1, -1), **{name: columns[name] for name in more})


def by_command(data, output, **options):
    """Return the exit code of the command, what path.json (or the like) says, and the model if there is one."""
    code = run("path", data, "--output", output, "--quiet", *words_of(options, check="no-check"))
    (summary,) = output.glob("*.json")
    model = distsms.load_model(output / "model.h5") if (output / "model.h5").exists() else None
    return code, json.loads(summary.read_text()), model


def as_file(fields):
    """Return fields as a file has them, without what two runs of one request need not have in common."""
    return lasting(json.loads(json.dumps(fields)))


def check_faces(tmp_path, temporary=False, **options):
    """Send a request through both faces, into folders and maybe into a temporary one, and return the result."""
    data = tmp_path / "data"
    code, record, model = by_command(data, tmp_path / "command", **options)
    kept = tmp_path / "python"
    result, warned = noted(lambda: distsms.path(data, output=kept, **options))
    faces = [result, *([noted(lambda: distsms.path(data, **options))[0]] if temporary else [])]
    assert {face.exit_code for face in faces} == {code}
    assert warned == [in_python(text) for text in result.warnings]
    assert [face.folder for face in faces] == [kept, None][: len(faces)]
    same(distsms.load_model(kept / "model.h5"), model)
    for face in faces:
        fields = as_file(face.to_dict())
        assert {name: value for name, value in fields.items() if name != "paths"} == as_file(
            {name: record[name] for name in fields if name != "paths"}
        )
        same(face.model, model, but=["path"] if face.paths else [])
        for name, path in face.paths.items():
            (folder,) = (tmp_path / "command" / "paths").glob(name)
            assert as_file(path.to_dict()) == as_file(
                {key: json.loads((folder / "path.json").read_text())[key] for key in path.to_dict()}
            )
    return result


class OneFoldAtATime(FoldFeatures):
    """Features of folds, of which no more than one fold is in memory."""

    _held = None

    def rows(self, fold):
        assert self._held is None or self._held() is None
        rows = super().rows(fold)
        self._held = weakref.ref(rows.block.features)
        return rows


@pytest.mark.serial
@pytest.mark.parametrize(
    "case",
    [
        {},
        {"measure": "prbep", "rule": "one-se"},  # with quick ROCArea models
        {"measure": "prbep", "check": False, "select": "precision@20"},
        {"measure": "logistic", "bias": 2.0, "at": "recall>=0.7", "calibrate": "sigmoid"},
        {"l1": [1e-2], "folds_by": "time"},
        {"memory": 2.0**30, "step": "spread", "seed": 7},
        {"lambdas": [1e9, 1e-1]},  # where one cannot be used
        {"features": ["bins=4"], "at": "precision>=0.999"},
    ],
    ids=str,
)
def test_a_path(case, tmp_path, monkeypatch):
    monkeypatch.setattr(path_run, "FoldFeatures", OneFoldAtATime)
    write_rows(tmp_path / "data")
    result = check_faces(tmp_path, temporary=not case, **GRID | case)
    lambdas = case.get("lambdas", GRID["lambdas"])
    assert {(point.lam, point.fold) for point in result.points} == {(lam, f) for lam in lambdas for f in range(4)}
    assert result.faults == ({1e9: "no better than chance"} if 1e9 in lambdas else {})  # where w = 0 is proved
    assert result.choice.chosen.lam in set(lambdas) - {1e9}
    assert (result.quick_rocarea is not None) == ("measure" in case and case.get("check", True))
    if "at" in case:
        assert result.model.info["decision"]["folds"] == 3
    table = result.to_frame()
    assert len(table) == 8 and list(table.lam) == [point.lam for point in result.points]
    assert table.held_out_rocarea.notna().sum() == 6 and table.training_rocarea.notna().all()


@pytest.mark.serial
@pytest.mark.parametrize("case", [{}, {"measure": "gauc@pairs"}, {"folds_by": "rows"}], ids=str)
def test_weights_and_groups(case, tmp_path):
    """Groups make the folds unless something else is said; weights count in every measure."""
    write_rows(tmp_path / "data", weights=True, groups=True)
    words = {"within_groups": "pairs"} if "measure" in case else case
    code, record, model = by_command(tmp_path / "data", tmp_path / "command", **GRID | words)
    result, within = (
        noted(lambda options=options: distsms.path(tmp_path / "data", **GRID | options))[0] for options in (case, words)
    )
    assert result.problem["folds_by"] == case.get("folds_by", "groups") and code == 0
    for face in (result, within):
        same(face.model, model)
        assert as_file(face.to_dict()) == as_file({name: record[name] for name in face.to_dict()})


@pytest.mark.serial
@pytest.mark.parametrize(
    "case",
    [
        {"measure": "pauc@0.3,0.6", "select": "tpr@fpr=0.3"},
        {"l1": [1e-1, 1e-2, 0.0], "rule": "one-se"},
        {"features": ["raw", "bins=4", "bins=4"]},
    ],
    ids=["betas", "l1", "features"],
)
def test_several_paths(case, tmp_path):
    write_rows(tmp_path / "data")
    result = check_faces(tmp_path, temporary="l1" in case, **GRID | case)
    assert len(result.paths) == (2 if "features" in case else 3) and result.comparison.best in result.paths
    assert {path.rule for path in result.paths.values()} == {case.get("rule", "best")}
    assert result.choice == result.comparison.choices[result.comparison.best]
    table = result.to_frame()
    assert list(table.path.unique()) == list(result.paths) and len(table) == 8 * len(result.paths)


@pytest.mark.serial
def test_a_path_goes_on(tmp_path):
    """From whichever face it was begun; finished points are kept, another problem is refused."""
    write_rows(tmp_path / "data")
    folder, points = tmp_path / "out", []
    first = distsms.path(tmp_path / "data", output=folder, watch=points.append, **GRID | {"lambdas": 1e-1})
    assert sorted((point.lam, point.fold) for point in points) == [(1e-1, fold) for fold in range(4)]
    _, record, _ = by_command(tmp_path / "data", folder, **GRID)
    points.clear()
    again = distsms.path(tmp_path / "data", output=folder, watch=points.append, **GRID)
    assert not points and again.evaluations == 0 and first.evaluations > 0
    assert as_file(again.to_dict()) == as_file({name: record[name] for name in again.to_dict()})
    assert [point for point in again.points if point.lam == 1e-1] == first.points
    with pytest.raises(InputError, match=r"holds the path of another problem.*seed: there 0, now 1"):
        distsms.path(tmp_path / "data", output=folder, seed=1, **GRID)


@pytest.mark.serial
def test_a_path_that_is_stopped(tmp_path):
    write_rows(tmp_path / "data")
    for several in ({}, {"l1": [0.1, 0.0]}):
        folder = tmp_path / f"out{len(several)}"
        result = distsms.path(tmp_path / "data", output=folder, stop_wanted=lambda: True, **GRID, **several)
        assert result.stopped and result.exit_code == EXIT_REQUEUE and result.model is None and not result.points
        assert by_command(tmp_path / "data", folder, time_limit="0.0001s", **GRID, **several)[0] == EXIT_REQUEUE
        assert distsms.path(tmp_path / "data", output=folder, **GRID, **several).exit_code == 0


@pytest.mark.serial
def test_a_model_that_ranks_no_better_than_chance(tmp_path, capsys):
    write_rows(tmp_path / "data", noise=True)
    code, _, model = by_command(tmp_path / "data", tmp_path / "command", **GRID)
    printed = capsys.readouterr().err
    result, warned = noted(lambda: distsms.path(tmp_path / "data", **GRID))
    assert code == result.exit_code == EXIT_VACUOUS and result.chance
    assert model.info["warnings"] == result.model_warnings == result.model.info["warnings"]
    assert len(warned) == 1 and f"warning: {result.model_warnings[0]}" in printed


@pytest.mark.serial
def test_an_observer_is_told_in_order(tmp_path):
    write_rows(tmp_path / "data")
    calls = []

    class Listening(PathObserver):
        def __getattribute__(self, name):
            method = super().__getattribute__(name)
            return (lambda *args: (calls.append(name), method(*args))) if name[0] != "_" else method

    distsms.path(tmp_path / "data", watch=Listening(), at="recall>=0.5", **GRID | {"lambdas": [0.1]})
    steps = ["chose_solver", "began", "planned", "loaded", "training", *["kept"] * 4, "trained", "deciding", "ended"]
    assert calls == steps


@pytest.mark.serial
@pytest.mark.parametrize(
    "options, message",
    [
        ({"measure": "f1"}, "'f1' is not one of: rocarea, prbep"),
        ({"lambdas": 0.0}, "lambdas 0.0"),
        ({"lam": 0.1}, "give lambdas in place of lam"),
        ({"lambdas": "many"}, "needs a number, or several"),
        ({"l1": -1.0}, "l1 -1.0"),
        ({"folds": 1}, "folds 1: give at least 2"),
        ({"rule": "any"}, "rule: 'any' is none of best, one-se"),
        ({"folds_by": "day"}, "folds_by: 'day' is none of rows"),
        ({"select": "brier"}, "cannot choose"),
        ({"features": "tables"}, "'tables' is not one of the features"),
        ({"at_once": 0}, "at_once is 0"),
        ({"at": "recall>=0.5", "folds": 0}, "at least 2 folds"),
        ({"epsilom": 1.0}, "there is no option 'epsilom'"),
        ({"measure": "pauc@0.1,0.2"}, "name it, such as select"),
        ({"l1": [1.0, 0.0], "features": ["raw", "bins"]}, "give several of one of them only"),
        ({"select": "gauc@pairs", "features": "bins"}, "data: its rows have no groups"),
        ({"l1": [1.0, 0.0], "folds": 0}, "several l1 are compared on held-out rows: give at least 2 folds"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_refused_in_words_of_python(options, message, tmp_path):
    write_rows(tmp_path / "data", n=40)
    with pytest.raises(InputError, match=message) as caught:
        distsms.path(tmp_path / "data", output=tmp_path / "out", **options)
    assert "--" not in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "case", [{}, {"measure": "prbep", "features": ["raw", "bins=3"]}, {"step": "spread", "memory": 2.0**30}], ids=str
)
def test_all_ranks_get_the_same(case, comm, shared_dir):
    """That of one process, up to rounding; small data are in each rank's memory, unless there is a limit."""
    if comm.is_root:
        write_rows(shared_dir / "data")
    comm.barrier()
    result, warned = noted(lambda: distsms.path(shared_dir / "data", comm, output=shared_dir / "out", **GRID | case))
    assert comm.allgather(as_file(result.to_dict())) == [as_file(result.to_dict())] * comm.size
    assert comm.allgather(result.model.w.tobytes()) == [result.model.w.tobytes()] * comm.size
    assert warned == ([in_python(text) for text in result.warnings] if comm.is_root else [])
    alone = distsms.path(shared_dir / "data", output=shared_dir / "alone", **GRID | case) if comm.is_root else result
    one, many = ({(point.lam, point.fold): point.result for point in path.points} for path in (alone, result))
    assert one.keys() == many.keys()
    for key in one:
        assert one[key]["lower_bound"] <= many[key]["J"] and many[key]["lower_bound"] <= one[key]["J"]


@pytest.mark.serial
def test_the_example():
    assert doctest.testmod(python_path).failed == 0


@pytest.mark.serial
def test_options_of_features_as_a_dict(tmp_path):
    write_rows(tmp_path / "data")
    (one, several), _ = noted(
        lambda: [distsms.path(tmp_path / "data", features=each, **GRID) for each in ({"bins": 4}, ["raw", {"bins": 4}])]
    )
    assert one.model.features.bins.sizes == (4,) * 4 and set(several.paths) == {"raw", "bins=4"}
