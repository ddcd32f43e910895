"""Simulated ranks, what their search finds, and that it finds nothing."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import distsms.cli.main as program
from distsms.base.errors import InputError
from tests.robustness import schedules
from tests.support import disturbed
from tests.support.program import ROOT
from tests.support.simulated import communicator, run_ranks
from tests.support.simulated_job import Deadlock, Failure, Job, Mismatch

pytestmark = pytest.mark.serial


def test_a_rank_that_waits_for_nothing_ends_the_job():
    def work(comm):
        if comm.rank == 1:
            comm.barrier()

    with pytest.raises(Deadlock, match="rank 1 in Barrier"):
        run_ranks(3, work)


def test_other_collectives_and_other_types_end_the_job():
    with pytest.raises(Mismatch, match="Barrier"):
        run_ranks(2, lambda comm: comm.barrier() if comm.rank else comm.bcast(1))
    with pytest.raises(Mismatch, match="int64"):
        run_ranks(2, lambda comm: comm.sum(np.zeros(3, int if comm.rank else float)))


@pytest.mark.parametrize("seed", range(20))
def test_every_order_of_ranks_gives_the_same(seed):
    """A missing barrier would show: memory of a node is written and read by turns."""

    def work(comm):
        held = comm.replica(1, 7, shared=True)
        got = [held.broadcast([np.arange(7.0) + turn] if comm.is_root else None).copy() for turn in range(3)]
        rows, counts = comm.alltoall_rows(np.arange(comm.size) * 10 + comm.rank, np.ones(comm.size, np.int64))
        return np.array(got), rows, counts, comm.node_ranks()

    for number, (got, rows, counts, node) in enumerate(run_ranks(5, work, nodes=2, seed=seed, switching=0.5)):
        assert np.array_equal(got, np.arange(7.0) + np.arange(3)[:, None, None])
        assert np.array_equal(rows, number * 10 + np.arange(5)) and counts.tolist() == [1] * 5
        assert node == ([0, 1, 2] if number < 3 else [3, 4])


def test_what_a_rank_has_of_the_process_is_its_own(capsys):
    def work(comm):
        with np.errstate(over="ignore" if comm.rank else "raise"):
            print(comm.rank)
            comm.barrier()
            return np.geterr()["over"]

    job = Job(3, lambda rank: work(communicator(rank)), switching=0.5)
    assert job.run() == ["raise", "ignore", "ignore"]
    assert [rank.out.getvalue() for rank in job.ranks] == ["0\n", "1\n", "2\n"]
    assert np.geterr()["over"] == "warn" and not capsys.readouterr().out


def test_the_others_fail_when_a_rank_has_died():
    def work(rank):
        comm = communicator(rank)
        if rank.number == 2:
            rank.job.die()
        with pytest.raises(Failure):
            comm.barrier()
        return comm.mpi_comm.Shrink().Get_size()

    job = Job(4, work)
    job.survives = True
    assert job.run() == [3, 3, None, 3]


def test_the_ranks_of_a_node_die_together():
    def work(rank):
        comm = communicator(rank)
        if rank.number == 2:
            rank.job.die(with_node=True)
        with pytest.raises(Failure):
            comm.barrier()
        return comm.mpi_comm.Shrink().Get_size()

    job = Job(5, work, nodes=3)
    job.survives = True
    assert job.run() == [3, 3, None, None, 3]


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_stops_goes_on_when_no_other_can(seed):
    done = []

    def work(rank):
        if rank.number == 1:
            rank.job.stop()
        done.append(rank.number)
        communicator(rank).barrier()

    Job(4, work, seed=seed, switching=0.5).run()
    assert done[3] == 1 and sorted(done) == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def watched():
    with disturbed.installed():
        yield
        shutil.rmtree(schedules.base())
        for cached in (schedules.base, schedules.inputs, schedules.home_of, schedules.least, schedules.reference_of):
            cached.cache_clear()


def test_the_search_finds_nothing(watched):
    assert [schedules.describe(found) for found in map(schedules.schedule, range(4)) if found.problems] == []


@pytest.mark.parametrize("plant, seed", [("allreduce", 0), ("barrier", 7), ("flush", 120), ("manifest", 6)])
def test_planted_faults_are_found(plant, seed, watched):
    """The seeds are the first that found them."""
    assert any(schedules.schedule(k, plant).problems for k in range(seed, seed + 60))


def program_of(run):
    """Return what a simulated rank does of a command that does this."""
    words = {"program": "distsms", "threads": None, "signals": None, "mpi": True, "survive": False, "stall_timeout": 0}
    return lambda rank: program.main([], lambda argv: argparse.Namespace(run=run, given={}, **words))


@pytest.mark.parametrize("seed", range(8))
def test_an_error_after_a_death_is_said_before_the_job_ends(seed, watched):
    """Whichever rank comes first ends the others."""

    def run(args, comm):
        comm.dead.append("rank 2 on a host")
        comm.barrier()
        raise InputError("the file is damaged", everywhere=True)

    job = Job(2, program_of(run), seed=seed, switching=0.5)
    disturbed.Disturbance(job, schedules.base(), [], seed)
    job.run()
    assert job.code == 1 and any("the file is damaged" in rank.err.getvalue() for rank in job.ranks)


def ended(run):
    """Return the exit code of two simulated ranks of a command that does this, and their messages."""
    job, texts = Job(2, program_of(run)), []
    job.ended = lambda: texts.extend(rank.err.getvalue() for rank in job.ranks)
    job.run()
    return job.code, "".join(texts)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT])
def test_a_disk_that_fails_is_said_without_a_traceback(watched, number):
    def run(args, comm):
        raise OSError(number, os.strerror(number), "rows.csv")

    code, said = ended(run)
    assert code == 1 and "a disk or a file server fails" in said and "rows.csv" in said
    assert "Traceback" not in said


def test_a_defect_on_the_root_ends_the_others(watched):
    def run(args, comm):
        if comm.is_root:
            raise RuntimeError("a defect")
        comm.barrier()

    code, said = ended(run)
    assert code == 1 and "rank 0 of 2" in said and "Traceback" in said and "RuntimeError: a defect" in said


@pytest.mark.by_turns
def test_a_seed_repeats_a_run_in_another_process(watched):
    words = [sys.executable, "-m", "tests.robustness.schedules", "--only", "20"]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{schedules.schedule(20).outcome.history:x}" in done.stdout.split("\n")
    assert schedules.schedule(20).outcome.history != schedules.schedule(420).outcome.history
