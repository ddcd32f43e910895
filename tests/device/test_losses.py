"""Losses whose passes a device makes, beside those of the processor, which have oracles of their own, on all ranks."""

from __future__ import annotations

import numpy as np
import pytest

from distsms.base.communicator import Communicator
from distsms.base.measures import Measure
from distsms.device import runtime
from distsms.device.losses import LOSSES, PlaceSearch
from distsms.device.place import OFFERED
from distsms.device.runtime import DeviceVector
from distsms.losses import binned
from distsms.losses.registry import make_loss
from tests.losses.test_orderings import PLACEMENTS, placed
from tests.support import oracles
from tests.support.problems import spread_scores

pytestmark = pytest.mark.cuda
MEASURES = ["rocarea", "pauc@0.3", "prbep", "logistic", "logistic-balanced"]
SPREADS = ["normal", "far from zero", "few values", "equal", "long tails", "on the kink"]


def on_device(measure, labels, weights, comm):
    measure = Measure.parse(measure)
    return LOSSES[measure.family.name](np.asarray(labels, np.int8), weights, comm, *measure.parameters)


def on_processor(measure, labels, weights, comm):
    return make_loss(measure, OFFERED[Measure.parse(measure).family.name], np.asarray(labels, np.int8), weights, comm)


def drawn(n, kind, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.where(np.arange(n) < max(1, n // 5), 1, -1))
    x = 0.5 * rng.normal(size=n) + 0.3 * labels
    return np.round(4 * x) / 4 if kind == "on the kink" else spread_scores(kind, x, rng), labels


def agree(one, other, scores):
    size = 1e-12 * (1 + np.abs(scores).max(initial=0.0))
    np.testing.assert_allclose(one[:3], other[:3], rtol=1e-9, atol=size)
    coefficients = np.asarray(other.coefficients)
    np.testing.assert_allclose(
        one.coefficients, coefficients, rtol=1e-9, atol=1e-12 * np.abs(coefficients).max(initial=0.0)
    )


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("weighted", [False, True])
def test_values_of_the_processor_on_any_rank(measure, weighted, comm):
    """Some ranks have no rows, or those of one class; some rows are left out."""
    for number, kind in enumerate(SPREADS[weighted::2]):
        scores, labels = drawn(n := 130, kind)
        rng = np.random.default_rng(1)
        weights = rng.choice([0.0, 0.5, 3.0, 1e-9], n) if weighted else rng.choice([0.0, 1.0], n, p=[0.2, 0.8])
        mine = placed(PLACEMENTS[number % len(PLACEMENTS)], labels, comm, np.random.default_rng(2))
        device, processor = (of(measure, labels[mine], weights[mine], comm) for of in (on_device, on_processor))
        for nu in (0.0, 0.04):
            value = device.evaluate(scores[mine], nu)
            agree(value, processor.evaluate(scores[mine], nu), scores)
            assert np.all(value.coefficients[weights[mine] == 0] == 0)


@pytest.mark.parametrize("measure", ["rocarea", "pauc@0.3"])
def test_few_cells_enclose_the_risk(measure, monkeypatch):
    """Cells are divided, or are too wide, and then the rows are sorted; R is that of all pairs, and so is the plane."""
    monkeypatch.setattr(binned, "FEWEST", 8)
    monkeypatch.setattr(binned, "MOST", 8)
    risk = oracles.rocarea_risk if measure == "rocarea" else lambda *of: oracles.pauc_risk(*of, 0.3)
    for divisions in (0, 3):
        monkeypatch.setattr(binned, "DIVISIONS", divisions)
        scores, labels = drawn(60, "normal", seed=divisions)
        for everywhere in (0, 2**20):
            monkeypatch.setattr(binned, "EVERYWHERE", everywhere)
            loss = on_device(measure, labels, None, Communicator())
            value = loss.evaluate(scores, 0.05)
            R = risk(scores[labels > 0], scores[labels < 0])
            assert value.R - value.width - 1e-12 <= R <= value.R + 1e-12
            assert (value.width > 1e-6) == (loss.ways[binned.WIDE] > 0)
            for other in (scores, np.zeros(60), np.random.default_rng(5).normal(size=60)):
                plane = value.coefficients @ other + value.d
                assert plane <= risk(other[labels > 0], other[labels < 0]) + 1e-12


@pytest.mark.parametrize("measure", MEASURES)
def test_the_order_of_threads_changes_no_bit(measure, monkeypatch):
    scores, labels = drawn(300, "normal")
    for weights in (None, np.random.default_rng(0).uniform(0.1, 2.0, 300)):
        results = []
        for threads, blocks in ((runtime.THREADS, runtime.BLOCKS), (3, 1)):
            monkeypatch.setattr(runtime, "THREADS", threads)
            monkeypatch.setattr(runtime, "BLOCKS", blocks)
            results.append(on_device(measure, labels, weights, Communicator()).evaluate(scores, 0.05))
        assert results[0][:3] == results[1][:3]
        np.testing.assert_array_equal(results[0].coefficients, results[1].coefficients)


@pytest.mark.parametrize("measure", MEASURES)
def test_coefficients_take_the_place_of_the_scores(measure):
    scores, labels = drawn(150, "normal")
    loss = on_device(measure, labels, None, Communicator())
    vector = DeviceVector.of(scores)
    value = loss.evaluate_in_place(vector, 0.05)
    assert value.coefficients is vector
    np.testing.assert_array_equal(np.asarray(vector), loss.evaluate(scores, 0.05).coefficients)


@pytest.mark.filterwarnings("ignore:.*invalid value")  # in the simulator
@pytest.mark.parametrize("measure", MEASURES)
def test_scores_that_are_not_finite(measure, comm):
    labels = np.where(np.arange(30) % 3, 1, -1)
    for bad in (np.nan, np.inf):
        scores = np.zeros(30)
        scores[-1] = bad if comm.rank == comm.size - 1 else 0.0
        value = on_device(measure, labels, None, comm).evaluate(scores, 0.1)
        assert np.isnan(value[:3]).all() and not value.coefficients.any()


PLACES = {
    "normal": lambda x: x,
    "ties": np.round,
    "huge": lambda x: 1e308 * np.clip(x, -1.7, 1.7),
    "all sizes": lambda x: np.sign(x) * np.exp(100 * np.abs(x)),
    "tiny": lambda x: x * 5e-323,
    "equal": lambda x: np.full(len(x), -0.0),
}


@pytest.mark.parametrize("kind", PLACES)
def test_the_place_of_an_order_statistic(kind, comm):
    rng = np.random.default_rng(6)
    n = 80
    scores = PLACES[kind](rng.normal(size=n))
    labels = np.where(rng.random(n) < 0.3, 1, -1)
    mine = placed("none on the root", labels, comm, rng)
    shift = 0.25 if kind == "normal" else 0.0
    weights = rng.choice([0.5, 1.0, 3.0], n)
    places = np.where(labels < 0, scores + shift, scores)
    order = np.argsort(places)
    for of_rows in (None, weights):
        loss = on_device("prbep", labels[mine], None if of_rows is None else of_rows[mine], comm)
        reached = np.cumsum((np.ones(n) if of_rows is None else of_rows)[order])
        for target in (1.0, reached[n // 3], reached[-1]):
            search = PlaceSearch(loss.rows, target * loss.A / reached[-1], comm)
            expected = places[order][min(int(np.searchsorted(reached, target)), n - 1)]
            assert search.find(DeviceVector.of(scores[mine]), shift) == expected
