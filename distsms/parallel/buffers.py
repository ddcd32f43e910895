"""Split arrays into messages small enough for MPI's 32-bit counts, and into the shares of ranks: views, no copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

COUNT_LIMIT = 2**30
"""Maximum number of elements in one MPI message; tests lower it so that small arrays are split, too."""


def share(whole: NDArray[Any], counts: Sequence[int], rank: int) -> NDArray[Any]:
    """Return a view of a rank's share of an array of all ranks' shares, in rank order, with counts[rank] rows each."""
    start = sum(counts[:rank])
    return whole[start : start + counts[rank]]


def complete(mpi: Any, comm: Any, whole: NDArray[Any], counts: Sequence[int]) -> None:
    """Fill in the other ranks' shares of an array (sum(counts),) in rank order, in place. **Collective.**"""
    if len(whole) <= COUNT_LIMIT:
        comm.Allgatherv(mpi.IN_PLACE, [whole, counts])
        return
    # MPI's counts and offsets are 32 bits wide, so each rank in turn broadcasts its share in pieces.
    for rank, part in parts(whole, counts):
        for piece in pieces(part):
            comm.Bcast(piece, root=rank)


def pieces(array: NDArray[Any], most: int | None = None) -> Iterator[NDArray[Any]]:
    """Yield views of at most `most` elements (`COUNT_LIMIT`) that cover a C-contiguous array in memory order."""
    flat, most = array.reshape(-1), most or COUNT_LIMIT
    assert np.shares_memory(flat, array) or not flat.size
    for start in range(0, flat.size, most):
        yield flat[start : start + most]


def parts(whole: NDArray[Any], counts: Sequence[int] | NDArray[np.int64]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield (rank, view) for each rank's share of an array that holds all shares in rank order."""
    for rank, (end, count) in enumerate(zip(np.cumsum(counts), counts, strict=True)):
        yield rank, whole[end - count : end]
