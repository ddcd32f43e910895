"""Ranks that go on when others die: the protocol with a stand-in for MPI, and what a training makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distsms.base.communicator import Communicator
from distsms.base.errors import EXIT_KILLED, DistsmsError, LaunchError
from distsms.base.measures import Measure
from distsms.base.timing import Clock
from distsms.losses.registry import make_loss
from distsms.matrix.local import SparseRows
from distsms.optim.objective import Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel import processes, survival
from distsms.shards import dataset
from distsms.shards.from_arrays import write_data
from distsms.training.plan import make_plan
from distsms.training.recorder import RunRecorder, Trace
from distsms.training.rows import TrainingObserver, TrainingRows
from distsms.training.task import RunOptions, TrainingTask
from distsms.workflow.train import train_task
from tests.support.problems import data, objective

pytestmark = pytest.mark.serial


class Failure(Exception):
    """Stands in for MPI's exception."""


class Group:
    def __init__(self, world_ranks):
        self.world_ranks = world_ranks

    def Translate_ranks(self, ranks, other):
        assert ranks is None
        return [other.world_ranks.index(rank) for rank in self.world_ranks]


class Ranks:
    """Stands in for mpi4py's communicator, as one of its ranks sees it; the other ranks do nothing but die.

    deaths : lists of ranks; the next list dies when the communicator is made anew.
    """

    def __init__(self, me, living, deaths, votes):
        self.me, self.living, self.deaths, self.votes, self.revoked = me, living, deaths, votes, False

    def Dup(self):
        return self

    def Set_errhandler(self, handler):
        pass

    def Get_rank(self):
        return self.living.index(self.me)

    def Get_size(self):
        return len(self.living)

    def Get_group(self):
        return Group(self.living)

    def allgather(self, item):
        return [f"{item}-{rank}" for rank in self.living]

    def Agree(self, flag):
        if self.votes and not self.votes.pop(0):
            raise Failure
        return flag and not self.revoked

    def Revoke(self):
        self.revoked = True

    def Shrink(self):
        dead = self.deaths.pop(0)
        return Ranks(self.me, [rank for rank in self.living if rank not in dead], self.deaths, self.votes)

    def Abort(self, code):
        raise SystemExit(code)


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setattr(
        survival.SurvivingCommunicator, "mpi", type("MPI", (), {"Exception": Failure, "ERRORS_RETURN": None})
    )
    return lambda me, deaths, size=5, votes=(): survival.SurvivingCommunicator(
        Ranks(me, list(range(size)), list(deaths), list(votes))
    )


def fails(times):
    """Return work that fails so often before it succeeds, and a list of its calls."""
    calls = []

    def work():
        calls.append(1)
        if len(calls) <= times:
            raise Failure
        return "done"

    return work, calls


def test_work_is_repeated_without_the_dead(ranks):
    comm, told = ranks(3, [[1], [2, 4]]), []
    comm.on_death = told.append
    work, calls = fails(2)
    renewed = []
    assert comm.surviving(work, lambda: renewed.append(comm.size)) == "done"
    assert (len(calls), renewed, told) == (3, [4, 2], [[1], [2, 4]])
    assert (comm.rank, comm.size, [rank for rank, _ in comm.dead]) == (1, 2, [1, 2, 4])
    assert comm.dead[0].host.endswith("-1")
    assert comm.node_ranks() == [1]


def test_a_death_while_the_rows_are_read_again(ranks):
    comm = ranks(2, [[1], [3]])
    work, calls = fails(1)
    renew, renewed = fails(1)
    assert comm.surviving(work, renew) == "done"
    assert (len(calls), len(renewed), comm.size) == (2, 2, 3)


def test_no_rank_leaves_if_another_could_not_do_its_work(ranks):
    comm = ranks(2, [[1]], votes=[False])
    work, calls = fails(0)
    assert comm.surviving(work) == "done"
    assert (len(calls), comm.size) == (2, 4)


def test_the_root_cannot_be_replaced(ranks, capsys):
    comm = ranks(1, [[0]])
    with pytest.raises(SystemExit) as end:
        comm.surviving(fails(1)[0])
    assert end.value.code == EXIT_KILLED
    assert "rank 0 on" in capsys.readouterr().err


def test_an_error_without_a_death_is_raised(ranks):
    with pytest.raises(Failure):
        ranks(1, [[]]).surviving(fails(1)[0])
    with pytest.raises(DistsmsError, match="another rank has failed") as elsewhere:
        ranks(1, [[]], votes=[False]).surviving(fails(0)[0])
    assert elsewhere.value.everywhere


def test_an_error_that_a_death_may_have_caused_is_not_raised(ranks):
    """A collective may return garbage on a living rank."""
    calls = []

    def work():
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("garbage")

    ranks(1, [[2]]).surviving(work)
    assert len(calls) == 2


@pytest.mark.parametrize("step", ["Dup", "allgather"])
def test_a_death_while_the_ranks_start_is_said_in_words(ranks, monkeypatch, step):
    """They do not know each other yet, so that nobody can go on."""

    def dead(self, *sent):
        raise Failure("rank 1 has died")

    monkeypatch.setattr(Ranks, step, dead)
    with pytest.raises(
        LaunchError, match=r"a rank died while the ranks were starting \(rank 1 has died\); start again"
    ):
        ranks(0, [])


def test_an_mpi_that_cannot_is_refused_in_words(monkeypatch):
    class Two(Communicator):
        size, mpi_comm = 2, object()

    monkeypatch.setattr(survival, "library_versions", lambda: {"mpi4py": "4.1.2", "MPI library": "Open MPI v5.0.11"})
    with pytest.raises(LaunchError, match=r"ULFM.*--resume"):
        survival.surviving(Two())
    Two.mpi_comm = type("Comm", (), {"Agree": None})()
    monkeypatch.delenv(processes.ULFM, raising=False)
    with pytest.raises(LaunchError, match="--with-ft ulfm"):
        survival.surviving(Two())
    alone = Communicator()
    assert survival.surviving(alone) is alone


class Dying(Communicator):
    """A single rank that is told of two ranks at first, and whose work then fails: the other rank has died.

    fails_at : the numbers of those sums over ranks that fail.
    """

    failures = (Failure,)
    size = 2

    def __init__(self, *fails_at):
        super().__init__()
        self.sums, self.fails_at, self.recovered = 0, set(fails_at), 0

    def reduce(self, array, piece=None):
        self.sums += 1
        if self.sums in self.fails_at:
            raise Failure
        return array

    def surviving(self, work, renew=lambda: None):
        while True:
            try:
                return work()
            except Failure:
                self.size, self.recovered = 1, self.recovered + 1
                self.dead.append(survival.Rank(len(self.dead) + 1, "a host"))
                renew()


@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
def test_an_evaluation_is_repeated_on_all_rows(measure):
    """The rank has half of the rows, and gets all when the other dies: then J is that of all rows."""
    X, y = data(seed=5)
    comm, whole = Dying(1), objective(X, y, Communicator(), measure)
    asked, half = [Request(np.linspace(-1, 1, X.shape[1]), 0.1, ElasticNet(0.1))], len(y) // 2

    def reload(evaluations):
        assert evaluations == 0
        return SparseRows.of(X), [make_loss(measure, "gather", y, None, comm)], None

    loss = make_loss(measure, "gather", y[:half], None, comm)
    mine = Objective(SparseRows.of(X[:half].tocsr()), [loss], comm, reload=reload)
    found, expected = mine.evaluate(asked)[0], whole.evaluate(asked)[0]
    assert (found.J, found.d, comm.recovered, mine.evaluations) == (expected.J, expected.d, 1, 1)
    assert np.array_equal(found.gradient, expected.gradient)
    bound, alone = mine.plane_errors()[0], whole.plane_errors()[0]
    assert np.all(bound >= alone)


def test_an_objective_that_cannot_read_its_rows_again_fails():
    X, y = data(seed=5)
    comm = Dying(1)
    loss = make_loss("rocarea", "gather", y, None, comm)
    with pytest.raises(Failure):
        Objective(SparseRows.of(X), [loss], comm).evaluate([Request(np.ones(X.shape[1]), 0.1, ElasticNet(0.1))])


def test_planes_from_before_a_death_stay_valid():
    """A run in which rows change hands at some evaluations proves the same as one that is not disturbed."""
    X, y = data(seed=6)
    settings = Settings(lam=1e-3, epsilon=1e-5, solver="lbfgs")
    comm = Dying(4, 9)
    make = lambda: (SparseRows.of(X), [make_loss("prbep", "gather", y, None, comm)], None)  # noqa: E731
    features, losses, _ = make()
    found = minimize(Objective(features, losses, comm, reload=lambda evaluations: make()), settings)
    expected = minimize(objective(X, y, Communicator(), "prbep"), settings)
    assert comm.recovered == 2
    assert found.status is expected.status
    assert found.lower_bound <= expected.J
    assert expected.lower_bound <= found.J


@pytest.fixture
def stored(tmp_path):
    X, y = data(n=300, seed=7)
    write_data(tmp_path / "data", X, y)
    return dataset.read_manifest(tmp_path / "data"), X, y


def test_rows_are_read_again_for_fewer_ranks(stored):
    manifest, X, y = stored
    told = []

    class Two(Communicator):
        size = 2

        def sum(self, array):  # what the other rank would add, so that both classes are there
            return array + 1 if array.dtype == np.int64 else array

    comm = Two()
    task = TrainingTask(manifest, Measure.parse("rocarea"), Settings(lam=1e-3))

    class Observer(TrainingObserver):
        def noted(self, kind, text):
            told.append((kind, text))

    plan = make_plan(manifest, task.measure, task.settings, comm.size, [0])
    recorder = RunRecorder(task.settings, Trace(None, "lmvm", 0), Path(), {}, None, [])
    rows = TrainingRows(task, comm, RunOptions(), plan, recorder, Clock(), Observer())
    rows.load()
    assert 0 < len(rows.block.labels) < len(y)
    assert not told
    Two.size, comm.dead = 1, [survival.Rank(1, "a host")]
    features, _, weights = rows.reload(17)
    assert np.array_equal(rows.block.labels, y)
    assert weights is None
    assert features.nnz == X.nnz
    assert [survived._replace(seconds=0.0) for survived in rows.survived] == [(("rank 1 on a host",), 1, 17, 0.0)]
    assert told == [("survived", str(rows.survived[0]))]


def test_a_model_says_who_died(stored, tmp_path):
    manifest, _, _ = stored
    comm, alone = Dying(3), Communicator()
    comm.size = 1
    task = TrainingTask(manifest, Measure.parse("rocarea"), Settings(lam=1e-3, solver="lbfgs"))
    trained, expected = train_task(task, comm), train_task(task, alone)
    saved = trained.to_model(comm).info
    assert [survived["dead"] for survived in saved["survived"]] == [("rank 1 on a host",)]
    assert saved["survived"][0]["evaluation"] == 1  # the first of the three sums is that of the scaling
    assert trained.result.J == expected.result.J
    assert "survived" not in expected.to_model(alone).info


def test_with_dead_ranks_a_process_does_not_wait_for_mpi(ranks, monkeypatch):
    left = []
    monkeypatch.setattr(survival.os, "_exit", left.append)
    comm = ranks(3, [[1]])
    comm.leave(4)
    assert not left
    comm.surviving(fails(1)[0])
    comm.leave(4)
    assert left == [4]
