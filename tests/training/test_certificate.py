"""Certificates of runs: on any number of ranks, after a resume, with few planes, from openings, on streamed rows."""

from __future__ import annotations

import json
from hashlib import sha256

import h5py
import numpy as np
import pytest

from distsms.base.errors import EXIT_ERROR, InputError
from distsms.base.measures import Measure
from distsms.models import model
from distsms.optim.planes import Origins
from distsms.optim.result import Origin, Status
from distsms.shards.dataset import MemoryBudget
from distsms.shards.from_arrays import write_data
from distsms.training import certificate
from distsms.training.plan import Plan
from distsms.training.task import Distribution
from distsms.workflow.requests import TrainRequest, VerifyRequest
from distsms.workflow.train import train
from distsms.workflow.verify import verify
from scripts import verify_certificate as checker
from tests.support.problems import data


def written(comm, folder, n=180, p=9, seed=1, **more):
    """Write a data set, and return its folder. Collective."""
    if comm.is_root:
        X, y = data(n, p, seed)
        write_data(folder / "d", X, y, n_shards=3, **more)
    comm.barrier()
    return folder / "d"


def certified(comm, folder, data, measure="rocarea", lam=1e-2, solver="lbfgs", settings=None, **more):
    """Train with a certificate, and return what the training and the check found. Collective."""
    request = TrainRequest(
        data,
        measure=Measure.parse(measure),
        lam=lam,
        solver=solver,
        settings={"epsilon": 1e-4, **(settings or {})},
        output=folder / "m.h5",
        certificate=folder / "c.h5",
        check=False,
        **more,
    )
    trained = train(request, comm)
    return trained, verify(VerifyRequest(folder / "m.h5", data, folder / "c.h5"), comm)


def require_proved(trained, verified, lost=1e-6):
    """Whether the certificate proves what the run did, but for so much."""
    result = trained.run.result
    assert result.status is Status.PROVED and not verified.problems and verified.exit_code == 0
    assert verified.J == pytest.approx(result.J, abs=1e-9 + result.width)
    assert verified.lower_bound == pytest.approx(trained.model.info["certificate"]["bound"], abs=1e-9)
    assert verified.lower_bound == pytest.approx(result.lower_bound, abs=lost)
    assert verified.gap <= 1e-4 + lost


CASES = [
    ("rocarea", {}),
    ("rocarea", {"settings": {"l1": 1e-2}}),
    ("rocarea", {"distribution": Distribution("bins")}),
    ("rocarea", {"distribution": Distribution(step="spread")}),
    ("rocarea", {"solver": "bmrm"}),
    ("prbep", {}),
    ("prbep", {"settings": {"planes": 3}}),
    ("prbep", {"solver": "bmrm-linesearch"}),
    ("pauc@0.3", {}),
    ("error-rate", {"bias": 2.0}),
    ("logistic", {}),
    ("normal-auc", {}),
    ("gauc@pairs", {}),
    ("f1", {"solver": "bmrm"}),
    ("recall@60", {"solver": "bmrm"}),
]


@pytest.mark.parametrize("measure, more", CASES, ids=str)
def test_it_proves_what_the_run_proved(measure, more, comm, shared_dir):
    others = {"groups": np.arange(180) % 7} if measure[0] == "g" else {}
    others |= {} if measure[0] in "f" or "@60" in measure else {"weights": 1.0 + np.arange(180) % 3}
    folder = written(comm, shared_dir, **others)
    require_proved(*certified(comm, shared_dir, folder, measure, **more))


@pytest.mark.parametrize("measure", ["rocarea", "prbep", "logistic"])
def test_of_an_opening_by_dual_ascent(measure, comm, shared_dir):
    folder = written(comm, shared_dir, n=40, p=90)
    trained, verified = certified(comm, shared_dir, folder, measure, bias=0.0)
    require_proved(trained, verified)
    assert trained.run.result.evaluations < 60 and trained.run.result.opening is None  # it is not kept any longer


@pytest.mark.parametrize("step", ["root", "spread"])
def test_of_a_resumed_run(step, comm, shared_dir):
    folder = written(comm, shared_dir)
    more = {"checkpoint": shared_dir / "k", "distribution": Distribution(step=step)}
    first, _ = certified(comm, shared_dir, folder, "prbep", settings={"max_evaluations": 9}, **more)
    assert first.run.result.status is Status.LIMIT
    last = certified(comm, shared_dir, folder, "prbep", resume=True, **more)
    require_proved(*last)
    assert last[0].run.result.starts == 2 and last[0].model.info["certificate"]["points"] > 2
    again = certified(comm, shared_dir, folder, "prbep", resume=True, **more)  # nothing is left to be done
    require_proved(*again)


def test_a_checkpoint_without_points_is_refused(comm, shared_dir):
    folder = written(comm, shared_dir)
    request = TrainRequest(folder, lam=1e-2, solver="lbfgs", checkpoint=shared_dir / "k", check=False)
    train(request, comm)
    with pytest.raises(InputError, match="has not what a certificate needs"):
        certified(comm, shared_dir, folder, checkpoint=shared_dir / "k", resume=True)


def test_streamed_rows(comm, shared_dir, monkeypatch):
    folder = written(comm, shared_dir, n=4000, p=30)
    whole, _ = certified(comm, shared_dir, folder, "prbep")
    with monkeypatch.context() as patch:
        patch.setattr(certificate, "BLOCK", 700)
        patch.setattr("distsms.matrix.local.PART_ENTRIES", 500)
        patch.setattr(Plan, "room", lambda plan, root: MemoryBudget(2**17))
        streamed, verified = certified(comm, shared_dir, folder, "prbep", memory=2**30)
    require_proved(streamed, verified)
    read = comm.sum(np.array([streamed.run.fit.rows.reading.bytes, whole.run.fit.rows.reading.bytes]))
    assert read[0] > 5 * read[1]  # in each pass
    assert whole.model.info["certificate"]["bound"] == pytest.approx(verified.lower_bound, abs=1e-6)


def test_what_was_exchanged_is_refused(comm, shared_dir):
    folder = written(comm, shared_dir)
    certified(comm, shared_dir, folder)
    if comm.is_root:
        X, y = data(180, 9, 1)
        order = np.arange(180)
        order[[3, 4]] = order[[4, 3]]
        write_data(shared_dir / "exchanged", X[order], y[order])
        write_data(shared_dir / "fewer", X[:-1], y[:-1])
        write_data(shared_dir / "other", X + X.multiply(1e-9), y)
        other = model.load(shared_dir / "m.h5")
        changed = {"w": other.w * (1 + 1e-15), "info": {**other.info, "lambda": 2e-2}}
        model.save(shared_dir / "w.h5", type(other)(changed["w"], other.info))
        model.save(shared_dir / "lambda.h5", type(other)(other.w, changed["info"]))
        with h5py.File(shared_dir / "c.h5") as file, h5py.File(shared_dir / "byte.h5", "w") as copy:
            for name in file:
                copy[name] = file[name][:] * np.float32(1 + 1e-6)
            copy.attrs.update(file.attrs)
    comm.barrier()
    for changed, why in (
        ((shared_dir / "m.h5", shared_dir / "exchanged"), "in another order"),
        ((shared_dir / "m.h5", shared_dir / "other"), "has other rows"),
        ((shared_dir / "m.h5", shared_dir / "fewer"), "179 here and 180 there"),
        ((shared_dir / "w.h5", folder), "of another model"),
        ((shared_dir / "lambda.h5", folder), "is for lambda 0.01"),
    ):
        with pytest.raises(InputError, match=why):
            verify(VerifyRequest(*changed, shared_dir / "c.h5"), comm)
    with pytest.raises(InputError, match="SHA-256"):
        verify(VerifyRequest(shared_dir / "m.h5", folder, shared_dir / "byte.h5"), comm)
    without = verify(VerifyRequest(shared_dir / "lambda.h5", folder), comm)  # J is of another lambda than it says
    assert without.lower_bound is None and without.gap is None and without.exit_code == EXIT_ERROR
    assert any("cannot be checked without a certificate" in note for note in without.notes)


@pytest.mark.serial
def test_a_certificate_that_was_changed(comm, shared_dir, capsys):
    """What it says of itself is compared. Coefficients of another shape are refused, though their bytes, and so their
    checksum, may be those of the right ones: NumPy would stretch a column to a table.
    """
    folder = written(comm, shared_dir)
    certified(comm, shared_dir, folder)
    files, request = ("m.h5", "c.h5", "d"), VerifyRequest(shared_dir / "m.h5", folder, shared_dir / "c.h5")
    with h5py.File(shared_dir / "c.h5") as file:
        info, c = json.loads(file.attrs["info"]), file["c"][:]
    for name, why in (("J", "says 0.9"), ("bound", "says that it proves 0.9, and it proves")):
        text = json.dumps(info | {name: 0.9})
        with h5py.File(shared_dir / "c.h5", "r+") as file:
            file.attrs.update(info=text, complete=np.bytes_(sha256(text.encode() + c.tobytes()).hexdigest()))
        verified = verify(request, comm)
        assert verified.exit_code == EXIT_ERROR and [why in problem for problem in verified.problems] == [True]
        checker.main([str(shared_dir / file) for file in files])
        assert "beware: the certificate says" in capsys.readouterr().out
    for shape in ((180, 1), (90, 2), (1, 180), ()):
        with h5py.File(shared_dir / "c.h5", "r+") as file:
            del file["c"]
            file["c"] = c.reshape(shape) if shape else c[0]
        with pytest.raises(InputError, match="damaged certificate: it has not one coefficient for each row"):
            verify(request, comm)
        with pytest.raises((SystemExit, ValueError)):
            checker.main([str(shared_dir / file) for file in files])


@pytest.mark.serial
def test_points_that_do_not_fit_are_forgotten_by_weight():
    origins = Origins(3)
    for slot, w in enumerate(np.eye(4)):
        origins.put(slot, Origin(w, float(slot), 0.5 if slot == 3 else 1.0))
    origins.merge(0, 1, 0.75, 0.25)
    alpha = np.array([0.4, 0.0, 0.5, 0.1])
    origins._most = 4
    origins.follow(alpha, True)
    whole = {point.nu: point.share for point in origins.mixture()}
    assert whole == pytest.approx({0.0: 0.3, 1.0: 0.1, 2.0: 0.5, 3.0: 0.05})
    origins._most = 3
    origins.follow(alpha, False)
    left = {point.nu: point.share for point in origins.mixture()}
    assert len(left) == 3 and sum(left.values()) == pytest.approx(0.95)  # as much as before


@pytest.mark.serial
def test_the_file_is_what_the_page_says(shared_dir, comm):
    folder = written(comm, shared_dir)
    certified(comm, shared_dir, folder, "pauc@0.3")
    with h5py.File(shared_dir / "c.h5") as file:
        assert set(file) == {"c", "alpha"} and {file[name].dtype.str for name in file} == {"<f4"}
        info = json.loads(file.attrs["info"])
    assert info["n"] == 180 and info["measure"] == "pauc@0.3" and info["lambda"] == 1e-2
    assert certificate.load(shared_dir / "c.h5", checked=True).info == info
    with pytest.raises(InputError, match="is not a certificate"):
        certificate.check_replaceable(shared_dir / "m.h5")
