"""The collectives, with long buffers cut into visible pieces, and failures that all ranks share."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError, LaunchError
from distsms.parallel import mpi
from distsms.parallel.communicator import self_communicator
from distsms.parallel.mpi import LAUNCHER, MPICommunicator, launched_size, world

pytestmark = pytest.mark.mpi


@pytest.fixture(params=[1, 7, 2**30])
def pieces(request, monkeypatch):
    """Limit messages to a few elements, as if MPI could not count further."""
    monkeypatch.setattr(mpi, "COUNT_LIMIT", request.param)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int8, np.bool_])
@pytest.mark.parametrize("n", [0, 1, 20])
def test_rows_go_to_the_root_and_come_back(comm, pieces, dtype, n):
    n_local = n * comm.rank  # none on the root
    local = (np.arange(n_local) % 2 + 10 * (dtype is not np.bool_) * comm.rank).astype(dtype)
    whole = comm.gather_rows(local)
    assert (whole is not None) == comm.is_root
    if comm.is_root:
        assert whole.dtype == dtype
        assert len(whole) == sum(n * rank for rank in range(comm.size))
    np.testing.assert_array_equal(comm.scatter_rows(whole, n_local), local)
    ignored = whole if comm.is_root else np.ones(5)  # only the root's rows are dealt out
    np.testing.assert_array_equal(comm.scatter_rows(ignored, n_local), local)


@pytest.mark.parametrize("shape", [(0,), (1,), (23,), (4, 6)])
def test_broadcast_and_sum(comm, pieces, shape):
    mine = np.full(shape, 1.0 + comm.rank)
    assert comm.broadcast(mine) is mine
    np.testing.assert_array_equal(mine, np.ones(shape))
    total = comm.sum(np.full(shape, 1.0 + comm.rank))
    np.testing.assert_array_equal(total, np.full(shape, comm.size * (comm.size + 1) / 2))
    np.testing.assert_array_equal(comm.maximum(np.full(shape, 1.0 + comm.rank)), np.full(shape, float(comm.size)))


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
@pytest.mark.parametrize("n", [0, 1, 20])
def test_rows_go_to_all(comm, pieces, dtype, n):
    """Some ranks have no rows, the others different numbers of rows."""
    counts = [n * (rank % 3) for rank in range(comm.size)]
    whole = comm.allgather_rows(np.full(counts[comm.rank], comm.rank, dtype), counts)
    assert whole.dtype == dtype
    np.testing.assert_array_equal(whole, np.repeat(np.arange(comm.size), counts))


@pytest.mark.parametrize("n", [0, 1, 20])
def test_rows_are_dealt_out_and_come_back(comm, pieces, n):
    """Rank r sends n (r + to) % 3 rows, marked with both ranks, to each rank; the answers come back the same way."""

    def rows(here, to):
        return np.full(n * ((here + to) % 3), 10 * here + to, float)

    mine = np.concatenate([rows(comm.rank, to) for to in range(comm.size)])
    counts = np.array([len(rows(comm.rank, to)) for to in range(comm.size)])
    got, incoming = comm.alltoall_rows(mine, counts)
    np.testing.assert_array_equal(got, np.concatenate([rows(here, comm.rank) for here in range(comm.size)]))
    np.testing.assert_array_equal(incoming, [len(rows(here, comm.rank)) for here in range(comm.size)])
    back, again = comm.alltoall_rows(got + 0.5, incoming)
    np.testing.assert_array_equal(back, mine + 0.5)
    np.testing.assert_array_equal(again, counts)


def test_objects(comm):
    assert comm.allgather(comm.rank) == list(range(comm.size))
    assert comm.bcast(("root", comm.rank)) == ("root", 0)


def test_bytes_are_counted(comm):
    """One call of each collective on eight-byte numbers: (sent, received) follows the docstring of `Communicator`."""
    size, root, others = comm.size, comm.is_root, comm.size - 1

    def moved(call):
        before = comm.bytes_moved()
        call()
        return tuple((now - then) // 8 for now, then in zip(comm.bytes_moved(), before, strict=True))

    both = 100 * (size > 1)
    assert moved(lambda: comm.sum(np.zeros(100))) == (both, both)
    assert moved(lambda: comm.maximum(np.zeros(100))) == (both, both)
    assert moved(lambda: comm.broadcast(np.zeros(100))) == ((both, 0) if root else (0, both))
    assert moved(lambda: comm.gather_rows(np.zeros(5))) == ((0, 5 * others) if root else (5, 0))
    whole = np.zeros(5 * size) if root else None
    assert moved(lambda: comm.scatter_rows(whole, 5)) == ((5 * others, 0) if root else (0, 5))
    sent = 5 * (size > 1)
    assert moved(lambda: comm.allgather_rows(np.zeros(5), [5] * size)) == (sent, 5 * others)
    dealt = np.full(size, 5)
    assert moved(lambda: comm.alltoall_rows(np.zeros(5 * size), dealt)) == (5 * others, 5 * others)


def test_one_rank_fails_then_all_do(comm):
    last = comm.size - 1
    with pytest.raises(InputError, match="file x: no such thing") as caught, comm.fail_together():
        if comm.rank == last:
            raise InputError("file x: no such thing")
    assert caught.value.everywhere
    assert (f"rank {last} of" in str(caught.value)) == (comm.size > 1)
    with comm.fail_together():
        pass


def test_all_ranks_get_what_the_root_makes_or_fail_with_it(comm):
    assert comm.of_root(lambda: {"rank": comm.rank}) == {"rank": 0}

    def missing():
        raise InputError("file x: no such thing")

    with pytest.raises(InputError, match="file x: no such thing"):
        comm.of_root(missing)


@pytest.fixture
def no_launcher(monkeypatch):
    for name in filter(LAUNCHER.match, list(os.environ)):
        monkeypatch.delenv(name)


@pytest.mark.serial
def test_mpi_is_started_where_a_launcher_may_be_at_work(monkeypatch, no_launcher):
    monkeypatch.setitem(
        sys.modules,
        "mpi4py",
        SimpleNamespace(MPI=SimpleNamespace(COMM_WORLD=Mock(Get_size=lambda: 2, Get_rank=lambda: 0))),
    )
    assert type(world()) is Communicator
    for name in ("OMPI_MCA_rmaps_base_oversubscribe", "PMIX_MCA_psec", "COMPILE"):  # settings, which users have as well
        monkeypatch.setenv(name, "1")
        assert type(world()) is Communicator
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "PALS_RANKID", "FLUX_TASK_RANK"):
        with monkeypatch.context() as patched:
            patched.setenv(name, "0")
            assert type(world()) is MPICommunicator


@pytest.mark.serial
def test_a_launcher_of_another_mpi_is_refused(monkeypatch, no_launcher):
    assert launched_size() == 0
    monkeypatch.setenv("PMI_SIZE", "32")
    with pytest.raises(LaunchError, match="started 32 processes, but MPI sees each as rank 0 of 1"):
        world()


def test_the_root_goes_first(comm, shared_dir):
    """When the other ranks begin, the root's result exists."""
    path = shared_dir / "made"

    def make():
        seen = path.exists()
        path.touch()
        return seen

    assert comm.root_first(make) is not comm.is_root


@pytest.mark.serial
def test_the_launcher_that_belongs_to_this_environment(monkeypatch, tmp_path):
    """An mpirun beside this Python is named, and also where the PATH leads to another one, or to none."""
    assert self_communicator()  # starts MPI, which under a launcher that it does not know would end this process
    for folder in ("own/bin", "other", "none"):
        (tmp_path / folder).mkdir(parents=True)
    for path in ("own/bin/mpirun", "other/mpirun"):
        (tmp_path / path).write_text("#!/bin/sh")
        (tmp_path / path).chmod(0o755)
    own, other = str(tmp_path / "own/bin/mpirun"), str(tmp_path / "other/mpirun")

    def described(prefix, path):
        monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
        monkeypatch.setenv("PATH", str(tmp_path / path))
        return mpi.describe_launcher()

    assert described("own", "own/bin") == own
    assert described("own", "other").startswith(f"{own} (the PATH has {other}: activate the environment")
    assert described("own", "none").startswith(f"{own} (the PATH has none")
    assert described("none", "other") == other
    assert described("none", "none") == "none in the PATH"
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    monkeypatch.setenv("PMI_SIZE", "32")
    with pytest.raises(LaunchError, match=f"Use that library's own mpirun, {own} "):
        world()


@pytest.mark.serial
def test_a_launcher_that_the_installed_mpich_does_not_know_is_refused(monkeypatch, no_launcher):
    """MPICH itself would end the process."""
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setattr(mpi.importlib.metadata, "version", {"mpich": "5.0.2"}.__getitem__)
    monkeypatch.setitem(sys.modules, "mpi4py", None)  # it is not loaded
    with pytest.raises(LaunchError, match=r"another MPI library than mpi4py, which uses MPICH 5.0.2 of this environ"):
        world()


@pytest.mark.serial
def test_mpi4py_without_an_mpi_library(monkeypatch, no_launcher):
    """Wheels of mpi4py raise RuntimeError then."""

    class Finder:
        def find_spec(self, name, *_):
            if name == "mpi4py.MPI":
                raise RuntimeError("cannot load MPI library")

    monkeypatch.setitem(sys.modules, "mpi4py", ModuleType("mpi4py"))
    sys.modules["mpi4py"].__path__ = []
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    sys.modules["mpi4py"].rc = SimpleNamespace()
    assert "cannot load MPI library" in mpi.library_versions()["mpi4py"]
    assert self_communicator() is None
    monkeypatch.setenv("PMI_SIZE", "1")
    assert type(world()) is Communicator
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(LaunchError, match=r"cannot load MPI library. Install .*distsms\[mpi\]"):
        world()
