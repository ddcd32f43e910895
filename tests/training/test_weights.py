"""Trainings, paths and evaluations of rows with weights are those of repeated rows, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import distsms
from distsms.base.errors import InputError
from distsms.shards import from_arrays
from distsms.shards.dataset import load, read_manifest
from distsms.shards.from_arrays import write_data
from distsms.training.solver_choice import settings_for
from distsms.workflow import baseline_fits, competitors, method_results, path
from distsms.workflow.folds import make_folds
from tests.support.methods import fit_of, fits_alone  # noqa: F401 - a fixture
from tests.support.problems import data, share
from tests.support.simulated_program import run, run_json

ALONE = competitors.ALONE


def _rows(n=240, seed=0):
    X, y = data(n=n)
    return X.toarray(), y, np.random.default_rng(seed).integers(0, 4, n).astype(float)


def _repeated(weights, *arrays):
    return [np.repeat(array, weights.astype(int), axis=0) for array in arrays]


@pytest.mark.parametrize(
    "measure, ordering",
    [
        *((measure, ordering) for measure in ("rocarea", "prbep") for ordering in ("gather", "exchange")),
        ("error-rate", None),
        ("logistic-balanced", None),
    ],
)
def test_a_training_with_whole_weights_is_one_of_repeated_rows(comm, measure, ordering):
    X, y, weights = _rows()
    own = share(comm, len(y))
    how = {"measure": measure, "lam": 1e-2, "solver": "lbfgs", "max_evaluations": 4, "check": False}
    how |= {"ordering": ordering} if ordering else {}
    model = distsms.train((X[own], y[own]), comm.mpi_comm, weight=weights[own], **how)
    more = _repeated(weights, X, y)
    there = share(comm, len(more[1]))
    other = distsms.train((more[0][there], more[1][there]), comm.mpi_comm, **how)
    np.testing.assert_allclose(model.w, other.w, rtol=1e-6, atol=1e-9)
    assert model.info["J"] == pytest.approx(other.info["J"], rel=1e-9)
    assert model.threshold == pytest.approx(other.threshold, rel=1e-6, abs=1e-9)
    assert model.info["training"] == pytest.approx(other.info["training"], rel=1e-9)
    about = model.info["data"]["weights"]
    assert about["positive"] + about["negative"] == weights.sum()
    assert about["effective_positive"] == pytest.approx(weights[y > 0].sum() ** 2 / (weights[y > 0] ** 2).sum())
    found = distsms.evaluate(model, (X[own], y[own]), comm.mpi_comm, weight=weights[own])
    wanted = distsms.evaluate(model, (more[0][there], more[1][there]), comm.mpi_comm)
    assert found["n"] == np.count_nonzero(weights) and wanted["n"] == weights.sum()
    for name in ("rocarea", "prbep", "average_precision", "tp", "fp", "fn", "tn", "f1", "error_rate"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-12), name


def test_weights_of_data_sets_and_of_memory_are_the_same(comm, shared_dir):
    X, y, _ = _rows()
    weights = np.random.default_rng(1).lognormal(0, 2, len(y))
    if comm.is_root:
        write_data(shared_dir / "d", X, y, 3, weights)
    comm.barrier()
    own = share(comm, len(y))
    how = {"lam": 1e-2, "solver": "lbfgs", "epsilon": 1e-6}
    one = distsms.train((X[own], y[own]), comm.mpi_comm, weight=weights[own], **how)
    other = distsms.train(shared_dir / "d", comm.mpi_comm, **how)
    assert abs(one.info["J"] - other.info["J"]) <= max(one.info["gap"], other.info["gap"])
    np.testing.assert_allclose(one.w, other.w, atol=2e-2)
    first, second = (
        distsms.evaluate(one, *given)
        for given in (((X, y), None), (shared_dir / "d", None))  # without the weights, and with those of the data set
    )
    assert first["rocarea"] != second["rocarea"] and "weights" not in first
    assert second["weights"]["positive"] == pytest.approx(weights[y > 0].sum())


def test_folds_are_of_rows_and_their_measures_of_weights(comm, shared_dir):
    """A fold never cuts a row, and models of folds are those that other sizes of the same weights give."""
    X, y, weights = _rows()
    if comm.is_root:
        for name, factor in (("one", 1.0), ("seven", 7.0)):
            write_data(shared_dir / name, X, y, 2, factor * (weights + 0.5))
    comm.barrier()
    found = []
    for name in ("one", "seven"):
        block = load(read_manifest(shared_dir / name), comm)
        settings = settings_for("rocarea", "lbfgs", lam=1e-2, max_evaluations=5)
        problem = path.Problem("rocarea", (1e-2,), 3, 0, settings, select="average-precision")
        run = path.run(path.PathRows(block, comm), problem, lambda point, result, scores: None)
        found.append({point.fold: point.held_out for point in run.points if point.fold})
    for fold, held_out in found[0].items():
        for name in ("rocarea", "prbep", "average-precision"):
            assert held_out[name] == pytest.approx(found[1][fold][name], rel=1e-9)
        assert held_out["counts"] == pytest.approx(found[1][fold]["counts"])
        assert sum(held_out["counts"]) < len(y) / 3  # effective numbers of rows


def test_weights_are_refused_where_they_say_nothing(comm):
    X, y, weights = _rows()
    own = share(comm, len(y))
    for wrong, told in ((weights[own][:-1], "give one for each row"), (weights[own] - 1, "expected a weight")):
        with pytest.raises(InputError, match=told):
            distsms.train((X[own], y[own]), comm.mpi_comm, weight=wrong)
    with pytest.raises(InputError, match="counts rows"):
        distsms.train((X[own], y[own]), comm.mpi_comm, measure="f1", weight=weights[own])
    with pytest.raises(InputError, match="names of columns"):
        distsms.train((X[own], y[own]), comm.mpi_comm, weight="amount")
    with pytest.raises(InputError, match="class"):
        distsms.train((X[own], y[own]), comm.mpi_comm, weight=(y[own] > 0).astype(float))
    model = distsms.train((X[own], y[own]), comm.mpi_comm, lam=1e-2, solver="lbfgs")
    with pytest.raises(InputError, match="precision@5 counts rows"):
        distsms.evaluate(model, (X[own], y[own]), comm.mpi_comm, k=5, weight=weights[own])


def test_the_fingerprint_of_rows_knows_their_weights(comm):
    X, y, weights = _rows()
    own = share(comm, len(y))
    first = sum(comm.allgather(len(y[own]))[: comm.rank])
    prints = {
        from_arrays.fingerprint(X[own], y[own], first, comm, given)
        for given in (None, weights[own], weights[own] + 1, weights[own] * (np.arange(len(y))[own] > 3))
    }
    assert len(prints) == 4


@pytest.mark.serial
@pytest.mark.parametrize("method", ["distsms", "logistic", "logistic-balanced", "svm", "svm-balanced"])
def test_methods_of_a_baseline_get_the_weights(method):
    """A whole weight is a repeated row, and a common factor changes nothing."""
    pytest.importorskip("sklearn")
    X, y, weights = _rows()
    weights += 1
    settings = settings_for("rocarea", "lbfgs", lam=1.0, epsilon=1e-9)
    more = _repeated(weights, X, y)
    tasks = [
        competitors.Task(X, y, "rocarea", settings, weights=weights),
        competitors.Task(X, y, "rocarea", settings, weights=1e4 * weights),
        competitors.Task(*more, "rocarea", settings),
    ]
    scores = [fit_of(method)(task, 1e-1).score(X) for task in tasks]
    for other in scores[:2]:
        np.testing.assert_allclose(other, scores[2], rtol=2e-3, atol=2e-3)
    unweighted = fit_of(method)(tasks[0]._replace(weights=None), 1e-1).score(X)
    assert np.abs(unweighted - scores[2]).max() > 1e-2


@pytest.mark.serial
def test_trees_get_the_weights():
    pytest.importorskip("xgboost")
    X, y, weights = _rows()
    held_out = np.arange(len(y)) % 5 == 0
    grow = competitors.METHODS["trees"]
    for measure in ("rocarea", "prbep"):
        tasks = [
            competitors.Task(X, y, measure, settings_for("rocarea", "lbfgs", lam=1.0), held_out, 5, given)
            for given in (weights + 0.1, 100 * (weights + 0.1), None)
        ]
        one, factor, without = (grow.fit(task, 0.0).score(X) for task in tasks)
        np.testing.assert_allclose(one, factor, atol=1e-4)
        assert np.abs(one - without).max() > 1e-2
        assert grow.search(tasks[0], 0.0).value == pytest.approx(grow.search(tasks[1], 0.0).value, abs=1e-3)


@pytest.mark.serial
@pytest.mark.usefixtures("fits_alone")
def test_a_baseline_measures_with_the_weights(tmp_path):
    X, y, weights = _rows()
    weights += 0.5
    folds = make_folds("rows", np.arange(len(y)), y, np.ones(len(y), bool), 3, 0, ALONE)
    problem = path.Problem("rocarea", [1e-2], 3, 0, settings_for("rocarea", "lbfgs", lam=1.0, epsilon=1e-3))
    results = []
    for given in (weights, 11 * weights, None):
        rows = baseline_fits.FoldedRows(X, y, folds, weights=given)
        store = baseline_fits.BaselineStore(tmp_path / str(len(results)))
        store.path.mkdir()
        store.open({})
        baseline_fits.fit_alone(rows, baseline_fits.first_round(["distsms"], [1e-2], 3, 0), problem, store.keep)
        (found,) = method_results.Evaluator(store, store.fits(), rows).methods("rocarea")
        results.append(found.intervals)
    for name in ("rocarea", "prbep"):
        one, factor, without = (interval[name] for interval in results)
        assert one.value == pytest.approx(factor.value, abs=1e-6)
        assert one.high - one.low == pytest.approx(factor.high - factor.low, rel=1e-3)
        assert one.value != without.value


@pytest.mark.serial
def test_a_dataframe_names_its_column_of_weights():
    X, y, weights = _rows()
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).assign(y=(y > 0).astype(int), amount=weights)
    how = {"label": "y", "lam": 1e-2, "solver": "lbfgs", "max_evaluations": 4}
    model = distsms.train(frame, weight="amount", **how)
    other = distsms.train(frame.loc[np.repeat(frame.index, weights.astype(int))].drop(columns="amount"), **how)
    assert "amount" not in (model.feature_names or ())
    np.testing.assert_allclose(model.w, other.w, rtol=1e-6, atol=1e-9)
    found = distsms.evaluate(model, frame, weight="amount")
    assert found["rocarea"] == pytest.approx(model.info["training"]["rocarea"])
    with pytest.raises(InputError, match="names of columns"):
        distsms.train(frame, label="y", weight=weights)


@pytest.mark.serial
def test_the_program_weighs_rows(tmp_path):
    """From a table to a report, on two ranks; evaluations of the file and of its data set are the same."""
    X, y, weights = _rows()
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).assign(y=(y > 0).astype(int))
    frame.assign(amount=weights / 2).to_csv(tmp_path / "rows.csv", index=False)
    made = run(1, "shard", tmp_path / "rows.csv", tmp_path / "d", "--label", "y", "--weight", "amount")
    assert f"sum {weights.sum() / 2:.9g}" in made and "effective sample size" in made
    about = run_json(1, "info", tmp_path / "d")["weight"]
    assert about["positive"] + about["negative"] == weights.sum() / 2
    model = tmp_path / "m.h5"
    run(2, "train", tmp_path / "d", "--lambda", "1e-2", "--solver", "lbfgs", "--output", model, "--quiet")
    of_set, of_file = (
        run_json(1, "evaluate", model, *given)
        for given in ((tmp_path / "d",), (tmp_path / "rows.csv", "--weight", "amount"))
    )
    assert of_set["weights"] == pytest.approx(of_file["weights"])
    assert of_set["rocarea"] == pytest.approx(of_file["rocarea"])
    shown = run(1, "evaluate", model, tmp_path / "d")
    assert "effective sample size" in shown and "weights" in shown
    assert "counts rows" in run(1, "train", tmp_path / "d", "--measure", "f1", "--output", model, code=1)
