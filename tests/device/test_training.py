"""Whole trainings with a device, beside those of the processor, on all ranks and by all ways to ask for them."""

from __future__ import annotations

import numpy as np
import pytest

import distsms
from distsms import cli
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.device.place import PROCESSOR, place_of
from distsms.optim.settings import Settings
from distsms.shards.from_arrays import write_data
from distsms.training.fit import fit
from distsms.training.task import Distribution, RunOptions, TrainingTask
from tests.support.problems import block, data

pytestmark = pytest.mark.cuda


def run(comm, measure, device, weights=None):
    X, y = data(n=80, p=4, seed=3)
    measure = Measure.parse(measure)
    place = place_of(device, measure, comm)
    rows = block(comm, X, y)
    distribution = Distribution(place.ordering("auto", measure), "root")
    task = TrainingTask(
        rows, measure, Settings(lam=1e-2, solver="lbfgs", epsilon=1e-3), measure.bias(None), None, distribution
    )
    return fit(task, comm, RunOptions(place=place)).result


@pytest.mark.parametrize("measure", ["rocarea", "pauc@0.2", "prbep", "logistic"])
def test_a_proof_beside_the_processors(measure, comm):
    device, processor = (run(comm, measure, name) for name in ("cuda", "cpu"))
    for result in (device, processor):
        assert result.status.name == "PROVED" and result.gap <= 1e-3
    assert max(device.lower_bound, processor.lower_bound) <= min(device.J, processor.J)
    assert abs(device.J - processor.J) <= 1e-3


def test_two_runs_are_equal_to_the_bit(comm):
    one, other = (run(comm, "rocarea", "cuda") for _ in range(2))
    np.testing.assert_array_equal(one.w, other.w)
    assert (one.J, one.lower_bound, one.evaluations) == (other.J, other.lower_bound, other.evaluations)


@pytest.mark.serial
def test_three_ways_to_ask_give_one_model(tmp_path, capsys):
    pytest.importorskip("sklearn")
    X, y = data(n=80, p=4, seed=1)
    write_data(tmp_path / "d", X.toarray(), y)
    options = {"lam": 1e-2, "solver": "lbfgs", "device": "cuda"}
    words = f"train {tmp_path}/d --lambda 1e-2 --solver lbfgs --device cuda --certificate {tmp_path}/c"
    args = cli.parse([*words.split(), "--output", f"{tmp_path}/m.h5"])
    assert args.run(args, Communicator()) == 0
    assert "\ndevice    cuda: " in capsys.readouterr().out
    command, python = distsms.load_model(tmp_path / "m.h5"), distsms.train((X.toarray(), y), **options)
    assert command.info["device"].startswith("cuda: ") and command.info["ordering"] == "bins"
    estimator = distsms.SMSClassifier(**options).fit(X.toarray(), y)
    np.testing.assert_array_equal(command.w, python.w)
    np.testing.assert_array_equal(estimator.coef_[0], python.w)
    found = distsms.verify(command, tmp_path / "d", certificate=tmp_path / "c")
    assert not found.problems and found.lower_bound <= command.info["J"]


def test_what_is_refused(comm):
    refusals = {
        ("f1", "auto"): "offers rocarea, pauc, prbep, logistic, logistic-balanced, and not f1",
        ("rocarea", "exchange"): "computes rocarea with --ordering bins, and not with --ordering exchange",
    }
    for (name, ordering), words in refusals.items():
        measure = Measure.parse(name)
        with pytest.raises(InputError, match=words):
            place_of("cuda", measure, comm).ordering(ordering, measure)
    with pytest.raises(InputError, match="none of cpu, cuda"):
        place_of("gpu", Measure.parse("rocarea"), comm)
    assert place_of("cpu", Measure.parse("f1"), comm) is PROCESSOR
