"""When a folder becomes a data set, and what is left of one whose writing was interrupted."""

import errno
import math
import os

import numpy as np
import pytest

from distsms.base.errors import InputError
from distsms.base.files import OutputFile
from distsms.shards import manifest, writer
from distsms.shards.dataset import load, read_manifest
from distsms.shards.from_arrays import write_data
from distsms.shards.manifest import prepare, verify
from distsms.shards.splits import Splitter
from distsms.shards.writer import finish_shard, stage_shard
from tests.support.conversion import convert
from tests.support.sharded import ALONE, draw


def test_a_data_set_is_overwritten_only_on_request(own_dir):
    X, y = draw()
    first = write_data(own_dir, X, y, 5)
    (own_dir / "notes.h5").write_text("the user's own")
    with pytest.raises(InputError, match="holds a data set already"):
        write_data(own_dir, X, y)
    assert read_manifest(own_dir) == first
    with pytest.raises(InputError, match="labels"):
        write_data(own_dir, X, y * 3, overwrite=True)
    assert read_manifest(own_dir) == first and verify(own_dir) == []
    second = write_data(own_dir, X, -y, 2, overwrite=True)
    assert {shard.file for shard in first.shards}.isdisjoint(shard.file for shard in second.shards)
    assert set(os.listdir(own_dir)) == {"manifest.json", "notes.h5", *(shard.file for shard in second.shards)}
    with pytest.raises(InputError, match=r"missing.* run again if it was just replaced"):
        load(first, ALONE)
    np.testing.assert_array_equal(load(own_dir, ALONE).labels, -y)


@pytest.mark.parametrize("step", ["staged", "finished"])
def test_a_killed_conversion_is_no_data_set(own_dir, step):
    X, y = draw()
    prepare(own_dir)
    staged = stage_shard(own_dir, 7, X)
    if step == "finished":
        finish_shard(staged, y, 12)
    with pytest.raises(InputError, match=r"no manifest\.json"):
        load(own_dir, ALONE)
    (own_dir / "other.partial").write_text("not ours")
    write_data(own_dir, X, y)
    assert sorted(os.listdir(own_dir)) == ["manifest.json", "other.partial", "shard-00000.h5"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("where", ["checksum", "removal"])
def test_a_disk_that_fails_leaves_a_whole_data_set_or_none(own_dir, tmp_path, monkeypatch, overwrite, where):
    """Also where only files of the old data set cannot be removed: the new one has taken its place."""
    rows = "".join(f"{(-1) ** k} 1:{k}\n" for k in range(9))
    (tmp_path / "rows.svm").write_text(rows)
    old = convert([tmp_path / "rows.svm"], own_dir, ALONE, n_shards=2) if overwrite else None
    (tmp_path / "rows.svm").write_text(rows * 2)

    module, name = (writer, "file_sha256") if where == "checksum" else (manifest, "_keep")
    works, function = [False, *[True] * 9], getattr(module, name)

    def fail(*arguments):
        if works.pop(0):
            return function(*arguments)
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(module, name, fail)
        with pytest.raises(OSError, match="Stale"):
            convert([tmp_path / "rows.svm"], own_dir, ALONE, n_shards=3, overwrite=overwrite)
    assert not [name for name in os.listdir(own_dir) if name.endswith(".partial")] if own_dir.exists() else not old
    if where == "checksum" and old is None:
        assert not own_dir.exists() or not os.listdir(own_dir)
    else:
        assert verify(own_dir) == [] and read_manifest(own_dir).n == (9 if where == "checksum" else 18)


@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("overwrite", [False, True])
def test_stopped_while_publishing(own_dir, monkeypatch, overwrite, failure, step):
    """Whenever publishing is stopped before its last step, the old data set is whole, or there is none."""
    X, y = draw()
    old = write_data(own_dir, X, -y, 3) if overwrite else None
    calls = []

    def die(source, target, replace=os.replace):
        calls.append(target)
        if len(calls) == step:
            raise failure
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, InputError)):
        patch.setattr(os, "replace", die)
        write_data(own_dir, X, y, 3, overwrite=overwrite)
    if old is None:
        with pytest.raises(InputError, match=r"no manifest\.json"):
            load(own_dir, ALONE)
    else:
        assert read_manifest(own_dir) == old and verify(own_dir) == []
        np.testing.assert_array_equal(load(own_dir, ALONE).labels, -y)
    new = write_data(own_dir, X, y, 2, overwrite=overwrite)
    assert set(os.listdir(own_dir)) == {"manifest.json", *(shard.file for shard in new.shards)}


def test_parts_are_exchanged_together(tmp_path, monkeypatch):
    """If the second part of a split cannot be completed, both old ones stay, and nothing of the new ones."""
    (tmp_path / "a.svm").write_text("".join(f"{(-1) ** k} 1:{k}\n" for k in range(60)))
    made = tmp_path / "d"
    convert([tmp_path / "a.svm"], made, ALONE, split=Splitter((0.5, 0.5)))
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    finish, calls = OutputFile.finish, []

    def full(file, durable=True):
        calls.append(file)
        if len(calls) == n_files:
            raise OSError(28, "No space left on device")
        finish(file, durable)

    monkeypatch.setattr(OutputFile, "finish", full)
    n_files = math.inf
    convert([tmp_path / "a.svm"], tmp_path / "other", ALONE, split=Splitter((0.5, 0.5), seed=1))
    n_files, calls = len(calls), []  # the last file that is written is the manifest of the second part
    with pytest.raises(InputError, match="No space left on device"):
        convert([tmp_path / "a.svm"], made, ALONE, split=Splitter((0.5, 0.5), seed=1), overwrite=True)
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before
