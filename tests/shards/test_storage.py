"""Arrays in HDF5, compressed or not: any range of entries comes back, and damaged arrays do no harm."""

from __future__ import annotations

import contextlib
import struct
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base import hdf5
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.models import inputs
from distsms.shards import storage
from distsms.shards.dataset import load, read_manifest
from distsms.shards.from_arrays import write_data
from distsms.shards.manifest import COMPRESSIONS, verify
from tests.support.conversion import convert

pytestmark = pytest.mark.serial
DTYPES = ["int8", "int32", "int64", "float32", "float64", "S7", "S300"]
PACKED = "blosc-lz4"


def drawn(seed, shape, dtype):
    """Return values of which some compress and some do not."""
    rng = np.random.default_rng(seed)
    values = np.where(rng.random(shape) < 0.5, rng.integers(0, 3, shape), rng.integers(-100, 100, shape))
    return values.astype(str).astype(dtype) if dtype[0] == "S" else (values * np.array(1.25)).astype(dtype)


@contextlib.contextmanager
def kept(array, compression=PACKED, harm=None):
    """Yield the StoredArray of the array in a file; harm(path) is done to it before it is opened."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "one.h5")
        with hdf5.write_file(path) as file:
            storage.write(file, "X", array, compression)
        if harm is not None:
            harm(path)
        with hdf5.open_file(path, "a file") as file, open(path, "rb", buffering=0) as raw:
            yield storage.open_array(file["X"], raw, compression)


@given(
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from(DTYPES),
    n=st.integers(0, 200),
    width=st.one_of(st.none(), st.integers(1, 9)),
    piece=st.sampled_from([1, 7, 64, 2**17]),
    compression=st.sampled_from(["none", PACKED]),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_any_range_comes_back(seed, dtype, n, width, piece, compression, cuts):
    array = drawn(seed, n if width is None else (n, width), dtype)
    start, stop = sorted(int(cut * n) for cut in cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "CHUNK", piece)
        with kept(array, compression) as elements:
            found = elements.read(start, stop)
            elements.prefetch(start, stop)
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array[start:stop])
            np.testing.assert_array_equal(elements.read(0, n), array)
            if dtype[0] != "S":
                other = np.empty(found.shape, np.float64)
                elements.read(start, stop, other)
                np.testing.assert_array_equal(other, array[start:stop])
            assert elements.n_bytes(start, start) == 0
            if compression == "none":
                assert elements.n_bytes(start, stop) == array[start:stop].nbytes
            else:
                assert (
                    elements.n_bytes(start, stop) <= elements.n_bytes(0, n) <= Path(elements.file.name).stat().st_size
                )


def test_a_long_id_does_not_make_all_of_a_piece_long():
    with kept(np.array(["x" * 70_000, *"abcdefgh"] * 9, "S")) as elements:
        assert elements.length * elements.dtype.itemsize <= storage.CHUNK_BYTES
        assert elements.read(9, 11).tolist() == [b"x" * 70_000, b"a"]


def test_without_the_library(tmp_path, monkeypatch):
    """A missing library is reported before any work begins; data that are not compressed do not need it."""
    for compression in COMPRESSIONS:
        write_data(tmp_path / compression, np.eye(2), [1, -1], compression=compression)
    monkeypatch.setitem(sys.modules, "numcodecs", None)
    plain, packed = (read_manifest(tmp_path / compression) for compression in COMPRESSIONS)

    def check_readable(manifest):
        storage.check_codec(manifest.compression, manifest.directory)

    check_readable(plain)
    assert load(plain, Communicator()).n == 2 and verify(tmp_path / PACKED) == []
    for use in (check_readable, lambda manifest: inputs.check(manifest.directory, inputs.untrained_model(manifest))):
        with pytest.raises(
            InputError, match=r"blosc-lz4: compressed shards need the package numcodecs: pip install .distsms\[codecs\]"
        ):
            use(packed)
    (tmp_path / "rows.svm").write_text("1 1:1\n-1 2:1\n")
    with pytest.raises(InputError, match="--compress: compressed shards need the package numcodecs"):
        convert([tmp_path / "rows.svm"], tmp_path / "new", Communicator(), compression=PACKED)
    assert not (tmp_path / "new").exists()


def test_what_is_compressed_is_smaller():
    array = np.arange(10**6, dtype=np.int32) // 7
    with kept(array) as elements:
        assert 20 * elements.n_bytes(0, len(array)) < array.nbytes


def test_others_can_read_it():
    """h5py reads the arrays with the filters of hdf5plugin."""
    pytest.importorskip("hdf5plugin")
    array = drawn(0, (10**5, 3), "float32")
    with kept(array) as elements, h5py.File(elements.file.name, locking=False) as file:
        np.testing.assert_array_equal(file["X"][:], array)


def test_in_another_way_than_is_said():
    """Arrays with gzip, with chunks or plain ones are refused, and compressed ones where there should be none."""
    array = np.arange(1000)

    def remade(**options):
        def harm(path):
            with h5py.File(path, "w") as file:
                file.create_dataset("X", data=array, **options)

        return harm

    ways = [(PACKED, {}), (PACKED, {"compression": "gzip"}), (PACKED, {"chunks": (100,)}), ("none", {"chunks": (100,)})]
    for compression, options in ways:
        with pytest.raises(InputError, match=r"one.h5: 'X' is not stored"), kept(array, compression, remade(**options)):
            pass
    not_one = pytest.raises(InputError, match=r"'X' is not stored in one piece")
    with kept(array) as elements, h5py.File(elements.file.name, locking=False) as file, not_one:
        storage.open_array(file["X"], elements.file, "none")


def frames(path):
    """Return where the compressed chunks are."""
    with h5py.File(path) as file, open(path, "rb", buffering=0) as raw:
        return storage.open_array(file["X"], raw, PACKED).places.tolist()


@given(
    piece=st.integers(0, 3),
    at=st.one_of(st.integers(0, 40), st.integers(0, 10**4)),
    byte=st.integers(1, 255),
    more=st.integers(0, 8),
)
def test_damaged_pieces_are_refused_or_read_as_something(piece, at, byte, more):
    """Whatever is wrong in a chunk, the result is an error or an array of the right size; nothing worse."""
    array = drawn(1, 4 * storage.CHUNK, "float64")

    def harm(path):
        place, size = frames(path)[piece]
        with open(path, "r+b") as file:
            file.seek(place + at % size)
            old = file.read(1 + more)
            file.seek(place + at % size)
            file.write(bytes(one ^ byte for one in old))

    with kept(array, PACKED, harm) as elements, contextlib.suppress(OSError):
        assert elements.read(0, len(array)).shape == array.shape


@pytest.mark.parametrize("at, what", [(4, "elements"), (12, "bytes")])
@pytest.mark.parametrize("by", [-1, 1, 2**24])
def test_a_piece_that_lies_about_its_sizes(at, what, by):
    """If a chunk claims more or fewer elements, or bytes, than there are, Blosc is not called."""

    def harm(path):
        place, _ = frames(path)[1]
        with open(path, "r+b") as file:
            file.seek(place + at)
            size = int.from_bytes(file.read(4), "little") + by
            file.seek(place + at)
            file.write(size.to_bytes(4, "little"))

    with kept(drawn(2, 3 * storage.CHUNK, "int32"), PACKED, harm) as elements:
        elements.read(0, storage.CHUNK)
        with pytest.raises(OSError, match="not what was written"):
            elements.read(0, 2 * storage.CHUNK)


def test_a_file_that_became_shorter():
    for compression, error in (("none", EOFError), (PACKED, EOFError)):
        with kept(drawn(3, 3 * storage.CHUNK, "int32"), compression) as elements:
            with open(elements.file.name, "r+b") as file:
                file.truncate(Path(elements.file.name).stat().st_size // 2)
            with pytest.raises(error):
                elements.read(0, 3 * storage.CHUNK)


def test_every_byte_of_every_range_is_checked(monkeypatch):
    """A flipped bit is found by each reading that needs its block, and by no other, with and without compression."""
    monkeypatch.setattr(storage, "BLOCK", 64)
    monkeypatch.setattr(storage, "_READ", 256)
    monkeypatch.setattr(storage, "CHUNK", 16)
    array = np.arange(251, dtype=np.float32)
    for compression in ("none", PACKED):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "one.h5")
            with hdf5.write_file(path) as file:
                storage.write(file, "X", array, compression)
            with hdf5.open_file(path, "a file") as file, open(path, "rb", buffering=0) as raw:
                digest = storage.digests(file)["X"]
                stored = storage.open_array(file["X"], raw, compression, digest)
                starts = range(0, 251, 3)
                for start in starts:
                    for stop in (start, start + 1, start + 17, start + 90, 251):
                        expected = array[start : min(stop, 251)]
                        np.testing.assert_array_equal(stored.read(start, min(stop, 251)), expected)
                at = stored.offset + 4 * 100 if compression == "none" else int(stored.places[6, 0]) + 20
                block = range(96, 112)
                with open(path, "r+b") as harmed:
                    harmed.seek(at)
                    byte = harmed.read(1)[0]
                    harmed.seek(at)
                    harmed.write(bytes([byte ^ 16]))
                for start in starts:
                    stop = min(start + 9, 251)
                    if start < block.stop and block.start < stop:
                        with pytest.raises(OSError, match="not what was written"):
                            stored.read(start, stop)
                    else:
                        np.testing.assert_array_equal(stored.read(start, stop), array[start:stop])
                with pytest.raises(InputError, match="'X' is not what the manifest says"):
                    storage.read_checksums(file["X"], "0" * 16)


def test_a_damaged_header_is_named(tmp_path):
    """The library raises KeyError for a dataset whose header it cannot read."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["group/numbers"] = np.zeros(12345, np.int8)
    sizes = struct.pack("<QQ", 12345, 12345)  # now, and at most
    content = (tmp_path / "a.h5").read_bytes()
    assert content.count(sizes) == 1
    (tmp_path / "a.h5").write_bytes(content.replace(sizes, struct.pack("<QQ", 12345 + 2**43, 12345)))
    with h5py.File(tmp_path / "a.h5") as file, pytest.raises(InputError, match=r"a\.h5: 'group/numbers' is damaged"):
        hdf5.dataset(file, "group/numbers")
