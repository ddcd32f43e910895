"""Assign rows to the folds of a cross-validation, in the same way on any number of ranks.

By rows: the rows of each class, in the order of the data set, are cut into runs of K, and each fold gets one of each,
by a hash of seed, class and row. By groups, or doubles (equal rows): of c groups with equally many rows of each class,
each fold gets c // folds, in the order of a hash; each other group, from large to small, goes to the fold with the
fewest of its classes. By time: block f of folds + 1 evaluates models of all blocks before it, as in TimeSeriesSplit.
"""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from distsms.base.choices import TOGETHER, require_choice
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.hashing import row_keys
from distsms.base.typing import Hashes
from distsms.base.wording import Message, option
from distsms.matrix.local import PART_ENTRIES
from distsms.parallel.groups import Groups
from distsms.shards.dataset import open_shards, read_groups
from distsms.shards.manifest import Manifest
from distsms.shards.splits import periods

CAVEATS = {
    "groups": "the intervals treat rows as independent; if the rows of a group are similar, they are too narrow",
    "time": "the intervals are those of folds by rows; they are a rough guide where models see earlier rows only",
}
"""For each way of making folds, what the intervals do not take into account."""
_STREAM = 2**62  # added to the seed, so that the hashes of groups differ from those of rows


class Folds(NamedTuple):
    """The folds of this rank's rows."""

    number: NDArray[np.int16]  # (n_local,), the fold, from 1 on, that each row evaluates; 0 for rows that evaluate none
    counted: NDArray[np.bool_]  # (n_local,), whether the row is used at all (its weight is not 0)
    forward: bool = False  # by time: whether fold f is trained on the blocks before it only, not on all other folds

    def judged(self, fold: int) -> NDArray[np.bool_]:
        """Return which rows evaluate the models of a fold, (n_local,)."""
        return self.number == fold

    def training(self, fold: int) -> NDArray[np.bool_]:
        """Return which rows the models of a fold are trained on, (n_local,); for fold 0 all rows that are used."""
        if not fold:
            return self.counted
        return self.counted & (self.number < fold if self.forward else self.number != fold)


def fold_name(fold: int) -> str:
    """Return what files call a fold; 0 stands for all rows."""
    return f"fold{fold}" if fold else "all"


def choose_folds_by(by: str | None, manifest: Manifest) -> str:
    """Return how folds are made: as `by` says, or else by groups if the data set has them, or by rows. Local."""
    if by is not None:
        require_choice("folds_by", by, TOGETHER)
    if by == "groups":
        read_groups(manifest, 0, 0)  # raises InputError if the rows have no groups
    return by or ("groups" if manifest.group else "rows")


def read_fold_keys(manifest: Manifest, by: str, first: int, last: int) -> NDArray[Any]:
    """Read the keys of rows first to last: hashes of groups or whole rows, times, or row numbers. Local."""
    if by == "rows" or (by == "time" and manifest.time is None):
        return np.arange(first, last)
    parts = [np.empty(0, np.float64 if by == "time" else np.uint64)]
    for shard, piece in open_shards(manifest, first, last):
        if by == "groups":
            parts.append(shard.read_groups(piece))
        elif by == "time":
            parts.append(shard.read_times(piece))
        else:
            rows = max(1, PART_ENTRIES * piece.shard.rows // max(piece.shard.nnz, 1))
            parts += [shard.hash_rows(part) for part in piece.parts(rows)]
    return np.concatenate(parts)


def make_folds(
    by: str,
    fold_keys: NDArray[Any],
    labels: NDArray[np.int8],
    counted: NDArray[np.bool_],
    folds: int,
    seed: int,
    comm: Communicator,
    groups: Hashes | None = None,
) -> Folds:
    """Assign all rows to folds, as the module says; `fold_keys` are those of `read_fold_keys`. **Collective.** Raises
    InputError on all ranks, if there are too few rows or groups, or a fold would lack a class or, with `groups`
    (n_local,), have no group with rows of both classes.
    """
    number = np.zeros(len(labels), np.int16)
    if by == "rows":
        number = deal_rows(labels, counted, folds, seed, comm)
    elif by == "time":
        number[counted] = deal_by_time(fold_keys[counted], labels[counted], folds, comm)
    else:
        number[counted] = deal_groups(fold_keys[counted], labels[counted], folds, seed, by, comm)
    if groups is not None:
        _require_pairs(number, groups, labels, folds, by, comm)
    return Folds(number, counted, by == "time")


def best_on_other_folds(values: NDArray[np.float64], without: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Return for each fold the best of (candidates, folds) on the *other* folds, `without` some. Local."""
    others = np.round(values.sum(axis=1, keepdims=True) - values, 12)
    return np.argmax(others if without is None else np.where(without, -np.inf, others), axis=0)


def deal_rows(
    labels: NDArray[np.int8], counted: NDArray[np.bool_], folds: int, seed: int, comm: Communicator
) -> NDArray[np.int16]:
    """Deal the rows of each class out evenly, as `make_folds` does, in O(n_local folds). **Collective.**"""
    number = np.zeros(len(labels), np.int16)
    for sign, name in ((1, "positive"), (-1, "negative")):
        rows = np.flatnonzero(counted & (labels == sign))
        counts = comm.allgather(len(rows))
        if (n := sum(counts)) < folds:
            _refuse(f"{folds} folds need at least {folds} rows of each class, and there are only {n} {name} ones")
        first = sum(counts[: comm.rank])  # this rank's rows are first, first + 1, ... of the class
        skipped, runs = first % folds, -(-(first % folds + len(rows)) // folds)
        numbers = first - skipped + np.arange(runs * folds)
        order = np.argsort(row_keys(numbers, 2 * seed + (sign > 0)).reshape(runs, folds), axis=1, kind="stable")
        places = np.argsort(order, axis=1).ravel()[skipped : skipped + len(rows)]
        number[rows] = 1 + places
    return number


def deal_by_time(times: NDArray[Any], labels: NDArray[np.int8], folds: int, comm: Communicator) -> NDArray[np.int16]:
    """Cut the rows into folds + 1 blocks in the order of time; equal times stay together. **Collective.**"""
    block = periods(times, [k / (folds + 1) for k in range(1, folds + 1)], comm)
    if lacking := _lacking(block, labels, folds + 1, comm):
        number, name = lacking
        blocks = f"{folds} folds by time need {folds + 1} blocks of rows with both classes"
        _refuse(f"{blocks}, but block {number + 1} has no {name} row")
    return block.astype(np.int16)


def deal_groups(
    group_hashes: Hashes, labels: NDArray[np.int8], folds: int, seed: int, by: str, comm: Communicator
) -> NDArray[np.int16]:
    """Deal groups, which are rows with equal hashes, out to folds. **Collective.** `by` is for messages."""
    groups = Groups(group_hashes, labels, _STREAM + seed, comm)
    totals = comm.sum(np.array([groups.positive.sum(), groups.negative.sum(), len(groups.keys)]))
    n_pos, n_neg, n_groups = map(int, totals)
    if n_groups < folds:
        _refuse(f"{folds} folds by {by} need at least {folds} {_NOUNS[by]}, and there are {n_groups}")
    # Encode each composition as one number. It fits 64 bits: up to 4e9 rows, n_pos n_neg is below 2^62.
    code = groups.positive * (n_neg + 1) + groups.negative
    local_codes, of_group, counts = np.unique(code, return_inverse=True, return_counts=True)
    lengths = comm.allgather(len(local_codes))
    codes_of_ranks, counts_of_ranks = comm.allgather_rows(local_codes, lengths), comm.allgather_rows(counts, lengths)
    codes, index = np.unique(codes_of_ranks, return_inverse=True)
    totals = np.bincount(index, counts_of_ranks, len(codes)).astype(np.int64)
    first = sum(lengths[: comm.rank])
    before = np.bincount(index[:first], counts_of_ranks[:first], len(codes)).astype(np.int64)
    # The place of each group among the groups of its composition, over all ranks.
    order, kind = np.argsort(of_group, kind="stable"), index[first : first + len(local_codes)][of_group]
    place = np.empty(len(code), np.int64)
    place[order] = np.arange(len(code)) - np.repeat(np.cumsum(counts) - counts, counts)
    place += before[kind]
    left = totals % folds
    even = totals[kind] - left[kind]  # this many groups of the composition are assigned evenly
    fold = place % folds
    rest = place >= even
    leftover = _leftovers(np.stack(np.divmod(codes, n_neg + 1)) / [[max(n_pos, 1)], [max(n_neg, 1)]], left, folds, seed)
    fold[rest] = leftover[(np.cumsum(left) - left)[kind[rest]] + place[rest] - even[rest]]
    number = groups.to_rows(fold)
    if lacking := _lacking(number, labels, folds, comm):
        _refuse(f"{folds} folds by {by}: the {lacking[1]} rows are in too few {_NOUNS[by]} for each fold to have some")
    return (1 + number).astype(np.int16)


_NOUNS = {"groups": "groups", "doubles": "different rows"}


def hold_out(by: str, fold_keys: NDArray[Any], labels: NDArray[np.int8], parts: int) -> NDArray[np.bool_] | None:
    """Choose one of at most `parts` of training rows to hold out, by time the latest; None if impossible. Local."""
    alone = Communicator()
    for count in range(min(parts, int(np.sum(labels > 0)), int(np.sum(labels < 0))), 1, -1):
        try:
            if by == "time":
                held_out = periods(fold_keys, [1 - 1 / count], alone) == 1
            else:
                held_out = make_folds(by, fold_keys, labels, np.ones(len(labels), bool), count, 0, alone).judged(1)
        except InputError:
            continue
        if len(set(labels[held_out].tolist())) == len(set(labels[~held_out].tolist())) == 2:
            return held_out
    return None


def _leftovers(shares: NDArray[np.float64], left: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """Return the folds, from 0 on, of the `left` groups of each composition, of `shares` (2, compositions)."""
    kind = np.repeat(np.arange(len(left)), left)
    a, b = shares[:, kind]
    # Larger groups come first; among groups within a factor of 2 in size the seed decides the order, so that it makes
    # a difference even where all groups differ.
    order = np.lexsort((row_keys(np.arange(len(kind)), _STREAM + seed), -np.floor(np.log2(a + b))))
    load, fold_of_group = np.zeros((2, folds)), np.empty(len(kind), np.int64)
    for group in order.tolist():
        # Take the fold where the group adds the least to the sum of the squared loads.
        fold = int(np.argmin(a[group] * load[0] + b[group] * load[1]))
        load[:, fold] += a[group], b[group]
        fold_of_group[group] = fold
    return fold_of_group


def _lacking(fold: NDArray[Any], labels: NDArray[np.int8], folds: int, comm: Communicator) -> tuple[int, str] | None:
    """Return a fold, from 0 on, and the name of a class that has no row in it, or None. **Collective.**"""
    counts = np.stack([np.bincount(fold[labels * sign > 0], minlength=folds) for sign in (1, -1)])
    where = np.argwhere(comm.sum(counts) == 0)
    return (int(where[0, 1]), ("positive", "negative")[where[0, 0]]) if len(where) else None


def _require_pairs(
    number: NDArray[np.int16], groups: Hashes, labels: NDArray[np.int8], folds: int, by: str, comm: Communicator
) -> None:
    """Refuse folds of which one has no group with rows of both classes. **Collective.**"""
    judged = number > 0
    number, groups, labels = number[judged], groups[judged], labels[judged]
    of_folds = Groups(groups ^ row_keys(number, _STREAM), labels, 0, comm)  # the rows of a group in two folds are two
    with_both = of_folds.to_rows((of_folds.positive > 0) & (of_folds.negative > 0))
    if lacking := _lacking(number[with_both] - 1, labels[with_both], folds, comm):
        none = f"fold {lacking[0] + 1} has no group with rows of both classes"
        _refuse(f"{folds} folds by {by}: {none}, so that GAUC is not defined there")


def _refuse(why: str) -> NoReturn:
    """Raise InputError on all ranks, since there are too many folds for the rows."""
    raise InputError(f"{why}; give fewer {option('folds')}", everywhere=True)


def labels_warning(manifest: Manifest) -> str:
    """Return a warning if features have seen the labels of the rows that folds hold out; else "". Local."""
    if not manifest.coded.features:
        return ""
    from distsms.features import feature_map

    rules = feature_map.load(manifest)
    if rules is None or not rules.chosen_by_labels:
        return ""
    remedy = (
        f"distsms path on the data that they were made from, with {option('features')} {shlex.quote(rules.options)}"
    )
    return Message(
        f"{rules.chosen_by_labels} of {manifest.directory} know the labels of the rows that folds hold out (unless made"
        f" with {option('like')}). So models look better than they are, and the lambda chosen may be wrong: {remedy},"
        " makes the features of each fold without its rows"
    )
