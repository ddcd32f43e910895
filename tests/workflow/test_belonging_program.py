"""Rows that belong together, from a table to the report, as users run it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.support.files import write_csv
from tests.support.simulated_program import run, run_json

pytestmark = [pytest.mark.serial, pytest.mark.by_turns]


@pytest.fixture
def visits(tmp_path):
    """Users of 6 rows each, a third of them duplicates of others; a user's rows are alike and have one label."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(120), 6)
    own = rng.normal(size=(120, 80)).round(3)
    X = own[user] + (rng.normal(size=(720, 80)) * (rng.random((720, 1)) < 0.66)).round(1)
    y, day = rng.integers(0, 2, 120)[user], rng.permutation(720) // 6
    rows = [
        [f"u{u}", f"2024-{1 + d // 28:02d}-{1 + d % 28:02d}", *x, k] for u, d, x, k in zip(user, day, X, y, strict=True)
    ]
    write_csv(tmp_path / "visits.csv", ["user", "day", *(f"x{j}" for j in range(80)), "y"], rows)
    run(1, "shard", tmp_path / "visits.csv", tmp_path / "data", "--label", "y", "--group", "user", "--time", "day")
    return tmp_path


def test_folds_by_what_belongs_together(visits):
    told = run_json(1, "info", visits / "data")
    assert told["group"] == {"column": "user", "groups": 120, "largest": 6}
    assert told["time"]["kind"] == "dates" and told["doubles"]["rows"] > 0.05 * 720
    shown = run(1, "info", visits / "data")
    assert "user: 120 groups" in shown and "2024-01-01 to 2024-05-08" in shown and "--folds-by doubles" in shown
    grid = ("--lambdas", "1e-3", "--folds", 3, "--epsilon", "1e-2", "--solver", "lbfgs", "--output")
    means = {}
    for by in ("rows", "groups", "time"):
        words = () if by == "groups" else ("--folds-by", by)  # which is the default here
        code = 8 if by == "groups" else 0  # on users that it has not seen, the model is no better than chance
        out = run(2 if by == "time" else 1, "path", visits / "data", *words, *grid, visits / by, code=code)
        found = json.loads((visits / by / "path.json").read_text())
        assert f"3 folds by {by}" in out and found["problem"]["folds_by"] == by
        assert ("have an exact duplicate" in out) == any("exact duplicate" in text for text in found["warnings"])
        means[by] = found["chosen"]["mean"]
    assert means["rows"] > 0.75 and means["groups"] < 0.65  # users are remembered; there is nothing else
    assert "folds_by: there groups, now rows" in run(
        1, "path", visits / "data", "--folds-by", "rows", *grid, visits / "groups", code=1
    )
    words = (
        "baseline",
        visits / "data",
        "--path",
        visits / "groups",
        "--methods",
        "distsms",
        "logistic",
        "--solver",
        "lbfgs",
    )
    assert "is a path with folds_by groups" in run(1, *words, "--folds-by", "time", code=1)
    out = run(1, *words, "--output", visits / "beside")
    assert "3 folds by groups" in out and "\nwarning   " in out and "intervals treat rows as independent" in out
    found = json.loads((visits / "beside" / "baseline.json").read_text())
    assert found["problem"]["folds_by"] == "groups" and "exact duplicate" in found["sentences"][-1]
    assert found["methods"][0]["sure"]["rocarea"]["value"] == pytest.approx(means["groups"], abs=1e-3)
    words = ("report", visits / "groups" / "model.h5", "--test", visits / "data", "--baseline", visits / "beside")
    run(1, *words, "--output", visits / "report.html")
    page = (visits / "report.html").read_text()
    assert page.count("have an exact duplicate") == 2 and page.count("3 folds by groups") >= 2


def test_splits_by_what_belongs_together(visits):
    words = ("shard", visits / "visits.csv", visits / "parts", "--label", "y", "--group", "user", "--time", "day")
    out = run(2, *words, "--split", "0.5,0.5")
    train, test = (json.loads((visits / "parts" / name / "manifest.json").read_text()) for name in ("train", "test"))
    assert train["group"]["groups"] + test["group"]["groups"] == 120 and train["split"]["by"] == "groups"
    assert out.count("user: ") == 2
    assert "keeps together; give both" in run(1, *words, "--split-by", "time", "--overwrite", code=1)
