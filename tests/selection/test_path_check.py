"""The model that a path chose is told from chance, and compared with a ROCArea model on rows of a fold."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from distsms.optim.settings import Settings
from distsms.selection.path import Problem, run
from distsms.selection.path_check import check_point, chosen_point
from distsms.training import quick_check
from tests.support.problems import block


def path_of(comm, measure, shift, folds=3):
    """The points of a path on 3 % positives, their rows, and the number of positive ones."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(3000) < 0.03, 1, -1).astype(np.int8)
    X = rng.normal(size=(3000, 3))
    X[:, 0] += shift * (y > 0)
    problem = Problem(measure, [1e-2, 1e-3], folds, 0, Settings(1.0, solver="lbfgs"))
    rows = block(comm, sparse.csr_matrix(X), y)
    return run(rows, problem, comm, lambda point, result: None).points, problem, rows, int(np.sum(y > 0))


@pytest.mark.parametrize(
    "measure, shift, vacuous", [("prbep", 1.7, True), ("prbep", 6.0, False), ("rocarea", 1.7, False)]
)
def test_a_useless_choice_says_so_and_what_to_use_instead(comm, monkeypatch, measure, shift, vacuous):
    monkeypatch.setattr(quick_check, "LEAST_SECONDS", 60.0)
    points, problem, rows, n_pos = path_of(comm, measure, shift)
    point = chosen_point(points, measure, "best")
    found = check_point(point, points, 0.1, problem, rows, None, n_pos, comm)
    assert found.vacuous == found.as_info()["vacuous"] == vacuous and bool(found.warnings) == vacuous
    assert (found.check is None) == (measure == "rocarea")
    if vacuous:
        (warning,) = found.warnings
        assert warning.startswith("This model ranks no better than chance: all scores are equal.")
        assert "Use the measure rocarea with lambda" in warning and " 1,001 rows that trained neither" in warning
        assert all(each.result["vacuous"] for each in points)
    alone = check_point(point, points, 0.1, problem, rows, None, n_pos, comm, compare=False)
    assert alone.check is None and alone.vacuous == vacuous


@pytest.mark.serial
def test_without_folds_there_is_no_choice():
    from distsms.parallel.communicator import Communicator

    points, *_ = path_of(Communicator(), "rocarea", 1.7, folds=0)
    assert chosen_point(points, "rocarea", "best") is None
