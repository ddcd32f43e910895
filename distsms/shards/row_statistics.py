"""What is known of the rows of a data set besides their columns: equal rows, groups, times and weights, all ranks'.

Equal rows are found by a hash of each row (`distsms.base.hashing`). Rows with the same key are counted wherever they
are (`distsms.parallel.groups`), and no rank needs memory for all of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base import hashing
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.typing import Floats, Hashes
from distsms.base.wording import Message, option
from distsms.parallel.groups import Groups
from distsms.shards.labels import class_names
from distsms.shards.manifest import Manifest
from distsms.shards.row_metadata import MetadataColumns, RowMetadata, format_time

AT_ONCE = 2**21
"""The number of rows of a rank that are counted in one round. Each takes some 100 bytes during the round."""
MANY, ONE_ROW = 0.05, 0.01
"""Folds by rows are misleading if more than the share MANY of the rows have an equal row, and no row makes up the share
ONE_ROW: then many rows occur a few times each, and a model remembers them. Others are combinations of categories.
"""
MOSTLY = 0.8
"""From this share of positive rows on, the wrong label may have been used as the positive one."""
_BITS = np.uint64(32)


class Doubles(NamedTuple):
    """How many rows of all ranks have a key in common with another row: the manifest's record of equal rows."""

    different: int  # keys
    rows: int  # rows whose key another row has, too
    largest: int  # rows with the most frequent key
    contradicting: int  # rows whose key both classes have


def count_groups(keys: Hashes, labels: NDArray[np.int8], comm: Communicator) -> Doubles:
    """Count the rows that share their key (n_local,), a hash, with others; labels are +1 and -1. **Collective.** In a
    round, AT_ONCE rows of each rank are counted; those with a key of their own, which are most, are not sorted."""
    rounds = max(1, int(comm.maximum(np.array([-(-len(keys) // AT_ONCE)]))[0]))
    sums, largest = np.zeros(3, np.int64), np.zeros(1, np.int64)
    round_of = hashing.row_keys(keys, 1) % np.uint64(rounds) if rounds > 1 else np.zeros(len(keys), np.uint64)
    for k in range(rounds):
        # Only keys that may occur again are compared; all others are groups of one row.
        rows = np.flatnonzero(round_of == k)
        doubtful = rows[_may_be_shared(keys[rows], comm)]
        groups = Groups(keys[doubtful], labels[doubtful], 0, comm)
        sizes = groups.positive + groups.negative
        both_classes = (groups.positive > 0) & (groups.negative > 0)
        n_alone = len(rows) - len(doubtful)
        sums += np.array([len(sizes) + n_alone, sizes[sizes > 1].sum(), sizes[both_classes].sum()])
        largest[0] = max(largest[0], sizes.max(initial=0), n_alone > 0)
    n_groups, shared, mixed = comm.sum(sums).tolist()
    return Doubles(n_groups, shared, int(comm.maximum(largest)[0]), mixed)


def _may_be_shared(keys: Hashes, comm: Communicator) -> NDArray[np.bool_]:
    """Return which rows (n_local,) may have a key that another row of any rank has. **Collective.** Takes O(n_local)
    time if few do. A rank sends each of its different keys once, and gets a byte back."""
    shared = hashing.share_places(keys)
    if comm.size > 1:
        alone = np.flatnonzero(~shared)
        queries = np.concatenate((keys[alone], np.unique(keys[shared])))
        owner = ((queries >> _BITS) * np.uint64(comm.size)) >> _BITS
        order = np.argsort(owner, kind="stable")
        received, origin = comm.alltoall_rows(queries[order], np.bincount(owner.astype(np.intp), minlength=comm.size))
        answers = np.empty(len(queries), np.int8)
        answers[order] = comm.alltoall_rows(hashing.share_places(received).astype(np.int8), origin)[0]
        shared[alone] = answers[: len(alone)] > 0
    return shared


def group_statistics(
    hashes: Hashes, labels: NDArray[np.int8], metadata: RowMetadata, columns: MetadataColumns, comm: Communicator
) -> dict[str, dict[str, Any]]:
    """Return the manifest's records "doubles", "group", "time" and "weight", as far as rows have these. **Collective.**
    `hashes` are those of the rows. Raises InputError on every rank if some times are numbers and others dates."""
    statistics: dict[str, dict[str, Any]] = {"doubles": count_groups(hashes, labels, comm)._asdict()}
    if columns.group is not None:
        counts = count_groups(np.empty(0, np.uint64) if metadata.groups is None else metadata.groups, labels, comm)
        statistics["group"] = {"column": columns.group, "groups": counts.different, "largest": counts.largest}
    if (time := columns.time) is not None:
        times = np.empty(0) if metadata.times is None else metadata.times
        ends = comm.maximum(np.array([np.max(-times, initial=-np.inf), np.max(times, initial=-np.inf)]))
        kinds = sorted(set().union(*comm.allgather(metadata.kinds)))
        if len(kinds) > 1:
            raise InputError(f"column {time!r} holds both {' and '.join(kinds)}; times must be all of one kind", True)
        statistics["time"] = {"column": time, "kind": kinds[0], "first": float(-ends[0]), "last": float(ends[1])}
    if columns.weight is not None:
        statistics["weight"] = {"column": columns.weight, **_weight_statistics(labels, metadata.weights, comm)}
    return statistics


def _weight_statistics(labels: NDArray[np.int8], weights: Floats | None, comm: Communicator) -> dict[str, float]:
    """Return statistics of the weights, rounded so that the number of ranks has no influence. Collective."""
    weights = np.empty(0) if weights is None else weights
    largest = float(comm.maximum(np.array([weights.max(initial=0.0)]))[0])
    parts = weights / (largest or 1.0)  # whose squares neither overflow nor vanish
    sums = [math.fsum(parts[labels > 0]), math.fsum(parts[labels < 0]), math.fsum(parts * parts)]
    positive, negative, squares = (math.fsum(part) for part in zip(*comm.allgather(sums), strict=True))
    statistics = {"positive": positive * largest, "negative": negative * largest, "largest": largest}
    statistics["effective"] = (positive + negative) ** 2 / squares if squares else 0.0
    return {name: float(f"{value:.12g}") for name, value in statistics.items()}


def doubles_warning(manifest: Manifest, by: str | None = None) -> str:
    """Return a warning that to split rows by anything but "doubles" separates equal rows; "" if they are few. There is
    none for features, as different rows often have the same codes."""
    doubles, n = manifest.doubles, manifest.n
    if manifest.coded.features or doubles is None or (by or (manifest.split or {}).get("by")) == "doubles":
        return ""
    if doubles["rows"] <= MANY * n or doubles["largest"] >= ONE_ROW * n:
        return ""
    share = f"{100 * doubles['rows'] / n:.1f} % of the rows have an exact duplicate"
    effect = "Where duplicates of held-out rows are training rows, the measures on these are too good"
    splits = f"`{option('split_by', 'doubles')}` (of `shard` and `train`) and `{option('folds_by', 'doubles')}`"
    return Message(f"{share}. {effect}. {splits} (of `path` and `baseline`) keep equal rows together")


def describe(manifest: Manifest) -> dict[str, str]:
    """Return lines for people on groups, times, weights, unknown letters and equal rows, as far as they are known."""
    lines, n = {}, manifest.n
    if group := manifest.group:
        lines["group"] = f"{group['column']}: {group['groups']} groups, the largest of {group['largest']} rows"
    if time := manifest.time:
        first, last = (format_time(time[end], time["kind"]) for end in ("first", "last"))
        lines["time"] = f"{time['column']}: {first} to {last}"
    if weight := manifest.weight:
        total = weight["positive"] + weight["negative"]
        sums = f"sum {total:.9g}, of the positive rows {weight['positive']:.9g}, largest {weight['largest']:.6g}"
        effective = f"as much as {weight['effective']:.6g} rows of equal weight (the effective sample size)"
        lines["weight"] = f"{weight['column']}: {sums}; they say {effective}"
    if unknown := manifest.unknown:
        some = f"{unknown['letters']} letters of the window in {unknown['rows']} rows; k-mers with them count nothing"
        lines["unknown"] = some if unknown["rows"] else "no letter of the window"
    if doubles := manifest.doubles:
        both = doubles["contradicting"]
        agreement = f"the duplicates of {both} rows have both labels" if both else "their labels agree"
        share = f"{100 * doubles['rows'] / n:.1f} % of the rows have a duplicate: {doubles['different']} different rows"
        most = f"the most frequent one occurs {doubles['largest']} times"
        lines["repeated"] = f"{share}, {most}; {agreement}" if doubles["rows"] else "no row occurs twice"
        lines |= {"warning": warning} if (warning := doubles_warning(manifest)) else {}
    return lines


def label_warnings(manifest: Manifest, positive_named: bool) -> list[str]:
    """Return what is odd about the labels and the split; `positive_named`: the user named the positive label. Local."""
    positive, negative = class_names(manifest.label_map).values()
    warnings, scored = [], "such data can be scored, but not be used to train or to evaluate"
    if not (manifest.n_pos and manifest.n_neg):
        warnings.append(f"there is only one class: {scored}")
    elif manifest.weight and not (manifest.weight["positive"] and manifest.weight["negative"]):
        sign = "negative" if manifest.weight["positive"] else "positive"
        warnings.append(f"all {sign} rows have weight 0, or vanish beside the largest weight: {scored}")
    elif manifest.n_pos > MOSTLY * manifest.n and not positive_named:
        share = f"{100 * manifest.n_pos / manifest.n:.1f} % of the rows count as positive (label {positive})"
        remedy = f"if you look for the rare class, name its label: {option('positive', negative)}"
        warnings.append(f"{share}; {remedy}")
    if manifest.split is not None and manifest.split.get("by") == "groups" and manifest.time is not None:
        remedy = f"{option('split_by', 'time')} holds out the latest rows"
        warnings.append(f"whole groups were held out, so some training rows are later than test rows; {remedy}")
    return list(map(Message, warnings))
