"""The quick choice of lambda: checked by brute force, the same on any number of ranks, on samples of the rows."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics import roc_auc_score

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.features import rows as feature_rows
from distsms.optim.run import minimize
from distsms.shards import dataset
from distsms.shards.from_arrays import write_data
from distsms.training.solver_choice import settings_for
from distsms.training.task import TrainingTask
from distsms.workflow import auto_lambda, path
from distsms.workflow.auto_lambda import (
    DEFAULT_LAMBDA,
    GRID,
    Shares,
    _describe_choice,
    choose_lambda,
    cross_validate,
    in_sample,
    load_sample,
    moderate_choice,
    sample_shares,
)
from distsms.workflow.choice import Choice, Mean, Point
from distsms.workflow.folds import deal_rows
from tests.support.files import on_root
from tests.support.problems import block, data, local_part, objective

ALONE = Communicator()
SETTINGS = settings_for("rocarea", "lbfgs", lam=1.0)


@pytest.fixture
def folder(tmp_path, comm):
    """A folder that all ranks share."""
    return comm.bcast(tmp_path)


def chosen(rows, comm, measure="rocarea", settings=SETTINGS, bias=None, **more):
    return choose_lambda(TrainingTask(rows, Measure.parse(measure), settings, bias), comm, **more)


def test_the_choice_is_the_best_mean_of_the_folds(comm):
    """By brute force: each lambda on each fold alone, with scikit-learn's ROCArea of the fold's rows."""
    X, y = data(n=240, seed=4)
    found = chosen(block(comm, X, y), comm)
    fold = deal_rows(y, np.ones(len(y), bool), 5, 0, ALONE)
    loose = replace(SETTINGS, epsilon=1e-4)
    for mean in found.means if comm.is_root else ():
        values = []
        for f in range(1, 6):
            own = fold != f
            w = minimize(objective(X[own], y[own], ALONE), replace(loose, lam=mean.lam)).w
            values.append(roc_auc_score(y[~own], X[~own] @ w))
        assert mean.mean == pytest.approx(np.mean(values), abs=0.01)  # a loose gap, and a tight one
    assert found.rows == len(y)
    assert found.lam in [mean.lam for mean in found.means]
    assert {mean.lam for mean in found.means} >= set(GRID)
    assert f"{found.rows} rows" in found.reason


def points_of(values, useless=()):
    """Return points with these measures on the folds, by lambda."""
    for lam, own in values.items():
        for fold, value in enumerate(own, 1):
            yield Point(lam, fold, {"vacuous": lam in useless}, 0.0, {}, {"rocarea": value})


@pytest.mark.serial
def test_a_moderate_lambda_is_taken_where_folds_cannot_tell():
    """The folds differ much from each other, and only their differences between lambdas count."""
    surely = {1.0: (0.72, 0.82, 0.92), 0.1: (0.71, 0.81, 0.91), 0.01: (0.705, 0.80, 0.90)}
    assert moderate_choice([*points_of(surely)], "rocarea").chosen.lam == 1.0
    perhaps = {1.0: (0.72, 0.82, 0.92), 0.1: (0.74, 0.83, 0.87), 0.01: (0.70, 0.80, 0.90)}
    moderate = moderate_choice([*points_of(perhaps)], "rocarea")
    assert [mean.lam for mean in moderate[:4]] == [1.0, 0.1, 0.1, 1.0]  # 0.01 is worse
    assert moderate_choice([*points_of({1.0: (0.6, 0.62), 0.1: (0.7, 0.73)})], "rocarea").low.lam == 0.1
    assert moderate_choice([*points_of(perhaps, useless=(0.1,))], "rocarea").chosen.lam == 1.0
    assert (
        moderate_choice([*points_of({1.0: (0.7, 0.8), 0.1: (0.7, 0.8), 1e-4: (0.7, 0.8)})], "rocarea").chosen.lam == 0.1
    )
    useless = [*points_of({1.0: (0.5, 0.5), 0.1: (0.5, 0.5)}, useless=(1.0, 0.1))]
    assert (
        moderate_choice([*useless, *points_of({0.01: (0.5,)}, useless=(0.01,))], "rocarea") is None
    )  # one fold lacks it


@pytest.mark.serial
def test_the_reason_says_why_another_lambda_than_the_best_was_taken():
    for other, said in ((0.99912, "here it is 0.9991 as well"), (0.9985, "here it is 0.9985")):
        best, taken = Mean(0.1, 0.99913, 0.001), Mean(0.01, other, 0.001)
        reason = _describe_choice(
            Choice(best, taken, taken, best), "ROCArea", "4 lambdas from 0.001 to 1", "on 5 held-out folds"
        )
        assert (
            "nearest to 0.01" in reason and "below the best, 0.9991 at lambda 0.1" in reason and reason.endswith(said)
        )


def test_more_rows_than_those_of_the_sample_want_a_smaller_lambda(comm, folder, monkeypatch):
    """It is that of the folds times the share of the rarer class that they have; and it is better on new rows."""
    rng = np.random.default_rng(3)
    X, v = sparse.random(16000, 400, 0.05, "csr", random_state=3), rng.normal(size=400)
    score = X @ v
    y = np.where(score + 2 * score.std() * rng.normal(size=len(score)) > 0, 1, -1)
    on_root(comm, lambda: write_data(folder / "d", X[:8000], y[:8000], 3))
    monkeypatch.setattr(auto_lambda, "FEWEST_ROWS", 600)
    monkeypatch.setattr(auto_lambda, "FOLDS", auto_lambda.FOLDS_OF_FEW)
    rarer = lambda rows: min(np.count_nonzero(rows & (y[:8000] == sign)) for sign in (1, -1))  # noqa: E731
    classes = [int(np.sum(y[:8000] == sign)) for sign in (1, -1)]
    shares = sample_shares(*classes, X[:8000].nnz, Measure.parse("rocarea"))
    taken_rows = in_sample(np.arange(8000), y[:8000], shares, 0)
    before, after = [], []
    for rows in (block(comm, X[:8000], y[:8000]), dataset.read_manifest(folder / "d")):
        found = chosen(rows, comm)
        taken, lam = map(float, re.search(r"(\S+) becomes (\S+)$", found.reason).groups())
        times = float(re.search(r"has (\S+) times", found.reason).group(1))
        folds = int(re.search(r"on (\d) held-out folds", found.reason).group(1))
        expected = rarer(np.ones(8000, bool)) / rarer(taken_rows) / (1 - 1 / folds)
        assert times == pytest.approx(expected, rel=0.005) and times > 2
        assert found.lam == lam == float(f"{taken / expected:.1g}") and taken in [mean.lam for mean in found.means]
        before.append(taken)
        after.append(lam)

    def area(lam):
        w = minimize(objective(X[:8000], y[:8000], ALONE), replace(SETTINGS, lam=lam)).w
        return roc_auc_score(y[8000:], X[8000:] @ w)

    if comm.is_root:
        assert min(map(area, after)) > max(map(area, before))
    assert len(set(comm.allgather(tuple(after)))) == 1


def test_every_rank_has_the_same_choice_as_one_process(comm, folder):
    X, y = data(n=300, seed=2)
    on_root(comm, lambda: write_data(folder / "data", X, y, n_shards=2))
    manifest = dataset.read_manifest(folder / "data")
    alone = comm.bcast(chosen(manifest, ALONE) if comm.is_root else None)
    for small in (path.SMALL, 0):  # ranks share folds, or rows
        found = _with(path, "SMALL", small, lambda: chosen(manifest, comm))
        assert found.lam == alone.lam
        assert [mean.lam for mean in found.means] == [mean.lam for mean in alone.means]
        assert [mean.mean for mean in found.means] == pytest.approx([mean.mean for mean in alone.means], abs=2e-3)
        assert len(set(comm.allgather((found.lam, found.rows, found.reason)))) == 1
    if comm.rank == comm.size - 1:
        manifest = replace(manifest, directory=folder / "none")
    with pytest.raises(InputError, match="/none/"):  # on all ranks, and none waits
        chosen(manifest, comm)


def _with(module, name, value, action):
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        return action()
    finally:
        setattr(module, name, before)


def test_little_memory_for_vectors_trains_the_folds_one_by_one(comm):
    """The points are the same as with all folds in one pass, but there are more passes."""
    rows, n_folds = path.PathRows(block(comm, *data(400, seed=2)), comm), 3
    settings = settings_for("rocarea", "lbfgs", lam=DEFAULT_LAMBDA)
    found = [
        cross_validate(rows, path.Problem("rocarea", GRID, n_folds, 0, replace(settings, vector_bytes=room)))
        for room in (2**31, 1)
    ]
    assert found[1].passes > 2 * found[0].passes
    values = [{(p.lam, p.fold): p.held_out["rocarea"] for p in run.points if p.fold} for run in found]
    assert values[0].keys() == values[1].keys() and len(values[0]) >= n_folds * len(GRID)
    np.testing.assert_allclose(*([each[key] for key in sorted(values[0])] for each in values), atol=0.02)


def test_a_search_that_is_stopped_in_its_first_fold_knows_nothing(comm):
    """With little memory for vectors the folds follow each other, and the mean of a single fold has no error."""
    settings = settings_for("rocarea", "lbfgs", lam=DEFAULT_LAMBDA, vector_bytes=1)
    asked = []

    def stop_wanted():
        asked.append(0)
        return len(asked) > 30

    rows = path.PathRows(block(comm, *data(400, seed=2)), comm)
    found = cross_validate(rows, path.Problem("rocarea", GRID, 3, 0, settings), stop_wanted)
    assert found.stopped and found.evaluations > 0 and found.points == []


def test_too_few_rows_and_rows_that_say_nothing_keep_the_default(comm):
    X, y = data(n=60)
    y[:] = -1
    y[7] = 1
    found = chosen(block(comm, X, y), comm)
    assert (found.lam, found.means) == (DEFAULT_LAMBDA, [])
    assert "1 rows of the rarer class are too few" in found.reason
    X = sparse.csr_matrix((60, 12))
    y[::2] = 1
    found = chosen(block(comm, X, y), comm)
    assert found.lam == DEFAULT_LAMBDA and "none of" in found.reason
    groups = np.maximum(np.arange(60, dtype=np.uint64), 1)  # the first two rows are the only group with both classes
    rows = replace(block(comm, X, y), groups=local_part(groups, comm))
    found = chosen(rows, comm, "gauc@each")
    assert (found.lam, found.means) == (DEFAULT_LAMBDA, [])
    assert re.search("cannot be compared on these rows: .* fold . has no group with rows of both", found.reason)


def test_a_stop_ends_the_choice_with_a_lambda(comm):
    X, y = data(n=120)
    found = chosen(block(comm, X, y), comm, stop_wanted=lambda: True)
    assert found.lam == DEFAULT_LAMBDA and "stopped" in found.reason


@pytest.mark.parametrize("measure", ["f1", "error-rate"])
def test_every_measure_has_a_lambda(measure, comm):
    X, y = data(n=120)
    settings = settings_for(measure, "bmrm", lam=1.0)
    found = chosen(block(comm, X, y), comm, measure, settings, bias=1.0)
    assert 0 < found.lam < 1e5


@pytest.mark.parametrize("measure", ["precision@160", pytest.param("recall@160", marks=pytest.mark.by_turns)])
def test_k_is_that_of_the_rows_of_a_fold(measure, comm):
    """It is a number among all rows; a fold has a fifth of them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 4))
    y = np.where(X[:, 0] + rng.normal(size=800) > 1.2, 1, -1).astype(np.int8)
    rows = block(comm, sparse.csr_matrix(X), y)
    found = chosen(rows, comm, measure, settings_for(measure, "bmrm", lam=1.0))
    assert found.measure == measure.replace("160", "32")
    assert len({mean.mean for mean in found.means}) > 1 and found.on_folds.mean > 0.3


@pytest.mark.parametrize("layout", [sparse.csr_matrix, np.asarray])
def test_a_sample_has_the_rows_that_their_numbers_name(layout, comm, folder, monkeypatch):
    """On any number of ranks, from any number of shards, in the order of the data."""
    monkeypatch.setattr(feature_rows, "PART_ROWS", 7)
    X, y = data(n=150)
    X = X.toarray()
    on_root(comm, lambda: write_data(folder / "data", layout(X), y, n_shards=4))
    shares = Shares(1.0, 0.3)
    found = load_sample(dataset.read_manifest(folder / "data"), comm, shares)
    wanted = np.flatnonzero(in_sample(np.arange(150), y, shares))
    assert set(np.flatnonzero(y > 0)) <= set(wanted) and 20 < len(wanted) - np.sum(y > 0) < 60
    assert np.array_equal(np.concatenate(comm.allgather(found.labels)), y[wanted])
    w = np.arange(X.shape[1], dtype=float)
    margins = np.concatenate(comm.allgather(found.features.margins(w)))
    assert margins == pytest.approx(X[wanted] @ w)
    assert found.n == len(wanted)


def test_folds_of_rows_in_memory_keep_groups_together(comm):
    X, y = data(n=200)
    rows = block(comm, X, y)
    rows = replace(rows, groups=((rows.first_row + np.arange(len(rows.labels))) // 4).astype(np.uint64))
    assert "held-out folds (by groups) of 200 rows" in chosen(rows, comm).reason


def test_a_sample_of_rows_in_memory_counts_these_rows_alone(comm, monkeypatch):
    X, y = data(n=400)
    monkeypatch.setattr(auto_lambda, "FEWEST_ROWS", 100)
    found = chosen(block(comm, X, y), comm)
    shares = sample_shares(int(np.sum(y > 0)), int(np.sum(y < 0)), X.nnz, Measure.parse("rocarea"))
    assert found.rows == np.sum(in_sample(np.arange(400), y, shares))
    assert found.rows < 200


@pytest.mark.serial
@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
@pytest.mark.parametrize(
    "n_pos, n, nnz", [(100, 1000, 10**4), (1000, 10**6, 10**7), (10**5, 10**8, 10**10), (5 * 10**7, 10**8, 10**9)]
)
def test_samples_are_bounded(n_pos, n, nnz, measure):
    shares = sample_shares(n_pos, n - n_pos, nnz, Measure.parse(measure))
    rows = shares.positive * n_pos + shares.negative * (n - n_pos)
    assert 0 < min(shares) and max(shares) <= 1
    assert rows <= 1e6 + 1 and rows * nnz / n <= 5e7 + 1
    assert rows == n or rows >= min(20_000, 5e7 * n / nnz) - 1
