"""Large arrays in messages that MPI can count, and the shares of ranks in an array: views, nothing is copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

COUNT_LIMIT = 2**30
"""Elements per MPI message; tests lower it to see the pieces."""


def own(whole: NDArray[Any], counts: Sequence[int], rank: int) -> NDArray[Any]:
    """A rank's share of an array in rank order: a view."""
    start = sum(counts[:rank])
    return whole[start : start + counts[rank]]


def complete(mpi: Any, comm: Any, whole: NDArray[Any], counts: Sequence[int]) -> None:
    """Complete an array of which each rank of an mpi4py communicator has filled in its share. Collective, in place."""
    if len(whole) <= COUNT_LIMIT:
        comm.Allgatherv(mpi.IN_PLACE, [whole, counts])
        return
    for rank, part in parts(whole, counts):  # counts and offsets are 32 bits wide: a broadcast from each rank in turn
        for piece in pieces(part):
            comm.Bcast(piece, root=rank)


def pieces(array: NDArray[Any], most: int | None = None) -> Iterator[NDArray[Any]]:
    """Views of at most so many elements (COUNT_LIMIT) that cover a C-contiguous array; none for an empty one."""
    flat, most = array.reshape(-1), most or COUNT_LIMIT
    assert np.shares_memory(flat, array) or not flat.size
    for start in range(0, flat.size, most):
        yield flat[start : start + most]


def parts(whole: NDArray[Any], counts: Sequence[int] | NDArray[np.int64]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Each rank's share of an array in rank order: (rank, view)."""
    for rank, (end, count) in enumerate(zip(np.cumsum(counts), counts, strict=True)):
        yield rank, whole[end - count : end]
