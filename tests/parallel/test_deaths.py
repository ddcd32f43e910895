"""A rank dies in each piece of a training, with every measure: the others compute with all rows nevertheless."""

from __future__ import annotations

import numpy as np
import pytest

from distsms.base.errors import DistsmsError
from distsms.base.measures import Measure
from distsms.losses import binned
from distsms.losses.dual_bound import dual_bound
from distsms.optim.settings import Settings
from distsms.parallel.survival import SurvivingCommunicator
from distsms.shards import dataset
from distsms.shards.from_arrays import write_data
from distsms.training import certificate
from distsms.training.rows import TrainingRows
from distsms.training.task import Distribution, RunOptions, TrainingTask
from distsms.workflow.train import train_task
from tests.support.problems import data
from tests.support.simulated import Comm
from tests.support.simulated_job import Job

pytestmark = pytest.mark.serial

MEASURES = ("rocarea", "gauc@pairs", "gauc@each", "pauc@0.3", "prbep", "error-rate", "logistic", "normal-auc", "f1")
MEASURES += ("precision@20", "recall@20")
PIECES = 8  # so many come before the third evaluation: rows, vectors, first point, checkpoint, scaling, ...


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    X, y = data(n=240, seed=7)
    folder = tmp_path_factory.mktemp("deaths") / "data"
    write_data(folder, X, y, groups=np.arange(len(y)) // 12)
    return dataset.read_manifest(folder)


def run_ranks(size, work, before):
    """Call `work(comm)` on so many ranks, and return what each of them returned; None where it has died.

    `before(comm, number, name)` is called before each piece of work, and returns whether the rank dies now.
    """

    class Mortal(SurvivingCommunicator):
        number = -1

        def _attempt(self, work):
            self.number += 1
            if before(self, self.number, work.__qualname__):
                job.die()
            return super()._attempt(work)

    job = Job(size, lambda rank: work(Mortal(Comm(job.world, rank))), seed=size, switching=0.2)
    job.survives = True
    return job.run()


def trained(manifest, measure, deaths=(), ordering="auto", options=RunOptions(), evaluations=5, ranks=3, every=None):  # noqa: B008
    """Return the root's model, and the names of all pieces of work.

    deaths : for each rank that dies, its number, and the number or the name of the piece of work in which it dies.
    """
    solver = "bmrm" if Measure.parse(measure).k or measure == "f1" else "lbfgs"
    points = options.certificate is not None
    settings = Settings(lam=1e-2, solver=solver, max_evaluations=evaluations, checkpoint_every=every, points=points)
    task = TrainingTask(manifest, Measure.parse(measure), settings, distribution=Distribution(ordering, "root"))
    pieces, waiting = [], list(deaths)

    def before(comm, number, name):
        if comm.is_root:
            pieces.append(name)
        for death in waiting:
            if death[0] == comm._living[comm.rank][0] and (number == death[1] or str(death[1]) in name):
                waiting.remove(death)
                return True
        return False

    done = run_ranks(ranks, lambda comm: train_task(task, comm, options), before)
    assert not waiting
    return done[0], pieces


def agree(found, expected):
    assert found.result.status is expected.result.status
    for name in ("J", "lower_bound", "evaluations"):
        assert getattr(found.result, name) == pytest.approx(getattr(expected.result, name), rel=1e-7)
    for name in ("measures", "threshold"):
        assert getattr(found.scores, name) == pytest.approx(getattr(expected.scores, name), rel=1e-7)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_death_in_any_piece_costs_no_rows(manifest, measure):
    whole, pieces = trained(manifest, measure)
    assert {name.split(".")[-1] for name in pieces} >= {"load", "prepare", "first_point", "conclude"}
    # All measures have the same pieces; of most it matters that their loss is made anew, in one piece or another.
    every = measure in ("rocarea", "gauc@pairs", "f1")
    pieces = range(PIECES) if every else (MEASURES.index(measure) % (PIECES - 1), PIECES - 1)
    for last in (*pieces, "conclude"):
        found, _ = trained(manifest, measure, [(1, last)])
        agree(found, whole)
        assert [entry.ranks for entry in found.fit.rows.survived] == [2]


@pytest.mark.parametrize("ordering", ["gather", "exchange", "bins"])
def test_several_deaths(manifest, ordering):
    """Two ranks die before the first evaluation, and one while the others read the rows again."""
    whole, _ = trained(manifest, "rocarea", ordering=ordering, ranks=5)
    found, _ = trained(
        manifest,
        "rocarea",
        [(2, "first_point"), (4, "first_point"), (1, "surviving.<locals>.<lambda>")],
        ordering,
        ranks=5,
    )
    agree(found, whole)
    assert sum(len(entry.dead) for entry in found.fit.rows.survived) == 3


@pytest.mark.parametrize("place", ["_count", "exact_risk"])
@pytest.mark.parametrize("measure", ["rocarea", "pauc@0.3"])
def test_a_death_while_rows_are_counted_into_bins(manifest, monkeypatch, measure, place):
    """In the middle of an evaluation, where the others wait for the counts, or in the exact one at the end."""
    monkeypatch.setattr(binned, "OF_LOADING", 0.0)
    whole, _ = trained(manifest, measure, ordering="bins", evaluations=40)
    assert whole.result.width == 0.0 and whole.result.ways[binned.EXACT] == 1
    usual, calls = getattr(binned.RocAreaBins, place), []

    def deadly(self, *args):
        if self.comm._living[self.comm.rank][0] == 1:
            calls.append(place)
            if len(calls) == (1 if place == "exact_risk" else 5):
                self.comm.mpi_comm._job.die()
        return usual(self, *args)

    monkeypatch.setattr(binned.RocAreaBins, place, deadly)
    found, _ = trained(manifest, measure, ordering="bins", evaluations=40)
    agree(found, whole)
    assert found.result.width == 0.0
    assert sum(found.result.ways.values()) > found.result.evaluations  # with the exact one, and those before the death
    assert [entry.ranks for entry in found.fit.rows.survived] == [2]


@pytest.mark.parametrize("measure", ["rocarea", "pauc@0.3", "prbep"])
def test_a_death_while_a_certificate_is_made(manifest, tmp_path, monkeypatch, measure):
    """Before it is begun, or in the middle, where the others wait: it is made again, of the rows of those who live."""
    options, calls = RunOptions(certificate=tmp_path / "c.h5"), []
    whole, pieces = trained(manifest, measure, options=options)
    assert any("LoadedRun.certify" in name for name in pieces)
    c = certificate.load(tmp_path / "c.h5", checked=True).read("c", 0, manifest.n)

    def deadly(loss, *args):
        if loss.comm._living[loss.comm.rank][0] == 1 and not calls:
            calls.append(loss)
            loss.comm.mpi_comm._job.die()
        return dual_bound(loss, *args)

    for deaths in ([(1, "LoadedRun.certify")], []):
        monkeypatch.setattr("distsms.training.certificate.dual_bound", dual_bound if deaths else deadly)
        found, _ = trained(manifest, measure, deaths, options=options)
        agree(found, whole)
        assert found.fit.certified["bound"] == pytest.approx(whole.fit.certified["bound"], abs=1e-7)
        again = certificate.load(tmp_path / "c.h5", checked=True).read("c", 0, manifest.n)
        np.testing.assert_allclose(again, c, atol=1e-6)


def test_rows_that_nobody_reads_again_end_the_run(manifest, monkeypatch):
    monkeypatch.setattr(TrainingRows, "reload", lambda self, evaluations=0: (self.features, [self.loss], None))
    with pytest.raises(DistsmsError, match=r"2 ranks hold \d+ of 240 rows"):
        trained(manifest, "logistic", [(1, 6)])


def test_an_objective_with_old_rows_ends_the_run(manifest, monkeypatch):
    """The objective was made before the death, and nobody has told it of the new rows."""
    surviving, objective = TrainingRows.surviving, TrainingRows.objective

    def made_too_early(self, work, evaluations=0):
        if work.__name__ == "prepare":
            step, vectors = surviving(self, work)
            self.stale = objective(self, lambda: False, vectors)
            return step, vectors
        return surviving(self, work, evaluations)

    monkeypatch.setattr(TrainingRows, "surviving", made_too_early)
    monkeypatch.setattr(TrainingRows, "objective", lambda self, *args: self.stale)
    trained(manifest, "logistic")
    with pytest.raises(DistsmsError, match=r"2 ranks hold \d+ of 240 rows"):
        trained(manifest, "logistic", [(1, "first_point")])


def test_a_resumed_run_knows_all_deaths(manifest, tmp_path):
    how = {"checkpoint": tmp_path / "state"}
    first, _ = trained(manifest, "rocarea", [(1, 8)], options=RunOptions(**how), evaluations=5, every=60.0)
    again = RunOptions(**how, resume=True)
    found, _ = trained(manifest, "rocarea", [(2, 3)], options=again, evaluations=12, every=60.0)
    assert found.fit.rows.survived[0] == first.fit.rows.survived[0]
    assert [entry.dead[0].split()[1] for entry in found.fit.rows.survived] == ["1", "2"]
    assert found.fit.rows.survived[1].evaluation == 5
