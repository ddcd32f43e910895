"""`distsms info` refuses folders of other commands, and says what they are."""

from __future__ import annotations

import argparse

import numpy as np
import pytest

from distsms.base.errors import InputError
from distsms.cli import info
from distsms.models import model
from distsms.training.checkpoint import NEWEST
from distsms.workflow.baseline_fits import BaselineStore
from distsms.workflow.path_result import PathStore
from scripts.compare.grid import IDENTITY

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(
    "identity, advice",
    [
        (f"{PathStore.kind}.json", "`distsms report .*model.h5 --test DATA`"),
        (f"{BaselineStore.kind}.json", "`distsms report MODEL --test DATA --baseline "),
        (IDENTITY, "table.md"),
        (NEWEST, "`distsms train --checkpoint .* --resume`"),
    ],
)
@pytest.mark.parametrize("others", [[], ["."]])
def test_a_folder_of_another_command_is_named_with_the_command_that_reads_it(tmp_path, identity, advice, others):
    (tmp_path / identity).write_text("{}")
    args = argparse.Namespace(paths=[str(tmp_path), *others], verify=False, usage=False, json=False, config=False)
    with pytest.raises(InputError, match=f"{tmp_path}: is .*neither a data set nor a model.*{advice}"):
        info.run(args, None)


def test_a_file_of_rows_is_neither_a_data_set_nor_a_model(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,0\n")
    args = argparse.Namespace(paths=[str(tmp_path / "a.csv")], verify=False, usage=False, json=False, config=False)
    with pytest.raises(InputError, match=r"a\.csv: is neither a data set nor a model; `distsms shard` makes"):
        info.run(args, None)


def test_what_is_nested_has_a_line_for_each_part():
    one = {"lam": 0.1, "mean": 0.5, "note": ""}
    chosen = {"best": "raw", "useless": [], "choices": {"raw": one, "bins": one}}
    lines = ["best raw", "choices raw lam 0.1, mean 0.5", "choices bins lam 0.1, mean 0.5"]
    assert info._lines("features_path", chosen) == lines
    assert info._lines("columns", [one, one]) == ["lam 0.1, mean 0.5"] * 2
    assert info._lines("ranks", 3) == ["3"] and info._lines("label_map", {"+1": 1}) == ["+1 1"]


def test_a_useless_model_says_so_and_what_to_use_instead(tmp_path, capsys, monkeypatch):
    base = {"label_map": {"+1": 1, "-1": -1}, "zero_based": False, "threshold": 0.0, "status": "proved", "J": 1.0}
    for name, known in (
        ("useless", {"vacuous": True, "warnings": ["This model ranks no better than chance."]}),
        ("good", {"vacuous": False, "warnings": [], "J_at_zero": 1.0}),  # J near J(0) alone is no sign
        ("old", {"J_at_zero": 1.0}),
    ):
        model.save(tmp_path / name, model.Model(np.zeros(2), base | known))
    args = argparse.Namespace(paths=[str(tmp_path / "useless")], verify=False, usage=False, json=False, config=False)
    info.run(args, None)
    assert capsys.readouterr().out.endswith("\nwarning   This model ranks no better than chance.\n")
    args.paths = [str(tmp_path / name) for name in ("useless", "good", "old")]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    info.run(args, None)
    _, _, useless, good, old, *rest = capsys.readouterr().out.splitlines()
    assert "proved, vacuous" in useless
    assert "vacuous" not in good and "J(0)" not in good and "proved, J(0)" in old
    assert rest[-1].startswith("\033[1;31m") and "This model ranks no better than chance." in rest[-1]
