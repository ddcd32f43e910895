"""Folds are even in each class and the same on any number of ranks, groups stay whole, and no model sees the future."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.hashing import row_keys
from distsms.workflow.folds import deal_rows, hold_out, make_folds
from tests.support.problems import share


def rows(n, positive, seed, left_out=0.0):
    """Return labels, and which rows are used: at least 7 of each class."""
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
    found = np.concatenate(comm.allgather(deal_rows(labels[mine], counted[mine], folds, seed, comm)))
    assert np.array_equal(found, deal_rows(labels, counted, folds, seed, Communicator()))
    assert np.array_equal(found != 0, counted)
    for sign in (1, -1):
        sizes = np.bincount(found[counted & (labels == sign)], minlength=folds + 1)[1:]
        assert sizes.max() - sizes.min() <= 1


@pytest.mark.serial
def test_each_row_comes_to_each_fold_equally_often_over_seeds():
    """Of 2000 deals, each fold gets a given row 400 times on average, with a standard deviation of 18."""
    labels, counted = rows(23, 0.5, 0)
    found = np.array([deal_rows(labels, counted, 5, seed, Communicator()) for seed in range(2000)])
    counts = np.array([np.bincount(column, minlength=6)[1:] for column in found.T])
    assert abs(counts - 400).max() < 6 * 18
    neighbours = np.mean((found[:, :-7] == found[:, 7:])[:, :14])  # rows of different runs or classes
    assert 0.15 < neighbours < 0.25
    assert np.any(found[0] != found[1])


def test_a_class_too_small_for_the_folds_is_refused(comm):
    labels = np.where(np.arange(40) % 10 == 3, 1, -1).astype(np.int8)
    mine = share(comm, 40)
    counted = np.ones(40, bool)
    assert len(np.unique(deal_rows(labels, counted, 4, 0, Communicator())[labels > 0])) == 4
    with pytest.raises(InputError, match="at least 5 rows of each class, and there are only 4 positive ones"):
        deal_rows(labels[mine], counted[mine], 5, 0, comm)
    counted[:] = labels < 0
    with pytest.raises(InputError, match="0 positive"):
        deal_rows(labels[mine], counted[mine], 2, 0, comm)


def by(kind, marks, labels, folds, comm, counted=None, seed=0):
    """Deal all rows out on all ranks and on one, check that the folds are the same, and return them."""
    counted, mine = np.ones(len(labels), bool) if counted is None else counted, share(comm, len(labels))
    found = make_folds(kind, marks[mine], labels[mine], counted[mine], folds, seed, comm)
    alone = make_folds(kind, marks, labels, counted, folds, seed, Communicator())
    np.testing.assert_array_equal(np.concatenate(comm.allgather(found.number)), alone.number)
    for fold in range(folds + 1):
        assert np.array_equal(found.training(fold), alone.training(fold)[mine])
    return alone


def grouped(n, n_groups, seed, positive=0.3):
    """Return the hashes of groups of very different sizes, at least 14 of them with both classes, and the labels."""
    rng = np.random.default_rng(seed)
    group = np.concatenate([np.repeat(np.arange(14), 2), (n_groups * rng.random(n) ** 2).astype(int)])
    labels = np.where(rng.random(len(group)) < positive, 1, -1).astype(np.int8)
    labels[:28:2], labels[1:28:2] = 1, -1
    return row_keys(group, 5), labels


@given(st.integers(0, 200), st.integers(1, 60), st.integers(0, 9), st.integers(2, 7), st.sampled_from([0.0, 0.4]))
def test_no_group_is_split(comm, n, n_groups, seed, folds, left_out):
    marks, labels = grouped(n, n_groups, seed)
    counted = np.random.default_rng(seed).random(len(labels)) >= left_out
    counted[:28] = True
    found = by("groups", marks, labels, folds, comm, counted, seed)
    assert np.array_equal(found.number != 0, counted)
    for mark in np.unique(marks[counted]):
        assert len(set(found.number[counted & (marks == mark)])) == 1
    for fold in range(1, folds + 1):
        assert set(labels[found.judged(fold)]) == {1, -1}
        assert not set(marks[found.judged(fold)]) & set(marks[found.training(fold)])
        assert np.array_equal(found.training(fold) | found.judged(fold), counted)


@pytest.mark.parametrize("kind, n_groups", [("groups", 200), ("rows", 50), ("time", 50)])
def test_a_fold_on_which_gauc_is_not_defined_is_refused(kind, n_groups, comm):
    """By brute force: whether a group has rows of both classes that evaluate the fold."""
    refused = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        groups, labels = rng.integers(0, n_groups, 60).astype(np.uint64), np.tile([1, -1], 30).astype(np.int8)
        counted, time = np.arange(60) % 7 > 0, rng.permutation(60).astype(float)
        marks, mine = {"groups": groups, "rows": time, "time": time}[kind], share(comm, 60)
        alone = make_folds(kind, marks, labels, counted, 3, seed, Communicator())
        signs = [labels[alone.judged(fold) & (groups == group)] for fold in (1, 2, 3) for group in range(n_groups)]
        pairs = np.reshape([len(set(of_group)) for of_group in signs], (3, n_groups)) == 2
        of_rank = kind, marks[mine], labels[mine], counted[mine], 3, seed, comm, groups[mine]
        if pairs.any(axis=1).all():
            assert np.array_equal(make_folds(*of_rank).number, alone.number[mine])
        else:
            first = 1 + np.flatnonzero(~pairs.any(axis=1))[0]
            with pytest.raises(InputError, match=f"^3 folds by {kind}: fold {first} has no group with rows of both"):
                make_folds(*of_rank)
            refused.append(seed)
    assert 0 < len(refused) < 12


@given(st.lists(st.integers(1, 9), min_size=12, max_size=60), st.integers(2, 6), st.integers(0, 5))
def test_folds_of_groups_are_even(comm, sizes, folds, seed):
    """If each group has one class, the folds' sizes in a class differ by at most its largest group.

    Groups of one row are dealt out as rows are, so that the sizes differ by at most one row.
    """
    for these in (np.array(sizes), np.ones(len(sizes), int)):
        sign = np.where(np.arange(len(these)) % 2, 1, -1)
        labels, marks = np.repeat(sign, these).astype(np.int8), row_keys(np.repeat(np.arange(len(these)), these), 1)
        found = by("doubles", marks, labels, folds, comm, seed=seed)
        for one in (1, -1):
            counts = np.bincount(found.number[labels == one], minlength=folds + 1)[1:]
            assert np.ptp(counts) <= these[sign == one].max()


@pytest.mark.serial
@given(st.permutations(range(60)), st.integers(2, 5))
def test_groups_go_to_the_same_folds_in_any_order(order, folds):
    marks, labels = grouped(32, 9, 2)
    counted = np.ones(60, bool)
    found = make_folds("groups", marks, labels, counted, folds, 0, Communicator()).number
    again = make_folds("groups", marks[order], labels[order], counted, folds, 0, Communicator()).number
    np.testing.assert_array_equal(again, found[order])


def test_another_seed_deals_groups_otherwise(comm):
    marks, labels = grouped(150, 20, 0)
    different = {tuple(by("groups", marks, labels, 3, comm, seed=seed).number.tolist()) for seed in range(6)}
    assert len(different) == 6


@given(st.lists(st.integers(0, 40), min_size=20, max_size=120), st.integers(1, 4), st.sampled_from([0.0, 0.3]))
def test_time_never_trains_on_the_future(comm, times, folds, left_out):
    """Compare with blocks by brute force: rows up to the end of each block, and those whose times tie with it."""
    times = np.sort(np.array(times))[np.random.default_rng(0).permutation(len(times))] * 0.5
    labels = np.where(np.arange(len(times)) % 2, 1, -1).astype(np.int8)
    counted = np.random.default_rng(1).random(len(times)) >= left_out
    try:
        found = by("time", times, labels, folds, comm, counted)
    except InputError as error:
        assert "no positive row" in str(error) or "no negative row" in str(error)
        return
    ordered = np.sort(times[counted])
    ends = [ordered[max(len(ordered) * k // (folds + 1), 1) - 1] for k in range(1, folds + 1)]
    block = sum((times > end).astype(int) for end in ends)
    assert np.array_equal(found.number, np.where(counted, block, 0))
    assert np.array_equal(found.training(0), counted)
    for fold in range(1, folds + 1):
        assert set(labels[found.judged(fold)]) == {1, -1} == set(labels[found.training(fold)])
        assert times[found.training(fold)].max() < times[found.judged(fold)].min()
        assert not (found.training(fold) & found.judged(fold)).any()


def test_time_in_the_order_of_the_input(comm):
    labels = np.tile([1, -1], 30).astype(np.int8)
    found = by("time", np.arange(60), labels, 5, comm)
    np.testing.assert_array_equal(found.number, np.arange(60) // 10)


@pytest.mark.serial
def test_what_a_training_holds_out_for_itself():
    marks, labels = grouped(100, 20, 0)
    held = hold_out("groups", marks, labels, 5)
    assert not set(marks[held]) & set(marks[~held]) and set(labels[held]) == {1, -1}
    held = hold_out("time", np.arange(60), np.tile([1, -1], 30).astype(np.int8), 5)
    np.testing.assert_array_equal(held, np.arange(60) >= 48)
    late = np.where(np.arange(60) < 14, -1, np.tile([1, -1], 30)).astype(np.int8)  # one class in the first fifth
    np.testing.assert_array_equal(hold_out("time", np.arange(60), late, 5), np.arange(60) >= 48)
    four = np.repeat(np.arange(4), 15).astype(np.uint64)  # fewer groups than parts
    assert np.count_nonzero(hold_out("groups", four, np.tile([1, -1, -1], 20).astype(np.int8), 5)) == 15
    held = hold_out("rows", np.arange(60), np.tile([1, -1, -1], 20).astype(np.int8), 5)
    assert np.count_nonzero(held) == 12
    one = np.where(np.arange(60) > 0, -1, 1).astype(np.int8)
    assert hold_out("rows", np.arange(60), one, 5) is None
    assert hold_out("groups", np.zeros(60, np.uint64), -one, 5) is None


@pytest.mark.parametrize(
    "kind, marks, labels, message",
    [
        ("groups", [1, 1, 2, 2], [1, -1, 1, -1], "3 folds by groups need at least 3 groups, and there are 2"),
        ("doubles", [1, 1, 2, 2], [1, -1, 1, -1], "at least 3 different rows, and there are 2"),
        ("groups", [1, 2, 3, 4, 5], [1, 1, -1, -1, -1], "the positive rows are in too few groups"),
        ("time", [1, 2, 3, 4, 5, 5, 6, 7], [1, -1, 1, -1, 1, 1, 1, -1], "need 4 blocks .* block 3 has no negative row"),
        ("time", [1.0] * 8, [1, -1] * 4, "need 4 blocks"),
    ],
)
def test_what_cannot_be_dealt_is_refused(comm, kind, marks, labels, message):
    mine = share(comm, len(labels))
    marks, labels = np.array(marks), np.array(labels, np.int8)
    marks = marks.astype(np.float64 if kind == "time" else np.uint64)
    with pytest.raises(InputError, match=message):
        make_folds(kind, marks[mine], labels[mine], np.ones(len(labels), bool)[mine], 3, 0, comm)
