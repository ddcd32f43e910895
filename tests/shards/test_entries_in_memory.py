"""Temporary shards whose entries stay in memory give the same rows as those in files."""

from __future__ import annotations

import resource
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.errors import InputError
from distsms.ingest import convert as conversion
from distsms.shards import dataset, entries_in_memory
from distsms.shards.dataset import MemoryBudget, ends_in_memory
from distsms.shards.manifest import verify
from distsms.shards.splits import Splitter
from distsms.workflow.auto_lambda import Shares, load_sample
from tests.support.conversion import convert
from tests.support.examples import examples
from tests.support.files import ALONE, on_root

ENTRY = 12
"""Bytes of an entry in memory."""


@st.composite
def texts(draw):
    """Return svmlight text: 0/1 rows and others, empty rows, and columns that need 16 or 32 bits."""
    lines = []
    for _ in range(draw(st.integers(2, 30))):
        columns = sorted(draw(st.sets(st.sampled_from([1, 2, 3, 7, 200, 65536, 65537, 90000]), max_size=6)))
        value = draw(st.sampled_from(["1", "0.5", "-3"]))
        lines.append(" ".join([draw(st.sampled_from("01")), *(f"{column}:{value}" for column in columns)]))
    return "\n".join(["0 1:1", "1 2:1", *lines, ""])


def multiply(block):
    """Return what the rows of a block give with a vector, and their labels."""
    w = np.random.default_rng(1).normal(size=block.features.shape[1])
    return block.features.margins(w), block.labels


def together(comm, *arrays):
    """Return the arrays of all ranks, one after the other."""
    return [np.concatenate(parts) for parts in zip(*comm.allgather(arrays), strict=True)]


def in_small_shards(inputs, folder, comm, enough=1000, **how):
    """Convert, where a block has a few lines, a shard a few blocks, and there is room for `enough` entries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries_in_memory, "room", lambda *args: ENTRY * enough)
        patch.setattr("distsms.ingest.formats.svmlight.SvmlightReader.block_bytes", 60)
        patch.setattr(conversion, "SHARD_BYTES", 500)
        patch.setattr(conversion, "UNEVEN", 2.0)
        patch.setattr(conversion, "FEW_BYTES", 0)
        return convert(inputs, folder, comm, **how)


@pytest.mark.serial
@pytest.mark.parametrize("split", [None, Splitter((0.6, 0.4), 1)])
@examples(0.13)
@given(text=texts(), dtype=st.sampled_from(["float64", "float32"]), room=st.integers(1, 100))
def test_the_rows_are_those_of_files(tmp_path_factory, text, dtype, room, split):
    folder = tmp_path_factory.mktemp("d")
    (folder / "x.svm").write_text(text)
    made = []
    for name, enough in (("files", None), ("memory", 1000), ("too-little", room)):
        try:
            how = {"dtype": dtype, "split": split, "durable": False, "in_memory": name != "files", "n_shards": 2}
            made.append(in_small_shards([folder / "x.svm"], folder / name, ALONE, enough, **how))
        except InputError as error:  # a part may have no rows; nothing is remembered then
            assert "no row" in str(error)
    if not made:
        return
    assert len(made) == 3
    plain, kept, _ = made
    assert [shard.nnz for shard in plain.shards] == [shard.nnz for shard in kept.shards]
    assert sum(shard.bytes for shard in kept.shards) < sum(shard.bytes for shard in plain.shards)
    assert kept.in_memory.nbytes >= kept.nnz * 2 and plain.in_memory is None
    wanted, groups = multiply(dataset.load(plain, ALONE)), len(plain.shards)
    for manifest in made[1:]:
        for budget in (None, MemoryBudget(2**20 + 100)):
            for found, expected in zip(multiply(dataset.load(manifest, ALONE, budget=budget)), wanted, strict=True):
                np.testing.assert_array_equal(found, expected)
        rows, expected = (
            [shard.read_rows(part).toarray() for shard, part in dataset.open_shards(one, 0, one.n)]
            for one in (manifest, plain)
        )
        assert len(rows) == groups and all(map(np.array_equal, rows, expected))
        firsts = [[dataset.load(one, ALONE, share=(k, 3)).first_row for k in range(3)] for one in (manifest, plain)]
        assert firsts[0] == firsts[1]
        taken = dataset.load(manifest, ALONE, temporary=True)
        for found, expected in zip(multiply(taken), wanted, strict=True):
            np.testing.assert_array_equal(found, expected)
        assert not list(manifest.directory.glob("shard-*"))
        assert manifest.in_memory is None or manifest.in_memory.nbytes == 0
    if split is not None:
        tests = [multiply(dataset.load(folder / name / "test", ALONE)) for name in ("files", "memory", "too-little")]
        for found in tests[1:]:
            assert all(map(np.array_equal, found, tests[0]))


@pytest.mark.parametrize("split", [None, Splitter((0.7, 0.3), 1)])
@pytest.mark.parametrize("seed", range(2))
def test_each_rank_keeps_its_rows(comm, shared_dir, split, seed):
    """They are those that it has converted, and the sample for the choice of lambda is the same."""
    rng = np.random.default_rng(seed)
    lines = [
        " ".join([str(rng.integers(2)), *(f"{column}:{rng.integers(1, 3)}" for column in sorted(columns))])
        for columns in (rng.choice([1, 2, 3, 50, 70000], rng.integers(5), replace=False) for _ in range(300))
    ]
    on_root(comm, lambda: (shared_dir / "x.svm").write_text("\n".join(lines)))
    made = []
    for name in ("files", "memory"):
        how = {"split": split, "durable": False, "in_memory": name == "memory"}
        made.append(in_small_shards([shared_dir / "x.svm"], shared_dir / name, comm, **how))
    assert [ends_in_memory(manifest, comm.rank) is None for manifest in made] == [True, False]
    samples = [load_sample(manifest, comm, Shares(0.5, 0.3)) for manifest in made]
    assert all(map(np.array_equal, *(together(comm, *multiply(one)) for one in samples)))
    store = made[1].in_memory.whole([one.file for one in made[1].shards if one.file in made[1].in_memory.shards])
    blocks = [dataset.load(manifest, comm, temporary=True) for manifest in made]
    if store is not None:
        assert np.shares_memory(blocks[1].features.arrays[1], store.values)
    assert all(map(np.array_equal, *(together(comm, *multiply(block)) for block in blocks)))


def test_uneven_ranks_write_their_entries(comm, shared_dir, monkeypatch):
    """Where rows are held out by time, the last rank may have few training rows. Several ranks write few, too."""
    rows = "".join(f"{k % 2},{k},{k % 7}\n" for k in range(400))
    on_root(comm, lambda: (shared_dir / "x.csv").write_text("y,day,x\n" + rows))
    how = {"label": "y", "time": "day", "split": Splitter((0.5, 0.5), 0, "time"), "durable": False, "in_memory": True}
    for few, uneven, name in ((0, 1.1, "uneven"), (0, 10.0, "even"), (conversion.FEW_BYTES, 10.0, "few")):
        monkeypatch.setattr(conversion, "FEW_BYTES", few)
        monkeypatch.setattr(conversion, "UNEVEN", uneven)
        manifest = convert([shared_dir / "x.csv"], shared_dir / name, comm, **how)
        assert (ends_in_memory(manifest, comm.rank) is None) == (comm.size > 1 and name != "even")
        block = dataset.load(manifest, comm, temporary=True)
        assert manifest.n == sum(comm.allgather(len(block.labels))) == 200


@pytest.mark.serial
def test_what_the_system_refuses_is_written(tmp_path, monkeypatch):
    assert entries_in_memory.EntriesInMemory.reserve(2**62, "float64") is None
    (tmp_path / "x.svm").write_text("0 1:1 2:2\n1 2:3\n")
    monkeypatch.setattr(entries_in_memory, "room", lambda *args: 2**62)
    manifest = convert([tmp_path / "x.svm"], tmp_path / "d", ALONE, durable=False, in_memory=True)
    assert manifest.in_memory is None and not verify(manifest.directory)


@pytest.mark.serial
def test_room(monkeypatch):
    """Three quarters of the memory, or a quarter of the address space, and no more than the files can need."""
    monkeypatch.setattr("distsms.base.memory.available", lambda held: 2**40)
    assert entries_in_memory.room(10**6, 1) == 48 * 2**20 and entries_in_memory.room(10**12, 4) == 3 * 2**36
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2**34, -1))
    assert entries_in_memory.room(10**12, 1) == 2**32


@pytest.mark.serial
@pytest.mark.parametrize("value", [1, 2])
@pytest.mark.parametrize("column", [3, 70000])
def test_memory_that_is_not_filled_is_given_back(tmp_path, value, column):
    """Also that of held-out rows, and that of all rows when a training has taken them over."""
    row = " ".join(f"{k}:1" for k in range(1, 40) if k != 3) if column > 3 else "1:1 2:1"
    (tmp_path / "x.svm").write_text("".join(f"{k % 2} {row} {column}:{value}\n" for k in range(2000)))
    how = {"durable": False, "in_memory": True, "split": Splitter((0.5, 0.5), 1)}
    manifest = convert([tmp_path / "x.svm"], tmp_path / "d", ALONE, **how)
    (shard,) = manifest.shards
    store = manifest.in_memory.shards[shard.file].store
    columns, values = store.raw
    assert len(columns) - manifest.nnz in (0, 1) and len(values) == (manifest.nnz if value > 1 else 0)
    assert columns.itemsize == (2 if column < 2**16 else 4)
    dataset.load(manifest, ALONE, temporary=True)
    assert manifest.in_memory.nbytes == 0


@pytest.mark.serial
def test_the_fingerprint_covers_the_entries(tmp_path):
    """Rows that differ in one value have another fingerprint, although their files are the same."""
    found = []
    for number, value in enumerate((2, 2, 3)):
        (tmp_path / "x.svm").write_text(f"0 1:1 2:{value}\n1 2:3\n")
        found.append(convert([tmp_path / "x.svm"], tmp_path / str(number), ALONE, durable=False, in_memory=True))
    assert found[0].fingerprint == found[1].fingerprint != found[2].fingerprint
    with pytest.raises(InputError, match="has no dataset"):
        dataset.load(replace(found[0], in_memory=None), ALONE)
