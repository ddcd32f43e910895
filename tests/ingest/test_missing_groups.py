"""Rows of tables without a group: each is a group of its own, or they are left out."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import distsms
from distsms.__main__ import main
from distsms.base import text_files
from distsms.base.errors import InputError
from distsms.shards import row_metadata
from distsms.shards.dataset import read_manifest
from distsms.shards.splits import Splitter
from distsms.workflow import folds
from tests.support.conversion import convert
from tests.support.files import ALONE, content, on_root

N = 60
USERS = ["" if k % 4 == 1 else "NA" if k == 7 else f"u{k % 5}" for k in range(N)]
HAVE = np.array([user not in ("", "NA") for user in USERS])
FRAME = pd.DataFrame(
    {"u": USERS, "x": [k % 11 for k in range(N)], "w": ["only" if not h else "ab"[k % 2] for k, h in enumerate(HAVE)]}
)
FRAME["y"] = [k % 3 // 2 for k in range(N)]


def groups_of(manifest):
    return folds.read_fold_keys(manifest, "groups", 0, manifest.n)


def write(comm, folder, kind, frame=FRAME):
    path = folder / f"a.{kind}"
    on_root(
        comm,
        lambda: (
            frame.to_parquet(path, row_group_size=7, index=False)
            if kind == "parquet"
            else frame.to_csv(path, index=False)
        ),
    )
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("options", [{}, {"compression": "blosc-lz4"}, {"in_memory": True, "durable": False}])
def test_each_is_a_group_of_its_own(comm, shared_dir, monkeypatch, capsys, kind, options):
    """The same one on any number of ranks, since folds and splits follow from it."""
    if "compression" in options:
        pytest.importorskip("numcodecs")
    monkeypatch.setattr(text_files.read_blocks, "__defaults__", (90,))
    path = write(comm, shared_dir, kind)
    made = convert([path], shared_dir / "d", comm, label="y", group="u", n_shards=4, **options)
    groups = groups_of(made)
    np.testing.assert_array_equal(groups[HAVE], row_metadata.groups([USERS[k] for k in np.flatnonzero(HAVE)], None))
    np.testing.assert_array_equal(groups, row_metadata.own_groups(np.where(HAVE, groups, row_metadata.OWN_GROUP), 0))
    assert len(set(groups.tolist())) == 5 + np.count_nonzero(~HAVE) and row_metadata.OWN_GROUP not in groups
    assert made.group["largest"] == np.unique(groups, return_counts=True)[1].max()
    what = "each is a group of its own (--missing-group drop leaves them out)"
    told = f"column 'u': rows without a group; {what}: {(~HAVE).sum()} rows"
    assert not comm.is_root or told in capsys.readouterr().err


def test_parts_of_a_split_keep_them(comm, shared_dir):
    path = write(comm, shared_dir, "csv")
    convert([path], shared_dir / "d", comm, label="y", group="u", split=Splitter((0.5, 0.5), by="groups"))
    parts = [set(groups_of(read_manifest(shared_dir / "d" / name)).tolist()) for name in ("train", "test")]
    assert not parts[0] & parts[1] and len(parts[0] | parts[1]) == 5 + np.count_nonzero(~HAVE)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("block", [90, 2**24])
def test_they_are_left_out_as_if_they_were_not_there(comm, shared_dir, monkeypatch, capsys, kind, block):
    """Also from the means, the categories and the labels."""
    monkeypatch.setattr(text_files.read_blocks, "__defaults__", (block,))
    frame = FRAME.assign(y=FRAME["y"].where(HAVE, "neither"), t=[f"{k}%" if h else "x" for k, h in enumerate(HAVE)])
    frame["y"] = frame["y"].astype(str)
    path = write(comm, shared_dir, kind, frame)
    made = convert([path], shared_dir / "d", comm, label="y", group="u", missing_group="drop")
    told = f"column 'u': rows without a group are left out: {(~HAVE).sum()} rows"
    assert not comm.is_root or told in capsys.readouterr().err
    on_root(comm, lambda: (shared_dir / "b").mkdir())
    expected = convert([write(comm, shared_dir / "b", kind, frame[HAVE])], shared_dir / "e", comm, label="y", group="u")
    assert made.table == expected.table and made.table.columns[1].categories == ("a", "b")
    for found, array in zip(content(shared_dir / "d"), content(shared_dir / "e"), strict=True):
        np.testing.assert_array_equal(found, array)
    np.testing.assert_array_equal(groups_of(made), groups_of(expected))


def test_messages_name_the_row_in_the_file(comm, shared_dir):
    frame = FRAME.assign(x=FRAME["x"].astype(str))
    frame.loc[32, "x"] = "inf"
    path = write(comm, shared_dir, "csv", frame)
    with pytest.raises(InputError, match=r"a\.csv:34: column 'x': found 'inf'"):
        convert([path], shared_dir / "d", comm, label="y", group="u", missing_group="drop")


@pytest.mark.serial
def test_a_measure_within_groups_does_not_compare_them(tmp_path):
    model = distsms.train(FRAME[HAVE], label="y", group="u", lam=0.1, solver="lbfgs", within_groups="pairs")
    expected = distsms.evaluate(model, FRAME[HAVE], within_groups="pairs", group="u")
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    for data in FRAME, tmp_path / "a.csv":
        with pytest.warns(UserWarning):
            found = distsms.evaluate(model, data, within_groups="pairs", group="u")
        assert found["gauc@pairs"] == expected["gauc@pairs"] and found["n"] == N


def test_each_is_a_group_of_its_own_on_all_ranks(comm):
    model = distsms.train(FRAME[HAVE], label="y", group="u", lam=0.1, solver="lbfgs", within_groups="pairs")
    expected = distsms.evaluate(model, FRAME[HAVE], within_groups="pairs", group="u")
    mine = pd.concat([rows.iloc[comm.rank :: comm.size] for rows in (FRAME[~HAVE], FRAME[HAVE])])  # at the same places
    found = distsms.evaluate(model, mine, within_groups="pairs", group="u", comm=comm)
    assert found["gauc@pairs"] == pytest.approx(expected["gauc@pairs"], rel=1e-12) and found["n"] == N


@pytest.mark.serial
def test_test_rows_lose_them_too(tmp_path, capsys):
    path, few = tmp_path / "a.csv", tmp_path / "few.csv"
    FRAME.to_csv(path, index=False)
    FRAME[HAVE].to_csv(few, index=False)
    words = ["--label", "y", "--group", "u", "--lambda", "0.1", "--plain", "--no-report", "--missing-group", "drop"]
    for model, test in ("m.h5", path), ("n.h5", few):
        assert main(["train", str(few), *words, "--test", str(test), "--output", str(tmp_path / model)]) in (0, 8)
    with_all, without = capsys.readouterr().out.split("test  ")[1:]
    assert with_all.splitlines()[:2] == without.splitlines()[:2]
    judged = ["evaluate", str(tmp_path / "m.h5"), str(path), "--json", "--group", "u"]
    for further, n in ([], N), (["--missing-group", "drop"], HAVE.sum()):
        assert main([*judged, *further]) == 0
        assert json.loads(capsys.readouterr().out)["n"] == n
    assert distsms.evaluate(tmp_path / "m.h5", FRAME, group="u", missing_group="drop")["n"] == HAVE.sum()
    assert main(["evaluate", str(tmp_path / "m.h5"), str(path), "--missing-group", "drop"]) == 1
    assert "--missing-group drop needs --group COLUMN" in capsys.readouterr().err


@pytest.mark.serial
def test_no_row_may_be_left(tmp_path):
    FRAME.assign(u="").to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(InputError, match="there is no row with a group in the column 'u' below the names"):
        convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="y", group="u", missing_group="drop")


@pytest.mark.serial
def test_the_option_is_for_tables(tmp_path):
    (tmp_path / "a.svm").write_text("1 qid:1 1:1\n")
    with pytest.raises(InputError, match="--missing-group drop is for CSV and Parquet"):
        convert([tmp_path / "a.svm"], tmp_path / "d", ALONE, group="qid", missing_group="drop")
    with pytest.raises(InputError, match="--missing-group: 'x' is none of own, drop"):
        FRAME.to_csv(tmp_path / "a.csv", index=False)
        convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="y", group="u", missing_group="x")
