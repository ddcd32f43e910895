"""`distsms.shard` on several ranks, each of which has some of the rows in memory."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import distsms
from distsms.base.errors import InputError
from distsms.shards.dataset import load
from tests.support.files import ALONE


@pytest.mark.parametrize("share", [1.0, 0.0], ids=["all ranks", "none on the last"])
def test_the_rows_of_all_ranks(comm, shared_dir, share):
    """In the order of the ranks, some of which may have none; weights and groups come with them."""
    rng = np.random.default_rng(0)
    X = sparse.random(60, 5, density=0.5, format="csr", random_state=0)
    y, weights, groups = rng.integers(0, 2, 60), rng.integers(1, 4, 60), rng.integers(0, 9, 60)
    ends = np.linspace(0, 60, comm.size + 1).astype(int)
    if comm.size > 1 and not share:
        ends[-2] = 60
    mine = slice(ends[comm.rank], ends[comm.rank + 1])
    how = {"weight": weights[mine], "group": groups[mine]}
    result = distsms.shard((X[mine], y[mine]), shared_dir / "d", comm.mpi_comm, **how)
    comm.barrier()
    block = load(result.data_sets[0], ALONE, with_groups=True)
    w = rng.normal(size=5)
    np.testing.assert_allclose(block.features.margins(w), X @ w, rtol=1e-12)
    np.testing.assert_array_equal(block.labels, 2 * y - 1)
    assert len(set(block.groups)) == len(set(groups)) and result.data_sets[0].group["groups"] == len(set(groups))
    np.testing.assert_allclose(block.weights / block.weights[0], weights / weights[0])
    assert not list(shared_dir.rglob("rows-*"))
    with pytest.raises(InputError, match="d: holds a data set already"):
        distsms.shard((X[mine], y[mine]), shared_dir / "d", comm.mpi_comm)
    comm.barrier()
    assert (shared_dir / "d" / "manifest.json").exists() and not list(shared_dir.rglob("rows-*"))
