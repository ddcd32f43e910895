"""What growing a forest takes, found out before hours are lost: the bytes of the rows, and the time of a tree.

At each node all columns are tried. So the time of a tree grows with the product of rows and columns, and with very many
columns it is days.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes, format_duration
from distsms.base.memory import available
from distsms.base.wording import Message, option
from distsms.features.growing_rows import GrowingRows
from distsms.matrix.blocks import thread_count
from distsms.parallel.communicator import Communicator

SLOW, HOPELESS = 600.0, 86_400.0
"""Seconds of growing from which users are warned, and from which it is refused."""
LEAST_ROWS = 100
"""A smaller sample for trees may lack a class."""
_QUICK, _TRIAL = 2**24, 2**20
"""Values of the rows from which the time is estimated, and values of those on which a small tree grows for that."""
_ROW_BYTES, _NODE_BYTES = 40, 150
"""Bytes for each row, and for each node, while a tree grows."""
_FEWEST = 64
"""The least number of rows of that small tree."""


def bytes_of_rows(n: int, p: int, entries: float) -> int:
    """Return the bytes of n rows with so many entries in p columns while trees grow on them; see `whole`. Local."""
    return int(16 * entries if entries < n * p / 6 else 4 * n * p)


def bytes_of_tree(n: int, min_leaf: int) -> int:
    """Return the most bytes that growing a tree on n rows takes beside them, on all threads of a rank. Local."""
    return thread_count() * (_ROW_BYTES + _NODE_BYTES * 2 // min_leaf) * n


def check_memory(n: int, p: int, entries: float, comm: Communicator, room: float = math.inf, min_leaf: int = 1) -> None:
    """Raise InputError if the rows on which trees grow do not fit into memory. **Collective.**

    Parameters
    ----------
    n, p : int
        The number of rows on which the trees grow, and of columns.
    entries : float
        The number of entries of these rows.
    comm : Communicator
        The ranks, of which each holds these rows.
    room : float
        The bytes that each rank has left for growing trees.
    min_leaf : int
        The least number of rows in a leaf.
    """
    here, needed = len(comm.node_ranks()), bytes_of_rows(n, p, entries)
    with comm.fail_together():
        there = available()
        if (here + 1) * needed > there:  # while they are exchanged, the ranks have their own rows besides
            fitting = 0.8 * n * there / ((here + 1) * needed)
            raise InputError(
                f"the {n} rows of {p} columns on which trees grow take {format_bytes(needed)} on each of {here} "
                f"rank(s) of this node, which has {format_bytes(there)} of memory available: take fewer rows "
                f"({option('tree_rows', _rounded(fitting))}), or fewer ranks on each node"
            )
        wanted = 2 * needed + bytes_of_tree(n, min_leaf)
        if wanted > room:
            fewer = 0.8 * n * room / wanted
            advice = f", or take fewer rows ({option('tree_rows', _rounded(fewer))})" if fewer >= LEAST_ROWS else ""
            raise InputError(
                f"to collect the {n} rows of {p} columns on which trees grow, and to grow a tree, takes up to "
                f"{format_bytes(wanted)}, and {option('memory')} leaves {format_bytes(room)} for it: allow more "
                f"memory{advice}"
            )


def check_time(rows: GrowingRows, n_trees: int, min_leaf: int, comm: Communicator, say: Callable[[str], None]) -> None:
    """Tell users how long growing takes if that is long. **Collective.**

    Parameters
    ----------
    rows : GrowingRows
        All rows on which the trees grow; the same on every rank.
    n_trees, min_leaf : int
        As for `grow`.
    comm : Communicator
        The ranks, which share the trees.
    say : callable
        Gets a line for users, on each rank.

    Raises
    ------
    InputError
        On every rank, if it would take more than a day.
    """
    n, p = rows.X.shape
    if n * p < _QUICK:
        return
    with comm.fail_together():
        each = seconds_of_tree(rows, min_leaf) if comm.is_root else 0.0
    each = comm.bcast(each)
    at_once = comm.size * thread_count()
    seconds = each * -(-n_trees // at_once)
    if seconds < SLOW:
        return
    text = (
        f"growing {n_trees} trees on {n} rows takes about {format_duration(seconds)}, since all {p} columns are tried "
        f"at each node. Fewer rows ({option('tree_rows', _rounded(n / 10))}), fewer trees, or more ranks (now "
        f"{comm.size}) take less time; without {option('trees')}, a linear model on the columns themselves is often as "
        "good for very many columns"
    )
    if seconds > HOPELESS:
        raise InputError(text, everywhere=True)
    say(Message(f"  note      {text}"))


def seconds_of_tree(rows: GrowingRows, min_leaf: int) -> float:
    """Estimate the seconds that a tree takes to grow, from a tree on some of the rows. Local."""
    from sklearn.tree import ExtraTreeClassifier

    n, p = rows.X.shape
    some = min(n, max(_FEWEST, _TRIAL // p))
    classes = [np.flatnonzero(rows.y == sign) for sign in (1, -1)]
    counts = [min(len(own), max(round(some * len(own) / n), some // 8)) for own in classes]
    chosen = [own[np.linspace(0, len(own) - 1, count).astype(int)] for own, count in zip(classes, counts, strict=True)]
    at = np.sort(np.concatenate(chosen))
    X, weights = rows.X[at], None if rows.weights is None else rows.weights[at]
    tree = ExtraTreeClassifier(max_features=None, min_samples_leaf=min_leaf, random_state=0)
    begun = time.perf_counter()
    tree.fit(X, rows.y[at] > 0, weights)
    return (time.perf_counter() - begun) * n * math.log2(n) / (len(at) * math.log2(len(at)))


def _rounded(x: float) -> int:
    """Return a positive number rounded down to one digit."""
    power = 10 ** math.floor(math.log10(max(x, 1.0)))
    return int(max(x, 1.0) // power * power)
