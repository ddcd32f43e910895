"""Warnings that a column tells the outcome, and that a model overfits: given where they are true, and only there."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import distsms
from distsms import cli
from distsms.errors import ModelWarning
from distsms.inference import model
from distsms.parallel.communicator import Communicator
from distsms.training.hints import describe_test

HOW = {"label": "y", "solver": "lbfgs", "lam": 1e-2, "split": (0.7, 0.3)}


def rows(n=800, p=3, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n, p)), columns=[f"x{k}" for k in range(p)])
    frame["y"] = (frame.x0 + rng.normal(size=n) > 1).astype(int)
    frame["city"] = rng.choice(["Rome", "Oslo", "Bern"], n)
    return frame


@pytest.mark.parametrize("kind", ["number", "category"])
def test_a_column_that_tells_the_outcome_is_named(comm, kind):
    frame = rows()
    mine = slice(*(len(frame) * rank // comm.size for rank in (comm.rank, comm.rank + 1)))
    assert distsms.train(frame[mine], comm.mpi_comm, **HOW).info["warnings"] == []
    rng = np.random.default_rng(1)
    refund = np.where(frame.y > 0, rng.integers(5, 9, len(frame)), rng.integers(0, 5, len(frame)))
    frame["refund"] = refund if kind == "number" else np.array(list("abcdefghi"))[refund]
    with pytest.warns(ModelWarning) if comm.is_root else np.errstate():
        found = distsms.train(frame[mine], comm.mpi_comm, **HOW)
    (warning,) = found.info["warnings"]
    assert "Column refund alone ranks" in warning and warning.endswith("--drop refund")


@pytest.mark.serial
def test_overfitting_is_told_with_both_numbers(tmp_path, capsys):
    rows(600, 150).to_csv(tmp_path / "a.csv", index=False)
    words = ["train", str(tmp_path / "a.csv"), "--label", "y", "--solver", "lbfgs", "--output", str(tmp_path / "m.h5")]
    told = []
    for lam in ("1e-4", "auto"):
        args = cli.parse([*words, "--lambda", lam])
        assert args.run(args, Communicator()) == 0
        told.append("learned its training rows by heart" in " ".join(capsys.readouterr().out.split()))
        info = model.load(tmp_path / "m.h5").info
        assert bool(info["warnings"]) == told[-1]
        if lam == "1e-4":
            assert info["training"]["rocarea"] > info["test"]["rocarea"] + 0.05
            assert all(f"{info[where]['rocarea']:.3f}" in info["warnings"][0] for where in ("training", "test"))
    assert told == [True, False]
    assert "learned its training rows" in (tmp_path / "m.html").read_text() or not told[-1]


@pytest.mark.serial
@pytest.mark.parametrize(
    ("own", "area", "n", "chosen", "tells"),
    [
        (0.9, 0.8, 1000, False, True),
        (0.9, 0.8, 1000, True, False),
        (0.9, 0.8, 10, False, False),
        (0.9, 0.87, 10**6, False, False),
        (0.8, 0.9, 1000, False, False),
        (1.0, 1.0, 1000, True, True),
    ],
)
def test_only_clear_differences_are_told(own, area, n, chosen, tells):
    labels = np.repeat([1, -1], [n, 2 * n]).astype(np.int8)
    data = {"n_pos": n, "n_neg": 3 * n}
    found = describe_test({"rocarea": own}, {"rocarea": area}, data, labels, chosen, True, Communicator())
    assert bool(found) == tells
