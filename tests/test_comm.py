"""The collectives, with the pieces that long buffers travel in made visible; failures that all ranks share."""

from __future__ import annotations

import numpy as np
import pytest

from distsms import comm as module
from distsms.comm import Communicator, launched_size, world
from distsms.errors import InputError, LaunchError


@pytest.fixture(params=[1, 7, 2**30])
def pieces(request, monkeypatch):
    """Messages of at most so many elements, as if MPI counted no further."""
    monkeypatch.setattr(module, "COUNT_LIMIT", request.param)


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
    np.testing.assert_array_equal(comm.scatter_rows(whole, n_local, dtype), local)


@pytest.mark.parametrize("shape", [(0,), (1,), (23,), (4, 6)])
def test_broadcast_and_sum(comm, pieces, shape):
    mine = np.full(shape, 1.0 + comm.rank)
    assert comm.broadcast(mine) is mine
    np.testing.assert_array_equal(mine, np.ones(shape))
    total = comm.sum(np.full(shape, 1.0 + comm.rank))
    np.testing.assert_array_equal(total, np.full(shape, comm.size * (comm.size + 1) / 2))
    np.testing.assert_array_equal(comm.maximum(np.full(shape, 1.0 + comm.rank)), np.full(shape, float(comm.size)))


def test_objects(comm):
    assert comm.allgather(comm.rank) == list(range(comm.size))
    assert comm.bcast(("root", comm.rank)) == ("root", 0)


def test_bytes_are_counted(comm):
    before = comm.sent["sum"]
    comm.sum(np.zeros(100))
    assert comm.sent["sum"] - before == (800 if comm.size > 1 else 0)


def test_one_rank_fails_then_all_do(comm):
    last = comm.size - 1
    with pytest.raises(InputError, match="file x: no such thing") as caught, comm.together():
        if comm.rank == last:
            raise InputError("file x: no such thing")
    assert caught.value.everywhere
    assert (f"rank {last} of" in str(caught.value)) == (comm.size > 1)
    with comm.together():
        pass


@pytest.mark.serial
def test_a_launcher_of_another_mpi_is_refused(monkeypatch):
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    assert launched_size() == 0
    assert type(world()) is Communicator
    monkeypatch.setenv("PMI_SIZE", "32")
    with pytest.raises(LaunchError, match="started 32 processes, but MPI sees each as rank 0 of 1"):
        world()


def test_the_root_goes_first(comm, shared_dir):
    """What the root makes is there when the others begin."""
    path = shared_dir / "made"

    def make():
        seen = path.exists()
        path.touch()
        return seen

    assert comm.root_first(make) is not comm.is_root
