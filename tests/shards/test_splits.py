"""Parts of an input: they have the same rows whoever writes them, and share columns, categories and labels."""

from __future__ import annotations

import gzip
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms import cli
from distsms.base import hashing
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.shards import row_metadata, rows
from distsms.shards.column_options import ColumnOptions
from distsms.shards.dataset import load, read_ids, read_manifest
from distsms.shards.manifest import verify
from distsms.shards.splits import Splitter, periods
from distsms.workflow import folds
from tests.support.conversion import convert
from tests.support.files import on_root
from tests.support.sharded import rewrite
from tests.support.simulated_program import run, run_json

ALONE = Communicator()
N = 300


def assign(split, first, n):
    """Return the part of each of the rows first, ..., first + n - 1 of an input, of which nothing is kept together."""
    return split.parts(np.arange(first, first + n), ALONE)


def numbers(directory):
    """Return the rows of a data set: their numbers in the input, which `write` has put into the first column."""
    return load(directory, ALONE).features.margins(np.array([1.0, 0, 0])).astype(int) - 1


def write(comm, folder, kind):
    """Write N rows whose first column is their number plus 1; return what is needed to read them."""
    X = np.column_stack([np.arange(1, N + 1), np.arange(N) % 7 - 3.0, np.where(np.arange(N) % 3, 0, 2.5)])
    y = np.where(np.arange(N) % 4, -1, 1)
    if comm.is_root:
        lines = [" ".join(f"{j + 1}:{x:g}" for j, x in enumerate(row) if x) for row in X]
        text = "# head\n\n" + "\n".join(f"{label} {line}" for label, line in zip(y, lines, strict=True))
        table = [f"{a:g},{b:g},{c:g},{label},r{a:g}" for (a, b, c), label in zip(X, y, strict=True)]
        if kind == "svm":
            (folder / "a.svm").write_text(text)
        elif kind == "csv":
            (folder / "a.csv").write_text("a,b,c,y,id\n" + "\n".join(table) + "\n")
        else:
            np.savez(folder / "a.npz", X=X, y=y, names=np.array([f"r{row}" for row in range(N)]))
    comm.barrier()
    return {
        "svm": {},
        "csv": {"label": "y", "id": "id", "columns": ColumnOptions(numeric=("a",)), "normalize": "none"},
        "npz": {},
    }[kind]


@pytest.mark.parametrize("kind", ["svm", "csv", "npz"])
@pytest.mark.parametrize("n_shards, compression", [(None, "none"), (1, "blosc-lz4"), (7, "none"), (7, "blosc-lz4")])
def test_the_same_rows_whoever_writes_them(comm, shared_dir, kind, n_shards, compression):
    how = write(comm, shared_dir, kind)
    split = Splitter((0.6, 0.4), seed=1)
    how |= {"split": split, "compression": compression}
    first = convert([shared_dir / f"a.{kind}"], shared_dir / "d", comm, n_shards, **how)
    assert first.directory == shared_dir / "d/train"
    wanted = assign(split, 0, N)
    for k, name in enumerate(("train", "test")):
        folder = shared_dir / "d" / name
        manifest = read_manifest(folder)
        assert verify(folder) == [] and manifest.p == 3 and manifest.compression == compression
        assert manifest.split == {"part": name, "of": N, "fractions": [0.6, 0.4], "seed": 1}
        np.testing.assert_array_equal(numbers(folder), np.flatnonzero(wanted == k))
        if kind == "csv":
            assert read_ids(manifest, 0, manifest.n) == [f"r{row + 1}" for row in np.flatnonzero(wanted == k)]
    comm.barrier()  # the root gives up its lock last
    assert sorted(one.name for one in (shared_dir / "d").iterdir()) == ["test", "train"]


@pytest.mark.serial
@given(st.integers(0, 2**62), st.lists(st.floats(0.05, 0.9), min_size=2, max_size=5), st.integers(0, 10**15))
def test_parts_are_of_the_expected_size_and_depend_on_the_number_alone(seed, fractions, first):
    split = Splitter(tuple(np.array(fractions) / max(1, sum(fractions))), seed)
    n = 4000
    part = assign(split, first, n)
    assert part.min() >= 0 and part.max() <= len(fractions)
    np.testing.assert_array_equal(np.concatenate([assign(split, first, 1500), assign(split, first + 1500, 2500)]), part)
    left = max(0.0, 1 - sum(split.fractions))
    for k, share in enumerate([*split.fractions, left]):
        deviation = np.sqrt(n * share * (1 - share))
        assert abs(np.count_nonzero(part == k) - n * share) <= 6 * deviation + 1e-6


@pytest.mark.serial
def test_another_seed_is_another_split_and_thirds_leave_nothing_out():
    a, b = (assign(Splitter((0.5, 0.5), seed), 0, 1000) for seed in (0, 1))
    assert 400 < np.count_nonzero(a == b) < 600
    assert set(assign(Splitter((0.1,) * 10), 0, 10000)) == set(range(10))  # whose floats add up to less than 1
    assert Splitter((0.5, 0.3, 0.1)).names == ["part-1", "part-2", "part-3"]


@pytest.mark.parametrize("kind", ["standard", "maxabs"])
def test_factors_are_those_of_the_first_part(comm, shared_dir, kind):
    write(comm, shared_dir, "svm")
    split = Splitter((0.5, 0.2, 0.1), seed=3)
    convert([shared_dir / "a.svm"], shared_dir / "d", comm, 5, normalize=kind, split=split)
    convert([shared_dir / "a.svm"], shared_dir / "raw", comm, 5, split=split)
    x = np.flatnonzero(assign(split, 0, N) == 0) + 1.0
    wanted = 1 / (x.std() if kind == "standard" else x.max())
    sets = [read_manifest(shared_dir / "d" / name) for name in split.names]
    assert len({tuple(one.normalization.scale) for one in sets}) == 1
    assert sets[0].normalization.scale[0] == pytest.approx(wanted, rel=1e-12)
    assert sum(one.n for one in sets) == np.count_nonzero(assign(split, 0, N) < 3) < N
    assert {one.normalization.kind for one in map(read_manifest, (shared_dir / "raw").glob("part-*"))} == {"none"}


@pytest.mark.serial
@pytest.mark.parametrize("fractions", [(), (0.5,), (0.8, 0.3), (0.5, 0.0), (1.5, -0.5), (0.5, float("nan"))])
def test_fractions_that_are_none(fractions):
    with pytest.raises(InputError, match="--split"):
        Splitter(fractions)


def test_refusals_change_nothing(comm, shared_dir):
    """Test a part without rows, a data set in the way of a part, and one in whose directory parts would lie."""
    write(comm, shared_dir, "svm")
    path = [shared_dir / "a.svm"]
    with pytest.raises(InputError, match=r"test: there is no row"):
        convert(path, shared_dir / "d", comm, split=Splitter((0.5, 1e-12)))
    comm.barrier()
    assert not (shared_dir / "d").exists()
    convert(path, shared_dir / "d/test", comm)
    with pytest.raises(InputError, match=r"test: holds a data set already"):
        convert(path, shared_dir / "d", comm, split=Splitter((0.5, 0.5)))
    comm.barrier()
    assert read_manifest(shared_dir / "d/test").n == N and not (shared_dir / "d/train").exists()
    convert(path, shared_dir / "d", comm, split=Splitter((0.5, 0.5)), overwrite=True)
    assert read_manifest(shared_dir / "d/test").n < N
    convert(path, shared_dir / "whole", comm)
    with pytest.raises(InputError, match=r"whole: is a data set itself"):
        convert(path, shared_dir / "whole", comm, split=Splitter((0.5, 0.5)), overwrite=True)


@pytest.mark.serial
def test_the_folder_of_the_parts_names_them(tmp_path):
    write(ALONE, tmp_path, "svm")
    convert([tmp_path / "a.svm"], tmp_path / "d", ALONE, split=Splitter((0.5, 0.5)))
    with pytest.raises(InputError, match=r"is a folder with data sets: \S*d/test, \S*d/train\. Name"):
        read_manifest(tmp_path / "d")
    convert([tmp_path / "a.svm"], tmp_path / "e", ALONE, split=Splitter((0.2,) * 4))
    with pytest.raises(InputError, match=r"e/part-1, \S*e/part-2, \S*e/part-3, \.\.\.\. Name"):
        read_manifest(tmp_path / "e")


@pytest.mark.serial
def test_a_manifest_whose_split_is_damaged(tmp_path):
    write(ALONE, tmp_path, "svm")
    path = convert([tmp_path / "a.svm"], tmp_path / "d", ALONE, split=Splitter((0.5, 0.5))).path
    split = json.loads(path.read_text())["split"]
    for wrong in (7, {}, split | {"seed": -1}, split | {"fractions": "all"}):
        rewrite(path.parent, lambda record, wrong=wrong: record.update(split=wrong))
        with pytest.raises(InputError, match=r"manifest\.json: split"):
            read_manifest(path.parent)


@pytest.mark.parametrize("kind", ["svm", "npz"])
def test_rows_beyond_a_shards_memory_become_more_shards(comm, shared_dir, monkeypatch, kind):
    """Rows keep their order on any ranks, with names and labels that were counted in pieces. The text is compressed."""
    write(comm, shared_dir, kind)
    name, how = "a.npz", {"id": "names"}
    if kind == "svm":
        name, how = "a.svm.gz", {}
        if comm.is_root:
            (shared_dir / name).write_bytes(gzip.compress((shared_dir / "a.svm").read_bytes()))
    comm.barrier()
    monkeypatch.setattr("distsms.ingest.convert.SHARD_BYTES", 4000)
    monkeypatch.setattr("distsms.ingest.formats.svmlight.SvmlightReader.block_bytes", 512)
    monkeypatch.setattr("distsms.shards.rows.BLOCK_ENTRIES", 20)
    manifest = convert([shared_dir / name], shared_dir / "d", comm, 2, **how)
    assert len(manifest.shards) > 3 and max(one.rows for one in manifest.shards) < N // 3
    assert [one.file for one in manifest.shards] == [f"shard-{k:05d}.h5" for k in range(len(manifest.shards))]
    np.testing.assert_array_equal(numbers(shared_dir / "d"), np.arange(N))
    np.testing.assert_array_equal(load(manifest, ALONE).labels, np.where(np.arange(N) % 4, -1, 1))
    assert read_ids(manifest, 0, N) == ([f"r{row}" for row in range(N)] if kind == "npz" else None)
    assert not list((shared_dir / "d").glob("*.partial"))


@pytest.mark.serial
def test_the_program(tmp_path):
    write(ALONE, tmp_path, "svm")
    words = "shard", tmp_path / "a.svm", tmp_path / "d", "--split"
    told = run(2, *words, "0.5,0.3", "--seed", 5, "--compress")
    left = np.count_nonzero(assign(Splitter((0.5, 0.3), 5), 0, N) == 2)
    assert f"{left} of {N} rows: the fractions add up to 0.8" in told and "d/test: " in told
    made = run_json(1, "info", tmp_path / "d/test")
    assert made["split"] == Splitter((0.5, 0.3), 5).record(1, N) and made["compression"] == "blosc-lz4"
    assert "a folder with data sets" in run(1, "info", tmp_path / "d", code=1)
    assert "nosuch: no such file or folder" in run(1, "info", tmp_path / "nosuch", code=1)
    assert "--split 0.8:" in run(1, *words, "0.8", code=1)
    with pytest.raises(SystemExit):
        run(1, *words, "0.8,x")


@pytest.mark.serial
@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 400))
def test_gathered_blocks_are_as_large_as_allowed(lengths, limit):
    """No two neighbours would have fitted together, no row is lost, and only single blocks are larger."""
    start, blocks = 0, []
    for n in lengths:
        labels = np.arange(start, start + n, dtype=float)
        blocks.append(rows.RowBlock(labels, np.arange(n + 1), np.zeros(n, np.int32), np.ones(n), 1))
        start += n
    whole = [rows.concatenate(batch) for batch in rows.batches(iter(blocks), limit)]
    np.testing.assert_array_equal(np.concatenate([np.empty(0), *(one.labels for one in whole)]), np.arange(start))

    def size(one):
        return sum(array.nbytes for array in one[:4])

    largest = max(map(size, blocks), default=0)
    assert all(size(one) <= max(limit, largest) for one in whole)
    assert all(size(a) + size(b) + 8 * len(blocks) > limit for a, b in itertools.pairwise(whole))  # each has an indptr


@pytest.mark.parametrize("by", ["groups", "doubles", "time"])
@pytest.mark.parametrize("n_shards", [1, 7])
def test_what_belongs_together_is_not_parted(comm, shared_dir, by, n_shards):
    """Ranks and shards do not matter. By time, the last part has the latest rows, and equal times stay together."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(1, 6, (N, 3)), rng.integers(0, 2, N)
    user, day = rng.integers(0, 40, N), rng.integers(0, 90, N)
    on_root(comm, lambda: np.savez(shared_dir / "a.npz", X=X, y=y, user=user, day=day))
    how = {"split": Splitter((0.5, 0.3, 0.1), 2, by), "group": "user", "time": "day", "normalize": "standard"}
    convert([shared_dir / "a.npz"], shared_dir / "d", comm, n_shards, **how)
    parts = [read_manifest(shared_dir / "d" / f"part-{k}") for k in (1, 2, 3)]
    marks = {"groups": user, "doubles": hashing.hash_rows(X), "time": day}[by]
    given = row_metadata.groups([str(one) for one in user], None) if by == "groups" else marks
    wanted = Splitter((0.5, 0.3, 0.1), 2).parts(given, ALONE)
    if by == "time":
        ends = [np.sort(day)[N * k // 10 - 1] for k in (5, 8, 9)]
        wanted = sum((day > end).astype(int) for end in ends)
    for k, part in enumerate(parts):
        assert part.split["by"] == by
        np.testing.assert_array_equal(folds.read_fold_keys(part, by, 0, part.n), given[wanted == k])
        _, counts = np.unique(X[wanted == k], axis=0, return_counts=True)
        assert part.doubles["rows"] == counts[counts > 1].sum()
        assert part.group["groups"] == len(set(user[wanted == k]))
        assert (part.time["first"], part.time["last"]) == (day[wanted == k].min(), day[wanted == k].max())
    assert sum(part.n for part in parts) == np.count_nonzero(wanted < 3) < N
    assert not set(marks[wanted == 0]) & set(marks[wanted > 0])


def test_time_is_the_order_of_the_input_where_there_is_no_other(comm, shared_dir):
    write(comm, shared_dir, "svm")
    convert([shared_dir / "a.svm"], shared_dir / "d", comm, 5, split=Splitter((0.8, 0.2), by="time"))
    np.testing.assert_array_equal(numbers(shared_dir / "d/test"), np.arange(240, N))
    with pytest.raises(InputError, match="--split-by groups needs --group COLUMN"):
        convert([shared_dir / "a.svm"], shared_dir / "e", comm, 5, split=Splitter((0.8, 0.2), by="groups"))


@pytest.mark.serial
@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_periods_by_brute_force(times, ends):
    times, ends = np.array(times, float), sorted(ends)
    found = periods(times, ends, ALONE)
    for k, end in enumerate(ends):
        place = int(len(times) * end + 1e-9)
        assert np.array_equal(found <= k, times <= (np.sort(times)[place - 1] if place else -np.inf))


@pytest.mark.serial
@pytest.mark.parametrize(
    "words, by",
    [
        ("--group user", "groups"),
        ("--time day", "time"),
        ("--group user --time day", "groups"),
        ("--group user --split-by time --time day", "time"),
        ("--time day --split-by rows", "rows"),
        ("", "rows"),
    ],
)
def test_what_a_table_is_split_by(tmp_path, capsys, words, by):
    """Held against pandas: the latest rows are the test set, no user is in both parts, and the summary says so."""
    rng = np.random.default_rng(3)
    day = pd.to_datetime("2024-01-01") + pd.to_timedelta(rng.integers(0, 90, N), "D")
    frame = pd.DataFrame({"x": rng.normal(size=N), "user": rng.integers(0, 40, N), "day": day, "y": np.arange(N) % 2})
    frame["row"] = np.arange(N)
    frame.to_csv(tmp_path / "a.csv", index=False)
    also = ["--drop", "user"] * ("--group" not in words) + ["--drop", "day"] * ("--time" not in words)
    line = ["shard", tmp_path / "a.csv", tmp_path / "d", "--label", "y", "--id", "row", "--split", "0.7,0.3"]
    args = cli.parse([*map(str, line), *also, *words.split()])
    assert args.run(args, ALONE) == 0
    assert capsys.readouterr().out.count(f"split     by {by}: ") == 2
    train, test = (read_manifest(tmp_path / "d" / name) for name in ("train", "test"))
    rows = [frame.iloc[list(map(int, read_ids(part, 0, part.n)))] for part in (train, test)]
    assert len(rows[0]) + len(rows[1]) == N and 0 < len(rows[1]) < N / 2
    assert (rows[0].day.max() < rows[1].day.min()) == (by == "time")
    assert (not set(rows[0].user) & set(rows[1].user)) == (by == "groups")
