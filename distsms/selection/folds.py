"""Rows dealt out to folds: as even in each class as can be, and the same on any number of ranks; what folds choose.

By rows, each class is numbered in the order of the data set, and cut into runs of as many rows as there are folds; the
rows of a run go to the folds in an order that is a hash of seed, class and numbers. So the sizes of a class's folds
differ by at most 1, and where a row goes does not depend on which rank holds it: no row travels, and one count of each
class does.

By groups (or doubles), all rows of a group go to one fold. Groups of the same composition, so many rows of each class,
are dealt out as rows are: of c such groups each fold gets c // folds, in the order of a hash. What is left of each
composition goes, larger ones first, to the fold that has least of the classes that are in it: where all rows differ,
this is as even as folds by rows.

By time, all rows in their order are cut into folds + 1 blocks of equal numbers of rows. Block f is judged by models
that are trained on all blocks before it; the first block is never judged, as in scikit-learn's TimeSeriesSplit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.data.duplicates import hash_rows
from distsms.data.groupby import Groups
from distsms.data.row_metadata import Hashes
from distsms.data.shards.dataset import open_shards
from distsms.data.shards.manifest import Manifest
from distsms.data.splits import periods
from distsms.errors import InputError
from distsms.matrix.local import PART_ENTRIES
from distsms.parallel.communicator import Communicator
from distsms.utils.hashing import row_keys

CAVEATS = {
    "groups": "intervals count each row by itself: where rows of a group are alike, they are too narrow",
    "time": "intervals are those of folds by rows: where models have earlier rows only, they are a rough guide",
}
"""What intervals over folds do not take into account, by what the folds are by."""
_STREAM = 2**62
"""Added to seeds, for numbers that are not those of folds by rows."""


class Folds(NamedTuple):
    """Of this rank's rows."""

    number: NDArray[np.int16]  # (n_local,): the fold from 1 on that judges the row; 0: none does
    counted: NDArray[np.bool_]  # (n_local,): whether the row counts
    forward: bool = False  # whether fold f is trained on the folds before it, rather than on all others

    def judged(self, fold: int) -> NDArray[np.bool_]:
        """(n_local,): the rows that judge a fold's models."""
        return self.number == fold

    def training(self, fold: int) -> NDArray[np.bool_]:
        """(n_local,): the rows that they are trained on; of fold 0 all rows that count."""
        if not fold:
            return self.counted
        return self.counted & (self.number < fold if self.forward else self.number != fold)


def chosen(by: str | None, manifest: Manifest) -> str:
    """What folds are by: as asked, or groups where the data have them, else rows. Local; InputError for no groups."""
    if by == "groups" and manifest.group is None:
        raise InputError(f"{manifest.directory}: its rows have no groups; make it with distsms shard --group COLUMN")
    return by or ("groups" if manifest.group else "rows")


def marks(manifest: Manifest, by: str, first: int, last: int) -> NDArray[Any]:
    """What says where the global rows first..last belong: groups, hashes of the rows, times, or their numbers. Local.

    Reads them from the shards, for doubles all entries. Raises InputError as `shards.load` does.
    """
    found = list[NDArray[Any]]()
    if by == "rows" or (by == "time" and manifest.time is None):
        return np.arange(first, last)
    for shard, piece in open_shards(manifest, first, last):
        if by == "groups":
            found.append(shard.read_groups(piece))
        elif by == "time":
            found.append(shard.read_times(piece))
        else:
            rows = max(1, PART_ENTRIES * piece.shard.rows // max(piece.shard.nnz, 1))
            found += [hash_rows(shard.read_rows(part)) for part in piece.parts(rows)]
    return np.concatenate([np.empty(0, np.float64 if by == "time" else np.uint64), *found])


def dealt(
    by: str,
    marks: NDArray[Any],
    labels: NDArray[np.int8],
    counted: NDArray[np.bool_],
    folds: int,
    seed: int,
    comm: Communicator,
) -> Folds:
    """The folds of this rank's rows by one of `BY`. Collective.  marks, labels, counted : (n_local,), see `marks`.

    Raises InputError, on all ranks, where that is not possible, or a fold would lack a class.
    """
    if by == "rows":
        return Folds(deal(labels, counted, folds, seed, comm), counted)
    some = np.zeros(len(labels), np.int16)
    if by == "time":
        some[counted] = deal_in_time(marks[counted], labels[counted], folds, comm)
    else:
        some[counted] = deal_groups(marks[counted], labels[counted], folds, seed, by, comm)
    return Folds(some, counted, by == "time")


def best_of_others(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each fold the candidate of the best mean over the *other* folds, of several the first, (folds,). Local.

    values : (candidates, folds).  So no fold is measured by what it has helped to choose.
    """
    others = np.round(values.sum(axis=1, keepdims=True) - values, 12)
    return np.argmax(others, axis=0)


def deal(
    labels: NDArray[np.int8], counted: NDArray[np.bool_], folds: int, seed: int, comm: Communicator
) -> NDArray[np.int16]:
    """The fold, from 1 to `folds`, of each of this rank's rows, (n_local,); 0 where a row does not count. Collective.

    labels : (n_local,) +1 or -1.  counted : (n_local,).  O(n_local folds).
    Raises InputError, on all ranks, where a class has fewer rows than there are folds: a fold would lack it.
    """
    found = np.zeros(len(labels), np.int16)
    for sign, name in ((1, "positive"), (-1, "negative")):
        rows = np.flatnonzero(counted & (labels == sign))
        counts = comm.allgather(len(rows))
        if sum(counts) < folds:
            raise InputError(
                f"{folds} folds want at least {folds} rows of each class, and there are {sum(counts)} {name} ones; "
                "give fewer --folds",
                everywhere=True,
            )
        first = sum(counts[: comm.rank])  # this rank's rows are first, first + 1, ... of the class
        skipped, runs = first % folds, -(-(first % folds + len(rows)) // folds)
        numbers = first - skipped + np.arange(runs * folds)
        order = np.argsort(row_keys(numbers, 2 * seed + (sign > 0)).reshape(runs, folds), axis=1, kind="stable")
        places = np.argsort(order, axis=1).ravel()[skipped : skipped + len(rows)]
        found[rows] = 1 + places
    return found


def deal_in_time(times: NDArray[Any], labels: NDArray[np.int8], folds: int, comm: Communicator) -> NDArray[np.int16]:
    """The block of each of this rank's rows, from 0 to `folds`, in the order of time. Collective.

    times, labels : (n_local,). Equal times stay together, in the earlier block. Raises InputError, on all ranks, where
    a block lacks a class.
    """
    block = periods(times, [k / (folds + 1) for k in range(1, folds + 1)], comm)
    lacking = _lacking(block, labels, folds + 1, comm)
    if lacking:
        at, name = lacking
        raise InputError(
            f"{folds} folds by time want {folds + 1} blocks of rows with both classes, and number {at + 1} has no "
            f"{name} row; give fewer --folds",
            everywhere=True,
        )
    return block.astype(np.int16)


def deal_groups(
    marks: Hashes, labels: NDArray[np.int8], folds: int, seed: int, noun: str, comm: Communicator
) -> NDArray[np.int16]:
    """The fold, from 1 on, of each of this rank's rows; rows of equal marks share it. Collective.

    marks, labels : (n_local,).  noun : what equal marks are, for messages.
    Time as of `Groups`; and for each rank, once, that of sorting the different compositions of groups, of which there
    are at most some n^(2/3). Raises InputError, on all ranks, where there are too few groups, or a fold lacks a class.
    """
    groups = Groups(marks, labels, _STREAM + seed, comm)
    n_pos, n_neg, n_groups = map(
        int, comm.sum(np.array([groups.positive.sum(), groups.negative.sum(), len(groups.keys)]))
    )
    if n_groups < folds:
        raise InputError(
            f"{folds} folds by {noun} want at least {folds} {_CALLED[noun]}, and there are {n_groups}; give fewer "
            "--folds",
            everywhere=True,
        )
    # A composition as one number: n_pos n_neg is below 2^62 up to 4e9 rows.
    code = groups.positive * (n_neg + 1) + groups.negative
    own, of_group, counts = np.unique(code, return_inverse=True, return_counts=True)
    lengths = comm.allgather(len(own))
    every, numbers = comm.allgather_rows(own, lengths), comm.allgather_rows(counts, lengths)
    codes, which = np.unique(every, return_inverse=True)
    totals = np.bincount(which, numbers, len(codes)).astype(np.int64)
    begun = sum(lengths[: comm.rank])
    before = np.bincount(which[:begun], numbers[:begun], len(codes)).astype(np.int64)
    # The place of each group among those of its composition, over all ranks.
    order, kind = np.argsort(of_group, kind="stable"), which[begun : begun + len(own)][of_group]
    place = np.empty(len(code), np.int64)
    place[order] = np.arange(len(code)) - np.repeat(np.cumsum(counts) - counts, counts)
    place += before[kind]
    left = totals % folds
    even = totals[kind] - left[kind]  # so many are dealt out evenly
    fold = place % folds
    rest = place >= even
    leftover = _leftovers(np.stack(np.divmod(codes, n_neg + 1)) / [[max(n_pos, 1)], [max(n_neg, 1)]], left, folds, seed)
    fold[rest] = leftover[(np.cumsum(left) - left)[kind[rest]] + place[rest] - even[rest]]
    found = groups.to_rows(fold)
    if lacking := _lacking(found, labels, folds, comm):
        raise InputError(
            f"{folds} folds by {noun}: the {lacking[1]} rows are in too few {_CALLED[noun]} for each fold to have "
            "some; give fewer --folds",
            everywhere=True,
        )
    return (1 + found).astype(np.int16)


_CALLED = {"groups": "groups", "doubles": "different rows"}


def held_out(by: str, marks: NDArray[Any], labels: NDArray[np.int8], parts: int) -> NDArray[np.bool_] | None:
    """(n,): which rows of a training it holds out for choices of its own: one of `parts` parts, by time the latest one.

    All rows are on this rank; see `dealt`. There are fewer parts where so many are not possible, or a part would lack a
    class; None where there are no two. Local.
    """
    alone = Communicator()
    for count in range(min(parts, int(np.sum(labels > 0)), int(np.sum(labels < 0))), 1, -1):
        try:
            if by == "time":
                held = periods(marks, [1 - 1 / count], alone) == 1
            else:
                held = dealt(by, marks, labels, np.ones(len(labels), bool), count, 0, alone).judged(1)
        except InputError:
            continue
        if len(set(labels[held].tolist())) == len(set(labels[~held].tolist())) == 2:
            return held
    return None


def _leftovers(shares: NDArray[np.float64], left: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """The fold, from 0, of each group that is left; in the order of compositions, left[k] of composition k.

    shares : (2, compositions): which share of all rows of a class such a group has. The same on every rank.
    """
    kind = np.repeat(np.arange(len(left)), left)
    a, b = shares[:, kind]
    # Within a factor of 2 in size the seed decides, so that it makes a difference even where all groups differ.
    order = np.lexsort((row_keys(np.arange(len(kind)), _STREAM + seed), -np.floor(np.log2(a + b))))
    load, found = np.zeros((2, folds)), np.empty(len(kind), np.int64)
    for group in order.tolist():
        # Of all folds it adds least to the sum of the squares of loads.
        fold = int(np.argmin(a[group] * load[0] + b[group] * load[1]))
        load[:, fold] += a[group], b[group]
        found[group] = fold
    return found


def _lacking(fold: NDArray[Any], labels: NDArray[np.int8], folds: int, comm: Communicator) -> tuple[int, str] | None:
    """A fold, from 0, without rows of a class, and which class that is; or None. Collective."""
    counts = np.stack([np.bincount(fold[labels * sign > 0], minlength=folds) for sign in (1, -1)])
    where = np.argwhere(comm.sum(counts) == 0)
    return (int(where[0, 1]), ("positive", "negative")[where[0, 0]]) if len(where) else None
