"""Moments that grow with the rows train the models of all rows; they can be merged, saved and read."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import distsms
from distsms import ClassMoments
from distsms.base.errors import InputError
from tests.support.problems import data, share


@pytest.mark.parametrize("dense", [False, True])
def test_rows_that_arrive_in_parts_give_the_model_of_all_rows(dense, comm):
    """The later parts have one class, or no rows on some rank, or none at all."""
    X, y = data(300, 6)
    X, a = X.toarray() if dense else X, np.random.default_rng(1).integers(0, 3, 300).astype(float)
    order = np.argsort(y[20:], kind="stable") + 20  # from row 20 on, the classes come one after the other
    parts = [np.arange(20), order[:150], order[150:], np.arange(0)]
    found = ClassMoments(6)
    for part in parts:
        mine = part[share(comm, len(part))]
        mpi = comm.mpi_comm if comm.size > 1 else None
        assert found.update(X[mine], y[mine], a[mine], mpi) is found
    whole = ClassMoments(6).update(X, y, a)
    assert found.n == whole.n == np.count_nonzero(a)
    one, other = found.solve(1e-3), whole.solve(1e-3)
    np.testing.assert_allclose(one.w, other.w, atol=1e-11)
    assert one.J == pytest.approx(other.J, abs=1e-13) and one.gap < 1e-11


@pytest.mark.serial
def test_a_model_scores_and_measures_like_one_that_was_trained(tmp_path):
    rng = np.random.default_rng(0)
    y = np.where(rng.random(4000) < 0.2, "yes", "no")
    X = rng.normal(size=(4000, 3)) + np.outer(y == "yes", [1, 0.5, 0])
    moments = ClassMoments(3).update(X[:2000], y[:2000]).update(X[2000:], y[2000:])
    ours = moments.model(1e-3)
    trained = distsms.train((X, y), measure="normal-auc", lam=1e-3, solver="lbfgs")
    assert trained.info["evaluations"] == 1  # it begins at the closed form, and one evaluation proves it
    np.testing.assert_allclose(ours.w, trained.w, atol=1e-10)
    assert ours.threshold == pytest.approx(trained.threshold, abs=0.02)
    distsms.save_model(tmp_path / "model.h5", ours)
    again = distsms.load_model(tmp_path / "model.h5")
    measured = distsms.evaluate(again, (X, y))
    assert measured["rocarea"] == pytest.approx(moments.solve(1e-3).rocarea, abs=0.02)
    assert distsms.verify(moments.model(1), (X, y)).problems == []
    assert again.classes == trained.classes and set(again.classes) == {"yes", "no"}


@pytest.mark.serial
def test_they_are_merged_saved_and_read(tmp_path):
    X, y = data(200, 5)
    one, other = ClassMoments(5).update(X[:90], y[:90]), ClassMoments(5).update(X[90:], y[90:])
    one.save(tmp_path / "one")
    read = ClassMoments.load(tmp_path / "one")
    for name, array in vars(one.moments).items():
        np.testing.assert_array_equal(array, getattr(read.moments, name))
    assert (read.label_map, read.n, read.p) == (one.label_map, 90, 5)
    merged, whole = read.merge(other), ClassMoments(5).update(X, y)
    np.testing.assert_allclose(merged.solve(1e-2).w, whole.solve(1e-2).w, atol=1e-12)
    np.testing.assert_array_equal(ClassMoments(5).merge(one).moments.scatter, one.moments.scatter)


@pytest.mark.serial
def test_what_cannot_be_used_is_refused_and_changes_nothing(tmp_path):
    X, y = data(60, 4)
    found = ClassMoments(4)
    with pytest.raises(InputError, match="both classes"):
        found.solve(1e-3)
    for rows, labels in ((X, np.ones(60)), (X[:0], y[:0])):
        with pytest.raises(InputError, match="begin with rows of both classes"):
            found.update(rows, labels)
    assert found.n == 0 and found.label_map is None
    found.update(X, y)
    before = found.moments.scatter.copy()
    for wrong, message in (
        ((X[:, :3], y), "has 3 columns"),
        ((np.full((2, 4), np.inf), [1, -1]), "finite"),
        ((np.full((2, 4), 1e200) * [[1], [-1]], [1, 1]), "finite"),
        ((X, y[:5]), "60 rows"),
        ((X, y, np.full(60, -1.0)), "weight"),
        ((X, y, np.full(60, 1e120)), "largest weight"),
        ((X[:2], ["a", "b"]), "labels"),
        ((X[:2], [0, 0]), "other labels than .* -1, 1"),
        ((X[:2], [2, 2]), "other labels"),
        ((X[:2], [1, 2]), "other labels"),
    ):
        with pytest.raises(InputError, match=message):
            found.update(*wrong)
    for lam in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(InputError, match="at least 1e-290"):
            found.solve(lam)
    for p in (0, -1, 2.5):
        with pytest.raises(InputError, match="whole number"):
            ClassMoments(p)
    with pytest.raises(InputError, match="GiB, more than this machine has"):
        ClassMoments(10**7)
    for other in (ClassMoments(3), ClassMoments(4).update(X, np.where(y > 0, "yes", "no"))):
        with pytest.raises(InputError, match="merged"):
            found.merge(other)
    np.testing.assert_array_equal(found.moments.scatter, before)
    path = tmp_path / "moments"
    with pytest.raises(InputError, match="no such file"):
        ClassMoments.load(path)
    found.save(path)
    for change in (
        lambda file: file.attrs.update(format="distsms-model"),
        lambda file: file.attrs.update(version=2),
        lambda file: (file.__delitem__("mean"), file.create_dataset("mean", data=np.zeros((2, 3)))),
        lambda file: file["mass"].write_direct(np.array([np.nan, 1.0])),
        lambda file: file.__delitem__("count"),
        lambda file: (file.__delitem__("scatter"), file.create_dataset("scatter", data=0.0)),
        lambda file: file["count"].write_direct(-file["count"][()]),
        lambda file: file["count"].write_direct(0 * file["count"][()]),
        lambda file: file["scatter"].write_direct(file["scatter"][()] + np.triu(np.ones((4, 4)), 1)),
        lambda file: file["scatter"].write_direct(-file["scatter"][()]),
        lambda file: file.attrs.update(label_map="[1, 2]"),
        lambda file: file.attrs.update(label_map='{"+1": {"a": 1}, "-1": null}'),
    ):
        found.save(path)
        with h5py.File(path, "r+") as file:
            change(file)
        with pytest.raises(InputError, match=str(path)):
            ClassMoments.load(path)


@pytest.mark.serial
def test_a_model_is_proved_only_with_a_small_gap():
    X, y = data(60, 4)
    for offset, lam, status in ((0.0, 1e-3, "proved"), (1e6, 1e-3, None), (1e9, 1e-3, "rounding")):
        found = ClassMoments(4).update(X.toarray() + offset, y).model(lam)
        assert found.info["status"] == ("proved" if found.info["gap"] <= 1e-3 else "rounding")
        assert status in (None, found.info["status"])
    with pytest.raises(InputError, match="rounding errors hide"):
        ClassMoments(4).update(X * 1e150, y).model(1e-290)
