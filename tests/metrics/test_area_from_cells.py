"""ROCArea from cells differs from the exact value by at most half of the width, and its standard error accordingly."""

from __future__ import annotations

import numpy as np
import pytest

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.metrics import ranking
from distsms.metrics.confidence import rocarea_estimate
from distsms.metrics.ranking import WIDTH, enclosed_area, enclosed_placements
from tests.losses.test_orderings import PLACEMENTS, placed
from tests.support.problems import local_part

KINDS = ["normal", "few values", "an atom", "all sizes", "infinite", "classes apart", "in order within cells"]


def drawn(kind, n=20_000):
    rng = np.random.default_rng(4)
    labels = np.where(rng.random(n) < 0.1, 1, -1).astype(np.int8)
    x = rng.normal(size=n) + (labels > 0)
    scores = {
        "normal": x,
        "few values": np.round(x),
        "an atom": np.where(rng.random(n) < 0.3, 0.0, x),
        "all sizes": x * 10.0 ** rng.uniform(-12, 12, n),
        "infinite": np.where(rng.random(n) < 0.2, np.inf * np.sign(x), x),
        "classes apart": x + 30 * (labels > 0),
        "in order within cells": np.floor(50 * x) / 50 + 1e-9 * rng.random(n) + 2e-9 * (labels > 0),
    }[kind]
    return scores, labels, rng.choice([0.5, 1.0, 3.0], n)


def of_few_cells(monkeypatch, cells, width):
    """Let measures come from so many cells, of an interval of this width, for few rows."""
    monkeypatch.setattr(ranking, "CELLS", cells)
    monkeypatch.setattr(ranking, "WIDTH", width)
    monkeypatch.setattr(ranking, "SORTED", 3000)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("cells, width", [(2**18, WIDTH), (2**9, 1e-3), (64, 0.01)])
def test_differs_by_at_most_half_of_the_width(comm, monkeypatch, kind, weighted, cells, width):
    of_few_cells(monkeypatch, cells, width)
    scores, labels, weights = drawn(kind)
    own = [local_part(array, comm) for array in (scores, labels)]
    mine = Scored(*own, comm, local_part(weights, comm) if weighted else None)
    expected = ranking.rocarea(mine)
    found = enclosed_area(mine)
    assert np.isnan(found) or abs(found - expected) <= width / 2 + 1e-12
    assert not np.isnan(found) or (cells == 64 and kind != "normal")
    monkeypatch.setattr(ranking, "MANY", 0)
    assert ranking.rocarea(mine) == (expected if np.isnan(found) else found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("cells, width", [(2**18, WIDTH), (2**9, 1e-3), (64, 0.01)])
def test_placements_are_wrong_by_no_more_than_the_pairs_of_cells(comm, monkeypatch, kind, weighted, cells, width):
    """And the standard error by no more than the triangle inequality of standard deviations says."""
    of_few_cells(monkeypatch, cells, width)
    scores, labels, weights = drawn(kind)
    other = scores + np.random.default_rng(5).normal(size=len(scores))
    mine, of_both = local_part(labels, comm), [local_part(values, comm) for values in (scores, other)]
    mass = local_part(weights if weighted else np.ones(len(labels)), comm)
    given = mass if weighted else None
    exact = [ranking.placements(Scored(values, mine, comm, given)) for values in of_both]
    monkeypatch.setattr(ranking, "MANY", 0)
    found = [ranking.placements(Scored(values, mine, comm, given)) for values in of_both]
    totals = comm.sum(np.array([mass[mine > 0].sum(), mass[mine < 0].sum()]))
    wrong, allowed = [(a - b) / 2 for a, b in zip(found, exact, strict=True)], 0.0
    for rows, n, others in zip((mine > 0, mine < 0), totals, totals[::-1], strict=True):
        for errors in wrong:
            assert (
                comm.sum(np.array([np.sum(mass * np.abs(errors), where=rows)]))[0] <= (width / 2 + 1e-12) * n * others
            )
        squares = comm.sum(np.array([np.sum((wrong[0] - wrong[1])[rows] ** 2)]))[0] / others**2
        allowed += squares / (n * (n - 1))
    if weighted:
        return
    errors = [rocarea_estimate(first - second, Scored(mine, mine, comm)).error for first, second in (found, exact)]
    assert abs(errors[0] - errors[1]) <= allowed**0.5 + 1e-12
    area = enclosed_area(Scored(of_both[0], mine, comm))
    assert np.isnan(area) or rocarea_estimate(found[0], Scored(mine, mine, comm)).value == pytest.approx(
        area, abs=1e-12
    )


def test_scores_that_are_not_numbers_are_sorted(comm, monkeypatch):
    scores, labels, _ = drawn("normal", 100)
    scores[-1] = np.nan
    mine = Scored(*(local_part(array, comm) for array in (scores, labels)), comm)
    expected = ranking.rocarea(mine)
    monkeypatch.setattr(ranking, "MANY", 0)
    assert np.isnan(enclosed_area(mine)) and ranking.rocarea(mine) == expected
    assert enclosed_placements(mine) is None


@pytest.mark.parametrize("enclosed", [enclosed_area, enclosed_placements])
def test_bytes_moved_do_not_grow_with_the_rows(comm, monkeypatch, enclosed):
    monkeypatch.setattr(ranking, "CELLS", 256)
    monkeypatch.setattr(ranking, "WIDTH", 1.0)
    moved = []
    for n in (5_000, 50_000):
        scores, labels, _ = drawn("normal", n)
        before = sum(comm.bytes_moved())
        enclosed(Scored(local_part(scores, comm), local_part(labels, comm), comm))
        moved.append(sum(comm.bytes_moved()) - before)
    assert max(moved) <= (2 * 32 + 16) * (256 + 4 * comm.size)
    assert comm.size == 1 or abs(moved[1] - moved[0]) <= 0.05 * moved[0]


@pytest.mark.serial
def test_a_large_class_on_one_rank_takes_no_copy_of_it(monkeypatch):
    monkeypatch.setattr(ranking, "MANY", 10)
    monkeypatch.setattr(ranking, "_pieces", None)
    scores, labels, _ = drawn("normal")
    assert ranking.rocarea(Scored(scores, labels, Communicator())) == pytest.approx(0.76, abs=0.02)
    assert ranking.placements(Scored(scores, labels, Communicator())).dtype == np.int64


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_ranks_without_rows_or_with_one_class(comm, placement):
    scores, labels, _ = drawn("an atom", 3000)
    mine = placed(placement, labels, comm, np.random.default_rng(2))
    expected = ranking.rocarea(Scored(scores[mine], labels[mine], comm))
    assert abs(enclosed_area(Scored(scores[mine], labels[mine], comm)) - expected) <= WIDTH / 2
    assert len(enclosed_placements(Scored(scores[mine], labels[mine], comm))) == len(scores[mine])
