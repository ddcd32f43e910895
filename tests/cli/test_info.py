"""`distsms info` refuses folders of other commands, and says what they are."""

from __future__ import annotations

import json

import numpy as np
import pytest

from distsms import cli
from distsms.base.errors import InputError
from distsms.cli import info
from distsms.models import model
from distsms.shards.table_schema import Column, Table
from distsms.training.checkpoint import NEWEST
from distsms.workflow.baseline_fits import BaselineStore
from distsms.workflow.path_result import PathStore
from scripts.compare.grid import IDENTITY
from tests.support import program

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
    args = cli.parse(["info", str(tmp_path), *others])
    with pytest.raises(InputError, match=f"{tmp_path}: is .*neither a data set nor a model.*{advice}"):
        args.run(args, None)


@pytest.mark.parametrize("more", [[], ["--columns"]])
def test_a_file_of_rows_is_neither_a_data_set_nor_a_model(tmp_path, more):
    (tmp_path / "a.csv").write_text("x,y\n1,0\n")
    args = cli.parse(["info", str(tmp_path / "a.csv"), *more])
    with pytest.raises(InputError, match=r"a\.csv: is neither a data set nor a model; `distsms shard` makes"):
        args.run(args, None)


def test_what_is_nested_has_a_line_for_each_part():
    one = {"lam": 0.1, "mean": 0.5, "note": ""}
    chosen = {"best": "raw", "useless": [], "choices": {"raw": one, "bins": one}}
    lines = ["best raw", "choices raw lam 0.1, mean 0.5", "choices bins lam 0.1, mean 0.5"]
    assert info._lines("features_path", chosen) == lines
    assert info._lines("columns", [one, one]) == ["lam 0.1, mean 0.5"] * 2
    assert info._lines("ranks", 3) == ["3"] and info._lines("label_map", {"+1": 1}) == ["+1 1"]


def test_a_model_says_what_matters_first_and_all_of_its_columns_on_request(tmp_path, capsys):
    """City has a category for each of 150 rows, which is flagged; age has missing values; kind has two categories."""
    names = [f"town {k}" for k in range(150)]
    table = Table(
        (
            Column("age", missing=True, fill=40.5),
            Column("City", tuple(names)),
            Column("kind", ("a", "b, or c", 'd "e"'), other=True),
        ),
        label="bad",
    )
    base = {"label_map": {"+1": "yes", "-1": "no"}, "zero_based": False, "threshold": 0.0, "settings": {"planes": 7}}
    model.save(tmp_path / "a.h5", model.Model(np.ones(table.p), base, table))

    def shown(*words):
        args = cli.parse(["info", str(tmp_path / "a.h5"), *words])
        args.run(args, None)
        return capsys.readouterr().out

    first, everything, columns = shown(), shown("--all"), shown("--columns").splitlines()
    assert "City: 150 of 156 features" in first and "bad; positive: yes; negative: no" in first
    assert "planes" not in first and "--all shows everything" in first
    assert "planes 7" in everything and "--all" not in everything
    assert columns[1].split() == ["age", "number", "2", "counts", "as", "40.5;", "marked", "by", "a", "feature"]
    assert columns[2].endswith(", ".join([*names[:20], "(130 more; --all)"]))
    assert columns[3].endswith('  a, "b, or c", "d ""e""", (other)')
    assert shown("--columns", "--all").splitlines()[2].endswith(", ".join(names))
    listed = json.loads(shown("--columns", "--json"))["columns"]
    assert [column["features"] for column in listed] == [2, 150, 4] and listed[1]["categories"] == names
    model.save(tmp_path / "a.h5", model.Model(np.ones(3), base))
    with pytest.raises(InputError, match="its columns have numbers only"):
        shown("--columns")


@pytest.mark.e2e
def test_training_names_columns_with_very_many_values(tmp_path):
    lines = [f"{k % 7},c{k % 120},{int(k % 7 > 3)}\n" for k in range(480)]
    (tmp_path / "a.csv").write_text("x,city,y\n" + "".join(lines))
    words = ["--label", "y", "--lambda", "1", "--solver", "lbfgs", "--no-report", "--output", tmp_path / "m.h5"]
    told = " ".join(program.run("train", tmp_path / "a.csv", *words).split())
    assert "note city: 120 of 121 features. Few rows have each value" in told


def test_a_useless_model_says_so_and_what_to_use_instead(tmp_path, capsys, monkeypatch):
    base = {"label_map": {"+1": 1, "-1": -1}, "zero_based": False, "threshold": 0.0, "status": "proved", "J": 1.0}
    for name, known in (
        ("useless", {"vacuous": True, "warnings": ["This model ranks no better than chance."]}),
        ("good", {"vacuous": False, "warnings": [], "J_at_zero": 1.0}),  # J near J(0) alone is no sign
        ("old", {"J_at_zero": 1.0}),
    ):
        model.save(tmp_path / name, model.Model(np.zeros(2), base | known))
    args = cli.parse(["info", str(tmp_path / "useless")])
    args.run(args, None)
    assert capsys.readouterr().out.endswith("\nwarning   This model ranks no better than chance.\n")
    args.paths = [str(tmp_path / name) for name in ("useless", "good", "old")]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    args.run(args, None)
    _, _, useless, good, old, *rest = capsys.readouterr().out.splitlines()
    assert "proved, vacuous" in useless
    assert "vacuous" not in good and "J(0)" not in good and "proved, J(0)" in old
    assert rest[-1].startswith("\033[1;31m") and "This model ranks no better than chance." in rest[-1]
