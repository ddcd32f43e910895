"""What growing costs: users hear of hours before they are lost, and rows that do not fit are refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from distsms.base.errors import InputError
from distsms.features import growing
from distsms.features.growing import (
    FeaturesObserver,
    bytes_of_rows,
    check_memory,
    check_time,
    grow,
    seconds_of_tree,
    singles,
)
from distsms.features.rows import Rows
from tests.support.problems import data, share


def rows_of(n, p=12, density=1.0):
    X, y = data(n, p)
    return Rows(singles(X if density < 1 else X.toarray()), y)


def test_long_growing_is_said_and_days_are_refused(comm, monkeypatch):
    rows, said, observer = rows_of(300), [], FeaturesObserver()
    observer.noted = lambda kind, text: said.append((kind, text))
    monkeypatch.setattr(growing, "_QUICK", 0)
    monkeypatch.setattr(growing, "seconds_of_tree", lambda rows, min_leaf: 90.0)
    check_time(rows, 6 * comm.size, 3, comm, observer)
    assert not said  # 9 minutes on each rank
    check_time(rows, 7 * comm.size, 3, comm, observer)
    assert len(said) == comm.is_root
    for kind, text in said:
        assert kind == "note" and "all 12 columns" in text
        assert f"growing {7 * comm.size} trees on 300 rows takes about" in text
        assert "--tree-rows 30)" in text and f"now {comm.size}" in text
    with pytest.raises(InputError, match="all 12 columns are tried"):
        check_time(rows, 1000 * comm.size, 3, comm, observer)
    own = share(comm, 300)
    with pytest.raises(InputError, match="all 12 columns are tried"):
        grow(Rows(rows.X[own], rows.labels[own]), comm, 1000 * comm.size)


def test_small_forests_are_not_estimated(comm, monkeypatch):
    monkeypatch.setattr(growing, "seconds_of_tree", None)
    check_time(rows_of(300), 10**6, 3, comm, FeaturesObserver())


@pytest.mark.serial
@pytest.mark.parametrize("density", [0.5, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_small_tree_says_how_long_a_tree_takes(monkeypatch, density, weighted):
    """Its rows are of both classes, even if one is rare."""
    rows, seen = rows_of(2000, density=density), []
    y = np.full(2000, -1, np.int8)
    y[[7, 1990]] = 1
    rows = rows._replace(
        X=rows.X.tocsc() if density < 1 else rows.X, labels=y, weights=np.ones(2000) if weighted else None
    )

    class Tree:
        def __init__(self, **options):
            assert options["min_samples_leaf"] == 3

        def fit(self, X, positive, weights):
            seen.append((X.shape, positive.sum(), weights is None))

    clock = iter([0.0, 1.0])
    monkeypatch.setattr(growing, "_TRIAL", 1200)
    monkeypatch.setattr("sklearn.tree.ExtraTreeClassifier", Tree)
    monkeypatch.setattr(growing.time, "perf_counter", lambda: next(clock))
    seconds = seconds_of_tree(rows, 3)
    ((n, p), positive, unweighted) = seen[0]
    assert p == 12 and 90 <= n <= 110 and positive == 2 and unweighted != weighted
    assert seconds == pytest.approx(2000 * np.log(2000) / (n * np.log(n)))


def test_rows_that_do_not_fit_are_refused_before_they_are_read(comm, monkeypatch):
    assert bytes_of_rows(1000, 100, 1e5) == 4e5 and bytes_of_rows(1000, 100, 10) == 160
    here = len(comm.node_ranks())
    monkeypatch.setattr(growing, "available", lambda: 4 * 1000 * 100 * (here + 1))
    check_memory(1000, 100, 1e5, comm)
    monkeypatch.setattr(growing, "available", lambda: 4 * 1000 * 100 * (here + 1) // (2 if comm.rank == 0 else 1))
    with pytest.raises(InputError, match=rf"1000 rows of 100 columns .* {here} rank.s. of this node") as caught:
        check_memory(1000, 100, 1e5, comm)
    if comm.rank == 0:
        assert int(re.search(r"--tree-rows (\d+)", str(caught.value))[1]) in (300, 400)
