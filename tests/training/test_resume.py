"""Runs that are taken up again: the same course, the same proof, whatever solver, place of the vectors, and ranks."""

from __future__ import annotations

import contextlib
import time
import tracemalloc

import numpy as np
import pytest

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.optim.result import Snapshot, Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.optim.solvers.base import SOLVERS
from distsms.parallel.vectors import make_vectors
from distsms.training import checkpoint
from distsms.training.checkpoint import CheckpointWriter, opened, restored
from tests.support.problems import data, noting, objective

PROBLEM = {"lambda": 1e-2}


def settings(solver="lmvm", **more):
    return Settings(**{"lam": 1e-2, "epsilon": 1e-3, "solver": solver, "checkpoint_every": 1e6, **more})


def first(folder, given, until, *problem, **more):
    """Run up to so many evaluations, and keep that. Collective."""
    made = objective(*problem, **more, stop_wanted=lambda: made.evaluations >= until)
    result = minimize(made, given, keep=CheckpointWriter(folder, PROBLEM, {}, made.vectors))
    assert (result.status, result.evaluations) == (Status.STOPPED, until)


def again(folder, problem, given, states=None):
    """Resume from the checkpoint in the folder. Collective."""
    found = checkpoint.load(folder, PROBLEM)[0] if problem.comm.is_root else None
    return minimize(
        problem, given, watch=noting([] if states is None else states), snapshot=restored(found, problem.vectors)
    )


@pytest.mark.serial
def test_a_resumed_run_holds_the_vectors_once(shared_dir):
    """They are read one by one, when the run takes them."""
    p, k = 10**5, 20
    vectors = make_vectors("root", p, Communicator())
    CheckpointWriter(shared_dir, PROBLEM, {}, vectors)(Snapshot({}, {}, {"planes": np.arange(k)[:, None] * np.ones(p)}))
    found, _ = checkpoint.load(shared_dir, PROBLEM)
    tracemalloc.start()
    sums = [row.sum() for row in restored(found, vectors).vectors["planes"]]
    assert tracemalloc.get_traced_memory()[1] < 4 * 8 * p
    tracemalloc.stop()
    assert sums == [p * row for row in range(k)]


@pytest.mark.parametrize("solver, l1", [*((solver, 0.0) for solver in SOLVERS), ("lbfgs", 2e-2), ("agm", 2e-2)])
@pytest.mark.parametrize(
    "measure, step", [("rocarea", "root"), ("rocarea", "spread"), ("prbep", "spread"), ("pauc@0.4", "root")]
)
def test_the_course_goes_on(measure, solver, l1, step, comm, shared_dir):
    """Cut at several evaluations: the bound and the best J are kept to the bit, and hardly an evaluation is lost."""
    X, y = data(n=150, p=9, seed=3)
    given, states = settings(solver, l1=l1), []
    whole = minimize(objective(X, y, comm, measure, step=step), given, watch=noting(states))
    assert whole.status is Status.PROVED
    for until in (1, whole.evaluations // 2, whole.evaluations - 1):
        first(shared_dir, given, until, X, y, comm, measure, step=step)
        seen = []
        result = again(shared_dir, objective(X, y, comm, measure, step=step), given, seen)
        assert result.status is Status.PROVED
        assert result.starts == 2
        lost = result.evaluations - whole.evaluations
        assert lost <= (0 if "bmrm" in solver else 5)
        if states:
            before = states[until - 1]
            assert [s.evaluation for s in seen] == list(range(until + 1, result.evaluations + 1))
            assert seen[0].lower_bound >= before.lower_bound
            assert seen[0].best_J <= before.best_J
            assert np.all(np.diff([s.seconds for s in seen]) >= 0)
            if "bmrm" in solver:  # all is in the planes: the same numbers to the bit
                assert [(s.J, s.lower_bound) for s in seen] == [(s.J, s.lower_bound) for s in states[until:]]


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_is_restored_is_what_was_kept(solver, comm, shared_dir):
    """A snapshot of a run that has just been taken up is, but for the count of starts, the snapshot it was given."""
    X, y = data(n=100, p=7, seed=1)
    first(shared_dir, settings(solver), 6, X, y, comm)
    before = checkpoint.read(shared_dir / checkpoint.NEWEST) if comm.is_root else None
    kept = {name: before.array(name) for name in before.shapes} if before else {}
    problem = objective(X, y, comm)
    again_kept = CheckpointWriter(shared_dir, PROBLEM, {}, problem.vectors)
    minimize(problem, settings(solver, max_evaluations=1), keep=again_kept, snapshot=restored(before, problem.vectors))
    if before:
        after = checkpoint.read(shared_dir / checkpoint.NEWEST)
        differ = {name for name in before.numbers if before.numbers[name] != after.numbers[name]}
        assert differ <= {"starts", "count_then", "gap_then"}
        assert after.shapes == before.shapes
        for name, array in kept.items():
            assert after.array(name).tobytes() == array.tobytes(), name


@pytest.mark.parametrize("steps", [("root", "spread"), ("spread", "root")])
@pytest.mark.parametrize(
    "solver", [*(name for name in SOLVERS if name != "lmvm"), pytest.param("lmvm", marks=pytest.mark.mpi(only=True))]
)
def test_on_another_number_of_ranks(solver, steps, comm, shared_dir):
    """From all ranks to one process, and back: proved both times, and no bound is lost."""
    X, y = data(n=150, p=9, seed=5)
    whole = minimize(objective(X, y, comm, step=steps[0]), settings(solver))
    first(shared_dir, settings(solver), whole.evaluations // 2, X, y, comm, step=steps[0])
    bound = checkpoint.read(shared_dir / checkpoint.NEWEST).numbers["certificate.lower_bound"] if comm.is_root else 0.0
    if comm.is_root:
        alone = objective(X, y, Communicator())
        result = minimize(
            alone,
            settings(solver, max_evaluations=whole.evaluations * 3 // 4),
            keep=CheckpointWriter(shared_dir, PROBLEM, {}, alone.vectors),
            snapshot=restored(checkpoint.load(shared_dir, PROBLEM)[0], alone.vectors),
        )
        assert result.lower_bound >= bound - 1e-9
    comm.barrier()
    result = again(shared_dir, objective(X, y, comm, step=steps[1]), settings(solver))
    assert result.status is Status.PROVED
    assert result.starts == 3
    assert result.lower_bound <= whole.J
    assert whole.lower_bound <= result.J
    assert result.evaluations <= whole.evaluations + (3 if "bmrm" in solver else 10)


def test_a_smaller_target_goes_on_from_a_proved_end(comm, shared_dir):
    X, y = data(n=150, p=9, seed=2)
    problem = objective(X, y, comm)
    rough = minimize(problem, settings(epsilon=1e-2), keep=CheckpointWriter(shared_dir, PROBLEM, {}, problem.vectors))
    same = again(shared_dir, objective(X, y, comm), settings(epsilon=1e-2))
    assert (same.status, same.evaluations, same.J) == (Status.PROVED, rough.evaluations, rough.J)
    fine = again(shared_dir, objective(X, y, comm), settings(epsilon=1e-5))
    assert fine.status is Status.PROVED
    assert fine.gap <= 1e-5 < rough.gap
    assert fine.evaluations > rough.evaluations


def test_the_time_limit_is_each_starts_own(comm, shared_dir, monkeypatch):
    """On a clock that moves by one second at every look: each start has its seconds, and they add up."""
    X, y = data(n=150, p=9, seed=2)
    now = iter(range(10**9))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))
    problem = objective(X, y, comm)
    given = settings(epsilon=1e-9, time_limit=40.0, checkpoint_every=1e6)
    seconds, evaluations = [0.0], [0]
    result = minimize(problem, given, keep=CheckpointWriter(shared_dir, PROBLEM, {}, problem.vectors))
    for _ in range(3):
        assert result.status is Status.TIME
        assert result.seconds >= seconds[-1] + 40
        assert result.evaluations > evaluations[-1]
        seconds.append(result.seconds)
        evaluations.append(result.evaluations)
        problem = objective(X, y, comm)
        keep = CheckpointWriter(shared_dir, PROBLEM, {}, problem.vectors)
        found = checkpoint.load(shared_dir, PROBLEM)[0] if comm.is_root else None
        result = minimize(problem, given, keep=keep, snapshot=restored(found, problem.vectors))


def test_fewer_planes_than_were_kept(comm, shared_dir):
    X, y = data(n=150, p=9, seed=2)
    first(shared_dir, settings("bmrm"), 10, X, y, comm)
    result = again(shared_dir, objective(X, y, comm), settings("bmrm", max_evaluations=11))
    assert result.status is Status.LIMIT
    assert result.evaluations == 11


@pytest.mark.serial
def test_a_failed_write_is_a_warning(comm, tmp_path, monkeypatch, capsys):
    X, y = data(n=100, p=5)
    problem = objective(X, y, Communicator())
    keep = CheckpointWriter(tmp_path, PROBLEM, {}, problem.vectors)
    monkeypatch.setattr(checkpoint, "require_space", lambda *_: (_ for _ in ()).throw(InputError("the disk is full")))
    result = minimize(problem, settings(checkpoint_every=1e-9), keep=keep)
    assert result.status is Status.PROVED
    assert capsys.readouterr().err.count("warning: no checkpoint was written: the disk is full; the run continues") > 1


@pytest.mark.serial
def test_a_folder_is_held_and_not_overwritten_unasked(tmp_path):
    folder = tmp_path / "c"
    with contextlib.ExitStack() as held:
        found, words = opened(folder, PROBLEM, True, held)
        assert found is None
        assert "has no checkpoint: the run starts from the beginning" in words[0]
        with pytest.raises(InputError, match="another job"):
            opened(folder, PROBLEM, True, held)
    first(folder, settings(), 3, *data(n=100, p=5), Communicator())
    (folder / ".checkpoint.npz.0.partial").touch()
    with contextlib.ExitStack() as held, pytest.raises(InputError, match="give --resume to continue"):
        opened(folder, PROBLEM, False, held)
    with contextlib.ExitStack() as held:
        found, words = opened(folder, PROBLEM, True, held)
        assert found.numbers["count"] == 3
        assert "evaluation 3" in words[-1]
        assert not (folder / ".checkpoint.npz.0.partial").exists()
