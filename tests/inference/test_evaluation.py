"""Evaluations of several models have the same measures, differences and thresholds on any number of ranks."""

from __future__ import annotations

import json

import pytest

import distsms
from distsms.inference.evaluation import EvaluationOptions, evaluate
from distsms.measures import HEAD, Condition
from distsms.parallel.communicator import Communicator
from tests.support.files import on_root, write_csv
from tests.support.program import write_svmlight

AT = tuple(Condition.parse(text) for text in ("precision>=0.5", "recall>=0.8", "fpr<=5%", "top=20", "top=10%"))


@pytest.fixture
def files(shared_dir, comm):
    """Return two models and a file of rows."""
    rows, models = shared_dir / "rows.svm", [str(shared_dir / f"{lam}.h5") for lam in (1.0, 1e-3)]

    def make():
        write_svmlight(rows, n=400, seed=3)
        for path, lam in zip(models, (1.0, 1e-3), strict=True):
            distsms.save_model(path, distsms.train(rows, lam=lam, solver="lbfgs", measure="rocarea"))

    on_root(comm, make)
    return models, str(rows)


def as_json(paths, on, comm):
    _, evaluations, pairs = evaluate(paths, on, EvaluationOptions(replicates=100, at=AT), comm)
    found = [evaluation.as_json(on, 0.95) for evaluation in evaluations], [pair.as_json() for pair in pairs]
    return json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.9g}"))


def test_models_with_the_same_columns_give_a_warning_once(comm, shared_dir, capsys):
    def make():
        rows = [[str(k % 7), "abc"[k % 3], str(int(k % 7 > 3) ^ (k % 11 == 0))] for k in range(60)]
        write_csv(shared_dir / "rows.csv", ["x", "w", "y"], rows)
        write_csv(shared_dir / "new.csv", ["x", "w", "y"], [["1", "z", "0"], ["2", "a", "1"], ["", "z", "1"]])
        for number, normalize in enumerate(["standard", "l2", "standard"]):
            trained = distsms.train(shared_dir / "rows.csv", label="y", lam=0.1, normalize=normalize, solver="lbfgs")
            distsms.save_model(shared_dir / f"{number}.h5", trained)

    on_root(comm, make)
    capsys.readouterr()
    evaluate([str(shared_dir / f"{k}.h5") for k in range(3)], str(shared_dir / "new.csv"), EvaluationOptions(), comm)
    told = capsys.readouterr().err
    assert [told.count("categories that"), told.count("missing values")] == [comm.is_root] * 2


def test_intervals_do_not_depend_on_what_else_is_asked_for(files, comm):
    (model, other), on = files
    for k, asked in ((None, ()), (None, AT[3:]), (20, ())):
        (one,), (same, _) = (
            evaluate(models, on, EvaluationOptions(replicates=100, k=each, at=at), comm)[1]
            for models, each, at in (([model], k, asked), ([model, other], 10, AT))
        )
        assert one.intervals == {name: same.intervals[name] for name in one.intervals}


def test_the_head_of_several_models(files, comm):
    models, (pair,) = as_json(*files, comm)
    assert (models, [pair]) == tuple(as_json(*files, Communicator()))
    names = [*HEAD, "precision@recall=0.8", "recall@precision=0.5", "tpr@fpr=0.05", "precision@20", "precision@10%"]
    names += ["average_precision", "bedroc", "lift@20", "recall@10%"]
    for name in names:
        first, other = (model["intervals"][name] for model in models)
        assert pair[name]["value"] == pytest.approx(first["value"] - other["value"], abs=1e-7), name
        assert "why" in first or first["low"] <= first["value"] <= first["high"]
    for model in models:
        assert set(model["at"]) == {str(condition) for condition in AT}
        for point in model["at"].values():
            alone = distsms.evaluate(model["model"], model["data"], threshold=point["threshold"] * (1 - 1e-8))
            assert [alone[name] for name in ("tp", "fp", "fn", "tn")] == [
                point[name] for name in ("tp", "fp", "fn", "tn")
            ]
        assert model["at"]["precision>=0.5"]["precision"] >= 0.5 and model["at"]["recall>=0.8"]["recall"] >= 0.8
        assert model["at"]["fpr<=0.05"]["fpr"] <= 0.05
        assert model["at"]["top=20"]["tp"] + model["at"]["top=20"]["fp"] <= 20
