"""Manifests that are invalid, of another version, or that contradict the shards are refused; the error names them."""

from __future__ import annotations

import contextlib
import json

import pytest

from distsms.base.errors import InputError
from distsms.shards.dataset import load, read_manifest
from distsms.shards.from_arrays import write_data
from distsms.shards.manifest import prepare
from tests.support.sharded import ALONE, draw, entry_count, forget_checksums, rewrite


def test_not_a_data_set(own_dir):
    with pytest.raises(InputError, match="nowhere: there is no such file or folder"):
        read_manifest(own_dir / "nowhere")
    with pytest.raises(InputError, match=r"is not a data set, since it has no manifest\.json"):
        read_manifest(own_dir)
    (own_dir / "text.svm").write_text("+1 1:1\n")
    with pytest.raises(InputError, match=r"text\.svm: is a file"):
        read_manifest(own_dir / "text.svm")
    with pytest.raises(InputError, match="cannot be written"):
        prepare(own_dir / "text.svm" / "data")


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"format": "other"}', "\udcff", '{"format": "distsms-shards"}'])
def test_manifest_of_nonsense(own_dir, text):
    (own_dir / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"manifest\.json: "):
        read_manifest(own_dir)


def test_newer_version(own_dir):
    write_data(own_dir, *draw())
    rewrite(own_dir, lambda record: record.update(version=99, n="of another type then"))
    with pytest.raises(InputError, match=r"format version 99, this distsms reads up to \d; update distsms"):
        load(own_dir, ALONE)


@pytest.mark.parametrize(
    "change",
    [
        {"n": 41},
        {"n": "40"},
        {"n": True},
        {"n": -40},
        {"n": 40.0},
        {"n": 10**30},
        {"p": 0},
        {"p": 3},
        {"nnz": 0},
        {"n_pos": 0},
        {"layout": "coo"},
        {"layout": "dense"},
        {"dtype": "int8"},
        {"weights": 0},
        {"label_map": {"2": 1}},
        {"label_map": []},
        {"zero_based": None},
        {"source": [{"name": 3, "bytes": 1}]},
        {"source": {}},
        {"shards": []},
        {"shards": [7]},
        {"creator": None},
    ],
)
def test_wrong_manifest(own_dir, change):
    write_data(own_dir, *draw(), 2)
    rewrite(own_dir, lambda record: record.update(change))
    with pytest.raises(InputError, match=r"manifest\.json: "):
        load(own_dir, ALONE)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 19},
        {"rows": "20"},
        {"nnz": 10**15},
        {"columns": 13},
        {"columns": 0},
        {"bytes": 10},
        {"sha256": "abc"},
        {"values": 1},
        {"file": "shard-00000.h5"},
        {"file": "../shard-00001.h5"},
        {"file": "/etc/passwd"},
        {"file": "a/b.h5"},
        {"file": "a\\b.h5"},
        {"file": ".."},
        {"file": "."},
        {"file": ""},
        {"file": "a\0b"},
        {"file": None},
    ],
)
def test_wrong_shard_in_manifest(own_dir, change):
    write_data(own_dir, *draw(), 2)
    rewrite(own_dir, lambda record: (record["shards"][1].update(change), record.update(nnz=entry_count(record))))
    with pytest.raises(InputError, match=r"manifest\.json: "):
        load(own_dir, ALONE)


def test_missing_fields(own_dir):
    write_data(own_dir, *draw())
    rewrite(own_dir, lambda record: record.update(source=[{"name": "a.svm", "bytes": 7}]))
    forget_checksums(own_dir)
    whole = json.loads((own_dir / "manifest.json").read_text())
    for name in whole.keys() - {"doubles"}:
        rewrite(own_dir, lambda record, name=name: record.pop(name))
        with pytest.raises(InputError, match=f"manifest.json: .*'{name}'"):
            read_manifest(own_dir)
        (own_dir / "manifest.json").write_text(json.dumps(whole))
    for name in whole["shards"][0]:
        rewrite(own_dir, lambda record, name=name: record["shards"][0].pop(name))
        with pytest.raises(InputError, match=f"shard 0: field '{name}'"):
            read_manifest(own_dir)
        (own_dir / "manifest.json").write_text(json.dumps(whole))
    assert read_manifest(own_dir).source == ({"name": "a.svm", "bytes": 7},)


def test_a_changed_manifest_is_refused(own_dir):
    """Also where what it says is possible; only the checksum's own name may change, as if there was none."""
    write_data(own_dir, *draw())
    path, known = own_dir / "manifest.json", read_manifest(own_dir)
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with contextlib.suppress(InputError):
            assert read_manifest(own_dir) == known
    path.write_bytes(content.replace(b'"zero_based": false', b'"zero_based": true '))
    with pytest.raises(InputError, match=r"manifest\.json: its content is not what was written"):
        read_manifest(own_dir)
