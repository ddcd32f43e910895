"""Runs of a comparison: the files they leave, how they are stopped, and their measures on test rows."""

from __future__ import annotations

import numpy as np
import pytest

from distsms.base.choices import STEPS
from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.metrics.operating_points import partial_area
from distsms.metrics.tied_scores import tied_scores
from distsms.optim.result import State, Status
from distsms.optim.settings import Settings
from distsms.shards.dataset import read_manifest
from distsms.shards.from_arrays import write_data
from scripts.compare.grid import RunSpec, RunStore
from scripts.compare.runner import HeldOutRows, Runner, SavedIterates
from tests.support.problems import CELL, IDENTITY, block, data

EPSILON = 1e-4


def runner(comm, folder, stop_wanted=lambda: False, seed=3, step="root"):
    """Return a runner on a small data set with test rows, and these test rows."""
    X, y = data(n=150, seed=seed)
    test = data(n=90, seed=seed + 1)
    one = RunStore(folder)
    with comm.fail_together():
        if comm.is_root:
            one.open(IDENTITY, overwrite=False)
            write_data(folder / "test", *test, 3)
    rows = HeldOutRows(folder / "test", read_manifest(folder / "test"), comm)
    return Runner(block(comm, X, y), rows, "gather", one, comm, stop_wanted, {"host": "here"}, step), test


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("cell", [CELL, RunSpec("prbep", 1e-3, "bmrm"), RunSpec("prbep", 1e-2, "agm", 10.0)])
def test_a_run_leaves_its_course_and_its_test_measures(cell, step, comm, shared_dir):
    metrics = pytest.importorskip("sklearn.metrics")
    one, (X, y) = runner(comm, shared_dir, step=step)
    settings = Settings(lam=cell.lam, epsilon=EPSILON, solver=cell.solver, c_mu=cell.c_mu, max_evaluations=60)
    result = one.run(cell, settings)
    one.close()
    if not comm.is_root:
        return
    found = one.folder.finished(cell)
    assert found.result["J"] == result.J
    assert found.result["status"] == result.status.name.lower()
    np.testing.assert_array_equal(found.trace["evaluation"], np.arange(1, result.evaluations + 1))
    evaluations, best = found.test["evaluation"].astype(int), found.test["best_J"]
    assert evaluations[0] == 1
    assert evaluations[-1] == result.evaluations
    np.testing.assert_array_equal(best, found.trace["best_J"][evaluations - 1])
    last = metrics.roc_auc_score(y, X @ result.w)
    assert found.test["rocarea"][-1] == found.result["test"]["rocarea"] == pytest.approx(last, abs=1e-12)
    assert found.test["rocarea"][0] == 0.5  # w = 0
    area = partial_area(tied_scores(Scored(X @ result.w, y, Communicator())), 0.05, Communicator())
    assert found.result["test"]["pauc@0.05"] == pytest.approx(area, abs=1e-12)
    assert [path.name for path in (shared_dir / "cells" / cell.name).iterdir() if path.name.startswith(".")] == []


def test_a_stopped_run_is_not_finished_and_leftovers_go(comm, shared_dir):
    one, _ = runner(comm, shared_dir, stop_wanted=lambda: comm.rank == comm.size - 1)
    settings = Settings(lam=1e-2, epsilon=EPSILON)
    assert one.run(CELL, settings).status is Status.STOPPED
    if comm.is_root:
        assert one.folder.finished(CELL) is None
        assert one.folder.all_finished() == []
        (shared_dir / "cells" / CELL.name / "trace.jsonl").write_text("half a li")
        (shared_dir / "cells" / CELL.name / "left").touch()
    one.stop_wanted = lambda: False
    assert one.run(CELL, settings).status is Status.PROVED
    if comm.is_root:
        found = one.folder.finished(CELL)
        assert len(found.trace["best_J"]) == found.result["evaluations"]
        assert not (shared_dir / "cells" / CELL.name / "left").exists()


@pytest.mark.serial
def test_kept_w_are_those_of_their_evaluations(tmp_path):
    """A w is kept for each improvement of J, at most once in each step of the growing distance, in a nameless file."""
    rng = np.random.default_rng(0)
    best, ws = np.minimum.accumulate(rng.random(2000)), {}
    with SavedIterates(tmp_path) as kept:
        for k, J in enumerate(best.tolist(), 1):
            w = np.full(5, float(np.flatnonzero(best == J)[0]))  # the same as long as J is
            kept(State(k, 0.5 * k, 1.0, 0.0, J, J, J, J, 0.1, 0.0, 0.0), w)
            ws[k] = w
        kept.add(2000, 1000.0, best[-1], ws[2000])
        assert list(tmp_path.iterdir()) == []
        times = [int(one["evaluation"]) for one in kept.records]
        assert times[:2] == [1, 2] or best[1] == best[0]
        assert len(times) < 60
        for k, (time, one) in enumerate(zip(times, kept.records, strict=True)):
            assert one["best_J"] == best[time - 1]
            assert one["seconds"] == 0.5 * time
            np.testing.assert_array_equal(kept.load(k, 5), ws[time])
