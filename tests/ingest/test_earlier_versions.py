"""Data sets and models that version 0.1.0 has written are read, and mean what they meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import distsms

OLD = Path(__file__).parents[1] / "support" / "made_by_0.1.0"
TEXTS = {"people": "people.csv", "rows": "rows.svm"}


def old_scores(name):
    return np.array([float(line.split("\t")[-1]) for line in (OLD / f"{name}.txt").read_text().splitlines()])


@pytest.mark.serial
@pytest.mark.parametrize("rows", ["text", "data set"])
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_model_scores_as_it_did(name, rows):
    if name == "people":
        pytest.importorskip("pyarrow")
    data = OLD / (TEXTS[name] if rows == "text" else name)
    np.testing.assert_allclose(distsms.predict(OLD / f"{name}.h5", data), old_scores(name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("data, name", [("people", "people"), ("rows", "rows"), ("packed", "rows")])
def test_a_data_set_trains_to_the_optimum_that_was_found(data, name, comm):
    old = distsms.load_model(OLD / f"{name}.h5")
    new = distsms.train(OLD / data, comm, measure="rocarea", lam=0.1, solver="lbfgs")
    assert new.info["status"] == "proved"
    assert abs(new.info["J"] - old.info["J"]) <= new.info["gap"] + old.info["gap"]
    assert new.info["lower_bound"] <= old.info["J"] and old.info["lower_bound"] <= new.info["J"]
