"""Many ranks in one process: they run one at a time, and a seed decides which is next.

Each rank is a greenlet (a switch takes 0.3 us; one of threads took 13 us). A rank runs until it waits in a call of MPI,
which `Comm` stands in for: it has the calls of mpi4py that `distsms.parallel` uses, shared windows, nodes and ULFM. So
`MPICommunicator` and all above it are the package's own. A rank that waits for what no other rank will ever do, or that
calls another collective than the others, ends the job at once, and its error says where each rank is.

What a process has of state is a rank's here, and is exchanged when another rank gets its turn (`STATE`). The
randomness, the clock and the file system of `tests.support.disturbed` are a job's, too. Everything else is shared: the
environment, the working folder, caches of pure functions, and libraries with a state of their own. PETSc cannot be
spread over such ranks, and launchers, watchers and sockets are not simulated.
"""

from __future__ import annotations

import functools
import io
import pickle
import random
import sys
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from greenlet import getcurrent, greenlet

from distsms.base import common_files, files
from distsms.parallel.mpi import MPICommunicator
from distsms.parallel.survival import SurvivingCommunicator

STATE = [(vars(sys), "stdout"), (vars(sys), "stderr"), (vars(common_files), "_noted"), (vars(files), "_held")]
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
        self.out, self.err = io.StringIO(), io.StringIO()
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


@functools.cache
def name_of(kind: np.dtype[Any]) -> str:
    """Return the name of a type, which NumPy makes anew each time."""
    return str(kind)


class Comm:
    """A communicator of mpi4py, as one of its ranks sees it."""

    def __init__(self, group: Group, rank: Rank) -> None:
        self._group, self._me, self._job = group, rank, group.job
        self._rank, self._size = group.members.index(rank), len(group.members)
        self._count: Counter[str] = Counter()
        self.MPI = MPI

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._size

    def Get_group(self) -> Group:
        return self._group

    def Set_errhandler(self, handler: Any) -> None:
        pass

    def Free(self) -> None:
        pass

    def Abort(self, code: int) -> None:
        self._job.end(code)

    def _call(self, name: str, item: Any, awaited: Any = "all", kind: str = "collective") -> Call:
        """Take part in the next collective, and return it when the awaited items are there.

        awaited : "all", "living", the number of a rank, or None.
        """
        job, group = self._job, self._group
        job.step(name)
        key = kind, self._count[kind]
        self._count[kind] += 1
        if (call := group.calls.get(key)) is None:
            call = group.calls[key] = Call(name)
        if call.name != name:
            error = Mismatch(f"rank {self._me.number} calls {name} where others call {call.name}")
            job.errors.append(error)
            raise error
        call.items[self._rank] = item
        waiting, call.waiting = call.waiting, []
        for other, wanted in waiting:
            if wanted == self._rank or wanted == "living" or len(call.items) == self._size:
                job.wake(other)
            else:
                call.waiting.append((other, wanted))
        while not self._is_there(call, awaited):
            if awaited != "living" and (group.revoked or self._is_lost(call, awaited)):
                raise Failure(f"{name}: a rank has died")
            call.waiting.append((self._me, awaited))
            job.wait(name)
        call.left += 1
        if call.left == self._size:
            group.calls.pop(key, None)
        return call

    def _is_there(self, call: Call, awaited: Any) -> bool:
        if awaited == "all":
            return len(call.items) == self._size
        if awaited == "living":
            return all(member.dead or k in call.items for k, member in enumerate(self._group.members))
        return awaited is None or awaited in call.items

    def _is_lost(self, call: Call, awaited: Any) -> bool:
        members = enumerate(self._group.members) if awaited == "all" else [(awaited, self._group.members[awaited])]
        return any(member.dead and k not in call.items for k, member in members)

    # Collectives of buffers

    def Barrier(self) -> None:
        self._me.count("Barrier", 0)
        self._call("Barrier", None)

    def Bcast(self, buffer: Any, root: int) -> None:
        is_root = self._rank == root
        self._me.count("Bcast", *((buffer.nbytes, 0) if is_root else (0, buffer.nbytes)))
        call = self._call(
            f"Bcast of {buffer.size} {name_of(buffer.dtype)} from {root}",
            buffer.copy() if is_root else None,
            None if is_root else root,
        )
        if not is_root:
            buffer[...] = call.items[root]

    def _total(self, call: Call, op: Any) -> Any:
        if call.total is None:
            call.total = op.reduce([call.items[k] for k in self._group.order], axis=0)
        return call.total

    def Allreduce(self, in_place: Any, buffer: Any, op: Any) -> None:
        self._me.count("Allreduce", buffer.nbytes, buffer.nbytes)
        call = self._call(f"Allreduce of {buffer.size} {name_of(buffer.dtype)} by {op.__name__}", buffer.copy())
        buffer[...] = self._total(call, op)

    def Reduce(self, sent: Any, buffer: Any, op: Any, root: int) -> None:
        mine = buffer if sent is MPI.IN_PLACE else sent
        self._me.count("Reduce", mine.nbytes, mine.nbytes if self._rank == root else 0)
        awaited = "all" if self._rank == root else None
        call = self._call(f"Reduce of {mine.size} {name_of(mine.dtype)} to {root}", mine.copy(), awaited)
        if self._rank == root:
            buffer[...] = self._total(call, op)

    def Reduce_scatter(self, sent: Any, received: Any, counts: Sequence[int]) -> None:
        self._me.count("Reduce_scatter", sent.nbytes, received.nbytes)
        call = self._call(f"Reduce_scatter of {sent.size} {name_of(sent.dtype)}", sent.copy())
        start = sum(counts[: self._rank])
        received[...] = self._total(call, MPI.SUM)[start : start + counts[self._rank]]

    def Allgatherv(self, in_place: Any, buffer: Any) -> None:
        whole, counts = buffer
        start = sum(counts[: self._rank])
        self._me.count("Allgatherv", counts[self._rank] * whole.itemsize, whole.nbytes)
        call = self._call(
            f"Allgatherv of {whole.size} {name_of(whole.dtype)}", whole[start : start + counts[self._rank]].copy()
        )
        if call.total is None:
            call.total = np.concatenate([call.items[k] for k in range(self._size)])
        whole[...] = call.total

    def Alltoall(self, sent: Any, received: Any) -> None:
        self._me.count("Alltoall", sent.nbytes, received.nbytes)
        call = self._call(f"Alltoall of {sent.size} {name_of(sent.dtype)}", sent.copy())
        parts = len(sent) // self._size
        for k in range(self._size):
            received[k * parts : (k + 1) * parts] = call.items[k][self._rank * parts : (self._rank + 1) * parts]

    # Python objects

    def allgather(self, item: Any) -> list[Any]:
        content = pickle.dumps(item)
        call, known = self._call("allgather", content), dict[bytes, Any]()
        self._me.count("allgather", len(content), sum(map(len, call.items.values())))
        if self._size <= SEPARATE:
            return [pickle.loads(call.items[k]) for k in range(self._size)]
        for k in range(self._size):
            if (content := call.items[k]) not in known:
                known[content] = pickle.loads(content)
        return [known[call.items[k]] for k in range(self._size)]

    def bcast(self, item: Any, root: int) -> Any:
        is_root = self._rank == root
        content = pickle.dumps(item) if is_root else b""
        call = self._call(f"bcast from {root}", content, None if is_root else root)
        self._me.count("bcast", *((len(content), 0) if is_root else (0, len(call.items[root]))))
        return item if is_root else pickle.loads(call.items[root])

    def gather(self, item: Any, root: int) -> list[Any] | None:
        is_root, content = self._rank == root, pickle.dumps(item)
        self._me.count("gather", len(content))
        call = self._call(f"gather to {root}", content, "all" if is_root else None)
        return [pickle.loads(call.items[k]) for k in range(self._size)] if is_root else None

    # Messages from one rank to another

    def Send(self, buffer: Any, dest: int) -> None:
        self._me.count("Send", buffer.nbytes)
        self._job.step("Send")
        self._group.mail[self._rank, dest].append(buffer.copy())
        self._job.wake(self._group.members[dest])

    def Recv(self, buffer: Any, source: int) -> None:
        self._me.count("Recv", 0, buffer.nbytes)
        self._job.step("Recv")
        box = self._group.mail[source, self._rank]
        while not box:
            if self._group.revoked or self._group.members[source].dead:
                raise Failure(f"Recv: rank {source} has died")
            self._job.wait(f"Recv from {source}")
        message = box.popleft()
        if message.dtype != buffer.dtype or message.size > buffer.size:
            error = Mismatch(f"{message.size} {message.dtype} received as {buffer.size} {name_of(buffer.dtype)}")
            self._job.errors.append(error)
            raise error
        buffer[: message.size] = message

    def Isend(self, buffer: Any, dest: int) -> Request:
        self.Send(buffer, dest)
        return Request(lambda: None)

    def Irecv(self, buffer: Any, source: int) -> Request:
        return Request(lambda: self.Recv(buffer, source))

    # Other communicators

    def _child(self, key: Any, numbers: Iterable[int]) -> Comm:
        members = [self._group.members[k] for k in numbers]
        child = self._group.children.setdefault((key, *numbers), Group(self._job, members))
        return Comm(child, self._me)

    def Dup(self) -> Comm:
        self._call("Dup", None)
        return self._child(("dup", self._count["collective"]), range(self._size))

    def Split(self, color: int, key: int = 0) -> Comm | None:
        items = self._call("Split", (color, key)).items
        if color == MPI.UNDEFINED:
            return None
        numbers = sorted((k for k in items if items[k][0] == color), key=lambda k: (items[k][1], k))
        return self._child(("split", self._count["collective"]), numbers)

    def Split_type(self, kind: Any) -> Comm:
        node = self.Split(self._me.node, self._rank)
        assert node is not None
        return node

    # ULFM

    def Revoke(self) -> None:
        self._job.step("Revoke")
        self._group.revoked = True
        for member in self._group.members:
            self._job.wake(member)

    def Agree(self, flag: int) -> int:
        call = self._call("Agree", flag, "living", "agree")
        if call.total is None:  # all get the same answer, also if a rank dies now
            call.total = len(call.items) == self._size, min(call.items.values())
        everybody, flag = call.total
        if not everybody:
            raise Failure("Agree: a rank has died")
        return flag

    def Shrink(self) -> Comm:
        call = self._call("Shrink", None, "living", "shrink")
        if call.total is None:
            call.total = [k for k, member in enumerate(self._group.members) if k in call.items and not member.dead]
        return self._child(("shrink", self._count["shrink"]), call.total)


class Request:
    """A message that is sent, or awaited when somebody waits for it."""

    def __init__(self, complete: Callable[[], None]) -> None:
        self._complete = complete

    @staticmethod
    def Waitall(requests: Iterable[Request]) -> None:
        for request in requests:
            request._complete()


class Window:
    """Memory that the ranks of a node share. It is the same memory at once: what barriers are missing, a seed shows."""

    @classmethod
    def Allocate_shared(cls, size: int, unit: int, comm: Comm) -> Window:
        window = cls()
        call = comm._call("Allocate_shared", bytearray(size))
        assert len({member.node for member in comm._group.members}) == 1, "ranks of different nodes share no memory"
        window.comm, window.memory = comm, call.items
        return window

    def Shared_query(self, rank: int) -> tuple[bytearray, int]:
        return self.memory[rank], 1

    def Lock_all(self, assertion: Any) -> None:
        pass

    def Unlock_all(self) -> None:
        pass

    def Sync(self) -> None:
        pass

    def Free(self) -> None:
        self.comm._call("Free", None)


class MPI:
    """What `distsms.parallel` uses of mpi4py's module MPI."""

    SUM, MAX = np.add, np.maximum
    IN_PLACE, UNDEFINED, COMM_TYPE_SHARED, MODE_NOCHECK, ERRORS_RETURN = object(), -32766, "shared", 0, None
    Exception, Win, Request = Failure, Window, Request


def install() -> None:
    """Let the package's communicators take what they need of MPI from their own communicator, if it is simulated."""
    real = MPICommunicator.mpi.fget  # type: ignore[attr-defined]
    MPICommunicator.mpi = property(lambda self: getattr(self._comm, "MPI", None) or real(self))  # type: ignore[assignment]


install()


def communicator(rank: Rank, survives: bool = False) -> MPICommunicator:
    """Return the package's communicator of all ranks, as one of them sees it. Collective if it `survives`."""
    return (SurvivingCommunicator if survives else MPICommunicator)(Comm(rank.job.world, rank))


def run_ranks(size: int, work: Callable[[MPICommunicator], Any], nodes: int = 1, **more: Any) -> list[Any]:
    """Call `work(comm)` on so many ranks, and return what each of them returned. An error of a rank is raised."""
    return Job(size, lambda rank: work(communicator(rank)), nodes, **more).run()
