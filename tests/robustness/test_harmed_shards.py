"""Shards that are broken, or of another data set, are refused with an error that names the file."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base.errors import InputError
from distsms.shards import dataset, storage
from distsms.shards.dataset import load
from distsms.shards.from_arrays import write_data
from distsms.shards.manifest import COMPRESSIONS, prepare, publish, verify
from distsms.shards.writer import finish_shard, stage_shard
from tests.support.examples import examples
from tests.support.sharded import ALONE, RankOf, as_array, draw, entry_count, forget_checksums, rewrite


def damage(directory, file, name, at, value):
    """Set one element of a dataset, whose checksum an older program did not write."""
    forget_checksums(directory)
    with h5py.File(directory / file, "r+") as target:
        target[name][at] = value(target[name][at]) if callable(value) else value


def test_all_ranks_fail_if_one_shard_is_bad(comm, shared_dir):
    X, y = draw(60)
    if comm.is_root:
        write_data(shared_dir, X, y, 6)
        damage(shared_dir, "shard-00005.h5", "y", 9, 3)
    comm.barrier()
    with pytest.raises(InputError, match=r"shard-00005\.h5: label 3 at row 9 of the shard \(row 59 of the data"):
        load(shared_dir, comm)


DAMAGES = [
    ("X/data", 5, np.nan, r"value nan at row \d+ of the shard"),
    ("X/data", 5, -np.inf, "value -inf"),
    ("y", 2, 3, r"label 3 at row 2 of the shard \(row 22 of the data"),
    ("y", 0, 0, "label 0 at row 0"),
    ("y", 1, -128, "label -128"),
    ("weights", 4, -1.0, "weight -1.0 at row 4"),
    ("weights", 4, np.nan, "weight nan at row 4"),
    ("X/indices", 5, 99, "column 99 at row"),
    ("X/indices", 5, -1, "column -1 at row"),
    ("X/indptr", 3, 2**40, "indptr"),
    ("X/indptr", 3, -5, "indptr"),
    ("X/indptr", 0, 1, "indptr"),
    ("X/indptr", 20, 3, "indptr"),
    ("X/indptr", 20, lambda last: last - 1, "indptr"),
]


def test_a_row_that_is_longer_than_there_are_columns(own_dir):
    """Checksums that fit do not help: anyone can compute them, and arrays of one number a column hold any row."""
    write_data(own_dir, *draw())
    with h5py.File(own_dir / "shard-00000.h5", "r+") as file:
        indptr = file["X/indptr"][:]
        indptr[8:-1] = indptr[-1]
        storage.remove(file["X/indptr"])
        storage.write(file["X"], "indptr", indptr)
        digests = storage.digests(file)
    rewrite(own_dir, lambda record: record["shards"][0].update(digests=digests))
    with pytest.raises(InputError, match=r"makes too long a row near row 7 of the shard"):
        load(own_dir, ALONE)


def test_a_locked_shard_can_be_read(own_dir):
    """HDF5's locks are off, so a shard can be read if another process locks it, or the file system has no locks."""
    write_data(own_dir, *draw())
    with open(own_dir / "shard-00000.h5", "rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert load(own_dir, ALONE).n == 40


@pytest.mark.parametrize(("name", "at", "value", "message"), DAMAGES)
def test_damaged_rows(own_dir, name, at, value, message):
    X, y = draw(40)
    write_data(own_dir, X, y, 2, weights=np.ones(40))
    damage(own_dir, "shard-00001.h5", name, at, value)
    assert [problem for problem in verify(own_dir) if "shard-00001.h5: its content" in problem]
    for size in (1, 2, 5):
        failures = []
        for rank in range(size):
            try:
                load(own_dir, RankOf(rank, size))
            except InputError as error:
                failures.append(str(error))
        assert failures and all("shard-00001.h5: " in failure for failure in failures)
        if "indptr" not in name:  # several ranks may read a wrong pointer
            assert len(failures) == 1
    with pytest.raises(InputError, match=message):
        load(own_dir, ALONE)


def test_columns_out_of_order(own_dir):
    X = sparse.csr_matrix(np.array([[1.0, 2, 3], [4, 5, 6], [0, 0, 0], [7, 8, 9]]))
    write_data(own_dir, X, [1, -1, 1, -1])
    for index in (4, 8):
        shutil.copy(own_dir / "shard-00000.h5", own_dir / "kept")
        damage(own_dir, "shard-00000.h5", "X/indices", index, 0)
        row = {4: 1, 8: 3}[index]
        with pytest.raises(InputError, match=rf"column 0 at row {row} of the shard .* greater than the one before"):
            load(own_dir, ALONE)
        shutil.move(own_dir / "kept", own_dir / "shard-00000.h5")
    np.testing.assert_array_equal(as_array(load(own_dir, ALONE).features), X.toarray())


def test_damaged_dense_value(own_dir):
    write_data(own_dir, np.ones((6, 3)), [1, -1] * 3, 2)
    damage(own_dir, "shard-00001.h5", "X", (1, 2), np.nan)
    with pytest.raises(InputError, match=r"shard-00001\.h5: value nan at row 1 of the shard \(row 4 of the data"):
        load(own_dir, ALONE)


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def cut_unnoticed(path):
    cut(path)
    change = {"bytes": path.stat().st_size, "nnz": 0}
    rewrite(path.parent, lambda record: (record["shards"][1].update(change), record.update(nnz=entry_count(record))))


def garbage(path):
    path.write_bytes(b"x" * path.stat().st_size)


def incomplete(path):
    with h5py.File(path, "r+") as file:
        del file.attrs["complete"]


def foreign(path):
    with h5py.File(path, "r+") as file:
        file.attrs["format"] = "other"


def without_labels(path):
    with h5py.File(path, "r+") as file:
        del file["y"]


def other_type(path):
    with h5py.File(path, "r+") as file:
        kept = file["y"][:].astype(np.int64)
        del file["y"]
        file["y"] = kept


def other_shape(path):
    with h5py.File(path, "r+") as file:
        file["X"].attrs["shape"] = [20, 13]


def link_elsewhere(path):
    with h5py.File(path, "r+") as file:
        del file["y"]
        file["y"] = h5py.ExternalLink(str(path.with_name("shard-00000.h5")), "/y")


def flat_matrix(path):
    with h5py.File(path, "r+") as file:
        del file["X"]
        file["X"] = np.ones(3)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (Path.unlink, "missing"),
        (cut, "bytes, but manifest.json says"),
        (cut_unnoticed, "HDF5"),
        (garbage, "HDF5"),
        (incomplete, "not written to its end"),
        (foreign, "not a shard"),
        (without_labels, "no dataset 'y'"),
        (other_type, "'y' is int64"),
        (other_shape, r"shape \[20 13\]"),
        (link_elsewhere, "no dataset 'y', or its data are in another file"),
        (flat_matrix, "no dataset 'X/indptr'"),
    ],
)
def test_harmed_files(own_dir, harm, message):
    X, y = draw(40)
    write_data(own_dir, X, y, 2)
    path = own_dir / "shard-00001.h5"
    harm(path)
    if harm not in (Path.unlink, cut, cut_unnoticed):
        rewrite(own_dir, lambda record: record["shards"][1].update(bytes=path.stat().st_size))
    with pytest.raises(InputError, match=message) as caught:
        load(own_dir, ALONE)
    assert "shard-00001.h5" in str(caught.value)
    problems = verify(own_dir)
    assert len(problems) == 1 and "shard-00001.h5" in problems[0]


@examples(2.5)
@given(st.integers(0, 10**6), st.integers(0, 255), st.integers(1, 3), st.sampled_from(COMPRESSIONS))
def test_any_wrong_byte_is_found_by_verify_and_changes_nothing_in_silence(place, byte, size, compression):
    X, y = draw(9, 4)
    with tempfile.TemporaryDirectory() as directory:
        manifest = write_data(directory, X, y, compression=compression)
        path = Path(directory) / "shard-00000.h5"
        content = bytearray(path.read_bytes())
        place %= len(content)
        same = content[place] == byte
        content[place] = byte
        path.write_bytes(content)
        assert len(verify(directory)) == (0 if same else 1)
        for rank in range(size):
            with contextlib.suppress(InputError):
                block = load(manifest, RankOf(rank, size))
                own = slice(block.first_row, block.first_row + len(block.labels))
                np.testing.assert_array_equal(as_array(block.features), X[own].toarray())
                np.testing.assert_array_equal(block.labels, y[own])


def test_links(own_dir):
    """A symbolic link to the directory is allowed; a shard that is a link to another directory is refused."""
    write_data(own_dir / "data", *draw(), 2)
    (own_dir / "alias").symlink_to(own_dir / "data")
    assert load(own_dir / "alias", ALONE).n == 40
    shutil.move(own_dir / "data" / "shard-00001.h5", own_dir / "outside.h5")
    (own_dir / "data" / "shard-00001.h5").symlink_to(own_dir / "outside.h5")
    with pytest.raises(InputError, match=r"shard-00001\.h5: is a link that leads out"):
        load(own_dir / "data", ALONE)
    assert len(verify(own_dir / "data")) == 1


def test_unequal_shards_are_not_published(own_dir):
    X, y = draw(4)
    prepare(own_dir)
    sparse_one = finish_shard(stage_shard(own_dir, 0, X), y, 12)
    dense_one = finish_shard(stage_shard(own_dir, 1, X.toarray()), y, 12)
    for entries in ([sparse_one, dense_one], [sparse_one, sparse_one]):
        with pytest.raises(ValueError, match="shards"):
            publish(own_dir, entries, label_map={}, zero_based=True)
    assert not (own_dir / "manifest.json").exists()


def test_links_in_the_place_of_files_that_are_written(own_dir):
    """Writing replaces links in the directory, and never overwrites the files that they lead to."""
    outside = own_dir / "outside"
    outside.write_text("mine")
    for name in ("manifest.json", "shard-00000.h5", "shard-00000.h5.partial", ".writing"):
        for target in (outside, own_dir / "absent"):
            data = own_dir / f"{name}-{target.name}"
            data.mkdir()
            (data / name).symlink_to(target)
            if name == ".writing":
                with pytest.raises(InputError, match="cannot be written"):
                    write_data(data, *draw(), overwrite=True)
            else:
                write_data(data, *draw(), overwrite=True)
                assert load(data, ALONE).n == 40
                assert not (data / name).is_symlink()
            assert outside.read_text() == "mine" and not (own_dir / "absent").exists()


def test_a_shard_that_vanishes_while_it_is_read(own_dir, monkeypatch):
    """The shard vanishes after the check of its size, and before it is opened."""
    write_data(own_dir, *draw(), 3)
    checked = dataset.Manifest.checked_path

    def vanishing(manifest, shard):
        path = checked(manifest, shard)
        vanishing.calls += 1
        if vanishing.calls == 4:  # after the checks of all three
            (own_dir / "shard-00000.h5").unlink()
        return path

    vanishing.calls = 0
    monkeypatch.setattr(dataset.Manifest, "checked_path", vanishing)
    with pytest.raises(InputError, match=r"shard-00000\.h5: cannot be read.*No such file"):
        load(own_dir, ALONE)


def test_shards_of_two_data_sets_mixed(own_dir):
    """They are refused by their sizes, or where these are equal by their checksums, and `verify` finds them."""
    X, y = draw()
    write_data(own_dir / "a", X, y, 2)
    write_data(own_dir / "b", X * 2, y, 2)
    shutil.copy(own_dir / "b" / "shard-00001.h5", own_dir / "a" / "shard-00001.h5")
    with pytest.raises(InputError, match=r"shard-00001\.h5: 'X/data' is not what the manifest says"):
        load(own_dir / "a", ALONE)
    problems = verify(own_dir / "a")
    assert len(problems) == 1 and "shard-00001.h5: its content is not what was written" in problems[0]
    write_data(own_dir / "c", *draw(41), 2)
    shutil.copy(own_dir / "c" / "shard-00001.h5", own_dir / "a" / "shard-00001.h5")
    with pytest.raises(InputError, match=r"shard-00001\.h5: has \d+ bytes, but manifest\.json says"):
        load(own_dir / "a", ALONE)
