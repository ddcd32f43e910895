"""The library face: the program's own answers, from paths and from rows in memory, on any number of ranks."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import distsms
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.scored import Scored
from distsms.matrix import local as matrix_local
from distsms.metrics import ranking
from distsms.optim.settings import Settings
from distsms.parallel import mpi
from distsms.parallel.mpi import MPICommunicator
from distsms.python import api
from distsms.shards import dataset, from_arrays
from distsms.shards.from_arrays import write_data
from tests.support import program
from tests.support.problems import data, share

LAM, EPSILON = 1e-2, 1e-5


@pytest.mark.serial
def test_the_examples_of_the_module():
    assert doctest.testmod(api).failed == 0


def spoiled(X, value):
    """Return rows, dense, with this value in row 5, column 1."""
    X = X.toarray()
    X[5, 1] = value
    return X


def local(X, y, comm):
    rows = share(comm, len(y))
    return X[rows], y[rows]


@pytest.mark.parametrize("measure, solver", [("rocarea", "lmvm"), ("prbep", "lbfgs"), ("f1", "bmrm")])
def test_rows_in_memory_and_a_data_set_give_the_same_model(measure, solver, comm, shared_dir):
    X, y = data()
    if comm.is_root:
        write_data(shared_dir / "data", X, y, n_shards=3)
    comm.barrier()
    settings = {"measure": measure, "lam": LAM, "epsilon": EPSILON, "solver": solver}
    of_path = distsms.train(shared_dir / "data", comm, **settings)
    of_rows = distsms.train(local(X, y, comm), comm, **settings)
    for one in (of_path, of_rows):
        assert one.info["status"] == "proved" and one.info["ranks"] == comm.size
        assert comm.allgather(one.w.tobytes()) == [one.w.tobytes()] * comm.size
    # J is lam-strongly convex: both lie within sqrt(2 gap / lam) of the optimum
    assert np.linalg.norm(of_path.w - of_rows.w) <= 2 * np.sqrt(2 * EPSILON / LAM)
    assert of_path.info["data"]["n_pos"] == of_rows.info["data"]["n_pos"] == np.sum(y > 0)

    distsms.save_model(shared_dir / f"{comm.rank}.h5", of_path)
    again = distsms.load_model(shared_dir / f"{comm.rank}.h5")
    assert again.info == json.loads(json.dumps(of_path.info))
    whole = distsms.evaluate(again, (X, y))  # one process alone, all rows
    for judge in (again, shared_dir / "0.h5"):
        for rows in (local(X, y, comm), shared_dir / "data"):
            found = distsms.evaluate(judge, rows, comm)
            own, expected = found.pop("intervals_at_threshold"), whole["intervals_at_threshold"]
            assert found == pytest.approx({name: whole[name] for name in found}, abs=1e-14)
            assert all(own[rate]["low"] == pytest.approx(expected[rate]["low"]) for rate in expected)
    at = distsms.evaluate(again, local(X, y, comm), comm, at=["top=10%", "recall>=0.9"])["at"]
    for text, point in at.items():
        assert {name: distsms.evaluate(again, (X, y), threshold=point["threshold"])[name] for name in ("tp", "fp")} == {
            name: point[name] for name in ("tp", "fp")
        }, text
    assert at["recall>=0.9"]["recall"] >= 0.9 and at["top=10%"]["tp"] + at["top=10%"]["fp"] <= len(y) // 10
    # What the file says of its training rows was measured on these
    assert found["rocarea"] == of_path.info["training"]["rocarea"]

    scores = distsms.predict(again, local(X, y, comm)[0], comm)
    np.testing.assert_allclose(scores, local(X, y, comm)[0] @ again.w, rtol=1e-12, atol=1e-12)
    gathered = comm.gather_rows(distsms.predict(again, shared_dir / "data", comm))
    if comm.is_root:
        np.testing.assert_allclose(gathered, X @ again.w, rtol=1e-12, atol=1e-12)


def test_ranks_may_give_the_columns_of_tables_in_any_order(comm):
    X, y = data()
    X, y = local(X.toarray(), y, comm)
    names = [f"c{j}" for j in range(X.shape[1])]
    order = np.roll(np.arange(len(names)), comm.rank)
    one = distsms.train((X, y), comm, lam=LAM, solver="lbfgs", check=False)
    frame = pd.DataFrame(X, columns=names).iloc[:, order]
    other = distsms.train((frame, y), comm, lam=LAM, solver="lbfgs", check=False)
    assert other.feature_names == names and other.w.tolist() == one.w.tolist()
    assert distsms.predict(other, frame, comm).tolist() == distsms.predict(one, X, comm).tolist()
    if comm.size > 1:
        for rows, told in (
            (frame.add_prefix("x") if comm.rank else frame, "'xc1'"),
            (X if comm.rank else frame, "none"),
        ):
            with pytest.raises(InputError, match=told):
                distsms.train((rows, y), comm)


def test_dense_rows_a_bias_a_start_a_watcher_and_a_stop(comm):
    X, y = data()
    rows = local(X.toarray(), y, comm)
    seen = []
    first = distsms.train(
        rows, comm, measure="error-rate", lam=LAM, bias=2.0, solver="lbfgs", watch=lambda state, w: seen.append(state)
    )
    assert first.bias != 0 and first.threshold == 0 and len(first.w) == X.shape[1]
    assert len(seen) == (first.info["evaluations"] if comm.is_root else 0)
    again = {"measure": "error-rate", "lam": LAM, "bias": 2.0, "solver": "lbfgs", "start": first}
    warm = distsms.train(rows, comm, max_evaluations=1, epsilon=1e-9, **again)
    assert warm.info["J"] == pytest.approx(first.info["J"], rel=1e-12)
    stopped = distsms.train(rows, comm, epsilon=1e-9, stop_wanted=lambda: comm.rank == comm.size - 1, **again)
    assert (stopped.info["status"], stopped.info["evaluations"]) == ("stopped", 1)


def test_k_and_threshold(comm):
    X, y = data()
    rows = local(X, y, comm)
    model = distsms.train(rows, comm, lam=LAM, solver="lbfgs")
    found = distsms.evaluate(model, rows, comm, k=20, threshold=-np.inf)
    assert (found["tp"], found["fn"], found["recall"]) == (np.sum(y > 0), 0, 1.0)
    scores = X @ model.w
    assert found["precision@20"] == pytest.approx(ranking.top_k(Scored(scores, y, Communicator()), 20).precision)


def on_disk(comm, folder, n=300, p=12):
    X, y = data(n, p)
    with comm.fail_together():
        if comm.is_root:
            write_data(folder / "data", X, y, n_shards=3)
    return folder / "data", X, y


@pytest.mark.parametrize("source", ["data set", "rows"])
def test_a_run_that_was_stopped_goes_on(source, comm, shared_dir):
    """Its evaluations add up, its trace is continued, and a bundle's course is the same to the bit."""
    path, X, y = on_disk(comm, shared_dir)
    rows = path if source == "data set" else local(X, y, comm)
    settings = {"measure": "prbep", "lam": LAM, "epsilon": EPSILON, "solver": "bmrm"}
    whole = distsms.train(rows, comm, **settings)
    kept = {"checkpoint": shared_dir / "state", "trace": shared_dir / "trace.jsonl"}
    first = distsms.train(rows, comm, **settings, **kept, max_evaluations=7)
    assert (first.info["status"], first.info["evaluations"]) == ("limit", 7)
    with pytest.raises(InputError, match="holds a checkpoint"):
        distsms.train(rows, comm, **settings, **kept)
    again = distsms.train(rows, comm, **settings, **kept, resume=True, checkpoint_every=1e-9)
    assert (again.info["status"], again.info["starts"]) == ("proved", 2)
    np.testing.assert_array_equal(again.w, whole.w)
    assert again.info["evaluations"] == whole.info["evaluations"] > 7
    assert again.info["trace"] == str(shared_dir / "trace.jsonl")
    comm.barrier()
    lines = (shared_dir / "trace.jsonl").read_text().splitlines()
    assert [json.loads(line)["evaluation"] for line in lines] == list(range(1, whole.info["evaluations"] + 1))
    if source == "rows":  # other rows are another problem
        X.data[-1] += 1e-9
        with pytest.raises(InputError, match=r"another problem \(data: there"):
            distsms.train(local(X, y, comm), comm, **settings, **kept, resume=True)


def test_the_fingerprint_of_rows_does_not_depend_on_who_holds_them(comm):
    X, y = data()
    alone = from_arrays.fingerprint(X, y, 0, Communicator())
    assert from_arrays.fingerprint(*local(X, y, comm), share(comm, len(y)).start, comm) == alone
    assert from_arrays.fingerprint(X.toarray(), y, 0, Communicator()) == alone
    assert len({alone, *(from_arrays.fingerprint(X, labels, 0, Communicator()) for labels in (-y, y[::-1]))}) == 3
    assert from_arrays.fingerprint(X[::-1], y, 0, Communicator()) != alone
    # It is a sum over rows, whose numbers may need more than 32 bits.
    first = 2**31 - 7
    cuts = [from_arrays.fingerprint(X[k : k + 1], y[k : k + 1], first + k, Communicator()) for k in range(14)]
    of_all = from_arrays.fingerprint(X[:14], y[:14], first, Communicator())
    assert int(of_all, 16) == sum(int(each, 16) for each in cuts) % 2**64


@pytest.mark.parametrize("more", [{"solver": "agm"}, {"solver": "lbfgs", "l1": 1e-2}])
def test_a_limit_of_memory_streams(more, comm, shared_dir, monkeypatch):
    """Rows that do not fit are read on each pass, and the model is the same; too little is refused."""
    for module in (matrix_local, dataset):  # parts so small that there are many
        monkeypatch.setattr(module, "PART_ENTRIES", 5000)
    path, X, y = on_disk(comm, shared_dir, 20000, 60)
    settings = {"lam": LAM, "max_evaluations": 20, **more}
    whole = distsms.train(path, comm, **settings)
    with pytest.raises(InputError, match=r"is too little: .*MiB are needed") as caught:
        distsms.train(path, comm, **settings, memory=2**20)
    least = int(re.search(r"(\d+) MiB are needed", str(caught.value))[1]) * 2**20
    streamed = distsms.train(path, comm, **settings, memory=least)
    np.testing.assert_array_equal(streamed.w, whole.w)
    assert streamed.info["usage"]["bytes_read"] > 5 * whole.info["usage"]["bytes_read"]
    with pytest.raises(InputError, match="rows are in memory"):
        distsms.train(local(X, y, comm), comm, **settings, memory=least)


def test_what_needs_a_folder_is_refused_without(comm):
    X, y = data()
    for more in ({"resume": True}, {"checkpoint_every": 10.0}):
        with pytest.raises(InputError, match="need checkpoint, the folder"):
            distsms.train(local(X, y, comm), comm, **more)


@pytest.mark.e2e
@pytest.mark.serial
def test_models_of_the_library_and_of_the_program_say_the_same(tmp_path):
    path, _, _ = on_disk(Communicator(), tmp_path)
    program.run("train", path, "--lambda", LAM, "--output", tmp_path / "m.h5", "--solver", "lbfgs")
    ours, theirs = distsms.train(path, lam=LAM, solver="lbfgs").info, distsms.load_model(tmp_path / "m.h5").info
    assert set(ours) == set(theirs) - {"config"}  # which only a command line has
    assert set(ours["versions"]) >= {"distsms", "python", "numpy", "scipy", "numba", "h5py", "HDF5", "petsc4py"}
    differ = {"seconds", "ranks", "settings", "usage", "versions", "command", "written", "host", "trace"}
    assert {name: ours[name] for name in set(ours) - differ} == {name: theirs[name] for name in set(ours) - differ}
    assert theirs["command"].endswith("--solver lbfgs") and ours["host"] == theirs["host"]


@pytest.mark.parametrize(
    "spoil, told",
    [
        (lambda X, y: (X, y * 2), r"y: found the labels .*-2 \(.*expected \+1 and -1, 0 and 1.*y == POSITIVE"),
        (lambda X, y: (X, y[:-1]), r"y has shape \(19,\), but X has 20 rows"),
        (lambda X, y: (np.zeros(3), y), "1 dimensions"),
        (lambda X, y: (X[:, :3], y), "3 to 12 columns"),
        (lambda X, y: (spoiled(X, np.nan), y), r"X, row 5, column 1 \(counted from 0\): nan is not finite"),
        (lambda X, y: (sparse.csc_array(spoiled(X, -np.inf)), y), "X, row 5, column 1 .*-inf is not finite"),
        (lambda X, y: (pd.DataFrame(spoiled(X, np.inf)), y), "X, row 5, column 1 .*: inf is not finite"),
    ],
)
def test_what_is_wrong_on_one_rank_is_an_error_on_all(spoil, told, comm):
    X, y = data()
    rows = X[:20], y[:20]
    if comm.rank == comm.size - 1:
        rows = spoil(*rows)
    if "columns" in told and comm.size == 1:
        return
    with pytest.raises(InputError, match=told) as caught:
        distsms.train(rows, comm)
    assert caught.value.everywhere


def test_labels_in_memory_may_be_any_known_pair(comm, tmp_path):
    """The model remembers them, in its file, too; rows to measure may have these labels, or +1 and -1."""
    X, y = data()
    plain = distsms.train(local(X, y, comm), comm, lam=1.0, solver="lbfgs")
    expected = distsms.evaluate(plain, local(X, y, comm), comm)
    for labels in (0, 1), (False, True), ("no", "yes"), ("0", "1"), (0.0, 1.0), (2, 1), ("N", "Y"):
        named = np.array(labels)[(y > 0).astype(int)]
        ours = distsms.train(local(X, named, comm), comm, lam=1.0, solver="lbfgs")
        np.testing.assert_array_equal(ours.w, plain.w)
        if comm.rank == 0:
            distsms.save_model(tmp_path / "m.h5", ours)
            kept = distsms.load_model(tmp_path / "m.h5")
            shown = [str(np.array([label]).tolist()[0]).removesuffix(".0") for label in labels]
            assert [str(label) for label in kept.classes] == shown
        for judge, rows in ((ours, named), (ours, y), (plain, named)):
            assert distsms.evaluate(judge, local(X, rows, comm), comm) == expected, labels


def test_rows_that_do_not_fit_the_model(comm):
    X, y = data()
    model = distsms.train(local(X, y, comm), comm, lam=1.0, solver="lbfgs")
    for ask in (lambda: distsms.predict(model, X[:, :5], comm), lambda: distsms.evaluate(model, (X[:, :5], y), comm)):
        with pytest.raises(InputError, match="the model takes rows with 12 columns"):
            ask()
    with pytest.raises(InputError, match="no smoothed risk"):
        distsms.train((X, y), comm, measure="f1", solver="lbfgs")
    with pytest.raises(InputError, match="12 columns, and the data 5"):
        distsms.train((X[:, :5], y), comm, start=model)


@pytest.mark.serial
def test_one_process_alone_starts_no_mpi():
    code = (
        "import sys, distsms\nmodel = distsms.train(([[1.0], [0.0]], [1, -1]), lam=1.0, solver='lbfgs')\n"
        "distsms.evaluate(model, ([[1.0], [0.0]], [1, -1]))\n"
        "assert not {'mpi4py', 'petsc4py', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_communicator_of_mpi4py(comm):
    pytest.importorskip("mpi4py.MPI")
    made = mpi.as_communicator(comm.mpi_comm)
    assert (made.size, made.rank, mpi.as_communicator(comm)) == (comm.size, comm.rank, comm)
    assert isinstance(made, MPICommunicator) == (comm.size > 1)
    X, y = data()
    model = distsms.train(local(X, y, comm), comm.mpi_comm, lam=1.0, solver="lbfgs")
    assert model.info["data"]["n"] == len(y)


@pytest.mark.serial
def test_names_of_the_package():
    assert set(distsms.__all__) <= set(dir(distsms))
    assert all(getattr(distsms, name).__doc__ for name in distsms.__all__)
    with pytest.raises(AttributeError, match="no attribute 'learn'"):
        distsms.learn  # noqa: B018


@pytest.mark.parametrize("factor", [1e-200, 1e200])
def test_weights_of_any_size_give_the_same_measures(factor):
    rng = np.random.default_rng(4)
    X, y, weights = rng.normal(size=(60, 3)), rng.random(60) < 0.4, rng.lognormal(0, 1, 60)
    model = distsms.train((X, y), weight=weights, lam=0.1)
    found, expected = (distsms.evaluate(model, (X, y), weight=part) for part in (weights * factor, weights))
    for name in ("rocarea", "prbep", "average_precision", "precision", "bedroc"):
        assert found[name] == pytest.approx(expected[name], rel=1e-9), name


def test_rows_of_weight_0_alone_are_not_evaluated():
    rows = np.eye(2), [1, -1]
    model = distsms.train(rows, lam=0.1)
    with pytest.raises(InputError, match="no row to evaluate a model on"):
        distsms.evaluate(model, rows, weight=np.zeros(2))


@pytest.mark.serial
def test_the_named_arguments_of_train_are_few_and_can_be_read():
    parameters = inspect.signature(distsms.train).parameters
    assert len(parameters) <= 12
    assert not [name for name, one in parameters.items() if " at 0x" in str(one)]
    described = distsms.train.__doc__
    of_solver = {field.name for field in dataclasses.fields(Settings)} - {"points"}
    assert api.NAMES & of_solver == of_solver and len(api.NAMES - of_solver) > 12
    for name in (api.NAMES - of_solver) | {"l1"}:
        assert re.search(rf"^    (\w+, )*{name}\b.* : |^    {name}, ", described, re.M), name


@pytest.mark.serial
@pytest.mark.parametrize(
    "wrong, meant", [("checkpont", "checkpoint"), ("max_evaluation", "max_evaluations"), ("stop_wantd", "stop_wanted")]
)
def test_a_setting_that_does_not_exist_is_refused_with_the_one_that_may_be_meant(wrong, meant, tmp_path):
    (tmp_path / "a.csv").write_text("y,x\n1,2\n0,1\n")
    for rows in (([[1.0], [0.0]], [1, -1]), tmp_path / "a.csv"):
        with pytest.raises(InputError, match=rf"there is no option '{wrong}'.*; did you mean {meant}\?$"):
            distsms.train(rows, **{wrong: 1})


@pytest.mark.serial
def test_the_main_steps_are_logged_if_somebody_listens(caplog, capsys):
    X, y = data(200)
    distsms.train((X, y), lam=1e-2, solver="lbfgs", check=False)
    assert not caplog.records and capsys.readouterr() == ("", "")
    with caplog.at_level("INFO", logger="distsms"):
        model = distsms.train((X, y), lam="auto", at="recall>=0.5", solver="lbfgs", check=False)
    assert {record.name for record in caplog.records} == {"distsms"}
    chosen, begun, folds, ended, measures = caplog.messages
    assert chosen.startswith(f"lambda {model.info['lambda']:g}, chosen automatically in")
    assert begun == f"training for rocarea on 200 rows and {X.shape[1]} columns by lbfgs"
    assert folds.startswith("folds: 5 more models, each trained on 80 % of the rows; this takes up to about ")
    assert ended.startswith("proved") and f"gap {model.info['gap']:.3g}" in ended
    assert measures == f"training rows: ROCArea {model.info['training']['rocarea']:.4f}, PRBEP " + (
        f"{model.info['training']['prbep']:.4f}"
    )
