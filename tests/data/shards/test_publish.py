"""When a folder becomes a data set, and what is left of one whose writing was interrupted."""

import os

import numpy as np
import pytest

from distsms.data.shards.dataset import finish_shard, load, prepare, read_manifest, stage_shard, verify, write_data
from distsms.errors import InputError
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
    write_data(own_dir, X, -y, 2, overwrite=True)
    assert sorted(os.listdir(own_dir)) == ["manifest.json", "notes.h5", "shard-00000.h5", "shard-00001.h5"]
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
def test_killed_while_publishing(own_dir, monkeypatch, overwrite):
    """Whenever publishing is interrupted, nothing is left that looks like a data set."""
    X, y = draw()
    if overwrite:
        write_data(own_dir, X, -y, 3)
    calls = []

    def die(source, target, replace=os.replace):
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", die)
        write_data(own_dir, X, y, 3, overwrite=overwrite)
    with pytest.raises(InputError, match=r"no manifest\.json"):
        load(own_dir, ALONE)
    write_data(own_dir, X, y, 2)
    assert sorted(os.listdir(own_dir)) == ["manifest.json", "shard-00000.h5", "shard-00001.h5"]
