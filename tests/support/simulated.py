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
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from distsms.parallel.mpi import MPICommunicator
from distsms.parallel.survival import SurvivingCommunicator
from tests.support.simulated_job import SEPARATE, Call, Failure, Group, Job, Mismatch, Rank


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
