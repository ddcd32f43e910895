"""Ranks that are threads of one process and can die, for the protocol of `distsms.parallel.survival` without an MPI.

`MortalComm` stands in for mpi4py's communicator with ULFM: a collective fails on all ranks that still wait when a rank
has died or the communicator was revoked; Agree and Shrink go on without the dead.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter

import numpy as np

from distsms.parallel.survival import SurvivingCommunicator

HANG = 30.0  # seconds after which a rank that waits fails


class Failure(Exception):
    """Stands in for MPI's exception."""


class Death(BaseException):
    """Ends the thread of a rank that dies."""


class Job:
    """What all ranks of a job share: who has died, and one lock for everything."""

    def __init__(self):
        self.dead, self.changed = set(), threading.Condition()


class Group:
    def __init__(self, members):
        self.members = members

    def Translate_ranks(self, ranks, other):
        assert ranks is None
        return [other.members.index(member) for member in self.members]


class Meeting:
    """What the ranks of one communicator share."""

    def __init__(self, members):
        self.members, self.revoked, self.slots, self.fixed, self.child = members, False, {}, {}, {}


class MortalComm:
    """A communicator as one of its ranks, `me`, sees it."""

    def __init__(self, job, meeting, me):
        self.job, self.meeting, self.me, self.calls = job, meeting, me, Counter()

    def Dup(self):
        return self

    def Set_errhandler(self, handler):
        pass

    def Get_rank(self):
        return self.meeting.members.index(self.me)

    def Get_size(self):
        return len(self.meeting.members)

    def Get_group(self):
        return Group(self.meeting.members)

    def Revoke(self):
        with self.job.changed:
            self.meeting.revoked = True
            self.job.changed.notify_all()

    def meet(self, kind, item, everybody=True):
        """Return the items of all ranks, or of those that live, in the order of the ranks."""
        with self.job.changed:
            key = kind, self.calls[kind]
            self.calls[kind] += 1
            slot = self.meeting.slots.setdefault(key, {})
            slot[self.me] = item
            self.job.changed.notify_all()
            while key not in self.meeting.fixed:
                missing = set(self.meeting.members) - set(slot)
                if not missing - (set() if everybody else self.job.dead):
                    self.meeting.fixed[key] = [slot[member] for member in self.meeting.members if member in slot]
                elif everybody and (self.meeting.revoked or missing & self.job.dead):
                    raise Failure(f"{kind}: {sorted(missing & self.job.dead)} have died")
                elif not self.job.changed.wait(HANG):
                    raise AssertionError(f"rank {self.me} hangs in {kind}")
            return self.meeting.fixed[key]

    def allgather(self, item):
        return copy.deepcopy(self.meet("collective", copy.deepcopy(item)))

    def Agree(self, flag):
        flags = self.meet("agree", flag, everybody=False)
        if len(flags) < len(self.meeting.members):
            raise Failure
        return min(flags)

    def Shrink(self):
        living = self.meet("shrink", self.me, everybody=False)
        with self.job.changed:
            child = self.meeting.child.setdefault(tuple(living), Meeting(living))
        return MortalComm(self.job, child, self.me)

    def Abort(self, code):
        raise AssertionError(f"a rank ended the job with {code}")


class MortalRank(SurvivingCommunicator):
    """A rank of such a job. `before` is called with the number and the name of each piece of work before it begins."""

    mpi = type("MPI", (), {"Exception": Failure, "ERRORS_RETURN": None})

    def __init__(self, comm, before=lambda number, name: None):
        super().__init__(comm)
        self.before, self.pieces = before, []

    def _attempt(self, work):
        self.pieces.append(work.__qualname__)
        self.before(len(self.pieces) - 1, work.__qualname__)
        return super()._attempt(work)

    def die(self):
        with self._comm.job.changed:
            self._comm.job.dead.add(self._comm.me)
            self._comm.job.changed.notify_all()
        raise Death

    def allgather(self, item):
        return self._comm.allgather(item)

    def bcast(self, item):
        return self.allgather(item)[0]

    def barrier(self):
        self.allgather(None)

    def broadcast(self, array):
        array[...] = self.bcast(array)
        return array

    def sum(self, array):
        array[...] = np.sum(self.allgather(array), axis=0)
        return array

    def maximum(self, array):
        array[...] = np.max(self.allgather(array), axis=0)
        return array

    def reduce(self, array, piece=None):
        total = np.sum(self.allgather(array), axis=0)
        if self.is_root:
            array[...] = total
        return array

    def gather_rows(self, local):
        rows = np.concatenate(self.allgather(local))
        return rows if self.is_root else None

    def scatter_rows(self, whole, n_local):
        counts, whole = self.allgather(n_local), self.bcast(whole)
        start = sum(counts[: self.rank])
        return whole[start : start + n_local].copy()

    def allgather_rows(self, local, counts):
        return np.concatenate(self.allgather(local))

    def alltoall_rows(self, rows, counts):
        sent = self.allgather(np.split(rows, np.cumsum(counts)[:-1]))
        got = [parts[self.rank] for parts in sent]
        return np.concatenate(got), np.array([len(part) for part in got])


def run_ranks(size, work, before=lambda comm, number, name: None):
    """Call `work(comm)` on so many ranks, and return what each of them returned; None where it has died.

    An exception of a rank is raised here. `before(comm, number, name)` is called before each piece of work.
    """
    job, meeting = Job(), Meeting(list(range(size)))
    results, errors = [None] * size, []

    def run(me):
        try:
            comm = MortalRank(MortalComm(job, meeting, me))
            comm.before = lambda number, name: before(comm, number, name)
            results[me] = work(comm)
        except Death:
            pass
        except BaseException as error:
            errors.append(error)
            with job.changed:
                job.dead.add(me)
                job.changed.notify_all()

    threads = [threading.Thread(target=run, args=(me,), daemon=True) for me in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * HANG)
    if errors:
        raise errors[0]
    return results
