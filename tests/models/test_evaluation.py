"""Evaluations of several models have the same measures, differences and thresholds on any number of ranks."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import sparse

import distsms
from distsms import cli
from distsms.base.communicator import Communicator
from distsms.base.errors import ModelWarning
from distsms.base.measures import HEAD, Condition
from distsms.models.evaluation import EvaluationOptions
from distsms.models.model import save
from distsms.workflow.evaluate import evaluate
from distsms.workflow.requests import EvaluateRequest
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
    evaluated = evaluate(EvaluateRequest(paths, on, EvaluationOptions(replicates=100, at=AT)), comm).to_dict()
    found = evaluated["models"], evaluated["pairs"]
    return json.loads(json.dumps(found), parse_float=lambda text: float(f"{float(text):.9g}"))


def test_models_with_the_same_columns_give_a_warning_once(comm, shared_dir):
    def make():
        rows = [[str(k % 7), "abc"[k % 3], str(int(k % 7 > 3) ^ (k % 11 == 0))] for k in range(60)]
        write_csv(shared_dir / "rows.csv", ["x", "w", "y"], rows)
        write_csv(shared_dir / "new.csv", ["x", "w", "y"], [["1", "z", "0"], ["2", "a", "1"], ["", "z", "1"]])
        for number, normalize in enumerate(["standard", "l2", "standard"]):
            trained = distsms.train(shared_dir / "rows.csv", label="y", lam=0.1, normalize=normalize, solver="lbfgs")
            distsms.save_model(shared_dir / f"{number}.h5", trained)

    on_root(comm, make)
    models = [str(shared_dir / f"{k}.h5") for k in range(3)]
    evaluated = evaluate(EvaluateRequest(models, str(shared_dir / "new.csv"), EvaluationOptions()), comm)
    assert ["categories that" in note for note in evaluated.notes] == [True, False]
    assert ["missing values" in note for note in evaluated.notes] == [False, True]


def test_intervals_do_not_depend_on_what_else_is_asked_for(files, comm):
    (model, other), on = files
    for k, asked in ((None, ()), (None, AT[3:]), (20, ())):
        (one,), (same, _) = (
            evaluate(EvaluateRequest(models, on, EvaluationOptions(replicates=100, k=each, at=at)), comm).models
            for models, each, at in (([model], k, asked), ([model, other], 10, AT))
        )
        assert one.intervals == {name: same.intervals[name] for name in one.intervals}


@pytest.mark.parametrize("normalize", ["standard", "l2"])
def test_training_rows_are_known_in_every_format(comm, shared_dir, capsys, normalize):
    """Wholly or partly, in another order of rows and columns, by command and from Python."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(1e5, 9, 300), "w": rng.choice(list("abc"), 300), "z": rng.normal(size=300)})
    frame["y"] = (frame.x + 9 * frame.z + rng.normal(0, 9, 300) > 1e5 + 9).astype(int)
    new = frame.assign(x=rng.normal(1e5, 9, 300))
    paths = {name: shared_dir / name for name in ("rows.csv", "mixed.csv", "new.csv", "set", "model.h5", "other.h5")}
    mixed = pd.concat([frame[::-3], new[:100]])[["y", "z", "w", "x"]]

    def make():
        for name, rows in (("rows.csv", frame), ("mixed.csv", mixed), ("new.csv", new)):
            rows.to_csv(paths[name], index=False)
        how = {"label": "y", "lam": 0.1, "normalize": normalize, "solver": "lbfgs"}
        distsms.save_model(paths["model.h5"], distsms.train(paths["rows.csv"], shards=paths["set"], **how))
        distsms.save_model(paths["other.h5"], distsms.train(paths["new.csv"], **how))

    on_root(comm, make)
    trained = distsms.load_model(paths["model.h5"])
    for name, share in (("rows.csv", 1.0), ("set", 1.0), ("mixed.csv", 0.5), ("new.csv", 0.0)):
        args = cli.parse(
            ["evaluate", str(paths["model.h5"]), str(shared_dir / name), "--at", "top=20", "--bootstrap", "0"]
        )
        args.run(args, comm)
        said = " ".join(capsys.readouterr().out.split())
        for text, there in (("training rows of the model, so", share), ("on new rows", not share)):
            assert (text in said) == (bool(there) and comm.is_root)
        with pytest.warns(ModelWarning, match="of these rows were") if share and comm.is_root else np.errstate():
            found = distsms.evaluate(trained, shared_dir / name, comm.mpi_comm)
        assert found["training_rows"] == pytest.approx(share, abs=1e-9)
        assert ("new rows" in found["intervals_at_threshold"]["recall"]["of"]) == (not share)
    half = slice(comm.rank, None, comm.size)  # a table in memory, dealt to the ranks
    with pytest.warns(ModelWarning, match="About 50 %") if comm.is_root else np.errstate():
        assert distsms.evaluate(trained, mixed[half], comm.mpi_comm)["training_rows"] == 0.5
    both = [str(paths["model.h5"]), str(paths["other.h5"])]
    evaluated = evaluate(EvaluateRequest(both, str(paths["new.csv"]), EvaluationOptions(replicates=10)), comm)
    (pair,) = evaluated.pairs
    assert [each.measures["training_rows"] for each in evaluated.models] == [0, 1]
    verdict = pair.as_json()["rocarea"]["verdict"]
    assert verdict == f"no verdict: all of these rows were training rows of {paths['other.h5']}"


@pytest.mark.serial
def test_arrays_and_text_are_known_too(tmp_path):
    X, y = write_svmlight(tmp_path / "rows.svm", n=300)
    trained = distsms.train((X, y), lam=0.1, solver="lbfgs")
    with pytest.warns(ModelWarning, match="All of these rows"):
        assert distsms.evaluate(trained, tmp_path / "rows.svm", zero_based=False)["training_rows"] == 1
    with pytest.warns(ModelWarning, match="All of these rows"):
        assert distsms.evaluate(trained, (sparse.csr_matrix(X[::-1]), y[::-1]))["training_rows"] == 1
    assert distsms.evaluate(trained, write_svmlight(tmp_path / "new.svm", n=300, seed=1))["training_rows"] == 0
    del trained.info["row_sample"]  # as of an earlier version
    assert distsms.evaluate(trained, (X, y))["training_rows"] == 0
    trained.info["row_sample"] = {"unit": 2.0**-31, "share": 0.2, "repeated": np.nan, "keys": ""}  # of another one
    save(tmp_path / "m.h5", trained)
    assert distsms.evaluate(tmp_path / "m.h5", (X, y))["training_rows"] == 0


def test_the_head_of_several_models(files, comm):
    models, (pair,) = as_json(*files, comm)
    if not comm.is_root:
        return
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
