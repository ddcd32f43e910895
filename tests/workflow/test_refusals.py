"""What no face takes, wherever a user says it; and a failure of one rank, which the others learn of."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import distsms
from distsms.base.errors import DistsmsError, InputError
from distsms.features.arrays import fit_arrays
from distsms.features.fit import FeatureOptions
from distsms.shards.from_arrays import write_data

NO_MATRIX = r"^X does not hold numbers, equally many|^X has 1 dimensions|given another argument than rank 0: data"


@pytest.fixture(scope="module")
def rows():
    X = np.random.default_rng(0).normal(size=(60, 3))
    return X, np.where(X[:, 0] > 0.3, 1, -1)


@pytest.fixture(scope="module")
def made(rows, tmp_path_factory):
    """The data set of the rows, and a model of them."""
    folder = tmp_path_factory.mktemp("made") / "d"
    write_data(folder, *rows)
    return folder, distsms.train(rows, lam=1.0, solver="lbfgs")


@pytest.mark.serial
@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        ("baseline", {"l1": 0.5}, "a baseline has no l1"),
        ("baseline", {"lam": 1.0}, "a baseline has no lam"),
        ("baseline", {"folds_by": "x"}, "folds_by: 'x' is none of rows"),
        ("path", {"step": "x"}, "step: 'x' is none of auto, root, spread"),
        ("baseline", {"ordering": "x"}, "ordering: 'x' is none of auto, gather"),
        ("train", {"step": "x"}, "step: 'x' is none of"),
        ("evaluate", {"bootstrap": -1}, "^bootstrap is -1; it must be at least 0"),
        ("shard", {"output": "s", "split": (0.5, 0.5), "split_by": 5}, "^split_by is 5, and not a text"),
        ("evaluate", {"k": 0}, "^k is 0; it must be at least 1"),
        ("evaluate", {"k": "5"}, "^k is '5', and not a whole number"),
        ("evaluate", {"at": 0.9}, "^0.9 is no condition for a threshold"),
        ("evaluate", {"model": None}, r"^models is \[None\], and not a list of models"),
        ("evaluate", {"model": [5]}, r"^models is \[5\], and not a list of models"),
        ("predict", {"model": None}, "^model is None, and not a model"),
        ("reasons", {"count": "3"}, "^count is '3'; it must be a whole number"),
        ("path", {"seed": 2**64}, r"^seed is 18446744073709551616; it must be at most 2\^62"),
        ("evaluate", {"level": "x"}, "^level is 'x', and not a number"),
        ("shard", {"output": "s", "split": (0.5, 0.5), "seed": "1"}, "^seed is '1', and not a whole number"),
        ("shard", {"output": "s", "split": (0.5, 0.5), "seed": -1}, "^seed is -1; it must be at least 0"),
        ("evaluate", {"threshold": float("nan")}, "NaN is no threshold"),
        ("evaluate", {"level": 2}, "level: a confidence level is between 0 and 1"),
        ("path", {"folds": "x"}, "^folds is 'x', and not a whole number"),
        ("path", {"folds": -1}, "^folds is -1; it must be at least 0"),
        ("path", {"memory": "1Gi"}, "^'1Gi' is not an amount of memory such as 500MiB"),
        ("path", {"memory": float("nan")}, "^memory is nan; it must be an amount such as 500MiB"),
        ("train", {"memory": -1}, "^memory is -1; it must be an amount such as 500MiB"),
        ("path", {"epsilon": "x"}, "^epsilon is 'x', and not a number"),
        ("path", {"measure": 5}, "^measure is 5, and not the name of a measure"),
        *((call, {"bias": bias}, f"^bias is {bias}; it must") for call in ("path", "train") for bias in (np.nan, -1.0)),
        ("path", {"features": 4}, "^features=4: needs one of 'bins', .*, or a dict of options"),
        ("path", {"features": {"boxes": 4}}, "^features have no option 'boxes'"),
        ("baseline", {"methods": "logistic"}, r"^methods is 'logistic', and not a list of texts"),
        ("baseline", {"tree_fits": 0}, "^tree_fits is 0; it must be at least 1"),
        ("train", {"lam": "x"}, "^lam is 'x', and neither a number nor 'auto'"),
        ("train", {"lam": [0.1]}, r"^lam is \[0.1\], and neither a number nor 'auto'"),
        ("train", {"lam": np.array([0.1, 0.2])}, "^lam is .*, and neither a number nor 'auto'"),
        ("train", {"lam": False}, "^lam is False, and neither a number nor 'auto'"),
        ("train", {"lam": 0}, "^lambda is 0.0; it must be"),
        ("train", {"split_by": "time"}, "split_by, seed, .* are for tables"),
        ("train", {"seed": 5}, "split_by, seed, .* are for tables"),
        ("train", {"start": 5}, "^start is 5, and not a model"),
        ("train", {"points": True}, "there is no option 'points'"),
        ("train", {"checkpoint": 3}, "^checkpoint is 3, and not a path"),
        ("train", {"l1": "x", "lam": 1.0}, "^l1 is 'x', and not a number"),
        ("make_features", {"output": "f", "shards": 0}, "^shards is 0; it must be at least 1"),
        ("make_features", {"output": 7}, "^output is 7, and not a path"),
    ],
)
def test_values_that_do_not_exist(call, options, message, rows, made, tmp_path):
    data, model = made
    first, function = [data], getattr(distsms, call)
    if call in ("evaluate", "predict", "reasons"):
        options = {"model": model, **options}
        first = [options.pop("model"), rows if call == "evaluate" else rows[0]]
    elif call in ("path", "baseline"):
        options = {"output": tmp_path / "out", "lambdas": [0.1], "folds": 2, "solver": "lbfgs", **options}
    with pytest.raises(InputError, match=message):
        function(*first, **options)


@pytest.mark.serial
@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array])
@pytest.mark.parametrize(("name", "at", "value"), [("indices", 5, 60), ("indices", 5, -1), ("indptr", 1, 1000)])
def test_a_sparse_matrix_whose_indices_lead_out_of_it(kind, name, at, value, rows, tmp_path):
    X, y = kind(rows[0]), rows[1]
    getattr(X, name)[at] = value
    calls = [
        lambda: distsms.train((X, y), lam=1.0, solver="lbfgs"),
        lambda: distsms.predict(distsms.train(rows, lam=1.0, solver="lbfgs"), X),
        lambda: distsms.shard((X, y), tmp_path / "s"),
        lambda: write_data(tmp_path / "d", X, y),
        lambda: fit_arrays(X, y, FeatureOptions(bins=2)),
    ]
    for call in calls:
        with pytest.raises(InputError, match=r"^X does not hold numbers, equally many in each row: ind"):
            call()


@pytest.mark.serial
def test_data_that_are_no_path():
    with pytest.raises(InputError, match=r"^data is 5, and not a path$"):
        distsms.path(5)


@pytest.mark.serial
@pytest.mark.parametrize(("name", "value"), [("min_count", -1), ("n_shards", 0), ("n_features", "x")])
def test_numbers_of_a_conversion(name, value, rows, tmp_path):
    with pytest.raises(InputError, match=f"^{name} is {value!r}"):
        distsms.shard(rows, tmp_path / "d", **{name: value})


@pytest.mark.serial
def test_memory_as_on_the_command_line(rows, tmp_path):
    write_data(tmp_path / "d", *rows)
    models = [distsms.train(tmp_path / "d", lam=1.0, solver="lbfgs", memory=size) for size in ("2GiB", 2**31, np.inf)]
    np.testing.assert_array_equal(models[0].w, models[1].w)


@pytest.mark.serial
def test_a_split_by_what_does_not_exist(rows, tmp_path):
    with pytest.raises(InputError, match="split_by: 'x' is none of rows, groups, doubles, time"):
        distsms.shard(rows, tmp_path / "d", split=(0.5, 0.5), split_by="x")


@pytest.mark.parametrize("bad", [[[1.0, 2.0], [3.0]] * 30, np.array([["a"] * 3] * 60), np.zeros(60)])
def test_a_rank_with_rows_that_are_no_matrix(bad, rows, comm):
    """All ranks are told, and none waits."""
    X, y = rows
    X = bad if comm.rank == comm.size - 1 else X
    model = distsms.train(rows, lam=1.0, solver="lbfgs")
    with pytest.raises(InputError, match=NO_MATRIX):
        distsms.train((X, y), comm.mpi_comm, lam=1.0, solver="lbfgs")
    with pytest.raises(InputError, match=NO_MATRIX):
        distsms.predict(model, X, comm.mpi_comm)


def test_another_failure_of_one_rank_ends_all(comm):
    """It goes on as it is where it happened, and the others say what it was."""

    def fail():
        with comm.fail_together():
            if comm.rank == comm.size - 1:
                raise ValueError("seven")

    with pytest.raises((ValueError, DistsmsError), match="seven") as caught:
        fail()
    assert (caught.type is ValueError) == (comm.rank == comm.size - 1)


@pytest.mark.serial
def test_none_where_it_means_nothing(rows, tmp_path):
    write_data(tmp_path / "d", *rows)
    path = distsms.path(tmp_path / "d", lambdas=1.0, folds=0, solver="lbfgs", stop_wanted=None)
    assert len(path.points) == 1
    assert distsms.evaluate(distsms.train(rows, lam=1.0, solver="lbfgs"), rows, at=None)["n"] == 60
