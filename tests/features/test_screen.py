"""The pairs of attributes that the screen finds."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from distsms.features import feature_map, rows, screen
from distsms.features.build import build
from distsms.features.fit import FeatureOptions
from distsms.shards.from_arrays import write_data
from tests.support.files import ALONE, on_root
from tests.support.simulated import run_ranks


def test_the_screen_finds_interactions(comm, shared_dir, monkeypatch):
    """Labels are the exclusive or of two columns, plus what other columns tell by themselves, on correlated columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 6))
    X[:, 5] = X[:, 4] + 0.3 * X[:, 5]
    signal = 2 * np.where(X[:, 1] * X[:, 3] > 0, 1, -1) + 2 * X[:, 4] + X[:, 5] + rng.logistic(size=3000)
    y = np.where(signal > 2, 1, -1)
    data = on_root(comm, lambda: write_data(shared_dir / "d", X, y, 3, weights=np.where(np.arange(3000) % 9, 1.0, 0.0)))
    for limit in (screen.ROWS, 1200):
        monkeypatch.setattr(screen, "ROWS", limit)
        made = build(data.directory, shared_dir / "f", comm, FeatureOptions(8, "top:1"), overwrite=True)
        assert feature_map.load(made).bins.pairs == ((1, 3),)
    bins, parts = feature_map.load(made).bins, rows.RowParts.of_rank(data, comm)
    pairs = screen.strongest(bins, parts, data, 99, comm)
    alone = on_root(comm, lambda: screen.strongest(bins, rows.RowParts(data, 0, data.n), data, 99, ALONE))
    assert [(pair.a, pair.b) for pair in pairs] == [(pair.a, pair.b) for pair in alone] and len(pairs) == 15
    np.testing.assert_allclose([pair.gain for pair in pairs], [pair.gain for pair in alone], rtol=1e-9, atol=1e-9)
    assert pairs[0].gain > 100 > 30 > abs(pairs[1].gain)


def test_gains_by_hand(comm):
    """Four cells, of which each rank has some rows."""
    y = np.array([1.0, 0, 0, 1, 1, 0, 1, 1])
    places = np.array([[0, 0, 1, 1, 0, 1, 2, 0], [0, 1, 0, 1, 0, 1, 1, 2]])  # the last two have a missing code
    g, h = y - 0.5, np.full(8, 0.25)
    mine = slice(comm.rank, None, comm.size)
    (pair,) = screen._gains([(0, 1)], places[:, mine], (2, 2), g[mine], h[mine], comm)
    cells = {(0, 0): (1.0, 0.5), (0, 1): (-0.5, 0.25), (1, 0): (-0.5, 0.25), (1, 1): (0.0, 0.5)}
    assert pair.gain == pytest.approx(sum((a * a - b) / (b + 1) for a, b in cells.values()))


@pytest.mark.serial
def test_a_rank_without_rows_sums_the_same_type():
    """Its tables were integers, whose bytes MPI would have added to those of floating-point numbers."""

    def work(comm):
        n = 0 if comm.rank else 8
        places = [np.arange(n) % 2, np.arange(n) % 3]
        y, weights = np.arange(n) % 2.0, np.ones(n)
        share = screen._fitted(places, (2, 3), y, weights, comm)
        return screen._gains([(0, 1)], places, (2, 3), y - share, share * (1 - share), comm)

    first, second = run_ranks(2, work)
    assert first == second


@pytest.mark.serial
def test_batches_of_many_pairs(monkeypatch):
    """They are as large as allowed, and a pair takes no longer if there are many others."""
    looked, batches = [], []

    class Sizes(tuple):
        def __getitem__(self, number):
            looked.append(number)
            return super().__getitem__(number)

    def gains(pairs, *rest):
        batches.append(len(pairs))
        return [screen.Pair(a, b, a + b) for a, b in pairs]

    monkeypatch.setattr(screen, "_sample", lambda *rows: (np.zeros((1, 40), int), np.zeros(1), np.ones(1)))
    monkeypatch.setattr(screen, "_fitted", lambda *rows: np.zeros(1))
    monkeypatch.setattr(screen, "_gains", gains)
    monkeypatch.setattr(screen, "_CELLS", 4 * 300)
    best = screen.strongest(SimpleNamespace(sizes=Sizes([2] * 40)), [], None, 2, ALONE)
    assert best == [(38, 39, 77), (37, 39, 76)] and len(looked) == 2 * 780
    assert batches == [301, 301, 178]
