"""The collective operations of the program, and their implementation for a single rank.

The class `Communicator` is for a single rank: its collectives return their argument or do nothing. Its subclass
`distsms.parallel.mpi.MPICommunicator` implements them over MPI. Callers need not know which of the two they have.
Arrays are C-contiguous NumPy arrays. Buffers of more than `buffers.COUNT_LIMIT` elements are sent in pieces, since MPI
counts elements in 32 bits. No module outside this package imports mpi4py.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from distsms.base import common_files
from distsms.base.errors import DistsmsError, InputError
from distsms.base.typing import Floats
from distsms.base.wording import marked
from distsms.parallel.shared_memory import Replica, SharedSum

T = TypeVar("T")


class Communicator:
    """The communicator of a job with a single rank, and the base class of the others.

    Attributes
    ----------
    rank, size : int
        This rank's number, from 0, and the number of ranks.
    sent, received : Counter
        The bytes that this rank gives to MPI and gets from it, by the name of the collective. Data that a rank keeps
        for itself do not count. A buffer that is reduced counts once in each direction. A buffer that is broadcast
        counts once at the root and once at each other rank, however the MPI library distributes it. Messages with
        numbers of rows or with Python objects do not count.
    failures : tuple of exception classes
        What a collective raises if a rank has died and the others may go on. It is empty where one dead rank ends the
        job: everywhere but in `distsms.parallel.survival`.
    dead : list of DeadRank
        The ranks that have died while the others went on.
    on_death : callable
        Called on every living rank with the numbers that newly dead ranks had at the beginning of the job.
    """

    rank = 0
    size = 1
    failures: tuple[type[BaseException], ...] = ()

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.dead: list[Any] = []
        self.on_death: Callable[[list[int]], None] = lambda ranks: None

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, which writes the files."""
        return self.rank == 0

    def bytes_moved(self) -> tuple[int, int]:
        """Return the bytes sent and received so far."""
        return sum(self.sent.values()), sum(self.received.values())

    def broadcast(self, array: NDArray[Any]) -> NDArray[Any]:
        """Copy the root's `array` to every rank's `array`. **Collective**, in place.

        The arrays have the same shape and dtype on all ranks.
        """
        return array

    def sum(self, array: NDArray[Any]) -> NDArray[Any]:
        """Replace `array` on every rank by its sum over ranks (Allreduce). **Collective**, in place.

        The arrays have the same shape and dtype on all ranks.
        """
        return array

    def maximum(self, array: NDArray[Any]) -> NDArray[Any]:
        """Replace `array` on every rank by its elementwise maximum over ranks (Allreduce). **Collective**, in place.

        The arrays have the same shape and dtype on all ranks.
        """
        return array

    def reduce(self, array: NDArray[Any], piece: int | None = None) -> NDArray[Any]:
        """Replace the root's `array` by its sum over ranks. **Collective**, in place.

        Parameters
        ----------
        array : array
            The same shape and dtype on all ranks; the other ranks' arrays do not change.
        piece : int, optional
            The maximum number of elements that are reduced at a time.
        """
        return array

    def reduce_scatter(self, array: NDArray[Any], counts: Sequence[int], in_turn: bool = False) -> NDArray[Any]:
        """Sum (n,) arrays over ranks and give each rank its share of the sum. **Collective.**

        Parameters
        ----------
        array : (n,)
            This rank's summand.
        counts : (P,) ints
            The length of each rank's share; the shares follow one another in rank order.
        in_turn : bool, optional
            Reduce to one rank after the other rather than by MPI's Reduce_scatter.

        Returns
        -------
        (counts[rank],)
            This rank's share. A single rank gets its own array back, not a copy.
        """
        return array

    def replica(self, k: int, length: int, shared: bool) -> Replica:
        """Return buffers for k vectors of the same length that every rank reads. **Collective.**

        Parameters
        ----------
        k, length : int
            The number of vectors and their length.
        shared : bool
            Whether the ranks of a node share one copy, if that is possible. Otherwise each rank has its own.
        """
        return Replica()

    def shared_sum(self, length: int) -> SharedSum | None:
        """Return what sums vectors (length,) in memory that all ranks share; None if that is impossible.

        **Collective.**
        """
        return None

    @property
    def mpi_comm(self) -> Any:
        """mpi4py's communicator of all ranks, for libraries that need one; None without mpi4py."""
        return self_communicator()

    def gather_rows(self, local: NDArray[Any]) -> NDArray[Any] | None:
        """Concatenate the ranks' (n_local,) arrays in rank order on the root; return None elsewhere. **Collective.**"""
        return local

    def scatter_rows(self, whole: Floats | None, n_local: int) -> Floats:
        """Split the root's (n,) array among the ranks, n_local to each: the inverse of `gather_rows`. **Collective.**

        Parameters
        ----------
        whole : (n,) on the root, None elsewhere
            All rows in rank order.
        n_local : int
            The length of this rank's part.
        """
        assert whole is not None
        return whole

    def allgather_rows(self, local: NDArray[Any], counts: Sequence[int]) -> NDArray[Any]:
        """Concatenate the ranks' (counts[rank],) arrays in rank order, on every rank. **Collective.**

        A single rank gets its own array back, not a copy.
        """
        return local

    def alltoall_rows(self, rows: NDArray[Any], counts: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Send the first counts[0] rows of an array to rank 0, the next counts[1] rows to rank 1, and so on.

        **Collective.**

        Parameters
        ----------
        rows : (sum(counts),)
            What this rank sends.
        counts : (P,) int64
            How many rows go to each rank.

        Returns
        -------
        rows : (sum of the received counts,)
            What this rank received, in rank order. A single rank gets its own array back, not a copy.
        counts : (P,) int64
            How many rows came from each rank. A second call with these counts sends answers back the same way.
        """
        return rows, counts

    def allgather(self, item: Any) -> list[Any]:
        """Return every rank's Python object, in rank order.

        **Collective.** For small objects in the set-up, never per evaluation.
        """
        return [item]

    def bcast(self, item: Any) -> Any:
        """Return the root's Python object on every rank.

        **Collective.** For small objects in the set-up, never per evaluation.
        """
        return item

    def node_ranks(self) -> list[int]:
        """Return the ranks on this rank's node, which can share memory, including this one.

        **Collective.** For the set-up.
        """
        return [self.rank]

    def barrier(self) -> None:
        """Wait for all ranks. **Collective.**"""

    def root_first(self, make: Callable[[], T]) -> T:
        """Call `make` on the root and afterwards on the other ranks; return its result.

        **Collective.** `make` itself is local.

        This is for functions that compile kernels: the root compiles them, and the other ranks load them from the
        cache.
        """
        result = make() if self.is_root else None
        self.barrier()
        return make() if result is None else result

    def surviving(self, work: Callable[[], T], renew: Callable[[], object] = lambda: None) -> T:
        """Return `work()`. If a rank dies meanwhile, call `renew()` on the other ranks, and repeat the work there.

        **Collective**, and so are `work` and `renew`. Where one dead rank ends the job, this only calls `work`.

        Parameters
        ----------
        work : callable
            It must have the same effect if it is called again, on fewer ranks, after it has failed anywhere.
        renew : callable
            Gives the living ranks what they need of the rows that the dead ranks held.
        """
        return work()

    def require_all(self, n: int, *counts: int) -> None:
        """Raise DistsmsError on all ranks unless each of these numbers of local rows adds up to n. **Collective.**

        After a death this finds rows that nobody has read again. What is computed without them would be wrong.
        """
        totals = self.sum(np.array(counts))
        if np.any(totals != n):
            raise DistsmsError(
                f"after a death, {self.size} ranks hold {totals.min()} of {n} rows. This is a mistake in distsms, which"
                " ends the run, since the result would be wrong. Without --survive, a run with --checkpoint continues"
                " with --resume",
                everywhere=True,
            )

    def require_same(self, values: Mapping[str, str], kind: str, remedy: str) -> None:
        """Raise InputError on all ranks unless each of them was given the same texts by these names. **Collective.**

        The message says which rank has another `kind` of thing, what differs first, and the remedy.
        """
        for rank, other in enumerate(of_ranks := self.allgather(dict(values))):
            root = of_ranks[0]
            for name in {**root, **other}:
                if root.get(name) != other.get(name):
                    texts = [
                        f"{name} {of_rank[name]}".strip() if name in of_rank else f"no {name}"
                        for of_rank in (other, root)
                    ]
                    raise InputError(
                        f"rank {rank} of {self.size} was given another {kind} than rank 0: {texts[0]} instead of "
                        f"{texts[1]}. {remedy}",
                        everywhere=True,
                    )

    @contextlib.contextmanager
    def fail_together(self) -> Iterator[None]:
        """Run local work that may fail, such as reading files, so that all ranks fail if one does.

        **Collective** at the end.

        The files that the body has read (`distsms.base.common_files`) must be the same on all ranks. The body must not
        communicate. If it raises a `DistsmsError` on any rank, every rank raises the error of the
        lowest failing rank. So it is reported once, and the job ends without an abort. Any other exception is a bug of
        the program. It is not caught here, and `distsms.__main__` then aborts the job.
        """
        error: DistsmsError | None = None
        try:
            yield
        except DistsmsError as caught:
            error = caught
        of_ranks = self.allgather((error, common_files.take()))
        for rank, (failure, _) in enumerate(of_ranks):
            if failure is not None:
                note = f" [rank {rank} of {self.size}]" if self.size > 1 else ""
                raise type(failure)(f"{marked(failure.message)}{note}", everywhere=True) from error
        first = dict[str, tuple[int, str]]()
        for rank, (_, files) in enumerate(of_ranks):
            for path, digest in files.items():
                other, first_digest = first.setdefault(path, (rank, digest))
                if digest != first_digest:
                    raise InputError(
                        f"{path}: rank {rank} of {self.size} reads another content than rank {other}. The hosts have "
                        "different copies, or it was replaced just now: make them equal, and run the command again",
                        everywhere=True,
                    )

    def leave(self, code: int) -> None:
        """End this process where MPI could not be ended in order, since ranks have died; otherwise do nothing."""

    def abort(self, code: int) -> None:
        """End the whole job immediately with this exit code, whatever the other ranks are doing."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def self_communicator() -> Any:
    """Return mpi4py's communicator of this process alone, for libraries that need one; None without mpi4py."""
    # Without the first setting, Open MPI starts a daemon beside a process that no launcher started. Without the second,
    # all such processes of a host use one folder, which each of them removes as it ends: another one that is just
    # starting would fail. Without the third, it looks for networks, and a library for one of them waits 0.2 s for its
    # device. The programs that this process starts must not inherit them.
    settings = {
        "OMPI_MCA_ess_singleton_isolated": "1",
        "OMPI_MCA_orte_create_session_dirs": "0",
        "OMPI_MCA_pml": "^cm,ucx",
    }
    new = [name for name in settings if name not in os.environ]
    os.environ.update({name: settings[name] for name in new})
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # RuntimeError: mpi4py is there, but no MPI library
        return None
    finally:
        for name in new:
            del os.environ[name]
    return MPI.COMM_SELF
