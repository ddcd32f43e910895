"""Files whose writing fails at any byte, and files that killed processes left."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base import files, hdf5
from distsms.base.errors import InputError
from distsms.base.files import atomic_write, check_writable, exclusive
from distsms.models.output import _parquet
from distsms.training.recorder import Trace

VALUES = np.random.default_rng(0).normal(size=3000)


def write_hdf5(file):
    with hdf5.write_to(file) as target:
        target["first"] = VALUES
        grown = target.create_dataset("grown", (0,), float, maxshape=(None,), chunks=(100,))
        for start in range(0, 3000, 500):
            grown.resize(start + 500, axis=0)
            grown[start:] = VALUES[start : start + 500]
        target.attrs["text"] = "x" * 3000


def write_zip(file):
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("a"), b"a" * 1000)
        with archive.open(zipfile.ZipInfo("b"), "w", force_zip64=True) as member:
            for row in VALUES.reshape(10, -1):
                member.write(row.data)


def write_npy(file):
    np.save(file, VALUES)


def write_parquet(file):
    with contextlib.ExitStack() as opened:
        append = _parquet(file, opened)
        for start in range(0, 3000, 1000):
            append({"id": ["x"] * 1000, "score": VALUES[start : start + 1000]})


def write_bytes(file):
    file.write(b"abc" * 10000)


each_writer = pytest.mark.parametrize("writer", [write_hdf5, write_zip, write_npy, write_parquet, write_bytes])


@each_writer
@given(share=st.floats(0, 1, exclude_max=True), reason=st.sampled_from([errno.EDQUOT, errno.ENOSPC, errno.EIO]))
def test_at_any_byte_a_failure_leaves_the_old_file(tmp_path_factory, writer, share, reason):
    path = tmp_path_factory.getbasetemp() / f"{writer.__name__}.out"
    with atomic_write(path) as file:
        writer(file)
    whole, total = path.read_bytes(), 0

    def counted(handle, data):
        nonlocal total
        total += len(data)
        return write(handle, data)

    def limited(handle, data):
        nonlocal total
        if total <= 0:
            raise OSError(reason, os.strerror(reason))
        count = write(handle, data[:total])
        total -= count
        return count

    write = os.write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.os, "write", counted)
        with atomic_write(path) as file:
            writer(file)
        assert path.read_bytes() == whole
        total = int(share * total)
        patch.setattr(files.os, "write", limited)
        expected = rf"{path.name}: cannot be written: {os.strerror(reason)}; "
        with pytest.raises(InputError, match=expected), atomic_write(path) as file:
            writer(file)
    assert path.read_bytes() == whole
    assert not list(path.parent.glob(f".{path.name}*"))


@each_writer
def test_what_is_written_is_what_others_write(tmp_path, writer):
    """Also through a small buffer: whoever writes finds a file like any other."""
    with atomic_write(tmp_path / "direct") as file:
        writer(file)
    with open(tmp_path / "plain", "wb+") as plain:
        writer(plain)
    assert (tmp_path / "direct").read_bytes() == (tmp_path / "plain").read_bytes()


def test_an_error_that_is_not_of_the_disk_stays_what_it_is(tmp_path):
    with pytest.raises(KeyError), atomic_write(tmp_path / "a"):
        raise KeyError
    with pytest.raises(InputError, match="neither"), atomic_write(tmp_path / "a"):
        raise InputError("neither this nor that")
    assert os.listdir(tmp_path) == []


WRITER = """
import sys
from distsms.base.files import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write(b"of the other")
    print("writing", flush=True)
    sys.stdin.readline()
"""


def other(path):
    """Another process that is writing `path`."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], text=True, **pipes)
    assert process.stdout.readline() == "writing\n"
    return process


def write(path):
    with atomic_write(path) as file:
        file.write(b"ours")


def test_the_file_of_a_killed_process_is_removed_and_that_of_a_live_one_is_not(tmp_path):
    path, beside = tmp_path / "scores.csv", tmp_path / "scores.csv.old"
    killed, elsewhere, alive = other(path), other(beside), other(path)
    try:
        for process in (killed, elsewhere):
            process.kill()
            process.wait()
        assert len(os.listdir(tmp_path)) == 3
        write(path)
        left = sorted(name for name in os.listdir(tmp_path) if name.endswith(files.PARTIAL))
        assert [name.partition(".old")[0] for name in left] == [left[0], ".scores.csv"]
        assert path.read_bytes() == b"ours"
        alive.communicate("\n")
        assert alive.returncode == 0
        assert path.read_bytes() == b"of the other"
    finally:
        for process in (killed, elsewhere, alive):
            process.kill()
            process.communicate()
    write(beside)
    assert sorted(os.listdir(tmp_path)) == ["scores.csv", "scores.csv.old"]


def test_what_another_host_left_is_removed_when_it_is_old(tmp_path):
    """Whoever wrote it may hold a lock that nobody sees here."""
    new, old, older = (
        tmp_path / f".m.h5.{name}.partial" for name in ("0" * 8 + "-" + "1" * 16, "0" * 8 + "-" + "2" * 16, "3" * 32)
    )
    for path in (new, old, older):
        path.touch()
    for path in (old, older):
        os.utime(path, (os.stat(new).st_mtime - 2 * files.ABANDONED,) * 2)
    write(tmp_path / "m.h5")
    assert sorted(os.listdir(tmp_path)) == [new.name, "m.h5"]


def test_links_in_the_place_of_what_was_left_are_not_followed(tmp_path):
    (tmp_path / "precious").write_text("precious")
    link = tmp_path / f".m.h5.{'3' * 32}.partial"
    link.symlink_to("precious")
    os.utime(link, (0, 0), follow_symlinks=False)
    write(tmp_path / "m.h5")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
@pytest.mark.parametrize("deep", [False, True])
def test_links_that_others_plant_in_a_sticky_folder_are_not_followed(tmp_path, deep):
    """Neither the last one on the way nor the first. In other folders, and of the folder's owner, links count."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    (own / "data").mkdir(parents=True)
    shared.mkdir()
    shared.chmod(0o1777)
    (own / "data" / "precious").write_text("precious")
    link = shared / "link"
    link.symlink_to(own / "data" if deep else "../own/data/precious")
    (own / "alias").symlink_to(link)
    path = own / "alias" / "precious" if deep else own / "alias"
    os.chown(link, 4242, 4242, follow_symlinks=False)
    folder = path.parent if deep else path
    for deed in (
        write,
        check_writable,
        lambda path: Trace(str(path), "lbfgs"),
        lambda _: exclusive(folder).__enter__(),
    ):
        with pytest.raises(InputError, match=f"{link} is a link of another user"):
            deed(path)
    assert (own / "data" / "precious").read_text() == "precious"
    os.chown(shared, 4242, 4242)
    write(path)
    os.chown(shared, 0, 0)
    shared.chmod(0o777)
    write(path)
    assert (own / "data" / "precious").read_text() == "ours"
    assert path.is_symlink() != deep


def test_where_a_path_leads(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "up").symlink_to("a/b/../..")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    for name in ("new", "up/up/a/new", "a/../up/./x/../y", str(tmp_path / "up" / "a" / "b"), "/..//tmp", "."):
        assert files.real_path(name) == Path(os.path.realpath(name))
    with pytest.raises(InputError, match="more than 40 links"):
        files.real_path("loop")


def test_a_file_behaves_like_any_other(tmp_path):
    with atomic_write(tmp_path / "a") as file, open(tmp_path / "b", "wb+") as plain:
        for stream in (file, plain):
            stream.write(pa.py_buffer(b"0123456789"))
            stream.seek(-3, os.SEEK_END)
            stream.write(memoryview(b"abc")[::1])
            stream.truncate(12)
            stream.seek(5)
        assert file.read() == plain.read()
        assert file.tell() == plain.tell()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_reading_goes_on_where_the_system_gives_less_than_was_asked_for(tmp_path, monkeypatch):
    """HDF5 would take the rest for damaged."""
    real = os.readv
    monkeypatch.setattr(os, "readv", lambda handle, buffers: real(handle, [buffers[0][:100]]))
    with hdf5.write_file(tmp_path / "a.h5") as file:
        file["values"] = VALUES
    with hdf5.write_file(tmp_path / "a.h5", new=False) as file:
        np.testing.assert_array_equal(file["values"], VALUES)
