"""A thousand ranks of a training, and what a rank gives to MPI and gets from it: docs/theory/costs.md has the table."""

from __future__ import annotations

from collections import Counter

import pytest

from distsms.base.communicator import Communicator
from distsms.base.measures import Measure
from distsms.optim.settings import Settings
from distsms.parallel import vectors
from distsms.shards import dataset
from distsms.shards.from_arrays import write_data
from distsms.training.task import Distribution, TrainingTask
from distsms.workflow.train import train_task
from tests.support.problems import data
from tests.support.simulated import communicator
from tests.support.simulated_job import Job

pytestmark = pytest.mark.serial


def written(folder, n, p):
    X, y = data(n=n, p=p, seed=3)
    write_data(folder, X, y)
    return dataset.read_manifest(folder)


def trained(manifest, ranks, nodes, evaluations, **how):
    """Train, and return the ranks."""
    settings = Settings(1e-4, epsilon=1e-9, solver="lbfgs", max_evaluations=evaluations)
    task = TrainingTask(manifest, Measure.parse("prbep"), settings, distribution=Distribution(**how))
    job = Job(ranks, lambda rank: train_task(task, communicator(rank)).result.evaluations, nodes=nodes)
    assert set(job.run()) == {evaluations}
    return job.ranks


def of_an_evaluation(manifest, ranks, nodes, **how):
    """Return what the root, and the last rank, give and get in an evaluation, by the call of MPI."""
    few, many = (trained(manifest, ranks, nodes, evaluations, **how) for evaluations in (4, 9))
    found = []
    for k in (0, -1):
        each = {name: (many[k].moved[name] - few[k].moved[name]) / 5 for name in many[k].moved}
        found.append(Counter(each))
    return found


@pytest.mark.parametrize("n, p, ranks, nodes", [(480, 20, 8, 1), (960, 20, 8, 2), (480, 40, 8, 4), (480, 20, 16, 4)])
def test_an_evaluation_with_vectors_on_the_root(n, p, ranks, nodes, tmp_path):
    root, last = of_an_evaluation(written(tmp_path / "d", n, p), ranks, nodes, step="root", ordering="gather")
    assert root["Bcast", "given"] == last["Bcast", "received"] == 8 * p + 48
    assert root["Reduce", "given"] == last["Reduce", "given"] == root["Reduce", "received"] == 8 * (p + 1)
    # All scores go to the root, and coefficients back: a message to each rank, and one from it.
    assert root["Send", "calls"] == root["Recv", "calls"] == ranks - 1
    assert last["Send", "calls"] == last["Recv", "calls"] == 1
    assert root["Send", "given"] == root["Recv", "received"] == pytest.approx(8 * n * (1 - 1 / ranks), abs=100)
    assert last["Send", "given"] == pytest.approx(8 * n / ranks, abs=100)


@pytest.mark.parametrize("p, ranks", [(20, 8), (40, 8), (40, 16)])
def test_an_evaluation_with_vectors_that_are_spread(p, ranks, tmp_path):
    root, last = of_an_evaluation(written(tmp_path / "d", 480, p), ranks, 2, step="spread", ordering="exchange")
    assert root["Reduce_scatter", "given"] == last["Reduce_scatter", "given"] == 8 * p
    assert root["Reduce_scatter", "received"] == 8 * -(-p // ranks)
    assert root["Allgatherv", "received"] == last["Allgatherv", "received"] >= 8 * p
    assert not root["Send", "calls"] and not last["Recv", "calls"]


def test_one_rank_of_a_node_receives_w(tmp_path, monkeypatch):
    monkeypatch.setattr(vectors, "SHARED_FROM", 0)
    few, many = (trained(written(tmp_path / str(k), 480, 20), 8, 2, k, step="root", ordering="gather") for k in (4, 9))
    got = [(b.moved["Bcast", "received"] - a.moved["Bcast", "received"]) / 5 for a, b in zip(few, many, strict=True)]
    assert got == [0, 48, 48, 48, 8 * 20 + 48, 48, 48, 48]


def test_what_grows_with_the_ranks_at_the_start(tmp_path):
    """Each rank gets a small object of every rank, 11 to 15 times in all."""
    manifest = written(tmp_path / "d", 480, 20)
    got = {}
    for ranks in (4, 8, 16):
        moved = trained(manifest, ranks, 1, 4, step="root", ordering="exchange")[-1].moved
        assert moved["allgather", "calls"] <= 15 and moved["bcast", "calls"] <= 2
        got[ranks] = moved["allgather", "received"]
    assert got[16] == 2 * got[8] == 4 * got[4] <= 16 * 200


@pytest.mark.slow
def test_a_thousand_ranks_on_64_nodes_agree_with_one(tmp_path):
    task = TrainingTask(written(tmp_path / "d", 10_000, 20), Measure.parse("rocarea"), Settings(1e-2, solver="lbfgs"))
    one = train_task(task, Communicator()).result
    for found in Job(1000, lambda rank: train_task(task, communicator(rank)).result, nodes=64).run():
        assert found.lower_bound <= one.J and one.lower_bound <= found.J
        assert found.J == pytest.approx(one.J, abs=task.settings.epsilon)
