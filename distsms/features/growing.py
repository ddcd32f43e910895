"""Grow a forest: extremely randomized trees (Geurts, Ernst and Wehenkel, 2006) by scikit-learn, over all ranks.

Each tree has random numbers of its own, which depend on the seed and on the number of the tree. The ranks share the
trees, and each of them has all rows that the trees grow on. So the forest is the same on any number of ranks, bit for
bit, with the same version of scikit-learn.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.base.errors import InputError
from distsms.base.typing import Floats
from distsms.base.wording import option
from distsms.features import growing_rows
from distsms.features.forest import MOST_LEAVES, MOST_TREES, Forest
from distsms.features.forest_kernels import preorder
from distsms.features.growing_cost import bytes_of_rows, bytes_of_tree, check_time
from distsms.features.growing_rows import GrowingRows
from distsms.matrix.blocks import thread_count
from distsms.parallel.communicator import Communicator

N_TREES, MIN_LEAF = 100, 3
_EXCHANGE_BYTES = 48
"""Bytes for each node while the ranks exchange their trees, and find leaves."""


class _Tree(NamedTuple):
    """The nodes of a tree in preorder; see `Forest`."""

    column: NDArray[np.int32]
    threshold: NDArray[np.float32]
    gain: Floats  # each split's share of what all splits of the tree gained


def grow(
    rows: GrowingRows,
    comm: Communicator,
    n_trees: int = N_TREES,
    min_leaf: int = MIN_LEAF,
    seed: int = 0,
    watch: Callable[[int], None] = lambda done: None,
    say: Callable[[str], None] = lambda text: None,
    room: float = math.inf,
) -> Forest:
    """Grow extremely randomized trees, for which all columns are tried at each node. **Collective.**

    Parameters
    ----------
    rows : GrowingRows
        The rows of this rank; the trees grow on those of all ranks, in the order of the ranks.
    comm : Communicator
        The ranks, which share the trees.
    n_trees : int
        The number of trees.
    min_leaf : int
        The least number of rows in a leaf. If a tree then has more than 65,535 leaves, those nodes become leaves that
        have the fewest rows.
    seed : int
        Another seed grows other trees.
    watch : callable
        Called on each rank with the number of its trees that have grown, from 0 on.
    say : callable
        Called on each rank with a line for users if growing takes long.
    room : float
        The bytes that each rank has left for the rows and the trees.

    Returns
    -------
    Forest
        The same on every rank.

    Raises
    ------
    InputError
        On every rank, if scikit-learn is missing, there are no columns, values are not finite, all rows that count are
        of one class, growing would take more than a day, or the trees take too much memory.

    Notes
    -----
    Time: for each tree, some nanoseconds for each row, column and level of the tree; of sparse rows, for each nonzero.
    Memory on each rank: 4 bytes for each row and column, or 16 for each nonzero if these are few, and as much again for
    the rows of this rank while they are exchanged.
    """
    with comm.fail_together():
        check_growing(n_trees, min_leaf, seed)
        if rows.X.shape[1] < 1:
            raise InputError("trees need columns, but the rows have none")
        rows = rows._replace(X=growing_rows.singles(rows.X))
    if len({width for width in comm.allgather(rows.X.shape[1])}) > 1:
        raise InputError("the ranks have rows with different numbers of columns", True)
    if rows.weights is not None:
        counted = rows.weights != 0
        rows = GrowingRows(rows.X[counted], rows.y[counted], rows.weights[counted])
    found = growing_rows.whole(rows, comm)
    del rows  # on a single rank, `found` has its values
    for sign, name in ((1, "positive"), (-1, "negative")):
        if not (found.y == sign).any():
            raise InputError(f"trees cannot grow: of {len(found.y)} rows, none is {name}", True)
    entries = found.X.nnz if sparse.issparse(found.X) else found.X.size
    check_time(found, n_trees, min_leaf, comm, say)
    watch(0)
    with comm.fail_together():
        n, p = found.X.shape
        left = room - bytes_of_rows(n, p, entries) - bytes_of_tree(n, min_leaf)
        most = left / (comm.size * _EXCHANGE_BYTES)
        own = _grown(found, range(comm.rank, n_trees, comm.size), min_leaf, seed, watch, most)
    return _gather(own, n_trees, found.X.shape[1], comm)


def check_growing(n_trees: int, min_leaf: int = MIN_LEAF, seed: int = 0) -> None:
    """Raise InputError if no trees can grow for these numbers, or scikit-learn is missing. Local."""
    if not 1 <= n_trees <= MOST_TREES or min_leaf < 1 or not 0 <= seed < 2**63:
        raise InputError(
            f"a forest has 1 to {MOST_TREES} trees with 1 or more rows in a leaf, and a seed from 0 to 2^63 - 1; found "
            f"{n_trees} trees, {min_leaf} rows and seed {seed}"
        )
    try:
        import sklearn.tree  # noqa: F401
    except ImportError as absent:
        raise InputError(
            f"scikit-learn grows the trees, and it is not installed: pip install 'distsms[sklearn]' ({absent}). "
            "Forests that have grown can be used without it"
        ) from absent


def _grown(
    rows: GrowingRows, numbers: range, min_leaf: int, seed: int, watch: Callable[[int], None], most: float
) -> list[_Tree]:
    """Grow the trees of these numbers, which may have at most so many nodes. Local; on several threads."""
    from sklearn.tree import ExtraTreeClassifier

    done, nodes, lock = 0, 0, threading.Lock()

    def one_tree(number: int) -> _Tree:
        nonlocal done, nodes
        state = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
        tree = ExtraTreeClassifier(max_features=None, min_samples_leaf=min_leaf, random_state=state)
        grown = _tree(tree.fit(rows.X, rows.y > 0, rows.weights).tree_)
        with lock:
            done += 1
            nodes += len(grown.column)
            if nodes > most:
                raise InputError(
                    f"the first {done} of {len(numbers)} trees have {nodes} nodes, and there is memory for {most:.0f} "
                    f"({option('memory')}): allow more memory, grow fewer {option('trees')}, or take a larger "
                    f"{option('min_leaf')}"
                )
            watch(done)
        return grown

    if thread_count() == 1:
        return [one_tree(number) for number in numbers]
    with ThreadPoolExecutor(thread_count()) as pool:
        return list(pool.map(one_tree, numbers))


def _tree(grown: Any) -> _Tree:
    """Return a tree of scikit-learn as arrays."""
    left, right, n = grown.children_left, grown.children_right, grown.n_node_samples
    inner = left >= 0
    if inner.sum() >= MOST_LEAVES:  # as many leaves as inner nodes, and one more
        smallest = np.sort(n[inner])[-MOST_LEAVES]
        inner &= n > smallest
    nodes = np.flatnonzero(inner)
    mass = grown.weighted_n_node_samples * grown.impurity
    gain = np.zeros(len(left))
    gain[nodes] = np.maximum(mass[nodes] - mass[left[nodes]] - mass[right[nodes]], 0.0)
    order = preorder(left, right, inner)
    split = inner[order]
    exact = np.where(split, grown.threshold[order], 0.0)
    threshold = exact.astype(np.float32)
    # The values are float32. So at most the threshold is the same as at most the next float32 below it.
    threshold = np.where(threshold > exact, np.nextafter(threshold, np.float32(-np.inf)), threshold)
    column = np.where(split, grown.feature[order], -1).astype(np.int32)
    return _Tree(column, threshold, gain[order] / (gain.sum() or 1.0))


def _gather(own: list[_Tree], n_trees: int, p: int, comm: Communicator) -> Forest:
    """Return the forest of all ranks' trees, in the order of their numbers. **Collective.**"""
    sizes = np.zeros(n_trees, np.int64)
    sizes[comm.rank :: comm.size] = [len(tree.column) for tree in own]
    comm.sum(sizes)
    counts = [int(sizes[rank :: comm.size].sum()) for rank in range(comm.size)]
    of_ranks = np.concatenate([sizes[rank :: comm.size] for rank in range(comm.size)])
    numbers = np.concatenate([np.arange(rank, n_trees, comm.size) for rank in range(comm.size)])
    ends = np.cumsum(of_ranks)
    pieces = [
        slice(*ends_of)
        for ends_of in zip((ends - of_ranks)[np.argsort(numbers)], ends[np.argsort(numbers)], strict=True)
    ]
    column, threshold, gain = (
        _in_order(comm.allgather_rows(np.concatenate([np.empty(0, kind), *(tree[k] for tree in own)]), counts), pieces)
        for k, kind in enumerate((np.int32, np.float32, np.float64))
    )
    inner = column >= 0
    importance = np.bincount(column[inner], gain[inner], p)
    total = importance.sum()
    return Forest(column, threshold, np.cumsum([0, *sizes]), importance / total if total else importance)


def _in_order(array: NDArray[Any], pieces: list[slice]) -> NDArray[Any]:
    return np.concatenate([array[piece] for piece in pieces])
