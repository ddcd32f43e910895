"""The command `distsms features`: its options, and what it prints."""

from __future__ import annotations

import json

import numpy as np
import pytest

from distsms.__main__ import main
from distsms.features import feature_map
from distsms.shards.dataset import read_manifest
from distsms.shards.from_arrays import write_data


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    write_data(tmp_path / "d", X, np.where(X[:, 0] * X[:, 1] > 0, 1, -1))
    return tmp_path


def test_what_is_made_by_default_and_on_request(data, capsys):
    folder = data / "d"
    for words, parts, kept in (
        ([], (32, None), False),
        (["--keep", "--bins", "4"], (4, None), True),
        (["--trees", "3", "--min-leaf", "9"], (None, 3), False),
        (["--trees", "3", "--crosses", "1:2"], (32, 3), False),
    ):
        if words[-1:] == ["1:2"]:
            words[-1] = "column 1:column 2"
        assert main(["features", str(folder), str(data / "f"), "--overwrite", *words]) == 0
        made = feature_map.load(read_manifest(data / "f"))
        bins, forest = made.bins, made.forest
        assert (bins and bins.sizes[0], forest and forest.n_trees) == parts and made.keep == kept
        printed = capsys.readouterr().out
        assert (f"120 rows, {made.p} columns" in printed and "column 1: 32 bins" in printed) or parts[0] != 32
        assert ("judge models on other rows" in printed) == (forest is not None)
        assert ("trees=3,min-leaf=9" in printed) == ("9" in words)
    assert main(["info", str(data / "f"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["features"]["hash"] == made.hash
    assert main(["info", str(data / "f"), "--verify"]) == 0
    assert "column 1: 32 bins; column 2: 32 bins" in capsys.readouterr().out
    assert main(["features", str(folder), "--output", str(data / "g"), "--like", str(data / "f"), "--quiet"]) == 0
    assert read_manifest(data / "g").coded == read_manifest(data / "f").coded
    assert capsys.readouterr().out == ""
    path = read_manifest(data / "f").features_path
    with open(path, "r+b") as file:
        file.seek(-9, 2)
        file.write(b"x" * 9)
    assert main(["info", str(data / "f"), "--verify"]) == 1
    assert path.name in capsys.readouterr().err


def test_what_it_took(data, capsys):
    words = ["features", str(data / "d"), str(data / "f"), "--trees", "2", "--tree-rows", "110", "--usage"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "trees grow on a sample of about" in printed and "of the 120 rows" in printed
    assert "peak memory" in printed
    for step in ("reading rows for trees", "growing trees", "writing the shards"):
        assert f"{step} [s]" in printed


@pytest.mark.serial
@pytest.mark.parametrize(
    "words, message",
    [
        (["--like", "x", "--bins", "3"], "leave out --bins"),
        (["--like", "x", "--keep"], "leave out --keep"),
        (["--like", "x", "--seed", "0"], "leave out --seed"),
        (["--min-leaf", "3"], "say how many with --trees"),
        (["--bins", "0"], "not a whole number"),
        (["--trees", "many"], "not a whole number"),
    ],
)
def test_options_that_contradict_each_other(data, capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(["features", str(data / "d"), str(data / "f"), *words])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (data / "f").exists()
