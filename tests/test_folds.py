"""Rows dealt out to folds: every class evenly, the same on any number of ranks, none that does not count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.comm import Communicator
from distsms.errors import InputError
from distsms.folds import deal
from tests.problems import share


def rows(n, positive, seed, left_out=0.0):
    """Labels and which rows count; at least 7 of each class do."""
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(n) < positive, 1, -1).astype(np.int8)
    labels[:7], labels[7:14] = 1, -1
    counted = rng.random(n) >= left_out
    counted[:14] = True
    return labels, counted


@given(st.integers(14, 300), st.floats(0, 1), st.integers(0, 9), st.integers(2, 7), st.sampled_from([0.0, 0.4]))
def test_every_class_is_dealt_out_evenly_on_any_ranks(comm, n, positive, seed, folds, left_out):
    labels, counted = rows(n, positive, seed, left_out)
    mine = share(comm, n)
    found = np.concatenate(comm.allgather(deal(labels[mine], counted[mine], folds, seed, comm)))
    assert np.array_equal(found, deal(labels, counted, folds, seed, Communicator()))
    assert np.array_equal(found != 0, counted)
    for sign in (1, -1):
        sizes = np.bincount(found[counted & (labels == sign)], minlength=folds + 1)[1:]
        assert sizes.max() - sizes.min() <= 1


@pytest.mark.serial
def test_each_row_comes_to_each_fold_equally_often_over_seeds():
    """Of 2000 deals, each fold gets a given row 400 times on average, with a standard deviation of 18."""
    labels, counted = rows(23, 0.5, 0)
    found = np.array([deal(labels, counted, 5, seed, Communicator()) for seed in range(2000)])
    counts = np.array([np.bincount(column, minlength=6)[1:] for column in found.T])
    assert abs(counts - 400).max() < 6 * 18
    neighbours = np.mean((found[:, :-7] == found[:, 7:])[:, :14])  # of another run or class
    assert 0.15 < neighbours < 0.25
    assert np.any(found[0] != found[1])


def test_a_class_too_small_for_the_folds_is_refused(comm):
    labels = np.where(np.arange(40) % 10 == 3, 1, -1).astype(np.int8)
    mine = share(comm, 40)
    counted = np.ones(40, bool)
    assert len(np.unique(deal(labels, counted, 4, 0, Communicator())[labels > 0])) == 4
    with pytest.raises(InputError, match="at least 5 rows of each class, and there are 4 positive ones"):
        deal(labels[mine], counted[mine], 5, 0, comm)
    counted[:] = labels < 0
    with pytest.raises(InputError, match="0 positive"):
        deal(labels[mine], counted[mine], 2, 0, comm)
