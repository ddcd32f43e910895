"""The collective operations of the program, and their implementation for a single rank.

The class `Communicator` is for a single rank: its collectives return their argument or do nothing. Its subclass
`distsms.parallel.mpi.MPICommunicator` implements them over MPI. Callers need not know which of the two they have.
Arrays are C-contiguous. No module outside `distsms.parallel` imports mpi4py.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from distsms.base import files
from distsms.base.errors import DistsmsError, InputError
from distsms.base.typing import Floats
from distsms.base.wording import marked

T = TypeVar("T")


class Replica:
    """Buffers for k vectors that every rank can read whole: of a single rank, and in subclasses of several."""

    def broadcast(self, rows: Sequence[Floats] | None) -> Floats:
        """Return the root's k vectors, None elsewhere, on every rank, until the next call. **Collective.**"""
        assert rows is not None
        return rows[0][None, :] if len(rows) == 1 else np.array(rows)

    def gather(self, slices: Sequence[Floats], counts: Sequence[int]) -> Floats:
        """Return k vectors, of which each rank has a slice, on every rank, until the next call. **Collective.**"""
        return self.broadcast(slices)

    def close(self) -> None:
        """Free the memory. **Collective.**"""


class Communicator:
    """The communicator of a job with a single rank, and the base class of the others.

    `sent` and `received` count the bytes of arrays that this rank gives to MPI and gets from it: a buffer that is
    reduced once in each direction, one that is broadcast once at the root and at each other rank.
    """

    rank, size = 0, 1
    # what a collective raises if a rank has died and the others may go on; see `distsms.parallel.survival`
    failures: tuple[type[BaseException], ...] = ()

    def __init__(self) -> None:
        self.sent = self.received = 0
        self.dead: list[Any] = []  # each a `survival.Rank`, while the others went on
        # called on every living rank with the numbers that newly dead ranks had at the beginning of the job
        self.on_death: Callable[[list[int]], None] = lambda ranks: None

    @property
    def is_root(self) -> bool:
        return self.rank == 0

    def bytes_moved(self) -> tuple[int, int]:
        return self.sent, self.received

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """Copy the root's `array` to every rank's, of the same shape and dtype. **Collective**, in place."""
        return array

    def sum(self, array: NDArray[Any]) -> NDArray[Any]:
        """Replace every rank's `array`, of one shape and dtype, by the sum over ranks. **Collective**, in place."""
        return array

    def maximum(self, array: NDArray[Any]) -> NDArray[Any]:
        """Replace every rank's `array` by the elementwise maximum over ranks. **Collective**, in place."""
        return array

    def reduce(self, array: NDArray[Any], piece: int | None = None) -> NDArray[Any]:
        """Replace the root's `array` by the sum over ranks, `piece` elements at a time. **Collective**, in place."""
        return array

    def reduce_scatter(self, array: NDArray[Any], counts: Sequence[int], in_turn: bool = False) -> NDArray[Any]:
        """Sum (n,) arrays over ranks, `in_turn` for one rank after the other; return this rank's share (counts[rank],),
        in rank order. A single rank gets its own array back. **Collective.**"""
        return array

    def replica(self, k: int, length: int, shared: bool) -> Replica:
        """Return buffers for k vectors that every rank reads, perhaps `shared` by a node's ranks. **Collective.**"""
        return Replica()

    def shared_sum(self, length: int) -> Any:
        """Return `mpi.SharedSum` for vectors (length,), or None if the ranks share no memory. **Collective.**"""
        return None

    @property
    def mpi_comm(self) -> Any:
        """mpi4py's communicator of all ranks, for libraries that need one; None of a single rank."""
        return None

    def gather_rows(self, local: NDArray[Any]) -> NDArray[Any] | None:
        """Concatenate the ranks' (n_local,) arrays in rank order on the root; return None elsewhere. **Collective.**"""
        return local

    def scatter_rows(self, whole: Floats | None, n_local: int) -> Floats:
        """Split the root's (n,) array, n_local to each rank in order: reverse `gather_rows`. **Collective.**"""
        assert whole is not None
        return whole

    def allgather_rows(self, local: NDArray[Any], counts: Sequence[int]) -> NDArray[Any]:
        """Concatenate the ranks' (counts[rank],) arrays in order, on every rank; one rank: no copy. **Collective.**"""
        return local

    def alltoall_rows(self, rows: NDArray[Any], counts: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Send the first counts[0] rows of an array to rank 0, the next counts[1] to rank 1, ...; return the received
        rows in rank order, and how many came from each rank, (P,), with which answers go back. **Collective.**"""
        return rows, counts

    def allgather(self, item: Any) -> list[Any]:
        """Return every rank's Python object, in rank order. **Collective**, for small objects in the set-up."""
        return [item]

    def bcast(self, item: Any) -> Any:
        """Return the root's Python object on every rank. **Collective**, for small objects in the set-up."""
        return item

    def node_ranks(self) -> list[int]:
        """Return the ranks on this rank's node, which can share memory. **Collective**, in the set-up."""
        return [self.rank]

    def barrier(self) -> None:
        """Wait for all ranks. **Collective.**"""

    def root_first(self, make: Callable[[], T]) -> T:
        """Call `make` on the root, which compiles kernels, then on the others; return its result. **Collective.**"""
        made = [make()] if self.is_root else []
        self.barrier()
        return made[0] if made else make()

    def of_root(self, make: Callable[[], T]) -> T:
        """Return on every rank what `make` returns on the root; if it fails there, all ranks fail. **Collective.**"""
        with self.fail_together():
            of_root = make() if self.is_root else None
        item: T = self.bcast(of_root)
        return item

    def surviving(self, work: Callable[[], T], renew: Callable[[], object] = lambda: None) -> T:
        """Return `work()`, which may be repeated: if a rank dies meanwhile, call `renew()`, for the rows of the dead,
        on the other ranks, and repeat the work. **Collective**, as are both. Here it only works."""
        return work()

    def require_all(self, n: int, *counts: int) -> None:
        """Raise DistsmsError on all ranks unless these numbers of local rows each add up to n. **Collective.**"""
        totals = self.sum(np.array(counts))
        if np.any(totals != n):
            problem = f"{self.size} ranks hold {totals.min()} of {n} rows, which is a mistake in distsms; the run ends"
            remedy = "Without --survive, a run with --checkpoint continues with --resume"
            raise DistsmsError(f"after a death, {problem}. {remedy}", everywhere=True)

    def require_same(self, values: Mapping[str, str], kind: str, remedy: str) -> None:
        """Raise InputError on all ranks unless all have the same texts, each a `kind`, by name. **Collective.**"""
        for rank, other in enumerate(of_ranks := self.allgather(dict(values))):
            root = of_ranks[0]
            for name in {**root, **other}:
                if root.get(name) != other.get(name):
                    ranks = other, root
                    texts = [f"{name} {of[name]}".strip() if name in of else f"no {name}" for of in ranks]
                    problem = f"was given another {kind} than rank 0: {texts[0]} instead of {texts[1]}"
                    raise InputError(f"rank {rank} of {self.size} {problem}. {remedy}", everywhere=True)

    @contextlib.contextmanager
    def fail_together(self) -> Iterator[None]:
        """Run local work that may fail, such as reading files, so that all ranks fail if one does: every rank raises
        the `DistsmsError` of the lowest. Any other exception goes on where it is raised, and is a `DistsmsError` on the
        other ranks. Files that the body has read (`files.note`) must be the same on all ranks. **Collective** at the
        end."""
        error: DistsmsError | None = None
        bug: Exception | None = None
        try:
            yield
        except DistsmsError as caught:
            error = caught
        except self.failures:
            raise
        except Exception as caught:
            bug, error = caught, DistsmsError(f"{type(caught).__name__}: {caught}")
        of_ranks = self.allgather((error, files.take_noted()))
        if bug is not None:
            raise bug
        for rank, (failure, _) in enumerate(of_ranks):
            if failure is not None:
                note = f" [rank {rank} of {self.size}]" if self.size > 1 else ""
                raise type(failure)(f"{marked(failure.message)}{note}", everywhere=True) from error
        first = dict[str, tuple[int, str]]()
        for rank, (_, digests) in enumerate(of_ranks):
            for path, digest in digests.items():
                other, first_digest = first.setdefault(path, (rank, digest))
                if digest != first_digest:
                    problem = f"rank {rank} of {self.size} reads another content than rank {other}"
                    remedy = "The copies of the hosts differ, or it was just replaced: make them equal, and run again"
                    raise InputError(f"{path}: {problem}. {remedy}", everywhere=True)

    def leave(self, code: int) -> None:
        """End this process where MPI could not be ended in order, since ranks have died; otherwise do nothing."""

    def abort(self, code: int) -> None:
        """End the whole job immediately with this exit code, whatever the other ranks are doing."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
