"""What a model file and the program's JSON get of a result."""

from __future__ import annotations

import numpy as np
import pytest

from distsms.optim.result import Result, Status
from distsms.optim.settings import Settings, describe


@pytest.mark.serial
def test_numbers_that_are_not_finite_become_null():
    known = {"detail": "why", "J": 0.5, "R": 0.25, "lower_bound": -np.inf, "gap": np.inf, "J_at_zero": 1.0}
    known |= {"nu": np.nan, "evaluations": 3, "seconds": 2.0, "starts": 2, "slope_at_zero": np.inf}
    found = Result(np.zeros(2), Status.PROVED, **known).numbers()
    expected = known | {"lower_bound": None, "gap": None, "nu": None, "slope_at_zero": None}
    assert all(" " in status.sentence for status in Status)
    assert found == expected | {"status": "proved", "exit_code": Status.PROVED.exit_code}


def test_settings_are_stored_as_numbers_and_infinite_ones_as_none():
    stored = describe(Settings(lam=1e-3, epsilon=1e-4, time_limit=float("inf")))
    assert (stored["lam"], stored["epsilon"], stored["time_limit"]) == (1e-3, 1e-4, None)
    assert "l1" not in stored and "points" not in stored
    assert describe(Settings(lam=1e-3, epsilon=1e-4, l1=0.5, solver="lbfgs"))["l1"] == 0.5
