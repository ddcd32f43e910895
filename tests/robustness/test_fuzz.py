"""Files of the right format with wrong content, files with which fuzzing found bugs, and a short run of the fuzzer."""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base import hdf5
from distsms.base.errors import InputError
from distsms.models import model
from distsms.training import checkpoint
from tests.robustness import flips, fuzz
from tests.support import hostile
from tests.support.conversion import convert
from tests.support.examples import examples
from tests.support.files import write_anndata
from tests.support.program import TIME_LIMIT

pytestmark = pytest.mark.serial
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FINDS = sorted((HERE / "finds").iterdir())
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, 9, 45, 2**31, 2**63 - 1, 10**15]),
    st.floats(),
    st.text(max_size=9),
    st.sampled_from(["../manifest.json", "/etc/passwd", "shard-00000.h5", "dense", "standard"]),
    st.lists(st.integers(-1, 9), max_size=5),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def places(value, at=()):
    """Yield the paths of all values inside a JSON value."""
    yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*at, key))


def changed(record, at, new):
    """Return a JSON value with `new` at a path, or without the key there if `new` is "nothing"."""
    if not at:
        return new
    copy = record.copy()
    if new == "nothing" and isinstance(copy, dict):
        del copy[at[0]]
    else:
        copy[at[0]] = changed(copy[at[0]], at[1:], new)
    return copy


def any_change(record):
    """A strategy that puts one or two odd values anywhere in a JSON record."""
    one = st.tuples(st.sampled_from(list(places(record))), st.one_of(ODD, st.just("nothing")))
    return st.lists(one, min_size=1, max_size=2)


def apply(record, changes):
    for at, new in changes:
        try:
            record = changed(record, at, new)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # the first change has removed this path
    return record


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in hostile.TARGETS.items()}


def test_the_fuzzer_has_every_target():
    assert [*hostile.TARGETS] == fuzz.NAMES


@pytest.mark.parametrize("name", hostile.TARGETS)
def test_what_is_sound_is_read(targets, name):
    for content in targets[name].seeds:
        targets[name].read(content)


@examples(2.5)
@given(st.data())
def test_manifests_of_any_content(targets, data):
    record = json.loads(targets["manifest"].seeds[0])
    for optional in ({}, {"normalize": "standard", "scale": [1.0] * 5}, {"table": {"columns": [], "label": None}}):
        whole = record | optional
        text = json.dumps(apply(whole, data.draw(any_change(whole))))
        hostile.attempt(targets["manifest"], text.encode("utf-8", "surrogatepass"))


@examples(2.5)
@given(st.data())
def test_models_of_any_content(targets, tmp_path_factory, data):
    info = apply(hostile.INFO, data.draw(any_change(hostile.INFO)))
    path = tmp_path_factory.getbasetemp() / "any.h5"
    with h5py.File(path, "w") as file:
        file.attrs["format"], file.attrs["version"], file.attrs["complete"] = model.FORMAT, 1, True
        file.attrs["info"] = json.dumps(info)
        file["w"] = data.draw(st.sampled_from([np.ones(5), np.ones((2, 2)), np.ones(5, "f4"), 7.0, np.inf, np.ones(0)]))
        if data.draw(st.booleans()):
            file["scale"] = data.draw(st.sampled_from([np.ones(5), np.ones(4), b"scale"]))
    hostile.attempt(targets["model"], path.read_bytes())


@pytest.mark.parametrize("name", ["w", "y", "X/indptr", "X/data"])
@pytest.mark.parametrize(
    "kind", ["claim", "chunks", "external", "soft", "linked", "virtual", "strings", "group", "none", "nbit", "twice"]
)
def test_datasets_that_are_not_what_they_say(targets, tmp_path, name, kind):
    """None of them is read, and no other file is opened, whatever size they claim and wherever they lead."""
    target = targets["model" if name == "w" else "shard"]
    path, outside = tmp_path / "made.h5", tmp_path / "outside.h5"
    path.write_bytes(target.seeds[0])
    with h5py.File(outside, "w") as file:
        file["there"] = np.ones(9)
    with h5py.File(path, "r+") as file:
        old = file[name]
        shape, dtype = old.shape, old.dtype
        del file[name], old
        if kind == "claim":
            file.create_dataset(name, (10**15,), "f8")
        elif kind == "chunks":
            file.create_dataset(name, (10**12,), dtype, chunks=(10**6,), compression="gzip")
        elif kind == "external":
            file.create_dataset(name, shape, dtype, external=[("/etc/hostname", 0, 2**20)])
        elif kind == "soft":
            file[name] = h5py.SoftLink("/elsewhere")
        elif kind == "linked":
            file[name] = h5py.ExternalLink(str(outside), "there")
        elif kind == "virtual":
            layout = h5py.VirtualLayout(shape, dtype)
            layout[:] = h5py.VirtualSource(str(outside), "there", shape)[:]
            file.create_virtual_dataset(name, layout)
        elif kind == "strings":
            file[name] = np.array(["text"] * 9, dtype=h5py.string_dtype())
        elif kind == "group":
            file.create_group(name)
        elif kind in ("nbit", "twice"):  # what one filter undoes, the other expands again
            settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            settings.set_chunk(shape)
            for _ in range(2):
                settings.set_deflate(1) if kind == "twice" else settings.set_filter(5)
                if kind == "nbit":
                    break
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(dtype), h5py.h5s.create_simple(shape), settings)
    with pytest.raises(InputError, match="hostile"):
        target.read(path.read_bytes())


def test_rows_that_share_a_long_string_are_refused(tmp_path):
    """The file is small, since the heap has the string once; HDF5 would make a copy for each row."""
    n, length = 20_000, 100_000
    write_anndata(path := tmp_path / "shared.h5ad", np.ones((n, 1)), ["x"], {"y": np.zeros(n)}, compression="gzip")
    with h5py.File(path, "r+") as file:
        file["obs/one"] = np.array(["x" * length], h5py.string_dtype())
        file.flush()
        with open(path, "rb") as raw:
            raw.seek(file["obs/one"].id.get_offset())
            reference = raw.read(16)
        dataset = file.create_dataset("obs/id", (n,), h5py.string_dtype(), chunks=(n,), compression="gzip")
        dataset.id.write_direct_chunk((0,), zlib.compress(n * reference))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match="'obs/id' has strings larger than the file"):
        convert([path], tmp_path / "out", hostile.ALONE, label="y", id="id")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB; all copies would be 2 GB


def test_a_pipe_behind_a_link_is_not_waited_for(targets, tmp_path):
    """Opening the pipe would block forever."""
    import os

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "made.h5").write_bytes(targets["model"].seeds[0])
    with h5py.File(tmp_path / "made.h5", "r+") as file:
        del file["w"]
        file["w"] = h5py.ExternalLink(str(tmp_path / "pipe"), "w")
    with pytest.raises(InputError, match="no dataset 'w', or its data are in another file"):
        targets["model"].read((tmp_path / "made.h5").read_bytes())
    for name in ("X", "X/data", "obs", "obs/y", "obs/y/codes", "var", "var/gene"):
        X, labels = sparse.csr_matrix(np.ones((4, 2))), np.array(["u", "v"] * 2)
        write_anndata(tmp_path / "made.h5ad", X, ["a", "b"], {"y": labels})
        with h5py.File(tmp_path / "made.h5ad", "r+") as file:
            del file[name]
            file[name] = h5py.ExternalLink(str(tmp_path / "pipe"), "w")
        with pytest.raises(InputError, match=f"no dataset '{name}.*in another file"):
            convert([tmp_path / "made.h5ad"], tmp_path / "out", hostile.ALONE, label="y", positive="v")


def test_every_wrong_size_in_a_heap_is_seen(tmp_path):
    """Sizes with which HDF5 would loop forever or read beyond the heap, in both objects of a model's heap."""
    model.save(tmp_path / "m.h5", model.Model(np.ones(3), hostile.INFO))
    whole = bytearray((tmp_path / "m.h5").read_bytes())
    hdf5.check_heaps(tmp_path / "m.h5")
    heap = whole.find(b"GCOL")
    size = int.from_bytes(whole[heap + 24 : heap + 32], "little")
    refused = 0
    for wrong in (0, 2**64 - 16, 2**64 - 1, 2**63, 5000):
        for at in (heap + 24, heap + 32 + -(-size // 8) * 8 + 8):
            damaged = whole.copy()
            damaged[at : at + 8] = wrong.to_bytes(8, "little")
            (tmp_path / "m.h5").write_bytes(damaged)
            try:
                model.load(tmp_path / "m.h5")
            except InputError as error:
                assert "m.h5" in str(error)
                refused += 1
    assert refused == 10


@examples(2.5)
@given(st.data())
def test_checkpoints_of_any_content(targets, tmp_path_factory, data):
    """The checksums are right; only the description in the file is wrong."""
    import io
    import zipfile

    source = zipfile.ZipFile(io.BytesIO(targets["checkpoint"].seeds[0]))
    members = {name: source.read(name) for name in source.namelist()}
    info = json.loads(members[checkpoint.INFO])
    members[checkpoint.INFO] = json.dumps(apply(info, data.draw(any_change(info)))).encode("utf-8", "surrogatepass")
    name = data.draw(st.sampled_from(sorted(members)))
    member = members[name]
    members[name] = member[: data.draw(st.sampled_from([0, 6, 40, len(member), len(member), len(member) - 8]))]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    hostile.attempt(targets["checkpoint"], made.getvalue())


@examples(3.3)
@given(st.data())
def test_bytes_in_any_order(targets, data):
    """Pieces of valid files in another order, for formats that no C library reads."""
    name = data.draw(st.sampled_from(["text", "manifest", "csv", "npy", "checkpoint"]))
    whole = data.draw(st.sampled_from(targets[name].seeds))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    more = data.draw(st.lists(st.binary(max_size=6), max_size=2))
    hostile.attempt(targets[name], b"".join(data.draw(st.permutations([*pieces, *more]))))


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    happened = flips.flip(flips.make(tmp_path), 90, seed=0)
    assert flips.bugs(happened) == []
    assert sum(counts["refused"] for counts in happened.values()) > 20


@pytest.mark.parametrize("path", FINDS, ids=lambda path: path.name)
def test_what_was_found(targets, path):
    """Each of these files once caused a crash, a hang, an allocation of gigabytes, or a traceback."""
    with pytest.raises(InputError, match="hostile"):
        targets[path.name.split("-")[0]].read(path.read_bytes())


@pytest.mark.e2e
def test_a_fuzz_without_its_fuzzer(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fuzz"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert fuzz.main() == 2
    error = capsys.readouterr().err
    assert "needs Atheris" in error and error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="no Atheris")
def test_a_short_fuzz(tmp_path):
    words = ["shard", "model", "text", "csv", "--seconds", "1", "--finds", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.robustness.fuzz", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 finds") == 4
