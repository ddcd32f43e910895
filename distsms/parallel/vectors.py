"""Where the vectors of length p live that a solver works on: whole on the root, or a slice of each on every rank.

    AtRoot   the root steps: w --Bcast--> all ranks,  X'c --Reduce--> the root; the other ranks wait to be asked
    Spread   all ranks step, in lock-step: slices of w --Allgather--> all ranks,  X'c --Reduce-scatter--> slices

A rank that steps holds `length` numbers of each vector. What it decides, it decides by numbers that all ranks which
step have in common to the bit: sums over ranks (an Allreduce gives all the same) or the root's (`agreed`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from distsms.errors import InputError
from distsms.parallel.communicator import Communicator, Replica, alone
from distsms.utils.typing import Floats

SPREAD_FROM = 2**20
"""Columns from which on vectors are spread: a pass over one of them then takes longer than the sums it needs."""
SHARED_FROM = 2**17
"""Columns from which on the ranks of a node share one copy of w: a MiB."""
MEASURED_FROM = 2**13
"""Columns from which on the collectives are measured: below, what a message costs does not depend on its length."""
SUMMED = 2**14
"""Entries of a vector that are summed in one go; then the sums of these are: so errors of rounding stay small."""
PIECE = 2**17
"""Elements of a piece, where a reduction goes piece by piece."""
STEPS = ("root", "spread")
NOT_SPREADABLE = "this solver needs its vectors whole, on the root: --step root, or another solver"


class Vectors(ABC):
    """Vectors of length p on the ranks of a communicator. Building it is local; it is the same on every rank.

    length, longest : of this rank's slice, and of the longest.  steps : whether this rank runs the solver.
    outward, inward : what brings w to the ranks and X'c back, in MPI's words.
    """

    length: int
    steps: bool
    outward: ClassVar[str]

    def __init__(self, comm: Communicator, p: int, shared: bool = False) -> None:
        self.comm, self.p, self._shared = comm, p, shared
        self._replica: tuple[int, Replica] | None = None
        self._buffer = np.empty(0)
        self.inward, self._sum = next(iter(self._ways().items()))
        self.measured: dict[str, float] = {}

    @property
    @abstractmethod
    def longest(self) -> int: ...

    @property
    @abstractmethod
    def holders(self) -> Any:
        """mpi4py's communicator of the ranks that step, for PETSc; None without mpi4py."""

    @abstractmethod
    def _ways(self) -> dict[str, Callable[[Floats], Floats]]:
        """Ways to sum an array over ranks, by name: each takes what a rank has and gives what it is to hold."""

    @abstractmethod
    def announce(self, what: int, numbers: Floats) -> None:
        """Tell the ranks that do not step, which are in `awaited`, what to do next; numbers (k, 2) go with it."""

    @abstractmethod
    def awaited(self) -> tuple[int, Floats]:
        """What is announced."""

    @abstractmethod
    def copies(self, k: int, slices: Sequence[Floats] | None) -> Floats:
        """k vectors, whole, on every rank: (k, p), until the next call. Collective.

        slices : this rank's of each, (length,); None where it does not step.
        """

    @abstractmethod
    def totals(self, buffer: Floats) -> tuple[Floats, bool]:
        """Slices of k vectors summed over ranks, (k, length), and whether any rank's flag was not 0. Collective.

        buffer : of `room`, k vectors one behind the other and the flag; it is used up. Nothing of use elsewhere.
        """

    @abstractmethod
    def total(self, local: Floats) -> Floats:
        """This rank's slice of the sum over ranks of (p,) arrays, which are used up. Collective."""

    @abstractmethod
    def part(self, whole: Floats) -> Floats:
        """This rank's slice of a vector (p,): a view. Local."""

    @abstractmethod
    def dealt(self, whole: Floats | None) -> Floats:
        """This rank's slice of a vector (p,) that the root has, to keep; the inverse of `at_root`. Collective."""

    def highest(self, local: Floats) -> Floats:
        """The slice of the largest over ranks of (p,) arrays, which are used up. Collective."""
        return self.part(self.comm.maximum(local)).copy()

    def everywhere(self, mine: Floats | None) -> Floats:
        """A vector, whole, on every rank: (p,), to keep. mine : this rank's slice, as in `copies`. Collective."""
        self.give_back()
        return self.copies(1, None if mine is None else [mine])[0].copy()

    @abstractmethod
    def at_root(self, mine: Floats) -> Floats | None:
        """A vector, whole, on the root, to keep; None elsewhere. Collective among the ranks that step."""

    def room(self, k: int) -> Floats:
        """A buffer for k vectors and a flag, to be filled and given to `totals`. Local."""
        if len(self._buffer) != k * self.p + 1:
            self._buffer = np.empty(k * self.p + 1)
        return self._buffer

    def give_back(self) -> None:
        """Free the buffer, until it is needed again. Local."""
        self._buffer = np.empty(0)

    def _room_for_copies(self, k: int) -> Replica:
        if self._replica is None or self._replica[0] != k:
            self.close()
            self._replica = k, self.comm.replica(k, self.p, self._shared)
        return self._replica[1]

    def close(self) -> None:
        """Free what the ranks of a node share. Collective."""
        if self._replica is not None:
            self._replica[1].close()
            self._replica = None

    # Of vectors, on the ranks that step

    def sums(self, values: Floats) -> Floats:
        """The sums over slices of (k,) values. In place. Collective among the ranks that step."""
        return values

    def agreed(self, values: Floats) -> Floats:
        """The root's (k,) values. In place. Collective among the ranks that step."""
        return values

    def least(self, values: Floats) -> float:
        """The smallest entry of a vector, or infinity if it has none. Collective among the ranks that step."""
        return float(np.min(values, initial=np.inf))

    @np.errstate(over="ignore", invalid="ignore")  # not finite: whoever asked sees it
    def dot(self, a: Floats, b: Floats) -> float:
        """Inner product of two vectors from their slices. Collective among the ranks that step."""
        return float(self.sums(np.array([np.dot(a, b)]))[0])

    @np.errstate(over="ignore", invalid="ignore")  # not finite: whoever asked sees it
    def dots(self, A: Floats, b: Floats) -> Floats:
        """Inner products of k vectors, slices (k, length), with one: (k,). Collective among the ranks that step.

        Each is wrong by at most `longest_sum` times the unit roundoff, as a share of the product of the two lengths.
        """
        starts = range(0, max(len(b), 1), SUMMED)  # and matmul, since dot would copy what does not lie together
        return self.sums(sum(np.matmul(A[:, start : start + SUMMED], b[start : start + SUMMED]) for start in starts))

    @property
    def longest_sum(self) -> int:
        """How many additions of `dots` follow one on the other, at most."""
        return min(self.longest, SUMMED) + -(-self.longest // SUMMED) + self.comm.size

    def factor(self, A: Floats) -> Floats:
        """F (q, k), q <= max(k, rows of A), with F'F the inner products of k vectors, slices (k, length) in A.

        By QR: unlike the inner products themselves, F has lost nothing but rounding of the vectors' own lengths.
        Collective among the ranks that step. Cost: 2 length k^2.
        """
        found = np.empty((0, len(A)))
        for start in range(0, A.shape[1], SUMMED):
            found = _triangular(np.vstack([found, A[:, start : start + SUMMED].T]))
        return found

    def choose_collective(self) -> None:
        """Sum by the way that is fastest for these p and ranks, by measurement. Collective.

        What counts is a way's best time, each the slowest rank's: of five, or of as many as begin within a second, the
        first of which, when memory is touched for the first time, is in vain.
        """
        if self.comm.size == 1 or self.p < MEASURED_FROM:
            return
        buffer = self.room(1)[:-1]
        for name, way in self._ways().items():
            taken: list[float] = []
            while len(taken) < 2 or (len(taken) < 5 and sum(taken) < 1.0):
                buffer[:] = 0
                self.comm.barrier()
                start = time.perf_counter()
                way(buffer)
                taken.append(float(self.comm.maximum(np.array([time.perf_counter() - start]))[0]))
            self.measured[name] = min(taken[1:])
        self.inward = self.comm.bcast(min(self.measured, key=self.measured.__getitem__))
        self._sum = self._ways()[self.inward]

    def in_words(self) -> str:
        """How w and X'c travel, for people."""
        times = ", ".join(f"{name} {1e3 * seconds:.3g} ms" for name, seconds in self.measured.items())
        return f"{self.outward} and {self.inward}" + (f", the fastest of {times}" if times else "")


class RootVectors(Vectors):
    """Vectors whole on the root, which steps; the others answer. Only the root needs X'c summed."""

    outward = "broadcast"

    def __init__(self, comm: Communicator, p: int, shared: bool = False) -> None:
        self.steps = comm.is_root
        self.length = p if comm.is_root else 0
        super().__init__(comm, p, shared)

    @property
    def longest(self) -> int:
        return self.p

    @property
    def holders(self) -> Any:
        return alone()

    def _ways(self) -> dict[str, Callable[[Floats], Floats]]:
        comm = self.comm
        return {
            "reduce": comm.reduce,
            "reduce by pieces": lambda array: comm.reduce(array, PIECE),
            "allreduce": comm.sum,
        }

    def announce(self, what: int, numbers: Floats) -> None:
        first, others = (numbers[0], numbers[1:]) if len(numbers) else (np.zeros(2), numbers)
        self.comm.broadcast(np.array([what, *first]))
        if len(others):
            self.comm.broadcast(np.ascontiguousarray(others))

    def awaited(self) -> tuple[int, Floats]:
        what, *first = self.comm.broadcast(np.empty(3))
        numbers = np.empty((max(1, int(what)), 2))
        numbers[0] = first
        if what > 1:
            self.comm.broadcast(numbers[1:])
        return int(what), numbers

    def copies(self, k: int, slices: Sequence[Floats] | None) -> Floats:
        return self._room_for_copies(k).broadcast(slices)

    def room(self, k: int) -> Floats:
        # What comes of it on the root is the caller's to keep.
        return np.empty(k * self.p + 1) if self.steps else super().room(k)

    def totals(self, buffer: Floats) -> tuple[Floats, bool]:
        self._sum(buffer)
        return buffer[:-1].reshape(-1, self.p), bool(buffer[-1])

    def total(self, local: Floats) -> Floats:
        return self.part(self._sum(local))

    def part(self, whole: Floats) -> Floats:
        return whole if self.steps else whole[:0]

    def at_root(self, mine: Floats) -> Floats | None:
        return mine

    def dealt(self, whole: Floats | None) -> Floats:
        return np.empty(0) if whole is None else whole


class DistributedVectors(Vectors):
    """A slice of every vector on every rank, of p/P entries and perhaps one more; all ranks step in lock-step."""

    outward = "allgather"
    steps = True

    def __init__(self, comm: Communicator, p: int, shared: bool = False) -> None:
        self._counts = [p // comm.size + (rank < p % comm.size) for rank in range(comm.size)]
        self.length = self._counts[comm.rank]
        super().__init__(comm, p, shared)

    @property
    def longest(self) -> int:
        return self._counts[0]

    @property
    def holders(self) -> Any:
        return self.comm.library

    def _ways(self) -> dict[str, Callable[[Floats], Floats]]:
        comm, counts = self.comm, self._counts
        return {
            "reduce-scatter": lambda array: comm.reduce_scatter(array, counts),
            "reduces in turn": lambda array: comm.reduce_scatter(array, counts, in_turn=True),
        }

    def announce(self, what: int, numbers: Floats) -> None:
        pass  # all ranks know

    def awaited(self) -> tuple[int, Floats]:
        raise AssertionError("where all ranks step, none waits")

    def copies(self, k: int, slices: Sequence[Floats] | None) -> Floats:
        assert slices is not None
        return self._room_for_copies(k).gather(slices, self._counts)

    def totals(self, buffer: Floats) -> tuple[Floats, bool]:
        flag = bool(self.comm.maximum(buffer[-1:])[0])
        return np.array([self._sum(one) for one in buffer[:-1].reshape(-1, self.p)]), flag

    def total(self, local: Floats) -> Floats:
        return self._sum(local)

    def part(self, whole: Floats) -> Floats:
        start = sum(self._counts[: self.comm.rank])
        return whole[start : start + self.length]

    def at_root(self, mine: Floats) -> Floats | None:
        return self.comm.gather_rows(mine)

    def dealt(self, whole: Floats | None) -> Floats:
        return self.comm.scatter_rows(whole, self.length)

    def sums(self, values: Floats) -> Floats:
        return self.comm.sum(values)

    def agreed(self, values: Floats) -> Floats:
        return self.comm.broadcast(values)

    def factor(self, A: Floats) -> Floats:
        return _triangular(np.vstack(self.comm.allgather(super().factor(A))))

    def least(self, values: Floats) -> float:
        return -float(self.comm.maximum(np.array([-super().least(values)]))[0])


def _triangular(A: Floats) -> Floats:
    """The factor R of A = Q R where A has more rows than columns, else A itself."""
    return np.asarray(np.linalg.qr(A, mode="r")) if len(A) > A.shape[1] else A


def choose_step(asked: str, p: int, size: int, spreadable: bool = True) -> tuple[str, str]:
    """Where the solver's vectors of length p live among so many ranks, and why, in words. Local.

    asked : "root", "spread", or "auto": spread from `SPREAD_FROM` columns on.  spreadable : whether the solver can.
    Raises InputError where it cannot, and is asked to.
    """
    if not spreadable:
        if asked == "spread":
            raise InputError(NOT_SPREADABLE)
        return "root", "this solver needs its vectors whole"
    if asked != "auto":
        return asked, "as asked for"
    if size == 1:
        return "root", "there is one rank"
    if p >= SPREAD_FROM:
        return "spread", f"{p} columns, at least {SPREAD_FROM}"
    return "root", f"{p} columns, fewer than {SPREAD_FROM}"


def make_vectors(step: str, p: int, comm: Communicator) -> Vectors:
    """The vectors of a run, with one copy of w for each node where that pays, by the fastest collective. Collective."""
    made = {"root": RootVectors, "spread": DistributedVectors}[step](comm, p, p >= SHARED_FROM)
    made.choose_collective()
    return made
