"""Ranks of one process that run one at a time, and how they are switched; `tests.support.simulated` is their MPI."""

from __future__ import annotations

import io
import random
import sys
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from greenlet import getcurrent, greenlet

from distsms.base import files

STATE = [(vars(sys), "stdout"), (vars(sys), "stderr"), (vars(files), "_read_by_all"), (vars(files), "_held")]
STATE += [(vars(warnings), name) for name in ("filters", "showwarning", "_showwarnmsg_impl")]
"""What modules hold that belongs to a process, and so to a rank."""
SEPARATE = 64
"""Up to so many ranks, each gets objects of its own from the others. Of more, a rank shares those that are equal."""


class Failure(Exception):
    """Stands in for MPI's exception: a rank has died, or the communicator was revoked."""


class Stopped(BaseException):
    """Ends a rank whose job is over, or which has died."""


class Deadlock(AssertionError):
    """No rank can go on."""


class Mismatch(AssertionError):
    """Ranks have called different collectives."""


def _numpy_errors() -> list[Any]:
    """Return what NumPy does about errors of floating point; NumPy 2 has it in the context, as each greenlet has."""
    return [*getattr(np, "geterrobj", list)()]  # a copy, since `numpy.seterr` changes the list


class Stream(io.TextIOWrapper):
    """What a rank prints, as text or as bytes."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)

    def getvalue(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]


@dataclass
class State:
    """What a process holds."""

    values: list[Any]  # of `STATE`
    numpy_errors: Any
    patches: list[Any]  # of tests


class Rank:
    """A process of the simulated job."""

    def __init__(self, job: Job, number: int, node: int) -> None:
        self.job, self.number, self.node = job, number, node
        self.out, self.err = Stream(), Stream()
        of_warnings = [warnings.filters[:], *(space[name] for space, name in STATE[5:])]
        self.state = State([self.out, self.err, {}, {}, *of_warnings], _numpy_errors(), [])
        self.dead = self.done = self.waits = False
        self.where, self.result = "its beginning", None
        self.handlers: dict[int, Any] = {}
        self.moved: Counter[tuple[str, str]] = Counter()
        self.greenlet = self.resume = greenlet(self._run)

    def _run(self) -> None:
        try:
            result = self.job.work(self)
            self.result = self.result if self.job.over else result
        except Stopped:
            pass
        except BaseException as error:
            if not self.job.over:
                self.job.errors.append(error)
        self.done = True

    def count(self, name: str, n_bytes: int, received: int = 0) -> None:
        """Count a call of MPI, the bytes that the rank gives to it, and those that it gets from it."""
        self.moved[name, "calls"] += 1
        self.moved[name, "given"] += n_bytes
        self.moved[name, "received"] += received


class Turn:
    """Whose turn it is: `rank` is None where no rank runs."""

    rank: Rank | None = None


class Job:
    """Ranks that run `work(rank)` each, one at a time.

    Parameters
    ----------
    size : int
        The number of ranks.
    work : callable
        What each rank does.
    nodes : int, optional
        The ranks are spread over so many nodes, neighbours on the same one.
    seed : int, optional
        Decides which rank is next, and the order of sums.
    switching : float, optional
        How often a rank gives way to others where it need not wait.

    Attributes
    ----------
    disturb : callable or None
        Called with a rank and the name of a call, before the call; it may kill the rank or deliver a signal.
    code : int or None
        The exit code of a job that was aborted, or 137 if a rank has died.
    survives : bool
        Whether the other ranks go on when one dies, as under `mpirun --with-ft ulfm`.
    """

    def __init__(
        self, size: int, work: Callable[[Rank], Any], nodes: int = 1, seed: int = 0, switching: float = 0.0
    ) -> None:
        self.work, self.chance, self.switching = work, random.Random(seed), switching
        self.ranks = [Rank(self, number, number * nodes // size) for number in range(size)]
        self.slow = {rank for rank in self.ranks if switching and self.chance.random() < 0.2}
        self.world, self.current = Group(self, self.ranks), self.ranks[0]
        self.ready, self.stopped, self.errors = list[Rank](), list[Rank](), list[BaseException]()
        self.outside, self.inside = State([], [], []), None  # what the process holds if no rank does
        self.code: int | None = None
        self.survives = self.over = False
        self.disturb: Callable[[Rank, str], None] | None = None
        self.history, self.switches = xxhash.xxh3_64(), 0

    def run(self) -> list[Any]:
        """Run to the end, and return what the ranks returned. An error of a rank, or of the simulation, is raised."""
        self.ready, self.hub = list(self.ranks), getcurrent()
        try:
            while (self.ready or self.stopped) and not self.errors and self.code is None:
                if not self.ready:
                    self.ready, self.stopped = self.stopped, self.ready
                self._turn(self._next())
        finally:
            self._hand_to(None)
        left = [rank for rank in self.ranks if not rank.done]
        if not self.errors and self.code is None and any(not rank.dead for rank in left):
            waiting = "; ".join(f"rank {rank.number} in {rank.where}" for rank in left[:20])
            self.errors.append(Deadlock(f"no rank can go on: {waiting}"))
        self.ended()
        self.over = True
        try:
            for rank in self.ranks:
                if rank.resume is rank.greenlet and not rank.greenlet:
                    continue  # it has never run
                for _ in range(10):  # a handler of all exceptions may communicate again
                    if not rank.greenlet.dead:
                        self._turn(rank, stop=True)
        finally:
            self._hand_to(None)
        self.unwound()
        if self.errors:
            raise self.errors[0]
        return [rank.result for rank in self.ranks]

    def ended(self) -> None:
        """Called when all ranks have come to an end, before those that still wait are unwound."""

    def unwound(self) -> None:
        """Called when nothing of the ranks is left."""

    def _next(self) -> Rank:
        chosen = int(self.chance.random() * len(self.ready))
        if self.slow and self.ready[chosen] in self.slow:
            chosen = int(self.chance.random() * len(self.ready))
        self.ready[chosen], self.ready[-1] = self.ready[-1], self.ready[chosen]
        return self.ready.pop()

    def _turn(self, rank: Rank, stop: bool = False) -> None:
        self.current, rank.waits = rank, False
        self.history.update(f"{rank.number} {rank.where}".encode())
        self.switches += 1
        self._hand_to(rank)
        Turn.rank = rank
        try:
            rank.resume.throw(Stopped) if stop else rank.resume.switch()
        finally:
            Turn.rank = None

    def _hand_to(self, rank: Rank | None) -> None:
        """Let the process hold what a rank holds, or what it held before the job."""
        if rank is self.inside:
            return
        before, after = (self.outside if of is None else of.state for of in (self.inside, rank))
        before.values[:] = [space[name] for space, name in STATE]
        for (space, name), value in zip(STATE, after.values, strict=True):
            space[name] = value
        warnings._filters_mutated()  # type: ignore[attr-defined]
        before.numpy_errors = _numpy_errors()
        if before.numpy_errors != after.numpy_errors:
            np.seterrobj([*after.numpy_errors])
        for patch in (*before.patches, *after.patches):
            patch.exchange()
        self.inside = rank

    def wait(self, where: str) -> None:
        """Let other ranks run until this one is woken."""
        rank = self.current
        if self.over:
            raise Stopped
        rank.where, rank.waits, rank.resume = where, True, getcurrent()
        self.hub.switch()

    def wake(self, rank: Rank) -> None:
        """Let a rank go on that waits."""
        if rank.waits and not rank.dead:
            rank.waits = False
            self.ready.append(rank)

    def step(self, where: str) -> None:
        """Something happens that others may notice: they may come first, or the rank may not get so far."""
        if self.over:
            raise Stopped
        rank = self.current
        if self.disturb is not None:
            self.disturb(rank, where)
        if self.switching and self.chance.random() < self.switching:
            rank.waits = True
            self.wake(rank)
            rank.where, rank.resume = where, getcurrent()
            self.hub.switch()

    def stop(self) -> None:
        """Let the current rank stand still until no other rank can go on."""
        rank = self.current
        self.stopped.append(rank)
        rank.where, rank.resume = "a stop", getcurrent()
        self.hub.switch()

    def die(self, with_node: bool = False) -> None:
        """Let the current rank die: it never goes on, and the job ends if it cannot go on without it."""
        rank = self.current
        for other in self.ranks:
            if other is rank or (with_node and other.node == rank.node and not other.done):
                other.dead, other.waits = True, False
        self.ready = [other for other in self.ready if not other.dead]
        self.stopped = [other for other in self.stopped if not other.dead]
        if not self.survives:
            self.code = 137
        for other in self.ranks:
            self.wake(other)  # those that wait for it fail
        self.wait(f"death in {rank.where}")

    def end(self, code: int) -> None:
        """End the whole job with an exit code, as MPI's Abort; this does not return."""
        if not self.over and self.code is None:
            self.code = code
        self.wait("its end")

    def leave(self, result: Any) -> None:
        """End the current rank alone, as `os._exit`: nothing after it is done."""
        self.current.result, self.current.done = result, True
        self.wait("its end")


class Call:
    """A collective that some of the ranks of a communicator have called."""

    def __init__(self, name: str) -> None:
        self.name, self.items, self.waiting = name, dict[int, Any](), list[tuple[Rank, Any]]()
        self.total: Any = None
        self.left = 0


class Group:
    """What the ranks of a communicator share."""

    def __init__(self, job: Job, members: list[Rank]) -> None:
        self.job, self.members, self.revoked = job, members, False
        self.calls, self.children = dict[tuple[str, int], Call](), dict[Any, Group]()
        self.mail: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.order = list(range(len(members)))
        if job.switching:
            job.chance.shuffle(self.order)  # of sums

    def Translate_ranks(self, ranks: None, other: Group) -> list[int]:
        return [other.members.index(member) for member in self.members]
